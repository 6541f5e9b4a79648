"""Monomials and cosines of coordinates scaled to the box: a feature for every vector of a lattice.

The vectors are the whole k with 0 ≤ k_i ≤ largest and Σ_i k_i ≤ total: exponents or frequencies. They come in
order of their total, so that k = 0, the constant 1, is the first, and within a total with the earlier
coordinates' larger values first. With k the lattice holds k − e_i for every k_i > 0, its parent along i, so a
product over coordinates needs one multiplication per k: the parent's product times one factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Floats, Ints, as_count, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import Box, OnBox
from policyrisk.features.protocol import register

MOST = 1_000_000  # features


def lattice(dim: int, largest: int, total: int) -> Ints:
    """All the vectors k, read-only, of shape (size, dim).

    >>> lattice(2, largest=2, total=2).tolist()
    [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]
    """
    k = np.zeros((1, 0), dtype=np.int64)
    steps = np.arange(min(largest, total) + 1)
    for _ in range(dim):  # a coordinate at a time, so that nothing beyond the total is ever made
        k = np.column_stack([np.repeat(k, len(steps), axis=0), np.tile(steps, len(k))])
        k = k[k.sum(axis=1) <= total]
    # lexsort's last key is the first in rank.
    order = np.lexsort([*(-k[:, i] for i in reversed(range(dim))), k.sum(axis=1)])
    return readonly(np.ascontiguousarray(k[order]))


def lattice_size(dim: int, largest: int, total: int) -> int:
    """How many vectors k there are, counted without making them, by inclusion and exclusion.

    Of the C(s + dim, dim) vectors with Σ_i k_i ≤ s those with some k_i > largest are taken off.

    >>> [lattice_size(dim, largest=20, total=20) for dim in (1, 2, 12)], lattice_size(2, largest=1, total=1)
    ([21, 231, 225792840], 3)
    """
    if total >= largest * dim:
        return int((1 + largest) ** dim)
    left = ((j, total - j * (largest + 1)) for j in range(min(dim, total // (largest + 1)) + 1))
    return int(sum((-1) ** j * math.comb(dim, j) * math.comb(s + dim, dim) for j, s in left))


def parents(k: Ints) -> tuple[Ints, Ints]:
    """For every vector of a lattice the number of its parent and the coordinate i along which, each (size,).

    The coordinate is the last with k_i > 0. The first vector, 0, has no parent; its entries are 0.

    >>> parent, coordinate = parents(lattice(2, largest=2, total=2))
    >>> parent.tolist(), coordinate.tolist()
    ([0, 0, 0, 1, 1, 2], [0, 0, 1, 0, 1, 1])
    """
    number = {tuple(row): j for j, row in enumerate(k.tolist())}
    parent, coordinate = np.zeros(len(k), dtype=np.int64), np.zeros(len(k), dtype=np.int64)
    for j, row in enumerate(k[1:].tolist(), start=1):
        i = max(i for i, value in enumerate(row) if value > 0)
        row[i] -= 1
        parent[j], coordinate[j] = number[tuple(row)], i
    return readonly(parent), readonly(coordinate)


@njit(cache=True, nogil=True, error_model="numpy")
def monomials(u: Floats, parent: Ints, coordinate: Ints, out: Floats) -> None:
    """φ_k = φ_{parent of k} · u_i, i = coordinate[k], from φ_0 = 1, into out (n, size)."""
    for row in range(len(u)):
        out[row, 0] = 1.0
        for k in range(1, len(parent)):
            out[row, k] = out[row, parent[k]] * u[row, coordinate[k]]


@njit(cache=True, nogil=True, error_model="numpy")
def cosines(u: Floats, parent: Ints, coordinate: Ints, out: Floats) -> None:
    """cos(a + b) and sin(a + b) with a = π parent·u and b = π u_i; the cosines into out (n, size)."""
    sines = np.zeros(len(parent))
    cos_b, sin_b = np.empty(u.shape[1]), np.empty(u.shape[1])
    for row in range(len(u)):
        for i in range(u.shape[1]):
            cos_b[i], sin_b[i] = math.cos(math.pi * u[row, i]), math.sin(math.pi * u[row, i])
        out[row, 0] = 1.0
        for k in range(1, len(parent)):
            cos_a, sin_a, i = out[row, parent[k]], sines[parent[k]], coordinate[k]
            out[row, k] = cos_a * cos_b[i] - sin_a * sin_b[i]
            sines[k] = sin_a * cos_b[i] + cos_a * sin_b[i]


class OnLattice(OnBox):
    """A feature for every vector of a lattice, each made from its parent's by the kernel ``_fill``."""

    _fill: ClassVar[Callable[..., Any]]
    _largest: ClassVar[str]  # what ``largest`` is called

    def __init__(self, box: Box, largest: int, total: int) -> None:
        self.box = box
        self._bounds = largest, total
        self.size = lattice_size(box.dim, largest, total)
        if self.size > MOST:
            raise InvalidInputError(
                f"{self._largest} must give at most {MOST} features, got {self._largest}={largest} of "
                f"{box.dim} coordinates; choose a lower {self._largest}, or fewer coordinates with dims="
            )

    @cached_property
    def _vectors(self) -> Ints:
        return lattice(self.box.dim, *self._bounds)

    @cached_property
    def _parents(self) -> tuple[Ints, Ints]:
        return parents(self._vectors)

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """φ(states), of shape (n, size)."""
        u = self.box.scale(states)
        phi = np.empty((len(u), self.size))
        self._fill(u, *self._parents, phi)
        return phi


class Polynomial(OnLattice):
    """φ_k(x) = Π_i u_i^{k_i} with Σ_i k_i ≤ degree, where u = (x − low) / (high − low).

    The exponents come in order of total degree, so that the first feature is the constant 1.

    Parameters
    ----------
    degree
        The largest total degree.
    low, high
        The box, (dim,). States outside are moved to its edge (``outside`` tells which).
    dims
        The coordinates it looks at; all where None.

    Examples
    --------
    >>> Polynomial(degree=2, low=[0], high=[10])([0, 5, 10])
    array([[1.  , 0.  , 0.  ],
           [1.  , 0.5 , 0.25],
           [1.  , 1.  , 1.  ]])
    >>> Polynomial(degree=2, low=[0, 0], high=[1, 1]).exponents.tolist()
    [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]
    """

    _fill = staticmethod(monomials)
    _largest = "degree"
    spelled = "poly:2"
    describes = "monomials up to a degree"

    def __init__(
        self, degree: int, low: npt.ArrayLike, high: npt.ArrayLike, dims: npt.ArrayLike | None = None
    ) -> None:
        self.degree = as_count(degree, "degree")
        super().__init__(Box.of(low, high, dims), self.degree, self.degree)

    @property
    def exponents(self) -> Ints:
        """The exponents k, of shape (size, dim)."""
        return self._vectors


class Fourier(OnLattice):
    """φ_k(x) = cos(π k·u), where u = (x − low) / (high − low), for whole k with 0 ≤ k_i ≤ order.

    It is the cosine basis of Konidaris, Osentoski and Thomas (2011). The features come in order of Σ_i k_i,
    so that the first is the constant 1.

    Parameters
    ----------
    order
        The largest k_i.
    low, high
        The box, (dim,). States outside are moved to its edge (``outside`` tells which).
    dims
        The coordinates it looks at; all where None.
    total
        A bound on Σ_i k_i as well: without it there are (order + 1)^dim features, too many in high dimension.

    Examples
    --------
    >>> Fourier(order=2, low=[0], high=[10])([0, 5, 10]).round(12) + 0.0
    array([[ 1.,  1.,  1.],
           [ 1.,  0., -1.],
           [ 1., -1.,  1.]])
    >>> low, high = [0, 0, 0, 0], [1, 1, 1, 1]
    >>> Fourier(order=3, low=low, high=high).size, Fourier(order=3, low=low, high=high, total=3).size
    (256, 35)
    """

    _fill = staticmethod(cosines)
    _largest = "order"
    spelled = "fourier:3,total=4"
    describes = "cosines up to an order; total= is the most in sum over coordinates"

    def __init__(
        self,
        order: int,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        dims: npt.ArrayLike | None = None,
        total: int | None = None,
    ) -> None:
        self.order = as_count(order, "order")
        self.total = None if total is None else as_count(total, "total")
        box = Box.of(low, high, dims)
        super().__init__(box, self.order, self.order * box.dim if self.total is None else self.total)

    @property
    def frequencies(self) -> Ints:
        """The frequencies k, of shape (size, dim)."""
        return self._vectors


register("Polynomial", Polynomial)
register("Fourier", Fourier)
