"""Features of states and actions, φ(x, a), and their average under a policy, φ̄(x) = Σ_a π(a|x) φ(x, a).

Two maps: features of the state with a block of columns for each of finitely many actions
(:class:`ActionBlocks`), and features of the state's and the action's numbers side by side
(:class:`ActionFeatures`), which also take continuous actions.

At some states a map gives *rows*: its features for every action that a policy may choose there, the
*candidates*, of which there are m at each state. They are looked at once, and then asked for several things:

    values(w)           Q(x_i, a_j) = φ(x_i, a_j)ᵀ w             (n, m)
    combined(weights)   Σ_j weights_ij φ(x_i, a_j)               (n, size)
    known(which)        whether all active features of (x_i, a_j) are among ``which``    (n, m)
    candidate(j)        φ(x_i, a_j)                              (n, size)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    Matrix,
    as_array,
    as_count,
    as_states,
    check_shape,
    is_sparse,
    row_products,
)
from policyrisk._core.records import record
from policyrisk.errors import InvalidInputError
from policyrisk.features.function import as_features
from policyrisk.features.protocol import Features, matrix_of, outside

# Whole numbers (n,), or coordinates (n, k).
ActionArray: TypeAlias = npt.NDArray[Any]


@record
@dataclass(frozen=True)
class ActionBlocks:
    """φ(x, a): the state's features in the a-th of ``actions`` blocks of columns, 0 in the others.

    >>> from policyrisk.features import Tabular
    >>> ActionBlocks(Tabular(2), actions=3).at(np.array([[0], [1]]), np.array([2, 0])).toarray()
    array([[0., 0., 0., 0., 1., 0.],
           [0., 1., 0., 0., 0., 0.]])
    """

    features: Features
    actions: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", as_count(self.actions, "actions", 1))

    @property
    def size(self) -> int:
        """The number of features."""
        return self.features.size * self.actions

    def at(self, states: npt.NDArray[Any], actions: ActionArray) -> Matrix:
        """φ(x_i, a_i), of shape (n, size), for actions (n,)."""
        return BlockRows(matrix_of(self.features, states), self.actions).taken(actions)

    def rows(self, states: npt.NDArray[Any], candidates: ActionArray) -> BlockRows:
        """The features of all actions at some states."""
        return BlockRows(matrix_of(self.features, states), self.actions)

    def outside(self, states: npt.NDArray[Any], actions: ActionArray) -> Bools:
        """Which pairs lie outside the features' box, of shape (n,)."""
        return outside([self.features], states)


@record
@dataclass(frozen=True)
class ActionFeatures:
    """φ(x, a) = features of (x, a): the action's numbers stand behind the state's, in columns of their own.

    Parameters
    ----------
    features
        A feature map, or a function, of the rows (x, a), of shape (n, dim + k). Whole-numbered actions are
        one column.

    Examples
    --------
    >>> phi = ActionFeatures(lambda xa: np.column_stack([xa[:, 0] ** 2, xa[:, 0] * xa[:, 1]]))
    >>> phi.at(np.array([[2.0], [3.0]]), np.array([[0.5], [-1.0]]))
    array([[ 4.,  1.],
           [ 9., -3.]])
    """

    features: Features

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))

    @property
    def size(self) -> int:
        """The number of features."""
        return self.features.size

    def at(self, states: npt.NDArray[Any], actions: ActionArray) -> Matrix:
        """φ(x_i, a_i), of shape (n, size), for actions (n,) or (n, k)."""
        pairs = _joined(states, actions)
        if len(pairs) and not hasattr(self.features, "size"):  # a function tells it at its first call
            self.features(pairs[:1])
        return matrix_of(self.features, pairs)

    def rows(self, states: npt.NDArray[Any], candidates: ActionArray) -> PairRows:
        """The features of the candidates (m,), or (n, m, k), at some states."""
        states, candidates = (
            as_states(states),
            as_array(candidates, "candidates", "actions (m,) or (n, m, k)"),
        )
        if candidates.ndim != 1:
            check_shape(candidates, "candidates", (len(states), None, None))
        n, m = len(states), candidates.shape[0 if candidates.ndim == 1 else 1]
        repeated = np.repeat(states, m, axis=0)
        chosen = np.tile(candidates, n) if candidates.ndim == 1 else candidates.reshape(n * m, -1)
        return PairRows(self.at(repeated, chosen), n, m)

    def outside(self, states: npt.NDArray[Any], actions: ActionArray) -> Bools:
        """Which pairs lie outside the features' box, of shape (n,)."""
        return outside([self.features], _joined(states, actions))


ActionMap: TypeAlias = ActionBlocks | ActionFeatures


def _joined(states: npt.NDArray[Any], actions: ActionArray) -> Floats:
    x = as_states(states)
    a = as_states(actions, "actions")
    check_shape(a, "actions", (len(x), None))
    return np.column_stack([x, a])


def as_action_map(value: Any, actions: int | None) -> ActionMap:
    """``value`` as features of states and actions: those of states get a block for each of the actions."""
    if isinstance(value, ActionBlocks | ActionFeatures):
        return value
    features = as_features(value)
    if actions is None:
        raise InvalidInputError(
            f"features must be of states and actions where actions are continuous, got {features!r}, which "
            "are of states; pass ActionFeatures(features of the columns (x, a))"
        )
    return ActionBlocks(features, actions)


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The features of some states, to be put in the block of each action."""

    phi: Matrix  # (n, l)
    actions: int  # m

    @property
    def _size(self) -> int:
        return int(self.phi.shape[1])

    def taken(self, actions: ActionArray) -> Matrix:
        """φ(x_i, a_i) for actions (n,), of shape (n, m·l)."""
        n, size, phi = self.phi.shape[0], self._size, self.phi
        if is_sparse(phi):
            shift = np.repeat(np.asarray(actions, dtype=np.int64) * size, np.diff(phi.indptr))
            return sp.csr_array((phi.data, phi.indices + shift, phi.indptr), shape=(n, size * self.actions))
        out = np.zeros((n, self.actions, size))
        out[np.arange(n), actions] = np.asarray(phi)
        return out.reshape(n, size * self.actions)

    def candidate(self, j: int) -> Matrix:
        """φ(x_i, j), of shape (n, m·l)."""
        return self.taken(np.full(self.phi.shape[0], j))

    def combined(self, weights: Floats) -> Matrix:
        """Σ_j weights_ij φ(x_i, j), of shape (n, m·l); where weights of sparse features are 0, nothing."""
        n, size, phi = self.phi.shape[0], self._size, self.phi
        if not is_sparse(phi):
            every: Floats = weights[:, :, None] * np.asarray(phi)[:, None, :]
            return every.reshape(n, size * self.actions)
        product: Matrix = row_products(sp.csr_array(weights), phi)
        return product

    def values(self, w: Floats) -> Floats:
        """φ(x_i, j)ᵀ w, of shape (n, m)."""
        return np.asarray(self.phi @ w.reshape(self.actions, -1).T)

    def known(self, which: Bools) -> Bools:
        """Whether (x_i, j) has active features, and all of them are among ``which`` (m·l,): (n, m)."""
        active: Any = self.phi != 0
        filled = np.asarray(active.sum(axis=1)).ravel() > 0
        unknown = np.asarray(active @ (~which).reshape(self.actions, -1).T.astype(np.float64))
        known: Bools = (unknown == 0) & filled[:, None]
        return known


@dataclass(frozen=True, eq=False)
class PairRows:
    """The features of n·m pairs, those of a state one after the other."""

    phi: Matrix  # (n·m, l)
    n: int
    m: int

    @cached_property
    def _place(self) -> Ints:
        return np.arange(0, self.n * self.m + 1, self.m)

    def candidate(self, j: int) -> Matrix:
        """φ(x_i, a_ij), of shape (n, l)."""
        return self.phi[self._place[:-1] + j]

    def combined(self, weights: Floats) -> Matrix:
        """Σ_j weights_ij φ(x_i, a_ij), of shape (n, l)."""
        average = sp.csr_array(
            (weights.ravel(), np.arange(self.n * self.m), self._place), shape=(self.n, self.n * self.m)
        )
        product: Any = average @ self.phi
        if is_sparse(product):
            product.sum_duplicates()
            product.eliminate_zeros()
            return sp.csr_array(product)
        return np.asarray(product)

    def values(self, w: Floats) -> Floats:
        """φ(x_i, a_ij)ᵀ w, of shape (n, m)."""
        return np.asarray(self.phi @ w).reshape(self.n, self.m)

    def known(self, which: Bools) -> Bools:
        """Whether (x_i, a_ij) has active features, and all of them are among ``which`` (l,): (n, m)."""
        active: Any = self.phi != 0
        filled = np.asarray(active.sum(axis=1)).ravel() > 0
        unknown = np.asarray(active @ (~which).astype(np.float64)).ravel()
        known: Bools = ((unknown == 0) & filled).reshape(self.n, self.m)
        return known


ActionRows: TypeAlias = BlockRows | PairRows


def candidates_of(rows: ActionRows) -> Iterator[Matrix]:
    """φ(x_i, a_ij) for j = 0, 1, …, each of shape (n, size)."""
    count = rows.actions if isinstance(rows, BlockRows) else rows.m
    return (rows.candidate(j) for j in range(count))
