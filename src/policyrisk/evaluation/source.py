"""What an evaluation is made from: files, a data frame, a stream or Trajectories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from policyrisk import distributed
from policyrisk._core.arrays import is_frame
from policyrisk._core.progress import ProgressBar
from policyrisk.distributed.shards import as_shards
from policyrisk.errors import InvalidInputError
from policyrisk.passes.survey import Survey
from policyrisk.readers import Stream, read
from policyrisk.readers.any_source import has_columns
from policyrisk.readers.stream import Piece
from policyrisk.trajectories import Source, TimeLimit, Trajectories, batches, check_reiterable


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
    if not isinstance(found, Trajectories | Stream):
        found = Stream(
            described(found), lambda: (Piece(batch, described(source)) for batch in batches(source))
        )
    return found.with_time_limit(time_limit)


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
