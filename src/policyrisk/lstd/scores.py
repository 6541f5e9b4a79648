"""Scores of the episodes of one chunk: how far each is from fulfilling the equations by itself.

    s_J,k = Σ_t z_t δ_J(t) = Σ_t φ_J(x_t) Σ_{s≥t} (λγ)^{s−t} δ_J(s)
    s_M,k = Σ_t y_t δ_M(t) = Σ_t φ_M(x_t) Σ_{s≥t} (λγ²)^{s−t} δ_M(s)

with the δ of :mod:`policyrisk.lstd.influence`. Summed backwards in time they need no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats
from policyrisk.lstd import _kernels
from policyrisk.lstd.accumulate import Plan
from policyrisk.lstd.chunks import Chunk
from policyrisk.lstd.lagged_products import Lagged
from policyrisk.lstd.rows import DenseRows, Rows
from policyrisk.trajectories import Trajectories

Scores: TypeAlias = "Floats | sp.csr_array[Any, tuple[int, int]]"


class _Blocks:
    """A chunk's features, computed once where they are one block, and again each time otherwise."""

    def __init__(self, plan: Plan, chunk: Chunk) -> None:
        self._make: Callable[[], Any] = lambda: plan.blocks(chunk)
        if len(chunk.blocks(plan.block_size)) == 1:
            only = list(plan.blocks(chunk))
            self._make = lambda: only
        self.rows = len(chunk.ends)

    def __iter__(self) -> Any:
        return iter(self._make())

    def values(self, w: Floats, which: int) -> Floats:
        """φ_J w (which = 0) or φ_M w (which = 1) at every row."""
        out = np.empty(self.rows)
        for at, *phi in self:
            out[at] = phi[which].dot(w)
        return out


def _errors(plan: Plan, chunk: Chunk, blocks: _Blocks, w_mean: Floats) -> tuple[Floats, Floats]:
    """J̃ at every row and δ_J of every transition."""
    data = chunk.data
    J, delta = blocks.values(w_mean, 0), np.empty(data.transitions)
    _kernels.td_errors(data.rewards, J, data.lengths, data.terminated, plan.discount, delta)
    return J, delta


def squared_errors(plan: Plan, data: Trajectories, w_mean: Floats) -> Floats:
    """Σ y_t δ_J(t)² over a chunk's episodes, of shape (l_M,)."""
    chunk = Chunk.of(data)
    blocks = _Blocks(plan, chunk)
    _, delta = _errors(plan, chunk, blocks, w_mean)
    H = plan.to_go(delta**2, chunk, plan.lam * plan.discount**2)
    total: Floats = np.sum([phi_M.weighted_sum(H[at]) for at, _, phi_M in blocks], axis=0)
    return total


def chunk_scores(
    plan: Plan, data: Trajectories, w_mean: Floats, w_second: Floats, direct: bool
) -> tuple[Scores, Lagged | None]:
    """The episodes' scores (episodes, l_J + l_M), and their part of the direct variance's D."""
    chunk = Chunk.of(data)
    blocks = _Blocks(plan, chunk)
    gamma, kappa_M = plan.discount, plan.lam * plan.discount**2
    J, delta = _errors(plan, chunk, blocks, w_mean)
    second = blocks.values(w_second, 1)
    delta_M = np.empty(data.transitions)
    if direct:
        _kernels.td_errors(delta**2, second, data.lengths, data.terminated, gamma**2, delta_M)
    else:
        _kernels.second_errors(data.rewards, J, second, data.lengths, data.terminated, gamma, delta_M)
    to_go = plan.to_go(delta, chunk, plan.lam * gamma), plan.to_go(delta_M, chunk, kappa_M)
    scores = [_scores(chunk, blocks, weight, which) for which, weight in enumerate(to_go)]
    derivative = None
    if direct:
        # Σ 2 y_t δ_t (γφ_{t+1} − φ_t)ᵀ: φ_s counts with 2γδ_{s−1} as a next state and −2δ_s as a state.
        g, h = np.zeros((len(chunk.ends), 1)), np.zeros((len(chunk.ends), 1))
        _kernels.arrival_weights(delta, data.lengths, data.terminated, 2.0 * gamma, g[:, 0])
        visited = ~chunk.ends
        g[visited, 0] -= 2.0 * kappa_M * delta
        h[visited, 0] = -2.0 * delta
        derivative = Lagged(g, h, kappa_M, w_mean.size, plan.memory)
        for at, phi_J, phi_M in blocks:
            derivative.block(at, phi_M, phi_J)
        derivative.finish()
    if sp.issparse(scores[0]) and sp.issparse(scores[1]):
        return sp.csr_array(sp.hstack(scores, format="csr")), derivative
    return np.hstack([s.toarray() if sp.issparse(s) else s for s in scores]), derivative


def _scores(chunk: Chunk, blocks: _Blocks, weight: Floats, which: int) -> Scores:
    """Σ_t weight_t φ(x_t) of every episode, of shape (episodes, l)."""
    episodes = len(chunk.data)
    total: Any = 0
    before = episodes  # episodes that end before the block does
    for at, *phi in blocks:
        part, count = _block_scores(phi[which], weight[at])
        before -= count
        # A block's last score belongs to the episode that goes on in the block after it.
        total = total + _placed(part, before, episodes)
    scores: Scores = total[:episodes]
    return scores


def _block_scores(phi: Rows, weight: Floats) -> tuple[Scores, int]:
    count = int(np.count_nonzero(phi.ends))
    if isinstance(phi, DenseRows):
        out = np.zeros((count + 1, phi.size))
        _kernels.scores_dense(phi.ends, phi.phi, weight, out)
        return out, count
    ptr, idx, val = _kernels.scores_sparse(phi.ends, phi.ptr, phi.idx, phi.val, weight, phi.size)
    return sp.csr_array((val, idx, ptr), shape=(count + 1, phi.size)), count


def _placed(part: Scores, first: int, episodes: int) -> Scores:
    """The rows of ``part`` as rows first, first + 1, … of episodes + 1."""
    after = episodes + 1 - first - part.shape[0]
    if first == after == 0:
        return part
    if sp.issparse(part):
        ptr = np.pad(part.indptr, (first, after), mode="edge")
        return sp.csr_array((part.data, part.indices, ptr), shape=(episodes + 1, part.shape[1]))
    return np.pad(part, ((first, after), (0, 0)))
