"""How policies are tried: episodes of a simulator, and their returns judged by a criterion.

Of K returns n_g come from starts of group g, with mean m_g and variance v_g. A criterion f counts as

    F = Σ_g n_g/K f(m_g, v_g)

so that what differs between starts of two groups is no risk. Return R_k of group g has the influence

    i_k = ∂f/∂m (R_k − m_g) + ∂f/∂v ((R_k − m_g)² − v_g)

and F, given how many starts each group has, the standard error √(Σ_k i_k² n_g / (n_g − 1)) / K, the i_k being
taken from their mean in the group. Without groups there is a single one. A start that is alone in its group
has no sample variance and is left out; too many such starts are an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np

from policyrisk._core.arrays import Floats, Ints, check_callable, check_choice
from policyrisk._core.devices import Device
from policyrisk.criteria import MeanMinusStd, Slopes
from policyrisk.data import Trajectories
from policyrisk.errors import DeviceError, InvalidInputError
from policyrisk.features import TileCoding
from policyrisk.risk.estimate import Estimate
from policyrisk.simulation.rollouts import rollout

Starts: TypeAlias = Callable[[int, np.random.Generator], Any]
Run: TypeAlias = Callable[[Any, np.random.SeedSequence], Trajectories]  # a policy and a seed to episodes
_ALONE = 0.1  # of the starts, at most


@dataclass(frozen=True)
class _Followed:
    """A policy for compiled code that is not asked for the probabilities of what it did."""

    policy: Any

    @property
    def actions(self) -> int:
        return int(self.policy.actions)

    def compiled(self) -> Any:
        return self.policy.compiled()


def starts_of(domain: Any, starts: Starts | None) -> Starts:
    """The given function of start states, or the domain's own."""
    if starts is not None:
        check_callable(starts, "starts", "a function from n and a numpy Generator to states (n, dim)")
        return starts
    if not hasattr(domain, "sample_starts"):
        raise InvalidInputError(
            f"starts must be given for a domain without sample_starts, got None for {type(domain).__name__}; "
            "pass a function from n and a numpy Generator to states (n, dim)"
        )
    return lambda n, rng: domain.sample_starts(n, seed=rng)


def player(
    simulator: Any, episodes: int, starts: Starts | None, max_steps: int, device: Device = "cpu"
) -> Run:
    """How so many episodes of a simulator are run by a policy; the same seed gives the same episodes."""
    check_choice(device, "device", get_args(Device))
    if not hasattr(simulator, "compiled"):
        if device == "cuda":
            raise DeviceError(
                'device must be "cpu" for a Gymnasium environment, got "cuda"; compiled domains run on a GPU'
            )
        if starts is not None:
            raise InvalidInputError(
                f"starts must be None for a Gymnasium environment, got {starts!r}; its reset decides"
            )

        def play_env(policy: Any, seed: np.random.SeedSequence) -> Trajectories:
            follow, env_seed = policy.__call__, seed
            if hasattr(policy, "sample"):  # continuous actions, drawn here
                acts, env_seed = _children(seed)
                rng = np.random.default_rng(acts)
                follow = lambda states: policy.sample(states, rng)  # noqa: E731
            return rollout(simulator, follow, episodes, env_seed, max_steps=max_steps)

        return play_env
    drawn = starts_of(simulator, starts)

    def play(policy: Any, seed: np.random.SeedSequence) -> Trajectories:
        places, acts = _children(seed)
        begin = drawn(episodes, np.random.default_rng(places))
        follow = policy.__call__
        if getattr(policy, "compilable", False):
            follow = _Followed(policy)
        elif device == "cuda":
            raise DeviceError(
                f'device must be "cpu" for a policy that is not compiled, got "cuda" for {policy!r}; pass '
                "one on tiles, or on normalised radial bases of a grid"
            )
        data: Trajectories = simulator.rollout(follow, begin, acts, max_steps, device)
        return data

    return play


def _children(seed: np.random.SeedSequence) -> list[np.random.SeedSequence]:
    """Two children of a seed, always the same: a sequence counts what it has spawned."""
    return np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(2)


class Std:
    """√v, as a criterion."""

    def slopes(self, mean: float, variance: float) -> Slopes:
        """√v and its derivatives; none where v is 0."""
        root = float(np.sqrt(max(variance, 0.0)))
        return Slopes(root, 0.0, 0.5 / root if root > 0 else 0.0)


class Judged(NamedTuple):
    """A criterion of returns, and how it depends on each of them."""

    value: float  # F
    by_mean: Floats  # (K,): ∂f/∂m in the group of each
    by_variance: Floats  # (K,): ∂f/∂v
    influence: Floats  # (K,), such that √(Σ_k i_k²) / K is the standard error

    def estimate(self) -> Estimate:
        """F with its error."""
        return judged_estimate(self.value, self.influence)

    def less(self, other: Judged) -> Estimate:
        """How much larger F is than another policy's from the same starts, episode k beside episode k."""
        return judged_estimate(self.value - other.value, self.influence - other.influence)


def judged_estimate(value: float, influence: Floats) -> Estimate:
    """A value with the error that influences (K,) give it."""
    error = float(np.sqrt(influence @ influence)) / len(influence)
    return Estimate.of(value, error, len(influence))


@dataclass(frozen=True, eq=False)
class GroupedReturns:
    """K returns and the group of each.

    >>> tiles = TileCoding([0], [1], bins=2)
    >>> returns, starts = np.array([1.0, 3.0, 11.0, 13.0]), np.array([[0.1], [0.2], [0.7], [0.8]])
    >>> round(GroupedReturns.of(returns, starts, tiles).std.value, 3)
    1.414
    >>> round(GroupedReturns.of(returns).std.value, 3)
    5.888
    """

    returns: Floats  # (K,)
    group: Ints  # (K,) from 0 to G − 1

    @classmethod
    def of(
        cls, returns: Floats, starts: Floats | None = None, groups: TileCoding | None = None
    ) -> GroupedReturns:
        """The returns of episodes from starts (K, dim); a group is a tile, and all are one without tiles."""
        if groups is None or starts is None:
            return cls(returns, np.zeros(len(returns), dtype=np.int64))
        _, group, count = np.unique(groups.active(starts)[:, 0], return_inverse=True, return_counts=True)
        alone = int((count < 2).sum())
        if alone > _ALONE * len(returns):
            raise InvalidInputError(
                f"groups must have two starts or more, got {alone} of {len(returns)} starts that are alone "
                "in theirs; run more episodes, or pass larger tiles"
            )
        return cls(returns, group)

    @property
    def count(self) -> Ints:
        """The number of returns in each group (G,)."""
        return np.bincount(self.group)

    @property
    def means(self) -> Floats:
        """m_g (G,)."""
        return self._sums(self.returns) / self.count

    @property
    def variances(self) -> Floats:
        """v_g (G,), unbiased."""
        moved = self.returns - self.means[self.group]
        return self._sums(moved**2) / np.maximum(self.count - 1, 1)

    @property
    def others(self) -> Floats:
        """The mean of the other returns of the same group (K,), 0 where there is none."""
        n = self.count[self.group]
        found: Floats = (self._sums(self.returns)[self.group] - self.returns) / np.maximum(n - 1, 1)
        return found

    def judged(self, criterion: Any) -> Judged:
        """A criterion with ``slopes``, averaged over the groups."""
        count, means, variances = self.count, self.means, self.variances
        known = np.where(count > 1, count, 0)  # returns that count
        nothing = Slopes(0.0, 0.0, 0.0)
        slopes = np.array(
            [
                criterion.slopes(m, v) if n else nothing
                for m, v, n in zip(means, variances, known, strict=True)
            ]
        )
        values, by_mean, by_variance = slopes[:, 0], slopes[self.group, 1], slopes[self.group, 2]
        moved = self.returns - means[self.group]
        influence = by_mean * moved + by_variance * (moved**2 - variances[self.group])
        influence -= (self._sums(influence) / count)[self.group]
        influence *= np.sqrt(count / np.maximum(count - 1.0, 1.0))[self.group] * count.sum() / known.sum()
        return Judged(float(known @ values / known.sum()), by_mean, by_variance, influence)

    @property
    def mean(self) -> Judged:
        """The mean of the returns."""
        return self.judged(MeanMinusStd(0.0))

    @property
    def std(self) -> Judged:
        """The mean of the groups' standard deviations."""
        return self.judged(Std())

    def _sums(self, values: Floats) -> Floats:
        return np.bincount(self.group, weights=values).astype(np.float64, copy=False)
