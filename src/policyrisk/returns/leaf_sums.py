"""Sums over the leaves that episodes visit: what a forest's values and replicates are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.records import record
from policyrisk.data import Trajectories, pieces
from policyrisk.errors import MismatchError
from policyrisk.features import Leaves
from policyrisk.returns import _forest_kernels as _kernels
from policyrisk.risk.draws import multipliers
from policyrisk.risk.support import Support

StreamKey: TypeAlias = "tuple[int | np.uint64, int | np.uint64]"

_PIECE = 1 << 14  # steps whose leaves are in hand at once


@record(visits="leaves", feature_episodes="leaves", sums="leaves")
@dataclass(frozen=True, eq=False)
class LeafSums:
    """Per leaf, of the trees that were grown without the episode: steps, episodes and Σ (y_t − centre).

    They add. ``centre`` is any number near the y, so that sums of large numbers keep their digits.
    """

    visits: Floats  # (leaves,)
    feature_episodes: Floats  # (leaves,)
    sums: Floats  # (leaves,)
    centre: float

    @classmethod
    def over(cls, leaves: Leaves, data: Trajectories, y: Floats, apart: Bools, centre: float) -> LeafSums:
        """Of numbers y (transitions,), one a step; ``apart`` (episodes, trees): which trees they count in."""
        total = np.zeros((3, leaves.size))
        for span, part, active in leaf_pieces(leaves, data):
            ones = np.column_stack([np.ones(part.transitions), y[_rows(data, span)] - centre])
            _, idx, sums = _kernels.tally(part.offsets, active, apart[span], ones, leaves.size)
            total[0] += np.bincount(idx, sums[:, 0], leaves.size)
            total[1] += np.bincount(idx, minlength=leaves.size)
            total[2] += np.bincount(idx, sums[:, 1], leaves.size)
        return cls(total[0], total[1], total[2], centre)

    def __add__(self, other: LeafSums) -> LeafSums:
        if self.centre != other.centre:
            raise MismatchError(f"sums about {self.centre} and {other.centre} do not add; take one centre")
        return LeafSums(
            self.visits + other.visits,
            self.feature_episodes + other.feature_episodes,
            self.sums + other.sums,
            self.centre,
        )

    @property
    def values(self) -> Floats:
        """The average of y in every leaf, of shape (leaves,)."""
        values: Floats = self.sums / self.visits + self.centre
        return values

    def support(self, episodes: int) -> Support:
        """What a RiskFunction keeps of the visits."""
        return Support(self.visits, self.feature_episodes, episodes, gram=None, limit=1.0)

    def out_of_bag(self, leaves: Leaves, data: Trajectories, y: Floats, apart: Bools) -> Floats:
        """What the trees say of every step without its own episode, of shape (transitions,)."""
        out = np.empty(len(y))
        for span, part, active in leaf_pieces(leaves, data):
            at = _rows(data, span)
            own = y[at] - self.centre
            _kernels.out_of_bag(part.offsets, active, apart[span], own, self.visits, self.sums, out[at])
        return out + self.centre

    def draws(
        self,
        leaves: Leaves,
        data: Trajectories,
        y: Floats,
        apart: Bools,
        key: StreamKey,
        first: int,
        count: int,
    ) -> Floats:
        """Σ_k ξ_kb Σ_{t ∈ k, x_t ∈ ℓ} (y_t − v_ℓ), (leaves, count): N_ℓ times what draws move v_ℓ by.

        ``first`` is the number of the first episode, whose multipliers ξ_k come from the key and k alone.
        """
        drawn = np.zeros((leaves.size, count))
        values = self.values
        for span, part, active in leaf_pieces(leaves, data):
            ones = np.column_stack([np.ones(part.transitions), y[_rows(data, span)] - self.centre])
            ptr, idx, sums = _kernels.tally(part.offsets, active, apart[span], ones, leaves.size)
            residuals = sums[:, 1] - (values[idx] - self.centre) * sums[:, 0]
            xi = multipliers(key, np.arange(first + span.start, first + span.stop), count)
            by_leaf: Any = sp.csr_array((residuals, idx, ptr), shape=(len(part), leaves.size)).T
            drawn += by_leaf @ xi
        return drawn


def leaf_pieces(leaves: Leaves, data: Trajectories) -> Iterator[tuple[slice, Trajectories, Ints]]:
    """Some episodes at a time: which they are, themselves, and their steps' leaves (steps, trees)."""
    first = 0
    for part in pieces(data, _PIECE):
        span = slice(first, first + len(part))
        yield span, part, leaves.active(part.states[part.visited_rows])
        first = span.stop


def _rows(data: Trajectories, span: slice) -> slice:
    return slice(int(data.offsets[span.start]), int(data.offsets[span.stop]))
