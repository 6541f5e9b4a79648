"""The passes of a second look at the data: sums over the episodes' scores, and of squared errors.

With s_k = (s_J,k, s_M,k) the score of episode k (see :mod:`policyrisk.lstd.influence`) over the visited
features of both maps, n in all, the error bars need Σ s_k and

    Σ s_k s_kᵀ        (n, n)

which is larger than the scores themselves as long as there are few episodes: these are then kept as they
are, and their influences computed one by one. From as many on as there are weights it is cheaper to sum
s_k s_kᵀ, and to solve with that sum from both sides. The bootstrap needs Σ_k ξ_kb s_k and Σ_k ξ_kb besides;
the multipliers ξ_k of episode k come from the seed and k alone, whoever draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.records import record
from policyrisk.features import Features
from policyrisk.lstd import _kernels
from policyrisk.lstd.accumulate import Plan
from policyrisk.lstd.chunks import in_order
from policyrisk.lstd.lagged_products import Total
from policyrisk.lstd.scores import Scores, chunk_scores, squared_errors
from policyrisk.trajectories import Source


class Problem(Protocol):
    """What an estimator and its equations agree on."""

    @property
    def features(self) -> Features:
        """φ_J."""

    @property
    def second_features(self) -> Features:
        """φ_M."""

    @property
    def lam(self) -> float:
        """λ."""

    @property
    def discount(self) -> float:
        """γ."""


def second_moment_of_direct(source: Source, problem: Problem, w_mean: Floats) -> Floats:
    """Σ y_t δ_t², the right-hand side of C w_V = … for the direct variance, of shape (l_M,).

    >>> from policyrisk.features import Tabular
    >>> from policyrisk.lstd.accumulate import accumulate
    >>> from policyrisk.trajectories import Trajectories
    >>> data = Trajectories([[0], [1], [0], [1]], [1.0, 3.0], [1, 1], [True, True])
    >>> equations = accumulate(data, Tabular(1), lam=0.0, discount=1.0)
    >>> second_moment_of_direct(data, equations, equations.solve().mean)
    array([2.])
    """
    plan, parts = Plan.of(source, problem.features, problem.second_features, problem.lam, problem.discount)
    total = np.zeros(problem.second_features.size)
    if plan is not None:
        for part in in_order(lambda data: squared_errors(plan, data, w_mean), parts, uses_blas=plan.dense):
            total += part
    return total


@record
@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Sums over episodes' scores; they add."""

    count: int  # episodes
    sum: Floats  # (n,): Σ s_k
    waiting: tuple[Scores, ...]  # the scores that are not in the meat, (some, n) each
    meat: Floats | None  # (n, n): Σ s_k s_kᵀ of the others
    drawn: Floats  # (n, B): Σ_k ξ_kb s_k
    drawn_sum: Floats  # (B,): Σ_k ξ_kb
    D: Floats | None  # (l_M, l_J): the direct variance's

    def __add__(self, other: ScoreSums) -> ScoreSums:
        meats = [each.meat for each in (self, other) if each.meat is not None]
        both = ScoreSums(
            count=self.count + other.count,
            sum=self.sum + other.sum,
            waiting=self.waiting + other.waiting,
            meat=np.sum(meats, axis=0) if meats else None,  # a copy in any case
            drawn=self.drawn + other.drawn,
            drawn_sum=self.drawn_sum + other.drawn_sum,
            D=None if self.D is None or other.D is None else self.D + other.D,
        )
        if both.meat is None and both.count <= both.sum.size:
            return both
        return replace(both, waiting=(), meat=_with_scores(both.meat, both.waiting, both.sum.size))


def _with_scores(meat: Floats | None, waiting: Sequence[Scores], size: int) -> Floats:
    """Σ s_k s_kᵀ with more scores, in place where there is one already."""
    meat = np.zeros((size, size)) if meat is None else meat
    for part in waiting:
        if sp.issparse(part):
            _kernels.outer_sparse(part.indptr, part.indices, part.data, meat)
        else:
            meat += part.T @ part
    return meat


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
    replicates: int  # B
    key: tuple[np.uint64, np.uint64]  # of the multipliers
    first: Sequence[int]  # the number of each part's first episode

    def __call__(self, source: Source, part: int) -> ScoreSums:
        """The sums over one part of the data."""
        plan, chunks = Plan.of(source, self.features, self.second_features, self.lam, self.discount)
        sums = _Sums(self, self.first[part])
        D = Total(1, self.w_second.size, self.w_mean.size) if self.direct else None
        if plan is not None:
            for scores, derivative in in_order(
                lambda data: chunk_scores(plan, data, self.w_mean, self.w_second, self.direct),
                chunks,
                uses_blas=plan.dense,
            ):
                sums.add(scores)
                if D is not None and derivative is not None:
                    D.add(derivative)
        return sums.finish(None if D is None else D.finish()[0])


class _Sums:
    """Scores under way."""

    def __init__(self, work: ScorePass, first: int) -> None:
        kept_J, kept_M = work.kept
        l_J, l_M = work.w_mean.size, work.w_second.size
        self.first, self.key = first, work.key
        self.size = kept_J.size + kept_M.size
        self.columns = np.concatenate([kept_J, l_J + kept_M])
        self.place = np.full(l_J + l_M, -1)
        self.place[self.columns] = np.arange(self.size)
        self.count = self.waiting_count = 0
        self.sum = np.zeros(self.size)
        self.waiting: list[Scores] = []
        self.meat: Floats | None = None
        self.drawn = np.zeros((self.size, work.replicates))
        self.drawn_sum = np.zeros(work.replicates)

    def add(self, scores: Scores) -> None:
        """Add some episodes' scores (some, l_J + l_M); they come in order."""
        if sp.issparse(scores):
            ptr, idx = scores.indptr.astype(np.int64), self.place[scores.indices]
            kept: Scores = sp.csr_array((scores.data, idx, ptr), shape=(scores.shape[0], self.size))
        else:
            kept = np.asarray(scores)[:, self.columns]
        self.sum += np.asarray(kept.sum(axis=0)).ravel()
        if self.drawn_sum.size:
            xi = np.empty((kept.shape[0], self.drawn_sum.size))
            _kernels.mammen(*self.key, self.first + self.count, xi)
            self.drawn += kept.T @ xi
            self.drawn_sum += xi.sum(axis=0)
        self.count += kept.shape[0]
        self.waiting.append(kept)
        self.waiting_count += kept.shape[0]
        if self.waiting_count > self.size:
            self._fold()

    def _fold(self) -> None:
        self.meat = _with_scores(self.meat, self.waiting, self.size)
        self.waiting, self.waiting_count = [], 0

    def finish(self, D: Floats | None) -> ScoreSums:
        """What was added."""
        if self.meat is not None:
            self._fold()
        return ScoreSums(self.count, self.sum, tuple(self.waiting), self.meat, self.drawn, self.drawn_sum, D)
