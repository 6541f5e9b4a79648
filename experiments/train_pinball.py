"""Learn pinball by SARSA(λ); the defaults give the policy that ships for the maze "simple", bit for bit.

The bases are 24 × 24 × 5 × 5 Gaussians over (x, y, ẋ, ẏ), 0.6 of the grid's spacing wide and cut off at 1.5
of it: three of them are near along each coordinate, 81 in all. Velocities beyond ±1, which only a bounce
makes, are treated as ±1. Episodes start at rest, uniformly at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.common import chosen, parser, tell, write_figure
from experiments.pinball_figures import draw_learning
from experiments.sarsa import Sarsa, SarsaResult
from policyrisk import RadialBasis
from policyrisk.domains import Pinball

_MAX_STEPS = 1000
_SHAPE = (24, 24, 5, 5)
_WIDTH = 0.6  # of the spacing
_CUT = 1.499  # of the spacing: at 1.5 there would sometimes be four


@dataclass(frozen=True)
class TrainingParameters:
    """What may be varied."""

    maze: str = "simple"  # a maze's name, or a JSON file with one
    noise: float = 0.03
    episodes: int = 300_000
    seed: int = 1


def pinball_features(
    shape: tuple[int, ...] = _SHAPE, width: float = _WIDTH, cut: float = _CUT
) -> RadialBasis:
    """Bases over (x, y, ẋ, ẏ), width and cut in units of the spacing; those on which pinball is learned."""
    widths = width / (np.array(shape) - 1.0)
    box: dict[str, Any] = {"low": [0, 0, -1, -1], "high": [1, 1, 1, 1]}
    return RadialBasis.grid(**box, shape=shape, width=widths, normalised=True, truncate=cut / width)


def run(parameters: TrainingParameters | None = None) -> SarsaResult:
    """Learn the maze from nothing."""
    given = TrainingParameters() if parameters is None else parameters
    pinball = Pinball(given.maze, noise=given.noise)
    sarsa = Sarsa(pinball_features(), pinball.actions)
    return sarsa.train(pinball, given.episodes, given.seed, _MAX_STEPS)


def main(arguments: list[str] | None = None) -> None:
    """Run the script; the learning curve is drawn beside the policy."""
    options = parser(TrainingParameters, __doc__, "results/pinball_policy.npz").parse_args(arguments)
    result = run(chosen(TrainingParameters, options))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result.policy.save(options.out)
    tell(str(result), [options.out, write_figure(draw_learning(result), options.out.with_suffix(".png"))])


if __name__ == "__main__":
    main()
