"""Where episodes were cut off, and what is estimated to follow there.

With e the values at the ends x_T of cut-off episodes (a mean, or a variance), the numbers of their steps are
completed by γⁿ e, or γ²ⁿ e (:mod:`policyrisk.risk.completion`). Ends that no other estimate knows are the
forest's own: with E (ends, leaves) the averages over trees and G (leaves, ends) the averages over leaves,

    v = c + G e,   e = E v        so that        e = E c + E G e,

where c are the leaves' averages without what is missing. E G has rows that sum to less than 1 as long as
episodes end (or γ < 1), so that I − E G can be inverted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lu_factor, lu_solve

from policyrisk._core.arrays import Bools, Floats
from policyrisk.data import Trajectories
from policyrisk.errors import ImproperPolicyError
from policyrisk.features import Leaves
from policyrisk.returns import _forest_kernels as _kernels
from policyrisk.returns.leaf_sums import leaf_pieces
from policyrisk.risk import RiskFunction
from policyrisk.risk.completion import EpisodeSteps

_MOST_FOLLOWING = 1e6  # cut-off episodes one after the other, on average, from where one was cut off


@dataclass(frozen=True, eq=False)
class EndValues:
    """A quantity at the ends."""

    values: Floats  # (ends,), nan where nobody knows
    moves: Floats | None  # (ends, draws): what replicates add to it


@dataclass(frozen=True, eq=False)
class Ends:
    """The cut-off episodes of some data."""

    data: Trajectories
    steps: EpisodeSteps
    mean: EndValues
    variance: EndValues

    @classmethod
    def of(cls, data: Trajectories, tails: Sequence[RiskFunction], discount: float, draws: int) -> Ends:
        """The ends, with what the first of the tails that knows a state says there."""
        steps = EpisodeSteps.of(data, discount)
        states, m = steps.cuts, steps.cut_off
        J, V = np.full(m, np.nan), np.full(m, np.nan)
        dJ, dV = (np.zeros((m, draws)) for _ in range(2))
        for tail in tails if m else ():
            mean, variance = tail.mean_and_variance(states)
            by_mean, by_variance = np.isnan(J) & ~np.isnan(mean), np.isnan(V) & (variance >= 0)
            J[by_mean], V[by_variance] = mean[by_mean], variance[by_variance]
            bars = tail.error_bars
            if draws and bars is not None and bars.replicates is not None and len(bars.replicates) == draws:
                moved, moved_second = bars.deviations(tail.features(states), tail.second_features(states))
                moved, moved_second = moved * tail.unit, moved_second * tail.unit * tail.unit
                if tail.variance_method == "second-moment":
                    moved_second -= 2 * mean[:, None] * moved
                dJ[by_mean], dV[by_variance] = moved[by_mean], moved_second[by_variance]
        moves = (dJ, dV) if draws and tails else (None, None)
        return cls(data, steps, EndValues(J, moves[0]), EndValues(V, moves[1]))

    def one_value(self, y: Floats, missing: Bools, power: int) -> float:
        """The missing values as if there were one leaf alone: e = Σ (y + γ^{power n} e) / N."""
        weight = self.steps.weight**power
        share = float(weight[np.isin(self.steps.cut, np.flatnonzero(missing))].sum()) / len(y)
        return float(y.mean()) / max(1.0 - share, 1.0 / len(y))

    def by_leaf(self, leaves: Leaves, apart: Bools, power: int) -> Any:
        """N_ℓ G, CSR of shape (leaves, ends)."""
        cut = np.flatnonzero(~self.data.terminated)
        rows, columns, entries = [], [], []
        weight = self.steps.weight**power
        for span, part, active in leaf_pieces(leaves, self.data):
            at = slice(int(self.data.offsets[span.start]), int(self.data.offsets[span.stop]))
            open_trees = apart[span] & ~part.terminated[:, None]
            ptr, idx, sums = _kernels.tally(part.offsets, active, open_trees, weight[at, None], leaves.size)
            rows.append(idx)
            columns.append(np.searchsorted(cut, np.repeat(np.arange(span.start, span.stop), np.diff(ptr))))
            entries.append(sums[:, 0])
        where = np.concatenate(rows), np.concatenate(columns)
        return sp.csr_array((np.concatenate(entries), where), shape=(leaves.size, len(cut)))


@dataclass(frozen=True, eq=False)
class OwnEnds:
    """The ends whose values are the forest's own: E and G of those alone."""

    E: Any  # CSR (missing, leaves)
    G: Any  # CSR (leaves, missing)

    @classmethod
    def of(
        cls, ends: Ends, leaves: Leaves, apart: Bools, visits: Floats, missing: Bools, power: int
    ) -> OwnEnds:
        """``missing`` (ends,) says which they are; visits (leaves,) are N."""
        G: Any = sp.csc_array(ends.by_leaf(leaves, apart, power))[:, np.flatnonzero(missing)]
        G = sp.csr_array(G.multiply(1.0 / visits[:, None]))
        return cls(leaves(ends.steps.cuts[missing]) / leaves.trees, G)

    @cached_property
    def _factors(self) -> Any:
        """The factors of I − E G; an error where what follows cannot be told."""
        H: Floats = (self.E @ self.G).toarray()
        factors = lu_factor(np.eye(len(H)) - H, check_finite=False)
        # H is not negative, so that it is a contraction in some norm just where Σ Hⁿ 1 is positive: how many
        # cut-off episodes follow each other on average.
        following = lu_solve(factors, np.ones(len(H)), check_finite=False)
        if not (following.min() > 0 and following.max() < _MOST_FOLLOWING):
            raise ImproperPolicyError(
                f"what follows {len(H)} cut-off episodes cannot be estimated from the others: from where "
                "they end, hardly any episode ends (Assumption 1: proper policy); gather episodes that end, "
                "pass tail=, or use discount < 1"
            )
        return factors

    def solve(self, c: Floats) -> Floats:
        """e = E (c + G e) for c (leaves,) or, one column a draw, (leaves, draws)."""
        e: Floats = lu_solve(self._factors, self.E @ c, check_finite=False)
        return e
