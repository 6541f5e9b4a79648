"""The forest on returns to go: against loops written from its equations, and against chains' closed forms."""

import dataclasses
import warnings

import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.random import keys, mammen
from policyrisk.data import Trajectories
from policyrisk.errors import ImproperPolicyError, InvalidInputError
from policyrisk.passes import here
from policyrisk.returns import _forest_kernels as _kernels
from policyrisk.returns import forest
from policyrisk.returns.forest import ReturnForest, grown_trees
from policyrisk.returns.forest_sums import Ends, LeafSums, OwnEnds

CHAIN = pr.domains.walk(n=10, p=0.7)
STATES = np.arange(10)


def grown(data, y, trees=6, leaf=5, seed=3):
    return grown_trees(ReturnForest(trees=trees, leaf=leaf), data, y, keys(seed))


def z_scores(risk, chain=CHAIN, of="mean"):
    truth = getattr(chain, of)()
    return (getattr(risk, of)(STATES) - truth) / risk.standard_error(STATES, of=of)


# --- the loops ------------------------------------------------------------------------------------------


def test_a_split_is_the_best_one_there_is():
    """With very many tries along one coordinate every split has been tried."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 30, (400, 1)).astype(float), rng.normal(size=400)
    y += (x[:, 0] > 17) * 1.5
    y -= y.mean()
    feature, threshold = np.empty(900, np.int64), np.empty(900)
    episode = np.arange(400)
    _kernels.grow(x, y, episode, np.ones(400, bool), 5, 5, 2000, *keys(1), 0, feature, threshold)
    cuts = [c for c in range(30) if 5 <= (x <= c).sum() <= 395]
    squares = [sum(y[side].var() * side.sum() for side in (x[:, 0] <= c, x[:, 0] > c)) for c in cuts]
    assert (feature[0], threshold[0]) == (0, cuts[int(np.argmin(squares))])


@pytest.mark.parametrize("leaf", [3, 12])
def test_every_leaf_holds_enough_episodes_of_either_half(leaf):
    data = CHAIN.sample(0, episodes=120, seed=1)
    leaves, apart = grown(data, data.returns_to_go(), leaf=leaf)
    active = leaves.active(data.states[data.visited_rows])
    episode = np.repeat(np.arange(len(data)), data.lengths)
    np.testing.assert_array_equal(apart[:, 0], ~apart[:, 1])  # pairs
    assert apart[:, 0].sum() == 60
    fewest = []
    for tree in range(leaves.trees):
        for side in (apart[episode, tree], ~apart[episode, tree]):
            of_leaves = [episode[side & (active[:, tree] == number)] for number in np.unique(active[:, tree])]
            fewest += [len(np.unique(some)) for some in of_leaves]
    assert min(fewest) >= leaf
    assert leaves.size > leaves.trees


def test_sums_over_leaves_are_those_of_loops(monkeypatch):
    monkeypatch.setattr("policyrisk.returns.forest_sums._PIECE", 40)
    data = CHAIN.sample(0, episodes=30, seed=2)
    y = data.returns_to_go()
    leaves, apart = grown(data, y, leaf=3)
    sums = LeafSums.over(leaves, data, y, apart, centre=-5.0)
    xi = np.empty((30, 4))
    mammen(*keys(9), 7 + np.arange(30), xi)
    active = leaves.active(data.states[data.visited_rows])
    episode = np.repeat(np.arange(30), data.lengths)
    counted = apart[episode]
    value, drawn = np.zeros(leaves.size), np.zeros((leaves.size, 4))
    for number in range(leaves.size):
        inside = ((active == number) & counted).any(axis=1)
        assert sums.visits[number] == inside.sum()
        assert sums.feature_episodes[number] == len(np.unique(episode[inside]))
        value[number] = y[inside].mean()
        for k in np.unique(episode[inside]):
            drawn[number] += xi[k] * (y[inside & (episode == k)] - value[number]).sum()
    np.testing.assert_allclose(sums.values, value, rtol=1e-12)
    found = sums.draws(leaves, data, y, apart, keys(9), 7 + np.arange(len(data)), 4)
    np.testing.assert_allclose(found, drawn, rtol=1e-9, atol=1e-9)
    expected = []
    for t in range(len(y)):
        other = []
        for tree in np.flatnonzero(counted[t]):
            inside = (active[:, tree] == active[t, tree]) & counted[:, tree] & (episode != episode[t])
            other.append(y[inside].mean())
        expected.append(np.mean(other))
    np.testing.assert_allclose(sums.out_of_bag(leaves, data, y, apart), expected, rtol=1e-12)


@pytest.mark.parametrize("power", [1, 2])
def test_values_at_the_ends_solve_their_equations(power):
    chain = pr.MarkovChain(CHAIN.P, np.full(10, -1.0), discount=0.9) if power == 2 else CHAIN
    data = chain.sample(0, episodes=80, seed=3, max_steps=12)
    assert 20 < (~data.terminated).sum() < 70
    y = data.returns_to_go(chain.discount)
    leaves, apart = grown(data, y, leaf=3)
    ends = Ends.of(data, (), chain.discount, 0)
    sums = LeafSums.over(leaves, data, y, apart, 0.0)
    missing = np.isnan(ends.mean.values)
    own = OwnEnds.of(ends, leaves, apart, sums.visits, missing, power)
    e = own.solve(sums.values)
    # The leaves' averages of the completed numbers, averaged over trees, are the values at the ends again.
    completed = LeafSums.over(leaves, data, ends.steps.completed(y, e, power), apart, 0.0)
    np.testing.assert_allclose(leaves(ends.steps.cuts) @ completed.values / leaves.trees, e, rtol=1e-8)
    n = np.concatenate([np.arange(length, 0, -1) for length in data.lengths])
    cut = np.repeat(~data.terminated, data.lengths)
    number = np.repeat(np.cumsum(~data.terminated) - 1, data.lengths)
    expected = np.where(cut, y + chain.discount ** (power * n) * e[number], y)
    np.testing.assert_allclose(ends.steps.completed(y, e, power), expected, rtol=1e-12)


# --- the estimate -----------------------------------------------------------------------------------------


def test_mean_and_variance_are_the_chains():
    data = CHAIN.sample(0, episodes=3000, seed=4)
    risk = ReturnForest().fit(data, bootstrap=400, seed=0)
    for of in ("mean", "variance", "std"):
        assert np.abs(z_scores(risk, of=of)).max() < 3.5
    assert (risk.standard_error(STATES, of="std") < 0.1 * CHAIN.std()).all()
    assert (risk.variance(STATES) > 0).all()
    assert risk.provenance.estimator == "forest"


def test_cut_off_episodes_are_completed():
    data = CHAIN.sample(0, episodes=1500, seed=5, max_steps=25)
    assert 0.2 < 1 - data.terminated.mean() < 0.6
    alone = ReturnForest().fit(data, bootstrap=200, seed=0)
    lstd = pr.LSTD(pr.Tabular(10), variance="direct").fit(data, bootstrap=200, seed=0)
    helped = ReturnForest().fit(data, tail=lstd, bootstrap=200, seed=0)
    for risk in (alone, helped):
        for of in ("mean", "variance"):
            assert np.abs(z_scores(risk, of=of)).max() < 4
        # What follows the cut is uncertain, too: LSTD's errors know that.
        ratio = risk.standard_error(STATES, "mean") / lstd.standard_error(STATES, "mean")
        assert (ratio > 0.75).all()
    plain = ReturnForest().fit(replace_ends(data), seed=0)  # as if they had ended
    assert (
        np.abs(plain.mean(STATES) - CHAIN.mean()).max() > 5 * np.abs(alone.mean(STATES) - CHAIN.mean()).max()
    )


def replace_ends(data):
    return Trajectories(data.states, data.rewards, data.lengths, np.ones(len(data), bool))


def test_discounted_without_ends():
    chain = pr.MarkovChain([[0.5, 0.5], [0.3, 0.7]], [1.0, 3.0], discount=0.8)
    data = chain.sample(0, episodes=600, seed=6, max_steps=10)
    assert not data.terminated.any()
    risk = ReturnForest(discount=0.8).fit(data, bootstrap=200, seed=0)
    for of in ("mean", "variance"):
        z = (getattr(risk, of)([0, 1]) - getattr(chain, of)()) / risk.standard_error([0, 1], of=of)
        assert np.abs(z).max() < 4
    with pytest.raises(ImproperPolicyError, match="all cut off"):
        ReturnForest().fit(data)


def test_replicates_go_with_those_of_lstd():
    """The same multipliers for the same episodes: what moves one estimate moves the other."""
    data = CHAIN.sample(0, episodes=1000, seed=7)
    risks = [
        pr.LSTD(pr.Tabular(10), lam=1.0, variance="direct").fit(data, bootstrap=300, seed=11),
        ReturnForest().fit(data, bootstrap=300, seed=11),
    ]
    # Ṽ from squared residuals and from Σδ² are two statistics of the same episodes.
    for which, least in ((0, 0.85), (1, 0.6)):
        moves = [
            risk.error_bars.deviations(risk.features(STATES), risk.second_features(STATES))[which]
            for risk in risks
        ]
        together = [np.corrcoef(a, b)[0, 1] for a, b in zip(*moves, strict=True)]
        assert min(together) > least


def test_rewards_far_from_zero_lose_no_digits():
    rng = np.random.default_rng(8)
    states = rng.uniform(size=(2000, 1))
    rewards = states[:1000, 0] + rng.normal(size=1000)
    lengths, terminated = np.ones(1000, int), np.ones(1000, bool)
    near, far = (
        ReturnForest().fit(Trajectories(states, rewards + shift, lengths, terminated), seed=1)
        for shift in (0.0, 1e9)
    )
    x = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(far.variance(x), near.variance(x), rtol=1e-5)
    np.testing.assert_allclose(far.mean(x) - 1e9, near.mean(x), atol=1e-5)


def test_out_of_bag_knows_nothing_of_its_own_episode():
    """Changing one episode's rewards changes no out-of-bag estimate of it, but for the trees' shape."""
    data = CHAIN.sample(0, episodes=200, seed=9)
    fitted = ReturnForest().fit_out_of_bag(data, seed=0)
    assert fitted.mean.shape == fitted.variance.shape == data.rewards.shape
    B, J = data.returns_to_go(), fitted.mean
    # In-bag residuals would be smaller than those of the truth, out-of-bag ones are a little larger.
    truth = CHAIN.mean()[data.states[data.visited_rows, 0]]
    assert 1 < ((B - J) ** 2).mean() / ((B - truth) ** 2).mean() < 1.1
    rewards = data.rewards.copy()
    rewards[: data.lengths[0]] += 100.0
    moved = Trajectories(data.states, rewards, data.lengths, data.terminated)
    apart_from_it = ReturnForest().fit_out_of_bag(moved, seed=0).mean[: data.lengths[0]]
    np.testing.assert_allclose(apart_from_it, J[: data.lengths[0]], rtol=1e-9)


# --- where the data are -----------------------------------------------------------------------------------


def test_a_stream_is_fitted_as_what_it_holds():
    data = CHAIN.sample(0, episodes=300, seed=10, max_steps=30)
    whole = ReturnForest().fit(data, bootstrap=50, seed=1)
    parts = [data[:100], data[100:110], data[110:]]
    by_passes = ReturnForest().fit_by(here(parts), data, bootstrap=50, seed=1)
    for other in (ReturnForest().fit(parts, bootstrap=50, seed=1), by_passes):
        np.testing.assert_array_equal(other.w_second, whole.w_second)
        np.testing.assert_array_equal(other.error_bars.replicates, whole.error_bars.replicates)
        assert other.features == whole.features
        assert other.provenance == whole.provenance


@pytest.mark.parametrize("max_steps", [None, 30])
def test_large_data_are_passed_over(monkeypatch, max_steps):
    """Trees of a sample, values of all the data: the same however these are cut, and the chain's."""
    monkeypatch.setattr(forest, "TRANSITIONS", 8_000)
    data = CHAIN.sample(0, episodes=3000, seed=11, max_steps=max_steps)
    settings = ReturnForest()
    whole = settings.fit(data, bootstrap=200, seed=1)
    parts = settings.fit([data[:1], data[1:1700], data[1700:]], bootstrap=200, seed=1)
    np.testing.assert_allclose(parts.w_mean, whole.w_mean, rtol=1e-9)
    np.testing.assert_allclose(parts.w_second, whole.w_second, rtol=1e-9)
    np.testing.assert_allclose(parts.error_bars.replicates, whole.error_bars.replicates, rtol=1e-4, atol=1e-6)
    assert whole.provenance.episodes == 3000
    assert whole.support.feature_episodes.max() <= 3000
    for of in ("mean", "variance"):
        assert np.abs(z_scores(whole, of=of)).max() < 4
    # As sure as a table of all the data, not as one of the sample.
    table = pr.LSTD(pr.Tabular(10), lam=1.0, variance="direct").fit(data)
    ratio = whole.standard_error(STATES, "mean") / table.standard_error(STATES, "mean")
    assert 0.6 < ratio.mean() < 1.6
    np.testing.assert_allclose(whole.starts.mean, whole.mean([0])[0], rtol=1e-9)


def test_parts_elsewhere_keep_their_numbers(monkeypatch):
    """Two parts draw for each episode what one does."""
    data = CHAIN.sample(0, episodes=400, seed=12)
    halves = [data[:150], data[150:]]

    def reduce(work):
        return work(halves[0], 0) + work(halves[1], 1)

    one, two = (
        ReturnForest().fit_by(each, data[:200], bootstrap=20, seed=1) for each in (here(data), reduce)
    )
    np.testing.assert_allclose(two.error_bars.replicates, one.error_bars.replicates, rtol=1e-4, atol=1e-6)


def test_trees_on_the_same_numbers_are_grown_once():
    data = CHAIN.sample(0, episodes=60, seed=15)
    other = pr.Trajectories(data.states[:, ::-1] + 1.0, data.rewards, data.lengths, data.terminated)
    kept, mean = {}, ReturnForest(trees=4).fit_out_of_bag(data, seed=1).mean + 5.0
    calls = [
        (ReturnForest(trees=4), {"data": data, "seed": 1}, 2),
        (ReturnForest(trees=4), {"data": data, "seed": 1, "bootstrap": 10}, 2),
        (ReturnForest(trees=4), {"data": data, "seed": 1, "mean": mean}, 3),
        (ReturnForest(trees=4), {"data": data, "seed": 2}, 5),
        (ReturnForest(trees=6), {"data": data, "seed": 1}, 7),
        (ReturnForest(trees=4), {"data": other, "seed": 1}, 9),
    ]
    for settings, arguments, count in calls:
        again = settings.fit_out_of_bag(**arguments, grown=kept)
        assert len(kept) == count
        alone = settings.fit_out_of_bag(**arguments)
        for name in ("features", "second_features"):
            assert getattr(again.risk, name) == getattr(alone.risk, name)
        for name in ("w_mean", "w_second"):
            np.testing.assert_array_equal(getattr(again.risk, name), getattr(alone.risk, name))
        np.testing.assert_array_equal(again.variance, alone.variance)


def test_residuals_from_another_mean():
    """A mean that is off by c adds c² to the variance, of which the forest's own stage knows nothing."""
    data = CHAIN.sample(0, episodes=400, seed=16)
    own = ReturnForest().fit_out_of_bag(data, seed=1)
    same = ReturnForest().fit_out_of_bag(data, mean=own.mean, seed=1)
    np.testing.assert_array_equal(same.risk.w_second, own.risk.w_second)
    off = ReturnForest().fit_out_of_bag(data, mean=own.mean + 30.0, seed=1)
    np.testing.assert_array_equal(off.risk.w_mean, own.risk.w_mean)
    np.testing.assert_allclose(off.risk.variance(STATES) - own.risk.variance(STATES), 900, rtol=0.2)
    # The same of data of which the trees know a sample.
    exact = pr.LSTD(pr.Tabular(10)).fit_exact(CHAIN, start=0)
    shifted = dataclasses.replace(exact, w_mean=exact.w_mean + 30.0)
    sample = data[:200]
    at = sample.states[sample.visited_rows]
    near, far = (
        ReturnForest().fit_by(here(data), sample, mean=J.mean(at), around=J, seed=1) for J in (exact, shifted)
    )
    np.testing.assert_allclose(near.variance(STATES[:8]), CHAIN.variance()[:8], rtol=0.3)
    np.testing.assert_allclose(far.variance(STATES) - near.variance(STATES), 900, rtol=0.2)
    # Of a mean with a share of two thirds, beside the forest's own, what it is off by counts that much.
    part = ReturnForest().fit_by(
        here(data), sample, mean=shifted.mean(at), around=shifted, share=2 / 3, seed=1
    )
    np.testing.assert_allclose(part.variance(STATES) - near.variance(STATES), 400, rtol=0.2)


def test_saved_and_loaded(tmp_path):
    data = CHAIN.sample(0, episodes=200, seed=13)
    risk = ReturnForest().fit(data, bootstrap=50, seed=1)
    risk.save(tmp_path / "forest.npz")
    again = pr.RiskFunction.load(tmp_path / "forest.npz")
    assert again.features == risk.features
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(again.interval(STATES, of="std"), risk.interval(STATES, of="std"))
    assert again.summary().mean.value == risk.summary().mean.value


def test_the_same_seed_gives_the_same_forest():
    data = CHAIN.sample(0, episodes=200, seed=14)
    one, two, other = (ReturnForest().fit(data, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.w_mean, two.w_mean)
    assert one.features == two.features != other.features
    assert one.error_bars is None


def test_what_cannot_be_fitted_is_refused():
    data = CHAIN.sample(0, episodes=10, seed=15)
    with pytest.raises(InvalidInputError, match="even"):
        ReturnForest(trees=5)
    with pytest.raises(InvalidInputError, match="at least 4 episodes"):
        ReturnForest().fit(data[:3])
    with pytest.raises(InvalidInputError, match="got none"):
        ReturnForest().fit([])
    with pytest.raises(InvalidInputError, match="re-iterable"):
        ReturnForest().fit(iter([data]))
    tail = pr.LSTD(pr.Tabular(10), discount=0.9).fit(data, error_bars=False)
    with pytest.raises(InvalidInputError, match=r"discount=1, got 0\.9"):
        ReturnForest().fit(data, tail=tail)
    # A group of states that is never left: what follows there is not in the data.
    ended = np.arange(120) < 100
    closed = Trajectories(np.repeat(~ended, 2) * 1.0, np.ones(120), np.ones(120, int), ended)
    with pytest.raises(ImproperPolicyError, match="cannot be estimated"):
        ReturnForest(leaf=2).fit(closed, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("max_steps", [None, 25])
def test_intervals_cover(max_steps):
    """Nominal 95 % intervals over 80 data sets of 300 episodes, at three states.

    Those of the mean cover. Those of the std cover as little as the forest's docstring says: their
    replicates take the mean as given, and squares of skewed returns for normal numbers.
    """
    x = np.array([0, 3, 6])
    hits: dict[str, list] = {"mean": [], "std": []}
    for seed in range(80):
        data = CHAIN.sample(0, episodes=300, seed=seed, max_steps=max_steps)
        risk = ReturnForest(trees=20).fit(data, bootstrap=200, seed=seed)
        for of, found in hits.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                low, high = risk.interval(x, of=of).T
            truth = getattr(CHAIN, of)()[x]
            found.append((low <= truth) & (truth <= high))
    assert 0.92 <= np.mean(hits["mean"]) <= 0.99
    assert 0.84 <= np.mean(hits["std"]) <= 0.91
