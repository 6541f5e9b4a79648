"""The distribution function of the reward to go from every state at once, on thresholds.

For branches of one sign on a lattice, with discount 1, it is exact: the recursion of
:mod:`policyrisk.markov.reward_lattice`, the same work for every chain with these branches, whatever their
probabilities. Elsewhere F is known on an even grid of width h that holds 0,

    F(z|x) = Σ_branches p F((z − ρ)/γ | y),       F(z|end) = 1{z ≥ 0},

drawn straight between two points of the grid, which keeps all means; a step adds at most h²/4 to the
variance. The end's F rises from −h to h, so that its mean is 0 as well; where all returns are on the grid, it
is a step, and nothing is rounded. The equations are solved by sweeps over the states, until what is still
missing is below a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from policyrisk._core.arrays import Floats, Ints
from policyrisk.errors import SolverError
from policyrisk.markov import _branch_kernels as kernels
from policyrisk.markov.branches import Branches
from policyrisk.markov.reward_lattice import RewardLattice, find_lattice, points

if TYPE_CHECKING:
    from policyrisk.markov.chain import MarkovChain

LEFT = 1e-6  # probability beyond the last threshold
_LONGEST = 100_000  # points of a lattice that are looked at
_SPAN = 12.0  # std to both sides of the mean, that a grid goes
_SWEEPS = 20_000
_WORK = 2e10  # products that are spent on an exact recursion


@dataclass(frozen=True, eq=False)
class LatticeCurves:
    """F at some points of a lattice, exactly."""

    lattice: RewardLattice
    at: Ints  # (m,): costs or gains in multiples of h, falling for costs, so that the returns rise
    every: bool  # whether they are all points up to the last one

    @classmethod
    def of(cls, chain: MarkovChain, most: int, chains: int) -> LatticeCurves | None:
        """At most ``most`` thresholds; None where rewards have no such lattice, or it is too much work."""
        lattice = find_lattice(chain.branches.reward) if np.ndim(chain.discount) == 0 else None
        if lattice is None or not lattice.sign or chain.discount != 1.0:
            return None
        reach = np.abs(chain._mean) + _SPAN * np.sqrt(chain._variance)
        longest = float(reach[chain.known].max(initial=0.0)) / lattice.h
        if longest > _LONGEST or longest * chain.branches.reward.size * chains > _WORK:
            return None
        below, total = [], np.zeros(chain.n)
        for _, p in points(chain.branches, np.abs(lattice.multiples)):
            running = total + np.cumsum(p, axis=0)
            total = running[-1].copy()
            below.append(running[:, chain.known])
            if total[chain.known].min() >= 1.0 - LEFT:
                break
        S = np.concatenate(below)
        last = int(np.argmax(S.min(axis=1) >= 1.0 - LEFT))
        at = np.arange(last + 1)
        if last >= most:  # as many as there are of a normal distribution's levels, to the same far tails
            levels = ndtr(np.linspace(-4.8, 4.8, most - 1))
            at = np.unique(np.append(np.searchsorted(S[:last].mean(axis=1), levels).clip(0, last), [0, last]))
        every = at.size == last + 1
        return cls(lattice, at if lattice.sign > 0 else at[::-1].copy(), every)

    @property
    def theta(self) -> Floats:
        """The thresholds (m,), in returns."""
        return self.lattice.values(self.lattice.sign * self.at)

    def solve(self, branches: Branches) -> Floats:
        """F at the thresholds from every state, (n, m)."""
        gains = self.lattice.sign > 0
        at = self.at if gains else self.at - 1  # P(−K ≤ −k) = 1 − P(K ≤ k − 1)
        F, total, last = np.zeros((branches.n, at.size)), np.zeros(branches.n), int(at.max())
        for k, p in points(branches, np.abs(self.lattice.multiples)):
            here = np.flatnonzero((at >= k) & (at < k + len(p)))
            running = total + np.cumsum(p, axis=0)
            F[:, here] = running[at[here] - k].T
            total = running[-1].copy()
            if k + len(p) > last:
                break
        return np.clip(F if gains else 1.0 - F, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class GridCurves:
    """F on an even grid, nearly."""

    first: int  # θ_i = (first + i) h
    size: int
    h: float
    discount: float
    every: bool  # whether all returns are on the grid

    @classmethod
    def of(cls, chain: MarkovChain, most: int) -> GridCurves:
        """A grid of at most ``most`` points for all states with an answer."""
        J, std, reward = chain._mean, np.sqrt(chain._variance), chain.branches.reward
        gamma = chain.one_discount("the distribution of the return")
        low, high = (J - _SPAN * std)[chain.known].min(), (J + _SPAN * std)[chain.known].max()
        longest = 1.0 / (1.0 - gamma) if gamma < 1.0 else np.inf
        least, largest = float(reward.min()), float(reward.max())
        low = max(low, least if least >= 0.0 else least * longest)
        high = min(high, largest if largest <= 0.0 else largest * longest)
        h = max(high - low, 1e-12 * max(abs(low), abs(high), 1e-300)) / (most - 3)
        lattice = find_lattice(reward) if gamma == 1.0 else None
        every = lattice is not None and lattice.h >= h
        if lattice is not None and every:
            h = lattice.h
        first = int(np.floor(low / h + 1e-9)) - 1
        return cls(first, int(np.ceil(high / h - 1e-9)) - first + 2, h, gamma, every)

    @property
    def theta(self) -> Floats:
        """The thresholds (m,)."""
        return np.asarray(self.h * np.arange(self.first, self.first + self.size))

    def normal(self, J: Floats, V: Floats) -> Floats:
        """Normal distributions (n, m) to begin with."""
        std = np.sqrt(np.maximum(V, self.h * self.h / 12.0))
        return np.asarray(ndtr((self.theta + 0.5 * self.h * self.every - J[:, None]) / std[:, None]))

    def solve(self, branches: Branches, F: Floats, tolerance: float) -> Floats:
        """F at the thresholds (n, m), from a first guess which it replaces."""
        # Where a branch looks in the grid of its successor, (z_0 − ρ)/γ, and at the end with the grid's 0.
        ends = branches.successor == branches.n
        stride = np.where(ends, 1.0, 1.0 / self.discount)
        begin = (self.first - branches.reward / self.h) * stride - np.where(ends, 0.0, self.first)
        nearest = np.rint(begin)
        begin = np.where(np.abs(begin - nearest) < 1e-9, nearest, begin)
        table = branches.indptr, branches.successor, branches.probability, begin
        last, backwards, slope = np.inf, False, 1.0 if self.every else 0.5
        for _ in range(_SWEEPS):
            change = kernels.sweep(*table, 1.0 / self.discount, F, backwards, slope)
            rate = min(change / last, 1.0) if last < np.inf else 1.0
            if change == 0.0 or (rate < 1.0 and change * rate / (1.0 - rate) <= tolerance):
                return F
            last, backwards = change, not backwards
        raise SolverError(
            f"the distribution of the return is not found in {_SWEEPS:,} sweeps over the states; check that "
            "every state reaches the end within a number of steps that can be counted, or use a discount "
            "below 1"
        )
