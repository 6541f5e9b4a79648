"""Our domains as Gymnasium environments; ``gymnasium.make_vec`` puts many side by side.

They follow Gymnasium's contract: *terminated* means that the episode came to its end, *truncated* that a time
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

from policyrisk import domains
from policyrisk._core.arrays import Floats, as_array
from policyrisk._core.random import keys
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words, start_streams
from policyrisk.simulation.registration import register


class DomainEnv(gym.Env[Floats, np.int64]):
    """One environment of a domain of ours, named as in :mod:`policyrisk.domains`, with its arguments.

    >>> env = DomainEnv("Pinball", maze="empty", noise=0.0)
    >>> env.reset(options={"state": [0.5, 0.5]})[0].tolist(), env.step(3)[1:4]
    ([0.5, 0.5, 0.0, 0.0], (-1.0, False, False))
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, domain: str, render_mode: str | None = None, **arguments: Any) -> None:
        self.domain: Any = getattr(domains, domain)(**arguments)
        if render_mode is not None and not (render_mode == "rgb_array" and hasattr(self.domain, "images")):
            raise InvalidInputError(
                f'render_mode must be None, or "rgb_array" for a domain with pictures, got {render_mode!r} '
                f"for {self.domain!r}; pass one of the two"
            )
        self.render_mode = render_mode
        low, high = self.domain.bounds
        self.observation_space = spaces.Box(low, high, dtype=np.float64)
        self.action_space = spaces.Discrete(self.domain.actions)
        self._states: Floats | None = None
        self._words: Words = np.empty((1, 2), np.uint64)

    def _now(self, doing: str) -> Floats:
        """The state (1, dim)."""
        if self._states is None:
            raise gym.error.ResetNeeded(f"{doing} was called before reset; call reset() first")
        return self._states

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """A new episode, from ``options["state"]`` where given."""
        super().reset(seed=seed)
        unknown = sorted(set(options or {}) - {"state"})
        if unknown:
            raise InvalidInputError(f"options must have no keys but state, got {unknown}; remove the others")
        given = (options or {}).get("state")
        if given is None:
            states = self.domain.first_states(1, self.np_random)
        else:
            rows = np.atleast_2d(as_array(given, 'options["state"]', "states"))
            if len(rows) != 1:
                raise InvalidInputError(f'options["state"] must be one state, got {len(rows)}; pass one')
            states = self.domain.as_starts(rows, 'options["state"]')
        start_streams(*keys(self.np_random), 0, self._words)
        self._states = states
        return states[0].copy(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One action: observation, reward, terminated, truncated (never here) and an empty record."""
        states = self._now("step")
        chosen = self.domain.as_actions([action], 1, "action")
        rewards, ended = self.domain.act(states, chosen, self._words)
        return states[0].copy(), float(rewards[0]), bool(ended[0]), False, {}

    def render(self) -> Any:
        """The state as an RGB image, or None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn('render was called without a render mode; pass render_mode="rgb_array" to make')
            return None
        return self.domain.images(self._now("render"))[0]


register()
