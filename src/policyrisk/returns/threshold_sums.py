"""What is summed over transitions for the distribution of the return, each sum apart for groups of episodes.

With θ_1 < … < θ_m the thresholds, the targets of a transition with the return to go B are the m + 3 numbers

    1{B ≤ θ_1}, …, 1{B ≤ θ_m},   (θ_1 − B)⁺,   B,   B²

and the weights W (l, m + 3) are their least-squares fit, G W = Σ_t φ(x_t) target_t, G = Σ_t φ(x_t) φ(x_t)ᵀ.
Where the episode was cut off n steps later in x_T, R having been earned by then, B is R + γ^n B', and the
targets are their expectations over B' as the estimate tells them at x_T: F̃((θ − R)/γ^n | x_T), and so on.
They are linear in what is read there. With λ < 1 the same is done at every step, n = 1, with B' between what
the estimate and the next target say: target_t = E[… r_t + γB'], B' of the distribution
(1 − λ) F̃(·|x_{t+1}) + λ target_{t+1}.

**Thresholds** come from a survey of the returns to go. Where the returns have few different values, these are
the thresholds. Otherwise a third of them is spread evenly from the smallest to the largest return, a third
follows the quantiles of all returns to go and a third those of whole episodes, whose tails may be rare among
all. What a cut-off episode would still have earned is taken from another one that was near the state it was
cut off in: all that has to be right is the range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial import cKDTree

from policyrisk._core.arrays import Floats, Ints, Matrix, is_sparse
from policyrisk._core.records import Additive, record
from policyrisk.data import Source, Trajectories, batches, pieces
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.features.protocol import is_binary, matrix_of
from policyrisk.lstd.rows import Evaluator, Rows, SparseRows
from policyrisk.returns import _threshold_kernels as _kernels
from policyrisk.returns.curves import ROUNDING, Grid

_PIECE = 1 << 17  # transitions whose features are looked at together
_ROOM = 1 << 23  # numbers that curves at states may take
_SAMPLE = 20_000  # returns to go that are kept, and as many whole ones
_VALUES = 1000  # different values up to which all are kept
_NEAR = 10  # rows that count as near a state
_APART = 1e-6  # of a coordinate's std: states that are nearer are the same
_ROUNDS = 100  # pieces that an episode is put together of, at most
_GOLDEN = 0.6180339887498949  # whose multiples fill the unit interval evenly


@record(all="n d", whole="k d", ends="2", values="v")
@dataclass(frozen=True, eq=False)
class ReturnSurvey:
    """Uniform samples of returns to go and of whole returns, and the different values; they add.

    A row of a sample is a random key, the return, γ^n where the episode was cut off n steps later, else 0,
    the state, and the one that the episode ended in.
    """

    all: Floats  # (n, 3 + 2 dim)
    whole: Floats  # (n, 3 + 2 dim)
    ends: Floats  # (2,): the smallest and the largest
    values: Floats | None  # (n,), rising; None where there are too many

    @classmethod
    def over(cls, source: Source, part: int, discount: float) -> ReturnSurvey:
        """Of one part of the data."""
        rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(part,)))
        found = [cls._of(batch, discount, rng) for batch in batches(source) if len(batch)]
        if not found:
            return cls(np.empty((0, 3)), np.empty((0, 3)), np.array([np.inf, -np.inf]), np.empty(0))
        return sum(found[1:], found[0])

    @classmethod
    def _of(cls, batch: Trajectories, discount: float, rng: np.random.Generator) -> ReturnSurvey:
        B = batch.returns_to_go(discount)
        left = np.repeat(batch.offsets[1:], batch.lengths) - np.arange(batch.transitions)
        cut = np.repeat(~batch.terminated, batch.lengths)
        keys, factor = rng.random(B.size), np.where(cut, discount ** left.astype(np.float64), 0.0)
        ends = np.repeat(batch.final_rows, batch.lengths)

        def rows(some: Ints) -> Floats:
            states = batch.states[batch.visited_rows[some]], batch.states[ends[some]]
            return np.column_stack([keys[some], B[some], factor[some], *states])

        sampled = rows(_smallest(keys)), rows(batch.offsets[:-1][_smallest(keys[batch.offsets[:-1]])])
        return cls(*sampled, np.array([B.min(), B.max()]), _different(B))

    def __add__(self, other: ReturnSurvey) -> ReturnSurvey:
        if not len(self.all) or not len(other.all):
            return self if len(self.all) else other
        values = None
        if self.values is not None and other.values is not None:
            values = _different(np.concatenate([self.values, other.values]))
        every, whole = np.concatenate([self.all, other.all]), np.concatenate([self.whole, other.whole])
        return ReturnSurvey(
            every[_smallest(every[:, 0])],
            whole[_smallest(whole[:, 0])],
            np.array([min(self.ends[0], other.ends[0]), max(self.ends[1], other.ends[1])]),
            values,
        )

    def choose(self, count: int) -> Floats:
        """At most ``count`` thresholds, rising."""
        if not len(self.all):
            raise InvalidInputError("data must hold at least one episode, got none; record some")
        rng = np.random.default_rng(0)
        every, whole = (_completed(rows, self.all, rng) for rows in (self.all, self.whole))
        drawn = np.concatenate([every, whole, self.ends])
        low, high = float(drawn.min()), float(drawn.max())
        values = None if self.values is None else _apart(np.concatenate([self.values, drawn]))
        if values is not None and values.size <= count:
            return values
        third = count // 3
        parts = [np.linspace(low, high, count - 2 * third)]
        parts += [np.quantile(rows, (np.arange(third) + 0.5) / max(third, 1)) for rows in (every, whole)]
        return _apart(np.concatenate(parts))


def _completed(rows: Floats, pool: Floats, rng: np.random.Generator) -> Floats:
    """Returns (n,) with what cut-off episodes lack taken from the pool's rows near their ends, on and on."""
    total, factor = rows[:, 1].copy(), rows[:, 2].copy()
    dim = (rows.shape[1] - 3) // 2
    states, ends = pool[:, 3 : 3 + dim], rows[:, 3 + dim :].copy()
    scale = np.where(np.ptp(states, axis=0) > 0, states.std(axis=0), 1.0)

    def apart(states: Floats) -> Floats:  # of rows in one and the same state any may be the nearest
        return states / scale + _APART * rng.random(states.shape)

    near = cKDTree(apart(states))
    for _ in range(_ROUNDS):
        left = np.flatnonzero(factor > 1e-9)
        if not left.size:
            break
        found = near.query(apart(ends[left]), k=min(_NEAR, len(pool)))[1].reshape(left.size, -1)
        drawn = pool[found[np.arange(left.size), rng.integers(found.shape[1], size=left.size)]]
        total[left] += factor[left] * drawn[:, 1]
        factor[left] *= drawn[:, 2]
        ends[left] = drawn[:, 3 + dim :]
    return total


def _smallest(keys: Floats) -> Ints:
    """Where the smallest keys are, at most so many as are kept, in order."""
    return np.sort(np.argpartition(keys, _SAMPLE)[:_SAMPLE]) if keys.size > _SAMPLE else np.arange(keys.size)


def _different(values: Floats) -> Floats | None:
    if values.size > 10 * _VALUES and _apart(values[: 2 * _VALUES]).size > _VALUES:
        return None
    found = _apart(values)
    return found if found.size <= _VALUES else None


def _apart(values: Floats) -> Floats:
    """The different values, rising; of those that differ by rounding alone, the first."""
    found = np.unique(values)
    if found.size < 2:
        return found
    tol = ROUNDING * (found[-1] - found[0])
    found[np.abs(found) <= tol] = 0.0
    return np.asarray(found[np.append(True, np.diff(found) > tol)])


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
            rows = _rows(features, data.states[data.visited_rows])
            sparse = rows.sparse()
            own = groups_of(part, episodes, data, groups)
            number = np.repeat(np.arange(episodes, episodes + len(data)), data.lengths)
            group = np.repeat(own, data.lengths)
            B = data.returns_to_go(discount)
            place = np.searchsorted(grid.theta, B - grid.tol)
            on = np.abs(grid.theta[np.minimum(place, m - 1)] - B) <= grid.tol
            ended = np.repeat(data.terminated, data.lengths)
            between += int(np.count_nonzero(ended & ~on))
            extra = np.column_stack([np.maximum(grid.theta[0] - B, 0.0), B, B * B])
            place = np.where(ended, place, -1)
            given = sparse.ptr, sparse.idx, sparse.val, number, group, place, extra, seen
            _kernels.sort_in(*given, b, visits, behind)
            gram = gram + _gram(rows, group, groups)
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
            group = groups_of(part, episodes, data, self.groups)[some]
            episodes += len(data)
            if not some.size:
                continue
            data = data[some]
            rows = _rows(self.features, data.states[data.visited_rows]).sparse()
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


def _rows(features: Features, states: npt.NDArray[Any]) -> Rows:
    """φ of some states, in the format of the map."""
    dense = not (is_binary(features) or is_sparse(features(states[:1])))
    return Evaluator(features, dense, 1)(states, np.zeros(len(states), dtype=np.bool_))


def _gram(rows: Rows, group: Ints, groups: int) -> Matrix:
    """Σ φ φᵀ of each group's rows, (groups · l, l)."""
    size = rows.size
    if isinstance(rows, SparseRows):
        row = np.repeat(group, np.diff(rows.ptr))
        entries = rows.val, row * size + rows.idx, rows.ptr
        return sp.csr_array(sp.csr_array(entries, shape=(len(group), groups * size)).T @ rows.matrix)
    out = np.zeros((groups * size, size))
    order = np.argsort(group, kind="stable")
    here, first = np.unique(group[order], return_index=True)
    for g, part in zip(here.tolist(), np.split(rows.matrix[order], first[1:]), strict=True):
        out[g * size : (g + 1) * size] = part.T @ part
    return out


def groups_of(part: int, first: int, data: Trajectories, groups: int) -> Ints:
    """The groups of episodes first, first + 1, … of a part, (episodes,): one after the other, or by cluster.

    Parts begin apart, so that many small ones fill all groups.

    >>> data = Trajectories([[0], [1]] * 4, [1.0] * 4, [1] * 4, [True] * 4)
    >>> groups_of(0, 998, data, 1000), groups_of(1, 0, data[:2], 1000)
    (array([998, 999,   0,   1]), array([618, 619]))
    """
    if data.clusters is not None:
        return data.clusters % groups
    count = len(data)
    return (int(groups * ((part * _GOLDEN) % 1.0)) + np.arange(first, first + count)) % groups


def all_pieces(source: Source, most: int = _PIECE) -> Iterator[Trajectories]:
    """The episodes of a source, about ``most`` transitions at a time; none is empty."""
    for batch in batches(source):
        if len(batch):
            yield from pieces(batch, most)
