"""Estimates from state to state: lines, fans of quantiles, maps, and where features misfit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import (
    Bools,
    Floats,
    as_array,
    as_count,
    as_flag,
    as_floats,
    as_list,
    as_whole,
    check_callable,
    check_choice,
    check_kind,
    check_shape,
)
from policyrisk._core.frames import states_of
from policyrisk.errors import InvalidInputError, NoDistributionError
from policyrisk.features.box import Box
from policyrisk.plotting.axes import axes_or_new, literal
from policyrisk.returns.distribution_function import DistributionAtStates
from policyrisk.risk import Quantity, RiskFunction
from policyrisk.selection.specification import SpecificationTest

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection

Shown: TypeAlias = Quantity | Literal["episodes", "covered"]

LABELS = {
    "mean": "mean J(x)",
    "second_moment": "second moment M(x)",
    "variance": "variance V(x)",
    "std": "standard deviation √V(x)",
    "sharpe": "Sharpe ratio J(x)/√V(x)",
    "cvar": "mean of the worst returns",
    "episodes": "episodes behind the estimate",
    "covered": "the target's probability on logged actions",
}
OUTSIDE = "blank: outside the data"
_COUNTED = ("episodes", "covered")  # which have no error
BLANK = "0.88"  # the grey of cells that the data say nothing about
Extent: TypeAlias = tuple[float, float, float, float]  # left, right, bottom, top
Outside: TypeAlias = Callable[[Floats], Bools]  # which states (n, dim) lie outside the data, (n,)


def plot_line(
    risk: RiskFunction,
    x: npt.ArrayLike,
    of: Shown = "variance",
    *,
    level: float = 0.95,
    truth: npt.ArrayLike | None = None,
    axis: int = 0,
    outside: Outside | None = None,
    axes: Axes | None = None,
) -> Axes:
    """A quantity along a line of states, with its confidence band where there are error bars.

    Parameters
    ----------
    risk
        The estimate.
    x
        States (n, dim).
    of
        A quantity, as in :func:`plot_map`.
    level
        That of the band.
    truth
        (n,), drawn as well.
    axis
        The coordinate that is drawn to the right.
    outside
        As in :func:`plot_map`.
    axes
        Where to draw; new ones where None.

    Returns
    -------
    Axes
        Matplotlib's; ``axes.figure.savefig`` writes the picture.

    Examples
    --------
    >>> import policyrisk as pr
    >>> risk = pr.LSTD(pr.Tabular(5)).fit(pr.domains.walk(n=5, p=0.7).sample(0, episodes=500, seed=1))
    >>> pr.plotting.plot_line(risk, range(5), of="std").get_ylabel()
    'standard deviation √V(x)'
    """
    states = states_of(x, getattr(risk, "coordinates", None))
    axis = as_count(axis, "axis", 0, states.shape[1] - 1)
    _check_known(risk, of)
    axes = axes_or_new(axes, 6, 4)
    at = states[:, axis]
    blank = _blank(outside, states)
    estimate = np.where(blank, np.nan, getattr(risk, of)(states))
    (line,) = axes.plot(at, estimate, color="tab:blue", label=f"{risk.provenance.estimator} estimate")
    if risk.error_bars is not None and of != "episodes" and of != "covered":
        low, high = np.where(blank, np.nan, risk.interval(states, of=of, level=level).T)
        axes.fill_between(
            at, low, high, color=line.get_color(), alpha=0.25, linewidth=0, label=f"{100 * level:g}% interval"
        )
    if truth is not None:
        exact = as_floats(truth, "truth", (len(states),))
        axes.plot(at, exact, color="black", linestyle="--", linewidth=1.2, label="exact")
    if (estimate < 0).any() and (estimate > 0).any():
        axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.set_xlabel("state" if states.shape[1] == 1 else f"coordinate {axis}")
    axes.set_ylabel(LABELS[of])
    axes.legend(frameon=False, title=OUTSIDE if blank.any() else None, title_fontsize="small")
    return axes


def plot_fan(
    dist: DistributionAtStates,
    x: npt.ArrayLike,
    q: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    *,
    axis: int = 0,
    axes: Axes | None = None,
    prediction: npt.ArrayLike | None = None,
) -> Axes:
    """The quantiles of the return along a line of states, as a fan: the darker, the more central.

    Parameters
    ----------
    dist
        The estimate.
    x
        States (n, dim).
    q
        Rising: the first and the last quantile bound the lightest band, and so on inwards, and the middle one
        of an odd number is a line.
    axis
        The coordinate that is drawn to the right.
    axes
        Where to draw; new ones where None.
    prediction
        The ends of an interval for one return (n, 2), as of ``Evaluation.prediction_interval(x)``.

    Returns
    -------
    Axes
        Matplotlib's.

    Examples
    --------
    >>> import policyrisk as pr
    >>> dist = pr.ReturnDistribution(pr.Tabular(5)).fit(pr.domains.walk(5).sample(0, episodes=500, seed=1))
    >>> pr.plotting.plot_fan(dist, range(5)).get_ylabel()
    'return'
    """
    check_kind(dist, "dist", DistributionAtStates, "fit pr.ReturnDistribution(features) to data")
    states = states_of(x, dist.coordinates)
    axis = as_count(axis, "axis", 0, states.shape[1] - 1)
    levels = as_floats(q, "q", (None,))
    if levels.size < 2 or not (np.diff(levels) > 0).all():
        raise InvalidInputError(f"q must be at least two numbers that rise, got {levels.tolist()}; sort them")
    values = [dist.quantile(states, each) for each in levels.tolist()]
    axes = axes_or_new(axes, 6, 4)
    at, bands = states[:, axis], levels.size // 2
    for k in range(bands):
        axes.fill_between(
            at,
            values[k],
            values[-1 - k],
            color="tab:blue",
            alpha=0.2 + 0.25 * k / max(bands - 1, 1),
            linewidth=0,
            label=f"{100 * levels[k]:g}% to {100 * levels[-1 - k]:g}%",
        )
    if levels.size % 2:
        middle = levels[bands]
        label = "median" if middle == 0.5 else f"{100 * middle:g}% quantile"
        axes.plot(at, values[bands], color="tab:blue", linewidth=1.6, label=label)
    axes.plot(at, dist.mean(states), color="black", linestyle="--", linewidth=1.2, label="mean")
    if prediction is not None:
        ends = as_array(prediction, "prediction", "numbers of shape (n, 2)")
        check_shape(ends, "prediction", (len(states), 2))
        how: dict[str, Any] = {"color": "tab:orange", "linewidth": 1.2, "linestyle": ":"}
        axes.plot(at, ends, label=["next return", "_"], **how)
    axes.set_xlabel("state" if states.shape[1] == 1 else f"coordinate {axis}")
    axes.set_ylabel("return")
    axes.legend(frameon=False)
    return axes


def plot_map(
    risk: RiskFunction,
    of: Shown = "std",
    *,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    error: bool = False,
    level: float | None = None,
    dims: tuple[int, int] = (0, 1),
    at: npt.ArrayLike | None = None,
    shape: tuple[int, int] = (100, 100),
    names: Sequence[str] | None = None,
    outside: Outside | None = None,
    axes: Axes | None = None,
) -> Axes:
    """A quantity over two coordinates of the state, with a colour bar; grey where the data say nothing.

    A cell shows the value at its centre. Where V < 0 the std is blank too. Colours run from the 1st to the
    99th percentile of the values, which the colour bar's ends show. What you draw on the axes with a
    ``zorder`` above 1, such as an obstacle with ``axes.fill``, lies on the map; an image with ``zorder=0`` is
    seen where the map is blank.

    Parameters
    ----------
    risk
        The estimate.
    of
        A quantity, "episodes" for how many stand behind each estimate, or of a target policy "covered"
        (:meth:`RiskFunction.covered`).
    low, high
        (dim,), the box. For states that are whole numbers let the cells be centred on them: low = −½,
        high = n − ½, n cells.
    error
        Whether to draw the quantity's standard error instead.
    level
        Hatches cells that are riskier than the median cell with this confidence for all cells together, as
        far as randomness goes (:meth:`RiskFunction.riskier`; draws that it needs are always the same).
    dims
        The coordinates that are cut, the first to the right, the second upwards.
    at
        (dim,), the values of the other coordinates; the middle of the box where None.
    shape
        How many cells along each of the two.
    names
        (dim,), the coordinates' names.
    outside
        Says which states lie outside the data, as :meth:`Evaluation.outside`: their cells are blank, whatever
        the features extrapolate there, and are none of those that are compared.
    axes
        Where to draw; new ones where None.

    Returns
    -------
    Axes
        Matplotlib's; ``axes.figure.savefig`` writes the picture.

    Examples
    --------
    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=6, p=0.7).sample(0, episodes=500, seed=1)
    >>> states = data.states // [[2]] + [[0.0, 0.5]]
    >>> pairs = pr.Trajectories(states, data.rewards, data.lengths, data.terminated)
    >>> risk = pr.LSTD(pr.TileCoding([0, 0], [3, 1], bins=[3, 2])).fit(pairs)
    >>> axes = pr.plotting.plot_map(risk, "mean", low=[0, 0], high=[3, 1], shape=(3, 2), names=["x", "y"])
    >>> axes.get_xlabel(), axes.images[0].get_array().shape
    ('x', (2, 3))
    """
    error = as_flag(error, "error")
    box_low = as_floats(low, "low", (None,))
    box_high = as_floats(high, "high", (box_low.size,))
    _check_map(of, error, dims, names, box_low.size)
    _check_known(risk, of)
    cut = list(dims)
    ends = Box.of(box_low[cut], box_high[cut], None)
    across, up = (as_count(n, "shape", 1) for n in as_whole(shape, "shape", (2,)).tolist())
    states = _cells(box_low, box_high, dims, at, (across, up))
    blank = _blank(outside, states)
    shown = partial(risk.standard_error, of=of) if error else getattr(risk, of)  # type: ignore[arg-type]
    values = _filled(~blank, states, shown)
    if of == "episodes":
        values[values == 0] = np.nan
    axes = axes_or_new(axes, 6, 4.8)
    extent = (ends.low[0], ends.high[0], ends.low[1], ends.high[1])
    axes.set_facecolor(BLANK)
    colours = "cividis" if error or of in _COUNTED else "viridis"
    label = f"standard error of the {LABELS[of]}" if error else LABELS[of]
    _draw_cells(axes, values.reshape(up, across), extent, colours, label, whole=of == "covered")
    riskier: Bools | None = None
    if level is not None:
        marked = _filled(~blank, states, partial(risk.riskier, level=level, seed=0))
        riskier = (marked == 1).reshape(up, across)
    _explain(axes, riskier, level, extent, blanks=bool(blank.any()))
    axes.set(xlim=extent[:2], ylim=extent[2:])
    labels = [f"coordinate {i}" for i in range(box_low.size)] if names is None else names
    axes.set_xlabel(literal(labels[dims[0]]))
    axes.set_ylabel(literal(labels[dims[1]]))
    return axes


def _filled(which: Bools, states: Floats, function: Callable[[Floats], Any]) -> Floats:
    """A function of some of the states (n,), nan at the others."""
    values: Floats = np.full(len(states), np.nan)
    if which.any():
        values[which] = function(states[which])
    return values


def _draw_cells(axes: Axes, values: Floats, extent: Extent, colours: str, label: str, *, whole: bool) -> None:
    """The cells and their colour bar, from 0 to 1 where the ``whole`` range of a probability is meant."""
    # A few outliers, where hardly any data are, would leave one colour for all the rest.
    known = values[np.isfinite(values)]
    least, most = (0.0, 1.0) if whole or not known.size else np.quantile(known, [0.01, 0.99])
    below, above = bool((known < least).any()), bool((known > most).any())
    beyond = ("both" if above else "min") if below else ("max" if above else "neither")
    image = axes.imshow(
        np.ma.masked_invalid(values),
        vmin=least,
        vmax=most,
        origin="lower",
        extent=extent,
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        zorder=1,
    )
    axes.figure.colorbar(image, ax=axes, label=label, extend=beyond)


def _explain(axes: Axes, riskier: Bools | None, level: float | None, extent: Extent, *, blanks: bool) -> None:
    """Hatches of riskier cells, and below the map what they and blank cells mean."""
    from matplotlib.patches import Patch

    legend: list[Artist] = []
    if riskier is not None and level is not None:
        label = f"riskier than the median cell ({100 * level:g}% for all together)"
        legend.append(_hatch(axes, riskier, extent, label))
    if blanks:
        legend.append(Patch(facecolor=BLANK, edgecolor="0.6", linewidth=0.5, label=OUTSIDE))
    if legend:
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12)}
        axes.legend(handles=legend, frameon=False, fontsize="small", **place)


def plot_check(
    check: SpecificationTest,
    of: Literal["mean", "variance"] = "mean",
    *,
    names: Sequence[str] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Where the features misfit: how much higher returns are than the estimated mean, in units of their std.

    It is a map over the two coordinates (the step is one) along which the misfit changes the most, averaged
    over the steps that share a cell; a line where only one coordinate was cut.

    Parameters
    ----------
    check
        What :func:`policyrisk.specification_test` returns.
    of
        "mean", or "variance" for the logarithm to the base 2 of the variance that was seen over the estimated
        one.
    names
        (dim,), those of the state's coordinates.
    axes
        Where to draw; new ones where None.

    Returns
    -------
    Axes
        Matplotlib's.

    Examples
    --------
    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=8, p=0.7).sample(0, episodes=1000, seed=1)
    >>> risk = pr.LSTD(pr.TileCoding([0], [8], bins=2)).fit(data)
    >>> pr.plotting.plot_check(pr.specification_test(risk, data, seed=0), names=["place"]).get_xlabel()
    'place'
    """
    check_choice(of, "of", ("mean", "variance"))
    check_kind(check, "check", SpecificationTest, "pass pr.specification_test(risk, data)")
    if check.regions is None:
        raise InvalidInputError(
            "check must have regions to be drawn, got one of other test features; leave features= out"
        )
    regions = check.regions
    dim = len(regions.least) - 1
    _check_names(names, dim)
    labels = [*(names or [f"coordinate {i}" for i in range(dim)]), "step"]
    with np.errstate(divide="ignore", invalid="ignore"):
        off = check.bias / check.std if of == "mean" else np.log2(check.variance_ratio)
    share = check.share
    low, high = np.maximum(regions.low, regions.least), np.minimum(regions.high, regions.most)
    centre = (low + high) / 2
    known = np.isfinite(off) & (share > 0)
    cut = [i for i in range(dim + 1) if np.ptp(centre[:, i]) > 0]
    # How much of the misfit goes along with each coordinate.
    average = np.average(off[known], weights=share[known]) if known.any() else 0.0
    weight = share[known] * (off[known] - average)
    along = [abs(float(weight @ centre[known, i])) / float(np.ptp(centre[:, i])) for i in cut]
    chosen = sorted(sorted(cut, key=lambda i: -along[cut.index(i)])[:2]) or [0]
    edges = [np.unique(np.concatenate([low[:, i], high[:, i]])) for i in chosen]
    middles = np.meshgrid(*((e[1:] + e[:-1]) / 2 for e in edges), indexing="ij")
    inside = known * np.ones((*middles[0].shape, 1), dtype=np.bool_)
    for i, middle in zip(chosen, middles, strict=True):
        inside &= (middle[..., None] >= low[:, i]) & (middle[..., None] <= high[:, i])
    steps = (inside * share).sum(axis=-1)
    values = np.where(steps > 0, (inside * np.where(known, share * off, 0.0)).sum(axis=-1), np.nan)
    values = values / np.where(steps > 0, steps, 1.0)
    axes = axes_or_new(axes, 6, 4.8)
    axes.set_xlabel(literal(labels[chosen[0]]))
    label = "(return − estimated mean) / std" if of == "mean" else "log2 (variance seen / estimated)"
    if len(chosen) == 1:
        axes.stairs(values, edges[0], color="tab:blue", linewidth=1.6)
        axes.axhline(0.0, color="0.6", linewidth=0.8)
        axes.set_ylabel(label)
    else:
        most = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
        axes.set_facecolor(BLANK)
        mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(values.T), cmap="RdBu", vmin=-most, vmax=most)
        axes.figure.colorbar(mesh, ax=axes, label=label)
        axes.set_ylabel(literal(labels[chosen[1]]))
    axes.set_title(f"{of}: {getattr(check, of)}", fontsize="small")
    return axes


def _blank(outside: Outside | None, states: Floats) -> Bools:
    """Which states are not drawn."""
    if outside is None:
        return np.zeros(len(states), dtype=np.bool_)
    check_callable(outside, "outside", "a function from states (n, dim) to booleans (n,)")
    blank = as_array(outside(states), "outside(states)", f"{len(states)} booleans, one per state")
    if blank.shape != (len(states),) or blank.dtype != np.bool_:
        raise InvalidInputError(
            f"outside must give {len(states)} booleans, one per state, got {blank.dtype} of shape "
            f"{blank.shape}; pass for example evaluation.outside"
        )
    return blank


def _hatch(axes: Axes, marked: Bools, extent: Extent, label: str) -> PolyCollection:
    """Hatch the marked cells of a map (rows, columns), the first row below."""
    from matplotlib.collections import PolyCollection

    runs = np.diff(np.pad(marked, ((0, 0), (1, 1))).astype(np.int8), axis=1)  # 1 and −1 at the ends of each
    (row, first), (_, last) = np.nonzero(runs == 1), np.nonzero(runs == -1)
    left, right = (extent[0] + at * (extent[1] - extent[0]) / marked.shape[1] for at in (first, last))
    below, above = (extent[2] + at * (extent[3] - extent[2]) / marked.shape[0] for at in (row, row + 1))
    corners = np.array([[left, below], [right, below], [right, above], [left, above]]).transpose(2, 0, 1)
    hatched = PolyCollection(list(corners), hatch="////", facecolors="none", edgecolors="0.1", linewidths=0.0)
    hatched.set(zorder=1.5, label=label)
    axes.add_collection(hatched, autolim=False)
    return hatched


def _check_known(risk: RiskFunction, of: str) -> None:
    """Means of the worst returns are known to those alone that have a distribution."""
    check_choice(of, "of", tuple(LABELS))
    if not (of == "cvar" and hasattr(risk, of)):  # an evaluation's, of a share of its own, are drawn as well
        known = RiskFunction, DistributionAtStates
        check_kind(risk, "risk", known, "fit an estimator, such as pr.LSTD, to data")
    if of == "cvar" and not hasattr(risk, of):
        raise NoDistributionError(
            f"of='cvar' needs the distribution of the return, got {type(risk).__name__}; fit "
            "pr.ReturnDistribution, or draw its cvar_bound"
        )


def _check_names(names: Sequence[str] | None, dim: int) -> None:
    given = [""] * dim if names is None else as_list(names, "names", "the coordinates' names")
    if len(given) != dim or not all(isinstance(name, str) for name in given):
        raise InvalidInputError(f"names must hold {dim} names, one a coordinate, got {given}; name all")


def _check_map(of: str, error: bool, dims: Sequence[int], names: Sequence[str] | None, dim: int) -> None:
    check_choice(of, "of", tuple(LABELS))
    dims = as_whole(dims, "dims", (2,)).tolist()
    if error and of in _COUNTED:
        raise InvalidInputError(
            f"of={of!r} is counted and has no standard error, got error=True; leave it out"
        )
    if len({*dims}) != 2 or not all(0 <= i < dim for i in dims):
        raise InvalidInputError(
            f"dims must be two different coordinates from 0 to {dim - 1}, got {dims}; for states of "
            "dimension 1 use plot_line"
        )
    _check_names(names, dim)


def _cells(
    low: Floats, high: Floats, dims: tuple[int, int], at: npt.ArrayLike | None, shape: tuple[int, int]
) -> Floats:
    """The states at the cells' centres, row by row upwards, of shape (shape[1] · shape[0], dim)."""
    centres = [np.arange(n) + 0.5 for n in shape]
    middle = (low + high) / 2 if at is None else as_floats(at, "at", (low.size,))
    states = np.tile(middle, (shape[0] * shape[1], 1))
    for i, n, cell in zip(dims, shape, np.meshgrid(*centres), strict=True):
        states[:, i] = low[i] + cell.ravel() * ((high[i] - low[i]) / n)  # whole numbers stay whole
    return states
