"""A policy in a few numbers, over a start distribution.

With weights w of the visited starts x_0 and W = Σ w, the return has

    mean      m = Σ w J̃(x_0) / W
    variance  v = Σ w Ṽ(x_0) / W + Σ w (J̃(x_0) − m)² / W            (not the mean of Ṽ)
    std       √v,        Sharpe ratio  m / √v

m and v have the gradients in (w_J, w_second)

    m   (Σ w φ_J / W,  0)
    v   (−2m Σ w φ_J / W,  Σ w φ_M / W)            for M̃
    v   (2 Σ w (J̃ − m) φ_J / W,  Σ w φ_M / W)      for the direct variance

which give their joint covariance S (2, 2): a function f of the two has standard error √(∇fᵀ S ∇f) (the delta
method). The sums add (:mod:`policyrisk.risk.start_sums`). Beside the estimates stand the plain sample mean
and variance of the data's returns: the first sanity check that anyone makes.

This average takes the starts as given and believes the features. Over the data's own starts there is more to
go by, the *completed returns* (:mod:`policyrisk.risk.completed`): the returns themselves, and the estimate
only for what cut-off episodes miss. They are then the summary, the estimator's own average stands beside them
as ``model``, and a difference of the two beyond its error is the bias of the features: the completed returns
are then to be believed. The average of the two that their joint covariance makes best is not offered, since
it is no better: over the starts of five exact tasks (40 data sets each) its error in the mean was 1.3 and 1.2
times that of the completed returns alone with 100 and 300 episodes, in the variance 1.03 and .96 times, and
its nominal 95% intervals covered the mean in 80 and 84% of the cases (94 and 96%), the variance in 82 and 88%
(92 and 96%). What it believes in the model is small errors of biased estimates.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import Readable, TextTable, number, percent, plural
from policyrisk._core.units import magnitude
from policyrisk.errors import InvalidInputError, NegativeVarianceWarning, UncoveredError
from policyrisk.risk.completed import CompletedReturns
from policyrisk.risk.estimate import Estimate, difference, ratio
from policyrisk.risk.start_sums import SampleReturns, StartSums
from policyrisk.risk.support import COVERED_LEAST

if TYPE_CHECKING:
    from policyrisk.risk.risk_function import RiskFunction

SURE = 0.9973  # the level at which the estimator differs from the completed returns: three standard errors
FEW_DECIDE = 60  # episodes that the variance is worth: below, all lognormal returns, and no 300 normal ones
ROUNDING = 1e-6  # of the size of a number: a difference below is none


@dataclass(frozen=True, eq=False)
class Moments:
    """A mean and a variance with their joint error: what std, Sharpe ratio and criteria are made of.

    Intervals are Student's. Where the ``completed`` returns that they come from are known they are Hall's for
    skewed returns (:mod:`policyrisk.risk.estimate`): those of the std are the roots of the variance's, and
    the Sharpe ratio and the mean less stds put the intervals of mean and std together (MOVER).
    """

    mean_value: float  # m
    variance_value: float  # v
    covariance: Floats  # (2, 2): S, of m and v in units; nan where there are no error bars
    episodes: float  # how many stand behind the errors
    level: float  # of the intervals
    _: KW_ONLY
    completed: CompletedReturns | None = None
    unit: float = 1.0  # of the rewards in the covariance and in the completed returns

    @classmethod
    def of(cls, moments: tuple[float, float], *others: Any, unit: float, **more: Any) -> Moments:
        """Those of m and v in units."""
        return cls(moments[0] * unit, moments[1] * unit * unit, *others, unit=unit, **more)

    def times(self, factor: float) -> Any:
        """The same for rewards that are ``factor`` times as large, a power of two."""
        m, v = self.mean_value * factor, self.variance_value * factor * factor
        return replace(self, mean_value=m, variance_value=v, unit=self.unit * factor)

    def delta(self, value: float, by_mean: float, by_variance: float) -> Estimate:
        """f(m, v) = value with ∂f/∂m = by_mean and ∂f/∂v = by_variance, as an estimate."""
        return self._delta(value, np.array([by_mean, by_variance]))

    def _delta(self, value: float, gradient: Floats, *, positive: bool = False) -> Estimate:
        gradient = gradient * [self.unit, self.unit * self.unit]
        size = magnitude(gradient)  # whose square may be no number
        gradient = gradient / size
        # S is positive semi-definite up to rounding, which may leave a square of −1e-20.
        squared = max(float(gradient @ self.covariance @ gradient), 0.0) if self.known else math.nan
        error = math.sqrt(squared) * size
        if self.completed is None or not self.known:
            return Estimate.of(value, error, self.episodes, self.level)
        skewness, dof = self.completed.shape(gradient, math.sqrt(squared))
        return Estimate.skewed(value, error, skewness, dof, self.level, positive=positive)

    @property
    def known(self) -> bool:
        """Whether there are error bars."""
        return not bool(np.isnan(self.covariance).any())

    @property
    def mean(self) -> Estimate:
        """m."""
        return self.delta(self.mean_value, 1.0, 0.0)

    @property
    def variance(self) -> Estimate:
        """v, negative where it comes out so."""
        return self._delta(self.variance_value, np.array([0.0, 1.0]), positive=True)

    @property
    def std(self) -> Estimate:
        """√v, nan where v < 0."""
        v = self.variance
        root = math.sqrt(v) if v >= 0 else math.nan
        if self.skewed and v >= 0:
            error = v.standard_error / (2 * root) if root > 0 else v.standard_error
            return Estimate(root, error, math.sqrt(max(v.low, 0.0)), math.sqrt(v.high), v.dof)
        return self.delta(root, 0.0, 0.5 / root) if root > 0 else Estimate(root)

    @property
    def sharpe(self) -> Estimate:
        """m / √v, nan unless v > 0."""
        m, std = self.mean, self.std
        if not std > 0:
            return Estimate(math.nan)
        found = self.delta(m / std, 1.0 / std, -0.5 * (m / std) / self.variance_value)
        if not self.skewed:
            return found
        low, high = ratio(m, std, self.correlation)
        # The mean over the largest std is one of the values that are not ruled out.
        far = m / std.high
        return found.reaching(min(low, far) if m > 0 else low, max(high, far) if m < 0 else high)

    def less_std(self, c: float) -> Estimate:
        """m − c √v, nan where v < 0."""
        m, std = self.mean, self.std
        if not std > 0:
            return Estimate(m - c * std)
        found = self.delta(m - c * std, 1.0, -0.5 * c / std)
        if not self.skewed:
            return found
        low, high = difference(m, std.moved(c, 0.0), self.correlation)
        return found.reaching(min(low, m - c * std.high), high)

    @property
    def skewed(self) -> bool:
        """Whether intervals are Hall's, of completed returns."""
        return self.completed is not None and self.known

    @property
    def correlation(self) -> float:
        """That of m and v; 0 where one of them has no error."""
        size = math.sqrt(max(float(self.covariance[0, 0] * self.covariance[1, 1]), 0.0))
        return min(max(float(self.covariance[0, 1]) / size, -1.0), 1.0) if size > 0 else 0.0

    def plain(self) -> dict[str, dict[str, float]]:
        """The four in plain values."""
        return {name: estimate.to_dict() for name, estimate in self.quantities().items()}

    def rows(self, *others: Moments | None) -> list[list[str]]:
        """The four as rows of a table, with values and errors of others beside them."""
        beside = [{} if each is None else each.quantities() for each in others]
        return [
            [name, *estimate.cells, *(c for q in beside for c in q.get(name, Estimate(math.nan)).cells[:2])]
            for name, estimate in self.quantities().items()
        ]

    def plain_covariance(self) -> list[list[float]]:
        """S of m and v themselves, infinite beyond the range of float64."""
        size = np.array([self.unit, self.unit * self.unit])
        with np.errstate(over="ignore"):
            found: list[list[float]] = (self.covariance * size * size[:, None]).tolist()
        return found

    def quantities(self) -> dict[str, Estimate]:
        """The four by name, in the order of a table."""
        return {"mean": self.mean, "variance": self.variance, "std": self.std, "sharpe": self.sharpe}


@dataclass(frozen=True, eq=False)
class Draws:
    """How far a mean and a variance are off in bootstrap replicates, and of which episodes these are."""

    moved: Floats  # (2, B), in units
    episodes: tuple[object, ...]  # equal for two targets that were fitted to one log with one seed


@dataclass(frozen=True, eq=False)
class PolicySummary(Moments, Readable):
    """Mean, variance, std and Sharpe ratio of the return from a start distribution.

    Over the data's own starts they are those of the completed returns, and ``model`` has the same four as the
    estimator's average over these starts; over given starts they are the estimator's, and ``model`` is None.
    ``sample`` has them from the plain returns of the data's terminated episodes.
    """

    starts: int  # rows of the start distribution
    unvisited: int  # those the data say nothing about: the estimator's average leaves them out
    negative: int  # visited starts where Ṽ < 0
    discount: float
    estimator: str
    returns: SampleReturns | None
    cut_off: int  # episodes of the data that did not terminate: they have no whole return
    _: KW_ONLY
    model: Moments | None = None
    joint: Floats | None = None  # (4, 4): the covariance of (m, v) and the model's, nan without error bars
    draws: Draws | None = None  # of (m, v), where there are replicates
    covered: float | None = None  # how surely a target stays with what another policy logged, at the least

    @property
    def sample(self) -> Moments | None:
        """The plain sample moments, None where the estimate did not come from data."""
        r = self.returns
        if r is None:
            return None
        completed = self.completed if self.covered is None else None
        if completed is not None and completed.count == r.count:  # then the two are one
            known: Any = self.covariance, r.count, self.level
            return Moments.of((r.mean, r.variance), *known, completed=self.completed, unit=self.unit)
        return Moments.of((r.mean, r.variance), r.covariance(), r.count, self.level, unit=self.unit)

    def gap(self, of: Literal["mean", "variance"], level: float | None = None) -> Estimate:
        """The model's mean or variance less the completed one, with the error of this difference.

        Both come from the same episodes, and most of their randomness is one and the same. The interval is at
        ``level``, the summary's own where None.
        """
        if self.model is None or self.joint is None or self.completed is None:
            raise InvalidInputError(
                "gap needs the completed returns, got a summary over given starts; call risk.summary()"
            )
        k = ("mean", "variance").index(of)
        pairs = (self.mean_value, self.model.mean_value), (self.variance_value, self.model.variance_value)
        own, models = pairs[k]
        by = np.eye(4)[k + 2] - np.eye(4)[k]
        error = math.sqrt(max(float(by @ self.joint @ by), 0.0))
        skewness, dof = self.completed.shape(by, error)
        error *= self.unit * (self.unit if of == "variance" else 1.0)
        return Estimate.skewed(models - own, error, skewness, dof, self.level if level is None else level)

    @property
    def comparable(self) -> bool:
        """Whether the model and the completed returns are of the same episodes, with errors."""
        return self.model is not None and self.model.known and self.known and not self.unvisited

    @property
    def apart(self) -> dict[str, Estimate]:
        """The gaps of mean and variance that are beyond randomness, at the level ``SURE``, and rounding."""
        if not self.comparable:
            return {}
        m, v = abs(self.mean_value), abs(self.variance_value)
        gaps = {"mean": self.gap("mean", SURE), "variance": self.gap("variance", SURE)}
        size = {"mean": m + math.sqrt(v), "variance": m * m + v}
        return {
            of: gap
            for of, gap in gaps.items()
            if abs(gap) > ROUNDING * size[of] and (gap.low > 0 or gap.high < 0)
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to use the numbers."""
        notes, completed = [], self.completed
        if self.unvisited:
            why = "were not visited by the data" if self.covered is None else "have too few data behind them"
            notes.append(
                f"{self.unvisited} of {plural(self.starts, 'start')} {why} and are left out"
                f"{'' if completed is None else f' by {self.estimator}'}; the numbers speak of the others"
            )
        if self.covered is not None:
            notes.append("the sample is of the policy that was recorded, not of the target")
        if self.covered is not None and self.covered < 1.0:
            notes.append(
                f"up to {percent(1.0 - self.covered)} of the target's probability has no data behind it: it "
                "would take actions that were never logged, and is estimated without them"
            )
        if self.variance_value < 0:
            notes.append(
                "the variance is negative, so that std and Sharpe ratio do not exist; demand V >= 0 with "
                "nonnegative_at=, or use other features"
            )
        elif self.negative:
            notes.append(f"the variance is negative at {plural(self.negative, 'start')} taken alone")
        if completed is not None and self.covered is None:
            return (*notes, *self._about_completed(completed))
        if self.known:
            notes.append(
                "intervals cover the limit of the estimator, not the bias of its features, and "
                + ("take the starts as given" if completed is None else "hold the randomness of the starts")
            )
        if self.cut_off:
            notes.append(
                f"{plural(self.cut_off, 'episode')} cut off: with cut-off episodes that limit differs from "
                "the exact projected equations', and the sample is of the terminated ones alone"
            )
        return tuple(notes)

    def _about_completed(self, completed: CompletedReturns) -> Iterator[str]:
        if completed.cut_off:
            yield (
                f"{completed.cut_off} of {plural(completed.count, 'episode')} cut off: their returns are "
                f"completed by {self.estimator}'s estimate where they were cut off; the sample is of the "
                "terminated ones alone"
            )
        if completed.clusters is not None:
            yield (
                f"{plural(completed.clusters.size, 'cluster')} of episodes are taken to be independent, not "
                f"the {plural(completed.count, 'episode')}"
            )
        if completed.shortened:
            yield (
                f"{plural(completed.shortened, 'episode')} cut off where the data say nothing: completed "
                "from the last state before, as if such episodes went on like those that did not get so far"
            )
        if completed.unknown:
            yield (
                f"{plural(completed.unknown, 'episode')} of states that the data say nothing about: left out"
            )
        if self.known and self.variance_value > 0 and completed.effective_episodes < FEW_DECIDE:
            yield (
                f"few episodes decide the spread: it is worth about {completed.effective_episodes:.0f} equal "
                f"ones of {completed.count}, so that intervals of variance, std and Sharpe ratio may cover "
                "less often than they say"
            )
        if self.apart:
            differ = "differ" if len(self.apart) > 1 else "differs"
            yield (
                f"the {' and the '.join(self.apart)} by {self.estimator} {differ} from these by more than "
                "randomness explains, so that its features are biased: believe the completed returns"
            )
        if self.known:
            yield (
                "intervals hold the randomness of the starts and of the returns; "
                + (
                    f"the bias of {self.estimator}'s features is in what it completes, and not in them"
                    if completed.cut_off
                    else "no features are in them"
                )
            )

    def _blocks(self) -> list[str | TextTable]:
        columns: dict[str, Moments | None] = {self.estimator: self, "sample": self.sample}
        if self.model is not None:
            columns = {"completed": self, self.estimator: self.model, "sample": self.sample}
        first, *others = columns
        header = ["", first, "std error", f"{self.level:.4g} interval"]
        header += [text for name in others for text in (name, "std error")]
        behind = "" if self.returns is None else f", sample of {plural(self.returns.count, 'return')}"
        used = plural(self.starts - (self.unvisited if self.completed is None else 0), "start")
        title = f"return from {used}, discount {self.discount:g}{behind}"
        table = TextTable(header, self.rows(*list(columns.values())[1:]))
        return [title, table, *(f"note: {note}" for note in self.notes)]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        sample: dict[str, Any] | None = None
        if self.returns is not None and self.sample is not None:
            sample = {"count": self.returns.count, **self.sample.plain()}
        names = ["level", "episodes", "starts", "unvisited", "negative", "discount", "estimator", "cut_off"]
        names += [] if self.covered is None else ["covered"]
        counts = ["count", "cut_off", "shortened", "unknown"]
        return {
            **self.plain(),
            "covariance": self.plain_covariance(),
            "model": self.model and self.model.plain(),
            "completed": self.completed and {name: getattr(self.completed, name) for name in counts},
            "sample": sample,
            **{name: getattr(self, name) for name in names},
            "notes": list(self.notes),
        }


def summarise(
    risk: RiskFunction, sums: StartSums, completed: CompletedReturns | None, level: float
) -> PolicySummary:
    """The summary of the estimates at starts, and of the completed returns from the same starts if given."""
    bars, source, method = risk.error_bars, risk.provenance, risk.variance_method
    gradients = sums.gradients(method) if sums.weight > 0 else None
    covariance = np.full((2, 2), np.nan)
    if bars is not None and gradients is not None:
        covariance = bars.covariance(*gradients)
    episodes = sums.episodes / sums.weight if sums.weight > 0 else math.nan
    if bars is not None and bars.clusters:
        episodes = min(episodes, float(bars.clusters))
    moments = model = Moments.of(sums.moments, covariance, episodes, level, unit=risk.unit)
    joint, covered = None, _covered(sums)
    if completed is not None and completed.usable:
        joint = completed.covariance(bars, gradients if covered is None else None)
        own = completed.mean, completed.variance
        known: Any = joint[:2, :2], completed.count, level
        moments = Moments.of(own, *known, completed=completed, unit=risk.unit)
    if moments.variance_value < 0:
        warnings.warn(
            f"the variance over the start distribution is negative, {number(moments.variance_value)}, so "
            "that its std is nan; demand V >= 0 with nonnegative_at=, or use other features",
            NegativeVarianceWarning,
            stacklevel=3,
        )
    return PolicySummary(
        **vars(moments),
        starts=sums.count,
        unvisited=sums.unvisited,
        negative=sums.negative,
        discount=source.discount,
        estimator=source.estimator,
        returns=risk.returns,
        cut_off=source.episodes - source.terminated if risk.returns is not None else 0,
        model=None if joint is None or covered is not None else model,
        joint=joint if covered is None else None,
        draws=None if gradients is None else _draws(risk, gradients, moments.completed),
        covered=covered,
    )


def _draws(
    risk: RiskFunction, gradients: tuple[Floats, Floats], completed: CompletedReturns | None
) -> Draws | None:
    bars, source = risk.error_bars, risk.provenance
    if bars is None or bars.key is None or (completed is not None and completed.draws is None):
        return None
    moved = bars.drawn(*gradients) if completed is None else completed.deviations(bars)
    log = source.episodes, source.terminated, source.transitions + source.dropped, risk.returns
    return Draws(moved, (bars.key, bars.draws, *log))


def _covered(sums: StartSums) -> float | None:
    """How surely a target stays with what was logged, on average over starts; too little is an error.

    None for the policy that was recorded itself.
    """
    if sums.target_weight == 0:
        return None
    covered = sums.covered / sums.target_weight
    if covered < COVERED_LEAST:
        raise UncoveredError(
            f"the target takes actions that were never logged, on the way from these {sums.count} starts "
            f"{number(1.0 - covered, 2)} times on average or more, and at most {1.0 - COVERED_LEAST:g} is "
            "accepted; see risk.covered(x), gather data of a policy that takes them, or use coarser features"
        )
    return covered
