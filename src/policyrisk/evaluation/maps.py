"""Pictures of an evaluation: mean, std and Sharpe ratio over the one or two coordinates that matter first."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.output import write_figure
from policyrisk.errors import PolicyRiskWarning
from policyrisk.evaluation.record import Evaluation
from policyrisk.evaluation.spelling import data_box
from policyrisk.features import Tabular
from policyrisk.plotting import plot_line, plot_map
from policyrisk.risk import Quantity

QUANTITIES: tuple[Quantity, ...] = ("mean", "std", "sharpe")
_LINE = 400  # states along a line
_CELLS = 100  # of a map along each coordinate


def write_maps(evaluation: Evaluation, folder: Path) -> None:
    """Write ``map_mean.png``, ``map_std.png`` and ``map_sharpe.png``."""
    for of in QUANTITIES:
        _write_map(evaluation, of, folder / f"map_{of}.png")


def _write_map(evaluation: Evaluation, of: Quantity, path: Path) -> None:
    """A map over the first two coordinates that matter, the others at their median; a line over one."""
    survey, risk, names = evaluation.survey, evaluation.risk, evaluation.names
    dims = _mapped(evaluation)
    with warnings.catch_warnings():
        # What is few or negative is in the advice.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        if len(dims) == 1:
            (d,) = dims
            at = np.linspace(survey.low[d], survey.high[d], _LINE)
            if survey.whole[d]:
                at = np.unique(np.round(at))  # a table knows no others
            line = np.tile(evaluation.middle, (len(at), 1))
            line[:, d] = at
            axes = plot_line(risk, line, of, level=evaluation.level, axis=d)
            axes.set_xlabel(names[d])
        else:
            low, high, shape = _cells(evaluation, dims[0], dims[1])
            axes = plot_map(
                risk,
                of,
                low=low,
                high=high,
                dims=(dims[0], dims[1]),
                at=evaluation.middle,
                shape=shape,
                names=names,
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
