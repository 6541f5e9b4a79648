"""Pinball as Gymnasium environments: one ball, and many at once.

Both follow Gymnasium's contract: *terminated* means that the ball reached the target, *truncated* that a
time limit cut the episode off. ``reset(options={"state": ...})`` starts from a given state (or position,
at rest), otherwise from one of the maze's starts, at rest.
"""

from __future__ import annotations

import math
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
from policyrisk.domains.pinball.maze import Maze
from policyrisk.domains.pinball.pinball import Pinball
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words, start_streams
from policyrisk.simulation.registration import register

__all__ = ["PinballEnv", "PinballVectorEnv"]

Image: TypeAlias = npt.NDArray[np.uint8]
Rewards: TypeAlias = Literal["paper", "original"]

_PIXELS = 400
_COLOURS = {"floor": (247, 245, 240), "wall": (70, 74, 86), "target": (214, 69, 65), "ball": (44, 110, 187)}
_SPEED = math.sqrt(2.0)
_NO_MODE = 'render was called without a render mode; pass render_mode="rgb_array" when making the environment'
_METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}
_VECTOR_METADATA: dict[str, Any] = {**_METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}


def _spaces(pinball: Pinball) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    low = np.array([0.0, 0.0, -_SPEED, -_SPEED])
    high = np.array([1.0, 1.0, _SPEED, _SPEED])
    return spaces.Box(low, high, dtype=np.float64), spaces.Discrete(pinball.actions)


def _check_options(options: dict[str, Any] | None, known: set[str]) -> dict[str, Any]:
    unknown = sorted(set(options or {}) - known)
    if unknown:
        raise InvalidInputError(
            f"options must have no keys but {', '.join(sorted(known))}, got {unknown}; remove the others"
        )
    return options or {}


def _check_render_mode(render_mode: str | None) -> str | None:
    if render_mode not in (None, "rgb_array"):
        raise InvalidInputError(
            f'render_mode must be None or "rgb_array", got {render_mode!r}; pass one of the two'
        )
    return render_mode


def _draw_floor(maze: Maze) -> Image:
    """The maze without its ball, as an image (pixels, pixels, 3), the first row at y = 1."""
    points = grid_points(_PIXELS)
    colours = np.empty((len(points), 3), np.uint8)
    colours[:] = _COLOURS["floor"]
    colours[np.hypot(*(points - maze.target).T) < maze.target_radius] = _COLOURS["target"]
    colours[inside_any(*maze.edges, points)] = _COLOURS["wall"]
    return np.ascontiguousarray(colours.reshape(_PIXELS, _PIXELS, 3).transpose(1, 0, 2)[::-1])


def _draw_ball(floor: Image, maze: Maze, state: Floats) -> Image:
    image = floor.copy()
    middle = (np.arange(_PIXELS) + 0.5) / _PIXELS
    distance = np.hypot(middle[None, :] - state[0], middle[::-1, None] - state[1])
    image[distance < maze.ball_radius] = _COLOURS["ball"]
    return image


class PinballEnv(gym.Env[Floats, np.int64]):
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
        self.pinball = Pinball(maze, noise, rewards, actions)
        self.observation_space, self.action_space = _spaces(self.pinball)
        self.render_mode = _check_render_mode(render_mode)
        self._state: Floats | None = None
        self._words: Words = np.empty((1, 2), np.uint64)
        self._floor: Image | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """A new episode, from ``options["state"]`` where given: (x, y, vx, vy), or (x, y) at rest."""
        super().reset(seed=seed)
        given = _check_options(options, {"state"}).get("state")
        if given is None:
            starts = self.pinball.maze.starts
            given = starts[self.np_random.integers(len(starts))]
        row = as_floats(given, 'options["state"]', (None,))
        self._state = self.pinball.as_starts(row[None], 'options["state"]')
        start_streams(*keys(self.np_random), 0, self._words)
        return self._state[0].copy(), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One action: observation, reward, terminated, truncated (never here) and an empty record."""
        if self._state is None:
            raise gym.error.ResetNeeded("step was called before reset; call reset() first")
        chosen = self.pinball.as_actions([action], 1, "action")
        rewards, reached = self.pinball.act(self._state, chosen, self._words)
        return self._state[0].copy(), float(rewards[0]), bool(reached[0]), False, {}

    def render(self) -> Any:
        """The maze, its target and the ball as an RGB image, or None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn(_NO_MODE)
            return None
        if self._state is None:
            raise gym.error.ResetNeeded("render was called before reset; call reset() first")
        if self._floor is None:
            self._floor = _draw_floor(self.pinball.maze)
        return _draw_ball(self._floor, self.pinball.maze, self._state[0])


class PinballVectorEnv(VectorEnv[Floats, Any, Any]):
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
        self.pinball = Pinball(maze, noise, rewards, actions)
        self.num_envs = as_count(num_envs, "num_envs", 1)
        self.single_observation_space, self.single_action_space = _spaces(self.pinball)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = _check_render_mode(render_mode)
        self._limit = (
            np.iinfo(np.int64).max
            if max_episode_steps is None
            else as_count(max_episode_steps, "max_episode_steps", 1)
        )
        self._states: Floats | None = None
        self._words: Words = np.empty((self.num_envs, 2), np.uint64)
        self._steps: Ints = np.zeros(self.num_envs, np.int64)
        self._over: Bools = np.zeros(self.num_envs, np.bool_)
        self._floor: Image | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """New episodes, from ``options["state"]`` where given: a row for each ball, or one for all."""
        if isinstance(seed, list):
            raise InvalidInputError(
                f"seed must be one int for all balls, got a list of {len(seed)}; each has a stream of its own"
            )
        super().reset(seed=seed)
        given = _check_options(options, {"state"}).get("state")
        if given is None:
            self._states = self._draw_starts(self.num_envs)
        else:
            rows = np.atleast_2d(np.asarray(given, dtype=np.float64))
            if len(rows) == 1:
                rows = np.repeat(rows, self.num_envs, axis=0)
            if len(rows) != self.num_envs:
                raise InvalidInputError(
                    f'options["state"] must have 1 or num_envs={self.num_envs} rows, got {len(rows)}; '
                    "pass one state, or one for each ball"
                )
            self._states = self.pinball.as_starts(rows, 'options["state"]')
        start_streams(*keys(self.np_random), 0, self._words)
        self._steps[:] = 0
        self._over[:] = False
        return self._states.copy(), {}

    def step(self, actions: Any) -> tuple[Floats, Floats, Bools, Bools, dict[str, Any]]:
        """One action each; where the last one ended an episode, a reset with reward 0 instead."""
        if self._states is None:
            raise gym.error.ResetNeeded("step was called before reset; call reset() first")
        chosen = self.pinball.as_actions(actions, self.num_envs, "actions")
        fresh = self._over
        states = self._states.copy()
        rewards, terminated = self.pinball.act(states, chosen, self._words)
        self._steps += 1
        states[fresh] = self._draw_starts(int(fresh.sum()))
        rewards[fresh] = 0.0
        terminated[fresh] = False
        self._steps[fresh] = 0
        truncated = ~terminated & (self._steps >= self._limit)
        self._states = states
        self._over = terminated | truncated
        return states.copy(), rewards, terminated, truncated, {}

    def render(self) -> tuple[Any, ...] | None:
        """An image for each ball, or None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn(
                'render was called without a render mode; pass render_mode="rgb_array" to make_vec'
            )
            return None
        if self._states is None:
            raise gym.error.ResetNeeded("render was called before reset; call reset() first")
        if self._floor is None:
            self._floor = _draw_floor(self.pinball.maze)
        return tuple(_draw_ball(self._floor, self.pinball.maze, state) for state in self._states)

    def _draw_starts(self, count: int) -> Floats:
        starts = self.pinball.maze.starts
        states = np.zeros((count, 4))
        states[:, :2] = starts[self.np_random.integers(len(starts), size=count)]
        return states


register()
