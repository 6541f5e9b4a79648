"""Maps made of maps: several side by side (Joint), and one of the coordinates' ranks (Ranked)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    Matrix,
    as_dense,
    as_floats,
    as_list,
    as_states,
    readonly,
)
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import Box, as_dims
from policyrisk.features.function import as_features
from policyrisk.features.protocol import (
    FeatureMap,
    Features,
    active_of,
    from_spec,
    is_binary,
    matrix_of,
    outside,
    register,
)

KNOTS = 64  # quantiles of a coordinate, less one

# Up to this share of columns of dense maps, rows are sparse all the same.
_DENSE_SHARE = 1 / 8


class Joint(FeatureMap):
    """φ(x) = (φ_1(x), …, φ_m(x)): the features of several maps, one block of columns for each.

    A value that is linear in these features is a sum over the maps, Σ_i φ_i(x)ᵀ w_i, with w_i the part of
    the weights at ``blocks[i]``. Where all maps are binary (they have ``active``), so is this one.

    Parameters
    ----------
    maps
        The maps, all of the same states, each at coordinates of its own by its ``dims``. One may be a
        function, with its size: ``FunctionFeatures(function, size=3)``.

    Examples
    --------
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

    def __init__(self, maps: Sequence[Any]) -> None:
        self.maps: tuple[Features, ...] = tuple(map(as_features, as_list(maps, "maps", "feature maps")))
        if not self.maps:
            raise InvalidInputError("maps must be at least one feature map, got none; pass a list of them")
        self.size = sum(each.size for each in self.maps)  # raises where a function's is not known
        if all(map(is_binary, self.maps)):
            self.active = self._active  # a binary map is known by its ``active``

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
            if (dims := getattr(each, "dims", None)) is None:
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

    def _active(self, states: npt.ArrayLike) -> Ints:
        """The indices of the features that are 1, of shape (n, ones)."""
        array = as_states(states)
        parts = [
            active_of(each, array) + block.start
            for each, block in zip(self.maps, self.blocks, strict=True)
            if is_binary(each)
        ]
        return np.concatenate(parts, axis=1)

    @classmethod
    def of_spec(cls, maps: Sequence[Mapping[str, Any]]) -> Joint:
        """The way back from :meth:`spec`."""
        return cls([from_spec(each) for each in maps])

    # Not by spec(), which a function does not have.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Joint) and self.maps == other.maps

    def __hash__(self) -> int:
        return hash(self.maps)

    def __repr__(self) -> str:
        return f"Joint([{', '.join(map(repr, self.maps))}])"


class Ranked(FeatureMap):
    """φ(u(x)), u_i(x) ∈ [0, 1] being about the share of visited states whose coordinate i is at most x_i.

    Equal parts of a skewed coordinate hold very unequal parts of the data; equal parts of its rank hold the
    same.

    Parameters
    ----------
    inner
        A map of the box [0, 1]ᵈ.
    knots
        u_i goes through the points (knots_i[j], j/m), j = 0, …, m, along straight lines, and stays at 0 and 1
        beyond the first and the last (``outside`` tells which states lie there).

    Examples
    --------
    >>> from policyrisk.features import TileCoding
    >>> phi = Ranked(TileCoding(low=[0], high=[1], bins=2), knots=[[0, 1, 100]])
    >>> phi.ranks([0.5, 1, 100]).ravel(), phi.active([0.5, 1, 100]).ravel()
    (array([0.25, 0.5 , 1.  ]), array([0, 1, 1]))
    """

    def __init__(self, inner: Features, knots: Sequence[npt.ArrayLike]) -> None:
        self.inner = inner
        if is_binary(inner):
            self.active = self._active  # a binary map is known by its ``active``
        self.knots = tuple(
            readonly(as_floats(each, "knots", (None,)).copy())
            for each in as_list(knots, "knots", "rising numbers for each coordinate")
        )
        if not self.knots or any(each.size == 0 or (np.diff(each) <= 0).any() for each in self.knots):
            raise InvalidInputError(
                "knots must be increasing numbers for each coordinate, got some that are not; pass a "
                "coordinate's distinct quantiles, as Ranked.of(inner, states) does"
            )

    @classmethod
    def of(cls, inner: Features, states: npt.ArrayLike, dims: Sequence[int] | None = None) -> Ranked:
        """The map whose knots are the distinct ones of 65 quantiles of each coordinate of states (n, dim).

        ``dims`` are the coordinates that the inner map looks at; all others have the rank 0 everywhere.
        """
        array = as_states(states)
        if not array.size:
            raise InvalidInputError(f"states must be at least one, got shape {array.shape}; pass some")
        shares = np.linspace(0.0, 1.0, KNOTS + 1)
        quantiles = np.quantile(array, shares, axis=0, method="inverted_cdf")
        used = as_dims(dims, None) or range(array.shape[1])
        return cls(inner, [np.unique(q) if d in used else q[:1] for d, q in enumerate(quantiles.T)])

    @classmethod
    def of_spec(cls, inner: Mapping[str, Any], knots: Sequence[Sequence[float]]) -> Ranked:
        """The way back from :meth:`spec`."""
        return cls(from_spec(inner), knots)

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The coordinates that the inner map looks at, None for all."""
        return getattr(self.inner, "dims", None)

    @property
    def size(self) -> int:
        """The number of features."""
        return self.inner.size

    def __repr__(self) -> str:
        return f"Ranked({self.inner!r})"

    def ranks(self, states: npt.ArrayLike) -> Floats:
        """u(states), of shape (n, dim)."""
        array = Box.unbounded(len(self.knots), None).coordinates(states)
        ranks = np.zeros(array.shape)
        for i, knots in enumerate(self.knots):
            if knots.size > 1:
                ranks[:, i] = np.interp(array[:, i], knots, np.linspace(0.0, 1.0, knots.size))
        return ranks

    def __call__(self, states: npt.ArrayLike) -> Matrix:
        """φ(u(states)), of shape (n, size)."""
        return self.inner(self.ranks(states))

    def _active(self, states: npt.ArrayLike) -> Ints:
        """The indices of the features that are 1, of shape (n, ones)."""
        active: Ints = self.inner.active(self.ranks(states))  # type: ignore[attr-defined]
        return active

    def outside(self, states: npt.ArrayLike) -> Bools:
        """Which states lie beyond the knots, of shape (n,)."""
        array = Box.unbounded(len(self.knots), None).coordinates(states)
        ends = [(knots[0], knots[-1]) if knots.size > 1 else (-np.inf, np.inf) for knots in self.knots]
        low, high = np.array(ends).T
        return np.asarray(np.any((array < low) | (array > high), axis=1))


register("Joint", Joint)
register("Ranked", Ranked)
