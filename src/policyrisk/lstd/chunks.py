"""What one pass over episodes is made of: chunks of them, worked on by all threads.

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
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import get_num_threads

from policyrisk._core.arrays import Bools, readonly
from policyrisk._core.threads import controllable, single_threaded
from policyrisk.features import Features
from policyrisk.trajectories import Source, Trajectories, batches

SPARSE_CHUNK = 1 << 16  # transitions whose sparse traces and indices are in hand at once
DENSE_CHUNK = 1 << 12  # the same for dense features
DENSE_BLOCK = 1 << 11  # rows whose dense features and traces stay in a cache while they are used

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
        """The rows in blocks of about the same size, the last one first."""
        rows = len(self.ends)
        cuts = np.linspace(0, rows, max(round(rows / most), 1) + 1).astype(int).tolist()
        return [slice(begin, end) for begin, end in pairwise(cuts)][::-1]

    def outside(self, features: Features, second_features: Features) -> int:
        """How many visited rows lie outside either map's box."""
        masks = []
        for phi in (features,) if features == second_features else (features, second_features):
            test = getattr(phi, "outside", None)
            if test is not None:
                masks.append(np.asarray(test(self.states)))
        if not masks:
            return 0
        outside = masks[0] if len(masks) == 1 else masks[0] | masks[1]
        return int(np.count_nonzero(outside)) - int(np.count_nonzero(outside[self.ends]))


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

    A function that ``uses_blas`` runs on one thread where BLAS cannot be told to leave the others to us. Its
    results are dense matrices, of which fewer may wait.
    """
    threads = get_num_threads() if controllable() or not uses_blas else 1
    most = threads if uses_blas else 2 * threads
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
                if len(waiting) > most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
