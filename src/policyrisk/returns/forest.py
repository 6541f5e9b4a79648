"""A forest on returns to go: J̃ and Ṽ as averages over leaves of randomised trees, in two stages.

With B_t = Σ_{s ≥ t} γ^{s−t} r_s the return to go of step t, a tree with leaves ℓ has the values

    v_ℓ = Σ_{t: x_t ∈ ℓ} B_t / N_ℓ,        N_ℓ the steps in ℓ,

and J̃(x) is the average over the trees of the value of the leaf that holds x. A second forest does the same
to the squared residuals q_t = (B_t − J̃₋(x_t))², which gives Ṽ ≥ 0 directly; or to those of another, better
estimate of J.

*Episodes, not steps, are independent.* A tree is grown on half of the episodes, and the values of its leaves
are averages over the other half (*honest*: the splits were not chosen to make them large or small, so that
they are unbiased averages over the leaf, with error bars that hold). Trees come in pairs, the second grown
on what the first left out, so that every episode counts in half of the trees. A leaf holds at least ``leaf``
episodes of either half. Splits are the best of a few random ones along every coordinate, x_f ≤ θ with θ the
coordinate of a random step: only the order of a coordinate's values matters. The out-of-bag estimate
J̃₋(x_t) averages the trees that the episode of t did not help to grow, with its own steps taken out of their
leaves as well.

*Cut-off episodes.* What follows the last state x_T is estimated: B_t = R_t + γⁿ J̃(x_T) with n = T − t steps
to the cut, and q_t = (B_t − J̃₋(x_t))² + γ²ⁿ Ṽ(x_T). Both come from ``tail``, another estimate, where there
is one and it knows x_T, else from the forest itself (:mod:`policyrisk.returns.forest_sums`).

*Error bars.* Episode k moves v_ℓ by Σ_{t ∈ k, x_t ∈ ℓ} (B_t − v_ℓ) / N_ℓ, and by what it moves J̃(x_T) by.
These are drawn by the multiplier bootstrap of :mod:`policyrisk.lstd.influences`, with the same multipliers
for the same seed and episode, so that replicates of different estimates fit together. Ṽ's take J̃₋ as given:
its errors enter squared, as q's expectation is least at J. Intervals of the std of a forest *alone* are too
narrow: nominal 95 % ones from 300 episodes of a walk cover 84 to 91 %, those of the mean 93 to 98 %. The full
intervals of a mixture have more in them (:mod:`policyrisk.risk.mixture`).

*Data of any size.* The trees are grown on a sample of episodes in memory; values, visits and replicates are
sums over leaves, which passes over the whole data add up (:mod:`policyrisk.returns.forest_sums`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    Seed,
    as_count,
    as_floats,
    as_number,
    check_callable,
    check_kind,
)
from policyrisk._core.keywords import hinting
from policyrisk._core.random import keys
from policyrisk._core.records import digest
from policyrisk._core.units import unit_of
from policyrisk.data import Source, Trajectories, check_reiterable, coordinates_of
from policyrisk.data.source import in_units, largest_of
from policyrisk.errors import ALL_CUT_OFF, InvalidInputError, check_proper
from policyrisk.features import Leaves
from policyrisk.passes import Reduce, here, reduce_in_units
from policyrisk.passes.survey import SurveyPass
from policyrisk.returns import _forest_kernels as _kernels
from policyrisk.returns.forest_sums import (
    DataCounts,
    Ends,
    EndValues,
    ForestPasses,
    LeafSums,
    OwnEnds,
    StreamKey,
)
from policyrisk.risk import ErrorBars, Provenance, RiskFunction

TRANSITIONS = 150_000  # up to which data are taken as one sample, and which a sample of larger ones holds
_ROWS = 20_000  # steps of either half that a tree is grown on
_LEAVES = 1000  # of a tree, at most about: the fewest steps of a leaf are this part of those it is grown on
_TRIES = 2  # splits that are tried along every coordinate
_FEWEST = 4  # episodes: two in either half
_TAIL = "fit one to the same data, such as LSTD(features).fit(data)"

# Trees and the episodes that each was grown without, by all that they come from.
Grown: TypeAlias = dict[tuple[Hashable, ...], tuple[Leaves, Bools]]


@dataclass(frozen=True, eq=False)
class OutOfBag:
    """A forest's risk function, and what the forest says of every step without the step's own episode."""

    risk: RiskFunction
    mean: Floats  # (transitions,): J at x_t
    variance: Floats  # (transitions,): V


@hinting
@dataclass(frozen=True)
class ReturnForest:
    """Settings of the forest.

    Parameters
    ----------
    trees
        How many, an even number.
    leaf
        At least so many episodes in a leaf. The second forest's leaves hold twice as many, since squares
        vary more.
    discount
        γ.

    Examples
    --------
    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=10, p=0.7)
    >>> risk = ReturnForest().fit(chain.sample(start=0, episodes=2000, seed=1), bootstrap=200, seed=0)
    >>> z = (risk.std([0, 5]) - chain.std()[[0, 5]]) / risk.standard_error([0, 5], of="std")
    >>> bool((abs(z) < 3).all())
    True
    """

    trees: int = 50
    leaf: int = 5
    discount: float = 1.0

    def __post_init__(self) -> None:
        trees = as_count(self.trees, "trees", 2)
        if trees % 2:
            raise InvalidInputError(
                f"trees must be even, since they come in pairs, got {trees}; pass {trees + 1}"
            )
        discount = as_number(self.discount, "discount", 0.0, 1.0, open_low=True)
        settings = {"trees": trees, "leaf": as_count(self.leaf, "leaf", 2), "discount": discount}
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    def fit(
        self, data: Source, *, tail: RiskFunction | None = None, bootstrap: int = 0, seed: Seed = None
    ) -> RiskFunction:
        """The risk function of recorded episodes.

        Parameters
        ----------
        data
            Trajectories, or a re-iterable stream of them. With more than ``TRANSITIONS`` transitions the
            trees are grown on a uniform sample of the episodes.
        tail
            An estimate of what follows where an episode was cut off; the forest itself where None.
        bootstrap
            How many draws the error bars are made of; none where 0.
        seed
            That of the trees, of the sample and of the draws.

        Returns
        -------
        RiskFunction
            J̃ and Ṽ ≥ 0 at any state.
        """
        check_reiterable(data)
        if tail is not None:
            check_kind(tail, "tail", RiskFunction, _TAIL)
        if isinstance(data, Trajectories) and data.transitions <= TRANSITIONS:
            sample, largest = data, largest_of(data, data.returns(self.discount))
        else:
            key, bounds = int(keys(seed)[0] >> np.uint64(1)), (TRANSITIONS, TRANSITIONS)
            found = here(data)(SurveyPass(key, bounds, self.discount))
            if not found.episodes:
                raise InvalidInputError("data must hold at least one episode, got none; record some")
            sample, largest = found.sample(), found.largest
        unit = unit_of(largest)
        fitted = self.fit_by(
            reduce_in_units(here(data), unit),
            in_units(sample, unit),
            tail=None if tail is None else tail.times(1.0 / unit),
            bootstrap=bootstrap,
            seed=seed,
        )
        return replace(fitted.times(unit), coordinates=coordinates_of(data))

    def fit_by(
        self,
        reduce: Reduce,
        sample: Trajectories,
        *,
        tail: RiskFunction | None = None,
        mean: Floats | None = None,
        around: RiskFunction | None = None,
        share: float = 1.0,
        bootstrap: int = 0,
        seed: Seed = None,
        grown: Grown | None = None,
        numbers: Ints | None = None,
    ) -> RiskFunction:
        """As ``fit``, for data wherever they are (:mod:`policyrisk.passes`), and a sample of them.

        Where the sample holds as many episodes and transitions as the data, it is taken for all of them, in
        their order, and this is ``fit(sample)``. ``mean`` (transitions of the sample,) and ``around``, for
        the whole data, are another estimate's J, which residuals are taken from instead of J̃₋; of ``around``
        it is this share, and the rest of J̃₋. ``grown`` keeps trees from call to call; ``numbers`` are the
        episodes' that their draws have, where the data are a part of others.
        """
        check_callable(reduce, "reduce", "a pass over data, such as here(data)")
        bootstrap = as_count(bootstrap, "bootstrap")
        check_kind(sample, "sample", Trajectories, "pass episodes in memory")
        if around is not None:
            check_kind(around, "around", RiskFunction, "fit one to the same data")
        counts, key = reduce(lambda source, _: DataCounts.of(source, self.discount)), keys(seed)
        whole = counts.episodes == len(sample) and counts.transitions == sample.transitions
        given: Any = {"tail": tail, "mean": mean, "bootstrap": bootstrap if whole else 0, "grown": grown}
        own = self.fit_out_of_bag(sample, **given, seed=seed).risk
        if whole:
            return own
        every = np.arange(counts.episodes) if numbers is None else numbers
        passes = ForestPasses(
            grown=own,
            tails=(own,) if tail is None else (tail, own),
            discount=self.discount,
            draws=bootstrap,
            key=key,
            numbers=np.split(every, np.cumsum(counts.parts)),
            around=around,
            share=share,
        )
        first = reduce(lambda source, _: passes.sums(source))
        sums = first, reduce(lambda source, _: passes.sums(source, first))
        risk = self._answer(passes.maps, sums, None, counts, key)
        last = reduce(lambda source, part: passes.last(source, part, sums, risk))
        if bootstrap:
            for moved, leaf_sums in zip(last.moved, sums, strict=True):
                moved /= leaf_sums.visits[:, None]
            risk = self._answer(passes.maps, sums, last.moved, counts, key)
        return replace(risk, starts=last.starts)

    def fit_out_of_bag(
        self,
        data: Trajectories,
        *,
        tail: RiskFunction | None = None,
        mean: Floats | None = None,
        bootstrap: int = 0,
        seed: Seed = None,
        grown: Grown | None = None,
    ) -> OutOfBag:
        """As ``fit`` for episodes in memory, with what the forest says of each step without its episode.

        ``mean`` (transitions,) is another estimate's J at each step without its episode: residuals are taken
        from it instead of J̃₋, whose squared error would be counted as variance. ``grown`` keeps trees from
        call to call: those of the same seed on the same numbers are grown once.

        >>> import policyrisk as pr
        >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=200, seed=1)
        >>> fitted = ReturnForest().fit_out_of_bag(data, seed=0)
        >>> fitted.mean.shape == data.rewards.shape, bool((fitted.variance >= 0).all())
        (True, True)
        """
        kept: Grown = {} if grown is None else grown
        draws, key = as_count(bootstrap, "bootstrap"), keys(seed)
        check_kind(kept, "grown", dict, "pass one and the same dictionary from call to call")
        self._check(data, tail)
        ends = Ends.of(data, () if tail is None else (tail,), self.discount, draws)
        first = self._stage(ends, ends.mean, ends.steps.rewards, 1, key, draws, kept)
        J = first.out_of_bag if mean is None else as_floats(mean, "mean", (data.transitions,))
        second = self._stage(ends, ends.variance, (first.y - J) ** 2, 2, key, draws, kept)
        counts = DataCounts.of(data, self.discount)
        moved = (first.moved, second.moved) if draws else None
        risk = self._answer((first.leaves, second.leaves), (first.sums, second.sums), moved, counts, key)
        risk = replace(risk, starts=risk.start_sums(data.starts()))
        return OutOfBag(risk, first.out_of_bag, second.out_of_bag)

    def _check(self, data: Trajectories, tail: RiskFunction | None) -> None:
        check_kind(data, "data", Trajectories, "load a stream first")
        if tail is not None:
            check_kind(tail, "tail", RiskFunction, _TAIL)
        if len(data) < _FEWEST:
            raise InvalidInputError(
                f"data must hold at least {_FEWEST} episodes for a forest, got {len(data)}; gather more"
            )
        if tail is not None and tail.provenance.discount != self.discount:
            raise InvalidInputError(
                f"tail must have the forest's discount={self.discount:g}, got {tail.provenance.discount:g}; "
                "fit it with the same discount"
            )
        if tail is None:
            ended = int(data.terminated.sum())
            check_proper(self.discount, ended, len(data), f"pass tail=, or {ALL_CUT_OFF}")

    def _stage(
        self, ends: Ends, known: EndValues, y: Floats, power: int, key: StreamKey, draws: int, grown: Grown
    ) -> ForestStage:
        """A forest on the numbers y_t + γ^{power n} e of steps, e the values at the ends of the episodes."""
        data = ends.data
        missing, e, own = np.isnan(known.values), known.values.copy(), None
        e[missing] = 0.0
        base = ends.steps.completed(y, e, power)  # without what is missing
        if missing.any():
            e[missing] = ends.one_value(base, missing, power)
            leaves, apart = self._trees(data, ends.steps.completed(y, e, power), key, power, grown)
            e[missing] = self._own_values(ends, leaves, apart, base, missing, power)[1]
        completed = ends.steps.completed(y, e, power)
        leaves, apart = self._trees(data, completed, key, power, grown)
        if missing.any():
            own, e[missing] = self._own_values(ends, leaves, apart, base, missing, power)
            completed = ends.steps.completed(y, e, power)
        sums = LeafSums.over(leaves, data, completed, apart, float(completed.mean()))
        moved = np.zeros((leaves.size, draws))
        if draws:
            moved = sums.draws(leaves, data, completed, apart, key, np.arange(len(data)), draws)
            moved += ends.moved(known, leaves, apart, power)
            moved /= sums.visits[:, None]
            if own is not None:
                moved += own.G @ own.solve(moved)
        out_of_bag = sums.out_of_bag(leaves, data, completed, apart)
        return ForestStage(leaves, sums, moved, completed, out_of_bag)

    def _own_values(
        self, ends: Ends, leaves: Leaves, apart: Bools, base: Floats, missing: Bools, power: int
    ) -> tuple[OwnEnds, Floats]:
        """The forest's own values at the ends that are missing, (missing,), and how they depend on leaves."""
        sums = LeafSums.over(leaves, ends.data, base, apart, float(base.mean()))
        own = OwnEnds.of(ends, leaves, apart, sums.visits, missing, power)
        return own, own.solve(sums.values)

    def _trees(
        self, data: Trajectories, y: Floats, key: StreamKey, power: int, grown: Grown
    ) -> tuple[Leaves, Bools]:
        """As :func:`grown_trees`, where they were not grown before."""
        told = digest({"states": data.states, "lengths": data.lengths, "y": y})
        name = self, int(key[0]), int(key[1]), power, told
        if name not in grown:
            grown[name] = grown_trees(self, data, y, key, power=power)
        return grown[name]

    def _answer(
        self,
        maps: tuple[Leaves, Leaves],
        sums: tuple[LeafSums, LeafSums],
        moved: tuple[Floats, Floats] | None,  # (leaves, draws): what draws move the leaves' values by
        counts: DataCounts,
        key: StreamKey,
    ) -> RiskFunction:
        bars = None
        if moved is not None:
            replicates = np.concatenate([each.astype(np.float32) for each in moved]).T
            replicates /= self.trees
            G = counts.clusters
            if G:
                replicates *= np.float32(np.sqrt(G / max(G - 1, 1)))
            kept = np.arange(maps[0].size), np.arange(maps[1].size)
            own = int(key[0]), int(key[1])
            bars = ErrorBars(*kept, None, None, None, replicates, key=own, clusters=G)
        return RiskFunction(
            features=maps[0],
            second_features=maps[1],
            w_mean=sums[0].values / self.trees,
            w_second=sums[1].values / self.trees,
            variance_method="direct",
            support=sums[0].support(counts.episodes),
            second_support=sums[1].support(counts.episodes),
            provenance=Provenance(
                estimator="forest",
                lam=1.0,
                discount=self.discount,
                episodes=counts.episodes,
                terminated=counts.terminated,
                transitions=counts.transitions,
            ),
            error_bars=bars,
            returns=counts.returns,
        )


def grown_trees(
    settings: ReturnForest,
    data: Trajectories,
    y: Floats,
    key: StreamKey,
    leaves: int = _LEAVES,
    power: int = 1,
) -> tuple[Leaves, Bools]:
    """Trees on y (transitions,), and which episodes each was grown without, (episodes, trees).

    A tree has at most about ``leaves``, each with at least ``power`` times ``leaf`` episodes.
    """
    K, n = len(data), len(y)
    x = np.ascontiguousarray(data.states[data.visited_rows], dtype=np.float64)
    deviation = y - y.mean()
    rng = np.random.default_rng([int(key[0]), int(key[1]), power])
    episode = np.repeat(np.arange(K), data.lengths)
    apart = np.empty((K, settings.trees), dtype=np.bool_)
    nodes, cuts = [], []
    half = np.zeros(K, dtype=np.bool_)
    for tree in range(settings.trees):
        half = rng.permutation(K) < K // 2 if tree % 2 == 0 else ~half
        apart[:, tree] = ~half
        rows = np.arange(n) if n <= 2 * _ROWS else np.sort(rng.choice(n, 2 * _ROWS, replace=False))
        chosen = half[episode[rows]]
        least = max(int(np.count_nonzero(chosen)) // leaves, 2)
        feature, threshold = np.empty(2 * len(rows) + 1, dtype=np.int64), np.empty(2 * len(rows) + 1)
        streams = np.uint64(key[1]) ^ np.uint64(power), np.uint64(key[0])  # others than the multipliers'
        count = _kernels.grow(
            x[rows],
            deviation[rows],
            episode[rows],
            chosen,
            least,
            settings.leaf * power,
            _TRIES,
            *streams,
            tree,
            feature,
            threshold,
        )
        nodes.append(feature[:count])
        cuts.append(threshold[:count][feature[:count] >= 0])
    return Leaves(nodes, cuts, dim=data.dim), apart


@dataclass(frozen=True, eq=False)
class ForestStage:
    """One of the two forests, on data in memory."""

    leaves: Leaves
    sums: LeafSums
    moved: Floats  # (leaves, draws): what draws move the leaves' values by
    y: Floats  # (transitions,): the numbers whose averages they are
    out_of_bag: Floats  # (transitions,)
