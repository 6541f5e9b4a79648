"""The product that A, C and D are made of, chunk by chunk and in total.

    P_c = Σ_s (g_sc z_{s−1} + h_sc ρ_s) σ_sᵀ = Σ_i ρ_i (h_ic σ_i + Σ_{s > i} κ^{s−1−i} g_sc σ_s)ᵀ

ρ and σ are rows of features, z_s = κ z_{s−1} + ρ_s; i runs over the visited rows and s over the later rows
of the same episode; c numbers the channels, one or two.

Products of dense columns are made chunk by chunk, with BLAS. Of sparse columns a chunk only notes where its
rows are, and when there are enough of these notes, all threads add them up, each some rows of P (see
:mod:`policyrisk.lstd._sweep_kernels`). Every row of P is summed in the order of the data, so that the result
does not depend on the number of threads.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numba import get_num_threads

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.threads import in_order
from policyrisk.errors import InvalidInputError
from policyrisk.lstd import _sweep_kernels
from policyrisk.lstd.rows import DenseRows, Memory, Rows, SparseRows

# Sums of rows are added to P when enough visits were noted: FEWEST at first, and twice as many after every
# time that a touched entry of P had fewer than WORTHWHILE additions behind it, up to MOST.
FEWEST, MOST, WORTHWHILE = 1 << 16, 1 << 20, 8
ALONE = 1 << 12  # visits that one thread adds up sooner than others are woken


class _Positions:
    """What is noted of sparse rows: ``step`` and ``visit`` (size, 4) of the kernels."""

    def __init__(self, size: int, memory: Memory) -> None:
        self._memory, self._buffer = memory, memory.take(8 * size)
        self.step, self.visit = self._buffer[: 8 * size].reshape(2, size, 4)
        self.column, self.ahead = self.step.view(np.int64)[:, 3], self.visit.view(np.int64)[:, 3]
        self.count = 0  # positions in use

    def put(self, more: _Positions) -> None:
        """Put others after these, for which there has to be room."""
        at = slice(self.count, self.count + more.count)
        self.step[at], self.visit[at] = more.step[: more.count], more.visit[: more.count]
        self.count = at.stop

    def with_room(self, more: int) -> _Positions:
        """These, or a copy with room for more."""
        size = len(self.step)
        if self.count + more <= size:
            return self
        larger = _Positions(max(2 * size, self.count + more), self._memory)
        larger.put(self)
        return larger

    def release(self) -> None:
        """Give back the memory; the positions are of no use after that."""
        self._memory.give(self._buffer)


class TraceProduct:
    """P of a chunk's episodes: its blocks are put in one by one, the last one first."""

    def __init__(self, g: Floats, h: Floats, decay: float, col_size: int, memory: Memory) -> None:
        self.g, self.h, self.decay = g, h, decay  # g and h: (rows, channels)
        self.sparse: list[tuple[slice, SparseRows, SparseRows]] = []  # the first one in time last
        self.dense: Any = None  # (row_size, channels · col_size), not added up yet
        self._shape = (g.shape[1], col_size)
        self._memory = memory
        self._positions: _Positions | None = None

    @cached_property
    def _carry(self) -> Floats:
        """The trace of the block that comes after, in time, of dense columns."""
        return np.zeros(self._shape)

    def block(self, at: slice, rows: Rows, columns: Rows) -> None:
        """Put in the rows ``at``: ρ and σ."""
        if isinstance(columns, SparseRows):
            rho = rows.sparse() if isinstance(rows, DenseRows) else rows
            self.sparse.append((at, rho, columns))
            return
        visited, width = int(np.count_nonzero(~rows.ends)), self._carry.size
        buffer = self._memory.take(visited * width)
        traces = buffer[: visited * width].reshape(visited, *self._carry.shape)
        _sweep_kernels.traces_dense(
            rows.ends, columns.phi, self.g[at], self.h[at], self.decay, self._carry, traces
        )
        product = rows.visited.T @ traces.reshape(visited, width)
        self.dense = product if self.dense is None else np.add(self.dense, product, out=self.dense)
        self._memory.give(buffer)

    @cached_property
    def runs(self) -> bool:
        """Whether sparse rows have one entry each, and are their own columns."""
        return all(rho is sigma and rho.one_hot for _, rho, sigma in self.sparse)

    def finish(self) -> None:
        """Note where the sparse rows are, after the last block: on the thread that has them at hand."""
        self._positions = self._noted() if self.sparse else None

    def take_positions(self) -> _Positions:
        """Where the sparse rows are; who takes them releases them."""
        taken, self._positions = self._positions or self._noted(), None
        return taken

    def _noted(self) -> _Positions:
        x = _Positions(sum(len(rho.ends) for _, rho, _ in self.sparse), self._memory)
        for at, rho, _ in reversed(self.sparse):
            weights = self.g[at], self.h[at], self.decay, x.count, x.step, x.visit
            if self.runs:
                x.count = _sweep_kernels.append_runs(rho.ends, rho.idx, rho.val, *weights, x.column, x.ahead)
            else:
                x.count = _sweep_kernels.append_rows(rho.ends, *weights, x.ahead)
        col_ptr, _, col_val = joined([] if self.runs else [sigma for _, _, sigma in reversed(self.sparse)])
        _sweep_kernels.reach(x.count, x.step, x.ahead, self.runs, col_ptr, col_val)
        return x


class Total:
    """P of all chunks, of shape (channels, rows, columns); chunks come in the order of the data."""

    def __init__(self, channels: int, rows: int, columns: int) -> None:
        self._sums = np.zeros((channels, rows, columns))
        self._enough = FEWEST
        self._positions = _Positions(0, Memory())
        self._visits = 0  # entries of the rows at these positions
        self._runs = True
        self._rows: list[SparseRows] = []  # what the positions are, where they are not runs
        self._columns: list[SparseRows] = []

    def add(self, part: TraceProduct) -> None:
        """Add a chunk's product."""
        if part.dense is not None:
            if not np.isfinite(part.dense).all():
                raise InvalidInputError(
                    "features and their products must be finite, got some that are not; "
                    "look for nan, infinite or huge features"
                )
            channels, rows, columns = self._sums.shape
            self._sums += part.dense.reshape(rows, channels, columns).transpose(1, 0, 2)
        if part.sparse:
            self._note(part)
        if self._visits >= self._enough:
            self._sweep()

    def finish(self) -> Floats:
        """The sums, with everything in them."""
        self._sweep()
        return self._sums

    def _note(self, part: TraceProduct) -> None:
        if part.runs != self._runs:
            self._sweep()
            self._runs = part.runs
        more = part.take_positions()
        self._positions = self._positions.with_room(more.count)
        self._positions.put(more)
        more.release()
        if self._runs:
            self._visits += more.count
            return
        for _, rho, sigma in reversed(part.sparse):
            self._visits += rho.idx.size
            self._rows.append(rho)
            self._columns.append(sigma)

    def _sweep(self) -> None:
        """Add what was noted to the sums, on all threads, and forget it."""
        x, rows = self._positions, self._sums.shape[1]
        if x.count == 0:
            return
        col_ptr, col_idx, col_val = joined(self._columns)  # nothing, if these are runs
        if self._runs:
            begin, where = _sweep_kernels.index_runs(x.count, x.column, x.ahead, rows)
            value = np.zeros(0)
        else:
            begin, where, value = _sweep_kernels.index_rows(x.count, *joined(self._rows), x.ahead, rows)

        def some_rows(bounds: tuple[int, int]) -> tuple[int, int]:
            return _sweep_kernels.sweep(
                *bounds, begin, where, value, x.step, x.visit, x.column, x.ahead,
                self._runs, col_ptr, col_idx, col_val, self._sums,
            )  # fmt: skip

        done = list(in_order(some_rows, _shares(begin), uses_blas=False))
        additions, entries = (sum(each) for each in zip(*done, strict=True))
        if additions < WORTHWHILE * entries:
            self._enough = min(2 * self._enough, MOST)
        x.count = self._visits = 0
        self._rows, self._columns = [], []


def _shares(begin: Ints) -> list[tuple[int, int]]:
    """Rows low, …, high − 1 with about equally many visits, several shares for each thread."""
    threads = get_num_threads() if begin[-1] > ALONE else 1
    count = 16 * threads if threads > 1 else 1
    cuts = np.searchsorted(begin, np.linspace(0, begin[-1], count + 1)[1:-1])
    bounds = [0, *cuts.tolist(), len(begin) - 1]
    return [(low, high) for low, high in pairwise(bounds) if low < high]


def joined(parts: list[SparseRows]) -> tuple[Ints, Ints, Floats]:
    """ptr, idx and val of rows below each other."""
    if not parts:
        return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0)
    sizes = np.cumsum([0, *(part.idx.size for part in parts)])
    ptr = [part.ptr[1:] + first for part, first in zip(parts, sizes[:-1], strict=True)]
    return (
        np.concatenate([[0], *ptr]),
        np.concatenate([part.idx for part in parts]),
        np.concatenate([part.val for part in parts]),
    )
