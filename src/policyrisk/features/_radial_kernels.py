"""Compiled loops of the radial basis, over coordinates ``u`` (n, d) scaled to the box."""

from __future__ import annotations

import numpy as np
from numba import njit

from policyrisk._core.arrays import Floats, Ints


@njit(cache=True, nogil=True, error_model="numpy")
def exponents(u: Floats, centres: Floats, width: Floats, reach: Floats, out: Floats) -> None:
    """−½ Σ_i ((u_i − c_i) / width_i)² for near centres (d, size), else −∞, into out (n, size).

    Near means |u_i − c_i| ≤ reach_i in every coordinate.
    """
    for row in range(len(u)):
        total = out[row]  # slices, here and below: with them the compiler sees that loops do not overlap
        total[:] = 0.0
        for i in range(u.shape[1]):
            x, c, inverse = u[row, i], centres[i], 1.0 / width[i]
            for j in range(len(c)):
                z = (x - c[j]) * inverse
                total[j] -= 0.5 * z * z if abs(x - c[j]) <= reach[i] else np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def products(g: Floats, shape: Ints, out: Floats) -> None:
    """Products of one entry of g (n, Σ shape) per coordinate, in every combination, into out (n, Π shape).

    They are made in place from the last coordinate to the first, so that every loop is over neighbours.
    """
    for row in range(len(g)):
        phi = out[row]
        phi[0] = 1.0
        made, stop = 1, g.shape[1]
        for i in range(len(shape) - 1, -1, -1):
            factors = g[row, stop - shape[i] : stop]
            base = phi[:made]
            for j in range(len(factors) - 1, -1, -1):  # the first last: its place is the base's own
                factor, to = factors[j], phi[j * made : (j + 1) * made]
                for a in range(made):
                    to[a] = base[a] * factor
            made *= shape[i]
            stop -= shape[i]
