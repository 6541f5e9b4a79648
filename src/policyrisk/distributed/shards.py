"""Shards: the pieces that recorded or simulated episodes come in, each read as a whole by one worker."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from policyrisk._core.frames import Coordinates
from policyrisk.data import Source, Stream, Trajectories, batches, check_reiterable, coordinates_of, read
from policyrisk.data.files import PathOrPaths, check_distinct, find_files
from policyrisk.data.minari_datasets import minari_folder
from policyrisk.data.npz import npz_labels
from policyrisk.data.parquet import count_row_groups
from policyrisk.data.read import READERS
from policyrisk.data.stream import Counts
from policyrisk.distributed import session
from policyrisk.errors import EmptyDataError, InvalidInputError

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
