"""The estimator LSTD(λ): from a model or from trajectories to a :class:`RiskFunction`.

    A w_J = b        C w_M = e + D w_J            the paper's M, Ṽ = M̃ − J̃²
    A w_J = b        C w_V = Σ y_t δ_t²           variance="direct"

With ``nonnegative_at`` the second equation is replaced by the constrained one of sec. 5: w_M is the point
of W = {w : φ_M(x_i)ᵀ w ≥ (φ_J(x_i)ᵀ w_J)² for all i} with (C w − d)ᵀ(w' − w) ≥ 0 for all w' in W
(φ_M(x_i)ᵀ w ≥ 0 for the direct variance).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Floats,
    Seed,
    as_count,
    as_flag,
    as_number,
    as_states,
    check_callable,
    check_choice,
    check_kind,
)
from policyrisk._core.devices import Device
from policyrisk.equations import DENSE_MOST, MomentEquations, Weights
from policyrisk.errors import InvalidInputError, MismatchError, NoErrorBarsWarning
from policyrisk.features import Features, as_features
from policyrisk.lstd.accumulate import accumulate
from policyrisk.lstd.central_moments import ExactMoments, MomentPasses, with_higher_moments
from policyrisk.lstd.constrained import Constraint
from policyrisk.lstd.cutoffs import Trim, count_biased, lost_traces, trim
from policyrisk.lstd.passes import FirstPass, SecondPass, StartsAndReturns
from policyrisk.lstd.sandwich import Face, sandwich, with_weights
from policyrisk.lstd.scores import ScorePass, direct_right_hand_side
from policyrisk.markov import MarkovChain
from policyrisk.markov.projected import ProjectedChain
from policyrisk.passes.fold import Fold, Sum, here
from policyrisk.risk import Provenance, RiskFunction, SampleReturns, VarianceMethod
from policyrisk.risk.support import Support, supports_of
from policyrisk.trajectories import Source, check_reiterable, coordinates_of

ConstraintSolver = Literal["active-set", "projection"]


@dataclass(frozen=True, eq=False)
class LSTD:
    """Settings of LSTD(λ).

    ``second_features`` are φ_M, the same as ``features`` where None. ``ridge`` acts on per-episode means,
    (A/K + ridge·I) w = b/K. ``nonnegative_at`` names the states (n, dim) where Ṽ ≥ 0 is demanded, or
    "visited" for those that were seen. ``variance_lam`` is κ of the direct variance,

        C w_V = Σ_t y_t δ_t (2ε_t − δ_t),        ε_t = Σ_{s≥t} (κγ)^{s−t} δ_s:

    with κ = 0 a sum of δ², in which every step's part of J̃'s error counts as variance; with κ = 1 that of
    (B_t − J̃(x_t))², in which J̃'s error counts once, at more noise.

    With ``moments`` = 4 the third and fourth central moments are estimated as well
    (:mod:`policyrisk.lstd.central_moments`), for ``risk.skewness``, ``risk.kurtosis`` and ``risk.moments``.
    Their features are ``higher_features``, φ_3 and φ_4, or φ_M where None. They have no error bars.

    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(n=30, p=0.7)
    >>> phi = pr.Polynomial(degree=1, low=[0], high=[29])
    >>> lstd = pr.LSTD(phi, pr.Polynomial(degree=2, low=[0], high=[29]), lam=0.95)
    >>> lstd.fit_exact(chain, start=0).variance([27, 28, 29]).round(3)
    array([  9.902, -16.038, -43.016])
    """

    features: Any
    second_features: Any = None
    lam: float = 0.9
    discount: float = 1.0
    ridge: float = 0.0
    variance: VarianceMethod = "second-moment"
    nonnegative_at: npt.ArrayLike | Literal["visited"] | None = None
    constraint_solver: ConstraintSolver = "active-set"
    variance_lam: float = 0.0
    moments: int = 2
    higher_features: Any = None

    def __post_init__(self) -> None:
        check_choice(self.variance, "variance", get_args(VarianceMethod))
        kappa = as_number(self.variance_lam, "variance_lam", 0.0, 1.0)
        if kappa and self.variance != "direct":
            raise InvalidInputError(
                f'variance_lam must be 0 unless variance="direct", got {kappa:g}; leave one of them out'
            )
        check_choice(self.constraint_solver, "constraint_solver", get_args(ConstraintSolver))
        first = as_features(self.features)
        second = first if self.second_features is None else as_features(self.second_features)
        order = as_count(self.moments, "moments", 2, 4)
        checked = {
            "features": first,
            "second_features": second,
            "lam": as_number(self.lam, "lam", 0.0, 1.0),
            "discount": as_number(self.discount, "discount", 0.0, 1.0, open_low=True),
            "ridge": as_number(self.ridge, "ridge", 0.0),
            "nonnegative_at": _as_demand(self.nonnegative_at),
            "variance_lam": kappa,
            "moments": order,
            "higher_features": _as_higher(self.higher_features, second, order),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def exact_equations(self, chain: MarkovChain, start: npt.ArrayLike = 0) -> MomentEquations:
        """The projected equations of a known chain from a start state or distribution (sec. 4.3)."""
        return self._project(chain, start).equations()

    def fit_exact(self, chain: MarkovChain, start: npt.ArrayLike = 0) -> RiskFunction:
        """The solution of the exact projected equations, every setting included; no error bars."""
        projected = self._project(chain, start)
        equations = projected.equations()
        weights = equations.solve(self.ridge)
        d = equations.second_rhs(weights.mean)
        if self.variance == "direct":
            d = projected.direct_right_hand_side(weights.mean, self.variance_lam)
        visited = np.flatnonzero(projected.q > 0)[:, None].astype(np.float64)
        risk = self._answer(equations, weights, d, "LSTD's exact equations", visited=visited)[0]
        if self.moments > 2:
            sums = ExactMoments(chain, chain.start_distribution(start), self.lam)
            risk = with_higher_moments(risk, self.higher_features, weights, sums)
        return risk

    def equations(self, data: Source, device: Device = "cpu") -> MomentEquations:
        """The sums A, b, C, D and e over recorded episodes, in one pass; they add.

        ``device="cuda"`` sums dense features on a GPU (:mod:`policyrisk.lstd.gpu_sums`), "auto" where there
        is one.
        """
        return accumulate(data, **self._sampled, device=device)

    def fit(
        self,
        data: Source,
        *,
        error_bars: bool = True,
        bootstrap: int = 0,
        seed: Seed = None,
        device: Device = "cpu",
    ) -> RiskFunction:
        """The risk function of recorded episodes, with error bars unless ``error_bars`` is False.

        ``data`` is one Trajectories or a re-iterable stream of them; memory does not depend on its length.
        The equations take one pass and the error bars another, which takes most of the time where there are
        many features, and no estimate needs it; the direct variance, the constraint at
        "visited" states and cut-off episodes that end in unvisited states take more. ``bootstrap``
        draws of the weights are kept for ``risk.interval(method="bootstrap")`` (``seed`` is theirs).
        ``device="cuda"`` sums the equations of dense features on a GPU; the other passes are the CPU's.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=10, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(10)).fit(chain.sample(start=0, episodes=2000, seed=1))
        >>> low, high = risk.interval([0], of="variance")[0]
        >>> bool(low < chain.variance()[0] < high)
        True
        """
        check_reiterable(data)
        risk = self.fit_by(here(data), error_bars=error_bars, bootstrap=bootstrap, seed=seed, device=device)
        return replace(risk, coordinates=coordinates_of(data))

    def fit_by(
        self,
        fold: Fold,
        *,
        error_bars: bool = True,
        bootstrap: int = 0,
        seed: Seed = None,
        device: Device = "cpu",
    ) -> RiskFunction:
        """As ``fit``, for data that a fold goes over, wherever they are (see :mod:`policyrisk.passes.fold`).

        >>> import policyrisk as pr
        >>> from policyrisk.passes.fold import here
        >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=50, seed=1)
        >>> lstd = pr.LSTD(pr.Tabular(10))
        >>> bool(lstd.fit_by(here(data)).mean([0]) == lstd.fit(data).mean([0]))
        True
        """
        check_callable(fold, "fold", "a pass over data, such as here(data)")
        error_bars = as_flag(error_bars, "error_bars")
        if as_count(bootstrap, "bootstrap") and not error_bars:
            raise InvalidInputError(
                f"bootstrap={bootstrap} draws need the error bars' pass, got error_bars=False; leave one out"
            )
        sampled = self._sampled
        first = fold(lambda source, _: FirstPass.over(source, **sampled, device=device))
        returns, equations = first.returns, first.equations  # of all episodes, whatever is given up
        episodes = first.episodes
        lost: tuple[Floats, ...] = ()
        if equations.sparse:
            self._refuse_where_sparse(bootstrap)
            if error_bars:
                warnings.warn(
                    f"no error bars: with {len(equations.b)} sparse features their covariance would not fit; "
                    f"pass error_bars=False to say that this is meant, or use at most {DENSE_MOST} features",
                    NoErrorBarsWarning,
                    stacklevel=3,
                )
        cut, decays = self._cut(fold, equations)

        def trimmed(work: Callable[[Source, int], Sum]) -> Sum:
            return fold(lambda source, part: work(cut(source), part))

        if cut.transitions:
            del first, equations  # large, and no longer true
            first = trimmed(lambda source, _: FirstPass.over(source, **sampled, device=device))
            equations = first.equations
            lost = lost_traces(fold, cut, decays)[: 1 + (self.second_features != self.features)]
        weights = equations.solve(self.ridge)
        d = equations.second_rhs(weights.mean)
        if self.variance == "direct":
            w_mean, own = weights.mean, {**sampled, "variance_lam": self.variance_lam}
            d = trimmed(lambda source, _: direct_right_hand_side(source, w_mean, **own))
        found: dict[str, Any] = {"returns": returns, "given_up": cut.transitions, "lost": lost}
        risk, face = self._answer(equations, weights, d, "LSTD", visited=trimmed, **found)
        if lost:
            risk = count_biased(risk, trimmed)
        if self.moments > 2:
            risk = with_higher_moments(risk, self.higher_features, weights, MomentPasses(trimmed, self.lam))
        if not error_bars:
            return risk
        if equations.sparse:
            return replace(risk, **vars(fold(lambda source, _: StartsAndReturns.over(source, risk))))
        weights = replace(weights, second=risk.w_second)
        reference = returns.mean if returns.count else 0.0
        scores = ScorePass.of(
            equations,
            weights,
            direct=self.variance == "direct",
            variance_lam=self.variance_lam,
            replicates=bootstrap,
            seed=seed,
            episodes=episodes,
            reference=reference,
        )
        second = fold(lambda source, part: SecondPass.over(source, part, scores, risk, cut))
        bars = sandwich(second.scores, equations, weights, face, (int(scores.key[0]), int(scores.key[1])))
        completed = with_weights(second.completed, second.scores, reference, equations, weights, face)
        return replace(risk, error_bars=bars, starts=second.starts, completed=completed)

    def _cut(self, fold: Fold, equations: MomentEquations) -> tuple[Trim, list[float]]:
        """What cut-off episodes give up, and by how much the trace of each map decays in a step."""
        if equations.terminated == equations.episodes or (self.discount == 1.0 and not equations.terminated):
            return Trim(()), []  # the second is an error, and solve's
        seen = [(self.features, equations.visits), (self.second_features, equations.second_visits)]
        seen = seen[:1] if self.second_features == self.features else seen
        decays = [self.lam * self.discount, self.lam * self.discount**2][: len(seen)]
        for k, phi in enumerate(self.higher_features, start=3):
            if phi not in [each for each, _ in seen]:
                visits = MomentPasses(fold, self.lam).equations(phi, self.discount**k).visits
                seen.append((phi, visits))
                decays.append(self.lam * self.discount**k)
        return trim(fold, seen, self.discount), decays

    @property
    def _sampled(self) -> dict[str, Any]:
        """What the sums over data depend on: the arguments of :func:`accumulate` besides the data."""
        return {name: getattr(self, name) for name in ("features", "second_features", "lam", "discount")}

    def solve(self, equations: MomentEquations) -> RiskFunction:
        """The risk function of summed equations, without error bars.

        The direct variance, ``nonnegative_at="visited"`` and ``moments`` need the data again: use ``fit``.
        """
        check_kind(equations, "equations", MomentEquations, "make them with lstd.equations(data)")
        settings = {
            'variance="direct"': self.variance == "direct",
            'nonnegative_at="visited"': isinstance(self.nonnegative_at, str),
            f"moments={self.moments}": self.moments > 2,
        }
        if setting := next((name for name, asked in settings.items() if asked), ""):
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
        return self._answer(equations, weights, d, "LSTD.solve")[0]

    def _refuse_where_sparse(self, bootstrap: int) -> None:
        """An error where something was asked for that sums that stay sparse cannot give."""
        asked = f"bootstrap={bootstrap}" if bootstrap else "nonnegative_at"
        if bootstrap or self.nonnegative_at is not None:
            raise InvalidInputError(
                f"{asked} needs dense sums, got {max(self.features.size, self.second_features.size)} sparse "
                f"features, whose sums stay sparse; leave it out, or use at most {DENSE_MOST} features"
            )

    def _project(self, chain: MarkovChain, start: npt.ArrayLike) -> ProjectedChain:
        check_kind(chain, "chain", MarkovChain, "build MarkovChain(P, r)")
        return ProjectedChain(
            chain,
            self.features,
            self.second_features,
            chain.start_distribution(start),
            lam=self.lam,
            discount=self.discount,
        )

    def _answer(
        self,
        equations: MomentEquations,
        weights: Weights,
        d: Floats,  # (l_M,): the second equation's right-hand side
        estimator: str,
        *,
        visited: Floats | Fold | None = None,  # the states that nonnegative_at="visited" means
        returns: SampleReturns | None = None,
        given_up: int = 0,
        lost: tuple[Floats, ...] = (),  # Σ z_T and Σ y_T over what was given up, the first alone if φ_J = φ_M
        supports: tuple[Support, Support] | None = None,  # where they are not those of the equations
    ) -> tuple[RiskFunction, Face | None]:
        """The second equation solved, all of it in one record, and the active face of the constraint."""
        systems = (weights.mean_system, weights.second_system)
        solved = [system.solve(system.project(z)) for system, z in zip(systems, lost, strict=False)]
        supports = supports_of(equations, solved) if supports is None else supports
        direct, w_second, constrained = self.variance == "direct", weights.second, None
        if self.nonnegative_at is not None:
            demanded = visited if isinstance(self.nonnegative_at, str) else self.nonnegative_at
            constraint = Constraint(equations, weights, d, supports, direct, self.constraint_solver)
            constrained = (
                constraint.at_visited(demanded) if callable(demanded) else constraint.at(np.asarray(demanded))
            )
            w_second = constrained.w_second
        elif direct:
            w_second = weights.second_system.solve(d)
        risk = RiskFunction(
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
                variance_lam=self.variance_lam,
                residual=max(system.residual for system in systems),
            ),
            returns=returns,
        )
        return risk, None if constrained is None else constrained.face


def _as_higher(maps: Sequence[Any] | None, second: Features, moments: int) -> tuple[Features, ...]:
    """φ_3, … up to the moments that are asked for."""
    if maps is None:
        return (second,) * (moments - 2)
    if not isinstance(maps, Sequence) or len(maps) != moments - 2:
        got = len(maps) if isinstance(maps, Sequence) else type(maps).__name__
        raise InvalidInputError(
            f"higher_features must be as many maps as there are moments beyond the second, {moments - 2} "
            f"with moments={moments}, got {got}; pass [phi_3, phi_4] with moments=4"
        )
    return tuple(as_features(each) for each in maps)


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
