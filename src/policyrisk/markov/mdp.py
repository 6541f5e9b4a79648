"""Decision processes: a chain for every policy, and the exact gradient of mean and variance.

With ζ the start distribution, π a policy and γ the discount, the return has

    m = ζᵀJ,     v = ζᵀV + ζᵀ(J − m)²

Write A(x, a) = E[δ | x, a] and W(x, a) = E[δ² + γ² V(y) | x, a], δ = ρ + γ J(y) − J(x), so that Σ_a π A = 0
and Σ_a π W = V. With q_1 and q_2 the visits discounted by γ and by γ²,

    q_1 = ζ + γ Pᵀq_1,     q_2 = ζ + γ² Pᵀq_2,     u = ζ∘(J − m) + γ (P∘δ)ᵀq_2 + γ Pᵀu

m and v change with π(a|x) by

    ∂m/∂π(a|x) = q_1(x) A(x, a)
    ∂v/∂π(a|x) = q_2(x) W(x, a) + 2 u(x) A(x, a)

up to a constant in each row, which no change from one distribution to another sees. Where the discount
depends on the state, γ is that of the successor.

The second line is ∇M − 2m∇m of the raw moments, where u = γ Pᵀu + γ (P∘ρ)ᵀq_2, after δ took the place of ρ,
which changes no variance: nothing large is subtracted, as M − J² does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints, Seed, as_count
from policyrisk._core.keywords import hinting
from policyrisk.errors import InvalidInputError
from policyrisk.markov.branches import (
    ActionBranches,
    Branches,
    as_discount,
    as_policy,
    by_action,
    sorted_branches,
)
from policyrisk.markov.chain import MarkovChain

if TYPE_CHECKING:
    from policyrisk.markov.improvement import Improvement


Solve: TypeAlias = Callable[[int, Floats, bool], Floats]  # x of (I − P∘γ^power) x = b, or of its transpose


class PolicyGradient(NamedTuple):
    """Mean and variance of the return from a start distribution, and how they change with the policy."""

    mean: float
    variance: float
    by_mean: Floats  # (n, actions): ∂m/∂π(a|x)
    by_variance: Floats  # (n, actions): ∂v/∂π(a|x)


def policy_gradient(
    table: ActionBranches, weights: Floats, zeta: Floats, discount: float | Floats, solve: Solve
) -> PolicyGradient:
    """The module's formulas, for the weights (branches,) of a policy and starts ζ (n,)."""

    def expect(values: Floats) -> Floats:
        sums = np.bincount(table.row, weights=weights * values, minlength=table.n)
        return sums.astype(np.float64, copy=False)

    def per_action(values: Floats) -> Floats:
        sums = np.bincount(
            table.row * table.actions + table.action,
            weights=table.probability * values,
            minlength=table.n * table.actions,
        )
        return sums.astype(np.float64, copy=False).reshape(table.n, table.actions)

    gamma = np.append(np.broadcast_to(discount, table.n), 1.0)[table.successor]
    J = solve(1, expect(table.reward), False)
    delta = table.reward + gamma * np.append(J, 0.0)[table.successor] - J[table.row]
    V = solve(2, expect(delta**2), False)
    A = per_action(delta)
    W = per_action(delta**2 + gamma**2 * np.append(V, 0.0)[table.successor])
    m = float(zeta @ J)
    v = float(zeta @ V + zeta @ (J - m) ** 2)
    q_2 = solve(2, zeta, True)
    q_1 = q_2 if np.all(gamma == 1.0) else solve(1, zeta, True)
    carried = np.bincount(table.successor, weights=weights * delta * q_2[table.row], minlength=table.n + 1)
    u = solve(1, zeta * (J - m) + discount * carried[:-1], True)
    return PolicyGradient(m, v, q_1[:, None] * A, q_2[:, None] * W + 2.0 * u[:, None] * A)


@hinting
class MDP:
    """A decision process with n states, known exactly.

    Parameters
    ----------
    P
        (actions, n, n) or a sequence of sparse matrices, one per action; a row that sums to less than 1
        terminates with the rest.
    r
        (n,), (n, actions), (actions, n, n) or (n, n).
    discount
        γ, or that of the successor, (n,).
    terminal_rewards
        (n,), what the step that ends the episode earns, as in :meth:`MarkovChain.from_mdp`.

    Examples
    --------
    Two actions in the only state: wait, which ends with probability ½, and leave, which pays 3:

    >>> mdp = MDP([[[0.5]], [[0.0]]], [[1.0, 3.0]])
    >>> mdp
    MDP(1 states, 2 actions, discount=1.0)
    >>> mdp.chain([[0.5, 0.5]]).mean()
    array([2.66666667])
    """

    branches: tuple[Branches, ...]  # one table per action
    discount: float | Floats

    def __init__(
        self,
        P: object,
        r: object,
        discount: float | Floats = 1.0,
        terminal_rewards: npt.ArrayLike | None = None,
    ) -> None:
        self._set(by_action(P, r, terminal_rewards), discount)

    @classmethod
    def from_branches(cls, branches: Sequence[Branches], discount: float | Floats = 1.0) -> MDP:
        """The decision process of a table of branches per action, checked already.

        It may hold rewards that are random given state, action and successor.
        """
        mdp = object.__new__(cls)
        mdp._set(branches, discount)
        return mdp

    def _set(self, branches: Sequence[Branches], discount: float | Floats) -> None:
        self.branches = tuple(branches)
        self.discount = as_discount(discount, self.n)

    @property
    def n(self) -> int:
        """The number of states, the end not among them."""
        return self.branches[0].n

    @property
    def actions(self) -> int:
        """The number of actions."""
        return len(self.branches)

    def chain(self, policy: npt.ArrayLike) -> MarkovChain:
        """The chain of a policy.

        Parameters
        ----------
        policy
            (n, actions), the probability of each action, or (n,) ints, the action taken.

        Returns
        -------
        MarkovChain
            With n states.
        """
        probabilities = as_policy(policy, self.n, self.actions)
        return MarkovChain.from_branches(self._table.under(probabilities), self.discount)

    def gradient(self, policy: npt.ArrayLike, start: npt.ArrayLike = 0) -> PolicyGradient:
        """Mean and variance of the return, and their derivatives by every probability of the policy.

        ``start`` is a state's index or a distribution of shape (n,). The derivatives hold along changes that
        keep the sums of the policy's rows at 1; a constant in a row is arbitrary.

        >>> MDP([[[0.5]], [[0.0]]], [[1.0, 3.0]]).gradient([[0.5, 0.5]]).by_mean.round(6)
        array([[-0.444444,  0.444444]])
        """
        chain = self.chain(policy)
        weights = self._table.weights(as_policy(policy, self.n, self.actions))

        def solve(power: int, b: Floats, transpose: bool) -> Floats:
            return chain.discounted(power).solve(b, transpose=transpose)[0]

        return policy_gradient(self._table, weights, chain.start_distribution(start), self.discount, solve)

    @cached_property
    def _table(self) -> ActionBranches:
        return ActionBranches.of(self.branches)

    def with_reward_so_far(self, start: npt.ArrayLike = 0, most: int = 100_000) -> tuple[MDP, Ints, Floats]:
        """The process whose policies see the reward so far: its states are pairs (x, R_<t).

        Also returned are the states x (pairs,) and the sums R_<t (pairs,) of all pairs that can be reached;
        the first are those in which episodes start, in the order of their states. Sums that agree to 9 digits
        after the point are one. A policy that sees what has been earned can be better than any that does not:

        >>> from policyrisk.criteria import MeanMinusVariance
        >>> P = np.zeros((2, 4, 4))
        >>> P[:, 0, [1, 2]], P[:, [1, 2], 3] = 0.5, 1.0  # to state 1 or 2, which earn 3 and −3, and on to 3
        >>> mdp = MDP(P, [[0, 0], [3, 3], [-3, -3], [0, -1]])  # in state 3 the second action gives 1 away
        >>> seeing, _, earned = mdp.with_reward_so_far()
        >>> round(mdp.improve(MeanMinusVariance(0.2)).value, 6), earned.tolist()
        (-1.8, [0.0, 0.0, 0.0, 3.0, -3.0])
        >>> better = seeing.improve(MeanMinusVariance(0.2))
        >>> round(better.value, 6), better.policy[3:].tolist()  # after 3, but not after −3
        (-1.75, [[0.0, 1.0], [1.0, 0.0]])
        """
        if np.any(np.not_equal(self.discount, 1.0)):
            raise InvalidInputError(
                f"discount must be 1 for policies that see the reward so far, got {self.discount}; what it "
                "means for the rest would depend on the step too"
            )
        table, cap = self._table, as_count(most, "most", 1)
        order = np.argsort(table.row, kind="stable")  # the branches of each state, side by side
        first = np.searchsorted(table.row[order], np.arange(self.n + 1))
        uniform = self.chain(np.full((self.n, self.actions), 1.0 / self.actions))
        pairs = [(int(x), 0.0) for x in np.flatnonzero(uniform.start_distribution(start))]
        known = {pair: i for i, pair in enumerate(pairs)}
        rows, branches, successors = [], [], []
        for i, (x, earned) in enumerate(pairs):  # which grows on the way
            for b in order[first[x] : first[x + 1]].tolist():
                pair = int(table.successor[b]), round(earned + float(table.reward[b]), 9) + 0.0
                if pair[0] < self.n and pair not in known:
                    known[pair] = len(pairs)
                    pairs.append(pair)
                rows.append(i)
                branches.append(b)
                successors.append(known.get(pair, -1))
            if len(pairs) > cap:
                raise InvalidInputError(
                    f"most must be at least the number of pairs of a state and a sum of rewards, got {cap}, "
                    "which is too few; raise it, or round the rewards to fewer values"
                )
        row, branch, successor = (np.array(column, dtype=np.int64) for column in (rows, branches, successors))
        successor[successor < 0] = len(pairs)
        parts = []
        for a in range(self.actions):
            own = table.action[branch] == a
            columns = row[own], successor[own], table.probability[branch[own]], table.reward[branch[own]]
            parts.append(sorted_branches(len(pairs), *columns))
        states, sums = zip(*pairs, strict=True)
        return MDP.from_branches(parts), np.array(states), np.array(sums)

    def improve(
        self,
        criterion: Any,
        start: npt.ArrayLike = 0,
        policy: npt.ArrayLike | None = None,
        seed: Seed = 0,
        *,
        features: object = None,
        restarts: int = 2,
        iterations: int = 300,
    ) -> Improvement:
        """A policy that is better by a criterion, found by the exact gradient.

        L-BFGS starts from ``policy`` where one is given (with features, from the nearest softmax policy),
        from the uniform one, from those with the largest mean and the smallest variance, and from random
        ones; the best that was found is kept, and without features is no worse than the given one. Criteria
        of mean and variance have many local optima: this is the best of those that were reached, no proof
        that there is none better.

        Parameters
        ----------
        criterion
            One of :mod:`policyrisk.criteria`. With a constraint, the answer meets it (to 1e-9 of the uniform
            policy's).
        start
            A state's index, or a distribution of shape (n,).
        policy
            Where to start as well: (n, actions), or (n,) ints.
        seed
            That of the random starts.
        features
            (n, k), dense or sparse: policies are then the softmax of these, and states with the same features
            act alike. A table where None.
        restarts
            How many random starts.
        iterations
            The most iterations from each.

        Returns
        -------
        Improvement
            ``policy`` (n, actions), ``mean``, ``variance``, ``value`` and ``history``.

        Raises
        ------
        InfeasibleConstraintError
            No policy that meets the constraint was found.

        Examples
        --------
        >>> from policyrisk.criteria import MeanMinusStd
        >>> better = MDP([[[0.5]], [[0.0]]], [[1.0, 3.0]]).improve(MeanMinusStd(1.0))
        >>> better.policy.round(6), round(better.value, 6)
        (array([[0., 1.]]), 3.0)
        """
        from policyrisk.markov.improvement import improve

        return improve(self, criterion, start, policy, seed, features, restarts, iterations)

    def __repr__(self) -> str:
        discount = "by state" if np.ndim(self.discount) else self.discount
        return f"MDP({self.n} states, {self.actions} actions, discount={discount})"
