"""The fast path for one-hot features: every constraint is a bound u_j ≥ b_j, and C is an M-matrix.

The problem is then min(C u − d, u − b) = 0, which Howard's policy improvement solves: fix u = b on the
active features, solve C u = d on the others, make active those that fell below their bound and free
those whose multiplier (C u − d)_j is negative. For an M-matrix the iterates increase from the second
on and no set comes back, so it ends; the solution is unique, whatever the symmetric part of C is.
"""

from __future__ import annotations

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk.equations.constraint.problem import Problem
from policyrisk.errors import SolverError


def apply(problem: Problem) -> bool:
    """Whether all constraints are lower bounds and C is an M-matrix.

    A matrix without positive off-diagonal entries is one exactly where C v = 1 has a positive v.
    """
    C, H = problem.C, problem.H
    if np.count_nonzero(H[0]) != 1 or (np.count_nonzero(H, axis=1) != 1).any() or H.max() > 0:
        return False
    diagonal = np.diag(C)
    # Sums of traces leave rounding of either sign where an entry is zero.
    rounding = 1e3 * np.finfo(float).eps * diagonal.max()
    signs = (diagonal > 0).all() and (C - np.diag(diagonal)).max() <= rounding
    return bool(signs and (problem.potential > 0).all())


def solve(problem: Problem, tol: float) -> tuple[Floats, Floats, int]:
    """(u, μ) and the number of policy improvements."""
    C, d = problem.C, problem.d
    feature = problem.H.argmin(axis=1)  # rows are −e_j
    b = np.full(d.size, -np.inf)
    np.maximum.at(b, feature, -problem.g)
    binding = -problem.g == b[feature]
    active = problem.unconstrained < b
    for iteration in range(1, d.size + 2):
        free = ~active
        u = np.where(active, b, 0.0)
        u[free] = np.linalg.solve(C[np.ix_(free, free)], (d - C @ u)[free])
        excess = np.where(active, C @ u - d, 0.0)
        mu = np.where(binding, np.maximum(excess, 0.0)[feature], 0.0)
        residual = problem.residual(u, mu)
        if residual <= tol:
            return u, mu, iteration
        active = np.where(active, excess > 0, u < b)
    raise SolverError(
        f"the bounds solver must reach a residual of tol={tol:g}, got {residual:.1e}; raise tol, or "
        "leave out features that were hardly ever visited"
    )
