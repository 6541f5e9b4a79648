"""What Monte Carlo can simulate, and how a block of episodes is run on each kind.

    a compiled domain   returns(policy, starts, episodes, seed, max_steps, discount): only sums of rewards
    any domain          rollout(policy, starts, seed, max_steps): Trajectories; policy a function of states
    a MarkovChain       policy is None: it is part of the chain
    Gymnasium           an environment that reset(options={"state": ...}) puts into a state; policy a function
                        of one observation, or of all of them for a vector environment

A runner turns rows of states and a seed into a :class:`Batch`. Everything random about a block comes from
the seed it is given, so that a block can be run again, alone, with the same result. For Gymnasium that holds
as far as the policy is a function of its observation and the environment of its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints, as_states
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.markov import MarkovChain
from policyrisk.montecarlo.sums import Batch
from policyrisk.simulation.compiled import CompiledPolicy
from policyrisk.trajectories import Trajectories

# A block's episodes are lost with it: even if all are cut off it should last a few seconds at most, and fit
# into memory where steps are recorded.
_SUMMED, _RECORDED = 1 << 25, 1 << 22  # steps in a block, at most
_MANY, _FEW = 8192, 8  # episodes in a block, at most: compiled, and in a Python loop
_TRIED = 8  # states that are tried before an environment is believed to honour options["state"]


@runtime_checkable
class ReturnsSimulator(Protocol):
    """A domain that runs a policy and keeps only the sums of rewards."""

    def returns(
        self, policy: Any, starts: Any, episodes: int, seed: Any, max_steps: int, discount: float
    ) -> Any:
        """Anything with ``returns``, ``lengths`` and ``terminated``, the episodes of each start in turn."""


@runtime_checkable
class RolloutSimulator(Protocol):
    """A domain that runs a policy and records an episode from each start."""

    def rollout(self, policy: Any, starts: Any, seed: Any, max_steps: int) -> Trajectories:
        """An episode from each row of ``starts``."""


@runtime_checkable
class Environment(Protocol):
    """Gymnasium's contract, as far as it is used here."""

    def reset(self, *, seed: Any, options: Any) -> tuple[Any, Any]:
        """The first observation of a new episode."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Observation, reward, terminated, truncated and a record."""


@runtime_checkable
class VectorEnvironment(Environment, Protocol):
    """Many environments at once."""

    @property
    def num_envs(self) -> int:
        """How many."""


class Runner(Protocol):
    """A simulator, its policy and the states, ready to run blocks."""

    most: int  # episodes in a block
    together: bool  # whether a block may hold several states

    def run(self, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Batch:
        """So many episodes from each of these states."""


class SummedRunner:
    """Runs ``returns``."""

    together = True

    def __init__(
        self, simulator: ReturnsSimulator, policy: object, states: Floats, discount: float, max_steps: int
    ) -> None:
        self.simulator, self.policy, self.states = simulator, policy, states
        self.discount, self.max_steps = discount, max_steps
        self.most = _episodes(_SUMMED, max_steps)

    def run(self, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Batch:
        """So many episodes from each of these states."""
        out = self.simulator.returns(
            self.policy,
            self.states[rows],
            episodes=episodes,
            seed=seed,
            max_steps=self.max_steps,
            discount=self.discount,
        )
        return _as_batch(out.returns, out.lengths, out.terminated, rows, episodes)


class RecordedRunner:
    """Runs ``rollout``, for policies that are Python functions."""

    together = True

    def __init__(
        self, simulator: RolloutSimulator, policy: object, states: Floats, discount: float, max_steps: int
    ) -> None:
        self.simulator, self.policy, self.states = simulator, policy, states
        self.discount, self.max_steps = discount, max_steps
        self.most = _episodes(_RECORDED, max_steps)

    def run(self, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Batch:
        """So many episodes from each of these states."""
        starts = np.repeat(self.states[rows], episodes, axis=0)
        data = self.simulator.rollout(self.policy, starts, seed=seed, max_steps=self.max_steps)
        return _as_batch(data.returns(self.discount), data.lengths, data.terminated, rows, episodes)


class ChainRunner:
    """Samples a chain, a state at a time."""

    together = False

    def __init__(self, chain: MarkovChain, states: Ints, max_steps: int) -> None:
        self.chain, self.states, self.max_steps = chain, states, max_steps
        self.most = _episodes(_RECORDED, max_steps)

    def run(self, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Batch:
        """So many episodes from this one state."""
        data = self.chain.sample(int(self.states[rows.start]), episodes, seed, self.max_steps)
        return _as_batch(data.returns(self.chain.discount), data.lengths, data.terminated, rows, episodes)


class LoopedRunner:
    """Steps a Gymnasium environment, an episode at a time."""

    most, together = _FEW, False

    def __init__(
        self,
        env: Environment,
        policy: Callable[[Any], Any],
        states: npt.NDArray[Any],
        discount: float,
        max_steps: int,
    ) -> None:
        self.env, self.policy, self.states = env, policy, states
        self.discount, self.max_steps = discount, max_steps

    def run(self, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Batch:
        """So many episodes from this one state."""
        state = self.states[rows.start]
        ran = [self._episode(state, int(word)) for word in seed.generate_state(episodes, np.uint32)]
        returns, lengths, terminated = zip(*ran, strict=True)
        return _as_batch(returns, lengths, terminated, rows, episodes)

    def _episode(self, state: Any, seed: int) -> tuple[float, int, bool]:
        observation, _ = self.env.reset(seed=seed, options={"state": state.copy()})
        total, weight, length, ended, stopped = 0.0, 1.0, 0, False, False
        while length < self.max_steps and not (ended or stopped):
            observation, reward, ended, stopped, _ = self.env.step(self.policy(observation))
            total += weight * float(reward)
            weight *= self.discount
            length += 1
        return total, length, bool(ended)


class VectorRunner:
    """Steps a Gymnasium vector environment: all its parts from one state, each until its first end."""

    together = False

    def __init__(
        self,
        env: VectorEnvironment,
        policy: Callable[[Any], Any],
        states: npt.NDArray[Any],
        discount: float,
        max_steps: int,
    ) -> None:
        self.env, self.policy, self.states = env, policy, states
        self.discount, self.max_steps = discount, max_steps
        self.most = int(env.num_envs)

    def run(self, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Batch:
        """So many episodes from this one state."""
        word = int(seed.generate_state(1, np.uint32)[0])
        observations, _ = self.env.reset(seed=word, options={"state": self.states[rows.start].copy()})
        returns, lengths = np.zeros(self.most), np.zeros(self.most, dtype=np.int64)
        terminated = np.zeros(self.most, dtype=np.bool_)
        live = np.arange(self.most) < episodes
        weight = 1.0
        for _ in range(self.max_steps):
            observations, rewards, ended, stopped, _ = self.env.step(self.policy(observations))
            returns[live] += weight * np.asarray(rewards, dtype=np.float64)[live]
            lengths[live] += 1
            terminated |= live & np.asarray(ended)
            weight *= self.discount
            live &= ~(np.asarray(ended) | np.asarray(stopped))
            if not live.any():
                break
        return _as_batch(returns[:episodes], lengths[:episodes], terminated[:episodes], rows, episodes)


def _episodes(steps: int, max_steps: int) -> int:
    """How many episodes a block of so many steps has room for."""
    return min(max(steps // max_steps, 1), _MANY)


def as_runner(simulator: object, policy: object, states: object, discount: float, max_steps: int) -> Runner:
    """The runner for a simulator of any kind, with everything checked that can be before the first step."""
    rows = as_states(states)
    if isinstance(simulator, MarkovChain):
        return _chain_runner(simulator, policy, rows, discount, max_steps)
    if hasattr(simulator, "as_starts"):
        simulator.as_starts(rows, "states")
    records = isinstance(simulator, RolloutSimulator)
    if isinstance(simulator, ReturnsSimulator) and (isinstance(policy, CompiledPolicy) or not records):
        return SummedRunner(simulator, policy, rows, discount, max_steps)
    if isinstance(simulator, RolloutSimulator):
        return RecordedRunner(simulator, policy, rows, discount, max_steps)
    if not isinstance(simulator, Environment):
        raise InvalidInputError(
            "simulator must be a domain with returns() or rollout(), a MarkovChain, or a Gymnasium "
            f"environment with reset() and step(), got {type(simulator).__name__}; pass one of these"
        )
    if not callable(policy):
        raise InvalidInputError(
            "policy must be a function from an observation to an action for a Gymnasium environment, got "
            f"{type(policy).__name__}; pass for example lambda observation: 0"
        )
    given = np.asarray(states)
    _check_honoured(simulator, given)
    if isinstance(simulator, VectorEnvironment):
        return VectorRunner(simulator, policy, given, discount, max_steps)
    return LoopedRunner(simulator, policy, given, discount, max_steps)


def _chain_runner(
    chain: MarkovChain, policy: object, rows: Floats, discount: float, max_steps: int
) -> ChainRunner:
    if policy is not None:
        raise InvalidInputError(
            f"policy must be None for a MarkovChain, got {type(policy).__name__}; its policy is part of it, "
            "see MarkovChain.from_mdp"
        )
    if discount != chain.discount:
        raise MismatchError(
            f"discount must be the chain's, {chain.discount:g}, got {discount:g}; "
            f"pass discount={chain.discount:g}"
        )
    states = rows.ravel()
    wrong = np.flatnonzero((states != np.floor(states)) | (states < 0) | (states >= chain.n))
    if rows.shape[1] != 1 or wrong.size:
        got = f"{states[wrong[0]]:g} in row {wrong[0]}" if rows.shape[1] == 1 else f"shape {rows.shape}"
        raise InvalidInputError(
            f"states must be indices of the chain's states, from 0 to {chain.n - 1}, got {got}; "
            "pass whole numbers of shape (n,)"
        )
    return ChainRunner(chain, states.astype(np.int64), max_steps)


def _check_honoured(env: Environment, states: npt.NDArray[Any]) -> None:
    """Raise where an environment starts as if it had not been given a state at all.

    Many ignore options that they do not know, and their answers would look like any other. One of the first
    few states must make a difference to the first observation, or be that observation.
    """
    for state in states[:_TRIED]:
        free, _ = env.reset(seed=0, options=None)
        put, _ = env.reset(seed=0, options={"state": state.copy()})
        if not _alike(free, put) or _alike(put, state):
            return
    if len(states):
        raise InvalidInputError(
            'simulator must start where reset(options={"state": ...}) says, got an environment that starts '
            "alike with and without; give its reset that option (a wrapper around it will do)"
        )


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_alike(*pair) for pair in zip(a, b, strict=True))
    return np.array_equal(a, b)


def _as_batch(returns: Any, lengths: Any, terminated: Any, rows: slice, episodes: int) -> Batch:
    """What a simulator gave, checked, as a batch."""
    shape = (rows.stop - rows.start, episodes)
    columns = [
        np.asarray(column, dtype=dtype)
        for column, dtype in ((returns, np.float64), (lengths, np.int64), (terminated, np.bool_))
    ]
    for name, column in zip(Batch._fields, columns, strict=True):
        if column.shape != (shape[0] * shape[1],):
            raise InvalidInputError(
                f"simulator must give {shape[0] * shape[1]} {name}, one per episode, got shape "
                f"{column.shape}; correct its returns() or rollout()"
            )
    wrong = np.flatnonzero(~np.isfinite(columns[0]))
    if wrong.size:
        raise InvalidInputError(
            f"simulator must give finite rewards, got a return of {columns[0][wrong[0]]} from state number "
            f"{rows.start + wrong[0] // episodes}; correct its rewards"
        )
    return Batch(*(column.reshape(shape) for column in columns))
