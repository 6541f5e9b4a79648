"""Quantiles, the mean of the worst returns and the chance of a loss in an evaluation that asks for them.

At states they are :class:`policyrisk.ReturnDistribution`'s, by the features that were spelled, or by those
candidates for a mixture whose mean was nearest to held-out episodes: the *model*. Over the starts they are
those of the recorded returns, with the model's beside them, unless episodes were cut off: the model's then.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_list, as_number
from policyrisk._core.imports import check_installed
from policyrisk._core.text import percent
from policyrisk.distribution import DistributionFunction, RecordedReturns, ReturnDistribution
from policyrisk.errors import InvalidInputError, PolicyRiskWarning
from policyrisk.evaluation.feature_choice import FeatureChoice
from policyrisk.evaluation.spelling import Spelling
from policyrisk.features import Features
from policyrisk.passes.fold import Fold
from policyrisk.passes.survey import Survey
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
        self, features: Features, fold: Fold, discount: float, survey: Survey, level: float
    ) -> tuple[DistributionFunction, dict[str, Any]]:
        """The distribution, and the summary over the starts in plain values."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyRiskWarning)  # what is given up is in the advice
            dist = ReturnDistribution(features, discount=discount).fit_by(fold)
        below = () if self.loss_below is None else (self.loss_below,)
        model = dist.summary(survey.starts, self.quantiles, level, below=below).to_dict()
        recorded = recorded_returns(survey, discount)
        if recorded is None:
            return dist, model
        return dist, {**recorded.summary(self.quantiles, level, below=below).to_dict(), "model": model}


def recorded_returns(survey: Survey, discount: float) -> RecordedReturns | None:
    """The recorded returns, all or the survey's uniform sample; None where one of all was cut off."""
    returns = survey.returns[0]
    return None if survey.cut_off or returns.size < 2 else RecordedReturns(returns, discount)


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


def whose(told: Mapping[str, Any], survey: Survey) -> str:
    """What the quantiles over the starts are of, in a few words."""
    if "model" not in told:
        cut = f", as {percent(survey.cut_off / survey.episodes)} of the episodes were cut off"
        return f"by the model ({told['features']}){cut if survey.cut_off else ''}"
    some = "the" if told["starts"] == survey.episodes else f"a uniform sample of {told['starts']:,} of the"
    return f"of {some} {survey.episodes:,} recorded returns"


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
    """F over the starts, with the quantiles that were asked for and the line that a loss is below.

    The recorded returns' F, where the quantiles are theirs, and the model's.
    """
    check_installed("matplotlib", "a picture")
    from matplotlib.figure import Figure

    dist, told = evaluation.distribution, evaluation.notes["distribution"]
    assert dist is not None
    theta = dist.thresholds
    F = dist.over(evaluation.survey.starts).curve[0, : theta.size]
    axes: Axes = Figure(figsize=(6, 4), layout="constrained").subplots()
    how: dict[str, Any] = {"color": "tab:blue"}
    if "model" in told:
        returns = np.sort(evaluation.survey.returns[0])
        shares = np.arange(1, returns.size + 1) / returns.size
        axes.step(returns, shares, where="post", color="tab:blue", label="recorded returns")
        how = {"color": "0.5", "linewidth": 1.0, "linestyle": "--", "label": "model"}
    axes.plot(theta, F, drawstyle="steps-post" if dist.grid.steps else "default", **how)
    if "model" in told:
        axes.legend(fontsize="small", loc="lower right")
    for q, value in told["quantiles"].items():
        axes.plot([value["low"], value["high"]], [float(q)] * 2, color="tab:orange", linewidth=1.6)
        axes.plot(value["value"], float(q), "o", color="tab:orange", markersize=4)
    for line, value in told["below"].items():
        axes.axvline(float(line), color="0.5", linestyle="--", linewidth=1.0)
        label = f"{percent(value['value'])} below {line} "
        axes.text(float(line), 1.02, label, color="0.3", fontsize="small", ha="right")
    axes.set(xlabel="return z from the starts", ylabel="probability of at most z", ylim=(0.0, 1.08))
    return axes
