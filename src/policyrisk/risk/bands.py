"""Bands: intervals at many states that hold all together, and states that differ with confidence for all.

Of many intervals at 95 % some miss. With D_b(x) the deviation of a quantity at x in draw b
(:meth:`StateEstimates.drawn_deviations`) and s(x) its standard deviation over b,

    c = the ``level``-quantile over b of max_x |D_b(x)| / s(x)

is how many standard errors an interval must reach so that all of them hold in a share ``level`` of the draws.
An interval at one state reaches as far at the *pointwise level* 2Φ(c) − 1: a band is made of the intervals at
that level (:func:`RiskFunction.interval`), whatever they are made of and however few episodes are behind.

The riskiest of many states were chosen for their large estimates. A state is riskier than the median state m
(that with the middle Ṽ) with confidence ``level`` for all states together if

    log Ṽ(x) − log Ṽ(m) > c s(x),    c = the ``level``-quantile over b of max_x D_b(x) / s(x)

where D_b(x) = dṼ_b(x)/Ṽ(x) − dṼ_b(m)/Ṽ(m) and s(x) is its standard deviation: no false one among all those
found so in a share ``level`` of the cases, as far as randomness goes.

Two policies that are judged at the states by a value f(J̃, Ṽ) differ by d(x) = f_1(x) − f_2(x). Their data
are independent, so that any replicate of one goes with any of the other: D_b(x) is the difference of two
deviations, and its c makes the band of d and the p-values

    p(x) = the share of b with max_y |D_b(y)| / s(y) ≥ the normal quantile of d(x)'s own p-value

of no difference at x, for all states together.

Where an estimate has no replicates, normal ones are drawn from Σ (:meth:`ErrorBars.replicated`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.units import magnitude
from policyrisk.risk.draws import ErrorBars
from policyrisk.risk.estimate import as_level
from policyrisk.risk.state_estimates import Quantity, StateEstimates

# A value of J and V, each (n,): f (n,), and its derivatives by both.
Judge: TypeAlias = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]

_NEARLY_ONE = 1.0 - 1e-12  # the highest pointwise level
_CELLS = 1 << 22  # deviations in hand at once


@dataclass(frozen=True, eq=False)
class JudgedStates:
    """A value f(J̃, Ṽ) at n states, its error, and how far it is off in each of B replicates."""

    value: Floats  # (n,)
    error: Floats  # (n,): with what features and their choice add, where that is known
    dof: Floats  # (n,): the degrees of freedom of the error
    deviations: Floats  # (n, B)

    @classmethod
    def of(
        cls, parts: Iterable[StateEstimates], judge: Judge, bars: ErrorBars, unit: float = 1.0
    ) -> JudgedStates:
        """The value at the states of some parts, which are in units, with the replicates of ``bars``."""
        found = []
        for part in parts:
            value, by_J, by_V = judge(part.J * unit, part.V * unit * unit)
            by_J, by_V = by_J * unit, by_V * unit * unit
            size = magnitude(by_J, by_V)  # whose square may be no number
            by_J, by_V = by_J / size, by_V / size
            D = part.moved_by(by_J, by_V, bars)
            dof = np.maximum(bars.behind(part.episodes) - 1.0, 1.0)
            found.append((value, np.sqrt(np.square(D).mean(axis=1)) * size, dof, D * size))
        return cls(*(np.concatenate(each) for each in zip(*found, strict=True)))

    def less(
        self, other: JudgedStates, level: float, *, paired: bool = False
    ) -> tuple[Floats, Floats, Floats]:
        """The difference d (n,), its band (n, 2) at ``level`` and p-values (n,), for all states together.

        ``paired`` where both are of the same episodes, with the same multipliers in every replicate.
        """
        level = as_level(level)
        size = magnitude(self.error, other.error)  # whose square may be no number
        d, B = (self.value - other.value) / size, min(self.deviations.shape[1], other.deviations.shape[1])
        # Replicates of one number may have the same multipliers: they are put beside other ones.
        D = (self.deviations[:, :B] - np.roll(other.deviations, 0 if paired else 1, axis=1)[:, :B]) / size
        largest = np.abs(_studentised(D)).max(axis=0, initial=0.0)
        c = max(float(np.quantile(largest, level, method="higher")), float(ndtri(0.5 + level / 2)))
        squares = (self.error / size) ** 2, (other.error / size) ** 2
        error = np.sqrt(squares[0] + squares[1])
        with np.errstate(divide="ignore", invalid="ignore"):  # Welch's degrees of freedom
            dof = error**4 / (squares[0] ** 2 / self.dof + squares[1] ** 2 / other.dof)
            if paired:
                error, dof = np.sqrt(np.square(D).mean(axis=1)), np.minimum(self.dof, other.dof)
            dof = np.where(error > 0, dof, 1.0)
            half = stdtrit(dof, ndtr(min(c, -float(ndtri(1.0 - _NEARLY_ONE))))) * error
            alone = 2.0 * stdtr(dof, -np.where(d == 0.0, 0.0, np.abs(d) / error))
        z = -ndtri(alone / 2.0)
        larger = B - np.searchsorted(np.sort(largest), z, side="left")
        together = np.where(np.isnan(alone), np.nan, np.maximum(alone, (1.0 + larger) / (1.0 + B)))
        return d * size, np.column_stack([d - half, d + half]) * size, together


def pointwise_level(parts: Iterable[StateEstimates], of: Quantity, level: float, bars: ErrorBars) -> float:
    """The level of intervals at single states with which all of them hold together.

    At least ``level``, and less than Bonferroni's 1 − (1 − level)/n, since errors of states go together.
    """
    largest = np.zeros(bars.draws)
    for part in parts:
        D = np.abs(_studentised(part.drawn_deviations(of, bars)))
        np.maximum(largest, D.max(axis=0, initial=0.0), out=largest)
    c = float(np.quantile(largest, level, method="higher"))
    return float(np.clip(2.0 * ndtr(c) - 1.0, level, _NEARLY_ONE))


def riskier(parts: Iterable[StateEstimates], level: float, bars: ErrorBars) -> Bools:
    """Which states are riskier than the median one, with confidence ``level`` for all together, (n,)."""
    V, moved = [], []
    for part in parts:
        V.append(np.where(part.V > 0, part.V, np.nan))
        moved.append((part.moves(bars)[1] / V[-1][:, None]).astype(np.float32))
    variance, D = np.concatenate(V), np.concatenate(moved)
    found = np.zeros(len(variance), dtype=np.bool_)
    known = np.flatnonzero(np.isfinite(variance) & np.isfinite(D).all(axis=1))
    if known.size < 2:
        return found
    middle = known[np.argsort(variance[known], kind="stable")[(known.size - 1) // 2]]
    error, largest = np.empty(known.size), np.full(D.shape[1], -np.inf)
    for some in np.array_split(np.arange(known.size), -(-known.size * D.shape[1] // _CELLS)):
        difference = (D[known[some]] - D[middle]).astype(np.float64)
        error[some] = np.sqrt(np.square(difference).mean(axis=1))
        np.maximum(largest, _studentised(difference).max(axis=0), out=largest)
    c = max(float(np.quantile(largest, level, method="higher")), float(ndtri(level)))
    excess = np.log(variance[known] / variance[middle])
    found[known] = (excess > c * error) & (excess > 0)
    return found


def _studentised(D: Floats) -> Floats:
    """D (n, B) over its standard deviation, 0 where it has none or does not exist."""
    s = np.sqrt(np.square(D).mean(axis=1, keepdims=True))
    return np.where(s > 0, D / np.where(s > 0, s, 1.0), 0.0)
