"""The four risk criteria of the paper's introduction, mean less variance, and the tail of the return.

With m and v the mean and the variance of the return over the start distribution:

    Sharpe()                 max m / √v
    MeanMinusStd(c)          max m − c √v
    MeanMinusVariance(c)     max m − c v
    MeanVarianceAtMost(c)    max m   subject to v ≤ c
    VarianceMeanAtLeast(c)   min v   subject to m ≥ c

and of the return's whole distribution F, which :class:`policyrisk.ReturnDistribution` estimates:

    Quantile(q)              max of the smallest z with F(z) ≥ q
    CVaR(q)                  max of the mean of the worst (smallest) q of the returns

Each has a spelling, such as ``mean-std:1`` or ``cvar:0.05`` (:func:`spelled`), which
:func:`policyrisk.compare` and the command line take.

The value's standard error follows from the joint covariance of (m, v) by the derivatives that ``slopes``
gives (the delta method), and so does its interval, but for those of the Sharpe ratio and of the mean less
stds, which :class:`policyrisk.risk.summary.Moments` makes. The probability that a constraint holds is
Student's distribution function at slack / its standard error; the slack says how far the estimate is inside
the bound. A policy whose estimated variance is negative meets no criterion, and the record says so: otherwise
the worst estimate would look like the least risk. :func:`policyrisk.compare` ranks policies by one of these,
and ``MDP.improve`` makes a policy better by ``slopes`` and ``slack``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from policyrisk._core.arrays import as_number, check_kind
from policyrisk._core.text import number, percent
from policyrisk.errors import InvalidInputError, NoDistributionError
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.summary import Moments

__all__ = [
    "Assessment",
    "CVaR",
    "Criterion",
    "MeanMinusStd",
    "MeanMinusVariance",
    "MeanVarianceAtMost",
    "MomentCriterion",
    "Quantile",
    "Sharpe",
    "Slopes",
    "VarianceMeanAtLeast",
    "spelled",
]


@dataclass(frozen=True)
class Assessment:
    """A policy judged by a criterion."""

    value: Estimate
    larger_is_better: bool
    constrained: bool  # whether the criterion has a constraint
    feasible: bool  # whether the estimate meets the constraint, and its variance is not negative
    probability: float  # that the constraint holds: 1 where there is none, nan without error bars
    violation: float = 0.0  # by how much the estimate misses the bound; inf where it cannot be judged
    reason: str = ""  # why it is not feasible

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {**asdict(self), "value": self.value.to_dict()}


class Slopes(NamedTuple):
    """A function f(m, v) at a point: its value and its derivatives."""

    value: float
    by_mean: float  # ∂f/∂m
    by_variance: float  # ∂f/∂v


class Criterion(Protocol):
    """A way to judge a policy by the mean and the variance of its return, or by its distribution.

    One of mean and variance has ``slopes(mean, variance)`` as well; it is a :class:`MomentCriterion`.
    """

    def assess(self, summary: Any) -> Assessment:
        """The criterion's value, and whether its constraint holds, by a :class:`Moments` or :class:`Tail`."""
        ...


class MomentCriterion(ABC):
    """A criterion f(m, v) of mean and variance, given by its ``slopes``; a base for criteria of your own.

    The larger the better, and no constraint, unless it says so.

    Examples
    --------
    >>> class MeanMinusCube(MomentCriterion):
    ...     def slopes(self, mean, variance):
    ...         return Slopes(mean - variance**1.5, 1.0, -1.5 * variance**0.5)
    >>> import policyrisk as pr
    >>> summary = pr.LSTD(pr.Tabular(3)).fit_exact(pr.domains.walk(3, p=1.0), start=0).summary([0])
    >>> MeanMinusCube().assess(summary).value
    -3
    """

    larger_is_better: ClassVar[bool] = True

    @abstractmethod
    def slopes(self, mean: float, variance: float) -> Slopes:
        """The value and its derivatives."""

    def slack(self, mean: float, variance: float) -> Slopes | None:
        """How far the bounded quantity is inside its bound, with its derivatives; None without constraint."""
        return None

    def value(self, summary: Moments) -> Estimate:
        """The value with its error."""
        check_kind(summary, "summary", Moments, "pass risk.summary(starts)")
        return self._value(summary)

    def _value(self, summary: Moments) -> Estimate:
        return summary.delta(*self.slopes(summary.mean_value, summary.variance_value))

    def assess(self, summary: Moments) -> Assessment:
        """The value, and whether the constraint holds."""
        check_kind(summary, "summary", Moments, "pass risk.summary(starts)")
        m, v = summary.mean_value, summary.variance_value
        value, slack = self.value(summary), self.slack(m, v)
        reason = "its value does not exist" if math.isnan(value) else ""
        if v < 0:
            reason = "its estimated variance is negative"
        if slack is None:
            return Assessment(value, self.larger_is_better, False, not reason, 1.0, reason=reason)
        if reason:
            return Assessment(value, self.larger_is_better, True, False, math.nan, math.inf, reason)
        inside = summary.delta(*slack)
        reason = "" if inside >= 0 else f"it misses the bound by {number(-inside)}"
        judged = self.larger_is_better, True, not reason, inside.probability_positive
        return Assessment(value, *judged, max(-inside, 0.0), reason)


@dataclass(frozen=True)
class _WithNumber(MomentCriterion):
    """One with a number, c."""

    c: float
    _least: ClassVar[float] = 0.0
    _remedy: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "c", as_number(self.c, "c", self._least, remedy=self._remedy))


@dataclass(frozen=True)
class _OfTail:
    """A criterion of the worst q of the returns."""

    q: float
    _from: ClassVar[str]  # which estimates of a summary it reads

    def __post_init__(self) -> None:
        remedy = "pass 0.05 for the worst 5 %"
        object.__setattr__(self, "q", as_number(self.q, "q", 0.0, 1.0, open_low=True, remedy=remedy))

    def assess(self, summary: Tail) -> Assessment:
        """The value of a tail's summary; there is no constraint."""
        if not hasattr(summary, "cvar"):
            raise no_distribution(self, summary)
        return Assessment(getattr(summary, self._from)[self.q], True, False, True, 1.0)


@dataclass(frozen=True)
class Sharpe(MomentCriterion):
    """max m / √v: mean return for each unit of standard deviation.

    It is meant for positive means: where m < 0, more variance makes it larger.

    Examples
    --------
    >>> import numpy as np
    >>> Sharpe().assess(Moments(6.0, 4.0, np.diag([0.01, 0.04]), episodes=1000, level=0.95)).value
    3 ± 0.0901 (2.8231 to 3.1769)
    """

    def _value(self, summary: Moments) -> Estimate:
        return summary.sharpe

    def slopes(self, mean: float, variance: float) -> Slopes:
        """m / √v and its derivatives; where v is 0, infinite (0 where m is too) and none."""
        if variance <= 0:
            return Slopes(math.copysign(math.inf, mean) if mean else 0.0, 0.0, 0.0)
        root = math.sqrt(variance)
        return Slopes(mean / root, 1.0 / root, -0.5 * (mean / root) / variance)

    def __str__(self) -> str:
        return "Sharpe ratio, the larger the better"


@dataclass(frozen=True)
class MeanMinusStd(_WithNumber):
    """max m − c √v: mean return less c standard deviations.

    Parameters
    ----------
    c
        What a unit of std costs, c ≥ 0.

    Examples
    --------
    >>> import numpy as np
    >>> MeanMinusStd(0.5).assess(Moments(6.0, 4.0, np.diag([0.01, 0.04]), 1000, 0.95)).value.value
    5.0
    """

    _remedy: ClassVar[str] = "pass how many standard deviations to take off"

    def _value(self, summary: Moments) -> Estimate:
        return summary.less_std(self.c)

    def slopes(self, mean: float, variance: float) -> Slopes:
        """m − c √v and its derivatives; that by v is left out where v is 0."""
        root = math.sqrt(max(variance, 0.0))
        return Slopes(mean - self.c * root, 1.0, -0.5 * self.c / root if root > 0 else 0.0)

    def __str__(self) -> str:
        return f"mean{f' − {self.c:g}·std' if self.c else ''}, the larger the better"


@dataclass(frozen=True)
class MeanMinusVariance(_WithNumber):
    """max m − c v: mean return less c times its variance.

    Parameters
    ----------
    c
        What a unit of variance costs, c ≥ 0.

    Examples
    --------
    >>> import numpy as np
    >>> MeanMinusVariance(0.5).assess(Moments(6.0, 4.0, np.diag([0.01, 0.04]), 1000, 0.95)).value
    4 ± 0.141 (3.7225 to 4.2775)
    """

    _remedy: ClassVar[str] = "pass what a unit of variance costs"

    def slopes(self, mean: float, variance: float) -> Slopes:
        """m − c v and its derivatives."""
        return Slopes(mean - self.c * variance, 1.0, -self.c)

    def __str__(self) -> str:
        return f"mean − {self.c:g}·variance, the larger the better"


@dataclass(frozen=True)
class MeanVarianceAtMost(_WithNumber):
    """max m subject to v ≤ c.

    Parameters
    ----------
    c
        The largest variance allowed, c ≥ 0.

    Examples
    --------
    >>> import numpy as np
    >>> summary = Moments(6.0, 4.0, np.diag([0.01, 0.04]), 1000, 0.95)
    >>> MeanVarianceAtMost(5).assess(summary).feasible, MeanVarianceAtMost(3).assess(summary).feasible
    (True, False)
    """

    _remedy: ClassVar[str] = "pass the largest variance allowed"

    def slopes(self, mean: float, variance: float) -> Slopes:
        """m and its derivatives."""
        return Slopes(mean, 1.0, 0.0)

    def slack(self, mean: float, variance: float) -> Slopes:
        """c − v, which must not be negative, and its derivatives."""
        return Slopes(self.c - variance, 0.0, -1.0)

    def __str__(self) -> str:
        return f"mean with variance at most {self.c:g}, the larger the better"


@dataclass(frozen=True)
class VarianceMeanAtLeast(_WithNumber):
    """min v subject to m ≥ c.

    Parameters
    ----------
    c
        The smallest mean allowed.

    Examples
    --------
    >>> import numpy as np
    >>> summary = Moments(6.0, 4.0, np.diag([0.01, 0.04]), 1000, 0.95)
    >>> VarianceMeanAtLeast(5).assess(summary).feasible, VarianceMeanAtLeast(7).assess(summary).feasible
    (True, False)
    """

    larger_is_better: ClassVar[bool] = False
    _least: ClassVar[float] = -math.inf
    _remedy: ClassVar[str] = "pass the smallest mean allowed"

    def _value(self, summary: Moments) -> Estimate:
        return summary.variance

    def slopes(self, mean: float, variance: float) -> Slopes:
        """v and its derivatives."""
        return Slopes(variance, 0.0, 1.0)

    def slack(self, mean: float, variance: float) -> Slopes:
        """m − c, which must not be negative, and its derivatives."""
        return Slopes(mean - self.c, 1.0, 0.0)

    def __str__(self) -> str:
        return f"variance with mean at least {self.c:g}, the smaller the better"


@dataclass(frozen=True)
class Quantile(_OfTail):
    """max of the q-quantile of the return: what it falls short of with a probability of at most q.

    Parameters
    ----------
    q
        In (0, 1]: 0.05 for the worst 5%.

    Examples
    --------
    >>> import policyrisk as pr
    >>> found = {}
    >>> for p in (0.6, 0.8):
    ...     data = pr.domains.walk(n=10, p=p).sample(0, episodes=1000, seed=1)
    ...     found[f"p = {p}"] = pr.ReturnDistribution(pr.Tabular(10)).fit(data)
    >>> comparison = pr.compare(found, starts=[0], criterion=Quantile(0.05))
    >>> comparison.best, comparison.significance.difference.low > 0
    ('p = 0.8', True)
    """

    _from: ClassVar[str] = "quantiles"

    def __str__(self) -> str:
        return f"{percent(self.q)} quantile, the larger the better"


@dataclass(frozen=True)
class CVaR(_OfTail):
    """max of the mean of the worst (smallest) q of the returns.

    Parameters
    ----------
    q
        In (0, 1]: 0.05 for the worst 5%.

    Examples
    --------
    >>> print(CVaR(0.05))
    mean of the worst 5.0%, the larger the better
    """

    _from: ClassVar[str] = "cvar"

    def __str__(self) -> str:
        return f"mean of the worst {percent(self.q)}, the larger the better"


class Tail(Protocol):
    """What the last two criteria need of a summary: estimates by q."""

    @property
    def quantiles(self) -> dict[float, Estimate]:
        """The q-quantiles."""
        ...

    @property
    def cvar(self) -> dict[float, Estimate]:
        """The means of the worst q."""
        ...


def no_distribution(criterion: Any, got: Any) -> NoDistributionError:
    """The error of a criterion of the tail where the distribution of the return is not known."""
    named = f" {got.name}" if hasattr(got, "name") else ""
    return NoDistributionError(
        f"{criterion!r} needs the distribution of the return, got {type(got).__name__}{named}, which has "
        "mean and variance alone; evaluate with quantiles, or fit pr.ReturnDistribution(features) to the data"
    )


# How criteria are spelled: in full, or before a number.
_SPELLINGS: dict[str, Any] = {
    "mean": lambda: MeanMinusStd(0.0),
    "sharpe": Sharpe,
    "mean-std:": MeanMinusStd,
    "mean-variance:": MeanMinusVariance,
    "mean:variance<=": MeanVarianceAtMost,
    "variance:mean>=": VarianceMeanAtLeast,
    "quantile:": Quantile,
    "cvar:": CVaR,
}
SPELLED = (
    "mean, sharpe, mean-std:c, mean-variance:c, mean:variance<=c, variance:mean>=c, quantile:q and cvar:q"
)


def spelled(text: str) -> Criterion:
    """The criterion that a text spells.

    Parameters
    ----------
    text
        ``mean``, ``sharpe``, ``mean-std:1``, ``mean-variance:0.5``, ``mean:variance<=10``,
        ``variance:mean>=5``, ``quantile:0.05`` or ``cvar:0.05``.

    Returns
    -------
    Criterion
        One of this module.

    Examples
    --------
    >>> spelled("mean-std:1"), spelled("cvar:0.05"), spelled("mean:variance <= 10")
    (MeanMinusStd(c=1.0), CVaR(q=0.05), MeanVarianceAtMost(c=10.0))
    """
    check_kind(text, "criterion", str, f"write one of {SPELLED}")
    compact = text.replace(" ", "")
    for start, make in _SPELLINGS.items():
        if compact == start and not start.endswith((":", "=")):
            criterion: Criterion = make()
            return criterion
        if start.endswith((":", "=")) and compact.startswith(start):
            try:
                value = float(compact.removeprefix(start))
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise InvalidInputError(
                    f"criterion must have a number behind {start}, got {text!r}, "
                    "which is not a finite number; "
                    "write for example mean-std:1"
                )
            return make(value)  # type: ignore[no-any-return]
    raise InvalidInputError(f"criterion must be one of {SPELLED}, got {text!r}; write for example mean-std:1")


def as_criterion(criterion: Any) -> Criterion:
    """A caller's criterion, or its spelling; the Sharpe ratio for None."""
    if criterion is None:
        return Sharpe()
    if isinstance(criterion, str):
        return spelled(criterion)
    if isinstance(criterion, type) or not hasattr(criterion, "assess"):
        raise InvalidInputError(
            f'criterion must be one such as Sharpe() or MeanMinusStd(1.0), or its spelling such as "sharpe", '
            f"got {criterion!r}; make an instance"
        )
    made: Criterion = criterion
    return made
