"""How much each episode moves the weights: the second pass, for error bars.

Episode k enters the equations with its own score at the estimated weights,

    s_J,k = b_k − A_k w_J              = Σ_t z_t δ_J(t)
    s_M,k = e_k + D_k w_J − C_k w_M    = Σ_t y_t δ_M(t)

    δ_J(t) = r_t + γJ̃(x_{t+1}) − J̃(x_t)
    δ_M(t) = r_t² + 2γ r_t J̃(x_{t+1}) + γ²M̃(x_{t+1}) − M̃(x_t)      (the paper's)
    δ_M(t) = δ_J(t)² + γ²Ṽ(x_{t+1}) − Ṽ(x_t)                         (direct variance)

with J̃ = M̃ = Ṽ = 0 where it terminated. Summed backwards in time,

    s_J,k = Σ_t φ_J(x_t) Σ_{s≥t} (λγ)^{s−t} δ_J(s),

so that neither a trace nor an A_k is ever formed. With A, C, D summed over all K episodes (ridge·K added to
the diagonals of A and C), the episode moves the weights by

    ψ_J,k = A⁻¹ s_J,k                    ψ_M,k = C⁻¹ (s_M,k + D ψ_J,k)

(direct variance: D is Σ 2 y_t δ_J(t) (γφ_J(x_{t+1}) − φ_J(x_t))ᵀ), and since episodes are independent

    Cov(w_J, w_M) = K/(K−1) Σ_k (ψ_k − ψ̄)(ψ_k − ψ̄)ᵀ.

On the *face* of the positive-variance constraint, where H w_M = g(w_J) holds and keeps holding, ψ_M,k solves
the bordered system instead, with G the derivative of g by w_J (0 for the direct variance):

    C ψ_M,k + Hᵀ ψ_μ,k = s_M,k + D ψ_J,k,        H ψ_M,k = G ψ_J,k.

That a constraint may become active or cease to be so is not in it: where one is barely active, such error
bars are too small.

The multiplier bootstrap draws ξ_kb of mean 0, variance 1 and third moment 1 (Mammen's two points) and moves
the weights by Σ_k ξ_kb (ψ_k − ψ̄): the spread of any quantity over b is then its sampling distribution,
skewness included. All of it follows from sums over the scores, see :mod:`policyrisk.lstd.score_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, Seed, as_count
from policyrisk._core.random import keys
from policyrisk.equations import MomentEquations, Weights
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.lstd.score_sums import ScorePass, ScoreSums
from policyrisk.passes.fold import Fold, here
from policyrisk.risk import ErrorBars, VarianceMethod
from policyrisk.trajectories import Source, check_reiterable

SINGLE_FROM = 2000  # weights from which on their covariance is kept in single precision

Solver: TypeAlias = Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True, eq=False)
class Face:
    """The active rows of the positive-variance constraint: H w_M = g(w_J), G = dg/dw_J."""

    H: Floats  # (active, l_M)
    G: Floats  # (active, l_J)


@dataclass(frozen=True, eq=False)
class Influence:
    """The covariance of the weights and, where they were asked for, bootstrap deviations of the weights.

    ``bars.replicates`` holds the deviations of the visited features' weights; all others are 0.
    """

    bars: ErrorBars
    mean_deviations: Floats  # (replicates, l_J)
    second_deviations: Floats  # (replicates, l_M)


def influence(
    source: Source,
    equations: MomentEquations,
    weights: Weights,
    *,
    method: VarianceMethod = "second-moment",
    face: Face | None = None,
    replicates: int = 0,
    seed: Seed = None,
) -> Influence:
    """Cov(w_J, w_second) of weights that were estimated from the source's ``equations``.

    With a single episode every entry is nan.

    >>> from policyrisk.features import Tabular
    >>> from policyrisk.lstd.accumulate import accumulate
    >>> from policyrisk.trajectories import Trajectories
    >>> data = Trajectories([[0], [1], [0], [1]], [1.0, 3.0], [1, 1], [True, True])
    >>> equations = accumulate(data, Tabular(1), lam=0.0, discount=1.0)
    >>> bars = influence(data, equations, equations.solve()).bars
    >>> bars.mean, bars.cross  # the sample variance of (1, 3), and its covariance with (1, 9), over 2
    (array([[1.]]), array([[4.]]))
    """
    check_reiterable(source)
    return influence_by(
        here(source), equations, weights, method=method, face=face, replicates=replicates, seed=seed
    )


def influence_by(
    fold: Fold,
    equations: MomentEquations,
    weights: Weights,
    *,
    method: VarianceMethod,
    face: Face | None,
    replicates: int,
    seed: Seed,
    episodes: Sequence[int] = (),
) -> Influence:
    """As :func:`influence`, by a fold; ``episodes`` are those of each part, to number them by."""
    work = score_pass(equations, weights, method=method, replicates=replicates, seed=seed, episodes=episodes)
    return influence_of(fold(work), work, equations, weights, face)


def score_pass(
    equations: MomentEquations,
    weights: Weights,
    *,
    method: VarianceMethod,
    replicates: int,
    seed: Seed,
    episodes: Sequence[int] = (),
) -> ScorePass:
    """The pass over the data that sums what the error bars need."""
    return ScorePass(
        features=equations.features,
        second_features=equations.second_features,
        lam=equations.lam,
        discount=equations.discount,
        w_mean=weights.mean,
        w_second=weights.second,
        kept=(weights.mean_system.kept, weights.second_system.kept),
        direct=method == "direct",
        replicates=as_count(replicates, "replicates"),
        key=keys(seed),
        first=[0, *np.cumsum(episodes, dtype=np.int64).tolist()],
    )


def influence_of(
    sums: ScoreSums, work: ScorePass, equations: MomentEquations, weights: Weights, face: Face | None
) -> Influence:
    """The covariance of the weights from what the pass summed."""
    if sums.count == 0:
        raise InvalidInputError("data must hold at least one episode, got none; pass what was fitted")
    if sums.count != equations.episodes:
        raise MismatchError(
            f"data must be those of the equations, with {equations.episodes} episodes, got {sums.count}; "
            "pass the source that the equations were made from"
        )
    return _Finish(sums, work).influence(_solver(weights, equations.D if sums.D is None else sums.D, face))


def _solver(weights: Weights, D: Matrix, face: Face | None) -> Solver:
    """The map from scores (k_J, n), (k_M, n) of the visited features, used up, to their ψ_J and ψ_M."""
    mean, second = weights.dense_systems
    if mean.kept.size < D.shape[1] or second.kept.size < D.shape[0]:
        D = D[np.ix_(second.kept, mean.kept)]

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


class _Finish:
    """From sums over the scores to the covariance of the weights."""

    def __init__(self, sums: ScoreSums, work: ScorePass) -> None:
        self.sums, self.kept = sums, work.kept
        self.lengths = (work.w_mean.size, work.w_second.size)
        self.k_J, self.size = self.kept[0].size, sums.sum.size

    def influence(self, solver: Solver) -> Influence:
        """The covariance of the weights, and the bootstrap's deviations of the weights."""
        K = self.sums.count
        mean_score = self.sums.sum / K
        if K == 1:
            covariance = [np.full((a, b), np.nan) for a, b in self._shapes()]
        elif self.sums.meat is None:
            covariance = self._from_influences(solver, mean_score)
        else:
            covariance = self._from_meat(solver, mean_score)
        mean, cross, second = covariance
        if self.sums.drawn_sum.size == 0:
            none = (np.zeros((0, size)) for size in self.lengths)
            return Influence(ErrorBars(*self.kept, mean, cross, second), *none)
        drawn = self.sums.drawn.T - np.outer(self.sums.drawn_sum, mean_score)
        visited = [psi.T * np.sqrt(K / max(K - 1, 1)) for psi in self._solve(solver, drawn)]
        moves = [np.zeros((len(drawn), size)) for size in self.lengths]
        for move, kept, psi in zip(moves, self.kept, visited, strict=True):
            move[:, kept] = psi
        replicates = np.hstack(visited).astype(self._dtype)
        bars = ErrorBars(*self.kept, mean, cross, second, replicates)
        return Influence(bars, *moves)

    def _from_influences(self, solver: Solver, mean_score: Floats) -> list[npt.NDArray[Any]]:
        K = self.sums.count
        s_J, s_M = np.empty((K, self.k_J)), np.empty((K, self.size - self.k_J))
        first = 0
        for part in self.sums.waiting:
            at = slice(first, first + part.shape[0])
            for scores, columns in ((s_J, slice(0, self.k_J)), (s_M, slice(self.k_J, self.size))):
                few = part[:, columns]
                scores[at] = few.toarray() if sp.issparse(few) else few
                scores[at] -= mean_score[columns]
            first = at.stop
        self.sums = replace(self.sums, waiting=())  # they may be large
        P_J, P_M = (psi.T.astype(self._dtype) for psi in solver(s_J.T, s_M.T))
        covariance = [P_J.T @ P_J, P_J.T @ P_M, P_M.T @ P_M]
        for block in covariance:
            block *= K / (K - 1)
        return covariance

    def _from_meat(self, solver: Solver, mean_score: Floats) -> list[npt.NDArray[Any]]:
        K = self.sums.count
        assert self.sums.meat is not None
        meat = (self.sums.meat - K * np.outer(mean_score, mean_score)) * (K / (K - 1))
        half = np.vstack(self._solve(solver, meat))
        full = np.vstack(self._solve(solver, half))
        full = (full + full.T) / 2  # symmetric but for rounding
        k = self.k_J
        return [block.astype(self._dtype) for block in (full[:k, :k], full[:k, k:], full[k:, k:])]

    def _solve(self, solver: Solver, scores: Floats) -> tuple[Floats, Floats]:
        """ψ_J (k_J, n) and ψ_M (k_M, n) of n scores (n, size) over the visited features."""
        # Copies whose transposes are stored column by column, as LAPACK wants them.
        return solver(scores[:, : self.k_J].copy().T, scores[:, self.k_J :].copy().T)

    def _shapes(self) -> list[tuple[int, int]]:
        k_J, k_M = self.k_J, self.size - self.k_J
        return [(k_J, k_J), (k_J, k_M), (k_M, k_M)]

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        return np.float64 if self.size <= SINGLE_FROM else np.float32
