"""A log as a chain: the branches of a cell are the transitions that were logged in it.

Cells number the states: a table, one tiling, or any function to whole numbers. With N(c, a) the transitions
logged in cell c with action a, transition j of them follows with

    u_j = π(a_j|x_j) / N(c_j, a_j)     for a policy π, scaled to a sum of 1 in each cell,
    u_j = 1 / N(c_j)                   without one.

Mean and variance of this chain are those of LSTD(0), for a policy of LSTDQ(0), on the same cells.

A cell is *dead* where nothing that the policy does was logged, or where (with discount 1) what was logged
never leads to an end. A cut-off episode may end in one. Transitions into dead cells are left out, which may
leave further cells dead. What a cell's answer misses by that is the expected number of transitions left out
on the way from it, and of steps on which the policy takes an action that was never logged. Above
``LOST_MOST`` and ``UNCOVERED_MOST`` there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Ints, as_array, name_some
from policyrisk._core.records import record
from policyrisk.data import Source, Trajectories, batches
from policyrisk.errors import ImproperPolicyError, InvalidInputError, MismatchError
from policyrisk.features.target import Target
from policyrisk.markov.branches import Branches, as_discount, closure, places, rows_in_order
from policyrisk.markov.linear import Resolvent, discounted

LOST_MOST = 0.05
UNCOVERED_MOST = 1.0
CELLS_MOST = 10_000_000
_MERGED = 1 << 20  # rows that are kept apart before equal ones are put together, or twice those found then
_END = -1

Prior: TypeAlias = 'np.random.Generator | Literal["mean"]'
CellMap: TypeAlias = Callable[[npt.NDArray[Any]], Ints]


@dataclass(frozen=True, eq=False)
class LogCounts:
    """What was logged in each cell, and what of it the chain leaves out."""

    visits: Ints  # (n,): transitions logged in each cell
    left_out: int  # transitions into cells without an answer
    lost: Floats  # (n,): expected transitions from each cell that were left out
    uncovered: Floats  # (n,): expected steps from each cell whose action was never logged there
    dead: Bools  # (n,): cells without any answer


@record(
    cell="rows",
    action="rows",
    successor="rows",
    group="rows",
    reward="rows: finite",
    count="rows: positive",
    weight="rows: finite",
    others="rows, kinds: finite",
)
@dataclass(frozen=True, eq=False)
class Logged:
    """Different transitions between cells, and how often each group of episodes has them."""

    cell: Ints
    action: Ints
    successor: Ints  # −1 for the end
    group: Ints  # of episodes; 0 where they are not told apart
    reward: Floats
    count: Floats
    weight: Floats  # Σ π(a|x)
    others: Floats | None = None  # (rows, k): rewards of other kinds
    put_together: int = 0  # rows after the last time that equal ones were put together

    @classmethod
    def of(cls, batch: Trajectories, cells: CellMap, target: Target | None, group: Ints | None) -> Logged:
        """The transitions of some episodes; the state in which an episode terminated is never looked at."""
        number = np.full(len(batch.states), _END)
        shown = np.concatenate([batch.visited_rows, batch.final_rows[~batch.terminated]])
        number[shown] = cells(batch.states[shown])
        count, none = np.ones(batch.transitions), np.zeros(batch.transitions, dtype=np.int64)
        action, weight = none, count
        if target is not None:
            action = _actions(batch, target.actions)
            weight = target.chance(batch.states[batch.visited_rows], action)
        own = none if group is None else np.repeat(group, batch.lengths)
        at, others = batch.visited_rows, batch.other_rewards
        return cls(number[at], action, number[at + 1], own, batch.rewards, count, weight, others)

    def __add__(self, other: Logged) -> Logged:
        if _kinds(self.others) != _kinds(other.others):
            raise MismatchError(
                f"data must have as many kinds of rewards in all parts, got {1 + _kinds(self.others)} and "
                f"{1 + _kinds(other.others)}; give other_rewards to all of them"
            )
        columns = {name: np.concatenate([mine, getattr(other, name)]) for name, mine in self._columns()}
        both = Logged(**columns, put_together=self.put_together + other.put_together)
        return both.merged() if both.cell.size > 2 * both.put_together + _MERGED else both

    def __getitem__(self, rows: Ints | Bools) -> Logged:
        some: dict[str, Any] = {name: column[rows] for name, column in self._columns()}
        return Logged(**some)

    def _columns(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for each in fields(self):
            if isinstance(column := getattr(self, each.name), np.ndarray):
                yield each.name, column

    def merged(self) -> Logged:
        """Equal transitions put together."""
        group, none = self.group, np.zeros_like(self.group)
        for kind in () if self.others is None else self.others.T:  # what is different in one of them
            group, _ = places(none, none, none, group, kind)
        place, first = places(self.cell, self.action, self.successor, group, self.reward)
        count, weight = (np.bincount(place, each, first.size) for each in (self.count, self.weight))
        some = self[first]
        return replace(
            some, count=np.asarray(count, float), weight=np.asarray(weight, float), put_together=first.size
        )


def _kinds(others: Floats | None) -> int:
    return 0 if others is None else others.shape[1]


def branches_of_log(data: Source, cells: Any, policy: Any, discount: Any) -> LogBranches:
    """The branches, which cells have an answer, and what was left out."""
    number, size = cell_map(cells)
    target: Target | None = None
    log: Logged | None = None
    for batch in batches(data):
        if policy is not None and target is None:
            target = _target(policy, batch)
        own = Logged.of(batch, number, target, None)
        log = own if log is None else log + own
    if log is None or not log.cell.size:
        raise InvalidInputError("data must hold at least one transition, got none; pass recorded episodes")
    log = log.merged()
    n = size or int(max(log.cell.max(), log.successor.max())) + 1
    given = as_discount(discount, n)
    return LogBranches.of(log, n, None if target is None else target.actions, given)


@dataclass(frozen=True, eq=False)
class LogBranches:
    """The kept transitions of a log, which weights of the groups of episodes weigh anew."""

    log: Logged  # the kept transitions, and none else
    pair: Ints  # (rows,): the number of each one's cell and action
    known: Bools  # (n,): which cells have an answer
    counts: LogCounts

    @classmethod
    def of(cls, log: Logged, n: int, actions: int | None, discount: float | Floats) -> LogBranches:
        """What is left of a log on n cells; an error where nothing leads to an end."""
        gamma = np.append(np.broadcast_to(discount, n), 0.0)  # −1, the end, is its last entry
        kept, alive = _kept(log, n, gamma[log.successor] < 1.0)
        if not alive.any():
            raise ImproperPolicyError(
                "data must lead to the end of an episode somewhere (Assumption 1: proper policy), but no "
                "logged transition does that the policy would take; log longer episodes, or use discount < 1"
            )
        cell, gone = log.cell, ~kept & (log.weight > 0.0)
        pair = log.cell
        if actions is not None and actions > 1:
            pair = np.unique(cell * actions + log.action, return_inverse=True)[1]
        lost = np.bincount(cell[gone], log.count[gone], n)
        visits = np.bincount(cell, log.count, n).astype(np.int64)
        some = log if kept.all() else log[kept]
        nothing = LogCounts(visits, int(lost.sum()), np.zeros(n), np.zeros(n), ~alive)
        found = cls(some, pair[kept], alive, nothing)
        stayed = np.bincount(some.cell, some.count, n).clip(1.0)
        uncovered = np.zeros(n)
        if actions is not None:
            uncovered = np.maximum(
                1.0 - np.bincount(some.cell, found._chances(some.weight, some.count), n), 0.0
            )
        missing = np.column_stack([lost / stayed, uncovered]) * alive[:, None]
        if missing.any():
            P = found.branches().matrix()
            missing = Resolvent(*discounted(P, discount, 1)).solve(missing)[0]
        lost, uncovered = missing.T
        known = alive & (lost <= LOST_MOST) & (uncovered <= UNCOVERED_MOST)
        return cls(some, found.pair, known, replace(nothing, lost=lost, uncovered=uncovered))

    def _chances(self, weight: Floats, count: Floats) -> Floats:
        """π(a|x) / N(c, a) of each transition, (rows,)."""
        return np.asarray(weight / np.bincount(self.pair, count)[self.pair])

    def probabilities(self, omega: Floats | None = None, prior: Prior | None = None) -> Floats:
        """u_j of each transition (rows,), a sum of 1 in each cell; ``omega`` are the groups' weights."""
        log = self.log
        weight, count = log.weight, log.count
        if omega is not None:
            own = omega[log.group]
            weight, count = weight * own, count * own
        u = self._chances(weight, count)
        if prior is not None:
            u = self._with_one_more(u, count, prior)
        return np.asarray(u / np.bincount(log.cell, u, self.known.size)[log.cell])

    def _with_one_more(self, u: Floats, count: Floats, prior: Prior) -> Floats:
        """With one more transition of every pair: one of those logged in its cell, by whatever action."""
        cell, order, ends = self.pairs
        logged, taken = np.bincount(self.pair, count), np.bincount(self.pair, u)
        if isinstance(prior, np.random.Generator):
            new = prior.exponential(size=logged.size)
            share = np.asarray(new / (logged + new))
            at = ends[cell] + prior.random(cell.size) * (ends[cell + 1] - ends[cell])
            running = np.cumsum(self.log.count[order])
            row = order[np.minimum(np.searchsorted(running, at, side="right"), order.size - 1)]
            more = np.bincount(row, taken * share, u.size)
        else:  # on average
            share = np.asarray(1.0 / (logged + 1.0))
            of_cell = np.bincount(cell, taken * share, self.known.size) / np.diff(ends).clip(1.0)
            more = of_cell[self.log.cell] * self.log.count
        return np.asarray(u * (1.0 - share)[self.pair] + more)

    @cached_property
    def pairs(self) -> tuple[Ints, Ints, Floats]:
        """The cell of each pair; the rows by cells; how many transitions come before each cell, (n + 1,)."""
        cell = np.zeros(int(self.pair.max()) + 1, dtype=np.int64)
        cell[self.pair] = self.log.cell
        each = np.bincount(self.log.cell, self.log.count, self.known.size)
        return cell, rows_in_order(self.log.cell, self.known.size), np.append(0.0, np.cumsum(each))

    @cached_property
    def _ends(self) -> Ints:
        """Cells without any answer, which end at once: nothing leads there, and nobody sees their values."""
        return np.flatnonzero(self.counts.dead)

    @cached_property
    def _order(self) -> Ints:
        """The transitions, and after them the ends of such cells, as the chain's branches stand."""
        return rows_in_order(np.append(self.log.cell, self._ends), self.known.size)

    def weighed(self, omega: Floats | None = None, prior: Prior | None = None) -> Floats:
        """The probabilities of the branches, (branches,)."""
        return np.append(self.probabilities(omega, prior), np.ones(self._ends.size))[self._order]

    def rewards(self) -> Floats:
        """Of each kind those of the branches, (kinds, branches)."""
        others = np.empty((self.log.reward.size, 0)) if self.log.others is None else self.log.others
        kinds = np.column_stack([self.log.reward, others])
        return np.asarray(np.pad(kinds, ((0, self._ends.size), (0, 0)))[self._order].T)

    def branches(self) -> Branches:
        """Those of the chain."""
        log, n, dead = self.log, self.known.size, self._ends
        number = np.where(log.successor == _END, n, log.successor)
        successor = np.append(number, np.full(dead.size, n))[self._order]
        reward = self.rewards()[0]
        starts = np.cumsum(np.bincount(np.append(log.cell, dead), minlength=n))
        return Branches(np.append(0, starts), successor, self.weighed(), reward)


def _kept(log: Logged, n: int, fades: Bools) -> tuple[Bools, Bools]:
    """Which transitions are left, and which cells are not dead."""
    taken, alive = log.weight > 0.0, np.ones(n, dtype=np.bool_)
    while True:
        kept = taken & ((log.successor == _END) | alive[log.successor])
        last = np.bincount(log.cell[kept & fades], minlength=n) > 0
        on = kept & (log.successor != _END)
        back = sp.csr_array((np.ones(on.sum()), (log.successor[on], log.cell[on])), shape=(n, n))
        leads = closure(back, last)
        if (leads == alive).all():
            return kept, alive
        alive &= leads


def cell_map(cells: Any) -> tuple[CellMap, int | None]:
    """The number of each state's cell, and how many cells there are where that is known."""
    if hasattr(cells, "active"):
        _check_few(cells.size)
        return lambda states: _one_column(cells.active(states)), int(cells.size)
    if cells is not None and not callable(cells):
        raise InvalidInputError(
            "cells must be a Tabular, a TileCoding of one tiling or a function from states to whole numbers, "
            f"got {type(cells).__name__}; pass one of these, or None for states that are whole numbers"
        )
    return lambda states: _whole(states if cells is None else cells(states), len(states)), None


def _one_column(active: Ints) -> Ints:
    if active.shape[1] != 1:
        raise InvalidInputError(
            f"cells must put every state into one cell, got {active.shape[1]} tilings; pass tilings=1"
        )
    return active[:, 0]


def _whole(given: Any, count: int) -> Ints:
    numbers = as_array(given, "cells(states)", "whole numbers")
    if numbers.shape not in ((count,), (count, 1)):
        raise InvalidInputError(
            f"cells must give one whole number for each of {count} states, got shape {numbers.shape}; pass "
            "cells=, a function from states (n, dim) to numbers (n,)"
        )
    flat = numbers.ravel()
    wrong = np.flatnonzero((flat != np.floor(flat)) | (flat < 0) | ~np.isfinite(flat))
    if wrong.size:
        raise InvalidInputError(
            f"cells must be whole numbers from 0 on, got {name_some(flat[wrong], 3)}; pass cells=, such as "
            "TileCoding(low, high, bins), for states that are not numbered"
        )
    _check_few(flat.max(initial=0) + 1)
    return flat.astype(np.int64)


def _check_few(cells: float) -> None:
    """Raise unless a vector of so many cells fits in memory."""
    if cells > CELLS_MOST:
        raise InvalidInputError(
            f"cells must be at most {CELLS_MOST:,}, numbered from 0 on, got {cells:,.0f}; number those that "
            "occur, or use fewer bins"
        )


def _target(policy: Any, batch: Trajectories) -> Target:
    if callable(policy):
        first = as_array(policy(np.asarray(batch.states[:1], dtype=np.float64)), "policy(states)", "numbers")
        logged = 0 if batch.actions is None else int(batch.actions.max(initial=0)) + 1
        return Target.of(policy, logged if first.shape == (1,) else first.shape[-1], 0, 0)
    return Target.of(policy, None, 2, 0)


def _actions(batch: Trajectories, actions: int) -> Ints:
    """The logged actions (transitions,), whole numbers below ``actions``."""
    given = batch.actions
    if given is None or given.ndim != 1 or not actions:
        raise InvalidInputError(
            f"data must hold whole-numbered actions for a policy, got {batch.action_kind}; pass "
            "Trajectories(..., actions=...), and a policy of probabilities"
        )
    if given.size and not (given.min() >= 0 and given.max() < actions):
        raise InvalidInputError(
            f"data must hold actions from 0 to {actions - 1}, got {given.min()} to {given.max()}; give the "
            "policy a column for each"
        )
    return given
