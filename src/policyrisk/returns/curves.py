"""F̃ at some states as it is read: monotone, in [0, 1], between thresholds by steps or straight lines.

A *curve* is the m + 3 numbers of :mod:`.threshold_sums`: F̃(θ_1), …, F̃(θ_m), E[(θ_1 − B)⁺], E[B] and E[B²].
Below θ_1 F is 0, from θ_m on it is 1. Where all returns are thresholds, F rises at these alone; otherwise it
is drawn straight from one threshold to the next. Its area A(z) = ∫_{−∞}^z F = E[(z − B)⁺] gives the mean of
the worst q,

    θ_q − A(θ_q)/q,      θ_q the quantile.

Intervals of what is read are of two kinds. Of a least-squares fit they are the sandwich over groups of
episodes, each of which moves the curve (:meth:`Grid.intervals`). Of a mixture, and of the log as a chain,
they come from draws of F: an interval holds the middle share of what is read off the draws, and value ± t s,
s being their deviation from the value (:func:`interval_of_draws`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from policyrisk._core.arrays import Floats, Ints, freeze
from policyrisk._core.records import record
from policyrisk.risk.estimate import shape, skewed_interval, student_quantile

Reading: TypeAlias = Literal["mean", "variance", "std", "cdf", "quantile", "cvar"]
_SKEWED = 200  # groups of several episodes from which on they tell the skewness
ROUNDING = 1e-9  # of the thresholds' range: returns that are closer are the same
_REACHED = 1e-12  # F counts as having reached q when it is this close below it


@record(theta="m: rising")
@dataclass(frozen=True, eq=False)
class Grid:
    """Thresholds, and how F goes on between them; the methods take one row of thresholds a curve as well."""

    theta: Floats  # (m,), rising; or (n, m), those of each curve
    steps: bool  # whether the returns have no other values

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def size(self) -> int:
        """The number of thresholds."""
        return int(self.theta.shape[-1])

    @property
    def widths(self) -> Floats:
        """How far the thresholds are apart, (m − 1,) or (n, m − 1)."""
        return np.diff(self.theta, axis=-1)

    def at(self, i: Ints) -> Floats:
        """θ_i of curve i, (n,)."""
        return self.theta[i] if self.theta.ndim == 1 else picked(self.theta, i)

    @property
    def tol(self) -> float:
        """Values that are closer than this are the same."""
        return ROUNDING * float((self.theta[..., -1] - self.theta[..., 0]).max())

    def monotone(self, curves: Floats) -> Floats:
        """Curves (n, m + 3) with F̃ in increasing order and in [0, 1]: nearer to any truth than before."""
        m = self.size
        F = curves[:, :m]
        return np.hstack([monotone(F), np.maximum(curves[:, m : m + 1], 0.0), curves[:, m + 1 :]])

    def read(self, curves: Floats, of: Reading, q: float = 0.5, z: float = 0.0) -> Floats:
        """What a reading says of each curve, (n,): the moments are least-squares fits of their own."""
        if of == "quantile":
            return self.quantile(curves, q)
        if of == "cvar":
            return self.cvar(curves, q)
        if of == "cdf":
            return self.cdf(curves, np.full(len(curves), z))
        if of == "mean":
            return curves[:, -2]
        V = curves[:, -1] - curves[:, -2] ** 2
        return V if of == "variance" else np.sqrt(np.where(V >= 0, V, np.nan))

    def cdf(self, curves: Floats, z: Floats, *, change: bool = False) -> Floats:
        """F(z_i) of curve i, (n,); of changes of curves what they change of it."""
        i, inside = self._interval(z + self.tol * self.steps)
        F = picked(curves, i)
        if not self.steps:
            left = self.at(i)
            width = self.at(i + 1) - left
            F = F + (picked(curves, i + 1) - F) * (z - left) / np.where(width > 0, width, 1.0)
        return np.asarray(np.where(inside == 0, F, np.where(inside > 0, 0.0 if change else 1.0, 0.0)))

    def quantile(self, curves: Floats, q: float | Floats) -> Floats:
        """The smallest z with F(z) ≥ q of each curve, (n,); q is one for all, or (n,)."""
        m = self.size
        F = curves[:, :m]
        j = np.minimum((F < np.reshape(q, (-1, 1)) - _REACHED).sum(axis=1), m - 1)
        if self.steps or m == 1:
            return np.asarray(self.at(j))
        before = np.maximum(j - 1, 0)
        low, high = picked(F, before), picked(F, j)
        rise = np.where(high > low, high - low, 1.0)
        share = np.where(j > 0, np.clip((q - low) / rise, 0.0, 1.0), 1.0)
        left = self.at(before)
        return np.asarray(left + share * (self.at(j) - left))

    def area(self, curves: Floats, z: Floats, *, change: bool = False) -> Floats:
        """A(z_i) of curve i, (n,), for z_i from θ_1 to θ_m."""
        m = self.size
        F, widths = curves[:, :m], self.widths
        heights = F[:, :-1] if self.steps else 0.5 * (F[:, :-1] + F[:, 1:])
        areas = np.hstack([np.zeros((len(F), 1)), np.cumsum(heights * widths, axis=1)]) + curves[:, m : m + 1]
        i, _ = self._interval(z)
        left = picked(F, i)
        height = left if self.steps else 0.5 * (left + self.cdf(curves, z, change=change))
        return np.asarray(picked(areas, i) + height * (z - self.at(i)))

    def cvar(self, curves: Floats, q: float) -> Floats:
        """The mean of the worst q of each curve, (n,)."""
        theta = self.quantile(curves, q)
        return theta - self.area(curves, theta) / q

    def intervals(
        self,
        curves: Floats,
        moves: Floats,
        episodes: Floats,
        of: Reading,
        q: float,
        z: float,
        level: float,
        all_episodes: int,
    ) -> Floats:
        """Intervals (n, 2) of a reading, by how much each group of episodes moves curves, (n, groups, m + 3).

        ``episodes`` (n,) stand behind each curve, of ``all_episodes`` that are in the groups.
        """
        n, groups, k = moves.shape
        behind = np.minimum(episodes, groups)
        scale = np.sqrt(groups / (groups - 1.0)) if groups > 1 else np.nan
        theta = self.quantile(curves, q) if of in ("quantile", "cvar") else np.full(n, z)
        if of == "quantile":  # where F is 1, as at the largest return, it is that for sure; before it is not
            before = np.searchsorted(self.theta, theta - self.tol) - 1
            largest = (self.cdf(curves, theta) >= 1.0) & (before >= 0)
            theta = np.where(largest, self.theta[before], theta)
        each, at = moves.reshape(-1, k), np.repeat(theta, groups)
        J, V = curves[:, -2:-1], self.read(curves, "variance")[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if of == "mean":
                change = moves[:, :, -2]
            elif of in ("variance", "std"):
                change = moves[:, :, -1] - 2 * J * moves[:, :, -2]
                change = change / (2 * np.sqrt(V)) if of == "std" else change
            elif of == "cvar":  # which does not move with the quantile: the worst q are worst with any other
                change = -self.area(each, at, change=True).reshape(n, groups) / q
            else:
                change = self.cdf(each, at, change=True).reshape(n, groups)
            error = scale * np.sqrt((change**2).sum(axis=1))
            if of == "cvar":  # the worst of one episode say nothing of how far they are off
                error[(error == 0.0) & (episodes * q <= 1.0) & (curves[:, 0] < 1.0)] = np.nan
            if of == "quantile":
                half = student_quantile(level, behind) * error
                return np.column_stack([self.quantile(curves, q + sign * half) for sign in (-1.0, 1.0)])
            skewness, dof = shape(change, error, behind, min(all_episodes, _SKEWED))
        value = self.read(curves, of, q, z)
        ends = skewed_interval(value, error, skewness, dof, level)
        if of != "cdf":
            return ends
        # Of n episodes that are all on one side of z: what of that has the probability 1 − level.
        unseen = 1.0 - (1.0 - level) ** (1.0 / np.maximum(episodes, 1.0))
        never, always = value == 0.0, value == 1.0
        ends[never, 1], ends[always, 0] = unseen[never], 1.0 - unseen[always]
        return np.clip(ends, 0.0, 1.0)

    def _interval(self, z: Floats) -> tuple[Ints, Ints]:
        """i with θ_i ≤ z < θ_{i+1}, and −1, 0 or 1 for z below, between and above the thresholds."""
        m = self.size
        if self.theta.ndim == 1:
            i = np.searchsorted(self.theta, z, side="right") - 1
        else:
            i = (self.theta <= z[:, None]).sum(axis=1) - 1
        side = np.where(i < 0, -1, np.where(z >= self.theta[..., -1], 1, 0))
        return np.clip(i, 0, max(m - 2, 0) if not self.steps else m - 1), side


def picked(values: Floats, i: Ints) -> Floats:
    """values[k, i_k] of every row k, (n,)."""
    return np.take_along_axis(values, i[:, None], axis=1)[:, 0]


def monotone(F: Floats) -> Floats:
    """F (…, m) rising and in [0, 1]."""
    if not (F[..., 1:] >= F[..., :-1]).all():
        F = np.sort(F, axis=-1)
    clipped: Floats = np.clip(F, 0.0, 1.0)
    return clipped


def read_at(F: Floats, theta: Floats, z: Floats, *, steps: bool = False, end: float = 1.0) -> Floats:
    """F (…, m), known at θ (m,), at z (…, k): 0 below θ_1, ``end`` from θ_m on.

    >>> read_at(np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 2.0]), np.array([-1.0, 0.5, 1.5, 3.0]))
    array([0.  , 0.25, 0.75, 1.  ])
    """
    tol = ROUNDING * float(theta[-1] - theta[0]) if steps else 0.0
    i = np.clip(np.searchsorted(theta, z + tol, side="right") - 1, 0, max(len(theta) - 2, 0))
    rows = np.broadcast_shapes(F.shape[:-1], z.shape[:-1])
    F = np.broadcast_to(F, (*rows, F.shape[-1]))
    at = np.broadcast_to(i, (*rows, i.shape[-1]))
    found = np.take_along_axis(F, at, axis=-1)
    if not steps and len(theta) > 1:
        after = np.take_along_axis(F, at + 1, axis=-1)
        found = found + (after - found) * np.clip((z - theta[i]) / (theta[i + 1] - theta[i]), 0.0, 1.0)
    return np.asarray(np.where(z + tol < theta[0], 0.0, np.where(z + tol >= theta[-1], end, found)))


def interval_of_draws(value: Floats, draws: Floats, of: Reading, level: float, episodes: Floats) -> Floats:
    """The interval (n, 2) of values (n,) by their draws (n, B)."""
    half = student_quantile(level, episodes) * np.sqrt(np.square(draws - value[:, None]).mean(axis=1))
    low, high = np.quantile(draws, [(1.0 - level) / 2, (1.0 + level) / 2], axis=1)
    ends = np.column_stack([np.minimum(low, value - half), np.maximum(high, value + half)])
    if of != "cdf":
        return ends
    # Of n episodes that are all on one side of z: what of that has the probability 1 − level.
    unseen = 1.0 - (1.0 - level) ** (1.0 / np.maximum(episodes, 1.0))
    never, always = value <= ROUNDING, value >= 1.0 - ROUNDING
    ends[never, 1] = np.maximum(ends[never, 1], unseen[never])
    ends[always, 0] = np.minimum(ends[always, 0], 1.0 - unseen[always])
    return np.asarray(np.clip(ends, 0.0, 1.0))
