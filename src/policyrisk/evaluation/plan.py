"""A :class:`Plan` says what is fitted: which features, by which estimator, and how they were chosen.

There are three: features that were spelled (:class:`SpelledPlan`), a mixture that held-out episodes choose
(:class:`policyrisk.evaluation.mixture.MixturePlan`), and features of states and actions for another policy
than the recorded one (:class:`policyrisk.evaluation.target.TargetPlan`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.random import keys
from policyrisk.data import Source, Trajectories
from policyrisk.errors import NoErrorBarsWarning, PolicyRiskWarning
from policyrisk.evaluation.log import Log
from policyrisk.evaluation.request import EvaluationRequest, naming_arguments
from policyrisk.features import Features
from policyrisk.features.spelling import Spelling
from policyrisk.lstd import LSTD, LSTDQ
from policyrisk.passes import Reduce, reduce_in_units
from policyrisk.passes.episode_folds import FOLDS, folds_of
from policyrisk.passes.survey import Survey
from policyrisk.risk import RiskFunction, VarianceMethod
from policyrisk.risk.scoring import EpisodeSteps
from policyrisk.selection.distribution_stack import Completed
from policyrisk.selection.out_of_fold import fits_without_each, one_out_of_fold
from policyrisk.selection.specification import SpecificationTest

_REFITTED = 1000  # features, up to which they are fitted again without each fold


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a plan."""

    risk: RiskFunction
    notes: Mapping[str, Any] = field(default_factory=dict)  # beside those of the plan
    check: SpecificationTest | None = None  # the test of the features, where it was made


class Plan(Protocol):
    """A way to answer a request for its log."""

    @property
    def spelling(self) -> Spelling:
        """The features that the distribution of the return gets."""

    @property
    def features(self) -> str:
        """The features in words."""

    @property
    def variance(self) -> VarianceMethod:
        """The variance method."""

    @property
    def labels(self) -> tuple[int, ...]:
        """Coordinates that the choice took for labels."""

    @property
    def explanation(self) -> str:
        """The choice of the features in words; empty where they were given."""

    @property
    def notes(self) -> dict[str, Any]:
        """The notes on the plan, in plain values."""

    @property
    def settings(self) -> dict[str, Any]:
        """The plan's own settings, for the notes."""

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the plan to a checkpoint, beside its features in words."""

    def fit(self, reduce: Reduce, unit: float) -> Fitted:
        """The estimate in this unit of the rewards, in passes over all of the data."""

    def judge(self, fitted: Fitted, data: Source) -> Fitted:
        """The fit, judged by one more pass over data of moderate size."""

    def held_out(self, sample: Trajectories, seed: int) -> Completed | None:
        """What a fit without their episodes says of a sample's steps; None where there is no such fit."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """Turns spelled features into an estimator: the states, the box and the settings."""

    survey: Survey
    names: tuple[str, ...]
    low: Floats
    high: Floats
    lam: float
    discount: float
    ridge: float
    variance: VarianceMethod
    nonnegative_at: Literal["visited"] | None = None
    labels: tuple[int, ...] = ()  # coordinates that are labels for certain

    @classmethod
    def of(cls, request: EvaluationRequest, log: Log, variance: VarianceMethod) -> Fitting:
        """The fitting of a request; ``variance`` is the method unless the request names one."""
        settings = {of: getattr(request, of) for of in ("lam", "discount", "ridge", "nonnegative_at")}
        states = {of: getattr(log, of) for of in ("survey", "names", "low", "high")}
        return cls(**states, **settings, variance=request.variance or variance, labels=tuple(log.labels))

    def maps(self, spelling: Spelling) -> tuple[Features, Features | None]:
        """The features, and those of the second moment where they are others."""
        with naming_arguments("features"):
            spelling.check_labels(self.names, self.survey, self.labels)
            phi, second = spelling.build(self.names, self.survey, self.low, self.high), spelling.second
            if second is None:
                return phi, None
            return phi, second.build(self.names, self.survey, self.low, self.high, beside=spelling)

    def settings(self, spelling: Spelling, episodes: int | None = None) -> dict[str, Any]:
        """The estimator's settings, in a fit to so many episodes; None is all of the log."""
        ridge = spelling.ridge(self.survey.episodes if episodes is None else episodes)
        same = {of: getattr(self, of) for of in ("lam", "discount", "variance", "nonnegative_at")}
        return {**same, "ridge": max(self.ridge, ridge)}

    def lstd(self, spelling: Spelling, episodes: int | None = None, variance_lam: float = 0.0) -> LSTD:
        """The estimator of the recorded policy."""
        return LSTD(*self.maps(spelling), **self.settings(spelling, episodes), variance_lam=variance_lam)


@dataclass(frozen=True, eq=False)
class SpelledPlan:
    """LSTD with features that were spelled."""

    spelling: Spelling
    names: tuple[str, ...]
    lstd: LSTD

    @classmethod
    def of(cls, request: EvaluationRequest, log: Log) -> SpelledPlan:
        """The plan of a request that spells its features."""
        assert request.spelling is not None
        lstd = Fitting.of(request, log, "second-moment").lstd(request.spelling)
        return cls(request.spelling, log.names, lstd)

    labels = ()
    explanation = ""
    notes: ClassVar = {"choice": None}
    settings: ClassVar[dict[str, Any]] = {}  # they are the request's

    @property
    def features(self) -> str:
        """The features as they were spelled."""
        return str(self.spelling)

    @property
    def variance(self) -> VarianceMethod:
        """The variance method of LSTD."""
        return self.lstd.variance

    @property
    def identity(self) -> dict[str, Any]:
        """The features as all spellings of the same maps have them."""
        return {"features": self.spelling.normal(self.names).text(self.names)}

    def fit(self, reduce: Reduce, unit: float) -> Fitted:
        """LSTD's passes."""
        return Fitted(fit_warning(self.lstd, reduce_in_units(reduce, unit)))

    def judge(self, fitted: Fitted, data: Source) -> Fitted:
        """The same: features that were not chosen are not tested."""
        return fitted

    def held_out(self, sample: Trajectories, seed: int) -> Completed | None:
        """By fits without each fold; of many features, whose fits take long, none."""
        lstd, key = replace(self.lstd, nonnegative_at=None), int(keys(seed)[0])
        if max(lstd.features.size, lstd.view.second_features.size) > _REFITTED or len(sample) < FOLDS:
            return None
        folds, steps = folds_of(sample, FOLDS, key), EpisodeSteps.of(sample, lstd.discount)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyRiskWarning)
            fits = fits_without_each(lstd, [sample[np.flatnonzero(folds == k)] for k in range(FOLDS)])
            said = one_out_of_fold(fits, steps, folds[steps.episode], folds[~sample.terminated])
        if not np.isfinite(said.mean).any():
            return None
        ends = np.array([said.end_mean, said.end_variance])
        return Completed.of(sample, said.mean, said.variance, ends, lstd.discount, key)


def fit_warning(estimator: LSTD | LSTDQ, reduce: Reduce, **bootstrap: Any) -> RiskFunction:
    """The estimator's fit, with the remedy of an evaluation where it has no error bars."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoErrorBarsWarning)  # its remedy is LSTD's
        risk = estimator.fit_by(reduce, **bootstrap)
    if risk.error_bars is None:
        size = max(risk.features.size, risk.second_features.size)
        warnings.warn(
            f"no error bars: the covariance of {size} features would not fit into memory; use fewer for them",
            NoErrorBarsWarning,
            stacklevel=3,
        )
    return risk
