"""All benchmarks in one go: `make bench`, or `python benchmarks/run.py NAME …` for some of them.

Each benchmark is a module beside this one with a function ``rows()`` that measures and returns records with
the keys work, ours, peer, ratio and note. Figures are ratios measured in one run wherever that is possible,
since machines differ and are noisy.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

NAMES = ("exact", "constraint", "lstd", "td", "pinball", "sarsa")


def main(names: tuple[str, ...]) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    console = Console(width=max(Console().width, 140))
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    for name in names:
        if name not in NAMES:
            raise SystemExit(f"benchmark must be one of {', '.join(NAMES)}, got {name}")
        table = Table(title=name, title_justify="left", show_lines=True)
        for column in ("work", "ours", "peer or limit", "ratio", "note"):
            table.add_column(column, overflow="fold")
        with console.status(f"measuring {name} …"):
            rows = importlib.import_module(name).rows()
        for row in rows:
            table.add_row(*(_text(row.get(key, "")) for key in ("work", "ours", "peer", "ratio", "note")))
        console.print(table)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
