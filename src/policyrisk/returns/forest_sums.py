"""What a forest adds up: sums over the leaves that episodes visit, what follows cut-off episodes, and passes.

*Ends.* With e the values at the ends x_T of cut-off episodes (a mean, or a variance), the numbers of their
steps are completed by γⁿ e, or γ²ⁿ e (:mod:`policyrisk.risk.scoring`). Ends that no other estimate knows
are the forest's own: with E (ends, leaves) the averages over trees and G (leaves, ends) those over leaves,

    v = c + G e,   e = E v        so that        e = E c + E G e,

where c are the leaves' averages without what is missing. E G has rows that sum to less than 1 as long as
episodes end (or γ < 1), so that I − E G can be inverted.

*Passes.* Data of any size are passed over for trees that were grown on a sample of them, and what passes find
adds up. The first counts. The second has the sums of the first forest, the third those of the second forest,
on the squared residuals from it; the last what draws move both by, and the starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lu_factor, lu_solve

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.records import Additive, add_each, record
from policyrisk.data import Source, Trajectories, batches, pieces
from policyrisk.errors import ImproperPolicyError, MismatchError
from policyrisk.features import Leaves
from policyrisk.returns import _forest_kernels as _kernels
from policyrisk.risk import RiskFunction, SampleReturns
from policyrisk.risk.draws import clusters_of_both, multipliers
from policyrisk.risk.scoring import EpisodeSteps
from policyrisk.risk.start_sums import StartSums
from policyrisk.risk.support import Support

StreamKey: TypeAlias = "tuple[int | np.uint64, int | np.uint64]"

_PIECE = 1 << 14  # steps whose leaves are in hand at once
_MOST_FOLLOWING = 1e6  # cut-off episodes one after the other, on average, from where one was cut off


def _one_centre(one: float, other: float) -> float:
    if one != other:
        raise MismatchError(f"sums about {one} and {other} do not add; take one centre")
    return one


@record(visits="leaves", feature_episodes="leaves", sums="leaves")
@dataclass(frozen=True, eq=False)
class LeafSums(Additive):
    """Per leaf, of the trees that were grown without the episode: steps, episodes and Σ (y_t − centre).

    They add. ``centre`` is any number near the y, so that sums of large numbers keep their digits.
    """

    visits: Floats  # (leaves,)
    feature_episodes: Floats  # (leaves,)
    sums: Floats  # (leaves,)
    centre: float
    _rules: ClassVar = {"centre": _one_centre}

    @classmethod
    def over(cls, leaves: Leaves, data: Trajectories, y: Floats, apart: Bools, centre: float) -> LeafSums:
        """Of numbers y (transitions,), one a step; ``apart`` (episodes, trees): which trees they count in."""
        total = np.zeros((3, leaves.size))
        for span, at, part, active in leaf_pieces(leaves, data):
            ones = np.column_stack([np.ones(part.transitions), y[at] - centre])
            _, idx, sums = _kernels.tally(part.offsets, active, apart[span], ones, leaves.size)
            total[0] += np.bincount(idx, sums[:, 0], leaves.size)
            total[1] += np.bincount(idx, minlength=leaves.size)
            total[2] += np.bincount(idx, sums[:, 1], leaves.size)
        return cls(total[0], total[1], total[2], centre)

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
        for span, at, part, active in leaf_pieces(leaves, data):
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
        numbers: Ints,
        count: int,
    ) -> Floats:
        """Σ_k ξ_kb Σ_{t ∈ k, x_t ∈ ℓ} (y_t − v_ℓ), (leaves, count): N_ℓ times what draws move v_ℓ by.

        ``numbers`` (episodes,) are those k, as the multipliers ξ_k come from the key and k alone.
        """
        drawn = np.zeros((leaves.size, count))
        values = self.values
        for span, at, part, active in leaf_pieces(leaves, data):
            ones = np.column_stack([np.ones(part.transitions), y[at] - self.centre])
            ptr, idx, sums = _kernels.tally(part.offsets, active, apart[span], ones, leaves.size)
            residuals = sums[:, 1] - (values[idx] - self.centre) * sums[:, 0]
            xi = multipliers(key, numbers[span] if part.clusters is None else part.clusters, count)
            by_leaf: Any = sp.csr_array((residuals, idx, ptr), shape=(len(part), leaves.size)).T
            drawn += by_leaf @ xi
        return drawn


def leaf_pieces(leaves: Leaves, data: Trajectories) -> Iterator[tuple[slice, slice, Trajectories, Ints]]:
    """Some episodes at a time: their numbers, their steps' numbers, themselves, and leaves (steps, trees)."""
    first = at = 0
    for part in pieces(data, _PIECE):
        span, rows = slice(first, first + len(part)), slice(at, at + part.transitions)
        yield span, rows, part, leaves.active(part.states[part.visited_rows])
        first, at = span.stop, rows.stop


@dataclass(frozen=True, eq=False)
class EndValues:
    """A quantity at the ends."""

    values: Floats  # (ends,), nan where nobody knows
    moves: Floats | None  # (ends, draws): what replicates add to it


@dataclass(frozen=True, eq=False)
class Ends:
    """The cut-off episodes of some data."""

    data: Trajectories
    steps: EpisodeSteps
    mean: EndValues
    variance: EndValues

    @classmethod
    def of(cls, data: Trajectories, tails: Sequence[RiskFunction], discount: float, draws: int) -> Ends:
        """The ends, with what the first of the tails that knows a state says there."""
        steps = EpisodeSteps.of(data, discount)
        states, m = steps.cuts, steps.cut_off
        J, V = np.full(m, np.nan), np.full(m, np.nan)
        dJ, dV = (np.zeros((m, draws)) for _ in range(2))
        for tail in tails if m else ():
            mean, variance = tail.mean_and_variance(states)
            by_mean, by_variance = np.isnan(J) & ~np.isnan(mean), np.isnan(V) & (variance >= 0)
            J[by_mean], V[by_variance] = mean[by_mean], variance[by_variance]
            bars = tail.error_bars
            if draws and bars is not None and bars.replicates is not None and len(bars.replicates) == draws:
                moved, moved_second = bars.deviations(tail.features(states), tail.second_features(states))
                moved, moved_second = moved * tail.unit, moved_second * tail.unit * tail.unit
                if tail.variance_method == "second-moment":
                    moved_second -= 2 * mean[:, None] * moved
                dJ[by_mean], dV[by_variance] = moved[by_mean], moved_second[by_variance]
        moves = (dJ, dV) if draws and tails else (None, None)
        return cls(data, steps, EndValues(J, moves[0]), EndValues(V, moves[1]))

    def one_value(self, y: Floats, missing: Bools, power: int) -> float:
        """The missing values as if there were one leaf alone: e = Σ (y + γ^{power n} e) / N."""
        weight = self.steps.weight**power
        share = float(weight[np.isin(self.steps.cut, np.flatnonzero(missing))].sum()) / len(y)
        return float(y.mean()) / max(1.0 - share, 1.0 / len(y))

    def moved(self, known: EndValues, leaves: Leaves, apart: Bools, power: int) -> Floats | float:
        """N_ℓ times what draws move v_ℓ by through the values at the ends, (leaves, draws)."""
        if known.moves is None or not known.moves.size:
            return 0.0
        found: Floats = self.by_leaf(leaves, apart, power) @ known.moves
        return found

    def by_leaf(self, leaves: Leaves, apart: Bools, power: int) -> Any:
        """N_ℓ G, CSR of shape (leaves, ends)."""
        cut = np.flatnonzero(~self.data.terminated)
        rows, columns, entries = [], [], []
        weight = self.steps.weight**power
        for span, at, part, active in leaf_pieces(leaves, self.data):
            open_trees = apart[span] & ~part.terminated[:, None]
            ptr, idx, sums = _kernels.tally(part.offsets, active, open_trees, weight[at, None], leaves.size)
            rows.append(idx)
            columns.append(np.searchsorted(cut, np.repeat(np.arange(span.start, span.stop), np.diff(ptr))))
            entries.append(sums[:, 0])
        where = np.concatenate(rows), np.concatenate(columns)
        return sp.csr_array((np.concatenate(entries), where), shape=(leaves.size, len(cut)))


@dataclass(frozen=True, eq=False)
class OwnEnds:
    """The ends whose values are the forest's own: E and G of those alone."""

    E: Any  # CSR (missing, leaves)
    G: Any  # CSR (leaves, missing)

    @classmethod
    def of(
        cls, ends: Ends, leaves: Leaves, apart: Bools, visits: Floats, missing: Bools, power: int
    ) -> OwnEnds:
        """``missing`` (ends,) says which they are; visits (leaves,) are N."""
        G: Any = sp.csc_array(ends.by_leaf(leaves, apart, power))[:, np.flatnonzero(missing)]
        G = sp.csr_array(G.multiply(1.0 / visits[:, None]))
        return cls(leaves(ends.steps.cuts[missing]) / leaves.trees, G)

    @cached_property
    def _factors(self) -> Any:
        """The factors of I − E G; an error where what follows cannot be told."""
        H: Floats = (self.E @ self.G).toarray()
        factors = lu_factor(np.eye(len(H)) - H, check_finite=False)
        # H is not negative, so that it is a contraction in some norm just where Σ Hⁿ 1 is positive: how many
        # cut-off episodes follow each other on average.
        following = lu_solve(factors, np.ones(len(H)), check_finite=False)
        if not (following.min() > 0 and following.max() < _MOST_FOLLOWING):
            raise ImproperPolicyError(
                f"what follows {len(H)} cut-off episodes cannot be estimated from the others: from where "
                "they end, hardly any episode ends (Assumption 1: proper policy); gather episodes that end, "
                "pass tail=, or use discount < 1"
            )
        return factors

    def solve(self, c: Floats) -> Floats:
        """e = E (c + G e) for c (leaves,) or, one column a draw, (leaves, draws)."""
        e: Floats = lu_solve(self._factors, self.E @ c, check_finite=False)
        return e


@record(numbers="g: rising")
@dataclass(frozen=True, eq=False)
class DataCounts(Additive):
    """What a pass counts; it adds."""

    parts: tuple[int, ...]  # the episodes of each part of the data, in order
    terminated: int
    transitions: int
    returns: SampleReturns  # of the terminated episodes
    numbers: Ints | None = None  # (G,): those of the episodes' clusters, where they come in clusters
    _rules: ClassVar = {"numbers": clusters_of_both}

    @property
    def clusters(self) -> int:
        """G, 0 where there are none."""
        return 0 if self.numbers is None else self.numbers.size

    @classmethod
    def of(cls, source: Source, discount: float) -> DataCounts:
        """The counts of one part."""
        episodes, terminated, transitions, returns = 0, 0, 0, SampleReturns.of([])
        numbers: Ints | None = None
        for batch in batches(source):
            numbers = clusters_of_both(numbers, batch.clusters)
            episodes += len(batch)
            terminated += int(batch.terminated.sum())
            transitions += batch.transitions
            returns += SampleReturns.of(batch.returns(discount)[batch.terminated])
        return cls((episodes,), terminated, transitions, returns, numbers)

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
    numbers: Sequence[Ints]  # of the episodes of each part
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
        first = 0
        for data in batches(source):
            if not len(data):
                continue
            starts += risk.start_sums(data.starts())
            if self.draws:
                own_numbers = self.numbers[part][first : first + len(data)]
                ends, every = self._ends(data), self._all(data)
                numbers = self._returns(ends), self._squares(ends, sums[0])
                both = zip(moved, self.maps, sums, numbers, (ends.mean, ends.variance), (1, 2), strict=True)
                for total, leaves, own, y, known, power in both:
                    total += own.draws(leaves, data, y, every, self.key, own_numbers, self.draws)
                    total += ends.moved(known, leaves, every, power)
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
