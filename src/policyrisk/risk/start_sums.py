"""Sums over starts and over returns, which a summary is made of; they add.

Those about a mean add by Pébay's formulas, so that data of any length, on any number of machines, are
summarised over all of their starts. See :mod:`policyrisk.risk.summary` for m, W and the gradients.

Of a sample g_1, …, g_K there are five rows,

    K,   ḡ = Σ g_k / K,   Σ (g_k − ḡ)²,   Σ (g_k − ḡ)³,   Σ (g_k − ḡ)⁴

which lose no digits however far the mean is from 0, and of many samples side by side an array of shape
(5, …). With μ_p = Σ (g_k − ḡ)^p / K,

    variance       s² = K μ₂ / (K − 1)                              (unbiased)
    covariance     Var ḡ = s² / K,   Cov(ḡ, s²) = μ₃ / K,   Var s² = (μ₄ − μ₂² (K − 3) / (K − 1)) / K
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_floats
from policyrisk._core.records import Centred, record
from policyrisk._core.text import number
from policyrisk.errors import InvalidInputError
from policyrisk.risk.state_estimates import StateEstimates, VarianceMethod

COUNT, MEAN, SQUARES, CUBES, FOURTHS = range(5)


def central_sums(g: Floats) -> Floats:
    """The sums (5, …) of samples (…, K); the mean of none is nan."""
    K = g.shape[-1]
    mean = g.sum(axis=-1) / K if K else np.full(g.shape[:-1], np.nan)
    deviation = g - mean[..., None]
    with np.errstate(over="ignore", invalid="ignore"):  # of rewards whose unit is not known yet
        squared = deviation * deviation
        powers = (squared, squared * deviation, squared * squared)
        return np.stack([np.full_like(mean, K), mean, *(power.sum(axis=-1) for power in powers)])


def add_samples(one: Floats, other: Floats) -> Floats:
    """The sums (5, …) of two samples together, by Pébay's formulas; one that is empty changes nothing.

    >>> add_samples(central_sums(np.array([1.0, 2.0])), central_sums(np.array([6.0])))
    array([ 3.,  3., 14., 18., 98.])
    """
    a, b = one[COUNT], other[COUNT]
    n = np.maximum(a + b, 1.0)
    delta = other[MEAN] - one[MEAN]
    both = one + other
    both[MEAN] = one[MEAN] + delta * b / n
    both[SQUARES] += delta**2 * a * b / n
    both[CUBES] += delta**3 * a * b * (a - b) / n**2 + 3 * delta * (a * other[SQUARES] - b * one[SQUARES]) / n
    both[FOURTHS] += (
        delta**4 * a * b * (a**2 - a * b + b**2) / n**3
        + 6 * delta**2 * (a**2 * other[SQUARES] + b**2 * one[SQUARES]) / n**2
        + 4 * delta * (a * other[CUBES] - b * one[CUBES]) / n
    )
    return np.where(a == 0, other, np.where(b == 0, one, both))


def sample_moments(sums: Floats) -> tuple[Floats, Floats]:
    """s² (…) of each sample, and the covariance (2, 2, …) of ḡ and s²; nan for fewer than two values."""
    K = np.where(sums[COUNT] >= 2, sums[COUNT], np.nan)
    variance: Floats = sums[SQUARES] / (K - 1)
    second, third, fourth = sums[SQUARES] / K, sums[CUBES] / K, sums[FOURTHS] / K
    # μ₄ ≥ μ₂², so that this is at least 2 μ₂² / (K − 1) / K.
    of_variance = (fourth - second**2 * (K - 3) / (K - 1)) / K
    return variance, np.array([[variance / K, third / K], [third / K, of_variance]])


@record
@dataclass(frozen=True)
class SampleReturns:
    """The plain sample moments of episodes' returns g_k, as sums about their mean.

    They add (:func:`add_samples`): ``SampleReturns.of(a) + SampleReturns.of(b)`` is
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

    def _sums(self) -> Floats:
        return np.array([*vars(self).values()])

    def __add__(self, other: object) -> SampleReturns:
        if not isinstance(other, SampleReturns):
            return NotImplemented
        with np.errstate(over="ignore", invalid="ignore"):  # of rewards whose unit is not known yet
            return self._of_sums(add_samples(self._sums(), other._sums()))

    def __radd__(self, other: object) -> SampleReturns:
        return self if other == 0 else NotImplemented

    @property
    def variance(self) -> float:
        """The unbiased sample variance; nan for fewer than two returns."""
        return float(sample_moments(self._sums())[0])

    def covariance(self) -> Floats:
        """The covariance (2, 2) of the sample mean and the sample variance."""
        return sample_moments(self._sums())[1]


@record(phi_mean="l_J: finite", phi_second="l_M: finite", phi_spread="l_J: finite")
@dataclass(frozen=True, eq=False)
class StartSums(Centred):
    """Sums over starts at an estimate; they add. All but the first two are of the visited starts."""

    count: int  # starts
    unvisited: int  # those the data say nothing about: they are in no other sum
    negative: int  # starts with Ṽ < 0
    weight: float  # W
    episodes: float  # Σ w e, e being the episodes behind the estimate at the start
    mean: float  # m; 0 where W is
    squares: float  # Σ w (J̃ − m)²
    variances: float  # Σ w Ṽ
    phi_mean: Floats  # (l_J,): Σ w φ_J
    phi_second: Floats  # (l_M,): Σ w φ_M
    phi_spread: Floats  # (l_J,): Σ w (J̃ − m) φ_J, and of a target half of Σ w ∂Ṽ/∂w_J
    covered: float = 0.0  # Σ w times how surely a target stays with what was logged, of all starts
    target_weight: float = 0.0  # Σ w of all starts, for a target
    _means: ClassVar = ("mean",)
    _weight: ClassVar = "weight"

    @classmethod
    def empty(cls, l_J: int, l_M: int) -> StartSums:
        """The sums of no start at all: adding them changes nothing."""
        return cls(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(l_J), np.zeros(l_M), np.zeros(l_J))

    @classmethod
    def of(cls, parts: Iterable[StateEstimates], weights: Floats) -> StartSums:
        """The sums of the estimates at starts, in one part or more, with the starts' weights (n,)."""
        sums, first = [], 0
        for part in parts:
            sums.append(cls._of_part(part, weights[first : first + len(part.J)]))
            first += len(part.J)
        return reduce(add, sums)

    @classmethod
    def _of_part(cls, at: StateEstimates, weights: Floats) -> StartSums:
        visited = (at.episodes > 0) & (weights > 0)
        w = np.where(visited, weights, 0.0)
        J, V = np.where(visited, at.J, 0.0), np.where(visited, at.V, 0.0)
        W = float(w.sum())
        m = float(w @ J) / W if W > 0 else 0.0
        phi_spread = np.asarray(at.phi_mean.T @ (w * (J - m)))
        if at.spread is not None:
            phi_spread = phi_spread + np.asarray(at.spread.T @ w) / 2
        return cls(
            count=len(w),
            unvisited=int(np.count_nonzero(at.episodes == 0)),
            negative=int(np.count_nonzero(V < 0)),
            weight=W,
            episodes=float(w @ at.episodes),
            mean=m,
            squares=float(w @ (J - m) ** 2),
            variances=float(w @ V),
            phi_mean=np.asarray(at.phi_mean.T @ w),
            phi_second=np.asarray(at.phi_second.T @ w),
            phi_spread=phi_spread,
            covered=0.0 if at.covered is None else float(weights @ at.covered),
            target_weight=0.0 if at.covered is None else float(weights.sum()),
        )

    def about(self, *means: float) -> StartSums:
        """The same sums about another m."""
        (mean,) = means
        d = self.mean - mean
        squares, spread = self.squares + self.weight * d * d, self.phi_spread + d * self.phi_mean
        return replace(self, squares=squares, phi_spread=spread)

    @property
    def moments(self) -> tuple[float, float]:
        """m and v, nan where no start was visited."""
        if self.weight == 0:
            return math.nan, math.nan
        return self.mean, (self.variances + self.squares) / self.weight

    def gradients(self, method: VarianceMethod) -> tuple[Floats, Floats]:
        """The gradients of (m, v) by w_J, (2, l_J), and by w_second, (2, l_M)."""
        by_mean = 2 * self.phi_spread if method == "direct" else -2 * self.mean * self.phi_mean
        g_J = np.stack([self.phi_mean, by_mean])
        g_M = np.stack([np.zeros_like(self.phi_second), self.phi_second])
        return g_J / self.weight, g_M / self.weight


def start_weights(weights: npt.ArrayLike | None, n: int) -> Floats:
    """Checked weights of n starts, of shape (n,): not negative and not all 0; ones for None."""
    if n == 0:
        raise InvalidInputError(
            "starts must hold at least one state, got none; pass the states that episodes start in"
        )
    w = np.ones(n) if weights is None else as_floats(weights, "weights", (n,))
    if (w < 0).any() or not (w > 0).any():
        raise InvalidInputError(
            f"weights must not be negative and not all be 0, got {number(float(w.min()))} to "
            f"{number(float(w.max()))}; pass each start's probability"
        )
    return w
