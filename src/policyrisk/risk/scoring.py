"""Estimates against what happened: what episodes earned from a step on, and how well that was predicted.

Of an episode that was cut off n steps later, in x_T, only R = Σ_{i<n} γⁱ r_{t+i} is known. To leave such
episodes out would be a selection, since they are long. What follows is *completed* by an estimate:

    B = R + γⁿ J̃(x_T)                  the return to go
    (B − J)² + γ²ⁿ Ṽ(x_T)              its square about any J

which is right on average, since V(x_t) is the mean of (R + γⁿJ(x_T) − J(x_t))² + γ²ⁿV(x_T), wherever an
episode is cut off, as long as nobody looks ahead. With a discount below 1 no episode needs to end: n steps
before the cut the estimate has a weight of γⁿ.

Every step x_t, t < T, of an episode that was not fitted scores J = J̃(x_t) and V = Ṽ(x_t) by the squared error
E = (B − J)² + γ²ⁿ max(Ṽ(x_T), 0):

    squared error       E
    calibration         E / V                 1 on average where mean and variance are right
    Dawid–Sebastiani    log V + E / V         proper: the true J and V make it smallest on average

The means are over steps. Steps of an episode depend on each other and episodes do not, so that standard
errors are of a ratio of sums over episodes: with S_k the sum of the scores of episode k and n_k its steps,

    μ = Σ S_k / Σ n_k,        s.e.² = K/(K − 1) · Σ (S_k − μ n_k)² / (Σ n_k)²

Not every step has every score:

- *unvisited* (J or V is nan, or they are in x_T): nothing was predicted. Counted, in no score.
- *not positive* (V ≤ 0): no such distribution exists, and the score is +∞. One such step makes the mean +∞,
  so a model does not gain by it; the mean over the other steps is kept beside it, with the share of these.
- *certain*: V = 0 and B = J, to within rounding. Where nothing is random that is right, and the score, −∞,
  says nothing about the rest. Counted, in the squared error alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.records import Additive
from policyrisk._core.text import Readable, TextTable, percent, plural
from policyrisk.data import Source, Trajectories, batches, pieces
from policyrisk.data.source import InUnits
from policyrisk.errors import InvalidInputError
from policyrisk.risk.estimate import Estimate, plain_estimates

if TYPE_CHECKING:
    from policyrisk.risk.risk_function import RiskFunction

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


CERTAIN = 1e-9  # of the squares of B and J: a variance or a squared error up to this is none


@dataclass(frozen=True)
class ClusterSums(Additive):
    """What a mean over steps and its standard error over episodes need; they add."""

    clusters: int = 0  # K: episodes with at least one step
    steps: float = 0.0  # Σ n_k
    total: float = 0.0  # Σ S_k
    total_squared: float = 0.0  # Σ S_k²
    cross: float = 0.0  # Σ S_k n_k
    steps_squared: float = 0.0  # Σ n_k²

    @classmethod
    def of(cls, values: Floats, episode: Ints) -> ClusterSums:
        """Sums of values (n,) that belong to episodes (n,); nan values are left out.

        >>> sums = ClusterSums.of(np.array([1.0, 3.0, 5.0, np.nan]), np.array([0, 0, 1, 1]))
        >>> sums.mean(), sums.clusters
        (3.0, 2)
        """
        counted = ~np.isnan(values)
        S = np.bincount(episode[counted], weights=values[counted])
        n = np.bincount(episode[counted]).astype(np.float64)
        products = (float(left @ right) for left, right in ((S, S), (S, n), (n, n)))
        return cls(int(np.count_nonzero(n)), float(n.sum()), float(S.sum()), *products)

    def __neg__(self) -> ClusterSums:
        """The sums of the negated values."""
        return replace(self, total=-self.total, cross=-self.cross)

    def mean(self) -> float:
        """μ, nan for no steps."""
        return float(self.total / self.steps) if self.steps else math.nan

    def standard_error(self) -> float:
        """The standard error of μ, nan for fewer than two episodes."""
        K, mean = self.clusters, self.mean()
        if K < 2:
            return math.nan
        squared = self.total_squared - 2 * mean * self.cross + mean**2 * self.steps_squared
        return math.sqrt(max(squared, 0.0) * K / (K - 1)) / self.steps

    def estimate(self) -> Estimate:
        """μ with its standard error and interval."""
        return Estimate.of(self.mean(), self.standard_error(), self.clusters)


class StepScores(NamedTuple):
    """The scores of n steps, nan where a step has none."""

    squared_error: Floats  # (n,)
    calibration: Floats  # (n,)
    dawid_sebastiani: Floats  # (n,)
    unvisited: Bools  # (n,)
    not_positive: Bools  # (n,)
    certain: Bools  # (n,)


def step_scores(J: Floats, V: Floats, B: Floats, beyond: Floats | float = 0.0) -> StepScores:
    """The scores of means J and variances V against returns to go B, each of shape (n,).

    ``beyond`` is the variance of what follows a cut-off, γ²ⁿ V(x_T), which the squared error takes in.

    >>> scores = step_scores(np.array([1.0, 1.0]), np.array([4.0, -1.0]), np.array([3.0, 3.0]))
    >>> scores.squared_error, scores.dawid_sebastiani.round(3)
    (array([4., 4.]), array([2.386,   nan]))
    """
    unvisited = np.isnan(J) | np.isnan(V)
    squared = (B - J) ** 2 + beyond
    nothing = CERTAIN * (B**2 + J**2)
    certain = ~unvisited & (np.abs(V) <= nothing) & (squared <= nothing)
    positive = ~certain & (V > 0)
    scored_V = np.where(positive, V, np.nan)
    calibration = squared / scored_V
    not_positive = ~unvisited & ~certain & ~positive
    return StepScores(squared, calibration, np.log(scored_V) + calibration, unvisited, not_positive, certain)


@dataclass(frozen=True)
class ScoreSums(Additive):
    """The sums that a :class:`Score` is made of; they add, over batches and folds."""

    squared_error: ClusterSums = ClusterSums()
    calibration: ClusterSums = ClusterSums()
    dawid_sebastiani: ClusterSums = ClusterSums()
    episodes: int = 0
    steps: int = 0
    unvisited: int = 0
    not_positive: int = 0
    certain: int = 0

    @classmethod
    def of(cls, scores: StepScores, episode: Ints) -> ScoreSums:
        """Sums over the steps of episodes, or clusters of them, numbered (n,) from 0."""
        squared, calibration, dawid_sebastiani = (ClusterSums.of(values, episode) for values in scores[:3])
        counts = (int(np.count_nonzero(which)) for which in scores[3:])
        return cls(squared, calibration, dawid_sebastiani, np.unique(episode).size, episode.size, *counts)


@dataclass(frozen=True)
class Score(Readable):
    """How well an estimate predicted held-out episodes: smaller is better, but calibration should be 1.

    ``dawid_sebastiani`` is +∞ where some variance was not positive; ``dawid_sebastiani_positive`` is its
    mean over the steps where it was. Shares are of all ``steps``.
    """

    mse: Estimate
    calibration: Estimate
    dawid_sebastiani: Estimate
    dawid_sebastiani_positive: Estimate
    episodes: int
    steps: int
    cut_off: int  # of the episodes: their returns were completed by the estimate
    unvisited: float  # share of steps
    not_positive: float
    certain: float

    @classmethod
    def of(cls, sums: ScoreSums, cut_off: int, discount: float = 1.0) -> Score:
        """The score of summed steps; with discount 1 some episode must have ended."""
        check_held_out(sums.steps, sums.episodes, cut_off, discount)
        positive = sums.dawid_sebastiani.estimate()
        return cls(
            mse=sums.squared_error.estimate(),
            calibration=sums.calibration.estimate(),
            dawid_sebastiani=Estimate(math.inf) if sums.not_positive else positive,
            dawid_sebastiani_positive=positive,
            episodes=sums.episodes,
            steps=sums.steps,
            cut_off=cut_off,
            unvisited=sums.unvisited / sums.steps,
            not_positive=sums.not_positive / sums.steps,
            certain=sums.certain / sums.steps,
        )

    def times(self, factor: float) -> Score:
        """The score of rewards that are ``factor`` times as large."""
        if factor == 1.0:
            return self
        more = 2.0 * math.log(factor)  # of a logarithm of the variance
        return replace(
            self,
            mse=self.mse.moved(factor * factor, 0.0),
            dawid_sebastiani=self.dawid_sebastiani.moved(1.0, more),
            dawid_sebastiani_positive=self.dawid_sebastiani_positive.moved(1.0, more),
        )

    def _blocks(self) -> list[str | TextTable]:
        rows = [
            ["mean squared error of J", *self.mse.cells[:2]],
            ["calibration, 1 is right", *self.calibration.cells[:2]],
            ["Dawid–Sebastiani", *self.dawid_sebastiani.cells[:2]],
        ]
        if self.not_positive:
            rows.append(["  where V > 0", *self.dawid_sebastiani_positive.cells[:2]])
        blocks: list[str | TextTable] = [
            f"{plural(self.episodes, 'held-out episode')}, {plural(self.steps, 'step')}",
            TextTable(["", "score", "std error"], rows),
        ]
        remarks = [
            (self.not_positive, "of the steps have V <= 0, where the score is infinite"),
            (self.unvisited, "of the steps are in unvisited states and have no score"),
            (self.certain, "of the steps have V = 0 and no error: certain, counted in the first score alone"),
        ]
        blocks += [f"note: {percent(share)} {text}" for share, text in remarks if share]
        if self.cut_off:
            blocks.append(
                f"note: {plural(self.cut_off, 'episode')} cut off: completed by the estimate itself"
            )
        return blocks

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {name: plain_estimates(value) for name, value in vars(self).items()}


def check_held_out(steps: int, episodes: int, cut_off: int, discount: float) -> None:
    """Raise where no return to go is known; with discount 1 some episode must have ended."""
    if steps == 0 or (discount == 1.0 and cut_off == episodes):
        raise InvalidInputError(
            f"held_out must hold at least one terminated episode, got {plural(cut_off, 'episode')}, all "
            "cut off, whose returns to go are not known; hold out episodes that end"
        )


def completed_returns(steps: EpisodeSteps, J: Floats, V: Floats) -> tuple[Floats, Floats]:
    """B and γ²ⁿ max(V(x_T), 0), each of shape (n,), by estimates (m,) at the cuts."""
    nothing = np.zeros(len(steps.rewards))
    return steps.completed(steps.rewards, J), steps.completed(nothing, np.maximum(V, 0.0), 2)


def scores_of(steps: EpisodeSteps, J: Floats, V: Floats) -> ScoreSums:
    """The scores of one estimate, J and V being of shape (n + m,): at the steps, then at the cuts."""
    n = len(steps.states)
    B, beyond = completed_returns(steps, J[n:], V[n:])
    known = ~(np.isnan(B) | np.isnan(beyond))
    B, beyond = np.where(known, B, 0.0), np.where(known, beyond, 0.0)
    return ScoreSums.of(step_scores(np.where(known, J[:n], np.nan), V[:n], B, beyond), steps.block)


def score(risk: RiskFunction, held_out: Source) -> Score:
    """As :meth:`policyrisk.RiskFunction.score`."""
    source, sums, cut_off = risk.provenance, ScoreSums(), 0
    for steps in episode_steps(InUnits(held_out, risk.unit), source.discount):
        cut_off += steps.cut_off
        if len(steps.states):
            at = risk.parts(np.concatenate([steps.states, steps.cuts]))
            J, V = np.concatenate([(part.J, part.V) for part in at], axis=1)
            sums += scores_of(steps, J, V)
    return Score.of(sums, cut_off, source.discount).times(risk.unit)
