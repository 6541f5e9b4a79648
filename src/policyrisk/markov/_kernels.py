"""Compiled sampling of a chain's branches."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.random import stream, uniform


@njit(cache=True)
def _search(cumulative: Floats, first: int, last: int, u: float) -> int:
    """The first index in [first, last) whose cumulative probability exceeds u; the last one at most."""
    low, high = first, last - 1
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > u:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, parallel=True)
def sample_lengths(
    indptr: Ints,
    successor: Ints,
    cumulative: Floats,
    start: Floats,
    key0: np.uint64,
    key1: np.uint64,
    max_steps: int,
    lengths: Ints,
    terminated: Bools,
) -> None:
    """How long each episode lasts and whether it ends by itself: a first run, so that memory is exact."""
    n = indptr.size - 1
    for k in prange(lengths.size):
        s0, s1 = stream(key0, key1, k)
        u, s0, s1 = uniform(s0, s1)
        x = _search(start, 0, n, u)
        t = 0
        while x < n and t < max_steps:
            u, s0, s1 = uniform(s0, s1)
            x = successor[_search(cumulative, indptr[x], indptr[x + 1], u)]
            t += 1
        lengths[k] = t
        terminated[k] = x == n


@njit(cache=True, parallel=True)
def sample_episodes(
    indptr: Ints,
    successor: Ints,
    cumulative: Floats,
    reward: Floats,
    start: Floats,
    key0: np.uint64,
    key1: np.uint64,
    offsets: Ints,
    states: Ints,
    rewards: Floats,
) -> None:
    """The same episodes again, from the same streams, this time written down."""
    n = indptr.size - 1
    for k in prange(offsets.size - 1):
        s0, s1 = stream(key0, key1, k)
        u, s0, s1 = uniform(s0, s1)
        x = _search(start, 0, n, u)
        for t in range(offsets[k], offsets[k + 1]):
            states[t + k] = x
            u, s0, s1 = uniform(s0, s1)
            branch = _search(cumulative, indptr[x], indptr[x + 1], u)
            rewards[t] = reward[branch]
            x = successor[branch]
        states[offsets[k + 1] + k] = x
