"""One square system of a projected equation, solved many times: dense, sparse, or a table of actions.

The matrix A = Σ z_t (φ(x_t) − γφ(x_{t+1}))ᵀ (or its expectation) comes with the Gram matrix
G = Σ φ(x_t) φ(x_t)ᵀ of the same features, and that tells apart what a bare matrix cannot:

- a feature that was never active has no equation (Assumption 4) and is left out;
- a direction n with G n = 0 changes no estimate at any visited state: the features are redundant, as
  several tilings always are. Then A n = 0 and nᵀA = 0 alike, and right-hand sides are orthogonal to n;
- of states in single precision, a direction with nᵀGn of the order of ε², ε being that precision, is
  redundant as well where A would be singular otherwise: (cos, sin) in float32 has cos² + sin² = 1 to 1e-7
  and no better. It is left out, as if there were a feature fewer;
- what is singular beyond that (Assumption 3) is an error, since the answer would not be unique.

Everything is done on A scaled by S = diag(G)^(−1/2) on both sides, so that a feature's unit of
measurement does not matter.

:class:`DenseSystem` takes redundant directions out and returns the weights of minimum norm.
:class:`SparseSystem`, for features by the ten thousand, solves S A S u = S b, w = S u by GMRES from u = 0
with long restarts. Neither A nor its factors are copied; the Krylov vectors take 8 · visited · RESTART bytes.
Of a singular but consistent system GMRES finds one solution, not that of minimum norm, and nothing counts the
redundant directions. What it cannot see: a cut-off episode that ends where each feature was visited, but
never in that combination, may leave a direction undetermined. The dense solve refuses that, this one returns
one of the solutions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg as sla
import scipy.sparse as sp
import scipy.sparse.linalg as ssl

from policyrisk._core.arrays import Floats, Ints, Matrix, name_some
from policyrisk.errors import SingularSystemError, SolverError, UnvisitedError

# The 1-norm condition number past which double precision leaves fewer than three digits.
CONDITION_LIMIT = 1e13
# What counts as zero beside 1 in A where exact arithmetic would give zero.
UNSEEN = 1e-12
# What G may see of redundant directions, of its largest eigenvalue and per feature: first the rounding of its
# own sums, then the squared rounding of states in single precision, which features may enlarge.
TRACES_OF_ROUNDING = (
    float(np.finfo(np.float64).eps),
    *(factor * float(np.finfo(np.float32).eps) ** 2 for factor in (1.0, 10.0, 100.0)),
)
# ‖S(b − A w)‖ / ‖S b‖: what is aimed at, and what is still accepted where that would take too long. Estimates
# have come out a few times to some hundred times less exact, beside their own spread.
GOAL, ACCEPTED = 1e-8, 1e-5
RESTART, CYCLES = 300, 5  # Krylov vectors kept at a time, and how often GMRES begins anew
# A cycle that leaves more than SLOW of an accepted residual, or more than STUCK of any, was the last one.
SLOW, STUCK = 0.1, 0.9


class DenseSystem:
    """A reduced to visited and independent directions, with its LU factors.

    ``kept`` are the visited features, ``rank`` the number of independent directions among them. With w = B t
    for the weights t that matter, ``reduced`` is BᵀAB, and ``condition`` its 1-norm condition number.
    """

    kept: Ints
    rank: int
    reduced: Floats  # (rank, rank)
    condition: float
    residual = 0.0  # that of an iterative solve: none here

    def __init__(
        self,
        A: Floats,
        gram: Floats,
        visits: npt.NDArray[Any],
        ridge: float,
        name: str,
        single: bool = False,  # whether the states are known in single precision alone
    ) -> None:
        self.name, self.size = name, len(A)
        self.kept, self._scale = visited_features(A, gram, visits, name)
        kept = np.ix_(self.kept, self.kept)
        scaled = (A[kept] + ridge * np.eye(self.kept.size)) * np.outer(self._scale, self._scale)
        self._basis: Floats | None = None  # columns span the directions that matter, in scaled weights
        self._rounding = 0.0  # of right-hand sides, along the directions that were taken out
        self._null: Floats | None = None  # orthonormal, in weights: what the minimum norm projects out
        self.rank = self.kept.size
        self._factor(scaled)
        if self.condition > CONDITION_LIMIT and ridge == 0.0:
            traces = TRACES_OF_ROUNDING if single else TRACES_OF_ROUNDING[:1]
            self._reduce(scaled, gram[kept] * np.outer(self._scale, self._scale), traces)
        if self.condition > CONDITION_LIMIT:
            rank = np.linalg.matrix_rank(self.reduced, rtol=1 / CONDITION_LIMIT)
            raise SingularSystemError(
                f"{name} is singular or nearly so: numerical rank {rank} of {self.size} features, condition "
                f"number {self.condition:.1e} (Assumption 3: independent features). Use fewer or better "
                "conditioned features (orthogonal ones, or a lower degree), more episodes that terminate, or "
                "a small ridge"
            )

    @property
    def redundant(self) -> int:
        """How many directions of the visited features change no estimate."""
        return self.kept.size - self.rank

    def solve(self, rhs: Floats) -> Floats:
        """Minimum-norm w with A w = rhs, of rhs's shape; 0 at unvisited features.

        With one step of iterative refinement. An inconsistent right-hand side is an error.
        """
        out = np.zeros(rhs.shape)
        out[self.kept] = self.solve_kept(rhs[self.kept], refine=True)
        return out

    def solve_kept(self, y: Floats, *, refine: bool = False) -> Floats:
        """As solve, between right-hand sides and weights of the visited features alone, (kept,) or (kept, n).

        y is used up, and where it is stored column by column, the answer takes its place. Refinement takes
        twice as long as all the rest: error bars do without, and without an error for what is left of the
        single episodes along directions that the sum of them does not see.
        """
        y *= self._scale if y.ndim == 1 else self._scale[:, None]
        if self._basis is not None:
            outside = y - self._basis @ (self._basis.T @ y) if refine else np.zeros(1)
            if np.linalg.norm(outside) > self._rounding * np.linalg.norm(y):
                raise SingularSystemError(
                    f"{self.name} has numerical rank {self.rank} of {self.size} features and no solution: "
                    f"the right-hand side lies outside its range by {np.linalg.norm(outside):.1e} "
                    "(Assumption 3: independent features). Use fewer or better scaled features, or a ridge"
                )
            y = self._basis.T @ y
        u = self._solve_reduced(y.copy() if refine else y)
        if refine:
            u += self._solve_reduced(y - self.reduced @ u)
        return self._minimum_norm(u)

    def project(self, rhs: Floats) -> Floats:
        """A right-hand side (size,) without its part outside A's range, which redundant features leave."""
        out = np.zeros(self.size)
        y = rhs[self.kept] * self._scale
        out[self.kept] = (y if self._basis is None else self._basis @ (self._basis.T @ y)) / self._scale
        return out

    def restrict(self, rows: Matrix) -> Matrix:
        """rows · B, of shape (n, rank); sparse rows stay sparse where no feature is redundant."""
        kept = rows[:, self.kept]
        scaled = sp.csr_array(kept.multiply(self._scale)) if sp.issparse(kept) else kept * self._scale
        return scaled if self._basis is None else np.asarray(scaled @ self._basis)

    def lift(self, t: Floats) -> Floats:
        """The minimum-norm weights w (size,) that B t stands for."""
        out = np.zeros(self.size)
        out[self.kept] = self._minimum_norm(t.copy())
        return out

    def _minimum_norm(self, t: Floats) -> Floats:
        """B t without its part that changes no estimate; in t's place where nothing is redundant."""
        w = t if self._basis is None else self._basis @ t
        w *= self._scale if w.ndim == 1 else self._scale[:, None]
        if self._null is not None:
            w -= self._null @ (self._null.T @ w)
        return w

    def _factor(self, matrix: Floats) -> None:
        self.reduced, self.condition = matrix, 1.0
        if len(matrix):
            self._lu, self.condition = factored(matrix)

    def _solve_reduced(self, y: Floats) -> Floats:
        """The solution, in y's place where that is possible."""
        return sla.lu_solve(self._lu, y, overwrite_b=True, check_finite=False) if len(y) else y

    def _reduce(self, scaled: Floats, gram: Floats, traces: tuple[float, ...]) -> None:
        """Take out the directions that G does not see, if A does not see them either; as few as will do.

        G squares the features, so that it cannot tell 1e-9 from 0; A is linear in them and can.
        """
        eigenvalues, vectors = np.linalg.eigh(gram)
        for trace in traces:
            share = trace * len(gram)
            zero = eigenvalues <= eigenvalues[-1] * share
            # Features see a direction by the root of what G does.
            rounding = 10.0 * float(np.sqrt(share))
            limit = (UNSEEN if trace == traces[0] else rounding) * float(np.linalg.norm(scaled))
            if zero.any() and self._take_out(scaled, vectors[:, ~zero], vectors[:, zero], limit, rounding):
                return

    def _take_out(self, scaled: Floats, basis: Floats, null: Floats, limit: float, rounding: float) -> bool:
        """Go on with the basis alone, if A does not see the rest; whether that is well conditioned."""
        right, left = np.linalg.norm(scaled @ null), np.linalg.norm(null.T @ scaled)
        if left > limit or limit < right < 1e6 * limit:
            return False  # nearly singular, but every direction matters
        if right > limit:
            raise UnvisitedError(
                f"{self.name} has {null.shape[1]} directions that no visited state determines, and cut-off "
                "episodes bootstrap from them (Assumption 4: all states visited). Use `fit`, which gives "
                "up those last transitions and counts them, or fewer features"
            )
        self.rank = basis.shape[1]
        self._basis, self._rounding = basis, rounding
        self._null = np.linalg.qr(null * self._scale[:, None])[0]
        self._factor(basis.T @ scaled @ basis)
        return self.condition <= CONDITION_LIMIT


class SparseSystem:
    """A of shape (l, l) in CSR, ready to be solved.

    ``kept`` are the visited features; ``residual`` is that of the worst solve so far.
    """

    kept: Ints
    redundant = 0  # not counted
    condition = float("nan")  # not known

    def __init__(
        self, A: Any, gram: Any, visits: npt.NDArray[Any], ridge: float, name: str, single: bool = False
    ) -> None:
        # GMRES needs no rank, so that it makes no difference whether the states are in single precision.
        self.name, self.size, self.ridge, self._A = name, A.shape[0], ridge, A
        self.kept, self._scale = visited_features(A, gram, visits, name)
        self.residual = 0.0

    def project(self, rhs: Floats) -> Floats:
        """The right-hand side itself: A's range is not known."""
        return rhs

    def solve(self, rhs: Floats) -> Floats:
        """w with A w = rhs, of shape (l,); 0 at unvisited features."""
        kept, S = self.kept, self._scale
        b = S * rhs[kept]
        size = float(np.linalg.norm(b))
        w = np.zeros(self.size)
        if size == 0.0:
            return w

        def product(u: Floats) -> Floats:
            w[kept] = S * u
            Aw: Floats = self._A @ w
            return S * (Aw + self.ridge * w)[kept]

        operator = ssl.LinearOperator((kept.size, kept.size), matvec=product, dtype=np.float64)
        restart = min(RESTART, kept.size)
        count: list[float] = []
        u, residual = np.zeros(kept.size), 1.0
        for _ in range(CYCLES):
            before = residual
            with np.errstate(over="ignore", invalid="ignore"):  # the residual tells
                u, _ = ssl.gmres(
                    operator, b, u, rtol=GOAL, restart=restart, maxiter=1, callback=count.append,
                    callback_type="pr_norm",
                )  # fmt: skip
            residual = float(np.linalg.norm(b - product(u))) / size
            if residual <= GOAL or residual > (SLOW if residual <= ACCEPTED else STUCK) * before:
                break
        if not residual <= ACCEPTED:
            raise SolverError(
                f"{self.name} must be solved to a relative residual of {ACCEPTED:g}, got {residual:.1e} "
                f"after {len(count)} iterations with {kept.size} visited features; use a small ridge, "
                "fewer or larger tiles, more episodes that terminate, or TD, which solves nothing"
            )
        self.residual = max(self.residual, residual)
        w[kept] = S * u
        return w


class TableSystem:
    """A table of states and actions: as many equations as there are pairs, solved as one of states.

    There is one feature for each pair of a state and an action (l = states · actions, those of an action side
    by side), no traces, and a policy π that is a table. The next pair's features are then rows of Π (n, l),
    Π_{x,(x,a)} = π(a|x). With N the visits, F_{(x,a),y} how often y came after (x, a), and γ or γ² for g,

        A = N − g F Π

        A w = b:    u = N⁻¹ b,    (I − g Π N⁻¹ F) J = Π u,    w = u + g N⁻¹ F J,

    where J = Π w are the values of states. g F is N − A summed over the columns of each state, since π sums
    to 1 (or to 0, where no action is covered and nothing leads).
    """

    kept: Ints
    redundant = 0
    residual = 0.0

    def __init__(
        self,
        policy: Any,  # Π, CSR (n, l)
        A: Any,
        gram: Any,
        visits: npt.NDArray[Any],
        ridge: float,
        name: str,
        single: bool = False,
    ) -> None:
        self.size, self.kept = len(visits), visited_features(A, gram, visits, name)[0]
        n = policy.shape[0]
        to_states = sp.csr_array(
            (np.ones(self.size), (np.arange(self.size), np.arange(self.size) % n)), shape=(self.size, n)
        )
        following = sp.csr_array((sp.diags_array(visits) - sp.csr_array(A)) @ to_states)[self.kept]  # g F
        self._inverse = 1.0 / (visits[self.kept] + ridge)
        self._following = sp.csr_array(sp.diags_array(self._inverse) @ following)
        self._policy = sp.csr_array(policy)[:, self.kept]
        core = np.eye(n) - (self._policy @ self._following).toarray()
        self._lu, self.condition = factored(core)
        if self.condition > CONDITION_LIMIT:
            raise SingularSystemError(
                f"{name} is singular or nearly so, with condition number {self.condition:.1e}: from some "
                "states the policy never comes to an end, in the data. Use discount < 1, or a small ridge"
            )

    def project(self, rhs: Floats) -> Floats:
        """The right-hand side itself: nothing is redundant."""
        return rhs

    def solve(self, rhs: Floats) -> Floats:
        """w with A w = rhs, of rhs's shape; 0 at unvisited pairs."""
        out = np.zeros(rhs.shape)
        out[self.kept] = self.solve_kept(rhs[self.kept])
        return out

    def solve_kept(self, y: Floats, *, refine: bool = False) -> Floats:
        """As solve, between right-hand sides and weights of the visited pairs alone, (kept,) or (kept, n)."""
        u = y * (self._inverse if y.ndim == 1 else self._inverse[:, None])
        J = sla.lu_solve(self._lu, self._policy @ u, check_finite=False)
        w: Floats = u + self._following @ J
        return w


def factored(matrix: Floats) -> tuple[tuple[Floats, Ints], float]:
    """The LU factors of a matrix, with their pivots, and its 1-norm condition number."""
    norm = float(np.abs(matrix).sum(axis=0).max())
    lu, pivots, info = sla.lapack.dgetrf(matrix)
    rcond = float(sla.lapack.dgecon(lu, norm)[0]) if info == 0 else 0.0
    return (lu, pivots), 1.0 / rcond if rcond > 0.0 else np.inf


def visited_features(A: Matrix, gram: Matrix, visits: npt.NDArray[Any], name: str) -> tuple[Ints, Floats]:
    """The visited features and the diagonal of S at them, each of shape (kept,).

    An error where A (l, l) has columns of features that no transition started in.
    """
    kept, unvisited = np.flatnonzero(visits > 0), np.flatnonzero(visits <= 0)
    columns: Any = A[:, unvisited]
    bootstrapped = unvisited[np.asarray(abs(columns).sum(axis=0)).ravel() > 0.0]
    if bootstrapped.size:
        raise UnvisitedError(
            f"{name} bootstraps from features that no transition started in (a cut-off episode "
            f"ended there): {name_some(bootstrapped)} (Assumption 4: all states visited). Use `fit`, "
            "which gives up those last transitions and counts them, or gather more episodes"
        )
    return kept, 1.0 / np.sqrt(gram.diagonal()[kept])
