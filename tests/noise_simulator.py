"""A small simulator of one's own for the tests of Monte Carlo, and what they share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from policyrisk.returns import MonteCarlo, monte_carlo

ARRAYS = ("mean", "variance", "std", "mean_se", "variance_se", "std_se", "episodes", "cut_off", "steps")


class Noise:
    """A simulator of one's own: returns offset + x + a uniform draw, of one step."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset
        self.seen: list[np.ndarray] = []

    def __repr__(self) -> str:
        return f"Noise({self.offset})"

    def returns(
        self, policy: Any, starts: Any, episodes: int, seed: Any, max_steps: int, discount: float
    ) -> Any:
        draws = np.random.default_rng(seed).random(len(starts) * episodes)
        g = self.offset + np.repeat(starts[:, 0], episodes) + draws
        self.seen.append(g)
        return SimpleNamespace(returns=g, lengths=np.ones(g.size, int), terminated=np.ones(g.size, bool))


# As many steps as let a block of Noise hold 16 episodes.
BLOCKS_OF_16 = (1 << 25) // 16


def same(a: MonteCarlo, b: MonteCarlo) -> None:
    for name in ("states", *ARRAYS):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def run_noise(path: Any = None, seed: Any = 11, **more: Any) -> MonteCarlo:
    return monte_carlo(Noise(), None, [0.0, 5.0], 50, seed, max_steps=BLOCKS_OF_16, checkpoint=path, **more)
