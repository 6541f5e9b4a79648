"""Features of consecutive rows of a chunk, sparse or dense, behind one small set of operations.

Both kinds know ``ends``, which is true at the last row of every episode: those rows were not visited, and
enter only as what visited rows lead to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Ints, as_dense, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import active_of, is_binary, matrix_of
from policyrisk.lstd import _row_kernels

# From this share of non-zeros on, dense products are faster than sparse ones.
DENSE_SHARE = 1 / 8


class Memory:
    """Arrays to be used again: fresh memory costs more, page by page, than what is written to it.

    Threads share it; a deque is safe for that.
    """

    def __init__(self) -> None:
        self._buffers: deque[Floats] = deque()

    def take(self, size: int) -> Floats:
        """An array of at least this size that is not in use."""
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.empty(0)
        return buffer if buffer.size >= size else np.empty(size)

    def give(self, buffer: Floats) -> None:
        """What is not in use any more."""
        self._buffers.append(buffer)


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

    @property
    def matrix(self) -> sp.csr_array[Any, tuple[int, int]]:
        """φ, of shape (rows, size)."""
        return sp.csr_array((self.val, self.idx, self.ptr), shape=(len(self.ends), self.size))

    @property
    def visited(self) -> sp.csr_array[Any, tuple[int, int]]:
        """φ of the visited rows alone, of shape (visited, size)."""
        return sp.csr_array(self.matrix[np.flatnonzero(~self.ends)])

    def dot(self, w: Floats) -> Floats:
        """φ w, of shape (rows,)."""
        out = np.empty(self.ptr.size - 1)
        _row_kernels.row_values(self.ptr, self.idx, self.val, w, out)
        return out

    def weighted_sum(self, weight: Floats) -> Floats:
        """Σ_i weight_i φ_i, of shape (size,)."""
        return np.asarray(self.matrix.T @ weight)

    def by_episode(self, weight: Floats) -> Any:
        """Σ_t weight_t φ_t of every episode that ends in these rows or after them, (episodes, size)."""
        ptr, idx, val = _row_kernels.by_episode_sparse(
            self.ends, self.ptr, self.idx, self.val, weight, self.size
        )
        return sp.csr_array((val, idx, ptr), shape=(ptr.size - 1, self.size))


@dataclass(frozen=True, eq=False)
class DenseRows:
    """φ of some rows as an array."""

    ends: Bools  # (rows,)
    phi: Floats  # (rows, size)
    memory: Memory

    @cached_property
    def _space(self) -> Floats:
        return self.memory.take(self.phi.size)

    @cached_property
    def visited(self) -> Floats:
        """φ of the visited rows alone, of shape (visited, size), until they are released."""
        where = np.flatnonzero(~self.ends)
        out = self._space[: where.size * self.size].reshape(where.size, self.size)
        return np.take(self.phi, where, axis=0, out=out, mode="clip")

    def release(self) -> None:
        """Give back the memory of ``visited``."""
        if "visited" in self.__dict__:
            self.memory.give(self._space)
            del self.__dict__["visited"], self.__dict__["_space"]

    @property
    def size(self) -> int:
        """The number of features."""
        return int(self.phi.shape[1])

    def dot(self, w: Floats) -> Floats:
        """φ w, of shape (rows,)."""
        return self.phi @ w

    def weighted_sum(self, weight: Floats) -> Floats:
        """Σ_i weight_i φ_i, of shape (size,)."""
        return weight @ self.phi

    def by_episode(self, weight: Floats) -> Floats:
        """Σ_t weight_t φ_t of every episode that ends in these rows or after them, (episodes, size)."""
        out = np.zeros((int(np.count_nonzero(self.ends)) + 1, self.size))
        _row_kernels.by_episode_dense(self.ends, self.phi, weight, out)
        return out

    def sparse(self) -> SparseRows:
        """The same rows with every entry written out."""
        rows, size = self.phi.shape
        idx = np.tile(np.arange(size), rows)
        return SparseRows.of(self.ends, np.arange(0, rows * size + 1, size), idx, self.phi.ravel(), size)


Rows: TypeAlias = SparseRows | DenseRows


@dataclass(frozen=True, eq=False)
class Evaluator:
    """A feature map, and whether its rows are handled as sparse or as dense ones."""

    features: Features
    dense: bool
    nonzeros: int  # of a row, about, where rows are sparse
    memory: Memory

    @classmethod
    def of(cls, features: Features, states: npt.NDArray[Any], memory: Memory) -> Evaluator:
        """Decided by the share of non-zeros at a few states."""
        if is_binary(features):
            ones = np.size(features.active(states[:1]))
            return cls(features, dense=False, nonzeros=max(ones, 1), memory=memory)
        phi = features(states)
        if not sp.issparse(phi) or phi.nnz > DENSE_SHARE * phi.shape[0] * phi.shape[1]:
            return cls(features, dense=True, nonzeros=1, memory=memory)
        return cls(features, dense=False, nonzeros=1 + phi.nnz // phi.shape[0], memory=memory)

    def __call__(self, states: npt.NDArray[Any], ends: Bools) -> Rows:
        """φ(states), of rows that end episodes where ``ends`` says so."""
        size = self.features.size
        if is_binary(self.features):
            active = active_of(self.features, states)
            ptr = np.arange(0, active.size + 1, active.shape[1])
            return SparseRows.of(ends, ptr, active.ravel(), np.ones(active.size), size)
        phi = matrix_of(self.features, states)
        if self.dense:
            return DenseRows(ends, readonly(as_dense(phi)), self.memory)
        csr = sp.csr_array(phi)
        if not np.isfinite(csr.data).all():
            raise InvalidInputError(
                "features must be finite, got some that are not; look for nan or infinite features"
            )
        return SparseRows.of(ends, csr.indptr, csr.indices, csr.data, size)
