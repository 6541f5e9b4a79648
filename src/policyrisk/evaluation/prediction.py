"""Between what will one return to come end? Conformal intervals of the next episode.

With J and σ those of an evaluation, U = (B − J(x))/σ(x) at a step of an episode that the fit had not seen,
and u⁻, u⁺ the quantiles of U at (1 ∓ level)/2 (Romano, Patterson and Candès 2019, in units of σ),

    score       z = max(u⁻ − U, U − u⁺)
    interval    J(x) + σ(x) (u⁻ − t)  to  J(x) + σ(x) (u⁺ + t)

The step must be chosen without looking ahead. One drawn uniformly from its episode more often belongs to a
short episode, and its B is not what follows from x: on a queue such scores hold 77 % of the returns from
visited states in place of 90 %. So a coin of chance p is thrown at every visit of an episode to a region of
the states, and the first that comes up chooses the step: visit j = 0, 1, … has the weight p(1 − p)^j. All
weights count, in place of one draw of the coins. With W their sum over n episodes, t is the smallest score
with

    w' + Σ weights of larger scores  ≤  (1 − level) (W + w)

w' and w being the most and the least that a new episode adds: 1 and p. With p = 1, the first visit, t is the
⌈(n + 1) level⌉-th smallest score, and the interval holds a new episode's return with a probability of
``level`` to level + 1/(n + 1), whatever the model. At starts p = 1; elsewhere 1/p is the mean number of
visits, so that steps are spread as the visits are. Regions are cut at medians where each part has FEWEST
episodes.

Which guarantee holds:

    exact          of episodes that nothing was fitted to (``Evaluation.calibrated``): as above
    out-of-fold    of the recorded ones, each by the fit without its fold, and w' = w = W/n: 2·level − 1
                   in theory (CV+: Barber and others 2021), close to ``level`` in practice
    approximate    the same where episodes were cut off and completed, come in clusters, have the weights of a
                   target, or were fitted themselves
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import expit, ndtri

from policyrisk._core.arrays import Floats, Ints, freeze
from policyrisk._core.records import record
from policyrisk._core.text import percent, plural
from policyrisk.data import Trajectories
from policyrisk.data.source import in_units
from policyrisk.errors import FewEpisodesWarning, InvalidInputError, PolicyRiskError
from policyrisk.lstd.doubly_robust import step_ratios
from policyrisk.risk import RiskFunction
from policyrisk.selection.distribution_stack import Completed
from policyrisk.selection.regions import Regions, points_of

if TYPE_CHECKING:
    from policyrisk.evaluation.log import Log
    from policyrisk.evaluation.plan import Plan
    from policyrisk.evaluation.record import Evaluation

FEWEST = 50  # episodes of a region
_DEPTH = 2  # cuts: up to 4 regions
_KEPT = expit(np.linspace(-7.0, 7.0, 200))  # shares of the weights between which scores are put together
_COMPLETED = 0.01  # of a return: what may be completed before that is said
_SHARES = (np.arange(99) + 0.5) / 99  # of the quantiles u
_ARRAYS = "residuals", "weights", "quantiles"
Guarantee: TypeAlias = Literal["exact", "out-of-fold", "approximate"]


@record(residuals="k: finite", weights="k: finite", quantiles="99: finite")
@dataclass(frozen=True, eq=False)
class Scores:
    """U of the steps in a region, with their weights.

    >>> U = np.arange(1.0, 20.0)
    >>> scores = Scores.of("everywhere", U, np.ones(19), np.arange(19), p=1.0, exact=True)
    >>> scores.ends(0.9).round(3).tolist(), Scores.together([scores]).ends(0.96).tolist()
    ([1.0, 19.0], [-inf, inf])
    """

    name: str
    episodes: int  # or clusters of them
    chance: float  # p
    most: float  # w'
    least: float  # w
    residuals: Floats  # (k,): rising
    weights: Floats  # (k,)
    quantiles: Floats  # (99,): those that u⁻ and u⁺ are read off

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def of(
        cls, name: str, U: Floats, weights: Floats, block: Ints, p: float, exact: bool, quantiles: Any = None
    ) -> Scores:
        """From residuals (n,) of independent blocks of steps (n,)."""
        order = np.argsort(U, kind="stable")
        U, w = U[order], weights[order]
        total = np.bincount(np.unique(block, return_inverse=True)[1].reshape(-1), weights)
        own, share = total.sum() / total.size, (np.cumsum(w) - 0.5 * w) / (w.sum() or 1.0)
        if quantiles is None:
            quantiles = np.interp(_SHARES, share, U)
        if U.size > _KEPT.size:  # of those put together the one that is farther out stands for all
            first = np.flatnonzero(np.diff(np.searchsorted(_KEPT, share), prepend=-1))
            last = np.append(first[1:], U.size) - 1
            U = np.where(share[first] < 0.5, U[first], U[last])
            w = np.add.reduceat(w, first)
        most, least = (1.0, p) if exact else (own, own)
        return cls(name, total.size, p, most, least, U, w, quantiles)

    @staticmethod
    def together(parts: Sequence[Scores]) -> Scores:
        """Those of all regions."""
        U, w, quantiles = (np.concatenate([getattr(each, of) for each in parts]) for of in _ARRAYS)
        order = np.argsort(U, kind="stable")
        chance, most, least = (sum(getattr(p, of) for p in parts) for of in ("chance", "most", "least"))
        episodes, u = max(each.episodes for each in parts), np.quantile(quantiles, _SHARES)
        return Scores("everywhere", episodes, chance, most, least, U[order], w[order], u)

    def ends(self, level: float) -> Floats:
        """u⁻ − t and u⁺ + t, (2,): infinite where there are too few episodes for the level."""
        low, high = np.interp([(1.0 - level) / 2, (1.0 + level) / 2], _SHARES, self.quantiles)
        z = np.maximum(low - self.residuals, self.residuals - high)
        order = np.argsort(z, kind="stable")
        W, below = float(self.weights.sum()), np.cumsum(self.weights[order])
        left = (1.0 - level) * (W + self.least) - self.most
        t = z[order][np.argmax(W - below <= left + 1e-9)] if W > 0 and left > -1e-9 else np.inf
        return np.array([low - t, high + t])


@record(parts="p")
@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What the intervals of the next episode rest on: ``Evaluation.prediction``."""

    guarantee: Guarantee
    reasons: tuple[str, ...]  # why it is approximate
    least_variance: float  # that σ is taken from
    regions: Regions
    parts: tuple[Scores, ...]  # of the regions
    starts: Scores

    def __repr__(self) -> str:
        data = f"{plural(self.episodes, 'calibration episode')}, {plural(len(self.parts), 'region')}"
        return f"Prediction({self.guarantee}, {data})"

    @property
    def episodes(self) -> int:
        """The calibration episodes, or their clusters."""
        return self.starts.episodes

    def ends(self, x: npt.NDArray[Any], level: float, start: bool) -> Floats:
        """u⁻ − t and u⁺ + t at states, (n, 2), of a region with too few episodes those of all regions."""
        parts = (self.starts,) if start else self.parts
        found = np.array([each.ends(level) for each in parts])
        if not start:
            found[np.isinf(found[:, 0])] = Scores.together(parts).ends(level)
        return found[0 if start else self.regions.index(points_of(x))] + np.zeros((len(x), 2))

    def interval(self, risk: RiskFunction, x: npt.NDArray[Any], level: float, start: bool) -> Floats:
        """The ends at states, (n, 2), of returns by J and σ of the estimate."""
        J, V = risk.mean_and_variance(x)
        ends, bars = self.ends(x, level, start), risk.error_bars
        if np.isinf(ends).any():
            warnings.warn(
                f"{plural(self.episodes, 'calibration episode')} are too few for a level of {level:g}: some "
                "ends are infinite; gather more, or ask for a lower level",
                FewEpisodesWarning,
                stacklevel=3,
            )
        known = np.isfinite(J)[:, None] & (bars is None or not bars.withdrawn)
        sigma = np.sqrt(np.maximum(V, self.least_variance))[:, None]
        return np.where(known, J[:, None] + sigma * ends, np.nan)

    def said(self, level: float) -> str:
        """The guarantee in a sentence."""
        episodes = plural(self.episodes, "calibration episode")
        if self.guarantee == "exact":
            return f"at least {percent(level)} of new returns, by {episodes} that nothing was fitted to"
        why = f"; approximate, as {' and '.join(self.reasons)}" if self.reasons else ""
        least = "" if why else f", at least {percent(max(2 * level - 1, 0.0))} in theory"
        return f"about {percent(level)} of new returns{least}, by {episodes}{why}"

    def to_dict(self) -> dict[str, Any]:
        """The guarantee and the numbers of episodes in plain values."""
        told = {"guarantee": self.guarantee, "reasons": list(self.reasons), "episodes": self.episodes}
        return {**told, "regions": [{"name": each.name, "episodes": each.episodes} for each in self.parts]}

    @classmethod
    def of(
        cls,
        evaluation: Evaluation,
        sample: Trajectories,
        data: Completed,
        *,
        former: Prediction | None = None,
        fresh: bool = False,
        reasons: tuple[str, ...] = (),
    ) -> Prediction:
        """From residuals of episodes; of fresh ones with the regions and quantiles of a former one."""
        steps, weights = data.steps, np.ones(len(data.residuals))
        if evaluation.target is not None:
            found = np.split(step_ratios(evaluation.target, sample), sample.offsets[1:-1])
            weights = np.concatenate([np.cumprod(each[::-1])[::-1] for each in found])  # of what follows
            reasons += ("returns have weights that make them the target's",)
        if (steps.weight > _COMPLETED).any():
            reasons += ("episodes were cut off and completed",)
        if sample.clusters is not None:
            reasons += ("episodes come in clusters",)
        guarantee: Guarantee = "approximate" if reasons else "exact" if fresh else "out-of-fold"
        points = points_of(steps.states)
        everywhere = Regions.of(points, steps.episode, [], 0)
        if former is None and not fresh:
            order = [k for k in np.argsort(-evaluation.influence).tolist() if evaluation.influence[k] > 0]
            regions = Regions.of(points, steps.episode, order, _DEPTH, FEWEST)
        else:
            regions = everywhere if former is None else former.regions
        region = regions.index(points)
        weighed = weights > 0
        if min(np.unique(steps.block[weighed & (region == j)]).size for j in range(len(regions))) < FEWEST:
            regions, region = everywhere, np.zeros(len(points), np.int64)

        def scores(name: str, inside: Ints, old: Scores | None, p: float | None = None) -> Scores:
            visit, known = _visits(steps.episode[inside]), None
            if fresh:  # nothing is chosen by these episodes
                known = ndtri(_SHARES) if old is None else old.quantiles
                p = p or (old.chance if old else evaluation.survey.episodes / evaluation.survey.transitions)
            p = p or float(np.mean(visit == 0))
            w = p * (1.0 - p) ** visit * weights[inside]
            exact = guarantee == "exact"
            return Scores.of(name, data.residuals[inside], w, steps.block[inside], p, exact, known)

        names = regions.names(evaluation.names, evaluation.label_names)
        same = former is not None and len(former.parts) == len(regions)
        old = former.parts if former is not None and same else [None] * len(regions)
        parts = [scores(name, np.flatnonzero(region == j), old[j]) for j, name in enumerate(names)]
        first = np.flatnonzero(_visits(steps.episode) == 0)
        start = scores("starts", first, None if former is None else former.starts, 1.0)
        return cls(guarantee, reasons, data.least_variance, regions, tuple(parts), start)


def predicted(evaluation: Evaluation, plan: Plan, log: Log, seed: int) -> Prediction | None:
    """By the recorded episodes; None where a target's log has no propensities, or nothing can be said."""
    if evaluation.target is not None and log.sample.propensities is None:
        return None
    sample, square = log.sample, log.unit * log.unit
    try:
        data = plan.held_out(sample, seed)
        if data is not None:
            data = replace(data, least_variance=data.least_variance * square)
            return Prediction.of(evaluation, sample, data)
        sample = in_units(sample, 1.0 / log.unit)
        return Prediction.of(evaluation, sample, by_fit(evaluation, sample), reasons=("they were fitted",))
    except (PolicyRiskError, np.linalg.LinAlgError):
        return None


def by_fit(evaluation: Evaluation, data: Trajectories) -> Completed:
    """Residuals of episodes by the evaluation's J and σ."""
    risk = evaluation.risk
    states, cuts = data.states[data.visited_rows], data.states[data.final_rows[~data.terminated]]
    J, V = risk.mean_and_variance(states)
    if not np.isfinite(J).any():
        raise InvalidInputError("held_out must have states that the fit has visited, got none; pass others")
    ends = np.array(risk.mean_and_variance(cuts)) if len(cuts) else np.empty((2, 0))
    least = None if evaluation.prediction is None else evaluation.prediction.least_variance
    return Completed.of(data, J, V, ends, risk.provenance.discount, 0, least)


def _visits(episode: Ints) -> Ints:
    """The number of each step among those of its episode, from 0.

    >>> _visits(np.array([0, 0, 0, 2, 2])).tolist()
    [0, 1, 2, 0, 1]
    """
    first = np.flatnonzero(np.diff(episode, prepend=-1))
    return np.arange(len(episode)) - np.repeat(first, np.diff(first, append=len(episode)))
