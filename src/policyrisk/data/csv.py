"""Episodes in CSV files, in the layout of Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from policyrisk.data.columns import BATCH_ROWS, Columns, ReaderOptions, TableOptions, reading
from policyrisk.data.files import PathOrPaths, Table, table_stream
from policyrisk.data.stream import Stream
from policyrisk.errors import BadRowError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv

_BLOCK = 1 << 22  # bytes of text that are parsed at a time
# Only an empty cell is null, unless missing values are asked for: a nan must not pass for an episode's end.
_NULLS, _MISSING = [""], ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
_WRONG = re.compile(r"column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+).*invalid value '(.*)'")
_KINDS = {"double": "numbers", "bool": "true or false"}


@reading(ReaderOptions)
def read_csv(
    path: PathOrPaths,
    state: str | Sequence[str] | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    **columns: Unpack[TableOptions],
) -> Stream:
    """A stream of the episodes in CSV files with a header.

    Text has no types, so that states are float64, but for columns of names, of dates (2026-03-31, 2026-03-31
    10:30:00), or of ``true`` and ``false``, at the beginning of the first file. Ids are strings, flags are
    ``true`` or ``false``, or 1 or 0, and a column of numbers that holds actions holds whole ones. An empty
    reward stands for null: the row of the end state. With ``missing`` "drop" or "last", a cell NA, NaN, null
    or None is as empty as an empty one.

    Parameters
    ----------
    path
        A CSV file, a folder of them or a list of files.
    state, episode, reward, terminated, truncated, step, action, propensity, codes, missing
    cluster, time, batch_rows
        As of :func:`~policyrisk.data.parquet.read_parquet`, with its layout and checks.

    Returns
    -------
    Stream
        A re-iterable of Trajectories; ``.load()`` gives all episodes in memory.

    Examples
    --------
    >>> import tempfile, pathlib; folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "log.csv")
    >>> n = path.write_text("episode,x,reward,terminated\\na,0.5,1,false\\na,0.7,2,true\\na,0.9,,\\n")
    >>> read_csv(path, state="x").load().states.tolist()
    [[0.5], [0.7], [0.9]]
    >>> folder.cleanup()
    """
    found = Columns.asked(read_csv, state, columns)
    return table_stream(path, "a CSV file with a header", ".csv", _open, found, batch_rows)


@contextmanager
def _open(path: Path) -> Iterator[Table]:
    from pyarrow import csv

    with csv.open_csv(str(path), _options()) as reader:
        schema = reader.schema
    yield Table(schema.names, schema.types, partial(_batches, str(path), schema))


def _batches(path: str, schema: pa.Schema, columns: Columns, rows: int) -> Iterator[pa.RecordBatch]:
    """By blocks of text, whatever the number of rows in them."""
    import pyarrow as pa
    from pyarrow import csv

    read = {*columns.states, *columns.actions, columns.step, columns.time}

    def kind(name: str) -> pa.DataType:
        guessed = schema.field(name).type
        if name in {columns.episode, columns.cluster, *columns.text}:
            return pa.string()
        if name in (columns.terminated, columns.truncated):
            return pa.bool_()
        dates = pa.types.is_temporal(guessed) or pa.types.is_boolean(guessed)
        return guessed if name in read and dates else pa.float64()

    options = csv.ConvertOptions(
        column_types={name: kind(name) for name in columns.used()},
        include_columns=columns.used(),
        null_values=_NULLS if columns.missing == "refuse" else _MISSING,
        strings_can_be_null=True,
    )
    try:
        with csv.open_csv(path, _options(), convert_options=options) as reader:
            yield from reader
    except pa.ArrowInvalid as error:
        if (found := _WRONG.search(str(error))) is None:
            raise
        at, row, wanted, value = found.groups()
        name = schema.names[int(at)]
        rule = _KINDS.get(wanted, f"{wanted}s")
        text = "text is read in columns of the state and of the action alone, as a label"
        if name in read:
            text = "a column is a label where all of it is text"
        if value in _MISSING:
            text = "say what to do about missing values with missing="
        raise BadRowError(
            f"{name} must hold {rule} in every row, got the text {value!r} in "
            f"{f'row {int(row) - 2}' if row else 'some row'} of {path} (counted from 0); {text}; repair it, "
            "or name another column"
        ) from error


def _options() -> csv.ReadOptions:
    from pyarrow import csv

    return csv.ReadOptions(use_threads=False, block_size=_BLOCK)  # one thread, so that errors name the row
