"""Tables: one-hot features of a coordinate that is a whole number from 0 on, or a label."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    as_array,
    as_count,
    as_floats,
    as_number,
    as_states,
    name_some,
    readonly,
)
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import as_dims, columns
from policyrisk.features.protocol import FeatureMap, register

if TYPE_CHECKING:
    from policyrisk.features.spelling import Space

SHRUNK = 1e-3  # ε, the scale of a table that is shrunk as if by one visit
VALUES = 10_000  # of a coordinate that are known, so that there can be a table of them


class Tabular(FeatureMap):
    """φ_i(x) = 1 where x = i and 0 elsewhere, for states 0, …, n − 1.

    Parameters
    ----------
    size
        n. States are whole numbers; an index outside 0, …, n − 1 is an error.
    dims
        The one coordinate that holds the number.

    Examples
    --------
    >>> Tabular(3)([2, 0]).toarray()
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """

    spelled = "tabular[:30]"
    describes = "a table of whole-numbered states 0, …, 29, or of as many as the data have"
    sparse = True

    def __init__(self, size: int, dims: npt.ArrayLike | None = None) -> None:
        self.size = as_count(size, "size", 1)
        self.dims = as_dims(dims, 1)

    @classmethod
    def over(cls, space: Space, size: int | None = None) -> Tabular:
        """The table of the states' numbers."""
        (d, *more), sample, largest = space.chosen("tabular"), space.sample, space.largest
        if more:
            raise InvalidInputError(
                f"dims must name one coordinate, and one alone for tabular, got {len(more) + 1}; "
                "use labels for a table of each"
            )
        if size is None:
            if not sample.whole[d] or sample.low[d] < 0 or sample.reached[d] >= largest:
                rest = "" if sample.whole[d] else ", not all of them whole"
                raise InvalidInputError(
                    f"tabular must have states that are whole numbers from 0 to at most {largest - 1}, got "
                    f"{space.names[d]} from {sample.low[d]:g} to {sample.reached[d]:g}{rest}; "
                    "use tiles, as in tiles:20"
                )
            size = int(sample.reached[d]) + 1
        return cls(size, space.dims)

    @staticmethod
    def is_table(values: float, size: int | None) -> bool:
        """Whether every value along a coordinate has a feature of its own."""
        return True

    def active(self, states: npt.ArrayLike) -> Ints:
        """The index of each state, of shape (n, 1)."""
        array = as_states(states)
        values = array[:, columns(array.shape[1], self.dims, 1)]
        wrong = (values != np.floor(values)) | (values < 0) | (values >= self.size)
        if wrong.any():
            raise InvalidInputError(
                f"states must be whole numbers from 0 to {self.size - 1} for Tabular({self.size}), "
                f"got {name_some(values[wrong], 3)}; number the states from 0 or enlarge the table"
            )
        return values.astype(np.int64)

    def __call__(self, states: npt.ArrayLike) -> sp.csr_array[Any, tuple[int, int]]:
        """φ(states), of shape (n, size), CSR."""
        return ones_at(self.active(states), self.size)

    def outside(self, states: npt.ArrayLike) -> Bools:
        """No state is outside: those that would be are an error."""
        return np.zeros(len(self.active(states)), dtype=np.bool_)


class Labels(FeatureMap):
    """φ_i(x) = s where x is values[i] and 0 elsewhere; a last feature is s where x is none of the values.

    Unlike :class:`Tabular` it takes any numbers, and one that was not among the values when the map was made
    is no error: that state has the last feature, and is unvisited unless the data had such states.

    Parameters
    ----------
    values
        The numbers that have a feature of their own.
    dims
        The one coordinate it looks at.
    scale
        s. It changes nothing but under LSTD's ``ridge`` ρ, which then pulls the table's weights towards 0 as
        if ρK/s² visits had been seen there (K the number of episodes). Beside a constant, which is hardly
        pulled if s is small, that is a shrinkage towards the overall mean where visits are few: with
        Joint([Polynomial(0, low, high), Labels(values, scale=0.001)]), ridge = 1e-6 n / K is worth n visits.

    Examples
    --------
    >>> Labels([-3, 1000037])([1000037, -3, 5]).toarray()
    array([[0., 1., 0.],
           [1., 0., 0.],
           [0., 0., 1.]])
    """

    spelled = "labels,shrink=3.0"
    describes = "a table of the numbers seen; shrink=3: towards the mean, as if by 3 more visits"
    sparse = True
    is_table = Tabular.is_table

    def __init__(self, values: npt.ArrayLike, dims: npt.ArrayLike | None = None, scale: float = 1.0) -> None:
        # A copy, made read-only: the caller's own array stays as it is.
        self.values: Floats = readonly(
            np.array(as_floats(np.atleast_1d(as_array(values, "values", "numbers")), "values", (None,)))
        )
        if self.values.size == 0 or (np.diff(self.values) <= 0).any():
            raise InvalidInputError(
                f"values must be at least one number, in increasing order, got {self.values.tolist()[:10]}; "
                "pass numpy.unique of the column"
            )
        self.dims = as_dims(dims, 1)
        self.scale = as_number(scale, "scale", 0.0, open_low=True)

    @classmethod
    def over(cls, space: Space, shrink: float = 0.0) -> list[Labels]:
        """A table of each coordinate's values in the data."""
        scale = SHRUNK / math.sqrt(shrink) if shrink else 1.0
        found, sample = [], space.sample
        for d in space.chosen("labels"):
            if (values := sample.values[d]) is None:
                why = f"more than {VALUES} of them" if sample.whole[d] else "not all of them whole"
                raise InvalidInputError(
                    f"labels must be whole numbers or text, at most {VALUES} different ones, got "
                    f"{space.names[d]} from {sample.low[d]:g} to {sample.reached[d]:g}, {why}; use tiles, as "
                    "in tiles:20"
                )
            found.append(cls(values, None if len(space.names) == 1 else (d,), scale))
        return found

    @cached_property
    def size(self) -> int:
        """The number of values, and one more."""
        return self.values.size + 1

    def __call__(self, states: npt.ArrayLike) -> sp.csr_array[Any, tuple[int, int]]:
        """φ(states), of shape (n, size), CSR."""
        array = as_states(states)
        (column,) = columns(array.shape[1], self.dims, 1)
        x = array[:, column]
        place = np.minimum(np.searchsorted(self.values, x), self.values.size - 1)
        place[self.values[place] != x] = self.values.size
        ones = np.full(len(x), self.scale)
        return sp.csr_array((ones, place, np.arange(len(x) + 1)), shape=(len(x), self.size))


def ones_at(active: Ints, size: int) -> sp.csr_array[Any, tuple[int, int]]:
    """The CSR matrix (n, size) with ones at the indices ``active`` (n, ones), which increase in every row.

    >>> ones_at(np.array([[0, 2], [1, 2]]), 3).toarray()
    array([[1., 0., 1.],
           [0., 1., 1.]])
    """
    n, ones = active.shape
    starts = np.arange(n + 1, dtype=np.int64) * ones
    return sp.csr_array((np.ones(active.size), active.ravel(), starts), shape=(n, size))


register("Tabular", Tabular)
register("Labels", Labels)
