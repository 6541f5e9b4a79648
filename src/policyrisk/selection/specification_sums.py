"""The pass that the specification test takes over the data: one-step errors times test features, summed.

For every episode k, with δ_t, ε_t, B_t and ψ_t of :mod:`policyrisk.selection.specification`, the four sums

    s_k = Σ_t ψ_t (δ_t,  ε_t,  B_t − J̃(x_t),  (B_t − J̃(x_t))² − Ṽ(x_t))

each of shape (p,), the derivatives G of their totals by the weights, and their sums with multipliers ξ_kb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, Matrix, as_dense
from policyrisk._core.records import Additive
from policyrisk.data import Source, Trajectories, batches, episode_numbers, pieces
from policyrisk.errors import MismatchError
from policyrisk.features.protocol import Features, matrix_of
from policyrisk.risk.draws import ErrorBars, clusters_of_both
from policyrisk.risk.state_estimates import EstimatesAt
from policyrisk.selection.regions import Regions

_CELLS = 1 << 23  # features in hand at once
SUMS = 4  # δ, ε, B − J̃ and its square less Ṽ


@dataclass(frozen=True, eq=False)
class SpecificationSums(Additive):
    """What the pass sums for each of the SUMS statistics, side by side; they add."""

    episodes: int
    sum: Floats  # (4p,): Σ s_k
    squares: Floats  # (4p,): Σ s_k², element by element
    drawn: Floats  # (4p, B): Σ_k ξ_kb s_k
    drawn_sum: Floats  # (B,): Σ_k ξ_kb
    G_J: Floats  # (4p, k_J)
    G_M: Floats  # (4p, k_M)
    steps: Floats  # (p,): Σ ψ
    variance: Floats  # (p,): Σ ψ Ṽ
    clusters: Ints | None = None  # (G,): the numbers of the episodes' clusters, where they come in clusters
    _rules: ClassVar = {"clusters": clusters_of_both}

    @property
    def independent(self) -> int:
        """How many clusters, or episodes, there are."""
        return self.episodes if self.clusters is None else self.clusters.size


@dataclass(frozen=True, eq=False)
class SpecificationPass:
    """The pass over the data that were fitted."""

    estimates: EstimatesAt
    bars: ErrorBars  # with replicates and their key
    discount: float
    test: Features | Regions
    features: int  # of the estimates, the larger number

    def __call__(self, source: Source) -> SpecificationSums:
        """The sums over all episodes, in the order in which they were fitted."""
        p = len(self.test) if isinstance(self.test, Regions) else self.test.size
        B, k_J, k_M = self.bars.draws, self.bars.mean_kept.size, self.bars.second_kept.size
        q = SUMS * p
        shapes = (q,), (q,), (q, B), (B,), (q, k_J), (q, k_M), (p,), (p,)
        nothing: Any = map(np.zeros, shapes)
        sums = SpecificationSums(0, *nothing)
        most = max(_CELLS // max(self.features, B), 1 << 12)
        for batch in batches(source):
            for piece in pieces(batch, most):
                if len(piece):
                    sums += self._piece(piece, episode_numbers(source, sums.episodes, len(piece)))
        return sums

    def _piece(self, data: Trajectories, numbers: Ints) -> SpecificationSums:
        """The sums over some episodes, with their numbers (episodes,) in the data that were fitted."""
        bars = self.bars
        gamma, K, n, rows = self.discount, len(data), data.transitions, len(data.states)
        parts = list(self.estimates(shown_states(data)))
        J, V = (np.concatenate([getattr(part, name) for part in parts]) for name in "JV")
        episode = np.repeat(np.arange(K), data.lengths)
        left = data.offsets[1:][episode] - np.arange(n)  # steps to the end, T − t
        at, final = data.visited_rows, data.final_rows[episode]
        goes_on = ~data.terminated[episode]
        alive = (goes_on | (left > 1)).astype(np.float64)
        J_next, V_next = (np.where(alive > 0, values[at + 1], 0.0) for values in (J, V))
        J_end, V_end = (np.where(goes_on, values[final], 0.0) for values in (J, V))
        delta = data.rewards + gamma * J_next - J[at]
        tail = np.where(goes_on, gamma**left, 0.0)
        d = data.returns_to_go(gamma) + tail * J_end - J[at]
        values = (delta, delta**2 + gamma**2 * V_next - V[at], d, d**2 + tail**2 * V_end - V[at])
        if not all(np.isfinite(each).all() for each in values):
            raise MismatchError(
                "data must be those that were fitted, got unvisited states; pass the same data"
            )

        def put(where: Ints, x: Floats) -> Any:
            """x_t at the row ``where_t``, as a map from steps to rows, of shape (rows, n)."""
            return sp.csr_array((x, (where, np.arange(n))), shape=(rows, n))

        # dṼ = φ_Mᵀ dw_M + a φ_Jᵀ dw_J
        direct = parts[0].variance_method == "direct"
        a = np.zeros(rows) if direct else -2.0 * np.nan_to_num(J)
        one = np.ones(n)
        step = put(at + 1, gamma * alive) - put(at, one)
        step_J = put(at + 1, alive * (2 * gamma * delta + gamma**2 * a[at + 1])) - put(at, 2 * delta + a[at])
        step_M = put(at + 1, gamma**2 * alive) - put(at, one)
        whole = put(final, tail) - put(at, one)
        whole_J = put(final, 2 * d * tail + tail**2 * a[final]) - put(at, 2 * d + a[at])
        whole_M = put(final, tail**2) - put(at, one)
        psi = self._psi(data)
        W_J = [G @ psi for G in (step, step_J, whole, whole_J)]
        W_M = [0 * W_J[0], step_M @ psi, 0 * W_J[0], whole_M @ psi]
        of_episode = sp.csr_array((one, (episode, np.arange(n))), shape=(K, n))
        s = np.hstack([as_dense((of_episode * x) @ psi) for x in values])
        xi = bars.multipliers(numbers if data.clusters is None else data.clusters)
        return SpecificationSums(
            episodes=K,
            sum=s.sum(axis=0),
            squares=np.square(s).sum(axis=0),
            drawn=s.T @ xi,
            drawn_sum=xi.sum(axis=0),
            G_J=_product(W_J, [part.phi_mean[:, bars.mean_kept] for part in parts]),
            G_M=_product(W_M, [part.phi_second[:, bars.second_kept] for part in parts]),
            steps=np.asarray(psi.sum(axis=0)).ravel(),
            variance=np.asarray(V[at] @ psi).ravel(),
            clusters=clusters_of_both(None, data.clusters),
        )

    def _psi(self, data: Trajectories) -> Any:
        """ψ at each step, of shape (n, p)."""
        if not isinstance(self.test, Regions):
            return matrix_of(self.test, data.states[data.visited_rows])
        region = self.test.index(points_of(data))
        return sp.csr_array(
            (np.ones(len(region)), (np.arange(len(region)), region)), (len(region), len(self.test))
        )


def points_of(data: Trajectories) -> Floats:
    """(x_t, t) at every step, of shape (n, dim + 1)."""
    step = np.arange(data.transitions) - np.repeat(data.offsets[:-1], data.lengths)
    return np.column_stack([data.states[data.visited_rows], step]).astype(np.float64, copy=False)


def shown_states(data: Trajectories) -> Floats:
    """The states, with the last of a terminated episode, which no feature may see, as the one before."""
    states = np.array(data.states, dtype=np.float64)
    ends = data.final_rows[data.terminated]
    states[ends] = states[ends - 1]
    return states


def _product(weights: Sequence[Any], phi: Sequence[Matrix]) -> Floats:
    """Σ_rows weights ⊗ φ for each of some weights (rows, p), with φ in parts (some, k): (4p, k)."""
    first, total = 0, np.zeros((sum(W.shape[1] for W in weights), phi[0].shape[1]))
    for part in phi:
        at = slice(first, first + part.shape[0])
        total += np.vstack([as_dense(W[at].T @ part) for W in weights])
        first = at.stop
    return total
