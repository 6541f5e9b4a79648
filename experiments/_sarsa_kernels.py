"""SARSA(λ), one transition at a time, on the radial bases of a grid.

The equations are in ``sarsa.py``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from experiments.common import Bools, Floats, Ints
from policyrisk._core.random import below, stream, uniform
from policyrisk.simulation.compiled import Words, read, step

FAINT = 1e-3  # of the largest φ_i(x): traces below are dropped


class GridBases(NamedTuple):
    """The radial bases of a grid on d coordinates."""

    dims: Ints  # (d,) the coordinates of the state
    low: Floats  # (d,)
    high: Floats  # (d,)
    shape: Ints  # (d,)
    width: Floats  # (d,)
    reach: Floats  # (d,)
    normalised: bool


class Rates(NamedTuple):
    """The settings of an episode."""

    step: float  # α
    epsilon: float
    lam: float
    discount: float


class SarsaMemory(NamedTuple):
    """What learning remembers, for n bases of which at most m are near."""

    weights: Floats  # (n, actions)
    trace: Floats  # (n · actions,) e
    traced: Ints  # (n · actions,) the entries of e that are not 0, in its first counts[1] places
    indices: Ints  # (m,) the bases near the current state, in the first counts[0] places
    values: Floats  # (m,) and their φ
    next_indices: Ints  # (m,) the same for the next state
    next_values: Floats  # (m,)
    action_values: Floats  # (actions,)
    counts: Ints  # (2,)
    u: Floats  # (1, d) room for a scaled state
    rows: Ints  # (2,) and for where its bases are stored
    words: Words  # (2,) the random stream


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


@njit(cache=True, error_model="numpy")
def _look(grid: GridBases, state: Any, memory: SarsaMemory, indices: Ints, values: Floats) -> Any:
    """The bases near a state and their φ; returns how many."""
    u = memory.u
    rows = memory.rows
    for i in range(len(grid.dims)):
        low = grid.low[i]
        high = grid.high[i]
        u[0, i] = (min(max(state[grid.dims[i]], low), high) - low) / (high - low)
    rows[0] = 0
    grid_counts(u, grid.shape, grid.reach, rows[1:])
    grid_fill(u, grid.shape, grid.width, grid.reach, grid.normalised, rows, indices, values)
    return rows[1]


@njit(cache=True)
def _pick(memory: SarsaMemory, indices: Ints, values: Floats, near: int, epsilon: float) -> tuple[Any, Any]:
    """An ε-greedy action and its value Q(x, a)."""
    q, weights, words = memory.action_values, memory.weights, memory.words
    q[:] = 0.0
    for i in range(near):
        for a in range(len(q)):
            q[a] += values[i] * weights[indices[i], a]
    draw, words[0], words[1] = uniform(words[0], words[1])
    if draw < epsilon:
        action, words[0], words[1] = below(len(q), words[0], words[1])
    else:
        action = np.argmax(q)
    return action, q[action]


@njit(cache=True)
def begin(grid: GridBases, memory: SarsaMemory, rates: Rates, state: Any) -> Any:
    """Start an episode: forget the traces and choose the first action."""
    for i in range(memory.counts[1]):
        memory.trace[memory.traced[i]] = 0.0
    near = _look(grid, state, memory, memory.indices, memory.values)
    memory.counts[0] = near
    memory.counts[1] = 0
    return _pick(memory, memory.indices, memory.values, near, rates.epsilon)[0]


@njit(cache=True)
def _retrace(memory: SarsaMemory, action: int, fade: float) -> float:
    """e ← γλe, then e_{i,a} ← φ_i(x) where φ_i(x) is not 0; returns ‖φ(x)‖²."""
    trace, traced, counts = memory.trace, memory.traced, memory.counts
    indices, values = memory.indices, memory.values
    near = counts[0]
    actions = memory.weights.shape[1]
    faint = FAINT * values[:near].max()
    kept = 0
    for i in range(counts[1]):
        entry = traced[i]
        trace[entry] *= fade
        if trace[entry] < faint:
            trace[entry] = 0.0
        else:
            traced[kept] = entry
            kept += 1
    square = 0.0
    for i in range(near):
        if values[i] > 0.0:
            entry = indices[i] * actions + action
            if trace[entry] == 0.0:
                traced[kept] = entry
                kept += 1
            trace[entry] = values[i]
            square += values[i] * values[i]
    counts[1] = kept
    return square


@njit(cache=True)
def learn(
    grid: GridBases,
    memory: SarsaMemory,
    rates: Rates,
    action: int,
    reward: float,
    state: Any,
    terminated: bool,
) -> Any:
    """Learn from one transition to ``state``; returns the next action."""
    weights, trace, traced, counts = memory.weights, memory.trace, memory.traced, memory.counts
    delta = reward
    for i in range(counts[0]):
        delta -= memory.values[i] * weights[memory.indices[i], action]
    square = _retrace(memory, action, rates.discount * rates.lam)
    following = 0
    if not terminated:
        near = _look(grid, state, memory, memory.next_indices, memory.next_values)
        following, q = _pick(memory, memory.next_indices, memory.next_values, near, rates.epsilon)
        delta += rates.discount * q
        counts[0] = near
        memory.indices[:near] = memory.next_indices[:near]
        memory.values[:near] = memory.next_values[:near]
    change = rates.step * delta / square
    flat = weights.reshape(-1)
    for i in range(counts[1]):
        flat[traced[i]] += change * trace[traced[i]]
    return following


@njit(cache=True)
def run_episodes(
    domain: Any,
    grid: GridBases,
    memory: SarsaMemory,
    starts: Floats,  # (n, dim)
    first: int,
    key0: np.uint64,
    key1: np.uint64,
    steps: Floats,  # (n,) α
    epsilons: Floats,  # (n,)
    lam: float,
    discount: float,
    max_steps: int,
    returns: Floats,  # (n,) out
    lengths: Ints,  # (n,) out
    terminated: Bools,  # (n,) out
) -> None:
    """One episode after another; episode i draws from stream ``first + i``."""
    words = memory.words
    for i in range(starts.shape[0]):
        words[0], words[1] = stream(key0, key1, first + i)
        state = read(domain, starts, i)
        rates = Rates(steps[i], epsilons[i], lam, discount)
        action = begin(grid, memory, rates, state)
        total = 0.0
        t = 0
        done = False
        while t < max_steps and not done:
            state, reward, done, words[0], words[1] = step(domain, state, action, words[0], words[1])
            action = learn(grid, memory, rates, action, reward, state, done)
            total += reward
            t += 1
        returns[i], lengths[i], terminated[i] = total, t, done
