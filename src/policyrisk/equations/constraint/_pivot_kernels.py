"""The pivoting loop of the direct solver: ``lemke`` in plain Python, ``compiled_lemke`` the same, compiled.

Notation: K = H C⁻¹ Hᵀ, and s = q + K μ + p θ are the slacks. At any moment R are the rows whose slack
is held at zero, A ⊂ R those whose multiplier may be positive, and r the one row of R outside A. Then
z = (θ, μ_A) solves B z = −q_R with the square matrix B = [p_R | K_RA]. Row or column exchanges change B
by rank one, so its inverse is carried along in O(|A|²) a pivot.

Arrays are copied by loops: a slice that is assigned to can have the wrong shape, and compiling the text
of that error takes as long as all the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from policyrisk._core.arrays import Bools, Floats, Ints

SOLVED, RAY, STALLED = 0, 1, 2

# After equilibration values and rates are of order one; below these they are rounding.
_VALUE_NOISE = 1e-13
_RATE_NOISE = 1e-11
_PIVOTS_BETWEEN_REFRESHES = 50


class _Basis(NamedTuple):
    """Arrays with room for l + 2 rows; the first n = |R| of each are in use."""

    inverse: Floats  # (l+2, l+2) of B
    R: Ints  # (l+2,)
    A: Ints  # (l+2,); A[a] belongs to column a + 1 of B
    Y_A: Floats  # (l+2, l), row a is C⁻¹ h_a
    z: Floats  # (l+2,) θ, then μ_A
    dz: Floats  # (l+2,) their rates while the entering variable grows
    s: Floats  # (m,) slacks
    ds: Floats  # (m,)
    held: Bools  # (m,) True on R


@register_jitable(fastmath={"reassoc", "contract", "nsz"})
def _dot(a: Floats, b: Floats) -> float:
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@register_jitable
def _copy(values: Floats, out: Floats) -> None:
    for i in range(values.size):
        out[i] = values[i]


@register_jitable
def _add_combination(weights: Floats, rows: Floats, out: Floats) -> None:
    """``out += weights @ rows[: weights.size]``, a contiguous row at a time."""
    for a in range(weights.size):
        weight = weights[a]
        row = rows[a]
        for j in range(out.size):
            out[j] += weight * row[j]


@register_jitable
def _subtract_outer(matrix: Floats, left: Floats, right: Floats) -> None:
    """``matrix[:n, :n] -= outer(left, right)`` with n = right.size."""
    for a in range(right.size):
        weight = left[a]
        row = matrix[a]
        for b in range(right.size):
            row[b] -= weight * right[b]


@register_jitable
def _refresh(basis: _Basis, n: int, H: Floats, q: Floats, p: Floats) -> None:
    """Compute the inverse, z and s anew, so that rounding does not pile up."""
    B = np.empty((n, n))
    for a in range(n):
        B[a, 0] = p[basis.R[a]]
        for b in range(1, n):
            B[a, b] = _dot(H[basis.R[a]], basis.Y_A[b - 1])
    inverse = np.linalg.inv(B)
    for a in range(n):
        _copy(inverse[a], basis.inverse[a])
        basis.z[a] = 0.0
        for b in range(n):
            basis.z[a] -= inverse[a, b] * q[basis.R[b]]
    v = np.zeros(H.shape[1])
    _add_combination(basis.z[1:n], basis.Y_A, v)
    for i in range(q.size):
        basis.s[i] = 0.0 if basis.held[i] else q[i] + p[i] * basis.z[0] + _dot(H[i], v)


@register_jitable
def _leaving(basis: _Basis, n: int, rate_size: float) -> tuple[int, int]:
    """Which variable reaches zero first: (a, -1) for z[a], (-1, i) for s[i], (-1, -1) for none.

    In two passes (Harris): among those that block within rounding of the first, the one with the
    largest rate leaves, which keeps B well conditioned. θ is preferred: there the path ends.
    """
    z, dz, s, ds = basis.z, basis.dz, basis.s, basis.ds
    slow_z = 0.0
    for a in range(n):
        slow_z = max(slow_z, _RATE_NOISE * abs(dz[a]))
    slow_s = _RATE_NOISE * rate_size
    reach = np.inf
    for a in range(n):
        if dz[a] < -slow_z:
            reach = min(reach, (z[a] + _VALUE_NOISE) / -dz[a])
    for i in range(s.size):
        if ds[i] < -slow_s:
            reach = min(reach, (s[i] + _VALUE_NOISE) / -ds[i])
    if dz[0] < -slow_z and z[0] <= -dz[0] * reach:
        return 0, -1
    leaving_z, leaving_s, best = -1, -1, 0.0
    for a in range(1, n):
        if dz[a] < min(-slow_z, -best) and z[a] <= -dz[a] * reach:
            leaving_z, best = a, -dz[a]
    for i in range(s.size):
        if ds[i] < min(-slow_s, -best) and s[i] <= -ds[i] * reach:
            leaving_z, leaving_s, best = -1, i, -ds[i]
    return leaving_z, leaving_s


@register_jitable
def _row_in_basis(basis: _Basis, n: int, h: Floats, p_i: float) -> tuple[Floats, Floats]:
    """The row b = (p_i, K_iA) of constraint i, and b B⁻¹."""
    b = np.empty(n)
    b[0] = p_i
    for a in range(1, n):
        b[a] = _dot(h, basis.Y_A[a - 1])
    e = np.zeros(n)
    _add_combination(b, basis.inverse, e)
    return b, e


@register_jitable
def _grow(basis: _Basis, n: int, h: Floats, p_i: float, y: Floats) -> None:
    """B gains the row of constraint i (h, p_i) and the column of the multiplier with y = C⁻¹ h_r."""
    b, e = _row_in_basis(basis, n, h, p_i)
    inverse, dz = basis.inverse, basis.dz
    corner = _dot(h, y) + _dot(b, dz[:n])
    e /= corner
    _subtract_outer(inverse, dz, e)
    for a in range(n):
        inverse[n, a] = -e[a]
        inverse[a, n] = dz[a] / corner
    inverse[n, n] = 1.0 / corner


@register_jitable
def _swap_row(basis: _Basis, n: int, at: int, h: Floats, p_i: float) -> None:
    """The row of constraint i (h, p_i) takes the place of row ``at`` of B."""
    _, e = _row_in_basis(basis, n, h, p_i)
    corner = e[at]
    e[at] -= 1.0
    e /= corner
    _subtract_outer(basis.inverse, basis.dz, e)


@register_jitable
def _eliminate(basis: _Basis, n: int, a: int) -> None:
    """Pivot on column a; its row of the inverse becomes that of the entering multiplier."""
    e = basis.inverse[a, :n] / basis.dz[a]
    _subtract_outer(basis.inverse, basis.dz, e)
    _copy(-e, basis.inverse[a])


@register_jitable
def _shrink(basis: _Basis, n: int, at: int, a: int) -> None:
    """Row ``at`` and column ``a`` leave B (after ``_eliminate``); the last ones take their places."""
    last = n - 1
    if a != last:
        _copy(basis.inverse[last, :n], basis.inverse[a])
        basis.A[a - 1] = basis.A[last - 1]
        _copy(basis.Y_A[last - 1], basis.Y_A[a - 1])
        basis.z[a] = basis.z[last]
    if at != last:
        for b in range(last):
            basis.inverse[b, at] = basis.inverse[b, last]
        basis.R[at] = basis.R[last]


def lemke(
    H: Floats, C_inverse: Floats, q: Floats, p: Floats, max_pivots: int
) -> tuple[int, int, Ints, Floats]:
    """Follow s = q + K μ + p θ, 0 ≤ μ ⊥ s ≥ 0, from the θ where μ = 0 solves it down to θ = 0.

    H is (m, l) with rows of norm 1, q and p are (m,), p > 0 and min q < 0. Returns a status, the
    number of pivots, the rows that may have a multiplier, and those multipliers (``SOLVED``) or
    their rates along the ray (``RAY``).
    """
    m, features = H.shape
    room = features + 2
    basis = _Basis(
        np.zeros((room, room)),
        np.zeros(room, dtype=np.int64),
        np.zeros(room, dtype=np.int64),
        np.zeros((room, features)),
        np.zeros(room),
        np.zeros(room),
        np.zeros(m),
        np.zeros(m),
        np.zeros(m, dtype=np.bool_),
    )
    z, dz, s, ds = basis.z, basis.dz, basis.s, basis.ds
    r = int(np.argmin(q / p))
    z[0] = -q[r] / p[r]
    for i in range(m):
        s[i] = 0.0 if i == r else q[i] + p[i] * z[0]
    basis.held[r] = True
    basis.R[0] = r
    basis.inverse[0, 0] = 1.0 / p[r]
    n = 1
    at = 0  # R[at] is r
    enters_multiplier = True  # of row r; else its slack enters
    column = np.zeros(room)
    y = np.zeros(features)
    v = np.zeros(features)

    for pivot in range(max_pivots):
        if (pivot + 1) % _PIVOTS_BETWEEN_REFRESHES == 0:
            _refresh(basis, n, H, q, p)

        if enters_multiplier:
            for j in range(features):
                y[j] = _dot(C_inverse[j], H[r])
            for b in range(n):
                column[b] = _dot(H[basis.R[b]], y)
            for a in range(n):
                dz[a] = -_dot(basis.inverse[a, :n], column[:n])
            _copy(y, v)
        else:
            for b in range(n):
                dz[b] = basis.inverse[b, at]
            v[:] = 0.0
        # v can cancel to nothing where rows depend on each other; its terms give the noise's size.
        rate_size = np.sqrt(_dot(v, v)) + abs(dz[0])
        for a in range(1, n):
            rate_size += abs(dz[a]) * np.sqrt(_dot(basis.Y_A[a - 1], basis.Y_A[a - 1]))
        _add_combination(dz[1:n], basis.Y_A, v)
        for i in range(m):
            ds[i] = 0.0 if basis.held[i] else _dot(H[i], v) + p[i] * dz[0]

        a, i = _leaving(basis, n, rate_size)
        is_ray = a < 0 and i < 0
        if not is_ray:
            step = max(s[i], 0.0) / -ds[i] if i >= 0 else max(z[a], 0.0) / -dz[a]
            for k in range(m):
                s[k] += step * ds[k]
            for b in range(n):
                z[b] += step * dz[b]
        if is_ray or a == 0:
            rows = basis.A[:n].copy()
            values = np.empty(n)
            _copy(dz[1:n] if is_ray else z[1:n], values)
            if not enters_multiplier:
                return RAY if is_ray else SOLVED, pivot + 1, rows[: n - 1], values[: n - 1]
            rows[n - 1] = r
            values[n - 1] = 1.0 if is_ray else step
            return RAY if is_ray else SOLVED, pivot + 1, rows, values

        if i < 0:
            _eliminate(basis, n, a)
            leaver = basis.A[a - 1]
        if enters_multiplier and i >= 0:
            if n == room:
                break
            _grow(basis, n, H[i], p[i], y)
            basis.A[n - 1] = r
            _copy(y, basis.Y_A[n - 1])
            z[n] = step
            at = n
            n += 1
        elif enters_multiplier:
            basis.A[a - 1] = r
            _copy(y, basis.Y_A[a - 1])
            z[a] = step
        else:
            basis.held[r] = False
            s[r] = step
            if i >= 0:
                _swap_row(basis, n, at, H[i], p[i])
            else:
                _shrink(basis, n, at, a)
                n -= 1
        enters_multiplier = i >= 0
        if enters_multiplier:
            basis.R[at] = i
            basis.held[i] = True
            s[i] = 0.0
            r = i
        else:
            r = leaver
            at = 0
            while basis.R[at] != r:
                at += 1

    return STALLED, max_pivots, basis.A[: n - 1].copy(), z[1:n].copy()


compiled_lemke = njit(cache=True)(lemke)
