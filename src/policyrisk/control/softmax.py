"""Softmax policies: in state x action a with probability π(a|x) ∝ exp(φ(x)ᵀ w_a).

∇_{w_b} log π(a|x) = φ(x) (1{a = b} − π(b|x))
"""

from __future__ import annotations

import math
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from policyrisk._core import records
from policyrisk._core.arrays import Floats, Ints, as_count, as_floats, as_states, readonly
from policyrisk.control._softmax_kernels import SoftmaxGrid, SoftmaxTiles
from policyrisk.control.policy import grid_reach, near_counts
from policyrisk.errors import InvalidInputError
from policyrisk.features import TileCoding
from policyrisk.features.protocol import Features
from policyrisk.features.radial import RadialGrid


class SoftmaxPolicy:
    """π(a|x) ∝ exp(φ(x)ᵀ w_a); without weights, every action with the same probability.

    Called with states (n, dim) it returns probabilities (n, actions), which every ``rollout`` draws its
    actions from. On ``TileCoding`` without hashing and on ``RadialBasis.grid`` our domains follow it in
    compiled code; on other features give them ``policy.__call__``.

    >>> from policyrisk.features import TileCoding
    >>> policy = SoftmaxPolicy(TileCoding([0], [1], bins=2), actions=2, weights=[[0, np.log(3)], [0, 0]])
    >>> policy([0.1, 0.9])
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """

    features: Features
    actions: int
    weights: Floats  # (features.size, actions)

    def __init__(self, features: Features, actions: int, weights: npt.ArrayLike | None = None) -> None:
        check_features(features)
        self.features = features
        self.actions = as_count(actions, "actions", 1)
        shape = (features.size, self.actions)
        given = np.zeros(shape) if weights is None else as_floats(weights, "weights", shape)
        self.weights = readonly(np.array(given, order="C"))

    def __repr__(self) -> str:
        return f"SoftmaxPolicy({self.features!r}, actions={self.actions})"

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """π(a|x), of shape (n, actions)."""
        return np.asarray(softmax(self.features(as_states(states)) @ self.weights, axis=1))

    def probabilities(self, states: npt.ArrayLike) -> Floats:
        """As a call: what rollouts record with the actions of a policy that they follow in compiled code."""
        return self(states)

    @property
    def parameters(self) -> Floats:
        """The weights in one row, of shape (features.size · actions,)."""
        return self.weights.ravel()

    def with_parameters(self, parameters: Floats) -> SoftmaxPolicy:
        """The policy with other weights, given in one row."""
        return SoftmaxPolicy(self.features, self.actions, parameters.reshape(self.weights.shape))

    def score(self, states: npt.ArrayLike, actions: Ints, factors: Floats) -> Floats:
        """Σ_t factors_t ∇log π(a_t|x_t) over n states and actions, as the parameters are laid out."""
        phi = self.features(as_states(states))
        push = -np.asarray(softmax(phi @ self.weights, axis=1))
        push[np.arange(len(push)), actions] += 1.0
        return np.ravel(phi.T @ (factors[:, None] * push))

    @property
    def compilable(self) -> bool:
        """Whether compiled code can follow it."""
        features = self.features
        return (isinstance(features, TileCoding) and features.hashed is None) or isinstance(
            features, RadialGrid
        )

    def compiled(self) -> SoftmaxTiles | SoftmaxGrid:
        """The table that compiled code follows, see :mod:`policyrisk.simulation.compiled`."""
        return self._table

    @cached_property
    def _table(self) -> SoftmaxTiles | SoftmaxGrid:
        features = self.features
        if not isinstance(features, TileCoding | RadialGrid) or not self.compilable:
            raise InvalidInputError(
                "a compiled policy must have tiles without hashing or radial bases on a grid, got "
                f"{features!r}; pass policy.__call__, which is not compiled"
            )
        low, high = features.box.bounds
        dims = np.array(range(low.size) if features.box.dims is None else features.box.dims, np.int64)
        if isinstance(features, TileCoding):
            bins = np.array(features.bins, np.int64)
            block = features.size // features.tilings
            return SoftmaxTiles(dims, low, high, bins, features.offsets, block, self.weights)
        reach, shape = grid_reach(features), features.shape
        # One more than there can be: whether a centre at the very edge is near is a matter of rounding.
        near = math.prod(near_counts(shape, reach * (np.array(shape) - 1.0) + 0.5))
        return SoftmaxGrid(
            dims,
            low,
            high,
            np.array(shape, np.int64),
            features.width,
            reach,
            features.normalised,
            near,
            self.weights,
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to an npz file: its features, which need a ``spec()``, and its weights."""
        values: dict[str, Any] = {"features": self.features, "actions": self.actions, "weights": self.weights}
        records.save(path, "SoftmaxPolicy", values)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> SoftmaxPolicy:
        """The policy that :meth:`save` wrote."""
        return cls(**records.load(path, "SoftmaxPolicy", dict))


def check_features(features: object) -> None:
    """Raise unless they are a map from states to features."""
    if not isinstance(features, Features):
        raise InvalidInputError(
            f"features must be a map from states to features, got {type(features).__name__}; pass for "
            "example TileCoding(low, high, bins)"
        )
