"""Features of consecutive rows of a chunk, sparse or dense, behind one small set of operations.

Episodes lie end to end, an episode of length T taking T + 1 *rows*: its visited states and its last one. Both
kinds of rows know ``ends``, which is true at the last row of every episode: those rows were not visited, and
enter only as what visited rows lead to. The compiled loops below are pure functions of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints, as_dense, readonly
from policyrisk.features import Features
from policyrisk.features.protocol import active_of, is_binary, matrix_of

# From this share of non-zeros on, dense products are faster than sparse ones.
DENSE_SHARE = 1 / 8


@dataclass(frozen=True, eq=False)
class SparseRows:
    """φ of some rows: row i holds val[p] in column idx[p] for ptr[i] ≤ p < ptr[i + 1]."""

    ends: Bools  # (rows,)
    ptr: Ints  # (rows + 1,)
    idx: Ints  # (nonzeros,)
    val: Floats  # (nonzeros,)
    size: int

    @classmethod
    def of(
        cls, ends: Bools, ptr: npt.NDArray[Any], idx: npt.NDArray[Any], val: npt.NDArray[Any], size: int
    ) -> SparseRows:
        """Rows of the types that the kernels were compiled for."""
        return cls(
            ends,
            readonly(np.ascontiguousarray(ptr, dtype=np.int64)),
            readonly(np.ascontiguousarray(idx, dtype=np.int64)),
            readonly(np.ascontiguousarray(val, dtype=np.float64)),
            size,
        )

    @cached_property
    def one_hot(self) -> bool:
        """Whether every row has one entry."""
        return self.idx.size == len(self.ends) and bool((np.diff(self.ptr) == 1).all())

    def sparse(self) -> SparseRows:
        """The rows themselves."""
        return self

    @cached_property
    def matrix(self) -> sp.csr_array[Any, tuple[int, int]]:
        """φ, of shape (rows, size)."""
        return sp.csr_array((self.val, self.idx, self.ptr), shape=(len(self.ends), self.size))

    @property
    def visited(self) -> sp.csr_array[Any, tuple[int, int]]:
        """φ of the visited rows alone, of shape (visited, size)."""
        return sp.csr_array(self.matrix[np.flatnonzero(~self.ends)])


@dataclass(frozen=True, eq=False)
class DenseRows:
    """φ of some rows as an array."""

    ends: Bools  # (rows,)
    matrix: Floats  # (rows, size)

    @cached_property
    def visited(self) -> Floats:
        """φ of the visited rows alone, of shape (visited, size)."""
        return self.matrix[~self.ends]

    @property
    def size(self) -> int:
        """The number of features."""
        return int(self.matrix.shape[1])

    def sparse(self) -> SparseRows:
        """The same rows with every entry written out."""
        rows, size = self.matrix.shape
        idx = np.tile(np.arange(size), rows)
        return SparseRows.of(self.ends, np.arange(0, rows * size + 1, size), idx, self.matrix.ravel(), size)


Rows: TypeAlias = SparseRows | DenseRows


@dataclass(frozen=True, eq=False)
class Evaluator:
    """A feature map, and whether its rows are handled as sparse or as dense ones."""

    features: Features
    dense: bool
    nonzeros: int  # of a row, about, where rows are sparse

    @classmethod
    def of(cls, features: Features, states: npt.NDArray[Any]) -> Evaluator:
        """Decided by the share of non-zeros at a few states."""
        if is_binary(features):
            ones = np.size(features.active(states[:1]))
            return cls(features, dense=False, nonzeros=max(ones, 1))
        phi = features(states)
        if not sp.issparse(phi) or phi.nnz > DENSE_SHARE * phi.shape[0] * phi.shape[1]:
            return cls(features, dense=True, nonzeros=1)
        return cls(features, dense=False, nonzeros=1 + phi.nnz // phi.shape[0])

    def __call__(self, states: npt.NDArray[Any], ends: Bools) -> Rows:
        """φ(states), of rows that end episodes where ``ends`` says so."""
        size = self.features.size
        if is_binary(self.features):
            active = active_of(self.features, states)
            ptr = np.arange(0, active.size + 1, active.shape[1])
            return SparseRows.of(ends, ptr, active.ravel(), np.ones(active.size), size)
        phi = matrix_of(self.features, states)
        if self.dense:
            return DenseRows(ends, readonly(as_dense(phi)))
        csr = sp.csr_array(phi)
        return SparseRows.of(ends, csr.indptr, csr.indices, csr.data, size)


# --- sums over sparse rows ---------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def tally_sparse(
    ends: Bools,
    ptr: Ints,
    idx: Ints,
    val: Floats,
    mark: int,
    last: Ints,
    visits: Floats,
    episodes: Floats,
    squares: Floats,
    weights: Floats,
    sums: Floats,
) -> int:
    """Over the visited rows: how many rows and episodes have each feature, its squares, and weighted sums.

    ``last`` (l,) holds the mark of the latest episode that had the feature; returns the next mark.
    sums (k, l) += Σ_i weights_ki φ_i, weights (k, rows).
    """
    for i in range(ends.size - 1, -1, -1):
        if ends[i]:
            mark += 1
            continue
        for p in range(ptr[i], ptr[i + 1]):
            j, v = idx[p], val[p]
            if v != 0.0:
                visits[j] += 1.0
                squares[j] += v * v
                for k in range(len(sums)):
                    sums[k, j] += weights[k, i] * v
                if last[j] != mark:
                    last[j] = mark
                    episodes[j] += 1.0
    return mark


@njit(cache=True, nogil=True)
def gram_sparse(ends: Bools, ptr: npt.NDArray[Any], idx: npt.NDArray[Any], val: Floats, out: Floats) -> None:
    """out += Σ_i φ_i φ_iᵀ over the visited rows, of shape (l, l)."""
    for i in range(ends.size):
        if ends[i]:
            continue
        for p in range(ptr[i], ptr[i + 1]):
            for q in range(ptr[i], ptr[i + 1]):
                out[idx[p], idx[q]] += val[p] * val[q]
