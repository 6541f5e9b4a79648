"""Episodes in Parquet files, read as a stream and written in one pass."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.imports import check_installed
from policyrisk._core.records import write_atomically
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.readers.files import PathOrPaths, Table, check_target, damage_named, table_stream
from policyrisk.readers.layout import USUAL, Layout, as_layout
from policyrisk.readers.stream import BATCH_ROWS, Stream
from policyrisk.trajectories import Source, Trajectories, batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

_GROUP_ROWS = 1 << 17
# Pages are read as they are decoded: a row group may be larger than memory.
_BUFFER = 1 << 20
_RULES = ("states of one dimension and type", "actions of one kind")


def read_parquet(
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
    row_groups: tuple[int, int] | None = None,
) -> Stream:
    """A stream of the episodes in a Parquet file, a folder of them (to any depth) or a list of files.

    Each row is a visited state, in order, with the reward that was earned on leaving it::

        episode   step   x      y      reward   terminated   truncated
        7         0      0.1    0.9    -1.0     false        false
        7         1      0.2    0.8    -1.0     true         false
        7         2      0.3    0.7    null     false        false     <- the end state, if it was recorded

    ``episode`` whole numbers or strings; an episode's rows are together, in one file (the same id in another
    file is another episode). Ids are remembered, 8 bytes each, to find one that comes back.

    ``state`` the columns of the state, in this order: numbers, lists of equally many numbers, or text (also
    categories), whose names are numbered 0, 1, … in the order of the alphabet: ``stream.labels`` has them. A
    first pass finds them out, over all files; ``codes`` gives them, as ``{"city": ["Oslo", "Rome"]}``,
    where they are known. All whole numbers stay whole. None takes the column ``state``, or ``state_0``,
    ``state_1``, … as :func:`write_parquet` writes them.

    ``reward`` is null only in an episode's last row, which then is the state that it ended in. Without such a
    row, a terminated episode repeats its last state as its end (nothing follows it, so it is never looked
    at), and a cut-off episode gives up its last transition: the stream counts these in ``given_up``, and
    episodes with no transition left in ``vanished``, and warns once (:class:`UnrecordedEndWarning`).

    ``terminated``, ``truncated`` booleans, at least one of the two columns, true in the row of the last
    reward or in the end row. With ``terminated`` alone, an unflagged episode was cut off; with ``truncated``
    alone it terminated; with both, it was cut off.

    ``step`` rises within an episode; None does not check it.

    ``action`` the action that was taken on leaving the state: a column of whole numbers or of text, whose
    names are numbered as the state's, or, for continuous actions, a list of columns or a column of lists.
    ``propensity`` the probability in (0, 1] with which it was taken. End rows have neither. By default they
    are read where there is a column ``action`` or ``actions``, or columns ``action_0``, ``action_1``, …, and
    ``propensity`` or ``action_probability``, unless it is among the others; None leaves them out.

    Rows that break these rules are errors that name file and row. The files are read in record batches
    of about ``batch_rows`` rows, only the columns needed; memory holds a few of them and the longest episode.

    ``row_groups=(first, end)`` takes the episodes that begin in these row groups of a file alone, so that
    several readers can share it; rows are then counted from there.

    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> data = Trajectories([[0.1], [0.2], [0.3], [0.1], [0.4]], [1.0, 2.0, 3.0], [2, 1], [True, False])
    >>> write_parquet(data, f"{folder.name}/log.parquet")
    >>> stream = read_parquet(f"{folder.name}/log.parquet")
    >>> stream.load()
    Trajectories(2 episodes, 1 terminated, 3 transitions, dim 1)
    >>> stream.given_up
    0
    >>> folder.cleanup()
    """
    layout = as_layout(
        state, episode, reward, terminated, truncated, step, action=action, propensity=propensity
    )
    return table_stream(
        path,
        "a Parquet file",
        ".parquet",
        partial(_open, row_groups=row_groups),
        layout,
        batch_rows,
        codes,
        open_whole=partial(_open, row_groups=None),
    )


def count_row_groups(path: str | os.PathLike[str]) -> int:
    """How many row groups a file has."""
    check_installed("pyarrow", "reading a Parquet file")
    from pyarrow import parquet as pq

    with damage_named(Path(path), "a Parquet file"), pq.ParquetFile(str(path)) as file:
        return file.num_row_groups


@contextmanager
def _open(path: Path, row_groups: tuple[int, int] | None) -> Iterator[Table]:
    from pyarrow import parquet as pq

    with pq.ParquetFile(str(path), buffer_size=_BUFFER, pre_buffer=False) as file:
        schema = file.schema_arrow
        yield Table(schema.names, schema.types, partial(_batches, file, row_groups))


def _batches(
    file: pq.ParquetFile, row_groups: tuple[int, int] | None, layout: Layout, rows: int
) -> Iterator[pa.RecordBatch]:
    """All rows, or those of the episodes that begin in row groups first, …, end − 1."""
    if row_groups is None:
        yield from file.iter_batches(rows, columns=layout.used())
        return
    first, end = row_groups
    last: Any = None  # the id of the row before
    if first > 0:
        for batch in file.iter_batches(rows, [first - 1], [layout.episode]):
            last = batch.column(layout.episode)[-1].as_py()
    begun = first == 0
    for batch in file.iter_batches(rows, list(range(first, end)), layout.used()):
        others = 0 if begun else _leading(batch, layout.episode, last)
        if others < batch.num_rows:
            begun = True
            yield batch.slice(others)
            last = batch.column(layout.episode)[-1].as_py()
    if not begun:
        return
    for batch in file.iter_batches(rows, list(range(end, file.num_row_groups)), layout.used()):
        more = _leading(batch, layout.episode, last)
        yield batch.slice(0, more)
        if more < batch.num_rows:
            return


def _leading(batch: pa.RecordBatch, column: str, value: Any) -> int:
    """How many rows in front have this value in a column."""
    same = batch.column(column).to_numpy(zero_copy_only=False) == value
    return batch.num_rows if same.all() else int(np.argmin(same))


def write_parquet(data: Source, path: str | os.PathLike[str], *, state: Sequence[str] | None = None) -> None:
    """Write Trajectories, or a stream of them, to a file that :func:`read_parquet` reads back exactly.

    The columns are ``episode`` (from 0), ``step``, ``state_0``, ``state_1``, … (float64 or int64), ``reward``
    (null in each episode's last row, its end state), ``terminated`` and ``truncated`` (true in the row of the
    last reward); of actions ``action`` (int64), or ``action_0``, ``action_1``, … for continuous ones, and
    ``propensity``, as far as the data have them, null like the reward. ``state`` names the state's columns
    otherwise. The file is written under a temporary name and renamed when it is complete.

    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> write_parquet(Trajectories([[3], [1]], [1.0], [1], [False]), f"{folder.name}/log.parquet")
    >>> read_parquet(f"{folder.name}/log.parquet").load().states.tolist()
    [[3], [1]]
    >>> folder.cleanup()
    """
    check_installed("pyarrow", "writing Parquet")
    check_target(path, "data.parquet")
    names = as_layout(state, *USUAL).state
    for name in names or ():
        if not name or name in USUAL:
            raise InvalidInputError(
                f"state must not name a column {name!r}, which another has; choose another name"
            )
    write_atomically(path, lambda file: _write(data, file, names))


def _write(data: Source, file: IO[bytes], names: Sequence[str] | None) -> None:
    from pyarrow import parquet as pq

    tables = _groups(_tables(data, names))
    first = next(tables, None)
    if first is None:
        raise InvalidInputError("data must hold at least one episode, got none; pass episodes to write")
    with pq.ParquetWriter(file, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table, row_group_size=_GROUP_ROWS)


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows of the tables, small ones put together to the size of a row group."""
    import pyarrow as pa

    pending: list[pa.Table] = []
    for table in tables:
        pending.append(table)
        if sum(each.num_rows for each in pending) >= _GROUP_ROWS:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)


def _tables(data: Source, names: Sequence[str] | None) -> Iterator[pa.Table]:
    import pyarrow as pa

    written = 0
    kind: tuple[str, str] | None = None
    for batch in batches(data):
        if not len(batch):
            continue
        this = (f"{batch.dim} of {batch.states.dtype}", batch.action_kind)
        for before, now, rule in zip(kind or this, this, _RULES, strict=True):
            if before != now:
                raise MismatchError(
                    f"data must have {rule} throughout, got {before} and then {now}; write them to different "
                    "files"
                )
        kind = this
        if names is not None and len(names) != batch.dim:
            raise InvalidInputError(
                f"state must name {batch.dim} columns, one for each coordinate, got {len(names)}: "
                f"{', '.join(names)}; name each once"
            )
        taken = _taken_columns(batch)
        for name in set(names or ()) & taken.keys():
            raise InvalidInputError(
                f"state must not name a column {name!r}, which the actions have; choose another name"
            )
        yield pa.table({**_columns(batch, written, names), **taken})
        written += len(batch)


def _columns(data: Trajectories, first: int, names: Sequence[str] | None) -> dict[str, Any]:
    """The columns of a table; its episodes are numbered from ``first``."""
    import pyarrow as pa

    called = [f"state_{i}" for i in range(data.dim)] if names is None else names
    rows, counts, finals = np.arange(len(data.states)), data.lengths + 1, data.final_rows
    rewards = np.zeros(len(rows))
    rewards[data.visited_rows] = data.rewards
    return {
        "episode": np.repeat(np.arange(first, first + len(data)), counts),
        "step": rows - np.repeat(finals - data.lengths, counts),
        **{name: np.ascontiguousarray(column) for name, column in zip(called, data.states.T, strict=True)},
        "reward": pa.array(rewards, mask=np.isin(rows, finals)),
        "terminated": np.isin(rows, finals[data.terminated] - 1),
        "truncated": np.isin(rows, finals[~data.terminated] - 1),
    }


def _taken_columns(data: Trajectories) -> dict[str, Any]:
    """The columns of the actions and of their propensities, if there are any; null in the end rows."""
    import pyarrow as pa

    found: dict[str, Any] = {}
    if data.actions is not None:
        found = {"action": data.actions} if data.actions.ndim == 1 else {}
        if data.actions.ndim == 2:
            found = {f"action_{i}": column for i, column in enumerate(data.actions.T)}
    if data.propensities is not None:
        found["propensity"] = data.propensities
    ends = np.ones(len(data.states), dtype=np.bool_)
    ends[data.visited_rows] = False
    for name, values in found.items():
        column = np.zeros(ends.size, dtype=values.dtype)
        column[data.visited_rows] = values
        found[name] = pa.array(column, mask=ends)
    return found
