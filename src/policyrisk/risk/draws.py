"""Draws: how the estimates of some episodes vary, by giving every episode a random multiplier.

Draw b gives episode k the multiplier ξ_kb of mean 0, variance 1 and third moment 1 (Mammen's two points). It
depends on the key, on k and on b alone, whoever draws it: whatever is estimated from the same episodes with
the same key, weights, completed returns, tests and other policies, moves together in draw b. Episodes that
come in clusters have the multipliers of their clusters instead, by the clusters' numbers: what the episodes
of a cluster share then stays in every draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dpstrf

from policyrisk._core.arrays import Floats, Ints, Seed
from policyrisk._core.random import generator, mammen
from policyrisk.errors import FewEpisodesWarning, InvalidInputError

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
