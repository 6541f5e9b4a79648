"""Tasks that are tables of transitions, with their exact truth.

A table has branches (x, p, y, r): from state x with probability p to y with reward r; y = n is the end. With
noise of standard deviation σ(x) on every reward,

    J = (I − γP)⁻¹ E[r],        V = (I − γ²P)⁻¹ (E[(r + γJ(y) − J(x))²] + σ²).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import gymnasium
import numpy as np
from truth_task import Array, Moments, Rng, Task, task


@dataclass(frozen=True)
class Table:
    """Branches (x, p, y, r) of a chain of n states, sorted by x, and the noise on its rewards."""

    x: Array
    p: Array
    y: Array  # n is the end
    r: Array
    sigma: Array  # (n,) the noise's standard deviation

    @property
    def n(self) -> int:
        return self.sigma.size

    def follow(self, x: Array, rng: Rng) -> tuple[Array, Array]:
        """y and r of one branch of each x, without the noise."""
        branch = np.searchsorted(self._cumulative, x + rng.random(x.size), side="right")
        return self.y[branch], self.r[branch]

    @cached_property
    def _cumulative(self) -> Array:
        within = np.cumsum(self.p) - self.x  # the branches' probabilities sum to 1 at every state
        return np.append(self.x[:-1] + within[:-1], np.inf)

    def moments(self, discount: float) -> Moments:
        """J and V at every state, each of shape (n,)."""
        P = np.zeros((self.n, self.n + 1))
        np.add.at(P, (self.x, self.y), self.p)
        eye, P = np.eye(self.n), P[:, :-1]
        J = np.linalg.solve(eye - discount * P, np.bincount(self.x, self.p * self.r, self.n))
        error = self.r + discount * np.append(J, 0.0)[self.y] - J[self.x]
        noise = np.bincount(self.x, self.p * error**2, self.n) + self.sigma**2
        return J, np.linalg.solve(eye - discount**2 * P, noise)


def table(branches: list[tuple[int, float, int, float]], n: int, sigma: Any = 0.0) -> Table:
    """A table from a list of branches in any order."""
    x, p, y, r = (np.array(column) for column in zip(*sorted(branches), strict=True))
    assert np.allclose(np.bincount(x, p, n), 1.0)
    return Table(x, p, y, r, np.broadcast_to(np.asarray(sigma, float), (n,)))


def tabular(
    chain: Table,
    start: Any,
    discount: float = 1.0,
    show: Callable[[Array, Rng], Array] = lambda index, rng: index[:, None],
    place: Callable[[Array], Array] = lambda states: states[:, 0],
    noise: Callable[[int, Rng], Array] = lambda n, rng: np.zeros(n),
    limit: Callable[[int, Rng], Array] | None = None,
) -> Task:
    """The task of a table: ``show`` gives what is recorded of a state's index, ``place`` the way back.

    ``start`` is the probability of each state at the start. ``noise`` has variance 1 and is scaled by σ.
    """
    zeta = np.asarray(start, float) / np.sum(start)
    J, V = chain.moments(discount)
    mean = float(zeta @ J)

    def step(states: Array, rng: Rng) -> tuple[Array, Array, Array]:
        x = place(states)
        y, r = chain.follow(x, rng)
        return show(y, rng), r + chain.sigma[x] * noise(x.size, rng), y == chain.n

    return Task(
        start=lambda n, rng: show(rng.choice(chain.n, n, p=zeta), rng),
        step=step,
        discount=discount,
        exact=lambda states: (J[place(states)], np.sqrt(np.maximum(V[place(states)], 0.0))),
        exact_start=(mean, float(np.sqrt(zeta @ (V + J**2) - mean**2))),
        limit=limit,
    )


def toy_text(name: str, epsilon: float, **options: Any) -> tuple[Table, Array]:
    """The table of Gymnasium's environment under the best policy, at random with ε, and its starts."""
    env = gymnasium.make(name, **options).unwrapped
    P, n, actions = env.P, env.observation_space.n, env.action_space.n
    V = np.zeros(n)
    for _ in range(2000):  # value iteration, discounted a little so that the shortest way is preferred
        Q = np.array(
            [
                [sum(p * (r + 0.99 * V[y] * (not over)) for p, y, r, over in P[x][a]) for a in range(actions)]
                for x in range(n)
            ]
        )
        done, V = np.allclose(V, Q.max(1), atol=1e-9), Q.max(1)
        if done:
            break
    policy = np.full((n, actions), epsilon / actions)
    policy[np.arange(n), Q.argmax(1)] += 1.0 - epsilon
    branches = [
        (x, policy[x, a] * p, n if over else y, float(r))
        for x in range(n)
        for a in range(actions)
        for p, y, r, over in P[x][a]
        if policy[x, a] > 0.0
    ]
    return table(branches, n), np.asarray(env.initial_state_distrib)


@task
def taxi() -> Task:
    """500 states in one whole-numbered column; delivers the passenger, one action in ten at random."""
    return tabular(*toy_text("Taxi-v4", 0.1))


@task
def cliff() -> Task:
    """CliffWalking along the edge, one action in ten at random."""
    return tabular(*toy_text("CliffWalking-v1", 0.1))


@task
def lake() -> Task:
    """FrozenLake, 4 × 4 and slippery."""
    return tabular(*toy_text("FrozenLake-v1", 0.0))


@task
def blackjack() -> Task:
    """Cards from an infinite deck as in Gymnasium: hit below 18. State: sum, dealer's card, ace."""
    cards = [(card, 4 / 13 if card == 10 else 1 / 13) for card in range(1, 11)]

    def draw(total: int, ace: int, card: int) -> tuple[int, int]:  # ace: one counts as 11
        total, ace = (total + 11, 1) if card == 1 and total <= 10 else (total + card, ace)
        return (total - 10, 0) if total > 21 and ace else (total, ace)

    @cache
    def dealer(total: int, ace: int) -> tuple[tuple[int, float], ...]:  # final sums, 0 where over 21
        if total >= 17:
            return ((total if total <= 21 else 0, 1.0),)
        sums: dict[int, float] = {}
        for card, p in cards:
            for final, q in dealer(*draw(total, ace, card)):
                sums[final] = sums.get(final, 0.0) + p * q
        return tuple(sums.items())

    def index(total: int, shown: int, ace: int) -> int:
        return (total * 11 + shown) * 2 + ace

    n, branches, start = index(21, 10, 1) + 1, [], np.zeros(index(21, 10, 1) + 1)
    for total in range(22):
        for shown in range(11):
            for ace in (0, 1):
                x = index(total, shown, ace)
                if total < 4 or shown == 0 or (ace and total < 12):  # no such hand
                    branches.append((x, 1.0, n, 0.0))
                elif total < 18:
                    for card, p in cards:
                        after, soft = draw(total, ace, card)
                        branches.append(
                            (x, p, index(after, shown, soft), 0.0) if after <= 21 else (x, p, n, -1.0)
                        )
                else:
                    for final, p in dealer(*draw(0, 0, shown)):
                        branches.append((x, p, n, float(np.sign(total - final))))
    for first, p in cards:
        for second, q in cards:
            for shown, o in cards:
                total, ace = draw(*draw(0, 0, first), second)
                start[index(total, shown, ace)] += p * q * o
    return tabular(
        table(branches, n),
        start,
        show=lambda i, rng: np.stack([i // 22, i // 2 % 11, i % 2], 1),
        place=lambda states: index(*states.astype(np.int64).T),
    )


def _busy_period(customers: int, limit: Callable[[int, Rng], Array] | None = None) -> Task:
    """An M/M/1 queue from its first customers, 1 to so many, until it is empty; the reward is the time."""
    arrivals, services, most = 0.7, 1.0, 600
    rate = arrivals + services
    branches = []
    for q in range(most + 1):
        up = arrivals / rate if 0 < q < most else 0.0
        branches += [(q, 1.0 - up, q - 1 if q > 1 else most + 1, 1 / rate)]
        branches += [(q, up, q + 1, 1 / rate)] if up else []
    return tabular(
        table(branches, most + 1, sigma=1 / rate),
        (np.arange(most + 1) >= 1) & (np.arange(most + 1) <= customers),
        noise=lambda n, rng: rng.exponential(size=n) - 1.0,
        limit=limit,
    )


@task
def queue() -> Task:
    return _busy_period(1)


@task
def queue_cut_5() -> Task:
    """Busy periods from 1 to 8 customers, one in twenty cut off by a time limit."""
    return _busy_period(8, lambda n, rng: np.full(n, 85))


@task
def queue_cut_50() -> Task:
    """Busy periods from 1 to 8 customers, watched for a random time: one in two is cut off."""
    return _busy_period(8, lambda n, rng: rng.geometric(0.05, n))


def _inventory(
    limit: Callable[[int, Rng], Array] | None = None, end: float = 0.04, discount: float = 1.0
) -> Task:
    """Stock up to 20 under an (s, S) rule and Poisson demand, until the season ends."""
    most, reorder = 20, 5
    demand = np.cumprod([np.exp(-4.0), *(4.0 / np.arange(1, 30))])
    branches = []
    for x in range(most + 1):
        stock = most if x <= reorder else x
        for wanted, p in enumerate(demand / demand.sum()):
            sold = min(wanted, stock)
            r = 4.0 * sold - 2.0 * (wanted - sold) - 0.3 * stock - (12.0 + 2.0 * (stock - x)) * (stock > x)
            branches += [(x, p * end, most + 1, r), (x, p * (1 - end), stock - sold, r)]
    return tabular(table(branches, most + 1), np.ones(most + 1), discount, limit=limit)


@task
def inventory() -> Task:
    return _inventory()


@task
def inventory_cut_5() -> Task:
    """One season in twenty is cut off by a time limit."""
    return _inventory(lambda n, rng: np.full(n, 73))


@task
def inventory_cut_50() -> Task:
    """One season in two is cut off by a time limit."""
    return _inventory(lambda n, rng: np.full(n, 17))


@task
def inventory_endless() -> Task:
    """No season ends: all episodes are cut off after 80 periods; γ = .95."""
    return _inventory(lambda n, rng: np.full(n, 80), end=0.0, discount=0.95)


@task
def labels() -> Task:
    """A walk home on a grid of 20 × 10 squares that are numbered at random."""
    wide, high = 20, 10
    rng = np.random.default_rng(5)
    name, cost = rng.permutation(wide * high), rng.exponential(1.0, (wide, high))
    branches = []
    for i in range(wide):
        for j in range(high):
            for p, di, dj in ((0.5, -1, 0), (0.1, 1, 0), (0.25, 0, -1), (0.15, 0, 1)):
                k, m = i + di, min(max(j + dj, 0), high - 1)
                y = wide * high if k < 0 else name[min(k, wide - 1) * high + m]
                branches.append((int(name[i * high + j]), p, int(y), -cost[i, j]))
    return tabular(table(branches, wide * high), np.ones(wide * high))


@task
def heavy_tails() -> Task:
    """A walk over 20 places of the unit interval, rewards with Student's t noise of 3 degrees, γ = .95."""
    n, p = 20, 0.6
    branches = []
    for x in range(n):
        branches += [(x, p, x + 1, 1.0), (x, 1 - p, max(x - 1, 0), 1.0)]
    return tabular(
        table(branches, n, sigma=0.5 + 2.0 * np.linspace(1, 0, n) ** 2),
        np.ones(n),
        discount=0.95,
        show=lambda i, rng: ((i + rng.random(i.size)) / n)[:, None],
        place=lambda states: (states[:, 0] * n).astype(np.int64),
        noise=lambda m, rng: rng.standard_t(3, m) / np.sqrt(3.0),
    )
