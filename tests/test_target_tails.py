"""The tails of a policy that never ran: F from every state, draws that reweigh the log, evaluate --target."""

import json

import numpy as np
import pandas as pd
import pytest
from test_evaluate import call
from test_lstdq import ACTIONS, N, log, policies, process
from test_questions import random_log

import policyrisk as pr
from policyrisk.data import write_parquet
from policyrisk.errors import InvalidInputError
from policyrisk.features.target import Target
from policyrisk.markov.branches import together
from policyrisk.markov.curves import GridCurves, LatticeCurves
from policyrisk.passes import here
from policyrisk.returns import chain_tails
from policyrisk.returns.chain_tails import ChainTails
from policyrisk.returns.robust_tails import robust_tails

P, R = process()
MU, PI = policies(1)
MU = (MU + 1 / ACTIONS) / 2


def counts(seed, episodes, n=N):
    """Episodes of the process whose reward is −1 a step."""
    data = log(P, np.full((n, ACTIONS), -1.0), MU, episodes, seed=seed)
    return pr.Trajectories(data.states, data.rewards, data.lengths, data.terminated, data.actions)


def tails(data, policy, features=None, discount=1.0):
    target = Target.of(policy, None, 2, 0)
    return ChainTails.fit_by(here(data), features or pr.Tabular(len(policy)), target, discount, 1.0)


# F from every state


@pytest.mark.parametrize("most", [400, 40])
@pytest.mark.parametrize("sign", [1.0, -0.5])
def test_curves_on_a_lattice_are_the_exact_distribution(sign, most):
    """Of gains and of costs, with a first step that earns nothing; all points, or some of them."""
    chain = pr.MarkovChain(pr.domains.walk(12).P, sign * np.r_[0.0, np.ones(10), 3.0])
    curves = LatticeCurves.of(chain, most, 1)
    assert curves.every == (most == 400)
    assert (np.diff(curves.theta) > 0).all()
    F = curves.solve(chain.branches)
    for x in (0, 5, 11):
        np.testing.assert_allclose(F[x], chain.distribution(x).cdf(curves.theta), atol=1e-12)


def test_curves_on_a_grid_are_exact_where_rewards_are_on_it():
    steps = np.eye(8, k=1) - np.eye(8, k=-1)
    ends = [-1.0, *[0.0] * 6, 1.0]
    chain = pr.MarkovChain(np.abs(steps) * [[0.4], *[[0.5]] * 6, [0.3]], steps, terminal_rewards=ends)
    curves = GridCurves.of(chain, 1000)
    assert LatticeCurves.of(chain, 400, 1) is None
    assert curves.every
    F = curves.solve(chain.branches, curves.normal(chain.mean(), chain.variance()), 1e-12)
    for x in (0, 3, 7):
        np.testing.assert_allclose(F[x], chain.distribution(x).cdf(curves.theta), atol=1e-10)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_curves_on_a_grid_keep_the_mean_and_come_close_elsewhere(discount):
    rng = np.random.default_rng(0)
    chain = pr.MarkovChain(
        rng.dirichlet(np.ones(6), 5)[:, :5],
        rng.normal(size=(5, 5)),
        discount,
        terminal_rewards=rng.normal(size=5),
    )
    curves = GridCurves.of(chain, 1000)
    F = curves.solve(chain.branches, curves.normal(chain.mean(), chain.variance()), 1e-9)
    theta, heights = curves.theta, (F[:, 1:] + F[:, :-1]) / 2
    mean = theta[-1] - heights @ np.diff(theta)
    np.testing.assert_allclose(mean, chain.mean(), atol=1e-3 * chain.std().max())
    variance = theta[-1] ** 2 - heights @ np.diff(theta**2) - mean**2
    np.testing.assert_allclose(variance, chain.variance(), rtol=3e-3)
    for x in (1, 4):  # the bounds hold, but for the width of the grid
        known, h = chain.distribution(x), 2 * curves.h
        inner = slice(5, -5)
        assert (F[x][inner] <= known.lower.cdf(theta + h)[inner] + 1e-3).all()
        assert (F[x][inner] >= known.upper.cdf(theta - h)[inner] - 1e-3).all()


def test_equal_branches_are_put_together():
    chain = pr.MarkovChain.from_mdp([[[0.5]], [[0.25]]], [[1.0, 1.0]], [[0.5, 0.5]])
    assert chain.branches.reward.size == 4
    once, place = together(chain.branches)
    assert once.probability.tolist() == [0.375, 0.625]
    assert place[0] == place[2] != place[1] == place[3]
    rounded, _ = together(pr.MarkovChain([[0.5]], [[1.0]], terminal_rewards=[1.2]).branches, 10.0)
    assert rounded.reward.tolist() == [1.0, 1.2]  # they lead to different states


# tails of a log


@pytest.mark.parametrize("cut", [0.0, 0.4])
def test_they_are_those_of_the_log_as_a_chain(cut):
    data = random_log(3, n=5, actions=3, cut=cut, episodes=200)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), size=5)
    found, chain = tails(data, policy), pr.MarkovChain.from_log(data, pr.Tabular(5), policy)
    x = np.flatnonzero(chain.known)
    np.testing.assert_array_equal(found.visited(range(5)), chain.known)
    for of in ("mean", "variance", "std"):
        np.testing.assert_allclose(getattr(found, of)(x), getattr(chain, of)()[x], rtol=1e-10)
    cvar, quantile = found.cvar(x, 0.1), found.quantile(x, 0.1)
    for k, state in enumerate(x):
        exact = chain.distribution(state)
        assert cvar[k] == pytest.approx(exact.cvar(0.1), abs=2e-6 * exact.std / 0.1)
        assert exact.cdf(quantile[k]) >= 0.1 - 1e-9 > exact.cdf(quantile[k] - 0.25) - 2e-9
        assert found.probability([state], below=1.0)[0] == pytest.approx(exact.cdf(0.75), abs=1e-5)
    start = np.bincount(data.starts()[:, 0], minlength=5) * chain.known
    assert found.over().cvar(0.1).value == pytest.approx(
        chain.distribution(start / start.sum()).cvar(0.1), abs=1e-4
    )


def test_a_cell_without_an_answer_is_nan():
    data = pr.Trajectories([[0], [1], [2], [9]], [1.0, 1.0], [1, 1], [False, True], actions=[0, 0])
    found = tails(data, np.ones((4, 1)))
    np.testing.assert_array_equal(found.quantile([0, 2], 0.5), [np.nan, 1.0])
    np.testing.assert_array_equal(np.isnan(found.interval([0, 2], of="mean")), [[True] * 2, [False] * 2])
    assert found.over([[0], [2]]).unvisited == 1
    with pytest.raises(InvalidInputError, match="starts must hold a state that was visited"):
        found.over([[0]])


def test_the_errors_of_a_chance_are_those_of_weighted_averages():
    """One step, two actions: P(B < z) = Σ_a π(a) p_a, of variance Σ_a π(a)² p_a (1 − p_a) / n_a."""
    rng = np.random.default_rng(4)
    actions, returns = rng.integers(2, size=4000), rng.integers(-20, 0, size=4000) * 1.0
    data = pr.Trajectories([[0], [1]] * 4000, returns, [1] * 4000, [True] * 4000, actions)
    pi = np.array([0.8, 0.2])
    p = np.array([(returns[actions == a] < -15).mean() for a in (0, 1)])
    n = np.bincount(actions)
    value, error = pi @ p, np.sqrt(pi**2 @ (p * (1 - p) / n))
    found = tails(data, pi[None])
    for of in (found.over().below(-15.0), found.over([[0]]).below(-15.0)):
        assert of.value == pytest.approx(value, rel=1e-12)
        assert of.standard_error == pytest.approx(error, rel=0.25)  # 200 draws: 5 % of randomness
    low, high = found.interval([0], below=-15.0)[0]
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.3)
    std = found.over().estimate("mean")
    assert std.value == pytest.approx(pi @ [returns[actions == a].mean() for a in (0, 1)])
    spread = pi**2 @ [returns[actions == a].var() / n[a] for a in (0, 1)]
    assert std.standard_error == pytest.approx(np.sqrt(spread), rel=0.25)


def test_actions_that_were_logged_once_or_twice_count_as_they_vary():
    """One step from one of C cells: the mean over the starts has the variance Σ_c (σ / C)² / N_c."""
    rng = np.random.default_rng(8)
    cells, usual = 300, 15
    N = rng.integers(1, 4, size=cells)  # visits of the action that the target takes
    x = np.repeat(np.arange(cells), usual + N)
    actions = np.concatenate([np.repeat([0, 1], [usual, k]) for k in N])
    rewards = -rng.integers(1, 21, size=x.size) * 1.0  # σ² = (20² − 1) / 12, whatever is done
    order = rng.permutation(x.size)
    states = np.column_stack([x[order], x[order]]).reshape(-1, 1)
    data = pr.Trajectories(
        states, rewards[order], [1] * x.size, [True] * x.size, actions=actions[order].astype(np.int64)
    )
    found = tails(data, np.tile([0.0, 1.0], (cells, 1)))
    share = (usual + N) / x.size
    error = np.sqrt(share**2 @ (399 / 12 / N))
    assert found._error == pytest.approx(error, rel=0.1)
    over = found.over()
    drawn = found._random(over.curve, over.change[None], "mean", 0.5, 0.0)[1].std()
    assert drawn < 0.8 * error  # by the draws alone
    mean = over.estimate("mean")
    assert (mean.high - mean.low) / (2 * 1.96) == pytest.approx(found._error, rel=0.1)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_draws_on_a_coarse_grid_are_those_on_a_fine_one(discount, monkeypatch):
    data = log(P, R, MU, 150, seed=2)
    found = tails(data, PI, discount=discount)
    one = [found.over().cvar(0.1), found.over().quantile(0.5), found.over().estimate("std")]
    monkeypatch.setattr(chain_tails, "_COARSE", 400)
    monkeypatch.setattr(chain_tails, "_WORK", 1e12)
    again = tails(data, PI, discount=discount)
    assert again._draws[0].size > 2 * found._draws[0].size
    two = [again.over().cvar(0.1), again.over().quantile(0.5), again.over().estimate("std")]
    for coarse, fine in zip(one, two, strict=True):
        assert coarse.value == fine.value
        assert coarse.standard_error == pytest.approx(fine.standard_error, rel=0.06)


def test_starts_that_are_given_are_taken_as_they_are():
    data = counts(5, 300)
    found = tails(data, PI)
    own, given = found.over(), found.over(data.starts())
    assert own.cvar(0.1).value == given.cvar(0.1).value
    assert own.starts == given.starts == 300
    assert own.estimate("mean").standard_error != given.estimate("mean").standard_error


@pytest.mark.slow
def test_intervals_of_the_tails_cover():
    """Nominal 95 %, 300 logs of 300 episodes."""
    chain = pr.MarkovChain.from_mdp(P, np.full((N, ACTIONS), -1.0), PI)
    start = np.full(N, 1 / N)
    over = chain.distribution(start)
    truths = over.cvar(0.1), over.cdf(-12.0), chain.cvar(0.1)[2]
    hits = np.zeros(3)
    for seed in range(300):
        found = tails(counts(seed, 300), PI)
        ends = found.over().cvar(0.1), found.over().below(-11.5)
        ranges = [(each.low, each.high) for each in ends] + [found.interval([2], of="cvar", q=0.1)[0]]
        hits += [low <= truth <= high for (low, high), truth in zip(ranges, truths, strict=True)]
    assert (np.abs(hits / 300 - 0.955) < 0.04).all()


# States that last, some of them much longer than others: one cell for all of them is wrong.
LASTING = (0.6 * np.eye(N) + 0.4 * P / 0.8) * np.linspace(0.3, 0.95, N)[:, None]


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_doubly_robust_tails_are_right_whatever_the_critics_are(discount):
    """By a table, and by one cell for all states, where the chain is far off."""
    steps = np.full((N, ACTIONS), -1.0)
    data = log(LASTING, steps, MU, 1500, seed=1)
    exact = pr.MarkovChain.from_mdp(LASTING, steps, PI, discount).distribution(np.full(N, 1 / N))
    line = -1.5
    for cells in (pr.Tabular(N), pr.TileCoding([0], [N - 1], [1])):
        chain = tails(data, PI, cells, discount).without_intervals()
        robust = robust_tails(chain, data, Target.of(PI, None, 2, 0)).below(line)
        assert abs(robust.value - exact.cdf(line)) < 4 * robust.standard_error
        far = abs(chain.over().below(line).value - exact.cdf(line)) > 4 * robust.standard_error
        assert far == (cells.size == 1)


def test_doubly_robust_tails_are_weighted_averages_where_an_episode_is_one_step():
    """With critics that know nothing but the rest: the error of a weighted average, and no clusters."""
    rng = np.random.default_rng(4)
    actions, returns = rng.integers(2, size=4000), rng.integers(-20, 0, size=4000) * 1.0
    data = pr.Trajectories([[0], [1]] * 4000, returns, [1] * 4000, [True] * 4000, actions, np.full(4000, 0.5))
    pi = np.array([[0.8, 0.2]])
    found = robust_tails(tails(data, pi), data, Target.of(pi, None, 2, 0)).below(-15.0)
    share = [(returns[actions == a] < -15).mean() for a in (0, 1)]
    assert found.value == pytest.approx(pi[0] @ share, abs=2e-3)
    error = np.sqrt(
        np.mean((2 * pi[0][actions]) ** 2 * ((returns < -15) - np.take(share, actions)) ** 2) / 4000
    )
    assert found.standard_error == pytest.approx(error, rel=0.25)
    clustered = data.with_clusters(np.arange(4000) // 10)
    assert robust_tails(tails(data, pi), clustered, Target.of(pi, None, 2, 0)) is None


# in an evaluation


@pytest.fixture(scope="module")
def result():
    return pr.evaluate(counts(6, 800), target=PI, quantiles=[0.05, 0.5], loss_below=-10)


def test_an_evaluation_has_the_tails_of_its_target(result, tmp_path):
    assert isinstance(result.distribution, ChainTails)
    told = result.to_dict()["distribution"]
    assert told["features"] == "the log as a chain, tabular"
    assert set(told["quantiles"]) == {"0.05", "0.5"}
    assert "mean of the worst 5.0%" in str(result)
    assert "quantiles: by the log as a chain, tabular" in str(result)
    chain = pr.MarkovChain.from_mdp(P, np.full((N, ACTIONS), -1.0), PI)
    exact = chain.distribution(np.full(N, 1 / N))
    for estimate, truth in (("cvar", exact.cvar(0.05)), ("quantiles", exact.quantile(0.05))):
        found = told[estimate]["0.05"]
        assert abs(found["value"] - truth) < 4 * found["standard_error"]
    result.save(tmp_path / "saved")
    again = pr.Evaluation.load(tmp_path / "saved")
    np.testing.assert_array_equal(
        again.distribution.cvar(range(N), 0.05), result.distribution.cvar(range(N), 0.05)
    )
    one, two = (each.distribution.interval([1], of="probability", above=-3.0) for each in (again, result))
    np.testing.assert_array_equal(one, two)
    assert pr.plotting.plot_fan(again.distribution, range(N)).get_ylabel() == "return"
    assert "the log as a chain" in measured(result, tmp_path)


def measured(result, folder):
    result.report(folder / "report.html")
    return (folder / "report.html").read_text()


def test_propensities_check_the_chain(result, tmp_path):
    data = log(P, np.full((N, ACTIONS), -1.0), MU, 800, seed=6)
    found = pr.evaluate(data, target=PI, quantiles=[0.1], loss_below=-10, features="tabular:5")
    chain, robust = found.tails()[1], found.robust_tails()
    assert chain.keys() == robust.keys()
    for name, each in robust.items():
        assert abs(each.value - chain[name].value) < 4 * np.hypot(
            each.standard_error, chain[name].standard_error
        )
    assert "doubly robust, by propensities" in str(found)
    assert "doubly robust:" in measured(found, tmp_path)
    assert result.robust_tails() == {}  # no propensities
    data = log(LASTING, np.full((N, ACTIONS), -1.0), MU, 4000, seed=1)
    wrong = pr.evaluate(data, target=PI, quantiles=[0.1], loss_below=-1.5, features="tiles:1")
    seen = [
        each.seen
        for each in wrong.advice
        if each.title == "The estimate disagrees with what the episodes say"
    ]
    assert "by the chain against" in seen[0]


def test_two_targets_on_one_log_are_compared_draw_by_draw(result):
    other = pr.evaluate(counts(6, 800), target=0.9 * PI + 0.1 / ACTIONS, quantiles=[0.05])
    comparison = pr.compare({"a": result, "b": other}, criterion="cvar:0.05")
    together_ = comparison.significance.difference.standard_error
    assert "episode by episode of one log" in comparison.notes[-1]
    apart = [each.assessment.value.standard_error for each in comparison.ranking]
    assert together_ < 0.7 * np.hypot(*apart)
    elsewhere = pr.evaluate(counts(7, 800), target=PI, quantiles=[0.05])
    assert "independent" in pr.compare({"a": result, "b": elsewhere}, criterion="cvar:0.05").notes[-1]


def test_features_that_are_no_partition_leave_the_tails_to_one(tmp_path):
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 7, size=300)
    states = [np.cumsum(rng.normal(0.1, 0.1, (k + 1, 2)), axis=0) for k in lengths]
    steps, actions = int(lengths.sum()), rng.integers(2, size=int(lengths.sum()))
    data = pr.Trajectories(np.concatenate(states), rng.normal(size=steps), lengths, [True] * 300, actions)
    result = pr.evaluate(
        data, target=lambda x: np.tile([0.5, 0.5], (len(x), 1)), features="poly:1", quantiles=[0.05], seed=0
    )
    assert result.notes["distribution"]["features"].startswith("the log as a chain, tiles:")
    assert result.distribution.quantile([[0.3, 0.3]], 0.5).shape == (1,)
    same = pr.evaluate(
        data, target=lambda x: np.tile([0.5, 0.5], (len(x), 1)), features="tiles:3", quantiles=[0.05], seed=0
    )
    assert same.notes["distribution"]["features"] == "the log as a chain, tiles:3"


def test_states_of_several_labels_have_a_table_of_all_of_them():
    """Each cell by itself: the mean of the target is that of its action there, which no sum of tables has."""
    rng = np.random.default_rng(4)
    n = 800
    frame = pd.DataFrame(
        {"episode": range(n), "plan": rng.choice(["a", "b"], n), "usage": rng.choice(["x", "y"], n)}
    )
    frame["action"], frame["terminated"] = rng.choice(["call", "none"], n), True
    same = (frame.plan == "a") == (frame.usage == "x")
    frame["reward"] = np.where(same, 3.0, 0.0) * (frame.action == "call") + rng.normal(size=n).round(1)

    def target(states):
        return np.where(states[:, 0] == states[:, 1], "call", "none")

    result = pr.evaluate(
        frame, target=target, quantiles=[0.5], state=["plan", "usage"], action="action", seed=0
    )
    chosen = frame[(frame.action == "call") == same]
    means = chosen.groupby(["plan", "usage"]).reward.mean()
    shares = frame.groupby(["plan", "usage"]).size() / n
    assert result.notes["distribution"]["features"] == "the log as a chain, tiles:2x2"
    assert result.summary.mean_value == pytest.approx(float((means * shares).sum()), rel=1e-9)


def test_where_the_log_cannot_tell_there_are_no_intervals_of_the_tails(result):
    withdrawn = result.distribution.without_intervals()
    assert not withdrawn.has_intervals
    assert np.isnan(withdrawn.over().cvar(0.05).low)
    with pytest.raises(InvalidInputError, match="intervals need draws, which were withdrawn"):
        withdrawn.interval([1], q=0.05)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parquet(counts(8, 400), tmp_path / "log.parquet", state=["ward"])
    (tmp_path / "target_of_tails.py").write_text(
        f"policy = {PI.tolist()}\nimport numpy as np\npolicy = np.array(policy)\n"
    )
    line = [
        "evaluate",
        "log.parquet",
        "--state",
        "ward",
        "--target",
        "target_of_tails:policy",
        "--out",
        "ward",
    ]
    code, out, err = call(capsys, *line, "--quantiles", "0.05,0.5", "--loss-below", "-10", "--json")
    assert code == 0, err
    told = json.loads(out)["distribution"]
    assert told["below"].keys() == {"-10"}
    code, out, _ = call(capsys, "compare", "ward", "--criterion", "cvar:0.05")
    assert code == 0
    assert "mean of the worst 5.0%" in out


def test_the_grid_holds_returns_without_chance():
    """Its ends are some stds away from the means, and there are none: one more point on each side is left."""
    chain = pr.MarkovChain([[0, 1, 0], [0, 0, 1], [0, 0, 0]], [1.0, -2.0, 0.0])  # −1, −2 and 0
    assert GridCurves.of(chain, 100).theta.tolist() == [-3.0, -2.0, -1.0, 0.0, 1.0]
