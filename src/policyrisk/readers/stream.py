"""A re-iterable source of episodes that are read as they are needed.

Iterating gives :class:`~policyrisk.trajectories.Trajectories` of whole episodes, each of at least
``batch_rows`` states (the last one may be smaller), and starts anew each time. Only one batch, and the
episode that is being read, are in memory.

Some episodes give something up, which is counted and never silent:

    given up    last transitions of cut-off episodes whose end state was not recorded
    vanished    episodes of which no transition is left
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from policyrisk._core.text import plural
from policyrisk.errors import EmptyDataError, InvalidInputError, MismatchError, UnrecordedEndWarning
from policyrisk.trajectories import Trajectories

BATCH_ROWS = 1 << 16  # states in a batch: some MB, and enough that Python's share of the time is small


class Piece(NamedTuple):
    """Some whole episodes, and where they were read."""

    data: Trajectories
    where: str
    given_up: int = 0
    vanished: int = 0


@dataclass(frozen=True)
class Counts:
    """What one whole pass over a stream found."""

    episodes: int  # those that were given out, cut off or not
    transitions: int
    cut_off: int  # episodes among them that did not terminate
    given_up: int  # last transitions that were given up, their end state being unknown
    vanished: int  # episodes that are not among those given out, having no transition left


class Stream:
    """Batches of whole episodes from files or datasets; iterate, or ``load()`` all of it.

    >>> one = Trajectories([[0], [1], [2]], [1.0, 1.0], [2], [True])
    >>> stream = Stream("memory", lambda: iter([Piece(one, "memory"), Piece(one, "memory")]), batch_rows=1)
    >>> [len(batch) for batch in stream], [len(batch) for batch in stream]
    ([1, 1], [1, 1])
    >>> stream.load()
    Trajectories(2 episodes, 2 terminated, 4 transitions, dim 1)
    >>> stream.counts
    Counts(episodes=2, transitions=4, cut_off=0, given_up=0, vanished=0)
    """

    def __init__(
        self,
        name: str,
        parts: Callable[[], Iterator[Piece]],
        batch_rows: int = BATCH_ROWS,
        labels: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
        state_columns: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.state_columns = state_columns  # their names; none where they have none
        self._labels = labels
        self.batch_rows = batch_rows
        self._parts = parts
        self._counts: Counts | None = None
        self._warned = False

    def __iter__(self) -> Iterator[Trajectories]:
        episodes = transitions = cut_off = given_up = vanished = 0
        first: Piece | None = None
        pending: list[Trajectories] = []
        rows = 0
        for part in self._parts():
            given_up += part.given_up
            vanished += part.vanished
            if not len(part.data):
                continue
            first = part if first is None else first
            _check_alike(first, part)
            episodes += len(part.data)
            transitions += part.data.transitions
            cut_off += int((~part.data.terminated).sum())
            pending.append(part.data)
            rows += len(part.data.states)
            if rows >= self.batch_rows:
                batch, pending, rows = _merge(pending), [], 0
                yield batch
        if pending:
            yield _merge(pending)
        self._counts = counts = Counts(episodes, transitions, cut_off, given_up, vanished)
        if not episodes:
            raise EmptyDataError(
                f"{self.name} must hold at least one episode with a transition, got none"
                + (f" ({plural(vanished, 'episode')} without one)" if vanished else "")
                + "; check that it is the file or folder you meant"
            )
        if counts.given_up + counts.vanished and not self._warned:
            self._warned = True  # once for each stream: estimators take several passes
            gone = f", and {plural(counts.vanished, 'episode')} with nothing left" if counts.vanished else ""
            warnings.warn(
                f"{self.name}: {plural(counts.given_up, 'last transition')} given up, of cut-off episodes "
                f"whose end state was not recorded{gone}; record the state that each episode ended in",
                UnrecordedEndWarning,
                stacklevel=2,
            )

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
