"""Is a new policy worse than a baseline by more than a margin? Decided by their returns, or by intervals.

With d the criterion's value of the new policy less that of the baseline, and a margin m ≥ 0, there are two
one-sided tests at α = 1 − level:

    passed       d < −m is refuted
    worse        d ≥ −m is refuted
    undecided    neither

With q = 5 %, 300 episodes of each and CVaRs that are exactly m apart, the exchanges alone let the new policy
pass in 10.5 % of the cases, both together in 3 %.

Of the two wrong verdicts only one is possible, whatever d is, so that a verdict is wrong with a probability
of at most α. The tests exchange episodes or whole clusters (:mod:`policyrisk.selection.significance`), the
new policy's returns being raised by m: they are exact where these have the baseline's distribution moved by
−m, and right for many episodes where only the criterion's values are m apart. Where the two distributions
differ in shape a policy's value and its error vary together, so the difference of both policies' own
intervals (Hall's, put together by MOVER) has to agree: the larger p-value and the wider interval count. With
more than KEPT episodes the reference is Student's distribution with the fewer episodes or clusters, less one,
as its degrees of freedom.

How many episodes would decide: with T = (d + m)/s, s falling as 1/√K, the test has a power of 80 % at

    K ((z_level + z_0.8) / T)²        if d stays as it was seen
    K ((z_level + z_0.8) s / m)²      if the policies are equal

Groups are tested by Holm's procedure, for each of the two verdicts by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from policyrisk._core.arrays import Floats, Seed
from policyrisk._core.random import generator
from policyrisk.criteria import Criterion, CVaR, MeanMinusStd, MeanMinusVariance, Quantile
from policyrisk.errors import InvalidInputError
from policyrisk.returns import RecordedReturns
from policyrisk.returns.start_distribution import Clusters
from policyrisk.risk.completed import KEPT
from policyrisk.risk.estimate import Estimate, difference
from policyrisk.selection.significance import Exchanges, exchanged_moments, exchanged_tails

Decision: TypeAlias = Literal["passed", "worse", "undecided"]
FEWEST = 4  # episodes, or clusters, of each policy
LEAST = 2  # episodes among the worst, for CVaR
_POWER = 0.8  # of the number of episodes that would decide
_MOVED = (CVaR, Quantile, MeanMinusStd, MeanMinusVariance)  # what returns raised by m raise by m


@dataclass(frozen=True, eq=False)
class Sample:
    """Completed returns of a policy's episodes."""

    returns: Floats  # (K, 2): g and c of :mod:`policyrisk.risk.completed`
    clusters: Clusters | None = None  # where episodes depend on each other
    groups: Any = None  # (K,): names, where groups are judged

    def __len__(self) -> int:
        return len(self.returns)

    def some(self, chosen: Any) -> Sample:
        """Those of some of the episodes."""
        clusters = None if self.clusters is None else Clusters.of(0, self.clusters.codes[chosen])
        return Sample(self.returns[chosen], clusters)


@dataclass(frozen=True)
class Verdict:
    """What the gate says of all episodes, or of a group."""

    name: str
    decision: Decision
    new: float  # the criterion's values
    baseline: float
    difference: Estimate  # new less baseline; ``low`` and ``high`` each hold with the level
    p_passed: float  # of d < −margin
    p_worse: float  # of d ≥ −margin
    episodes: tuple[int, int]  # of the new policy and of the baseline
    needed: tuple[int, int] | None = None  # episodes that would decide if the difference stays as it is
    needed_if_equal: tuple[int, int] | None = None  # the same if the policies are equal
    reason: str = ""  # why nothing can be said


def unknown(name: str, episodes: tuple[int, int], reason: str) -> Verdict:
    """The verdict where nothing can be said."""
    nan = math.nan
    return Verdict(name, "undecided", nan, nan, Estimate(nan), 1.0, 1.0, episodes, reason=reason)


def by_returns(
    name: str, new: Sample, baseline: Sample, criterion: Any, margin: float, level: float, seed: Seed
) -> Verdict:
    """By the policies' own returns."""
    episodes = len(new), len(baseline)
    counts = [len(each) if each.clusters is None else each.clusters.count for each in (new, baseline)]
    if min(counts) < FEWEST:
        what = "episodes" if new.clusters is None else "clusters"
        return unknown(name, episodes, f"fewer than {FEWEST} {what}: {counts[0]} and {counts[1]}")
    if isinstance(criterion, CVaR) and min(episodes) * criterion.q < LEAST:
        return unknown(name, episodes, f"fewer than {LEAST} episodes are among the worst")
    moved = margin if isinstance(criterion, _MOVED) else 0.0
    raised = new.returns + np.array([moved, 0.0])
    own = own_estimate(new, criterion, level), own_estimate(baseline, criterion, level)
    values = [each.value for each in own]
    exchanges = _exchanges(replace(new, returns=raised), baseline, criterion, level, seed)
    lead, error = values[0] - values[1] + margin, exchanges.error
    if not error > 0 or not math.isfinite(lead):
        return unknown(name, episodes, "the returns do not tell how far the values are off")
    d, T, dof = lead - margin, lead / error, min(counts) - 1.0
    if exchanges.drawn.size:
        above, below = (replace(exchanges, side=side) for side in (1, -1))
        p_passed, p_worse = above.p_value(T), below.p_value(-T)
        reach = above.reach(level), below.reach(level)
    else:
        p_passed, p_worse = float(stdtr(dof, -T)), float(stdtr(dof, T))
        reach = (float(stdtrit(dof, level)),) * 2
    low, high = d - reach[0] * error, d + reach[1] * error
    if not (isinstance(criterion, Quantile) and new.clusters is not None):
        other = by_estimates(name, own, margin, level, episodes)
        p_passed, p_worse = max(p_passed, other.p_passed), max(p_worse, other.p_worse)
        low, high = min(low, other.difference.low), max(high, other.difference.high)
    if isinstance(criterion, Quantile):  # no return may be far enough out to tell
        q, (K_1, K_2) = criterion.q, counts
        p_passed, p_worse = max(p_passed, (1 - q) ** K_1, q**K_2), max(p_worse, q**K_1, (1 - q) ** K_2)
    found = Estimate(d, error, low, high, dof)
    made = Verdict(name, "undecided", values[0], values[1], found, p_passed, p_worse, episodes)
    return judged(made, margin, level)


def by_estimates(
    name: str, values: tuple[Estimate, Estimate], margin: float, level: float, episodes: tuple[int, int]
) -> Verdict:
    """By two estimates of separate data, whose intervals hold with 2·level − 1 (MOVER)."""
    found = Estimate(values[0] - values[1], math.nan, *difference(*values))
    return by_interval(name, (values[0].value, values[1].value), found, margin, level, episodes)


def by_interval(
    name: str,
    values: tuple[float, float],
    found: Estimate,
    margin: float,
    level: float,
    episodes: tuple[int, int],
) -> Verdict:
    """By the interval of a difference, which holds with 2·level − 1."""
    if math.isnan(found.low) or math.isnan(found.high):
        return unknown(name, episodes, "an estimate has no interval")
    z = float(ndtri(level))
    errors = (found - found.low) / z, (found.high - found) / z
    lead = found + margin
    below, above = (e if e > 0 else 1e-300 for e in errors)
    p = float(ndtr(-lead / below)), float(ndtr(lead / above))
    known = Estimate(found.value, errors[0] if lead > 0 else errors[1], found.low, found.high)
    return judged(Verdict(name, "undecided", values[0], values[1], known, *p, episodes), margin, level)


def judged(
    verdict: Verdict, margin: float, level: float, alphas: tuple[float, float] | None = None
) -> Verdict:
    """The decision by the p-values, and what would decide; ``alphas`` are Holm's, 1 − level if None."""
    share = 1.0 - level
    passed, worse = alphas or (share, share)
    if verdict.reason:
        return verdict
    if verdict.p_worse <= worse:
        return replace(verdict, decision="worse", needed=None, needed_if_equal=None)
    if verdict.p_passed <= passed:
        return replace(verdict, decision="passed", needed=None, needed_if_equal=None)
    reach = float(ndtri(1.0 - min(passed, worse)) + ndtri(_POWER)) * verdict.difference.standard_error

    def more(distance: float) -> tuple[int, int] | None:
        """Episodes of both with which this distance would be seen."""
        factor = (reach / distance) ** 2 if distance else math.inf
        one, two = (factor * count for count in verdict.episodes)
        return (math.ceil(one), math.ceil(two)) if math.isfinite(factor) else None

    needed = more(verdict.difference + margin)
    return replace(verdict, decision="undecided", needed=needed, needed_if_equal=more(margin))


def by_holm(verdicts: Sequence[Verdict], margin: float, level: float) -> tuple[Verdict, ...]:
    """The verdicts on groups, of which one is wrong with a probability of at most 1 − level.

    >>> of = [Verdict(name, "undecided", 0, 0, Estimate(0, 1), 1.0, p, (9, 9)) for name, p in
    ...       {"a": 0.01, "b": 0.03, "c": 0.02}.items()]
    >>> [each.decision for each in by_holm(of, margin=0.0, level=0.95)]
    ['worse', 'worse', 'worse']
    >>> [each.decision for each in by_holm(of, margin=0.0, level=0.97)]
    ['worse', 'undecided', 'undecided']
    """
    share = 1.0 - level
    alphas = []
    for p in (np.array([getattr(each, of) for each in verdicts]) for of in ("p_passed", "p_worse")):
        order = np.argsort(p, kind="stable")
        limits = share / np.arange(len(p), 0, -1)
        refuted = int(np.cumprod(p[order] <= limits).sum())
        alpha = np.empty(len(p))
        alpha[order] = np.where(np.arange(len(p)) < refuted, limits, limits[min(refuted, len(p) - 1)])
        alphas.append(alpha)
    return tuple(
        judged(each, margin, level, (one, two)) for each, one, two in zip(verdicts, *alphas, strict=True)
    )


def own_estimate(sample: Sample, criterion: Any, level: float) -> Estimate:
    """The criterion's value with an interval of 2·level − 1: Hall's, by the influences of the clusters."""
    between, (g, c) = 2.0 * level - 1.0, sample.returns.T
    if isinstance(criterion, Quantile):
        return RecordedReturns(g).quantile(criterion.q, between)
    if isinstance(criterion, CVaR):
        recorded = RecordedReturns(g)
        value = float(recorded.cvar(criterion.q))
        short = np.maximum(recorded.ordered[recorded.rank(criterion.q) - 1] - g, 0.0)
        influences = -short / criterion.q
    else:
        d = g - g.mean()
        value, by_mean, by_variance = criterion.slopes(float(g.mean()), float(g.var(ddof=1) + c.mean()))
        influences = by_mean * d + by_variance * (d**2 + c)
    clusters = sample.clusters or Clusters.of(len(g))
    return clusters.estimate(value, influences, between)


def _exchanges(new: Sample, baseline: Sample, criterion: Any, level: float, seed: Seed) -> Exchanges:
    """The statistic of both samples beside those of exchanged episodes."""
    clusters = None
    if new.clusters is not None and baseline.clusters is not None:
        clusters = new.clusters, baseline.clusters
    rng = generator(0 if seed is None else seed) if max(len(new), len(baseline)) <= KEPT else None
    if isinstance(criterion, CVaR | Quantile):
        codes = [None, None] if clusters is None else [each.codes for each in clusters]
        pairs = zip((new, baseline), codes, strict=True)
        first, second = (RecordedReturns(each.returns[:, 0], clusters=of) for each, of in pairs)
        return exchanged_tails(first, second, criterion, level, rng)
    return exchanged_moments(new.returns, baseline.returns, criterion, rng, clusters)


def check_criterion(criterion: Criterion) -> None:
    """Raise for a criterion with a constraint, whose value alone says nothing."""
    if not isinstance(criterion, CVaR | Quantile) and not hasattr(criterion, "slopes"):
        raise InvalidInputError(
            f"criterion must have slopes(mean, variance), got {criterion!r}; make it a MomentCriterion"
        )
    if not getattr(criterion, "larger_is_better", True) or (
        hasattr(criterion, "slack") and criterion.slack(1.0, 1.0) is not None
    ):
        raise InvalidInputError(
            f"criterion must have no constraint for a gate, got {criterion!r}; pass mean, sharpe, "
            "mean-std:c, mean-variance:c, quantile:q or cvar:q"
        )
