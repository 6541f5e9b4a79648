"""Sums over start states, at an estimate: all that a summary over a start distribution needs of them.

With weights w of the visited starts x_0, W = Σ w and m = Σ w J̃(x_0) / W, the return has

    mean m        variance v = Σ w Ṽ(x_0) / W + Σ w (J̃(x_0) − m)² / W

and these have the gradients in (w_J, w_second)

    m   (Σ w φ_J / W,  0)
    v   (−2m Σ w φ_J / W,  Σ w φ_M / W)            for M̃
    v   (2 Σ w (J̃ − m) φ_J / W,  Σ w φ_M / W)      for the direct variance

Every sum adds, those about the mean by Pébay's formulas: data of any length, on any number of machines, are
summarised over all of their starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.records import record
from policyrisk.risk.state_estimates import StateEstimates, VarianceMethod


@record
@dataclass(frozen=True, eq=False)
class StartSums:
    """What starts say together; it adds. All but the first two are of the visited starts."""

    count: int  # starts
    unvisited: int  # those the data say nothing about: they are in no other sum
    negative: int  # starts with Ṽ < 0
    weight: float  # W
    episodes: float  # Σ w e, e being the episodes behind the estimate at the start
    mean: float  # m; 0 where W is
    squares: float  # Σ w (J̃ − m)²
    variances: float  # Σ w Ṽ
    phi_mean: Floats  # (l_J,): Σ w φ_J
    phi_second: Floats  # (l_M,): Σ w φ_M
    phi_spread: Floats  # (l_J,): Σ w (J̃ − m) φ_J

    @classmethod
    def empty(cls, l_J: int, l_M: int) -> StartSums:
        """The sums of no start at all: adding them changes nothing."""
        return cls(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(l_J), np.zeros(l_M), np.zeros(l_J))

    @classmethod
    def of(cls, parts: Iterable[StateEstimates], weights: Floats) -> StartSums:
        """The sums of the estimates at starts, in one part or more, with the starts' weights (n,)."""
        sums, first = [], 0
        for part in parts:
            sums.append(cls._of_part(part, weights[first : first + len(part.J)]))
            first += len(part.J)
        return reduce(add, sums)

    @classmethod
    def _of_part(cls, at: StateEstimates, weights: Floats) -> StartSums:
        visited = (at.episodes > 0) & (weights > 0)
        w = np.where(visited, weights, 0.0)
        J, V = np.where(visited, at.J, 0.0), np.where(visited, at.V, 0.0)
        W = float(w.sum())
        m = float(w @ J) / W if W > 0 else 0.0
        return cls(
            count=len(w),
            unvisited=int(np.count_nonzero(at.episodes == 0)),
            negative=int(np.count_nonzero(V < 0)),
            weight=W,
            episodes=float(w @ at.episodes),
            mean=m,
            squares=float(w @ (J - m) ** 2),
            variances=float(w @ V),
            phi_mean=np.asarray(at.phi_mean.T @ w),
            phi_second=np.asarray(at.phi_second.T @ w),
            phi_spread=np.asarray(at.phi_mean.T @ (w * (J - m))),
        )

    def __add__(self, other: StartSums) -> StartSums:
        a, b = self.weight, other.weight
        delta = other.mean - self.mean
        share = b / (a + b) if a + b > 0 else 0.0
        m = self.mean + share * delta
        plain = {
            field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(StartSums)
        }
        moved = {
            "mean": m,
            "squares": plain["squares"] + delta**2 * a * share,
            "phi_spread": plain["phi_spread"]
            + (self.mean - m) * self.phi_mean
            + (other.mean - m) * other.phi_mean,
        }
        return StartSums(**{**plain, **moved})

    @property
    def moments(self) -> tuple[float, float]:
        """m and v, nan where no start was visited."""
        if self.weight == 0:
            return math.nan, math.nan
        return self.mean, (self.variances + self.squares) / self.weight

    def gradients(self, method: VarianceMethod) -> tuple[Floats, Floats]:
        """The gradients of (m, v) by w_J, (2, l_J), and by w_second, (2, l_M)."""
        g_J, g_M = np.zeros((2, self.phi_mean.size)), np.zeros((2, self.phi_second.size))
        g_J[0] = self.phi_mean
        g_J[1] = 2 * self.phi_spread if method == "direct" else -2 * self.mean * self.phi_mean
        g_M[1] = self.phi_second
        return g_J / self.weight, g_M / self.weight
