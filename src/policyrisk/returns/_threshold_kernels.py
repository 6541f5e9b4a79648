"""Compiled sums over transitions for the distribution of the return, one row of features at a time."""

from __future__ import annotations

import numpy as np
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints


@njit(cache=True)
def sort_in(
    ptr: Ints,
    idx: Ints,
    val: Floats,
    episode: Ints,
    group: Ints,
    place: Ints,
    extra: Floats,
    seen: Ints,
    b: Floats,
    visits: Floats,
    episodes: Floats,
) -> None:
    """Count each row's return at its place and add its features' moments, to b (groups, l, m + 3).

    Rows with place −1 are visits alone. ``seen`` (l,) holds the last episode that visited each feature.
    """
    m = b.shape[2] - 3
    for t in range(ptr.size - 1):
        for p in range(ptr[t], ptr[t + 1]):
            i, v = idx[p], val[p]
            if v == 0.0:
                continue
            visits[i] += 1.0
            if seen[i] != episode[t]:
                seen[i] = episode[t]
                episodes[i] += 1.0
            if place[t] >= 0:
                if place[t] < m:
                    b[group[t], i, place[t]] += v
                for k in range(3):
                    b[group[t], i, m + k] += v * extra[t, k]


@njit(cache=True)
def _places(theta: Floats, R: float, scale: float, tol: float, steps: bool, at: Ints, share: Floats) -> None:
    """Where z_j = (θ_j − R)/scale lies: θ_at ≤ z_j < θ_{at+1}, and, but for steps, how far between."""
    m = theta.size
    i = -1
    for j in range(m):
        gap = theta[j] - R + tol
        while i < m - 1 and theta[i + 1] * scale <= gap:
            i += 1
        at[j] = i
        share[j] = 0.0
        if not steps and 0 <= i < m - 1:
            share[j] = (gap / scale - theta[i]) / (theta[i + 1] - theta[i])


@njit(cache=True)
def _shifted(
    F: Floats,
    theta: Floats,
    R: float,
    scale: float,
    steps: bool,
    one: float,
    at: Ints,
    share: Floats,
    row: Floats,
) -> None:
    """The curve of R + scale · B' into ``row``, F being that of B'; of a change of F (one = 0) its change."""
    m = theta.size
    first, end = 0, m  # from `first` on z_j is at θ_1 or above, from `end` on at θ_m or above
    while first < m and at[first] < 0:
        first += 1
    while end > first and at[end - 1] == m - 1:
        end -= 1
    row[:first] = 0.0
    row[end:m] = one
    for j in range(first, end):
        i = at[j]
        row[j] = F[i] if steps else F[i] + share[j] * (F[i + 1] - F[i])
    row[m] = 0.0
    if first == 0:  # scale · A(z_1): what is below θ_1, and then from threshold to threshold
        i = at[0]
        area = F[m]
        for k in range(i):
            height = F[k] if steps else 0.5 * (F[k] + F[k + 1])
            area += height * (theta[k + 1] - theta[k])
        height = row[0] if steps or i == m - 1 else 0.5 * (F[i] + row[0])
        row[m] = scale * area + height * (theta[0] - R - scale * theta[i])
    row[m + 1] = one * R + scale * F[m + 1]
    row[m + 2] = one * R * R + 2.0 * R * scale * F[m + 1] + scale * scale * F[m + 2]


@njit(cache=True)
def targets(
    ptr: Ints,
    idx: Ints,
    val: Floats,
    offsets: Ints,
    group: Ints,
    reward: Floats,
    terminated: Bools,
    gamma: float,
    lam: float,
    curves: Floats,
    theta: Floats,
    tol: float,
    steps: bool,
    whole: bool,
    out: Floats,
) -> None:
    """Add to ``out`` (groups, l, m + 3) what episodes have whose return goes on as a curve says.

    Episode e has rows offsets[e], …; a curve is F̃ at a state, its area below θ_1, mean and second moment, or,
    with ``whole`` False, a change of them, of which each has a group of ``out`` for itself.

    With λ = 1 all episodes were cut off, ``curves`` (c, episodes, m + 3) are those at their ends, and
    ``reward`` is what was earned from a row to the end. With λ < 1 targets bootstrap at every step, from an
    episode's end back to its start: that of t is the curve of r_t + γB', B' being as
    (1 − λ) F̃(x_{t+1}) + λ target_{t+1} says, and ``curves`` (c, rows + episodes, m + 3) those of all states.
    """
    m = theta.size
    one = 1.0 if whole else 0.0
    at, share, row = np.empty(m, dtype=np.int64), np.empty(m), np.empty(m + 3)
    mixed = np.empty((len(curves), m + 3))
    for e in range(offsets.size - 1):
        end = offsets[e + 1]
        for t in range(end - 1, offsets[e] - 1, -1):
            R, scale = reward[t], gamma if lam < 1.0 else gamma ** (end - t)
            _places(theta, R, scale, tol, steps, at, share)
            for c in range(len(curves)):
                if t == end - 1 and terminated[e]:
                    for j in range(m):
                        row[j] = one if R <= theta[j] + tol else 0.0
                    row[m], row[m + 1], row[m + 2] = one * max(theta[0] - R, 0.0), one * R, one * R * R
                else:
                    if t == end - 1:
                        mixed[c] = curves[c, t + e + 1 if lam < 1.0 else e]
                    elif lam < 1.0:
                        for j in range(m + 3):
                            mixed[c, j] = (1.0 - lam) * curves[c, t + e + 1, j] + lam * mixed[c, j]
                    _shifted(mixed[c], theta, R, scale, steps, one, at, share, row)
                if lam < 1.0:
                    mixed[c] = row
                to = group[e] if whole else c
                for p in range(ptr[t], ptr[t + 1]):
                    for j in range(m + 3):
                        out[to, idx[p], j] += val[p] * row[j]
