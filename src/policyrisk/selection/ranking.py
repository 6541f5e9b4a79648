"""Estimators in the order of their held-out score: the score that ranks them, the record and its print-out.

Candidates are ranked by the Dawid–Sebastiani score of :mod:`policyrisk.risk.scoring`, the smaller the
better, with a floor f under Ṽ:

    log V + (B − J)² / V,        V = max(Ṽ, f)

The score itself is infinite where Ṽ ≤ 0 and astronomic where Ṽ is nearly 0, so that one such step would
outweigh everything else. In each fold f is FLOOR times the least mean squared error of any candidate's J,
which is about the average variance, and the same for all: undue certainty then costs up to 1/FLOOR times the
average step, wherever it is, and estimates that are right have little to fear from it.

Where a candidate says nothing, since it never visited the state, it is scored as one would have to guess
then: by the mean and variance of all returns to go of the fold. All candidates are so compared over all
steps, paired, with standard errors over episodes. Floor and guess are in the ranking alone:
``Candidate.score`` is what :func:`RiskFunction.score` gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.text import NONE, number, percent, plural, table
from policyrisk.errors import InvalidInputError
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.scoring import Score

FLOOR = 0.01  # under Ṽ, of the mean squared error of J
_ASTRONOMIC = 1e6  # from here on a calibration says no more than that some Ṽ is nearly 0


class Scale(NamedTuple):
    """What a fold's returns to go B are like."""

    floor: float  # f
    mean: float  # of B over all steps
    variance: float


def ranking_scores(J: Floats, V: Floats, B: Floats, scale: Scale) -> Floats:
    """log max(V, f) + (B − J)² / max(V, f), of shape (n,), with the guess for J and V where either is nan.

    >>> scale = Scale(floor=1.0, mean=0.0, variance=9.0)
    >>> J, V, B = np.array([1.0, 1.0, np.nan]), np.array([4.0, -1.0, np.nan]), np.full(3, 3.0)
    >>> ranking_scores(J, V, B, scale).round(3)
    array([2.386, 4.   , 3.197])
    """
    unvisited = np.isnan(J) | np.isnan(V)
    J = np.where(unvisited, scale.mean, J)
    V = np.maximum(np.where(unvisited, scale.variance, V), scale.floor)
    scores: Floats = np.log(V) + (B - J) ** 2 / V
    return scores


@dataclass(frozen=True)
class Candidate:
    """An estimator's place in a cross-validation."""

    name: str
    score: Score | None  # over all held-out steps, None where it failed
    floored: Estimate | None  # the Dawid–Sebastiani score with the floor, which ranks
    difference: Estimate | None  # of that to the best one's: positive is worse
    reason: str = ""  # why it failed

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            "name": self.name,
            "score": None if self.score is None else self.score.to_dict(),
            "floored": None if self.floored is None else self.floored.to_dict(),
            "difference": None if self.difference is None else self.difference.to_dict(),
            "reason": self.reason,
        }


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Estimators in the order of their held-out score, the best first and those that failed last."""

    ranking: tuple[Candidate, ...]
    folds: int
    episodes: int  # terminated, each scored once
    steps: int
    cut_off: int  # fitted, never scored

    @property
    def best(self) -> str:
        """The name of the first; an error where all failed."""
        if self.ranking[0].score is None:
            raise InvalidInputError(
                "there is no best estimator, since all failed: "
                + "; ".join(f"{c.name}: {c.reason}" for c in self.ranking)
            )
        return self.ranking[0].name

    @property
    def verdict(self) -> str:
        """The best against the second in a sentence."""
        scored = [c for c in self.ranking if c.score is not None]
        if len(scored) < 2:
            return f"{plural(len(scored), 'estimator')} could be scored"
        first, second = scored[:2]
        text = f"{first.name} is preferred to {second.name}"
        d = second.difference
        assert d is not None
        return f"{text}: its score is lower by {number(d, 3)} ± {number(d.standard_error, 2)}"

    def __str__(self) -> str:
        header = [
            "",
            "score",
            "std error",
            "to best",
            "std error",
            "V <= 0",
            "unvisited",
            "MSE of J",
            "calibration",
        ]
        rows = []
        for c in self.ranking:
            if c.score is None:
                rows.append([c.name, "failed", *[NONE] * (len(header) - 2)])
                continue
            s, f, d = c.score, c.floored, c.difference
            rows.append(
                [
                    c.name,
                    NONE if f is None else number(f, 5),
                    NONE if f is None else number(f.standard_error, 2),
                    NONE if d is None else number(d, 4),
                    NONE if d is None else number(d.standard_error, 2),
                    percent(s.not_positive),
                    percent(s.unvisited),
                    number(s.mse),
                    _bounded(s.calibration, 4),
                ]
            )
        lines = [
            f"Dawid–Sebastiani score of {plural(self.episodes, 'held-out episode')}, "
            f"{plural(self.steps, 'step')}, {self.folds} folds; the smaller the better",
            table(header, rows),
            self.verdict,
        ]
        scored = [c.score for c in self.ranking if c.score is not None]
        lines.append(
            f"note: where V is below {FLOOR:.0%} of the smallest MSE of J it is scored as if it were that"
        )
        if any(s.unvisited for s in scored):
            lines.append("note: in states that a fit did not visit, the overall mean and variance are scored")
        if self.cut_off:
            lines.append(f"note: {plural(self.cut_off, 'episode')} cut off: fitted, but never scored")
        if len(scored) > 1:
            lines.append("note: standard errors are over held-out episodes, the fits being given")
        if any(s.calibration >= _ASTRONOMIC for s in scored):
            lines.append("note: a calibration above 1e6 comes from steps where V > 0 is nearly 0")
        reasons: dict[str, list[str]] = {}
        for c in self.ranking:
            if c.score is None:
                reasons.setdefault(c.reason, []).append(c.name)
        lines += [f"failed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return {
            "ranking": [c.to_dict() for c in self.ranking],
            "folds": self.folds,
            "episodes": self.episodes,
            "steps": self.steps,
            "cut_off": self.cut_off,
            "verdict": self.verdict,
        }


def _bounded(value: float, digits: int) -> str:
    """A number that was divided by some Ṽ."""
    if abs(value) < _ASTRONOMIC or not math.isfinite(value):
        return number(value, digits)
    return "> 1e6"
