"""V at the start states on the same episodes: by LSTD in three ways and by the plain sample.

    python benchmarks/accuracy.py            all of it
    python benchmarks/accuracy.py chain      one of chain, boyan, pinball

Each problem is sampled again and again. For each estimate of the variance of the return from the start
distribution the table gives its bias and root mean square error relative to the true V, and the share of
nominal 95% intervals that held V. Intervals of the features' estimates cover LSTD's own limit, so that
features that cannot show V (the paper's line and parabola) cover less: the bias says why. The sample
variance has the usual interval from the fourth moment. Ratios are of the sample's rms error to ours.

True V: exact for the chains; for pinball from 70 fresh episodes of every start (relative standard error below
0.5%).

No peer's fitted distribution is in the table: d3rlpy's fitted Q evaluation with quantiles, on the first data
set of the chain, had not come to the end of 6,000 steps of 256 transitions after 500 seconds.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import policyrisk as pr
from policyrisk.control import pinball_policy
from policyrisk.errors import PolicyRiskWarning


@dataclass(frozen=True)
class Problem:
    """Episodes of one policy with a known V over its start distribution."""

    sample: Callable[[int], pr.Trajectories]  # from a seed
    truth: float
    estimators: dict[str, pr.LSTD]
    replications: int


def chain() -> Problem:
    """The paper's chain from its first state, 500 episodes, with the paper's features and with a table."""
    walk = pr.domains.walk(30, 0.7)
    line, parabola = (pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2))
    return Problem(
        sample=lambda seed: walk.sample(0, 500, seed=seed),
        truth=float(walk.variance()[0]),
        estimators={
            **_three("line and parabola", lambda **how: pr.LSTD(line, parabola, lam=0.95, **how)),
            **_three("table", lambda **how: pr.LSTD(pr.Tabular(30), lam=0.95, **how)),
        },
        replications=200,
    )


def boyan() -> Problem:
    """Boyan's chain from its first state, 500 episodes, with his four hat functions and with a table."""
    walk = pr.domains.boyan()
    n = walk.n
    knots = np.linspace(0, n - 1, 4)

    def hats(states: Any) -> Any:
        return np.maximum(0.0, 1.0 - np.abs(np.asarray(states, float) - knots) / (knots[1] - knots[0]))

    return Problem(
        sample=lambda seed: walk.sample(0, 500, seed=seed),
        truth=float(walk.variance()[0]),
        estimators={
            **_three("hats", lambda **how: pr.LSTD(hats, lam=0.9, **how)),
            **_three("table", lambda **how: pr.LSTD(pr.Tabular(n), lam=0.9, **how)),
        },
        replications=200,
    )


def pinball() -> Problem:
    """The paper's experiment: 3,000 trajectories from states at rest, the same ones in every data set.

    With the paper's tiles, and with the features that experiments/pinball_extended.py prefers.
    """
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from experiments.pinball import PinballParameters
    from experiments.pinball_extended import ExtendedParameters, candidates

    maze, policy = pr.domains.Pinball("simple", noise=0.03), pinball_policy()

    starts = maze.sample_starts(3000, 0)

    def sample(seed: int, times: int = 1) -> pr.Trajectories:
        return maze.rollout(policy, np.repeat(starts, times, axis=0), seed)

    tiles = pr.TileCoding([0, 0], [1, 1], bins=[50, 50], dims=[0, 1])
    preferred = "bases for J, tiles for V, direct"
    return Problem(
        sample=sample,
        truth=float(np.var(sample(10**6, times=70).returns(), ddof=1)),
        estimators={
            **_three("50×50 tiles", lambda **how: pr.LSTD(tiles, lam=0.9, **how)),
            f"LSTD, {preferred}": candidates(PinballParameters(), ExtendedParameters())[preferred],
        },
        replications=10,
    )


PROBLEMS = {"chain": chain, "boyan": boyan, "pinball": pinball}


def _three(name: str, lstd: Callable[..., pr.LSTD]) -> dict[str, pr.LSTD]:
    return {
        f"LSTD, {name}: M − J²": lstd(),
        f"LSTD, {name}: direct": lstd(variance="direct"),
        f"LSTD, {name}: constrained": lstd(nonnegative_at="visited"),
    }


def measure(name: str) -> list[dict[str, Any]]:
    """Bias, error and coverage of each estimate on one problem."""
    problem = PROBLEMS[name]()
    found: dict[str, list[tuple[float, bool]]] = {}

    def note(estimator: str, estimate: Any) -> None:
        held = bool(estimate.low <= problem.truth <= estimate.high)
        found.setdefault(estimator, []).append((float(estimate), held))

    for seed in range(problem.replications):
        data = problem.sample(seed)
        for estimator, lstd in problem.estimators.items():
            summary = lstd.fit(data).summary(data.starts())
            note(estimator, summary.variance)
        note("sample variance", summary.sample.variance)
    rows = []
    for estimator, values in found.items():
        estimates = np.array([value for value, _ in values]) / problem.truth
        rows.append(
            {
                "problem": name,
                "estimate": estimator,
                "replications": len(values),
                "bias": float(estimates.mean() - 1.0),
                "rmse": float(np.sqrt(np.mean((estimates - 1.0) ** 2))),
                "coverage": float(np.mean([held for _, held in values])),
            }
        )
    return rows


def rows() -> list[dict[str, Any]]:
    """Everything as rows of the benchmark's table."""
    table = []
    for name in PROBLEMS:
        *ours, sample = measure(name)
        for row in (*ours, sample):
            beside = {
                "peer": f"sample variance: bias {sample['bias']:+.1%}, rms error {sample['rmse']:.1%}",
                "ratio": sample["rmse"] / row["rmse"],
            }
            table.append(
                {
                    "work": f"V at the start, {name}: {row['estimate']}",
                    "ours": f"bias {row['bias']:+.1%}, rms error {row['rmse']:.1%}",
                    **({} if row is sample else beside),
                    "note": f"{row['replications']} data sets, 95% intervals hold V in {row['coverage']:.1%}",
                }
            )
    return table


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore", PolicyRiskWarning)
    for name in names:
        for row in measure(name):
            print(
                f"{row['problem']:8s} {row['estimate']:48s} bias {row['bias']:+7.1%}  rms error "
                f"{row['rmse']:6.1%}  coverage {row['coverage']:6.1%}  ({row['replications']} data sets)"
            )


if __name__ == "__main__":
    main(sys.argv[1:] or list(PROBLEMS))
