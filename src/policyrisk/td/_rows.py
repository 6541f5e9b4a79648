"""Episodes as the kernels read them: their states' features in rows, a few episodes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.checked import active_of, is_binary, matrix_of
from policyrisk.td._kernels import BinaryRows, DenseRows, Rows, SparseRows
from policyrisk.trajectories import Trajectories

_STATES = 1 << 15  # states at a time: their rows then stay in the cache
_ENTRIES = 1 << 22  # entries of dense rows at a time, 32 MB


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive episodes, the terminal states left out: nobody computes their features."""

    states: npt.NDArray[Any]  # (n, dim): every x_t with t < T, and x_T where the episode was cut off
    base: Ints  # (episodes,): the row of each episode's x_0
    offsets: Ints  # (episodes + 1,): where its rewards start
    lengths: Ints  # (episodes,)
    bootstraps: Bools  # (episodes,): True where it was cut off
    rewards: Floats  # (transitions,)

    @classmethod
    def of(cls, data: Trajectories) -> Chunk:
        """All the episodes of a record."""
        states, cut_off = data.states, ~data.terminated
        kept = np.ones(len(states), dtype=np.bool_)
        kept[data.final_rows[data.terminated]] = False
        base = data.offsets[:-1] + np.cumsum(cut_off) - cut_off
        return cls(
            states.take(np.flatnonzero(kept), axis=0), base, data.offsets, data.lengths, cut_off, data.rewards
        )

    def started(self, used: Ints) -> Ints:
        """The rows that hold x_t with t < used, of shape (Σ used,)."""
        first = np.repeat(self.base - (np.cumsum(used) - used), used)
        rows: Ints = first + np.arange(len(first))
        return rows

    def outside(self, maps: tuple[Features, ...], started: Ints) -> int:
        """How many of the states in the rows ``started`` are outside the box of one of the maps."""
        outside = np.zeros(len(self.states), dtype=np.bool_)
        for features in maps:
            tell = getattr(features, "outside", None)
            if tell is not None:
                outside |= tell(self.states)
        return int(np.count_nonzero(outside[started])) if outside.any() else 0


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one moment learns from: episodes, their features, and how many transitions of each are used."""

    chunk: Chunk
    rows: Rows
    used: Ints  # (episodes,)

    def check_finite(self) -> None:
        """Raise where a feature is not finite: a likelier cause of nan than the step."""
        rows = self.rows
        values = (
            None if isinstance(rows, BinaryRows) else rows.phi if isinstance(rows, DenseRows) else rows.values
        )
        if values is not None and not np.isfinite(values).all():
            raise InvalidInputError("features must be finite, got nan or inf; repair them")


def chunks(batch: Trajectories, width: int | None) -> Iterator[Chunk]:
    """A batch cut between episodes; ``width`` is the number of entries of a dense row."""
    most = _STATES if width is None else min(_STATES, max(1, _ENTRIES // width))
    if batch.transitions + len(batch) <= most:
        yield Chunk.of(batch)
        return
    first = 0
    while first < len(batch):
        end = int(np.searchsorted(batch.offsets, batch.offsets[first] + most, side="right")) - 1
        last = max(first + 1, end)
        yield Chunk.of(batch[first:last])
        first = last


def rows_of(features: Features, states: npt.NDArray[Any]) -> tuple[Rows, int]:
    """The features of the states, and how many features there are."""
    if is_binary(features):
        return BinaryRows(readonly(active_of(features, states).view())), features.size
    phi = matrix_of(features, states)
    if isinstance(phi, np.ndarray):
        return DenseRows(readonly(phi.view())), features.size
    starts, columns = (readonly(part.astype(np.int64)) for part in (phi.indptr, phi.indices))
    return SparseRows(starts, columns, readonly(phi.data.view())), features.size
