"""States out of Gymnasium observations, the same for rollouts and for Minari's datasets.

A batch of n observations has n in front of every array: (n, …) of a Box, (n,) of a Discrete, a dict or tuple
of such arrays for a Dict or Tuple space. ``project`` is a function of such a batch that picks the state's
coordinates, of shape (n, dim) or (n,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    import gymnasium as gym

Project: TypeAlias = "Callable[[Any], npt.ArrayLike] | None"


def as_project(project: object) -> Project:
    """A caller's ``project``."""
    if project is not None and not callable(project):
        raise InvalidInputError(
            f"project must be a function of a batch of observations, got {type(project).__name__}; "
            "pass for example lambda observations: observations['position']"
        )
    return project


def stack(observations: Sequence[Any], space: gym.Space[Any]) -> Any:
    """Single observations of a space as one batch, in Gymnasium's form, copied."""
    from gymnasium.vector.utils import concatenate, create_empty_array

    empty: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, empty)


def as_rows(observations: Any, project: Project, count: int) -> npt.NDArray[Any]:
    """The states of a batch of observations, of shape (count, dim): int64 if they are whole, else float64.

    >>> as_rows({"goal": np.zeros((2, 3)), "at": np.array([4, 7])}, lambda batch: batch["at"], 2)
    array([[4],
           [7]])
    """
    name = "observations" if project is None else "project(observations)"
    value = observations if project is None else project(observations)
    if isinstance(value, dict | tuple):
        inside = ", ".join(map(repr, value)) if isinstance(value, dict) else f"{len(value)} parts"
        raise InvalidInputError(
            f"{name} must be an array, got a {type(value).__name__} of {inside}; pass project=..., a "
            "function of a batch of observations that returns their coordinates, of shape (n, dim)"
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInputError(
            f"{name} must be an array of shape (n, dim), got {error}; pass project=..."
        ) from error
    if array.dtype.kind not in "biuf" or array.ndim == 0 or len(array) != count:
        raise InvalidInputError(
            f"{name} must be {count} rows of numbers, one per observation, got {array.dtype} of shape "
            f"{array.shape}; pass a project that keeps the batch in front, such as lambda batch: batch[:, :2]"
        )
    rows = array.reshape(count, -1)
    return rows.astype(np.float64 if array.dtype.kind == "f" else np.int64)
