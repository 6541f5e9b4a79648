"""What a chain answers: a log as a chain, passages, covariances, discounts that depend on the state."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import policyrisk as pr
from policyrisk import criteria
from policyrisk.errors import GivenUpWarning, ImproperPolicyError, InvalidInputError, MismatchError
from policyrisk.markov import log

# a log as a chain


def random_log(seed, n=6, actions=None, cut=0.0, end=0.2, episodes=60):
    """Episodes of a random chain, some cut off; rewards are few numbers, so that transitions repeat."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(n), size=(actions or 1, n)) * (1 - end)
    states, rewards, lengths, terminated, taken = [], [], [], [], []
    for _ in range(episodes):
        x, steps, limit = int(rng.integers(n)), 0, rng.integers(1, 8) if rng.random() < cut else 10**6
        while True:
            a = int(rng.integers(actions or 1))
            y = int(rng.choice(n + 1, p=np.append(P[a, x], end)))
            states.append(x)
            rewards.append(float(rng.integers(-2, 3)) / 4 + a)
            taken.append(a)
            steps += 1
            x = y
            if x == n or steps == limit:
                break
        states.append(x)
        lengths.append(steps)
        terminated.append(x == n)
    return pr.Trajectories(
        np.array(states)[:, None], rewards, lengths, terminated, actions=None if actions is None else taken
    )


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("cut", [0.0, 0.5])
def test_mean_and_variance_of_a_log_are_those_of_lstd(discount, cut):
    for seed in range(50):
        data = random_log(seed, cut=cut, episodes=15 + seed)
        chain = pr.MarkovChain.from_log(data, pr.Tabular(6), discount=discount)
        risk = pr.LSTD(pr.Tabular(6), lam=0.0, discount=discount, variance="direct").fit(data)
        states = np.flatnonzero(chain.known)
        assert states.size >= 4
        np.testing.assert_allclose(chain.mean()[states], risk.mean(states), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(chain.variance()[states], risk.variance(states), rtol=1e-10, atol=1e-10)
        visits = np.bincount(data.states[data.visited_rows].ravel(), minlength=6)
        np.testing.assert_array_equal(chain.log.visits, visits)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_mean_and_variance_of_a_target_are_those_of_lstdq(discount):
    for seed in range(100):
        rng = np.random.default_rng(1000 + seed)
        data = random_log(seed, n=5, actions=3, cut=0.3, episodes=25 + seed)
        policy = rng.dirichlet(np.ones(3), size=5)
        policy[rng.random(5) < 0.3] = np.eye(3)[1]
        chain = pr.MarkovChain.from_log(data, pr.Tabular(5), policy, discount)
        risk = pr.LSTDQ(pr.Tabular(5), policy, discount=discount).fit(data)
        states = np.flatnonzero(chain.known & ~np.isnan(risk.mean(np.arange(5))))
        assert states.size >= 3
        np.testing.assert_allclose(chain.mean()[states], risk.mean(states), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(chain.variance()[states], risk.variance(states), rtol=1e-10, atol=1e-10)


def test_cells_have_an_answer_where_lstd_has_one():
    seen = 0
    for seed in range(40):
        data = random_log(seed, n=8, cut=0.6, episodes=8, end=0.1)
        chain = pr.MarkovChain.from_log(data, pr.Tabular(8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GivenUpWarning)
            risk = pr.LSTD(pr.Tabular(8), lam=0.0).fit(data)
        np.testing.assert_array_equal(chain.known, risk.visited(np.arange(8)))
        seen += np.count_nonzero(~chain.known)
    assert seen > 10


@pytest.mark.parametrize("apart", [0, 1 << 20])
def test_counts_of_a_stream_add(apart, monkeypatch):
    monkeypatch.setattr(log, "_MERGED", apart)
    data = random_log(1, actions=2, cut=0.3, episodes=90)
    policy = np.full((6, 2), 0.5)
    whole = pr.MarkovChain.from_log(data, pr.Tabular(6), policy)
    parts = pr.MarkovChain.from_log([data[:7], data[7:50], data[50:]], pr.Tabular(6), policy)
    np.testing.assert_allclose(parts.mean(), whole.mean(), rtol=1e-13)
    assert parts.branches.successor.size == whole.branches.successor.size < data.transitions


def test_cells_without_an_end_have_no_answer():
    """0 → 1 → end twice; 2 → 3 is cut off in 3; 4 leads to itself until it is cut off; 5 was never seen."""
    data = pr.Trajectories(
        [[0], [1], [9], [0], [1], [9], [2], [3], [4], [4], [4]],
        [1.0, 2.0, 1.0, 4.0, 5.0, 7.0, 7.0],
        [2, 2, 1, 2],
        [True, True, False, False],
    )
    chain = pr.MarkovChain.from_log(data, pr.Tabular(6))
    np.testing.assert_array_equal(chain.mean(), [4.0, 3.0, *[np.nan] * 4])
    np.testing.assert_array_equal(chain.variance()[:3], [1.0, 1.0, np.nan])
    np.testing.assert_array_equal(chain.quantile(0.5)[:3], [3.0, 2.0, np.nan])
    np.testing.assert_array_equal(chain.moments(3)[3, 2:], [np.nan] * 4)
    assert chain.log.left_out == 3
    assert chain.log.dead.tolist() == [False, False, True, True, True, True]
    with pytest.raises(InvalidInputError, match="start must be a state with an answer, got states 4"):
        chain.distribution(4)
    # With a discount below 1 what goes on for ever has a value: 7 + 7γ + …
    assert pr.MarkovChain.from_log(data, discount=0.9).mean()[4] == pytest.approx(70.0)
    with pytest.raises(ImproperPolicyError, match="data must lead to the end"):
        pr.MarkovChain.from_log(data[2:])


def test_actions_that_were_never_logged_are_left_out_and_counted():
    data = pr.Trajectories(
        [[0], [1], [0], [1], [0], [1]], [1.0, 3.0, 8.0], [1] * 3, [True] * 3, actions=[0, 0, 1]
    )
    chain = pr.MarkovChain.from_log(data, policy=[[0.25, 0.5, 0.25]])
    assert chain.mean()[0] == pytest.approx((2.0 * 0.25 + 8.0 * 0.5) / 0.75)
    assert chain.log.uncovered[0] == pytest.approx(0.25)
    with pytest.raises(ImproperPolicyError):
        pr.MarkovChain.from_log(data, policy=[[0.0, 0.0, 1.0]])
    with pytest.raises(InvalidInputError, match="data must hold actions from 0 to 0"):
        pr.MarkovChain.from_log(data, policy=[[1.0]])
    with pytest.raises(InvalidInputError, match="data must hold whole-numbered actions"):
        pr.MarkovChain.from_log(random_log(0), policy=np.ones((6, 1)))


def test_an_action_keeps_its_probability_where_some_of_its_transitions_are_left_out():
    """One of 41 transitions by action 0 is cut off where nothing is known: its share goes to the other 40."""
    data = pr.Trajectories(
        [[0], [1]] * 80 + [[0], [5]],
        [1.0, 3.0] * 40 + [100.0],
        [1] * 81,
        [True] * 80 + [False],
        actions=[0, 1] * 40 + [0],
    )
    chain = pr.MarkovChain.from_log(data, policy=[[0.5, 0.5]] * 6)
    assert chain.mean()[0] == pytest.approx(2.0, rel=1e-13)
    assert chain.log.left_out == 1
    assert chain.log.lost[0] == pytest.approx(1 / 80)


def test_a_target_that_often_does_what_was_never_logged_has_no_answer():
    """Episodes of 1 or of 4 steps by action 0, where the target takes another every other time."""
    for steps, uncovered in ((1, 0.5), (4, 2.0)):
        states, rewards = [[0]] * steps + [[1]], np.ones(steps)
        data = pr.Trajectories(states, rewards, [steps], [True], actions=[0] * steps)
        chain = pr.MarkovChain.from_log(data, policy=[[0.5, 0.5]])
        assert chain.log.uncovered[0] == pytest.approx(uncovered)
        np.testing.assert_array_equal(chain.mean(), [1.0 if steps == 1 else np.nan])


def test_a_long_log_has_the_tails_of_the_chain():
    walk = pr.domains.walk(8, 0.7)
    data = walk.sample(0, episodes=20_000, seed=3)
    chain = pr.MarkovChain.from_log(data)
    np.testing.assert_allclose(chain.cvar(0.05), walk.cvar(0.05), rtol=0.04)
    assert chain.quantile(0.05)[0] == pytest.approx(walk.quantile(0.05)[0], abs=1.0)


def test_cells_may_be_tiles_or_any_function_and_the_policy_a_function_of_states():
    rng = np.random.default_rng(0)
    states, actions = rng.random((400, 2)), rng.integers(2, size=200)
    rewards = np.where(actions == 1, 3.0, 1.0)
    data = pr.Trajectories(states, rewards, [1] * 200, [True] * 200, actions=actions)
    tiles = pr.TileCoding([0, 0], [1, 1], bins=[2, 2])
    policy = lambda x: np.where(x[:, :1] < 0.5, [[1.0, 0.0]], [[0.0, 1.0]])  # noqa: E731
    for cells in (tiles, lambda x: tiles.active(x)[:, 0]):
        chain = pr.MarkovChain.from_log(data, cells, policy)
        low = tiles.active([[0.2, 0.2], [0.2, 0.8]])[:, 0]
        np.testing.assert_allclose(chain.mean()[low], 1.0)
        np.testing.assert_allclose(np.delete(chain.mean(), low), 3.0)
    with pytest.raises(InvalidInputError, match="got 2 tilings"):
        pr.MarkovChain.from_log(data, pr.TileCoding([0, 0], [1, 1], bins=[2, 2], tilings=2))
    with pytest.raises(InvalidInputError, match="cells must be whole numbers from 0 on"):
        pr.MarkovChain.from_log(data, lambda x: x[:, 0])
    with pytest.raises(InvalidInputError, match="cells must give one whole number for each of"):
        pr.MarkovChain.from_log(data)
    with pytest.raises(InvalidInputError, match="cells must be a Tabular"):
        pr.MarkovChain.from_log(data, 7)


@pytest.mark.parametrize("last", [10_000_000, 2**62, 1e300])
def test_cells_without_number_are_refused_before_they_fill_the_memory(last):
    data = random_log(0)
    for cells in (lambda x: np.full(len(x), last), pr.Tabular(2**31 - 1)):
        with pytest.raises(InvalidInputError, match="cells must be at most 10,000,000"):
            pr.MarkovChain.from_log(data, cells)


# passages


def ruin(N, p=0.5):
    """A game on 0, …, N that 0 and N end; reward 1 a round."""
    P = np.zeros((N + 1, N + 1))
    k = np.arange(1, N)
    P[k, k + 1], P[k, k - 1] = p, 1 - p
    r = np.ones(N + 1)
    r[[0, N]] = 0.0
    return pr.MarkovChain(P, r)


@pytest.mark.parametrize("N", [7, 30])
def test_ruin_is_won_with_probability_k_over_n_and_then_lasts_so_long(N):
    chain, k = ruin(N), np.arange(N + 1)
    np.testing.assert_allclose(chain.reach(N), k / N, atol=1e-14)
    np.testing.assert_allclose(chain.reach([0]), 1 - k / N, atol=1e-14)
    mask = np.zeros(N + 1, dtype=bool)
    mask[N] = True
    won = chain.given(mask)
    np.testing.assert_allclose(won.mean()[1:], (N**2 - k[1:] ** 2) / 3, atol=1e-10)
    assert np.isnan(won.mean()[0])
    # The law of total variance over the two ways to end.
    lost = chain.given(0)
    h, inner = (k / N)[1:-1], slice(1, -1)
    mean = h * won.mean()[inner] + (1 - h) * lost.mean()[inner]
    second = h * won.second_moment()[inner] + (1 - h) * lost.second_moment()[inner]
    np.testing.assert_allclose(mean, chain.mean()[inner], rtol=1e-12)
    np.testing.assert_allclose(second, chain.second_moment()[inner], rtol=1e-11)


def test_quantiles_given_success_are_those_of_the_successful_episodes():
    chain = ruin(6, 0.45)
    won = chain.given(6).distribution(2)
    data = chain.sample(2, 100_000, seed=1)
    last = data.states[data.final_rows - 1].ravel()
    returns = data.returns()[last == 6]
    assert returns.size / 100_000 == pytest.approx(chain.reach(6)[2], abs=0.005)
    assert np.abs([won.cdf(z) - (returns <= z).mean() for z in range(4, 40)]).max() < 0.01


def test_reach_avoids_and_knows_the_end():
    chain = ruin(6)
    np.testing.assert_allclose(chain.reach(4, avoid=2)[[2, 3, 4, 5]], [0, 0.5, 1, 0.5])
    np.testing.assert_allclose(chain.reach(chain.n), 1.0)  # every game ends
    np.testing.assert_allclose(chain.reach(chain.n, avoid=6)[1:6], 1 - np.arange(1, 6) / 6)
    endless = pr.MarkovChain([[0.0, 0.5], [0.0, 1.0]], [1.0, 0.0], discount=0.9)
    np.testing.assert_allclose(endless.reach(2), [0.5, 0.0])
    with pytest.raises(InvalidInputError, match="goal must hold states from 0 to 6, 7 for the end"):
        chain.reach(8)
    with pytest.raises(InvalidInputError, match="avoid must not hold states of the goal, got 3"):
        chain.reach([3, 4], avoid=[3])
    with pytest.raises(InvalidInputError, match="goal must hold states that end the episode"):
        chain.given(3)


# rewards of two kinds


def futures(P, r, other, x, depth):
    """Every path from x with its probability and its two returns."""
    stop = 1 - P[x].sum()
    if stop > 1e-12:
        yield stop, r[x], other[x]
    for y in np.flatnonzero(P[x]) if depth else []:
        for p, b, c in futures(P, r, other, y, depth - 1):
            yield P[x, y] * p, r[x] + b, other[x] + c


def test_covariance_is_that_of_all_paths():
    rng = np.random.default_rng(5)
    P = np.triu(rng.dirichlet(np.ones(5), 5), k=1)  # every path ends within five steps
    r, other = rng.normal(size=(2, 5))
    found = pr.MarkovChain(P, r).covariance(other)
    for x in range(5):
        p, b, c = np.array(list(futures(P, r, other, x, 6))).T
        assert p.sum() == pytest.approx(1.0)
        assert found[x] == pytest.approx(p @ (b * c) - (p @ b) * (p @ c), abs=1e-12)


@pytest.mark.parametrize("discount", [1.0, 0.8, [0.5, 1.0, 0.9, 0.7]])
def test_covariance_polarises_the_variance(discount):
    rng = np.random.default_rng(6)
    P = rng.dirichlet(np.ones(5), 4)[:, :4]
    r, other = rng.normal(size=(2, 4, 4))
    ends = rng.normal(size=(2, 4))
    sums = [
        pr.MarkovChain(P, r + s * other, discount, terminal_rewards=ends[0] + s * ends[1]).variance()
        for s in (1, -1)
    ]
    chain = pr.MarkovChain(P, r, discount, terminal_rewards=ends[0])
    expected = (sums[0] - sums[1]) / 4
    np.testing.assert_allclose(chain.covariance(other, terminal_rewards=ends[1]), expected, rtol=1e-11)
    np.testing.assert_allclose(chain.covariance(sp.csr_array(other), ends[1]), expected, rtol=1e-11)
    np.testing.assert_allclose(chain.covariance(r, ends[0]), chain.variance(), rtol=1e-12)


@pytest.mark.parametrize("policy", [None, [[0.5, 0.5]] * 4 + [[0.9, 0.1]] * 2])
def test_a_log_of_several_kinds_of_rewards_answers_for_their_sums(policy):
    """Profit less k times the cost, against a log that was read with this reward."""
    rng = np.random.default_rng(1)
    data = random_log(2, actions=2, cut=0.2)
    others = rng.integers(-1, 2, size=(data.transitions, 2)).astype(float)
    log = replace(data, other_rewards=others)
    for given in (log, [log[:20], log[20:]]):
        chain = pr.MarkovChain.from_log(given, pr.Tabular(6), policy)
        singles = [chain.weighing(np.eye(3)[k]) for k in range(3)]
        for k in range(3):
            np.testing.assert_allclose(
                chain.covariance(k),
                (
                    chain.weighing(np.eye(3)[0] + np.eye(3)[k]).variance()
                    - chain.weighing(np.eye(3)[0] - np.eye(3)[k]).variance()
                )
                / 4,
                atol=1e-10,
            )
            stds = chain.std() * singles[k].std()
            np.testing.assert_allclose(chain.correlation(k) * stds, chain.covariance(k), atol=1e-12)
        weights = np.array([1.0, -0.5, 2.0])
        other = replace(data, rewards=np.column_stack([data.rewards, others]) @ weights)
        expected = pr.MarkovChain.from_log(other, pr.Tabular(6), policy)
        both = chain.weighing(weights)
        np.testing.assert_allclose(both.mean(), expected.mean(), rtol=1e-11)
        np.testing.assert_allclose(both.variance(), expected.variance(), rtol=1e-11)
        np.testing.assert_allclose(both.quantile(0.1), expected.quantile(0.1))
        np.testing.assert_array_equal(both.log.visits, chain.log.visits)
    with pytest.raises(
        InvalidInputError, match="other_rewards must be one of 3 kinds of rewards, from 0, got 3"
    ):
        chain.covariance(3)
    with pytest.raises(
        MismatchError, match="data must have as many kinds of rewards in all parts, got 3 and 1"
    ):
        pr.MarkovChain.from_log([log, data])


def test_the_covariance_of_a_log_is_that_of_its_chain():
    """Up and down steps of a walk that were counted, against all paths of the exact chain."""
    chain = ruin(6, 0.45)
    up = np.eye(7, k=1)
    exact = pr.MarkovChain(chain.P, up).covariance(up.T)
    data = chain.sample(2, 40_000, seed=3)
    steps = np.diff(data.states[:, 0])[data.visited_rows]
    inside = (data.states[data.visited_rows, 0] % 6 > 0).astype(float)  # the step into the end counts nothing
    counted = replace(data, rewards=inside * (steps > 0), other_rewards=(inside * (steps < 0))[:, None])
    found = pr.MarkovChain.from_log(counted)
    np.testing.assert_allclose(found.covariance(1)[1:6], exact[1:6], atol=0.15 * np.abs(exact).max())


# discounts that depend on the state

COMPLEX = {  # Sherstan and others' process: weight, reward, successor
    0: [(1, -0.5, 1)],
    1: [(1, -1, 2), (1, 1, 2), (1, -0.5, 3), (1, 0.5, 3), (1, 0, 0)],
    2: [(1, 0, 0), (8, 1, 4), (1, 3, 4)],
    3: [(2, 1, 1), (3, 1, 4), (5, 2, 4)],
    4: [(5, 0, 2), (5, 0, 0)],
}


def test_the_complex_process_of_sherstan():
    """Printed means, and the variances that were computed independently."""
    P, r, policy = np.zeros((5, 5, 5)), np.zeros((5, 5, 5)), np.zeros((5, 5))
    for x, ways in COMPLEX.items():
        total = sum(weight for weight, *_ in ways)
        for a, (weight, reward, y) in enumerate(ways):
            policy[x, a], P[a, x, y], r[a, x, y] = weight / total, 1.0, reward
        for a in range(len(ways), 5):
            P[a, x, 0] = 1.0
    gamma = np.array([0.5, 0.4, 0.1, 1.0, 0.0])
    chain = pr.MarkovChain.from_mdp(P, r, policy, gamma)
    np.testing.assert_allclose(chain.mean(), [-0.244176, 0.63956, 1.087791, 1.551165, -0.006654], atol=6e-7)
    variances = [0.18740790, 1.17129939, 0.52288605, 0.24678813, 0.03936533]
    np.testing.assert_allclose(chain.variance(), variances, atol=6e-9)
    same = pr.MDP(P, r, gamma).chain(policy)
    np.testing.assert_array_equal(same.mean(), chain.mean())


def test_moments_with_a_discount_by_state_are_those_of_samples():
    rng = np.random.default_rng(2)
    P, gamma = rng.dirichlet(np.ones(4), 3)[:, :3], np.array([0.6, 1.0, 0.9])
    chain = pr.MarkovChain(P, rng.normal(size=(3, 3)), gamma, terminal_rewards=rng.normal(size=3))
    data = chain.sample(1, 200_000, seed=4)
    factor = np.append(gamma, 1.0)[data.states.ravel()]
    returns = np.zeros(len(data))
    at, weight = data.offsets[:-1].copy(), np.ones(len(data))
    for t in range(int(data.lengths.max())):
        going = data.lengths > t
        returns[going] += weight[going] * data.rewards[at[going]]
        rows = at + np.arange(len(data)) + 1
        weight[going] *= factor[rows[going]]
        at[going] += 1
    mu = chain.moments(4)[:, 1]
    error = np.sqrt(mu[2] / len(returns))
    assert abs(returns.mean() - chain.mean()[1]) < 4 * error
    assert abs(returns.var() - mu[2]) < 4 * np.sqrt((mu[4] - mu[2] ** 2) / len(returns))
    assert ((returns - returns.mean()) ** 3).mean() == pytest.approx(mu[3], abs=0.05 * mu[2] ** 1.5)


def test_one_discount_for_all_states_may_be_given_by_state():
    plain, by_state = (pr.domains.walk(9, discount=d) for d in (0.9, np.full(9, 0.9)))
    np.testing.assert_allclose(by_state.moments(4), plain.moments(4), rtol=1e-12)
    assert repr(by_state) == "MarkovChain(9 states, 17 transitions, discount=by state)"


def test_gradient_with_a_discount_by_state():
    rng = np.random.default_rng(8)
    P = rng.dirichlet(np.ones(4), size=(2, 4)) * 0.9
    mdp = pr.MDP(P, rng.normal(size=(2, 4, 4)), rng.uniform(0.5, 1.0, 4))
    policy, h = rng.dirichlet(np.ones(2), 4), 1e-5
    found = mdp.gradient(policy, 2)

    def at(moved):
        chain = mdp.chain(moved)
        return np.array([chain.mean()[2], chain.variance()[2]])

    for x in range(4):
        step = np.zeros((4, 2))
        step[x] = h, -h
        slope = (at(policy + step) - at(policy - step)) / (2 * h)
        expected = [g[x, 0] - g[x, 1] for g in (found.by_mean, found.by_variance)]
        np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-8)
    assert mdp.improve(criteria.MeanMinusVariance(0.1), 2).value >= found.mean - 0.1 * found.variance


def test_what_a_discount_by_state_cannot_do_is_refused_by_name():
    chain = pr.MarkovChain([[0.5]], [1.0], [0.9])
    phi = pr.Tabular(1)
    for ask in (
        lambda: chain.distribution(0),
        lambda: chain.quantile(0.05),
        lambda: chain.diagnose(phi),
        lambda: pr.LSTD(phi, discount=0.9).fit_exact(chain, 0),
        lambda: pr.monte_carlo(chain, None, [[0]], episodes=2, discount=0.9),
    ):
        with pytest.raises(InvalidInputError, match="needs one discount for all states"):
            ask()
    with pytest.raises(InvalidInputError, match=r"discount must be in \[0, 1\] for every state, got 1.5"):
        pr.MarkovChain([[0.5]], [1.0], [1.5])
    with pytest.raises(ImproperPolicyError):
        pr.MarkovChain([[1.0, 0.0], [0.5, 0.0]], [1.0, 1.0], [1.0, 0.5])
    with pytest.raises(InvalidInputError, match="discount must be 1 for policies that see the reward so far"):
        pr.MDP([[[0.5]]], [1.0], [0.9]).with_reward_so_far()


def test_moments_of_zeilbergers_board():
    """30 squares, from 1, a die of 1 or 2; 30 or more ends. Four published moments."""
    P = 0.5 * (np.eye(29, k=1) + np.eye(29, k=2))
    chain = pr.MarkovChain(P, np.ones(29))
    mu = chain.moments(4)[:, 0]
    assert chain.mean()[0] == pytest.approx(19.55555556, abs=5e-9)
    assert mu[2] == pytest.approx(2.172839498, abs=5e-9)
    assert mu[3] / mu[2] ** 1.5 == pytest.approx(0.2124284834, abs=5e-9)
    assert mu[4] / mu[2] ** 2 == pytest.approx(2.976755920, abs=5e-9)


def test_other_rewards_of_a_log_are_known_where_the_log_is():
    """From state 2 the log leads to no end: no answer for weighed rewards either, nor in other units."""
    steps = [[0], [1], [3], [2], [2]]
    data = pr.Trajectories(steps, [1e80, 2e80, 1e80], [2, 1], [True, False], other_rewards=np.ones((3, 1)))
    chain = pr.MarkovChain.from_log(data)
    weighed = chain.weighing([1.0, 2e80])
    np.testing.assert_allclose(weighed.mean()[:2], [7e80, 4e80], rtol=1e-15)
    assert np.isnan(weighed.mean()[2])
    assert chain.distribution(0).mean == pytest.approx(3e80)
    with pytest.raises(InvalidInputError, match="start must be a state with an answer"):
        chain.distribution(2)
