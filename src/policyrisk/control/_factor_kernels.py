"""What every step's ∇log π counts for, by one pass backwards over each episode."""

from __future__ import annotations

import numpy as np
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints


@njit(cache=True, error_model="numpy")
def step_factors(
    rewards: Floats,  # (transitions,)
    lengths: Ints,  # (episodes,)
    terminated: Bools,  # (episodes,)
    J: Floats,  # (transitions + episodes,) the critic's at every state, nan where it knows nothing
    M: Floats,  # (transitions + episodes,)
    J_0: Floats,  # (episodes,) the mean return that each episode is compared with
    by_mean: Floats,  # (episodes,)
    by_variance: Floats,  # (episodes,)
    gamma: float,
    lam: float,
    out: Floats,  # (transitions,)
) -> None:
    """The formulas of :mod:`policyrisk.control.actor_critic`."""
    first = 0
    for e in range(len(lengths)):
        T = lengths[e]
        earned, weight = 0.0, 1.0  # R_<t and γ^t, which go back to t = 0 below
        for t in range(T):
            out[first + t] = earned
            earned += weight * rewards[first + t]
            weight *= gamma
        x = first + e
        next_J = 0.0 if terminated[e] else J[x + T]
        next_M = 0.0 if terminated[e] else M[x + T]
        for t in range(T - 1, -1, -1):
            r = rewards[first + t]
            target_M = r**2 + 2.0 * gamma * r * next_J + gamma**2 * next_M
            target_J = r + gamma * next_J
            d_J, d_M = target_J - J[x + t], target_M - M[x + t]
            weight = gamma**t
            push = weight * d_J * (by_mean[e] + 2.0 * by_variance[e] * (out[first + t] - J_0[e]))
            out[first + t] = push + weight**2 * d_M * by_variance[e]
            # Where the critic knows nothing, what came after stands in for it, unless λ is 0.
            share = 1.0 if lam > 0.0 and np.isnan(d_J + d_M) else lam
            next_J = target_J - (1.0 - share) * d_J if share < 1.0 else target_J
            next_M = target_M - (1.0 - share) * d_M if share < 1.0 else target_M
        first += T
