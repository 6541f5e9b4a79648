"""Published and closed-form figures, reproduced to the digits given."""

import numpy as np
import pytest

import policyrisk as pr
from experiments import chain as chain_experiment
from policyrisk.domains import boyan, gambler, walk


def passage_moments(n, p):
    """J and V of the walk from its passage times: m_k, v_k from state k to k + 1."""
    rho = (1 - p) / p
    m, v = [0.0], [0.0]
    for k in range(1, n + 1):
        m.append((1 - rho**k) / (2 * p - 1))
        v.append(rho * v[-1] + (1 - p) * (m[-2] + m[-1]) ** 2)
    J = -np.cumsum(np.array(m[1:])[::-1])[::-1]
    return J, np.cumsum(np.array(v[1:])[::-1])[::-1]


@pytest.mark.parametrize(("n", "p"), [(1, 0.7), (30, 0.7), (30, 0.55), (200, 0.9)])
def test_walk_has_the_closed_form_of_its_passage_times(n, p):
    J, V = passage_moments(n, p)
    chain = walk(n, p)
    np.testing.assert_allclose(chain.mean(), J, rtol=1e-11)
    np.testing.assert_allclose(chain.variance(), V, rtol=1e-11)


def test_walk_figures_of_the_paper():
    chain = walk(30, 0.7)
    np.testing.assert_allclose(chain.mean()[[0, 29]], [-73.125, -2.5], atol=1e-8)
    np.testing.assert_allclose(chain.variance()[[0, 29]], [359.296875, 13.125], atol=1e-8)


RAW = {
    "state 1": (
        1,
        [-76.894075, 2.467595],
        [6227.886390, -375.871068, 5.570495],
        [-16.038, -43.016],
    ),
    "uniform": (
        0,
        [-77.320131, 2.491765],
        [6325.627099, -390.979443, 6.010940],
        [16.831, -0.500],
    ),
}


@pytest.mark.parametrize("start", RAW)
def test_projected_weights_of_the_walk(start):
    state, w_mean, w_second, last = RAW[start]
    result = chain_experiment.run(chain_experiment.ChainParameters(start=state))
    np.testing.assert_allclose(result.w_mean, w_mean, atol=5e-7)
    np.testing.assert_allclose(result.w_second, w_second, atol=5e-7)
    np.testing.assert_allclose(result.variance["projected"][[28, 29]], last, atol=5e-4)


def test_constrained_weights_of_the_walk():
    result = chain_experiment.run()
    np.testing.assert_allclose(result.w_second_constrained, [6248.738524, -378.100220, 5.669426], atol=5e-7)
    assert result.negative_states == [29, 30]
    assert result.active_states == [30]
    assert result.variance["constrained"][28] == pytest.approx(23.370, abs=5e-4)
    assert result.variance["constrained"].min() > -1e-9


@pytest.mark.parametrize(
    ("lam", "variance", "error"),
    [
        (0.95, "direct", 5.32),
        (0.0, "direct", 13.46),
        (0.95, "second-moment", 31.03),
        (0.0, "second-moment", 119.42),
    ],
)
def test_error_of_the_projected_variance(lam, variance, error):
    chain = walk(30, 0.7)
    features = [pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2)]
    risk = pr.LSTD(*features, lam=lam, variance=variance).fit_exact(chain, 0)
    q = chain.occupancy(0)
    wrong = risk.variance(np.arange(30)) - chain.variance()
    assert np.sqrt(q @ wrong**2 / q.sum()) == pytest.approx(error, abs=5e-3)


def test_best_projection_of_the_variance():
    chain = walk(30, 0.7)
    phi = pr.Polynomial(2, low=[0], high=[29])(np.arange(30))
    q = chain.occupancy(0)
    root = np.sqrt(q)
    w = np.linalg.lstsq(phi * root[:, None], chain.variance() * root)[0]
    assert np.sqrt(q @ (phi @ w - chain.variance()) ** 2 / q.sum()) == pytest.approx(4.40, abs=5e-3)


@pytest.mark.parametrize(
    ("discount", "J", "V"),
    [
        (1.0, [6.25, 6.75], [29.0625, 26.8125]),
        (0.9, [4.82546, 5.60575], [9.96892, 9.37152]),
    ],
)
def test_three_states(discount, J, V):
    chain = pr.MarkovChain([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0], discount)
    np.testing.assert_allclose(chain.mean(), J, atol=1e-8 if discount == 1 else 5e-6)
    np.testing.assert_allclose(chain.variance(), V, atol=1e-8 if discount == 1 else 5e-6)
    np.testing.assert_allclose(chain.std() ** 2, chain.variance())


def test_boyan():
    chain = boyan()
    s = 12 - np.arange(12)
    np.testing.assert_allclose(chain.mean(), -2.0 * s, atol=1e-10)
    np.testing.assert_allclose(chain.variance()[::-1][:6], [0, 1, 3 / 2, 9 / 4, 23 / 8, 57 / 16], atol=1e-10)


@pytest.mark.parametrize("N", [2, 3, 10, 500])
def test_fair_gambler(N):
    k = np.arange(1, N)
    chain = gambler(N)
    np.testing.assert_allclose(chain.mean(), k * (N - k), rtol=1e-10)
    V = k * (N - k) * (k**2 + (N - k) ** 2 - 2) / 3
    np.testing.assert_allclose(chain.variance(), V, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("p", "k"), [(0.3, 1), (0.05, 1), (0.3, 7), (1.0, 3)])
def test_geometric_waiting_in_series(p, k):
    P = np.diag(np.full(k, 1 - p)) + np.diag(np.full(k - 1, p), 1)
    chain = pr.MarkovChain(P, np.ones(k))
    assert chain.mean()[0] == pytest.approx(k / p, rel=1e-12)
    assert chain.variance()[0] == pytest.approx(k * (1 - p) / p**2, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("n", [1, 6, 40])
def test_coupon_collector(n):
    found = np.arange(n)
    p = (n - found) / n
    P = np.diag(1 - p) + np.diag(p[:-1], 1)
    chain = pr.MarkovChain(P, np.ones(n))
    assert chain.mean()[0] == pytest.approx(n * np.sum(1 / np.arange(1, n + 1)), rel=1e-12)
    assert chain.variance()[0] == pytest.approx(np.sum((1 - p) / p**2), rel=1e-12, abs=1e-12)
    if n == 6:
        assert chain.mean()[0] == pytest.approx(14.7, abs=1e-8)
        assert chain.variance()[0] == pytest.approx(38.99, abs=1e-8)


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.3])
def test_sobel(discount):
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.ones(8), size=7)[:, :7]
    r = rng.normal(size=7)
    chain = pr.MarkovChain(P, r, discount)
    J = np.linalg.solve(np.eye(7) - discount * P, r)
    ends = 1 - P.sum(axis=1)
    theta = P @ np.zeros(7) + ends * r**2 - J**2
    theta += np.array([P[i] @ (r[i] + discount * J) ** 2 for i in range(7)])
    np.testing.assert_allclose(
        chain.variance(), np.linalg.solve(np.eye(7) - discount**2 * P, theta), rtol=1e-10
    )
    M = np.linalg.solve(np.eye(7) - discount**2 * P, r**2 + 2 * discount * r * (P @ J))
    np.testing.assert_allclose(chain.second_moment(), M, rtol=1e-10)
