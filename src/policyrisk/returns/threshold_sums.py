"""What is summed over transitions for the distribution of the return, each sum apart for groups of episodes.

With θ_1 < … < θ_m the thresholds, the targets of a transition with the return to go B are the m + 3 numbers

    1{B ≤ θ_1}, …, 1{B ≤ θ_m},   (θ_1 − B)⁺,   B,   B²

and the weights W (l, m + 3) are their least-squares fit, G W = Σ_t φ(x_t) target_t, G = Σ_t φ(x_t) φ(x_t)ᵀ.
Where the episode was cut off n steps later in x_T, R having been earned by then, B is R + γ^n B', and the
targets are their expectations over B' as the estimate tells them at x_T: F̃((θ − R)/γ^n | x_T), and so on.
They are linear in what is read there. With λ < 1 the same is done at every step, n = 1, with B' between what
the estimate and the next target say: target_t = E[… r_t + γB'], B' of the distribution
(1 − λ) F̃(·|x_{t+1}) + λ target_{t+1}.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, Matrix
from policyrisk._core.records import Additive, record
from policyrisk.data import Source, Trajectories, batches, pieces
from policyrisk.features import Features
from policyrisk.features.protocol import active_of, is_binary, matrix_of
from policyrisk.returns import _threshold_kernels as _kernels
from policyrisk.returns.curves import Grid

_PIECE = 1 << 17  # transitions whose features are looked at together
_ROOM = 1 << 23  # numbers that curves at states may take
_GOLDEN = 0.6180339887498949  # whose multiples fill the unit interval evenly


@record(group_episodes="groups", visits="l", feature_episodes="l", b="groups l *")
@dataclass(frozen=True, eq=False)
class ThresholdSums(Additive):
    """The sums of terminated episodes' targets, and the visits of all; they add."""

    gram: Matrix  # (groups · l, l): the groups' Gram matrices one under the other
    b: Floats  # (groups, l, m + 3)
    group_episodes: Floats  # (groups,)
    visits: Floats  # (l,)
    feature_episodes: Floats  # (l,)
    episodes: int
    terminated: int
    transitions: int
    between: int  # returns that are no threshold

    @classmethod
    def over(
        cls, source: Source, part: int, features: Features, grid: Grid, discount: float, groups: int
    ) -> ThresholdSums:
        """Of one part of the data; see :func:`groups_of` for the groups."""
        size, m = features.size, grid.theta.size
        b, visits, behind = np.zeros((groups, size, m + 3)), np.zeros(size), np.zeros(size)
        group_episodes = np.zeros(groups)
        gram: Any = sp.csr_array((groups * size, size))
        episodes = terminated = transitions = between = 0
        seen = np.full(size, -1, dtype=np.int64)
        for data in all_pieces(source):
            rows = RowEntries.of(features, data.states[data.visited_rows])
            own = groups_of(part, episodes, len(data), groups)
            number = np.repeat(np.arange(episodes, episodes + len(data)), data.lengths)
            group = np.repeat(own, data.lengths)
            B = data.returns_to_go(discount)
            place = np.searchsorted(grid.theta, B - grid.tol)
            on = np.abs(grid.theta[np.minimum(place, m - 1)] - B) <= grid.tol
            ended = np.repeat(data.terminated, data.lengths)
            between += int(np.count_nonzero(ended & ~on))
            extra = np.column_stack([np.maximum(grid.theta[0] - B, 0.0), B, B * B])
            place = np.where(ended, place, -1)
            given = rows.ptr, rows.idx, rows.val, number, group, place, extra, seen
            _kernels.sort_in(*given, b, visits, behind)
            gram = gram + rows.gram(group, groups)
            group_episodes += np.bincount(own, minlength=groups)
            episodes, terminated = episodes + len(data), terminated + int(data.terminated.sum())
            transitions += data.transitions
        np.cumsum(b[:, :, :m], axis=2, out=b[:, :, :m])
        counts = episodes, terminated, transitions, between
        return cls(gram, b, group_episodes, visits, behind, *counts)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """A pass: Σ_t φ(x_t) target_t of the transitions whose targets the estimate enters, (groups, l, m + 3).

    Of changes of the weights (c, l, m + 3) it is what they change, of the same shape. They are taken as they
    are, while a curve that is read is made monotone, which is not linear.
    """

    features: Features
    grid: Grid
    discount: float
    lam: float
    weights: Floats  # (1, l, m + 3), or (c, l, m + 3) of changes
    groups: int
    whole: bool  # False for changes

    def __call__(self, source: Source, part: int) -> Floats:
        """Of one part of the data."""
        grid = self.grid
        out = np.zeros((self.groups, *self.weights.shape[1:]))
        how = grid.theta, grid.tol, grid.steps, self.whole, out
        episodes = 0
        for data in all_pieces(source, max(_ROOM // self.weights[:, 0].size, 1)):
            some = np.arange(len(data)) if self.lam < 1.0 else np.flatnonzero(~data.terminated)
            group = groups_of(part, episodes, len(data), self.groups)[some]
            episodes += len(data)
            if not some.size:
                continue
            data = data[some]
            rows = RowEntries.of(self.features, data.states[data.visited_rows])
            if self.lam < 1.0:
                # Nothing is read at the end itself, where features need not exist.
                going = np.ones(len(data.states), dtype=np.bool_)
                going[data.final_rows[data.terminated]] = False
                curves = np.zeros((len(self.weights), len(data.states), self.weights.shape[2]))
                curves[:, going] = self._curves(data.states[going])
                rewards = data.rewards
            else:
                curves = self._curves(data.states[data.final_rows])
                rewards = data.returns_to_go(self.discount)
            given = rows.ptr, rows.idx, rows.val, data.offsets, group, rewards, data.terminated
            _kernels.targets(*given, self.discount, self.lam, curves, *how)
        return out

    def _curves(self, states: npt.NDArray[Any]) -> Floats:
        """What is read at states (n, dim), (c, n, m + 3)."""
        phi = matrix_of(self.features, states)
        curves = np.stack([np.asarray(phi @ W) for W in self.weights])
        return self.grid.monotone(curves[0])[None] if self.whole else curves


@dataclass(frozen=True, eq=False)
class RowEntries:
    """φ of some states: row i holds val[p] in column idx[p] for ptr[i] ≤ p < ptr[i + 1]."""

    ptr: Ints
    idx: Ints
    val: Floats
    phi: Matrix  # (n, l)

    @classmethod
    def of(cls, features: Features, states: npt.NDArray[Any]) -> RowEntries:
        """Evaluated at states (n, dim)."""
        size = features.size
        if is_binary(features):
            active = active_of(features, states)
            ptr = np.arange(0, active.size + 1, active.shape[1])
            val = np.ones(active.size)
            phi: Matrix = sp.csr_array((val, active.ravel(), ptr), shape=(len(states), size))
            return cls(ptr, active.ravel(), val, phi)
        phi = matrix_of(features, states)
        if isinstance(phi, np.ndarray):
            n = len(phi)
            return cls(np.arange(0, n * size + 1, size), np.tile(np.arange(size), n), phi.ravel(), phi)
        return cls(phi.indptr.astype(np.int64), phi.indices.astype(np.int64), phi.data, phi)

    def gram(self, group: Ints, groups: int) -> Matrix:
        """Σ φ φᵀ of each group's rows, (groups · l, l)."""
        size = self.phi.shape[1]
        if isinstance(self.phi, np.ndarray):
            out = np.zeros((groups * size, size))
            order = np.argsort(group, kind="stable")
            here, first = np.unique(group[order], return_index=True)
            for g, part in zip(here.tolist(), np.split(self.phi[order], first[1:]), strict=True):
                out[g * size : (g + 1) * size] = part.T @ part
            return out
        row = np.repeat(group, np.diff(self.ptr))
        spread = sp.csr_array((self.val, row * size + self.idx, self.ptr), shape=(len(group), groups * size))
        return sp.csr_array(spread.T @ self.phi)


def groups_of(part: int, first: int, count: int, groups: int) -> Ints:
    """The groups of episodes first, …, first + count − 1 of a part, (count,): one after the other.

    Parts begin apart, so that many small ones fill all groups.

    >>> groups_of(0, 998, 4, 1000), groups_of(1, 0, 2, 1000)
    (array([998, 999,   0,   1]), array([618, 619]))
    """
    return (int(groups * ((part * _GOLDEN) % 1.0)) + np.arange(first, first + count)) % groups


def all_pieces(source: Source, most: int = _PIECE) -> Iterator[Trajectories]:
    """The episodes of a source, about ``most`` transitions at a time; none is empty."""
    for batch in batches(source):
        if len(batch):
            yield from pieces(batch, most)
