"""Greedy policies: in state x the action with the largest Q(x, a) = φ(x)ᵀ w_a; one ships for pinball."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import as_file, files
from os import PathLike
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
import numpy.typing as npt

from policyrisk._core import records
from policyrisk._core.arrays import Floats, Ints, as_floats, check_kind, readonly
from policyrisk.control._policy_kernels import COORDINATES, GreedyTable
from policyrisk.errors import InvalidInputError
from policyrisk.features import RadialBasis
from policyrisk.features.protocol import given_again
from policyrisk.features.radial import RadialGrid

MOST = 32  # centres within reach along a coordinate, and actions: dimensions that NumPy gives an array
_ALL = 2.0  # a reach beyond every centre, in units of the box


class World(TypedDict, total=False):
    """How the environment that a policy acts in was changed."""

    max_steps: int | None
    action_noise: float
    reward_so_far: bool


class StoredPolicy:
    """A policy on features that can be written to a file."""

    _columns: ClassVar[tuple[str, ...]]  # its arguments

    def save(self, path: str | PathLike[str], world: Mapping[str, Any] | None = None) -> None:
        """Write the policy to an npz file; its features need a ``spec()``.

        ``world`` is how the environment that it acts in was changed: what
        :class:`policyrisk.control.tasks.TimedEnvironment` takes.
        """
        if world is not None:
            check_kind(world, "world", Mapping, "pass the changes by their names")
        values = {name: getattr(self, name) for name in self._columns}
        records.save(path, type(self).__name__, values | ({} if world is None else {"world": dict(world)}))

    @classmethod
    def load(cls, path: str | PathLike[str], features: Any = None) -> Self:
        """The policy that :meth:`save` wrote; ``features`` that are a function or a network must be given."""
        return cls.load_with_world(path, features)[0]

    @classmethod
    def load_with_world(
        cls, path: str | PathLike[str], features: Any = None
    ) -> tuple[Self, dict[str, Any] | None]:
        """The policy, and what was saved of the environment that it acts in."""
        with given_again(features):
            return records.load(path, cls.__name__, dict, cls._of)

    @classmethod
    def _of(cls, values: dict[str, Any]) -> tuple[Self, dict[str, Any] | None]:
        world = values.pop("world", None)
        records.check_value(world, World | None, "world")
        if world is not None and world.keys() - World.__annotations__:
            raise ValueError(f"world must have no other changes, got {sorted(world)}")
        return cls(**values), world


class GreedyPolicy(StoredPolicy):
    """π(x) = argmax_a φ(x)ᵀ w_a on the radial bases of a grid; the first of equal actions.

    Our domains follow the policy in compiled code; called with states (n, dim) it returns actions (n,).

    Parameters
    ----------
    features
        φ.
    weights
        (features.size, actions).
    origin
        How they were made, in plain values.

    Examples
    --------
    >>> phi = RadialBasis.grid(low=0, high=1, shape=3, normalised=True, truncate=0.9)
    >>> policy = GreedyPolicy(phi, [[0, 1], [2, 1], [0, 1]])
    >>> policy([0.0, 0.5, 1.0]), policy.value([0.0, 0.5, 1.0])
    (array([1, 0, 1]), array([1., 2., 1.]))
    """

    _columns = "features", "weights", "origin"
    features: RadialGrid
    weights: Floats  # (features.size, actions)
    origin: Mapping[str, Any]

    def __init__(
        self, features: RadialBasis, weights: npt.ArrayLike, origin: Mapping[str, Any] | None = None
    ) -> None:
        self.features = as_grid(features)
        self.weights = readonly(np.array(as_floats(weights, "weights", (features.size, None)), order="C"))
        if self.actions == 0:
            raise InvalidInputError("weights must have a column per action, got none; pass at least one")
        check_kind({} if origin is None else origin, "origin", Mapping, "pass what the policy came from")
        self.origin = dict(origin or {})

    def __repr__(self) -> str:
        return f"GreedyPolicy({self.features!r}, actions={self.actions})"

    @property
    def actions(self) -> int:
        """The number of actions it chooses among."""
        return int(self.weights.shape[1])

    def action_values(self, states: npt.ArrayLike) -> Floats:
        """Q(x, a) = φ(x)ᵀ w_a, of shape (n, actions)."""
        values: Floats = self.features(states) @ self.weights
        return values

    def value(self, states: npt.ArrayLike) -> Floats:
        """max_a Q(x, a), of shape (n,): the policy's value as its training saw it (the paper's Figure 3)."""
        values: Floats = self.action_values(states).max(axis=1)
        return values

    def __call__(self, states: npt.ArrayLike) -> Ints:
        """The actions in the given states, of shape (n,)."""
        actions: Ints = self.action_values(states).argmax(axis=1)
        return actions

    def compiled(self) -> GreedyTable:
        """The table that compiled code follows, for features on at most four coordinates.

        Coordinates up to the fourth are added with one centre of factor 1, and the weights get centres of
        weight 0 where a coordinate has fewer than the kernel looks at.
        """
        return self._table

    @cached_property
    def _table(self) -> GreedyTable:
        table = grid_table(self.features, self.weights)
        if table is None:
            raise InvalidInputError(
                f"a compiled policy must have at most {COORDINATES} coordinates, and {MOST} actions and "
                f"centres within reach along a coordinate, got {self!r}; choose coordinates with dims=, "
                "truncate the bases, or call the policy on states"
            )
        return table


def pinball_policy(maze: str = "simple") -> GreedyPolicy:
    """The learned policy that ships with the package, for ``Pinball("simple")`` with noise and four actions.

    Parameters
    ----------
    maze
        "simple".

    Returns
    -------
    GreedyPolicy
        With its origin.

    Examples
    --------
    >>> policy = pinball_policy()
    >>> policy.actions, policy.origin["episodes"]
    (4, 300000)
    """
    if maze != "simple":
        raise InvalidInputError(
            f'maze must be "simple", the one with a shipped policy, got {maze!r}; learn another with '
            f"`python -m experiments.train_pinball --maze {maze}` in a clone of policyrisk, and load it with "
            "GreedyPolicy.load"
        )
    with as_file(files("policyrisk.control") / "data" / "pinball_simple.npz") as path:
        return GreedyPolicy.load(path)


def as_grid(features: object) -> RadialGrid:
    """The features, checked to be radial bases on a grid."""
    if not isinstance(features, RadialGrid):
        raise InvalidInputError(
            f"features must be radial bases on a grid, got {type(features).__name__}; "
            "pass RadialBasis.grid(low=..., high=..., shape=..., normalised=True, truncate=2.5)"
        )
    if features.truncate is not None and not features.normalised:
        raise InvalidInputError(
            "features must be normalised where they are truncated, so that a basis is near everywhere, got "
            f"normalised=False and truncate={features.truncate:g}; pass normalised=True, or truncate=None"
        )
    return features


def grid_reach(features: RadialBasis) -> Floats:
    """The features' reach (d,), finite where they are not truncated."""
    return np.minimum(features.reach, _ALL)


def near_counts(shape: tuple[int, ...], reach: Floats) -> list[int]:
    """The most centres within reach (in steps of the grid) along each coordinate."""
    return [min(s, math.floor(2.0 * r) + 1) for s, r in zip(shape, reach, strict=True)]


def grid_table(features: RadialGrid, weights: Floats) -> GreedyTable | None:
    """The table for compiled code of weights (features.size, actions); None where it would be too large."""
    box, shape, actions = features.box, features.shape, weights.shape[1]
    steps = np.array(shape) - 1.0
    reach = grid_reach(features) * steps
    slots = max(near_counts(shape, reach))
    if box.dim > COORDINATES or max(slots, actions) > MOST:
        return None
    room = [max(s, slots) for s in shape]
    wide = np.zeros((*room, actions))
    wide[tuple(slice(s) for s in shape)] = weights.reshape(*shape, actions)
    low, high = box.bounds
    missing = COORDINATES - box.dim

    def padded(values: Any, by: Any, kind: type) -> Any:
        return readonly(np.array([*values, *[by] * missing], dtype=kind))

    return GreedyTable(
        dims=padded(range(box.dim) if box.dims is None else box.dims, 0, np.int64),
        low=padded(low, 0.0, np.float64),
        high=padded(high, 1.0, np.float64),
        scale=padded(steps / (high - low), 0.0, np.float64),
        last=padded([s - 1 for s in shape], 0, np.int64),
        strides=padded([math.prod(room[i + 1 :]) for i in range(box.dim)], 0, np.int64),
        reach=padded(reach, 0.0, np.float64),
        sharpness=padded(0.5 / (features.width * steps.clip(1.0)) ** 2, 0.0, np.float64),
        slots=readonly(np.zeros((1,) * slots)),
        none=readonly(np.zeros((1,) * actions)),
        weights=readonly(wide.reshape(-1, actions)),
    )
