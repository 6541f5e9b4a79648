"""Several feature maps side by side: φ = (φ_1, …, φ_m)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Ints, Matrix, as_dense, as_list, as_states
from policyrisk.errors import InvalidInputError
from policyrisk.features.function import as_features
from policyrisk.features.protocol import Described, Features, active_of, is_binary, matrix_of, outside

# Up to this share of columns of dense maps, rows are sparse all the same.
_DENSE_SHARE = 1 / 8


class Joint(Described):
    """φ(x) = (φ_1(x), …, φ_m(x)): the features of several maps, one block of columns for each.

    A value that is linear in these features is a sum over the maps, Σ_i φ_i(x)ᵀ w_i, with w_i the part of
    the weights at ``blocks[i]``. The maps look at one and the same states, each at coordinates of its own
    by its ``dims``. A map may be a function, with its size: ``FunctionFeatures(function, size=3)``.

    Where all maps are binary (they have ``active``), so is this one.

    >>> from policyrisk.features import Polynomial, Tabular
    >>> phi = Joint([Tabular(2, dims=[0]), Polynomial(1, low=[0], high=[10], dims=[1])])
    >>> phi([[1, 5], [0, 10]])
    array([[0. , 1. , 1. , 0.5],
           [1. , 0. , 1. , 1. ]])
    >>> phi.size, phi.blocks
    (4, (slice(0, 2, None), slice(2, 4, None)))
    >>> Joint([Tabular(2, dims=[0]), Tabular(3, dims=[1])]).active([[1, 2]])
    array([[1, 4]])
    """

    def __new__(cls, maps: Sequence[Any] = ()) -> Joint:
        """A map with ``active`` where all of them have it: that is how a binary one is known."""
        given = as_list(maps, "maps", "feature maps")
        binary = cls is Joint and len(given) > 0 and all(is_binary(each) for each in given)
        return super().__new__(BinaryJoint if binary else cls)

    def __init__(self, maps: Sequence[Any]) -> None:
        self.maps: tuple[Features, ...] = tuple(map(as_features, as_list(maps, "maps", "feature maps")))
        if not self.maps:
            raise InvalidInputError("maps must be at least one feature map, got none; pass a list of them")
        self.size = sum(each.size for each in self.maps)  # raises where a function's is not known

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """The columns of each map, in their order."""
        ends = np.cumsum([each.size for each in self.maps]).tolist()
        return tuple(slice(end - each.size, end) for each, end in zip(self.maps, ends, strict=True))

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The coordinates that the maps look at; None, which is all, where one of them does not say."""
        found: set[int] = set()
        for each in self.maps:
            dims = getattr(each, "dims", None) or getattr(getattr(each, "box", None), "dims", None)
            if dims is None:
                return None
            found |= set(dims)
        return tuple(sorted(found))

    def __call__(self, states: npt.ArrayLike) -> Matrix:
        """φ(states), of shape (n, size): dense, or CSR where no more than an eighth of it is."""
        array = as_states(states)
        parts = [matrix_of(each, array) for each in self.maps]
        filled = sum(part.shape[1] for part in parts if isinstance(part, np.ndarray))
        if filled <= _DENSE_SHARE * self.size:
            return sp.csr_array(sp.hstack([sp.csr_array(part) for part in parts], format="csr"))
        return np.hstack([as_dense(part) for part in parts])

    def outside(self, states: npt.ArrayLike) -> Bools:
        """Which states lie outside the box of one of the maps, of shape (n,)."""
        return outside(self.maps, as_states(states))

    def spec(self) -> dict[str, Any]:
        """This map in plain values: those of its maps."""
        maps: tuple[Any, ...] = self.maps
        for each in maps:
            if not hasattr(each, "spec"):
                raise InvalidInputError(
                    f"maps must have a spec() to be described, got {type(each).__name__}; "
                    "give your class one and register it"
                )
        return {"kind": "Joint", "maps": [each.spec() for each in maps]}

    # Not by spec(), which a function does not have.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Joint) and self.maps == other.maps

    def __hash__(self) -> int:
        return hash(self.maps)

    def __repr__(self) -> str:
        return f"Joint([{', '.join(map(repr, self.maps))}])"


class BinaryJoint(Joint):
    """Binary maps side by side; ``Joint(maps)`` makes it."""

    def active(self, states: npt.ArrayLike) -> Ints:
        """The indices of the features that are 1, of shape (n, ones)."""
        array = as_states(states)
        parts = [
            active_of(each, array) + block.start
            for each, block in zip(self.maps, self.blocks, strict=True)
            if is_binary(each)
        ]
        return np.concatenate(parts, axis=1)
