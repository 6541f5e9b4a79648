"""LSTD with 10⁵ hashed features: time, memory and residual, and beside dense LSTD where both can run.

The data are pinball's: 8 tilings over position and velocity, hashed. Truth is Monte Carlo, from states that
the policy meets. Each case runs in a child process, whose peak resident size is its own. It takes some
minutes; the time for simulation is measured apart.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import policyrisk as pr
from policyrisk.control import pinball_policy
from policyrisk.equations import moment_equations as equations_module
from policyrisk.lstd import trace_products

FEATURES, BINS = 100_000, 16
BATCH = 30_000  # episodes, about 1.05·10⁶ transitions
BATCHES = 10
STATES, EPISODES = 200, 1_000  # of the truth
BOX = {"low": [0.0, 0.0, -1.4, -1.4], "high": [1.0, 1.0, 1.4, 1.4]}


def tiles(hashed: int, bins: int) -> pr.TileCoding:
    return pr.TileCoding(**BOX, bins=[bins] * 4, tilings=8, hashed=hashed)


def batch(number: int) -> pr.Trajectories:
    game = pr.domains.Pinball("simple", noise=0.03)
    return game.rollout(pinball_policy("simple"), game.sample_starts(BATCH, 2 * number), 2 * number + 1)


class Stream:
    """Batches that are made when they are asked for, and how long that took."""

    def __init__(self, batches: int) -> None:
        self.batches, self.seconds = batches, 0.0

    def __iter__(self) -> Iterator[pr.Trajectories]:
        for number in range(self.batches):
            start = time.perf_counter()
            made = batch(number)
            self.seconds += time.perf_counter() - start
            yield made


def truth(path: str) -> dict[str, float]:
    """Write states and their Monte Carlo moments."""
    data = batch(10_000)[:2000]
    rows = np.random.default_rng(0).choice(data.visited_rows, STATES, replace=False)
    x = data.states[rows]
    game = pr.domains.Pinball("simple", noise=0.03)
    found = pr.monte_carlo(game, pinball_policy("simple"), x, episodes=EPISODES, seed=1)
    np.savez(path, x=x, mean=found.mean, variance=found.variance, starts=data.states[data.visited_rows[::7]])
    return {}


def errors(risk: pr.RiskFunction, path: str) -> dict[str, float]:
    """Median errors of the mean, beside its spread, and of the std, beside its average; the known share."""
    with np.load(path) as known:
        x, J, V = known["x"], known["mean"], known["variance"]
    std = np.sqrt(risk.variance(x).clip(0.0))
    return {
        "known": float(risk.visited(x).mean()),
        "mean error": float(np.nanmedian(np.abs(risk.mean(x) - J)) / np.std(J)),
        "std error": float(np.nanmedian(np.abs(std - np.sqrt(V))) / np.mean(np.sqrt(V))),
    }


def large(lam: float, path: str, batches: int = BATCHES) -> dict[str, float]:
    """10⁵ features and 10⁷ transitions."""
    lstd = pr.LSTD(tiles(FEATURES, BINS), lam=lam)
    lstd.equations(batch(20_000)[:3])  # compiled before it is timed
    stream = Stream(batches)
    start = time.perf_counter()
    equations = lstd.equations(stream)
    summed = time.perf_counter() - start - stream.seconds
    sums_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    risk = lstd.solve(equations)
    solved = time.perf_counter() - start
    return {
        "transitions": float(equations.transitions),
        "visited": float(np.count_nonzero(equations.visits)),
        "entries": float(equations.A.nnz),
        "sums": summed,
        "simulation": stream.seconds,
        "solve": solved,
        "residual": risk.provenance.residual,
        "sums peak": sums_peak,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **errors(risk, path),
    }


def spread(moved: Any, values: Any) -> float:
    """How far values moved, root mean square, relative to their standard deviation."""
    return float(np.sqrt(np.nanmean(moved**2)) / np.nanstd(values))


def both(lam: float, path: str) -> dict[str, Any]:
    """Dense and sparse sums of 4,000 features, and what cutting traces off does to the estimates."""
    lstd, data = pr.LSTD(tiles(4_000, 8), lam=lam), batch(0)
    found: dict[str, Any] = {}

    def run(name: str, most: int, cut: float) -> pr.RiskFunction:
        equations_module.DENSE_MOST, trace_products.TRACE_CUT = most, cut
        lstd.equations(data[:3])
        start = time.perf_counter()
        equations = lstd.equations(data)
        middle = time.perf_counter()
        risk = lstd.solve(equations)
        entries = equations.A.nnz if equations.sparse else equations.A.size
        seconds = [middle - start, time.perf_counter() - middle]
        found[name] = {"seconds": seconds, "entries": entries, **errors(risk, path)}
        return risk

    with np.load(path) as known:
        x = known["starts"]
    dense = run("dense", 8000, 0.0)
    J, V = dense.mean(x), dense.variance(x)
    fitted = lstd.fit(data)
    bars = fitted.standard_error(x, of="mean"), fitted.standard_error(x, of="variance")
    for cut in (0.0, 1e-3, 1e-2, 1e-1):
        risk = run(f"cut {cut:g}", 100, cut)
        moved = risk.mean(x) - J, risk.variance(x) - V
        found[f"cut {cut:g}"] |= {
            "moved": [spread(d, v) for d, v in zip(moved, (J, V), strict=True)],
            "in bars": [float(np.nanmedian(np.abs(d) / s)) for d, s in zip(moved, bars, strict=True)],
            "residual": risk.provenance.residual,
        }
    return found


def in_child(*what: object) -> Any:
    """The result of ``python large.py what`` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, what)], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def rows() -> list[dict[str, str]]:
    """The table: what was done, our figure, what it is compared with, and the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "truth.npz")
        in_child("truth", path)
        beside = in_child("both", 0.9, path)
        many = {lam: in_child("large", lam, path) for lam in (0.9,)}
    dense, sparse = beside["dense"], beside[f"cut {trace_products.TRACE_CUT:g}"]

    def row(work: str, ours: str, peer: str, ratio: float, note: str = "") -> dict[str, str]:
        return {"work": work, "ours": ours, "peer": peer, "ratio": f"{ratio:,.2f}", "note": note}

    table = [
        row(
            "4,000 features, 10⁶ transitions, λ = 0.9: sparse sums and solution",
            "{:.1f} + {:.1f} s".format(*sparse["seconds"]),
            "dense {:.1f} + {:.1f} s".format(*dense["seconds"]),
            sum(dense["seconds"]) / sum(sparse["seconds"]),
            f"{sparse['entries']:,} entries of {dense['entries']:,}; median error of the mean "
            f"{sparse['mean error']:.1%} of its spread (dense {dense['mean error']:.1%}), of the std "
            f"{sparse['std error']:.1f} times its average ({dense['std error']:.1f}): the features' bias",
        )
    ]
    for name, each in beside.items():
        if name != "dense":
            table.append(
                row(
                    f"the same, traces {name}: estimates beside dense ones",
                    "moved by {:.1e} (mean), {:.1e} (variance) of their spread".format(*each["moved"]),
                    "median {:.2f} and {:.2f} standard errors".format(*each["in bars"]),
                    each["entries"] / beside["cut 0"]["entries"],
                    f"residual {each['residual']:.0e}; the ratio is of entries to those without a cut",
                )
            )
    for lam, each in many.items():
        expected = 20 * each["entries"] / 1e6
        table.append(
            row(
                f"10⁵ features, {each['transitions']:.2g} transitions, λ = {lam}",
                f"{each['sums']:.0f} s sums, {each['solve']:.0f} s solution, residual {each['residual']:.0e}",
                f"{each['simulation']:.0f} s simulation",
                each["simulation"] / (each["sums"] + each["solve"]),
                f"{each['visited']:,.0f} features visited, {each['entries']:,.0f} entries; median error "
                f"of the mean {each['mean error']:.1%} of its spread, of the std {each['std error']:.1f} "
                f"times its average, at {STATES} states, of which {each['known']:.0%} are known",
            )
        )
        table.append(
            row(
                f"the same, λ = {lam}: peak resident size",
                f"{each['peak']:,.0f} MB, {each['sums peak']:,.0f} MB before the solution",
                f"20 bytes an entry: {expected:,.0f} MB",
                each["peak"] / expected,
                "a dense matrix alone would take 80,000 MB",
            )
        )
    return table


def main() -> None:
    match sys.argv[1:]:
        case ["truth", path]:
            print(json.dumps(truth(path)))
        case ["both", lam, path]:
            print(json.dumps(both(float(lam), path)))
        case ["large", lam, path]:
            print(json.dumps(large(float(lam), path)))
        case _:
            for row in rows():
                print(f"{row['work']}: {row['ours']} | {row['peer']} | ratio {row['ratio']} | {row['note']}")


if __name__ == "__main__":
    main()
