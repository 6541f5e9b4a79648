"""What the data say about a set of features: which states were visited, and how often.

Sparse features (tiles, tables): a state is visited if each of its active features was. Dense features are
active everywhere, so it is a matter of leverage, h(x) = φ(x)ᵀ gram⁺ φ(x): a state that was seen itself has
h ≤ 1, so one with h > ``limit``, or with φ(x) outside the range of gram, is out of range. A state whose
features are all 0 (beyond the reach of every truncated radial basis function) is not visited either: no
equation speaks of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Matrix
from policyrisk._core.records import record


@record
@dataclass(frozen=True, eq=False)
class Support:
    """Counts per feature, and the Gram matrix where the features are dense."""

    visits: Floats  # (l,): transitions that started with the feature active
    feature_episodes: Floats  # (l,): episodes that visited the feature
    episodes: int
    gram: Floats | None  # (l, l), None for sparse features
    limit: float  # of the leverage: 1 for sampled equations, inf for exact ones

    def visited(self, phi: Matrix) -> Bools:
        """Whether the data say anything about states with features ``phi`` (n, l), of shape (n,)."""
        return self.episodes_behind(phi) > 0

    def episodes_behind(self, phi: Matrix) -> Floats:
        """How many episodes stand behind the estimates at states with features ``phi``, of shape (n,).

        Sparse: the fewest of any active feature. Dense: min(episodes, 1/h), since 1/h is the number of
        visits that would give a table the same leverage. 0 where the state is not visited.
        """
        if self.gram is None or sp.issparse(phi):
            rows = sp.coo_array(phi)
            active = rows.data != 0
            counts = np.zeros(rows.shape[0])
            counts[rows.row[active]] = float(self.episodes)
            np.minimum.at(counts, rows.row[active], self.feature_episodes[rows.col[active]])
            return counts
        leverage, inside = self._leverage(np.asarray(phi))
        in_range = inside & (leverage <= self.limit * (1 + 1e-9)) & np.any(phi != 0, axis=1)
        smallest = max(1.0 / max(self.episodes, 1), np.finfo(np.float64).tiny)
        return np.where(in_range, 1.0 / np.maximum(leverage, smallest), 0.0)

    def _leverage(self, phi: Floats) -> tuple[Floats, Bools]:
        """h of shape (n,), and whether φ lies in the range of gram, of shape (n,)."""
        scale, whitener, null = self._factors
        scaled = phi * scale
        outside = np.zeros(len(phi), dtype=np.bool_)
        if null.shape[1]:
            outside = np.linalg.norm(scaled @ null, axis=1) > 1e-6 * np.linalg.norm(scaled, axis=1)
        leverage: Floats = np.square(scaled @ whitener).sum(axis=1)
        return leverage, ~outside

    @cached_property
    def _factors(self) -> tuple[Floats, Floats, Floats]:
        """Scale s (l,), W with (s·gram·s)⁺ = W Wᵀ, and an orthonormal basis of its null space."""
        assert self.gram is not None
        diagonal = np.diag(self.gram)
        scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = np.linalg.eigh(self.gram * np.outer(scale, scale))
        positive = values > values[-1] * len(values) * np.finfo(np.float64).eps
        return scale, vectors[:, positive] / np.sqrt(values[positive]), vectors[:, ~positive]
