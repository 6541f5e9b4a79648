"""The distribution of the return over starts: a mixture of estimates, or the recorded returns themselves.

Where no episode was cut off, returns B_1 … B_n are an independent sample, with no features in between, and
ordered, B_(1) ≤ … ≤ B_(n):

    quantile    B_(⌈nq⌉), its interval B_(l) to B_(u) with l the least k with P(Bin(n, q) ≤ k) ≥ (1 − level)/2
                and u − 1 the least with P(Bin(n, q) ≤ k) ≥ (1 + level)/2, whatever the distribution; what is
                beyond the least or the largest return is not known, and intervals end there
    CVaR        ξ − Σ (ξ − B_k)⁺ / (nq), ξ being the quantile, by the influences −(ξ − B_k)⁺ / q; the worst
                q of nq ≤ 1 returns are one of them, which says nothing of how far it is off
    P(B < z)    the share below z, with Clopper and Pearson's interval

Where episodes come in clusters, G of them, s is the standard error of a share of the returns over clusters,
and n p(1 − p)/s², at most n, times the squared ratio of Student's quantiles with n − 1 and with G − 1 degrees
of freedom, stands for n in the intervals of quantile and P(B < z) (Korn and Graubard 1998); the influences
are summed over clusters.

Intervals of CVaR, mean, variance and std are Hall's of :mod:`policyrisk.risk.estimate`. Seen coverage of
nominal 95% intervals of the mean of the worst 5 %: normal 91, 97 and 95%, exponential 90, 94 and 95%,
Student's with 4 degrees of freedom 91, 97 and 96%, at 100, 300 and 1,000 returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, betaincinv

from policyrisk._core.arrays import Bools, Floats, Ints, as_list, as_number
from policyrisk._core.text import Readable, TextTable, percent, plural
from policyrisk._core.units import magnitude
from policyrisk.returns.curves import Grid, Reading
from policyrisk.risk.completed import FEWEST_SKEWED
from policyrisk.risk.estimate import Estimate, as_level, plain_estimates, shape, student_quantile

if TYPE_CHECKING:
    from policyrisk.returns.distribution_function import DistributionAtStates

_TOL = 1e-9  # of the largest return: a return that is nearer to a line is on it
_TINY = float(np.finfo(np.float64).tiny)  # for t, which is 0 at a level of 1e-300


@dataclass(frozen=True, eq=False)
class DistributionSummary(Readable):
    """The return's distribution over starts; each number knows its interval."""

    mean: Estimate
    variance: Estimate
    std: Estimate
    quantiles: dict[float, Estimate]
    cvar: dict[float, Estimate]
    below: dict[float, Estimate]  # P(B < line) by line
    starts: int  # that are averaged over
    unvisited: int  # that were left out
    level: float

    @property
    def known(self) -> bool:
        """Whether there are intervals."""
        return not math.isnan(self.mean.low)

    def _blocks(self) -> list[str | TextTable]:
        rows = [("mean", self.mean), ("std", self.std)]
        rows += [(f"quantile {percent(q)}", value) for q, value in self.quantiles.items()]
        rows += [(f"mean of worst {percent(q)}", value) for q, value in self.cvar.items() if q < 0.5]
        rows += [(f"P(return < {line:g})", value) for line, value in self.below.items()]
        head = f"return over {plural(self.starts, 'start')}"
        head += f"; {self.unvisited} left out, of which the data say nothing" if self.unvisited else ""
        columns = ["", "value", "±", f"{percent(self.level)} interval"]
        return [head, TextTable(columns, [[name, *value.cells] for name, value in rows])]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values; quantiles and lines are keys of text."""
        return {name: plain_estimates(value) for name, value in vars(self).items()}


class StartDistribution:
    """A distribution over starts, to be summarised at any level, whoever estimated it."""

    starts: int  # that are averaged over
    unvisited: int  # that were left out

    def estimate(self, of: Reading, level: float = 0.95) -> Estimate:
        """The mean, the variance or the std."""
        raise NotImplementedError

    def quantile(self, q: float, level: float = 0.95) -> Estimate:
        """The q-quantile."""
        raise NotImplementedError

    def cvar(self, q: float, level: float = 0.95) -> Estimate:
        """The mean of the worst q."""
        raise NotImplementedError

    def below(self, line: float, level: float = 0.95) -> Estimate:
        """P(B < line)."""
        raise NotImplementedError

    def summary(
        self, q: Sequence[float], level: float = 0.95, *, below: Sequence[float] = ()
    ) -> DistributionSummary:
        """As :meth:`policyrisk.DistributionFunction.summary`, over these starts."""
        level = as_level(level)
        shares = [as_share(each) for each in as_list(q, "q", "shares such as [0.05]")]
        lines = [as_number(each, "below") for each in as_list(below, "below", "returns")]
        return DistributionSummary(
            mean=self.estimate("mean", level),
            variance=self.estimate("variance", level),
            std=self.estimate("std", level),
            quantiles={each: self.quantile(each, level) for each in shares},
            cvar={each: self.cvar(each, level) for each in shares},
            below={line: self.below(line, level) for line in lines},
            starts=self.starts,
            unvisited=self.unvisited,
            level=level,
        )


class StartEstimate(StartDistribution):
    """What was estimated from features, over starts; each kind says how it comes to a value and its ends."""

    function: DistributionAtStates
    curve: Floats  # (1, m) or more: F at the thresholds

    @property
    def grid(self) -> Grid:
        """The thresholds, in units of the rewards."""
        return self.function.grid

    @property
    def thresholds(self) -> Floats:
        """Where F is known, (m,)."""
        return self.grid.theta * self.function.unit

    def coarseness(self, q: float) -> float:
        """By how much the q-quantile may be off, since F is drawn straight between thresholds."""
        return 0.0

    def estimate(self, of: Reading, level: float = 0.95, q: float = 0.5, z: float = 0.0) -> Estimate:
        """What :meth:`policyrisk.DistributionFunction.interval` is of, over the starts."""
        size = self.function.size_of(of)
        return self._estimate(of, level, q, z / self.function.unit).moved(size, 0.0)

    def _estimate(self, of: Reading, level: float, q: float, z: float) -> Estimate:
        """The same in units of the rewards."""
        raise NotImplementedError

    def quantile(self, q: float, level: float = 0.95) -> Estimate:
        """The q-quantile."""
        return self.estimate("quantile", level, q=q)

    def cvar(self, q: float, level: float = 0.95) -> Estimate:
        """The mean of the worst q."""
        return self.estimate("cvar", level, q=q)

    def below(self, line: float, level: float = 0.95) -> Estimate:
        """P(B < line)."""
        return self.estimate("cdf", level, z=self.function.just_below(line))


def within(value: float, ends: Floats | Sequence[float], episodes: float, level: float) -> Estimate:
    """A value in an interval (2,) of its own, whose length tells the standard error."""
    t = max(float(student_quantile(level, episodes)), _TINY)
    low, high = ends
    return Estimate(value, (high - low) / (2 * t), low, high, episodes - 1.0)


@dataclass(frozen=True, eq=False)
class Clusters:
    """Which episodes belong together: whole clusters are independent."""

    codes: Ints  # (K,): from 0 to count − 1
    count: int

    @classmethod
    def of(cls, episodes: int, named: npt.ArrayLike | None = None) -> Clusters:
        """By their names (K,); each episode alone where there are none.

        >>> Clusters.of(4, ["a", "b", "a", "b"])
        Clusters(codes=array([0, 1, 0, 1]), count=2)
        """
        if named is None:
            return cls(np.arange(episodes), episodes)
        names, codes = np.unique(np.asarray(named), return_inverse=True)
        return cls(codes.reshape(-1), names.size)

    @property
    def alone(self) -> bool:
        """Whether each is an episode."""
        return self.count == self.codes.size

    def error(self, influences: Floats) -> float:
        """The standard error of a mean of influences (K,), whose own mean is 0."""
        sums, n = np.bincount(self.codes, influences), self.count
        return math.sqrt(float(sums @ sums) * n / (n - 1.0)) / self.codes.size

    def worth(self, share: float, error: float, most: float, level: float) -> float:
        """How many independent episodes a share of them with this standard error tells as much as."""
        worth = min(share * (1.0 - share) / error**2, most) if error > 0 else most
        ratio = student_quantile(level, self.codes.size) / student_quantile(level, self.count)
        return worth * float(ratio**2)

    def estimate(self, value: float, influences: Floats, level: float, fewest: int = 0) -> Estimate:
        """A value that the episodes move by influences (K,): Hall's interval, from ``fewest`` clusters on."""
        unit = magnitude(influences)  # as shape takes fourth powers
        influences = influences / unit
        change = np.bincount(self.codes, influences - influences.mean())[None] / influences.size
        n = self.count
        error = math.sqrt(n / (n - 1.0)) * np.sqrt((change**2).sum(axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            skewness, dof = shape(change, error, np.array([float(n)]), fewest)
        if n < fewest:
            dof[:] = n - 1.0
        found = Estimate.skewed(value / unit, float(error[0]), float(skewness[0]), float(dof[0]), level)
        return found.moved(unit, 0.0)


@dataclass(frozen=True, eq=False)
class RecordedReturns(StartDistribution):
    """The returns of independent episodes that all terminated, two or more of them.

    >>> returns = RecordedReturns(np.arange(1.0, 101.0))
    >>> returns.quantile(0.05), returns.cvar(0.05).value
    (5 ± 2.52 (1 to 11), 3.0)
    >>> returns.below(11)
    0.1 ± 0.0302 (0.049005 to 0.17622)
    """

    returns: Floats  # (n,)
    discount: float = 1.0
    clusters: Ints | None = None  # (n,): the numbers of the episodes' clusters, where they come in clusters
    unvisited = 0

    @property
    def starts(self) -> int:  # type: ignore[override]
        """n."""
        return self.returns.size

    @cached_property
    def ordered(self) -> Floats:
        """(n,), from the least to the largest."""
        return np.sort(self.returns)

    @cached_property
    def clustered(self) -> Clusters:
        """What the ordered returns belong to; each to itself where episodes are independent."""
        found = Clusters.of(self.returns.size, self.clusters)
        if self.clusters is None:
            return found
        return Clusters(found.codes[np.argsort(self.returns, kind="stable")], found.count)

    def _worth(self, below: Bools, level: float) -> float:
        """How many independent returns the share of those ``below`` (n,) is worth."""
        share, clusters = float(below.mean()), self.clustered
        if self.clusters is None or not 0.0 < share < 1.0:
            return float(clusters.count)
        error = clusters.error(np.asarray(below - share))
        return clusters.worth(share, error, float(self.returns.size), level)

    def estimate(self, of: Reading, level: float = 0.95) -> Estimate:
        """The mean, the variance (over n) or the std."""
        x = self.ordered
        mean, variance = float(x.mean()), float(x.var())
        if of == "mean":
            return self._moved(mean, x, level)
        squares, std = np.square(x - mean), math.sqrt(variance)
        if of == "variance":
            return self._moved(variance, squares, level)
        return self._moved(std, squares / (2 * std) if std else squares, level)

    def quantile(self, q: float, level: float = 0.95) -> Estimate:
        """The q-quantile."""
        n = self.ordered.size
        low, high = (float(self.ordered[min(max(rank, 1), n) - 1]) for rank in self.ranks(q, level))
        return within(float(self.ordered[self.rank(q) - 1]), (low, high), self.clustered.count, level)

    def ranks(self, q: float, level: float = 0.95) -> tuple[int, int]:
        """l and u: 0 and n + 1 where no return is far enough out."""
        n = self.ordered.size
        if self.clusters is not None:
            worth = self._worth(np.arange(n) < self.rank(q), level)
            low, high = share_interval(q * worth, worth, level)
            return math.floor(low * n), math.floor(high * n) + 1
        low, high = np.searchsorted(bdtr(np.arange(n), n, q), [(1.0 - level) / 2, (1.0 + level) / 2])
        return int(low), int(high) + 1

    def least_p(self, q: float) -> float:
        """What p of a two-sided test of the q-quantile cannot be below, as no return is far enough out."""
        n = self.ordered.size
        return min(2 * max(q**n, (1.0 - q) ** n), 1.0)

    def cvar(self, q: float, level: float = 0.95) -> Estimate:
        """The mean of the worst q."""
        quantile = self.ordered[self.rank(q) - 1]
        short = np.maximum(quantile - self.ordered, 0.0) / q
        if self.rank(q) == 1 and self.ordered[0] < self.ordered[-1]:
            return Estimate(float(quantile))
        return self._moved(float(quantile - short.mean()), -short, level)

    def below(self, line: float, level: float = 0.95) -> Estimate:
        """P(B < line)."""
        n = self.ordered.size
        k = int(np.count_nonzero(self.ordered < line - _TOL * np.abs(self.ordered[[0, -1]]).max()))
        share, worth = k / n, float(n)
        if self.clusters is not None:
            worth = self._worth(np.arange(n) < k, level)
        low, high = share_interval(share * worth, worth, level)
        error = math.sqrt(share * (1.0 - share) / max(worth - 1.0, 1.0))
        return Estimate(share, error, low, high, self.clustered.count - 1.0)

    def rank(self, q: float) -> int:
        """⌈nq⌉, of a product that is whole but for rounding as well."""
        n = self.ordered.size
        return min(max(math.ceil(n * q * (1.0 - 1e-12)), 1), n)

    def _moved(self, value: float, influences: Floats, level: float) -> Estimate:
        fewest = 0 if self.clusters is None else FEWEST_SKEWED
        return self.clustered.estimate(value, influences, level, fewest)


def share_interval(k: float, n: float, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share of which k of n were seen."""
    half = (1.0 - level) / 2
    low = float(betaincinv(k, n - k + 1, half)) if k > 0 else 0.0
    return low, float(betaincinv(k + 1, n - k, 1.0 - half)) if k < n else 1.0


def as_share(q: Any) -> float:
    """A checked share of the returns, in (0, 1]."""
    return as_number(q, "q", 0.0, 1.0, open_low=True, remedy="pass 0.05 for the worst 5 %")
