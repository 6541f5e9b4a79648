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
| ``projection.solve`` | the paper's iteration, each step a quadratic program |
| ``problem`` | the problem in coordinates of order one, and the residual that all three stop on |
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, is_sparse
from policyrisk.equations.constraint import active_set, projection
from policyrisk.equations.constraint.problem import ConstrainedSolution, equilibrate
from policyrisk.errors import NotUniqueWarning

__all__ = ["ConstrainedSolution", "solve_constrained"]


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
    solve = projection.solve if solver == "projection" else active_set.solve
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
