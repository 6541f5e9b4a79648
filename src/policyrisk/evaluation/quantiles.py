"""Quantiles, the mean of the worst returns and the chance of a loss in an evaluation that asks for them.

They are :class:`policyrisk.ReturnDistribution`'s, by the features that were spelled, or by those candidates
for a mixture whose mean was nearest to held-out episodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_list, as_number
from policyrisk._core.imports import check_installed
from policyrisk._core.text import percent, table
from policyrisk.distribution import DistributionFunction, ReturnDistribution
from policyrisk.errors import InvalidInputError, PolicyRiskWarning
from policyrisk.evaluation.feature_choice import FeatureChoice
from policyrisk.evaluation.spelling import Spelling
from policyrisk.features import Features
from policyrisk.passes.fold import Fold
from policyrisk.risk.estimate import Estimate
from policyrisk.selection.stacking import FOREST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from policyrisk.evaluation.record import Evaluation

_DEFAULT = (0.05, 0.5, 0.95)  # quantiles where a loss alone was asked for


@dataclass(frozen=True)
class TailsAsked:
    """Which quantiles, and which line a loss is below."""

    quantiles: tuple[float, ...]
    loss_below: float | None

    @classmethod
    def of(cls, quantiles: Sequence[float], loss_below: float | None, target: object) -> TailsAsked | None:
        """Checked, None where nothing was asked for."""
        if loss_below is not None:
            loss_below = as_number(loss_below, "loss_below")
        found = [
            as_number(q, "quantiles", 0.0, 1.0, open_low=True)
            for q in as_list(quantiles, "quantiles", "shares")
        ]
        if not found and loss_below is None:
            return None
        if target is not None:
            raise InvalidInputError(
                "quantiles must be of the recorded policy, got a target, of which no return was recorded; "
                "leave out quantiles and loss_below, or the target"
            )
        return cls(tuple(sorted({*found})) or _DEFAULT, loss_below)

    def fit(
        self, features: Features, fold: Fold, discount: float, starts: Floats, level: float
    ) -> tuple[DistributionFunction, dict[str, Any]]:
        """The distribution, and its summary over starts in plain values."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyRiskWarning)  # what is given up is in the advice
            dist = ReturnDistribution(features, discount=discount).fit_by(fold)
        below = () if self.loss_below is None else (self.loss_below,)
        return dist, dist.summary(starts, self.quantiles, level, below=below).to_dict()


def spelling_for(choice: FeatureChoice) -> Spelling:
    """The candidate, other than the forest, whose mean was nearest to held-out episodes."""
    spelled = [each for each in choice.stack.candidates if each.name != FOREST and not each.reason]
    return (
        Spelling.parse(min(spelled, key=lambda each: each.mse).name) if spelled else Spelling.parse("poly:1")
    )


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, Estimate]]:
    """What a summary in plain values says, name by name."""
    for q, value in told["quantiles"].items():
        yield f"{percent(float(q))} quantile", Estimate(*value.values())
    for q, value in told["cvar"].items():
        if float(q) < 0.5:
            yield f"mean of the worst {percent(float(q))}", Estimate(*value.values())
    for line, value in told["below"].items():
        yield f"chance of a return below {line}", Estimate(*value.values())


def text(told: Mapping[str, Any]) -> str:
    """The same as a table."""
    cells = [[name, *value.cells] for name, value in rows(told)]
    head = ["", "value", "std error", f"{told['level']:.4g} interval"]
    return f"the return's distribution, by {told['features']}\n{table(head, cells)}"


@dataclass(frozen=True, eq=False)
class WorstReturns:
    """The mean of the worst q of the returns, as maps and lines draw an estimate."""

    dist: DistributionFunction
    q: float

    @property
    def provenance(self) -> Any:
        """Which estimator a legend names."""
        return SimpleNamespace(estimator="ReturnDistribution")

    @property
    def error_bars(self) -> Any:
        """Whatever intervals come from, None where there are none."""
        return self.dist.influences

    def cvar(self, x: npt.ArrayLike) -> Floats:
        """(n,)."""
        return self.dist.cvar(x, self.q)

    def interval(self, x: npt.ArrayLike, of: str, level: float) -> Floats:
        """(n, 2)."""
        return self.dist.interval(x, of="cvar", q=self.q, level=level)


def plot_start(evaluation: Evaluation) -> Axes:
    """F over the starts, with the quantiles that were asked for and the line that a loss is below."""
    check_installed("matplotlib", "a picture")
    from matplotlib.figure import Figure

    dist, told = evaluation.distribution, evaluation.notes["distribution"]
    assert dist is not None
    theta = dist.thresholds
    F = dist.over(evaluation.survey.starts).curve[0, : theta.size]
    axes: Axes = Figure(figsize=(6, 4), layout="constrained").subplots()
    if dist.grid.steps:
        axes.step(theta, F, where="post", color="tab:blue")
    else:
        axes.plot(theta, F, color="tab:blue")
    for q, value in told["quantiles"].items():
        axes.plot([value["low"], value["high"]], [float(q)] * 2, color="tab:orange", linewidth=1.6)
        axes.plot(value["value"], float(q), "o", color="tab:orange", markersize=4)
    for line, value in told["below"].items():
        axes.axvline(float(line), color="0.5", linestyle="--", linewidth=1.0)
        label = f"{percent(value['value'])} below {line} "
        axes.text(float(line), 1.02, label, color="0.3", fontsize="small", ha="right")
    axes.set(xlabel="return z from the starts", ylabel="probability of at most z", ylim=(0.0, 1.08))
    return axes
