"""What the order of the episodes says against the numbers (:mod:`policyrisk.evaluation.order`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policyrisk._core.text import number, plural
from policyrisk.evaluation.advice import SKIPPED, Advice, Seen, Severity, rule, severity_of
from policyrisk.evaluation.order import LEAST, Change, EpisodeOrder

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

_SIZES = 0.0, 0.05, 0.5  # of the return's std: between the means before and after; a note, a warning, serious
_RATIOS = 1.0, 1.1, 2.0  # of the stds before and after, and of standard errors


def _testable(evaluation: Evaluation) -> EpisodeOrder | None:
    order = evaluation.order
    return order if order is not None and order.testable else None


@rule("data", checks="the order of the episodes")
def _neighbours(evaluation: Evaluation) -> Seen:
    order = _testable(evaluation)
    if order is None and 0 < evaluation.clusters < LEAST:
        return Advice(
            "note",
            "The order of the clusters was not tested",
            f"Whether clusters that follow each other go alike shows from {LEAST} of them on; these are "
            f"{evaluation.clusters}.",
            "Nothing, if the clusters are independent of each other.",
        )
    if order is None:
        return SKIPPED
    if not order.alike:
        return None
    what, m = ("episodes" if order.clusters is None else "clusters"), order.block
    ratio = order.ratio(order.returns - order.returns.mean(), m)
    finer = "" if order.clusters is None else ", a coarser one than now"
    return Advice(
        severity_of(ratio, _RATIOS) or "note",
        f"Neighbouring {what} go alike",
        f"In their order, returns (less what their starts explain) have a correlation of "
        f"{number(order.correlation, 2)} with the next (p {_below(order.p_value)}). Intervals take {what} "
        f"for independent, and are too narrow. {_by_blocks(evaluation, order)}",
        f"Name what neighbours share, such as a day or a customer, with --cluster COLUMN (cluster=){finer}."
        + (f" Where no column says it, take --cluster blocks:{m}." if order.clusters is None else ""),
    )


@rule("data")
def _drift(evaluation: Evaluation) -> Seen:
    order = _testable(evaluation)
    if order is None:
        return SKIPPED
    if not order.mean.found:
        return None
    change, (first, last) = order.mean, order.mean.before_and_after
    return Advice(
        severity_of(abs(last - first) / float(order.residuals.std()), _SIZES) or "note",
        "The mean return changes over the order of the episodes",
        f"{_parts(order, change, 'mean return')}. The mean of all describes neither part, and its interval "
        f"does not cover such changes. {_by_blocks(evaluation, order)}",
        "Find out what changed (the plot of the returns over time shows where), and evaluate the part that "
        "you want to know about by itself.",
    )


@rule("data")
def _spread(evaluation: Evaluation) -> Seen:
    order = _testable(evaluation)
    if order is None:
        return SKIPPED
    if not order.spread.found:
        return None
    small, large = sorted(order.spread.before_and_after)
    severity: Severity | None = severity_of(large / small, _RATIOS) if small > 0 else "serious"
    return Advice(
        severity or "note",
        "The spread of the returns changes over the order of the episodes",
        f"{_parts(order, order.spread, 'standard deviation')}, each about its own mean. The standard "
        "deviation of all describes neither part.",
        "Find out what changed, and evaluate the part that you want to know about by itself.",
    )


def against_order(evaluation: Evaluation) -> bool:
    """Whether the order of the episodes speaks against the answer over the starts."""
    found = (each(evaluation) for each in (_neighbours, _drift, _spread))
    return any(isinstance(each, Advice) and each.severity != "note" for each in found)


def _parts(order: EpisodeOrder, change: Change, what: str) -> str:
    """What is so before a change and after."""
    whole = order.returns.size
    texts = [
        f"{number(value, 3)} ± {number(error, 2)}"
        for value, error in zip(change.before_and_after, change.errors, strict=True)
    ]
    return (
        f"The first {plural(change.after, 'episode')} have a {what} of {texts[0]}, the other "
        f"{whole - change.after:,} one of {texts[1]} (p {_below(change.p_value)})"
    )


def _by_blocks(evaluation: Evaluation, order: EpisodeOrder) -> str:
    """The mean's interval by blocks, beside the standard error that is shown."""
    what, m = ("episodes" if order.clusters is None else "clusters"), order.block
    if m == 1:
        return "Blocks of neighbours do not make the standard error larger."
    plain = order.error(order.returns - order.returns.mean(), 1)
    error, low, high = order.interval(evaluation.level)
    whose = "of the mean" if evaluation.target is None else "of the recorded mean"
    return (
        f"By {order.blocks} blocks of {m} consecutive {what} the standard error {whose} is "
        f"{number(error, 3)} instead of {number(plain, 3)}, and its {100 * evaluation.level:g}% interval "
        f"{number(low, 4)} to {number(high, 4)}."
    )


def _below(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
