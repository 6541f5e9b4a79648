"""Policies that tell the probabilities of their actions 0, …, A − 1, so that episodes record propensities.

    a policy that answers with probabilities (n, A)     the actions are drawn here: one draw of an episode's
                                                        own stream at each of its steps
    an object that answers with actions, or is          asked for π(a|x) of the action that it took
    compiled, and has probabilities(observations),
    (n, A)

The first is also what ``pr.LSTDQ`` takes for a target: the same function can be run and judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Floats, Ints, as_distributions, is_masked
from policyrisk._core.random import uniform
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words
from policyrisk.simulation.recorder import all_or_none

_ROWS = 1 << 16  # states whose probabilities are asked for at a time


def drawn_actions(answer: Any, actions: int, words: Words) -> tuple[Ints, Floats] | None:
    """Actions (n,) drawn from probabilities (n, actions), and their own; None where the answer is none.

    Row i draws from the stream whose state is ``words[i]`` (n, 2), which moves on.

    >>> words = np.array([[1, 2], [3, 4]], dtype=np.uint64)
    >>> drawn_actions([[0.0, 1.0], [1.0, 0.0]], 2, words)
    (array([1, 0]), array([1., 1.]))
    >>> drawn_actions([1, 0], 2, words) is None
    True
    """
    if as_answer(answer).shape != (len(words), actions):
        return None
    table = as_distributions(answer, "policy's probabilities", (len(words), actions))
    chosen = np.empty(len(words), dtype=np.int64)
    _draw(table, words, chosen)
    propensities: Floats = table[np.arange(len(chosen)), chosen]
    return chosen, propensities


def as_answer(answer: Any) -> npt.NDArray[Any]:
    """What a policy answers, as an array of whatever type and shape."""
    try:
        if is_masked(answer):
            raise ValueError("masked entries")
        return np.asarray(answer)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            f"policy must return an array of actions, got {type(answer).__name__} ({str(error)[:200]}); "
            "convert its answer, and of a model of Stable-Baselines3 pass the model itself, not its predict"
        ) from error


def told_propensities(policy: object, observations: Any, chosen: Ints, actions: int) -> Floats | None:
    """π(a|x) of the actions (n,) that a policy has chosen; None where it has no ``probabilities``."""
    tell: Callable[[Any], Any] | None = getattr(policy, "probabilities", None)
    if not callable(tell):
        return None
    table = as_distributions(tell(observations), "policy's probabilities", (len(chosen), actions))
    told: Floats = table[np.arange(len(chosen)), chosen]
    never = np.flatnonzero(told <= 0)
    if never.size:
        raise InvalidInputError(
            "policy's probabilities must be above 0 for the actions that it takes, got "
            f"{told[never[0]]} for action {chosen[never[0]]}; let it tell those that it acts by"
        )
    return told


def with_propensities(data: Trajectories, policy: object, actions: int) -> Trajectories:
    """Episodes whose actions the policy has chosen, with their propensities if it tells them."""
    chosen = data.actions
    if chosen is None or not hasattr(policy, "probabilities"):
        return data
    rows = data.visited_rows
    parts = [
        told_propensities(policy, data.states[rows[some]], chosen[some], actions)
        for some in (slice(first, first + _ROWS) for first in range(0, max(rows.size, 1), _ROWS))
    ]
    columns = (data.states, data.rewards, data.lengths, data.terminated, chosen)
    return Trajectories._view(*columns, all_or_none(parts))


@njit(cache=True)
def _draw(table: Floats, words: Words, out: Ints) -> None:
    """out_i = j with probability table_ij; where rounding leaves a row's sum below the draw, its last j."""
    for i in range(table.shape[0]):
        u, words[i, 0], words[i, 1] = uniform(words[i, 0], words[i, 1])
        total = 0.0
        for j in range(table.shape[1]):
            if table[i, j] > 0.0 and total <= u:
                out[i] = j
                total += table[i, j]
