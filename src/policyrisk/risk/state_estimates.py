"""J̃ and Ṽ at some states, the quantities that are made of them, and their errors.

    mean J̃,   second moment M̃ = Ṽ + J̃²,   variance Ṽ,   std √Ṽ,   Sharpe ratio J̃/√Ṽ

A negative Ṽ has neither std nor ratio: they are nan, but for the std of an answer that knows what its
features miss, which is 0 then. A quantity q has the gradient (a_J φ_J, a_M φ_M) in the weights, with
a_J = ∂q/∂J̃ + ∂q/∂Ṽ · ∂Ṽ/∂J̃ and a_M = ∂q/∂Ṽ, and so the squared standard error

    a_J² s_JJ + 2 a_J a_M s_JM + a_M² s_MM            (s: see :mod:`policyrisk.risk.draws`)

which is of randomness alone. Where it is known what features and their choice add, full intervals are read
off draws J̃ + E_J, Ṽ exp(E_V/Ṽ) (:mod:`policyrisk.risk.mixture`). With e the root mean square of a quantity's
deviations in the draws they are value ± t e, and for the variance

    from  Ṽ (1 − t e/3Ṽ)₊³  to  Ṽ exp(t e/Ṽ)

Below, that is a normal interval of the cube root, whose distribution is nearly normal where the variance's is
a χ² (Wilson and Hilferty 1931), and 0 where t e is three times the value. Above, exp goes
on along its tangent from t e = Ṽ on, to exp(1) t e, since what is known so little has no scale of its own;
where Ṽ ≤ 0 that is the end too, and 0 the beginning. Intervals of the std are their roots, those of the ratio
are made of the mean's and the std's (MOVER, :mod:`policyrisk.risk.estimate`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, Matrix, check_choice
from policyrisk._core.records import record
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.risk.draws import ErrorBars
from policyrisk.risk.estimate import ratio_ends, student_interval, student_quantile

VarianceMethod: TypeAlias = Literal["second-moment", "direct"]
Quantity: TypeAlias = Literal["mean", "second_moment", "variance", "std", "sharpe"]
IntervalMethod: TypeAlias = Literal["full", "student", "bootstrap"]
# The estimates at states (n, dim), in order, some at a time.
EstimatesAt: TypeAlias = "Callable[[npt.NDArray[Any]], Iterator[StateEstimates]]"
_OF_DISTRIBUTIONS = "cdf", "cvar", "probability", "quantile"
_CELLS = 2**21  # numbers that are formed at a time
# What members say at states, whether they know them, (n, m) each, and their shares (m,).
Said: TypeAlias = "tuple[Floats, Bools, Floats]"
TWICE = 2.0  # times its distance from the mixture: how far a draw moves to the member that it takes
_LEAST_SHARE = 1e-9  # of members that know a state
_FARTHEST = 2.0  # of log V
_ROTATIONS = 0.6180339887498949, 0.41421356237309515, 0.7320508075688772  # irrational, unlike each other


@dataclass(frozen=True, eq=False)
class StateEstimates:
    """The estimates at n states, and the features that they come from."""

    phi_mean: Matrix  # (n, l_J)
    phi_second: Matrix  # (n, l_M)
    J: Floats  # (n,), nan where unvisited
    V: Floats  # (n,)
    episodes: Floats  # (n,): those behind the estimates, 0 where unvisited
    variance_method: VarianceMethod
    spread: Matrix | None = None  # (n, l_J): the derivative by w_J of what Ṽ has beside φ_Mᵀ w_second
    widening: tuple[float, float] | None = None  # c_J, c_V, where it is known what features add
    members_of: Callable[[], tuple[Said, Said]] | None = None  # what the members say of J and of V
    covered: Floats | None = None  # (n,): how surely the target stays with what was logged, from here on
    sampling: Floats | None = (
        None  # (3, n): squares of J̃'s and Ṽ's errors by actions that were drawn, product
    )
    _moved: list[tuple[ErrorBars, tuple[Floats, Floats]]] = field(
        default_factory=list, init=False, repr=False
    )
    _taken: list[tuple[ErrorBars, tuple[Floats, Floats]]] = field(
        default_factory=list, init=False, repr=False
    )

    def some(self, which: Bools) -> StateEstimates:
        """Those at some of the states, ``which`` (n,)."""

        def members() -> tuple[Said, Said]:
            assert self.members_of is not None
            first, second = ((said[which], known[which], a) for said, known, a in self.members_of())
            return first, second

        kept: dict[str, Any] = {"sampling": None if self.sampling is None else self.sampling[:, which]}
        kept["members_of"] = None if self.members_of is None else members
        for name in ("phi_mean", "phi_second", "J", "V", "episodes", "spread", "covered"):
            values = getattr(self, name)
            kept[name] = None if values is None else values[which]
        return replace(self, **kept)

    def value(self, of: Quantity) -> Floats:
        """A quantity at each state, of shape (n,)."""
        return quantity(of, self.J, np.maximum(self.V, 0.0) if self.widening and of == "std" else self.V)

    def deviations(self, bars: ErrorBars) -> tuple[Floats, Floats]:
        """What each replicate adds to J̃ and to φ_Mᵀ w_second, each of shape (n, B); worked out once."""
        if not self._moved or self._moved[0][0] is not bars:
            self._moved[:] = [(bars, bars.deviations(self.phi_mean, self.phi_second, self.spread))]
        return self._moved[0][1]

    def standard_error(self, of: Quantity, bars: ErrorBars) -> Floats:
        """Its standard error, of shape (n,), nan where unvisited."""
        by_J, a_M = self.slopes(of)
        by_weights = self._by_mean
        held = bars.holds(by_weights, self.phi_mean, self.phi_second)
        if held.any() and self.spread is None:
            # Ṽ has no error there: what is left is J̃'s, as if the two were fitted apart
            by_weights, a_M = np.where(held, 0.0, by_weights), np.where(held, 0.0, a_M)
        a_J = by_J + a_M * by_weights
        moved = self.deviations(bars) if bars.width else None
        s_JJ, s_JM, s_MM = bars.quadratic(self.phi_mean, self.phi_second, moved, self.spread)
        squared = a_J**2 * s_JJ + 2 * a_J * a_M * s_JM + a_M**2 * s_MM
        if self.sampling is not None:
            of_J, of_V, both = self.sampling
            squared = squared + by_J**2 * of_J + a_M**2 * of_V + 2 * by_J * a_M * both
        # Σ is positive semi-definite up to rounding, which may leave a square of −1e-20.
        return np.where(self.episodes > 0, np.sqrt(np.maximum(squared, 0.0)), np.nan)

    def interval(self, of: Quantity, level: float, method: IntervalMethod, bars: ErrorBars) -> Floats:
        """Its confidence interval, of shape (n, 2)."""
        if method == "bootstrap":
            return self._bootstrap_interval(of, level, bars)
        if method == "full":
            return self._full_interval(of, level, bars)
        behind = bars.behind(self.episodes)
        return student_interval(self.value(of), self.standard_error(of, bars), behind, level)

    def _full_interval(self, of: Quantity, level: float, bars: ErrorBars) -> Floats:
        if self.widening is None:
            raise InvalidInputError(
                'method="full" needs to know what the features miss, and this estimate does not: it was '
                'fitted with given features; use method="student", or policyrisk.evaluate'
            )
        if of == "std":
            return np.sqrt(self._full_interval("variance", level, bars))
        E_J, E_V = self.moves(bars)
        if of == "sharpe":
            ends = [self._full_interval(each, level, bars).T for each in ("mean", "std")]
            together = np.sqrt(np.square(E_J).mean(axis=1) * np.square(E_V).mean(axis=1))
            with np.errstate(divide="ignore", invalid="ignore"):
                correlation = np.nan_to_num((E_J * E_V).mean(axis=1) / together)
                std = np.sqrt(self.V)
                return np.column_stack(ratio_ends((self.J, *ends[0]), (std, *ends[1]), correlation))
        behind = bars.behind(self.episodes)
        if of != "variance":
            error = _rms(self.drawn_deviations(of, bars))
            return student_interval(self.value(of), error, behind, level)
        V, t = np.maximum(self.V, 0.0), student_quantile(level, behind)
        reach = np.where(self.episodes > 0, t * _rms(E_V), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 has no logarithm
            low = np.where(V > 0, V * np.maximum(1.0 - reach / (3.0 * V), 0.0) ** 3, V)
            high = np.where(reach <= V, V * np.exp(np.minimum(reach / V, 1.0)), np.e * reach)
        return np.column_stack([low, high])

    def slopes(self, of: Quantity) -> tuple[Floats, Floats]:
        """The derivatives of a quantity by J̃ and by Ṽ, each of shape (n,)."""
        J, V = self.J, self.V
        zero, one = np.zeros_like(J), np.ones_like(J)
        if of == "mean":
            return one, zero
        if of == "second_moment":
            return 2 * J, one
        if of == "variance":
            return zero, one
        root = np.sqrt(np.where(V > 0, V, np.nan))
        return (zero, one / (2 * root)) if of == "std" else (one / root, -J / (2 * root**3))

    @property
    def _by_mean(self) -> Floats:
        """∂Ṽ/∂J̃, of shape (n,)."""
        return np.zeros_like(self.J) if self.variance_method == "direct" else -2 * self.J

    def moves(self, bars: ErrorBars) -> tuple[Floats, Floats]:
        """E_J and E_V, what each draw adds to J̃ and to Ṽ, (n, B) each.

        It is the replicate's move, of randomness alone, unless it is known what features add: then it is
        widened, and the draw takes a member besides, the same one at every state. It is worked out once.
        """
        if not self._taken or self._taken[0][0] is not bars:
            self._taken[:] = [(bars, self._moves(bars))]
        return self._taken[0][1]

    def _moves(self, bars: ErrorBars) -> tuple[Floats, Floats]:
        dJ, d_second = self.deviations(bars)
        dV = d_second + self._by_mean[:, None] * dJ
        if self.widening is None or self.members_of is None:
            return dJ, dV
        found = []
        told = zip(self.members_of(), (self.J, self.V), (dJ, dV), self.widening, strict=True)
        for turn, ((said, known, shares), value, moved, widening) in enumerate(told):
            apart = np.where(known, np.nan_to_num(said) - np.nan_to_num(value)[:, None], 0.0)
            asked = np.sqrt(np.maximum(known @ shares, _LEAST_SHARE))[:, None]  # how often one that knows it
            taken = apart[:, member_picks(shares, dJ.shape[1], turn)] / asked
            found.append(TWICE * taken + widening * moved)
        return found[0], found[1]

    def drawn(self, bars: ErrorBars) -> tuple[Floats, Floats]:
        """Draws of J and V ≥ 0, (n, B) each. V moves on the log scale, up to a factor of e² either way."""
        E_J, E_V = self.moves(bars)
        V = np.maximum(self.V, 0.0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.exp(np.clip(E_V / V, -_FARTHEST, _FARTHEST))
        return self.J[:, None] + E_J, np.where(V > 0, V * factor, np.maximum(E_V, 0.0))

    def drawn_deviations(self, of: Quantity, bars: ErrorBars) -> Floats:
        """How far a quantity is off in each draw, (n, B); to first order where V may fall below 0."""
        if self.widening is not None:
            return quantity(of, *self.drawn(bars)) - self.value(of)[:, None]
        return self.moved_by(*self.slopes(of), bars)

    def moved_by(self, by_J: Floats, by_V: Floats, bars: ErrorBars) -> Floats:
        """How far what has these derivatives (n,) is off in each draw, (n, B), to first order."""
        E_J, E_V = self.moves(bars)
        D: Floats = by_J[:, None] * E_J + by_V[:, None] * E_V
        return D

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


def _rms(D: Floats) -> Floats:
    """The root mean square of each row of D (n, B), (n,)."""
    found: Floats = np.sqrt(np.square(D).mean(axis=1))
    return found


def changes_by_coordinate(
    values: Callable[[Floats], Floats], states: Floats, other: Ints, coordinates: Iterable[int]
) -> Iterator[tuple[int, Floats]]:
    """By how much values (n, k) at states (n, dim) change where one coordinate is another state's, each."""
    before = values(states)
    for d in coordinates:
        moved = states.copy()
        moved[:, d] = states[other, d]
        yield d, values(moved) - before


def as_quantity(of: Quantity | None, choices: Any = Quantity) -> Any:
    """What an interval is of: the variance where a caller does not say, with a warning."""
    if of is None:
        warnings.warn(
            "of= should say what the interval is of; without it, it is the variance's. Write "
            'of="variance", or of="mean" for that of the mean; a later version will refuse a call without',
            DeprecationWarning,
            stacklevel=3,
        )
        return "variance"
    if isinstance(of, str) and of in _OF_DISTRIBUTIONS:
        raise InvalidInputError(
            f"of must be one of {', '.join(get_args(choices))}, got {of!r}, which an estimate of mean and "
            f"variance lacks; ask result.distribution.interval(x, of={of!r}, ...) of pr.evaluate, or a "
            "pr.ReturnDistribution"
        )
    check_choice(of, "of", get_args(choices))
    return of


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
