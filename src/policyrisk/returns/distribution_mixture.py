"""A mixture of estimates of the return's distribution at any state, with intervals from draws.

A member's F_i(·|x) is linear in the features, φ(x)ᵀ W at its thresholds, either of the return B or of the
standardised residual U = (B − J(x))/σ(x), J and σ being the evaluation's own. A member without features says
the same at all states: of U that is location and scale. With shares a_i

    F(z|x) = Σ_i a_i F_i(z|x)

Draw b moves every member by Σ_g ξ_gb ψ_i,g, ψ_i,g being what group g of episodes moves W by, and U's members
by the draw's J and σ as well; and it takes one member, the same at every state, at twice its distance:

    F_b = F + 2 (F_i − F) + Σ_j a_j (F_j,b − F_j)

made monotone and put into [0, 1] when it is read. Everything about the tail is read off these draws. An
interval holds the middle share of the draws, and value ± t s, s being the draws' deviation from the value:
few draws take a member of a small share, and s has them all. Mean, variance and std are those of the
evaluation, and so are their intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, freeze
from policyrisk._core.frames import Coordinates
from policyrisk._core.records import record
from policyrisk._core.text import percent, plural
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.returns.curves import Grid, Reading, interval_of_draws, monotone, read_at
from policyrisk.returns.distribution_function import DistributionAtStates, warn_of_few
from policyrisk.returns.start_distribution import StartEstimate, within
from policyrisk.risk import RiskFunction
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.scoring import EpisodeSteps
from policyrisk.risk.state_estimates import TWICE, StateEstimates, member_picks

_ROOM = 1 << 22  # numbers that are looked at together
_STARTS, _DRAWN_STARTS = 2000, 100  # at most, that F over starts is averaged over, and its draws
_START_THRESHOLDS, _COMPLETED_THRESHOLDS = 150, 300
_PARTS = np.linspace(0.05, 0.95, 10)  # quantiles of what cut-off episodes may still earn, for thresholds
_LEAST_WEIGHT = 1e-100  # of what a discount leaves after a cut
_STEP = 4e-9  # of the range: how sharply F rises at a return that is a threshold
_LINE = 1e-9


@record(weights="l m: finite", moves="l groups m")
@dataclass(frozen=True, eq=False)
class DistributionMember:
    """One of the estimates."""

    name: str
    share: float
    features: Features | None  # None: the same at all states
    weights: Floats  # (l, m)
    moves: npt.NDArray[np.float32]  # (l, groups, m): by how much each group of episodes moves the weights
    residual: bool  # whether it is of U

    def __post_init__(self) -> None:
        freeze(self)

    def phi(self, x: npt.NDArray[Any]) -> Any:
        """Its features at states, (n, l)."""
        return np.ones((len(x), 1)) if self.features is None else matrix_of(self.features, x)

    def drawn(self, phi: Any, xi: Floats) -> Floats:
        """By how much draws with multipliers (groups, B) move F at its thresholds, (n, B, m)."""
        size, groups, m = self.moves.shape
        moved = np.asarray(phi @ self.moves.reshape(size, groups * m)).reshape(-1, groups, m)
        found: Floats = np.matmul(xi.T, moved)
        return found


@record(members="k", residuals="u: rising", unit=": unit")
@dataclass(frozen=True, eq=False)
class DistributionMixture(DistributionAtStates):
    """What :func:`policyrisk.evaluate` says of the return's distribution: ``Evaluation.distribution``.

    Examples
    --------
    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=30, p=0.7)
    >>> result = pr.evaluate(chain.sample(start=0, episodes=300, seed=1), quantiles=[0.05], seed=0)
    >>> low, high = result.distribution.interval([[10]], q=0.05)[0]
    >>> bool(low <= chain.quantile(0.05)[10] <= high)
    True
    """

    evaluated: RiskFunction | None  # J and V; None in an evaluation's folder, which has them already
    members: tuple[DistributionMember, ...]
    grid: Grid  # of the returns
    residuals: Floats  # (u,): thresholds of U
    least_variance: float  # that σ is taken from
    episodes: int  # of the sample that members were fitted to; its clusters where they come in clusters
    discount: float
    unit: float
    coordinates: Coordinates | None = None

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def risk(self) -> RiskFunction:
        """J and V, with their draws."""
        if self.evaluated is None:
            raise InvalidInputError(
                "a distribution from an evaluation's folder needs the folder's other files, got it alone; "
                "load the folder by pr.Evaluation.load"
            )
        return self.evaluated

    @property
    def has_intervals(self) -> bool:
        """Whether there are draws."""
        bars = self.risk.error_bars
        return bars is not None and bars.key is not None

    def just_below(self, line: float) -> float:
        """Where F is P(B < line): where returns are thresholds, one that is on the line does not count."""
        return line - 2 * _STEP * self.unit * self._extent if self.grid.steps else line

    def mean(self, x: npt.ArrayLike) -> Floats:
        """J̃(x), as ``risk.mean``."""
        return self.risk.mean(x)

    def variance(self, x: npt.ArrayLike) -> Floats:
        """Ṽ(x), as ``risk.variance``."""
        return self.risk.variance(x)

    def std(self, x: npt.ArrayLike) -> Floats:
        """√Ṽ(x), as ``risk.std``."""
        return self.risk.std(x)

    def visited(self, x: npt.ArrayLike) -> Bools:
        """Where the data say anything, (n,)."""
        return self.risk.visited(x)

    def corrected(self, x: npt.ArrayLike) -> Floats:
        """By how much F̃ was changed to be monotone and in [0, 1], (n,): the members' averages by share."""
        x = self._states(x)
        total = np.zeros(len(x))
        for member in self.members:
            F = np.asarray(member.phi(x) @ member.weights)
            total += member.share * np.abs(monotone(F) - F).max(axis=1)
        return np.where(self.visited(x), total, np.nan)

    def _interval(self, x: npt.ArrayLike, of: Reading, q: float, z: float, level: float) -> Floats:
        if of in ("mean", "variance", "std"):
            return self.risk.interval(x, of=of, level=level)
        x = self._states(x)
        out = np.full((len(x), 2), np.nan)
        for some, at, grid, F, drawn in self._drawn(x):
            behind = self.risk.bars.behind(at.episodes)
            out[some] = ends_of(grid, F, drawn, of, q, z / self.unit, level, behind)
        if of in ("quantile", "cvar"):
            behind = np.full(len(x), float(self.episodes))
            warn_of_few(behind, q if of == "cvar" else min(q, 1.0 - q), q)
        return out * self.size_of(of)

    def over(self, starts: npt.ArrayLike) -> StartDraws:
        """The return's distribution over starts (n, dim), equally likely: F is the average of theirs.

        Of many starts some are taken, evenly.
        """
        x = self._states(starts)
        x = x[:: -(-len(x) // _STARTS) or 1]
        known = self.visited(x)
        if not known.any():
            raise InvalidInputError("starts must hold a state that was visited, got none; pass others")
        x, left_out = x[known], int(np.count_nonzero(~known))
        z = self._levels
        if self._moving:
            shown = np.concatenate([self._places(at).ravel() for _, _, at in self._parts(x, 1)])
            z = np.unique(np.quantile(shown, np.linspace(0.0, 1.0, _START_THRESHOLDS)))
        F, drawn = self._at(x, np.broadcast_to(z, (len(x), z.size))).mean(axis=0), None
        if self.has_intervals:
            few = x[:: -(-len(x) // _DRAWN_STARTS)]
            change = self._change_at(few, np.broadcast_to(z, (len(few), z.size)))
            drawn = monotone(F + change / len(few))
        return StartDraws(self, Grid(z, steps=False), F[None], drawn, len(x), left_out)

    def completing(self, data: Trajectories) -> StartDraws:
        """The distribution over the starts of some episodes, in units, by their own returns.

        F is the average of 1{R ≤ z} over those that terminated and of F((z − R)/γⁿ | x_T) over those that
        were cut off in x_T; of many of these some are drawn.
        """
        steps, first = EpisodeSteps.of(data, self.discount), data.offsets[:-1]
        known = np.append(self.visited(steps.cuts), True)[steps.cut[first]]
        kept = (steps.rewards, steps.cut, np.maximum(steps.weight, _LEAST_WEIGHT), steps.block)
        R, cut, weight, block = (each[first][known] for each in kept)
        ends = np.flatnonzero(cut >= 0)
        x, R_cut, w = steps.cuts[cut[ends]], R[ends, None], weight[ends, None]
        rest = np.concatenate(
            [
                np.column_stack([grid.read(curves, "quantile", p, 0.0) for p in _PARTS])
                for _, grid, curves in self.readings(x)
            ]
        )
        shown = np.concatenate([np.repeat(np.delete(R, ends), len(_PARTS)), (R_cut + w * rest).ravel()])
        z = np.unique(np.quantile(shown, np.linspace(0.0, 1.0, _COMPLETED_THRESHOLDS)))
        F, left = (R[:, None] <= z + _LINE * np.abs(z).max()).astype(np.float64), (z - R_cut) / w
        F[ends] = self._at(x, left)
        mean, drawn = F.mean(axis=0), None
        if self.has_intervals:
            few, groups = np.arange(0, ends.size, -(-ends.size // _DRAWN_STARTS)), self._groups
            sums = np.zeros((groups, z.size))
            np.add.at(sums, block % groups, F - mean)
            total = self.risk.bars.multipliers(np.arange(groups)).T @ sums
            total += self._change_at(x[few], left[few]) * (ends.size / few.size)
            drawn = monotone(mean + total / len(R))
        return StartDraws(self, Grid(z, steps=False), mean[None], drawn, len(R), int(np.sum(~known)))

    def _at(self, x: npt.NDArray[Any], z: Floats) -> Floats:
        """F from states that the data know (n, dim), each at returns of its own (n, k)."""
        out = np.empty(z.shape)
        for some, grid, curves in self.readings(x):
            said = zip(curves[:, :-3], grid.theta, z[some], strict=True)
            out[some] = [read_at(*each) for each in said]
        return out

    def _change_at(self, x: npt.NDArray[Any], z: Floats) -> Floats:
        """What draws change of the sum of all these F, (B, k)."""
        total = np.zeros((self.risk.bars.draws, z.shape[1]))
        for some, _, grid, own, draws in self._drawn(x):
            for theta, base, each, at in zip(grid.theta, own, draws, z[some], strict=True):
                total += read_at(each - base, theta, at, end=0.0)
        return total

    def readings(self, x: npt.ArrayLike) -> Iterator[tuple[Ints, Grid, Floats]]:
        """As the base says."""
        for some, states, at in self._parts(x, 1):
            z = self._places(at)
            F = sum(member.share * F_i for member, F_i in self._said(states, at, z))
            yield some, Grid(z, steps=False), _curves(np.asarray(F))

    def __repr__(self) -> str:
        members = ", ".join(f"{each.name} {percent(each.share)}" for each in self.members)
        return f"DistributionMixture({plural(self.episodes, 'episode')}: {members})"

    @cached_property
    def _levels(self) -> Floats:
        """The thresholds of returns, each of which F rises at twice where returns have no other values."""
        theta = self.grid.theta
        if not self.grid.steps:
            return theta
        return np.sort(np.concatenate([theta, theta - _STEP * self._extent]))

    @property
    def _groups(self) -> int:
        """Of episodes, by which the draws move members."""
        return int(self.members[0].moves.shape[1])

    @property
    def _moving(self) -> bool:
        """Whether F is read between its thresholds at each state's own J + σ u as well."""
        return not self.grid.steps and any(member.residual for member in self.members)

    @property
    def _extent(self) -> float:
        """How far the thresholds are apart, or 1 where there is one."""
        return float(self.grid.theta[-1] - self.grid.theta[0]) or 1.0

    def _parts(
        self, x: npt.ArrayLike, numbers: int
    ) -> Iterator[tuple[Ints, npt.NDArray[Any], StateEstimates]]:
        """The visited states, some at a time: which they are, themselves, and J and V there."""
        x = self._states(x)
        rows = max(_ROOM // (numbers * (self._levels.size + self.residuals.size)), 1)
        for first in range(0, len(x), rows):
            for at in self.risk.parts(x[first : first + rows]):
                known = at.episodes > 0
                some = first + np.flatnonzero(known)
                first += len(known)
                if some.size:
                    yield some, x[some], at if known.all() else at.some(known)

    def _places(self, at: StateEstimates) -> Floats:
        """Where F is read at each state, rising, (n, k)."""
        levels = np.broadcast_to(self._levels, (len(at.J), self._levels.size))
        if not self._moving:
            return levels
        return np.sort(
            np.hstack([levels, at.J[:, None] + self._sigma(at.V)[:, None] * self.residuals]), axis=1
        )

    def _sigma(self, V: Floats) -> Floats:
        return np.sqrt(np.maximum(V, self.least_variance))

    def _said(
        self, x: npt.NDArray[Any], at: StateEstimates, z: Floats
    ) -> Iterator[tuple[DistributionMember, Floats]]:
        """Each member and its F at z (n, k), (n, k)."""
        for member in self.members:
            F = monotone(np.asarray(member.phi(x) @ member.weights))
            if member.residual:
                F = read_residual(F, self.residuals, at.J, self._sigma(at.V), z, self.grid)
            else:
                F = read_at(F, self.grid.theta, z, steps=self.grid.steps)
            yield member, F

    def _drawn(self, x: npt.ArrayLike) -> Iterator[tuple[Ints, StateEstimates, Grid, Floats, Floats]]:
        """States some at a time, J and V there, thresholds, F (n, k) and its draws (n, B, k)."""
        bars = self.risk.bars
        if not self.has_intervals:
            raise InvalidInputError(
                "intervals need draws of the mean and the variance, got error bars without; evaluate with "
                "the default features"
            )
        xi = bars.multipliers(np.arange(self._groups))
        shares = np.array([member.share for member in self.members])
        picks = member_picks(shares, bars.draws, 2)
        for some, states, at in self._parts(x, bars.draws):
            z = self._places(at)
            said = [F for _, F in self._said(states, at, z)]
            F = np.tensordot(shares, np.stack(said), axes=1)
            drawn = F[:, None] + TWICE * np.stack([each - F for each in said], axis=1)[:, picks]
            J, V = at.drawn(bars)
            for member, own in zip(self.members, said, strict=True):
                phi = member.phi(states)
                moved = member.drawn(phi, xi)
                if member.residual:
                    F_b = monotone(np.asarray(phi @ member.weights)[:, None] + moved)
                    F_b = read_residual(F_b, self.residuals, J, self._sigma(V), z[:, None], self.grid)
                    drawn += member.share * (F_b - own[:, None])
                else:
                    change = read_at(moved, self.grid.theta, z[:, None], steps=self.grid.steps, end=0.0)
                    drawn += member.share * change
            yield some, at, Grid(z, steps=False), F, monotone(drawn)


def read_residual(F: Floats, u: Floats, J: Floats, sigma: Floats, z: Floats, grid: Grid) -> Floats:
    """P(J + σU ≤ z) at z (…, k), for F of U (…, m) known at u (m,), and J and σ (…).

    Where the thresholds are all returns that there are, U belongs to the nearest of them.

    >>> F, one, few = np.array([[0.0, 0.5, 1.0]]), np.ones(1), Grid(np.array([0.0, 1.0, 2.0]), steps=True)
    >>> z = np.array([[0.0, 0.9, 1.0, 2.0]])
    >>> read_residual(F, np.array([-1.0, 0.0, 1.0]), one, one, z, few)
    array([[0.25, 0.25, 0.75, 1.  ]])
    """
    if not grid.steps:
        return read_at(F, u, (z - J[..., None]) / sigma[..., None])
    ends = np.append((grid.theta[1:] + grid.theta[:-1]) / 2, np.inf)
    at_returns = read_at(F, u, (ends - J[..., None]) / sigma[..., None])
    return read_at(at_returns, grid.theta, z, steps=True)


def ends_of(
    grid: Grid, F: Floats, drawn: Floats, of: Reading, q: float, z: float, level: float, episodes: Floats
) -> Floats:
    """The interval (n, 2) of a reading of F (n, k), by draws (n, B, k); ``episodes`` (n,) stand behind."""
    n, B, k = drawn.shape
    value = grid.read(_curves(F), of, q, z)
    many = Grid(np.repeat(np.broadcast_to(grid.theta, (n, k)), B, axis=0), steps=False)
    draws = many.read(_curves(drawn.reshape(n * B, k)), of, q, z).reshape(n, B)
    return interval_of_draws(value, draws, of, level, episodes)


def _curves(F: Floats) -> Floats:
    """F (n, k) as the curves that a grid reads, whose last three numbers are those of no return below θ_1.

    Mean and variance are those of F.
    """
    return np.hstack([F, np.zeros((len(F), 3))])


@dataclass(frozen=True, eq=False)
class StartDraws(StartEstimate):
    """A mixture's F over starts, and its draws."""

    function: DistributionMixture
    places: Grid
    curve: Floats  # (1, k): F there
    drawn: Floats | None  # (B, k)
    starts: int
    unvisited: int

    @property
    def grid(self) -> Grid:
        """Where F is known."""
        return self.places

    def _estimate(self, of: Reading, level: float, q: float, z: float) -> Estimate:
        episodes, theta = float(self.function.episodes), self.grid.theta
        if of in ("mean", "variance", "std"):
            moment = float(_moment(theta, self.curve, of)[0])
            if self.drawn is None:
                return Estimate(moment)
            error = float(np.sqrt(np.square(_moment(theta, self.drawn, of) - moment).mean()))
            return Estimate.of(moment, error, episodes, level)
        found = float(self.grid.read(_curves(self.curve), of, q, z)[0])
        if self.drawn is None:
            return Estimate(found)
        given = self.grid, self.curve, self.drawn[None], of, q, z, level, np.full(1, episodes)
        return within(found, ends_of(*given)[0], episodes, level)


def _moment(theta: Floats, F: Floats, of: Reading) -> Floats:
    """The mean, the variance or the std of F (n, k), (n,)."""
    middle = 0.5 * (theta[1:] + theta[:-1])
    mass = np.diff(F, axis=1)
    mean: Floats = F[:, 0] * theta[0] + mass @ middle
    if of == "mean":
        return mean
    V: Floats = F[:, 0] * theta[0] ** 2 + mass @ (middle**2 + np.diff(theta) ** 2 / 12.0) - mean**2
    return V if of == "variance" else np.sqrt(np.maximum(V, 0.0))
