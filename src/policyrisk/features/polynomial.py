"""Monomials up to a total degree, of coordinates scaled to [0, 1]."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from policyrisk._core.arrays import Ints, as_count
from policyrisk.errors import InvalidInputError
from policyrisk.features import _kernels
from policyrisk.features.box import Box
from policyrisk.features.lattice import OnLattice

MOST = 1_000_000  # monomials


class Polynomial(OnLattice):
    """φ_k(x) = Π_i u_i^{k_i} with Σ_i k_i ≤ degree, where u = (x − low) / (high − low).

    The exponents come in order of total degree, so that the first feature is the constant 1. States
    outside the box are moved to its edge (``outside`` tells which).

    >>> Polynomial(degree=2, low=[0], high=[10])([0, 5, 10])
    array([[1.  , 0.  , 0.  ],
           [1.  , 0.5 , 0.25],
           [1.  , 1.  , 1.  ]])
    >>> Polynomial(degree=2, low=[0, 0], high=[1, 1]).exponents.tolist()
    [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]
    """

    _fill = staticmethod(_kernels.monomials)

    def __init__(
        self, degree: int, low: npt.ArrayLike, high: npt.ArrayLike, dims: npt.ArrayLike | None = None
    ) -> None:
        self.degree = as_count(degree, "degree")
        self.box = Box.of(low, high, dims)
        self._bounds = self.degree, self.degree
        size = math.comb(self.box.dim + self.degree, self.box.dim)
        if size > MOST:
            raise InvalidInputError(
                f"degree must give at most {MOST} monomials, got {self.degree}, which gives {size} of "
                f"{self.box.dim} coordinates; choose a lower degree or fewer coordinates with dims="
            )

    @property
    def exponents(self) -> Ints:
        """The exponents k, of shape (size, dim)."""
        return self._vectors

    def spec(self) -> dict[str, Any]:
        """This map in plain values."""
        return {"kind": "Polynomial", "degree": self.degree, **self.box.spec()}
