"""What commands leave behind: folders, JSON, pictures, and how long the parts took.

A folder of results is complete or not there (:func:`complete_folder`). Files are written to a hidden folder
beside it, which becomes the new one once all of them are there. Where one exists already, that folder is in
it (it may be a disk of its own, or the only place that can be written), and each file replaces its namesake
by a rename. The file that marks the result as complete comes last. Pictures of an earlier result that the new
one has no namesake of are removed, and other files there stay. A run that
fails leaves everything as it was. The next run removes what a killed one left.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.files import part_ending, remove_remains, write_atomically
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def make_folder(folder: Path, name: str = "out") -> None:
    """Make the folder that results go to, and its parents; ``name`` is the argument's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{name} must be a folder that can be made, got {folder}: {error.strerror}; choose another"
        ) from error


def as_json(numbers: Mapping[str, Any]) -> str:
    """Valid JSON, with null for numbers that are not finite."""
    return json.dumps(plain(dict(numbers)), indent=1, allow_nan=False)


def write_json(numbers: Mapping[str, Any], path: Path) -> Path:
    """Write JSON, with null for numbers that are not finite."""
    write_atomically(path, lambda file: file.write(as_json(numbers).encode()))
    return path


def write_figure(drawn: Axes | Figure, path: Path) -> Path:
    """Write a figure, or that of some axes, in the format that the path ends in."""
    figure = drawn.get_figure(root=True)
    assert figure is not None
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=160))
    return path


class Clock:
    """Seconds that parts of the work took, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time what is done inside, under this name and in the total."""
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 3)
        self.seconds.pop("total", None)  # which comes last
        self.seconds["total"] = round(time.monotonic() - self._began, 3)


def plain(value: Any, digits: int = 17) -> Any:
    """The same in values that JSON knows: lists for arrays, None for numbers that are not finite.

    >>> plain({"a": np.array([1 / 3, np.inf]), "b": (1, "x")}, digits=3)
    {'a': [0.333, None], 'b': [1, 'x']}
    """
    if isinstance(value, dict):
        return {key: plain(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, digits) for part in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value


@contextmanager
def written_to(place: Path, kind: str = "folder", name: str = "out") -> Iterator[None]:
    """What the system says against writing to a place, in our words; ``name`` is the argument's."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            f"{name} must be a {kind} that can be written, got {place}: {error.strerror or error}; "
            f"choose another --{name}"
        ) from error


def check_folder(folder: Path, name: str = "out") -> None:
    """Raise early where the folder could not be written later."""
    with written_to(folder, name=name):
        if folder.exists() and not folder.is_dir():
            raise InvalidInputError(
                f"{name} must be a folder, got {folder}, which is a file; choose another --{name}"
            )
        parent = _nearest(folder)
        if not parent.is_dir():
            raise InvalidInputError(
                f"{name} must be a folder, got {folder} inside of {parent}, a file; choose another --{name}"
            )
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InvalidInputError(
                f"{name} must be a folder that can be written, got {folder}: {parent} cannot be; "
                f"choose another --{name}"
            )
        _check_names(folder, parent)


def check_file(file: Path, name: str = "out") -> None:
    """Raise early where the file could not be written later."""
    check_folder(file.parent, name)
    with written_to(file, "file", name):
        if file.is_dir():
            raise InvalidInputError(
                f"{name} must be a file, got {file}, which is a folder; name a file in it"
            )
        _check_names(file, _nearest(file.parent))


def _nearest(place: Path) -> Path:
    """The place itself, or the nearest folder above it that is there."""
    target = place.absolute()
    return next(each for each in (target, *target.parents) if each.exists())


def _check_names(place: Path, parent: Path) -> None:
    """Raise where a name between the parent and the place is too long, or that of what is written first."""
    for name in (*place.absolute().relative_to(parent).parts, part_of(place).name):
        with suppress(FileNotFoundError):
            (parent / name).lstat()


def hidden(folder: Path, ending: str) -> Path:
    """Where to keep what becomes of a folder: a hidden name beside it, or in it where it exists."""
    target = folder.absolute()
    return (target if target.is_dir() else target.parent) / f".{target.name}.{ending}"


def part_of(folder: Path) -> Path:
    """Where what becomes of a folder is written first, by this process alone."""
    return hidden(folder, part_ending())


@contextmanager
def complete_folder(folder: Path, last: str, partly: Sequence[str] = ()) -> Iterator[Path]:
    """A place to write to, whose files are in ``folder`` after all went well, ``last`` being the last.

    Of an earlier result there go those files whose names match ``partly`` and that have no successor: they
    are of other data.
    """
    check_folder(folder)
    target = folder.absolute()
    made = [parent for parent in target.parents if not parent.exists()]
    part = part_of(folder)
    remove_remains(target)
    try:
        with written_to(folder):
            part.mkdir(parents=True)
            yield part
            if target.exists():
                files = sorted(part.iterdir(), key=lambda file: file.name == last)
                for file in files:  # before the first of them is moved
                    if (target / file.name).is_dir():
                        raise InvalidInputError(
                            f"out must have no folder named {file.name}, got {target}; choose another --out"
                        )
                old = (
                    [each for name in partly for each in target.glob(name)]
                    if (target / last).exists()
                    else []
                )
                for file in files:
                    file.replace(target / file.name)
                for file in old:
                    if file.name not in {each.name for each in files}:
                        file.unlink(missing_ok=True)
            else:
                part.rename(target)
                made = []
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for parent in made:  # those that were made for it, if nothing is in them
            with suppress(OSError):
                parent.rmdir()
