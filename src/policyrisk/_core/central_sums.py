"""Samples as sums about their mean: they add, and lose no digits however far the mean is from 0.

Of a sample g_1, …, g_K there are five rows,

    K,   ḡ = Σ g_k / K,   Σ (g_k − ḡ)²,   Σ (g_k − ḡ)³,   Σ (g_k − ḡ)⁴

and of many samples side by side an array of shape (5, …). With μ_p = Σ (g_k − ḡ)^p / K,

    variance       s² = K μ₂ / (K − 1)                              (unbiased)
    covariance     Var ḡ = s² / K,   Cov(ḡ, s²) = μ₃ / K,   Var s² = (μ₄ − μ₂² (K − 3) / (K − 1)) / K
"""

from __future__ import annotations

import numpy as np

from policyrisk._core.arrays import Floats

COUNT, MEAN, SQUARES, CUBES, FOURTHS = range(5)


def central_sums(g: Floats) -> Floats:
    """The sums (5, …) of samples (…, K); the mean of none is nan."""
    K = g.shape[-1]
    mean = g.sum(axis=-1) / K if K else np.full(g.shape[:-1], np.nan)
    deviation = g - mean[..., None]
    with np.errstate(over="ignore", invalid="ignore"):  # of rewards whose unit is not known yet
        squared = deviation * deviation
        powers = (squared, squared * deviation, squared * squared)
        return np.stack([np.full_like(mean, K), mean, *(power.sum(axis=-1) for power in powers)])


def add_samples(one: Floats, other: Floats) -> Floats:
    """The sums (5, …) of two samples together, by Pébay's formulas; one that is empty changes nothing.

    >>> add_samples(central_sums(np.array([1.0, 2.0])), central_sums(np.array([6.0])))
    array([ 3.,  3., 14., 18., 98.])
    """
    a, b = one[COUNT], other[COUNT]
    n = np.maximum(a + b, 1.0)
    delta = other[MEAN] - one[MEAN]
    both = one + other
    both[MEAN] = one[MEAN] + delta * b / n
    both[SQUARES] += delta**2 * a * b / n
    both[CUBES] += delta**3 * a * b * (a - b) / n**2 + 3 * delta * (a * other[SQUARES] - b * one[SQUARES]) / n
    both[FOURTHS] += (
        delta**4 * a * b * (a**2 - a * b + b**2) / n**3
        + 6 * delta**2 * (a**2 * other[SQUARES] + b**2 * one[SQUARES]) / n**2
        + 4 * delta * (a * other[CUBES] - b * one[CUBES]) / n
    )
    return np.where(a == 0, other, np.where(b == 0, one, both))


def sample_moments(sums: Floats) -> tuple[Floats, Floats]:
    """s² (…) of each sample, and the covariance (2, 2, …) of ḡ and s²; nan for fewer than two values."""
    K = np.where(sums[COUNT] >= 2, sums[COUNT], np.nan)
    variance: Floats = sums[SQUARES] / (K - 1)
    second, third, fourth = sums[SQUARES] / K, sums[CUBES] / K, sums[FOURTHS] / K
    # μ₄ ≥ μ₂², so that this is at least 2 μ₂² / (K − 1) / K.
    of_variance = (fourth - second**2 * (K - 3) / (K - 1)) / K
    return variance, np.array([[variance / K, third / K], [third / K, of_variance]])
