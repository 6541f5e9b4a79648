"""What several commands share: options, and numbers and objects from text."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from policyrisk.cli.screen import keyword, screen
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.request import naming_arguments

if TYPE_CHECKING:
    from policyrisk.criteria import Criterion


def _place(text: str) -> Path:
    """A file or folder; an empty text would be the current folder."""
    if not text:
        raise typer.BadParameter("it must be the name of a file or a folder, got an empty text")
    return Path(text)


place_option = partial(typer.Option, parser=_place, metavar="PATH")  # where results go
SeedOption = Annotated[int | None, typer.Option(min=0, help="The seed of everything random, else fresh.")]
LevelOption = Annotated[float, typer.Option(help="The intervals' level.", min=0, max=1)]
FeaturesAgain = Annotated[
    list[str] | None,
    typer.Option(
        "--features",
        help="module:name of the features' function or network again, or sb3:model.zip, where they are one: "
        "files hold no code. May be given several times.",
    ),
]
CLUSTER = [
    keyword(
        "ray",
        Annotated[
            bool,
            typer.Option(
                "--ray", help="Work on a Ray cluster: this machine's cores, or that of --ray-address."
            ),
        ],
        False,
    ),
    keyword(
        "ray_address",
        Annotated[
            str | None,
            typer.Option(help="An existing Ray cluster, as in auto or HOST:6379; implies --ray."),
        ],
        None,
    ),
]
_TYPES: dict[str, Any] = {
    "bool": bool,
    "float": float,
    "float | None": float | None,
    "int": int,
    "int | None": int | None,
    "list[str] | None": list[str] | None,
}


def options_of(record: type, **complete: Callable[[str], Any]) -> list[inspect.Parameter]:
    """The options of a request's fields, and what completes them; what has no type of its own is text."""
    texts = documented(record)
    return [_option(each, texts[each.name], complete.get(each.name)) for each in _asked(record)]


def documented(record: type) -> dict[str, str]:
    """What a record's docstring says of each parameter, in one line; nothing where docstrings are left out.

    >>> from policyrisk.evaluation.request import EvaluationRequest
    >>> documented(EvaluationRequest)["loss_below"]
    'The line of a loss: estimate the chance of a return below it.'
    """
    found = dict.fromkeys((each.name for each in fields(record)), "")
    text = inspect.cleandoc(record.__doc__ or "").partition("----------")[2]
    for name, lines in re.findall(r"^(\w+)\n((?:    .*\n?)+)", text, re.MULTILINE):
        found[name] = " ".join(lines.split())
    return found


def _asked(record: type) -> list[Field[Any]]:
    """The fields that are options."""
    return [each for each in fields(record) if each.metadata]


def _option(asked: Field[Any], text: str, complete: Callable[[str], Any] | None) -> inspect.Parameter:
    spelled, how = _spelled(asked), asked.metadata
    default = asked.default or None if isinstance(asked.default, tuple) else asked.default
    kind = _TYPES.get(how.get("type", asked.type), str if isinstance(default, str) else str | None)
    if kind is bool:
        default = bool(default)
    info = typer.Option(
        spelled,
        help=text,
        rich_help_panel=how["panel"],
        min=how.get("min"),
        max=how.get("max"),
        autocompletion=complete,
    )
    return keyword(_parameter(asked), Annotated[kind, info], default)


def _spelled(asked: Field[Any]) -> str:
    """A field as an option."""
    return str(asked.metadata.get("option", f"--{asked.name.replace('_', '-')}"))


def _parameter(asked: Field[Any]) -> str:
    return _spelled(asked).removeprefix("--").replace("-", "_")


def values_of(
    record: type, chosen: Mapping[str, Any], parsers: Mapping[str, Callable[[Any], Any]] | None = None
) -> dict[str, Any]:
    """A request's arguments from what the options say: text by the parser of the field, if it has one."""
    given = {each.name: chosen[_parameter(each)] for each in _asked(record)}
    for name, parse in (parsers or {}).items():
        given[name] = None if given[name] is None else parse(given[name])
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def cluster(ray: bool, address: str | None) -> Iterator[bool]:
    """Whether the work is to be done on a Ray cluster, which is there as long as the block lasts."""
    if not (ray or address):
        yield False
        return
    from policyrisk import distributed

    with distributed.cluster(address):
        yield True


def can_make(what: Literal["pictures are", "the report is"]) -> bool:
    """Whether the packages that draw are there and work; where not, a note says what is left out.

    Commands ask at their beginning, and write their numbers in any case.
    """
    from policyrisk._core.imports import hindrance

    packages = ("matplotlib",) if what == "pictures are" else ("plotly", "jinja2")
    why = next(filter(None, map(hindrance, packages)), None)
    if why is not None:
        screen.note(f"{what} left out: {why}")
    return why is None


def finite_number(text: str, option: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise typer.BadParameter(f"{text!r} is not a finite number", param_hint=option)
    return value


def check_there(place: str | Path, rule: str = "folder must be one that `policyrisk evaluate` wrote") -> None:
    """Raise where nothing has this name, before anything that takes long is imported."""
    if not Path(place).exists():
        raise InvalidInputError(f"{rule}, got {place}, which does not exist; check it")


def criterion_of(text: str) -> Criterion:
    """The criterion that an option spells."""
    from policyrisk.criteria import spelled

    with naming_arguments("--criterion"):
        return spelled(text)


def without_quotes(text: str, option: str) -> str:
    """A name that may be in quotes, as one with a comma in it must be."""
    from policyrisk._core.text import unquoted

    with naming_arguments(option):
        return unquoted(text)


def imported(text: str, option: str) -> Any:
    """What ``module:name`` stands for; the current folder is looked in too."""
    from policyrisk._core.imports import named_object

    with naming_arguments(option):
        return named_object(text)


def features_again(texts: Sequence[str] | None) -> list[Any]:
    """The functions and networks that --features names again: module:name, or sb3:model.zip."""
    from policyrisk.features import from_sb3

    with naming_arguments("--features"):
        return [
            from_sb3(text.removeprefix("sb3:")) if text.startswith("sb3:") else imported(text, "--features")
            for text in texts or ()
        ]


def made(text: str, option: str) -> Any:
    """What ``module:name`` stands for; of a class, an object of it."""
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


def stored(text: str, option: str) -> tuple[Any, dict[str, Any] | None]:
    """The policy in the file that improve wrote, and how the environment that it acts in was changed."""
    with naming_arguments(option):
        check_there(text, "path must name a file")
        from policyrisk.control.policies import stored_policy

        return stored_policy(text)


def policy_of(text: str, option: str, stochastic: bool = False, seed: int | None = None) -> Any:
    """The policy module:name, or the policy.npz of improve, or sb3:model.zip.

    After the last may stand ,stochastic and ,normalisation=FILE.
    """
    if text.endswith(".npz"):
        return stored(text, option)[0]
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
    with naming_arguments(option):
        return sb3_policy(path, not drawn, seed, normalisation=scaling)
