"""What several commands share: options, numbers from text, and what is printed."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from policyrisk.criteria import Criterion

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
SeedOption = Annotated[int | None, typer.Option(min=0, help="The seed of everything random, else fresh.")]
LevelOption = Annotated[
    float, typer.Option(help="The intervals' level.", callback=lambda value: _level(value))
]

Ray = Annotated[
    bool,
    typer.Option("--ray", help="Work on a Ray cluster: this machine's cores, or that of --ray-address."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(help="An existing Ray cluster, as in auto or HOST:6379; implies --ray."),
]

CRITERIA = ("sharpe", "mean-std:1", "mean:variance<=10", "variance:mean>=5")


def print_json(value: Any) -> None:
    """Valid JSON on the standard output, with null for numbers that are not finite."""
    from policyrisk._core.output import plain

    typer.echo(json.dumps(plain(value), indent=1, allow_nan=False))


@contextmanager
def cluster(ray: bool, address: str | None) -> Iterator[bool]:
    """Whether the work is to be done on a Ray cluster, which is there as long as the block lasts."""
    if not (ray or address):
        yield False
        return
    from policyrisk import distributed

    with distributed.cluster(address):
        yield True


@contextmanager
def usage(option: str) -> Iterator[None]:
    """A value of ours that is wrong is a mistake on the command line, named by its option."""
    from policyrisk.errors import InvalidInputError

    try:
        yield
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


@contextmanager
def naming_options(otherwise: Mapping[str, str]) -> Iterator[None]:
    """An argument of ours that is wrong is its option, that of the same name unless ``otherwise``."""
    from policyrisk.errors import InvalidInputError

    try:
        yield
    except InvalidInputError as error:
        if error.argument is None:
            raise
        option = otherwise.get(error.argument, f"--{error.argument}")
        raise typer.BadParameter(str(error), param_hint=option) from error


def finite_number(text: str, option: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise typer.BadParameter(f"{text!r} is not a finite number", param_hint=option)
    return value


def names(text: str | None, option: str) -> list[str] | None:
    """Names with commas between."""
    if text is None:
        return None
    found = [name.strip() for name in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise typer.BadParameter(
            f"{text!r} must be names with commas between, each once, as in x,y", param_hint=option
        )
    return found


def point(text: str, coordinates: Sequence[str], option: str) -> list[float]:
    """A state: as many numbers as there are coordinates."""
    parts = text.split(",")
    if len(parts) != len(coordinates):
        raise typer.BadParameter(
            f"{text!r} must have {len(coordinates)} numbers, one each for {', '.join(coordinates)}, "
            f"got {len(parts)}; write for example {option} {','.join(['0.5'] * len(coordinates))}",
            param_hint=option,
        )
    return [finite_number(part, option) for part in parts]


def box(text: str) -> list[tuple[float, float]]:
    """Low and high of the coordinates, from low:high with commas between."""
    sides = [side.split(":") for side in text.split(",")]
    if any(len(side) != 2 for side in sides):
        raise typer.BadParameter(
            f"{text!r} must be auto, or low:high for each coordinate, as in 0:1,-2:2", param_hint="--box"
        )
    return [(finite_number(low, "--box"), finite_number(high, "--box")) for low, high in sides]


def criterion(text: str) -> Criterion:
    """One of the four criteria, as in ``sharpe`` or ``mean:variance<=10``."""
    from policyrisk import criteria

    compact = text.replace(" ", "")
    makers: dict[str, Callable[[float], Criterion]] = {
        "mean-std:": criteria.MeanMinusStd,
        "mean:variance<=": criteria.MeanVarianceAtMost,
        "variance:mean>=": criteria.VarianceMeanAtLeast,
    }
    if compact == "sharpe":
        return criteria.Sharpe()
    for start, make in makers.items():
        if compact.startswith(start):
            with usage("--criterion"):
                return make(finite_number(compact.removeprefix(start), "--criterion"))
    raise typer.BadParameter(
        f"{text!r} is none of sharpe, mean-std:c, 'mean:variance<=c' and 'variance:mean>=c', c a number; "
        "write for example mean-std:1",
        param_hint="--criterion",
    )


def look_here() -> None:
    """Let modules in the current folder be imported, as ``python`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def imported(text: str, option: str) -> Any:
    """What ``module:name`` stands for, with the current folder on the path."""
    module, colon, name = text.partition(":")
    if not colon or not all(part.isidentifier() for part in f"{module}.{name}".split(".")):
        raise typer.BadParameter(
            f"{text!r} must be module:name, as in my_policies:careful", param_hint=option
        )
    look_here()
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise typer.BadParameter(
            f"there is no module {error.name!r} here or among those installed", param_hint=option
        ) from error
    except AttributeError as error:
        raise typer.BadParameter(f"the module {module!r} has no {name!r}", param_hint=option) from error
    return found


def _level(value: float) -> float:
    if not 0 < value < 1:
        raise typer.BadParameter(f"{value:g} must be between 0 and 1, as in 0.95")
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
