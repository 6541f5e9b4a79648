"""Episodes as the kernels read them: their states' features in rows, a few episodes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints, readonly
from policyrisk.data import Trajectories, pieces
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import active_of, is_binary, matrix_of
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
        used = self.spans.used
        first = np.repeat(self.spans.base - (np.cumsum(used) - used), used)
        rows: Ints = first + np.arange(len(first))
        return rows


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
