"""Griffe extension: this package's docstrings as Markdown.

- ``>>>`` examples become code blocks (Markdown would read them as quotations);
- :class:`policyrisk.LSTD` becomes code, by its last name;
- the comment beside a field of a record, which gives its shape, becomes the field's text.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|mod|meth):`([^`]+)`")
_COMMENT = re.compile(r"[^#]*#\s*(.+)")
_SHAPE = re.compile(r"\([^()]*\)")


def to_markdown(text: str) -> str:
    """Doctest examples fenced, roles as code, ``::`` before a block as a colon."""
    text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if not inside and line.startswith(">>>"):
            inside = True
            lines.append("```pycon")
        elif inside and not line.strip():
            inside = False
            lines.append("```")
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


class OurDocstrings(griffe.Extension):
    """Rewrites docstrings as they are collected."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """A module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """A field without a docstring takes the comment beside it."""
        file, owner = attr.filepath, attr.parent
        if attr.docstring or attr.annotation is None or attr.lineno is None:
            return
        if isinstance(owner, griffe.Class) and not isinstance(file, list):
            comment = _COMMENT.match(attr.lines_collection[file][attr.lineno - 1])
            if comment:
                text = f"`{comment[1]}`" if _SHAPE.fullmatch(comment[1]) else comment[1]
                attr.docstring = griffe.Docstring(text, parent=attr)
