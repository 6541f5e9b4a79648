"""The folder that an evaluation is kept in, and the types of what is read again.

It has two files that belong together, each with a format version and a checksum:

    risk.npz      the RiskFunction, as ``RiskFunction.save`` writes it
    survey.npz    the survey of the data, the names, the level, notes on how it came about, and the digests of
                  the files beside it

and where quantiles were asked for a third, ``distribution.npz``, by ``DistributionFunction.save``.

Notes are plain values. Keys that are not named here are passed on to ``summary.json`` as they are.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict

from policyrisk._core import records
from policyrisk._core.arrays import as_path
from policyrisk._core.output import make_folder
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.evaluation.advice import Advice
from policyrisk.evaluation.overlap import NotLogged
from policyrisk.evaluation.prediction import Prediction
from policyrisk.evaluation.record import Evaluation
from policyrisk.evaluation.target_choice import TargetCandidate
from policyrisk.features.target import PolicyFunction
from policyrisk.passes.survey import Survey
from policyrisk.returns import DistributionMixture
from policyrisk.returns.distribution_function import DistributionAtStates
from policyrisk.risk import RiskFunction
from policyrisk.selection.distribution_stack import TailRegion
from policyrisk.selection.specification import SpecificationTest
from policyrisk.selection.stacking import StackedCandidate

RISK, SURVEY, DISTRIBUTION = "risk.npz", "survey.npz", "distribution.npz"
_SAVED = "name", "names", "survey", "level", "notes", "check", "prediction"  # as they are
NumberText: TypeAlias = Annotated[str, float]  # which float() takes


class SavedEstimate(TypedDict):
    """A :class:`~policyrisk.risk.estimate.Estimate` in plain values."""

    value: float
    standard_error: float
    low: float
    high: float


class NotedWithoutModel(TypedDict):
    """Quantiles and chances, such as those that cut-off episodes leave without the model."""

    quantiles: dict[NumberText, SavedEstimate]
    cvar: dict[NumberText, SavedEstimate]
    below: dict[NumberText, SavedEstimate]


class NotedQuantities(NotedWithoutModel):
    """What was asked about the distribution of the return."""

    mean: SavedEstimate
    std: SavedEstimate
    starts: int


class NotedTails(NotedQuantities):
    """The same with the features, and with the model's own numbers where those of the returns are shown."""

    features: str
    without_model: NotRequired[dict[str, NotedWithoutModel]]
    doubly_robust: NotRequired[NotedWithoutModel]
    regions: NotRequired[list[Annotated[dict[str, Any], TailRegion]]]
    model: NotRequired[NotedQuantities]


class NotedStack(TypedDict):
    """What held-out episodes said of the candidates and of the mixture."""

    candidates: list[Annotated[dict[str, Any], StackedCandidate]]
    mse: float
    constant_mse: float
    calibration: float
    explained: float
    least: float | None
    most: float | None


class NotedSingleSteps(TypedDict):
    """What the errors of single steps said of the candidates for a target."""

    ranking: list[Annotated[dict[str, Any], TargetCandidate]]
    reward: float
    misfit: float
    bias: float
    rivals: list[float]


class NotedChoice(TypedDict, total=False):
    """The choice of the features."""

    stack: NotedStack
    one_step: NotedSingleSteps


class NotedDoublyRobust(TypedDict):
    """What was estimated beside by propensities."""

    mean: SavedEstimate
    variance: SavedEstimate
    std: SavedEstimate
    sharpe: SavedEstimate
    apart: list[str]


class TargetNotes(TypedDict):
    """The target policy, and how much it has in common with the log."""

    name: str
    actions: int
    action_names: list[str]
    near: Annotated[dict[str, Any], NotLogged]
    agreed: float
    propensities: bool
    effective_steps: float | None
    effective_episodes: float | None
    least: float
    most: float
    least_reward: float
    most_reward: float
    doubly_robust: NotRequired[NotedDoublyRobust | None]


class Notes(TypedDict, total=False):
    """All notes of an evaluation."""

    features: str
    settings: dict[str, Any]
    labels: dict[str, list[str]]
    filled_values: int
    dropped_episodes: int
    time_limit: int
    choice: NotedChoice | None
    target: TargetNotes
    distribution: NotedTails


class SavedEvaluation(TypedDict):
    """What ``survey.npz`` holds."""

    name: str
    names: tuple[str, ...]
    survey: Survey
    level: float
    notes: Notes
    check: SpecificationTest | None
    saved_advice: NotRequired[tuple[Advice, ...]]
    prediction: NotRequired[Prediction | None]
    risk: str
    distribution: NotRequired[str]


def save(evaluation: Evaluation, folder: str | os.PathLike[str]) -> None:
    """Write the files; a distribution of an earlier evaluation goes."""
    place = as_path(folder, "folder")
    make_folder(place, "folder")
    evaluation.risk.save(place / RISK)
    values = {of: getattr(evaluation, of) for of in _SAVED}
    a_function = evaluation.target is not None and isinstance(evaluation.target.policy, PolicyFunction)
    if a_function or evaluation.saved_advice is not None:
        values["saved_advice"] = evaluation.advice
    if evaluation.distribution is not None:
        own = evaluation.distribution
        own = replace(own, evaluated=None) if isinstance(own, DistributionMixture) else own
        own.save(place / DISTRIBUTION)
        values["distribution"] = _digest(place / DISTRIBUTION)
    records.save(place / SURVEY, "Survey", {**values, "risk": _digest(place / RISK)})
    if evaluation.distribution is None:
        (place / DISTRIBUTION).unlink(missing_ok=True)


def load(folder: str | os.PathLike[str], target: Any, features: Any) -> Evaluation:
    """Read them; missing, damaged or mixed-up ones are errors."""
    place = as_path(folder, "folder")
    if not place.is_dir():
        state = "which is a file" if place.exists() else "which does not exist"
        raise InvalidInputError(
            f"folder must be one that `policyrisk evaluate` wrote, got {place}, {state}; check it"
        )
    for name in (RISK, SURVEY):
        if not (place / name).is_file():
            raise InvalidInputError(
                f"folder must hold {RISK} and {SURVEY}, got {place} without {name}; "
                "evaluate again, or pass another folder"
            )
    values = records.load(place / SURVEY, "Survey", SavedEvaluation)
    risk = RiskFunction.load(place / RISK, policy=target, features=features)
    distribution, digests = None, {RISK: values["risk"], DISTRIBUTION: values.get("distribution")}
    for name, digest in digests.items():
        if digest is not None and (not (place / name).is_file() or digest != _digest(place / name)):
            raise MismatchError(
                f"{name} and {SURVEY} in {place} must be of the same evaluation, and are not; evaluate again"
            )
    if digests[DISTRIBUTION] is not None:
        distribution = DistributionAtStates.load(place / DISTRIBUTION, features)
        if isinstance(distribution, DistributionMixture):
            distribution = replace(distribution, evaluated=risk)
    made: dict[str, Any] = {of: values.get(of) for of in (*_SAVED, "saved_advice")}
    found = Evaluation(risk=risk, distribution=distribution, **made)
    return found if found.saved_advice is None else found.judged()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
