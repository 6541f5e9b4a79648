"""Episodes in Parquet files, read as a stream and written in one pass."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import as_whole
from policyrisk._core.imports import check_installed
from policyrisk._core.records import write_atomically
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.readers.files import PathOrPaths, Table, check_target, damage_named, table_stream
from policyrisk.readers.layout import USUAL, Layout, as_layout
from policyrisk.readers.rows import Missing
from policyrisk.readers.stream import BATCH_ROWS, Stream
from policyrisk.trajectories import Source, Trajectories, batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

_GROUP_ROWS = 1 << 17
# Pages are read as they are decoded: a row group may be larger than memory.
_BUFFER = 1 << 20
_NOTE = b"policyrisk"  # in a file's metadata: which columns are the state's
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
    missing: Missing = "refuse",
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

    ``state`` the columns of the state, in this order: numbers, lists of equally many numbers, booleans (1 is
    true), dates, times and durations (in days; dates since the beginning of 1970), or text (also
    categories), whose names are numbered 0, 1, … in the order of the alphabet: ``stream.labels`` has them. A
    first pass finds them out, over all files; ``codes`` gives them, as ``{"city": ["Oslo", "Rome"]}``,
    where they are known. All whole numbers stay whole. None takes those that a file of
    :func:`write_parquet` tells, else the column ``state``, or ``state_0``, ``state_1``, …

    ``reward`` is null only in an episode's last row, which then is the state that it ended in. Without such a
    row, a terminated episode repeats its last state as its end (nothing follows it, so it is never looked
    at), and a cut-off episode gives up its last transition: the stream counts these in ``given_up``, and
    episodes with no transition left in ``vanished``, and warns once (:class:`UnrecordedEndWarning`).

    ``terminated``, ``truncated`` booleans, at least one of the two columns, true in the row of the last
    reward or in the end row. With ``terminated`` alone, an unflagged episode was cut off; with ``truncated``
    alone it terminated; with both, it was cut off.

    ``step`` rises within an episode, numbers or dates; None does not check it.

    ``action`` the action that was taken on leaving the state: a column of whole numbers or of text, whose
    names are numbered as the state's, or, for continuous actions, a list of columns or a column of lists.
    ``propensity`` the probability in (0, 1] with which it was taken. End rows have neither. By default they
    are read where there is a column ``action`` or ``actions``, or columns ``action_0``, ``action_1``, …, and
    ``propensity`` or ``action_probability``, unless it is among the others; None leaves them out.

    ``missing`` says what is done about values that are null or nan in the state, the action, the propensity
    and, before the last row, the reward. "refuse" is an error. "drop" leaves out the episodes that have one.
    "last" puts the last value of that coordinate in the episode where one of the state is missing, and leaves
    out the episodes that miss another, or where none came before. Both are counted (``stream.counts``:
    ``filled``, ``dropped``) and said in a warning (:class:`MissingValuesWarning`).

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
        missing,
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
        batches = partial(_batches, file, row_groups)
        yield Table(schema.names, schema.types, batches, _told_state(schema.metadata))


def _told_state(metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...] | None:
    """The columns of the state that :func:`write_parquet` noted; none where it is another's file."""
    with suppress(ValueError, TypeError):
        names = json.loads((metadata or {})[_NOTE])["state"] if _NOTE in (metadata or {}) else None
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
    return None


def _batches(
    file: pq.ParquetFile, row_groups: tuple[int, int] | None, layout: Layout, rows: int
) -> Iterator[pa.RecordBatch]:
    """All rows, or those of the episodes that begin in row groups first, …, end − 1."""
    if row_groups is None:
        yield from file.iter_batches(rows, columns=layout.used())
        return
    first, end = as_whole(row_groups, "row_groups", (2,)).tolist()
    if not 0 <= first <= end <= file.num_row_groups:
        raise InvalidInputError(
            f"row_groups must be the first and the end of some of {file.num_row_groups}, got {first} and "
            f"{end}; count them from 0"
        )
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
    ``propensity``, as far as the data have them, null like the reward. The state's columns are called as
    ``state`` says, or else as the data's coordinates are, with the names of labels, and the file tells which
    they are. It is written under a temporary name and renamed when it is complete.

    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> write_parquet(Trajectories([[3], [1]], [1.0], [1], [False]), f"{folder.name}/log.parquet")
    >>> read_parquet(f"{folder.name}/log.parquet").load().states.tolist()
    [[3], [1]]
    >>> folder.cleanup()
    """
    check_installed("pyarrow", "writing Parquet")
    check_target(path, "data.parquet")
    names = as_layout(state, *USUAL).state
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
        if names is None:
            known = batch.coordinates
            names = [f"state_{i}" for i in range(batch.dim)] if known is None else known.names
        if len(names) != batch.dim:
            raise InvalidInputError(
                f"state must name {batch.dim} columns, one for each coordinate, got {len(names)}: "
                f"{', '.join(names)}; name each once"
            )
        taken = _taken_columns(batch)
        for name in names:
            if not name or name in USUAL or name in taken:
                raise InvalidInputError(
                    f"state must not name a column {name!r}, which another has; choose another name with "
                    "state="
                )
        table = pa.table({**_columns(batch, written, names), **taken})
        yield table.replace_schema_metadata({_NOTE: json.dumps({"state": list(names)}).encode()})
        written += len(batch)


def _columns(data: Trajectories, first: int, names: Sequence[str]) -> dict[str, Any]:
    """The columns of a table; its episodes are numbered from ``first``."""
    import pyarrow as pa

    states: list[Any] = [np.ascontiguousarray(column) for column in data.states.T]
    if (known := data.coordinates) is not None:
        for name, texts in known.labels.items():
            at = known.names.index(name)
            states[at] = pa.DictionaryArray.from_arrays(states[at].astype(np.int32), list(texts))
    rows, counts, finals = np.arange(len(data.states)), data.lengths + 1, data.final_rows
    rewards = np.zeros(len(rows))
    rewards[data.visited_rows] = data.rewards
    return {
        "episode": np.repeat(np.arange(first, first + len(data)), counts),
        "step": rows - np.repeat(finals - data.lengths, counts),
        **dict(zip(names, states, strict=True)),
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
