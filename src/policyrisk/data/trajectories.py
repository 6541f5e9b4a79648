"""Recorded episodes, column by column.

An episode of length T visits states x_0, …, x_T and earns rewards r_0, …, r_{T−1}. It either
*terminated* (x_T is the end: nothing follows, φ(x_T) = 0) or was *cut off* (a time limit: the process
would have gone on from x_T). The two are kept apart everywhere. The actions a_0, …, a_{T−1} that were taken,
and the probabilities with which the policy that was recorded took them, its *propensities*, may be there too:
they serve to judge another policy from the same episodes, and nothing else looks at them.

Episodes may come in *clusters* (a day, a customer, a training seed) that share what happens to them: error
bars, folds and comparisons then take clusters, and not episodes, for independent. Their *times* put them in
order, where that is not the order that they are stored in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    as_array,
    as_count,
    as_floats,
    as_list,
    as_number,
    as_whole,
    is_frame,
    name_some,
    ranges,
    readonly,
)
from policyrisk._core.frames import Coordinates
from policyrisk.data.columns import ReaderOptions, reading
from policyrisk.errors import InvalidInputError, MismatchError

COLUMNS = ("states", "rewards", "lengths", "terminated")
ACTION_COLUMNS = ("actions", "propensities")  # which a record may lack
EPISODE_COLUMNS = ("clusters", "times")  # as well
ALL_COLUMNS = (*COLUMNS, *ACTION_COLUMNS, *EPISODE_COLUMNS, "other_rewards")
TIME_LEFT = "time_left"  # what the coordinate is called that a time limit adds
TimeLimit: TypeAlias = 'int | Literal["end"]'
_Rows: TypeAlias = "slice | Ints"


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Episodes stored end to end; immutable and validated once.

    The arrays are copied (slices share memory) and read-only. Iterating gives one-episode records;
    ``data[10:20]`` gives ten episodes, ``data[3]`` the fourth.

    Parameters
    ----------
    states
        (transitions + episodes, dim), the final state of each episode included; (.., ) for dimension 1.
    rewards
        (transitions,), the reward earned on leaving each state.
    lengths
        (episodes,), the number of steps of each episode.
    terminated
        (episodes,), False where the episode was cut off.
    actions
        (transitions,) whole numbers or (transitions, k); None where they are not known.
    propensities
        (transitions,), the probability in (0, 1] with which each action was taken; None where unknown.
    coordinates
        Names and labels of the state's coordinates.
    clusters
        (episodes,), the number of the cluster that each episode belongs to, from 0; None where episodes are
        independent.
    times
        (episodes,), when each episode took place, in any unit; None where they are stored in their order.
    other_rewards
        (transitions, k), rewards of k other kinds, as of costs, for :meth:`policyrisk.MarkovChain.from_log`.

    Examples
    --------
    >>> data = Trajectories(states=[[0], [1], [2], [0], [1]], rewards=[1.0, 1.0, 1.0],
    ...                     lengths=[2, 1], terminated=[True, False])
    >>> len(data), data.transitions, data.dim
    (2, 3, 1)
    >>> data.returns().tolist()
    [2.0, 1.0]
    >>> data[1].states.tolist()
    [[0], [1]]
    >>> Trajectories([[0], [1], [2]], [1.0, 1.0], [2], [True], actions=[3, 0], propensities=[0.25, 1.0])[0]
    Trajectories(1 episodes, 1 terminated, 2 transitions, dim 1, actions, propensities)
    """

    states: npt.NDArray[Any]  # (transitions + episodes, dim), float64 or int64, each episode's x_T included
    rewards: Floats  # (transitions,)
    lengths: Ints  # (episodes,)
    terminated: Bools  # (episodes,), False where the episode was cut off
    actions: npt.NDArray[Any] | None = None  # (transitions,) int64, or (transitions, k) float64: continuous
    propensities: Floats | None = None  # (transitions,) in (0, 1], of the actions
    coordinates: Coordinates | None = None  # their names, or only a list of these, where they have names
    clusters: Ints | None = None  # (episodes,), from 0
    times: Floats | None = None  # (episodes,)
    other_rewards: Floats | None = None  # (transitions, k)

    def __post_init__(self) -> None:
        steps = _checked_columns(*(getattr(self, name) for name in COLUMNS + ACTION_COLUMNS))
        others = self.other_rewards
        if others is not None:
            others = as_floats(others, "other_rewards", (len(steps[1]), None))
        columns = (*steps, *_checked_episodes(len(steps[2]), self.clusters, self.times), others)
        called = None if self.coordinates is None else Coordinates.of(self.coordinates, columns[0].shape[1])
        self._set(called, *(None if column is None else column.copy() for column in columns))

    def _set(self, coordinates: Coordinates | None, *columns: npt.NDArray[Any] | None) -> None:
        object.__setattr__(self, "coordinates", coordinates)
        for name, array in zip_longest(ALL_COLUMNS, columns):
            object.__setattr__(self, name, None if array is None else readonly(array))

    @classmethod
    def _view(cls, *columns: npt.NDArray[Any] | None, coordinates: Coordinates | None = None) -> Trajectories:
        """A record over parts of arrays that were validated already, in the order of its fields."""
        record = object.__new__(cls)
        record._set(coordinates, *columns)
        return record

    def _with(self, **changes: Any) -> Trajectories:
        """The same record but for some columns, which are not looked at."""
        columns = [changes.get(name, getattr(self, name)) for name in ALL_COLUMNS]
        return self._view(*columns, coordinates=changes.get("coordinates", self.coordinates))

    def _part(
        self, states: _Rows, steps: _Rows, lengths: Ints, terminated: Bools, episodes: _Rows
    ) -> Trajectories:
        """A record of some rows of the states, of what there is for each transition, and of some episodes."""
        kept: dict[str, Any] = {}
        for name in ALL_COLUMNS[len(COLUMNS) :]:
            if (column := getattr(self, name)) is not None:
                kept[name] = column[episodes if name in EPISODE_COLUMNS else steps]
        kept |= {"states": self.states[states], "rewards": self.rewards[steps]}
        return self._with(**kept, lengths=lengths, terminated=terminated)

    @classmethod
    @reading(ReaderOptions)
    def from_frame(cls, frame: Any, **columns: Unpack[ReaderOptions]) -> Trajectories:
        """The episodes in the rows of a data frame: pandas, Polars, Arrow.

        A row is a visited state with the reward that was earned on leaving it. The extra ``parquet`` is
        needed.

        Parameters
        ----------
        frame
            A pandas or Polars data frame, or an Arrow table.
        state, episode, reward, terminated, truncated, step, action, propensity, codes, missing
        cluster, time, batch_rows
            As of :func:`policyrisk.read_parquet`: the names of the frame's columns, and how they are read.

        Returns
        -------
        Trajectories
            All episodes, in memory.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"run": ["a", "a", "b"], "x": [0.1, 0.5, 0.2], "cost": [1.0, 2.0, 5.0],
        ...                       "terminated": [False, True, True]})
        >>> data = Trajectories.from_frame(frame, episode="run", state=["x"], reward="cost")
        >>> data.returns().tolist(), data.coordinates.names
        ([3.0, 5.0], ('x',))
        """
        if not is_frame(frame):
            raise InvalidInputError(
                f"frame must be a data frame, got {type(frame).__name__}; pass one of pandas, Polars or "
                "Arrow, and read files by policyrisk.read"
            )
        from policyrisk.data.read import read

        return read(frame, **columns).load()

    @classmethod
    def concatenate(cls, parts: Iterable[Trajectories]) -> Trajectories:
        """All episodes of the parts, in order.

        Parameters
        ----------
        parts
            Trajectories of the same dimension and kind of actions.

        Returns
        -------
        Trajectories
            One record, whose arrays are copies.
        """
        records = as_list(parts, "parts", "Trajectories")
        if not records:
            raise InvalidInputError(
                "parts must hold at least one Trajectories, got none; pass a list of them"
            )
        for part in records:
            if not isinstance(part, Trajectories):
                raise InvalidInputError(f"parts must be Trajectories, got {type(part).__name__}; convert it")
            if part.dim != records[0].dim:
                raise MismatchError(
                    f"parts must agree on the states' dimension, got {records[0].dim} and {part.dim}; "
                    "keep different tasks apart"
                )
            if part.action_kind != records[0].action_kind:
                raise MismatchError(
                    f"parts must agree on their actions, got {records[0].action_kind} and "
                    f"{part.action_kind}; give them to all parts, or to none"
                )
        called: Coordinates | None = None
        for each in (part.coordinates for part in records if part.coordinates is not None):
            if called is not None and each is not called and each != called:
                raise MismatchError(
                    "parts must agree on the names of the state's coordinates, and of its labels, got "
                    f"{', '.join(called.names)} and {', '.join(each.names)}; keep different tasks apart, or "
                    "read labels together"
                )
            called = each if called is None else called
        joined: list[npt.NDArray[Any] | None] = []
        for name in ALL_COLUMNS:
            arrays = [array for array in (getattr(part, name) for part in records) if array is not None]
            if arrays and len(arrays) < len(records):
                raise MismatchError(f"parts must agree on {name}, got some without; give them to all parts")
            joined.append(np.concatenate(arrays) if arrays else None)
        return cls._view(*joined, coordinates=called)

    def __len__(self) -> int:
        return self.lengths.size

    def __iter__(self) -> Iterator[Trajectories]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: int | slice | npt.ArrayLike) -> Trajectories:
        if isinstance(index, int | np.integer):
            k = int(index) + (len(self) if index < 0 else 0)
            if not 0 <= k < len(self):
                raise IndexError(f"episode {index} of {len(self)}")
            return self._span(k, k + 1)
        if isinstance(index, slice) and index.step in (None, 1):
            first, last, _ = index.indices(len(self))
            return self._span(first, max(first, last))
        if not isinstance(index, slice):
            index = as_array(index, "index", "numbers of episodes, or a boolean for each")
            if index.ndim != 1 or (index.dtype.kind == "f" and index.size):
                raise InvalidInputError(
                    f"index must be whole numbers or booleans of shape (n,), got {index.dtype} of shape "
                    f"{index.shape}; pass for example [0, 3]"
                )
            index = index if index.size else index.astype(np.int64)
        chosen = np.arange(len(self))[index]
        if np.array_equal(chosen, np.arange(len(self))):
            return self
        begin, lengths = self.offsets[chosen], self.lengths[chosen]
        return self._part(
            ranges(begin + chosen, lengths + 1),
            ranges(begin, lengths),
            lengths,
            self.terminated[chosen],
            chosen,
        )

    def _shortened(self, lengths: Ints) -> Trajectories:
        """The episodes' first so many transitions (episodes,), at most all of them; none of those at 0."""
        if np.array_equal(lengths, self.lengths):
            return self
        left = np.flatnonzero(lengths)
        begin, some = self.offsets[left], lengths[left]
        steps = ranges(begin + left, some + 1), ranges(begin, some)
        return self._part(*steps, some, self.terminated[left], left)

    def with_clusters(self, clusters: npt.ArrayLike) -> Trajectories:
        """The same episodes in clusters, which error bars then take for independent.

        Parameters
        ----------
        clusters
            (episodes,), the number of each episode's cluster, from 0.

        Returns
        -------
        Trajectories
            Sharing memory.

        Examples
        --------
        >>> data = Trajectories([[0], [1]] * 3, [1.0] * 3, [1] * 3, [True] * 3)
        >>> data.with_clusters([0, 0, 1])[1:].clusters.tolist()
        [0, 1]
        """
        return self._with(clusters=_checked_episodes(len(self), clusters, None)[0])

    def with_time_limit(self, limit: TimeLimit = "end") -> Trajectories:
        """The episodes of the task that ends after ``limit`` steps, with the time left as part of the state.

        An episode that reached the limit terminates there; one that was cut off before it stays cut off, and
        what comes after the limit is left out. The states have one coordinate more, the last, ``time_left``:
        limit − t at step t.

        Parameters
        ----------
        limit
            A number of steps, or "end" for the length at which the episodes were cut off, all at the same
            one.

        Returns
        -------
        Trajectories
            With states of shape (.., dim + 1).

        Examples
        --------
        >>> data = Trajectories([[5], [6], [7], [5], [6]], [1.0, 1.0, 1.0], [2, 1], [False, True])
        >>> limited = data.with_time_limit()
        >>> limited.states.tolist(), limited.terminated.tolist()
        ([[5, 2], [6, 1], [7, 0], [5, 2], [6, 1]], [True, True])
        """
        return self._until(time_limit_of(limit, [(self.lengths, self.terminated)]), None)

    def _until(self, limit: int, unknown: Bools | None) -> Trajectories:
        """Episodes up to a time limit; short of it, those whose end is ``unknown`` give up a transition."""
        reached = self.lengths >= limit
        lengths = np.minimum(self.lengths, limit)
        if unknown is not None:
            lengths = lengths - (unknown & ~reached)
        part = self._shortened(lengths)
        called = part.coordinates
        t = np.arange(len(part.states)) - np.repeat(part.final_rows - part.lengths, part.lengths + 1)
        return part._with(
            states=np.column_stack([part.states, (limit - t).astype(part.states.dtype)]),
            terminated=part.terminated | reached[lengths > 0],
            coordinates=None if called is None else called.and_one(TIME_LEFT),
        )

    def _span(self, first: int, last: int) -> Trajectories:
        """Episodes first, …, last − 1, sharing memory."""
        t0, t1 = int(self.offsets[first]), int(self.offsets[last])
        return self._part(
            slice(t0 + first, t1 + last),
            slice(t0, t1),
            self.lengths[first:last],
            self.terminated[first:last],
            slice(first, last),
        )

    @property
    def action_kind(self) -> str:
        """What is known of the actions, in words.

        >>> Trajectories([[0], [1]], [1.0], [1], [True], actions=[[0.5, -0.5]]).action_kind
        'actions of dim 2'
        """
        if self.actions is None:
            return "no actions"
        kind = "actions" if self.actions.ndim == 1 else f"actions of dim {self.actions.shape[1]}"
        return kind if self.propensities is None else f"{kind}, propensities"

    @property
    def dim(self) -> int:
        """The states' dimension."""
        return int(self.states.shape[1])

    @property
    def transitions(self) -> int:
        """The number of rewards."""
        return self.rewards.size

    @cached_property
    def offsets(self) -> Ints:
        """Where each episode's rewards start, and the end, of shape (episodes + 1,)."""
        return readonly(np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64))

    @cached_property
    def visited_rows(self) -> Ints:
        """The rows of ``states`` that hold x_t with t < T, of shape (transitions,)."""
        rows = np.ones(len(self.states), dtype=np.bool_)
        rows[self.final_rows] = False
        return readonly(np.flatnonzero(rows))

    @cached_property
    def final_rows(self) -> Ints:
        """The rows of ``states`` that hold the x_T, of shape (episodes,)."""
        return readonly(self.offsets[1:] + np.arange(len(self)))

    def starts(self) -> npt.NDArray[Any]:
        """The first state of every episode.

        Returns
        -------
        (episodes, dim) array
            In the order of the episodes.
        """
        starts: npt.NDArray[Any] = self.states[self.offsets[:-1] + np.arange(len(self))]
        return starts

    def returns_to_go(self, discount: float = 1.0) -> Floats:
        """B_t = Σ_{s ≥ t} γ^{s−t} r_s within each episode.

        Parameters
        ----------
        discount
            γ.

        Returns
        -------
        (transitions,) array
            The return from each step to the end of its episode.
        """
        out = np.empty(self.transitions)
        gamma = as_number(discount, "discount", 0.0, 1.0, open_low=True)
        _sum_backwards(self.rewards, self.lengths, gamma, out)
        return out

    def returns(self, discount: float = 1.0) -> Floats:
        """Each episode's whole return.

        Parameters
        ----------
        discount
            γ.

        Returns
        -------
        (episodes,) array
            Σ_t γ^t r_t of each episode.
        """
        returns: Floats = self.returns_to_go(discount)[self.offsets[:-1]]
        return returns

    def __repr__(self) -> str:
        return (
            f"Trajectories({len(self)} episodes, {int(self.terminated.sum())} terminated, "
            f"{self.transitions} transitions, dim {self.dim}"
            + (")" if self.actions is None else f", {self.action_kind})")
        )


@njit(cache=True)
def _sum_backwards(rewards: Floats, lengths: Ints, discount: float, out: Floats) -> None:
    """out_t = r_t + γ out_{t+1} within each episode, 0 after its last reward."""
    end = 0
    for k in range(lengths.size):
        start, end = end, end + lengths[k]
        total = 0.0
        for t in range(end - 1, start - 1, -1):
            total = rewards[t] + discount * total
            out[t] = total


def as_time_limit(value: object) -> TimeLimit:
    """A time limit as it may be given, or an error."""
    if isinstance(value, str) and value == "end":
        return "end"
    if isinstance(value, str):
        raise InvalidInputError(
            f'time_limit must be "end" or a number of steps, got {value!r}; pass for example 200'
        )
    return as_count(value, "time_limit", 1)


def time_limit_of(value: TimeLimit, episodes: Iterable[tuple[Ints, Bools]]) -> int:
    """A time limit in steps; "end" is that of ``episodes``, lengths and where they terminated, in parts."""
    limit = as_time_limit(value)
    if limit != "end":
        return limit
    longest, cuts = 0, set[int]()
    for lengths, terminated in episodes:
        longest = max(longest, int(lengths.max(initial=0)))
        cuts.update(np.unique(lengths[~terminated]).tolist())
    if cuts == {longest}:
        return longest
    if not cuts:
        raise InvalidInputError(
            'time_limit="end" must find episodes that were cut off at their time limit, got none, all '
            "terminated; leave it out, or pass the limit as a number of steps"
        )
    raise InvalidInputError(
        'time_limit="end" must find all cut-off episodes cut off after the same number of steps, and none '
        f"longer, got {min(cuts)} to {max(cuts)} steps and {longest} in the longest episode; pass the "
        f"limit as a number, as in time_limit={max(max(cuts), longest)}"
    )


def _checked_columns(
    states: Any, rewards: Any, lengths: Any, terminated: Any, actions: Any, propensities: Any
) -> tuple[npt.NDArray[Any], Floats, Ints, Bools, npt.NDArray[Any] | None, Floats | None]:
    """The columns in the order of COLUMNS + ACTION_COLUMNS, of their types and of shapes that fit."""
    rewards = as_floats(rewards, "rewards", (None,))
    lengths = _as_lengths(lengths)
    terminated = as_array(terminated, "terminated", f"{lengths.size} booleans, one per episode")
    if terminated.shape != lengths.shape or terminated.dtype != np.bool_:
        raise InvalidInputError(
            f"terminated must be {lengths.size} booleans, one per episode, got {terminated.dtype} of "
            f"shape {terminated.shape}; pass True where the episode ended, False where it was cut off"
        )
    if int(lengths.sum()) != rewards.size:
        raise InvalidInputError(
            f"lengths must sum to len(rewards)={rewards.size}, got {int(lengths.sum())}; "
            "give each episode's number of rewards"
        )
    states = _as_state_rows(states)
    if len(states) != rewards.size + lengths.size:
        raise InvalidInputError(
            f"states must have sum(lengths) + episodes = {rewards.size + lengths.size} rows, got "
            f"{len(states)}; include the state that each episode ended in"
        )
    if actions is not None:
        actions = _as_actions(actions, rewards.size)
    if propensities is not None:
        propensities = _as_propensities(propensities, rewards.size)
        if actions is None:
            raise InvalidInputError(
                "propensities must come with the actions that they belong to, got no actions; pass both"
            )
    return states, rewards, lengths, terminated, actions, propensities


def _checked_episodes(episodes: int, clusters: Any, times: Any) -> tuple[Ints | None, Floats | None]:
    """The columns of EPISODE_COLUMNS, of their types and shapes."""
    if clusters is not None:
        clusters = as_whole(clusters, "clusters", (episodes,))
        if (clusters < 0).any():
            raise InvalidInputError(
                f"clusters must be numbers from 0, got {clusters.min()}; number them, as by "
                "numpy.unique(names, return_inverse=True)[1]"
            )
    return clusters, None if times is None else as_floats(times, "times", (episodes,))


def _as_lengths(value: object) -> Ints:
    lengths = as_whole(value, "lengths", (None,))
    short = np.flatnonzero(lengths < 1)
    if short.size:
        raise InvalidInputError(
            f"lengths must be at least 1, got {lengths[short[0]]} for episode {name_some(short)}; "
            "leave empty episodes out"
        )
    return lengths


def _as_state_rows(value: Sequence[object] | npt.ArrayLike) -> npt.NDArray[Any]:
    array = as_array(value, "states", "numbers of shape (n, dim)")
    if array.ndim == 1:
        array = array[:, None]
    if np.issubdtype(array.dtype, np.integer) and array.ndim == 2:
        return array.astype(np.int64)
    return as_floats(array, "states", (None, None))


def _as_actions(value: object, transitions: int) -> npt.NDArray[Any]:
    """Whole numbers (transitions,), or coordinates (transitions, k)."""
    array = as_array(value, "actions", f"numbers of shape ({transitions},) or ({transitions}, k)")
    if array.ndim not in (1, 2) or len(array) != transitions or 0 in array.shape[1:]:
        raise InvalidInputError(
            f"actions must have shape ({transitions},), or ({transitions}, k) for continuous ones, got "
            f"{array.shape}; give one for each reward, and none for the states that episodes ended in"
        )
    if array.ndim == 2:
        return as_floats(array, "actions", (None, None))
    if array.dtype.kind == "f":
        whole = array == np.rint(array)  # nan is not, inf is
        broken = np.flatnonzero(~(whole & (np.abs(array.astype(np.float64)) < 2.0**53)))
        if broken.size:
            raise InvalidInputError(
                f"actions of shape ({transitions},) must be whole numbers, got {array[broken[0]]} at index "
                f"{broken[0]}; pass continuous actions in the shape ({transitions}, k)"
            )
    return array.astype(np.int64)


def _as_propensities(value: object, transitions: int) -> Floats:
    propensities = as_floats(value, "propensities", (transitions,))
    outside = np.flatnonzero(~((propensities > 0) & (propensities <= 1)))
    if outside.size:
        raise InvalidInputError(
            f"propensities must be in (0, 1], got {propensities[outside[0]]} at index {outside[0]}; give the "
            "probability with which the recorded policy took the action that it took"
        )
    return propensities
