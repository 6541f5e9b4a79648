"""Distributions with finitely many values, as that of the return where rewards lie on a lattice and γ = 1.

Where all rewards are multiples of one number h, and of one sign, it is found by recursion. With costs c =
|ρ|/h ∈ {0, 1, 2, …} the return is ±hK, and

    p_k(x) = P(K = k | x) = Σ_branches p · p_{k−c}(y),      p_k(end) = 1{k = 0}

which the steps with c > 0 give from smaller k. Steps that cost nothing leave p_k on both sides: with P_0
their matrix, (I − P_0) p_k = b_k is solved for each k. All states go together; the last max(c) p are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, as_array, as_floats, freeze
from policyrisk.errors import InvalidInputError, SolverError
from policyrisk.markov import _branch_kernels as kernels
from policyrisk.markov.branches import Branches
from policyrisk.markov.linear import Resolvent

if TYPE_CHECKING:
    from policyrisk.markov.chain import MarkovChain

MAX_POINTS = 10_000_000  # of a lattice; a finer one is treated as none
TAIL = 1e-13  # probability that may be left out
_DENOMINATOR = 10**6
_ROUNDING = 2.0**-51  # by which a reward may miss its fraction
_BLOCK = 1 << 20  # probabilities found between two looks at what is left
# Probabilities are sums of many roundings: F counts as having reached q when it is this close below it.
SLACK = 1e-12


@dataclass(frozen=True, eq=False)
class StepFunction:
    """F(z) = cumulative[i] for values[i] ≤ z < values[i + 1].

    >>> die = StepFunction(np.arange(1.0, 7.0), np.arange(1, 7) / 6)
    >>> float(die.cdf(2.0)), float(die.quantile(0.5)), float(die.cvar(0.5))
    (0.3333333333333333, 3.0, 2.0)
    """

    values: Floats  # (m,), rising; a bracket's may be at an end of its support several times
    cumulative: Floats  # (m,), not falling, 1 at last

    def __post_init__(self) -> None:
        freeze(self)

    def cdf(self, z: npt.ArrayLike) -> Floats:
        """F(z) = P(B ≤ z), of z's shape; a z within a rounding of a value counts as that value."""
        z = as_array(z, "z", "numbers")
        near = z + 1e-9 * np.min(np.diff(self.values), initial=1.0)
        F = np.append(0.0, self.cumulative)[np.searchsorted(self.values, near, side="right")]
        return np.where(np.isnan(near), np.nan, F)[()]

    def quantile(self, q: npt.ArrayLike) -> Floats:
        """The smallest value with F ≥ q, of q's shape."""
        return self.values[self._reached(as_levels(q))]

    def cvar(self, q: npt.ArrayLike) -> Floats:
        """The mean of the worst (smallest) q of the values, of q's shape.

        With θ the quantile it is θ − E[(θ − B)⁺]/q, and E[(θ − B)⁺] is the area under F left of θ.
        """
        levels = as_levels(q)
        reached = self._reached(levels)
        area = np.append(0.0, np.cumsum(self.cumulative[:-1] * np.diff(self.values)))
        return self.values[reached] - area[reached] / levels

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return float(self.values[-1] - self.cumulative[:-1] @ np.diff(self.values))

    def _reached(self, levels: Floats) -> npt.NDArray[np.intp]:
        return np.minimum(np.searchsorted(self.cumulative, levels - SLACK), self.values.size - 1)


def as_levels(q: npt.ArrayLike) -> Floats:
    """Probabilities in (0, 1] for a quantile, of any shape."""
    levels = as_floats(q, "q", np.shape(as_array(q, "q", "probabilities")))
    if not ((levels > 1e-9) & (levels <= 1.0)).all():
        raise InvalidInputError(
            f"q must be a probability above 1e-9 and at most 1, got {levels.min():g} to {levels.max():g}; "
            "pass 0.05 for the worst 5 %"
        )
    return levels


@dataclass(frozen=True)
class RewardLattice:
    """Rewards that are whole numbers of h = numerator · unit / denominator."""

    multiples: Ints  # (branches,): ρ / h
    numerator: int
    denominator: int
    unit: float

    @property
    def h(self) -> float:
        """The distance of two points."""
        return float(self.values(1))

    @property
    def sign(self) -> int:
        """1 where no reward is negative, −1 where none is positive, 0 where there are both."""
        if self.multiples.min() >= 0:
            return 1
        return -1 if self.multiples.max() <= 0 else 0

    def values(self, multiples: Ints | int) -> Floats:
        """Multiples of h as numbers, rounded once where the unit is 1: 3 · 0.1 is 0.3."""
        return np.asarray(multiples) * float(self.numerator) / self.denominator * self.unit


def find_lattice(rewards: Floats) -> RewardLattice | None:
    """The coarsest lattice that holds 0 and all rewards (branches,); None where there is none that is usable.

    Sought are fractions with denominators up to a million, of the rewards and then of their ratios.

    >>> lattice = find_lattice(np.array([0.1, -0.3, 0.25]))
    >>> lattice.multiples.tolist(), float(lattice.h)
    ([2, -6, 5], 0.05)
    >>> find_lattice(np.array([1.0, np.pi])) is None
    True
    """
    values, of = np.unique(rewards, return_inverse=True)
    nonzero = values[values != 0.0]
    if not nonzero.size:
        return RewardLattice(np.zeros(rewards.size, dtype=np.int64), 1, 1, 1.0)
    for unit in (1.0, float(np.abs(nonzero).min())):
        numerator, denominator = 0, 1
        for value in (values / unit).tolist():
            fraction = Fraction(value).limit_denominator(_DENOMINATOR)
            if abs(float(fraction) - value) > _ROUNDING * abs(value):
                break
            common = lcm(denominator, fraction.denominator)
            numerator = gcd(
                numerator * (common // denominator),
                fraction.numerator * (common // fraction.denominator),
            )
            denominator = common
        else:
            multiples = np.rint(values / unit * denominator / numerator)
            if np.abs(multiples).max() > MAX_POINTS:
                return None
            return RewardLattice(multiples.astype(np.int64)[of], numerator, denominator, unit)
    return None


def points(branches: Branches, costs: Ints) -> Iterator[tuple[int, Floats]]:
    """Blocks (k, p) of p_k, p_{k+1}, … (m, n), from k = 0 on; each is overwritten by the next.

    The history holds the latest p above the earlier ones, each with p(end) as its last entry, so that
    p_{k−c}(y) stands (c − 1)(n + 1) + y entries behind the beginning of p_{k−1} and all sums are one product.
    """
    n, row = branches.n, branches.row
    # Rows are made to sum to 1: what they lack or have too much by rounding would be a tail that never ends.
    probability = branches.probability / branches.expect(np.ones(row.size))[row]
    free, depth = costs == 0, max(int(costs.max()), 1)
    block = min(max(_BLOCK // n, 1), 256)
    history = np.zeros((depth + block, n + 1))
    at = block
    history[at, n] = 1.0  # p_0(end)
    resolvent = None
    ends = branches.successor == n
    history[at, :n] = replace(branches, probability=probability * free).expect(ends.astype(np.float64))
    if (free & ~ends).any():
        part = Branches(branches.indptr, branches.successor, probability * free, branches.reward)
        resolvent, block = Resolvent(part.matrix(), 1.0), 1
        history[at, :n] = resolvent.solve(history[at, :n])[0]
    entries = probability[~free], (row[~free], ((costs - 1) * (n + 1) + branches.successor)[~free])
    W = sp.csr_array(sp.coo_array(entries, shape=(n, depth * (n + 1))))
    yield 0, history[at : at + 1, :n]
    k = 1
    while k <= 2 * MAX_POINTS:
        if at < block:
            history[-depth:] = history[at : at + depth].copy()
            at = len(history) - depth
        kernels.lattice_points(W.indptr, W.indices, W.data, history, at, block)
        at -= block
        if resolvent is not None:
            history[at, :n] = resolvent.solve(history[at, :n])[0]
        history[at : at + block, n] = 0.0
        yield k, history[at : at + block, :n][::-1]
        k += block
    raise SolverError(
        f"the probabilities of {k} points of the rewards' lattice do not sum to 1; check that every state "
        "reaches the end within a number of steps that can be counted, or use a discount below 1"
    )


def by_recursion(chain: MarkovChain, lattice: RewardLattice, zeta: Floats) -> tuple[StepFunction, float]:
    """The return's distribution from the start ζ0 (n,), and the probability that was left out."""
    costs, sign = np.abs(lattice.multiples), lattice.sign
    starts = np.flatnonzero(zeta)
    parts, left = [], 1.0
    for k, p in points(chain.branches, costs):
        parts.append(p[:, starts] @ zeta[starts])
        left -= float(parts[-1].sum())
        if left <= max(TAIL, 2.0**-50 * k):
            break
    mass = np.concatenate(parts)
    held = np.flatnonzero(mass > 0.0)
    values, mass = lattice.values(sign * held), mass[held]
    if sign < 0:
        values, mass = values[::-1], mass[::-1]
    # What is left out is beyond the last k: at the low end for costs, at the high end for gains.
    cumulative = np.cumsum(mass) + (max(left, 0.0) if sign < 0 else 0.0)
    cumulative[-1] = 1.0
    return StepFunction(values, np.minimum(cumulative, 1.0)), max(left, 0.0)


def tails_by_recursion(chain: MarkovChain, lattice: RewardLattice, q: float) -> tuple[Floats, Floats]:
    """Quantile and CVaR of every state, each (n,).

    With S_k = P(K ≤ k): of gains hK the quantile is hk* with k* the first k with S_k ≥ q, and
    E[(k* − K)⁺] = Σ_{j<k*} S_j. Of costs −hK the worst are the largest K: k* is the first k with S_k > 1 − q,
    and E[(K − k*)⁺] = E[K] − k* + Σ_{j<k*} S_j.
    """
    sign = lattice.sign
    level = q - SLACK if sign > 0 else 1.0 - q + SLACK
    total, area, first = np.zeros(chain.n), np.zeros(chain.n), np.full(chain.n, -1, dtype=np.int64)
    for k, p in points(chain.branches, np.abs(lattice.multiples)):
        kernels.lattice_sums(p, k, level, total, area, first)
        if (first >= 0).all():
            break
    excess = area if sign > 0 else -chain._mean / lattice.h - first + area
    return lattice.values(sign * first), lattice.values(sign * first) - lattice.h * excess / q
