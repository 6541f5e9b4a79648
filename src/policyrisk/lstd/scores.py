"""Passes at known weights: by how much each episode fails the equations, for the error bars, and δ².

Episode k enters the equations with its own score at the estimated weights,

    s_J,k = b_k − A_k w_J              = Σ_t z_t δ_J(t)
    s_M,k = e_k + D_k w_J − C_k w_M    = Σ_t y_t δ_M(t)

    δ_J(t) = r_t + γJ̃(x_{t+1}) − J̃(x_t)
    δ_M(t) = r_t² + 2γ r_t J̃(x_{t+1}) + γ²M̃(x_{t+1}) − M̃(x_t)      (the paper's)
    δ_M(t) = δ_J(t) (2ε_t − δ_J(t)) + γ²Ṽ(x_{t+1}) − Ṽ(x_t)          (direct variance)

with J̃ = M̃ = Ṽ = 0 where it terminated and ε_t = Σ_{s≥t} (κγ)^{s−t} δ_J(s), κ being ``variance_lam``. Summed
backwards in time,

    s_J,k = Σ_t φ_J(x_t) Σ_{s≥t} (λγ)^{s−t} δ_J(s)        s_M,k = Σ_t φ_M(x_t) Σ_{s≥t} (λγ²)^{s−t} δ_M(s),

so that neither a trace nor an A_k is ever formed. With s_k = (s_J,k, s_M,k) over the visited features of both
maps, n in all, the error bars need Σ s_k and

    Σ s_k s_kᵀ        (n, n)

which is larger than the scores themselves as long as there are few episodes: these are then kept as they
are, and their influences computed one by one. From as many on as there are weights it is cheaper to sum
s_k s_kᵀ, and to solve with that sum from both sides. The bootstrap needs Σ_k ξ_kb s_k and Σ_k ξ_kb besides;
the multipliers ξ_k of episode k come from the seed and k alone, whoever draws them, k being its number in all
the data: one that a fit has given up as a whole keeps its own, so that fits with other features have the same
multipliers for the same episodes. How the weights vary with
the completed returns takes Σ s_k z_kᵀ, z_k being :mod:`policyrisk.risk.completed`'s about a fixed reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, Matrix, Seed, as_count, as_dense
from policyrisk._core.random import keys, mammen
from policyrisk._core.records import Additive, record
from policyrisk.equations import MomentEquations, Weights
from policyrisk.features import Features
from policyrisk.lstd import _kernels
from policyrisk.lstd.chunks import Chunk, Plan, by_chunks
from policyrisk.lstd.rows import DenseRows, Rows
from policyrisk.lstd.trace_products import Total, TraceProduct
from policyrisk.risk.completed import SIZE, episode_terms
from policyrisk.trajectories import Source, Trajectories, episode_numbers

Scores: TypeAlias = "Floats | sp.csr_array[Any, tuple[int, int]]"


def direct_right_hand_side(
    source: Source,
    w_mean: Floats,
    features: Features,
    second_features: Features,
    *,
    lam: float,
    discount: float,
    variance_lam: float = 0.0,
) -> Floats:
    """Σ y_t δ_t (2ε_t − δ_t), the right-hand side of C w_V = … for the direct variance, of shape (l_M,).

    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [1], [0], [1]], [1.0, 3.0], [1, 1], [True, True])
    >>> direct_right_hand_side(data, np.array([2.0]), Tabular(1), Tabular(1), lam=0.0, discount=1.0)
    array([2.])
    """
    total = np.zeros(second_features.size)
    work = partial(_squared_errors, w_mean, variance_lam)
    for part in by_chunks(work, source, features, second_features, lam, discount):
        total += part
    return total


def lag_products(
    source: Source, w_mean: Floats, features: Features, *, lam: float, discount: float
) -> tuple[float, float]:
    """Σ_k X_k and Σ_k X_k², X_k = Σ_t γ²ᵗ 2δ_t (ε_t − δ_t) of episode k with ε_t = Σ_{s≥t} (λγ)^{s−t} δ_s.

    Where J̃ is right, products of the δ's of different steps have mean 0.

    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [0], [1]], [1.0, 3.0], [2], [True])
    >>> lag_products(data, np.array([2.0]), Tabular(1), lam=1.0, discount=1.0)
    (2.0, 4.0)
    """
    total = square = 0.0
    for X in by_chunks(partial(_lag_products, w_mean), source, features, features, lam, discount):
        total, square = total + float(X.sum()), square + float(X @ X)
    return total, square


def _lag_products(w_mean: Floats, plan: Plan, data: Trajectories) -> Floats:
    """X of a chunk's episodes, (episodes,)."""
    blocks = _Blocks(plan, Chunk.of(data))
    delta, epsilon = blocks.errors(w_mean, plan.lam)
    X = plan.to_go(2.0 * delta * (epsilon - delta), blocks.chunk, plan.discount**2)
    return X[data.visited_rows[data.offsets[:-1]]]


def _meat_of_both(one: Floats | None, other: Floats | None) -> Floats | None:
    meats = [each for each in (one, other) if each is not None]
    return np.sum(meats, axis=0) if meats else None  # a copy in any case


@record
@dataclass(frozen=True, eq=False)
class EpisodeScores(Additive):
    """Sums over episodes' scores; they add."""

    count: int  # episodes
    sum: Floats  # (n,): Σ s_k
    waiting: tuple[Scores, ...]  # the scores that are not in the meat, (some, n) each
    meat: Floats | None  # (n, n): Σ s_k s_kᵀ of the others
    drawn: Floats  # (n, B): Σ_k ξ_kb s_k
    drawn_sum: Floats  # (B,): Σ_k ξ_kb
    D: Matrix | None  # (l_M, l_J): the direct variance's
    beside: Floats  # (n, 5): Σ s_k z_kᵀ
    drawn_beside: Floats  # (5, B): Σ_k ξ_kb z_k
    _rules: ClassVar = {"meat": _meat_of_both, "D": lambda a, b: None if a is None or b is None else a + b}

    def __add__(self, other: EpisodeScores) -> EpisodeScores:
        both = super().__add__(other)
        return both if both.meat is None and both.count <= both.sum.size else both.cooked()

    def cooked(self) -> EpisodeScores:
        """The same with no scores waiting; the meat is changed in place where there is one."""
        n = self.sum.size
        meat = np.zeros((n, n)) if self.meat is None else self.meat
        for part in self.waiting:
            if sp.issparse(part):
                none_ends = np.zeros(part.shape[0], dtype=np.bool_)
                _kernels.gram_sparse(none_ends, part.indptr, part.indices, part.data, meat)
            else:
                meat += part.T @ part
        return replace(self, waiting=(), meat=meat)


@dataclass(frozen=True, eq=False)
class ScorePass:
    """The pass that sums scores at the given weights."""

    features: Features
    second_features: Features
    lam: float
    discount: float
    w_mean: Floats  # (l_J,)
    w_second: Floats  # (l_M,)
    kept: tuple[Ints, Ints]  # the visited features of either map
    direct: bool
    variance_lam: float  # κ
    replicates: int  # B
    key: tuple[np.uint64, np.uint64]  # of the multipliers
    first: Sequence[int]  # the number of each part's first episode
    reference: float  # what the completed returns are taken about

    @classmethod
    def of(
        cls,
        equations: MomentEquations,
        weights: Weights,
        *,
        direct: bool,
        variance_lam: float = 0.0,
        replicates: int = 0,
        seed: Seed = None,
        episodes: Sequence[int] = (),
        reference: float = 0.0,
    ) -> ScorePass:
        """The pass at weights that were estimated; ``episodes`` are all of each part, to number them by.

        ``reference`` is a number near the completed returns.
        """
        return cls(
            features=equations.features,
            second_features=equations.second_features,
            lam=equations.lam,
            discount=equations.discount,
            w_mean=weights.mean,
            w_second=weights.second,
            kept=(weights.mean_system.kept, weights.second_system.kept),
            direct=direct,
            variance_lam=variance_lam,
            replicates=as_count(replicates, "replicates"),
            key=keys(seed),
            first=[0, *np.cumsum(episodes, dtype=np.int64).tolist()],
            reference=reference,
        )

    def __call__(self, source: Source, part: int) -> EpisodeScores:
        """The sums over one part of the data."""
        l_J, l_M = self.w_mean.size, self.w_second.size
        columns = np.concatenate([self.kept[0], l_J + self.kept[1]])
        n, B = columns.size, self.replicates
        sums = EpisodeScores(
            count=0,
            sum=np.zeros(n),
            waiting=(),
            meat=None,
            drawn=np.zeros((n, B)),
            drawn_sum=np.zeros(B),
            D=None,
            beside=np.zeros((n, SIZE)),
            drawn_beside=np.zeros((SIZE, B)),
        )
        D, waiting = Total(1, l_M, l_J), 0
        other_D: Any = None
        for scores, z, derivative in self._over(source):
            numbers = self.first[part] + episode_numbers(source, sums.count, len(z))
            sums = self._with(sums, _columns_of(scores, columns, l_J + l_M), z, numbers)
            waiting += scores.shape[0]
            if waiting > n:
                sums, waiting = sums.cooked(), 0
            if isinstance(derivative, TraceProduct):
                D.add(derivative)
            elif derivative is not None:
                other_D = derivative if other_D is None else other_D + derivative
        if sums.meat is not None:
            sums = sums.cooked()
        if not self.direct:
            return sums
        return replace(sums, D=D.finish()[0] if other_D is None else other_D)

    def _over(self, source: Source) -> Iterator[tuple[Scores, Floats, Any]]:
        """The chunks' scores, their z and their parts of the direct D, in the order of the data."""
        maps = self.features, self.second_features
        yield from by_chunks(self._chunk, source, *maps, self.lam, self.discount)

    def _with(self, sums: EpisodeScores, scores: Scores, z: Floats, numbers: Ints) -> EpisodeScores:
        """Some episodes' scores (some, n) and z (some, 5) put in, in order; the sums are changed in place."""
        total, beside = sums.sum, sums.beside
        total += np.asarray(scores.sum(axis=0)).ravel()
        beside += scores.T @ z
        if self.replicates:
            drawn, drawn_sum, drawn_beside = sums.drawn, sums.drawn_sum, sums.drawn_beside
            xi = np.empty((scores.shape[0], self.replicates))
            mammen(*self.key, numbers, xi)
            drawn += scores.T @ xi
            drawn_sum += xi.sum(axis=0)
            drawn_beside += z.T @ xi
        return replace(sums, count=sums.count + scores.shape[0], waiting=(*sums.waiting, scores))

    def _chunk(self, plan: Plan, data: Trajectories) -> tuple[Scores, Floats, TraceProduct | Floats | None]:
        """The scores (episodes, l_J + l_M) of a chunk, z (episodes, 5), and its part of the direct D."""
        chunk = Chunk.of(data)
        blocks = _Blocks(plan, chunk)
        gamma, (kappa_J, kappa_M) = plan.discount, plan.decays
        kappa = self.variance_lam * gamma
        r = data.rewards
        J, J_next = blocks.values(self.w_mean, 0)
        M, M_next = blocks.values(self.w_second, 1)
        delta = r + gamma * J_next - J
        if self.direct:
            epsilon = plan.to_go(delta, chunk, kappa)[data.visited_rows]
            delta_M = delta * (2.0 * epsilon - delta) + gamma**2 * M_next - M
        else:
            delta_M = r * r - M + (2.0 * gamma * r * J_next + gamma**2 * M_next)
        to_go = plan.to_go(delta, chunk, kappa_J), plan.to_go(delta_M, chunk, kappa_M)
        scores = [_scores(chunk, blocks, weight, which) for which, weight in enumerate(to_go)]
        z = self._terms(data, J, J_next, M, M_next)
        derivative: TraceProduct | Floats | None = None
        if self.direct and kappa:
            derivative = _derivative(chunk, blocks, delta, epsilon, gamma, kappa, kappa_M)
        elif self.direct:
            # Σ 2 y_t δ_t (γφ_{t+1} − φ_t)ᵀ: φ_s counts with 2γδ_{s−1} as a next state and −2δ_s as a state.
            g, h = chunk.at_arrival(2.0 * gamma * delta)[:, None], np.zeros((len(chunk.ends), 1))
            g[data.visited_rows, 0] -= 2.0 * kappa_M * delta
            h[data.visited_rows, 0] = -2.0 * delta
            product = derivative = TraceProduct(g, h, kappa_M, self.w_mean.size, plan.memory)
            for at, phi_J, phi_M in blocks:
                product.block(at, phi_M, phi_J)
            product.finish()
        if sp.issparse(scores[0]) and sp.issparse(scores[1]):
            return sp.csr_array(sp.hstack([sp.csr_array(s) for s in scores], format="csr")), z, derivative
        return np.hstack([as_dense(s) for s in scores]), z, derivative

    def _terms(self, data: Trajectories, J: Floats, J_next: Floats, M: Floats, M_next: Floats) -> Floats:
        """z (episodes, 5) about the reference, from the values at x_t and x_{t+1}."""
        first, last = data.offsets[:-1], data.offsets[1:] - 1
        V_next, V = (
            values if self.direct else values - mean**2
            for values, mean in ((M_next[last], J_next[last]), (M[first], J[first]))
        )
        by = np.float64(self.discount) ** data.lengths
        g = data.returns(self.discount) + by * J_next[last]
        return episode_terms(g - self.reference, by**2 * V_next, J[first] - self.reference, V)


def _columns_of(scores: Scores, columns: Ints, size: int) -> Scores:
    """Some columns of scores (some, size); all others of sparse ones are empty."""
    if not sp.issparse(scores):
        return np.asarray(scores)[:, columns]
    place = np.full(size, -1)
    place[columns] = np.arange(columns.size)
    ptr, idx = scores.indptr.astype(np.int64), place[scores.indices]
    return sp.csr_array((scores.data, idx, ptr), shape=(scores.shape[0], columns.size))


class _Blocks:
    """A chunk's features, computed once where they are one block, and again each time otherwise."""

    def __init__(self, plan: Plan, chunk: Chunk) -> None:
        self._plan, self.chunk = plan, chunk
        alone = len(chunk.blocks(plan.block_size)) == 1
        self._only = list(plan.blocks(chunk)) if alone else None

    def __iter__(self) -> Iterator[tuple[slice, Rows, Rows]]:
        return iter(self._plan.blocks(self.chunk) if self._only is None else self._only)

    def values(self, w: Floats, which: int) -> tuple[Floats, Floats]:
        """φ_J w (which = 0) or φ_M w (which = 1) at x_t and at x_{t+1}, 0 where the episode terminated."""
        out, data = np.empty(len(self.chunk.ends)), self.chunk.data
        for at, *phi in self:
            out[at] = phi[which].dot(w)
        after = out[data.visited_rows + 1]
        after[data.offsets[1:][data.terminated] - 1] = 0.0
        return out[data.visited_rows], after

    def errors(self, w_mean: Floats, kappa: float) -> tuple[Floats, Floats]:
        """δ_t and ε_t = Σ_{s≥t} (κγ)^{s−t} δ_s, of shape (transitions,)."""
        J, J_next = self.values(w_mean, 0)
        data, gamma = self.chunk.data, self._plan.discount
        delta = data.rewards + gamma * J_next - J
        return delta, self._plan.to_go(delta, self.chunk, kappa * gamma)[data.visited_rows]


def _squared_errors(w_mean: Floats, variance_lam: float, plan: Plan, data: Trajectories) -> Floats:
    """Σ y_t δ_t (2ε_t − δ_t) over a chunk's episodes, of shape (l_M,)."""
    blocks = _Blocks(plan, Chunk.of(data))
    delta, epsilon = blocks.errors(w_mean, variance_lam)
    H = plan.to_go(delta * (2.0 * epsilon - delta), blocks.chunk, plan.decays[1])
    total: Floats = np.sum([phi_M.weighted_sum(H[at]) for at, _, phi_M in blocks], axis=0)
    return total


def _derivative(
    chunk: Chunk, blocks: _Blocks, delta: Floats, epsilon: Floats, gamma: float, kappa: float, kappa_M: float
) -> Floats:
    """Σ y_t (2(ε_t − δ_t) η_t + 2δ_t Σ_{s≥t} (κγ)^{s−t} η_s)ᵀ with η_t = γφ_{t+1} − φ_t, (l_M, l_J).

    The traces of η fill up with all that is visited later: they are dense whatever the features are.
    """
    by = np.zeros((2, len(chunk.ends)))
    by[:, chunk.data.visited_rows] = 2.0 * (epsilon - delta), 2.0 * delta
    by[0, chunk.data.final_rows[~chunk.data.terminated]] = 1.0  # where φ_{t+1} counts
    total: Any = 0
    carry: Floats | None = None
    for at, phi_J, phi_M in blocks:
        phi = phi_J.phi if isinstance(phi_J, DenseRows) else phi_J.matrix.toarray()
        carry = np.zeros((3, phi.shape[1])) if carry is None else carry
        out = np.empty((int(np.count_nonzero(~phi_J.ends)), phi.shape[1]))
        _kernels.error_traces(phi_J.ends, phi, by[:, at], gamma, kappa, kappa_M, carry, out)
        visited = phi_M.visited
        total = total + np.asarray(visited.T @ out)
    return np.asarray(total)


def _scores(chunk: Chunk, blocks: _Blocks, weight: Floats, which: int) -> Scores:
    """Σ_t weight_t φ(x_t) of every episode, of shape (episodes, l)."""
    episodes = len(chunk.data)
    total: Any = 0
    before = episodes  # episodes that end before the block does
    for at, *phi in blocks:
        part = _block_scores(phi[which], weight[at])
        before -= part.shape[0] - 1
        # A block's last score belongs to the episode that goes on in the block after it.
        total = total + _placed(part, before, episodes)
    scores: Scores = total[:episodes]
    return scores


def _block_scores(phi: Rows, weight: Floats) -> Scores:
    shape = int(np.count_nonzero(phi.ends)) + 1, phi.size
    if isinstance(phi, DenseRows):
        out = np.zeros(shape)
        _kernels.scores_dense(phi.ends, phi.phi, weight, out)
        return out
    ptr, idx, val = _kernels.scores_sparse(phi.ends, phi.ptr, phi.idx, phi.val, weight, phi.size)
    return sp.csr_array((val, idx, ptr), shape=shape)


def _placed(part: Scores, first: int, episodes: int) -> Scores:
    """The rows of ``part`` as rows first, first + 1, … of episodes + 1."""
    after = episodes + 1 - first - part.shape[0]
    if first == after == 0:
        return part
    if sp.issparse(part):
        ptr = np.pad(part.indptr, (first, after), mode="edge")
        return sp.csr_array((part.data, part.indices, ptr), shape=(episodes + 1, part.shape[1]))
    return np.pad(part, ((first, after), (0, 0)))
