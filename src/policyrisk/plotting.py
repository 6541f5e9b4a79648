"""Pictures of risk functions, as Matplotlib axes (the extra ``plot``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policyrisk._arrays import as_floats, as_states
from policyrisk.errors import InvalidInputError
from policyrisk.risk import Quantity, RiskFunction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {
    "mean": "mean J(x)",
    "second_moment": "second moment M(x)",
    "variance": "variance V(x)",
    "std": "standard deviation √V(x)",
    "sharpe": "Sharpe ratio J(x)/√V(x)",
}


def plot_line(
    risk: RiskFunction,
    x: npt.ArrayLike,
    of: Quantity = "variance",
    *,
    level: float = 0.95,
    truth: npt.ArrayLike | None = None,
    axis: int = 0,
    axes: Axes | None = None,
) -> Axes:
    """A quantity along a line of states x (n, dim), with its confidence band where there are error bars.

    ``axis`` is the coordinate that is drawn to the right; ``truth`` (n,) is drawn beside the estimate.
    """
    from matplotlib.figure import Figure

    states = as_states(x, "x")
    if not 0 <= axis < states.shape[1]:
        raise InvalidInputError(f"axis must be a coordinate from 0 to {states.shape[1] - 1}, got {axis}")
    if axes is None:
        axes = Figure(figsize=(6, 4), layout="constrained").subplots()
    at = states[:, axis]
    estimate = getattr(risk, of)(states)
    (line,) = axes.plot(at, estimate, color="tab:blue", label=f"{risk.facts.estimator} estimate")
    if risk.error_bars is not None:
        low, high = risk.interval(states, of=of, level=level).T
        axes.fill_between(
            at, low, high, color=line.get_color(), alpha=0.25, linewidth=0, label=f"{100 * level:g}% interval"
        )
    if truth is not None:
        exact = as_floats(truth, "truth", (len(states),))
        axes.plot(at, exact, color="black", linestyle="--", linewidth=1.2, label="exact")
    if np.nanmin(estimate) < 0 < np.nanmax(estimate):
        axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.set_xlabel("state" if states.shape[1] == 1 else f"coordinate {axis}")
    axes.set_ylabel(LABELS[of])
    axes.legend(frameon=False)
    return axes
