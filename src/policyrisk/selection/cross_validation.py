"""The choice between estimators: cross-validation by episode.

Every episode is held out once and scored by estimates that were fitted without it. How the scores rank the
estimators is in :mod:`policyrisk.selection.ranking`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from policyrisk._core.arrays import Floats, Seed, as_count
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import keys
from policyrisk.errors import InvalidInputError, MismatchError, PolicyRiskError
from policyrisk.risk import RiskFunction
from policyrisk.risk.scoring import (
    ClusterSums,
    Score,
    ScoreSums,
    episode_of_step,
    held_out_pieces,
    step_scores,
)
from policyrisk.risk.summary import SampleReturns
from policyrisk.selection.folds import Fold
from policyrisk.selection.ranking import FLOOR, Candidate, CrossValidation, Scale, ranking_scores
from policyrisk.trajectories import Source, Trajectories, batches, check_reiterable

__all__ = ["Candidate", "CrossValidation", "Estimator", "cross_validate"]

_ROUNDING = 1e-9  # of the mean of B²: what counts as no error of J


class Estimator(Protocol):
    """Anything that turns episodes into a RiskFunction."""

    def fit(self, data: Any) -> RiskFunction:
        """The estimate from Trajectories or a stream of them."""
        ...


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
            discount = risk.provenance.discount
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
