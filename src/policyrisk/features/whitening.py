"""Few uncorrelated numbers of one size in place of a network layer's many: whitening.

By a principal component analysis of the layer h at some states, with mean μ and covariance U diag(v) Uᵀ,
v_1 ≥ v_2 ≥ …, h becomes

    (U_kᵀ (h − μ)) / √v_k,    k running over the components with v_k > cut · v_1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, readonly
from policyrisk.errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class Whitening:
    """h ↦ (h − mean) @ components, from a principal component analysis; ``cut`` says where it stopped."""

    mean: Floats  # (width,)
    components: Floats  # (width, kept): U_k / √v_k
    cut: float

    @classmethod
    def of(cls, h: Floats, cut: float) -> Whitening:
        """That of rows h (n, width): components whose variance is more than ``cut`` of the largest."""
        mean = h.mean(axis=0)
        v, U = np.linalg.eigh((h - mean).T @ (h - mean) / len(h))
        v, U = v[::-1], U[:, ::-1]
        # Rounding in single precision is no variation.
        kept = int(np.count_nonzero(v > np.maximum(cut * v[0], (1e-6 * np.abs(h).max(initial=0.0)) ** 2)))
        if kept == 0:
            raise InvalidInputError(
                "states must differ in the network's layer, got a layer that is the same at all of "
                f"{len(h)} states; pass other states, or name another layer="
            )
        U = U[:, :kept] * np.where(U[np.abs(U).argmax(axis=0), np.arange(len(v))] < 0, -1.0, 1.0)[:kept]
        return cls(readonly(mean), readonly(np.ascontiguousarray(U / np.sqrt(v[:kept]))), cut)

    def spec(self) -> dict[str, Any]:
        """In plain values."""
        return {"mean": self.mean.tolist(), "components": self.components.tolist(), "cut": self.cut}
