"""Tile coding: several grids over a box, each shifted by a part of a tile (Sutton and Barto 2018, 9.5.4).

Coordinate i of the box is cut into b_i tiles of equal length. A state lies

    t_i = (x_i − low_i) · b_i / (high_i − low_i)

tiles from the low corner, t_i moved into [0, b_i] where the state is outside of the box, and its tile
in tiling k = 0, …, K − 1 is

    c_i = ⌊t_i + o_{k,i}⌋, moved into 0, …, b_i − 1        o_{k,i} = ((k m_i mod K) − (K − 1)/2) / K

The offsets o are spread evenly about 0, a K-th of a tile apart, so one tiling (o = 0) is the plain
grid: tile j covers low + [j, j + 1) (high − low)/b, and the last one high itself too. With more, the
tiles at the box's edge are up to half a tile longer or shorter than the rest, and every tiling has the
same Π b_i tiles. The steps m_1, m_2, … are the numbers below K without a common divisor with it, over
and over: every coordinate is then shifted by each offset once, and in K = 8 the coordinates go 1, 3, 5,
7 steps apart, which avoids the diagonal stripes of equal steps (Miller and Glanz 1996).

Tiles are numbered in row-major order: k Π b_i + ((c_1 b_2 + c_2) b_3 + c_3) …; the blocks of two tilings
never meet. With ``hashed=m`` a tiling has m/K indices, however many tiles there are: the index is
k m/K + (h mod m/K), with h the 64-bit hash of (k, c_1, c_2, …),

    h ← k;    h ← mix(h + G (c_i + 1)) for i = 1, 2, …

modulo 2⁶⁴, where G = 0x9E3779B97F4A7C15 and mix is the finaliser of splitmix64. It is whole-number
arithmetic, the same on every machine. Tiles that share an index share a weight: ``collisions`` counts.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Floats, Ints, as_count, readonly
from policyrisk._core.random import GOLDEN, mix_compiled
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import Box, OnBox, as_counts, kernel_states
from policyrisk.features.protocol import register
from policyrisk.features.tables import ones_at

_LARGEST = 2**62  # indices must fit in 64 bits
_U1 = np.uint64(1)  # Numba turns a uint64 that meets a signed integer into a float


@njit(cache=True, error_model="numpy")
def place(x: float, low: float, high: float, bins: int) -> float:
    """How many tiles x lies from the box's low corner along a coordinate, in [0, bins]."""
    # Multiplied before it is divided: whole states in a box of whole numbers then have no rounding.
    return min(max((x - low) * bins / (high - low), 0.0), float(bins))


@njit(cache=True, error_model="numpy")
def tile(place: float, offset: float, bins: int) -> int:
    """The tile along a coordinate, from 0 to bins − 1."""
    # int() rounds towards 0, which is where what the offset takes below 0 belongs: in the first tile.
    return min(int(place + offset), bins - 1)


@njit(cache=True, nogil=True, error_model="numpy")
def tile_indices(
    states: Floats,
    columns: Ints,
    low: Floats,
    high: Floats,
    bins: Ints,
    offsets: Floats,
    block: int,
    hashed: int | None,
    out: Ints,
) -> None:
    """The index of every state's tile in every tiling, k·block + its number, into out (n, tilings).

    The number is the row-major one, or the hash modulo block where ``hashed`` is not None, which the compiler
    knows: there are two kernels.
    """
    places = np.empty(len(columns))
    for row in range(len(states)):
        for i in range(len(columns)):
            places[i] = place(states[row, columns[i]], low[i], high[i], bins[i])
        for k in range(len(offsets)):
            if hashed is None:
                number = 0
                for i in range(len(columns)):
                    number = number * bins[i] + tile(places[i], offsets[k, i], bins[i])
                out[row, k] = k * block + number
            else:
                h = np.uint64(k)
                for i in range(len(columns)):
                    h = mix_compiled(h + GOLDEN * (np.uint64(tile(places[i], offsets[k, i], bins[i])) + _U1))
                out[row, k] = k * block + np.int64(h % np.uint64(block))


class TileCoding(OnBox):
    """φ_j(x) = 1 where x lies in tile j, and 0 elsewhere: ``tilings`` ones in every state.

    Parameters
    ----------
    low, high
        The box, (dim,). States outside belong to the tile of its nearest point (``outside`` tells which).
    bins
        The number of tiles along each coordinate, or one number for all.
    tilings
        How many grids of tiles, each shifted against the others.
    dims
        The coordinates it looks at; all where None.
    hashed
        A multiple of ``tilings``: so many features instead of tilings · Π bins.

    Examples
    --------
    >>> phi = TileCoding(low=[0, 0], high=[1, 1], bins=[50, 50])
    >>> phi.size, phi.active([[0.03, 0.99], [1.0, 1.0]]).tolist()
    (2500, [[99], [2499]])
    >>> TileCoding(low=[0], high=[4], bins=4, tilings=2)([0.5, 0.8]).toarray()
    array([[1., 0., 0., 0., 1., 0., 0., 0.],
           [1., 0., 0., 0., 0., 1., 0., 0.]])
    """

    spelled = "tiles:20x20,tilings=4"
    describes = "20 by 20 tiles; tilings=4: so many grids, shifted"
    sparse = True

    def __init__(
        self,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        bins: npt.ArrayLike,
        tilings: int = 1,
        dims: npt.ArrayLike | None = None,
        hashed: int | None = None,
    ) -> None:
        self.box = Box.of(low, high, dims)
        self.bins = as_counts(bins, "bins", self.box.dim)
        self.tilings = as_count(tilings, "tilings", 1)
        self.hashed = None if hashed is None else as_count(hashed, "hashed", 1)
        if self.hashed is not None and self.hashed % self.tilings != 0:
            raise InvalidInputError(
                f"hashed must be a multiple of tilings={self.tilings}, got {self.hashed}; "
                f"pass for example {(self.hashed // self.tilings + 1) * self.tilings}"
            )
        if self.size > _LARGEST:
            raise InvalidInputError(
                f"the number of tiles, tilings * prod(bins), must be at most {_LARGEST}, got {self.size}; "
                "pass fewer bins, or hashed= for a fixed size"
            )

    @staticmethod
    def is_table(values: float, tiles: int) -> bool:
        """Whether every value along a coordinate has a tile of its own."""
        return tiles >= values

    @property
    def size(self) -> int:
        """The number of features: tilings · Π bins, or ``hashed``."""
        return self.tilings * self._block

    @property
    def _block(self) -> int:
        return math.prod(self.bins) if self.hashed is None else self.hashed // self.tilings

    @cached_property
    def offsets(self) -> Floats:
        """How far each tiling is shifted along each coordinate, in tiles, of shape (tilings, dim)."""
        K = self.tilings
        coprime = [m for m in range(1, K + 1) if math.gcd(m, K) == 1]
        m = np.resize(np.array(coprime, dtype=np.int64), self.box.dim)
        steps = np.arange(K)[:, None] * m % K
        return readonly((steps - (K - 1) / 2) / K)

    @cached_property
    def _bins(self) -> Ints:
        return readonly(np.array(self.bins, dtype=np.int64))

    def active(self, states: npt.ArrayLike) -> Ints:
        """The indices of the tiles that hold each state.

        Parameters
        ----------
        states
            (n, dim).

        Returns
        -------
        (n, tilings) whole numbers
            Increasing.
        """
        array = kernel_states(states)
        columns = self.box.columns(array.shape[1])
        out = np.empty((len(array), self.tilings), dtype=np.int64)
        grid = *self.box.bounds, self._bins, self.offsets, self._block, self.hashed
        tile_indices(array, columns, *grid, out)
        return out

    def __call__(self, states: npt.ArrayLike) -> sp.csr_array[Any, tuple[int, int]]:
        """φ(states), of shape (n, size), CSR."""
        return ones_at(self.active(states), self.size)

    def centres(self) -> Floats:
        """The middle of every tile, in the order of the indices, of shape (size, dim): one tiling only.

        >>> TileCoding(low=[0, 0], high=[1, 10], bins=[2, 1]).centres()
        array([[0.25, 5.  ],
               [0.75, 5.  ]])
        """
        if self.tilings > 1 or self.hashed is not None:
            raise InvalidInputError(
                f"centres needs tilings=1 and hashed=None, where tiles are the cells of one grid, got "
                f"tilings={self.tilings} and hashed={self.hashed}; make a TileCoding for the grid you want"
            )
        low, high = self.box.bounds
        tile = np.indices(self.bins).reshape(self.box.dim, -1).T
        centres: Floats = low + (tile + 0.5) * (high - low) / self._bins
        return centres

    def collisions(self, states: npt.ArrayLike) -> int:
        """How many of the tiles that hold these states share their index with another one before them.

        It is the number of different tiles less the number of different indices, 0 without ``hashed``.

        >>> phi = TileCoding(low=[0], high=[1], bins=100, hashed=64)
        >>> phi.collisions(np.linspace(0, 1, 1000)) >= 100 - 64
        True
        """
        low, high = self.box.bounds
        t = ((self.box.coordinates(states) - low) * self._bins / (high - low)).clip(0.0, self._bins)
        tiles = [np.minimum((t + offset).astype(np.int64), self._bins - 1) for offset in self.offsets]
        different = sum(len(np.unique(tile, axis=0)) for tile in tiles)
        return different - len(np.unique(self.active(states)))


register("TileCoding", TileCoding)
