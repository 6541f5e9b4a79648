"""The frontier of mean and standard deviation: the best policy for every price of risk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Seed, as_floats, readonly
from policyrisk._core.progress import ProgressBar
from policyrisk._core.text import number, table
from policyrisk.criteria import MeanMinusStd
from policyrisk.errors import InvalidInputError
from policyrisk.markov import MDP


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """The best policy that was found for one c."""

    c: float
    mean: float
    variance: float
    value: float  # of the criterion with this c
    policy: Floats  # (n, actions)

    @property
    def std(self) -> float:
        """√variance."""
        return math.sqrt(max(self.variance, 0.0))


@dataclass(frozen=True)
class Frontier:
    """The best policies, from the boldest to the most careful; ``print(frontier)`` shows them."""

    points: tuple[FrontierPoint, ...]  # in the order of c
    given: tuple[float, float] | None  # mean and std of the given policy

    def __str__(self) -> str:
        rows = [
            [f"{point.c:g}", *(number(value) for value in (point.mean, point.std, point.value))]
            for point in self.points
        ]
        if self.given is not None:
            rows.append(["given policy", number(self.given[0]), number(self.given[1]), ""])
        return table(["c", "mean", "std", "value"], rows)


def frontier(
    mdp: MDP,
    start: npt.ArrayLike = 0,
    c: Sequence[float] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0),
    policy: npt.ArrayLike | None = None,
    *,
    criterion: Callable[[float], Any] = MeanMinusStd,
    features: object = None,
    seed: Seed = 0,
    restarts: int = 1,
) -> Frontier:
    """The best policies by mean − c·std, for each c, of a decision process known exactly.

    The first c is improved (:meth:`MDP.improve`, with the same arguments) from the given ``policy``, the
    others from what was found before; then every c takes the best of all policies found. ``criterion`` may be
    :class:`~policyrisk.criteria.MeanMinusVariance` as well. A given ``policy`` is shown beside them.
    :func:`policyrisk.plotting.plot_frontier` draws the record.

    Leaving pays 3; staying pays 5 in the mean, and nobody knows how long:

    >>> mdp = MDP([[[0.8]], [[0.0]]], [[1.0, 3.0]])
    >>> print(frontier(mdp, c=[0.0, 1.0], policy=[[0.5, 0.5]]))
    c               mean     std  value
    0                  5  4.4721      5
    1                  3       0      3
    given policy  3.3333   1.291
    """
    prices = np.unique(as_floats(c, "c", (None,)))
    if prices.size == 0:
        raise InvalidInputError("c must hold at least one number, got none; pass for example [0, 0.5, 1]")
    found, near = [], policy
    with ProgressBar("frontier", prices.size) as bar:
        for price in prices.tolist():
            better = mdp.improve(criterion(price), start, near, seed, features=features, restarts=restarts)
            near = better.policy
            found.append(better)
            bar.advance()
    points = []
    for price in prices.tolist():
        values = [criterion(price).slopes(better.mean, better.variance)[0] for better in found]
        best = found[int(np.argmax(values))]
        points.append(FrontierPoint(price, best.mean, best.variance, max(values), readonly(best.policy)))
    given = None
    if policy is not None:
        known = mdp.gradient(policy, start)
        given = known.mean, math.sqrt(max(known.variance, 0.0))
    return Frontier(tuple(points), given)
