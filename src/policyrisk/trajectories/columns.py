"""The columns of a record of episodes, checked: what each must be, and how they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, as_array, as_floats, name_some
from policyrisk.errors import InvalidInputError

COLUMNS = ("states", "rewards", "lengths", "terminated")
ACTION_COLUMNS = ("actions", "propensities")  # which a record may lack


def checked_columns(
    states: Any, rewards: Any, lengths: Any, terminated: Any, actions: Any, propensities: Any
) -> tuple[npt.NDArray[Any], Floats, Ints, Bools, npt.NDArray[Any] | None, Floats | None]:
    """The columns in the order of COLUMNS + ACTION_COLUMNS, of their types and of shapes that fit."""
    rewards = as_floats(rewards, "rewards", (None,))
    lengths = _as_lengths(lengths)
    terminated = as_array(terminated, "terminated", f"{lengths.size} booleans, one per episode")
    if terminated.shape != lengths.shape or terminated.dtype != np.bool_:
        raise InvalidInputError(
            f"terminated must be {lengths.size} booleans, one per episode, got {terminated.dtype} of "
            f"shape {terminated.shape}; pass True where the episode ended, False where it was cut off"
        )
    if int(lengths.sum()) != rewards.size:
        raise InvalidInputError(
            f"lengths must sum to len(rewards)={rewards.size}, got {int(lengths.sum())}; "
            "give each episode's number of rewards"
        )
    states = _as_state_rows(states)
    if len(states) != rewards.size + lengths.size:
        raise InvalidInputError(
            f"states must have sum(lengths) + episodes = {rewards.size + lengths.size} rows, got "
            f"{len(states)}; include the state that each episode ended in"
        )
    if actions is not None:
        actions = _as_actions(actions, rewards.size)
    if propensities is not None:
        propensities = _as_propensities(propensities, rewards.size)
        if actions is None:
            raise InvalidInputError(
                "propensities must come with the actions that they belong to, got no actions; pass both"
            )
    return states, rewards, lengths, terminated, actions, propensities


def _as_lengths(value: object) -> Ints:
    lengths = as_array(value, "lengths", "whole numbers of shape (episodes,)")
    if lengths.ndim != 1 or not (np.issubdtype(lengths.dtype, np.integer) or lengths.size == 0):
        raise InvalidInputError(
            f"lengths must be whole numbers of shape (episodes,), got {lengths.dtype} of shape "
            f"{lengths.shape}; give each episode's number of rewards"
        )
    short = np.flatnonzero(lengths < 1)
    if short.size:
        raise InvalidInputError(
            f"lengths must be at least 1, got {lengths[short[0]]} for episode {name_some(short)}; "
            "leave empty episodes out"
        )
    return lengths.astype(np.int64)


def _as_state_rows(value: Sequence[object] | npt.ArrayLike) -> npt.NDArray[Any]:
    array = as_array(value, "states", "numbers of shape (n, dim)")
    if array.ndim == 1:
        array = array[:, None]
    if np.issubdtype(array.dtype, np.integer) and array.ndim == 2:
        return array.astype(np.int64)
    return as_floats(array, "states", (None, None))


def _as_actions(value: object, transitions: int) -> npt.NDArray[Any]:
    """Whole numbers (transitions,), or coordinates (transitions, k)."""
    array = as_array(value, "actions", f"numbers of shape ({transitions},) or ({transitions}, k)")
    if array.ndim not in (1, 2) or len(array) != transitions or 0 in array.shape[1:]:
        raise InvalidInputError(
            f"actions must have shape ({transitions},), or ({transitions}, k) for continuous ones, got "
            f"{array.shape}; give one for each reward, and none for the states that episodes ended in"
        )
    if array.ndim == 2:
        return as_floats(array, "actions", (None, None))
    if array.dtype.kind == "f":
        whole = array == np.rint(array)  # nan is not, inf is
        broken = np.flatnonzero(~(whole & (np.abs(array.astype(np.float64)) < 2.0**53)))
        if broken.size:
            raise InvalidInputError(
                f"actions of shape ({transitions},) must be whole numbers, got {array[broken[0]]} at index "
                f"{broken[0]}; pass continuous actions in the shape ({transitions}, k)"
            )
    return array.astype(np.int64)


def _as_propensities(value: object, transitions: int) -> Floats:
    propensities = as_floats(value, "propensities", (transitions,))
    outside = np.flatnonzero(~((propensities > 0) & (propensities <= 1)))
    if outside.size:
        raise InvalidInputError(
            f"propensities must be in (0, 1], got {propensities[outside[0]]} at index {outside[0]}; give the "
            "probability with which the recorded policy took the action that it took"
        )
    return propensities
