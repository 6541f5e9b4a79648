"""Compiled loops of TD: pure functions of arrays.

One kernel learns both moments, since each is TD for a target c and a discount g,

    δ_t = c_t + g φ(x_{t+1})ᵀw − φ(x_t)ᵀw        J: c = r, g = γ        M: c = r² + 2γ r J̃(x'), g = γ²

run for J first: it writes down the values J̃(x_{t+1}) that M's targets need.

Features come as *rows*, one per state, in one of three layouts; ``entries``, ``column`` and ``value`` read
them all alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numba.extending import overload

from policyrisk._core.arrays import Bools, Floats, Ints


class ActiveRows(NamedTuple):
    """Features that are 0 or 1, with the same number of ones in every row."""

    active: Ints  # (n, ones)


class EntryRows(NamedTuple):
    """Features by their entries that are not 0 (CSR)."""

    starts: Ints  # (n + 1,)
    columns: Ints  # (entries,)
    values: Floats  # (entries,)


class FullRows(NamedTuple):
    """Features in full."""

    phi: Floats  # (n, l)


FeatureRows: TypeAlias = "ActiveRows | EntryRows | FullRows"


class EpisodeSpans(NamedTuple):
    """Where episodes lie: the first ``used`` transitions of each count."""

    base: Ints  # (episodes,): the row of x_0, which those of x_1, … follow
    offsets: Ints  # (episodes + 1,): where its rewards start
    used: Ints  # (episodes,)
    bootstraps: Bools  # (episodes,): whether the last of all its transitions has a successor's row


class RowVisits(NamedTuple):
    """The rows of one feature map, and what was visited of it."""

    rows: FeatureRows
    before: Floats  # (l,): visits of the passes before this one
    visits: Floats  # (l,): in and out
    episodes: Floats  # (l,): in and out


def entries(rows: Any, i: int) -> int:
    """How many entries row i has; only for compiled code."""
    raise NotImplementedError


def column(rows: Any, i: int, j: int) -> int:
    """The feature that entry j of row i belongs to; only for compiled code."""
    raise NotImplementedError


def value(rows: Any, i: int, j: int) -> float:
    """Entry j of row i; only for compiled code."""
    raise NotImplementedError


_BY_LAYOUT: dict[Callable[..., Any], dict[type, Callable[..., Any]]] = {
    entries: {
        ActiveRows: lambda rows, i: rows.active.shape[1],
        EntryRows: lambda rows, i: rows.starts[i + 1] - rows.starts[i],
        FullRows: lambda rows, i: rows.phi.shape[1],
    },
    column: {
        ActiveRows: lambda rows, i, j: rows.active[i, j],
        EntryRows: lambda rows, i, j: rows.columns[rows.starts[i] + j],
        FullRows: lambda rows, i, j: j,
    },
    value: {
        ActiveRows: lambda rows, i, j: 1.0,
        EntryRows: lambda rows, i, j: rows.values[rows.starts[i] + j],
        FullRows: lambda rows, i, j: rows.phi[i, j],
    },
}
for _function, _layouts in _BY_LAYOUT.items():
    overload(_function, strict=False)(lambda rows, *at, _layouts=_layouts: _layouts[rows.instance_class])


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _dot(rows: Any, i: int, w: Floats) -> float:
    """φ_iᵀ w; reassociated, so that dense rows use vector instructions."""
    total = 0.0
    for j in range(entries(rows, i)):
        total += value(rows, i, j) * w[column(rows, i, j)]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _add(rows: Any, i: int, scale: float, w: Floats) -> None:
    """w += scale · φ_i."""
    for j in range(entries(rows, i)):
        w[column(rows, i, j)] += scale * value(rows, i, j)


@njit(cache=True, nogil=True, error_model="numpy")
def _earlier_weight(k: int) -> float:
    """1 + 2 + … + k: what the iterates before update k weigh together in the average."""
    return 0.5 * k * (k + 1.0)


@njit(cache=True, nogil=True, error_model="numpy")
def by_episode(
    rows: Any,
    spans: EpisodeSpans,
    c: Floats,  # (transitions,): the targets' known part
    g: float,
    lam: float,
    xi: Floats,  # (updates,): one per episode
    first: int,  # the number of the first update
    limit: float,  # |δ| beyond this means divergence
    w: Floats,  # (l,): in and out
    u: Floats,  # (l,): in and out, Σ_k (1 + … + k) Δ_k; empty where nothing is averaged
    successor: Floats,  # (transitions,): out, φ(x_{t+1})ᵀ w as used
) -> int:
    """w += ξ_k Σ_t z_t δ_t after every episode; returns the episode that diverged, or −1.

    The weights stay fixed during an episode, so with z_t = λg z_{t−1} + φ(x_t) the sum is
    Σ_t φ(x_t) G_t with G_t = δ_t + λg G_{t+1}: no trace is needed.
    """
    base, offsets, used, bootstraps = spans
    longest = 0
    for k in range(len(used)):
        longest = max(longest, used[k])
    delta = np.empty(longest)
    for k in range(len(used)):
        T, o, row = used[k], offsets[k], base[k]
        if T == 0:
            continue
        bounded = True
        here = _dot(rows, row, w)
        for t in range(T):
            there = _dot(rows, row + t + 1, w) if t + 1 < T or bootstraps[k] else 0.0
            delta[t] = c[o + t] + g * there - here
            bounded &= abs(delta[t]) <= limit
            successor[o + t] = there
            here = there
        if not bounded:
            return k
        G = 0.0
        for t in range(T - 1, -1, -1):
            G = delta[t] + lam * g * G
            _add(rows, row + t, xi[k] * G, w)
            if len(u) > 0:
                _add(rows, row + t, xi[k] * G * _earlier_weight(first + k), u)
    return -1


@njit(cache=True, nogil=True, error_model="numpy")
def by_step(
    rows: Any,
    spans: EpisodeSpans,
    c: Floats,
    g: float,
    lam: float,
    xi: Floats,  # (updates,): one per used transition
    first: int,
    limit: float,
    w: Floats,
    u: Floats,
    successor: Floats,
) -> int:
    """w += ξ_k δ_t z_t after every transition; returns the update that diverged, or −1.

    Arguments as in :func:`by_episode`. The trace's entries that are not 0 are kept as a list.
    """
    base, offsets, used, bootstraps = spans
    traced, averaged = lam > 0.0, len(u) > 0
    z = np.zeros(len(w) if traced else 0)
    listed = np.zeros(len(z), dtype=np.bool_)
    touched = np.empty(len(z), dtype=np.int64)
    k = 0
    for episode in range(len(used)):
        T, o, row = used[episode], offsets[episode], base[episode]
        length = 0
        for t in range(T):
            here = _dot(rows, row + t, w)
            there = _dot(rows, row + t + 1, w) if t + 1 < T or bootstraps[episode] else 0.0
            delta = c[o + t] + g * there - here
            if not abs(delta) <= limit:
                return k
            successor[o + t] = there
            weight = _earlier_weight(first + k)
            if traced:
                length = _push(rows, row + t, lam * g, z, listed, touched, length)
                _spread(xi[k] * delta, z, touched, length, w)
                if averaged:
                    _spread(xi[k] * delta * weight, z, touched, length, u)
            else:
                _add(rows, row + t, xi[k] * delta, w)
                if averaged:
                    _add(rows, row + t, xi[k] * delta * weight, u)
            k += 1
        for j in range(length):
            z[touched[j]] = 0.0
            listed[touched[j]] = False
    return -1


@njit(cache=True, nogil=True, error_model="numpy")
def _push(rows: Any, i: int, decay: float, z: Floats, listed: Bools, touched: Ints, length: int) -> int:
    """z ← decay · z + φ_i; returns the new number of touched entries."""
    if length == len(z):  # all of them, as with dense rows: neighbours, so vector instructions
        for j in range(len(z)):
            z[j] *= decay
    else:
        for j in range(length):
            z[touched[j]] *= decay
    for j in range(entries(rows, i)):
        feature = column(rows, i, j)
        if not listed[feature]:
            listed[feature] = True
            touched[length] = feature
            length += 1
        z[feature] += value(rows, i, j)
    return length


@njit(cache=True, nogil=True, error_model="numpy")
def _spread(scale: float, z: Floats, touched: Ints, length: int, w: Floats) -> None:
    """w += scale · z."""
    if length == len(z):
        for j in range(len(z)):
            w[j] += scale * z[j]
    else:
        for j in range(length):
            w[touched[j]] += scale * z[touched[j]]


@njit(cache=True, nogil=True, error_model="numpy")
def _mark(of: RowVisits, row: int, T: int, amount: float) -> None:
    """Add to the visits of the features that are not 0 in rows row, …, row + T − 1."""
    for i in range(row, row + T):
        for j in range(entries(of.rows, i)):
            if value(of.rows, i, j) != 0.0:
                of.visits[column(of.rows, i, j)] += amount


@njit(cache=True, nogil=True, error_model="numpy")
def _known(of: RowVisits, i: int) -> bool:
    """Whether each feature of row i was visited, now or before."""
    known = True
    for j in range(entries(of.rows, i)):
        feature = column(of.rows, i, j)
        known &= value(of.rows, i, j) == 0.0 or of.visits[feature] > 0.0 or of.before[feature] > 0.0
    return known


@njit(cache=True, nogil=True, error_model="numpy")
def _count_episode(of: RowVisits, row: int, T: int, k: int, latest: Ints) -> None:
    """Add 1 for each feature that rows row, …, row + T − 1 visit; latest holds its latest episode."""
    for i in range(row, row + T):
        for j in range(entries(of.rows, i)):
            feature = column(of.rows, i, j)
            if value(of.rows, i, j) != 0.0 and latest[feature] != k:
                latest[feature] = k
                of.episodes[feature] += 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def count(mean: RowVisits, second: RowVisits, shared: bool, spans: EpisodeSpans) -> None:
    """Which transitions of each episode can be used, and what they visit; ``second`` unless it is shared.

    A cut-off episode gives up its last transitions for as long as the state they lead to has a feature
    that no used transition ever started with: its value would be the 0 that the weights started from.
    ``spans.used`` holds the lengths and is brought down.
    """
    base, _, used, bootstraps = spans
    mean_latest = np.full(len(mean.visits), -1, dtype=np.int64)
    second_latest = np.full(len(second.visits), -1, dtype=np.int64)
    for k in range(len(used)):
        T, row = used[k], base[k]
        _mark(mean, row, T, 1.0)
        if not shared:
            _mark(second, row, T, 1.0)
        while bootstraps[k] and T > 0 and not (_known(mean, row + T) and (shared or _known(second, row + T))):
            T -= 1
            _mark(mean, row + T, 1, -1.0)
            if not shared:
                _mark(second, row + T, 1, -1.0)
        used[k] = T
        _count_episode(mean, row, T, k, mean_latest)
        if not shared:
            _count_episode(second, row, T, k, second_latest)
