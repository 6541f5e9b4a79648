"""Labels: spelled, shrunk and found, against closed forms and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.spelling import Spelling
from policyrisk.passes.survey import Survey


def shops(n=400, seed=0):
    """One step from a place in [0, 1) and a shop, numbered with gaps, 30 of them and some seldom seen."""
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.choice(10**6, 30, replace=False)) - 1000
    shop = rng.choice(30, n, p=np.arange(1, 31) / 465)
    states = np.repeat(np.column_stack([rng.random(n), numbers[shop]]), 2, axis=0)
    rewards = 1e4 + 3 * rng.normal(size=30)[shop] + rng.normal(size=n)
    return pr.Trajectories(states, rewards, np.ones(n, int), np.ones(n, bool))


def build(text, data):
    survey = Survey.of(data)
    spelling = Spelling.parse(text)
    assert str(spelling) == text
    return spelling.build(("x", "shop"), survey, np.array([0.0, 0.0]), np.array([1.0, 1.0])), spelling


def test_labels_are_spelled():
    data = shops()
    values = np.unique(data.states[:, 1])
    tiles = pr.TileCoding([0], [1], [4], dims=[0])
    constant = pr.Polynomial(0, [0, 0], [1, 1])
    assert build("labels,dims=shop", data)[0] == pr.Labels(values, dims=[1])
    mixed, spelling = build("tiles:4,dims=x/labels,dims=shop", data)
    assert mixed == pr.Joint([tiles, pr.Labels(values, dims=[1])])
    assert spelling.ridge(100) == 0
    shrunk, spelling = build("labels,shrink=4,dims=shop", data)
    assert shrunk == pr.Joint([constant, pr.Labels(values, dims=[1], scale=0.0005)])
    assert spelling.ridge(100) == pytest.approx(1e-8)
    beside, _ = build("tiles:4,dims=x/labels,shrink=4,dims=shop", data)
    assert beside == pr.Joint([tiles, pr.Labels(values, dims=[1], scale=0.0005)])
    assert Spelling.parse("poly:1,second=poly:1/labels,shrink=1,dims=shop").ridge(1) == pytest.approx(1e-6)
    two = pr.Trajectories(
        np.repeat(data.states, 2, axis=1)[:, 2:], data.rewards, data.lengths, data.terminated
    )
    both = Spelling.parse("labels,dims=a+b").build("ab", Survey.of(two), np.zeros(2), np.ones(2))
    assert both == pr.Joint([pr.Labels(values, dims=[0]), pr.Labels(values, dims=[1])])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("labels", "labels must be told which coordinate, got 2: x, shop"),
        ("labels:5,dims=shop", "labels take no size"),
        ("labels,dims=x", "labels must be whole numbers or text, .*not all of them whole"),
        ("labels,dims=shop,shrink=0", "shrink= takes a positive number of visits, not '0'"),
        ("labels,dims=shop,shrink=a", "shrink= takes a positive number of visits, not 'a'"),
        ("tiles:4,shrink=1", "after tiles can stand each of tilings=, dims= once"),
        ("tiles:4,dims=x/", "features must be auto or one of"),
        ("tiles:9999,dims=x/labels,dims=shop/poly:1", "at most 10000, got 10033"),
    ],
)
def test_misspelled_labels(text, message):
    with pytest.raises(InvalidInputError, match=message):
        build(text, shops())


@pytest.mark.parametrize("visits", [0.5, 3.0, 20.0])
def test_shrinkage_is_that_of_so_many_visits(visits):
    """One step each: v_i = c + (ȳ_i − c) n_i/(n_i + visits), with c such that Σ n_i (ȳ_i − v_i) = 1e-6 c."""
    data = shops()
    phi, spelling = build(f"labels,shrink={visits:g},dims=shop", data)
    risk = pr.LSTD(phi, ridge=spelling.ridge(len(data)), variance="direct").fit(data)
    values, code = np.unique(data.states[::2, 1], return_inverse=True)
    n = np.bincount(code)
    y = np.bincount(code, data.rewards) / n
    weight = n * visits / (n + visits)
    c = weight @ y / (weight.sum() + 1e-6)
    at = np.column_stack([np.zeros(values.size), values])
    want = c + (y - c) * n / (n + visits)
    np.testing.assert_allclose(risk.mean(at), want, atol=1e-6)
    assert np.abs(want - y).max() > 0.05
    unseen = [[0.5, values[3] + 1.0]]
    assert risk.visited(at).all()
    assert not risk.visited(unseen).any()
    assert np.isnan(risk.mean(unseen)).all()


def test_evaluated_with_shrunk_labels():
    data = shops(2000)
    plain = pr.evaluate(data, features="labels,dims=shop", names=["x", "shop"], seed=0)
    shrunk = pr.evaluate(data, features="labels,dims=shop,shrink=5", names=["x", "shop"], seed=0)
    assert shrunk.risk.features.size == plain.risk.features.size + 1
    assert np.ptp(shrunk.risk.mean(data.starts())) < np.ptp(plain.risk.mean(data.starts()))
    assert shrunk.summary.mean.value == pytest.approx(data.rewards.mean(), abs=0.2)
