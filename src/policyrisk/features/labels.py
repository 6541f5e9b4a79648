"""One-hot features of a label: a coordinate whose values are names, whatever numbers stand for them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, as_array, as_floats, as_number, as_states, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import as_dims, columns
from policyrisk.features.protocol import Described


class Labels(Described):
    """φ_i(x) = s where x is values[i] and 0 elsewhere; a last feature is s where x is none of the values.

    Unlike :class:`Tabular` it takes any numbers, and one that was not among the values when the map was made
    is no error: that state has the last feature, and is unvisited unless the data had such states.

    ``scale`` is s. It changes nothing but under LSTD's ``ridge`` ρ, which then pulls the table's weights
    towards 0 as if ρK/s² visits had been seen there (K the number of episodes). Beside a constant, which is
    hardly pulled if s is small, that is a shrinkage towards the overall mean where visits are few:

        Joint([Polynomial(0, low, high), Labels(values, scale=0.001)]) with ridge = 1e-6 n / K    (n visits)

    >>> Labels([-3, 1000037])([1000037, -3, 5]).toarray()
    array([[0., 1., 0.],
           [1., 0., 0.],
           [0., 0., 1.]])
    """

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

    def outside(self, states: npt.ArrayLike) -> Bools:
        """No state is outside: a label that is none of the values has a feature of its own."""
        return np.zeros(len(as_states(states)), dtype=np.bool_)

    def spec(self) -> dict[str, Any]:
        """This map in plain values."""
        dims = None if self.dims is None else list(self.dims)
        return {"kind": "Labels", "values": self.values.tolist(), "dims": dims, "scale": self.scale}
