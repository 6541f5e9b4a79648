"""What a feature map has to be, what it gives for some states, and the little that ours share."""

from __future__ import annotations

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Ints, Matrix, as_array, as_whole, is_sparse, readonly
from policyrisk.errors import InvalidInputError


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


class Described(ABC):
    """Equality, hash and text from ``spec()``, and attributes that are set once.

    A map that derives from this and sets its attributes in ``__init__`` cannot be changed later, so
    that what was fitted with it stays true.
    """

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """This map in plain values: its kind, and the arguments that make it."""

    @cached_property
    def _key(self) -> str:
        return json.dumps(self.spec(), sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        spec = self.spec()
        arguments = (
            f"{name}={reprlib.repr(value)}"
            for name, value in spec.items()
            if name != "kind" and value is not None
        )
        return f"{spec['kind']}({', '.join(arguments)})"

    def __getstate__(self) -> dict[str, Any]:
        # What is cached can be made again.
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


def is_binary(features: Features) -> TypeGuard[BinaryFeatures]:
    """As isinstance(features, BinaryFeatures), which takes longer than a small batch."""
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
