"""The paper's claim that a risk map is not monotone in the distance to the target, as numbers.

With values s_i, their standard errors se_i and the distances d_i to the target, two tiles with d_i < d_j
contradict "the farther, the larger" where s_i > s_j. Of m such pairs, all at once and with probability
1 − level at least (Bonferroni), the true difference is above

    s_i − s_j − z √(se_i² + se_j²)        with z the normal quantile of 1 − level/m

so that a map where the largest of these bounds is positive is not monotone. Beside that test stands the share
of the map's variation that the best monotone function of the distance (isotonic regression) explains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from experiments.common import Floats, Ints

_LEVEL = 0.001
_CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Monotonicity:
    """A map's relation to the distance."""

    tiles: int
    correlation: float  # Pearson's
    rank_correlation: float  # Spearman's
    monotone_share: float  # of the variation explained by the best non-decreasing function of the distance
    neighbours: int  # pairs of neighbouring tiles at clearly different distances
    rising: float  # the share of these where the farther one is larger by 2 standard errors
    falling: float  # and smaller; with equal values, each would be 0.023 by randomness alone
    drop: float  # the value at a nearer tile less that at a farther one, for the pair with the largest bound
    drop_at_least: float  # its bound, with probability 0.999
    drop_pair: tuple[int, int]  # the two tiles, the nearer one first
    monotone: bool  # whether no bound is positive


def monotonicity(
    values: Floats, errors: Floats, distances: Floats, neighbours: Ints, side: float
) -> Monotonicity:
    """Is a map of values (n,), with standard errors (n,), non-decreasing in the distances (n,)?

    ``neighbours`` (m, 2) are the pairs of tiles that share a side, of length ``side``. Needs two tiles at
    different distances.

    >>> d = np.arange(5.0)
    >>> pairs = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    >>> test = monotonicity(np.array([0.0, 1.0, 5.0, 2.0, 3.0]), np.full(5, 0.1), d, pairs, side=1.0)
    >>> test.monotone, test.drop_pair, test.rising, test.falling
    (False, (2, 3), 0.75, 0.25)
    """
    known = np.flatnonzero(np.isfinite(values) & np.isfinite(errors) & np.isfinite(distances))
    s, se, d = values[known], errors[known], distances[known]
    nearer = d[:, None] < d[None, :]
    z = float(stats.norm.isf(_LEVEL / max(int(nearer.sum()), 1)))
    drop = s[:, None] - s[None, :]
    bound = np.where(nearer, drop - z * np.hypot(se[:, None], se[None, :]), -np.inf)
    i, j = np.unravel_index(int(np.argmax(bound)), bound.shape)
    order = np.argsort(d, kind="stable")
    fitted = np.asarray(optimize.isotonic_regression(s[order]).x)
    rising, falling, pairs = _neighbours(values, errors, distances, neighbours, side)
    return Monotonicity(
        tiles=len(known),
        correlation=float(np.corrcoef(s, d)[0, 1]),
        rank_correlation=float(stats.spearmanr(s, d).statistic),
        monotone_share=float(1 - np.mean((s[order] - fitted) ** 2) / np.var(s)),
        neighbours=pairs,
        rising=rising,
        falling=falling,
        drop=float(drop[i, j]),
        drop_at_least=float(bound[i, j]),
        drop_pair=(int(known[i]), int(known[j])),
        monotone=bool(bound[i, j] <= 0),
    )


def _neighbours(
    values: Floats, errors: Floats, distances: Floats, neighbours: Ints, side: float
) -> tuple[float, float, int]:
    """The shares of clearly rising and falling pairs, and the number of pairs that were looked at."""
    a, b = neighbours.T
    known = np.isfinite(values) & np.isfinite(errors) & np.isfinite(distances)
    d = np.where(known, distances, np.nan)
    # Pairs across the way to the target are at almost the same distance and say nothing.
    clear = np.abs(d[a] - d[b]) > 0.5 * side
    a, b = a[clear], b[clear]
    if not a.size:
        return float("nan"), float("nan"), 0
    # Compared without dividing: where all returns are alike the standard error is 0.
    climb = (values[a] - values[b]) * np.sign(d[a] - d[b])
    margin = _CLEAR * np.hypot(errors[a], errors[b])
    return float(np.mean(climb > margin)), float(np.mean(climb < -margin)), len(a)
