"""From the episodes' residuals to their influences, and to the covariance of the weights.

With s_J,k and s_M,k the residuals of episode k (see :mod:`policyrisk.lstd.residuals`), and A, C, D summed
over all K episodes (ridge·K added to the diagonals of A and C), the episode moves the weights by

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
skewness included. Where episodes come in clusters, ξ is the cluster's, so that clusters are what is taken to
be independent, and G/(G − 1) of their number stands for K/(K − 1).

The pass for the error bars, at known weights, sums the residuals, and what the summary needs of the starts
and of the completed returns (:mod:`policyrisk.risk.completed`): of all episodes, those included that gave up
every transition (see :mod:`policyrisk.lstd.cutoffs`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, Seed, as_dense
from policyrisk._core.records import Additive, record, where_both
from policyrisk.data import Source, Trajectories, gathered
from policyrisk.equations import MomentEquations, Weights
from policyrisk.equations.systems import TableSystem
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.target import PolicyFeatures
from policyrisk.lstd.accumulate import FirstPass
from policyrisk.lstd.cutoffs import Trim
from policyrisk.lstd.nonnegative import Face
from policyrisk.lstd.residuals import ResidualPass, ResidualSums
from policyrisk.lstd.steps import View
from policyrisk.passes import Reduce
from policyrisk.risk import ErrorBars, RiskFunction
from policyrisk.risk.completed import EPISODES, SIZE, TRANSITIONS, CompletedReturns, centre_shift
from policyrisk.risk.draws import DRAWS_OF_CLUSTERS, check_clusters
from policyrisk.risk.start_sums import StartSums

SINGLE_FROM = 2000  # weights from which on their covariance is kept in single precision
DRAWS_OF_TABLES = 1000  # of the weights of a large table, for a standard error that is known to 2 %

# From residuals (k_J, n), (k_M, n) of the visited features, used up, to their ψ_J and ψ_M.
Solver: TypeAlias = Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True, eq=False)
class Solved:
    """An estimate, and what its error bars are made from."""

    risk: RiskFunction
    view: View
    equations: MomentEquations
    weights: Weights  # with those of the second map that the estimate has
    face: Face | None
    cut: Trim

    def residual_pass(self, **how: Any) -> ResidualPass:
        """The pass for the residuals at these weights; of a target policy z is about the starts."""
        risk = self.risk
        return ResidualPass.of(
            self.view,
            self.weights,
            direct=risk.variance_method == "direct",
            variance_lam=risk.provenance.variance_lam,
            reference=risk.returns.mean if risk.returns is not None and risk.returns.count else 0.0,
            at=risk.parts if isinstance(risk.features, PolicyFeatures) else None,
            **how,
        )

    def solver(self, residuals: ResidualSums) -> Solver:
        """From residuals, of which these are the sums, to what they move the weights by."""
        D = self.equations.D if residuals.D is None else residuals.D
        return _solver(self.weights, D, self.face)


def with_error_bars(
    solved: Solved, reduce: Reduce, first: FirstPass, bootstrap: int, seed: Seed
) -> RiskFunction:
    """An estimate with its error bars, starts and completed returns, by one more pass.

    Where the error bars are draws alone there are some, asked for or not.
    """
    risk, clustered = solved.risk, first.clusters is not None
    if first.clusters is not None:
        check_clusters(first.clusters.size)
    if clustered and not bootstrap:
        bootstrap, seed = DRAWS_OF_CLUSTERS, 0 if seed is None else seed
    if isinstance(solved.weights.mean_system, TableSystem):
        bootstrap = bootstrap or DRAWS_OF_TABLES
    how: dict[str, Any] = {"replicates": bootstrap, "seed": seed, "clustered": clustered}
    work = solved.residual_pass(episodes=first.episodes, **how)
    found = reduce(partial(SecondPass.over, risk, work, solved.cut))
    assert found.residuals is not None
    key = int(work.key[0]), int(work.key[1])
    bars = sandwich(found.residuals, solved.equations, solved.weights, solved.face, key)
    completed = with_weights(found.completed, found.residuals, work.reference, solved)
    return replace(risk, error_bars=bars, starts=found.starts, completed=completed)


def with_starts(risk: RiskFunction, reduce: Reduce, sample: Trajectories | None = None) -> RiskFunction:
    """An estimate with its starts and completed returns alone, by one more pass.

    Where a ``sample`` is given the gradients of the sums by the weights are those of its episodes, scaled.
    """
    found = reduce(partial(SecondPass.over, risk, None, Trim(()), values_alone=sample is not None))
    starts, completed = found.starts, found.completed
    if sample is not None:
        own, ends = risk.start_sums(sample.starts()), risk.completed_sums(sample)
        for_starts, for_ends = (
            all_.count / max(few.count, 1) for all_, few in ((starts, own), (completed, ends))
        )
        gradients = {
            f"phi_{of}": getattr(own, f"phi_{of}") * for_starts for of in ("mean", "second", "spread")
        }
        tails = ("tail", "tail_spread", "tail_mean", "tail_second")
        starts = replace(starts, **gradients)
        completed = replace(completed, **{of: getattr(ends, of) * for_ends for of in tails})
    return replace(risk, starts=starts, completed=completed)


@record
@dataclass(frozen=True, eq=False)
class SecondPass(Additive):
    """What the pass for the error bars and the summary finds."""

    residuals: ResidualSums | None  # where there are to be error bars
    starts: StartSums
    completed: CompletedReturns
    _rules: ClassVar = {"residuals": where_both(add)}

    @classmethod
    def over(
        cls,
        risk: RiskFunction,
        work: ResidualPass | None,
        cut: Trim,
        source: Source,
        part: int,
        values_alone: bool = False,
    ) -> SecondPass:
        """Of one part of the data; with ``values_alone`` without what the sums change by with the weights."""
        observed = Observed(source, risk, values_alone)
        residuals = None
        if work is None:
            deque(observed, maxlen=0)
        else:
            residuals = work(cut(observed), part)
        return cls(residuals, observed.starts, observed.completed)


class Observed:
    """A source whose starts and completed returns are summed at an estimate on the way through."""

    def __init__(self, source: Source, risk: RiskFunction, values_alone: bool = False) -> None:
        self.source, self.risk, self.values_alone = source, risk, values_alone
        sizes = risk.w_mean.size, risk.w_second.size
        self.starts, self.completed = StartSums.empty(*sizes), CompletedReturns.empty(*sizes)

    def __iter__(self) -> Iterator[Trajectories]:
        for batch in gathered(self.source, EPISODES, TRANSITIONS):
            self.starts += self.risk.start_sums(batch.starts(), values_alone=self.values_alone)
            self.completed += self.risk.completed_sums(batch, values_alone=self.values_alone)
            yield batch


def sandwich(
    residuals: ResidualSums,
    equations: MomentEquations,
    weights: Weights,
    face: Face | None = None,
    key: tuple[int, int] | None = None,  # that the replicates were drawn with
) -> ErrorBars:
    """Cov(w_J, w_second) of the visited features' weights, estimated from ``equations``, and the replicates.

    With a single episode every entry is nan.

    >>> from policyrisk.features import Tabular
    >>> from policyrisk.lstd.accumulate import accumulate
    >>> from policyrisk.lstd.residuals import ResidualPass
    >>> from policyrisk.data import Trajectories
    >>> data = Trajectories([[0], [1], [0], [1]], [1.0, 3.0], [1, 1], [True, True])
    >>> view = View(Tabular(1), Tabular(1), lam=0.0, discount=1.0)
    >>> equations = accumulate(data, view)
    >>> weights = equations.solve()
    >>> bars = sandwich(ResidualPass.of(view, weights, direct=False)(data, 0), equations, weights)
    >>> bars.mean, bars.cross  # the sample variance of (1, 3), and its covariance with (1, 9), over 2
    (array([[1.]]), array([[4.]]))
    """
    K = residuals.count
    if K == 0:
        raise InvalidInputError("data must hold at least one episode, got none; pass what was fitted")
    if equations.episodes != K:
        raise MismatchError(
            f"data must be those of the equations, with {equations.episodes} episodes, got {K}; "
            "pass the source that the equations were made from"
        )
    kept = weights.mean_system.kept, weights.second_system.kept
    solver = _solver(weights, equations.D if residuals.D is None else residuals.D, face)
    k_J, k_M = kept[0].size, kept[1].size
    mean_residual, dtype = residuals.sum / K, np.float64 if k_J + k_M <= SINGLE_FROM else np.float32
    blocks: list[Any] = [None] * 3
    if residuals.squares is None and not residuals.waiting:  # draws alone
        dtype = np.float32
    elif K == 1:
        blocks = [np.full(shape, np.nan) for shape in ((k_J, k_J), (k_J, k_M), (k_M, k_M))]
    elif residuals.squares is None:
        blocks = _from_influences(solver, residuals, mean_residual, k_J, dtype)
    else:
        blocks = _from_squares(solver, residuals.squares, K, mean_residual, k_J, dtype)
    replicates = None
    if residuals.drawn_sum.size:
        drawn = residuals.drawn.T - np.outer(residuals.drawn_sum, mean_residual)
        G = residuals.independent
        moved = [psi.T * np.sqrt(G / max(G - 1, 1)) for psi in _solve(solver, drawn, k_J)]
        replicates = np.hstack(moved).astype(dtype)
    held = None
    if face is not None and len(face.H):
        held = sp.csr_array(np.hstack([face.G[:, kept[0]], -face.H[:, kept[1]]]))
    clusters = 0 if residuals.clusters is None else residuals.independent
    mean, cross, second = blocks
    own = None if replicates is None else key
    return ErrorBars(*kept, mean, cross, second, replicates, held, own, clusters)


def with_weights(
    completed: CompletedReturns, residuals: ResidualSums, reference: float, solved: Solved
) -> CompletedReturns:
    """The completed returns with Σ z_k ψ_kᵀ / (K − 1), and with the bootstrap's Σ_k ξ_kb z_k / K.

    ``residuals`` were summed with z about ``reference``.
    """
    K = residuals.count
    if K < 2:
        return completed
    kept = solved.weights.mean_system.kept, solved.weights.second_system.kept
    k_J = kept[0].size
    L = centre_shift(reference - completed.mean, reference - completed.start_mean)
    l_J, l_M = len(solved.weights.mean), len(solved.weights.second)
    solver = solved.solver(residuals)
    shared = draws = None
    if residuals.squares is not None or residuals.waiting:
        psi_J, psi_M = _solve(solver, L @ residuals.beside.T, k_J)
        shared = np.zeros((SIZE, l_J + l_M))
        shared[:, kept[0]] = psi_J.T / (K - 1)
        shared[:, l_J + kept[1]] = psi_M.T / (K - 1)
    if residuals.drawn_sum.size:
        G = residuals.independent
        draws = L @ residuals.drawn_beside / K * np.sqrt(G / max(G - 1, 1))
        if residuals.clusters is None:
            draws = L @ residuals.drawn_beside / np.sqrt(K * (K - 1))
    return replace(completed, with_weights=shared, draws=draws)


def _from_influences(
    solver: Solver, residuals: ResidualSums, mean_residual: Floats, k_J: int, dtype: Any
) -> list[npt.NDArray[Any]]:
    """The covariance's blocks from residuals that are fewer than the weights."""
    K, n = residuals.count, residuals.sum.size
    s_J, s_M = np.empty((K, k_J)), np.empty((K, n - k_J))
    first = 0
    for part in residuals.waiting:
        at = slice(first, first + part.shape[0])
        for out, columns in ((s_J, slice(0, k_J)), (s_M, slice(k_J, n))):
            out[at] = as_dense(part[:, columns])
            out[at] -= mean_residual[columns]
        first = at.stop
    P_J, P_M = (psi.T.astype(dtype) for psi in solver(s_J.T, s_M.T))
    blocks = [P_J.T @ P_J, P_J.T @ P_M, P_M.T @ P_M]
    for block in blocks:
        block *= K / (K - 1)
    return blocks


def _from_squares(
    solver: Solver, squares: Floats, K: int, mean_residual: Floats, k_J: int, dtype: Any
) -> list[npt.NDArray[Any]]:
    """The covariance's blocks from Σ s_k s_kᵀ, solved from both sides."""
    centred = (squares - K * np.outer(mean_residual, mean_residual)) * (K / (K - 1))
    half = np.vstack(_solve(solver, centred, k_J))
    full = np.vstack(_solve(solver, half, k_J))
    full = (full + full.T) / 2  # symmetric but for rounding
    return [block.astype(dtype) for block in (full[:k_J, :k_J], full[:k_J, k_J:], full[k_J:, k_J:])]


def _solve(solver: Solver, residuals: Floats, k_J: int) -> tuple[Floats, Floats]:
    """ψ_J (k_J, n) and ψ_M (k_M, n) of n residuals (n, k_J + k_M)."""
    # Copies whose transposes are stored column by column, as LAPACK wants them.
    return solver(residuals[:, :k_J].copy().T, residuals[:, k_J:].copy().T)


def _solver(weights: Weights, D: Matrix, face: Face | None) -> Solver:
    mean, second = weights.factored_systems
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
