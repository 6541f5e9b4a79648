"""The one way from episodes to an estimate: sums → weights → influences.

:class:`policyrisk.LSTD` and :class:`policyrisk.LSTDQ` differ in their steps
(:mod:`policyrisk.lstd.steps`), and in what they give up since nothing is known of it (:class:`Known`): the
last transitions of cut-off episodes, or actions that nobody logged. The rest is the same:

    first      A, b, C, D and e, the returns and the clusters, in one pass
    known      the sums without what is given up, and w_J; sums are repeated where something was
    answer     the second equation, its constraint, and all of it in one record
    influences the residuals in one more pass, and from them the error bars, starts and completed returns
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

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
from policyrisk._core.text import percent, plural
from policyrisk._core.units import unit_of
from policyrisk.equations import DENSE_MOST, MomentEquations, Weights
from policyrisk.errors import InvalidInputError, MismatchError, NoErrorBarsWarning, UncoveredWarning
from policyrisk.lstd.accumulate import FirstPass
from policyrisk.lstd.central_moments import MomentPasses, with_higher_moments
from policyrisk.lstd.cutoffs import Trim, count_biased
from policyrisk.lstd.influences import Solved, with_error_bars, with_starts
from policyrisk.lstd.nonnegative import Constraint, Face
from policyrisk.lstd.residuals import direct_right_hand_side
from policyrisk.lstd.steps import View
from policyrisk.passes import Reduce, reduce_in_units
from policyrisk.risk import Provenance, RiskFunction, SampleReturns, VarianceMethod
from policyrisk.risk.support import supports_of

WORTH_A_WARNING = 0.01  # of a target's probability, on average, without data


ConstraintSolver = Literal["active-set", "projection"]
# An LSTD or an LSTDQ, for its name and its settings besides features.
Settings: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class Known:
    """What is left once nothing rests on what nobody saw: its sums, and their solution."""

    view: View
    reduce: Reduce  # passes over what is left
    equations: MomentEquations
    weights: Weights
    facts: dict[str, Any]  # what :func:`answer` is told of it
    cut: Trim = field(default_factory=lambda: Trim(()))


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


def fit_by(
    estimator: Any, reduce: Reduce, error_bars: bool, bootstrap: int, seed: Seed, device: Device = "cpu"
) -> RiskFunction:
    """The estimate of an LSTD or an LSTDQ from data that ``reduce`` runs passes over."""
    check_callable(reduce, "reduce", "a pass over data, such as here(data)")
    error_bars = as_flag(error_bars, "error_bars")
    if as_count(bootstrap, "bootstrap") and not error_bars:
        raise InvalidInputError(
            f"bootstrap={bootstrap} draws need the error bars' pass, got error_bars=False; leave one out"
        )
    first = reduce(partial(FirstPass.over, estimator.view, device))
    unit = unit_of(first.largest)
    if unit != 1.0:
        del first
        again = reduce_in_units(reduce, unit)
        return fit_by(estimator, again, error_bars, bootstrap, seed, device).times(unit)
    without_bars = first.equations.sparse and not estimator.of_table
    if without_bars:
        check_sparse(estimator, first.equations, bootstrap, error_bars)
    found = solved(estimator, reduce, first, device)
    if not error_bars:
        return found.risk
    if without_bars:
        return with_starts(found.risk, reduce)
    return with_error_bars(found, reduce, first, bootstrap, seed)


def solved(estimator: Any, reduce: Reduce, first: FirstPass, device: Device = "cpu") -> Solved:
    """The estimate without error bars, from the first pass on, and what these are made from."""
    known = estimator.known(reduce, first, device)
    view, equations, weights = known.view, known.equations, known.weights
    d = second_right_hand_side(estimator, view, equations, weights.mean, known.reduce)
    risk, face = answer(
        estimator, equations, weights, d, visited=known.reduce, returns=first.returns, **known.facts
    )
    if known.cut.transitions:
        risk = count_biased(risk, known.reduce)
    if estimator.moments > 2:
        passes = MomentPasses(known.reduce, estimator.lam)
        risk = with_higher_moments(risk, estimator.higher_features, weights, passes)
    _warn_of_uncovered(risk.provenance)
    return Solved(risk, view, equations, replace(weights, second=risk.w_second), face, known.cut)


def second_right_hand_side(
    settings: Settings, view: View, equations: MomentEquations, w_mean: Floats, reduce: Reduce
) -> Floats:
    """d of C w_second = d, (l_M,); the direct variance's takes a pass."""
    if settings.variance == "second-moment":
        return equations.second_rhs(w_mean)
    kappa = settings.variance_lam
    return reduce(lambda source, _: direct_right_hand_side(source, w_mean, view, kappa))


def answer(
    settings: Settings,
    equations: MomentEquations,
    weights: Weights,
    d: Floats,  # (l_M,): the second equation's right-hand side
    *,
    called: str | None = None,  # in the place of the estimator's name
    visited: Floats | Reduce | None = None,  # the states that nonnegative_at="visited" means
    returns: SampleReturns | None = None,
    lost: tuple[Floats, ...] = (),  # Σ z_T and Σ y_T over what was given up, the first alone if φ_J = φ_M
    support: Mapping[str, Any] | None = None,  # how the supports differ from those of LSTD
    **facts: Any,  # more of the provenance
) -> tuple[RiskFunction, Face | None]:
    """The second equation solved, all of it in one record, and the active face of the constraint."""
    systems = (weights.mean_system, weights.second_system)
    solved = [system.solve(system.project(z)) for system, z in zip(systems, lost, strict=False)]
    supports = supports_of(equations, solved, **(support or {}))
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
        estimator=called or settings.name,
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


def solve(estimator: Any, equations: MomentEquations) -> RiskFunction:
    """The answer of summed equations; what needs the data again is an error that points to ``fit``."""
    name = estimator.name
    check_kind(equations, "equations", MomentEquations, f"make them with {name.lower()}.equations(data)")
    needs_data = {
        'variance="direct"': estimator.variance == "direct",
        'nonnegative_at="visited"': isinstance(estimator.nonnegative_at, str),
        f"moments={estimator.moments}": estimator.moments > 2,
    }
    if setting := next((each for each, asked in needs_data.items() if asked), ""):
        raise InvalidInputError(
            f"solve(equations) cannot do {setting}, which needs the data a second time; "
            "use fit(data) or fit_exact(chain, start)"
        )
    for each in ("lam", "discount", "features", "second_features"):
        mine, theirs = getattr(estimator.view, each), getattr(equations, each)
        if mine != theirs:
            raise MismatchError(
                f"equations must agree with the estimator on {each}={mine!r}, got {theirs!r}; "
                "solve them with the estimator that made them"
            )
    if equations.sparse:
        check_sparse(estimator, equations, 0, error_bars=False)
    weights = equations.solve(estimator.ridge)
    d = equations.second_rhs(weights.mean)
    return answer(estimator, equations, weights, d, called=f"{name}.solve")[0]


def check_sparse(settings: Settings, equations: MomentEquations, bootstrap: int, error_bars: bool) -> None:
    """Raise or warn where something was asked for that sums that stay sparse cannot give."""
    size = max(len(equations.b), len(equations.e))
    if bootstrap or settings.nonnegative_at is not None:
        asked = f"bootstrap={bootstrap}" if bootstrap else "nonnegative_at"
        raise InvalidInputError(
            f"{asked} needs dense sums, got {size} sparse features, whose sums stay sparse; leave it out, or "
            f"use at most {DENSE_MOST} features"
        )
    if error_bars:
        warnings.warn(
            f"no error bars: with {size} sparse features their covariance would not fit; pass "
            f"error_bars=False to say that this is meant, or use at most {DENSE_MOST} features",
            NoErrorBarsWarning,
            stacklevel=5,
        )


def _warn_of_uncovered(facts: Provenance) -> None:
    if facts.left_out > WORTH_A_WARNING:
        warnings.warn(
            f"{percent(facts.left_out)} of the target's probability, on average over the recorded steps, "
            "is on actions that were never logged where they would be taken: the estimates are of the "
            f"target restricted to what was logged ({plural(facts.dropped, 'transition')} into states "
            "without such actions are left out). See risk.covered(x) and the summary",
            UncoveredWarning,
            stacklevel=6,
        )
