"""The lowest running return and the largest drawdown, against all paths of small chains."""

from collections import defaultdict

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError


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
                T = S + r[x, y]
                top = max(peak, T)
                least, deepest = min(low, T), min(fall, T - top)
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


def test_what_they_cannot_tell_is_refused_by_name():
    P = [[0.0, 0.5], [0.5, 0.0]]
    with pytest.raises(InvalidInputError, match=r"discount must be 1 for the drawdown, got 0\.9"):
        pr.MarkovChain(P, [1.0, -1.0], 0.9).drawdown()
    with pytest.raises(InvalidInputError, match="r must be multiples of one number for the lowest"):
        pr.MarkovChain(P, [1.0, -np.pi]).lowest()
    with pytest.raises(InvalidInputError, match="r must be few multiples of one number"):
        pr.MarkovChain(P, [1.0, -1000.001]).lowest()
    with pytest.raises(InvalidInputError, match="reward_variance"):
        pr.MarkovChain(P, [1.0, -1.0], reward_variance=[1.0, 0.0]).lowest()
