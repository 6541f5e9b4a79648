"""The settings that learn pinball, and the policy for the maze "simple" that ships with the package.

The bases are 24 × 24 × 5 × 5 Gaussians over (x, y, ẋ, ẏ), 0.6 of the grid's spacing wide and cut off at 1.5
of it: three of them are near along each coordinate, 81 in all. Velocities beyond ±1, which only a bounce
makes, are treated as ±1.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any

import numpy as np

from policyrisk._core.arrays import Seed
from policyrisk.control.policy import GreedyPolicy
from policyrisk.control.sarsa import Sarsa, SarsaResult
from policyrisk.errors import InvalidInputError
from policyrisk.features import RadialBasis

EPISODES = 300_000
SEED = 1  # of the shipped policy
_MAX_STEPS = 1000
_SHAPE = (24, 24, 5, 5)
_WIDTH = 0.6  # of the spacing
_CUT = 1.499  # of the spacing: at 1.5 there would sometimes be four


def pinball_features(
    shape: tuple[int, ...] = _SHAPE, width: float = _WIDTH, cut: float = _CUT
) -> RadialBasis:
    """Bases over (x, y, ẋ, ẏ), width and cut in units of the spacing; those on which pinball is learned."""
    widths = width / (np.array(shape) - 1.0)
    box = {"low": [0, 0, -1, -1], "high": [1, 1, 1, 1]}
    return RadialBasis.grid(**box, shape=shape, width=widths, normalised=True, truncate=cut / width)


def train_pinball(pinball: Any, episodes: int = EPISODES, seed: Seed = SEED) -> SarsaResult:
    """Learn a pinball domain from nothing, from uniformly random starts at rest.

    With ``Pinball("simple")`` and the defaults the policy is the shipped one, bit for bit on one machine.
    """
    sarsa = Sarsa(pinball_features(), pinball.actions)
    return sarsa.train(pinball, episodes, seed=seed, max_steps=_MAX_STEPS)


def pinball_policy(maze: str = "simple") -> GreedyPolicy:
    """The learned policy that ships with the package, for ``Pinball("simple")`` with noise and four actions.

    >>> policy = pinball_policy()
    >>> policy.actions, policy.origin["episodes"]
    (4, 300000)
    """
    if maze != "simple":
        raise InvalidInputError(
            f'maze must be "simple", the one with a shipped policy, got {maze!r}; learn another with '
            f"`policyrisk train pinball --maze {maze}` and pass it with --policy, or load it with "
            "GreedyPolicy.load"
        )
    with as_file(files("policyrisk.control") / "data" / "pinball_simple.npz") as path:
        return GreedyPolicy.load(path)
