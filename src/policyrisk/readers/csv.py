"""Episodes in CSV files, in the layout of Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from policyrisk.readers.files import PathOrPaths, Table, table_stream
from policyrisk.readers.layout import Layout, as_layout
from policyrisk.readers.stream import BATCH_ROWS, Stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv

_BLOCK = 1 << 22  # bytes of text that are parsed at a time


def read_csv(
    path: PathOrPaths,
    state: str | Sequence[str] | None = None,
    *,
    episode: str = "episode",
    reward: str = "reward",
    terminated: str | None = "terminated",
    truncated: str | None = "truncated",
    step: str | None = "step",
    action: str | Sequence[str] | None = "action",
    propensity: str | None = "propensity",
    codes: Mapping[str, Sequence[str]] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Stream:
    """A stream of the episodes in a CSV file with a header, a folder of them or a list of files.

    The layout, the arguments and the checks are those of :func:`~policyrisk.readers.parquet.read_parquet`. An
    empty reward stands for null: the row of the end state. Text has no types, so that states are float64, but
    for columns of names, or of ``true`` and ``false``, at the beginning of the first file; ids are strings,
    flags are ``true`` or ``false``, or 1 or 0, and a column of numbers that holds actions holds whole ones.

    >>> import tempfile, pathlib; folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "log.csv")
    >>> n = path.write_text("episode,x,reward,terminated\\na,0.5,1,false\\na,0.7,2,true\\na,0.9,,\\n")
    >>> read_csv(path, state="x").load().states.tolist()
    [[0.5], [0.7], [0.9]]
    >>> folder.cleanup()
    """
    layout = as_layout(
        state, episode, reward, terminated, truncated, step, action=action, propensity=propensity
    )
    return table_stream(path, "a CSV file with a header", ".csv", _open, layout, batch_rows, codes)


@contextmanager
def _open(path: Path) -> Iterator[Table]:
    import pyarrow as pa
    from pyarrow import csv

    with csv.open_csv(str(path), _options()) as reader:
        schema = reader.schema
    flags = {name for name, kind in zip(schema.names, schema.types, strict=True) if pa.types.is_boolean(kind)}
    yield Table(schema.names, schema.types, partial(_batches, str(path), flags))


def _batches(path: str, booleans: set[str], layout: Layout, rows: int) -> Iterator[pa.RecordBatch]:
    """By blocks of text, whatever the number of rows in them."""
    import pyarrow as pa
    from pyarrow import csv

    texts = {layout.episode, *layout.text}
    flags = {layout.terminated, layout.truncated, *(booleans & {*(layout.state or ()), *layout.actions})}
    types = {
        name: pa.string() if name in texts else pa.bool_() if name in flags else pa.float64()
        for name in layout.used()
    }
    # Only an empty cell is null: a nan must not pass for the end of an episode.
    options = csv.ConvertOptions(
        column_types=types, include_columns=layout.used(), null_values=[""], strings_can_be_null=True
    )
    with csv.open_csv(path, _options(), convert_options=options) as reader:
        yield from reader


def _options() -> csv.ReadOptions:
    from pyarrow import csv

    return csv.ReadOptions(use_threads=False, block_size=_BLOCK)  # one thread, so that errors name the row
