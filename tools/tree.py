#!/usr/bin/env python3
"""Write the tree of the package into CONTRIBUTING.md: a line a file, the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "policyrisk"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- tree: written by tools/tree.py -->\n", "<!-- end of tree -->"


def told(module: Path) -> str:
    """The first sentence of a module's docstring, as Markdown."""
    text = " ".join((ast.get_docstring(ast.parse(module.read_text())) or "").split("\n\n")[0].split())
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")


def tree() -> str:
    """A table for the public modules, and one for each room."""
    rooms = sorted({path.parent for path in PACKAGE.rglob("*.py")})  # the package itself comes first
    parts = []
    for room in rooms:
        name = room.relative_to(PACKAGE).as_posix()
        title = "public modules" if room == PACKAGE else f"`{name}/`"
        rows = [f"| {title} | {told(room / '__init__.py')} |", "|---|---|"]
        files = sorted(path for path in room.glob("*.py") if path.name != "__init__.py")
        parts.append("\n".join(rows + [f"| `{path.name}` | {told(path)} |" for path in files]))
    return "\n\n".join(parts) + "\n"


def written() -> str:
    """CONTRIBUTING.md with the tree as it is now."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + "\n" + tree() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(written())
