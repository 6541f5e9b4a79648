"""The physics of pinball: scalar, pure functions, and the tables that let most sub-steps be skipped.

One action is an impulse, then 20 sub-steps p += v·R/20 with a collision test each, then drag. Between
two hits the ball moves along a straight line, so that only sub-steps that could see a hit or the target
are visited. A hit on the edge with nearest point c needs, with d = c − p,

    |d| ≤ R   and   d·v ≥ GRAZING·|d||v|,        GRAZING = cos(π/1.99)

Three facts, all exact, give the number of sub-steps that an edge leaves free:

1. The distance to a segment is convex along the ball's line and d·v/|d| is minus its slope: once the
   second condition fails for an edge, it fails until the velocity changes. The edge can be ignored.
2. With unit normal n and s = n·(p − A), |s| > R: nothing before (|s| − R)/(|n·v|·R/20) sub-steps,
   and nothing at all if s and n·v have the same sign.
3. Nothing before (|d| − R)/(|v|·R/20) sub-steps.

A grid of cells holds, for each, a lower bound on the clearance (distance to the nearest edge less R, or
to the target's rim) of every point in it, and the edges that a ball may touch within one action that
starts there. Where the clearance exceeds |v|R the whole action is one jump.

Arrays taken from a table are reference-counted, which would cost more than the physics. The compiler
removes the counting from a function with one way out; hence the few functions, inlined, that return
at their ends.

A jump p += k·v·R/20 differs from k additions by rounding alone. Bounds are shortened by a
millionth of a sub-step, so that rounding cannot step over a hit: at worst one more test is made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.random import normal_pair
from policyrisk.simulation.compiled import register_domain

SUBSTEPS = 20
THRUST = 0.2
DRAG = 0.995
GRAZING = math.cos(math.pi / 1.99)
SAFETY = 1e-6  # of a sub-step
FASTEST = math.sqrt(2.0)  # both components clipped to [−1, 1]; a bounce keeps the length


class PinballTable(NamedTuple):
    """What the kernels know of a maze, for m edges and a grid of g × g cells."""

    radius: float  # R
    target_x: float
    target_y: float
    target_radius: float
    noise: float
    idle_reward: float  # of action 4
    thrust_reward: float  # of actions 0 to 3
    target_reward: float  # of the action that reaches the target
    edges: Floats  # (m, 7): A, unit tangent, length, unit normal; a polygon's edges in one run
    owners: Ints  # (m,) the polygon of each edge
    clearance: Floats  # (g, g), column by x, row by y: its square, 0 where it is not positive
    near_from: Ints  # (g·g + 1,) offsets into ``near``
    near: Ints  # the edges within reach of each cell, cell after cell


@njit(cache=True, error_model="numpy")
def _free_substeps(
    table: PinballTable, first: int, last: int, x: float, y: float, vx: float, vy: float, rest: int
) -> int:
    """How many of the next ``rest`` sub-steps certainly see neither a hit nor the target."""
    R = table.radius
    edges = table.edges
    near = table.near
    h = R / SUBSTEPS
    speed = math.sqrt(vx * vx + vy * vy)
    free = float(rest)
    tx = table.target_x - x
    ty = table.target_y - y
    gap = math.sqrt(tx * tx + ty * ty) - table.target_radius
    if gap <= 0.0:
        return 0
    if speed == 0.0:
        return rest
    if tx * vx + ty * vy > 0.0:
        free = min(free, gap / (speed * h) - SAFETY)
    for i in range(first, last):
        k = near[i]
        px = x - edges[k, 0]
        py = y - edges[k, 1]
        s = edges[k, 5] * px + edges[k, 6] * py
        away = (edges[k, 5] * vx + edges[k, 6] * vy) * h
        gap = abs(s) - R
        if gap > 0.0 and (s * away >= 0.0 or gap > abs(away) * (free + SAFETY)):
            continue
        t = edges[k, 2] * px + edges[k, 3] * py
        t = min(max(t, 0.0), edges[k, 4])
        dx = t * edges[k, 2] - px
        dy = t * edges[k, 3] - py
        length = math.sqrt(dx * dx + dy * dy)
        if dx * vx + dy * vy < GRAZING * length * speed:
            continue
        bound = (length - R) / (speed * h)
        if gap > 0.0:
            bound = max(bound, gap / abs(away))
        free = min(free, bound - SAFETY)
    return int(max(free, 0.0))


@njit(cache=True, error_model="numpy")
def _bounce(
    table: PinballTable, first: int, last: int, x: float, y: float, vx: float, vy: float
) -> tuple[int, float, float]:
    """How many polygons the ball hits at (x, y), and its velocity after that."""
    R = table.radius
    edges = table.edges
    owners = table.owners
    near = table.near
    speed = math.sqrt(vx * vx + vy * vy)
    polygons = 0
    owner = -1
    hits = 0  # on the edges of the current owner
    wx = vx
    wy = vy
    for i in range(first, last):
        k = near[i]
        px = x - edges[k, 0]
        py = y - edges[k, 1]
        ex = edges[k, 2]
        ey = edges[k, 3]
        t = min(max(ex * px + ey * py, 0.0), edges[k, 4])
        dx = t * ex - px
        dy = t * ey - py
        square = dx * dx + dy * dy
        if square > R * R or dx * vx + dy * vy < GRAZING * math.sqrt(square) * speed:
            continue
        if owners[k] != owner:
            owner = owners[k]
            polygons += 1
            hits = 0
        hits += 1
        if hits > 1 or polygons > 1:
            wx = -vx
            wy = -vy
        else:
            along = vx * ex + vy * ey
            wx = 2.0 * along * ex - vx
            wy = 2.0 * along * ey - vy
    return polygons, wx, wy


@njit(cache=True, error_model="numpy", inline="always")
def _push(
    noise: float, vx: float, vy: float, action: int, s0: np.uint64, s1: np.uint64
) -> tuple[float, float, np.uint64, np.uint64]:
    """The impulse of an action, with noise, clipped."""
    if noise > 0.0:
        g0, g1, s0, s1 = normal_pair(s0, s1)
        vx += noise * g0
        vy += noise * g1
    if action == 0:
        vx += THRUST
    elif action == 1:
        vy += THRUST
    elif action == 2:
        vx -= THRUST
    elif action == 3:
        vy -= THRUST
    return min(max(vx, -1.0), 1.0), min(max(vy, -1.0), 1.0), s0, s1


@njit(cache=True, error_model="numpy", inline="always")
def _travel(
    table: PinballTable, x: float, y: float, vx: float, vy: float
) -> tuple[float, float, float, float, bool]:
    """The 20 sub-steps of an action; the last entry says whether they reached the target."""
    R = table.radius
    h = R / SUBSTEPS
    cells = table.clearance.shape[0]
    column = min(int(x * cells), cells - 1)
    row = min(int(y * cells), cells - 1)
    cell = column * cells + row
    first = table.near_from[cell]
    last = table.near_from[cell + 1]
    reached = False
    j = 0
    if (vx * vx + vy * vy) * (R * R) < table.clearance[column, row]:
        x += R * vx
        y += R * vy
        j = SUBSTEPS
    while j < SUBSTEPS and not reached:
        rest = SUBSTEPS - j
        free = _free_substeps(table, first, last, x, y, vx, vy, rest)
        stride = min(free + 1, rest)
        x += stride * h * vx
        y += stride * h * vy
        j += stride
        if free < rest:
            polygons, vx, vy = _bounce(table, first, last, x, y, vx, vy)
            if polygons == 1 and j == SUBSTEPS:
                x += h * vx
                y += h * vy
            tx = x - table.target_x
            ty = y - table.target_y
            reached = tx * tx + ty * ty < table.target_radius * table.target_radius
    return x, y, vx, vy, reached


@njit(cache=True, error_model="numpy", inline="always")
def _settle(x: float, y: float, vx: float, vy: float) -> tuple[float, float, float, float]:
    """Drag, and the way back for a ball that left the unit square."""
    vx *= DRAG
    vy *= DRAG
    if x > 1.0 or x < 0.0 or y > 1.0 or y < 0.0:
        x = 0.95 if x > 1.0 else 0.05 if x < 0.0 else x
        y = 0.95 if y > 1.0 else 0.05 if y < 0.0 else y
        vx = 0.0
        vy = 0.0
    return x, y, vx, vy


@njit(cache=True, error_model="numpy")
def act(
    table: PinballTable, state: tuple[float, float, float, float], action: int, s0: np.uint64, s1: np.uint64
) -> tuple[tuple[float, float, float, float], float, bool, np.uint64, np.uint64]:
    """One action: the next state, its reward, whether the target was reached, the stream's state."""
    x, y, vx, vy = state
    vx, vy, s0, s1 = _push(table.noise, vx, vy, action, s0, s1)
    x, y, vx, vy, reached = _travel(table, x, y, vx, vy)
    reward = table.thrust_reward if action < 4 else table.idle_reward
    if reached:
        reward = table.target_reward
    else:
        x, y, vx, vy = _settle(x, y, vx, vy)
    return (x, y, vx, vy), reward, reached, s0, s1


@njit(cache=True)
def read(table: PinballTable, states: Floats, i: int) -> tuple[float, float, float, float]:
    """Row i of an array of states, as the tuple that :func:`act` takes."""
    return states[i, 0], states[i, 1], states[i, 2], states[i, 3]


register_domain(PinballTable, read, act)
