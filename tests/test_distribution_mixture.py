"""The mixture of distributions against plain loops, exact distributions and fresh episodes."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import policyrisk as pr
from policyrisk.errors import FewEpisodesWarning, InvalidInputError
from policyrisk.returns import DistributionMixture
from policyrisk.returns.curves import Grid
from policyrisk.returns.distribution_function import DistributionAtStates
from policyrisk.returns.distribution_mixture import ends_of, read_at
from policyrisk.risk.state_estimates import member_picks
from policyrisk.selection.distribution_stack import Averages, LeastSquares, thresholds

CHAIN = pr.domains.walk(n=12, p=0.7)
X = np.arange(0, 12, 2)[:, None]


@pytest.fixture(scope="module")
def result():
    return pr.evaluate(CHAIN.sample(0, 300, seed=3), quantiles=[0.05], loss_below=-20.5, seed=0)


def test_it_is_the_sum_of_its_members(result):
    """At one state and one return, from weights, shares and J, σ alone."""
    dist = result.distribution
    assert isinstance(dist, DistributionMixture)
    assert sum(each.share for each in dist.members) == pytest.approx(1.0)
    x, z = np.array([[4]]), -21.3
    total = 0.0
    for each in dist.members:
        phi = np.ones((1, 1)) if each.features is None else each.features(x)
        F = np.clip(np.sort(np.asarray(phi @ each.weights)[0]), 0, 1)
        if each.residual:
            at = (z - dist.mean(x)[0]) / np.sqrt(max(dist.variance(x)[0], dist.least_variance))
            total += each.share * np.interp(at, dist.residuals, F, left=0.0, right=1.0)
        else:
            total += each.share * np.interp(z, dist.thresholds, F, left=0.0, right=1.0)
    # Between its own thresholds the mixture is drawn straight.
    assert dist.cdf(x, z)[0] == pytest.approx(total, abs=0.01)


def test_quantiles_and_probabilities_belong_together(result):
    dist = result.distribution
    for q in (0.05, 0.5, 0.9):
        at = dist.quantile(X, q)
        again = [dist.cdf(x[None], float(z))[0] for x, z in zip(X, at, strict=True)]
        assert np.allclose(again, q, atol=1e-6)
    assert (dist.cvar(X, 0.05) < dist.quantile(X, 0.05)).all()
    assert np.allclose(dist.probability(X, below=-20.5) + dist.probability(X, above=-20.5), 1.0)
    assert np.array_equal(dist.mean(X), result.risk.mean(X))
    assert np.array_equal(dist.std(X), result.risk.std(X))
    assert np.array_equal(dist.interval(X, of="std"), result.risk.interval(X, of="std"))


def test_the_mean_and_the_std_of_F_are_those_of_the_answer(result):
    """Within the draws: E[B] = θ_m − ∫F dz and E[B²] = θ_m² − 2 ∫z F dz, F straight between thresholds."""
    other = pr.evaluate(skewed(300), seed=0)
    for one, x in ((result, X), (other, np.linspace(0.1, 0.9, 9)[:, None])):
        dist, far = one.distribution, []
        for some, grid, curves in dist.readings(x):
            for state, z, F in zip(x[some], grid.theta, curves[:, :-3], strict=True):
                a, b, low, high = z[:-1], z[1:], F[:-1], F[1:]
                mean = z[-1] - np.sum((b - a) * (low + high) / 2)
                square = z[-1] ** 2 - np.sum((b - a) * (a * (2 * low + high) + b * (low + 2 * high))) / 3
                std = np.sqrt(square - mean**2)
                for of, value in (("mean", mean * dist.unit), ("std", std * dist.unit)):
                    ends = one.risk.interval(state[None], of=of)[0]
                    assert ends[0] <= value <= ends[1], (state, of, value, ends)
                    far.append(abs(value - ends.mean()) / (ends[1] - ends[0]))
        assert len(far) == 2 * len(x)
        assert np.median(far) < 0.25  # a quarter of the interval, from its middle


def skewed(episodes):
    """One step from x in [0, 1], with the reward x times a lognormal one."""
    rng = np.random.default_rng(4)
    x = rng.random((episodes, 1))
    rewards = x[:, 0] * rng.lognormal(sigma=0.5, size=episodes)
    states = np.stack([x, np.full_like(x, 2.0)], axis=1).reshape(-1, 1)
    return pr.Trajectories(states, rewards, np.ones(episodes, int), np.ones(episodes, bool))


def test_intervals_hold_the_exact_tail():
    held, total = np.zeros(3), 0
    truth = CHAIN.quantile(0.05)[X[:, 0]], CHAIN.cvar(0.05)[X[:, 0]]
    below = np.array([CHAIN.distribution(int(x)).cdf(-20.5) for x in X[:, 0]])
    for seed in range(6):
        dist = pr.evaluate(CHAIN.sample(0, 300, seed=seed), quantiles=[0.05], seed=0).distribution
        ends = [dist.interval(X, of=of, q=0.05) for of in ("quantile", "cvar")]
        ends.append(dist.interval(X, of="probability", below=-20.5))
        for k, (at, true) in enumerate(zip(ends, (*truth, below), strict=True)):
            slack = 0.5 if k == 0 else 0.0  # the returns are whole numbers
            held[k] += np.count_nonzero((at[:, 0] - slack <= true) & (true <= at[:, 1] + slack))
        total += len(X)
        assert (ends[0][:, 1] - ends[0][:, 0] < 25).all()
    assert (held / total > 0.85).all()


def test_more_episodes_are_surer():
    widths = []
    for episodes in (150, 2400):
        dist = pr.evaluate(CHAIN.sample(0, episodes, seed=1), quantiles=[0.05], seed=0).distribution
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewEpisodesWarning)
            widths.append(np.ptp(dist.interval(X, q=0.05), axis=1).mean())
    assert widths[1] < 0.5 * widths[0]


def test_few_episodes_in_the_tail_are_said():
    dist = pr.evaluate(CHAIN.sample(0, 100, seed=1), quantiles=[0.05], seed=0).distribution
    with pytest.warns(FewEpisodesWarning):
        dist.interval(X, q=0.05)


def test_draws_take_members_as_often_as_their_shares_say():
    shares = np.array([0.5, 0.3, 0.2])
    picks = [member_picks(shares, 200, turn) for turn in range(3)]
    for each in picks:
        assert np.abs(np.bincount(each, minlength=3) / 200 - shares).max() < 0.02
    # Whatever one turn takes, another is free of it.
    both = np.histogram2d(picks[0], picks[1], bins=3)[0] / 200
    assert np.abs(both - np.outer(shares, shares)).max() < 0.05


def test_members_that_disagree_widen_the_interval(result):
    """One member alone has randomness in its draws, two of equal shares their distance as well."""
    dist = result.distribution
    x = X[:2]
    low, high = dist.interval(x, of="probability", below=-30.0).T
    alone = replace(dist, members=(replace(dist.members[0], share=1.0),))
    other = alone.members[0]
    shifted = replace(
        other, name="off", share=0.5, weights=np.clip(other.weights + 0.2 * (other.weights > 0), 0, None)
    )
    both = replace(dist, members=(replace(other, share=0.5), shifted))
    width = np.ptp(alone.interval(x, of="probability", below=-30.0), axis=1)
    assert (np.ptp(both.interval(x, of="probability", below=-30.0), axis=1) > width).all()
    assert (high > low).all()


def test_intervals_are_read_off_the_draws():
    """Uniform returns whose ends move: the quantile moves with them."""
    theta = np.linspace(0.0, 1.0, 11)
    rng = np.random.default_rng(0)
    shift = 0.05 * rng.standard_normal(2000)
    drawn = np.clip(theta - shift[:, None], 0.0, 1.0)[None]
    ends = ends_of(Grid(theta, False), theta[None], drawn, "quantile", 0.5, 0.0, 0.95, np.array([1e6]))
    assert np.allclose(ends, [[0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05]], atol=0.01)
    never = ends_of(Grid(theta, False), theta[None], drawn, "cdf", 0.5, -1.0, 0.95, np.array([10.0]))
    assert never[0].tolist() == pytest.approx([0.0, 1 - 0.05 ** (1 / 10)])


def test_reading_between_thresholds():
    F, theta = np.array([[0.2, 0.6, 1.0], [0.0, 0.5, 1.0]]), np.array([1.0, 2.0, 4.0])
    z = np.array([[0.5, 1.0, 3.0, 5.0], [1.5, 2.0, 3.9, 4.0]])
    straight = np.array([[0.0, 0.2, 0.8, 1.0], [0.25, 0.5, 0.975, 1.0]])
    assert np.allclose(read_at(F, theta, z), straight)
    steps = np.array([[0.0, 0.2, 0.6, 1.0], [0.0, 0.5, 0.5, 1.0]])
    assert np.allclose(read_at(F, theta, z, steps=True), steps)
    assert np.allclose(read_at(F, theta, z, end=0.0)[:, -1], 0.0)


@pytest.mark.parametrize("kind", ["least squares", "averages"])
def test_moves_are_what_weighing_a_group_changes(kind):
    rng = np.random.default_rng(0)
    n, m, groups = 120, 5, 6
    targets = np.sort(rng.random((n, m)), axis=1)
    group = rng.integers(groups, size=n)
    if kind == "averages":
        leaf = rng.integers(4, size=n)
        phi = sp.csr_array((np.ones(n), (np.arange(n), leaf)), shape=(n, 4))
        rows = Averages(phi, 1)
        expected = np.stack([targets[leaf == k].mean(axis=0) for k in range(4)])
    else:
        phi = rng.standard_normal((n, 4))
        rows = LeastSquares(phi)
        expected = np.linalg.lstsq(phi, targets, rcond=None)[0]
    sums = rows.sums(targets, np.arange(n))
    W = rows.weights(sums)
    assert np.allclose(W, expected)
    moves = rows.moves(targets, sums, W, group, groups)
    assert np.allclose(moves.sum(axis=1), 0.0, atol=1e-9)
    h = 1e-6
    dense = phi.toarray() if sp.issparse(phi) else phi
    for g in range(groups):
        weight = 1.0 + h * (group == g)
        gram = (dense * weight[:, None]).T @ dense
        changed = np.linalg.solve(gram, (dense * weight[:, None]).T @ targets)
        assert np.allclose((changed - W) / h, moves[:, g], atol=1e-4)


def test_thresholds_are_the_returns_where_they_are_few():
    theta, steps = thresholds(np.array([3.0, 1.0, 1.0 + 1e-13, 2.0]))
    assert (theta.tolist(), steps) == ([1.0, 2.0, 3.0], True)
    theta, steps = thresholds(np.random.default_rng(0).standard_normal(1000))
    assert not steps
    assert (np.diff(theta) > 0).all()
    assert theta.size <= 54


def coin(p, episodes, seed=0):
    """One step, and 1 with probability p[x], else 0."""
    rng = np.random.default_rng(seed)
    x = rng.integers(len(p), size=episodes)
    states = np.column_stack([x, x]).reshape(-1, 1)
    rewards = (rng.random(episodes) < np.array(p)[x]).astype(float)
    return pr.Trajectories(states, rewards, np.ones(episodes, int), np.ones(episodes, bool))


def test_returns_of_few_values_have_atoms():
    p = [0.5, 0.98, 0.02]
    dist = pr.evaluate(coin(p, 3000), quantiles=[0.1], seed=0).distribution
    at = np.arange(3)[:, None]
    assert np.allclose(dist.quantile(at, 0.1), [0, 1, 0], atol=1e-6)
    assert np.allclose(dist.probability(at, below=1.0), 1 - np.array(p), atol=0.05)
    assert np.allclose(dist.probability(at, below=0.0), 0.0, atol=1e-9)
    assert np.allclose(dist.probability(at, above=0.0), p, atol=0.05)
    low, high = dist.interval(at, of="probability", below=0.5).T
    assert ((low <= 1 - np.array(p)) & (1 - np.array(p) <= high)).all()


def test_location_and_scale_of_few_values_are_values():
    """30 places, and from place x the return −x, or −x − 1 with the probability .2: a forest mixes places."""
    rng = np.random.default_rng(2)
    x = rng.integers(30, size=300)
    rewards = -x - (rng.random(300) < 0.2).astype(float)
    states = np.column_stack([x, x]).reshape(-1, 1)
    data = pr.Trajectories(states, rewards, np.ones(300, int), np.ones(300, bool))
    dist = pr.evaluate(data, quantiles=[0.05], seed=0).distribution
    assert dist.grid.steps
    assert "location and scale" in [each.name for each in dist.members]
    at = np.arange(3, 27)[:, None]
    found = dist.quantile(at, 0.05)
    assert np.allclose(found, np.round(found), atol=1e-6)
    assert np.abs(found + at[:, 0] + 1).mean() < 0.3
    low, high = dist.interval(at, q=0.05).T
    assert ((low - 1e-6 <= -at[:, 0] - 1) & (-at[:, 0] - 1 <= high + 1e-6)).mean() > 0.9


def test_cut_off_episodes_are_completed():
    data = CHAIN.sample(0, 600, seed=1)
    parts = []
    for k in range(len(data)):
        one, T = data[k], min(int(data.lengths[k]), 25)
        parts.append(pr.Trajectories(one.states[: T + 1], one.rewards[:T], [T], [T == data.lengths[k]]))
    cut = pr.Trajectories.concatenate(parts)
    assert 0.2 < 1 - cut.terminated.mean() < 0.9
    result = pr.evaluate(cut, quantiles=[0.05], seed=0)
    truth = CHAIN.quantile(0.05)[X[:, 0]]
    low, high = result.distribution.interval(X, q=0.05).T
    assert np.count_nonzero((low <= truth + 0.5) & (truth - 0.5 <= high)) >= 5
    assert abs(result.distribution.quantile([[0]], 0.05)[0] - truth[0]) < 8
    told = result.notes["distribution"]["quantiles"]["0.05"]
    assert told["low"] <= truth[0] + 0.5
    assert truth[0] - 0.5 <= told["high"]


def test_units_of_rewards_are_units_of_the_answers():
    data = CHAIN.sample(0, 300, seed=3)
    large = pr.Trajectories(data.states, 1024.0 * data.rewards, data.lengths, data.terminated)
    both = [pr.evaluate(each, quantiles=[0.05], seed=0).distribution for each in (data, large)]
    assert np.allclose(both[1].quantile(X, 0.05), 1024 * both[0].quantile(X, 0.05), rtol=1e-9)
    assert np.allclose(both[1].interval(X, of="cvar", q=0.05), 1024 * both[0].interval(X, of="cvar", q=0.05))
    assert np.allclose(both[1].probability(X, below=-20480.5), both[0].probability(X, below=-20480.5 / 1024))


def test_files(result, tmp_path):
    result.distribution.save(tmp_path / "d.npz")
    loaded = DistributionMixture.load(tmp_path / "d.npz")
    assert np.array_equal(loaded.interval(X, q=0.05), result.distribution.interval(X, q=0.05))
    assert isinstance(DistributionAtStates.load(tmp_path / "d.npz"), DistributionMixture)
    with pytest.raises(InvalidInputError, match="DistributionFunction"):
        pr.DistributionFunction.load(tmp_path / "d.npz")
    result.save(tmp_path / "folder")
    again = pr.Evaluation.load(tmp_path / "folder").distribution
    assert np.array_equal(again.interval(X, q=0.05), result.distribution.interval(X, q=0.05))
    # The folder keeps J and V once.
    alone = DistributionMixture.load(tmp_path / "folder" / "distribution.npz")
    with pytest.raises(InvalidInputError, match=r"load the folder by pr\.Evaluation\.load"):
        alone.quantile(X, 0.05)


def test_over_starts_it_is_the_average(result):
    dist = result.distribution
    over = dist.over(X)
    for z in (-40.0, -20.0, -10.0):
        assert over.below(z).value == pytest.approx(dist.cdf(X, z).mean(), abs=0.01)
    found = over.summary([0.05], below=[-20.5])
    assert found.quantiles[0.05].low < found.quantiles[0.05] < found.quantiles[0.05].high
    assert found.mean.value == pytest.approx(result.risk.mean(X).mean(), rel=0.05)


def test_held_out_scores_are_those_of_any_distribution(result):
    fresh = CHAIN.sample(0, 300, seed=99)
    table = pr.ReturnDistribution(pr.Tabular(12)).fit(CHAIN.sample(0, 300, seed=3))
    mixed, plain = result.distribution.score(fresh), table.score(fresh)
    assert mixed.crps.value < 1.05 * plain.crps.value
    assert sum(mixed.pit) == pytest.approx(1.0)
    assert max(mixed.pit) < 0.16


def test_tails_that_held_out_returns_contradict_are_said(result):
    assert not any("Bad returns" in each.title for each in result.advice)
    regions = [{"name": "x <= 3", "steps": 0.4, "below": 0.2, "error": 0.01}]
    notes = {**result.notes, "distribution": {**result.notes["distribution"], "regions": regions}}
    found = [each for each in replace(result, notes=notes).advice if "Bad returns" in each.title]
    assert found[0].severity == "serious"
    assert "x <= 3" in found[0].seen
    assert "tails say" in str(replace(result, notes=notes)) or "trust" in str(result)
