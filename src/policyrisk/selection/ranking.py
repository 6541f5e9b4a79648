"""Estimators ranked by what they said about episodes that they did not see.

In every fold each estimator is fitted to the other episodes and gives each held-out step a score, the smaller
the better. A :class:`Tally` adds these up over folds: the means and the differences of every pair, with
standard errors over episodes. What the score is, one of J and V or of a distribution, is up to its kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import NONE, Readable, TextTable, number, plural
from policyrisk.data import Source
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.scoring import ClusterSums, EpisodeSteps, episode_steps


@dataclass(frozen=True)
class RankedEstimator:
    """An estimator's place in a ranking."""

    name: str
    score: Any  # over all held-out steps, None where it failed
    difference: Estimate | None  # of what ranks to that of the best one: positive is worse, None for it
    reason: str  # why it failed

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in vars(self).items()}

    def row(self, rank: Estimate | None, digits: int) -> list[str]:
        """The first cells of its line of the table."""
        cells = [self.name]
        for estimate, most in ((rank, digits), (self.difference, 4)):
            shown = Estimate(math.nan) if estimate is None else estimate
            cells += [number(shown, most), number(shown.standard_error, 2)]
        return cells


@dataclass(frozen=True, eq=False)
class Ranking(Readable):
    """Estimators in the order of their held-out score, the best first and those that failed last."""

    ranking: tuple[Any, ...]
    folds: int
    episodes: int  # each scored once
    steps: int
    cut_off: int  # of the episodes
    _ranks: ClassVar[str]  # what the score is called
    _columns: ClassVar[tuple[str, ...]]  # what ranks, and the others

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

    @property
    def verdict(self) -> str:
        """The best against the second in a sentence."""
        second = next((c for c in self.ranking if c.difference is not None), None)
        if second is None:
            return f"{plural(sum(c.score is not None for c in self.ranking), 'estimator')} could be scored"
        lower, error = number(second.difference, 3), number(second.difference.standard_error, 2)
        return f"{self.best} is preferred to {second.name}: its score is lower by {lower} ± {error}"

    def _row(self, candidate: Any) -> list[str]:
        """The line of one that was scored."""
        raise NotImplementedError

    def _notes(self, scores: list[Any]) -> list[tuple[Any, str]]:
        """What to say of the scores, and whether it applies."""
        raise NotImplementedError

    def _blocks(self) -> list[str | TextTable]:
        scored = [c for c in self.ranking if c.score is not None]
        rows = [self._row(c) for c in scored]
        header = ["", self._columns[0], "std error", "to best", "std error", *self._columns[1:]]
        failed: dict[str, list[str]] = {}
        for c in self.ranking:
            if c.score is None:
                rows.append([c.name, "failed", *[NONE] * (len(header) - 2)])
                failed.setdefault(c.reason, []).append(c.name)
        notes = [
            *self._notes([c.score for c in scored]),
            (self.cut_off, f"{plural(self.cut_off, 'episode')} cut off: completed by the median estimator"),
            (len(scored) > 1, "standard errors are over held-out episodes, the fits being given"),
        ]
        return [
            f"{self._ranks} of {plural(self.episodes, 'held-out episode')}, {plural(self.steps, 'step')}, "
            f"{self.folds} folds; the smaller the better",
            TextTable(header, rows),
            self.verdict,
            *(f"note: {note}" for applies, note in notes if applies),
            *(f"failed: {', '.join(names)}: {reason}" for reason, names in failed.items()),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {**vars(self), "ranking": [c.to_dict() for c in self.ranking], "verdict": self.verdict}


class Tally:
    """Scores of all estimators and differences of every pair, summed over folds."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.failed: dict[str, str] = {}
        self.ranks = dict.fromkeys(names, ClusterSums())
        self.pairs = dict.fromkeys(combinations(names, 2), ClusterSums())
        self.discounts: dict[str, float] = {}
        self.episodes = self.steps = self.cut_off = 0

    @property
    def discount(self) -> float:
        """That of what is predicted."""
        return common_discount(self.discounts)

    def fail(self, name: str, fold: int, error: Exception) -> None:
        """Leave an estimator out that cannot be fitted or asked."""
        self.failed[name] = f"fold {fold}: {type(error).__name__}: {error}"

    def add(self, fitted: Mapping[str, Any], held_out: Source, fold: int) -> None:
        """The steps of a fold, by what was fitted without it."""
        for steps in episode_steps(self._begin(fitted, held_out, fold), self.discount):
            self.episodes, self.cut_off = self.episodes + steps.episodes, self.cut_off + steps.cut_off
            self.steps += len(steps.states)
            found = self._scores(fitted, steps, fold) if len(steps.states) and fitted else {}
            for name, scores in found.items():
                self.ranks[name] += ClusterSums.of(scores, steps.episode)
            for a, b in combinations(found, 2):
                self.pairs[a, b] += ClusterSums.of(found[a] - found[b], steps.episode)

    def result(self, folds: int) -> Ranking:
        """The ranking."""
        if self.cut_off == self.episodes and self.discount == 1.0:
            raise no_end(self.cut_off)
        order = [name for name in self.ranks if name not in self.failed]
        order.sort(key=lambda name: self.ranks[name].mean())
        ranking = [
            self._candidate(name, self.ranks[name].estimate(), self._difference(name, order[0]))
            for name in order
        ]
        ranking += [self._candidate(name, None, None, reason) for name, reason in self.failed.items()]
        return self._ranking(tuple(ranking), folds, self.episodes, self.steps, self.cut_off)

    def _difference(self, name: str, best: str) -> Estimate | None:
        if name == best:
            return None
        sums = self.pairs[name, best] if (name, best) in self.pairs else -self.pairs[best, name]
        return sums.estimate()

    _ranking: ClassVar[type[Ranking]]

    def _begin(self, fitted: Mapping[str, Any], held_out: Source, fold: int) -> Source:
        """Note what the fold's scores need besides; the fold as it is to be read."""
        raise NotImplementedError

    def _scores(self, fitted: Mapping[str, Any], steps: EpisodeSteps, fold: int) -> dict[str, Floats]:
        """The score (n,) by which each estimator is ranked; its others are added on the way."""
        raise NotImplementedError

    def _candidate(
        self, name: str, rank: Estimate | None, difference: Estimate | None, reason: str = ""
    ) -> RankedEstimator:
        """An estimator in its place, ``rank`` being None where it failed."""
        raise NotImplementedError


def common_discount(discounts: Mapping[str, float]) -> float:
    """The discount that all agree on; 1 where there are none."""
    if len(set(discounts.values())) > 1:
        raise MismatchError(
            f"estimators must agree on the discount, got {discounts}; what they predict cannot be compared"
        )
    return next(iter(discounts.values()), 1.0)


def no_end(episodes: int) -> InvalidInputError:
    """The error where no held-out return is known."""
    return InvalidInputError(
        f"data must hold terminated episodes to score where the discount is 1, got {episodes}, all cut off; "
        "gather episodes that end, or use a discount below 1, with which none has to"
    )


def medians(said: Floats) -> Floats:
    """Those of estimators (m, …, k) over the ones that know a place (k,), (…, k); nan where none does."""
    some = ~np.isnan(said).all(axis=tuple(range(said.ndim - 1)))
    found = np.full(said.shape[1:], np.nan)
    if some.any():
        found[..., some] = np.nanmedian(said[..., some], axis=0)
    return found
