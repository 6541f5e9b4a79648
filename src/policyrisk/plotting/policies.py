"""Policies as a whole: in the plane of mean and std, on a frontier, as they learn, over time, held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_count, as_floats, check_kind, check_named
from policyrisk._core.imports import check_installed
from policyrisk._core.text import number, plural
from policyrisk.criteria import Criterion
from policyrisk.errors import InvalidInputError
from policyrisk.plotting.axes import STD_AND_MEAN, axes_or_new, literal, plane
from policyrisk.returns import DistributionSummary
from policyrisk.risk.summary import Moments, PolicySummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from policyrisk.control.actor_critic import ActorCriticResult
    from policyrisk.control.frontier import Frontier
    from policyrisk.returns.distribution_scores import DistributionScore

_POINTS = 150  # along each side of the plane, for a criterion's lines


def plot_mean_std(
    summaries: Mapping[str, PolicySummary],
    *,
    criterion: Criterion | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Policies in the plane of std (to the right) and mean (upwards), with their intervals in both.

    A policy whose variance is negative has no std and is named in the title instead.

    Parameters
    ----------
    summaries
        A :class:`PolicySummary` by the policy's name, as ``risk.summary(starts)`` gives it.
    criterion
        Draws through each policy a line of all that a criterion of mean and variance holds equal to it, and
        what misses its bound in grey; quantiles and the like have no lines here.
    axes
        Where to draw; new ones where None.

    Returns
    -------
    Axes
        Matplotlib's.

    Examples
    --------
    >>> import policyrisk as pr
    >>> risks = {p: pr.LSTD(pr.Tabular(5)).fit_exact(pr.domains.walk(n=5, p=p), start=0) for p in (0.6, 0.8)}
    >>> axes = pr.plotting.plot_mean_std({f"p = {p}": risk.summary([0]) for p, risk in risks.items()})
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['p = 0.6', 'p = 0.8']
    """
    check_named(summaries, "summaries", "summary", "risk.summary(starts)")
    for summary in summaries.values():
        check_kind(summary, "summaries", (Moments, DistributionSummary), "pass risk.summary(starts) of each")
    axes = axes_or_new(axes, 6, 4.4)
    left_out = [name for name, summary in summaries.items() if np.isnan(summary.std)]
    markers = "osD^vP*X"
    colors = {}
    for k, (name, summary) in enumerate(summaries.items()):
        std, mean = summary.std, summary.mean
        drawn = axes.errorbar(
            std.value,
            mean.value,
            xerr=std.high - std.value if summary.known else None,
            yerr=mean.high - mean.value if summary.known else None,
            fmt=markers[k % len(markers)],
            markersize=6,
            capsize=3,
            linewidth=1.2,
            label=literal(name),
        )
        colors[name] = drawn.lines[0].get_color()
    if hasattr(criterion, "slopes") and len(left_out) < len(summaries):
        drawn_policies = {name: (summaries[name], colors[name]) for name in colors if name not in left_out}
        _equals(axes, criterion, drawn_policies)
    levels = {summary.level for summary in summaries.values() if summary.known}
    if len(levels) == 1:
        axes.set_title(f"bars: {100 * levels.pop():g}% intervals", fontsize="small", loc="right", color="0.4")
    if left_out:
        axes.set_title(literal(f"negative variance: {', '.join(left_out)}"), fontsize="small", loc="left")
    plane(axes, *STD_AND_MEAN)
    if axes.get_legend() is None:
        axes.legend(frameon=False)
    return axes


def plot_frontier(frontier: Frontier, *, axes: Axes | None = None) -> Axes:
    """The frontier of :func:`policyrisk.frontier`: std to the right, mean upwards, c beside every policy.

    Parameters
    ----------
    frontier
        The record.
    axes
        Where to draw; new ones where None.

    Returns
    -------
    Axes
        Matplotlib's.

    Examples
    --------
    >>> import policyrisk as pr
    >>> mdp = pr.MDP([[[0.8]], [[0.0]]], [[1.0, 3.0]])
    >>> axes = pr.plotting.plot_frontier(pr.frontier(mdp, c=[0, 1], policy=[[0.5, 0.5]]))
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['best policies', 'given policy']
    """
    axes = axes_or_new(axes, 6, 4.4)
    place = [(point.std, point.mean) for point in frontier.points]
    axes.plot(*zip(*place, strict=True), "o-", markersize=5, linewidth=1.2, label="best policies")
    for at in dict.fromkeys(place):
        prices = [f"{point.c:g}" for point in frontier.points if (point.std, point.mean) == at]
        axes.annotate(
            f"c = {', '.join(prices)}", at, xytext=(6, -9), textcoords="offset points", fontsize="small"
        )
    if frontier.given is not None:
        mean, std = frontier.given
        axes.plot(std, mean, "*", color="tab:red", markersize=11, linestyle="none", label="given policy")
    plane(axes, *STD_AND_MEAN)
    axes.legend(frameon=False)
    return axes


def plot_learning(result: ActorCriticResult) -> Figure:
    """The learning curve of :class:`policyrisk.ActorCritic`: the criterion above, mean and std below.

    Bands are ± 2 standard errors of an iteration's own episodes.

    Parameters
    ----------
    result
        What ``fit`` returned.

    Returns
    -------
    Figure
        Matplotlib's.

    Examples
    --------
    >>> import policyrisk as pr
    >>> from policyrisk.control import ActorCriticResult
    >>> rows = [[3.0, 0.1, 2.0, 0.1, 1.0, 0.2], [4.0, 0.1, 2.0, 0.1, 2.0, 0.2]]
    >>> result = ActorCriticResult(None, pr.criteria.MeanMinusStd(1.0), np.array(rows))
    >>> [axes.get_ylabel() for axes in pr.plotting.plot_learning(result).axes]
    ['mean − 1·std', 'return']
    """
    check_installed("matplotlib", "a picture")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    title = str(result.criterion).partition(",")[0]
    for axes, of, color in (
        (above, "value", "tab:green"),
        (below, "mean", "tab:blue"),
        (below, "std", "tab:red"),
    ):
        at, middle = result.curve(of)
        error = np.nan_to_num(result.curve(f"{of}_error")[1])
        axes.plot(at, middle, color=color, linewidth=1.4, label=of)
        axes.fill_between(at, middle - 2 * error, middle + 2 * error, color=color, alpha=0.2, linewidth=0)
    plane(above, ylabel=title)
    plane(below, "iteration", "return")
    below.legend(frameon=False)
    return figure


def plot_pit(score: DistributionScore, *, axes: Axes | None = None) -> Axes:
    """Where held-out returns fell in their estimated distributions, with 95% intervals; level is right.

    A hump says that the distributions are too wide, a U that they are too narrow, and a slope that returns
    are too high or too low.

    Parameters
    ----------
    score
        What :meth:`DistributionFunction.score` returned.
    axes
        Where to draw; new ones where None.

    Returns
    -------
    Axes
        Matplotlib's.

    Examples
    --------
    >>> import policyrisk as pr
    >>> chain = pr.domains.walk(5)
    >>> dist = pr.ReturnDistribution(pr.Tabular(5)).fit(chain.sample(0, episodes=500, seed=1))
    >>> axes = pr.plotting.plot_pit(dist.score(chain.sample(0, episodes=500, seed=2)))
    >>> axes.get_xlabel()
    'F(return)'
    """
    if not hasattr(score, "pit"):
        raise InvalidInputError(
            f"score must be of distributions, got {type(score).__name__}; pass dist.score(…)"
        )
    parts = len(score.pit)
    edges = np.arange(parts + 1) / parts
    # As a density, so that 1 is right whatever the number of parts.
    shares = parts * np.array([[each.value, each.low, each.high] for each in score.pit])
    axes = axes_or_new(axes, 6, 4)
    axes.bar(
        edges[:-1], shares[:, 0], 1 / parts, align="edge", color="tab:blue", alpha=0.35, edgecolor="white"
    )
    middles, reach = (edges[1:] + edges[:-1]) / 2, np.abs(shares[:, 1:] - shares[:, :1]).T
    axes.errorbar(middles, shares[:, 0], yerr=reach, fmt="none", ecolor="tab:blue", capsize=3, linewidth=1.2)
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1.2)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="F(return)", ylabel="density, 1 is right")
    axes.set_title(
        f"{plural(score.episodes, 'held-out episode')}, CRPS {number(score.crps, 3)}", fontsize="small"
    )
    return axes


def _equals(axes: Axes, criterion: Any, policies: Mapping[str, tuple[PolicySummary, Any]]) -> None:
    """Lines of equal value through policies, and grey where the bound is missed, as far as the axes go."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    (left, right), (below, above) = axes.get_xlim(), axes.get_ylim()
    std, mean = np.linspace(max(left, 0.0), right, _POINTS), np.linspace(below, above, _POINTS)
    points = [[(m, s**2) for s in std.tolist()] for m in mean.tolist()]

    def over(function: Any) -> Floats:
        return np.array([[function(m, v)[0] for m, v in row] for row in points])

    handles, _ = axes.get_legend_handles_labels()
    if criterion.slack(mean[0], std[0] ** 2) is not None:
        missed = over(criterion.slack) < 0
        axes.contourf(std, mean, missed, levels=[0.5, 1.5], colors=["0.9"], zorder=0)
        handles.append(Patch(facecolor="0.9", edgecolor="0.6", label="misses the bound"))
    value = over(criterion.slopes)
    value[~np.isfinite(value)] = np.nan  # a ratio at std 0
    for summary, color in policies.values():
        own = criterion.slopes(summary.mean.value, summary.variance.value).value
        if np.nanmin(value) < own < np.nanmax(value):
            axes.contour(std, mean, value, levels=[own], colors=[color], linewidths=1.0, linestyles="--")
    equal = str(criterion).partition(",")[0].partition(" with ")[0]
    handles.append(Line2D([], [], color="0.4", linestyle="--", linewidth=1.0, label=f"equal {equal}"))
    axes.set(xlim=(left, right), ylim=(below, above))
    axes.legend(handles=handles, frameon=False)


def plot_returns(
    returns: npt.ArrayLike,
    times: npt.ArrayLike | None = None,
    *,
    window: int | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Returns in the order of the episodes, with their running mean: do they stay what they were?

    The band is where 95% of running means lie if episodes are independent and alike.

    Parameters
    ----------
    returns
        (episodes,), in their order, as :meth:`policyrisk.Trajectories.returns` gives them.
    times
        (episodes,), when each took place: the order in which they are drawn. Their numbers where None.
    window
        How many episodes the running mean averages; a twentieth of them, at least 10, where None.
    axes
        Where to draw; new ones where None.

    Returns
    -------
    Axes
        Matplotlib's.

    Examples
    --------
    >>> import policyrisk as pr
    >>> log = pr.domains.walk(n=30, p=0.7).sample(0, episodes=400, seed=0)
    >>> pr.plotting.plot_returns(log.returns()).get_legend_handles_labels()[1][-1]
    'mean of 20 in a row'
    """
    g = as_floats(returns, "returns", (None,))
    if not g.size:
        raise InvalidInputError("returns must be those of one episode at least, got none; record some")
    width = min(max(10, g.size // 20), g.size) if window is None else as_count(window, "window", 1, g.size)
    at, what = np.arange(1.0, g.size + 1), "episode"
    if times is not None:
        at, what = as_floats(times, "times", (g.size,)), "time"
        order = np.argsort(at, kind="stable")
        at, g = at[order], g[order]
    axes = axes_or_new(axes, 7, 3)
    plane(axes, what, "return")
    axes.plot(at, g, ".", color="0.6", markersize=3, alpha=0.6, rasterized=True)
    mean, reach = float(g.mean()), 1.96 * float(g.std()) / width**0.5
    axes.axhspan(mean - reach, mean + reach, color="tab:blue", alpha=0.12, linewidth=0)
    axes.axhline(mean, color="tab:blue", linestyle="--", linewidth=1.0, label="mean of all")
    running, centre = (np.convolve(each, np.full(width, 1.0 / width), "valid") for each in (g, at))
    axes.plot(centre, running, color="tab:orange", linewidth=1.6, label=f"mean of {width} in a row")
    axes.legend(fontsize="small", loc="best")
    return axes
