"""The positive-variance constraint (sec. 5), between the estimator and :mod:`policyrisk.constraint`.

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

from policyrisk._arrays import Floats, Ints, Matrix
from policyrisk.constraint import solve_constrained
from policyrisk.equations import MomentEquations, Weights
from policyrisk.errors import InfeasibleConstraintError, SolverError
from policyrisk.features import Features
from policyrisk.lstd.influence import Face
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
        system, K = self.weights.second_system, self.equations.episodes
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

    def at_visited(self, source: Source) -> Constrained:
        """Ṽ ≥ 0 at every state of the source that a transition started in."""
        w = self.weights.second_system.solve(self.d)
        answer = Constrained(w, self._face(*self._nothing(), np.arange(0)), 0.0)
        demanded: list[npt.NDArray[Any]] = []
        for _ in range(ROUNDS):
            worst = self._offenders(source, answer.w_second)
            if worst is None:
                return answer
            demanded.append(worst)
            answer = self.at(np.concatenate(demanded))
        raise SolverError(
            f'nonnegative_at="visited" left negative variances after {ROUNDS} rounds of up to {OFFENDERS} '
            "states; name the states that matter in nonnegative_at, or use variance='direct'"
        )

    def _offenders(self, source: Source, w: Floats) -> npt.NDArray[Any] | None:
        """The states with the most negative Ṽ, one for each φ_M, None where no Ṽ is negative."""
        found: list[tuple[npt.NDArray[Any], Floats]] = []
        for batch in batches(source):
            rows = batch.visited_rows
            for first in range(0, rows.size, _CHUNK):
                states = batch.states[rows[first : first + _CHUNK]]
                J = np.asarray(self.features(states) @ self.weights.mean)
                second = np.asarray(self.second_features(states) @ w)
                V = second if self.direct else second - J**2
                least = -1e-9 * float((np.abs(second) + J**2).max(initial=0.0))
                negative = np.flatnonzero(V < least)
                if negative.size:
                    worst = negative[np.argsort(V[negative], kind="stable")[: 4 * OFFENDERS]]
                    found.append((states[worst], V[worst]))
        if not found:
            return None
        states = np.concatenate([part for part, _ in found])
        order = np.argsort(np.concatenate([V for _, V in found]), kind="stable")[: 16 * OFFENDERS]
        phi = self.second_features(states[order])
        dense = phi if isinstance(phi, np.ndarray) else phi.toarray()
        distinct = np.sort(np.unique(dense, axis=0, return_index=True)[1])
        return np.asarray(states[order[distinct[:OFFENDERS]]])

    def _face(self, phi_J: Matrix, phi_M: Matrix, J: Floats, active: Ints) -> Face:
        H, G = _dense(-phi_M[active]), _dense(phi_J[active])
        return Face(H=H, G=np.zeros_like(G) if self.direct else -2.0 * J[active, None] * G)

    def _nothing(self) -> tuple[Floats, Floats, Floats]:
        sizes = len(self.weights.mean), len(self.weights.second)
        return np.zeros((0, sizes[0])), np.zeros((0, sizes[1])), np.zeros(0)


def _dense(rows: Matrix) -> Floats:
    return rows if isinstance(rows, np.ndarray) else rows.toarray()
