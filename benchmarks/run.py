"""All benchmarks in one go: `make bench`, or `python benchmarks/run.py NAME …` for some of them.

Each benchmark is a module beside this one with a function ``rows()`` that measures and returns records with
the keys work, ours, peer, ratio and note. Figures are ratios measured in one run wherever that is possible,
since machines differ and are noisy. A run of all of them writes results.json and RESULTS.md beside this file;
a run of some replaces their part in these, if the machine is the same.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from policyrisk.errors import PolicyRiskWarning

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
NAMES = (
    "exact",
    "constraint",
    "lstd",
    "off_policy",
    "td",
    "pinball",
    "sarsa",
    "large",
    "distributed",
    "out_of_core",
    "accuracy",
    "networks",
    "distribution",
    "growth",
)
KEYS = ("work", "ours", "peer", "ratio", "note")


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    about = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
    about["cores"] = str(os.cpu_count())
    about["numpy"] = np.__version__
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        about["processor"] = models[0] if models else "unknown"
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        about["memory"] = f"{int(meminfo.read_text().split()[1]) / 2**20:.0f} GiB"
    return about


def main(names: tuple[str, ...]) -> None:
    sys.path.insert(0, str(HERE))
    warnings.simplefilter("ignore", PolicyRiskWarning)
    console = Console(width=max(Console().width, 140))
    about = machine()
    console.print(", ".join(f"{key} {value}" for key, value in about.items()))
    for name in names:
        if name not in NAMES:
            raise SystemExit(f"benchmark must be one of {', '.join(NAMES)}, got {name}")
    found: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        began = time.perf_counter()
        with console.status(f"measuring {name} …"):
            try:
                found[name] = importlib.import_module(name).rows()
            # A peer or a package that cannot be installed here.
            except (OSError, ImportError, subprocess.CalledProcessError) as error:
                console.print(f"{name} failed: {error}")
                continue
        table = Table(
            title=f"{name}, {time.perf_counter() - began:.0f} s", title_justify="left", show_lines=True
        )
        for column in ("work", "ours", "peer or limit", "ratio", "note"):
            table.add_column(column, overflow="fold")
        for row in found[name]:
            table.add_row(*(_text(row.get(key, "")) for key in KEYS))
        console.print(table)
    before = _before(about)
    if names == NAMES or before:
        _write(about, {name: {**before, **found}[name] for name in NAMES if name in {**before, **found}})
        console.print(f"written: {RESULTS}, {RESULTS.with_name('RESULTS.md')}")


def _before(about: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What was found earlier, on the same machine."""
    if not RESULTS.exists():
        return {}
    stored = json.loads(RESULTS.read_text())
    results: dict[str, list[dict[str, Any]]] = stored["results"] if stored["machine"] == about else {}
    return results


def _write(about: dict[str, str], found: dict[str, list[dict[str, Any]]]) -> None:
    RESULTS.write_text(json.dumps({"machine": about, "results": found}, indent=1) + "\n")
    lines = ["# Results of `make bench`", "", ", ".join(f"{key} {value}" for key, value in about.items()), ""]
    for name, rows in found.items():
        lines += [f"## {name}", "", "| work | ours | peer or limit | ratio | note |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join(_text(row.get(key, "")) for key in KEYS) + " |" for row in rows] + [""]
    RESULTS.with_name("RESULTS.md").write_text("\n".join(lines))


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
