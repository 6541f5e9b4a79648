"""Are two policies equally good by a criterion? Their episodes are exchanged at random.

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
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import ndtr, ndtri

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.units import magnitude
from policyrisk.criteria import CVaR, Quantile
from policyrisk.returns import RecordedReturns
from policyrisk.returns.start_distribution import Clusters
from policyrisk.risk.estimate import student_quantile

FEWEST, MOST = 999, 4999  # draws
_ENTRIES, _AT_ONCE = 1 << 22, 1 << 20  # episodes in all draws, and in those in hand at once
_TAIL = 10  # draws beyond which the tail is a normal one
_SAME = 1e-9  # a statistic that is larger by less than this share is as large
Statistic: TypeAlias = Callable[[Bools], tuple[Floats, Floats]]


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
