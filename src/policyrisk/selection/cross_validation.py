"""The choice between estimators: cross-validation by episode.

Every episode is held out once and scored by estimates that were fitted without it. Estimators are ranked by
the Dawid–Sebastiani score of :mod:`policyrisk.risk.scoring`, the smaller the better, with a floor f under Ṽ:

    log V + (B − J)² / V,        V = max(Ṽ, f)

The score itself is infinite where Ṽ ≤ 0 and astronomic where Ṽ is nearly 0, so that one such step would
outweigh everything else. In each fold f is FLOOR times the least mean squared error of any estimator's J,
which is about the average variance, and the same for all: undue certainty then costs up to 1/FLOOR times the
average step, wherever it is, and estimates that are right have little to fear from it.

Episodes that were cut off are scored as in :mod:`policyrisk.risk.scoring`, by completed returns, but here by
the same for all: B and what follows the cut are made of the median of the estimators' J̃(x_T) and Ṽ(x_T), so
that none gains by what it says of the rest itself. Steps before a cut where none says anything do not count.

Where an estimate says nothing, since its data never visited the state, it is scored as one would have to
guess then: by the mean and variance of all returns to go of the fold. All estimators are so compared over all
steps, paired, with standard errors over episodes. Floor, guess and median are in the ranking alone:
``Candidate.score`` is what :func:`RiskFunction.score` gives.

*Distributions.* Estimators of the return's distribution are ranked by their CRPS over all steps
(:mod:`policyrisk.returns.distribution_scores`), the smaller the better. What follows a cut-off is the same
for all, the median of what the estimators say there; and where one says nothing, its CRPS is that of a guess,
the distribution of all returns to go of the fold.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from policyrisk._core.arrays import Bools, Floats, Seed, as_count, check_named
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import keys
from policyrisk._core.text import number, percent
from policyrisk.data import Source, batches, check_reiterable
from policyrisk.data.source import InUnits
from policyrisk.errors import InvalidInputError, NoDistributionError, PolicyRiskError
from policyrisk.lstd import LSTDQ
from policyrisk.passes.episode_folds import each_fold
from policyrisk.returns import DistributionFunction, ReturnDistribution
from policyrisk.returns.distribution_scores import (
    DistributionScore,
    ScoreTally,
    over_returns,
    rest,
    step_scores,
)
from policyrisk.risk import RiskFunction, SampleReturns
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.scoring import (
    CERTAIN,
    EpisodeSteps,
    Score,
    ScoreSums,
    completed_returns,
    episode_steps,
    scores_of,
)
from policyrisk.selection.ranking import RankedEstimator, Ranking, Tally, common_discount, medians, no_end

FLOOR = 0.01  # f, of the mean squared error of J
_GUESSED = 200  # values of all returns that the guess is made of
_ASTRONOMIC = 1e6  # from here on a calibration says no more than that some Ṽ is nearly 0


class Estimator(Protocol):
    """Anything that turns episodes into a RiskFunction."""

    def fit(self, data: Any) -> RiskFunction:
        """The estimate from Trajectories or a stream of them."""
        ...


@dataclass(frozen=True)
class Candidate(RankedEstimator):
    """An estimator's place in a cross-validation; ``score`` is a :class:`policyrisk.risk.scoring.Score`."""

    floored: Estimate | None  # the Dawid–Sebastiani score with the floor, which ranks


@dataclass(frozen=True, eq=False)
class CrossValidation(Ranking):
    """Estimators in the order of their held-out score, the best first and those that failed last."""

    _ranks = "Dawid–Sebastiani score"
    _columns = "score", "V <= 0", "unvisited", "MSE of J", "calibration"

    def _row(self, candidate: Candidate) -> list[str]:
        s: Score = candidate.score
        huge = math.isfinite(s.calibration) and abs(s.calibration) >= _ASTRONOMIC
        calibration = "> 1e6" if huge else number(s.calibration, 4)
        shares = percent(s.not_positive), percent(s.unvisited)
        return [*candidate.row(candidate.floored, 5), *shares, number(s.mse), calibration]

    def _notes(self, scores: list[Score]) -> list[tuple[Any, str]]:
        unvisited = any(s.unvisited for s in scores)
        astronomic = any(s.calibration >= _ASTRONOMIC for s in scores)
        return [
            (True, f"where V is below {FLOOR:.0%} of the smallest MSE of J it is scored as if it were that"),
            (unvisited, "in states that a fit did not visit, the overall mean and variance are scored"),
            (astronomic, "a calibration above 1e6 comes from steps where V > 0 is nearly 0"),
        ]


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


@overload
def cross_validate(
    estimators: Mapping[str, Estimator], data: Source, folds: int = 5, seed: Seed = None
) -> CrossValidation: ...
@overload
def cross_validate(
    estimators: Mapping[str, ReturnDistribution], data: Source, folds: int = 5, seed: Seed = None
) -> DistributionChoice: ...
def cross_validate(
    estimators: Mapping[str, Any], data: Source, folds: int = 5, seed: Seed = None
) -> CrossValidation | DistributionChoice:
    """Rank estimators by the score of episodes that they did not see.

    An estimator that fails on a fold is ranked last, with the reason.

    Parameters
    ----------
    estimators
        By name, all with the same discount, since the discount says what is predicted. Where all are
        :class:`policyrisk.ReturnDistribution`, they are ranked by CRPS.
    data
        Trajectories, or a re-iterable stream of them, which is read anew for every fit and never held in
        memory.
    folds
        Into how many parts the episodes are split.
    seed
        That of the split.

    Returns
    -------
    CrossValidation or DistributionChoice
        ``ranking``, ``best`` and the differences; ``print`` shows them as a table.

    Examples
    --------
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
    discount = _check(estimators)
    check_reiterable(data)
    key = int(keys(seed)[0])
    _check_data(data, folds, discount)
    names = tuple(estimators)
    tally = DistributionTally(names) if _all_distributions(estimators) else _MomentTally(names)
    with ProgressBar("cross-validation", folds * len(estimators)) as bar:
        for fold, training, held_out in each_fold(data, folds, key):
            fitted: dict[str, Any] = {}
            for name, estimator in estimators.items():
                if name not in tally.failed:
                    try:
                        fitted[name] = _fit(estimator, training)
                    except (PolicyRiskError, np.linalg.LinAlgError) as error:
                        tally.fail(name, fold, error)
                bar.advance()
            tally.add(fitted, held_out, fold)
    result: Any = tally.result(folds)
    return result  # type: ignore[no-any-return]


def _fit(estimator: Any, training: Source) -> Any:
    """The estimate without error bars, which no score needs, where the estimator can do without."""
    fit: Callable[..., Any] = estimator.fit
    spared = "error_bars" in inspect.signature(fit).parameters
    return fit(training, error_bars=False) if spared else fit(training)


class FoldReturns(NamedTuple):
    """What a fold's returns to go B are like."""

    floor: float  # f
    mean: float  # of B over all steps
    variance: float


def floored_scores(
    J: Floats, V: Floats, B: Floats, fold: FoldReturns, beyond: Floats | float = 0.0
) -> Floats:
    """log max(V, f) + E / max(V, f), of shape (n,), with the guess for J and V where either is nan.

    E = (B − J)² + beyond, as in :func:`policyrisk.risk.scoring.step_scores`.

    >>> fold = FoldReturns(floor=1.0, mean=0.0, variance=9.0)
    >>> J, V, B = np.array([1.0, 1.0, np.nan]), np.array([4.0, -1.0, np.nan]), np.full(3, 3.0)
    >>> floored_scores(J, V, B, fold).round(3)
    array([2.386, 4.   , 3.197])
    """
    unvisited = np.isnan(J) | np.isnan(V)
    J = np.where(unvisited, fold.mean, J)
    V = np.maximum(np.where(unvisited, fold.variance, V), fold.floor)
    scores: Floats = np.log(V) + ((B - J) ** 2 + beyond) / V
    return scores


class _MomentTally(Tally):
    """Scores of J and V."""

    _ranking = CrossValidation

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.sums = dict.fromkeys(names, ScoreSums())
        self.unit = 0.0  # of the rewards that scores are made of, once something is fitted

    def _begin(self, fitted: Mapping[str, RiskFunction], held_out: Source, fold: int) -> Source:
        self.discounts |= {name: risk.provenance.discount for name, risk in fitted.items()}
        self.unit = self.unit or max((risk.unit for risk in fitted.values()), default=0.0)
        if fitted:
            held_out = InUnits(held_out, self.unit)
            self.like = self._fold_returns(fitted, held_out, fold)
        return held_out

    def _scores(
        self, fitted: Mapping[str, RiskFunction], steps: EpisodeSteps, fold: int
    ) -> dict[str, Floats]:
        predicted, B, beyond = self._predicted(fitted, steps, fold)
        for name, (J, V) in predicted.items():
            self.sums[name] += scores_of(steps, J, V)
        n = len(B)
        return {
            name: floored_scores(J[:n], V[:n], B, self.like, beyond) for name, (J, V) in predicted.items()
        }

    def _fold_returns(self, fitted: Mapping[str, RiskFunction], held_out: Source, fold: int) -> FoldReturns:
        B_all = SampleReturns.of([])
        errors = dict.fromkeys(fitted, 0.0)  # Σ (B − J)² where J is known
        unknown = dict.fromkeys(fitted, B_all)  # the B of the other steps
        squares = 0.0  # what follows the cuts adds to the squares of B − J, whatever J
        for steps in episode_steps(held_out, self.discount):
            predicted, B, beyond = self._predicted(fitted, steps, fold)
            counted = ~np.isnan(B)
            B_all += SampleReturns.of(B[counted])
            squares += float(beyond[counted].sum())
            for name, (J, _) in predicted.items():
                known = ~np.isnan(J[: len(B)]) & counted
                errors[name] += float(np.sum((B[known] - J[: len(B)][known]) ** 2))
                unknown[name] += SampleReturns.of(B[~known & counted])
        if B_all.count == 0:
            return FoldReturns(1.0, 0.0, 1.0)
        for name, B_there in unknown.items():
            if B_there.count:
                errors[name] += B_there.squares + B_there.count * (B_there.mean - B_all.mean) ** 2
        least = min((errors[name] for name in fitted if name not in self.failed), default=0.0) + squares
        size = B_all.squares + B_all.count * B_all.mean**2  # Σ B²
        # Where nothing is random, or there is no reward, any floor will do.
        floor = max(FLOOR * least, CERTAIN * size) / B_all.count or 1.0
        return FoldReturns(floor, B_all.mean, (B_all.squares + squares) / B_all.count)

    def _predicted(
        self, fitted: Mapping[str, RiskFunction], steps: EpisodeSteps, fold: int
    ) -> tuple[dict[str, tuple[Floats, Floats]], Floats, Floats]:
        """J and V of each estimator at the steps, then at the cuts, and the returns (n,) for all of them.

        These are B and γ²ⁿ V(x_T), completed by the medians, nan where there are none. An estimator that
        cannot say J and V has failed.
        """
        predicted: dict[str, tuple[Floats, Floats]] = {}
        for name, risk in fitted.items():
            if name not in self.failed and len(steps.states):
                try:
                    J, V = risk.mean_and_variance(np.concatenate([steps.states, steps.cuts]))
                    predicted[name] = J / self.unit, V / self.unit**2
                except (PolicyRiskError, np.linalg.LinAlgError) as error:
                    self.fail(name, fold, error)
        ends = np.array([[J[len(steps.states) :], V[len(steps.states) :]] for J, V in predicted.values()])
        B, beyond = completed_returns(steps, *medians(ends.reshape(len(predicted), 2, steps.cut_off)))
        return predicted, B, np.where(np.isnan(B), np.nan, beyond)

    def _candidate(
        self, name: str, rank: Estimate | None, difference: Estimate | None, reason: str = ""
    ) -> Candidate:
        if rank is None:
            return Candidate(name, None, difference, reason, rank)
        score = Score.of(self.sums[name], self.cut_off, self.discount).times(self.unit)
        return Candidate(name, score, difference, reason, rank.moved(1.0, 2.0 * math.log(self.unit)))


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


def _all_distributions(estimators: Mapping[str, Any]) -> bool:
    """Whether distributions are to be scored: an error where only some of the estimators have one."""
    kinds = {isinstance(estimator, ReturnDistribution) for estimator in estimators.values()}
    if len(kinds) > 1:
        raise NoDistributionError(
            "estimators must all be ReturnDistribution, whose distributions are scored, or none of them, got "
            "both kinds; cross-validate them apart"
        )
    return kinds == {True}


def _check(estimators: Mapping[str, Estimator]) -> float | None:
    """The estimators' discount, None where they do not say; an error where they do not fit together."""
    check_named(estimators, "estimators", "estimator", "LSTD(...)")
    for name, estimator in estimators.items():
        if isinstance(estimator, type) or not callable(getattr(estimator, "fit", None)):
            raise InvalidInputError(
                f"estimators[{name!r}] must have a fit(data), got {estimator!r}; pass one such as LSTD(...)"
            )
        if isinstance(estimator, LSTDQ):
            raise InvalidInputError(
                f"estimators[{name!r}] must be of the recorded policy, got LSTDQ: no held-out episode is of "
                "its target; compare LSTD with the same features of the state"
            )
    discounts = {name: getattr(estimator, "discount", None) for name, estimator in estimators.items()}
    said = {name: discount for name, discount in discounts.items() if discount is not None}
    return common_discount(said) if said else None


def _check_data(data: Source, folds: int, discount: float | None) -> None:
    """Raise where episodes are fewer than folds, or none ends though one must; read no more than needed."""
    count, ended = 0, discount != 1.0
    for batch in batches(data):
        count += len(batch)
        ended = ended or bool(batch.terminated.any())
        if count >= folds and ended:
            return
    if count >= folds:
        raise no_end(count)
    raise InvalidInputError(
        f"data must hold at least folds={folds} episodes, got {count}; gather more or use fewer folds"
    )
