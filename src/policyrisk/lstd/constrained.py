"""The positive-variance constraint (sec. 5): between LSTD and :mod:`policyrisk.equations.constraint`.

At the demanded states x_i the rows are H_i = −φ_M(x_i)ᵀ and g_i = −(φ_J(x_i)ᵀ w_J)² (0 for the direct
variance). Redundant and unvisited features are taken out before the solve, and states that were not
visited are left out: nothing is known about them.

``nonnegative_at="visited"`` demands Ṽ ≥ 0 at every state of the data, which may be millions. Only those where
the estimate would be negative matter, so they are found by going over the data again: solve, add the worst
offenders, and so on until there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints, Matrix
from policyrisk._core.records import record
from policyrisk.equations import MomentEquations, Weights
from policyrisk.equations.constraint import solve_constrained
from policyrisk.errors import InfeasibleConstraintError, SolverError
from policyrisk.features import Features
from policyrisk.lstd.sandwich import Face
from policyrisk.passes.fold import Fold
from policyrisk.trajectories import Source, batches

OFFENDERS = 500  # states added in one round
ROUNDS = 60
ROUNDING = 1e-12  # what rounding may take from Ṽ, relative to the largest second moment
_CHUNK = 1 << 13  # states whose features are in hand at once


@dataclass(frozen=True, eq=False)
class Constrained:
    """w_second under the constraint."""

    w_second: Floats  # (l_M,)
    face: Face  # the active rows, for the error bars
    residual: float


@dataclass(frozen=True, eq=False)
class Constraint:
    """The second equation C w = d with Ṽ ≥ 0 demanded somewhere."""

    features: Features
    second_features: Features
    equations: MomentEquations
    weights: Weights
    d: Floats  # (l_M,)
    direct: bool
    solver: str
    visited: Callable[[Matrix, Matrix], Any]  # whether rows of φ_J and φ_M are known, (n,)

    def at(self, states: npt.NDArray[Any]) -> Constrained:
        """Ṽ ≥ 0 at the given states (m, dim)."""
        phi_J, phi_M = self.features(states), self.second_features(states)
        known = np.flatnonzero(self.visited(phi_J, phi_M))
        phi_J, phi_M = phi_J[known], phi_M[known]
        system, K = self.weights.dense_systems[1], self.equations.episodes
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
        return Constrained(
            system.lift(solution.w), self._face(phi_J, phi_M, J, solution.active), solution.residual
        )

    def at_visited(self, fold: Fold) -> Constrained:
        """Ṽ ≥ 0 at every state of the data that a transition started in."""
        w = self.weights.second_system.solve(self.d)
        answer = Constrained(w, self._face(*self._nothing(), np.arange(0)), 0.0)
        demanded: list[npt.NDArray[Any]] = []
        for _ in range(ROUNDS):
            found = fold(
                _Offending(
                    self.features, self.second_features, self.weights.mean, answer.w_second, self.direct
                )
            )
            if not len(found.V):
                return answer
            demanded.append(found.worst(self.second_features))
            answer = self.at(np.concatenate(demanded))
        raise SolverError(
            f'nonnegative_at="visited" left negative variances after {ROUNDS} rounds of up to {OFFENDERS} '
            "states; name the states that matter in nonnegative_at, or use variance='direct'"
        )

    def _face(self, phi_J: Matrix, phi_M: Matrix, J: Floats, active: Ints) -> Face:
        H, G = _dense(-phi_M[active]), _dense(phi_J[active])
        return Face(H=H, G=np.zeros_like(G) if self.direct else -2.0 * J[active, None] * G)

    def _nothing(self) -> tuple[Floats, Floats, Floats]:
        sizes = len(self.weights.mean), len(self.weights.second)
        return np.zeros((0, sizes[0])), np.zeros((0, sizes[1])), np.zeros(0)


@record
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
        phi = _dense(second_features(self.states))
        distinct = np.sort(np.unique(phi, axis=0, return_index=True)[1])
        return np.asarray(self.states[distinct[:OFFENDERS]])


@dataclass(frozen=True, eq=False)
class _Offending:
    """The pass that looks for states with a negative Ṽ."""

    features: Features
    second_features: Features
    w_mean: Floats  # (l_J,)
    w_second: Floats  # (l_M,)
    direct: bool

    def __call__(self, source: Source, part: int) -> Offenders:
        found = Offenders(np.zeros((0, 0)), np.zeros(0))
        for batch in batches(source):
            rows = batch.visited_rows
            for first in range(0, rows.size, _CHUNK):
                states = batch.states[rows[first : first + _CHUNK]]
                J = np.asarray(self.features(states) @ self.w_mean)
                second = np.asarray(self.second_features(states) @ self.w_second)
                V = second if self.direct else second - J**2
                least = -1e-9 * float((np.abs(second) + J**2).max(initial=0.0))
                negative = np.flatnonzero(V < least)
                if negative.size:
                    worst = negative[np.argsort(V[negative], kind="stable")[: 4 * OFFENDERS]]
                    found += Offenders(states[worst], V[worst])
        return found


def _dense(rows: Matrix) -> Floats:
    return rows if isinstance(rows, np.ndarray) else rows.toarray()
