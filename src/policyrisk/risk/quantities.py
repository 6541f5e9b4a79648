"""The five quantities of a mean J̃ and a variance Ṽ, their gradients and their intervals: pure functions.

    mean J̃,   second moment M̃ = Ṽ + J̃²,   variance Ṽ,   std √Ṽ,   Sharpe ratio J̃/√Ṽ

With the weights w_J and w_second, the gradient of each is (a_J φ_J, a_M φ_M), where φ_Mᵀ w_second is M̃ for
variance="second-moment" (Ṽ = M̃ − J̃²) and Ṽ for variance="direct". A negative Ṽ has neither std nor
ratio: they are nan.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk.errors import InvalidInputError
from policyrisk.risk.estimate import student_quantile

VarianceMethod: TypeAlias = Literal["second-moment", "direct"]
Quantity: TypeAlias = Literal["mean", "second_moment", "variance", "std", "sharpe"]


def value(of: Quantity, J: Floats, V: Floats) -> Floats:
    """The quantity of means and variances, of their shape.

    >>> value("sharpe", np.array([6.0, 6.0]), np.array([4.0, -4.0]))
    array([ 3., nan])
    """
    if of == "mean":
        return J
    if of == "second_moment":
        return V + J**2
    if of == "variance":
        return V
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(V)
        return root if of == "std" else J / root


def gradient(of: Quantity, J: Floats, V: Floats, method: VarianceMethod) -> tuple[Floats, Floats]:
    """a_J and a_M of the module's docstring: the derivatives by J̃ and by φ_Mᵀw, each of shape (n,)."""
    paper = method == "second-moment"
    zero, one = np.zeros_like(J), np.ones_like(J)
    if of == "mean":
        return one, zero
    if of == "second_moment":
        return (zero if paper else 2 * J), one
    dV_J = -2 * J if paper else zero
    if of == "variance":
        return dV_J, one
    root = np.sqrt(np.where(V > 0, V, np.nan))
    if of == "std":
        return dV_J / (2 * root), one / (2 * root)
    return one / root - J * dV_J / (2 * root**3), -J / (2 * root**3)


def student_interval(estimate: Floats, error: Floats, episodes: Floats, level: float) -> Floats:
    """estimate ± t · error with so many episodes behind each, of shape (n, 2)."""
    half = student_quantile(level, episodes) * error
    return np.column_stack([estimate - half, estimate + half])


def bootstrap_interval(
    of: Quantity,
    J: Floats,  # (n,)
    V: Floats,  # (n,)
    dJ: Floats,  # (n, B): what the replicates add to φ_Jᵀw_J
    dM: Floats,  # (n, B): and to φ_Mᵀw_second
    method: VarianceMethod,
    level: float,
) -> Floats:
    """The replicates of ranks k and B − 1 − k in order, k = ⌊B (1 − level)/2⌋, of shape (n, 2).

    A replicate with V ≤ 0 counts as std 0, and as a Sharpe ratio of ±∞ with the sign of its mean: as V falls
    to 0, that is where they go.
    """
    B = dJ.shape[1]
    k = int(B * (1.0 - level) / 2.0 + 1e-9)  # 1 − 0.9 is a little less than 0.1
    if k < 1:
        raise InvalidInputError(
            f"level must leave some of the {B} bootstrap replicates outside, got {level:g}; fit with "
            f"bootstrap={int(np.ceil(2.0 / (1.0 - level) - 1e-9))} or more, or pass a lower level"
        )
    J_b = J[:, None] + dJ
    V_b = V[:, None] + dM if method == "direct" else (V + J**2)[:, None] + dM - J_b**2
    if of in ("std", "sharpe"):
        V_b = np.maximum(V_b, 0.0)
    replicates = value(of, J_b, V_b)
    # An estimate that does not exist has no interval, whatever its replicates.
    exists = ~np.isnan(value(of, J, V))[:, None]
    return np.sort(np.where(exists, replicates, np.nan), axis=1)[:, [k, B - 1 - k]]
