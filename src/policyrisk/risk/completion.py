"""What episodes earned from a step on, completed by an estimate where they were cut off.

Of an episode that was cut off n steps later, in x_T, only R = Σ_{i<n} γⁱ r_{t+i} is known. To leave such
episodes out would be a selection, since they are long. What follows is an estimate's:

    B = R + γⁿ J̃(x_T)                  the return to go
    (B − J)² + γ²ⁿ Ṽ(x_T)              its square about any J

which is right on average, since V(x_t) is the mean of (R + γⁿJ(x_T) − J(x_t))² + γ²ⁿV(x_T), wherever an
episode is cut off, as long as nobody looks ahead. With a discount below 1 no episode needs to end: n steps
before the cut the estimate has a weight of γⁿ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints
from policyrisk.data import Source, Trajectories, batches, pieces

_PIECE = 2**17  # transitions at a time


@dataclass(frozen=True, eq=False)
class EpisodeSteps:
    """n steps of episodes, m of which were cut off, and what came of them."""

    states: npt.NDArray[Any]  # (n, dim)
    rewards: Floats  # (n,): R, up to the end or the cut
    episode: Ints  # (n,): the number, from 0, of the episode that each step belongs to
    episodes: int
    cuts: npt.NDArray[Any]  # (m, dim): x_T of the episodes that were cut off
    cut: Ints  # (n,): which of these the step's episode ends in, −1 where it terminated
    weight: Floats  # (n,): γⁿ, n steps before the cut; 0 where the episode terminated
    block: Ints  # (n,): the number of the step's cluster, from 0; of its episode where there are none

    @classmethod
    def of(cls, data: Trajectories, discount: float) -> EpisodeSteps:
        """All steps of some episodes."""
        left = np.repeat(data.offsets[1:], data.lengths) - np.arange(data.transitions)
        episode = np.repeat(np.arange(len(data)), data.lengths)
        block = episode
        if data.clusters is not None:
            block = np.unique(data.clusters, return_inverse=True)[1].reshape(-1)[episode]
        cut = np.repeat(np.where(data.terminated, -1, np.cumsum(~data.terminated) - 1), data.lengths)
        return cls(
            states=data.states[data.visited_rows],
            rewards=data.returns_to_go(discount),
            episode=episode,
            episodes=len(data),
            cuts=data.states[data.final_rows[~data.terminated]],
            cut=cut,
            weight=np.where(cut >= 0, discount ** left.astype(np.float64), 0.0),
            block=block,
        )

    @property
    def cut_off(self) -> int:
        """m."""
        return len(self.cuts)

    def completed(self, known: Floats, at_cuts: Floats, power: int = 1) -> Floats:
        """known + γ^{power n} e, of shape (n,), by values e (m,) at the cuts; nan where they are.

        >>> data = Trajectories([[0], [1], [2]], [1.0, 3.0], [2], [False])
        >>> steps = EpisodeSteps.of(data, discount=0.5)
        >>> steps.completed(steps.rewards, np.array([8.0])), steps.completed(np.zeros(2), np.array([4.0]), 2)
        (array([4.5, 7. ]), array([0.25, 1.  ]))
        """
        if not self.cut_off:
            return known
        rest: Floats = np.where(self.cut >= 0, at_cuts[self.cut], 0.0) * self.weight**power
        return known + rest


def episode_steps(source: Source, discount: float) -> Iterator[EpisodeSteps]:
    """The steps of a source's episodes, some episodes at a time; all at once where they come in clusters."""
    clustered: list[Trajectories] = []
    for batch in batches(source):
        if batch.clusters is not None:
            clustered.append(batch)
            continue
        for part in pieces(batch, _PIECE):
            yield EpisodeSteps.of(part, discount)
    if clustered:
        yield EpisodeSteps.of(Trajectories.concatenate(clustered), discount)
