"""Improving the policy of a decision process by the exact gradient.

Policies are π(a|x) ∝ exp(φ(x)ᵀ w_a), φ the identity (a table) or given features. A criterion f(m, v) of mean
and variance has, by :mod:`policyrisk.markov.mdp` and the chain rule,

    G(x, a) = ∂f/∂m ∂m/∂π(a|x) + ∂f/∂v ∂v/∂π(a|x)
    ∂f/∂w_a = Σ_x φ(x) π(a|x) (G(x, a) − Σ_b π(b|x) G(x, b))

which L-BFGS-B climbs. A softmax that is nearly certain has no gradient left, even where it is certain of the
wrong action; so every climb is three, with weights within ±2, ±4 and ±16 (in units of each feature's largest
value): the first settles what is worth being certain of while no probability is small, the last has
probabilities down to 1e-14.

Such criteria have many local optima. Climbs start from the given policy, from the uniform one, from those
with the largest mean and the smallest variance, which are climbed to first, and from random ones.

A constraint g(m, v) ≥ 0 is met by an augmented Lagrangian: climbs of

    f − (max(0, λ − μg)² − λ²) / 2μ,      after each of which λ ← max(0, λ − μg)

and μ grows where the violation does not fall. All is in units of the std and the variance under the uniform
policy. Of all policies on the way that meet the constraint the best is the answer.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.optimize import Bounds, minimize
from scipy.sparse.linalg import lsqr
from scipy.special import softmax

from policyrisk._core.arrays import (
    Floats,
    Matrix,
    Seed,
    as_count,
    as_csr,
    as_floats,
    freeze,
    is_sparse,
)
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import generator
from policyrisk._core.text import Readable, TextTable, number, plural
from policyrisk.errors import (
    ImproperPolicyError,
    InfeasibleConstraintError,
    InvalidInputError,
    SolverError,
)
from policyrisk.markov.branches import Sparse, as_policy
from policyrisk.markov.linear import Corrector, Resolvent, choose, discounted
from policyrisk.markov.mdp import MDP, PolicyGradient, Solve, policy_gradient

Slope: TypeAlias = tuple[float, float, float]  # a function of mean and variance: its value and derivatives

_ENDLESS = (ImproperPolicyError, SolverError, InvalidInputError)  # episodes of a policy hardly ever end
_BOUNDS = (2.0, 4.0, 16.0)  # of the weights, climb after climb
_TOLERANCE = 1e-9  # of the constraint, in its unit: further out is not feasible
_MARGIN = 1e-7  # in the same units: how far inside the bound the Lagrangian aims
_MULTIPLIERS = 30  # updates of the multiplier, at most, within a bound
_SURE = 1e-6  # a smaller probability is made 0 at the end
_NO_END = 1e9  # times what the uniform policy earns: more has no bound
_NO_RISK = 1e-10  # of the uniform policy's variance: none is left


@dataclass(frozen=True, eq=False)
class Improvement(Readable):
    """A policy found by improving a criterion, and how it was found."""

    policy: Floats  # (n, actions) the softmax, its probabilities below 1e-6 made 0 where that is no worse
    weights: Floats  # (k, actions) of the softmax; k = n for a table
    mean: float  # of the return over the start distribution
    variance: float
    value: float  # of the criterion
    criterion: Any
    history: Floats  # (iterations, 3): mean, variance and value along the climb that led to the policy
    reached: Floats  # (climbs,) the best value of every climb, the one above among them; nan: none feasible
    reason: str  # why the climb stopped

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def std(self) -> float:
        """√variance."""
        return math.sqrt(max(self.variance, 0.0))

    def _blocks(self) -> list[str | TextTable]:
        return [
            f"{self.criterion}: {number(self.value)} (mean {number(self.mean)}, std {number(self.std)}), "
            f"the best of {plural(len(self.reached), 'climb')}; {plural(len(self.history), 'iteration')}, "
            f"stopped since {self.reason}"
        ]


class Point(NamedTuple):
    """A policy on the way, and the gradients of its mean and of its variance by the weights."""

    weights: Floats  # (k, actions)
    policy: Floats  # (n, actions)
    mean: float
    variance: float
    aim: Slope  # the criterion, turned so that larger is better
    slack: Slope | None  # of the constraint, None where there is none
    mean_gradient: Floats  # (k, actions)
    variance_gradient: Floats  # (k, actions)


def improve(
    mdp: MDP,
    criterion: Any,
    start: Any,
    policy: Any,
    seed: Seed,
    features: object,
    restarts: int,
    iterations: int,
) -> Improvement:
    """The best of several climbs; the arguments are those of :meth:`MDP.improve`."""
    if not all(hasattr(criterion, name) for name in ("slopes", "slack", "larger_is_better")):
        raise InvalidInputError(
            "criterion must be one of mean and variance such as criteria.MeanMinusStd(1.0), got "
            f"{criterion!r}; pass one of those, or give it `slopes`, `slack` and `larger_is_better`"
        )
    phi = _as_features(features, mdp.n)
    rng, uniform, last = generator(seed), np.zeros((phi.shape[1], mdp.actions)), len(_BOUNDS) - 1
    starts = [(uniform, 0)]
    if policy is not None:
        given = _weights_near(as_policy(policy, mdp.n, mdp.actions), phi)
        starts = [(given, last), (given, 0), *starts]  # as it is, and softened
    count, most = as_count(restarts, "restarts"), as_count(iterations, "iterations", 1)
    starts += [(rng.standard_normal(uniform.shape), 0) for _ in range(count)]
    problem = _Problem(mdp, criterion, phi, start, most)
    climbs = []
    with ProgressBar(f"improving {criterion}", len(starts) + len(_EXTREMES)) as bar:
        for extreme in _EXTREMES:
            end = _Climb(_Problem(mdp, extreme, phi, start, most), uniform, 0).best
            starts += [] if end is None else [(end.weights, last), (end.weights, 1)]
            bar.advance()
        for weights, first in starts:
            with suppress(*_ENDLESS):  # of its first policy
                climbs.append(_Climb(problem, weights, first))
            bar.advance()
    climb = max(climbs, key=lambda climb: climb.value)
    found = climb.best
    if found is None:
        nearest = min((climb.nearest for climb in climbs), key=problem.violation)
        raise InfeasibleConstraintError(
            f"criterion must be one that some policy meets, got {criterion}; the nearest after "
            f"{plural(len(climbs), 'climb')} has mean {number(nearest.mean)} and variance "
            f"{number(nearest.variance)}: loosen the bound, or let the policy see more of the state"
        )
    final = problem.rounded(found)
    if abs(final.mean) > _NO_END * max(abs(problem.mean), math.sqrt(problem.variance)):
        raise ImproperPolicyError(
            f"criterion must have a bound, got {criterion}, whose mean grew to {number(final.mean)} with "
            "episodes that hardly ever end; use discount < 1, or a criterion that counts their variance"
        )
    return Improvement(
        policy=final.policy,
        weights=final.weights,
        mean=final.mean,
        variance=final.variance,
        value=problem.sign * final.aim[0],
        criterion=criterion,
        history=np.array(climb.history).reshape(-1, 3),
        reached=np.array([math.nan if c.best is None else problem.sign * c.value for c in climbs]),
        reason="no risk is left" if final.variance <= _NO_RISK * problem.variance else climb.reason,
    )


class _Problem:
    """What all climbs share: the process, the criterion, the features, and the units."""

    def __init__(self, mdp: MDP, criterion: Any, phi: Matrix, start: Any, iterations: int) -> None:
        self.mdp, self.criterion, self.phi, self.iterations = mdp, criterion, phi, iterations
        self.sign = 1.0 if criterion.larger_is_better else -1.0
        largest: Any = sp.csr_array(phi).copy()
        largest.data = np.abs(largest.data)
        self.largest: Floats = largest.max(axis=0).toarray().ravel()
        self.largest[self.largest == 0.0] = 1.0
        uniform = np.zeros((phi.shape[1], mdp.actions))
        self.zeta = mdp.chain(self.policy(uniform)).start_distribution(start)
        point = self.at(uniform)
        self.mean = point.mean
        self.variance = point.variance if point.variance > 0 else max(point.mean**2, 1.0)
        self.middle = point.aim[0] if math.isfinite(point.aim[0]) else 0.0
        self.unit = self._size(point.aim)
        self.slack_unit = 1.0 if point.slack is None else self._size(point.slack)

    def _size(self, slope: Slope) -> float:
        """By how much a function changes where the mean changes by the std and the variance by itself."""
        return abs(slope[1]) * math.sqrt(self.variance) + abs(slope[2]) * self.variance or 1.0

    def policy(self, weights: Floats) -> Floats:
        """π of shape (n, actions)."""
        return np.asarray(softmax(self.phi @ weights, axis=1))

    def at(self, weights: Floats) -> Point:
        """The point of weights (k, actions)."""
        table, policy = self.mdp._table, self.policy(weights)
        chances = table.weights(policy)
        solve = _solver(table.matrix(chances), self.mdp.discount)
        found = policy_gradient(table, chances, self.zeta, self.mdp.discount, solve)
        if not math.isfinite(found.mean) or not found.variance >= -_TOLERANCE * found.mean**2:
            raise SolverError("a policy whose episodes hardly ever end")
        return self._point(weights, policy, found)

    def rounded(self, point: Point) -> Point:
        """The point without its smallest probabilities, unless that makes it worse."""
        policy = np.where(point.policy < _SURE, 0.0, point.policy)
        try:
            policy /= policy.sum(axis=1, keepdims=True)
            sure = self._point(point.weights, policy, self.mdp.gradient(policy, self.zeta))
        except _ENDLESS:
            return point
        feasible = self.violation(sure) <= self.violation(point)
        return sure if feasible and sure.aim[0] >= point.aim[0] else point

    def _point(self, weights: Floats, policy: Floats, found: PolicyGradient) -> Point:
        m, v = found.mean, found.variance
        value, by_mean, by_variance = self.criterion.slopes(m, v)
        gradients = (
            self.phi.T @ (policy * (G - (policy * G).sum(axis=1, keepdims=True)))
            for G in (found.by_mean, found.by_variance)
        )
        aim = self.sign * value, self.sign * by_mean, self.sign * by_variance
        return Point(weights, policy, m, v, aim, self.criterion.slack(m, v), *gradients)

    def violation(self, point: Point) -> float:
        """How far outside the constraint a point is, in its unit; 0 inside."""
        return 0.0 if point.slack is None else max(-point.slack[0] / self.slack_unit, 0.0)


class _Extreme(NamedTuple):
    """A weighted sum of mean and variance, as a criterion."""

    by_mean: float
    by_variance: float
    larger_is_better: bool = True

    def slopes(self, mean: float, variance: float) -> Slope:
        return self.by_mean * mean + self.by_variance * variance, self.by_mean, self.by_variance

    def slack(self, mean: float, variance: float) -> None:
        return None


_EXTREMES = (_Extreme(1.0, 0.0), _Extreme(0.0, -1.0))  # the boldest policy, and the most careful one


class _NoRiskError(Exception):
    """A criterion has no bound: no policy can be better."""


class _Climb:
    """From one start through all bounds: the best point on the way that is feasible."""

    def __init__(self, problem: _Problem, weights: Floats, first: int) -> None:
        self.problem = problem
        self.best: Point | None = None
        self.history: list[tuple[float, float, float]] = []
        self.reason = ""
        self.multiplier, self.penalty = 0.0, 10.0  # λ and μ
        self.at = self.nearest = problem.at(self._inside(weights, _BOUNDS[first]))
        try:
            for stage in range(first, len(_BOUNDS)):
                self._climb_within(stage)
        except _NoRiskError:
            self.reason = "no risk is left"

    @property
    def value(self) -> float:
        """Of the best point, the larger the better; −inf without one."""
        return -math.inf if self.best is None else self.best.aim[0]

    def _inside(self, weights: Floats, bound: float) -> Floats:
        limit = bound / self.problem.largest[:, None]
        return np.clip(weights, -limit, limit)

    def _climb_within(self, stage: int) -> None:
        """Climb once, or with a constraint until the multiplier has settled."""
        last = stage == len(_BOUNDS) - 1
        self._ascend(_BOUNDS[stage], 1e-12 if last else 1e-9)
        if self.at.slack is None:
            return
        close, violated = (_MARGIN if last else 1e-3), math.inf
        for _ in range(_MULTIPLIERS):
            inside = self.at.slack[0] / self.problem.slack_unit - _MARGIN
            missed = abs(min(inside, self.multiplier / self.penalty))
            if missed <= 0.5 * close:
                break
            self.multiplier = max(0.0, self.multiplier - self.penalty * inside)
            if missed > 0.25 * violated:
                self.penalty = min(5.0 * self.penalty, 1e8)
            violated = missed
            self._ascend(_BOUNDS[stage], 1e-14 if last else 1e-9)

    def _ascend(self, bound: float, tolerance: float) -> None:
        """L-BFGS-B from where the climb is, on the augmented Lagrangian where there is a constraint."""
        shape = self.at.weights.shape
        limit = np.broadcast_to(bound / self.problem.largest[:, None], shape).ravel()
        tried = self.at

        def descent(flat: Any) -> tuple[float, Floats]:
            nonlocal tried
            try:
                tried = self.problem.at(flat.reshape(shape))
            except _ENDLESS:  # step back
                return 1e6, np.zeros(flat.size)
            self._see(tried)
            value, gradient = self._lagrangian(tried)
            return -value, -gradient.ravel()

        def accept(_: Any) -> None:
            self.at = tried
            self.history.append((tried.mean, tried.variance, self.problem.sign * tried.aim[0]))

        search: Any = minimize  # its stubs want the exact dimension of every array
        options = {"maxiter": self.problem.iterations, "maxcor": 20, "ftol": tolerance, "gtol": 1e-8}
        done = search(
            descent,
            self._inside(self.at.weights, bound).ravel(),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(-limit, limit),
            callback=accept,
            options=options,
        )
        if done.status == 0:
            still = "GRADIENT" in str(done.message).upper()
            self.reason = "the gradient vanished" if still else "the criterion did not grow any more"
        else:
            limit_reached = f"{self.problem.iterations} iterations were made"
            self.reason = limit_reached if done.status == 1 else "no step along the gradient was better"

    def _see(self, point: Point) -> None:
        """Keep the point if it is the best feasible one, or the nearest to being feasible."""
        violation = self.problem.violation(point)
        if violation < self.problem.violation(self.nearest):
            self.nearest = point
        if violation <= _TOLERANCE and point.aim[0] > self.value:
            self.best = point
        if not math.isfinite(point.aim[0]):
            raise _NoRiskError

    def _lagrangian(self, point: Point) -> tuple[float, Floats]:
        """The criterion in its unit, less what the constraint costs, and the gradient (k, actions)."""
        problem = self.problem
        value, by_mean, by_variance = (part / problem.unit for part in point.aim)
        value -= problem.middle / problem.unit
        if point.slack is not None:
            inside, mean_inside, variance_inside = (part / problem.slack_unit for part in point.slack)
            pressure = max(0.0, self.multiplier - self.penalty * (inside - _MARGIN))
            value -= (pressure**2 - self.multiplier**2) / (2.0 * self.penalty)
            by_mean += pressure * mean_inside
            by_variance += pressure * variance_inside
        return value, by_mean * point.mean_gradient + by_variance * point.variance_gradient


def _solver(P: Sparse, discount: float | Floats) -> Solve:
    """The solves of one policy: a direct method's first answer will do for a gradient."""
    methods: dict[int, Corrector] = {}

    def solve(power: int, b: Floats, transpose: bool) -> Floats:
        matrix, factor = discounted(P, discount, power)
        if power not in methods:
            same = power == 2 and np.ndim(discount) == 0 and factor == 1.0 and 1 in methods
            methods[power] = methods[1] if same else choose(matrix, factor)
        if not methods[power].together:  # an iterative one
            return Resolvent(matrix, factor).solve(b, transpose=transpose)[0]
        return methods[power].correct(b[:, None], 0.0, transpose=transpose).d[:, 0]

    return solve


def _as_features(features: object, n: int) -> Matrix:
    """Features (n, k) of the states; the identity for None."""
    if features is None:
        return sp.eye_array(n, format="csr")
    given: Any = features
    phi: Matrix = as_csr(given, "features") if is_sparse(given) else as_floats(given, "features", (n, None))
    if phi.shape[0] != n or phi.shape[1] == 0:
        raise InvalidInputError(
            f"features must have a row for each of the {n} states and at least one column, got shape "
            f"{phi.shape}; pass None for a table"
        )
    return phi


def _weights_near(policy: Floats, phi: Matrix) -> Floats:
    """The weights (k, actions) whose logits are nearest to those of a policy (n, actions)."""
    logits = np.log(np.maximum(policy, math.exp(-2.0 * _BOUNDS[-1])))
    logits -= (logits.max(axis=1, keepdims=True) + logits.min(axis=1, keepdims=True)) / 2.0
    return np.column_stack([lsqr(phi, column, atol=1e-12, btol=1e-12)[0] for column in logits.T])
