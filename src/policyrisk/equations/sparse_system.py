"""One square sparse system of a projected equation, solved by iteration: never a dense matrix.

The counterpart of :class:`~policyrisk.equations.dense_system.DenseSystem` for features by the ten thousand.
With S = diag(G)^(−1/2), G being the Gram matrix, it solves, for the visited features,

    S A S u = S b,        w = S u

by GMRES from u = 0 with long restarts. Neither A nor its factors are copied; the Krylov vectors take
8 · visited · RESTART bytes.

Redundant features (several tilings always are) make A singular: a direction n with G n = 0 has A n = 0 and
nᵀA = 0 alike, and b is orthogonal to it. The system is consistent, and GMRES from 0 finds a solution; which
one does not matter, since n changes no estimate at a visited state. It is not that of minimum norm, and
nothing counts the redundant directions.

What cannot be seen here: a cut-off episode that ends where each feature was visited, but never in that
combination, may leave a direction undetermined. The dense solve refuses that, this one returns one of the
solutions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse.linalg as ssl

from policyrisk._core.arrays import Floats, Ints
from policyrisk.equations.dense_system import visited_features
from policyrisk.errors import SolverError

# ‖S(b − A w)‖ / ‖S b‖: what is aimed at, and what is still accepted where that would take too long. Estimates
# have come out a few times to some hundred times less exact, beside their own spread.
GOAL, ACCEPTED = 1e-8, 1e-5
RESTART, CYCLES = 300, 5  # Krylov vectors kept at a time, and how often GMRES begins anew
# A cycle that leaves more than SLOW of an accepted residual, or more than STUCK of any, was the last one.
SLOW, STUCK = 0.1, 0.9


class SparseSystem:
    """A of shape (l, l) in CSR, ready to be solved.

    ``kept`` are the visited features; ``residual`` is that of the worst solve so far.
    """

    kept: Ints
    redundant = 0  # not counted
    condition = float("nan")  # not known

    def __init__(self, A: Any, gram: Any, visits: npt.NDArray[Any], *, ridge: float, name: str) -> None:
        self.name, self.size, self.ridge = name, A.shape[0], ridge
        self.kept, self._scale = visited_features(A, gram, visits, name)
        self._A = A
        self.residual = 0.0

    def solve(self, rhs: Floats) -> Floats:
        """w with A w = rhs, of shape (l,); 0 at unvisited features."""
        kept, S = self.kept, self._scale
        b = S * rhs[kept]
        size = float(np.linalg.norm(b))
        w = np.zeros(self.size)
        if size == 0.0:
            return w

        def product(u: Floats) -> Floats:
            w[kept] = S * u
            Aw: Floats = self._A @ w
            return S * (Aw + self.ridge * w)[kept]

        operator = ssl.LinearOperator((kept.size, kept.size), matvec=product, dtype=np.float64)
        restart = min(RESTART, kept.size)
        count: list[float] = []
        u, residual = np.zeros(kept.size), 1.0
        for _ in range(CYCLES):
            before = residual
            u, _ = ssl.gmres(
                operator, b, u, rtol=GOAL, restart=restart, maxiter=1, callback=count.append,
                callback_type="pr_norm",
            )  # fmt: skip
            residual = float(np.linalg.norm(b - product(u))) / size
            if residual <= GOAL or residual > (SLOW if residual <= ACCEPTED else STUCK) * before:
                break
        if not residual <= ACCEPTED:
            raise SolverError(
                f"{self.name} must be solved to a relative residual of {ACCEPTED:g}, got {residual:.1e} "
                f"after {len(count)} iterations with {kept.size} visited features; use a small ridge, "
                "fewer or larger tiles, more episodes that terminate, or TD, which solves nothing"
            )
        self.residual = max(self.residual, residual)
        w[kept] = S * u
        return w
