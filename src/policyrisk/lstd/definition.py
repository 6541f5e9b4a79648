"""LSTD(λ) as it is defined: the sums of sec. 4.1 and 4.3 of the paper, step by step, and their error bars.

Slow and readable. Nothing in the library calls it: it is what the fast sums
(:mod:`policyrisk.lstd.accumulate`) and the fast error bars (:mod:`policyrisk.lstd.influences`) are tested
against.

Episode k is x_0, r_0, x_1, …, r_{T−1}, x_T. With traces z and y that are 0 before it, and with
φ_J(x_T) = φ_M(x_T) = 0 where it terminated in x_T (and only there: where it was cut off in x_T, they are that
state's features), it adds

    z_t = λγ z_{t−1} + φ_J(x_t)                         y_t = λγ² y_{t−1} + φ_M(x_t)

    A_k = Σ_t z_t (φ_J(x_t) − γ φ_J(x_{t+1}))ᵀ          b_k = Σ_t z_t r_t
    C_k = Σ_t y_t (φ_M(x_t) − γ² φ_M(x_{t+1}))ᵀ         e_k = Σ_t y_t r_t²
    D_k = Σ_t y_t 2γ r_t φ_J(x_{t+1})ᵀ

to the equations, which are (12) of the paper for λ = 0 and γ = 1, and (14) for λ > 0:

    A w_J = b        C w_M = d,    d = e + D w_J        A = Σ_k A_k, and so on

The direct variance (Sherstan et al. 2018) replaces e_k + D_k w_J, and D by its derivative in w_J:

    δ_t = r_t + γ φ_J(x_{t+1})ᵀ w_J − φ_J(x_t)ᵀ w_J     ε_t = Σ_{s≥t} (κγ)^{s−t} δ_s
    d_k = Σ_t y_t δ_t (2ε_t − δ_t)                      D_k = Σ_t 2 y_t ((ε_t − δ_t) δ_t' + δ_t ε_t')ᵀ

with δ_t' = γ φ_J(x_{t+1}) − φ_J(x_t) and ε_t' = Σ_{s≥t} (κγ)^{s−t} δ_s'; κ = 0 is d_k = Σ_t y_t δ_t².

Episodes are independent, so that the covariance of the weights is a sandwich: with A, C, D now means over the
K episodes, an episode moves the weights by

    ψ_J,k = A⁻¹ (b_k − A_k w_J)        ψ_M,k = C⁻¹ (d_k − C_k w_M + D ψ_J,k)

    Cov(w_J, w_M) = Σ_k (ψ_k − ψ̄)(ψ_k − ψ̄)ᵀ / (K (K − 1))

and where the positive-variance constraint (sec. 5) is active, H w_M = g(w_J), with G = dg/dw_J,

    C ψ_M,k + Hᵀ ψ_μ,k = d_k − C_k w_M + D ψ_J,k        H ψ_M,k = G ψ_J,k.

A feature that no transition started in, or that the others determine, makes A singular: the inverses are
pseudo-inverses.

For another policy π than the one that logged (:class:`ActionDefinition`), with φ_t = φ(x_t, a_t) and
φ̄(x) = Σ_a π(a|x) φ(x, a), 0 where the episode terminated in x,

    z_t = λγ c_t z_{t−1} + φ_J,t                        y_t = λγ² c_t y_{t−1} + φ_M,t

    A_k = Σ_t z_t (φ_J,t − γ φ̄_J(x_{t+1}))ᵀ            b_k = Σ_t z_t r_t
    C_k = Σ_t y_t (φ_M,t − γ² φ̄_M(x_{t+1}))ᵀ           e_k = Σ_t y_t r_t²
    D_k = Σ_t y_t 2γ r_t φ̄_J(x_{t+1})ᵀ

with c_t = π(a_t|x_t), or min(1, ρ_t), ρ_t = π(a_t|x_t) / μ(a_t|x_t), where the logging probabilities μ are
known. Direct variance, Q̃ = φ_Jᵀ w_J:

    d_k = Σ_t y_t Σ_a' π(a'|x_{t+1}) δ_t(a')²           δ_t(a') = r_t + γ Q̃(x_{t+1}, a') − Q̃(x_t, a_t)
    D_k = Σ_t y_t Σ_a' π(a'|x_{t+1}) 2 δ_t(a') (γ φ_J(x_{t+1}, a') − φ_J,t)ᵀ

and where it terminated, one δ_t = r_t − Q̃(x_t, a_t) in place of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, as_dense
from policyrisk.data import Trajectories
from policyrisk.features import Features

_SINGULAR = 1e-10  # singular values below this share of the largest are 0


@dataclass(frozen=True, eq=False)
class Terms:
    """What one episode adds to the equations; they add."""

    A: Floats  # (l_J, l_J)
    b: Floats  # (l_J,)
    C: Floats  # (l_M, l_M)
    D: Floats  # (l_M, l_J)
    e: Floats  # (l_M,)

    def __add__(self, other: Terms) -> Terms:
        return Terms(*(getattr(self, name) + getattr(other, name) for name in "AbCDe"))


@dataclass(frozen=True)
class Definition:
    """The settings of LSTD(λ), and the loops.

    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [1], [2]], [1.0, 3.0], [2], [True])
    >>> lstd = Definition(Tabular(2), Tabular(2), lam=0.0)
    >>> lstd.terms(data).A
    array([[ 1., -1.],
           [ 0.,  1.]])
    >>> w_J, w_M = lstd.weights(data)
    >>> w_J.round(9), w_M.round(9)
    (array([4., 3.]), array([16.,  9.]))
    """

    features: Features  # φ_J
    second_features: Features  # φ_M
    lam: float = 0.9  # λ
    discount: float = 1.0  # γ
    ridge: float = 0.0  # added to the diagonals of A/K and C/K
    direct: bool = False  # whether w_M is w_V, the direct variance's
    variance_lam: float = 0.0  # κ

    def terms(self, episode: Trajectories) -> Terms:
        """A_k, b_k, C_k, D_k and e_k of a single episode."""
        lam, gamma, c = self.lam, self.discount, self._factors(episode)
        phi_J, next_J = self._pairs(self.features, episode)
        phi_M, next_M = self._pairs(self.second_features, episode)
        l_J, l_M = phi_J.shape[1], phi_M.shape[1]
        A, b = np.zeros((l_J, l_J)), np.zeros(l_J)
        C, D, e = np.zeros((l_M, l_M)), np.zeros((l_M, l_J)), np.zeros(l_M)
        z, y = np.zeros(l_J), np.zeros(l_M)
        for t, r in enumerate(episode.rewards):
            z = lam * gamma * c[t] * z + phi_J[t]
            y = lam * gamma**2 * c[t] * y + phi_M[t]
            A += np.outer(z, phi_J[t] - gamma * next_J[t])
            b += z * r
            C += np.outer(y, phi_M[t] - gamma**2 * next_M[t])
            D += np.outer(y, 2 * gamma * r * next_J[t])
            e += y * r**2
        return Terms(A, b, C, D, e)

    def right_hand_side(self, episode: Trajectories, w_J: Floats) -> tuple[Floats, Floats]:
        """d_k (l_M,) of a single episode, and D_k (l_M, l_J), its derivative in w_J."""
        if not self.direct:
            k = self.terms(episode)
            return k.e + k.D @ w_J, k.D
        lam, gamma, c = self.lam, self.discount, self._factors(episode)
        phi_J, next_J = self._pairs(self.features, episode)
        phi_M, _ = self._pairs(self.second_features, episode)
        y, d, D = np.zeros(phi_M.shape[1]), np.zeros(phi_M.shape[1]), np.zeros((phi_M.shape[1], len(w_J)))
        slope = gamma * next_J - phi_J
        delta = episode.rewards + slope @ w_J
        for t, choices in enumerate(self._choices(self.features, episode)):
            y = lam * gamma**2 * c[t] * y + phi_M[t]
            for pi, phi in zip(*choices, strict=True):
                delta_a = episode.rewards[t] + gamma * phi @ w_J - phi_J[t] @ w_J
                d += y * pi * delta_a**2
                D += np.outer(y, pi * 2 * delta_a * (gamma * phi - phi_J[t]))
            decay = (self.variance_lam * gamma) ** np.arange(len(delta) - t)
            epsilon, epsilon_slope = decay @ delta[t:], decay @ slope[t:]
            d += y * 2 * delta[t] * (epsilon - delta[t])
            D += np.outer(2 * y, (epsilon - delta[t]) * slope[t] + delta[t] * (epsilon_slope - slope[t]))
        return d, D

    def weights(self, data: Trajectories) -> tuple[Floats, Floats]:
        """w_J (l_J,) and w_M (l_M,), of minimum norm."""
        K, total = len(data), reduce(add, map(self.terms, data))
        w_J = self._inverse(total.A / K) @ total.b / K
        d = np.sum([self.right_hand_side(episode, w_J)[0] for episode in data], axis=0)
        return w_J, self._inverse(total.C / K) @ d / K

    def influences(
        self,
        data: Trajectories,
        w_J: Floats,
        w_M: Floats,
        face: tuple[Floats, Floats] | None = None,  # H (active, l_M) and G (active, l_J)
    ) -> tuple[Floats, Floats]:
        """ψ_J (K, l_J) and ψ_M (K, l_M), a row for each episode."""
        terms = [self.terms(episode) for episode in data]
        right = [self.right_hand_side(episode, w_J) for episode in data]
        A, C = np.mean([k.A for k in terms], axis=0), np.mean([k.C for k in terms], axis=0)
        D = np.mean([D_k for _, D_k in right], axis=0)
        H, G = (np.zeros((0, len(C))), np.zeros((0, len(A)))) if face is None else face
        A_inverse = self._inverse(A)
        bordered = np.block([[C + self.ridge * np.eye(len(C)), H.T], [H, np.zeros((len(H), len(H)))]])
        bordered_inverse = _pinv(bordered)
        psi_J, psi_M = [], []
        for k, (d_k, _) in zip(terms, right, strict=True):
            psi_J.append(A_inverse @ (k.b - k.A @ w_J))
            inner = np.concatenate([d_k - k.C @ w_M + D @ psi_J[-1], G @ psi_J[-1]])
            psi_M.append((bordered_inverse @ inner)[: len(C)])
        return np.array(psi_J), np.array(psi_M)

    def covariance(
        self, data: Trajectories, w_J: Floats, w_M: Floats, face: tuple[Floats, Floats] | None = None
    ) -> Floats:
        """Cov(w_J, w_M), of shape (l_J + l_M, l_J + l_M)."""
        K, psi = len(data), np.hstack(self.influences(data, w_J, w_M, face))
        psi -= psi.mean(axis=0)
        covariance: Floats = psi.T @ psi / (K * (K - 1))
        return covariance

    def _factors(self, episode: Trajectories) -> Floats:
        """c_t, of shape (T,): 1 where the policy is the one that logged."""
        return np.ones(episode.transitions)

    def _pairs(self, features: Features, episode: Trajectories) -> tuple[Floats, Floats]:
        """φ_t and what comes next, on average, each of shape (T, l)."""
        return self._taken(features, episode), np.array([p @ f for p, f in self._choices(features, episode)])

    def _taken(self, features: Features, episode: Trajectories) -> Floats:
        """φ(x_t), of shape (T, l)."""
        return rows(features, episode)[:-1]

    def _choices(self, features: Features, episode: Trajectories) -> list[tuple[Floats, Floats]]:
        """The chances (m,) and the features (m, l) of what may come next, for each t."""
        return [(np.ones(1), phi[None]) for phi in rows(features, episode)[1:]]

    def _inverse(self, matrix: Floats) -> Floats:
        return _pinv(matrix + self.ridge * np.eye(len(matrix)))


@dataclass(frozen=True)
class ActionDefinition(Definition):
    """LSTD(λ) of states and actions: ``features`` and ``second_features`` are φ̄ of one target policy.

    >>> from policyrisk.features.actions import ActionBlocks
    >>> from policyrisk.features.target import PolicyFeatures, Target
    >>> from policyrisk.features import Tabular
    >>> pi = Target.of([[0.5, 0.5]], actions=None, draws=0, seed=0)
    >>> data = Trajectories([[0], [1]] * 2, [1.0, 3.0], [1, 1], [True] * 2, actions=[0, 1])
    >>> phi = PolicyFeatures(ActionBlocks(Tabular(1), 2), pi)
    >>> ActionDefinition(phi, phi, lam=0.0, direct=True).weights(data)
    (array([1., 3.]), array([0., 0.]))
    """

    def _factors(self, episode: Trajectories) -> Floats:
        target: Any = self.features.target  # type: ignore[attr-defined]
        if self.lam == 0.0:
            return np.zeros(episode.transitions)
        chance = target.chance(episode.states[:-1], episode.actions)
        if episode.propensities is None:
            return np.asarray(chance)
        return np.asarray(np.minimum(1.0, chance / episode.propensities))

    def _taken(self, features: Any, episode: Trajectories) -> Floats:
        """φ(x_t, a_t), of shape (T, l)."""
        return as_dense(features.map.at(episode.states[:-1], episode.actions))

    def _choices(self, features: Any, episode: Trajectories) -> list[tuple[Floats, Floats]]:
        """π(a'|x_{t+1}) (m,) and φ(x_{t+1}, a') (m, l) for each t; 0 where the episode terminated."""
        found = []
        shown = episode.states[1 : len(episode.states) - bool(episode.terminated[0])]
        for x in shown[:, None]:
            actions = features.target.candidates(x)
            pi = features.target.probabilities(x)[0]
            pairs: list[Any] = [
                features.map.at(x, actions[[j]] if actions.ndim == 1 else actions[:, j])
                for j in range(pi.size)
            ]
            found.append((pi, np.vstack([as_dense(pair) for pair in pairs])))
        if episode.terminated[0]:
            found.append((np.ones(1), np.zeros((1, features.size))))
        return found


def rows(features: Features, episode: Trajectories) -> Floats:
    """φ(x_0), …, φ(x_T) of an episode, of shape (T + 1, l); φ(x_T) = 0 where it terminated."""
    T, terminated = int(episode.lengths[0]), bool(episode.terminated[0])
    shown = features(episode.states[:T] if terminated else episode.states)
    phi = np.zeros((T + 1, features.size))
    phi[: shown.shape[0]] = as_dense(shown)
    return phi


def _pinv(matrix: Floats) -> Floats:
    return np.asarray(np.linalg.pinv(matrix, rcond=_SINGULAR), dtype=np.float64)
