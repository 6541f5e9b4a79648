"""How cost grows: with transitions, with features, with states, each with the slope of its logarithm.

Transitions: LSTD(0.9) with 50 × 50 tiles, up to 10⁸ in a stream whose batches are made once and come again
and again. Features: the equations and their solution for 2·10⁵ transitions in a square, tiles from 10² on
(dense sums up to 4,900, sparse ones beyond) and Fourier features up to 1,024. States: exact J and V of a walk
on a square. A slope of 1 is proportional, 2 quadratic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from exact import square_walk
from lstd import LAM, TILES, walk

import policyrisk as pr


class Again:
    """A stream of n batches, all the same record."""

    def __init__(self, batch: pr.Trajectories, times: int) -> None:
        self.batch, self.times = batch, times

    def __iter__(self) -> Iterator[pr.Trajectories]:
        for _ in range(self.times):
            yield self.batch


def seconds(work: Callable[[], object], least: float = 0.5) -> float:
    """The fastest of as many runs as fit into ``least`` seconds, one at least."""
    best, began = np.inf, time.perf_counter()
    while True:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - began > least:
            return best


def transitions() -> dict[float, float]:
    """Seconds by number of transitions."""
    found = {}
    for power in range(4, 9):
        count = 10**power
        batch = walk(min(count, 10**6) // 200, 200, 0.02)
        source = Again(batch, count // batch.transitions)
        lstd = pr.LSTD(TILES, lam=LAM)
        found[float(count)] = seconds(lambda lstd=lstd, source=source: lstd.equations(source))
    return found


def tiles(sides: tuple[int, ...]) -> dict[float, float]:
    """Seconds for equations and weights by number of tiles."""
    data, found = walk(1_000, 200, 0.02), {}
    for side in sides:
        lstd = pr.LSTD(pr.TileCoding([0, 0], [1, 1], bins=[side, side]), lam=0.5)
        found[float(side**2)] = seconds(lambda lstd=lstd: lstd.fit(data, error_bars=False))
    return found


def dense() -> dict[float, float]:
    """Seconds for equations and weights by number of Fourier features."""
    data, found = walk(1_000, 200, 0.02), {}
    for order in (9, 15, 22, 31):
        lstd = pr.LSTD(pr.Fourier(order, [0, 0], [1, 1]), lam=LAM, ridge=1e-6)
        found[float((order + 1) ** 2)] = seconds(lambda lstd=lstd: lstd.fit(data, error_bars=False))
    return found


def states() -> dict[float, float]:
    """Seconds for exact J and V by number of states."""
    found = {}
    for side in (32, 100, 316, 1000):
        P = square_walk(side)
        found[float(side**2)] = seconds(lambda P=P: pr.MarkovChain(P, np.ones(P.shape[0])).variance())
    return found


def slope(found: dict[float, float]) -> float:
    """Of log seconds over log size, by least squares over the larger half."""
    sizes, taken = np.array(list(found)), np.array(list(found.values()))
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(taken[half:]), 1)[0])


def rows() -> list[dict[str, Any]]:
    """A row for each kind of growth."""
    table = []
    for name, measure in (
        ("transitions, 50×50 tiles, λ = 0.9: equations", transitions),
        (
            "tiles, 2·10⁵ transitions, λ = 0.5: equations and weights, dense sums",
            lambda: tiles((10, 20, 32, 50, 70)),
        ),
        ("the same, sparse sums", lambda: tiles((100, 178, 316))),
        ("Fourier features, 2·10⁵ transitions, λ = 0.9: equations and weights", dense),
        ("states, exact J and V", states),
    ):
        found = measure()
        table.append(
            {
                "work": f"growth with {name}",
                "ours": ", ".join(f"{size:.0e}: {taken:.2g} s" for size, taken in found.items()),
                "peer": "",
                "ratio": slope(found),
                "note": "the ratio is the slope of log seconds over log size, upper half",
            }
        )
    return table


if __name__ == "__main__":
    for row in rows():
        print(f"{row['work']}: {row['ours']}; slope {row['ratio']:.2f}")
