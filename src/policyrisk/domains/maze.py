"""Mazes: what they are, where a ball may be, and the checks that a user's own maze must pass.

A maze lies in the unit square: polygons (each closed by the edge from its last vertex to its first),
a ball of radius R, and a round target that the ball's centre must reach. A position is *free* if the ball
fits there: its centre is outside every polygon and at least R from every edge. The *reachable* region is
the part of the free region that is connected to the target, found on a fine grid; some mazes have closed
pockets besides. An edge is a row (A, e, length, n): its start, unit tangent e, length and unit normal
n = (−e_y, e_x).

A file holds one maze as JSON::

    {"ball_radius": 0.02,
     "target": {"center": [0.9, 0.2], "radius": 0.04},
     "starts": [[0.2, 0.9]],
     "obstacles": [[[0, 0], [0, 0.01], [1, 0.01], [1, 0]], ...]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from os import PathLike
from typing import Any

import numpy as np
from numba import njit
from scipy import ndimage

from policyrisk._core.arrays import Bools, Floats, Ints, as_floats, as_list, as_number, as_path, readonly
from policyrisk._core.files import from_json
from policyrisk.errors import InvalidInputError

MAZES = ("simple", "medium", "hard", "box", "empty")

_CELLS = 500  # of the grid, along each axis: a tenth of the usual radius
_KEYS = {"ball_radius", "target", "starts", "obstacles"}


@dataclass(frozen=True, eq=False)
class Maze:
    """A checked maze. Build one with :meth:`named`, :meth:`load` or :meth:`from_dict`.

    >>> maze = Maze.named("medium")
    >>> len(maze.obstacles), maze.ball_radius
    (10, 0.02)
    >>> maze.free([[0.2, 0.9], [0.5, 0.2]])
    array([ True, False])
    """

    name: str
    ball_radius: float
    target: Floats  # (2,)
    target_radius: float
    starts: Floats  # (k, 2)
    obstacles: tuple[Floats, ...]  # each (vertices, 2)

    def __post_init__(self) -> None:
        obstacles = as_list(self.obstacles, "obstacles", "a list of polygons")
        if not obstacles:
            raise InvalidInputError("obstacles must be a list of polygons, got none; add the four walls")
        polygons = (_figures(vertices, f"obstacles[{i}]", (None, 2)) for i, vertices in enumerate(obstacles))
        checked = {
            "ball_radius": as_number(self.ball_radius, "ball_radius", 0.0, 0.5, open_low=True),
            "target": _figures(self.target, "target.center", (2,)),
            "target_radius": as_number(self.target_radius, "target.radius", 0.0, 1.0, open_low=True),
            "starts": _figures(self.starts, "starts", (None, 2)),
            "obstacles": tuple(polygons),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for obstacle, vertices in enumerate(self.obstacles):
            _check_polygon(vertices, f"obstacles[{obstacle}]")
        self._check_places()

    @classmethod
    def named(cls, name: str) -> Maze:
        """One of the five mazes that ship with the package."""
        if not isinstance(name, str) or name not in MAZES:
            raise InvalidInputError(
                f"maze must be one of {', '.join(MAZES)}, a path to a JSON file or a Maze, "
                f"got {name!r}; correct the name, or pass the file's path (with its .json ending)"
            )
        return _shipped(name)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Maze:
        """A maze from a JSON file."""
        file = as_path(path, "maze")
        try:
            figures = from_json(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInputError(
                f"maze must be a readable file, got {str(path)!r} ({error.strerror}); "
                f"correct the path, or pass one of {', '.join(MAZES)}"
            ) from error
        except ValueError as error:
            raise InvalidInputError(
                f"maze must be a JSON file, got {str(path)!r} ({error}); correct the file there"
            ) from error
        return cls.from_dict(figures, name=file.stem)

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any], name: str = "custom") -> Maze:
        """A maze from the contents of a JSON file."""
        _check_keys(figures, "the maze", _KEYS)
        _check_keys(figures["target"], "target", {"center", "radius"})
        center, radius = figures["target"]["center"], figures["target"]["radius"]
        return cls(name, figures["ball_radius"], center, radius, figures["starts"], figures["obstacles"])

    @cached_property
    def edges(self) -> tuple[Floats, Ints]:
        """All edges, shape (m, 7), and the obstacle (m,) that each belongs to."""
        return edge_rows(self.obstacles)

    def free(self, positions: object) -> Bools:
        """Whether the ball fits at each position: (n, 2) -> (n,)."""
        points = as_floats(positions, "positions", (None, 2))
        edges, owners = self.edges
        fits: Bools = nearest_distance(edges, points) >= self.ball_radius
        fits &= ~inside_any(edges, owners, points)
        return fits

    def reachable(self, positions: object) -> Bools:
        """Whether each position is free and connected to the target: (n, 2) -> (n,).

        A position counts as connected if a grid cell at or next to its own is, and none of them
        belongs to a pocket; what this leaves out is narrower than a cell, 1/500.
        """
        points = as_floats(positions, "positions", (None, 2))
        within = ((points >= 0.0) & (points <= 1.0)).all(axis=1)
        cells = np.floor(points.clip(0.0, 1.0) * _CELLS).astype(np.int64)
        column, row = np.minimum(cells, _CELLS - 1).T
        reached: Bools = self.free(points) & self._near_reachable[column, row] & within
        return reached

    def playable(self, positions: object) -> Bools:
        """Whether each position is reachable and outside the target: (n, 2) -> (n,)."""
        points = as_floats(positions, "positions", (None, 2))
        away: Bools = np.hypot(*(points - self.target).T) >= self.target_radius
        return away & self.reachable(points)

    @cached_property
    def _labels(self) -> Ints:
        """The component (cells, cells) that each free cell belongs to, 0 where not free."""
        grid = self.free(grid_points(_CELLS)).reshape(_CELLS, _CELLS)
        return np.asarray(ndimage.label(grid)[0], np.int64)

    @cached_property
    def _home(self) -> Bools:
        """The cells (cells, cells) that are connected to the target's."""
        column, row = (int(c) for c in np.minimum(self.target * _CELLS, _CELLS - 1))
        return np.asarray(self._labels == self._labels[column, row])

    @cached_property
    def _near_reachable(self) -> Bools:
        pocket = (self._labels > 0) & ~self._home
        around = np.ones((3, 3), np.bool_)
        near = ndimage.binary_dilation(self._home, around)
        return np.asarray(near & ~ndimage.binary_dilation(pocket, around))

    def _check_places(self) -> None:
        inside = (self.target >= 0.0) & (self.target <= 1.0)
        if not (inside.all() and self.free(self.target[None])[0]):
            raise InvalidInputError(
                f"target.center must be free: inside the unit square, outside every obstacle and "
                f"ball_radius={self.ball_radius:g} from every edge, got {self.target.tolist()}; "
                "move the target or the obstacle"
            )
        rim = self._home.copy()
        rim[1:-1, 1:-1] = False
        if rim.any():
            way_out = (np.argwhere(rim)[0] + 0.5) / _CELLS
            raise InvalidInputError(
                "obstacles must wall the ball in all around, got a way from the target to the unit "
                f"square's border near ({way_out[0]:.3f}, {way_out[1]:.3f}); close the gap there"
            )
        if len(self.starts) == 0:
            raise InvalidInputError("starts must hold at least one position, got none; add one")
        lost = np.flatnonzero(~self.reachable(self.starts))
        if lost.size:
            raise InvalidInputError(
                "starts must be free (outside every obstacle, "
                f"ball_radius={self.ball_radius:g} from every edge) and connected to the target, got "
                f"starts[{lost[0]}] = {self.starts[lost[0]].tolist()}; move that start"
            )


@lru_cache
def _shipped(name: str) -> Maze:
    text = (resources.files(__package__) / "mazes.json").read_text(encoding="utf-8")
    return Maze.from_dict(json.loads(text)[name], name=name)


def _figures(value: object, name: str, shape: tuple[int | None, ...]) -> Floats:
    return readonly(as_floats(value, name, shape).copy())


def _check_keys(figures: object, name: str, keys: set[str]) -> None:
    if not isinstance(figures, Mapping) or set(figures) != keys:
        got = sorted(map(str, figures)) if isinstance(figures, Mapping) else type(figures).__name__
        raise InvalidInputError(
            f"{name} must have exactly the keys {', '.join(sorted(keys))}, got {got}; "
            "compare the file with the example in policyrisk.domains.maze"
        )


def _check_polygon(vertices: Floats, name: str) -> None:
    if len(np.unique(vertices, axis=0)) < 3:
        raise InvalidInputError(
            f"{name} must have at least 3 distinct vertices, got {vertices.tolist()}; "
            "add vertices or remove the obstacle"
        )
    following = np.roll(vertices, -1, axis=0)
    same = np.flatnonzero((vertices == following).all(axis=1))
    if same.size:
        raise InvalidInputError(
            f"{name} must not repeat a vertex, got {vertices[same[0]].tolist()} twice in a row; "
            "remove the copy (the last vertex is joined to the first without repeating it)"
        )
    area = 0.5 * abs((vertices[:, 0] * following[:, 1] - vertices[:, 1] * following[:, 0]).sum())
    if area < 1e-9:
        raise InvalidInputError(
            f"{name} must enclose an area, got {area:.1e} from {vertices.tolist()}; "
            "give its vertices in order around it"
        )


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
