"""The lowest running return and the largest drawdown: exact on a lattice, enclosed otherwise.

With S_t = Σ_{s<t} r_s, the running return, S_0 = 0,

    lowest      min_t S_t
    drawdown    min_{s≤t} (S_t − S_s)

are at most 0: their worst are their smallest, as those of returns. Let rewards be ρ = hc with whole c.

*Lowest.* With hu what may still be lost, the chance that it is lost is

    H(x, u) = E[1 where u + c ≤ 0, else H(y, min(u + c, L)) | x],        H(end, u) = 0

on pairs of a state and what was earned (:class:`policyrisk.domains.RewardSoFar` is the same for simulators),
and P(lowest ≤ −hu | x) = H(x, u). The cap L matters to nobody where H(y, L) is 0 for all y.

*Drawdown.* The depth below the last peak goes from d to max(d − c, 0). Let z_L(y, d) be the chance that the
first depth of at least L is d, in y; so P(drawdown ≤ −hL) = Σ z_L. Depths are taken out one after the other,
those above being watched no more: with P_{de} the chances from depth d to depth e (n, n),

    P_{ef} ← P_{ef} + P_{ed} (I − P_{dd})⁻¹ P_{df}        z_f ← z_f + z_d (I − P_{dd})⁻¹ P_{df}

Nothing is subtracted, so that small chances are as exact as large ones.

*Other rewards.* Both numbers rise with every reward. So rewards rounded down to a lattice give a distribution
below the true one, and rounded up one above it. The lattice is made finer until the two are near enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, as_number
from policyrisk._core.text import number
from policyrisk.errors import InvalidInputError
from policyrisk.markov import _branch_kernels as kernels
from policyrisk.markov.branches import Branches, together
from policyrisk.markov.distribution import FINE, ChainDistribution, distribution
from policyrisk.markov.linear import Resolvent
from policyrisk.markov.reward_lattice import TAIL, RewardLattice, StepFunction, find_lattice

if TYPE_CHECKING:
    from policyrisk.markov.chain import MarkovChain

_PAIRS = 2_000_000  # branches of pairs (x, u), at most
_MOST = 2_000  # steps of an episode, at most, that are followed one by one
_WORK = 2e9  # products with branches, at most
_PASSES = 4  # over a matrix, as many products take
_ROOM = 1 << 25  # numbers that it may take
_ROUNDING = 2.0**-48  # by which a reward may miss a point of the lattice
_FINER = 10, 5, 2  # tenths of a lattice, and of ten times finer ones: amounts of money are multiples of these
_TRIES = 30  # lattices

Along = Literal["lowest", "drawdown"]


def along(chain: MarkovChain, of: Along, start: npt.ArrayLike, tolerance: float | None) -> ChainDistribution:
    """See :meth:`MarkovChain.lowest` and :meth:`MarkovChain.drawdown`."""
    chain.refuse_noise(f"the {of}")
    if chain.one_discount(f"the {of}") != 1.0:
        raise InvalidInputError(
            f"discount must be 1 for the {of}, got {chain.discount}; later rewards weigh less, so that what "
            "was earned does not tell how far it is to the line"
        )
    if tolerance is not None:
        as_number(tolerance, "tolerance", 0.0, open_low=True)
    zeta = chain.start_distribution(start)
    inside = chain._reachable(zeta)
    part, zeta = chain._part(inside), zeta[inside] / zeta.sum()
    rewards = part.branches.reward
    if rewards.max() <= 0.0:
        return distribution(part, zeta, tolerance)  # every step falls further
    if rewards.min() >= 0.0:
        never = StepFunction(np.zeros(1), np.ones(1))
        return _between(never, never)
    if (unit := part.unit) != 1.0:
        within = None if tolerance is None else tolerance / unit
        return along(part.in_units(unit), of, zeta, within).times(unit)
    lattice = find_lattice(rewards)
    exact = None if lattice is None else _found(part.branches, of, zeta, lattice)
    return _enclosed(part.branches, of, zeta, tolerance) if exact is None else _between(exact, exact)


def _enclosed(branches: Branches, of: Along, zeta: Floats, tolerance: float | None) -> ChainDistribution:
    """The bracket of the finest lattice that is needed, or that can be had."""
    rewards, found = branches.reward, None
    unit = 10.0 ** int(np.ceil(np.log10(np.abs(rewards).max())))
    for k in range(_TRIES):
        numerator, denominator = _FINER[k % 3], 10 ** (k // 3 + 1)
        exact = rewards / unit * denominator / numerator
        slack = _ROUNDING * np.abs(exact)
        sides: list[StepFunction] = []
        for rounded in (np.floor(exact + slack), np.ceil(exact - slack)):
            lattice = RewardLattice(rounded.astype(np.int64), numerator, denominator, unit)
            if (side := _found(branches, of, zeta, lattice)) is not None:
                sides.append(side)
        if len(sides) < 2:
            break
        found = _between(*sides)
        if found.error <= (FINE * found.std if tolerance is None else tolerance):
            return found
    if found is None:
        raise InvalidInputError(
            f"the {of} needs a chain of fewer states or shorter episodes, got {branches.n} states with "
            f"{rewards.size} branches; put states together, or simulate it: chain.sample(...)"
        )
    if tolerance is not None:
        raise InvalidInputError(
            f"tolerance must be at least {number(found.error)}, as near as the bounds can be brought, got "
            f"{number(tolerance)}; pass a larger one"
        )
    return found


def _between(lower: StepFunction, upper: StepFunction) -> ChainDistribution:
    """The record of two distributions that enclose one; its moments are those of the CDF halfway between."""
    values = np.concatenate([lower.values, upper.values])
    mass = 0.5 * np.concatenate([np.diff(each.cumulative, prepend=0.0) for each in (lower, upper)])
    mean = float(mass @ values)
    second, third, fourth = (float(mass @ (values - mean) ** k) for k in (2, 3, 4))
    skewness, kurtosis = (third / second**1.5, fourth / second**2) if second > 0.0 else (np.nan, np.nan)
    return ChainDistribution(lower, upper, mean, second, skewness, kurtosis, upper.mean - lower.mean)


def _found(branches: Branches, of: Along, zeta: Floats, lattice: RewardLattice) -> StepFunction | None:
    """The distribution on a lattice; None where that is too much work."""
    alike = together(replace(branches, reward=lattice.multiples.astype(np.float64)))[0]
    chances = (_lowest if of == "lowest" else _drawdown)(alike, zeta)
    if chances is None:
        return None
    kept = np.append(np.flatnonzero(chances > TAIL)[::-1] + 1, 0)
    return StepFunction(lattice.values(-kept), np.append(chances[kept[:-1] - 1], 1.0))


def _lowest(branches: Branches, zeta: Floats) -> Floats | None:
    """The chance from ζ0 (n,) that u is lost, for u = 1, 2, …"""
    steps = _steps(branches)
    L, most = max(-int(branches.reward.min()), 1), _WORK / steps if steps else _PAIRS
    while branches.row.size * L <= most:
        H = _lost(branches, L, steps)
        if H[:, -1].max() <= TAIL:
            return np.asarray(zeta @ H)
        L *= 2
    return None


def _lost(branches: Branches, L: int, steps: int) -> Floats:
    """H (n, L) for u = 1, …, L."""
    n, c, chance = branches.n, branches.reward.astype(np.int64), branches.probability
    at_once = np.zeros((n, L + 1))  # the chance that a single step loses so much
    np.add.at(at_once, (branches.row, np.clip(-c, 0, L)), chance)
    b = np.cumsum(at_once[:, :0:-1], axis=1)[:, ::-1]
    if steps:
        H = np.zeros((n, L))
        kernels.lost_within(branches.indptr, branches.successor, chance, c, b, steps, H)
        return H
    row, u = np.repeat(branches.row, L), np.tile(np.arange(1, L + 1), c.size)
    left = np.minimum(u + np.repeat(c, L), L)
    y = np.repeat(branches.successor, L)
    on = (left > 0) & (y < n)
    pairs = (row * L + u - 1)[on], (y * L + left - 1)[on]
    P = sp.csr_array(sp.coo_array((np.repeat(chance, L)[on], pairs), shape=(n * L, n * L)))
    return np.clip(Resolvent(P, 1.0).solve(b.ravel())[0], 0.0, 1.0).reshape(n, L)


def _steps(branches: Branches) -> int:
    """Steps after which all episodes have ended, but for a chance of ``TAIL``; 0 where they are many."""
    P, alive = branches.matrix(), np.ones(branches.n)
    for step in range(1, _MOST):
        alive = np.asarray(P @ alive)
        if alive.max() <= TAIL:
            return step
    return 0


def _drawdown(branches: Branches, zeta: Floats) -> Floats | None:
    """The chance from ζ0 (n,) that L is lost from a peak, for L = 1, 2, …"""
    chances = _by_depths(branches, zeta)
    return _one_by_one(branches, zeta) if chances is None else chances


def _by_depths(branches: Branches, zeta: Floats) -> Floats | None:
    n, c = branches.n, branches.reward.astype(np.int64)
    up, down = max(int(c.max()), 1), max(-int(c.min()), 1)
    each = float(up * n) * down * (n + 1)
    if each > _ROOM:
        return None
    # By e = −up, …, down depths on, to a state or (the last column) the end.
    P = np.zeros((up + down + 1, n, n + 1))
    np.add.at(P, (up - c, branches.row, branches.successor), branches.probability)
    z = np.zeros((down, n + 1))  # at the depths L, L + 1, …
    z[0, :n] = zeta
    more = np.zeros((up * n, down * (n + 1)))  # what the depths that were taken out add to P
    chances: list[float] = []
    while not chances or chances[-1] > TAIL:
        if (len(chances) + 1) * (n + _PASSES) * each > _WORK:
            return None
        rising = P[: up + 1] if chances else np.cumsum(P[: up + 1], axis=0)  # nothing is above the peak
        stay = rising[up] + more[:n, : n + 1]
        back = rising[:up][::-1, :, :n].copy().reshape(up * n, n)
        back[:-n] += more[n:, :n]
        ahead = np.moveaxis(P[up + 1 :], 0, 1).copy().reshape(n, -1)
        ahead[:, : -n - 1] += more[:n, n + 1 :]
        through = np.linalg.solve(np.eye(n) - stay[:, :n], ahead)
        z = np.append(z[1:], np.zeros((1, n + 1)), axis=0) + (z[0, :n] @ through).reshape(down, n + 1)
        chances.append(float(z.sum()))
        added = back @ through
        added[:-n, : -n - 1] += more[n:, n + 1 :]
        more = added
    return np.array(chances)


def _one_by_one(branches: Branches, zeta: Floats) -> Floats | None:
    """As H(x, L) with the cap L tells: a new peak leaves L to be lost and no more. For many states."""
    chances: list[float] = []
    steps, work, L = _steps(branches), 0, 0
    while not chances or chances[-1] > TAIL:
        L += 1
        work += branches.row.size * L * steps
        if work > _WORK or (not steps and branches.row.size * L > _PAIRS):
            return None
        chances.append(float(zeta @ _lost(branches, L, steps)[:, -1]))
    return np.array(chances)
