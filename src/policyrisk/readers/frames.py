"""Episodes in the rows of a data frame, in the layout of Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policyrisk._core.frames import as_table
from policyrisk.readers.files import Table, table_stream
from policyrisk.readers.layout import Layout, as_layout
from policyrisk.readers.rows import Missing
from policyrisk.readers.stream import BATCH_ROWS, Stream

if TYPE_CHECKING:
    import pyarrow as pa


def read_frame(
    frame: Any,
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
    missing: Missing = "refuse",
    batch_rows: int = BATCH_ROWS,
) -> Stream:
    """A stream of the episodes in a data frame: pandas, Polars, or an Arrow table.

    The layout, the arguments and the checks are those of :func:`~policyrisk.readers.parquet.read_parquet`. A
    missing reward stands in the row of the end state; pandas knows no difference between nan and null.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"episode": [1, 1], "x": [0.5, 0.7], "reward": [1.0, None], "terminated": True})
    >>> read_frame(frame, state="x").load().states.tolist()
    [[0.5], [0.7]]
    """
    layout = as_layout(
        state, episode, reward, terminated, truncated, step, action=action, propensity=propensity
    )
    table = as_table(frame, "frame")

    def batches(layout: Layout, rows: int) -> Iterator[pa.RecordBatch]:
        return iter(table.select(layout.used()).to_batches(max_chunksize=rows))

    @contextmanager
    def opened(path: Path) -> Iterator[Table]:
        yield Table(table.schema.names, table.schema.types, batches)

    return table_stream(None, "a data frame", "", opened, layout, batch_rows, codes, missing)
