"""The default's answers beside the truth, and beside what people would try instead, on the same episodes.

    python benchmarks/truth.py                                all tasks, 300 and 3,000 episodes
    python benchmarks/truth.py --tasks reporting              those on which nothing was chosen
    python benchmarks/truth.py --tasks taxi queue --episodes 100 300 --repeats 4 --methods policyrisk
    python benchmarks/truth.py --beside FILE                  with the numbers of an earlier run beside these
    python benchmarks/truth.py --compare                      false alarms of pr.compare
    python benchmarks/truth.py --worth                        pinball in Monte-Carlo trajectories

At 50 visited states of every task (truth_tasks.py), with J, σ the truth and averages over the states:

    error of std     √(mean (σ̂ − σ)² / mean σ²)        error of mean    √(mean (Ĵ − J)² / mean σ²)
    coverage         the share of the states whose nominal 95 % interval holds the truth
    width            the average width of the intervals, in units of √(mean σ²)

A nan (a state about which the method says nothing, or all of them where it refuses the data) counts as the
mean and std of all returns to go in the errors, and as not covered. At the start: whether the intervals of
mean and std hold the truth of the start distribution, and the errors of the values in units of its σ. Seconds
are of processor time.

From an earlier run (--beside) the methods come that this one lacks; its policyrisk is called "before".
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
if __name__ == "__main__":  # read when they are first imported; processes, not threads, share the machine
    os.environ.update({name: "1" for name in THREADS if name not in os.environ})

import numpy as np  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from truth_methods import METHODS, Answer, sample  # noqa: E402
from truth_tasks import SETS, TASKS  # noqa: E402

import policyrisk as pr  # noqa: E402
from policyrisk.errors import PolicyRiskWarning  # noqa: E402

Row = dict[str, Any]
Array = np.ndarray[Any, Any]
EPISODES = (300, 3000)
PROCESSES = 2
RIVALS = ("before", "knn", "forest", "boosting")  # the default must not be worse than the best of them


def measures(answer: Answer, J: Array, std: Array, start: tuple[float, float], overall: Answer) -> Row:
    """An answer's errors, coverage and widths, as the module's docstring defines them."""
    unit = float(np.sqrt(np.mean(std**2)))
    mean_hat = np.where(np.isfinite(answer.mean), answer.mean, overall.mean)
    std_hat = np.where(np.isfinite(answer.std), answer.std, overall.std)
    row: Row = {
        "std_error": _rms(std_hat - std) / unit,
        "mean_error": _rms(mean_hat - J) / unit,
        "std_correlation": _correlation(std_hat, std),
        "mean_correlation": _correlation(mean_hat, J),
        "unknown": int(np.sum(~np.isfinite(answer.mean) | ~np.isfinite(answer.std))),
    }
    for of, truth, interval in (("mean", J, answer.mean_interval), ("std", std, answer.std_interval)):
        low, high = interval.T
        known = np.isfinite(high - low)
        row[f"{of}_coverage"] = float(np.mean((low <= truth) & (truth <= high)))
        row[f"{of}_width"] = float(np.mean((high - low)[known]) / unit) if known.any() else float("nan")
    for of, truth, (value, low, high), (else_value, *_) in (
        ("mean", start[0], answer.start_mean, overall.start_mean),
        ("std", start[1], answer.start_std, overall.start_std),
    ):
        row[f"start_{of}_coverage"] = float(low <= truth <= high)
        row[f"start_{of}_error"] = ((value if np.isfinite(value) else else_value) - truth) / start[1]
        row[f"start_{of}_width"] = (high - low) / start[1]
    return row


def measure(task: str, episodes: int, repeat: int, methods: tuple[str, ...]) -> list[Row]:
    """One data set of one task, by every method."""
    warnings.simplefilter("ignore", PolicyRiskWarning)
    made = TASKS[task]()
    x = made.states(repeat)
    J, std = made.true(x)
    start = made.start_truth()
    seed = 1000 * repeat + episodes
    data = made.sample(episodes, seed)
    overall = sample(data, made.discount, x, seed)
    rows = []
    for method in methods:
        began = time.process_time()
        answer = METHODS[method](data, made.discount, x, seed)
        spent = time.process_time() - began
        rows.append(
            {
                "task": task,
                "episodes": episodes,
                "repeat": repeat,
                "method": method,
                **measures(answer, J, std, start, overall),
                "seconds": spent,
                "cut_off": float(1.0 - data.terminated.mean()),
                **answer.facts,
            }
        )
    return rows


def warm_up() -> None:
    """Compile what is compiled on its first use, so that the seconds are those of the work."""
    warnings.simplefilter("ignore", PolicyRiskWarning)
    for task in ("queue", "drawdown"):
        METHODS["policyrisk"](TASKS[task]().sample(50, 0), 1.0, TASKS[task]().states(0, 2), 0)


def average(rows: list[Row]) -> dict[tuple[str, int, str], dict[str, float]]:
    """The repeats' averages by task, episodes and method; errors as roots of average squares."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["episodes"], row["method"]), []).append(row)
    return {key: _average(group) for key, group in groups.items()}


def _average(group: list[Row]) -> dict[str, float]:
    found = {}
    for name in group[0]:
        values = [row.get(name) for row in group]
        if all(isinstance(value, (int, float)) for value in values):
            found[name] = _rms(np.array(values)) if name.endswith("_error") else float(np.mean(values))
    return found


def report(rows: list[Row], console: Console) -> None:
    """The one table, and below it what the default is asked for."""
    found = average(rows)
    others = [m for m in ("before", *METHODS) if m != "policyrisk" and any(key[2] == m for key in found)]
    console.print("rms error of std (of mean), coverage of 95 % intervals")
    table = Table(box=box.MARKDOWN)
    table.add_column("task, episodes")
    for column in ("policyrisk", *others, "r", "mean", "std", "start mean", "start std", "seconds"):
        table.add_column(column, justify="right")
    for task, episodes in dict.fromkeys(key[:2] for key in found):
        ours = found.get((task, episodes, "policyrisk"))
        cells = [f"{task}, {episodes:,}"]
        for method in ("policyrisk", *others):
            at = found.get((task, episodes, method))
            cells.append(f"{at['std_error']:.2f} ({at['mean_error']:.2f})" if at else "")
        if ours:
            cells.append(f"{ours['std_correlation']:.2f}")
            cells += [f"{ours[f'{of}_coverage']:.0%}" for of in ("mean", "std", "start_mean", "start_std")]
            cells.append(f"{ours['seconds']:.1f}")
        table.add_row(*cells)
    console.print(table)
    for line in verdict(rows):
        console.print(line)


def verdict(rows: list[Row]) -> list[str]:
    """Coverage and errors over all tasks, the worst of them, and rivals that were better."""
    found = average(rows)
    ours = {key[:2]: at for key, at in found.items() if key[2] == "policyrisk"}
    if not ours:
        return []
    lines = []
    for of in ("mean", "std", "start_mean", "start_std"):
        shares = {key: at[f"{of}_coverage"] for key, at in ours.items()}
        worst = min(shares, key=lambda key: shares[key])
        lines.append(
            f"coverage of {of.replace('_', ' ')}: {np.mean([*shares.values()]):.1%} on average, "
            f"least {shares[worst]:.0%} ({worst[0]}, {worst[1]:,})"
        )
    for rival in (*RIVALS, "sample"):
        both = [key for key in ours if (*key, rival) in found]
        if both:
            error, other = (
                np.mean([found[*key, method]["std_error"] for key in both])
                for method in ("policyrisk", rival)
            )
            lines.append(f"average error of std: {error:.3f}, {rival}: {other:.3f} ({len(both)} rows)")
    for key, at in ours.items():
        errors = {rival: found[*key, rival]["std_error"] for rival in RIVALS if (*key, rival) in found}
        if errors and at["std_error"] > 1.1 * min(errors.values()):
            best = min(errors, key=lambda rival: errors[rival])
            lines.append(
                f"{key[0]}, {key[1]:,}: {at['std_error'] / errors[best]:.2f} × the error of {best} "
                f"({at['std_error']:.3f} beside {errors[best]:.3f})"
            )
    for row in rows:
        said = row.get("advice", ["failed"])  # a refusal is a warning
        unwarned = all(advice.startswith(("ok", "note")) for advice in said)
        if row["method"] == "policyrisk" and row["std_error"] > 0.5 and unwarned:
            lines.append(f"{row['task']}, {row['episodes']:,}: an error of {row['std_error']:.2f} unwarned")
    return lines


def false_alarm(repeat: int) -> Row:
    """Two default evaluations of one policy, CliffWalking with 200 episodes each, compared by mean − std."""
    warnings.simplefilter("ignore", PolicyRiskWarning)
    task = TASKS["cliff"]()
    data = [task.sample(200, 10**6 + 2 * repeat + k) for k in (0, 1)]
    results = [pr.evaluate(part, discount=task.discount, seed=repeat) for part in data]
    risks = {name: result.risk for name, result in zip("ab", results, strict=True)}
    found = pr.compare(risks, criterion=pr.criteria.MeanMinusStd(1.0))
    p = float("nan") if found.significance is None else found.significance.p_value
    return {"repeat": repeat, "p": p, "features": [str(r.notes.get("features")) for r in results]}


def worth(console: Console, seed: int = 0) -> Row:
    """The default on the paper's 3,000 pinball trajectories, in Monte-Carlo trajectories as good as they."""
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from experiments import pinball

    result = pinball.run(pinball.PinballParameters(seed=seed))
    began = time.process_time()
    risk = pr.evaluate(result.data, seed=seed).risk
    spent = time.process_time() - began
    error = result.truth.error(*risk.mean_and_variance(result.grid.states))
    times = result.budget.needed(error.std_error) / len(result.data)
    console.print(
        f"pinball, seed {seed}: error of std {error.std_error:.3f} (r = {error.std_correlation:.3f}), "
        f"worth {times:.1f} × as many Monte-Carlo trajectories; {spent:.0f} s"
    )
    return {"seed": seed, "std_error": error.std_error, "worth": times, "seconds": spent}


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _correlation(a: Array, b: Array) -> float:
    constant = np.ptp(a) == 0.0 or np.ptp(b) == 0.0
    return float("nan") if constant else float(np.corrcoef(a, b)[0, 1])


def _earlier(path: Path, methods: tuple[str, ...]) -> list[Row]:
    """The rows of an earlier run by the methods that this one lacks; its default is "before"."""
    rows = json.loads(path.read_text())["rows"]
    for row in rows:
        row["method"] = "before" if row["method"] == "policyrisk" else row["method"]
    return [row for row in rows if row["method"] not in methods]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, *SETS], default=list(TASKS), metavar="TASK")
    parser.add_argument("--episodes", nargs="+", type=int, default=list(EPISODES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--beside", type=Path, help="raw numbers of an earlier run")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("truth.json"))
    parser.add_argument("--compare", type=int, nargs="?", const=200, metavar="N", help="N repetitions")
    parser.add_argument("--worth", action="store_true")
    given = parser.parse_args()
    console = Console(width=max(Console().width, 200))
    if given.worth:
        worth(console)
        return
    methods, tasks = tuple(given.methods), [name for each in given.tasks for name in SETS.get(each, [each])]
    rows: list[Row] = []
    began = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, spawn, warm_up) as pool:
        if given.compare:
            alarms = list(pool.map(false_alarm, range(given.compare)))
            p = np.array([row["p"] for row in alarms])
            share = float(np.mean(p < 0.05))
            error = np.sqrt(share * (1 - share) / p.size)
            console.print(
                f"compare of one policy with itself: p < .05 in {share:.1%} ± {error:.1%} of {p.size}"
            )
            given.out.write_text(json.dumps({"compare": alarms}, indent=1) + "\n")
            return
        jobs = {
            pool.submit(measure, task, episodes, repeat, methods): (task, episodes, repeat)
            for episodes, task, repeat in product(given.episodes, tasks, range(given.repeats))
        }
        for count, job in enumerate(as_completed(jobs), 1):
            rows += job.result()
            task, episodes, repeat = jobs[job]
            errors = ", ".join(f"{row['method']} {row['std_error']:.2f}" for row in job.result())
            console.print(
                f"{count}/{len(jobs)} {time.perf_counter() - began:.0f} s: {task}, {episodes:,}, "
                f"{repeat}: {errors}",
                highlight=False,
            )
            given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    place = {name: i for i, name in enumerate(TASKS)}
    rows.sort(key=lambda row: (place[row["task"]], row["episodes"], row["repeat"]))
    given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    report(rows + (_earlier(given.beside, methods) if given.beside else []), console)


if __name__ == "__main__":
    sys.exit(main())
