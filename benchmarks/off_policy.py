"""Another policy's risk from logs: LSTD-Q beside importance sampling, and beside LSTD.

    python benchmarks/off_policy.py
    python benchmarks/off_policy.py coverage 100 6000  of intervals, from 100 logs with seeds from 6000 on

Accuracy: ICU-Sepsis (``examples/sepsis.py`` has the process and its truth). From 20,000 episodes of the
clinicians' policy, the variance of the length of stay over the start distribution, for two targets: half
clinicians and half the optimal policy, and the optimal policy. Weighted importance sampling gets the same
episodes with the true propensities: every episode counts with the product of its likelihood ratios.

Tails: on the same logs the 95% quantile of the stay and the mean of the longest 5%, by the log as a chain,
for two targets: half clinicians and half the optimal policy, and the uniformly random one. The random one
often does what clinicians hardly ever do: evaluate refuses it, and the table says what the chain comes to
without this limit. The coverage of 95% intervals is counted on logs of 5,000 episodes, over the starts and at
states with at least 50 logged visits.

Speed: a walk of 10⁶ transitions on 50×50 tiles with 4 actions, beside LSTD(0) on the same transitions, in
turns in one process that holds BLAS and Numba to one thread.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lstd import ONE_THREAD, TILES, best, in_child, walk

import policyrisk as pr
from policyrisk.features.target import Target
from policyrisk.markov import log
from policyrisk.passes import here
from policyrisk.returns.chain_tails import ChainTails

EPISODES, DATA_SETS = 20_000, 10
HALF = "half clinicians and half optimal"
WORST, FEWER, VISITS = 0.05, 5_000, 50  # of the tails: their share; for coverage: episodes, visits of a state
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


def process() -> tuple[Any, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """ICU-Sepsis: its example, P, the starts and the policies by name."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    import sepsis

    P, start, clinicians = sepsis.load()
    policies = {
        "clinicians": clinicians,
        HALF: (clinicians + sepsis.optimal(P, clinicians)) / 2,
        "random": np.full(clinicians.shape, 1 / clinicians.shape[1]),
    }
    return sepsis, P, start, policies


def stays(sepsis: Any, P: np.ndarray, policy: np.ndarray) -> pr.MarkovChain:
    """The chain of a policy, with the reward −1 a day."""
    return pr.MarkovChain.from_mdp(P, -1.0 * (np.arange(sepsis.STATES) < sepsis.DIED), policy)


def tails_of(data: pr.Trajectories, policy: np.ndarray) -> ChainTails:
    """Those of a target by the log as a chain, as evaluate has them, without its other parts."""
    target = Target.of(policy, None, 0, 0)
    return ChainTails.fit_by(here(data), pr.Tabular(len(policy)), target, 1.0, 1.0)


def weighted_tails(data: pr.Trajectories, policy: np.ndarray) -> tuple[float, float]:
    """The WORST quantile of the return and the mean below it, by weighted importance sampling."""
    ratios = policy[data.states[data.visited_rows, 0], data.actions] / data.propensities
    returns = data.returns()
    order = np.argsort(returns)
    weights = np.multiply.reduceat(ratios, data.offsets[:-1])[order]
    running, returns = np.cumsum(weights) / weights.sum(), returns[order]
    worst = np.diff(np.minimum(running, WORST), prepend=0.0)
    return float(returns[np.searchsorted(running, WORST)]), float(worst @ returns / WORST)


def tails() -> list[dict[str, Any]]:
    """Root mean square errors of both tails over the starts, from the same episodes."""
    sepsis, P, start, policies = process()
    table, limit, logs = [], log.UNCOVERED_MOST, []
    for seed in range(DATA_SETS):
        data = sepsis.record(P, start, policies["clinicians"], EPISODES, seed)
        logs.append(replace(data, rewards=-data.rewards))
    for name in (HALF, "random"):
        policy, truth = policies[name], stays(sepsis, P, policies[name]).distribution(start)
        log.UNCOVERED_MOST = np.inf
        ours = [tails_of(data, policy).without_intervals() for data in logs]
        uncovered = float(np.mean([each.chain.log.uncovered @ start for each in ours]))
        found = np.array([(o.quantile(WORST).value, o.cvar(WORST).value) for o in (t.over() for t in ours)])
        log.UNCOVERED_MOST = limit
        peers = np.array([weighted_tails(data, policy) for data in logs])
        both = {"95% quantile": truth.quantile(WORST), "mean of the longest 5%": truth.cvar(WORST)}
        for k, (what, exact) in enumerate(both.items()):
            error, peer = (float(np.sqrt(np.mean((each[:, k] - exact) ** 2))) for each in (found, peers))
            table.append(
                {
                    "work": f"ICU-Sepsis, {what} of the stay under {name}, from the same episodes",
                    "ours": f"rms error {error:.2f} of {-exact:.1f} days",
                    "peer": f"weighted importance sampling: {peer:.2f}",
                    "ratio": peer / max(error, 1e-9),
                    "note": f"{DATA_SETS} data sets; {uncovered:.2f} steps of an episode of the target were "
                    "never logged" + (", so that evaluate refuses it" if uncovered > 0.5 else ""),
                }
            )
    return table


def coverage(logs: int, first: int) -> None:
    """How often 95% intervals hold the truth, printed after every ten logs of FEWER episodes."""
    sepsis, P, start, policies = process()
    policy = policies[HALF]
    truth = stays(sepsis, P, policy)
    exact, worst = truth.distribution(start), truth.cvar(WORST)
    right = np.array([exact.quantile(WORST), exact.cvar(WORST), exact.mean])
    held, at_states = np.zeros(3), np.zeros(2)  # of the latter: held, asked
    for k in range(1, logs + 1):
        data = sepsis.record(P, start, policies["clinicians"], FEWER, first + k - 1)
        found = tails_of(replace(data, rewards=-data.rewards), policy)
        over = found.over()
        answers = over.quantile(WORST), over.cvar(WORST), over.estimate("mean")
        x = np.flatnonzero(found.chain.known & (found.chain.log.visits >= VISITS))
        low, high = found.interval(x, of="cvar", q=WORST).T
        held += [each.low <= value <= each.high for each, value in zip(answers, right, strict=True)]
        at_states += np.count_nonzero((low <= worst[x]) & (worst[x] <= high)), x.size
        if k % 10 == 0:
            shares = ", ".join(
                f"{what} {share:.1%}"
                for what, share in zip(("quantile", "mean of the worst", "mean"), held / k, strict=True)
            )
            print(
                f"{k} logs: {shares}; at {at_states[1] / k:.0f} states {at_states[0] / at_states[1]:.1%}",
                flush=True,
            )


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
    table, seconds = accuracy() + tails(), in_child("speeds", ONE_THREAD, __file__)
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
    if sys.argv[1:2] == ["coverage"]:
        warnings.simplefilter("ignore", pr.errors.PolicyRiskWarning)
        coverage(*(int(number) for number in sys.argv[2:4]))
        return
    for row in rows():
        print(
            f"{row['work']}: {row['ours']} | {row['peer']} | ratio {row['ratio']:.2f} | {row.get('note', '')}"
        )


if __name__ == "__main__":
    main()
