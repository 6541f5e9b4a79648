"""Keyword arguments: the name that was meant where one is unknown, and signatures that show all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from policyrisk.errors import InvalidInputError

T = TypeVar("T", bound=Callable[..., Any])

_MEANT = {"gamma": "discount", "lambda_": "lam", "alpha": "step"}  # what other libraries call it


def check_options(options: Iterable[str], known: Collection[str], of: str, what: str = "") -> None:
    """Raise for names that are none of those known; ``what`` says more of what they are for.

    >>> check_options(["gamma"], ["discount", "lam"], "LSTD")
    Traceback (most recent call last):
    policyrisk.errors.InvalidInputError: gamma must be an option of LSTD, ...; did you mean discount?
    """
    unknown = sorted(set(options) - set(known))
    if unknown:
        meant = _MEANT.get(unknown[0])
        close = [meant] if meant in known else get_close_matches(unknown[0], known, 1)
        raise InvalidInputError(
            f"{', '.join(unknown)} must be an option of {of}, which has {', '.join(known) or 'none'}"
            f"{what}; {f'did you mean {close[0]}?' if close else 'leave it out'}"
        )


def hinting(thing: T) -> T:
    """A function or class that, called with an unknown argument, names the nearest one that it has."""
    if isinstance(thing, type):
        thing.__init__ = hinting(thing.__init__)  # type: ignore[misc]
        return thing
    names = [each for each in inspect.signature(thing).parameters if each not in ("self", "cls")]
    name = thing.__qualname__.removesuffix(".__init__")

    @wraps(thing)
    def called(*args: Any, **given: Any) -> Any:
        check_options(given, names, name)
        return thing(*args, **given)

    return called  # type: ignore[return-value]


def taking(*options: inspect.Parameter) -> Callable[[T], T]:
    """A function whose signature shows what its ``**`` takes: these, as keywords, but for its own."""

    def shown(function: T) -> T:
        signature = inspect.signature(function)
        own = {each.name: each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD}
        more = [each for each in options if each.name not in own]
        function.__signature__ = signature.replace(parameters=[*own.values(), *more])  # type: ignore[attr-defined]
        return function

    return shown
