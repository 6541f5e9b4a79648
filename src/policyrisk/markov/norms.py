"""Norms in which a projected map contracts (Lemma 5).

Everything here is in the units u = √q y of the visited states, where ‖y‖_q = √(Σ q(x) y(x)²) is the
Euclidean norm of u and the projection onto the features is UUᵀ with orthonormal columns U. A projected map
is then K = UN with N = Uᵀ(…) of shape (l, n).

‖·‖_q itself serves where the modulus there, ‖N‖₂, is below 1, as it is for λ > 0. For λ = 0 and γ = 1 it
can be exactly 1 (where a state hands all its visits to one next state, which gets none from elsewhere), and
a norm is built instead. For any s with ρ(K) < s < 1,

    ‖u‖²_W = uᵀW u,    W = Σ_k s^(−2k) (K^k)ᵀ K^k,    so that    KᵀW K = s² (W − I)

has the modulus s √(1 − 1/‖W‖) < s. A small s may need a huge W: s starts half way between ρ(K) and 1 and
halves its distance to 1 as long as √‖W‖ / (1 − modulus) falls, the factor of the error bound that this
norm gives for ‖·‖_q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.linalg as sla

from policyrisk._core.arrays import Floats, Ints, as_floats, readonly
from policyrisk.errors import SolverError

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
