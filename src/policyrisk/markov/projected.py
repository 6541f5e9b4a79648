"""The projected equations of a known chain: the expectations of what LSTD(λ) sums over one episode.

With q the occupancy from the start distribution ζ0, Q = diag(q) and the expected traces

    Zᵀ = Φ_Jᵀ Q (I − λγP)⁻¹,        Yᵀ = Φ_Mᵀ Q (I − λγ²P)⁻¹,

sec. 4.3 of the paper (and its discounted form) becomes, since I − P_J = (I − λγP)⁻¹ (I − γP),

    A = Zᵀ (I − γP) Φ_J      b = Zᵀ E[ρ]        C = Yᵀ (I − γ²P) Φ_M
    D = Yᵀ 2γ E[ρ φ_J(y)ᵀ]   e = Yᵀ E[ρ²]

and the direct variance has the right-hand side Yᵀ E[δ² + 2κγ δ ε(y)] with ε = (I − κγP)⁻¹ E[δ].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, as_dense
from policyrisk.equations import MomentEquations
from policyrisk.errors import MismatchError
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.markov.chain import MarkovChain


class ProjectedChain:
    """A chain seen through features from a start distribution: the pieces of its projected equations."""

    def __init__(
        self,
        chain: MarkovChain,
        features: Features,
        second_features: Features,
        zeta: Floats,  # (n,): ζ0
        *,
        lam: float,
        discount: float,
    ) -> None:
        if chain.one_discount("the projected equations") != discount:
            raise MismatchError(
                f"discount must be the chain's own {chain.discount}, got {discount}; "
                "give the estimator and the chain the same"
            )
        self.chain = chain
        self.lam, self.discount = lam, discount
        self.features, self.second_features = features, second_features
        self.shared = second_features == features
        self.q = chain.occupancy(zeta)
        states = np.arange(chain.n)[:, None]
        self.phi_J = matrix_of(features, states)  # (n, l_J)
        self.phi_M = self.phi_J if self.shared else matrix_of(second_features, states)  # (n, l_M)
        self.Z = self._traces(self.phi_J, lam * discount)
        same = self.shared and lam * discount == lam * discount**2
        self.Y = self.Z if same else self._traces(self.phi_M, lam * discount**2)

    def _traces(self, phi: Matrix, factor: float) -> Floats:
        """(I − factor·Pᵀ)⁻¹ Q Φ, of shape (n, l)."""
        weighted = as_dense(phi) * self.q[:, None]
        return self.chain.resolvent(factor).solve(weighted, transpose=True)[0] if factor else weighted

    @np.errstate(over="ignore", invalid="ignore")  # solving refuses what is not finite
    def equations(self) -> MomentEquations:
        """A, b, C, D and e, as the sums of one expected episode."""
        chain, gamma = self.chain, self.discount
        branches = chain.branches
        A = _product(self.Z, self.phi_J - gamma * (chain.P @ self.phi_J))
        C = A
        if not (self.shared and gamma == 1.0):
            C = _product(self.Y, self.phi_M - gamma**2 * (chain.P @ self.phi_M))
        mean_gram = _gram(self.phi_J, self.q)
        visits = _visits(self.phi_J, self.q)
        second_visits = visits if self.shared else _visits(self.phi_M, self.q)
        return MomentEquations(
            A=A,
            b=self.Z.T @ chain.expected_reward,
            C=C,
            D=_product(self.Y, 2.0 * gamma * (branches.matrix(branches.reward) @ self.phi_J)),
            e=self.Y.T @ branches.expect(branches.reward**2),
            gram=mean_gram if self.shared else _gram(self.phi_M, self.q),
            mean_gram=mean_gram,
            visits=visits,
            second_visits=second_visits,
            feature_episodes=(visits > 0).astype(np.float64),
            second_feature_episodes=(second_visits > 0).astype(np.float64),
            episodes=1,
            terminated=1,
            transitions=float(self.q.sum()),
            outside=0,
            lam=self.lam,
            discount=gamma,
            features=self.features,
            second_features=self.second_features,
            exact=True,
        )

    def direct_right_hand_side(self, w_mean: Floats, variance_lam: float = 0.0) -> Floats:
        """Yᵀ E[δ² + 2κγ δ ε(y)] with δ = ρ + γ J̃(y) − J̃(x) and J̃ = Φ_J w_J, of shape (l_M,)."""
        rhs: Floats = self.Y.T @ self.chain.expected_squared_error(
            np.asarray(self.phi_J @ w_mean), variance_lam
        )
        return rhs


def _product(left: Floats, right: Matrix) -> Floats:
    """leftᵀ right, dense."""
    return np.asarray((right.T @ left).T if sp.issparse(right) else left.T @ right)


def _gram(phi: Matrix, q: Floats) -> Floats:
    """Φᵀ Q Φ, dense."""
    return as_dense(phi.T @ (phi.multiply(q[:, None]) if sp.issparse(phi) else phi * q[:, None]))


def _visits(phi: Matrix, q: Floats) -> Floats:
    """The expected number of steps on which each feature is active, of shape (l,)."""
    active: Any = phi != 0
    active = sp.csr_array(active)
    return np.asarray(active.T @ q, dtype=np.float64)
