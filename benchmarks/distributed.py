"""LSTD(λ) on Ray: a folder of shards, read and summed by one worker, by two, and without Ray.

With 20 × 20 tiles, whose sums are small, and with 50 × 50, whose sums take longer to send than to make.

Each figure comes from a process of its own, whose peak resident size is the driver's. Without Ray and by one
worker there is one thread; the start of Ray is not counted.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lstd import LAM, ONE_THREAD, in_child, walk

from policyrisk import distributed, readers
from policyrisk.distributed import reduce
from policyrisk.features import TileCoding
from policyrisk.lstd import LSTD
from policyrisk.passes import here

SHARDS = 16
SIDES = (20, 50)


def estimator(side: int) -> LSTD:
    return LSTD(TileCoding([0, 0], [1, 1], bins=[side, side]), lam=LAM)


def write(folder: Path, episodes: int) -> None:
    """Shards, each of ``episodes`` episodes of 200 steps."""
    for number in range(SHARDS):
        readers.write_parquet(walk(episodes, 200, 0.005, seed=number), folder / f"{number:02d}.parquet")


def measure(folder: str, side: int, workers: int) -> dict[str, float]:
    """Seconds of a pass for the equations and of a whole fit, and the peak of this process in MB."""
    lstd = estimator(side)
    if workers == 0:
        data = readers.read(folder)
        lstd.fit(readers.read(f"{folder}/00.parquet"))  # compiled before it is timed
        return _timed(lambda: lstd.equations(data), lambda: lstd.fit(data))
    with distributed.cluster(workers=workers):
        distributed.fit(lstd, [f"{folder}/00.parquet"] * workers)
        return _timed(lambda: distributed.equations(lstd, folder), lambda: distributed.fit(lstd, folder))


def _timed(*works: Any) -> dict[str, float]:
    found = {}
    for name, work in zip(("equations", "fit"), works, strict=True):
        start = time.perf_counter()
        work()
        found[name] = time.perf_counter() - start
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def sizes(folder: str, side: int) -> dict[str, float]:
    """MB of the sums that a part of one shard and all of them send, for equations and for error bars."""
    found, lstd = {}, estimator(side)
    for name, data in (("part", readers.read(f"{folder}/00.parquet")), ("root", readers.read(folder))):
        sent: list[float] = []

        def noting(work: Any, data: Any = data, sent: list[float] = sent) -> Any:
            value = here(data)(work)
            sent.append(len(pickle.dumps(value)) / 1e6)
            return value

        lstd.fit_by(noting)
        found[f"{name}, equations"], found[f"{name}, error bars"] = sent[0], sent[-1]
    return found


def rows(episodes: int = 2500) -> list[dict[str, str]]:
    """The table: what was done, our figure, what it is compared with, and the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), episodes)
        return [row for side in SIDES for row in _rows_of(folder, side, SHARDS * episodes * 200)]


def _rows_of(folder: str, side: int, transitions: int) -> list[dict[str, str]]:
    local = in_child(f"measure {folder} {side} 0", ONE_THREAD, __file__)
    all_cores = in_child(f"measure {folder} {side} 0", {}, __file__)
    one = in_child(f"measure {folder} {side} 1", {}, __file__)
    two = in_child(f"measure {folder} {side} 2", {}, __file__)
    sent = in_child(f"sizes {folder} {side}", {}, __file__)
    size = f"{SHARDS} shards, {transitions:.1e} transitions, {side}×{side} tiles"

    def row(work: str, ours: str, peer: str, ratio: float, note: str = "") -> dict[str, str]:
        return {"work": work, "ours": ours, "peer": peer, "ratio": f"{ratio:,.2f}", "note": note}

    return [
        *(
            row(
                f"Ray, two workers, {what}: {size}",
                f"{two[key]:.2f} s",
                f"one worker {one[key]:.2f} s, without Ray on one thread {local[key]:.2f} s",
                one[key] / two[key],
                f"without Ray on all threads {all_cores[key]:.2f} s",
            )
            for what, key in (("equations", "equations"), ("fit with error bars", "fit"))
        ),
        row(
            "the driver's peak resident size",
            f"{two['peak']:.0f} MB",
            f"without Ray {local['peak']:.0f} MB",
            two["peak"] / local["peak"],
            f"{reduce.PARTS} parts at most; MB of a sum: "
            + ", ".join(f"{name} {value:.1f}" for name, value in sent.items()),
        ),
    ]


def main() -> None:
    match sys.argv[1:]:
        case ["measure", folder, side, workers]:
            print(json.dumps(measure(folder, int(side), int(workers))))
        case ["sizes", folder, side]:
            print(json.dumps(sizes(folder, int(side))))
        case few:
            for row in rows(*map(int, few)):
                print(f"{row['work']}: {row['ours']} | {row['peer']} | ratio {row['ratio']} | {row['note']}")


if __name__ == "__main__":
    main()
