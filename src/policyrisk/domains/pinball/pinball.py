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
from collections.abc import Callable
from functools import cached_property
from os import PathLike
from typing import Any, Literal, TypeAlias

import numpy as np

from policyrisk._core.arrays import Bools, Floats, Ints, Seed, as_count, as_floats, as_number, name_some
from policyrisk._core.random import generator, keys
from policyrisk.domains.pinball import _kernels
from policyrisk.domains.pinball._geometry import grid_points, inside_any, near_lists, nearest_distance
from policyrisk.domains.pinball.maze import Maze
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.simulation.compiled import CompiledPolicy, Returns, Words, run, run_returns, start_streams
from policyrisk.simulation.probabilities import drawn_actions, told_propensities, with_propensities
from policyrisk.simulation.recorder import EpisodeRecorder
from policyrisk.simulation.registration import register_if_loaded
from policyrisk.trajectories import Trajectories

Policy: TypeAlias = "CompiledPolicy | Callable[[Floats], Any]"

_CELLS = 256  # of the physics' grid along each axis: finer costs memory traffic, coarser more tests
_REWARDS = {"paper": (-1.0, -1.0, -1.0), "original": (-1.0, -5.0, 10000.0)}  # idle, thrust, target


class Pinball:
    """A pinball maze with noise, rewards and four or five actions.

    ``maze`` is "simple", "medium", "hard", "box", "empty", the path of a JSON file (see
    :mod:`policyrisk.domains.pinball.maze`), or a :class:`Maze`.

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
        if rewards not in _REWARDS:
            raise InvalidInputError(
                f'rewards must be "paper" or "original", got {rewards!r}; pass one of the two'
            )
        if actions not in (4, 5):
            raise InvalidInputError(
                f"actions must be 4 (thrusts) or 5 (thrusts and none), got {actions!r}; pass one of the two"
            )
        self.rewards = rewards
        self.actions = int(actions)
        register_if_loaded()  # a user of the domain may want its environment

    def __repr__(self) -> str:
        return (
            f"Pinball(maze={self.maze.name!r}, noise={self.noise:g}, rewards={self.rewards!r}, "
            f"actions={self.actions})"
        )

    def compiled(self) -> _kernels.PinballTable:
        """The table for compiled code, see :mod:`policyrisk.simulation.compiled`."""
        return self._table

    @cached_property
    def _table(self) -> _kernels.PinballTable:
        maze = self.maze
        R = maze.ball_radius
        edges, owners = maze.edges
        centres = grid_points(_CELLS)
        # Every point of a cell is this near to its centre; the little more is for rounding.
        half = math.sqrt(0.5) / _CELLS + 1e-9
        to_edge = nearest_distance(edges, centres) - R
        to_target = np.hypot(*(centres - maze.target).T) - maze.target_radius
        clearance = np.maximum(np.minimum(to_edge, to_target) - half, 0.0)
        near_from, near = near_lists(edges, centres, R * (1.0 + _kernels.FASTEST) + half)
        idle, thrust, target = _REWARDS[self.rewards]
        return _kernels.PinballTable(
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

    def step(self, states: object, actions: object, seed: Seed = None) -> tuple[Floats, Floats, Bools]:
        """One action from each state: next states (n, 4), rewards (n,), terminated (n,).

        Row i draws its noise from stream i of the seed.
        """
        now = self.as_starts(states, "states")
        chosen = self.as_actions(actions, len(now), "actions")
        words = np.empty((len(now), 2), np.uint64)
        start_streams(*keys(seed), 0, words)
        rewards, reached = self.act(now, chosen, words)
        return now, rewards, reached

    def rollout(
        self, policy: Policy, starts: object, seed: Seed = None, max_steps: int = 10_000
    ) -> Trajectories:
        """An episode from each start, until the target or for ``max_steps`` actions.

        ``starts`` are states (n, 4), or positions (n, 2) at rest. ``policy`` is one of ours, run
        compiled and in parallel, or any function from states (m, 4) to actions (m,), called once a
        step with all episodes that still go on; it may answer with probabilities (m, actions), from
        which its actions are drawn. Episode i draws from stream i of the seed, so that the same seed
        gives the same episodes on any number of threads. The actions are recorded, and so are their
        probabilities where the policy tells them (:mod:`policyrisk.simulation.probabilities`).

        >>> from policyrisk.domains.pinball import UniformPolicy
        >>> pinball = Pinball("empty")
        >>> data = pinball.rollout(UniformPolicy(), pinball.sample_starts(3, seed=0), seed=1)
        >>> len(data), data.dim, data.terminated.tolist()
        (3, 4, [True, True, True])
        """
        now = self.as_starts(starts, "starts")
        most = as_count(max_steps, "max_steps", 1)
        if isinstance(policy, CompiledPolicy):
            data = Trajectories(*run(self._table, self._as_table(policy), now, keys(seed), most))
            return with_propensities(data, policy, policy.actions)
        if not callable(policy):
            raise InvalidInputError(
                "policy must be one of ours or a function from states (n, 4) to actions (n,), "
                f"got {policy!r}; pass for example UniformPolicy({self.actions})"
            )
        return self._run_callable(policy, now, seed, most)

    def returns(
        self,
        policy: CompiledPolicy,
        starts: object,
        episodes: int = 1,
        seed: Seed = None,
        max_steps: int = 10_000,
        discount: float = 1.0,
    ) -> Returns:
        """The sums Σ γ^t r_t of ``episodes`` episodes from each start, without their states.

        Rows i·episodes to (i + 1)·episodes − 1 belong to start i. With one episode each they are
        those of :meth:`rollout` with the same seed, in a fraction of the memory.
        """
        now = self.as_starts(starts, "starts")
        repeats = as_count(episodes, "episodes", 1)
        most = as_count(max_steps, "max_steps", 1)
        if not isinstance(policy, CompiledPolicy):
            raise InvalidInputError(
                f"policy must be a compiled one, got {type(policy).__name__}; "
                "use rollout(...).returns() for a policy that is a Python function"
            )
        gamma = as_number(discount, "discount", 0.0, 1.0, open_low=True)
        return run_returns(self._table, self._as_table(policy), now, repeats, keys(seed), most, gamma)

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
            states[:, 2:] = rng.uniform(-fastest, fastest, (count, 2))
        return states

    def act(self, states: Floats, actions: Ints, words: Words) -> tuple[Floats, Bools]:
        """One action for each row of ``states``, in place, each with its own stream: rewards, reached.

        What :meth:`step` does, for callers that keep the streams ``words`` (n, 2) and have checked the rest.
        """
        rewards = np.empty(len(states))
        reached = np.empty(len(states), np.bool_)
        kernel = _kernels.act_few if len(states) <= _kernels.CHUNK else _kernels.act_many
        kernel(self._table, states, actions, words, rewards, reached)
        return rewards, reached

    def _run_callable(
        self, policy: Callable[[Floats], Any], starts: Floats, seed: Seed, most: int
    ) -> Trajectories:
        streams = np.empty((len(starts), 2), np.uint64)
        start_streams(*keys(seed), 0, streams)
        now, live, recorder = starts, np.arange(len(starts)), EpisodeRecorder(len(starts))
        recorder.visit(live, starts.copy)
        for _ in range(most):
            if not live.size:
                break
            taken = self._decide(policy, now.copy(), streams)
            rewards, reached = self.act(now, taken[0], streams)
            recorder.earn(live, rewards, lambda taken=taken: taken)  # type: ignore[misc]
            recorder.visit(live, now.copy)
            recorder.terminated[live] = reached
            live, now, streams = live[~reached], now[~reached], streams[~reached]
        return recorder.trajectories()

    def _decide(
        self, policy: Callable[[Floats], Any], states: Floats, streams: Words
    ) -> tuple[Ints, Floats | None]:
        """The actions in the given states, and their probabilities if the policy tells them."""
        answer = policy(states)
        drawn = drawn_actions(answer, self.actions, streams)
        if drawn is not None:
            return drawn
        chosen = self.as_actions(answer, len(states), "policy(states)")
        return chosen, told_propensities(policy, states, chosen, self.actions)

    def _as_table(self, policy: CompiledPolicy) -> Any:
        if policy.actions > self.actions:
            raise MismatchError(
                f"policy must choose among the domain's {self.actions} actions, got one with "
                f"{policy.actions}; build Pinball(actions={policy.actions}) or another policy"
            )
        return policy.compiled()

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

    def as_actions(self, value: Any, n: int, name: str) -> Ints:
        """Checked actions (n,)."""
        actions = np.asarray(value)
        if actions.shape != (n,) or actions.dtype.kind not in "iu":
            raise InvalidInputError(
                f"{name} must be {n} whole numbers, one per state, got {actions.dtype} of shape "
                f"{actions.shape}; pass an int array of shape ({n},)"
            )
        wrong = np.flatnonzero((actions < 0) | (actions >= self.actions))
        if wrong.size:
            raise InvalidInputError(
                f"{name} must be in 0, …, {self.actions - 1}, got {actions[wrong[0]]} at index "
                f"{wrong[0]}; correct it, or build Pinball(actions=5) for the action that does nothing"
            )
        return actions.astype(np.int64)


def _as_maze(maze: str | PathLike[str] | Maze) -> Maze:
    if isinstance(maze, Maze):
        return maze
    if isinstance(maze, PathLike) or (isinstance(maze, str) and maze.endswith(".json")):
        return Maze.load(maze)
    return Maze.named(maze)
