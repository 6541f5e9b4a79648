"""Streams over tables in files: what Parquet and CSV do alike.

A table is opened by a function of its file and the columns wanted, which gives the names of its columns and
its record batches. Everything else, from the columns to the episodes, is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from policyrisk._core.arrays import as_count
from policyrisk._core.imports import check_installed
from policyrisk.errors import InvalidInputError, PolicyRiskError
from policyrisk.readers.columns import Converter, Layout, match
from policyrisk.readers.files import PathOrPaths, describe, find_files
from policyrisk.readers.rows import episodes
from policyrisk.readers.stream import Piece, Stream

if TYPE_CHECKING:
    import pyarrow as pa


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

    return Stream(describe(path, files), parts, rows)


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
