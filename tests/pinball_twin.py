"""Pinball without shortcuts: every sub-step tests every edge of every polygon.

Compiled, since the benchmark measures it as well; it shares no code with the package but the random streams.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from policyrisk._core.random import below, stream

WIDEST = math.cos(math.pi / 1.99)


def edges_of(obstacles: Any) -> np.ndarray:
    """Rows (A, B − A, 1/|B − A|², polygon) of all edges."""
    rows = []
    for polygon, vertices in enumerate(obstacles):
        for a, b in zip(vertices, [*vertices[1:], vertices[0]], strict=True):
            ex, ey = b[0] - a[0], b[1] - a[1]
            rows.append((a[0], a[1], ex, ey, 1.0 / (ex * ex + ey * ey), polygon))
    return np.array(rows, dtype=float)


@njit(cache=True)
def plain_action(
    edges: np.ndarray,
    R: float,
    tx: float,
    ty: float,
    tr: float,
    x: float,
    y: float,
    vx: float,
    vy: float,
    a: int,
) -> tuple[float, float, float, float, bool]:
    if a == 0:
        vx += 0.2
    elif a == 1:
        vy += 0.2
    elif a == 2:
        vx -= 0.2
    elif a == 3:
        vy -= 0.2
    vx = min(max(vx, -1.0), 1.0)
    vy = min(max(vy, -1.0), 1.0)
    for j in range(20):
        x += vx * R / 20.0
        y += vy * R / 20.0
        speed = math.sqrt(vx * vx + vy * vy)
        polygons = 0
        last = -1.0
        hits = 0
        wx = vx
        wy = vy
        for k in range(edges.shape[0]):
            ex = edges[k, 2]
            ey = edges[k, 3]
            t = ((x - edges[k, 0]) * ex + (y - edges[k, 1]) * ey) * edges[k, 4]
            t = min(max(t, 0.0), 1.0)
            dx = edges[k, 0] + t * ex - x
            dy = edges[k, 1] + t * ey - y
            square = dx * dx + dy * dy
            if square <= R * R and dx * vx + dy * vy >= WIDEST * math.sqrt(square) * speed:
                if edges[k, 5] != last:
                    last = edges[k, 5]
                    polygons += 1
                    hits = 0
                hits += 1
                if hits == 1 and polygons == 1:
                    along = (vx * ex + vy * ey) * edges[k, 4]
                    wx = 2.0 * along * ex - vx
                    wy = 2.0 * along * ey - vy
                else:
                    wx = -vx
                    wy = -vy
        vx = wx
        vy = wy
        if polygons == 1 and j == 19:
            x += vx * R / 20.0
            y += vy * R / 20.0
        if math.hypot(x - tx, y - ty) < tr:
            return x, y, vx, vy, True
    vx *= 0.995
    vy *= 0.995
    if x > 1.0 or x < 0.0 or y > 1.0 or y < 0.0:
        vx = 0.0
        vy = 0.0
    if x > 1.0:
        x = 0.95
    elif x < 0.0:
        x = 0.05
    if y > 1.0:
        y = 0.95
    elif y < 0.0:
        y = 0.05
    return x, y, vx, vy, False


@njit(cache=True)
def plain_actions(
    edges: np.ndarray, R: float, tx: float, ty: float, tr: float, states: np.ndarray, actions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One action from each state."""
    after = np.empty_like(states)
    reached = np.empty(len(states), np.bool_)
    for i in range(len(states)):
        after[i, 0], after[i, 1], after[i, 2], after[i, 3], reached[i] = plain_action(
            edges, R, tx, ty, tr, states[i, 0], states[i, 1], states[i, 2], states[i, 3], actions[i]
        )
    return after, reached


@njit(cache=True)
def plain_random_walk(
    edges: np.ndarray,
    R: float,
    tx: float,
    ty: float,
    tr: float,
    start: np.ndarray,
    actions: int,
    key0: np.uint64,
    key1: np.uint64,
    steps: int,
) -> int:
    """Uniformly random actions, back to the start from the target; how often that was reached."""
    s0, s1 = stream(key0, key1, 0)
    x = start[0]
    y = start[1]
    vx = 0.0
    vy = 0.0
    arrivals = 0
    for _ in range(steps):
        action, s0, s1 = below(actions, s0, s1)
        x, y, vx, vy, reached = plain_action(edges, R, tx, ty, tr, x, y, vx, vy, action)
        if reached:
            x = start[0]
            y = start[1]
            vx = 0.0
            vy = 0.0
            arrivals += 1
    return arrivals
