"""Numbers and small tables as plain text, for what people print, and records as HTML in notebooks."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policyrisk.errors import InvalidInputError

NONE = "–"  # what is not known or does not apply
QUOTED = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'  # a pattern: a name as JSON writes text, or one without an end
_MARKS = frozenset('",+/:=')  # of texts that have names in them
# What a terminal obeys or reorders instead of showing it, and halves of letters, which cannot be encoded.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    r"""A text whose control characters are shown as Python writes them, but for those to ``keep``.

    >>> print(printable("\x1b[31mred\x07\n"), printable("two\nlines", keep="\n"))
    \x1b[31mred\x07\n two
    lines
    """
    return _UNSEEN.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text
    )


def escape(text: str) -> str:
    r"""A text inside HTML: markup and control characters are shown.

    >>> escape("<b>\x1b[1m")
    '&lt;b&gt;\\x1b[1m'
    """
    return html.escape(printable(text))


def quoted(name: str) -> str:
    """A name inside a longer text: as JSON writes it, in quotes, where the text's own marks are in it.

    >>> print(quoted("speed"), quoted("speed m/s"), quoted("0.5 quantile"), quoted("a\\nb"))
    speed "speed m/s" 0.5 quantile "a\\nb"
    """
    if name and name == name.strip() and name.isprintable() and not _MARKS & {*name}:
        return name
    return json.dumps(name, ensure_ascii=not name.isprintable())


def unquoted(text: str) -> str:
    """The way back from :func:`quoted`.

    >>> unquoted('"speed m/s"'), unquoted("speed")
    ('speed m/s', 'speed')
    """
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text, strict=False))
    except ValueError as error:
        raise InvalidInputError(
            f'a name in quotes must be written as in "speed m/s", with \\" for a quote in it, got {text}'
        ) from error


def pieces(text: str, mark: str, whole: str = QUOTED) -> list[str]:
    """A text split at a mark, but not inside of quotes, or of what else the pattern ``whole`` matches.

    >>> pieces('"a,b",c', ","), pieces('a,"b,c', ",")
    (['"a,b"', 'c'], ['a', '"b,c'])
    """
    found = [""]
    for kept, letter in re.findall(rf"({whole})|(.)", text, re.DOTALL):
        if letter == mark:
            found.append("")
        else:
            found[-1] += kept or letter
    return found


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


def p_value(p: float) -> str:
    """A p-value in words.

    >>> p_value(0.0321), p_value(1e-9)
    ('p = 0.032', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


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
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


@dataclass(frozen=True)
class TextTable:
    """A small table that can be shown as text and as HTML."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        return table(self.header, self.rows)

    def html(self) -> str:
        """A table of HTML, numbers flush right as in the text."""
        align = ("left", *("right",) * (len(self.header) - 1))

        def line(cells: Sequence[str], tag: str) -> str:
            each = zip(cells, align, strict=True)
            return "".join(f'<{tag} style="text-align:{to}">{escape(cell)}</{tag}>' for cell, to in each)

        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in self.rows)
        return f"<table><thead><tr>{line(self.header, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def as_html(block: str | TextTable) -> str:
    """A block as HTML; several lines of text keep their columns."""
    if isinstance(block, TextTable):
        return block.html()
    return f"<pre>{escape(block)}</pre>" if "\n" in block else f"<div>{escape(block)}</div>"


class Readable:
    """A record that is printed as text, and shown as HTML in a notebook: the same blocks, one below another.

    >>> class Answer(Readable):
    ...     def _blocks(self):
    ...         yield "mean & std"
    ...         yield TextTable(["", "value"], [["mean", "1"]])
    >>> Answer()
    mean & std
          value
    mean      1
    >>> Answer()._repr_html_().startswith("<div>mean &amp; std</div><table><thead>")
    True
    """

    def __init_subclass__(cls) -> None:
        """Keep dataclasses from giving their own repr, which shows all arrays."""
        cls.__repr__ = cls.__dict__.get("__repr__", Readable.__repr__)  # type: ignore[method-assign]

    def _blocks(self) -> Iterable[str | TextTable]:
        """Lines of text, several that are to stay as they are, and tables."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return "".join(map(as_html, self._blocks()))
