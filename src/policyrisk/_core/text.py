"""Numbers and small tables as plain text, for what people print."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "–"  # what is not known or does not apply


def number(value: float, digits: int = 5) -> str:
    """A number to ``digits`` significant digits; nan is a dash.

    >>> number(-73.125), number(float("nan")), number(1234567.0), number(1000.0)
    ('-73.125', '–', '1.2346e+06', '1000')
    """
    return NONE if math.isnan(value) else f"{value:.{digits}g}"


def percent(share: float) -> str:
    """A share in per cent, never rounded to none or all of it.

    >>> percent(0.0), percent(0.00001), percent(0.0667), percent(0.99999), percent(1.0)
    ('0%', '<0.1%', '6.7%', '>99.9%', '100%')
    """
    if math.isnan(share):
        return NONE
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return "<0.1%" if share < 0.001 else ">99.9%" if share > 0.999 else f"{share:.1%}"


def plural(count: int, noun: str) -> str:
    """A count and its noun.

    >>> plural(1, "episode"), plural(3, "episode")
    ('1 episode', '3 episodes')
    """
    return f"{count} {noun}" + ("" if count == 1 else "s")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their headings, the first flush left and the others flush right.

    >>> print(table(["", "value"], [["mean", "1"], ["std", "10"]]))
          value
    mean      1
    std      10
    """
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
