"""How many states a second the feature maps take, on one core.

    python benchmarks/features.py

Dense maps are measured in batches of 500 states, as an estimator uses them, and at once, where the time
goes into fetching fresh memory for the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from policyrisk.features import Fourier, Polynomial, RadialBasis, TileCoding

BATCH = 500


def seconds(function: Callable[[np.ndarray], Any], batches: list[np.ndarray], rounds: int = 5) -> float:
    """The least time of several rounds over the batches, after one that compiles."""
    function(batches[0])
    least = np.inf
    for _ in range(rounds):
        start = time.perf_counter()
        for batch in batches:
            function(batch)
        least = min(least, time.perf_counter() - start)
    return least


def measure() -> list[tuple[str, float, float]]:
    """Rows of what is computed, and its rate in states a second: at once, and in batches."""
    rng = np.random.default_rng(0)
    plane, space = rng.random((2_000_000, 2)), rng.random((2_000_000, 4))
    two, four = {"low": [0, 0], "high": [1, 1]}, {"low": [0] * 4, "high": [1] * 4}
    tiles = TileCoding(**two, bins=[50, 50])
    rows: list[tuple[str, Callable[[np.ndarray], Any], np.ndarray]] = [
        ("tiles 50x50, 1 tiling: indices", tiles.active, plane),
        ("tiles 50x50, 1 tiling: CSR", tiles, plane),
        ("tiles 50x50, 1 tiling: outside", tiles.outside, plane),
        ("tiles 10x10x10x10, 8 tilings: indices", TileCoding(**four, bins=10, tilings=8).active, space),
        ("the same, hashed to 4,096", TileCoding(**four, bins=10, tilings=8, hashed=4096).active, space),
        ("radial 16x16, dense", RadialBasis.grid(**two, shape=16), plane[:50_000]),
        (
            "radial 16x16, dense, normalised",
            RadialBasis.grid(**two, shape=16, normalised=True),
            plane[:50_000],
        ),
        ("radial 4x4x4x4, dense", RadialBasis.grid(**four, shape=4), space[:50_000]),
        ("radial, 256 given centres, dense", RadialBasis(rng.random((256, 2)), 0.1), plane[:50_000]),
        (
            "radial 24x24x5x5, truncated at 1.5: CSR",
            RadialBasis.grid(**four, shape=(24, 24, 5, 5), truncate=1.5),
            space[:50_000],
        ),
        ("Fourier, order 3 in 4-D: 256", Fourier(order=3, **four), space[:50_000]),
        ("polynomial, degree 6 in 4-D: 210", Polynomial(degree=6, **four), space[:50_000]),
    ]
    table = []
    for name, function, states in rows:
        few = states[: 100 * BATCH]
        batches = np.split(few, len(few) // BATCH)
        table.append((name, len(states) / seconds(function, [states]), len(few) / seconds(function, batches)))
    return table


if __name__ == "__main__":
    print(f"{'M states/s':42}{'at once':>10}{'batches':>10}")
    for name, at_once, in_batches in measure():
        print(f"{name:42}{at_once / 1e6:10.2f}{in_batches / 1e6:10.2f}")
