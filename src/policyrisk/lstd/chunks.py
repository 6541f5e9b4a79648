"""What one pass over episodes is made of: chunks of them, and how their features are computed.

A *chunk* is whole episodes: about 4,000 transitions where features are dense, up to 65,000 where they are
sparse. Chunks are worked on by all threads and their sums added in the order of the data, so that the result
does not depend on the number of threads. Within a chunk an episode of length T takes T + 1 *rows*: its
visited states, and its last one, for which ``ends`` is true. The last state of a terminated episode is never
shown to the features: its row repeats the state before, and weighs nothing.

Features are called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, readonly
from policyrisk._core.threads import in_order
from policyrisk.equations import too_many_for_dense
from policyrisk.features import Features
from policyrisk.features.protocol import outside
from policyrisk.lstd import _kernels, trace_products
from policyrisk.lstd.rows import Evaluator, Memory, Rows
from policyrisk.lstd.trace_products import SparseTotal, Total, steps_of
from policyrisk.trajectories import Source, Trajectories, batches, pieces

SPARSE_CHUNK = 1 << 16  # transitions whose sparse traces and indices are in hand at once
DENSE_CHUNK = 1 << 12  # the same for dense features
DENSE_BLOCK = 1 << 11  # rows whose dense features and traces stay in a cache while they are used
T = TypeVar("T")
_PROBE = 64  # states that decide whether features are sparse


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

    def at_arrival(self, x: Floats) -> Floats:
        """x_t (transitions,) at the row of x_{t+1}, 0 at an episode's first row and where it terminated."""
        out = np.zeros(len(self.ends))
        out[self.data.visited_rows + 1] = x
        out[self.data.final_rows[self.data.terminated]] = 0.0
        return out

    def outside(self, maps: Sequence[Evaluator]) -> int:
        """How many visited rows lie outside a map's box."""
        beyond = outside([each.features for each in maps], self.states)
        return int(np.count_nonzero(beyond)) - int(np.count_nonzero(beyond[self.ends]))


def chunks(source: Iterable[Trajectories], most: int) -> Iterator[Trajectories]:
    """The batches' episodes in order, about ``most`` transitions at a time.

    Small batches of a stream are put together, large ones are cut between episodes.
    """
    waiting: list[Trajectories] = []
    count = 0
    for batch in chain(source, [None]):
        if batch is not None:
            waiting.append(batch)
            count += batch.transitions
        if waiting and (batch is None or count >= most):
            yield from pieces(waiting[0] if len(waiting) == 1 else Trajectories.concatenate(waiting), most)
            waiting, count = [], 0


def by_chunks(
    work: Callable[[Plan, Trajectories], T],
    source: Source,
    features: Features,
    second: Features,
    lam: float,
    discount: float,
) -> Iterator[T]:
    """``work`` of the plan and each chunk of a source, on all threads, in the order of the data."""
    plan, parts = Plan.of(source, features, second, lam, discount)
    if plan is not None:
        yield from in_order(partial(work, plan), parts, uses_blas=plan.dense)


@dataclass(frozen=True, eq=False)
class Plan:
    """How the products are computed for a pair of feature maps."""

    mean: Evaluator
    second: Evaluator
    shared: bool  # φ_M is φ_J
    lam: float
    discount: float
    memory: Memory

    @classmethod
    def of(
        cls,
        source: Source,
        features: Features,
        second: Features,
        lam: float,
        discount: float,
        *,
        cut: bool = True,
    ) -> tuple[Plan | None, Iterator[Trajectories]]:
        """The plan that suits the source's first few states (None without data), and the source in chunks.

        Or, where it is not to be ``cut``, in batches as they come.
        """
        batches_left = (batch for batch in batches(source) if len(batch))
        first = next(batches_left, None)
        if first is None:
            return None, batches_left
        states = first.states[first.visited_rows[:_PROBE]]
        shared = second == features
        memory = Memory()
        mean = Evaluator.of(features, states, memory)
        other = mean if shared else Evaluator.of(second, states, memory)
        plan = cls(mean, other, shared, lam, discount, memory)
        whole = chain([first], batches_left)
        return plan, chunks(whole, DENSE_CHUNK if plan.dense else plan.block_size) if cut else whole

    def blocks(self, chunk: Chunk) -> Iterator[tuple[slice, Rows, Rows]]:
        """A chunk's blocks, the last one first: where they are, φ_J and φ_M."""
        for at in chunk.blocks(self.block_size):
            phi_J = self.mean(chunk.states[at], chunk.ends[at])
            yield at, phi_J, phi_J if self.shared else self.second(chunk.states[at], chunk.ends[at])

    @property
    def maps(self) -> tuple[Evaluator, ...]:
        """φ_J, and φ_M where it is another one."""
        return (self.mean,) if self.shared else (self.mean, self.second)

    @property
    def dense(self) -> bool:
        """Whether either map is dense."""
        return self.mean.dense or self.second.dense

    @property
    def block_size(self) -> int:
        """How many rows to work on at a time, about: fewer where each has many entries, to bound memory."""
        nonzeros = max(self.mean.nonzeros, self.second.nonzeros)
        if self.sparse_sums:
            return SPARSE_CHUNK // 4
        return DENSE_BLOCK if self.dense else max(SPARSE_CHUNK // nonzeros**2, 256)

    @property
    def sparse_sums(self) -> bool:
        """Whether the sums stay sparse."""
        return not self.dense and too_many_for_dense(self.mean.features, self.second.features)

    @property
    def trace_cut(self) -> float:
        """What is left of a trace where it is cut off, 0 where it lasts."""
        return trace_products.TRACE_CUT if self.sparse_sums else 0.0

    @property
    def decays(self) -> tuple[float, float]:
        """κ of the traces z and y."""
        return self.lam * self.discount, self.lam * self.discount**2

    def to_go(self, x: Floats, chunk: Chunk, decay: float) -> Floats:
        """Σ_{s≥t} κ^{s−t} x_s at the rows (rows,), as far as the traces last, 0 where episodes end."""
        out = np.empty(len(chunk.ends))
        _kernels.to_go(x, chunk.data.lengths, decay, steps_of(decay, self.trace_cut), out)
        return out

    @property
    def one_matrix(self) -> bool:
        """Whether C is A."""
        return self.shared and self.discount == 1.0

    @property
    def products(self) -> list[tuple[int, int, int]]:
        """A, C and D: the rows' map, the columns' map (0 is φ_J, 1 is φ_M) and the number of channels.

        D is the second channel of A where C is A, and of C where φ_M is φ_J.
        """
        if self.one_matrix:
            return [(0, 0, 2)]
        return [(0, 0, 1), (1, 1, 2)] if self.shared else [(0, 0, 1), (1, 1, 1), (1, 0, 1)]

    def totals(self) -> list[Total | SparseTotal]:
        """An empty sum for each of the products."""
        sizes = self.mean.features.size, self.second.features.size
        shapes = [(channels, sizes[left], sizes[right]) for left, right, channels in self.products]
        if not self.sparse_sums:
            return [Total(*shape) for shape in shapes]
        steps = [steps_of(self.decays[left], self.trace_cut) for left, _, _ in self.products]
        return [SparseTotal(*shape, K) for shape, K in zip(shapes, steps, strict=True)]
