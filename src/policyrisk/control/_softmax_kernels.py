"""The action of a softmax policy, drawn by scalar code: on tiles, and on normalised radial bases of a grid.

Logits are tuples, one entry for each action, see :mod:`policyrisk.control._greedy_kernels`: no memory is
needed, and the same source compiles for a GPU.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.random import uniform
from policyrisk.control._greedy_kernels import add, products, zeros
from policyrisk.simulation.compiled import register_policy


class SoftmaxTiles(NamedTuple):
    """What the kernel knows of a softmax policy on K tilings of d coordinates."""

    dims: Ints  # (d,) the coordinates of the state that the tiles look at
    low: Floats  # (d,)
    high: Floats  # (d,)
    bins: Ints  # (d,)
    offsets: Floats  # (K, d) in tiles
    block: int  # tiles of a tiling
    none: Floats  # with a dimension for each action
    weights: Floats  # (K · block, actions)


class SoftmaxGrid(NamedTuple):
    """What the kernel knows of a softmax policy on radial bases: the fields of ``GreedyTable``."""

    dims: Ints
    low: Floats
    high: Floats
    scale: Floats
    last: Ints
    strides: Ints
    reach: Floats
    sharpness: Floats
    slots: Floats
    none: Floats
    weights: Floats


@njit(cache=True, error_model="numpy")
def draw(logits: Any, scale: float, s0: np.uint64, s1: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    """An action with probability ∝ exp(scale · logit), and the state of the stream after one draw."""
    largest = logits[0]
    for a in range(1, len(logits)):
        largest = max(largest, logits[a])
    total = 0.0
    for a in range(len(logits)):
        total += math.exp(scale * (logits[a] - largest))
    u, s0, s1 = uniform(s0, s1)
    rest = u * total
    action = 0
    # The last action with any probability is taken where rounding leaves something over.
    for a in range(len(logits)):
        p = math.exp(scale * (logits[a] - largest))
        if p > 0.0 and rest >= 0.0:
            action = a
            rest -= p
    return action, s0, s1


@njit(cache=True, error_model="numpy")
def choose_on_tiles(
    table: SoftmaxTiles, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """The tiles are those of :mod:`policyrisk.features.tilecoding`."""
    dims, low, high, bins, offsets = table.dims, table.low, table.high, table.bins, table.offsets
    logits = zeros(table.none)
    for k in range(offsets.shape[0]):
        tile = 0
        for i in range(len(dims)):
            place = (state[dims[i]] - low[i]) * bins[i] / (high[i] - low[i])
            place = min(max(place, 0.0), float(bins[i]))
            tile = tile * bins[i] + min(int(place + offsets[k, i]), bins[i] - 1)
        logits = add(logits, 1.0, table.weights, k * table.block + tile, 0)
    return draw(logits, 1.0, s0, s1)


@njit(cache=True, error_model="numpy")
def choose_on_grid(
    table: SoftmaxGrid, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """The bases are those of :mod:`policyrisk.features.radial`, normalised."""
    sums, whole = products(table, state)
    return draw(sums, 1.0 / whole, s0, s1)


register_policy(SoftmaxTiles, choose_on_tiles)
register_policy(SoftmaxGrid, choose_on_grid)
