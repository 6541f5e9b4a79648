"""A task: episodes of one fixed policy, and the mean and std of the return at every state.

A *simulator* is two functions of arrays: ``start(n, rng)`` gives n states (n, dim), ``step(x, rng)`` moves
all of them from x (m, dim) to x' (m, dim), with rewards (m,) and whether the episode is over (m,).

J(x) and √V(x) are known exactly where a table of transitions or a closed form gives them, else from many
fresh returns of each state, which are computed once and kept in a cache folder.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import policyrisk as pr

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Moments = tuple[Array, Array]  # mean and std

CACHE = Path.home() / ".cache" / "policyrisk-truth"
RETURNS = 10_000  # fresh returns of each state where there is no exact truth
START_RETURNS = 400_000  # the same from the start distribution
LANES = 100_000  # how many episodes are simulated side by side
STATES_SEED = 2**31  # far from the seeds of the data


@dataclass(frozen=True)
class Task:
    """A fixed policy with a simulator and, where there is one, its exact truth."""

    start: Callable[[int, Rng], Array]  # n, rng -> states (n, dim)
    step: Callable[[Array, Rng], tuple[Array, Array, Array]]  # x, rng -> x', rewards, over
    discount: float = 1.0
    exact: Callable[[Array], Moments] | None = None  # states -> J, std, both (n,)
    exact_start: tuple[float, float] | None = None  # of the return from the start distribution
    limit: Callable[[int, Rng], Array] | None = None  # the step at which each episode is cut off, if going on
    name: str = ""
    made_by: str = ""  # the source of the task's definition: a changed one is simulated anew

    def sample(self, episodes: int, seed: int) -> pr.Trajectories:
        """Episodes as they would be recorded: until their end, or until the time limit."""
        rng = np.random.default_rng(seed)
        x = self.start(episodes, rng)
        limits = np.full(episodes, 2**62) if self.limit is None else self.limit(episodes, rng)
        going = np.arange(episodes)
        lengths, terminated = np.zeros(episodes, np.int64), np.zeros(episodes, bool)
        states, rewards, owners = [x], [], [going]
        while going.size:
            x, r, over = self.step(x, rng)
            states.append(x)
            rewards.append(r)
            owners.append(going)
            lengths[going] += 1
            terminated[going[over]] = True
            on = ~over & (lengths[going] < limits[going])
            x, going = x[on], going[on]
        of_rewards = np.argsort(np.concatenate(owners[1:]), kind="stable")
        of_states = np.argsort(np.concatenate(owners), kind="stable")
        return pr.Trajectories(
            np.concatenate(states)[of_states], np.concatenate(rewards)[of_rewards], lengths, terminated
        )

    def returns(self, x: Array, rng: Rng) -> Array:
        """A return of the task without its time limit from each state, of shape (n,)."""
        total, going, weight = np.zeros(len(x)), np.arange(len(x)), 1.0
        while going.size and weight > 1e-6:
            x, r, over = self.step(x, rng)
            total[going] += weight * r
            weight *= self.discount
            x, going = x[~over], going[~over]
        return total

    def states(self, seed: int = 0, count: int = 50) -> Array:
        """States drawn from those visited in episodes of their own, of shape (count, dim)."""
        data = self.sample(1000, STATES_SEED + seed)
        rows = np.random.default_rng(seed).choice(data.visited_rows, count, replace=False)
        return data.states[rows]

    def true(self, states: Any) -> Moments:
        """J and std at states (n, dim), each of shape (n,)."""
        x = np.asarray(states)
        if self.exact is not None:
            return self.exact(x)
        return self._cached("states", x, lambda rng: self._simulated(x, rng))

    def start_truth(self) -> tuple[float, float]:
        """Mean and std of the return from the start distribution: √(E[M(x_0)] − E[J(x_0)]²)."""
        if self.exact_start is not None:
            return self.exact_start

        def simulate(rng: Rng) -> Moments:
            returns = np.concatenate(
                [self.returns(self.start(LANES, rng), rng) for _ in range(START_RETURNS // LANES)]
            )
            return returns.mean(), returns.std(ddof=1)

        mean, std = self._cached("start", np.zeros(0), simulate)
        return float(mean), float(std)

    def _simulated(self, x: Array, rng: Rng) -> Moments:
        at_once = max(1, LANES // RETURNS)
        moments = []
        for some in np.split(x, np.arange(at_once, len(x), at_once)):
            returns = self.returns(np.repeat(some, RETURNS, axis=0), rng).reshape(len(some), RETURNS)
            moments.append((returns.mean(1), returns.std(1, ddof=1)))
        J, std = zip(*moments, strict=True)
        return np.concatenate(J), np.concatenate(std)

    def _cached(self, what: str, x: Array, compute: Callable[[Rng], Moments]) -> Moments:
        key = hashlib.sha256(f"{self.made_by} {RETURNS} {START_RETURNS}".encode() + x.tobytes()).hexdigest()
        path = CACHE / f"{self.name}-{what}-{key[:16]}.npz"
        if not path.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            mean, std = compute(np.random.default_rng(20260))
            partial = path.with_name(f"{path.stem}.partial-{os.getpid()}.npz")
            np.savez(partial, mean=mean, std=std)
            partial.replace(path)
        with np.load(path) as stored:
            return stored["mean"], stored["std"]


TASKS: dict[str, Callable[[], Task]] = {}


def task(define: Callable[[], Task]) -> Callable[[], Task]:
    """Enter a task into TASKS under the name of the function that defines it."""

    @cache
    def made() -> Task:
        return replace(define(), name=define.__name__, made_by=inspect.getsource(define))

    TASKS[define.__name__] = made
    return made
