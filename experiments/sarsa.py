"""SARSA(λ) on radial bases: a policy learned by following it.

Q(x, a) = φ(x)ᵀ w_a. In state x the action is argmax_a Q(x, a) with probability 1 − ε, else one at random.
After the reward r and the next state x', where the action will be a',

    δ = r + γ Q(x', a') − Q(x, a)                           Q(x', a') is 0 only where the episode terminated
    e ← γλ e;   e_{i,a} ← φ_i(x) for every i with φ_i(x) > 0          replacing traces
    w ← w + α δ e / ‖φ(x)‖²

so that α is the share of δ that one update takes off at (x, a) itself, whatever the number and the overlap of
the bases. (Without the division an α that suits many narrow bases is far too small for a few wide ones.)
α and ε may fall from episode to episode. Weights start at 0: where rewards are costs that is optimistic, and
what was not tried looks better than what was. An episode that is cut off learns from its last transition like
from any other. Traces that have faded below 10⁻³ of the largest φ_i(x) are dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import _sarsa_kernels as kernels
from experiments.common import Bools, Floats, Ints, number, table
from policyrisk._core.random import generator, keys
from policyrisk.control import GreedyPolicy
from policyrisk.control.greedy import grid_reach, near_counts
from policyrisk.errors import SolverError

_CHUNK = 1000  # episodes between two looks at the weights


@dataclass(frozen=True)
class Falling:
    """A number that falls by the same factor every episode: first·(last/first)^(k/n) in episode k of n.

    >>> Falling(0.4, 0.1)(np.array([0, 50, 100]), 100).round(9).tolist()
    [0.4, 0.2, 0.1]
    """

    first: float
    last: float

    def __call__(self, k: Ints, n: int) -> Floats:
        """The values in the episodes k of n."""
        values: Floats = self.first * (self.last / self.first) ** (k / n)
        return values


@dataclass(frozen=True)
class SarsaResult:
    """A learned policy, and how the episodes of its training went."""

    policy: GreedyPolicy
    returns: Floats  # (episodes,) the sum of the rewards
    lengths: Ints  # (episodes,)
    terminated: Bools  # (episodes,) False where the episode was cut off

    def curve(self, points: int = 100) -> tuple[Ints, Floats]:
        """The learning curve: equally spaced episode numbers, and the mean return since the one before."""
        n = len(self.returns)
        ends = np.linspace(0, n, min(points, n) + 1).round().astype(np.int64)
        return ends[1:], np.add.reduceat(self.returns, ends[:-1]) / np.diff(ends)

    def __str__(self) -> str:
        ends, means = self.curve(10)
        rows = [[str(end), number(mean)] for end, mean in zip(ends, means, strict=True)]
        return table(["up to episode", "mean return"], rows)


@dataclass(frozen=True)
class Sarsa:
    """SARSA(λ) on radial bases of a grid (normalised ones, where they are truncated).

    ``step`` is α, ``epsilon`` ε; both fall over the episodes of a training.
    """

    features: Any  # RadialBasis.grid(...)
    actions: int
    lam: float = 0.3
    step: Falling = Falling(0.3, 0.02)
    epsilon: Falling = Falling(0.05, 0.005)
    discount: float = 1.0

    def train(self, domain: Any, episodes: int, seed: int = 0, max_steps: int = 10_000) -> SarsaResult:
        """Learn a compiled domain from its own starts, on one thread: the same seed gives the same bits.

        >>> import policyrisk as pr
        >>> box = [0, 0, -1, -1], [1, 1, 1, 1]
        >>> phi = pr.RadialBasis.grid(*box, (6, 6, 3, 3), normalised=True, truncate=1)
        >>> result = Sarsa(phi, actions=4).train(pr.domains.Pinball("empty"), 2000, max_steps=2000)
        >>> bool(result.returns[-500:].mean() > 2 * result.returns[:10].mean())
        True
        """
        rng = generator(seed)
        key = keys(rng)
        grid, memory = self._grid(), self._memory()
        returns, lengths = np.empty(episodes), np.empty(episodes, np.int64)
        terminated = np.empty(episodes, np.bool_)
        for first in range(0, episodes, _CHUNK):
            part = slice(first, min(first + _CHUNK, episodes))
            k = np.arange(part.start, part.stop)
            kernels.run_episodes(
                domain.compiled(),
                grid,
                memory,
                np.ascontiguousarray(domain.sample_starts(len(k), seed=rng)),
                first,
                *key,
                self.step(k, episodes),
                self.epsilon(k, episodes),
                self.lam,
                self.discount,
                max_steps,
                returns[part],
                lengths[part],
                terminated[part],
            )
            if not np.isfinite(memory.weights).all():
                raise SolverError(
                    f"SARSA diverged within {part.stop} episodes, with step={self.step} and lam={self.lam}; "
                    "pass a smaller step or lam"
                )
        origin = {
            "algorithm": "SARSA(λ)",
            "domain": repr(domain),
            "episodes": episodes,
            "max_steps": max_steps,
            "seed": seed,
            "lam": self.lam,
            "step": [self.step.first, self.step.last],
            "epsilon": [self.epsilon.first, self.epsilon.last],
            "discount": self.discount,
        }
        policy = GreedyPolicy(self.features, memory.weights, origin)
        return SarsaResult(policy, returns, lengths, terminated)

    def _grid(self) -> kernels.GridBases:
        box = self.features.box
        low, high = box.bounds
        return kernels.GridBases(
            dims=np.array(box.dims or range(box.dim), np.int64),
            low=low,
            high=high,
            shape=np.array(self.features.shape, np.int64),
            width=self.features.width,
            reach=grid_reach(self.features),
            normalised=self.features.normalised,
        )

    def _memory(self) -> kernels.SarsaMemory:
        shape, n, actions = self.features.shape, self.features.size, self.actions
        # One more than there can be: whether a centre at the very edge is near is a matter of rounding.
        most = math.prod(near_counts(shape, grid_reach(self.features) * (np.array(shape) - 1.0) + 0.5))
        return kernels.SarsaMemory(
            weights=np.zeros((n, actions)),
            trace=np.zeros(n * actions),
            traced=np.empty(n * actions, np.int64),
            indices=np.empty(most, np.int64),
            values=np.empty(most),
            next_indices=np.empty(most, np.int64),
            next_values=np.empty(most),
            action_values=np.empty(actions),
            counts=np.zeros(2, np.int64),
            u=np.empty((1, self.features.box.dim)),
            rows=np.zeros(2, np.int64),
            words=np.zeros(2, np.uint64),
        )
