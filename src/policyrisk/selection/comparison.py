"""Policies compared by a risk criterion: a ranking with intervals, and how sure the first place is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Seed, check_named
from policyrisk._core.output import plain
from policyrisk._core.random import generator
from policyrisk._core.text import Readable, TextTable, number, percent, plural, printable
from policyrisk._core.units import magnitude
from policyrisk.criteria import Assessment, Criterion, CVaR, Quantile, Sharpe, as_criterion
from policyrisk.errors import InvalidInputError
from policyrisk.returns import RecordedReturns
from policyrisk.returns.chain_tails import ChainStarts
from policyrisk.returns.curves import Reading
from policyrisk.returns.start_distribution import StartDistribution, StartEstimate
from policyrisk.risk import RiskFunction
from policyrisk.risk.completed import KEPT, centre_shift
from policyrisk.risk.estimate import Estimate, difference
from policyrisk.risk.summary import Moments, PolicySummary
from policyrisk.selection.comparable import check_coordinates, risks_of, tails_of, withdrawn
from policyrisk.selection.permutation import (
    Exchanges,
    exchanged_clusters,
    exchanged_moments,
    exchanged_tails,
)

_SMALLEST_P = 1e-9  # of a difference of quantiles: from there on it is 0
_LIMITS = "intervals cover the estimators' limits, not the bias of their features"
_OWN_STARTS = "each policy is judged by its returns from its own starts, taken to be alike"
_TOGETHER = "the best two are compared episode by episode of one log"
_INDEPENDENT = "the data of different policies are taken as independent"


@dataclass(frozen=True, eq=False)
class RankedPolicy:
    """A policy's place in a comparison."""

    name: str
    assessment: Assessment
    summary: Any  # PolicySummary; by Quantile and CVaR a DistributionSummary
    withdrawn: bool = False  # whether the log cannot tell, so that it has no place
    tail: Any = None  # StartDistribution, by Quantile and CVaR: what it is judged by


@dataclass(frozen=True)
class Significance:
    """How sure it is that the first policy is better than the second, both being feasible.

    ``difference`` is in the criterion's favour: positive where the first is better. Where each policy is
    judged by its own returns, p and the interval are those of exchanged episodes
    (:mod:`policyrisk.selection.permutation`). Else they are

    - of mean and variance, Welch's: the standard error is that of independent data sets, s = √(s₁² + s₂²),
      with s⁴ / (s₁⁴/ν₁ + s₂⁴/ν₂) degrees of freedom; of two estimates from one log it is that of the
      episodes' own differences;
    - of quantiles and CVaR, made of both intervals (:func:`policyrisk.risk.estimate.difference`), since these
      may reach further to one side; p is 1 less the largest level at which it does not reach 0.

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
class StateDifferences(Readable):
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

    def _blocks(self) -> list[str | TextTable]:
        better, worse = int(self.better.sum()), int(self.worse.sum())
        return [
            f"of {plural(len(self.states), 'state')}, with confidence {self.level:.4g} for all together: "
            f"{self.best} is better at {better}, {self.second} at {worse}"
        ]


@dataclass(frozen=True, eq=False)
class Comparison(Readable):
    """Policies in the order of a criterion, the feasible ones first.

    Those whose evaluations have withdrawn their intervals (trust "none") have no place: they come last, in
    the order that they were given in.
    """

    criterion: Criterion
    ranking: tuple[RankedPolicy, ...]
    significance: Significance | None  # of the best two, None unless both are feasible and have a place
    level: float
    notes: tuple[str, ...]
    trust: Mapping[str, str] = field(default_factory=dict)  # of evaluations by name, in one line each
    at: StateDifferences | None = None  # of the best two, where states were given

    @property
    def best(self) -> str | None:
        """The name of the policy in the first place; None where none has a place."""
        return None if self.ranking[0].withdrawn else self.ranking[0].name

    def _blocks(self) -> list[str | TextTable]:
        constrained = any(ranked.assessment.constrained for ranked in self.ranking)
        rows = []
        for ranked in self.ranking:
            judged, summary = ranked.assessment, ranked.summary
            feasible = ["yes" if judged.feasible else "no", percent(judged.probability)]
            moments = [number(summary.mean), number(summary.variance)]
            name = f"{ranked.name} (not ranked)" if ranked.withdrawn else ranked.name
            rows.append([name, *judged.value.cells, *(feasible if constrained else []), *moments])
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
        blocks += [f"trust in {printable(name)}: {trust}" for name, trust in self.trust.items()]
        return [*blocks, *(f"note: {note}" for note in self.notes)]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        pair = self.significance
        ranking = [
            {
                "name": r.name,
                "ranked": not r.withdrawn,
                **r.assessment.to_dict(),
                "summary": r.summary.to_dict(),
            }
            for r in self.ranking
        ]
        return {
            "criterion": str(self.criterion),
            "level": self.level,
            "ranking": ranking,
            "significance": pair and {**asdict(pair), "difference": pair.difference.to_dict()},
            "at": self.at and plain(vars(self.at)),
            "trust": dict(self.trust),
            "notes": list(self.notes),
        }


def compare(
    policies: Mapping[str, Any],
    starts: npt.ArrayLike | None = None,
    criterion: Criterion | str | None = None,
    *,
    level: float = 0.95,
    at: npt.ArrayLike | None = None,
    seed: Seed = None,
) -> Comparison:
    """Rank policies over a start distribution by a criterion.

    Feasible policies come first, by their value; the others follow by how far they are from feasible. An
    evaluation whose trust is "none" is not ranked: it stands below, without an interval.

    Parameters
    ----------
    policies
        By name: evaluations, or risk functions. They are taken as estimated from separate data, but for those
        that were fitted to one and the same log with the same ``bootstrap`` and ``seed``, such as targets by
        LSTDQ: these are compared episode by episode. For :class:`policyrisk.criteria.Quantile` and
        :class:`policyrisk.criteria.CVaR` also the distributions that :class:`policyrisk.ReturnDistribution`
        fitted, or without starts :class:`RecordedReturns`.
    starts
        (n, dim), equally likely: all policies are judged from these, by their estimators, features' bias
        included. Without them each is judged by the completed returns of its own data
        (:meth:`RiskFunction.summary`), which asks that all data start alike, as those of one task do.
    criterion
        One of :mod:`policyrisk.criteria`, or its spelling such as ``"mean-std:1"``; the Sharpe ratio if None.
    level
        That of the intervals.
    at
        (n, dim): the best two are compared at each of these states as well, so that bands and p-values hold
        for all states together (:class:`StateDifferences`).
    seed
        That of the draws: of exchanged episodes, the same ones where None, and of those that estimates
        without bootstrap replicates need for ``at``.

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
    >>> comparison = compare(risks, starts=[0], criterion="variance:mean>=-30")
    >>> comparison.best
    'p = 0.8'
    >>> [ranked.assessment.feasible for ranked in comparison.ranking]
    [True, False]
    """
    criterion = as_criterion(criterion)
    check_named(policies, "policies", "RiskFunction or Evaluation", "LSTD(...).fit(data)")
    tails: dict[str, StartDistribution] = {}
    risks: dict[str, RiskFunction] = {}
    summaries: dict[str, Any]
    if isinstance(criterion, Quantile | CVaR):
        if at is not None:
            raise InvalidInputError(f"{criterion!r} is compared over starts, got at=; leave it out")
        tails = tails_of(policies, starts, criterion)
        summaries = {name: tail.summary([criterion.q], level) for name, tail in tails.items()}
    else:
        risks = risks_of(policies)
        summaries = {name: risk.summary(starts, level=level) for name, risk in risks.items()}
    if starts is not None or at is not None:
        check_coordinates({name: getattr(each, "risk", each) for name, each in policies.items()}, starts, at)
    ranking = [
        RankedPolicy(name, criterion.assess(each), each, withdrawn(policies[name]), tails.get(name))
        for name, each in summaries.items()
    ]
    ranking.sort(key=_order)
    placed = [ranked for ranked in ranking if not ranked.withdrawn]
    notes, pair = _notes(ranking, placed, criterion, level), None
    if len(placed) > 1 and placed[1].assessment.feasible:
        significance = _tail_significance if tails else _significance
        pair = significance(placed[0], placed[1], criterion, level, seed)
        if len(placed) > 2 and not math.isnan(pair.p_value):
            notes.append(
                f"the best two of {len(placed)} are judged as if they had been chosen beforehand; with many "
                "policies ask for a smaller p"
            )
    states = None if at is None else _at_states(risks, ranking, criterion, at, level, seed)
    trust = {name: str(each.trust) for name, each in policies.items() if hasattr(each, "trust")}
    return Comparison(criterion, tuple(ranking), pair, level, tuple(notes), trust, states)


def _order(ranked: RankedPolicy) -> tuple[bool, bool, float, float]:
    """Feasible first, then by violation, then by value; what cannot be judged last, and what has no place."""
    judged = ranked.assessment
    if ranked.withdrawn:
        return True, True, 0.0, 0.0
    value = -judged.value.value if judged.larger_is_better else judged.value.value
    return False, not judged.feasible, judged.violation, math.inf if math.isnan(value) else value


def _lead(first: RankedPolicy, second: RankedPolicy) -> float:
    """The difference of their values, positive where the first is better."""
    lead = first.assessment.value.value - second.assessment.value.value
    return lead if first.assessment.larger_is_better else -lead


def _significance(
    first: RankedPolicy, second: RankedPolicy, criterion: Criterion, level: float, seed: Seed
) -> Significance:
    """By mean and variance."""
    a, b, lead = first.assessment.value, second.assessment.value, _lead(first, second)
    welch = _welch(lead, a, b, level)
    if _paired(first, second):
        moved = [_moved(criterion, each.summary) for each in (first, second)]
        apart = moved[0] - moved[1]
        size = magnitude(apart)
        error = math.sqrt(float(np.square(apart / size).mean())) * size
        welch = Estimate.skewed(lead, error, 0.0, min(a.dof, b.dof), level)
    else:
        clusters = [_own_clusters(each.summary) for each in (first, second)]
        exchanged = exchanged_moments if all(each is None for each in clusters) else exchanged_clusters
        samples = clusters
        if exchanged is exchanged_moments:
            samples = [_own_returns(each.summary) for each in (first, second)]
        kept = [each for each in samples if each is not None]
        if len(kept) == 2 and hasattr(criterion, "slopes") and welch.standard_error > 0:
            found = exchanged(kept[0], kept[1], criterion, _exchange_generator(seed))
            return _exchanged(first.name, second.name, welch, found, level)
    against = Estimate(-lead, welch.standard_error, dof=welch.dof)
    p_value = 1.0 if lead == 0.0 else 2.0 * against.probability_positive
    return Significance(first.name, second.name, welch, welch.probability_positive, p_value)


def _exchange_generator(seed: Seed) -> Any:
    """The same exchanges every time, unless a seed is given."""
    return generator(0 if seed is None else seed)


def _exchanged(
    best: str, second: str, lead: Estimate, exchanges: Exchanges, level: float, least: float = 0.0
) -> Significance:
    """A lead with its standard error beside those of exchanged episodes; p is ``least`` at the least."""
    error = lead.standard_error
    half, p_value = exchanges.reach(level) * error, max(exchanges.p_value(abs(lead.value) / error), least)
    between = lead.reaching(lead - half, lead + half)
    return Significance(best, second, between, 1.0 - p_value / 2, p_value)


def _own_returns(summary: PolicySummary) -> Floats | None:
    """The completed returns (K, 2) that a summary is of; None where it is of an estimator, or of too many."""
    done = summary.completed
    found = None if done is None or summary.covered is not None else done.observed
    unit = summary.unit
    return None if found is None else found * [unit, unit * unit]


def _own_clusters(summary: PolicySummary) -> Floats | None:
    """The sums over clusters (G, 3) of 1, g and g² + c of completed returns; None where there are none."""
    done = summary.completed
    if done is None or summary.covered is not None or done.cluster_sums is None:
        return None
    found = done.cluster_sums @ centre_shift(done.mean, 0.0).T
    sums: Floats = found[:, :3] * [1.0, summary.unit, summary.unit**2]
    return sums


def _paired(first: RankedPolicy, second: RankedPolicy) -> bool:
    """Whether two estimates are of the same episodes, with the same multipliers."""
    if first.tail is not None:
        return isinstance(first.tail, ChainStarts) and first.tail.pairs_with(second.tail)
    a, b = first.summary.draws, second.summary.draws
    return a is not None and b is not None and a.episodes == b.episodes


def _moved(criterion: Any, summary: PolicySummary) -> Floats:
    """What each replicate adds to the criterion's value, (B,)."""
    assert summary.draws is not None
    _, by_mean, by_variance = _slopes(criterion, summary.mean_value, summary.variance_value)
    unit = summary.unit
    return np.array([by_mean * unit, by_variance * unit * unit]) @ summary.draws.moved


def _judged(criterion: Any, mean: float, variance: float) -> Any:
    """A criterion's value and derivatives, nan where the value does not exist."""
    value = criterion.assess(Moments(mean, variance, np.full((2, 2), np.nan), 2.0, 0.5)).value.value
    return (math.nan,) * 3 if math.isnan(value) else (value, *_slopes(criterion, mean, variance)[1:])


def _slopes(criterion: Any, mean: float, variance: float) -> Any:
    """A criterion's value and derivatives at a mean and a variance."""
    if not hasattr(criterion, "slopes"):
        raise InvalidInputError(
            f"criterion must have slopes(mean, variance) to be compared at states or within episodes, got "
            f"{criterion!r}; make it a criteria.MomentCriterion"
        )
    return criterion.slopes(mean, variance)


def _welch(lead: float, a: Estimate, b: Estimate, level: float) -> Estimate:
    """A difference of two independent estimates."""
    size = magnitude(a.standard_error, b.standard_error)  # whose square may be no number
    squares = (a.standard_error / size) ** 2, (b.standard_error / size) ** 2
    uncertain = squares[0] ** 2 / a.dof + squares[1] ** 2 / b.dof
    dof = sum(squares) ** 2 / uncertain if uncertain > 0 else math.inf
    return Estimate.skewed(lead, math.sqrt(sum(squares)) * size, 0.0, dof, level)


def _tail_significance(
    first: RankedPolicy, second: RankedPolicy, criterion: Any, level: float, seed: Seed
) -> Significance:
    """By the tail of the return."""
    one, other = pair = first.tail, second.tail
    recorded = [each for each in pair if isinstance(each, RecordedReturns)]
    of: Reading = "cvar" if isinstance(criterion, CVaR) else "quantile"

    def lead(level: float) -> Estimate:
        if _paired(first, second):
            paired: Estimate = one.lead(other, of, criterion.q, level)
            return paired
        v, w = (getattr(each, of)(criterion.q, level) for each in pair)
        return _welch(v - w, v, w, level).reaching(*difference(v, w))

    found = lead(level)
    errors = [r.assessment.value.standard_error for r in (first, second)]
    known = [each.least_p(criterion.q) for each in recorded]
    # Of a quantile no return may be far enough out to tell.
    sure = isinstance(criterion, CVaR) or max(known, default=0.0) < 1.0 - level
    few = all(each.starts <= KEPT for each in recorded)
    if len(recorded) == 2 and few and min(errors) > 0 and sure:
        exchanges = exchanged_tails(one, other, criterion, level, _exchange_generator(seed))
        least = max(known) if isinstance(criterion, Quantile) else 0.0
        return _exchanged(first.name, second.name, found, exchanges, level, least)
    p_value = math.nan
    if found.value == 0.0:
        p_value = 1.0
    elif not math.isnan(found.low):
        least, most = math.log(max(_SMALLEST_P, *known, 0.0)), 0.0
        while most - least > 1e-3:
            middle = (least + most) / 2
            least, most = (least, middle) if lead(1.0 - math.exp(middle)).low > 0 else (middle, most)
        p_value = math.exp(most)
    return Significance(first.name, second.name, found, 1.0 - p_value / 2, p_value)


def _at_states(
    policies: Mapping[str, RiskFunction],
    ranking: Sequence[RankedPolicy],
    criterion: Any,
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
        each = np.array([_judged(criterion, *at) for at in zip(J, V, strict=True)]).reshape(-1, 3) * better
        return each[:, 0], each[:, 1], each[:, 2]

    rng = generator(seed)
    if any(policies[name].error_bars is None for name in (first, second)):
        values = [judge(*policies[name].mean_and_variance(own[name]))[0] for name in (first, second)]
        unknown = np.full(len(own[first]), np.nan)
        found = values[0] - values[1], np.column_stack([unknown, unknown]), unknown
    else:
        a, b = (policies[name].judged(own[name], judge, seed=rng) for name in (first, second))
        found = a.less(b, level, paired=_paired(*ranking[:2]))
    return StateDifferences(first, second, np.array(own[first], dtype=np.float64), *found, level)


def _notes(
    ranking: Sequence[RankedPolicy], placed: Sequence[RankedPolicy], criterion: Any, level: float
) -> list[str]:
    notes = [f"{r.name} is not feasible: {r.assessment.reason}" for r in placed if not r.assessment.feasible]
    for r in ranking:
        left_out, starts = r.summary.unvisited, r.summary.starts
        if left_out and getattr(r.summary, "model", None) is None:
            starts += left_out if r.tail else 0
            notes.append(f"{r.name}: {plural(left_out, 'start')} of {starts} not visited and left out")
        if isinstance(r.tail, StartEstimate):
            judged = r.tail.quantile(criterion.q, level)
            if r.tail.coarseness(criterion.q) > (judged.high - judged.low) / 4:
                notes.append(
                    f"{r.name}: its thresholds are too coarse at the {percent(criterion.q)} quantile, or end "
                    "before it; fit it with more thresholds, or others"
                )
    if isinstance(criterion, Sharpe) and any(r.summary.mean_value < 0 for r in ranking):
        notes.append("where the mean is negative, more variance makes the Sharpe ratio larger")
    own = all(isinstance(r.tail, RecordedReturns) for r in ranking)
    if not own and not all(r.summary.known for r in placed):
        why = (
            "without error bars there are no intervals and no probabilities; fit with error bars to get them"
        )
        return [*notes, why]
    completed = [getattr(r.summary, "completed", None) for r in ranking]
    own |= None not in completed and not any(r.summary.covered for r in ranking)
    limits = _OWN_STARTS if own else _LIMITS
    if own and any(each is not None and each.cut_off for each in completed):
        limits += "; the estimators complete what was cut off"
    together = len(placed) > 1 and _paired(placed[0], placed[1])
    return [*notes, f"{limits}; {_TOGETHER if together else _INDEPENDENT}"]
