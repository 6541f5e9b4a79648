"""Are two policies equally good by a criterion? Their episodes are exchanged at random.

With the criterion's values f_1 and f_2 from K_1 and K_2 independent episodes and their standard errors s_1
and s_2, the statistic

    T = (f_1 − f_2) / √(s_1² + s_2²)

is set beside its values T* where K_1 of all K_1 + K_2 episodes, drawn at random, are called the first
policy's (the studentised permutation test, Chung and Romano 2013). This is exact where both returns have one
distribution, and right for many episodes where only the criterion's value is the same. The p-value is the
share of |T*| ≥ |T|, and the interval of the difference reaches as far as |T*| does in a share ``level`` of
the draws. Shares smaller than those of the ten largest |T*| go on along the tail of a normal distribution.

At 5 % the delta method calls two policies of one lognormal return different by their Sharpe ratios in 28, 32
and 20 % of the cases, with 50 against 50, 50 against 500 and 300 against 300 episodes, this test in 5, 4 and
6 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.units import magnitude
from policyrisk.criteria import CVaR, Quantile
from policyrisk.returns import RecordedReturns
from policyrisk.risk.estimate import student_quantile

FEWEST, MOST = 999, 4999  # draws
_ENTRIES, _AT_ONCE = 1 << 22, 1 << 20  # episodes in all draws, and in those in hand at once
_TAIL = 10  # draws beyond which the tail is a normal one
_SAME = 1e-9  # a statistic that is larger by less than this share is as large


@dataclass(frozen=True, eq=False)
class Exchanges:
    """How large the statistic is in size where episodes are exchanged."""

    sizes: Floats  # (B,): |T*|, rising; infinite where the statistic does not exist

    @classmethod
    def of(cls, K_1: int, K_2: int, statistic: Callable[[Bools], Floats], rng: Any) -> Exchanges:
        """``statistic`` gives T* (b,) for draws (b, K_1 + K_2) of which episodes are the first policy's."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.abs(np.concatenate([statistic(drawn) for drawn in _draws(K_1, K_1 + K_2, rng)]))
        return cls(np.sort(np.where(np.isnan(found), np.inf, found)))

    def p_value(self, statistic: float) -> float:
        """That of |T| = ``statistic``.

        >>> exchanges = Exchanges(np.linspace(0.0, 3.0, 1000))
        >>> round(exchanges.p_value(2.9), 3), exchanges.p_value(30.0) < 1e-9
        (0.035, True)
        """
        B = self.sizes.size
        larger = B - int(np.searchsorted(self.sizes, statistic * (1.0 - _SAME)))
        if larger >= _TAIL or not self._tail:
            return (1 + larger) / (1 + B)
        return min(2.0 * float(ndtr(-statistic / self._tail)), (1 + _TAIL) / (1 + B))

    def reach(self, level: float) -> float:
        """The c for which |T| > c has a p-value of at most 1 − level."""
        B, share = self.sizes.size, 1.0 - level
        larger = math.floor(share * (1 + B) * (1.0 + _SAME)) - 1
        if larger >= _TAIL or not self._tail:
            return float(self.sizes[B - 1 - min(max(larger, 0), B - 1)])
        return max(-float(ndtri(share / 2.0)) * self._tail, float(self.sizes[B - 1 - _TAIL]))

    @property
    def _tail(self) -> float:
        """The standard deviation of the normal tail; 0 where there is none."""
        size = float(self.sizes[-_TAIL])
        return size / -float(ndtri(_TAIL / (2.0 * self.sizes.size))) if math.isfinite(size) else 0.0


def _draws(K_1: int, K: int, rng: Any) -> Iterator[Bools]:
    """Which of K episodes are the first policy's, in all draws, some at a time: (b, K)."""
    left = int(np.clip(_ENTRIES // K, FEWEST, MOST))
    while left > 0:
        rows = min(left, max(_AT_ONCE // K, 1))
        yield rng.permuted(np.tile(np.arange(K) < K_1, (rows, 1)), axis=1)
        left -= rows


def exchanged_moments(first: Floats, second: Floats, criterion: Any, rng: Any) -> Exchanges:
    """Of a criterion of mean and variance, by the completed returns g and c, (K_1, 2) and (K_2, 2)."""
    K_1, K_2 = len(first), len(second)
    both = np.concatenate([first, second])
    near, size = float(both[:, 0].mean()), magnitude(both[:, 0])
    g, c = (both[:, 0] - near) / size, both[:, 1] / size / size
    q = g**2 + c
    columns = np.column_stack([g, q, g**2, g * q, q**2])
    total = columns.sum(axis=0)

    def judged(sums: Floats, K: int) -> tuple[Floats, Floats, Floats, Floats]:
        """The criterion's values, what they change by with mean and variance, and the covariances (3, b)."""
        G, Q, GG, GQ, QQ = sums.T
        m, spread = G / K, GG - G**2 / K
        v = spread / (K - 1) + (Q - GG) / K
        mean, variance = near + size * m, size * size * v
        slopes = [criterion.slopes(*at) for at in zip(mean, variance, strict=True)]
        value, by_mean, by_variance = np.array(slopes).T
        # Of d = g − m and of d² + c = q − 2mg + m².
        cross = GQ - m * Q - 2 * m * spread
        squares = QQ - Q**2 / K - 4 * m * (GQ - G * Q / K) + 4 * m**2 * spread
        covariances = np.stack([spread, cross, squares]) / (K * (K - 1.0))
        covariances[2] += 2 * (spread / K) ** 2 / (K * (K - 1.0))
        return value, by_mean * size, by_variance * size * size, covariances

    def statistic(drawn: Bools) -> Floats:
        sums = drawn.astype(np.float64) @ columns
        found = judged(sums, K_1), judged(total - sums, K_2)
        unit = magnitude(*(each[k] for each in found for k in (1, 2)))  # whose square may be no number
        squares = 0.0
        for _, by_mean, by_variance, (s_mm, s_mv, s_vv) in found:
            a, b = by_mean / unit, by_variance / unit
            squares = squares + a**2 * s_mm + 2 * a * b * s_mv + b**2 * s_vv
        T: Floats = (found[0][0] / unit - found[1][0] / unit) / np.sqrt(squares)
        return T

    return Exchanges.of(K_1, K_2, statistic, rng)


def exchanged_tails(
    first: RecordedReturns, second: RecordedReturns, criterion: Quantile | CVaR, level: float, rng: Any
) -> Exchanges:
    """Of the criteria of the tail, by the returns of both."""
    pooled = np.concatenate([first.ordered, second.ordered])
    near, size = float(pooled.mean()), magnitude(pooled)
    order = np.argsort(pooled, kind="stable")
    x = (pooled[order] - near) / size
    columns = np.column_stack([x, x**2])

    def judged(drawn: Bools, sample: RecordedReturns) -> tuple[Floats, Floats]:
        """The criterion's values and their squared standard errors, (b,)."""
        K, before = sample.starts, drawn.cumsum(axis=1)

        def at(rank: int) -> Floats:
            """The return of this rank."""
            found: Floats = x[(before < min(max(rank, 1), K)).sum(axis=1)]
            return found

        rank = sample.rank(criterion.q)
        quantile = at(rank)
        if isinstance(criterion, Quantile):
            low, high = sample.ranks(criterion.q, level)
            return quantile, ((at(high) - at(low)) / (2 * float(student_quantile(level, K)))) ** 2
        worst, squares = ((drawn & (before <= rank)).astype(np.float64) @ columns).T
        short = (rank * quantile - worst) / (K * criterion.q)  # the mean of (ξ − B)⁺ / q
        square = (rank * quantile**2 - 2 * quantile * worst + squares) / (K * criterion.q**2)
        return quantile - short, np.maximum(square - short**2, 0.0) / (K - 1.0)

    def statistic(drawn: Bools) -> Floats:
        (f_1, e_1), (f_2, e_2) = judged(drawn[:, order], first), judged(~drawn[:, order], second)
        T: Floats = (f_1 - f_2) / np.sqrt(e_1 + e_2)
        return T

    return Exchanges.of(first.starts, second.starts, statistic, rng)
