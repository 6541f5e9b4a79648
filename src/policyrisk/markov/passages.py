"""What happens along the way: the chance of a goal, the chain given that it is reached, the deepest falls.

With h = 1 on the goal and 0 on what is to be avoided, elsewhere h(x) = E[h(y) | x] (the smallest solution
that is not negative). Given success a branch of probability p from x to y has p h(y) / h(x).

With S_t = Σ_{s<t} r_s, the running return, S_0 = 0,

    lowest      min_t S_t
    drawdown    min_{s≤t} (S_t − S_s)

are at most 0: their worst are their smallest, as those of returns. Let rewards be ρ = hc with whole c, and hu
what may still be lost before the line is reached. The chance that it is lost is

    H(x, u) = E[1 where u + c ≤ 0, else H(y, min(u + c, L)) | x],        H(end, u) = 0

on pairs of a state and what was earned (:class:`policyrisk.domains.RewardSoFar` is the same for simulators).
A new peak leaves hL to be lost and no more: P(drawdown ≤ −hL | x) = H(x, L). Without the cap, which matters
to nobody where H(y, L) is 0 for all y, P(lowest ≤ −hu | x) = H(x, u) for all u at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, as_array, name_some
from policyrisk.errors import InvalidInputError
from policyrisk.markov.branches import Branches, closure, sorted_branches
from policyrisk.markov.distribution import ChainDistribution, distribution
from policyrisk.markov.linear import Resolvent
from policyrisk.markov.reward_lattice import TAIL, RewardLattice, StepFunction, find_lattice

if TYPE_CHECKING:
    from policyrisk.markov.chain import MarkovChain

_SURE = 1e-9  # how far below 1 the chance of a goal may be that is certain
_MOST = 2_000_000  # branches of pairs (x, u), at most

Along = Literal["lowest", "drawdown"]


def reach(chain: MarkovChain, goal: npt.ArrayLike, avoid: npt.ArrayLike) -> Floats:
    """See :meth:`MarkovChain.reach`."""
    n, branches = chain.n, chain.branches
    wanted, refused = as_states(goal, n, "goal"), as_states(avoid, n, "avoid")
    if (wanted & refused).any():
        raise InvalidInputError(
            f"avoid must not hold states of the goal, got {name_some(np.flatnonzero(wanted & refused))}; "
            "remove them from one of the two"
        )
    between = ~(wanted | refused)[:n]
    direct = branches.expect(wanted[branches.successor].astype(np.float64))
    inner = sp.csr_array(sp.diags_array(between.astype(np.float64)) @ chain.P)
    leads = closure(sp.csr_array(inner.T), between & (direct > 0.0)) & between
    h = wanted[:n].astype(np.float64)
    if leads.any():
        part = sp.csr_array(chain.P[leads][:, leads])
        h[leads] = np.clip(Resolvent(part, 1.0).solve(direct[leads])[0], 0.0, 1.0)
    return h


def given(chain: MarkovChain, goal: npt.ArrayLike) -> tuple[Branches, Bools]:
    """The branches given that the goal is reached, and the states (n,) from which it can be."""
    n, branches = chain.n, chain.branches
    wanted = as_states(goal, n, "goal")
    h = np.append(reach(chain, goal, ()), float(wanted[n]))
    after = closure(chain.P, wanted[:n])
    later = np.flatnonzero(after & (h[:n] < 1.0 - _SURE))
    if later.size:
        raise InvalidInputError(
            "goal must hold states that end the episode, but from it the chain goes on to states "
            f"{name_some(later)}, which may not come back; let the rows of P at the goal be 0"
        )
    row, y = branches.row, branches.successor
    able = h[:n] > 0.0
    ratio = np.where(wanted[:n][row], 1.0, h[y] / np.where(able, h[:n], 1.0)[row])
    kept = able[row] & (ratio > 0.0)
    unable = np.flatnonzero(~able)
    changed = sorted_branches(
        n,
        np.append(row[kept], unable),
        np.append(y[kept], np.full(unable.size, n)),
        np.append((branches.probability * ratio)[kept], np.ones(unable.size)),
        np.append(branches.reward[kept], np.zeros(unable.size)),
    )
    return changed, able


def as_states(value: npt.ArrayLike, n: int, name: str) -> Bools:
    """Which of n states and the end, (n + 1,), from one index, several, or a mask (n,)."""
    array = as_array(value, name, "states' indices")
    chosen = np.zeros(n + 1, dtype=np.bool_)
    if array.dtype.kind == "b" and array.shape == (n,):
        chosen[:n] = array
        return chosen
    index = array.ravel()
    if index.size and (index.dtype.kind not in "iu" or index.min() < 0 or index.max() > n):
        raise InvalidInputError(
            f"{name} must hold states from 0 to {n - 1}, {n} for the end, as ints, or be a mask of shape "
            f"({n},), got {name_some(index, 4)}; count states from 0"
        )
    chosen[index.astype(np.int64)] = True
    return chosen


def along(chain: MarkovChain, of: Along, start: npt.ArrayLike) -> ChainDistribution:
    """See :meth:`MarkovChain.lowest` and :meth:`MarkovChain.drawdown`."""
    lattice = _lattice(chain, of)
    zeta = chain.start_distribution(start)
    if lattice.sign < 0:
        return distribution(chain, start, None)  # every step falls further
    inside = chain._reachable(zeta)
    part, zeta = chain._part(inside), zeta[inside] / zeta.sum()
    multiples = lattice.multiples[inside[chain.branches.row]]
    if of == "drawdown":
        chances: list[float] = []
        while not chances or chances[-1] > TAIL:
            L = len(chances) + 1
            chances.append(float(zeta @ _lost(part, multiples, L)[:, -1]))
        return _of_chances(np.array(chances), lattice)
    L = 1
    while (H := _lost(part, multiples, L))[:, -1].max() > TAIL:
        L *= 2
    return _of_chances(zeta @ H, lattice)


def _lattice(chain: MarkovChain, of: Along) -> RewardLattice:
    chain.refuse_noise(f"the {of}")
    if chain.one_discount(f"the {of}") != 1.0:
        raise InvalidInputError(
            f"discount must be 1 for the {of}, got {chain.discount}; later rewards weigh less, so that what "
            "was earned does not tell how far it is to the line"
        )
    lattice = find_lattice(chain.branches.reward)
    if lattice is None:
        raise InvalidInputError(
            f"r must be multiples of one number for the {of}, got rewards that are not; round them all down "
            "to a lattice, and all up: it falls with every reward, so that it lies between the two"
        )
    return lattice


def _lost(chain: MarkovChain, multiples: npt.NDArray[np.int64], L: int) -> Floats:
    """H (n, L) for u = 1, …, L."""
    branches, n = chain.branches, chain.n
    if branches.row.size * L > _MOST:
        raise InvalidInputError(
            f"r must be few multiples of one number, got {branches.row.size} branches with {L} amounts that "
            f"may be lost, and {_MOST} pairs are the most; round the rewards to a coarser lattice"
        )
    u = np.arange(1, L + 1)
    left = np.minimum(u + multiples[:, None], L)  # (branches, L)
    pair = branches.row[:, None] * L + u - 1
    chance = np.broadcast_to(branches.probability[:, None], left.shape)
    b = np.bincount(pair[left <= 0], chance[left <= 0], n * L).astype(np.float64, copy=False)
    on = (left > 0) & (branches.successor < n)[:, None]
    after = (branches.successor[:, None] * L + left - 1)[on]
    P = sp.csr_array(sp.coo_array((chance[on], (pair[on], after)), shape=(n * L, n * L)))
    return np.clip(Resolvent(P, 1.0).solve(b)[0], 0.0, 1.0).reshape(n, L)


def _of_chances(chances: Floats, lattice: RewardLattice) -> ChainDistribution:
    """The distribution of a value that is at most −hu with chance u, for u = 1, 2, …"""
    kept = np.append(np.flatnonzero(chances > TAIL)[::-1] + 1, 0)
    steps = StepFunction(lattice.values(-kept), np.append(chances[kept[:-1] - 1], 1.0))
    mass = np.diff(steps.cumulative, prepend=0.0)
    mean = float(mass @ steps.values)
    second, third, fourth = (float(mass @ (steps.values - mean) ** k) for k in (2, 3, 4))
    skewness, kurtosis = (third / second**1.5, fourth / second**2) if second > 0.0 else (np.nan, np.nan)
    return ChainDistribution(steps, steps, mean, second, skewness, kurtosis, 0.0)
