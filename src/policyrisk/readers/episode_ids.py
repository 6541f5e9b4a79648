"""The episodes that a file had so far, to find one that comes back.

Ids are kept as sorted arrays of 64-bit keys, each at least twice as long as the next, so that n ids take 8n
bytes and adding them all takes O(n log n). A whole number is its own key; any other id is hashed, and two of
n ids have the same hash with a probability of about n²/2⁶⁵ (3e-6 for ten million).
"""

from __future__ import annotations

import numpy as np

from policyrisk._core.arrays import Ints


class EpisodeIds:
    """A set of 64-bit keys that grows by batches.

    >>> ids = EpisodeIds()
    >>> ids.add(np.array([3, 1, 2])), ids.add(np.array([7, 1])), ids.add(np.array([9, 8, 9]))
    (None, 1, 2)
    """

    def __init__(self) -> None:
        self._levels: list[Ints] = []

    def __len__(self) -> int:
        return sum(level.size for level in self._levels)

    def add(self, keys: Ints) -> int | None:
        """Add keys (n,); the index of the first that was there already, or comes twice in ``keys``."""
        fresh = np.sort(keys)
        if (fresh[1:] == fresh[:-1]).any():
            _, first = np.unique(keys, return_index=True)
            again = np.setdiff1d(np.arange(keys.size), first)
            return int(again[0])
        for level in self._levels:
            place = np.minimum(np.searchsorted(level, keys), level.size - 1)
            again = np.flatnonzero(level[place] == keys)
            if again.size:
                return int(again[0])
        if fresh.size:
            self._levels.append(fresh)
        while len(self._levels) > 1 and self._levels[-2].size < 2 * self._levels[-1].size:
            merged = np.concatenate([self._levels[-2], self._levels[-1]])
            merged.sort(kind="stable")  # two sorted runs: linear
            self._levels[-2:] = [merged]
        return None
