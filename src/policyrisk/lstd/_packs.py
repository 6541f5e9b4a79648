"""Compiled loops that put small matrices of a large one into a pack, and add a pack to the large one.

A small matrix has its own numbers for rows and columns. In a pack (ints, floats) it is

- in ints: how many rows and columns it has, the columns' numbers in the large matrix, and for each row its
  number there and how many of the columns it fills;
- in floats: for each row its values, channel after channel.

ints[0] and ints[1] say how much of ints and of floats is in use.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._arrays import Floats, Ints

Pack: TypeAlias = tuple[Ints, Floats]


@njit(cache=True)
def room(buffer: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    """The buffer, or a larger copy, with room for ``more`` beyond what is used."""
    if used + more <= buffer.size:
        return buffer
    larger = np.empty(max(2 * buffer.size, used + more), buffer.dtype)
    for k in range(used):
        larger[k] = buffer[k]
    return larger


@njit(cache=True)
def emit(
    local: Floats,
    filled: Ints,
    row_id: Ints,
    n_row: int,
    col_id: Ints,
    n_col: int,
    ints: Ints,
    floats: Floats,
) -> None:
    """Append a small matrix (channels, rows, columns) to the pack, and clear it."""
    at, put = ints[0], ints[1]
    ints[at], ints[at + 1] = n_row, n_col
    for k in range(n_col):
        ints[at + 2 + k] = col_id[k]
    at += 2 + n_col
    for r in range(n_row):
        ints[at], ints[at + 1] = row_id[r], filled[r]
        at += 2
        for c in range(len(local)):
            for k in range(filled[r]):
                floats[put + k] = local[c, r, k]
                local[c, r, k] = 0.0
            put += filled[r]
        filled[r] = 0
    ints[0], ints[1] = at, put


@njit(cache=True)
def _add_one(cols: Ints, x: Floats, out: Floats) -> None:
    for k in range(cols.size):
        out[np.uint64(cols[k])] += x[k]


@njit(cache=True)
def _add_two(cols: Ints, x: Floats, y: Floats, out: Floats, second: Floats) -> None:
    for k in range(cols.size):
        col = np.uint64(cols[k])
        out[col] += x[k]
        second[col] += y[k]


@njit(cache=True, nogil=True)
def unpack(ints: Ints, floats: Floats, out: Floats) -> None:
    """Add a packed product to out (channels, rows, columns), of one channel or two.

    Row by row of out, since a large matrix does not fit into a cache and one of its rows does.
    """
    channels = len(out)
    count = np.zeros(out.shape[1] + 1, np.int64)
    at = 2
    while at < ints[0]:
        n_row, n_col = ints[at], ints[at + 1]
        at += 2 + n_col
        for _ in range(n_row):
            count[ints[at] + 1] += 1
            at += 2
    place = np.cumsum(count)
    pieces = np.empty((place[-1], 4), np.int64)  # row, how many, where their columns and values start
    at, put = 2, 0
    while at < ints[0]:
        n_row, n_col = ints[at], ints[at + 1]
        cols = at + 2
        at = cols + n_col
        for _ in range(n_row):
            row, filled = ints[at], ints[at + 1]
            piece = place[row]
            pieces[piece, 0], pieces[piece, 1] = row, filled
            pieces[piece, 2], pieces[piece, 3] = cols, put
            place[row] += 1
            put += filled * channels
            at += 2
    for piece in range(len(pieces)):
        row, filled, cols, put = pieces[piece, 0], pieces[piece, 1], pieces[piece, 2], pieces[piece, 3]
        where, x = ints[cols : cols + filled], floats[put : put + filled]
        if channels == 1:
            _add_one(where, x, out[0, row])
        else:
            _add_two(where, x, floats[put + filled : put + 2 * filled], out[0, row], out[1, row])
