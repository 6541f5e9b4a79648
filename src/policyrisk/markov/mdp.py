"""Decision processes: a chain for every policy, and the exact gradient of mean and variance.

With ζ the start distribution, π a policy and γ the discount, the return has

    m = ζᵀJ,     v = ζᵀV + ζᵀ(J − m)²

Write A(x, a) = E[δ | x, a] and W(x, a) = E[δ² + γ² V(y) | x, a], δ = ρ + γ J(y) − J(x), so that Σ_a π A = 0
and Σ_a π W = V. With q_1 and q_2 the visits discounted by γ and by γ²,

    q_1 = ζ + γ Pᵀq_1,     q_2 = ζ + γ² Pᵀq_2,     u = ζ∘(J − m) + γ (P∘δ)ᵀq_2 + γ Pᵀu

m and v change with π(a|x) by

    ∂m/∂π(a|x) = q_1(x) A(x, a)
    ∂v/∂π(a|x) = q_2(x) W(x, a) + 2 u(x) A(x, a)

up to a constant in each row, which no change from one distribution to another sees.

The second line is ∇M − 2m∇m of the raw moments, where u = γ Pᵀu + γ (P∘ρ)ᵀq_2, after δ took the place of ρ,
which changes no variance: nothing large is subtracted, as M − J² does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Seed, as_number
from policyrisk.markov.branches import Branches, mix
from policyrisk.markov.chain import MarkovChain
from policyrisk.markov.decisions import as_policy, by_action

if TYPE_CHECKING:
    from policyrisk.markov.improvement import Improvement


class PolicyGradient(NamedTuple):
    """Mean and variance of the return from a start distribution, and how they change with the policy."""

    mean: float
    variance: float
    by_mean: Floats  # (n, actions): ∂m/∂π(a|x)
    by_variance: Floats  # (n, actions): ∂v/∂π(a|x)


class MDP:
    """A decision process with n states, known exactly.

    P is (actions, n, n) or a sequence of sparse matrices, one per action; a row that sums to less than 1
    terminates with the rest. r is (n,), (n, actions), (actions, n, n) or (n, n), ``terminal_rewards`` (n,),
    as :meth:`MarkovChain.from_mdp` takes them.

    Two actions in the only state: wait, which ends with probability ½, and leave, which pays 3:

    >>> mdp = MDP([[[0.5]], [[0.0]]], [[1.0, 3.0]])
    >>> mdp
    MDP(1 states, 2 actions, discount=1.0)
    >>> mdp.chain([[0.5, 0.5]]).mean()
    array([2.66666667])
    """

    branches: tuple[Branches, ...]  # one table per action
    discount: float

    def __init__(
        self, P: object, r: object, discount: float = 1.0, terminal_rewards: npt.ArrayLike | None = None
    ) -> None:
        self._set(by_action(P, r, terminal_rewards), discount)

    @classmethod
    def from_branches(cls, branches: Sequence[Branches], discount: float = 1.0) -> MDP:
        """The decision process of a table of branches per action, checked already.

        It may hold rewards that are random given state, action and successor.
        """
        mdp = object.__new__(cls)
        mdp._set(branches, discount)
        return mdp

    def _set(self, branches: Sequence[Branches], discount: float) -> None:
        self.branches = tuple(branches)
        self.discount = as_number(discount, "discount", 0.0, 1.0, open_low=True)

    @property
    def n(self) -> int:
        """The number of states, the end not among them."""
        return self.branches[0].n

    @property
    def actions(self) -> int:
        """The number of actions."""
        return len(self.branches)

    def chain(self, policy: npt.ArrayLike) -> MarkovChain:
        """The chain of a policy: (n, actions), the probability of each action, or (n,) ints."""
        return self._mixed(as_policy(policy, self.n, self.actions))

    def _mixed(self, policy: Floats) -> MarkovChain:
        return MarkovChain.from_branches(mix(self.branches, policy), self.discount)

    def gradient(self, policy: npt.ArrayLike, start: npt.ArrayLike = 0) -> PolicyGradient:
        """Mean and variance of the return, and their derivatives by every probability of the policy.

        ``start`` is a state's index or a distribution of shape (n,). The derivatives hold along changes that
        keep the sums of the policy's rows at 1; a constant in a row is arbitrary.

        >>> MDP([[[0.5]], [[0.0]]], [[1.0, 3.0]]).gradient([[0.5, 0.5]]).by_mean.round(6)
        array([[-0.444444,  0.444444]])
        """
        chain = self.chain(policy)
        return self._gradient(chain, chain.start_distribution(start))

    def _gradient(self, chain: MarkovChain, zeta: Floats) -> PolicyGradient:
        gamma, J, V = self.discount, chain.mean(), chain.variance()
        J_after, V_after = np.append(J, 0.0), np.append(V, 0.0)

        def errors(branches: Branches) -> Floats:
            """δ of every branch."""
            delta: Floats = branches.reward + gamma * J_after[branches.successor] - J[branches.row]
            return delta

        A, W = np.empty((self.n, self.actions)), np.empty((self.n, self.actions))
        for a, branches in enumerate(self.branches):
            delta = errors(branches)
            A[:, a] = branches.expect(delta)
            W[:, a] = branches.expect(delta**2 + gamma**2 * V_after[branches.successor])
        m = float(zeta @ J)
        v = float(zeta @ V + zeta @ (J - m) ** 2)
        once = chain.resolvent(gamma)
        q_2 = chain.resolvent(gamma**2).solve(zeta, transpose=True)[0]
        carried = gamma * (chain.branches.matrix(errors(chain.branches)).T @ q_2)
        u = once.solve(zeta * (J - m) + carried, transpose=True)[0]
        q_1 = q_2 if gamma == 1.0 else once.solve(zeta, transpose=True)[0]
        return PolicyGradient(m, v, q_1[:, None] * A, q_2[:, None] * W + 2.0 * u[:, None] * A)

    def improve(
        self,
        criterion: Any,
        start: npt.ArrayLike = 0,
        policy: npt.ArrayLike | None = None,
        seed: Seed = 0,
        *,
        features: object = None,
        restarts: int = 3,
        iterations: int = 300,
    ) -> Improvement:
        """A policy that is better by a criterion of :mod:`policyrisk.criteria`, found by the exact gradient.

        ``start`` is a state's index or a distribution of shape (n,). Policies are the softmax of a table, or
        of ``features`` (n, k) of the states, dense or sparse: states with the same features act alike. L-BFGS
        starts from ``policy`` where one is given (with features, from the nearest softmax policy), from the
        uniform one, and ``restarts`` times from random ones of the seed; the best that was found is kept, and
        without features is no worse than the given one. Criteria of mean and variance have many local optima:
        this is the best of those that were reached, no proof that there is none better.

        With a constraint, the answer meets it (to 1e-9 of the uniform policy's), or
        :class:`~policyrisk.errors.InfeasibleConstraintError` is raised.

        >>> from policyrisk.criteria import MeanMinusStd
        >>> better = MDP([[[0.5]], [[0.0]]], [[1.0, 3.0]]).improve(MeanMinusStd(1.0))
        >>> better.policy.round(6), round(better.value, 6)
        (array([[0., 1.]]), 3.0)
        """
        from policyrisk.markov.improvement import improve

        return improve(self, criterion, start, policy, seed, features, restarts, iterations)

    def __repr__(self) -> str:
        return f"MDP({self.n} states, {self.actions} actions, discount={self.discount})"
