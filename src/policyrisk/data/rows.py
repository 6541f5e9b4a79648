"""From rows of a table to episodes: the part that Parquet and CSV share.

The layout is a row for each visited state, in order, an episode's rows together:

    episode   step   x      y      reward   terminated   truncated
    7         0      0.1    0.9    −1.0     false        false
    7         1      0.2    0.8    −1.0     true         false
    7         2      0.3    0.7    (null)   false        false        the end state, if it was recorded

Row t holds x_t and the reward r_t that was earned on leaving it. A last row with a null reward is the state
x_T that the episode ended in. A flag stands in the row of the last reward, or in the end row; one anywhere
else is an error. Columns of the action and of its propensity belong to the reward: an end row has none, and
what stands there is not looked at. Without an end row,

    a terminated episode   repeats its last state as x_T: nothing follows, φ(x_T) = 0, it is never looked at
    a cut-off episode      gives up its last transition, for x_T matters there and is unknown

With ``terminated`` alone, an episode that is not flagged was cut off; with ``truncated`` alone it terminated;
with both, one that is flagged by neither was cut off (the recording stopped), one flagged by both terminated.

A last row with a null reward that is the first with ``terminated`` may be an end row, or miss its reward. It
misses one where more of the file's terminated episodes have no such row, and none has an end row that tells
what it is.

Values may be *missing*, where that is allowed: a state's, for which its last value in the episode can stand,
and rewards and actions, for which nothing can. An episode with one that nothing stands for is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.frames import Coordinates
from policyrisk.data.columns import Missing
from policyrisk.data.stream import Piece
from policyrisk.data.trajectories import Trajectories
from policyrisk.errors import BadRowError

Got: TypeAlias = "str | Callable[[int], object]"  # what was found: a text, or a function of the entry's index


def refuse_first(file: str, row: int, wrong: Bools, rule: str, got: Got, remedy: str, width: int = 1) -> None:
    """Raise for the first wrong entry, if there is one: ``width`` entries to a row, from ``row`` on."""
    if wrong.any():
        at = int(wrong.argmax())
        where = f"{got if isinstance(got, str) else got(at)} in row {row + at // width} of {file}"
        raise BadRowError(f"{rule}, got {where} (counted from 0); {remedy}")


class CheckedRows(NamedTuple):
    """Consecutive rows of one file, each checked by itself."""

    states: npt.NDArray[Any]  # (n, dim) float64 or int64, finite
    rewards: Floats  # (n,) 0 where there is none
    ended: Bools  # (n,) True where the reward is null
    new: Bools  # (n,) True where the episode is another than the row before's
    terminated: Bools | None  # (n,) or None without that column
    truncated: Bools | None  # (n,)
    steps: Floats | Ints | None  # (n,)
    actions: npt.NDArray[Any] | None = None  # (n,) int64 or (n, k) float64, 0 in end rows
    propensities: Floats | None = None  # (n,) in (0, 1], 0 in end rows
    holes: Bools | None = None  # (n, dim) where a state's value is missing, unless that is refused
    lost: Bools | None = None  # (n,) where something else is
    clusters: Ints | None = None  # (n,) a key in each episode's first row
    times: Floats | Ints | None = None  # (n,) when it took place, in its first row
    other_rewards: Floats | None = None  # (n, k) of other kinds, 0 in end rows

    def some(self, rows: slice | Bools) -> CheckedRows:
        """Some of the rows."""
        columns: list[Any] = [None if column is None else column[rows] for column in self]
        return CheckedRows(*columns)

    @staticmethod
    def join(parts: Sequence[CheckedRows]) -> CheckedRows:
        """The rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        columns: Any = zip(*parts, strict=True)
        joined: list[Any] = [None if column[0] is None else np.concatenate(column) for column in columns]
        return CheckedRows(*joined)


def episodes(
    parts: Iterable[CheckedRows],
    file: str,
    coordinates: Callable[[], Coordinates],
    missing: Missing = "refuse",
) -> Iterator[Piece]:
    """The episodes of one file's rows, which come in parts of any size.

    The rows of the episode that is not known to be complete are kept until its end has been seen. What the
    states' coordinates are called is asked once there are rows.
    """

    ends = EndRows(file)

    def assembled(rows: CheckedRows, row: int) -> Piece:
        return _assemble(rows, file, row, coordinates(), missing, ends)

    kept: list[CheckedRows] = []
    row = 0  # of the file, where the kept rows begin
    for part in parts:
        starts = np.flatnonzero(part.new)
        last = int(starts[-1]) if starts.size else part.new.size
        if last:
            kept.append(part.some(slice(last)))
        if starts.size:
            if kept:
                yield assembled(CheckedRows.join(kept), row)
                row += sum(each.new.size for each in kept)
            kept = [part.some(slice(last, None))]
    if kept:
        yield assembled(CheckedRows.join(kept), row)
    ends.check()


class EndRows:
    """A file's terminated episodes: how many have no end row, one that may miss its reward, or another."""

    def __init__(self, file: str) -> None:
        self._file, self._none, self._doubtful, self._others, self._first = file, 0, 0, 0, 0

    def add(self, has_end: Bools, doubtful: Bools, rows: Ints) -> None:
        """Episodes (n,), and their last rows."""
        if doubtful.any() and not self._doubtful:
            self._first = int(rows[doubtful.argmax()])
        self._none += int((~has_end).sum())
        self._doubtful += int(doubtful.sum())
        self._others += int((has_end & ~doubtful).sum())

    def check(self) -> None:
        """Raise where a last reward is missing."""
        if 0 < self._doubtful < self._none and not self._others:
            raise BadRowError(
                "reward must not be null in a terminated episode's last row where others have no row for "
                f"their end, got null in row {self._first} of {self._file} (counted from 0), and a reward in "
                f"{self._none:,} of {self._none + self._doubtful:,} such rows; fill it in or leave the "
                "episode out, or, where the row is the state that it ended in, set the flag in the row before"
            )


def _assemble(
    rows: CheckedRows, file: str, row: int, coordinates: Coordinates, missing: Missing, ends: EndRows
) -> Piece:
    """Whole episodes as Trajectories; ``row`` is the number of the first row in its file."""
    first, last, is_last = _bounds(rows)
    if rows.lost is not None:  # a null reward that is none of an end row, among others
        rows = rows._replace(lost=rows.lost | (rows.ended & ~is_last), ended=rows.ended & is_last)
    _check_order(rows, is_last, file, row)
    filled = dropped = 0
    if rows.holes is not None and rows.lost is not None:
        rows, filled, dropped = _mended(rows, first, last, missing)
        first, last, is_last = _bounds(rows)

    has_end = rows.ended[last]  # (episodes,)
    final = np.maximum(last - has_end, first)  # the row of the last reward, if there is one
    flags = rows.truncated if rows.terminated is None else rows.terminated
    assert flags is not None
    flagged = flags[last] | flags[final]
    terminated = ~flagged if rows.terminated is None else flagged
    if rows.terminated is not None:
        doubtful = has_end & ~(flags[final] & (final < last))
        ends.add(has_end[terminated], doubtful[terminated], row + last[terminated])
    counted = last - first + ~has_end  # rewards
    kept = counted > 0

    times = np.ones(rows.new.size, dtype=np.int64)  # how often each state is taken
    times[last[~has_end]] = 2
    times[last[~kept]] = 0  # an end row alone
    rewarded = ~is_last
    rewarded[last[~has_end]] = True
    data = Trajectories._view(
        np.repeat(rows.states, times, axis=0) if (times != 1).any() else rows.states,
        rows.rewards[rewarded],
        counted[kept],
        terminated[kept],
        *(None if column is None else column[rewarded] for column in (rows.actions, rows.propensities)),
        None if rows.clusters is None else rows.clusters[first[kept]],
        None if rows.times is None else rows.times[first[kept]].astype(np.float64),
        None if rows.other_rewards is None else rows.other_rewards[rewarded],
        coordinates=coordinates,
    )
    return Piece(data, file, (~has_end & ~terminated)[kept], int((~kept).sum()), filled, dropped)


def _bounds(rows: CheckedRows) -> tuple[Ints, Ints, Bools]:
    """The first and the last row of each episode (episodes,), and which rows are last ones (n,)."""
    first = np.flatnonzero(rows.new)
    last = np.append(first[1:], rows.new.size)[: first.size] - 1
    is_last = np.zeros(rows.new.size, dtype=np.bool_)
    is_last[last] = True
    return first, last, is_last


def _mended(rows: CheckedRows, first: Ints, last: Ints, missing: Missing) -> tuple[CheckedRows, int, int]:
    """Rows without missing values; how many were filled in, and how many episodes were left out."""
    holes, lost = rows.holes, rows.lost
    assert holes is not None
    assert lost is not None
    filled = np.zeros_like(holes)
    if missing == "last" and holes.any():
        n, dim = holes.shape
        begin = np.repeat(first, last - first + 1)[:, None]  # (n, 1)
        known = np.where(holes, -1, np.arange(n)[:, None])
        source = np.maximum(np.maximum.accumulate(known, axis=0), begin)  # the last row that has a value
        rows = rows._replace(states=rows.states[source, np.arange(dim)])
        left = holes[source, np.arange(dim)]  # nothing came before
        filled, holes = holes & ~left, left
    broken = np.logical_or.reduceat(lost | holes.any(axis=1), first)  # (episodes,)
    stays = np.repeat(~broken, last - first + 1)
    if broken.any():
        rows = rows.some(stays)
    return rows, int(filled[stays].sum()), int(broken.sum())


def _check_order(rows: CheckedRows, is_last: Bools, file: str, row: int) -> None:
    """Rewards, flags and steps that are out of place."""
    refuse = partial(refuse_first, file, row)
    refuse(
        rows.ended & ~is_last,
        "reward must not be null before an episode's last row",
        "null",
        "fill it in, or sort the rows by episode and step",
    )
    # A flag is in place in the last row, and in the row before an end row.
    in_place = is_last.copy()
    in_place[:-1] |= is_last[1:] & rows.ended[1:]
    for name, flag in (("terminated", rows.terminated), ("truncated", rows.truncated)):
        if flag is not None:
            refuse(
                flag & ~in_place,
                f"{name} must be true only where an episode ends",
                "true with more rows of that episode to come",
                "give each episode an id of its own, or sort the rows by episode and step",
            )
    steps = rows.steps
    if steps is not None:
        rises = rows.new.copy()
        rises[1:] |= steps[1:] > steps[:-1]
        refuse(
            ~rises,
            "step must rise from row to row of an episode",
            lambda at: f"{steps[at]:g} after {steps[at - 1]:g}",
            "sort the rows by episode and step and remove duplicates, or pass step=None to ignore it",
        )
