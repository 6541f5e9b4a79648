"""The choice between estimators: cross-validation by episode.

Every episode is held out once and scored by estimates that were fitted without it (see
:mod:`policyrisk.scoring`). Candidates are ranked by the Dawid–Sebastiani score, a proper score for mean and
variance together, the smaller the better.

A step with Ṽ ≤ 0 has the score +∞. So that candidates which have some can still be told apart, let such a
step cost L and let L → ∞: first comes the candidate with the fewest of them, and among equals the one with
the smaller score elsewhere. Beside that stands a finite statement for every pair: the difference of the two
scores over the steps where both are defined, paired, with the standard error over episodes. Candidates with
equally many are ordered by their mean difference to one another; where all cover the same steps, that is
the order of their scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from policyrisk._arrays import Floats, Seed, as_count
from policyrisk._progress import ProgressBar
from policyrisk._random import keys
from policyrisk._text import NONE, number, percent, plural, table
from policyrisk.errors import InvalidInputError, MismatchError, PolicyRiskError
from policyrisk.estimate import Estimate
from policyrisk.folds import Fold
from policyrisk.risk import RiskFunction
from policyrisk.scoring import (
    ClusterSums,
    Score,
    ScoreSums,
    episode_of_step,
    held_out_pieces,
    step_scores,
)
from policyrisk.trajectories import Source, batches, check_reiterable

__all__ = ["Candidate", "CrossValidation", "Estimator", "cross_validate"]


class Estimator(Protocol):
    """Anything that turns episodes into a RiskFunction."""

    def fit(self, data: Any) -> RiskFunction:
        """The estimate from Trajectories or a stream of them."""
        ...


@dataclass(frozen=True)
class Candidate:
    """An estimator's place in a cross-validation."""

    name: str
    score: Score | None  # over all held-out steps, None where it failed
    difference: Estimate | None  # of its score to the best one's where both are defined: positive is worse
    compared: float  # the share of steps that the difference is over
    reason: str = ""  # why it failed

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            "name": self.name,
            "score": None if self.score is None else self.score.to_dict(),
            "difference": None if self.difference is None else self.difference.to_dict(),
            "compared": self.compared,
            "reason": self.reason,
        }


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Estimators in the order of their held-out score, the best first and those that failed last."""

    ranking: tuple[Candidate, ...]
    folds: int
    episodes: int  # terminated, each scored once
    steps: int
    cut_off: int  # fitted, never scored

    @property
    def best(self) -> str:
        """The name of the first; an error where all failed."""
        if self.ranking[0].score is None:
            raise InvalidInputError(
                "there is no best estimator, since all failed: "
                + "; ".join(f"{c.name}: {c.reason}" for c in self.ranking)
            )
        return self.ranking[0].name

    @property
    def verdict(self) -> str:
        """The best against the second in a sentence."""
        scored = [c for c in self.ranking if c.score is not None]
        if len(scored) < 2:
            return f"{plural(len(scored), 'estimator')} could be scored"
        first, second = scored[:2]
        assert first.score is not None
        assert second.score is not None
        text = f"{first.name} is preferred to {second.name}"
        if second.score.not_positive != first.score.not_positive:
            text += (
                f": V <= 0 on {percent(first.score.not_positive)} of the steps against "
                f"{percent(second.score.not_positive)}"
            )
        d = second.difference
        if d is None or math.isnan(d):
            return f"{text}; there is no step where both have a score"
        way = "lower" if d >= 0 else "higher"
        return (
            f"{text}; its score is {way} by {number(abs(d), 3)} ± {number(d.standard_error, 2)} "
            f"on the {percent(second.compared)} of the steps where both have one"
        )

    def __str__(self) -> str:
        header = [
            "",
            "score",
            "std error",
            "to best",
            "std error",
            "V <= 0",
            "unvisited",
            "MSE of J",
            "calibration",
        ]
        rows = []
        for c in self.ranking:
            if c.score is None:
                rows.append([c.name, "failed", *[NONE] * (len(header) - 2)])
                continue
            s, d = c.score, c.difference
            rows.append(
                [
                    c.name,
                    number(s.dawid_sebastiani_positive) + ("*" if s.not_positive else ""),
                    number(s.dawid_sebastiani_positive.standard_error, 2),
                    NONE if d is None else number(d, 4),
                    NONE if d is None else number(d.standard_error, 2),
                    percent(s.not_positive),
                    percent(s.unvisited),
                    number(s.mse),
                    number(s.calibration, 4),
                ]
            )
        lines = [
            f"Dawid–Sebastiani score of {plural(self.episodes, 'held-out episode')}, "
            f"{plural(self.steps, 'step')}, {self.folds} folds; the smaller the better",
            table(header, rows),
            self.verdict,
        ]
        scored = [c.score for c in self.ranking if c.score is not None]
        if any(s.not_positive for s in scored):
            lines.append("* over the steps with V > 0; with the others it is infinite, and ranks behind")
        if any(s.unvisited for s in scored):
            lines.append("note: steps in states that a fit did not visit have no score")
        if self.cut_off:
            lines.append(f"note: {plural(self.cut_off, 'episode')} cut off: fitted, but never scored")
        if len(scored) > 1:
            lines.append("note: standard errors are over held-out episodes, the fits being given")
        lines += [f"failed: {c.name}: {c.reason}" for c in self.ranking if c.score is None]
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            "ranking": [c.to_dict() for c in self.ranking],
            "folds": self.folds,
            "episodes": self.episodes,
            "steps": self.steps,
            "cut_off": self.cut_off,
            "verdict": self.verdict,
        }


def cross_validate(
    estimators: Mapping[str, Estimator], data: Source, folds: int = 5, seed: Seed = None
) -> CrossValidation:
    """Rank estimators by the score of episodes that they did not see.

    ``data`` are Trajectories, or a re-iterable stream of them, which is read anew for every fit and never
    held in memory. An estimator that fails on a fold is ranked last, with the reason. All must have the same
    discount, since the discount says what is foretold.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=30, p=0.7).sample(start=0, episodes=500, seed=1)
    >>> line, parabola = (pr.Polynomial(degree=d, low=[0], high=[29]) for d in (1, 2))
    >>> result = cross_validate(
    ...     {
    ...         "M - J^2": pr.LSTD(line, parabola, lam=0.95),
    ...         "direct": pr.LSTD(line, parabola, lam=0.95, variance="direct"),
    ...     },
    ...     data,
    ...     seed=0,
    ... )
    >>> result.best
    'direct'
    >>> result.ranking[1].difference.low > 0
    True
    """
    folds = as_count(folds, "folds", 2)
    _check(estimators)
    check_reiterable(data)
    key = int(keys(seed)[0])
    _check_size(data, folds)
    tally = _Tally(tuple(estimators))
    with ProgressBar("cross-validation", folds * len(estimators)) as bar:
        for fold in range(folds):
            training = Fold(data, key, folds, fold, held_out=False).collected()
            fitted: dict[str, RiskFunction] = {}
            for name, estimator in estimators.items():
                if name not in tally.failed:
                    try:
                        fitted[name] = estimator.fit(training)
                    except (PolicyRiskError, np.linalg.LinAlgError) as error:
                        tally.fail(name, fold, error)
                bar.advance()
            tally.score(fitted, Fold(data, key, folds, fold, held_out=True), fold)
    return tally.result(folds)


class _Tally:
    """Scores of all candidates and differences of every pair, summed over folds."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.failed: dict[str, str] = {}
        self.sums = dict.fromkeys(names, ScoreSums())
        self.pairs = {(a, b): ClusterSums() for i, a in enumerate(names) for b in names[i + 1 :]}
        self.discount: float | None = None
        self.episodes = self.steps = self.cut_off = 0

    def fail(self, name: str, fold: int, error: Exception) -> None:
        self.failed[name] = f"fold {fold}: {type(error).__name__}: {error}"

    def score(self, fitted: dict[str, RiskFunction], held_out: Source, fold: int) -> None:
        discount = self._common_discount(fitted)
        for piece, left_out in held_out_pieces(held_out):
            self.cut_off += left_out
            self.episodes += len(piece)
            self.steps += piece.transitions
            if len(piece) == 0:
                continue
            B, episode = piece.returns_to_go(discount), episode_of_step(piece)
            states = piece.states[piece.visited_rows]
            scores: dict[str, Floats] = {}
            for name, risk in fitted.items():
                if name in self.failed:
                    continue
                try:
                    steps = step_scores(*risk.mean_and_variance(states), B)
                except PolicyRiskError as error:
                    self.fail(name, fold, error)
                    continue
                self.sums[name] += ScoreSums.of(steps, episode)
                scores[name] = steps.dawid_sebastiani
            for a, b in self.pairs:
                if a in scores and b in scores:
                    self.pairs[a, b] += ClusterSums.of(scores[a] - scores[b], episode)

    def _common_discount(self, fitted: dict[str, RiskFunction]) -> float:
        for name, risk in fitted.items():
            discount = risk.facts.discount
            if self.discount is None:
                self.discount = discount
            if discount != self.discount:
                raise MismatchError(
                    f"estimators must agree on the discount, got {self.discount:g} and, for {name!r}, "
                    f"{discount:g}; what they foretell could not be compared"
                )
        return 1.0 if self.discount is None else self.discount

    def difference(self, a: str, b: str) -> ClusterSums:
        """Score of a less score of b."""
        return self.pairs[a, b] if (a, b) in self.pairs else -self.pairs[b, a]

    def result(self, folds: int) -> CrossValidation:
        if self.steps == 0:
            raise InvalidInputError(
                f"data must hold terminated episodes to score, got {self.cut_off}, all cut off; "
                "gather episodes that end"
            )
        order = self._order([name for name in self.names if name not in self.failed])
        ranking = []
        for name in order:
            pair = None if name == order[0] else self.difference(name, order[0])
            ranking.append(
                Candidate(
                    name=name,
                    score=Score.of(self.sums[name], self.cut_off),
                    difference=None if pair is None else pair.estimate(),
                    compared=1.0 if pair is None else pair.steps / self.steps,
                )
            )
        ranking += [Candidate(name, None, None, math.nan, reason) for name, reason in self.failed.items()]
        return CrossValidation(tuple(ranking), folds, self.episodes, self.steps, self.cut_off)

    def _order(self, names: list[str]) -> list[str]:
        """By the share of V ≤ 0, then by the mean difference to the others of the same share."""

        def place(name: str) -> tuple[int, float]:
            worst = self.sums[name].not_positive
            equals = [b for b in names if b != name and self.sums[b].not_positive == worst]
            pairs = [self.difference(name, b) for b in equals]
            differences = [pair.mean() for pair in pairs if pair.steps]
            if self.sums[name].dawid_sebastiani.steps == 0:
                return worst, math.inf
            return worst, float(np.mean(differences)) if differences else 0.0

        return sorted(names, key=place)


def _check(estimators: Mapping[str, Estimator]) -> None:
    if not isinstance(estimators, Mapping) or not estimators:
        raise InvalidInputError(
            "estimators must be a dictionary of at least one name and its estimator, got "
            f'{type(estimators).__name__}; pass {{"a": LSTD(...), "b": LSTD(...)}}'
        )
    for name, estimator in estimators.items():
        if isinstance(estimator, type) or not callable(getattr(estimator, "fit", None)):
            raise InvalidInputError(
                f"estimators[{name!r}] must have a fit(data), got {estimator!r}; pass one such as LSTD(...)"
            )
    discounts = {name: getattr(estimator, "discount", None) for name, estimator in estimators.items()}
    if len({d for d in discounts.values() if d is not None}) > 1:
        raise MismatchError(
            f"estimators must agree on the discount, got {discounts}; what they foretell cannot be compared"
        )


def _check_size(data: Source, folds: int) -> None:
    """Raise where there are fewer episodes than folds, reading no further than needed."""
    count = 0
    for batch in batches(data):
        count += len(batch)
        if count >= folds:
            return
    raise InvalidInputError(
        f"data must hold at least folds={folds} episodes, got {count}; gather more or use fewer folds"
    )
