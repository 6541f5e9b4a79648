"""The tiles of a maze: their centres, which of them are free, and how far the target is along free paths.

The unit square is cut into tiles × tiles; tile (i, j) covers [i, i + 1) × [j, j + 1) of x and y in units of
1/tiles and is number i·tiles + j, as in :class:`policyrisk.TileCoding`. A tile is *free* if the ball can be
at rest in its centre: the centre is reachable and outside the target.

The distance to the target is the length of the shortest free path from the centre to the target's rim. Paths
run over a finer grid, whose points include the centres, with steps to the 8 neighbours and 8 knight's moves;
such a path is at most 2.8% longer than a straight line.

Every-visit Monte Carlo takes mean and variance of the returns to go of all steps in a tile. Visits of one
trajectory are not independent, and those with other velocities are pooled: what it estimates is the return to
go of a ball *as visited*, met in the tile at a random moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from experiments.common import Bools, Floats, Ints
from policyrisk import Trajectories
from policyrisk.domains import Maze

_FINEST = 250  # points along an axis that the finer grid has at least
# The other eight are their reverse.
_MOVES = [(1, 0), (0, 1), (1, 1), (1, -1), (1, 2), (2, 1), (1, -2), (2, -1)]


def grid_points(cells: int) -> Floats:
    """The centres of cells × cells equal parts of the unit square, in the order of tiles, (cells², 2)."""
    middle = (np.arange(cells) + 0.5) / cells
    return np.column_stack([np.repeat(middle, cells), np.tile(middle, cells)])


@dataclass(frozen=True, eq=False)
class TileGrid:
    """The tiles × tiles of a maze; n of them are free.

    >>> grid = TileGrid(Maze.named("empty"), tiles=10)
    >>> len(grid.states), float(grid.distances[grid.states[:, :2].tolist().index([0.05, 0.25])].round(2))
    (100, 0.82)
    """

    maze: Maze
    tiles: int

    @cached_property
    def free(self) -> Bools:
        """Whether each tile is free, of shape (tiles²,)."""
        return self.maze.playable(grid_points(self.tiles))

    @cached_property
    def states(self) -> Floats:
        """The free tiles' centres at rest, of shape (n, 4)."""
        positions = grid_points(self.tiles)[self.free]
        return np.column_stack([positions, np.zeros_like(positions)])

    @cached_property
    def distances(self) -> Floats:
        """From each free tile's centre to the target's rim along free paths, (n,); inf without one."""
        odd = 2 * max(round((_FINEST / self.tiles - 1) / 2), 0) + 1  # so that the centres are points
        points = grid_points(self.tiles * odd)
        target = np.hypot(*(points - self.maze.target).T) <= self.maze.target_radius
        shape = (self.tiles * odd, self.tiles * odd)
        inner = grid_distances((self.maze.reachable(points) | target).reshape(shape), target.reshape(shape))
        middle = slice(odd // 2, None, odd)
        found: Floats = inner[middle, middle].ravel()[self.free] / (self.tiles * odd)
        return found

    @cached_property
    def neighbours(self) -> Ints:
        """Pairs of free tiles that share a side, as rows of ``states``, of shape (m, 2)."""
        row = np.where(self.free, np.cumsum(self.free) - 1, -1).reshape(self.tiles, self.tiles)
        beside = ((row[1:], row[:-1]), (row[:, 1:], row[:, :-1]))
        pairs = np.concatenate([np.column_stack([a.ravel(), b.ravel()]) for a, b in beside])
        return pairs[(pairs >= 0).all(axis=1)]

    def tile_of(self, positions: Floats) -> Ints:
        """The number of the tile that each position (m, ≥ 2) is in, of shape (m,)."""
        cells = np.clip((positions[:, :2] * self.tiles).astype(np.int64), 0, self.tiles - 1)
        return cells[:, 0] * self.tiles + cells[:, 1]

    def picture(self, values: Floats) -> Floats:
        """Values of the free tiles (n,), or of all (tiles²,), as rows of y and columns of x; else nan."""
        full = values
        if values.size != self.free.size:
            full = np.full(self.free.size, np.nan)
            full[self.free] = values
        return full.reshape(self.tiles, self.tiles).T


def grid_distances(open_cells: Bools, sources: Bools) -> Floats:
    """The length of the shortest path over open cells to a source, in cells; inf where there is none.

    Both are of shape (a, b). A step goes to one of the 8 neighbours or by a knight's move.

    >>> cells = np.array([[1, 1, 1], [0, 0, 1], [1, 1, 1]], dtype=bool)
    >>> home = np.zeros((3, 3), dtype=bool)
    >>> home[2, 1] = True
    >>> grid_distances(cells, home)[1:].round(2).tolist()
    [[inf, inf, 1.41], [1.0, 0.0, 1.0]]
    """
    a, b = open_cells.shape
    number = np.where(open_cells, np.cumsum(open_cells.ravel()).reshape(a, b) - 1, -1)
    edges: list[Floats] = []
    for i, j in _MOVES:
        here = number[: a - i, max(-j, 0) : b - max(j, 0)].ravel()
        there = number[i:, max(j, 0) : b + min(j, 0)].ravel()
        both = (here >= 0) & (there >= 0)
        edges.append(np.array([here[both], there[both], np.full(int(both.sum()), np.hypot(i, j))]))
    (rows, columns, lengths), n = np.hstack(edges), int(open_cells.sum())
    # int32, as SciPy 1.14 wants it
    graph = sp.csr_array((lengths, (rows.astype(np.int32), columns.astype(np.int32))), shape=(n, n))
    start = number[open_cells & sources]
    out = np.full((a, b), np.inf)
    if start.size:
        out[open_cells] = csgraph.dijkstra(graph, directed=False, indices=start, min_only=True)
    return out


@dataclass(frozen=True, eq=False)
class TileReturns:
    """Returns to go by tile."""

    visits: Floats  # (tiles²,)
    mean: Floats  # (tiles²,), nan without a visit
    variance: Floats  # (tiles²,), unbiased for independent visits, nan with fewer than two


def visit_sums(data: Trajectories, grid: TileGrid) -> Floats:
    """Sums over the terminated episodes' steps in each tile: number, Σ B and Σ B², of shape (3, tiles²).

    B is the return to go; these are whole numbers here, so that the sums are exact.
    """
    ended = np.repeat(data.terminated, data.lengths)
    tile = grid.tile_of(data.states[data.visited_rows])[ended]
    B = data.returns_to_go()[ended]
    return np.array([np.bincount(tile, weights=B**p, minlength=grid.free.size) for p in range(3)])


def every_visit(sums: Floats) -> TileReturns:
    """Every-visit Monte Carlo from the sums of :func:`visit_sums`."""
    n, total, squares = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(n > 0, total / n, np.nan)
        variance = np.where(n > 1, (squares - n * mean**2) / (n - 1), np.nan)
    return TileReturns(n, mean, variance)
