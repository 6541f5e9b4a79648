"""Evaluate folders of Parquet, up to one that is larger than the memory it is allowed: time and peak size.

    python benchmarks/out_of_core.py [--largest 4e7]

Logs of 10⁴ to 4·10⁷ transitions (2 GB) get the default answer with its tails, and the largest one spelled
features as well. The folder is written to a temporary place and removed afterwards. ``policyrisk evaluate``
runs in a child, whose processor time and peak resident size are as the kernel counted them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import policyrisk as pr
from policyrisk.data import write_parquet

_EPISODES = 4_000  # in a file
TILES = "tiles:25x25,dims=state_0+state_1"
SIZES = 1e4, 1e5, 1e6, 4e6, 4e7  # transitions, about


def episodes(seed: int) -> pr.Trajectories:
    """Balls that drift about the unit square and slow down, ended at random; some are cut off."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(1 / 250, _EPISODES).clip(2, 2_000)
    rows = int(lengths.sum()) + _EPISODES
    speed = rng.normal(scale=0.02, size=(rows, 2))
    place = np.abs((np.cumsum(speed, axis=0) + rng.uniform(size=2)) % 2 - 1)
    rewards = -1 - place[: rows - _EPISODES, 0] + rng.normal(size=rows - _EPISODES)
    return pr.Trajectories(np.column_stack([place, speed]), rewards, lengths, rng.random(_EPISODES) < 0.98)


def write_folder(folder: Path, transitions: float) -> float:
    """Files until there are about as many transitions; their size in GB."""
    size, left = 0, round(transitions / 250)  # episodes
    for number in range(-(-left // _EPISODES)):
        path = folder / f"part-{number:04}.parquet"
        write_parquet(episodes(number)[:left], path)
        left -= _EPISODES
        size += path.stat().st_size
    return size / 1e9


def evaluate(folder: Path, *features: str) -> dict[str, Any]:
    """What ``policyrisk evaluate`` says of a folder, with seconds, peak resident size and files."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "out"
        command = [sys.executable, "-m", "policyrisk.cli", "evaluate", str(folder), "--out", str(out)]
        began = time.monotonic()
        child = subprocess.Popen([*command, *features, "--seed", "0", "--json"], stdout=subprocess.PIPE)
        assert child.stdout is not None
        printed = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"evaluate failed with {child.returncode}")
        return {
            **json.loads(printed),
            "taken": time.monotonic() - began,
            "used": used.ru_utime + used.ru_stime,
            "peak": used.ru_maxrss / 1e3,
            "stored": [path.stat().st_size / 1e6 for path in sorted(out.glob("*.npz"))],
        }


def rows(largest: float = SIZES[-1]) -> list[dict[str, Any]]:
    """A row for each size, and one for spelled features of the largest."""
    table, default = [], ("--quantiles", "0.05")
    sizes = [size for size in SIZES if size <= largest]
    for size, features in [*((size, default) for size in sizes), (sizes[-1], ("--features", TILES))]:
        with tempfile.TemporaryDirectory() as temporary:
            gigabytes = write_folder(Path(temporary), size)
            found = evaluate(Path(temporary), *features)
        stored = " + ".join(f"{each:.1f}" for each in found["stored"])
        table.append(
            {
                "work": f"{found['transitions']:,} transitions, {gigabytes:.2g} GB of Parquet, "
                f"policyrisk evaluate {' '.join(features)}",
                "ours": f"{found['taken']:.0f} s, {found['used']:.0f} s of processor time, "
                f"{found['peak']:.0f} MB",
                "peer": "bar 1,000 MB",
                "ratio": 1000 / found["peak"],
                "note": f"{found['features']}; files of {stored} MB",
            }
        )
        print(f"{table[-1]['work']}: {table[-1]['ours']} ({table[-1]['note']})", flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=float, default=SIZES[-1])
    rows(parser.parse_args().largest)


if __name__ == "__main__":
    main()
