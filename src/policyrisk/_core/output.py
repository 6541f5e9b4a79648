"""What experiments leave behind: a folder, plain JSON, pictures, and how long the parts took."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.records import write_atomically
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Clock", "make_folder", "plain", "write_figure", "write_json"]


def make_folder(folder: Path, name: str = "out") -> None:
    """Make the folder that results go to; ``name`` is the argument's that it came from."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{name} must be a folder that can be made, got {folder}: {error.strerror}; choose another"
        ) from error


def write_json(numbers: dict[str, Any], folder: Path) -> Path:
    """Write ``result.json``, with null for numbers that are not finite."""
    text = json.dumps(plain(numbers), indent=1, allow_nan=False)
    write_atomically(folder / "result.json", lambda file: file.write(text.encode()))
    return folder / "result.json"


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=160))
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


def plain(value: Any) -> Any:
    """The same without numbers that JSON does not know: null for those that are not finite."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value
