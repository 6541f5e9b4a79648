"""The third and fourth central moments by LSTD: from data to the projected equations to the exact ones.

The truth is ``MarkovChain.moments``, which closed forms are behind (tests/test_chain_distribution.py); for
data with a table and λ = 0 it is that of the chain of what was seen; and the sums are written out as loops.
"""

from math import comb

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError, NegativeVarianceWarning
from policyrisk.lstd.definition import rows
from policyrisk.passes.checkpoint import DurableReduce


def ring(discount=1.0, seed=3, n=5):
    """A chain whose rewards depend on the transition, skewed to one side."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(n + 1, 0.8), size=n)[:, :n]
    return pr.MarkovChain(P, rng.gamma(0.5, 2.0, size=(n, n)), discount, terminal_rewards=rng.normal(size=n))


def table_of(values):
    return pr.FunctionFeatures(lambda x: values[x[:, 0].astype(int)], size=values.shape[1])


def seen_chain(data, n, discount):
    """The chain of what was seen: each transition of the data is a branch."""
    successor = np.where(data.final_rows[:, None] == data.visited_rows + 1, 1, 0)  # (episodes, transitions)
    ends = (successor * data.terminated[:, None]).any(axis=0)
    x = data.states[data.visited_rows, 0].astype(int)
    y = np.where(ends, n, data.states[data.visited_rows + 1, 0]).astype(int)
    kinds, back = np.unique(np.column_stack([x, y, data.rewards]), axis=0, return_inverse=True)
    counts = (
        np.bincount(back.ravel(), minlength=len(kinds)) / np.bincount(x, minlength=n)[kinds[:, 0].astype(int)]
    )
    P, r, at_end = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    for (a, b, reward), p in zip(kinds, counts, strict=True):
        if b == n:
            at_end[int(a)] = reward
        else:
            P[int(a), int(b)], r[int(a), int(b)] = p, reward
    return pr.MarkovChain(P, r, discount, terminal_rewards=at_end)


def written_out(data, maps, lam, gamma):
    """w_3 and w_4 by the sums as they stand in the module, from J̃ and Ṽ of the direct variance."""
    phi = [[rows(each, episode) for each in maps] for episode in data]

    def solve(k, right):
        C, d = 0.0, 0.0
        for episode, each in zip(data, phi, strict=True):
            y = 0.0
            for t in range(episode.transitions):
                y = lam * gamma**k * y + each[k - 1][t]
                C = C + np.outer(y, each[k - 1][t] - gamma**k * each[k - 1][t + 1])
                d = d + y * right(episode, each, t)
        return np.linalg.solve(C, d)

    w = [None, solve(1, lambda episode, each, t: episode.rewards[t])]
    for k in (2, 3, 4):

        def right(episode, each, t, k=k):
            delta = episode.rewards[t] + gamma * each[0][t + 1] @ w[1] - each[0][t] @ w[1]
            mu = [1.0, 0.0, *(each[j - 1][t + 1] @ w[j] for j in range(2, k))]
            return sum(comb(k, j) * delta ** (k - j) * gamma**j * mu[j] for j in range(k))

        w.append(solve(k, right))
    return w[3:]


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("max_steps", [None, 3])
def test_sums_are_those_of_the_loops(discount, max_steps):
    data = ring(discount).sample(0, episodes=60, seed=5, max_steps=max_steps)
    rng = np.random.default_rng(0)
    maps = [table_of(rng.normal(size=(5, size))) for size in (2, 3, 4, 2)]
    lstd = pr.LSTD(*maps[:2], 0.6, discount, variance="direct", moments=4, higher_features=maps[2:])
    found = lstd.fit(data).higher
    for w, expected in zip(found.weights, written_out(data, maps, 0.6, discount), strict=True):
        np.testing.assert_allclose(w, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("variance", ["second-moment", "direct"])
def test_a_table_without_traces_has_the_moments_of_the_chain_that_was_seen(discount, variance):
    data = ring(discount).sample(0, episodes=80, seed=7, max_steps=6)
    assert 0 < data.terminated.sum() < len(data)
    risk = pr.LSTD(pr.Tabular(5), lam=0.0, discount=discount, variance=variance, moments=4).fit(data)
    expected = seen_chain(data, 5, discount).moments(4)
    np.testing.assert_allclose(risk.moments(np.arange(5)), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_a_table_of_the_exact_equations_is_exact(discount, lam):
    chain = ring(discount)
    risk = pr.LSTD(pr.Tabular(5), lam=lam, discount=discount, moments=4).fit_exact(chain, 0)
    mu = chain.moments(4)
    np.testing.assert_allclose(risk.moments(np.arange(5)), mu, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(risk.skewness(np.arange(5)), mu[3] / mu[2] ** 1.5, rtol=1e-8)
    np.testing.assert_allclose(risk.kurtosis(np.arange(5)), mu[4] / mu[2] ** 2, rtol=1e-8)


def test_data_approach_the_projected_equations():
    chain, gamma = ring(0.8), 0.8
    rng = np.random.default_rng(2)
    maps = [table_of(rng.normal(size=(5, size))) for size in (2, 3, 3, 3)]
    lstd = pr.LSTD(*maps[:2], 0.6, gamma, variance="direct", moments=4, higher_features=maps[2:])
    exact = np.concatenate(lstd.fit_exact(chain, 0).higher.weights)
    fits = [
        lstd.fit(chain.sample(0, episodes=1500, seed=seed), error_bars=False).higher.weights
        for seed in range(10)
    ]
    found = np.array([np.concatenate(each) for each in fits])
    z = (found.mean(axis=0) - exact) / (found.std(axis=0, ddof=1) / np.sqrt(len(found)))
    assert np.abs(z).max() < 4.5, z  # Student's with 9 degrees of freedom, six of them
    # The projected ones are not the exact ones here, so that they are no truth by accident.
    assert np.abs(lstd.fit_exact(chain, 0).moments(np.arange(5)) - chain.moments(4))[3:].max() > 0.1


def test_the_paper_s_chain_with_degrees_one_to_four():
    chain = pr.domains.walk(30, p=0.7)
    maps = [pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2, 3, 4)]
    lstd = pr.LSTD(*maps[:2], lam=0.95, variance="direct", moments=4, higher_features=maps[2:])
    error = lstd.fit_exact(chain, 0).moments(np.arange(30))[3] - chain.moments(3)[3]
    q = chain.occupancy(0)
    assert np.sqrt(q @ error**2 / q.sum()) == pytest.approx(215.41, abs=0.01)  # raw moments: 3,317


def test_streams_files_and_resumed_fits_say_the_same(tmp_path):
    parts = [ring(0.8).sample(0, episodes=100, seed=seed) for seed in (1, 2)]
    lstd = pr.LSTD(pr.Tabular(5), discount=0.8, moments=4)
    risk, x = lstd.fit(parts), np.arange(5)
    together = lstd.fit(pr.Trajectories.concatenate(parts))
    np.testing.assert_allclose(risk.moments(x), together.moments(x), rtol=1e-9)
    risk.save(tmp_path / "risk.npz")
    again = pr.RiskFunction.load(tmp_path / "risk.npz")
    np.testing.assert_array_equal(again.moments(x), risk.moments(x))
    np.testing.assert_array_equal(again.kurtosis(x), risk.kurtosis(x))

    path, passes = tmp_path / "checkpoint.npz", 0

    class Dying(DurableReduce):
        def __call__(self, work):
            nonlocal passes
            passes += 1
            if passes == 4:
                self.checkpoint.save(self._state)
                raise KeyboardInterrupt
            return super().__call__(work)

    with pytest.raises(KeyboardInterrupt):
        lstd.fit_by(Dying(parts, path, {}, resume=False))
    resumed = lstd.fit_by(DurableReduce(parts, path, {}, resume=True))
    whole = lstd.fit_by(DurableReduce(parts, None, {}, resume=False))
    np.testing.assert_array_equal(resumed.moments(x), whole.moments(x))
    np.testing.assert_allclose(resumed.moments(x), risk.moments(x), rtol=1e-9)


def test_sums_that_stay_sparse(monkeypatch):
    data = ring().sample(0, episodes=200, seed=1)
    lstd = pr.LSTD(pr.Tabular(5), moments=4)
    dense = lstd.fit(data).moments(np.arange(5))
    monkeypatch.setattr("policyrisk.equations.moment_equations.DENSE_MOST", 4)
    np.testing.assert_allclose(lstd.fit(data, error_bars=False).moments(np.arange(5)), dense, rtol=1e-6)


def test_states_and_maps_of_which_nothing_is_known():
    data = ring().sample(0, episodes=50, seed=1)
    coarse = pr.TileCoding([0], [10], bins=2)
    risk = pr.LSTD(pr.Tabular(10), moments=4, higher_features=[coarse, pr.Tabular(10)]).fit(data)
    found = risk.moments(np.arange(10))
    assert np.isfinite(found[:, :5]).all()
    assert np.isnan(found[:, 5:]).all()


def test_errors_say_what_to_do():
    chain = ring()
    data = chain.sample(0, episodes=50, seed=1)
    with pytest.raises(InvalidInputError, match=r"moments=3"):
        pr.LSTD(pr.Tabular(5)).fit(data).skewness([0])
    with pytest.raises(InvalidInputError, match=r"kurtosis needs the central moment 4"):
        pr.LSTD(pr.Tabular(5), moments=3).fit(data).kurtosis([0])
    assert pr.LSTD(pr.Tabular(5)).fit(data).moments([0, 1]).shape == (3, 2)
    lstd = pr.LSTD(pr.Tabular(5), moments=4)
    with pytest.raises(InvalidInputError, match=r"moments=4, which needs the data"):
        lstd.solve(lstd.equations(data))
    with pytest.raises(InvalidInputError, match="at most 4"):
        pr.LSTD(pr.Tabular(5), moments=5)
    with pytest.raises(InvalidInputError, match=r"\[phi_3, phi_4\]"):
        pr.LSTD(pr.Tabular(5), moments=4, higher_features=[pr.Tabular(5)])
    noisy = pr.MarkovChain([[0.5]], [1.0], reward_variance=[1.0])
    with pytest.raises(InvalidInputError, match="reward_variance"):
        pr.LSTD(pr.Tabular(1), moments=4).fit_exact(noisy, 0)


def test_a_negative_variance_has_no_skewness():
    chain = pr.domains.walk(30, p=0.7)
    maps = [pr.Polynomial(degree, low=[0], high=[29]) for degree in (1, 2)]
    risk = pr.LSTD(*maps, lam=0.95, moments=3).fit_exact(chain, 0)
    with pytest.warns(NegativeVarianceWarning):
        found = risk.skewness([0, 29])
    assert np.isfinite(found[0])
    assert np.isnan(found[1])
