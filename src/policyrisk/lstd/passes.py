"""What LSTD's two passes over the data find besides sums: the returns and the starts, for the summary.

The first pass sums the equations and notes the returns of terminated episodes. The second, at known weights,
sums the episodes' scores for the error bars, and what the summary needs of the starts and of the completed
returns (:mod:`policyrisk.risk.completed`): of all episodes, those included that gave up every transition (see
:mod:`policyrisk.lstd.cutoffs`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from policyrisk._core.records import Additive, record
from policyrisk.equations import MomentEquations
from policyrisk.lstd.accumulate import accumulate
from policyrisk.lstd.cutoffs import Trim
from policyrisk.lstd.scores import EpisodeScores, ScorePass
from policyrisk.risk import RiskFunction, SampleReturns
from policyrisk.risk.completed import EPISODES, TRANSITIONS, CompletedReturns
from policyrisk.risk.start_sums import StartSums
from policyrisk.trajectories import Source, Trajectories, batches, gathered


@record
@dataclass(frozen=True, eq=False)
class FirstPass(Additive):
    """What the pass for the equations finds."""

    equations: MomentEquations
    returns: SampleReturns  # of the terminated episodes
    episodes: tuple[int, ...]  # of each part, in order

    @classmethod
    def over(cls, source: Source, **settings: Any) -> FirstPass:
        """Of one part of the data; the settings are :func:`policyrisk.lstd.accumulate.accumulate`'s."""
        returns = SampleReturns.of([])

        def observed() -> Iterator[Trajectories]:
            nonlocal returns
            for batch in batches(source):
                returns += SampleReturns.of(batch.returns(settings["discount"])[batch.terminated])
                yield batch

        equations = accumulate(observed(), **settings)
        return cls(equations, returns, (equations.episodes,))


@record
@dataclass(frozen=True, eq=False)
class SecondPass(Additive):
    """What the pass for the error bars finds."""

    scores: EpisodeScores
    starts: StartSums
    completed: CompletedReturns

    @classmethod
    def over(cls, source: Source, part: int, scores: ScorePass, risk: RiskFunction, cut: Trim) -> SecondPass:
        """Of one part of the data."""
        observed = Observed(source, risk)
        return cls(scores(cut(observed), part), observed.starts, observed.completed)


@record
@dataclass(frozen=True, eq=False)
class StartsAndReturns(Additive):
    """What the summary needs, where no other pass goes over the data."""

    starts: StartSums
    completed: CompletedReturns

    @classmethod
    def over(cls, source: Source, risk: RiskFunction) -> StartsAndReturns:
        """Of one part of the data."""
        observed = Observed(source, risk)
        deque(observed, maxlen=0)
        return cls(observed.starts, observed.completed)


class Observed:
    """A source whose starts and completed returns are summed at an estimate on the way through."""

    def __init__(self, source: Source, risk: RiskFunction) -> None:
        self.source, self.risk = source, risk
        sizes = risk.w_mean.size, risk.w_second.size
        self.starts, self.completed = StartSums.empty(*sizes), CompletedReturns.empty(*sizes)

    def __iter__(self) -> Iterator[Trajectories]:
        for batch in gathered(self.source, EPISODES, TRANSITIONS):
            self.starts += self.risk.start_sums(batch.starts())
            self.completed += self.risk.completed_sums(batch)
            yield batch
