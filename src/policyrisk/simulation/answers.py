"""What environments answer to ``reset`` and ``step``, checked: the gate for code that is not ours.

    reset    (observation, info)
    step     (observation, reward, terminated, truncated, info)

A reward is one number, in an array of one element if need be; a flag is True or False, or 1 or 0. Whether
rewards are finite is seen where they are recorded, which knows the episode and the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policyrisk._core.arrays import Bools, Floats, as_array, shown
from policyrisk.errors import InvalidInputError

_RESET = "(observation, info)"
_STEP = "(observation, reward, terminated, truncated, info)"


def as_reset(answer: Any) -> Any:
    """The observation of a reset's answer."""
    return _parts(answer, "reset", _RESET, 2)[0]


def as_step(answer: Any) -> tuple[Any, float, bool, bool]:
    """A step's observation, reward, terminated and truncated.

    >>> as_step(([0.5], np.array([1.0]), np.bool_(True), 0, {}))
    ([0.5], 1.0, True, False)
    """
    observation, reward, terminated, truncated, _ = _parts(answer, "step", _STEP, 5)
    return observation, _number(reward), _flag(terminated, "terminated"), _flag(truncated, "truncated")


def as_steps(answer: Any, count: int) -> tuple[Any, Floats, Bools, Bools, dict[str, Any]]:
    """The same of ``count`` environments that are stepped together: arrays (count,), and their info."""
    observations, rewards, terminated, truncated, info = _parts(answer, "step", _STEP, 5)
    if not isinstance(info, dict):
        raise InvalidInputError(
            f"env.step must return a dictionary as its info, got {shown(info)}; return {{}} where there is "
            "nothing to say"
        )
    over = as_flags(terminated, "terminated", count), as_flags(truncated, "truncated", count)
    return observations, as_rewards(rewards, count), *over, info


def as_rewards(value: Any, count: int) -> Floats:
    """Rewards (count,) of as many environments."""
    rewards = as_array(value, "env.step's rewards", f"{count} numbers, one per environment")
    _check_count(rewards, "rewards", count)
    return rewards.astype(np.float64)


def as_flags(value: Any, name: str, count: int) -> Bools:
    """Booleans (count,) of as many environments."""
    flags = as_array(value, f"env.step's {name}", f"{count} booleans, one per environment")
    _check_count(flags, name, count)
    wrong = np.flatnonzero((flags != 0) & (flags != 1))
    if wrong.size:
        raise InvalidInputError(
            f"env.step's {name} must be True or False, got {flags[wrong[0]]} for environment {wrong[0]}; "
            "correct the environment"
        )
    return flags.astype(np.bool_)


def _parts(answer: Any, method: str, what: str, count: int) -> Any:
    if not isinstance(answer, tuple | list) or len(answer) != count:
        got = f"{len(answer)} values" if isinstance(answer, tuple | list) else type(answer).__name__
        raise InvalidInputError(
            f"env.{method} must return {what}, as Gymnasium's environments do, got {got}; wrap the "
            "environment so that it does"
        )
    return answer


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    array = as_array(value, "env.step's reward", "one number")
    if array.size != 1 or value is None:
        raise InvalidInputError(
            f"env.step's reward must be one number, got {shown(value)}; sum or pick what counts"
        )
    return float(array.item())


def _flag(value: Any, name: str) -> bool:
    if value is True or value is False:
        return value
    array = as_array(value, f"env.step's {name}", "True or False")
    if array.size != 1 or array.item() not in (0, 1):
        raise InvalidInputError(
            f"env.step's {name} must be True or False, got {shown(value)}; correct the environment"
        )
    return bool(array.item())


def _check_count(array: Any, name: str, count: int) -> None:
    if array.shape != (count,):
        raise InvalidInputError(
            f"env.step's {name} must be {count}, one per environment, got shape {array.shape}; correct the "
            "environment"
        )
