"""A report of one evaluation: a single HTML file that opens offline, with maps, a table and advice.

The page is interactive (Plotly, whose script is part of the file: the extra ``plot``), asks nothing of any
network, and prints. What it holds is bounded by the rule in :mod:`policyrisk.report.grid`.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from policyrisk._core.records import write_atomically
from policyrisk.errors import PolicyRiskError, PolicyRiskWarning
from policyrisk.report.grid import MapGrid
from policyrisk.report.numbers import Line, Maps, Sampled, ends, rounded
from policyrisk.report.page import build

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

__all__ = ["write_report"]


def write_report(evaluation: Evaluation, path: str | os.PathLike[str]) -> None:
    """Write the report of an evaluation as one self-contained HTML file.

    >>> import pathlib, tempfile
    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=500, seed=1)
    >>> risk = pr.LSTD(pr.Tabular(5)).fit(data)
    >>> evaluation = pr.Evaluation.of(risk, data, name="walk", names=["place"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(evaluation, pathlib.Path(folder) / "report.html")
    ...     "<title>walk" in (pathlib.Path(folder) / "report.html").read_text()
    True
    """
    plotly = _plotly()
    with warnings.catch_warnings():
        # Negative variances and few episodes are part of the advice.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        grid, sampled = MapGrid.of(evaluation), Sampled.of(evaluation)
        page = build(evaluation, grid, sampled, _data(evaluation, grid, sampled), plotly)
    write_atomically(path, lambda file: file.write(page.encode()))


def _data(evaluation: Evaluation, grid: MapGrid, sampled: Sampled) -> dict[str, Any]:
    """What the page's script draws from."""
    summary = evaluation.summary
    sample = summary.sample
    maps = Maps.of(evaluation.risk, grid) if len(grid.axes) > 1 else None
    return {
        "names": list(evaluation.names),
        "level": evaluation.level,
        "errors": evaluation.risk.error_bars is not None,
        "axes": [
            {
                "name": axis.name,
                "cells": rounded(axis.cells),
                "levels": rounded(axis.levels),
                "median": axis.median,
            }
            for axis in grid.axes
        ],
        "maps": None if maps is None else maps.to_dict(),
        "line": Line.of(evaluation, grid).to_dict() if len(grid.axes) == 1 else None,
        "cloud": sampled.to_dict(),
        "average": {"mean": ends(summary.mean), "std": ends(summary.std)},
        "sample": None if sample is None else {"mean": ends(sample.mean), "std": ends(sample.std)},
    }


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise PolicyRiskError(
            "a report needs Plotly, which is not installed; pip install 'policyrisk[plot]'"
        ) from error
    return get_plotlyjs()
