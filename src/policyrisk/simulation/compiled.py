"""Compiled domains and policies: what they are, and how episodes of the two are run in parallel.

A domain or policy of ours is, for the compiler, a NamedTuple of numbers and arrays (its *table*) and
pure scalar kernels registered for that NamedTuple's class:

    read(domain, states, i)                  -> state                 row i as a tuple of floats
    step(domain, state, action, s0, s1)      -> state, reward, terminated, s0, s1
    choose(policy, state, s0, s1)            -> action, s0, s1

(s0, s1) is the state of a stream of :mod:`policyrisk._core.random`. The functions below are specialised for
each pair of classes. Unlike functions passed as arguments, classes have the same name in every process,
so that Numba's cache on disk can hold the specialised code.

The code for classes of this package is kept there. The code for other classes is compiled anew in each
process: whoever reads the cache's index imports every class that it names, and a process that cannot import
one of them could use none. (An index that names a class which is gone is such a case: whoever moves or
renames a table's class also moves ``_play`` in this file, since an index is named by the line.)

Episode i of a call draws from stream i of the call's key and from nothing else: neither the number of
threads nor the way in which the work is cut up changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from numba import njit, parallel_chunksize, prange
from numba.extending import overload

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.random import stream
from policyrisk.errors import InvalidInputError

_PACKAGE = __name__.partition(".")[0]

Words = npt.NDArray[np.uint64]
Actions = npt.NDArray[np.int32]  # as they are recorded on the way

Record = TypeVar("Record", bound="Episodes | Returns")

_BATCH = 1 << 14  # episodes in flight at once
_BLOCK = 1 << 20  # steps recorded in a round, over all episodes in flight
_SHORTEST = 64  # steps an episode may take in a round, at least
_ROWS = 512  # states a thread takes at a time; fewer do not outweigh the waking of threads
_CHUNK = 16  # episodes a thread takes at a time: their lengths differ widely


@runtime_checkable
class CompiledPolicy(Protocol):
    """A policy that compiled code can follow."""

    @property
    def actions(self) -> int:
        """The number of actions it chooses among."""

    def compiled(self) -> Any:
        """Its table: a NamedTuple whose class has a registered ``choose`` kernel."""


class Episodes(NamedTuple):
    """Recorded episodes, laid out as in :class:`policyrisk.data.Trajectories`."""

    states: Floats  # (sum(lengths) + episodes, dim)
    rewards: Floats  # (sum(lengths),)
    lengths: Ints  # (episodes,)
    terminated: Bools  # (episodes,)
    actions: Ints  # (sum(lengths),)


class Returns(NamedTuple):
    """What is left of episodes whose states were not recorded, in arrays of one shape."""

    returns: Floats  # the sum of each episode's discounted rewards
    lengths: Ints
    terminated: Bools  # False where the episode was cut off


# --- the three functions that every table has its own version of ------------------------------------

_READ: dict[type, Callable[..., Any]] = {}
_STEP: dict[type, Callable[..., Any]] = {}
_CHOOSE: dict[type, Callable[..., Any]] = {}


def register_domain(table: type, read_kernel: Callable[..., Any], step_kernel: Callable[..., Any]) -> None:
    """Give a domain's NamedTuple class its kernels."""
    _check_name(table)
    _READ[table] = read_kernel
    _STEP[table] = step_kernel


def domain_kernels(table: type) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The kernels ``read`` and ``step`` of a domain's NamedTuple class."""
    return _READ[table], _STEP[table]


def register_policy(table: type, choose_kernel: Callable[..., Any]) -> None:
    """Give a policy's NamedTuple class its kernel."""
    _check_name(table)
    _CHOOSE[table] = choose_kernel


def _check_name(table: type) -> None:
    """Numba's parallel loops tell the classes of tuples apart by their bare names."""
    for other in (*_STEP, *_CHOOSE):
        if other.__name__ == table.__name__ and other.__module__ != table.__module__:
            raise InvalidInputError(
                f"table must be a class with a name of its own, got {table.__module__}.{table.__name__} "
                f"beside {other.__module__}.{other.__name__}; rename it"
            )


def read(domain: Any, states: Floats, i: int) -> Any:
    """Row i of ``states`` as the domain's state; only for compiled code."""
    raise NotImplementedError


def step(domain: Any, state: Any, action: int, s0: np.uint64, s1: np.uint64) -> Any:
    """One action in the domain; only for compiled code."""
    raise NotImplementedError


def choose(policy: Any, state: Any, s0: np.uint64, s1: np.uint64) -> Any:
    """The policy's action; only for compiled code."""
    raise NotImplementedError


def _kernel(kernels: dict[type, Callable[..., Any]], table: Any) -> Callable[..., Any] | None:
    """The kernel for the Numba type of a table; None, a typing error for the caller, where there is none."""
    return kernels.get(getattr(table, "instance_class", type(None)))


@overload(read, strict=False, target="generic")
def _read(domain: Any, states: Any, i: Any) -> Any:
    kernel = _kernel(_READ, domain)
    return kernel and (lambda domain, states, i: kernel(domain, states, i))


@overload(step, strict=False, target="generic")
def _step(domain: Any, state: Any, action: Any, s0: Any, s1: Any) -> Any:
    kernel = _kernel(_STEP, domain)
    return kernel and (lambda domain, state, action, s0, s1: kernel(domain, state, action, s0, s1))


@overload(choose, strict=False, target="generic")
def _choose(policy: Any, state: Any, s0: Any, s1: Any) -> Any:
    kernel = _kernel(_CHOOSE, policy)
    return kernel and (lambda policy, state, s0, s1: kernel(policy, state, s0, s1))


# --- running episodes ------------------------------------------------------------------------------


def _act(domain: Any, states: Floats, actions: Ints, words: Words, rewards: Floats, ended: Bools) -> None:
    for i in range(states.shape[0]):
        state, rewards[i], ended[i], words[i, 0], words[i, 1] = step(
            domain, read(domain, states, i), actions[i], words[i, 0], words[i, 1]
        )
        for d in range(len(state)):
            states[i, d] = state[d]


# Kept on disk, and not.
_ACT = _act_few, _ = njit(cache=True)(_act), njit(_act)


@njit(cache=True, parallel=True)
def _act_many(
    domain: Any, states: Floats, actions: Ints, words: Words, rewards: Floats, ended: Bools
) -> None:
    for c in prange((states.shape[0] + _ROWS - 1) // _ROWS):
        part = slice(c * _ROWS, (c + 1) * _ROWS)
        _act_few(domain, states[part], actions[part], words[part], rewards[part], ended[part])


def act(domain: Any, states: Floats, actions: Ints, words: Words) -> tuple[Floats, Bools]:
    """One action for each row of ``states`` (n, dim), in place; ``words`` (n, 2) are the streams."""
    rewards, ended = np.empty(len(states)), np.empty(len(states), np.bool_)
    foreign = _foreign(domain)
    kernel = _ACT[foreign] if foreign or len(states) <= _ROWS else _act_many
    kernel(domain, states, actions, words, rewards, ended)
    return rewards, ended


def _foreign(*tables: Any) -> bool:
    """Whether one of the tables is of a class that is not this package's, whose code is not kept on disk."""
    return any(type(table).__module__.partition(".")[0] != _PACKAGE for table in tables)


@njit(cache=True)
def start_streams(key0: np.uint64, key1: np.uint64, first: int, out: Words) -> None:
    """Row i becomes the start of stream ``first + i``."""
    for i in range(out.shape[0]):
        out[i, 0], out[i, 1] = stream(key0, key1, first + i)


def _play(
    domain: Any,
    policy: Any,
    live: Ints,  # (m,) episodes that go on
    now: Floats,  # (n, dim) where each episode is
    words: Words,  # (n, 2) its stream
    most: int,  # steps
    discount: float,
    states: Floats,  # (m, most, dim) out: the states after each step; (0, 0, dim) if they are not recorded
    rewards: Floats,  # (m, most) out; (0, 0) likewise
    actions: Actions,  # (m, most) out; (0, 0) likewise
    returns: Floats,  # (m,) out: Σ γ^t r_t over the steps made here
    taken: Ints,  # (m,) out: steps made
    ended: Bools,  # (n,) out
) -> None:
    recorded = rewards.shape[0] > 0
    for a in prange(live.shape[0]):
        i = live[a]
        state = read(domain, now, i)
        s0 = words[i, 0]
        s1 = words[i, 1]
        t = 0
        total = 0.0
        weight = 1.0
        done = False
        while t < most and not done:
            action, s0, s1 = choose(policy, state, s0, s1)
            state, reward, done, s0, s1 = step(domain, state, action, s0, s1)
            if recorded:
                for d in range(len(state)):
                    states[a, t, d] = state[d]
                rewards[a, t] = reward
                actions[a, t] = action
            total += weight * reward
            weight *= discount
            t += 1
        for d in range(len(state)):
            now[i, d] = state[d]
        words[i, 0] = s0
        words[i, 1] = s1
        returns[a] = total
        taken[a] = t
        ended[i] = done


# Kept on disk, and not. One kernel for episodes with and without their states: each takes seconds to compile.
_PLAY = njit(cache=True, parallel=True)(_play), njit(parallel=True)(_play)


@njit(cache=True, parallel=True)
def _gather(
    live: Ints,
    taken: Ints,
    before: Ints,  # (n,) steps made before this round
    offsets: Ints,  # (n,) each episode's first reward
    states: Floats,
    rewards: Floats,
    actions: Actions,
    all_states: Floats,
    all_rewards: Floats,
    all_actions: Ints,
) -> None:
    # Entry by entry: the error that goes with assigning a slice takes seconds to compile.
    for a in prange(live.shape[0]):
        i = live[a]
        at = offsets[i] + before[i]
        for t in range(taken[a]):
            all_rewards[at + t] = rewards[a, t]
            all_actions[at + t] = actions[a, t]
        at += i + 1  # i final states of earlier episodes, and this one's start
        for t in range(taken[a]):
            for d in range(states.shape[2]):
                all_states[at + t, d] = states[a, t, d]


def run(
    domain: Any, policy: Any, starts: Floats, key: tuple[np.uint64, np.uint64], max_steps: int
) -> Episodes:
    """One recorded episode from each row of ``starts``, at most ``max_steps`` long."""
    parts = [
        _run_batch(domain, policy, starts[first : first + _BATCH], key, first, max_steps)
        for first in range(0, max(len(starts), 1), _BATCH)
    ]
    return joined(parts)


def joined(parts: Sequence[Record]) -> Record:
    """Several parts of a run, all of their columns, as one."""
    return parts[0] if len(parts) == 1 else type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))


def _run_batch(
    domain: Any,
    policy: Any,
    starts: Floats,
    key: tuple[np.uint64, np.uint64],
    first: int,
    max_steps: int,
) -> Episodes:
    n, dim = starts.shape
    now = starts.copy()
    words = np.empty((n, 2), np.uint64)
    start_streams(*key, first, words)
    lengths = np.zeros(n, np.int64)
    ended = np.zeros(n, np.bool_)
    live = np.arange(n)
    rounds = []
    steps = 0  # that every live episode has made
    while live.size and steps < max_steps:
        most = min(max(_BLOCK // live.size, _SHORTEST), max_steps - steps)
        states = np.empty((live.size, most, dim))
        rewards = np.empty((live.size, most))
        actions = np.empty((live.size, most), np.int32)
        recorded = states, rewards, actions
        _, taken = _advance(domain, policy, live, now, words, most, 1.0, *recorded, ended)
        rounds.append((live, taken, lengths.copy(), *recorded))
        lengths[live] += taken
        live = live[~ended[live]]
        steps += most
    offsets = np.cumsum(lengths) - lengths
    all_states = np.empty((int(lengths.sum()) + n, dim))
    all_rewards = np.empty(int(lengths.sum()))
    all_actions = np.empty(int(lengths.sum()), np.int64)
    all_states[offsets + np.arange(n)] = starts
    for live, taken, before, states, rewards, actions in rounds:
        out = all_states, all_rewards, all_actions
        _gather(live, taken, before, offsets, states, rewards, actions, *out)
    return Episodes(all_states, all_rewards, lengths, ended, all_actions)


def run_returns(
    domain: Any,
    policy: Any,
    starts: Floats,
    repeats: int,
    key: tuple[np.uint64, np.uint64],
    max_steps: int,
    discount: float,
) -> Returns:
    """``repeats`` episodes from each row of ``starts`` in turn, of which only the sums are kept."""
    n, dim = len(starts) * repeats, starts.shape[1]
    now = np.repeat(starts, repeats, axis=0)
    words = np.empty((n, 2), np.uint64)
    start_streams(*key, 0, words)
    ended = np.empty(n, np.bool_)
    nothing = np.empty((0, 0, dim)), np.empty((0, 0)), np.empty((0, 0), np.int32)
    sums = _advance(domain, policy, np.arange(n), now, words, max_steps, discount, *nothing, ended)
    return Returns(*sums, ended)


def _advance(
    domain: Any,
    policy: Any,
    live: Ints,
    now: Floats,
    words: Words,
    most: int,
    discount: float,
    states: Floats,
    rewards: Floats,
    actions: Actions,
    ended: Bools,
) -> tuple[Floats, Ints]:
    """:func:`_play` for the live episodes: their returns (m,) and steps (m,)."""
    play = _PLAY[_foreign(domain, policy)]
    returns, taken = np.empty(live.size), np.empty(live.size, np.int64)
    with parallel_chunksize(_CHUNK):
        play(
            domain, policy, live, now, words, most, discount, states, rewards, actions, returns, taken, ended
        )
    return returns, taken
