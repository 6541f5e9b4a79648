"""Work that may be killed at any moment: what it has so far is kept in a file.

A :class:`Checkpoint` replaces its file as a whole, every few seconds and for at most a tenth of the time. The
file says in plain values what the work is about, its *problem*; going on with another is an error. Whoever
goes on does what is left in the same order, so that the result is, bit for bit, that of a run that was not
disturbed.

:class:`DurableReduce` runs passes over data in this way. Each batch of the data is a part; a pass adds its
parts one by one, and the checkpoint holds the sums of finished passes and that of the one under way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from policyrisk._core import records
from policyrisk._core.arrays import as_flag, as_path
from policyrisk._core.devices import single_threaded
from policyrisk._core.files import remove_remains
from policyrisk.data import Source, Trajectories, batches
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.passes import Sum

PASSES = "passes"  # the work of a DurableReduce
_EVERY = 2.0  # seconds between two checkpoints
_PATIENCE = 10.0  # of a checkpoint's own time: large ones are written less often
_SHOWN = 60  # letters of a value that changed


class Unasked(os.PathLike[str]):
    """The path of a checkpoint that nobody asked for: where it cannot be written, the work goes on without.

    ``tell`` is called once then, with a text that says so.
    """

    def __init__(self, path: Path, tell: Callable[[str], object]) -> None:
        self.path, self.tell = path, tell

    def __fspath__(self) -> str:
        return str(self.path)


class SavedWork(TypedDict):
    """What a checkpoint's file holds."""

    problem: dict[str, Any]
    state: Any


class Checkpoint:
    """The file of some work, or, without a path, none.

    ``work`` names its kind, and ``problem`` holds plain values: numbers, texts, None, and lists and
    dictionaries of them.
    """

    def __init__(self, work: str, path: str | os.PathLike[str] | None, problem: Mapping[str, Any]) -> None:
        self.work, self.path = work, None if path is None else as_path(path, "checkpoint")
        self.problem = dict(problem)
        self._tell = path.tell if isinstance(path, Unasked) else None
        self._given_up = False
        self._due = time.monotonic() + _EVERY

    def load(self, declared: Any) -> Any:
        """What was saved, of the declared type; an error where it is of another problem."""
        assert self.path is not None
        remove_remains(self.path)
        stored, state = stored_checkpoint(self.path, self.work, declared)
        now = self.problem
        differ = [name for name in {**stored, **now} if stored.get(name) != now.get(name)]
        if differ:
            changes = "; ".join(
                f"{name} was {_short(stored.get(name))} and is {_short(now.get(name))}" for name in differ
            )
            raise MismatchError(
                f"checkpoint must be of the same problem, but {', '.join(differ)} changed since {self.path} "
                f"was written ({changes}); repeat the call as it was, or begin another without resume"
            )
        return state

    def save(self, state: Any) -> None:
        """Replace the file."""
        if self.path is None or self._given_up:
            return
        began = time.monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            records.save(self.path, f"Checkpoint of {self.work}", {"problem": self.problem, "state": state})
        except (OSError, InvalidInputError) as error:
            if self._tell is not None:
                self._given_up = True
                self._tell(f"it goes on without a checkpoint, since none can be written: {error}")
                return
            raise InvalidInputError(
                f"checkpoint must be a file that can be written, got {self.path} ({error}); make room or "
                "choose another folder, where an earlier checkpoint can be copied to go on with resume"
            ) from error
        ended = time.monotonic()
        self._due = ended + max(_EVERY, _PATIENCE * (ended - began))

    def save_if_due(self, state: Callable[[], Any]) -> None:
        """Replace the file where the last time was some seconds ago."""
        if time.monotonic() >= self._due:
            self.save(state())

    @contextmanager
    def saved_on_interrupt(self, state: Callable[[], Any], done: Callable[[], str]) -> Iterator[None]:
        """What an interrupt stops is saved; the KeyboardInterrupt then says how far it was, and where."""
        try:
            yield
        except KeyboardInterrupt:
            self.save(state())
            kept = f", saved in {self.path}; go on with --resume or resume=True"
            if self.path is None:
                kept = "; nothing is kept without checkpoint="
            elif self._given_up:
                kept = "; that is not kept, since the checkpoint cannot be written"
            raise KeyboardInterrupt(f"stopped after {done()}{kept}") from None


def as_resume(resume: object, checkpoint: object) -> bool:
    """Whether to go on with a checkpoint, which must then be given."""
    if as_flag(resume, "resume") and checkpoint is None:
        raise InvalidInputError(
            "checkpoint must be given with resume=True, got None; pass the path of the run to go on with"
        )
    return bool(resume)


def stored_checkpoint(
    path: str | os.PathLike[str], work: str, declared: Any = Any
) -> tuple[dict[str, Any], Any]:
    """The problem and the state, of the declared type, in a checkpoint."""

    def parts(values: SavedWork) -> tuple[dict[str, Any], Any]:
        records.check_value(values["state"], declared, "state")
        return values["problem"], values["state"]

    return records.load(path, f"Checkpoint of {work}", SavedWork, parts)


def stored_problem(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The problem in a checkpoint of a DurableReduce."""
    return stored_checkpoint(path, PASSES)[0]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"


class DurableReduce:
    """Runs passes over data in this process; a :class:`policyrisk.passes.Reduce`.

    Without a path nothing is kept, and the sums are the same, bit for bit.

    >>> import policyrisk as pr, tempfile
    >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=50, seed=1)
    >>> lstd = pr.LSTD(pr.Tabular(10))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     reduce = DurableReduce(data, f"{folder}/checkpoint.npz", {"data": "walk"}, resume=False)
    ...     risk = lstd.fit_by(reduce)
    >>> bool(risk.mean([0]) == lstd.fit(data).mean([0]))
    True
    """

    def __init__(
        self,
        data: Source,
        path: str | os.PathLike[str] | None,
        problem: Mapping[str, Any],
        *,
        resume: bool,
    ) -> None:
        self.data, self.checkpoint = data, Checkpoint(PASSES, path, problem)
        self._pass = 0
        self._episode: Trajectories | None = None  # the first, once it was asked for
        # The sums of finished passes, that of the pass under way, and how many parts are in it. Replaced by
        # one assignment: an interrupt comes before it or after it.
        self._state: tuple[list[Any], Any, int] = ([], None, 0)
        if resume and path is not None and Path(path).exists():
            self._state = self.checkpoint.load(tuple[list[Any], Any, int])

    def __call__(self, work: Callable[[Source, int], Sum]) -> Sum:
        """The sum of ``work(source, part)`` over all parts."""
        self._pass += 1
        finished, total, done = self._state
        parts = 0
        if self._pass <= len(finished):
            return self._like(finished[self._pass - 1], self._of_one(work))
        saved = self.checkpoint.saved_on_interrupt(
            lambda: self._state, lambda: f"{self._state[2]} parts of pass {self._pass}"
        )
        with saved, single_threaded():
            for part, batch in enumerate(batches(self.data)):
                if part >= done:
                    found = work([batch], part)
                    if part == done > 0:
                        total = self._like(total, found)
                    total = found if part == 0 else total + found
                    self._state = finished, total, part + 1
                    self.checkpoint.save_if_due(lambda: self._state)
                parts = part + 1
        if done >= parts > 0:  # all that is left of this pass is what the file says
            total = self._like(total, self._of_one(work))
        if self._state[2] == 0:
            raise InvalidInputError("data must hold at least one episode, got none; record some")
        kept = None if self.checkpoint.path is None else total
        self._state = [*finished, kept], None, 0
        result: Sum = total
        return result

    def _of_one(self, work: Callable[[Source, int], Sum]) -> Sum:
        """What the work gives for an episode, to tell what kind of sum it is."""
        if self._episode is None:
            self._episode = next(iter(batches(self.data)))[:1]
        return work([self._episode], 0)

    def _like(self, stored: Any, given: Sum) -> Sum:
        """What a file says, where it is such a sum as was found now: a file may say anything."""
        shapes = [each.shape if isinstance(each, np.ndarray) else () for each in (stored, given)]
        if type(stored) is not type(given) or shapes[0] != shapes[1]:
            raise InvalidInputError(
                f"checkpoint must hold the sums of these passes, got {type(stored).__name__} for "
                f"{type(given).__name__} in {self.checkpoint.path}; begin another without resume"
            )
        checked: Sum = stored
        return checked
