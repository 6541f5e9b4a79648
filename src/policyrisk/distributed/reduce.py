"""Shards, and passes over them on a cluster: leaves that sum, and a tree that adds; LSTD(λ) by such passes.

Shards are the pieces that recorded or simulated episodes come in, each read as a whole by one worker.

    part       0   1   2   3   4            a task each: the pass over the part's shards
                \\ /     \\ /    |
    level 1      .       .     |            a task each: the sum of two sums, where they lie
                  \\     /      |
    level 2         .         /
                      \\     /
    level 3             .                   the driver gets this one

Which sums are added to which is fixed by their number. Tasks are handed out a few for each worker at a time,
sums before parts, so that at most 2·workers + log₂(parts) sums exist at once, on all machines together.
After an error those few are left to end by themselves: cancelling tasks that wait for others can crash Ray.
"""

from __future__ import annotations

import copy
import itertools
import operator
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, overload

import numpy as np

from policyrisk._core.arrays import Seed, check_choice
from policyrisk._core.frames import Coordinates
from policyrisk._core.progress import ProgressBar
from policyrisk._core.text import plural
from policyrisk.data import Source, Stream, Trajectories, batches, check_reiterable, coordinates_of, read
from policyrisk.data.files import PathOrPaths, check_distinct, find_files
from policyrisk.data.minari_datasets import minari_folder
from policyrisk.data.npz import npz_labels
from policyrisk.data.parquet import count_row_groups
from policyrisk.data.read import READERS
from policyrisk.data.stream import Counts
from policyrisk.distributed import session
from policyrisk.equations import MomentEquations
from policyrisk.errors import EmptyDataError, InvalidInputError, SkippedShardsWarning
from policyrisk.lstd import LSTD, LSTDQ
from policyrisk.passes import Sum
from policyrisk.returns import DistributionFunction, ReturnDistribution
from policyrisk.risk import RiskFunction

# Of a pass, or twice the workers where these are more: each costs a sum that is sent, which for thousands of
# features takes longer than summing a hundred thousand transitions.
PARTS = 16
_ALIKE = 3  # warnings of one kind that are passed on

OnError = Literal["stop", "skip"]
MANY_FILES = 16  # from which on each is one shard


@dataclass(frozen=True, eq=False)
class Shard:
    """Some episodes, and the name to speak of them by."""

    name: str
    source: Any = field(repr=False)  # what a worker iterates over, a reference to it, or how it opens a file

    def open(self) -> Source:
        """The episodes, on the worker."""
        ray, source = session.load(), self.source
        if isinstance(source, partial):
            source = source()
        found: Source = ray.get(source) if isinstance(source, ray.ObjectRef) else source
        return found


def shards(path: PathOrPaths, **options: Any) -> list[Shard]:
    """A shard for each file of a folder or list.

    Where there are fewer than 16 Parquet files, each is cut into several shards by its row groups. A Minari
    dataset is one shard.

    Parameters
    ----------
    path
        A folder or a list of files; every worker must see the files under the same path.
    **options
        Those of :func:`policyrisk.read`.

    Returns
    -------
    list of Shard
        For :func:`fit`.

    Examples
    --------
    >>> import tempfile, policyrisk as pr
    >>> folder = tempfile.TemporaryDirectory()
    >>> for k in range(2):
    ...     data = pr.domains.walk(n=3, p=0.7).sample(0, episodes=5, seed=k)
    ...     pr.write_parquet(data, f"{folder.name}/{k}.parquet", state=["place"])
    >>> [Path(shard.name).name for shard in shards(folder.name, state=["place"])]
    ['0.parquet', '1.parquet']
    >>> folder.cleanup()
    """
    if options.get("cluster") is not None:
        raise InvalidInputError(
            "cluster must be left out where several workers read the files, got a column; evaluate in one "
            "process, or load the data and pass Trajectories with clusters"
        )
    one = Path(path) if isinstance(path, str | os.PathLike) else None
    if str(path).startswith("minari:") or (one is not None and minari_folder(one) is not None):
        return [Shard(str(path), partial(read, str(path), **options))]
    if options.get("time_limit") == "end":
        options["time_limit"] = read(path, **options).time_limit  # one for all of them
    files = find_files(path, "")
    if one is not None and one.is_dir():
        files = [file for file in files if file.suffix.lower() in READERS]
    kinds = {file.suffix.lower() for file in files}
    if len(kinds) != 1 or not kinds <= READERS.keys():
        raise InvalidInputError(
            f"shards must be files of one kind, {', '.join(READERS)}, got {path} with "
            f"{' and '.join(sorted(kinds)) or 'none of these'}; convert them, or pass streams"
        )
    if labels := npz_labels(files) if kinds == {".npz"} else read(path, **options).labels:
        options["codes"] = dict(labels)  # the same numbers for a name, whoever reads it
    pieces = -(-MANY_FILES // len(files)) if kinds == {".parquet"} and "row_groups" not in options else 1
    return [shard for file in files for shard in _pieces(file, pieces, options)]


def _pieces(file: Path, most: int, options: Mapping[str, Any]) -> list[Shard]:
    """A file as a shard, or by row groups as several."""
    path, groups = str(file.absolute()), 1
    if most > 1:
        with suppress(InvalidInputError):  # who reads it says what is wrong
            groups = count_row_groups(file)
    if min(most, groups) < 2:
        return [Shard(str(file), partial(read, path, **options))]
    return [
        Shard(f"{file}, row groups {a} to {b - 1}", partial(read, path, **options, row_groups=(a, b)))
        for a, b in evenly(groups, most)
    ]


def as_shards(given: Any) -> list[Shard]:
    """The shards of a path, or of a list of paths, Trajectories, streams or shards."""
    if isinstance(given, str | os.PathLike):
        return shards(given)
    if isinstance(given, Trajectories | Stream):
        given = [given]
    if not isinstance(given, Iterable) or isinstance(given, Iterator):
        raise InvalidInputError(
            "shards must be a folder, a list of files, of Trajectories or of streams, or what "
            f"distributed.rollout returned, got {type(given).__name__}; pass one of these"
        )
    given = list(getattr(given, "shards", given))
    files = [Path(each) for each in given if isinstance(each, str | os.PathLike) and Path(each).is_file()]
    if len(files) == len(given) and len({file.suffix.lower() for file in files}) == 1:
        return shards(files)  # the same numbers for a name in all of them
    paths = [Path(each) for each in given if isinstance(each, str | os.PathLike) and Path(each).exists()]
    check_distinct([find_files(path, "") for path in paths], "shards")
    found: list[Shard] = []
    for number, each in enumerate(given):
        if isinstance(each, Shard):
            found.append(each)
        elif isinstance(each, str | os.PathLike):
            found += shards(each)
        else:
            check_reiterable(each)
            name = each.name if isinstance(each, Stream) else f"number {number}"
            found.append(Shard(name, session.put(each, f"shard {name}")))
    if not found:
        raise InvalidInputError("shards must be at least one, got none; pass files, Trajectories or streams")
    return found


def evenly(count: int, most: int) -> list[tuple[int, int]]:
    """The ranges 0, …, count − 1 is cut into, at most ``most`` of about the same length.

    >>> evenly(5, 2), evenly(2, 9)
    ([(0, 2), (2, 5)], [(0, 1), (1, 2)])
    """
    return list(itertools.pairwise(np.linspace(0, count, min(most, count) + 1).astype(int).tolist()))


class ShardError(Exception):
    """A shard could not be read: its place, its name, and why."""

    def __init__(self, place: int, name: str, reason: str) -> None:
        super().__init__(place, name, reason)
        self.place, self.name, self.reason = place, name, reason


@dataclass(frozen=True, eq=False)
class ShardEpisodes:
    """The episodes of some shards, one shard after the other; what cannot be read is a ShardError."""

    shards: Mapping[int, Shard]  # by their place
    counts: dict[int, Counts] = field(default_factory=dict)  # likewise, of streams once they were read
    coordinates: dict[int, Coordinates | None] = field(default_factory=dict)  # likewise, the states'

    def __iter__(self) -> Iterator[Trajectories]:
        for place, shard in self.shards.items():
            source: Source | None = None
            try:
                source = shard.open()
                yield from batches(source)
                self.coordinates[place] = coordinates_of(source)
            except EmptyDataError:
                pass  # one among others, as writers leave them
            except Exception as error:
                text = " ".join(str(error).split()) or type(error).__name__
                raise ShardError(place, shard.name, text) from error
            if isinstance(source, Stream):
                self.counts[place] = source.counts


@overload
def fit(estimator: LSTD | LSTDQ, shards: Any, **how: Any) -> RiskFunction: ...
@overload
def fit(estimator: ReturnDistribution, shards: Any, **how: Any) -> DistributionFunction: ...


def fit(  # type: ignore[misc]
    estimator: LSTD | LSTDQ | ReturnDistribution,
    shards: Any,
    *,
    on_error: OnError = "stop",
    error_bars: bool = True,
    bootstrap: int = 0,
    seed: Seed = None,
) -> RiskFunction | DistributionFunction:
    """``estimator.fit`` of all the shards' episodes; to rounding, what it would give here.

    Parameters
    ----------
    estimator
        LSTD, LSTDQ or ReturnDistribution.
    shards
        A folder of Parquet or CSV files, a list of files, of Trajectories or of streams, what :func:`shards`
        makes of files with other columns, or what :func:`rollout` returned.
    on_error
        "stop": a shard that cannot be read is an error that names it. "skip": it is a
        :class:`policyrisk.errors.SkippedShardsWarning`, and its name is in ``risk.provenance.skipped``, or
        ``distribution.skipped``.
    error_bars, bootstrap, seed
        As of :meth:`policyrisk.LSTD.fit`; ReturnDistribution has ``error_bars`` alone.

    Returns
    -------
    RiskFunction or DistributionFunction
        As ``estimator.fit`` returns it.

    Examples
    --------
    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=10, p=0.7)
    >>> data = [chain.sample(start=0, episodes=100, seed=k) for k in range(3)]
    >>> risk = pr.distributed.fit(pr.LSTD(pr.Tabular(10)), data)
    >>> bool(abs(risk.variance([0]) - pr.LSTD(pr.Tabular(10)).fit(data).variance([0])) < 1e-9)
    True
    """
    with session.cluster():
        reduce = ShardReduce(as_shards(shards), on_error)
        if isinstance(estimator, ReturnDistribution):
            if bootstrap:
                raise InvalidInputError(
                    f"bootstrap must be 0 for a ReturnDistribution, got {bootstrap}; its intervals need none"
                )
            found = estimator.fit_by(reduce, error_bars=error_bars)
            return replace(found, skipped=reduce.skipped, coordinates=reduce.coordinates)
        risk = estimator.fit_by(reduce, error_bars=error_bars, bootstrap=bootstrap, seed=seed)
        facts = replace(risk.provenance, skipped=reduce.skipped)
        return replace(risk, provenance=facts, coordinates=reduce.coordinates)


def equations(lstd: LSTD | LSTDQ, shards: Any, *, on_error: OnError = "stop") -> MomentEquations:
    """``lstd.equations`` of all the shards' episodes, in one pass.

    Parameters
    ----------
    lstd
        LSTD or LSTDQ.
    shards, on_error
        As of :func:`fit`.

    Returns
    -------
    MomentEquations
        The sum over all shards.
    """
    with session.cluster():
        return ShardReduce(as_shards(shards), on_error)(lambda source, _: lstd.equations(source))


class PartReport(NamedTuple):
    """What a part has to say besides its sum."""

    failed: dict[int, str]  # shards that could not be read, by their place, and why
    warned: list[tuple[type[Warning], str]]
    counts: Counts  # of the streams of its shards
    coordinates: dict[int, Coordinates | None]  # of the states, by the shards' place


class ShardReduce:
    """Runs passes over shards; a :class:`policyrisk.passes.Reduce`."""

    def __init__(self, shards: Sequence[Shard], on_error: OnError) -> None:
        check_choice(on_error, "on_error", get_args(OnError))
        bounds = evenly(len(shards), max(PARTS, 2 * session.workers()))
        self.shards = list(shards)
        self.parts = [dict(enumerate(self.shards[a:b], start=a)) for a, b in bounds]
        self.on_error = on_error
        self.failed: dict[int, str] = {}  # all that were skipped
        self.counts = Counts()  # of streams, in the last pass
        self._coordinates: dict[int, Coordinates | None] = {}
        self._passes = 0
        self._told: set[tuple[type[Warning], str]] = set()

    @property
    def skipped(self) -> tuple[str, ...]:
        """The names of the shards that were skipped."""
        return tuple(self.shards[place].name for place in sorted(self.failed))

    @property
    def coordinates(self) -> Coordinates | None:
        """What the states' coordinates are called, by the first shard that has episodes."""
        return self._coordinates[min(self._coordinates)] if self._coordinates else None

    def __call__(self, work: Callable[[Source, int], Sum]) -> Sum:
        """The sum of ``work(source, part)`` over all parts."""
        # What a first pass could not read is left out by all; later it would be counted by some only.
        may_skip = self.on_error == "skip" and self._passes == 0
        self._passes += 1
        self.counts = Counts()
        sent = session.put(work, "the features")
        parts = [
            {place: shard for place, shard in part.items() if place not in self.failed} for part in self.parts
        ]
        with ProgressBar(f"pass {self._passes}, shards", len(self.shards)) as bar:

            def done(number: int, report: PartReport) -> None:
                self._take(report)
                bar.advance(len(self.parts[number]))

            try:
                root = _tree([(sent, part, number, may_skip) for number, part in enumerate(parts)], done)
                # A copy: what Ray gives out is gone when Ray is.
                found: Sum = copy.deepcopy(session.get(root, "the sum of all shards"))
            except ShardError as error:
                raise self._unreadable(error) from None
        if may_skip and self.failed:
            self._warn_of_skipped()
        return found

    def _take(self, report: PartReport) -> None:
        self.failed |= report.failed
        self.counts += report.counts
        self._coordinates |= report.coordinates
        for kind, text in report.warned:
            alike = sum(told is kind for told, _ in self._told)
            if (kind, text) not in self._told and alike < _ALIKE:
                self._told.add((kind, text))
                more = "" if alike < _ALIKE - 1 else " (and other shards may have more such)"
                warnings.warn(text + more, kind, stacklevel=7)

    def _unreadable(self, error: ShardError) -> InvalidInputError:
        remedy = 'repair it, leave it out, or pass on_error="skip" to go on without'
        if self.on_error == "skip":
            remedy = "it could be read in the first pass: keep the shards as they are while they are fitted"
        return InvalidInputError(
            f"shard {error.name} must be readable, and is not ({error.reason}); {remedy}"
        )

    def _warn_of_skipped(self) -> None:
        names, reason = self.skipped, self.failed[min(self.failed)]
        if len(names) == len(self.shards):
            raise InvalidInputError(
                f"shards must be readable, and none of {plural(len(names), 'shard')} is; {names[0]}: {reason}"
            )
        warnings.warn(
            f"{len(names)} of {plural(len(self.shards), 'shard')} could not be read and were left out: "
            f"{', '.join(names)} ({names[0]}: {reason})",
            SkippedShardsWarning,
            stacklevel=6,
        )


def _take_part(work: Any, shards: dict[int, Shard], number: int, may_skip: bool) -> tuple[Any, PartReport]:
    """On a worker: a pass over a part. A shard fails as a whole; then the others are summed again."""
    failed: dict[int, str] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while True:
            source = ShardEpisodes({place: shard for place, shard in shards.items() if place not in failed})
            try:
                found = work(source, number)
            except ShardError as error:
                if not may_skip:
                    raise
                failed[error.place] = error.reason
            else:
                warned = [(each.category, str(each.message)) for each in caught]
                counts = sum(source.counts.values(), Counts())
                return found, PartReport(failed, warned, counts, source.coordinates)


def _tree(parts: Sequence[tuple[Any, ...]], done: Callable[[int, PartReport], None]) -> Any:
    """A reference to the sum of ``_take_part(*part)`` over the parts; ``done`` hears of each."""
    leaf, add = session.task(_take_part, returns=2), session.task(operator.add)
    sizes = [len(parts)]  # of the levels
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    most = 2 * session.workers()
    waiting = deque(enumerate(parts))
    running: dict[Any, tuple[int, int, Any]] = {}  # what to wait for, and its level, place and sum
    ready: dict[tuple[int, int], Any] = {}  # sums whose neighbour is not ready yet
    while True:
        while waiting and len(running) < most:
            number, part = waiting.popleft()
            found, report = leaf.remote(*part)
            running[report] = (0, number, found)
        over = session.first_done(running, fetch_local=False)
        level, place, found = running.pop(over)
        if level == 0:
            done(place, session.get(over, f"part {place} of the shards"))
        while place ^ 1 >= sizes[level] > 1:
            level, place = level + 1, place // 2  # the odd one goes up as it is
        if sizes[level] == 1:
            return found
        neighbour = ready.pop((level, place ^ 1), None)
        if neighbour is None:
            ready[level, place] = found
            continue
        pair = (found, neighbour) if place % 2 == 0 else (neighbour, found)
        both = add.remote(*pair)
        running[both] = (level + 1, place // 2, both)
