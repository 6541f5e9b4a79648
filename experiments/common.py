"""What the scripts share: options from a record of parameters, files, tables and times."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
P = TypeVar("P")


def parser(parameters: type, about: str | None, out: str) -> argparse.ArgumentParser:
    """Options of a script: ``--out``, and one for each field of its record of parameters."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("--out", type=Path, default=Path(out), help=f"where the results go ({out})")
    for field in fields(parameters):
        _add(options, field)
    return options


def _add(options: argparse.ArgumentParser, field: Field[Any]) -> None:
    assert field.default is not MISSING
    several = isinstance(field.default, tuple)
    shown = " ".join(map(str, field.default)) if several else field.default
    options.add_argument(
        f"--{field.name.replace('_', '-')}",
        type=type(field.default[0] if several else field.default),
        nargs="+" if several else None,
        default=field.default,
        help=f"({shown})",
    )


def chosen(parameters: type[P], options: argparse.Namespace) -> P:
    """The record of parameters that the options give."""
    values = {field.name: getattr(options, field.name) for field in fields(parameters)}  # type: ignore[arg-type]
    return parameters(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})


def tell(text: str, paths: Sequence[Path]) -> None:
    """Print what was found, and where it was written."""
    print(f"{text}\nwritten: {', '.join(map(str, paths))}")


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> Path:
    """Write a file under a temporary name, and rename it; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        fill(file)
    return part.replace(path)


def write_json(numbers: dict[str, Any], path: Path) -> Path:
    """Write JSON, with null for numbers that are not finite."""
    text = json.dumps(plain(numbers), indent=1, allow_nan=False)
    return write(path, lambda file: file.write(text.encode()))


def write_arrays(arrays: dict[str, Floats], path: Path) -> Path:
    """Write arrays to an npz file."""
    return write(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that the path ends in."""
    return write(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=160))


def write_figures(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure for screens and for papers: ``name.png``, ``.svg`` and ``.pdf``."""
    return [write_figure(figure, folder / f"{name}{suffix}") for suffix in (".png", ".svg", ".pdf")]


def plain(value: Any) -> Any:
    """The same in values that JSON knows: lists for arrays, None for numbers that are not finite.

    >>> plain({"a": np.array([0.5, np.inf]), "b": (1, "x")})
    {'a': [0.5, None], 'b': [1, 'x']}
    """
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float, digits: int = 5) -> str:
    """A number to ``digits`` significant digits."""
    return f"{value:.{digits}g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their headings, the first flush left and the others flush right.

    >>> print(table(["", "value"], [["mean", "1"], ["std", "10"]]))
          value
    mean      1
    std      10
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])],
        ).rstrip()
        for line in lines
    )


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

    def __str__(self) -> str:
        return "Seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in self.seconds.items())
