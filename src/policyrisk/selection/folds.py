"""Episodes spread over folds, the same for a stream as for one record.

Each block of ``folds`` consecutive episodes is spread over the folds by a random permutation, a hash of the
key and the episodes' running numbers. The folds are then of equal size to within one episode, and nothing
needs to be remembered between passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Ints
from policyrisk.risk.scoring import select
from policyrisk.trajectories import Source, Trajectories, batches


@dataclass(frozen=True, eq=False)
class Fold:
    """The episodes of a source inside one fold, or outside it; read anew at every iteration."""

    source: Source
    key: int
    folds: int
    fold: int
    held_out: bool

    def __iter__(self) -> Iterator[Trajectories]:
        first = 0
        for batch in batches(self.source):
            inside = fold_of_episodes(first, len(batch), self.folds, self.key) == self.fold
            first += len(batch)
            chosen = inside if self.held_out else ~inside
            if chosen.any():
                yield select(batch, chosen)

    def collected(self) -> Source:
        """One record where the source is one, else this stream."""
        return next(iter(self)) if isinstance(self.source, Trajectories) else self


def fold_of_episodes(first: int, count: int, folds: int, key: int) -> Ints:
    """The fold of episodes first, …, first + count − 1, of shape (count,).

    >>> sorted(fold_of_episodes(first=5, count=5, folds=5, key=7).tolist())
    [0, 1, 2, 3, 4]
    """
    block = first // folds
    blocks = -(-(first + count) // folds) - block
    index = (np.arange(blocks * folds, dtype=np.uint64) + np.uint64(block * folds)).reshape(blocks, folds)
    permutations = np.argsort(_hash(index, key), axis=1, kind="stable").ravel()
    return permutations[first - block * folds :][:count].astype(np.int64)


def _hash(index: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """splitmix64 of an array of uint64, from a key."""
    x = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
