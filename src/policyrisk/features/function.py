"""A user's own function as a feature map.

Files hold no code. A function that can be imported is saved by its name, ``module:name``, and imported again
when its features are asked for, not before. What it gave for a few states is saved with it: where it gives
something else by then, that is an error. Functions of Python's own modules are never taken from a file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Matrix, as_count, as_states, describe, readonly
from policyrisk._core.imports import is_name, named_object
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.protocol import Features

__all__ = ["FunctionFeatures", "as_features"]

_PROBED = 4  # states whose features are saved, as one number each
_SAME = 1e-6  # relative to the features' size: kernels of BLAS round differently from machine to machine


class UnknownSizeError(InvalidInputError, AttributeError):
    """The size of a function's features was asked for before its first call.

    Also an AttributeError: that is what ``hasattr`` and ``isinstance`` with a protocol understand.
    """


class FunctionFeatures:
    """φ(x) = function(x), checked: states (n, dim) go in and finite numbers (n, size) come out.

    ``size=None`` is found at the first call, and asking for it earlier is an error. The function gets a
    read-only array and may give a dense array or a SciPy sparse one. It must be a pure function of
    each row. Two of these are equal when they have the same function.

    ``name`` is that by which the function can be imported, ``module:name``; by default its own, where it is
    found under it. With a name it can be saved, and a file with it is read again wherever that module is.

    >>> phi = FunctionFeatures(lambda x: np.hstack([np.ones_like(x), x**2]))
    >>> phi([1, 3])
    array([[1., 1.],
           [1., 9.]])
    >>> phi.size
    2
    >>> FunctionFeatures.named("numpy:sin").spec()
    {'kind': 'FunctionFeatures', 'name': 'numpy:sin', 'size': None, 'probe': None}
    """

    def __init__(
        self, function: Callable[[Floats], Any], size: int | None = None, name: str | None = None
    ) -> None:
        if not callable(function):
            raise InvalidInputError(
                f"function must take states (n, dim) to features (n, size), got {function!r}; pass a function"
            )
        if name is not None and not is_name(name):
            raise InvalidInputError(
                f"name must be module:name, by which the function can be imported, got {name!r}; pass for "
                "example 'my_features:edges'"
            )
        self._function: Callable[[Floats], Any] | None = function
        self._size = None if size is None else as_count(size, "size", 1)
        self._given = name
        self._probe: Mapping[str, Any] | None = None  # states, and a number for the features of each

    @classmethod
    def named(cls, name: str) -> FunctionFeatures:
        """The function ``module:name``; a feature map of that name will do as well."""
        return cls(named_object(name), name=name)

    @classmethod
    def of_spec(cls, name: str, size: int | None, probe: Mapping[str, Any] | None) -> FunctionFeatures:
        """One that was saved; nothing is imported yet."""
        module = name.partition(":")[0].partition(".")[0]
        if not is_name(name) or module in sys.stdlib_module_names or module == "__main__":
            raise InvalidInputError(
                f"spec must name a function of a module of yours, got {name!r}; the file is no estimate of "
                "this library's, or was changed"
            )
        made = cls(_unread, size, name)
        made._function, made._probe = None, probe
        return made

    @property
    def function(self) -> Callable[[Floats], Any]:
        """The function; that of a file is imported now."""
        if self._function is None:
            assert self.name is not None
            try:
                found = named_object(self.name)
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"the features' function {self.name} must be there to ask for estimates at states, got "
                    f"none ({error}); go to the folder that has the module, or install it"
                ) from error
            self._check_same(FunctionFeatures(found, self._size))
            self._function = found
        return self._function

    @cached_property
    def name(self) -> str | None:
        """``module:name`` by which the function can be imported; None where there is none."""
        if self._given is not None:
            return self._given
        module, name = (getattr(self._function, of, None) for of in ("__module__", "__qualname__"))
        found: Any = sys.modules.get(module or "")
        if module == "__main__" or not is_name(f"{module}:{name}"):
            return None
        for part in str(name).split("."):
            found = getattr(found, part, None)
        return f"{module}:{name}" if found is self._function else None

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
        phi = self._checked(self.function(readonly(array)), len(array))
        self._size = phi.shape[1]
        if self._probe is None and len(array):
            self._probe = {"states": array[:_PROBED].tolist(), "values": _digest(phi[:_PROBED]).tolist()}
        return phi

    def _check_same(self, now: FunctionFeatures) -> None:
        """Raise where the function gives others than those that were saved."""
        if self._probe is None:
            return
        before, value = np.array(self._probe["values"], dtype=np.float64), _digest(now(self._probe["states"]))
        if not np.allclose(value, before, rtol=_SAME, atol=_SAME * np.abs(before).max(initial=0.0)):
            raise MismatchError(
                f"the features' function {self.name} must be the one that the estimate was made with, got "
                f"one that gives something else at {self._probe['states'][0]}; restore it, or evaluate again"
            )

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
        return f"the feature function {self._short}"

    @property
    def _short(self) -> str:
        return self._given or str(getattr(self._function, "__name__", repr(self._function)))

    def outside(self, states: npt.ArrayLike) -> Bools:
        """No state is outside: there is no box."""
        return np.zeros(len(as_states(states)), dtype=np.bool_)

    def spec(self) -> dict[str, Any]:
        """Its name, size and what it gives for a few states; an error where it has no name."""
        if self.name is None:
            raise InvalidInputError(
                f"{self._name} cannot be described in plain values, so it cannot be saved; put it into a "
                "module, where it can be imported by name, or write a class with size, a call and spec(), "
                "and register it, or save the weights only"
            )
        return {"kind": "FunctionFeatures", "name": self.name, "size": self._size, "probe": self._probe}

    @property
    def _key(self) -> Any:
        return self.name or self._function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionFeatures) and bool(self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"FunctionFeatures({self._short}, size={self._size})"


def _digest(phi: Matrix) -> Floats:
    """A number for each row."""
    found: Floats = phi @ np.cos(np.arange(phi.shape[1]))
    return found


def _unread(states: Floats) -> Any:
    """In the place of a function that has not been imported yet."""
    raise NotImplementedError


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
