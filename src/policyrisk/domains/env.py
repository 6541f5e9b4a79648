"""Our domains as Gymnasium environments, and what an environment of others is in time.

Ours, which ``gymnasium.make_vec`` puts many side by side, follow Gymnasium's contract: *terminated* means
that the episode came to its end, *truncated* that a time limit cut it off. ``reset(options={"state": ...})``
starts from a given state, as the domain's ``as_starts`` takes it; otherwise an episode starts in one of its
``first_states``. Observations are states.

A domain needs ``bounds``, the least and the largest states, to be an environment, and ``images(states)`` to
be drawn; :mod:`policyrisk.simulation` names those that are.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from policyrisk import domains
from policyrisk._core.arrays import Floats, as_array
from policyrisk._core.random import keys
from policyrisk.data.spaces import coordinate_names
from policyrisk.errors import InvalidInputError
from policyrisk.simulation import register
from policyrisk.simulation.compiled import Words, start_streams
from policyrisk.simulation.domain import EARNED
from policyrisk.simulation.environments import as_reset, as_step


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


class TimedEnv(gym.Wrapper[Floats, Any, Any, Any]):
    """Observations in a row with the step's number behind, noisy actions, and an end after ``steps`` steps.

    With ``reward_so_far`` the sum of the rewards up to there stands behind that.

    Discrete actions are 0, …, n − 1; Box actions are in units of half their range, from its middle, and what
    is beyond is clipped.
    """

    def __init__(self, env: gym.Env[Any, Any], steps: int, noise: float, reward_so_far: bool = False) -> None:
        super().__init__(env)
        self._steps, self._noise, self._t = steps, noise, 0
        self._seen, self._earned = reward_so_far, 0.0
        seen, acts = env.observation_space, env.action_space
        if not isinstance(seen, spaces.Box | spaces.Discrete):
            raise InvalidInputError(
                f"env must have observations that are numbers, got {seen}; wrap it, for example with "
                "gymnasium's FlattenObservation"
            )
        names = coordinate_names(env)
        added = ("time", EARNED) if reward_so_far else ("time",)
        if names is not None and not set(added) & set(names):
            self.state_names = (*names, *added)
        low, high = (
            (seen.low.ravel(), seen.high.ravel())
            if isinstance(seen, spaces.Box)
            else ([seen.start], [seen.start + seen.n - 1])
        )
        more = [np.inf] if reward_so_far else []
        bounds = np.array([[*low, 0.0, *np.negative(more)], [*high, float(steps), *more]])
        self.observation_space = spaces.Box(*bounds, dtype=np.float64)
        if isinstance(acts, spaces.Discrete):
            if noise > 1:
                raise InvalidInputError(
                    f"action_noise must be a probability where actions are discrete, got {noise:g}; pass at "
                    "most 1"
                )
            self.action_space = spaces.Discrete(acts.n)
        elif isinstance(acts, spaces.Box):
            self.action_space = spaces.Box(-np.inf, np.inf, (int(np.prod(acts.shape)),), np.float64)
        else:
            raise InvalidInputError(
                f"env must have Discrete or Box actions, got {acts}; wrap it so that it has"
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """A new episode, at step 0."""
        answer = self.env.reset(seed=seed, options=options)
        seen = as_reset(answer)
        self._t, self._earned = 0, 0.0
        # A stream of its own: the environment's must not depend on how often there was noise.
        if seed is not None:
            self._rng = np.random.default_rng([seed, 1])
        return self._row(seen), answer[1]

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One step; the last one ends the episode, which is never cut off."""
        answer = self.env.step(self._noisy(action))
        seen, reward, ended, cut = as_step(answer)
        self._t += 1
        self._earned += reward
        return self._row(seen), reward, ended or cut or self._t >= self._steps, False, answer[4]

    def _row(self, seen: Any) -> Floats:
        more = [float(self._t), self._earned] if self._seen else [float(self._t)]
        return np.append(np.asarray(seen, dtype=np.float64).ravel(), more)

    def _noisy(self, action: Any) -> Any:
        acts = self.env.action_space
        if isinstance(acts, spaces.Discrete):
            random, other = self._rng.random(), int(self._rng.integers(acts.n))
            return int(acts.start) + (other if random < self._noise else int(action))
        assert isinstance(acts, spaces.Box)
        given = action + self._noise * self._rng.standard_normal(np.shape(action))
        middle, half = self._range()
        moved = np.reshape(middle + half * given.ravel(), acts.shape)
        return np.clip(moved, acts.low, acts.high).astype(acts.dtype)

    def units(self, actions: Floats) -> Floats:
        """The environment's own Box actions (n, k), in the units that this one takes."""
        middle, half = self._range()
        return (actions - middle) / half

    def _range(self) -> tuple[Floats, Floats]:
        """The middle of the Box actions' range and half of it, (k,) each; 0 and 1 where it is unbounded."""
        acts = self.env.action_space
        assert isinstance(acts, spaces.Box)
        bounded = np.isfinite(acts.low) & np.isfinite(acts.high)
        low, high = np.where(bounded, acts.low, -1.0).ravel(), np.where(bounded, acts.high, 1.0).ravel()
        return (low + high) / 2, (high - low) / 2


register()
