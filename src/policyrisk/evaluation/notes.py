"""The types of the notes that are read again; a loaded file is checked against them.

Notes are plain values; keys that are not named here are passed on to ``summary.json`` as they are.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict

NumberText: TypeAlias = Annotated[str, float]  # which float() takes


class SavedEstimate(TypedDict):
    """A :class:`~policyrisk.risk.estimate.Estimate` in plain values."""

    value: float
    standard_error: float
    low: float
    high: float


class NotedQuantities(TypedDict):
    """What was asked about the distribution of the return."""

    quantiles: dict[NumberText, SavedEstimate]
    cvar: dict[NumberText, SavedEstimate]
    below: dict[NumberText, SavedEstimate]
    mean: SavedEstimate
    std: SavedEstimate
    starts: int


class NotedTailRegion(TypedDict):
    """How often held-out returns fell below their quantile somewhere."""

    name: str
    steps: float
    below: float
    error: float


class NotedWithoutModel(TypedDict):
    """Quantiles and chances without the model: what cut-off episodes leave, or by propensities."""

    quantiles: dict[NumberText, SavedEstimate]
    cvar: dict[NumberText, SavedEstimate]
    below: dict[NumberText, SavedEstimate]


class NotedTails(NotedQuantities):
    """The same with the features, and with the model's own numbers where those of the returns are shown."""

    features: str
    without_model: NotRequired[dict[str, NotedWithoutModel]]
    doubly_robust: NotRequired[NotedWithoutModel]
    regions: NotRequired[list[NotedTailRegion]]
    model: NotRequired[NotedQuantities]


class NotedCandidate(TypedDict):
    """Features that were tried."""

    name: str
    mean_share: float
    variance_share: float
    mse: float
    score: float
    reason: str


class NotedStack(TypedDict):
    """What held-out episodes said of the candidates and of the mixture."""

    candidates: list[NotedCandidate]
    mse: float
    constant_mse: float
    calibration: float
    explained: float
    least: float | None
    most: float | None


class NotedTargetCandidate(TypedDict):
    """Features that were tried for a target."""

    name: str
    score: float
    misfit: float
    misfit_error: float
    unsteady: float
    mean: float
    possible: bool
    reason: str


class NotedSingleSteps(TypedDict):
    """What the errors of single steps said of the candidates for a target."""

    ranking: list[NotedTargetCandidate]
    reward: float
    misfit: float
    bias: float
    rivals: list[float]


class NotedChoice(TypedDict, total=False):
    """The choice of the features."""

    stack: NotedStack
    one_step: NotedSingleSteps


class NotedNear(TypedDict):
    """What of a target was logged elsewhere only."""

    share: float
    somewhere: float
    actions: tuple[tuple[int, float], ...] | list[tuple[int, float]]
    places: tuple[tuple[tuple[float, ...], float], ...] | list[tuple[tuple[float, ...], float]]


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
    near: NotedNear
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


def without_intervals(told: Any) -> Any:
    """Plain values whose estimates have no standard errors and no intervals."""
    if not isinstance(told, dict):
        return told
    if told.keys() >= {"value", "standard_error", "low", "high"}:
        return {**told, "standard_error": math.nan, "low": math.nan, "high": math.nan}
    return {name: without_intervals(value) for name, value in told.items()}
