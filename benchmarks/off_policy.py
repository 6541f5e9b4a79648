"""Another policy's risk from logs: LSTD-Q beside importance sampling, and beside LSTD.

    python benchmarks/off_policy.py

Accuracy: ICU-Sepsis (``examples/sepsis.py`` has the process and its truth). From 20,000 episodes of the
clinicians' policy, the variance of the length of stay over the start distribution, for two targets: half
clinicians and half the optimal policy, and the optimal policy. Weighted importance sampling gets the same
episodes with the true propensities: every episode counts with the product of its likelihood ratios.

Speed: a walk of 10⁶ transitions on 50×50 tiles with 4 actions, beside LSTD(0) on the same transitions, in
turns in one process that holds BLAS and Numba to one thread.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lstd import ONE_THREAD, TILES, best, in_child, walk

import policyrisk as pr

EPISODES, DATA_SETS = 20_000, 10
ACTIONS, BAR = 4, 5.0


def weighted_importance_sampling(data: pr.Trajectories, policy: np.ndarray) -> tuple[float, float]:
    """The variance of the return under the policy, and how many episodes stand behind it."""
    ratios = policy[data.states[data.visited_rows, 0], data.actions] / data.propensities
    weights = np.multiply.reduceat(ratios, data.offsets[:-1])
    weights /= weights.sum()
    returns = data.returns()
    return float(weights @ (returns - weights @ returns) ** 2), float(1 / (weights @ weights))


def accuracy() -> list[dict[str, Any]]:
    """Root mean square errors of both, from the same episodes."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    import sepsis

    P, start, clinicians = sepsis.load()
    optimal = sepsis.optimal(P, clinicians)
    targets = {
        "clinicians and optimal, half and half": (clinicians + optimal) / 2,
        "the optimal policy": optimal,
    }
    ours, peers = ({target: [] for target in targets} for _ in range(2))
    behind: dict[str, list[float]] = {target: [] for target in targets}
    for seed in range(DATA_SETS):
        data = sepsis.record(P, start, clinicians, EPISODES, seed)
        for target, policy in targets.items():
            risk = pr.LSTDQ(pr.Tabular(sepsis.STATES), policy).fit(data, error_bars=False)
            ours[target].append(float(risk.summary(data.starts()).variance))
            estimate, episodes = weighted_importance_sampling(data, policy)
            peers[target].append(estimate)
            behind[target].append(episodes)
    table = []
    for target, policy in targets.items():
        truth = sepsis.exact(P, start, policy)[2]
        error, peer = (
            float(np.sqrt(np.mean((np.array(found[target]) - truth) ** 2))) for found in (ours, peers)
        )
        table.append(
            {
                "work": f"ICU-Sepsis, variance of the stay under {target}, from {EPISODES:,} episodes of the "
                "clinicians",
                "ours": f"rms error {error:.1f} of {truth:.1f}",
                "peer": f"weighted importance sampling: {peer:.1f}",
                "ratio": peer / error,
                "note": f"{DATA_SETS} data sets; the peer knows the propensities and rests on "
                f"{min(behind[target]):.0f} to {max(behind[target]):.0f} effective episodes",
            }
        )
    return table


def speeds() -> dict[str, float]:
    """Seconds of the sums, and of a fit without error bars, by both."""
    data = walk(5_000, 200, 0.005)
    rng = np.random.default_rng(1)
    data = replace(data, actions=rng.integers(ACTIONS, size=data.transitions))

    def target(states: np.ndarray) -> np.ndarray:
        return np.broadcast_to([0.4, 0.3, 0.2, 0.1], (len(states), ACTIONS))

    estimators = {
        "LSTD": pr.LSTD(TILES, lam=0.0, variance="direct"),
        "LSTDQ": pr.LSTDQ(TILES, target, actions=ACTIONS),
    }
    for estimator in estimators.values():
        estimator.fit(data[:500], error_bars=False)  # compiled before it is timed
    found: dict[str, float] = {}
    for _ in range(5):  # in turns, so that both meet the same disturbances
        for name, estimator in estimators.items():
            works = {
                "sums": lambda estimator=estimator: estimator.equations(data),
                "fit": lambda estimator=estimator: estimator.fit(data, error_bars=False),
            }
            for work, call in works.items():
                found[f"{name} {work}"] = min(found.get(f"{name} {work}", np.inf), best(call, 1))
    return found


def rows() -> list[dict[str, Any]]:
    """The table: what was done, our figure, what it is compared with, and the ratio."""
    table, seconds = accuracy(), in_child("speeds", ONE_THREAD, __file__)
    for work, words in (("sums", "sums of one pass"), ("fit", "the fit, without error bars")):
        ours, lstd = seconds[f"LSTDQ {work}"], seconds[f"LSTD {work}"]
        table.append(
            {
                "work": f"LSTDQ, 50×50 tiles × {ACTIONS} actions, 10⁶ transitions, one core: {words}",
                "ours": f"{ours:.2f} s, {ours / lstd:.1f} times as long as LSTD",
                "peer": f"bar {BAR:.0f} times LSTD's {lstd:.2f} s",
                "ratio": BAR * lstd / ours,
            }
        )
    return table


def main() -> None:
    if sys.argv[1:] == ["speeds"]:
        print(json.dumps(speeds()))
        return
    for row in rows():
        print(
            f"{row['work']}: {row['ours']} | {row['peer']} | ratio {row['ratio']:.2f} | {row.get('note', '')}"
        )


if __name__ == "__main__":
    main()
