"""The action of a softmax policy, drawn by compiled code: on tiles, and on the radial bases of a grid."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.random import uniform
from policyrisk.features._radial_kernels import grid_counts, grid_fill
from policyrisk.simulation.compiled import register_policy


class SoftmaxTiles(NamedTuple):
    """What the kernel knows of a softmax policy on K tilings of d coordinates."""

    dims: Ints  # (d,) the coordinates of the state that the tiles look at
    low: Floats  # (d,)
    high: Floats  # (d,)
    bins: Ints  # (d,)
    offsets: Floats  # (K, d) in tiles
    block: int  # tiles of a tiling
    weights: Floats  # (K · block, actions)


class SoftmaxGrid(NamedTuple):
    """What the kernel knows of a softmax policy on the radial bases of a grid on d coordinates."""

    dims: Ints  # (d,)
    low: Floats  # (d,)
    high: Floats  # (d,)
    shape: Ints  # (d,)
    width: Floats  # (d,)
    reach: Floats  # (d,)
    normalised: bool
    near: int  # centres within reach, at most
    weights: Floats  # (centres, actions)


@njit(cache=True, error_model="numpy")
def draw(logits: Floats, s0: np.uint64, s1: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    """An action with probability ∝ exp(logit), and the state of the stream after one draw; overwrites."""
    largest = logits.max()
    total = 0.0
    for a in range(len(logits)):
        logits[a] = math.exp(logits[a] - largest)
        total += logits[a]
    u, s0, s1 = uniform(s0, s1)
    rest = u * total
    action = 0
    # The last action with any probability is taken where rounding leaves something over.
    for a in range(len(logits)):
        if logits[a] > 0.0 and rest >= 0.0:
            action = a
            rest -= logits[a]
    return action, s0, s1


@njit(cache=True, error_model="numpy")
def choose_on_tiles(
    table: SoftmaxTiles, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """The tiles are those of :mod:`policyrisk.features.tilecoding`."""
    dims, low, high, bins, offsets = table.dims, table.low, table.high, table.bins, table.offsets
    weights = table.weights
    logits = np.zeros(weights.shape[1])
    for k in range(offsets.shape[0]):
        tile = 0
        for i in range(len(dims)):
            place = (state[dims[i]] - low[i]) * bins[i] / (high[i] - low[i])
            place = min(max(place, 0.0), float(bins[i]))
            tile = tile * bins[i] + min(int(place + offsets[k, i]), bins[i] - 1)
        for a in range(len(logits)):
            logits[a] += weights[k * table.block + tile, a]
    return draw(logits, s0, s1)


@njit(cache=True, error_model="numpy")
def choose_on_grid(
    table: SoftmaxGrid, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """The bases are those of :mod:`policyrisk.features.radial`."""
    weights = table.weights
    u = np.empty((1, len(table.dims)))
    for i in range(len(table.dims)):
        low, high = table.low[i], table.high[i]
        u[0, i] = (min(max(state[table.dims[i]], low), high) - low) / (high - low)
    rows = np.zeros(2, np.int64)
    grid_counts(u, table.shape, table.reach, rows[1:])
    indices, values = np.empty(table.near, np.int64), np.empty(table.near)
    grid_fill(u, table.shape, table.width, table.reach, table.normalised, rows, indices, values)
    logits = np.zeros(weights.shape[1])
    for j in range(rows[1]):
        for a in range(len(logits)):
            logits[a] += values[j] * weights[indices[j], a]
    return draw(logits, s0, s1)


register_policy(SoftmaxTiles, choose_on_tiles)
register_policy(SoftmaxGrid, choose_on_grid)
