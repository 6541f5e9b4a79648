"""One finding about an evaluation, and the table of the rules that look for one.

A rule looks at one way in which the numbers can mislead. It is a function of the evaluation with
``@rule(subject, title, remedy)`` over it, and returns how serious the finding is (None where all is well) and
what was seen, in numbers; or an :class:`Advice`, where title or remedy depend on what was seen; or SKIPPED
where it cannot tell. Remedies name options of the command line first and those of the library beside them.
A new rule goes into :mod:`policyrisk.evaluation.findings` or, about the data, into
:mod:`policyrisk.evaluation.data_findings` and, about targets and tails, into
:mod:`policyrisk.evaluation.target_findings`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from policyrisk._core.records import record

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

Severity: TypeAlias = Literal["ok", "note", "warning", "serious"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note", "ok")
Subject: TypeAlias = Literal["target", "returns", "estimate", "data", "tails"]  # in this order they are said


@record
@dataclass(frozen=True)
class Advice:
    """One finding."""

    severity: Severity
    title: str
    seen: str  # in numbers
    remedy: str  # what to do

    @property
    def asks_nothing(self) -> bool:
        """Whether there is nothing to do about it."""
        return self.remedy.startswith("Nothing")

    def __str__(self) -> str:
        return f"{self.severity}: {self.title}\n  {self.seen}\n  {self.remedy}"


SKIPPED: Literal["skipped"] = "skipped"  # what a rule returns where it cannot look
Found: TypeAlias = "Advice | Literal['skipped'] | None"
Seen: TypeAlias = "Found | tuple[Severity | None, str]"
Look: TypeAlias = "Callable[[Evaluation], Seen]"


@dataclass(frozen=True)
class Rule:
    """A function that looks for a finding, and the texts of the finding that are always the same."""

    subject: Subject
    look: Look
    title: str
    remedy: str
    checks: str  # what is then said to have been checked; nothing where it is a remark

    def __call__(self, evaluation: Evaluation) -> Found:
        """What the rule finds."""
        found = self.look(evaluation)
        if not isinstance(found, tuple):
            return found
        severity, seen = found
        return None if severity is None else Advice(severity, self.title, seen, self.remedy)


RULES: list[Rule] = []


def rule(subject: Subject, title: str = "", remedy: str = "", *, checks: str = "") -> Callable[[Look], Rule]:
    """Put a rule into the table, as one about this subject; a decorator."""

    def put(look: Look) -> Rule:
        RULES.append(Rule(subject, look, title, remedy, checks))
        return RULES[-1]

    return put


def severity_of(value: float, limits: tuple[float, float, float]) -> Severity | None:
    """None up to the first limit, then note, warning and serious beyond each; rules of thumb."""
    beyond = (level for level, limit in zip(SEVERITIES, reversed(limits), strict=False) if value > limit)
    return next(beyond, None)
