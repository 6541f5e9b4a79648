"""How sure it is that one of two policies is better by a criterion: their episodes are exchanged at random.

With the criterion's values f_1 and f_2 from K_1 and K_2 independent episodes and their standard errors s_1
and s_2, the statistic

    T = (f_1 − f_2) / √(s_1² + s_2²)

is set beside its values T* where K_1 of all K_1 + K_2 episodes, drawn at random, are called the first
policy's (the studentised permutation test, Chung and Romano 2013). This is exact where both returns have one
distribution, and right for many episodes where only the criterion's value is the same. The p-value is the
share of |T*| ≥ |T|, and the interval of the difference reaches as far as |T*| does in a share ``level`` of
the draws; of one side, T* ≥ T or T* ≤ T. Shares smaller than those of the ten largest T* go on along the tail
of a normal distribution.

Dependent episodes are exchanged in whole clusters. s_1² is then G/(G − 1) Σ_g (Σ_k i_k)² / K², over G
clusters g of episodes k with influences i_k, and that of a quantile as in :func:`exchanged_tails`.

At 5 % the delta method calls two policies of one lognormal return different by their Sharpe ratios in 28, 32
and 20 % of the cases, with 50 against 50, 50 against 500 and 300 against 300 episodes, this test in 5, 4 and
6 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import ndtr, ndtri

from policyrisk._core.arrays import Bools, Floats, Seed
from policyrisk._core.random import generator
from policyrisk._core.text import number, percent
from policyrisk._core.units import magnitude
from policyrisk.criteria import Criterion, CVaR, Quantile
from policyrisk.errors import InvalidInputError
from policyrisk.returns import RecordedReturns
from policyrisk.returns.chain_tails import ChainStarts
from policyrisk.returns.curves import Reading
from policyrisk.returns.start_distribution import Clusters
from policyrisk.risk.completed import KEPT, centre_shift
from policyrisk.risk.estimate import Estimate, difference, student_quantile
from policyrisk.risk.summary import PolicySummary

if TYPE_CHECKING:
    from policyrisk.selection.comparison import RankedPolicy

FEWEST, MOST = 999, 4999  # draws
_SMALLEST_P = 1e-9  # of a difference of quantiles: from there on it is 0
_ENTRIES, _AT_ONCE = 1 << 22, 1 << 20  # episodes in all draws, and in those in hand at once
_TAIL = 10  # draws beyond which the tail is a normal one
_SAME = 1e-9  # a statistic that is larger by less than this share is as large
Statistic: TypeAlias = Callable[[Bools], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Significance:
    """How sure it is that the first policy is better than the second, both being feasible.

    ``difference`` is in the criterion's favour: positive where the first is better. Where each policy is
    judged by its own returns, p and the interval are those of exchanged episodes. Else they are

    - of mean and variance, Welch's: the standard error is that of independent data sets, s = √(s₁² + s₂²),
      with s⁴ / (s₁⁴/ν₁ + s₂⁴/ν₂) degrees of freedom; of two estimates from one log it is that of the
      episodes' own differences;
    - of quantiles and CVaR, made of both intervals (:func:`policyrisk.risk.estimate.difference`), since these
      may reach further to one side; p is 1 less the largest level at which it does not reach 0.

    """

    best: str
    second: str
    difference: Estimate
    probability: float  # that the first is better: Student's distribution at difference / standard error
    p_value: float  # two-sided, of no difference

    def __str__(self) -> str:
        if math.isnan(self.probability):
            return f"{self.best} leads {self.second} by {number(self.difference)}; without error bars"
        return (
            f"{self.best} leads {self.second} by {self.difference!r}: better with probability "
            f"{percent(self.probability)} (two-sided p = {number(self.p_value, 2)})"
        )


def _lead(first: RankedPolicy, second: RankedPolicy) -> float:
    """The difference of their values, positive where the first is better."""
    lead = first.assessment.value.value - second.assessment.value.value
    return lead if first.assessment.larger_is_better else -lead


def by_moments(
    first: RankedPolicy, second: RankedPolicy, criterion: Criterion, level: float, seed: Seed
) -> Significance:
    """By mean and variance."""
    a, b, lead = first.assessment.value, second.assessment.value, _lead(first, second)
    welch = _welch(lead, a, b, level)
    if paired(first, second):
        moved = [_moved(criterion, each.summary) for each in (first, second)]
        apart = moved[0] - moved[1]
        size = magnitude(apart)
        error = math.sqrt(float(np.square(apart / size).mean())) * size
        welch = Estimate.skewed(lead, error, 0.0, min(a.dof, b.dof), level)
    else:
        clusters = [_own_clusters(each.summary) for each in (first, second)]
        exchanged = exchanged_moments if all(each is None for each in clusters) else exchanged_clusters
        samples = clusters
        if exchanged is exchanged_moments:
            samples = [_own_returns(each.summary) for each in (first, second)]
        kept = [each for each in samples if each is not None]
        if len(kept) == 2 and hasattr(criterion, "slopes") and welch.standard_error > 0:
            found = exchanged(kept[0], kept[1], criterion, _exchange_generator(seed))
            return _exchanged(first.name, second.name, welch, found, level)
    against = Estimate(-lead, welch.standard_error, dof=welch.dof)
    p_value = 1.0 if lead == 0.0 else 2.0 * against.probability_positive
    same = lead == 0.0 and welch.standard_error == 0.0  # one policy twice: its lead has no error
    better = 0.5 if same else welch.probability_positive
    return Significance(first.name, second.name, welch, better, p_value)


def _exchange_generator(seed: Seed) -> Any:
    """The same exchanges every time, unless a seed is given."""
    return generator(0 if seed is None else seed)


def _exchanged(
    best: str, second: str, lead: Estimate, exchanges: Exchanges, level: float, least: float = 0.0
) -> Significance:
    """A lead with its standard error beside those of exchanged episodes; p is ``least`` at the least."""
    error = lead.standard_error
    half, p_value = exchanges.reach(level) * error, max(exchanges.p_value(abs(lead.value) / error), least)
    between = lead.reaching(lead - half, lead + half)
    return Significance(best, second, between, 1.0 - p_value / 2, p_value)


def _own_returns(summary: PolicySummary) -> Floats | None:
    """The completed returns (K, 2) that a summary is of; None where it is of an estimator, or of too many."""
    done = summary.completed
    found = None if done is None or summary.covered is not None else done.observed
    unit = summary.unit
    return None if found is None else found * [unit, unit * unit]


def _own_clusters(summary: PolicySummary) -> Floats | None:
    """The sums over clusters (G, 3) of 1, g and g² + c of completed returns; None where there are none."""
    done = summary.completed
    if done is None or summary.covered is not None or done.cluster_sums is None:
        return None
    found = done.cluster_sums @ centre_shift(done.mean, 0.0).T
    sums: Floats = found[:, :3] * [1.0, summary.unit, summary.unit**2]
    return sums


def paired(first: RankedPolicy, second: RankedPolicy) -> bool:
    """Whether two estimates are of the same episodes, with the same multipliers."""
    if first.tail is not None:
        return isinstance(first.tail, ChainStarts) and first.tail.pairs_with(second.tail)
    a, b = first.summary.draws, second.summary.draws
    return a is not None and b is not None and a.episodes == b.episodes


def _moved(criterion: Any, summary: PolicySummary) -> Floats:
    """What each replicate adds to the criterion's value, (B,)."""
    assert summary.draws is not None
    _, by_mean, by_variance = slopes_of(criterion, summary.mean_value, summary.variance_value)
    unit = summary.unit
    return np.array([by_mean * unit, by_variance * unit * unit]) @ summary.draws.moved


def slopes_of(criterion: Any, mean: float, variance: float) -> Any:
    """A criterion's value and derivatives at a mean and a variance."""
    if not hasattr(criterion, "slopes"):
        raise InvalidInputError(
            f"criterion must have slopes(mean, variance) to be compared at states or within episodes, got "
            f"{criterion!r}; make it a criteria.MomentCriterion"
        )
    return criterion.slopes(mean, variance)


def _welch(lead: float, a: Estimate, b: Estimate, level: float) -> Estimate:
    """A difference of two independent estimates."""
    size = magnitude(a.standard_error, b.standard_error)  # whose square may be no number
    squares = (a.standard_error / size) ** 2, (b.standard_error / size) ** 2
    uncertain = squares[0] ** 2 / a.dof + squares[1] ** 2 / b.dof
    dof = sum(squares) ** 2 / uncertain if uncertain > 0 else math.inf
    return Estimate.skewed(lead, math.sqrt(sum(squares)) * size, 0.0, dof, level)


def by_tails(
    first: RankedPolicy, second: RankedPolicy, criterion: Any, level: float, seed: Seed
) -> Significance:
    """By the tail of the return."""
    one, other = pair = first.tail, second.tail
    recorded = [each for each in pair if isinstance(each, RecordedReturns)]
    of: Reading = "cvar" if isinstance(criterion, CVaR) else "quantile"

    def lead(level: float) -> Estimate:
        if paired(first, second):
            known: Estimate = one.lead(other, of, criterion.q, level)
            return known
        v, w = (getattr(each, of)(criterion.q, level) for each in pair)
        return _welch(v - w, v, w, level).reaching(*difference(v, w))

    found = lead(level)
    errors = [r.assessment.value.standard_error for r in (first, second)]
    known = [each.least_p(criterion.q) for each in recorded]
    # Of a quantile no return may be far enough out to tell.
    sure = isinstance(criterion, CVaR) or max(known, default=0.0) < 1.0 - level
    few = all(each.starts <= KEPT for each in recorded)
    if len(recorded) == 2 and few and min(errors) > 0 and sure:
        exchanges = exchanged_tails(one, other, criterion, level, _exchange_generator(seed))
        least = max(known) if isinstance(criterion, Quantile) else 0.0
        return _exchanged(first.name, second.name, found, exchanges, level, least)
    p_value = math.nan
    if found.value == 0.0:
        p_value = 1.0
    elif not math.isnan(found.low):
        least, most = math.log(max(_SMALLEST_P, *known, 0.0)), 0.0
        while most - least > 1e-3:
            middle = (least + most) / 2
            least, most = (least, middle) if lead(1.0 - math.exp(middle)).low > 0 else (middle, most)
        p_value = math.exp(most)
    return Significance(first.name, second.name, found, 1.0 - p_value / 2, p_value)


@dataclass(frozen=True, eq=False)
class Exchanges:
    """How large the statistic is in size, or on one side, where episodes are exchanged."""

    drawn: Floats  # (B,): T*; nan where the statistic does not exist
    side: int = 0  # 0: |T|; 1: T; −1: −T
    lead: float = math.nan  # f_1 − f_2 as it was seen
    error: float = math.nan  # √(s_1² + s_2²), likewise

    @classmethod
    def of(cls, samples: tuple[Clusters, Clusters], statistic: Statistic, rng: Any) -> Exchanges:
        """``statistic`` gives f_1 − f_2 and its error, (b,) each, for draws (b, G) of the first's clusters.

        Without random numbers nothing is exchanged.
        """
        G_1, G = samples[0].count, samples[0].count + samples[1].count
        with np.errstate(divide="ignore", invalid="ignore"):
            ((lead,), (error,)) = statistic(np.arange(G)[None] < G_1)
            episodes = samples[0].codes.size + samples[1].codes.size
            parts = [] if rng is None else (statistic(each) for each in _draws(G_1, G, episodes, rng))
            found = [leads / errors for leads, errors in parts]
        return cls(np.concatenate(found or [np.empty(0)]), lead=float(lead), error=float(error))

    @cached_property
    def sizes(self) -> Floats:
        """(B,) rising; infinite where the statistic does not exist."""
        found = self.drawn * self.side if self.side else np.abs(self.drawn)
        return np.sort(np.where(np.isnan(found), np.inf, found))

    def p_value(self, statistic: float) -> float:
        """That of |T| = ``statistic``, or of T or −T by the side.

        >>> exchanges = Exchanges(np.linspace(0.0, 3.0, 1000))
        >>> round(exchanges.p_value(2.9), 3), exchanges.p_value(30.0) < 1e-9
        (0.035, True)
        """
        B = self.sizes.size
        larger = B - int(np.searchsorted(self.sizes, statistic - abs(statistic) * _SAME))
        if larger >= _TAIL or not self._tail:
            return (1 + larger) / (1 + B)
        return min(self._sides * float(ndtr(-statistic / self._tail)), (1 + _TAIL) / (1 + B))

    def reach(self, level: float) -> float:
        """The c for which |T| > c has a p-value of at most 1 − level; T or −T by the side."""
        B, share = self.sizes.size, 1.0 - level
        larger = math.floor(share * (1 + B) * (1.0 + _SAME)) - 1
        if larger >= _TAIL or not self._tail:
            return float(self.sizes[B - 1 - min(max(larger, 0), B - 1)])
        return max(-float(ndtri(share / self._sides)) * self._tail, float(self.sizes[B - 1 - _TAIL]))

    @property
    def _sides(self) -> float:
        return 1.0 if self.side else 2.0

    @property
    def _tail(self) -> float:
        """The standard deviation of the normal tail; 0 where there is none."""
        size = max(float(self.sizes[-_TAIL]), 0.0)
        return size / -float(ndtri(_TAIL / (self._sides * self.sizes.size))) if math.isfinite(size) else 0.0


def _draws(G_1: int, G: int, episodes: int, rng: Any) -> Iterator[Bools]:
    """Which of G clusters are the first policy's, in all draws, some at a time: (b, G)."""
    left = int(np.clip(_ENTRIES // episodes, FEWEST, MOST))
    while left > 0:
        rows = min(left, max(_AT_ONCE // episodes, 1))
        yield rng.permuted(np.tile(np.arange(G) < G_1, (rows, 1)), axis=1)
        left -= rows


def exchanged_moments(
    first: Floats,
    second: Floats,
    criterion: Any,
    rng: Any,
    clusters: tuple[Clusters, Clusters] | None = None,
) -> Exchanges:
    """Of a criterion of mean and variance, by the completed returns g and c, (K_1, 2) and (K_2, 2)."""
    samples = clusters or (Clusters.of(len(first)), Clusters.of(len(second)))
    codes = np.concatenate([samples[0].codes, samples[0].count + samples[1].codes])
    both = np.concatenate([first, second])
    near, size = float(both[:, 0].mean()), magnitude(both[:, 0])
    g, c = (both[:, 0] - near) / size, both[:, 1] / size / size
    sums: Any = (np.bincount(codes, each) for each in (np.ones(g.size), g, g**2 + c, c))
    return _exchanged_sums(samples, tuple(sums), (near, size), criterion, rng)


def exchanged_clusters(first: Floats, second: Floats, criterion: Any, rng: Any) -> Exchanges:
    """As :func:`exchanged_moments` of whole clusters, by the sums of 1, g and g² + c over each, (G, 3)."""
    samples = Clusters.of(len(first)), Clusters.of(len(second))
    n, G, Q = np.concatenate([first, second]).T
    near, size = float(G.sum() / n.sum()), magnitude(G / n)
    G, Q = (G - near * n) / size, (Q - 2 * near * G + near**2 * n) / size / size
    return _exchanged_sums(samples, (n, G, Q, np.zeros(n.size)), (near, size), criterion, rng)


def _exchanged_sums(
    samples: tuple[Clusters, Clusters],
    sums: tuple[Floats, ...],
    units: tuple[float, float],
    criterion: Any,
    rng: Any,
) -> Exchanges:
    """By what is summed over each cluster: episodes, Σ g, Σ g² + c and Σ c, about a number and in a unit."""
    (n, G, Q, C), (near, size) = sums, units
    # With what sums of squares over clusters are made of.
    columns = np.column_stack([n, G, Q, C, n * n, n * G, n * Q, G * G, G * Q, Q * Q])
    total = columns.sum(axis=0)

    def judged(sums: Floats, count: int) -> tuple[Floats, Floats, Floats, Floats]:
        """The criterion's values, what they change by with mean and variance, and the covariances (3, b)."""
        K, G, Q, C, nn, nG, nQ, GG, GQ, QQ = sums.T
        m = G / K
        spread = (Q - C) - G**2 / K
        mean, variance = near + size * m, size * size * (spread / (K - 1) + C / K)
        slopes = [criterion.slopes(*at) for at in zip(mean, variance, strict=True)]
        value, by_mean, by_variance = np.array(slopes).T
        # Over clusters, of d = G − m n and of Σ d² + c, less its average, = Q − 2mG + e n.
        e = 2 * m**2 - Q / K
        dd = GG - 2 * m * nG + m**2 * nn
        cross = GQ - 2 * m * GG + e * nG - m * (nQ - 2 * m * nG + e * nn)
        squares = QQ - 4 * m * GQ + 4 * m**2 * GG + 2 * e * (nQ - 2 * m * nG) + e**2 * nn
        covariances = np.stack([dd, cross, squares]) * (count / (count - 1.0) / K**2)
        covariances[2] += 2 * (spread / K) ** 2 / (K * (K - 1.0))
        return value, by_mean * size, by_variance * size * size, covariances

    def statistic(drawn: Bools) -> tuple[Floats, Floats]:
        sums = drawn.astype(np.float64) @ columns
        found = judged(sums, samples[0].count), judged(total - sums, samples[1].count)
        unit = magnitude(*(each[k] for each in found for k in (1, 2)))  # whose square may be no number
        squares = 0.0
        for _, by_mean, by_variance, (s_mm, s_mv, s_vv) in found:
            a, b = by_mean / unit, by_variance / unit
            squares = squares + a**2 * s_mm + 2 * a * b * s_mv + b**2 * s_vv
        return found[0][0] - found[1][0], np.sqrt(np.maximum(squares, 0.0)) * unit

    return Exchanges.of(samples, statistic, rng)


def exchanged_tails(
    first: RecordedReturns,
    second: RecordedReturns,
    criterion: Quantile | CVaR,
    level: float,
    rng: Any,
) -> Exchanges:
    """Of the criteria of the tail, by the returns of both.

    The error of a quantile is half the distance of two returns over t. Their ranks are those of its binomial
    interval, or of clusters Kq ± t s, s² = G/(G − 1) Σ_g (n_g q − how many of g are not above the quantile)².
    """
    samples = Clusters.of(first.starts, first.clusters), Clusters.of(second.starts, second.clusters)
    alone = samples[0].alone and samples[1].alone
    parts = [each.ordered if alone else each.returns for each in (first, second)]
    pooled = np.concatenate(parts)
    near, size = float(pooled.mean()), magnitude(pooled)
    order = np.argsort(pooled, kind="stable")
    x = (pooled[order] - near) / size
    codes = np.concatenate([samples[0].codes, samples[0].count + samples[1].codes])
    codes = order if alone else codes[order]
    of_cluster: Any = sp.csr_array((np.ones(x.size), (np.arange(x.size), codes)))
    q = criterion.q

    def judged(drawn: Bools, sample: RecordedReturns, count: int) -> tuple[Floats, Floats]:
        """The criterion's values and their squared standard errors, (b,)."""
        before = drawn.cumsum(axis=1)
        K = before[:, -1]

        def at(rank: npt.ArrayLike) -> Floats:
            """The return of this rank."""
            ranks = np.minimum(np.maximum(rank, 1), K)
            found: Floats = x[(before < ranks[:, None]).sum(axis=1)]
            return found

        def squared(each: Floats) -> Floats:
            """K² s² of an average of these (b, K_1 + K_2), less what they are on average."""
            sums = each if alone else each @ of_cluster
            return np.asarray(np.square(sums).sum(axis=1) * (count / (count - 1.0)))

        rank = np.ceil(K * q * (1.0 - 1e-12)).astype(np.int64)
        quantile = at(rank)
        if isinstance(criterion, Quantile):
            t = float(student_quantile(level, count))
            ranks: Any = sample.ranks(q, level)
            if not alone:
                half = t * np.sqrt(squared(drawn * (q - (x <= quantile[:, None]))))
                ranks = np.floor(K * q - half), np.ceil(K * q + half) + 1
            return quantile, ((at(ranks[1]) - at(ranks[0])) / (2 * t)) ** 2
        short = np.where(drawn, np.maximum(quantile[:, None] - x, 0.0), 0.0)
        mean = short.sum(axis=1) / K
        return quantile - mean / q, squared(np.where(drawn, short - mean[:, None], 0.0)) / (K * q) ** 2

    def statistic(drawn: Bools) -> tuple[Floats, Floats]:
        drawn = drawn[:, codes]
        (f_1, e_1), (f_2, e_2) = (
            judged(some, each, clusters.count)
            for some, each, clusters in zip((drawn, ~drawn), (first, second), samples, strict=True)
        )
        return (f_1 - f_2) * size, np.sqrt(e_1 + e_2) * size

    return Exchanges.of(samples, statistic, rng)
