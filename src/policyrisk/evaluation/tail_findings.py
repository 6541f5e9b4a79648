"""What stands against the quantiles and the worst returns of an evaluation, where it asked for them.

few episodes in the tail          the worst 5 % of 100 episodes are 5
coarse thresholds                 the quantile lies between two that are further apart than its interval
a quantile at the end of them     what lies beyond was never looked at
disagreement with the returns     the features of the distribution miss the mean or the std at the start
a distribution made monotone      the features cannot express it
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.text import number, percent, plural
from policyrisk.evaluation.finding import Advice, severity_of

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

# From where on a finding is worth a note, a warning, or is serious. They are rules of thumb.
_IN_TAIL = (0.05, 0.1, 0.3)  # 1 / episodes in the tail: fewer than 20, 10 and 3 of them
_APART = (math.inf, 0.1, 0.3)  # of the return's std, by which mean or std are off
_COARSE = 0.25  # of an interval's width, by which straight lines between thresholds may be off
_HARMFUL = 2.0  # standard errors of the distribution's own: its intervals then miss as often as not
_CORRECTED = (0.02, 0.1, math.inf)  # by which F was changed at the median state to be monotone, in [0, 1]
_STATES = 500  # visited states that are looked at


def _few_in_tail(evaluation: Evaluation, told: dict[str, Any]) -> Iterator[Advice]:
    episodes = evaluation.survey.episodes
    share, q = min((min(float(q), 1.0 - float(q)), float(q)) for q in told["quantiles"] if float(q) < 1.0)
    severity = severity_of(1.0 / max(share * episodes, 1e-9), _IN_TAIL)
    if severity is not None:
        side = "worst" if q <= 0.5 else "best"
        yield Advice(
            severity,
            f"Few episodes stand behind the {side} {percent(share)}",
            f"Of {plural(episodes, 'episode')} the {side} {percent(share)} are {share * episodes:.3g}. The "
            f"{percent(q)} quantile and the mean beyond it rest on these alone, and where they are few, "
            "intervals cover less often than they say: what is rarer still has not been seen.",
            f"Record {math.ceil(20 / share):,} episodes or more, or ask for a quantile nearer to the middle.",
        )


def _thresholds(evaluation: Evaluation, told: dict[str, Any]) -> Iterator[Advice]:
    """Where the quantiles lie between the thresholds that F was estimated at."""
    dist = evaluation.distribution
    if dist is None or dist.grid.steps:  # with steps all returns are thresholds
        return
    over, theta = dist.over(evaluation.survey.starts), dist.thresholds
    off = {q: over.coarseness(float(q)) for q in told["quantiles"]}
    widths = {q: value["high"] - value["low"] for q, value in told["quantiles"].items()}
    ends = [q for q, error in off.items() if math.isinf(error)]
    coarse = {q: error for q, error in off.items() if q not in ends and error > _COARSE * widths[q]}
    if coarse:
        q, error = max(coarse.items(), key=lambda each: each[1] / max(widths[each[0]], 1e-300))
        value = told["quantiles"][q]
        yield Advice(
            "warning",
            "The thresholds are coarse where the quantiles lie",
            f"F is drawn straight between {plural(theta.size, 'threshold')}. With every other one the "
            f"{percent(float(q))} quantile changes so much that it may be off by {number(error, 2)}, which "
            f"its interval ({number(value['low'], 4)} to {number(value['high'], 4)}) does not hold.",
            f"Fit pr.ReturnDistribution(features, thresholds={5 * theta.size}) to the data, or thresholds of "
            "your own that are dense there.",
        )
    if ends:
        yield Advice(
            "warning",
            "A quantile lies at the end of the thresholds",
            f"The {', '.join(percent(float(q)) for q in ends)} quantile is one of the ends, "
            f"{number(theta[0], 4)} to {number(theta[-1], 4)}, of what was looked at; it may be further out.",
            "Fit pr.ReturnDistribution with thresholds= that reach further, record more episodes, or ask for "
            "a quantile nearer to the middle.",
        )


def _disagreement(evaluation: Evaluation, told: dict[str, Any]) -> Iterator[Advice]:
    """The distribution's mean and std over the starts against those of the returns."""
    summary = evaluation.summary
    std = float(summary.std)
    if summary.completed is None or not std > 0:
        return
    beyond = {}
    for of in ("mean", "std"):
        gap = told[of]["value"] - float(getattr(summary, of))
        if abs(gap) > _HARMFUL * np.nan_to_num(told[of]["standard_error"]):
            beyond[of] = abs(gap) / std
    severity = severity_of(max(beyond.values(), default=0.0), _APART)
    if severity is not None:
        of = max(beyond, key=beyond.__getitem__)
        yield Advice(
            severity,
            "The distribution disagrees with the returns",
            f"Over the starts its {of} is {number(told[of]['value'], 4)}, that of the returns "
            f"{number(getattr(summary, of), 4)}. Both come from the same episodes: the distribution's "
            f"features ({told['features']}) are too coarse at the starts, and so its quantiles are off too.",
            "Use finer --features (features=), which the distribution then has as well"
            + ("; those over the starts are of the recorded returns." if "model" in told else "."),
        )


def _corrected(evaluation: Evaluation, told: dict[str, Any]) -> Iterator[Advice]:
    """By how much F̃ was changed where it is read."""
    dist, visited = evaluation.distribution, evaluation.survey.visited
    if dist is None:
        return
    changed = dist.corrected(visited[:: -(-len(visited) // _STATES)])
    changed = changed[~np.isnan(changed)]
    middle = float(np.median(changed)) if changed.size else 0.0
    severity = severity_of(middle, _CORRECTED)
    if severity is not None:
        yield Advice(
            severity,
            "The distribution was made monotone",
            f"At half of the visited states a probability was changed by {percent(middle)} or more (at most "
            f"by {percent(float(changed.max()))}) so that probabilities rise from 0 to 1: "
            f"{told['features']} cannot express the distribution.",
            "Use tiles or a table (--features tiles:20), whose probabilities are averages: they rise anyway.",
        )


def findings(evaluation: Evaluation) -> Iterator[Advice]:
    """All of them, none where no distribution was asked for."""
    told = evaluation.notes.get("distribution")
    if told is not None:
        told = {**told, **told.get("model", {})}  # what was fitted
        for check in (_few_in_tail, _thresholds, _disagreement, _corrected):
            yield from check(evaluation, told)


def of_answer(evaluation: Evaluation) -> Iterator[Advice]:
    """Those that stand against the quantiles over the starts: all of the model's, few of the returns'."""
    told = evaluation.notes.get("distribution")
    if told is not None:
        yield from _few_in_tail(evaluation, told) if "model" in told else findings(evaluation)


CHECKS = (findings,)
