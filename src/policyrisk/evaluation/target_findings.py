"""What limits an evaluation of another policy than the recorded one, and quantiles.

What the log says nothing about; an evaluation of the recorded policy has none of these:

    not possible         a mean that the recorded rewards cannot sum up to
    not settled          features that fit single steps badly, or others that fit them nearly as well and say
                         something else
    not covered          actions that the target takes and nobody logged: how often, which, and where
    doubly robust        what the episodes themselves say, weighted by propensities, is something else
    logged elsewhere     actions whose estimates smooth features take from other states
    another policy       the actions were chosen by someone else, who may have looked at more than the state

The distribution of the return, where it was asked for:

    few episodes in the tail          the worst 5 % of 100 episodes are 5
    coarse thresholds                 the quantile lies between two that are further apart than its interval
    a quantile at the end of them     what lies beyond was never looked at
    disagreement with cut-offs        episodes weighted by their chance of being observed say something else
    disagreement with the returns     the features of the distribution miss the mean or the std at the start
    a distribution made monotone      the features cannot express it
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.text import number, percent, plural
from policyrisk.errors import UncoveredError, UncoveredWarning
from policyrisk.evaluation.advice import (
    RULES,
    SEVERITIES,
    SKIPPED,
    Advice,
    Seen,
    Severity,
    rule,
    severity_of,
)
from policyrisk.evaluation.overlap import NEAREST, NotLogged, looked_at
from policyrisk.evaluation.target_choice import is_possible, possible_means
from policyrisk.lstd.pipeline import WORTH_A_WARNING
from policyrisk.risk.readout import Choice

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

NOT_TOLD = "The mean is none that such rewards sum up to", "The log does not settle what the target earns"
_COARSE = 0.25  # of an interval's width, by which straight lines between thresholds may be off
_HARMFUL = 2.0  # standard errors of the distribution's own: its intervals then miss as often as not
_SURE = 3.0  # standard errors, of two numbers from the same episodes as if these were others
_STATES = 500  # visited states that are looked at

_REMEDY = (
    "Do not use the number. Record episodes of a policy that is nearer to the target, or more of them; look "
    "less far ahead, with --discount (discount=) below 1 or a time limit; or name features of your own with "
    "--features (features=)."
)


@rule("target", NOT_TOLD[0], _REMEDY, checks="means that such rewards can sum up to")
def _impossible(evaluation: Evaluation) -> Seen:
    notes, gamma = evaluation.noted("target"), evaluation.risk.provenance.discount
    if notes.get("least_reward") is None:
        return SKIPPED
    rewards = notes["least_reward"], notes["most_reward"]
    bounds = gamma, evaluation.notes.get("time_limit", math.inf)
    estimate = evaluation.summary.mean
    mean, (low, high) = estimate.value, possible_means(rewards, *bounds)
    severity: Severity | None = None
    if not is_possible(mean, rewards, *bounds):
        severity = "serious"
    elif not (low <= mean <= high):
        end = estimate.high if mean < low else estimate.low
        severity = None if is_possible(end, rewards, *bounds, beyond=0.01) else "warning"
    return severity, (
        f"It is {number(mean, 4)}. All recorded rewards are {_between(*rewards)}, so that no policy has a "
        f"mean {'below' if mean < low else 'above'} {number(low if mean < low else high, 4)} with them."
    )


@rule("target", NOT_TOLD[1], _REMEDY, checks="errors of single steps")
def _unsettled(evaluation: Evaluation) -> Seen:
    found = evaluation.noted("choice").get("one_step")
    if found is None:
        return SKIPPED
    summary = evaluation.summary
    low, high = found["rivals"]
    far = max(summary.mean_value - low, high - summary.mean_value)
    beyond = not (summary.mean.low <= low and high <= summary.mean.high)
    scale = max(abs(summary.mean_value), math.sqrt(max(summary.variance_value, 0.0)), 1e-300)
    share = found["misfit"] / found["reward"] if found["reward"] > 0 else 0.0
    limits = (math.inf, 0.25, 0.5)
    severities = severity_of(far / scale if beyond else 0.0, limits), severity_of(share, limits)
    other = f" With features that are nearly as good the mean is {_between(low, high)}." if low < high else ""
    return next((each for each in SEVERITIES if each in severities), None), (
        f"In a single step of the target these features err by {number(found['misfit'], 2)} or more (root "
        f"mean square, beside rewards of {number(found['reward'], 2)}), which adds up along its way.{other} "
        "No episode is of the target to tell what is right. The intervals take the features to be off by "
        f"about {number(found['bias'], 2)}."
    )


@rule(
    "target",
    "The target takes actions that were never logged",
    "Read the map of what is covered beside the others (risk.covered). Record episodes in which these "
    "actions are taken there, evaluate a target that keeps to what was logged, or let states share what is "
    "known with coarser features (--features, features=).",
    checks="what was logged of the target's actions",
)
def _uncovered(evaluation: Evaluation) -> Seen:
    covered = evaluation.summary.covered
    # Any share is a warning: a note alone would leave "no problems found".
    if covered is None or not (severity := severity_of(1.0 - covered, (0.0, 0.0, 0.25))):
        return None
    return severity, (
        f"From the starts on it does so with a probability of up to {percent(1.0 - covered)}, and is "
        f"estimated as if it took its other actions instead. {missing(evaluation)}"
    )


@rule(
    "target",
    "The estimate disagrees with what the episodes say",
    "If you trust the propensities, believe the doubly robust figures over the starts, and use richer "
    "features (--features, features=) for the states.",
    checks="the agreement with the doubly robust figures",
)
def _disagreement(evaluation: Evaluation) -> Seen:
    summary, robust = evaluation.summary, evaluation.noted("target").get("doubly_robust")
    if robust is None:
        return SKIPPED
    apart = [
        f"the {of} is {number(getattr(summary, of), 4)} by {summary.estimator} against "
        f"{number(robust[of]['value'], 4)} ± {number(robust[of]['standard_error'], 2)}"
        for of in robust["apart"]
    ]
    chain = evaluation.tails()[1]
    for name, each in evaluation.robust_tails().items():
        own = chain[name]
        errors = np.nan_to_num([own.standard_error, each.standard_error])
        if abs(own.value - each.value) > _SURE * math.hypot(*errors):
            apart.append(f"the {name} is {number(own.value, 4)} by the chain against {number(each)}")
    said = "; ".join(apart)
    return "warning" if said else None, (
        f"Weighted by the propensities (doubly robust), {said}: more than randomness explains. Either the "
        "features are too coarse to tell apart the states that matter, or the propensities are not those of "
        "the recorded policy."
    )


@rule(
    "target",
    "Some of what the target does was logged elsewhere only",
    "Use features that say where nothing was logged, as in --features tiles:10x10 (features=), or record "
    "episodes in which these actions are taken there.",
)
def _elsewhere(evaluation: Evaluation) -> Seen:
    near = evaluation.noted("target").get("near")
    if near is None or evaluation.risk.support.gram is None:
        return None  # tiles and tables say themselves what was not logged
    return severity_of(near["share"], (0.01, 0.05, 0.25)), (
        f"{percent(near['share'])} of its probability is on actions that none of the {NEAREST} nearest "
        f"logged steps took. {_described(evaluation, near)} These features are smooth: what they say there "
        "comes from states far away."
    )


@rule(
    "target",
    "The log is of another policy",
    "Nothing, if the state holds everything that the recorded policy looked at when it chose. If it chose "
    "by something that was not recorded, the estimates are biased, and no number here shows it.",
)
def _another_policy(evaluation: Evaluation) -> Seen:
    return "note", (
        f"In all {plural(evaluation.survey.episodes, 'episode')} another policy than the one evaluated here "
        f"chose the actions. {overlap(evaluation)}{propensities(evaluation)}"
    )


@rule("tails", checks="the tails of the distribution")
def _few_in_tail(evaluation: Evaluation) -> Advice | None:
    notes, episodes = _quantile_notes(evaluation), evaluation.survey.episodes
    share, q = min((min(float(q), 1.0 - float(q)), float(q)) for q in notes["quantiles"] if float(q) < 1.0)
    severity = severity_of(1.0 / max(share * episodes, 1e-9), (0.05, 0.1, 0.3))  # below 20, 10, 3
    if severity is None:
        return None
    side = "worst" if q <= 0.5 else "best"
    return Advice(
        severity,
        f"Few episodes stand behind the {side} {percent(share)}",
        f"Of {plural(episodes, 'episode')} the {side} {percent(share)} are {share * episodes:.3g}. The "
        f"{percent(q)} quantile and the mean beyond it rest on these alone, and where they are few, "
        "intervals cover less often than they say: what is rarer still has not been seen.",
        f"Record {math.ceil(20 / share):,} episodes or more, or ask for a quantile nearer to the middle.",
    )


@rule("tails", checks="the thresholds of the distribution")
def _thresholds(evaluation: Evaluation) -> Seen:
    """Straight lines between the thresholds that F was estimated at."""
    notes, off = _quantile_notes(evaluation), _coarseness(evaluation)
    if evaluation.distribution is None:
        return SKIPPED
    values: Mapping[str, Any] = notes["quantiles"]
    widths = {q: value["high"] - value["low"] for q, value in values.items()}
    coarse = {q: error for q, error in off.items() if _COARSE * widths[q] < error < math.inf}
    if not coarse:
        return None
    q, error = max(coarse.items(), key=lambda each: each[1] / max(widths[each[0]], 1e-300))
    value, count = values[q], evaluation.distribution.thresholds.size
    return Advice(
        "warning",
        "The thresholds are coarse where the quantiles lie",
        f"F is drawn straight between {plural(count, 'threshold')}. With every other one the "
        f"{percent(float(q))} quantile changes so much that it may be off by {number(error, 2)}, which its "
        f"interval ({number(value['low'], 4)} to {number(value['high'], 4)}) does not hold.",
        f"Fit pr.ReturnDistribution(features, thresholds={5 * count}) to the data, or thresholds of your "
        "own that are dense there.",
    )


@rule(
    "tails",
    "A quantile lies at the end of the thresholds",
    "Fit pr.ReturnDistribution with thresholds= that reach further, record more episodes, or ask for a "
    "quantile nearer to the middle.",
)
def _at_the_end(evaluation: Evaluation) -> Seen:
    ends = [q for q, error in _coarseness(evaluation).items() if math.isinf(error)]
    if not ends or evaluation.distribution is None:
        return None
    theta = evaluation.distribution.thresholds
    return "warning", (
        f"The {', '.join(percent(float(q)) for q in ends)} quantile is one of the ends, "
        f"{number(theta[0], 4)} to {number(theta[-1], 4)}, of what was looked at; it may be further out."
    )


@rule("tails")
def _distribution_disagrees(evaluation: Evaluation) -> Advice | None:
    """The distribution's mean and std over the starts against those of the returns."""
    summary, notes = evaluation.summary, _quantile_notes(evaluation)
    std = float(summary.std)
    if summary.completed is None or not std > 0:
        return None
    beyond = {}
    for of in ("mean", "std"):
        gap = notes[of]["value"] - float(getattr(summary, of))
        if abs(gap) > _HARMFUL * np.nan_to_num(notes[of]["standard_error"]):
            beyond[of] = abs(gap) / std
    severity = severity_of(max(beyond.values(), default=0.0), (math.inf, 0.1, 0.3))
    if severity is None:
        return None
    of = max(beyond, key=beyond.__getitem__)
    return Advice(
        severity,
        "The distribution disagrees with the returns",
        f"Over the starts its {of} is {number(notes[of]['value'], 4)}, that of the returns "
        f"{number(getattr(summary, of), 4)}. Both come from the same episodes: the distribution's features "
        f"({notes['features']}) are too coarse at the starts, and so its quantiles are off too.",
        "Use finer --features (features=), which the distribution then has as well"
        + ("; those over the starts are of the recorded returns." if "model" in notes else "."),
    )


@rule(
    "tails",
    "The model and the cut-off episodes disagree",
    "If the times of cutting off do not depend on what would have come after, as where a log ends at one "
    "date, believe the weighted figures (Evaluation.without_model). If they do, record what decides them, or "
    "with a longer time limit; what is possible holds in any case.",
)
def _against_cut_off(evaluation: Evaluation) -> Seen:
    """The tails over the starts against the episodes weighted, and against what is possible."""
    answers, apart = evaluation.tails()[1], []
    severity: Severity | None = None
    for name, (weighted, possible) in evaluation.without_model().items():
        given = answers[name]
        if given.high < possible.low or given.low > possible.high:
            severity = "serious"
            said = f"it must be from {number(possible.low, 4)} to {number(possible.high, 4)}"
        elif weighted is not None and _SURE * math.hypot(
            np.nan_to_num(given.standard_error), weighted.standard_error
        ) < abs(given.value - weighted.value):
            severity = severity or "warning"
            said = f"{number(weighted.value, 4)} ± {number(weighted.standard_error, 2)} weighted"
        else:
            continue
        apart.append(f"{name}: {number(given.value, 4)}, and {said}")
    return severity, (
        f"Over the starts, {'; '.join(apart)}. Weighted are the episodes that tell, by the chance of being "
        "observed for so long; the model completes the others from the state that they were cut off in."
    )


@rule(
    "tails",
    "The distribution was made monotone",
    "Use tiles or a table (--features tiles:20), whose probabilities are averages: they rise anyway.",
)
def _corrected(evaluation: Evaluation) -> Seen:
    """The change of F̃ where it is read."""
    dist, visited = evaluation.distribution, evaluation.survey.visited
    if dist is None:
        return None
    changed = dist.corrected(visited[:: -(-len(visited) // _STATES)])
    changed = changed[~np.isnan(changed)]
    if not changed.size:
        return None
    middle, most = float(np.median(changed)), float(changed.max())
    features = _quantile_notes(evaluation)["features"]
    return severity_of(middle, (0.02, 0.1, math.inf)), (
        f"At half of the visited states a probability was changed by {percent(middle)} or more (at most by "
        f"{percent(most)}) so that probabilities rise from 0 to 1: {features} cannot "
        "express the distribution."
    )


def against_quantiles(evaluation: Evaluation) -> bool:
    """Whether a warning is about the quantiles over the starts: all of the model's, few of the returns'."""
    notes = evaluation.notes.get("distribution")
    if notes is None:
        return False
    rules = [_few_in_tail] if "model" in notes else [each for each in RULES if each.subject == "tails"]
    found = (each(evaluation) for each in rules)
    return any(isinstance(each, Advice) and each.severity in ("serious", "warning") for each in found)


def refuse_uncovered(evaluation: Evaluation) -> None:
    """Raise an error, which says what is missing, where too little of the target was logged for a summary."""
    try:
        _ = evaluation.summary
    except UncoveredError as error:
        raise UncoveredError(f"{error}. {missing(evaluation)}") from None


def warn_of_uncovered(evaluation: Evaluation) -> None:
    """One line that names the actions, where more than a little of the target was not logged."""
    facts = evaluation.risk.provenance
    if facts.left_out > WORTH_A_WARNING:
        warnings.warn(
            f"{percent(facts.left_out)} of the target's probability, on average over the recorded steps, is "
            "on actions that were never logged where they would be taken, and it is estimated as if it took "
            f"its other actions instead. {missing(evaluation)}",
            UncoveredWarning,
            stacklevel=5,
        )


def missing(evaluation: Evaluation) -> str:
    """Which of the target's actions were not logged, and where, over the visited states; most of it first."""
    assert evaluation.target is not None
    states, count = looked_at(evaluation.survey)
    logged = Choice.at(evaluation.risk, states).episodes > 0
    said = _described(evaluation, asdict(NotLogged.of(evaluation.target, states, count, logged)))
    if dropped := evaluation.risk.provenance.dropped:
        said += (
            f" That includes {plural(dropped, 'logged step')} into states where none of its actions is left."
        )
    return said


def _described(evaluation: Evaluation, found: Mapping[str, Any]) -> str:
    if not found["places"]:
        return "At the visited states themselves nothing is missing."
    actions = ", ".join(
        f"action {evaluation.action_name(a)} ({percent(share)} of the target's probability)"
        for a, share in found["actions"]
    )
    places = "; ".join(
        f"{evaluation.place(x)} ({percent(share)} of it there)" for x, share in found["places"]
    )
    return (
        f"At {percent(found['somewhere'])} of the visited states something is missing: {actions}, above all "
        f"at {places}."
    )


def overlap(evaluation: Evaluation) -> str:
    """The overlap of log and target, as a sentence and a space; empty where it was not counted."""
    notes = evaluation.noted("target")
    if not notes:
        return ""
    said = (
        "At the average logged step the target takes the logged action with probability "
        f"{percent(notes['agreed'])}"
    )
    if notes["propensities"]:
        said += (
            f"; weighted by the propensities {percent(notes['effective_steps'])} of the steps are left in "
            f"effect, and of {plural(evaluation.survey.episodes, 'episode')} taken as a whole "
            f"{notes['effective_episodes']:,.{1 if notes['effective_episodes'] < 10 else 0}f}"
        )
    return f"{said}. "


def propensities(evaluation: Evaluation) -> str:
    """Whether propensities are known and used, in a sentence."""
    lam, notes = evaluation.risk.provenance.lam, evaluation.noted("target")
    known = notes.get("propensities", False)
    if lam == 0:
        used = "serve the doubly robust figures alone" if notes.get("doubly_robust") else "were not used"
        return f"With λ = 0 no propensities are needed{f'; those of the log {used}' if known else ''}."
    return f"Traces with λ = {lam:g} are cut by " + (
        "min(1, ρ), with the log's propensities." if known else "the target's own probabilities."
    )


def _between(low: float, high: float) -> str:
    ends = [number(each, 4) for each in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"between {' and '.join(ends)}"


def _quantile_notes(evaluation: Evaluation) -> dict[str, Any]:
    """The notes on the fitted distribution."""
    notes = evaluation.notes["distribution"]
    return {**notes, **notes.get("model", {})}


def _coarseness(evaluation: Evaluation) -> dict[str, float]:
    """The error of each quantile between thresholds; infinite at the ends, nothing for steps."""
    dist, notes = evaluation.distribution, _quantile_notes(evaluation)
    if dist is None or dist.grid.steps:  # with steps all returns are thresholds
        return {}
    over = dist.over(evaluation.survey.starts)
    return {q: over.coarseness(float(q)) for q in notes["quantiles"]}
