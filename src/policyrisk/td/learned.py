"""What TD has learned so far: weights, and counts of the data behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from policyrisk._core.arrays import Floats, Ints, readonly
from policyrisk.risk.start_sums import SampleReturns
from policyrisk.risk.support import Support
from policyrisk.td._update_kernels import FeatureRows, FullRows


@dataclass(eq=False)
class Iterate:
    """The iterate of one moment."""

    w: Floats  # (l,)
    u: Floats  # (l,): Σ_k (1 + … + k) Δ_k over updates k of size Δ_k; empty where nothing is averaged
    largest: float = 0.0  # the largest |c_t| so far: what a TD error is measured against

    @classmethod
    def zero(cls, size: int, *, averaged: bool) -> Iterate:
        """No update made."""
        return cls(np.zeros(size), np.zeros(size if averaged else 0))

    def weights(self, updates: int) -> Floats:
        """w_K, or the average Σ k w_k / Σ k over k = 1, …, K; read-only, of shape (l,).

        By parts, Σ_{k ≤ K} k w_k = (1 + … + K) w_K − u, so an update costs no more than its entries.
        """
        if self.u.size == 0 or updates == 0:
            return readonly(self.w)
        return readonly(self.w - self.u / (0.5 * updates * (updates + 1.0)))


@dataclass(eq=False)
class VisitCounts:
    """How often each feature of one map was visited, in the pass over the data that is under way."""

    visits: Floats  # (l,)
    feature_episodes: Floats  # (l,)
    before: Floats  # (l,): the visits of the pass before, 0 in the first one
    gram: Floats | None  # (l, l): Σ φ φᵀ; None for sparse features

    @classmethod
    def nothing(cls, rows: FeatureRows, size: int) -> VisitCounts:
        """No state visited."""
        gram = np.zeros((size, size)) if isinstance(rows, FullRows) else None
        return cls(np.zeros(size), np.zeros(size), np.zeros(size), gram)

    def next_pass(self) -> VisitCounts:
        """As at the start of another pass over the same data."""
        gram = None if self.gram is None else np.zeros_like(self.gram)
        return VisitCounts(np.zeros_like(self.visits), np.zeros_like(self.visits), self.visits, gram)

    def add_gram(self, rows: FeatureRows, started: Ints) -> None:
        """Count the rows that transitions started in, where the features are dense."""
        if self.gram is not None and isinstance(rows, FullRows):
            phi = rows.phi if len(started) == len(rows.phi) else rows.phi[started]
            self.gram += phi.T @ phi

    def support(self, episodes: int) -> Support:
        """The record that a RiskFunction keeps; it shares the arrays."""
        return Support(
            visits=readonly(self.visits),
            feature_episodes=readonly(self.feature_episodes),
            episodes=episodes,
            gram=None if self.gram is None else readonly(self.gram),
            limit=1.0,
        )


@dataclass(eq=False)
class Learned:
    """Both moments, the number of updates, and the counts of the pass that is under way."""

    mean: Iterate
    second: Iterate
    counts: tuple[VisitCounts, ...]  # of φ_J, and of φ_M where that is another
    updates: int = 0
    episodes: int = 0
    terminated: int = 0
    transitions: int = 0
    outside: int = 0
    given_up: int = 0
    shortened: int = 0  # episodes that gave up transitions
    returns: SampleReturns = field(default_factory=lambda: SampleReturns.of([]))  # of those that terminated

    def next_pass(self) -> Learned:
        """The same weights at the start of another pass, so that no episode is counted twice."""
        counts = tuple(each.next_pass() for each in self.counts)
        return Learned(self.mean, self.second, counts, self.updates)
