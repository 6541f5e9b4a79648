"""The leaves of binary trees as features: in each tree a state lies in exactly one leaf.

A tree is written in preorder, a split before what lies below it, the left side before the right. A split has
a coordinate f and a threshold θ and sends a state to the left where

    x_f ≤ θ

in float64, as it comes; a leaf is written as coordinate −1. ``feature=[[0, -1, 1, -1, -1]]`` and
``threshold=[[0.5, 2.0]]`` are one tree: x_0 ≤ 0.5 is leaf 0; what is left of the others goes to leaf 1 where
x_1 ≤ 2, else to leaf 2. Leaves are numbered in that order, tree after tree. An average over trees whose
leaves hold values v is φ(x)ᵀ w with w = v / trees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Floats, Ints, as_array, as_count, as_floats, as_list, readonly
from policyrisk.errors import InvalidInputError
from policyrisk.features.box import as_dims, columns, kernel_states
from policyrisk.features.protocol import FeatureMap, register
from policyrisk.features.tables import ones_at


@njit(cache=True, nogil=True)
def right_children(feature: Ints, roots: Ints, out: Ints) -> int:
    """Where the right side of every split begins, and the number of every leaf, into out (nodes,).

    Trees are written in preorder. Returns the first tree that is not a whole one, or −1.
    """
    open_splits = np.empty(len(feature), np.int64)  # those whose right side is still to come
    leaves = 0
    for tree in range(len(roots) - 1):
        waiting, done = 0, False
        for node in range(roots[tree], roots[tree + 1]):
            if done:
                return tree
            if feature[node] >= 0:
                open_splits[waiting] = node
                waiting += 1
                continue
            out[node] = leaves
            leaves += 1
            if waiting == 0:
                done = True
            else:
                waiting -= 1
                out[open_splits[waiting]] = node + 1
        if not done:
            return tree
    return -1


@njit(cache=True, nogil=True, error_model="numpy")
def leaf_indices(
    states: Floats, columns: Ints, feature: Ints, threshold: Floats, right: Ints, roots: Ints, out: Ints
) -> None:
    """The leaf that holds every state in every tree, into out (n, trees)."""
    for tree in range(len(roots) - 1):  # one tree at a time stays in the cache
        for row in range(len(states)):
            node = roots[tree]
            while feature[node] >= 0:
                left = states[row, columns[feature[node]]] <= threshold[node]
                node = node + 1 if left else right[node]
            out[row, tree] = right[node]


class Leaves(FeatureMap):
    """φ_j(x) = 1 where x lies in leaf j, and 0 elsewhere: as many ones in every state as there are trees.

    Parameters
    ----------
    feature
        A sequence for each tree, in preorder: the coordinate that each node looks at, −1 for leaves.
    threshold
        A sequence for each tree: the thresholds of its splits, in the same order.
    dim
        The number of coordinates that the trees know.
    dims
        The coordinates of the state that these are; all where None.

    Examples
    --------
    >>> phi = Leaves([[0, -1, 1, -1, -1], [1, -1, -1]], [[0.5, 2.0], [3.0]], dim=2)
    >>> phi.size, phi.active([[0.5, 9.0], [0.6, 2.0]]).tolist()
    (5, [[0, 4], [1, 3]])
    """

    def __init__(
        self,
        feature: Sequence[npt.ArrayLike],
        threshold: Sequence[npt.ArrayLike],
        dim: int,
        dims: npt.ArrayLike | None = None,
    ) -> None:
        self.dim = as_count(dim, "dim", 1)
        self.dims = as_dims(dims, self.dim)
        feature = as_list(feature, "feature", "a sequence for each tree")
        threshold = as_list(threshold, "threshold", "a sequence for each tree")
        if len(feature) != len(threshold) or len(feature) == 0:
            raise InvalidInputError(
                f"feature and threshold must hold a sequence for each of at least one tree, got "
                f"{len(feature)} and {len(threshold)}; pass as many of one as of the other"
            )
        nodes = [_as_nodes(each, tree, self.dim) for tree, each in enumerate(feature)]
        splits = [int(np.count_nonzero(each >= 0)) for each in nodes]
        cuts = [
            as_floats(each, f"threshold of tree {tree}", (count,))
            for tree, (each, count) in enumerate(zip(threshold, splits, strict=True))
        ]
        self.roots = readonly(
            np.concatenate([[0], np.cumsum([each.size for each in nodes])]).astype(np.int64)
        )
        self.feature = readonly(np.concatenate(nodes))  # (nodes,)
        at = np.zeros(self.feature.size)
        at[self.feature >= 0] = np.concatenate(cuts)
        self.threshold = readonly(at)  # (nodes,), 0 at leaves
        beyond = np.empty(self.feature.size, dtype=np.int64)
        wrong = right_children(self.feature, self.roots, beyond)
        if wrong >= 0:
            raise InvalidInputError(
                f"feature of tree {wrong} must be a whole tree in preorder, each split followed by its left "
                "and its right side, got one with too few or too many leaves; write -1 for each leaf"
            )
        # (nodes,): where a split's right side begins; the left one follows at once. A leaf's own number.
        self.right = readonly(beyond)

    @property
    def trees(self) -> int:
        """The number of trees."""
        return self.roots.size - 1

    @cached_property
    def size(self) -> int:
        """The number of leaves."""
        return int(np.count_nonzero(self.feature < 0))

    @cached_property
    def tree_of(self) -> Ints:
        """The tree that each leaf belongs to, of shape (size,)."""
        tree = np.repeat(np.arange(self.trees), np.diff(self.roots))
        return readonly(tree[self.feature < 0])

    def active(self, states: npt.ArrayLike) -> Ints:
        """The leaf that holds each state in each tree, increasing, of shape (n, trees)."""
        array = kernel_states(states)
        at = columns(array.shape[1], self.dims, self.dim)
        out = np.empty((len(array), self.trees), dtype=np.int64)
        leaf_indices(array, at, self.feature, self.threshold, self.right, self.roots, out)
        return out

    def __call__(self, states: npt.ArrayLike) -> sp.csr_array[Any, tuple[int, int]]:
        """φ(states), of shape (n, size), CSR."""
        return ones_at(self.active(states), self.size)

    def spec(self) -> dict[str, Any]:
        """This map in plain values."""
        nodes = np.split(self.feature, self.roots[1:-1])
        cuts = np.split(self.threshold, self.roots[1:-1])
        return {
            "kind": "Leaves",
            "feature": [each.tolist() for each in nodes],
            "threshold": [cut[each >= 0].tolist() for each, cut in zip(nodes, cuts, strict=True)],
            "dim": self.dim,
            "dims": None if self.dims is None else list(self.dims),
        }

    @cached_property
    def _key(self) -> str:
        # A digest: a forest in plain values is long.
        total = hashlib.sha256(f"{self.dim} {self.dims}".encode())
        for array in (self.roots, self.feature, self.threshold + 0.0):  # -0 is 0
            total.update(array.tobytes())
        return f"Leaves {total.hexdigest()}"

    def __repr__(self) -> str:
        return f"Leaves(trees={self.trees}, size={self.size}, dim={self.dim})"


def _as_nodes(value: npt.ArrayLike, tree: int, dim: int) -> Ints:
    nodes = as_array(value, f"feature of tree {tree}", "whole numbers, one per node")
    if nodes.ndim != 1 or nodes.size == 0 or not np.issubdtype(nodes.dtype, np.integer):
        raise InvalidInputError(
            f"feature of tree {tree} must be whole numbers, one per node, got {nodes.dtype} of shape "
            f"{nodes.shape}; write the coordinates of the splits, and -1 for each leaf"
        )
    if nodes.min() < -1 or nodes.max() >= dim:
        raise InvalidInputError(
            f"feature of tree {tree} must be from -1 to dim - 1 = {dim - 1}, got {nodes.min()} to "
            f"{nodes.max()}; write the coordinates of the splits, and -1 for each leaf"
        )
    return nodes.astype(np.int64)


register("Leaves", Leaves)
