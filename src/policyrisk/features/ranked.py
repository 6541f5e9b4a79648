"""Features of the coordinates' ranks: where a state stands among those that were visited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, Matrix, as_floats, as_list, as_states, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import as_dims, one_state
from policyrisk.features.protocol import BinaryFeatures, Described, Features

KNOTS = 64  # quantiles of a coordinate, less one


class Ranked(Described):
    """φ(u(x)), u_i(x) ∈ [0, 1] being about the share of visited states whose coordinate i is at most x_i.

    Equal parts of a skewed coordinate hold very unequal parts of the data; equal parts of its rank hold the
    same. u_i goes through the points (knots_i[j], j/m), j = 0, …, m, along straight lines, and stays at 0
    and 1 beyond the first and the last (``outside`` tells which states lie there). ``inner`` is a map of
    the box [0, 1]ᵈ.

    >>> from policyrisk.features import TileCoding
    >>> phi = Ranked(TileCoding(low=[0], high=[1], bins=2), knots=[[0, 1, 100]])
    >>> phi.ranks([0.5, 1, 100]).ravel(), phi.active([0.5, 1, 100]).ravel()
    (array([0.25, 0.5 , 1.  ]), array([0, 1, 1]))
    """

    def __new__(cls, inner: Any = None, knots: Any = None) -> Ranked:
        """A map with ``active`` where the inner one has it: that is how a binary one is known."""
        return super().__new__(BinaryRanked if cls is Ranked and hasattr(inner, "active") else cls)

    def __init__(self, inner: Features, knots: Sequence[npt.ArrayLike]) -> None:
        self.inner = inner
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
        from policyrisk.features.registry import from_spec

        return cls(from_spec(inner), knots)

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The coordinates that the inner map looks at, None for all."""
        inner: Any = self.inner
        found: tuple[int, ...] | None = getattr(inner, "dims", None) or getattr(inner, "box", inner).dims
        return found

    @property
    def size(self) -> int:
        """The number of features."""
        return self.inner.size

    def ranks(self, states: npt.ArrayLike) -> Floats:
        """u(states), of shape (n, dim)."""
        array = self._checked(states)
        ranks = np.zeros(array.shape)
        for i, knots in enumerate(self.knots):
            if knots.size > 1:
                ranks[:, i] = np.interp(array[:, i], knots, np.linspace(0.0, 1.0, knots.size))
        return ranks

    def __call__(self, states: npt.ArrayLike) -> Matrix:
        """φ(u(states)), of shape (n, size)."""
        return self.inner(self.ranks(states))

    def outside(self, states: npt.ArrayLike) -> Bools:
        """Which states lie beyond the knots, of shape (n,)."""
        array = self._checked(states)
        ends = [(knots[0], knots[-1]) if knots.size > 1 else (-np.inf, np.inf) for knots in self.knots]
        low, high = np.array(ends).T
        return np.asarray(np.any((array < low) | (array > high), axis=1))

    def spec(self) -> dict[str, Any]:
        """This map in plain values."""
        inner: Any = self.inner
        return {"kind": "Ranked", "inner": inner.spec(), "knots": [each.tolist() for each in self.knots]}

    def _checked(self, states: npt.ArrayLike) -> Floats:
        array = as_states(states)
        if array.shape[1] != len(self.knots):
            raise InvalidInputError(
                f"states must have {len(self.knots)} coordinates, as many as the knots are of, got "
                f"{array.shape[1]}; {one_state(array.shape[1])}pass whole states"
            )
        return array


class BinaryRanked(Ranked):
    """A binary map of ranks; ``Ranked(inner, knots)`` makes it."""

    inner: BinaryFeatures

    def active(self, states: npt.ArrayLike) -> Ints:
        """The indices of the features that are 1, of shape (n, ones)."""
        return self.inner.active(self.ranks(states))
