"""The chance of reaching a goal, and the chain given that it is reached.

With h = 1 on the goal and 0 on what is to be avoided, elsewhere h(x) = E[h(y) | x] (the smallest solution
that is not negative). Given success a branch of probability p from x to y has p h(y) / h(x).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, as_array, name_some
from policyrisk.errors import InvalidInputError
from policyrisk.markov.branches import Branches, closure, sorted_branches
from policyrisk.markov.linear import Resolvent

if TYPE_CHECKING:
    from policyrisk.markov.chain import MarkovChain

_SURE = 1e-9  # how far below 1 the chance of a goal may be that is certain


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
