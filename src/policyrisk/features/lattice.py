"""Index vectors k with 0 ≤ k_i ≤ largest and Σ_i k_i ≤ total: exponents and frequencies.

They come in order of their total, so that k = 0 is the first, and within a total with the earlier
coordinates' larger values first. With k the set holds k − e_i for every k_i > 0, its parent along i,
so a product over coordinates needs one multiplication per k: the parent's product times one factor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints, readonly
from policyrisk.features.box import OnBox


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


class OnLattice(OnBox):
    """A feature for every vector of a lattice, each made from its parent's by the kernel ``_fill``."""

    _fill: ClassVar[Callable[..., Any]]

    _bounds: tuple[int, int]  # of each k_i, and of their sum

    @cached_property
    def _vectors(self) -> Ints:
        return lattice(self.box.dim, *self._bounds)

    @cached_property
    def _parents(self) -> tuple[Ints, Ints]:
        return parents(self._vectors)

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self._vectors)

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """φ(states), of shape (n, size)."""
        u = self.box.scale(states)
        phi = np.empty((len(u), self.size))
        self._fill(u, *self._parents, phi)
        return phi
