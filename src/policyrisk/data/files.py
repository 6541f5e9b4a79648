"""The files that a path stands for, and streams over the tables in them, for Parquet, CSV and data frames.

Each format has a function that opens a file as a :class:`Table`. Everything after that is shared.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from policyrisk._core.arrays import as_count, as_list, as_path, name_some
from policyrisk._core.frames import is_numeric, is_text
from policyrisk._core.imports import check_installed
from policyrisk._core.text import plural
from policyrisk.data.arrow_rows import Converter, distinct_names
from policyrisk.data.columns import Columns, LabelNames
from policyrisk.data.rows import episodes
from policyrisk.data.stream import Once, Piece, Stream
from policyrisk.errors import BadRowError, InvalidInputError, PolicyRiskError, RepeatedFileWarning

if TYPE_CHECKING:
    import pyarrow as pa

LOOKED = 1 << 16  # rows by which it is seen whether a file is sorted
SORTED = 1 << 30  # bytes of a file's rows, up to which they are sorted in memory
PathOrPaths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def find_files(path: PathOrPaths, suffix: str) -> list[Path]:
    """The files of a path: itself, or all of a folder that end in ``suffix``, or those of a list, in order.

    A folder is searched to any depth and sorted by name. What begins with ``.`` or ``_`` is passed over: by
    custom those are files that are being written, and notes of the tools that write them. No episode counts
    twice: a link in a folder to a file that is also there is left out with a warning, and a list that has a
    file twice is an error.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        each = [as_path(one) for one in as_list(path, "path", "a file, a folder or a list of files")]
        if not each:
            raise InvalidInputError("path must be a file, a folder or a list of files, got none; pass some")
        files = [find_files(one, suffix) for one in each]
        check_distinct(files)
        return [file for some in files for file in some]
    place = as_path(path)
    if place.is_dir():
        found = sorted(file for file in place.rglob(f"*{suffix}") if _is_data(file, place))
        if not found:
            raise InvalidInputError(
                f"path must be a folder with {suffix} files in it, got {place}, which has none; check it"
            )
        return _without_links(found, place)
    if not place.is_file():
        which = "is neither" if place.exists() else "does not exist"
        raise InvalidInputError(f"path must name a file or a folder, got {place}, which {which}")
    return [place]


def check_distinct(groups: Sequence[Sequence[Path]], name: str = "path") -> None:
    """Raise where two groups of files or folders have one in common, by whatever names."""
    seen: dict[tuple[int, int], Path] = {}
    for files in groups:
        for file in files:
            other = seen.get(_identity(file))
            if other is not None:
                raise InvalidInputError(
                    f"{name} must name each file once, got {other} and {file}, which are the same "
                    "and would count twice; leave one of them out"
                )
        seen |= {_identity(file): file for file in files}


def _without_links(files: list[Path], folder: Path) -> list[Path]:
    """The files of a folder, each once, whatever links to it there are; in their order."""
    first: dict[tuple[int, int], Path] = {}
    for file in sorted(files, key=Path.is_symlink):  # a file's own name before those of links to it
        first.setdefault(_identity(file), file)
    links = [file for file in files if first[_identity(file)] is not file]
    if links:
        named = ", ".join(f"{link} (that is {first[_identity(link)]})" for link in links[:3])
        warnings.warn(
            f"{folder} has {plural(len(links), 'link')} to files that are also there, which are left out so "
            f"that no episode counts twice: {named}{', …' if len(links) > 3 else ''}",
            RepeatedFileWarning,
            stacklevel=4,
        )
    return [file for file in files if first[_identity(file)] is file]


def _identity(file: Path) -> tuple[int, int]:
    """The device and number of a file, which all its names share."""
    found = file.stat()
    return found.st_dev, found.st_ino


def _is_data(file: Path, folder: Path) -> bool:
    hidden = any(name.startswith((".", "_")) for name in file.relative_to(folder).parts)
    return not hidden and file.is_file()


class Table(NamedTuple):
    """An opened file."""

    names: Sequence[str]  # of the columns that it has
    types: Sequence[pa.DataType]  # of each of them; in CSV those that its beginning looks like
    batches: Callable[[Columns, int], Iterator[pa.RecordBatch]]  # some columns, about n rows at a time
    state: tuple[str, ...] | None = None  # the columns of the state, where the table tells


Opener = Callable[[Path], AbstractContextManager[Table]]
_MEMORY = Path("the data frame")  # what a table that is in no file is called


def table_stream(
    path: PathOrPaths | None,
    kind: str,
    suffix: str,
    open_table: Opener,
    columns: Columns,
    batch_rows: int,
    open_whole: Opener | None = None,
    *,
    sort: bool = True,
) -> Stream:
    """A stream over the episodes of some files of one kind; the first file's columns are checked at once.

    That file also says which columns of the state, or of the action, hold text. Their names are found out
    when they are first needed, in a pass over these columns of all files, each of them whole
    (``open_whole``). Without a ``path`` there is one table, that of a data frame.
    """
    check_installed("pyarrow", f"reading {kind}")
    rows = as_count(batch_rows, "batch_rows", 1)
    files = [_MEMORY] if path is None else find_files(path, suffix)
    with damage_named(files[0], kind), open_table(files[0]) as table:
        kinds = dict(zip(table.names, table.types, strict=True))
        if not columns.states and table.state is not None and {*table.state} <= {*table.names}:
            columns = replace(columns, state=table.state)
        first = columns.matched(table.names, str(files[0]))
        labels_in = (*first.states, *((first.action,) if isinstance(first.action, str) else ()))
        columns = replace(columns, text=frozenset(name for name in labels_in if is_text(kinds[name])))
    given = columns.given_codes()

    @Once
    def labels() -> LabelNames:
        found: dict[str, set[str]] = {name: set() for name in sorted(columns.text - given.keys())}
        for file in files if found else ():
            with damage_named(file, kind), (open_whole or open_table)(file) as table:
                columns.matched(table.names, str(file))
                for batch in table.batches(Columns.of_text(found), rows):
                    for name, names in found.items():
                        names |= distinct_names(batch.column(name))
        if suffix == ".csv":  # where nothing but its text tells what a column is
            for name, names in found.items():
                check_no_numbers(name, names)
        return {**given, **{name: tuple(sorted(names)) for name, names in found.items()}}

    def parts() -> Iterator[Piece]:
        for file in files:
            with damage_named(file, kind), open_table(file) as table:
                own = columns.matched(table.names, str(file))
                title = str(file)
                found: Iterator[pa.RecordBatch] = filter(len, table.batches(own, rows))
                if sort:
                    title, found = in_order(found, own, title, rows, path is None)
                converter = Converter(own, title, labels())
                checked = map(converter.rows, found)
                yield from episodes(checked, title, converter.coordinates, columns.missing)

    name = str(path if isinstance(path, str | os.PathLike) else files[0])
    if not isinstance(path, str | os.PathLike) and len(files) > 1:
        name += f" and {len(files) - 1} more"
    return Stream(name, parts, rows, labels, first.states)


def in_order(
    batches: Iterator[pa.RecordBatch], columns: Columns, title: str, rows: int, whole: bool
) -> tuple[str, Iterator[pa.RecordBatch]]:
    """A table's batches, sorted by episode and step where they need it, and what to call the table then.

    Whether they need it shows in the first LOOKED rows, or in all of them where the table is in memory anyhow
    (``whole``). Episodes are in the order in which they begin, and at most SORTED bytes are in hand.
    """
    import pyarrow as pa

    first: list[pa.RecordBatch] = []
    while (whole or sum(batch.num_rows for batch in first) < LOOKED) and (more := next(batches, None)):
        first.append(more)
    if columns.step is None or not first or _order(first, columns.episode, columns.step) is None:
        return title, chain(first, batches)
    every: list[pa.RecordBatch] = []
    size = 0
    for batch in chain(first, batches):
        every.append(batch)
        size += batch.nbytes
        if size > SORTED and not whole:
            raise InvalidInputError(
                f"path must be sorted by {columns.episode} and {columns.step} where it holds more than "
                f"{SORTED >> 20:,} MB, got {title}; sort it first, as DuckDB does on disk: COPY (FROM "
                f"'{title}' ORDER BY {columns.episode}, {columns.step}) TO 'sorted.parquet'"
            )
    table = pa.Table.from_batches(every).unify_dictionaries()
    sorted_rows = table.take(_order(every, columns.episode, columns.step))
    _check_once(sorted_rows, columns.episode, columns.step, title)
    named = f"{title}, sorted by {columns.episode} and {columns.step}"
    return named, iter(sorted_rows.to_batches(max_chunksize=rows))


def _order(batches: list[pa.RecordBatch], episode: str, step: str) -> Any:
    """The places of rows in the order of episodes, as they begin, and of steps; None where they are in it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches([batch.select([episode, step]) for batch in batches])
    ids, steps = table.column(0), table.column(1)
    plain = ids.cast(_plain_type(ids.type))
    if plain.null_count or steps.null_count or pa.types.is_nested(plain.type) or not is_numeric(steps.type):
        return None  # whose rows are named as they are
    encoded: Any = plain.combine_chunks().dictionary_encode()
    ranks = encoded.indices.to_numpy()
    falls = pc.less(steps.slice(1), steps.slice(0, len(steps) - 1)).to_numpy()
    if not ((ranks[1:] < ranks[:-1]) | falls & (ranks[1:] == ranks[:-1])).any():
        return None
    keys = pa.table({"episode": encoded.indices, "step": steps})
    return pc.sort_indices(keys, sort_keys=[("episode", "ascending"), ("step", "ascending")])


def _plain_type(kind: Any) -> Any:
    """That of the values of a dictionary."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def _check_once(table: pa.Table, episode: str, step: str, title: str) -> None:
    """Raise where two rows that were sorted have the same episode and step."""
    import pyarrow.compute as pc

    above, below = (table.slice(first, table.num_rows - 1) for first in (0, 1))
    names = [each.column(episode).cast(_plain_type(each.column(episode).type)) for each in (above, below)]
    same = pc.and_(pc.equal(*names), pc.equal(above.column(step), below.column(step)))
    if (at := pc.index(same, True).as_py()) >= 0:
        raise BadRowError(
            f"{step} must be different in all rows of an episode, got {above.column(step)[at]} twice in "
            f"{episode} {names[0][at].as_py()!r} of {title}, whose rows are not sorted; give each episode an "
            "id of its own, or remove a row"
        )


def is_number(text: str) -> bool:
    """Whether a text is that of a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_no_numbers(column: str, names: set[str]) -> None:
    """Raise where some of a column's texts are numbers: one slip of the pen must not make labels of them."""
    numbers = sorted(filter(is_number, names))
    if numbers:
        texts = sorted(names - set(numbers))
        raise InvalidInputError(
            f"{column} must hold numbers or names, got both, such as {numbers[0]} and {name_some(texts, 3)}; "
            "repair it, or, where all are names, let none of them be a number, or give them in codes="
        )


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
