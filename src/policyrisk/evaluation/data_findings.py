"""What limits an evaluation in its data: too few, cut off, elsewhere, or decided by a few episodes.

few episodes behind the estimates         the intervals are then too narrow (``risk.FEW_EPISODES``)
starts or tiles that were never visited   no estimate exists there
cut-off episodes, given-up transitions    the estimate rests on itself instead of on outcomes
states outside the features' box          they are taken for the nearest state inside
returns with heavy tails                  a few episodes decide the variance, and others would change it
missing values, a time limit              what was done about them
no error bars, sampled starts
neighbours alike, drift over the order    intervals take episodes for independent and alike
                                          (:mod:`policyrisk.evaluation.order`)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from policyrisk._core.text import number, p_value, percent, plural
from policyrisk.data import TIME_LEFT
from policyrisk.equations import DENSE_MOST
from policyrisk.evaluation.advice import SKIPPED, Advice, Seen, rule, severity_of
from policyrisk.evaluation.order import LEAST, Change, EpisodeOrder
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.draws import CLUSTERS_FEW
from policyrisk.risk.summary import ROUNDING

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

_VERY_FEW = 30  # episodes behind the middle state, or the average start: serious
_HEAVY_KURTOSIS = 4.0  # a normal distribution has 3
_SIZES = 0.0, 0.05, 0.5  # of the return's std: between the means before and after; a note, a warning, serious
_RATIOS = 1.0, 1.1, 2.0  # of the stds before and after, and of standard errors


@rule(
    "data",
    "Few episodes stand behind the estimates",
    "Record more episodes, or use fewer and wider features (for tiles:50x50, try --features tiles:25x25 or "
    "rbf:9x9; features= in Python). Until then read the map of visits beside the others.",
    checks="visits",
)
def _few_episodes(evaluation: Evaluation) -> Seen:
    summary = evaluation.summary
    behind = evaluation.at_visited[1]
    behind = behind[behind > 0]
    if not behind.size:
        return None  # without an estimate anywhere, other findings speak
    share, middle = float(np.mean(behind < FEW_EPISODES)), float(np.median(behind))
    at_start = (summary.model or summary).episodes
    severity = "warning" if at_start < FEW_EPISODES else severity_of(share, (0.0, 0.1, math.inf))
    if evaluation.risk.widening is not None:
        # Full intervals hold it; the leaves of a forest are small, but many are averaged.
        count = evaluation.survey.episodes
        share, middle, at_start = (float(min(each, count)) for each in (share, count, count))
        severity = "warning" if count < FEW_EPISODES else None
    if severity is not None and min(middle, at_start) < _VERY_FEW:
        severity = "serious"
    return severity, (
        f"{percent(share)} of the visited states have fewer than {FEW_EPISODES} episodes behind their "
        f"estimate ({middle:.0f} in the middle, {behind.min():.0f} at the fewest); the average start has "
        f"{at_start:.0f}. Intervals are too narrow there: nominal 95% intervals of the variance have covered "
        "the truth in 91% of cases with 100 episodes, in 84% with 40 and in 78% with 15."
    )


@rule(
    "data",
    "Few clusters stand behind the intervals",
    "Record more clusters (days, customers, training seeds): more episodes of these ones tell little more.",
)
def _few_clusters(evaluation: Evaluation) -> Seen:
    clusters = evaluation.clusters
    if not clusters:
        return None
    return "warning" if clusters < CLUSTERS_FEW else None, (
        f"The {evaluation.survey.episodes:,} episodes come in {clusters} clusters, and only these are taken "
        f"to be independent. Intervals are Student's with {clusters - 1} degrees of freedom, and with fewer "
        f"than {CLUSTERS_FEW} clusters they rest on means of clusters being about normal."
    )


@rule(
    "data",
    "Some starts have no estimate",
    "Record episodes that pass there, or use wider features (--features or features= with fewer tiles or "
    "bases).",
)
def _unvisited_starts(evaluation: Evaluation) -> Seen:
    summary = evaluation.summary
    return severity_of(summary.unvisited / summary.starts, (0.0, 0.01, 0.1)), (
        f"{summary.unvisited} of {plural(summary.starts, 'start')} lie where the data say "
        f"{'nothing' if evaluation.target is None else 'too little about the target'}. The averages leave "
        "them out."
    )


@rule(
    "data",
    "Part of the state space was never visited",
    "Nothing, if the policy does not go there. Otherwise start episodes there.",
)
def _unvisited_space(evaluation: Evaluation) -> Seen:
    support, share = evaluation.risk.support, evaluation.unvisited_share
    never = int(np.count_nonzero(support.feature_episodes == 0))
    if support.gram is not None or evaluation.target is not None:  # a target's pairs are another finding
        never = 0
    idle = f", and {never} of {support.feature_episodes.size} features were active in no episode"
    return "note" if share > 0 or never else None, (
        f"The data say nothing about {percent(share)} of the box that they span{idle if never else ''}. "
        "Estimates there do not exist and are left blank."
    )


@rule(
    "data",
    "Episodes were cut off before their end",
    "Record with a longer time limit. If the task has no natural end, use --discount (discount=) below 1, "
    "or, where the return up to the limit is meant, --time-limit end (time_limit='end').",
    checks="cut-off episodes",
)
def _cut_off(evaluation: Evaluation) -> Seen:
    facts = evaluation.risk.provenance
    count, episodes = facts.episodes - facts.terminated, max(facts.episodes, 1)
    # A discount leaves little of what would have come after a long episode.
    left = facts.discount ** (facts.transitions / episodes)
    severity = severity_of(left * count / episodes, (0.0, 0.05, 0.3))
    if severity and evaluation.target is not None and facts.lam == 0:
        severity = "note"  # each step counts, whatever followed
    return severity, (
        f"{count:,} of {facts.episodes:,} episodes ({percent(count / episodes)}) stopped at a time limit. "
        "The estimate itself stands in for what would have come after. The plain sample contains the "
        "terminated episodes alone, often the short and easy ones."
    )


@rule(
    "data",
    "Some last transitions were given up",
    "Record more episodes or with a longer time limit, or use wider features.",
)
def _given_up(evaluation: Evaluation) -> Seen:
    facts = evaluation.risk.provenance
    return severity_of(facts.given_up / max(facts.episodes, 1), (0.0, 0.01, 0.1)), (
        f"{plural(facts.given_up, 'cut-off episode')} ended in a state that no episode had set out from, so "
        "that nothing is known of what follows; the last transition of each was left out."
    )


@rule(
    "data",
    "States lie outside the features' box",
    "Let the box be found from the data with --box auto (box='auto'), or widen low and high of the features.",
    checks="the features' box",
)
def _outside(evaluation: Evaluation) -> Seen:
    facts = evaluation.risk.provenance
    share = facts.outside / max(facts.transitions, 1)
    return severity_of(share, (0.0, 0.01, 0.1)), (
        f"{facts.outside:,} of {facts.transitions:,.0f} transitions ({percent(share)}) started outside. The "
        "nearest state inside stands in for each, and they share its estimate."
    )


@rule(
    "data",
    "A few episodes decide the variance",
    "Record many more episodes, or look at those few: are they what you want to know about? Intervals are "
    "too narrow for tails like these.",
    checks="heavy tails",
)
def _heavy_tails(evaluation: Evaluation) -> Seen:
    completed, returns = evaluation.summary.completed, evaluation.risk.returns
    if evaluation.target is not None:
        return SKIPPED  # the returns are another policy's
    if completed is not None:
        count, squares, fourths = completed.count, completed.central_sum(2), completed.central_sum(4)
    elif returns is not None:
        count, squares, fourths = returns.count, returns.squares, returns.fourths
    else:
        return SKIPPED
    nothing = ROUNDING * abs(evaluation.summary.mean_value) / evaluation.risk.unit
    if count < 2 or not squares > count * nothing * nothing:
        return SKIPPED  # all are alike
    carried = squares**2 / fourths  # as many episodes of equal weight
    error = math.sqrt(max(1.0 / carried - 1.0 / count, 0.0))
    severity = None if carried > count / _HEAVY_KURTOSIS else severity_of(error, (math.inf, 0.3, 0.6))
    return severity, (
        f"The variance of the returns rests on about {carried:.0f} of {count:,} episodes, those farthest "
        f"from the mean, and has a standard error of {percent(error)} of its size. Returns with such tails "
        "often have more in store than was seen: the variance is more likely too small than too large."
    )


@rule(
    "data",
    "Values were missing in the data",
    "Find out why values are missing. Compare --missing drop with --missing last (missing=).",
)
def _missing_values(evaluation: Evaluation) -> Seen:
    notes = evaluation.notes
    filled, dropped = notes.get("filled_values") or 0, notes.get("dropped_episodes") or 0
    if not (filled or dropped):
        return None
    episodes = evaluation.survey.episodes + dropped
    return severity_of(dropped / episodes, (0.0, 0.01, 0.2)) or "note", (
        f"The last value known in the episode stands in for {plural(filled, 'value')} of states, and "
        f"{dropped:,} of {plural(episodes, 'episode')} ({percent(dropped / episodes)}) were left out. If "
        "episodes with missing values go differently, the numbers describe only the others."
    )


@rule("data")
def _time_limit(evaluation: Evaluation) -> Seen:
    limit = evaluation.notes.get("time_limit")
    if not limit:
        return None
    return Advice(
        "note",
        f"The time limit of {plural(limit, 'step')} is the end",
        "The numbers are of the return up to it. The time left, in steps, is the state's last coordinate, "
        f"{TIME_LEFT}.",
        "Give it where a state is asked for: all of it at the start, 0 at the end.",
    )


@rule("data")
def _no_error_bars(evaluation: Evaluation) -> Seen:
    if evaluation.risk.error_bars is not None:
        return None
    return Advice(
        "warning",
        "There are no error bars",
        f"The estimate came from {evaluation.risk.provenance.estimator} with "
        f"{evaluation.risk.features.size:,} features, without them: nobody can tell randomness from fact in "
        "these numbers.",
        f"Use LSTD{'' if evaluation.target is None else 'Q'}.fit(data) or `policyrisk evaluate` with at "
        f"most {DENSE_MOST:,} features, as in --features tiles:50x50.",
    )


@rule(
    "data",
    "The averages are over a sample of the starts",
    "Nothing, if that is little. Else evaluate anew with error bars, which takes all starts.",
)
def _sampled_starts(evaluation: Evaluation) -> Seen:
    starts, episodes = evaluation.survey.starts, evaluation.survey.episodes
    if evaluation.risk.starts is not None or len(starts) >= episodes:
        return None
    error = np.nanstd(evaluation.risk.mean(starts)) / math.sqrt(len(starts))
    return "note", (
        f"{len(starts):,} of {episodes:,} were drawn. Others would give another mean, by about "
        f"{number(float(error), 2)}, which is not in the intervals."
    )


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
        f"{number(order.correlation, 2)} with the next ({p_value(order.p_value)}). Intervals take {what} "
        f"for independent, and are too narrow. {_by_blocks(evaluation, order)}",
        f"Name what neighbours share, such as a day or a customer, with --cluster COLUMN (cluster=){finer}."
        + (f" Where no column says it, take --cluster blocks:{m}." if order.clusters is None else ""),
    )


@rule(
    "data",
    "The mean return changes over the order of the episodes",
    "Find out what changed (the plot of the returns over time shows where), and evaluate the part that you "
    "want to know about by itself.",
)
def _drift(evaluation: Evaluation) -> Seen:
    order = _testable(evaluation)
    if order is None or not order.mean.found:
        return None
    first, last = order.mean.before_and_after
    return severity_of(abs(last - first) / float(order.residuals.std()), _SIZES) or "note", (
        f"{_parts(order, order.mean, 'mean return')}. The mean of all describes neither part, and its "
        f"interval does not cover such changes. {_by_blocks(evaluation, order)}"
    )


@rule(
    "data",
    "The spread of the returns changes over the order of the episodes",
    "Find out what changed, and evaluate the part that you want to know about by itself.",
)
def _spread(evaluation: Evaluation) -> Seen:
    order = _testable(evaluation)
    if order is None or not order.spread.found:
        return None
    small, large = sorted(order.spread.before_and_after)
    return severity_of(large / small if small > 0 else math.inf, _RATIOS) or "note", (
        f"{_parts(order, order.spread, 'standard deviation')}, each about its own mean. The standard "
        "deviation of all describes neither part."
    )


def against_returns(evaluation: Evaluation) -> bool:
    """Whether something speaks against the average of the returns: few decide, few clusters, their order."""
    found = (each(evaluation) for each in (_few_clusters, _heavy_tails, _neighbours, _drift, _spread))
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
        f"{whole - change.after:,} one of {texts[1]} ({p_value(change.p_value)})"
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
