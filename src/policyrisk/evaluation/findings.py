"""What limits an evaluation, and how far to trust it: the rules on all subjects, and those on the estimate.

The estimate, its equations, and held-out episodes where features were chosen on them:

    completed returns                         a difference beyond its error is the features' bias
    calibration                               V is too large or too small on episodes that were not fitted
    test of the features                      one-step errors that the features cannot explain, and where
    J outside the range of the returns        no return was ever like it
    negative variance                         the std does not exist there
    wide intervals                            the std is hardly known
    R² of J                                   the state tells little about the return, or the fit is poor
    ill-conditioned equations                 digits are lost
    redundant features, active constraint

The data have :mod:`policyrisk.evaluation.data_findings`, another policy than the recorded one and the tails
:mod:`policyrisk.evaluation.target_findings`.

Checks that were skipped are not reported as passed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import number, p_value, percent, plural
from policyrisk.errors import PolicyRiskWarning, UncoveredError
from policyrisk.evaluation.advice import (
    RULES,
    SEVERITIES,
    SKIPPED,
    Advice,
    Seen,
    Severity,
    Subject,
    rule,
    severity_of,
)
from policyrisk.evaluation.data_findings import against_returns
from policyrisk.evaluation.target_findings import NOT_TOLD, against_quantiles
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.mixture import MIXTURE
from policyrisk.risk.summary import ROUNDING
from policyrisk.selection.specification import REFUTED

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

_HARMFUL = 2.0  # of the estimator's own standard errors: its intervals then miss as often as not
_LARGE = 0.2  # of the return's std: a difference of this size matters to anybody
_SMALL = 0.05  # of the std, or of the variance: it is beyond doubt, but harms nobody
_LARGE_MIXED = 0.5  # the same where candidates were tried and none was better
_LARGE_MISFIT = 0.5, 2.5  # a mean off by so much of the std, or a variance by such a factor
_MISSED, _FAR = 0.05, 3.0  # beyond the 5% of a tail that held-out returns fall into; in standard errors
_STATES = 2_000  # visited states that are looked at where each takes long


def advise(evaluation: Evaluation) -> tuple[Advice, ...]:
    """What to know before the numbers are trusted, the most serious first; one "ok" where all is well.

    It is computed once for each evaluation: ``evaluation.advice``.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=40, seed=1)
    >>> for advice in pr.evaluate(data, features="tabular").advice:
    ...     print(f"{advice.severity}: {advice.title}")
    warning: Few episodes stand behind the estimates
    """
    applies = {
        "target": evaluation.target is not None,
        "returns": evaluation.target is None,
        "tails": "distribution" in evaluation.notes,
    }
    with warnings.catch_warnings():
        # What they would say is said here, with the remedy.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        rules = sorted(RULES, key=lambda rule: get_args(Subject).index(rule.subject))
        answers = {rule: rule(evaluation) for rule in rules if applies.get(rule.subject, True)}
    found = [each for each in answers.values() if isinstance(each, Advice)]
    if all(advice.severity == "note" for advice in found):
        skipped = [rule.checks for rule, answer in answers.items() if rule.checks and answer == SKIPPED]
        checked = [rule.checks for rule, answer in answers.items() if rule.checks and answer != SKIPPED]
        found.append(_no_problems(evaluation, checked, skipped))
    return tuple(sorted(found, key=lambda advice: SEVERITIES.index(advice.severity)))


def _no_problems(evaluation: Evaluation, checked: list[str], skipped: list[str]) -> Advice:
    behind = (evaluation.summary.model or evaluation.summary).episodes
    cover = "The intervals cover randomness. They do not cover what these features cannot express."
    if evaluation.risk.widening is not None:
        behind = evaluation.survey.episodes  # as for few episodes
        cover = "The intervals at states cover randomness and what the members of the mixture disagree about."
    return Advice(
        "ok",
        "No problems found",
        f"{behind:.0f} episodes stand behind the average start. Checked: {', '.join(checked[:-1])} and "
        f"{checked[-1]}." + (f" Not checked: {', '.join(skipped)}." if skipped else ""),
        f"Nothing. {cover}",
    )


@dataclass(frozen=True)
class Trust:
    """How far to trust the answer over the starts, by the findings.

    ``good`` without a warning, ``fair`` with one, ``poor`` with a serious finding, and ``none`` where the log
    cannot tell what another policy earns. Where no episode was cut off, the answer is the average of the
    recorded returns: findings about the estimate at states do not lower its level then, unless there are few
    returns, few episodes decide their variance or their quantiles, or the order of the episodes matters.
    """

    level: Literal["good", "fair", "poor", "none"]
    reason: str  # one sentence

    def __str__(self) -> str:
        return f"{self.level}: {self.reason}"

    @classmethod
    def of(cls, evaluation: Evaluation) -> Trust:
        """The level of an evaluation, and the titles of its warnings."""
        try:
            against = [each for each in evaluation.advice if each.severity in ("serious", "warning")]
        except UncoveredError as error:
            return cls("none", f"this log cannot tell: {error}")
        if not against:
            return cls("good", "no problems found")
        titles = "; ".join(each.title[0].lower() + each.title[1:] for each in against)
        serious = {each.title for each in against if each.severity == "serious"}
        level: Literal["fair", "poor"] = "poor" if serious else "fair"
        if serious & {*NOT_TOLD}:
            return cls("none", f"this log cannot tell: {titles}")
        completed = evaluation.summary.completed
        if completed is not None and evaluation.target is None and not evaluation.survey.cut_off:
            few = completed.count < FEW_EPISODES
            if not (few or against_returns(evaluation) or against_quantiles(evaluation)):
                return cls("good", f"no problems found over the starts; at other states {level}: {titles}")
        return cls(level, titles)


@rule("returns", "The estimate disagrees with the returns", checks="the agreement with the returns")
def _disagreement(evaluation: Evaluation) -> Seen:
    """The estimator's average over the starts against the completed returns from them."""
    summary, widening = evaluation.summary, evaluation.risk.widening
    model, completed = summary.model, summary.completed
    if model is None or completed is None or not summary.comparable:
        return SKIPPED
    # A bias within the estimator's own error may be beyond doubt, and harms nobody.
    allowed = _HARMFUL * (1.0 if widening is None else widening.variance)
    errors = {name: allowed * estimate.standard_error for name, estimate in model.quantities().items()}
    gaps = {name: gap for name, gap in summary.apart.items() if abs(gap) > errors[name]}
    if not gaps:
        return None
    m, v = summary.mean_value, summary.variance_value
    size = max(
        abs(model.mean_value - m) / math.sqrt(max(v, 1e-300)),
        abs(1.0 - model.variance_value / v) if v > 0 else math.inf,
    )
    by = "the mixture" if summary.estimator == MIXTURE else summary.estimator
    said = "; ".join(
        f"the {name} is {number(getattr(model, name), 4)} by {by} against "
        f"{number(getattr(summary, name), 4)} by the returns"
        + (f", {abs(gap) / gap.standard_error:.1f} standard errors apart" if gap.standard_error > 0 else "")
        for name, gap in gaps.items()
    )
    why = "there are no features in them"
    if completed.cut_off:
        why = (
            f"they take from {by} only what {completed.cut_off:,} of {completed.count:,} episodes miss, "
            "which were cut off"
        )
    severity: Severity = "serious" if size > (_LARGE if widening is None else _LARGE_MIXED) else "warning"
    if widening is not None and size < _SMALL:
        severity = "note"
    return Advice(
        severity,
        "The estimate disagrees with the returns",
        f"Over the start states {said}. Both come from the same episodes, so randomness does not explain "
        "the difference: the features are too coarse to tell apart the states that matter. At the start "
        f"believe the returns: {why}. At other states there is no such check, and the estimate is likely to "
        "be off there as well.",
        _remedy_of_bias(evaluation),
    )


def _remedy_of_bias(evaluation: Evaluation) -> str:
    if evaluation.risk.widening is not None:
        return (
            "Use the returns' figures for the policy as a whole, and the map to compare states more than for "
            "its values. None of the features that were tried does better: record more episodes or what else "
            "the policy sees, declare columns whose numbers are names with --label (labels=), or spell "
            "richer features with --features (features=)."
        )
    direct = " --direct (variance='direct') often puts the variance right by itself."
    return (
        "Use richer features (more tiles, bases or coordinates), or a larger --lam (lam=), which depends "
        "less "
        "on the features." + direct * (evaluation.risk.variance_method != "direct")
    )


@rule("estimate", checks="calibration on held-out episodes")
def _calibration(evaluation: Evaluation) -> Seen:
    stack = _held_out(evaluation)
    if not stack or not _is_random(stack):
        return SKIPPED
    ratio = stack["calibration"]
    severity = severity_of(max(ratio, 1.0 / ratio) if ratio > 0 else math.inf, (math.inf, 1.5, 2.5))
    if severity is None:
        return None
    side, off = ("too small", "larger") if ratio > 1 else ("too large", "smaller")
    return Advice(
        severity,
        f"The variance is {side} on episodes that were not fitted",
        f"There the squared distances of the returns from their mean are {number(ratio, 3)} times the "
        f"estimated variance on average, where 1 is right: the spread of outcomes is likely {off} than the "
        "map says.",
        "Use the map of the std to compare states, not for its values; at the start believe the completed "
        "returns. Record more episodes, or use features of your own (--features, features=).",
    )


@rule("estimate", checks="a test of the features")
def _misfit(evaluation: Evaluation) -> Seen:
    check = evaluation.check
    if check is None or math.isnan(check.p_value):
        return SKIPPED
    if check.p_value >= REFUTED:
        return None
    share = float(check.share[check.material()].sum())
    large = float(check.share[check.material(*_LARGE_MISFIT)].sum())
    seen = "Step by step, rewards and next states contradict the estimate by more than randomness explains"
    if share <= 0.05:
        where = f"at {percent(share)} of the steps only" if share else "in no region of the states"
        return Advice(
            "note",
            "The features misfit by little",
            f"{seen} ({p_value(check.p_value)}), but by an amount that matters {where}.",
            "Nothing. More episodes would let finer features be chosen.",
        )
    regions = check.describe(evaluation.names, evaluation.label_names).replace("\n", "; of the ")
    return Advice(
        "serious" if large > 0.1 else "warning",
        "These features cannot express the risk here",
        f"{seen}, by an amount that matters at {percent(share)} of the steps. Of the {regions}.",
        "Record more of what the policy sees, since the state may lack what decides the outcome, or more "
        "episodes, so that finer features can be chosen. map_check.png (plotting.plot_check) shows where.",
    )


@rule(
    "estimate",
    "Estimated means lie outside the range of the returns",
    "Do not use the estimates there. Features that do not swing far out, such as tiles:10x10 or poly:1 in "
    "--features (features=), cannot do this by much.",
    checks="the range of the returns",
)
def _beyond_returns(evaluation: Evaluation) -> Seen:
    found = _held_out(evaluation) or evaluation.noted("target")
    least, most = found.get("least"), found.get("most")
    if least is None or most is None:
        return SKIPPED
    J = evaluation.risk.mean(_some(evaluation))
    J = J[np.isfinite(J)]
    margin = max(0.05 * (most - least), ROUNDING * max(abs(least), abs(most)))
    share = float(np.mean((least - margin > J) | (most + margin < J))) if J.size else 0.0
    if not share:
        return None
    return severity_of(share, (0.0, 0.01, 0.1)), (
        f"At {percent(share)} of the visited states, where the estimated mean goes from "
        f"{number(float(J.min()), 4)} to {number(float(J.max()), 4)}; no return to go was below "
        f"{number(least, 4)} or above {number(most, 4)}."
    )


@rule("estimate", "The estimated variance is negative in places", checks="variance")
def _negative(evaluation: Evaluation) -> Seen:
    summary, share = evaluation.summary, evaluation.negative_share
    severity = severity_of(share, (0.0, 0.001, 0.05))
    over_starts = summary.variance_value < 0
    if severity is None and not over_starts:
        return None
    direct = evaluation.risk.variance_method == "direct"
    cause = "" if direct else " The features cannot fit the mean and the second moment equally well."
    if over_starts:
        cause += (
            f" Over the start states it is {number(summary.variance_value)}, so that the policy as a whole "
            "has no std and no Sharpe ratio."
        )
    if severity == "serious" and evaluation.risk.widening is not None:
        severity = "warning"  # of all candidates these did best on held-out episodes
    demand = "Demand" if direct else "Estimate the variance itself with --direct (variance='direct'), demand"
    return Advice(
        "serious" if over_starts else severity or "note",
        "The estimated variance is negative in places",
        f"At {percent(share)} of the visited states the variance is below 0; the std is left blank "
        f"there.{cause}",
        f"{demand} V >= 0 with --nonnegative (nonnegative=True), or give it richer features with second= in "
        "--features.",
    )


@rule(
    "estimate",
    "The standard deviation is known only roughly",
    "Record more episodes: with four times as many the intervals are about half as wide. Until then quote "
    "the interval, not the number.",
)
def _wide(evaluation: Evaluation) -> Seen:
    risk = evaluation.risk
    if risk.widening is None or risk.error_bars is None:
        return None
    states = _some(evaluation)
    mean, variance = risk.mean_and_variance(states)
    known = variance > (ROUNDING * np.nanmax(np.abs(mean), initial=0.0)) ** 2
    if not known.any():
        return None  # nothing is random
    low, high = risk.interval(states[known], of="std", level=evaluation.level).T
    with np.errstate(divide="ignore"):  # the lower end may be 0
        middle = float(np.median(high / low))
    level = f"{100 * evaluation.level:g}%"
    said = f"its {level} interval reaches down to 0."
    if middle < math.inf:
        said = f"the upper end of its {level} interval is at least {number(middle, 3)} times the lower one."
    return severity_of(middle, (2.0, 3.0, math.inf)), f"At half of the visited states {said}"


@rule(
    "estimate",
    "The state tells nearly everything about the return",
    "If nothing is random, use the mean alone. Otherwise take the std for an upper bound.",
)
def _tells_nearly_everything(evaluation: Evaluation) -> Seen:
    share = _explained(evaluation)
    if share is None or share <= 0.95:
        return None
    return "warning" if _mean_is_rough(evaluation) else "note", (
        f"On episodes that were not fitted, {percent(share)} of the squared distances of the returns from "
        "their average follow from the state. The variance is the rest, which also contains the features' "
        "error of the mean: the std may be too large, above all if the policy and its world are "
        "deterministic."
    )


@rule(
    "estimate",
    "The state tells hardly anything about the mean return",
    "Nothing, if outcomes really are a matter of luck from every state. Otherwise record what the policy "
    "sees and the state lacks, or more episodes.",
    checks="error of the mean on held-out episodes",
)
def _tells_hardly_anything(evaluation: Evaluation) -> Seen:
    share, stack = _explained(evaluation), _held_out(evaluation)
    if share is None:
        return SKIPPED
    if share >= 0.05:
        return None
    return "note" if share >= -0.05 else "warning", (
        f"On episodes that were not fitted, a mean that depends on the state has {percent(max(share, 0.0))} "
        f"less squared error than one number for all states ({number(stack['mse'], 4)} against "
        f"{number(stack['constant_mse'], 4)}). The map of the mean may show little else than randomness; the "
        "std may be right all the same."
    )


@rule(
    "estimate",
    "The equations are ill-conditioned",
    "Use features that overlap less: a lower degree of poly: or fourier:, narrower or fewer bases of rbf:, "
    "or tiles:. A small --ridge (ridge=) trades this for some bias.",
    checks="condition number",
)
def _condition(evaluation: Evaluation) -> Seen:
    condition, mixed = evaluation.risk.provenance.condition, evaluation.risk.widening is not None
    if math.isnan(condition):
        return SKIPPED  # a forest has none
    limits = (1e9, math.inf, math.inf) if mixed else (math.inf, 1e9, 1e12)  # 16 digits less 9 leave 7
    severity = severity_of(condition, limits)
    lost = min(round(math.log10(condition)), 16) if severity else 0
    seen = (
        f"Their condition number is {number(condition, 2)}: of about 16 digits {lost} may be lost, and small "
        "changes of the data change the estimates a lot."
    )
    if severity and mixed:
        remedy = "Nothing: these features were not asked for, and held-out episodes have judged them."
        return Advice(severity, "The equations are ill-conditioned", seen, remedy)
    return severity, seen


@rule("estimate", "Some features are redundant", "Nothing. Fewer features would do as well.")
def _redundant(evaluation: Evaluation) -> Seen:
    count = evaluation.risk.provenance.redundant
    return "note" if count else None, (
        f"{plural(count, 'direction')} of the weights change no estimate. That is usual with several "
        "tilings, and harmless."
    )


@rule(
    "estimate",
    "The demand V >= 0 is active",
    "To see what the data say without the demand, leave out --nonnegative (nonnegative=True); --direct "
    "(variance='direct') rarely needs it.",
)
def _constrained(evaluation: Evaluation) -> Seen:
    count = evaluation.risk.provenance.constrained
    return "note" if count else None, (
        f"At {plural(count, 'state')} the variance would have come out negative and is held at 0. It is "
        "small there, not nothing: do not read a std of 0 as certainty."
    )


@rule(
    "tails",
    "Bad returns are more frequent than the tails say",
    "Do not rely on quantiles, the mean of the worst and chances of a loss at these states, nor on their "
    "intervals. Record more episodes that pass there, or what else decides the outcome.",
    checks="the tails on held-out episodes",
)
def _tail_regions(evaluation: Evaluation) -> Seen:
    """How often returns of episodes that were not fitted fell below their 5% quantile, by regions."""
    regions = evaluation.noted("distribution").get("regions")
    if not regions:
        return SKIPPED
    failed = [each for each in regions if each["below"] - 0.05 > max(_MISSED, _FAR * each["error"])]
    if not failed:
        return None
    share = sum(each["steps"] for each in failed)
    worst = max(failed, key=lambda each: each["below"])
    return "serious" if share > 0.25 and worst["below"] > 0.15 else "warning", (
        f"In regions with {percent(share)} of the steps, returns of episodes that were not fitted fell below "
        f"their 5% quantile too often, most of all where {worst['name']}: {percent(worst['below'])} of them."
    )


def _mean_is_rough(evaluation: Evaluation) -> bool:
    """Whether the mean's interval reaches farther than half of the std at many visited states."""
    risk = evaluation.risk
    if risk.error_bars is None:
        return False
    states = _some(evaluation)
    low, high = risk.interval(states, of="mean", level=evaluation.level).T
    std = np.sqrt(np.maximum(risk.variance(states), 0.0))
    return float(np.mean(high - low > std)) > 0.2


def _some(evaluation: Evaluation) -> Floats:
    """At most _STATES of the sampled visited states."""
    visited = evaluation.survey.visited
    return visited[:: -(-len(visited) // _STATES)]


def _held_out(evaluation: Evaluation) -> Mapping[str, Any]:
    """The scores of the mixture on held-out episodes; empty where features were given."""
    found: Mapping[str, Any] = evaluation.noted("choice").get("stack") or {}
    return found


def _is_random(stack: Mapping[str, Any]) -> bool:
    """Whether J's error on held-out episodes is more than rounding, so that there is a variance to judge."""
    scale = max(abs(stack.get("least") or 0.0), abs(stack.get("most") or 0.0), math.sqrt(stack["mse"]))
    return bool(math.sqrt(stack["mse"]) > ROUNDING * scale)


def _explained(evaluation: Evaluation) -> float | None:
    """R² of J on held-out episodes, None where it is not known or nothing is random."""
    stack = _held_out(evaluation)
    known = stack and stack["constant_mse"] > 0 and _is_random(stack)
    return float(stack["explained"]) if known else None
