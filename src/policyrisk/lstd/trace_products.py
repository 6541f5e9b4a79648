"""The product that A, C and D are made of, chunk by chunk and in total.

    P_c = Σ_s (g_sc z_{s−1} + h_sc ρ_s) σ_sᵀ = Σ_i ρ_i (h_ic σ_i + Σ_{s > i} κ^{s−1−i} g_sc σ_s)ᵀ

ρ and σ are rows of features, z_s = κ z_{s−1} + ρ_s; i runs over the visited rows and s over the later rows
of the same episode; c numbers the channels, one or two.

Products of dense columns are made chunk by chunk, with BLAS. Of sparse columns a chunk only notes where its
rows are, and when there are enough of these notes, all threads add them up, each some rows of P (see
:mod:`policyrisk.lstd._sweep_kernels`). Every row of P is summed in the order of the data, so that the result
does not depend on the number of threads.

A P that would not fit stays sparse (:class:`SparseTotal`): all threads go through it by blocks of rows, and
each row is loaded, added to and stored again. Two channels have one pattern. With F entries, P takes 12 F
bytes (one channel) or 20 F (two), whatever the length of the data, and while it is summed a further
SPARSE_MOST notes of about 100 bytes each.
Traces then last K steps, the fewest with κ^K ≤ TRACE_CUT, in every sum alike (b and e as well): the equations
are those of the λ-return that is cut off after K steps,

    G_t = (1−λ) Σ_{n<K} λ^{n−1} G_t^{(n)} + λ^{K−1} G_t^{(K)},      G^{(n)} being the n-step return,

so that where the features can represent J and M, its fixed point is still J and M: the cut costs no bias
there. With κ = 1 traces last to the end of the episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from operator import is_
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import get_num_threads

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.devices import in_order
from policyrisk.errors import InvalidInputError
from policyrisk.lstd import _sweep_kernels
from policyrisk.lstd._sweep_kernels import Entries, ProductRows, RowSources
from policyrisk.lstd.rows import Rows, SparseRows

# Sums of rows are added to P when enough visits were noted: FEWEST at first, and twice as many after every
# time that a touched entry of P had fewer than WORTHWHILE additions behind it, up to MOST.
FEWEST, MOST, WORTHWHILE = 1 << 16, 1 << 20, 8
ALONE = 1 << 12  # visits that one thread adds up sooner than others are woken

# From where on a trace counts as 0 beside what it was, in sums that stay sparse.
TRACE_CUT = 1e-2
FOREVER = 1 << 40  # steps: longer than any episode
BLOCKS = 64  # of rows
# To a sparse P notes are added when there are a SHARE as many as it has entries, within bounds: fewer would
# mean to go through P too often, more would take memory.
SHARE, SPARSE_FEWEST, SPARSE_MOST = 1 / 4, 1 << 21, 1 << 23
MOST_ENTRIES = 500_000_000  # of P: 10 GB with two channels


def steps_of(decay: float, cut: float) -> int:
    """K, the fewest steps after which a trace has become ``cut`` or less of what it was; FOREVER for cut 0.

    >>> steps_of(0.9, 0.01), steps_of(0.0, 0.01), steps_of(1.0, 0.01) == FOREVER
    (44, 1, True)
    """
    if decay == 0.0:
        return 1
    if decay == 1.0 or cut == 0.0:
        return FOREVER
    return max(math.ceil(math.log(cut) / math.log(decay) - 1e-9), 1)


class _Positions:
    """What is noted of sparse rows: ``step`` and ``visit`` (size, 4) of the kernels."""

    def __init__(self, size: int) -> None:
        self.step, self.visit = np.empty((2, size, 4))
        self.column, self.ahead = self.step.view(np.int64)[:, 3], self.visit.view(np.int64)[:, 3]
        self.count = 0  # positions in use

    def with_others(self, more: _Positions) -> _Positions:
        """These and others after them."""
        size, count = len(self.step), self.count + more.count
        joint = self if count <= size else _Positions(max(2 * size, count))
        for part in (self, more) if joint is not self else (more,):
            at = slice(joint.count, joint.count + part.count)
            joint.step[at], joint.visit[at] = part.step[: part.count], part.visit[: part.count]
            joint.count = at.stop
        return joint


class Product:
    """A product of a chunk's episodes."""

    positions: _Positions | None = None  # of sparse rows, once all of them are there
    sparse: Sequence[tuple[slice, SparseRows, SparseRows]] = ()  # the first one in time last

    def __init__(self, matrix: Any = None) -> None:
        self.matrix = matrix  # (row_size, channels · col_size), of what is multiplied out

    def block(self, at: slice, rows: Rows, columns: Rows) -> None:
        """Put in the rows ``at``: ρ and σ. Where the product is made as a whole there is nothing to do."""

    def finish(self) -> None:
        """Note what the sums need, after the last block."""


class TraceProduct(Product):
    """P of a chunk's episodes: its blocks are put in one by one, the last one first."""

    def __init__(self, g: Floats, h: Floats, decay: float, col_size: int, steps: int = FOREVER) -> None:
        super().__init__()
        self.g, self.h, self.decay, self.steps = g, h, decay, steps  # g and h: (rows, channels)
        self.sparse: list[tuple[slice, SparseRows, SparseRows]] = []
        self._carry = np.zeros((g.shape[1], col_size))  # the trace of the block that comes after, in time

    def block(self, at: slice, rows: Rows, columns: Rows) -> None:
        """Put in the rows ``at``: ρ and σ."""
        if isinstance(columns, SparseRows):
            self.sparse.append((at, rows.sparse(), columns))
            return
        visited = int(np.count_nonzero(~rows.ends))
        traces = np.empty((visited, *self._carry.shape))
        _sweep_kernels.traces_dense(
            rows.ends, columns.matrix, self.g[at], self.h[at], self.decay, self._carry, traces
        )
        product = rows.visited.T @ traces.reshape(visited, self._carry.size)
        self.matrix = product if self.matrix is None else np.add(self.matrix, product, out=self.matrix)

    @cached_property
    def runs(self) -> bool:
        """Whether sparse rows have one entry each, are their own columns, and stay in the traces."""
        one_hot = all(rho is sigma and rho.one_hot for _, rho, sigma in self.sparse)
        return one_hot and self.steps == FOREVER

    def finish(self) -> None:
        """Note where the sparse rows are, after the last block: on the thread that has them at hand."""
        if not self.sparse:
            return
        x = _Positions(sum(len(rho.ends) for _, rho, _ in self.sparse))
        for at, rho, _ in reversed(self.sparse):
            g, h = self.g[at], self.h[at]
            if self.runs:
                x.count = _sweep_kernels.append_runs(
                    rho.ends, rho.idx, rho.val, g, h, self.decay, x.count, x.step, x.visit, x.column, x.ahead
                )
                continue
            step, visit = (each[x.count : x.count + len(rho.ends)] for each in (x.step, x.visit))
            step[:], visit[:] = (self.decay, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)
            step[:, 1 : 1 + g.shape[1]], visit[:, 1 : 1 + g.shape[1]] = g, h
            x.ahead[x.count : x.count + len(rho.ends)] = np.where(rho.ends, _sweep_kernels.END, 0)
            x.count += len(rho.ends)
        sigma = joined([] if self.runs else [sigma for _, _, sigma in reversed(self.sparse)])
        _sweep_kernels.reach(x.count, x.step, x.ahead, self.runs, sigma, self.steps)
        self.positions = x


class Total:
    """P of all chunks, of shape (channels, rows, columns); chunks come in the order of the data."""

    def __init__(self, channels: int, rows: int, columns: int) -> None:
        self._shape, self._steps, self._leave = (channels, rows, columns), FOREVER, 0.0
        self._sums = np.zeros(self._shape)
        self._enough = FEWEST
        self._positions = _Positions(0)
        self._visits = 0  # entries of the rows at these positions
        self._runs = True
        self._rows: list[SparseRows] = []  # what the positions are, where they are not runs
        self._columns: list[SparseRows] = []

    def add(self, part: Product) -> None:
        """Add a chunk's product."""
        if part.matrix is not None:
            self.put(part.matrix)
        if isinstance(part, TraceProduct) and part.positions is not None:
            self._note(part, part.positions)
            part.positions = None
        if self._visits >= self._enough:
            self._sweep()

    def put(self, product: Floats) -> None:
        """Add a product of dense rows, (rows, channels · columns)."""
        channels, rows, columns = self._shape
        self._sums += product.reshape(rows, channels, columns).transpose(1, 0, 2)

    def finish(self) -> list[Any]:
        """The sums, with everything in them."""
        self._sweep()
        return list(self._sums)

    def _note(self, part: TraceProduct, more: _Positions) -> None:
        if part.runs != self._runs:
            self._sweep()
            self._runs = part.runs
        self._positions = self._positions.with_others(more)
        if self._runs:
            self._visits += more.count
            return
        for _, rho, sigma in reversed(part.sparse):
            self._visits += rho.idx.size
            self._rows.append(rho)
            self._columns.append(sigma)

    def _sweep(self) -> None:
        """Add what was noted to the sums, on all threads, and forget it."""
        x, n = self._positions, self._positions.count
        if n == 0:
            return
        if self._runs:
            rho = sigma = Entries(np.arange(n + 1), x.column[:n].copy(), np.ones(n))
        else:
            sigma = joined(self._columns)
            rho = sigma if all(map(is_, self._rows, self._columns)) else joined(self._rows)
        visits = _sweep_kernels.index_visits(n, rho, x.ahead, self._shape[1], self._steps, self._leave)
        del rho
        self._add_rows(RowSources(visits, x.step, x.visit, x.column, self._runs, sigma))
        x.count = self._visits = 0
        self._rows, self._columns = [], []

    def _add_rows(self, notes: RowSources) -> None:
        def some_rows(bounds: tuple[int, int]) -> tuple[int, int]:
            return _sweep_kernels.sweep(*bounds, notes, self._sums)

        done = list(in_order(some_rows, _shares(notes.visits.begin), uses_blas=False))
        additions, entries = (sum(each) for each in zip(*done, strict=True))
        if additions < WORTHWHILE * entries:
            self._enough = min(2 * self._enough, MOST)


class SparseTotal(Total):
    """P of all chunks as CSR arrays of shape (rows, columns), one per channel."""

    def __init__(self, channels: int, rows: int, columns: int, decay: float, steps: int) -> None:
        super().__init__(0, rows, columns)
        # Without a trace nothing is left that would have to leave it.
        self._shape, self._steps, self._leave = (
            (channels, rows, columns),
            steps if decay else FOREVER,
            decay**steps,
        )
        self._bounds = list(pairwise(np.unique(np.linspace(0, rows, BLOCKS + 1).astype(int)).tolist()))
        nothing = np.zeros(0, np.int32), np.zeros(0), np.zeros(0)
        self._blocks = [
            ProductRows(np.zeros(high - low + 1, np.int64), *nothing) for low, high in self._bounds
        ]
        self._enough, self.entries = SPARSE_FEWEST, 0

    def finish(self) -> list[sp.csr_array[Any, tuple[int, int]]]:
        """The sums, with everything in them; the blocks are used up."""
        self._sweep()
        channels = self._shape[0]
        ptr = np.zeros(self._shape[1] + 1, np.int32)
        idx = np.empty(self.entries, np.int32)
        values = [np.empty(self.entries) for _ in range(channels)]
        at = 0
        for low, high in self._bounds:
            starts, columns, *both = self._blocks.pop(0)  # so that no more than a block is there twice
            n = columns.size
            ptr[low + 1 : high + 1] = at + starts[1:]
            idx[at : at + n] = columns
            for value, each in zip(values, both, strict=False):
                value[at : at + n] = each
            at += n
        return [sp.csr_array((value, idx, ptr), shape=self._shape[1:]) for value in values]

    def _add_rows(self, notes: RowSources) -> None:
        channels, _, columns = self._shape

        def block(number: int) -> ProductRows:
            bounds, old = self._bounds[number], self._blocks[number]
            return _sweep_kernels.sweep_sparse(*bounds, notes, columns, channels == 2, old)

        for number, found in enumerate(in_order(block, range(len(self._bounds)), uses_blas=False)):
            self._blocks[number] = found
        self.entries = sum(each.idx.size for each in self._blocks)
        if self.entries > MOST_ENTRIES:
            raise InvalidInputError(
                f"features must keep the sums sparse, with at most {MOST_ENTRIES:,} entries, got "
                f"{self.entries:,}; use a smaller lam, whose traces are shorter, fewer tilings or larger "
                "tiles, or TD, which keeps no matrix"
            )
        self._enough = min(max(int(SHARE * self.entries), SPARSE_FEWEST), SPARSE_MOST)


def _shares(begin: Ints) -> list[tuple[int, int]]:
    """Rows low, …, high − 1 with about equally many visits, several shares for each thread."""
    threads = get_num_threads() if begin[-1] > ALONE else 1
    count = 16 * threads if threads > 1 else 1
    cuts = np.searchsorted(begin, np.linspace(0, begin[-1], count + 1)[1:-1])
    bounds = [0, *cuts.tolist(), len(begin) - 1]
    return [(low, high) for low, high in pairwise(bounds) if low < high]


def joined(parts: Sequence[SparseRows]) -> Entries:
    """Rows below each other."""
    if not parts:
        return Entries(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0))
    sizes = np.cumsum([0, *(part.idx.size for part in parts)])
    ptr = [part.ptr[1:] + first for part, first in zip(parts, sizes[:-1], strict=True)]
    return Entries(
        np.concatenate([[0], *ptr]),
        np.concatenate([part.idx for part in parts]),
        np.concatenate([part.val for part in parts]),
    )
