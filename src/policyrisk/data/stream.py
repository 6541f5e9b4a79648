"""A re-iterable source of episodes that are read as they are needed.

Iterating gives :class:`~policyrisk.data.Trajectories` of whole episodes, each of at least
``batch_rows`` states (the last one may be smaller), and starts anew each time. Only one batch, and the
episode that is being read, are in memory.

Some episodes give something up, which is counted and never silent:

    given up    last transitions of cut-off episodes whose end state was not recorded
    vanished    episodes of which no transition is left
    filled      missing values of states that the last known one stands for (``missing="last"``)
    dropped     episodes that were left out because of missing values
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Ints, as_whole
from policyrisk._core.frames import Coordinates
from policyrisk._core.records import Additive
from policyrisk._core.text import plural
from policyrisk.data.columns import BATCH_ROWS
from policyrisk.data.trajectories import TimeLimit, Trajectories, as_time_limit, time_limit_of
from policyrisk.errors import (
    EmptyDataError,
    InvalidInputError,
    MismatchError,
    MissingValuesWarning,
    UnrecordedEndWarning,
)

T = TypeVar("T")


class Once(Generic[T]):
    """A function whose answer is kept from the first call on; a stream that has one can be pickled."""

    def __init__(self, find: Callable[[], T]) -> None:
        self._find, self._found = find, list[T]()

    def __call__(self) -> T:
        """The answer."""
        if not self._found:
            self._found.append(self._find())
        return self._found[0]


class Piece(NamedTuple):
    """Some whole episodes, and where they were read."""

    data: Trajectories
    where: str
    unknown: Bools | None = None  # (episodes,) where x_T was not recorded, and any state stands in its place
    vanished: int = 0
    filled: int = 0
    dropped: int = 0

    def known(self, limit: int | None) -> tuple[Trajectories, int]:
        """The episodes without what their unknown ends take with them, up to a limit; how many gave up."""
        data, unknown = self.data, self.unknown
        if limit is not None:
            short = 0 if unknown is None else int((unknown & (data.lengths < limit)).sum())
            return data._until(limit, unknown), short
        if unknown is None or not unknown.any():
            return data, 0
        return data._shortened(data.lengths - unknown), int(unknown.sum())


@dataclass(frozen=True)
class Counts(Additive):
    """What one whole pass over a stream found; those of streams add."""

    episodes: int = 0  # those that were given out, cut off or not
    transitions: int = 0
    cut_off: int = 0  # episodes among them that did not terminate
    given_up: int = 0  # last transitions that were given up, their end state being unknown
    vanished: int = 0  # episodes that are not among those given out, having no transition left
    filled: int = 0  # missing values that the last known one stands for
    dropped: int = 0  # episodes that are not among those given out, for what they miss


class Stream:
    """Batches of whole episodes from files or datasets; iterate, or ``load()`` all of it.

    >>> one = Trajectories([[0], [1], [2]], [1.0, 1.0], [2], [True])
    >>> stream = Stream("memory", lambda: iter([Piece(one, "memory"), Piece(one, "memory")]), batch_rows=1)
    >>> [len(batch) for batch in stream], [len(batch) for batch in stream]
    ([1, 1], [1, 1])
    >>> stream.load()
    Trajectories(2 episodes, 2 terminated, 4 transitions, dim 1)
    >>> stream.counts
    Counts(episodes=2, transitions=4, cut_off=0, given_up=0, vanished=0, filled=0, dropped=0)
    """

    def __init__(
        self,
        name: str,
        parts: Callable[[], Iterator[Piece]],
        batch_rows: int = BATCH_ROWS,
        labels: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
        state_columns: tuple[str, ...] = (),
        *,
        time_limit: TimeLimit | None = None,
        clusters: Ints | None = None,  # of all episodes that are given out, instead of those that were read
    ) -> None:
        self.name = name
        self.state_columns = state_columns  # their names; none where they have none
        self._labels = labels
        self.batch_rows = batch_rows
        self._parts = parts
        self._counts: Counts | None = None
        self._warned = False
        self._limit = time_limit
        self._clusters = clusters
        self.coordinates: Coordinates | None = None  # the states', once something was read

    def __iter__(self) -> Iterator[Trajectories]:
        limit = self.time_limit
        counts = Counts()
        clusters: dict[int, int] = {}  # the numbers of their keys, in the order in which they come
        first: Piece | None = None
        pending: list[Trajectories] = []
        rows = 0
        for part in self._parts():
            data, lost = part.known(limit)
            vanished = part.vanished + len(part.data) - len(data)
            cut_off = int((~data.terminated).sum())
            counts += Counts(len(data), data.transitions, cut_off, lost, vanished, part.filled, part.dropped)
            if not len(data):
                continue
            if self._clusters is not None:
                data = data.with_clusters(self._given(counts.episodes)[counts.episodes - len(data) :])
            elif data.clusters is not None:
                data = data.with_clusters(_numbered(data.clusters, clusters))
            first = part if first is None else first
            _check_alike(first, part)
            self.coordinates = data.coordinates
            pending.append(data)
            rows += len(data.states)
            if rows >= self.batch_rows:
                batch, pending, rows = _merge(pending), [], 0
                yield batch
        if pending:
            yield _merge(pending)
        if self._clusters is not None and self._clusters.size != counts.episodes:
            self._given(counts.episodes, last=True)
        self._counts = counts
        self._say(counts)

    def _given(self, episodes: int, *, last: bool = False) -> Ints:
        """The clusters that were given, of the first episodes; an error where numbers do not match."""
        assert self._clusters is not None
        if episodes > self._clusters.size or last:
            raise InvalidInputError(
                f"cluster must have a value for each episode that is read, got {self._clusters.size} for "
                f"{'' if last else 'at least '}{plural(episodes, 'episode')} of {self.name}; name a column, "
                "or leave out what is not read"
            )
        return self._clusters[:episodes]

    def _say(self, counts: Counts) -> None:
        """What a whole pass found, where that is nothing, or less than there was."""
        vanished, dropped = plural(counts.vanished, "episode"), plural(counts.dropped, "episode")
        if not counts.episodes:
            raise EmptyDataError(
                f"{self.name} must hold at least one episode with a transition, got none"
                + (f" ({vanished} without one)" if counts.vanished else "")
                + (f" ({dropped} left out, with values missing)" if counts.dropped else "")
                + "; check that it is the file or folder you meant"
            )
        if self._warned:
            return
        self._warned = True  # once for each stream: estimators take several passes
        done = []
        if counts.filled:
            done = [f"{plural(counts.filled, 'missing value')} filled in by the last known one"]
        if counts.dropped:
            of = counts.episodes + counts.vanished + counts.dropped
            done.append(f"{dropped} of {of} left out, with values missing")
        if done:
            warnings.warn(
                f"{self.name}: {', and '.join(done)}; what is missing may depend on how episodes go",
                MissingValuesWarning,
                stacklevel=3,
            )
        if counts.given_up + counts.vanished:
            gone = f", and {vanished} with nothing left" if counts.vanished else ""
            warnings.warn(
                f"{self.name}: {plural(counts.given_up, 'last transition')} given up, of cut-off episodes "
                f"whose end state was not recorded{gone}; record the state that each episode ended in",
                UnrecordedEndWarning,
                stacklevel=3,
            )

    @property
    def time_limit(self) -> int | None:
        """The time limit that is the episodes' end; "end" is found out in a pass of its own, once."""
        if self._limit is not None and not isinstance(self._limit, int):
            lengths = ((part.data.lengths, part.data.terminated) for part in self._parts())
            self._limit = time_limit_of(self._limit, lengths)
        return self._limit

    def with_time_limit(self, limit: TimeLimit = "end") -> Stream:
        """The stream of the task that ends after ``limit`` steps: see :meth:`Trajectories.with_time_limit`.

        Where the end state of an episode that reached the limit was not recorded, nothing is given up, since
        nothing comes after it.
        """
        return self._but(as_time_limit(limit), self._clusters)

    def with_clusters(self, clusters: npt.ArrayLike) -> Stream:
        """The stream of the same episodes in clusters: see :meth:`Trajectories.with_clusters`."""
        return self._but(self._limit, as_whole(clusters, "clusters", (None,)))

    def _but(self, limit: TimeLimit | None, clusters: Ints | None) -> Stream:
        kept = (self.name, self._parts, self.batch_rows, self._labels, self.state_columns)
        return Stream(*kept, time_limit=limit, clusters=clusters)

    def load(self) -> Trajectories:
        """All episodes, in memory."""
        return Trajectories.concatenate(self)

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """The names in each column of text, in the order of the numbers 0, 1, … that stand for them."""
        return self._labels()

    @property
    def counts(self) -> Counts:
        """What the last whole pass found; an error before the first."""
        if self._counts is None:
            raise InvalidInputError(
                f"{self.name} must have been read to its end for its counts, got none yet; "
                "iterate over it, or load() it, first"
            )
        return self._counts

    @property
    def given_up(self) -> int:
        """Last transitions that were given up, see :class:`Counts`."""
        return self.counts.given_up

    @property
    def vanished(self) -> int:
        """Episodes that had no transition left, see :class:`Counts`."""
        return self.counts.vanished

    def __repr__(self) -> str:
        return f"Stream({self.name})"


def _numbered(keys: Ints, known: dict[int, int]) -> Ints:
    """The clusters' numbers (n,), by keys (n,); new ones are added to those that are known."""
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    for at in np.argsort(first):
        known.setdefault(int(distinct[at]), len(known))
    return np.array([known[key] for key in distinct.tolist()], dtype=np.int64)[inverse]


def _merge(parts: list[Trajectories]) -> Trajectories:
    return parts[0] if len(parts) == 1 else Trajectories.concatenate(parts)


def _check_alike(first: Piece, part: Piece) -> None:
    """Raise where the states' dimension or type, or what is known of the actions, changes on the way."""
    a, b = first.data.states, part.data.states
    if a.shape[1] != b.shape[1] or a.dtype != b.dtype:
        raise MismatchError(
            f"states must have one dimension and type throughout, got {a.shape[1]} of {a.dtype} in "
            f"{first.where} and {b.shape[1]} of {b.dtype} in {part.where}; convert one of them, or read "
            "them apart"
        )
    if first.data.action_kind != part.data.action_kind:
        raise MismatchError(
            f"actions must be alike throughout, got {first.data.action_kind} in {first.where} and "
            f"{part.data.action_kind} in {part.where}; convert one of them, read them apart, or leave the "
            "actions out of tables with action=None"
        )
