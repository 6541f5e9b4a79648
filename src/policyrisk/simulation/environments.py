"""Environments that are not ours: their answers to ``reset`` and ``step``, checked, and those of other forms.

    reset    (observation, info)
    step     (observation, reward, terminated, truncated, info)

A reward is one number, in an array of one element if need be; a flag is True or False, or 1 or 0. Whether
rewards are finite is seen where they are recorded, which knows the episode and the step.

A VecEnv of Stable-Baselines3 resets its parts in the step that ends an episode (Gymnasium's SAME_STEP) and
keeps the last observation, and whether a time limit cut the episode off, in the part's info. VecNormalize
around it scales observations and rewards by running averages. Here it is taken off: the policy gets the
observations that it was trained on, scaled by the averages as they are, which no longer change; recorded are
the states and the rewards themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policyrisk._core.arrays import Bools, Floats, as_array, shown
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.spaces import Choose

_RESET = "(observation, info)"
_STEP = "(observation, reward, terminated, truncated, info)"
_STEP_OF_PARTS = "(observations, rewards, dones, infos)"  # of Stable-Baselines3
_KINDS: dict[type, tuple[str, str]] = {float: ("one number", "numbers"), bool: ("True or False", "booleans")}


def as_reset(answer: Any) -> Any:
    """The observation of a reset's answer."""
    return _parts(answer, "reset", _RESET, 2)[0]


def as_step(answer: Any) -> tuple[Any, float, bool, bool]:
    """A step's observation, reward, terminated and truncated.

    >>> as_step(([0.5], np.array([1.0]), np.bool_(True), 0, {}))
    ([0.5], 1.0, True, False)
    """
    observation, reward, terminated, truncated, _ = _parts(answer, "step", _STEP, 5)
    ended, cut = _one(terminated, "terminated", bool), _one(truncated, "truncated", bool)
    return observation, _one(reward, "reward", float), ended, cut


def as_steps(answer: Any, count: int) -> tuple[Any, Floats, Bools, Bools, dict[str, Any]]:
    """The same of ``count`` environments that are stepped together: arrays (count,), and their info."""
    observations, rewards, terminated, truncated, info = _parts(answer, "step", _STEP, 5)
    if not isinstance(info, dict):
        raise InvalidInputError(
            f"env.step must return a dictionary as its info, got {shown(info)}; return {{}} where there is "
            "nothing to say"
        )
    over = _each(terminated, "terminated", bool, count), _each(truncated, "truncated", bool, count)
    return observations, _each(rewards, "rewards", float, count), *over, info


def _parts(answer: Any, method: str, what: str, count: int, whose: str = "Gymnasium's environments") -> Any:
    if not isinstance(answer, tuple | list) or len(answer) != count:
        got = f"{len(answer)} values" if isinstance(answer, tuple | list) else type(answer).__name__
        raise InvalidInputError(
            f"env.{method} must return {what}, as {whose} do, got {got}; wrap the environment so that it does"
        )
    return answer


def _one(value: Any, name: str, kind: type) -> Any:
    """The one number or flag of an answer."""
    if type(value) is kind:
        return value
    what, _ = _KINDS[kind]
    array = as_array(value, f"env.step's {name}", what)
    if array.size != 1 or value is None or (kind is bool and array.item() not in (0, 1)):
        raise InvalidInputError(
            f"env.step's {name} must be {what}, got {shown(value)}; correct the environment"
        )
    return kind(array.item())


def _each(value: Any, name: str, kind: type, count: int) -> Any:
    """The same of each environment, (count,)."""
    array = as_array(value, f"env.step's {name}", f"{count} {_KINDS[kind][1]}, one per environment")
    if array.shape != (count,):
        raise InvalidInputError(
            f"env.step's {name} must be {count}, one per environment, got shape {array.shape}; correct the "
            "environment"
        )
    if kind is bool and not np.isin(array, (0, 1)).all():
        wrong = int(np.isin(array, (0, 1)).argmin())
        raise InvalidInputError(
            f"env.step's {name} must be True or False, got {array[wrong]} for environment {wrong}; correct "
            "the environment"
        )
    return array.astype(kind)


def is_vec_env(env: object) -> bool:
    """Whether this is one of Stable-Baselines3's."""
    names = ("num_envs", "reset", "step_async", "step_wait", "env_method", "observation_space")
    return all(hasattr(env, name) for name in names)


def without_normalisation(env: Any, model: Any, choose: Choose) -> tuple[Any, Choose]:
    """The environment inside of VecNormalize, and a policy of what that makes of its observations.

    ``choose`` is that of the ``model``, which may know a VecNormalize of its own where there is none.
    """
    if not _normalises(env):
        inner = env
        while (inner := getattr(inner, "venv", None)) is not None:
            if _normalises(inner):
                raise InvalidInputError(
                    f"env must have VecNormalize outermost, got it inside of {type(env).__name__}; pass "
                    f"what {type(env).__name__} is around, env.venv"
                )
        return env, as_trained(model, choose)
    return env.venv, _normalising(env, choose)


def as_trained(model: Any, choose: Choose) -> Choose:
    """A model's policy of observations as they are, where the model knows its own VecNormalize."""
    find = getattr(model, "get_vec_normalize_env", None)
    normaliser = find() if callable(find) else None
    return choose if normaliser is None else _normalising(normaliser, choose)


def _normalising(normaliser: Any, choose: Choose) -> Choose:
    return lambda observations: choose(normaliser.normalize_obs(observations))


def _normalises(env: Any) -> bool:
    return hasattr(type(env), "normalize_obs")  # wrappers hand on what objects inside of them have


class GymnasiumForm:
    """A VecEnv with the few methods of Gymnasium's VectorEnv that a rollout needs."""

    def __init__(self, env: Any) -> None:
        from gymnasium.vector import AutoresetMode

        self._env, self.num_envs = env, int(env.num_envs)
        self.envs = getattr(env, "envs", None) if not hasattr(env, "venv") else None
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """The first observations, part i being seeded with ``seed`` + i."""
        self._env.seed(seed)
        return self._env.reset(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Observations, rewards, terminated, truncated, and the last observations of what is over."""
        answer, whose = self._env.step(actions), "Stable-Baselines3's vector environments"
        observations, rewards, dones, infos = _parts(answer, "step", _STEP_OF_PARTS, 4, whose)
        done = _each(dones, "dones", bool, self.num_envs)
        if not isinstance(infos, tuple | list) or not all(isinstance(info, dict) for info in infos):
            raise InvalidInputError(
                f"env.step's infos must be a dictionary for each environment, got {shown(infos)}; correct it"
            )
        limits = [info.get("TimeLimit.truncated", False) for info in infos]
        cut = _each(limits, 'info["TimeLimit.truncated"]', bool, self.num_envs) & done
        finals = [info.get("terminal_observation") for info in infos]
        return observations, rewards, done & ~cut, cut, {"final_obs": finals}
