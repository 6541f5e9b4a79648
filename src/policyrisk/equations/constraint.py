"""Non-negative variance as a constraint (sec. 5 of the paper).

With H's rows −φ_M(x_i)ᵀ and g_i = −(φ_J(x_i)ᵀ w_J)² (0 for direct variance), W = {w : H w ≤ g} are the
weights that give no state x_i a negative variance. The constrained equations ask for w in W with

    (C w − d)ᵀ (w' − w) ≥ 0  for all w' in W,

or, with a multiplier μ_i for every row,

    C w − d + Hᵀμ = 0,  0 ≤ μ ⊥ g − H w ≥ 0.

| where | solver |
|---|---|
| ``active_set.solve`` | direct: one constraint joins or leaves at a time, answer to rounding |
| ``active_set.solve_bounds`` | one-hot features: a handful of linear solves |
| ``solve_by_projection`` | the paper's iteration, each step a quadratic program |
| ``problem`` | the problem in coordinates of order one, and the residual that all three stop on |

In the paper's iteration (Lemma 12), w ← Π_Ξ[w − η Ξ⁻¹(C w − d)], Π_Ξ is a quadratic program.

Ξ and η need no tuning. With S and K the symmetric and skew parts of C and κ = ‖S^(-1/2) K S^(-1/2)‖, no
choice of Ξ and η makes the map before projection contract faster than κ / √(1 + κ²), and

    Ξ = Cᵀ S⁻¹ C,  η = 1

attains it: then Ξ^(1/2) C⁻¹ Ξ^(1/2) = I + a skew matrix. It is defined, and contracts, for λ = 0 as
well, where gram (the paper's suggestion) has a modulus of nearly 1. Without a positive definite S
nothing is assured, and gram is used.

In coordinates v = R u with Ξ = RᵀR the projection is Euclidean, min ½‖v − target‖² s.t. F v ≤ b; DAQP
solves it, starting from the constraints that were active the time before.
"""

from __future__ import annotations

import warnings
from contextlib import suppress

import daqp
import numpy as np
import numpy.typing as npt
import scipy.linalg as sl

from policyrisk._core.arrays import Floats, is_sparse
from policyrisk.equations import active_set
from policyrisk.equations.problem import ConstrainedSolution, Problem, equilibrate
from policyrisk.errors import InvalidInputError, NotUniqueWarning, SolverError

__all__ = ["ConstrainedSolution", "solve_constrained"]

_MAX_ITERATIONS = 100_000
_QP_TOLERANCE = 1e-13
_QP_TOLERANCE_IF_THIN = 1e-11  # where W is not empty but has hardly any interior
_OPTIMAL, _INFEASIBLE = 1, -1  # DAQP's exit flags


def solve_constrained(
    C: npt.ArrayLike,
    d: npt.ArrayLike,
    H: object,
    g: npt.ArrayLike,
    *,
    gram: npt.ArrayLike,
    solver: str = "active-set",
    tol: float = 1e-12,
) -> ConstrainedSolution:
    """Solve C w − d + Hᵀμ = 0, 0 ≤ μ ⊥ g − H w ≥ 0.

    C and gram = Φ_MᵀQΦ_M are (l, l), d is (l,), H is (m, l), dense or scipy.sparse, and g is (m,).
    ``solver`` is "active-set" (direct; for one-hot features it takes the quicker "bounds") or
    "projection" (the paper's iteration). Both stop at a residual (``Problem.residual``) of ``tol``.

    Where w = C⁻¹d satisfies the constraint it is the answer. Where the symmetric part of C is not
    positive definite, as many cut-off episodes can make it, there may be several answers: one is
    sought, with a NotUniqueWarning. An empty W (Assumption 11) is an InfeasibleConstraintError.

    >>> result = solve_constrained(
    ...     C=[[2.0, 1.0], [-1.0, 2.0]], d=[1.0, -3.0], H=[[0.0, -1.0]], g=[0.0],
    ...     gram=[[1.0, 0.0], [0.0, 1.0]],
    ... )
    >>> result.w.round(6), result.multipliers.round(6), result.active
    (array([0.5, 0. ]), array([2.5]), array([0]))
    """
    C, d, g, gram = (np.asarray(each, dtype=np.float64) for each in (C, d, g, gram))
    problem = equilibrate(C, d, H if is_sparse(H) else np.asarray(H, dtype=np.float64), g, gram)
    idle = np.zeros_like(problem.g)
    if problem.residual(problem.unconstrained, idle) <= tol:
        return problem.solution(problem.unconstrained, idle, 0, solver)
    if solver == "active-set" and active_set.are_bounds(problem):
        return problem.solution(*active_set.solve_bounds(problem, tol), "bounds")

    _warn_unless_monotone(problem.C)
    solve = solve_by_projection if solver == "projection" else active_set.solve
    return problem.solution(*solve(problem, tol), solver)


def _warn_unless_monotone(C: Floats) -> None:
    S = (C + C.T) / 2
    try:
        np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        warnings.warn(
            "the symmetric part of C should be positive definite, got an eigenvalue of "
            f"{np.linalg.eigvalsh(S)[0]:.1e} (after scaling), as many cut-off episodes can make it; "
            "the constrained equations may have more than one solution: let more episodes run to "
            "their end, or drop the constraint",
            NotUniqueWarning,
            stacklevel=3,
        )


def solve_by_projection(problem: Problem, tol: float) -> tuple[Floats, Floats, int]:
    """(u, μ) and the number of projections."""
    S = (problem.C + problem.C.T) / 2
    try:
        root = np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        return iterate(problem, gram_factor(problem), tol)
    R: Floats = sl.qr(sl.solve_triangular(root, problem.C, lower=True))[1].astype(np.float64, copy=False)
    return iterate(problem, R, tol)


def gram_factor(problem: Problem) -> Floats:
    """R with RᵀR = gram, in the problem's coordinates."""
    D = 1.0 / np.sqrt(np.diag(problem.gram))
    gram = D[:, None] * problem.gram * D
    try:
        factor = np.linalg.cholesky(gram).T.astype(np.float64, copy=False)
    except np.linalg.LinAlgError as error:
        raise InvalidInputError(
            "gram must be positive definite, got "
            f"{np.linalg.eigvalsh(gram)[0]:.1e} as its smallest eigenvalue (after scaling); "
            "leave out redundant features"
        ) from error
    return factor


def iterate(problem: Problem, R: Floats, tol: float) -> tuple[Floats, Floats, int]:
    """(u, μ) and the number of projections, with Ξ = RᵀR and η = 1."""
    R_inverse = sl.solve_triangular(R, np.eye(len(R)))
    v = R @ problem.unconstrained
    unit = float(np.abs(v).max()) or 1.0
    v /= unit
    T = R_inverse.T @ problem.C @ R_inverse
    t = R_inverse.T @ problem.d / unit
    F = np.ascontiguousarray(problem.H @ R_inverse)
    norms = np.linalg.norm(F, axis=1)
    F /= norms[:, None]
    b = problem.g / (norms * unit)

    program = _program(v, F, b, _QP_TOLERANCE)
    size = float(np.linalg.norm(t)) or 1.0
    residual = np.inf
    for iteration in range(1, _MAX_ITERATIONS + 1):
        target = v - (T @ v - t)
        program.update(f=-target)
        projected, _, flag, info = program.solve()
        if flag == _INFEASIBLE:
            with suppress(SolverError):
                active_set.solve(problem, tol)  # names the rows that contradict each other
            program = _program(target, F, b, _QP_TOLERANCE_IF_THIN)
            projected, _, flag, info = program.solve()
        if flag != _OPTIMAL:
            raise SolverError(
                f"the projection must be solvable, got DAQP's exit flag {flag} in iteration "
                f'{iteration}; use solver="active-set"'
            )
        step = projected - v
        v = projected.copy()
        # C u − d + Hᵀμ with the projection's multipliers, in these coordinates.
        if np.linalg.norm(T @ step - step) <= tol * size:
            u = R_inverse @ v * unit
            mu = np.maximum(info["lam"], 0.0) * unit / norms
            residual = problem.residual(u, mu)
            if residual <= tol:
                return u, mu, iteration
    raise SolverError(
        f"the projection solver must reach a residual of tol={tol:g}, got {residual:.1e} after "
        f'{_MAX_ITERATIONS} iterations; use solver="active-set" or raise tol'
    )


def _program(target: Floats, F: Floats, b: Floats, tolerance: float) -> daqp.Model:
    """min ½‖v − target‖² s.t. F v ≤ b."""
    program = daqp.Model()
    low = np.full(b.size, -1e30)  # DAQP's infinity
    program.setup(np.eye(target.size), -target, F, b, low, np.zeros(b.size, np.int32))
    program.settings = {"primal_tol": tolerance, "dual_tol": tolerance}
    return program
