"""What one pass over episodes is made of: chunks of them, their features, and products of the two.

A *chunk* is a few thousand transitions of whole episodes. Chunks are worked on by all threads and their
sums added in the order of the data, so that the result does not depend on the number of threads.
Within a chunk an episode of length T takes T + 1 *rows*: its visited states, and its last one, for which
``ends`` is true. The last state of a terminated episode is never shown to the features: its row repeats
the state before, and weighs nothing.

Features are called from several threads at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import get_num_threads

from policyrisk._arrays import Bools, Floats, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.lstd import _lagged_kernels, _packs
from policyrisk.lstd._blas import controllable, single_threaded
from policyrisk.lstd.rows import DenseRows, Rows, SparseRows
from policyrisk.trajectories import Source, Trajectories, batches

SPARSE_CHUNK = 1 << 16  # transitions whose sparse traces and indices are in hand at once
DENSE_CHUNK = 1 << 12  # the same for dense features
DENSE_BLOCK = 1 << 10  # rows whose dense features and traces stay in a cache while they are used

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, eq=False)
class Chunk:
    """Whole episodes, row by row."""

    data: Trajectories
    states: npt.NDArray[Any]  # (rows, dim): a terminated episode's last row repeats the one before
    ends: Bools  # (rows,)

    @classmethod
    def of(cls, data: Trajectories) -> Chunk:
        """The rows of some episodes."""
        states = data.states
        terminal = data.final_rows[data.terminated]
        if terminal.size:
            states = states.copy()
            states[terminal] = states[terminal - 1]
        ends = np.zeros(len(states), dtype=np.bool_)
        ends[data.final_rows] = True
        return cls(data, states, readonly(ends))

    def blocks(self, most: int) -> list[slice]:
        """The rows in blocks, the last one first: only an episode longer than a chunk makes several."""
        rows = len(self.ends)
        if rows <= 3 * most:
            return [slice(0, rows)]
        return [slice(max(end - most, 0), end) for end in range(rows, 0, -most)]

    def outside(self, features: Features, second_features: Features) -> int:
        """How many visited rows lie outside either map's box."""
        masks = []
        for phi in (features,) if features == second_features else (features, second_features):
            test = getattr(phi, "outside", None)
            if test is not None:
                masks.append(np.asarray(test(self.states)))
        if not masks:
            return 0
        return int(np.count_nonzero(np.logical_or.reduce(masks) & ~self.ends))


def chunks(source: Source, most: int) -> Iterator[Trajectories]:
    """The source's episodes in order, about ``most`` transitions at a time.

    Small batches of a stream are put together, large ones are cut between episodes.
    """
    waiting: list[Trajectories] = []
    count = 0
    for batch in batches(source):
        if len(batch) == 0:
            continue
        waiting.append(batch)
        count += batch.transitions
        if count >= most:
            yield from _cut(waiting[0] if len(waiting) == 1 else Trajectories.concatenate(waiting), most)
            waiting, count = [], 0
    if waiting:
        yield from _cut(waiting[0] if len(waiting) == 1 else Trajectories.concatenate(waiting), most)


def _cut(data: Trajectories, most: int) -> Iterator[Trajectories]:
    first = 0
    while first < len(data):
        last = int(np.searchsorted(data.offsets, data.offsets[first] + most))
        last = min(max(last, first + 1), len(data))
        yield data[first:last]
        first = last


def in_order(function: Callable[[_In], _Out], items: Iterable[_In], *, uses_blas: bool) -> Iterator[_Out]:
    """``function`` of every item, on all threads, in the items' order; few results wait at a time.

    A function that ``uses_blas`` runs on one thread where BLAS cannot be told to leave the others to us.
    """
    threads = get_num_threads() if controllable() or not uses_blas else 1
    rest = iter(items)
    begin = list(islice(rest, 2))
    if threads == 1 or len(begin) < 2:
        yield from map(function, chain(begin, rest))
        return
    with single_threaded(), ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Out]] = deque()
        try:
            for item in chain(begin, rest):
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Memory:
    """Arrays to be used again: fresh memory costs more, page by page, than what is written to it.

    Threads share it; deques are safe for that.
    """

    def __init__(self) -> None:
        self.packs: deque[_packs.Pack] = deque()
        self.buffers: deque[Floats] = deque()

    def pack(self) -> _packs.Pack:
        """Some pack that is not in use."""
        try:
            return self.packs.pop()
        except IndexError:
            return np.empty(1 << 12, np.int64), np.empty(1 << 16)

    def buffer(self, size: int) -> Floats:
        """An array of at least this size that is not in use."""
        try:
            buffer = self.buffers.pop()
        except IndexError:
            buffer = np.empty(0)
        return buffer if buffer.size >= size else np.empty(size)


class Lagged:
    """P_c = Σ_i ρ_i (h_ic σ_i + Σ_{s > i} κ^{s−1−i} g_sc σ_s)ᵀ over a chunk's episodes.

    i runs over the visited rows and s over the later rows of the same episode; c numbers the channels.
    The chunk's blocks are put in one by one, the last one first, and the result is added to a total.
    """

    def __init__(
        self, g: Floats, h: Floats, decay: float, row_size: int, col_size: int, memory: Memory
    ) -> None:
        self.g, self.h, self.decay = g, h, decay  # g and h: (rows, channels)
        self._row_size = row_size
        self._carry = np.zeros((g.shape[1], col_size))  # the trace of the block that comes after, in time
        self._memory = memory
        self._packs: list[_packs.Pack] = []
        self._dense: Floats | None = None  # (row_size, channels · col_size)

    def block(self, at: slice, rows: Rows, columns: Rows) -> None:
        """Put in the rows ``at``: ρ and σ."""
        if isinstance(rows, DenseRows) and isinstance(columns, DenseRows):
            self._block_dense(at, rows, columns)
            return
        rho, sigma = (phi if isinstance(phi, SparseRows) else phi.sparse() for phi in (rows, columns))
        ints, floats = self._memory.pack()
        pack = _lagged_kernels.lagged_sparse(
            rho.ends, rho.ptr, rho.idx, rho.val, sigma.ptr, sigma.idx, sigma.val, self.g[at], self.h[at],
            self.decay, self._row_size, rows is columns and rho.one_hot, self._carry, ints, floats,
        )  # fmt: skip
        self._packs.append(pack)

    def _block_dense(self, at: slice, rows: DenseRows, columns: DenseRows) -> None:
        visited, width = len(rows.visited), self._carry.size
        buffer = self._memory.buffer(visited * width)
        traces = buffer[: visited * width].reshape(visited, *self._carry.shape)
        _lagged_kernels.lagged_dense(
            rows.ends, columns.phi, self.g[at], self.h[at], self.decay, self._carry, traces
        )
        product = rows.visited.T @ traces.reshape(visited, width)
        self._dense = product if self._dense is None else np.add(self._dense, product, out=self._dense)
        self._memory.buffers.append(buffer)

    def add_to(self, out: Floats) -> None:
        """Add P to out (channels, row_size, col_size), once."""
        if self._dense is not None:
            if not np.isfinite(self._dense).all():
                raise InvalidInputError(
                    "features and their products must be finite, got some that are not; "
                    "look for nan, infinite or huge features"
                )
            out += self._dense.reshape(self._row_size, len(out), -1).transpose(1, 0, 2)
        for pack in self._packs:
            _packs.unpack(*pack, out)
            self._memory.packs.append(pack)
        self._dense, self._packs = None, []
