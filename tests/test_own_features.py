"""A feature map of one's own: a class and the line that registers it, and then everything takes it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.data import write_npz
from policyrisk.errors import InvalidInputError
from policyrisk.features import Ranked, from_spec, protocol, register
from policyrisk.features.box import Box, OnBox
from policyrisk.features.spelling import Spelling, examples


class Stairs(OnBox):
    """1, and for every coordinate whether it is beyond k/(steps + 1) of the box, k = 1, …, steps."""

    spelled = "stairs:3,height=0.5"
    describes = "3 stairs along each coordinate, of some height"

    def __init__(self, steps, low, high, dims=None, height=1.0):
        self.steps, self.height = steps, height
        self.box = Box.of(low, high, dims)
        self.size = 1 + steps * self.box.dim

    def __call__(self, states):
        u = self.box.scale(states)
        up = u[:, :, None] >= np.arange(1, self.steps + 1) / (self.steps + 1)
        return np.hstack([np.ones((len(u), 1)), self.height * up.reshape(len(u), -1)])


class Powers:
    """The least that can be spelled: no box, and no coordinates to choose."""

    spelled = "powers[:2]"

    def __init__(self, highest=2):
        self.size = highest + 1

    def __call__(self, states):
        return np.asarray(states)[:, :1] ** np.arange(self.size)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(protocol, "_KINDS", dict(protocol._KINDS))
    register("Stairs", Stairs)


def walks(episodes=200, seed=0, actions=False):
    """Walks along 0, …, 7 under a load, a step forward or none; the reward is minus the load."""
    rng = np.random.default_rng(seed)
    states, rewards, lengths, taken = [], [], [], []
    for _ in range(episodes):
        place, steps = 0, 0
        while place < 8:
            load, action = rng.random(), int(rng.random() < 0.5)
            states.append([place, load])
            taken.append(action)
            rewards.append(-load)
            place += rng.random() < (0.6, 0.8)[action]
            steps += 1
        states.append([place, 0.0])
        lengths.append(steps)
    more = {"actions": taken, "propensities": np.full(len(taken), 0.5)} if actions else {}
    return pr.Trajectories(states, rewards, lengths, np.ones(episodes, bool), **more)


def test_it_is_spelled():
    assert examples()["stairs:3,height=0.5"] == Stairs.describes
    spelling = Spelling.parse('stairs:4,height=2,by=rank,dims="speed m/s"')
    assert str(spelling) == 'stairs:4,height=2,by=rank,dims="speed m/s"'
    assert str(Spelling.parse("stairs:4,height=1")) == "stairs:4"  # which it is anyway
    for text, rule in {
        "stairs": "stairs needs a size after a colon",
        "stairs:2x2": "stairs takes one number, not '2x2'",
        "stairs:2,height=0": "height= takes a positive number, not '0'",
        "stairs:2,steep=1": "after stairs can stand each of height=, by=, dims= once",
    }.items():
        with pytest.raises(InvalidInputError, match=rule) as error:
            Spelling.parse(text)
        assert "write for example stairs:3,height=0.5" in str(error.value)
    with pytest.raises(InvalidInputError, match=r"one of .*stairs.*; write for example .*stairs:3"):
        Spelling.parse("squares:3")


def test_it_is_evaluated_saved_and_described(tmp_path):
    data = walks()
    result = pr.evaluate(data, features="stairs:7", names=["place", "load"], seed=0)
    phi = Stairs(7, result.survey.low, result.survey.high)
    assert result.risk.features == phi
    direct = pr.LSTD(phi, lam=result.risk.provenance.lam).fit(data)
    at = data.starts()[:5]
    np.testing.assert_allclose(result.risk.mean(at), direct.mean(at))
    result.save(tmp_path / "out")
    np.testing.assert_array_equal(pr.Evaluation.load(tmp_path / "out").risk.mean(at), result.risk.mean(at))
    direct.save(tmp_path / "risk.npz")
    assert pr.RiskFunction.load(tmp_path / "risk.npz").features == phi
    assert from_spec(json.loads(json.dumps(phi.spec()))) == phi
    assert repr(phi).startswith("Stairs(steps=7, low=(0.0, ")
    result.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "stairs:7" in page
    assert "Stairs(steps=7" in page


def test_the_command_line_takes_it(tmp_path):
    write_npz(walks(), tmp_path / "log.npz")
    out = tmp_path / "out"
    text = "stairs:3,by=rank,dims=1/labels,shrink=1,dims=0,second=stairs:2"
    assert (
        run(["evaluate", str(tmp_path / "log.npz"), "--features", text, "--out", str(out), "--seed", "0"])
        == 0
    )
    assert json.loads((out / "summary.json").read_text())["features"] == text
    found = pr.Evaluation.load(out).risk
    ranked, labels = found.features.maps
    assert isinstance(ranked, Ranked)
    assert isinstance(ranked.inner, Stairs)
    assert (ranked.dims, labels.dims) == ((1,), (0,))
    assert isinstance(found.second_features, Stairs)
    assert found.second_features.size == 1 + 2 * 2
    assert run(["query", str(out), "--at", "3,0.5", "--json"]) == 0


def test_beside_another_and_with_a_block_for_each_action():
    data = walks(actions=True)
    phi = pr.Joint([Stairs(7, [0], [8], dims=[0]), pr.Polynomial(1, [0], [1], dims=[1])])
    risk = pr.LSTDQ(phi, lambda x: np.tile([0.25, 0.75], (len(x), 1)), actions=2).fit(data)
    assert risk.features.size == 2 * phi.size
    # Steps to the end are 8 / (0.25 0.6 + 0.75 0.8) in the mean, each at a load of ½.
    start = np.array([[0.0, 0.5]])
    error = risk.standard_error(start, of="mean")
    assert abs(risk.mean(start) + 0.5 * 8 / 0.75) < 4 * error


def test_the_least_that_can_be_spelled():
    register("Powers", Powers)
    data = walks()
    at = np.array([[1.0, 0.5], [4.0, 0.5]])
    by_text = pr.evaluate(data, features="powers", names=["place", "load"], seed=0).risk
    plain = pr.LSTD(Powers(2), lam=by_text.provenance.lam).fit(data)
    np.testing.assert_allclose(by_text.mean(at), plain.mean(at))
    assert pr.evaluate(data, features="powers:1", seed=0).risk.features.size == 2
    with pytest.raises(InvalidInputError, match="after powers can stand each of  once, not 'dims=place'"):
        Spelling.parse("powers:3,dims=place")


@pytest.fixture(autouse=True, scope="module")
def only_here():
    """The maps registered by these tests are known to no other test."""
    before = dict(protocol._KINDS)
    yield
    protocol._KINDS.clear()
    protocol._KINDS.update(before)
