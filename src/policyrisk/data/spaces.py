"""Observations and actions of environments as rows of a record: states (n, dim), actions (n,) or (n, k).

A batch of n observations has n in front of every array; a ``project`` picks the states' coordinates from it,
of shape (n, dim) or (n,). Without one, the parts of a Dict stand side by side, in the space's order, and
arrays are flattened. Images are refused, because their pixels are no coordinates of a state.

The coordinates are called as the environment calls them:

    state_names             an attribute of the environment, or of a wrapper around it: a name for each
    a Dict                  its parts' names, numbered where a part has several numbers
    observation_structure   of Gymnasium's MuJoCo environments: the joints' names of positions and velocities,
                            and numbers for the rest
    its documentation       for a few of Gymnasium's own, whose observations have no names in the code

These are names of the environment's own observation. A wrapper that changes the observation removes them,
unless it has ``state_names``. All names can be written on the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import is_masked
from policyrisk._core.frames import numbered_names
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    import gymnasium as gym

Project: TypeAlias = "Callable[[Any], npt.ArrayLike] | None"

_LARGEST = 128  # numbers in an observation of two axes or more, beyond which it is an image
# The tables of observations in the documentation of the classes, in short.
_DOCUMENTED = {
    "CartPoleEnv": ("cart_position", "cart_velocity", "pole_angle", "pole_velocity"),
    "MountainCarEnv": ("position", "velocity"),
    "Continuous_MountainCarEnv": ("position", "velocity"),
    "PendulumEnv": ("cos_angle", "sin_angle", "velocity"),
    "AcrobotEnv": ("cos_angle_1", "sin_angle_1", "cos_angle_2", "sin_angle_2", "velocity_1", "velocity_2"),
    "LunarLander": ("x", "y", "x_velocity", "y_velocity", "angle", "velocity", "left_leg", "right_leg"),
}
# Coordinates of a free, ball, slide and hinge joint of MuJoCo: a place, and a turn as a quaternion.
_PLACE, _TURN, _SPIN = ("_x", "_y", "_z"), ("_qw", "_qx", "_qy", "_qz"), ("_turn_x", "_turn_y", "_turn_z")
_QPOS = (_PLACE + _TURN, _TURN, ("",), ("",))
_QVEL = (_PLACE + _SPIN, _SPIN, ("",), ("",))


def as_project(project: object) -> Project:
    """A caller's ``project``."""
    if project is not None and not callable(project):
        raise InvalidInputError(
            f"project must be a function of a batch of observations, got {type(project).__name__}; "
            "pass for example lambda observations: observations['position']"
        )
    return project


def as_rows(observations: Any, project: Project, count: int) -> npt.NDArray[Any]:
    """The states of a batch of observations, of shape (count, dim): int64 if they are whole, else float64.

    >>> batch = {"goal": np.zeros((2, 2)), "at": np.array([4, 7])}
    >>> as_rows(batch, None, 2)
    array([[0., 0., 4.],
           [0., 0., 7.]])
    >>> as_rows(batch, lambda batch: batch["at"], 2)
    array([[4],
           [7]])
    """
    name = "observations" if project is None else "project(observations)"
    value = observations if project is None else project(observations)
    if project is None and isinstance(value, dict) and value:
        return np.concatenate([as_rows(part, None, count) for part in value.values()], axis=1)
    if isinstance(value, dict | tuple):
        inside = ", ".join(map(repr, value)) if isinstance(value, dict) else f"{len(value)} parts"
        raise InvalidInputError(
            f"{name} must be an array, got a {type(value).__name__} of {inside}; pass project=..., a "
            "function of a batch of observations that returns their coordinates, of shape (n, dim)"
        )
    try:
        if is_masked(value):
            raise ValueError("masked entries")
        array = np.asarray(value)
    except Exception as error:  # whatever an environment's observations raise
        raise InvalidInputError(
            f"{name} must be an array of shape (n, dim), got {str(error)[:200]}; pass project=..."
        ) from error
    if array.dtype.kind not in "biuf" or array.ndim == 0 or len(array) != count:
        raise InvalidInputError(
            f"{name} must be {count} rows of numbers, one per observation, got {array.dtype} of shape "
            f"{array.shape}; pass a project that keeps the batch in front, such as lambda batch: batch[:, :2]"
        )
    rows = array.reshape(count, -1)
    if project is None and array.ndim > 2 and rows.shape[1] > _LARGEST:
        raise InvalidInputError(
            f"observations must be coordinates of a state, got an image of shape {array.shape[1:]}, which "
            f"would be {rows.shape[1]} columns; record what a network sees in it, by a project that gives "
            "phi(batch.reshape(len(batch), -1)) with phi = policyrisk.TorchFeatures(network, shape=...), or "
            "flatten it all the same, by one without phi"
        )
    return rows.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def action_rows(actions: Any) -> npt.NDArray[Any] | None:
    """A batch of actions as it is recorded: whole numbers (n,), or coordinates (n, k); None of no array.

    >>> action_rows(np.array([[[0.5], [1.5]]], dtype=np.float32))
    array([[0.5, 1.5]])
    """
    if not isinstance(actions, np.ndarray):
        return None
    if actions.ndim == 1 and actions.dtype.kind != "f":
        return actions.astype(np.int64)
    return actions.reshape(len(actions), math.prod(actions.shape[1:])).astype(np.float64)


def coordinate_names(env: gym.Env[Any, Any]) -> tuple[str, ...] | None:
    """The names of the coordinates, in their order; None where the environment has none.

    >>> import gymnasium as gym
    >>> coordinate_names(gym.make("MountainCar-v0"))
    ('position', 'velocity')
    >>> coordinate_names(gym.wrappers.NormalizeObservation(gym.make("MountainCar-v0"))) is None
    True
    """
    import gymnasium as gym

    size = _size(env.observation_space)
    while True:
        given = getattr(env, "state_names", None)
        if given is not None:
            return _checked(given, size, env)
        if not isinstance(env, gym.Wrapper):
            break
        if isinstance(env, gym.ObservationWrapper) or env.observation_space != env.env.observation_space:
            return part_names(env.observation_space)
        env = env.env
    names = part_names(env.observation_space) or _joints(env) or _documented(env)
    return names if names is not None and len(names) == size else None


def names_of_parts(env: Any) -> tuple[str, ...] | None:
    """The same for a vector environment, where its parts can be looked at, and change nothing on the way."""
    import gymnasium as gym

    parts, space = getattr(env, "envs", None), env.single_observation_space
    if isinstance(parts, Sequence) and isinstance(parts[0], gym.Env) and parts[0].observation_space == space:
        return coordinate_names(parts[0])
    return part_names(space)


def _size(space: Any) -> int:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return sum(map(_size, space.values()))
    return math.prod(space.shape or ())


def _checked(given: Any, size: int, env: object) -> tuple[str, ...]:
    names = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(names) != size or len(set(names)) < size or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(
            f"env.state_names must be {size} different names, one for each coordinate of an observation, got "
            f"{given!r} from {env}; correct it"
        )
    return names


def part_names(space: Any) -> tuple[str, ...] | None:
    """Those of a Dict's parts, numbered where a part has several numbers; None of another space."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return None
    found: list[str] = []
    for name, part in space.items():
        inner = part_names(part)
        found += [f"{name}_{each}" for each in inner] if inner else numbered_names(str(name), _size(part))
    names = tuple(re.sub(r"\W+", "_", name) for name in found)
    return names if len(set(names)) == len(names) else None


def _joints(env: Any) -> tuple[str, ...] | None:
    """Those of a MuJoCo environment that tells what its observation is put together from."""
    structure, model = getattr(env, "observation_structure", None), getattr(env, "model", None)
    if not isinstance(structure, dict) or model is None:
        return None
    found: list[str] = []
    for part, count in structure.items():
        if part == "qpos":
            skipped = structure.get("skipped_qpos", 0)
            found += [*_of_joints(model, _QPOS)][skipped:]
        elif part == "qvel":
            found += [f"{name}_velocity" for name in _of_joints(model, _QVEL)]
        elif not part.startswith("skipped_"):
            found += numbered_names(part, count)
    return tuple(found)


def _of_joints(model: Any, coordinates: Sequence[Sequence[str]]) -> Iterator[str]:
    for joint in range(model.njnt):
        name = model.joint(joint).name or f"joint_{joint}"
        yield from (f"{name}{each}" for each in coordinates[int(model.jnt_type[joint])])


def _documented(env: object) -> tuple[str, ...] | None:
    """Those of Gymnasium's own classes alone: another class of the same name may observe something else."""
    kind = type(env)
    return _DOCUMENTED.get(kind.__name__) if kind.__module__.startswith("gymnasium.envs.") else None
