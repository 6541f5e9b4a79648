"""The loop that steps Gymnasium environments side by side, and what it records: everything, or returns alone.

*Lanes* are environments side by side: single ones, or the parts of a vector environment. A lane runs one
episode at a time, to its end, and then takes the next from its queue. How part i of a vector environment goes
on after the end of an episode is its autoreset mode, in its metadata:

    DISABLED     it waits: we reset it, with the seed of the episode that comes next
    NEXT_STEP    the next step ignores its action, resets it and returns the first observation, reward 0
    SAME_STEP    the step that ends the episode returns the first observation of the next one, and the last of
                 this one in info["final_obs"]

Single environments and DISABLED share one queue: whoever is free takes the next episode. Under the other two
modes the parts reset themselves, so that only the beginning of all can be seeded, and nothing can cut an
episode off early. Episode k then is the (k // n)-th of part k mod n: fixed beforehand, whatever the lengths.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.frames import Coordinates
from policyrisk.data import Trajectories
from policyrisk.data.spaces import Project, action_rows, as_rows
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.compiled import Words
from policyrisk.simulation.environments import as_reset, as_step, as_steps
from policyrisk.simulation.spaces import Choose, all_or_none, decide, single_actions, stack

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

_NONE = -1  # the episode of a lane that has none to run
# The episodes' numbers (n,), and what goes with them: arrays of n rows, or None.
RecordedColumns: TypeAlias = "tuple[Any, ...]"
Taken: TypeAlias = "tuple[npt.NDArray[Any] | None, Floats | None]"  # actions and propensities
Recorder = TypeVar("Recorder", bound="EpisodeRecorder | ReturnRecorder")
_PIECES = 1 << 12  # arrays that are kept before they are put together


def run_lanes(
    lanes: SingleLanes | VectorLanes,
    episodes: int,
    record: Recorder,
    max_steps: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> Recorder:
    """Run episodes 0, …, episodes − 1 to their ends or for ``max_steps``; ``done`` is called after each."""
    waiting = iter(range(episodes))
    queues = [waiting] * lanes.size
    if not lanes.shared:
        queues = [iter(range(lane, episodes, lanes.size)) for lane in range(lanes.size)]
    number = np.full(lanes.size, _NONE)  # (lanes,) the episode of each
    begun = np.zeros(lanes.size, dtype=np.int64)  # (lanes,) the turn in which it began
    live: Ints = np.arange(0)  # the lanes that run an episode, in the order in which they began
    free = np.arange(lanes.size)
    for turn in itertools.count():
        if free.size:
            number[free] = [next(queues[lane], _NONE) for lane in free.tolist()]
            begun[free] = turn
            fresh = free[number[free] != _NONE]
            if fresh.size and lanes.begin(fresh, number[fresh]):
                record.visit(number[fresh], partial(lanes.states, fresh))
            live = np.concatenate([live[~np.isin(live, free)], fresh])
            numbers = number[live]
        if not live.size:
            break
        moved, rewards, ended, over = lanes.step(live)
        record.earn(numbers if moved is live else number[moved], rewards, partial(lanes.taken, moved))
        record.visit(numbers, partial(lanes.states, live))
        if max_steps is not None:
            over = over | (begun[moved] + max_steps <= turn + 1)
        free = moved[over]
        if free.size:
            record.terminated[number[free]] = ended[over]
            for _ in range(free.size):
                done()
    return record


class SingleLanes:
    """Single environments, stepped one after the other; ``reset(env, k)`` begins episode k.

    The policy ``choose`` gets the observations of all live lanes as one batch. Where there is ``spawn``,
    episode k is played by spawn(k) instead, apart from the others. Where the policy answers with
    probabilities, the actions of episode k are drawn from the stream that begins in stream_of(k).
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        reset: Callable[[gym.Env[Any, Any], int], Any],
        choose: Choose,
        spawn: Callable[[int], Choose] | None,
        project: Project,
        stream_of: Callable[[int], tuple[int, int]],
    ) -> None:
        self.size, self.shared = len(envs), True
        self._stream_of, self._words = stream_of, np.zeros((self.size, 2), dtype=np.uint64)
        self._taken: Taken = None, None
        self._envs, self._reset, self._choose, self._spawn = envs, reset, choose, spawn
        self._project = project
        self._observations: list[Any] = [None] * self.size
        self._spawned: list[Choose] = [choose] * self.size
        self._batched: tuple[Ints | None, Any] = None, None  # lanes, and their observations as a batch

    def begin(self, lanes: Ints, episodes: Ints) -> bool:
        """Begin an episode in each of these lanes; True: its first state is known."""
        for lane, k in zip(lanes.tolist(), episodes.tolist(), strict=True):
            self._observations[lane] = self._reset(self._envs[lane], k)
            self._words[lane] = self._stream_of(k)
            if self._spawn:
                self._spawned[lane] = self._spawn(k)
        self._batched = None, None
        return True

    def step(self, lanes: Ints) -> tuple[Ints, Floats, Bools, Bools]:
        """Act in these lanes: those that made a step, their rewards, whether they terminated, or are over."""
        at, actions = lanes.tolist(), self._act(lanes)
        rewards, ended, over = [], [], []
        for lane, action in zip(at, actions, strict=True):
            self._observations[lane], reward, terminated, truncated = as_step(self._envs[lane].step(action))
            rewards.append(reward)
            ended.append(terminated)
            over.append(terminated or truncated)
        self._batched = None, None
        return lanes, np.array(rewards), np.array(ended), np.array(over)

    def _act(self, lanes: Ints) -> list[Any]:
        """An action for each of these lanes."""
        space, words = self._envs[0].action_space, self._words[lanes]
        if not self._spawn:
            batch, told = decide(self._choose, self._observed(lanes), space, words)
            self._words[lanes] = words
            self._taken = action_rows(batch), told
            return single_actions(batch, space, lanes.size)
        alone = [
            decide(self._spawned[lane], self._batch([self._observations[lane]]), space, words[i : i + 1])
            for i, lane in enumerate(lanes.tolist())
        ]
        self._words[lanes] = words
        rows = [(action_rows(batch), told) for batch, told in alone]
        self._taken = all_or_none([actions for actions, _ in rows]), all_or_none([told for _, told in rows])
        return [single_actions(batch, space, 1)[0] for batch, _ in alone]

    def taken(self, lanes: Ints) -> Taken:
        """The actions of these lanes' last step, as they are recorded, and their probabilities."""
        return self._taken

    def states(self, lanes: Ints) -> npt.NDArray[Any]:
        """The states (n, dim) that these lanes are in."""
        return as_rows(self._observed(lanes), self._project, lanes.size)

    def _observed(self, lanes: Ints) -> Any:
        """The observations of these lanes as a batch, made once for the record and the policy."""
        if self._batched[0] is not lanes:
            self._batched = lanes, self._batch([self._observations[lane] for lane in lanes.tolist()])
        return self._batched[1]

    def _batch(self, observations: list[Any]) -> Any:
        """A copy, for environments that write into the same array every time."""
        return stack(observations, self._envs[0].observation_space)


class VectorLanes:
    """The parts of a vector environment, all of which are stepped together.

    ``first`` are the arguments of the first reset, ``seed_of(k)`` the seed of episode k for resets under
    DISABLED, and ``act`` a function from all observations, and the states of the parts' streams (n, 2), to
    all actions and their probabilities, if these are known. A part's stream begins, with each episode k that
    it runs, in stream_of(k).
    """

    def __init__(
        self,
        env: Any,
        act: Callable[[Any, Words], tuple[Any, Floats | None]],
        mode: AutoresetMode | None,
        first: dict[str, Any],
        seed_of: Callable[[int], int | None] = lambda k: None,
        project: Project = None,
        stream_of: Callable[[int], tuple[int, int]] = lambda k: (0, 0),
    ) -> None:
        self._env, self._act, self._first = env, act, first
        self._seed_of, self._project = seed_of, project
        self._mode = getattr(mode, "name", "")
        self.size, self.shared = int(env.num_envs), self._mode == "DISABLED"
        self._stream_of, self._words = stream_of, np.ones((self.size, 2), dtype=np.uint64)
        self._actions: Any = None  # of the last step, and their probabilities
        self._told: Floats | None = None
        self._observations: Any = None
        self._over = np.zeros(self.size, dtype=np.bool_)  # parts whose last step ended an episode
        self._finals: Any = None  # the observations that these episodes ended in, under SAME_STEP

    def begin(self, lanes: Ints, episodes: Ints) -> bool:
        """The same; False where the next step will bring the first state."""
        for lane, k in zip(lanes.tolist(), episodes.tolist(), strict=True):
            self._words[lane] = self._stream_of(k)
        if self._observations is None:
            self._observations = as_reset(self._env.reset(**self._first))
        elif self._mode == "DISABLED":
            self._over[lanes] = True
            self._reset_over(dict(zip(lanes.tolist(), episodes.tolist(), strict=True)))
        self._finals = None
        return self._mode != "NEXT_STEP" or not self._over[lanes].any()

    def _reset_over(self, numbers: dict[int, int]) -> None:
        """Reset the parts that are over, with the seeds of the episodes that begin in some of them."""
        seeds = [self._seed_of(numbers[lane]) if lane in numbers else None for lane in range(self.size)]
        answer = self._env.reset(seed=seeds, options={"reset_mask": self._over.copy()})
        self._observations = as_reset(answer)
        self._over[:] = False

    def step(self, lanes: Ints) -> tuple[Ints, Floats, Bools, Bools]:
        """The same; under NEXT_STEP, the lanes whose episode was over are reset instead."""
        if self._mode == "DISABLED" and self._over.any():
            self._reset_over({})
        moved = lanes[~self._over[lanes]] if self._mode == "NEXT_STEP" else lanes
        self._actions, self._told = self._act(self._observations, self._words)
        answer = self._env.step(self._actions)
        self._observations, rewards, ended, cut, info = as_steps(answer, self.size)
        self._over = ended | cut
        self._finals = info.get("final_obs", ()) if self._mode == "SAME_STEP" else None
        return moved, rewards[moved], ended[moved], self._over[moved]

    def taken(self, lanes: Ints) -> Taken:
        """The same."""
        rows = action_rows(self._actions)
        return None if rows is None else rows[lanes], None if self._told is None else self._told[lanes]

    def states(self, lanes: Ints) -> npt.NDArray[Any]:
        """The same; under SAME_STEP, until the next begins, the states that episodes ended in."""
        rows = as_rows(self._observations, self._project, self.size)
        if self._finals is not None and self._over.any():
            finals = self._final_rows()
            if finals.shape[1] != rows.shape[1]:
                raise InvalidInputError(
                    'env must give last observations in info["final_obs"] with as many coordinates as the '
                    f"others, {rows.shape[1]}, got {finals.shape[1]}; correct one of the two"
                )
            rows[self._over] = finals
        return rows[lanes]

    def _final_rows(self) -> npt.NDArray[Any]:
        over = np.flatnonzero(self._over)
        finals = [self._finals[i] for i in over.tolist()] if len(self._finals) else [None]
        if any(final is None for final in finals):
            raise InvalidInputError(
                'env must give each episode\'s last observation in info["final_obs"] when it resets in the '
                "same step, got none; use autoreset in the next step, or none"
            )
        return as_rows(stack(finals, self._env.single_observation_space), self._project, over.size)


class EpisodeRecorder:
    """Which episode visited what and earned what, in the order of time; sorted by episode at the end."""

    def __init__(self, episodes: int) -> None:
        self.terminated: Bools = np.zeros(episodes, dtype=np.bool_)
        self._visits: list[RecordedColumns] = []
        self._gains: list[RecordedColumns] = []  # rewards, actions and propensities

    def visit(self, episodes: Ints, states: Callable[[], npt.NDArray[Any]]) -> None:
        """Episodes (n,) are in states() (n, dim): the first ones, or those after a step."""
        rows = states()
        before = rows if not self._visits else self._visits[0][1]
        if before is not None and before.shape[1] != rows.shape[1]:
            raise InvalidInputError(
                f"states must keep their dimension, got {before.shape[1]} and then "
                f"{rows.shape[1]}; let project return as many coordinates every time"
            )
        self._visits.append((episodes, rows))
        if len(self._visits) == _PIECES:
            self._visits = [_join(self._visits)]

    def earn(self, episodes: Ints, rewards: Floats, taken: Callable[[], Taken]) -> None:
        """Episodes (n,) earned rewards (n,) by their next step, in which the actions taken() were taken."""
        self._gains.append((episodes, rewards, *taken()))
        if len(self._gains) == _PIECES:
            self._gains = [_join(self._gains)]

    def trajectories(self, names: Sequence[str] | None = None) -> Trajectories:
        """The episodes in the order of their numbers; ``names`` are the coordinates', where they have any."""
        whose, states = _sorted(self._visits)
        _check_finite(whose, states, "observations must be finite", 0)
        nothing = np.empty(0, dtype=np.int64), np.empty(0), None, None
        earner, rewards, actions, propensities = _sorted(self._gains or [nothing])
        _check_finite(earner, rewards, "rewards must be finite", 1)
        lengths = np.bincount(earner, minlength=self.terminated.size)
        called = None if names is None else Coordinates.of(names, states.shape[1])
        return Trajectories._view(
            states, rewards, lengths, self.terminated, actions, propensities, coordinates=called
        )


class ReturnRecorder:
    """The discounted sums of the rewards, Σ_t γ^t r_t, and no states."""

    def __init__(self, episodes: int, discount: float) -> None:
        self.returns: Floats = np.zeros(episodes)
        self.lengths: Ints = np.zeros(episodes, dtype=np.int64)
        self.terminated: Bools = np.zeros(episodes, dtype=np.bool_)
        self._discount = discount
        self._weights = np.ones(episodes)  # γ^t

    def visit(self, episodes: Ints, states: Callable[[], npt.NDArray[Any]]) -> None:
        """States are not kept, and are not asked for."""

    def earn(self, episodes: Ints, rewards: Floats, taken: Callable[[], Taken]) -> None:
        """Episodes (n,) earned rewards (n,) by their next step; actions are not kept."""
        self.returns[episodes] += self._weights[episodes] * rewards
        self._weights[episodes] *= self._discount
        self.lengths[episodes] += 1


def _join(pieces: list[RecordedColumns]) -> RecordedColumns:
    """The rows of all pieces; of a column that one of them lacks, none."""
    columns: Any = zip(*pieces, strict=True)
    return tuple(all_or_none(parts) for parts in columns)


def _sorted(pieces: list[RecordedColumns]) -> Any:
    columns = _join(pieces)
    order = np.argsort(columns[0], kind="stable")
    return tuple(None if column is None else column[order] for column in columns)


def _check_finite(whose: Ints, values: npt.NDArray[Any], rule: str, first: int) -> None:
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    if not finite.all():
        at = int(finite.argmin())
        step = at - int(np.searchsorted(whose, whose[at])) + first
        raise InvalidInputError(
            f"{rule}, got {values[at].tolist()} after {step} steps of episode {whose[at]}; "
            "correct the environment, or leave that coordinate out with project"
        )
