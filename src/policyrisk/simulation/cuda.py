"""Episodes of compiled domains on a GPU, by the same kernels as on the CPU.

The kernels of :mod:`policyrisk.simulation.compiled` are scalar and pure, so that their source compiles for
CUDA as it stands; an episode is a thread. It draws from the stream that it has on the CPU, and so makes the
same choices: whole-number arithmetic, comparisons, + − × ÷ and roots have the same bits on both. Logarithms,
exponentials, sines and cosines may differ in the last one, and a product may be rounded together with the sum
that it enters: a state may then differ by rounding, and an episode in a great many takes another turn.

Recorded episodes are run twice, once for their lengths and once to be written where they belong.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from policyrisk._core.arrays import Floats, Ints, check_choice
from policyrisk._core.imports import check_installed
from policyrisk.errors import DeviceError
from policyrisk.simulation.compiled import Episodes, Returns, Words, choose, read, start_streams, step

Device: TypeAlias = Literal["cpu", "cuda", "auto"]

MOST = 1 << 22  # episodes at a time
_THREADS = 128  # of a block
_SHARE = 0.5  # of the free memory that records of a batch may take


def on_gpu(device: Device) -> bool:
    """Whether to run on a GPU: "auto" where there is one; an error where "cuda" was asked for in vain.

    >>> on_gpu("cpu")
    False
    """
    check_choice(device, "device", ("cpu", "cuda", "auto"))
    if device == "cpu":
        return False
    if device == "cuda":
        check_installed("numba_cuda", 'device="cuda"')
    try:
        found = bool(_cuda().is_available())
    except ImportError:
        found = False
    if device == "cuda" and not found:
        raise DeviceError(
            'device="cuda" needs an NVIDIA GPU and its driver, and found none; pass device="cpu", or "auto" '
            "for a GPU where there is one"
        )
    return found


@cache
def _cuda() -> Any:
    """numba.cuda, which still asks NumPy for a name that it no longer has."""
    missing = not hasattr(np, "row_stack")
    if missing:
        np.vstack = np.vstack
    try:
        from numba import cuda
    finally:
        if missing:
            del np.vstack
    return cuda


@cache
def _kernel() -> Any:
    cuda = _cuda()

    def play(
        domain: Any,
        policy: Any,
        starts: Any,  # (m, dim)
        which: Any,  # (n,) the start of each episode
        words: Any,  # (n, 2) its stream
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
            s0 = words[i, 0]
            s1 = words[i, 1]
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

    return cuda.jit(play)


class GpuEpisodes:
    """A domain, a policy and the starts (m, dim) in the GPU's memory, ready to run episodes."""

    def __init__(self, domain: Any, policy: Any, starts: Floats, max_steps: int, discount: float) -> None:
        self._tables = _moved(domain), _moved(policy)
        self._starts = _cuda().to_device(np.ascontiguousarray(starts))
        self._dim = starts.shape[1]
        self._limits = max_steps, discount

    def returns(self, which: Ints, words: Words) -> Returns:
        """The sums of the rewards of episodes from the starts ``which`` (n,), with streams (n, 2)."""
        nothing = np.empty(0, np.int64), np.empty((0, self._dim)), np.empty(0), np.empty(0, np.int64)
        return self._play(
            _cuda().to_device(which), _cuda().to_device(words), *map(_cuda().to_device, nothing)
        )

    def episodes(self, which: Ints, words: Words) -> Episodes:
        """The same episodes, recorded."""
        cuda = _cuda()
        lengths = self.returns(which, words).lengths
        free, _ = cuda.current_context().get_memory_info()
        room = max(int(_SHARE * free / (8 * (self._dim + 2))), 1)  # transitions
        parts: list[Episodes] = []
        first = 0
        while first < len(which) or not parts:
            ends = np.cumsum(lengths[first:])
            last = first + max(int(np.searchsorted(ends, room, side="right")), 1)
            parts.append(self._recorded(which[first:last], words[first:last], lengths[first:last]))
            first = last
        return parts[0] if len(parts) == 1 else Episodes(*map(np.concatenate, zip(*parts, strict=True)))

    def _recorded(self, which: Ints, words: Words, lengths: Ints) -> Episodes:
        cuda, total = _cuda(), int(lengths.sum())
        states = cuda.device_array((total + len(which), self._dim), np.float64)
        rewards, actions = cuda.device_array(total, np.float64), cuda.device_array(total, np.int64)
        offsets = cuda.to_device(np.cumsum(lengths) - lengths)
        found = self._play(cuda.to_device(which), cuda.to_device(words), offsets, states, rewards, actions)
        return Episodes(
            states.copy_to_host(), rewards.copy_to_host(), lengths, found.terminated, actions.copy_to_host()
        )

    def _play(self, which: Any, words: Any, *recorded: Any) -> Returns:
        cuda, n = _cuda(), which.shape[0]
        out = [cuda.device_array(n, dtype) for dtype in (np.float64, np.int64, np.bool_)]
        if n:
            blocks = -(-n // _THREADS)
            _kernel()[blocks, _THREADS](
                *self._tables, self._starts, which, words, *self._limits, *recorded, *out
            )
        return Returns(*(column.copy_to_host() for column in out))


def _moved(table: Any) -> Any:
    """A table with its arrays in the GPU's memory."""
    cuda = _cuda()
    return type(table)(
        *(cuda.to_device(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for v in table)
    )


def run(
    domain: Any, policy: Any, starts: Floats, key: tuple[np.uint64, np.uint64], max_steps: int
) -> Episodes:
    """:func:`policyrisk.simulation.compiled.run` on the GPU."""
    words = np.empty((len(starts), 2), np.uint64)
    start_streams(*key, 0, words)
    return GpuEpisodes(domain, policy, starts, max_steps, 1.0).episodes(np.arange(len(starts)), words)


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
    words = np.empty((len(which), 2), np.uint64)
    start_streams(*key, 0, words)
    gpu = GpuEpisodes(domain, policy, starts, max_steps, discount)
    parts = [
        gpu.returns(which[first : first + MOST], words[first : first + MOST])
        for first in range(0, max(len(which), 1), MOST)
    ]
    return parts[0] if len(parts) == 1 else Returns(*map(np.concatenate, zip(*parts, strict=True)))
