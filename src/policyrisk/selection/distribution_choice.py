"""The choice between estimators of the return's distribution: cross-validation by episode and CRPS.

Every episode is held out once, and each of its steps scored by estimates that were fitted without it
(:mod:`policyrisk.returns.distribution_scores`). Estimators are ranked by their CRPS over all steps, the
smaller the better. What follows a cut-off is the same for all, the median of what the estimators say there;
and where one says nothing, its CRPS is that of a guess, the distribution of all returns to go of the fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.text import number, percent
from policyrisk.data import Source
from policyrisk.errors import NoDistributionError
from policyrisk.returns.distribution import ReturnDistribution
from policyrisk.returns.distribution_function import DistributionFunction
from policyrisk.returns.distribution_scores import (
    DistributionScore,
    ScoreTally,
    over_returns,
    rest,
    step_scores,
)
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.scoring import EpisodeSteps
from policyrisk.selection.ranking import RankedEstimator, Ranking, Tally, medians

_GUESSED = 200  # values of all returns that the guess is made of


@dataclass(frozen=True)
class DistributionCandidate(RankedEstimator):
    """An estimator's place in a cross-validation of distributions; ``score`` is a DistributionScore."""

    crps: Estimate | None  # with the guess, which ranks


@dataclass(frozen=True, eq=False)
class DistributionChoice(Ranking):
    """Estimators of the return's distribution in the order of their held-out CRPS, the best first."""

    _ranks = "CRPS"
    _columns = "CRPS", "unvisited", "pinball 5%", "median", "95%"

    def _row(self, candidate: DistributionCandidate) -> list[str]:
        s: DistributionScore = candidate.score
        losses = [number(s.pinball[q], 4) for q in (0.05, 0.5, 0.95)]
        return [*candidate.row(candidate.crps, 6), percent(s.unvisited), *losses]

    def _notes(self, scores: list[DistributionScore]) -> list[tuple[Any, str]]:
        unvisited = any(s.unvisited for s in scores)
        return [(unvisited, "in states that a fit did not visit, the distribution of all returns is scored")]


class DistributionTally(Tally):
    """CRPS of distributions."""

    _ranking = DistributionChoice

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.tallies = {name: ScoreTally() for name in names}
        self.guess: Floats | None = None  # of the fold

    def _begin(self, fitted: Mapping[str, DistributionFunction], held_out: Source, fold: int) -> Source:
        self.discounts |= {name: dist.discount for name, dist in fitted.items()}
        self.guess = None
        return held_out

    def _scores(
        self, fitted: Mapping[str, DistributionFunction], steps: EpisodeSteps, fold: int
    ) -> dict[str, Floats]:
        ends = np.stack([rest(dist, steps.cuts).T for dist in fitted.values()])
        beyond = medians(ends).T
        self.guess = _guess(steps) if self.guess is None else self.guess
        by_guess = over_returns(steps, beyond, partial(_guess_scores, self.guess))[:, 0]
        found: dict[str, Floats] = {}
        for name, dist in fitted.items():
            scores = step_scores(dist, steps, beyond)
            self.tallies[name].add(steps, scores)
            found[name] = np.where(np.isnan(scores[:, 0]), by_guess, scores[:, 0])
        return found

    def _candidate(
        self, name: str, rank: Estimate | None, difference: Estimate | None, reason: str = ""
    ) -> DistributionCandidate:
        score = None if rank is None else self.tallies[name].score(self.discount)
        return DistributionCandidate(name, score, difference, reason, rank)


def all_distributions(estimators: Mapping[str, Any]) -> bool:
    """Whether distributions are to be scored: an error where only some of the estimators have one."""
    kinds = {isinstance(estimator, ReturnDistribution) for estimator in estimators.values()}
    if len(kinds) > 1:
        raise NoDistributionError(
            "estimators must all be ReturnDistribution, whose distributions are scored, or none of them, got "
            "both kinds; cross-validate them apart"
        )
    return kinds == {True}


def _guess(steps: EpisodeSteps) -> Floats:
    """Equally likely values of the returns to go, whatever the state, rising."""
    return np.asarray(np.quantile(steps.rewards, (np.arange(_GUESSED) + 0.5) / _GUESSED))


def _guess_scores(v: Floats, _: Bools, B: Floats) -> Floats:
    """CRPS (n, 1) of equally likely values v: mean |v − B| less half the mean |v − v'|."""
    spread = float(np.abs(v[:, None] - v).mean()) / 2
    sums = np.append(0.0, np.cumsum(v))
    below = np.searchsorted(v, B)
    mean = (2 * (below * B - sums[below]) + sums[-1] - v.size * B) / v.size
    return np.asarray(mean - spread)[:, None]
