"""The numbers of a report: estimates on the grid, the riskiest states, and the script's data.

Maps are five numbers a cell: J, V, their errors, and the episodes behind them; of a target policy a sixth,
how much of it the data cover. They are sent as float32 of which four digits are kept, two of the errors, all
first bytes before all second ones, compressed (:func:`packed`).
Std, its error V's / (2 std), and the Sharpe ratio follow from those in the browser. Errors are standard
errors, or half of the 68% interval where intervals cover the choice of features as well.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.output import plain
from policyrisk._core.progress import ProgressBar
from policyrisk.features.target import PolicyFeatures
from policyrisk.passes.survey import Survey
from policyrisk.report.grid import MapGrid
from policyrisk.risk import ErrorBars, Quantity, RiskFunction
from policyrisk.risk.state_estimates import StateEstimates

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

SAMPLE = 4000  # visited states that the table and the plane choose from
CLOUD = 1000  # of them that are drawn
RISKIEST = 10  # rows of the table
DIGITS = 7  # of the numbers that the page is given
APART = 0.1  # of the data's extent: two rows of the table differ by more in some coordinate
ONE_ERROR = 0.6827  # the level at which an interval reaches one standard error to either side
_MAPPED: tuple[Quantity, ...] = ("mean", "std")
_BITS = np.array([12, 12, 7, 7, 9, 7])  # kept of the mantissas: J, V, their errors, episodes, covered
_EPISODES = 4  # the row of what is measured that counts them
_BINS = 50  # of the histogram, at most


def compressed(content: bytes) -> str:
    """gzip in base64, always the same text of the same bytes."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def packed(values: Floats) -> str:
    """Numbers a kind, (5 or 6, …), as the page's script unpacks them."""
    numbers = values.reshape(len(values), -1).astype("<f4")
    dropped = (23 - _BITS[: len(values), None]).astype(np.uint32)
    bits = numbers.view("<u4")
    half = (np.uint32(1) << dropped) >> np.uint32(1)
    rounded = np.where(np.isfinite(numbers), (bits + half) >> dropped << dropped, bits)
    return compressed(np.ascontiguousarray(rounded.astype("<u4").view(np.uint8).reshape(-1, 4).T).tobytes())


def measure(risk: RiskFunction, states: Floats) -> Floats:
    """J, V, their errors and the episodes behind them, of shape (5, n) and in units; nan where unknown.

    Of a target policy a sixth row has what is covered.
    """
    bars, width = risk.error_bars, 0
    if bars is not None:
        width = bars.width if risk.misfit is None else bars.draws
    found = [[at.J, at.V, *_errors(at, bars), at.episodes] for at in risk.parts(states, width)]
    covered = [risk.covered(states)] if isinstance(risk.features, PolicyFeatures) else []
    return np.stack([*np.hstack(found), *covered])


def _measure_inside(evaluation: Evaluation, states: Floats) -> Floats:
    """As ``measure``, but nan with 0 episodes outside the data, whatever the features extrapolate there."""
    inside = ~evaluation.outside(states)
    measured = measure(evaluation.risk, states[inside])
    values = np.full((len(measured), len(states)), np.nan)
    values[_EPISODES] = 0.0
    values[:, inside] = measured
    return values


def _errors(at: StateEstimates, bars: ErrorBars | None) -> Floats:
    """The errors of J and V, of shape (2, n), nan where unknown."""
    if bars is None:
        return np.full((2, len(at.J)), np.nan)
    if at.model is None:
        return np.stack([at.standard_error("mean", bars), at.standard_error("variance", bars)])
    of_mean, of_std = (np.diff(at.interval(of, ONE_ERROR, "full", bars)).ravel() for of in _MAPPED)
    # V's such that the std's is half of its own interval.
    return np.stack([of_mean / 2, of_std * np.sqrt(np.where(at.V > 0, at.V, np.nan))])


@dataclass(frozen=True, eq=False)
class Maps:
    """The grid's estimates."""

    grid: MapGrid
    # A pair of axes each: (5 or 6, slices, cells of the second, cells of the first).
    pairs: tuple[Floats, ...]
    unit: float  # of the rewards, in whose powers they are

    @classmethod
    def of(cls, evaluation: Evaluation, grid: MapGrid, bar: ProgressBar) -> Maps:
        """Evaluate every map that can be chosen; outside the data nothing is known, of no episode."""
        measured = []
        for pair in grid.pairs:
            values = _measure_inside(evaluation, grid.states(pair))
            across, up = (grid.axes[k].cells.size for k in pair)
            measured.append(values.reshape(len(values), -1, up, across))
            bar.advance()
        return cls(grid, tuple(measured), evaluation.risk.unit)

    def ranges(self) -> dict[str, list[float]]:
        """What the colours of each map run over: the 1st to the 99th percentile of all cells."""
        everything = np.concatenate([pair.reshape(len(pair), -1) for pair in self.pairs], axis=1)
        J, V, J_error, V_error, episodes = everything[:5]
        with np.errstate(divide="ignore", invalid="ignore"):
            std = np.sqrt(V)
            shown = {"mean": J, "std": std, "sharpe": J / std, "mean_error": J_error}
            shown |= {"std_error": V_error / (2 * std), "episodes": np.log10(episodes)}
            for name in ("mean", "std", "mean_error", "std_error"):
                shown[name] = shown[name] * self.unit
        return {name: _span(values) for name, values in shown.items()} | {"covered": [0.0, 1.0]}

    def to_dict(self) -> dict[str, Any]:
        """What the page's script draws from."""
        pairs = [
            {"axes": pair, "slices": self.grid.slices(pair), "data": packed(values)}
            for pair, values in zip(self.grid.pairs, self.pairs, strict=True)
        ]
        return {"sliders": self.grid.sliders, "ranges": self.ranges(), "unit": self.unit, "pairs": pairs}


def line(evaluation: Evaluation, grid: MapGrid) -> dict[str, Any]:
    """Estimates along the only coordinate that matters, and their intervals' ends, for the page's script."""
    risk, (axis,) = evaluation.risk, grid.axes
    states = np.tile(grid.fixed, (axis.cells.size, 1))
    states[:, axis.coordinate] = axis.cells
    quantities: tuple[Quantity, ...] = ("mean", "std", "sharpe")
    counted = ("episodes",) if evaluation.target is None else ("episodes", "covered")
    known = quantities if risk.error_bars is not None else ()
    blank = evaluation.outside(states)
    values = {of: np.where(blank, np.nan, getattr(risk, of)(states)) for of in (*quantities, *counted)}
    values["episodes"][blank] = 0.0
    intervals = {
        of: np.where(blank, np.nan, risk.interval(states, of=of, level=evaluation.level).T) for of in known
    }
    return {"values": plain(values, DIGITS), "intervals": plain(intervals, DIGITS)}


@dataclass(frozen=True, eq=False)
class Sampled:
    """Some of the visited states, with what a table needs of them."""

    states: Floats  # (n, dim)
    mean: Floats  # (n,)
    std: Floats  # (n,), nan where V < 0
    interval: Floats  # (n, 2): of the std, for all states together; nan without error bars
    riskier: Bools  # (n,): than the median state, for all together
    episodes: Floats  # (n,)

    @classmethod
    def of(cls, evaluation: Evaluation) -> Sampled:
        """At most SAMPLE of the survey's visited states, evenly spaced in their order."""
        risk, visited = evaluation.risk, evaluation.survey.visited
        states = visited[:: -(-len(visited) // SAMPLE)]
        interval, riskier = np.full((len(states), 2), np.nan), np.zeros(len(states), dtype=np.bool_)
        if risk.error_bars is not None:
            drawn = replace(risk, error_bars=risk.error_bars.replicated(seed=0))
            interval = drawn.band(states, of="std", level=evaluation.level)
            riskier = drawn.riskier(states, level=evaluation.level)
        parts = risk.parts(states)
        mean, std, episodes = np.hstack([[at.J, at.value("std"), at.episodes] for at in parts])
        return cls(states, mean * risk.unit, std * risk.unit, interval, riskier, episodes)

    def riskiest(self, evaluation: Evaluation, grid: MapGrid) -> list[int]:
        """Rows with a large std, the largest first, that lie apart from each other.

        They are ranked by the lower end of the std's interval, so that a few unlucky episodes do not lead;
        without error bars by the std. A row within APART of one before it, in every coordinate that the
        features look at, and of the same labels, is skipped.
        """
        rank = np.where(np.isnan(self.interval[:, 0]), self.std, self.interval[:, 0])
        matters = [k for k in range(self.states.shape[1]) if k not in grid.idle]
        low, high = evaluation.survey.low[matters], evaluation.survey.high[matters]
        labels = [evaluation.names[k] in (evaluation.notes.get("labels") or {}) for k in matters]
        # Any two values of a label lie apart.
        place = (self.states[:, matters] - low) / np.where((high > low) & ~np.array(labels), high - low, 1.0)
        left: Bools = np.isfinite(rank)
        chosen: list[int] = []
        while left.any() and len(chosen) < RISKIEST:
            best = int(np.argmax(np.where(left, rank, -np.inf)))
            chosen.append(best)
            left &= np.abs(place - place[best]).max(axis=1, initial=0.0) > APART
        return sorted(chosen, key=lambda row: -rank[row])

    def to_dict(self, coordinates: Sequence[int]) -> dict[str, Any]:
        """The cloud of the mean–std plane, as the page's script draws it, with these of the coordinates."""
        shown = np.flatnonzero(np.isfinite(self.std) & np.isfinite(self.mean))
        shown = shown[:: max(-(-shown.size // CLOUD), 1)]
        kept = {name: getattr(self, name)[shown] for name in ("mean", "std", "episodes")}
        kept["states"] = self.states[shown][:, list(coordinates)]
        return {name: plain(values, DIGITS) for name, values in kept.items()}


def histogram(survey: Survey) -> dict[str, Any] | None:
    """The recorded returns in bins: edges (n + 1,), and how many terminated and were cut off in each.

    A bin for every value where all are whole numbers and few. None where an older file has none of them.
    """
    returns, ended = survey.returns
    finite = np.isfinite(returns)
    returns, ended = returns[finite], ended[finite] > 0
    if not returns.size:
        return None
    low, high = float(returns.min()), float(returns.max())
    if high - low < _BINS and not np.any(returns % 1.0):
        edges = np.arange(low, high + 2) - 0.5
    else:
        count = min(len(np.histogram_bin_edges(returns, "auto")) - 1, _BINS)
        edges = np.linspace(low, high, count + 1)
    bins = [np.histogram(returns[which], edges)[0] for which in (ended, ~ended)]
    return {"edges": plain(edges, DIGITS), "terminated": bins[0].tolist(), "cut_off": bins[1].tolist()}


def running(evaluation: Evaluation) -> dict[str, Any] | None:
    """The returns in the order of the episodes with their running mean, as in ``plotting.plot_returns``."""
    order = evaluation.order
    if order is None:
        return None
    g, at = order.returns, np.arange(1.0, order.returns.size + 1) if order.times is None else order.times
    width = min(max(10, g.size // 20), g.size)
    means, centre = (np.convolve(each, np.full(width, 1.0 / width), "valid") for each in (g, at))
    reach = 1.96 * float(g.std()) / width**0.5
    points, line = (np.arange(0, each.size, max(-(-each.size // CLOUD), 1)) for each in (g, means))
    changed = order.testable and order.mean.found
    drawn = {"at": at[points], "returns": g[points], "centre": centre[line], "running": means[line]}
    return {
        **{name: plain(values, DIGITS) for name, values in drawn.items()},
        "band": plain([float(g.mean()) - reach, float(g.mean()) + reach], DIGITS),
        "time": order.times is not None,
        "changed": float(at[order.mean.after]) if changed else None,
        "width": width,
    }


def _span(values: Floats) -> list[float]:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return [0.0, 1.0]
    low, high = (float(f"{v:.6g}") for v in np.percentile(finite, [1, 99]))
    if low < high:
        return [low, high]
    around = max(abs(low) * 0.05, 0.5)
    return [low - around, low + around]
