"""Episodes of compiled domains on a GPU, by the same kernels as on the CPU.

The kernels of :mod:`policyrisk.simulation.compiled` are scalar and pure, so that their source compiles for
CUDA as it stands; an episode is a thread. It draws from the stream that it has on the CPU, and so makes the
same choices: whole-number arithmetic, comparisons, + − × ÷ and roots have the same bits on both. Logarithms,
exponentials, sines and cosines may differ in the last one, and a product may be rounded together with the sum
that it enters: a state may then differ by rounding, and an episode in a great many takes another turn.

Recorded episodes are run twice, once for their lengths and once to be written where they belong.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.devices import numba_cuda, older_numpy
from policyrisk._core.random import stream
from policyrisk.simulation.compiled import Episodes, Returns, Words, choose, joined, read, step

MOST = 1 << 22  # episodes at a time
_THREADS = 128  # of a block
_SHARE = 0.5  # of the free memory that records of a batch may take


@cache
def _kernel() -> Any:
    cuda = numba_cuda()

    def play(
        domain: Any,
        policy: Any,
        starts: Any,  # (m, dim)
        which: Any,  # (n,) the start of each episode
        block: Any,  # (n,) its block
        keys: Any,  # (blocks, 2) the key of a block's streams
        first: Any,  # (blocks,) the episode with its stream number 0
        most: int,
        discount: float,
        offsets: Any,  # (n,) each episode's first reward; (0,) if nothing is recorded
        states: Any,  # (transitions + n, dim) out
        rewards: Any,  # (transitions,) out
        actions: Any,  # (transitions,) out
        returns: Any,  # (n,) out
        lengths: Any,  # (n,) out
        ended: Any,  # (n,) out
    ) -> None:
        i = cuda.grid(1)
        if i < which.shape[0]:
            recorded = offsets.shape[0] > 0
            state = read(domain, starts, which[i])
            own = block[i]
            s0, s1 = stream(keys[own, 0], keys[own, 1], i - first[own])
            t = 0
            total = 0.0
            weight = 1.0
            done = False
            if recorded:
                for d in range(len(state)):
                    states[offsets[i] + i, d] = state[d]
            while t < most and not done:
                action, s0, s1 = choose(policy, state, s0, s1)
                state, reward, done, s0, s1 = step(domain, state, action, s0, s1)
                if recorded:
                    rewards[offsets[i] + t] = reward
                    actions[offsets[i] + t] = action
                    for d in range(len(state)):
                        states[offsets[i] + i + t + 1, d] = state[d]
                total += weight * reward
                weight *= discount
                t += 1
            returns[i] = total
            lengths[i] = t
            ended[i] = done

    with older_numpy():
        cuda.jit("void()")(lambda: None)  # loads what compilation needs
    return cuda.jit(play)


class Streams(NamedTuple):
    """The random streams of n episodes in blocks: number i − first[b] of keys[b] for episode i of block b."""

    block: Ints  # (n,)
    keys: Words  # (blocks, 2)
    first: Ints  # (blocks,)

    def part(self, some: slice) -> Streams:
        """Those of some of the episodes."""
        return Streams(self.block[some], self.keys, self.first - some.start)


class GpuEpisodes:
    """A domain, a policy and the starts (m, dim) in the GPU's memory, ready to run episodes."""

    def __init__(self, domain: Any, policy: Any, starts: Floats, max_steps: int, discount: float) -> None:
        self._tables = _moved(domain), _moved(policy)
        self._starts = numba_cuda().to_device(np.ascontiguousarray(starts))
        self._dim = starts.shape[1]
        self._limits = max_steps, discount

    def returns(self, which: Ints, streams: Streams) -> Returns:
        """The sums of the rewards of episodes from the starts ``which`` (n,)."""
        nothing = np.empty(0, np.int64), np.empty((0, self._dim)), np.empty(0), np.empty(0, np.int64)
        return self._play(which, streams, *map(numba_cuda().to_device, nothing))

    def episodes(self, which: Ints, streams: Streams) -> Episodes:
        """The same episodes, recorded."""
        lengths = self.returns(which, streams).lengths
        free, _ = numba_cuda().current_context().get_memory_info()
        room = max(int(_SHARE * free / (8 * (self._dim + 2))), 1)  # transitions
        parts: list[Episodes] = []
        first = 0
        while first < len(which) or not parts:
            ends = np.cumsum(lengths[first:])
            last = first + max(int(np.searchsorted(ends, room, side="right")), 1)
            some = slice(first, last)
            parts.append(self._recorded(which[some], streams.part(some), lengths[some]))
            first = last
        return joined(parts)

    def _recorded(self, which: Ints, streams: Streams, lengths: Ints) -> Episodes:
        cuda, total = numba_cuda(), int(lengths.sum())
        states = cuda.device_array((total + len(which), self._dim), np.float64)
        rewards, actions = cuda.device_array(total, np.float64), cuda.device_array(total, np.int64)
        offsets = cuda.to_device(np.cumsum(lengths) - lengths)
        found = self._play(which, streams, offsets, states, rewards, actions)
        return Episodes(
            states.copy_to_host(), rewards.copy_to_host(), lengths, found.terminated, actions.copy_to_host()
        )

    def _play(self, which: Ints, streams: Streams, *recorded: Any) -> Returns:
        cuda, n = numba_cuda(), len(which)
        out = [cuda.device_array(n, dtype) for dtype in (np.float64, np.int64, np.bool_)]
        if n:
            moved = [cuda.to_device(np.ascontiguousarray(each)) for each in (which, *streams)]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*under-utilization")  # few episodes are few
                _kernel()[-(-n // _THREADS), _THREADS](
                    *self._tables, self._starts, *moved, *self._limits, *recorded, *out
                )
        return Returns(*(column.copy_to_host() for column in out))


def _moved(table: Any) -> Any:
    """A table with its arrays in the GPU's memory."""
    cuda = numba_cuda()
    return type(table)(
        *(cuda.to_device(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for v in table)
    )


def run(
    domain: Any, policy: Any, starts: Floats, key: tuple[np.uint64, np.uint64], max_steps: int
) -> Episodes:
    """:func:`policyrisk.simulation.compiled.run` on the GPU."""
    gpu = GpuEpisodes(domain, policy, starts, max_steps, 1.0)
    return gpu.episodes(np.arange(len(starts)), _one_block(key, len(starts)))


def run_returns(
    domain: Any,
    policy: Any,
    starts: Floats,
    repeats: int,
    key: tuple[np.uint64, np.uint64],
    max_steps: int,
    discount: float,
) -> Returns:
    """:func:`policyrisk.simulation.compiled.run_returns` on the GPU."""
    which = np.repeat(np.arange(len(starts)), repeats)
    gpu, streams = GpuEpisodes(domain, policy, starts, max_steps, discount), _one_block(key, len(which))
    parts = [
        gpu.returns(which[first : first + MOST], streams.part(slice(first, first + MOST)))
        for first in range(0, max(len(which), 1), MOST)
    ]
    return joined(parts)


def _one_block(key: tuple[np.uint64, np.uint64], n: int) -> Streams:
    return Streams(np.zeros(n, np.int64), np.array([key], np.uint64), np.zeros(1, np.int64))
