"""Rollouts and Monte Carlo on a cluster.

All that is random in episode k of a rollout, and in the block of Monte Carlo that begins with episode k of
state i, comes from the seed and these numbers alone. Whoever runs them gets the same bits, and so does
whoever runs them again after a worker died.
"""

from __future__ import annotations

import inspect
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from policyrisk._core.arrays import Floats, Seed, as_count
from policyrisk._core.imports import check_installed
from policyrisk._core.keywords import hinting, taking
from policyrisk._core.progress import ProgressBar
from policyrisk.data import Trajectories
from policyrisk.data.spaces import Project, as_project
from policyrisk.distributed import session
from policyrisk.distributed.reduce import Shard, evenly
from policyrisk.errors import InvalidInputError
from policyrisk.returns import MonteCarlo
from policyrisk.returns.monte_carlo import Block, Key, run_here
from policyrisk.returns.monte_carlo import monte_carlo as _monte_carlo
from policyrisk.simulation import register
from policyrisk.simulation.environments import as_trained, is_vec_env
from policyrisk.simulation.rollouts import make_environments, run_episodes, seed_key
from policyrisk.simulation.simulators import Runner
from policyrisk.simulation.spaces import as_policy

SHARDS = 64  # of a rollout, or twice the workers where these are more
_RUNS = 32  # tasks for each worker that Monte Carlo is cut into, about
_OPTIONS = [
    each
    for each in inspect.signature(_monte_carlo).parameters.values()
    if each.kind is each.KEYWORD_ONLY and each.name not in ("device", "run")
]


@dataclass(frozen=True, eq=False)
class RemoteEpisodes:
    """Simulated episodes that stay on the workers: for :func:`fit`, to iterate over, or to ``load()``.

    They are gone when Ray ends. What is lost with a machine before that is simulated again.
    """

    shards: tuple[Shard, ...]
    episodes: int

    def __iter__(self) -> Iterator[Trajectories]:
        for shard in self.shards:
            found: Trajectories = session.get(shard.source, shard.name)
            yield found

    def load(self) -> Trajectories:
        """All episodes, in this process' memory, ordered by their number."""
        return Trajectories.concatenate(self)


@dataclass(frozen=True)
class _Simulation:
    """What a worker needs to know to run any of the episodes."""

    env: Any
    env_kwargs: dict[str, Any]
    policy: Any
    project: Project
    num_envs: int | None
    max_steps: int | None
    key: tuple[int, int]
    deterministic: bool


class _Kept:
    """What a worker keeps from one task to the next, as long as they belong to the same run."""

    def __init__(self) -> None:
        self.run, self.value, self.stack = "", None, ExitStack()

    def get(self, run: str, make: Callable[[ExitStack], Any]) -> Any:
        """What ``make`` made for this run; what is to be closed later goes onto the stack."""
        if self.run != run:
            self.drop()
            self.value = make(self.stack)
            self.run = run
        return self.value

    def drop(self) -> None:
        """Close what is kept."""
        self.run, self.value = "", None
        self.stack.close()


_kept = _Kept()


def rollout(
    env: Any,
    policy: object,
    episodes: int = 1000,
    seed: Seed = None,
    *,
    num_envs: int | None = None,
    project: Project = None,
    max_steps: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    deterministic: bool = True,
) -> RemoteEpisodes:
    """The episodes of :func:`policyrisk.rollout`, run by all workers, and left where they were run.

    For the same seed the episodes are the same, bit for bit, for any number of workers. Where Ray does not
    run yet, it is started and stays until this process ends, since the episodes are there.

    Parameters
    ----------
    env
        An id, a spec or a function that makes an environment: every worker makes its own.
    policy
        It goes to every worker. Randomness of its own would be the same on each of them: it must have none,
        unless it has a method ``spawn(k)`` that returns a policy with randomness of its own for episode k.
    num_envs
        How many environments each worker steps side by side, by default up to 16.
    episodes, seed, project, max_steps, env_kwargs, deterministic
        As of :func:`policyrisk.rollout`.

    Returns
    -------
    RemoteEpisodes
        For :func:`fit`, to iterate over, or to ``load()``.
    """
    check_installed("gymnasium", "rollout")
    import gymnasium as gym

    register()
    as_policy(policy, deterministic)
    count = as_count(episodes, "episodes", 1)
    simulation = _Simulation(
        env=_spec(env),
        env_kwargs=dict(env_kwargs or {}),
        policy=policy,
        project=as_project(project),
        num_envs=None if num_envs is None else as_count(num_envs, "num_envs", 1),
        max_steps=None if max_steps is None else as_count(max_steps, "max_steps", 1),
        key=seed_key(seed),
        deterministic=deterministic,
    )
    if isinstance(env, gym.Env | gym.vector.VectorEnv) or is_vec_env(env):
        raise InvalidInputError(
            f"env must be an id, a spec or a function that makes an environment, so that each worker has its "
            f"own, got {env}; pass one of these"
        )
    if not session.running():
        session.start()
    sent, run = session.put(simulation, "env, policy and project"), uuid.uuid4().hex
    task = session.task(_run_episodes, returns=2)
    waiting = deque(evenly(count, max(SHARDS, 2 * session.workers())))
    shards: list[Shard] = []
    running: dict[Any, int] = {}  # and how many episodes
    with ProgressBar("episodes", count) as bar:
        while waiting or running:
            while waiting and len(running) < 2 * session.workers():
                first, end = waiting.popleft()
                data, done = task.remote([sent], run, range(first, end))
                shards.append(Shard(f"episodes {first} to {end - 1}", data))
                running[done] = end - first
            over = session.first_done(running)
            bar.advance(running.pop(over))
            session.get(over, "the rollout of some episodes")
    return RemoteEpisodes(tuple(shards), count)


def _spec(env: Any) -> Any:
    """The spec of an id, which the workers need not know."""
    import gymnasium as gym

    try:
        return gym.spec(env) if isinstance(env, str) else env
    except (gym.error.Error, ImportError):
        return env  # make_environments says what is wrong


def _run_episodes(sent: list[Any], run: str, numbers: range) -> tuple[Trajectories, bool]:
    """On a worker: the episodes of these numbers, and, apart from them, that they are there."""

    def make(stack: ExitStack) -> tuple[_Simulation, list[Any]]:
        simulation: _Simulation = session.load().get(sent[0])
        envs, _ = make_environments(simulation.env, len(numbers), simulation.num_envs, simulation.env_kwargs)
        for env in envs:
            stack.callback(env.close)
        return simulation, envs

    simulation, envs = _kept.get(run, make)
    choose = as_trained(simulation.policy, as_policy(simulation.policy, simulation.deterministic))
    try:
        data = run_episodes(envs, choose, numbers, simulation.key, simulation.project, simulation.max_steps)
    except BaseException:
        _kept.drop()  # in the middle of an episode
        raise
    return data, True


@hinting
@taking(*_OPTIONS)
def monte_carlo(
    simulator: object, policy: object, states: object, episodes: int = 500, seed: Seed = None, **how: Any
) -> MonteCarlo:
    """:func:`policyrisk.monte_carlo` by all workers, with the same bits.

    The simulator and the policy are sent to the workers. Checkpoints are the driver's, and go on there or
    without a cluster.

    Parameters
    ----------
    simulator, policy, states, episodes, seed, discount, max_steps, checkpoint, resume, progress
        As of :func:`policyrisk.monte_carlo`.

    Returns
    -------
    MonteCarlo
        Mean, variance and std at each state, with standard errors.
    """
    with session.cluster():
        return _monte_carlo(simulator, policy, states, episodes, seed, **how, run=_run_blocks)


def _run_blocks(runner: Runner, blocks: Sequence[Block], key: Key) -> Iterator[Floats]:
    """The blocks' tables in order, some blocks to a task."""
    sent, run, task = session.put(runner, "simulator and policy"), uuid.uuid4().hex, session.task(_run_some)
    workers = session.workers()
    some = -(-len(blocks) // (_RUNS * workers))
    waiting = deque(blocks[first : first + some] for first in range(0, len(blocks), some or 1))
    running: deque[Any] = deque()
    while waiting or running:
        while waiting and len(running) < 4 * workers:
            running.append(task.remote([sent], run, waiting.popleft(), key))
        yield from session.get(running.popleft(), "a block of episodes")


def _run_some(sent: list[Any], run: str, blocks: Sequence[Block], key: Key) -> list[Floats]:
    """On a worker: the tables of some blocks."""
    runner = _kept.get(run, lambda stack: session.load().get(sent[0]))
    return list(run_here(runner, blocks, key))
