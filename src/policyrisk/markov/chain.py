"""Markov chains with rewards: the exact mean, second moment and variance of the reward to go.

For a chain P whose rows may sum to less than 1 (the rest terminates), rewards ρ and discount γ,
Proposition 2 and its discounted form (Sobel 1982) read, with y the successor and J(end) = M(end) = 0,

    J(x) = E[ρ + γ J(y) | x]
    M(x) = E[ρ² + 2γ ρ J(y) + γ² M(y) | x]
    V(x) = E[δ² + γ² V(y) | x],      δ = ρ + γ J(y) − J(x)

Where the discount depends on the state, γ is that of the successor y and stays inside the expectations.

V is solved from its own equation, since M − J² is a difference of large numbers; M is V + J². For γ = 1
both solves share one factorisation of I − P.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core import random as _random
from policyrisk._core.arrays import (
    Bools,
    Floats,
    Seed,
    as_array,
    as_count,
    as_floats,
    as_number,
    name_some,
    readonly,
)
from policyrisk._core.keywords import hinting
from policyrisk._core.units import unit_of
from policyrisk.data import Source, Trajectories
from policyrisk.errors import ImproperPolicyError, InvalidInputError
from policyrisk.markov import _branch_kernels as kernels
from policyrisk.markov.branches import (
    Branches,
    as_discount,
    as_rewards,
    as_transition_matrix,
    closure,
    from_matrix,
    sorted_branches,
    under_policy,
    with_noise,
)
from policyrisk.markov.linear import Resolvent, SolveReport, discounted

if TYPE_CHECKING:
    from policyrisk.markov.diagnosis import Diagnosis
    from policyrisk.markov.distribution import ChainDistribution
    from policyrisk.markov.log import LogCounts


@hinting
class MarkovChain:
    """A chain with n states and rewards, under a fixed policy.

    Parameters
    ----------
    P
        (n, n), dense or sparse; a row that sums to less than 1 terminates with the rest.
    r
        (n,), the reward of leaving a state, or (n, n), the reward of each transition.
    discount
        γ, or that of the successor, (n,): the return is r + γ(y) times the return from y.
    terminal_rewards
        (n,), what the step that ends the episode earns; by default r(x) where r is (n,), and 0 where it is
        (n, n).
    reward_variance
        (n,) or (n, n), that of rewards that are random even when x and y are known: r are then their means,
        and V counts it. Samples earn r ± √variance, each half of the time; what depends on more than the
        variance (the distribution of the return, its third moment) is refused.
    terminal_variance
        (n,), that of the step that ends the episode; by default the same where ``reward_variance`` is (n,),
        and 0 where it is (n, n).

    Examples
    --------
    Two states a, b that lead to each other and to the end:

    >>> chain = MarkovChain([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0])
    >>> chain.mean()
    array([6.25, 6.75])
    >>> chain.variance()
    array([29.0625, 26.8125])
    >>> MarkovChain([[0.0]], [1.0], reward_variance=[4.0]).variance()
    array([4.])
    """

    def __init__(
        self,
        P: object,
        r: object,
        discount: float | Floats = 1.0,
        *,
        terminal_rewards: npt.ArrayLike | None = None,
        reward_variance: object = None,
        terminal_variance: npt.ArrayLike | None = None,
    ) -> None:
        matrix = as_transition_matrix(P, "P")
        n = matrix.shape[0]
        branches = from_matrix(matrix, as_rewards(r, n), terminal_rewards)
        if reward_variance is not None or terminal_variance is not None:
            spread = as_rewards(
                np.zeros(n) if reward_variance is None else reward_variance, n, "reward_variance"
            )
            noise = from_matrix(matrix, spread, terminal_variance, at_end="terminal_variance")
            branches = with_noise(branches, noise.reward)
        self._set(branches, discount)

    @classmethod
    @hinting
    def from_mdp(
        cls,
        P: object,
        r: object,
        policy: npt.ArrayLike,
        discount: float | Floats = 1.0,
        *,
        terminal_rewards: npt.ArrayLike | None = None,
        reward_variance: object = None,
        terminal_variance: npt.ArrayLike | None = None,
    ) -> MarkovChain:
        """The chain of a policy in a decision process.

        Rewards that depend on the action keep their randomness under a stochastic policy: V counts it. A
        reward with a few known values is best written as so many actions, of which the policy takes each with
        the probability of its value.

        Parameters
        ----------
        P
            (actions, n, n) or a sequence of sparse matrices, one per action; QuantEcon's (n, actions, n) is
            refused, unless n = actions, where nobody can tell the two apart.
        r
            (n,), (n, actions), (actions, n, n) or (n, n).
        policy
            (n, actions), the probability of each action, or (n,) ints, the action taken.
        discount
            γ, or that of the successor, (n,).
        terminal_rewards
            (n,), what the step that ends the episode earns.
        reward_variance
            Of a shape that r may have: that of rewards that are random given state, action and successor.
        terminal_variance
            (n,), that of the step that ends the episode.

        Returns
        -------
        MarkovChain
            With n states.

        Examples
        --------
        >>> stay, leave = [[0.9]], [[0.0]]
        >>> MarkovChain.from_mdp([stay, leave], [1.0], policy=[[0.5, 0.5]]).mean()
        array([1.81818182])
        """
        branches = under_policy(P, r, policy, terminal_rewards)
        if reward_variance is not None or terminal_variance is not None:
            spread = np.zeros(branches.n) if reward_variance is None else reward_variance
            noise = under_policy(P, spread, policy, terminal_variance, "reward_variance", "terminal_variance")
            branches = with_noise(branches, noise.reward)
        return cls.from_branches(branches, discount)

    @classmethod
    @hinting
    def from_log(
        cls, data: Source, cells: Any = None, policy: Any = None, discount: float | Floats = 1.0
    ) -> MarkovChain:
        """The chain whose branches are the transitions of a log.

        Its mean and variance are those of LSTD(0), for a policy those of LSTDQ(0), on the same cells; its
        moments, quantiles and everything else come with it. ``known`` tells the cells that have an answer:
        the others (never visited, without an action of the policy, never followed by an end) are nan. What
        was left out because of them is in ``log``.

        Parameters
        ----------
        data
            Trajectories, or a stream of them.
        cells
            The state of the chain that a state of the data belongs to: a :class:`policyrisk.Tabular`, a
            :class:`policyrisk.TileCoding` of one tiling, or a function from states (n, dim) to whole numbers
            (n,). None for states that are whole numbers already.
        policy
            Another policy than the one that was logged: (states, actions) probabilities or (states,) ints for
            states that are whole numbers, or a function from states (n, dim) to probabilities (n, actions).
        discount
            γ, or that of the successor, (cells,).

        Returns
        -------
        MarkovChain
            With a state for each cell.

        Examples
        --------
        Two patients, treated and not; a policy that treats one in four:

        >>> import policyrisk as pr
        >>> data = pr.Trajectories([[0], [1], [0], [1]], [10.0, 2.0], [1, 1], [True, True], actions=[1, 0])
        >>> chain = MarkovChain.from_log(data, policy=[[0.75, 0.25]])
        >>> chain.mean(), chain.std().round(4)
        (array([4.]), array([3.4641]))
        >>> chain.log.visits, chain.log.left_out
        (array([2]), 0)
        """
        from policyrisk.markov.log import branches_of_log

        found = branches_of_log(data, cells, policy, discount)
        chain = cls.from_branches(found.branches(), discount)
        chain.known, chain.log, chain.rewards = found.known, found.counts, found.rewards()
        return chain

    @classmethod
    def from_branches(cls, branches: Branches, discount: float | Floats = 1.0) -> MarkovChain:
        """The chain of a table of branches, checked already."""
        chain = object.__new__(cls)
        chain._set(branches, discount)
        return chain

    def _set(self, branches: Branches, discount: float | Floats) -> None:
        self.branches = branches
        self.n = branches.n
        self.P = branches.matrix()
        self.discount = as_discount(discount, self.n)
        self._gamma = np.append(np.broadcast_to(self.discount, self.n), 1.0)[branches.successor]
        if (self._gamma == 1.0).any():
            fades = np.bincount(branches.row[self._gamma < 1.0], minlength=self.n) > 0
            endless = np.flatnonzero(~(self._reaches_end | closure(sp.csr_array(self.P.T), fades)))
            if endless.size:
                raise ImproperPolicyError(
                    f"P must reach the end from every state when discount=1 (Assumption 1: proper policy), "
                    f"but cannot from states {name_some(endless)}; let some row there sum to less than 1, "
                    "or use discount < 1 (a row that sums to 1 within 1e-12 counts as 1)"
                )
        self.known: Bools = np.ones(self.n, dtype=np.bool_)  # where there is an answer; elsewhere it is nan
        self.log: LogCounts | None = None  # of a chain that is a log
        self.rewards = branches.reward[None]  # (kinds, branches): of a log with several kinds more than one
        self._resolvents: dict[float, Resolvent] = {}
        self._powers: dict[int, Resolvent] = {}
        self.reports: dict[str, SolveReport] = {}

    def mean(self) -> Floats:
        """J = r + γ P J.

        Returns
        -------
        (n,) array
            The mean of the reward to go from each state.
        """
        return self._where_known(self._mean)

    def second_moment(self) -> Floats:
        """M = V + J², which solves M = E[ρ² + 2γ ρ J(y)] + γ² P M.

        Returns
        -------
        (n,) array
            The second moment of the reward to go from each state.
        """
        return self._where_known(self._variance + self._mean**2)

    def variance(self) -> Floats:
        """V = E[δ²] + γ² P V with δ = ρ + γ J(y) − J(x).

        Returns
        -------
        (n,) array
            The variance of the reward to go from each state.
        """
        return self._where_known(self._variance)

    def std(self) -> Floats:
        """√V.

        Returns
        -------
        (n,) array
            The standard deviation of the reward to go from each state.
        """
        return self._where_known(np.sqrt(self._variance))

    def moments(self, order: int = 4) -> Floats:
        """Central moments of the reward to go, of shape (order + 1, n): row k is E[(B − J)^k].

        They solve μ_k = E[Σ_{j<k} binom(k, j) δ^{k−j} γ^j μ_j(y)] + γ^k P μ_k with μ_0 = 1, μ_1 = 0.

        >>> MarkovChain([[0.5]], [1.0]).moments(4)[:, 0]
        array([ 1.,  0.,  2.,  6., 38.])
        """
        order = as_count(order, "order", 2)
        if order > 2:
            self.refuse_noise(f"moments({order})")
        return self._where_known(self._moments(order))

    def _moments(self, order: int) -> Floats:
        mu = np.zeros((order + 1, self.n))
        mu[0], mu[2] = 1.0, self._variance
        for k in range(3, order + 1):
            mu[k] = self._solve(f"moment {k}", k, self.expected_moment(self._mean, mu[:k]))
        return mu

    def distribution(self, start: npt.ArrayLike = 0, tolerance: float | None = None) -> ChainDistribution:
        """The distribution of the reward to go from a state or a distribution over states.

        With γ = 1 and rewards that are multiples of one number it is exact. Otherwise two distributions
        enclose it.

        Parameters
        ----------
        start
            A state's index, or a distribution of shape (n,).
        tolerance
            How far the means of the two may be apart; by default a fiftieth of the std.

        Returns
        -------
        ChainDistribution
            ``cdf``, ``quantile``, ``cvar`` and moments, with their ``error``.

        Examples
        --------
        >>> ends = MarkovChain([[0.0]], [[0.0]], terminal_rewards=[2.5]).distribution(0)
        >>> ends.quantile([0.05, 0.95]), ends.error
        (array([2.5, 2.5]), 0.0)
        """
        from policyrisk.markov.distribution import distribution

        return distribution(self, start, tolerance)

    def quantile(self, q: float, tolerance: float | None = None) -> Floats:
        """From every state the smallest z with P(B ≤ z) ≥ q, of shape (n,).

        Exact where :func:`MarkovChain.distribution` is. Elsewhere it is halfway between two bounds, which are
        at most ``tolerance`` apart, by default a fiftieth of each state's std (or a ten-thousandth of
        its mean, where that is more); where they are further apart, the answer is refused.

        >>> MarkovChain([[0.5]], [-1.0]).quantile(0.05)
        array([-5.])
        """
        from policyrisk.markov.distribution import tail

        return self._where_known(tail(self, "quantile", q, tolerance))

    def cvar(self, q: float, tolerance: float | None = None) -> Floats:
        """From every state the mean of the worst (smallest) q of the returns, of shape (n,).

        As exact as :meth:`quantile`.

        Of the worst quarter of geometric waits half last 3 steps, the others 4 and longer:

        >>> MarkovChain([[0.5]], [-1.0]).cvar(0.25)
        array([-4.])
        """
        from policyrisk.markov.distribution import tail

        return self._where_known(tail(self, "cvar", q, tolerance))

    def lowest(self, start: npt.ArrayLike = 0, tolerance: float | None = None) -> ChainDistribution:
        """The distribution of the lowest running return: how far an episode falls below its beginning.

        It is min_t Σ_{s<t} r_s ≤ 0. The discount must be 1. Rewards that are multiples of one number make it
        exact. Others are rounded down to a lattice, and up, which encloses it: ``lower`` and ``upper`` of the
        answer, whose moments are those of the distribution halfway between.

        Parameters
        ----------
        start
            A state's index, or a distribution of shape (n,).
        tolerance
            How far the means of the two may be apart, else an error. By default a fiftieth of the std where
            that can be had with some seconds of work, and otherwise what can be had: see ``error``.

        Returns
        -------
        ChainDistribution
            Of numbers that are at most 0, so that ``cvar(0.05)`` is the mean of the worst twentieth.

        Examples
        --------
        A fair game on 0, …, 3 that 0 and 3 end is lost from 1, its first state, in two of three cases:

        >>> game = MarkovChain([[0.0, 0.5], [0.5, 0.0]], [[0.0, 1.0], [-1.0, 0.0]], terminal_rewards=[-1, 1])
        >>> game.lowest(0).cdf([-1.0, 0.0]).round(4)
        array([0.6667, 1.    ])
        """
        from policyrisk.markov.running import along

        return along(self, "lowest", start, tolerance)

    def drawdown(self, start: npt.ArrayLike = 0, tolerance: float | None = None) -> ChainDistribution:
        """The distribution of the largest drawdown: the deepest fall of the running return from a peak.

        It is min_{s≤t} (S_t − S_s) ≤ 0 with S_t = Σ_{i<t} r_i, exact or enclosed as :meth:`lowest`.

        Parameters
        ----------
        start
            A state's index, or a distribution of shape (n,).
        tolerance
            As of :meth:`lowest`.

        Returns
        -------
        ChainDistribution
            Of numbers that are at most 0, so that ``cvar(0.05)`` is the mean of the worst twentieth.

        Examples
        --------
        >>> game = MarkovChain([[0.0, 0.5], [0.5, 0.0]], [[0.0, 1.0], [-1.0, 0.0]], terminal_rewards=[-1, 1])
        >>> game.drawdown(0).cdf([-2.0, -1.0, 0.0]).round(4)
        array([0.1667, 0.75  , 1.    ])
        """
        from policyrisk.markov.running import along

        return along(self, "drawdown", start, tolerance)

    @property
    def unit(self) -> float:
        """That of the rewards, in which their fourth powers are numbers (:mod:`policyrisk._core.units`)."""
        return unit_of(float(np.abs(self.branches.reward).max(initial=0.0)))

    def in_units(self, unit: float) -> MarkovChain:
        """The same chain with rewards divided by a power of two."""
        return self._rewarded(self.branches.reward / unit)

    def _part(self, inside: Bools) -> MarkovChain:
        """The same chain on some of its states (n,), which no branch may leave but to the end."""
        if inside.all():
            return self
        branches = self.branches
        kept = inside[branches.row]
        number = np.append(np.cumsum(inside) - 1, np.count_nonzero(inside))
        rows, successors = number[branches.row[kept]], number[branches.successor[kept]]
        chances, rewards = branches.probability[kept], branches.reward[kept]
        some = sorted_branches(int(number[-1]), rows, successors, chances, rewards)
        discount = self.discount if np.ndim(self.discount) == 0 else np.asarray(self.discount)[inside]
        return MarkovChain.from_branches(replace(some, noisy=branches.noisy), discount)

    def refuse_noise(self, what: str) -> None:
        """Raise where a reward is known by its mean and variance alone, which ``what`` needs more than."""
        if self.branches.noisy:
            raise InvalidInputError(
                f"{what} needs the whole distribution of every reward, got a chain with reward_variance, "
                "which says no more than its spread; write a reward with k values as k actions of "
                "MarkovChain.from_mdp, taken with the values' probabilities"
            )

    def _where_known(self, values: Floats) -> Floats:
        return readonly(values if self.known.all() else np.where(self.known, values, np.nan))

    @cached_property
    def _mean(self) -> Floats:
        return self._solve("mean", 1, self.expected_reward)

    @cached_property
    def _variance(self) -> Floats:
        return self._solve("variance", 2, self.expected_squared_error(self._mean))

    def _solve(self, name: str, power: int, b: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            solution = b
            if np.isfinite(b).all():
                solution, self.reports[name] = self.discounted(power).solve(b)
        if not np.isfinite(solution).all():
            raise InvalidInputError(
                f"r must keep the {name} of the reward to go within the range of float64, got rewards up to "
                f"{np.abs(self.branches.reward).max():g}, with which it does not; rescale the rewards"
            )
        return readonly(solution)

    @cached_property
    def expected_reward(self) -> Floats:
        """E[ρ | x], of shape (n,)."""
        return readonly(self.branches.expect(self.branches.reward))

    def expected_squared_error(self, J: Floats, lam: float = 0.0) -> Floats:
        """E[δ² + 2λγ δ ε(y) | x] with δ = ρ + γ J(y) − J(x) for any function J (n,), of shape (n,).

        ε = (I − λγP)⁻¹ E[δ] is by how much the λ-return misses J.
        """
        branches = self.branches
        J, lam = as_floats(J, "J", (self.n,)), as_number(lam, "lam", 0.0, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            delta = self._errors(branches.reward, J)
            square = branches.expect(delta**2)
            if not lam:
                return square
            gamma = self.one_discount("a variance with lam > 0")
            epsilon = self.resolvent(lam * gamma).solve(branches.expect(delta))[0]
            later = np.append(epsilon, 0.0)[branches.successor]
            return square + 2.0 * lam * gamma * branches.expect(delta * later)

    def expected_moment(self, J: Floats, mu: Floats) -> Floats:
        """E[Σ_{j<k} binom(k, j) δ^{k−j} γ^j μ_j(y) | x] for any functions J (n,) and μ (k, n), of shape (n,).

        Row j of μ is the j-th central moment; at the end that is 1 for j = 0, else 0.
        """
        J, mu = as_floats(J, "J", (self.n,)), as_floats(mu, "mu", (None, self.n))
        branches, gamma, k = self.branches, self._gamma, len(mu)
        after = np.append(mu, np.eye(k, 1), axis=1)[:, branches.successor]
        with np.errstate(over="ignore", invalid="ignore"):
            delta = self._errors(branches.reward, J)
            terms = (comb(k, j) * delta ** (k - j) * gamma**j * after[j] for j in range(k))
            return branches.expect(np.asarray(sum(terms, np.zeros(len(delta)))))

    def resolvent(self, factor: float) -> Resolvent:
        """The factored I − factor·P, made once for each factor."""
        if factor not in self._resolvents:
            self._resolvents[factor] = Resolvent(self.P, factor)
        return self._resolvents[factor]

    def discounted(self, power: int) -> Resolvent:
        """The factored I − P∘γ^power, with the γ of the successor."""
        if np.ndim(self.discount) == 0:
            return self.resolvent(float(self.discount) ** power)
        if power not in self._powers:
            self._powers[power] = Resolvent(*discounted(self.P, self.discount, power))
        return self._powers[power]

    def one_discount(self, what: str) -> float:
        """γ; an error where it depends on the state, which ``what`` cannot do with."""
        if np.ndim(self.discount):
            raise InvalidInputError(
                f"{what} needs one discount for all states, got a chain whose discount depends on the state; "
                "pass a number as discount, or ask for mean, variance or moments"
            )
        return float(self.discount)

    def occupancy(self, start: npt.ArrayLike = 0) -> Floats:
        """q, the expected number of visits to each state in one episode, not discounted: q = ζ0 + Pᵀ q.

        Parameters
        ----------
        start
            A state's index, or a distribution ζ0 of shape (n,).

        Returns
        -------
        (n,) array
            q.

        Examples
        --------
        >>> MarkovChain([[0.0, 1.0], [0.5, 0.0]], [1.0, 1.0]).occupancy(0)
        array([2., 2.])
        """
        zeta = self.start_distribution(start)
        reached = self._reachable(zeta)
        endless = np.flatnonzero(reached & ~self._reaches_end)
        if endless.size:
            raise ImproperPolicyError(
                f"the occupancy needs episodes that end (Assumption 1: proper policy), but states "
                f"{name_some(endless)} are reached from start and never reach the end; "
                "let some row there sum to less than 1"
            )
        q, part = np.zeros(self.n), self._part(reached)
        q[reached], self.reports["occupancy"] = part.resolvent(1.0).solve(zeta[reached], transpose=True)
        return q

    def start_distribution(self, start: npt.ArrayLike) -> Floats:
        """ζ0 of shape (n,) from a state's index or a distribution."""
        zeta = self._start(start)
        unknown = np.flatnonzero(~self.known & (zeta > 0))
        if unknown.size:
            raise InvalidInputError(
                f"start must be a state with an answer, got states {name_some(unknown)}, from which what was "
                "logged does not lead to an end, or success is impossible; see chain.known and chain.log"
            )
        return zeta

    def _start(self, start: npt.ArrayLike) -> Floats:
        array = as_array(start, "start", f"a state's index or a distribution of shape ({self.n},)")
        if array.ndim == 0:
            index = int(array) if array.dtype.kind in "iu" else -1
            if not 0 <= index < self.n:
                raise InvalidInputError(
                    f"start must be a state from 0 to {self.n - 1}, as an int, or a distribution of shape "
                    f"({self.n},), got {start!r}; count states from 0"
                )
            zeta = np.zeros(self.n)
            zeta[index] = 1.0
            return zeta
        zeta = as_floats(start, "start", (self.n,))
        if (zeta < 0).any() or abs(zeta.sum() - 1.0) > 1e-9:
            raise InvalidInputError(
                f"start must be a distribution over {self.n} states, got entries from {zeta.min():g} that "
                f"sum to {zeta.sum():.12g}; divide by the sum"
            )
        return zeta

    def sample(
        self, start: npt.ArrayLike = 0, episodes: int = 1000, seed: Seed = None, max_steps: int | None = None
    ) -> Trajectories:
        """Episodes of state indices, of shape (.., 1); the terminal state is index n.

        Parameters
        ----------
        start
            A state's index, or a distribution of shape (n,).
        episodes
            How many.
        seed
            The same seed gives the same episodes on any number of threads.
        max_steps
            An episode that has not ended after so many steps is cut off.

        Returns
        -------
        Trajectories
            The episodes.

        Examples
        --------
        >>> chain = MarkovChain([[0.5]], [1.0])
        >>> data = chain.sample(start=0, episodes=3, seed=1)
        >>> data.lengths.tolist() == chain.sample(start=0, episodes=3, seed=1).lengths.tolist()
        True
        """
        zeta = self.start_distribution(start)
        count = as_count(episodes, "episodes", 1)
        if max_steps is None:
            endless = np.flatnonzero(self._reachable(zeta) & ~self._reaches_end)
            if endless.size:
                raise ImproperPolicyError(
                    f"max_steps must be given where episodes may never end, as from states "
                    f"{name_some(endless)}; pass max_steps"
                )
        limit = np.iinfo(np.int64).max if max_steps is None else as_count(max_steps, "max_steps", 1, 2**62)
        branches = self.branches
        lengths, terminated = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.bool_)
        table = branches.indptr, branches.successor, self._cumulative, branches.reward
        given = *table, np.cumsum(zeta / zeta.sum()), *_random.keys(seed), limit, lengths, terminated
        kernels.sample(*given, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        states, rewards = np.empty(offsets[-1] + count, dtype=np.int64), np.empty(offsets[-1])
        kernels.sample(*given, offsets, states, rewards)
        return Trajectories._view(states[:, None], rewards, lengths, terminated)

    def reach(self, goal: npt.ArrayLike, avoid: npt.ArrayLike = ()) -> Floats:
        """The probability of reaching a goal before the end and before what is to be avoided.

        Parameters
        ----------
        goal
            States: an index, several, or a mask of shape (n,). Index n is the end.
        avoid
            States in which the attempt has failed, in the same form.

        Returns
        -------
        (n,) array
            1 at the goal, 0 at what is avoided.

        Examples
        --------
        A fair game on 0, …, 4 that 0 and 4 end:

        >>> P = [[0, 0, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0, 0.5, 0, 0.5, 0], [0, 0, 0.5, 0, 0.5], [0] * 5]
        >>> MarkovChain(P, [0, 1, 1, 1, 0]).reach(4)
        array([0.  , 0.25, 0.5 , 0.75, 1.  ])
        """
        from policyrisk.markov.passages import reach

        return self._where_known(reach(self, goal, avoid))

    def given(self, goal: npt.ArrayLike) -> MarkovChain:
        """The chain given that a goal is reached: its returns are those of the successful episodes.

        Parameters
        ----------
        goal
            States that end the episode, in the form of :meth:`reach`.

        Returns
        -------
        MarkovChain
            With the same states; nan where the goal cannot be reached.

        Examples
        --------
        How long a fair game on 0, …, 4 takes if it is won:

        >>> P = [[0, 0, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0, 0.5, 0, 0.5, 0], [0, 0, 0.5, 0, 0.5], [0] * 5]
        >>> MarkovChain(P, [0, 1, 1, 1, 0]).given(4).mean().round(6)
        array([     nan, 5.      , 4.      , 2.333333, 0.      ])
        """
        from policyrisk.markov.passages import given

        branches, able = given(self, goal)
        chain = MarkovChain.from_branches(replace(branches, noisy=self.branches.noisy), self.discount)
        chain.known = self.known & able
        return chain

    def covariance(
        self, other_rewards: int | npt.ArrayLike, terminal_rewards: npt.ArrayLike | None = None
    ) -> Floats:
        """The covariance of the return with that of other rewards, c = E[δ δ'] + γ² P c.

        Parameters
        ----------
        other_rewards
            (n,), earned on leaving a state, or (n, n), of each transition. Of a log with several kinds of
            rewards, ``reward=["profit", "cost"]``, the number of one, from 0.
        terminal_rewards
            (n,), what the step that ends the episode earns of the other kind; by default as in
            :class:`MarkovChain`.

        Returns
        -------
        (n,) array
            The covariance from each state.

        Examples
        --------
        >>> chain = MarkovChain([[0.5]], [1.0])
        >>> chain.covariance([-2.0]), chain.variance()
        (array([-4.]), array([2.]))
        """
        other = self._rewarded(self._other(other_rewards, terminal_rewards))
        delta, theirs = (each._errors(each.branches.reward, each._mean) for each in (self, other))
        return self._where_known(self._solve("covariance", 2, self.branches.expect(delta * theirs)))

    def correlation(
        self, other_rewards: int | npt.ArrayLike, terminal_rewards: npt.ArrayLike | None = None
    ) -> Floats:
        """The covariance divided by both stds.

        Parameters
        ----------
        other_rewards, terminal_rewards
            As of :meth:`covariance`.

        Returns
        -------
        (n,) array
            The correlation from each state; nan where one of the returns does not vary.

        Examples
        --------
        >>> MarkovChain([[0.5]], [1.0]).correlation([-2.0])
        array([-1.])
        """
        other = self._rewarded(self._other(other_rewards, terminal_rewards))
        both = self.std() * other.std()
        with np.errstate(invalid="ignore", divide="ignore"):
            return readonly(
                np.where(both > 0, self.covariance(other_rewards, terminal_rewards) / both, np.nan)
            )

    def weighing(self, weights: npt.ArrayLike) -> MarkovChain:
        """The same chain with a weighted sum of its kinds of rewards, as profit − k·cost.

        Parameters
        ----------
        weights
            (kinds,), of the columns in ``reward=["profit", "cost"]``.

        Returns
        -------
        MarkovChain
            Which answers everything for the sum.

        Examples
        --------
        >>> import policyrisk as pr
        >>> data = pr.Trajectories([[0], [1]] * 2, [5, 7], [1, 1], [True, True], other_rewards=[[1], [4]])
        >>> chain = MarkovChain.from_log(data)
        >>> chain.mean(), chain.correlation(1), chain.weighing([1, -2]).mean()
        (array([6.]), array([1.]), array([1.]))
        """
        rewards = as_floats(weights, "weights", (len(self.rewards),)) @ self.rewards
        found = self._rewarded(rewards)
        found.rewards, found.log = self.rewards, self.log
        return found

    def _rewarded(self, rewards: Floats) -> MarkovChain:
        """The same chain with other rewards (branches,), and the factors that it has already."""
        other = MarkovChain.from_branches(replace(self.branches, reward=rewards), self.discount)
        other._resolvents, other._powers, other.known = self._resolvents, self._powers, self.known
        return other

    def _other(self, other_rewards: Any, terminal_rewards: npt.ArrayLike | None) -> Floats:
        """Rewards of another kind, (branches,)."""
        branches, n, kinds = self.branches, self.n, len(self.rewards)
        if isinstance(other_rewards, int | np.integer) and not isinstance(other_rewards, bool):
            if not 0 <= other_rewards < kinds:
                raise InvalidInputError(
                    f"other_rewards must be one of {kinds} kinds of rewards, from 0, got {other_rewards}; "
                    'read the log with reward=["profit", "cost"], or pass rewards of shape (n,)'
                )
            return np.asarray(self.rewards[other_rewards])
        table = as_rewards(other_rewards, n, "other_rewards")
        ends, inside = branches.successor == n, np.minimum(branches.successor, n - 1)
        if table.ndim == 1:
            rewards, last = np.asarray(table)[branches.row], np.asarray(table)
        else:
            rewards, last = np.asarray(table[branches.row, inside]).ravel(), np.zeros(n)
        if terminal_rewards is not None:
            last = as_floats(terminal_rewards, "terminal_rewards", (n,))
        return np.where(ends, last[branches.row], rewards)

    def _errors(self, rewards: Floats, J: Floats) -> Floats:
        """δ = ρ + γ J(y) − J(x) of every branch."""
        branches = self.branches
        return np.asarray(rewards + self._gamma * np.append(J, 0.0)[branches.successor] - J[branches.row])

    def diagnose(
        self, features: Any, second_features: Any = None, start: npt.ArrayLike = 0, lam: float = 0.9
    ) -> Diagnosis:
        """The paper's theory as numbers for these features: Assumptions 1, 3 and 4, Lemmas 5, 7 and 8.

        Parameters
        ----------
        features
            φ_J: a feature map, or a function from states (n, 1) to (n, l).
        second_features
            φ_M; the same as ``features`` where None.
        start
            A state's index, or a distribution of shape (n,).
        lam
            The trace parameter λ.

        Returns
        -------
        Diagnosis
            What holds, the moduli, and the error with its bound; ``print`` shows them.

        Examples
        --------
        >>> import policyrisk as pr
        >>> phi, psi = (pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2))
        >>> report = pr.domains.walk(30).diagnose(phi, psi, start=0, lam=0.95)
        >>> bool(report.error < report.bound)
        True
        """
        from policyrisk.markov.diagnosis import diagnose

        return diagnose(self, features, second_features, start, lam)

    @cached_property
    def _cumulative(self) -> Floats:
        """Each state's branch probabilities, summed up from its first branch, of shape (branches,)."""
        running = np.cumsum(self.branches.probability)
        before = np.append(0.0, running)[self.branches.indptr[:-1]]
        return np.asarray(running - np.repeat(before, np.diff(self.branches.indptr)))

    @cached_property
    def _reaches_end(self) -> Bools:
        """Which states can reach the end, of shape (n,)."""
        branches = self.branches
        ending = np.bincount(branches.row[branches.successor == self.n], minlength=self.n) > 0
        return closure(sp.csr_array(self.P.T), ending)

    def _reachable(self, zeta: Floats) -> Bools:
        return closure(self.P, zeta > 0)

    def __repr__(self) -> str:
        discount = "by state" if np.ndim(self.discount) else self.discount
        return f"MarkovChain({self.n} states, {self.P.nnz} transitions, discount={discount})"
