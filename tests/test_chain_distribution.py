"""The return's distribution in known chains: closed forms, trees of futures, and what other methods say."""

from math import comb, erf

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from test_markov import random_chain

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.markov.characteristic import Transform, brackets, on_lattice
from policyrisk.markov.reward_lattice import find_lattice

# moments


def raw_moments(P, r, ends, discount, order, steps=800):
    """E[B^k], k = 0, …, order, as limits of finite horizons: E[(ρ + γB')^k] term by term."""
    n = len(P)
    R = np.tile(r[:, None], (1, n)) if r.ndim == 1 else r
    last = (r if r.ndim == 1 else np.zeros(n)) if ends is None else ends
    stop = 1 - P.sum(axis=1)
    m = np.zeros((order + 1, n))
    m[0] = 1.0
    for _ in range(steps):
        m = np.array(
            [
                stop * last**k
                + sum(comb(k, j) * discount**j * (P * R ** (k - j)) @ m[j] for j in range(k + 1))
                for k in range(order + 1)
            ]
        )
    return m


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("transition_rewards", [False, True])
def test_central_moments_are_those_of_the_raw_ones(discount, transition_rewards):
    chain, P, r, ends = random_chain(3, transition_rewards=transition_rewards, discount=discount)
    m, J = raw_moments(P, r, ends, discount, 5), chain.mean()
    central = [sum(comb(k, j) * (-J) ** (k - j) * m[j] for j in range(k + 1)) for k in range(6)]
    np.testing.assert_allclose(chain.moments(5), central, rtol=1e-8, atol=1e-8 * np.abs(central).max())
    np.testing.assert_array_equal(chain.moments(2)[2], chain.variance())


def test_moments_of_the_papers_chain():
    mu = pr.domains.walk(30).moments(4)[:, 0]
    assert mu[3] / mu[2] ** 1.5 == pytest.approx(-0.890953, abs=5e-7)
    assert mu[4] / mu[2] ** 2 == pytest.approx(4.295161, abs=5e-7)


def test_moments_over_a_start_distribution_are_those_of_the_mixture():
    """States 0 and 1 are a coin with 0 and 1, and 5 for sure: raw moments of three values."""
    chain = pr.MarkovChain(np.zeros((3, 3)), [0.0, 1.0, 5.0])
    values, weights = np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.3, 0.2])
    d = chain.distribution(weights)
    mean = weights @ values
    second, third, fourth = (weights @ (values - mean) ** k for k in (2, 3, 4))
    assert d.mean == pytest.approx(mean)
    assert d.variance == pytest.approx(second)
    assert d.skewness == pytest.approx(third / second**1.5)
    assert d.kurtosis == pytest.approx(fourth / second**2)
    # The CDFs are mixed: the quantiles of the states, averaged, would be 1.3 at any q.
    np.testing.assert_allclose(d.cdf([-1, 0, 1, 5]), [0, 0.5, 0.8, 1])
    np.testing.assert_array_equal(d.quantile([0.2, 0.5, 0.6, 0.9]), [0, 0, 1, 5])
    np.testing.assert_allclose(d.cvar([0.6, 1.0]), [0.1 / 0.6, 1.3])


# lattices


def test_the_papers_chain():
    chain = pr.domains.walk(30)
    d = chain.distribution(0)
    np.testing.assert_array_equal(d.quantile([0.05, 0.25]), [-108, -84])
    np.testing.assert_allclose(d.cvar([0.05, 0.25]), [-121.188, -98.897], atol=5e-4)
    assert d.cdf(-60.0) - d.cdf(-59.0) < 0
    assert 1 - d.cdf(-60.5) == pytest.approx(0.278015, abs=5e-7)  # P(return ≥ −60)
    assert d.lower.mean == pytest.approx(-73.125, abs=1e-9)
    assert (d.skewness, d.kurtosis) == (pytest.approx(-0.890953, abs=5e-7), pytest.approx(4.295161, abs=5e-7))
    assert d.error < 1e-11
    np.testing.assert_array_equal(chain.quantile(0.05)[[0, 20]], [-108, -48])
    np.testing.assert_allclose(chain.cvar(0.05)[[0, 20]], [-121.188, -57.319], atol=5e-4)


@pytest.mark.parametrize("reward", [-1.0, 0.3])
def test_waits_in_series_are_negative_binomial(reward):
    """k geometric waits: length − k is NB(k, p); both tails, from every state."""
    k, p = 6, 0.3
    chain = pr.MarkovChain(np.diag(np.full(k, 1 - p)) + np.diag(np.full(k - 1, p), 1), np.full(k, reward))
    d = chain.distribution(0)
    lengths = np.arange(k, 80)
    F = stats.nbinom.cdf(lengths - k, k, p)
    below = 1 - np.append(0, F[:-1]) if reward < 0 else F
    np.testing.assert_allclose(d.cdf(reward * lengths), below, atol=1e-12)
    for q in (0.01, 0.3, 0.9):
        for x in range(k):
            waits = stats.nbinom(k - x, p, loc=k - x)
            if reward < 0:  # the worst are the longest
                length = waits.isf(q)
                tail, rest = np.arange(length + 1, 600), q - waits.sf(length)
            else:
                length = waits.ppf(q)
                tail, rest = np.arange(k - x, length), q - waits.cdf(length - 1)
            mean = (tail * waits.pmf(tail)).sum() + length * rest
            assert chain.quantile(q)[x] == pytest.approx(reward * length, abs=1e-12)
            assert chain.cvar(q)[x] == pytest.approx(reward * mean / q, rel=1e-9)


def test_coupon_collector():
    """P(all n kinds within t) = Σ_j (−1)^j binom(n, j) (1 − j/n)^t."""
    n = 6
    have = np.arange(n)
    P = np.diag(have / n) + np.diag(1 - have[:-1] / n, 1)
    d = pr.MarkovChain(P, np.ones(n)).distribution(0)
    t = np.arange(1, 90)
    F = sum((-1) ** j * comb(n, j) * (1 - j / n) ** t for j in range(n + 1))
    np.testing.assert_allclose(d.cdf(t.astype(float)), F, atol=1e-12)
    assert (d.mean, d.variance) == (pytest.approx(14.7), pytest.approx(38.99))


@pytest.mark.parametrize("win", [1.0, -1.0, 2.5])
def test_bernoulli_ends_after_a_walk_that_earns_nothing(win):
    """Gambler's ruin paid at the end alone: every other step costs 0 and leads back; P(win from k) = k/N."""
    N = 8
    P = pr.domains.gambler(N).P.toarray()
    R = np.zeros((N - 1, N - 1))
    ends = np.zeros(N - 1)
    ends[-1] = win  # of fortune N − 1 the end is the win
    chain = pr.MarkovChain(P, R, terminal_rewards=ends)
    for x in range(N - 1):
        d = chain.distribution(x)
        lost = 1 - (x + 1) / N
        np.testing.assert_allclose(d.cdf([min(win, 0), max(win, 0)]), [lost if win > 0 else 1 - lost, 1])
    shares = np.arange(1, N) / N
    q = 0.6
    expected = np.where(1 - shares >= q, 0, win) if win > 0 else np.where(shares >= q, win, 0)
    np.testing.assert_array_equal(chain.quantile(q), expected)
    worst = np.maximum(q - (1 - shares), 0) * win / q if win > 0 else np.minimum(shares, q) * win / q
    np.testing.assert_allclose(chain.cvar(q), worst, atol=1e-12)


def test_costs_of_several_sizes_some_of_them_nothing():
    """Against the characteristic function, which knows nothing of signs."""
    rng = np.random.default_rng(4)
    n = 7
    P = rng.dirichlet(np.ones(n + 1), size=n)[:, :n]
    R = -0.5 * rng.choice([0, 0, 1, 3, 40], size=(n, n))
    chain = pr.MarkovChain(P, R, terminal_rewards=-0.5 * np.arange(n))
    d = chain.distribution(2)
    transform = Transform(chain, sp.csr_array(np.eye(1, n, 2)))
    other = on_lattice(transform, find_lattice(chain.branches.reward), *transform.window(d.std))[0]
    z = np.arange(-900, 1) * 0.5
    np.testing.assert_allclose(d.cdf(z), other.cdf(z), atol=1e-12)
    assert other.mean == pytest.approx(d.mean, rel=1e-9)


def tree(P, r, end, start, discount=1.0):
    """All values and probabilities of the return of a chain without loops, one path after the other."""
    found = {}

    def go(x, total, weight, factor):
        for y, p in enumerate([*P[x], 1 - P[x].sum()]):
            if p > 1e-15:
                value = total + factor * (end[x] if y == len(P) else r[x, y])
                if y == len(P):
                    found[value] = found.get(value, 0.0) + weight * p
                else:
                    go(y, value, weight * p, factor * discount)

    go(start, 0.0, 1.0, 1.0)
    values = np.array(sorted(found))
    return values, np.cumsum([found[v] for v in values])


def test_gains_and_losses_on_a_lattice_are_the_trees():
    rng = np.random.default_rng(0)
    P = np.triu(rng.dirichlet(np.ones(6), size=6), 1)
    r, end = rng.integers(-4, 5, size=(6, 6)) / 4, rng.integers(-4, 5, size=6) / 4
    chain = pr.MarkovChain(P, r, terminal_rewards=end)
    d = chain.distribution(0)
    values, F = tree(P, r, end, 0)
    np.testing.assert_allclose(d.cdf(values), F, atol=1e-12)
    np.testing.assert_allclose(d.cdf(values - 0.125), np.append(0, F[:-1]), atol=1e-12)
    quantiles, cvars = chain.quantile(0.1), chain.cvar(0.1)
    for x in range(6):
        values, F = tree(P, r, end, x)
        assert quantiles[x] == pytest.approx(values[np.searchsorted(F, 0.1)], abs=1e-12)
        worst = np.diff(np.minimum(F, 0.1), prepend=0.0) @ values / 0.1
        assert cvars[x] == pytest.approx(worst, abs=1e-9)


def test_gains_and_losses_in_a_loop_are_the_paths_counted():
    """Beyond some s E[e^{sB}] is infinite, and the system's solution positive at the start all the same."""
    P = np.array([[0.0, 0.37, 0.23], [0.6, 0.0, 0.0], [0.0, 0.29, 0.31]])
    r, end = np.array([[-3, 0, -3], [7, 0, -3], [0, 7, -3]]), np.array([0, 7, 7])
    steps, N = 80, 2**11  # values from −N/2 on, in whole numbers: no path goes further
    alive, ended = np.zeros((3, N)), np.zeros(N)
    alive[1, N // 2] = 1.0
    for _ in range(steps):
        ended += sum((1 - P[x].sum()) * np.roll(alive[x], end[x]) for x in range(3))
        alive = np.array([sum(P[x, y] * np.roll(alive[x], r[x, y]) for x in range(3)) for y in range(3)])
    d = pr.MarkovChain(P, r / 21, terminal_rewards=end / 21).distribution(1)
    np.testing.assert_allclose(d.cdf((np.arange(N) - N // 2) / 21), np.cumsum(ended), atol=1e-12)


def test_many_sparse_states():
    """A ring of waits of 20,000 states, each like the others: geometric from all of them."""
    n, p = 20_000, 0.05
    P = (1 - p) * sp.eye_array(n, format="csr")[:, np.roll(np.arange(n), 1)]
    chain = pr.MarkovChain(P, np.full(n, -1.0))
    np.testing.assert_array_equal(chain.quantile(0.05), np.full(n, -stats.geom.isf(0.05, p)))
    assert np.ptp(chain.cvar(0.05)) < 1e-9


def test_lattices_are_found():
    thirds, turns = ([1 / 3, 0.5], 1 / 6), ([np.pi, -2 * np.pi], np.pi)
    for rewards, h in [([0.1, -0.3], 0.1), ([2.0, 3.0], 1.0), thirds, turns]:
        lattice = find_lattice(np.array(rewards))
        assert lattice.h == pytest.approx(h, rel=1e-12)
        np.testing.assert_allclose(lattice.values(lattice.multiples), rewards, rtol=1e-15)
    for rewards in ([1.0, np.pi], [np.sqrt(2), 1.0], [1.0, 1e-9]):
        assert find_lattice(np.array(rewards)) is None


# brackets


def step_cdf(values, F, z):
    return np.append(0.0, F)[np.searchsorted(values, z, side="right")]


@pytest.mark.parametrize("discount", [1.0, 0.7])
def test_any_rewards_are_enclosed(discount):
    """The tree of a chain without loops, with rewards on no lattice: bounds, their width, and both tails."""
    rng = np.random.default_rng(1)
    P = np.triu(rng.dirichlet(np.ones(6), size=6), 1)
    r, end = rng.normal(size=(6, 6)), rng.normal(size=6)
    chain = pr.MarkovChain(P, r, discount, terminal_rewards=end)
    values, F = tree(P, r, end, 0, discount)
    z = np.sort(np.concatenate([values, values - 1e-6, np.linspace(-10, 10, 500)]))
    for tolerance in (0.3, 0.01):
        d = chain.distribution(0, tolerance=tolerance)
        assert 0 < d.error <= tolerance
        assert d.error == pytest.approx(d.upper.mean - d.lower.mean)
        assert d.lower.mean <= d.mean <= d.upper.mean
        assert (d.lower.cdf(z) >= step_cdf(values, F, z) - 1e-12).all()
        assert (d.upper.cdf(z) <= step_cdf(values, F, z) + 1e-12).all()
        for q in (0.05, 0.4, 0.95, 1.0):
            quantile = values[np.searchsorted(F, q - 1e-12)]
            assert d.lower.quantile(q) <= quantile <= d.upper.quantile(q)
            worst = np.diff(np.minimum(F, q), prepend=0.0) @ values / q
            assert d.lower.cvar(q) <= worst <= d.upper.cvar(q)
            assert d.upper.cvar(q) - d.lower.cvar(q) <= d.error / q + 1e-9
    trees = (tree(P, r, end, x, discount) for x in range(6))
    worst = [np.diff(np.minimum(F, 0.2), prepend=0.0) @ values / 0.2 for values, F in trees]
    np.testing.assert_allclose(chain.cvar(0.2, tolerance=0.01), worst, atol=0.05)


@pytest.mark.parametrize("discount", [0.5, 0.95])
def test_discounted_walks_are_functions_of_their_lengths(discount):
    """B = −(1 − γ^τ)/(1 − γ), with τ's distribution from the exact recursion."""
    chain = pr.domains.walk(10, discount=discount)
    lengths = pr.domains.walk(10).distribution(0).lower
    values = -(1 - discount**-lengths.values) / (1 - discount)
    d = chain.distribution(0, tolerance=0.01)
    z = np.linspace(values[0] - 0.1, values[-1] + 0.1, 1000)
    truth = step_cdf(values, lengths.cumulative, z)
    assert (d.lower.cdf(z) >= truth - 1e-11).all()
    assert (d.upper.cdf(z) <= truth + 1e-11).all()
    assert d.error <= 0.01


def test_an_endless_discounted_chain_is_uniform():
    """Coins of 0 and 1 with γ = ½ are the digits of a uniform number in [0, 2], wherever they start."""
    P = np.full((2, 2), 0.5)
    d = pr.MarkovChain(P, [0.0, 1.0], 0.5).distribution([0.5, 0.5], tolerance=0.002)
    z = np.linspace(0.01, 1.99, 100)
    assert (d.lower.cdf(z) >= z / 2).all()
    assert (d.upper.cdf(z) <= z / 2).all()
    np.testing.assert_allclose(d.cvar([0.05, 0.5]), [0.05, 0.5], atol=0.01)
    assert d.kurtosis == pytest.approx(1.8)


def test_a_bracket_encloses_the_exact_lattice():
    chain = pr.domains.gambler(12, 0.45)
    steps = np.where(np.arange(11) % 2, 1.0, -1.0)
    chain = pr.MarkovChain(chain.P, steps)
    exact = chain.distribution(4)
    assert exact.lower is exact.upper
    transform = Transform(chain, sp.csr_array(np.eye(1, 11, 4)))
    lower, upper = brackets(transform, *transform.window(exact.std), 0.05)[0]
    z = np.arange(-60, 60) + 0.25
    assert (lower.cdf(z) >= exact.cdf(z)).all()
    assert (upper.cdf(z) <= exact.cdf(z)).all()
    assert upper.mean - lower.mean < 0.05


def test_sparse_systems_and_dense_ones_agree():
    n = 70
    P = sp.diags_array([0.6, 0.3], offsets=[1, -1], shape=(n, n), format="csr")
    r = np.where(np.arange(n) % 3, 1.0, -2.0)
    sparse = pr.MarkovChain(P, r)
    B = sparse.sample(35, episodes=20_000, seed=2).returns()
    d = sparse.distribution(35)
    for z in np.quantile(B, [0.05, 0.3, 0.8]):
        F = float(d.cdf(z))
        assert abs((B <= z).mean() - F) < 4 * np.sqrt(F * (1 - F) / B.size)
    assert d.lower.mean == pytest.approx(d.mean, abs=1e-8)


def test_episodes_followed_step_by_step_have_the_transform_of_the_systems():
    """A random graph, whose factors fill up: steps are less work. A row of states is not such a graph."""
    rng, n = np.random.default_rng(1), 200
    P = sp.csr_array((np.full(3 * n, 0.2), (np.repeat(np.arange(n), 3), rng.integers(n, size=3 * n))), (n, n))
    transform = Transform(pr.MarkovChain(P, rng.standard_normal(n)), sp.eye_array(n, format="csr"))
    assert transform._horizon > 0
    found, systems = transform.multiples(0.3j, 20), np.concatenate(list(transform._systems(0.3j, 20)))
    np.testing.assert_allclose(found, systems, rtol=0, atol=1e-11)
    walk = pr.domains.walk(200)
    assert Transform(walk, sp.eye_array(200, format="csr"))._horizon == 0


def test_sums_of_many_small_rewards_are_normal_to_a_bracket():
    """400 coins of ±1/√400·e in a row: CVaR = −σ φ(z_q)/q but for O(1/√400)."""
    steps, sigma = 400, np.e
    P = np.diag(np.ones(steps - 1), 1)
    up = sigma / np.sqrt(steps)
    chain = pr.MarkovChain.from_mdp([P, P], np.array([[up, -up]] * steps), np.full((steps, 2), 0.5))
    d = chain.distribution(0)
    q = 0.05
    z_q = stats.norm.ppf(q)
    assert d.cvar(q) == pytest.approx(-sigma * stats.norm.pdf(z_q) / q, rel=5e-3)
    assert d.cdf(1.0 + up) == pytest.approx(0.5 * (1 + erf((1.0 + 2 * up) / sigma / np.sqrt(2))), abs=2e-2)


def test_a_certain_return():
    for discount in (1.0, 0.9):
        d = pr.MarkovChain([[0, 1], [0, 0]], [np.pi, 1.0], discount).distribution(0)
        assert d.cdf(d.mean - 1e-3) == 0
        assert d.quantile(0.5) == d.cvar(0.1) == pytest.approx(np.pi + discount)
        assert np.isnan(d.skewness)


# what is refused


def test_rewards_known_by_their_variance_alone_have_no_distribution():
    chain = pr.MarkovChain([[0.5]], [1.0], reward_variance=[1.0])
    np.testing.assert_allclose(chain.moments(2)[2], chain.variance())
    for ask in (lambda: chain.moments(3), lambda: chain.distribution(0), lambda: chain.cvar(0.1)):
        with pytest.raises(InvalidInputError, match="reward_variance"):
            ask()
    silent = pr.MarkovChain([[0.5]], [1.0], reward_variance=[0.0])
    assert silent.distribution(0).mean == 2.0


def test_the_variance_of_the_last_reward():
    P = [[0.5]]
    for given, at_end, expected in [
        ([[1.0]], None, 1.0),
        ([[1.0]], [3.0], 4.0),
        (None, [3.0], 3.0),
        ([1.0], [3.0], 4.0),
    ]:
        chain = pr.MarkovChain(P, [0.0], reward_variance=given, terminal_variance=at_end)
        assert chain.variance()[0] == pytest.approx(expected)  # one ending step, and on average one before it
    mdp = pr.MarkovChain.from_mdp([P, P], [0.0], [[0.5, 0.5]], terminal_variance=[3.0])
    assert mdp.variance()[0] == pytest.approx(3.0)
    with pytest.raises(InvalidInputError, match="terminal_variance must have shape"):
        pr.MarkovChain(P, [0.0], terminal_variance=[1.0, 2.0])


def test_bad_arguments_are_named():
    chain = pr.domains.walk(5)
    d = chain.distribution(0)
    for ask, text in [
        (lambda: chain.quantile(0.0), "q must be"),
        (lambda: chain.cvar(1.5), "q must be"),
        (lambda: d.quantile([0.5, np.nan]), "q must be"),
        (lambda: d.cdf("a"), "z must be"),
        (lambda: chain.distribution(7), "start must be"),
        (lambda: chain.distribution(0, tolerance=0.0), "tolerance must be"),
        (lambda: pr.domains.walk(5, discount=0.9).distribution(0, tolerance=1e-9), "tolerance must be"),
        (lambda: chain.moments(1), "order must be"),
    ]:
        with pytest.raises(InvalidInputError, match=text):
            ask()


def test_shapes_follow_the_argument():
    d = pr.domains.walk(5).distribution(0)
    assert d.cdf(np.full((2, 3), -6.0)).shape == d.quantile(np.full((2, 3), 0.5)).shape == (2, 3)
    assert np.shape(d.cdf(-6.0)) == np.shape(d.cvar(0.5)) == ()
    np.testing.assert_array_equal(d.cdf([-np.inf, np.inf, np.nan]), [0.0, 1.0, np.nan])


def test_small_tails_of_a_long_chain_are_exact():
    """Some 2·10⁴ steps of ±1: the truth by dynamic programming over sums below 400, from which few return."""
    P = np.array([[1 - 1e-4, 0.5e-4], [0.999, 0.0]])
    chain = pr.MarkovChain(P, [1.0, -1.0])
    most, least, q = 400, -5, 0.001
    sums = np.zeros((2, most - least + 1))
    ended = np.zeros(most - least + 1)
    sums[0, -least] = 1.0
    for _ in range(3 * most):  # sums rise with all but a ten-thousandth of the steps
        up, down = np.append(0.0, sums[0, :-1]), np.append(sums[1, 1:], 0.0)
        ended += (1 - P[0].sum()) * up + (1 - P[1].sum()) * down
        sums = np.array([P[0, 0] * up + P[1, 0] * down, P[0, 1] * up])
    F = np.cumsum(ended)
    theta = least + int(np.argmax(F >= q))
    truth = theta - F[: theta - least].sum() / q
    assert chain.quantile(q)[0] == theta
    assert chain.cvar(q)[0] == pytest.approx(truth, abs=1e-5)
    assert truth == pytest.approx(10.49, abs=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_tails_are_right_at_states_of_very_different_spread(seed):
    """State 0 ends with 1000 and some thousandths, state 1 earns ±1000 for some 7 steps."""
    rng = np.random.default_rng(seed)
    p, stay = rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.6)
    rows = [[stay, 0.0, 1 - stay], [0.1, 0.85, 0.0], [0.0, 0.0, 0.0]]
    r = np.array([[0.001, 0.0, 1000.0], [1000.0, -1000.0, 0.0], [0.0, 0.0, 0.0]])
    chain = pr.MarkovChain(rows, r, terminal_rewards=[0.0, 1000.0 * p, 0.0], discount=1.0)
    k = np.arange(200)  # steps that stay in state 0
    mass, values = (1 - stay) * stay**k, 1000.0 + 0.001 * k
    q = 0.8
    theta = int(np.argmax(np.cumsum(mass) >= q))
    truth = values[theta] - (mass[:theta] * (values[theta] - values[:theta])).sum() / q
    std = chain.std()
    assert std[1] > 1e5 * std[0]
    assert chain.quantile(q)[0] == pytest.approx(values[theta], abs=0.1)
    assert chain.cvar(q)[0] == pytest.approx(truth, abs=0.1)


def test_a_quantile_in_a_gap_is_refused_where_the_bracket_cannot_tell():
    """A fair coin with 0 and 1, discounted: F is ½ between them, and no bracket decides where it begins."""
    chain = pr.MarkovChain([[0.0, 0.5, 0.5], [0.0] * 3, [0.0] * 3], [0.0, 0.0, 1.0], discount=0.9)
    with pytest.raises(InvalidInputError, match=r"quantile at q=0.5 .* from states 0; ask"):
        chain.quantile(0.5)
    assert chain.quantile(0.4)[0] == pytest.approx(0.0, abs=0.01)
    assert chain.cvar(0.5)[0] == pytest.approx(0.0, abs=0.01)
