"""TD on one core: transitions a second, features included, and the cost of a small batch.

python benchmarks/td.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from policyrisk.data import Trajectories
from policyrisk.features import RadialBasis, TileCoding
from policyrisk.td import TD, StepSize

BOX = {"low": [0, 0], "high": [1, 1]}
STEP = StepSize(0.01)


def walks(episodes: int, length: int, seed: int = 0) -> Trajectories:
    """Random walks in the unit square, reflected at its edges, all of which terminate."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0.0, 0.02, (episodes, length + 1, 2))
    x = rng.random((episodes, 1, 2)) + np.cumsum(steps, axis=1)
    states = np.abs((x + 1.0) % 2.0 - 1.0).reshape(-1, 2)
    lengths, terminated = np.full(episodes, length), np.ones(episodes, dtype=bool)
    return Trajectories(states, -np.ones(episodes * length), lengths, terminated)


def seconds(function: Callable[[], Any], rounds: int = 7) -> tuple[float, float]:
    """The least wall time and the least processor time of several rounds, after one that compiles."""
    function()
    wall = busy = np.inf
    for _ in range(rounds):
        start, start_busy = time.perf_counter(), time.thread_time()
        function()
        wall, busy = min(wall, time.perf_counter() - start), min(busy, time.thread_time() - start_busy)
    return wall, busy


def loop(features: TileCoding, data: Trajectories) -> None:
    """TD(0) per episode as one writes it in NumPy, a transition at a time."""
    w_J, w_M = np.zeros(features.size), np.zeros(features.size)
    for k, episode in enumerate(data):
        tiles = features.active(episode.states[:-1])[:, 0]
        change_J, change_M = np.zeros_like(w_J), np.zeros_like(w_M)
        for t, r in enumerate(episode.rewards):
            last = t + 1 == len(tiles)
            J, M = (0.0, 0.0) if last else (w_J[tiles[t + 1]], w_M[tiles[t + 1]])
            change_J[tiles[t]] += r + J - w_J[tiles[t]]
            change_M[tiles[t]] += r**2 + 2 * r * J + M - w_M[tiles[t]]
        w_J += STEP(k) * change_J
        w_M += STEP(k) * change_M


def row(work: str, data: Trajectories, td: TD, peer: float | None, note: str) -> dict[str, str]:
    wall, busy = seconds(lambda: td.fit(data))
    rate = data.transitions / wall
    return {
        "work": work,
        "ours": f"{rate / 1e6:.1f} M transitions/s",
        "peer": "" if peer is None else f"{peer / 1e6:.3f} M transitions/s, a loop in NumPy",
        "ratio": "" if peer is None else f"{rate / peer:.0f}",
        "note": f"{note}{data.transitions / busy / 1e6:.1f} M per second of processor time",
    }


def rows() -> list[dict[str, str]]:
    tiles, tilings = TileCoding(bins=50, **BOX), TileCoding(bins=20, tilings=8, **BOX)
    radial = RadialBasis.grid(shape=8, **BOX)
    long, short, few = walks(5000, 200), walks(500, 200), walks(50, 200)
    peer = few.transitions / seconds(lambda: loop(tiles, few), rounds=2)[0]
    live = TD(tiles, step=STEP)
    one = long[0]
    live.fit(long[:10])
    call = seconds(lambda: [live.partial_fit(one) for _ in range(50)])[0] / 50
    return [
        row("TD(0), 50x50 tiles, 10^6 transitions", long, TD(tiles, step=STEP), peer, "bar: 10 M; "),
        row("the same, an update per step", long, TD(tiles, step=STEP, update="step"), None, ""),
        row("the same, averaged", long, TD(tiles, step=STEP, average=True), None, ""),
        row("TD(0.9), 50x50 tiles", long, TD(tiles, lam=0.9, step=STEP), None, "no trace is needed; "),
        row("the same, an update per step", short, TD(tiles, lam=0.9, step=STEP, update="step"), None, ""),
        row("TD(0), 8 tilings of 20x20", long, TD(tilings, step=STEP), None, ""),
        row("TD(0), 64 dense radial bases", short, TD(radial, step=STEP), None, "with the Gram matrix; "),
        {
            "work": "partial_fit of one episode of 200 steps, 2,500 tiles",
            "ours": f"{call * 1e6:.0f} µs a call",
        },
    ]


if __name__ == "__main__":
    for record in rows():
        print(" | ".join(record.get(key, "") for key in ("work", "ours", "peer", "ratio", "note")))
