"""The linear systems of exact policy evaluation: (I − cP) x = b and (I − cP)ᵀ x = b.

Notation
--------
P     (n, n) sparse, non-negative, rows summing to at most 1; what is missing from 1 terminates
c     the factor, in [0, 1]: γ for the mean, γ² for the variance, λγ for traces
A     I − cP, a non-singular M-matrix when c < 1 or every state reaches the end
b, x  (n,) or (n, k)

The solver is chosen by what it costs, and the report says which:

- *dense LU* up to ``DENSE_SIZE`` states;
- *sparse LU* when the fill is known to be small. There is none when no state can return to itself after
  leaving: ordered along its transitions, A is triangular. Otherwise, as an M-matrix needs no pivoting, the
  factors stay inside the envelope: L_ij = 0 left of row i's first entry, U_ij = 0 above column j's first
  entry. The envelope takes one pass over the entries; the orders tried are the given one, its reverse
  and reverse Cuthill–McKee. Where the envelope is small enough but much larger than A, as on a grid,
  SuperLU orders by minimum degree, which fills less (100 × 100 states: .4 in place of 2.0 million);
- *multigrid GCR* otherwise, with memory proportional to the entries of P (:mod:`.multigrid`).

Accuracy. Each of them only proposes corrections: x ← x + d with A d ≈ r, where r = b − x + cPx is
summed afresh from P and c in twice the working precision. This goes on until a correction is below
the rounding of x, so that x itself, not only its residual, is right to a few roundings of its
largest entry. It must then satisfy

    ‖b − Ax‖ ≤ 1e-12 ‖b‖ + 4ε ‖ |x| + cP|x| + |b| ‖        (maximum norms, ε = 2⁻⁵²)

or :class:`~policyrisk.errors.SolverError` is raised: the first term is what is asked for, the second
what rounding x to float64 costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
from numba import njit
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from policyrisk._core.arrays import Floats, Ints, as_csr
from policyrisk.errors import SolverError
from policyrisk.markov.branches import Sparse
from policyrisk.markov.multigrid import (
    SINGULAR,
    Correction,
    Indices,
    build,
    gcr,
    row_scaled,
    visit_weights,
)

DENSE_SIZE = 1000  # up to this many states: dense LU
FILL_RATIO = 10  # sparse LU if its envelope holds at most this many times the entries of A …
FILL_SMALL = 2_000_000  # … or at most this many entries in all
WIDE = 30  # an envelope of so many times the entries of A is left for minimum degree
MAX_DEGREE = 1000  # these two orders are not tried past this degree: they take the square of it
MAX_PASSES = 30  # corrections allowed for one right-hand side; one of multigrid takes up to 30 iterations
TOLERANCE = 1e-12
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class SolveReport:
    """How a system was solved and how well.

    >>> print(SolveReport("sparse LU", 0, 3e-16, 100, 298))
    sparse LU: residual 3.0e-16, 100 unknowns, 298 stored entries
    """

    method: str
    iterations: int  # 0 for a direct method; the most over the right-hand sides
    residual: float  # ‖b − Ax‖ / ‖b‖, the largest over the right-hand sides, computed afresh
    unknowns: int
    entries: int  # stored by the factors or by the multigrid hierarchy

    def __str__(self) -> str:
        steps = f"{self.iterations} iterations, " if self.iterations else ""
        return (
            f"{self.method}: {steps}residual {self.residual:.1e}, "
            f"{self.unknowns} unknowns, {self.entries} stored entries"
        )


@dataclass(frozen=True)
class Corrector:
    """A factorisation or hierarchy of A in the order of states that suits it."""

    method: str  # its name in the report
    entries: Callable[[], int]  # stored
    order: Ints  # (n,)
    # In that order: d with A d ≈ r (Aᵀ d ≈ r where transposed); reach is the solution's largest entry so far.
    solve: Callable[[Floats, float, bool], Correction]
    together: bool = True  # all right-hand sides at once: an iterative method has to go one by one

    def correct(self, r: Floats, reach: float, *, transpose: bool) -> Correction:
        """As ``solve``, in the order of the states."""
        correction = self.solve(r[self.order], reach, transpose)
        d = np.empty_like(r)
        d[self.order] = correction.d
        return replace(correction, d=d)


class Resolvent:
    """Solve (I − cP) x = b, or its transpose, for many b.

    The factorisation is made at the first solve and kept.

    >>> import scipy.sparse as sp
    >>> P = sp.csr_array([[0.0, 0.5], [0.0, 0.75]])
    >>> x, report = Resolvent(P, 1.0).solve(np.array([1.0, 1.0]))
    >>> x
    array([3., 4.])
    >>> report.method
    'dense LU'
    """

    def __init__(self, P: Sparse, factor: float) -> None:
        self._P = P if P.has_canonical_format else as_csr(P, "P")
        self._c = factor

    def __getstate__(self) -> dict[str, Any]:
        return {"_P": self._P, "_c": self._c}  # factors cannot be pickled; they can be made again

    @cached_property
    def _corrector(self) -> Corrector:
        return choose(self._P, self._c)

    @cached_property
    def _P_t(self) -> Sparse:
        return self._P.T.tocsr()

    def solve(self, b: Floats, *, transpose: bool = False) -> tuple[Floats, SolveReport]:
        """x of b's shape, (n,) or (n, k), and the report."""
        n = self._P.shape[0]
        columns = b.reshape(n, -1)
        corrector = self._corrector
        # A power of two, so that nothing is rounded and the size of b does not matter.
        scale = np.ldexp(1.0, np.frexp(np.abs(columns).max(axis=0, initial=0.0))[1])
        x = np.zeros_like(columns)
        iterations, residual = 0, 0.0
        step = max(columns.shape[1], 1) if corrector.together else 1
        for first in range(0, columns.shape[1], step):
            some = slice(first, first + step)
            x[:, some], steps, res = self._refine(corrector, columns[:, some] / scale[some], transpose)
            iterations, residual = max(iterations, steps), max(residual, res)
        x *= scale
        report = SolveReport(corrector.method, iterations, residual, n, corrector.entries())
        return x.reshape(b.shape), report

    def _refine(self, corrector: Corrector, b: Floats, transpose: bool) -> tuple[Floats, int, float]:
        """Correct x until it does not change any more: x (n, k), iterations, relative residual."""
        P = self._P_t if transpose else self._P
        x, r = np.zeros_like(b), b
        size_b = np.abs(b).max(axis=0)
        last = np.full(b.shape[1], np.inf)
        iterations = 0
        excess, passes = np.inf, 0
        while passes < MAX_PASSES:
            passes += 1
            reach = float(np.abs(x).max())
            correction = corrector.correct(r, reach, transpose=transpose)
            iterations += correction.iterations
            x += correction.d
            r = np.empty_like(b)
            resolvent_residual(P.indptr, P.indices, P.data, self._c, b, x, r)
            change, size_x = np.abs(correction.d).max(axis=0), np.abs(x).max(axis=0)
            excess = self._excess(P, b, x, r)
            below_rounding = np.all(change <= EPSILON * size_x)
            settled = correction.settled and np.all(change <= 1e-6 * size_x)
            stalled = np.all(change >= 0.5 * last)
            if excess <= 1.0 and (below_rounding or settled or stalled):
                break
            last = change
        relative = float(np.max(np.abs(r).max(axis=0) / np.where(size_b > 0.0, size_b, 1.0)))
        if not excess <= 1.0:
            raise SolverError(
                f"{corrector.method} left a residual of {relative:.1e} of b after {passes} "
                f"corrections ({iterations} iterations), above the tolerance of {TOLERANCE:.0e} plus "
                "rounding; the system is singular or nearly so: check that every state reaches the "
                "end (with factor 1), or use a factor below 1"
            )
        return x, iterations, relative

    def _excess(self, P: Sparse, b: Floats, x: Floats, r: Floats) -> float:
        """‖r‖ over what the module's docstring allows, the largest over the columns."""
        rounding = (np.abs(x) + self._c * (P @ np.abs(x)) + np.abs(b)).max(axis=0)
        allowed = TOLERANCE * np.abs(b).max(axis=0) + 4.0 * EPSILON * rounding
        return float(np.max(np.abs(r).max(axis=0) / np.where(allowed > 0.0, allowed, 1.0)))


def discounted(P: Sparse, discount: float | Floats, power: int) -> tuple[Sparse, float]:
    """A matrix and a factor whose product has the entries p γ^power, γ that of the successor."""
    if np.ndim(discount) == 0:
        return P, float(discount) ** power
    scaled = sp.csr_array(P @ sp.diags_array(np.asarray(discount) ** power))
    scaled.eliminate_zeros()
    return scaled, 1.0


def direct(method: str, entries: int, order: Ints, solve: Callable[[Floats, bool], Floats]) -> Corrector:
    """A corrector that solves its system at once."""
    return Corrector(
        method, lambda: entries, order, lambda r, reach, transpose: Correction(solve(r, transpose), 0, False)
    )


def sparse_lu(A: Sparse, order: Ints, again: Literal["NATURAL", "MMD_AT_PLUS_A"] = "NATURAL") -> Corrector:
    """SuperLU of A, in the order that it is already in or ordered ``again``; its pivots are the diagonal."""
    try:
        lu: Any = splu(A.tocsc(), permc_spec=again, diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except RuntimeError as error:
        raise SolverError(SINGULAR) from error
    return direct("sparse LU", lu.nnz, order, lambda r, transpose: lu.solve(r, "T" if transpose else "N"))


def by_multigrid(A: Sparse, order: Ints) -> Corrector:
    """Multigrid on A, in the order given; its right-hand sides have one column."""
    w, one = visit_weights(A), np.ones(A.shape[0])
    hierarchies = {False: build(row_scaled(w, A))}  # True: the transposed one, once it is asked for

    def solve(r: Floats, reach: float, transpose: bool) -> Correction:
        if transpose not in hierarchies:
            hierarchies[transpose] = hierarchies[False].transposed()
        before, after = (one, w) if transpose else (w, one)
        correction = gcr(hierarchies[transpose], before, after, r[:, 0], reach)
        return replace(correction, d=correction.d[:, None])

    def entries() -> int:
        return sum(hierarchy.entries for hierarchy in hierarchies.values())

    return Corrector("multigrid GCR", entries, order, solve, together=False)


def choose(P: Sparse, c: float) -> Corrector:
    """The cheapest method for I − cP, by the rules of the module's docstring."""
    n = P.shape[0]
    A = sp.csr_array(sp.eye_array(n, format="csr") - c * P)
    if not A.diagonal().min() > 0.0:
        raise SolverError(SINGULAR)
    if n <= DENSE_SIZE:
        lu, pivots, info = la.lapack.dgetrf(A.toarray())
        if info:
            raise SolverError(SINGULAR)

        def solve(r: Floats, transpose: bool) -> Floats:
            return la.lu_solve((lu, pivots), r, trans=1 if transpose else 0, check_finite=False)

        return direct("dense LU", lu.size, np.arange(n), solve)
    order, components = component_order(A)
    if components == n:
        return sparse_lu(permuted(A, order), order)
    for tried in direct_orders(A):
        fill = envelope(A, tried)
        if fill <= max(FILL_RATIO * A.nnz, FILL_SMALL):
            wide = fill > WIDE * A.nnz and degree(A) <= MAX_DEGREE
            return sparse_lu(permuted(A, tried), tried, "MMD_AT_PLUS_A" if wide else "NATURAL")
    return by_multigrid(permuted(A, order), order)


def component_order(A: Sparse) -> tuple[Ints, int]:
    """An order (n,) in which transitions between strong components go up, and their number.

    SciPy numbers the components along the transitions or against them, but does not promise to: the
    order is checked on every entry, and the given order is kept if it does not hold.
    """
    n = A.shape[0]
    count, label = connected_components(A, directed=True, connection="strong")
    rows = np.repeat(label, np.diff(A.indptr))
    columns = label[A.indices]
    if np.all(rows >= columns):
        return np.argsort(-label, kind="stable"), int(count)
    if np.all(rows <= columns):
        return np.argsort(label, kind="stable"), int(count)
    return np.arange(n), 1


def degree(A: Sparse) -> int:
    """The most states that one leads to or comes from, itself included."""
    return int(np.diff(sp.csr_array(A + A.T).indptr).max())


def direct_orders(A: Sparse) -> Iterator[Ints]:
    """The orders (n,) to try for a sparse LU, cheapest first."""
    given = np.arange(A.shape[0])
    yield given
    yield given[::-1]
    if degree(A) <= MAX_DEGREE:
        yield reverse_cuthill_mckee(sp.csr_array(A + A.T), symmetric_mode=True).astype(np.int64)


def envelope(A: Sparse, order: Ints) -> int:
    """Bound on the entries of L and U: Σ_i (i − first column of row i) + the same by columns + n."""
    n = A.shape[0]
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    total = n
    for M in (A, A.tocsc()):
        # Every row and column has its diagonal entry, so that no segment is empty.
        first = np.minimum.reduceat(place[M.indices], M.indptr[:-1])
        total += int((place - first).sum())
    return total


def permuted(A: Sparse, order: Ints) -> Sparse:
    """A with rows and columns in the given order."""
    if np.array_equal(order, np.arange(len(order))):
        return A
    A = sp.csr_array(A[order][:, order])
    A.sort_indices()
    return A


# --- the residual, compiled ----------------------------------------------------------------------------


@njit(cache=True)
def _product(a: float, b: float) -> tuple[float, float]:
    """a·b and its rounding error, by Dekker's splitting."""
    split = 134217729.0  # 2**27 + 1
    a_high, b_high = split * a, split * b
    a_high, b_high = a_high - (a_high - a), b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit(cache=True)
def _sum(a: float, b: float) -> tuple[float, float]:
    """a + b and its rounding error (two-sum)."""
    total = a + b
    gone = total - a
    return total, (a - (total - gone)) + (b - gone)


@njit(cache=True)
def resolvent_residual(
    indptr: Indices, indices: Indices, data: Floats, factor: float, b: Floats, x: Floats, out: Floats
) -> None:
    """Write r = b − x + factor · P x, of shape (n, k), summed in twice the working precision.

    Sums and products carry their rounding error along, so that r is right to about one rounding even where
    b, x and P x cancel. |x| must stay below 1e300.
    """
    n, columns = b.shape
    high = np.empty(columns)
    low = np.empty(columns)
    for i in range(n):
        for c in range(columns):
            high[c] = 0.0
            low[c] = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            for c in range(columns):
                product, rest = _product(data[k], x[indices[k], c])
                high[c], error = _sum(high[c], product)
                low[c] += rest + error
        for c in range(columns):
            total, rest = _product(factor, high[c])
            rest += factor * low[c]
            for term in (-x[i, c], b[i, c]):
                total, error = _sum(total, term)
                rest += error
            out[i, c] = total + rest
