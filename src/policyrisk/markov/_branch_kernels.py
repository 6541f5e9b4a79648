"""Compiled sums over a chain's branches: sampling, and the distribution of the return."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.random import stream, uniform

AnyInts: TypeAlias = npt.NDArray[np.signedinteger[Any]]


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
def sample(
    indptr: Ints,
    successor: Ints,
    cumulative: Floats,
    reward: Floats,
    start: Floats,
    key0: np.uint64,
    key1: np.uint64,
    max_steps: int,
    lengths: Ints,
    terminated: Bools,
    offsets: Ints,
    states: Ints,
    rewards: Floats,
) -> None:
    """How long each episode lasts and whether it ends by itself; with ``offsets``, its states and rewards.

    Episodes are the same in every run: a first one without offsets tells how much memory the second needs.
    """
    n = indptr.size - 1
    recorded = offsets.size > 0
    for k in prange(lengths.size):
        s0, s1 = stream(key0, key1, k)
        u, s0, s1 = uniform(s0, s1)
        x = _search(start, 0, n, u)
        t = 0
        while x < n and t < max_steps:
            u, s0, s1 = uniform(s0, s1)
            branch = _search(cumulative, indptr[x], indptr[x + 1], u)
            if recorded:
                states[offsets[k] + t + k] = x
                rewards[offsets[k] + t] = reward[branch]
            x = successor[branch]
            t += 1
        if recorded:
            states[offsets[k] + t + k] = x
        lengths[k] = t
        terminated[k] = x == n


@njit(cache=True)
def lattice_points(
    indptr: AnyInts, column: AnyInts, probability: Floats, history: Floats, at: int, count: int
) -> None:
    """The next ``count`` rows above row ``at`` of the history (rows, n + 1); columns count from that row.

    One thread: a step is so short that two would wait for each other most of the time.
    """
    n = indptr.size - 1
    flat = history.ravel()
    for i in range(count):
        base = (at - i) * (n + 1)
        for x in range(n):
            p = 0.0
            for b in range(indptr[x], indptr[x + 1]):
                p += probability[b] * flat[base + column[b]]
            flat[base - n - 1 + x] = p


@njit(cache=True)
def lattice_sums(p: Floats, k: int, level: float, total: Floats, area: Floats, first: Ints) -> None:
    """Add p_k, … (m, n) to each state's total; until that exceeds the level, the totals to its area."""
    m, n = p.shape
    for i in range(m):
        for x in range(n):
            if first[x] < 0:
                total[x] += p[i, x]
                if total[x] > level:
                    first[x] = k + i
                else:
                    area[x] += total[x]


@njit(cache=True)
def transform_products(
    indptr: Ints,
    successor: Ints,
    probability: Floats,
    rewards: Floats,
    which: Ints,
    gamma: float,
    s: complex,
    first: int,
    T: int,
    psi: npt.NDArray[np.complex128],
) -> None:
    """E[e^{ksB}] (n, m) for k = first, …, from those for γ^T s: ψ ← E[e^{k γ^t s ρ} ψ(y)], t < T.

    ``rewards`` are the different ones, of which branch b has number ``which[b]``.
    """
    n, m = psi.shape
    new = np.empty_like(psi)
    powers = np.empty((rewards.size, m), dtype=np.complex128)
    for t in range(T - 1, -1, -1):
        scaled = s * gamma**t
        for u in range(rewards.size):
            turn, power = np.exp(scaled * rewards[u]), np.exp(scaled * rewards[u] * first)
            for k in range(m):
                powers[u, k] = power
                power *= turn
        for x in range(n):
            new[x] = 0.0
            for b in range(indptr[x], indptr[x + 1]):
                y, p, u = successor[b], probability[b], which[b]
                if y == n:
                    for k in range(m):
                        new[x, k] += p * powers[u, k]
                else:
                    for k in range(m):
                        new[x, k] += p * (powers[u, k] * psi[y, k])
        psi[:] = new


@njit(cache=True)
def distinct(one: Ints, two: Ints, number: Floats, place: Ints, first: Ints) -> int:
    """Number the different rows of three columns as they come: how many there are.

    ``place`` is the number of each row, ``first`` where the row of a number stands first.
    """
    rows, size = one.size, 16
    while size < 2 * rows:
        size *= 2
    slots, bits, count = np.full(size, -1, dtype=np.int32), number.view(np.uint64), 0
    odd, half = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
    for i in range(rows):
        mixed = np.uint64(one[i]) * odd
        mixed = (mixed ^ (mixed >> half) ^ np.uint64(two[i])) * odd
        mixed = (mixed ^ (mixed >> half) ^ bits[i]) * odd
        at = np.int64((mixed ^ (mixed >> half)) & np.uint64(size - 1))
        while slots[at] >= 0:
            j = first[slots[at]]
            if number[j] == number[i] and one[j] == one[i] and two[j] == two[i]:
                break
            at = (at + 1) & (size - 1)
        if slots[at] < 0:
            slots[at] = count
            first[count] = i
            count += 1
        place[i] = slots[at]
    return count


@njit(cache=True)
def sweep(
    indptr: Ints,
    successor: Ints,
    probability: Floats,
    begin: Floats,
    stride: float,
    F: Floats,
    backwards: bool,
    slope: float,
) -> float:
    """Put Σ p F(begin + i · stride | y) in the place of F (n, m), state by state; the largest change.

    Between two columns F is a straight line; it is 0 one column before the first, and 1 from the last one on.
    At the end it rises with this slope from one column before 0.
    """
    n, m = F.shape
    row, most = np.empty(m), 0.0
    for step in range(n):
        x = n - 1 - step if backwards else step
        row[:] = 0.0
        for b in range(indptr[x], indptr[x + 1]):
            y, p, place = successor[b], probability[b], begin[b]
            if y == n:
                for i in range(m):
                    row[i] += p * min(max((place + i + 1.0) * slope, 0.0), 1.0)
            elif stride == 1.0:
                low = int(np.floor(place))
                up = place - low
                one = max(m - 1 - low, 0)  # from here on F is 1
                begins = max(-low, 0)
                if 0 < begins <= min(m, one):
                    row[begins - 1] += p * up * F[y, begins - 1 + low + 1]
                for i in range(begins, min(one, m)):
                    row[i] += p * ((1.0 - up) * F[y, i + low] + up * F[y, i + low + 1])
                for i in range(one, m):
                    row[i] += p
            else:
                for i in range(m):
                    at = place + i * stride
                    low = int(np.floor(at))
                    if low >= m - 1:
                        row[i] += p
                    elif low >= -1:
                        before = F[y, low] if low >= 0 else 0.0
                        row[i] += p * (before + (at - low) * (F[y, low + 1] - before))
        for i in range(m):
            most = max(most, abs(row[i] - F[x, i]))
            F[x, i] = row[i]
    return most


@njit(cache=True)
def lost_within(
    indptr: Ints, successor: Ints, probability: Floats, multiples: Ints, b: Floats, steps: int, H: Floats
) -> None:
    """H ← b + E[H(y, min(u + c, L))], (n, L) for u = 1, …, L, as often as there are steps."""
    n, L = H.shape
    later = np.empty_like(H)
    for _ in range(steps):
        later[:] = b
        for x in range(n):
            for j in range(indptr[x], indptr[x + 1]):
                y, p, c = successor[j], probability[j], multiples[j]
                if y == n or c <= -L:
                    continue
                full = min(max(L - c, 0), L)
                for u in range(max(-c, 0), full):
                    later[x, u] += p * H[y, u + c]
                for u in range(full, L):
                    later[x, u] += p * H[y, L - 1]
        H[:] = later
