"""What a forest needs of data of any size: passes over them that add up, for trees grown on a sample.

The first counts. The second has the sums of the first forest; the third those of the second forest, on the
squared residuals from it, and what draws move the first by; the last what they move the second by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.records import Additive, record
from policyrisk.features import Leaves
from policyrisk.montecarlo.ends import Ends
from policyrisk.montecarlo.leaf_sums import LeafSums, StreamKey
from policyrisk.risk import RiskFunction, SampleReturns
from policyrisk.risk.start_sums import StartSums
from policyrisk.trajectories import Source, Trajectories, batches


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
class SecondSums(Additive):
    """What the pass for the second stage adds up."""

    sums: LeafSums  # of the second forest
    moved: Floats  # (leaves, draws): the first forest's draws, times visits


@record
@dataclass(frozen=True, eq=False)
class LastSums(Additive):
    """What the last pass adds up."""

    starts: StartSums
    moved: Floats  # (leaves, draws): the second forest's draws, times visits


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

    def mean(self, source: Source) -> LeafSums:
        """The sums of the first forest."""
        total = _no_sums(self.maps[0], self.grown.w_mean)
        for data in batches(source):
            if len(data):
                total += LeafSums.over(
                    self.maps[0], data, self._returns(data)[1], self._all(data), total.centre
                )
        return total

    def second(self, source: Source, part: int, mean: LeafSums) -> SecondSums:
        """The sums of the second forest, and the draws of the first."""
        total, moved = _no_sums(self.maps[1], self.grown.w_second), np.zeros((self.maps[0].size, self.draws))
        first = self.first[part]
        for data in batches(source):
            if not len(data):
                continue
            ends, B = self._returns(data)
            q = self._squares(ends, B, mean)
            total += LeafSums.over(self.maps[1], data, q, self._all(data), total.centre)
            if self.draws:
                moved += mean.draws(self.maps[0], data, B, self._all(data), self.key, first, self.draws)
                if ends.mean.moves is not None and ends.mean.moves.size:
                    moved += ends.by_leaf(self.maps[0], self._all(data), 1) @ ends.mean.moves
            first += len(data)
        return SecondSums(total, moved)

    def last(
        self, source: Source, part: int, mean: LeafSums, second: LeafSums, risk: RiskFunction
    ) -> LastSums:
        """The draws of the second forest, and the starts."""
        moved = np.zeros((self.maps[1].size, self.draws))
        starts = StartSums.empty(risk.w_mean.size, risk.w_second.size)
        first = self.first[part]
        for data in batches(source):
            if not len(data):
                continue
            starts += risk.start_sums(data.starts())
            if self.draws:
                ends, B = self._returns(data)
                q = self._squares(ends, B, mean)
                moved += second.draws(self.maps[1], data, q, self._all(data), self.key, first, self.draws)
                if ends.variance.moves is not None and ends.variance.moves.size:
                    moved += ends.by_leaf(self.maps[1], self._all(data), 2) @ ends.variance.moves
            first += len(data)
        return LastSums(starts, moved)

    def _returns(self, data: Trajectories) -> tuple[Ends, Floats]:
        ends = Ends.of(data, self.tails, self.discount, self.draws)
        return ends, ends.completed(data.returns_to_go(self.discount), ends.mean.values, 1)

    def _squares(self, ends: Ends, B: Floats, mean: LeafSums) -> Floats:
        J = mean.out_of_bag(self.maps[0], ends.data, B, self._all(ends.data))
        if self.around is not None:
            other = self.around.mean(ends.data.states[ends.data.visited_rows])
            J = np.where(np.isnan(other), J, self.share * other + (1.0 - self.share) * J)
        residuals = B - J
        return ends.completed(residuals**2, ends.variance.values, 2)

    def _all(self, data: Trajectories) -> Bools:
        return np.ones((len(data), self.maps[0].trees), dtype=np.bool_)


def _no_sums(leaves: Leaves, weights: Floats) -> LeafSums:
    """No data, about the average of the leaves' values."""
    zeros = np.zeros(leaves.size)
    return LeafSums(zeros, zeros, zeros, float(weights.mean()) * leaves.trees)
