"""Tasks whose mean and standard deviation of the return are known at every state: what truth.py measures on.

A task samples episodes of one fixed policy, all of them at once, and knows J(x) and √V(x): exactly, where a
table of transitions or a closed form gives them, else from many fresh returns of each state, which are
computed once and kept in a cache folder.

A *simulator* is two functions of arrays: ``start(n, rng)`` gives n states (n, dim), ``step(x, rng)`` moves
all of them from x (m, dim) to x' (m, dim), with rewards (m,) and whether the episode is over (m,).

A table of transitions has branches (x, p, y, r): from state x with probability p to y with reward r; y = n is
the end. With noise of standard deviation σ(x) on every reward,

    J = (I − γP)⁻¹ E[r],        V = (I − γ²P)⁻¹ (E[(r + γJ(y) − J(x))²] + σ²).

>>> task = TASKS["queue"]()
>>> task.sample(episodes=100, seed=1)
Trajectories(100 episodes, 100 terminated, 314 transitions, dim 1)
>>> [values.round(3).tolist() for values in task.true([[1], [4]])]
[[3.333, 13.333], [7.935, 15.87]]
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import policyrisk as pr
from policyrisk.control import pinball_policy

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


# Tables of transitions


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


# Closed forms


@task
def lognormal() -> Task:
    """A lognormal coordinate x with log x autoregressive, of which the reward is; ends with 1/10 a step.

    With y = log x, y' = ρy + sε and survival q: J = jy with j = 1/(1 − qρ), and V = ay² + c.
    """
    q, rho, s, sigma, spread = 0.9, 0.9, 0.6, 1.0, 1.5
    j = 1.0 / (1.0 - q * rho)
    a = q * (1.0 - q) * (j * rho) ** 2 / (1.0 - q * rho**2)
    c = (sigma**2 + q * (j * s) ** 2 + q * a * s**2) / (1.0 - q)

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        y, n = np.log(x[:, 0]), len(x)
        after = np.exp(rho * y + s * rng.standard_normal(n))
        return after[:, None], y + sigma * rng.standard_normal(n), rng.random(n) > q

    return Task(
        start=lambda n, rng: np.exp(spread * rng.standard_normal((n, 1))),
        step=step,
        exact=lambda x: (j * np.log(x[:, 0]), np.sqrt(a * np.log(x[:, 0]) ** 2 + c)),
        exact_start=(0.0, float(np.sqrt((a + j**2) * spread**2 + c))),
    )


# Simulated


@task
def drawdown() -> Task:
    """A portfolio below its peak: depth of the drawdown and volatility. Recovers, or is ruined at 50 %."""

    def start(n: int, rng: Rng) -> Array:
        return np.exp(rng.standard_normal((n, 2)) * [0.6, 0.4] + np.log([0.06, 0.02]))

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        depth, vol = x.T
        noise = rng.standard_normal((2, len(x)))
        depth = np.maximum(depth - 0.1 * vol - vol * noise[0], 0.0)
        vol = np.exp(np.log(0.02) + 0.97 * (np.log(vol) - np.log(0.02)) + 0.15 * noise[1])
        ruined = depth > 0.5
        return np.stack([depth, vol], 1), -depth - 5.0 * ruined, ruined | (depth == 0.0)

    return Task(start, step)


@task
def recovery() -> Task:
    """A drawdown under violent changes of volatility, both coordinates skewed; γ = .9."""

    def start(n: int, rng: Rng) -> Array:
        return np.exp(rng.standard_normal((n, 2)) * [0.8, 0.6] + np.log([0.06, 0.02]))

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        depth, vol = x.T
        noise = rng.standard_normal((2, len(x)))
        depth = np.maximum(depth - 0.2 * vol - vol * noise[0], 0.0)
        vol = np.exp(np.log(0.02) + 0.9 * (np.log(vol) - np.log(0.02)) + 0.4 * noise[1])
        ruined = depth > 0.5
        return np.stack([depth, vol], 1), -depth - 2.0 * ruined, ruined | (depth == 0.0)

    return Task(start, step, discount=0.9)


@task
def mountain_car() -> Task:
    """MountainCarContinuous with a noisy push in the direction of motion."""

    def start(n: int, rng: Rng) -> Array:
        return np.stack([rng.uniform(-0.6, -0.4, n), np.zeros(n)], 1)

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        place, speed = x.T
        force = np.clip(0.6 * np.sign(speed) + 0.8 * rng.standard_normal(len(x)), -1.0, 1.0)
        speed = np.clip(speed + 0.0015 * force - 0.0025 * np.cos(3 * place), -0.07, 0.07)
        place = np.clip(place + speed, -1.2, 0.6)
        speed = np.where((place == -1.2) & (speed < 0), 0.0, speed)
        over = place >= 0.45
        return np.stack([place, speed], 1), 100.0 * over - 0.1 * force**2, over

    return Task(start, step)


@task
def cart_pole() -> Task:
    """CartPole with a noisy linear policy; the limit of 500 steps cuts off."""

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        _, speed, angle, turn = x.T
        push = angle + 0.3 * turn + 0.25 * rng.standard_normal(len(x))
        force = np.where(push > 0, 10.0, -10.0)
        cos, sin = np.cos(angle), np.sin(angle)
        pull = (force + 0.05 * turn**2 * sin) / 1.1
        bend = (9.8 * sin - cos * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        gain = pull - 0.05 * bend * cos / 1.1
        after = x + 0.02 * np.stack([speed, gain, turn, bend], 1)
        over = (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 12 * np.pi / 180)
        return after, np.ones(len(x)), over

    return Task(
        start=lambda n, rng: rng.uniform(-0.05, 0.05, (n, 4)),
        step=step,
        limit=lambda n, rng: np.full(n, 500),
    )


@task
def linear_quadratic() -> Task:
    """Ten coordinates, x' = Ax + noise, reward −xᵀQx; ends with 1/20 at each step."""
    rng = np.random.default_rng(10)
    A = rng.standard_normal((10, 10))
    A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()
    Q = np.diag(np.linspace(0.2, 2.0, 10))

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        after = x @ A.T + 0.5 * rng.standard_normal(x.shape)
        return after, -np.sum((x @ Q) * x, 1), rng.random(len(x)) < 0.05

    return Task(lambda n, rng: 2.0 * rng.standard_normal((n, 10)), step)


@task
def navigation() -> Task:
    """To the corner of the unit square with Gaussian noise; a puddle lies on the way; γ = .95."""

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        way = np.array([0.95, 0.95]) - x
        move = 0.05 * way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 0.05)
        after = np.clip(x + move + 0.03 * rng.standard_normal(x.shape), 0.0, 1.0)
        wet = np.maximum(0.0, 0.2 - np.linalg.norm(after - [0.6, 0.45], axis=1))
        over = np.linalg.norm(after - [0.95, 0.95], axis=1) < 0.1
        return after, -1.0 - 40.0 * wet, over

    return Task(lambda n, rng: rng.random((n, 2)) * 0.8, step, discount=0.95)


@task
def machines() -> Task:
    """A mixed state: which of six products is made (a label) and the wear of the machine, until it breaks."""
    earned = np.array([1.0, 4.0, 0.5, 3.0, 1.5, 2.0])
    breaks = np.array([0.02, 0.30, 0.05, 0.04, 0.25, 0.01])
    costs = np.array([5.0, 10.0, 40.0, 2.0, 5.0, 20.0])

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        product, wear, n = x[:, 0].astype(np.int64), x[:, 1], len(x)
        broken = rng.random(n) < 0.01 + breaks[product] * wear**2
        after = np.where(rng.random(n) < 0.15, rng.integers(6, size=n), product)
        worn = np.minimum(wear + rng.exponential(0.03, n), 1.0)
        return np.stack([after, worn], 1), earned[product] - costs[product] * broken, broken

    return Task(lambda n, rng: np.stack([rng.integers(6, size=n), 0.5 * rng.random(n)], 1), step)


@task
def network() -> Task:
    """Twelve queues: the three longest are served at every step; γ = .95, ends with 1/50 at each step."""
    cost, rates = np.linspace(0.5, 2.0, 12), np.linspace(0.35, 0.1, 12)

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        n = len(x)
        served = np.argsort(x + 0.5 * rng.random(x.shape), axis=1)[:, -3:]
        after = x + (rng.random(x.shape) < rates)
        np.add.at(after, (np.arange(n)[:, None], served), -1.0 * (rng.random((n, 3)) < 0.9))
        return np.maximum(after, 0.0), -(x @ cost), rng.random(n) < 0.02

    return Task(lambda n, rng: rng.poisson(2.0, (n, 12)).astype(float), step, discount=0.95)


@task
def lander() -> Task:
    """Eight coordinates: place, height, speeds, angle, spin, wind and fuel; down softly, or not, in gusts."""

    def start(n: int, rng: Rng) -> Array:
        x = rng.uniform([-1, 2, -0.5, -0.5, -0.2, -0.2, 0, 2], [1, 3, 0.5, 0, 0.2, 0.2, 0, 4], (n, 8))
        x[:, 6] = 0.15 * rng.standard_normal(n)
        return x

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        place, height, across, up, angle, spin, wind, fuel = x.T
        noise = rng.standard_normal((3, len(x)))
        lean = np.clip(-0.3 * place - 0.7 * across, -0.4, 0.4)
        push = np.clip(1.0 - 1.5 * (up + 0.15 + 0.3 * height), 0.0, 2.0) * np.maximum(
            1.0 + 0.4 * noise[0], 0.0
        )
        push *= (fuel > 0.0) & (rng.random(len(x)) > 0.1)
        spin = spin + 0.1 * (6.0 * (lean - angle) - 4.0 * spin + noise[1])
        across = across + 0.1 * (push * np.sin(angle) + wind)
        up = up + 0.1 * (push * np.cos(angle) - 1.0)
        wind = 0.95 * wind + 0.05 * noise[2]
        after = (place + 0.1 * across, height + 0.1 * up, across, up, angle + 0.1 * spin, spin, wind)
        x = np.stack([*after, np.maximum(fuel - 0.05 * push, 0.0)], 1)
        down = x[:, 1] <= 0.0
        soft = (np.abs(x[:, 0]) < 1.0) & (up > -0.5) & (np.abs(x[:, 4]) < 0.3)
        return x, -0.2 * push - 0.1 * np.abs(x[:, 0]) + down * np.where(soft, 10.0, 20.0 * up - 5.0), down

    return Task(start, step)


@dataclass(frozen=True)
class PinballTask(Task):
    """Pinball by its own compiled simulator."""

    maze: Any = None
    policy: Any = None

    def sample(self, episodes: int, seed: int) -> pr.Trajectories:
        return self.maze.rollout(self.policy, self.start(episodes, np.random.default_rng(seed)), seed)

    def returns(self, x: Array, rng: Rng) -> Array:
        return self.maze.returns(self.policy, x, seed=int(rng.integers(2**31))).returns


@task
def pinball() -> Task:
    """The paper's: from rest anywhere in the simple maze, the shipped policy, noise .03."""
    maze = pr.domains.Pinball("simple", noise=0.03)

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        raise NotImplementedError("pinball is simulated whole")

    return PinballTask(lambda n, rng: maze.sample_starts(n, rng), step, maze=maze, policy=pinball_policy())
