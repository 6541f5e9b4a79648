"""What several commands share: options, and numbers and objects from text."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.screen import screen

if TYPE_CHECKING:
    from policyrisk.criteria import Criterion


def check_level(value: float | None) -> float | None:
    """A level of intervals, where one is given: an option's callback."""
    if value is not None and not 0 < value < 1:
        raise typer.BadParameter(f"{value:g} must be between 0 and 1, as in 0.95")
    return value


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


@contextmanager
def cluster(ray: bool, address: str | None) -> Iterator[bool]:
    """Whether the work is to be done on a Ray cluster, which is there as long as the block lasts."""
    if not (ray or address):
        yield False
        return
    from policyrisk import distributed

    with distributed.cluster(address):
        yield True


def can_draw(package: str) -> bool:
    """Whether the package that draws is there and works; where not, a note says what is left out.

    Commands ask at their beginning, and write their numbers in any case.
    """
    from policyrisk._core.imports import hindrance

    if (why := hindrance(package)) is None:
        return True
    what = {"matplotlib": "pictures are", "plotly": "the report is"}[package]
    screen.note(f"{what} left out: {why}")
    return False


def finite_number(text: str, option: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise typer.BadParameter(f"{text!r} is not a finite number", param_hint=option)
    return value


def criterion_of(text: str, makers: Mapping[str, Callable[[float], Criterion]], known: str) -> Criterion:
    """The criterion that an option spells: ``sharpe``, or a number behind one of the makers' beginnings."""
    from policyrisk.criteria import Sharpe
    from policyrisk.errors import InvalidInputError

    compact = text.replace(" ", "")
    if compact == "sharpe":
        return Sharpe()
    for start, make in makers.items():
        if compact.startswith(start) and compact != start:
            try:
                return make(finite_number(compact.removeprefix(start), "--criterion"))
            except InvalidInputError as error:
                raise typer.BadParameter(str(error), param_hint="--criterion") from error
    raise typer.BadParameter(
        f"{text!r} is none of {known}; write for example mean-std:1", param_hint="--criterion"
    )


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


def policy_of(text: str, option: str, stochastic: bool = False, seed: int | None = None) -> Any:
    """The policy module:name, or sb3:model.zip, after which may stand ,stochastic and ,normalisation=FILE."""
    from policyrisk.errors import InvalidInputError

    if not text.startswith("sb3:"):
        return made(text, option)
    from policyrisk.simulation.sb3_policy import sb3_policy

    path, *rest = text.removeprefix("sb3:").split(",")
    drawn = stochastic or "stochastic" in rest
    others = [part for part in rest if part != "stochastic"]
    if len(others) > 1 or not all(part.startswith("normalisation=") for part in others):
        raise typer.BadParameter(
            f"{text!r} must be sb3:model.zip, with ,stochastic or ,normalisation=stats.npz after it",
            param_hint=option,
        )
    scaling = others[0].removeprefix("normalisation=") if others else None
    try:
        return sb3_policy(path, not drawn, seed, normalisation=scaling)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
