"""Which episodes are in which fold.

Each block of ``folds`` consecutive episodes is spread over the folds by a random permutation, a hash of the
key and the episodes' running numbers. The folds are then of equal size to within one episode, the same for a
stream as for one record, and nothing needs to be remembered between passes. Where episodes come in clusters,
clusters are spread in this way, each as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policyrisk._core.arrays import Ints
from policyrisk._core.random import mix
from policyrisk.data import Source, Trajectories, batches

FOLDS = 4  # of a choice of features


@dataclass(frozen=True, eq=False)
class FoldEpisodes:
    """The episodes of a source inside one fold, or outside it; read anew at every iteration."""

    source: Source
    key: int
    folds: int
    fold: int
    held_out: bool

    def __iter__(self) -> Iterator[Trajectories]:
        first = 0
        for batch in batches(self.source):
            inside = folds_of(batch, self.folds, self.key, first) == self.fold
            first += len(batch)
            chosen = inside if self.held_out else ~inside
            if chosen.any():
                yield batch[chosen]

    def collected(self) -> Source:
        """One record where the source is one, else this stream."""
        return next(iter(self)) if isinstance(self.source, Trajectories) else self


def each_fold(source: Source, folds: int, key: int) -> Iterator[tuple[int, Source, FoldEpisodes]]:
    """Each fold's number, the episodes outside it, which are fitted, and those inside, which are held out."""
    for fold in range(folds):
        outside, inside = (FoldEpisodes(source, key, folds, fold, held_out) for held_out in (False, True))
        yield fold, outside.collected(), inside


def folds_of(data: Trajectories, folds: int, key: int, first: int = 0) -> Ints:
    """The folds of some episodes (episodes,), the number of the first of which is ``first``.

    >>> data = Trajectories([[0], [1]] * 4, [1.0] * 4, [1] * 4, [True] * 4, clusters=[0, 1, 0, 1])
    >>> found = folds_of(data, folds=2, key=7)
    >>> bool(found[0] == found[2] != found[1] == found[3])
    True
    """
    if data.clusters is None:
        return fold_of_episodes(first, len(data), folds, key)
    return fold_of_episodes(0, int(data.clusters.max(initial=-1)) + 1, folds, key)[data.clusters]


def fold_of_episodes(first: int, count: int, folds: int, key: int) -> Ints:
    """The fold of episodes first, …, first + count − 1, of shape (count,).

    >>> sorted(fold_of_episodes(first=5, count=5, folds=5, key=7).tolist())
    [0, 1, 2, 3, 4]
    """
    block = first // folds
    blocks = -(-(first + count) // folds) - block
    index = (np.arange(blocks * folds, dtype=np.uint64) + np.uint64(block * folds)).reshape(blocks, folds)
    hashed = mix(index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key))
    permutations = np.argsort(hashed, axis=1, kind="stable").ravel()
    return permutations[first - block * folds :][:count].astype(np.int64)
