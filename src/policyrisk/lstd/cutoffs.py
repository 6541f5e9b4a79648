"""Cut-off episodes that end where no transition started.

A cut-off episode bootstraps from the state x_T that it was cut off in. If a feature of x_T was never active
at any t < T, that state has no equation of its own, and bootstrapping from it is undefined. Such an episode
gives up its last transition, so that it ends in x_{T−1} instead; since x_{T−1} then no longer counts as
visited by it, this may go on. Nothing is bootstrapped with 0, and what was given up is counted.

Dense features are active everywhere, so that this concerns tables, tiles and truncated bases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._arrays import Floats
from policyrisk.features import Features
from policyrisk.trajectories import Source, Trajectories, batches


@dataclass(frozen=True, eq=False)
class Trimmed:
    """A source whose episode k, counted over all of it, has lost its last ``given_up[k]`` transitions."""

    source: Source
    given_up: dict[int, int]

    @property
    def transitions(self) -> int:
        """How many transitions were given up in all."""
        return sum(self.given_up.values())

    def __iter__(self) -> Iterator[Trajectories]:
        first = 0
        for batch in batches(self.source):
            yield _shorten(batch, {k - first: lost for k, lost in self.given_up.items() if k >= first})
            first += len(batch)


def trim(source: Source, seen: Sequence[tuple[Features, Floats]]) -> Trimmed:
    """Give up what bootstraps from features that were never active at t < T.

    ``seen`` pairs each feature map with its visits (l,) over the whole source.
    """
    left = [(features, visits.copy()) for features, visits in seen]
    given_up: Counter[int] = Counter()
    while True:
        before = given_up.total()
        first = 0
        for batch in batches(source):
            cut = np.flatnonzero(~batch.terminated)
            cut = cut[[given_up[first + k] < batch.lengths[k] for k in cut.tolist()]] if cut.size else cut
            if cut.size:
                ends = batch.final_rows[cut] - np.array([given_up[first + k] for k in cut.tolist()])
                unknown = np.zeros(cut.size, dtype=np.bool_)
                for features, visits in left:
                    unknown |= _active(features, batch.states[ends]) @ (visits <= 0).astype(np.float64) > 0
                for k, end in zip(cut[unknown].tolist(), ends[unknown].tolist(), strict=True):
                    given_up[first + k] += 1
                    for features, visits in left:
                        visits -= _active(features, batch.states[[end - 1]]).sum(axis=0)
            first += len(batch)
        if given_up.total() == before:
            return Trimmed(source, dict(given_up))


def _active(features: Features, states: npt.NDArray[Any]) -> Any:
    """Which features are active, (n, l), as a sparse array of ones."""
    return sp.csr_array(features(states)).astype(np.bool_).astype(np.float64)


def _shorten(batch: Trajectories, lost: dict[int, int]) -> Trajectories:
    """The batch without the last ``lost[k]`` transitions of episode k, without episodes that lost all."""
    drop = np.array([lost.get(k, 0) for k in range(len(batch))], dtype=np.int64)
    if not drop.any():
        return batch
    keep_reward = np.ones(batch.transitions, dtype=np.bool_)
    keep_state = np.ones(len(batch.states), dtype=np.bool_)
    for k in np.flatnonzero(drop).tolist():
        keep_reward[batch.offsets[k + 1] - drop[k] : batch.offsets[k + 1]] = False
        row = batch.final_rows[k]
        keep_state[row - drop[k] + 1 : row + 1] = False
        if drop[k] == batch.lengths[k]:
            keep_state[row - drop[k]] = False
    alive = drop < batch.lengths
    return Trajectories(
        batch.states[keep_state],
        batch.rewards[keep_reward],
        (batch.lengths - drop)[alive],
        batch.terminated[alive],
    )
