"""Sums over returns, one column per state, that are folded block by block and never lose digits.

Column i of a table (7, n) is, for the returns g_1, …, g_K seen so far from state i,

    K,   ḡ = Σ g_k / K,   Σ (g_k − ḡ)²,   Σ (g_k − ḡ)³,   Σ (g_k − ḡ)⁴,   cut-off episodes,   steps

Sums about the mean keep their digits however far the mean is from 0, and two tables of different episodes
merge as :class:`policyrisk.risk.summary.SampleReturns` do (Pébay's formulas). With μ_p = Σ (g_k − ḡ)^p / K,

    variance             s² = K μ₂ / (K − 1)                    (unbiased)
    standard errors      of ḡ:   s / √K
                         of s²:  √((μ₄ − μ₂² (K − 3)/(K − 1)) / K)
                         of s:   that of s² divided by 2s       (delta method)

It is all one array of floats (whole numbers are exact in them up to 2⁵³) so that a block is taken in by a
single assignment: an interrupt finds a block in the table or not there, never half of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk.simulation.compiled import Returns

COUNT, MEAN, SQUARES, CUBES, FOURTHS, CUT_OFF, STEPS = range(7)
ROWS = 7


def tabulate(batch: Returns, discount: float) -> Floats:
    """The table (7, m) of k episodes from each of m states, in arrays (m, k).

    An episode that was stopped after ℓ steps counts as cut off unless the weight γ^ℓ of the reward that would
    have come next is below the 2⁻⁵³ of rounding, as in a discounted task that goes on for ever.
    """
    g = batch.returns
    table = np.zeros((ROWS, len(g)))
    table[COUNT] = g.shape[1]
    table[MEAN] = g.mean(axis=1)
    deviation = g - table[MEAN][:, None]
    squared = deviation * deviation
    table[SQUARES] = squared.sum(axis=1)
    table[CUBES] = (squared * deviation).sum(axis=1)
    table[FOURTHS] = (squared * squared).sum(axis=1)
    matters = discount ** batch.lengths.astype(np.float64) >= 2.0**-53
    table[CUT_OFF] = np.sum(~batch.terminated & matters, axis=1)
    table[STEPS] = np.sum(batch.lengths, axis=1)
    return table


def merge(one: Floats, other: Floats) -> Floats:
    """The table (7, m) of two tables' episodes together; a column without episodes changes nothing."""
    a, b = one[COUNT], other[COUNT]
    n = np.maximum(a + b, 1.0)
    delta = other[MEAN] - one[MEAN]
    table = one + other
    table[MEAN] = one[MEAN] + delta * b / n
    table[SQUARES] += delta**2 * a * b / n
    table[CUBES] += (
        delta**3 * a * b * (a - b) / n**2 + 3 * delta * (a * other[SQUARES] - b * one[SQUARES]) / n
    )
    table[FOURTHS] += (
        delta**4 * a * b * (a**2 - a * b + b**2) / n**3
        + 6 * delta**2 * (a**2 * other[SQUARES] + b**2 * one[SQUARES]) / n**2
        + 4 * delta * (a * other[CUBES] - b * one[CUBES]) / n
    )
    return np.where(a == 0, other, np.where(b == 0, one, table))


class Moments(NamedTuple):
    """What a table says, each of shape (n,); nan where there are too few episodes."""

    mean: Floats
    variance: Floats
    std: Floats
    mean_se: Floats
    variance_se: Floats
    std_se: Floats


def moments(table: Floats) -> Moments:
    """Sample moments and their standard errors; see the module's docstring."""
    K = np.where(table[COUNT] >= 2, table[COUNT], np.nan)
    mean = np.where(table[COUNT] >= 1, table[MEAN], np.nan)
    variance = table[SQUARES] / (K - 1)
    std = np.sqrt(variance)
    second, fourth = table[SQUARES] / K, table[FOURTHS] / K
    # μ₄ ≥ μ₂², so that this is at least 2 μ₂² / (K − 1) / K.
    variance_se = np.sqrt((fourth - second**2 * (K - 3) / (K - 1)) / K)
    # Returns that are all alike have s = 0 without error.
    std_se = np.divide(variance_se, 2 * std, out=variance_se.copy(), where=std != 0)
    return Moments(mean, variance, std, np.sqrt(variance / K), variance_se, std_se)
