"""The protocol of feature maps, the checks of what a map returns, our maps' base class and their registry.

The registry makes a map from its description in plain values (``spec()``).
A file holds no code and names none. For a function, a network or a policy it holds a name for people to read,
and for features their values at a few states. :func:`given_again` offers what the caller passed to ``load``;
features and policies that are made meanwhile take their function from there and compare it with the file.
"""

from __future__ import annotations

import inspect
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Ints, Matrix, as_array, as_states, as_whole, is_sparse, readonly
from policyrisk._core.records import makes_features
from policyrisk.errors import InvalidInputError, MismatchError

T = TypeVar("T")


@runtime_checkable
class Features(Protocol):
    """A map φ from states (n, dim) to features (n, size)."""

    @property
    def size(self) -> int:
        """The number of features."""

    def __call__(self, states: npt.ArrayLike) -> Matrix:
        """φ(states), of shape (n, size), dense or CSR."""


@runtime_checkable
class BinaryFeatures(Features, Protocol):
    """Features that are 0 or 1, with the same number of ones in every state."""

    def active(self, states: npt.ArrayLike) -> Ints:
        """The indices of the features that are 1, of shape (n, ones)."""


class FeatureMap:
    """The base class of our maps: a description in plain values, equality and repr by it, fixed attributes.

    A map has its ``__init__``'s arguments as attributes of the same names; files need nothing else.
    Attributes cannot be changed later, because an estimate was fitted with the map as it is.
    """

    kind: ClassVar[str] = ""  # what files call it; its class' name where this is empty
    # A registered class that has these can be spelled as text (policyrisk.features.spelling).
    spelled: ClassVar[str]  # an example, which shows the form of each part
    describes: ClassVar[str]  # what it is, for people
    sparse: ClassVar[bool] = False  # whether it is sparse, so that there may be very many features

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def spec(self) -> dict[str, Any]:
        """This map in plain values: its kind, and the arguments that make it."""
        values = {name: _plain(value) for name, value in self._arguments.items()}
        return {"kind": self.kind or type(self).__name__, **values}

    @cached_property
    def _key(self) -> str:
        return json.dumps(self.spec(), sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureMap) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        values = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in self._arguments.items()}
        given = (f"{name}={reprlib.repr(value)}" for name, value in values.items() if value is not None)
        return f"{self.kind or type(self).__name__}({', '.join(given)})"

    def outside(self, states: npt.ArrayLike) -> Bools:
        """Which states lie outside the map's box, of shape (n,): none where it has no box."""
        return np.zeros(len(as_states(states)), dtype=np.bool_)

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are computed again.
        kind = type(self)
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(kind, name, None), cached_property)
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():  # pickle and copy make arrays writable
            self.__dict__[name] = readonly(value) if isinstance(value, np.ndarray) else value

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be changed; make a new map instead")
        super().__setattr__(name, value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not hasattr(value, "spec"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if not hasattr(value, "spec"):
        raise InvalidInputError(
            f"maps must have a spec() to be described, got {type(value).__name__}; give your class one and "
            "register it"
        )
    return value.spec()


def dimension(features: Any) -> int | None:
    """The number of coordinates of the states that features were made for, where they say it.

    >>> from policyrisk.features import Joint, Polynomial, Tabular
    >>> table = Tabular(2, dims=[1])
    >>> dimension(Joint([Polynomial(1, [0, 0], [1, 1]), table])), dimension(table)
    (2, None)
    """
    box = getattr(features, "box", None)
    if box is not None:
        return None if box.dims is not None else int(box.dim)
    inner = [*getattr(features, "maps", ()), getattr(features, "map", None)]
    if hasattr(features, "actions"):  # blocks of the state's features; those of (x, a) have more coordinates
        inner.append(getattr(features, "features", None))
    return next((found for each in inner if each is not None and (found := dimension(each))), None)


def is_binary(features: Features) -> TypeGuard[BinaryFeatures]:
    """Whether the features are binary; isinstance with the protocol would take longer than a small batch."""
    return hasattr(features, "active")


def active_of(features: BinaryFeatures, states: npt.NDArray[Any]) -> Ints:
    """The indices of the features that are 1, of shape (n, ones), in C order."""
    active = np.ascontiguousarray(as_whole(features.active(states), "features.active", (len(states), None)))
    _check_columns(active, features.size)
    return active


def matrix_of(features: Features, states: npt.NDArray[Any]) -> Matrix:
    """φ(states), of shape (n, size): dense, in C order, or CSR in canonical format; of float64."""
    given = features(states)
    phi: Any = given if sp.issparse(given) else as_array(given, "features(states)", "numbers")
    if phi.shape != (len(states), features.size):
        raise InvalidInputError(
            f"features must return an array of shape {(len(states), features.size)} for "
            f"{len(states)} states, got {phi.shape}; return one row of {features.size} per state"
        )
    if not is_sparse(phi):
        return np.ascontiguousarray(phi, dtype=np.float64)
    csr = sp.csr_array(phi.astype(np.float64, copy=False))
    _check_columns(csr.indices, features.size)
    if not csr.has_canonical_format:
        csr = csr.copy()  # the map may keep what it gave
        csr.sum_duplicates()
    return csr


def outside(maps: Iterable[Features], states: npt.NDArray[Any]) -> Bools:
    """Which states lie outside the box of one of the maps, of shape (n,); a map may have no box."""
    found = np.zeros(len(states), dtype=np.bool_)
    for features in maps:
        tell = getattr(features, "outside", None)
        if tell is not None:
            found |= tell(states)
    return found


def _check_columns(columns: npt.NDArray[Any], size: int) -> None:
    if columns.size and not (columns.min() >= 0 and columns.max() < size):
        raise InvalidInputError(
            f"features must have indices from 0 to {size - 1}, got {columns.min()} to {columns.max()}; "
            "make size and the indices agree"
        )


# --- the registry ------------------------------------------------------------------------------------

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


def not_given(what: str) -> InvalidInputError:
    """The error of using what a file only names."""
    return InvalidInputError(
        f"features must be given again, since files hold no code, got none for {what}; pass it with "
        "features=... where the file is loaded"
    )


def name_of(function: Any) -> str:
    """What to call a function or a callable object: ``module:name``.

    >>> name_of(name_of)
    'policyrisk.features.protocol:name_of'
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
