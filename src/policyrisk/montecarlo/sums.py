"""Sums over returns, one column per state, that are added up block by block and never lose digits.

Column i of a table (7, n) is, for the returns g_1, …, g_K seen so far from state i,

    K,   ḡ,   Σ (g_k − ḡ)²,   Σ (g_k − ḡ)³,   Σ (g_k − ḡ)⁴,   cut-off episodes,   steps

the first five as :mod:`policyrisk._core.central_sums` has them, with the errors of ḡ and of s²; that of s is
the latter divided by 2s (delta method).

It is all one array of floats (whole numbers are exact in them up to 2⁵³) so that a block is taken in by a
single assignment: an interrupt finds a block in the table or not there, never half of it.
"""

from __future__ import annotations

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.central_sums import COUNT, MEAN, add_samples, central_sums, sample_moments
from policyrisk.simulation.compiled import Returns

CUT_OFF, STEPS = 5, 6  # the rows after those
ROWS = 7


def tabulate(batch: Returns, discount: float) -> Floats:
    """The table (7, m) of k episodes from each of m states, in arrays (m, k).

    An episode that was stopped after ℓ steps counts as cut off unless the weight γ^ℓ of the reward that would
    have come next is below the 2⁻⁵³ of rounding, as in a discounted task that goes on for ever.
    """
    matters = discount ** batch.lengths.astype(np.float64) >= 2.0**-53
    cut_off, steps = np.sum(~batch.terminated & matters, axis=1), np.sum(batch.lengths, axis=1)
    return np.stack([*central_sums(batch.returns), cut_off, steps])


def merge(one: Floats, other: Floats) -> Floats:
    """The table (7, m) of two tables' episodes together; a column without episodes changes nothing."""
    table = one + other
    table[:CUT_OFF] = add_samples(one[:CUT_OFF], other[:CUT_OFF])
    return table


def estimates(table: Floats) -> dict[str, Floats]:
    """What a table says, each of shape (n,), by its name in the record; nan where there are too few."""
    variance, ((of_mean, _), (_, of_variance)) = sample_moments(table)
    std, variance_se = np.sqrt(variance), np.sqrt(of_variance)
    return {
        "mean": np.where(table[COUNT] >= 1, table[MEAN], np.nan),
        "variance": variance,
        "std": std,
        "mean_se": np.sqrt(of_mean),
        "variance_se": variance_se,
        # Returns that are all alike have s = 0 without error.
        "std_se": np.divide(variance_se, 2 * std, out=variance_se.copy(), where=std != 0),
    }
