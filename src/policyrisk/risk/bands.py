"""Bands: intervals at many states that hold all together, and which states are riskier than the median.

Of many intervals at 95 % some miss. With D_b(x) the deviation of a quantity at x in replicate b of the
weights (to first order, a_J φ_Jᵀ dw_J,b + a_M φ_Mᵀ dw_M,b) and s(x) its standard deviation over b,

    c = the ``level``-quantile over b of max_x |D_b(x)| / s(x)

is how many standard errors an interval must reach so that all of them hold in a share ``level`` of the draws.
An interval at one state reaches as far at the *pointwise level* 2Φ(c) − 1: a band is made of the intervals at
that level (:func:`RiskFunction.interval`), whatever they are made of and however few episodes are behind.

The riskiest of many states were chosen for their large estimates. A state is riskier than the median state m
(that with the middle Ṽ) with confidence ``level`` for all states together if

    log Ṽ(x) − log Ṽ(m) > c s(x),    c = the ``level``-quantile over b of max_x D_b(x) / s(x)

where D_b(x) = dṼ_b(x)/Ṽ(x) − dṼ_b(m)/Ṽ(m) and s(x) is its standard deviation: no false one among all those
found so in a share ``level`` of the cases, as far as randomness goes.

Where an estimate has no replicates, ``DRAWS`` normal ones are drawn from Σ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from scipy.linalg.lapack import dpstrf
from scipy.special import ndtr, ndtri

from policyrisk._core.arrays import Bools, Floats, Seed
from policyrisk._core.random import generator
from policyrisk.risk.error_bars import ErrorBars
from policyrisk.risk.state_estimates import Quantity, StateEstimates

DRAWS = 2000  # of the weights, where no replicates are there
_NEARLY_ONE = 1.0 - 1e-12  # the highest pointwise level


def with_replicates(bars: ErrorBars, seed: Seed) -> ErrorBars:
    """The error bars themselves, or with normal replicates of covariance Σ where there are none."""
    if bars.replicates is not None or bars.mean is None or bars.cross is None or bars.second is None:
        return bars
    covariance = np.block([[bars.mean, bars.cross], [bars.cross.T, bars.second]]).astype(np.float64)
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scaled = covariance / np.outer(*(np.where(scale > 0, scale, 1.0),) * 2)
    # Σ may have any rank: Cholesky's factor with pivots, P ᵀΣ P = L Lᵀ, stops where nothing is left.
    factor, pivots, rank, _ = dpstrf(scaled, lower=1)
    L = np.tril(factor)[:, :rank]
    replicates = np.empty((DRAWS, len(scaled)))
    replicates[:, pivots - 1] = generator(seed).standard_normal((DRAWS, rank)) @ L.T
    return replace(bars, replicates=replicates * scale)


def pointwise_level(parts: Iterable[StateEstimates], of: Quantity, level: float, bars: ErrorBars) -> float:
    """The level of intervals at single states with which all of them hold together.

    At least ``level``, and less than Bonferroni's 1 − (1 − level)/n, since errors of states go together.
    """
    assert bars.replicates is not None
    largest = np.zeros(len(bars.replicates))
    for part in parts:
        D = np.abs(_studentised(_deviations(part, of, bars)))
        np.maximum(largest, D.max(axis=0, initial=0.0), out=largest)
    c = float(np.quantile(largest, level, method="higher"))
    return float(np.clip(2.0 * ndtr(c) - 1.0, level, _NEARLY_ONE))


def riskier(parts: Iterable[StateEstimates], level: float, bars: ErrorBars) -> Bools:
    """Which states are riskier than the median one, with confidence ``level`` for all together, (n,)."""
    V, moved = [], []
    for part in parts:
        V.append(np.where(part.V > 0, part.V, np.nan))
        moved.append((_deviations(part, "variance", bars) / V[-1][:, None]).astype(np.float32))
    variance, D = np.concatenate(V), np.concatenate(moved)
    found = np.zeros(len(variance), dtype=np.bool_)
    known = np.flatnonzero(np.isfinite(variance) & np.isfinite(D).all(axis=1))
    if known.size < 2:
        return found
    middle = known[np.argsort(variance[known], kind="stable")[(known.size - 1) // 2]]
    difference = (D[known] - D[middle]).astype(np.float64)
    error = np.sqrt(np.square(difference).mean(axis=1))
    c = float(np.quantile(_studentised(difference).max(axis=0), level, method="higher"))
    c = max(c, float(ndtri(level)))
    excess = np.log(variance[known] / variance[middle])
    found[known] = (excess > c * error) & (excess > 0)
    return found


def _deviations(part: StateEstimates, of: Quantity, bars: ErrorBars) -> Floats:
    """D_b(x), of shape (n, B), nan where the quantity is."""
    a_J, a_M = part.gradient(of)
    dJ, d_second = bars.deviations(part.phi_mean, part.phi_second)
    D: Floats = a_J[:, None] * dJ + a_M[:, None] * d_second
    return D


def _studentised(D: Floats) -> Floats:
    """D (n, B) over its standard deviation, 0 where it has none or does not exist."""
    s = np.sqrt(np.square(D).mean(axis=1, keepdims=True))
    return np.where(s > 0, D / np.where(s > 0, s, 1.0), 0.0)
