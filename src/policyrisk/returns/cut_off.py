"""What cut-off episodes leave of the return's distribution over the starts without a model.

B is the return, R_t what an episode had earned after t steps, C the step at which it is cut off. From then on
it earns between γ^t l and γ^t h, with 0 as one of the two where all rewards have one sign, infinite otherwise
unless a discount bounds what rewards like those in the log sum up to. As soon as R_t + γ^t l ≥ z or
R_t + γ^t h < z, or at its end, an episode *tells* whether B < z. With T(z) the step at which it does, it is
seen to if T_k ≤ C_k. Of K episodes

    possible    P(B < z) is at least the share known to be below z, and at most that and the share u_0 that
                was cut off before it told, whatever the cut depends on
    weighted    F(z) = (1/K) Σ_k 1{T_k ≤ C_k} 1{B_k < z} / G(T_k),
                G(t) = P(C ≥ t) = Π_{s<t} (1 − c_s / n_s)

c_s being the episodes that were cut off after s steps and n_s those that could have been: at least s steps
long, and had not told by then. It is right where C does not depend on what the episode would have earned,
as when customers entered at different times and the log ends at one. (Zhao and Tsiatis 1997; Bang and Tsiatis
2000. The product over R in place of t would be biased: those who earn much a step reach a large R early.)

The weights sum to K (1 − u), u being the share that nobody was observed long enough to tell of. Intervals
take the ends of what u may be, so that they are as wide as what is possible where all episodes were cut off
after the same number of steps. Episode k moves F by ψ_k / K,

    ψ_k = 1{T_k ≤ C_k} 1{B_k < z} / G(T_k) − F + 1{cut off} a(C_k) − Σ_s a(s) c_s / n_s,
    a(s) = Σ_{j: T_j > s} 1{T_j ≤ C_j} 1{B_j < z} / G(T_j) / (n_s − c_s)

the last sum over the s at which it could have been cut off; G was estimated too. F (1 − F)/s² stands for the
number of episodes in Clopper and Pearson's interval, s being the error of F by the ψ (over clusters, where
there are any). A quantile's interval holds the z at which the interval of F holds q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk.data import Trajectories
from policyrisk.returns.start_distribution import Clusters, share_interval, within
from policyrisk.risk.estimate import Estimate, plain_estimates

_TOL = 1e-9  # of the largest return: a return that is nearer to a line is on it
_LINES = 400  # at most, that quantiles are found among
Answer: TypeAlias = Literal["weighted", "possible"]


@dataclass(frozen=True, eq=False)
class CutOffReturns:
    """Episodes, two or more, of which some were cut off.

    >>> data = Trajectories(np.zeros((6, 1)), [1.0, 3.0, 4.0], [1, 1, 1], [True, True, False])
    >>> returns = CutOffReturns(data)
    >>> [returns.below(z, "possible").high for z in (1.0, 5.0)]
    [0.70759..., 1.0]
    >>> returns.below(2.0, "weighted").value == 1 / 3
    True
    """

    data: Trajectories
    discount: float = 1.0
    unit: float = 1.0  # that the rewards are in

    @cached_property
    def so_far(self) -> Floats:
        """R after each step, (transitions,)."""
        data, first = self.data, self.data.offsets[:-1]
        step = np.arange(data.transitions) - np.repeat(first, data.lengths)
        total = np.cumsum(data.rewards * self.discount**step)
        found: Floats = total - np.repeat(np.r_[0.0, total][first], data.lengths)
        return found

    @cached_property
    def returns(self) -> Floats:
        """R of each episode at its end or cut, (K,)."""
        return self.so_far[self.data.offsets[1:] - 1]

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        """The least and the most that B may be, after each step, both (transitions,)."""
        data, gamma = self.data, self.discount
        step = np.arange(data.transitions) - np.repeat(data.offsets[:-1], data.lengths) + 1
        sign = np.array([min(data.rewards.min(), 0.0), max(data.rewards.max(), 0.0)])
        steps = math.inf if gamma == 1.0 else 1.0 / (1.0 - gamma)
        low, high = (float(each) * steps if each else 0.0 for each in sign)
        left = gamma ** step.astype(np.float64)
        with np.errstate(invalid="ignore"):
            return self.so_far + left * low, self.so_far + left * high

    @cached_property
    def _tol(self) -> float:
        return _TOL * float(np.abs(self.so_far).max())

    @property
    def varies(self) -> bool:
        """Whether episodes were cut off after different numbers of steps."""
        return np.unique(self.data.lengths[~self.data.terminated]).size > 1

    def below(self, line: float, answer: Answer, level: float = 0.95) -> Estimate:
        """P(B < line); nan with an interval where that is all that is known."""
        share, unknown, error, low, high = self._share(line / self.unit - self._tol, answer, level)
        value = share / (1.0 - unknown) if answer == "weighted" and unknown <= error else math.nan
        return Estimate(value, error, low, high, self._clusters.count - 1.0)

    def quantiles(self, q: Sequence[float], answer: Answer, level: float = 0.95) -> dict[float, Estimate]:
        """The q-quantiles; infinite ends where nothing is known beyond."""
        lines = np.unique(self.returns)
        lines = lines[np.unique(np.linspace(0, lines.size - 1, _LINES).astype(np.int64))]
        lines = np.concatenate([[-np.inf], lines, [np.inf]])
        share, unknown, errors, low, high = np.array(
            [self._share(z + self._tol, answer, level) for z in lines]
        ).T
        share, low, high = np.maximum.accumulate([share, low, high], axis=1)
        known = share / np.maximum(1.0 - unknown, np.finfo(np.float64).tiny)
        found = {}
        for each in q:
            at, first, last = (
                int(np.argmax(F >= each * (1.0 - 1e-12))) if (F >= each).any() else -1
                for F in (known, high, low)
            )
            told = answer == "weighted" and unknown[at] <= errors[at]
            value = float(lines[at]) if told else math.nan
            own = within(value, lines[[first, last]], self._clusters.count, level)
            found[each] = own.moved(self.unit, 0.0)
        return found

    def summary(
        self, q: Sequence[float], level: float = 0.95, below: Sequence[float] = ()
    ) -> dict[str, dict[str, Any]]:
        """Both answers in plain values; the weighted one where episodes were cut off at different times."""
        answers: tuple[Answer, ...] = ("weighted", "possible")
        found = {
            answer: {
                "quantiles": self.quantiles(q, answer, level),
                "cvar": {},
                "below": {line: self.below(line, answer, level) for line in below},
            }
            for answer in (answers if self.varies else answers[1:])
        }
        return {
            answer: {name: plain_estimates(values) for name, values in each.items()}
            for answer, each in found.items()
        }

    def _told(self, line: float) -> tuple[Ints, Bools, Bools]:
        """T or C, whatever was first; whether it told, and that B is below; each (K,)."""
        lengths, ended = self.data.lengths, self.data.terminated
        (least, most), below = self._ends, self.returns < line
        passed = ((least >= line) | (most < line)).astype(np.int64)
        before = lengths - np.add.reduceat(passed, self.data.offsets[:-1])
        reached = before < lengths  # before the end, or with it
        first = self.data.offsets[:-1] + np.minimum(before, lengths - 1)
        below = np.where(reached & ~ended, most[first] < line, below)
        return np.where(reached, before + 1, lengths), reached | ended, below & (reached | ended)

    def _share(self, line: float, answer: Answer, level: float) -> tuple[float, float, float, float, float]:
        """F and u below a line, the error of F, and the interval of both ends."""
        T, told, below = self._told(line)
        K = len(T)
        if answer == "possible":
            share, unknown = float(below.mean()), float(1.0 - told.mean())
            ends = [
                self._interval(each, self._clusters.error(which.astype(np.float64) - each), K, level)
                for each, which in ((share, below), (share + unknown, below | ~told))
            ]
            return share, unknown, math.nan, ends[0][0], ends[1][1]
        cut, all_ = (np.bincount(each, minlength=int(T.max()) + 1) for each in (T[~told], T))
        could = K - np.cumsum(all_) + cut  # n_s: longer than s, or cut off then
        hazard = cut / np.maximum(could, 1)
        G = np.cumprod(np.concatenate([[1.0], 1.0 - hazard]))
        weight = np.where(told, 1.0 / np.where(told, G[T], 1.0), 0.0)
        share, unknown = float(weight @ below) / K, max(1.0 - float(weight.sum()) / K, 0.0)
        own = np.bincount(T, weight * below)
        a = (own.sum() - np.cumsum(own)) / np.maximum(could - cut, 1)
        drift = np.cumsum(np.concatenate([[0.0], hazard * a]))
        psi = weight * below - share + np.where(told, -drift[T], a[T] - drift[T + 1])
        error = self._clusters.error(psi)
        low, high = (
            self._interval(min(each, 1.0), error, int(told.sum()), level) for each in (share, share + unknown)
        )
        return min(share, 1.0), min(unknown, 1.0), error, low[0], high[1]

    @cached_property
    def _clusters(self) -> Clusters:
        return Clusters.of(len(self.data), self.data.clusters)

    def _interval(self, share: float, error: float, most: int, level: float) -> tuple[float, float]:
        """Clopper and Pearson's, as of RecordedReturns in clusters."""
        if error == 0 or not 0 < share < 1:
            error, most = 0.0, min(self._clusters.count, most)
        worth = self._clusters.worth(share, error, float(most), level)
        return share_interval(share * worth, worth, level)
