"""Gaussian radial basis functions, on a grid or at given centres.

With u = (x − low) / (high − low) the state scaled to the box, and c a centre scaled the same way,

    g_c(x) = exp(−½ Σ_i ((u_i − c_i) / width_i)²)

and φ_c = g_c, or φ_c = g_c / Σ_c' g_c' where they are normalised. ``truncate`` sets g_c to 0 unless
|u_i − c_i| ≤ truncate · width_i in every coordinate, before they are normalised; φ is then sparse.

A grid has s_i centres along coordinate i, evenly spaced from one face of the box to the other
(c_i = j/(s_i − 1); a single one is in the middle), numbered in row-major order. There g_c is a product
over coordinates, and so is its sum: s_1 + s_2 + … exponentials make all s_1 · s_2 · … features, and only
the centres that are near are looked at when they are truncated.
"""

from __future__ import annotations

import math
from functools import cached_property, reduce
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import (
    Floats,
    Ints,
    Matrix,
    as_array,
    as_flag,
    as_floats,
    as_number,
    as_states,
    name_some,
    readonly,
    row_products,
)
from policyrisk._core.devices import cupy, kernel
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import Box, OnBox, as_counts
from policyrisk.features.protocol import register

_ROWS = 1024  # states at a time, so that the exponentials of a dense grid stay in the cache

_THREADS, _GRID = 128, 1 << 15  # on a GPU
_SOURCE = r"""
extern "C" __global__ void radial(
    const double* u, const double* centres, const double* width, const int dim, const int size,
    const long long rows, const int exponential, double* phi
) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= size) return;
    for (long long i = blockIdx.y; i < rows; i += gridDim.y) {
        double exponent = 0.0;
        for (int d = 0; d < dim; ++d) {
            const double far = (u[i * dim + d] - centres[d * size + c]) / width[d];
            exponent -= 0.5 * far * far;
        }
        phi[i * size + c] = exponential ? exp(exponent) : exponent;
    }
}
"""

_NARROWEST = 1e-100  # width, so that the square of 1 / width is a number


@njit(cache=True, nogil=True, error_model="numpy")
def exponents(u: Floats, centres: Floats, width: Floats, reach: Floats, out: Floats) -> None:
    """−½ Σ_i ((u_i − c_i) / width_i)² for near centres (d, size), else −∞, into out (n, size).

    Near means |u_i − c_i| ≤ reach_i in every coordinate.
    """
    for row in range(len(u)):
        total = out[row]  # slices, here and below: with them the compiler sees that loops do not overlap
        total[:] = 0.0
        for i in range(u.shape[1]):
            x, c, inverse = u[row, i], centres[i], 1.0 / width[i]
            for j in range(len(c)):
                z = (x - c[j]) * inverse
                total[j] -= 0.5 * z * z if abs(x - c[j]) <= reach[i] else np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def products(g: Floats, shape: Ints, out: Floats) -> None:
    """Products of one entry of g (n, Σ shape) per coordinate, in every combination, into out (n, Π shape).

    They are made in place from the last coordinate to the first, so that every loop is over neighbours.
    """
    for row in range(len(g)):
        phi = out[row]
        phi[0] = 1.0
        made, stop = 1, g.shape[1]
        for i in range(len(shape) - 1, -1, -1):
            factors = g[row, stop - shape[i] : stop]
            base = phi[:made]
            for j in range(len(factors) - 1, -1, -1):  # the first last: its place is the base's own
                factor, to = factors[j], phi[j * made : (j + 1) * made]
                for a in range(made):
                    to[a] = base[a] * factor
            made *= shape[i]
            stop -= shape[i]


class RadialBasis(OnBox):
    """φ_c(x) = exp(−½ Σ_i ((u_i − c_i) / width_i)²) for every centre c.

    ``RadialBasis.grid`` is the one whose centres form a grid. u is x itself without a box, and
    (x − low) / (high − low) with one.

    Parameters
    ----------
    centres
        (size, dim), in the states' own units.
    width
        In units of u: one, or one for each coordinate.
    low, high
        The box, (dim,). States outside are moved to its edge (``outside`` tells which); without a box none
        is outside.
    normalised
        Whether φ is divided by its sum.
    truncate
        φ_c is 0 where a coordinate is more than truncate · width from c; never where None. Normalised and
        truncated, a state with no centre near it is an error.
    dims
        The coordinates it looks at; all where None.

    Examples
    --------
    >>> RadialBasis(centres=[0, 10], width=0.5, low=0, high=10)([0, 5]).round(3)
    array([[1.   , 0.135],
           [0.607, 0.607]])
    >>> RadialBasis(centres=[0, 10], width=0.5, low=0, high=10, normalised=True)([0, 5]).round(3)
    array([[0.881, 0.119],
           [0.5  , 0.5  ]])
    """

    grid: ClassVar[type[RadialGrid]]

    def __init__(
        self,
        centres: npt.ArrayLike,
        width: npt.ArrayLike,
        low: npt.ArrayLike | None = None,
        high: npt.ArrayLike | None = None,
        normalised: bool = False,
        truncate: float | None = None,
        dims: npt.ArrayLike | None = None,
    ) -> None:
        # A copy, made read-only: the caller's own array stays as it is.
        self.centres: Floats = readonly(np.array(as_states(centres, "centres")))
        size, dim = self.centres.shape
        if size == 0 or dim == 0:
            raise InvalidInputError(
                f"centres must hold at least one centre, got shape {(size, dim)}; pass a row per centre"
            )
        if (low is None) != (high is None):
            raise InvalidInputError(
                f"low and high must both be given or both be None, got low={low!r} and high={high!r}; "
                "pass both for a box, or neither for unscaled coordinates"
            )
        box = Box.unbounded(dim, dims) if low is None else Box.of(low, high, dims)
        if box.dim != dim:
            raise InvalidInputError(
                f"centres must have {box.dim} coordinates, as many as low and high, got {dim}; "
                "pass the coordinates that dims names"
            )
        self._settle(box, width, normalised, truncate)

    def _settle(self, box: Box, width: npt.ArrayLike, normalised: bool, truncate: float | None) -> None:
        """What bases have, wherever their centres are."""
        self.box, dim = box, box.dim
        given = as_array(width, "width", f"numbers of shape () or ({dim},)")
        widths = np.array(as_floats(np.full(dim, given) if given.ndim == 0 else given, "width", (dim,)))
        if not (widths >= _NARROWEST).all():
            raise InvalidInputError(
                f"width must be positive, at least {_NARROWEST:g}, got {widths.tolist()}; "
                "it is a part of the box's length, such as 0.1"
            )
        self.width: Floats = readonly(widths)
        self.normalised = as_flag(normalised, "normalised")
        self.truncate = None if truncate is None else as_number(truncate, "truncate", 0.0, open_low=True)

    @property
    def size(self) -> int:
        """The number of centres."""
        return len(self.centres)

    @cached_property
    def _scaled(self) -> Floats:
        """The centres in the units of u, one column each: (dim, size)."""
        c = self.centres
        if self.box.bounded:
            low, high = self.box.bounds
            c = (c - low) / (high - low)
        return readonly(np.ascontiguousarray(c.T))

    @cached_property
    def reach(self) -> Floats:
        """How far from u, along each coordinate, a centre may be to count: (dim,)."""
        return readonly(self.width * (np.inf if self.truncate is None else self.truncate))

    def __call__(self, states: npt.ArrayLike) -> Matrix:
        """φ(states), of shape (n, size): dense, or CSR where it is truncated."""
        u = self.box.scale(states)
        return self._dense(u) if self.truncate is None else self._sparse(u)

    @property
    def on_gpu(self) -> bool:
        """Whether LSTD's sums on a GPU may find φ there: where it is dense."""
        return self.truncate is None

    def gpu_input(self, states: Floats) -> Floats:
        """What is to be copied to the GPU for states (n, dim): u."""
        return self.box.scale(states)

    def gpu_rows(self, u: Any) -> Any:
        """φ, of shape (n, size), of what was copied, both CuPy's arrays, in CuPy's current stream."""
        xp, size = cupy(), self.size
        centres, width = self._gpu_tables
        phi = xp.empty((len(u), size))
        kernel(_SOURCE, "radial")(
            (-(-size // _THREADS), min(len(u), _GRID)),
            (_THREADS,),
            (u, centres, width, np.int32(u.shape[1]), np.int32(size),
             np.int64(len(u)), np.int32(not self.normalised), phi),
        )  # fmt: skip
        if self.normalised:  # as on the CPU; states too far from all centres come out as nan
            phi -= phi.max(axis=1, keepdims=True)
            xp.exp(phi, out=phi)
            phi /= phi.sum(axis=1, keepdims=True)
        return phi

    @cached_property
    def _gpu_tables(self) -> tuple[Any, Any]:
        """Centres and widths on the GPU."""
        return cupy().asarray(self._scaled), cupy().asarray(self.width)

    def _dense(self, u: Floats) -> Floats:
        phi = np.empty((len(u), self.size))
        exponents(u, self._scaled, self.width, self.reach, phi)
        if self.normalised:
            largest = phi.max(axis=1, keepdims=True)
            if not np.isfinite(largest).all():
                raise InvalidInputError(
                    "states must have a centre within truncate * width, near enough for ((u - c) / width)² "
                    "to be a number, for a normalised basis, got none for rows "
                    f"{name_some(np.flatnonzero(~np.isfinite(largest)))}; enlarge truncate or width, add "
                    "centres, or pass a box, low and high"
                )
            phi -= largest  # the nearest centre's g is then 1: the sum cannot vanish
        np.exp(phi, out=phi)
        if self.normalised:
            phi /= phi.sum(axis=1, keepdims=True)
        return phi

    def _sparse(self, u: Floats) -> sp.csr_array[Any, tuple[int, int]]:
        parts = [self._sparse_rows(u[i : i + _ROWS]) for i in range(0, max(len(u), 1), _ROWS)]
        return sp.csr_array(sp.vstack(parts, format="csr"))

    def _sparse_rows(self, u: Floats) -> Any:
        return sp.csr_array(self._dense(u))


class RadialGrid(RadialBasis):
    """Gaussians centred on a grid over the box: the same φ, computed coordinate by coordinate.

    Parameters
    ----------
    low, high
        The box, (dim,).
    shape
        How many centres along each coordinate, or one number for all.
    width
        In units of u; None is the grid's spacing, 1/(shape − 1) along each coordinate (1 where shape is
        1): neighbouring bases then cross at exp(−1/8) = 0.88.
    normalised, truncate, dims
        As of :class:`RadialBasis`. Normalised and truncated, truncate · width must be more than half the
        spacing, so that a centre is near everywhere.

    Examples
    --------
    >>> phi = RadialBasis.grid(low=[0, 0], high=[1, 1], shape=(9, 9))
    >>> phi.size, phi.width.tolist(), phi.centres[1].tolist()
    (81, [0.125, 0.125], [0.0, 0.125])
    >>> RadialBasis.grid(low=0, high=1, shape=5, truncate=1)([0.5, 0.1]).toarray().round(3)
    array([[0.   , 0.607, 1.   , 0.607, 0.   ],
           [0.923, 0.835, 0.   , 0.   , 0.   ]])
    """

    kind = "RadialBasis.grid"
    spelled = "rbf:7x7,width=0.2x0.2"
    describes = "Gaussians on a grid of 7 by 7 centres, with widths in parts of the box"

    def __init__(
        self,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        shape: npt.ArrayLike,
        width: npt.ArrayLike | None = None,
        normalised: bool = False,
        truncate: float | None = None,
        dims: npt.ArrayLike | None = None,
    ) -> None:
        box = Box.of(low, high, dims)
        self.shape = as_counts(shape, "shape", box.dim)
        spacing = np.array([1.0 if s == 1 else 1.0 / (s - 1) for s in self.shape])
        self._settle(box, spacing if width is None else width, normalised, truncate)
        # A little more than half, so that rounding cannot leave the middle between two centres alone.
        if self.normalised and not (self.reach > (0.5 + 1e-9) * spacing).all():
            raise InvalidInputError(
                f"truncate * width must be more than half the grid's spacing {spacing.tolist()} for a "
                f"normalised basis, got {self.reach.tolist()}; enlarge truncate or width"
            )

    @property
    def size(self) -> int:
        """The number of centres."""
        return math.prod(self.shape)

    @cached_property
    def centres(self) -> Floats:  # type: ignore[override]
        """The centres, in the states' own units, of shape (size, dim)."""
        low, high = self.box.bounds
        mesh = np.stack(np.meshgrid(*self._along, indexing="ij"), axis=-1).reshape(-1, self.box.dim)
        return readonly(low + mesh * (high - low))

    @cached_property
    def _along(self) -> list[Floats]:
        """The centres along each coordinate, in the units of u."""
        return [np.full(1, 0.5) if s == 1 else np.arange(s) / (s - 1) for s in self.shape]

    def _factors(self, u: Floats) -> list[Floats]:
        """Along each coordinate the factors (n, s_i) of u (n, d); where normalised, each sums to 1."""
        factors = []
        for i, centres in enumerate(self._along):
            far = u[:, i : i + 1] - centres
            g = -0.5 * (far / self.width[i]) ** 2
            if self.truncate is not None:
                g[np.abs(far) > self.reach[i]] = -np.inf
            if self.normalised:
                g -= g.max(axis=1, keepdims=True)  # the nearest centre's g is then 1: the sum cannot vanish
            np.exp(g, out=g)
            factors.append(g / g.sum(axis=1, keepdims=True) if self.normalised else g)
        return factors

    def _dense(self, u: Floats) -> Floats:
        phi = np.empty((len(u), self.size))
        for start in range(0, len(u), _ROWS):
            some = slice(start, start + _ROWS)
            products(np.hstack(self._factors(u[some])), np.array(self.shape), phi[some])
        return phi

    def _sparse_rows(self, u: Floats) -> Any:
        return reduce(row_products, map(sp.csr_array, self._factors(u)))


RadialBasis.grid = RadialGrid
register("RadialBasis", RadialBasis)
register("RadialBasis.grid", RadialGrid)
