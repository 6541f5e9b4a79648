"""Compiled loops of the forest: growing a tree, and sums over the leaves that episodes visit.

Rows are transitions in order, so that the rows of an episode lie together. ``offsets`` (K + 1,) are where
episodes begin, ``active`` (n, m) the leaf of every row in every one of m trees (see ``features/leaves.py``),
``apart`` (K, m) whether a tree was grown without the episode.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.random import below, stream


@njit(cache=True, nogil=True)
def _two_largest(x: Floats, order: Ints, a: int, b: int, f: int) -> tuple[float, float]:
    """The largest number of column f in the rows order[a:b], and the largest below it; itself if none is."""
    top = second = x[order[a], f]
    for i in range(a + 1, b):
        value = x[order[i], f]
        if value > top:
            top, second = value, top
        elif value < top and (value > second or second == top):
            second = value
    return top, second


@njit(cache=True, nogil=True, error_model="numpy")
def grow(
    x: Floats,
    y: Floats,
    episode: Ints,
    grown: Bools,
    least_rows: int,
    least_episodes: int,
    tries: int,
    key0: np.uint64,
    key1: np.uint64,
    index: int,
    feature: Ints,
    threshold: Floats,
) -> int:
    """A tree in preorder, into feature and threshold; returns its number of nodes.

    Rows with ``grown`` choose the splits: of ``tries`` random ones along every coordinate, x_f ≤ x_if with i
    a random row (the next smaller number where x_if is the largest), that which leaves the least squares of y
    about the two sides' means. Either side keeps ``least_rows`` rows and ``least_episodes`` episodes, of
    those that are grown on and, where there are any, of those that are not.
    """
    n, dim = x.shape
    s0, s1 = stream(key0, key1, index)
    order, spare = np.arange(n), np.empty(n, np.int64)
    begins, ends = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)  # segments of order, still to split
    begins[0], ends[0] = 0, n
    waiting, node = 1, 0
    honest = not grown.all()
    rows, sums = np.empty(2, np.int64), np.empty(2)
    last, seen = np.empty((2, 2), np.int64), np.empty((2, 2), np.int64)
    while waiting > 0:
        waiting -= 1
        a, b = begins[waiting], ends[waiting]
        count, total = 0, 0.0
        for i in range(a, b):
            if grown[order[i]]:
                count += 1
                total += y[order[i]]
        best = total * total / count * (1.0 + 1e-12) + 1e-300
        best_feature, best_threshold = -1, 0.0
        top = second = 0.0
        if count >= 2 * least_rows:
            for trial in range(dim * tries):
                f = trial // tries
                if trial % tries == 0:
                    top, second = _two_largest(x, order, a, b, f)
                if top == second:
                    continue
                pick, s0, s1 = below(b - a, s0, s1)
                cut = min(x[order[a + pick], f], second)
                # Rows, their sum, and episodes on either side, grown on or not, and the last one seen there.
                rows[:], sums[:], last[:], seen[:] = 0, 0.0, -1, 0
                for i in range(a, b):
                    row = order[i]
                    side, other = int(x[row, f] > cut), int(not grown[row])
                    if other == 0:
                        rows[side] += 1
                        sums[side] += y[row]
                    if episode[row] != last[side, other]:
                        last[side, other] = episode[row]
                        seen[side, other] += 1
                if rows.min() < least_rows or seen[:, : 1 + honest].min() < least_episodes:
                    continue
                gain = sums[0] * sums[0] / rows[0] + (total - sums[0]) ** 2 / rows[1]
                if gain > best:
                    best, best_feature, best_threshold = gain, f, cut
        feature[node], threshold[node] = best_feature, best_threshold
        node += 1
        if best_feature < 0:
            continue
        middle, others = a, 0
        for i in range(a, b):  # in their order, so that episodes stay together
            if x[order[i], best_feature] <= best_threshold:
                order[middle] = order[i]
                middle += 1
            else:
                spare[others] = order[i]
                others += 1
        order[middle:b] = spare[:others]
        begins[waiting], ends[waiting] = middle, b
        begins[waiting + 1], ends[waiting + 1] = a, middle
        waiting += 2
    return node


@njit(cache=True, nogil=True)
def tally(offsets: Ints, active: Ints, apart: Bools, x: Floats, size: int) -> tuple[Ints, Ints, Floats]:
    """Σ_t x_t of every episode in every leaf that it visits, of trees that are apart from it, in CSR form.

    x (n, c); the entries are (entries, c), leaves in the order in which they are met.
    """
    episodes, trees = len(offsets) - 1, active.shape[1]
    ptr = np.zeros(episodes + 1, np.int64)
    idx, sums = np.empty(active.size, np.int64), np.zeros((active.size, x.shape[1]))
    slot = np.full(size, -1)
    at = 0
    for k in range(episodes):
        for t in range(offsets[k], offsets[k + 1]):
            for tree in range(trees):
                if not apart[k, tree]:
                    continue
                leaf = active[t, tree]
                if slot[leaf] < 0:
                    slot[leaf], idx[at] = at, leaf
                    at += 1
                for c in range(x.shape[1]):
                    sums[slot[leaf], c] += x[t, c]
        for p in range(ptr[k], at):
            slot[idx[p]] = -1
        ptr[k + 1] = at
    return ptr, idx[:at], sums[:at]


@njit(cache=True, nogil=True, error_model="numpy")
def out_of_bag(
    offsets: Ints, active: Ints, apart: Bools, y: Floats, visits: Floats, sums: Floats, out: Floats
) -> None:
    """The average over trees apart from the episode of their leaves' means without it, into out (n,).

    visits and sums (size,) are those of each leaf, the episode's own in trees apart from it included. nan
    where no such leaf was visited by another episode.
    """
    trees = active.shape[1]
    own_visits, own_sums = np.zeros(len(visits)), np.zeros(len(visits))
    for k in range(len(offsets) - 1):
        for t in range(offsets[k], offsets[k + 1]):
            for tree in range(trees):
                if apart[k, tree]:
                    own_visits[active[t, tree]] += 1.0
                    own_sums[active[t, tree]] += y[t]
        for t in range(offsets[k], offsets[k + 1]):
            total, count = 0.0, 0
            for tree in range(trees):
                leaf = active[t, tree]
                others = visits[leaf] - own_visits[leaf]
                if apart[k, tree] and others > 0.0:
                    total += (sums[leaf] - own_sums[leaf]) / others
                    count += 1
            out[t] = total / count
        for t in range(offsets[k], offsets[k + 1]):
            for tree in range(trees):
                own_visits[active[t, tree]] = 0.0
                own_sums[active[t, tree]] = 0.0
