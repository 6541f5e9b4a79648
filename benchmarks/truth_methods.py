"""What is fitted in truth.py: the default of `pr.evaluate`, and what people would try instead.

The others learn from pairs of a visited state and its return to go B, of the episodes that terminated: J is
predicted first, then V from squared residuals (B − J̃)² of a fourfold cross-prediction by episodes. They have
no intervals. Above ROWS pairs a random part of them is taken, so that none of them takes hours. Where no
episode terminated, the states count from which less than LEFT of the discounted future was cut off.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

import policyrisk as pr
from policyrisk.errors import PolicyRiskError

Array = np.ndarray[Any, Any]
ROWS = 50_000
FOLDS = 4
LEFT = 0.05
NEIGHBOURS = (10, 20, 40, 80, 160, 320, 640, 1280)
NORMAL = 1.96


@dataclass(frozen=True)
class Answer:
    """What a method says at n states and about the start; intervals are nan where it has none."""

    mean: Array  # (n,)
    std: Array  # (n,)
    mean_interval: Array  # (n, 2)
    std_interval: Array  # (n, 2)
    start_mean: tuple[float, float, float]  # value, low, high
    start_std: tuple[float, float, float]
    facts: dict[str, Any] = field(default_factory=dict)


def policyrisk(data: pr.Trajectories, discount: float, x: Array, seed: int) -> Answer:
    """The default, as anyone would call it."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            result = pr.evaluate(data, discount=discount, seed=seed)
        except PolicyRiskError as error:  # it has no answer
            nothing, none, unknown = np.full(len(x), np.nan), np.full((len(x), 2), np.nan), (np.nan,) * 3
            return Answer(nothing, nothing, none, none, unknown, unknown, {"failure": str(error)})
        risk, summary = result.risk, result.summary
        return Answer(
            risk.mean(x),
            risk.std(x),
            risk.interval(x, of="mean"),
            risk.interval(x, of="std"),
            _bounds(summary.mean),
            _bounds(summary.std),
            {
                "features": str(result.notes.get("features")),
                "variance": risk.variance_method,
                "advice": [f"{one.severity}: {one.title}" for one in result.advice],
            },
        )


def sample(data: pr.Trajectories, discount: float, x: Array, seed: int) -> Answer:
    """The same at every state: mean and std of all returns to go."""
    _, B, _ = pairs(data, discount, seed)
    return _without_intervals(np.full(len(x), B.mean()), np.full(len(x), B.std(ddof=1)), data, discount)


def knn(data: pr.Trajectories, discount: float, x: Array, seed: int) -> Answer:
    """Mean and std of the k nearest states' returns to go, coordinates scaled to unit variance.

    k is the one that predicts the returns to go of held-out episodes best, a quarter of all.
    """
    states, B, episode = pairs(data, discount, seed)
    centre, scale = states.mean(0), states.std(0)
    scale[scale == 0.0] = 1.0
    Z, at = (states - centre) / scale, (x - centre) / scale
    held = np.random.default_rng(seed).permutation(episode.max() + 1)[episode] % FOLDS == 0
    if held.all() or not held.any():
        held = np.arange(B.size) % FOLDS == 0
    rows = np.flatnonzero(held)
    rows = np.random.default_rng(seed).choice(rows, min(rows.size, 2000), replace=False)
    ks = [k for k in NEIGHBOURS if k <= (~held).sum()] or [int((~held).sum())]
    near = NearestNeighbors(n_neighbors=max(ks)).fit(Z[~held]).kneighbors(Z[rows], return_distance=False)
    sums = np.cumsum(B[~held][near], axis=1)
    k = min(ks, key=lambda k: float(np.mean((sums[:, k - 1] / k - B[rows]) ** 2)))
    found = B[NearestNeighbors(n_neighbors=k).fit(Z).kneighbors(at, return_distance=False)]
    return _without_intervals(found.mean(1), found.std(1, ddof=1), data, discount, k=k)


def forest(data: pr.Trajectories, discount: float, x: Array, seed: int) -> Answer:
    """60 trees with leaves of 20."""
    return two_stages(
        lambda: RandomForestRegressor(60, min_samples_leaf=20, random_state=seed), data, discount, x, seed
    )


def boosting(data: pr.Trajectories, discount: float, x: Array, seed: int) -> Answer:
    """Histogram gradient boosting with its usual settings."""
    return two_stages(lambda: HistGradientBoostingRegressor(random_state=seed), data, discount, x, seed)


METHODS: dict[str, Callable[[pr.Trajectories, float, Array, int], Answer]] = {
    "policyrisk": policyrisk,
    "sample": sample,
    "knn": knn,
    "forest": forest,
    "boosting": boosting,
}


def two_stages(
    model: Callable[[], Any], data: pr.Trajectories, discount: float, x: Array, seed: int
) -> Answer:
    """J by one model on the returns to go, V by another on squared residuals of a cross-prediction."""
    states, B, episode = pairs(data, discount, seed)
    fold = np.random.default_rng(seed).permutation(episode.max() + 1)[episode] % FOLDS
    if np.unique(fold).size < 2:
        fold = np.arange(B.size) % FOLDS
    squares = np.empty(B.size)
    with threadpool_limits(1):  # others may need the machine, and waiting threads take time
        for k in np.unique(fold):
            here = fold == k
            squares[here] = (B[here] - model().fit(states[~here], B[~here]).predict(states[here])) ** 2
        mean = model().fit(states, B).predict(x)
        variance = model().fit(states, squares).predict(x)
    return _without_intervals(mean, np.sqrt(np.maximum(variance, 0.0)), data, discount)


def pairs(data: pr.Trajectories, discount: float, seed: int) -> tuple[Array, Array, Array]:
    """Visited states (m, dim), returns to go (m,) and episodes (m,) of those that terminated, shuffled."""
    whole = complete(data)
    states, B = whole.states[whole.visited_rows].astype(float), whole.returns_to_go(discount)
    episode = np.repeat(np.arange(len(whole)), whole.lengths)
    steps_left = whole.offsets[1:][episode] - np.arange(B.size)
    rows = np.flatnonzero(whole.terminated[episode] | (discount**steps_left < LEFT))
    rows = np.random.default_rng(seed).permutation(rows)[:ROWS]
    return states[rows], B[rows], episode[rows]


def complete(data: pr.Trajectories) -> pr.Trajectories:
    """The episodes that terminated; all where none did."""
    return data[data.terminated] if data.terminated.any() else data


def _without_intervals(
    mean: Array, std: Array, data: pr.Trajectories, discount: float, **facts: Any
) -> Answer:
    """Nothing is known of the errors at states; about the start the plain sample of the returns speaks."""
    none = np.full((len(mean), 2), np.nan)
    g = complete(data).returns(discount)
    m, v = float(g.mean()), float(g.var(ddof=1))
    half = NORMAL * np.sqrt(v / g.size)
    half_v = NORMAL * np.sqrt(max(float(np.mean((g - m) ** 4)) - v**2, 0.0) / g.size)
    low, high = np.sqrt(np.maximum([v - half_v, v + half_v], 0.0))
    start = (m, m - half, m + half), (float(np.sqrt(v)), float(low), float(high))
    return Answer(mean, std, none, none, *start, facts)


def _bounds(estimate: Any) -> tuple[float, float, float]:
    return float(estimate), float(estimate.low), float(estimate.high)
