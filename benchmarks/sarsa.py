"""The learned pinball policy: actions a second in rollouts, and transitions a second in training.

python benchmarks/sarsa.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from policyrisk.control import pinball_policy
from policyrisk.domains import Pinball


def best(function: Callable[[], Any], rounds: int) -> tuple[Any, float, float]:
    """The result, and the least wall and processor times of several rounds after one that compiles."""
    function()
    wall = busy = np.inf
    for _ in range(rounds):
        start, start_busy = time.perf_counter(), time.process_time()
        result = function()
        wall, busy = min(wall, time.perf_counter() - start), min(busy, time.process_time() - start_busy)
    return result, wall, busy


def rows() -> list[dict[str, str]]:
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from experiments.train_pinball import TrainingParameters, run

    pinball, policy = Pinball("simple"), pinball_policy()
    starts = pinball.sample_starts(50_000, seed=1)
    records = []
    for work, play in (
        ("rollout with the shipped policy, recorded", pinball.rollout),
        ("the same, returns alone", pinball.returns),
    ):
        data, wall, busy = best(lambda play=play: play(policy, starts, seed=2), 5)
        actions = int(data.lengths.sum())
        records.append(
            {
                "work": work,
                "ours": f"{actions / wall / 1e6:.2f} M actions/s",
                "peer": "bar 2 M actions/s on both cores",
                "ratio": f"{actions / wall / 2e6:.2f}",
                "note": f"{actions / busy / 1e6:.2f} M per second of processor time",
            }
        )
    result, wall, busy = best(lambda: run(TrainingParameters(episodes=10_000, seed=3)), 2)
    transitions = int(result.lengths.sum())
    records.append(
        {
            "work": "SARSA(0.3), 14,400 bases of which 81 are near, one core",
            "ours": f"{transitions / wall / 1e6:.2f} M transitions/s",
            "note": f"{transitions / busy / 1e6:.2f} M per second of processor time",
        }
    )
    return records


if __name__ == "__main__":
    for record in rows():
        print(" | ".join(record.get(key, "") for key in ("work", "ours", "peer", "ratio", "note")))
