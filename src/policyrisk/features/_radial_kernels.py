"""Compiled loops of the radial basis, over coordinates ``u`` (n, d) scaled to the box.

The sparse kernels come as a pair: one counts what a row holds, the other fills in the columns and
values, in increasing order of the columns. Near means |u_i − c_i| ≤ reach_i in every coordinate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Floats, Ints


@njit(cache=True, nogil=True, error_model="numpy")
def exponents(u: Floats, centres: Floats, width: Floats, reach: Floats, out: Floats) -> None:
    """−½ Σ_i ((u_i − c_i) / width_i)² for centres (d, size) that are near, else −∞, into out (n, size)."""
    for row in range(len(u)):
        total = out[row]  # slices, here and below: with them the compiler sees that loops do not overlap
        total[:] = 0.0
        for i in range(u.shape[1]):
            x, c, inverse = u[row, i], centres[i], 1.0 / width[i]
            for j in range(len(c)):
                z = (x - c[j]) * inverse
                total[j] -= 0.5 * z * z if abs(x - c[j]) <= reach[i] else np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def axis_exponents(
    u: Floats, axes: Floats, shape: Ints, width: Floats, normalised: bool, out: Floats
) -> None:
    """−½ ((u_i − c) / width_i)² for the centres c along every coordinate, into out (n, Σ shape).

    The axes hold shape[0] centres of the first coordinate, shape[1] of the second, and so on. Where
    normalised, the largest along each coordinate is subtracted: no sum of exp is then 0.
    """
    for row in range(len(u)):
        first = 0
        for i in range(len(shape)):
            x, inverse = u[row, i], 1.0 / width[i]
            c, exponent = axes[first : first + shape[i]], out[row, first : first + shape[i]]
            for j in range(len(c)):
                z = (x - c[j]) * inverse
                exponent[j] = -0.5 * z * z
            if normalised:
                largest = exponent[0]
                for j in range(1, len(exponent)):
                    largest = max(largest, exponent[j])
                for j in range(len(exponent)):
                    exponent[j] -= largest
            first += shape[i]


@njit(cache=True, nogil=True, error_model="numpy")
def products(g: Floats, shape: Ints, normalised: bool, out: Floats) -> None:
    """Products of one entry of g (n, Σ shape) per coordinate, in every combination, into out (n, Π shape).

    Where normalised, they are divided by their sum, which is the product of the coordinates' sums. They
    are made in place from the last coordinate to the first, so that every loop is over neighbours.
    """
    for row in range(len(g)):
        phi = out[row]
        phi[0] = 1.0
        made, stop = 1, g.shape[1]
        for i in range(len(shape) - 1, -1, -1):
            factors = g[row, stop - shape[i] : stop]
            scale = 1.0
            if normalised:
                total = 0.0
                for j in range(len(factors)):
                    total += factors[j]
                scale = 1.0 / total
            base = phi[:made]
            for j in range(len(factors) - 1, -1, -1):  # the first last: its place is the base's own
                factor, to = factors[j] * scale, phi[j * made : (j + 1) * made]
                for a in range(made):
                    to[a] = base[a] * factor
            made *= shape[i]
            stop -= shape[i]


@njit(cache=True, error_model="numpy")
def _centre(j: int, count: int) -> float:
    return 0.5 if count == 1 else j / (count - 1)


@njit(cache=True, error_model="numpy")
def _near(u: float, count: int, reach: float) -> tuple[int, int]:
    """The first near centre of a grid's coordinate and the one after the last."""
    # An estimate rounded outwards, then the rule itself, so that rounding does not decide.
    end = float(count - 1)
    first = math.floor(min(max((u - reach) * end, 0.0), end))
    last = math.ceil(min(max((u + reach) * end, 0.0), end))
    while first <= last and not abs(u - _centre(first, count)) <= reach:
        first += 1
    while last >= first and not abs(u - _centre(last, count)) <= reach:
        last -= 1
    return first, last + 1


@njit(cache=True, nogil=True, error_model="numpy")
def grid_counts(u: Floats, shape: Ints, reach: Floats, out: Ints) -> None:
    """How many centres of the grid are near, into out (n,)."""
    for row in range(len(u)):
        out[row] = 1
        for i in range(len(shape)):
            first, stop = _near(u[row, i], shape[i], reach[i])
            out[row] *= stop - first


@njit(cache=True, nogil=True, error_model="numpy")
def grid_fill(
    u: Floats,
    shape: Ints,
    width: Floats,
    reach: Floats,
    normalised: bool,
    starts: Ints,
    indices: npt.NDArray[Any],
    values: Floats,
) -> None:
    """The near centres' numbers and values, from starts[row] to starts[row + 1] of the two arrays."""
    g = np.empty(shape.max())
    for row in range(len(u)):
        start = starts[row]
        if start == starts[row + 1]:
            continue
        indices[start], values[start] = 0, 1.0
        made, stride = 1, 1
        for i in range(len(shape) - 1, -1, -1):  # in place from the last to the first, as in products
            first, stop = _near(u[row, i], shape[i], reach[i])
            _one_dimensional(u[row, i], shape[i], width[i], first, stop, normalised, g)
            for j in range(stop - first - 1, -1, -1):
                factor, step, to = g[j], (first + j) * stride, start + j * made
                for a in range(made):
                    indices[to + a] = indices[start + a] + step
                    values[to + a] = values[start + a] * factor
            made *= stop - first
            stride *= shape[i]


@njit(cache=True, error_model="numpy")
def _one_dimensional(
    u: float, count: int, width: float, first: int, stop: int, normalised: bool, out: Floats
) -> None:
    """exp(−½ ((u − c) / width)²) for the centres first to stop − 1, perhaps divided by their sum."""
    nearest = np.inf  # the smallest ½z²: taken out before the sum, so that it cannot be 0
    for j in range(first, stop):
        z = (u - _centre(j, count)) / width
        out[j - first] = 0.5 * z * z
        nearest = min(nearest, out[j - first])
    shift = nearest if normalised else 0.0
    total = 0.0
    for b in range(stop - first):
        out[b] = math.exp(shift - out[b])
        total += out[b]
    if normalised:
        for b in range(stop - first):
            out[b] /= total
