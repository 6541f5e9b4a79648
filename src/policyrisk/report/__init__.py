"""A report of one evaluation: a single HTML file that opens offline, with maps, a table and advice.

The page is interactive (Plotly, whose script is part of the file, compressed: the extra ``plot``), asks
nothing of any network, is dark where the reader's screen is, and prints. What it holds is bounded by the rule
in :mod:`policyrisk.report.grid`, so that it stays below 3 MB.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from policyrisk._core.arrays import check_kind
from policyrisk._core.files import write_atomically
from policyrisk._core.imports import check_installed
from policyrisk._core.output import plain
from policyrisk._core.progress import ProgressBar
from policyrisk.errors import InvalidInputError, PolicyRiskWarning
from policyrisk.report.grid import MapGrid
from policyrisk.report.numbers import (
    DIGITS,
    Maps,
    Sampled,
    asked_tails,
    histogram,
    line,
    running,
    start_curve,
)
from policyrisk.report.page import build
from policyrisk.risk.summary import Moments

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

__all__ = ["write_report"]


def write_report(evaluation: Evaluation, path: str | os.PathLike[str], command: str = "") -> None:
    """Write the report of an evaluation as one self-contained HTML file.

    Parameters
    ----------
    evaluation
        What :func:`policyrisk.evaluate` returns.
    path
        The file.
    command
        What somebody would type to get it again, where there is such a line.

    Examples
    --------
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
    if not hasattr(evaluation, "survey"):
        raise InvalidInputError(
            f"evaluation must be an Evaluation, got {type(evaluation).__name__}; make one with pr.evaluate"
        )
    check_kind(command, "command", str, "pass a line of text")
    plotly = _plotly()
    with warnings.catch_warnings():
        # Negative variances and few episodes are part of the advice.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        grid = MapGrid.of(evaluation)
        with ProgressBar("report", len(grid.pairs) + 2) as bar:
            sampled = Sampled.of(evaluation)
            bar.advance()
            data = _data(evaluation, grid, sampled, bar)
            page = build(evaluation, grid, sampled, data, plotly, command)
            bar.advance()
    write_atomically(path, lambda file: file.write(page.encode()))


def _data(evaluation: Evaluation, grid: MapGrid, sampled: Sampled, bar: ProgressBar) -> dict[str, Any]:
    """What the page's script draws from; the bar advances with the maps."""
    summary = evaluation.summary
    axes = [vars(axis) for axis in grid.axes]
    shown = grid.shown
    return {
        "shown": [[k, evaluation.names[k]] for k in shown],
        "labels": [list(evaluation.label_names.get(name, ())) for name in evaluation.names],
        "level": evaluation.level,
        "errors": evaluation.risk.error_bars is not None,
        "target": evaluation.target is not None,
        "axes": plain(axes, DIGITS),
        "maps": Maps.of(evaluation, grid, bar).to_dict() if len(grid.axes) > 1 else None,
        "line": line(evaluation, grid) if len(grid.axes) == 1 else None,
        "cloud": sampled.to_dict(shown),
        "histogram": histogram(evaluation.survey),
        "tails": start_curve(evaluation),
        "asked": None if evaluation.distribution is None else asked_tails(evaluation),
        "order": running(evaluation),
        "average": _ends(summary),
        "sample": None if summary.sample is None else _ends(summary.sample),
    }


def _ends(moments: Moments) -> dict[str, list[float | None]]:
    """Value and ends of the interval, of the mean and of the std."""
    estimates = {"mean": moments.mean, "std": moments.std}
    return {of: plain([one.value, one.low, one.high], DIGITS) for of, one in estimates.items()}


def _plotly() -> str:
    for package in ("plotly", "jinja2"):
        check_installed(package, "a report")
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()
