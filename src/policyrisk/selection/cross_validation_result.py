"""What a cross-validation finds: estimators in the order of their held-out score, and the print-out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from policyrisk._core.text import NONE, number, percent, plural, table
from policyrisk.errors import InvalidInputError
from policyrisk.risk.estimate import Estimate
from policyrisk.risk.scoring import Score

FLOOR = 0.01  # under Ṽ, of the mean squared error of J: see policyrisk.selection.cross_validation
_ASTRONOMIC = 1e6  # from here on a calibration says no more than that some Ṽ is nearly 0
_HEADER = ["", "score", "std error", "to best", "std error", "V <= 0", "unvisited", "MSE of J", "calibration"]


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
        parts = {"score": self.score, "floored": self.floored, "difference": self.difference}
        plain = {name: None if part is None else part.to_dict() for name, part in parts.items()}
        return {"name": self.name, **plain, "reason": self.reason}


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
        scored = [c.score for c in self.ranking if c.score is not None]
        lines = [
            f"Dawid–Sebastiani score of {plural(self.episodes, 'held-out episode')}, "
            f"{plural(self.steps, 'step')}, {self.folds} folds; the smaller the better",
            table(_HEADER, [_row(candidate) for candidate in self.ranking]),
            self.verdict,
            f"note: where V is below {FLOOR:.0%} of the smallest MSE of J it is scored as if it were that",
        ]
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


def _row(candidate: Candidate) -> list[str]:
    """A line of the table."""
    s = candidate.score
    if s is None:
        return [candidate.name, "failed", *[NONE] * (len(_HEADER) - 2)]
    row = [candidate.name]
    for estimate, digits in ((candidate.floored, 5), (candidate.difference, 4)):
        shown = Estimate(math.nan) if estimate is None else estimate
        row += [number(shown, digits), number(shown.standard_error, 2)]
    huge = math.isfinite(s.calibration) and abs(s.calibration) >= _ASTRONOMIC
    calibration = "> 1e6" if huge else number(s.calibration, 4)
    return [*row, percent(s.not_positive), percent(s.unvisited), number(s.mse), calibration]
