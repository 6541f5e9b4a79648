"""One-hot features of an integer state: the table lookup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Ints, as_count, as_states, name_some
from policyrisk.errors import InvalidInputError
from policyrisk.features import _kernels
from policyrisk.features.box import as_dims, columns, unchecked_states


@dataclass(frozen=True)
class Tabular:
    """φ_i(x) = 1 where x = i and 0 elsewhere, for states 0, …, n − 1.

    States are whole numbers, stored in one coordinate (``dims`` chooses which). An index outside
    0, …, n − 1 is an error.

    >>> Tabular(3)([2, 0]).toarray()
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """

    size: int
    dims: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_count(self.size, "size", 1))
        object.__setattr__(self, "dims", as_dims(self.dims, 1))

    def active(self, states: npt.ArrayLike) -> Ints:
        """The index of each state, of shape (n, 1)."""
        array = unchecked_states(states)
        (column,) = columns(array.shape[1], self.dims, 1)
        index = np.empty((len(array), 1), dtype=np.int64)
        not_finite, not_index = _kernels.table_indices(array, column, self.size, index)
        if not_finite >= 0:
            as_states(states)  # raises, and says where they are not finite
        if not_index >= 0:
            values = array[:, column]
            wrong = (values != np.floor(values)) | (values < 0) | (values >= self.size)
            raise InvalidInputError(
                f"states must be whole numbers from 0 to {self.size - 1} for Tabular({self.size}), "
                f"got {name_some(values[wrong], 3)}; number the states from 0 or enlarge the table"
            )
        return index

    def __call__(self, states: npt.ArrayLike) -> sp.csr_array[Any, tuple[int, int]]:
        """φ(states), of shape (n, size), CSR."""
        return ones_at(self.active(states), self.size)

    def outside(self, states: npt.ArrayLike) -> Bools:
        """No state is outside: those that would be are an error."""
        return np.zeros(len(self.active(states)), dtype=np.bool_)

    def spec(self) -> dict[str, Any]:
        """This map in plain values."""
        return {"kind": "Tabular", "size": self.size, "dims": None if self.dims is None else list(self.dims)}


def ones_at(active: Ints, size: int) -> sp.csr_array[Any, tuple[int, int]]:
    """The CSR matrix (n, size) with ones at the indices ``active`` (n, ones), which increase in every row.

    >>> ones_at(np.array([[0, 2], [1, 2]]), 3).toarray()
    array([[1., 0., 1.],
           [0., 1., 1.]])
    """
    n, ones = active.shape
    starts = np.arange(n + 1, dtype=np.int64) * ones
    return sp.csr_array((np.ones(active.size), active.ravel(), starts), shape=(n, size))
