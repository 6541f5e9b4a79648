"""From solved equations to the one record of an answer: what LSTD and LSTDQ do alike.

Both have the same settings besides their features, and the same second equation, which
``nonnegative_at`` replaces by the positive-variance constraint of sec. 5
(:mod:`policyrisk.equations.constraint`). At the demanded states x_i the rows are H_i = −φ_M(x_i)ᵀ and
g_i = −(φ_J(x_i)ᵀ w_J)² (0 for the direct variance). Redundant and unvisited features are taken out before the
solve, and states that were not visited are left out: nothing is known about them.

``nonnegative_at="visited"`` demands Ṽ ≥ 0 at every state of the data, which may be millions. Only those where
the estimate would be negative matter, so they are found by going over the data again: solve, add the worst
offenders, and so on until there are none.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Floats,
    Seed,
    as_count,
    as_dense,
    as_flag,
    as_number,
    as_states,
    check_callable,
    check_choice,
    check_kind,
)
from policyrisk._core.records import record
from policyrisk.data import Source, batches
from policyrisk.equations import DENSE_MOST, MomentEquations, Weights
from policyrisk.equations.constraint import solve_constrained
from policyrisk.errors import (
    InfeasibleConstraintError,
    InvalidInputError,
    MismatchError,
    NoErrorBarsWarning,
    SolverError,
)
from policyrisk.features import Features
from policyrisk.lstd.accumulate import FirstPass
from policyrisk.lstd.influences import Face
from policyrisk.lstd.residuals import direct_right_hand_side
from policyrisk.lstd.steps import View
from policyrisk.passes.reduce import Reduce
from policyrisk.risk import Provenance, RiskFunction, SampleReturns, VarianceMethod
from policyrisk.risk.draws import DRAWS_OF_CLUSTERS
from policyrisk.risk.support import Support, supports_of

ConstraintSolver = Literal["active-set", "projection"]
# An LSTD or an LSTDQ, for lam, discount, ridge, variance, variance_lam, nonnegative_at and constraint_solver.
Settings: TypeAlias = Any
OFFENDERS = 500  # states added in one round
ROUNDS = 60
ROUNDING = 1e-12  # what rounding may take from Ṽ, relative to the largest second moment
_CHUNK = 1 << 13  # states whose features are in hand at once


def check_settings(settings: Settings) -> None:
    """Put a frozen estimator's common settings in order, or raise."""
    check_choice(settings.variance, "variance", get_args(VarianceMethod))
    check_choice(settings.constraint_solver, "constraint_solver", get_args(ConstraintSolver))
    demanded = settings.nonnegative_at
    if isinstance(demanded, str) and demanded != "visited":
        raise InvalidInputError(
            f'nonnegative_at must be states of shape (n, dim), "visited" or None, got {demanded!r}; '
            "choose one"
        )
    checked: dict[str, Any] = {
        "lam": as_number(settings.lam, "lam", 0.0, 1.0),
        "discount": as_number(settings.discount, "discount", 0.0, 1.0, open_low=True),
        "ridge": as_number(settings.ridge, "ridge", 0.0),
    }
    if demanded is not None and not isinstance(demanded, str):
        checked["nonnegative_at"] = as_states(demanded, "nonnegative_at")
    for name, value in checked.items():
        object.__setattr__(settings, name, value)


def check_fit(reduce: Reduce, error_bars: bool, bootstrap: int) -> bool:
    """Whether ``fit_by`` shall give error bars, from its arguments."""
    check_callable(reduce, "reduce", "a pass over data, such as here(data)")
    error_bars = as_flag(error_bars, "error_bars")
    if as_count(bootstrap, "bootstrap") and not error_bars:
        raise InvalidInputError(
            f"bootstrap={bootstrap} draws need the error bars' pass, got error_bars=False; leave one out"
        )
    return error_bars


def draws_of(first: FirstPass, bootstrap: int, seed: Seed) -> dict[str, Any]:
    """How the weights are drawn, by what the first pass found: clusters take draws, asked for or not."""
    clustered = 0 if first.clusters is None else first.clusters.size
    if clustered and not bootstrap:
        bootstrap, seed = DRAWS_OF_CLUSTERS, 0 if seed is None else seed
    return {"episodes": first.episodes, "replicates": bootstrap, "seed": seed, "clustered": clustered}


def check_sparse(settings: Settings, equations: MomentEquations, bootstrap: int, error_bars: bool) -> None:
    """Raise or warn where something was asked for that sums that stay sparse cannot give."""
    if not equations.sparse:
        return
    asked = f"bootstrap={bootstrap}" if bootstrap else "nonnegative_at"
    if bootstrap or settings.nonnegative_at is not None:
        raise InvalidInputError(
            f"{asked} needs dense sums, got {max(len(equations.b), len(equations.e))} sparse "
            f"features, whose sums stay sparse; leave it out, or use at most {DENSE_MOST} features"
        )
    if error_bars:
        warnings.warn(
            f"no error bars: with {len(equations.b)} sparse features their covariance would not fit; "
            f"pass error_bars=False to say that this is meant, or use at most {DENSE_MOST} features",
            NoErrorBarsWarning,
            stacklevel=4,
        )


def second_right_hand_side(
    settings: Settings, view: View, equations: MomentEquations, w_mean: Floats, reduce: Reduce
) -> Floats:
    """d of C w_second = d, (l_M,); the direct variance's takes a pass."""
    if settings.variance == "second-moment":
        return equations.second_rhs(w_mean)
    kappa = settings.variance_lam
    return reduce(lambda source, _: direct_right_hand_side(source, w_mean, view, kappa))


def solve(settings: Settings, equations: MomentEquations, name: str, moments: int = 2) -> RiskFunction:
    """The answer of summed equations; what needs the data again is an error that points to ``fit``."""
    check_kind(equations, "equations", MomentEquations, f"make them with {name.lower()}.equations(data)")
    needs_data = {
        'variance="direct"': settings.variance == "direct",
        'nonnegative_at="visited"': isinstance(settings.nonnegative_at, str),
        f"moments={moments}": moments > 2,
    }
    if setting := next((each for each, asked in needs_data.items() if asked), ""):
        raise InvalidInputError(
            f"solve(equations) cannot do {setting}, which needs the data a second time; "
            "use fit(data) or fit_exact(chain, start)"
        )
    for each in ("lam", "discount", "features", "second_features"):
        mine, theirs = getattr(settings.view, each), getattr(equations, each)
        if mine != theirs:
            raise MismatchError(
                f"equations must agree with the estimator on {each}={mine!r}, got {theirs!r}; "
                "solve them with the estimator that made them"
            )
    check_sparse(settings, equations, 0, error_bars=False)
    weights = equations.solve(settings.ridge)
    return answer(settings, equations, weights, equations.second_rhs(weights.mean), f"{name}.solve")[0]


def answer(
    settings: Settings,
    equations: MomentEquations,
    weights: Weights,
    d: Floats,  # (l_M,): the second equation's right-hand side
    estimator: str,
    *,
    visited: Floats | Reduce | None = None,  # the states that nonnegative_at="visited" means
    returns: SampleReturns | None = None,
    lost: tuple[Floats, ...] = (),  # Σ z_T and Σ y_T over what was given up, the first alone if φ_J = φ_M
    supports: tuple[Support, Support] | None = None,  # where they are not those of the equations
    **facts: Any,  # more of the provenance
) -> tuple[RiskFunction, Face | None]:
    """The second equation solved, all of it in one record, and the active face of the constraint."""
    systems = (weights.mean_system, weights.second_system)
    solved = [system.solve(system.project(z)) for system, z in zip(systems, lost, strict=False)]
    supports = supports_of(equations, solved) if supports is None else supports
    direct, w_second, constrained = settings.variance == "direct", weights.second, None
    if settings.nonnegative_at is not None:
        demanded = visited if isinstance(settings.nonnegative_at, str) else settings.nonnegative_at
        constraint = Constraint(equations, weights, d, supports, direct, settings.constraint_solver)
        constrained = (
            constraint.at_visited(demanded) if callable(demanded) else constraint.at(np.asarray(demanded))
        )
        w_second = constrained.w_second
        facts |= {"constrained": len(constrained.face.H), "constraint_residual": constrained.residual}
    elif direct:
        w_second = weights.second_system.solve(d)
    of_equations = ("lam", "discount", "episodes", "terminated", "transitions", "outside", "trace_cut")
    provenance = Provenance(
        estimator=estimator,
        **{name: getattr(equations, name) for name in of_equations},
        ridge=settings.ridge,
        variance_lam=settings.variance_lam,
        redundant=max(system.redundant for system in systems),
        condition=max(system.condition for system in systems),
        residual=max(system.residual for system in systems),
        **facts,
    )
    risk = RiskFunction(
        features=equations.features,
        second_features=equations.second_features,
        w_mean=weights.mean,
        w_second=w_second,
        variance_method=settings.variance,
        support=supports[0],
        second_support=supports[1],
        provenance=provenance,
        returns=returns,
    )
    return risk, None if constrained is None else constrained.face


@dataclass(frozen=True, eq=False)
class Constrained:
    """w_second under the constraint."""

    w_second: Floats  # (l_M,)
    face: Face  # the active rows, for the error bars
    residual: float


@dataclass(frozen=True, eq=False)
class Constraint:
    """The second equation C w = d with Ṽ ≥ 0 demanded somewhere."""

    equations: MomentEquations
    weights: Weights
    d: Floats  # (l_M,)
    supports: tuple[Support, Support]
    direct: bool
    solver: str

    def at(self, states: npt.NDArray[Any]) -> Constrained:
        """Ṽ ≥ 0 at the given states (m, dim)."""
        phi_J, phi_M = self.equations.features(states), self.equations.second_features(states)
        known = np.flatnonzero(self.supports[0].visited(phi_J) & self.supports[1].visited(phi_M))
        phi_J, phi_M = phi_J[known], phi_M[known]
        system, K = self.weights.factored_systems[1], self.equations.episodes
        J = np.asarray(phi_J @ self.weights.mean)
        least = np.zeros(known.size) if self.direct else J**2
        size = max(float(np.abs(phi_M @ system.solve(self.d)).max(initial=0.0)), least.max(initial=0.0))
        gram = system.restrict(np.asarray(system.restrict(self.equations.gram)).T)
        try:
            solution = solve_constrained(
                system.reduced / K,
                np.asarray(system.restrict(self.d[None, :])).ravel() / K,
                system.restrict(-phi_M),
                -(least + ROUNDING * size),
                gram=np.asarray(gram) / K,
                solver=self.solver,
            )
        except InfeasibleConstraintError as error:
            raise InfeasibleConstraintError(
                f"nonnegative_at demands V >= 0 at {known.size} states, and no weights give that (Assumption "
                f"11: feasible constraint). Add a second feature that is positive at all of them, such as a "
                f"constant, or name fewer states. In detail, with a row for each state: {error}"
            ) from error
        H, G = as_dense(-phi_M[solution.active]), as_dense(phi_J[solution.active])
        face = Face(H=H, G=np.zeros_like(G) if self.direct else -2.0 * J[solution.active, None] * G)
        return Constrained(system.lift(solution.w), face, solution.residual)

    def at_visited(self, reduce: Reduce) -> Constrained:
        """Ṽ ≥ 0 at every state of the data that a transition started in."""
        w, second_features = self.weights.second_system.solve(self.d), self.equations.second_features
        nothing = Face(H=np.zeros((0, len(w))), G=np.zeros((0, len(self.weights.mean))))
        answer = Constrained(w, nothing, 0.0)
        demanded: list[npt.NDArray[Any]] = []
        for _ in range(ROUNDS):
            maps = (self.equations.features, self.weights.mean), (second_features, answer.w_second)
            found = reduce(partial(_offenders, *maps, self.direct))
            if not len(found.V):
                return answer
            demanded.append(found.worst(second_features))
            answer = self.at(np.concatenate(demanded))
        raise SolverError(
            f'nonnegative_at="visited" left negative variances after {ROUNDS} rounds of up to {OFFENDERS} '
            "states; name the states that matter in nonnegative_at, or use variance='direct'"
        )


@record(states="n dim", V="n")
@dataclass(frozen=True, eq=False)
class Offenders:
    """States with a negative Ṽ, the most negative first; they add, and the worst stay."""

    states: npt.NDArray[Any]  # (n, dim)
    V: Floats  # (n,)

    def __add__(self, other: Offenders) -> Offenders:
        if not (len(self.V) and len(other.V)):
            return self if len(self.V) else other
        V = np.concatenate([self.V, other.V])
        order = np.argsort(V, kind="stable")[: 16 * OFFENDERS]
        return Offenders(np.concatenate([self.states, other.states])[order], V[order])

    def worst(self, second_features: Features) -> npt.NDArray[Any]:
        """A state for each of the worst φ_M, (n, dim)."""
        phi = as_dense(second_features(self.states))
        distinct = np.sort(np.unique(phi, axis=0, return_index=True)[1])
        return np.asarray(self.states[distinct[:OFFENDERS]])


def _offenders(
    mean: tuple[Features, Floats], second: tuple[Features, Floats], direct: bool, source: Source, part: int
) -> Offenders:
    """The states with a negative Ṽ, given φ_J and w_J, and φ_M and w_second."""
    found = Offenders(np.zeros((0, 0)), np.zeros(0))
    for batch in batches(source):
        rows = batch.visited_rows
        for first in range(0, rows.size, _CHUNK):
            states = batch.states[rows[first : first + _CHUNK]]
            J, M = (np.asarray(features(states) @ w) for features, w in (mean, second))
            V = M if direct else M - J**2
            least = -1e-9 * float((np.abs(M) + J**2).max(initial=0.0))
            negative = np.flatnonzero(V < least)
            if negative.size:
                worst = negative[np.argsort(V[negative], kind="stable")[: 4 * OFFENDERS]]
                found += Offenders(states[worst], V[worst])
    return found
