"""Logs as they really are: what intervals, tests and levels of trust are worth on them, by simulation.

    python benchmarks/logs.py clusters     coverage of the mean with 12, 30 and 100 clusters, 1,000 logs each
    python benchmarks/logs.py order        size and power of the tests of order
    python benchmarks/logs.py retention    coverage of tails over the starts with customers cut off, 200 logs
    python benchmarks/logs.py trust        how often clean tasks have the best level of trust
    python benchmarks/logs.py target       CartPole: other policies from 300 random episodes

``--logs`` and ``--seed`` change how many there are, and which. Clusters are those of LSTD with a table, whose
intervals of the mean over the starts are those of a default evaluation where no episode was cut off.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before NumPy and Numba are imported
    for name in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from test_clusters import trades
from test_retention import customers, truth
from truth_simulators import push_cart
from truth_tasks import TASKS

import policyrisk as pr
from policyrisk.evaluation.order import EpisodeOrder
from policyrisk.returns.cut_off import CutOffReturns

Array = np.ndarray[Any, Any]
CLEAN = ("navigation", "machines", "network", "taxi", "cliff", "lake", "blackjack", "inventory", "labels")


def clusters(logs: int, seed: int) -> None:
    """Trades in blocks with a shared shock."""
    for count, each in ((12, 50), (30, 20), (100, 6)):
        held = {"clusters": 0, "episodes": 0}
        for k in range(logs):
            data = trades(seed + k, count, each)
            for by, log in (("clusters", data), ("episodes", replace(data, clusters=None))):
                mean = pr.LSTD(pr.Tabular(3)).fit(log).summary().mean
                held[by] += mean.low <= 0.683 <= mean.high
        said = ", ".join(f"by {by} {count / logs:.1%}" for by, count in held.items())
        print(f"{count} clusters of {each}, {logs} logs: {said}", flush=True)


def order(logs: int, seed: int) -> None:
    """Independent episodes, a shift of one standard deviation half-way, a trend, and neighbours alike."""
    rng = np.random.default_rng(seed)

    def autoregressive(n: int) -> Array:
        noise = rng.normal(size=n)
        for k in range(1, n):
            noise[k] += 0.3 * noise[k - 1]
        return noise

    cases: dict[str, Callable[[int], Array]] = {
        "independent, normal": rng.standard_normal,
        "independent, exponential": rng.standard_exponential,
        "independent, Student's t with 3": lambda n: rng.standard_t(3, n),
        "a shift of 1 std half-way": lambda n: rng.normal(size=n) + (np.arange(n) >= n // 2),
        "a trend of 1 std": lambda n: rng.normal(size=n) + np.linspace(0, 1, n),
        "twice the std from half-way on": lambda n: rng.normal(size=n) * (1 + (np.arange(n) >= n // 2)),
        "correlation 0.3 of neighbours": autoregressive,
    }
    for title, draw in cases.items():
        for n in (40, 100, 300, 1000):
            found = Counter[str]()
            for _ in range(logs):
                returns = draw(n)
                each = EpisodeOrder(returns, returns - returns.mean())
                said = {"alike": each.alike, "mean": each.mean.found, "spread": each.spread.found}
                found.update({**said, "any": any(said.values())})
            print(
                f"{title}, {n}: " + ", ".join(f"{of} {k / logs:.1%}" for of, k in found.items()), flush=True
            )


def retention(logs: int, seed: int) -> None:
    """P(value < 60) and the median of customers of whom a share is still there when the log ends."""
    returns = truth()
    right = np.array([np.median(returns), np.mean(returns < 60.0)])
    for age in (57, 21, 9):
        held, width, cut = {}, {}, []
        for k in range(logs):
            data = customers(400, age, seed=seed + k)
            cut.append(1.0 - data.terminated.mean())
            alone, found = CutOffReturns(data), {}
            for answer in ("weighted", "possible"):
                found[answer] = alone.quantiles([0.5], answer)[0.5], alone.below(60.0, answer)
            tails = pr.evaluate(data, quantiles=[0.5], loss_below=60.0, seed=0).tails()[1]
            found["model"] = tails["50.0% quantile"], tails["chance of a return below 60"]
            for answer, each in found.items():
                low, high = np.array([(e.low, e.high) for e in each]).T
                held.setdefault(answer, []).append((low <= right) & (right <= high))
                width.setdefault(answer, []).append(high - low)
        for answer, each in held.items():
            median, below = np.mean(each, axis=0)
            wide = np.median(width[answer], axis=0)
            title = f"{np.mean(cut):.0%} cut off, {len(each)} logs, {answer}"
            median, below = f"median {median:.1%}, width {wide[0]:.3g}", f"P {below:.1%}, width {wide[1]:.2g}"
            print(f"{title}: {median}; {below}", flush=True)


def trust(logs: int, seed: int) -> None:
    """The levels on tasks whose state holds all that matters, without cut-offs and without heavy tails."""
    total = Counter[str]()
    for name in CLEAN:
        task, levels, reasons = TASKS[name](), Counter[str](), []
        for k in range(logs):
            result = pr.evaluate(task.sample(300, seed + k), discount=task.discount, seed=k)
            levels[result.trust.level] += 1
            if result.trust.level != "good":
                reasons.append(result.trust.reason)
        total += levels
        print(f"{name}: {dict(levels)} {'; '.join(reasons)}", flush=True)
    print(f"all: good in {total['good']} of {total.total()}")


def played(right: Callable[[Array], Array], episodes: int, rng: np.random.Generator) -> pr.Trajectories:
    """CartPole, pushed to the right with a chance that depends on the state."""
    x = rng.uniform(-0.05, 0.05, (episodes, 4))
    going = np.arange(episodes)
    states, actions, owners = [x], [], [going]
    while going.size:
        actions.append(rng.random(len(x)) < right(x))
        x, over = push_cart(x, actions[-1])
        states.append(x)
        owners.append(going)
        x, going = x[~over], going[~over]
    of_steps, of_states = np.concatenate(owners[1:]), np.concatenate(owners)
    taken = np.concatenate(actions)[np.argsort(of_steps, kind="stable")].astype(np.int64)
    lengths = np.bincount(of_steps)
    whole = np.concatenate(states)[np.argsort(of_states, kind="stable")]
    return pr.Trajectories(whole, np.ones(taken.size), lengths, np.ones(episodes, bool), taken)


def lean(chance: float) -> Callable[[Array], Array]:
    """To the side that the pole falls to with this chance."""
    return lambda x: np.where(x[:, 2] + 0.3 * x[:, 3] > 0, chance, 1.0 - chance)


def target(logs: int, seed: int) -> None:
    """Targets near the random policy that was recorded: how many intervals miss the mean, and say nothing."""
    for discount in (1.0, 0.95):
        for chance in (0.35, 0.45, 0.52, 0.55, 0.6, 0.7):
            right = lean(chance)
            mean = float(played(right, 20_000, np.random.default_rng(10**6)).returns(discount).mean())
            said = Counter[str]()
            for k in range(logs):
                data = played(lean(0.5), 300, np.random.default_rng(seed + k))

                def policy(x: Array, right: Callable[[Array], Array] = right) -> Array:
                    return np.stack([1.0 - right(x), right(x)], axis=1)

                result = pr.evaluate(data, discount, target=policy, seed=k)
                own = result.summary.mean
                held = (
                    "withdrawn" if np.isnan(own.low) else "held" if own.low <= mean <= own.high else "missed"
                )
                said[held] += 1
                if held == "missed":
                    print(f"  {own} for {mean:.2f}, trust {result.trust}")
            print(f"γ = {discount:g}, chance {chance:g}, mean {mean:.2f}: {dict(said)}", flush=True)


def main() -> None:
    """One part, or all."""
    parts = {"clusters": (clusters, 1000), "order": (order, 1000), "retention": (retention, 200)}
    parts |= {"trust": (trust, 10), "target": (target, 4)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--logs", type=int)
    parser.add_argument("--seed", type=int, default=10_000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in given.parts:
        run, logs = parts[part]
        run(given.logs or logs, given.seed)


if __name__ == "__main__":
    main()
