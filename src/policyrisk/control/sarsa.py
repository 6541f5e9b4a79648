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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from policyrisk._core.arrays import (
    Bools,
    Floats,
    Ints,
    Seed,
    as_array,
    as_count,
    as_floats,
    as_number,
    check_callable,
    readonly,
)
from policyrisk._core.progress import ProgressBar
from policyrisk._core.random import generator, keys
from policyrisk._core.text import Readable, TextTable, number
from policyrisk.control import _kernels
from policyrisk.control.policy import GreedyPolicy, as_grid, grid_reach, near_counts
from policyrisk.errors import InvalidInputError, MismatchError, SolverError
from policyrisk.features import RadialBasis
from policyrisk.simulation.compiled import start_streams

Starts: TypeAlias = Callable[[int, np.random.Generator], Any]

_CHUNK = 1000  # episodes between two looks at the progress


@dataclass(frozen=True)
class Falling:
    """A number that falls by the same factor every episode: first·(last/first)^(k/n) in episode k of n.

    >>> Falling(0.4, 0.1)(np.array([0, 50, 100]), 100).round(9).tolist()
    [0.4, 0.2, 0.1]
    """

    first: float
    last: float

    def __post_init__(self) -> None:
        as_number(self.first, "first", 0.0, 1.0, open_low=True)
        as_number(self.last, "last", 0.0, self.first, open_low=True, remedy="pass one of at most first")

    def __call__(self, k: Ints, n: int) -> Floats:
        """The values in the episodes k of n."""
        count = as_count(n, "n", 1)
        share = as_array(k, "k", "numbers of episodes") / count
        if not ((share >= 0) & (share <= 1)).all():
            raise InvalidInputError(
                f"k must be numbers of episodes from 0 to n={count}, got others; count them"
            )
        values: Floats = self.first * (self.last / self.first) ** share
        return values


@dataclass(frozen=True)
class SarsaResult(Readable):
    """A learned policy, and how the episodes of its training went."""

    policy: GreedyPolicy
    returns: Floats  # (episodes,) the sum of the rewards
    lengths: Ints  # (episodes,)
    terminated: Bools  # (episodes,) False where the episode was cut off

    def curve(self, points: int = 100) -> tuple[Ints, Floats]:
        """The learning curve: equally spaced episode numbers, and the mean return since the one before."""
        n = len(self.returns)
        count = min(as_count(points, "points", 1), n)
        ends = np.linspace(0, n, count + 1).round().astype(np.int64)
        return ends[1:], np.add.reduceat(self.returns, ends[:-1]) / np.diff(ends)

    def _blocks(self) -> list[str | TextTable]:
        """The learning curve in ten lines."""
        ends, means = self.curve(10)
        rows = [[str(end), number(mean)] for end, mean in zip(ends, means, strict=True)]
        return [TextTable(["up to episode", "mean return"], rows)]


@dataclass(frozen=True)
class Sarsa:
    """SARSA(λ) with the given radial bases, normalised and truncated ones for choice.

    ``step`` is α, ``epsilon`` ε; each is a number, or :class:`Falling` over the episodes of a training.

    >>> phi = RadialBasis.grid(low=[0, 0], high=[1, 1], shape=(8, 8), normalised=True, truncate=2)
    >>> Sarsa(phi, actions=4, epsilon=0.1).lam
    0.3
    """

    features: RadialBasis
    actions: int
    lam: float = 0.3
    step: float | Falling = Falling(0.3, 0.02)
    epsilon: float | Falling = Falling(0.05, 0.005)
    discount: float = 1.0

    def __post_init__(self) -> None:
        as_grid(self.features)
        as_count(self.actions, "actions", 1)
        as_number(self.lam, "lam", 0.0, 1.0)
        as_number(self.discount, "discount", 0.0, 1.0, open_low=True)
        if not isinstance(self.step, Falling):
            remedy = "pass a number or Falling(0.3, 0.02)"
            as_number(self.step, "step", 0.0, 1.0, open_low=True, remedy=remedy)
        if not isinstance(self.epsilon, Falling):
            as_number(self.epsilon, "epsilon", 0.0, 1.0, remedy="pass a number or Falling(0.05, 0.005)")

    def train(
        self,
        domain: Any,
        episodes: int,
        starts: Starts | None = None,
        seed: Seed = None,
        max_steps: int = 10_000,
    ) -> SarsaResult:
        """Learn from ``episodes`` episodes, none of more than ``max_steps`` actions.

        ``domain`` is one of ours or another with ``actions`` and ``compiled()`` (see
        :mod:`policyrisk.simulation.compiled`), or a Gymnasium environment with discrete actions.
        ``starts(n, generator)`` gives the start states (n, dim) of n episodes; by default
        ``domain.sample_starts``. A Gymnasium environment has its own. The same int as seed gives the same
        weights, bit for bit: training runs on one thread.

        >>> from policyrisk.domains import Pinball
        >>> phi = RadialBasis.grid([0, 0, -1, -1], [1, 1, 1, 1], (6, 6, 3, 3), normalised=True, truncate=1)
        >>> result = Sarsa(phi, actions=4).train(Pinball("empty"), 2000, seed=0, max_steps=2000)
        >>> bool(result.returns[-500:].mean() > 2 * result.returns[:10].mean())
        True
        """
        count = as_count(episodes, "episodes", 1)
        most = as_count(max_steps, "max_steps", 1)
        rng = generator(seed)
        learner = _Learner(self, count, keys(rng))
        if hasattr(domain, "compiled"):
            learner.check_actions(domain.actions)
            learner.run_compiled(domain, starts_of(domain, starts), rng, most)
        elif hasattr(domain, "reset") and hasattr(domain, "action_space"):
            if starts is not None:
                raise InvalidInputError(
                    f"starts must be None for a Gymnasium environment, got {starts!r}; its reset decides"
                )
            learner.check_actions(getattr(domain.action_space, "n", None))
            learner.run_gymnasium(domain, rng, most)
        else:
            raise InvalidInputError(
                "domain must be one of ours or a Gymnasium environment, got "
                f"{type(domain).__name__}; give it `actions` and `compiled()`, or make it an environment"
            )
        origin = {
            "algorithm": "SARSA(λ)",
            "domain": repr(domain),
            "episodes": count,
            "max_steps": most,
            "seed": int(seed) if isinstance(seed, int | np.integer) else None,
            "lam": float(self.lam),
            "step": _plain(self.step),
            "epsilon": _plain(self.epsilon),
            "discount": float(self.discount),
        }
        policy = GreedyPolicy(self.features, learner.memory.weights, origin)
        return SarsaResult(policy, *(readonly(outcome) for outcome in learner.outcomes))


class _Learner:
    """One training: the settings, the memory that the kernels work on, and the two ways to run episodes."""

    def __init__(self, settings: Sarsa, episodes: int, key: tuple[np.uint64, np.uint64]) -> None:
        features = as_grid(settings.features)
        low, high = features.box.bounds
        shape, reach, d = features.shape, grid_reach(features), features.box.dim
        # One more than there can be: whether a centre at the very edge is near is a matter of rounding.
        most = math.prod(near_counts(shape, reach * (np.array(shape) - 1.0) + 0.5))
        n, actions = features.size, settings.actions
        self.settings = settings
        self.episodes = episodes
        self.key = key
        # Returns, lengths and whether terminated, each (episodes,).
        self.outcomes: tuple[Any, Any, Any] = (
            np.empty(episodes),
            np.empty(episodes, np.int64),
            np.empty(episodes, np.bool_),
        )
        self.grid = _kernels.GridBases(
            dims=np.array(features.box.dims or range(d), np.int64),
            low=low,
            high=high,
            shape=np.array(shape, np.int64),
            width=features.width,
            reach=reach,
            normalised=features.normalised,
        )
        self.memory = _kernels.SarsaMemory(
            weights=np.zeros((n, actions)),
            trace=np.zeros(n * actions),
            traced=np.empty(n * actions, np.int64),
            indices=np.empty(most, np.int64),
            values=np.empty(most),
            next_indices=np.empty(most, np.int64),
            next_values=np.empty(most),
            action_values=np.empty(actions),
            counts=np.zeros(2, np.int64),
            u=np.empty((1, d)),
            rows=np.zeros(2, np.int64),
            words=np.zeros(2, np.uint64),
        )

    def check_actions(self, actions: Any) -> None:
        if actions is None:
            raise InvalidInputError(
                "domain must have discrete actions, got an action space without a number n of them; "
                "wrap the environment so that it has"
            )
        if int(actions) != self.settings.actions:
            raise MismatchError(
                f"actions must be as many as the domain has, {int(actions)}, got {self.settings.actions}; "
                f"make Sarsa(..., actions={int(actions)})"
            )

    def rates(self, k: Ints) -> tuple[Floats, Floats]:
        """α and ε in the episodes k."""
        alpha, epsilon = (
            value(k, self.episodes) if isinstance(value, Falling) else np.full(k.shape, float(value))
            for value in (self.settings.step, self.settings.epsilon)
        )
        return alpha, epsilon

    def run_compiled(self, domain: Any, starts: Starts, rng: np.random.Generator, most: int) -> None:
        compiled = domain.compiled()
        ours = type(compiled).__module__.partition(".")[0] == "policyrisk"
        run = _kernels.run_episodes if ours else _kernels.run_foreign_episodes
        with ProgressBar("training", math.ceil(self.episodes / _CHUNK)) as bar:
            for first in range(0, self.episodes, _CHUNK):
                part = slice(first, min(first + _CHUNK, self.episodes))
                k = np.arange(part.start, part.stop)
                states = as_floats(starts(len(k), rng), "starts(n, generator)", (len(k), None))
                self.settings.features.box.columns(states.shape[1])  # raises where they do not fit
                run(
                    compiled,
                    self.grid,
                    self.memory,
                    np.ascontiguousarray(states),
                    first,
                    *self.key,
                    *self.rates(k),
                    float(self.settings.lam),
                    float(self.settings.discount),
                    most,
                    *(outcome[part] for outcome in self.outcomes),
                )
                self.check_weights(part.stop)
                bar.advance()

    def run_gymnasium(self, env: Any, rng: np.random.Generator, most: int) -> None:
        origin = int(getattr(env.action_space, "start", 0))
        lam, discount = float(self.settings.lam), float(self.settings.discount)
        steps, epsilons = self.rates(np.arange(self.episodes))
        returns, lengths, terminated = self.outcomes
        env_seed: int | None = int(rng.integers(2**31))
        with ProgressBar("training", self.episodes) as bar:
            for k in range(self.episodes):
                start_streams(*self.key, k, self.memory.words[None])
                observation, _ = env.reset(seed=env_seed)
                env_seed = None
                rates = _kernels.Rates(float(steps[k]), float(epsilons[k]), lam, discount)
                state = as_floats(observation, "observation", (None,))
                self.settings.features.box.columns(len(state))  # raises where they do not fit
                action = _kernels.begin(self.grid, self.memory, rates, state)
                total, t, ended, cut = 0.0, 0, False, False
                while t < most and not (ended or cut):
                    observation, reward, ended, cut, _ = env.step(origin + int(action))
                    state = as_floats(observation, "observation", (None,))
                    transition = (int(action), float(reward), state, bool(ended))
                    action = _kernels.learn(self.grid, self.memory, rates, *transition)
                    total += float(reward)
                    t += 1
                returns[k], lengths[k], terminated[k] = total, t, ended
                self.check_weights(k + 1)
                bar.advance()

    def check_weights(self, episodes: int) -> None:
        if not np.isfinite(self.memory.weights).all():
            raise SolverError(
                f"SARSA diverged within {episodes} episodes: the weights are no longer finite, with "
                f"step={self.settings.step} and lam={self.settings.lam}; pass a smaller step or lam"
            )


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


def _plain(value: float | Falling) -> Any:
    return [value.first, value.last] if isinstance(value, Falling) else float(value)
