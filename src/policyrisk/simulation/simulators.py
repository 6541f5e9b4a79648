"""What can be simulated from given states, and how a block of episodes is run on each kind.

    a compiled domain   returns(policy, starts, episodes, seed, max_steps, discount): only sums of rewards
    any domain          rollout(policy, starts, seed, max_steps): Trajectories; policy a function of states
    a MarkovChain       policy is None: it is part of the chain
    Gymnasium           an environment that reset(options={"state": ...}) puts into a state; policy a function
                        of one observation, or of all of them for a vector environment, or an object with
                        predict(observations, deterministic=True)

A runner turns rows of states and a seed into :class:`Returns`. All random numbers of a block come from its
seed, so that a block can be run again, alone, with the same result. With Gymnasium this requires a policy
that depends on its observation alone, and an environment that depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, Ints, as_array, as_states
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.markov import MarkovChain
from policyrisk.simulation.compiled import CompiledPolicy, Returns
from policyrisk.simulation.environments import as_reset, as_step
from policyrisk.simulation.lanes import ReturnRecorder, VectorLanes, run_lanes
from policyrisk.simulation.spaces import as_policy, ask, check_single

# A block's episodes are lost with it: even if all are cut off it should last a few seconds at most, and fit
# into memory where steps are recorded.
_SUMMED, _RECORDED = 1 << 25, 1 << 22  # steps in a block, at most
_MANY, _FEW = 8192, 8  # episodes in a block, at most: compiled, and in a Python loop
_LARGEST = 1e75  # a return: its fourth power is a number still
_TRIED = 8  # states that are tried before an environment is believed to honour options["state"]


@dataclass(frozen=True, eq=False)
class Runner:
    """A simulator, its policy and the states, ready to run blocks of episodes."""

    simulator: Any
    policy: Any
    states: npt.NDArray[Any]  # (n, …)
    discount: float
    max_steps: int
    kind: Callable[[Runner, slice, int, np.random.SeedSequence], Any]  # one of the functions below
    most: int  # episodes in a block
    together: bool  # whether a block may hold several states

    def run(self, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Returns:
        """``episodes`` episodes from each state of ``rows``, checked, in arrays (states, episodes)."""
        return self.checked(self.kind(self, rows, episodes, seed), rows, episodes)

    def checked(self, out: Any, rows: slice, episodes: int) -> Returns:
        """What a simulator gave for ``episodes`` episodes from each state of ``rows``."""
        shape = rows.stop - rows.start, episodes
        found = Returns(
            np.asarray(out.returns, dtype=np.float64),
            np.asarray(out.lengths, dtype=np.int64),
            np.asarray(out.terminated, dtype=np.bool_),
        )
        for name, column in found._asdict().items():
            if column.shape != (shape[0] * shape[1],):
                raise InvalidInputError(
                    f"simulator must give {shape[0] * shape[1]} {name}, one per episode, got shape "
                    f"{column.shape}; correct its returns() or rollout()"
                )
        wrong = np.flatnonzero(~(np.abs(found.returns) < _LARGEST))
        if wrong.size:
            raise InvalidInputError(
                f"simulator must give finite rewards, got a return of {found.returns[wrong[0]]} from state "
                f"number {rows.start + wrong[0] // episodes}; correct its rewards, or rescale them"
            )
        return Returns(*(column.reshape(shape) for column in found))


def _summed(runner: Runner, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Any:
    """By ``returns``."""
    return runner.simulator.returns(
        runner.policy,
        runner.states[rows],
        episodes=episodes,
        seed=seed,
        max_steps=runner.max_steps,
        discount=runner.discount,
    )


def _recorded(runner: Runner, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Returns:
    """By ``rollout``, for policies that are Python functions."""
    starts = np.repeat(runner.states[rows], episodes, axis=0)
    data = runner.simulator.rollout(runner.policy, starts, seed=seed, max_steps=runner.max_steps)
    return Returns(data.returns(runner.discount), data.lengths, data.terminated)


def _sampled(runner: Runner, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Returns:
    """A chain, from one state."""
    data = runner.simulator.sample(int(runner.states[rows.start]), episodes, seed, runner.max_steps)
    return Returns(data.returns(runner.discount), data.lengths, data.terminated)


def _stepped(runner: Runner, rows: slice, episodes: int, seed: np.random.SeedSequence) -> Returns:
    """A Gymnasium environment, from one state, an episode after the other."""
    env, policy, state = runner.simulator, runner.policy, runner.states[rows.start]
    space = getattr(env, "action_space", None)
    out = Returns(np.zeros(episodes), np.zeros(episodes, np.int64), np.zeros(episodes, np.bool_))
    for k, word in enumerate(seed.generate_state(episodes, np.uint32).tolist()):
        observation = as_reset(env.reset(seed=word, options={"state": state.copy()}))
        total, weight, length, ended, cut = 0.0, 1.0, 0, False, False
        while length < runner.max_steps and not (ended or cut):
            action = check_single(ask(policy, observation, batch=False), space)
            observation, reward, ended, cut = as_step(env.step(action))
            total += weight * reward
            weight *= runner.discount
            length += 1
        out.returns[k], out.lengths[k], out.terminated[k] = total, length, ended
    return out


def _stepped_together(
    runner: Runner, rows: slice, episodes: int, seed: np.random.SeedSequence
) -> ReturnRecorder:
    """A Gymnasium vector environment: all its parts from one state, each until its first end."""
    env, word = runner.simulator, int(seed.generate_state(1, np.uint32)[0])
    first = {"seed": word, "options": {"state": runner.states[rows.start].copy()}}
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    lanes = VectorLanes(env, lambda observations, _: (ask(runner.policy, observations), None), mode, first)
    return run_lanes(lanes, episodes, ReturnRecorder(episodes, runner.discount), runner.max_steps)


def as_runner(simulator: object, policy: object, states: object, discount: float, max_steps: int) -> Runner:
    """The runner for a simulator of any kind, with everything checked that can be before the first step."""
    rows = as_states(states)
    summed, recorded = (min(max(steps // max_steps, 1), _MANY) for steps in (_SUMMED, _RECORDED))
    if isinstance(simulator, MarkovChain):
        indices = _chain_states(simulator, policy, rows, discount)
        return Runner(simulator, None, indices, discount, max_steps, _sampled, recorded, together=False)
    if hasattr(simulator, "as_starts"):
        simulator.as_starts(rows, "states")
    records = hasattr(simulator, "rollout")
    sums = hasattr(simulator, "returns") and not isinstance(simulator, Trajectories)
    if sums and (isinstance(policy, CompiledPolicy) or not records):
        return Runner(simulator, policy, rows, discount, max_steps, _summed, summed, together=True)
    if records:
        return Runner(simulator, policy, rows, discount, max_steps, _recorded, recorded, together=True)
    if not (hasattr(simulator, "reset") and hasattr(simulator, "step")):
        raise InvalidInputError(
            "simulator must be a domain with returns() or rollout(), a MarkovChain, or a Gymnasium "
            f"environment with reset() and step(), got {type(simulator).__name__}; pass one of these"
        )
    if not (callable(policy) or callable(getattr(policy, "predict", None))):
        raise InvalidInputError(
            "policy must be a function from an observation to an action for a Gymnasium environment, got "
            f"{type(policy).__name__}; pass for example lambda observation: 0"
        )
    policy = as_policy(policy)
    given = as_array(states, "states", "numbers of shape (n, dim)")
    _check_honoured(simulator, given)
    kind, most = (
        (_stepped_together, int(simulator.num_envs)) if hasattr(simulator, "num_envs") else (_stepped, _FEW)
    )
    return Runner(simulator, policy, given, discount, max_steps, kind, most, together=False)


def _chain_states(chain: MarkovChain, policy: object, rows: Floats, discount: float) -> Ints:
    """The indices of a chain's states, and a policy and a discount that fit the chain."""
    if policy is not None:
        raise InvalidInputError(
            f"policy must be None for a MarkovChain, got {type(policy).__name__}; its policy is part of it, "
            "see MarkovChain.from_mdp"
        )
    own = chain.one_discount("a simulation of returns")
    if discount != own:
        raise MismatchError(f"discount must be the chain's, {own:g}, got {discount:g}; pass discount={own:g}")
    states = rows.ravel()
    wrong = np.flatnonzero((states != np.floor(states)) | (states < 0) | (states >= chain.n))
    if rows.shape[1] != 1 or wrong.size:
        got = f"{states[wrong[0]]:g} in row {wrong[0]}" if rows.shape[1] == 1 else f"shape {rows.shape}"
        raise InvalidInputError(
            f"states must be indices of the chain's states, from 0 to {chain.n - 1}, got {got}; "
            "pass whole numbers of shape (n,)"
        )
    return states.astype(np.int64)


def _check_honoured(env: Any, states: npt.NDArray[Any]) -> None:
    """Raise where an environment starts as if it had not been given a state at all.

    Many ignore options that they do not know, and their answers would look like any other. One of the first
    few states must make a difference to the first observation, or be that observation.
    """
    for state in states[:_TRIED]:
        free = as_reset(env.reset(seed=0, options=None))
        put = as_reset(env.reset(seed=0, options={"state": state.copy()}))
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
