"""The distribution of recorded returns themselves, with no features in between.

Where no episode was cut off, returns B_1 … B_n are an independent sample, and ordered, B_(1) ≤ … ≤ B_(n):

    quantile    B_(⌈nq⌉), its interval B_(l) to B_(u) with l the least k with P(Bin(n, q) ≤ k) ≥ (1 − level)/2
                and u − 1 the least with P(Bin(n, q) ≤ k) ≥ (1 + level)/2, whatever the distribution; what is
                beyond the least or the largest return is not known, and intervals end there
    CVaR        ξ − Σ (ξ − B_k)⁺ / (nq), ξ being the quantile, by the influences −(ξ − B_k)⁺ / q; the worst
                q of nq ≤ 1 returns are one of them, which says nothing of how far it is off
    P(B < z)    the share below z, with Clopper and Pearson's interval

Intervals of CVaR, mean, variance and std are Hall's of :mod:`policyrisk.risk.estimate`. Seen coverage of
nominal 95% intervals of the mean of the worst 5 %: normal 91, 97 and 95%, exponential 90, 94 and 95%,
Student's with 4 degrees of freedom 91, 97 and 96%, at 100, 300 and 1,000 returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import bdtr, betaincinv

from policyrisk._core.arrays import Floats, as_list, as_number
from policyrisk.distribution.function import DistributionSummary, _as_share, _shape
from policyrisk.risk.estimate import Estimate, as_level, student_quantile

_TOL = 1e-9  # of the largest return: a return that is nearer to a line is on it


@dataclass(frozen=True, eq=False)
class RecordedReturns:
    """The returns of independent episodes that all terminated, two or more of them.

    >>> returns = RecordedReturns(np.arange(1.0, 101.0))
    >>> returns.quantile(0.05), returns.cvar(0.05).value
    (5 ± 2.52 (1 to 11), 3.0)
    >>> returns.below(11)
    0.1 ± 0.0302 (0.049005 to 0.17622)
    """

    returns: Floats  # (n,)
    discount: float = 1.0

    @cached_property
    def ordered(self) -> Floats:
        """(n,), from the least to the largest."""
        return np.sort(self.returns)

    def quantile(self, q: float, level: float = 0.95) -> Estimate:
        """The q-quantile."""
        n = self.ordered.size
        low, high = (float(self.ordered[min(max(rank, 1), n) - 1]) for rank in self.ranks(q, level))
        error = (high - low) / (2 * max(float(student_quantile(level, n)), np.finfo(np.float64).tiny))
        return Estimate(float(self.ordered[self._rank(q) - 1]), error, low, high, n - 1.0)

    def ranks(self, q: float, level: float = 0.95) -> tuple[int, int]:
        """l and u: 0 and n + 1 where no return is far enough out."""
        n = self.ordered.size
        low, high = np.searchsorted(bdtr(np.arange(n), n, q), [(1.0 - level) / 2, (1.0 + level) / 2])
        return int(low), int(high) + 1

    def least_p(self, q: float) -> float:
        """What p of a two-sided test of the q-quantile cannot be below, as no return is far enough out."""
        n = self.ordered.size
        return min(2 * max(q**n, (1.0 - q) ** n), 1.0)

    def cvar(self, q: float, level: float = 0.95) -> Estimate:
        """The mean of the worst q."""
        quantile = self.ordered[self._rank(q) - 1]
        short = np.maximum(quantile - self.ordered, 0.0) / q
        if self._rank(q) == 1 and self.ordered[0] < self.ordered[-1]:
            return Estimate(float(quantile))
        return self._moved(float(quantile - short.mean()), -short, level)

    def below(self, line: float, level: float = 0.95) -> Estimate:
        """P(B < line)."""
        n = self.ordered.size
        k = int(np.count_nonzero(self.ordered < line - _TOL * np.abs(self.ordered[[0, -1]]).max()))
        half = (1.0 - level) / 2
        low = float(betaincinv(k, n - k + 1, half)) if k else 0.0
        high = float(betaincinv(k + 1, n - k, 1.0 - half)) if k < n else 1.0
        share = k / n
        return Estimate(share, math.sqrt(share * (1.0 - share) / (n - 1)), low, high, n - 1.0)

    def summary(
        self, q: Sequence[float], level: float = 0.95, *, below: Sequence[float] = ()
    ) -> DistributionSummary:
        """As :meth:`DistributionFunction.summary`, over the starts that the returns are from."""
        level, x = as_level(level), self.ordered
        levels = [_as_share(each) for each in as_list(q, "q", "shares such as [0.05]")]
        lines = [as_number(each, "below") for each in as_list(below, "below", "returns")]
        mean, variance = float(x.mean()), float(x.var())
        squares, std = np.square(x - mean), math.sqrt(variance)
        return DistributionSummary(
            mean=self._moved(mean, x, level),
            variance=self._moved(variance, squares, level),
            std=self._moved(std, squares / (2 * std) if std else squares, level),
            quantiles={each: self.quantile(each, level) for each in levels},
            cvar={each: self.cvar(each, level) for each in levels},
            below={line: self.below(line, level) for line in lines},
            starts=x.size,
            unvisited=0,
            level=level,
        )

    def _rank(self, q: float) -> int:
        """⌈nq⌉, of a product that is whole but for rounding as well."""
        n = self.ordered.size
        return min(max(math.ceil(n * q * (1.0 - 1e-12)), 1), n)

    def _moved(self, value: float, influences: Floats, level: float) -> Estimate:
        n = influences.size
        change = (influences - influences.mean())[None] / n
        error = math.sqrt(n / (n - 1.0)) * np.sqrt((change**2).sum(axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            skewness, dof = _shape(change, error, np.array([float(n)]))
        return Estimate.skewed(value, float(error[0]), float(skewness[0]), float(dof[0]), level)
