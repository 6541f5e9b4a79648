"""The return's distribution under any policy, from a log as a chain: the tails of a policy that never ran.

The states are put into cells by features that are a partition (a table, one tiling); the chain of
:mod:`policyrisk.markov.log` then has F from every cell (:mod:`policyrisk.markov.curves`). Nothing but the
branches and their counts is kept, by groups of episodes: draw b gives group g the weight ω_gb = 1 + ξ_gb of
:mod:`policyrisk.risk.draws`, the branches are weighed anew, and the chain is solved again. What is asked is
read off every draw.

An action that was logged three times in a cell, without an end, is not certain never to lead to one, which
weights cannot say: each draw adds one transition of random weight to each action, one of those logged in its
cell by any action (the Bayesian bootstrap with one prior observation). What that changes on average is taken
off. The mean of the draws then shows how far the estimate itself is off, since it is not linear in the
branches' probabilities, and intervals are corrected by that.

Of N transitions of one action in a cell, draws see what they differ by among themselves, on average
σ²(N − 1)/N, and nothing where N = 1. So deviations of the draws are widened until that of the mean over the
starts is what the delta method says: with f = ρ + γJ(y), q the expected visits (both of the chain with one
more transition of each action) and u the probability of taking action a in cell c,

    variance = Σ_{c,a} (q_c u_{ca} / N_{ca})² (Σ_j (f_j − f̄_{ca})² + σ²_c)  +  Var J(x_0) / episodes

where σ²_c, the variance of f within the actions of the cell (of all cells, where each was logged once), makes
each bracket N_{ca} σ² on average.

On 200 fresh logs of ICU-Sepsis nominal 95% intervals covered 94 to 97%
(``benchmarks/off_policy.py coverage 200 6000``).

Where F is rounded to a grid, draws are solved on a coarser one, of which only what they change is taken.
Where the cells were chosen, readings of draws lie as much farther from the estimate as the choice may be off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Ints, is_sparse
from policyrisk._core.frames import Coordinates
from policyrisk._core.progress import ProgressBar
from policyrisk._core.records import Additive, record
from policyrisk._core.text import plural
from policyrisk.data import Source, batches
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.features.target import Target
from policyrisk.markov import MarkovChain
from policyrisk.markov.branches import Branches, together
from policyrisk.markov.curves import GridCurves, LatticeCurves
from policyrisk.markov.log import LogBranches, Logged, Prior
from policyrisk.passes import Reduce, reduce_in_units
from policyrisk.returns.curves import Grid, Reading, interval_of_draws, read_at
from policyrisk.returns.distribution_function import DistributionAtStates, warn_of_few
from policyrisk.returns.start_distribution import StartDistribution, StartEstimate, within
from policyrisk.returns.threshold_sums import groups_of
from policyrisk.risk.draws import multipliers
from policyrisk.risk.estimate import Estimate

GROUPS = 1000  # of episodes, whose weights are drawn
DRAWS = 200
_THRESHOLDS, _FINE = 400, 1000  # at most: of a lattice's points, of a grid's
_COARSE, _FEWEST = 150, 60  # of the grid that draws are solved on
_WORK = 1e9  # products of a sweep in all draws, about
_ROOM = 1 << 26  # numbers that the draws may take
_FOUND, _MOVED = 1e-7, 1e-4  # how far F, and its draws, may be from the solution


@record(unit=": unit")
@dataclass(frozen=True, eq=False, repr=False)
class ChainTails(DistributionAtStates):
    """The distribution of a target's return at states: ``Evaluation.distribution`` with ``target=``.

    Examples
    --------
    Two patients, treated and not, each a thousand times; a policy that treats one in four:

    >>> import policyrisk as pr
    >>> states, rewards = [[0], [1]] * 2000, [10.0, 2.0] * 1000
    >>> data = pr.Trajectories(states, rewards, [1] * 2000, [True] * 2000, actions=[1, 0] * 1000)
    >>> result = pr.evaluate(data, target=[[0.75, 0.25]], quantiles=[0.05, 0.95])
    >>> result.distribution.quantile([0], 0.95), result.distribution.probability([0], below=5.0)
    (array([10.]), array([0.75]))
    """

    features: Features
    log: Logged
    starts: Logged  # the cells that episodes begin in, in the same form
    actions: int
    episodes: int
    discount: float
    unit: float
    key: tuple[int, int] | None  # of the draws; None where there are none
    bias: float = 0.0  # by which the mean may be off for the choice of the cells
    coordinates: Coordinates | None = None

    @classmethod
    def fit_by(
        cls,
        reduce: Reduce,
        features: Features,
        target: Target,
        discount: float,
        unit: float,
        bias: float = 0.0,
    ) -> ChainTails:
        """The distribution of a target's return, in one pass; an error where the log leads to no end."""
        found: LogSums = reduce_in_units(reduce, unit)(LogPass(features, target))
        given = found.log.merged(), found.starts.merged(), target.actions, found.episodes
        tails = cls(features, *given, discount, unit, (0, 0), bias)
        _ = tails.chain  # an error where there is none
        return tails

    @cached_property
    def _log(self) -> LogBranches:
        return LogBranches.of(self.log, int(self.features.size), self.actions, self.discount)

    @cached_property
    def chain(self) -> MarkovChain:
        """The log as a chain, whose branches are all different; rewards are in units."""
        chain = MarkovChain.from_branches(together(self._log.branches())[0], self.discount)
        chain.known, chain.log = self._log.known, self._log.counts
        return chain

    @cached_property
    def _curves(self) -> LatticeCurves | GridCurves:
        n = max(self.chain.n, 1)
        most = int(np.clip(_ROOM // (DRAWS * n), _FEWEST, _THRESHOLDS))
        return LatticeCurves.of(self.chain, most, DRAWS + 1) or GridCurves.of(self.chain, _FINE)

    @cached_property
    def grid(self) -> Grid:  # type: ignore[override]
        """The thresholds, in units."""
        return Grid(self._curves.theta, steps=self._curves.every)

    @cached_property
    def _found(self) -> Floats:
        """What is read at every cell, (n, m + 3)."""
        chain, how = self.chain, self._curves
        J, V = chain._mean, chain._variance
        if isinstance(how, LatticeCurves):
            F = how.solve(chain.branches)
        else:
            F = how.solve(chain.branches, how.normal(J, V), _FOUND)
        # E[(θ_1 − B)⁺] = θ_1 − J + E[(B − θ_1)⁺]
        beyond = self.grid.theta[0] - J + _areas(self.grid, 1.0 - F)
        F = np.maximum.accumulate(F, axis=1)
        return np.column_stack([F, np.maximum(beyond, 0.0) if self.grid.steps else 0.0 * J, J, V + J * J])

    @cached_property
    def _draws(self) -> tuple[Grid, npt.NDArray[np.float32]]:
        """What the draws change of F, (n, B, m), and the thresholds of that."""
        log, chain, how = self._log, self.chain, self._curves
        if self.key is None:
            raise InvalidInputError(
                'intervals need draws, which were withdrawn, since the log cannot tell (trust "none"); '
                "see the advice"
            )
        width = 0.0
        if isinstance(how, GridCurves):
            room = min(_WORK / (DRAWS * chain.branches.reward.size), _ROOM / (DRAWS * chain.n))
            how = GridCurves.of(chain, int(np.clip(room, _FEWEST, _COARSE)))
            width = 0.0 if how.every else how.h
        branches, place = together(log.branches(), width)
        xi, chance = multipliers(self.key, np.arange(GROUPS), DRAWS), np.random.default_rng(self.key)
        theta = how.theta
        found = np.empty((chain.n, DRAWS, theta.size), dtype=np.float32)
        base = self._solved(how, branches, None)

        def solved(omega: Floats | None, prior: Prior) -> Floats:
            weighed = np.bincount(place, log.weighed(omega, prior)).astype(np.float64, copy=False)
            return self._solved(how, replace(branches, probability=weighed), base)

        with ProgressBar("draws", DRAWS) as bar:
            centre = solved(None, "mean")
            for b in range(DRAWS):
                found[:, b] = solved(1.0 + xi[:, b], chance) - centre
                bar.advance()
        return Grid(theta, steps=how.every), found

    def _solved(self, how: LatticeCurves | GridCurves, branches: Branches, base: Floats | None) -> Floats:
        """F of some branches; from another F (n, m) on, put to their mean and variance."""
        if isinstance(how, LatticeCurves):
            return how.solve(branches)
        chain = MarkovChain.from_branches(branches, self.discount)
        J, V = chain._mean, chain._variance
        guess, tolerance = how.normal(J, V), _FOUND
        if base is not None:
            own, tolerance = self.chain, _MOVED
            scale = np.sqrt(own._variance / np.maximum(V, 1e-300))
            at = own._mean[:, None] + (how.theta - J[:, None]) * np.where(V > 0, scale, 1.0)[:, None]
            guess = np.stack([read_at(F, how.theta, z) for F, z in zip(base, at, strict=True)])
        return how.solve(branches, guess, tolerance)

    @property
    def has_intervals(self) -> bool:
        """Whether there are draws."""
        return self.key is not None

    def without_intervals(self) -> ChainTails:
        """The same without draws."""
        return replace(self, key=None)

    def visited(self, x: npt.ArrayLike) -> Bools:
        """Where the log has an answer, (n,)."""
        return np.asarray(self.chain.known[self._cells(x)])

    def corrected(self, x: npt.ArrayLike) -> Floats:
        """Nothing, (n,): F is a distribution's."""
        return np.where(self.visited(x), 0.0, np.nan)

    def readings(self, x: npt.ArrayLike) -> Iterator[tuple[Ints, Grid, Floats]]:
        """As the base says."""
        cells = self._cells(x)
        some = np.flatnonzero(self.chain.known[cells])
        for part in np.array_split(some, max(some.size * self.grid.size // _ROOM, 0) + 1):
            yield part, self.grid, self._found[cells[part]]

    def _interval(self, x: npt.ArrayLike, of: Reading, q: float, z: float, level: float) -> Floats:
        cells, back = np.unique(self._cells(x), return_inverse=True)
        out, known = np.full((cells.size, 2), np.nan), np.flatnonzero(self.chain.known[cells])
        step = max(_ROOM // (DRAWS * self.grid.size), 1)
        for first in range(0, known.size, step):
            part = known[first : first + step]
            given = self._found[cells[part]], self._draws[1][cells[part]]
            value, draws = self._drawn(*given, of, q, z / self.unit)
            out[part] = _interval(value, draws, of, level, self._episodes[cells[part]])
        if of in ("quantile", "cvar"):
            behind = np.where(np.isnan(out[:, 0]), 0.0, self._episodes[cells])
            warn_of_few(behind, q if of == "cvar" else min(q, 1.0 - q), q)
        return np.asarray(out[back.ravel()] * self.size_of(of))

    @cached_property
    def _widened(self) -> float:
        """How many times as far as by randomness the draws lie, with what the choice may be off by."""
        over = self.over()
        if over.change is None:
            return 1.0
        drawn = float(self._random(over.curve, over.change[None], "mean", 0.5, 0.0)[1].std())
        if drawn <= 0.0:
            return 1.0
        return math.hypot(max(self._error / drawn, 1.0), self.bias / self.unit / drawn)

    @cached_property
    def _error(self) -> float:
        """The standard error of the mean over the log's starts, in units; the module has the formula."""
        log, own, n = self._log, self.starts, self.chain.n
        some, counts, cell = log.log, log.log.count, log.pairs[0]
        start = np.bincount(own.cell, own.count, n) * self.chain.known
        zeta, episodes = start / start.sum(), float(start.sum())
        centre = replace(log.branches(), probability=log.weighed(None, "mean"))
        chain = MarkovChain.from_branches(centre, self.discount)
        J, q = chain._mean, chain.discounted(1).solve(zeta, transpose=True)[0]
        f = some.reward + self.discount * np.append(J, 0.0)[some.successor]  # −1, the end, is the last entry
        N = np.bincount(log.pair, counts).clip(1.0)
        away = f - (np.bincount(log.pair, counts * f) / N)[log.pair]
        squares = np.bincount(log.pair, counts * away**2)
        free, of_cell = np.bincount(cell, N - 1.0, n), np.bincount(cell, squares, n)
        one = np.where(free > 0.0, of_cell, squares.sum()) / np.where(free > 0.0, free, max(free.sum(), 1.0))
        taken = np.bincount(log.pair, log.probabilities())
        variance = float(np.sum((q[cell] * taken / N) ** 2 * (squares + one[cell])))
        return math.sqrt(variance + float(zeta @ (J - zeta @ J) ** 2) / episodes)

    def _drawn(
        self, curves: Floats, change: npt.NDArray[Any], of: Reading, q: float, z: float
    ) -> tuple[Floats, Floats]:
        """A reading of curves (n, m + 3), (n,), and of them with changes (n, B, k), (n, B), in units."""
        value, draws = self._random(curves, change, of, q, z)
        if self._widened == 1.0:
            return value, draws
        centre = draws.mean(axis=1, keepdims=True)
        wide = centre + self._widened * (draws - centre)
        least = -np.inf if of in ("mean", "quantile", "cvar") else 0.0
        return value, np.clip(wide, least, 1.0 if of == "cdf" else np.inf)

    def _random(
        self, curves: Floats, change: npt.NDArray[Any], of: Reading, q: float, z: float
    ) -> tuple[Floats, Floats]:
        """The same by randomness alone."""
        grid, m = self.grid, self.grid.size
        value = grid.read(curves, of, q, z)
        n, B, k = change.shape
        if grid.size == k:
            moved = curves[:, None, :m] + change
        else:
            moved = curves[:, None, :m] + read_at(change, self._draws[0].theta, grid.theta, end=0.0)
        moved = np.clip(np.maximum.accumulate(moved, axis=2), 0.0, 1.0).reshape(n * B, m)
        full = np.hstack([moved, np.repeat(curves[:, m:], B, axis=0)])
        if of in ("cdf", "quantile", "cvar"):
            return value, grid.read(full, of, q, z).reshape(n, B)
        (J, M), (J_b, M_b) = _moments(grid, curves[:, :m]), _moments(grid, moved)
        J_b = J_b.reshape(n, B) + (curves[:, m + 1] - J)[:, None]
        M_b = M_b.reshape(n, B) + (curves[:, m + 2] - M)[:, None]
        V_b = np.maximum(M_b - J_b * J_b, 0.0)
        return value, {"mean": J_b, "variance": V_b, "std": np.sqrt(V_b)}[of]

    def over(self, starts: npt.ArrayLike | None = None) -> ChainStarts:
        """The return's distribution over starts (n, dim), equally likely: F is the average of theirs.

        Without any, over those of the log, whose randomness is then in the draws.
        """
        n = self.chain.n
        if starts is not None:
            number: Floats = np.bincount(self._cells(starts), minlength=n).astype(np.float64)
            each = np.repeat(number[:, None], DRAWS, axis=1)
        else:
            own = self.starts
            number = np.bincount(own.cell, own.count, minlength=n).astype(np.float64)
            xi = multipliers(self.key or (0, 0), np.arange(GROUPS), DRAWS)
            weights = own.count[:, None] * (1.0 + xi[own.group])
            at = own.cell, np.arange(own.cell.size)
            each = np.asarray(sp.csr_array((np.ones(own.cell.size), at), shape=(n, own.cell.size)) @ weights)
        known = self.chain.known
        number, left_out = number * known, int(number[~known].sum())
        if not number.any():
            raise InvalidInputError("starts must hold a state that was visited, got none; pass others")
        curve, change = number @ self._found / number.sum(), None
        if self.has_intervals:
            m, (grid, draws) = self.grid.size, self._draws
            each = each * known[:, None] / (each * known[:, None]).sum(axis=0)
            change = np.einsum("nb,nbk->bk", each, draws, optimize=True)
            if starts is None:
                other = each - (number / number.sum())[:, None]
                base = self._found[:, :m]
                if grid.size != m:
                    base = read_at(base, self.grid.theta, np.broadcast_to(grid.theta, (n, grid.size)))
                change = change + other.T @ base
        return ChainStarts(self, curve[None], change, int(number.sum()), left_out)

    @cached_property
    def _episodes(self) -> Floats:
        """About how many episodes visit each cell, (n,): those of its groups, at most its visits."""
        log, n = self.log, self.chain.n
        pairs = np.unique(log.cell * GROUPS + log.group) // GROUPS
        groups = np.bincount(pairs, minlength=n) * max(self.episodes / GROUPS, 1.0)
        return np.asarray(np.minimum(groups, np.bincount(log.cell, log.count, minlength=n)))

    def _cells(self, x: npt.ArrayLike) -> Ints:
        return cells_of(self.features, self._states(x))

    def __repr__(self) -> str:
        return f"ChainTails({plural(self.episodes, 'episode')}, {plural(int(self.features.size), 'cell')})"


@dataclass(frozen=True, eq=False)
class ChainStarts(StartEstimate):
    """F over starts, and its draws."""

    function: ChainTails
    curve: Floats  # (1, m + 3)
    change: Floats | None  # (B, k): by the draws
    starts: int
    unvisited: int

    def _estimate(self, of: Reading, level: float, q: float, z: float) -> Estimate:
        if self.change is None:
            return Estimate(float(self.grid.read(self.curve, of, q, z)[0]))
        return self._told(*self.function._drawn(self.curve, self.change[None], of, q, z), of, level)

    def _told(self, value: Floats, draws: Floats, of: Reading, level: float) -> Estimate:
        """A value (1,) by its draws (1, B)."""
        episodes = float(self.function.episodes)
        ends = _interval(value, draws, of, level, np.full(1, episodes))[0]
        return within(float(value[0]), ends, episodes, level)

    def pairs_with(self, other: StartDistribution) -> bool:
        """Whether another one's draws weigh the same episodes alike."""
        if not isinstance(other, ChainStarts) or self.change is None or other.change is None:
            return False
        mine, theirs = self.function, other.function
        one, two = (
            np.bincount(each.log.group, each.log.reward * each.log.count, GROUPS) for each in (mine, theirs)
        )
        same = mine.key == theirs.key and mine.unit == theirs.unit and mine.episodes == theirs.episodes
        return same and bool(np.allclose(one, two, rtol=1e-9, atol=1e-9))

    def lead(self, other: ChainStarts, of: Reading, q: float, level: float) -> Estimate:
        """By how much a reading is larger than another one's, draw by draw."""
        assert self.change is not None
        assert other.change is not None
        v, draws = self.function._drawn(self.curve, self.change[None], of, q, 0.0)
        w, theirs = other.function._drawn(other.curve, other.change[None], of, q, 0.0)
        return self._told(v - w, draws - theirs, of, level).moved(self.function.unit, 0.0)


@dataclass(frozen=True, eq=False)
class LogSums(Additive):
    """What a pass finds."""

    log: Logged
    starts: Logged
    episodes: int


@dataclass(frozen=True, eq=False)
class LogPass:
    """A pass: what was logged between the cells, and where episodes begin, by groups of episodes."""

    features: Features
    target: Target

    def __call__(self, source: Source, part: int) -> LogSums:
        """Of one part of the data."""
        found: LogSums | None = None
        for batch in batches(source):
            first = 0 if found is None else found.episodes
            group = groups_of(part, first, batch, GROUPS)
            log = Logged.of(batch, partial(cells_of, self.features), self.target, group)
            log = replace(log, others=None).merged()
            number, none = cells_of(self.features, batch.starts()), np.zeros(len(batch), dtype=np.int64)
            one = np.ones(len(batch))
            starts = Logged(number, none, none, group, np.zeros(len(batch)), one, one).merged()
            own = LogSums(log, starts, len(batch))
            found = own if found is None else found + own
        assert found is not None
        return found


def is_partition(features: Features, states: npt.NDArray[Any]) -> bool:
    """Whether features put every one of some states into one cell.

    >>> from policyrisk.features import Polynomial, Tabular
    >>> states = np.arange(3.0)[:, None]
    >>> is_partition(Tabular(3), states), is_partition(Polynomial(1, low=[0], high=[2]), states)
    (True, False)
    """
    phi = matrix_of(features, states)
    return is_sparse(phi) and bool((np.diff(phi.indptr) == 1).all())


def cells_of(features: Features, states: npt.NDArray[Any]) -> Ints:
    """The number of each state's cell, (n,)."""
    phi: Any = matrix_of(features, states)
    return np.asarray(phi.indices, dtype=np.int64)


def _interval(value: Floats, draws: Floats, of: Reading, level: float, episodes: Floats) -> Floats:
    """As :func:`interval_of_draws`, less what the draws are off by on average; it holds the value."""
    bias = draws.mean(axis=1) - value
    ends = interval_of_draws(value - bias, draws - 2.0 * bias[:, None], of, level, episodes)
    return np.column_stack([np.minimum(ends[:, 0], value), np.maximum(ends[:, 1], value)])


def _areas(grid: Grid, G: Floats) -> Floats:
    """∫ G over the thresholds, (n,), for values (n, m) there."""
    heights = G[:, :-1] if grid.steps else 0.5 * (G[:, 1:] + G[:, :-1])
    return np.asarray(heights @ grid.widths)


def _moments(grid: Grid, F: Floats) -> tuple[Floats, Floats]:
    """E[B] and E[B²] of F (n, m), all of which is between the thresholds."""
    theta = grid.theta
    heights = F[:, :-1] if grid.steps else 0.5 * (F[:, 1:] + F[:, :-1])
    squares = np.diff(theta * theta)
    return theta[-1] - heights @ grid.widths, theta[-1] ** 2 - heights @ squares
