"""Axes of a new figure, and names on them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policyrisk._core.arrays import check_kind
from policyrisk._core.imports import check_installed
from policyrisk._core.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_or_new(axes: Axes | None, width: float, height: float) -> Axes:
    """The caller's axes, or those of a new figure."""
    if axes is None:
        return new_axes(width, height)
    check_installed("matplotlib", "a picture")
    from matplotlib.axes import Axes

    check_kind(axes, "axes", Axes, "leave it out, or pass plt.gca()")
    return axes


def new_axes(width: float, height: float) -> Axes:
    """Axes of a new figure of this size, in inches."""
    check_installed("matplotlib", "a picture")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").subplots()


def literal(name: str) -> str:
    r"""A name as Matplotlib shows it unchanged: no mathematics between dollars, no label that is left out.

    Control characters, for which no font has a letter, are shown as Python writes them.

    >>> literal("cost_$"), literal("_a")
    ('cost_\\$', ' _a')
    """
    escaped = printable(name).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def plane(axes: Axes, xlabel: str = "", ylabel: str = "") -> None:
    """A light grid behind what is drawn, and what the coordinates are."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


STD_AND_MEAN = "standard deviation of the return", "mean return"
