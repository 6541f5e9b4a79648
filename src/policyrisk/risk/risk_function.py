"""The one kind of answer: J̃, M̃ and Ṽ as functions of the state, with error bars.

    J̃(x) = φ_J(x)ᵀ w_J                                    mean
    M̃(x) = φ_M(x)ᵀ w_M,        Ṽ(x) = M̃(x) − J̃(x)²        variance="second-moment", the paper's
    Ṽ(x) = φ_M(x)ᵀ w_V,        M̃(x) = Ṽ(x) + J̃(x)²        variance="direct"

Nothing is clipped: a negative Ṽ is returned as it is, and its square root is nan (0 in the answers of
:func:`policyrisk.evaluate`, whose intervals know what the features miss). Where the data say nothing about a
state (see ``visited``) every estimate is nan.

Error bars rest on Σ, the covariance of the estimated weights (see :mod:`policyrisk.risk.draws`). They
cover the estimator's own limit, not the features' bias; with cut-off episodes that limit differs from that of
the exact projected equations.

From here the way goes to :mod:`policyrisk.risk.readout` (states, some at a time), to
:mod:`policyrisk.risk.state_estimates` (what is estimated at them) and on to :mod:`policyrisk.risk.draws`
(how uncertain it is).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Seed,
    as_flag,
    as_number,
    check_choice,
    check_kind,
    check_shape,
)
from policyrisk._core.frames import Coordinates, frame_like, numbered_names, states_of
from policyrisk._core.records import Saved, record
from policyrisk._core.text import Readable, TextTable, plural
from policyrisk.data import Source, Trajectories
from policyrisk.data.source import in_units
from policyrisk.errors import (
    CancellationWarning,
    FewEpisodesWarning,
    InvalidInputError,
    NegativeVarianceWarning,
)
from policyrisk.features import Features
from policyrisk.features.protocol import dimension, given_again
from policyrisk.features.target import PolicyFeatures
from policyrisk.risk import mixture, readout, scoring
from policyrisk.risk.bands import Judge, JudgedStates, pointwise_level, riskier
from policyrisk.risk.completed import CompletedReturns
from policyrisk.risk.draws import ErrorBars
from policyrisk.risk.estimate import as_level
from policyrisk.risk.mixture import Widening
from policyrisk.risk.readout import estimates_in_parts, values_in_parts
from policyrisk.risk.scoring import Score
from policyrisk.risk.start_sums import SampleReturns, StartSums, start_weights
from policyrisk.risk.state_estimates import (
    HigherMoments,
    IntervalMethod,
    Quantity,
    StateEstimates,
    VarianceMethod,
    as_quantity,
)
from policyrisk.risk.summary import PolicySummary, summarise
from policyrisk.risk.support import MixedSupport, Provenance, Support

CANCELLED = 1e-11  # of J̃²: where M̃ − J̃² is less, rounding has left it fewer than three digits
_POWERS = {"mean": 1, "second_moment": 2, "variance": 2, "std": 1, "sharpe": 0}  # of the rewards' unit
FEW_EPISODES = 100  # episodes behind an estimate below which its interval is known to be too narrow


@record(
    features="l_J",
    second_features="l_M",
    w_mean="l_J: finite",
    w_second="l_M: finite",
    support="l_J",
    second_support="l_M",
    unit=": unit",
)
@dataclass(frozen=True, eq=False, repr=False)
class RiskFunction(Readable, Saved):
    """J̃, M̃ and Ṽ at any state, with error bars where the estimator gave them.

    States x are of shape (n, dim), or (n,) for dimension 1, or one state (dim,), or a data frame (pandas,
    Polars, Arrow) whose columns have the names of the state's ``coordinates``, in any order and among others.

    Attributes
    ----------
    features, second_features
        φ_J and φ_M.
    w_mean, w_second
        The paper's w_J (l_J,) and w_M (l_M,), or w_V for the direct variance.

    Examples
    --------
    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=30, p=0.7)
    >>> risk = pr.LSTD(pr.Tabular(30)).fit_exact(chain, start=0)
    >>> risk.mean([0, 29]).round(6), risk.variance([0, 29]).round(6)
    (array([-73.125,  -2.5  ]), array([359.296875,  13.125   ]))
    """

    features: Features
    second_features: Features
    w_mean: Floats  # (l_J,)
    w_second: Floats  # (l_M,)
    variance_method: VarianceMethod
    support: Support | MixedSupport
    second_support: Support | MixedSupport
    provenance: Provenance
    error_bars: ErrorBars | None = None
    returns: SampleReturns | None = None
    starts: StartSums | None = None  # of the data that were fitted, where the estimator went over them
    widening: Widening | None = None  # of draws that know what features add (:mod:`policyrisk.risk.mixture`)
    completed: CompletedReturns | None = None  # of the same data
    coordinates: Coordinates | None = None  # the names of the state's, where the data had names
    higher: HigherMoments | None = None  # the third and fourth central moments, where they were asked for
    # Of the rewards: the error bars and the sums (``returns``, ``starts``, ``completed``, ``higher``) are in
    # powers of this unit, and so are the estimates in parts; the weights and all answers are not.
    unit: float = 1.0

    def __post_init__(self) -> None:
        check_choice(self.variance_method, "variance_method", get_args(VarianceMethod))
        check_shape(self.w_mean, "w_mean", (self.features.size,))
        check_shape(self.w_second, "w_second", (self.second_features.size,))

    @classmethod
    def mixture(
        cls,
        members: Sequence[RiskFunction],
        mean_shares: Sequence[float],
        variance_shares: Sequence[float] | None = None,
        *,
        widening: Widening | None = None,
    ) -> RiskFunction:
        """J̃ = Σ a_i J̃_i and Ṽ = Σ b_i Ṽ_i of several estimates from the same episodes.

        Shares are scaled to a sum of 1. ``variance_shares`` are for members with the direct variance; the
        paper's second moments are mixed as the means are. There are error bars where all members with a
        share were fitted with the same number of ``bootstrap`` draws and one seed.

        >>> import policyrisk as pr
        >>> data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=500, seed=1)
        >>> maps = pr.Tabular(10), pr.Polynomial(degree=1, low=[0], high=[9])
        >>> table, line = (pr.LSTD(m, variance="direct").fit(data, bootstrap=400, seed=0) for m in maps)
        >>> both = RiskFunction.mixture([table, line], [0.5, 0.5], [1, 0])
        >>> bool(np.isclose(both.mean([3]), (table.mean([3]) + line.mean([3])) / 2)[0])
        True
        >>> bool(both.variance([3]) == table.variance([3]))
        True
        """
        fields = mixture.mixed_fields(members, mean_shares, variance_shares)
        called = members[0].coordinates
        if any(member.coordinates != called for member in members):
            called = None
        return cls(**fields, widening=widening, coordinates=called)

    def times(self, factor: float) -> RiskFunction:
        """The same for rewards that are ``factor`` times as large, a power of two."""
        w_mean, w_second = self.w_mean * factor, self.w_second * factor * factor
        return replace(self, w_mean=w_mean, w_second=w_second, unit=self.unit * factor)

    @property
    def unit_weights(self) -> tuple[Floats, Floats]:
        """w_mean and w_second in units of the data."""
        if self.unit == 1.0:
            return self.w_mean, self.w_second
        return self.w_mean / self.unit, self.w_second / self.unit / self.unit

    def mean(self, x: npt.ArrayLike) -> Floats:
        """J̃(x) = φ_J(x)ᵀ w_J.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            nan where the data say nothing.
        """
        return self._collect(x, lambda at: at.J) * self._size("mean")

    def second_moment(self, x: npt.ArrayLike) -> Floats:
        """M̃(x) = φ_M(x)ᵀ w_M; Ṽ + J̃² for the direct variance.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            nan where the data say nothing.
        """
        return self._collect(x, lambda at: at.value("second_moment")) * self._size("second_moment")

    def variance(self, x: npt.ArrayLike) -> Floats:
        """Ṽ(x) = M̃(x) − J̃(x)²; φ_M(x)ᵀ w_V for the direct variance.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            Negative where it comes out so; nan where the data say nothing.
        """
        return self._collect(x, lambda at: at.V, of="variance") * self._size("variance")

    def std(self, x: npt.ArrayLike) -> Floats:
        """√Ṽ(x).

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            nan where Ṽ(x) < 0.
        """
        return self._collect(x, lambda at: at.value("std"), of="std") * self._size("std")

    def sharpe(self, x: npt.ArrayLike) -> Floats:
        """J̃(x) / √Ṽ(x).

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            nan where Ṽ(x) < 0 and infinite where it is 0.
        """
        return self._collect(x, lambda at: at.value("sharpe"), of="sharpe")

    def moments(self, x: npt.ArrayLike) -> Floats:
        """Central moments of the reward to go, of shape (order + 1, n): row k is that of (B − J̃)^k.

        Up to the variance, or to the ``moments`` that :class:`policyrisk.LSTD` was asked for. As
        :meth:`policyrisk.MarkovChain.moments` has them; nothing is clipped.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=30, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(30), moments=4).fit_exact(chain, start=0)
        >>> bool(np.allclose(risk.moments(range(30)), chain.moments(4)))
        True
        """
        states = self._states(x)
        J, V = self.mean_and_variance(states)
        rows = [np.where(np.isnan(J), np.nan, value) for value in (1.0, 0.0)]
        higher = np.empty((0, len(J))) if self.higher is None else self.higher.at(states)
        for power, row in enumerate(higher, start=3):
            for _ in range(power if self.unit != 1.0 else 0):  # beyond the range of float64 it is infinite
                row *= self.unit
        return np.vstack([*rows, V, np.where(np.isnan(J), np.nan, higher)])

    def skewness(self, x: npt.ArrayLike) -> Floats:
        """μ̃_3(x) / Ṽ(x)^{3/2}, of shape (n,), nan where Ṽ(x) ≤ 0; without error bars.

        Negative where the worst returns are further from the mean than the best ones.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=30, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(30), moments=4).fit_exact(chain, start=0)
        >>> risk.skewness([0]).round(6), risk.kurtosis([0]).round(6)
        (array([-0.890953]), array([4.295161]))
        """
        return self._standardised(x, 3)

    def kurtosis(self, x: npt.ArrayLike) -> Floats:
        """μ̃_4(x) / Ṽ(x)², of shape (n,), nan where Ṽ(x) ≤ 0; without error bars. 3 is a normal return's."""
        return self._standardised(x, 4)

    def probability_bound(self, x: npt.ArrayLike, *, below: float) -> Floats:
        """The most that P(B ≤ z) can be, z = ``below``, with this mean and variance, of shape (n,).

        Cantelli's bound, of any distribution whatever; with z = J̃ − k √Ṽ it is 1 / (1 + k²):

            P(B ≤ z) ≤ Ṽ / (Ṽ + (J̃ − z)²)      where z < J̃, else 1

        nan where Ṽ < 0. It bounds what the estimates say, and not their errors; the probability itself is
        :meth:`policyrisk.DistributionFunction.probability`.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=30, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(30)).fit_exact(chain, start=0)
        >>> risk.probability_bound([0], below=-108).round(3), chain.distribution(0).cdf(-108).round(3)
        (array([0.228]), np.float64(0.053))
        """
        z = as_number(below, "below") / self.unit

        def bound(at: StateEstimates) -> Floats:
            V, gap = np.where(at.V >= 0, at.V, np.nan), at.J - z
            return np.where(gap > 0, V / (V + np.where(gap > 0, gap, 1.0) ** 2), V * 0.0 + 1.0)

        return self._collect(x, bound, of="std")

    def cvar_bound(self, x: npt.ArrayLike, q: float) -> Floats:
        """The least that the mean of the worst q of the returns can be with this mean and variance, (n,).

        A bound of any distribution whatever, and of its q-quantile too:

            CVaR_q ≥ J̃ − √Ṽ √((1 − q) / q)

        nan where Ṽ < 0. It bounds what the estimates say, and not their errors; CVaR itself is
        :meth:`policyrisk.DistributionFunction.cvar`.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=30, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(30)).fit_exact(chain, start=0)
        >>> risk.cvar_bound([0], 0.05).round(2), chain.cvar(0.05)[:1].round(2)
        (array([-155.75]), array([-121.19]))
        """
        share = as_number(q, "q", 0.0, 1.0, open_low=True, remedy="pass 0.05 for the worst 5 %")
        root = np.sqrt((1.0 - share) / share)
        return self._collect(x, lambda at: at.J - root * at.value("std"), of="std") * self.unit

    def mean_and_variance(self, x: npt.ArrayLike) -> tuple[Floats, Floats]:
        """J̃(x) and Ṽ(x) in one go, each of shape (n,)."""
        both = self._collect(x, lambda at: np.column_stack([at.J, at.V]))
        return both[:, 0] * self._size("mean"), both[:, 1] * self._size("variance")

    def visited(self, x: npt.ArrayLike) -> Bools:
        """Whether the data say anything about x.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) booleans
            False where estimates are nan.
        """
        return self.episodes(x) > 0

    def episodes(self, x: npt.ArrayLike) -> Floats:
        """How many episodes stand behind the estimates at x; see :class:`Support`.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            Numbers of episodes.
        """
        return self._collect(x, lambda at: at.episodes)

    def covered(self, x: npt.ArrayLike) -> Floats:
        """The target's probability at x on actions that the data hold there; of estimates by LSTDQ.

        The module :mod:`policyrisk.risk.readout` says how it is counted.

        Parameters
        ----------
        x
            States (n, dim).

        Returns
        -------
        (n,) array
            In [0, 1].
        """
        return readout.covered(self, self._states(x))

    def action_mean(self, x: npt.ArrayLike, a: npt.ArrayLike) -> Floats:
        """The mean of taking action a first and then following the target; of estimates by LSTDQ.

        Parameters
        ----------
        x
            States (n, dim).
        a
            One action, or one for each state.

        Returns
        -------
        (n,) array
            Q̃_J(x, a).
        """
        return readout.pair_estimates(self, self._states(x), a)[0]

    def action_variance(self, x: npt.ArrayLike, a: npt.ArrayLike) -> Floats:
        """The variance of taking action a first and then following the target; of estimates by LSTDQ.

        Parameters
        ----------
        x
            States (n, dim).
        a
            One action, or one for each state.

        Returns
        -------
        (n,) array
            Ṽ_Q(x, a).
        """
        return readout.pair_estimates(self, self._states(x), a)[1]

    def standard_error(self, x: npt.ArrayLike, of: Quantity = "variance") -> Floats:
        """The standard error of a quantity at x.

        Parameters
        ----------
        x
            States (n, dim).
        of
            "mean", "second_moment", "variance", "std" or "sharpe".

        Returns
        -------
        (n,) array
            nan where the quantity is.
        """
        of = as_quantity(of)
        bars = self.bars
        errors = self._collect(x, lambda at: at.standard_error(of, bars), of=of, width=bars.width)
        return errors * self._size(of)

    def interval(
        self,
        x: npt.ArrayLike,
        of: Quantity | None = None,
        level: float = 0.95,
        method: IntervalMethod | None = None,
    ) -> Floats:
        """A confidence interval for a quantity at x.

        Parameters
        ----------
        x
            States (n, dim).
        of
            "mean", "second_moment", "variance", "std" or "sharpe". Name it: without it, it is the variance,
            with a DeprecationWarning. Tails have theirs at :meth:`DistributionFunction.interval`.
        level
            The probability with which the interval is meant to hold the truth.
        method
            What the interval covers. "full": randomness and the choice of features, where held-out episodes
            showed how much these miss, as in the answers of :func:`policyrisk.evaluate`; it is the default
            there. "student", the default elsewhere, and "bootstrap": randomness alone, about the limit that
            these features have.

        Returns
        -------
        (n, 2) array
            Low and high.

        Notes
        -----
        "full": estimate ± t · error, the error being that of the draws of :mod:`policyrisk.risk.mixture`; for
        the variance and the std on the scale of log Ṽ (:mod:`policyrisk.risk.state_estimates`).

        "student": estimate ± t · standard error, where t is Student's quantile with max(e − 1, 1) degrees of
        freedom, e = ``episodes(x)`` being those behind the estimate. Where only one or two stand behind it
        the interval is very wide, as it should be; with a few dozens it is still too narrow, since returns
        are skewed (nominal 95% intervals of V have covered 78% with 15 episodes, 84% with 40, 91% with 100
        and 96% with 1000: ``benchmarks/calibration.py``). A FewEpisodesWarning says where.

        "bootstrap": the range that holds the middle share ``level`` of the quantity over the bootstrap
        replicates of the weights (``bootstrap=`` of fit). A replicate with Ṽ ≤ 0 counts as std 0 and as an
        infinite Sharpe ratio of the sign of J̃, so that an end of 0 or ±inf says that the data do not
        rule it out. Both are of the same influences: the bootstrap bends with the quantity, and knows
        nothing of small samples.
        """
        of = as_quantity(of)
        if method is None:
            method = "student" if self.widening is None else "full"
        check_choice(method, "method", get_args(IntervalMethod))
        level = as_level(level)
        bars = self.bars
        width = bars.width if method == "student" else bars.draws

        def rows(at: StateEstimates) -> Floats:
            return np.column_stack([at.interval(of, level, method, bars), at.episodes])

        table = self._collect(x, rows, of=of, width=width)
        episodes = table[:, 2]
        few = (episodes > 0) & (episodes < FEW_EPISODES)
        if few.any() and method != "full":
            warnings.warn(
                f"fewer than {FEW_EPISODES} episodes stand behind the interval at {int(few.sum())} of "
                f"{few.size} states, {episodes[few].min():.0f} at the fewest, and it covers less often than "
                "it says; see episodes(x), gather more episodes or use coarser features",
                FewEpisodesWarning,
                stacklevel=2,
            )
        return table[:, :2] * self._size(of)

    def band(
        self,
        x: npt.ArrayLike,
        of: Quantity | None = None,
        level: float = 0.95,
        method: IntervalMethod | None = None,
        *,
        seed: Seed = None,
    ) -> Floats:
        """Intervals for a quantity at all states x that hold together, of shape (n, 2).

        As ``interval``, at the higher level that this takes; see :mod:`policyrisk.risk.bands`. ``seed`` is
        that of the draws that an estimate without bootstrap replicates needs.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=10, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(10)).fit(chain.sample(0, episodes=2000, seed=1))
        >>> low, high = risk.band(range(10), of="std", seed=0).T
        >>> bool(((low < chain.std()) & (chain.std() < high)).all())
        True
        """
        of = as_quantity(of)
        parts, bars = self._replicated(x, seed)
        return self.interval(x, of, pointwise_level(parts, of, as_level(level), bars), method)

    def riskier(self, x: npt.ArrayLike, level: float = 0.95, *, seed: Seed = None) -> Bools:
        """Which states x are riskier than the median one of them, confident for all together, (n,).

        The confidence is about randomness; see :mod:`policyrisk.risk.bands`.

        >>> import policyrisk as pr
        >>> risk = pr.LSTD(pr.Tabular(4)).fit(pr.domains.walk(n=4, p=0.7).sample(0, episodes=2000, seed=1))
        >>> risk.riskier(range(4), seed=0).tolist()
        [True, True, False, False]
        """
        parts, bars = self._replicated(x, seed)
        return riskier(parts, as_level(level), bars)

    def judged(self, x: npt.ArrayLike, judge: Judge, *, seed: Seed = None) -> JudgedStates:
        """A value of J̃ and Ṽ at states x with its error: what a comparison at many states is made of."""
        parts, bars = self._replicated(x, seed)
        return JudgedStates.of(parts, judge, bars, self.unit)

    def summary(
        self,
        starts: npt.ArrayLike | None = None,
        *,
        weights: npt.ArrayLike | None = None,
        level: float = 0.95,
    ) -> PolicySummary:
        """Mean, variance, std and Sharpe ratio of the return over a start distribution.

        Parameters
        ----------
        starts
            (n, dim): the four are the estimator's; the variance is E[M̃(x_0)] − E[J̃(x_0)]², not the mean of
            Ṽ (:mod:`policyrisk.risk.summary`). Unvisited starts are left out and counted. Intervals take the
            starts as given, and are Student's with as many episodes as stand behind the average start.

            Without starts it is about the data that were fitted: the four are those of their *completed
            returns*, and the estimator's own average over the same starts is in ``model``. Their intervals
            include the randomness of the starts (:mod:`policyrisk.risk.completed`). Where too many episodes
            cannot be completed, it is the estimator's average alone.
        weights
            (n,): the starts have probabilities proportional to these; equal where None.
        level
            That of the intervals.

        Returns
        -------
        PolicySummary
            ``mean``, ``variance``, ``std`` and ``sharpe``, each with its interval; ``print`` shows a table.
        """
        level = as_level(level)
        if starts is None and weights is not None:
            raise InvalidInputError("weights must come with starts, got weights alone; pass starts as well")
        sums = self.starts if starts is None else self.start_sums(starts, weights=weights)
        if sums is None:
            raise InvalidInputError(
                "starts must be passed, since this RiskFunction did not keep those of its data: it came "
                f"from {self.provenance.estimator}, and only a fit with error bars keeps them; "
                "pass data.starts()"
            )
        return summarise(self, sums, self.completed if starts is None else None, level)

    def start_sums(
        self, starts: npt.ArrayLike, *, weights: npt.ArrayLike | None = None, values_alone: bool = False
    ) -> StartSums:
        """What a summary over ``starts`` (n, dim) is made of; it adds. Values alone have no gradients."""
        states = self._states(starts, "starts")
        parts = values_in_parts(self, states) if as_flag(values_alone, "values_alone") else self.parts(states)
        return StartSums.of(parts, start_weights(weights, len(states)))

    def completed_sums(self, data: Trajectories, *, values_alone: bool = False) -> CompletedReturns:
        """What is known of the completed returns of some episodes; it adds.

        :meth:`policyrisk.risk.completed.CompletedReturns.over` is the same of any source. Those of a target
        policy are the estimates at the starts: the returns are another policy's.
        """
        check_kind(data, "data", Trajectories, "use CompletedReturns.over for a stream")
        data = in_units(data, self.unit)
        sizes = self.w_mean.size, self.w_second.size
        if isinstance(self.features, PolicyFeatures):
            return CompletedReturns.of_starts(data, self.parts, *sizes)
        at = partial(values_in_parts, self) if as_flag(values_alone, "values_alone") else self.parts
        return CompletedReturns.of(data, at, self.provenance.discount, *sizes)

    def score(self, held_out: Source) -> Score:
        """How well this predicts episodes that were not fitted: see :mod:`policyrisk.risk.scoring`.

        Every step of every episode counts, with this estimate's discount; the returns to go of cut-off
        episodes are completed by this estimate.

        Parameters
        ----------
        held_out
            Trajectories, or a stream of them, that were not fitted.

        Returns
        -------
        Score
            ``mse``, ``calibration`` and ``dawid_sebastiani``.

        Examples
        --------
        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=30, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(30)).fit_exact(chain, start=0)
        >>> score = risk.score(chain.sample(0, episodes=2000, seed=1))
        >>> score.calibration.low < 1 < score.calibration.high
        True
        """
        self.refuse_of_target("score")
        return scoring.score(self, held_out)

    def to_frame(self, x: npt.ArrayLike, level: float = 0.95) -> Any:
        """The states x, and what is estimated at them, as a data frame: a row for each, in their order.

        Parameters
        ----------
        x
            States (n, dim).
        level
            That of the intervals.

        Returns
        -------
        data frame
            The state's coordinates, then mean, variance, std and sharpe, each with the ends of its interval
            (``mean_low``, ``mean_high``, …) where there are error bars, and the episodes behind them. It is a
            frame of pandas (with x's index), or of Polars or Arrow where x is one.

        Examples
        --------
        >>> import policyrisk as pr
        >>> data = pr.domains.walk(n=3, p=0.7).sample(0, episodes=500, seed=1)
        >>> pr.LSTD(pr.Tabular(3)).fit(data).to_frame([0, 2])[["state", "mean", "mean_low"]].round(2)
           state  mean  mean_low
        0    0.0 -5.73     -6.03
        1    2.0 -2.08     -2.27
        """
        return self._frame(x, level, {})

    def _frame(self, x: npt.ArrayLike, level: float, more: Mapping[str, Floats]) -> Any:
        """With further columns (n,) at its end."""
        states = self._states(x)
        dim = states.shape[1]
        numbered = numbered_names("state", dim)
        found: dict[str, Floats] = {}
        quantities: tuple[Quantity, ...] = ("mean", "variance", "std", "sharpe")
        for of in quantities:
            found[of] = getattr(self, of)(states)
            if self.error_bars is not None:
                low, high = self.interval(states, of, level).T
                found |= {f"{of}_low": low, f"{of}_high": high}
        found |= {"episodes": self.episodes(states), **more}
        called = self.coordinates or Coordinates(numbered)
        return frame_like(x, called.columns(states), found)

    @classmethod
    def load(cls, path: str | os.PathLike[str], policy: Any = None, features: Any = None) -> RiskFunction:
        """Read what :func:`RiskFunction.save` wrote; a damaged or altered file is an error.

        Files hold no code: what was a function or a network is passed again, and another one is an error.

        Parameters
        ----------
        path
            The file.
        policy
            The target policy of the estimate, where it is a function.
        features
            Those of the estimate, where they are a function or a network: the function, the network or the
            map that it was fitted with, or a list of several.

        Returns
        -------
        RiskFunction
            The same estimates, bit for bit.

        Examples
        --------
        >>> import numpy as np, policyrisk as pr, tempfile
        >>> def line(x):
        ...     return np.hstack([np.ones_like(x), x])
        >>> risk = pr.LSTD(line).fit(pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     risk.save(f"{folder}/risk.npz")
        ...     again = pr.RiskFunction.load(f"{folder}/risk.npz", features=line)
        >>> bool(again.mean([2]) == risk.mean([2]))
        True
        """
        with given_again(features, policy):
            risk = super().load(path)
        if policy is not None:
            readout.check_policy_is_a_function(risk)
        return risk

    def __repr__(self) -> str:
        maps = repr(self.features)
        if self.second_features != self.features:
            maps += f" and {self.second_features!r}"
        bars = "no error bars" if self.error_bars is None else "error bars"
        return f"RiskFunction({self.provenance.settings}, {maps}, variance={self.variance_method!r}, {bars})"

    def _blocks(self) -> list[str | TextTable]:
        source, bars = self.provenance, self.error_bars
        replicates = 0 if bars is None else bars.draws
        second = "variance" if self.variance_method == "direct" else "second moment"
        bootstrap = f", with {plural(replicates, 'bootstrap replicate')}" if replicates else ""
        known = "none" if bars is None else "withdrawn" if bars.withdrawn else "yes"
        lines = [
            f"mean and variance of the reward to go, by {source.settings}",
            f"mean: {self.features!r}",
            f"{second}: {self.second_features!r}",
            f"data: {plural(source.episodes, 'episode')}, {source.transitions:g} transitions",
            *source.remarks,
            f"error bars: {known}{bootstrap}",
        ]
        return ["\n  ".join(lines)]

    def _collect(
        self,
        x: npt.ArrayLike,
        function: Callable[[StateEstimates], Floats],
        of: Quantity = "mean",
        width: int = 0,
    ) -> Floats:
        """``function`` of the estimates at x, in order; warnings where Ṽ has no root, or few digits."""
        found, negative, cancelled = [], 0, 0
        # A constraint that is active makes Ṽ = 0 of its own.
        may_cancel = self.variance_method == "second-moment" and not self.provenance.constrained
        for part in self.parts(x, width):
            found.append(function(part))
            negative += int(np.count_nonzero(part.V < 0))
            cancelled += int(np.count_nonzero((part.V != 0) & (np.abs(part.V) < CANCELLED * part.J**2)))
        values = np.concatenate(found)
        if may_cancel and cancelled and of in ("variance", "std", "sharpe"):
            warnings.warn(
                f"the variance is below {CANCELLED:g} of the squared mean at {cancelled} of "
                f"{plural(len(values), 'state')}, so that M - J^2 leaves it fewer than three digits; use "
                "variance='direct', which does not subtract (where nothing is random, it is 0)",
                CancellationWarning,
                stacklevel=3,
            )
        if negative and of in ("std", "sharpe"):
            none = self.widening is None or of == "sharpe"
            come_to = "std and Sharpe ratio are nan" if none else "std is 0"
            warnings.warn(
                f"the estimated variance is negative at {negative} of {plural(len(values), 'state')}, where "
                f"{come_to}; demand V >= 0 there with nonnegative_at=, or use "
                "variance='direct'",
                NegativeVarianceWarning,
                stacklevel=3,
            )
        return values

    def parts(self, x: npt.ArrayLike, width: int = 0) -> Iterator[StateEstimates]:
        """The estimates at x in order, at least one part; a state takes ``width`` more numbers."""
        return estimates_in_parts(self, self._states(x), width)

    def _replicated(self, x: npt.ArrayLike, seed: Seed) -> tuple[Iterator[StateEstimates], ErrorBars]:
        """The estimates at x, and error bars with replicates, drawn where there are none."""
        bars = self.bars.replicated(seed)
        return self.parts(x, bars.draws), bars

    def _states(self, x: Any, name: str = "x") -> Floats:
        """States (n, dim); those of a data frame by the names of its columns."""
        return states_of(x, self.coordinates, name, dimension(self.features))

    def _standardised(self, x: npt.ArrayLike, order: int) -> Floats:
        if self.higher is None or self.higher.order < order:
            raise InvalidInputError(
                f"{'skewness' if order == 3 else 'kurtosis'} needs the central moment {order}, which this "
                f"RiskFunction from {self.provenance.estimator} lacks; fit pr.LSTD(..., moments={order})"
            )
        states = self._states(x)
        V = self._collect(states, lambda at: np.where(at.V > 0, at.V, np.nan), of="std")
        return np.asarray(self.higher.at(states)[order - 3] / V ** (order / 2))

    def _size(self, of: Quantity) -> float:
        """What one of a quantity's units is."""
        return self.unit ** _POWERS[of]

    def refuse_of_target(self, what: str) -> None:
        """Raise where the estimate is of another policy than the recorded one."""
        if isinstance(self.features, PolicyFeatures):
            raise InvalidInputError(
                f"{what} needs episodes of the policy that is estimated, and {self.provenance.estimator} "
                "estimates another than was recorded; simulate the target, or compare targets by compare"
            )

    @property
    def bars(self) -> ErrorBars:
        """The error bars; an error where there are none."""
        if self.error_bars is None:
            raise InvalidInputError(
                f"this RiskFunction has no error bars, since it came from {self.provenance.estimator}; "
                "LSTD.fit(data) gives them"
            )
        return self.error_bars
