"""Intervals that hold at all times together, for returns that come in one after the other.

An ordinary interval holds for one look at the data; who looks every day and stops at the first alarm has many
false ones. Here the chance that an interval *ever* misses the truth, however often one looks, is at most
1 − level. The returns X_1, X_2, … lie in [low, high], scaled to [0, 1] below; given those before, each has
the same distribution.

*Betting.* Against a hypothesis under which E[g_t | past] ≤ 0, with g_t ≥ −1, a gambler who stakes the
fraction f of the capital has

    K_t = mean over f of Π_{s ≤ t} (1 + f g_s),        f = 15/16, 3/4, 1/2, 1/4, …, 1/256

a supermartingale from 1, which ever reaches 1/α with probability at most α (Ville). The interval holds every
value that is not refuted at α = (1 − level)/2 on either side (Waudby-Smith and Ramdas 2024):

    mean ≤ m            g = X/m − 1
    mean ≥ m            g = (1 − X)/(1 − m) − 1
    CVaR_q ≤ c          g = (Y − y)/(c − y) − 1,      Y = z − (z − X)⁺/q,   y = z − z/q,

since CVaR_q is the largest E[Y] over z; z is the q-quantile of the returns before.

*Counts.* Where s of t returns lie below z, the likelihood ratio, mixed over p' < p by Jeffreys' prior π,

    P(X < z) ≥ p        K = ∫_0^p (p'/p)^s ((1 − p')/(1 − p))^{t−s} π(p') dp' / ∫_0^p π(p') dp'

is a supermartingale too. It bounds the chance of a return below z, and so the q-quantile, between two of the
returns in order. From above, CVaR_q = ∫_0^q Q(p) dp / q is at most the mean of the upper bounds of the
quantiles at q/8, 2q/8, …, q, each at an eighth of α.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaln, logsumexp

from policyrisk._core.arrays import Floats, as_array, as_floats, as_number, check_kind
from policyrisk._core.records import Saved, record
from policyrisk._core.text import Readable, TextTable, number, plural
from policyrisk.errors import InvalidInputError
from policyrisk.risk.estimate import as_level

_FRACTIONS = np.array([*(0.5 ** np.arange(1, 9)), 0.75, 0.9375])  # of the capital
_PARTS = 8  # quantiles that bound CVaR from above
_HALVINGS = 50  # of an interval that holds a bound


class Bounds(NamedTuple):
    """An estimate and an interval that holds at all times together."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} ({number(self.low)} to {number(self.high)})"


@record(returns="n: finite")
@dataclass(eq=False)
class ReturnMonitor(Readable, Saved):
    """Mean, quantiles, CVaR and the chance of a loss of returns, in intervals that hold at every look.

    Parameters
    ----------
    low, high
        Bounds on every return that can occur, which you must know beforehand; a return outside is an error.
    level
        The chance that an interval holds at all times together. It is that of each quantity by itself.
    returns
        The returns so far, (n,).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> monitor = ReturnMonitor(low=0.0, high=1.0)
    >>> for day in range(30):
    ...     monitor.update(rng.beta(8, 2, size=20))
    >>> print(monitor.mean)
    0.80447 (0.78808 to 0.82058)
    >>> print(monitor.probability(below=0.5))
    0.018333 (0.0045741 to 0.041507)
    """

    low: float
    high: float
    level: float = 0.95
    returns: Floats = field(default_factory=lambda: np.empty(0), repr=False)
    _kind: ClassVar[str] = "monitor"

    def __post_init__(self) -> None:
        self.low, self.high = as_number(self.low, "low"), as_number(self.high, "high")
        if not 0.0 < self.high - self.low < np.inf:
            raise InvalidInputError(
                f"low must be below high, by a number of float64, got low={self.low:g} and "
                f"high={self.high:g}; pass bounds that hold every return"
            )
        self.level = as_level(self.level)
        self.returns, given = np.empty(0), self.returns
        self.update(given)

    def update(self, returns: npt.ArrayLike) -> None:
        """Take in the returns of further episodes.

        Parameters
        ----------
        returns
            (n,), or one number; the order is that in which the episodes ended.

        Raises
        ------
        InvalidInputError
            A return is outside of [low, high], or not finite. Nothing is taken in then.
        """
        given = as_array(returns, "returns", "numbers of shape (n,), or one number")
        more = as_floats(np.atleast_1d(given), "returns", (None,))
        outside = np.flatnonzero((more < self.low) | (more > self.high))
        if outside.size:
            raise InvalidInputError(
                f"returns must lie in [{self.low:g}, {self.high:g}], the bounds of this monitor, got "
                f"{more[outside[0]]:g}; its intervals hold for returns within the bounds alone: "
                "start a monitor with wider ones"
            )
        self.returns = np.concatenate([self.returns, more])

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def mean(self) -> Bounds:
        """The mean return, as :class:`Bounds`."""
        x, log_limit = self._scaled(), self._log_limit(1)
        low = _refuted_up_to(lambda m: capital(x / m - 1.0), log_limit)
        high = 1.0 - _refuted_up_to(lambda m: capital((1.0 - x) / m - 1.0), log_limit)
        return self._bounds(x.mean() if x.size else np.nan, low, high)

    def probability(self, *, below: float) -> Bounds:
        """The chance of a return below a number.

        Parameters
        ----------
        below
            The number; returns equal to it do not count.

        Returns
        -------
        Bounds
            In [0, 1].
        """
        t, s = len(self.returns), int((self.returns < as_number(below, "below")).sum())
        log_limit = self._log_limit(1)
        high = 1.0 - _refuted_up_to(lambda p: count_capital(s, t, 1.0 - p), log_limit)
        low = _refuted_up_to(lambda p: count_capital(t - s, t, 1.0 - p), log_limit)
        return Bounds(s / t if t else np.nan, low, high)

    def quantile(self, q: float) -> Bounds:
        """The smallest z with P(return ≤ z) ≥ q.

        Parameters
        ----------
        q
            In (0, 1), chosen before looking.

        Returns
        -------
        Bounds
            Its ends are returns, or the monitor's own bounds.
        """
        q = _as_share(q)
        ordered, t = np.sort(self.returns), len(self.returns)
        limit, counts = self._log_limit(1), np.arange(t + 1)
        first = int(np.count_nonzero(count_capital(counts, t, q) >= limit))  # counts that are too few
        low = self.low if first == 0 else float(ordered[first - 1])
        value = float(np.quantile(ordered, q, method="inverted_cdf")) if t else np.nan
        return Bounds(value, low, self._quantile_high(ordered, q, limit))

    def cvar(self, q: float) -> Bounds:
        """The mean of the worst q of the returns, the smallest ones.

        Parameters
        ----------
        q
            In (0, 1), chosen before looking.

        Returns
        -------
        Bounds
            Wide until some episodes have been among the worst.
        """
        q = _as_share(q)
        x, ordered = self._scaled(), np.sort(self.returns)
        z = running_quantile(x, q)
        least = z - z / q
        excess = z - np.maximum(z - x, 0.0) / q - least
        log_limit, parts_limit = self._log_limit(1), self._log_limit(_PARTS)
        low = _refuted_up_to(lambda c: capital(excess / (c - least) - 1.0), log_limit)
        levels = q * np.arange(1, _PARTS + 1) / _PARTS
        high = np.mean([self._quantile_high(ordered, p, parts_limit) for p in levels.tolist()])
        worst = ordered[: max(int(np.ceil(q * x.size)), 1)]
        rest = q * x.size - (len(worst) - 1)
        value = (worst[:-1].sum() + rest * worst[-1]) / (q * x.size) if x.size else np.nan
        return Bounds(float(value), self.low + (self.high - self.low) * low, float(high))

    def difference(self, other: ReturnMonitor) -> Bounds:
        """The mean return of another policy's monitor taken from that of this one.

        Parameters
        ----------
        other
            Its episodes may come at any times between these. Of episodes in pairs, monitor the difference.

        Returns
        -------
        Bounds
            They hold at all times together, at the lower level of the two.
        """
        check_kind(other, "other", ReturnMonitor, "make one for the other policy")
        level = (1.0 + min(self.level, other.level)) / 2.0
        one, two = (ReturnMonitor(each.low, each.high, level, each.returns).mean for each in (self, other))
        return Bounds(one.value - two.value, one.low - two.high, one.high - two.low)

    def _blocks(self) -> list[str | TextTable]:
        rows = [
            ("mean", self.mean),
            ("5% quantile", self.quantile(0.05)),
            ("mean of the worst 5%", self.cvar(0.05)),
        ]
        cells = [
            [name, number(each.value), f"{number(each.low)} to {number(each.high)}"] for name, each in rows
        ]
        title = f"{plural(len(self), 'return')} in [{self.low:g}, {self.high:g}]"
        return [title, TextTable(["", "so far", f"{100 * self.level:g}% at all times"], cells)]

    def to_dict(self) -> dict[str, Any]:
        """Mean, 5% quantile and the mean of the worst 5% in plain values."""
        found = {"mean": self.mean, "quantile_0.05": self.quantile(0.05), "cvar_0.05": self.cvar(0.05)}
        return {
            "episodes": len(self),
            "level": self.level,
            **{k: each._asdict() for k, each in found.items()},
        }

    def _scaled(self) -> Floats:
        """The returns in [0, 1]."""
        return np.asarray((self.returns - self.low) / (self.high - self.low))

    def _log_limit(self, parts: int) -> float:
        """The logarithm of the capital that refutes, of so many bounds that must hold together."""
        return float(np.log(2.0 * parts / (1.0 - self.level)))

    def _bounds(self, value: float, low: float, high: float) -> Bounds:
        """Bounds in the scale of the returns."""
        length = self.high - self.low
        return Bounds(*(float(self.low + length * each) for each in (value, low, high)))

    def _quantile_high(self, ordered: Floats, q: float, log_limit: float) -> float:
        """The upper bound of the q-quantile of returns in order."""
        t = len(ordered)
        many = np.flatnonzero(count_capital(t - np.arange(t + 1), t, 1.0 - q) >= log_limit)
        return self.high if many.size == 0 else float(ordered[many[0] - 1])


def capital(gains: Floats) -> Floats:
    """log K after all gains, along the last axis; see the module's notation.

    >>> float(np.exp(capital(np.array([1.0, 1.0]))).round(3)), float(capital(np.empty(0)))
    (1.714, 0.0)
    """
    with np.errstate(over="ignore"):
        by_fraction = [np.log1p(f * gains).sum(axis=-1) for f in _FRACTIONS]
    return np.asarray(logsumexp(by_fraction, axis=0) - np.log(_FRACTIONS.size))


def count_capital(s: npt.ArrayLike, t: npt.ArrayLike, p: npt.ArrayLike) -> Floats:
    """log K against P ≥ p where s of t events happened; see the module's notation. It falls as s rises.

    >>> count_capital([0, 5, 10], 10, 0.5).round(2)
    array([ 5.89, -1.4 , -2.84])
    """
    s, t, p = (np.asarray(each, dtype=np.float64) for each in (s, t, p))
    with np.errstate(divide="ignore"):
        mixed = betaln(0.5 + s, 0.5 + t - s) + np.log(betainc(0.5 + s, 0.5 + t - s, p))
        prior = betaln(0.5, 0.5) + np.log(betainc(0.5, 0.5, p))
    return np.asarray(mixed - prior - s * np.log(p) - (t - s) * np.log1p(-p))


def running_quantile(x: Floats, q: float) -> Floats:
    """The q-quantile of what came before each x, in [0, 1], of the shape of x; ½ before the first.

    >>> running_quantile(np.array([0.3, 0.9, 0.1, 0.2]), 0.5)
    array([0.5, 0.3, 0.3, 0.3])
    """
    before: list[float] = []
    found = np.full(len(x), 0.5)
    for t, value in enumerate(x.tolist()):
        if before:
            found[t] = before[max(int(np.ceil(q * t)) - 1, 0)]
        insort(before, value)
    return found


def _refuted_up_to(log_capital: Callable[[float], Floats], log_limit: float) -> float:
    """The largest number in (0, 1) up to which all are refuted, 0 where none is; the capital falls."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if log_capital(middle) >= log_limit else (low, middle)
    return low


def _as_share(q: float) -> float:
    share = as_number(q, "q", 1e-100, 1.0, remedy="pass 0.05 for the worst 5 %")
    if share == 1.0:
        raise InvalidInputError("q must be below 1, got 1; pass 0.05 for the worst 5 %")
    return share
