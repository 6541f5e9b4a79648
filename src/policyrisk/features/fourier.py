"""The Fourier cosine basis (Konidaris, Osentoski and Thomas 2011), of coordinates scaled to [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from policyrisk._core.arrays import Ints, as_count
from policyrisk.features import _kernels
from policyrisk.features.box import Box
from policyrisk.features.lattice import OnLattice


class Fourier(OnLattice):
    """φ_k(x) = cos(π k·u), where u = (x − low) / (high − low), for whole k with 0 ≤ k_i ≤ order.

    ``total`` bounds Σ_i k_i as well: without it there are (order + 1)^dim features, too many in high
    dimension. They come in order of Σ_i k_i, so that the first feature is the constant 1. States
    outside the box are moved to its edge (``outside`` tells which).

    >>> Fourier(order=2, low=[0], high=[10])([0, 5, 10]).round(12) + 0.0
    array([[ 1.,  1.,  1.],
           [ 1.,  0., -1.],
           [ 1., -1.,  1.]])
    >>> low, high = [0, 0, 0, 0], [1, 1, 1, 1]
    >>> Fourier(order=3, low=low, high=high).size, Fourier(order=3, low=low, high=high, total=3).size
    (256, 35)
    """

    _fill = staticmethod(_kernels.cosines)

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
        self.box = Box.of(low, high, dims)
        self._bounds = self.order, self.order * self.box.dim if self.total is None else self.total

    @property
    def frequencies(self) -> Ints:
        """The frequencies k, of shape (size, dim)."""
        return self._vectors

    def spec(self) -> dict[str, Any]:
        """This map in plain values."""
        return {"kind": "Fourier", "order": self.order, "total": self.total, **self.box.spec()}
