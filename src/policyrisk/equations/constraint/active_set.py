"""The direct solvers: Lemke's path, a constraint at a time, and policy improvement for bounds.

Lemke's path. Relax every constraint by p θ with a random p > 0. For large θ none binds and u = C⁻¹ d. As θ
falls to 0 the solution of the relaxed problem moves along straight pieces; where two meet, one constraint
joins or leaves those that bind (``_pivot_kernels.lemke``). On a monotone problem (the symmetric part of C
positive definite) the path can only end at θ = 0 or, where no w satisfies all constraints, in a ray whose
multipliers y ≥ 0 prove it: Hᵀy = 0 and gᵀy < 0 (Farkas). The last set of binding constraints is then solved
afresh with iterative refinement, so that the answer owes nothing to the pivots' rounding.

Bounds. For one-hot features every constraint is a bound u_j ≥ b_j, and C is an M-matrix. The problem is then
min(C u − d, u − b) = 0, which Howard's policy improvement solves: fix u = b on the active features, solve
C u = d on the others, make active those that fell below their bound and free those whose multiplier
(C u − d)_j is negative. For an M-matrix the iterates increase from the second on and no set comes back, so it
ends; the solution is unique, whatever the symmetric part of C is.
"""

from __future__ import annotations

import numpy as np

from policyrisk._core.arrays import Floats, Ints
from policyrisk.equations.constraint import _pivot_kernels as kernels
from policyrisk.equations.constraint.problem import Problem, infeasible
from policyrisk.errors import SingularSystemError, SolverError

_COVERINGS = 5  # random directions p to try before giving up
_REFINEMENTS = 2
_COMPILED_FROM = 1000  # entries of H: in plain Python a pivot takes 1 µs for each, compiling takes seconds


def solve(problem: Problem, tol: float) -> tuple[Floats, Floats, int]:
    """(u, μ) and the number of pivots."""
    H, g = problem.H, problem.g
    C_inverse: Floats = np.linalg.inv(problem.C).astype(np.float64, copy=False)
    condition = np.linalg.norm(problem.C, 1) * np.linalg.norm(C_inverse, 1)
    if condition * np.finfo(float).eps > 1:
        raise SingularSystemError(
            f"C must be invertible (Assumption 3), got a condition number of {condition:.1e} after "
            "scaling; leave out redundant features"
        )
    lemke = kernels.compiled_lemke if H.size >= _COMPILED_FROM else kernels.lemke
    q = g - H @ problem.unconstrained
    pivots = 0
    failures = []
    for seed in range(_COVERINGS):
        p = np.random.default_rng(seed).uniform(1.0, 2.0, g.size)
        try:
            status, steps, rows, values = lemke(H, C_inverse, q, p, 5 * sum(H.shape))
            pivots += steps
            if status == kernels.RAY and _proves_infeasible(H[rows], g[rows], values):
                conflict = np.sort(problem.rows[rows[values > 1e-9 * values.max()]])
                raise infeasible(conflict, "together they contradict each other")
            if status == kernels.SOLVED:
                u, mu = _polish(problem, C_inverse, rows)
                residual = problem.residual(u, mu)
                if residual <= tol:
                    return u, mu, pivots
                failures.append(f"residual {residual:.1e}")
            else:
                failures.append("ray" if status == kernels.RAY else f"{steps} pivots")
        except np.linalg.LinAlgError:
            failures.append("singular basis")
    raise SolverError(
        f"the active-set solver must reach a residual of tol={tol:g}, got {', '.join(failures)} in "
        f"{_COVERINGS} attempts; remove nearly dependent features, raise tol, or try "
        'solver="projection"'
    )


def _proves_infeasible(H: Floats, g: Floats, y: Floats) -> bool:
    """Whether y ≥ 0, Hᵀy = 0, gᵀy < 0 up to rounding."""
    total = float(np.abs(y).sum())
    rest = float(np.linalg.norm(y @ H))
    return bool(y.min() >= -1e-9 * total and rest <= 1e-9 * total and g @ y < -1e4 * rest)


def _polish(problem: Problem, C_inverse: Floats, rows: Ints) -> tuple[Floats, Floats]:
    """Solve C u + H_Aᵀμ = d, H_A u = g_A for A = ``rows``, leaving out rows whose μ is not positive."""
    while True:
        H_A = problem.H[rows]
        Y_A = C_inverse @ H_A.T
        K_inverse = np.linalg.inv(H_A @ Y_A)
        u = np.zeros_like(problem.d)
        mu_A = np.zeros(rows.size)
        for _ in range(1 + _REFINEMENTS):
            du = C_inverse @ (problem.d - problem.C @ u - mu_A @ H_A)
            dmu = K_inverse @ (H_A @ (u + du) - problem.g[rows])
            u += du - Y_A @ dmu
            mu_A += dmu
        if (mu_A > 0).all():
            mu = np.zeros_like(problem.g)
            mu[rows] = mu_A
            return u, mu
        rows = rows[mu_A > 0]


def are_bounds(problem: Problem) -> bool:
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


def solve_bounds(problem: Problem, tol: float) -> tuple[Floats, Floats, int]:
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
