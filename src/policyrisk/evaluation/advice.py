"""One finding about an evaluation, and the table of the rules that look for one.

A rule looks at one way in which the numbers can mislead. It gets the evaluation and gives an :class:`Advice`
(how serious it is, what was seen in numbers, and what to do, with options of the command line first and those
of the library beside them), None where all is well, or SKIPPED where it cannot tell. A new one is a function
with ``@rule(...)`` over it, in :mod:`policyrisk.evaluation.findings` or, of targets and tails,
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
Subject: TypeAlias = Literal["target", "returns", "estimate", "data", "tails"]


@record
@dataclass(frozen=True)
class Advice:
    """One finding."""

    severity: Severity
    title: str
    seen: str  # in numbers
    remedy: str  # what to do

    def __str__(self) -> str:
        return f"{self.severity}: {self.title}\n  {self.seen}\n  {self.remedy}"


SKIPPED: Literal["skipped"] = "skipped"  # what a rule gives where it cannot look
Found: TypeAlias = "Advice | Literal['skipped'] | None"


@dataclass(frozen=True)
class Rule:
    """How to look for a finding, and what is then said to have been checked; nothing where it is a remark."""

    look: Callable[[Evaluation], Found]
    checks: str


RULES: dict[Subject, list[Rule]] = {"target": [], "returns": [], "estimate": [], "data": [], "tails": []}


def rule(
    subject: Subject, checks: str = ""
) -> Callable[[Callable[[Evaluation], Found]], Callable[[Evaluation], Found]]:
    """Put a rule into the table, as one about this subject; a decorator."""

    def put(look: Callable[[Evaluation], Found]) -> Callable[[Evaluation], Found]:
        RULES[subject].append(Rule(look, checks))
        return look

    return put


def asked(evaluation: Evaluation, *subjects: Subject) -> list[tuple[Rule, Found]]:
    """The rules about these subjects that an evaluation has, in their order, and what each finds."""
    applies = {
        "target": evaluation.target is not None,
        "returns": evaluation.target is None,
        "tails": "distribution" in evaluation.notes,
    }
    rules = (rule for subject in subjects if applies.get(subject, True) for rule in RULES[subject])
    return [(rule, rule.look(evaluation)) for rule in rules]


def severity_of(value: float, limits: tuple[float, float, float]) -> Severity | None:
    """None up to the first limit, then note, warning and serious beyond each; rules of thumb."""
    beyond = (level for level, limit in zip(SEVERITIES, reversed(limits), strict=False) if value > limit)
    return next(beyond, None)
