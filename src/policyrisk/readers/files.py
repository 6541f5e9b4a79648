"""Which files a path stands for, and streams over the tables in them: what Parquet and CSV do alike.

A table is opened by a function of its file and the columns wanted, which gives the names of its columns and
its record batches. Everything else, from the columns to the episodes, is shared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, get_args

from policyrisk._core.arrays import as_count, as_list, as_path, check_choice, check_kind, name_some
from policyrisk._core.frames import is_text
from policyrisk._core.imports import check_installed
from policyrisk.errors import InvalidInputError, PolicyRiskError
from policyrisk.readers.columns import Converter, LabelNames, distinct_names
from policyrisk.readers.layout import Layout, match
from policyrisk.readers.rows import Missing, episodes
from policyrisk.readers.stream import Piece, Stream

if TYPE_CHECKING:
    import pyarrow as pa

PathOrPaths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def find_files(path: PathOrPaths, suffix: str) -> list[Path]:
    """The files of a path: itself, or all of a folder that end in ``suffix``, or those of a list, in order.

    A folder is searched to any depth and sorted by name. What begins with ``.`` or ``_`` is passed over: by
    custom those are files that are being written, and notes of the tools that write them.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        each = [as_path(one) for one in as_list(path, "path", "a file, a folder or a list of files")]
        if not each:
            raise InvalidInputError("path must be a file, a folder or a list of files, got none; pass some")
        return [file for one in each for file in find_files(one, suffix)]
    place = as_path(path)
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
    if as_path(path).is_dir():
        raise InvalidInputError(
            f"path must be a file's, got the folder {path}; pass for example {Path(path) / example}"
        )


class Table(NamedTuple):
    """An opened file."""

    names: Sequence[str]  # of the columns that it has
    types: Sequence[pa.DataType]  # of each of them; in CSV those that its beginning looks like
    batches: Callable[[Layout, int], Iterator[pa.RecordBatch]]  # a layout's columns, about n rows at a time
    state: tuple[str, ...] | None = None  # the columns of the state, where the table tells


Opener = Callable[[Path], AbstractContextManager[Table]]
_MEMORY = Path("the data frame")  # what a table that is in no file is called


def table_stream(
    path: PathOrPaths | None,
    kind: str,
    suffix: str,
    open_table: Opener,
    layout: Layout,
    batch_rows: int,
    codes: Mapping[str, Sequence[str]] | None,
    missing: Missing = "refuse",
    open_whole: Opener | None = None,
) -> Stream:
    """A stream over the episodes of some files of one kind; the first file's columns are checked at once.

    That file also says which columns of the state, or of the action, hold text. Their names are found out
    when they are first needed, in a pass over these columns of all files, each of them whole
    (``open_whole``). Without a ``path`` there is one table, that of a data frame.
    """
    check_installed("pyarrow", f"reading {kind}")
    check_choice(missing, "missing", get_args(Missing))
    rows = as_count(batch_rows, "batch_rows", 1)
    files = [_MEMORY] if path is None else find_files(path, suffix)
    with damage_named(files[0], kind), open_table(files[0]) as table:
        kinds = dict(zip(table.names, table.types, strict=True))
        if layout.state is None and table.state is not None and {*table.state} <= {*table.names}:
            layout = replace(layout, state=table.state)
        first = match(layout, table.names, str(files[0]))
        labels_in = (*(first.state or ()), *((first.action,) if isinstance(first.action, str) else ()))
        layout = replace(layout, text=frozenset(name for name in labels_in if is_text(kinds[name])))
    given = _checked_codes(codes, layout.text)

    once: list[LabelNames] = []  # found out already

    def labels() -> LabelNames:
        if once:
            return once[0]
        found: dict[str, set[str]] = {name: set() for name in sorted(layout.text - given.keys())}
        for file in files if found else ():
            with damage_named(file, kind), (open_whole or open_table)(file) as table:
                match(replace(layout, text=frozenset()), table.names, str(file))
                batches = table.batches(Layout.of_text(found), rows)
                for name, names in distinct_names(batches, found).items():
                    found[name] |= names
        if suffix == ".csv":  # where nothing but its text tells what a column is
            for name, names in found.items():
                check_no_numbers(name, names)
        once.append({**given, **{name: tuple(sorted(names)) for name, names in found.items()}})
        return once[0]

    def parts() -> Iterator[Piece]:
        for file in files:
            with damage_named(file, kind), open_table(file) as table:
                found = match(layout, table.names, str(file))
                converter = Converter(found, str(file), labels(), missing)
                batches = (batch for batch in table.batches(found, rows) if batch.num_rows)
                yield from episodes(map(converter.rows, batches), str(file), converter.coordinates, missing)

    name = str(path if isinstance(path, str | os.PathLike) else files[0])
    if not isinstance(path, str | os.PathLike) and len(files) > 1:
        name += f" and {len(files) - 1} more"
    return Stream(name, parts, rows, labels, first.state or ())


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


def as_codes(codes: Mapping[str, Sequence[str]] | None) -> LabelNames:
    """A caller's names of columns of text, checked."""
    given = {} if codes is None else codes
    check_kind(given, "codes", Mapping, "pass for example {'shop': ['a', 'b']}")
    return {name: tuple(as_list(names, "codes", "names of each column")) for name, names in given.items()}


def _checked_codes(codes: Mapping[str, Sequence[str]] | None, text: frozenset[str]) -> LabelNames:
    found = as_codes(codes)
    for name, names in found.items():
        if (
            name not in text
            or not all(isinstance(each, str) for each in names)
            or len(set(names)) < len(names)
        ):
            raise InvalidInputError(
                f"codes must give different names for columns of text that are read, which are "
                f"{', '.join(sorted(text)) or 'none'}, got {name}={list(names)!r}; leave it out"
            )
    return found


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
