"""Labels: spelled, shrunk and found, against closed forms and simulated truth."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import policyrisk as pr
from policyrisk import cli
from policyrisk._core.text import quoted
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.labels import label_columns, label_spellings
from policyrisk.features.spelling import Spelling
from policyrisk.passes.survey import Survey
from policyrisk.risk.estimate import student_quantile


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
        ("labels:5,dims=shop", "labels takes no size"),
        ("labels,dims=x", "labels must be whole numbers or text, .*not all of them whole"),
        ("labels,dims=shop,shrink=0", "shrink= takes a positive number, not '0'"),
        ("labels,dims=shop,shrink=a", "shrink= takes a positive number, not 'a'"),
        ("tiles:4,shrink=1", "after tiles can stand each of tilings=, by=, dims= once"),
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


def found(data, discount=1.0, seed=0):
    return label_columns(data, Survey.of(data), discount, seed)


def renumbered(data, seed=0):
    """The same episodes with their first coordinate's numbers shuffled."""
    states = np.asarray(data.states, dtype=float).copy()
    values, code = np.unique(states[:, 0], return_inverse=True)
    states[:, 0] = np.random.default_rng(seed).permutation(values)[code]
    return pr.Trajectories(states, data.rewards, data.lengths, data.terminated)


def taxi(episodes, seed):
    """Gymnasium's Taxi under the policy that is the best one nine times in ten, else any action."""
    env = gymnasium.make("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3").unwrapped
    n, actions = 500, 6
    y, r, over = (
        np.array([[env.P[x][a][0][i] for a in range(actions)] for x in range(n)], dtype=float)
        for i in (1, 2, 3)
    )
    V = np.zeros(n)
    for _ in range(200):
        Q = r + 0.99 * V[y.astype(int)] * (1 - over)
        V = Q.max(axis=1)
    policy = np.full((n, actions), 0.1 / actions)
    policy[np.arange(n), Q.argmax(axis=1)] += 0.9
    P = np.zeros((actions, n, n))
    for a in range(actions):
        P[a, np.arange(n), y[:, a].astype(int)] = 1 - over[:, a]
    chain = pr.MarkovChain.from_mdp(P, r, policy)
    start = env.initial_state_distrib
    return chain.sample(start, episodes=episodes, seed=seed)


@pytest.mark.parametrize("episodes", [100, 1000])
def test_taxis_numbers_are_labels(episodes):
    for seed in range(3):
        data = taxi(episodes, seed)
        assert found(data) == (0,)
        assert found(renumbered(data)) == (0,)


def queue(episodes, rng):
    """Busy periods of a queue: x customers, one more with .4 or one less; −1 a step."""
    records = []
    for _ in range(episodes):
        x = [int(rng.integers(1, 9))]
        while x[-1]:
            x.append(x[-1] + (1 if rng.random() < 0.4 else -1))
        records.append((x, -np.ones(len(x) - 1)))
    return as_data(records)


def inventory(episodes, rng):
    """Stock of up to 20, ordered up at 5; what is sold earns 1, what lies there costs."""
    records = []
    for _ in range(episodes):
        x, rewards = [int(rng.integers(0, 21))], []
        while len(rewards) == 0 or rng.random() < 0.5:
            sold = min(x[-1], rng.poisson(3))
            rewards.append(sold - 0.1 * x[-1])
            x.append(20 if x[-1] - sold <= 5 else x[-1] - sold)
        records.append((x, rewards))
    return as_data(records)


def as_data(records):
    states = np.concatenate([x for x, _ in records])[:, None]
    lengths = [len(rewards) for _, rewards in records]
    rewards = np.concatenate([rewards for _, rewards in records])
    return pr.Trajectories(states, rewards, lengths, np.ones(len(records), bool))


SMOOTH = {
    "walk": lambda episodes, rng: pr.domains.walk(n=30, p=0.7).sample(0, episodes=episodes, seed=rng),
    "queue": queue,
    "inventory": inventory,
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("episodes", [100, 1000])
def test_quantities_are_no_labels(name, episodes):
    taken = []
    for seed in range(10):
        data = SMOOTH[name](episodes, np.random.default_rng(seed))
        taken.append(found(data, seed=seed))
    assert taken == [()] * 10


def test_shuffled_quantities_are_labels():
    for make in SMOOTH.values():
        assert found(renumbered(make(1000, np.random.default_rng(0)))) == (0,)


def test_a_label_beside_a_number():
    """Rewards of a product, whose number says nothing, and of the wear, on which most depends."""
    rng = np.random.default_rng(0)
    n, T = 400, 6
    product, wear = rng.integers(0, 12, n), rng.integers(0, 50, n)
    rewards = rng.permutation(12)[product] + 2.0 * wear + rng.normal(size=n)
    states = np.repeat(np.column_stack([product, wear]), T + 1, axis=0)
    data = pr.Trajectories(states, np.repeat(rewards, T) / T, np.full(n, T), np.ones(n, bool))
    assert found(data) == (0,)


def test_noise_is_seldom_a_label():
    rng = np.random.default_rng(0)
    taken = []
    for seed in range(100):
        x = rng.integers(0, 15, 600)
        data = pr.Trajectories(
            np.repeat(x, 2)[:, None], rng.normal(size=600), np.ones(600, int), np.ones(600, bool)
        )
        taken.append(found(data, seed=seed) != ())
    assert np.sum(taken) <= 7  # at most 2.5 % are expected, and 7 of 100 has a probability of 0.3 %


def test_too_little_to_tell():
    data = taxi(100, 0)
    assert found(data[:7]) == ()
    few = pr.Trajectories(data.states % 5, data.rewards, data.lengths, data.terminated)
    assert found(few) == ()
    halves = pr.Trajectories(data.states + 0.5, data.rewards, data.lengths, data.terminated)
    assert found(halves) == ()


def visits(n=600, seed=0):
    """A table of episodes in cities of 8 names, whose mean reward and spread differ, and a place x."""
    rng = np.random.default_rng(seed)
    code, x = rng.integers(0, 8, n), rng.random(n)
    means, spreads = rng.permutation(8) * 5.0, 1.0 + rng.permutation(8)
    rewards = means[code] + 3 * x + spreads[code] * rng.normal(size=n)
    names = np.array(["Bern", "Kiel", "Lyon", "Nice", "Oslo", "Pisa", "Rome", "Zug"])
    columns = {
        "episode": np.repeat(np.arange(n), 2),
        "city": np.repeat(names[code], 2),
        "x": np.repeat(x, 2),
        "reward": pa.array(np.repeat(rewards, 2), mask=np.tile([False, True], n)),
        "terminated": np.tile([True, False], n),
    }
    return pa.table(columns), means, spreads


def test_text_from_the_file_to_the_query(tmp_path, capsys):
    log, means, spreads = visits()
    pq.write_table(log, tmp_path / "log.parquet")
    evaluation = pr.evaluate(tmp_path / "log.parquet", state=["city", "x"], seed=0)
    assert evaluation.notes["labels"]["city"][4] == "Oslo"
    assert "labels" in evaluation.notes["features"]
    at = np.column_stack([np.arange(8), np.full(8, 0.5)])
    z = (evaluation.risk.mean(at) - means - 1.5) / evaluation.risk.standard_error(at, of="mean")
    assert np.abs(z).max() < 4
    z = (evaluation.risk.std(at) - spreads) / evaluation.risk.standard_error(at, of="std")
    assert np.abs(z).max() < 4
    evaluation.save(tmp_path / "out")
    query = ["query", str(tmp_path / "out"), "--at"]
    assert cli.run([*query, "Oslo,0.5", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["states"]
    assert answer["at"] == {"city": "Oslo", "x": 0.5}
    assert answer["mean"]["value"] == pytest.approx(float(evaluation.risk.mean([[4, 0.5]])[0]))
    t = student_quantile(answer["level"], answer["episodes"])
    for of in ("mean", "variance", "std"):  # the error shown is that of the interval shown
        assert answer[of]["high"] - answer[of]["low"] == pytest.approx(2 * t * answer[of]["standard_error"])
    assert cli.run([*query, "Zug,0.5"]) == 0
    assert "at city = Zug, x = 0.5" in capsys.readouterr().out
    assert cli.run([*query, "Paris,0.5"]) == 2
    assert "city must be one of Bern, Kiel," in capsys.readouterr().err


def test_labels_of_the_command(tmp_path, capsys):
    pr.write_parquet(shops(2000), tmp_path / "log.parquet", state=["x", "shop"])
    command = ["evaluate", str(tmp_path / "log.parquet"), "--state", "x,shop", "--out", str(tmp_path / "out")]
    assert cli.run([*command, "--label", "shops"]) == 2
    assert "--label" in capsys.readouterr().err
    assert cli.run([*command, "--label", "shop", "--features", "labels,dims=shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == {"shop": []}


def test_found_labels_are_told():
    assert pr.evaluate(taxi(100, 0), names=["taxi"], seed=0).notes["labels"] == {"taxi": []}
    walk = pr.domains.walk(n=30, p=0.7).sample(0, episodes=100, seed=1)
    assert pr.evaluate(walk, seed=0).notes["labels"] == {}


def test_stated_labels():
    data = shops(500)
    stated = pr.evaluate(data, names=["x", "shop"], labels=["shop"], seed=0)
    assert stated.notes["labels"] == {"shop": []}
    assert "labels,shrink=" in str(stated.notes["choice"]["stack"])
    for labels, message in (
        (["shops"], "labels must be a list of coordinates of the state, x, shop"),
        ("shop", "labels must be names of coordinates, got 'shop'"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            pr.evaluate(data, names=["x", "shop"], labels=labels)
    survey = Survey.of(data)
    assert label_spellings(survey, ["x", "shop"], []) == []
    alone = label_spellings(Survey.of(taxi(100, 0)), ["state"], [0])
    assert [each.text(["state"]) for each in alone] == ["labels,dims=state", "labels,shrink=1,dims=state"]


@pytest.mark.parametrize(
    ("features", "remedy"),
    [
        ("poly:1", "poly:1,dims=x/labels,shrink=1,dims=city"),
        ("fourier:2,dims=city", "as in labels,shrink=1,dims=city"),
        ("rbf:3x3", "as in labels,shrink=1,dims=city"),
        ("tiles:7,dims=city", "as in labels,shrink=1,dims=city"),
        ("labels,dims=city,second=poly:2", "poly:2,dims=x/labels,shrink=1,dims=city"),
        ("poly:1,dims=x", None),
        ("poly:1,dims=x/labels,shrink=1,dims=city", None),
        ("tabular,dims=city", None),
        ("tiles:8x3,dims=city+x", None),
    ],
)
def test_text_is_not_taken_for_numbers(tmp_path, features, remedy):
    pq.write_table(visits()[0], tmp_path / "log.parquet")

    def evaluated():
        return pr.evaluate(tmp_path / "log.parquet", state=["city", "x"], features=features)

    if remedy is None:
        assert evaluated().notes["labels"]["city"][0] == "Bern"
        return
    with pytest.raises(InvalidInputError, match="features must not take city for a number") as caught:
        evaluated()
    assert remedy in str(caught.value)


def test_stated_labels_are_not_taken_for_numbers_but_two_values_may_be():
    data = shops(500)
    with pytest.raises(InvalidInputError, match="features must not take shop for a number"):
        pr.evaluate(data, names=["x", "shop"], labels=["shop"], features="poly:1")
    two = pr.Trajectories(data.states % [np.inf, 2], data.rewards, data.lengths, data.terminated)
    pr.evaluate(two, names=["x", "shop"], labels=["shop"], features="poly:1")


def test_too_many_labels_for_a_choice():
    n = 2100
    data = pr.Trajectories(np.repeat(np.arange(n), 2)[:, None], np.ones(n), np.ones(n, int), np.ones(n, bool))
    with pytest.raises(InvalidInputError, match="at most 2000 values together for features=auto, got 2100"):
        pr.evaluate(data, labels=["state"])


HOSTILE = (
    *("speed m/s", "a+b", "a,b", 'q"q', "</script><script>alert(1)</script>", "a\nb", "\x1b[31mred", "nul\0"),
    *("a,second=poly:2", "sb3:m.zip", " x", "1", "$\\frac$", "\ud800", ""),
)


def visits_of(name, n=200):
    rng = np.random.default_rng(0)
    x, city = rng.random(n), rng.choice(["Bern", "Oslo", "Rome"], n)
    rewards = x + (city == "Rome") + rng.normal(size=n)
    columns = {name: x, "y": rng.random(n), "city": city}
    return pd.DataFrame({"episode": np.arange(n), **columns, "reward": rewards, "terminated": True})


def test_names_of_columns_change_nothing_but_names():
    """By default, with quantiles and a column of text: the names are put into the answer's texts alone."""
    plain = pr.evaluate(visits_of("x"), state=["x", "y", "city"], quantiles=[0.1], seed=1)
    assert "dims=x+y/labels" in plain.notes["features"]
    for name in ("speed m/s", 'a,b+c="d"', "</script>\n\x1b[31m", "nul\0"):
        found = pr.evaluate(visits_of(name), state=[name, "y", "city"], quantiles=[0.1], seed=1)
        assert found.names == (name, "y", "city")
        assert found.summary.std == plain.summary.std, name
        assert found.notes["features"] == plain.notes["features"].replace("x+y", f"{quoted(name)}+y")
        assert found.notes["distribution"]["cvar"] == plain.notes["distribution"]["cvar"]


@pytest.mark.parametrize("name", HOSTILE)
def test_spellings_name_such_columns_in_quotes_or_by_number(name):
    names, survey = (name, "y"), Survey.of(shops())
    box = np.zeros(2), np.ones(2)
    expected = pr.Joint([pr.Polynomial(1, [0], [1], dims=[0]), pr.TileCoding([0], [1], [3], dims=[1])])
    written = json.dumps(name)
    for dims in (written, json.dumps(name, ensure_ascii=False), quoted(name), "0" if name != "1" else "1"):
        spelling = Spelling.parse(f"poly:1,dims={dims}/tiles:3,dims=y,second=poly:1,dims=y+{dims}")
        assert spelling.build(names, survey, *box) == expected
        assert spelling.second.build(names, survey, *box).box.dims == (1, 0)
        again = Spelling.parse(spelling.text(names))
        assert again.normal(names) == spelling.normal(names)
        assert spelling.normal(names).dims == (0,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('poly:1,dims="x', 'a name in quotes must be written as in "speed m/s"'),
        ('poly:1,dims="x"y', "a name in quotes must be written"),
        ('poly:1,dims="0"', "dims must name coordinates of the state, x, shop, got '0'"),
        ("poly:1,dims=speed m/s", "features must be auto or one of"),
    ],
)
def test_misspelled_quotes(text, message):
    with pytest.raises(InvalidInputError, match=message):
        Spelling.parse(text).build(("x", "shop"), Survey.of(shops()), np.zeros(2), np.ones(2))


def test_the_command_line_takes_such_columns_in_quotes(tmp_path, capsys):
    log, out = str(tmp_path / "log.csv"), str(tmp_path / "out")
    visits_of("a,b").replace("Rome", "Rome, north").to_csv(log, index=False)
    features = 'poly:1,dims="a,b"/labels,shrink=1,dims=city'
    command = ["evaluate", log, "--out", out, "--features", features, "--state", '"a,b",city,y']
    assert cli.run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["coordinates"] == ["a,b", "city", "y"]
    assert cli.run(["query", out, "--at", '0.5,"Rome, north",0', "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["states"][0]["at"]["city"] == "Rome, north"
    assert cli.run([*command[:-1], '"a,b']) == 2
    assert "a name in quotes must be written" in capsys.readouterr().err
    assert cli.run([*command[:6], "--state", '"c,d",y']) == 1
    assert "--state must name a column" in capsys.readouterr().err
