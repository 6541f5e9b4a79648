"""Critics, and what episodes of another policy add to them where the logging probabilities are known.

With F_t, what is expected at x_t of the squared return about some c, and H_t, the same once a_t is chosen,

    F_t = γ^{2t} Ṽ(x_t) + (R_{<t} + γ^t J̃(x_t) − c)²        H_t likewise with V_Q and Q̃_J at (x_t, a_t)

the terms of :mod:`policyrisk.lstd.doubly_robust` telescope, γ^{2t} δ^M_t + 2γ^t (R_{<t} − c) δ^J_t being
F_{t+1} − H_t:

    S_k = F_0 + Σ_t ρ_{0:t} (F_{t+1} − H_t)        J_k = g_0 + Σ_t ρ_{0:t} (g_{t+1} − h_t)

g_t and h_t being what is expected of the return itself, the brackets above with c = 0.

A pair (x, a) that the critics know nothing of is given J̃(x) and Ṽ(x) of those that they do know, or 0 where
they know none: unbiased all the same where such actions were ever drawn. Where they were not, they are
valued like the others, which is what LSTDQ does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Floats, Ints
from policyrisk.data import Trajectories
from policyrisk.features.target import spread_about
from policyrisk.risk import RiskFunction
from policyrisk.risk.readout import Choice

_CELLS, _FEWEST, _MOST = 1 << 21, 128, 1 << 14  # numbers that are formed at a time; states at a time


@dataclass(frozen=True, eq=False)
class CriticValues:
    """What critics say of some episodes; 0 where an episode terminated."""

    J: Floats  # (transitions + episodes,): J̃, of every row of the states
    V: Floats  # (transitions + episodes,): Ṽ
    Q: Floats  # (transitions,): Q̃_J(x_t, a_t)
    V_Q: Floats  # (transitions,): Q̃_M − Q̃_J²

    @classmethod
    def of(cls, risk: RiskFunction, data: Trajectories) -> CriticValues:
        """Those of an estimate of LSTDQ."""
        n = len(data.states)
        values, taken = np.zeros((2, n)), np.zeros((2, n))
        action = np.zeros(n, dtype=np.int64)
        action[data.visited_rows] = np.asarray(data.actions)
        goes_on = np.ones(n, dtype=np.bool_)
        goes_on[data.final_rows[data.terminated]] = False  # what is never shown to the features
        rows = np.flatnonzero(goes_on)
        sparse = sp.issparse(risk.features(data.states[rows[:1]]))
        most = _MOST if sparse else max(_CELLS // max(risk.features.size, risk.second_features.size), _FEWEST)
        for first in range(0, rows.size, most):
            some = rows[first : first + most]
            at = Choice.at(risk, data.states[some])
            Q, second = at.mean.values(risk.w_mean), at.second.values(risk.w_second)
            V_Q = second if risk.variance_method == "direct" else second - Q**2
            J = (at.pi * Q).sum(axis=1)
            V = (at.pi * V_Q).sum(axis=1) + (spread_about(at.pi, Q) * Q).sum(axis=1)
            values[:, some] = J, V
            of = np.arange(some.size), action[some]
            known = at.episodes[of] > 0
            taken[:, some] = np.where(known, Q[of], J), np.where(known, V_Q[of], V)
        return cls(*values, *taken[:, data.visited_rows])

    def only_at(self, rows: Ints) -> CriticValues:
        """The same at some rows of the states, and 0 everywhere else."""
        J, V = np.zeros_like(self.J), np.zeros_like(self.V)
        J[rows], V[rows] = self.J[rows], self.V[rows]
        return CriticValues(J, V, np.zeros_like(self.Q), np.zeros_like(self.V_Q))


@dataclass(frozen=True, eq=False)
class EpisodeTerms:
    """J_k and S_k of some episodes, and what importance sampling is made of."""

    J: Floats  # (K,)
    S: Floats  # (K,): about c
    weight: Floats  # (K,): ρ of the whole episode
    g: Floats  # (K,): the return, with the critics' J̃ for what a cut-off episode misses
    f: Floats  # (K,): F at its end

    @classmethod
    def of(
        cls,
        data: Trajectories,
        ratios: Floats,  # (transitions,): π/μ of each step
        critic: CriticValues,
        discount: float,
        centre: float,  # c
        last: Ints | None = None,  # (K,): the step that each ends with; all of them where None
    ) -> EpisodeTerms:
        """The terms of some episodes."""
        out = np.empty((5, len(data)))
        last = data.lengths if last is None else last
        arrays = critic.J, critic.V, critic.Q, critic.V_Q
        _sum_episodes(data.rewards, ratios, data.offsets, last, *arrays, discount, centre, out)
        return cls(*out)


@njit(cache=True)
def _sum_episodes(
    rewards: Floats,
    ratios: Floats,
    offsets: Ints,
    last: Ints,
    J: Floats,
    V: Floats,
    Q: Floats,
    V_Q: Floats,
    discount: float,
    centre: float,
    out: Floats,
) -> None:
    for k in range(last.size):
        row = offsets[k] + k
        R, power, rho = 0.0, 1.0, 1.0
        g = J[row]
        F = V[row] + (g - centre) ** 2
        J_k, S_k = g, F
        for step in range(last[k]):
            t = offsets[k] + step
            rho *= ratios[t]
            h = R + power * Q[t]
            H = power**2 * V_Q[t] + (h - centre) ** 2
            R += power * rewards[t]
            power *= discount
            g = R + power * J[row + step + 1]
            F = power**2 * V[row + step + 1] + (g - centre) ** 2
            J_k += rho * (g - h)
            S_k += rho * (F - H)
        out[0, k], out[1, k], out[2, k], out[3, k], out[4, k] = J_k, S_k, rho, g, F
