"""Compiled loops of the product that A, C and D are made of: pure functions of arrays.

For rows ρ_i, columns σ_i, weights g and h, and a decay κ,

    P_c = Σ_s (g_sc z_{s−1} + h_sc ρ_s) σ_sᵀ,        z_s = κ z_{s−1} + ρ_s, z = 0 before an episode,

for every channel c. Of sparse features the product is made row by row: row a needs the trace of feature a
alone, which is one number, from the feature's first visit in an episode on. So a row is summed in a buffer
that stays in a cache, and added to the large matrix once.

A *position* is a row of features, or a *run* of rows with one and the same single feature. After position s
a trace z has become d_s z, plus u_s times the feature's value there. What a position has is kept together,

    step[s] = d, g of both channels, the run's column        visit[s] = u, h of both channels, ``ahead``

with g and h 0 for a channel that is not there. A visit at s adds something to the positions up to
s + ahead[s]. ``column`` and ``ahead`` are the whole numbers in step[:, 3] and visit[:, 3], in views as int64
of the same memory.

Where P has to stay sparse, positions are rows, and traces last K steps,

    z_s = Σ_{k<K} κ^k ρ_{s−k} = κ z_{s−1} + n_s,        n_s = ρ_s − κ^K ρ_{s−K} in the place of ρ_s,

so that the row of a feature has entries only in columns that are met within K steps after it: a visit of ρ is
followed, K steps later, by one of −κ^K ρ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints

# What a visit adds to the rest of its episode is dropped from where on nothing is larger than this beside
# the largest that the same visit adds: 1e-9 of its last bit.
NEGLIGIBLE = 1e-25
END = -1  # ``ahead`` of a position that ends an episode, and is not visited
GROUP = 8  # neighbouring columns of a row's buffer that are looked through together
WORD = 64  # columns behind one word of flags: GROUP of them for each of its bytes


class Entries(NamedTuple):
    """Sparse rows: row i holds val[p] in column idx[p] for ptr[i] ≤ p < ptr[i + 1]."""

    ptr: Ints  # (rows + 1,)
    idx: Ints
    val: Floats


class Visits(NamedTuple):
    """What enters the traces and leaves them, feature by feature: of feature a from begin[a] to end[a]."""

    begin: Ints  # (l + 1,)
    end: Ints  # (l,)
    where: Ints  # positions, rising
    until: Ints  # the last position that the trace then adds something to
    value: Floats  # ρ there, or −κ^K ρ of what leaves; 1 of runs, where ρ is in u and h


class RowSources(NamedTuple):
    """What rows of P are summed from."""

    visits: Visits
    step: Floats
    visit: Floats
    column: Ints
    runs: bool
    sigma: Entries  # of positions that are no runs


class ProductRows(NamedTuple):
    """Some rows of a sparse P: their columns, increasing, and both channels' values."""

    ptr: Ints  # (rows + 1,)
    idx: npt.NDArray[np.int32]
    first: Floats
    second: Floats  # empty where there is one channel


@njit(cache=True, nogil=True)
def append_runs(
    ends: Bools,
    idx: Ints,
    val: Floats,
    g: Floats,  # (rows, channels)
    h: Floats,
    decay: float,
    n: int,
    step: Floats,
    visit: Floats,
    column: Ints,
    ahead: Ints,
) -> int:
    """Put rows with one entry each, which are their own columns, after the first n positions, as runs.

    A run of values v_j adds z Σ_j κ^j g_j v_j to its column where it found a trace z; it leaves κ^m z + u,
    with u = Σ_j κ^{m−1−j} v_j. Returns the number of positions.
    """
    two = g.shape[1] == 2
    i = 0
    while i < ends.size:
        j, end = idx[i], ends[i]
        power, z = 1.0, 0.0
        g_0, g_1, h_0, h_1 = 0.0, 0.0, 0.0, 0.0
        while True:
            v = val[i]
            g_0 += power * g[i, 0] * v
            h_0 += (z * g[i, 0] + h[i, 0] * v) * v
            if two:
                g_1 += power * g[i, 1] * v
                h_1 += (z * g[i, 1] + h[i, 1] * v) * v
            z = decay * z + v
            power *= decay
            i += 1
            if end or i == ends.size or ends[i] or idx[i] != j:
                break
        step[n, 0], step[n, 1], step[n, 2], column[n] = power, g_0, g_1, j
        visit[n, 0], visit[n, 1], visit[n, 2], ahead[n] = z, h_0, h_1, END if end else 0
        n += 1
    return n


@njit(cache=True)
def _reach(size: Floats, d: Floats, ahead: Ints) -> None:
    """Raise ``ahead`` to where what a visit adds becomes NEGLIGIBLE; the arrays are those of an episode.

    With top_s = max_{k≥s} size_k Π_{s≤j<k} d_j, a visit at i adds at most ρ top_{i+1}, and from s on at most
    ρ top_s Π_{i<j<s} d_j. The s where that is negligible moves on with i.
    """
    count = size.size
    top = np.zeros(count + 1)
    for s in range(count - 1, -1, -1):
        top[s] = max(size[s], d[s] * top[s + 1])
    s, left = 1, 1.0  # left = Π_{i<j<s} d_j
    for i in range(count - 1):
        if s <= i + 1:
            s, left = i + 1, 1.0
        elif left > 1e-290 and d[i] > 0.0:
            left /= d[i]
        else:  # beyond the range of division
            left = 1.0
            for j in range(i + 1, s):
                left *= d[j]
        while s < count and top[s] * left > NEGLIGIBLE * top[i + 1]:
            left *= d[s]
            s += 1
        ahead[i] = max(ahead[i], s - 1 - i)


@njit(cache=True, nogil=True)
def reach(n: int, step: Floats, ahead: Ints, runs: bool, sigma: Entries, steps: int) -> None:
    """Find ``ahead`` of n positions: how far on the last one is that a visit there adds anything to."""
    begin = 0
    for end in range(n):
        if ahead[end] != END:
            continue
        stop = end + 1 if step[end, 1] != 0.0 or step[end, 2] != 0.0 else end
        left = 1.0
        for s in range(begin, end):
            left *= step[s, 0]
        if left >= NEGLIGIBLE or steps < end - begin:
            for s in range(begin, end):
                ahead[s] = min(stop - 1 - s, steps)
        else:
            size = np.zeros(stop - begin)
            for c in range(2):
                for s in range(begin, stop):
                    top = 1.0
                    if not runs:
                        top = 0.0
                        for q in range(sigma.ptr[s], sigma.ptr[s + 1]):
                            top = max(top, abs(sigma.val[q]))
                    size[s - begin] = abs(step[s, 1 + c]) * top
                _reach(size, step[begin:stop, 0], ahead[begin:stop])
        begin = end + 1


@njit(cache=True, nogil=True)
def index_visits(n: int, rho: Entries, ahead: Ints, size: int, steps: int, leave: float) -> Visits:
    """The visits of n positions with the rows ρ, in traces of ``size`` features that last K = ``steps``."""
    begin = np.zeros(size + 1, np.int64)
    for s in range(n):
        if ahead[s] != END:
            for p in range(rho.ptr[s], rho.ptr[s + 1]):
                begin[rho.idx[p] + 1] += 2 if ahead[s] == steps else 1
    begin = np.cumsum(begin)
    end = begin[:-1].copy()
    where, until = np.empty(begin[-1], np.int64), np.empty(begin[-1], np.int64)
    value = np.empty(begin[-1])
    for s in range(n):
        if ahead[s] == END:
            continue
        left = s - steps
        if left >= 0 and ahead[left] == steps:
            for p in range(rho.ptr[left], rho.ptr[left + 1]):
                j = rho.idx[p]
                at = end[j]
                if where[at - 1] == s:
                    value[at - 1] -= leave * rho.val[p]
                else:
                    where[at], until[at], value[at] = s, until[at - 1], -leave * rho.val[p]
                    end[j] = at + 1
        for p in range(rho.ptr[s], rho.ptr[s + 1]):
            j = rho.idx[p]
            at = end[j]
            if at > begin[j] and where[at - 1] == s:
                until[at - 1] = s + ahead[s]
                value[at - 1] += rho.val[p]
            else:
                where[at], until[at], value[at] = s, s + ahead[s], rho.val[p]
                end[j] = at + 1
    return Visits(begin, end, where, until, value)


@njit(cache=True)
def _add_row(a: int, notes: RowSources, buffer: Floats, touched: npt.NDArray[np.uint8]) -> int:
    """Add row a of P to a buffer (columns or more, 2); returns how many positions that took."""
    visits, step, visit, column, runs, sigma = notes
    one, group = np.uint64(1), np.uint64(GROUP)  # unsigned, since no one asks of those whether they are < 0
    z, reached, additions, end = 0.0, -1, 0, visits.end[a]
    for p in range(visits.begin[a], end):
        i, rho = visits.where[p], visits.value[p]
        if i > reached:
            z = 0.0
        x, y = z * step[i, 1] + rho * visit[i, 1], z * step[i, 2] + rho * visit[i, 2]
        z = step[i, 0] * z + rho * visit[i, 0]
        reached = visits.until[p]
        stop = reached + 1
        if p + 1 < end:
            stop = min(stop, visits.where[p + 1])
        additions += stop - i
        if runs:
            buffer[a, 0] += x
            buffer[a, 1] += y
            touched[a // GROUP] = 1
            for s in range(np.uint64(i + 1), np.uint64(stop)):
                j = np.uint64(column[s])
                buffer[j, 0] += z * step[s, 1]
                buffer[j, 1] += z * step[s, 2]
                touched[j // group] = 1
                z *= step[s, 0]
            continue
        for s in range(np.uint64(i), np.uint64(stop)):
            if s > np.uint64(i):
                x, y = z * step[s, 1], z * step[s, 2]
                z *= step[s, 0]
            for q in range(np.uint64(sigma.ptr[s]), np.uint64(sigma.ptr[s + one])):
                j = np.uint64(sigma.idx[q])
                buffer[j, 0] += x * sigma.val[q]
                buffer[j, 1] += y * sigma.val[q]
                touched[j // group] = 1
    return additions


@njit(cache=True, nogil=True)
def sweep(low: int, high: int, notes: RowSources, out: Floats) -> tuple[int, int]:
    """Add rows low, …, high − 1 of P to out (channels, rows, columns).

    Returns how many additions to buffers that took, and how many entries of a channel were touched in out.
    """
    columns = out.shape[2]
    buffer = np.zeros((columns, 2))
    touched = np.zeros(columns // GROUP + 1, np.uint8)
    additions, entries = 0, 0
    for a in range(low, high):
        additions += _add_row(a, notes, buffer, touched)
        for k in range(touched.size):
            if touched[k]:
                touched[k] = 0
                entries += GROUP
                for c in range(len(out)):
                    for at in range(k * GROUP, min((k + 1) * GROUP, columns)):
                        out[c, a, at] += buffer[at, c]
                        buffer[at, c] = 0.0
    return additions, entries


@njit(cache=True)
def _longer(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    longer = np.empty(size, array.dtype)
    longer[: array.size] = array
    return longer


@njit(cache=True, nogil=True)
def sweep_sparse(
    low: int, high: int, notes: RowSources, columns: int, two: bool, old: ProductRows
) -> ProductRows:
    """Rows low, …, high − 1 of P added to what they were, of ``two`` channels or of one."""
    buffer = np.zeros((columns + WORD, 2))
    touched = np.zeros(columns // WORD * 8 + 8, np.uint8)
    words = touched.view(np.uint64)
    group = np.uint64(GROUP)
    ptr = np.zeros(high - low + 1, np.int64)
    room = old.idx.size + columns + WORD
    idx, first, second = np.empty(room, np.int32), np.empty(room), np.empty(room if two else 0)
    n = 0
    for a in range(low, high):
        for k in range(old.ptr[a - low], old.ptr[a - low + 1]):
            i = np.uint64(old.idx[k])
            buffer[i, 0] = old.first[k]
            if two:
                buffer[i, 1] = old.second[k]
            touched[i // group] = 1
        _add_row(a, notes, buffer, touched)
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
    return ProductRows(ptr, idx[:n].copy(), first[:n].copy(), second[: n if two else 0].copy())


# --- the product, dense -----------------------------------------------------------------------------


@njit(cache=True)
def _step(sigma: Floats, tau: Floats, out: Floats, g: float, h: float, decay: float) -> None:
    for j in range(sigma.size):
        before = tau[j]
        out[j] = before + h * sigma[j]
        tau[j] = g * sigma[j] + decay * before


@njit(cache=True, nogil=True)
def traces_dense(
    ends: Bools, columns: Floats, g: Floats, h: Floats, decay: float, carry: Floats, out: Floats
) -> None:
    """h_i σ_i + τ_i at the visited rows, into out (visited, channels, l); P_c is then (visited ρ)ᵀ out_c.

    τ_i = g_{i+1} σ_{i+1} + κ τ_{i+1}, the trace of what is to come: the same sum, backwards in time.
    """
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
