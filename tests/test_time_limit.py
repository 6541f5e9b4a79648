"""A time limit as the end: the moments of a finite horizon, whatever the data come in."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.distributed.reduce import shards
from policyrisk.errors import ImproperPolicyError, InvalidInputError, UnrecordedEndWarning

LIMIT = 6
P = np.array([[0.2, 0.8, 0.0], [0.3, 0.3, 0.4], [0.5, 0.1, 0.4]])  # it never ends
R = np.array([1.0, -2.0, 3.0])


def finite_horizon():
    """J, V with h steps left, of shape (LIMIT + 1, 3): J_h = r + P J_{h−1}, M_h = r² + 2 r P J + P M."""
    J, M = np.zeros((LIMIT + 1, 3)), np.zeros((LIMIT + 1, 3))
    for h in range(1, LIMIT + 1):
        J[h] = R + P @ J[h - 1]
        M[h] = R**2 + 2 * R * (P @ J[h - 1]) + P @ M[h - 1]
    return J, M - J**2


def recorded(episodes=3000, seed=0):
    chain = pr.MarkovChain(P, R, discount=0.9)
    return chain.sample(np.ones(3) / 3, episodes=episodes, seed=seed, max_steps=LIMIT)


def table(data, ends=True):
    """The episodes as rows; without ``ends`` the last states are not there."""
    rows = np.arange(len(data.states))
    frame = pd.DataFrame({"place": data.states[:, 0], "episode": rows - rows % (LIMIT + 1)})
    frame["reward"], frame["terminated"] = np.nan, False
    frame.loc[data.visited_rows, "reward"] = data.rewards
    return frame if ends else frame.loc[data.visited_rows]


CELLS = pr.TileCoding([0, 0], [3, LIMIT + 1], bins=[3, LIMIT + 1])  # one for each state and time left


@pytest.mark.parametrize("lam", [0.0, 0.9])
def test_the_moments_of_a_finite_horizon(lam):
    J, V = finite_horizon()
    x, h = states = np.array([[x, h] for h in range(1, LIMIT + 1) for x in range(3)]).T
    random = V[h, x] > 1e-9  # with one step left nothing is
    scores = []
    for seed in range(1, 5):
        data = recorded(seed=seed).with_time_limit()
        assert data.terminated.all()
        risk = pr.LSTD(CELLS, lam=lam, variance="direct").fit(data)
        for of, truth in (("mean", J[h, x]), ("variance", V[h, x])):
            found, error = getattr(risk, of)(states.T), risk.standard_error(states.T, of)
            np.testing.assert_allclose(found[~random], truth[~random], atol=1e-9)
            scores.append((found - truth)[random] / error[random])
    assert np.abs(scores).max() < 4.5
    assert 0.5 < np.sqrt(np.mean(np.square(scores))) < 1.5
    # Without the time left it is another task: the truth is far away.
    alone = pr.LSTD(pr.Tabular(3), discount=0.99).fit(recorded(300))
    assert abs(alone.mean([0])[0] - J[LIMIT, 0]) > 5


def test_where_episodes_end():
    states = np.arange(20)[:, None]
    data = pr.Trajectories(
        states, np.arange(16.0), [5, 3, 2, 6], [False, True, False, False], actions=np.arange(16)
    )
    limited = data.with_time_limit(5)
    assert limited.lengths.tolist() == [5, 3, 2, 5]  # the last one went on for longer
    assert limited.terminated.tolist() == [True, True, False, True]
    left = [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 5, 4, 3, 5, 4, 3, 2, 1, 0]
    assert limited.states[:, 1].tolist() == left
    assert limited.states[:, 0].tolist() == list(range(19))
    assert limited.states.dtype == np.int64
    assert limited.actions.tolist() == limited.rewards.tolist() == list(range(15))
    named = pr.Trajectories(states, np.arange(16.0), [5, 3, 2, 6], [False] * 4, coordinates=["x"])
    assert named.with_time_limit(7).coordinates.names == ("x", "time_left")
    assert not named.with_time_limit(7).terminated.any()
    with pytest.raises(InvalidInputError, match="must not have a coordinate time_left already"):
        named.with_time_limit(7).with_time_limit(7)


def test_limits_that_are_none():
    data = pr.Trajectories(np.arange(8.0), np.ones(5), [1, 2, 2], [False, False, True])
    with pytest.raises(InvalidInputError, match=r"got 1 to 2 steps and 2 in the longest.*time_limit=2"):
        data.with_time_limit()
    with pytest.raises(InvalidInputError, match="got 1 to 1 steps and 2 in the longest"):
        data[[0, 2]].with_time_limit()
    with pytest.raises(InvalidInputError, match="got none, all terminated"):
        data[2:].with_time_limit()
    for bad in (0, -1, 1.5, "soon", True):
        with pytest.raises(InvalidInputError, match="time_limit must be"):
            data.with_time_limit(bad)
        with pytest.raises(InvalidInputError, match="time_limit must be"):
            pr.evaluate(data, time_limit=bad)


@pytest.mark.parametrize("batch_rows", [1, 50, 100_000])
@pytest.mark.parametrize("limit", ["end", LIMIT])
def test_streams_and_logs_without_the_last_states(batch_rows, limit, tmp_path):
    data = recorded(60)
    expected = data.with_time_limit()
    pr.write_parquet(data, tmp_path / "log.parquet")
    frames = table(data), table(data, ends=False)
    streams = [pr.read(each, state="place", time_limit=limit, batch_rows=batch_rows) for each in frames]
    for stream in (*streams, pr.read(tmp_path / "log.parquet", time_limit=limit, batch_rows=batch_rows)):
        found = stream.load()
        assert found.terminated.all()
        for name in ("rewards", "lengths"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_array_equal(
            found.states[found.visited_rows], expected.states[expected.visited_rows]
        )
        assert stream.given_up == 0
    pieces = shards(tmp_path, time_limit=limit)
    assert all(piece.source.keywords["time_limit"] == LIMIT for piece in pieces)  # one for all workers
    # Short of the limit a last state that was not recorded takes its transition with it.
    short = pr.read(frames[1], state="place", time_limit=LIMIT + 1)
    with pytest.warns(UnrecordedEndWarning, match="60 last transitions given up"):
        found = short.load()
    assert set(found.lengths.tolist()) == {LIMIT - 1}
    assert not found.terminated.any()


def test_every_kind_of_source_is_evaluated(tmp_path):
    data = recorded(400)
    pr.write_parquet(data, tmp_path / "log.parquet")
    how = {"time_limit": "end", "features": "tiles:3x6"}
    results = [
        pr.evaluate(data, **how),
        pr.evaluate([data[:150], data[150:]], **how),
        pr.evaluate(tmp_path / "log.parquet", **how),
        pr.evaluate(pr.read(tmp_path / "log.parquet"), **how),
        pr.evaluate(table(data, ends=False), state="place", **how),
    ]
    J, _ = finite_horizon()
    for result in results:
        assert result.names[-1] == result.risk.coordinates.names[-1] == "time_left"
        assert result.notes["time_limit"] == LIMIT
        assert result.summary.mean_value == pytest.approx(results[0].summary.mean_value, rel=1e-9)
        assert abs(result.summary.mean - J[LIMIT].mean()) < 4 * result.summary.mean.standard_error
        assert any(each.title == "The time limit of 6 steps is the end" for each in result.advice)
    state = pd.DataFrame({"time_left": [LIMIT, 1], "place": [0, 2]})
    np.testing.assert_array_equal(results[-1].risk.mean(state), results[0].risk.mean([[0, LIMIT], [2, 1]]))
    named = pr.evaluate(data, names=["place"], **how)
    assert named.names == ("place", "time_left")


def test_the_command_offers_it_and_it_works(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    line = "rollout Pendulum-v1 --policy random --episodes 60 --max-steps 12 --seed 0 --out pendulum.npz"
    assert run(line.split()) == 0
    evaluate = "evaluate pendulum.npz --features poly:1 --state cos,sin,speed --out out"
    capfd.readouterr()
    assert run(evaluate.split()) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert "got 60 episodes, all cut off; take their time limit for the end" in said
    assert "--time-limit end" in said
    assert "--discount 0.99" in said
    assert run([*evaluate.split(), "--time-limit", "end", "--json"]) == 0
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    returns = pr.read("pendulum.npz").load().returns()
    assert found["coordinates"] == ["cos", "sin", "speed", "time_left"]
    assert found["mean"]["value"] == pytest.approx(returns.mean(), rel=1e-9)
    assert found["cut_off_share"] == 0
    assert pr.evaluate("pendulum.npz", features="poly:1", discount=0.9).cut_off_share == 1
    assert run(["query", "out", "--at", "1,0,0,12"]) == 0
    for limit in ("0", "soon"):
        assert run([*evaluate.split(), "--time-limit", limit]) == 2
    with pytest.raises(ImproperPolicyError, match=r'time_limit="end"'):
        pr.evaluate("pendulum.npz")
