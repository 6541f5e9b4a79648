"""A policy in a few numbers, over a start distribution.

With x_0 drawn from the start distribution, the return has

    mean      m = E[J(x_0)]
    variance  v = E[M(x_0)] − m² = E[V(x_0)] + Var[J(x_0)]        (not the mean of V)
    std       √v,        Sharpe ratio  m / √v

Their errors follow from the joint covariance S (2, 2) of (m, v): a function f of the two has standard error
√(∇fᵀ S ∇f) (the delta method). Beside them stand the plain sample mean and variance of the data's returns:
the first sanity check that anyone makes.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_floats
from policyrisk._core.central_sums import add_samples, central_sums, sample_moments
from policyrisk._core.records import record
from policyrisk._core.text import NONE, number, plural, table
from policyrisk.errors import InvalidInputError
from policyrisk.risk.estimate import Estimate


@record
@dataclass(frozen=True)
class SampleReturns:
    """The plain sample moments of episodes' returns g_k, as sums about their mean.

    They add (:mod:`policyrisk._core.central_sums`): ``SampleReturns.of(a) + SampleReturns.of(b)`` is
    ``SampleReturns.of`` of both together, and ``sum()`` works.

    >>> (SampleReturns.of([1.0, 2.0]) + SampleReturns.of([6.0])).variance
    7.0
    """

    count: int  # K
    mean: float  # ḡ, nan where there are none
    squares: float = 0.0  # Σ (g_k − ḡ)²
    cubes: float = 0.0  # Σ (g_k − ḡ)³
    fourths: float = 0.0  # Σ (g_k − ḡ)⁴

    @classmethod
    def of(cls, returns: npt.ArrayLike) -> SampleReturns:
        """The moments of an array of returns, of shape (K,)."""
        return cls._of_sums(central_sums(as_floats(returns, "returns", (None,))))

    @classmethod
    def _of_sums(cls, sums: Floats) -> SampleReturns:
        count, *others = sums.tolist()
        return cls(int(count), *others)

    def __add__(self, other: object) -> SampleReturns:
        if not isinstance(other, SampleReturns):
            return NotImplemented
        return self._of_sums(add_samples(np.array(astuple(self)), np.array(astuple(other))))

    def __radd__(self, other: object) -> SampleReturns:
        return self if other == 0 else NotImplemented

    @property
    def variance(self) -> float:
        """The unbiased sample variance; nan for fewer than two returns."""
        return float(sample_moments(np.array(astuple(self)))[0])

    def covariance(self) -> Floats:
        """The covariance (2, 2) of the sample mean and the sample variance."""
        return sample_moments(np.array(astuple(self)))[1]


@dataclass(frozen=True, eq=False)
class Moments:
    """A mean and a variance with their joint error: what std, Sharpe ratio and criteria are made of."""

    mean_value: float  # m
    variance_value: float  # v
    covariance: Floats  # (2, 2): S, nan where there are no error bars
    episodes: float  # how many stand behind the errors
    level: float  # of the intervals

    def delta(self, value: float, by_mean: float, by_variance: float) -> Estimate:
        """f(m, v) = value with ∂f/∂m = by_mean and ∂f/∂v = by_variance, as an estimate."""
        gradient = np.array([by_mean, by_variance])
        # S is positive semi-definite up to rounding, which may leave a square of −1e-20.
        squared = max(float(gradient @ self.covariance @ gradient), 0.0) if self.known else math.nan
        return Estimate.of(value, math.sqrt(squared), self.episodes, self.level)

    @property
    def known(self) -> bool:
        """Whether there are error bars."""
        return not bool(np.isnan(self.covariance).any())

    @property
    def mean(self) -> Estimate:
        """m."""
        return self.delta(self.mean_value, 1.0, 0.0)

    @property
    def variance(self) -> Estimate:
        """v, negative where it comes out so."""
        return self.delta(self.variance_value, 0.0, 1.0)

    @property
    def std(self) -> Estimate:
        """√v, nan where v < 0."""
        root = self._root
        return self.delta(root, 0.0, 0.5 / root) if root > 0 else Estimate(root)

    @property
    def sharpe(self) -> Estimate:
        """m / √v, nan unless v > 0."""
        m, root = self.mean_value, self._root
        return self.delta(m / root, 1.0 / root, -0.5 * m / root**3) if root > 0 else Estimate(math.nan)

    @property
    def _root(self) -> float:
        v = self.variance_value
        return math.sqrt(v) if v >= 0 else math.nan


_QUANTITIES = ("mean", "variance", "std", "sharpe")


@dataclass(frozen=True, eq=False)
class PolicySummary(Moments):
    """Mean, variance, std and Sharpe ratio of the return from a start distribution.

    ``sample`` has the same four from the plain returns of the data's terminated episodes, from the data's
    own starts.
    """

    starts: int  # rows of the start distribution
    unvisited: int  # those the data say nothing about: left out, the rest's weights scaled up
    negative: int  # visited starts where Ṽ < 0
    discount: float
    estimator: str
    returns: SampleReturns | None
    cut_off: int  # episodes of the data that did not terminate: they have no whole return

    @property
    def sample(self) -> Moments | None:
        """The plain sample moments, None where the estimate did not come from data."""
        if self.returns is None:
            return None
        r = self.returns
        return Moments(r.mean, r.variance, r.covariance(), r.count, self.level)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to use the numbers."""
        notes = []
        if self.unvisited:
            notes.append(
                f"{self.unvisited} of {plural(self.starts, 'start')} were not visited by the data and are "
                "left out; the numbers speak of the others"
            )
        if self.variance_value < 0:
            notes.append(
                "the variance is negative, so that std and Sharpe ratio do not exist; demand V >= 0 with "
                "nonnegative_at=, or use variance='direct'"
            )
        elif self.negative:
            notes.append(f"the variance is negative at {plural(self.negative, 'start')} taken alone")
        if self.known:
            notes.append(
                "intervals cover the limit of the estimator, not the bias of its features, and take the "
                "starts as given"
            )
        if self.cut_off:
            notes.append(
                f"{plural(self.cut_off, 'episode')} cut off: with cut-off episodes that limit differs from "
                "the exact projected equations', and the sample is of the terminated ones alone"
            )
        return tuple(notes)

    def __str__(self) -> str:
        sample = self.sample
        rows = []
        for name in _QUANTITIES:
            estimate: Estimate = getattr(self, name)
            beside: Estimate = Estimate(math.nan) if sample is None else getattr(sample, name)
            rows.append(
                [
                    name,
                    number(estimate),
                    number(estimate.standard_error, 3),
                    estimate.ends if self.known else NONE,
                    number(beside),
                    number(beside.standard_error, 3),
                ]
            )
        header = ["", self.estimator, "std error", f"{self.level:.4g} interval", "sample", "std error"]
        behind = "" if self.returns is None else f", sample of {plural(self.returns.count, 'return')}"
        used = plural(self.starts - self.unvisited, "start")
        title = f"return from {used}, discount {self.discount:g}{behind}"
        return "\n".join([title, table(header, rows), *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        sample = self.sample
        return {
            **{name: getattr(self, name).to_dict() for name in _QUANTITIES},
            "covariance": self.covariance.tolist(),
            "sample": None
            if sample is None or self.returns is None
            else {
                "count": self.returns.count,
                **{name: getattr(sample, name).to_dict() for name in _QUANTITIES},
            },
            "level": self.level,
            "episodes": self.episodes,
            "starts": self.starts,
            "unvisited": self.unvisited,
            "negative": self.negative,
            "discount": self.discount,
            "estimator": self.estimator,
            "cut_off": self.cut_off,
            "notes": list(self.notes),
        }


def start_weights(weights: npt.ArrayLike | None, n: int) -> Floats:
    """Checked weights of n starts, of shape (n,): not negative and not all 0; ones for None."""
    if n == 0:
        raise InvalidInputError(
            "starts must hold at least one state, got none; pass the states that episodes start in"
        )
    if weights is None:
        return np.ones(n)
    w = as_floats(weights, "weights", (n,))
    if (w < 0).any() or not (w > 0).any():
        raise InvalidInputError(
            f"weights must not be negative and not all be 0, got {number(float(w.min()))} to "
            f"{number(float(w.max()))}; pass each start's probability"
        )
    return w
