"""Policies improved from episodes: the sampled gradient is unbiased, and what it leads to is better."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from scipy import stats

import policyrisk as pr
from policyrisk import criteria
from policyrisk.control import improve
from policyrisk.control.actor_critic import completed_returns, step_factors
from policyrisk.control.tasks import TimedEnvironment
from policyrisk.control.trials import GroupedReturns
from policyrisk.errors import GivenUpWarning, InvalidInputError, MismatchError, SolverError

PORTFOLIO = pr.domains.Portfolio()
PHI = PORTFOLIO.features()
CRITIC = pr.LSTD(pr.Joint([pr.Polynomial(2, [0], [50], dims=[0]), PHI]), variance="direct")


def some_policy(seed=0):
    return pr.SoftmaxPolicy(PHI, 2, np.random.default_rng(seed).normal(size=(32, 2)))


# --- softmax policies ------------------------------------------------------------------------------


def test_probabilities_and_score_by_hand():
    policy = some_policy()
    states = PORTFOLIO.states[[3, 700, 1500, 3]]
    logits = policy.weights[PHI.active(states).ravel()]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert policy(states) == pytest.approx(expected)
    assert np.array_equal(policy.probabilities(states), policy(states))
    actions, factors = np.array([0, 1, 1, 1]), np.array([0.3, -2.0, 1.0, 0.7])
    h, gradient = 1e-6, np.empty(64)
    for i in range(64):
        up, down = (policy.with_parameters(policy.parameters + sign * h * np.eye(64)[i]) for sign in (1, -1))
        rows = np.arange(4)
        change = np.log(up(states)[rows, actions]) - np.log(down(states)[rows, actions])
        gradient[i] = factors @ change / (2 * h)
    assert policy.log_gradient(states, actions, factors) == pytest.approx(gradient, abs=1e-8)


@pytest.mark.parametrize("tilings", [1, 3])
def test_compiled_code_follows_the_probabilities(tilings):
    """Tiles of the portfolio's state; the compiled choice beside the same policy as a function."""
    rng = np.random.default_rng(tilings)
    phi = pr.TileCoding([0, 0, 0], [50, 1, 2], bins=[3, 2, 2], tilings=tilings, dims=[0, 2, 1])
    policy = pr.SoftmaxPolicy(phi, 2, rng.normal(size=(phi.size, 2)))
    starts = np.repeat(PORTFOLIO.states[rng.integers(1600, size=40)], 500, axis=0)
    data = PORTFOLIO.rollout(policy, starts, seed=5, max_steps=1)
    invested = data.actions.reshape(40, 500).mean(axis=1)
    p = policy(starts[::500])[:, 1]
    assert np.abs((invested - p) / np.sqrt(p * (1 - p) / 500)).max() < 4.5
    assert data.propensities == pytest.approx(policy(starts)[np.arange(20_000), data.actions])


def test_compiled_code_follows_the_probabilities_on_radial_bases():
    rng = np.random.default_rng(4)
    phi = pr.RadialBasis.grid([0, 0], [1, 1], shape=(4, 3), normalised=True, truncate=2, dims=[1, 0])
    policy = pr.SoftmaxPolicy(phi, 3, rng.normal(scale=2.0, size=(phi.size, 3)))
    pinball = pr.domains.Pinball("empty")
    starts = np.repeat(pinball.sample_starts(20, seed=1), 500, axis=0)
    chosen = pinball.rollout(policy, starts, seed=2, max_steps=1).actions.reshape(20, 500)
    p = policy(starts[::500])
    seen = np.stack([(chosen == a).mean(axis=1) for a in range(3)], axis=1)
    assert np.abs((seen - p) / np.sqrt(p * (1 - p) / 500)).max() < 4.5


def test_certain_actions_stay_certain():
    policy = pr.SoftmaxPolicy(PHI, 2, np.tile([-800.0, 800.0], (32, 1)))
    data = PORTFOLIO.rollout(policy, PORTFOLIO.sample_starts(50), seed=0)
    assert (data.actions == 1).all()


def test_other_features_are_not_compiled():
    policy = pr.SoftmaxPolicy(pr.Polynomial(1, [0], [50], dims=[0]), 2)
    assert not policy.compilable
    with pytest.raises(InvalidInputError, match=r"pass policy\.__call__"):
        PORTFOLIO.rollout(policy, PORTFOLIO.sample_starts(2))
    data = PORTFOLIO.rollout(policy.__call__, PORTFOLIO.sample_starts(200), seed=0)
    assert abs(data.actions.mean() - 0.5) < 4 * 0.5 / np.sqrt(10_000)
    assert (data.propensities == 0.5).all()


def test_saved_and_loaded(tmp_path):
    policy = some_policy()
    policy.save(tmp_path / "policy.npz")
    again = pr.SoftmaxPolicy.load(tmp_path / "policy.npz")
    assert np.array_equal(again(PORTFOLIO.states), policy(PORTFOLIO.states))


# --- Gaussian policies -----------------------------------------------------------------------------


def test_gaussian_score_by_finite_differences():
    rng = np.random.default_rng(1)
    phi = pr.Polynomial(1, [0, 0], [1, 1])
    policy = pr.GaussianPolicy(phi, 2, rng.normal(size=(3, 2)), [-0.3, 0.4])
    states, actions, factors = rng.random((5, 2)), rng.normal(size=(5, 2)), rng.normal(size=5)

    def log_density(parameters):
        moved = policy.with_parameters(parameters)
        return stats.norm.logpdf(actions, moved(states), np.exp(moved.log_std)).sum(axis=1) @ factors

    h, basis = 1e-6, np.eye(8)
    slopes = [
        (log_density(policy.parameters + h * e) - log_density(policy.parameters - h * e)) / (2 * h)
        for e in basis
    ]
    assert policy.log_gradient(states, actions, factors) == pytest.approx(slopes, abs=1e-7)


def test_gaussian_samples_have_its_mean_and_std(tmp_path):
    policy = pr.GaussianPolicy(pr.Polynomial(1, [0], [1]), 1, [[1.0], [2.0]], [np.log(0.5)])
    drawn = policy.sample(np.full((20_000, 1), 0.25), seed=0)
    assert abs(drawn.mean() - 1.5) < 4 * 0.5 / np.sqrt(20_000)
    assert drawn.std() == pytest.approx(0.5, rel=4 / np.sqrt(40_000))
    policy.save(tmp_path / "policy.npz")
    again = pr.GaussianPolicy.load(tmp_path / "policy.npz")
    assert np.array_equal(again.parameters, policy.parameters)


class Stake(gym.Env):
    """One step: a stake a earns a(1 + ε), ε ~ N(0, 1); mean a, variance a²."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float64)
    action_space = gym.spaces.Box(-10.0, 10.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action):
        stake = float(action[0])
        return np.ones(1), stake * (1.0 + self.np_random.standard_normal()), True, False, {}


def test_continuous_actions_find_the_best_stake():
    """m − v/2 = a − a²/2 less what the policy's own randomness costs: a = 1 with σ → 0."""
    constant = pr.Polynomial(0, [0], [1])
    start = pr.GaussianPolicy(constant, 1, [[0.2]], [np.log(0.4)])
    search = pr.ActorCritic(
        start, criteria.MeanMinusVariance(0.5), pr.LSTD(constant), episodes=60, iterations=40, step=0.15
    )
    better = search.fit(Stake(), seed=0)
    assert better.policy.weights[0, 0] == pytest.approx(1.0, abs=0.2)
    assert better.policy.log_std[0] < np.log(0.4) - 0.5
    assert better.history[-1, 4] > better.history[0, 4]


# --- the gradient ----------------------------------------------------------------------------------


def exact_critic(policy, states):
    """J and M of the exact process at states of the portfolio; anything where an episode has ended."""
    chain = PORTFOLIO.mdp.chain(policy(PORTFOLIO.states))
    tiles = PORTFOLIO.features(period=True)
    index = np.empty(1600, dtype=int)
    index[tiles.active(PORTFOLIO.states).ravel()] = np.arange(1600)
    at = index[tiles.active(states).ravel()]
    return chain.mean()[at], chain.second_moment()[at]


def others(returns):
    return (returns.sum() - returns) / (len(returns) - 1)


def gradients_by_episode(policy, data, J, M, by_mean, by_variance, lam=0.0):
    """(episodes, parameters): the gradient that ActorCritic averages, an episode at a time."""
    J_0 = others(completed_returns(data, J, 1.0))
    factors = step_factors(data, J, M, J_0, 1.0, by_mean, by_variance, lam)
    states = data.states[data.visited_rows]
    push = -policy(states)
    push[np.arange(len(push)), data.actions] += 1.0
    tiles = PHI.active(states).ravel()
    out = np.zeros((len(data), 32, 2))
    np.add.at(out, (np.repeat(np.arange(len(data)), data.lengths), tiles), factors[:, None] * push)
    whole = policy.log_gradient(states, data.actions, factors)
    assert whole == pytest.approx(out.sum(axis=0).ravel(), rel=1e-8, abs=1e-8)
    return out.reshape(len(data), -1)


def exact_gradient(policy, by_mean, by_variance):
    table = policy(PORTFOLIO.states)
    found = PORTFOLIO.mdp.gradient(table)
    G = by_mean * found.by_mean + by_variance * found.by_variance
    push = table * (G - (table * G).sum(axis=1, keepdims=True))
    return np.ravel(PHI(PORTFOLIO.states).T @ push)


def z_scores(policy, by_mean, by_variance, episodes, seed, lam=0.0, wrong=0.0):
    """Of the sampled gradient's error; the two weights of a tile move against each other, so one is left."""
    data = PORTFOLIO.rollout(policy, PORTFOLIO.sample_starts(episodes), seed=seed)
    J, M = exact_critic(policy, data.states)
    J, M = J + wrong * data.states[:, 2], M + wrong * data.states[:, 3]
    each = gradients_by_episode(policy, data, J, M, by_mean, by_variance, lam)[:, ::2]
    exact = exact_gradient(policy, by_mean, by_variance)[::2]
    return (each.mean(axis=0) - exact) / (each.std(axis=0) / np.sqrt(episodes))


@pytest.mark.parametrize(("by_mean", "by_variance"), [(1.0, 0.0), (0.0, 1.0)], ids=["mean", "variance"])
def test_gradient_is_unbiased_with_an_exact_critic(by_mean, by_variance):
    z = z_scores(some_policy(), by_mean, by_variance, 5_000, seed=1)
    assert np.abs(z).max() < 4.0
    assert z @ z < 32 + 4 * np.sqrt(64)  # χ² with 32 degrees of freedom


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_whole_returns_need_no_exact_critic(lam):
    """A critic that is wrong by what a slot holds: with λ = 1 it does no harm, with λ = 0 it does."""
    z = z_scores(some_policy(), 1.0, -0.2, 5_000, seed=3, lam=lam, wrong=1.0)
    assert (z @ z < 32 + 4 * np.sqrt(64)) == (lam == 1.0)
    assert (np.abs(z).max() < 4.0) == (lam == 1.0)


@pytest.mark.slow
def test_gradient_is_unbiased_over_many_episodes():
    z = z_scores(some_policy(), 1.0, -0.2, 100_000, seed=2)
    assert np.abs(z).max() < 4.0
    assert z @ z < 32 + 4 * np.sqrt(64)


def coins(episodes, rng, discount):
    """A fair coin earns 3 or −3, and its side is seen; then the action +1 or −1 is earned, by chance too.

    Under the uniform policy J_0 = 0, and the second step's square is always 1: of what the second step's
    gradient of V is made of, only 2γ^t R_<t δ^J is not 0.
    """
    side = rng.integers(2, size=episodes)
    action = rng.integers(2, size=episodes)
    states = np.stack([np.zeros(episodes), 1.0 + side, np.full(episodes, 3.0)], axis=1).reshape(-1, 1)
    rewards = np.stack([3.0 - 6.0 * side, 2.0 * action - 1.0], axis=1).ravel()
    actions = np.stack([np.zeros(episodes, dtype=int), action], axis=1).ravel()
    data = pr.Trajectories(states, rewards, np.full(episodes, 2), np.ones(episodes, bool), actions=actions)
    J = np.zeros(len(states))
    M = np.array([9.0 + discount**2, 1.0, 1.0, 0.0])[states[:, 0].astype(int)]
    return data, J, M


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_the_reward_so_far_is_part_of_the_gradient(discount):
    data, J, M = coins(100_000, np.random.default_rng(0), discount)
    policy = pr.SoftmaxPolicy(pr.Tabular(4), 2)
    J_0 = others(completed_returns(data, J, discount))
    factors = step_factors(data, J, M, J_0, discount, 0.0, 1.0)
    states = data.states[data.visited_rows]
    found = policy.log_gradient(states, data.actions, factors).reshape(4, 2) / len(data)
    # V = E[(±3 + γa)²] − …: after heads, to favour +1 by logits ±h adds γ·3·½·2h·½ twice over.
    after_heads = 0.5 * 2 * discount * 3.0 * 0.5
    assert found[1] == pytest.approx([-after_heads, after_heads], abs=4 * 3 / np.sqrt(len(data)))
    assert found[2] == pytest.approx([after_heads, -after_heads], abs=4 * 3 / np.sqrt(len(data)))
    # Nothing else is left: without the rewards so far there would be no gradient.
    second = np.arange(data.transitions) % 2 == 1
    before = np.repeat(data.rewards[::2], 2)
    delta = data.rewards
    assert factors[second] == pytest.approx(
        (discount * delta * 2 * (before - np.repeat(J_0, 2)))[second], abs=1e-12
    )


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_factors_are_those_of_the_definition(lam):
    """Step by step from the module's formulas: a discount, a cut-off episode, slopes of its own for each."""
    rng = np.random.default_rng(3)
    lengths, gamma = np.array([3, 1, 4]), 0.9
    data = pr.Trajectories(
        rng.normal(size=(11, 1)), rng.normal(size=8), lengths, [True, False, True], actions=np.zeros(8, int)
    )
    J, M = rng.normal(size=11), rng.normal(size=11)
    f_m, f_v = rng.normal(size=3), rng.normal(size=3)
    returns = completed_returns(data, J, gamma)

    def seen_from(e, t):
        """J^λ and M^λ of the state before step t of episode e: the critic's, and what came after it."""
        x = data.offsets[e] + e + t
        if t == lengths[e]:
            return (0.0, 0.0) if data.terminated[e] else (J[x], M[x])
        one, two = target(e, t)
        return (1 - lam) * J[x] + lam * one, (1 - lam) * M[x] + lam * two

    def target(e, t):
        r, (J_y, M_y) = data.rewards[data.offsets[e] + t], seen_from(e, t + 1)
        return r + gamma * J_y, r**2 + 2 * gamma * r * J_y + gamma**2 * M_y

    expected = []
    for e, length in enumerate(lengths):
        total = 0.0
        J_0 = np.delete(returns, e).mean()
        for t in range(length):
            x, (one, two) = data.offsets[e] + e + t, target(e, t)
            grad_J = gamma**t * (one - J[x])
            grad_M = gamma ** (2 * t) * (two - M[x]) + 2 * gamma**t * total * (one - J[x])
            expected.append(f_m[e] * grad_J + f_v[e] * (grad_M - 2 * J_0 * grad_J))
            total += gamma**t * data.rewards[data.offsets[e] + t]
        rest = 0.0 if data.terminated[e] else gamma**length * J[data.final_rows[e]]
        assert returns[e] == pytest.approx(total + rest)
    assert step_factors(data, J, M, others(returns), gamma, f_m, f_v, lam) == pytest.approx(expected)


def test_what_the_critic_does_not_know():
    """A state on the way: without λ no step into it counts; with λ what came after takes its place."""
    data = pr.Trajectories(np.arange(4.0), np.ones(3), [3], [True], actions=np.zeros(3, int))
    J = np.array([3.0, np.nan, 1.5, 0.0])
    M = J**2
    J_0 = np.zeros(1)
    assert np.isnan(step_factors(data, J, M, J_0, 1.0, 1.0, 0.0)).tolist() == [True, True, False]
    seen = step_factors(data, J, M, J_0, 1.0, 1.0, 0.0, lam=0.5)
    assert np.isnan(seen).tolist() == [False, True, False]
    assert seen[[0, 2]] == pytest.approx([1 + (1 + (0.5 * 1.5 + 0.5 * 1)) - 3, 1 - 1.5])


def test_a_cut_off_in_an_unknown_state_is_no_end():
    """Completed from the last state that the critic knows; unknown where there is none, never 0."""
    lengths, terminated = [3, 2, 1, 2], [False, True, False, False]
    data = pr.Trajectories(np.arange(12.0), np.ones(8), lengths, terminated, actions=np.zeros(8, int))
    J = np.arange(12.0)
    J[[2, 3]] = J[6] = J[7:9] = np.nan
    expected = [1 + 0.5 * 1.0, 1 + 0.5, np.nan, 1 + 0.5 + 0.25 * 11.0]
    np.testing.assert_allclose(completed_returns(data, J, 0.5), expected)


class LongCorridor(gym.Env):
    """From state 0 to the end; some start in state 2, and are cut off in state 3, which is never left."""

    observation_space = gym.spaces.Box(0.0, 3.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 2.0 if self.np_random.random() < self.lost else 0.0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        return np.array([self.place + 1], np.float32), 1.0, self.place == 0, self.place > 0, {}


@pytest.mark.parametrize("lost", [0.02, 0.4])
def test_episodes_that_the_critic_cannot_complete_are_counted_or_refused(lost):
    class Corridor(LongCorridor):
        pass

    Corridor.lost = lost
    critic = pr.LSTD(pr.Tabular(4), variance="direct")
    ascent = pr.ActorCritic(
        pr.SoftmaxPolicy(pr.Tabular(4), 2),
        criteria.MeanMinusVariance(0.1),
        critic,
        episodes=200,
        iterations=1,
    )
    if lost > 0.1:
        with pytest.raises(SolverError, match="of 200 episodes were cut off"):
            ascent.fit(Corridor, seed=0)
    else:
        with pytest.warns(GivenUpWarning, match="of 200 episodes were cut off"):
            assert ascent.fit(Corridor, seed=0).history[0, 0] == 1.0


# --- groups of starts ------------------------------------------------------------------------------


def test_a_criterion_averaged_over_groups():
    """Two groups by hand, and the standard error beside repetition."""
    tiles = pr.TileCoding([0], [1], bins=2)
    starts = np.array([[0.1], [0.6], [0.2], [0.9], [0.7]])
    returns = np.array([1.0, 10.0, 3.0, 14.0, 12.0])
    found = GroupedReturns.of(returns, starts, tiles)
    assert found.means == pytest.approx([2.0, 12.0])
    assert found.variances == pytest.approx([2.0, 4.0])
    assert found.others == pytest.approx([3.0, 13.0, 1.0, 11.0, 12.0])
    judged = found.judged(criteria.MeanMinusVariance(0.5))
    assert judged.value == pytest.approx((2 * (2.0 - 1.0) + 3 * (12.0 - 2.0)) / 5)
    assert found.std.value == pytest.approx((2 * np.sqrt(2.0) + 3 * 2.0) / 5)
    with pytest.raises(InvalidInputError, match="got 1 of 3 starts that are alone"):
        GroupedReturns.of(returns[:3], starts[:3], tiles)
    # One of eleven is alone, and left out.
    many = np.array([[0.1]] * 10 + [[0.9]])
    lone, without = GroupedReturns.of(np.arange(11.0), many, tiles), GroupedReturns.of(np.arange(10.0))
    assert lone.std.estimate().standard_error == pytest.approx(without.std.estimate().standard_error)
    assert (lone.std.value, lone.std.by_variance[-1]) == (without.std.value, 0.0)
    rng = np.random.default_rng(1)
    starts, shift = np.tile([[0.2], [0.8], [0.8]], (60, 1)), np.tile([0.0, 50.0, 50.0], 60)
    values, errors = [], []
    for _ in range(1000):
        returns = shift + rng.normal(size=180) * np.tile([1.0, 3.0, 3.0], 60)
        value = GroupedReturns.of(returns, starts, tiles).judged(criteria.MeanMinusVariance(0.3)).estimate()
        values.append(value.value)
        errors.append(value.standard_error)
    assert np.mean(errors) / np.std(values) == pytest.approx(1, abs=0.1)
    truth = (-0.3 + 2 * (50.0 - 0.3 * 9.0)) / 3
    assert np.mean(values) == pytest.approx(truth, abs=4 * np.std(values) / np.sqrt(1000))


class Doors(gym.Env):
    """Of two doors to start from one is worth 20 more; the action 1 costs 1, the action 0 earns ±3."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.door = float(self.np_random.random() < 0.5)
        return np.array([self.door], np.float32), {}

    def step(self, action):
        earned = -1.0 if action == 1 else 3.0 * (-1) ** int(self.np_random.integers(2))
        return np.array([self.door], np.float32), 20 * self.door + earned, True, False, {}


def test_what_differs_between_groups_is_no_risk():
    """By mean − std the cost of 1 is worth it, but only where the doors' own difference is left out."""
    phi = pr.Tabular(2)
    for groups, careful in ((None, False), (pr.TileCoding([0], [1], bins=2), True)):
        found = pr.ActorCritic(
            pr.SoftmaxPolicy(phi, 2),
            criteria.MeanMinusStd(1.0),
            pr.LSTD(phi, variance="direct"),
            episodes=150,
            iterations=12,
            step=0.4,
            groups=groups,
        ).fit(Doors, seed=0)
        # Without groups the worse door must not become worse still; the better one may.
        assert (found.policy([[0.0], [1.0]])[:, 1] > 0.6).tolist() == [careful, True]
        mean, _, std, *_ = found.history[0]
        assert mean == pytest.approx(9.5, abs=4 * 10 / np.sqrt(150))
        assert std == pytest.approx(2.18 if careful else 10.23, rel=0.1)


# --- policies that see the reward so far -----------------------------------------------------------


def test_a_domain_with_the_reward_so_far_is_the_same_domain():
    """Compiled, as a function and step by step; the sum of the rewards is all that is new."""
    seeing = pr.domains.RewardSoFar(PORTFOLIO)
    policy = some_policy()
    own = PORTFOLIO.rollout(policy, PORTFOLIO.sample_starts(60), seed=4)
    starts = seeing.sample_starts(60)
    assert starts.shape == (60, 7)
    for follow in (policy, policy.__call__):
        data = seeing.rollout(follow, starts, seed=4)
        assert np.array_equal(data.states[:, :-1], own.states)
        assert np.array_equal(data.rewards, own.rewards)
        earned = np.concatenate([[0.0, *np.cumsum(each.rewards)] for each in own])
        assert data.states[:, -1] == pytest.approx(earned)
    after, rewards, _ = seeing.step([[0, 2, 0, 0, 0, 0, 5.0]], [0], seed=1)
    assert after[0, -1] == 5.0 + rewards[0]
    assert "RewardSoFar(Portfolio())" in repr(seeing)
    with pytest.raises(InvalidInputError, match="domain must be a compiled one"):
        pr.domains.RewardSoFar("CartPole-v1")
    with pytest.raises(InvalidInputError, match="starts must"):
        seeing.rollout(policy, [[0.0, 2.0, 0.0, 0.0, 0.0, 0.5, 0.0]])


class Coin(gym.Env):
    """A coin earns 3 or −3; then the action 1 gives 2 away. The policy sees the step's number alone."""

    observation_space = gym.spaces.Box(0.0, 2.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = 6.0 * int(self.np_random.integers(2)) - 3.0 if self.t == 0 else -2.0 * action
        self.t += 1
        return np.full(1, self.t, np.float32), reward, self.t == 2, False, {}


def test_a_policy_that_sees_what_it_earned_is_better_than_any_that_does_not():
    """Blind, with probability p: m = −2p, v = 9 + 4p(1 − p), and m − v/2 is −4.5 at best.

    Seen, giving 2 away after heads has m = −1, v = 4: −3.
    """
    gym.register("Coin-v0", Coin)
    try:
        make = TimedEnvironment("Coin-v0", max_steps=2, reward_so_far=True)
        tiles = pr.TileCoding([0, -4], [2, 4], bins=[2, 2], dims=[1, 2])
        policy = pr.SoftmaxPolicy(tiles, 2)
        critic = pr.LSTD(pr.TileCoding([0, -4], [2, 4], bins=[2, 3], dims=[1, 2]), variance="direct")
        search = pr.ActorCritic(policy, criteria.MeanMinusVariance(0.5), critic, 100, 15, 0.6)
        value = improve(search, make, seed=0, fresh=600).compared()["value"][1]
    finally:
        gym.registry.pop("Coin-v0")
    assert value.low > -4.5
    assert value == pytest.approx(-3.0, abs=0.8)


@pytest.mark.slow
def test_portfolios_that_see_what_they_earned():
    """From the best policy that sees everything else, with 40 × 2000 episodes; on fresh ones."""
    c, seeing = 0.2, pr.domains.RewardSoFar(PORTFOLIO)
    blind = PORTFOLIO.mdp.improve(criteria.MeanMinusVariance(c), restarts=0)
    tiles = pr.TileCoding([0, 1.1, 0, 0, 0, 0, 0], [50, 2, 1, 1, 1, 1, 72], bins=[25, 2, 2, 2, 2, 2, 24])
    centres = tiles.centres()
    centres[:, 0] = np.floor(centres[:, 0])  # a tile holds two periods
    nearest = PORTFOLIO.features(period=True).active(centres[:, :6]).ravel()
    index = np.empty(1600, dtype=int)
    index[PORTFOLIO.features(period=True).active(PORTFOLIO.states).ravel()] = np.arange(1600)
    start = pr.SoftmaxPolicy(tiles, 2, np.log(np.clip(blind.policy[index[nearest]], 0.02, 0.98)))
    search = pr.ActorCritic(start, criteria.MeanMinusVariance(c), CRITIC, 2000, 40, 0.3, lam=1.0)
    better = search.fit(seeing, seed=0).policy
    returns = seeing.returns(better, seeing.sample_starts(100_000), seed=1).returns
    value = GroupedReturns.of(returns).judged(criteria.MeanMinusVariance(c)).estimate()
    assert value.low > blind.value > 60.47


# --- the iterations --------------------------------------------------------------------------------


def search(iterations=12, criterion=None, **settings):
    criterion = criteria.MeanMinusVariance(0.2) if criterion is None else criterion
    return pr.ActorCritic(
        pr.SoftmaxPolicy(PHI, 2), criterion, CRITIC, episodes=300, iterations=iterations, step=0.3, **settings
    )


def exact_value(policy, c=0.2):
    chain = PORTFOLIO.mdp.chain(policy(PORTFOLIO.states))
    return chain.mean()[0] - c * chain.variance()[0]


def test_a_few_iterations_are_better_than_none():
    better = search().fit(PORTFOLIO, seed=0)
    before, after = exact_value(pr.SoftmaxPolicy(PHI, 2)), exact_value(better.policy)
    assert after > before + 0.5
    # Each row of the history is what its episodes had, under the policy before its step.
    assert better.history.shape == (12, 6)
    mean, error, std, _, value, _ = better.history[0]
    assert abs(mean - 57.974157) < 4 * error
    assert error == pytest.approx(np.sqrt(16.107994 / 300), rel=0.2)
    assert value == pytest.approx(mean - 0.2 * std**2)
    numbers, curve = better.curve("mean")
    assert (numbers[0], curve[0]) == (1, mean)
    assert "iteration" in str(better)
    with pytest.raises(InvalidInputError, match="of must be one of"):
        better.curve("variance")


def test_same_seed_same_policy_and_resume(tmp_path, monkeypatch):
    whole = search(6).fit(PORTFOLIO, seed=3)
    again = search(6).fit(PORTFOLIO, seed=3)
    assert np.array_equal(whole.policy.weights, again.policy.weights)
    file = tmp_path / "run.npz"
    original, made = pr.ActorCritic._iterate, []

    def interrupted(self, state, play):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(1)
        return original(self, state, play)

    monkeypatch.setattr(pr.ActorCritic, "_iterate", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stopped after 4 iterations"):
        search(6).fit(PORTFOLIO, seed=3, checkpoint=file)
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match="checkpoint must not exist yet"):
        search(6).fit(PORTFOLIO, seed=3, checkpoint=file)
    with pytest.raises(MismatchError, match="iterations changed"):
        search(7).fit(PORTFOLIO, checkpoint=file, resume=True)
    other = dataclasses.replace(search(6), policy=pr.SoftmaxPolicy(PHI, 2, np.ones((PHI.size, 2))))
    with pytest.raises(MismatchError, match="parameters changed"):
        other.fit(PORTFOLIO, checkpoint=file, resume=True)
    resumed = search(6).fit(PORTFOLIO, checkpoint=file, resume=True)
    assert np.array_equal(resumed.policy.weights, whole.policy.weights)
    assert np.array_equal(resumed.history, whole.history)


def test_gymnasium():
    """The same task as an environment: steps go the same way, the episodes are others."""
    env = gym.make("policyrisk/Portfolio-v0")
    better = pr.ActorCritic(
        pr.SoftmaxPolicy(PHI, 2), criteria.MeanMinusStd(0.5), CRITIC, episodes=40, iterations=3, step=0.5
    ).fit(env, seed=0)
    assert better.history.shape == (3, 6)
    assert exact_value(better.policy, 0.0) > 58.2  # mostly a matter of the mean here
    with pytest.raises(InvalidInputError, match="starts must be None for a Gymnasium"):
        search().fit(env, starts=lambda n, rng: None)


def test_frontier_of_a_simulator():
    """Rescored exactly, each policy is the better one for its own c; the errors are those of its episodes."""
    found = pr.frontier(
        PORTFOLIO, c=[0.0, 1.0], criterion=criteria.MeanMinusVariance, search=search(15), seed=1
    )
    bold, careful = found.points
    assert bold.mean > careful.mean
    assert bold.std > careful.std
    chains = [PORTFOLIO.mdp.chain(point.policy(PORTFOLIO.states)) for point in found.points]
    for point, chain in zip(found.points, chains, strict=True):
        assert abs(point.mean - chain.mean()[0]) < 4 * point.mean_error
        assert abs(point.std - chain.std()[0]) < 4 * point.std_error
        assert point.value == pytest.approx(point.mean - point.c * point.variance)
    assert abs(found.given[0] - 57.974157) < 4 * np.sqrt(16.107994 / 3000)
    with pytest.raises(InvalidInputError, match="search must be an ActorCritic"):
        pr.frontier(PORTFOLIO)


@pytest.mark.filterwarnings("ignore::policyrisk.errors.GivenUpWarning")
def test_a_critic_that_knows_too_little_is_a_named_error():
    """All episodes are cut off where nothing is known, so that nothing is known anywhere."""
    blind = pr.ActorCritic(
        pr.SoftmaxPolicy(PHI, 2), criteria.Sharpe(), pr.LSTD(PHI, discount=0.9), episodes=200, iterations=2
    )
    with pytest.raises(SolverError, match="the critic must know most states"):
        blind.fit(PORTFOLIO, seed=0, max_steps=3)


def test_bad_input():
    policy = pr.SoftmaxPolicy(PHI, 2)
    with pytest.raises(InvalidInputError, match="without a constraint"):
        pr.ActorCritic(policy, criteria.MeanVarianceAtMost(3.0), CRITIC)
    with pytest.raises(InvalidInputError, match="critic must be an LSTD"):
        pr.ActorCritic(policy, criteria.Sharpe(), pr.TD(PHI))
    with pytest.raises(InvalidInputError, match="policy must be one with a gradient"):
        pr.ActorCritic(pr.domains.UniformPolicy(2), criteria.Sharpe(), CRITIC)
    with pytest.raises(InvalidInputError, match="groups must be a TileCoding with one tiling"):
        pr.ActorCritic(policy, criteria.Sharpe(), CRITIC, groups=pr.TileCoding([0], [1], bins=2, tilings=2))
    with pytest.raises(InvalidInputError, match="lam must be"):
        pr.ActorCritic(policy, criteria.Sharpe(), CRITIC, lam=1.5)
    with pytest.raises(InvalidInputError, match="episodes must be"):
        pr.ActorCritic(policy, criteria.Sharpe(), CRITIC, episodes=1)
    with pytest.raises(InvalidInputError, match="checkpoint must be given with resume"):
        search().fit(PORTFOLIO, resume=True)
    with pytest.raises(InvalidInputError, match="features must be a map"):
        pr.SoftmaxPolicy(np.eye(3), 2)
    with pytest.raises(InvalidInputError, match="weights must have shape"):
        pr.SoftmaxPolicy(PHI, 2, np.zeros((3, 2)))


@pytest.mark.slow
@pytest.mark.parametrize(("c", "known"), [(0.1, 61.17), (0.2, 57.90), (0.5, 53.69), (1.0, 50.80)])
def test_sampled_episodes_alone_come_within_a_hundredth(c, known):
    """The median of three seeds, rescored exactly, of 200 × 1,000 episodes each."""
    found = []
    for seed in range(3):
        start = pr.SoftmaxPolicy(PHI, 2)
        actor = pr.ActorCritic(start, criteria.MeanMinusVariance(c), CRITIC, iterations=200, step=0.15)
        found.append(exact_value(actor.fit(PORTFOLIO, seed=seed).policy, c))
    assert np.median(found) >= 0.99 * known
