"""Prediction intervals beside the truth: between what one return from a visited state will end.

    python benchmarks/truth_next.py                           the reporting tasks, 300 episodes, 2 data sets
    python benchmarks/truth_next.py --tasks tuning --repeats 3

By the default of ``pr.evaluate`` at level 0.9. At 100 visited states of every task:

    coverage    the share of 6,000 fresh returns of each state that is inside, averaged over the states
    region      the same in the worst of the regions of the record that have 5 of these states or more
    width       the average width in units of the average true range from 5 % to 95 %

Steps and regions were chosen on the tuning tasks, and nothing on the reporting ones.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from truth_intervals import fresh_returns
from truth_tasks import SETS, TASKS

import policyrisk as pr

STATES, FEW = 100, 5


def measure(name: str, episodes: int, repeat: int) -> tuple[float, float, float]:
    """Coverage, that of the worst region, and width, of one data set."""
    task = TASKS[name]()
    x = task.states(0, STATES)
    B = fresh_returns(name, task, x)
    data = task.sample(episodes, 1000 * repeat + episodes)
    result = pr.evaluate(data, discount=task.discount, seed=repeat)
    assert result.prediction is not None
    low, high = result.prediction_interval(x).T[:, :, None]
    tol = 1e-9 * np.abs(B).max()
    held = ((low - tol <= B) & (high + tol >= B)).mean(axis=1)
    region = result.prediction.regions.index(np.column_stack([x, np.zeros(len(x))]))
    sizes = np.bincount(region)
    shares = np.bincount(region, held)[sizes >= FEW] / sizes[sizes >= FEW]
    true = np.quantile(B, 0.95, axis=1) - np.quantile(B, 0.05, axis=1)
    return float(held.mean()), float(shares.min()), float((high - low).mean() / true.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["reporting"])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [name for each in given.tasks for name in SETS.get(each, [each])]
    rows = []
    print("| task | coverage | region | width |\n|---|---|---|---|")
    for name in [*names, "on average"]:
        if name in TASKS:
            made = [measure(name, given.episodes, repeat) for repeat in range(given.repeats)]
            rows.append(np.mean(made, axis=0))
        coverage, region, width = rows[-1] if name in TASKS else np.mean(rows, axis=0)
        print(f"| {name} | {coverage:.1%} | {region:.1%} | {width:.2f} |", flush=True)


if __name__ == "__main__":
    main()
