"""Intervals for one return: their coverage, known exactly, whatever the model; those of evaluations."""

import json
import math
import warnings

import numpy as np
import pytest
from scipy.stats import expon, norm

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.errors import FewEpisodesWarning, InvalidInputError, PolicyRiskWarning
from policyrisk.evaluation.prediction import Scores

CHAIN = pr.domains.walk(n=12, p=0.7)


TASKS = {
    # x in (0, 1) to (J, σ, the true distribution of B)
    "right": lambda x: (x, 1.0 + x, norm(x, 1.0 + x)),
    "skewed": lambda x: (1.0 + 0 * x, 1.0 + x, expon(0, 1.0 + x)),
    "wrong": lambda x: (3.0 - 5.0 * x, 0.2 + 0 * x, norm(x, 1.0 + 3.0 * x)),
}


@pytest.mark.parametrize("task", TASKS)
def test_of_10_000_calibrations_exactly_as_many_hold_whatever_the_model(task):
    """The coverage given the calibration is known; over two regions, of 60 episodes each."""
    rng, repeats, n = np.random.default_rng(1), 10_000, 60
    quantiles = norm.ppf((np.arange(99) + 0.5) / 99)
    x = rng.random((repeats, n + 1)) / 2
    for region in (0.0, 0.5):
        J, sigma, law = TASKS[task](x + region)
        U = (law.rvs(random_state=rng) - J) / sigma
        block, one = np.arange(n), np.ones(n)
        ends = np.array(
            [Scores.of("", u[:n], one, block, 1.0, exact=True, quantiles=quantiles).ends(0.9) for u in U]
        )
        low, high = TASKS[task](x[:, n] + region)[0] + TASKS[task](x[:, n] + region)[1] * ends.T
        new = TASKS[task](x[:, n] + region)[2]
        held = new.cdf(high) - new.cdf(low)
        error = held.std() / math.sqrt(repeats)
        assert 0.9 - 3 * error <= held.mean() <= 0.9 + 1 / (n + 1) + 3 * error
        assert error < 0.002


def test_first_visits_are_the_textbook_s_order_statistic():
    rng = np.random.default_rng(2)
    for n in (19, 20, 99, 150):
        U = rng.normal(size=n)
        scores = Scores.of("", U, np.ones(n), np.arange(n), 1.0, exact=True)
        for level in (0.5, 0.9, 0.95):
            low, high = np.interp(
                [(1 - level) / 2, (1 + level) / 2], (np.arange(99) + 0.5) / 99, scores.quantiles
            )
            z = np.sort(np.maximum(low - U, U - high))
            rank = math.ceil((n + 1) * level - 1e-9)
            t = z[rank - 1] if rank <= n else math.inf
            np.testing.assert_allclose(scores.ends(level), [low - t, high + t], rtol=1e-12)


def busy(rng, count):
    """Episodes of a queue from one customer: the customers at each step, and the steps that are left."""
    found = []
    for _ in range(count):
        path = [1]
        while path[-1]:
            path.append(path[-1] + (1 if rng.random() < 0.45 else -1))
        found.append((np.array(path[:-1]), np.arange(len(path) - 1, 0, -1.0)))
    return found


@pytest.mark.parametrize("p", [1.0, 0.2])
def test_steps_that_a_coin_chooses_are_held(p):
    """A new episode's step, chosen likewise, of a model that knows nothing: at least 90 %."""
    rng, held, chosen = np.random.default_rng(3), 0, 0
    episodes = busy(rng, 40_000)
    for k in range(0, len(episodes), 80):
        known = episodes[k : k + 60]
        visit = np.concatenate([np.arange(len(B)) for _, B in known])
        block = np.repeat(np.arange(60), [len(B) for _, B in known])
        U = np.concatenate([B for _, B in known]) + 0.01 * rng.random(visit.size)
        low, high = Scores.of("", U, p * (1 - p) ** visit, block, p, exact=True).ends(0.9)
        for _, B in episodes[k + 60 : k + 80]:
            at = int(rng.geometric(p)) - 1
            if at < len(B):
                chosen += 1
                held += low <= B[at] + 0.005 <= high
    assert held / chosen >= 0.9 - 3 * math.sqrt(0.09 / chosen)
    assert held / chosen <= 0.97


def test_many_scores_are_put_together_outwards():
    U = np.random.default_rng(4).normal(size=20_000)
    one, block = np.ones(U.size), np.arange(U.size)
    scores = Scores.of("", U, one, block, 1.0, exact=True)
    assert len(scores.residuals) <= 201
    assert scores.weights.sum() == pytest.approx(U.size)
    for level in (0.5, 0.9, 0.99):
        low, high = scores.ends(level)
        share = np.mean((low <= U) & (high >= U))
        assert level <= share <= level + 0.08 * (1 - level)


@pytest.fixture(scope="module")
def result():
    return pr.evaluate(CHAIN.sample(0, 300, seed=3), seed=0)


def held(result, x=None, level=0.9, **how):
    """The share of the returns of fresh episodes, from all of their steps, that are inside."""
    data = CHAIN.sample(0, 2000, seed=11)
    x = data.states[data.visited_rows]
    B = data.returns_to_go(1.0)
    if how:
        x, B = data.starts(), data.returns()
    low, high = result.prediction_interval(x, level, **how).T
    return np.mean((low <= B) & (B <= high))


@pytest.mark.parametrize("features", ["auto", "tabular", "poly:1"])
def test_an_evaluation_s_intervals_hold_the_next_return(features, result):
    if features != "auto":
        result = pr.evaluate(CHAIN.sample(0, 300, seed=3), features=features, seed=0)
    assert result.prediction.guarantee == "out-of-fold"
    assert result.prediction.episodes == 300
    for each in result.prediction.parts:  # an episode's weights are those of coins: 1 at most
        assert each.episodes >= 50
        assert 0.3 * each.episodes < each.weights.sum() < 0.9 * each.episodes
    for level in (0.5, 0.9):
        assert held(result, level=level) == pytest.approx(level, abs=0.06)
    assert held(result, start=True) == pytest.approx(0.9, abs=0.05)


def test_fresh_episodes_make_them_exact(result):
    fresh = CHAIN.sample(0, 400, seed=5)
    wrong = pr.LSTD(pr.Polynomial(0, [0], [11]), lam=1.0).fit(CHAIN.sample(0, 30, seed=6))
    for evaluation in (result, pr.Evaluation.of(wrong, CHAIN.sample(0, 30, seed=6))):
        found = evaluation.calibrated(fresh)
        assert found.prediction.guarantee == "exact"
        assert 0.86 <= held(found) <= 0.95
        assert 0.86 <= held(found, start=True) <= 0.95
    with pytest.raises(InvalidInputError, match="calibrated"):
        pr.Evaluation.of(wrong, fresh).prediction_interval([[0]])


def test_it_is_saved_in_a_frame_and_in_numbers(result, tmp_path, capsys):
    x = np.arange(12)[:, None]
    expected = result.prediction_interval(x)
    result.save(tmp_path)
    again = pr.Evaluation.load(tmp_path)
    assert np.array_equal(again.prediction_interval(x), expected)
    assert again.prediction.to_dict() == result.to_dict()["prediction"]
    frame = again.to_frame(x, predict=0.9)
    assert np.array_equal(frame[["prediction_low", "prediction_high"]].to_numpy(), expected)
    assert run(["query", str(tmp_path), "--at", "4", "--predict", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prediction"]["guarantee"] == "out-of-fold"
    assert told["states"][0]["prediction"] == {"level": 0.9, "low": expected[4, 0], "high": expected[4, 1]}
    assert run(["query", str(tmp_path), "--at", "4", "--predict", "--level", "0.8"]) == 0
    text = capsys.readouterr().out
    assert "next return" in text
    assert "about 80.0% of new returns" in text


def test_metrics_are_finite_numbers():
    found = pr.evaluate(CHAIN.sample(0, 300, seed=3), quantiles=[0.05], loss_below=-20, seed=0)
    metrics = found.metrics()
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
    assert metrics["mean"] == found.summary.mean.value
    assert metrics["cvar_0.05_low"] < metrics["cvar_0.05"] < metrics["quantile_0.05"] < metrics["mean"]
    assert metrics["below_-20"] == found.notes["distribution"]["below"]["-20"]["value"]
    assert metrics["trust"] == 3.0


def test_what_is_approximate_and_what_is_not_known(result):
    def evaluated(data, **how):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyRiskWarning)
            return pr.evaluate(data, seed=0, **{"features": "tabular", **how})

    cut = evaluated(CHAIN.sample(0, 300, seed=1, max_steps=30))
    assert cut.prediction.guarantee == "approximate"
    assert "cut off" in cut.prediction.said(0.9)
    clustered = evaluated(CHAIN.sample(0, 300, seed=1).with_clusters(np.arange(300) // 5))
    assert (clustered.prediction.guarantee, clustered.prediction.episodes) == ("approximate", 60)
    many = evaluated(CHAIN.sample(0, 300, seed=1), features="tiles:1100")
    assert many.prediction.reasons == ("they were fitted",)
    few = evaluated(CHAIN.sample(0, 12, seed=1))
    with pytest.warns(FewEpisodesWarning, match="12 calibration episodes are too few"):
        assert np.isinf(few.prediction_interval([[0]], 0.95)).all()
    with pytest.raises(InvalidInputError, match="level"):
        result.prediction_interval([[0]], 1.0)
    data = CHAIN.sample(6, 300, seed=1)
    assert np.isnan(evaluated(data[:3]).prediction_interval([[0]], 0.5)).all()


def test_a_target_s_by_weights():
    """Two arms; the log pulls both alike, the target the second: its returns are 1 higher."""
    rng, n = np.random.default_rng(7), 4000
    actions = rng.integers(0, 2, n)
    returns = actions + rng.normal(size=n)
    states = np.repeat(rng.integers(0, 3, n), 2)[:, None]
    how = {"actions": actions, "propensities": np.full(n, 0.5)}
    data = pr.Trajectories(states, returns, np.ones(n, int), np.ones(n, bool), **how)
    found = pr.evaluate(data, target=[[0.1, 0.9]] * 3, seed=0)
    assert found.prediction.guarantee == "approximate"
    fresh = (rng.random(100_000) < 0.9) + rng.normal(size=100_000)
    for low, high in found.prediction_interval(np.arange(3)[:, None]):
        assert np.mean((low <= fresh) & (fresh <= high)) == pytest.approx(0.9, abs=0.03)
    unknown = pr.Trajectories(states, returns, np.ones(n, int), np.ones(n, bool), actions=actions)
    assert pr.evaluate(unknown, target=[[0.1, 0.9]] * 3, seed=0).prediction is None


def test_the_fan_has_a_band(result):
    x = np.arange(12)[:, None]
    dist = pr.ReturnDistribution(pr.Tabular(12)).fit(CHAIN.sample(0, 300, seed=3))
    axes = pr.plotting.plot_fan(dist, x, prediction=result.prediction_interval(x))
    assert "next return" in axes.get_legend_handles_labels()[1]
    with pytest.raises(InvalidInputError, match="prediction"):
        pr.plotting.plot_fan(dist, x, prediction=[[0, 1]])
