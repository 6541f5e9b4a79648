"""Greedy and softmax policies as scalar, pure functions of the state, and the factors of their gradients.

Greedy is argmax_a φ(x)ᵀ w_a, on radial bases of a grid; softmax draws a ∝ exp(φ(x)ᵀ w_a), there or on tiles.

With p_i the state in units of the grid's spacing along coordinate i, a_i = ½/width_i² in the same units,
n_i the centre next to p_i and f_i = p_i − n_i, centre n_i + k has the factor

    g_i(k) = exp(a_i (2 f_i − k) k) = exp(−a_i (f_i − k)²) / exp(−a_i f_i²),   0 unless |f_i − k| ≤ reach_i

and φ(x)ᵀ w_a ∝ Σ_k1 Σ_k2 … g_1(k1) g_2(k2) … w_a[n_1 + k1, n_2 + k2, …]. What is left out, the nearest
centre's factors and the sum by which φ may be normalised, is the same for all actions, and so is the greedy
choice; softmax divides by the sum.

The factors and the sums are tuples whose lengths (centres within reach, actions) are parts of their types.
The compiler writes the loops over them out: no memory is needed, and the actions stand side by side.
Coordinates that the features do not have are padded with a single centre: see ``GreedyPolicy.compiled``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import overload

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.random import uniform
from policyrisk.features.tilecoding import place, tile
from policyrisk.simulation.compiled import register_policy

COORDINATES = 4  # one loop each


class GreedyTable(NamedTuple):
    """What the kernel knows of a greedy policy on four coordinates.

    A table may hold numbers and arrays alone, and an array's number of dimensions is part of its type: that
    of ``slots`` is the most centres within reach along a coordinate, that of ``none`` the number of actions.
    """

    dims: Ints  # (4,) the coordinates of the state that the features look at
    low: Floats  # (4,)
    high: Floats  # (4,)
    scale: Floats  # (4,) the grid's steps in a unit of the state
    last: Ints  # (4,) the last centre along each coordinate
    strides: Ints  # (4,) rows of the weights from one centre to the next
    reach: Floats  # (4,) in steps
    sharpness: Floats  # (4,) ½/width², in steps
    slots: Floats
    none: Floats
    weights: Floats  # (centres, actions); at least as many centres along a coordinate as slots, those beyond
    # the last of weight 0


class SoftmaxGrid(GreedyTable):
    """The same of a softmax policy: another class, so that another kernel follows it."""


class SoftmaxTiles(NamedTuple):
    """What the kernel knows of a softmax policy on K tilings of d coordinates."""

    dims: Ints  # (d,) the coordinates of the state that the tiles look at
    low: Floats  # (d,)
    high: Floats  # (d,)
    bins: Ints  # (d,)
    offsets: Floats  # (K, d) in tiles
    block: int  # tiles of a tiling
    none: Floats  # with a dimension for each action
    weights: Floats  # (K · block, actions)


# --- tuples of any length, taken apart from the front: a function is made for every length -----------


def zeros(array: Any) -> Any:
    """As many zeros as the array has dimensions."""
    raise NotImplementedError


@overload(zeros, strict=False, target="generic")
def _zeros_for(array: Any) -> Any:
    zeros = (0.0,) * array.ndim
    return lambda array: zeros


def _factors(f: Any, k: Any, low: Any, high: Any, a: Any, slots: Any) -> Any:
    """g(k), g(k + 1), …, one for each slot; 0 for those outside [low, high]."""
    raise NotImplementedError


@overload(_factors, strict=False, target="generic")
def _factors_for(f: Any, k: Any, low: Any, high: Any, a: Any, slots: Any) -> Any:
    if len(slots) == 0:
        return lambda f, k, low, high, a, slots: ()
    return lambda f, k, low, high, a, slots: _join(
        _factor(f, k, low, high, a), _factors(f, k + 1.0, low, high, a, slots[1:])
    )


def add(sums: Any, g: Any, weights: Any, at: Any, a: Any) -> Any:
    """sums + g·w_a[at], g·w_{a + 1}[at], …, entry by entry."""
    raise NotImplementedError


@overload(add, strict=False, target="generic")
def _add_for(sums: Any, g: Any, weights: Any, at: Any, a: Any) -> Any:
    if len(sums) == 0:
        return lambda sums, g, weights, at, a: ()
    return lambda sums, g, weights, at, a: _join(
        sums[0] + g * weights[at, a], add(sums[1:], g, weights, at, a + 1)
    )


@njit(cache=True)
def _join(first: float, rest: tuple[float, ...]) -> tuple[float, ...]:
    head = (first,)
    return head + rest


@njit(cache=True, error_model="numpy")
def _sum(values: tuple[float, ...]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


@njit(cache=True, error_model="numpy")
def _factor(f: float, k: float, low: float, high: float, a: float) -> float:
    return math.exp(a * (2.0 * f - k) * k) if low <= k <= high else 0.0


# --- the choice --------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy", inline="always")
def _axis(
    x: float, low: float, high: float, scale: float, last: int, reach: float, a: float, slots: Any
) -> tuple[int, Any]:
    """The first centre to look at along a coordinate, and the factors from there on."""
    p = (min(max(x, low), high) - low) * scale
    n = float(round(p))
    f = p - n
    first = max(min(math.ceil(p - reach), last + 1.0 - len(slots)), 0.0)
    return int(first), _factors(f, first - n, f - reach, f + reach, a, slots)


@njit(cache=True, error_model="numpy", inline="always")
def products(table: Any, state: Any) -> tuple[Any, float]:
    """Σ_k1 Σ_k2 … g_1(k1) g_2(k2) … w_a[…] for every action, and the same with weights of 1."""
    slots = zeros(table.slots)
    sums = zeros(table.none)
    dims, low, high, scale, last = table.dims, table.low, table.high, table.scale, table.last
    reach, a, strides, weights = table.reach, table.sharpness, table.strides, table.weights
    j0, g0 = _axis(state[dims[0]], low[0], high[0], scale[0], last[0], reach[0], a[0], slots)
    j1, g1 = _axis(state[dims[1]], low[1], high[1], scale[1], last[1], reach[1], a[1], slots)
    j2, g2 = _axis(state[dims[2]], low[2], high[2], scale[2], last[2], reach[2], a[2], slots)
    j3, g3 = _axis(state[dims[3]], low[3], high[3], scale[3], last[3], reach[3], a[3], slots)
    at0 = j0 * strides[0] + j1 * strides[1] + j2 * strides[2] + j3 * strides[3]
    for k0 in range(len(slots)):
        at1 = at0 + k0 * strides[0]
        for k1 in range(len(slots)):
            at2 = at1 + k1 * strides[1]
            for k2 in range(len(slots)):
                at3 = at2 + k2 * strides[2]
                g = g0[k0] * g1[k1] * g2[k2]
                for k3 in range(len(slots)):
                    sums = add(sums, g * g3[k3], weights, at3 + k3 * strides[3], 0)
    return sums, _sum(g0) * _sum(g1) * _sum(g2) * _sum(g3)


@njit(cache=True, error_model="numpy")
def choose(table: GreedyTable, state: Any, s0: np.uint64, s1: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    """argmax_a φ(x)ᵀ w_a, the first of equals; the random stream is left as it is."""
    sums, _ = products(table, state)
    best = 0
    largest = sums[0]
    for action in range(1, len(sums)):
        if sums[action] > largest:
            largest = sums[action]
            best = action
    return best, s0, s1


@njit(cache=True, error_model="numpy")
def draw(logits: Any, scale: float, s0: np.uint64, s1: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    """An action with probability ∝ exp(scale · logit), and the state of the stream after one draw."""
    largest = logits[0]
    for a in range(1, len(logits)):
        largest = max(largest, logits[a])
    total = 0.0
    for a in range(len(logits)):
        total += math.exp(scale * (logits[a] - largest))
    u, s0, s1 = uniform(s0, s1)
    rest = u * total
    action = 0
    # The last action with any probability is taken where rounding leaves something over.
    for a in range(len(logits)):
        p = math.exp(scale * (logits[a] - largest))
        if p > 0.0 and rest >= 0.0:
            action = a
            rest -= p
    return action, s0, s1


@njit(cache=True, error_model="numpy")
def choose_on_tiles(
    table: SoftmaxTiles, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """The tiles are those of :mod:`policyrisk.features.tilecoding`."""
    dims, low, high, bins, offsets = table.dims, table.low, table.high, table.bins, table.offsets
    logits = zeros(table.none)
    for k in range(offsets.shape[0]):
        number = 0
        for i in range(len(dims)):
            x = place(state[dims[i]], low[i], high[i], bins[i])
            number = number * bins[i] + tile(x, offsets[k, i], bins[i])
        logits = add(logits, 1.0, table.weights, k * table.block + number, 0)
    return draw(logits, 1.0, s0, s1)


@njit(cache=True, error_model="numpy")
def choose_on_grid(
    table: SoftmaxGrid, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[int, np.uint64, np.uint64]:
    """The bases are those of :mod:`policyrisk.features.radial`, normalised."""
    sums, whole = products(table, state)
    return draw(sums, 1.0 / whole, s0, s1)


register_policy(GreedyTable, choose)
register_policy(SoftmaxTiles, choose_on_tiles)
register_policy(SoftmaxGrid, choose_on_grid)


# --- the gradient --------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def step_factors(
    rewards: Floats,  # (transitions,)
    lengths: Ints,  # (episodes,)
    terminated: Bools,  # (episodes,)
    J: Floats,  # (transitions + episodes,) the critic's at every state, nan where it knows nothing
    M: Floats,  # (transitions + episodes,)
    J_0: Floats,  # (episodes,) the mean return that each episode is compared with
    by_mean: Floats,  # (episodes,)
    by_variance: Floats,  # (episodes,)
    gamma: float,
    lam: float,
    out: Floats,  # (transitions,)
) -> None:
    """The formulas of :mod:`policyrisk.control.actor_critic`."""
    first = 0
    for e in range(len(lengths)):
        T = lengths[e]
        earned, weight = 0.0, 1.0  # R_<t and γ^t, which go back to t = 0 below
        for t in range(T):
            out[first + t] = earned
            earned += weight * rewards[first + t]
            weight *= gamma
        x = first + e
        next_J = 0.0 if terminated[e] else J[x + T]
        next_M = 0.0 if terminated[e] else M[x + T]
        for t in range(T - 1, -1, -1):
            r = rewards[first + t]
            target_M = r**2 + 2.0 * gamma * r * next_J + gamma**2 * next_M
            target_J = r + gamma * next_J
            d_J, d_M = target_J - J[x + t], target_M - M[x + t]
            weight = gamma**t
            push = weight * d_J * (by_mean[e] + 2.0 * by_variance[e] * (out[first + t] - J_0[e]))
            out[first + t] = push + weight**2 * d_M * by_variance[e]
            # Where the critic knows nothing, what came after stands in for it, unless λ is 0.
            share = 1.0 if lam > 0.0 and np.isnan(d_J + d_M) else lam
            next_J = target_J - (1.0 - share) * d_J if share < 1.0 else target_J
            next_M = target_M - (1.0 - share) * d_M if share < 1.0 else target_M
        first += T
