"""Draws: how the estimates of some episodes vary, by giving every episode a random multiplier.

Draw b gives episode k the multiplier ξ_kb of mean 0, variance 1 and third moment 1 (Mammen's two points). It
depends on the key, on k and on b alone, whoever draws it: whatever is estimated from the same episodes with
the same key, weights, completed returns, tests and other policies, moves together in draw b.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dpstrf

from policyrisk._core.arrays import Floats, Seed
from policyrisk._core.random import generator, mammen


def multipliers(key: Sequence[int | np.uint64], episodes: npt.ArrayLike, draws: int) -> Floats:
    """ξ of the episodes with these numbers in all of the data (n,), of shape (n, draws).

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
