"""Compiled loops of tiles and leaves: the indices of each state, into ``out``.

``states`` (n, dim) are finite, and ``columns`` (d,) are the coordinates looked at.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from policyrisk._core.arrays import Floats, Ints

# The hash belongs to what is saved, so it has its own copy of splitmix64's finaliser and constants:
# a change of the random streams must not move anybody's tiles. All are uint64, since Numba turns a
# uint64 that meets a signed integer into a float.
_G = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_U1, _U27, _U30, _U31 = np.uint64(1), np.uint64(27), np.uint64(30), np.uint64(31)


@njit(cache=True, error_model="numpy")
def _places(
    states: Floats, row: int, columns: Ints, low: Floats, high: Floats, bins: Ints, place: Floats
) -> None:
    """How many tiles a state lies from the box's low corner, in [0, bins] per coordinate."""
    for i in range(len(columns)):
        # Multiplied before it is divided: whole states in a box of whole numbers then have no rounding.
        tiles = (states[row, columns[i]] - low[i]) * bins[i] / (high[i] - low[i])
        place[i] = min(max(tiles, 0.0), float(bins[i]))


@njit(cache=True, error_model="numpy")
def _tile(place: float, offset: float, bins: int) -> int:
    # int() rounds towards 0, which is where what the offset takes below 0 belongs: in the first tile.
    return min(int(place + offset), bins - 1)


@njit(cache=True, error_model="numpy")
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _U30)) * _MIX_A
    x = (x ^ (x >> _U27)) * _MIX_B
    return x ^ (x >> _U31)


@njit(cache=True, nogil=True, error_model="numpy")
def tile_indices(
    states: Floats,
    columns: Ints,
    low: Floats,
    high: Floats,
    bins: Ints,
    offsets: Floats,
    block: int,
    out: Ints,
) -> None:
    """The tile of every state in every tiling, k·block + its row-major number, into out (n, tilings)."""
    place = np.empty(len(columns))
    for row in range(len(states)):
        _places(states, row, columns, low, high, bins, place)
        for k in range(len(offsets)):
            index = 0
            for i in range(len(columns)):
                index = index * bins[i] + _tile(place[i], offsets[k, i], bins[i])
            out[row, k] = k * block + index


@njit(cache=True, nogil=True, error_model="numpy")
def hashed_indices(
    states: Floats,
    columns: Ints,
    low: Floats,
    high: Floats,
    bins: Ints,
    offsets: Floats,
    block: int,
    out: Ints,
) -> None:
    """As tile_indices, with the tile's hash modulo block in the place of its number.

    A kernel of its own: one for both, with a flag, takes a fifth longer over hashed tiles.
    """
    place = np.empty(len(columns))
    for row in range(len(states)):
        _places(states, row, columns, low, high, bins, place)
        for k in range(len(offsets)):
            h = np.uint64(k)
            for i in range(len(columns)):
                h = _mix(h + _G * (np.uint64(_tile(place[i], offsets[k, i], bins[i])) + _U1))
            out[row, k] = k * block + np.int64(h % np.uint64(block))


@njit(cache=True, nogil=True)
def right_children(feature: Ints, roots: Ints, out: Ints) -> int:
    """Where the right side of every split begins, and the number of every leaf, into out (nodes,).

    Trees are written in preorder (``leaves.py``). Returns the first tree that is not a whole one, or −1.
    """
    open_splits = np.empty(len(feature), np.int64)  # those whose right side is still to come
    leaves = 0
    for tree in range(len(roots) - 1):
        waiting, done = 0, False
        for node in range(roots[tree], roots[tree + 1]):
            if done:
                return tree
            if feature[node] >= 0:
                open_splits[waiting] = node
                waiting += 1
                continue
            out[node] = leaves
            leaves += 1
            if waiting == 0:
                done = True
            else:
                waiting -= 1
                out[open_splits[waiting]] = node + 1
        if not done:
            return tree
    return -1


@njit(cache=True, nogil=True, error_model="numpy")
def leaf_indices(
    states: Floats, columns: Ints, feature: Ints, threshold: Floats, right: Ints, roots: Ints, out: Ints
) -> None:
    """The leaf that holds every state in every tree, into out (n, trees)."""
    for tree in range(len(roots) - 1):  # one tree at a time stays in the cache
        for row in range(len(states)):
            node = roots[tree]
            while feature[node] >= 0:
                left = states[row, columns[feature[node]]] <= threshold[node]
                node = node + 1 if left else right[node]
            out[row, tree] = right[node]
