"""Tasks with continuous states: one with a closed form, the others simulated from every state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from truth_task import Array, Rng, Task, task

import policyrisk as pr
from policyrisk.control import pinball_policy


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


def push_cart(x: Array, right: Array) -> tuple[Array, Array]:
    """CartPole's next states, pushed to the right or to the left, and where it is over."""
    _, speed, angle, turn = x.T
    force = np.where(right, 10.0, -10.0)
    cos, sin = np.cos(angle), np.sin(angle)
    pull = (force + 0.05 * turn**2 * sin) / 1.1
    bend = (9.8 * sin - cos * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    gain = pull - 0.05 * bend * cos / 1.1
    after = x + 0.02 * np.stack([speed, gain, turn, bend], 1)
    return after, (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 12 * np.pi / 180)


@task
def cart_pole() -> Task:
    """CartPole with a noisy linear policy; the limit of 500 steps cuts off."""

    def step(x: Array, rng: Rng) -> tuple[Array, Array, Array]:
        after, over = push_cart(x, x[:, 2] + 0.3 * x[:, 3] + 0.25 * rng.standard_normal(len(x)) > 0)
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
