"""J̃ and Ṽ at some states, the quantities that are made of them, and their errors.

    mean J̃,   second moment M̃ = Ṽ + J̃²,   variance Ṽ,   std √Ṽ,   Sharpe ratio J̃/√Ṽ

A negative Ṽ has neither std nor ratio: they are nan, but for the std of an answer that knows what its
features miss, which is 0 then. A quantity has the gradient (a_J φ_J, a_M φ_M) in the weights, a_J and a_M
being its derivatives by J̃ and by φ_Mᵀ w_second, and so the squared standard error

    a_J² s_JJ + 2 a_J a_M s_JM + a_M² s_MM            (s: see :mod:`policyrisk.risk.error_bars`)

which is of randomness alone. Where it is known what features and their choice add (ρ and the spreads m_J and
m_V of :mod:`policyrisk.risk.mixture`), the full squared error is ρ times that and (∂q/∂J̃)² m_J +
(∂q/∂Ṽ)² m_V. Full intervals of the variance, with e that error of Ṽ, go

    from  Ṽ exp(−t e/Ṽ)  to  Ṽ exp(t e/Ṽ) or Hall's end, which is higher

Above, exp goes on along its tangent from t e = Ṽ on, to exp(1) t e, since what is known so little has no
scale of its own; where Ṽ ≤ 0 that is the end too, and 0 the beginning. Hall's end is that of
:mod:`policyrisk.risk.estimate`, α being the skewness of Ṽ over the bootstrap replicates where that is above
0, as it is where a few long episodes make most of Ṽ. Intervals of the std are their roots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, Matrix
from policyrisk._core.records import record
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.risk.error_bars import ErrorBars
from policyrisk.risk.estimate import hall, student_interval, student_quantile

VarianceMethod: TypeAlias = Literal["second-moment", "direct"]
Quantity: TypeAlias = Literal["mean", "second_moment", "variance", "std", "sharpe"]
IntervalMethod: TypeAlias = Literal["full", "student", "bootstrap"]
# The estimates at states (n, dim), in order, some at a time.
EstimatesAt: TypeAlias = "Callable[[npt.NDArray[Any]], Iterator[StateEstimates]]"
_CELLS = 2**21  # numbers that are formed at a time
Said: TypeAlias = "tuple[Floats, Floats]"  # what members say at states, and their shares, (n, m) each
TWICE = 2.0  # times its distance from the mixture: how far a draw moves to the member that it takes
_FARTHEST = 2.0  # of log V
_ROTATIONS = 0.6180339887498949, 0.41421356237309515, 0.7320508075688772  # irrational, unlike each other
Model: TypeAlias = tuple[float, Floats, Floats]  # ρ, m_J (n,) and m_V (n,)


@dataclass(frozen=True, eq=False)
class StateEstimates:
    """The estimates at n states, and the features that they come from."""

    phi_mean: Matrix  # (n, l_J)
    phi_second: Matrix  # (n, l_M)
    J: Floats  # (n,), nan where unvisited
    V: Floats  # (n,)
    episodes: Floats  # (n,): those behind the estimates, 0 where unvisited
    variance_method: VarianceMethod
    model_of: Callable[[], Model | None]  # what features add; not asked for where errors are not
    spread: Matrix | None = None  # (n, l_J): the derivative by w_J of what Ṽ has beside φ_Mᵀ w_second
    full: bool = False  # whether the model knows what features add
    members_of: Callable[[], tuple[Said, Said]] | None = None  # what the members say of J and of V
    covered: Floats | None = None  # (n,): how surely the target stays with what was logged, from here on
    _moved: list[tuple[ErrorBars, tuple[Floats, Floats]]] = field(
        default_factory=list, init=False, repr=False
    )

    def some(self, which: Bools) -> StateEstimates:
        """Those at some of the states, ``which`` (n,)."""
        kept: dict[str, Any] = {}
        for name in ("phi_mean", "phi_second", "J", "V", "episodes", "spread", "covered"):
            values = getattr(self, name)
            kept[name] = None if values is None else values[which]
        return replace(self, **kept)

    @cached_property
    def model(self) -> Model | None:
        """What features and their choice add to the errors, None where that is not known."""
        return self.model_of()

    def value(self, of: Quantity) -> Floats:
        """A quantity at each state, of shape (n,)."""
        return quantity(of, self.J, np.maximum(self.V, 0.0) if self.full and of == "std" else self.V)

    def deviations(self, bars: ErrorBars) -> tuple[Floats, Floats]:
        """What each replicate adds to J̃ and to φ_Mᵀ w_second, each of shape (n, B); worked out once."""
        if not self._moved or self._moved[0][0] is not bars:
            self._moved[:] = [(bars, bars.deviations(self.phi_mean, self.phi_second, self.spread))]
        return self._moved[0][1]

    def standard_error(self, of: Quantity, bars: ErrorBars) -> Floats:
        """Its standard error, of shape (n,), nan where unvisited."""
        a_J, a_M = self.gradient(of)
        held = bars.holds(self.gradient("variance")[0], self.phi_mean, self.phi_second)
        if (
            held.any() and self.spread is None
        ):  # Ṽ has no error there: what is left is J̃'s, as if the two were fitted apart
            a_J = np.where(held, replace(self, variance_method="direct").gradient(of)[0], a_J)
            a_M = np.where(held, 0.0, a_M)
        moved = self.deviations(bars) if bars.width else None
        s_JJ, s_JM, s_MM = bars.quadratic(self.phi_mean, self.phi_second, moved, self.spread)
        squared = a_J**2 * s_JJ + 2 * a_J * a_M * s_JM + a_M**2 * s_MM
        # Σ is positive semi-definite up to rounding, which may leave a square of −1e-20.
        return np.where(self.episodes > 0, np.sqrt(np.maximum(squared, 0.0)), np.nan)

    def interval(self, of: Quantity, level: float, method: IntervalMethod, bars: ErrorBars) -> Floats:
        """Its confidence interval, of shape (n, 2)."""
        if method == "bootstrap":
            return self._bootstrap_interval(of, level, bars)
        if of == "std" and method == "full":
            return np.sqrt(self.interval("variance", level, method, bars))
        error, behind = self.standard_error(of, bars), bars.behind(self.episodes)
        if method == "student":
            return student_interval(self.value(of), error, behind, level)
        full = self._full_error(of, error)
        if of != "variance":
            return student_interval(self.value(of), full, behind, level)
        V = np.maximum(self.V, 0.0)
        t = student_quantile(level, behind)
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 has no logarithm
            low = np.where(V > 0, V * np.exp(-t * full / V), V)
            high = np.where(t * full <= V, V * np.exp(np.minimum(t * full / V, 1.0)), np.e * t * full)
        skewed = self._full_error(of, error * hall(t, self._skewness(bars)) / t)
        return np.column_stack([low, np.fmax(high, V + t * skewed)])

    def _skewness(self, bars: ErrorBars) -> Floats:
        """That of Ṽ over the replicates, of shape (n,): 0 where it is negative, or where there are none."""
        if bars.replicates is None:
            return np.zeros(len(self.V))
        dJ, d_second = self.deviations(bars)
        moved = d_second + self.gradient("variance")[0][:, None] * dJ
        square = np.square(moved).mean(axis=1)
        cube = (moved**3).mean(axis=1)
        skewness: Floats = np.maximum(cube / np.where(square > 0, square, np.inf) ** 1.5, 0.0)
        return skewness

    def _full_error(self, of: Quantity, error: Floats) -> Floats:
        """Its error with what features and their choice add to that of randomness, of shape (n,)."""
        if self.model is None:
            raise InvalidInputError(
                'method="full" needs to know what the features miss, and this estimate does not: it was '
                'fitted with given features; use method="student", or policyrisk.evaluate'
            )
        factor, m_J, m_V = self.model
        by_J, by_V = replace(self, variance_method="direct").gradient(of)
        return np.sqrt(factor * error**2 + by_J**2 * m_J + by_V**2 * m_V)

    def gradient(self, of: Quantity) -> tuple[Floats, Floats]:
        """a_J and a_M, the derivatives of a quantity by J̃ and by φ_Mᵀ w_second, each of shape (n,)."""
        J, V, direct = self.J, self.V, self.variance_method == "direct"
        zero, one = np.zeros_like(J), np.ones_like(J)
        if of == "mean":
            return one, zero
        if of == "second_moment":
            return (2 * J if direct else zero), one
        dV_J = zero if direct else -2 * J
        if of == "variance":
            return dV_J, one
        root = np.sqrt(np.where(V > 0, V, np.nan))
        if of == "std":
            return dV_J / (2 * root), one / (2 * root)
        return one / root - J * dV_J / (2 * root**3), -J / (2 * root**3)

    def drawn(self, bars: ErrorBars) -> tuple[Floats, Floats]:
        """Draws of J and V ≥ 0, (n, B) each: one member at twice its distance, and the replicate's move.

        The draw takes the same member at every state. V moves on the log scale, up to a factor of e² either
        way.
        """
        assert self.members_of is not None
        dJ, d_second = self.deviations(bars)
        dV = d_second + self.gradient("variance")[0][:, None] * dJ
        B = dJ.shape[1]
        apart = [
            TWICE * _distances(said, shares, value)[:, member_picks(shares.mean(axis=0), B, turn)]
            for turn, ((said, shares), value) in enumerate(
                zip(self.members_of(), (self.J, self.V), strict=True)
            )
        ]
        V = np.maximum(self.V, 0.0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.exp(np.clip((apart[1] + dV) / V, -_FARTHEST, _FARTHEST))
        return self.J[:, None] + apart[0] + dJ, np.where(V > 0, V * factor, np.maximum(apart[1] + dV, 0.0))

    def _bootstrap_interval(self, of: Quantity, level: float, bars: ErrorBars) -> Floats:
        """The replicates of ranks k and B − 1 − k in order, k = ⌊B (1 − level)/2⌋, of shape (n, 2).

        A replicate with V ≤ 0 counts as std 0, and as a Sharpe ratio of ±∞ with the sign of its mean: as V
        falls to 0, that is where they go.
        """
        dJ, d_second = self.deviations(bars)  # (n, B)
        B = dJ.shape[1]
        k = int(B * (1.0 - level) / 2.0 + 1e-9)  # 1 − 0.9 is a little less than 0.1
        if k < 1:
            raise InvalidInputError(
                f"level must leave some of the {B} bootstrap replicates outside, got {level:g}; fit with "
                f"bootstrap={int(np.ceil(2.0 / (1.0 - level) - 1e-9))} or more, or pass a lower level"
            )
        direct = self.variance_method == "direct"
        J = self.J[:, None] + dJ
        V = (self.V if direct else self.value("second_moment"))[:, None] + d_second
        if not direct:
            V -= J**2
        if of in ("std", "sharpe"):
            V = np.maximum(V, 0.0)
        # An estimate that does not exist has no interval, whatever its replicates.
        exists = ~np.isnan(self.value(of))[:, None]
        return np.sort(np.where(exists, quantity(of, J, V), np.nan), axis=1)[:, [k, B - 1 - k]]


def member_picks(shares: Floats, draws: int, turn: int) -> Ints:
    """The member that each draw takes, (draws,): as often as its share says, whatever other turns take.

    >>> np.bincount(member_picks(np.array([0.25, 0.75]), 200, turn=0)).tolist()
    [50, 150]
    """
    places = (0.5 + np.arange(draws) * _ROTATIONS[turn]) % 1.0
    ends = np.cumsum(shares)
    found: Ints = np.minimum(np.searchsorted(ends, places * ends[-1], side="right"), len(shares) - 1)
    return found


def _distances(said: Floats, shares: Floats, value: Floats) -> Floats:
    """How far each member is from the mixture, (n, m), 0 where it says nothing."""
    return np.where(shares > 0, np.nan_to_num(said) - np.nan_to_num(value)[:, None], 0.0)


def changes_by_coordinate(
    values: Callable[[Floats], Floats], states: Floats, other: Ints, coordinates: Iterable[int]
) -> Iterator[tuple[int, Floats]]:
    """By how much values (n, k) at states (n, dim) change where one coordinate is another state's, each."""
    before = values(states)
    for d in coordinates:
        moved = states.copy()
        moved[:, d] = states[other, d]
        yield d, values(moved) - before


def quantity(of: Quantity, J: Floats, V: Floats) -> Floats:
    """The quantity of means J and variances V, of their shape.

    >>> quantity("sharpe", np.array([6.0, 6.0]), np.array([4.0, -4.0]))
    array([ 3., nan])
    """
    if of == "mean":
        return J
    if of == "second_moment":
        return V + J**2
    if of == "variance":
        return V
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(V)
        return root if of == "std" else J / root


@record(features="k", weights="k", supports="k")
@dataclass(frozen=True, eq=False)
class HigherMoments:
    """μ̃_3 and, where it was asked for, μ̃_4: μ̃_k(x) = φ_k(x)ᵀ w_k (:mod:`policyrisk.lstd.central_moments`).

    They have no error bars: how much an episode moves w_4 depends on how it moves all weights before it.
    """

    features: tuple[Features, ...] = ()  # φ_3, φ_4
    weights: tuple[Floats, ...] = ()  # w_3, w_4, (l_k,) each
    supports: tuple[Any, ...] = ()  # Support

    @property
    def order(self) -> int:
        """The highest of them."""
        return 2 + len(self.weights)

    def at(self, states: npt.NDArray[np.float64]) -> Floats:
        """μ̃_3, … at states (n, dim), of shape (order − 2, n); nan where the data say nothing."""
        out = np.empty((len(self.weights), len(states)))
        rows = max(_CELLS // max(phi.size for phi in self.features), 1)
        for first in range(0, len(states), rows):
            part = slice(first, first + rows)
            for k, (map_k, w, support) in enumerate(
                zip(self.features, self.weights, self.supports, strict=True)
            ):
                phi = matrix_of(map_k, states[part])
                out[k, part] = np.where(support.visited(phi), np.asarray(phi @ w), np.nan)
        return out
