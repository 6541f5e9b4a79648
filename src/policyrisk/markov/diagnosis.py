"""The theory of the projected equations as numbers, for one chain with its features, start and λ.

With G = 2γ E[ρ 1{y}] (the paper's 2RP), P_J = (1−λ) γP (I − λγP)⁻¹ and P_M the same with γ², the
equations that LSTD(λ) solves are z = ΠTz for z = (z_J, z_M) and

    [Tz]_J = (I − λγP)⁻¹ E[ρ]  + P_J z_J
    [Tz]_M = (I − λγ²P)⁻¹ (E[ρ²] + G z_J) + P_M z_M

Π_J and Π_M project onto the features' subspaces in ‖y‖_q = √(Σ q(x) y(x)²). z_true = (J, M) is the fixed
point of T for every λ, and z* that of ΠT. What is computed:

    β_J, β_M  the moduli of Π_J P_J and Π_M P_M (Lemma 5), in ‖·‖_q or a norm built for it (below)
    C         the smallest with ‖Π_M (I − λγ²P)⁻¹ G y‖_M ≤ C ‖y‖_J
    ε         half of 1 − max(β_J, β_M)
    α, β      C / (ε + C) and max(β_J, β_M) + ε: ΠT contracts with modulus β in the norm
              ‖z‖_α = α‖z_J‖_J + (1 − α)‖z_M‖_M (Lemma 7). Where C = 0 every α does: ε = 0, α = ½
    bound     ‖z_true − z*‖_α ≤ ‖z_true − Πz_true‖_α / (1 − β) (Lemma 8)

Half of the gap is the ε that makes smallest what the bound allows for M's error because of J's,
C ‖J − Π_J J‖_J / (ε (1 − max(β_J, β_M) − ε)).

States that are never visited have weight 0 in every norm and are left out: no visited state leads there.

**Norms** in which a projected map contracts are in the units u = √q y of the visited states, where ‖y‖_q =
√(Σ q(x) y(x)²) is the Euclidean norm of u and the projection onto the features is UUᵀ with orthonormal
columns U. A projected map is then K = UN with N = Uᵀ(…) of shape (l, n).

‖·‖_q itself serves where the modulus there, ‖N‖₂, is below 1, as it is for λ > 0. For λ = 0 and γ = 1 it
can be exactly 1 (where a state hands all its visits to one next state, which gets none from elsewhere), and
a norm is built instead. For any s with ρ(K) < s < 1,

    ‖u‖²_W = uᵀW u,    W = Σ_k s^(−2k) (K^k)ᵀ K^k,    so that    KᵀW K = s² (W − I)

has the modulus s √(1 − 1/‖W‖) < s. A small s may need a huge W: s starts half way between ρ(K) and 1 and
halves its distance to 1 as long as √‖W‖ / (1 − modulus) falls, the factor of the error bound that this
norm gives for ‖·‖_q.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.linalg as sla
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, as_floats, as_number, name_some, readonly
from policyrisk._core.text import Readable, TextTable
from policyrisk.errors import ImproperPolicyError, InvalidInputError, SolverError
from policyrisk.features import Features, as_features
from policyrisk.features.protocol import matrix_of
from policyrisk.markov.chain import MarkovChain

MOST_STATES = 2000  # a dense matrix of this many states takes 32 MB
RAREST = 1e-250  # fewer visits than this cannot be weighed: √q(x)/√q(y) must stay a good number
ROUNDING = 1e-9  # a modulus this near to 1 cannot be told from 1
SMALLEST_GAP = 1e-10  # no norm is built where 1 − ρ(K) is below this
LARGEST_WEIGHT = 1e13  # the largest ‖W‖ of a norm that is built


@dataclass(frozen=True, eq=False)
class Norm:
    """‖y‖ = ‖root · y‖₂, either the norm ‖·‖_q or one built in its place.

    >>> norm = Norm("q", np.diag([2.0, 1.0]))
    >>> norm([1.5, 4.0])
    5.0
    """

    kind: Literal["q", "built"]
    root: Floats  # (visited, n): a column of zeros for a state that is never visited

    def __call__(self, y: npt.ArrayLike) -> float:
        """‖y‖ of y (n,)."""
        return float(np.linalg.norm(self.root @ as_floats(y, "y", (self.root.shape[1],))))

    @property
    def W(self) -> Floats:
        """The matrix of ‖y‖² = yᵀW y, of shape (n, n): diag(q) for the kind "q"."""
        return self.root.T @ self.root

    def of_states(self, root_q: Floats, visited: Ints, n: int) -> Norm:
        """This norm of u = √q y as a norm of y (n,)."""
        root = np.zeros((visited.size, n))
        root[:, visited] = self.root * root_q
        return Norm(self.kind, readonly(root))

    def __str__(self) -> str:
        return "‖·‖_q" if self.kind == "q" else "a norm built for it, as ‖·‖_q gives no modulus below 1"


@dataclass(frozen=True, eq=False)
class Contraction:
    """One of the two equations: its features, and how it contracts (None or nan where q is undefined)."""

    size: int  # columns of Φ
    rank: int  # of Φ over all states (Assumption 3)
    dimension: int | None = None  # rank of Φ weighted by q: smaller where states are not visited
    norm: Norm | None = None
    beta: float = np.nan


@dataclass(frozen=True, eq=False)
class Diagnosis(Readable):
    """Assumptions 1, 3 and 4 and the constants of Lemmas 5, 7 and 8; ``print`` explains them.

    Where episodes from the start may never end there is no q, and what rests on it is None or nan.
    """

    n: int
    discount: float
    lam: float
    endless: Ints  # (·,): states from which the end cannot be reached (Assumption 1)
    unvisited: Ints  # (·,): states that are not visited from the start (Assumption 4)
    mean: Contraction
    second: Contraction
    q: Floats | None = None  # (n,): expected visits
    C: float = np.nan
    epsilon: float = np.nan
    alpha: float = np.nan
    beta: float = np.nan
    projection_error: float = np.nan  # ‖z_true − Πz_true‖_α
    bound: float = np.nan  # projection_error / (1 − β)
    error: float = np.nan  # ‖z_true − z*‖_α

    @property
    def proper(self) -> bool:
        """Assumption 1: the end can be reached from every state."""
        return self.endless.size == 0

    @property
    def independent(self) -> bool:
        """Assumption 3: Φ_J and Φ_M have full column rank."""
        return self.mean.rank == self.mean.size and self.second.rank == self.second.size

    @property
    def all_visited(self) -> bool:
        """Assumption 4: q(x) > 0 for every state."""
        return self.unvisited.size == 0

    @property
    def beta_J(self) -> float:
        """The modulus of Π_J P_J in ``norm_J``."""
        return self.mean.beta

    @property
    def beta_M(self) -> float:
        """The modulus of Π_M P_M in ``norm_M``."""
        return self.second.beta

    @property
    def norm_J(self) -> Norm:
        """‖·‖_J: call it on y (n,); its ``kind`` is "q" or "built"."""
        return self._defined(self.mean.norm)

    @property
    def norm_M(self) -> Norm:
        """‖·‖_M."""
        return self._defined(self.second.norm)

    @property
    def ratio(self) -> float:
        """error / bound, at most 1; nan where both are 0."""
        return self.error / self.bound if self.bound > 0.0 else np.nan

    def alpha_norm(self, z: npt.ArrayLike) -> float:
        """‖z‖_α = α‖z_J‖_J + (1 − α)‖z_M‖_M of z = (z_J, z_M) of shape (2n,) (Definition 6)."""
        norm_J, norm_M = self.norm_J, self.norm_M
        array = as_floats(z, "z", (2 * self.n,))
        return self.alpha * norm_J(array[: self.n]) + (1.0 - self.alpha) * norm_M(array[self.n :])

    def _defined(self, norm: Norm | None) -> Norm:
        if norm is None:
            raise ImproperPolicyError(
                f"the norms need episodes that end (Assumption 1: proper policy), but from the start they "
                f"may reach one of the states {name_some(self.endless)}; diagnose from another start"
            )
        return norm

    def _blocks(self) -> list[str | TextTable]:
        head = f"Projected equations on {self.n} states, discount {self.discount:g}, λ = {self.lam:g}"
        return [head, "", "\n".join(self._assumption_lines()), "", "\n".join(self._contraction_lines())]

    def _assumption_lines(self) -> list[str]:
        proper = "every state can reach the end"
        if not self.proper:
            proper = f"the end cannot be reached from states {name_some(self.endless)}"
        J, M = self.mean, self.second
        ranks = f"rank {J.rank} of {J.size} features for J, {M.rank} of {M.size} for M"
        if self.q is not None and (J.dimension, M.dimension) != (J.rank, M.rank):
            ranks += f" (on the visited states {J.dimension} and {M.dimension})"
        visited = "the start leads to every state"
        if not self.all_visited:
            never = "never" if self.q is None or not self.q[self.unvisited].any() else f"< {RAREST:g} times"
            visited = f"{never} visited: states {name_some(self.unvisited)}"
            visited += "" if self.q is None else "; left out below"
        elif self.q is not None:
            visited = f"the least visited state is {self.q.argmin()}, {self.q.min():.4g} times an episode"
        rows = (
            (1, "proper policy", self.proper, proper),
            (3, "independent features", self.independent, ranks),
            (4, "all states visited", self.all_visited, visited),
        )
        lines = [
            f"  {number}  {name:<21} {'ok' if holds else 'FAILED':<7} {text}"
            for number, name, holds, text in rows
        ]
        if not self.independent and self.q is not None:
            lines.append(f"{'':35}redundant features change no number below")
        return ["Assumptions", *lines]

    def _contraction_lines(self) -> list[str]:
        if self.q is None:
            return [
                "Contraction and error bound",
                "  undefined: from the start, episodes may reach a state that never leads to the end, so the",
                "  expected visits q that weight the equations are infinite (Assumption 1: proper policy).",
            ]
        cross = "an error of 1 in J adds at most this to the equation of M"
        slack = "slack for that coupling: half of what max(β_J, β_M) leaves below 1"
        if self.C == 0.0:
            cross, slack = "M's equation does not depend on J", "no slack is needed"
        weight = f"weight of J in the joint norm α‖J‖ + (1 − α)‖M‖; 1 − α = {1.0 - self.alpha:.4g}"
        share = f"{self.ratio:.1%} of the bound" if self.bound > 0.0 else "as the bound says"
        return [
            "Contraction (Lemmas 5 and 7): one step of the equations multiplies an error by at most",
            _row("β_J", self.beta_J, f"for the mean J, in {self.norm_J}"),
            _row("β_M", self.beta_M, f"for the second moment M, in {self.norm_M}"),
            _row("β", self.beta, "for J and M together, in the joint norm: max(β_J, β_M) + ε"),
            "where",
            _row("C", self.C, cross),
            _row("ε", self.epsilon, slack),
            _row("α", self.alpha, weight),
            _row("‖y‖_q", None, "√(Σ q(x) y(x)²), with q(x) the expected visits to x in an episode"),
            "",
            "Error of the solution, J and M together, in the joint norm (Lemma 8)",
            _row("features", self.projection_error, "distance of the true J, M to their projections"),
            _row("bound", self.bound, "that / (1 − β): the error cannot be larger"),
            _row("true error", self.error, share),
        ]


def diagnose(
    chain: MarkovChain, features: Any, second_features: Any = None, start: npt.ArrayLike = 0, lam: float = 0.9
) -> Diagnosis:
    """The assumptions and constants of the theory for a chain seen through features.

    ``second_features`` are φ_M, the same as ``features`` where None; ``start`` is a state or a distribution.

    >>> from policyrisk.domains import walk
    >>> from policyrisk.features import Polynomial
    >>> line, square = (Polynomial(degree, low=[0], high=[29]) for degree in (1, 2))
    >>> diagnosis = diagnose(walk(30, 0.7), line, square, start=0, lam=0.95)
    >>> diagnosis.proper, diagnosis.independent, diagnosis.all_visited
    (True, True, True)
    >>> round(diagnosis.beta_J, 3), round(diagnosis.beta_M, 3), diagnosis.norm_J.kind
    (0.79, 0.808, 'q')
    >>> round(diagnosis.error, 2), round(diagnosis.bound, 2)
    (3.99, 39.82)
    """
    lam = as_number(lam, "lam", 0.0, 1.0)
    if chain.n > MOST_STATES:
        raise InvalidInputError(
            f"diagnose takes chains of at most {MOST_STATES} states, as its matrices are dense, got "
            f"{chain.n}; diagnose a smaller chain of the same kind, or use LSTD.fit_exact for estimates alone"
        )
    zeta, gamma = chain.start_distribution(start), chain.one_discount("diagnose")
    first = as_features(features)
    second = first if second_features is None else as_features(second_features)
    phi_J = _values(first, chain.n, "features")
    phi_M = phi_J if second == first else _values(second, chain.n, "second_features")
    of_J = Contraction(phi_J.shape[1], _basis(phi_J).shape[1])
    of_M = of_J if phi_M is phi_J else Contraction(phi_M.shape[1], _basis(phi_M).shape[1])
    endless, reached = ~chain._reaches_end, chain._reachable(zeta)
    found = Diagnosis(chain.n, gamma, lam, np.flatnonzero(endless), np.flatnonzero(~reached), of_J, of_M)
    if (endless & reached).any():
        return found
    q = chain.occupancy(zeta)
    found = replace(found, q=readonly(q), unvisited=np.flatnonzero(q <= RAREST))
    return _complete(found, chain, q, phi_J, phi_M)


def _complete(found: Diagnosis, chain: MarkovChain, q: Floats, phi_J: Floats, phi_M: Floats) -> Diagnosis:
    """The diagnosis with everything that rests on q.

    The operators are those on the visited states in the units u = √q y, where ‖·‖_q is Euclidean. There
    Π = UUᵀ with U orthonormal, and only the rows N = Uᵀ(…) of each operator are needed.
    """
    visited = np.flatnonzero(q > RAREST)
    root_q = np.sqrt(q[visited])
    lam, gamma, branches = found.lam, found.discount, chain.branches

    def in_units(matrix: Any) -> Floats:
        return np.asarray(root_q[:, None] * matrix[visited][:, visited].toarray() / root_q)

    P, G = in_units(chain.P), 2.0 * gamma * in_units(branches.matrix(branches.reward))
    U_J = _basis(root_q[:, None] * phi_J[visited])
    U_M = U_J if phi_M is phi_J else _basis(root_q[:, None] * phi_M[visited])
    Z, Y = _traces(P, U_J, lam * gamma), _traces(P, U_M, lam * gamma**2)
    N_J = (1.0 - lam) * gamma * Z.T @ P  # U_Jᵀ P_J
    N_M = (1.0 - lam) * gamma**2 * Y.T @ P  # U_Mᵀ P_M
    N_C = Y.T @ G  # U_Mᵀ (I − λγ²P)⁻¹ G
    norm_J, beta_J = contraction(U_J, N_J, "Π_J P_J")
    same = phi_M is phi_J and gamma == 1.0  # then Π_J P_J is Π_M P_M
    norm_M, beta_M = (norm_J, beta_J) if same else contraction(U_M, N_M, "Π_M P_M")
    C = operator_norm(U_M, N_C, into=norm_M, out_of=norm_J)
    larger = max(beta_J, beta_M)
    epsilon = (1.0 - larger) / 2.0 if C > 0.0 else 0.0
    alpha = C / (epsilon + C) if C > 0.0 else 0.5
    J, M = root_q * chain.mean()[visited], root_q * chain.second_moment()[visited]
    rest_J, rest_M = J - U_J @ (U_J.T @ J), M - U_M @ (U_M.T @ M)
    projection_error = alpha * norm_J(rest_J) + (1.0 - alpha) * norm_M(rest_M)
    # z_true − z* solves e = (z_true − Πz_true) + ΠL e, with L the linear part of T. It is solved for
    # t = Uᵀe of size (l,): a small error is not the difference of two large vectors.
    error_J = rest_J + U_J @ np.linalg.solve(np.eye(len(N_J)) - N_J @ U_J, N_J @ rest_J)
    rhs = N_M @ rest_M + N_C @ error_J
    error_M = rest_M + U_M @ np.linalg.solve(np.eye(len(N_M)) - N_M @ U_M, rhs)
    units = (root_q, visited, found.n)
    return replace(
        found,
        mean=replace(found.mean, dimension=len(N_J), norm=norm_J.of_states(*units), beta=beta_J),
        second=replace(found.second, dimension=len(N_M), norm=norm_M.of_states(*units), beta=beta_M),
        C=C,
        epsilon=epsilon,
        alpha=alpha,
        beta=larger + epsilon,
        projection_error=projection_error,
        bound=projection_error / (1.0 - (larger + epsilon)),
        error=alpha * norm_J(error_J) + (1.0 - alpha) * norm_M(error_M),
    )


def _traces(P: Floats, U: Floats, factor: float) -> Floats:
    """(I − factor·Pᵀ)⁻¹ U, of shape (n, l)."""
    return np.asarray(np.linalg.solve(np.eye(len(P)) - factor * P.T, U)) if factor else U


def _basis(phi: Floats) -> Floats:
    """An orthonormal basis of the range of Φ, of shape (n, rank); a feature's unit does not matter."""
    size = np.linalg.norm(phi, axis=0)
    U, singular, _ = np.linalg.svd(phi / np.where(size > 0.0, size, 1.0), full_matrices=False)
    kept = singular > singular[0] * max(phi.shape) * np.finfo(np.float64).eps
    return np.asarray(U[:, kept])


def _values(features: Features, n: int, name: str) -> Floats:
    """Φ, dense and finite, of shape (n, l)."""
    phi = matrix_of(features, np.arange(n)[:, None])
    return as_floats(phi.toarray() if sp.issparse(phi) else phi, f"{name}(states)", (n, None))


def _row(symbol: str, value: float | None, text: str) -> str:
    return f"  {symbol:<10} {'' if value is None else format(value, '.5g'):<11} {text}"


def contraction(U: Floats, N: Floats, name: str) -> tuple[Norm, float]:
    """A norm in which K = UN contracts, and K's modulus there: the smallest that holds for all u."""
    modulus = _largest(N)
    if modulus < 1.0 - ROUNDING:
        return Norm("q", np.eye(len(U))), modulus
    W = _built_weight(U, N)
    if W is not None:
        norm = Norm("built", np.asarray(np.linalg.cholesky(W).T))
        modulus = operator_norm(U, N, into=norm, out_of=norm)
        if modulus < 1.0:
            return norm, modulus
    raise SolverError(
        f"no norm was found in which {name} contracts: to rounding its modulus is 1, as where episodes "
        "hardly ever end (Assumption 1: proper policy). Use a larger lam, a smaller discount or a chain "
        "that ends sooner"
    )


def operator_norm(U: Floats, N: Floats, *, into: Norm, out_of: Norm) -> float:
    """The smallest c with ‖UNu‖ ≤ c ‖u‖, the left norm being ``into`` and the right one ``out_of``."""
    # ‖root U t‖ = ‖R t‖ with R (l, l), so that no (n, n) matrix needs its singular values.
    R = np.linalg.qr(into.root @ U, mode="r")
    return _largest(R @ sla.solve_triangular(out_of.root, N.T, trans="T").T)


def _built_weight(U: Floats, N: Floats) -> Floats | None:
    """W = I + s⁻² Nᵀ (UᵀWU) N, where UᵀWU is the same sum for UᵀKU = NU of size (l, l)."""
    K = N @ U
    gap = 1.0 - float(np.abs(np.linalg.eigvals(K)).max())
    best, found = np.inf, None
    while gap > SMALLEST_GAP:
        gap /= 2.0
        s = 1.0 - gap
        inner = _power_sum(K / s)
        if inner is None:
            continue
        half = np.linalg.cholesky(inner).T @ N / s
        size = 1.0 + _largest(half) ** 2
        factor = np.sqrt(size) / (1.0 - s * np.sqrt(1.0 - 1.0 / size))
        if factor >= best:
            break
        best, found = factor, half
    return None if found is None else np.asarray(np.eye(found.shape[1]) + found.T @ found)


def _power_sum(A: Floats) -> Floats | None:
    """Σ_k (A^k)ᵀ A^k by doubling, or None where it is too large."""
    total = np.eye(len(A))
    while True:
        size = np.linalg.norm(total)
        if max(np.linalg.norm(A) ** 2, size) > LARGEST_WEIGHT:
            return None
        more = A.T @ total @ A
        total = total + more
        if np.linalg.norm(more) <= np.finfo(np.float64).eps * size:
            return np.asarray((total + total.T) / 2.0)
        A = A @ A


def _largest(matrix: Floats) -> float:
    """The largest singular value."""
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0
