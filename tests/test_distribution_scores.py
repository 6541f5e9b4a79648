"""CRPS, pinball loss and PIT of held-out episodes, by their definitions and against exact distributions."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import policyrisk as pr
from policyrisk.errors import InvalidInputError, NoDistributionError
from policyrisk.returns.distribution_scores import BINS, LEVELS, crps, in_parts, pit


def fit(chain, episodes, seed, features=None, **how):
    data = chain.sample(0, episodes, seed=seed)
    return pr.ReturnDistribution(features or pr.Tabular(chain.n), **how).fit(data, error_bars=False)


@pytest.mark.parametrize("steps", [True, False])
def test_crps_is_the_integral(steps):
    rng = np.random.default_rng(1)
    dist = fit(pr.domains.walk(6), 200, 1)
    grid = replace(dist.grid, steps=steps)
    theta = grid.theta
    [(_, _, curves)] = dist.curves([0, 3, 5])
    z = np.linspace(theta[0] - 20, theta[-1] + 20, 200_001)
    for B in (*rng.choice(theta, 3), theta[0] - 7.0, theta[-1] + 9.0, *([] if steps else [-7.3])):
        found = crps(grid, curves, np.full(3, B))
        for curve, value in zip(curves, found, strict=True):
            F = np.interp(z, theta, curve[: theta.size], left=0.0, right=1.0)
            if steps:
                last = np.searchsorted(theta, z, "right") - 1
                F = np.where(last < 0, 0.0, curve[np.maximum(last, 0)])
            assert value == pytest.approx(np.trapezoid((F - (z >= B)) ** 2, z), rel=2e-3, abs=2e-3)


def test_steps_scores_are_those_of_the_returns():
    """A table and whole numbers: by hand from the sample of returns at each state."""
    chain = pr.domains.walk(4)
    data, held_out = chain.sample(0, 60, seed=2), chain.sample(0, 40, seed=3)
    score = pr.ReturnDistribution(pr.Tabular(4)).fit(data).score(held_out)
    B, x = data.returns_to_go(), data.states[data.visited_rows, 0]
    by_hand, losses = [], {q: [] for q in LEVELS}
    for b, state in zip(held_out.returns_to_go(), held_out.states[held_out.visited_rows, 0], strict=True):
        own = np.sort(B[x == state])
        by_hand.append(np.abs(own - b).mean() - np.abs(own[:, None] - own).mean() / 2)
        for q in LEVELS:
            theta = own[int(np.ceil(q * own.size - 1e-9)) - 1]
            losses[q].append((q - (b < theta)) * (b - theta))
    assert score.crps == pytest.approx(np.mean(by_hand))
    assert [score.pinball[q] for q in LEVELS] == pytest.approx([np.mean(losses[q]) for q in LEVELS])
    assert sum(score.pit) == pytest.approx(1.0)
    assert (score.episodes, score.steps, score.unvisited) == (40, held_out.transitions, 0.0)


def test_held_out_episodes_fall_uniformly_into_the_distribution():
    """Randomised where F rises: uniform at the starts, one return an episode; and every part of the score."""
    chain = pr.domains.walk(6)
    dist, held_out = fit(chain, 20_000, 4), chain.sample(0, 2000, seed=5)
    [(_, _, curves)] = dist.curves(held_out.starts())
    low, high = pit(dist.grid, curves, held_out.returns()).T
    u = low + np.random.default_rng(6).random(2000) * (high - low)
    assert stats.kstest(u, "uniform").pvalue > 0.01
    score = dist.score(held_out)
    z = [(share - 1 / BINS) / share.standard_error for share in score.pit]
    assert np.abs(z).max() < 4
    # Of the wrong chain it is not.
    wrong = fit(pr.domains.walk(6, p=0.65), 20_000, 4).score(held_out)
    assert max(abs(share - 1 / BINS) / share.standard_error for share in wrong.pit) > 6


def test_the_true_distribution_has_the_smallest_scores():
    chain = pr.domains.walk(6)
    held_out = chain.sample(0, 3000, seed=7)
    true = fit(chain, 50_000, 8)
    exact = chain.distribution(0)
    assert true.quantile([0], 0.05)[0] == exact.quantile(0.05)
    best = true.score(held_out)
    shifted = replace(true, grid=replace(true.grid, theta=true.grid.theta + 2.0))
    wider = replace(true, grid=replace(true.grid, theta=1.5 * true.grid.theta - 0.5 * exact.mean))
    others = [fit(pr.domains.walk(6, p=p), 20_000, 9) for p in (0.6, 0.8)]
    few = fit(chain, 20, 10)
    for other in (shifted, wider, few, *others):
        worse = other.score(held_out)
        assert worse.crps > best.crps
        assert all(worse.pinball[q] > best.pinball[q] for q in (0.25, 0.5, 0.75))


def test_cut_off_episodes_are_completed():
    """Scores of episodes that were cut off are those of the same ones that were not, on average."""
    chain = pr.domains.walk(6)
    dist = fit(chain, 20_000, 11)
    whole, cut = chain.sample(0, 4000, seed=12), chain.sample(0, 4000, seed=13, max_steps=8)
    assert 0.2 < 1 - cut.terminated.mean() < 0.8
    a, b = dist.score(whole), dist.score(cut)
    assert (a.cut_off, b.cut_off) == (0, int((~cut.terminated).sum()))
    # The same states in both: those of the start alone have the same distribution of steps.
    first = [data_at_start(data, n) for data, n in ((whole, 4000), (cut, 4000))]
    scores = [dist.score(each) for each in first]
    error = np.hypot(*(score.crps.standard_error for score in scores))
    assert abs(scores[0].crps - scores[1].crps) < 4 * error
    assert "completed by the estimate" in str(b)


def data_at_start(data, n):
    """Each episode as one step from its start: its rewards together, to its end or its cut."""
    states = np.empty((2 * n, 1), dtype=data.states.dtype)
    states[::2], states[1::2] = data.starts(), data.states[data.final_rows]
    return pr.Trajectories(states, data.returns(), np.ones(n, dtype=int), data.terminated)


def test_unvisited_states_and_what_has_no_score():
    chain = pr.domains.walk(6)
    data = chain.sample(0, 50, seed=14)
    dist = pr.ReturnDistribution(pr.Tabular(7)).fit(data)
    unknown = pr.Trajectories([[6], [6], [0], [1]], [-1.0, -1.0], [1, 1], [True, True])
    assert dist.score(unknown).unvisited == 0.5
    with pytest.raises(InvalidInputError, match="all cut off"):
        dist.score(chain.sample(0, 5, seed=1, max_steps=2))
    text = str(dist.score(data))
    assert "CRPS" in text
    assert "pinball loss at 5.0%" in text
    assert json.loads(json.dumps(dist.score(data).to_dict()))["pinball"]["0.05"]["value"] > 0


def test_parts_of_the_pit():
    shares = in_parts(np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.31, 0.39]]))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert shares[0, 0] == shares[1, -1] == shares[3, 3] == 1.0
    np.testing.assert_allclose(shares[2], 1 / BINS)


# Cross-validation


def test_distributions_are_ranked_by_crps():
    chain = pr.domains.walk(10)
    data = chain.sample(0, 400, seed=15)
    flat = pr.Polynomial(0, low=[0], high=[9])
    estimators = {"flat": pr.ReturnDistribution(flat), "table": pr.ReturnDistribution(pr.Tabular(10))}
    result = pr.cross_validate(estimators, data, seed=0)
    assert result.best == "table"
    assert (result.episodes, result.steps) == (400, data.transitions)
    flat_one = result.ranking[1]
    assert flat_one.difference.low > 0
    assert flat_one.difference == pytest.approx(flat_one.crps - result.ranking[0].crps)
    # Of one without features it is about half the mean distance of two returns to go.
    B = data.returns_to_go()
    assert flat_one.crps == pytest.approx(np.abs(B[:, None] - B).mean() / 2, rel=0.03)
    assert "CRPS of 400 held-out episodes" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["ranking"][0]["name"] == "table"


def test_cross_validation_with_cuts_and_unvisited_states():
    chain = pr.domains.walk(10)
    data = chain.sample(0, 200, seed=16, max_steps=20)
    estimators = {
        "table": pr.ReturnDistribution(pr.Tabular(10)),
        "flat": pr.ReturnDistribution(pr.Polynomial(0, low=[0], high=[9])),
        "few": pr.ReturnDistribution(pr.Tabular(3)),
    }
    result = pr.cross_validate(estimators, data, seed=0)
    assert result.cut_off == (~data.terminated).sum() > 0
    assert [c.name for c in result.ranking] == ["table", "flat", "few"]
    assert result.ranking[2].score is None
    assert result.ranking[2].reason.startswith("fold 0: InvalidInputError")
    assert "completed by the median estimator" in str(result)
    # A state that one fold alone has is guessed there: no estimator gains by not knowing it.
    rare = pr.Trajectories([[10], [9], [9]], [-50.0, -1.0], [2], [True])
    known, some = (pr.ReturnDistribution(pr.Tabular(11)), pr.ReturnDistribution(pr.Polynomial(2, [0], [10])))
    both = pr.cross_validate({"table": known, "curve": some}, [chain.sample(0, 50, seed=17), rare], seed=1)
    table = next(c for c in both.ranking if c.name == "table")
    assert table.score.unvisited > 0
    assert table.crps > table.score.crps
    assert "the distribution of all returns is scored" in str(both)


def test_kinds_of_estimators_are_not_mixed():
    data = pr.domains.walk(4).sample(0, 20, seed=1)
    with pytest.raises(NoDistributionError, match="both kinds"):
        pr.cross_validate({"a": pr.LSTD(pr.Tabular(4)), "b": pr.ReturnDistribution(pr.Tabular(4))}, data)
