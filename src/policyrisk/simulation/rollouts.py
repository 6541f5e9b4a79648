"""Episodes of a policy in any Gymnasium environment.

Bias. The first N episodes to finish, of many that run side by side, are too short on average: long ones are
still under way when the counting stops. Here the episodes are numbered 0, …, N − 1 beforehand, and each of
them is run to its end.

Randomness. Episode k begins with ``env.reset(seed=s_k)``, where s_k is the first word of the k-th child of
the seed (SeedSequence's spawn key). What happens in it depends on the seed and on k, so that the same seed
gives the same episodes for any number of environments, and any part of them can be run elsewhere, as far as
the policy has no randomness of its own and answers each observation alike whatever the others of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from policyrisk._core.arrays import Seed, as_count, check_kind
from policyrisk._core.imports import check_installed
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import keys, stream
from policyrisk.data import Trajectories
from policyrisk.data.spaces import Project, as_project, coordinate_names, names_of_parts
from policyrisk.errors import InvalidInputError
from policyrisk.simulation import register
from policyrisk.simulation.environments import (
    GymnasiumForm,
    as_reset,
    as_trained,
    is_vec_env,
    without_normalisation,
)
from policyrisk.simulation.lanes import EpisodeRecorder, SingleLanes, VectorLanes, run_lanes
from policyrisk.simulation.spaces import Choose, as_policy, decide

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import AutoresetMode, VectorEnv

    # Or a VecEnv of Stable-Baselines3.
    Environment: TypeAlias = (
        str | EnvSpec | gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | Callable[..., gym.Env[Any, Any]] | Any
    )

_SIDE_BY_SIDE = 16


def rollout(
    env: Environment,
    policy: object,
    episodes: int = 1000,
    seed: Seed = None,
    *,
    num_envs: int | None = None,
    project: Project = None,
    max_steps: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    deterministic: bool = True,
) -> Trajectories:
    """Run a policy for ``episodes`` episodes and record them, ordered by their number.

    An episode that both terminates and is truncated has terminated. The observation that an episode ended in
    is its last state. The coordinates have the environment's names for them
    (:mod:`policyrisk.data.spaces`) where there is no project: ``data.coordinates``.

    The actions are recorded, except those of Dict and Tuple spaces: Discrete ones as whole numbers, others as
    coordinates (transitions, k).

    Parameters
    ----------
    env
        An id or spec for ``gymnasium.make``; a function that makes an environment; one environment; or a
        vector environment. With autoreset disabled, a vector environment's episodes are seeded like others;
        with autoreset, the first is seeded and the others follow on, and environment i of n runs episodes i,
        i + n, i + 2n, … (so that the result is unbiased, but depends on n). A VecEnv of Stable-Baselines3
        works as well: inside of VecNormalize, the policy gets the observations that VecNormalize scales, by
        averages that no longer change, and states and rewards are recorded as they were before.
    policy
        A function from n observations to n actions, or an object with ``predict(observations,
        deterministic=True)`` that returns (actions, None), as Stable-Baselines3's models have; a model that
        was trained inside of VecNormalize, and still has it, gets scaled observations everywhere.
        Observations are an array (n, dim), for Discrete ones (n,), for Dict and Tuple ones a dict or tuple of
        arrays with n in front; n is at most ``num_envs`` and falls as the last episodes end. Discrete actions
        are n whole numbers, Box actions of shape (a,) an array (n, a).

        For Discrete actions the policy may return probabilities (n, actions): the actions are then drawn
        here, each episode from a stream of its own, and recorded with their propensities. A policy that draws
        its actions itself may have a method ``probabilities(observations)``, (n, actions), for the same
        purpose. One with randomness of its own may have a method ``spawn(k)``: episode k is then played by
        what that returns, alone, and does not depend on ``num_envs``.
    episodes
        How many.
    seed
        Of the environments and of the actions drawn here.
    num_envs
        How many environments are stepped side by side where ``env`` makes them; by default up to 16.
    project
        A function from a batch of observations to the recorded states, (n, dim) or (n,): needed for Tuple
        observations and for images, and free to pick coordinates of others. By default arrays are flattened,
        the parts of a Dict stand side by side, and Discrete observations stay whole numbers.
    max_steps
        Cuts off longer episodes, in addition to the environment's own limit. Without either, an episode
        without an end runs until it is interrupted.
    env_kwargs
        For ``gymnasium.make``, or for the function that makes an environment.
    deterministic
        False draws the actions of an object with ``predict``: those of a Stable-Baselines3 model, where they
        are Discrete, are drawn here from its probabilities, and others by itself, whatever ``seed`` is.

    Returns
    -------
    Trajectories
        The episodes, with their actions.

    Examples
    --------
    >>> import numpy as np
    >>> data = rollout("CartPole-v1", lambda x: x[:, 2] + 0.3 * x[:, 3] > 0, episodes=20, seed=1)
    >>> data
    Trajectories(20 episodes, ... terminated, ... transitions, dim 4, actions)
    >>> data.coordinates.names
    ('cart_position', 'cart_velocity', 'pole_angle', 'pole_velocity')
    >>> one = rollout("CartPole-v1", lambda x: x[:, 2] + 0.3 * x[:, 3] > 0, episodes=20, seed=1, num_envs=1)
    >>> np.array_equal(data.states, one.states)
    True
    """
    check_installed("gymnasium", "rollout")
    from gymnasium.vector import VectorEnv

    choose, picked = as_policy(policy, deterministic), as_project(project)
    count = as_count(episodes, "episodes", 1)
    limit = None if max_steps is None else as_count(max_steps, "max_steps", 1)
    key = seed_key(seed)
    with ProgressBar("episodes", count) as bar:
        if isinstance(env, VectorEnv):
            _check_given(env, env.num_envs, num_envs, env_kwargs)
            return _run_vector(env, choose, count, key, picked, limit, bar.advance)
        if is_vec_env(env):
            parts: Any = env
            _check_given(parts, parts.num_envs, num_envs, env_kwargs)
            inner, choose = without_normalisation(parts, policy, choose)
            return _run_vector(GymnasiumForm(inner), choose, count, key, picked, limit, bar.advance)
        choose = as_trained(policy, choose)
        check_kind({} if env_kwargs is None else env_kwargs, "env_kwargs", Mapping, "pass gymnasium.make's")
        envs, ours = make_environments(env, count, num_envs, dict(env_kwargs or {}))
        try:
            return run_episodes(envs, choose, range(count), key, picked, limit, bar.advance)
        finally:
            for each in envs if ours else ():
                each.close()


def seed_key(seed: Seed) -> tuple[int, int]:
    """The 128 bits that all episodes' seeds are made of."""
    first, second = keys(seed)
    return int(first), int(second)


def episode_seed(key: tuple[int, int], k: int) -> int:
    """The seed s_k that episode k's environment is reset with: 32 bits, which every environment takes."""
    return int(np.random.SeedSequence(key, spawn_key=(k,)).generate_state(1, np.uint32)[0])


def _stream(key: tuple[int, int], k: int) -> tuple[int, int]:
    """Where the stream begins that the actions of episode k are drawn from."""
    first, second = stream(np.uint64(key[0]), np.uint64(key[1]), k)
    return int(first), int(second)


def run_episodes(
    envs: Sequence[gym.Env[Any, Any]],
    choose: Choose,
    numbers: Sequence[int],
    key: tuple[int, int],
    project: Project = None,
    max_steps: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> Trajectories:
    """The episodes with the given numbers, in this order, whoever runs the others.

    ``choose`` is what :func:`~policyrisk.simulation.spaces.as_policy` gives; if it has a method
    ``spawn(k)``, episode k is played by what that returns. ``done`` is called after each episode.
    """
    spawn: Callable[[int], Choose] | None = getattr(choose, "spawn", None)
    lanes = SingleLanes(
        envs,
        lambda env, place: as_reset(env.reset(seed=episode_seed(key, numbers[place]))),
        choose,
        None if spawn is None else lambda place: spawn(numbers[place]),
        project,
        lambda place: _stream(key, numbers[place]),
    )
    record = run_lanes(lanes, len(numbers), EpisodeRecorder(len(numbers)), max_steps, done)
    return record.trajectories(coordinate_names(envs[0]) if project is None else None)


def _run_vector(
    env: VectorEnv[Any, Any, Any] | GymnasiumForm,
    choose: Choose,
    episodes: int,
    key: tuple[int, int],
    project: Project,
    max_steps: int | None,
    done: Callable[[], None],
) -> Trajectories:
    """Episodes 0, …, episodes − 1 in a vector environment that the caller made."""
    from gymnasium.vector import AutoresetMode

    mode = _mode(env)
    if max_steps is not None and mode is not AutoresetMode.DISABLED:
        raise InvalidInputError(
            f"max_steps must be None for a vector environment that resets itself ({mode}), got {max_steps}; "
            "make it with max_episode_steps, or with autoreset disabled, or pass its id instead"
        )
    seeds: Any = episode_seed(key, 0)
    if mode is AutoresetMode.DISABLED:
        seeds = [episode_seed(key, k) if k < episodes else None for k in range(env.num_envs)]
    lanes = VectorLanes(
        env,
        lambda observations, words: decide(choose, observations, env.single_action_space, words),
        mode,
        first={"seed": seeds},
        seed_of=lambda k: episode_seed(key, k),
        project=project,
        stream_of=lambda k: _stream(key, k),
    )
    record = run_lanes(lanes, episodes, EpisodeRecorder(episodes), max_steps, done)
    return record.trajectories(names_of_parts(env) if project is None else None)


def _mode(env: VectorEnv[Any, Any, Any] | GymnasiumForm) -> AutoresetMode:
    from gymnasium.vector import AutoresetMode

    given = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(given)
    except ValueError as error:
        raise InvalidInputError(
            f'env.metadata["autoreset_mode"] must be one of Gymnasium\'s AutoresetMode, got {given!r}; set '
            "it to how the vector environment goes on after an episode's end"
        ) from error


def _check_given(env: object, has: int, num_envs: int | None, env_kwargs: Mapping[str, Any] | None) -> None:
    """An environment that exists already is neither multiplied nor made with arguments."""
    if num_envs is not None and as_count(num_envs, "num_envs", 1) != has:
        raise InvalidInputError(
            f"num_envs must be {has} for the environment {env}, got {num_envs}; pass its id, or a function "
            "that makes one, to have several"
        )
    if env_kwargs:
        raise InvalidInputError(
            f"env_kwargs must be left out for an environment that is made already, got {dict(env_kwargs)}; "
            "pass its id, or a function that makes one"
        )


def make_environments(
    env: object, episodes: int, num_envs: int | None, env_kwargs: dict[str, Any]
) -> tuple[list[gym.Env[Any, Any]], bool]:
    """The environments to step, and whether we made them and so close them."""
    check_installed("gymnasium", "rollout")
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec

    register()
    if isinstance(env, gym.Env):
        _check_given(env, 1, num_envs, env_kwargs)
        return [env], False
    count = min(_SIDE_BY_SIDE if num_envs is None else as_count(num_envs, "num_envs", 1), episodes)
    make = partial(_make, env) if isinstance(env, str | EnvSpec) else env
    if not callable(make):
        raise InvalidInputError(
            "env must be an environment of Gymnasium, its id, or a function that makes one, got "
            f"{type(env).__name__}; pass for example 'CartPole-v1'"
        )
    made: list[gym.Env[Any, Any]] = []
    try:
        for _ in range(count):
            made.append(make(**env_kwargs))
            if not isinstance(made[-1], gym.Env):
                raise InvalidInputError(
                    "env must make an environment of Gymnasium, got a function that returns "
                    f"{type(made.pop()).__name__}; let it return a gymnasium.Env"
                )
    except BaseException:
        for each in made:
            each.close()
        raise
    return made, True


def _make(env: str | EnvSpec, **env_kwargs: Any) -> gym.Env[Any, Any]:
    import gymnasium as gym

    try:
        return gym.make(env, **env_kwargs)
    except (gym.error.Error, ImportError, TypeError) as error:
        raise InvalidInputError(
            f"env must be what gymnasium.make can make, got {env!r} with {env_kwargs} ({error}); check the "
            "id and env_kwargs"
        ) from error
