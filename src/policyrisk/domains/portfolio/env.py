"""The portfolio as a Gymnasium environment.

*terminated* means that the last period is over; nothing is ever truncated. ``reset(options={"state": ...})``
starts from a given state, otherwise episodes start with all wealth liquid.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from policyrisk._core.arrays import Floats, as_floats
from policyrisk._core.random import keys
from policyrisk.domains.portfolio._kernels import HIGH, LOW, PERIODS, SLOTS
from policyrisk.domains.portfolio.portfolio import Portfolio
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words, start_streams
from policyrisk.simulation.registration import register


class PortfolioEnv(gym.Env[Floats, np.int64]):
    """One portfolio. Observations are the state (period, rate, four slots), see :class:`Portfolio`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self) -> None:
        self.portfolio = Portfolio()
        low, high = [0.0, LOW] + [0.0] * SLOTS, [PERIODS, HIGH] + [1.0] * SLOTS
        self.observation_space = spaces.Box(np.array(low), np.array(high), dtype=np.float64)
        self.action_space = spaces.Discrete(self.portfolio.actions)
        self._states: Floats | None = None
        self._words: Words = np.empty((1, 2), np.uint64)

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
            self._states = self.portfolio.sample_starts(1)
        else:
            row = as_floats(given, 'options["state"]', (None,))
            self._states = self.portfolio.as_starts(row[None], 'options["state"]')
        start_streams(*keys(self.np_random), 0, self._words)
        return self._states[0].copy(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One action: observation, reward, terminated, truncated (never here) and an empty record."""
        if self._states is None:
            raise gym.error.ResetNeeded("step was called before reset; call reset() first")
        chosen = self.portfolio.as_actions([action], 1, "action")
        rewards, ended = self.portfolio.act(self._states, chosen, self._words)
        return self._states[0].copy(), float(rewards[0]), bool(ended[0]), False, {}


register()
