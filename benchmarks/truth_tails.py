"""Tails at states beside the truth: the 5 % quantile, the mean of the worst 5 %, and the chance of a loss.

    python benchmarks/truth_tails.py                          the reporting tasks, 300 episodes
    python benchmarks/truth_tails.py --tasks tuning --episodes 100 300 --repeats 3

At 30 visited states of every task, by the default of ``pr.evaluate``. The line below which a return is a loss
is the median over the states of their 10 % quantiles; the truth is from 6,000 fresh returns of every state.
What was chosen by looking at figures (the weights of the score, the reading of intervals) was chosen on the
tuning tasks; nothing was chosen on the reporting tasks.

    error       √(mean (value − truth)²), in units of the root mean variance (a chance as it is)
    ratio       of the error to that of the best single member, known in hindsight, in all data sets of a task
    coverage    of nominal 95 % intervals, with the share of truths below and above them
    width       half of it over 1.96 × the error, 1 being ideal
    warned      data sets with a warning or worse
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from dataclasses import replace
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from truth_task import CACHE, Array, Task  # noqa: E402
from truth_tasks import TASKS  # noqa: E402

import policyrisk as pr  # noqa: E402
from policyrisk.errors import PolicyRiskError  # noqa: E402

TUNING = (
    *("lognormal", "drawdown", "navigation", "machines", "queue", "inventory"),
    *("lake", "queue_cut_5", "network", "mountain_car", "heavy_tails", "blackjack"),
)
REPORTING = [name for name in TASKS if name not in TUNING]
SETS = {"tuning": TUNING, "reporting": REPORTING}
Q, STATES, RETURNS = 0.05, 30, 6000
OF = ("quantile", "CVaR", "P(loss)")


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
    """The three quantities, (n, 3)."""
    values = [distribution.quantile(x, Q), distribution.cvar(x, Q), distribution.probability(x, below=line)]
    return np.stack(values, axis=1)


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
    truth = np.stack([B[:, k - 1], B[:, :k].mean(axis=1), (B < line).mean(axis=1)], axis=1)
    unit = float(np.sqrt(B.var(axis=1).mean()))
    units = np.array([unit, unit, 1.0])
    data = task.sample(episodes, 1000 * repeat + episodes)
    began = time.process_time()
    result = pr.evaluate(data, discount=task.discount, quantiles=[Q], loss_below=line, seed=repeat)
    seconds = time.process_time() - began
    dist: Any = result.distribution
    found = said(dist, x, line)
    ends = [dist.interval(x, of=of, q=Q) for of in ("quantile", "cvar")]
    low, high = np.stack([*ends, dist.interval(x, of="cdf", z=dist.just_below(line))]).transpose(2, 1, 0)
    tol = 1e-4 * units + 1e-9
    alone = [replace(dist, members=(replace(each, share=1.0),)) for each in dist.members]
    return {
        "coverage": ((low <= truth + tol) & (truth <= high + tol)).mean(axis=0),
        "below": (truth < low - tol).mean(axis=0),
        "above": (truth > high + tol).mean(axis=0),
        "square": np.square((found - truth) / units).mean(axis=0),
        "half": ((high - low) / 2 / units).mean(axis=0),
        "members": {
            one.members[0].name if one.members[0].residual or one.members[0].name == "forest" else "LSTD": (
                np.square((said(one, x, line) - truth) / units).mean(axis=0)
            )
            for one in alone
        },
        "warned": any(each.severity in ("warning", "serious") for each in result.advice),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["reporting"])
    parser.add_argument("--episodes", nargs="+", type=int, default=[300])
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [name for each in given.tasks for name in SETS.get(each, [each])]
    for episodes in given.episodes:
        print(f"{episodes} episodes, {given.repeats} data sets: {', '.join(OF)}")
        rows = []
        for name in names:
            sets = []
            for repeat in range(given.repeats):
                try:
                    sets.append(measure(name, episodes, repeat))
                except PolicyRiskError as error:
                    print(f"{name} {repeat}: {type(error).__name__}: {str(error)[:90]}")
            if not sets:
                continue
            mean = {key: np.mean([one[key] for one in sets], axis=0) for key in sets[0] if key != "members"}
            error = np.sqrt(mean["square"])
            kinds = set.intersection(*(set(one["members"]) for one in sets))
            alone = [np.sqrt(np.mean([one["members"][kind] for one in sets], axis=0)) for kind in kinds]
            ratio = error / np.maximum(np.min(alone, axis=0), 1e-3) if alone else np.full(3, np.nan)
            width = mean["half"] / 1.96 / np.maximum(error, 1e-3)
            rows.append((mean["coverage"], error, ratio, width))
            cells = [mean["coverage"], mean["below"], mean["above"], error, ratio, width]
            text = " | ".join(" ".join(f"{v:5.2f}" for v in cell) for cell in cells)
            print(f"{name:18s} {text} | warned {mean['warned']:.0%} | {mean['seconds']:.1f} s", flush=True)
        coverage, error, ratio, width = (np.array([row[i] for row in rows]) for i in range(4))
        print(f"coverage on average {coverage.mean(axis=0).round(3)}, least {coverage.min(axis=0).round(2)}")
        print(
            f"error {error.mean(axis=0).round(3)}, ratio to the best member (geometric mean) "
            f"{np.exp(np.nanmean(np.log(np.maximum(ratio, 1e-3)), axis=0)).round(2)}, "
            f"width (median) {np.median(width, axis=0).round(2)}"
        )


if __name__ == "__main__":
    main()
