"""A liquid and a non-liquid asset: the portfolio of Tamar, Di Castro and Mannor (2012).

A state is (period, rate, s_1, …, s_4): the period 0, …, 49, the rate of investments, 1.1 or 2, and whether
each of the four slots holds an investment; s_1 matures next. Actions: 0 keep, 1 invest. In each period

1. the rate changes to the other one with probability .1;
2. the investment in s_1 matures. It pays 4 × .2 × rate, or with probability .05 nothing (default); its fifth
   of the wealth is liquid from this period on. The other slots move up;
3. an investment moves a fifth of the wealth into s_4;
4. the reward is .2 for each of the liquid fifths, and what matured.

Episodes start with all wealth liquid and the rate 2, and end after 50 periods; what has not matured then pays
nothing. The policy decides before it sees whether the rate changes.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numba import njit

from policyrisk._core.arrays import Floats, Seed, as_count, as_flag, as_floats, name_some, readonly
from policyrisk._core.random import uniform
from policyrisk.errors import InvalidInputError
from policyrisk.features import TileCoding
from policyrisk.markov import MDP
from policyrisk.markov.branches import Branches, sorted_branches
from policyrisk.simulation import register_if_loaded
from policyrisk.simulation.compiled import register_domain
from policyrisk.simulation.domain import CompiledDomain

PERIODS = 50
SLOTS = 4
SHARE = 0.2  # of the wealth in an investment, and the reward of a liquid share for a period
LOW, HIGH = 1.1, 2.0  # the rates of investments
SWITCH = 0.1  # probability that the rate changes
DEFAULT = 0.05  # probability that an investment is lost when it matures

Holdings: TypeAlias = tuple[float, float, float, float, float, float]


class PortfolioTable(NamedTuple):
    """What the kernels know: nothing but the constants above."""

    periods: int


@njit(cache=True)
def invest(
    table: PortfolioTable, state: Holdings, action: int, s0: np.uint64, s1: np.uint64
) -> tuple[Holdings, float, bool, np.uint64, np.uint64]:
    """One period: the next state, its reward, whether it was the last, the stream's state."""
    period, rate, matures, second, third, newest = state
    draw, s0, s1 = uniform(s0, s1)
    if draw < SWITCH:
        rate = LOW if rate == HIGH else HIGH
    invested = 1.0 if action == 1 else 0.0
    reward = SHARE * (SLOTS + 1.0 - second - third - newest - invested)
    draw, s0, s1 = uniform(s0, s1)
    if matures == 1.0 and draw >= DEFAULT:
        reward += SLOTS * SHARE * rate
    period += 1.0
    return (period, rate, second, third, newest, invested), reward, period >= table.periods, s0, s1


@njit(cache=True)
def read(table: PortfolioTable, states: Floats, i: int) -> Holdings:
    """Row i of an array of states, as the tuple that :func:`invest` takes."""
    return states[i, 0], states[i, 1], states[i, 2], states[i, 3], states[i, 4], states[i, 5]


register_domain(PortfolioTable, read, invest)
_FILLED = 1 << SLOTS  # ways to fill the slots
_RATES = np.array([HIGH, LOW])


class Portfolio(CompiledDomain):
    """The portfolio as a simulator, and as an exact decision process.

    Examples
    --------
    Always to invest has mean 65.948313 and variance 47.143059:

    >>> portfolio = Portfolio()
    >>> chain = portfolio.mdp.chain(np.ones(portfolio.mdp.n, dtype=int))
    >>> round(chain.mean()[0], 6), round(chain.variance()[0], 6)
    (np.float64(65.948313), np.float64(47.143059))

    and simulated:

    >>> always = lambda states: np.ones(len(states), dtype=int)
    >>> returns = portfolio.rollout(always, portfolio.sample_starts(20_000), seed=0).returns()
    >>> bool(abs(returns.mean() - 65.948313) < 3 * np.sqrt(47.143059 / 20_000))
    True
    """

    actions: int = 2

    def __init__(self) -> None:
        register_if_loaded()  # a user of the domain may want its environment

    def __repr__(self) -> str:
        return "Portfolio()"

    def compiled(self) -> PortfolioTable:
        """The table for compiled code, see :mod:`policyrisk.simulation.compiled`."""
        return PortfolioTable(PERIODS)

    @cached_property
    def states(self) -> Floats:
        """The states (1600, 6) of :attr:`mdp` in its order; the first is the one in which episodes start."""
        period, rate, filled = np.unravel_index(np.arange(PERIODS * 2 * _FILLED), (PERIODS, 2, _FILLED))
        slots = (filled[:, None] >> np.arange(SLOTS)) & 1
        return readonly(np.column_stack([period, _RATES[rate], slots]).astype(np.float64))

    @cached_property
    def mdp(self) -> MDP:
        """The decision process over :attr:`states`, defaults and all."""
        return MDP.from_branches([self._branches(action) for action in range(self.actions)])

    def _branches(self, action: int) -> Branches:
        """Four ways out of every state: the rate changes or not, what matures is lost or not."""
        n = len(self.states)
        x = np.arange(n)
        period, rate, filled = np.unravel_index(x, (PERIODS, 2, _FILLED))
        matures = filled & 1
        kept = (filled >> 1) | (action << (SLOTS - 1))
        liquid = SLOTS + 1 - ((kept[:, None] >> np.arange(SLOTS)) & 1).sum(axis=1)
        ways = []
        for changes in (False, True):
            for lost in (False, True):
                new_rate = 1 - rate if changes else rate
                chance = np.where(matures, DEFAULT if lost else 1.0 - DEFAULT, 0.0 if lost else 1.0)
                chance = chance * (SWITCH if changes else 1.0 - SWITCH)
                reward = SHARE * liquid + (0.0 if lost else SLOTS * SHARE) * matures * _RATES[new_rate]
                after = np.ravel_multi_index(((period + 1) % PERIODS, new_rate, kept), (PERIODS, 2, _FILLED))
                after = np.where(period == PERIODS - 1, n, after)
                ways.append([column[chance > 0] for column in (x, after, chance, reward)])
        return sorted_branches(n, *(np.concatenate(column) for column in zip(*ways, strict=True)))

    def features(self, *, period: bool = False) -> TileCoding:
        """A feature for every combination of slots and rate (32), or of the period too (1600).

        >>> portfolio = Portfolio()
        >>> portfolio.features()(portfolio.states).shape
        (1600, 32)
        """
        low, high, bins = [LOW] + [0.0] * SLOTS, [HIGH] + [1.0] * SLOTS, [2] * (1 + SLOTS)
        if as_flag(period, "period"):
            return TileCoding([0.0, *low], [PERIODS, *high], bins=[PERIODS, *bins])
        return TileCoding(low, high, bins=bins, dims=range(1, 2 + SLOTS))

    def sample_starts(self, n: int, seed: Seed = None) -> Floats:
        """n times the state in which episodes start, (n, 6): nothing about it is random."""
        return np.repeat(self.states[:1], as_count(n, "n"), axis=0)

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """The least and the largest states (6,)."""
        return np.array([0.0, LOW] + [0.0] * SLOTS), np.array([PERIODS, HIGH] + [1.0] * SLOTS)

    def as_starts(self, value: object, name: str) -> Floats:
        """Checked states (n, 6), a copy."""
        states = as_floats(value, name, (None, 2 + SLOTS)).copy()
        period, rate, slots = states[:, 0], states[:, 1], states[:, 2:]
        known = (period == np.floor(period)) & (period >= 0) & (period < PERIODS)
        known &= ((rate == LOW) | (rate == HIGH)) & ((slots == 0) | (slots == 1)).all(axis=1)
        wrong = np.flatnonzero(~known)
        if wrong.size:
            raise InvalidInputError(
                f"{name} must be (period, rate, four slots) with a period from 0 to {PERIODS - 1}, a rate of "
                f"{LOW} or {HIGH} and slots of 0 or 1, got {states[wrong[0]].tolist()} in row {wrong[0]}; "
                f"correct rows {name_some(wrong)}"
            )
        return states
