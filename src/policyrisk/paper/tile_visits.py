"""Every-visit Monte Carlo on tiles: mean and variance of the returns to go of all steps in a tile.

Visits of one trajectory are not independent, and those with other velocities are pooled: what this estimates
is the return to go of a ball *as visited*, met in the tile at a random moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk.paper.tile_grid import TileGrid
from policyrisk.trajectories import Trajectories

__all__ = ["Visits", "every_visit", "visits_of"]


@dataclass(frozen=True, eq=False)
class Visits:
    """Returns to go by tile."""

    visits: Floats  # (tiles²,)
    mean: Floats  # (tiles²,), nan without a visit
    variance: Floats  # (tiles²,), unbiased for independent visits, nan with fewer than two


def visits_of(data: Trajectories, grid: TileGrid) -> Floats:
    """Sums over the terminated episodes' steps in each tile: number, Σ B and Σ B², of shape (3, tiles²).

    B is the return to go; these are whole numbers here, so that the sums are exact.
    """
    ended = np.repeat(data.terminated, data.lengths)
    tile = grid.tile_of(data.states[data.visited_rows])[ended]
    B = data.returns_to_go()[ended]
    return np.array([np.bincount(tile, weights=B**p, minlength=grid.free.size) for p in range(3)])


def every_visit(sums: Floats) -> Visits:
    """Every-visit Monte Carlo from the sums of :func:`visits_of`."""
    n, total, squares = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(n > 0, total / n, np.nan)
        variance = np.where(n > 1, (squares - n * mean**2) / (n - 1), np.nan)
    return Visits(n, mean, variance)
