"""What is wrong with an evaluation, and what to do about it, in plain words for whoever must act on it.

Each check looks at one way in which the numbers can mislead. It either finds nothing or gives an
:class:`Advice`: how serious it is, what was seen in numbers, and what to do (options of the command line
first, those of the library beside them). What the features and the fit say is in
:mod:`policyrisk.evaluation.fit_findings`, what the data say in :mod:`policyrisk.evaluation.data_findings`,
what a log does not say about another policy in :mod:`policyrisk.evaluation.target_findings`, and what
stands against quantiles in :mod:`policyrisk.evaluation.tail_findings`.

A check that could not be made is not called made.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from policyrisk.errors import PolicyRiskWarning
from policyrisk.evaluation import data_findings, fit_findings, tail_findings, target_findings
from policyrisk.evaluation.finding import SEVERITIES, Advice
from policyrisk.risk import FEW_EPISODES

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

__all__ = ["Advice", "advise"]


def advise(evaluation: Evaluation) -> tuple[Advice, ...]:
    """What to know before the numbers are trusted, the most serious first; one "ok" where all is well.

    It is computed once for each evaluation: ``evaluation.advice``.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=40, seed=1)
    >>> for advice in pr.evaluate(data, features="tabular").advice:
    ...     print(f"{advice.severity}: {advice.title}")
    warning: Few episodes stand behind the estimates
    """
    with warnings.catch_warnings():
        # What they would say is said here, with the remedy.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        checks = *target_findings.CHECKS, *fit_findings.CHECKS, *data_findings.CHECKS, *tail_findings.CHECKS
        found = [advice for check in checks for advice in check(evaluation)]
    if all(advice.severity == "note" for advice in found):
        found.append(_all_well(evaluation))
    return tuple(sorted(found, key=lambda advice: SEVERITIES.index(advice.severity)))


def trust(evaluation: Evaluation) -> str:
    """How far to trust the answer over the starts, in a line: the titles of what stands against it.

    Where no episode was cut off it is that of the returns themselves, and what is wrong with the estimate is
    wrong at other states alone.
    """
    against = [each for each in evaluation.advice if each.severity in ("serious", "warning")]
    fine = "as far as the intervals say"
    if not against:
        return f"{fine}; nothing stands against these numbers"
    titles = "; ".join(each.title[0].lower() + each.title[1:] for each in against)
    care = f"with {'great ' if against[0].severity == 'serious' else ''}care: {titles}"
    if any(each.severity == "serious" and each.title in target_findings.NOT_TOLD for each in against):
        care = f"none, this log cannot tell: {titles}"
    completed = evaluation.summary.completed
    if completed is None or evaluation.target is not None or evaluation.survey.cut_off:
        return care
    few = completed.count < FEW_EPISODES or any(data_findings.heavy_tails(evaluation))
    tails = any(each.severity in ("serious", "warning") for each in tail_findings.of_answer(evaluation))
    return care if few or tails else f"{fine}; at states {care}"


def _all_well(evaluation: Evaluation) -> Advice:
    summary = evaluation.summary
    stack, check = fit_findings.held_out(evaluation), evaluation.check
    judged = bool(stack) and fit_findings.is_random(stack)
    made = {
        "visits": True,
        "variance": True,
        "condition number": math.isfinite(evaluation.risk.provenance.condition),
        "cut-off episodes": True,
        "the features' box": True,
        "heavy tails": data_findings.tails(evaluation) is not None,
        "the agreement with the returns": summary.comparable,
        "calibration and error of the mean on held-out episodes": judged,
        "the range of the returns": fit_findings.range_of_returns(evaluation) is not None,
        "a test of the features": check is not None and not math.isnan(check.p_value),
    }
    if evaluation.target is not None:
        made["what was logged of the target's actions"] = True
        del made["the agreement with the returns"]
        beside = target_findings.doubly_robust(evaluation) is not None
        made["the agreement with the doubly robust figures"] = beside
        made["errors of single steps"] = "one_step" in (evaluation.notes.get("choice") or {})
    if "distribution" in evaluation.notes:
        made["the tails and thresholds of the distribution"] = evaluation.distribution is not None
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
