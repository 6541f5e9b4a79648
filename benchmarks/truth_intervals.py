"""Intervals at states beside the truth: mean, std, 5 % quantile, mean of the worst 5 %, chance of a loss.

    python benchmarks/truth_intervals.py                      the reporting tasks, 300 episodes
    python benchmarks/truth_intervals.py --tasks tuning --episodes 100 300 --repeats 3
    python benchmarks/truth_intervals.py --show FILE          the tables of an earlier run

At 30 visited states of every task, by the default of ``pr.evaluate``; states that a log does not hold are
left out of its averages. The line below which a return is a loss is the median over the states of their 10 %
quantiles; the truth is exact where it is known, else from 6,000 fresh returns of every state. What was chosen
by looking at figures (how far draws move, the weights of the score of tails) was chosen on the tuning tasks;
nothing was chosen on the reporting tasks.

    error       √(mean (value − truth)²), in units of the root mean variance (a chance as it is)
    coverage    of nominal 95 % intervals, in percent, with those of truths below and above them
    width       half of it over 1.96 × the error, 1 being ideal
    score       the interval score, in the same units: width + 2/.05 × by how far the truth is outside
    at 0        stds whose intervals begin at 0
    best        the error over that of the best single member of the tails, known in hindsight
    warned      data sets with a warning or worse
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before NumPy and Numba are imported
    for name in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")

import numpy as np
from truth_task import CACHE, Array, Task
from truth_tasks import SETS, TASKS

import policyrisk as pr
from policyrisk.errors import PolicyRiskError

Q, STATES, RETURNS = 0.05, 30, 6000
OF = ("mean", "std", "5% quantile", "CVaR", "P(loss)")
TAILS = slice(2, None)
MEASURES = ("error", "coverage", "below", "above", "width", "score")


def fresh_returns(name: str, task: Task, x: Array) -> Array:
    """Returns of every state, (n, RETURNS), rising."""
    path = CACHE / f"{name}-returns-{len(x)}-{RETURNS}.npy"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(77)
        found = np.stack([task.returns(np.repeat(one[None], RETURNS, axis=0), rng) for one in x])
        np.save(path, np.sort(found, axis=1))
    return np.load(path)


def said(distribution: Any, x: Array, line: float) -> Array:
    """The tails' three quantities, (3, n)."""
    values = [distribution.quantile(x, Q), distribution.cvar(x, Q), distribution.probability(x, below=line)]
    return np.stack(values)


def measure(name: str, episodes: int, repeat: int) -> dict[str, Any]:
    """One data set of one task."""
    task = TASKS[name]()
    x = task.states(0, STATES)
    B = fresh_returns(name, task, x)
    line = float(np.median(np.quantile(B, 0.1, axis=1)))
    values = np.unique(B)
    if values.size < 200:  # between two returns, so that no rounding decides
        line = float((line + min(values[values > line + 1e-9], default=line)) / 2)
    k = int(np.ceil(Q * RETURNS))
    J, std = task.exact(x) if task.exact is not None else (B.mean(axis=1), B.std(axis=1))
    truth = np.stack([J, std, B[:, k - 1], B[:, :k].mean(axis=1), (B < line).mean(axis=1)])
    unit = float(np.sqrt(B.var(axis=1).mean()))
    units = np.array([unit] * 4 + [1.0])[:, None]
    data = task.sample(episodes, 1000 * repeat + episodes)
    began = time.process_time()
    result = pr.evaluate(data, discount=task.discount, quantiles=[Q], loss_below=line, seed=repeat)
    seconds = time.process_time() - began
    risk, dist = result.risk, result.distribution
    assert dist is not None
    known = risk.visited(x)
    x, truth = x[known], truth[:, known]
    found = np.stack([risk.mean(x), risk.std(x), *said(dist, x, line)])
    ends = [risk.interval(x, of="mean"), risk.interval(x, of="std")]
    ends += [dist.interval(x, of="quantile", q=Q), dist.interval(x, of="cvar", q=Q)]
    ends.append(dist.interval(x, of="probability", below=line))
    low, high = np.stack(ends).transpose(2, 0, 1)
    tol = 1e-4 * units + 1e-9
    below, above = truth < low - tol, truth > high + tol
    outside = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
    members = getattr(dist, "members", ())
    alone = [said(replace(dist, members=(replace(each, share=1.0),)), x, line) for each in members]
    kinds = [each.name if each.residual or each.name == "forest" else "LSTD" for each in members]
    row: dict[str, Any] = {
        "task": name,
        "episodes": episodes,
        "repeat": repeat,
        "square": np.square((found - truth) / units),
        "coverage": 1.0 - below - above,
        "below": below,
        "above": above,
        "half": (high - low) / 2 / units,
        "score": (high - low + 40.0 * outside) / units,
    }
    row = {
        key: each.mean(axis=1).tolist() if isinstance(each, np.ndarray) else each for key, each in row.items()
    }
    squares = [np.square((each - truth[TAILS]) / units[TAILS]).mean(axis=1).tolist() for each in alone]
    return row | {
        "zero": float(np.mean(low[1] <= 1e-9 * unit)),
        "members": dict(zip(kinds, squares, strict=True)),
        "warned": any(each.severity in ("warning", "serious") for each in result.advice),
        "seconds": seconds,
    }


def of_task(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The averages of a task's data sets, each measure (5,)."""
    plain = ("square", "coverage", "below", "above", "half", "score", "zero", "warned", "seconds")
    mean = {key: np.mean([row[key] for row in rows], axis=0) for key in plain}
    mean["error"] = np.sqrt(mean["square"])
    mean["width"] = mean["half"] / 1.96 / np.maximum(mean["error"], 1e-3)
    kinds = set.intersection(*(set(row["members"]) for row in rows))
    alone = [np.sqrt(np.mean([row["members"][kind] for row in rows], axis=0)) for kind in kinds]
    best = np.maximum(np.min(alone, axis=0), 1e-3) if alone else np.full(3, np.nan)
    return mean | {"best": mean["error"][TAILS] / best}


def show(rows: list[dict[str, Any]]) -> None:
    """The tables: a row for each quantity, and one for each task."""
    for episodes in dict.fromkeys(row["episodes"] for row in rows):
        some = [row for row in rows if row["episodes"] == episodes]
        names = [name for name in TASKS if any(row["task"] == name for row in some)]
        tasks = {name: of_task([row for row in some if row["task"] == name]) for name in names}
        print(f"\n{episodes:,} episodes, {len(names)} tasks, {len(some)} data sets\n")
        print("| | error | coverage | least | below | above | width | median width | score | best |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for j, of in enumerate(OF):
            at = {m: np.array([each[m][j] for each in tasks.values()]) for m in MEASURES}
            best = [each["best"][j - 2] for each in tasks.values()] if j >= 2 else [np.nan]
            worst = int(np.argmin(at["coverage"]))
            cells = [f"{at['error'].mean():.3f}", f"{at['coverage'].mean():.1%}"]
            cells += [f"{at['coverage'][worst]:.0%} ({names[worst]})"]
            cells += [f"{at[m].mean():.1%}" for m in ("below", "above")]
            cells += [
                f"{at['width'].mean():.2f}",
                f"{np.median(at['width']):.2f}",
                f"{at['score'].mean():.2f}",
            ]
            print(f"| {of} | {' | '.join(cells)} | {np.exp(np.mean(np.log(best))):.2f} |")
        print(f"\nstds at 0: {np.mean([each['zero'] for each in tasks.values()]):.1%}\n")
        print("| task: error, coverage, width |", " | ".join(OF), "| warned | seconds |")
        print("|---" * (len(OF) + 3) + "|")
        for name, each in tasks.items():
            cells = [
                f"{each['error'][j]:.2f}, {each['coverage'][j]:.0%}, {each['width'][j]:.1f}"
                for j in range(len(OF))
            ]
            print(f"| {name} | {' | '.join(cells)} | {each['warned']:.0%} | {each['seconds']:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["reporting"])
    parser.add_argument("--episodes", nargs="+", type=int, default=[300])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("truth_intervals.json"))
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE")
    given = parser.parse_args()
    if given.show:
        show([row for path in given.show for row in json.loads(path.read_text())])
        return
    warnings.simplefilter("ignore")
    names = [name for each in given.tasks for name in SETS.get(each, [each])]
    rows: list[dict[str, Any]] = []
    for episodes, repeat, name in product(given.episodes, range(given.repeats), names):
        try:
            rows.append(measure(name, episodes, repeat))
        except PolicyRiskError as error:
            print(f"{name} {repeat}: {type(error).__name__}: {str(error)[:90]}")
            continue
        covered = " ".join(f"{share:.2f}" for share in rows[-1]["coverage"])
        print(f"{name} {episodes} {repeat}: {covered}; {rows[-1]['seconds']:.1f} s", flush=True)
        given.out.write_text(json.dumps(rows) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
