"""Features for a target: what the steps of a log say of candidates, though no episode is of the target.

With J̃(x) = Σ_a π(a|x) Q̃(x, a), one step leaves the estimate of a candidate with the error

    δ_t = r_t + γJ̃(x_{t+1}) − Q̃(x_t, a_t),        ε(x, a) = E[δ_t | x_t = x, a_t = a]

whoever chose a_t, and ε = 0 everywhere is what the right Q̃ has. The squares of the δ_t do not tell ε: they
hold the randomness of the step too, which is the less the flatter J̃ is. Products of two do, of steps that are
nearly alike but of different episodes, whose randomness is independent (Feng, Ren, Tang and Liu 2020). With
N(t) the NEIGHBOURS steps of other episodes with the same action that are nearest to t,

    misfit      (1/n) Σ_t δ_t · mean of δ_s over s in N(t)        ≈ E[ε²], where ε changes slowly
    score       H² · misfit + unsteady

δ_t being that of the fit without the fold that t is in, where N(t) is as well. H² · misfit is the squared
bias of J̃ if all errors along the way have one sign, H being the (discounted) number of steps of an episode of
the log, and unsteady is its variance at the average start, the jackknife's over folds. The smallest score is
chosen.

The score takes all errors along the way to have one sign. How large the squared bias is beside it, the means
J_i of the candidates tell, of which J_1 is that of the best:

    bias²       κ · score_1,   κ = average over the others of (J_i − J_1)² / (score_i + score_1)

By √(1 + bias²/s²) the intervals are wider than randomness makes them, s being the standard error of the mean.

A candidate whose mean over the starts is far from all that rewards like the recorded ones can sum up to is
not *possible*, and is not chosen unless all are so. How far the means of candidates that are nearly as good
lie apart is what the choice decides and the log does not (:mod:`policyrisk.evaluation.target_findings`). A
misfit counts there as far as it is beyond two of its standard errors, over episodes.

From 500 random episodes of CartPole, of 22 steps on average, a controller that never drops the pole has means
of 10.2 ± 0.1 (γ = 0.9) and 32.3 ± 1.5 (γ = 0.97); 10 and 33.3 are right. With the features that predict the
recorded policy best they were 11.0 ± 0.1 and 20 ± 25.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import keys
from policyrisk._core.text import Readable, TextTable, number, plural
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError, PolicyRiskError, PolicyRiskWarning
from policyrisk.lstd import LSTDQ
from policyrisk.lstd.critics import CriticValues
from policyrisk.passes.episode_folds import FOLDS, each_fold, folds_of
from policyrisk.risk import RiskFunction
from policyrisk.selection.stacking import brief

NEIGHBOURS = 8
_TIES = 1e-9  # of a coordinate's span
BEYOND = 0.15  # of the possible means, or of a reward where that is more or there is no end to them
RIVAL = 2.0  # times the best score: nearly as good


def discounted_steps(discount: float, steps: Any) -> Any:
    """Σ_{t<steps} γ^t."""
    return steps if discount == 1.0 else (1.0 - discount**steps) / (1.0 - discount)


def possible_means(
    rewards: tuple[float, float], discount: float, most_steps: float = math.inf
) -> tuple[float, float]:
    """The least and the largest mean of a return of one step or more with rewards between two.

    >>> possible_means((1.0, 1.0), 1.0), possible_means((-1.0, 0.5), 0.5)
    ((1.0, inf), (-2.0, 1.0))
    """
    steps, (least, most) = discounted_steps(discount, most_steps), rewards
    return least * (steps if least < 0 else 1.0), most * (steps if most > 0 else 1.0)


def is_possible(
    mean: float,
    rewards: tuple[float, float],
    discount: float,
    most_steps: float = math.inf,
    beyond: float = BEYOND,
) -> bool:
    """Whether a mean is among the possible ones, or ``beyond`` them by as little as an estimate may be."""
    low, high = possible_means(rewards, discount, most_steps)
    span = high - low
    margin = beyond * max(span if math.isfinite(span) else 0.0, *map(abs, rewards))
    return low - margin <= mean <= high + margin


@dataclass(frozen=True)
class TargetCandidate:
    """What was found of one candidate; nan where it failed."""

    name: str
    score: float = math.nan
    misfit: float = math.nan
    misfit_error: float = math.nan
    unsteady: float = math.nan
    mean: float = math.nan  # over the starts, of the folds' fits on average
    possible: bool = False
    reason: str = ""  # why it failed


@dataclass(frozen=True, eq=False)
class TargetScores(Readable):
    """Candidates, the best first and those that failed last."""

    ranking: tuple[TargetCandidate, ...]
    episodes: int
    reward: float  # root mean square

    def times(self, factor: float) -> TargetScores:
        """The same for rewards that are ``factor`` times as large."""
        powers = {"score": 2, "misfit": 2, "misfit_error": 2, "unsteady": 2, "mean": 1}
        ranking = tuple(
            replace(each, **{of: getattr(each, of) * factor**power for of, power in powers.items()})
            for each in self.ranking
        )
        return replace(self, ranking=ranking, reward=self.reward * factor)

    @property
    def rivals(self) -> tuple[TargetCandidate, ...]:
        """The best, and those that are possible and nearly as good."""
        best = self.ranking[0]
        most = RIVAL * max(best.score, 0.0)
        others = (each for each in self.ranking[1:] if each.possible and each.score <= most)
        return best, *others

    @property
    def bias(self) -> float:
        """By how much the mean of the best may be off, root mean square, for what features cannot express."""
        best, *others = self.ranking
        shares = [
            (each.mean - best.mean) ** 2 / max(each.score + best.score, 1e-300)
            for each in others
            if each.possible
        ]
        return math.sqrt(best.score * (sum(shares) / len(shares) if shares else 1.0))

    @property
    def best(self) -> str:
        """The name of the first; an error where all failed."""
        if self.ranking[0].reason:
            raise InvalidInputError(
                "features=auto found none with which the target can be estimated; name some, as in poly:1: "
                + "; ".join(f"{each.name}: {each.reason}" for each in self.ranking)
            )
        return self.ranking[0].name

    def _blocks(self) -> list[str | TextTable]:
        rows = []
        for each in self.ranking:
            cells = [number(value, 4) for value in (each.score, each.misfit, each.unsteady, each.mean)]
            said = "failed" if each.reason else "" if each.possible else "not possible"
            rows.append([brief(each.name), *cells, said])
        head = ["", "score", "misfit", "unsteady", "mean", ""]
        return [
            f"squared errors at the start by those of single steps, {plural(self.episodes, 'episode')}, "
            f"{FOLDS} folds; the smaller the better",
            TextTable(head, rows),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        means, best = [each.mean for each in self.rivals], self.ranking[0]
        return {
            "ranking": [asdict(each) for each in self.ranking],
            "episodes": self.episodes,
            "reward": self.reward,
            "misfit": math.sqrt(max(best.misfit - 2.0 * best.misfit_error, 0.0)),
            "bias": self.bias,
            "rivals": [min(means), max(means)],
        }


def score_for_target(
    estimators: Mapping[str, LSTDQ],
    data: Trajectories,
    seed: int,
    labels: Sequence[int] = (),
    most_steps: float = math.inf,
) -> TargetScores:
    """The candidates by the module's rule; ``labels`` are coordinates whose numbers are names."""
    key = int(keys(seed)[0])
    fold_of = folds_of(data, FOLDS, key)
    neighbours = alike(data, fold_of, labels)
    extent = float(data.rewards.min()), float(data.rewards.max())
    found = []
    with ProgressBar("features", len(estimators)) as bar:
        for name, lstdq in estimators.items():
            try:
                found.append(_scored(name, lstdq, data, key, neighbours, extent, most_steps))
            except (PolicyRiskError, np.linalg.LinAlgError) as error:
                found.append(TargetCandidate(name, reason=f"{type(error).__name__}: {error}"))
            bar.advance()
    order = sorted(found, key=lambda each: (bool(each.reason), not each.possible, each.score))
    return TargetScores(tuple(order), len(data), math.sqrt(float(np.square(data.rewards).mean())))


def alike(data: Trajectories, fold_of: Ints, labels: Sequence[int]) -> Ints:
    """N(t), of shape (transitions, NEIGHBOURS), −1 where there are fewer.

    Coordinates have span 1, but labels: two of them that differ are at least as far apart as all the others.
    """
    states = np.asarray(data.states[data.visited_rows], dtype=np.float64)
    span = np.ptp(states, axis=0)
    span[(span == 0) | np.isin(np.arange(len(span)), labels)] = 1.0
    # States that are the same are in random order, or a few steps of each would be the nearest of all others.
    states = states / span + _TIES * np.random.default_rng(0).random(states.shape)
    episode = np.repeat(np.arange(len(data)), data.lengths)
    found = np.full((len(states), NEIGHBOURS), -1)
    group = np.stack([fold_of[episode], np.asarray(data.actions)])
    for fold, action in np.unique(group, axis=1).T:
        at = np.flatnonzero((group[0] == fold) & (group[1] == action))
        # An episode's own steps are often its nearest ones.
        _, nearest = KDTree(states[at]).query(states[at], k=range(1, min(4 * NEIGHBOURS, at.size) + 1))
        nearest = at[nearest]
        own = episode[nearest] == episode[at, None]
        others = np.where(own, -1, nearest)
        first = np.argsort(own, axis=1, kind="stable")[:, :NEIGHBOURS]
        found[at, : first.shape[1]] = np.take_along_axis(others, first, axis=1)
    return found


def _scored(
    name: str,
    lstdq: LSTDQ,
    data: Trajectories,
    key: int,
    neighbours: Ints,
    extent: tuple[float, float],
    most_steps: float,
) -> TargetCandidate:
    gamma = lstdq.discount
    step_fold = np.repeat(folds_of(data, FOLDS, key), data.lengths)
    held_out, starts = np.empty(data.transitions), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)
        for fold, others, own in each_fold(data, FOLDS, key):
            risk = lstdq.fit(others, error_bars=False)
            held_out[step_fold == fold] = np.concatenate([_step_errors(risk, part) for part in own])
            risk.summary(data.starts())  # an error where it cannot tell
            starts.append(risk.mean(data.starts()))
    known = neighbours >= 0
    neighbour_errors = np.where(known, held_out[neighbours], 0.0).sum(axis=1) / np.maximum(
        known.sum(axis=1), 1
    )
    products = held_out * neighbour_errors
    misfit, mean = float(np.mean(products)), float(np.nanmean(starts))
    # A pair of steps is in two products, about, so that the episodes' sums are not independent.
    sums = np.add.reduceat(products - misfit, data.offsets[:-1])
    misfit_error = math.sqrt(2.0 * float(sums @ sums)) / data.transitions
    unsteady = (FOLDS - 1) * float(np.nanmean(np.var(starts, axis=0)))
    steps = float(np.mean(discounted_steps(gamma, data.lengths)))
    return TargetCandidate(
        name,
        steps**2 * max(misfit, 0.0) + unsteady,
        misfit,
        misfit_error,
        unsteady,
        mean,
        possible=is_possible(mean, extent, gamma, most_steps),
    )


def _step_errors(risk: RiskFunction, data: Trajectories) -> Floats:
    """δ of every step, (transitions,)."""
    said = CriticValues.of(risk, data)
    delta: Floats = data.rewards + risk.provenance.discount * said.J[data.visited_rows + 1] - said.Q
    return delta
