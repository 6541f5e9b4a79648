"""The choice between estimators: cross-validation by episode.

Every episode is held out once and scored by estimates that were fitted without it. Candidates are ranked by
the Dawid–Sebastiani score of :mod:`policyrisk.scoring`, the smaller the better, with a floor f under Ṽ:

    log V + (B − J)² / V,        V = max(Ṽ, f)

The score itself is infinite where Ṽ ≤ 0 and astronomic where Ṽ is nearly 0, so that one such step would
outweigh everything else. In each fold f is FLOOR times the least mean squared error of any candidate's J,
which is about the average variance, and the same for all: undue certainty then costs up to 1/FLOOR times the
average step, wherever it is, and estimates that are right have little to fear from it.

Where a candidate says nothing, since it never visited the state, it is scored as one would have to guess
then: by the mean and variance of all returns to go of the fold. All candidates are so compared over all
steps, paired, with standard errors over episodes. Floor and guess are in the ranking alone:
``Candidate.score`` is what :func:`RiskFunction.score` gives.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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
from policyrisk.summary import SampleReturns
from policyrisk.trajectories import Source, Trajectories, batches, check_reiterable

__all__ = ["Candidate", "CrossValidation", "Estimator", "cross_validate"]

FLOOR = 0.01  # under Ṽ, of the mean squared error of J
_ROUNDING = 1e-9  # of the mean of B²: what counts as no error of J
_ASTRONOMIC = 1e6  # from here on a calibration says no more than that some Ṽ is nearly 0


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
    floored: Estimate | None  # the Dawid–Sebastiani score with the floor, which ranks
    difference: Estimate | None  # of that to the best one's: positive is worse
    reason: str = ""  # why it failed

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            "name": self.name,
            "score": None if self.score is None else self.score.to_dict(),
            "floored": None if self.floored is None else self.floored.to_dict(),
            "difference": None if self.difference is None else self.difference.to_dict(),
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
        text = f"{first.name} is preferred to {second.name}"
        d = second.difference
        assert d is not None
        return f"{text}: its score is lower by {number(d, 3)} ± {number(d.standard_error, 2)}"

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
            s, f, d = c.score, c.floored, c.difference
            rows.append(
                [
                    c.name,
                    NONE if f is None else number(f, 5),
                    NONE if f is None else number(f.standard_error, 2),
                    NONE if d is None else number(d, 4),
                    NONE if d is None else number(d.standard_error, 2),
                    percent(s.not_positive),
                    percent(s.unvisited),
                    number(s.mse),
                    _bounded(s.calibration, 4),
                ]
            )
        lines = [
            f"Dawid–Sebastiani score of {plural(self.episodes, 'held-out episode')}, "
            f"{plural(self.steps, 'step')}, {self.folds} folds; the smaller the better",
            table(header, rows),
            self.verdict,
        ]
        scored = [c.score for c in self.ranking if c.score is not None]
        lines.append(
            f"note: where V is below {FLOOR:.0%} of the smallest MSE of J it is scored as if it were that"
        )
        if any(s.unvisited for s in scored):
            lines.append("note: in states that a fit did not visit, the overall mean and variance are scored")
        if self.cut_off:
            lines.append(f"note: {plural(self.cut_off, 'episode')} cut off: fitted, but never scored")
        if len(scored) > 1:
            lines.append("note: standard errors are over held-out episodes, the fits being given")
        if any(s.calibration >= _ASTRONOMIC for s in scored):
            lines.append("note: a calibration above 1e6 comes from steps where V > 0 is nearly 0")
        reasons: dict[str, list[str]] = {}
        for c in self.ranking:
            if c.score is None:
                reasons.setdefault(c.reason, []).append(c.name)
        lines += [f"failed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
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
                        fitted[name] = _fit(estimator, training)
                    except (PolicyRiskError, np.linalg.LinAlgError) as error:
                        tally.fail(name, fold, error)
                bar.advance()
            tally.score(fitted, Fold(data, key, folds, fold, held_out=True), fold)
    return tally.result(folds)


def _fit(estimator: Estimator, training: Source) -> RiskFunction:
    """The estimate without error bars, which no score needs, where the estimator can do without."""
    fit: Callable[..., RiskFunction] = estimator.fit
    if "error_bars" in inspect.signature(fit).parameters:
        return fit(training, error_bars=False)
    return fit(training)


def _bounded(value: float, digits: int) -> str:
    """A number that was divided by some Ṽ."""
    if abs(value) < _ASTRONOMIC or not math.isfinite(value):
        return number(value, digits)
    return "> 1e6"


class _Tally:
    """Scores of all candidates and differences of every pair, summed over folds."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.failed: dict[str, str] = {}
        self.sums = dict.fromkeys(names, ScoreSums())
        self.floored = dict.fromkeys(names, ClusterSums())
        self.pairs = {(a, b): ClusterSums() for i, a in enumerate(names) for b in names[i + 1 :]}
        self.discount: float | None = None
        self.episodes = self.steps = self.cut_off = 0

    def fail(self, name: str, fold: int, error: Exception) -> None:
        self.failed[name] = f"fold {fold}: {type(error).__name__}: {error}"

    def score(self, fitted: dict[str, RiskFunction], held_out: Source, fold: int) -> None:
        discount = self._common_discount(fitted)
        scale = self._scale(fitted, held_out, discount, fold)
        for piece, left_out in held_out_pieces(held_out):
            self.cut_off += left_out
            self.episodes += len(piece)
            self.steps += piece.transitions
            if len(piece) == 0:
                continue
            B, episode = piece.returns_to_go(discount), episode_of_step(piece)
            scores: dict[str, Floats] = {}
            for name, (J, V) in self._foretold(fitted, piece, fold).items():
                self.sums[name] += ScoreSums.of(step_scores(J, V, B), episode)
                scores[name] = ranking_scores(J, V, B, scale)
                self.floored[name] += ClusterSums.of(scores[name], episode)
            for a, b in self.pairs:
                if a in scores and b in scores:
                    self.pairs[a, b] += ClusterSums.of(scores[a] - scores[b], episode)

    def _scale(self, fitted: dict[str, RiskFunction], held_out: Source, discount: float, fold: int) -> Scale:
        """What the fold's returns to go are like."""
        B_all = SampleReturns.of([])
        errors = dict.fromkeys(fitted, 0.0)  # Σ (B − J)² where J is known
        unknown = dict.fromkeys(fitted, B_all)  # the B of the other steps
        for piece, _ in held_out_pieces(held_out):
            if len(piece) == 0:
                continue
            B = piece.returns_to_go(discount)
            B_all += SampleReturns.of(B)
            for name, (J, _) in self._foretold(fitted, piece, fold).items():
                known = ~np.isnan(J)
                errors[name] += float(np.sum((B[known] - J[known]) ** 2))
                unknown[name] += SampleReturns.of(B[~known])
        if B_all.count == 0:
            return Scale(1.0, 0.0, 1.0)
        for name, B_there in unknown.items():
            if B_there.count:
                errors[name] += B_there.squares + B_there.count * (B_there.mean - B_all.mean) ** 2
        least = min((errors[name] for name in fitted if name not in self.failed), default=0.0)
        size = B_all.squares + B_all.count * B_all.mean**2  # Σ B²
        # Where nothing is left to chance, or to reward, any scale will do.
        floor = max(FLOOR * least, _ROUNDING * size) / B_all.count or 1.0
        return Scale(floor, B_all.mean, B_all.squares / B_all.count)

    def _foretold(
        self, fitted: dict[str, RiskFunction], piece: Trajectories, fold: int
    ) -> dict[str, tuple[Floats, Floats]]:
        """J and V of each candidate at a piece's steps; one that cannot say them has failed."""
        states = piece.states[piece.visited_rows]
        foretold = {}
        for name, risk in fitted.items():
            if name not in self.failed:
                try:
                    foretold[name] = risk.mean_and_variance(states)
                except PolicyRiskError as error:
                    self.fail(name, fold, error)
        return foretold

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
                f"data must hold terminated episodes to score, got {self.cut_off}, all cut off; gather "
                "episodes that end, or name the features yourself (with a discount below 1 none has to end)"
            )
        scored = [name for name in self.names if name not in self.failed]
        order = sorted(scored, key=lambda name: self.floored[name].mean())
        ranking = []
        for name in order:
            pair = None if name == order[0] else self.difference(name, order[0])
            ranking.append(
                Candidate(
                    name=name,
                    score=Score.of(self.sums[name], self.cut_off),
                    floored=self.floored[name].estimate(),
                    difference=None if pair is None else pair.estimate(),
                )
            )
        ranking += [Candidate(name, None, None, None, reason) for name, reason in self.failed.items()]
        return CrossValidation(tuple(ranking), folds, self.episodes, self.steps, self.cut_off)


class Scale(NamedTuple):
    """What a fold's returns to go B are like."""

    floor: float  # f
    mean: float  # of B over all steps
    variance: float


def ranking_scores(J: Floats, V: Floats, B: Floats, scale: Scale) -> Floats:
    """log max(V, f) + (B − J)² / max(V, f), of shape (n,), with the guess for J and V where either is nan.

    >>> scale = Scale(floor=1.0, mean=0.0, variance=9.0)
    >>> J, V, B = np.array([1.0, 1.0, np.nan]), np.array([4.0, -1.0, np.nan]), np.full(3, 3.0)
    >>> ranking_scores(J, V, B, scale).round(3)
    array([2.386, 4.   , 3.197])
    """
    unvisited = np.isnan(J) | np.isnan(V)
    J = np.where(unvisited, scale.mean, J)
    V = np.maximum(np.where(unvisited, scale.variance, V), scale.floor)
    scores: Floats = np.log(V) + (B - J) ** 2 / V
    return scores


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
