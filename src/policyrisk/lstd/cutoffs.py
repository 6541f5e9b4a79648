"""Cut-off episodes that end where no transition started.

A cut-off episode bootstraps from the state x_T that it was cut off in. If a feature of x_T was never active
at any t < T, that state has no equation of its own, and bootstrapping from it is undefined. Such an episode
gives up its last transition, so that it ends in x_{T−1} instead; since x_{T−1} then no longer counts as
visited by it, this may go on. Nothing is bootstrapped with 0, and what was given up is counted.

What is given up depends on the visits alone: with v (l,) the visits that are left in the end, an episode ends
in the last of its states whose features all have v > 0. The more is given up, the fewer visits are left, and
the more is to be given up, so that v is found from above: start with all visits, see what would be given up,
take these transitions' visits away, and so on until nothing changes.

Dense features are active everywhere, so that this concerns tables, tiles and truncated bases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.records import record
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.passes.fold import Fold
from policyrisk.trajectories import Source, Trajectories, batches

MapVisits: TypeAlias = "Sequence[tuple[Features, Floats]]"  # feature maps, each with its visits (l,)


@record
@dataclass(frozen=True, eq=False)
class GivenUp:
    """What episodes give up; it adds."""

    transitions: int
    visits: tuple[Floats, ...]  # of each map, (l,): how many of them started with the feature active

    def __add__(self, other: GivenUp) -> GivenUp:
        visits = tuple(a + b for a, b in zip(self.visits, other.visits, strict=True))
        return GivenUp(self.transitions + other.transitions, visits)


@dataclass(frozen=True, eq=False)
class Trim:
    """Which ends are known, and how many transitions are given up so that all episodes have one."""

    left: MapVisits
    transitions: int = 0

    def __call__(self, source: Source) -> Source:
        """The source's episodes without what they give up, to be gone over once."""
        return (_shorten(batch, self.left) for batch in batches(source)) if self.transitions else source


def trim(fold: Fold, seen: MapVisits) -> Trim:
    """Give up what bootstraps from features that were never active at t < T.

    ``seen`` are the visits of all the data.
    """
    left, transitions = seen, 0
    while True:
        given = fold(partial(_given_up, left))
        if given.transitions == transitions:
            return Trim(left, transitions)
        left = [(phi, v - gone) for (phi, v), gone in zip(seen, given.visits, strict=True)]
        transitions = given.transitions


def _given_up(left: MapVisits, source: Source, part: int) -> GivenUp:
    """What is given up where these visits are left."""
    total = GivenUp(0, tuple(np.zeros_like(v) for _, v in left))
    for batch in batches(source):
        lost, visits = _lost(batch, left)
        total += GivenUp(int(lost.sum()), visits)
    return total


def _lost(batch: Trajectories, left: MapVisits) -> tuple[Ints, tuple[Floats, ...]]:
    """How many transitions each episode gives up, (episodes,), and their visits."""
    lost = np.zeros(len(batch), dtype=np.int64)
    gone = tuple(np.zeros_like(v) for _, v in left)
    ends = np.flatnonzero(~batch.terminated)
    while ends.size:
        states = batch.states[batch.final_rows[ends] - lost[ends]]
        unknown = np.zeros(ends.size, dtype=np.bool_)
        for phi, v in left:
            unknown |= _active(phi, states) @ (v <= 0).astype(np.float64) > 0
        ends = ends[unknown]
        if not ends.size:
            break
        lost[ends] += 1
        before = batch.states[batch.final_rows[ends] - lost[ends]]
        for (phi, _), total in zip(left, gone, strict=True):
            total += np.asarray(_active(phi, before).sum(axis=0)).ravel()
        ends = ends[lost[ends] < batch.lengths[ends]]
    return lost, gone


def _active(features: Features, states: npt.NDArray[Any]) -> Any:
    """Which features are active, (n, l), as a sparse array of ones."""
    return sp.csr_array(matrix_of(features, states)).astype(np.bool_).astype(np.float64)


def _shorten(batch: Trajectories, left: MapVisits) -> Trajectories:
    """The batch without what its episodes give up, and without those that gave up all."""
    drop, _ = _lost(batch, left)
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
