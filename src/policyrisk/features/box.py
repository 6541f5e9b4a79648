"""The box [low, high] that a feature map is made for, and the checks of what it is made from.

The rule for states outside the declared box: they are moved to the nearest point of the box before φ is
computed, and ``outside(states)`` tells which they were, so that whoever uses the features can count them.
Only :class:`Tabular` refuses them: an index has no nearest neighbour. States that are not finite are an
error everywhere, in the coordinates that ``dims`` leaves out as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, as_array, as_count, as_floats, as_states, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features.protocol import FeatureMap

_WIDEST = 1e298  # high - low, so that it is still a finite number when multiplied by a count


def kernel_states(states: npt.ArrayLike) -> Floats:
    """States (n, dim) in C order and read-only, so that a kernel is compiled for one kind of array."""
    return readonly(np.ascontiguousarray(as_states(states)))


def one_state(dim: int) -> str:
    """What to say of states of dimension 1 where they should have more: was it one state?"""
    return "pass one state as a row, [[...]], or " if dim == 1 else ""


def columns(dim: int, dims: tuple[int, ...] | None, count: int) -> Ints:
    """Which ``count`` columns of states of dimension ``dim`` to look at, checked."""
    if dims is None:
        if dim != count:
            raise InvalidInputError(
                f"states must have {count} {'coordinate' if count == 1 else 'coordinates'}, as many as the "
                f"features were made for, got {dim}; {one_state(dim)}choose some with dims="
            )
        return np.arange(count)
    if max(dims) >= dim:
        raise InvalidInputError(
            f"states must have a coordinate {max(dims)} for dims={list(dims)}, got dimension {dim}; "
            "pass whole states or other dims"
        )
    return np.array(dims, dtype=np.int64)


def as_dims(dims: object, count: int | None) -> tuple[int, ...] | None:
    """Checked ``dims``: distinct non-negative ints, ``count`` of them where that is known."""
    if dims is None:
        return None
    array = np.atleast_1d(as_array(dims, "dims", "a list of coordinate indices"))
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidInputError(f"dims must be a list of coordinate indices, got {dims!r}; pass ints")
    if (array < 0).any() or len(set(array.tolist())) != array.size:
        raise InvalidInputError(
            f"dims must be distinct and not negative, got {array.tolist()}; count coordinates from 0"
        )
    if count is not None and array.size != count:
        raise InvalidInputError(
            f"dims must name {count} {'coordinate' if count == 1 else 'coordinates'}, got {array.tolist()}; "
            "name as many as the features look at"
        )
    return tuple(array.tolist())


def as_counts(value: Any, name: str, count: int) -> tuple[int, ...]:
    """``count`` whole numbers of at least 1, from as many or from one for all."""
    array = as_array(value, name, f"one whole number or {count} of them")
    given = [value] * count if array.ndim == 0 else list(value)
    if len(given) != count:
        raise InvalidInputError(
            f"{name} must be one whole number or {count} of them, one per coordinate, got {len(given)}; "
            "pass as many as low and high have"
        )
    return tuple(as_count(number, name, 1) for number in given)


@dataclass(frozen=True)
class Box:
    """A box [low, high] over chosen coordinates, and the scaling u = (x − low) / (high − low).

    An unbounded box has low = −∞ and high = ∞: nothing is outside of it, and u = x.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    dims: tuple[int, ...] | None

    @classmethod
    def of(cls, low: object, high: object, dims: object) -> Box:
        """A box from a caller's values, checked."""
        ends = (np.atleast_1d(as_array(x, name, "numbers")) for x, name in ((low, "low"), (high, "high")))
        low_array = as_floats(next(ends), "low", (None,))
        high_array = as_floats(next(ends), "high", (low_array.size,))
        if low_array.size == 0 or not (low_array < high_array).all():
            raise InvalidInputError(
                f"low must be below high in every coordinate, got low={low_array.tolist()} and "
                f"high={high_array.tolist()}; widen the box"
            )
        with np.errstate(over="ignore"):
            span = high_array - low_array
        if span.max() > _WIDEST:
            raise InvalidInputError(
                f"high - low must be at most {_WIDEST:g}, got low={low_array.tolist()} and "
                f"high={high_array.tolist()}; narrow the box"
            )
        return cls(tuple(low_array.tolist()), tuple(high_array.tolist()), as_dims(dims, low_array.size))

    @classmethod
    def unbounded(cls, dim: int, dims: object) -> Box:
        """The whole space of dimension ``dim``."""
        return cls((-np.inf,) * dim, (np.inf,) * dim, as_dims(dims, dim))

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return len(self.low)

    @property
    def bounded(self) -> bool:
        """Whether there is a box at all."""
        return math.isfinite(self.low[0])

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Low and high as read-only arrays, each of shape (dim,)."""
        return readonly(np.array(self.low)), readonly(np.array(self.high))

    def columns(self, dim: int) -> Ints:
        """The box's coordinates as columns of states of dimension ``dim``."""
        return columns(dim, self.dims, self.dim)

    def coordinates(self, states: npt.ArrayLike) -> Floats:
        """The box's coordinates of the states, of shape (n, dim), unscaled."""
        array = as_states(states)
        chosen = self.columns(array.shape[1])
        return array if self.dims is None else array[:, chosen]

    def scale(self, states: npt.ArrayLike) -> Floats:
        """u of the states, of shape (n, dim), in C order.

        What lies outside is moved to the nearest point of the box.
        """
        array = np.ascontiguousarray(self.coordinates(states))
        if not self.bounded:
            return array
        low, high = self.bounds
        scaled: Floats = (array.clip(low, high) - low) / (high - low)
        return scaled

    def outside(self, states: npt.ArrayLike) -> Bools:
        """Which states lie outside the box, of shape (n,)."""
        array = as_states(states)
        found = np.zeros(len(array), dtype=np.bool_)
        for column, low, high in zip(self.columns(array.shape[1]), self.low, self.high, strict=True):
            found |= (array[:, column] < low) | (array[:, column] > high)
        return found


class OnBox(FeatureMap):
    """A map of states scaled to a box."""

    box: Box

    @property
    def low(self) -> tuple[float, ...] | None:
        """The box's lower ends; None where it is unbounded."""
        return self.box.low if self.box.bounded else None

    @property
    def high(self) -> tuple[float, ...] | None:
        """The box's upper ends; None where it is unbounded."""
        return self.box.high if self.box.bounded else None

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The coordinates looked at; None for all."""
        return self.box.dims

    def outside(self, states: npt.ArrayLike) -> Bools:
        """Which states lie outside the box, of shape (n,)."""
        return self.box.outside(states)
