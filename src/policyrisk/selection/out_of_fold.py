"""What candidates say about episodes that they did not see, and which of them completes the cut-off ones.

Episodes are put into folds, and each candidate is fitted without each fold. It says J and V at the steps of
the episodes that it did not see, and where these were cut off.

*Cut-off episodes.* What would have followed is taken from one candidate, the reference: n steps before the
cut B = R + γⁿ J(x_T), and q gets γ²ⁿ V(x_T). The reference is the candidate whose own equations
E[R + γⁿ J(x_T) − J(x_t)] = 0 and E[q + γ²ⁿ V(x_T) − V(x_t)] = 0 hold best over regions of the state space, in
standard errors: an estimate that is scored with its own tails could make them what it likes.

*Fits without each fold.* The equations of each part are summed once, and those of the others are added up m
times. The direct variance then takes one more pass over the other parts for each, since δ² depends on their
weights.

Whether the direct variance is better off with ``variance_lam`` can be told from the data: where J̃ is right,
products of the δ's of different steps have mean 0, and taking them in adds noise alone; where it is wrong, δ²
counts J̃'s error at every step, and they take it out. So they are taken in where their mean over all parts,
with κ = λ, is more than three standard errors over episodes from 0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.progress import ProgressBar
from policyrisk.data import Trajectories
from policyrisk.equations import MomentEquations
from policyrisk.errors import InvalidInputError, PolicyRiskError, PolicyRiskWarning
from policyrisk.lstd import LSTD
from policyrisk.lstd.pipeline import answer, second_right_hand_side
from policyrisk.lstd.residuals import lag_products
from policyrisk.passes import here
from policyrisk.passes.episode_folds import FOLDS
from policyrisk.risk import RiskFunction
from policyrisk.risk.scoring import EpisodeSteps
from policyrisk.selection.regions import Regions, points_of

_DEPTH = 5  # cuts: up to 32 regions
_ZERO = 3.0  # standard errors


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What a candidate says without having seen the episode."""

    mean: Floats  # (n,): J at the steps, nan where unvisited
    variance: Floats  # (n,)
    end_mean: Floats  # (m,): J at the cuts
    end_variance: Floats  # (m,)
    fit: RiskFunction  # to all episodes

    def same(self, other: OutOfFold) -> bool:
        """Whether another says the same at all steps, as two spellings of one table do."""
        pairs = (self.mean, other.mean), (self.variance, other.variance)
        return all(
            np.allclose(a, b, rtol=1e-6, atol=1e-6 * float(np.nanmax(np.abs(a), initial=0.0)), equal_nan=True)
            for a, b in pairs
        )


def out_of_fold(
    candidates: Mapping[str, LSTD], data: Trajectories, steps: EpisodeSteps, folds: Ints
) -> tuple[dict[str, OutOfFold], dict[str, str]]:
    """What each candidate says of the steps of the data, and why others failed; an error where all did.

    ``folds`` are those of the episodes, (episodes,).
    """
    cut_folds = folds[~data.terminated]
    parts = [data[np.flatnonzero(folds == k)] for k in range(FOLDS)]
    said: dict[str, OutOfFold] = {}
    failed: dict[str, str] = {}
    with ProgressBar("candidates", len(candidates)) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyRiskWarning)  # what a candidate lacks is in its score
        for name, lstd in sorted(candidates.items(), key=lambda each: each[1].features.size):
            try:
                # δ² holds the error of J̃ where the features miss J: the data tell.
                fits = fits_without_each(lstd, parts, choose=True)
                new = one_out_of_fold(fits, steps, folds[steps.episode], cut_folds)
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


def one_out_of_fold(
    fits: Sequence[RiskFunction], steps: EpisodeSteps, step_folds: Ints, cut_folds: Ints
) -> OutOfFold:
    """What an estimate says of the steps and cuts by its fits without their folds."""
    said = []
    for states, fold in ((steps.states, step_folds), (steps.cuts, cut_folds)):
        found: Any = np.empty((2, len(states)))
        for k, fit in enumerate(fits[:-1]):
            if (at := fold == k).any():
                found[:, at] = fit.mean_and_variance(states[at])
        said.append(found)
    (mean, variance), (end_mean, end_variance) = said
    return OutOfFold(mean, variance, end_mean, end_variance, fits[-1])


def reference_of(said: Mapping[str, OutOfFold], steps: EpisodeSteps) -> tuple[str, str] | None:
    """The candidates whose own equations of J and of V hold best; None where no episode was cut off."""
    if not (steps.weight > 0).any():
        return None
    points = points_of(steps.states)
    regions = Regions.of(points, steps.episode, range(steps.states.shape[1]), _DEPTH).index(points)

    def best(y: Floats, power: int, values: Mapping[str, tuple[Floats, Floats]]) -> tuple[str, Floats]:
        """The one whose y, completed, is nearest to what it says, and the difference (n,)."""
        errors = {
            name: steps.completed(y, np.nan_to_num(ends), power) - np.where(np.isnan(at), y.mean(), at)
            for name, (at, ends) in values.items()
        }
        name = _least_moments(errors, regions, steps.episode)
        return name, errors[name]

    of_mean, error = best(steps.rewards, 1, {k: (each.mean, each.end_mean) for k, each in said.items()})
    seconds = {k: (each.variance, each.end_variance) for k, each in said.items()}
    return of_mean, best(error**2, 2, seconds)[0]


def _least_moments(errors: Mapping[str, Floats], region: Ints, episode: Ints) -> str:
    """The one whose means over regions are least in squares, in units of their randomness."""
    moments = {name: _region_moments(error, region, episode) for name, error in errors.items()}
    noise = np.median([each[1] for each in moments.values()], axis=0)
    noise = np.maximum(noise, 1e-12 * noise.max() or 1.0)
    count = np.bincount(region)
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


def fits_without_each(
    lstd: LSTD, parts: Sequence[Trajectories], *, choose: bool = False
) -> list[RiskFunction]:
    """The risk function of all parts but the first, of all but the second, …, and of all of them.

    There are no error bars. ``choose`` makes ``variance_lam`` λ where the data ask for it. Where a cut-off
    episode ends in a state that its part alone had visited, the equations without that part have no answer,
    and the others are fitted from the beginning, which gives such last transitions up.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=90, seed=1)
    >>> parts = [data[:30], data[30:60], data[60:]]
    >>> lstd = pr.LSTD(pr.Tabular(5), variance="direct")
    >>> without = fits_without_each(lstd, parts)
    >>> bool(abs(without[0].variance([0]) / lstd.fit(data[30:]).variance([0]) - 1) < 1e-9)
    True
    """
    sums = [lstd.equations(part) for part in parts]
    if choose and lstd.variance == "direct" and _misses(lstd, parts, sums):
        lstd = replace(lstd, variance_lam=lstd.lam)
    fits = []
    for left_out in (*range(len(parts)), None):
        others = [k for k in range(len(parts)) if k != left_out]
        try:
            equations = sum(sums[k] for k in others)
            assert not isinstance(equations, int)
            weights = equations.solve(lstd.ridge)
            reduce = here([parts[k] for k in others])
            d = second_right_hand_side(lstd, lstd.view, equations, weights.mean, reduce)
            fits.append(answer(lstd, equations, weights, d)[0])
        except PolicyRiskError:
            if all(part.terminated.all() for part in parts):
                raise
            fits.append(lstd.fit(Trajectories.concatenate([parts[k] for k in others]), error_bars=False))
    return fits


def _misses(lstd: LSTD, parts: Sequence[Trajectories], sums: Sequence[MomentEquations]) -> bool:
    """Whether the products of different steps' δ are not 0 in the mean, by the fit to all parts."""
    try:
        equations = sum(sums[1:], start=sums[0])
        w_mean = equations.solve(lstd.ridge).mean
    except PolicyRiskError:
        return False
    view = replace(lstd.view, second_features=lstd.features)
    found = np.sum([lag_products(part, w_mean, view) for part in parts], axis=0)
    K = equations.episodes
    mean, square = found / K
    return K > 1 and abs(mean) > _ZERO * math.sqrt(max(square - mean**2, 0.0) / (K - 1))
