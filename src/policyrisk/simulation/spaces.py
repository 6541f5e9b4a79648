"""Batches of observations and of actions, in the form of Gymnasium's vector environments.

A batch of n observations has n in front of every array: (n, …) of a Box, (n,) of a Discrete, a dict or tuple
of such arrays for a Dict or Tuple space. A batch of n actions is the same. Of observations,

    project   is a function of a batch that picks the states' coordinates, of shape (n, dim) or (n,)
    policy    is a function of a batch that answers with a batch of actions. An object with
              ``predict(observations, deterministic=True)``, which returns (actions, state), is one too: that
              is Stable-Baselines3's. Its state must be None; a policy with a memory of its own is none of
              the observation alone. For Discrete actions it may answer with their probabilities instead
              (:mod:`policyrisk.simulation.probabilities`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words
from policyrisk.simulation.probabilities import drawn_actions, told_propensities

if TYPE_CHECKING:
    import gymnasium as gym

Project: TypeAlias = "Callable[[Any], npt.ArrayLike] | None"
Choose: TypeAlias = "Callable[[Any], Any]"


def as_project(project: object) -> Project:
    """A caller's ``project``."""
    if project is not None and not callable(project):
        raise InvalidInputError(
            f"project must be a function of a batch of observations, got {type(project).__name__}; "
            "pass for example lambda observations: observations['position']"
        )
    return project


def stack(observations: Sequence[Any], space: gym.Space[Any]) -> Any:
    """Single observations of a space as one batch, in Gymnasium's form, copied."""
    from gymnasium.vector.utils import concatenate, create_empty_array

    empty: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, empty)


def as_rows(observations: Any, project: Project, count: int) -> npt.NDArray[Any]:
    """The states of a batch of observations, of shape (count, dim): int64 if they are whole, else float64.

    >>> as_rows({"goal": np.zeros((2, 3)), "at": np.array([4, 7])}, lambda batch: batch["at"], 2)
    array([[4],
           [7]])
    """
    name = "observations" if project is None else "project(observations)"
    value = observations if project is None else project(observations)
    if isinstance(value, dict | tuple):
        inside = ", ".join(map(repr, value)) if isinstance(value, dict) else f"{len(value)} parts"
        raise InvalidInputError(
            f"{name} must be an array, got a {type(value).__name__} of {inside}; pass project=..., a "
            "function of a batch of observations that returns their coordinates, of shape (n, dim)"
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInputError(
            f"{name} must be an array of shape (n, dim), got {error}; pass project=..."
        ) from error
    if array.dtype.kind not in "biuf" or array.ndim == 0 or len(array) != count:
        raise InvalidInputError(
            f"{name} must be {count} rows of numbers, one per observation, got {array.dtype} of shape "
            f"{array.shape}; pass a project that keeps the batch in front, such as lambda batch: batch[:, :2]"
        )
    rows = array.reshape(count, -1)
    return rows.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def as_policy(policy: object) -> Choose:
    """A function from a batch of observations to a batch of actions."""
    predict = getattr(policy, "predict", None)
    if callable(predict):
        return lambda observations: _predicted(predict(observations, deterministic=True))
    if callable(policy):
        return policy
    raise InvalidInputError(
        "policy must be a function from a batch of observations to a batch of actions, or an object with "
        f"predict(observations, deterministic=True), got {type(policy).__name__}; pass for example "
        "lambda observations: numpy.zeros(len(observations), int)"
    )


def _predicted(answer: object) -> Any:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise InvalidInputError(
            f"policy.predict must return (actions, state), got {type(answer).__name__}; "
            "pass a function of observations instead"
        )
    actions, state = answer
    if state is not None:
        raise InvalidInputError(
            f"policy.predict must return None as its state, got {type(state).__name__}: the policy has a "
            "memory; pass a policy that is a function of the observation"
        )
    return actions


def decide(
    choose: Choose, observations: Any, space: gym.Space[Any], words: Words
) -> tuple[Any, Floats | None]:
    """A policy's actions for a batch of n, checked, and the probabilities that it took them with, if told.

    ``words`` (n, 2) are the states of the streams that actions are drawn from where it answers with
    probabilities; they move on.
    """
    from gymnasium import spaces

    answer = choose(observations)
    if not isinstance(space, spaces.Discrete):
        return as_action_batch(answer, space, len(words)), None
    first, count = int(space.start), int(space.n)
    found = drawn_actions(answer, count, words)
    if found is not None:
        return (found[0] + first).astype(space.dtype), found[1]
    actions = as_action_batch(answer, space, len(words))
    return actions, told_propensities(choose, observations, actions - first, count)


def single_actions(batch: Any, space: gym.Space[Any], count: int) -> list[Any]:
    """The actions of a batch one by one."""
    from gymnasium.vector.utils import batch_space, iterate

    return list(batch if _has_array_actions(space) else iterate(batch_space(space, count), batch))


def as_action_batch(answer: Any, space: gym.Space[Any], count: int) -> Any:
    """The actions of a batch: an array of the space's type, checked, where the space's actions are arrays.

    >>> from gymnasium.spaces import Discrete
    >>> as_action_batch([True, False], Discrete(2), 2)
    array([1, 0])
    """
    from gymnasium import spaces

    if not _has_array_actions(space):
        return answer
    actions = np.asarray(answer)
    shape = (count, *(space.shape or ()))
    if actions.shape != shape:
        raise InvalidInputError(
            f"policy must return actions of shape {shape}, one for each of the {count} observations of its "
            f"batch, got shape {actions.shape}; a policy for one observation at a time can be wrapped as "
            "lambda batch: numpy.array([policy(x) for x in batch])"
        )
    kinds = "biuf" if isinstance(space, spaces.Box) else "biu"
    if actions.dtype.kind not in kinds:
        raise InvalidInputError(
            f"policy must return {'numbers' if 'f' in kinds else 'whole numbers'} for the action space "
            f"{space}, got {actions.dtype}; convert its answer"
        )
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n) - 1
        wrong = np.flatnonzero((actions < low) | (actions > high))
        if wrong.size:
            raise InvalidInputError(
                f"policy must return actions from {low} to {high}, got {actions[wrong[0]]}; correct it"
            )
    return actions.astype(space.dtype)


def action_rows(actions: Any) -> npt.NDArray[Any] | None:
    """A batch of actions as it is recorded: whole numbers (n,), or coordinates (n, k); None of no array.

    >>> action_rows(np.array([[[0.5], [1.5]]], dtype=np.float32))
    array([[0.5, 1.5]])
    """
    if not isinstance(actions, np.ndarray):
        return None
    if actions.ndim == 1 and actions.dtype.kind != "f":
        return actions.astype(np.int64)
    return actions.reshape(len(actions), math.prod(actions.shape[1:])).astype(np.float64)


def _has_array_actions(space: gym.Space[Any]) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.Discrete | spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary)
