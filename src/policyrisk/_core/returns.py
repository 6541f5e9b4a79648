"""Compiled loops of the modules in this folder. Each has a plain NumPy twin in the tests."""

from __future__ import annotations

from numba import njit

from policyrisk._core.arrays import Floats, Ints


@njit(cache=True)
def returns_to_go(rewards: Floats, lengths: Ints, discount: float, out: Floats) -> None:
    """out_t = r_t + γ out_{t+1} within each episode, 0 after its last reward."""
    end = 0
    for k in range(lengths.size):
        start, end = end, end + lengths[k]
        total = 0.0
        for t in range(end - 1, start - 1, -1):
            total = rewards[t] + discount * total
            out[t] = total
