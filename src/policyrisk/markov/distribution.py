"""The distribution of the reward to go in a known chain: exact on a lattice, enclosed otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, as_number, name_some
from policyrisk._core.text import Readable, TextTable, number, percent
from policyrisk.errors import InvalidInputError
from policyrisk.markov.characteristic import Transform, brackets, on_lattice
from policyrisk.markov.reward_lattice import (
    MAX_POINTS,
    TAIL,
    RewardLattice,
    StepFunction,
    as_levels,
    by_recursion,
    find_lattice,
    tails_by_recursion,
)

if TYPE_CHECKING:
    from policyrisk.markov.chain import MarkovChain

FINE = 0.02  # the default width of a bracket, in std
_ROUGH = 1e-4  # the same in means, where the std is smaller than that
_TRIES = 3  # with brackets an eighth as wide each
_REACH = 40.0  # std beyond the mean up to which a lattice is thought to be needed


@dataclass(frozen=True, eq=False)
class ChainDistribution(Readable):
    """The return's distribution from one start.

    ``lower`` and ``upper`` enclose it: lower.cdf(z) ≥ P(B ≤ z) ≥ upper.cdf(z), and the true quantile and CVaR
    lie between theirs. What is asked of the record itself is halfway between; on a lattice both are the same.

    >>> import policyrisk as pr
    >>> print(pr.domains.walk(30).distribution(0))
    return: mean -73.125, std 18.955, skewness -0.89095, kurtosis 4.2952
    worst 5.0%: quantile -108, mean -121.19; median -70; known exactly
    """

    lower: StepFunction
    upper: StepFunction
    mean: float
    variance: float
    skewness: float  # E[(B − mean)³] / std³
    kurtosis: float  # E[(B − mean)⁴] / variance², 3 for a normal distribution
    error: float  # the mean of `upper` less that of `lower`: the area between the two CDFs

    def times(self, factor: float) -> ChainDistribution:
        """The distribution of the return that is ``factor`` times as large."""
        lower, upper = (replace(each, values=each.values * factor) for each in (self.lower, self.upper))
        return replace(
            self,
            lower=lower,
            upper=lower if self.lower is self.upper else upper,
            mean=self.mean * factor,
            variance=self.variance * factor * factor,
            error=self.error * factor,
        )

    @property
    def std(self) -> float:
        """√variance."""
        return float(np.sqrt(self.variance))

    def cdf(self, z: npt.ArrayLike) -> Floats:
        """P(B ≤ z), of z's shape."""
        return 0.5 * (self.lower.cdf(z) + self.upper.cdf(z))

    def quantile(self, q: npt.ArrayLike) -> Floats:
        """The smallest z with P(B ≤ z) ≥ q, of q's shape."""
        return 0.5 * (self.lower.quantile(q) + self.upper.quantile(q))

    def cvar(self, q: npt.ArrayLike) -> Floats:
        """The mean of the worst (smallest) q of the returns, of q's shape."""
        return 0.5 * (self.lower.cvar(q) + self.upper.cvar(q))

    def _blocks(self) -> list[str | TextTable]:
        known = f"within {number(self.error, 2)} on average" if self.lower is not self.upper else "exactly"
        return [
            f"return: mean {number(self.mean)}, std {number(self.std)}, skewness {number(self.skewness)}, "
            f"kurtosis {number(self.kurtosis)}",
            f"worst {percent(0.05)}: quantile {number(float(self.quantile(0.05)))}, mean "
            f"{number(float(self.cvar(0.05)))}; median {number(float(self.quantile(0.5)))}; known {known}",
        ]


def distribution(chain: MarkovChain, start: npt.ArrayLike, tolerance: float | None) -> ChainDistribution:
    """See :func:`MarkovChain.distribution`."""
    _check(chain, tolerance)
    if (unit := chain.unit) != 1.0:
        within = None if tolerance is None else tolerance / unit
        return distribution(chain.in_units(unit), start, within).times(unit)
    zeta = chain.start_distribution(start)
    zeta = zeta / zeta.sum()
    inside = chain._reachable(zeta)
    chain, zeta = chain._part(inside), zeta[inside]
    mean, variance, third, fourth = _mixed_moments(chain, zeta)
    std = np.sqrt(variance)
    shape = (third / std**3, fourth / variance**2) if variance > 0.0 else (np.nan, np.nan)
    lattice = _lattice(chain, abs(mean) + _REACH * std)
    if lattice is not None and lattice.sign:
        steps, left = by_recursion(chain, lattice, zeta)
        found, error = (steps, steps), left * std
    else:
        found = _enclosed(chain, sp.csr_array(zeta[None]), float(std), tolerance)[0]
        error = found[1].mean - found[0].mean if found[0] is not found[1] else TAIL * std
        allowed = FINE * std if tolerance is None else tolerance
        if error > allowed:
            raise InvalidInputError(
                f"tolerance must be at least {number(float(error))}, as near as the bounds can be brought, "
                f"got {number(float(allowed))}; pass a larger one"
            )
    return ChainDistribution(*found, mean, variance, float(shape[0]), float(shape[1]), float(error))


def tail(chain: MarkovChain, of: Literal["quantile", "cvar"], q: float, tolerance: float | None) -> Floats:
    """Quantile or CVaR from every state, (n,); see :func:`MarkovChain.quantile`."""
    _check(chain, tolerance)
    if (unit := chain.unit) != 1.0:
        within = None if tolerance is None else tolerance / unit
        return tail(chain.in_units(unit), of, q, within) * unit
    level = float(as_levels(as_number(q, "q")))
    std = np.sqrt(chain._variance)
    lattice = _lattice(chain, float((np.abs(chain._mean) + _REACH * std).max()))
    if lattice is not None and lattice.sign:
        return tails_by_recursion(chain, lattice, level)[0 if of == "quantile" else 1]
    allowed = np.full(chain.n, tolerance)
    if tolerance is None:  # a std far below the mean is rounding to those who ask for a tail
        rough = np.minimum(_ROUGH * np.abs(chain._mean), FINE * std.max())
        allowed = np.maximum(FINE * std, rough)
    scale, answer = np.frexp(allowed)[1], np.empty(chain.n)
    for one in np.unique(scale):  # a bracket that suits a large std says nothing about a small one
        states = np.flatnonzero(scale == one)
        low, high = _tail_bounds(chain, states, of, level, allowed[states])
        wide = states[high - low > allowed[states] + 1e-9 * np.maximum(np.abs(low), np.abs(high))]
        if wide.size:
            raise InvalidInputError(
                f"the {of} at q={level:g} cannot be told within the tolerance (by default a fiftieth of the "
                f"std) from states {name_some(wide)}; ask chain.distribution(state) for the bounds `lower` "
                "and `upper` that are known, or pass a larger tolerance"
            )
        answer[states] = 0.5 * (low + high)
    return answer


def _tail_bounds(chain: MarkovChain, states: Ints, of: str, level: float, allowed: Floats) -> Floats:
    """Bounds of the quantile or CVaR from each of the states, (2, states)."""
    starts = np.zeros(chain.n)
    starts[states] = 1.0
    inside = chain._reachable(starts)
    part, own = chain._part(inside), np.cumsum(inside)[states] - 1
    Z, within = sp.eye_array(part.n, format="csr")[own], float(allowed.min())
    for _ in range(_TRIES):
        found = _enclosed(part, Z, float(np.sqrt(part._variance[own]).max()), within)
        bounds = np.array([[getattr(side, of)(level) for side in pair] for pair in found]).T
        if (bounds[1] - bounds[0] <= allowed).all():
            break
        within /= 8.0
    return bounds


def _check(chain: MarkovChain, tolerance: float | None) -> None:
    chain.refuse_noise("the distribution of the return")
    chain.one_discount("the distribution of the return")
    if tolerance is not None:
        as_number(tolerance, "tolerance", 0.0, open_low=True)


def _lattice(chain: MarkovChain, reach: float) -> RewardLattice | None:
    """The lattice of the rewards, where the return stays on it and few enough points are within reach."""
    lattice = find_lattice(chain.branches.reward) if chain.discount == 1.0 else None
    return lattice if lattice is not None and reach <= MAX_POINTS * lattice.h else None


def _enclosed(
    chain: MarkovChain, Z: sp.csr_array, std: float, tolerance: float | None
) -> list[tuple[StepFunction, StepFunction]]:
    """For each row of Z two distributions that enclose the return's; the same one twice where it is exact."""
    transform = Transform(chain, Z)
    certain = std <= 1e-12 * float(np.abs(transform.means).max())  # all but rounding
    if certain:
        single = [StepFunction(np.array([mean]), np.ones(1)) for mean in transform.means]
        return [(steps, steps) for steps in single]
    low, high = transform.window(std)
    lattice = _lattice(chain, max(abs(low), abs(high)))
    if lattice is not None and high - low <= 2 * (transform.most - 2) * lattice.h:
        return [(steps, steps) for steps in on_lattice(transform, lattice, low, high)]
    return brackets(transform, low, high, FINE * std if tolerance is None else tolerance)


def _mixed_moments(chain: MarkovChain, zeta: Floats) -> tuple[float, float, float, float]:
    """Mean and central moments 2, 3 and 4 over the starts: E[(J(x) − mean + B − J(x))^k]."""
    mu, J = chain._moments(4), chain._mean
    mean = float(zeta @ J)
    second, third, fourth = (
        float(zeta @ sum(comb(k, j) * (J - mean) ** (k - j) * mu[j] for j in range(k + 1))) for k in (2, 3, 4)
    )
    return mean, second, third, fourth
