"""Compiled loops of the linear solvers: pure functions of arrays, one row of a CSR matrix at a time.

A matrix is given as its CSR triple (indptr, indices, data). Every kernel has a plain NumPy twin in
the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Floats, Ints

Indices = npt.NDArray[Any]
"""int32 or int64, whichever SciPy chose for the matrix."""


@njit(cache=True)
def gauss_seidel(
    indptr: Indices,
    indices: Indices,
    data: Floats,
    inverse_diagonal: Floats,
    b: Floats,
    x: Floats,
    backward: bool,
) -> None:
    """One sweep x_i ← x_i + (b_i − Σ_j a_ij x_j) / a_ii in place, i ascending or descending."""
    n = len(b)
    for step in range(n):
        i = n - 1 - step if backward else step
        r = b[i]
        for k in range(indptr[i], indptr[i + 1]):
            r -= data[k] * x[indices[k]]
        x[i] += r * inverse_diagonal[i]


@njit(cache=True)
def match_pairs(
    indptr: Indices,
    indices: Indices,
    data: Floats,
    indptr_t: Indices,
    indices_t: Indices,
    data_t: Floats,
    diagonal: Floats,
    dominance: float,
    weakest: float,
    aggregate: Ints,
) -> int:
    """Number the unknowns' aggregates 0, 1, … in ``aggregate``; return how many there are.

    The strength of i and j is −(a_ij + a_ji)(1/d_i + 1/d_j), d being ``diagonal``. Unknowns are visited
    in order; each is paired with the strongest that is still free, or joins the aggregate of one
    that is taken if that is more than four times as strong, or stays alone if both are weaker than
    ``weakest``. An unknown with d_i > dominance · −Σ_j (a_ij + a_ji)/2 needs no coarse correction
    (sweeps deal with it) and gets the number past the last; with dominance = inf there is none.
    """
    n = len(diagonal)
    free, left_out = -1, -2
    coupling = np.zeros(n)
    neighbours = np.empty(n, dtype=np.int64)
    for i in range(n):
        aggregate[i] = free
    # Left-out unknowns are marked before any pairing, so that nobody is paired with one.
    for i in range(n):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] != i:
                total -= data[k]
        for k in range(indptr_t[i], indptr_t[i + 1]):
            if indices_t[k] != i:
                total -= data_t[k]
        if dominance < np.inf and diagonal[i] > dominance * 0.5 * total:
            aggregate[i] = left_out
    count = 0
    for i in range(n):
        if aggregate[i] != free:
            continue
        found = 0
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j != i and data[k] != 0.0 and aggregate[j] != left_out:
                if coupling[j] == 0.0:
                    neighbours[found] = j
                    found += 1
                coupling[j] -= data[k]
        for k in range(indptr_t[i], indptr_t[i + 1]):
            j = indices_t[k]
            if j != i and data_t[k] != 0.0 and aggregate[j] != left_out:
                if coupling[j] == 0.0:
                    neighbours[found] = j
                    found += 1
                coupling[j] -= data_t[k]
        best_free, best_taken = -1, -1
        strength_free, strength_taken = 0.0, 0.0
        for k in range(found):
            j = neighbours[k]
            strength = coupling[j] * (1.0 / diagonal[i] + 1.0 / diagonal[j])
            coupling[j] = 0.0
            if aggregate[j] == free:
                if strength > strength_free:
                    best_free, strength_free = j, strength
            elif strength > strength_taken:
                best_taken, strength_taken = j, strength
        if best_taken >= 0 and strength_taken > max(4.0 * strength_free, weakest):
            aggregate[i] = aggregate[best_taken]
            continue
        aggregate[i] = count
        if best_free >= 0 and strength_free > weakest:
            aggregate[best_free] = count
        count += 1
    for i in range(n):
        if aggregate[i] == left_out:
            aggregate[i] = count
    return count


@njit(cache=True)
def collapse(
    indptr: Indices,
    indices: Indices,
    data: Floats,
    aggregate: Ints,
    count: int,
    coarse_indptr: Indices,
    coarse_indices: Indices,
    coarse_data: Floats,
) -> int:
    """Write the CSR matrix Σ_{i in I, j in J} a_ij, I, J aggregates; return its number of entries.

    The coarse arrays must have room for count + 1 and len(data) entries. Rows and columns whose
    aggregate is ``count`` are dropped. Columns within a row are not sorted.
    """
    n = len(aggregate)
    start = np.zeros(count + 2, dtype=np.int64)
    for i in range(n):
        start[aggregate[i] + 1] += 1
    for a in range(count + 1):
        start[a + 1] += start[a]
    members = np.empty(n, dtype=np.int64)
    fill = start[:-1].copy()
    for i in range(n):
        members[fill[aggregate[i]]] = i
        fill[aggregate[i]] += 1
    place = np.full(count, -1, dtype=np.int64)
    entries = 0
    coarse_indptr[0] = 0
    for row in range(count):
        first = entries
        for m in range(start[row], start[row + 1]):
            i = members[m]
            for k in range(indptr[i], indptr[i + 1]):
                column = aggregate[indices[k]]
                if column == count:
                    continue
                if place[column] < first:
                    place[column] = entries
                    coarse_indices[entries] = column
                    coarse_data[entries] = data[k]
                    entries += 1
                else:
                    coarse_data[place[column]] += data[k]
        coarse_indptr[row + 1] = entries
    return entries


@njit(cache=True)
def _product(a: float, b: float) -> tuple[float, float]:
    """a·b and its rounding error, by Dekker's splitting."""
    split = 134217729.0  # 2**27 + 1
    a_high, b_high = split * a, split * b
    a_high, b_high = a_high - (a_high - a), b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit(cache=True)
def _sum(a: float, b: float) -> tuple[float, float]:
    """a + b and its rounding error (two-sum)."""
    total = a + b
    gone = total - a
    return total, (a - (total - gone)) + (b - gone)


@njit(cache=True)
def resolvent_residual(
    indptr: Indices, indices: Indices, data: Floats, factor: float, b: Floats, x: Floats, out: Floats
) -> None:
    """Write r = b − x + factor · P x, of shape (n, k), summed in twice the working precision.

    Sums and products carry their rounding error along, so that r is right to about one rounding even where
    b, x and P x cancel. |x| must stay below 1e300.
    """
    n, columns = b.shape
    high = np.empty(columns)
    low = np.empty(columns)
    for i in range(n):
        for c in range(columns):
            high[c] = 0.0
            low[c] = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            for c in range(columns):
                product, rest = _product(data[k], x[indices[k], c])
                high[c], error = _sum(high[c], product)
                low[c] += rest + error
        for c in range(columns):
            total, rest = _product(factor, high[c])
            rest += factor * low[c]
            for term in (-x[i, c], b[i, c]):
                total, error = _sum(total, term)
                rest += error
            out[i, c] = total + rest
