"""What compiled domains share: stepping states, running any policy, and the reward so far as a coordinate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints, Seed, as_actions, as_count, as_floats, as_number
from policyrisk._core.devices import Device, on_gpu
from policyrisk._core.random import keys
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.simulation import compiled, cuda
from policyrisk.simulation.compiled import (
    CompiledPolicy,
    Returns,
    Words,
    act,
    domain_kernels,
    register_domain,
    start_streams,
)
from policyrisk.simulation.lanes import EpisodeRecorder
from policyrisk.simulation.spaces import drawn_actions, told_propensities, with_propensities

AnyPolicy: TypeAlias = "CompiledPolicy | Callable[[Floats], Any]"

EARNED = "earned"  # what the coordinate is called that holds the reward so far


def _engine(device: Device) -> Any:
    """What runs compiled episodes on a device: ``run`` and ``run_returns``."""
    return cuda if on_gpu(device, "numba_cuda") else compiled


class CompiledDomain(ABC):
    """A domain with discrete actions whose table has registered kernels, see :mod:`.compiled`."""

    actions: int

    @abstractmethod
    def compiled(self) -> Any:
        """The table for compiled code."""

    @abstractmethod
    def as_starts(self, value: object, name: str) -> Floats:
        """Checked states (n, dim), a copy."""

    @abstractmethod
    def sample_starts(self, n: int, seed: Seed = None) -> Floats:
        """n states (n, dim) in which episodes start."""

    def first_states(self, n: int, seed: Seed = None) -> Floats:
        """n states (n, dim) in which episodes of the Gymnasium environment start."""
        return self.sample_starts(n, seed)

    def act(self, states: Floats, actions: Ints, words: Words) -> tuple[Floats, Bools]:
        """One action for each row of ``states``, in place, each with its own stream: rewards, ended.

        What :meth:`step` does, for callers that keep the streams ``words`` (n, 2) and have checked the rest.
        """
        return act(self.compiled(), states, actions, words)

    def step(self, states: object, actions: object, seed: Seed = None) -> tuple[Floats, Floats, Bools]:
        """One action from each state; row i draws from stream i of the seed.

        Parameters
        ----------
        states
            (n, dim).
        actions
            (n,).
        seed
            Of everything random.

        Returns
        -------
        tuple of arrays
            Next states (n, dim), rewards (n,) and terminated (n,).
        """
        now = self.as_starts(states, "states")
        chosen = self.as_actions(actions, len(now), "actions")
        words = np.empty((len(now), 2), np.uint64)
        start_streams(*keys(seed), 0, words)
        rewards, ended = self.act(now, chosen, words)
        return now, rewards, ended

    def rollout(
        self,
        policy: AnyPolicy,
        starts: object,
        seed: Seed = None,
        max_steps: int = 10_000,
        device: Device = "cpu",
    ) -> Trajectories:
        """An episode from each start, until its end or for ``max_steps`` actions.

        Parameters
        ----------
        policy
            One of ours, run compiled and in parallel, or any function from states (m, dim) to actions (m,),
            called once a step with all episodes that still go on. It may return probabilities (m, actions),
            from which its actions are drawn.
        starts
            States (n, dim).
        seed
            Episode i draws from stream i of it: the same seed gives the same episodes on any number of
            threads.
        max_steps
            Cuts off longer episodes.
        device
            "cuda" runs policies of ours on a GPU, "auto" where there is one
            (:mod:`policyrisk.simulation.cuda`).

        Returns
        -------
        Trajectories
            With the actions, and their probabilities where the policy has them
            (:mod:`policyrisk.simulation.spaces`).
        """
        now = self.as_starts(starts, "starts")
        most = as_count(max_steps, "max_steps", 1)
        if isinstance(policy, CompiledPolicy):
            data = Trajectories(
                *_engine(device).run(self.compiled(), self._as_table(policy), now, keys(seed), most)
            )
            return with_propensities(data, policy, policy.actions)
        if not callable(policy):
            raise InvalidInputError(
                f"policy must be one of ours or a function from states (n, {now.shape[1]}) to actions (n,), "
                f"got {policy!r}; pass for example UniformPolicy({self.actions})"
            )
        return self._run_callable(policy, now, seed, most)

    def returns(
        self,
        policy: CompiledPolicy,
        starts: object,
        episodes: int = 1,
        seed: Seed = None,
        max_steps: int = 10_000,
        discount: float = 1.0,
        device: Device = "cpu",
    ) -> Returns:
        """The sums Σ γ^t r_t of ``episodes`` episodes from each start, without their states.

        Rows i·episodes to (i + 1)·episodes − 1 belong to start i. With one episode each they are
        those of :meth:`rollout` with the same seed, in a fraction of the memory; ``device`` as there.
        """
        now = self.as_starts(starts, "starts")
        repeats = as_count(episodes, "episodes", 1)
        most = as_count(max_steps, "max_steps", 1)
        if not isinstance(policy, CompiledPolicy):
            raise InvalidInputError(
                f"policy must be a compiled one, got {type(policy).__name__}; "
                "use rollout(...).returns() for a policy that is a Python function"
            )
        gamma = as_number(discount, "discount", 0.0, 1.0, open_low=True)
        tables = self.compiled(), self._as_table(policy)
        returns: Returns = _engine(device).run_returns(*tables, now, repeats, keys(seed), most, gamma)
        return returns

    def _run_callable(
        self, policy: Callable[[Floats], Any], starts: Floats, seed: Seed, most: int
    ) -> Trajectories:
        streams = np.empty((len(starts), 2), np.uint64)
        start_streams(*keys(seed), 0, streams)
        now, live, recorder = starts, np.arange(len(starts)), EpisodeRecorder(len(starts))
        recorder.visit(live, starts.copy)
        for _ in range(most):
            if not live.size:
                break
            taken = self._decide(policy, now.copy(), streams)
            rewards, ended = self.act(now, taken[0], streams)
            recorder.earn(live, rewards, lambda taken=taken: taken)  # type: ignore[misc]
            recorder.visit(live, now.copy)
            recorder.terminated[live] = ended
            live, now, streams = live[~ended], now[~ended], streams[~ended]
        return recorder.trajectories()

    def _decide(
        self, policy: Callable[[Floats], Any], states: Floats, streams: Words
    ) -> tuple[Ints, Floats | None]:
        """The actions in the given states, and their probabilities if the policy tells them."""
        answer = policy(states)
        drawn = drawn_actions(answer, self.actions, streams)
        if drawn is not None:
            return drawn
        chosen = self.as_actions(answer, len(states), "policy(states)")
        return chosen, told_propensities(policy, states, chosen, self.actions)

    def _as_table(self, policy: CompiledPolicy) -> Any:
        if policy.actions > self.actions:
            raise MismatchError(
                f"policy must choose among the domain's {self.actions} actions, got one with "
                f"{policy.actions}; build another policy"
            )
        return policy.compiled()

    def as_actions(self, value: Any, n: int, name: str) -> Ints:
        """Checked actions (n,)."""
        return as_actions(value, name, as_count(n, "n"), self.actions)


@cache
def _earning(table: Any) -> Any:
    """The class of tables with the fields of a domain's own, and other kernels.

    A table inside a table is more than Numba's parallel loops take. The class is of no module that could be
    imported: its code is compiled in each process anew.
    """
    read, step = domain_kernels(table)
    made = namedtuple(f"Earning{table.__name__}", table._fields, module="earning")  # type: ignore[misc]

    @njit
    def read_earned(domain: Any, states: Floats, i: int) -> Any:
        return read(domain, states, i) + (states[i, states.shape[1] - 1],)  # noqa: RUF005

    @njit
    def step_earned(domain: Any, state: Any, action: int, s0: np.uint64, s1: np.uint64) -> Any:
        after, reward, ended, s0, s1 = step(domain, state[:-1], action, s0, s1)
        return after + (state[-1] + reward,), reward, ended, s0, s1  # noqa: RUF005

    register_domain(made, read_earned, step_earned)
    return made


class RewardSoFar(CompiledDomain):
    """A domain with R_<t, the sum of the rewards so far, as the last coordinate of its states.

    Criteria of risk have no optimality principle: a policy that sees what has been earned can be better than
    any that does not. Rewards, chance and episodes are the domain's; so are starts, with nothing earned.

    Parameters
    ----------
    domain
        A compiled domain.

    Examples
    --------
    >>> from policyrisk.domains import Portfolio
    >>> seeing = RewardSoFar(Portfolio())
    >>> always = lambda states: np.ones(len(states), dtype=int)
    >>> data = seeing.rollout(always, seeing.sample_starts(3), seed=0)
    >>> bool(np.allclose(data.states[data.final_rows, -1], data.returns()))
    True
    """

    def __init__(self, domain: CompiledDomain) -> None:
        if not isinstance(domain, CompiledDomain):
            raise InvalidInputError(
                f"domain must be a compiled one such as Portfolio(), got {type(domain).__name__}; an "
                "environment of Gymnasium sees its rewards in control.tasks.TimedEnvironment"
            )
        self.domain = domain
        self.actions = domain.actions

    def __repr__(self) -> str:
        return f"RewardSoFar({self.domain!r})"

    def compiled(self) -> Any:
        """The table for compiled code, see :mod:`policyrisk.simulation.compiled`."""
        own = self.domain.compiled()
        kind: Any = type(own)
        return _earning(kind)(*own)

    def sample_starts(self, n: int, seed: Seed = None) -> Floats:
        """The domain's own n starts, of shape (n, dim + 1): nothing is earned yet."""
        starts: Floats = self.domain.sample_starts(n, seed)
        return np.column_stack([starts, np.zeros(len(starts))])

    def act(self, states: Floats, actions: Ints, words: Words) -> tuple[Floats, Bools]:
        """One action for each row of ``states``, in place, each with its own stream: rewards, ended."""
        own = np.ascontiguousarray(states[:, :-1])
        rewards, ended = self.domain.act(own, actions, words)
        states[:, :-1] = own
        states[:, -1] += rewards
        return rewards, ended

    def as_starts(self, value: object, name: str) -> Floats:
        """Checked states (n, dim + 1), a copy."""
        given = as_floats(value, name, (None, None))
        return np.column_stack([self.domain.as_starts(given[:, :-1], name), given[:, -1]])
