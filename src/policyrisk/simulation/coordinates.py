"""What an environment calls the coordinates of its observations.

    state_names             an attribute of the environment, or of a wrapper around it: a name for each
    a Dict                  its parts' names, numbered where a part has several numbers
    observation_structure   of Gymnasium's MuJoCo environments: the joints' names of positions and velocities,
                            and numbers for the rest
    its documentation       for a few of Gymnasium's own, whose observations have no names in the code

They hold for the observation of the environment itself. A wrapper that makes another one of it takes them
away, unless it has ``state_names`` of its own. Names are such that they can be written on the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from policyrisk._core.frames import numbered_names
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    import gymnasium as gym

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
