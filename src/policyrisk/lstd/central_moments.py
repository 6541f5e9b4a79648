"""The third and fourth central moments of the reward to go, from the one-step errors and what is known.

With δ_t = r_t + γJ̃(x_{t+1}) − J̃(x_t), μ̃_0 = 1, μ̃_1 = 0 and μ̃_2 = Ṽ, each follows from those before it,

    C_k w_k = Σ_t y_t Σ_{j<k} binom(k, j) δ_t^{k−j} γ^j μ̃_j(x_{t+1})        μ̃_k = φ_kᵀ w_k

    C_k = Σ_t y_t (φ_k(x_t) − γ^k φ_k(x_{t+1}))ᵀ                            y_t = λγ^k y_{t−1} + φ_k(x_t)

where φ_k and μ̃_j, j > 0, are 0 where the episode terminated. For k = 2 that is the direct variance. C_k is
the matrix A of the equations with the discount γ^k; with γ = 1 and φ_k = φ_M it is C. The sums add, a pass
for each k and another for each matrix that is not known yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk.equations import MomentEquations, Weights
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.lstd.accumulate import accumulate
from policyrisk.lstd.chunks import Chunk, Plan, by_chunks
from policyrisk.markov import MarkovChain
from policyrisk.markov.projected import ProjectedChain
from policyrisk.passes.fold import Fold
from policyrisk.risk import RiskFunction
from policyrisk.risk.higher_moments import HigherMoments
from policyrisk.risk.support import supports_of
from policyrisk.trajectories import Source, Trajectories


def with_higher_moments(
    risk: RiskFunction, maps: Sequence[Features], weights: Weights, sums: MomentPasses | ExactMoments
) -> RiskFunction:
    """An estimate with the moments of these maps, φ_3 and φ_4, besides; C is in the weights' systems."""
    gamma, ridge = risk.provenance.discount, risk.provenance.ridge
    known: list[tuple[Features, float, Any, Any]]
    known = [(risk.second_features, gamma**2, weights.second_system, risk.second_support)]
    for k, phi in enumerate(maps, start=3):
        found = next((each for each in known if each[:2] == (phi, gamma**k)), None)
        if found is None:
            equations = sums.equations(phi, gamma**k)
            system = equations.mean_system(ridge, f"the matrix of central moment {k}")
            found = phi, gamma**k, system, supports_of(equations)[0]
            known.append(found)
        w, so_far = found[2].solve(sums.right_hand_side(risk, phi)), risk.higher or HigherMoments()
        higher = HigherMoments((*so_far.features, phi), (*so_far.weights, w), (*so_far.supports, found[3]))
        risk = replace(risk, higher=higher)
    return risk


@dataclass(frozen=True, eq=False)
class MomentPasses:
    """The sums over data that a fold goes over."""

    fold: Fold
    lam: float

    def equations(self, phi: Features, discount: float) -> MomentEquations:
        """Those whose matrix A is C_k, of φ_k and γ^k."""
        lam = self.lam
        return self.fold(lambda source, _: accumulate(source, phi, lam=lam, discount=discount))

    def right_hand_side(self, risk: RiskFunction, phi: Features) -> Floats:
        """That of the first moment that an estimate lacks, (l_k,)."""
        return self.fold(lambda source, _: moment_right_hand_side(source, risk, phi))


@dataclass(frozen=True, eq=False)
class ExactMoments:
    """The expectations of one episode of a known chain."""

    chain: MarkovChain
    zeta: Floats  # (n,): ζ0
    lam: float

    def _projected(self, phi: Features, discount: float) -> ProjectedChain:
        chain = MarkovChain.from_branches(self.chain.branches, discount)
        return ProjectedChain(chain, phi, phi, self.zeta, lam=self.lam, discount=discount)

    def equations(self, phi: Features, discount: float) -> MomentEquations:
        """Those whose matrix A is C_k, of φ_k and γ^k."""
        return self._projected(phi, discount).equations()

    def right_hand_side(self, risk: RiskFunction, phi: Features) -> Floats:
        """That of the first moment that an estimate lacks, (l_k,)."""
        J, mu = moments_at(risk, np.arange(self.chain.n, dtype=np.float64)[:, None])
        self.chain.refuse_noise(f"moments={len(mu)}")
        Y = self._projected(phi, self.chain.discount ** len(mu)).Z
        return np.asarray(Y.T @ self.chain.expected_moment(J, mu))


def moment_right_hand_side(source: Source, risk: RiskFunction, phi: Features) -> Floats:
    """Σ_t y_t Σ_{j<k} binom(k, j) δ_t^{k−j} γ^j μ̃_j(x_{t+1}) for the first k that ``risk`` lacks, (l_k,).

    >>> import policyrisk as pr
    >>> table = pr.Tabular(1)
    >>> data = Trajectories([[0], [1], [0], [1], [0], [1]], [1.0, 1.0, 4.0], [1, 1, 1], [True] * 3)
    >>> moment_right_hand_side(data, pr.LSTD(table).fit(data), table)  # −1 − 1 + 8
    array([6.])
    """
    lam, discount = risk.provenance.lam, risk.provenance.discount
    order = 3 if risk.higher is None else risk.higher.order + 1
    total = np.zeros(phi.size)
    for part in by_chunks(partial(_terms, risk), source, phi, phi, lam, discount**order):
        total += part
    return total


def moments_at(risk: RiskFunction, states: Floats) -> tuple[Floats, Floats]:
    """J̃ (n,) and the central moments that are known (k, n) at states (n, dim), whatever was visited."""
    maps, weights = [risk.features, risk.second_features], [risk.w_mean, risk.w_second]
    if risk.higher is not None:
        maps, weights = [*maps, *risk.higher.features], [*weights, *risk.higher.weights]
    seen: list[tuple[Features, Any]] = []
    values = []
    for phi, w in zip(maps, weights, strict=True):
        rows = next((rows for other, rows in seen if other == phi), None)
        if rows is None:
            rows = matrix_of(phi, states)
            seen.append((phi, rows))
        values.append(np.asarray(rows @ w))
    J, second, *higher = values
    V = second if risk.variance_method == "direct" else second - J**2
    return J, np.stack([np.ones_like(J), np.zeros_like(J), V, *higher])


def _terms(risk: RiskFunction, plan: Plan, data: Trajectories) -> Floats:
    """What a chunk adds."""
    chunk, gamma = Chunk.of(data), risk.provenance.discount
    J, mu = moments_at(risk, chunk.states)
    now, then = data.visited_rows, data.visited_rows + 1
    after, J_next = mu[:, then], J[then]
    ended = data.offsets[1:][data.terminated] - 1
    after[1:, ended] = J_next[ended] = 0.0
    delta, k = data.rewards + gamma * J_next - J[now], len(mu)
    x: Floats = np.sum([comb(k, j) * delta ** (k - j) * gamma**j * after[j] for j in range(k)], axis=0)
    H = plan.to_go(x, chunk, plan.decays[0])
    total: Floats = np.sum([phi.weighted_sum(H[at]) for at, phi, _ in plan.blocks(chunk)], axis=0)
    return total
