"""The estimated distribution of the return at any state: what it says, and how sure it is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from policyrisk._core import records
from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    Matrix,
    as_list,
    as_number,
    check_choice,
    freeze,
    is_sparse,
)
from policyrisk._core.frames import Coordinates, states_of
from policyrisk._core.records import record
from policyrisk._core.text import Readable, TextTable, percent, plural
from policyrisk.distribution.curves import Grid
from policyrisk.distribution.scoring import DistributionScore, score
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.network import module_at_hand
from policyrisk.features.protocol import matrix_of
from policyrisk.risk.estimate import Estimate, as_level, skewed_interval, student_quantile
from policyrisk.risk.support import Support
from policyrisk.trajectories import Source

_ROOM = 1 << 23  # numbers that are looked at together
_SKEWED = 200  # groups of several episodes from which on they tell the skewness
Reading: TypeAlias = Literal["mean", "variance", "std", "cdf", "quantile", "cvar"]


@record
@dataclass(frozen=True, eq=False, repr=False)
class DistributionFunction:
    """F̃(z|x) at states x, (n, dim), with all that follows from it; nan where the data say nothing."""

    features: Features
    grid: Grid
    weights: Floats  # (l, m + 3)
    influences: npt.NDArray[np.float32] | None  # (l, groups, m + 3): how each group moves the weights
    support: Support
    discount: float
    episodes: int
    terminated: int
    transitions: int
    given_up: int  # transitions at the end of cut-off episodes, which led to states that nothing is known of
    passes: int  # over the data, to complete cut-off episodes
    skipped: tuple[str, ...] = ()  # shards that could not be read
    coordinates: Coordinates | None = None  # the names of the state's, where the data had names

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def thresholds(self) -> Floats:
        """The returns at which F̃ was estimated, (m,)."""
        return self.grid.theta

    def cdf(self, x: npt.ArrayLike, z: float) -> Floats:
        """P(B ≤ z) from each state, (n,)."""
        at = as_number(z, "z")
        return self._read(x, lambda curves: self.grid.cdf(curves, np.full(len(curves), at)))

    def quantile(self, x: npt.ArrayLike, q: float) -> Floats:
        """The smallest z with P(B ≤ z) ≥ q, (n,)."""
        level = _as_share(q)
        return self._read(x, lambda curves: self.grid.quantile(curves, level))

    def cvar(self, x: npt.ArrayLike, q: float) -> Floats:
        """The mean of the worst (smallest) q of the returns, (n,)."""
        level = _as_share(q)
        return self._read(x, lambda curves: self.grid.cvar(curves, level))

    def probability(
        self, x: npt.ArrayLike, *, below: float | None = None, above: float | None = None
    ) -> Floats:
        """P(B < below) or P(B > above) from each state, (n,)."""
        if (below is None) == (above is None):
            raise InvalidInputError("probability needs below= or above=, got both or none; pass one of them")
        if above is not None:
            return 1.0 - self.cdf(x, above)
        return self.cdf(x, self._just_below(as_number(below, "below")))

    def mean(self, x: npt.ArrayLike) -> Floats:
        """E[B], (n,): the least-squares fit of the returns, whatever the thresholds."""
        return self._read(x, lambda curves: curves[:, -2])

    def variance(self, x: npt.ArrayLike) -> Floats:
        """E[B²] − E[B]², (n,)."""
        return self._read(x, _variance)

    def std(self, x: npt.ArrayLike) -> Floats:
        """√variance, (n,); nan where that is negative."""
        return self._read(x, _std)

    def visited(self, x: npt.ArrayLike) -> Bools:
        """Where the data say anything, (n,)."""
        return self.support.visited(self._phi(x))

    def corrected(self, x: npt.ArrayLike) -> Floats:
        """By how much F̃ was changed, at most, to be monotone and in [0, 1], (n,)."""
        phi = self._phi(x)
        m = self.grid.theta.size
        raw = np.asarray(phi @ self.weights)
        change = np.abs(self.grid.monotone(raw) - raw)[:, :m].max(axis=1)
        return np.where(self.support.visited(phi), change, np.nan)

    def interval(
        self,
        x: npt.ArrayLike,
        of: Reading = "quantile",
        *,
        q: float | None = None,
        z: float | None = None,
        level: float = 0.95,
    ) -> Floats:
        """An interval that holds the truth with probability ``level``, (n, 2).

        That of the quantile goes from where F̃ is q less t standard errors to where it is as much more; the
        others are Hall's (:mod:`policyrisk.risk.estimate`). Of an event that was never seen the interval of
        its probability ends where n episodes without it would have a probability of 1 − level.
        """
        check_choice(of, "of", get_args(Reading))
        as_level(level)
        influences = self._influences()
        value, line = _asked(of, q, z)
        phi = self._phi(x)
        behind = self.support.episodes_behind(phi)
        out = np.full((phi.shape[0], 2), np.nan)
        step = max(_ROOM // influences[0].size, 1)
        for first in range(0, len(out), step):
            some = slice(first, first + step)
            rows: Any = phi[some]
            curves = self.grid.monotone(np.asarray(rows @ self.weights))
            out[some] = self._intervals(
                curves, _moves(rows, influences), behind[some], of, value, line, level
            )
        out[behind == 0] = np.nan
        return out

    def over(self, starts: npt.ArrayLike) -> StartMixture:
        """The return's distribution over starts (n, dim), equally likely: F is the average of theirs."""
        phi = self._phi(starts)
        known = np.flatnonzero(self.support.visited(phi))
        if not known.size:
            raise InvalidInputError("starts must hold a state that was visited, got none; pass others")
        rows: Any = phi[known]
        curve = self.grid.monotone(np.asarray(rows @ self.weights)).mean(axis=0)[None]
        average = np.asarray(rows.mean(axis=0)).reshape(1, -1)
        moves = None if self.influences is None else _moves(average, self.influences)
        return StartMixture(self, curve, moves, int(known.size), int(phi.shape[0] - known.size))

    def summary(
        self,
        starts: npt.ArrayLike,
        q: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        level: float = 0.95,
        *,
        below: Sequence[float] = (),
    ) -> DistributionSummary:
        """The return's distribution over starts (n, dim), which are mixed: F is the average of theirs.

        ``q`` are the quantiles, each with the mean of the worst q, and ``below`` the lines that the return
        may end below. The starts are taken as given: the intervals are of the estimate.
        """
        return self.over(starts).summary(q, level, below=below)

    def score(self, held_out: Source) -> DistributionScore:
        """How well this predicts episodes that were not fitted: CRPS, pinball loss and PIT.

        Every step of every episode counts; see :mod:`policyrisk.distribution.scoring`.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=10, p=0.7)
        >>> fitted, held_out = (chain.sample(0, episodes=1000, seed=seed) for seed in (1, 2))
        >>> table, line = pr.Tabular(10), pr.Polynomial(degree=1, low=[0], high=[9])
        >>> scores = [pr.ReturnDistribution(each).fit(fitted).score(held_out) for each in (table, line)]
        >>> scores[0].crps < scores[1].crps
        True
        """
        return score(self, held_out)

    def curves(self, x: npt.ArrayLike) -> tuple[Ints, Floats]:
        """Which of the states (n, dim) the data say anything about, and what is read there (known, m + 3)."""
        phi = self._phi(x)
        known = np.flatnonzero(self.support.visited(phi))
        rows: Any = phi[known]
        return known, self.grid.monotone(np.asarray(rows @ self.weights))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to an npz file with a version and a checksum."""
        records.save(path, "DistributionFunction", self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], module: Any = None) -> DistributionFunction:
        """Read what :func:`DistributionFunction.save` wrote; a damaged or altered file is an error.

        Files hold no code: :class:`~policyrisk.TorchFeatures` need their ``module`` again.
        """
        with module_at_hand(module):
            return records.load(path, "DistributionFunction", cls)

    def __repr__(self) -> str:
        theta, data = (
            self.grid.theta,
            (plural(self.episodes, "episode"), plural(self.transitions, "transition")),
        )
        return (
            f"DistributionFunction({', '.join(data)}, {theta.size} thresholds, {theta[0]:g} to {theta[-1]:g})"
        )

    def _phi(self, x: npt.ArrayLike) -> Matrix:
        return matrix_of(self.features, states_of(x, self.coordinates))

    def _read(self, x: npt.ArrayLike, what: Callable[[Floats], Floats]) -> Floats:
        phi = self._phi(x)
        out = np.full(phi.shape[0], np.nan)
        known = np.flatnonzero(self.support.visited(phi))
        step = max(_ROOM // self.weights.shape[1], 1)
        for first in range(0, known.size, step):
            some = known[first : first + step]
            rows: Any = phi[some]
            out[some] = what(self.grid.monotone(np.asarray(rows @ self.weights)))
        return out

    def _just_below(self, line: float) -> float:
        """Where F is P(B < line): where returns are thresholds, one that is on the line does not count."""
        return line - 4 * self.grid.tol if self.grid.steps else line

    def _value(self, curves: Floats, of: Reading, q: float, z: float) -> Floats:
        if of == "quantile":
            return self.grid.quantile(curves, q)
        if of == "cvar":
            return self.grid.cvar(curves, q)
        if of == "cdf":
            return self.grid.cdf(curves, np.full(len(curves), z))
        return {"mean": curves[:, -2], "variance": _variance(curves), "std": _std(curves)}[of]

    def _intervals(
        self, curves: Floats, moves: Floats, episodes: Floats, of: Reading, q: float, z: float, level: float
    ) -> Floats:
        """(n, 2) from curves (n, m + 3) and by how much each group moves them (n, groups, m + 3)."""
        n, groups, k = moves.shape
        behind = np.minimum(episodes, groups)
        scale = np.sqrt(groups / (groups - 1.0)) if groups > 1 else np.nan
        theta = self.grid.quantile(curves, q) if of in ("quantile", "cvar") else np.full(n, z)
        if of == "quantile":  # where F is 1, as at the largest return, it is that for sure; before it is not
            before = np.searchsorted(self.grid.theta, theta - self.grid.tol) - 1
            largest = (self.grid.cdf(curves, theta) >= 1.0) & (before >= 0)
            theta = np.where(largest, self.grid.theta[before], theta)
        each, at = moves.reshape(-1, k), np.repeat(theta, groups)
        J, V = curves[:, -2:-1], _variance(curves)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if of == "mean":
                change = moves[:, :, -2]
            elif of in ("variance", "std"):
                change = moves[:, :, -1] - 2 * J * moves[:, :, -2]
                change = change / (2 * np.sqrt(V)) if of == "std" else change
            elif of == "cvar":  # which does not move with the quantile: the worst q are worst with any other
                change = -self.grid.area(each, at, change=True).reshape(n, groups) / q
            else:
                change = self.grid.cdf(each, at, change=True).reshape(n, groups)
            error = scale * np.sqrt((change**2).sum(axis=1))
            if of == "cvar":  # the worst of one episode say nothing of how far they are off
                error[(error == 0.0) & (episodes * q <= 1.0) & (curves[:, 0] < 1.0)] = np.nan
            if of == "quantile":
                half = student_quantile(level, behind) * error
                return np.column_stack([self.grid.quantile(curves, q + sign * half) for sign in (-1.0, 1.0)])
            skewness, dof = _shape(change, error, behind, min(self.episodes, _SKEWED))
        value = self._value(curves, of, q, z)
        ends = skewed_interval(value, error, skewness, dof, level)
        if of != "cdf":
            return ends
        # Of n episodes that are all on one side of z: what of that has the probability 1 − level.
        unseen = 1.0 - (1.0 - level) ** (1.0 / np.maximum(episodes, 1.0))
        never, always = value == 0.0, value == 1.0
        ends[never, 1], ends[always, 0] = unseen[never], 1.0 - unseen[always]
        return np.clip(ends, 0.0, 1.0)

    def _influences(self) -> npt.NDArray[np.float32]:
        if self.influences is None:
            raise InvalidInputError(
                "intervals need error bars, got a fit without them; fit again with error_bars=True"
            )
        return self.influences


@dataclass(frozen=True, eq=False)
class StartMixture:
    """The distributions at some starts, mixed, to be summarised at any level."""

    function: DistributionFunction
    curve: Floats  # (1, m + 3)
    moves: Floats | None  # (1, groups, m + 3): by how much each group moves the curve
    starts: int  # that are averaged over
    unvisited: int  # that were left out

    def estimate(self, of: Reading, q: float = 0.5, z: float = 0.0, level: float = 0.95) -> Estimate:
        """What :meth:`DistributionFunction.interval` is of, over the starts."""
        found = float(self.function._value(self.curve, of, q, z)[0])
        if self.moves is None:
            return Estimate(found)
        episodes = self.function.support.episodes
        behind = np.full(1, float(episodes))
        low, high = self.function._intervals(self.curve, self.moves, behind, of, q, z, level)[0]
        dof = min(episodes, self.moves.shape[1]) - 1.0
        t = max(
            float(student_quantile(level, dof + 1.0)), np.finfo(np.float64).tiny
        )  # 0 at a level of 1e-300
        return Estimate(found, (high - low) / (2 * t), low, high, dof)

    def coarseness(self, q: float) -> float:
        """By how much the q-quantile may be off, since F is drawn straight between thresholds.

        A third of what it changes by with every other threshold, as the error goes with their squared
        distance; inf where the quantile is at the end of the thresholds, 0 where all returns are thresholds.
        """
        grid = self.function.grid
        m = grid.theta.size
        F = self.curve[:, :m]
        if grid.steps:
            return 0.0
        if not F[0, 0] < q < F[0, -1]:
            return math.inf
        found = grid.quantile(F, q)
        sparser = (np.unique(np.r_[0, np.arange(first, m, 2), m - 1]) for first in (0, 1))
        coarse = [replace(grid, theta=grid.theta[some]).quantile(F[:, some], q) for some in sparser]
        return float(np.abs(np.array(coarse) - found).max()) / 3.0

    def summary(
        self, q: Sequence[float], level: float = 0.95, *, below: Sequence[float] = ()
    ) -> DistributionSummary:
        """See :meth:`DistributionFunction.summary`."""
        levels = [_as_share(each) for each in as_list(q, "q", "shares such as [0.05]")]
        lines = [as_number(each, "below") for each in as_list(below, "below", "returns")]
        just_below = self.function._just_below
        return DistributionSummary(
            mean=self.estimate("mean", level=level),
            variance=self.estimate("variance", level=level),
            std=self.estimate("std", level=level),
            quantiles={each: self.estimate("quantile", q=each, level=level) for each in levels},
            cvar={each: self.estimate("cvar", q=each, level=level) for each in levels},
            below={line: self.estimate("cdf", z=just_below(line), level=level) for line in lines},
            starts=self.starts,
            unvisited=self.unvisited,
            level=level,
        )


@dataclass(frozen=True, eq=False)
class DistributionSummary(Readable):
    """The return's distribution over starts; each number knows its interval."""

    mean: Estimate
    variance: Estimate
    std: Estimate
    quantiles: dict[float, Estimate]
    cvar: dict[float, Estimate]
    below: dict[float, Estimate]  # P(B < line) by line
    starts: int  # that are averaged over
    unvisited: int  # that were left out
    level: float

    @property
    def known(self) -> bool:
        """Whether there are intervals."""
        return not math.isnan(self.mean.low)

    def _blocks(self) -> list[str | TextTable]:
        rows = [("mean", self.mean), ("std", self.std)]
        rows += [(f"quantile {percent(q)}", value) for q, value in self.quantiles.items()]
        rows += [(f"mean of worst {percent(q)}", value) for q, value in self.cvar.items() if q < 0.5]
        rows += [(f"P(return < {line:g})", value) for line, value in self.below.items()]
        head = f"return over {plural(self.starts, 'start')}"
        head += f"; {self.unvisited} left out, of which the data say nothing" if self.unvisited else ""
        columns = ["", "value", "±", f"{percent(self.level)} interval"]
        return [head, TextTable(columns, [[name, *value.cells] for name, value in rows])]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values; quantiles and lines are keys of text."""

        def each(values: dict[float, Estimate]) -> dict[str, dict[str, float]]:
            return {f"{at:g}": value.to_dict() for at, value in values.items()}

        return {
            **{name: getattr(self, name).to_dict() for name in ("mean", "variance", "std")},
            **{name: each(getattr(self, name)) for name in ("quantiles", "cvar", "below")},
            **{name: getattr(self, name) for name in ("starts", "unvisited", "level")},
        }


def _moves(rows: Any, influences: npt.NDArray[np.float32]) -> Floats:
    """By how much each group moves the curves at features (n, l), (n, groups, m + 3)."""
    if is_sparse(rows):  # most of the features are nowhere active
        used = np.unique(rows.indices)
        rows, influences = rows[:, used], influences[used]
    size, groups, k = influences.shape
    return np.asarray(rows @ influences.reshape(size, groups * k)).reshape(-1, groups, k)


def _shape(change: Floats, error: Floats, behind: Floats, fewest: int = 0) -> tuple[Floats, Floats]:
    """α and ν of :mod:`policyrisk.risk.estimate` of what each group contributes (n, groups), each (n,).

    Fewer groups than ``fewest`` say nothing of the skewness, as each holds many episodes.
    """
    groups = change.shape[1]
    third, fourth = (change**3).sum(axis=1), (change**4).sum(axis=1)
    known = (error > 0) & (groups >= fewest)
    skewness = np.where(known, third / error**3, 0.0)
    spread = fourth - error**4 / groups
    dof = np.where(spread > 0, 2 * error**4 / spread, np.inf)
    return skewness, np.clip(dof, 1.0, np.maximum(behind - 1.0, 1.0))


def _variance(curves: Floats) -> Floats:
    return curves[:, -1] - curves[:, -2] ** 2


def _std(curves: Floats) -> Floats:
    V = _variance(curves)
    return np.sqrt(np.where(V >= 0, V, np.nan))


def _as_share(q: Any) -> float:
    return as_number(q, "q", 0.0, 1.0, open_low=True, remedy="pass 0.05 for the worst 5 %")


def _asked(of: Reading, q: float | None, z: float | None) -> tuple[float, float]:
    """q and z, of which the reading needs one or none."""
    if (q is None) == (of in ("quantile", "cvar")) or (z is None) == (of == "cdf"):
        raise InvalidInputError(
            f'interval needs q= for of="quantile" and "cvar", and z= for of="cdf", got q={q!r} and z={z!r} '
            f"for of={of!r}; pass what it needs alone"
        )
    return (0.5 if q is None else _as_share(q)), (0.0 if z is None else as_number(z, "z"))
