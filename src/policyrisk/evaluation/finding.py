"""One finding about an evaluation, and how serious it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from policyrisk._core.records import record

Severity: TypeAlias = Literal["ok", "note", "warning", "serious"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note", "ok")


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


def severity_of(value: float, limits: tuple[float, float, float]) -> Severity | None:
    """None up to the first limit, then note, warning and serious beyond each."""
    beyond = (level for level, limit in zip(SEVERITIES, reversed(limits), strict=False) if value > limit)
    return next(beyond, None)
