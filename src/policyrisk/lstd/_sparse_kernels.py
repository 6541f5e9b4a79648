"""Compiled loops of sums that stay sparse: pure functions of arrays.

The product is that of :mod:`policyrisk.lstd._sweep_kernels`, with traces that last K steps,

    P_c = Σ_s (g_sc z_{s−1} + h_sc n_s) σ_sᵀ,        z_s = κ z_{s−1} + n_s,        n_s = ρ_s − κ^K ρ_{s−K},

so that z_s = Σ_{k<K} κ^k ρ_{s−k}: the row of a feature has entries only in columns that are met within K
steps after it. Row a needs the trace of feature a alone: it is summed in a buffer that stays in a cache.

A *position* is a row of features; ``stop`` is the first position beyond those of its episode that count, and
END where a position ends an episode, and is not visited.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk.lstd._sweep_kernels import END

GROUP = 8  # neighbouring columns of a row's buffer that are looked through together
WORD = 64  # columns behind one word of flags: GROUP of them for each of its bytes


@njit(cache=True, nogil=True)
def to_go_within(x: Floats, lengths: Ints, decay: float, steps: int, out: Floats) -> None:
    """out_i = Σ_{t ≤ s < t + K} κ^{s−t} x_s at the visited rows, 0 at the last rows; x (transitions,)."""
    leave = decay**steps
    end = 0
    for k in range(lengths.size):
        start, end = end, end + lengths[k]
        total = 0.0
        out[end + k] = 0.0
        for t in range(end - 1, start - 1, -1):
            total = x[t] + decay * total
            if t + steps < end:
                total -= leave * x[t + steps]
            out[t + k] = total


@njit(cache=True, nogil=True)
def stops(ends: Bools, g: Floats) -> Ints:
    """``stop`` of every position; an end that nothing is bootstrapped from does not count."""
    stop = np.empty(ends.size, np.int64)
    begin = 0
    for end in range(ends.size):
        if ends[end]:
            after = end + 1 if (g[end] != 0.0).any() else end
            stop[begin:end] = after
            stop[end] = END
            begin = end + 1
    return stop


@njit(cache=True)
def _longer(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    longer = np.empty(size, array.dtype)
    longer[: array.size] = array
    return longer


@njit(cache=True, nogil=True)
def sweep_sparse(
    low: int,
    high: int,
    begin: Ints,  # (rows of P + 1,)
    where: Ints,  # positions of the visits, feature by feature
    value: Floats,  # ρ there
    stop: Ints,
    g: Floats,  # (positions, channels)
    h: Floats,
    decay: float,
    steps: int,  # K
    col_ptr: Ints,
    col_idx: Ints,
    col_val: Floats,
    columns: int,
    old_ptr: Ints,  # (high − low + 1,): rows low, …, high − 1 so far
    old_idx: npt.NDArray[np.int32],
    old_first: Floats,  # values of the first channel
    old_second: Floats,  # of the second, empty where there is none
) -> tuple[Ints, npt.NDArray[np.int32], Floats, Floats]:
    """Rows low, …, high − 1 of P added to what they were: ptr, idx (increasing) and both channels' values."""
    two = g.shape[1] == 2
    leave = decay**steps
    buffer = np.zeros((columns + WORD, 2))
    touched = np.zeros(columns // WORD * 8 + 8, np.uint8)
    words = touched.view(np.uint64)
    group = np.uint64(GROUP)  # unsigned: an index then needs no test for being negative
    ptr = np.zeros(high - low + 1, np.int64)
    room = old_idx.size + columns + WORD
    idx, first, second = np.empty(room, np.int32), np.empty(room), np.empty(room if two else 0)
    n = 0
    for a in range(low, high):
        for old in range(old_ptr[a - low], old_ptr[a - low + 1]):
            i = np.uint64(old_idx[old])
            buffer[i, 0] = old_first[old]
            if two:
                buffer[i, 1] = old_second[old]
            touched[i // group] = 1
        p, after = begin[a], begin[a + 1]
        while p < after:
            s, oldest, z = where[p], p, 0.0
            end, lasting = stop[s], s + steps
            while s < end and s <= lasting:
                entered = 0.0
                while p < after and where[p] == s:
                    entered += value[p]
                    lasting = s + steps
                    p += 1
                while oldest < p and where[oldest] + steps == s:
                    entered -= leave * value[oldest]
                    oldest += 1
                x = g[s, 0] * z + h[s, 0] * entered
                y = g[s, 1] * z + h[s, 1] * entered if two else 0.0
                z = decay * z + entered
                for q in range(np.uint64(col_ptr[s]), np.uint64(col_ptr[s + 1])):
                    j = np.uint64(col_idx[q])
                    buffer[j, 0] += x * col_val[q]
                    buffer[j, 1] += y * col_val[q]
                    touched[j // group] = 1
                s += 1
        if n + columns > idx.size:
            room = 2 * idx.size
            idx, first = _longer(idx, room), _longer(first, room)
            if two:
                second = _longer(second, room)
        for word in range(words.size):
            if words[word] == np.uint64(0):
                continue
            for byte in range(8 * word, 8 * word + 8):
                if touched[byte] == 0:
                    continue
                touched[byte] = 0
                for k in range(GROUP * byte, GROUP * byte + GROUP):
                    if buffer[k, 0] != 0.0 or buffer[k, 1] != 0.0:
                        idx[n], first[n] = k, buffer[k, 0]
                        if two:
                            second[n] = buffer[k, 1]
                        n += 1
                        buffer[k, 0], buffer[k, 1] = 0.0, 0.0
        ptr[a - low + 1] = n
    return ptr, idx[:n].copy(), first[:n].copy(), second[: n if two else 0].copy()
