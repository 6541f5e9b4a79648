"""The registry of feature maps, which makes a map from its description in plain values (``spec()``).

A file holds no code and names none. For a function, a network or a policy it holds a name for people to read,
and for features their values at a few states. :func:`given_again` offers what the caller passed to ``load``;
features and policies that are made meanwhile take their function from there and compare it with the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from policyrisk._core.records import makes_features
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.protocol import Features

__all__ = ["from_spec", "register"]

T = TypeVar("T")

_KINDS: dict[str, Callable[..., Features]] = {}  # what makes each kind of map


def registered() -> tuple[Callable[..., Features], ...]:
    """The classes, or functions, that make the registered maps."""
    return tuple(_KINDS.values())


@makes_features
def from_spec(spec: Mapping[str, Any]) -> Features:
    """The feature map that ``spec`` describes.

    Parameters
    ----------
    spec
        Plain values, as ``phi.spec()`` returns them.

    Returns
    -------
    Features
        Equal to the map whose ``spec()`` it is.

    Examples
    --------
    >>> from policyrisk.features import TileCoding
    >>> phi = TileCoding(low=[0, 0], high=[1, 1], bins=[50, 50])
    >>> from_spec(phi.spec()) == phi
    True
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("kind"), str):
        raise InvalidInputError(
            f"spec must be a dictionary with the feature map's kind, got {spec!r}; pass what its spec() gave"
        )
    arguments = {name: value for name, value in spec.items() if name != "kind"}
    make = _KINDS.get(spec["kind"])
    if make is None:
        raise InvalidInputError(
            f"spec's kind must be one of {', '.join(sorted(_KINDS))}, got {spec['kind']!r}; "
            "for a class of your own call policyrisk.features.register(kind, the class) first"
        )
    try:
        return getattr(make, "of_spec", make)(**arguments)
    except TypeError as error:
        raise InvalidInputError(
            f"spec must hold the arguments of {spec['kind']}, got {sorted(arguments)} ({error}); "
            "pass what spec() of the same version gave"
        ) from error


def register(kind: str, make: Callable[..., Features]) -> None:
    """Let :func:`from_spec` make your own maps, and let them be spelled as text.

    Parameters
    ----------
    kind
        The word for it in a spec.
    make
        The class, or a function: ``make(**values)`` is called for a spec of this kind with those values.

    Examples
    --------
    >>> class Halves:
    ...     size = 2
    ...     def __call__(self, states):
    ...         upper = np.asarray(states) > 0.5
    ...         return np.column_stack([~upper, upper]).astype(float)
    ...     def spec(self):
    ...         return {"kind": "Halves"}
    >>> import numpy as np
    >>> register("Halves", Halves)
    >>> from_spec(Halves().spec())([0.2, 0.7])
    array([[1., 0.],
           [0., 1.]])
    """
    if not isinstance(kind, str) or not callable(make):
        raise InvalidInputError(
            f"register needs a kind and the class that makes it, got {kind!r} and {make!r}; "
            'pass for example "Mine", Mine'
        )
    if _KINDS.get(kind, make) is not make:
        raise InvalidInputError(f"kind must be new, got {kind!r}, which is taken; choose another name")
    _KINDS[kind] = make


_given: ContextVar[tuple[tuple[Any, ...], Any]] = ContextVar("given", default=((), None))


@contextmanager
def given_again(features: Any = None, policy: Any = None) -> Iterator[None]:
    """Offer a policy and functions or networks: one, a list of them, or a map that contains them."""
    token = _given.set((tuple(_parts(features)), policy))
    try:
        yield
    finally:
        _given.reset(token)


def given_features() -> tuple[Any, ...]:
    """The functions, networks and feature maps on offer."""
    return _given.get()[0]


def given_policy() -> Any:
    """The policy on offer, or None."""
    return _given.get()[1]


def first_fitting(candidates: Iterable[Any], fit: Callable[[Any], T], otherwise: T) -> T:
    """``fit`` of the first candidate that is no mismatch; its error where all are; else ``otherwise``."""
    mismatch: MismatchError | None = None
    for each in candidates:
        try:
            return fit(each)
        except MismatchError as error:
            mismatch = mismatch or error
    if mismatch is not None:
        raise mismatch
    return otherwise


def name_of(function: Any) -> str:
    """What to call a function or a callable object: ``module:name``.

    >>> name_of(name_of)
    'policyrisk.features.registry:name_of'
    """
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', '') or ''}:{name}"


def _parts(given: Any, within: bool = False) -> Iterator[Any]:
    """The items of a list one by one, and the maps within a map."""
    if isinstance(given, list | tuple):
        for each in given:
            yield from _parts(each, within)
    elif callable(given) or (hasattr(given, "features") and not within):
        yield given
        for name in ("maps", "inner", "features"):  # of Joint, Ranked and ActionFeatures
            yield from _parts(getattr(given, name, None), within=True)
    elif given is not None and not within:
        raise InvalidInputError(
            f"features must be a function, a network, a feature map or a list of them, got "
            f"{type(given).__name__}; pass what the estimate was made with"
        )
