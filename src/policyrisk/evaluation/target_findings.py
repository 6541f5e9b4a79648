"""What stands against an evaluation of another policy than the recorded one: what the log says nothing about.

    another policy       the actions were chosen by someone else, who may have looked at more than the state
    not covered          actions that the target takes and nobody logged: how often, which, and where
    logged elsewhere     actions whose estimates smooth features take from other states
    doubly robust        what the episodes themselves say, weighted by propensities, is something else
    not possible         a mean that the recorded rewards cannot sum up to
    not settled          features that fit single steps badly, or others that fit them nearly as well and say
                         something else

An evaluation of the recorded policy has none of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from policyrisk._core.text import number, percent, plural
from policyrisk.errors import UncoveredError
from policyrisk.evaluation.finding import SEVERITIES, Advice, Severity, severity_of
from policyrisk.evaluation.overlap import NEAREST, NotLogged, looked_at
from policyrisk.evaluation.target_choice import is_possible, possible_means
from policyrisk.risk.action_estimates import Choice

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

_UNCOVERED = (0.0, 0.05, 0.25)  # how likely the target leaves what was logged: note, warning, serious
_ELSEWHERE = (0.01, 0.05, 0.25)  # of its probability at visited states, not logged near them
_UNSETTLED = (math.inf, 0.25, 0.5)  # how far other features' means are from this one, of it or of the std
_SLIGHTLY = 0.01  # of the possible means: what an interval may lie beyond them
_MISFIT = (math.inf, 0.25, 0.5)  # errors of one step, in rewards
NOT_TOLD = "The mean is none that such rewards sum up to", "The log does not settle what the target earns"

_REMEDY = (
    "Do not use the number. Record episodes of a policy that is nearer to the target, or more of them; look "
    "less far ahead, with --discount (discount=) below 1 or a time limit; or name features of your own with "
    "--features (features=)."
)


def refuse_uncovered(evaluation: Evaluation) -> None:
    """Raise an error, which says what is missing, where too little of the target was logged for a summary."""
    try:
        _ = evaluation.summary
    except UncoveredError as error:
        raise UncoveredError(f"{error}. {missing(evaluation)}") from None


def missing(evaluation: Evaluation) -> str:
    """Which of the target's actions were not logged, and where, over the visited states; most of it first."""
    assert evaluation.target is not None
    states, count = looked_at(evaluation.survey)
    logged = Choice.at(evaluation.risk, states).episodes > 0
    return _described(evaluation, asdict(NotLogged.of(evaluation.target, states, count, logged)))


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
    """How much the log is like the target, in a sentence; nothing where that was not counted."""
    notes = evaluation.notes.get("target")
    if notes is None:
        return ""
    agreed = percent(notes["agreed"])
    said = f"At the average logged step the target takes the logged action with probability {agreed}"
    if notes["propensities"]:
        said += (
            f"; weighted by the propensities {percent(notes['effective_steps'])} of the steps are left in "
            f"effect, and of {plural(evaluation.survey.episodes, 'episode')} taken as a whole "
            f"{notes['effective_episodes']:,.{1 if notes['effective_episodes'] < 10 else 0}f}"
        )
    return f"{said}."


def propensities(evaluation: Evaluation) -> str:
    """Whether propensities are known and used, in a sentence."""
    lam, notes = evaluation.risk.provenance.lam, evaluation.notes.get("target")
    known = notes is not None and notes["propensities"]
    if lam == 0:
        used = "serve the doubly robust figures alone" if doubly_robust(evaluation) else "were not used"
        return f"With λ = 0 no propensities are needed{f'; those of the log {used}' if known else ''}."
    return f"Traces with λ = {lam:g} are cut by " + (
        "min(1, ρ), with the log's propensities." if known else "the target's own probabilities."
    )


def _another_policy(evaluation: Evaluation) -> Iterator[Advice]:
    if evaluation.target is None:
        return
    yield Advice(
        "note",
        "The log is of another policy",
        f"In all {plural(evaluation.survey.episodes, 'episode')} another policy than the one evaluated here "
        f"chose the actions. {overlap(evaluation)} {propensities(evaluation)}".replace("  ", " "),
        "Nothing, if the state holds everything that the recorded policy looked at when it chose. If it "
        "chose by something that was not recorded, the estimates are biased, and no number here shows it.",
    )


def _uncovered(evaluation: Evaluation) -> Iterator[Advice]:
    covered = evaluation.summary.covered
    if covered is None or not (severity := severity_of(1.0 - covered, _UNCOVERED)):
        return
    yield Advice(
        severity,
        "The target takes actions that were never logged",
        f"From the starts on it does so with a probability of up to {percent(1.0 - covered)}, and is "
        f"estimated as if it took its other actions instead. {missing(evaluation)}",
        "Read the map of what is covered beside the others (risk.covered). Record episodes in which these "
        "actions are taken there, evaluate a target that keeps to what was logged, or let states share what "
        "is known with coarser features (--features, features=).",
    )


def _elsewhere(evaluation: Evaluation) -> Iterator[Advice]:
    near = (evaluation.notes.get("target") or {}).get("near")
    if near is None or evaluation.risk.support.gram is None:
        return  # tiles and tables say themselves what was not logged
    if severity := severity_of(near["share"], _ELSEWHERE):
        yield Advice(
            severity,
            "Some of what the target does was logged elsewhere only",
            f"{percent(near['share'])} of its probability is on actions that none of the {NEAREST} nearest "
            f"logged steps took. {_described(evaluation, near)} These features are smooth: what they say "
            "there comes from states far away.",
            "Use features that say where nothing was logged, as in --features tiles:10x10 (features=), or "
            "record episodes in which these actions are taken there.",
        )


def doubly_robust(evaluation: Evaluation) -> Mapping[str, Any] | None:
    """What was estimated beside, where the log has propensities for it."""
    notes: Mapping[str, Any] = evaluation.notes.get("target") or {}
    return notes.get("doubly_robust")


def _disagreement(evaluation: Evaluation) -> Iterator[Advice]:
    beside = doubly_robust(evaluation)
    if beside is None or not beside["apart"]:
        return
    summary = evaluation.summary
    said = "; ".join(
        f"the {of} is {number(getattr(summary, of), 4)} by {summary.estimator} against "
        f"{number(beside[of]['value'], 4)} ± {number(beside[of]['standard_error'], 2)}"
        for of in beside["apart"]
    )
    yield Advice(
        "warning",
        "The estimate disagrees with what the episodes say",
        f"Weighted by the propensities (doubly robust), {said}: more than randomness explains. Either the "
        "features are too coarse to tell apart the states that matter, or the propensities are not those of "
        "the recorded policy.",
        "If you trust the propensities, believe the doubly robust figures over the starts, and use richer "
        "features (--features, features=) for the states.",
    )


def _impossible(evaluation: Evaluation) -> Iterator[Advice]:
    notes, gamma = evaluation.notes.get("target") or {}, evaluation.risk.provenance.discount
    if notes.get("least_reward") is None:
        return
    rewards = notes["least_reward"], notes["most_reward"]
    bounds = gamma, evaluation.notes.get("time_limit", math.inf)
    estimate = evaluation.summary.mean
    mean, (low, high) = estimate.value, possible_means(rewards, *bounds)
    severity: Severity | None = None
    if not is_possible(mean, rewards, *bounds):
        severity = "serious"
    elif not (low <= mean <= high):
        end = estimate.high if mean < low else estimate.low
        severity = None if is_possible(end, rewards, *bounds, _SLIGHTLY) else "warning"
    if severity is None:
        return
    yield Advice(
        severity,
        NOT_TOLD[0],
        f"It is {number(mean, 4)}. All recorded rewards are {_between(*rewards)}, so that no policy has a "
        f"mean {'below' if mean < low else 'above'} {number(low if mean < low else high, 4)} with them.",
        _REMEDY,
    )


def _between(low: float, high: float) -> str:
    ends = [number(each, 4) for each in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"between {' and '.join(ends)}"


def _unsettled(evaluation: Evaluation) -> Iterator[Advice]:
    found = (evaluation.notes.get("choice") or {}).get("one_step")
    if found is None:
        return
    summary = evaluation.summary
    low, high = found["rivals"]
    far = max(summary.mean_value - low, high - summary.mean_value)
    beyond = not (summary.mean.low <= low and high <= summary.mean.high)
    scale = max(abs(summary.mean_value), math.sqrt(max(summary.variance_value, 0.0)), 1e-300)
    share = found["misfit"] / found["reward"] if found["reward"] > 0 else 0.0
    severities = severity_of(far / scale if beyond else 0.0, _UNSETTLED), severity_of(share, _MISFIT)
    severity = next((each for each in SEVERITIES if each in severities), None)
    if severity is None:
        return
    other = f" With features that are nearly as good the mean is {_between(low, high)}." if low < high else ""
    yield Advice(
        severity,
        NOT_TOLD[1],
        f"In a single step of the target these features err by {number(found['misfit'], 2)} (root mean "
        f"square, beside rewards of {number(found['reward'], 2)}), which adds up along its way.{other} No "
        "episode is of the target to tell what is right, and the intervals are of randomness alone.",
        _REMEDY,
    )


CHECKS = _impossible, _unsettled, _uncovered, _disagreement, _elsewhere, _another_policy
