"""From trajectories with actions to the equations of another policy, and passes at known weights.

With Φ, Φ̄ and the traces Z and Y of :mod:`policyrisk.lstd.target_steps`, the sums are products of matrices:

    A = Zᵀ (Φ_J − γ Φ̄_J)     b = Zᵀ r     C = Yᵀ (Φ_M − γ² Φ̄_M)     D = Yᵀ 2γ diag(r) Φ̄_J     e = Yᵀ r²

``uncovered`` sums z_t times the share of the target that bootstrapping from x_{t+1} left out: γ (1 − covered)
and, for what was dropped, 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Matrix, is_sparse
from policyrisk._core.random import mammen
from policyrisk._core.records import Additive, add_each, record
from policyrisk.equations import MomentEquations, Weights
from policyrisk.equations.table_system import TableSystem
from policyrisk.features import Tabular
from policyrisk.features.target import PolicyFeatures
from policyrisk.lstd.accumulate import in_single_precision
from policyrisk.lstd.scores import ScorePass, Scores
from policyrisk.lstd.target_steps import ActionPlan, TargetSteps, first_steps, scaled, transposed
from policyrisk.lstd.trace_products import TRACE_CUT
from policyrisk.risk import ErrorBars, SampleReturns
from policyrisk.risk.completed import SIZE, CompletedReturns, EstimatesAt, centre_shift, episode_terms
from policyrisk.trajectories import Source, batches


@record
@dataclass(frozen=True, eq=False)
class ActionSums(Additive):
    """What the pass for the equations finds; it adds.

    The equations' features are stand-ins of the same sizes, so that the sums can be kept in files whatever
    the features and the policy are.
    """

    equations: MomentEquations
    returns: SampleReturns  # of the terminated episodes, under the policy that logged
    episodes: tuple[int, ...]  # of each part, in order
    uncovered: Floats  # (l_J,): Σ z_t times what bootstrapping left out of the target
    left_out: float  # the sum of those shares
    dropped: int  # transitions
    dense: Floats  # (2,): chunks in which φ_J and φ_M were dense

    @classmethod
    def over(cls, source: Source, plan: ActionPlan) -> ActionSums:
        """Of one part of the data."""
        source = _sized(source, plan)
        l_J, l_M = plan.mean.size, plan.second.size
        stand_ins = Tabular(l_J), Tabular(l_M)
        total = cls(
            MomentEquations.empty(*stand_ins, lam=plan.lam, discount=plan.discount),
            SampleReturns.of([]),
            (0,),
            np.zeros(l_J),
            0.0,
            0,
            np.zeros(2),
        )
        for part in plan.over(source, lambda steps: cls._of(steps, *stand_ins)):
            total = total._with(part)
        if total.equations.sparse and plan.many:
            return total
        return replace(total, equations=_dense(total.equations))

    @classmethod
    def _of(cls, steps: TargetSteps, *stand_ins: Tabular) -> ActionSums:
        plan, data = steps.plan, steps.data
        gamma, r = plan.discount, data.rewards
        Z = transposed(steps.of_kept(steps.Z))
        Y = Z if steps.Y is steps.Z else transposed(steps.of_kept(steps.Y))
        phi_J, phi_M = steps.of_kept(steps.phi_J), steps.of_kept(steps.phi_M)
        A = Z @ (steps.phi_J - gamma * steps.bar_J)
        one = plan.shared and gamma == 1.0
        gram_J = (Z if steps.Z is steps.phi_J else transposed(phi_J)) @ phi_J
        visits, feature_episodes = _counts(phi_J, steps)
        second_visits, second_episodes = (visits, feature_episodes) if plan.shared else _counts(phi_M, steps)
        outside = plan.mean.map.outside(steps.x, steps.a)
        if not plan.shared:
            outside = outside | plan.second.map.outside(steps.x, steps.a)
        left_out = steps.left_out * np.where(steps.kept, gamma, 1.0)
        equations = MomentEquations(
            A=A,
            b=Z @ r,
            C=A if one else Y @ (steps.phi_M - gamma**2 * steps.bar_M),
            D=Y @ scaled(steps.bar_J, 2.0 * gamma * r),
            e=Y @ r**2,
            gram=gram_J if plan.shared else transposed(phi_M) @ phi_M,
            mean_gram=gram_J,
            visits=visits,
            second_visits=second_visits,
            feature_episodes=feature_episodes,
            second_feature_episodes=second_episodes,
            episodes=len(data),
            terminated=int(data.terminated.sum()),
            transitions=int(np.count_nonzero(steps.kept)),
            outside=int(np.count_nonzero(outside)),
            lam=plan.lam,
            discount=gamma,
            features=stand_ins[0],
            second_features=stand_ins[1],
            trace_cut=TRACE_CUT if plan.many and plan.lam > 0 and sp.issparse(A) else 0.0,
            single=in_single_precision(data.states),
        )
        returns = SampleReturns.of(data.returns(gamma)[data.terminated])
        dropped = int(np.count_nonzero(~steps.kept))
        uncovered = np.asarray(steps.Z.T @ left_out) if left_out.any() else np.zeros(len(equations.b))
        dense = np.array([not sp.issparse(phi) for phi in (phi_J, phi_M)], dtype=np.float64)
        return cls(equations, returns, (len(data),), uncovered, float(steps.left_out.sum()), dropped, dense)

    def _with(self, other: ActionSums) -> ActionSums:
        """The sum with some more episodes of the same part."""
        both = self + other
        return replace(both, episodes=(sum(both.episodes),))


@record
@dataclass(frozen=True, eq=False)
class Ways(Additive):
    """Which features lead to which, under the target, and which to an end; they add."""

    to_features: tuple[Any, ...]  # CSR (l, l) for each map: how often j had a share in φ̄ after i was active
    to_end: tuple[Floats, ...]  # (l,): how often the episode then terminated
    _rules: ClassVar = {"to_features": add_each, "to_end": add_each}

    @classmethod
    def over(cls, plan: ActionPlan, source: Source, part: int) -> Ways:
        """Of one part of the data."""
        sizes = (plan.mean.size,) if plan.shared else (plan.mean.size, plan.second.size)
        total = cls(tuple(sp.csr_array((n, n)) for n in sizes), tuple(np.zeros(n) for n in sizes))

        def found(steps: TargetSteps) -> Ways:
            pairs = ((steps.phi_J, steps.bar_J), (steps.phi_M, steps.bar_M))[: len(sizes)]
            active = [[_active(each) for each in pair] for pair in pairs]
            ends = (~steps.goes_on).astype(np.float64)
            return cls(
                tuple(sp.csr_array(transposed(phi) @ bar) for phi, bar in active),
                tuple(phi.T @ ends for phi, _ in active),
            )

        return sum(plan.over(source, found), start=total)

    def to_an_end(self) -> tuple[Bools, ...]:
        """The features that an end can be reached from, (l,) for each map."""
        found = []
        for ways, ends in zip(self.to_features, self.to_end, strict=True):
            leads, before = ends > 0, -1
            while leads.sum() > before:
                before = int(leads.sum())
                leads = leads | (ways @ leads.astype(np.float64) > 0)
            found.append(leads)
        return tuple(found)


def direct_sums(source: Source, plan: ActionPlan, w_mean: Floats) -> Floats:
    """Σ y_t Σ_a' π(a'|x_{t+1}) δ_t(a')², the right-hand side of the direct variance, of shape (l_M,)."""

    def found(steps: TargetSteps) -> Floats:
        return np.asarray(steps.of_kept(steps.Y).T @ steps.squares(w_mean))

    return sum(plan.over(source, found), start=np.zeros(plan.second.size))


@dataclass(frozen=True, eq=False)
class ActionScorePass(ScorePass):
    """The pass that sums scores at the given weights, for another policy than the one that logged.

    Beside the scores go z of the estimates at the starts (:meth:`CompletedReturns.of_starts`).
    """

    at: EstimatesAt | None = None

    def _over(self, source: Source) -> Iterator[tuple[Scores, Floats, Any]]:
        assert isinstance(self.features, PolicyFeatures)
        assert isinstance(self.second_features, PolicyFeatures)
        plan = ActionPlan(self.features, self.second_features, self.lam, self.discount)
        return plan.over(source, self._of)

    def _of(self, steps: TargetSteps) -> tuple[Scores, Floats, Any]:
        """The scores (episodes, l_J + l_M) of a chunk, z (episodes, 5) and its part of the direct D."""
        gamma, r, D = steps.plan.discount, steps.data.rewards, None
        delta, _, variance = steps.errors(self.w_mean)
        M, M_next = steps.phi_M @ self.w_second, steps.bar_M @ self.w_second
        if self.direct:
            delta_M = delta**2 + gamma**2 * variance + gamma**2 * M_next - M
            D = transposed(steps.of_kept(steps.Y)) @ steps.slope(self.w_mean)
        else:
            delta_M = r**2 + 2.0 * gamma * r * (steps.bar_J @ self.w_mean) + gamma**2 * M_next - M
        parts = [steps.episode @ scaled(z, by) for z, by in ((steps.Z, delta), (steps.Y, delta_M))]
        assert self.at is not None
        J, V = np.concatenate([(part.J, part.V) for part in self.at(steps.data.starts())], axis=1)
        known = ~np.isnan(J)
        h, V = np.where(known, J - self.reference, 0.0), np.where(known, V, 0.0)
        z = episode_terms(h, V, h, V) * known[:, None]
        if all(sp.issparse(part) for part in parts):
            return sp.csr_array(sp.hstack(parts, format="csr")), z, D
        return np.hstack([_as_dense(part) for part in parts]), z, D


@record
@dataclass(frozen=True, eq=False)
class DrawnScores(Additive):
    """Sums over episodes' scores s_k with the multipliers ξ_kb of the bootstrap; they add."""

    count: int  # episodes
    sum: Floats  # (n,): Σ s_k
    drawn: Floats  # (n, B): Σ_k ξ_kb s_k
    drawn_sum: Floats  # (B,): Σ_k ξ_kb
    drawn_beside: Floats  # (5, B): Σ_k ξ_kb z_k
    D: Any  # (l_M, l_J): the direct variance's, 0 of another

    @classmethod
    def over(cls, scores: ScorePass, source: Source, part: int) -> DrawnScores:
        """Of one part of the data; n are the visited features of both maps."""
        l_J, l_M, B = scores.w_mean.size, scores.w_second.size, scores.replicates
        columns = np.concatenate([scores.kept[0], l_J + scores.kept[1]])
        n = columns.size
        nothing = np.zeros(n), np.zeros((n, B)), np.zeros(B), np.zeros((SIZE, B)), sp.csr_array((l_M, l_J))
        total = cls(0, *nothing)
        for s, z, D in scores._over(source):
            s = s[:, columns]
            xi = np.empty((s.shape[0], B))
            first = scores.first[part] + total.count
            mammen(*scores.key, np.arange(first, first + len(xi)), xi)
            D = nothing[-1] if D is None else D
            total += cls(len(xi), np.asarray(s.sum(axis=0)).ravel(), s.T @ xi, xi.sum(axis=0), z.T @ xi, D)
        return total

    def error_bars(self, equations: MomentEquations, weights: Weights, key: tuple[int, int]) -> ErrorBars:
        """The covariance as that of B draws of the weights (see :mod:`policyrisk.lstd.sandwich`)."""
        mean, second, K = weights.mean_system, weights.second_system, self.count
        assert isinstance(mean, TableSystem)
        assert isinstance(second, TableSystem)
        D = self.D if self.D.nnz else equations.D
        s = self.drawn - np.outer(self.sum / K, self.drawn_sum)
        psi_J = mean.solve_kept(s[: mean.kept.size])
        psi_M = second.solve_kept(s[mean.kept.size :] + D[second.kept][:, mean.kept] @ psi_J)
        moved = np.vstack([psi_J, psi_M]).T * np.sqrt(K / max(K - 1, 1))
        return ErrorBars(mean.kept, second.kept, None, None, None, moved.astype(np.float32), None, key)

    def beside(self, completed: CompletedReturns, reference: float) -> CompletedReturns:
        """The estimates at the starts with their draws, as :func:`policyrisk.lstd.sandwich.with_weights`."""
        K, shift = self.count, reference - completed.mean
        drawn = centre_shift(shift, shift) @ self.drawn_beside
        return replace(completed, draws=drawn / np.sqrt(K * (K - 1))) if K > 1 else completed


def _active(phi: Any) -> Any:
    """1 where a feature is active, in the format of φ."""
    return (phi != 0).astype(np.float64)


def _counts(phi: Matrix, steps: TargetSteps) -> tuple[Floats, Floats]:
    """How many transitions and how many episodes had each feature active, each of shape (l,)."""
    active = _active(phi)
    visits = np.asarray(active.sum(axis=0)).ravel()
    by_episode: Any = steps.episode @ active
    if is_sparse(by_episode):
        by_episode.eliminate_zeros()
        return visits, np.bincount(by_episode.indices, minlength=phi.shape[1]).astype(np.float64)
    return visits, np.count_nonzero(by_episode, axis=0).astype(np.float64)


def _sized(source: Source, plan: ActionPlan) -> Source:
    """The source, after features that are functions have told their size, as they do at their first call."""
    if all(hasattr(phi.map.features, "size") for phi in (plan.mean, plan.second)):
        return source
    found = (batch for batch in batches(source) if len(batch))
    first = next(found, None)
    if first is None:
        return source
    TargetSteps(plan, first_steps(first))
    return chain([first], found)


def _as_dense(matrix: Any) -> Floats:
    dense: Floats = matrix.toarray() if is_sparse(matrix) else np.asarray(matrix)
    return dense


def _dense(equations: MomentEquations) -> MomentEquations:
    """The same with dense matrices."""
    A, gram = _as_dense(equations.A), _as_dense(equations.mean_gram)
    C = A if equations.shared else _as_dense(equations.C)
    second = gram if equations.gram is equations.mean_gram else _as_dense(equations.gram)
    return replace(equations, A=A, C=C, D=_as_dense(equations.D), gram=second, mean_gram=gram)
