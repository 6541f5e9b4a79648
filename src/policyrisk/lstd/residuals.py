"""Passes at known weights: by how much each episode fails the equations, for the error bars, and δ².

Episode k enters the equations with its own *residual* at the estimated weights,

    s_J,k = b_k − A_k w_J              = Σ_t z_t δ_J(t)
    s_M,k = e_k + D_k w_J − C_k w_M    = Σ_t y_t δ_M(t)

    δ_J(t) = r_t + γJ̃(x_{t+1}) − J̃(x_t)
    δ_M(t) = r_t² + 2γ r_t J̃(x_{t+1}) + γ²M̃(x_{t+1}) − M̃(x_t)      (the paper's)
    δ_M(t) = δ_J(t) (2ε_t − δ_J(t)) + γ²Ṽ(x_{t+1}) − Ṽ(x_t)          (direct variance)

with J̃ = M̃ = Ṽ = 0 where it terminated and ε_t = Σ_{s≥t} (κγ)^{s−t} δ_J(s), κ being ``variance_lam``; of
another policy, J̃(x_{t+1}) and so on are its averages over the next action, and the squares are
Σ_a' π(a') δ_t(a')².
Summed backwards in time (:mod:`policyrisk.lstd.steps`),

    s_J,k = Σ_t φ_J(x_t) Σ_{s≥t} (λγ)^{s−t} δ_J(s)        s_M,k = Σ_t φ_M(x_t) Σ_{s≥t} (λγ²)^{s−t} δ_M(s),

so that neither a trace nor an A_k is ever formed. With s_k = (s_J,k, s_M,k) over the visited features of both
maps, n in all, the error bars need Σ s_k and

    Σ s_k s_kᵀ        (n, n)

which is larger than the residuals themselves as long as there are few episodes: these are then kept as they
are, and their influences computed one by one. From as many on as there are weights it is cheaper to sum
s_k s_kᵀ, and to solve with that sum from both sides. The bootstrap needs Σ_k ξ_kb s_k and Σ_k ξ_kb besides;
the multipliers ξ_k of episode k come from the seed and k alone, whoever draws them, k being its number in all
the data: one that a fit has given up as a whole keeps its own, so that fits with other features have the same
multipliers for the same episodes. All episodes of a cluster have its multipliers, and the error bars are
draws alone then. How the weights vary with the completed returns takes Σ s_k z_kᵀ, z_k being
:mod:`policyrisk.risk.completed`'s about a fixed reference. Of a large table of states and actions the error
bars are draws alone, and neither the residuals nor their squares are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, Matrix, Seed, as_dense
from policyrisk._core.random import keys
from policyrisk._core.records import Additive, add_each, record, where_both
from policyrisk.data import Source, episode_numbers
from policyrisk.equations import Weights
from policyrisk.equations.systems import TableSystem
from policyrisk.lstd.rows import gram_sparse
from policyrisk.lstd.steps import Errors, Steps, View
from policyrisk.lstd.trace_products import Product
from policyrisk.risk.completed import SIZE, episode_terms
from policyrisk.risk.draws import clusters_of_both, multipliers
from policyrisk.risk.state_estimates import EstimatesAt


def direct_right_hand_side(source: Source, w_mean: Floats, view: View, variance_lam: float = 0.0) -> Floats:
    """Σ y_t δ_t (2ε_t − δ_t), the right-hand side of C w_V = … for the direct variance, of shape (l_M,).

    >>> from policyrisk.data import Trajectories
    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [1], [0], [1]], [1.0, 3.0], [1, 1], [True, True])
    >>> direct_right_hand_side(data, np.array([2.0]), View(Tabular(1), Tabular(1), lam=0.0, discount=1.0))
    array([2.])
    """

    def found(steps: Steps) -> Floats:
        return steps.by_feature(steps.to_go(steps.errors(w_mean, variance_lam).squares, 1), 1)

    return sum(view.each(found, source), start=np.zeros(view.sizes[1]))


def lag_products(source: Source, w_mean: Floats, view: View) -> tuple[float, float]:
    """Σ_k X_k and Σ_k X_k², X_k = Σ_t γ²ᵗ 2δ_t (ε_t − δ_t) of episode k with ε_t = Σ_{s≥t} (λγ)^{s−t} δ_s.

    Where J̃ is right, products of the δ's of different steps have mean 0.

    >>> from policyrisk.data import Trajectories
    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [0], [1]], [1.0, 3.0], [2], [True])
    >>> lag_products(data, np.array([2.0]), View(Tabular(1), Tabular(1), lam=1.0, discount=1.0))
    (2.0, 4.0)
    """

    def found(steps: Steps) -> Floats:
        data, errors = steps.data, steps.errors(w_mean, view.lam)
        X = steps.discounted(2.0 * errors.delta * (errors.epsilon - errors.delta), view.discount**2)
        return X[data.visited_rows[data.offsets[:-1]]]

    total = square = 0.0
    for X in view.each(found, source):
        total, square = total + float(X.sum()), square + float(X @ X)
    return total, square


def _squares_of_both(one: Floats | None, other: Floats | None) -> Floats | None:
    squares = [each for each in (one, other) if each is not None]
    return np.sum(squares, axis=0) if squares else None  # a copy in any case


@record(
    sum="n",
    squares="n n",
    drawn="n B",
    drawn_sum="B",
    D="l_M l_J",
    beside="n 5",
    drawn_beside="5 B",
    clusters="g: rising",
)
@dataclass(frozen=True, eq=False)
class ResidualSums(Additive):
    """Sums over episodes' residuals; they add."""

    count: int  # episodes
    sum: Floats  # (n,): Σ s_k
    waiting: tuple[Matrix, ...]  # the residuals that are not in the squares, (some, n) each
    squares: Floats | None  # (n, n): Σ s_k s_kᵀ of the others
    drawn: Floats  # (n, B): Σ_k ξ_kb s_k
    drawn_sum: Floats  # (B,): Σ_k ξ_kb
    D: Matrix | None  # (l_M, l_J): the direct variance's
    beside: Floats  # (n, 5): Σ s_k z_kᵀ
    drawn_beside: Floats  # (5, B): Σ_k ξ_kb z_k
    clusters: Ints | None = None  # (G,): the numbers of the episodes' clusters, where they come in clusters
    _rules: ClassVar = {
        "squares": _squares_of_both,
        "D": where_both(add),
        "clusters": clusters_of_both,
    }

    @property
    def independent(self) -> int:
        """How many independent clusters, or episodes, there are."""
        return self.count if self.clusters is None else self.clusters.size

    @classmethod
    def empty(cls, n: int, B: int) -> ResidualSums:
        """Of no episode."""
        nothing = np.zeros((n, B)), np.zeros(B), None, np.zeros((n, SIZE)), np.zeros((SIZE, B))
        return cls(0, np.zeros(n), (), None, *nothing)

    def __add__(self, other: ResidualSums) -> ResidualSums:
        both = super().__add__(other)
        few = both.squares is None and both.count <= both.sum.size
        return both if few or not both.waiting else both.squared()

    def squared(self) -> ResidualSums:
        """The same with no residuals waiting; the squares are changed in place where there are some."""
        n = self.sum.size
        squares = np.zeros((n, n)) if self.squares is None else self.squares
        for part in self.waiting:
            if sp.issparse(part):
                none_ends = np.zeros(part.shape[0], dtype=np.bool_)
                gram_sparse(none_ends, part.indptr, part.indices, part.data, squares)
            else:
                squares += part.T @ part
        return replace(self, waiting=(), squares=squares)


class _Found(NamedTuple):
    """What a chunk's episodes add."""

    residuals: Matrix  # (episodes, l_J + l_M)
    z: Floats  # (episodes, 5)
    slope: Product | None  # of the direct variance
    clusters: Ints | None  # (episodes,)


@dataclass(frozen=True, eq=False)
class ResidualPass:
    """The pass that sums residuals at the given weights.

    ``at`` are the estimates at states where these are what z is about, at the starts, as of another policy
    than the one that logged (:meth:`policyrisk.risk.completed.CompletedReturns.of_starts`).
    """

    view: View
    w_mean: Floats  # (l_J,)
    w_second: Floats  # (l_M,)
    kept: tuple[Ints, Ints]  # the visited features of either map
    key: tuple[np.uint64, np.uint64]  # of the multipliers
    first: Sequence[int]  # the number of each part's first episode
    draws_alone: bool  # whether the error bars are: of the systems of large tables, and of clusters
    direct: bool = False
    variance_lam: float = 0.0  # κ
    replicates: int = 0  # B
    reference: float = 0.0  # a number near the completed returns, which they are taken about
    at: EstimatesAt | None = None
    slopes: bool = True  # whether the direct variance's D is summed as well

    @classmethod
    def of(
        cls,
        view: View,
        weights: Weights,
        *,
        seed: Seed = None,
        episodes: Sequence[int] = (),
        clustered: bool = False,
        **settings: Any,
    ) -> ResidualPass:
        """The pass at weights that were estimated; ``episodes`` are all of each part, to number them by."""
        return cls(
            view,
            weights.mean,
            weights.second,
            (weights.mean_system.kept, weights.second_system.kept),
            keys(seed),
            [0, *np.cumsum(episodes, dtype=np.int64).tolist()],
            clustered or isinstance(weights.mean_system, TableSystem),
            **settings,
        )

    def __call__(self, source: Source, part: int) -> ResidualSums:
        """The sums over one part of the data."""
        l_J, l_M = self.w_mean.size, self.w_second.size
        columns = np.concatenate([self.kept[0], l_J + self.kept[1]])
        sums, waiting = ResidualSums.empty(columns.size, self.replicates), 0
        view, batches = self.view.over(source)
        D = view.total(1, 0)
        for residuals, z, slope, clusters in view.each_of(self._found, batches):
            numbers = clusters
            if numbers is None:
                numbers = self.first[part] + episode_numbers(source, sums.count, len(z))
            sums = self._with(sums, _columns_of(residuals, columns, l_J + l_M), z, numbers)
            if clusters is not None:
                sums = replace(sums, clusters=clusters_of_both(sums.clusters, clusters))
            waiting += len(z)
            if waiting > columns.size and not self.draws_alone:
                sums, waiting = sums.squared(), 0
            if slope is not None:
                D.add(slope)
        if sums.squares is not None:
            sums = sums.squared()
        return replace(sums, D=D.finish()[0]) if self.direct and self.slopes else sums

    def _with(self, sums: ResidualSums, residuals: Matrix, z: Floats, numbers: Ints) -> ResidualSums:
        """Some episodes' residuals (some, n) and z (some, 5) put in, in order; the sums change in place."""
        total, beside = sums.sum, sums.beside
        total += np.asarray(residuals.sum(axis=0)).ravel()
        beside += residuals.T @ z
        if self.replicates:
            drawn, drawn_sum, drawn_beside = sums.drawn, sums.drawn_sum, sums.drawn_beside
            xi = multipliers(self.key, numbers, self.replicates)
            drawn += residuals.T @ xi
            drawn_sum += xi.sum(axis=0)
            drawn_beside += z.T @ xi
        waiting = () if self.draws_alone else (*sums.waiting, residuals)
        return replace(sums, count=sums.count + len(z), waiting=waiting)

    def _found(self, steps: Steps) -> _Found:
        """The residuals of a chunk's episodes, z, and the chunk's part of the direct variance's D."""
        errors, M, M_next, deltas = self._deltas(steps)
        slopes = self.direct and self.slopes
        slope = steps.slope(self.w_mean, errors, self.variance_lam) if slopes else None
        parts = [steps.by_episode(steps.to_go(x, k), k) for k, x in enumerate(deltas)]
        at = self.at
        z = self._terms(steps, errors, M, M_next) if at is None else self._start_terms(steps, at)
        if all(sp.issparse(part) for part in parts):
            both: Any = sp.hstack([sp.csr_array(part) for part in parts], format="csr")
            return _Found(sp.csr_array(both), z, slope, steps.data.clusters)
        return _Found(np.hstack([as_dense(part) for part in parts]), z, slope, steps.data.clusters)

    def totals(self, source: Source) -> tuple[Floats, Floats]:
        """Σ s_J,k and Σ s_M,k alone, of all features, (l_J,) and (l_M,)."""

        def found(steps: Steps) -> tuple[Floats, ...]:
            deltas = self._deltas(steps)[-1]
            return tuple(steps.by_feature(steps.to_go(x, k), k) for k, x in enumerate(deltas))

        nothing = np.zeros(self.w_mean.size), np.zeros(self.w_second.size)
        return reduce(add_each, self.view.each(found, source), nothing)

    def _deltas(self, steps: Steps) -> tuple[Errors, Floats, Floats, tuple[Floats, Floats]]:
        """The errors, the second values at x_t and x_{t+1}, and δ_J and δ_M."""
        gamma, r = steps.view.discount, steps.data.rewards
        errors = steps.errors(self.w_mean, self.variance_lam)
        M, M_next = steps.values(self.w_second, 1)
        target = errors.squares if self.direct else r**2 + 2.0 * gamma * r * errors.J_next
        return errors, M, M_next, (errors.delta, target + gamma**2 * M_next - M)

    def _terms(self, steps: Steps, errors: Errors, M: Floats, M_next: Floats) -> Floats:
        """z (episodes, 5) about the reference, from the values at x_t and x_{t+1}."""
        data, J, J_next = steps.data, errors.J, errors.J_next
        first, last = data.offsets[:-1], data.offsets[1:] - 1
        V_next, V = (
            values if self.direct else values - mean**2
            for values, mean in ((M_next[last], J_next[last]), (M[first], J[first]))
        )
        by = np.float64(self.view.discount) ** data.lengths
        g = data.returns(self.view.discount) + by * J_next[last]
        return episode_terms(g - self.reference, by**2 * V_next, J[first] - self.reference, V)

    def _start_terms(self, steps: Steps, at: EstimatesAt) -> Floats:
        """z (episodes, 5) about the reference, of the estimates at the starts; 0 where there is none."""
        J, V = np.concatenate([(part.J, part.V) for part in at(steps.data.starts())], axis=1)
        known = ~np.isnan(J)
        h, V = np.where(known, J - self.reference, 0.0), np.where(known, V, 0.0)
        z: Floats = episode_terms(h, V, h, V) * known[:, None]
        return z


def _columns_of(residuals: Matrix, columns: Ints, size: int) -> Matrix:
    """Some columns of residuals (some, size); all others of sparse ones are empty or 0."""
    if not sp.issparse(residuals):
        return np.asarray(residuals)[:, columns]
    if not columns.size:
        return sp.csr_array((residuals.shape[0], 0))
    place = np.zeros(size, dtype=np.int64)
    place[columns] = np.arange(columns.size)
    ptr, idx = residuals.indptr.astype(np.int64), place[residuals.indices]
    return sp.csr_array((residuals.data, idx, ptr), shape=(residuals.shape[0], columns.size))
