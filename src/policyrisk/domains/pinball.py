"""The pinball domain of Konidaris and Barto (2009): a ball in a maze, pushed until it reaches a target.

A state is (x, y, vx, vy), positions in [0, 1]². Actions: 0 +x, 1 +y, 2 −x, 3 −y, 4 none. An action adds
0.2 to a velocity component, and Gaussian noise with standard deviation ``noise`` to both; each is then
clipped to [−1, 1]; the ball moves and bounces for 20 sub-steps of R/20; drag takes 0.5% of the velocity.
After a bounce a component may exceed 1, up to √2.

The paper's rewards are −1 for every action; the original program's are −5 for a thrust, −1 for none and
10000 for the action that reaches the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import (
    Floats,
    Seed,
    as_count,
    as_floats,
    as_number,
    as_states,
    check_choice,
    name_some,
)
from policyrisk._core.random import below, generator
from policyrisk.domains import _pinball_kernels as kernels
from policyrisk.domains.maze import Maze, grid_points, inside_any, near_lists, nearest_distance
from policyrisk.errors import InvalidInputError
from policyrisk.simulation import register_if_loaded
from policyrisk.simulation.compiled import register_policy
from policyrisk.simulation.domain import CompiledDomain

Image: TypeAlias = npt.NDArray[np.uint8]

_CELLS = 256  # of the physics' grid along each axis: finer costs memory traffic, coarser more tests
_PIXELS = 400
_COLOURS = {"floor": (247, 245, 240), "wall": (70, 74, 86), "target": (214, 69, 65), "ball": (44, 110, 187)}
_REWARDS = {"paper": (-1.0, -1.0, -1.0), "original": (-1.0, -5.0, 10000.0)}  # idle, thrust, target


class Pinball(CompiledDomain):
    """A pinball maze with noise, rewards and four or five actions.

    Parameters
    ----------
    maze
        "simple", "medium", "hard", "box", "empty", the path of a JSON file (see
        :mod:`policyrisk.domains.maze`), or a :class:`Maze`.
    noise
        The standard deviation of what each action adds to both velocities by chance.
    rewards
        "paper" or "original".
    actions
        4, or 5 with one that does nothing.

    Examples
    --------
    >>> pinball = Pinball("empty", noise=0.0)
    >>> states, rewards, terminated = pinball.step([[0.5, 0.5, 0.0, 0.0]], [0])
    >>> states.round(6).tolist(), rewards.tolist(), terminated.tolist()
    ([[0.504, 0.5, 0.199, 0.0]], [-1.0], [False])
    """

    maze: Maze
    noise: float
    rewards: Literal["paper", "original"]
    actions: int

    def __init__(
        self,
        maze: str | PathLike[str] | Maze = "simple",
        noise: float = 0.03,
        rewards: Literal["paper", "original"] = "paper",
        actions: int = 4,
    ) -> None:
        self.maze = _as_maze(maze)
        self.noise = as_number(noise, "noise", 0.0, remedy="pass a standard deviation, or 0 for none")
        check_choice(rewards, "rewards", tuple(_REWARDS))
        self.rewards = rewards
        self.actions = as_count(actions, "actions", 4, 5)  # thrusts, or thrusts and none
        register_if_loaded()  # a user of the domain may want its environment

    def __repr__(self) -> str:
        return (
            f"Pinball(maze={self.maze.name!r}, noise={self.noise:g}, rewards={self.rewards!r}, "
            f"actions={self.actions})"
        )

    def compiled(self) -> kernels.PinballTable:
        """The table for compiled code, see :mod:`policyrisk.simulation.compiled`."""
        return self._table

    @cached_property
    def _table(self) -> kernels.PinballTable:
        maze = self.maze
        R = maze.ball_radius
        edges, owners = maze.edges
        centres = grid_points(_CELLS)
        # Every point of a cell is this near to its centre; the little more is for rounding.
        half = math.sqrt(0.5) / _CELLS + 1e-9
        to_edge = nearest_distance(edges, centres) - R
        to_target = np.hypot(*(centres - maze.target).T) - maze.target_radius
        clearance = np.maximum(np.minimum(to_edge, to_target) - half, 0.0)
        near_from, near = near_lists(edges, centres, R * (1.0 + kernels.FASTEST) + half)
        idle, thrust, target = _REWARDS[self.rewards]
        return kernels.PinballTable(
            radius=R,
            target_x=float(maze.target[0]),
            target_y=float(maze.target[1]),
            target_radius=maze.target_radius,
            noise=self.noise,
            idle_reward=idle,
            thrust_reward=thrust,
            target_reward=target,
            edges=edges,
            owners=owners,
            clearance=(clearance**2).reshape(_CELLS, _CELLS),
            near_from=near_from,
            near=near,
        )

    def sample_starts(self, n: int, seed: Seed = None, velocity: float | None = None) -> Floats:
        """n states (n, 4) uniform on the free region connected to the target, outside the target.

        At rest, or with each velocity component uniform on [−velocity, velocity].

        >>> Pinball("hard").sample_starts(2, seed=0).shape
        (2, 4)
        """
        count = as_count(n, "n")
        rng = generator(seed)
        states = np.zeros((count, 4))
        found = 0
        while found < count:
            points = rng.random((2 * (count - found) + 64, 2))
            points = points[self.maze.playable(points)][: count - found]
            states[found : found + len(points), :2] = points
            found += len(points)
        if velocity is not None:
            fastest = as_number(velocity, "velocity", 0.0, 1.0, remedy="pass None for a start at rest")
            states[:, 2:] = rng.uniform(-abs(fastest), abs(fastest), (count, 2))  # of −0.0
        return states

    def first_states(self, n: int, seed: Seed = None) -> Floats:
        """One of the maze's starts for each of n balls, at rest."""
        states = np.zeros((n, 4))
        states[:, :2] = self.maze.starts[generator(seed).integers(len(self.maze.starts), size=n)]
        return states

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """The least and the largest states (4,)."""
        fastest = kernels.FASTEST
        return np.array([0.0, 0.0, -fastest, -fastest]), np.array([1.0, 1.0, fastest, fastest])

    def images(self, states: Floats) -> tuple[Image, ...]:
        """The maze, its target and the ball, for each state: (pixels, pixels, 3), the first row at y = 1."""
        middle = (np.arange(_PIXELS) + 0.5) / _PIXELS
        images = []
        for x, y, *_ in as_floats(states, "states", (None, 4)):
            images.append(self._floor.copy())
            distance = np.hypot(middle[None, :] - x, middle[::-1, None] - y)
            images[-1][distance < self.maze.ball_radius] = _COLOURS["ball"]
        return tuple(images)

    @cached_property
    def _floor(self) -> Image:
        """The image without a ball."""
        maze, points = self.maze, grid_points(_PIXELS)
        colours = np.empty((len(points), 3), np.uint8)
        colours[:] = _COLOURS["floor"]
        colours[np.hypot(*(points - maze.target).T) < maze.target_radius] = _COLOURS["target"]
        colours[inside_any(*maze.edges, points)] = _COLOURS["wall"]
        return np.ascontiguousarray(colours.reshape(_PIXELS, _PIXELS, 3).transpose(1, 0, 2)[::-1])

    def as_starts(self, value: object, name: str) -> Floats:
        """Checked states (n, 4), a copy; positions (n, 2) get a velocity of 0."""
        given = as_floats(value, name, (None, None))
        if given.shape[1] == 2:
            given = np.column_stack([given, np.zeros_like(given)])
        states = as_floats(given, name, (None, 4)).copy()
        outside = np.flatnonzero(((states[:, :2] < 0.0) | (states[:, :2] > 1.0)).any(axis=1))
        if outside.size:
            raise InvalidInputError(
                f"{name} must have positions in [0, 1]², got {states[outside[0], :2].tolist()} in row "
                f"{outside[0]}; correct rows {name_some(outside)}"
            )
        trapped = np.flatnonzero(inside_any(*self.maze.edges, states[:, :2]))
        if trapped.size:
            raise InvalidInputError(
                f"{name} must be outside every obstacle, where a ball is trapped, got "
                f"{states[trapped[0], :2].tolist()} in row {trapped[0]}; correct rows "
                f"{name_some(trapped)}, or use sample_starts"
            )
        return states


def _as_maze(maze: str | PathLike[str] | Maze) -> Maze:
    if isinstance(maze, Maze):
        return maze
    if isinstance(maze, PathLike) or (isinstance(maze, str) and maze.endswith(".json")):
        return Maze.load(maze)
    return Maze.named(maze)


class UniformTable(NamedTuple):
    """What the kernel knows of a uniform policy."""

    actions: int


@njit(cache=True)
def _choose(
    table: UniformTable, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[np.int64, np.uint64, np.uint64]:
    return below(table.actions, s0, s1)


register_policy(UniformTable, _choose)


@dataclass(frozen=True)
class UniformPolicy:
    """Every action with the same probability, whatever the state.

    Parameters
    ----------
    actions
        How many.

    Examples
    --------
    >>> UniformPolicy(actions=5)
    UniformPolicy(actions=5)
    """

    actions: int = 4

    def __post_init__(self) -> None:
        as_count(self.actions, "actions", 1)

    def probabilities(self, states: npt.ArrayLike) -> Floats:
        """π(a|x) = 1/actions, of shape (n, actions)."""
        return np.full((len(as_states(states)), self.actions), 1.0 / self.actions)

    def compiled(self) -> UniformTable:
        """The table that compiled code follows."""
        return UniformTable(self.actions)
