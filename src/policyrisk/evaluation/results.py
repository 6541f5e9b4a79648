"""What ``policyrisk evaluate`` leaves behind: numbers, maps, a report, and what it prints."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

import policyrisk
from policyrisk._core.arrays import Floats
from policyrisk._core.output import Clock, plain, write_figure
from policyrisk._core.records import write_atomically
from policyrisk._core.text import number, percent, plural
from policyrisk.errors import PolicyRiskWarning
from policyrisk.evaluation import Evaluation
from policyrisk.evaluation.advice import advise
from policyrisk.evaluation.spelling import data_box
from policyrisk.features import Tabular
from policyrisk.risk import Quantity

SUMMARY, REPORT = "summary.json", "report.html"
_LINE = 400  # states along a line
_CELLS = 100  # of a map along each coordinate
MAPS: tuple[Quantity, ...] = ("mean", "std", "sharpe")


def write(evaluation: Evaluation, folder: Path, clock: Clock) -> None:
    """Write everything into an empty folder."""
    from policyrisk.report import write_report

    with clock("write"):
        evaluation.save(folder)
    with clock("maps"):
        for of in MAPS:
            _write_map(evaluation, of, folder / f"map_{of}.png")
    with clock("report"):
        write_report(evaluation, folder / REPORT)
    text = json.dumps(plain(numbers(evaluation, clock)), indent=1, allow_nan=False)
    write_atomically(folder / SUMMARY, lambda file: file.write(text.encode()))


def numbers(evaluation: Evaluation, clock: Clock) -> dict[str, Any]:
    """What ``summary.json`` holds."""
    survey, facts, notes = evaluation.survey, evaluation.risk.provenance, evaluation.notes
    summary = evaluation.summary.to_dict()
    # Counts of starts, and of episodes behind the average one, by names that say so.
    starts = {"unvisited": "unvisited_starts", "negative": "negative_starts", "episodes": "episodes_behind"}
    return {
        "policyrisk": policyrisk.__version__,
        "name": evaluation.name,
        "data": notes["data"],
        "coordinates": list(evaluation.names),
        **{starts.get(key, key): value for key, value in summary.items()},
        "episodes": survey.episodes,
        "transitions": survey.transitions,
        "longest_episode": survey.longest,
        "cut_off_share": evaluation.cut_off_share,
        "unvisited_share": evaluation.unvisited_share,
        "negative_variance_share": evaluation.negative_share,
        "condition_number": facts.condition,
        "given_up": facts.given_up,
        "unrecorded_ends": notes["unrecorded_ends"],
        "vanished_episodes": notes["vanished_episodes"],
        "outside_box": facts.outside,
        "redundant_directions": facts.redundant,
        "constraint_active": facts.constrained,
        "features": notes["features"],
        "feature_count": evaluation.risk.features.size,
        "variance_method": notes["variance"],
        "box": notes["box"],
        "settings": notes["settings"],
        "columns": notes["columns"],
        "choice": notes["choice"],
        "advice": [
            {"severity": a.severity, "title": a.title, "seen": a.seen, "remedy": a.remedy}
            for a in advise(evaluation)
        ],
        "seconds": _seconds(clock),
    }


def show(evaluation: Evaluation, clock: Clock, written: Sequence[Path]) -> None:
    """Print an evaluation for a person."""
    survey, notes = evaluation.survey, evaluation.notes
    direct = notes["variance"] == "direct"
    lines = [
        f"{evaluation.name}: {plural(survey.episodes, 'episode')}, "
        f"{plural(survey.transitions, 'transition')}, {percent(evaluation.cut_off_share)} cut off",
        "box: "
        + ", ".join(
            f"{name} {low:g} to {high:g}"
            for name, (low, high) in zip(evaluation.names, notes["box"], strict=True)
        ),
        *(f"note: {name} never changes: it tells nothing about the risk" for name in notes["constant"]),
        f"features {notes['features']} ({evaluation.risk.features.size}), variance "
        + ("estimated directly" if direct else "from the second moment")
        + f"; condition number {number(evaluation.risk.provenance.condition, 2)}; "
        f"{percent(evaluation.unvisited_share)} of the box unvisited, "
        f"{percent(evaluation.negative_share)} of the visited states with V < 0",
        "",
        str(evaluation.summary),
        "",
        *(str(advice) for advice in advise(evaluation)),
        "",
        "seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in _seconds(clock).items()),
        "written: " + ", ".join(str(path) for path in written),
    ]
    typer.echo("\n".join(lines))


def _seconds(clock: Clock) -> dict[str, float]:
    """What the parts took, the total last."""
    return {name: clock.seconds[name] for name in sorted(clock.seconds, key=lambda name: name == "total")}


def _write_map(evaluation: Evaluation, of: Quantity, path: Path) -> None:
    """A map over the first two coordinates that matter, the others at their median; a line over one."""
    from policyrisk.plotting import plot_line, plot_map

    survey, risk, names = evaluation.survey, evaluation.risk, evaluation.names
    dims = _mapped(evaluation)
    middle = np.quantile(survey.visited, 0.5, axis=0, method="nearest")
    with warnings.catch_warnings():
        # What is few or negative is in the advice.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        if len(dims) == 1:
            (d,) = dims
            first, last = survey.low[d], survey.high[d]
            count = int(last - first) + 1 if survey.whole[d] and last - first < _LINE else _LINE
            line = np.tile(middle, (count, 1))
            line[:, d] = np.linspace(first, last, count)
            axes = plot_line(risk, line, of, level=evaluation.level, axis=d)
            axes.set_xlabel(names[d])
        else:
            low, high, shape = _cells(evaluation, dims[0], dims[1])
            axes = plot_map(
                risk, of, low=low, high=high, dims=(dims[0], dims[1]), at=middle, shape=shape, names=names
            )
    axes.set_title(evaluation.name.replace("$", r"\$"))  # no mathematics
    figure = axes.get_figure(root=True)
    assert figure is not None
    write_figure(figure, path)


def _cells(evaluation: Evaluation, across: int, up: int) -> tuple[Floats, Floats, tuple[int, int]]:
    """The map's box and its numbers of cells: of whole numbers, a cell is centred on each."""
    survey = evaluation.survey
    low, high = (end.copy() for end in data_box(survey)[:2])
    shape = []
    for d in (across, up):
        count = survey.high[d] - survey.low[d] + 1
        if survey.whole[d] and count <= _CELLS:
            low[d], high[d] = survey.low[d] - 0.5, survey.high[d] + 0.5
        shape.append(int(count) if survey.whole[d] and count <= _CELLS else _CELLS)
    return low, high, (shape[0], shape[1])


def _mapped(evaluation: Evaluation) -> tuple[int, ...]:
    """One or two coordinates: those of the features that change, or a table's own."""
    for features in (evaluation.risk.features, evaluation.risk.second_features):
        if isinstance(features, Tabular):
            return (0,) if features.dims is None else features.dims
    return evaluation.changing[:2] or evaluation.looked_at[:1]
