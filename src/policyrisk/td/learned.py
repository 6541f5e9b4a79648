"""Episodes as the kernels read them, and what TD has learned from them: weights and counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, ranges, readonly
from policyrisk.data import Trajectories, pieces
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import active_of, is_binary, matrix_of
from policyrisk.risk.start_sums import SampleReturns
from policyrisk.risk.support import Support
from policyrisk.td import _update_kernels as kernels
from policyrisk.td._update_kernels import ActiveRows, EntryRows, EpisodeSpans, FeatureRows, FullRows

_TRANSITIONS = 1 << 15  # at a time: the features of their states then stay in the cache
_ENTRIES = 1 << 22  # entries of dense rows at a time, 32 MB


@dataclass(frozen=True, eq=False)
class EpisodeRows:
    """Consecutive episodes, the terminal states left out: nobody computes their features."""

    states: npt.NDArray[Any]  # (n, dim): every x_t with t < T, and x_T where the episode was cut off
    rewards: Floats  # (transitions,)
    spans: EpisodeSpans  # all transitions are used, until it is known which cannot be

    @classmethod
    def of(cls, data: Trajectories) -> EpisodeRows:
        """All the episodes of a record."""
        states, cut_off = data.states, ~data.terminated
        kept = np.ones(len(states), dtype=np.bool_)
        kept[data.final_rows[data.terminated]] = False
        base = data.offsets[:-1] + np.cumsum(cut_off) - cut_off
        spans = EpisodeSpans(base, data.offsets, data.lengths.copy(), cut_off)
        return cls(states.take(np.flatnonzero(kept), axis=0), data.rewards, spans)

    def started(self) -> Ints:
        """The rows that hold x_t with t < used, of shape (Σ used,)."""
        return ranges(self.spans.base, self.spans.used)


def episode_rows(batch: Trajectories, width: int | None) -> Iterator[EpisodeRows]:
    """A batch cut between episodes; ``width`` is the number of entries of a dense row."""
    most = _TRANSITIONS if width is None else min(_TRANSITIONS, max(1, _ENTRIES // width))
    return map(EpisodeRows.of, pieces(batch, most))


def feature_rows(features: Features, states: npt.NDArray[Any]) -> FeatureRows:
    """The features of the states."""
    if is_binary(features):
        return ActiveRows(readonly(active_of(features, states)))
    phi = matrix_of(features, states)
    if isinstance(phi, np.ndarray):
        return FullRows(readonly(phi))
    starts, columns = (readonly(part.astype(np.int64)) for part in (phi.indptr, phi.indices))
    return EntryRows(starts, columns, readonly(phi.data))


def check_finite(rows: FeatureRows) -> None:
    """Raise where a feature is not finite: a likelier cause of nan than the step."""
    values = None if isinstance(rows, ActiveRows) else rows.phi if isinstance(rows, FullRows) else rows.values
    if values is not None and not np.isfinite(values).all():
        raise InvalidInputError("features must be finite, got nan or inf; repair them")


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

    def count(self, episodes: EpisodeRows, rows: list[FeatureRows], beyond: Bools) -> None:
        """Find out which transitions are used, and count what they visit; ``beyond`` tells states outside."""
        visits = [
            kernels.RowVisits(phi, counts.before, counts.visits, counts.feature_episodes)
            for phi, counts in zip(rows, self.counts, strict=True)
        ]
        kernels.count(visits[0], visits[-1], len(visits) == 1, episodes.spans)
        started = episodes.started()
        for phi, counts in zip(rows, self.counts, strict=True):
            counts.add_gram(phi, started)
        self.transitions += len(started)
        self.given_up += len(episodes.rewards) - len(started)
        self.shortened += int(np.count_nonzero(episodes.spans.used < np.diff(episodes.spans.offsets)))
        self.outside += int(np.count_nonzero(beyond[started]))
