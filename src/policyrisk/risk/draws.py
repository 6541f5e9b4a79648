"""How the estimates of some episodes vary: Σ, the covariance of their weights, and draws.

Draw b gives episode k the multiplier ξ_kb of mean 0, variance 1 and third moment 1 (Mammen's two points). It
depends on the key, on k and on b alone, whoever draws it: whatever is estimated from the same episodes with
the same key, weights, completed returns, tests and other policies, moves together in draw b. Episodes that
come in clusters have the multipliers of their clusters instead, by the clusters' numbers: what the episodes
of a cluster share then stays in every draw.

A quantity with gradient g = (g_J, g_M) in the weights (w_J, w_second) has variance

    gᵀ Σ g = g_Jᵀ Σ_JJ g_J + 2 g_Jᵀ Σ_JM g_M + g_Mᵀ Σ_MM g_M            (the delta method)

At a state the gradient is (a_J φ_J, a_M φ_M), so that s_JJ = φ_Jᵀ Σ_JJ φ_J, s_JM = φ_Jᵀ Σ_JM φ_M and
s_MM = φ_Mᵀ Σ_MM φ_M are all that is needed. Features that were never active have no share in Σ.

Where several estimates are mixed, Σ itself is not kept but B draws of the weights' deviations from their
estimate, the rows of R (B, k), and Σ is RᵀR / B: a standard error from 200 of them is known to 5 %. Of very
many weights, such as a forest's, R is made of fewer columns, R = R' Mᵀ.

A variance that the positive-variance constraint holds at 0 has no error: for its gradient g, gᵀ Σ g = 0. The
three terms cancel, and what rounding leaves of them has a root that looks like an error, so that these
gradients are known by themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg.lapack import dpstrf

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    Matrix,
    Seed,
    check_shape,
    from_triangle,
    is_symmetric,
    lower_triangle,
    readonly,
    row_pairs,
)
from policyrisk._core.random import generator, mammen
from policyrisk._core.records import record
from policyrisk.errors import FewEpisodesWarning, InvalidInputError

DRAWS = 2000  # of the weights, where no replicates are there
_PAIRS = 1 << 20  # pairs of entries of sparse features in hand at once
_SAME = 1e-9  # the distance, beside their length, up to which two gradients are the same


@record(
    mean_kept="k_J: below l_J",
    second_kept="k_M: below l_M",
    mean="k_J k_J",
    cross="k_J k_M",
    second="k_M k_M",
    replicates="B c",
    held="h k_J+k_M",
)
@dataclass(frozen=True, eq=False)
class ErrorBars:
    """Σ over the visited features, in blocks, each float64 or, where it is large, float32.

    ``replicates`` are bootstrap deviations of the stacked weights (w_J, w_second) from their estimate; where
    the blocks are None, Σ is theirs. With their ``key`` other statistics of the same episodes can be drawn
    along with them. The diagonal blocks are symmetric; where rounding made them differ, the lower triangle
    counts.
    """

    mean_kept: Ints  # (k_J,): the features that the first block speaks of
    second_kept: Ints  # (k_M,)
    mean: npt.NDArray[Any] | None  # (k_J, k_J): Σ_JJ
    cross: npt.NDArray[Any] | None  # (k_J, k_M): Σ_JM
    second: npt.NDArray[Any] | None  # (k_M, k_M): Σ_MM
    replicates: npt.NDArray[Any] | None = None  # (B, k_J + k_M)
    held: Any = None  # CSR (h, k_J + k_M): the gradients of variances that are held at 0
    key: tuple[int, int] | None = None  # of the replicates' multipliers: those of episode k are stream k
    clusters: int = 0  # of episodes, which are what is independent; 0 where episodes are
    merge: Any = None  # CSR (k_J + k_M, c): M, None where c = k_J + k_M and the replicates are R themselves

    def __post_init__(self) -> None:
        k_J, k_M = len(self.mean_kept), len(self.second_kept)
        shapes = {
            "mean": (k_J, k_J),
            "cross": (k_J, k_M),
            "second": (k_M, k_M),
            "replicates": (None, k_J + k_M if self.merge is None else self.merge.shape[1]),
        }
        if self.mean is None and self.replicates is None:
            raise InvalidInputError("ErrorBars must have a covariance or replicates, got neither; pass one")
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is None:
                continue
            check_shape(array, f"ErrorBars.{name}", shape)
            # One layout, so that a record that was saved and loaded rounds in the same way.
            array = _mirrored(array) if name in ("mean", "second") else np.ascontiguousarray(array)
            object.__setattr__(self, name, readonly(array))

    def quadratic(
        self,
        phi_J: Matrix,
        phi_M: Matrix,
        moved: tuple[Floats, Floats] | None = None,
        spread: Matrix | None = None,
    ) -> tuple[Floats, Floats, Floats]:
        """s_JJ, s_JM and s_MM at states with features (n, l_J) and (n, l_M), each of shape (n,).

        ``moved`` are the deviations there, where they are known already. With ``spread`` (n, l_J) the
        gradient of the second is (spread, φ_M) rather than (0, φ_M).
        """
        if self.mean is None or self.cross is None or self.second is None:
            dJ, dM = moved or self.deviations(phi_J, phi_M, spread)
            s_JJ, s_JM, s_MM = (
                np.einsum("nb,nb->n", a, b) / dJ.shape[1] for a, b in ((dJ, dJ), (dJ, dM), (dM, dM))
            )
            return s_JJ, s_JM, s_MM
        J, M = phi_J[:, self.mean_kept], phi_M[:, self.second_kept]
        s_JM, s_MM = _rowwise(J, self.cross, M), _rowwise(M, self.second, M)
        if spread is not None:
            G = spread[:, self.mean_kept]
            s_JM = s_JM + _rowwise(J, self.mean, G)
            s_MM = s_MM + 2 * _rowwise(G, self.cross, M) + _rowwise(G, self.mean, G)
        return _rowwise(J, self.mean, J), s_JM, s_MM

    def covariance(self, g_J: Floats, g_M: Floats) -> Floats:
        """g Σ gᵀ (p, p), the covariance of p quantities with gradients g_J (p, l_J) and g_M (p, l_M)."""
        free = ~self.holds(np.ones(len(g_J)), g_J, g_M)[:, None]
        if self.mean is None or self.cross is None or self.second is None:
            moved = self.drawn(g_J * free, g_M * free)
            spread: Floats = np.asarray(moved @ moved.T / self.draws, dtype=np.float64)
            return spread
        J, M = g_J[:, self.mean_kept] * free, g_M[:, self.second_kept] * free
        cross = J @ self.cross @ M.T
        covariance: Floats = J @ self.mean @ J.T + cross + cross.T + M @ self.second @ M.T
        return covariance

    def holds(self, a_J: Floats, phi_J: Matrix, phi_M: Matrix) -> Bools:
        """Whether quantities with gradients (a_J φ_J, φ_M), (n, l_J) and (n, l_M), are held fixed, (n,)."""
        n = phi_J.shape[0]
        if self.held is None:
            return np.zeros(n, dtype=np.bool_)
        most = max(_PAIRS // self.held.shape[0], 1)
        if n > most:
            cuts = [slice(first, first + most) for first in range(0, n, most)]
            return np.concatenate([self.holds(a_J[at], phi_J[at], phi_M[at]) for at in cuts])
        J, M = sp.csr_array(phi_J[:, self.mean_kept]), sp.csr_array(phi_M[:, self.second_kept])
        g = sp.csr_array(sp.hstack([J.multiply(a_J[:, None]), M], format="csr"))
        size = _squares(self.held)
        nearest = np.argmin(size - 2 * (g @ self.held.T).toarray(), axis=1)
        same: Bools = _squares(g - self.held[nearest]) <= _SAME**2 * size[nearest]
        return same

    @property
    def draws(self) -> int:
        """B, 0 where there are no replicates."""
        return 0 if self.replicates is None else len(self.replicates)

    @property
    def width(self) -> int:
        """How many numbers a state takes for a standard error: B where Σ is that of replicates, else 0."""
        return self.draws if self.mean is None else 0

    def drawn(self, g_J: Floats, g_M: Floats) -> Floats:
        """What draws add to p quantities with gradients g_J (p, l_J) and g_M (p, l_M), (p, B)."""
        assert self.replicates is not None
        g: Any = np.hstack([g_J[:, self.mean_kept], g_M[:, self.second_kept]])
        moved: Floats = np.asarray(g if self.merge is None else g @ self.merge) @ self.replicates.T
        return moved

    def behind(self, episodes: Floats) -> Floats:
        """How many independent episodes, or clusters, stand behind each estimate with so many episodes."""
        return np.minimum(episodes, self.clusters) if self.clusters else episodes

    def multipliers(self, episodes: npt.ArrayLike) -> Floats:
        """ξ that the replicates were drawn with, of the episodes or clusters with these numbers, (n, B)."""
        assert self.key is not None
        return multipliers(self.key, episodes, self.draws)

    @property
    def withdrawn(self) -> bool:
        """Whether there are no numbers in them."""
        held = self.replicates if self.mean is None else self.mean
        return held is not None and bool(np.isnan(held.flat[:1]).any())

    def widened(self, factor: float) -> ErrorBars:
        """The same with errors so many times as large; with nan no error or interval has a number."""
        found: dict[str, Any] = {}
        for name in ("mean", "cross", "second", "replicates"):
            if (array := getattr(self, name)) is not None:
                found[name] = array * array.dtype.type(factor if name == "replicates" else factor**2)
        return replace(self, **found)

    def replicated(self, seed: Seed) -> ErrorBars:
        """These, with ``DRAWS`` normal replicates of covariance Σ where there are none."""
        if self.replicates is not None:
            return self
        assert self.mean is not None
        assert self.cross is not None
        covariance = np.block([[self.mean, self.cross], [self.cross.T, self.second]]).astype(np.float64)
        return replace(self, replicates=normal_draws(covariance, DRAWS, seed))

    def deviations(self, phi_J: Matrix, phi_M: Matrix, spread: Matrix | None = None) -> tuple[Floats, Floats]:
        """What each replicate adds to φ_Jᵀ w_J and to φ_Mᵀ w_second, each of shape (n, B).

        With ``spread`` (n, l_J), that of the second has spreadᵀ dw_J besides.
        """
        if self.replicates is None:
            raise InvalidInputError(
                'method="bootstrap" needs bootstrap replicates, and these error bars have none; '
                "fit with the bootstrap= option, for example bootstrap=1000"
            )
        J, M = phi_J[:, self.mean_kept], phi_M[:, self.second_kept]
        G = None if spread is None else spread[:, self.mean_kept]
        if self.merge is not None:
            k_J = len(self.mean_kept)
            J, M = J @ self.merge[:k_J], M @ self.merge[k_J:]
            G = None if G is None else G @ self.merge[:k_J]
        dw_J, dw_M = self._columns
        dM = np.asarray(M @ dw_M, dtype=np.float64)
        if G is not None:
            dM += G @ dw_J
        return np.asarray(J @ dw_J, dtype=np.float64), dM

    @cached_property
    def _columns(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The draws of w_J and of w_second, or twice R', as sparse products want them."""
        assert self.replicates is not None
        k_J, columns = len(self.mean_kept), np.ascontiguousarray(self.replicates.T)
        return (columns, columns) if self.merge is not None else (columns[:k_J], columns[k_J:])

    @property
    def weights_drawn(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The replicates of w_J and of w_second, (k_J, B) and (k_M, B)."""
        k_J = len(self.mean_kept)
        if self.merge is None:
            return self._columns
        return self.merge[:k_J] @ self._columns[0], self.merge[k_J:] @ self._columns[0]


def _squares(rows: Any) -> Floats:
    """The squared norms of the rows of a CSR array, (n,)."""
    return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()


def _rowwise(left: Matrix, middle: npt.NDArray[Any], right: Matrix) -> Floats:
    """left_iᵀ middle right_i for every row i, of shape (n,)."""
    if sp.issparse(left) and sp.issparse(right):
        return _rowwise_sparse(sp.csr_array(left), middle, sp.csr_array(right))
    product = np.asarray(left @ middle, dtype=np.float64)
    if sp.issparse(right):
        return np.asarray(sp.csr_array(right).multiply(product).sum(axis=1), dtype=np.float64).ravel()
    sums: Floats = np.einsum("ij,ij->i", product, np.asarray(right))
    return sums


def _rowwise_sparse(left: Any, middle: npt.NDArray[Any], right: Any) -> Floats:
    """As _rowwise, from the entries of middle that are needed: one for each pair of entries in a row."""
    n = left.shape[0]
    pairs = np.diff(left.indptr) * np.diff(right.indptr)
    if n > 1 and pairs.sum() > _PAIRS:
        halves = slice(0, n // 2), slice(n // 2, n)
        return np.concatenate([_rowwise_sparse(left[half], middle, right[half]) for half in halves])
    p, q = row_pairs(left, right)
    terms = left.data[p] * middle[left.indices[p], right.indices[q]] * right.data[q]
    row = np.repeat(np.arange(n), pairs)
    return np.bincount(row, weights=terms, minlength=n).astype(np.float64, copy=False)


def _mirrored(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The block with its lower triangle on both sides; itself where it is symmetric already."""
    if is_symmetric(block):
        return np.ascontiguousarray(block)
    return from_triangle(lower_triangle(block), len(block))


CLUSTERS_LEAST, CLUSTERS_FEW = 3, 10  # fewer are an error, a warning
DRAWS_OF_CLUSTERS = 1000  # of the weights, where nobody asks for more: a standard error is known to 2 %


def clusters_of_both(one: Ints | None, other: Ints | None) -> Ints | None:
    """The numbers of the clusters in two parts of the data together, rising; None where there are none.

    >>> clusters_of_both(np.array([0, 2]), np.array([2, 1, 1])).tolist()
    [0, 1, 2]
    """
    given = [each for each in (one, other) if each is not None]
    return np.unique(np.concatenate(given)) if given else None


def check_clusters(clusters: int) -> None:
    """Raise, or warn, where episodes come in so few clusters that little is known of how these differ."""
    if clusters < CLUSTERS_LEAST:
        raise InvalidInputError(
            f"cluster must put the episodes into at least {CLUSTERS_LEAST} clusters, got {clusters}; record "
            "more of them, or name a finer column"
        )
    if clusters < CLUSTERS_FEW:
        warnings.warn(
            f"the intervals rest on {clusters} clusters of episodes, and only these are independent; "
            f"with fewer than {CLUSTERS_FEW} they may cover less often than they say",
            FewEpisodesWarning,
            stacklevel=2,
        )


def multipliers(key: Sequence[int | np.uint64], episodes: npt.ArrayLike, draws: int) -> Floats:
    """ξ of the episodes, or clusters, with these numbers in all of the data (n,), of shape (n, draws).

    >>> xi = multipliers((7, 8), [0, 1, 2], 4)
    >>> xi.shape, bool((multipliers((7, 8), [2], 4) == xi[2:]).all())
    ((3, 4), True)
    """
    numbers = np.asarray(episodes, dtype=np.int64)
    xi = np.empty((numbers.size, draws))
    mammen(np.uint64(key[0]), np.uint64(key[1]), numbers, xi)
    return xi


def normal_draws(covariance: Floats, draws: int, seed: Seed) -> Floats:
    """Normal draws with a covariance (k, k) of any rank, of shape (draws, k)."""
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scaled = covariance / np.outer(*(np.where(scale > 0, scale, 1.0),) * 2)
    # Cholesky's factor with pivots, P ᵀΣ P = L Lᵀ, stops where nothing is left.
    factor, pivots, rank, _ = dpstrf(scaled, lower=1)
    found = np.empty((draws, len(scaled)))
    found[:, pivots - 1] = generator(seed).standard_normal((draws, rank)) @ np.tril(factor)[:, :rank].T
    return found * scale
