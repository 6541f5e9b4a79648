"""One period of the portfolio as a scalar, pure function; the rules are in ``portfolio.py``."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.random import uniform
from policyrisk.simulation.compiled import Words, register_domain

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


@njit(cache=True)
def act(
    table: PortfolioTable, states: Floats, actions: Ints, words: Words, rewards: Floats, ended: Bools
) -> None:
    """One action for every row of ``states`` (n, 6), in place; ``words`` (n, 2) are the streams."""
    for i in range(states.shape[0]):
        state, rewards[i], ended[i], words[i, 0], words[i, 1] = invest(
            table, read(table, states, i), actions[i], words[i, 0], words[i, 1]
        )
        for d in range(len(state)):
            states[i, d] = state[d]


register_domain(PortfolioTable, read, invest)
