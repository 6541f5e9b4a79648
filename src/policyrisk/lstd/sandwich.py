"""From the episodes' scores to the covariance of the weights: how much each episode moves them.

With s_J,k and s_M,k the scores of episode k (see :mod:`policyrisk.lstd.scores`), and A, C, D summed over all
K episodes (ridge·K added to the diagonals of A and C), the episode moves the weights by

    ψ_J,k = A⁻¹ s_J,k                    ψ_M,k = C⁻¹ (s_M,k + D ψ_J,k)

(direct variance: D is Σ 2 y_t δ_J(t) (γφ_J(x_{t+1}) − φ_J(x_t))ᵀ), and since episodes are independent

    Cov(w_J, w_M) = K/(K−1) Σ_k (ψ_k − ψ̄)(ψ_k − ψ̄)ᵀ.

On the *face* of the positive-variance constraint, where H w_M = g(w_J) holds and keeps holding, ψ_M,k solves
the bordered system instead, with G the derivative of g by w_J (0 for the direct variance):

    C ψ_M,k + Hᵀ ψ_μ,k = s_M,k + D ψ_J,k,        H ψ_M,k = G ψ_J,k.

The variance at such a state, of gradient (G, −H), does not move at all. That a constraint may become active
or cease to be so is not in it: where one is barely active, such error bars are too small.

The multiplier bootstrap draws ξ_kb of mean 0, variance 1 and third moment 1 (Mammen's two points) and moves
the weights by Σ_k ξ_kb (ψ_k − ψ̄): the spread of any quantity over b is then its sampling distribution,
skewness included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, as_dense
from policyrisk.equations import MomentEquations, Weights
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.lstd.scores import EpisodeScores
from policyrisk.risk import ErrorBars
from policyrisk.risk.completed import SIZE, CompletedReturns, centre_shift

SINGLE_FROM = 2000  # weights from which on their covariance is kept in single precision

# From scores (k_J, n), (k_M, n) of the visited features, used up, to their ψ_J and ψ_M.
Solver: TypeAlias = Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True, eq=False)
class Face:
    """The active rows of the positive-variance constraint: H w_M = g(w_J), G = dg/dw_J."""

    H: Floats  # (active, l_M)
    G: Floats  # (active, l_J)


def sandwich(
    scores: EpisodeScores,
    equations: MomentEquations,
    weights: Weights,
    face: Face | None = None,
    key: tuple[int, int] | None = None,  # that the replicates were drawn with
) -> ErrorBars:
    """Cov(w_J, w_second) of the visited features' weights, estimated from ``equations``, and the replicates.

    With a single episode every entry is nan.

    >>> from policyrisk.features import Tabular
    >>> from policyrisk.lstd.accumulate import accumulate
    >>> from policyrisk.lstd.scores import ScorePass
    >>> from policyrisk.trajectories import Trajectories
    >>> data = Trajectories([[0], [1], [0], [1]], [1.0, 3.0], [1, 1], [True, True])
    >>> equations = accumulate(data, Tabular(1), lam=0.0, discount=1.0)
    >>> weights = equations.solve()
    >>> bars = sandwich(ScorePass.of(equations, weights, direct=False)(data, 0), equations, weights)
    >>> bars.mean, bars.cross  # the sample variance of (1, 3), and its covariance with (1, 9), over 2
    (array([[1.]]), array([[4.]]))
    """
    K = scores.count
    if K == 0:
        raise InvalidInputError("data must hold at least one episode, got none; pass what was fitted")
    if equations.episodes != K:
        raise MismatchError(
            f"data must be those of the equations, with {equations.episodes} episodes, got {K}; "
            "pass the source that the equations were made from"
        )
    kept = weights.mean_system.kept, weights.second_system.kept
    solver = _solver(weights, equations.D if scores.D is None else scores.D, face)
    k_J, k_M = kept[0].size, kept[1].size
    mean_score, dtype = scores.sum / K, np.float64 if k_J + k_M <= SINGLE_FROM else np.float32
    if K == 1:
        blocks = [np.full(shape, np.nan) for shape in ((k_J, k_J), (k_J, k_M), (k_M, k_M))]
    elif scores.meat is None:
        blocks = _from_influences(solver, scores, mean_score, k_J, dtype)
    else:
        blocks = _from_meat(solver, scores.meat, K, mean_score, k_J, dtype)
    replicates = None
    if scores.drawn_sum.size:
        drawn = scores.drawn.T - np.outer(scores.drawn_sum, mean_score)
        moved = [psi.T * np.sqrt(K / max(K - 1, 1)) for psi in _solve(solver, drawn, k_J)]
        replicates = np.hstack(moved).astype(dtype)
    held = None
    if face is not None and len(face.H):
        held = sp.csr_array(np.hstack([face.G[:, kept[0]], -face.H[:, kept[1]]]))
    mean, cross, second = blocks
    return ErrorBars(*kept, mean, cross, second, replicates, held, None if replicates is None else key)


def with_weights(
    completed: CompletedReturns,
    scores: EpisodeScores,
    reference: float,
    equations: MomentEquations,
    weights: Weights,
    face: Face | None = None,
) -> CompletedReturns:
    """The completed returns with Σ z_k ψ_kᵀ / (K − 1), and with the bootstrap's Σ_k ξ_kb z_k / K.

    ``scores`` were summed with z about ``reference``.
    """
    K = scores.count
    if K < 2:
        return completed
    kept = weights.mean_system.kept, weights.second_system.kept
    k_J = kept[0].size
    L = centre_shift(reference - completed.mean, reference - completed.start_mean)
    solver = _solver(weights, equations.D if scores.D is None else scores.D, face)
    psi_J, psi_M = _solve(solver, L @ scores.beside.T, k_J)
    shared = np.zeros((SIZE, len(equations.b) + len(equations.e)))
    shared[:, kept[0]] = psi_J.T / (K - 1)
    shared[:, len(equations.b) + kept[1]] = psi_M.T / (K - 1)
    draws = None
    if scores.drawn_sum.size:
        draws = L @ scores.drawn_beside / np.sqrt(K * (K - 1))
    return replace(completed, with_weights=shared, draws=draws)


def _from_influences(
    solver: Solver, scores: EpisodeScores, mean_score: Floats, k_J: int, dtype: Any
) -> list[npt.NDArray[Any]]:
    """The covariance's blocks from scores that are fewer than the weights."""
    K, n = scores.count, scores.sum.size
    s_J, s_M = np.empty((K, k_J)), np.empty((K, n - k_J))
    first = 0
    for part in scores.waiting:
        at = slice(first, first + part.shape[0])
        for out, columns in ((s_J, slice(0, k_J)), (s_M, slice(k_J, n))):
            out[at] = as_dense(part[:, columns])
            out[at] -= mean_score[columns]
        first = at.stop
    P_J, P_M = (psi.T.astype(dtype) for psi in solver(s_J.T, s_M.T))
    blocks = [P_J.T @ P_J, P_J.T @ P_M, P_M.T @ P_M]
    for block in blocks:
        block *= K / (K - 1)
    return blocks


def _from_meat(
    solver: Solver, meat: Floats, K: int, mean_score: Floats, k_J: int, dtype: Any
) -> list[npt.NDArray[Any]]:
    """The covariance's blocks from Σ s_k s_kᵀ, solved from both sides."""
    half = np.vstack(_solve(solver, (meat - K * np.outer(mean_score, mean_score)) * (K / (K - 1)), k_J))
    full = np.vstack(_solve(solver, half, k_J))
    full = (full + full.T) / 2  # symmetric but for rounding
    return [block.astype(dtype) for block in (full[:k_J, :k_J], full[:k_J, k_J:], full[k_J:, k_J:])]


def _solve(solver: Solver, scores: Floats, k_J: int) -> tuple[Floats, Floats]:
    """ψ_J (k_J, n) and ψ_M (k_M, n) of n scores (n, k_J + k_M)."""
    # Copies whose transposes are stored column by column, as LAPACK wants them.
    return solver(scores[:, :k_J].copy().T, scores[:, k_J:].copy().T)


def _solver(weights: Weights, D: Matrix, face: Face | None) -> Solver:
    mean, second = weights.dense_systems
    if mean.kept.size < D.shape[1] or second.kept.size < D.shape[0]:
        kept: Any = np.ix_(second.kept, mean.kept)
        D = D[kept]

    def plain(s_J: Floats, s_M: Floats) -> tuple[Floats, Floats]:
        psi_J = mean.solve_kept(s_J)
        s_M += D @ psi_J
        return psi_J, second.solve_kept(s_M)

    if face is None or len(face.H) == 0:
        return plain
    H, G = face.H[:, second.kept], face.G[:, mean.kept]
    W = second.solve_kept(H.T.copy(), refine=True)  # C⁻¹Hᵀ
    schur = H @ W

    def constrained(s_J: Floats, s_M: Floats) -> tuple[Floats, Floats]:
        psi_J, psi_M = plain(s_J, s_M)
        # Several active states may share features: then H has redundant rows, and any ψ_μ will do.
        psi_mu = np.linalg.lstsq(schur, H @ psi_M - G @ psi_J, rcond=None)[0]
        return psi_J, psi_M - W @ psi_mu

    return constrained
