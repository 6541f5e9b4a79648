"""Aggregation multigrid for a sparse non-singular M-matrix A, as a preconditioner of a Krylov method.

Notation
--------
A = A_0        the matrix, (n, n); in our use I − γP with P a (sub-)stochastic matrix
w              (n,) row weights, a rough solution of Aᵀ w = 1: about how often each state is visited
B_0 = diag(w) A
B_{l+1}        B_l summed over aggregates of unknowns: (B_{l+1})_{IJ} = Σ_{i∈I, j∈J} (B_l)_ij

Why it works. Errors that a Gauss–Seidel sweep leaves are nearly constant over strongly coupled states
(A 1 ≈ 0 when few steps terminate), so piecewise constants represent them, and B_{l+1} is B_l on
piecewise constants. The weights do the same for the other side: with Aᵀ w = 1, B has row sums ≥ 0 and
column sums 1, so its symmetric part is positive definite, the same constants serve the transpose,
and the flow w_i p_ij says how strongly i and j are coupled. Wrong weights fail where termination is
rare: what they leave of the column sums is then large beside what terminates. Aᵀ x = b is Bᵀ y = b with
x = w y; its hierarchy is this one with every matrix transposed.

How it is applied. One cycle on level l is a forward sweep, a coarse correction and a backward sweep.
The coarse problem is solved in the span of two cycles of the level below, by Galerkin's condition (a
"K-cycle"; the second is left out if the first has reduced the residual enough), which makes the
rate nearly independent of n. Such a cycle is not linear, so the outer iteration is GCR, which allows
for a preconditioner that changes.

Cost. Levels are accepted while the hierarchy holds at most twice the entries of A; then each must halve
the entries of the one above it. So all levels together hold at most three times the entries of A,
whatever the graph, beside a dense inverse of at most COARSEST² entries.

Pairwise aggregation and K-cycles are due to Notay (2010, 2012).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Floats, Ints
from policyrisk.errors import SolverError
from policyrisk.markov.branches import Sparse

Indices = npt.NDArray[Any]  # int32 or int64, whichever SciPy chose for the matrix

SINGULAR = (
    "I − factor·P is singular to rounding: some states all but never reach the end; "
    "check that every state does (with factor 1), or use a factor below 1"
)
COARSEST = 400  # levels of at most this many unknowns are solved with a dense inverse
DOMINANCE = 1.5  # a_ii > DOMINANCE · Σ couplings: sweeps alone reduce such an unknown's error quickly
WEIGHT_ROUNDS = 30  # rounds allowed towards the row weights
IMBALANCE = 1e-4  # negative column sums of B allowed, as a share of the sum of all entries
WEAKEST = 0.3  # strength (see ``match_pairs``) below which unknowns are not paired on a level
ENOUGH = 0.25  # a coarse problem whose residual fell to this share of b gets no second step
# GCR directions kept, after which the residual is computed afresh: at first, and afterwards.
FIRST_DIRECTIONS, DIRECTIONS = 12, 30
REDUCTION = 1e-9  # GCR also stops, for a fresh residual, once it has reduced the residual so far


@dataclass(frozen=True)
class Correction:
    """d with A d ≈ r."""

    d: Floats  # of r's shape
    iterations: int
    settled: bool  # the last step towards d was below the rounding of the solution


@dataclass(frozen=True)
class Level:
    """One matrix of the hierarchy and the way down to the next."""

    matrix: Sparse  # (n_l, n_l)
    inverse_diagonal: Floats  # (n_l,)
    aggregate: Ints  # (n_l,) the coarse unknown of each; n_{l+1} for none
    coarse_size: int  # n_{l+1}

    def sweep(self, b: Floats, x: Floats, *, backward: bool) -> None:
        """One Gauss–Seidel sweep on B_l x = b, in place."""
        m = self.matrix
        gauss_seidel(m.indptr, m.indices, m.data, self.inverse_diagonal, b, x, backward)


@dataclass(frozen=True)
class Hierarchy:
    """The matrices B_0, …, B_{L−1} and the inverse of B_L, (0, 0) if nothing is left to correct."""

    levels: tuple[Level, ...]
    inverse: Floats  # (n_L, n_L)

    @property
    def entries(self) -> int:
        """Stored matrix entries over all levels."""
        return sum(level.matrix.nnz for level in self.levels) + self.inverse.size

    def transposed(self) -> Hierarchy:
        """The hierarchy of B_0ᵀ."""
        levels = (replace(level, matrix=level.matrix.T.tocsr()) for level in self.levels)
        return Hierarchy(tuple(levels), np.ascontiguousarray(self.inverse.T))

    def cycle(self, b: Floats, depth: int = 0) -> Floats:
        """An approximate solution of B_depth x = b."""
        if depth == len(self.levels):
            x_last: Floats = np.einsum("ij,j->i", self.inverse, b)
            return x_last
        level = self.levels[depth]
        x = np.zeros_like(b)
        level.sweep(b, x, backward=False)
        if level.coarse_size:
            r = b - level.matrix @ x
            r_coarse = _sums(level.aggregate, r, level.coarse_size)
            e_coarse = self._coarse_solve(r_coarse, depth + 1)
            x += np.append(e_coarse, 0.0)[level.aggregate]
        level.sweep(b, x, backward=True)
        return x

    def _coarse_solve(self, b: Floats, depth: int) -> Floats:
        """x in the span of at most two cycles' results z_k, with b − B x orthogonal to that span."""
        z_1 = self.cycle(b, depth)
        if depth == len(self.levels):
            return z_1
        matrix = self.levels[depth].matrix
        v_1 = np.asarray(matrix @ z_1)
        h_11, g_1 = _dot(z_1, v_1), _dot(z_1, b)
        if h_11 <= 0.0:
            return z_1
        r = b - (g_1 / h_11) * v_1
        if _dot(r, r) <= ENOUGH**2 * _dot(b, b):
            return (g_1 / h_11) * z_1
        z_2 = self.cycle(r, depth)
        v_2 = np.asarray(matrix @ z_2)
        h_12, h_21, h_22, g_2 = _dot(z_1, v_2), _dot(z_2, v_1), _dot(z_2, v_2), _dot(z_2, b)
        determinant = h_11 * h_22 - h_12 * h_21
        if determinant <= 1e-12 * h_11 * abs(h_22):
            return (g_1 / h_11) * z_1
        a_1 = (g_1 * h_22 - g_2 * h_12) / determinant
        a_2 = (h_11 * g_2 - h_21 * g_1) / determinant
        return a_1 * z_1 + a_2 * z_2


def _sums(aggregate: Ints, x: Floats, count: int) -> Floats:
    """Σ_{i∈I} x_i for the aggregates I = 0, …, count − 1."""
    return np.asarray(np.bincount(aggregate, x, count + 1)[:count], dtype=np.float64)


def _dot(a: Floats, b: Floats) -> float:
    """aᵀb without BLAS, whose threads cost more than they bring at these sizes on a busy machine."""
    return float(np.einsum("i,i->", a, b))


def visit_weights(A: Sparse) -> Floats:
    """w > 0 with few negative entries in Aᵀ w, near a solution of Aᵀ w = 1 unless w = 1 will do.

    Each round scales w to the right total, smooths it by Gauss–Seidel sweeps, which keep it positive,
    and corrects it by GCR on the hierarchy that the w so far gives.
    """
    n = A.shape[0]
    A_t = A.T.tocsr()
    inverse_diagonal = 1.0 / A_t.diagonal()
    one = np.ones(n)
    w = np.ones(n)
    for _ in range(WEIGHT_ROUNDS):
        columns = np.asarray(A_t @ w)
        # The negative column sums may be small beside what terminates, the sum of all.
        if -columns[columns < 0.0].sum() <= IMBALANCE * columns.sum():
            break
        if not columns.sum() > 0.0:
            raise SolverError(SINGULAR)
        w *= n / columns.sum()
        for backward in (False, True, False, True):
            gauss_seidel(A_t.indptr, A_t.indices, A_t.data, inverse_diagonal, one, w, backward)
        correction = gcr(build(row_scaled(w, A)).transposed(), one, w, one - A_t @ w, 0.0)
        # It may overshoot where w is still far off; w has to stay positive.
        w = np.maximum(w + correction.d, 0.1 * w)
    return w


def row_scaled(w: Floats, A: Sparse) -> Sparse:
    """diag(w) A. It shares A's index arrays, which must be sorted: SciPy would sort them in place."""
    return sp.csr_array((A.data * np.repeat(w, np.diff(A.indptr)), A.indices, A.indptr), shape=A.shape)


def coarsen(B: Sparse, room: int) -> tuple[Ints, Sparse]:
    """Aggregates (n,) and B summed over them, with at most max(room, half of B's) entries.

    Unknowns are paired at least twice. Strength is measured by B's own diagonal, summed over what is
    paired so far: unknowns that are weakly coupled on the scale of this level's sweeps stay apart,
    and meet on a coarser level. Only where too little would be gained are weaker pairs taken.
    """
    aggregate = np.arange(B.shape[0], dtype=np.int64)
    M, diagonal, weakest, passes = B, B.diagonal(), WEAKEST, 0
    while M.shape[0] and (passes < 2 or M.shape[0] > 0.8 * B.shape[0] or M.nnz > max(B.nnz // 2, room)):
        n = M.shape[0]
        pairs = np.empty(n, dtype=np.int64)
        S = sp.csr_array(-(M + M.T))
        limit = np.inf if passes else DOMINANCE
        count = match_pairs(S.indptr, S.indices, S.data, diagonal, limit, weakest, pairs)
        if count < n:
            M = sum_over(M, pairs, count)
            diagonal = _sums(pairs, diagonal, count)
            aggregate = np.append(pairs, count)[aggregate]
        if count > 0.9 * n:
            if count == n and weakest == 0.0:
                break
            weakest = weakest / 8.0 if weakest > 1e-30 else 0.0
        passes += 1
    return aggregate, M


def sum_over(M: Sparse, aggregate: Ints, count: int) -> Sparse:
    """The (count, count) matrix Σ_{i∈I, j∈J} M_ij; rows and columns of aggregate ``count`` are dropped."""
    n = len(aggregate)
    columns = sp.csr_array((M.data, aggregate[M.indices].astype(M.indices.dtype), M.indptr), (n, count + 1))
    rows = sp.csr_array((np.ones(n), (aggregate, np.arange(n))), shape=(count + 1, n))
    summed = sp.csr_array((rows @ columns)[:count, :count])
    summed.sort_indices()
    return summed


def build(B: Sparse) -> Hierarchy:
    """The hierarchy below B, of one level at least."""
    levels: list[Level] = []
    room = 2 * B.nnz
    while B.shape[0] > COARSEST or not levels:
        room -= B.nnz
        aggregate, B_next = coarsen(B, room)
        levels.append(Level(B, 1.0 / B.diagonal(), aggregate, B_next.shape[0]))
        B = B_next
    try:
        inverse: Floats = np.linalg.inv(B.toarray()).astype(np.float64, copy=False)
    except np.linalg.LinAlgError as error:
        raise SolverError(SINGULAR) from error
    return Hierarchy(tuple(levels), inverse)


def gcr(hierarchy: Hierarchy, u: Floats, w: Floats, r: Floats, reach: float) -> Correction:
    """Reduce ‖D^{-½} (u r − B_0 y)‖₂ from d = w y = 0, D the diagonal of B_0.

    A d = r is the case u = the row weights, w = 1; Aᵀ d = r, on the transposed hierarchy, the other
    way round. ``reach`` is the largest entry of the solution that d is to correct.
    """
    B, s = hierarchy.levels[0].matrix, np.sqrt(hierarchy.levels[0].inverse_diagonal)
    r = s * u * r
    d = np.zeros_like(r)
    Z: list[Floats] = []
    V: list[Floats] = []
    goal = REDUCTION * _dot(r, r) ** 0.5
    directions = DIRECTIONS if reach else FIRST_DIRECTIONS
    for iteration in range(1, directions + 1):
        y = hierarchy.cycle(r / s)
        v = s * (B @ y)
        z = w * y
        for z_k, v_k in zip(Z, V, strict=True):
            h = _dot(v, v_k)
            v -= h * v_k
            z -= h * z_k
        size = _dot(v, v) ** 0.5
        if size == 0.0:
            return Correction(d, iteration, settled=True)
        v /= size
        z /= size
        a = _dot(v, r)
        d += a * z
        r = r - a * v
        step = abs(a) * float(np.abs(z).max())
        if step <= 2.0**-55 * max(reach, float(np.abs(d).max())):
            return Correction(d, iteration, settled=True)
        if _dot(r, r) ** 0.5 <= goal:
            return Correction(d, iteration, settled=False)
        Z.append(z)
        V.append(v)
    return Correction(d, directions, settled=False)


# --- compiled loops: one row of a CSR matrix at a time -------------------------------------------------


@njit(cache=True)
def gauss_seidel(
    indptr: Indices,
    indices: Indices,
    data: Floats,
    inverse_diagonal: Floats,
    b: Floats,
    x: Floats,
    backward: bool,
) -> None:
    """One sweep x_i ← x_i + (b_i − Σ_j a_ij x_j) / a_ii in place, i ascending or descending."""
    n = len(b)
    for step in range(n):
        i = n - 1 - step if backward else step
        r = b[i]
        for k in range(indptr[i], indptr[i + 1]):
            r -= data[k] * x[indices[k]]
        x[i] += r * inverse_diagonal[i]


@njit(cache=True)
def match_pairs(
    indptr: Indices,
    indices: Indices,
    coupling: Floats,
    diagonal: Floats,
    dominance: float,
    weakest: float,
    aggregate: Ints,
) -> int:
    """Number the unknowns' aggregates 0, 1, … in ``aggregate``; return how many there are.

    The CSR matrix is −(A + Aᵀ). The strength of i and j is −(a_ij + a_ji)(1/d_i + 1/d_j), d being
    ``diagonal``. Unknowns are visited in order; each is paired with the strongest that is still free, or
    joins the aggregate of one that is taken if that is more than four times as strong, or stays alone if
    both are weaker than ``weakest``. An unknown with d_i > dominance · −Σ_j (a_ij + a_ji)/2 needs no coarse
    correction (sweeps deal with it) and gets the number past the last; with dominance = inf there is none.
    """
    n = len(diagonal)
    free, left_out = -1, -2
    # Left-out unknowns are marked before any pairing, so that nobody is paired with one.
    for i in range(n):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] != i:
                total += coupling[k]
        weak = dominance < np.inf and diagonal[i] > dominance * 0.5 * total
        aggregate[i] = left_out if weak else free
    count = 0
    for i in range(n):
        if aggregate[i] != free:
            continue
        best_free, best_taken = -1, -1
        strength_free, strength_taken = 0.0, 0.0
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j == i or aggregate[j] == left_out:
                continue
            strength = coupling[k] * (1.0 / diagonal[i] + 1.0 / diagonal[j])
            if aggregate[j] == free:
                if strength > strength_free:
                    best_free, strength_free = j, strength
            elif strength > strength_taken:
                best_taken, strength_taken = j, strength
        if best_taken >= 0 and strength_taken > max(4.0 * strength_free, weakest):
            aggregate[i] = aggregate[best_taken]
            continue
        aggregate[i] = count
        if best_free >= 0 and strength_free > weakest:
            aggregate[best_free] = count
        count += 1
    for i in range(n):
        if aggregate[i] == left_out:
            aggregate[i] = count
    return count
