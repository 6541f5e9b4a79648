"""What a forest needs of data of any size: passes over them that add up, for trees grown on a sample.

The first counts. The second has the sums of the first forest, the third those of the second forest, on the
squared residuals from it; the last what draws move both by, and the starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.records import Additive, add_each, record
from policyrisk.data import Source, Trajectories, batches
from policyrisk.features import Leaves
from policyrisk.returns.ends import Ends
from policyrisk.returns.leaf_sums import LeafSums, StreamKey
from policyrisk.risk import RiskFunction, SampleReturns
from policyrisk.risk.start_sums import StartSums


@record
@dataclass(frozen=True, eq=False)
class DataCounts(Additive):
    """What a pass counts; it adds."""

    parts: tuple[int, ...]  # the episodes of each part of the data, in order
    terminated: int
    transitions: int
    returns: SampleReturns  # of the terminated episodes

    @classmethod
    def of(cls, source: Source, discount: float) -> DataCounts:
        """The counts of one part."""
        episodes, terminated, transitions, returns = 0, 0, 0, SampleReturns.of([])
        for batch in batches(source):
            episodes += len(batch)
            terminated += int(batch.terminated.sum())
            transitions += batch.transitions
            returns += SampleReturns.of(batch.returns(discount)[batch.terminated])
        return cls((episodes,), terminated, transitions, returns)

    @property
    def episodes(self) -> int:
        """Of all parts."""
        return sum(self.parts)


@record
@dataclass(frozen=True, eq=False)
class LastSums(Additive):
    """What the last pass adds up."""

    starts: StartSums
    moved: tuple[Floats, Floats]  # (leaves, draws): what draws move both forests by, times visits
    _rules: ClassVar = {"moved": add_each}


@dataclass(frozen=True, eq=False)
class ForestPasses:
    """The passes over data of any size, for trees that were grown on a sample of them.

    Every episode counts in every tree: those of the sample, which helped to grow half of them, are few.
    """

    grown: RiskFunction  # of the sample
    tails: tuple[RiskFunction, ...]  # what is asked about ends, in this order
    discount: float
    draws: int
    key: StreamKey
    first: Sequence[int]  # the number of each part's first episode
    around: RiskFunction | None = None  # whose J residuals are taken from, where it is known
    share: float = 1.0  # of it, beside the forest's own

    @property
    def maps(self) -> tuple[Leaves, Leaves]:
        """The two forests."""
        mean, second = self.grown.features, self.grown.second_features
        assert isinstance(mean, Leaves)
        assert isinstance(second, Leaves)
        return mean, second

    def sums(self, source: Source, mean: LeafSums | None = None) -> LeafSums:
        """The sums of the first forest, or of the second where those of the first are known."""
        leaves, known = self.maps[0], self.grown.w_mean
        if mean is not None:
            leaves, known = self.maps[1], self.grown.w_second
        zeros = np.zeros(leaves.size)
        total = LeafSums(zeros, zeros, zeros, float(known.mean()) * leaves.trees)  # about the trees' average
        for data in batches(source):
            if len(data):
                ends = self._ends(data)
                y = self._returns(ends) if mean is None else self._squares(ends, mean)
                total += LeafSums.over(leaves, data, y, self._all(data), total.centre)
        return total

    def last(
        self, source: Source, part: int, sums: tuple[LeafSums, LeafSums], risk: RiskFunction
    ) -> LastSums:
        """The draws of both forests, and the starts."""
        moved = tuple(np.zeros((leaves.size, self.draws)) for leaves in self.maps)
        starts = StartSums.empty(risk.w_mean.size, risk.w_second.size)
        first = self.first[part]
        for data in batches(source):
            if not len(data):
                continue
            starts += risk.start_sums(data.starts())
            if self.draws:
                ends, every = self._ends(data), self._all(data)
                numbers = self._returns(ends), self._squares(ends, sums[0])
                both = zip(moved, self.maps, sums, numbers, (ends.mean, ends.variance), (1, 2), strict=True)
                for total, leaves, own, y, known, power in both:
                    total += own.draws(leaves, data, y, every, self.key, first, self.draws)
                    if known.moves is not None and known.moves.size:
                        total += ends.by_leaf(leaves, every, power) @ known.moves
            first += len(data)
        return LastSums(starts, (moved[0], moved[1]))

    def _ends(self, data: Trajectories) -> Ends:
        return Ends.of(data, self.tails, self.discount, self.draws)

    def _returns(self, ends: Ends) -> Floats:
        return ends.steps.completed(ends.steps.rewards, ends.mean.values, 1)

    def _squares(self, ends: Ends, mean: LeafSums) -> Floats:
        B = self._returns(ends)
        J = mean.out_of_bag(self.maps[0], ends.data, B, self._all(ends.data))
        if self.around is not None:
            other = self.around.mean(ends.steps.states)
            J = np.where(np.isnan(other), J, self.share * other + (1.0 - self.share) * J)
        residuals = B - J
        return ends.steps.completed(residuals**2, ends.variance.values, 2)

    def _all(self, data: Trajectories) -> Bools:
        return np.ones((len(data), self.maps[0].trees), dtype=np.bool_)
