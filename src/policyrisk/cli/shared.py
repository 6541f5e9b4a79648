"""What several commands share: options, numbers from text, and what is printed."""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer


def check_level(value: float | None) -> float | None:
    """A level of intervals, where one is given: an option's callback."""
    if value is not None and not 0 < value < 1:
        raise typer.BadParameter(f"{value:g} must be between 0 and 1, as in 0.95")
    return value


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
SeedOption = Annotated[int | None, typer.Option(min=0, help="The seed of everything random, else fresh.")]
LevelOption = Annotated[float, typer.Option(help="The intervals' level.", callback=check_level)]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="Work on a Ray cluster: this machine's cores, or that of --ray-address."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(help="An existing Ray cluster, as in auto or HOST:6379; implies --ray."),
]


def as_json_text(value: Any) -> str:
    """Valid JSON, with null for numbers that are not finite."""
    from policyrisk._core.output import plain

    return json.dumps(plain(value), indent=1, allow_nan=False)


@contextmanager
def cluster(ray: bool, address: str | None) -> Iterator[bool]:
    """Whether the work is to be done on a Ray cluster, which is there as long as the block lasts."""
    if not (ray or address):
        yield False
        return
    from policyrisk import distributed

    with distributed.cluster(address):
        yield True


def finite_number(text: str, option: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise typer.BadParameter(f"{text!r} is not a finite number", param_hint=option)
    return value


@contextmanager
def saying_why() -> Iterator[None]:
    """Print what an interrupt has to say, such as where the work so far was saved."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if str(stopped):
            typer.echo(f"policyrisk: {stopped}", err=True)
        raise


def look_here() -> None:
    """Let modules be found in the folder that the command is called in, as python does."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def imported(text: str, option: str) -> Any:
    """What ``module:name`` stands for; the current folder is looked in too."""
    from policyrisk._core.imports import named_object
    from policyrisk.errors import InvalidInputError

    look_here()
    try:
        return named_object(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def made(text: str, option: str) -> Any:
    """As :func:`imported`, an object of it where it is a class."""
    found = imported(text, option)
    if not inspect.isclass(found):
        return found
    try:
        return found()
    except TypeError as error:
        raise typer.BadParameter(
            f"{text} is a class that cannot be made without arguments ({error}); name an object of it",
            param_hint=option,
        ) from error
