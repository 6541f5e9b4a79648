"""The states of a report: coordinates, cells along them, and the levels of the other coordinates.

A map lies over two coordinates. Of the others, the most influential ones have a *slider*, with which each is
held at one of its *levels*, quantiles of the visited states (values that occur), in all combinations; the
rest stay at their medians. Everything that can be chosen in the report is evaluated beforehand, so the number
of cells is bounded: with d coordinates that are mapped, s sliders a map and L levels a slider

    cells = d(d − 1)/2 pairs · L^s slices a pair · cells a map ≤ ``most``

Coordinates that the features do not look at, or that never change, need no map. Up to ``COORDINATES`` of the
rest are mapped, of three and more the most influential ones first, and as many as leave two sliders and maps
of ``FINE`` cells a side, four at least; any others stay at their median. There are as many sliders as leave
maps of ``FINE`` cells a side, and L is the largest of 9, 7, 5, 3 that does.

Cells are those of the tiles where a coordinate is cut by one tiling, whole numbers where the coordinate has
only those, and evenly spaced over the data's extent otherwise.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk.features import Features, TileCoding

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

COORDINATES = 8  # that are mapped at most
CELLS = 75_000  # in all, at most: some ten bytes each, and a third more as text
WITH_TAILS = 0.6  # of these, where a cell has tails as well
SIDE = 100  # cells along a coordinate of a map, at most
LINE = 400  # along the only coordinate
FEW = 4  # coordinates that are mapped in any case
SLIDERS = 2  # that there are at least, before coordinates are given up
FINE = 16  # cells a side before levels are given up, then sliders
_COARSE = 8  # cells a side, at least
_LEVELS = (9, 7, 5, 3)
_WORK = 10**11  # multiplications for all cells


@dataclass(frozen=True, eq=False)
class Axis:
    """A coordinate that is mapped."""

    coordinate: int  # its place in the state
    name: str
    cells: Floats  # (n,): the cells' centres
    levels: Floats  # (L,): increasing values that it can be held at
    median: int  # which level it is held at first


@dataclass(frozen=True, eq=False)
class MapGrid:
    """What a report can show."""

    axes: tuple[Axis, ...]
    fixed: Floats  # (dim,): what coordinates that are not mapped are held at
    idle: tuple[int, ...]  # coordinates that the features do not look at
    held: tuple[int, ...]  # those without a map all the same: constant, or beyond the eighth
    sliders: int  # how many of the axes that a map does not lie over leave their medians, the first ones

    @property
    def shown(self) -> list[int]:
        """The coordinates that tables and labels name: all that matter, of many those that are mapped."""
        matter = [k for k in range(self.fixed.size) if k not in self.idle]
        return matter if len(matter) <= COORDINATES else [axis.coordinate for axis in self.axes]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every two axes."""
        return list(itertools.combinations(range(len(self.axes)), 2))

    def others(self, pair: tuple[int, int]) -> list[Axis]:
        """The axes that have a slider beside a map over two."""
        return [axis for k, axis in enumerate(self.axes) if k not in pair][: self.sliders]

    def slices(self, pair: tuple[int, int]) -> list[tuple[int, ...]]:
        """The levels' indices of the axes with a slider, in their order, a tuple a slice."""
        return list(itertools.product(*(range(len(axis.levels)) for axis in self.others(pair))))

    def states(self, pair: tuple[int, int]) -> Floats:
        """A pair's states, (slices · cells of the second · cells of the first, dim), in that order."""
        first, second = (self.axes[k] for k in pair)
        up, across = np.meshgrid(second.cells, first.cells, indexing="ij")
        slices = self.slices(pair)
        states = np.empty((len(slices), up.size, self.fixed.size))
        states[:] = self.fixed
        states[:, :, first.coordinate] = across.ravel()
        states[:, :, second.coordinate] = up.ravel()
        for axis, chosen in zip(self.others(pair), np.array(slices, dtype=np.int64).T, strict=True):
            states[:, :, axis.coordinate] = axis.levels[chosen][:, None]
        return states.reshape(-1, self.fixed.size)

    @classmethod
    def of(cls, evaluation: Evaluation) -> MapGrid:
        """The grid of an evaluation, by the rule of the module's docstring."""
        survey, seen = evaluation.survey, evaluation.looked_at
        live, most = evaluation.changing[:COORDINATES], _affordable(evaluation)
        while len(live) > FEW and _plan(len(live), most)[0] < SLIDERS:
            live = live[:-1]
        sliders, levels, side = _plan(len(live), most)
        axes = []
        for k in live:
            at, median = _quantiles(survey.visited[:, k], levels)
            cells = _cell_centres(evaluation, k, side)
            axes.append(Axis(k, evaluation.names[k], cells, at, median))
        return cls(
            axes=tuple(axes),
            fixed=evaluation.middle,
            idle=tuple(k for k in range(survey.dim) if k not in seen),
            held=tuple(k for k in seen if k not in live),
            sliders=sliders,
        )


def _affordable(evaluation: Evaluation) -> int:
    """The number of cells that take a few seconds: an error bar costs non-zeros · features, or draws."""
    risk = evaluation.risk
    draws = 0 if risk.error_bars is None else risk.error_bars.width
    few = evaluation.survey.visited[:100]
    work = 0.0
    for features in {id(f): f for f in (risk.features, risk.second_features)}.values():
        phi = features(few)
        work += (
            (25.0 if draws and hasattr(phi, "nnz") else 10.0)
            * (phi.nnz if hasattr(phi, "nnz") else phi.size)
            / len(few)
            * (draws or features.size)
        )
    share = 1.0 if evaluation.distribution is None else WITH_TAILS
    return min(int(share * CELLS), max(int(_WORK / work), 1))


def _plan(d: int, most: int) -> tuple[int, int, int]:
    """Sliders a map, levels a slider and cells a side, for d mapped coordinates.

    >>> _plan(1, CELLS), _plan(2, CELLS), _plan(4, CELLS), _plan(5, CELLS), _plan(8, CELLS)
    ((0, 1, 400), (0, 1, 100), (2, 5, 22), (3, 3, 16), (2, 3, 17))
    """
    if d <= 1:
        return 0, 1, min(LINE, most)
    pairs = math.comb(d, 2)
    for sliders in range(d - 2, 0, -1):
        for levels in _LEVELS:
            side = math.isqrt(most // (pairs * levels**sliders))
            if side >= FINE:
                return sliders, levels, min(side, SIDE)
    sliders, levels = (0, 1) if d == 2 else (1, _LEVELS[-1])
    side = math.isqrt(most // (pairs * levels))
    return sliders, levels, min(max(side, _COARSE), SIDE)


def _quantiles(values: Floats, count: int) -> tuple[Floats, int]:
    """At most ``count`` values at even quantiles from 5% to 95%, and which of them is the median."""
    middle = np.quantile(values, 0.5, method="inverted_cdf")
    if count == 1:
        return np.array([middle]), 0
    distinct = np.unique(values)
    shares = np.round(np.linspace(0.05, 0.95, count), 6)  # the middle one is 0.5, not a little less
    levels = distinct if distinct.size <= count else np.quantile(values, shares, method="inverted_cdf")
    levels = np.unique(np.append(levels, middle))
    return levels, int(np.searchsorted(levels, middle))


def _cell_centres(evaluation: Evaluation, coordinate: int, side: int) -> Floats:
    """At most ``side`` cells along a coordinate."""
    risk, survey = evaluation.risk, evaluation.survey
    low, high = float(survey.low[coordinate]), float(survey.high[coordinate])
    if survey.whole[coordinate]:
        whole = np.arange(low, high + 1) if high - low < side else np.round(np.linspace(low, high, side))
        return np.unique(whole)
    edges = _tile_edges(risk.features, coordinate) if risk.second_features == risk.features else None
    if edges is not None:
        first = np.clip(np.searchsorted(edges, low, side="right") - 1, 0, edges.size - 2)
        last = np.clip(np.searchsorted(edges, high), first + 1, edges.size - 1)
        edges = edges[first : last + 1]
        if edges.size - 1 <= side:
            centres: Floats = (edges[:-1] + edges[1:]) / 2
            return centres
    return low + (np.arange(side) + 0.5) / side * (high - low)


def _tile_edges(features: Features, coordinate: int) -> Floats | None:
    """Where one tiling cuts a coordinate, of shape (bins + 1,)."""
    if not isinstance(features, TileCoding) or features.tilings != 1:
        return None
    dims = features.box.dims
    place = coordinate if dims is None else dims.index(coordinate)
    edges: Floats = np.linspace(features.box.low[place], features.box.high[place], features.bins[place] + 1)
    return edges
