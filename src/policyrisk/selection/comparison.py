"""Policies compared by a risk criterion: a ranking with intervals, and how sure the first place is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Seed, check_named
from policyrisk._core.output import plain
from policyrisk._core.random import generator
from policyrisk._core.text import Readable, TextTable, number, percent, plural
from policyrisk._core.units import magnitude
from policyrisk.criteria import Assessment, Criterion, CVaR, Quantile, Sharpe, tail_of
from policyrisk.errors import InvalidInputError
from policyrisk.returns import DistributionFunction, RecordedReturns
from policyrisk.returns.start_distribution import StartDistribution, StartMixture
from policyrisk.risk import RiskFunction
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.summary import Moments, PolicySummary
from policyrisk.selection.comparable import check_coordinates, check_discounts, checked_policies

_SMALLEST_P = 1e-9  # of a difference of quantiles: from there on it is 0
_LIMITS = "intervals cover the estimators' limits, not the bias of their features"
_OWN_STARTS = "each policy is judged by its returns from its own starts, taken to be alike"
_INDEPENDENT = "the data of different policies are taken as independent"


@dataclass(frozen=True, eq=False)
class RankedPolicy:
    """A policy's place in a comparison."""

    name: str
    assessment: Assessment
    summary: Any  # PolicySummary; by Quantile and CVaR a DistributionSummary


@dataclass(frozen=True)
class Significance:
    """How sure it is that the first policy is better than the second, both being feasible.

    ``difference`` is in the criterion's favour: positive where the first is better. It is Welch's: the
    standard error is that of independent data sets, s = √(s₁² + s₂²), with s⁴ / (s₁⁴/ν₁ + s₂⁴/ν₂) degrees of
    freedom. Of two targets that were fitted to one log it is that of the episodes' own differences.

    Intervals of quantiles and of CVaR, l to u, may reach further to one side, or be a single value of few;
    that of their difference is Zou and Donner's (2008), and p is 1 less the largest level at which it does
    not reach 0:

        v₁ − v₂ − √((v₁ − l₁)² + (u₂ − v₂)²)   to   v₁ − v₂ + √((u₁ − v₁)² + (v₂ − l₂)²)
    """

    best: str
    second: str
    difference: Estimate
    probability: float  # that the first is better: Student's distribution at difference / standard error
    p_value: float  # two-sided, of no difference

    def __str__(self) -> str:
        if math.isnan(self.probability):
            return f"{self.best} leads {self.second} by {number(self.difference)}; without error bars"
        return (
            f"{self.best} leads {self.second} by {self.difference!r}: better with probability "
            f"{percent(self.probability)} (two-sided p = {number(self.p_value, 2)})"
        )


@dataclass(frozen=True, eq=False)
class StateDifferences:
    """At which states the first policy is better than the second, with confidence for all states together.

    ``difference`` is in the criterion's favour: positive where the first is better. Bands and p-values hold
    at all states at once (:mod:`policyrisk.risk.bands`) and are nan without error bars, or where a policy has
    no value. Of a criterion with a constraint it is the value alone.
    """

    best: str
    second: str
    states: Floats  # (n, dim)
    difference: Floats  # (n,)
    band: Floats  # (n, 2)
    p_value: Floats  # (n,): of no difference at this state
    level: float  # of the band

    @property
    def better(self) -> Bools:
        """Where the first is surely better, of shape (n,)."""
        return self.band[:, 0] > 0

    @property
    def worse(self) -> Bools:
        """Where the second is surely better, of shape (n,)."""
        return self.band[:, 1] < 0

    def __str__(self) -> str:
        better, worse = int(self.better.sum()), int(self.worse.sum())
        return (
            f"of {plural(len(self.states), 'state')}, with confidence {self.level:.4g} for all together: "
            f"{self.best} is better at {better}, {self.second} at {worse}"
        )


@dataclass(frozen=True, eq=False)
class Comparison(Readable):
    """Policies in the order of a criterion, the feasible ones first."""

    criterion: Criterion
    ranking: tuple[RankedPolicy, ...]
    significance: Significance | None  # of the best two, None unless both are feasible
    level: float
    notes: tuple[str, ...]
    at: StateDifferences | None = None  # of the best two, where states were given

    @property
    def best(self) -> str:
        """The name of the policy in the first place."""
        return self.ranking[0].name

    def _blocks(self) -> list[str | TextTable]:
        constrained = any(ranked.assessment.constrained for ranked in self.ranking)
        rows = []
        for ranked in self.ranking:
            judged, summary = ranked.assessment, ranked.summary
            feasible = ["yes" if judged.feasible else "no", percent(judged.probability)]
            moments = [number(summary.mean), number(summary.variance)]
            rows.append([ranked.name, *judged.value.cells, *(feasible if constrained else []), *moments])
        feasibility = ["feasible", "P(feasible)"] if constrained else []
        header = ["", "value", "std error", "interval", *feasibility, "mean", "variance"]
        blocks: list[str | TextTable] = [
            f"{self.criterion} ({self.level:.4g} intervals)",
            TextTable(header, rows),
        ]
        if self.significance is not None:
            blocks.append(str(self.significance))
        if self.at is not None:
            blocks.append(str(self.at))
        return [*blocks, *(f"note: {note}" for note in self.notes)]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        pair = self.significance
        ranking = [
            {"name": r.name, **r.assessment.to_dict(), "summary": r.summary.to_dict()} for r in self.ranking
        ]
        return {
            "criterion": str(self.criterion),
            "level": self.level,
            "ranking": ranking,
            "significance": pair and {**asdict(pair), "difference": pair.difference.to_dict()},
            "at": self.at and plain(vars(self.at)),
            "notes": list(self.notes),
        }


def compare(
    policies: Mapping[str, RiskFunction] | Mapping[str, DistributionFunction] | Mapping[str, RecordedReturns],
    starts: npt.ArrayLike | None = None,
    criterion: Criterion | None = None,
    *,
    level: float = 0.95,
    at: npt.ArrayLike | None = None,
    seed: Seed = None,
) -> Comparison:
    """Rank policies over a start distribution by a criterion.

    Feasible policies come first, by their value; the others follow by how far they are from feasible.

    Parameters
    ----------
    policies
        The risk functions of each by name, estimated from separate data; or by LSTDQ from one and the same
        log, compared episode by episode where they were fitted with the same ``bootstrap`` and ``seed``. For
        :class:`policyrisk.criteria.Quantile` and :class:`policyrisk.criteria.CVaR` the distributions that
        :class:`policyrisk.ReturnDistribution` fitted, or without starts :class:`RecordedReturns`.
    starts
        (n, dim), equally likely: all policies are judged from these, by their estimators, features' bias
        included. Without them each is judged by the completed returns of its own data
        (:meth:`RiskFunction.summary`), which asks that all data start alike, as those of one task do.
    criterion
        One of :mod:`policyrisk.criteria`; the Sharpe ratio where None.
    level
        That of the intervals.
    at
        (n, dim): the best two are compared at each of these states as well, so that bands and p-values hold
        for all states together (:class:`StateDifferences`).
    seed
        That of the draws that estimates without bootstrap replicates need for ``at``.

    Returns
    -------
    Comparison
        ``ranking``, ``best`` and the differences; ``print`` shows them as a table.

    Examples
    --------
    >>> import policyrisk as pr
    >>> risks = {}
    >>> for p in (0.6, 0.8):
    ...     chain = pr.domains.walk(n=10, p=p)
    ...     risks[f"p = {p}"] = pr.LSTD(pr.Tabular(10)).fit_exact(chain, start=0)
    >>> comparison = compare(risks, starts=[0], criterion=pr.criteria.VarianceMeanAtLeast(-30))
    >>> comparison.best
    'p = 0.8'
    >>> [ranked.assessment.feasible for ranked in comparison.ranking]
    [True, False]
    """
    criterion = Sharpe() if criterion is None else criterion
    if isinstance(criterion, Quantile | CVaR):
        return _compare_tails(policies, starts, criterion, level, at)
    risks = checked_policies(policies, criterion)
    check_coordinates(risks, starts, at)
    summaries = {name: risk.summary(starts, level=level) for name, risk in risks.items()}
    ranked = [RankedPolicy(name, criterion.assess(summary), summary) for name, summary in summaries.items()]
    ranking = tuple(sorted(ranked, key=_order))
    notes = tuple(_notes(ranking, criterion))
    states = None if at is None else _at_states(risks, ranking, criterion, at, level, seed)
    return Comparison(criterion, ranking, _significance(ranking, criterion, level), level, notes, states)


def _compare_tails(
    policies: Mapping[str, Any],
    starts: npt.ArrayLike | None,
    criterion: Quantile | CVaR,
    level: float,
    at: npt.ArrayLike | None,
) -> Comparison:
    check_named(policies, "policies", "DistributionFunction", "ReturnDistribution(...).fit(data)")
    recorded = starts is None and all(isinstance(each, RecordedReturns) for each in policies.values())
    for policy in policies.values():
        tail_of(policy, criterion)
        if not recorded and not hasattr(policy, "over"):
            tail_of(None, criterion)
    check_discounts({name: dist.discount for name, dist in policies.items()})
    if not recorded:
        check_coordinates(policies, starts)
    if at is not None or (starts is None and not recorded):
        got, way = ("no starts", "pass states") if at is None else ("at=", "leave it out")
        raise InvalidInputError(f"{criterion!r} is compared over starts, got {got}; {way}")
    mixtures: dict[str, StartDistribution]
    mixtures = {name: dist if recorded else dist.over(starts) for name, dist in policies.items()}
    summaries = {name: mixture.summary([criterion.q], level) for name, mixture in mixtures.items()}
    ranked = [RankedPolicy(name, criterion.assess(summary), summary) for name, summary in summaries.items()]
    ranking = tuple(sorted(ranked, key=_order))
    best, pair = ranking[:2], None
    notes = [
        f"{r.name}: {plural(r.summary.unvisited, 'start')} of {r.summary.unvisited + r.summary.starts} not "
        "visited and left out"
        for r in ranking
        if r.summary.unvisited
    ]
    for name, mixture in mixtures.items():
        if not isinstance(mixture, StartMixture):
            continue
        judged = mixture.quantile(criterion.q, level)
        if mixture.coarseness(criterion.q) > (judged.high - judged.low) / 4:
            notes.append(
                f"{name}: its thresholds are too coarse at the {percent(criterion.q)} quantile, or end "
                "before it; fit it with more thresholds, or others"
            )
    if recorded:
        notes.append(f"{_OWN_STARTS}; {_INDEPENDENT}")
    elif not all(r.summary.known for r in ranking):
        notes.append(
            "without error bars there are no intervals and no probabilities; error_bars=True gives them"
        )
    else:
        notes.append(f"{_LIMITS}; {_INDEPENDENT}")
    if len(best) == 2:
        first, second = (r.name for r in best)
        pair = _tail_significance(first, second, mixtures[first], mixtures[second], criterion, level)
        notes += _chosen_note(len(ranking))
    return Comparison(criterion, ranking, pair, level, tuple(notes))


def _tail_significance(
    best: str,
    second: str,
    a: StartDistribution,
    b: StartDistribution,
    criterion: Quantile | CVaR,
    level: float,
) -> Significance:
    def less(level: float) -> Estimate:
        v, w = (criterion.assess(each.summary([criterion.q], level)).value for each in (a, b))
        lead = v.value - w.value
        low, high = lead - math.hypot(v - v.low, w.high - w), lead + math.hypot(v.high - v, w - w.low)
        welch = _welch(lead, v, w, level)
        return Estimate(lead, welch.standard_error, low, high, welch.dof)

    difference = less(level)
    p_value = math.nan
    if difference.value == 0.0:
        p_value = 1.0
    elif not math.isnan(difference.low):
        known = [each.least_p(criterion.q) for each in (a, b) if isinstance(each, RecordedReturns)]
        least, most = math.log(max(_SMALLEST_P, *known, 0.0)), 0.0
        while most - least > 1e-3:
            middle = (least + most) / 2
            least, most = (least, middle) if less(1.0 - math.exp(middle)).low > 0 else (middle, most)
        p_value = math.exp(most)
    return Significance(best, second, difference, 1.0 - p_value / 2, p_value)


def _order(ranked: RankedPolicy) -> tuple[bool, float, float]:
    """Feasible first, then by violation, then by value; what cannot be judged last."""
    judged = ranked.assessment
    value = -judged.value.value if judged.larger_is_better else judged.value.value
    return not judged.feasible, judged.violation, math.inf if math.isnan(value) else value


def _significance(
    ranking: tuple[RankedPolicy, ...], criterion: Criterion, level: float
) -> Significance | None:
    if len(ranking) < 2 or not ranking[1].assessment.feasible:
        return None
    first, second = ranking[:2]
    a, b = first.assessment.value, second.assessment.value
    lead = (a.value - b.value) * (1.0 if first.assessment.larger_is_better else -1.0)
    difference = _welch(lead, a, b, level)
    if _paired(first.summary, second.summary):
        moved = [_moved(criterion, each.summary) for each in (first, second)]
        apart = moved[0] - moved[1]
        size = magnitude(apart)
        error = math.sqrt(float(np.square(apart / size).mean())) * size
        difference = Estimate.skewed(lead, error, 0.0, min(a.dof, b.dof), level)
    against = Estimate(-lead, difference.standard_error, dof=difference.dof)
    p_value = 1.0 if lead == 0.0 else 2.0 * against.probability_positive
    return Significance(first.name, second.name, difference, difference.probability_positive, p_value)


def _paired(first: PolicySummary, second: PolicySummary) -> bool:
    """Whether two targets were fitted to the same episodes with the same multipliers."""
    a, b = first.draws, second.draws
    return a is not None and b is not None and a.episodes == b.episodes


def _moved(criterion: Criterion, summary: PolicySummary) -> Floats:
    """What each replicate adds to the criterion's value, (B,)."""
    assert summary.draws is not None
    _, by_mean, by_variance = _derivatives(criterion, summary.mean_value, summary.variance_value)
    unit = summary.unit
    return np.array([by_mean * unit, by_variance * unit * unit]) @ summary.draws.moved


def _welch(lead: float, a: Estimate, b: Estimate, level: float) -> Estimate:
    """A difference of two independent estimates."""
    size = magnitude(a.standard_error, b.standard_error)  # whose square may be no number
    squares = (a.standard_error / size) ** 2, (b.standard_error / size) ** 2
    uncertain = squares[0] ** 2 / a.dof + squares[1] ** 2 / b.dof
    dof = sum(squares) ** 2 / uncertain if uncertain > 0 else math.inf
    return Estimate.skewed(lead, math.sqrt(sum(squares)) * size, 0.0, dof, level)


def _at_states(
    policies: Mapping[str, RiskFunction],
    ranking: tuple[RankedPolicy, ...],
    criterion: Criterion,
    at: npt.ArrayLike,
    level: float,
    seed: Seed,
) -> StateDifferences:
    if len(ranking) < 2:
        raise InvalidInputError("at needs two policies that differ there, got one; pass another, or no at")
    first, second = (ranked.name for ranked in ranking[:2])
    own = {name: policies[name]._states(at, "at") for name in (first, second)}  # a frame by each one's names
    better = 1.0 if ranking[0].assessment.larger_is_better else -1.0

    def judge(J: Floats, V: Floats) -> tuple[Floats, Floats, Floats]:
        each = np.array([_derivatives(criterion, *at) for at in zip(J, V, strict=True)]).reshape(-1, 3)
        return better * each[:, 0], better * each[:, 1], better * each[:, 2]

    rng = generator(seed)
    if any(policies[name].error_bars is None for name in (first, second)):
        values = [judge(*policies[name].mean_and_variance(own[name]))[0] for name in (first, second)]
        unknown = np.full(len(own[first]), np.nan)
        found = values[0] - values[1], np.column_stack([unknown, unknown]), unknown
    else:
        a, b = (policies[name].judged(own[name], judge, seed=rng) for name in (first, second))
        found = a.less(b, level, paired=_paired(*(ranked.summary for ranked in ranking[:2])))
    return StateDifferences(first, second, np.array(own[first], dtype=np.float64), *found, level)


def _derivatives(criterion: Criterion, J: float, V: float) -> tuple[float, float, float]:
    """A criterion's value f at mean J and variance V, f_J and f_V, but for a sign that the two share.

    Its standard errors are |f_J|, |f_V| and |f_J + f_V| where the covariance of (J, V) is one of these three,
    in units in which both count.
    """
    unit = magnitude(J, math.sqrt(abs(V)))
    covariances = np.diag([1.0, 0.0]), np.diag([0.0, 1.0]), np.ones((2, 2))
    judged = (criterion.assess(Moments(J, V, each, 2.0, 0.5, unit=unit)).value for each in covariances)
    value, *others = judged
    by_J, by_V, both = (each.standard_error for each in (value, *others))
    by_V = by_V if both >= max(by_J, by_V) else -by_V
    return value.value, by_J / unit, by_V / unit / unit


def _notes(ranking: tuple[RankedPolicy, ...], criterion: Criterion) -> list[str]:
    notes = [f"{r.name} is not feasible: {r.assessment.reason}" for r in ranking if not r.assessment.feasible]
    notes += [
        f"{r.name}: {plural(r.summary.unvisited, 'start')} of {r.summary.starts} not visited and left out"
        for r in ranking
        if r.summary.unvisited and r.summary.model is None
    ]
    if isinstance(criterion, Sharpe) and any(r.summary.mean_value < 0 for r in ranking):
        notes.append("where the mean is negative, more variance makes the Sharpe ratio larger")
    if not all(r.summary.known for r in ranking):
        notes.append("without error bars there are no intervals and no probabilities; LSTD.fit gives them")
    else:
        completed = [r.summary.completed for r in ranking]
        limits = _LIMITS
        if all(each is not None for each in completed) and not any(r.summary.covered for r in ranking):
            limits = _OWN_STARTS
            if any(each is not None and each.cut_off for each in completed):
                limits += "; the estimators complete what was cut off"
        together = len(ranking) > 1 and _paired(*(r.summary for r in ranking[:2]))
        between = "the best two are compared episode by episode of one log" if together else _INDEPENDENT
        notes.append(f"{limits}; {between}")
        if ranking[:2][-1].assessment.feasible:
            notes += _chosen_note(len(ranking))
    return notes


def _chosen_note(count: int) -> list[str]:
    """What to say of the best two of many."""
    chosen = (
        f"the best two of {count} are judged as if they had been chosen beforehand; with many policies ask "
        "for a smaller p"
    )
    return [chosen] if count > 2 else []
