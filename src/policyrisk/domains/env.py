"""Our domains as Gymnasium environments: a single one, and many that are stepped together.

Both follow Gymnasium's contract: *terminated* means that the episode came to its end, *truncated* that a time
limit cut it off. ``reset(options={"state": ...})`` starts from a given state, as the domain's ``as_starts``
takes it; otherwise an episode starts in one of its ``first_states``. Observations are states.

A domain needs ``bounds``, the least and the largest states, to be an environment, and ``images(states)`` to
be drawn; :mod:`policyrisk.simulation.registration` names those that are.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from policyrisk import domains
from policyrisk._core.arrays import Bools, Floats, Ints, as_array, as_count
from policyrisk._core.random import keys
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words, start_streams
from policyrisk.simulation.registration import register

_METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}
_VECTOR_METADATA: dict[str, Any] = {**_METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}


class _Running:
    """What both environments share: the domain, its states and streams, and their pictures."""

    def __init__(self, domain: str, count: int, render_mode: str | None, arguments: dict[str, Any]) -> None:
        self.domain: Any = getattr(domains, domain)(**arguments)
        if render_mode is not None and not (render_mode == "rgb_array" and hasattr(self.domain, "images")):
            raise InvalidInputError(
                f'render_mode must be None, or "rgb_array" for a domain with pictures, got {render_mode!r} '
                f"for {self.domain!r}; pass one of the two"
            )
        self.render_mode = render_mode
        self._states: Floats | None = None
        self._words: Words = np.empty((count, 2), np.uint64)

    def _spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Of the observations and of the actions of one."""
        low, high = self.domain.bounds
        return spaces.Box(low, high, dtype=np.float64), spaces.Discrete(self.domain.actions)

    def _now(self, doing: str) -> Floats:
        """The states (count, dim)."""
        if self._states is None:
            raise gym.error.ResetNeeded(f"{doing} was called before reset; call reset() first")
        return self._states

    def _begin(self, rng: np.random.Generator, options: dict[str, Any] | None) -> Floats:
        """New episodes, from ``options["state"]`` where given: a row for each, or one for all."""
        unknown = sorted(set(options or {}) - {"state"})
        if unknown:
            raise InvalidInputError(f"options must have no keys but state, got {unknown}; remove the others")
        count, given = len(self._words), (options or {}).get("state")
        if given is None:
            self._states = self.domain.first_states(count, rng)
        else:
            rows = np.atleast_2d(as_array(given, 'options["state"]', "states"))
            if len(rows) not in (1, count):
                raise InvalidInputError(
                    f'options["state"] must have 1 or num_envs={count} rows, got {len(rows)}; pass one, '
                    "or one for each environment"
                )
            rows = np.broadcast_to(rows, (count, rows.shape[1]))
            self._states = self.domain.as_starts(rows, 'options["state"]')
        start_streams(*keys(rng), 0, self._words)
        assert self._states is not None
        return self._states.copy()

    def _images(self) -> Any:
        """A picture of each state; None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn(
                'render was called without a render mode; pass render_mode="rgb_array" to make or make_vec'
            )
            return None
        return self.domain.images(self._now("render"))


class DomainEnv(_Running, gym.Env[Floats, np.int64]):
    """One environment of a domain of ours, named as in :mod:`policyrisk.domains`, with its arguments.

    >>> env = DomainEnv("Pinball", maze="empty", noise=0.0)
    >>> env.reset(options={"state": [0.5, 0.5]})[0].tolist(), env.step(3)[1:4]
    ([0.5, 0.5, 0.0, 0.0], (-1.0, False, False))
    """

    metadata: dict[str, Any] = _METADATA

    def __init__(self, domain: str, render_mode: str | None = None, **arguments: Any) -> None:
        super().__init__(domain, 1, render_mode, arguments)
        self.observation_space, self.action_space = self._spaces()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """A new episode, from ``options["state"]`` where given."""
        super().reset(seed=seed)
        return self._begin(self.np_random, options)[0], {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One action: observation, reward, terminated, truncated (never here) and an empty record."""
        states = self._now("step")
        chosen = self.domain.as_actions([action], 1, "action")
        rewards, ended = self.domain.act(states, chosen, self._words)
        return states[0].copy(), float(rewards[0]), bool(ended[0]), False, {}

    def render(self) -> Any:
        """The state as an RGB image, or None without a render mode."""
        images = self._images()
        return None if images is None else images[0]


class DomainVectorEnv(_Running, VectorEnv[Floats, Any, Any]):
    """Many at once, stepped by compiled code; an episode that ended is reset by the next step."""

    metadata: dict[str, Any] = _VECTOR_METADATA

    def __init__(
        self,
        domain: str,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        self.num_envs = as_count(num_envs, "num_envs", 1)
        super().__init__(domain, self.num_envs, render_mode, arguments)
        self.single_observation_space, self.single_action_space = self._spaces()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        unlimited = max_episode_steps is None
        self._limit = 2**62 if unlimited else as_count(max_episode_steps, "max_episode_steps", 1)
        self._steps: Ints = np.zeros(self.num_envs, np.int64)
        self._over: Bools = np.zeros(self.num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """New episodes, from ``options["state"]`` where given: a row for each, or one for all."""
        if isinstance(seed, list):
            raise InvalidInputError(
                f"seed must be one int for all, got a list of {len(seed)}; each has a stream of its own"
            )
        super().reset(seed=seed)
        self._steps[:] = 0
        self._over[:] = False
        return self._begin(self.np_random, options), {}

    def step(self, actions: Any) -> tuple[Floats, Floats, Bools, Bools, dict[str, Any]]:
        """One action each; where the last one ended an episode, a reset with reward 0 instead."""
        states = self._now("step").copy()
        chosen = self.domain.as_actions(actions, self.num_envs, "actions")
        fresh = self._over
        rewards, terminated = self.domain.act(states, chosen, self._words)
        self._steps += 1
        states[fresh] = self.domain.first_states(int(fresh.sum()), self.np_random)
        rewards[fresh] = 0.0
        terminated[fresh] = False
        self._steps[fresh] = 0
        truncated = ~terminated & (self._steps >= self._limit)
        self._states = states
        self._over = terminated | truncated
        return states.copy(), rewards, terminated, truncated, {}

    def render(self) -> tuple[Any, ...] | None:
        """An image of each, or None without a render mode."""
        images: tuple[Any, ...] | None = self._images()
        return images


register()
