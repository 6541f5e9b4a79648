"""The choice between estimators of the return's distribution: cross-validation by episode and CRPS.

Every episode is held out once, and each of its steps scored by estimates that were fitted without it
(:mod:`policyrisk.distribution.scoring`). Estimators are ranked by their CRPS over all steps, the smaller the
better. What follows a cut-off is the same for all, the median of what the estimators say there; and where one
says nothing, its CRPS is that of a guess, the distribution of all returns to go of the fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.text import NONE, Readable, TextTable, number, percent, plural
from policyrisk.distribution.estimator import ReturnDistribution
from policyrisk.distribution.function import DistributionFunction
from policyrisk.distribution.scoring import (
    DistributionScore,
    ScoreTally,
    over_returns,
    rest,
    step_scores,
)
from policyrisk.errors import InvalidInputError, NoDistributionError
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.scoring import ClusterSums, HeldOutSteps, held_out_steps
from policyrisk.trajectories import Source

_GUESSED = 200  # values of all returns that the guess is made of
_HEADER = ["", "CRPS", "std error", "to best", "std error", "unvisited", "pinball 5%", "median", "95%"]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Estimators in the order of a held-out score, the best first and those that failed last."""

    ranking: tuple[Any, ...]  # candidates with a name, a score (None where it failed) and a reason
    folds: int
    episodes: int  # each scored once
    steps: int
    cut_off: int  # of the episodes

    @property
    def best(self) -> str:
        """The name of the first; an error where all failed."""
        if self.ranking[0].score is None:
            raise InvalidInputError(
                "there is no best estimator, since all failed: "
                + "; ".join(f"{c.name}: {c.reason}" for c in self.ranking)
            )
        name: str = self.ranking[0].name
        return name


@dataclass(frozen=True)
class DistributionCandidate:
    """An estimator's place in a cross-validation of distributions."""

    name: str
    score: DistributionScore | None  # over all held-out steps, None where it failed
    crps: Estimate | None  # with the guess, which ranks
    difference: Estimate | None  # of that to the best one's: positive is worse
    reason: str = ""  # why it failed

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in vars(self).items()}

    def row(self) -> list[str]:
        """Its line of the table."""
        if self.score is None or self.crps is None:
            return [self.name, "failed", *[NONE] * (len(_HEADER) - 2)]
        worse = Estimate(np.nan) if self.difference is None else self.difference
        cells = [number(self.crps), number(self.crps.standard_error, 2)]
        cells += [number(worse, 4), number(worse.standard_error, 2), percent(self.score.unvisited)]
        return [self.name, *cells, *(number(self.score.pinball[q], 4) for q in (0.05, 0.5, 0.95))]


@dataclass(frozen=True, eq=False)
class DistributionChoice(Ranking, Readable):
    """Estimators of the return's distribution in the order of their held-out CRPS, the best first."""

    ranking: tuple[DistributionCandidate, ...]

    def _blocks(self) -> list[str | TextTable]:
        blocks: list[str | TextTable] = [
            f"CRPS of {plural(self.episodes, 'held-out episode')}, {plural(self.steps, 'step')}, "
            f"{self.folds} folds; the smaller the better",
            TextTable(_HEADER, [candidate.row() for candidate in self.ranking]),
        ]
        if any(c.score is not None and c.score.unvisited for c in self.ranking):
            blocks.append(
                "note: in states that a fit did not visit, the distribution of all returns is scored"
            )
        if self.cut_off:
            blocks.append(
                f"note: {plural(self.cut_off, 'episode')} cut off: completed by the median estimator"
            )
        blocks += [f"failed: {c.name}: {c.reason}" for c in self.ranking if c.score is None]
        return blocks

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {**vars(self), "ranking": [c.to_dict() for c in self.ranking]}


class DistributionTally:
    """CRPS of all estimators and differences of every pair, summed over folds."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.failed: dict[str, str] = {}
        self.tallies = {name: ScoreTally() for name in names}
        self.guessed = dict.fromkeys(names, ClusterSums())
        self.pairs = dict.fromkeys(combinations(names, 2), ClusterSums())
        self.episodes = self.steps = self.cut_off = 0
        self.discount = 1.0

    def fail(self, name: str, fold: int, error: Exception) -> None:
        """Leave an estimator out that could not be fitted."""
        self.failed[name] = f"fold {fold}: {type(error).__name__}: {error}"

    def score(self, fitted: Mapping[str, DistributionFunction], held_out: Source, fold: int) -> None:
        """Add a fold's held-out steps."""
        self.discount = next((dist.discount for dist in fitted.values()), self.discount)
        guess: Floats | None = None
        for steps in held_out_steps(held_out, self.discount):
            self.episodes, self.cut_off = self.episodes + steps.episodes, self.cut_off + steps.cut_off
            self.steps += len(steps.states)
            if not len(steps.states) or not fitted:
                continue
            said = np.stack([rest(dist, steps.cuts) for dist in fitted.values()])
            some = ~np.isnan(said).all(axis=(0, 2))
            beyond = np.full(said.shape[1:], np.nan)
            beyond[some] = np.nanmedian(said[:, some], axis=0)
            guess = _guess(steps) if guess is None else guess
            by_guess = over_returns(steps, beyond, partial(_guess_scores, guess))[:, 0]
            found: dict[str, Floats] = {}
            for name, dist in fitted.items():
                scores = step_scores(dist, steps, beyond)
                self.tallies[name].add(steps, scores)
                found[name] = np.where(np.isnan(scores[:, 0]), by_guess, scores[:, 0])
                self.guessed[name] += ClusterSums.of(found[name], steps.episode)
            for a, b in self.pairs:
                if a in found and b in found:
                    self.pairs[a, b] += ClusterSums.of(found[a] - found[b], steps.episode)

    def result(self, folds: int) -> DistributionChoice:
        """The ranking."""
        order = [name for name in self.tallies if name not in self.failed]
        order.sort(key=lambda name: self.guessed[name].mean())
        ranking = [
            DistributionCandidate(
                name=name,
                score=self.tallies[name].score(self.discount),
                crps=self.guessed[name].estimate(),
                difference=None if name == order[0] else self._difference(name, order[0]).estimate(),
            )
            for name in order
        ]
        ranking += [DistributionCandidate(name, None, None, None, why) for name, why in self.failed.items()]
        return DistributionChoice(tuple(ranking), folds, self.episodes, self.steps, self.cut_off)

    def _difference(self, a: str, b: str) -> ClusterSums:
        return self.pairs[a, b] if (a, b) in self.pairs else -self.pairs[b, a]


def all_distributions(estimators: Mapping[str, Any]) -> bool:
    """Whether distributions are to be scored: an error where only some of the estimators have one."""
    kinds = {isinstance(estimator, ReturnDistribution) for estimator in estimators.values()}
    if len(kinds) > 1:
        raise NoDistributionError(
            "estimators must all be ReturnDistribution, whose distributions are scored, or none of them, got "
            "both kinds; cross-validate them apart"
        )
    return kinds == {True}


def _guess(steps: HeldOutSteps) -> Floats:
    """Equally likely values of the returns to go, whatever the state, rising."""
    return np.asarray(np.quantile(steps.rewards, (np.arange(_GUESSED) + 0.5) / _GUESSED))


def _guess_scores(v: Floats, _: Bools, B: Floats) -> Floats:
    """CRPS (n, 1) of equally likely values v: mean |v − B| less half the mean |v − v'|."""
    spread = float(np.abs(v[:, None] - v).mean()) / 2
    sums = np.append(0.0, np.cumsum(v))
    below = np.searchsorted(v, B)
    mean = (2 * (below * B - sums[below]) + sums[-1] - v.size * B) / v.size
    return np.asarray(mean - spread)[:, None]
