"""Pictures of risk functions, as Matplotlib axes (the extra ``plot``).

Each function draws on the ``axes`` it is given, or on those of a new figure, and returns them;
``axes.figure.savefig("picture.png")`` writes the picture. Nothing touches pyplot or a display.
"""

from policyrisk.plotting.policies import (
    plot_frontier,
    plot_learning,
    plot_mean_std,
    plot_pit,
    plot_returns,
)
from policyrisk.plotting.states import plot_check, plot_fan, plot_line, plot_map

__all__ = [
    "plot_check",
    "plot_fan",
    "plot_frontier",
    "plot_learning",
    "plot_line",
    "plot_map",
    "plot_mean_std",
    "plot_pit",
    "plot_returns",
]
