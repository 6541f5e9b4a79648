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
    redundant features, active constraint, no error bars, sampled starts
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from policyrisk._core.text import number, percent, plural
from policyrisk.equations import DENSE_MOST
from policyrisk.errors import PolicyRiskWarning
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.summary import PolicySummary

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
_SURE = 0.9973  # the level at which the estimate differs from the completed returns: three standard errors
_HARMFUL = 2.0  # of the estimator's own standard errors: its intervals then miss as often as not
_ROUNDING = 1e-6  # of the size of a number: a difference below is none
_LARGE = 0.2  # of the return's std: a difference of this size matters to anybody


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
    checks = (_disagreement, _negative, _few_episodes, _cut_off, _condition, _unvisited, _outside, _minor)
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
        "or rbf:9x9). Until then read the map of visits beside the others.",
    )


def _unvisited(evaluation: Evaluation) -> Iterator[Advice]:
    summary, support = evaluation.summary, evaluation.risk.support
    if severity := _severity(summary.unvisited / summary.starts, _MANY_STARTS):
        yield Advice(
            severity,
            "Some starts have no estimate",
            f"{summary.unvisited} of {plural(summary.starts, 'start')} lie where the data say nothing. They "
            "are left out of the averages, which speak of the others.",
            "Record episodes that pass there, or use wider features (--features with fewer tiles or bases).",
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
    yield Advice(
        "serious" if over_starts else severity or "warning",
        "The estimated variance is negative in places",
        f"At {percent(evaluation.negative_share)} of the visited states the variance comes out below 0; the "
        f"std is left blank there.{cause}",
        f"{demand} V >= 0 with --nonnegative (nonnegative_at='visited'), or give it richer features "
        "with second= in --features.",
    )


def _condition(evaluation: Evaluation) -> Iterator[Advice]:
    condition = evaluation.risk.provenance.condition
    if severity := _severity(condition, _CONDITION):
        yield Advice(
            severity,
            "The equations are ill-conditioned",
            f"Their condition number is {number(condition, 2)}: of about 16 digits "
            f"{min(round(math.log10(condition)), 16)} may be lost, and small changes of the data change the "
            "estimates a lot.",
            "Use features that overlap less: a lower degree of poly: or fourier:, narrower or fewer bases of "
            "rbf:, or tiles:. A small --ridge trades this for some bias.",
        )


def _cut_off(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    count = facts.episodes - facts.terminated
    if severity := _severity(count / max(facts.episodes, 1), _CUT_OFF_SHARE):
        yield Advice(
            severity,
            "Episodes were cut off before their end",
            f"{count:,} of {facts.episodes:,} episodes ({percent(count / facts.episodes)}) stopped at a time "
            "limit. What would have come after is taken from the estimate itself, and the plain sample knows "
            "the terminated episodes alone, often the short and easy ones.",
            "Record with a longer time limit. If the task has no natural end, use --discount below 1.",
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
            "Let the box be found from the data with --box auto, or widen low and high of the features.",
        )


def _disagreement(evaluation: Evaluation) -> Iterator[Advice]:
    """The estimator's average over the starts against the completed returns from them."""
    summary = evaluation.summary
    model, completed = summary.model, summary.completed
    if model is None or completed is None or not _comparable(summary):
        return
    m, v = summary.mean_value, summary.variance_value
    rounding = {"mean": abs(m) + math.sqrt(abs(v)), "variance": m**2 + abs(v)}
    apart: dict[str, Estimate] = {}
    for name, scale in rounding.items():
        gap = summary.gap("mean" if name == "mean" else "variance", level=_SURE)
        # A bias within the estimator's own error may be beyond doubt, and harms nobody.
        harmful = abs(gap) > max(_HARMFUL * getattr(model, name).standard_error, _ROUNDING * scale)
        if harmful and (gap.low > 0 or gap.high < 0):
            apart[name] = gap
    if not apart:
        return
    size = max(
        abs(model.mean_value - m) / math.sqrt(max(v, 1e-300)),
        abs(1.0 - model.variance_value / v) if v > 0 else math.inf,
    )
    said = "; ".join(
        f"the {name} is {number(getattr(model, name), 4)} by {summary.estimator} against "
        f"{number(getattr(summary, name), 4)} by the returns"
        + (f", {abs(gap) / gap.standard_error:.1f} standard errors apart" if gap.standard_error > 0 else "")
        for name, gap in apart.items()
    )
    why = "there are no features in them"
    if completed.cut_off:
        why = (
            f"they take from {summary.estimator} only what {completed.cut_off:,} of {completed.count:,} "
            "episodes miss, which were cut off"
        )
    direct = evaluation.risk.variance_method == "direct"
    remedy = "" if direct else " --direct often puts the variance right by itself."
    yield Advice(
        "serious" if size > _LARGE else "warning",
        "The estimate disagrees with the returns",
        f"Over the start states {said}. Both come from the same episodes, so that randomness does not "
        "explain it: the features are too coarse to tell apart the states that matter. At the start believe "
        f"the returns: {why}. At other states there is no such check, and the estimate is likely to be off "
        "there as well.",
        "Use richer features (more tiles, bases or coordinates), or a larger --lam, which leans less on the "
        f"features.{remedy}",
    )


def _comparable(summary: PolicySummary) -> bool:
    """Whether the estimator's average and the completed returns are of the same episodes, with errors."""
    return summary.model is not None and summary.model.known and summary.known and not summary.unvisited


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
            "To see what the data say without the demand, leave out --nonnegative; --direct rarely needs it.",
        )


def _all_well(evaluation: Evaluation) -> Advice:
    summary = evaluation.summary
    compared = ", and the agreement with the returns" if _comparable(summary) else ""
    return Advice(
        "ok",
        "Nothing stands against these numbers",
        f"{(summary.model or summary).episodes:.0f} episodes stand behind the average start; visits, "
        f"variance, condition number, cut-off episodes, the features' box{compared} were checked, and none "
        "is out of the ordinary.",
        "Nothing. The intervals still speak of randomness alone: they do not cover what these features "
        "cannot express.",
    )
