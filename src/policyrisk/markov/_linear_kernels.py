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
    coupling: Floats,
    diagonal: Floats,
    dominance: float,
    weakest: float,
    aggregate: Ints,
) -> int:
    """Number the unknowns' aggregates 0, 1, … in ``aggregate``; return how many there are.

    The CSR matrix is −(A + Aᵀ). The strength of i and j is −(a_ij + a_ji)(1/d_i + 1/d_j), d being
    ``diagonal``. Unknowns are visited in order; each is paired with the strongest that is still free, or
    joins the aggregate of one that is taken if that is more than four times as strong, or stays alone if
    both are weaker than ``weakest``. An unknown with d_i > dominance · −Σ_j (a_ij + a_ji)/2 needs no coarse
    correction (sweeps deal with it) and gets the number past the last; with dominance = inf there is none.
    """
    n = len(diagonal)
    free, left_out = -1, -2
    # Left-out unknowns are marked before any pairing, so that nobody is paired with one.
    for i in range(n):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] != i:
                total += coupling[k]
        weak = dominance < np.inf and diagonal[i] > dominance * 0.5 * total
        aggregate[i] = left_out if weak else free
    count = 0
    for i in range(n):
        if aggregate[i] != free:
            continue
        best_free, best_taken = -1, -1
        strength_free, strength_taken = 0.0, 0.0
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j == i or aggregate[j] == left_out:
                continue
            strength = coupling[k] * (1.0 / diagonal[i] + 1.0 / diagonal[j])
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
