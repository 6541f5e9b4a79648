"""Quantiles, the mean of the worst returns and the chance of a loss in an evaluation that asks for them.

At states they are :class:`policyrisk.ReturnDistribution`'s, by the features that were spelled, or by those
candidates for a mixture whose mean was nearest to held-out episodes: the *model*. Over the starts they are
those of the recorded returns, with the model's beside them, unless episodes were cut off: the model's then.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from policyrisk._core.text import percent
from policyrisk.errors import PolicyRiskWarning
from policyrisk.evaluation.request import EvaluationRequest
from policyrisk.features import Features
from policyrisk.passes.reduce import Reduce
from policyrisk.passes.survey import Survey
from policyrisk.returns import DistributionFunction, RecordedReturns, ReturnDistribution
from policyrisk.risk.estimate import Estimate

if TYPE_CHECKING:
    pass


def fit_distribution(
    request: EvaluationRequest, features: Features, reduce: Reduce, survey: Survey
) -> tuple[DistributionFunction, dict[str, Any]]:
    """The distribution, and the summary over the starts that a request asks for, in plain values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)  # what is given up is in the advice
        dist = ReturnDistribution(features, discount=request.discount).fit_by(reduce)
    below = () if request.loss_below is None else (request.loss_below,)
    asked = request.quantiles, request.level
    model = dist.summary(survey.starts, *asked, below=below).to_dict()
    recorded = recorded_returns(survey, request.discount)
    if recorded is None:
        return dist, model
    return dist, {**recorded.summary(*asked, below=below).to_dict(), "model": model}


def recorded_returns(survey: Survey, discount: float) -> RecordedReturns | None:
    """The recorded returns, all or the survey's uniform sample; None where one of all was cut off."""
    returns = survey.returns[0]
    return None if survey.cut_off or returns.size < 2 else RecordedReturns(returns, discount)


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, Estimate]]:
    """What a summary in plain values says, name by name."""
    for q, value in told["quantiles"].items():
        yield f"{percent(float(q))} quantile", Estimate(*value.values())
    for q, value in told["cvar"].items():
        if float(q) < 0.5:
            yield f"mean of the worst {percent(float(q))}", Estimate(*value.values())
    for line, value in told["below"].items():
        yield f"chance of a return below {line}", Estimate(*value.values())


def whose(told: Mapping[str, Any], survey: Survey) -> str:
    """What the quantiles over the starts are of, in a few words."""
    if "model" not in told:
        cut = f", as {percent(survey.cut_off / survey.episodes)} of the episodes were cut off"
        return f"by the model ({told['features']}){cut if survey.cut_off else ''}"
    some = "the" if told["starts"] == survey.episodes else f"a uniform sample of {told['starts']:,} of the"
    return f"of {some} {survey.episodes:,} recorded returns"
