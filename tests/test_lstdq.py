"""LSTDQ: another policy than the one that logged."""

import numpy as np
import pytest
import scipy.linalg as sla
from conftest import Stops

import policyrisk as pr
from policyrisk.equations import moment_equations
from policyrisk.errors import InvalidInputError, MismatchError, UncoveredError, UncoveredWarning
from policyrisk.features.actions import ActionBlocks
from policyrisk.features.target import PolicyFeatures, Target
from policyrisk.lstd import action_estimator
from policyrisk.lstd.definition import ActionDefinition
from policyrisk.passes.checkpoint import DurableReduce

N, ACTIONS = 5, 3


def process(seed=0, n=N, actions=ACTIONS, end=0.2):
    """P (actions, n, n) with an end from everywhere, and rewards (n, actions)."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(n), size=(actions, n)) * (1.0 - end)
    return P, rng.normal(size=(n, actions)).round(2)


def policies(seed, n=N, actions=ACTIONS):
    """A logging policy and a target."""
    rng = np.random.default_rng(1000 + seed)
    return rng.dirichlet(np.ones(actions) * 2, size=n), rng.dirichlet(np.ones(actions) * 2, size=n)


def log(P, r, mu, episodes, seed, max_steps=200, propensities=True):
    """Episodes of a policy with its actions; state n is the end."""
    rng, n = np.random.default_rng(seed), P.shape[1]
    whole = np.concatenate([P, 1.0 - P.sum(axis=2, keepdims=True)], axis=2).cumsum(axis=2)
    x = np.full((episodes, max_steps + 1), n)
    x[:, 0] = rng.integers(n, size=episodes)
    a = np.zeros((episodes, max_steps), dtype=int)
    for t in range(max_steps):
        on = np.flatnonzero(x[:, t] < n)
        a[on, t] = (rng.random((on.size, 1)) > mu[x[on, t]].cumsum(axis=1)[:, :-1]).sum(axis=1)
        x[on, t + 1] = (rng.random((on.size, 1)) > whole[a[on, t], x[on, t]][:, :-1]).sum(axis=1)
    lengths = (x[:, :-1] < n).sum(axis=1)
    steps, rows = np.arange(max_steps) < lengths[:, None], np.arange(max_steps + 1) <= lengths[:, None]
    at, taken = x[:, :-1][steps], a[steps]
    return pr.Trajectories(
        x[rows], r[at, taken], lengths, x[np.arange(episodes), lengths] == n, actions=taken,
        propensities=mu[at, taken] if propensities else None,
    )  # fmt: skip


def definition(lstdq, **settings):
    """The loops with an estimator's settings."""
    phi = [PolicyFeatures(each, lstdq.policy) for each in (lstdq.features, lstdq.second_features)]
    return ActionDefinition(*phi, lam=lstdq.lam, discount=lstdq.discount, ridge=lstdq.ridge, **settings)


LINE = pr.Polynomial(degree=1, low=[0], high=[N - 1])
PAIRS = pr.ActionFeatures(pr.Polynomial(degree=2, low=[0, 0], high=[N - 1, ACTIONS - 1]))
CASES = {
    "table": {"features": pr.Tabular(N)},
    "table, discount": {"features": pr.Tabular(N), "discount": 0.9, "lam": 0.5},
    "traces": {"features": pr.Tabular(N), "lam": 0.8},
    "dense": {"features": LINE, "lam": 0.6, "discount": 0.9},
    "two maps": {"features": LINE, "second_features": pr.Tabular(N), "lam": 0.3},
    "pairs": {"features": PAIRS, "second_features": LINE, "discount": 0.8, "lam": 0.4},
    "ridge": {"features": pr.Tabular(N), "ridge": 0.1},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("propensities", [True, False])
def test_fast_sums_are_those_of_the_definition(name, propensities):
    """Equations, both variances and error bars; episodes that were cut off among them."""
    P, r = process()
    mu, pi = policies(1)
    data = log(P, r, mu, 24, seed=2, max_steps=4, propensities=propensities)
    for variance in ("direct", "second-moment"):
        q = pr.LSTDQ(policy=pi, variance=variance, **CASES[name])
        slow = definition(q, direct=variance == "direct")
        sums, equations = sum((slow.terms(k) for k in data[1:]), start=slow.terms(data[0])), q.equations(data)
        for part in "AbCDe":
            np.testing.assert_allclose(getattr(equations, part), getattr(sums, part), atol=1e-9)
        risk = q.fit(data)
        w_J, w_M = slow.weights(data)
        np.testing.assert_allclose(risk.w_mean, w_J, atol=1e-8)
        np.testing.assert_allclose(risk.w_second, w_M, atol=1e-8)
        covariance, bars = slow.covariance(data, w_J, w_M), risk.error_bars
        whole = np.block([[bars.mean, bars.cross], [bars.cross.T, bars.second]])
        np.testing.assert_allclose(whole, covariance, rtol=1e-6, atol=1e-10)
        if variance == "second-moment":
            np.testing.assert_allclose(q.solve(equations).w_second, w_M, atol=1e-8)


def empirical(data, n=N, actions=ACTIONS):
    """The decision process that the data are: P (actions, n, n) of what followed each pair."""
    counts = np.zeros((actions, n, n + 1))
    np.add.at(
        counts, (data.actions, data.states[data.visited_rows, 0], data.states[data.visited_rows + 1, 0]), 1
    )
    return (counts / counts.sum(axis=2, keepdims=True))[:, :, :n]


def test_a_table_solves_the_empirical_process_exactly():
    """LSTDQ(0) of a table is the decision process of the counts, under the target."""
    P, r = process()
    mu, pi = policies(3)
    data = log(P, r, mu, 300, seed=4)
    for gamma in (1.0, 0.9):
        exact = pr.MarkovChain.from_mdp(empirical(data), r, pi, discount=gamma)
        for variance in ("direct", "second-moment"):
            risk = pr.LSTDQ(pr.Tabular(N), pi, discount=gamma, variance=variance).fit(data)
            np.testing.assert_allclose(risk.mean(range(N)), exact.mean(), atol=1e-10)
            np.testing.assert_allclose(risk.variance(range(N)), exact.variance(), atol=1e-9)
            np.testing.assert_allclose(risk.second_moment(range(N)), exact.second_moment(), atol=1e-9)
            assert (risk.covered(range(N)) == 1).all()
        Q = r + gamma * np.einsum("axy,y->xa", empirical(data), exact.mean())
        np.testing.assert_allclose(risk.action_mean(range(N), 1), Q[:, 1], atol=1e-10)


def test_survival_is_a_bernoulli():
    """A reward of 1 on entering one of two ends: M = J and V = J(1 − J)."""
    P, _ = process(seed=5)
    mu, pi = policies(5)
    data = log(P, np.zeros((N, ACTIONS)), mu, 400, seed=6)
    lives = np.random.default_rng(7).random(len(data)) < 0.7
    rewards = np.zeros(data.transitions)
    rewards[data.offsets[1:] - 1] = lives
    data = pr.Trajectories(data.states, rewards, data.lengths, data.terminated, actions=data.actions)
    for variance in ("direct", "second-moment"):
        risk = pr.LSTDQ(pr.Tabular(N), pi, variance=variance).fit(data)
        J, x = risk.mean(range(N)), range(N)
        np.testing.assert_allclose(risk.second_moment(x), J, atol=1e-10)
        np.testing.assert_allclose(risk.variance(x), J * (1 - J), atol=1e-10)
        Q = risk.action_mean(x, 2)
        np.testing.assert_allclose(risk.action_variance(x, 2), Q * (1 - Q), atol=1e-10)


def test_one_step_and_two_actions():
    """V is the variance of the rewards under the target, whatever the log's own shares are."""
    data = pr.Trajectories(
        [[0], [1]] * 5, [2.0, 2.0, 2.0, 5.0, 5.0], [1] * 5, [True] * 5, actions=[0, 0, 0, 1, 1]
    )
    pi = np.array([0.3, 0.7])
    risk = pr.LSTDQ(pr.Tabular(1), [pi]).fit(data)
    J = pi @ [2.0, 5.0]
    assert risk.mean([0]) == pytest.approx(J, abs=1e-12)
    assert risk.variance([0]) == pytest.approx(pi @ (np.array([2.0, 5.0]) - J) ** 2, abs=1e-12)


def test_the_spread_over_the_next_action_is_part_of_the_variance():
    """Two steps: at the second the target tosses a coin between 0 and 10, and nothing else shows it."""
    states, rewards, actions = [], [], []
    for a in (0, 1):
        states += [0, 1, 2]
        rewards += [1.0, 10.0 * a]
        actions += [0, a]
    data = pr.Trajectories(np.array(states), rewards, [2, 2], [True, True], actions=actions)
    risk = pr.LSTDQ(pr.Tabular(2), [[1.0, 0.0], [0.5, 0.5]]).fit(data)
    assert risk.action_variance([0], 0) == pytest.approx(25.0)  # the squared mean error would give 0
    np.testing.assert_allclose(risk.variance([0, 1]), [25.0, 25.0])


def test_propensities_change_nothing_without_traces():
    """λ = 0: to the bit."""
    P, r = process()
    mu, pi = policies(8)
    data = log(P, r, mu, 60, seed=9)
    bare = pr.Trajectories(data.states, data.rewards, data.lengths, data.terminated, actions=data.actions)
    q = pr.LSTDQ(pr.Tabular(N), pi)
    a, b = q.fit(data), q.fit(bare)
    assert np.array_equal(a.w_mean, b.w_mean)
    assert np.array_equal(a.w_second, b.w_second)
    assert np.array_equal(a.error_bars.second, b.error_bars.second)
    traced = pr.LSTDQ(pr.Tabular(N), pi, lam=0.8)
    assert not np.allclose(traced.fit(data).w_mean, traced.fit(bare).w_mean)


@pytest.mark.parametrize("features", [pr.Tabular(N), LINE])
def test_shards_add_up(features):
    """Equations of parts, and fits of streams and of checkpointed passes, are those of the whole."""
    P, r = process()
    mu, pi = policies(10)
    data = log(P, r, mu, 150, seed=11, max_steps=8)
    q = pr.LSTDQ(features, pi, lam=0.4, discount=0.95)
    parts = [data[:50], data[50:51], data[51:]]
    whole, added = q.equations(data), sum(q.equations(part) for part in parts)
    for part in "AbCDe":
        np.testing.assert_allclose(getattr(added, part), getattr(whole, part), atol=1e-11)
    a, b = q.fit(data, bootstrap=20, seed=1), q.fit(parts, bootstrap=20, seed=1)
    np.testing.assert_allclose(a.variance(range(N)), b.variance(range(N)), atol=1e-10)
    np.testing.assert_allclose(
        a.standard_error(range(N), of="variance"), b.standard_error(range(N), of="variance"), rtol=1e-8
    )
    np.testing.assert_allclose(a.error_bars.replicates, b.error_bars.replicates, atol=1e-9)
    with pytest.raises(MismatchError):
        q.equations(data) + pr.LSTDQ(features, mu, lam=0.4, discount=0.95).equations(data)


def test_many_features_stay_sparse(monkeypatch):
    """The sparse sums and their iterative solution give the dense ones' estimates."""
    P, r = process()
    mu, pi = policies(12)
    data = log(P, r, mu, 200, seed=13)
    dense = pr.LSTDQ(pr.Tabular(N), pi).fit(data)
    monkeypatch.setattr(moment_equations, "DENSE_MOST", 10)
    q = pr.LSTDQ(pr.Tabular(N), pi)
    assert q.equations(data).sparse
    with pytest.warns(pr.errors.NoErrorBarsWarning):
        risk = q.fit(data)
    np.testing.assert_allclose(risk.variance(range(N)), dense.variance(range(N)), rtol=1e-6)
    assert risk.summary().mean == pytest.approx(dense.summary().mean, rel=1e-6)


def test_the_logging_policy_itself_agrees_with_lstd():
    """Target = log: LSTD of the same data, within the error of their difference."""
    P, r = process()
    mu, _ = policies(14)
    data = log(P, r, mu, 4000, seed=15)
    q, plain = (
        pr.LSTDQ(pr.Tabular(N), mu).fit(data),
        pr.LSTD(pr.Tabular(N), lam=0.0, variance="direct").fit(data),
    )
    for of in ("mean", "variance"):
        error = plain.standard_error(range(N), of)
        assert (np.abs(getattr(q, of)(range(N)) - getattr(plain, of)(range(N))) < 2 * error).all()
        assert (q.standard_error(range(N), of) < 1.3 * error).all()


def test_nothing_is_invented_for_actions_that_nobody_logged():
    """π is restricted to what was logged, and says so; where too much of it is gone, there is no answer."""
    P, r = process()
    mu, pi = policies(16)
    mu[:, 2] = 0.0
    mu /= mu.sum(axis=1, keepdims=True)
    data, x = log(P, r, mu, 500, seed=17), range(N)
    restricted = pi[:, :2] / pi[:, :2].sum(axis=1, keepdims=True)
    chain = pr.MarkovChain.from_mdp(empirical(data, actions=2), r[:, :2], restricted)
    few, many = (np.column_stack([restricted * (1 - gone), np.full(N, gone)]) for gone in (0.05, 0.4))
    q = pr.LSTDQ(pr.Tabular(N), few, variance="second-moment")
    with pytest.raises(pr.errors.UnvisitedError):
        q.solve(q.equations(data))
    with pytest.warns(UncoveredWarning, match=r"5\.0%"):
        risk = pr.LSTDQ(pr.Tabular(N), few).fit(data)
    np.testing.assert_allclose(risk.covered(x), 0.95)
    np.testing.assert_allclose(risk.mean(x), chain.mean(), atol=1e-9)
    np.testing.assert_allclose(risk.variance(x), chain.variance(), atol=1e-9)
    assert np.isnan(risk.action_mean(x, 2)).all()
    assert not np.isnan(risk.action_mean(x, 1)).any()
    summary = risk.summary([0])
    assert summary.covered == pytest.approx(1 - 0.05 * chain.occupancy(0).sum(), abs=1e-9)  # a step at a time
    assert any("no data behind it" in note for note in summary.notes)
    with pytest.warns(UncoveredWarning):
        risk = pr.LSTDQ(pr.Tabular(N), many).fit(data)
    assert np.isnan(risk.mean(x)).all()
    with pytest.raises(UncoveredError, match="never logged"):
        risk.summary()


def test_transitions_into_states_without_an_answer_are_dropped():
    """From state 0 action 0 leads to state 1, where the target's action was never logged, or to the end."""
    data = pr.Trajectories(
        np.array([0, 1, 2] + [0, 2] * 9), [1.0, 5.0] + [2.0] * 9, [2] + [1] * 9, [True] * 10,
        actions=[0, 0] + [0] * 9,
    )  # fmt: skip
    pi = [[1.0, 0.0], [0.0, 1.0]]
    with pytest.warns(UncoveredWarning, match="1 transition"):
        risk = pr.LSTDQ(pr.Tabular(2), pi).fit(data)
    assert risk.provenance.dropped == 1
    assert np.isnan(risk.mean([1]))[0]
    assert risk.covered([1]) == 0
    assert risk.mean([0]) == pytest.approx(2.0)  # of those that went on as the target could
    assert risk.summary([0]).covered == pytest.approx(1 - 1 / 9)
    with pytest.raises(UncoveredError):
        risk.summary([1])


def test_pairs_that_never_end_under_the_target_are_not_covered():
    """γ = 1: in state 1 the target's action was seen to stay, once; the other one ends."""
    data = pr.Trajectories(
        np.array([0, 1, 1, 2] + [0, 2] * 9), [1.0, 1.0, 1.0] + [1.0] * 9, [3] + [1] * 9, [True] * 10,
        actions=[0, 1, 0] + [0] * 9,
    )  # fmt: skip
    with pytest.warns(UncoveredWarning):
        risk = pr.LSTDQ(pr.Tabular(2), [[1.0, 0.0], [0.0, 1.0]]).fit(data)
    assert np.isnan(risk.mean([1]))[0]
    assert risk.mean([0]) == pytest.approx(1.0)


def test_linear_system():
    """x' = Fx + w with cost xᵀQx: quadratic features of state and action are exact."""
    gamma, Sigma = 0.9, np.diag([0.2, 0.1])
    A, B, K = np.array([[0.8, 0.3], [0.0, 0.7]]), np.array([[0.0], [1.0]]), np.array([[-0.1, -0.3]])
    Qx, R = np.diag([1.0, 0.5]), np.array([[0.3]])
    F, Q = A + B @ K, Qx + K.T @ R @ K
    P = sla.solve_discrete_lyapunov(np.sqrt(gamma) * F.T, Q)
    S = sla.solve_discrete_lyapunov(gamma * F.T, 4 * gamma**2 * F.T @ P @ Sigma @ P @ F)
    s = (2 * gamma**2 * np.trace(P @ Sigma @ P @ Sigma) + gamma**2 * np.trace(S @ Sigma)) / (1 - gamma**2)

    class Linear:
        def sample(self, states, seed):
            return states @ K.T

    rng = np.random.default_rng(18)
    T, episodes = 40, 200
    x = rng.normal(size=(episodes, 2)) * 2
    xs, us = [x], []
    for _ in range(T):
        us.append(x @ K.T + rng.normal(size=(episodes, 1)))
        x = x @ A.T + us[-1] @ B.T + rng.normal(size=(episodes, 2)) * np.sqrt(np.diag(Sigma))
        xs.append(x)
    states, actions = np.stack(xs, axis=1), np.stack(us, axis=1)
    cost = np.einsum("eti,ij,etj->et", states[:, :-1], Qx, states[:, :-1]) + (actions**2 @ R)[:, :, 0]
    data = pr.Trajectories(
        states.reshape(-1, 2), cost.ravel(), [T] * episodes, [False] * episodes,
        actions=actions.reshape(-1, 1),
    )  # fmt: skip
    phi = pr.ActionFeatures(pr.Polynomial(2, low=[-20] * 3, high=[20] * 3))
    risk = pr.LSTDQ(phi, Linear(), discount=gamma, draws=2).fit(data)
    at = np.array([[0.0, 0.0], [1.0, -1.0], [2.0, 1.0]])
    J = np.einsum("ni,ij,nj->n", at, P, at) + gamma * np.trace(P @ Sigma) / (1 - gamma)
    V = np.einsum("ni,ij,nj->n", at, S, at) + s
    assert (np.abs(risk.mean(at) - J) < 3 * risk.standard_error(at, "mean")).all()
    assert (np.abs(risk.variance(at) - V) < 3 * risk.standard_error(at, of="variance")).all()
    assert (risk.standard_error(at, of="variance") < 0.25 * V).all()


def test_sampled_actions_depend_on_the_state_alone():
    """The draws are the same in any order, company and process."""

    class Noisy:
        def sample(self, states, seed):
            return states[:, :1] + np.random.default_rng(seed).normal(size=(len(states), 1))

    target = Target.of(Noisy(), None, 16, 3)
    states = np.random.default_rng(0).normal(size=(5, 2))
    all_of_them, some = target.candidates(states), target.candidates(states[[3, 1]])
    assert np.array_equal(all_of_them[[3, 1]], some)
    assert not np.allclose(all_of_them, Target.of(Noisy(), None, 16, 4).candidates(states))


@pytest.mark.parametrize("a", [0.5, [[0], [1]], [0, 1, 0], [0.0, 1.0], 3, -1])
def test_an_action_that_is_none_is_refused(a):
    P, r = process()
    mu, pi = policies(1)
    q = pr.LSTDQ(pr.Tabular(N), pi).fit(log(P, r, mu, 300, seed=2))
    assert q.action_mean([0, 1], 1).shape == q.action_mean([0, 1], [0, 1]).shape == (2,)
    with pytest.raises(InvalidInputError, match="a must be"):
        q.action_mean([0, 1], a)


def mostly_left(states):
    """A policy that is a function."""
    return np.column_stack([np.full(len(states), 0.7), np.full((len(states), 2), 0.15)])


def test_saved_and_loaded(tmp_path):
    """A table comes back as it was; a function has to be given again."""
    P, r = process()
    mu, pi = policies(19)
    data = log(P, r, mu, 500, seed=20)
    risk = pr.LSTDQ(pr.Tabular(N), pi).fit(data)
    risk.save(tmp_path / "table.npz")
    again = pr.RiskFunction.load(tmp_path / "table.npz")
    np.testing.assert_array_equal(again.interval(range(N), of="std"), risk.interval(range(N), of="std"))
    np.testing.assert_array_equal(again.covered(range(N)), risk.covered(range(N)))
    risk = pr.LSTDQ(LINE, mostly_left, actions=3).fit(data)
    risk.save(tmp_path / "function.npz")
    with pytest.raises(InvalidInputError, match="policy must be given again"):
        pr.RiskFunction.load(tmp_path / "function.npz").mean([0])
    again = pr.RiskFunction.load(tmp_path / "function.npz", policy=mostly_left)
    np.testing.assert_array_equal(again.variance(range(N)), risk.variance(range(N)))
    with pytest.raises(MismatchError):
        pr.RiskFunction.load(tmp_path / "function.npz", policy=lambda x: mostly_left(x))


def test_bad_input():
    """What the caller got wrong is named."""
    P, r = process()
    mu, pi = policies(21)
    data = log(P, r, mu, 20, seed=22)
    bare = pr.Trajectories(data.states, data.rewards, data.lengths, data.terminated)
    with pytest.raises(InvalidInputError, match="data must hold the actions"):
        pr.LSTDQ(pr.Tabular(N), pi).fit(bare)
    with pytest.raises(InvalidInputError, match="must have rows of probabilities"):
        pr.LSTDQ(pr.Tabular(N), pi * 2)
    with pytest.raises(InvalidInputError, match="actions must be how many"):
        pr.LSTDQ(pr.Tabular(N), mostly_left)
    with pytest.raises(InvalidInputError, match="from 0 to 1"):
        pr.LSTDQ(pr.Tabular(N), pi[:, :2] / pi[:, :2].sum(axis=1, keepdims=True)).fit(data)
    with pytest.raises(InvalidInputError, match="whole numbers from 0 to 2"):
        pr.LSTDQ(pr.Tabular(N), pi[:3]).fit(data)
    with pytest.raises(InvalidInputError, match="block for each"):
        PolicyFeatures(ActionBlocks(pr.Tabular(N), 2), Target.of(pi, None, 0, 0))
    with pytest.raises(InvalidInputError, match="known to estimates of LSTDQ alone"):
        pr.LSTD(pr.Tabular(N)).fit(data).covered([0])
    with pytest.raises(InvalidInputError, match="score needs episodes of the policy"):
        pr.LSTDQ(LINE, pi).fit(data).score(data)


def test_the_constraint_makes_the_variance_positive():
    """A line for the second moment is negative at an end; with the demand it is not."""
    P, r = process()
    mu, pi = policies(23)
    data = log(P, r, mu, 200, seed=24)
    q = pr.LSTDQ(LINE, pi, variance="second-moment", nonnegative_at=range(N))
    assert (q.fit(data).variance(range(N)) >= -1e-9).all()
    q = pr.LSTDQ(LINE, pi, variance="second-moment", nonnegative_at="visited")
    assert (q.fit(data).variance(range(N)) >= -1e-9).all()


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_a_table_of_many_pairs_is_solved_as_one_of_states(monkeypatch, gamma):
    """The same weights, and error bars from draws that are those of the whole covariance, up to chance."""
    P, r = process()
    mu, pi = policies(25)
    mu[0, 2], pi[3, 1] = 0.0, 0.0  # a pair that was not logged, and one that is not needed
    mu[0] /= mu[0].sum()
    pi[3] /= pi[3].sum()
    data, x = log(P, r, mu, 800, seed=26), range(N)
    for variance in ("direct", "second-moment"):
        q = pr.LSTDQ(pr.Tabular(N), pi, discount=gamma, variance=variance, ridge=0.01)
        monkeypatch.setattr(action_estimator, "TABLE_FROM", 1000)
        with pytest.warns(UncoveredWarning):
            whole = q.fit(data)
        monkeypatch.setattr(action_estimator, "TABLE_FROM", 0)
        with pytest.warns(UncoveredWarning):
            drawn = q.fit(data, bootstrap=4000, seed=1)
        assert drawn.error_bars.mean is None
        np.testing.assert_allclose(drawn.w_mean, whole.w_mean, atol=1e-9)
        np.testing.assert_allclose(drawn.w_second, whole.w_second, atol=1e-8)
        for of in ("mean", "variance"):
            ratio = drawn.standard_error(x, of) / whole.standard_error(x, of)
            assert (np.abs(ratio - 1) < 4 / np.sqrt(2 * 4000)).all()


def test_a_fit_goes_on_where_it_was_killed(tmp_path):
    """With a policy that is a function, of which no file holds anything."""
    P, r = process()
    mu, _ = policies(27)
    data = log(P, r, mu, 100, seed=28)
    parts, q = [data[:40], data[40:70], data[70:]], pr.LSTDQ(LINE, mostly_left, actions=3)
    whole = q.fit_by(DurableReduce(parts, tmp_path / "a.npz", {}, resume=False))
    with pytest.raises(KeyboardInterrupt):
        q.fit_by(DurableReduce(Stops(parts, 2), tmp_path / "b.npz", {}, resume=False))
    again = q.fit_by(DurableReduce(parts, tmp_path / "b.npz", {}, resume=True))
    np.testing.assert_array_equal(again.variance(range(N)), whole.variance(range(N)))
    np.testing.assert_array_equal(again.error_bars.second, whole.error_bars.second)


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_intervals_cover(lam):
    """Nominal 95 % intervals, over 1,000 data sets, of a target that takes logged actions only."""
    P, r = process()
    mu, pi = policies(1)
    mu = (mu + 1 / ACTIONS) / 2
    chain = pr.MarkovChain.from_mdp(P, r, pi)
    J, V, q = chain.mean(), chain.variance(), pr.LSTDQ(pr.Tabular(N), pi, lam=lam)
    m, v = J.mean(), V.mean() + J.var()
    held = []
    for seed in range(1000):
        risk = q.fit(log(P, r, mu, 1000, seed=10_000 + seed))
        (low_J, high_J), (low_V, high_V) = risk.interval(range(N), "mean").T, risk.interval(range(N)).T
        s = risk.summary()
        over = s.mean.low < m < s.mean.high, s.variance.low < v < s.variance.high
        held.append(np.concatenate([(low_J < J) & (J < high_J), (low_V < V) & (V < high_V), over]))
    assert (np.abs(np.mean(held, axis=0) - 0.95) < 0.015 + 2 * np.sqrt(0.95 * 0.05 / 1000)).all()
    assert abs(np.mean(held) - 0.95) < 0.015


@pytest.mark.parametrize("many", [False, True])
def test_targets_on_one_log_are_compared_by_episode(monkeypatch, many):
    """The error of the difference is that over data sets, and smaller than of two logs; at states as well."""
    monkeypatch.setattr(action_estimator, "TABLE_FROM", 0 if many else 1000)
    P, r = process()
    mu, pi = policies(29)
    mu = (mu + 1 / ACTIONS) / 2
    near = 0.9 * pi + 0.1 / ACTIONS
    differences, errors = [], []
    for seed in range(40):
        data = log(P, r, mu, 300, seed=100 + seed)
        risks = {
            name: pr.LSTDQ(pr.Tabular(N), policy).fit(data, bootstrap=400, seed=seed)
            for name, policy in (("a", pi), ("b", near))
        }
        found = pr.compare(risks, criterion=pr.criteria.VarianceMeanAtLeast(-100), at=range(N), seed=0)
        sign = 1 if found.best == "a" else -1
        differences.append(sign * found.significance.difference)
        errors.append(found.significance.difference.standard_error)
        assert any("episode by episode" in note for note in found.notes)
    ratio = np.sqrt(np.mean(np.square(errors))) / np.std(differences)
    assert abs(ratio - 1) < 0.45  # of 40 data sets: 4 standard errors
    apart = pr.compare({**risks, "b": pr.LSTDQ(pr.Tabular(N), near).fit(data, bootstrap=400, seed=1000)})
    assert not any("episode by episode" in note for note in apart.notes)
    alone = [risk.summary().variance.standard_error for risk in risks.values()]
    assert errors[-1] < 0.5 * np.hypot(*alone)
    low, high = found.at.band.T
    assert (
        (high - low) / 2
        < 0.7 * np.hypot(*(risk.standard_error(range(N), of="variance") * 1.96 for risk in risks.values()))
    ).all()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("variance", ["direct", "second-moment"])
def test_a_summary_from_one_start_is_the_estimate_there(monkeypatch, many, variance):
    """Given as a start, or as the only one of the data: values and errors."""
    monkeypatch.setattr(action_estimator, "TABLE_FROM", 0 if many else 1000)
    P, r = process()
    mu, pi = policies(30)
    data = log(P, r, mu, 2000, seed=31)
    data = data[data.starts()[:, 0] == 2]
    risk = pr.LSTDQ(pr.Tabular(N), pi, variance=variance).fit(data)
    for summary in (risk.summary([2]), risk.summary()):
        for of in ("mean", "variance"):
            estimate = getattr(summary, of)
            assert estimate == pytest.approx(getattr(risk, of)([2])[0], rel=1e-9)
            assert estimate.standard_error == pytest.approx(risk.standard_error([2], of)[0], rel=1e-5)


class Wavering:
    """Actions that are standard normal ones everywhere."""

    def sample(self, states, seed):
        return np.random.default_rng(seed).normal(size=(len(states), 1))


@pytest.mark.parametrize("variance", ["direct", "second-moment"])
def test_the_error_of_sampled_actions_is_in_the_standard_errors(variance):
    """One step of reward a + a² from one state, without noise: all of the error is that of the draws."""
    a = np.linspace(-3, 3, 400)[:, None]
    data = pr.Trajectories(
        np.zeros((800, 1)), (a + a**2)[:, 0], np.ones(400, int), np.ones(400, bool), actions=a
    )
    phi = pr.ActionFeatures(pr.Polynomial(4, low=[-3], high=[3], dims=[1]))
    fits = [pr.LSTDQ(phi, Wavering(), seed=seed, variance=variance).fit(data) for seed in range(150)]
    for of, truth in (("mean", 1.0), ("variance", 3.0)):
        found = np.array([getattr(fit, of)([[0.0]])[0] for fit in fits])
        errors = np.array([fit.standard_error([[0.0]], of)[0] for fit in fits])
        z = np.sqrt(len(fits)) * (found.mean() - truth) / found.std()
        assert abs(z) < 3.5
        assert np.sqrt(np.mean(errors**2)) / found.std() == pytest.approx(1.0, abs=0.25)
        if of == "mean":  # 64 squares of normal actions are too few for the coverage of the variance, .82
            assert np.mean(np.abs(found - truth) < 1.96 * errors) > 0.9
