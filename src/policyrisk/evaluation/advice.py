"""What is wrong with an evaluation, and what to do about it, in plain words for whoever must act on it.

Each check looks at one way in which the numbers can mislead. It either finds nothing or gives an
:class:`Advice`: how serious it is, what was seen in numbers, and what to do (options of the command line
first, those of the library beside them). The checks:

    few episodes behind the estimates         the intervals are then too narrow (``risk.FEW_EPISODES``)
    starts or tiles that were never visited   no estimate exists there
    negative variance                         the std does not exist there
    ill-conditioned equations                 digits are lost
    cut-off episodes, given-up transitions    the estimate rests on itself instead of on outcomes
    states outside the features' box          they are taken for the nearest state inside
    estimate against completed returns        a difference beyond its error is the features' bias
    returns with heavy tails                  a few episodes decide the variance, and others would change it
    redundant features, active constraint, no error bars, sampled starts

and, where features were chosen on held-out episodes, what these said of the choice:

    calibration                               V is too large or too small on episodes that were not fitted
    R² of J                                   the state tells little about the return, or the fit is poor
    J outside the range of the returns        no return was ever like it
    test of the features                      one-step errors that the features cannot explain, and where
    wide intervals                            the std is hardly known

A check that could not be made is not called made.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import number, percent, plural
from policyrisk.equations import DENSE_MOST
from policyrisk.errors import PolicyRiskWarning
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.check import REFUTED
from policyrisk.risk.mixture import MIXTURE
from policyrisk.risk.summary import ROUNDING

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

Severity: TypeAlias = Literal["ok", "note", "warning", "serious"]
_ORDER: tuple[Severity, ...] = ("serious", "warning", "note", "ok")

# From where on a finding is worth a note, a warning, or is serious. They are rules of thumb.
_FEW_SHARE = (0.0, 0.1, math.inf)  # visited states with fewer than FEW_EPISODES episodes behind them
_VERY_FEW = 30  # episodes behind the middle state, or the average start: serious
_NEGATIVE_SHARE = (0.0, 0.0, 0.05)  # visited states with V < 0: never a mere note
_CUT_OFF_SHARE = (0.0, 0.05, 0.3)  # episodes
_OUTSIDE_SHARE = (0.0, 0.01, 0.1)  # transitions
_GIVEN_UP_SHARE = (0.0, 0.01, 0.1)  # episodes
_CONDITION = (math.inf, 1e9, 1e12)  # 16 digits less 9 leave 7
_MANY_STARTS = (0.0, 0.01, 0.1)  # starts that were never visited
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
_HEAVY = (math.inf, 0.3, 0.6)  # standard error of the variance, relative: eleven and three episodes decide it
_HEAVY_KURTOSIS = 4.0  # a normal distribution has 3
_WIDE = (2.0, 3.0, math.inf)  # the std's upper end over its lower end at the middle state
_STATES = 2_000  # visited states that are looked at where each takes long


@dataclass(frozen=True)
class Advice:
    """One finding."""

    severity: Severity
    title: str
    seen: str  # in numbers
    remedy: str  # what to do

    def __str__(self) -> str:
        return f"{self.severity}: {self.title}\n  {self.seen}\n  {self.remedy}"


def advise(evaluation: Evaluation) -> tuple[Advice, ...]:
    """What to know before the numbers are trusted, the most serious first; one "ok" where all is well.

    It is computed once for each evaluation: ``evaluation.advice``.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=40, seed=1)
    >>> for advice in pr.evaluate(data, features="tabular").advice:
    ...     print(f"{advice.severity}: {advice.title}")
    warning: Few episodes stand behind the estimates
    """
    checks = (
        _disagreement,
        _calibration,
        _misfit,
        _beyond_returns,
        _heavy_tails,
        _negative,
        _few_episodes,
        _wide,
        _explained,
        _cut_off,
        _condition,
        _unvisited,
        _outside,
        _minor,
    )
    with warnings.catch_warnings():
        # What they would say is said here, with the remedy.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        found = [advice for check in checks for advice in check(evaluation)]
    if all(advice.severity == "note" for advice in found):
        found.append(_all_well(evaluation))
    return tuple(sorted(found, key=lambda advice: _ORDER.index(advice.severity)))


def _severity(value: float, limits: tuple[float, float, float]) -> Severity | None:
    """None up to the first limit, then note, warning and serious beyond each."""
    beyond = (level for level, limit in zip(_ORDER, reversed(limits), strict=False) if value > limit)
    return next(beyond, None)


def _few_episodes(evaluation: Evaluation) -> Iterator[Advice]:
    summary = evaluation.summary
    behind = evaluation.risk.episodes(evaluation.survey.visited)
    behind = behind[behind > 0]
    if not behind.size:
        return  # without an estimate anywhere, other findings speak
    share, middle = float(np.mean(behind < FEW_EPISODES)), float(np.median(behind))
    at_start = (summary.model or summary).episodes
    severity = "warning" if at_start < FEW_EPISODES else _severity(share, _FEW_SHARE)
    if evaluation.risk.misfit is not None:
        # Full intervals hold it; the leaves of a forest are small, but many are averaged.
        count = evaluation.survey.episodes
        share, middle, at_start = (float(min(each, count)) for each in (share, count, count))
        severity = "warning" if count < FEW_EPISODES else None
    if severity is None:
        return
    yield Advice(
        "serious" if min(middle, at_start) < _VERY_FEW else severity,
        "Few episodes stand behind the estimates",
        f"{percent(share)} of the visited states have fewer than {FEW_EPISODES} episodes behind their "
        f"estimate ({middle:.0f} in the middle, {behind.min():.0f} at the fewest); the average start has "
        f"{at_start:.0f}. Intervals are too narrow there: nominal 95% intervals of the variance have "
        "covered the truth in 91% of cases with 100 episodes, in 84% with 40 and in 78% with 15.",
        "Record more episodes, or use fewer and wider features (for tiles:50x50, try --features tiles:25x25 "
        "or rbf:9x9; features= in Python). Until then read the map of visits beside the others.",
    )


def _unvisited(evaluation: Evaluation) -> Iterator[Advice]:
    summary, support = evaluation.summary, evaluation.risk.support
    if severity := _severity(summary.unvisited / summary.starts, _MANY_STARTS):
        yield Advice(
            severity,
            "Some starts have no estimate",
            f"{summary.unvisited} of {plural(summary.starts, 'start')} lie where the data say nothing. They "
            "are left out of the averages, which speak of the others.",
            "Record episodes that pass there, or use wider features (--features or features= with fewer "
            "tiles or bases).",
        )
    share = evaluation.unvisited_share
    never = 0 if support.gram is not None else int(np.count_nonzero(support.feature_episodes == 0))
    if share > 0 or never:
        idle = f", and {never} of {support.feature_episodes.size} features were active in no episode"
        yield Advice(
            "note",
            "Part of the state space was never visited",
            f"The data say nothing about {percent(share)} of the box that they span{idle if never else ''}. "
            "Estimates there do not exist and are left blank.",
            "Nothing, if the policy does not go there. Otherwise start episodes there.",
        )


def _negative(evaluation: Evaluation) -> Iterator[Advice]:
    summary = evaluation.summary
    severity = _severity(evaluation.negative_share, _NEGATIVE_SHARE)
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
    if severity := _severity(condition, limits):
        yield Advice(
            severity,
            "The equations are ill-conditioned",
            f"Their condition number is {number(condition, 2)}: of about 16 digits "
            f"{min(round(math.log10(condition)), 16)} may be lost, and small changes of the data change the "
            "estimates a lot.",
            "Use features that overlap less: a lower degree of poly: or fourier:, narrower or fewer bases of "
            "rbf:, or tiles:. A small --ridge (ridge=) trades this for some bias.",
        )


def _cut_off(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    count = facts.episodes - facts.terminated
    # A discount leaves little of what would have come after a long episode.
    left = facts.discount ** (facts.transitions / max(facts.episodes, 1))
    if severity := _severity(left * count / max(facts.episodes, 1), _CUT_OFF_SHARE):
        yield Advice(
            severity,
            "Episodes were cut off before their end",
            f"{count:,} of {facts.episodes:,} episodes ({percent(count / facts.episodes)}) stopped at a time "
            "limit. What would have come after is taken from the estimate itself, and the plain sample knows "
            "the terminated episodes alone, often the short and easy ones.",
            "Record with a longer time limit. If the task has no natural end, use --discount (discount=) "
            "below 1.",
        )
    if severity := _severity(facts.given_up / max(facts.episodes, 1), _GIVEN_UP_SHARE):
        yield Advice(
            severity,
            "Some last transitions were given up",
            f"{plural(facts.given_up, 'cut-off episode')} ended in a state that no episode had set out from, "
            "so that nothing is known of what follows; the last transition of each was left out.",
            "Record more episodes or with a longer time limit, or use wider features.",
        )


def _outside(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    if severity := _severity(facts.outside / max(facts.transitions, 1), _OUTSIDE_SHARE):
        yield Advice(
            severity,
            "States lie outside the features' box",
            f"{facts.outside:,} of {facts.transitions:,.0f} transitions "
            f"({percent(facts.outside / facts.transitions)}) started outside. They were taken for the "
            "nearest state inside, and share its estimate.",
            "Let the box be found from the data with --box auto (box='auto'), or widen low and high of the "
            "features.",
        )


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


def _stack(evaluation: Evaluation) -> Mapping[str, Any]:
    """What held-out episodes said of the mixture; nothing where features were given, or in older files."""
    choice = evaluation.notes.get("choice") or {}
    found: Mapping[str, Any] = choice.get("stack") or {}
    return found


def _random(stack: Mapping[str, Any]) -> bool:
    """Whether J's error on held-out episodes is more than rounding, so that there is a variance to judge."""
    scale = max(abs(stack.get("least") or 0.0), abs(stack.get("most") or 0.0), math.sqrt(stack["mse"]))
    return bool(math.sqrt(stack["mse"]) > ROUNDING * scale)


def _calibration(evaluation: Evaluation) -> Iterator[Advice]:
    stack = _stack(evaluation)
    if not stack or not _random(stack):
        return
    ratio = stack["calibration"]
    if severity := _severity(max(ratio, 1.0 / ratio) if ratio > 0 else math.inf, _CALIBRATION):
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
    stack = _stack(evaluation)
    if not stack or not stack["constant_mse"] > 0 or not _random(stack):
        return
    share = stack["explained"]
    nearly_all, little, nothing = _EXPLAINED
    if share > nearly_all:
        yield Advice(
            "note",
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
    stack = _stack(evaluation)
    least, most = stack.get("least"), stack.get("most")
    if least is None or most is None:
        return
    J = evaluation.risk.mean(_some(evaluation))
    J = J[np.isfinite(J)]
    margin = max(_BEYOND * (most - least), ROUNDING * max(abs(least), abs(most)))
    beyond = (J < least - margin) | (J > most + margin)
    if severity := _severity(float(beyond.mean()) if J.size else 0.0, _BEYOND_SHARE):
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


def _heavy_tails(evaluation: Evaluation) -> Iterator[Advice]:
    found = _tails(evaluation)
    if found is None:
        return
    count, squares, fourths = found
    carried = squares**2 / fourths  # as many episodes of equal weight
    error = math.sqrt(max(1.0 / carried - 1.0 / count, 0.0))
    severity = _severity(error, _HEAVY)
    if severity is None or carried > count / _HEAVY_KURTOSIS:
        return
    yield Advice(
        severity,
        "A few episodes decide the variance",
        f"The variance of the returns rests on about {carried:.0f} of {count:,} episodes, those farthest "
        f"from the mean, and has a standard error of {percent(error)} of its size. Returns with such tails "
        "often have more in store than was seen: the variance is more likely too small than too large.",
        "Record many more episodes, or look at those few: are they what you want to know about? Intervals "
        "are too narrow for tails like these.",
    )


def _tails(evaluation: Evaluation) -> tuple[int, float, float] | None:
    """How many returns there are, and the sums of the second and fourth powers about their mean."""
    completed, returns = evaluation.summary.completed, evaluation.risk.returns
    found = None
    if completed is not None:
        found = completed.count, completed.central_sum(2), completed.central_sum(4)
    elif returns is not None:
        found = returns.count, returns.squares, returns.fourths
    scale = abs(evaluation.summary.mean_value)
    if found is None or found[0] < 2 or not found[1] > found[0] * (ROUNDING * scale) ** 2:
        return None  # no returns, or all alike
    return found


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
    middle = float(np.median(high / low))
    if severity := _severity(middle, _WIDE):
        yield Advice(
            severity,
            "The standard deviation is known only roughly",
            f"At half of the visited states the upper end of its {100 * evaluation.level:g}% interval is at "
            f"least {number(middle, 3)} times the lower one.",
            "Record more episodes: with four times as many the intervals are about half as wide. Until then "
            "quote the interval, not the number.",
        )


def _some(evaluation: Evaluation) -> Floats:
    """At most _STATES of the sampled visited states."""
    visited = evaluation.survey.visited
    return visited[:: -(-len(visited) // _STATES)]


def _minor(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    if evaluation.risk.error_bars is None:
        yield Advice(
            "warning",
            "There are no error bars",
            f"The estimate came from {facts.estimator} with {evaluation.risk.features.size:,} features, "
            "without them: nobody can tell randomness from fact in these numbers.",
            f"Use LSTD.fit(data) or `policyrisk evaluate` with at most {DENSE_MOST:,} features, as in "
            "--features tiles:50x50.",
        )
    starts, episodes = evaluation.survey.starts, evaluation.survey.episodes
    if evaluation.risk.starts is None and len(starts) < episodes:
        error = np.nanstd(evaluation.risk.mean(starts)) / math.sqrt(len(starts))
        yield Advice(
            "note",
            "The averages are over a sample of the starts",
            f"{len(starts):,} of {episodes:,} were drawn. Others would give another mean, by about "
            f"{number(float(error), 2)}, which is not in the intervals.",
            "Nothing, if that is little. Else evaluate anew with error bars, which takes all starts.",
        )
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


def _all_well(evaluation: Evaluation) -> Advice:
    summary = evaluation.summary
    stack, check = _stack(evaluation), evaluation.check
    made = {
        "visits": True,
        "variance": True,
        "condition number": math.isfinite(evaluation.risk.provenance.condition),
        "cut-off episodes": True,
        "the features' box": True,
        "heavy tails": _tails(evaluation) is not None,
        "the agreement with the returns": summary.comparable,
        "calibration and error of the mean on held-out episodes": bool(stack) and _random(stack),
        "the range of the returns": stack.get("least") is not None,
        "a test of the features": check is not None and not math.isnan(check.p_value),
    }
    *checked, last = (name for name, was in made.items() if was)
    skipped = [name for name, was in made.items() if not was]
    said = f" Not checked: {', '.join(skipped)}." if skipped else ""
    cover = (
        "The intervals still speak of randomness alone: they do not cover what these features cannot express."
        if evaluation.risk.misfit is None
        else "The intervals at states cover randomness and the choice of features, by what such choices have "
        "missed on other tasks."
    )
    behind = (summary.model or summary).episodes
    if evaluation.risk.misfit is not None:
        behind = evaluation.survey.episodes  # as for few episodes
    return Advice(
        "ok",
        "Nothing stands against these numbers",
        f"{behind:.0f} episodes stand behind the average start; "
        f"{', '.join(checked)} and {last} were checked, and none is out of the ordinary.{said}",
        f"Nothing. {cover}",
    )
