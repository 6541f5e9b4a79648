"""A policy improved on a simulator, and how much better it is on fresh episodes.

Old and new policy run the same K fresh episodes (starts, and random numbers as far as they go together), none
of which the search has seen. With returns g_k of mean m and variance v, a criterion f(m, v) has influences

    i_k = ∂f/∂m (g_k − m) + ∂f/∂v ((g_k − m)² − v)

and the difference of f between the two policies the standard error √(Σ_k (i_k − i'_k)² / (K (K − 1))).
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, Seed, as_count
from policyrisk._core.output import plain
from policyrisk._core.random import keys
from policyrisk._core.records import write_atomically
from policyrisk._core.text import number, table
from policyrisk.control.actor_critic import COLUMNS, ActorCritic, ActorCriticResult, player
from policyrisk.control.sarsa import Starts
from policyrisk.criteria import MeanMinusStd
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.start_sums import SampleReturns
from policyrisk.trajectories import Trajectories

_LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class BeforeAfter:
    """A search's result, and the fresh episodes of its first and of its last policy."""

    result: ActorCriticResult
    before: Trajectories
    after: Trajectories
    discount: float

    def compared(self) -> dict[str, tuple[Estimate, Estimate, Estimate]]:
        """Mean, std and value of the criterion: before, after, and the difference over the same episodes.

        Episodes that were cut off count for what they earned up to there.
        """
        old, new = self.before.returns(self.discount), self.after.returns(self.discount)
        criteria = {"mean": MeanMinusStd(0.0), "std": _Std(), "value": self.result.criterion}
        return {name: _compared(criterion, old, new) for name, criterion in criteria.items()}

    def __str__(self) -> str:
        header = ["", "before", "after", "difference"]
        rows = [
            [name, *(f"{number(each)} ± {number(each.standard_error, 2)}" for each in found)]
            for name, found in self.compared().items()
        ]
        return table(header, rows)

    def to_dict(self) -> dict[str, Any]:
        """The comparison in plain values."""
        names = ("before", "after", "difference")
        return {
            "criterion": str(self.result.criterion),
            "episodes": len(self.after),
            "cut_off": [int((~data.terminated).sum()) for data in (self.before, self.after)],
            **{
                name: {key: plain(each.to_dict()) for key, each in zip(names, found, strict=True)}
                for name, found in self.compared().items()
            },
        }

    def write_history(self, path: Path) -> Path:
        """Write the learning curve as CSV, an iteration a line."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["iteration", *COLUMNS])
        writer.writerows([k, *row] for k, row in enumerate(self.result.history.tolist(), 1))
        write_atomically(path, lambda file: file.write(text.getvalue().encode()))
        return path


def improve(
    search: ActorCritic,
    simulator: Any,
    seed: Seed = None,
    *,
    fresh: int = 1000,
    starts: Starts | None = None,
    max_steps: int = 10_000,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> BeforeAfter:
    """Fit a search to a simulator, and run its first and its last policy on ``fresh`` episodes.

    The other arguments are those of :meth:`ActorCritic.fit`.

    >>> import policyrisk as pr
    >>> portfolio = pr.domains.Portfolio()
    >>> phi = portfolio.features()
    >>> critic = pr.LSTD(pr.Joint([pr.Polynomial(2, [0], [50], dims=[0]), phi]), variance="direct")
    >>> start, criterion = pr.SoftmaxPolicy(phi, actions=2), pr.criteria.MeanMinusVariance(0.2)
    >>> found = improve(pr.ActorCritic(start, criterion, critic, 200, 10), portfolio, seed=0)
    >>> before, after, difference = found.compared()["value"]
    >>> bool(difference.low > 0), bool(np.isclose(after - before, difference))
    (True, True)
    """
    count = as_count(fresh, "fresh", 2)
    own, again = np.random.SeedSequence([int(word) for word in keys(seed)]).spawn(2)
    play = player(simulator, count, starts, max_steps)
    result = search.fit(
        simulator, own, starts=starts, max_steps=max_steps, checkpoint=checkpoint, resume=resume
    )

    def episodes(policy: Any) -> Trajectories:
        # A sequence counts what it has spawned: each policy needs one that has spawned nothing yet.
        return play(policy, np.random.SeedSequence(again.entropy, spawn_key=again.spawn_key))

    return BeforeAfter(result, episodes(search.policy), episodes(result.policy), search.critic.discount)


class _Std:
    """√v, as a criterion."""

    def slopes(self, mean: float, variance: float) -> tuple[float, float, float]:
        root = float(np.sqrt(variance))
        return root, 0.0, 0.5 / root if root > 0 else 0.0


def _compared(criterion: Any, old: Floats, new: Floats) -> tuple[Estimate, Estimate, Estimate]:
    values, influences = [], []
    for returns in (old, new):
        sample = SampleReturns.of(returns)
        value, by_mean, by_variance = criterion.slopes(sample.mean, sample.variance)
        moved = returns - sample.mean
        influence = by_mean * moved + by_variance * (moved**2 - sample.variance)
        influences.append(influence)
        values.append(value)
    values.append(values[1] - values[0])
    influences.append(influences[1] - influences[0])
    before, after, difference = (
        Estimate.of(value, float(influence.std(ddof=1)) / len(influence) ** 0.5, len(influence), _LEVEL)
        for value, influence in zip(values, influences, strict=True)
    )
    return before, after, difference
