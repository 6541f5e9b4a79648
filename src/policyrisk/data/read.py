"""One function for every kind of recorded episodes, and the reader of data frames."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from policyrisk._core.arrays import as_path, is_frame
from policyrisk._core.frames import as_table
from policyrisk._core.keywords import check_options
from policyrisk.data.columns import (
    BATCH_ROWS,
    OPTIONS,
    AnyReaderOptions,
    Columns,
    ReaderOptions,
    TableOptions,
    options_of,
    reading,
)
from policyrisk.data.csv import read_csv
from policyrisk.data.files import PathOrPaths, Table, find_files, table_stream
from policyrisk.data.minari_datasets import minari_folder, read_minari
from policyrisk.data.npz import read_npz
from policyrisk.data.parquet import read_parquet
from policyrisk.data.stream import Stream
from policyrisk.data.trajectories import TimeLimit
from policyrisk.errors import InvalidInputError, RepeatedFileWarning

if TYPE_CHECKING:
    import pyarrow as pa

_MINARI = "minari:"
# A new format is a file of this room and a line here.
READERS: dict[str, Callable[..., Stream]] = {".parquet": read_parquet, ".csv": read_csv, ".npz": read_npz}


@reading(AnyReaderOptions)
def read(
    path: PathOrPaths | Any, *, time_limit: TimeLimit | None = None, **options: Unpack[AnyReaderOptions]
) -> Stream:
    """A stream of recorded episodes, read by the reader that fits what is there.

        x.parquet, a folder of them      read_parquet(path, state=[...], ...)
        x.csv, a folder of them          read_csv(path, state=[...], ...)
        x.npz                            read_npz(path)
        minari:ID, a dataset's folder    read_minari(ID, project=...)
        a data frame                     read_frame(frame, state=[...], ...)

    Parameters
    ----------
    path
        A path, a list of files of one kind, or a data frame.
    time_limit
        The limit at which episodes were cut off, in steps, or "end" for the one that they have in common:
        it is taken for their end, and the time left joins the state (:meth:`Stream.with_time_limit`).
    state, episode, reward, terminated, truncated, step, action, propensity, codes, missing
    cluster, time, batch_rows
        As of :func:`policyrisk.read_parquet`, for tables.
    row_groups, project
        Of Parquet files alone, and of Minari's datasets. An option that the reader does not have is an error.

    Returns
    -------
    Stream
        A re-iterable of Trajectories; ``.load()`` gives all episodes in memory.

    Examples
    --------
    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> from policyrisk.data.npz import write_npz
    >>> from policyrisk.data import Trajectories
    >>> write_npz(Trajectories([[0], [1]], [1.0], [1], [True]), f"{folder.name}/log.npz")
    >>> len(read(f"{folder.name}/log.npz").load())
    1
    >>> folder.cleanup()
    """
    reader, target = _reader(path)
    named = f"the data frame {type(path).__name__}" if is_frame(path) else str(path)
    check_options(options, options_of(reader), reader.__name__, f", for {named}")
    stream = reader(target, **options)
    return stream if time_limit is None else stream.with_time_limit(time_limit)


@reading(ReaderOptions)
def read_frame(
    frame: Any,
    state: str | Sequence[str] | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    **columns: Unpack[TableOptions],
) -> Stream:
    """A stream of the episodes in a data frame: pandas, Polars, or an Arrow table.

    A missing reward stands in the row of the end state; pandas knows no difference between nan and null.

    Parameters
    ----------
    frame
        The data frame.
    state, batch_rows, episode, reward, terminated, truncated, step, action, propensity, codes, missing
    cluster, time
        As of :func:`~policyrisk.data.parquet.read_parquet`, with its layout and checks.

    Returns
    -------
    Stream
        A re-iterable of Trajectories.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"episode": [1, 1], "x": [0.5, 0.7], "reward": [1.0, None], "terminated": True})
    >>> read_frame(frame, state="x").load().states.tolist()
    [[0.5], [0.7]]
    """
    table = as_table(frame, "frame")

    def batches(columns: Columns, rows: int) -> Iterator[pa.RecordBatch]:
        return iter(table.select(columns.used()).to_batches(max_chunksize=rows))

    @contextmanager
    def opened(path: Path) -> Iterator[Table]:
        yield Table(table.schema.names, table.schema.types, batches)

    return table_stream(
        None, "a data frame", "", opened, Columns.asked(read_frame, state, columns), batch_rows
    )


def has_columns(path: PathOrPaths) -> bool:
    """Whether what is there is read by columns that have names."""
    return set(OPTIONS) <= set(options_of(_reader(path)[0]))


def _reader(path: Any) -> tuple[Callable[..., Stream], Any]:
    if is_frame(path):
        return read_frame, path
    if isinstance(path, str) and path.startswith(_MINARI):
        return read_minari, path.removeprefix(_MINARI)
    place = as_path(path) if isinstance(path, str | bytes | os.PathLike) else None
    if place is not None and minari_folder(place) is not None:
        return read_minari, place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedFileWarning)  # which the reader gives
        kinds = {file.suffix.lower() for file in find_files(path, "")}
    if place is None or place.is_dir():
        kinds -= {".npz"}  # whose files are read one at a time
    if place is not None and place.is_dir():
        kinds &= READERS.keys()  # whatever else is in it
    if len(kinds) == 1 and kinds <= READERS.keys():
        return READERS[kinds.pop()], path
    *many, last = READERS
    got = " and ".join(sorted(filter(None, kinds))) or "none of these"
    raise InvalidInputError(
        f"path must be a {', '.join(many)} or {last} file, a folder of {' or of '.join(many)} files, or "
        f"minari:ID, got {path} ({got}); convert it, or call the reader that you mean"
    )
