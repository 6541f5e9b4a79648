"""Non-negative variance at states: the second equation with the constraint of sec. 5 in place of its own.

The constraint is that of :mod:`policyrisk.equations.constraint`. At the demanded states x_i the rows are
H_i = −φ_M(x_i)ᵀ and g_i = −(φ_J(x_i)ᵀ w_J)² (0 for the direct variance). Redundant and unvisited features are
taken out before the solve, and states that were not visited are left out: nothing is known about them.

``nonnegative_at="visited"`` demands Ṽ ≥ 0 at every state of the data, which may be millions. Only those where
the estimate would be negative matter, so they are found by going over the data again: solve, add the worst
offenders, and so on until there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Floats,
    as_dense,
)
from policyrisk._core.records import record
from policyrisk.data import Source, batches
from policyrisk.equations import MomentEquations, Weights
from policyrisk.equations.constraint import solve_constrained
from policyrisk.errors import (
    InfeasibleConstraintError,
    SolverError,
)
from policyrisk.features import Features
from policyrisk.passes import Reduce
from policyrisk.risk.support import Support

OFFENDERS = 500  # states added in one round
ROUNDS = 60
ROUNDING = 1e-12  # what rounding may take from Ṽ, relative to the largest second moment
_CHUNK = 1 << 13  # states whose features are in hand at once


@dataclass(frozen=True, eq=False)
class Face:
    """The active rows of the positive-variance constraint: H w_M = g(w_J), G = dg/dw_J."""

    H: Floats  # (active, l_M)
    G: Floats  # (active, l_J)


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
