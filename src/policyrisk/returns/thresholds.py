"""Thresholds at which the distribution of the return is estimated, from a survey of the returns to go.

Where the returns have few different values, these are the thresholds. Otherwise a third of them is spread
evenly from the smallest to the largest return, a third follows the quantiles of all returns to go and a third
those of whole episodes, whose tails may be rare among all. What a cut-off episode would still have earned is
taken from another one that was near the state it was cut off in: all that has to be right is the range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.records import record
from policyrisk.data import Source, Trajectories, batches
from policyrisk.errors import InvalidInputError

_SAMPLE = 20_000  # returns to go that are kept, and as many whole ones
_VALUES = 1000  # different values up to which all are kept
_NEAR = 10  # rows that count as near a state
_APART = 1e-6  # of a coordinate's std: states that are nearer are the same
_ROUNDS = 100  # pieces that an episode is put together of, at most
ROUNDING = 1e-9  # of the thresholds' range: returns that are closer are the same


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
