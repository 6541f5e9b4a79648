"""What LSTD's two passes over the data find besides sums: the returns and the starts, for the summary.

The first pass sums the equations and notes the returns of terminated episodes. The second, at known weights,
sums the episodes' scores for the error bars, and what the summary needs of the starts: of all episodes, those
included that gave up every transition (see :mod:`policyrisk.lstd.cutoffs`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.records import record
from policyrisk.equations import MomentEquations
from policyrisk.lstd.accumulate import accumulate
from policyrisk.lstd.cutoffs import Trim
from policyrisk.lstd.scores import EpisodeScores, ScorePass
from policyrisk.risk import RiskFunction, SampleReturns
from policyrisk.risk.summary import StartSums
from policyrisk.trajectories import Source, Trajectories, batches

_STARTS = 1 << 12  # starts that are looked at together


@record
@dataclass(frozen=True, eq=False)
class FirstPass:
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

    def __add__(self, other: FirstPass) -> FirstPass:
        return FirstPass(
            self.equations + other.equations, self.returns + other.returns, self.episodes + other.episodes
        )


@record
@dataclass(frozen=True, eq=False)
class SecondPass:
    """What the pass for the error bars finds."""

    scores: EpisodeScores
    starts: StartSums

    @classmethod
    def over(cls, source: Source, part: int, scores: ScorePass, risk: RiskFunction, cut: Trim) -> SecondPass:
        """Of one part of the data."""
        observed = ObservedStarts(source, risk)
        return cls(scores(cut(observed), part), observed.sums)

    def __add__(self, other: SecondPass) -> SecondPass:
        return SecondPass(self.scores + other.scores, self.starts + other.starts)


class ObservedStarts:
    """A source whose starts are summed at an estimate on the way through."""

    def __init__(self, source: Source, risk: RiskFunction) -> None:
        self.source, self.risk = source, risk
        self.sums = StartSums.empty(risk.w_mean.size, risk.w_second.size)

    @classmethod
    def over(cls, source: Source, risk: RiskFunction) -> StartSums:
        """The sums of a source that nobody else goes through."""
        observed = cls(source, risk)
        deque(observed, maxlen=0)
        return observed.sums

    def __iter__(self) -> Iterator[Trajectories]:
        waiting: list[npt.NDArray[Any]] = []
        count = 0
        for batch in batches(self.source):
            waiting.append(batch.starts())
            count += len(batch)
            if count >= _STARTS:
                self._take(waiting)
                waiting, count = [], 0
            yield batch
        if count:
            self._take(waiting)

    def _take(self, starts: list[npt.NDArray[Any]]) -> None:
        self.sums += self.risk.start_sums(np.concatenate(starts))
