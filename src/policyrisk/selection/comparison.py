"""Policies compared by a risk criterion: a ranking with intervals, and how sure the first place is.

What may be compared are policies by name, of one discount, that know the same state by the same names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Seed, check_named, is_frame, name_some
from policyrisk._core.frames import Coordinates
from policyrisk._core.output import plain
from policyrisk._core.random import generator
from policyrisk._core.text import Readable, TextTable, number, percent, plural, printable
from policyrisk.criteria import Assessment, Criterion, CVaR, Quantile, Sharpe, as_criterion, no_distribution
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.returns import RecordedReturns
from policyrisk.returns.chain_tails import ChainTails
from policyrisk.returns.start_distribution import StartDistribution, StartEstimate
from policyrisk.risk import RiskFunction
from policyrisk.risk.summary import Moments
from policyrisk.selection.significance import Significance, by_moments, by_tails, paired, slopes_of

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
        significance = by_tails if tails else by_moments
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


def _judged(criterion: Any, mean: float, variance: float) -> Any:
    """A criterion's value and derivatives, nan where the value does not exist."""
    value = criterion.assess(Moments(mean, variance, np.full((2, 2), np.nan), 2.0, 0.5)).value.value
    return (math.nan,) * 3 if math.isnan(value) else (value, *slopes_of(criterion, mean, variance)[1:])


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
        found = a.less(b, level, paired=paired(*ranking[:2]))
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
    together = len(placed) > 1 and paired(placed[0], placed[1])
    return [*notes, f"{limits}; {_TOGETHER if together else _INDEPENDENT}"]


def risks_of(policies: Mapping[str, Any]) -> dict[str, RiskFunction]:
    """The risk functions of policies by name, which may be evaluations, of one discount."""
    risks = {name: _risk(each) for name, each in policies.items()}
    for name, risk in risks.items():
        if risk is None:
            raise InvalidInputError(
                f"policies[{name!r}] must be a RiskFunction or an Evaluation, got "
                f"{type(policies[name]).__name__}; pass what an estimator's fit or evaluate gave"
            )
    found = {name: risk for name, risk in risks.items() if risk is not None}
    check_discounts({name: risk.provenance.discount for name, risk in found.items()})
    return found


def tails_of(
    policies: Mapping[str, Any], starts: npt.ArrayLike | None, criterion: Quantile | CVaR
) -> dict[str, StartDistribution]:
    """The returns' distributions over starts; without starts over each one's own, by its returns if known."""
    found = {name: _tail(each, starts, criterion) for name, each in policies.items()}
    check_discounts({name: discount for name, (_, discount) in found.items()})
    return {name: distribution for name, (distribution, _) in found.items()}


def _tail(policy: Any, starts: npt.ArrayLike | None, criterion: Criterion) -> tuple[StartDistribution, float]:
    """The distribution of one, and its discount."""
    recorded = policy if isinstance(policy, RecordedReturns) else _recorded(policy)
    if starts is None and recorded is not None:
        return recorded, recorded.discount
    function = getattr(policy, "distribution", policy)
    if not hasattr(function, "over"):
        raise no_distribution(criterion, policy)
    if starts is None and not hasattr(policy, "survey"):
        raise InvalidInputError(f"{criterion!r} is compared over starts, got no starts; pass states")
    if starts is None and isinstance(function, ChainTails):
        return function.over(), function.discount
    return function.over(policy.survey.starts if starts is None else starts), function.discount


def _recorded(policy: Any) -> RecordedReturns | None:
    """The returns behind an estimate; None where they are not known, or where an episode was cut off."""
    risk = _risk(policy)
    done = None if risk is None else risk.completed
    if risk is None or done is None or done.cut_off or done.unknown or done.count < 2:
        return None
    discount = risk.provenance.discount
    clustered = done.clusters is not None  # the observed returns do not say which
    if done.observed is not None and not clustered:
        return RecordedReturns(done.observed[:, 0] * risk.unit, discount)
    if hasattr(policy, "survey") and policy.target is None:  # a uniform sample
        return RecordedReturns(policy.survey.returns[0], discount, policy.survey.clusters)
    return None


def _risk(policy: Any) -> RiskFunction | None:
    """The estimate that a policy is, or has; None where it has none."""
    found = getattr(policy, "risk", policy)
    return found if isinstance(found, RiskFunction) else None


def withdrawn(policy: Any) -> bool:
    """Whether an evaluation has withdrawn its intervals, since the log cannot tell."""
    risk = _risk(policy)
    return risk is not None and risk.error_bars is not None and risk.error_bars.withdrawn


def same_names(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether coordinates are called the same; ``state_0`` and so on are no names.

    >>> same_names(["x", "state_1"], ["x", "y"]), same_names(["x", "y"], ["y", "x"])
    (True, False)
    """
    pairs = enumerate(zip(first, second, strict=False))
    alike = all(a == b or {a, b} & {"state", f"state_{d}"} for d, (a, b) in pairs)
    return alike and len(first) == len(second)


def check_coordinates(policies: Mapping[str, Any], *states: Any) -> None:
    """Raise where an array of states would be one thing to one policy and another to the next."""
    if all(each is None or is_frame(each) for each in states):
        return
    known = {name: each.coordinates for name, each in policies.items() if each.coordinates is not None}
    for name, other in known.items():
        first = next(iter(known))
        mine = known[first]
        if not same_names(mine.names, other.names) or mine.labels != other.labels:
            raise MismatchError(
                "policies must know the state's coordinates by the same names to be compared from the same "
                f"states, got {_told(mine)} in {first} and {_told(other)} in {name}; pass the states as a "
                "data frame, or none, or evaluate data that have the same names"
            )


def _told(coordinates: Coordinates) -> str:
    """Coordinates in words, with what labels stand for."""
    labels = coordinates.labels
    return ", ".join(
        f"{name} ({name_some(labels[name], 5)})" if name in labels else name for name in coordinates.names
    )


def check_discounts(discounts: Mapping[str, float]) -> None:
    """Raise where returns are not of one kind."""
    if len(set(discounts.values())) > 1:
        raise MismatchError(
            f"policies must agree on the discount to be compared, got {discounts}; estimate them with one"
        )
