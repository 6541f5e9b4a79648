"""Pinball as Gymnasium environments: one ball, and many at once.

Both follow Gymnasium's contract: *terminated* means that the ball reached the target, *truncated* that a
time limit cut the episode off. ``reset(options={"state": ...})`` starts from a given state (or position,
at rest), otherwise from one of the maze's starts, at rest.
"""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from policyrisk._core.arrays import Bools, Floats, Ints, as_count, as_floats
from policyrisk._core.random import keys
from policyrisk.domains.pinball._geometry import grid_points, inside_any
from policyrisk.domains.pinball._kernels import FASTEST
from policyrisk.domains.pinball.maze import Maze
from policyrisk.domains.pinball.pinball import Pinball
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words, start_streams
from policyrisk.simulation.registration import register

Image: TypeAlias = npt.NDArray[np.uint8]
Rewards: TypeAlias = Literal["paper", "original"]

_PIXELS = 400
_COLOURS = {"floor": (247, 245, 240), "wall": (70, 74, 86), "target": (214, 69, 65), "ball": (44, 110, 187)}
_METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}
_VECTOR_METADATA: dict[str, Any] = {**_METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}


class _Balls:
    """What both environments share: the domain, the balls' states and streams, and their pictures."""

    def __init__(self, pinball: Pinball, balls: int, render_mode: str | None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InvalidInputError(
                f'render_mode must be None or "rgb_array", got {render_mode!r}; pass one of the two'
            )
        self.pinball = pinball
        self.render_mode = render_mode
        self._states: Floats | None = None
        self._words: Words = np.empty((balls, 2), np.uint64)

    def _spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Of one ball's observations and of its actions."""
        low, high = np.array([[0.0, 0.0, -FASTEST, -FASTEST], [1.0, 1.0, FASTEST, FASTEST]])
        return spaces.Box(low, high, dtype=np.float64), spaces.Discrete(self.pinball.actions)

    def _now(self, doing: str) -> Floats:
        """The states (balls, 4)."""
        if self._states is None:
            raise gym.error.ResetNeeded(f"{doing} was called before reset; call reset() first")
        return self._states

    def _draw_starts(self, rng: np.random.Generator, count: int) -> Floats:
        starts = self.pinball.maze.starts
        states = np.zeros((count, 4))
        states[:, :2] = starts[rng.integers(len(starts), size=count)]
        return states

    @cached_property
    def _floor(self) -> Image:
        """The maze without its balls, as an image (pixels, pixels, 3), the first row at y = 1."""
        maze, points = self.pinball.maze, grid_points(_PIXELS)
        colours = np.empty((len(points), 3), np.uint8)
        colours[:] = _COLOURS["floor"]
        colours[np.hypot(*(points - maze.target).T) < maze.target_radius] = _COLOURS["target"]
        colours[inside_any(*maze.edges, points)] = _COLOURS["wall"]
        return np.ascontiguousarray(colours.reshape(_PIXELS, _PIXELS, 3).transpose(1, 0, 2)[::-1])

    def _images(self) -> tuple[Image, ...] | None:
        """The maze, its target and the ball, for each ball; None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn(
                'render was called without a render mode; pass render_mode="rgb_array" to make or make_vec'
            )
            return None
        middle = (np.arange(_PIXELS) + 0.5) / _PIXELS
        images = []
        for x, y, *_ in self._now("render"):
            images.append(self._floor.copy())
            distance = np.hypot(middle[None, :] - x, middle[::-1, None] - y)
            images[-1][distance < self.pinball.maze.ball_radius] = _COLOURS["ball"]
        return tuple(images)


def _given_state(options: dict[str, Any] | None) -> Any:
    """``options["state"]``, None without one."""
    unknown = sorted(set(options or {}) - {"state"})
    if unknown:
        raise InvalidInputError(f"options must have no keys but state, got {unknown}; remove the others")
    return (options or {}).get("state")


class PinballEnv(_Balls, gym.Env[Floats, np.int64]):
    """One ball. Observations are the state (x, y, vx, vy); see :class:`Pinball` for the arguments."""

    metadata: dict[str, Any] = _METADATA

    def __init__(
        self,
        maze: str | PathLike[str] | Maze = "simple",
        noise: float = 0.03,
        rewards: Rewards = "paper",
        actions: int = 4,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(Pinball(maze, noise, rewards, actions), 1, render_mode)
        self.observation_space, self.action_space = self._spaces()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """A new episode, from ``options["state"]`` where given: (x, y, vx, vy), or (x, y) at rest."""
        super().reset(seed=seed)
        given = _given_state(options)
        if given is None:
            self._states = self._draw_starts(self.np_random, 1)
        else:
            row = as_floats(given, 'options["state"]', (None,))
            self._states = self.pinball.as_starts(row[None], 'options["state"]')
        start_streams(*keys(self.np_random), 0, self._words)
        return self._states[0].copy(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One action: observation, reward, terminated, truncated (never here) and an empty record."""
        states = self._now("step")
        chosen = self.pinball.as_actions([action], 1, "action")
        rewards, reached = self.pinball.act(states, chosen, self._words)
        return states[0].copy(), float(rewards[0]), bool(reached[0]), False, {}

    def render(self) -> Any:
        """The maze, its target and the ball as an RGB image, or None without a render mode."""
        images = self._images()
        return None if images is None else images[0]


class PinballVectorEnv(_Balls, VectorEnv[Floats, Any, Any]):
    """Many balls at once, stepped by compiled code; an episode that ended is reset by the next step."""

    metadata: dict[str, Any] = _VECTOR_METADATA

    def __init__(
        self,
        num_envs: int = 1,
        maze: str | PathLike[str] | Maze = "simple",
        noise: float = 0.03,
        rewards: Rewards = "paper",
        actions: int = 4,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.num_envs = as_count(num_envs, "num_envs", 1)
        super().__init__(Pinball(maze, noise, rewards, actions), self.num_envs, render_mode)
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
        """New episodes, from ``options["state"]`` where given: a row for each ball, or one for all."""
        if isinstance(seed, list):
            raise InvalidInputError(
                f"seed must be one int for all balls, got a list of {len(seed)}; each has a stream of its own"
            )
        super().reset(seed=seed)
        given = _given_state(options)
        if given is None:
            self._states = self._draw_starts(self.np_random, self.num_envs)
        else:
            rows = np.atleast_2d(np.asarray(given, dtype=np.float64))
            if len(rows) not in (1, self.num_envs):
                raise InvalidInputError(
                    f'options["state"] must have 1 or num_envs={self.num_envs} rows, got {len(rows)}; '
                    "pass one state, or one for each ball"
                )
            rows = np.broadcast_to(rows, (self.num_envs, rows.shape[1]))
            self._states = self.pinball.as_starts(rows, 'options["state"]')
        start_streams(*keys(self.np_random), 0, self._words)
        self._steps[:] = 0
        self._over[:] = False
        return self._states.copy(), {}

    def step(self, actions: Any) -> tuple[Floats, Floats, Bools, Bools, dict[str, Any]]:
        """One action each; where the last one ended an episode, a reset with reward 0 instead."""
        states = self._now("step").copy()
        chosen = self.pinball.as_actions(actions, self.num_envs, "actions")
        fresh = self._over
        rewards, terminated = self.pinball.act(states, chosen, self._words)
        self._steps += 1
        states[fresh] = self._draw_starts(self.np_random, int(fresh.sum()))
        rewards[fresh] = 0.0
        terminated[fresh] = False
        self._steps[fresh] = 0
        truncated = ~terminated & (self._steps >= self._limit)
        self._states = states
        self._over = terminated | truncated
        return states.copy(), rewards, terminated, truncated, {}

    def render(self) -> tuple[Any, ...] | None:
        """An image for each ball, or None without a render mode."""
        return self._images()


register()
