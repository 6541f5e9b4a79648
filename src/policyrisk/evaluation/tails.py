"""What the notes of an evaluation say of quantiles, the mean of the worst returns and the chance of a loss.

:func:`policyrisk.evaluation.pipeline.fit_distribution` says what they are of.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import percent
from policyrisk.errors import FewEpisodesWarning
from policyrisk.passes.survey import Survey
from policyrisk.returns.distribution_function import DistributionAtStates
from policyrisk.risk.estimate import Estimate, student_quantile

# What a summary has, how a distribution calls it, and its argument.
_ASKED: tuple[tuple[str, Literal["quantile", "cvar", "probability"], str], ...] = (
    ("quantiles", "quantile", "q"),
    ("cvar", "cvar", "q"),
    ("below", "probability", "below"),
)
COLUMNS = {"quantiles": "quantile", "cvar": "cvar", "below": "below"}  # what a table calls each
NOTHING: dict[str, Any] = {kind: {} for kind in COLUMNS}
CHAIN = "the log as a chain"  # what the features of a target's tails begin with


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
