"""The estimated distribution of the return at any state: what it says, and how sure it is."""

from __future__ import annotations

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    as_number,
    check_choice,
    freeze,
    is_sparse,
)
from policyrisk._core.frames import Coordinates, states_of
from policyrisk._core.records import Saved, record
from policyrisk._core.text import Readable, TextTable, percent, plural
from policyrisk.data import Source
from policyrisk.errors import FewEpisodesWarning, InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import dimension, given_again, matrix_of
from policyrisk.returns.curves import Grid, Reading
from policyrisk.returns.distribution_scores import DistributionScore, score
from policyrisk.returns.start_distribution import (
    DistributionSummary,
    StartEstimate,
    as_share,
    within,
)
from policyrisk.risk.estimate import Estimate, as_level
from policyrisk.risk.support import Support

_ROOM = 1 << 23  # numbers that are looked at together
_FEW_BEYOND = (
    10  # returns beyond a quantile: with fewer its interval, and that of the worst, cover too little
)


class DistributionAtStates(Readable, Saved, ABC):
    """F̃(z|x) at states x, (n, dim), with all that follows from it; nan where the data say nothing."""

    discount: float
    unit: float  # of the rewards
    coordinates: Coordinates | None  # the names of the state's, where the data had names
    grid: Grid
    _kind: ClassVar[str] = "DistributionFunction"

    def _blocks(self) -> list[str | TextTable]:
        return [repr(self)]

    @property
    def thresholds(self) -> Floats:
        """The returns at which F̃ was estimated, (m,)."""
        return self.grid.theta * self.unit

    def cdf(self, x: npt.ArrayLike, z: float) -> Floats:
        """P(B ≤ z) from each state.

        Parameters
        ----------
        x
            States (n, dim).
        z
            A return.

        Returns
        -------
        (n,) array
            In [0, 1].
        """
        return self._read(x, "cdf", z=as_number(z, "z"))

    def quantile(self, x: npt.ArrayLike, q: float) -> Floats:
        """The smallest z with P(B ≤ z) ≥ q.

        Parameters
        ----------
        x
            States (n, dim).
        q
            In (0, 1).

        Returns
        -------
        (n,) array
            Returns.
        """
        return self._read(x, "quantile", as_share(q))

    def cvar(self, x: npt.ArrayLike, q: float) -> Floats:
        """The mean of the worst (smallest) q of the returns.

        Parameters
        ----------
        x
            States (n, dim).
        q
            In (0, 1).

        Returns
        -------
        (n,) array
            At most the quantile at q.
        """
        return self._read(x, "cvar", as_share(q))

    def probability(
        self, x: npt.ArrayLike, *, below: float | None = None, above: float | None = None
    ) -> Floats:
        """P(B < below) or P(B > above) from each state.

        Parameters
        ----------
        x
            States (n, dim).
        below, above
            One of the two: a return.

        Returns
        -------
        (n,) array
            In [0, 1].
        """
        if (below is None) == (above is None):
            raise InvalidInputError("probability needs below= or above=, got both or none; pass one of them")
        if above is not None:
            return 1.0 - self.cdf(x, above)
        return self.cdf(x, self.just_below(as_number(below, "below")))

    def mean(self, x: npt.ArrayLike) -> Floats:
        """E[B], the least-squares fit of the returns, whatever the thresholds.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            J̃(x).
        """
        return self._read(x, "mean")

    def variance(self, x: npt.ArrayLike) -> Floats:
        """E[B²] − E[B]².

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            Negative where it comes out so.
        """
        return self._read(x, "variance")

    def std(self, x: npt.ArrayLike) -> Floats:
        """The root of the variance.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            nan where the variance is negative.
        """
        return self._read(x, "std")

    def summary(
        self,
        starts: npt.ArrayLike,
        q: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        level: float = 0.95,
        *,
        below: Sequence[float] = (),
    ) -> DistributionSummary:
        """The return's distribution over starts, which are mixed: F is the average of theirs.

        The starts are taken as given: the intervals are of the estimate.

        Parameters
        ----------
        starts
            (n, dim), equally likely.
        q
            The quantiles, each with the mean of the worst q.
        level
            That of the intervals.
        below
            Lines that the return may end below.

        Returns
        -------
        DistributionSummary
            Each with its interval; ``print`` shows a table.
        """
        return self.over(starts).summary(q, level, below=below)

    def score(self, held_out: Source) -> DistributionScore:
        """How well this predicts episodes that were not fitted: CRPS, pinball loss and PIT.

        Every step of every episode counts; see :mod:`policyrisk.returns.distribution_scores`.

        Parameters
        ----------
        held_out
            Trajectories, or a stream of them, that were not fitted.

        Returns
        -------
        DistributionScore
            ``crps``, ``pinball`` by q, and the shares ``pit``; the smaller the first two the better.

        Examples
        --------
        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=10, p=0.7)
        >>> fitted, held_out = (chain.sample(0, episodes=1000, seed=seed) for seed in (1, 2))
        >>> table, line = pr.Tabular(10), pr.Polynomial(degree=1, low=[0], high=[9])
        >>> scores = [pr.ReturnDistribution(each).fit(fitted).score(held_out) for each in (table, line)]
        >>> scores[0].crps < scores[1].crps
        True
        """
        return score(self, held_out)

    @classmethod
    def load(cls, path: str | os.PathLike[str], features: Any = None) -> Self:
        """Read what :func:`DistributionFunction.save` wrote; a damaged or altered file is an error.

        Parameters
        ----------
        path
            The file.
        features
            Those of the estimate, where they are a function or a network
            (:meth:`policyrisk.RiskFunction.load`).

        Returns
        -------
        DistributionFunction
            The same estimates, bit for bit.
        """
        with given_again(features):
            return super().load(path)

    def just_below(self, line: float) -> float:
        """Where F is P(B < line): where returns are thresholds, one that is on the line does not count."""
        return line - 4 * self.grid.tol * self.unit if self.grid.steps else line

    def size_of(self, of: Reading) -> float:
        """What one of a reading's units is."""
        return {"cdf": 1.0, "variance": self.unit * self.unit}.get(of, self.unit)

    def interval(
        self,
        x: npt.ArrayLike,
        of: Reading | Literal["probability"] | None = None,
        *,
        q: float | None = None,
        z: float | None = None,
        below: float | None = None,
        above: float | None = None,
        level: float = 0.95,
    ) -> Floats:
        """An interval that is meant to hold the truth with probability ``level``.

        Parameters
        ----------
        x
            States (n, dim).
        of
            "mean", "variance", "std", "quantile" or "cvar" (with ``q``), "cdf" (with ``z``), or
            "probability" (with ``below`` or ``above``). Without it ``q`` asks for the quantile, ``z`` for the
            distribution function, and ``below`` or ``above`` for the probability.
        q
            The share, for "quantile" and "cvar".
        z
            The return, for "cdf".
        below, above
            The return, for "probability": of one below it, or above it.
        level
            As above.

        Returns
        -------
        (n, 2) array
            Low and high.

        Notes
        -----
        From :class:`ReturnDistribution`: the interval of the quantile goes from where F̃ is q less t standard
        errors to where it is as much more; the others are Hall's (:mod:`policyrisk.risk.estimate`). Of an
        event that was never seen the interval of its probability ends where n episodes without it would have
        a probability of 1 − level. From :func:`policyrisk.evaluate` it holds randomness and what the members
        of the mixture disagree about.

        Of a quantile and of the mean of the worst returns, a FewEpisodesWarning says where fewer than 10
        returns are expected beyond the quantile: these then cover less often than they say. (Nominal 95%
        intervals of the worst 5% of 50 normal returns, 2.5 of them, cover 78%.)

        Examples
        --------
        >>> import policyrisk as pr
        >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=2000, seed=1)
        >>> dist = pr.ReturnDistribution(pr.Tabular(10)).fit(data)
        >>> dist.interval([0], of="quantile", q=0.05).tolist()
        [[-45.0, -41.0]]
        >>> dist.interval([0], of="probability", below=-40).round(3)
        array([[0.053, 0.081]])
        """
        share, line, found = as_share_or_line(of, q, z, below, above)
        if found == "probability":
            line = self.just_below(line) if below is not None else line
        ends = self._interval(x, "cdf" if found == "probability" else found, share, line, as_level(level))
        return ends if above is None else 1.0 - ends[:, ::-1]

    @abstractmethod
    def _interval(self, x: npt.ArrayLike, of: Reading, q: float, z: float, level: float) -> Floats:
        """The interval of a reading; q and z count where it needs them."""

    @abstractmethod
    def over(self, starts: npt.ArrayLike) -> StartEstimate:
        """The return's distribution over starts (n, dim), equally likely: F is the average of theirs."""

    @abstractmethod
    def corrected(self, x: npt.ArrayLike) -> Floats:
        """By how much F̃ was changed to be monotone and in [0, 1], (n,)."""

    @property
    @abstractmethod
    def has_intervals(self) -> bool:
        """Whether there is what intervals come from."""

    @abstractmethod
    def readings(self, x: npt.ArrayLike) -> Iterator[tuple[Ints, Grid, Floats]]:
        """Those of the states (n, dim) that the data say something about, some at a time.

        Which they are, the thresholds, and the curves there, in units of the rewards.
        """

    def _states(self, x: npt.ArrayLike) -> Floats:
        """States (n, dim); one where x is as many numbers as they have coordinates."""
        return states_of(x, self.coordinates, dim=dimension(getattr(self, "features", None)))

    def _read(self, x: npt.ArrayLike, of: Reading, q: float = 0.5, z: float = 0.0) -> Floats:
        x = self._states(x)
        out = np.full(len(x), np.nan)
        for some, grid, curves in self.readings(x):
            out[some] = grid.read(curves, of, q, z / self.unit)
        return out * self.size_of(of)


@record(
    features="l", support="l", grid="m", weights="l m+3: finite", influences="l groups m+3", unit=": unit"
)
@dataclass(frozen=True, eq=False, repr=False)
class DistributionFunction(DistributionAtStates):
    """F̃(z|x) at states x, (n, dim), with all that follows from it; nan where the data say nothing.

    Examples
    --------
    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=2000, seed=1)
    >>> dist = pr.ReturnDistribution(pr.Tabular(10)).fit(data)
    >>> dist.quantile([0, 9], 0.5).tolist(), dist.probability([0], below=-40).round(2).tolist()
    ([-21.0, -1.0], [0.06])
    """

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
    unit: float = 1.0  # of the rewards: grid, weights and influences are in its powers, the answers are not

    def __post_init__(self) -> None:
        freeze(self)

    def visited(self, x: npt.ArrayLike) -> Bools:
        """Where the data say anything, (n,)."""
        return self.support.visited(self._phi(x))

    def corrected(self, x: npt.ArrayLike) -> Floats:
        """By how much F̃ was changed, at most, to be monotone and in [0, 1], (n,)."""
        x = self._states(x)
        out, m = np.full(len(x), np.nan), self.grid.theta.size
        for some, rows, curves in self.curves(x):
            out[some] = np.abs(curves - np.asarray(rows @ self.weights))[:, :m].max(axis=1)
        return out

    def _interval(self, x: npt.ArrayLike, of: Reading, q: float, z: float, level: float) -> Floats:
        influences = self._influences()
        x = self._states(x)
        out, episodes = np.full((len(x), 2), np.nan), np.zeros(len(x))
        for some, rows, curves in self.curves(x, influences[0].size):
            moves, behind = _moves(rows, influences), self.support.episodes_behind(rows)
            episodes[some] = behind
            out[some] = self.grid.intervals(curves, moves, behind, of, q, z / self.unit, level, self.episodes)
        if of in ("quantile", "cvar"):
            warn_of_few(episodes, q if of == "cvar" else min(q, 1.0 - q), q)
        return out * self.size_of(of)

    def over(self, starts: npt.ArrayLike) -> StartMixture:
        """The return's distribution over starts (n, dim), equally likely: F is the average of theirs."""
        starts = self._states(starts)
        known, curve, average = 0, np.zeros(self.weights.shape[1]), np.zeros(len(self.weights))
        for some, rows, curves in self.curves(starts):
            known += some.size
            curve += curves.sum(axis=0)
            average += np.asarray(rows.sum(axis=0)).ravel()
        if not known:
            raise InvalidInputError("starts must hold a state that was visited, got none; pass others")
        moves = None if self.influences is None else _moves(average[None] / known, self.influences)
        return StartMixture(self, curve[None] / known, moves, known, len(starts) - known)

    def curves(self, x: npt.ArrayLike, numbers: int = 0) -> Iterator[tuple[Ints, Any, Floats]]:
        """Those of the states (n, dim) that the data say something about, some at a time.

        Which they are, their features, and what is read there (known, m + 3), in units of the rewards as the
        grid is. A state takes ``numbers`` more than that, which are looked at together.
        """
        phi = self._phi(x)
        known = np.flatnonzero(self.support.visited(phi))
        step = max(_ROOM // max(self.weights.shape[1], numbers), 1)
        for first in range(0, known.size, step):
            some = known[first : first + step]
            rows = phi[some]
            yield some, rows, self.grid.monotone(np.asarray(rows @ self.weights))

    @property
    def has_intervals(self) -> bool:
        """Whether there are influences."""
        return self.influences is not None

    def readings(self, x: npt.ArrayLike) -> Iterator[tuple[Ints, Grid, Floats]]:
        """As the base says."""
        for some, _, curves in self.curves(x):
            yield some, self.grid, curves

    def __repr__(self) -> str:
        theta, data = self.thresholds, f"{plural(self.episodes, 'episode')}, "
        data += plural(self.transitions, "transition")
        return f"DistributionFunction({data}, {theta.size} thresholds, {theta[0]:g} to {theta[-1]:g})"

    def _phi(self, x: npt.ArrayLike) -> Any:
        return matrix_of(self.features, self._states(x))

    def _influences(self) -> npt.NDArray[np.float32]:
        if self.influences is None:
            raise InvalidInputError(
                "intervals need error bars, got a fit without them; fit again with error_bars=True"
            )
        return self.influences


@dataclass(frozen=True, eq=False)
class StartMixture(StartEstimate):
    """The distributions that were estimated at some starts, mixed."""

    function: DistributionFunction
    curve: Floats  # (1, m + 3)
    moves: Floats | None  # (1, groups, m + 3): by how much each group moves the curve
    starts: int
    unvisited: int

    def _estimate(self, of: Reading, level: float, q: float, z: float) -> Estimate:
        found = float(self.grid.read(self.curve, of, q, z)[0])
        if self.moves is None:
            return Estimate(found)
        episodes = self.function.support.episodes
        behind = np.full(1, float(episodes))
        given = self.curve, self.moves, behind, of, q, z, level, self.function.episodes
        return within(found, self.grid.intervals(*given)[0], min(episodes, self.moves.shape[1]), level)

    def coarseness(self, q: float) -> float:
        """By how much the q-quantile may be off, since F is drawn straight between thresholds.

        A third of what it changes by with every other threshold, as the error goes with their squared
        distance; inf where the quantile is at the end of the thresholds, 0 where all returns are thresholds.
        """
        grid, m = self.grid, self.grid.size
        F = self.curve[:, :m]
        if grid.steps:
            return 0.0
        if not F[0, 0] < q < F[0, -1]:
            return math.inf
        sparser = (np.unique(np.r_[0, np.arange(first, m, 2), m - 1]) for first in (0, 1))
        coarse = [replace(grid, theta=grid.theta[some]).quantile(F[:, some], q) for some in sparser]
        return float(np.abs(np.array(coarse) - grid.quantile(F, q)).max()) * self.function.unit / 3.0


def warn_of_few(episodes: Floats, share: float, q: float) -> None:
    """Warn where ``share`` of the episodes behind states, (n,), is only a few: those beyond the quantile."""
    beyond = episodes * share
    few = (beyond > 0) & (beyond < _FEW_BEYOND)
    if few.any():
        warnings.warn(
            f"fewer than {_FEW_BEYOND} returns are beyond the {percent(q)} quantile at {int(few.sum())} of "
            f"{few.size} states, {beyond[few].min():.2g} at the fewest, and the interval covers less often "
            "than it says; gather more episodes, use coarser features, or ask for a share nearer to the "
            "middle",
            FewEpisodesWarning,
            stacklevel=4,
        )


def _moves(rows: Any, influences: npt.NDArray[np.float32]) -> Floats:
    """By how much each group moves the curves at features (n, l), (n, groups, m + 3)."""
    if is_sparse(rows):  # most of the features are nowhere active
        used = np.unique(rows.indices)
        rows, influences = rows[:, used], influences[used]
    size, groups, k = influences.shape
    return np.asarray(rows @ influences.reshape(size, groups * k)).reshape(-1, groups, k)


def as_share_or_line(
    of: Reading | Literal["probability"] | None,
    q: float | None,
    z: float | None,
    below: float | None,
    above: float | None,
) -> tuple[float, float, Reading | Literal["probability"]]:
    """The share and the line of an interval, and what it is of: what follows from them, unless it is said.

    >>> as_share_or_line(None, 0.05, None, None, None), as_share_or_line(None, None, None, -9.0, None)
    ((0.05, 0.0, 'quantile'), (0.5, -9.0, 'probability'))
    """
    given = {"q": q, "z": z, "below": below, "above": above}
    names = [name for name, value in given.items() if value is not None]
    follows: dict[str, Any] = {"q": "quantile", "z": "cdf", "below": "probability", "above": "probability"}
    found = follows[names[0]] if of is None and len(names) == 1 else of
    if found is not None:
        check_choice(found, "of", (*get_args(Reading), "probability"))
    needs = {"quantile": "q", "cvar": "q", "cdf": "z", "probability": "below above"}.get(str(found), "")
    if found is None or len(names) != bool(needs) or not {*names} <= {*needs.split()}:
        told = ", ".join(f"{name}={given[name]!r}" for name in names) or "nothing"
        raise InvalidInputError(
            'interval needs q= for of="quantile" and "cvar", below= or above= for of="probability", z= for '
            f'of="cdf", and none of them for "mean", "variance" and "std", got {told} for of={of!r}; pass '
            "what it needs alone"
        )
    line = next((as_number(given[name], name) for name in names if name != "q"), 0.0)
    return (0.5 if q is None else as_share(q)), line, found
