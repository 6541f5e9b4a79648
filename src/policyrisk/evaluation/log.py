"""The log that an evaluation is made from: files, a data frame, a stream or Trajectories; its survey."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk import distributed
from policyrisk._core.arrays import Floats, Ints, as_list, is_frame, shown
from policyrisk._core.frames import Coordinates, numbered_names
from policyrisk._core.progress import ProgressBar
from policyrisk._core.text import plural
from policyrisk._core.units import unit_of
from policyrisk.data import (
    TIME_LEFT,
    Source,
    Stream,
    TimeLimit,
    Trajectories,
    batches,
    check_reiterable,
    coordinates_of,
    read,
)
from policyrisk.data.read import has_columns
from policyrisk.data.source import in_units
from policyrisk.data.stream import Counts, Piece
from policyrisk.distributed.reduce import ShardReduce, as_shards
from policyrisk.errors import InvalidInputError, check_proper
from policyrisk.evaluation.labels import stated_labels
from policyrisk.evaluation.request import AUTO, EvaluationRequest, naming_arguments
from policyrisk.features.spelling import data_box
from policyrisk.passes import here
from policyrisk.passes.survey import Survey, SurveyPass

EPISODES = 2_000  # at most, of the sample that features are chosen on
TRANSITIONS = 60_000
# At most, of the sample that holds this one and that matrices, trees and leaves are made from.
WIDE = 10_000, 150_000
BLOCKS = "blocks:"  # what a cluster of consecutive episodes is called, before their number


@dataclass(frozen=True, eq=False)
class Log:
    """A request's data, surveyed."""

    data: Source
    shards: ShardReduce | None  # of a cluster, whose workers read the data
    survey: Survey
    unit: float  # of the rewards, in which they are fitted
    sample: Trajectories  # episodes that features are chosen on, and held-out ones predicted, in this unit
    wide: Trajectories | None  # a larger sample that holds these, for a mixture
    numbers: Ints | None  # (n,): those of its episodes in all of the data
    names: tuple[str, ...]  # of the coordinates
    columns: tuple[str, ...]  # as the data call them
    labels: Mapping[int, tuple[str, ...]]  # coordinates that are labels for certain, with the names of texts
    low: Floats  # (dim,): the box of the features
    high: Floats  # (dim,)
    constant: tuple[str, ...]  # coordinates that never change

    @property
    def counts(self) -> Counts:
        """What readers did about rows that are not as they should be."""
        counted = self.data if self.shards is None else self.shards
        return counted.counts if isinstance(counted, Stream | ShardReduce) else Counts()

    @property
    def coordinates(self) -> Coordinates:
        """What frames and files of states call the coordinates, and the names behind numbers of text."""
        texts = {self.columns[d]: names for d, names in self.labels.items() if names}
        return Coordinates(self.columns, texts)


def surveyed(request: EvaluationRequest) -> Log:
    """The data of a request after one pass over them; an error where they cannot be evaluated."""
    how: dict[str, Any] = {"actions": request.target is not None, "time_limit": request.time_limit}
    reader, cluster = request.columns, request.cluster
    length = block_length(cluster)
    if isinstance(cluster, str) and not length:
        reader = {**reader, "cluster": cluster}
    data = opened(request.source, reader, **how)
    if length:
        cluster = blocks_of(data, length)
    if cluster is not None and not isinstance(cluster, str):
        data = in_clusters(data, cluster)
    shards = None
    if request.on_cluster:
        whole = isinstance(data, Trajectories)
        if cluster is not None and not whole:
            raise InvalidInputError(
                "cluster must be left out where several workers read data other than Trajectories, got "
                f"{type(request.source).__name__}; load the data, or evaluate in one process"
            )
        shards = ShardReduce(shards_of(data if whole else request.source, reader, **how), "stop")
    spelled = request.spelling is not None and request.target is None and not request.quantiles
    mixed = request.spelling is None and request.target is None
    bounds = (EPISODES, TRANSITIONS, 1) if spelled else (EPISODES, TRANSITIONS)
    work = SurveyPass(request.seed, WIDE if mixed else bounds, request.discount)
    found = here(Watched("survey", data))(work) if shards is None else shards(work)
    survey, unit = found.survey(), unit_of(found.largest)
    check_proper(request.discount, survey.episodes - survey.cut_off, survey.episodes)
    low, high, constant = data_box(survey)
    with naming_arguments():
        names, columns, labels = _called(request, data, survey.dim)
        if request.box != AUTO:
            if len(request.box) != len(names):
                raise InvalidInputError(
                    f"box must have low and high of each of {', '.join(names)}, got "
                    f"{plural(len(request.box), 'pair')}; pass one for each coordinate"
                )
            low, high = np.array(request.box).T.copy()
    sample, wide, numbers = in_units(found.sample(bounds), unit), None, None
    if mixed:
        wide, numbers = in_units(found.sample(), unit), found.sampled.numbers
    never = tuple(names[d] for d in constant)
    return Log(data, shards, survey, unit, sample, wide, numbers, names, columns, labels, low, high, never)


def _called(
    request: EvaluationRequest, data: Source, dim: int
) -> tuple[tuple[str, ...], tuple[str, ...], Mapping[int, tuple[str, ...]]]:
    """The coordinates' names, the data's own names for them, and those that are labels for certain."""
    added = () if request.time_limit is None else (TIME_LEFT,)
    dim -= len(added)
    called = coordinates_of(data)
    known = called.names[:dim] if called is not None else getattr(data, "state_columns", ())
    if known == ("state_0",) and request.columns.get("state") is None:
        known = ()  # a file whose data have no names
    own = state_names(request.names, known, dim)
    names = (*own, *added)
    columns = names if called is None or request.names is not None else called.names
    return names, columns, stated_labels(request.labels, own, data)


def state_names(
    given: Sequence[str] | None, columns: str | Sequence[str] | None, dim: int
) -> tuple[str, ...]:
    """The coordinates' names: those given, else the columns', numbered where a column is a list.

    >>> state_names(None, ["x", "y"], 2), state_names(None, "obs", 2)
    (('x', 'y'), ('obs_0', 'obs_1'))
    >>> state_names(None, None, 1)
    ('state',)
    """
    if given is not None:
        given = as_list(given, "names", "the coordinates' names")
        if not all(isinstance(name, str) for name in given) or len(given) != dim or len(set(given)) < dim:
            raise InvalidInputError(
                f"names must be different ones, one for each of the state's {plural(dim, 'coordinate')}, got "
                f"{given!r}; name each once"
            )
        return tuple(map(str, given))
    named = [columns] if isinstance(columns, str) else columns or []
    if len(named) == dim:
        return tuple(named)
    return numbered_names(named[0] if len(named) == 1 else "state", dim)


def opened(
    source: Any,
    columns: Mapping[str, Any],
    *,
    actions: bool = False,
    time_limit: TimeLimit | None = None,
) -> Source:
    """The episodes: a stream where they are in files or a data frame, whose reader's options are ``columns``.

    With ``actions`` these are read too, from the columns of the reader's own names unless others are named.
    ``time_limit`` is that of :func:`policyrisk.read`.
    """
    if _paths(source) or is_frame(source):
        return read(source, **_asked_for(source, columns, actions), time_limit=time_limit)
    if not isinstance(source, Iterable):
        raise InvalidInputError(
            f"source must be a path, a data frame, Trajectories or a re-iterable of them, got "
            f"{type(source).__name__}; pass one of these"
        )
    if columns:
        raise InvalidInputError(
            f"{', '.join(columns)} must be left out unless source is a path or a data frame, got "
            f"{type(source).__name__}; they say how rows are read"
        )
    check_reiterable(source)
    found: Source = source
    if time_limit is None:
        return found
    return _whole_or_stream(found).with_time_limit(time_limit)


def _whole_or_stream(source: Source) -> Trajectories | Stream:
    """The source, as a stream where it is another re-iterable."""
    if isinstance(source, Trajectories | Stream):
        return source
    name = described(source)
    return Stream(name, lambda: (Piece(each, name) for each in batches(source)))


def block_length(cluster: object) -> int:
    """m of ``blocks:m``, blocks of so many consecutive episodes; 0 of everything else.

    >>> block_length("blocks:50"), block_length("day")
    (50, 0)
    """
    if not isinstance(cluster, str) or not cluster.startswith(BLOCKS):
        return 0
    text = cluster.removeprefix(BLOCKS)
    if not text.isdecimal() or not 1 <= int(text[:20]) < 2**31:
        raise InvalidInputError(
            f"cluster must have the number of episodes of a block behind {BLOCKS}, got {cluster!r}; pass for "
            f"example {BLOCKS}50"
        )
    return int(text)


def blocks_of(data: Source, length: int) -> Ints:
    """The blocks of consecutive episodes, by their times where these are known, (episodes,)."""
    parts = [np.full(len(each), np.nan) if each.times is None else each.times for each in batches(data)]
    place = np.argsort(np.argsort(np.concatenate(parts), kind="stable"), kind="stable")
    return place // length


def marks_of(values: Any, name: str) -> npt.NDArray[Any]:
    """A value for each episode, (episodes,): whole numbers, texts, dates, or others by their texts."""
    each = as_list(values, name, "a value for each episode")
    try:
        found = np.asarray(each)
        missing = any(one is None or one is np.ma.masked or one != one for one in each)
        found = found.astype(str) if found.dtype.kind == "O" else found  # such as dates of pandas
        if found.ndim == 1 and found.dtype.kind in "iubUSMf" and not missing:
            return found
        got = f"{found.dtype} of shape {found.shape}"
    except Exception:  # of values that cannot be compared
        got = shown(values)
    raise InvalidInputError(
        f"{name} must be a column's name, or whole numbers, texts or dates of shape (episodes,), none "
        f"missing, got {got}; give one value for each episode"
    )


def in_clusters(data: Source, cluster: Any) -> Source:
    """The episodes in the clusters that an array (episodes,) of any values names."""
    numbers = np.unique(marks_of(cluster, "cluster"), return_inverse=True)[1].reshape(-1)
    return _whole_or_stream(data).with_clusters(numbers)


def shards_of(
    source: Any,
    columns: Mapping[str, Any],
    *,
    actions: bool = False,
    time_limit: TimeLimit | None = None,
) -> list[distributed.Shard]:
    """The same in pieces, for the workers of a cluster."""
    if is_frame(source) or (time_limit is not None and not _paths(source)):
        found = opened(source, columns, actions=actions, time_limit=time_limit)
        return as_shards(found.load() if isinstance(found, Stream) else found)
    if not _paths(source):
        return as_shards(source)
    limit = {} if time_limit is None else {"time_limit": time_limit}
    return distributed.shards(source, **_asked_for(source, columns, actions), **limit)


def _asked_for(source: Any, columns: Mapping[str, Any], actions: bool) -> Mapping[str, Any]:
    """The reader's options. The recorded policy's own risk needs no actions: unless named, none are read."""
    if actions or not has_columns(source):
        return columns
    return {"action": None, "propensity": None, **columns}


def described(source: Any) -> str:
    """What the data are, in a line."""
    if paths := _paths(source):
        return ", ".join(map(str, paths))
    if isinstance(source, Stream):
        return source.name
    if is_frame(source):
        return f"a {type(source).__name__}"
    return repr(source) if isinstance(source, Trajectories) else f"a {type(source).__name__} of Trajectories"


def fingerprint(source: Any, survey: Survey) -> list[Any]:
    """What tells the data from others: counts and extent; name, size and time of each of their files."""
    places = [Path(path) for path in _paths(source)]
    files = [file for place in places for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return [
        [survey.episodes, survey.transitions, survey.low.tolist(), survey.high.tolist()],
        *([str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()),
    ]


def _paths(source: Any) -> list[str | os.PathLike[str]]:
    """The paths that a source is, one or several; none where it is something else."""
    given = [source] if isinstance(source, str | os.PathLike) else source
    if isinstance(given, list | tuple) and all(isinstance(path, str | os.PathLike) for path in given):
        return list(given)
    return []


class Watched:
    """A source with a progress bar over its transitions at each pass, whose number may not be known."""

    def __init__(self, title: str, source: Source, transitions: int | None = None) -> None:
        self.title, self.source, self.transitions = title, source, transitions

    def __iter__(self) -> Iterator[Trajectories]:
        with ProgressBar(self.title, self.transitions) as bar:
            for batch in batches(self.source):
                bar.advance(batch.transitions)
                yield batch
