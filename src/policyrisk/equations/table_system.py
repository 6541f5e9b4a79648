"""The system of a table of states and actions: as many equations as there are pairs, solved as one of states.

With one feature for each pair of a state and an action, no traces and a policy π that is a table, the next
pair's features are rows of Π (n, l), Π_{x,(x,a)} = π(a|x), so that with N the visits, F_{(x,a),y} how often y
came after (x, a), and γ or γ² for g,

    A = N − g F Π

    A w = b:    u = N⁻¹ b,    (I − g Π N⁻¹ F) J = Π u,    w = u + g N⁻¹ F J,

where J = Π w are the values of states. g F is not kept: it is what A says, N − A summed over the columns of
each state, since π sums to 1 (or to 0, where no action is covered and nothing leads).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg as sla
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints
from policyrisk.equations.systems import CONDITION_LIMIT, factored, visited_features
from policyrisk.errors import SingularSystemError


class TableSystem:
    """A of shape (l, l), l = states · actions, those of an action side by side, ready to be solved."""

    kept: Ints
    redundant = 0
    residual = 0.0

    def __init__(
        self,
        policy: Any,  # Π, CSR (n, l)
        A: Any,
        gram: Any,
        visits: npt.NDArray[Any],
        ridge: float,
        name: str,
        single: bool = False,
    ) -> None:
        self.size, self.kept = len(visits), visited_features(A, gram, visits, name)[0]
        n = policy.shape[0]
        to_states = sp.csr_array(
            (np.ones(self.size), (np.arange(self.size), np.arange(self.size) % n)), shape=(self.size, n)
        )
        following = sp.csr_array((sp.diags_array(visits) - sp.csr_array(A)) @ to_states)[self.kept]  # g F
        self._inverse = 1.0 / (visits[self.kept] + ridge)
        self._following = sp.csr_array(sp.diags_array(self._inverse) @ following)
        self._policy = sp.csr_array(policy)[:, self.kept]
        core = np.eye(n) - (self._policy @ self._following).toarray()
        self._lu, self.condition = factored(core)
        if self.condition > CONDITION_LIMIT:
            raise SingularSystemError(
                f"{name} is singular or nearly so, with condition number {self.condition:.1e}: from some "
                "states the policy never comes to an end, in the data. Use discount < 1, or a small ridge"
            )

    def project(self, rhs: Floats) -> Floats:
        """The right-hand side itself: nothing is redundant."""
        return rhs

    def solve(self, rhs: Floats) -> Floats:
        """w with A w = rhs, of rhs's shape; 0 at unvisited pairs."""
        out = np.zeros(rhs.shape)
        out[self.kept] = self.solve_kept(rhs[self.kept])
        return out

    def solve_kept(self, y: Floats, *, refine: bool = False) -> Floats:
        """As solve, between right-hand sides and weights of the visited pairs alone, (kept,) or (kept, n)."""
        u = y * (self._inverse if y.ndim == 1 else self._inverse[:, None])
        J = sla.lu_solve(self._lu, self._policy @ u, check_finite=False)
        w: Floats = u + self._following @ J
        return w
