"""Evaluate a folder of Parquet that is larger than the memory it is allowed: peak resident size and time.

    python benchmarks/out_of_core.py [--gigabytes 2] [--features tiles:25x25,dims=state_0+state_1]

The folder is written to a temporary place and removed afterwards. ``policyrisk evaluate`` runs in a child,
whose peak resident size is as the kernel counted it (``ru_maxrss``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import policyrisk as pr
from policyrisk.data import write_parquet

_EPISODES = 4_000  # in a file
FEATURES = ("tiles:25x25,dims=state_0+state_1", "auto")


def episodes(seed: int) -> pr.Trajectories:
    """Balls that drift about the unit square and slow down, ended at random; some are cut off."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(1 / 250, _EPISODES).clip(2, 2_000)
    rows = int(lengths.sum()) + _EPISODES
    speed = rng.normal(scale=0.02, size=(rows, 2))
    place = np.abs((np.cumsum(speed, axis=0) + rng.uniform(size=2)) % 2 - 1)
    rewards = -1 - place[: rows - _EPISODES, 0] + rng.normal(size=rows - _EPISODES)
    return pr.Trajectories(np.column_stack([place, speed]), rewards, lengths, rng.random(_EPISODES) < 0.98)


def write_folder(folder: Path, gigabytes: float) -> tuple[int, float]:
    """Files until there is as much; how many, and their size in GB."""
    files, size = 0, 0
    while size < gigabytes * 1e9:
        path = folder / f"part-{files:04}.parquet"
        write_parquet(episodes(files), path)
        size += path.stat().st_size
        files += 1
    return files, size / 1e9


def evaluate(folder: Path, features: str) -> dict[str, Any]:
    """What ``policyrisk evaluate`` says of a folder, with its seconds and its peak resident size in MB."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "out"
        command = [sys.executable, "-m", "policyrisk.cli", "evaluate", str(folder), "--out", str(out)]
        began = time.monotonic()
        child = subprocess.Popen(
            [*command, "--features", features, "--seed", "0", "--json"], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        printed = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"evaluate failed with {child.returncode}")
        return {
            **json.loads(printed),
            "taken": time.monotonic() - began,
            "peak": used.ru_maxrss / 1e3,
            "stored": (out / "risk.npz").stat().st_size / 1e6,
        }


def rows(gigabytes: float = 2.0, features: Sequence[str] = FEATURES) -> list[dict[str, Any]]:
    """A row for each choice of features."""
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        _, size = write_folder(Path(temporary), gigabytes)
        for spelling in features:
            found = evaluate(Path(temporary), spelling)
            table.append(
                {
                    "work": f"{size:.2f} GB of Parquet evaluated with {spelling}: peak resident size",
                    "ours": f"{found['peak']:.0f} MB, {found['taken']:.0f} s",
                    "peer": "bar 600 MB",
                    "ratio": 600 / found["peak"],
                    "note": f"{found['features']}, variance {found['variance_method']}, "
                    f"{found['transitions']:,} transitions, risk.npz {found['stored']:.1f} MB",
                }
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--features", action="append")
    arguments = parser.parse_args()
    for row in rows(arguments.gigabytes, arguments.features or FEATURES):
        print(f"{row['work']}: {row['ours']} ({row['note']})")


if __name__ == "__main__":
    main()
