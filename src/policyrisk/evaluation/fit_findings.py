"""What the features and the fit say against an evaluation: the estimate, its equations, held-out episodes.

    estimate against completed returns        a difference beyond its error is the features' bias
    negative variance                         the std does not exist there
    ill-conditioned equations                 digits are lost
    redundant features, active constraint

and, where features were chosen on held-out episodes, what these said of the choice:

    calibration                               V is too large or too small on episodes that were not fitted
    R² of J                                   the state tells little about the return, or the fit is poor
    J outside the range of the returns        no return was ever like it
    test of the features                      one-step errors that the features cannot explain, and where
    wide intervals                            the std is hardly known
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import number, percent, plural
from policyrisk.evaluation.finding import Advice, Severity, severity_of
from policyrisk.risk.check import REFUTED
from policyrisk.risk.mixture import MIXTURE
from policyrisk.risk.summary import ROUNDING

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

# From where on a finding is worth a note, a warning, or is serious. They are rules of thumb.
_NEGATIVE_SHARE = (0.0, 0.0, 0.05)  # visited states with V < 0: never a mere note
_CONDITION = (math.inf, 1e9, 1e12)  # 16 digits less 9 leave 7
_HARMFUL = 2.0  # of the estimator's own standard errors: its intervals then miss as often as not
_LARGE = 0.2  # of the return's std: a difference of this size matters to anybody
_SMALL = 0.05  # of the std, or of the variance: it is beyond doubt, but harms nobody
_LARGE_MIXED = 0.5  # the same where candidates were tried and none was better
_MIXED_CONDITION = (1e9, 1e12, math.inf)  # held-out episodes have judged what came of it
_CALIBRATION = (math.inf, 1.5, 2.5)  # or its inverse
_EXPLAINED = 0.95, 0.05, -0.05  # R² of J: above the first or below the second a note, else a warning
_BEYOND_SHARE = (0.0, 0.01, 0.1)  # visited states with J outside the range of the returns to go
_BEYOND = 0.05  # of that range
_MISFIT_SHARE = 0.05, 0.1  # of the steps: warning, and serious where it is large
_LARGE_MISFIT = 0.5, 2.5  # a mean off by so much of the std, or a variance by such a factor
_WIDE = (2.0, 3.0, math.inf)  # the std's upper end over its lower end at the middle state
_ROUGH = 0.2  # of the visited states
_STATES = 2_000  # visited states that are looked at where each takes long


def _disagreement(evaluation: Evaluation) -> Iterator[Advice]:
    """The estimator's average over the starts against the completed returns from them."""
    summary = evaluation.summary
    model, completed = summary.model, summary.completed
    if model is None or completed is None:
        return
    m, v, misfit = summary.mean_value, summary.variance_value, evaluation.risk.misfit
    # A bias within the estimator's own error may be beyond doubt, and harms nobody.
    allowed = _HARMFUL * (1.0 if misfit is None else math.sqrt(misfit.randomness))
    errors = {name: allowed * estimate.standard_error for name, estimate in model.quantities().items()}
    apart = {name: gap for name, gap in summary.apart.items() if abs(gap) > errors[name]}
    if not apart:
        return
    size = max(
        abs(model.mean_value - m) / math.sqrt(max(v, 1e-300)),
        abs(1.0 - model.variance_value / v) if v > 0 else math.inf,
    )
    by = "the mixture" if summary.estimator == MIXTURE else summary.estimator
    said = "; ".join(
        f"the {name} is {number(getattr(model, name), 4)} by {by} against "
        f"{number(getattr(summary, name), 4)} by the returns"
        + (f", {abs(gap) / gap.standard_error:.1f} standard errors apart" if gap.standard_error > 0 else "")
        for name, gap in apart.items()
    )
    why = "there are no features in them"
    if completed.cut_off:
        why = (
            f"they take from {by} only what {completed.cut_off:,} of {completed.count:,} "
            "episodes miss, which were cut off"
        )
    if misfit is None:
        remedy = (
            "Use richer features (more tiles, bases or coordinates), or a larger --lam (lam=), which leans "
            "less on the features."
        )
        if evaluation.risk.variance_method != "direct":
            remedy += " --direct (variance='direct') often puts the variance right by itself."
    else:
        remedy = (
            "Use the returns' figures for the policy as a whole, and the map to compare states more than for "
            "its values. None of the features that were tried does better: record more episodes or what else "
            "the policy sees, declare columns whose numbers are names with --label (labels=), or spell "
            "richer features with --features (features=)."
        )
    severity: Severity = "serious" if size > (_LARGE if misfit is None else _LARGE_MIXED) else "warning"
    if misfit is not None and size < _SMALL:
        severity = "note"
    yield Advice(
        severity,
        "The estimate disagrees with the returns",
        f"Over the start states {said}. Both come from the same episodes, so that randomness does not "
        "explain it: the features are too coarse to tell apart the states that matter. At the start believe "
        f"the returns: {why}. At other states there is no such check, and the estimate is likely to be off "
        "there as well.",
        remedy,
    )


def _negative(evaluation: Evaluation) -> Iterator[Advice]:
    summary = evaluation.summary
    severity = severity_of(evaluation.negative_share, _NEGATIVE_SHARE)
    over_starts = summary.variance_value < 0
    if severity is None and not over_starts:
        return
    cause = " The features cannot fit the mean and the second moment equally well."
    demand = "Estimate the variance itself with --direct (variance='direct'), demand"
    if evaluation.risk.variance_method == "direct":
        cause, demand = "", "Demand"
    if over_starts:
        cause += (
            f" Over the start states it is {number(summary.variance_value)}, so that the policy as a whole "
            "has no std and no Sharpe ratio."
        )
    if evaluation.risk.misfit is not None:
        severity = "warning"  # of all candidates these did best on held-out episodes
    yield Advice(
        "serious" if over_starts else severity or "warning",
        "The estimated variance is negative in places",
        f"At {percent(evaluation.negative_share)} of the visited states the variance comes out below 0; the "
        f"std is left blank there.{cause}",
        f"{demand} V >= 0 with --nonnegative (nonnegative=True), or give it richer features "
        "with second= in --features.",
    )


def _condition(evaluation: Evaluation) -> Iterator[Advice]:
    condition = evaluation.risk.provenance.condition
    limits = _CONDITION if evaluation.risk.misfit is None else _MIXED_CONDITION
    if severity := severity_of(condition, limits):
        yield Advice(
            severity,
            "The equations are ill-conditioned",
            f"Their condition number is {number(condition, 2)}: of about 16 digits "
            f"{min(round(math.log10(condition)), 16)} may be lost, and small changes of the data change the "
            "estimates a lot.",
            "Use features that overlap less: a lower degree of poly: or fourier:, narrower or fewer bases of "
            "rbf:, or tiles:. A small --ridge (ridge=) trades this for some bias.",
        )


def _calibration(evaluation: Evaluation) -> Iterator[Advice]:
    stack = held_out(evaluation)
    if not stack or not is_random(stack):
        return
    ratio = stack["calibration"]
    if severity := severity_of(max(ratio, 1.0 / ratio) if ratio > 0 else math.inf, _CALIBRATION):
        side, off = ("too small", "larger") if ratio > 1 else ("too large", "smaller")
        yield Advice(
            severity,
            f"The variance is {side} on episodes that were not fitted",
            f"There the squared distances of the returns from their mean are {number(ratio, 3)} times the "
            f"estimated variance on average, where 1 is right: the spread of outcomes is likely {off} than "
            "the map says.",
            "Read the map of the std to compare states, not for its values; at the start believe the "
            "completed returns. More episodes are the remedy, or features of your own (--features, "
            "features=).",
        )


def _explained(evaluation: Evaluation) -> Iterator[Advice]:
    stack = held_out(evaluation)
    if not stack or not stack["constant_mse"] > 0 or not is_random(stack):
        return
    share = stack["explained"]
    nearly_all, little, nothing = _EXPLAINED
    if share > nearly_all:
        yield Advice(
            "warning" if _mean_is_rough(evaluation) else "note",
            "The state tells nearly everything about the return",
            f"On episodes that were not fitted, {percent(share)} of the squared distances of the returns "
            "from their average follow from the state. What is left is called variance, but how far "
            "features miss the mean is in it as well: the std may be too large, above all if the "
            "policy and its world are deterministic.",
            "If nothing is random, use the mean alone. Otherwise take the std for an upper bound.",
        )
    if share >= little:
        return
    yield Advice(
        "note" if share >= nothing else "warning",
        "The state tells hardly anything about the mean return",
        f"On episodes that were not fitted, a mean that depends on the state has "
        f"{percent(max(share, 0.0))} less squared error than one number for all states "
        f"({number(stack['mse'], 4)} against {number(stack['constant_mse'], 4)}). The map of the mean may "
        "show little else than randomness; the std may be right all the same.",
        "Nothing, if outcomes really are a matter of luck from every state. Otherwise record what the policy "
        "sees and the state lacks, or more episodes.",
    )


def _beyond_returns(evaluation: Evaluation) -> Iterator[Advice]:
    extent = range_of_returns(evaluation)
    if extent is None:
        return
    least, most = extent
    J = evaluation.risk.mean(_some(evaluation))
    J = J[np.isfinite(J)]
    margin = max(_BEYOND * (most - least), ROUNDING * max(abs(least), abs(most)))
    beyond = (J < least - margin) | (J > most + margin)
    if severity := severity_of(float(beyond.mean()) if J.size else 0.0, _BEYOND_SHARE):
        yield Advice(
            severity,
            "Estimated means lie outside the range of the returns",
            f"At {percent(float(beyond.mean()))} of the visited states, where the estimated mean goes from "
            f"{number(float(J.min()), 4)} to {number(float(J.max()), 4)}; no return to go was below "
            f"{number(least, 4)} or above {number(most, 4)}.",
            "Do not use the estimates there. Features that do not swing far out, such as tiles:10x10 or "
            "poly:1 in --features (features=), cannot do this by much.",
        )


def _misfit(evaluation: Evaluation) -> Iterator[Advice]:
    check = evaluation.check
    if check is None or not check.p_value < REFUTED:
        return
    share = float(check.share[check.material()].sum())
    if share <= _MISFIT_SHARE[0]:
        where = f"at {percent(share)} of the steps only" if share else "in no region of the states"
        yield Advice(
            "note",
            "The features misfit by little",
            "Step by step, rewards and next states contradict the estimate by more than randomness explains "
            f"(p {_p(check.p_value)}), but by an amount that matters {where}.",
            "Nothing. More episodes would let finer features be chosen.",
        )
        return
    large = float(check.share[check.material(*_LARGE_MISFIT)].sum())
    yield Advice(
        "serious" if large > _MISFIT_SHARE[1] else "warning",
        "These features cannot express the risk here",
        "Step by step, rewards and next states contradict the estimate by more than randomness explains, by "
        f"an amount that matters at {percent(share)} of the steps. Of the "
        + check.describe(evaluation.names, evaluation.label_names).replace("\n", "; of the ")
        + ".",
        "Record more of what the policy sees, since the state may lack what decides the outcome, or more "
        "episodes, so that finer features can be chosen. map_check.png (plotting.plot_check) shows where.",
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _mean_is_rough(evaluation: Evaluation) -> bool:
    """Whether the mean's interval reaches farther than half of the std at many visited states."""
    risk = evaluation.risk
    if risk.error_bars is None:
        return False
    states = _some(evaluation)
    low, high = risk.interval(states, of="mean", level=evaluation.level).T
    std = np.sqrt(np.maximum(risk.variance(states), 0.0))
    return float(np.mean(high - low > std)) > _ROUGH


def _wide(evaluation: Evaluation) -> Iterator[Advice]:
    risk = evaluation.risk
    if risk.misfit is None or risk.error_bars is None:
        return
    states = _some(evaluation)
    mean, variance = risk.mean_and_variance(states)
    known = variance > (ROUNDING * np.nanmax(np.abs(mean), initial=0.0)) ** 2
    if not known.any():
        return  # nothing is random
    low, high = risk.interval(states[known], of="std", level=evaluation.level).T
    with np.errstate(divide="ignore"):  # the lower end may be 0
        middle = float(np.median(high / low))
    if severity := severity_of(middle, _WIDE):
        level = f"{100 * evaluation.level:g}%"
        yield Advice(
            severity,
            "The standard deviation is known only roughly",
            "At half of the visited states "
            + (
                f"the upper end of its {level} interval is at least {number(middle, 3)} times the lower one."
                if middle < math.inf
                else f"its {level} interval reaches down to 0."
            ),
            "Record more episodes: with four times as many the intervals are about half as wide. Until then "
            "quote the interval, not the number.",
        )


def _some(evaluation: Evaluation) -> Floats:
    """At most _STATES of the sampled visited states."""
    visited = evaluation.survey.visited
    return visited[:: -(-len(visited) // _STATES)]


def held_out(evaluation: Evaluation) -> Mapping[str, Any]:
    """What held-out episodes said of the mixture; nothing where features were given, or in older files."""
    choice = evaluation.notes.get("choice") or {}
    found: Mapping[str, Any] = choice.get("stack") or {}
    return found


def range_of_returns(evaluation: Evaluation) -> tuple[float, float] | None:
    """The least and the largest return to go, of held-out steps or of a target's log; None if not known."""
    found = held_out(evaluation) or evaluation.notes.get("target") or {}
    least, most = found.get("least"), found.get("most")
    return None if least is None or most is None else (least, most)


def is_random(stack: Mapping[str, Any]) -> bool:
    """Whether J's error on held-out episodes is more than rounding, so that there is a variance to judge."""
    scale = max(abs(stack.get("least") or 0.0), abs(stack.get("most") or 0.0), math.sqrt(stack["mse"]))
    return bool(math.sqrt(stack["mse"]) > ROUNDING * scale)


def _remarks(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    if facts.redundant:
        yield Advice(
            "note",
            "Some features are redundant",
            f"{plural(facts.redundant, 'direction')} of the weights change no estimate. That is usual with "
            "several tilings, and harmless.",
            "Nothing. Fewer features would do as well.",
        )
    if facts.constrained:
        yield Advice(
            "note",
            "The demand V >= 0 is active",
            f"At {plural(facts.constrained, 'state')} the variance would have come out negative and is held "
            "at 0. It is small there, not nothing: do not read a std of 0 as certainty.",
            "To see what the data say without the demand, leave out --nonnegative (nonnegative=True); "
            "--direct (variance='direct') rarely needs it.",
        )


CHECKS = (
    _disagreement,
    _calibration,
    _misfit,
    _beyond_returns,
    _negative,
    _wide,
    _explained,
    _condition,
    _remarks,
)
