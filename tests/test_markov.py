"""Chains: moments against sums over explicit trees of futures, occupancy, sampling, decision processes."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import policyrisk as pr
from policyrisk.errors import ImproperPolicyError, InvalidInputError


def random_chain(seed, n=6, *, transition_rewards=False, discount=1.0, sparse=False):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(n + 1, 0.5), size=n)[:, :n]
    P[P < 0.03] = 0.0
    r = rng.normal(size=(n, n)) if transition_rewards else rng.normal(size=n)
    ends = rng.normal(size=n) if transition_rewards else None
    return pr.MarkovChain(sp.csr_array(P) if sparse else P, r, discount, terminal_rewards=ends), P, r, ends


def moments_by_iteration(P, r, ends, discount, steps=5000):
    """J and M as limits of finite-horizon sums over (x, y), written from Proposition 2, one sum per term."""
    n = len(P)
    R = np.tile(r[:, None], (1, n)) if r.ndim == 1 else r
    end_reward = (r if r.ndim == 1 else np.zeros(n)) if ends is None else ends
    stop = 1 - P.sum(axis=1)
    J, M = np.zeros(n), np.zeros(n)
    for _ in range(steps):
        M = (P * R**2).sum(axis=1) + stop * end_reward**2 + 2 * discount * (P * R) @ J + discount**2 * P @ M
        J = (P * R).sum(axis=1) + stop * end_reward + discount * P @ J
    return J, M


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("transition_rewards", [False, True])
def test_moments_are_the_limits_of_finite_horizons(seed, discount, transition_rewards):
    chain, P, r, ends = random_chain(seed, transition_rewards=transition_rewards, discount=discount)
    J, M = moments_by_iteration(P, r, ends, discount)
    np.testing.assert_allclose(chain.mean(), J, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(chain.second_moment(), M, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(chain.variance(), M - J**2, rtol=1e-7, atol=1e-7)


def test_sparse_and_dense_agree():
    dense, sparse = (random_chain(5, n=40, transition_rewards=True, sparse=s)[0] for s in (False, True))
    np.testing.assert_array_equal(dense.mean(), sparse.mean())
    np.testing.assert_array_equal(dense.variance(), sparse.variance())


def test_sparse_transition_rewards():
    _, P, R, ends = random_chain(6, transition_rewards=True)
    dense = pr.MarkovChain(P, R, terminal_rewards=ends)
    sparse = pr.MarkovChain(sp.csr_array(P), sp.csr_array(R * (P > 0)), terminal_rewards=ends)
    np.testing.assert_allclose(sparse.variance(), dense.variance(), rtol=1e-12)


def test_variance_of_a_long_walk_keeps_its_digits():
    """V against its closed form where M is 10⁴ times V, so that M − J² could not keep them."""
    n, p = 20_000, 0.7
    chain = pr.domains.walk(n, p)
    rho = (1 - p) / p
    m, v, V = 0.0, 0.0, np.empty(n)
    for k in range(1, n + 1):
        previous, m = m, (1 - rho**k) / (2 * p - 1)
        v = rho * v + (1 - p) * (previous + m) ** 2
        V[k - 1] = v
    V = np.cumsum(V[::-1])[::-1]
    assert np.max(np.abs(chain.variance() / V - 1)) < 1e-13


def test_constant_rewards_added_to_a_deterministic_chain_have_no_variance():
    chain = pr.MarkovChain([[0, 1, 0], [0, 0, 1], [0, 0, 0]], [1.0, 2.0, 4.0])
    np.testing.assert_array_equal(chain.mean(), [7, 6, 4])
    np.testing.assert_array_equal(chain.variance(), [0, 0, 0])


def test_rows_that_sum_to_one_but_for_rounding_do_not_terminate():
    P = np.tile([0.7, 0.2, 0.1], (3, 1))
    assert P.sum(axis=1)[0] != 1.0
    with pytest.raises(ImproperPolicyError, match="states 0, 1, 2"):
        pr.MarkovChain(P, np.ones(3))


def test_reports_tell_method_and_residual():
    chain = pr.domains.walk(30)
    chain.variance()
    assert set(chain.reports) == {"mean", "variance"}
    assert all(report.residual < 1e-12 for report in chain.reports.values())


# decision processes


def test_stochastic_policy_keeps_the_randomness_of_action_rewards():
    """One state, two actions with rewards ±1 that both end: mean 0, variance 1 (a mixed reward gives 0)."""
    chain = pr.MarkovChain.from_mdp(np.zeros((2, 1, 1)), [[1.0, -1.0]], [[0.5, 0.5]])
    assert chain.mean()[0] == 0.0
    assert chain.variance()[0] == 1.0


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("matrices", [False, True])
def test_rewards_that_are_random_given_the_transition(discount, matrices):
    """M and V solve their equations with E[ρ²] = r² + variance; samples and projected equations agree."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(4), size=(2, 3))[:, :, :3]
    policy = rng.dirichlet(np.ones(2), size=3)
    r, spread = rng.normal(size=(2, 3, 3)), rng.uniform(0.5, 2.0, size=(2, 3, 3))
    ends, end_spread = rng.normal(size=3), np.zeros(3)
    spread[0, 1] = 0.0
    variances = spread
    if not matrices:  # one variance a state and action, the ending step included
        variances, end_spread = spread[:, :, 0].T, (policy * spread[:, :, 0].T)
        spread = np.repeat(spread[:, :, :1], 3, axis=2)
    chain = pr.MarkovChain.from_mdp(P, r, policy, discount, terminal_rewards=ends, reward_variance=variances)
    weights = policy.T[:, :, None] * P  # (a, x, y)
    stop = 1 - P.sum(axis=2)  # (a, x)
    J = chain.mean()
    Pi = weights.sum(axis=0)
    np.testing.assert_allclose(
        J, (weights * r).sum(axis=(0, 2)) + (policy.T * stop).sum(axis=0) * ends + discount * Pi @ J
    )
    square = (weights * (r**2 + spread + 2 * discount * r * J)).sum(axis=(0, 2))
    square += (policy.T * stop).sum(axis=0) * ends**2
    if not matrices:
        square += (end_spread * stop.T).sum(axis=1)
    M = np.linalg.solve(np.eye(3) - discount**2 * Pi, square)
    np.testing.assert_allclose(chain.second_moment(), M)
    exact = pr.LSTD(pr.Tabular(3), discount=discount).fit_exact(chain, start=0)
    np.testing.assert_allclose(exact.variance([0, 1, 2]), chain.variance())
    B = chain.sample(0, episodes=40_000, seed=3).returns(discount)
    assert abs(B.mean() - J[0]) < 4 * B.std() / 200
    squares = (B - J[0]) ** 2
    assert abs(squares.mean() - chain.variance()[0]) < 4 * squares.std() / 200


def test_a_chain_with_noise_is_checked_and_without_is_what_it_was():
    plain, none = (pr.MarkovChain(np.eye(2) / 2, [1.0, 2.0], reward_variance=v) for v in (None, [0.0, 0.0]))
    np.testing.assert_array_equal(plain.branches.reward, none.branches.reward)
    with pytest.raises(InvalidInputError, match=r"reward_variance must be at least 0, got -1"):
        pr.MarkovChain([[0.5]], [1.0], reward_variance=[-1.0])
    with pytest.raises(InvalidInputError, match=r"reward_variance must have shape"):
        pr.MarkovChain([[0.5]], [1.0], reward_variance=[1.0, 2.0])
    with pytest.raises(InvalidInputError, match=r"reward_variance must have shape"):
        pr.MarkovChain.from_mdp([[[0.5]]], [1.0], [0], reward_variance=[1.0, 2.0])


@pytest.mark.parametrize("kind", ["state", "action", "transition", "shared transition"])
def test_from_mdp_equals_a_chain_over_state_and_action(kind):
    """The same process written as a chain over (x, a): J(x) and M(x) are its averages over a."""
    rng = np.random.default_rng(1)
    actions, n = 3, 4
    P = rng.dirichlet(np.ones(n + 1), size=(actions, n))[:, :, :n]
    policy = rng.dirichlet(np.ones(actions), size=n)
    r = {
        "state": rng.normal(size=n),
        "action": rng.normal(size=(n, actions)),
        "transition": rng.normal(size=(actions, n, n)),
        "shared transition": rng.normal(size=(n, n)),
    }[kind]
    full = {
        "state": lambda: np.broadcast_to(r[None, :, None], (actions, n, n)),
        "action": lambda: np.broadcast_to(r.T[:, :, None], (actions, n, n)),
        "transition": lambda: r,
        "shared transition": lambda: np.broadcast_to(r[None], (actions, n, n)),
    }[kind]()
    ends = rng.normal(size=n)
    chain = pr.MarkovChain.from_mdp(P, r, policy, terminal_rewards=ends)
    big_P = np.zeros((n, actions, n, actions))
    big_R = np.zeros_like(big_P)
    for x in range(n):
        for a in range(actions):
            for y in range(n):
                big_P[x, a, y] = P[a, x, y] * policy[y]
                big_R[x, a, y] = full[a, x, y]
    size = n * actions
    flat = pr.MarkovChain(
        big_P.reshape(size, size), big_R.reshape(size, size), terminal_rewards=np.repeat(ends, actions)
    )
    weights = policy.ravel()
    J = (flat.mean() * weights).reshape(n, actions).sum(axis=1)
    M = (flat.second_moment() * weights).reshape(n, actions).sum(axis=1)
    np.testing.assert_allclose(chain.mean(), J, rtol=1e-12)
    np.testing.assert_allclose(chain.second_moment(), M, rtol=1e-12)


def test_deterministic_policy_picks_rows():
    rng = np.random.default_rng(2)
    P = rng.dirichlet(np.ones(4), size=(2, 3))[:, :, :3]
    r = rng.normal(size=(3, 2))
    policy = np.array([1, 0, 1])
    chain = pr.MarkovChain.from_mdp([sp.csr_array(Pa) for Pa in P], r, policy)
    picked = pr.MarkovChain(P[policy, np.arange(3)], r[np.arange(3), policy])
    np.testing.assert_allclose(chain.mean(), picked.mean(), rtol=1e-13)
    np.testing.assert_allclose(chain.variance(), picked.variance(), rtol=1e-13)


# occupancy


@given(seed=st.integers(0, 10_000), index=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_occupancy_solves_its_equation_and_weighs_rewards(seed, index):
    chain, P, r, _ = random_chain(seed)
    q = chain.occupancy(index)
    zeta = np.eye(6)[index]
    np.testing.assert_allclose(q, zeta + P.T @ q, atol=1e-9 * q.sum())
    assert q @ r == pytest.approx(chain.mean()[index], abs=1e-9 * (1 + np.abs(r) @ q))


def test_occupancy_ignores_endless_states_that_are_not_reached():
    chain = pr.MarkovChain([[0.5, 0, 0], [0, 1, 0], [0.2, 0.4, 0]], np.ones(3), discount=0.9)
    np.testing.assert_allclose(chain.occupancy(0), [2, 0, 0])
    with pytest.raises(ImproperPolicyError, match="states 1 "):
        chain.occupancy(2)


# sampling


def test_sampling_matches_the_exact_moments():
    chain = pr.domains.walk(10, 0.6)
    K = 20_000
    returns = chain.sample(0, episodes=K, seed=4).returns()
    J, V = chain.mean()[0], chain.variance()[0]
    assert abs(returns.mean() - J) / np.sqrt(V / K) < 4
    spread = np.sqrt(np.mean((returns - returns.mean()) ** 4) - V**2)
    assert abs(returns.var() - V) / (spread / np.sqrt(K)) < 4


def test_sampled_transitions_have_the_chains_frequencies():
    chain, P, R, ends = random_chain(11, transition_rewards=True)
    data = chain.sample(np.full(6, 1 / 6), episodes=20_000, seed=1)
    x = data.states[data.visited_rows, 0]
    y = data.states[data.visited_rows + 1, 0]
    full = np.column_stack([P, 1 - P.sum(axis=1)])
    counts = np.zeros((6, 7))
    np.add.at(counts, (x, y), 1)
    visits = counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (counts - visits * full) / np.sqrt(visits * full * (1 - full))
    assert np.nanmax(np.abs(z)) < 4.5
    assert (counts[full == 0] == 0).all()
    np.testing.assert_array_equal(data.rewards, np.column_stack([R, ends])[x, y])
    starts = np.bincount(data.starts()[:, 0], minlength=6)
    assert np.abs(starts - 20_000 / 6).max() / np.sqrt(20_000 / 6) < 4.5


def test_sampling_is_seeded_and_chains_episodes():
    chain = pr.domains.walk(5)
    a, b = (chain.sample(0, episodes=50, seed=9) for _ in range(2))
    np.testing.assert_array_equal(a.states, b.states)
    longer = chain.sample(0, episodes=80, seed=9)
    np.testing.assert_array_equal(longer[:50].states, a.states)
    assert not np.array_equal(chain.sample(0, episodes=50, seed=10).lengths, a.lengths)


def test_max_steps_cuts_episodes_off():
    chain = pr.domains.walk(30)
    data = chain.sample(0, episodes=100, seed=0, max_steps=70)
    assert data.lengths.max() == 70
    assert (data.lengths[~data.terminated] == 70).all()
    final = data.states[data.final_rows, 0]
    assert ((final == 30) == data.terminated).all()
    assert data.terminated.any()
    assert not data.terminated.all()
    endless = pr.MarkovChain([[1.0]], [1.0], discount=0.9)
    assert endless.sample(0, episodes=2, seed=0, max_steps=3).lengths.tolist() == [3, 3]
