"""What the data say against an evaluation: too few, cut off, elsewhere, or decided by a few episodes.

few episodes behind the estimates         the intervals are then too narrow (``risk.FEW_EPISODES``)
starts or tiles that were never visited   no estimate exists there
cut-off episodes, given-up transitions    the estimate rests on itself instead of on outcomes
states outside the features' box          they are taken for the nearest state inside
returns with heavy tails                  a few episodes decide the variance, and others would change it
missing values, a time limit              what was done about them
no error bars, sampled starts
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from policyrisk._core.text import number, percent, plural
from policyrisk.equations import DENSE_MOST
from policyrisk.evaluation.finding import Advice, severity_of
from policyrisk.risk import FEW_EPISODES
from policyrisk.risk.summary import ROUNDING
from policyrisk.trajectories import TIME_LEFT

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

# From where on a finding is worth a note, a warning, or is serious. They are rules of thumb.
_FEW_SHARE = (0.0, 0.1, math.inf)  # visited states with fewer than FEW_EPISODES episodes behind them
_VERY_FEW = 30  # episodes behind the middle state, or the average start: serious
_CUT_OFF_SHARE = (0.0, 0.05, 0.3)  # episodes
_OUTSIDE_SHARE = (0.0, 0.01, 0.1)  # transitions
_GIVEN_UP_SHARE = (0.0, 0.01, 0.1)  # episodes
_MANY_STARTS = (0.0, 0.01, 0.1)  # starts that were never visited
_DROPPED_SHARE = (0.0, 0.01, 0.2)  # episodes that were left out, with values missing
_HEAVY = (math.inf, 0.3, 0.6)  # standard error of the variance, relative: eleven and three episodes decide it
_HEAVY_KURTOSIS = 4.0  # a normal distribution has 3


def _few_episodes(evaluation: Evaluation) -> Iterator[Advice]:
    summary = evaluation.summary
    behind = evaluation.at_visited[1]
    behind = behind[behind > 0]
    if not behind.size:
        return  # without an estimate anywhere, other findings speak
    share, middle = float(np.mean(behind < FEW_EPISODES)), float(np.median(behind))
    at_start = (summary.model or summary).episodes
    severity = "warning" if at_start < FEW_EPISODES else severity_of(share, _FEW_SHARE)
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
    if severity := severity_of(summary.unvisited / summary.starts, _MANY_STARTS):
        yield Advice(
            severity,
            "Some starts have no estimate",
            f"{summary.unvisited} of {plural(summary.starts, 'start')} lie where the data say "
            f"{'nothing' if evaluation.target is None else 'too little about the target'}. They are left out "
            "of the averages, which speak of the others.",
            "Record episodes that pass there, or use wider features (--features or features= with fewer "
            "tiles or bases).",
        )
    share = evaluation.unvisited_share
    never = int(np.count_nonzero(support.feature_episodes == 0))
    if support.gram is not None or evaluation.target is not None:  # a target's pairs are another finding
        never = 0
    if share > 0 or never:
        idle = f", and {never} of {support.feature_episodes.size} features were active in no episode"
        yield Advice(
            "note",
            "Part of the state space was never visited",
            f"The data say nothing about {percent(share)} of the box that they span{idle if never else ''}. "
            "Estimates there do not exist and are left blank.",
            "Nothing, if the policy does not go there. Otherwise start episodes there.",
        )


def _cut_off(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    count = facts.episodes - facts.terminated
    # A discount leaves little of what would have come after a long episode.
    left = facts.discount ** (facts.transitions / max(facts.episodes, 1))
    if severity := severity_of(left * count / max(facts.episodes, 1), _CUT_OFF_SHARE):
        by_steps = evaluation.target is not None and facts.lam == 0  # each step counts, whatever followed
        yield Advice(
            "note" if by_steps else severity,
            "Episodes were cut off before their end",
            f"{count:,} of {facts.episodes:,} episodes ({percent(count / facts.episodes)}) stopped at a time "
            "limit. What would have come after is taken from the estimate itself, and the plain sample knows "
            "the terminated episodes alone, often the short and easy ones.",
            "Record with a longer time limit. If the task has no natural end, use --discount (discount=) "
            "below 1, or, where the return up to the limit is meant, --time-limit end (time_limit='end').",
        )
    if severity := severity_of(facts.given_up / max(facts.episodes, 1), _GIVEN_UP_SHARE):
        yield Advice(
            severity,
            "Some last transitions were given up",
            f"{plural(facts.given_up, 'cut-off episode')} ended in a state that no episode had set out from, "
            "so that nothing is known of what follows; the last transition of each was left out.",
            "Record more episodes or with a longer time limit, or use wider features.",
        )


def _outside(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    if severity := severity_of(facts.outside / max(facts.transitions, 1), _OUTSIDE_SHARE):
        yield Advice(
            severity,
            "States lie outside the features' box",
            f"{facts.outside:,} of {facts.transitions:,.0f} transitions "
            f"({percent(facts.outside / facts.transitions)}) started outside. They were taken for the "
            "nearest state inside, and share its estimate.",
            "Let the box be found from the data with --box auto (box='auto'), or widen low and high of the "
            "features.",
        )


def heavy_tails(evaluation: Evaluation) -> Iterator[Advice]:
    """Whether a few episodes decide the variance of the returns."""
    found = tails(evaluation)
    if found is None:
        return
    count, squares, fourths = found
    carried = squares**2 / fourths  # as many episodes of equal weight
    error = math.sqrt(max(1.0 / carried - 1.0 / count, 0.0))
    severity = severity_of(error, _HEAVY)
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


def tails(evaluation: Evaluation) -> tuple[int, float, float] | None:
    """How many returns there are, and the sums of the second and fourth powers about their mean."""
    completed, returns = evaluation.summary.completed, evaluation.risk.returns
    if evaluation.target is not None:
        return None  # the returns are another policy's
    found = None
    if completed is not None:
        found = completed.count, completed.central_sum(2), completed.central_sum(4)
    elif returns is not None:
        found = returns.count, returns.squares, returns.fourths
    scale = abs(evaluation.summary.mean_value)
    if found is None or found[0] < 2 or not found[1] > found[0] * (ROUNDING * scale) ** 2:
        return None  # no returns, or all alike
    return found


def _as_asked(evaluation: Evaluation) -> Iterator[Advice]:
    """What was done to the data because someone asked for it."""
    notes = evaluation.notes
    filled, dropped = notes.get("filled_values") or 0, notes.get("dropped_episodes") or 0
    if filled or dropped:
        all_of_them = evaluation.survey.episodes + dropped
        severity = severity_of(dropped / all_of_them, _DROPPED_SHARE) or "note"
        yield Advice(
            severity,
            "Values were missing in the data",
            f"{plural(filled, 'value')} of states that the last one known in the episode stands for, and "
            f"{dropped:,} of {plural(all_of_them, 'episode')} ({percent(dropped / all_of_them)}) that were "
            "left out. If episodes with missing values go differently, the numbers are of the others.",
            "Find out why values are missing. Compare --missing drop with --missing last (missing=).",
        )
    if notes.get("time_limit"):
        yield Advice(
            "note",
            f"The time limit of {plural(notes['time_limit'], 'step')} is the end",
            "The numbers are of the return up to it. The time left, in steps, is the state's last "
            f"coordinate, {TIME_LEFT}.",
            "Give it where a state is asked for: all of it at the start, 0 at the end.",
        )


def _minor(evaluation: Evaluation) -> Iterator[Advice]:
    facts = evaluation.risk.provenance
    if evaluation.risk.error_bars is None:
        yield Advice(
            "warning",
            "There are no error bars",
            f"The estimate came from {facts.estimator} with {evaluation.risk.features.size:,} features, "
            "without them: nobody can tell randomness from fact in these numbers.",
            f"Use LSTD{'' if evaluation.target is None else 'Q'}.fit(data) or `policyrisk evaluate` with "
            f"at most {DENSE_MOST:,} features, as in --features tiles:50x50.",
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


CHECKS = _few_episodes, _unvisited, _cut_off, _outside, heavy_tails, _as_asked, _minor
