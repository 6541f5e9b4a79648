"""The ways out of every state, as one flat table.

A chain with n states is stored as *branches*: from state x, with probability p, on to state y (or to the
end, y = n), earning ρ. Rows may hold several branches to the same y, as mixing the actions of a stochastic
policy gives: that keeps the reward's own randomness, which the variance needs. Every expectation over one
step is then a sum over a row's branches:

    E[f(ρ, y) | x] = Σ_branches p f(ρ, y)

A reward that is random even then, with mean ρ and variance σ², is two branches of half the probability that
earn ρ − σ and ρ + σ: all that mean and variance of the return depend on. ``noisy`` says that there are such.

A decision process is such a table for every action, which a policy mixes.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    as_actions,
    as_array,
    as_csr,
    as_distributions,
    as_floats,
    as_number,
    is_sparse,
    name_some,
    readonly,
)
from policyrisk.errors import InvalidInputError
from policyrisk.markov import _branch_kernels as kernels

Sparse: TypeAlias = "sp.csr_array[Any, tuple[int, int]]"

# A row whose probabilities sum to 1 within this does not terminate: 0.1 added ten times is not quite 1.
ROW_ROUNDING = 1e-12
# How far above 1 a row may sum.
ROW_EXCESS = 1e-9


@dataclass(frozen=True, eq=False)
class Branches:
    """All branches of a chain, state by state."""

    indptr: Ints  # (n + 1,): branches of state x are indptr[x], …, indptr[x + 1] − 1
    successor: Ints  # (branches,): y, n for the end
    probability: Floats  # (branches,)
    reward: Floats  # (branches,)
    noisy: bool = False  # whether some of them stand for a reward of which only mean and variance are known

    @property
    def n(self) -> int:
        """The number of states, the end not among them."""
        return self.indptr.size - 1

    @property
    def row(self) -> Ints:
        """The state that each branch leaves, of shape (branches,)."""
        return np.repeat(np.arange(self.n), np.diff(self.indptr))

    def expect(self, values: Floats) -> Floats:
        """Σ p · values over each state's branches: (branches,) to (n,)."""
        sums = np.bincount(self.row, weights=self.probability * values, minlength=self.n)
        return sums.astype(np.float64, copy=False)

    def matrix(self, values: Floats | None = None) -> Sparse:
        """The matrix with entries Σ p · values over the branches from x to y (the end left out), (n, n)."""
        going = self.successor < self.n
        data = self.probability if values is None else self.probability * values
        entries = (data[going], (self.row[going], self.successor[going]))
        return sp.csr_array(sp.coo_array(entries, shape=(self.n, self.n)))


@dataclass(frozen=True, eq=False)
class ActionBranches:
    """The branches of all actions as one table; of each, what a policy weighs and what it does not."""

    n: int
    actions: int
    row: Ints  # (branches,)
    action: Ints  # (branches,)
    successor: Ints  # (branches,): n for the end
    probability: Floats  # (branches,) given the action
    reward: Floats  # (branches,)

    @classmethod
    def of(cls, parts: Sequence[Branches]) -> ActionBranches:
        """The table of one table per action."""
        columns = [
            (part.row, np.full(part.successor.size, a), part.successor, part.probability, part.reward)
            for a, part in enumerate(parts)
        ]
        return cls(parts[0].n, len(parts), *(np.concatenate(column) for column in zip(*columns, strict=True)))

    def weights(self, policy: Floats) -> Floats:
        """The probability (branches,) of each under a policy (n, actions)."""
        weights: Floats = policy[self.row, self.action] * self.probability
        return weights

    def under(self, policy: Floats) -> Branches:
        """The branches of a stochastic policy (n, actions): each action's, weighted with its probability."""
        weights = self.weights(policy)
        kept = policy[self.row, self.action] > 0
        return sorted_branches(self.n, self.row[kept], self.successor[kept], weights[kept], self.reward[kept])

    def matrix(self, weights: Floats) -> Sparse:
        """P of shape (n, n)."""
        indptr, indices, place = self._pattern
        data = np.bincount(place, weights=weights, minlength=indices.size + 1)[:-1]
        return sp.csr_array((data, indices, indptr), shape=(self.n, self.n))

    @cached_property
    def _pattern(self) -> tuple[Ints, Ints, Ints]:
        """P's rows and columns, and the entry of each branch, one past the last for those that end."""
        going = self.successor < self.n
        cells, place = np.unique(self.row[going] * self.n + self.successor[going], return_inverse=True)
        indptr = np.searchsorted(cells, np.arange(self.n + 1) * self.n)
        where = np.full(self.row.size, cells.size)
        where[going] = place
        return indptr, cells % self.n, where


def from_matrix(
    P: Sparse, rewards: Floats | Sparse, terminal_rewards: object, at_end: str = "terminal_rewards"
) -> Branches:
    """Branches of checked P (n, n) with rewards r(x) (n,) or r(x, y) (n, n); rows' rests terminate."""
    n = P.shape[0]
    ends = 1.0 - np.asarray(P.sum(axis=1)).ravel()
    leaving = np.flatnonzero(ends > ROW_ROUNDING)
    rows = np.repeat(np.arange(n), np.diff(P.indptr))
    if rewards.ndim == 1:
        earned, default = np.asarray(rewards)[rows], np.asarray(rewards)
    else:
        earned, default = np.asarray(rewards[rows, P.indices]).ravel(), np.zeros(n)
    last = default if terminal_rewards is None else as_floats(terminal_rewards, at_end, (n,))
    return sorted_branches(
        n,
        np.concatenate([rows, leaving]),
        np.concatenate([P.indices.astype(np.int64), np.full(leaving.size, n)]),
        np.concatenate([P.data, ends[leaving]]),
        np.concatenate([earned, last[leaving]]),
    )


def with_noise(branches: Branches, variances: Floats) -> Branches:
    """The branches with rewards of these variances (branches,), each with one in two where it is positive.

    >>> noisy = with_noise(Branches(np.array([0, 1]), np.array([1]), np.array([1.0]), np.array([5.0])), [4.0])
    >>> noisy.reward, noisy.probability, noisy.indptr
    (array([3., 7.]), array([0.5, 0.5]), array([0, 2]))
    """
    spread = np.asarray(variances, dtype=np.float64)
    if (spread < 0).any():
        raise InvalidInputError(
            f"reward_variance must be at least 0, got {spread.min():g}; pass variances, not deviations"
        )
    copies = np.where(spread > 0, 2, 1)
    of = np.repeat(np.arange(spread.size), copies)
    second = np.append(False, of[1:] == of[:-1])
    sign = np.where(copies[of] == 1, 0.0, np.where(second, 1.0, -1.0))
    return Branches(
        np.append(0, np.cumsum(copies))[branches.indptr].astype(np.int64),
        branches.successor[of],
        branches.probability[of] / copies[of],
        branches.reward[of] + sign * np.sqrt(spread)[of],
        bool((spread > 0).any()),
    )


def closure(graph: Sparse, sources: Bools) -> Bools:
    """The nodes that can be reached from the sources along the graph's edges, sources included."""
    n = graph.shape[0]
    root = sp.csr_array(sources[None].astype(np.float64))
    rooted: Any = sp.block_array([[graph, None], [root, sp.csr_array((1, 1))]], format="csr")
    order = sp.csgraph.breadth_first_order(rooted, n, return_predecessors=False)
    reached = np.zeros(n + 1, dtype=np.bool_)
    reached[order] = True
    return reached[:n]


def as_transition_matrix(value: Any, name: str) -> Sparse:
    """A checked transition matrix in CSR: square, finite, no negative entry, no row above 1."""
    given = value if is_sparse(value) else as_array(value, name, "numbers of shape (n, n)")
    if len(given.shape) != 2 or given.shape[0] != given.shape[1]:
        raise InvalidInputError(f"{name} must be square, of shape (n, n), got {given.shape}; reshape it")
    if given.dtype.kind == "f" and given.dtype.itemsize < 8:
        raise InvalidInputError(
            f"{name} must be float64, got {given.dtype}, whose rounding of a row's sum would count as "
            "terminating; convert it, and divide the rows that should sum to 1 by their sums"
        )
    matrix = as_csr(given, name) if is_sparse(given) else sp.csr_array(as_floats(given, name, given.shape))
    matrix.eliminate_zeros()
    if matrix.shape[0] == 0:
        raise InvalidInputError(f"{name} must have at least one state, got shape {matrix.shape}; add states")
    if (matrix.data < 0).any():
        row = int(np.flatnonzero(np.diff(matrix.indptr).cumsum() > np.argmax(matrix.data < 0))[0])
        raise InvalidInputError(
            f"{name} must hold probabilities, got {matrix.data.min():g} in row {row}; "
            "make every entry at least 0"
        )
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    above = np.flatnonzero(sums > 1.0 + ROW_EXCESS)
    if above.size:
        raise InvalidInputError(
            f"{name}'s rows must sum to at most 1 (the rest terminates), got {sums[above[0]]:.12g} in row "
            f"{name_some(above)}; normalise those rows"
        )
    return matrix


def as_rewards(r: Any, n: int, name: str = "r") -> Floats | Sparse:
    """Rewards (n,) or (n, n), checked."""
    given = r if is_sparse(r) else as_array(r, name, f"numbers of shape ({n},) or ({n}, {n})")
    if given.shape not in ((n,), (n, n)):
        raise InvalidInputError(f"{name} must have shape ({n},) or ({n}, {n}), got {given.shape}; reshape it")
    return as_csr(given, name) if is_sparse(given) else as_floats(given, name, given.shape)


def as_discount(discount: Any, n: int) -> float | Floats:
    """γ in (0, 1], or that of every successor, (n,) in [0, 1]."""
    text = isinstance(discount, str | bytes)
    if text or as_array(discount, "discount", f"a number, or numbers of shape ({n},)").ndim == 0:
        remedy = "pass 1 for episodes that end by themselves"
        return as_number(discount, "discount", 0.0, 1.0, open_low=True, remedy=remedy)
    gamma = as_floats(discount, "discount", (n,))
    if ((gamma < 0.0) | (gamma > 1.0)).any():
        raise InvalidInputError(
            f"discount must be in [0, 1] for every state, got {gamma.min():g} to {gamma.max():g}; pass "
            "what a return that begins in each state is worth one step earlier"
        )
    return readonly(gamma.copy())


def sorted_branches(n: int, rows: Ints, successors: Ints, probabilities: Floats, rewards: Floats) -> Branches:
    """Branches given in any order: the states that they leave, and what a table of them holds."""
    order = rows_in_order(rows, n)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]).astype(np.int64)
    return Branches(
        indptr, successors[order].astype(np.int64), probabilities[order], np.ascontiguousarray(rewards[order])
    )


def under_policy(
    P: object,
    r: object,
    policy: object,
    terminal_rewards: object,
    name: str = "r",
    at_end: str = "terminal_rewards",
) -> Branches:
    """The branches of a policy's chain; the arguments are those of :func:`MarkovChain.from_mdp`."""
    parts = by_action(P, r, terminal_rewards, name, at_end)
    return ActionBranches.of(parts).under(as_policy(policy, parts[0].n, len(parts)))


def by_action(
    P: object, r: object, terminal_rewards: object, name: str = "r", at_end: str = "terminal_rewards"
) -> list[Branches]:
    """The branches of every action."""
    matrices = [as_transition_matrix(Pa, f"P[{a}]") for a, Pa in enumerate(_as_sequence(P))]
    n, actions = matrices[0].shape[0], len(matrices)
    for a, matrix in enumerate(matrices):
        if matrix.shape[0] != n:
            raise InvalidInputError(
                f"P[{a}] must have shape ({n}, {n}) like P[0], got {matrix.shape}; "
                "give every action a matrix over the same states"
            )
    return [
        from_matrix(matrix, rewards, terminal_rewards, at_end)
        for matrix, rewards in zip(matrices, _rewards_by_action(r, n, actions, name), strict=True)
    ]


def _as_sequence(P: Any) -> Sequence[Any]:
    several = not sp.issparse(P) and isinstance(P, Sequence | np.ndarray)
    if not several or (isinstance(P, np.ndarray) and P.ndim != 3) or len(P) == 0:
        raise InvalidInputError(
            f"P must be (actions, n, n) or a sequence of matrices, one per action, got a {type(P).__name__} "
            f"of shape {np.shape(P)}; use MarkovChain(P, r) for a chain without actions"
        )
    shapes = _dense_shapes(list(P))
    if len(shapes) == 1 and len(shape := shapes.pop()) == 2 and shape[0] != shape[1] == len(P):
        n, actions = len(P), shape[0]
        raise InvalidInputError(
            f"P must be (actions, n, n), got ({n}, {actions}, {n}), whose axes are swapped: (x, a, y), as "
            "QuantEcon has them; pass numpy.swapaxes(P, 0, 1)"
        )
    return list(P)


def _dense_shapes(P: Sequence[Any] | npt.NDArray[Any]) -> set[tuple[int, ...]]:
    """The different shapes of the parts; none where one of them is sparse or ragged."""
    try:
        return set() if any(sp.issparse(part) for part in P) else {np.shape(part) for part in P}
    except Exception:
        return set()  # which is said elsewhere


def _rewards_by_action(r: Any, n: int, actions: int, name: str) -> list[Floats | Sparse]:
    """One (n,) or (n, n) reward array per action."""
    if isinstance(r, list | tuple) and len(r) and all(sp.issparse(part) for part in r):
        if len(r) != actions:
            raise InvalidInputError(
                f"{name} must hold {actions} matrices, one per action, got {len(r)}; add some"
            )
        return [as_rewards(part, n, name) for part in r]
    if not sp.issparse(r):
        r = as_array(
            r, name, f"numbers of shape ({n},), ({n}, {actions}), ({actions}, {n}, {n}) or ({n}, {n})"
        )
    shape = r.shape
    if len(shape) == 3:
        table = as_floats(r, name, (actions, n, n))
        return [table[a] for a in range(actions)]
    if shape == (n, actions) and actions != n:
        table = as_floats(r, name, (n, actions))
        return [np.ascontiguousarray(table[:, a]) for a in range(actions)]
    if shape == (n, n) and actions == n:
        raise InvalidInputError(
            f"{name} of shape ({n}, {n}) is ambiguous with {actions} actions: (x, a) or (x, y); "
            "pass (x, y) as (actions, n, n)"
        )
    if shape not in ((n,), (n, n)):
        raise InvalidInputError(
            f"{name} must have shape ({n},), ({n}, {actions}), ({actions}, {n}, {n}) or ({n}, {n}), got "
            f"{shape}; put states first and actions second in (x, a)"
        )
    return [as_rewards(r, n, name)] * actions


def as_policy(policy: Any, n: int, actions: int) -> Floats:
    """The policy as probabilities (n, actions), of rows that sum to 1."""
    if as_array(policy, "policy", f"probabilities of shape ({n}, {actions}) or {n} ints").ndim == 1:
        one_hot: Floats = np.eye(actions)[as_actions(policy, "policy", n, actions)]
        return one_hot
    table = as_distributions(policy, "policy", (n, actions))
    scaled: Floats = table / table.sum(axis=1, keepdims=True)
    return scaled


def rows_in_order(rows: Ints, n: int) -> Ints:
    """The places of numbers below n, the smallest first; NumPy sorts short numbers many times as fast."""
    return np.argsort(rows.astype(np.uint16) if n <= 1 << 16 else rows, kind="stable")


def together(branches: Branches, width: float = 0.0) -> tuple[Branches, Ints]:
    """Each different branch once, and which of them each one is, (branches,).

    With a width those whose rewards round to the same multiple of it are alike, and earn their mean.
    """
    key = np.rint(branches.reward / width) if width else branches.reward
    none = np.zeros(key.size, dtype=np.int64)
    place, first = places(branches.row, none, branches.successor, none, key)
    p: Floats = np.bincount(place, branches.probability).astype(np.float64, copy=False)
    reward = branches.reward[first]
    if width:
        reward = np.bincount(place, branches.probability * branches.reward) / p
    count = np.bincount(branches.row[first], minlength=branches.n)
    indptr = np.append(0, np.cumsum(count)).astype(np.int64)
    return Branches(indptr, branches.successor[first], p, reward), place


def places(cell: Ints, action: Ints, successor: Ints, group: Ints, reward: Floats) -> tuple[Ints, Ints]:
    """Which of the different rows each row is, (rows,), and where each of them stands first.

    Cells are below 2²⁴, and −1 is one of them; −0 is 0.
    """
    place, first = np.empty(cell.size, dtype=np.int64), np.empty(cell.size, dtype=np.int64)
    given = (cell << 24) + successor + 1, (action << 32) + group, reward + 0.0
    count = kernels.distinct(*given, place, first)
    return place, first[:count].copy()
