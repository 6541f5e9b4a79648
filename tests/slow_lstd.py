"""LSTD(λ) with its sandwich, from the equations with dense loops: slow, and independent of the library.

A w_J = b,   C w_M = e + D w_J   or, direct,   C w_V = Σ y_t δ_t²
ψ_J,k = A⁻¹(b_k − A_k w_J),   ψ_M,k = C⁻¹(d_k − C_k w_M + D ψ_J,k),   Σ = Σ_k ψ_k ψ_kᵀ / K²
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from conftest import dense

import policyrisk as pr
from policyrisk.errors import SingularSystemError
from policyrisk.risk import ErrorBars, Provenance, RiskFunction, SampleReturns
from policyrisk.risk.support import Support
from policyrisk.trajectories import batches


def spread(features, states, used):
    out = np.zeros((len(states), features.size))
    out[used] = dense(features(states[used]))
    return out


@dataclass(frozen=True)
class SlowLSTD:
    features: object
    second: object
    lam: float = 0.9
    discount: float = 1.0
    variance: str = "second-moment"
    bootstrap: int = 0

    def fit(self, data):
        data = pr.Trajectories.concatenate(batches(data))
        used = np.ones(len(data.states), dtype=bool)
        used[data.final_rows[data.terminated]] = False  # the end has no features
        phi_J, phi_M = spread(self.features, data.states, used), spread(self.second, data.states, used)
        g, lam, K = self.discount, self.lam, len(data)
        sums = []
        for k in range(K):
            T = data.lengths[k]
            rows = slice(data.offsets[k] + k, data.offsets[k] + k + T + 1)
            J, M, r = phi_J[rows].copy(), phi_M[rows].copy(), data.rewards[data.offsets[k] :][:T]
            z, y = np.zeros_like(J[:-1]), np.zeros_like(M[:-1])
            for t in range(T):
                z[t] = J[t] + (lam * g * z[t - 1] if t else 0.0)
                y[t] = M[t] + (lam * g**2 * y[t - 1] if t else 0.0)
            sums.append((J, M, r, z, y))
        A_k = np.array([z.T @ (J[:-1] - g * J[1:]) for J, _, _, z, _ in sums])
        b_k = np.array([z.T @ r for _, _, r, z, _ in sums])
        C_k = np.array([y.T @ (M[:-1] - g**2 * M[1:]) for _, M, _, _, y in sums])
        kept_J = np.flatnonzero(np.abs(phi_J[data.visited_rows]).sum(axis=0) > 0)
        kept_M = np.flatnonzero(np.abs(phi_M[data.visited_rows]).sum(axis=0) > 0)
        w_J = np.zeros(phi_J.shape[1])
        A = A_k.mean(axis=0)[np.ix_(kept_J, kept_J)]
        C = C_k.mean(axis=0)[np.ix_(kept_M, kept_M)]
        if max(np.linalg.cond(A), np.linalg.cond(C)) > 1e12:
            raise SingularSystemError("A is singular; use fewer features")
        w_J[kept_J] = np.linalg.solve(A, b_k.mean(axis=0)[kept_J])
        if self.variance == "direct":
            delta = [r + g * J[1:] @ w_J - J[:-1] @ w_J for J, _, r, _, _ in sums]
            d_k = np.array([s[4].T @ d**2 for s, d in zip(sums, delta, strict=True)])
            D = np.mean(
                [
                    s[4].T @ (2 * d[:, None] * (g * s[0][1:] - s[0][:-1]))
                    for s, d in zip(sums, delta, strict=True)
                ],
                axis=0,
            )
        else:
            D_k = np.array([y.T @ (2 * g * r[:, None] * J[1:]) for J, _, r, _, y in sums])
            d_k = np.array([y.T @ r**2 for _, _, r, _, y in sums]) + D_k @ w_J
            D = D_k.mean(axis=0)
        w_M = np.zeros(phi_M.shape[1])
        w_M[kept_M] = np.linalg.solve(C, d_k.mean(axis=0)[kept_M])
        psi_J = np.linalg.solve(A, (b_k - A_k @ w_J)[:, kept_J].T).T
        inner = (d_k - C_k @ w_M)[:, kept_M] + psi_J @ D[np.ix_(kept_M, kept_J)].T
        psi_M = np.linalg.solve(C, inner.T).T
        psi = np.hstack([psi_J, psi_M])
        sigma = psi.T @ psi / K**2
        k = kept_J.size
        replicates = None
        if self.bootstrap:
            multipliers = np.random.default_rng(0).standard_normal((self.bootstrap, K))
            replicates = multipliers @ psi / K
        terminated = data.returns(g)[data.terminated]
        return RiskFunction(
            features=self.features,
            second_features=self.second,
            w_mean=w_J,
            w_second=w_M,
            variance_method=self.variance,
            support=support(self.features, phi_J, data),
            second_support=support(self.second, phi_M, data),
            provenance=Provenance("slow LSTD", lam, g, 0.0, K, int(data.terminated.sum()), data.transitions),
            error_bars=ErrorBars(kept_J, kept_M, sigma[:k, :k], sigma[:k, k:], sigma[k:, k:], replicates),
            returns=SampleReturns.of(terminated),
        )


def support(features, phi, data):
    visited = phi[data.visited_rows]
    episode = np.repeat(np.arange(len(data)), data.lengths)
    behind = np.zeros(phi.shape[1])
    for k in range(len(data)):
        behind += np.any(visited[episode == k] != 0, axis=0)
    sparse = sp.issparse(features(data.states[:1]))
    return Support(
        visits=(visited != 0).sum(axis=0).astype(float),
        feature_episodes=behind,
        episodes=len(data),
        gram=None if sparse else visited.T @ visited,
        limit=1.0,
    )
