"""Policies for Gymnasium environments: functions of a batch of observations.

A batch of n observations has n in front of every array, as in Gymnasium's vector environments: (n, …) of a
Box, (n,) of a Discrete, a dict or tuple of arrays for a Dict or Tuple space. The answer is a batch of n
actions in the same way. An object with ``predict(observations, deterministic=True)``, which returns
(actions, state), is such a policy too: that is Stable-Baselines3's. Its state must be None; a policy with a
memory of its own is none of the observation alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    import gymnasium as gym

Choose: TypeAlias = "Callable[[Any], Any]"


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


def as_actions(answer: Any, space: gym.Space[Any], count: int) -> list[Any]:
    """The actions of a batch one by one, checked against the space of a single one."""
    from gymnasium.vector.utils import batch_space, iterate

    batch = as_action_batch(answer, space, count)
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


def _has_array_actions(space: gym.Space[Any]) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.Discrete | spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary)
