"""The numbers of a report: estimates on the grid, the riskiest states, and the script's data.

Maps are some numbers a cell (``BITS``): J, V, how far from these the ends of the intervals of mean and std
are, the episodes behind them, of a target policy how much of it the data cover; and where tails were asked
for the mean of the worst returns and the chance of a loss; and what one further return is between. They are
sent as float32 of which so many bits are kept, all first bytes before all second ones, compressed
(:func:`packed`). Std and Sharpe ratio follow from those in the browser.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Bools, Floats
from policyrisk._core.output import plain
from policyrisk._core.progress import ProgressBar
from policyrisk.features.target import PolicyFeatures
from policyrisk.passes.survey import Survey
from policyrisk.report.grid import MapGrid
from policyrisk.risk import Quantity
from policyrisk.risk.state_estimates import IntervalMethod

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

SAMPLE = 4000  # visited states that the table and the plane choose from
CLOUD = 1000  # of them that are drawn
RISKIEST = 10  # rows of the table
DIGITS = 7  # of the numbers that the page is given
APART = 0.1  # of the data's extent: two rows of the table differ by more in some coordinate
# What a cell has, and the bits that are kept of its mantissa.
BITS = {"mean": 12, "variance": 12, "episodes": 9, "covered": 7}
BITS |= {"mean_down": 7, "mean_up": 7, "std_down": 7, "std_up": 7}
BITS |= {"worst": 12, "loss": 9, "return_low": 11, "return_high": 11}
_MAPPED: tuple[Quantity, ...] = ("mean", "std")
_BINS = 40  # of the histogram, at most


def compressed(content: bytes) -> str:
    """gzip in base64, always the same text of the same bytes."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def packed(values: Mapping[str, Floats]) -> str:
    """Numbers of each kind, of one shape, as the page's script unpacks them."""
    numbers = np.stack([np.ravel(each) for each in values.values()]).astype("<f4")
    dropped = np.array([[23 - BITS[kind]] for kind in values], dtype=np.uint32)
    bits = numbers.view("<u4")
    half = (np.uint32(1) << dropped) >> np.uint32(1)
    rounded = np.where(np.isfinite(numbers), (bits + half) >> dropped << dropped, bits)
    return compressed(np.ascontiguousarray(rounded.astype("<u4").view(np.uint8).reshape(-1, 4).T).tobytes())


def measure(evaluation: Evaluation, states: Floats) -> dict[str, Floats]:
    """What a cell has (``BITS``) at states (n, dim), (n,) each and in units; nan where unknown."""
    risk, level = evaluation.risk, evaluation.level
    bars, width = risk.error_bars, 0
    method: IntervalMethod = "student" if risk.widening is None else "full"
    if bars is not None:
        width = bars.width if method == "student" else bars.draws
    found = []
    for at in risk.parts(states, width):
        rows = [at.J, at.V, at.episodes]
        if bars is not None:
            for of in _MAPPED:
                low, high = at.interval(of, level, method, bars).T
                rows += [at.value(of) - low, high - at.value(of)]
        found.append(rows)
    kinds = ["mean", "variance", "episodes", "mean_down", "mean_up", "std_down", "std_up"]
    values = dict(zip(kinds, np.hstack(found), strict=False))
    if isinstance(risk.features, PolicyFeatures):
        values["covered"] = risk.covered(states)
    return values | _tails(evaluation, states) | _next_return(evaluation, states)


def asked_tails(evaluation: Evaluation) -> tuple[float, float | None]:
    """The smallest share of the worst returns that was asked for, and the first line that a loss is below."""
    notes = evaluation.notes["distribution"]
    return min(map(float, notes["cvar"])), next(map(float, notes["below"]), None)


def _tails(evaluation: Evaluation, states: Floats) -> dict[str, Floats]:
    """The mean of the worst returns, in units, and the chance of a loss."""
    dist = evaluation.distribution
    if dist is None:
        return {}
    q, below = asked_tails(evaluation)
    found = {"worst": np.full(len(states), np.nan), "loss": np.full(len(states), np.nan)}
    line = 0.0 if below is None else dist.just_below(below) / dist.unit
    for some, grid, curves in dist.readings(states):
        found["worst"][some] = grid.cvar(curves, q)
        found["loss"][some] = grid.read(curves, "cdf", z=line)
    found["worst"] *= dist.unit / evaluation.risk.unit
    if below is None:
        del found["loss"]
    return found


def _next_return(evaluation: Evaluation, states: Floats) -> dict[str, Floats]:
    """The ends of what one further return is between, in units."""
    if evaluation.prediction is None:
        return {}
    low, high = evaluation.prediction_interval(states, evaluation.level).T / evaluation.risk.unit
    return {"return_low": low, "return_high": high}


def _measure_inside(evaluation: Evaluation, states: Floats) -> dict[str, Floats]:
    """As ``measure``, but nan with 0 episodes outside the data, whatever the features extrapolate there."""
    inside = ~evaluation.outside(states)
    values = {}
    for kind, measured in measure(evaluation, states[inside]).items():
        values[kind] = np.full(len(states), 0.0 if kind == "episodes" else np.nan)
        values[kind][inside] = measured
    return values


@dataclass(frozen=True, eq=False)
class Maps:
    """The grid's estimates."""

    grid: MapGrid
    # A pair of axes each: a kind's are (slices, cells of the second, cells of the first).
    pairs: tuple[Mapping[str, Floats], ...]
    unit: float  # of the rewards, in whose powers they are

    @classmethod
    def of(cls, evaluation: Evaluation, grid: MapGrid, bar: ProgressBar) -> Maps:
        """Evaluate every map that can be chosen; outside the data nothing is known, of no episode."""
        measured = []
        for pair in grid.pairs:
            values = _measure_inside(evaluation, grid.states(pair))
            across, up = (grid.axes[k].cells.size for k in pair)
            measured.append({kind: each.reshape(-1, up, across) for kind, each in values.items()})
            bar.advance()
        return cls(grid, tuple(measured), evaluation.risk.unit)

    def ranges(self) -> dict[str, list[float]]:
        """What the colours of each map run over: the 1st to the 99th percentile of all cells."""
        every = {kind: np.concatenate([pair[kind].ravel() for pair in self.pairs]) for kind in self.pairs[0]}
        with np.errstate(divide="ignore", invalid="ignore"):
            std = np.sqrt(every["variance"])
            shown = {"mean": every["mean"] * self.unit, "std": std * self.unit}
            shown |= {"sharpe": every["mean"] / std, "episodes": np.log10(every["episodes"])}
            if "mean_up" in every:
                for of in _MAPPED:
                    shown[f"{of}_error"] = (every[f"{of}_down"] + every[f"{of}_up"]) / 2.0 * self.unit
            if "worst" in every:
                shown["worst"] = every["worst"] * self.unit
            if "loss" in every:
                shown["loss"] = every["loss"]
        return {kind: _span(values) for kind, values in shown.items()} | {"covered": [0.0, 1.0]}

    def to_dict(self) -> dict[str, Any]:
        """What the page's script draws from."""
        pairs = [
            {"axes": pair, "slices": self.grid.slices(pair), "data": packed(values)}
            for pair, values in zip(self.grid.pairs, self.pairs, strict=True)
        ]
        kinds = list(self.pairs[0])
        return {
            "sliders": self.grid.sliders,
            "ranges": self.ranges(),
            "unit": self.unit,
            "kinds": kinds,
            "pairs": pairs,
        }


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
    intervals: dict[str, Floats] = {
        of: np.where(blank, np.nan, risk.interval(states, of=of, level=evaluation.level).T) for of in known
    }
    if (dist := evaluation.distribution) is not None:
        q, below = asked_tails(evaluation)
        tails = _tails(evaluation, states) | _next_return(evaluation, states)
        tails = {kind: np.where(blank, np.nan, each) for kind, each in tails.items()}
        values |= {kind: each if kind == "loss" else each * risk.unit for kind, each in tails.items()}
        how: dict[str, dict[str, Any]] = {"worst": {"of": "cvar", "q": q}, "loss": {"below": below}}
        for kind in how.keys() & tails if dist.has_intervals else ():
            ends = dist.interval(states, **how[kind], level=evaluation.level).T
            intervals[kind] = np.where(blank, np.nan, ends)
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
        edges = np.linspace(low, high, _BINS + 1)
    bins = [np.histogram(returns[which], edges)[0] for which in (ended, ~ended)]
    return {"edges": plain(edges, DIGITS), "terminated": bins[0].tolist(), "cut_off": bins[1].tolist()}


def start_curve(evaluation: Evaluation) -> dict[str, Any] | None:
    """F over the starts, the recorded returns' and the model's, with what was asked for on it.

    None where no tails were asked for.
    """
    dist = evaluation.distribution
    if dist is None:
        return None
    notes, survey = evaluation.notes["distribution"], evaluation.survey
    over = dist.over(survey.starts)
    theta = over.thresholds
    recorded = np.sort(survey.returns[0]) if "model" in notes and not survey.cut_off else np.empty(0)
    shown = np.unique(np.linspace(0, max(recorded.size - 1, 0), CLOUD).astype(int))[: recorded.size]
    curves = {"at": theta, "share": over.curve[0, : theta.size]}
    curves |= {"returns": recorded[shown], "shares": (shown + 1.0) / max(recorded.size, 1)}
    marks = {
        of: [[float(at), *each.values()] for at, each in notes[of].items()] for of in ("quantiles", "below")
    }
    return {
        **{name: plain(values, DIGITS) for name, values in curves.items()},
        **{name: plain(values, DIGITS) for name, values in marks.items()},
        "steps": bool(over.grid.steps),
    }


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
