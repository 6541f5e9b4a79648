"""Compiled loops of LSTD(λ): sums over rows of features. Pure functions of arrays.

Episodes lie end to end, an episode of length T taking T + 1 *rows*: its visited states and its last one,
for which ``ends`` is true. Features come as an array (rows, l), or sparse as ``ptr``, ``idx``, ``val``:
row i holds val[p] in column idx[p] for ptr[i] ≤ p < ptr[i + 1].
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints


@njit(cache=True, nogil=True)
def to_go(x: Floats, lengths: Ints, decay: float, steps: int, out: Floats) -> None:
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
def tally_sparse(
    ends: Bools,
    ptr: Ints,
    idx: Ints,
    val: Floats,
    mark: int,
    last: Ints,
    visits: Floats,
    episodes: Floats,
    squares: Floats,
    weights: Floats,
    sums: Floats,
) -> int:
    """Over the visited rows: how many rows and episodes have each feature, its squares, and weighted sums.

    ``last`` (l,) holds the mark of the latest episode that had the feature; returns the next mark.
    sums (k, l) += Σ_i weights_ki φ_i, weights (k, rows).
    """
    for i in range(ends.size - 1, -1, -1):
        if ends[i]:
            mark += 1
            continue
        for p in range(ptr[i], ptr[i + 1]):
            j, v = idx[p], val[p]
            if v != 0.0:
                visits[j] += 1.0
                squares[j] += v * v
                for k in range(len(sums)):
                    sums[k, j] += weights[k, i] * v
                if last[j] != mark:
                    last[j] = mark
                    episodes[j] += 1.0
    return mark


@njit(cache=True, nogil=True)
def gram_sparse(ends: Bools, ptr: npt.NDArray[Any], idx: npt.NDArray[Any], val: Floats, out: Floats) -> None:
    """out += Σ_i φ_i φ_iᵀ over the visited rows, of shape (l, l)."""
    for i in range(ends.size):
        if ends[i]:
            continue
        for p in range(ptr[i], ptr[i + 1]):
            for q in range(ptr[i], ptr[i + 1]):
                out[idx[p], idx[q]] += val[p] * val[q]


@njit(cache=True, nogil=True)
def error_traces(
    ends: Bools, phi: Floats, by: Floats, gamma: float, kappa: float, decay: float, carry: Floats, out: Floats
) -> None:
    """out_t = by_0t η_t + by_1t u_t + decay out_{t+1} with η_t = γφ_{t+1} − φ_t and u_t = η_t + κ u_{t+1}.

    ``by`` (2, rows) tells at a last row whether its φ counts; ``out`` has the visited rows alone. ``carry``
    (3, l) holds φ, u and out of the row after these, and then of the first of these.
    """
    last = len(out)
    for i in range(ends.size - 1, -1, -1):
        if ends[i]:
            for j in range(phi.shape[1]):
                carry[0, j], carry[1, j], carry[2, j] = by[0, i] * phi[i, j], 0.0, 0.0
            continue
        last -= 1
        for j in range(phi.shape[1]):
            eta = gamma * carry[0, j] - phi[i, j]
            u = eta + kappa * carry[1, j]
            w = by[0, i] * eta + by[1, i] * u + decay * carry[2, j]
            carry[0, j], carry[1, j], carry[2, j] = phi[i, j], u, w
            out[last, j] = w
