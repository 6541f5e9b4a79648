"""Which files a path stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from policyrisk.errors import InvalidInputError

PathOrPaths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def find_files(path: PathOrPaths, suffix: str) -> list[Path]:
    """The files of a path: itself, or all of a folder that end in ``suffix``, or those of a list, in order.

    A folder is searched to any depth and sorted by name. What begins with ``.`` or ``_`` is passed over: by
    custom those are files that are being written, and notes of the tools that write them.
    """
    if not isinstance(path, str | os.PathLike):
        if not isinstance(path, Iterable) or not path:
            raise InvalidInputError(
                f"path must be a file, a folder or a list of files, got {path!r}; pass one of these"
            )
        return [file for each in path for file in find_files(each, suffix)]
    place = Path(path)
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
    if Path(path).is_dir():
        raise InvalidInputError(
            f"path must be a file's, got the folder {path}; pass for example {Path(path) / example}"
        )


def describe(path: PathOrPaths, files: Sequence[Path]) -> str:
    """A path for messages."""
    if isinstance(path, str | os.PathLike):
        return str(path)
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
