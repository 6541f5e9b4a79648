"""A user's own function as a feature map.

A file holds a function's name and its values at a few states, and no code. Pass the function again where you
load the file (``RiskFunction.load(path, features=...)``); a different function is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Matrix, as_array, as_count, as_states, describe, readonly
from policyrisk._core.imports import named_object
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.protocol import Features, first_fitting, given_features, name_of, not_given, register

__all__ = ["FunctionFeatures", "as_features"]

_PROBED = 4  # states whose features are saved, as one number each
_SAME = 1e-6  # relative to the features' size: kernels of BLAS round differently from machine to machine


class UnknownSizeError(InvalidInputError, AttributeError):
    """The size of a function's features was asked for before its first call.

    Also an AttributeError: that is what ``hasattr`` and ``isinstance`` with a protocol understand.
    """


class FunctionFeatures:
    """φ(x) = function(x), checked: states (n, dim) go in and finite numbers (n, size) come out.

    Parameters
    ----------
    function
        A pure function of each row. It gets a read-only array and may give a dense array or a SciPy sparse
        one. Two maps are equal when they have the same function.
    size
        The number of features; None is found at the first call, and asking for it earlier is an error.
    name
        The name in files and messages, by default its module and its own name. A file holds only this name
        and the values at a few states: pass the function again where you load it.

    Examples
    --------
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
        if name is not None and not (isinstance(name, str) and name.isprintable()):
            raise InvalidInputError(f"name must be text of one line, got {name!r}; pass for example 'edges'")
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
        """A saved map, with its function if that is on offer."""
        made = cls(_absent, size, name)
        made._function, made._probe = None, probe
        # Those of the same name first.
        functions = sorted(given_features(), key=lambda each: _called(each) != name)
        return first_fitting(
            (each for each in functions if callable(each) and not hasattr(each, "state_dict")),
            made._with,
            made,
        )

    @property
    def name(self) -> str:
        """The name in files and messages."""
        return name_of(self._function) if self._given is None else self._given

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
        if self._function is None:
            raise not_given(f"the function {self.name}")
        phi = self._checked(self._function(readonly(array)), len(array))
        self._size = phi.shape[1]
        if self._probe is None and len(array):
            self._probe = {"states": array[:_PROBED].tolist(), "values": _digest(phi[:_PROBED]).tolist()}
        return phi

    def _with(self, given: Any) -> FunctionFeatures:
        """These features with their function given again; one that gives something else is an error."""
        function = given._function if isinstance(given, FunctionFeatures) else given
        made = FunctionFeatures(_absent if function is None else function, self._size, self.name)
        if self._probe is not None:
            states, before = self._probe["states"], np.array(self._probe["values"], dtype=np.float64)
            try:
                value = _digest(made(states))
            except InvalidInputError as error:
                raise MismatchError(self._another(given, f"that fails at {states[0]} ({error})")) from error
            if not np.allclose(value, before, rtol=_SAME, atol=_SAME * np.abs(before).max(initial=0.0)):
                raise MismatchError(self._another(given, f"that gives something else at {states[0]}"))
        made._probe = self._probe
        return made

    def _another(self, given: Any, how: str) -> str:
        return (
            f"features must be the function that the estimate was made with, {self.name}, got "
            f"{_called(given)} {how}; pass that one, or evaluate again"
        )

    def _checked(self, value: Any, n: int) -> Matrix:
        sparse: bool = sp.issparse(value)
        try:
            # A copy of a sparse value, which is put in order; a dense one is left as it is.
            phi: Any = sp.csr_array(value, copy=True) if sparse else as_array(value, self._name, "numbers")
            if phi.dtype.kind not in "biuf":
                raise TypeError(f"entries of {phi.dtype}")
            phi = phi.astype(np.float64, copy=False)
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
        """Its name, its size and what it gives for a few states."""
        return {"kind": "FunctionFeatures", "name": self.name, "size": self._size, "probe": self._probe}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionFeatures):
            return False
        if self._function is None or other._function is None:  # from a file, which knows the name alone
            return self.name == other.name
        return bool(self._function == other._function)

    def __hash__(self) -> int:
        return hash(FunctionFeatures)  # one with a function and one without may be equal

    def __repr__(self) -> str:
        return f"FunctionFeatures({self._short}, size={self._size})"


def _digest(phi: Matrix) -> Floats:
    """A number for each row."""
    found: Floats = phi @ np.cos(np.arange(phi.shape[1]))
    return found


def _absent(states: Floats) -> Any:
    """A stand-in for a function that was not passed again."""
    raise InvalidInputError("features must be given again, got none; pass the function itself")


def _called(given: Any) -> str:
    return given.name if isinstance(given, FunctionFeatures) else name_of(given)


def as_features(value: Any) -> Features:
    """A feature map: ``value`` itself where it has the protocol, a function as FunctionFeatures.

    Parameters
    ----------
    value
        A feature map, or a function of states.

    Returns
    -------
    Features
        A map.

    Examples
    --------
    >>> from policyrisk.features import Tabular
    >>> as_features(Tabular(3))
    Tabular(size=3)
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


register("FunctionFeatures", FunctionFeatures)
