"""Estimated distributions against what happened: CRPS, pinball loss and PIT of held-out episodes.

Every step x_t of an episode that was not fitted scores F = F̃(·|x_t) by its return to go B, X being of F:

    CRPS       ∫ (F(z) − 1{B ≤ z})² dz = E|X − B| − E|X − X'| / 2      X' as X, and independent
    pinball    (q − 1{B < θ_q}) (B − θ_q)                              θ_q the quantile
    PIT        F(B), uniform on [0, 1] where F is right

The first two are proper: the true distribution makes them smallest on average. Where F rises at B, the PIT is
spread from F(B−) to F(B), as if drawn there; what is kept of it are the shares of equal parts of [0, 1].

Where the episode was cut off n steps later in x_T, R having been earned by then, B is R + γⁿ B' for each of
some quantiles B' of the estimate at x_T, and the score is the average. Means are over steps and standard
errors over episodes, as in :mod:`policyrisk.risk.scoring`; steps in states that the data say nothing about
are counted and have no score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.text import Readable, TextTable, percent, plural
from policyrisk.data import Source
from policyrisk.returns.curves import Grid
from policyrisk.risk.estimate import Estimate, plain_estimates
from policyrisk.risk.scoring import ClusterSums, EpisodeSteps, check_held_out, episode_steps

if TYPE_CHECKING:
    from policyrisk.returns.distribution_function import DistributionAtStates

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the pinball loss
BINS = 10  # of the PIT
_COMPLETIONS = 16  # quantiles that stand for what a cut-off episode would still have earned


def crps(grid: Grid, curves: Floats, B: Floats) -> Floats:
    """The CRPS of curves (n, m + 3) at returns B (n,), (n,), exact for F as it is read: 0 below θ_1."""
    first, last, m = grid.theta[..., 0], grid.theta[..., -1], grid.size
    F = curves[:, :m]
    if grid.steps:
        spread = F[:, :-1] * (1.0 - F[:, :-1])
    else:
        a, b = F[:, :-1], F[:, 1:]
        spread = 0.5 * (a + b) - (a * a + a * b + b * b) / 3.0
    read = curves.copy()
    read[:, m] = 0.0
    all_of_it = grid.area(read, np.broadcast_to(last, B.shape))
    area = grid.area(read, np.clip(B, first, last)) + np.maximum(B - last, 0.0)
    return np.asarray(2 * area + last - all_of_it - B - (spread * grid.widths).sum(axis=1))


def pinball(theta_q: Floats, B: Floats, q: float) -> Floats:
    """(q − 1{B < θ_q}) (B − θ_q), (n,).

    >>> pinball(np.array([2.0, 2.0]), np.array([1.0, 3.0]), 0.1)
    array([0.9, 0.1])
    """
    return np.asarray((q - (B < theta_q)) * (B - theta_q))


def pit(grid: Grid, curves: Floats, B: Floats) -> Floats:
    """F(B−) and F(B) of each curve, (n, 2)."""
    theta, m = grid.theta, grid.size
    high = grid.cdf(curves, B)
    if grid.steps:
        low = grid.cdf(curves, B - 4 * grid.tol)
    else:
        low = np.where(theta[..., 0] >= B, 0.0, np.where(theta[..., -1] == B, curves[:, m - 1], high))
    return np.column_stack([low, high])


def in_parts(ranges: Floats) -> Floats:
    """What falls into each of ``BINS`` equal parts of [0, 1], of ranges (n, 2), (n, BINS).

    >>> in_parts(np.array([[0.25, 0.25], [0.15, 0.25]]))[:, 1:3].round(3)
    array([[0. , 1. ],
           [0.5, 0.5]])
    """
    low, high = ranges[:, :1], ranges[:, 1:]
    edges = np.arange(1, BINS) / BINS
    wide = high > low
    inside = np.clip((edges - low) / np.where(wide, high - low, 1.0), 0.0, 1.0)
    below = np.where(wide, inside, low < edges)
    return np.diff(below, axis=1, prepend=0.0, append=1.0)


@dataclass(frozen=True)
class DistributionScore(Readable):
    """How well a distribution predicted held-out episodes: the smaller the better, but the PIT is uniform."""

    crps: Estimate
    pinball: dict[float, Estimate]  # by q
    pit: tuple[Estimate, ...]  # the shares of F(B) in equal parts of [0, 1]: each one over their number
    episodes: int
    steps: int
    cut_off: int  # of the episodes: their returns were completed by the estimate
    unvisited: float  # share of steps

    def _blocks(self) -> list[str | TextTable]:
        rows = [["CRPS", *self.crps.cells[:2]]]
        rows += [[f"pinball loss at {percent(q)}", *value.cells[:2]] for q, value in self.pinball.items()]
        shares = " ".join(percent(share) for share in self.pit)
        blocks: list[str | TextTable] = [
            f"{plural(self.episodes, 'held-out episode')}, {plural(self.steps, 'step')}",
            TextTable(["", "score", "std error"], rows),
            f"returns in each tenth of their distribution, 10% is right: {shares}",
        ]
        if self.unvisited:
            blocks.append(
                f"note: {percent(self.unvisited)} of the steps are in unvisited states, with no score"
            )
        if self.cut_off:
            blocks.append(
                f"note: {plural(self.cut_off, 'episode')} cut off: completed by the estimate itself"
            )
        return blocks

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {name: plain_estimates(value) for name, value in vars(self).items()}


class ScoreTally:
    """The scores of one distribution, summed over held-out steps."""

    def __init__(self) -> None:
        self.sums = [ClusterSums()] * (1 + len(LEVELS) + BINS)
        self.episodes = self.steps = self.cut_off = self.unvisited = 0

    def add(self, steps: EpisodeSteps, scores: Floats) -> None:
        """The scores (n, 1 + levels + BINS) of some steps, nan where there are none."""
        self.sums = [a + ClusterSums.of(b, steps.block) for a, b in zip(self.sums, scores.T, strict=True)]
        self.episodes, self.cut_off = self.episodes + steps.episodes, self.cut_off + steps.cut_off
        self.steps, self.unvisited = (
            self.steps + len(scores),
            self.unvisited + int(np.isnan(scores[:, 0]).sum()),
        )

    def score(self, discount: float) -> DistributionScore:
        """Of all; with discount 1 some episode must have ended."""
        check_held_out(self.steps, self.episodes, self.cut_off, discount)
        first, *others = (sums.estimate() for sums in self.sums)
        return DistributionScore(
            crps=first,
            pinball=dict(zip(LEVELS, others, strict=False)),
            pit=tuple(others[len(LEVELS) :]),
            episodes=self.episodes,
            steps=self.steps,
            cut_off=self.cut_off,
            unvisited=self.unvisited / self.steps,
        )


def score(dist: DistributionAtStates, held_out: Source) -> DistributionScore:
    """See :meth:`policyrisk.DistributionFunction.score`."""
    tally = ScoreTally()
    for steps in episode_steps(held_out, dist.discount):
        if len(steps.states):
            tally.add(steps, step_scores(dist, steps, rest(dist, steps.cuts)))
    return tally.score(dist.discount)


def rest(dist: DistributionAtStates, cuts: npt.NDArray[Any]) -> Floats:
    """Quantiles of what follows the states (k, dim) that episodes were cut off in, (k, completions)."""
    q = (np.arange(_COMPLETIONS) + 0.5) / _COMPLETIONS
    return (
        np.column_stack([dist.quantile(cuts, each) for each in q.tolist()]) if len(cuts) else np.empty((0, 1))
    )


def step_scores(dist: DistributionAtStates, steps: EpisodeSteps, beyond: Floats) -> Floats:
    """CRPS, pinball losses and shares of the PIT (n, 1 + levels + BINS); nan where nothing is said.

    ``beyond`` (k, completions) is what follows the states that episodes were cut off in.
    """
    return over_returns(steps, beyond, lambda some, B: _scores(dist, steps.states[some], B))


def over_returns(steps: EpisodeSteps, beyond: Floats, scores: Callable[[Bools, Floats], Floats]) -> Floats:
    """Scores (n, k) of steps and their returns, averaged over what may follow where they were cut off."""
    cut = steps.weight > 0.0
    found = scores(~cut, steps.rewards[~cut])
    out = np.empty((len(cut), found.shape[1]))
    out[~cut] = found
    if cut.any():
        R, scale, to = steps.rewards[cut], steps.weight[cut], steps.cut[cut]
        out[cut] = np.mean([scores(cut, R + scale * B[to]) for B in beyond.T], axis=0)
    return out


def _scores(dist: DistributionAtStates, states: npt.NDArray[Any], B: Floats) -> Floats:
    out = np.full((len(B), 1 + len(LEVELS) + BINS), np.nan)
    for some, grid, curves in dist.readings(states):
        at = B[some] / dist.unit
        known = ~np.isnan(at)
        if not known.all():
            some, curves, at = some[known], curves[known], at[known]
            grid = grid if grid.theta.ndim == 1 else Grid(grid.theta[known], grid.steps)
        losses = [pinball(grid.quantile(curves, q), at, q) for q in LEVELS]
        sizes = np.column_stack([crps(grid, curves, at), *losses]) * dist.unit
        out[some] = np.column_stack([sizes, in_parts(pit(grid, curves, at))])
    return out
