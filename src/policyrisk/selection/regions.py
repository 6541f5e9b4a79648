"""Regions of the state space that are cut at medians: where an estimate is checked.

A *point* is a state with the number of its step, (x_t, t). A region is a box of points, low < point ≤ high,
and regions do not overlap. They are made by cutting in halves: the first coordinate of an order at its
median, each half at its own median of the next coordinate, and so on, round and round. A coordinate that does
not change, or whose halves would be seen by fewer than ``FEWEST`` episodes, gives way to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints, freeze
from policyrisk._core.records import record
from policyrisk._core.text import number

FEWEST = 40  # episodes that see each half of a cut


@record(low="p d", high="p d", least="d", most="d")
@dataclass(frozen=True, eq=False)
class Regions:
    """p boxes in the space of points (x, t).

    >>> points = np.array([[0.0, 0], [1, 1], [2, 2], [3, 3]] * 20)
    >>> regions = Regions.of(points, np.arange(80), order=[0], depth=1)
    >>> regions.index(points[:4]).tolist(), regions.names(["place"])
    ([0, 0, 1, 1], ['place <= 1.5', 'place > 1.5'])
    """

    low: Floats  # (p, dim + 1): −∞ where nothing was cut; the last coordinate is the step
    high: Floats  # (p, dim + 1)
    least: Floats  # (dim + 1,): the extent of the points that were cut
    most: Floats  # (dim + 1,)

    def __post_init__(self) -> None:
        freeze(self)

    def __len__(self) -> int:
        return len(self.low)

    @classmethod
    def of(
        cls, points: Floats, episode: Ints, order: Sequence[int], depth: int, fewest: int = FEWEST
    ) -> Regions:
        """At most 2^depth regions of points (n, dim + 1) that belong to episodes (n,)."""
        dim = points.shape[1]
        everywhere = np.full(dim, -np.inf), np.full(dim, np.inf)
        boxes = list(_halves(points, episode, list(order), depth, everywhere, fewest))
        low, high = (np.array([box[end] for box in boxes]) for end in (0, 1))
        return cls(low, high, points.min(axis=0), points.max(axis=0))

    def index(self, points: Floats) -> Ints:
        """The number of the region that each point (n, dim + 1) is in, of shape (n,)."""
        found = np.zeros(len(points), dtype=np.int64)
        for j, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            inside = np.ones(len(points), dtype=np.bool_)
            for i in np.flatnonzero(np.isfinite(low) | np.isfinite(high)).tolist():
                inside &= (points[:, i] > low[i]) & (points[:, i] <= high[i])
            found[inside] = j
        return found

    def names(
        self,
        coordinates: Sequence[str] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> list[str]:
        """Each region in words, by the names of the state's coordinates.

        ``labels`` are what the numbers 0, 1, … of some coordinates stand for.
        """
        dim = self.low.shape[1] - 1
        given = [f"coordinate {i}" for i in range(dim)] if coordinates is None else list(coordinates)
        boxes = zip(self.low, self.high, strict=True)
        return [_in_words(*box, [*given, "the step"], labels or {}) for box in boxes]


def points_of(states: npt.NDArray[Any]) -> Floats:
    """States (n, dim) as points at step 0, where regions do not look at the step."""
    return np.column_stack([states, np.zeros(len(states))]).astype(np.float64)


def _halves(
    points: Floats, episode: Ints, order: list[int], depth: int, box: tuple[Floats, Floats], fewest: int
) -> Iterator[tuple[Floats, Floats]]:
    """The boxes that a box is cut into, ``order`` beginning with the coordinate whose turn it is."""
    for turn, i in enumerate(order if depth else []):
        values = points[:, i]
        median = np.median(values)
        lower = values <= median
        if lower.all():
            lower = values < median
        if min(np.unique(episode[half]).size for half in (lower, ~lower)) < fewest:
            continue
        cut = (values[lower].max() + values[~lower].min()) / 2
        after = order[turn + 1 :] + order[: turn + 1]
        for half, end in ((lower, 1), (~lower, 0)):
            part = box[0].copy(), box[1].copy()
            part[end][i] = cut
            yield from _halves(points[half], episode[half], after, depth - 1, part, fewest)
        return
    yield box


def _in_words(low: Floats, high: Floats, names: Sequence[str], labels: Mapping[str, Sequence[str]]) -> str:
    said = []
    for name, a, b in zip(names, low.tolist(), high.tolist(), strict=True):
        ends = [number(end, 3) for end in (a, b)]
        if (texts := labels.get(name)) and (np.isfinite(a) or np.isfinite(b)):
            first = math.floor(a) + 1 if np.isfinite(a) else 0
            last = math.floor(b) if np.isfinite(b) else len(texts) - 1
            one = f"{name} = {texts[last]}"
            said.append(one if first == last else f"{name} from {texts[first]} to {texts[last]}")
        elif np.isfinite(a) and np.isfinite(b):
            said.append(f"{ends[0]} < {name} <= {ends[1]}")
        elif np.isfinite(a) or np.isfinite(b):
            said.append(f"{name} > {ends[0]}" if np.isfinite(a) else f"{name} <= {ends[1]}")
    return " and ".join(said) or "everywhere"
