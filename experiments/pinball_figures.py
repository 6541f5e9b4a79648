"""The pinball experiment's pictures: maps over the maze, and values against the distance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Circle, Polygon
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.common import Floats
from experiments.tiles import TileGrid
from policyrisk.domains import Maze

if TYPE_CHECKING:
    from experiments.pinball import PinballResult
    from experiments.pinball_extended import ExtendedResult
    from experiments.sarsa import SarsaResult

_FINE = 200  # points along an axis of the value function's map
_STD = "std of the reward to go (actions)"


def draw_maze(axes: Axes, maze: Maze) -> None:
    """Obstacles and target, on axes that show the unit square."""
    for vertices in maze.obstacles:
        axes.add_patch(Polygon(vertices, closed=True, facecolor="0.35", edgecolor="0.35", linewidth=0.5))
    x, y = maze.target.tolist()
    rim = {"facecolor": "white", "edgecolor": "tab:red", "linewidth": 2.0}
    axes.add_patch(Circle((x, y), maze.target_radius, **rim))
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="x", ylabel="y")


def draw_map(axes: Axes, maze: Maze, picture: Floats, **style: Any) -> AxesImage:
    """A map (rows of y, columns of x) under the obstacles; nan is left white."""
    image = axes.imshow(
        np.ma.masked_invalid(picture), origin="lower", extent=(0, 1, 0, 1), interpolation="nearest", **style
    )
    draw_maze(axes, maze)
    return image


def _draw_maps(
    panels: Any, result: PinballResult, shown: Iterable[tuple[str, Floats]], top: float, cmap: str
) -> AxesImage:
    """A panel for each title and its values at the free tiles, on one colour scale from 0 to ``top``."""
    for axes, (title, values) in zip(panels, shown, strict=True):
        picture = result.grid.picture(values)
        image = draw_map(axes, result.pinball.maze, picture, vmin=0.0, vmax=top, cmap=cmap)
        axes.set_title(title, fontsize="medium")
        axes.label_outer()
    return image


def draw_value(result: PinballResult) -> Figure:
    """Figure 3: the maze, and the value function at rest."""
    figure = Figure(figsize=(9.6, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    maze, grid = result.pinball.maze, result.grid
    draw_maze(left, maze)
    for x, y in maze.starts:
        left.plot(x, y, "o", color="tab:blue", markersize=9)
        left.annotate("start", (x, y), textcoords="offset points", xytext=(0, 9), ha="center")
    for k in range(min(len(result.data), 6)):
        path = result.data[k].states
        left.plot(path[:, 0], path[:, 1], "-", linewidth=1.1, alpha=0.8)
        left.plot(path[0, 0], path[0, 1], ".", color="black", markersize=5)
    left.set_title("The maze and six trajectories")
    value = getattr(result.policy, "value", None)
    if value is None:
        picture, title = grid.picture(result.rest.mean), "Value at rest, by Monte Carlo"
    else:
        fine = TileGrid(maze, _FINE)
        picture, title = fine.picture(value(fine.states)), "Value at rest, as the policy learned it"
    image = draw_map(right, maze, picture, cmap="viridis")
    right.set_title(title)
    figure.colorbar(image, ax=right, label="expected reward to go (−actions)")
    return figure


def draw_std(result: PinballResult) -> Figure:
    """Figure 4: the std map by LSTD and by Monte Carlo, on one colour scale."""
    figure = Figure(figsize=(9.6, 5.0), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    given, std, top = result.parameters, _root(result.risk.variance(result.grid.states)), _top(result)
    shown = {
        f"LSTD({given.lam:g}): {given.trajectories:,} trajectories": std,
        f"Monte Carlo: {int(result.rest.episodes.sum()):,} trajectories": result.rest.std,
    }
    image = _draw_maps(panels, result, shown.items(), top, "inferno")
    ring: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 13, "markeredgewidth": 2.5}
    for name, colour in (("riskiest", "tab:cyan"), ("farthest", "tab:green")):
        x, y = result.numbers[name]["position"]
        panels[1].plot(x, y, markerfacecolor="none", markeredgecolor=colour, label=name, **ring)
    figure.legend(loc="outside lower center", ncol=2, frameon=False)
    over = bool(np.nanmax(std, initial=0.0) > top)
    figure.colorbar(image, ax=panels, label=_STD, extend="max" if over else "neither")
    return figure


def draw_distance(result: PinballResult) -> Figure:
    """Mean and std at rest against the distance to the target."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    d, rest, claims = result.grid.distances, result.rest, result.numbers["claims"]
    for axes, values, errors, test, label in (
        (left, -rest.mean, rest.mean_se, claims["steps_and_distance"], "expected actions to the target"),
        (right, rest.std, rest.std_se, claims["std_and_distance"], _STD),
    ):
        axes.errorbar(d, values, errors, fmt=".", color="tab:blue", markersize=3, elinewidth=0.6, alpha=0.6)
        axes.set(xlabel="distance to the target along free paths", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.set_title(
            f"rank correlation {test['rank_correlation']:.2f}; "
            f"a monotone function explains {100 * test['monotone_share']:.0f}%",
            fontsize="medium",
        )
    for name, colour in (("riskiest", "tab:red"), ("farthest", "tab:green")):
        tile = result.numbers[name]
        right.plot(tile["distance"], tile["std"], "o", color=colour, markersize=8, label=name)
    right.legend()
    figure.suptitle("Monte Carlo at rest, a point for each free tile (± standard error)", fontsize="medium")
    return figure


def draw_estimates(extension: ExtendedResult) -> Figure:
    """Both truths and the estimates, on one colour scale."""
    result, best = extension.result, extension.validation.best
    shown = {"truth at rest": result.rest.std, "truth as visited": _root(result.fresh.variance)}
    others = [name for name in extension.variances if name != best][:3]
    for name in [*others, best]:
        error = extension.numbers["maps"][name]
        title = f"{name}{' (chosen)' if name == best else ''}\nerror {error['std_rmse']:.2f}"
        shown[title] = _root(extension.variances[name])
    figure = Figure(figsize=(10.4, 6.8), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    image = _draw_maps(panels, result, shown.items(), _top(result), "inferno")
    figure.colorbar(image, ax=panels.tolist(), label=_STD, extend="max", shrink=0.8)
    return figure


def draw_error_bars(extension: ExtendedResult) -> Figure:
    """The standard error of the std, of the paper's estimate and of the chosen one."""
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    pictures = []
    names = ("tiles", extension.validation.best)
    for name in names:
        std = _root(extension.variances[name])
        with np.errstate(divide="ignore", invalid="ignore"):
            pictures.append(np.where(std > 0, extension.errors[name] / (2 * std), np.nan))
    top = float(np.nanpercentile(np.concatenate(pictures), 98))
    image = _draw_maps(panels, extension.result, zip(names, pictures, strict=True), top, "cividis")
    figure.colorbar(image, ax=panels.tolist(), label="standard error of the std (actions)", extend="max")
    return figure


def draw_curves(extension: ExtendedResult) -> Figure:
    """The error of the std at rest against the number of trajectories."""
    figure = Figure(figsize=(8.6, 4.8), layout="constrained")
    axes = figure.subplots()
    for name, points in extension.curves.items():
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.6}
        if name == "Monte Carlo at rest":
            style |= {"color": "black", "linestyle": "--", "marker": "."}
        elif name.startswith("chosen"):
            style |= {"linewidth": 3.0}
        axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(xscale="log", yscale="log", xlabel="trajectories", ylabel="error of the std at rest (actions)")
    axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0]))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(which="both", color="0.9", linewidth=0.6)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def draw_learning(result: SarsaResult) -> Figure:
    """The learning curve: mean return over each hundredth of the training."""
    ends, means = result.curve()
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(ends, means, color="tab:blue")
    axes.set_yscale("symlog", linthresh=1.0)
    ticks = -np.outer([1.0, 2.0, 5.0], 10.0 ** np.arange(7)).ravel()
    shown = [tick for tick in ticks if 2 * means.min() <= tick <= means.max() / 2]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    axes.set(xlabel="episodes of training", ylabel="mean return while exploring")
    axes.grid(alpha=0.3)
    return figure


def _root(V: Floats) -> Floats:
    """√V, nan where V is negative."""
    return np.sqrt(np.where(V >= 0, V, np.nan))


def _top(result: PinballResult) -> float:
    """Where the colour scale of the std maps ends."""
    return float(np.nanmax(result.rest.std))
