"""Sources of episodes, and what goes through them: batches, pieces, shortened episodes.

A *source* of episodes is one :class:`Trajectories` or any re-iterable of them (a stream): a list, or an
object whose ``__iter__`` starts anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from policyrisk._core.arrays import Floats, Ints, is_frame
from policyrisk._core.frames import Coordinates
from policyrisk.data.trajectories import Trajectories
from policyrisk.errors import InvalidInputError, PolicyRiskError

Source: TypeAlias = "Trajectories | Iterable[Trajectories]"


def batches(source: Source) -> Iterator[Trajectories]:
    """The records of a source, one after the other: a Trajectories is a stream of one.

    >>> data = Trajectories([[0], [1]], [1.0], [1], [True])
    >>> [len(batch) for batch in batches([data, data])]
    [1, 1]
    """
    if isinstance(source, Trajectories):
        yield source
        return
    try:
        parts = iter(source)
    except PolicyRiskError:
        raise  # of a stream, which says what is wrong
    except Exception as error:
        raise InvalidInputError(
            f"data must be Trajectories or an iterable of them, got {type(source).__name__} ({error}); "
            "build Trajectories(states, rewards, lengths, terminated)"
        ) from error
    if is_frame(source):
        raise InvalidInputError(
            f"data must be Trajectories or an iterable of them, got the data frame {type(source).__name__}; "
            "pass Trajectories.from_frame(frame, state=[...])"
        )
    for batch in parts:
        if not isinstance(batch, Trajectories):
            raise InvalidInputError(
                f"data must yield Trajectories, got {type(batch).__name__}; "
                "build Trajectories(states, rewards, lengths, terminated) of each batch"
            )
        yield batch


def pieces(data: Trajectories, most: int) -> Iterator[Trajectories]:
    """The episodes of a record in order, about ``most`` transitions at a time: the parts share its memory.

    >>> data = Trajectories([[0]] * 9, [1.0] * 6, [2, 1, 3], [True] * 3)
    >>> [part.lengths.tolist() for part in pieces(data, 3)]
    [[2, 1], [3]]
    """
    if data.transitions <= most:
        yield data
        return
    first = 0
    while first < len(data):
        last = int(np.searchsorted(data.offsets, data.offsets[first] + most))
        last = min(max(last, first + 1), len(data))
        yield data[first:last]
        first = last


def gathered(source: Source, episodes: int, transitions: int) -> Iterator[Trajectories]:
    """The episodes of a source in order, small batches put together.

    Each part but the last has at least so many episodes or so many transitions; none is empty.

    >>> data = Trajectories([[0]] * 4, [1.0] * 2, [1, 1], [True] * 2)
    >>> [len(part) for part in gathered([data, data, data[:1], data[:0]], episodes=3, transitions=100)]
    [4, 1]
    """
    waiting: list[Trajectories] = []
    for batch in batches(source):
        if len(batch):
            waiting.append(batch)
        if sum(map(len, waiting)) >= episodes or sum(part.transitions for part in waiting) >= transitions:
            yield Trajectories.concatenate(waiting) if len(waiting) > 1 else waiting[0]
            waiting = []
    if waiting:
        yield Trajectories.concatenate(waiting) if len(waiting) > 1 else waiting[0]


@dataclass(frozen=True, eq=False)
class Shortened:
    """A source whose episodes are shortened on the way; it notes the numbers of those that lose everything.

    >>> data = Trajectories([[0], [1]] * 3, [1.0] * 3, [1] * 3, [False] * 3)
    >>> source = Shortened([data, data], lambda batch: np.array([1, 0, 1]))
    >>> [len(batch) for batch in source], source.numbers(1, 3).tolist()
    ([2, 2], [2, 3, 5])
    """

    source: Source
    left: Callable[[Trajectories], Ints]  # how many transitions each episode of a batch keeps
    gone: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[Trajectories]:
        self.gone.clear()
        count = 0
        for batch in batches(self.source):
            lengths = self.left(batch)
            self.gone.extend((count + np.flatnonzero(lengths == 0)).tolist())
            count += len(batch)
            yield batch._shortened(lengths)

    def numbers(self, first: int, count: int) -> Ints:
        """The numbers in ``source`` of so many of the episodes that were left, which have passed by."""
        kept = np.arange(first, first + count)
        before = np.array(self.gone, dtype=np.int64) - np.arange(len(self.gone))  # how many were left then
        return kept + np.searchsorted(before, kept, side="right")


def episode_numbers(source: Source, first: int, count: int) -> Ints:
    """The numbers of episodes first, …, first + count − 1 of a source, those that it left out included."""
    return source.numbers(first, count) if isinstance(source, Shortened) else np.arange(first, first + count)


def largest_of(data: Trajectories, returns: Floats) -> float:
    """The size of the largest reward or whole return (episodes,), 0 where there is none."""
    return max(float(np.abs(each).max(initial=0.0)) for each in (data.rewards, returns))


@dataclass(frozen=True, eq=False)
class InUnits:
    """A source whose rewards are divided by a unit on the way: see :mod:`policyrisk._core.units`.

    >>> data = Trajectories([[0], [1]], [8.0], [1], [True])
    >>> [batch.rewards.tolist() for batch in InUnits(data, 4.0)]
    [[2.0]]
    """

    source: Source
    unit: float

    def __iter__(self) -> Iterator[Trajectories]:
        return (in_units(batch, self.unit) for batch in batches(self.source))


def in_units(data: Trajectories, unit: float) -> Trajectories:
    """Episodes whose rewards are divided by a unit."""
    if unit == 1.0:
        return data
    # Rewards of other kinds have units of their own, and no estimate in units uses them.
    return data._with(rewards=data.rewards / unit, other_rewards=None)


def coordinates_of(source: Source) -> Coordinates | None:
    """What the coordinates of a source's states are called, where it knows without being read."""
    if isinstance(source, list | tuple):
        return source[0].coordinates if source and isinstance(source[0], Trajectories) else None
    found = getattr(source, "coordinates", None)
    return found if isinstance(found, Coordinates) else None


def check_reiterable(source: Source) -> None:
    """Raise where a source can be read only once: error bars need a second pass."""
    if isinstance(source, Iterator):
        raise InvalidInputError(
            f"data must be re-iterable for a second pass, got the one-shot iterator {type(source).__name__}; "
            "pass a list of Trajectories, or an object whose __iter__ starts anew"
        )
