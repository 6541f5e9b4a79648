"""Pictures of an evaluation: mean, std and Sharpe ratio over the one or two coordinates that matter first."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.output import write_figure
from policyrisk._core.progress import ProgressBar
from policyrisk._core.text import percent
from policyrisk.errors import PolicyRiskWarning
from policyrisk.features import Tabular
from policyrisk.features.spelling import data_box
from policyrisk.plotting import plot_check, plot_line, plot_map, plot_returns
from policyrisk.plotting.axes import literal, new_axes
from policyrisk.plotting.states import Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from policyrisk.evaluation import Evaluation

_LINE = 400  # states along a line
_TICKS = 12  # names along a coordinate
_CELLS = 100  # of a map along each coordinate


def write_maps(evaluation: Evaluation, folder: Path) -> None:
    """Write ``map_mean.png``, ``map_std.png`` and ``map_sharpe.png``, of a target ``map_covered.png`` too.

    Maps over the first two coordinates that matter, of many the two most influential, the others at their
    median; lines over one. Blank outside the data (:meth:`Evaluation.outside`). In that of the std, cells are
    hatched that are riskier than the median one. Where the features misfit, ``map_check.png`` shows where.
    """
    quantities: tuple[Shown, ...] = ("mean", "std", "sharpe")
    quantities = quantities if evaluation.target is None else (*quantities, "covered")
    with ProgressBar("maps", len(quantities)) as bar:
        for of in quantities:
            write_figure(draw_map(evaluation, of), folder / f"map_{of}.png")
            bar.advance()
    check = evaluation.check
    if check is not None and check.material().any():
        of_mean = check.material(ratio=np.inf).any()
        axes = plot_check(check, "mean" if of_mean else "variance", names=evaluation.names)
        write_figure(axes, folder / "map_check.png")
    for name, axes in evaluation.tail_pictures().items():
        write_figure(axes, folder / f"{name}.png")


def draw_map(evaluation: Evaluation, of: Shown) -> Axes:
    """The map of a quantity, or its line."""
    with warnings.catch_warnings():
        # What is few or negative is in the advice.
        warnings.simplefilter("ignore", PolicyRiskWarning)
        axes = _draw(evaluation, of, _mapped(evaluation))
    axes.set_title(literal(evaluation.name))
    return axes


def draw_order(evaluation: Evaluation) -> Axes:
    """The returns in the order of the episodes, and where their mean changes, if it does."""
    order = evaluation.order
    assert order is not None
    axes = plot_returns(order.returns, order.times)
    if order.returns.size < evaluation.survey.episodes:
        axes.set_xlabel(f"{axes.get_xlabel()} (a sample of {order.returns.size:,} episodes)")
    if order.testable and order.mean.found:
        at = order.mean.after if order.times is None else order.times[order.mean.after]
        axes.axvline(at, color="tab:red", linewidth=1.2, linestyle=":", label="the mean changes")
        axes.legend(fontsize="small", loc="best")
    return axes


def tail_map(evaluation: Evaluation) -> Axes:
    """A map, or a line, of the mean of the worst returns, for the smallest share that was asked for."""
    dist, of = evaluation.distribution, "cvar"
    assert dist is not None
    q = min(map(float, evaluation.notes["distribution"]["cvar"]))
    # What a map or a line asks of an estimate.
    worst = SimpleNamespace(
        provenance=SimpleNamespace(estimator="ReturnDistribution"),
        error_bars=dist.has_intervals or None,
        cvar=partial(dist.cvar, q=q),
        interval=partial(dist.interval, q=q),
    )
    axes = _draw(evaluation, of, _mapped(evaluation), worst)
    axes.set_title(f"mean of the worst {percent(q)} of the returns", fontsize="small")
    return axes


def _draw(evaluation: Evaluation, of: Any, dims: tuple[int, ...], risk: Any = None) -> Axes:
    survey, risk, names = evaluation.survey, risk or evaluation.risk, evaluation.names
    outside = evaluation.outside
    if len(dims) == 1:
        (d,) = dims
        at = np.linspace(survey.low[d], survey.high[d], _LINE)
        if survey.whole[d]:
            at = np.unique(np.round(at))  # a table knows no others
        line = np.tile(evaluation.middle, (len(at), 1))
        line[:, d] = at
        axes = plot_line(risk, line, of, level=evaluation.level, axis=d, outside=outside)
        axes.set_xlabel(literal(names[d]))
        _name_ticks(evaluation, d, axes.xaxis)
        return axes
    across, up = dims
    low, high = (end.copy() for end in data_box(survey)[:2])
    shape = {across: _CELLS, up: _CELLS}
    for d in shape:
        if survey.whole[d]:  # a cell is centred on each, or on every third, fifth, …
            count = int(survey.high[d] - survey.low[d]) + 1
            step = -(-count // _CELLS) | 1
            shape[d] = -(-count // step)
            low[d] = survey.low[d] - step / 2
            high[d] = low[d] + step * shape[d]
    mark = evaluation.level if of == "std" and risk.error_bars is not None else None
    place: Any = {"low": low, "high": high, "dims": dims, "at": evaluation.middle}
    cells = (shape[across], shape[up])
    axes = plot_map(risk, of, level=mark, shape=cells, names=names, outside=outside, **place)
    _name_ticks(evaluation, across, axes.xaxis)
    _name_ticks(evaluation, up, axes.yaxis)
    return axes


def _name_ticks(evaluation: Evaluation, d: int, axis: Axis) -> None:
    """The names of a label at its numbers, of many every so manieth."""
    if texts := evaluation.label_names.get(evaluation.names[d]):
        shown = range(0, len(texts), -(-len(texts) // _TICKS))
        axis.set_ticks(list(shown), [literal(texts[k]) for k in shown])


def _mapped(evaluation: Evaluation) -> tuple[int, ...]:
    """One or two coordinates: those of the features that change, or a table's own."""
    for features in (evaluation.risk.features, evaluation.risk.second_features):
        if isinstance(features, Tabular):
            return (0,) if features.dims is None else features.dims
    return evaluation.changing[:2] or evaluation.looked_at[:1]


def plot_start(evaluation: Evaluation) -> Axes:
    """F over the starts, with the quantiles that were asked for and the line that a loss is below.

    The recorded returns' F, where the quantiles are theirs, and the model's.
    """
    dist, notes = evaluation.distribution, evaluation.notes["distribution"]
    assert dist is not None
    over = dist.over(evaluation.survey.starts)
    theta = over.thresholds
    F = over.curve[0, : theta.size]
    axes = new_axes(6, 4)
    how: dict[str, Any] = {"color": "tab:blue"}
    recorded = "model" in notes and not evaluation.survey.cut_off
    if recorded:
        returns = np.sort(evaluation.survey.returns[0])
        shares = np.arange(1, returns.size + 1) / returns.size
        axes.step(returns, shares, where="post", color="tab:blue", label="recorded returns")
        how = {"color": "0.5", "linewidth": 1.0, "linestyle": "--", "label": "model"}
    axes.plot(theta, F, drawstyle="steps-post" if over.grid.steps else "default", **how)
    if recorded:
        axes.legend(fontsize="small", loc="lower right")
    for q, value in notes["quantiles"].items():
        axes.plot([value["low"], value["high"]], [float(q)] * 2, color="tab:orange", linewidth=1.6)
        axes.plot(value["value"], float(q), "o", color="tab:orange", markersize=4)
    for line, value in notes["below"].items():
        axes.axvline(float(line), color="0.5", linestyle="--", linewidth=1.0)
        label = f"{percent(value['value'])} below {line} "
        axes.text(float(line), 1.02, label, color="0.3", fontsize="small", ha="right")
    axes.set(xlabel="return z from the starts", ylabel="probability of at most z", ylim=(0.0, 1.08))
    return axes
