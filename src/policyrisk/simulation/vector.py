"""Episodes from a vector environment that the caller made.

How environment i goes on after the end of an episode is its autoreset mode, in its metadata:

    DISABLED     it waits: we reset it, with the seed of the episode that comes next
    NEXT_STEP    the next step ignores its action, resets it and returns the first observation, reward 0
    SAME_STEP    the step that ends the episode returns the first observation of the next one, and the last of
                 this one in info["final_obs"]

Under the last two it resets itself, so that only the beginning of all can be seeded, and nothing can cut an
episode off early. Episode k then is the (k // n)-th of environment k mod n: fixed beforehand, whatever their
lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Ints
from policyrisk.errors import InvalidInputError
from policyrisk.simulation.observations import Project, as_rows, stack
from policyrisk.simulation.policies import Choose, action_array
from policyrisk.simulation.recorder import Log
from policyrisk.trajectories import Trajectories

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode, VectorEnv

_NONE = -1  # the episode of an environment that has none to run


def run_vector(
    env: VectorEnv[Any, Any, Any],
    choose: Choose,
    episodes: int,
    seed_of: Callable[[int], int],
    project: Project,
    max_steps: int | None,
    done: Callable[[], None],
) -> Trajectories:
    """Episodes 0, …, episodes − 1; ``seed_of`` gives their seeds, ``done`` is called after each."""
    from gymnasium.vector import AutoresetMode

    mode = _mode(env)
    if max_steps is not None and mode is not AutoresetMode.DISABLED:
        raise InvalidInputError(
            f"max_steps must be None for a vector environment that resets itself ({mode}), got {max_steps}; "
            "make it with max_episode_steps, or with autoreset disabled, or pass its id instead"
        )
    n = env.num_envs
    log = Log(episodes)
    number = np.where(np.arange(n) < episodes, np.arange(n), _NONE)  # (n,) the episode of each
    steps = np.zeros(n, dtype=np.int64)
    begun = n  # under DISABLED, the next episode that has not begun
    if mode is AutoresetMode.DISABLED:
        observations, _ = env.reset(seed=_seeds(number, seed_of))
    else:
        observations, _ = env.reset(seed=seed_of(0))
    _visit(log, number, number != _NONE, as_rows(observations, project, n))
    resetting: Bools = np.zeros(n, dtype=np.bool_)  # those that the next step resets
    while (number != _NONE).any():
        chosen = choose(observations)
        actions = action_array(chosen, env.single_action_space, n) if _plain(env) else chosen
        observations, rewards, ended, cut, info = env.step(actions)
        ended, cut = np.asarray(ended, dtype=np.bool_), np.asarray(cut, dtype=np.bool_)
        rows = as_rows(observations, project, n)
        _visit(log, number, resetting & (number != _NONE), rows)
        live = ~resetting & (number != _NONE)
        steps[live] += 1
        over = ended | cut
        if max_steps is not None:
            over |= steps >= max_steps
        log.earn(number[live], np.asarray(rewards, dtype=np.float64)[live])
        arrived = rows
        if mode is AutoresetMode.SAME_STEP and over.any():
            arrived = rows.copy()
            arrived[over] = _final_rows(env, info, over, project)
        _visit(log, number, live, arrived)
        for i in np.flatnonzero(live & over):
            log.terminated[number[i]] = ended[i]
            done()
        if mode is AutoresetMode.NEXT_STEP:
            resetting = over
        if not over.any():
            continue

        # Who runs which episode next: any that waits if we reset, else the next of the environment's own.
        if mode is AutoresetMode.DISABLED:
            following = np.arange(begun, begun + int(over.sum()))
            begun += following.size
        else:
            following = np.where(number[over] == _NONE, episodes, number[over] + n)
        number[over] = np.where(following < episodes, following, _NONE)
        steps[over] = 0
        if mode is AutoresetMode.DISABLED and (number != _NONE).any():
            masked = np.where(over, number, _NONE)
            observations, _ = env.reset(seed=_seeds(masked, seed_of), options={"reset_mask": over.copy()})
            rows = as_rows(observations, project, n)
        if mode is not AutoresetMode.NEXT_STEP:
            _visit(log, number, over & (number != _NONE), rows)
    return log.trajectories()


def _mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    from gymnasium.vector import AutoresetMode

    given = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(given)
    except ValueError as error:
        raise InvalidInputError(
            f'env.metadata["autoreset_mode"] must be one of Gymnasium\'s AutoresetMode, got {given!r}; set '
            "it to how the vector environment goes on after an episode's end"
        ) from error


def _plain(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether a batch of actions is one array."""
    from gymnasium import spaces

    kinds = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
    return isinstance(env.single_action_space, kinds)


def _seeds(numbers: Ints, seed_of: Callable[[int], int]) -> Any:
    """A seed for each environment that begins an episode; the base class is declared for one int only."""
    return [None if number == _NONE else seed_of(number) for number in numbers.tolist()]


def _visit(log: Log, number: Ints, which: Bools, rows: npt.NDArray[Any]) -> None:
    if which.any():
        log.visit(number[which], rows[which])


def _final_rows(
    env: VectorEnv[Any, Any, Any], info: dict[str, Any], over: Bools, project: Project
) -> npt.NDArray[Any]:
    """The states that the episodes ended in, which a SAME_STEP environment hands over beside the new ones."""
    finals = info.get("final_obs")
    if finals is None or any(finals[i] is None for i in np.flatnonzero(over)):
        raise InvalidInputError(
            'env must give each episode\'s last observation in info["final_obs"] when it resets in the same '
            "step, got none; use autoreset in the next step, or none"
        )
    batch = stack([finals[i] for i in np.flatnonzero(over)], env.single_observation_space)
    return as_rows(batch, project, int(over.sum()))
