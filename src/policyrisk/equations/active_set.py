"""The direct solvers: Lemke's path, a constraint at a time, and policy improvement for bounds.

Lemke's path. Relax every constraint by p θ with a random p > 0. For large θ none binds and u = C⁻¹ d. As θ
falls to 0 the solution of the relaxed problem moves along straight pieces; where two meet, one constraint
joins or leaves those that bind (:func:`lemke`). On a monotone problem (the symmetric part of C
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
from policyrisk.equations.problem import Problem, infeasible
from policyrisk.errors import SingularSystemError, SolverError

_COVERINGS = 5  # random directions p to try before giving up
_REFINEMENTS = 2
_PIVOTS_BETWEEN_REFRESHES = 50
SOLVED, RAY, STALLED = 0, 1, 2
# After equilibration values and rates are of order one; below these they are rounding.
_VALUE_NOISE = 1e-13
_RATE_NOISE = 1e-11


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
    q = g - H @ problem.unconstrained
    pivots = 0
    failures = []
    for seed in range(_COVERINGS):
        p = np.random.default_rng(seed).uniform(1.0, 2.0, g.size)
        try:
            status, steps, rows, values = lemke(H, C_inverse, q, p, 5 * sum(H.shape))
            pivots += steps
            if status == RAY and _proves_infeasible(H[rows], g[rows], values):
                conflict = np.sort(problem.rows[rows[values > 1e-9 * values.max()]])
                raise infeasible(conflict, "together they contradict each other")
            if status == SOLVED:
                u, mu = _polish(problem, C_inverse, rows)
                residual = problem.residual(u, mu)
                if residual <= tol:
                    return u, mu, pivots
                failures.append(f"residual {residual:.1e}")
            else:
                failures.append("ray" if status == RAY else f"{steps} pivots")
        except np.linalg.LinAlgError:
            failures.append("singular basis")
    raise SolverError(
        f"the active-set solver must reach a residual of tol={tol:g}, got {', '.join(failures)} in "
        f"{_COVERINGS} attempts; remove nearly dependent features, raise tol, or try "
        'solver="projection"'
    )


class _Path:
    """Where Lemke's path stands: R are the rows whose slack is held at zero, A ⊂ R those whose multiplier may
    be positive, and r the one row of R outside A.

    z = (θ, μ_A) solves B z = −q_R with the square matrix B = [p_R | K_RA], K = H C⁻¹ Hᵀ. An exchange of a row
    or a column changes B by rank one, so that its inverse is carried along in O(|A|²) a pivot.
    """

    def __init__(self, H: Floats, C_inverse: Floats, q: Floats, p: Floats) -> None:
        room = H.shape[1] + 2  # |R| is at most that
        self.H, self.C_inverse, self.q, self.p = H, C_inverse, q, p
        self.r = int(np.argmin(q / p))
        self.n, self.at = 1, 0  # |R|, and where in R r is
        self.R, self.A = np.full(room, self.r), np.zeros(room, dtype=np.int64)  # A[a] belongs to column a
        self.Y = np.zeros((room, H.shape[1]))  # row a is C⁻¹ h of A[a]; that of θ is 0
        self.inverse = np.zeros((room, room))  # of B
        self.inverse[0, 0] = 1.0 / p[self.r]
        self.z, self.s = np.zeros(room), np.zeros(len(q))
        self.refresh()

    def refresh(self) -> None:
        """Compute the inverse, z and the slacks s anew, so that rounding does not pile up."""
        n, held = self.n, self.R[: self.n]
        B = self.H[held] @ self.Y[:n].T
        B[:, 0] = self.p[held]
        self.inverse[:n, :n] = np.linalg.inv(B)
        self.z[:n] = -self.inverse[:n, :n] @ self.q[held]
        self.s = self.q + self.p * self.z[0] + self.H @ (self.z[1:n] @ self.Y[1:n])
        self.s[held] = 0.0

    def rates(self, y: Floats | None) -> tuple[Floats, Floats, float]:
        """The rates of z and s while μ_r grows (y = C⁻¹ h_r) or s_r does (None), and the terms' size."""
        n, held = self.n, self.R[: self.n]
        if y is None:
            y, dz = np.zeros(self.H.shape[1]), self.inverse[:n, self.at].copy()
        else:
            dz = -self.inverse[:n, :n] @ (self.H[held] @ y)
        # The rate of s can cancel to nothing where rows depend on each other: noise is of its terms' size.
        size = np.linalg.norm(y) + abs(dz[0]) + np.abs(dz) @ np.linalg.norm(self.Y[:n], axis=1)
        ds = self.H @ (dz @ self.Y[:n] + y) + self.p * dz[0]
        ds[held] = 0.0
        return dz, ds, float(size)

    def replace_row(self, i: int, dz: Floats) -> None:
        """The row of constraint i takes the place of r's in B."""
        e = self.combination(i)
        corner = e[self.at]
        e[self.at] -= 1.0
        self.inverse[: self.n, : self.n] -= np.outer(dz, e / corner)

    def grow(self, i: int, y: Floats, dz: Floats) -> None:
        """B gains the row of constraint i and the column of the multiplier of r, with y = C⁻¹ h_r."""
        n, inverse = self.n, self.inverse
        corner = self.H[i] @ y + self.row(i) @ dz
        e = self.combination(i) / corner
        inverse[:n, :n] -= np.outer(dz, e)
        inverse[n, :n], inverse[:n, n], inverse[n, n] = -e, dz / corner, 1.0 / corner
        self.at, self.n = n, n + 1

    def pivot(self, a: int, dz: Floats) -> None:
        """Column a of B gives way to the one that enters, whose row of the inverse then takes its place."""
        n = self.n
        e = self.inverse[a, :n] / dz[a]
        self.inverse[:n, :n] -= np.outer(dz, e)
        self.inverse[a, :n] = -e

    def shrink(self, a: int) -> None:
        """Row r and column a leave B (after ``pivot``); the last ones take their places."""
        last = self.n - 1
        for array in (self.inverse, self.A, self.Y, self.z):
            array[a] = array[last]
        self.inverse[:last, self.at] = self.inverse[:last, last]
        self.R[self.at] = self.R[last]
        self.n = last

    def row(self, i: int) -> Floats:
        """(p_i, K_iA)."""
        row: Floats = self.Y[: self.n] @ self.H[i]
        row[0] = self.p[i]
        return row

    def combination(self, i: int) -> Floats:
        """(p_i, K_iA) B⁻¹."""
        combined: Floats = self.row(i) @ self.inverse[: self.n, : self.n]
        return combined


@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # a path that breaks down is followed anew
def lemke(
    H: Floats, C_inverse: Floats, q: Floats, p: Floats, max_pivots: int
) -> tuple[int, int, Ints, Floats]:
    """Follow s = q + K μ + p θ, 0 ≤ μ ⊥ s ≥ 0, from the θ where μ = 0 solves it down to θ = 0.

    H is (m, l) with rows of norm 1, q and p are (m,), p > 0 and min q < 0. Returns a status, the
    number of pivots, the rows that may have a multiplier, and those multipliers (``SOLVED``) or
    their rates along the ray (``RAY``).
    """
    x, room = _Path(H, C_inverse, q, p), H.shape[1] + 2
    multiplier_enters = True  # of row r; else its slack does
    for pivots in range(1, max_pivots + 1):
        if pivots % _PIVOTS_BETWEEN_REFRESHES == 0:
            x.refresh()
        y = C_inverse @ H[x.r] if multiplier_enters else None
        dz, ds, size = x.rates(y)
        a, i = _leaving(x.z[: x.n], dz, x.s, ds, size)
        on_a_ray = a < 0 and i < 0
        if not on_a_ray:
            step = max(x.s[i], 0.0) / -ds[i] if i >= 0 else max(x.z[a], 0.0) / -dz[a]
            x.s += step * ds
            x.z[: x.n] += step * dz
        if on_a_ray or a == 0:
            rows, values = x.A[1 : x.n], dz[1:] if on_a_ray else x.z[1 : x.n]
            if multiplier_enters:
                rows, values = np.append(rows, x.r), np.append(values, 1.0 if on_a_ray else step)
            return RAY if on_a_ray else SOLVED, pivots, rows, values
        leaver = int(x.A[a])
        if i < 0:
            x.pivot(a, dz)
        if y is not None:
            if i >= 0:
                if x.n == room:
                    break
                a = x.n
                x.grow(i, y, dz)
            x.A[a], x.Y[a], x.z[a] = x.r, y, step
        else:
            x.s[x.r] = step
            if i >= 0:
                x.replace_row(i, dz)
            else:
                x.shrink(a)
        multiplier_enters = i >= 0
        if multiplier_enters:
            x.r = x.R[x.at] = i
            x.s[i] = 0.0
        else:
            x.r, x.at = leaver, int(np.flatnonzero(x.R[: x.n] == leaver)[0])
    return STALLED, max_pivots, x.A[1 : x.n], x.z[1 : x.n]


def _leaving(z: Floats, dz: Floats, s: Floats, ds: Floats, rate_size: float) -> tuple[int, int]:
    """Which variable reaches zero first: (a, -1) for z[a], (-1, i) for s[i], (-1, -1) for none.

    In two passes (Harris): among those that block within rounding of the first, the one with the
    largest rate leaves, which keeps B well conditioned. θ is preferred: there the path ends.
    """
    values, falls = np.concatenate([z, s]), -np.concatenate([dz, ds])
    noise = np.repeat([np.abs(dz).max(), rate_size], [len(z), len(s)])
    blocking = np.flatnonzero(falls > _RATE_NOISE * noise)
    if not blocking.size:
        return -1, -1
    falls, values = falls[blocking], values[blocking]
    first = values <= falls * ((values + _VALUE_NOISE) / falls).min()
    if blocking[0] == 0 and first[0]:
        return 0, -1
    k = int(blocking[np.argmax(np.where(first, falls, 0.0))])
    return (k, -1) if k < len(z) else (-1, k - len(z))


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
