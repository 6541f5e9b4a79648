"""The lowest running return and the largest drawdown, against all paths of small chains."""

import dataclasses
import itertools
from collections import defaultdict

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.markov import running


def by_paths(P, r, zeta, h):
    """Both distributions, {number: probability} of each, from what all paths come to step by step."""
    n = len(P)
    alive = {(x, 0, 0, 0, 0): p for x, p in enumerate(zeta) if p}  # state, S, its maximum, and the two
    found = defaultdict(float), defaultdict(float)
    while sum(alive.values()) > 1e-9:
        later = defaultdict(float)
        for (x, S, peak, low, fall), p in alive.items():
            for y in range(n + 1):
                chance = P[x, y] if y < n else 1 - P[x].sum()
                if chance <= 1e-12:
                    continue
                T = round(S + r[x, y], 9)
                top = max(peak, T)
                least, deepest = min(low, T), min(fall, round(T - top, 9))
                if y == n:
                    found[0][least * h] += p * chance
                    found[1][deepest * h] += p * chance
                else:
                    later[y, T, top, least, deepest] += p * chance
        alive = later
    return found


@pytest.mark.parametrize("seed", range(3))
def test_they_are_those_of_all_paths(seed):
    rng = np.random.default_rng(seed)
    n, h = 3, 0.25
    P = rng.dirichlet(np.ones(n + 1), size=n)[:, :n] * 0.3
    r = rng.integers(-2, 2, size=(n, n + 1))
    r[0, 0] = 0  # a step that earns nothing
    chain = pr.MarkovChain(P, r[:, :n] * h, terminal_rewards=r[:, n] * h)
    start, zeta = (1, np.eye(n)[1]) if seed == 0 else (np.array([0.5, 0.2, 0.3]),) * 2
    for of, truth in zip((chain.lowest, chain.drawdown), by_paths(P, r, zeta, h), strict=True):
        dist, values = of(start), np.array(sorted(truth))
        mass = np.array([truth[value] for value in values])
        np.testing.assert_allclose(dist.cdf(values), np.cumsum(mass), atol=2e-9)
        assert dist.mean == pytest.approx(float(mass @ values), abs=1e-7)
        assert dist.variance == pytest.approx(float(mass @ (values - dist.mean) ** 2), abs=1e-6)
        worst = np.minimum(np.cumsum(mass), 0.1)
        assert dist.cvar(0.1) == pytest.approx(float(np.diff(worst, prepend=0.0) @ values) / 0.1, abs=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rewards_of_one_sign_leave_nothing_to_chance(sign):
    chain = pr.MarkovChain(pr.domains.walk(6).P, np.full(6, sign))
    for dist in (chain.lowest(0), chain.drawdown(0)):
        if sign > 0:
            assert dist.mean == dist.variance == 0.0
        else:  # every step falls further: the return itself
            assert dist.quantile(0.05) == chain.quantile(0.05)[0]
            assert dist.mean == pytest.approx(chain.mean()[0])


def test_a_log_as_a_chain_has_them_too():
    P = [[0.0, 0.5], [0.5, 0.0]]
    game = pr.MarkovChain(P, [[0.0, 1.0], [-1.0, 0.0]], terminal_rewards=[-1.0, 1.0])
    data = game.sample(0, episodes=4_000, seed=0)
    found = pr.MarkovChain.from_log(data).drawdown(0)
    # From 1 of 0 … 3: a peak of 2 comes in one of two cases, and falls to 0 in one of three.
    chance = 1 / 6
    assert abs(found.cdf(-2.0) - chance) < 4 * np.sqrt(chance / 4_000)


def simulated(chain, zeta, episodes, seed):
    """Lowest running return and largest drawdown of so many episodes."""
    data = chain.sample(zeta, episodes=episodes, seed=seed)
    found = np.empty((2, episodes))
    for k, (first, last) in enumerate(itertools.pairwise(data.offsets)):
        S = np.append(0.0, np.cumsum(data.rewards[first:last]))
        found[:, k] = S.min(), (S - np.maximum.accumulate(S)).min()
    return found


def bounds(dist, z):
    """How much the CDF may be at z, at most and at least."""
    above, below = dist.lower.cdf(z), dist.upper.cdf(z)
    assert (above >= below - 1e-12).all()
    return above, below


@pytest.mark.parametrize("seed", range(2))
def test_rewards_off_every_lattice_are_enclosed(seed):
    rng = np.random.default_rng(seed)
    n = 2
    P = rng.dirichlet(np.ones(n + 1), size=n)[:, :n] * 0.3
    r = rng.choice([-np.sqrt(2.0), 1.0], size=(n, n + 1))
    r[0, 0], r[0, n] = -np.sqrt(2.0), 1.0
    chain, zeta = pr.MarkovChain(P, r[:, :n], terminal_rewards=r[:, n]), np.array([0.6, 0.4])
    for of, truth in zip((chain.lowest, chain.drawdown), by_paths(P, r, zeta, 1.0), strict=True):
        dist, values = of(zeta), np.array(sorted(truth))
        mass = np.array([truth[value] for value in values])
        F, between = np.cumsum(mass), (values[1:] + values[:-1]) / 2
        above, below = bounds(dist, values)
        assert (F <= above + 2e-9).all()
        assert (F >= below - 2e-9).all()
        above, below = bounds(dist, between)
        assert (F[:-1] <= above + 2e-9).all()
        assert (F[:-1] >= below - 2e-9).all()
        mean = float(mass @ values)
        assert dist.lower.mean - 1e-7 <= mean <= dist.upper.mean + 1e-7
        assert 0.0 < dist.error <= 0.02 * dist.std
        worst = float(np.diff(np.minimum(F, 0.1), prepend=0.0) @ values) / 0.1
        assert dist.lower.cvar(0.1) - 1e-6 <= worst <= dist.upper.cvar(0.1) + 1e-6
        narrow = of(zeta, tolerance=0.003)
        assert narrow.error <= 0.003
        assert f"within {narrow.error:.2g} on average" in str(narrow)


def test_many_kinds_of_rewards_are_enclosed_and_those_of_a_log_too():
    rng = np.random.default_rng(5)
    n, episodes = 4, 20_000
    P = rng.dirichlet(np.ones(n), size=n) * 0.85
    model = pr.MarkovChain(P, rng.normal(size=(n, n)), terminal_rewards=rng.normal(size=n))
    data = model.sample(0, episodes=200, seed=1)
    noisy = dataclasses.replace(data, rewards=data.rewards + 0.3 * rng.normal(size=data.transitions))
    log, zeta = pr.MarkovChain.from_log(noisy), np.eye(n)[0]  # as many rewards as transitions
    for chain in (model, log):
        for dist, values in zip(
            (chain.lowest(zeta, 0.4), chain.drawdown(zeta, 0.4)),
            simulated(chain, zeta, episodes, 2),
            strict=True,
        ):
            z = np.quantile(values, np.linspace(0.001, 0.999, 50))
            F = (values[:, None] <= z).mean(axis=0)
            error = np.sqrt(F * (1.0 - F) / episodes)
            above, below = bounds(dist, z)
            assert (F <= above + 4.5 * error).all()
            assert (F >= below - 4.5 * error).all()
            assert dist.error <= 0.4 < 0.6 * dist.std


def test_both_ways_to_the_same_chances():
    rng = np.random.default_rng(0)
    for n in (1, 2, 5):
        P = rng.dirichlet(np.ones(n + 1), size=n)[:, :n] * 0.7
        r, last = rng.integers(-3, 4, size=(n, n)), rng.integers(-3, 0, size=n)
        branches = pr.MarkovChain(P, r, terminal_rewards=last).branches
        zeta = np.full(n, 1.0 / n)
        depths, one = running._by_depths(branches, zeta), running._one_by_one(branches, zeta)
        some = min(depths.size, one.size)
        np.testing.assert_allclose(depths[:some], one[:some], atol=2e-13)
        by_steps, by_system = (running._lost(branches, 9, k) for k in (running._steps(branches), 0))
        np.testing.assert_allclose(by_steps, by_system, atol=2e-13)


def test_the_unit_of_rewards_does_not_matter():
    P, r = [[0.0, 0.5], [0.5, 0.0]], np.array([1.0, -np.sqrt(2.0)])
    for of in ("lowest", "drawdown"):
        one, other = (getattr(pr.MarkovChain(P, r * unit), of)(0) for unit in (1.0, 2.0**90))
        assert other.error <= 0.02 * other.std
        assert other.mean / 2.0**90 == pytest.approx(one.mean, abs=one.error + other.error / 2.0**90)


def test_what_they_cannot_tell_is_refused_by_name(monkeypatch):
    P = [[0.0, 0.5], [0.5, 0.0]]
    with pytest.raises(InvalidInputError, match=r"discount must be 1 for the drawdown, got 0\.9"):
        pr.MarkovChain(P, [1.0, -1.0], 0.9).drawdown()
    monkeypatch.setattr(running, "_WORK", 1e6)
    with pytest.raises(InvalidInputError, match="tolerance must be at least"):
        pr.MarkovChain(P, [1.0, -np.pi]).drawdown(tolerance=1e-3)
    with pytest.raises(InvalidInputError, match="tolerance must be"):
        pr.MarkovChain(P, [1.0, -1.0]).lowest(tolerance=0.0)
    fine = pr.MarkovChain(P, [1.0, -1000.001]).lowest()  # a lattice, of too many points
    assert 0.0 < fine.error <= 0.02 * fine.std
    with pytest.raises(InvalidInputError, match="reward_variance"):
        pr.MarkovChain(P, [1.0, -1.0], reward_variance=[1.0, 0.0]).lowest()
    monkeypatch.setattr(running, "_WORK", 10.0)
    for of in ("lowest", "drawdown"):
        with pytest.raises(InvalidInputError, match=f"the {of} needs a chain of fewer states"):
            getattr(pr.MarkovChain(P, [1.0, -np.pi]), of)()
