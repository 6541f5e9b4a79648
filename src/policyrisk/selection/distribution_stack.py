"""The mixture for the return's distribution: its members, their shares, and how it does on held-out episodes.

Members are fitted to the sample of episodes that the features were chosen on, completed: where an
episode was cut off in x_T with R earned by then, B = R + γⁿ (J(x_T) + σ(x_T) u), u being one of the residuals
U of all steps, found in a few rounds from normal ones. They are

    LSTD's CDF       φ(x)ᵀ G⁻¹ Σ_t φ(x_t) 1{B_t ≤ θ} for candidates with a share in the mean
    the forest       averages of 1{B_t ≤ θ} over the leaves of trees that were grown on other episodes
    location, scale  the distribution of U_t = (B_t − J(x_t))/σ(x_t), J and V without the step's own episode

Their shares are those of :mod:`policyrisk.selection.stacking`, of the squared errors of F_i(z|x_t), without
the episode's fold, for 1{B_t ≤ z} at z = J + σu, u being the p-quantiles of U for some p. Their weights
Δp/(p (1 − p)) make each p count alike: the plain CRPS hardly looks at the tails.

What was completed is no observation: with a share c of the steps so (a step counts γⁿ), groups of episodes
move the members by 1/√(1 − c) times as much. Where every step has the same chance of being the last, the
information is then the number of episodes that ended.

Where all returns are few different values, location and scale puts J(x) + σ(x)U at the nearest of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Ints, as_dense, is_sparse
from policyrisk.data import Trajectories
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.passes.episode_folds import FOLDS, folds_of
from policyrisk.returns.curves import Grid, monotone, read_at
from policyrisk.returns.distribution_mixture import (
    DistributionMember,
    DistributionMixture,
    read_residual,
)
from policyrisk.returns.forest import ReturnForest, grown_trees
from policyrisk.risk import RiskFunction
from policyrisk.risk.scoring import EpisodeSteps
from policyrisk.selection.regions import Regions, points_of
from policyrisk.selection.stacking import FOREST, Stack, shares_of

THRESHOLDS = 48  # of returns, and of residuals
LSTD_MEMBERS = 3  # at most
_MOST_FEATURES = 400
_TREES, _LEAF, _LEAVES = 20, 15, 40
_ROUNDS = 5  # of the completion
_SCORED = 4000  # steps at most
_LEVELS = np.array([0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
_LEVELS = np.concatenate([_LEVELS, 1.0 - _LEVELS[-2::-1]])  # p
_LEAST_VARIANCE = 0.02  # of the mean one
_GROUPS, _FEWEST_GROUPS = 200, 40  # of episodes, for the draws
_ROOM = 1 << 20  # numbers of a member's moves
_INDEPENDENT = 1e-10  # directions that are less of G are left out
_DEPTH = 3  # cuts: up to 8 regions
_TAIL = 0.05  # of the PIT
LOCATION_SCALE = "location and scale"
_Fit: TypeAlias = "tuple[Floats, Floats]"


@dataclass(frozen=True)
class TailRegion:
    """How often held-out returns fell below their 5 % quantile somewhere."""

    name: str
    steps: float  # the share of all
    below: float
    error: float  # of that, over episodes


@dataclass(frozen=True, eq=False)
class Completed:
    """The sample's steps with their completed returns and residuals."""

    steps: EpisodeSteps
    returns: Floats  # (n,): B
    residuals: Floats  # (n,): U
    mean: Floats  # (n,): J without the step's episode
    sigma: Floats  # (n,)
    folds: Ints  # (n,)
    least_variance: float

    @classmethod
    def of(
        cls,
        sample: Trajectories,
        mean: Floats,
        variance: Floats,
        ends: Floats,
        discount: float,
        key: int,
        least: float | None = None,
    ) -> Completed:
        """By J and V at the steps (n,), and at the cuts (2, m)."""
        steps = EpisodeSteps.of(sample, discount)
        mean, variance = np.where(np.isnan(mean), np.nanmean(mean), mean), np.nan_to_num(variance)
        ends = np.nan_to_num(ends)
        least = least or _LEAST_VARIANCE * float(np.maximum(variance, 0.0).mean()) or 1.0
        sigma = np.sqrt(np.maximum(variance, least))
        B, rng = steps.rewards, np.random.default_rng(key)
        u = rng.standard_normal(steps.cut_off)  # episodes that ended are the short ones: not of theirs alone
        for _ in range(_ROUNDS if steps.cut_off else 0):
            B = steps.completed(steps.rewards, ends[0] + np.sqrt(np.maximum(ends[1], 0.0)) * u)
            u = rng.choice((B - mean) / sigma, steps.cut_off)
        folds = folds_of(sample, FOLDS, key)[steps.episode]
        return cls(steps, B, (B - mean) / sigma, mean, sigma, folds, least)


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """LSTD's CDF, from rows φ (n, l)."""

    phi: Any

    def sums(self, targets: Floats, some: Any) -> _Fit:
        """G and Σ φ target over some of the steps."""
        phi = self.phi[some]
        return as_dense(phi.T @ phi), np.asarray(phi.T @ targets[some])

    def weights(self, sums: _Fit) -> Floats:
        """(l, m)."""
        return self.solve(sums[0], sums[1])

    def solve(self, G: Floats, rhs: Floats) -> Floats:
        """G⁺ rhs (l, m)."""
        diagonal = np.diag(G)
        scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
        values, vectors = np.linalg.eigh(G * np.outer(scale, scale))
        some = values > _INDEPENDENT * values[-1]
        found: Floats = vectors[:, some] @ (
            (vectors[:, some].T @ (scale[:, None] * rhs)) / values[some, None]
        )
        return found * scale[:, None]

    def said(self, some: Ints, W: Floats) -> Floats:
        """F at some of the steps, (k, m)."""
        return np.asarray(self.phi[some] @ W)

    def moves(self, targets: Floats, sums: _Fit, W: Floats, group: Ints, groups: int) -> Floats:
        """By how much each group moves the weights, (l, groups, m)."""
        size, m = W.shape
        total = np.zeros((groups, size, m))
        order = np.argsort(group, kind="stable")
        found, first = np.unique(group[order], return_index=True)
        for g, at in zip(found.tolist(), np.split(order, first[1:]), strict=True):
            phi = self.phi[at]
            total[g] = phi.T @ (targets[at] - phi @ W)
        rhs = total.transpose(1, 0, 2).reshape(size, groups * m)
        return self.solve(sums[0], rhs).reshape(size, groups, m)


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages over leaves, from CSR rows (n, leaves) of the leaves that a step counts in."""

    phi: Any
    trees: int

    def sums(self, targets: Floats, some: Any) -> _Fit:
        """Visits and Σ target of each leaf over some of the steps."""
        phi = self.phi[some]
        return np.asarray(phi.sum(axis=0)).ravel(), np.asarray(phi.T @ targets[some])

    def weights(self, sums: _Fit) -> Floats:
        """The averages over the number of trees, (leaves, m)."""
        return np.asarray(sums[1] / (self.trees * np.maximum(sums[0], 1.0))[:, None])

    def said(self, some: Ints, W: Floats) -> Floats:
        """F at some of the steps by the trees that they count in, (k, m)."""
        phi = self.phi[some]
        return np.asarray(phi @ W) * (self.trees / np.asarray(phi.sum(axis=1)).ravel())[:, None]

    def moves(self, targets: Floats, sums: _Fit, W: Floats, group: Ints, groups: int) -> Floats:
        """By how much each group moves the weights, (leaves, groups, m)."""
        visits, own = np.maximum(sums[0], 1.0), W * self.trees
        moved = np.zeros((len(W), groups, W.shape[1]))
        for g in range(groups):
            phi = self.phi[group == g]
            moved[:, g] = phi.T @ targets[group == g] - np.asarray(phi.sum(axis=0)).ravel()[:, None] * own
        return np.asarray(moved / (self.trees * visits)[:, None, None])


@dataclass(frozen=True, eq=False)
class Rival:
    """A member before it has a share."""

    name: str
    features: Features | None
    rows: LeastSquares | Averages
    residual: bool


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What a candidate says of the scored steps without their folds."""

    said: Floats  # (steps · levels,): F at the quantiles that are scored
    at_return: Floats  # (steps,): F(B)
    sums: _Fit  # of all steps

    @classmethod
    def of(
        cls,
        candidate: Rival,
        targets: Floats,
        u: Floats,
        data: Completed,
        scored: Ints,
        places: Floats,
        grid: Grid,
    ) -> HeldOut:
        """By the candidate's ``targets`` (n, m) at the grid's thresholds, or at ``u``, of a residual.

        ``places`` are the quantiles of U.
        """
        rows, F = candidate.rows, np.empty((len(scored), targets.shape[1]))
        parts = [rows.sums(targets, np.flatnonzero(data.folds == k)) for k in range(FOLDS)]
        G, rhs = (np.sum([part[i] for part in parts], axis=0) for i in (0, 1))
        for k, part in enumerate(parts):
            at = np.flatnonzero(data.folds[scored] == k)
            if at.size:
                F[at] = rows.said(scored[at], rows.weights((G - part[0], rhs - part[1])))
        F = monotone(F)
        J, sigma = data.mean[scored], data.sigma[scored]
        both = J[:, None] + sigma[:, None] * places, data.returns[scored, None]
        if candidate.residual:
            said, at_return = (read_residual(F, u, J, sigma, z, grid) for z in both)
        else:
            said, at_return = (read_at(F, grid.theta, z, steps=grid.steps) for z in both)
        return cls(said.ravel(), at_return[:, 0], (G, rhs))


def stack_distribution(
    stack: Stack,
    sample: Trajectories,
    maps: Mapping[str, Features],
    risk: RiskFunction,
    *,
    key: int,
    unit: float,
    names: Sequence[str] | None = None,
) -> tuple[DistributionMixture, tuple[TailRegion, ...]]:
    """The mixture beside an evaluation's risk, and where held-out returns do not agree with its tail.

    ``maps`` are candidates' features, ``sample`` and ``stack`` in the unit that ``risk`` is times of, and
    ``key`` drew the folds of the stack; ``names`` are the coordinates'.
    """
    discount = risk.provenance.discount
    data = Completed.of(sample, stack.mean, stack.variance, stack.ends, discount, key)
    theta, steps = thresholds(data.returns)
    u = thresholds(data.residuals)[0]
    targets = {False: _below(data.returns, theta), True: _below(data.residuals, u)}
    grid, found = Grid(theta, steps), candidates(sample, data, maps, discount, key)
    scored = _thinned(len(data.returns), key)
    places = np.quantile(data.residuals, _LEVELS)
    held_out = [HeldOut.of(each, targets[each.residual], u, data, scored, places, grid) for each in found]
    y = (data.returns[scored, None] <= data.mean[scored, None] + data.sigma[scored, None] * places).ravel()
    weight = np.tile(np.gradient(_LEVELS) / (_LEVELS * (1.0 - _LEVELS)), len(scored))
    episode = np.repeat(data.steps.episode[scored], len(_LEVELS))
    said = np.column_stack([each.said for each in held_out])
    shares = shares_of(said, y.astype(np.float64), weight, episode)
    pit = np.column_stack([each.at_return for each in held_out]) @ shares
    independent = int(data.steps.block.max()) + 1
    groups = _group_count(independent, max(each.rows.phi.shape[1] for each in found) * theta.size)
    group = data.steps.block % groups
    growth = 1.0 / math.sqrt(1.0 - float(data.steps.weight.mean()))
    members = []
    for each, share, fit in zip(found, shares.tolist(), held_out, strict=True):
        if share:
            own = targets[each.residual]
            W = each.rows.weights(fit.sums)
            moves = (growth * each.rows.moves(own, fit.sums, W, group, groups)).astype(np.float32)
            members.append(DistributionMember(each.name, share, each.features, W, moves, each.residual))
    mixture = DistributionMixture(
        evaluated=risk,
        members=tuple(sorted(members, key=lambda each: -each.share)),
        grid=grid,
        residuals=u,
        least_variance=data.least_variance,
        episodes=independent,
        discount=discount,
        unit=unit,
    )
    return mixture, () if steps else regions(data, scored, pit, names)


def thresholds(values: Floats, count: int = THRESHOLDS) -> tuple[Floats, bool]:
    """Where F is estimated, (m,) rising, and whether there are no other values.

    >>> thresholds(np.array([1.0, 0.0, 1.0]))
    (array([0., 1.]), True)
    """
    low, high = float(values.min()), float(values.max())
    tol = 1e-9 * max(high - low, abs(high), 1e-300)
    different = np.unique(values)
    different = different[np.append(True, np.diff(different) > tol)]
    if different.size <= count:
        return different, True
    p = np.concatenate([np.linspace(0.0, 1.0, count // 2), [0.002, 0.005, 0.01, 0.03, 0.97, 0.99]])
    found = np.unique([*np.quantile(values, p), *np.linspace(low, high, count - p.size)])
    return found[np.append(True, np.diff(found) > tol)], False


def candidates(
    sample: Trajectories,
    data: Completed,
    maps: Mapping[str, Features],
    discount: float,
    key: int,
) -> list[Rival]:
    """The members that are tried."""
    states, n = data.steps.states, len(data.returns)
    found: list[Rival] = []
    for name, features in maps.items():
        if len(found) < LSTD_MEMBERS and features.size <= min(_MOST_FEATURES, n / 20):
            phi: Any = matrix_of(features, states)
            phi = sp.csr_array(phi) if is_sparse(phi) else np.asarray(phi)
            found.append(Rival(name, features, LeastSquares(phi), residual=False))
    forest = ReturnForest(trees=_TREES, leaf=_LEAF, discount=discount)
    leaves, apart = grown_trees(forest, sample, data.returns, (key, _TREES), _LEAVES)
    active: Any = sp.csr_array(leaves(states))
    owner = np.repeat(data.steps.episode, np.diff(active.indptr))
    counts = apart[owner, leaves.tree_of[active.indices]].astype(np.float64)
    counted: Any = sp.csr_array((counts, active.indices, active.indptr), shape=active.shape)
    counted.eliminate_zeros()
    found.append(Rival(FOREST, leaves, Averages(counted, leaves.trees), residual=False))
    found.append(Rival(LOCATION_SCALE, None, Averages(sp.csr_array(np.ones((n, 1))), 1), True))
    return found


def regions(
    data: Completed, scored: Ints, pit: Floats, names: Sequence[str] | None = None
) -> tuple[TailRegion, ...]:
    """How often F(B) of held-out steps is below 5 %, by regions of the states."""
    points = points_of(data.steps.states[scored])
    episode = data.steps.episode[scored]
    boxes = Regions.of(points, episode, range(data.steps.states.shape[1]), _DEPTH)
    region = boxes.index(points)
    found = []
    for j, name in enumerate(boxes.names(names)):
        inside: Bools = region == j
        below = (pit[inside] <= _TAIL).astype(np.float64)
        if not below.size:
            continue
        share = float(below.mean())
        _, own = np.unique(episode[inside], return_inverse=True)
        sums = np.bincount(own, below - share)
        found.append(TailRegion(name, float(inside.mean()), share, float(np.sqrt(sums @ sums)) / below.size))
    return tuple(found)


def _below(values: Floats, theta: Floats) -> Floats:
    """1{value ≤ θ}, (n, m)."""
    tol = 1e-9 * float(theta[-1] - theta[0])
    return (values[:, None] <= theta + tol).astype(np.float64)


def _thinned(n: int, key: int) -> Ints:
    """The steps that are scored."""
    if n <= _SCORED:
        return np.arange(n)
    return np.sort(np.random.default_rng(key).choice(n, _SCORED, replace=False))


def _group_count(episodes: int, numbers: int) -> int:
    """Of episodes, for members of which one has so many numbers."""
    return min(episodes, max(min(_ROOM // numbers, _GROUPS), _FEWEST_GROUPS))
