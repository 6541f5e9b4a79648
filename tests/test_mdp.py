"""Decision processes: the exact gradient against finite differences, and policies that it makes better."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import policyrisk as pr
from policyrisk import criteria
from policyrisk.errors import ImproperPolicyError, InfeasibleConstraintError, InvalidInputError
from policyrisk.markov import improvement
from policyrisk.markov.branches import sorted_branches

ALL = [
    criteria.Sharpe(),
    criteria.MeanMinusStd(0.7),
    criteria.MeanMinusVariance(0.3),
    criteria.MeanVarianceAtMost(3.0),
    criteria.VarianceMeanAtLeast(1.0),
]


def random_process(rng, n=6, actions=3, discount=1.0, *, sparse=False):
    """Rewards of transitions and of ending; every policy ends, since every row sums to at most .9."""
    P = rng.dirichlet(np.full(n, 0.5), size=(actions, n)) * rng.uniform(0.5, 0.9, (actions, n, 1))
    P *= rng.random(P.shape) < 0.7
    r = rng.normal(size=(actions, n, n))
    ends = rng.normal(size=n)
    if sparse:
        return pr.MDP(
            [sp.csr_array(Pa) for Pa in P], [sp.csr_array(ra) for ra in r], discount, terminal_rewards=ends
        )
    return pr.MDP(P, r, discount, terminal_rewards=ends)


def moments(mdp, policy, zeta):
    """Mean and variance of the return over a start distribution, from the chain alone."""
    chain = mdp.chain(policy)
    m = zeta @ chain.mean()
    return m, zeta @ chain.second_moment() - m**2


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("several", [False, True], ids=["one start", "starts"])
def test_gradient_is_that_of_finite_differences(discount, several):
    rng = np.random.default_rng(7)
    for sparse in (False, True):
        mdp = random_process(rng, discount=discount, sparse=sparse)
        zeta = rng.dirichlet(np.ones(mdp.n)) if several else np.eye(mdp.n)[2]
        policy = rng.dirichlet(np.ones(mdp.actions), size=mdp.n)
        found = mdp.gradient(policy, zeta if several else 2)
        assert (found.mean, found.variance) == pytest.approx(moments(mdp, policy, zeta), rel=1e-10)
        h = 1e-4
        differences, derivatives = [], []
        for x, (a, b) in itertools.product(range(mdp.n), itertools.combinations(range(mdp.actions), 2)):
            # Four points: an error of h⁴, far below 1e-6, and rounding of 1e-16 / h.
            values = {}
            for k in (-2, -1, 1, 2):
                moved = policy.copy()
                moved[x, [a, b]] += [k * h, -k * h]
                values[k] = np.array(_free_moments(mdp, moved, zeta))
            slope = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h)
            differences.append(slope)
            derivatives.append([g[x, a] - g[x, b] for g in (found.by_mean, found.by_variance)])
        error = np.abs(np.array(differences) - derivatives).max(axis=0)
        assert (error <= 1e-6 * np.abs(derivatives).max(axis=0)).all()


def _free_moments(mdp, policy, zeta):
    """As :func:`moments` by dense solves from the definition: weights may be negative, so near a vertex."""
    n, gamma = mdp.n, mdp.discount
    P, r, s, rP = np.zeros((n, n)), np.zeros(n), np.zeros(n), np.zeros((n, n))
    for a, branches in enumerate(mdp.branches):
        for x in range(n):
            for i in range(branches.indptr[x], branches.indptr[x + 1]):
                p, rho, y = policy[x, a] * branches.probability[i], branches.reward[i], branches.successor[i]
                r[x] += p * rho
                s[x] += p * rho**2
                if y < n:
                    P[x, y] += p
                    rP[x, y] += p * rho
    J = np.linalg.solve(np.eye(n) - gamma * P, r)
    M = np.linalg.solve(np.eye(n) - gamma**2 * P, s + 2 * gamma * rP @ J)
    m = zeta @ J
    return m, zeta @ M - m**2


@pytest.mark.parametrize("criterion", ALL, ids=str)
def test_slopes_are_derivatives(criterion):
    m, v, h = 2.0, 5.0, 1e-5
    for function in (criterion.slopes, criterion.slack):
        if function(m, v) is None:
            continue
        _, by_mean, by_variance = function(m, v)
        assert (function(m + h, v)[0] - function(m - h, v)[0]) / (2 * h) == pytest.approx(by_mean, abs=1e-8)
        assert (function(m, v + h)[0] - function(m, v - h)[0]) / (2 * h) == pytest.approx(
            by_variance, abs=1e-8
        )
    assert criterion.larger_is_better is not isinstance(criterion, criteria.VarianceMeanAtLeast)


def greedy(mdp, policy, c):
    """The naive step: in every state the action whose own return has the best mean − c·std."""
    chain = mdp.chain(policy)
    J, M = np.append(chain.mean(), 0.0), np.append(chain.second_moment(), 0.0)
    scores = np.empty((mdp.n, mdp.actions))
    for a, part in enumerate(mdp.branches):
        rho, y = part.reward, part.successor
        first = part.expect(rho + J[y])
        second = part.expect(rho**2 + 2 * rho * J[y] + M[y])
        scores[:, a] = first - c * np.sqrt(np.maximum(second - first**2, 0.0))
    return scores.argmax(axis=1)


def test_greedy_improvement_of_mean_less_std_fails_where_the_gradient_does_not():
    """Sobel (1982): mean less std has no optimality principle.

    State 0 earns 3 or −3, and leads to state 1, where the careful action earns 0 and the bold one 2.2 or −.2
    (mean 1, std 1.2). In state 1 itself the careful one is better, 0 against −.2. From state 0 the bold one
    is: 1 − √(9 + 1.44) = −2.23 against −3, since the stds of independent risks do not add up.
    """
    P = np.zeros((2, 6, 6))
    P[:, 0, [2, 3]] = 0.5  # state 0 to 2 or 3, which earn 3 and −3
    P[:, [2, 3], 1] = 1.0
    P[1, 1, [4, 5]] = 0.5  # the bold action of state 1, to 4 or 5, which earn 2.2 and −.2
    r = np.array([0.0, 0.0, 3.0, -3.0, 2.2, -0.2])
    mdp = pr.MDP(P, r)
    careful, bold = np.zeros(6, dtype=int), np.array([0, 1, 0, 0, 0, 0])
    value = {name: mdp.chain(p).mean() - mdp.chain(p).std() for name, p in [("c", careful), ("b", bold)]}
    assert value["c"][0] == pytest.approx(-3.0)
    assert value["b"][0] == pytest.approx(1 - np.sqrt(10.44))
    # From the better policy the greedy step leads to the worse one, and stays there.
    worse = greedy(mdp, bold, 1.0)
    assert worse[1] == 0
    assert greedy(mdp, worse, 1.0)[1] == 0
    for given in (careful, bold):
        better = mdp.improve(criteria.MeanMinusStd(1.0), 0, given, restarts=0)
        assert better.policy[1].tolist() == [0.0, 1.0]
        assert better.value == pytest.approx(value["b"][0], abs=1e-9)


@pytest.mark.parametrize("criterion", [criteria.MeanMinusStd(0.7), criteria.MeanMinusVariance(0.3)], ids=str)
@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_no_deterministic_policy_is_better(criterion, discount):
    """Every deterministic policy of a small process is tried."""
    mdp = random_process(np.random.default_rng(3), n=5, actions=2, discount=discount)
    zeta = np.full(5, 0.2)
    better = mdp.improve(criterion, zeta, restarts=3)
    best = max(
        criterion.slopes(*moments(mdp, np.array(chosen), zeta))[0]
        for chosen in itertools.product(range(2), repeat=5)
    )
    assert better.value >= best - 1e-7
    assert better.value == pytest.approx(criterion.slopes(better.mean, better.variance)[0])
    assert (better.mean, better.variance) == pytest.approx(moments(mdp, better.policy, zeta), rel=1e-9)
    assert better.value == pytest.approx(np.nanmax(better.reached))
    assert better.history[-1] == pytest.approx([better.mean, better.variance, better.value], abs=1e-6)
    assert better.history[0, 2] < better.value


def gamble(odds=0.5):
    """One state: action 0 earns 1, action 1 earns 3 or −½ with the given odds."""
    part = np.array([0, 1])
    sure = pr.markov.branches.Branches(part, np.array([1]), np.ones(1), np.ones(1))
    dice = pr.markov.branches.Branches(
        2 * part, np.array([1, 1]), np.array([odds, 1 - odds]), np.array([3.0, -0.5])
    )
    return pr.MDP.from_branches([sure, dice])


def test_constraints_are_met_with_the_best_mixture():
    """With probability p of gambling, m = 1 + p/4 and v = 1 − p + p·4.625 − m²: both have a closed form."""
    mdp = gamble()

    def variance(p):
        return 1 - p + p * 4.625 - (1 + p / 4) ** 2

    at_most = mdp.improve(criteria.MeanVarianceAtMost(2.0), restarts=1)
    p = np.roots([-1 / 16, 3.125, -2.0]).min()  # v(p) = 2
    assert at_most.policy[0, 1] == pytest.approx(p, abs=1e-6)
    assert at_most.variance <= 2.0
    assert at_most.value == at_most.mean == pytest.approx(1 + p / 4, abs=1e-6)
    at_least = mdp.improve(criteria.VarianceMeanAtLeast(1.1), restarts=1)
    assert at_least.mean >= 1.1
    assert at_least.value == at_least.variance == pytest.approx(variance(0.4), abs=1e-5)
    slack = mdp.improve(criteria.MeanVarianceAtMost(100.0), restarts=0)
    assert slack.mean == pytest.approx(1.25)


def test_a_bound_that_no_policy_keeps_is_a_named_error():
    with pytest.raises(InfeasibleConstraintError, match=r"mean 1\.25 and variance 3\.0625"):
        gamble().improve(criteria.VarianceMeanAtLeast(1.3), restarts=0)


def test_without_risk_the_sharpe_ratio_has_no_bound():
    better = gamble().improve(criteria.Sharpe(), restarts=0)
    assert better.reason == "no risk is left"
    assert better.policy[0] == pytest.approx([1.0, 0.0], abs=1e-9)
    certain = pr.MDP([[[0.0]], [[0.0]]], [[1.0, 2.0]])
    best = certain.improve(criteria.Sharpe(), policy=[0], restarts=0)
    assert (best.value, best.mean) == (np.inf, 2.0)


def test_a_criterion_without_a_bound_is_a_named_error():
    """To stay for ever earns more than any policy that ends; the variance puts a price on it."""
    stay = pr.MDP([[[1.0]], [[0.0]]], [1.0])
    with pytest.raises(ImproperPolicyError, match="criterion must have a bound"):
        stay.improve(criteria.MeanMinusStd(0.5), restarts=0)
    # To leave with probability q has mean 1/q and variance (1 − q)/q²: at c = .1 the best 1/q is 5.5.
    priced = stay.improve(criteria.MeanMinusVariance(0.1), restarts=0)
    assert priced.mean == pytest.approx(5.5, abs=1e-4)
    assert priced.value == pytest.approx(3.025)


def test_a_policy_that_never_ends_can_be_improved():
    """A ring of 40 states that only the second action leaves, with a reward of −1 for each step."""
    ring = np.roll(np.eye(40), 1, axis=1)
    better = pr.MDP([ring, 0.5 * ring], np.full(40, -1.0)).improve(
        criteria.MeanMinusStd(1.0), policy=np.zeros(40, dtype=int), restarts=0
    )
    assert better.mean == pytest.approx(-2.0, abs=1e-6)


def test_without_any_reward_every_policy_is_the_same():
    nothing = pr.MDP([[[0.9]], [[0.0]]], [0.0])
    for criterion in (criteria.MeanMinusStd(0.5), criteria.MeanVarianceAtMost(0.0), criteria.Sharpe()):
        better = nothing.improve(criterion, restarts=0)
        assert better.value == 0.0
        assert better.history.shape[1] == 3


def test_sharpe_ratio_of_independent_bets():
    """A bet of mean 2 and std 1, or one of mean 3 and std 4."""
    P = np.zeros((2, 5, 5))
    P[0, 0, [1, 2]] = 0.5
    P[1, 0, [3, 4]] = 0.5
    mdp = pr.MDP(P, [0.0, 1.0, 3.0, -1.0, 7.0])
    better = mdp.improve(criteria.Sharpe(), restarts=1)
    assert better.policy[0].tolist() == [1.0, 0.0]
    assert better.value == pytest.approx(2.0, abs=1e-12)


def test_states_with_the_same_features_act_alike():
    mdp = random_process(np.random.default_rng(5), n=6, actions=2)
    shared = np.repeat(np.eye(3), 2, axis=0)
    for features in (shared, sp.csr_array(shared), 50.0 * shared):
        better = mdp.improve(criteria.MeanMinusStd(0.5), 0, features=features, restarts=1)
        assert better.weights.shape == (3, 2)
        assert better.policy[::2] == pytest.approx(better.policy[1::2])
        best = max(
            criteria.MeanMinusStd(0.5).slopes(*moments(mdp, np.repeat(chosen, 2), np.eye(6)[0]))[0]
            for chosen in itertools.product(range(2), repeat=3)
        )
        assert better.value >= best - 1e-7
    free = mdp.improve(criteria.MeanMinusStd(0.5), 0, restarts=1)
    assert free.value > better.value + 1e-3


def test_the_given_policy_is_never_made_worse():
    """Wherever the search starts from: a single iteration from the best policy keeps it."""
    mdp = random_process(np.random.default_rng(11), n=5, actions=3)
    criterion = criteria.MeanMinusStd(0.7)
    best = mdp.improve(criterion, 1, restarts=1)
    again = mdp.improve(criterion, 1, best.policy.argmax(axis=1), restarts=0, iterations=1)
    rounded = criterion.slopes(*moments(mdp, best.policy.argmax(axis=1), np.eye(5)[1]))[0]
    assert again.value >= rounded - 1e-9
    assert "1 iterations were made" in again.reason or "vanished" in again.reason


def test_a_process_with_the_reward_so_far_is_the_same_process():
    """Whatever the start, a policy that does not look at the sum has the same mean and variance."""
    rng = np.random.default_rng(6)
    P = np.triu(rng.dirichlet(np.ones(4), size=(2, 4)), k=1)  # no way back: few sums
    mdp = pr.MDP(P, rng.integers(-2, 3, size=(2, 4, 4)).astype(float), terminal_rewards=[1.0, -1.0, 0.5, 2.0])
    zeta, policy = np.array([0.3, 0.0, 0.7, 0.0]), rng.dirichlet(np.ones(2), size=4)
    seeing, states, sums = mdp.with_reward_so_far(zeta)
    assert states[:2].tolist() == [0, 2]
    assert sums[:2].tolist() == [0.0, 0.0]
    start = np.zeros(seeing.n)
    start[:2] = zeta[[0, 2]]
    assert moments(seeing, policy[states], start) == pytest.approx(moments(mdp, policy, zeta))
    assert len(set(zip(states.tolist(), sums.tolist(), strict=True))) == seeing.n > 4
    better, blind = (m.improve(criteria.MeanMinusVariance(0.5), s) for m, s in ((seeing, start), (mdp, zeta)))
    assert better.value > blind.value + 5e-4


def test_no_policy_that_does_not_see_the_reward_so_far_is_as_good():
    """Ten bets of 1, won with probability .6; not to bet is free.

    To one that does not see what was earned the rounds are independent, and a round that it bets in with
    probability p counts .2p − c(p − .04p²), convex in p: the best is always or never to bet,
    max(0, 10 (.2 − .96c)). Seeing it, one bets until one is ahead.
    """
    rounds, c = 10, 0.25
    parts = []
    for action in range(2):
        x = np.arange(rounds)
        ways = [(1.0, 0.0)] if action == 0 else [(0.6, 1.0), (0.4, -1.0)]
        columns = [np.tile(x, len(ways)), np.tile(x + 1, len(ways))]
        columns += [np.repeat([way[i] for way in ways], rounds) for i in range(2)]
        parts.append(sorted_branches(rounds, *columns))
    mdp = pr.MDP.from_branches(parts)
    assert np.allclose(mdp.chain([[0, 1]] * rounds).mean()[0], 2.0)
    criterion = criteria.MeanMinusVariance(c)
    blind = mdp.improve(criterion)
    bound = max(0.0, rounds * (0.2 - 0.96 * c))
    assert blind.value == pytest.approx(bound, abs=1e-9)
    seeing, rows, earned = mdp.with_reward_so_far()
    better = seeing.improve(criterion, restarts=0)
    assert better.value > bound + 0.25
    # It is a policy of the bets: simulated from its table it earns what it says.
    rng = np.random.default_rng(0)
    table = {(x, round(r)): better.policy[i, 1] for i, (x, r) in enumerate(zip(rows, earned, strict=True))}
    returns = np.empty(4000)
    for k in range(len(returns)):
        total = 0
        for t in range(rounds):
            if rng.random() < table[t, total]:
                total += 1 if rng.random() < 0.6 else -1
        returns[k] = total
    assert abs(returns.mean() - better.mean) < 4 * returns.std() / np.sqrt(len(returns))
    spread = ((returns - returns.mean()) ** 2).std()
    assert abs(returns.var() - better.variance) < 4 * spread / np.sqrt(len(returns))


def test_the_reward_so_far_needs_few_sums_and_no_discount():
    endless = pr.MDP([[[0.9]], [[0.5]]], [1.0])
    with pytest.raises(InvalidInputError, match="most must be at least"):
        endless.with_reward_so_far(most=50)
    with pytest.raises(InvalidInputError, match="discount must be 1"):
        pr.MDP([[[0.9]]], [1.0], 0.9).with_reward_so_far()


def test_frontier():
    mdp = random_process(np.random.default_rng(9), n=6, actions=3)
    prices = [2.0, 0.0, 0.5, 1.0]
    uniform = np.full((6, 3), 1 / 3)
    found = pr.frontier(mdp, 0, prices, uniform, restarts=0)
    assert [point.c for point in found.points] == sorted(prices)
    means, stds = (np.array([getattr(point, name) for point in found.points]) for name in ("mean", "std"))
    assert (np.diff(means) <= 0).all()
    assert (np.diff(stds) <= 0).all()
    assert means[0] > means[-1]
    for point in found.points:
        assert (point.mean, point.variance) == pytest.approx(moments(mdp, point.policy, np.eye(6)[0]))
        assert point.value == pytest.approx(point.mean - point.c * point.std)
        assert (point.value >= means - point.c * stds - 1e-12).all()
    m, v = moments(mdp, uniform, np.eye(6)[0])
    assert found.given == pytest.approx((m, np.sqrt(v)))
    axes = pr.plotting.plot_frontier(found)
    assert axes.lines[0].get_xydata() == pytest.approx(np.column_stack([stds, means]))
    assert axes.lines[1].get_xydata()[0] == pytest.approx([np.sqrt(v), m])
    with pytest.raises(InvalidInputError, match="c must hold at least one number"):
        pr.frontier(mdp, c=[])


def test_the_seed_decides():
    mdp = random_process(np.random.default_rng(2), n=5, actions=2)
    first, second = (mdp.improve(criteria.MeanMinusStd(1.0), 0, seed=4, restarts=1) for _ in range(2))
    assert np.array_equal(first.policy, second.policy)
    assert "mean − 1·std" in str(first)


def test_chain_is_that_of_from_mdp():
    rng = np.random.default_rng(0)
    P, r = 0.3 * rng.dirichlet(np.ones(3), size=(2, 3)), rng.normal(size=(2, 3, 3))
    ends, policy = rng.normal(size=3), rng.dirichlet(np.ones(2), size=3)
    chain = pr.MarkovChain.from_mdp(P, r, policy, 0.9, terminal_rewards=ends)
    same = pr.MDP(P, r, 0.9, ends).chain(policy)
    assert np.array_equal(chain.mean(), same.mean())
    assert np.array_equal(chain.variance(), same.variance())


def test_bad_input():
    mdp = gamble()
    with pytest.raises(InvalidInputError, match="criterion must be one of mean and variance"):
        mdp.improve("sharpe")
    with pytest.raises(InvalidInputError, match="start must be a state"):
        mdp.improve(criteria.Sharpe(), 7)
    with pytest.raises(InvalidInputError, match="features must have a row for each of the 1 states"):
        mdp.improve(criteria.Sharpe(), features=sp.csr_array((3, 2)))
    with pytest.raises(InvalidInputError, match="policy must have rows of probabilities"):
        mdp.improve(criteria.Sharpe(), policy=[[0.5, 0.6]])
    with pytest.raises(InvalidInputError, match="discount must be in"):
        pr.MDP([[[0.5]]], [1.0], 1.5)
    with pytest.raises(ImproperPolicyError, match="proper policy"):
        pr.MDP([[[1.0]]], [1.0]).improve(criteria.Sharpe())


@pytest.mark.parametrize("criterion", [*ALL, improvement._Extreme(-1.0, 0.5, False)], ids=str)
def test_gradient_by_weights_is_that_of_finite_differences(criterion):
    """Of mean, variance and Lagrangian by the weights of a softmax of features, one weight at a time."""
    rng = np.random.default_rng(3)
    mdp = random_process(rng)
    phi, weights = rng.normal(size=(mdp.n, 2)), rng.normal(size=(2, mdp.actions))
    problem = improvement._Problem(mdp, criterion, phi, 1, 10)
    climb = improvement._Climb.__new__(improvement._Climb)
    climb.problem, climb.multiplier, climb.penalty = problem, 0.3, 2.0

    def values(moved):
        point = problem.at(moved)
        logits = np.exp(phi @ moved)
        chain = mdp.chain(logits / logits.sum(axis=1, keepdims=True))
        assert (point.mean, point.variance) == pytest.approx((chain.mean()[1], chain.variance()[1]), rel=1e-9)
        return np.array([point.mean, point.variance, climb._lagrangian(point)[0]])

    h, differences = 1e-4, []
    for i in range(weights.size):
        step = h * np.eye(weights.size)[i].reshape(weights.shape)
        first = values(weights + step) - values(weights - step)
        second = values(weights + 2 * step) - values(weights - 2 * step)
        differences.append((8 * first - second) / (12 * h))
    point = problem.at(weights)
    found = [
        point.mean_gradient.ravel(),
        point.variance_gradient.ravel(),
        climb._lagrangian(point)[1].ravel(),
    ]
    scale = np.abs(found).max(axis=1)
    assert scale.min() > 1e-3
    assert (np.abs(np.array(differences).T - found).max(axis=1) <= 1e-7 * scale).all()
    uniform = mdp.chain(np.full((mdp.n, mdp.actions), 1 / mdp.actions))
    _, by_mean, by_variance = criterion.slopes(uniform.mean()[1], uniform.variance()[1])
    unit = abs(by_mean) * uniform.std()[1] + abs(by_variance) * uniform.variance()[1]
    assert problem.unit == pytest.approx(unit)
