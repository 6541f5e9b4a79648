"""Quantiles, the mean of the worst returns and the chance of a loss in an evaluation.

At states they are :class:`policyrisk.ReturnDistribution`'s, by the features that were spelled, or those of a
mixture (:mod:`policyrisk.selection.distribution_stack`): the *model*. Over the starts they are
those of the recorded returns, with the model's beside them. Where episodes were cut off a mixture completes
their returns, and what a sample of the episodes says without any model stands beside
(:mod:`policyrisk.returns.cut_off`).

Of a target no return was recorded. Its model is the log as a chain (:mod:`policyrisk.returns.chain_tails`),
on the table or the tiling of its features; where these are no partition, on the one that held-out steps ask
for. Where propensities are known, the doubly robust distribution over the starts stands beside it
(:mod:`policyrisk.returns.robust_tails`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import percent
from policyrisk.errors import FewEpisodesWarning, PolicyRiskWarning
from policyrisk.evaluation.log import Log
from policyrisk.evaluation.mixture import MixturePlan
from policyrisk.evaluation.overlap import Overlap
from policyrisk.evaluation.plan import Fitting, Plan
from policyrisk.evaluation.request import EvaluationRequest
from policyrisk.evaluation.target import TargetPlan
from policyrisk.passes.reduce import Reduce
from policyrisk.passes.survey import Survey
from policyrisk.returns import DistributionMixture, RecordedReturns, ReturnDistribution
from policyrisk.returns.chain_tails import ChainTails
from policyrisk.returns.cut_off import CutOffReturns
from policyrisk.returns.distribution_function import DistributionAtStates
from policyrisk.returns.robust_tails import robust_tails
from policyrisk.returns.start_distribution import StartDistribution
from policyrisk.risk import FEW_EPISODES, RiskFunction
from policyrisk.risk.estimate import Estimate, student_quantile
from policyrisk.selection.distribution_stack import stack_distribution
from policyrisk.selection.stacking import brief

# What a summary has, how a distribution calls it, and its argument.
_ASKED: tuple[tuple[str, Literal["quantile", "cvar", "probability"], str], ...] = (
    ("quantiles", "quantile", "q"),
    ("cvar", "cvar", "q"),
    ("below", "probability", "below"),
)
NOTHING: dict[str, Any] = {"quantiles": {}, "cvar": {}, "below": {}}
CHAIN = "the log as a chain"  # what the features of a target's tails begin with


def fit_distribution(
    request: EvaluationRequest, plan: Plan, risk: RiskFunction, reduce: Reduce, log: Log
) -> tuple[DistributionAtStates, dict[str, Any]]:
    """The distribution beside a plan's estimate, and what notes say of it, in plain values."""
    survey, notes = log.survey, {}
    below = () if request.loss_below is None else (request.loss_below,)
    asked = tuple(request.quantiles or ()), request.level
    if isinstance(plan, TargetPlan):
        phi, spelled, bias = plan.partition(log)
        tails = ChainTails.fit_by(reduce, phi, plan.policy, request.discount, log.unit, bias)
        notes = {"features": f"{CHAIN}, {spelled}", **tails.over().summary(*asked, below=below).to_dict()}
        worth = Overlap.over(log.data, plan.policy, request.discount).to_dict()["effective_episodes"]
        robust = robust_tails(tails, log.data, plan.policy) if (worth or 0.0) >= FEW_EPISODES else None
        if robust is not None:
            told = robust.summary(*asked, below=below).to_dict()
            notes["doubly_robust"] = {name: told[name] for name in ("quantiles", "cvar", "below")}
        return replace(tails, coordinates=log.coordinates), notes
    if isinstance(plan, MixturePlan) and risk.bars.key is not None:
        how: dict[str, Any] = {"key": plan.key, "unit": plan.unit, "names": log.names}
        mixture, regions = stack_distribution(plan.stack, plan.sample, plan.maps, risk, **how)
        dist: DistributionAtStates = replace(mixture, coordinates=log.coordinates)
        members = ", ".join(f"{brief(each.name)} ({percent(each.share)})" for each in mixture.members)
        notes = {"features": members, "regions": [asdict(each) for each in regions]}
    else:
        phi, _ = Fitting.of(request, log, plan.variance).maps(plan.spelling)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyRiskWarning)  # what is given up is in the advice
            fitted = ReturnDistribution(phi, discount=request.discount).fit_by(reduce)
        dist = replace(fitted, coordinates=log.coordinates)
        notes = {"features": plan.spelling.text(log.names)}
    model = dist.summary(survey.starts, *asked, below=below).to_dict()
    recorded: StartDistribution | None = recorded_returns(survey, request.discount)
    if survey.cut_off and len(log.sample) > 1:
        cut_off = CutOffReturns(log.sample, request.discount, log.unit)
        notes["without_model"] = cut_off.summary(*asked, below=below)
        recorded = dist.completing(log.sample) if isinstance(dist, DistributionMixture) else None
    if recorded is None:
        return dist, {**notes, **model}
    return dist, {**notes, **recorded.summary(*asked, below=below).to_dict(), "model": model}


def recorded_returns(survey: Survey, discount: float) -> RecordedReturns | None:
    """The recorded returns, all or the survey's uniform sample; None where one of all was cut off."""
    returns = survey.returns[0]
    known = not survey.cut_off and returns.size >= 2
    return RecordedReturns(returns, discount, survey.clusters) if known else None


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, Estimate]]:
    """What a summary in plain values says, name by name."""
    for q, value in told["quantiles"].items():
        yield f"{percent(float(q))} quantile", Estimate(*value.values())
    for q, value in told["cvar"].items():
        if float(q) < 0.5:
            yield f"mean of the worst {percent(float(q))}", Estimate(*value.values())
    for line, value in told["below"].items():
        yield f"chance of a return below {line}", Estimate(*value.values())


def at_states(
    distribution: DistributionAtStates, told: Mapping[str, Any], x: Floats, level: float, episodes: Floats
) -> dict[str, dict[str, Floats]]:
    """At states (n, dim) what a summary in plain values has over the starts, in its own order.

    Each is (4, n): values, standard errors, and the ends of intervals.
    """
    found: dict[str, dict[str, Floats]] = {}
    for kind, of, asked in _ASKED:
        found[kind] = {}
        for key in told[kind]:
            given: Any = {asked: float(key)}
            values, ends = getattr(distribution, of)(x, **given), np.full((len(x), 2), np.nan)
            if distribution.has_intervals:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FewEpisodesWarning)  # it is in the advice
                    ends = distribution.interval(x, of, level=level, **given)
            errors = np.diff(ends).ravel() / (2.0 * student_quantile(level, episodes))
            found[kind][key] = np.vstack([values, errors, ends.T])
    return found


def without_model(told: Mapping[str, Any]) -> dict[str, tuple[Estimate | None, Estimate]]:
    """What cut-off episodes leave without the model, name by name: weighted, if at all, and possible."""
    answers = told.get("without_model")
    if answers is None:
        return {}
    weighted = dict(rows(answers["weighted"])) if "weighted" in answers else {}
    return {name: (weighted.get(name), possible) for name, possible in rows(answers["possible"])}


def whose(told: Mapping[str, Any], survey: Survey) -> str:
    """What the quantiles over the starts are of, in a few words."""
    if told["features"].startswith(CHAIN):
        return f"by {told['features']}"
    if "model" not in told:
        cut = f", as {percent(survey.cut_off / survey.episodes)} of the episodes were cut off"
        return f"by the model ({told['features']}){cut if survey.cut_off else ''}"
    some = "the" if told["starts"] == survey.episodes else f"a uniform sample of {told['starts']:,} of the"
    cut = f", {percent(survey.cut_off / survey.episodes)} of them cut off and completed by the model"
    return f"of {some} {survey.episodes:,} recorded returns{cut if survey.cut_off else ''}"
