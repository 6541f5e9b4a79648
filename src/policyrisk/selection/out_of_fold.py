"""What candidates say about episodes that they did not see, and which of them completes the cut-off ones.

Episodes are put into folds, and each candidate is fitted without each fold. It says J and V at the steps of
the episodes that it did not see, and where these were cut off.

*Cut-off episodes.* What would have followed is taken from one candidate, the reference: n steps before the
cut B = R + γⁿ J(x_T), and q gets γ²ⁿ V(x_T). The reference is the candidate whose own equations
E[R + γⁿ J(x_T) − J(x_t)] = 0 and E[q + γ²ⁿ V(x_T) − V(x_t)] = 0 hold best over regions of the state space, in
standard errors: an estimate that is scored with its own tails could make them what it likes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.progress import ProgressBar
from policyrisk.errors import InvalidInputError, PolicyRiskError, PolicyRiskWarning
from policyrisk.lstd import LSTD
from policyrisk.lstd.folds import fits_without_each
from policyrisk.risk import RiskFunction
from policyrisk.risk.regions import Regions
from policyrisk.trajectories import Trajectories

FOLDS = 4
_DEPTH = 5  # cuts: up to 32 regions


@dataclass(frozen=True, eq=False)
class FoldSteps:
    """The steps of the episodes, and what came after each."""

    data: Trajectories
    states: Floats  # (n, dim)
    episode: Ints  # (n,)
    fold: Ints  # (n,)
    returns: Floats  # (n,): R, up to the end or the cut
    weight: Floats  # (n,): γⁿ to the cut, 0 where the episode ended
    region: Ints  # (n,)

    @classmethod
    def of(cls, data: Trajectories, discount: float, folds: Ints) -> FoldSteps:
        """The steps of some episodes, whose folds are (episodes,)."""
        states = np.asarray(data.states[data.visited_rows], dtype=np.float64)
        episode = np.repeat(np.arange(len(data)), data.lengths)
        to_end = np.repeat(data.offsets[1:], data.lengths) - np.arange(data.transitions)
        weight = np.where(data.terminated[episode], 0.0, discount ** to_end.astype(np.float64))
        points = np.column_stack([states, np.zeros(len(states))])
        regions = Regions.of(points, episode, range(data.dim), _DEPTH)
        return cls(
            data=data,
            states=states,
            episode=episode,
            fold=folds[episode],
            returns=data.returns_to_go(discount),
            weight=weight,
            region=regions.index(points),
        )

    def at_ends(self, values: Floats) -> Floats:
        """Values (episodes,) at the ends of the steps' episodes, (n,), 0 where unknown."""
        return np.nan_to_num(values)[self.episode]


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What a candidate says without having seen the episode."""

    mean: Floats  # (n,): J at the steps, nan where unvisited
    variance: Floats  # (n,)
    end_mean: Floats  # (episodes,): J where the episode was cut off, nan elsewhere
    end_variance: Floats
    fit: RiskFunction  # to all episodes

    def same(self, other: OutOfFold) -> bool:
        """Whether another says the same at all steps, as two spellings of one table do."""
        pairs = (self.mean, other.mean), (self.variance, other.variance)
        return all(
            np.allclose(a, b, rtol=1e-6, atol=1e-6 * float(np.nanmax(np.abs(a), initial=0.0)), equal_nan=True)
            for a, b in pairs
        )


def out_of_fold(
    candidates: Mapping[str, LSTD], steps: FoldSteps, folds: Ints
) -> tuple[dict[str, OutOfFold], dict[str, str]]:
    """What each candidate says, and why others failed; an error where all did."""
    parts = [steps.data[np.flatnonzero(folds == k)] for k in range(FOLDS)]
    said: dict[str, OutOfFold] = {}
    failed: dict[str, str] = {}
    with ProgressBar("candidates", len(candidates)) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)  # what a candidate lacks is in its score
        for name, lstd in sorted(candidates.items(), key=lambda each: each[1].features.size):
            try:
                # δ² holds the error of J̃ where the features miss J: the data tell.
                new = _one_out_of_fold(fits_without_each(lstd, parts, choose=True), steps, folds)
                alike = next((other for other, each in said.items() if each.same(new)), None)
                if alike is None:
                    said[name] = new
                else:
                    failed[name] = f"says what {alike} says"
            except (PolicyRiskError, np.linalg.LinAlgError) as error:
                failed[name] = f"{type(error).__name__}: {error}"
            bar.advance()
    if not said:
        raise InvalidInputError(
            "features=auto must find features that can be fitted, got none: "
            + "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        )
    return said, failed


def _one_out_of_fold(fits: Sequence[RiskFunction], steps: FoldSteps, folds: Ints) -> OutOfFold:
    data = steps.data
    mean, variance = np.empty(data.transitions), np.empty(data.transitions)
    ends: Any = np.full((2, len(data)), np.nan)
    cut = ~data.terminated
    final = np.asarray(data.states[data.final_rows], dtype=np.float64)
    for k, fit in enumerate(fits[:-1]):
        at = steps.fold == k
        if at.any():
            mean[at], variance[at] = fit.mean_and_variance(steps.states[at])
        at = cut & (folds == k)
        if at.any():
            ends[:, at] = fit.mean_and_variance(final[at])
    return OutOfFold(mean, variance, ends[0], ends[1], fits[-1])


def reference_of(said: Mapping[str, OutOfFold], steps: FoldSteps) -> tuple[str, str] | None:
    """The candidates whose own equations of J and of V hold best; None where no episode was cut off."""
    if not (steps.weight > 0).any():
        return None
    R, known = steps.returns, dict(said)

    def residual_of_mean(each: OutOfFold) -> Floats:
        J = np.where(np.isnan(each.mean), R.mean(), each.mean)
        return R + steps.weight * steps.at_ends(each.end_mean) - J

    errors = {name: residual_of_mean(each) for name, each in known.items()}
    of_mean = _least_moments(errors, steps)
    q = errors[of_mean] ** 2
    second = {
        name: q
        + steps.weight**2 * steps.at_ends(each.end_variance)
        - np.where(np.isnan(each.variance), q.mean(), each.variance)
        for name, each in known.items()
    }
    return of_mean, _least_moments(second, steps)


def _least_moments(errors: Mapping[str, Floats], steps: FoldSteps) -> str:
    """The one whose means over regions are least in squares, in units of their randomness."""
    moments = {name: _region_moments(error, steps.region, steps.episode) for name, error in errors.items()}
    noise = np.median([each[1] for each in moments.values()], axis=0)
    noise = np.maximum(noise, 1e-12 * noise.max() or 1.0)
    count = np.bincount(steps.region)
    losses = {name: float(count @ (d**2 / noise)) for name, (d, _) in moments.items()}
    return min(losses, key=lambda name: losses[name])


def _region_moments(values: Floats, region: Ints, episode: Ints) -> tuple[Floats, Floats]:
    """The mean of the values over each region, and its squared standard error over episodes."""
    m = int(region.max()) + 1
    count = np.bincount(region, minlength=m)
    mean = np.bincount(region, values, m) / np.maximum(count, 1)
    pairs, inverse = np.unique(episode * m + region, return_inverse=True)
    sums = np.bincount(inverse, values - mean[region])
    clusters = np.bincount(pairs % m, minlength=m)
    squared = np.bincount(pairs % m, sums**2, m) / np.maximum(count, 1) ** 2
    return mean, squared * clusters / np.maximum(clusters - 1, 1)
