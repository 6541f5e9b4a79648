"""Stable-Baselines3's vector environments in the form of Gymnasium's.

A VecEnv resets its parts in the step that ends an episode (Gymnasium's SAME_STEP) and keeps the last
observation, and whether a time limit cut the episode off, in the part's info. VecNormalize around it scales
observations and rewards by running averages. Here it is taken off: the policy gets the observations that it
was trained on, scaled by the averages as they are, which no longer change; recorded are the states and the
rewards themselves.
"""

from __future__ import annotations

from typing import Any

from policyrisk._core.arrays import shown
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.answers import as_flags
from policyrisk.simulation.spaces import Choose


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
        answer = self._env.step(actions)
        if not isinstance(answer, tuple | list) or len(answer) != 4:
            raise InvalidInputError(
                "env.step must return (observations, rewards, dones, infos), as Stable-Baselines3's vector "
                f"environments do, got {shown(answer)}; correct it, or pass it as one of Gymnasium's"
            )
        observations, rewards, dones, infos = answer
        done = as_flags(dones, "dones", self.num_envs)
        if not isinstance(infos, tuple | list) or not all(isinstance(info, dict) for info in infos):
            raise InvalidInputError(
                f"env.step's infos must be a dictionary for each environment, got {shown(infos)}; correct it"
            )
        limits = [info.get("TimeLimit.truncated", False) for info in infos]
        cut = as_flags(limits, 'info["TimeLimit.truncated"]', self.num_envs) & done
        finals = [info.get("terminal_observation") for info in infos]
        return observations, rewards, done & ~cut, cut, {"final_obs": finals}
