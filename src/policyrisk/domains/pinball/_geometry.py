"""Distances to edges, insides of polygons, and the grid that the physics looks things up in.

An edge is a row (A, e, length, n): its start, unit tangent e, length and unit normal n = (−e_y, e_x).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints


def edge_rows(polygons: Sequence[Floats]) -> tuple[Floats, Ints]:
    """All edges (m, 7) of closed polygons, and the polygon (m,) that each belongs to."""
    rows, owners = [], []
    for owner, vertices in enumerate(polygons):
        side = np.roll(vertices, -1, axis=0) - vertices
        length = np.hypot(side[:, 0], side[:, 1])
        e = side / length[:, None]
        rows.append(np.column_stack([vertices, e, length, -e[:, 1], e[:, 0]]))
        owners.append(np.full(len(vertices), owner))
    return np.concatenate(rows), np.concatenate(owners)


def grid_points(cells: int) -> Floats:
    """The centres (cells², 2) of a grid on the unit square; cell (i, j) of x and y is row i·cells + j."""
    middle = (np.arange(cells) + 0.5) / cells
    return np.column_stack([np.repeat(middle, cells), np.tile(middle, cells)])


@njit(cache=True)
def _square_distance(edges: Floats, k: int, x: float, y: float) -> float:
    px = x - edges[k, 0]
    py = y - edges[k, 1]
    t = min(max(edges[k, 2] * px + edges[k, 3] * py, 0.0), edges[k, 4])
    dx = t * edges[k, 2] - px
    dy = t * edges[k, 3] - py
    square: float = dx * dx + dy * dy
    return square


def nearest_distance(edges: Floats, points: Floats) -> Floats:
    """The distance (n,) of each point to the nearest edge."""
    return _nearest_distance(edges, _plain(points))


def inside_any(edges: Floats, owners: Ints, points: Floats) -> Bools:
    """Whether each point lies inside some polygon (even-odd rule)."""
    return _inside_any(edges, owners, _plain(points))


def _plain(points: Floats) -> Floats:
    """One kind of array, so that the kernels are compiled once and not for every kind."""
    return np.require(points, np.float64, ["C_CONTIGUOUS", "WRITEABLE"])


@njit(cache=True)
def _nearest_distance(edges: Floats, points: Floats) -> Floats:
    out = np.empty(points.shape[0])
    for i in range(points.shape[0]):
        nearest = np.inf
        for k in range(edges.shape[0]):
            nearest = min(nearest, _square_distance(edges, k, points[i, 0], points[i, 1]))
        out[i] = math.sqrt(nearest)
    return out


@njit(cache=True)
def _inside_any(edges: Floats, owners: Ints, points: Floats) -> Bools:
    out = np.zeros(points.shape[0], np.bool_)
    for i in range(points.shape[0]):
        x = points[i, 0]
        y = points[i, 1]
        owner = -1
        odd = False
        for k in range(edges.shape[0]):
            if owners[k] != owner:
                out[i] |= odd
                owner = owners[k]
                odd = False
            ay = edges[k, 1]
            by = ay + edges[k, 4] * edges[k, 3]
            if (ay > y) != (by > y) and x < edges[k, 0] + (y - ay) * edges[k, 2] / edges[k, 3]:
                odd = not odd
        out[i] |= odd
    return out


@njit(cache=True)
def near_lists(edges: Floats, points: Floats, reach: float) -> tuple[Ints, Ints]:
    """For each point the edges within ``reach``: offsets (n + 1,) and the edges, point after point."""
    near_from = np.zeros(points.shape[0] + 1, np.int64)
    near = np.empty(points.shape[0], np.int64)
    count = 0
    for i in range(points.shape[0]):
        for k in range(edges.shape[0]):
            if _square_distance(edges, k, points[i, 0], points[i, 1]) <= reach * reach:
                if count == near.shape[0]:
                    near = np.concatenate((near, np.empty_like(near)))
                near[count] = k
                count += 1
        near_from[i + 1] = count
    return near_from, near[:count].copy()
