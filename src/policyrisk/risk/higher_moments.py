"""The third and fourth central moments of the reward to go at states, where an estimator gave them.

    μ̃_k(x) = φ_k(x)ᵀ w_k,    k = 3, 4

with their own features and what the data say about these (:mod:`policyrisk.lstd.central_moments`). They have
no error bars: how much an episode moves w_4 depends on how it moves all weights before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats
from policyrisk._core.records import record
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of

_CELLS = 2**21  # numbers that are formed at a time


@record
@dataclass(frozen=True, eq=False)
class HigherMoments:
    """μ̃_3 and, where it was asked for, μ̃_4."""

    features: tuple[Features, ...] = ()  # φ_3, φ_4
    weights: tuple[Floats, ...] = ()  # w_3, w_4, (l_k,) each
    supports: tuple[Any, ...] = ()  # Support

    @property
    def order(self) -> int:
        """The highest of them."""
        return 2 + len(self.weights)

    def at(self, states: npt.NDArray[np.float64]) -> Floats:
        """μ̃_3, … at states (n, dim), of shape (order − 2, n); nan where the data say nothing."""
        out = np.empty((len(self.weights), len(states)))
        rows = max(_CELLS // max(phi.size for phi in self.features), 1)
        for first in range(0, len(states), rows):
            part = slice(first, first + rows)
            for k, (map_k, w, support) in enumerate(
                zip(self.features, self.weights, self.supports, strict=True)
            ):
                phi = matrix_of(map_k, states[part])
                out[k, part] = np.where(support.visited(phi), np.asarray(phi @ w), np.nan)
        return out
