"""The constrained problem in coordinates where every number is of order one.

With D = diag(gram)^(-1/2), n_i = ‖D h_i‖ and a unit υ, w = υ D u turns the problem (C, d, H, g) into one
of the same form, (D C D, D d / υ, h_i D / n_i, g_i / (n_i υ)), whose multipliers are n_i μ_i / υ. It no
longer depends on the units of features, rows and rewards; raw monomials up to 30³ are harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, Ints, is_sparse, name_some
from policyrisk.errors import InfeasibleConstraintError, SingularSystemError


@dataclass(frozen=True)
class ConstrainedSolution:
    """Weights that solve the constrained equations, and how well they do."""

    w: Floats  # (l,)
    multipliers: Floats  # (m,) μ ≥ 0, for the rows of H as given
    active: Ints  # (k,) rows with a positive multiplier, increasing
    iterations: int  # pivots, projections or policy improvements; 0 where no constraint is needed
    residual: float  # relative and scale-free; defined at Problem.residual
    solver: str  # "active-set", "projection" or "bounds"


@dataclass(frozen=True)
class Problem:
    """C u − d + Hᵀμ = 0, 0 ≤ μ ⊥ g − H u ≥ 0: equilibrated, without zero or repeated rows."""

    C: Floats  # (l, l)
    d: Floats  # (l,)
    H: Floats  # (k, l), rows of norm 1
    g: Floats  # (k,)
    gram: Floats  # (l, l), as given
    unconstrained: Floats  # (l,) C⁻¹ d
    potential: Floats  # (l,) C⁻¹ 1
    feature_scale: Floats  # (l,) υ D
    row_scale: Floats  # (k,) n_i / υ
    rows: Ints  # (k,) which of the given rows these are
    given_rows: int

    @np.errstate(over="ignore")  # of numbers near the end of float64
    def residual(self, u: Floats, mu: Floats) -> float:
        """How far u and μ ≥ 0 are from optimal: the largest of two kinds of relative (backward) error.

        ‖C u − d + Hᵀμ‖ / (‖C‖ ‖u‖ + ‖d‖) for the equation, and |g_i − h_i u| / (‖u‖ + |g_i|) for row i, or
        where μ_i = 0 only as far as the row is violated.
        """
        size = float(np.linalg.norm(u))
        error = np.linalg.norm(self.C @ u - self.d + mu @ self.H)
        error_size = np.linalg.norm(self.C) * size + np.linalg.norm(self.d)
        slack = self.g - self.H @ u
        miss = np.where(mu > 0, np.abs(slack), np.maximum(-slack, 0.0))
        row_size = size + np.abs(self.g)
        # 0 / 0 (nothing to solve, nothing missed) counts as solved.
        miss = np.divide(miss, row_size, out=np.zeros_like(miss), where=row_size > 0)
        return max(float(error / error_size) if error_size > 0 else 0.0, float(miss.max(initial=0.0)))

    def solution(self, u: Floats, mu: Floats, iterations: int, solver: str) -> ConstrainedSolution:
        """(u, μ) in the caller's coordinates."""
        multipliers = np.zeros(self.given_rows)
        multipliers[self.rows] = mu / self.row_scale
        return ConstrainedSolution(
            w=self.feature_scale * u,
            multipliers=multipliers,
            active=np.flatnonzero(multipliers > 0).astype(np.int64),
            iterations=iterations,
            residual=self.residual(u, mu),
            solver=solver,
        )


def equilibrate(C: Floats, d: Floats, H: Any, g: Floats, gram: Floats) -> Problem:
    """The problem in coordinates of order one."""
    D = 1.0 / np.sqrt(np.diag(gram))

    rows = _tightest_of_repeated(H, g)
    H_kept = H if rows.size == g.size else H[rows]
    H_dense = H_kept.toarray() if is_sparse(H_kept) else H_kept
    H_scaled = np.multiply(H_dense, D, order="C")
    norms = np.sqrt(np.einsum("ij,ij->i", H_scaled, H_scaled))
    if not norms.all():
        impossible = rows[(norms == 0) & (g[rows] < 0)]
        if impossible.size:  # a row of zeros asks 0 ≤ g
            raise infeasible(impossible, "all features are zero there")
        rows, H_scaled, norms = rows[norms > 0], H_scaled[norms > 0], norms[norms > 0]
    H_scaled /= norms[:, None]
    g_scaled = g[rows] / norms

    C_scaled = D[:, None] * C * D
    d_scaled = D * d
    try:
        both = np.linalg.solve(C_scaled, np.stack([d_scaled, np.ones(d.size)], axis=1))
        if not np.isfinite(both).all():
            raise np.linalg.LinAlgError("a solution beyond float64")
    except np.linalg.LinAlgError as error:
        raise SingularSystemError(
            "C must be invertible (Assumption 3), got a singular matrix; leave out redundant features"
        ) from error
    unconstrained, potential = both.T.astype(np.float64)
    demand = float((-g_scaled).max(initial=0.0))
    unit = max(float(np.abs(unconstrained).max(initial=0.0)), demand) or 1.0
    return Problem(
        C=C_scaled,
        d=d_scaled / unit,
        H=H_scaled,
        g=g_scaled / unit,
        gram=gram,
        unconstrained=unconstrained / unit,
        potential=potential,
        feature_scale=unit * D,
        row_scale=norms / unit,
        rows=rows,
        given_rows=g.size,
    )


def _tightest_of_repeated(H: Any, g: Floats) -> Ints:
    """Indices, increasing, of one row for each different row of H: the one with the smallest g.

    States that share their features give the same row. Candidates are found by sorting a random
    combination of the columns and then compared entry by entry.
    """
    key = H @ np.random.default_rng(0).uniform(1.0, 2.0, (H.shape[1],))
    order = np.argsort(key)
    near = np.flatnonzero(np.diff(key[order]) <= 1e-12 * np.abs(key[order[1:]]))
    differ = np.ones(g.size)  # entries in which a row differs from the one before it in this order
    unequal: Any = H[order[near]] != H[order[near + 1]]
    differ[near + 1] = np.asarray(unequal.sum(axis=1)).ravel()
    group = np.cumsum(differ > 0)
    by_tightness = np.lexsort((g[order], group))
    _, tightest = np.unique(group[by_tightness], return_index=True)
    kept: Ints = np.sort(order[by_tightness[tightest]])
    return kept


def infeasible(rows: Ints, why: str) -> InfeasibleConstraintError:
    """The error for an empty set {w : H w <= g}, naming the rows that empty it."""
    return InfeasibleConstraintError(
        "H and g must leave some w with H w <= g (Assumption 11), got none: rows "
        f"{name_some(rows)} cannot hold ({why}); add a feature that is positive at all states, such "
        "as a constant, or ask for non-negative variance at fewer states"
    )
