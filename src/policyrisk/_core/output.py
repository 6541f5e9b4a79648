"""What commands and experiments leave behind: a folder, JSON, pictures, and how long the parts took."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.records import write_atomically
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Clock", "make_folder", "plain", "write_figure", "write_json"]


def make_folder(folder: Path, name: str = "out") -> None:
    """Make the folder that results go to, and its parents; ``name`` is the argument's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{name} must be a folder that can be made, got {folder}: {error.strerror}; choose another"
        ) from error


def write_json(numbers: dict[str, Any], path: Path) -> Path:
    """Write JSON, with null for numbers that are not finite."""
    text = json.dumps(plain(numbers), indent=1, allow_nan=False)
    write_atomically(path, lambda file: file.write(text.encode()))
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
