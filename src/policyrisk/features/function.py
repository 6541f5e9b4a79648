"""A user's own function as a feature map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Matrix, as_count, as_states, describe, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features.protocol import Features

__all__ = ["FunctionFeatures", "as_features"]


class UnknownSizeError(InvalidInputError, AttributeError):
    """The size of a function's features was asked for before its first call.

    Also an AttributeError: that is what ``hasattr`` and ``isinstance`` with a protocol understand.
    """


class FunctionFeatures:
    """φ(x) = function(x), checked: states (n, dim) go in and finite numbers (n, size) come out.

    ``size=None`` is found at the first call, and asking for it earlier is an error. The function gets a
    read-only array and may give a dense array or a SciPy sparse one. It must be a pure function of
    each row. Two of these are equal when they have the same function.

    >>> phi = FunctionFeatures(lambda x: np.hstack([np.ones_like(x), x**2]))
    >>> phi([1, 3])
    array([[1., 1.],
           [1., 9.]])
    >>> phi.size
    2
    """

    def __init__(self, function: Callable[[Floats], Any], size: int | None = None) -> None:
        if not callable(function):
            raise InvalidInputError(
                f"function must take states (n, dim) to features (n, size), got {function!r}; pass a function"
            )
        self._function = function
        self._size = None if size is None else as_count(size, "size", 1)

    @property
    def function(self) -> Callable[[Floats], Any]:
        """The function."""
        return self._function

    @property
    def size(self) -> int:
        """The number of features."""
        if self._size is None:
            raise UnknownSizeError(
                f"the size of {self._name} is known after its first call only; call it or pass size="
            )
        return self._size

    def __call__(self, states: npt.ArrayLike) -> Matrix:
        """φ(states), of shape (n, size), dense or CSR as the function gives it."""
        array = as_states(states)
        if len(array) == 0 and self._size is not None:  # few functions are written with no states in mind
            return np.empty((0, self._size))
        phi = self._checked(self._function(readonly(array)), len(array))
        self._size = phi.shape[1]
        return phi

    def _checked(self, value: Any, n: int) -> Matrix:
        sparse: bool = sp.issparse(value)
        try:
            # A copy of a sparse value, which is put in order; a dense one is left as it is.
            phi: Any = (
                sp.csr_array(value, dtype=np.float64, copy=True) if sparse else np.asarray(value, np.float64)
            )
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{self._name} must give numbers of shape (n, size), got {type(value).__name__}; "
                "return an array with a row per state"
            ) from error
        if phi.ndim != 2 or phi.shape[0] != n or phi.shape[1] != (self._size or max(phi.shape[1], 1)):
            raise InvalidInputError(
                f"{self._name} must give shape {describe((n, self._size))}, a row of the same size for every "
                f"state and at least one column, got {phi.shape}; return an array of that shape"
            )
        if sparse:
            phi.sum_duplicates()
        if not np.isfinite(phi.data if sparse else phi).all():
            row = min(np.argwhere(~np.isfinite(phi.toarray() if sparse else phi))[:, 0])
            raise InvalidInputError(
                f"{self._name} must give finite numbers, got others for the state in row {row}; "
                "repair the function there"
            )
        checked: Matrix = phi
        return checked

    @property
    def _name(self) -> str:
        return f"the feature function {getattr(self._function, '__name__', repr(self._function))}"

    def outside(self, states: npt.ArrayLike) -> Bools:
        """No state is outside: there is no box."""
        return np.zeros(len(as_states(states)), dtype=np.bool_)

    def spec(self) -> dict[str, Any]:
        """An error: a function has no description in plain values."""
        raise InvalidInputError(
            f"{self._name} cannot be described in plain values, so it cannot be saved; write a class with "
            "size, a call and spec(), and register it, or save the weights only"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionFeatures) and self._function == other._function

    def __hash__(self) -> int:
        return hash(self._function)

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", repr(self._function))
        return f"FunctionFeatures({name}, size={self._size})"


def as_features(value: Any) -> Features:
    """``value`` as a feature map: itself where it has the protocol, a function as FunctionFeatures.

    >>> from policyrisk.features import Tabular
    >>> as_features(Tabular(3))
    Tabular(size=3, dims=None)
    >>> as_features(np.sin)
    FunctionFeatures(sin, size=None)
    """
    if isinstance(value, type):
        raise InvalidInputError(
            f"features must be a feature map or a function, got the class {value.__name__} itself; "
            "pass an instance of it"
        )
    if isinstance(value, FunctionFeatures):  # its size may be unknown as yet
        return value
    if isinstance(value, Features):
        as_count(value.size, "features.size", 1)
        return value
    if callable(value):
        return FunctionFeatures(value)
    raise InvalidInputError(
        f"features must have a size and a call that takes states (n, dim) to (n, size), got "
        f"{type(value).__name__}; pass one of policyrisk's, such as Tabular(n), or a function"
    )
