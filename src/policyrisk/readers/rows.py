"""From rows of a table to episodes: the part that Parquet and CSV share.

The layout is a row for each visited state, in order, an episode's rows together:

    episode   step   x      y      reward   terminated   truncated
    7         0      0.1    0.9    −1.0     false        false
    7         1      0.2    0.8    −1.0     true         false
    7         2      0.3    0.7    (null)   false        false        the end state, if it was recorded

Row t holds x_t and the reward r_t that was earned on leaving it. A last row with a null reward is the state
x_T that the episode ended in. A flag stands in the row of the last reward, or in the end row; one anywhere
else is an error. Without an end row,

    a terminated episode   repeats its last state as x_T: nothing follows, φ(x_T) = 0, it is never looked at
    a cut-off episode      gives up its last transition, for x_T matters there and is unknown

With ``terminated`` alone, an episode that is not flagged was cut off; with ``truncated`` alone it terminated;
with both, one that is flagged by neither was cut off (the recording stopped), one flagged by both terminated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk.errors import BadRowError
from policyrisk.readers.stream import Part
from policyrisk.trajectories import Trajectories


def refuse(file: str, row: int, rule: str, got: str, remedy: str) -> NoReturn:
    """Raise for a row of a file, counted from 0."""
    raise BadRowError(f"{rule}, got {got} in row {row} of {file} (counted from 0); {remedy}")


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of one file, each checked by itself."""

    states: npt.NDArray[Any]  # (n, dim) float64 or int64, finite
    rewards: Floats  # (n,) 0 where there is none
    ended: Bools  # (n,) True where the reward is null
    new: Bools  # (n,) True where the episode is another than the row before's
    terminated: Bools | None  # (n,) or None without that column
    truncated: Bools | None  # (n,)
    steps: Floats | Ints | None  # (n,)

    def __len__(self) -> int:
        return self.rewards.size

    def part(self, first: int, last: int) -> Rows:
        """Rows first, …, last − 1."""
        columns: list[Any] = [None if column is None else column[first:last] for column in self._columns()]
        return Rows(*columns)

    def _columns(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        columns: list[Any] = [
            None if column[0] is None else np.concatenate(column)
            for column in zip(*(part._columns() for part in parts), strict=True)
        ]
        return Rows(*columns)


class Assembler:
    """Makes episodes of one file's rows, which come in pieces of any size.

    The rows of the episode that is not known to be complete are kept until its end has been seen.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self._kept: list[Rows] = []
        self._row = 0  # of the file, where the kept rows begin

    def add(self, rows: Rows) -> Part | None:
        """The episodes that these rows complete."""
        starts = np.flatnonzero(rows.new)
        if not starts.size:
            self._kept.append(rows)
            return None
        last = int(starts[-1])
        if last:
            self._kept.append(rows.part(0, last))
        done = self._complete()
        self._kept = [rows.part(last, len(rows))]
        return done

    def finish(self) -> Part | None:
        """The file's last episode."""
        return self._complete()

    def _complete(self) -> Part | None:
        if not self._kept:
            return None
        rows = Rows.join(self._kept)
        self._kept = []
        part = assemble(rows, self.file, self._row)
        self._row += len(rows)
        return part


def assemble(rows: Rows, file: str, row: int) -> Part:
    """Whole episodes as Trajectories; ``row`` is the number of the first row in its file."""
    first = np.flatnonzero(rows.new)
    last = np.append(first[1:], len(rows)) - 1
    is_last = np.zeros(len(rows), dtype=np.bool_)
    is_last[last] = True
    _check_order(rows, is_last, file, row)

    has_end = rows.ended[last]  # (episodes,)
    final = np.maximum(last - has_end, first)  # the row of the last reward, if there is one
    terminated = _terminated(rows, last, final)
    repeats = ~has_end & terminated
    counted = last - first + repeats  # transitions that are left
    kept = counted > 0

    times = np.ones(len(rows), dtype=np.int64)  # how often each state is taken
    times[last[repeats]] = 2
    times[last[~kept]] = 0  # an episode with nothing left has one row
    rewarded = ~is_last
    rewarded[last[repeats]] = True
    data = Trajectories._view(
        np.repeat(rows.states, times, axis=0) if (times != 1).any() else rows.states,
        rows.rewards[rewarded],
        counted[kept],
        terminated[kept],
    )
    given_up = int((~has_end & ~terminated).sum())
    return Part(data, file, given_up, int((~kept).sum()))


def _terminated(rows: Rows, last: Ints, final: Ints) -> Bools:
    """Which episodes terminated, of shape (episodes,), by the flags that there are."""
    if rows.terminated is not None:
        terminated: Bools = rows.terminated[last] | rows.terminated[final]
        return terminated
    assert rows.truncated is not None
    cut_off: Bools = rows.truncated[last] | rows.truncated[final]
    return ~cut_off


def _check_order(rows: Rows, is_last: Bools, file: str, row: int) -> None:
    """Rewards, flags and steps that are out of place."""
    lost = np.flatnonzero(rows.ended & ~is_last)
    if lost.size:
        refuse(
            file,
            row + int(lost[0]),
            "reward must not be null before an episode's last row",
            "null",
            "fill it in, or sort the rows by episode and step",
        )
    # A flag is in place in the last row, and in the row before an end row.
    in_place = is_last.copy()
    in_place[:-1] |= is_last[1:] & rows.ended[1:]
    for name, flag in (("terminated", rows.terminated), ("truncated", rows.truncated)):
        wrong = np.flatnonzero(flag & ~in_place) if flag is not None else np.empty(0, np.int64)
        if wrong.size:
            refuse(
                file,
                row + int(wrong[0]),
                f"{name} must be true only where an episode ends",
                "true with more rows of that episode to come",
                "give each episode an id of its own, or sort the rows by episode and step",
            )
    if rows.steps is not None:
        low = np.flatnonzero((rows.steps[1:] <= rows.steps[:-1]) & ~rows.new[1:])
        if low.size:
            at = int(low[0]) + 1
            refuse(
                file,
                row + at,
                "step must rise from row to row of an episode",
                f"{rows.steps[at]:g} after {rows.steps[at - 1]:g}",
                "sort the rows by episode and step and remove duplicates, or pass step=None to ignore it",
            )
