"""One function for every kind of recorded episodes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from policyrisk._core.arrays import as_path, is_frame
from policyrisk.errors import InvalidInputError
from policyrisk.readers.csv import read_csv
from policyrisk.readers.files import PathOrPaths, find_files
from policyrisk.readers.frames import read_frame
from policyrisk.readers.minari_datasets import minari_folder, read_minari
from policyrisk.readers.npz import read_npz
from policyrisk.readers.parquet import read_parquet
from policyrisk.readers.stream import Stream
from policyrisk.trajectories import TimeLimit

_MINARI = "minari:"
_READERS: dict[str, Callable[..., Stream]] = {".parquet": read_parquet, ".csv": read_csv, ".npz": read_npz}


def read(path: PathOrPaths | Any, *, time_limit: TimeLimit | None = None, **options: Any) -> Stream:
    """A stream of recorded episodes, read by the reader that fits what is there.

        x.parquet, a folder of them      read_parquet(path, state=[...], ...)
        x.csv, a folder of them          read_csv(path, state=[...], ...)
        x.npz                            read_npz(path)
        minari:ID, a dataset's folder    read_minari(ID, project=...)
        a data frame                     read_frame(frame, state=[...], ...)

    A list of files is of one kind. The options are the reader's; one that it does not have is an error.
    ``time_limit`` takes the limit at which episodes were cut off, in steps, or "end" for the one that they
    have in common, for their end, and adds the time left to the state (:meth:`Stream.with_time_limit`).

    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> from policyrisk.readers.npz import write_npz
    >>> from policyrisk.trajectories import Trajectories
    >>> write_npz(Trajectories([[0], [1]], [1.0], [1], [True]), f"{folder.name}/log.npz")
    >>> len(read(f"{folder.name}/log.npz").load())
    1
    >>> folder.cleanup()
    """
    reader, target = _reader(path)
    known = list(inspect.signature(reader).parameters)[1:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidInputError(
            f"{', '.join(unknown)} must be an option of {reader.__name__}, which has "
            f"{', '.join(known) or 'none'}, for {_named(path)}; leave it out"
        )
    stream = reader(target, **options)
    return stream if time_limit is None else stream.with_time_limit(time_limit)


def has_columns(path: PathOrPaths) -> bool:
    """Whether what is there is read by columns that have names."""
    return _reader(path)[0] in (read_parquet, read_csv, read_frame)


def _named(path: Any) -> str:
    return f"the data frame {type(path).__name__}" if is_frame(path) else str(path)


def _reader(path: Any) -> tuple[Callable[..., Stream], Any]:
    if is_frame(path):
        return read_frame, path
    if isinstance(path, str) and path.startswith(_MINARI):
        return read_minari, path.removeprefix(_MINARI)
    if not isinstance(path, str | bytes | os.PathLike):
        kinds = {file.suffix.lower() for file in find_files(path, "")} - {".npz"}  # read one at a time
        return _by_suffix(kinds, path), path
    place = as_path(path)
    if minari_folder(place) is not None:
        return read_minari, place
    kinds = {file.suffix.lower() for file in find_files(place, "")}
    return _by_suffix(kinds & {".parquet", ".csv"} if place.is_dir() else kinds, path), path


def _by_suffix(kinds: set[str], path: object) -> Callable[..., Stream]:
    if len(kinds) == 1 and (kind := next(iter(kinds))) in _READERS:
        return _READERS[kind]
    got = " and ".join(sorted(filter(None, kinds))) or "none of these"
    raise InvalidInputError(
        f"path must be a .parquet, .csv or .npz file, a folder of .parquet or of .csv files, or minari:ID, "
        f"got {path} ({got}); convert it, or call the reader that you mean"
    )
