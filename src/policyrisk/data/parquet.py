"""Episodes in Parquet files, read as a stream and written in one pass."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import as_whole
from policyrisk._core.files import check_expansion, from_json, write_atomically
from policyrisk._core.imports import check_installed
from policyrisk.data.columns import BATCH_ROWS, USUAL, Columns, ReaderOptions, TableOptions, reading
from policyrisk.data.files import PathOrPaths, Table, damage_named, table_stream
from policyrisk.data.source import Source, batches
from policyrisk.data.stream import Piece, Stream
from policyrisk.data.trajectories import Trajectories
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

_GROUP = 1 << 17  # rows of a row group
# Pages are read as they are decoded: a row group may be larger than memory.
_BUFFER = 1 << 20
_VALUE = 8  # bytes that a value takes at least, once it is read
_BYTES = "BYTE_ARRAY"  # what Parquet calls texts
_NOTE = b"policyrisk"  # in a file's metadata: which columns are the state's


@reading(ReaderOptions)
def read_parquet(
    path: PathOrPaths,
    state: str | Sequence[str] | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    row_groups: tuple[int, int] | None = None,
    **columns: Unpack[TableOptions],
) -> Stream:
    """A stream of the episodes in Parquet files.

    Each row is a visited state, in order, with the reward that was earned on leaving it::

        episode   step   x      y      reward   terminated   truncated
        7         0      0.1    0.9    -1.0     false        false
        7         1      0.2    0.8    -1.0     true         false
        7         2      0.3    0.7    null     false        false     <- the end state, if it was recorded

    The files are read in record batches, only the columns needed; memory holds a few of them and the longest
    episode. Rows that break the rules below are errors that name file and row.

    Parameters
    ----------
    path
        A Parquet file, a folder of them (to any depth) or a list of files.
    state
        The columns of the state, in this order: numbers, lists of equally many numbers, booleans (1 is
        true), dates, times and durations (in days; dates since the beginning of 1970), or text (also
        categories), whose names are numbered 0, 1, … in the order of the alphabet (``stream.labels``). All
        whole numbers stay whole. None takes those that a file of :func:`write_parquet` names, else the column
        ``state``, or ``state_0``, ``state_1``, …
    episode
        Whole numbers or strings. An episode's rows are in one file, and together unless ``step`` sorts them;
        the same id in another file is another episode. Ids are remembered, 8 bytes each, to find one that
        comes back.
    reward
        Null only in an episode's last row, which then is the state that it ended in. Without such a row, a
        terminated episode repeats its last state as its end (nothing follows it, so it is never looked at),
        and a cut-off episode gives up its last transition: the stream counts these in ``given_up``, and
        episodes with no transition left in ``vanished``, and warns once (:class:`UnrecordedEndWarning`).
        Of several columns, as in ``["profit", "cost"]``, the first is the reward of all estimates; the others
        are ``other_rewards`` of the Trajectories, for :meth:`policyrisk.MarkovChain.from_log`.
    terminated, truncated
        Booleans, at least one of the two columns, true in the row of the last reward or in the end row. With
        ``terminated`` alone, an unflagged episode was cut off; with ``truncated`` alone it terminated; with
        both, it was cut off.
    step
        Numbers or dates that rise within an episode. Rows that are not in this order are sorted: of a data
        frame, and of a file of at most 1 GB that is out of order from the beginning. None does not look.
    action
        The action that was taken on leaving the state: a column of whole numbers or of text, whose names are
        numbered as the state's; for continuous actions a list of columns or a column of lists. End rows have
        none. By default ``action`` or ``actions``, or ``action_0``, ``action_1``, …, where there are such
        columns and they are not among the others; None leaves them out.
    propensity
        The probability in (0, 1] with which the action was taken; by default ``propensity`` or
        ``action_probability``, as for ``action``.
    codes
        The names of text columns, as in ``{"city": ["Oslo", "Rome"]}``, where they are known. Without them
        a first pass over all files finds them.
    missing
        What is done about values that are null or nan in the state, the action, the propensity and, before
        the last row, the reward. "refuse" is an error. "drop" leaves out the episodes that have one. "last"
        fills in the last value of a state's coordinate in the episode, and leaves out the episodes that miss
        another value, or where none came before. Both are counted (``stream.counts``: ``filled``,
        ``dropped``) and reported by a :class:`MissingValuesWarning`.
    cluster
        Which episodes share what happens to them, as those of a day or of a customer do: whole numbers, text
        or dates, in each episode's first row. Error bars then take clusters, and not episodes, for
        independent.
    time
        When an episode took place, a number or a date in its first row: the order of the episodes, where it
        is not that of the file.
    batch_rows
        About how many rows are read at a time.
    row_groups
        (first, end): only the episodes that begin in these row groups of a file, so that several readers can
        share it; rows are then counted from there.

    Returns
    -------
    Stream
        A re-iterable of Trajectories; ``.load()`` gives all episodes in memory.

    Examples
    --------
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
    found = Columns.asked(read_parquet, state, columns)
    return table_stream(
        path,
        "a Parquet file",
        ".parquet",
        partial(_open, row_groups=row_groups),
        found,
        batch_rows,
        open_whole=partial(_open, row_groups=None),
        sort=row_groups is None,
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

    how: Any = {"buffer_size": _BUFFER, "pre_buffer": False}
    file = pq.ParquetFile(str(path), **how)
    plain = set(file.schema_arrow.names)
    if texts := [name for name, kind in _leaves(file.metadata) if kind == _BYTES and name in plain]:
        file.close()
        # Texts are read as dictionaries: a single long text, repeated in every row, would fill the memory.
        file = pq.ParquetFile(str(path), metadata=file.metadata, read_dictionary=texts, **how)
    with file:
        schema = file.schema_arrow
        batches = partial(_batches, path, file, row_groups)
        yield Table(schema.names, schema.types, batches, _noted_state(schema.metadata))


def _leaves(metadata: pq.FileMetaData) -> list[tuple[str, str]]:
    """The path of every leaf of the columns, which is the name of a plain column, and what its values are."""
    leaves = (metadata.schema.column(i) for i in range(metadata.num_columns))
    return [(leaf.path, leaf.physical_type) for leaf in leaves]


def _unpacked(metadata: pq.FileMetaData, columns: Columns) -> int:
    """The bytes of the columns before they are decoded, or of the largest one after, whichever is more.

    A decoded column may be far larger: a file can say how often a value is repeated.
    """
    used, encoded, largest = set(columns.used()), 0, 0
    for i, (path, kind) in enumerate(_leaves(metadata)):
        parts = path.split(".")
        if not any(".".join(parts[: k + 1]) in used for k in range(len(parts))):
            continue
        chunks = [metadata.row_group(k).column(i) for k in range(metadata.num_row_groups)]
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        nested = kind == _BYTES and path not in used  # texts in lists, each as long as all bytes perhaps
        width = size if nested else max(_VALUE, metadata.schema.column(i).length or 0)
        encoded, largest = encoded + size, max(largest, width * sum(chunk.num_values for chunk in chunks))
    return max(encoded, largest)


def _noted_state(metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...] | None:
    """The columns of the state that :func:`write_parquet` noted; none where it is another's file."""
    with suppress(ValueError, TypeError):
        names = from_json((metadata or {})[_NOTE])["state"] if _NOTE in (metadata or {}) else None
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
    return None


def _batches(
    path: Path, file: pq.ParquetFile, row_groups: tuple[int, int] | None, columns: Columns, rows: int
) -> Iterator[pa.RecordBatch]:
    """All rows, or those of the episodes that begin in row groups first, …, end − 1."""
    check_expansion(path, _unpacked(file.metadata, columns))
    if row_groups is None:
        yield from file.iter_batches(rows, columns=columns.used())
        return
    first, end = as_whole(row_groups, "row_groups", (2,)).tolist()
    if not 0 <= first <= end <= file.num_row_groups:
        raise InvalidInputError(
            f"row_groups must be the first and the end of some of {file.num_row_groups}, got {first} and "
            f"{end}; count them from 0"
        )
    last: Any = None  # the id of the row before
    if first > 0:
        for batch in file.iter_batches(rows, [first - 1], [columns.episode]):
            last = batch.column(columns.episode)[-1].as_py()
    begun = first == 0
    for batch in file.iter_batches(rows, list(range(first, end)), columns.used()):
        others = 0 if begun else _leading(batch, columns.episode, last)
        if others < batch.num_rows:
            begun = True
            yield batch.slice(others)
            last = batch.column(columns.episode)[-1].as_py()
    if not begun:
        return
    for batch in file.iter_batches(rows, list(range(end, file.num_row_groups)), columns.used()):
        more = _leading(batch, columns.episode, last)
        yield batch.slice(0, more)
        if more < batch.num_rows:
            return


def _leading(batch: pa.RecordBatch, column: str, value: Any) -> int:
    """How many rows in front have this value in a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids: Any = batch.column(column)
    texts = isinstance(ids, pa.DictionaryArray)
    values = ids.dictionary if texts else ids
    equal = pc.equal(values, pa.scalar(value, values.type))
    same = (equal.take(ids.indices) if texts else equal).fill_null(False).to_numpy(zero_copy_only=False)
    return batch.num_rows if same.all() else int(np.argmin(same))


def write_parquet(data: Source, path: str | os.PathLike[str], *, state: Sequence[str] | None = None) -> None:
    """Write episodes to a file that :func:`read_parquet` reads back exactly.

    The columns are ``episode`` (from 0), ``step``, those of the state (float64 or int64), ``reward`` (null in
    each episode's last row, its end state), ``terminated`` and ``truncated`` (true in the row of the last
    reward); of actions ``action`` (int64), or ``action_0``, ``action_1``, … for continuous ones, and
    ``propensity``, as far as the data have them, null like the reward; ``reward_1``, … of other kinds of
    reward, and ``cluster`` and ``time`` of the episodes, which are read where they are named
    (``cluster="cluster"``). The file is written under a temporary name and renamed when it is complete.

    Parameters
    ----------
    data
        Trajectories, or a stream of them.
    path
        The file.
    state
        The names of the state's columns; by default those of the data's coordinates, with the names of
        labels, else ``state_0``, ``state_1``, … The file keeps which they are.

    Examples
    --------
    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> write_parquet(Trajectories([[3], [1]], [1.0], [1], [False]), f"{folder.name}/log.parquet")
    >>> read_parquet(f"{folder.name}/log.parquet").load().states.tolist()
    [[3], [1]]
    >>> folder.cleanup()
    """
    check_installed("pyarrow", "writing Parquet")
    given = Columns(state).states
    write_atomically(path, lambda file: _write(data, file, given))


def _write(data: Source, file: IO[bytes], names: Sequence[str]) -> None:
    from pyarrow import parquet as pq

    written = 0
    writer: pq.ParquetWriter | None = None
    parts = Stream("data", lambda: (Piece(part, f"part {k}") for k, part in enumerate(batches(data))), _GROUP)
    with ExitStack() as opened:
        for batch in parts:
            known = batch.coordinates
            usual = known.names if known is not None else [f"state_{i}" for i in range(batch.dim)]
            names = names or usual
            table = _table(batch, written, names)
            writer = writer or opened.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table, row_group_size=_GROUP)
            written += len(batch)


def _table(data: Trajectories, first: int, names: Sequence[str]) -> pa.Table:
    """Episodes, numbered from ``first``, as a table that tells which columns are the state's."""
    import pyarrow as pa

    if len(names) != data.dim:
        raise InvalidInputError(
            f"state must name {data.dim} columns, one for each coordinate, got {len(names)}: "
            f"{', '.join(names)}; name each once"
        )
    states: list[Any] = [np.ascontiguousarray(column) for column in data.states.T]
    if (known := data.coordinates) is not None:
        for name, texts in known.labels.items():
            at = known.names.index(name)
            states[at] = pa.DictionaryArray.from_arrays(states[at].astype(np.int32), list(texts))
    taken: dict[str, Any] = {}  # what a row has but an end row
    if data.actions is not None and data.actions.ndim == 1:
        taken["action"] = data.actions
    elif data.actions is not None:
        taken = {f"action_{i}": column for i, column in enumerate(data.actions.T)}
    if data.propensities is not None:
        taken["propensity"] = data.propensities
    if data.other_rewards is not None:
        taken |= {f"reward_{i + 1}": column for i, column in enumerate(data.other_rewards.T)}
    rows, finals, counts = np.arange(len(data.states)), data.final_rows, data.lengths + 1
    own = {"cluster": data.clusters, "time": data.times}
    of_episodes = {name: np.repeat(values, counts) for name, values in own.items() if values is not None}
    for name in names:
        if not name or name in USUAL or name in taken or name in of_episodes:
            raise InvalidInputError(
                f"state must not name a column {name!r}, which another has; choose another name with state="
            )
    ends = np.isin(rows, finals)

    def but_ends(values: npt.NDArray[Any]) -> Any:
        column = np.zeros(ends.size, dtype=values.dtype)
        column[data.visited_rows] = values
        return pa.array(column, mask=ends)

    columns = {
        "episode": np.repeat(np.arange(first, first + len(data)), counts),
        "step": rows - np.repeat(finals - data.lengths, counts),
        **dict(zip(names, states, strict=True)),
        "reward": but_ends(data.rewards),
        "terminated": np.isin(rows, finals[data.terminated] - 1),
        "truncated": np.isin(rows, finals[~data.terminated] - 1),
        **{name: but_ends(values) for name, values in taken.items()},
        **of_episodes,
    }
    return pa.table(columns).replace_schema_metadata({_NOTE: json.dumps({"state": list(names)}).encode()})
