"""The product that A, C and D are made of, in total, where it has to stay sparse.

What :class:`policyrisk.lstd.trace_products.Total` is for a dense P, this is for one that would not fit. A
chunk's rows are only noted; when there are enough of them, all threads go through P by blocks of rows, and
each row is loaded, added to and stored again, its columns in order. Every row is summed in the order of the
data, so that the result does not depend on the number of threads.

Two channels have one pattern. With F entries, P takes 12 F bytes (one channel) or 20 F (two), whatever the
length of the data, and while it is summed a further ENOUGH notes of about 50 bytes each.

Traces last K steps, the fewest with κ^K ≤ TRACE_CUT, in every sum alike (b and e as well): the equations are
those of the λ-return that is cut off after K steps,

    G_t = (1−λ) Σ_{n<K} λ^{n−1} G_t^{(n)} + λ^{K−1} G_t^{(K)},      G^{(n)} being the n-step return,

so that where the features can represent J and M, its fixed point is still J and M: the cut costs no bias
there. With κ = 1 traces last to the end of the episode.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.threads import in_order
from policyrisk.errors import InvalidInputError
from policyrisk.lstd import _sparse_kernels, _sweep_kernels
from policyrisk.lstd.rows import SparseRows
from policyrisk.lstd.trace_products import TraceProduct, joined

# From where on a trace counts as 0 beside what it was, in sums that stay sparse.
TRACE_CUT = 1e-2
FOREVER = 1 << 40  # steps: longer than any episode
BLOCKS = 64  # of rows
# Notes are added up when there are a SHARE as many as P has entries, within bounds: fewer would mean to go
# through P too often, more would take memory.
SHARE, FEWEST, ENOUGH = 1 / 4, 1 << 21, 1 << 23
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


class SparseTotal:
    """P of all chunks as CSR arrays of shape (rows, columns), one per channel; chunks come in order."""

    def __init__(self, channels: int, rows: int, columns: int, steps: int) -> None:
        self._channels, self._shape, self._steps = channels, (rows, columns), steps
        self._bounds = list(pairwise(np.unique(np.linspace(0, rows, BLOCKS + 1).astype(int)).tolist()))
        self._blocks = [_empty(high - low) for low, high in self._bounds]
        self._noted: list[tuple[SparseRows, SparseRows, Floats, Floats]] = []
        self._visits = self.entries = 0
        self._decay = 0.0

    def add(self, part: TraceProduct) -> None:
        """Add a chunk's product."""
        self._decay = part.decay
        for at, rho, sigma in reversed(part.sparse):
            self._noted.append((rho, sigma, part.g[at], part.h[at]))
            self._visits += rho.idx.size
        if self._visits >= min(max(SHARE * self.entries, FEWEST), ENOUGH):
            self._sweep()

    def finish(self) -> list[sp.csr_array[Any, tuple[int, int]]]:
        """The sums, with everything in them; the blocks are used up."""
        self._sweep()
        ptr = np.zeros(self._shape[0] + 1, np.int32)
        idx = np.empty(self.entries, np.int32)
        values = [np.empty(self.entries) for _ in range(self._channels)]
        at = 0
        for number, (low, high) in enumerate(self._bounds):
            block = self._blocks[number]
            self._blocks[number] = _empty(0)  # so that no more than a block is there twice
            n = block[1].size
            ptr[low + 1 : high + 1] = at + block[0][1:]
            idx[at : at + n] = block[1]
            for value, each in zip(values, block[2:], strict=False):
                value[at : at + n] = each
            at += n
        return [sp.csr_array((value, idx, ptr), shape=self._shape) for value in values]

    def _sweep(self) -> None:
        """Add what was noted to the blocks, on all threads, and forget it."""
        if not self._noted:
            return
        rows = [rho for rho, _, _, _ in self._noted]
        columns = [sigma for _, sigma, _, _ in self._noted]
        g, h = (np.concatenate([note[which] for note in self._noted]) for which in (2, 3))
        stop = _sparse_kernels.stops(np.concatenate([rho.ends for rho in rows]), g)
        sigma = joined(columns)
        own = all(a is b for a, b in zip(rows, columns, strict=True))
        rho = sigma if own else joined(rows)
        self._noted, self._visits = [], 0
        begin, where, value = _sweep_kernels.index_rows(len(stop), *rho, stop, self._shape[0])
        del rho, rows, columns

        col_ptr, col_idx, col_val = sigma

        def block(number: int) -> None:
            (low, high), (ptr, idx, first, second) = self._bounds[number], self._blocks[number]
            self._blocks[number] = _sparse_kernels.sweep_sparse(
                low, high, begin, where, value, stop, g, h, self._decay, self._steps,
                col_ptr, col_idx, col_val, self._shape[1], ptr, idx, first, second,
            )  # fmt: skip

        for _ in in_order(block, range(len(self._bounds)), uses_blas=False):
            pass
        self.entries = sum(each[1].size for each in self._blocks)
        if self.entries > MOST_ENTRIES:
            raise InvalidInputError(
                f"features must keep the sums sparse, with at most {MOST_ENTRIES:,} entries, got "
                f"{self.entries:,}; use a smaller lam, whose traces are shorter, fewer tilings or larger "
                "tiles, or TD, which keeps no matrix"
            )


_Block = tuple[Ints, npt.NDArray[np.int32], Floats, Floats]


def _empty(rows: int) -> _Block:
    return np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0)
