"""The estimator LSTD(λ): from a model or from trajectories to a :class:`RiskFunction`.

    A w_J = b        C w_M = e + D w_J            the paper's M, Ṽ = M̃ − J̃²
    A w_J = b        C w_V = Σ y_t δ_t²           variance="direct"

With ``nonnegative_at`` the second equation is replaced by the constrained one of sec. 5: w_M is the point
of W = {w : φ_M(x_i)ᵀ w ≥ (φ_J(x_i)ᵀ w_J)² for all i} with (C w − d)ᵀ(w' − w) ≥ 0 for all w' in W
(φ_M(x_i)ᵀ w ≥ 0 for the direct variance).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, Seed, as_number, as_states, check_choice
from policyrisk._core.records import record
from policyrisk.equations import DENSE_MOST, MomentEquations, Weights
from policyrisk.errors import InvalidInputError, MismatchError, NoErrorBarsWarning
from policyrisk.features import BinaryFeatures, Features, as_features
from policyrisk.lstd.accumulate import accumulate
from policyrisk.lstd.constrained import Constrained, Constraint
from policyrisk.lstd.cutoffs import Trim, trim
from policyrisk.lstd.sandwich import sandwich
from policyrisk.lstd.scores import EpisodeScores, ScorePass, direct_right_hand_side
from policyrisk.markov import MarkovChain
from policyrisk.markov.projected import ProjectedChain
from policyrisk.passes.fold import FirstPass, Fold, Sum, here
from policyrisk.risk import Provenance, RiskFunction, SampleReturns, VarianceMethod
from policyrisk.risk.summary import StartSums
from policyrisk.risk.support import Support
from policyrisk.trajectories import Source, Trajectories, batches, check_reiterable

ConstraintSolver = Literal["active-set", "projection"]

_STARTS = 1 << 12  # starts that are looked at together


@dataclass(frozen=True, eq=False)
class LSTD:
    """Settings of LSTD(λ).

    ``second_features`` are φ_M, the same as ``features`` where None. ``ridge`` acts on per-episode means,
    (A/K + ridge·I) w = b/K. ``nonnegative_at`` names the states (n, dim) where Ṽ ≥ 0 is demanded, or
    "visited" for those that were seen.

    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=30, p=0.7)
    >>> phi = pr.Polynomial(degree=1, low=[0], high=[29])
    >>> lstd = pr.LSTD(phi, pr.Polynomial(degree=2, low=[0], high=[29]), lam=0.95)
    >>> lstd.fit_exact(chain, start=0).variance([27, 28, 29]).round(3)
    array([  9.902, -16.038, -43.016])
    """

    features: Features
    second_features: Features
    lam: float
    discount: float
    ridge: float
    variance: VarianceMethod
    nonnegative_at: Floats | Literal["visited"] | None
    constraint_solver: ConstraintSolver

    def __init__(
        self,
        features: Any,
        second_features: Any = None,
        lam: float = 0.9,
        discount: float = 1.0,
        ridge: float = 0.0,
        variance: VarianceMethod = "second-moment",
        nonnegative_at: npt.ArrayLike | Literal["visited"] | None = None,
        constraint_solver: ConstraintSolver = "active-set",
    ) -> None:
        check_choice(variance, "variance", get_args(VarianceMethod))
        check_choice(constraint_solver, "constraint_solver", get_args(ConstraintSolver))
        first = as_features(features)
        settings = {
            "features": first,
            "second_features": first if second_features is None else as_features(second_features),
            "lam": as_number(lam, "lam", 0.0, 1.0),
            "discount": as_number(discount, "discount", 0.0, 1.0, open_low=True),
            "ridge": as_number(ridge, "ridge", 0.0),
            "variance": variance,
            "nonnegative_at": _as_demand(nonnegative_at),
            "constraint_solver": constraint_solver,
        }
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    def exact_equations(self, chain: MarkovChain, start: npt.ArrayLike = 0) -> MomentEquations:
        """The projected equations of a known chain from a start state or distribution (sec. 4.3)."""
        return self._project(chain, start).equations()

    def fit_exact(self, chain: MarkovChain, start: npt.ArrayLike = 0) -> RiskFunction:
        """The solution of the exact projected equations, every setting included; no error bars."""
        projected = self._project(chain, start)
        equations = projected.equations()
        weights = equations.solve(self.ridge)
        direct = self.variance == "direct"
        d = projected.direct_right_hand_side(weights.mean) if direct else equations.second_rhs(weights.mean)
        demanded = self.nonnegative_at
        if isinstance(demanded, str):
            demanded = np.flatnonzero(projected.q > 0)[:, None].astype(np.float64)
        supports = _supports(equations)
        constrained = None
        if demanded is not None:
            constrained = self._constraint(equations, weights, d, supports).at(demanded)
        return self._answer(equations, weights, d, supports, constrained, estimator="LSTD's exact equations")

    def equations(self, data: Source) -> MomentEquations:
        """The sums A, b, C, D and e over recorded episodes, in one pass; they add."""
        return accumulate(data, self.features, self.second_features, lam=self.lam, discount=self.discount)

    def fit(
        self, data: Source, *, error_bars: bool = True, bootstrap: int = 0, seed: Seed = None
    ) -> RiskFunction:
        """The risk function of recorded episodes, with error bars unless ``error_bars`` is False.

        ``data`` is one Trajectories or a re-iterable stream of them; memory does not depend on its length.
        The equations take one pass and the error bars another, which takes most of the time where there are
        many features, and no estimate needs it; the direct variance, the constraint at
        "visited" states and cut-off episodes that end in unvisited states take more. ``bootstrap``
        draws of the weights are kept for ``risk.interval(method="bootstrap")`` (``seed`` is theirs).

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=10, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(10)).fit(chain.sample(start=0, episodes=2000, seed=1))
        >>> low, high = risk.interval([0], of="variance")[0]
        >>> bool(low < chain.variance()[0] < high)
        True
        """
        check_reiterable(data)
        return self.fit_by(here(data), error_bars=error_bars, bootstrap=bootstrap, seed=seed)

    def fit_by(
        self, fold: Fold, *, error_bars: bool = True, bootstrap: int = 0, seed: Seed = None
    ) -> RiskFunction:
        """As ``fit``, for data that a fold goes over, wherever they are (see :mod:`policyrisk.passes.fold`).

        >>> import policyrisk as pr
        >>> from policyrisk.passes.fold import here
        >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=50, seed=1)
        >>> lstd = pr.LSTD(pr.Tabular(10))
        >>> bool(lstd.fit_by(here(data)).mean([0]) == lstd.fit(data).mean([0]))
        True
        """
        if bootstrap and not error_bars:
            raise InvalidInputError(
                f"bootstrap={bootstrap} draws need the error bars' pass, got error_bars=False; leave one out"
            )
        first = fold(self._first_pass)
        returns, equations = first.returns, first.equations
        starts, cut = error_bars, Trim(())
        if equations.sparse:
            self._refuse_where_sparse(bootstrap)
            if error_bars:
                _warn_no_error_bars(equations)
            error_bars = False
        trimmed = fold
        if equations.terminated < equations.episodes:
            seen = [(self.features, equations.visits), (self.second_features, equations.second_visits)]
            cut = trim(fold, seen[:1] if self.second_features == self.features else seen)
            if cut.transitions:
                trimmed = _through(fold, cut)
                del first, equations  # large, and no longer true
                first = trimmed(self._first_pass)
                equations = first.equations
        weights = equations.solve(self.ridge)
        d = equations.second_rhs(weights.mean)
        if self.variance == "direct":
            w_mean = weights.mean
            d = trimmed(lambda source, _: self._squared_errors(source, w_mean))
        supports = _supports(equations)
        constrained = None
        if self.nonnegative_at is not None:
            constraint = self._constraint(equations, weights, d, supports)
            demanded = self.nonnegative_at
            constrained = (
                constraint.at_visited(trimmed) if isinstance(demanded, str) else constraint.at(demanded)
            )
        risk = replace(
            self._answer(
                equations, weights, d, supports, constrained, estimator="LSTD", given_up=cut.transitions
            ),
            returns=returns,
        )
        if not error_bars:
            # No other pass goes over the starts where the features are too many for error bars.
            return replace(risk, starts=fold(_starts_pass(risk))) if starts else risk
        weights = replace(weights, second=risk.w_second)
        scores = ScorePass.of(
            equations,
            weights,
            direct=self.variance == "direct",
            replicates=bootstrap,
            seed=seed,
            episodes=first.episodes,
        )
        second = fold(_second_pass(scores, risk, cut))
        bars = sandwich(second.scores, equations, weights, None if constrained is None else constrained.face)
        return replace(risk, error_bars=bars, starts=second.starts)

    def _first_pass(self, source: Source, part: int) -> FirstPass:
        observed = Observed(source, self.discount)
        equations = self.equations(observed)
        return FirstPass(equations, observed.returns, (equations.episodes,))

    def _squared_errors(self, source: Source, w_mean: Floats) -> Floats:
        return direct_right_hand_side(
            source, w_mean, self.features, self.second_features, lam=self.lam, discount=self.discount
        )

    def solve(self, equations: MomentEquations) -> RiskFunction:
        """The risk function of summed equations, without error bars.

        The direct variance and ``nonnegative_at="visited"`` need the data again: use ``fit``.
        """
        if not isinstance(equations, MomentEquations):
            raise InvalidInputError(
                f"equations must be MomentEquations, got {type(equations).__name__}; "
                "make them with lstd.equations(data)"
            )
        if self.variance == "direct" or isinstance(self.nonnegative_at, str):
            setting = 'variance="direct"' if self.variance == "direct" else 'nonnegative_at="visited"'
            raise InvalidInputError(
                f"solve(equations) cannot do {setting}, which needs the data a second time; "
                "use fit(data) or fit_exact(chain, start)"
            )
        for name in ("lam", "discount", "features", "second_features"):
            mine, theirs = getattr(self, name), getattr(equations, name)
            if mine != theirs:
                raise MismatchError(
                    f"equations must agree with the estimator on {name}={mine!r}, got {theirs!r}; "
                    "solve them with the estimator that made them"
                )
        if equations.sparse:
            self._refuse_where_sparse(0)
        weights = equations.solve(self.ridge)
        d = equations.second_rhs(weights.mean)
        supports = _supports(equations)
        constrained = None
        if self.nonnegative_at is not None:
            constrained = self._constraint(equations, weights, d, supports).at(self.nonnegative_at)
        return self._answer(equations, weights, d, supports, constrained, estimator="LSTD.solve")

    def _refuse_where_sparse(self, bootstrap: int) -> None:
        """An error where something was asked for that sums that stay sparse cannot give."""
        asked = f"bootstrap={bootstrap}" if bootstrap else "nonnegative_at"
        if bootstrap or self.nonnegative_at is not None:
            raise InvalidInputError(
                f"{asked} needs dense sums, got {max(self.features.size, self.second_features.size)} sparse "
                f"features, whose sums stay sparse; leave it out, or use at most {DENSE_MOST} features"
            )

    def _project(self, chain: MarkovChain, start: npt.ArrayLike) -> ProjectedChain:
        if not isinstance(chain, MarkovChain):
            raise InvalidInputError(
                f"chain must be a MarkovChain, got {type(chain).__name__}; build MarkovChain(P, r)"
            )
        return ProjectedChain(
            chain,
            self.features,
            self.second_features,
            chain.start_distribution(start),
            lam=self.lam,
            discount=self.discount,
        )

    def _constraint(
        self, equations: MomentEquations, weights: Weights, d: Floats, supports: tuple[Support, Support]
    ) -> Constraint:
        return Constraint(
            features=self.features,
            second_features=self.second_features,
            equations=equations,
            weights=weights,
            d=d,
            direct=self.variance == "direct",
            solver=self.constraint_solver,
            visited=lambda phi_J, phi_M: supports[0].visited(phi_J) & supports[1].visited(phi_M),
        )

    def _answer(
        self,
        equations: MomentEquations,
        weights: Weights,
        d: Floats,  # (l_M,): the second equation's right-hand side
        supports: tuple[Support, Support],
        constrained: Constrained | None,
        *,
        estimator: str,
        given_up: int = 0,
    ) -> RiskFunction:
        """The second equation solved, and everything put into one record."""
        systems = (weights.mean_system, weights.second_system)
        w_second = weights.second
        if constrained is not None:
            w_second = constrained.w_second
        elif self.variance == "direct":
            w_second = weights.second_system.solve(d)
        return RiskFunction(
            features=self.features,
            second_features=self.second_features,
            w_mean=weights.mean,
            w_second=w_second,
            variance_method=self.variance,
            support=supports[0],
            second_support=supports[1],
            provenance=Provenance(
                estimator=estimator,
                lam=self.lam,
                discount=self.discount,
                ridge=self.ridge,
                episodes=equations.episodes,
                terminated=equations.terminated,
                transitions=equations.transitions,
                outside=equations.outside,
                given_up=given_up,
                redundant=max(system.redundant for system in systems),
                condition=max(system.condition for system in systems),
                constrained=0 if constrained is None else len(constrained.face.H),
                constraint_residual=0.0 if constrained is None else constrained.residual,
                trace_cut=equations.trace_cut,
                residual=max(system.residual for system in systems),
            ),
        )


class Observed:
    """A source whose terminated episodes' returns are noted on the way through, for the summary."""

    def __init__(self, source: Source, discount: float) -> None:
        self.source, self.discount = source, discount
        self.returns = SampleReturns.of([])

    def __iter__(self) -> Iterator[Trajectories]:
        for batch in batches(self.source):
            self.returns += SampleReturns.of(batch.returns(self.discount)[batch.terminated])
            yield batch


class ObservedStarts:
    """A source whose starts are summed on the way through, for the summary."""

    def __init__(self, source: Source, risk: RiskFunction) -> None:
        self.source, self.risk = source, risk
        self.sums = StartSums.empty(risk.w_mean.size, risk.w_second.size)

    def __iter__(self) -> Iterator[Trajectories]:
        waiting: list[npt.NDArray[Any]] = []
        for batch in batches(self.source):
            waiting.append(batch.starts())
            if sum(map(len, waiting)) >= _STARTS:
                self._take(waiting)
            yield batch
        self._take(waiting)

    def _take(self, waiting: list[npt.NDArray[Any]]) -> None:
        if any(map(len, waiting)):
            self.sums += self.risk.start_sums(np.concatenate(waiting))
        waiting.clear()


@record
@dataclass(frozen=True, eq=False)
class SecondPass:
    """What the pass for the error bars finds."""

    scores: EpisodeScores
    starts: StartSums  # of all episodes, those included that gave up every transition

    def __add__(self, other: SecondPass) -> SecondPass:
        return SecondPass(self.scores + other.scores, self.starts + other.starts)


def _second_pass(scores: ScorePass, risk: RiskFunction, cut: Trim) -> Callable[[Source, int], SecondPass]:
    def work(source: Source, part: int) -> SecondPass:
        observed = ObservedStarts(source, risk)
        return SecondPass(scores(cut(observed), part), observed.sums)

    return work


def _starts_pass(risk: RiskFunction) -> Callable[[Source, int], StartSums]:
    def work(source: Source, part: int) -> StartSums:
        observed = ObservedStarts(source, risk)
        deque(observed, maxlen=0)
        return observed.sums

    return work


def _through(fold: Fold, view: Trim) -> Fold:
    """A fold over what is left of the data."""

    def through(work: Callable[[Source, int], Sum]) -> Sum:
        return fold(lambda source, part: work(view(source), part))

    return through


def _warn_no_error_bars(equations: MomentEquations) -> None:
    warnings.warn(
        f"no error bars: with {len(equations.b)} sparse features their covariance would not fit; pass "
        f"error_bars=False to say that this is meant, or use at most {DENSE_MOST} features",
        NoErrorBarsWarning,
        stacklevel=4,
    )


def _supports(equations: MomentEquations) -> tuple[Support, Support]:
    """What the equations say about φ_J and about φ_M."""

    def support(features: Features, visits: Floats, episodes: Floats, gram: Matrix) -> Support:
        return Support(
            visits=visits,
            feature_episodes=episodes,
            episodes=equations.episodes,
            gram=None if isinstance(features, BinaryFeatures) or sp.issparse(gram) else gram,
            limit=np.inf if equations.exact else 1.0,
        )

    first = support(equations.features, equations.visits, equations.feature_episodes, equations.mean_gram)
    if equations.second_features == equations.features:
        return first, first
    return first, support(
        equations.second_features, equations.second_visits, equations.second_feature_episodes, equations.gram
    )


def _as_demand(value: Any) -> Floats | Literal["visited"] | None:
    if value is None:
        return None
    if isinstance(value, str):
        if value != "visited":
            raise InvalidInputError(
                f'nonnegative_at must be states of shape (n, dim), "visited" or None, got {value!r}; '
                "choose one"
            )
        return "visited"
    return as_states(value, "nonnegative_at")
