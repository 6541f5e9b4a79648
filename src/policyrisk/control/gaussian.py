"""Gaussian policies for continuous actions: in state x the action a ~ N(μ, diag(σ²)), μ_j = φ(x)ᵀ w_j.

∇_{w_j} log π(a|x) = φ(x) (a_j − μ_j) / σ_j²
∂ log π(a|x) / ∂ log σ_j = (a_j − μ_j)² / σ_j² − 1
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core import records
from policyrisk._core.arrays import Floats, Seed, as_count, as_floats, as_states, readonly
from policyrisk._core.random import generator
from policyrisk.control.softmax import check_features
from policyrisk.features.protocol import Features
from policyrisk.features.registry import given_again


class GaussianPolicy:
    """a_j ~ N(φ(x)ᵀ w_j, σ_j²) for each coordinate of the action.

    Called with n states it returns the means (n, dim); :meth:`sample` draws actions, which an environment
    with bounds has to clip itself (Gymnasium's ``ClipAction``).

    Parameters
    ----------
    features
        φ: a feature map with l features.
    dim
        The number of coordinates of the action.
    weights
        (l, dim); without them the mean is 0.
    log_std
        (dim,), log σ; without it every σ is 1.

    Examples
    --------
    >>> from policyrisk.features import Polynomial
    >>> policy = GaussianPolicy(Polynomial(1, [0], [1]), dim=1, weights=[[1.0], [2.0]], log_std=[-9.0])
    >>> policy([0.0, 0.5]).tolist(), policy.sample([0.5], seed=0).round(2).tolist()
    ([[1.0], [2.0]], [[2.0]])
    """

    features: Features
    dim: int
    weights: Floats  # (features.size, dim)
    log_std: Floats  # (dim,)

    def __init__(
        self,
        features: Features,
        dim: int,
        weights: npt.ArrayLike | None = None,
        log_std: npt.ArrayLike | None = None,
    ) -> None:
        check_features(features)
        self.features = features
        self.dim = as_count(dim, "dim", 1)
        shape = (features.size, self.dim)
        given = np.zeros(shape) if weights is None else as_floats(weights, "weights", shape)
        spread = np.zeros(self.dim) if log_std is None else as_floats(log_std, "log_std", (self.dim,))
        self.weights, self.log_std = readonly(np.array(given, order="C")), readonly(np.array(spread))

    def __repr__(self) -> str:
        return f"GaussianPolicy({self.features!r}, dim={self.dim})"

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """The mean actions, of shape (n, dim)."""
        return np.asarray(self.features(as_states(states)) @ self.weights)

    def sample(self, states: npt.ArrayLike, seed: Seed = None) -> Floats:
        """Actions drawn, of shape (n, dim)."""
        mean = self(states)
        drawn: Floats = mean + np.exp(self.log_std) * generator(seed).standard_normal(mean.shape)
        return drawn

    @property
    def parameters(self) -> Floats:
        """The weights and then log σ in one row, of shape (features.size · dim + dim,)."""
        return np.concatenate([self.weights.ravel(), self.log_std])

    def with_parameters(self, parameters: Floats) -> GaussianPolicy:
        """The policy with other weights and log σ, given in one row."""
        size = self.weights.size
        weights, log_std = np.split(as_floats(parameters, "parameters", (size + self.dim,)), [size])
        return GaussianPolicy(self.features, self.dim, weights.reshape(self.weights.shape), log_std)

    def log_gradient(self, states: npt.ArrayLike, actions: Floats, factors: Floats) -> Floats:
        """Σ_t factors_t ∇log π(a_t|x_t) over n states and actions, as the parameters are laid out."""
        x = as_states(states)
        phi = self.features(x)
        actions = as_floats(actions, "actions", (len(x), self.dim))
        factors = as_floats(factors, "factors", (len(x),))
        z = (actions - phi @ self.weights) / np.exp(self.log_std)
        by_weights = phi.T @ (factors[:, None] * z / np.exp(self.log_std))
        with np.errstate(over="ignore"):
            return np.concatenate([np.ravel(by_weights), factors @ (z**2 - 1.0)])

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to an npz file: its features, which need a ``spec()``, weights and log σ."""
        names = ("features", "dim", "weights", "log_std")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        records.save(path, "GaussianPolicy", values)

    @classmethod
    def load(cls, path: str | PathLike[str], features: Any = None) -> GaussianPolicy:
        """The policy that :meth:`save` wrote; ``features`` that are a function or a network must be given."""
        with given_again(features):
            return records.load(path, "GaussianPolicy", dict, lambda values: cls(**values))
