"""A policy improved on a simulator, and how much better it is on fresh episodes.

The search may end in a policy that is worse than one on its way. Its last policy and those of the iterations
that looked best run fresh episodes, the same for all, and the best of them is the new policy. Old and new
policy then run other fresh episodes (the same starts, and random numbers as far as they go together), none of
which the search or the choice has seen. The difference of a criterion is taken episode by episode:
:mod:`policyrisk.control.trials`.
"""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from policyrisk._core.arrays import Seed, as_count
from policyrisk._core.devices import Device
from policyrisk._core.files import write_atomically
from policyrisk._core.output import plain
from policyrisk._core.random import keys
from policyrisk._core.text import Readable, TextTable, number
from policyrisk.control.actor_critic import COLUMNS, ActorCritic, ActorCriticResult
from policyrisk.control.trials import GroupedReturns, Starts, player
from policyrisk.data import Trajectories
from policyrisk.features import TileCoding
from policyrisk.risk.estimate import Estimate

_CHOICE = 4  # the best is chosen on a part of the fresh episodes, at least those of an iteration


@dataclass(frozen=True, eq=False)
class BeforeAfter(Readable):
    """A search's result, and the fresh episodes of its first and of its best policy."""

    result: ActorCriticResult  # ``result.policy`` is the best
    before: Trajectories
    after: Trajectories
    discount: float
    groups: TileCoding | None = None  # of the starts, as the search's
    iteration: int | None = None  # how many iterations led to the best policy

    def compared(self) -> dict[str, tuple[Estimate, Estimate, Estimate]]:
        """Mean, std and value of the criterion: before, after, and the difference over the same episodes.

        Episodes that were cut off count for what they earned up to there.
        """
        old, new = (
            GroupedReturns.of(data.returns(self.discount), data.starts(), self.groups)
            for data in (self.before, self.after)
        )
        pairs = {
            "mean": (old.mean, new.mean),
            "std": (old.std, new.std),
            "value": (old.judged(self.result.criterion), new.judged(self.result.criterion)),
        }
        return {name: (a.estimate(), b.estimate(), b.less(a)) for name, (a, b) in pairs.items()}

    def _blocks(self) -> list[str | TextTable]:
        header = ["", "before", "after", "difference"]
        rows = [
            [name, *(f"{number(each)} ± {number(each.standard_error, 2)}" for each in found)]
            for name, found in self.compared().items()
        ]
        return [TextTable(header, rows)]

    def to_dict(self) -> dict[str, Any]:
        """The comparison in plain values."""
        names = ("before", "after", "difference")
        return {
            "criterion": str(self.result.criterion),
            "episodes": len(self.after),
            "iteration": self.iteration,
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
    device: Device = "cpu",
) -> BeforeAfter:
    """Fit a search to a simulator, and run its first and its best policy on fresh episodes.

    Parameters
    ----------
    search
        The :class:`ActorCritic`.
    simulator, seed, starts, max_steps, checkpoint, resume, device
        As of :meth:`ActorCritic.fit`.
    fresh
        How many fresh episodes.

    Returns
    -------
    BeforeAfter
        ``compared()`` has the numbers, before, after and their difference.

    Examples
    --------
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
    own, again, choice = np.random.SeedSequence([int(word) for word in keys(seed)]).spawn(3)
    play = player(simulator, count, starts, max_steps, device)
    kept: Any = {"checkpoint": checkpoint, "resume": resume}
    result = search.fit(simulator, own, starts=starts, max_steps=max_steps, device=device, **kept)
    judge = player(simulator, max(search.episodes, count // _CHOICE), starts, max_steps, device)

    def value(policy: Any) -> float:
        data = judge(policy, choice)
        returns = GroupedReturns.of(data.returns(search.critic.discount), data.starts(), search.groups)
        found = returns.judged(search.criterion).value
        return found if search.criterion.larger_is_better else -found

    candidates = [(search.iterations, result.policy), *result.candidates]
    iteration, best = max(candidates, key=lambda each: np.nan_to_num(value(each[1]), nan=-np.inf))
    both = play(search.policy, again), play(best, again)
    result = replace(result, policy=best)
    return BeforeAfter(result, *both, search.critic.discount, search.groups, iteration)
