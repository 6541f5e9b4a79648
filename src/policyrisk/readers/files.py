"""Which files a path stands for, and streams over the tables in them: what Parquet and CSV do alike.

A table is opened by a function of its file and the columns wanted, which gives the names of its columns and
its record batches. Everything else, from the columns to the episodes, is shared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from policyrisk._core.arrays import as_count
from policyrisk._core.imports import check_installed
from policyrisk.errors import InvalidInputError, PolicyRiskError
from policyrisk.readers.columns import Converter, Layout, match
from policyrisk.readers.rows import episodes
from policyrisk.readers.stream import Piece, Stream

if TYPE_CHECKING:
    import pyarrow as pa

PathOrPaths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def find_files(path: PathOrPaths, suffix: str) -> list[Path]:
    """The files of a path: itself, or all of a folder that end in ``suffix``, or those of a list, in order.

    A folder is searched to any depth and sorted by name. What begins with ``.`` or ``_`` is passed over: by
    custom those are files that are being written, and notes of the tools that write them.
    """
    if not isinstance(path, str | os.PathLike):
        if not isinstance(path, Iterable) or not path:
            raise InvalidInputError(
                f"path must be a file, a folder or a list of files, got {path!r}; pass one of these"
            )
        return [file for each in path for file in find_files(each, suffix)]
    place = Path(path)
    if place.is_dir():
        found = sorted(file for file in place.rglob(f"*{suffix}") if _is_data(file, place))
        if not found:
            raise InvalidInputError(
                f"path must be a folder with {suffix} files in it, got {place}, which has none; check it"
            )
        return found
    if not place.exists():
        raise InvalidInputError(f"path must name a file or a folder, got {place}, which does not exist")
    return [place]


def _is_data(file: Path, folder: Path) -> bool:
    hidden = any(name.startswith((".", "_")) for name in file.relative_to(folder).parts)
    return not hidden and file.is_file()


def check_target(path: str | os.PathLike[str], example: str) -> None:
    """Raise where a file is to be written and a folder is in its place."""
    if Path(path).is_dir():
        raise InvalidInputError(
            f"path must be a file's, got the folder {path}; pass for example {Path(path) / example}"
        )


class Table(NamedTuple):
    """An opened file."""

    names: Sequence[str]  # of the columns that it has
    batches: Callable[[Layout, int], Iterator[pa.RecordBatch]]  # a layout's columns, about n rows at a time


Opener = Callable[[Path], AbstractContextManager[Table]]


def table_stream(
    path: PathOrPaths, kind: str, suffix: str, open_table: Opener, layout: Layout, batch_rows: int
) -> Stream:
    """A stream over the episodes of some files of one kind; the first file's columns are checked at once."""
    check_installed("pyarrow", f"reading {kind}")
    rows = as_count(batch_rows, "batch_rows", 1)
    files = find_files(path, suffix)
    with damage_named(files[0], kind), open_table(files[0]) as table:
        match(layout, table.names, str(files[0]))

    def parts() -> Iterator[Piece]:
        for file in files:
            with damage_named(file, kind), open_table(file) as table:
                found = match(layout, table.names, str(file))
                converter = Converter(found, str(file))
                batches = (batch for batch in table.batches(found, rows) if batch.num_rows)
                yield from episodes(map(converter.rows, batches), str(file))

    name = str(path if isinstance(path, str | os.PathLike) else files[0])
    if not isinstance(path, str | os.PathLike) and len(files) > 1:
        name += f" and {len(files) - 1} more"
    return Stream(name, parts, rows)


@contextmanager
def damage_named(file: Path, kind: str) -> Iterator[None]:
    """Turn what Arrow raises on bytes that it cannot read into an error that names the file."""
    import pyarrow as pa

    try:
        yield
    except PolicyRiskError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().rstrip(".")
        raise InvalidInputError(
            f"path must be {kind}, got {file}, which is none, or is damaged or half-written ({reason}); "
            "write it again, or leave it out"
        ) from error
