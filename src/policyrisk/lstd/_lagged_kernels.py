"""Compiled loops of the product that A, C and D are made of: pure functions of arrays.

For rows ρ_i, columns σ_i, weights g and h, and a decay κ,

    P_c = Σ_i ρ_i (h_ic σ_i + Σ_{s > i} κ^{s−1−i} g_sc σ_s)ᵀ,

i over the visited rows (``ends`` is false) and s over the later rows of the same episode, for every channel
c. Run backwards in time the inner sum is a vector τ_i = g_{i+1} σ_{i+1} + κ τ_{i+1}, the trace of what is to
come. Sparse rows and columns come as ``ptr``, ``idx``, ``val``: row i holds val[p] in column idx[p] for
ptr[i] ≤ p < ptr[i + 1].
"""

from __future__ import annotations

import numpy as np
from numba import njit

from policyrisk._arrays import Bools, Floats, Ints
from policyrisk.lstd._packs import Pack, emit, room

# A segment of an episode is summed in a small matrix of its own. It ends where this many features were
# met, or twice as many as its trace began with.
SEGMENT = 128
# Trace entries that are this small beside the largest are dropped when a segment ends. What they would
# have added to a row of P is 1e-9 of the last bit of what the largest adds to that row.
NEGLIGIBLE = 1e-25
# The trace is stored divided by ``unit`` = κ^steps, so that a step does not touch what it does not
# change; past this it is multiplied out, long before anything overflows.
SMALLEST_UNIT = 1e-100


# --- the product, sparse ----------------------------------------------------------------------------


@njit(cache=True)
def _decayed(unit: float, trace: Floats, n_col: int) -> float:
    """The unit, or 1 after a small one was multiplied out."""
    if unit >= SMALLEST_UNIT:
        return unit
    for c in range(len(trace)):
        for k in range(n_col):
            moved = trace[c, k] * unit
            trace[c, k] = moved if abs(moved) > SMALLEST_UNIT else 0.0
    return 1.0


@njit(cache=True)
def _segment(
    i: int,
    ends: Bools,
    row_ptr: Ints,
    row_idx: Ints,
    row_val: Floats,
    col_ptr: Ints,
    col_idx: Ints,
    col_val: Floats,
    g: Floats,
    h: Floats,
    decay: float,
    most_row: int,  # row features that there is room for, at least one row's
    most_col: int,  # columns that there is room for before a row is begun
    local: Floats,  # (channels, rows, columns): P of the segment, in the segment's own numbers
    trace: Floats,  # (channels, columns): τ / unit
    filled: Ints,  # (rows,): how many columns of the local row are in use
    row_id: Ints,
    col_id: Ints,
    row_slot: Ints,
    col_slot: Ints,
    n_row: int,
    n_col: int,
    unit: float,
) -> tuple[int, int, int, float]:
    """Rows i, i − 1, … until the segment is full or the next episode's end comes up."""
    channels = local.shape[0]
    begun = False
    while i >= 0 and n_row <= most_row and n_col <= most_col and not (ends[i] and begun):
        begun = True
        used, later = False, False
        for c in range(channels):
            used |= h[i, c] != 0.0
            later |= g[i, c] != 0.0
        if used or later:
            for q in range(col_ptr[i], col_ptr[i + 1]):
                j = col_idx[q]
                if col_slot[j] < 0:
                    col_slot[j], col_id[n_col] = n_col, j
                    n_col += 1
        if not ends[i]:
            for p in range(row_ptr[i], row_ptr[i + 1]):
                r = row_slot[row_idx[p]]
                if r < 0:
                    r = n_row
                    row_slot[row_idx[p]], row_id[r] = r, row_idx[p]
                    n_row += 1
                filled[r] = n_col
                scale = row_val[p] * unit
                for c in range(channels):
                    for k in range(n_col):
                        local[c, r, k] += scale * trace[c, k]
                    if h[i, c] != 0.0:
                        for q in range(col_ptr[i], col_ptr[i + 1]):
                            local[c, r, col_slot[col_idx[q]]] += row_val[p] * h[i, c] * col_val[q]
        unit = _decayed(unit * decay, trace, n_col)
        if later:
            for q in range(col_ptr[i], col_ptr[i + 1]):
                k = col_slot[col_idx[q]]
                for c in range(channels):
                    trace[c, k] += g[i, c] * col_val[q] / unit
        i -= 1
    return i, n_row, n_col, unit


@njit(cache=True)
def _segment_one_hot(
    i: int,
    ends: Bools,
    idx: Ints,
    val: Floats,
    g: Floats,
    h: Floats,
    decay: float,
    most: int,  # features that there is room for before a row is begun
    local: Floats,
    trace: Floats,
    filled: Ints,
    ids: Ints,
    slot: Ints,
    n: int,
    unit: float,
) -> tuple[int, int, float]:
    """As _segment, where every row has one entry and is its own column; one channel or two.

    Steps that stay with a feature are taken together. What they leave to each other are numbers: ``own``,
    the feature's share of τ, and ``added``, its share of P. All else of the trace is added to P once, with
    the factor Σ ρ κ^step. That is most of the speed: a number that is written and read back as part of a
    vector at once makes the processor wait.
    """
    two, second = len(trace) == 2, len(trace) - 1
    begun = False
    while i >= 0 and n <= most and not (ends[i] and begun):
        begun = True
        j = idx[i]
        k = slot[j]
        if k < 0 and (not ends[i] or g[i, 0] != 0.0 or g[i, second] != 0.0):
            k = n
            slot[j], ids[k] = k, j
            n += 1
        if ends[i]:
            if k >= 0:
                for c in range(len(trace)):
                    trace[c, k] += g[i, c] * val[i] / unit
            i -= 1
            continue
        own, own_second, added, added_second = 0.0, 0.0, 0.0, 0.0
        factor, power = 0.0, 1.0
        while True:
            v = val[i]
            factor += v * power
            power *= decay
            added += v * (own + h[i, 0] * v)
            own = decay * own + g[i, 0] * v
            if two:
                added_second += v * (own_second + h[i, 1] * v)
                own_second = decay * own_second + g[i, 1] * v
            i -= 1
            if i < 0 or ends[i] or idx[i] != j:
                break
        scale = factor * unit
        for m in range(n):
            local[0, k, m] += scale * trace[0, m]
        local[0, k, k] += added
        if two:
            for m in range(n):
                local[1, k, m] += scale * trace[1, m]
            local[1, k, k] += added_second
        filled[k] = n
        unit = _decayed(unit * power, trace, n)
        trace[0, k] += own / unit
        if two:
            trace[1, k] += own_second / unit
    return i, n, unit


@njit(cache=True)
def _clear(trace: Floats, first: int, last: int) -> None:
    for c in range(len(trace)):
        for k in range(first, last):
            trace[c, k] = 0.0


@njit(cache=True)
def _drop_negligible(trace: Floats, col_id: Ints, col_slot: Ints, n_col: int) -> int:
    """Number the columns anew, without those whose trace is negligible; returns how many are left."""
    top = np.zeros(len(trace))
    for c in range(len(trace)):
        for k in range(n_col):
            top[c] = max(top[c], abs(trace[c, k]))
    kept = 0
    for k in range(n_col):
        alive = False
        for c in range(len(trace)):
            alive |= abs(trace[c, k]) > NEGLIGIBLE * top[c]
        col_slot[col_id[k]] = kept if alive else -1
        if alive:
            for c in range(len(trace)):
                trace[c, kept] = trace[c, k]
            col_id[kept] = col_id[k]
            kept += 1
    _clear(trace, kept, n_col)
    return kept


@njit(cache=True)
def _any(carry: Floats, j: int) -> bool:
    found = False
    for c in range(len(carry)):
        found |= carry[c, j] != 0.0
    return found


@njit(cache=True)
def _most(ptr: Ints) -> int:
    most = 0
    for i in range(ptr.size - 1):
        most = max(most, ptr[i + 1] - ptr[i])
    return most


@njit(cache=True, nogil=True)
def lagged_sparse(
    ends: Bools,
    row_ptr: Ints,
    row_idx: Ints,
    row_val: Floats,
    col_ptr: Ints,
    col_idx: Ints,
    col_val: Floats,
    g: Floats,  # (rows, channels)
    h: Floats,  # (rows, channels)
    decay: float,
    row_size: int,
    one_hot: bool,  # every row has one entry and is its own column
    carry: Floats,  # (channels, columns): the trace at the end of these rows; out: at their start
    ints: Ints,
    floats: Floats,
) -> Pack:
    """P of the module's docstring for sparse rows and columns, packed into ints and floats.

    Both are returned, larger if they had to grow; :func:`policyrisk.lstd._packs.unpack` adds them up.

    A step adds the trace to one row of P per active feature. To make that a run over neighbouring
    numbers, features are numbered anew within a segment, in the order in which they are met.
    """
    channels, col_size = carry.shape
    if ends.size and ends[-1]:
        _clear(carry, 0, col_size)
    step_row, step_col = _most(row_ptr), _most(col_ptr)
    held = 0
    for j in range(col_size):
        held += _any(carry, j)
    first = max(SEGMENT, 2 * step_col, 2 * held)
    limit, most_row = first, SEGMENT
    trace, col_id = np.zeros((channels, limit + step_col)), np.empty(limit + step_col, np.int64)
    n_slot = limit + step_col if one_hot else most_row + step_row
    local = np.zeros((channels, n_slot, limit + step_col))
    row_id, filled = np.empty(n_slot, np.int64), np.zeros(n_slot, np.int64)
    col_slot, row_slot = np.full(col_size, -1), np.full(row_size, -1)
    n_row, n_col, unit = 0, 0, 1.0
    ints[0], ints[1] = 2, 0
    for j in range(col_size):
        if _any(carry, j):
            col_slot[j], col_id[n_col] = n_col, j
            for c in range(channels):
                trace[c, n_col] = carry[c, j]
            n_col += 1
    i = ends.size - 1
    while i >= 0:
        if one_hot:
            i, n_col, unit = _segment_one_hot(
                i, ends, col_idx, col_val, g, h, decay, limit, local, trace, filled, col_id, col_slot,
                n_col, unit,
            )  # fmt: skip
            n_row = n_col
            for r in range(n_row):
                row_id[r] = col_id[r]
        else:
            i, n_row, n_col, unit = _segment(
                i, ends, row_ptr, row_idx, row_val, col_ptr, col_idx, col_val, g, h, decay, most_row, limit,
                local, trace, filled, row_id, col_id, row_slot, col_slot, n_row, n_col, unit,
            )  # fmt: skip
            for r in range(n_row):
                row_slot[row_id[r]] = -1
        ints = room(ints, ints[0], 2 + n_col + 2 * n_row)
        floats = room(floats, ints[1], channels * n_row * n_col)
        emit(local, filled, row_id, n_row, col_id, n_col, ints, floats)
        n_row = 0
        if i >= 0 and ends[i]:
            for k in range(n_col):
                col_slot[col_id[k]] = -1
            _clear(trace, 0, n_col)
            n_col, unit, limit = 0, 1.0, first
        elif i >= 0:
            n_col = _drop_negligible(trace, col_id, col_slot, n_col)
            limit = max(first, 2 * n_col)
            if limit + step_col > trace.shape[1]:
                n_slot = limit + step_col if one_hot else n_slot
                local = np.zeros((channels, n_slot, limit + step_col))
                row_id, filled = np.empty(n_slot, np.int64), np.zeros(n_slot, np.int64)
                wider, more = np.zeros((channels, limit + step_col)), np.empty(limit + step_col, np.int64)
                for k in range(n_col):
                    more[k] = col_id[k]
                    for c in range(channels):
                        wider[c, k] = trace[c, k]
                trace, col_id = wider, more
    _clear(carry, 0, col_size)
    for k in range(n_col):
        for c in range(channels):
            carry[c, col_id[k]] = trace[c, k] * unit
    return ints, floats


# --- the product, dense -----------------------------------------------------------------------------


@njit(cache=True)
def _step(sigma: Floats, tau: Floats, out: Floats, g: float, h: float, decay: float) -> None:
    for j in range(sigma.size):
        before = tau[j]
        out[j] = before + h * sigma[j]
        tau[j] = g * sigma[j] + decay * before


@njit(cache=True, nogil=True)
def lagged_dense(
    ends: Bools, columns: Floats, g: Floats, h: Floats, decay: float, carry: Floats, out: Floats
) -> None:
    """h_i σ_i + τ_i at the visited rows, into out (visited, channels, l); P_c is then (visited ρ)ᵀ out_c."""
    at = len(out)
    for i in range(ends.size - 1, -1, -1):
        if ends[i]:
            for c in range(len(carry)):
                for j in range(carry.shape[1]):
                    carry[c, j] = g[i, c] * columns[i, j]
        else:
            at -= 1
            for c in range(len(carry)):
                _step(columns[i], carry[c], out[at, c], g[i, c], h[i, c], decay)
