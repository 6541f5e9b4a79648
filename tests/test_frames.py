"""Data frames: the episodes of a file, and states by the names of their columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import policyrisk as pr
from policyrisk._core.frames import Coordinates
from policyrisk.data import write_npz
from policyrisk.errors import BadRowError, InvalidInputError, MismatchError

pytestmark = [
    pytest.mark.filterwarnings("ignore::policyrisk.errors.FewEpisodesWarning"),
    pytest.mark.filterwarnings("ignore::policyrisk.errors.NegativeVarianceWarning"),
]
STATE = ["x", "city", "member", "day"]
COLUMNS = {"episode": "run", "state": STATE, "reward": "cost", "terminated": "done", "step": "at"}
FEATURES = "poly:1,dims=x+member/labels,dims=city"


def log(episodes=120, seed=0):
    """A row for each visited state, the last one of an episode being its end, without a reward."""
    rng = np.random.default_rng(seed)
    rows = []
    for run in range(episodes):
        steps, city = int(rng.integers(1, 5)), str(rng.choice(["Rome", "Oslo", "Bern"]))
        rows += [
            {
                "run": f"r{run}",
                "at": pd.Timestamp("2024-02-28") + pd.Timedelta(days=t),
                "x": float(rng.random()),
                "city": city,
                "member": bool(rng.random() < 0.5),
                "day": pd.Timestamp("2024-01-01") + pd.Timedelta(hours=6 * t),
                "cost": np.nan if t == steps else rng.normal() + 3.0 * (city == "Rome"),
                "done": t == steps - 1,
            }
            for t in range(steps + 1)
        ]
    return pd.DataFrame(rows)


def kinds(frame):
    """The frame in other libraries and types."""
    yield "pandas", frame
    yield "categories", frame.astype({"city": "category", "run": "category"})
    yield "arrow", pa.table(frame)
    yield "batch", pa.table(frame).combine_chunks().to_batches()[0]


def same(one, other):
    for name in ("states", "rewards", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.coordinates == other.coordinates


def test_several_kinds_of_rewards(tmp_path):
    """The first is the reward; end rows have none of the others, and files keep all."""
    frame = log().assign(fee=lambda f: np.where(f.cost.isna(), np.nan, np.arange(len(f))))
    columns = {**COLUMNS, "reward": ["cost", "fee"]}
    data, plain = pr.Trajectories.from_frame(frame, **columns), pr.Trajectories.from_frame(frame, **COLUMNS)
    same(data, plain)
    np.testing.assert_array_equal(data.other_rewards[:, 0], frame.fee.dropna())
    np.testing.assert_array_equal(
        data[2:4].other_rewards, data.other_rewards[data.offsets[2] : data.offsets[4]]
    )
    frame.to_csv(tmp_path / "log.csv", index=False)
    pr.write_parquet(data, tmp_path / "ours.parquet")
    write_npz(data, tmp_path / "ours.npz")
    again = (
        pr.read(tmp_path / "log.csv", **columns, batch_rows=6).load(),
        pr.read(tmp_path / "ours.parquet", reward=["reward", "reward_1"]).load(),
        pr.read(tmp_path / "ours.npz").load(),
    )
    for each in again:
        np.testing.assert_array_equal(each.other_rewards, data.other_rewards)
    assert pr.read(tmp_path / "ours.parquet").load().other_rewards is None
    assert pr.Trajectories.concatenate([data[:1], data[1:]]).other_rewards.shape == (data.transitions, 1)


def by_hand(frame):
    """What the states are, from the frame itself."""
    city = frame.city.map({"Bern": 0, "Oslo": 1, "Rome": 2})
    day = (frame.day - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    return np.column_stack([frame.x, city, frame.member, day]).astype(float)


def test_the_same_episodes_from_frames_and_files(tmp_path):
    frame = log()
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    data = pr.Trajectories.from_frame(frame, **COLUMNS)
    np.testing.assert_array_equal(data.states, by_hand(frame))
    np.testing.assert_array_equal(data.rewards, frame.cost.dropna())
    assert data.coordinates.labels == {"city": ("Bern", "Oslo", "Rome")}
    for _, other in kinds(frame):
        same(pr.read(other, **COLUMNS, batch_rows=7).load(), data)
    same(pr.read(tmp_path / "log.csv", **COLUMNS).load(), data)
    same(pr.read(tmp_path / "log.parquet", **COLUMNS, batch_rows=5).load(), data)
    # What we write needs no names again.
    pr.write_parquet(data, tmp_path / "ours.parquet")
    write_npz(data, tmp_path / "ours.npz")
    for file in ("ours.parquet", "ours.npz"):
        same(pr.read(tmp_path / file).load(), data)
    results = [
        pr.evaluate(frame, features=FEATURES, **COLUMNS),
        pr.evaluate(tmp_path / "log.csv", features=FEATURES, **COLUMNS),
        pr.evaluate(tmp_path / "ours.parquet", features=FEATURES),
        pr.evaluate(tmp_path / "ours.npz", features=FEATURES),
        pr.evaluate(data, features=FEATURES),
    ]
    for result in results:
        assert result.names == tuple(STATE)
        assert dict(result.label_names) == {"city": ["Bern", "Oslo", "Rome"]}
        assert result.summary.mean_value == pytest.approx(results[0].summary.mean_value, rel=1e-12)


def test_polars(tmp_path):
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    frame = log()
    data = pr.Trajectories.from_frame(frame, **COLUMNS)
    other = polars.from_pandas(frame)
    for each in (other, other.with_columns(polars.col("city").cast(polars.Categorical))):
        same(pr.read(each, **COLUMNS).load(), data)
    risk = pr.evaluate(other, features=FEATURES, **COLUMNS).risk
    found = risk.to_frame(other[:5])
    assert isinstance(found, polars.DataFrame)
    assert found["day"].to_list() == other["day"][:5].to_list()
    np.testing.assert_array_equal(found["mean"], risk.mean(data.states[:5]))
    with pytest.raises(InvalidInputError, match="a plan of one; pass what its collect"):
        pr.read(other.lazy(), **COLUMNS)


@pytest.fixture(scope="module")
def risk():
    return pr.evaluate(log(), features=FEATURES, **COLUMNS).risk


def test_columns_are_matched_by_their_names(risk, tmp_path):
    frame = log(20, seed=1)
    expected = risk.mean(by_hand(frame))
    turned = frame[["city", "done", "day", "x", "member"]]
    wrong = frame[["member", "city", "x", "day"]].assign(city=0, day=0.0).to_numpy(dtype=float)
    assert not np.allclose(risk.mean(wrong), expected)  # what an order means
    risk.save(tmp_path / "risk.npz")
    for each in (risk, pr.RiskFunction.load(tmp_path / "risk.npz")):
        for _, other in kinds(turned.assign(run=frame.run)):
            np.testing.assert_array_equal(each.mean(other), expected)
        for of in ("variance", "std", "sharpe", "episodes", "visited", "mean_and_variance"):
            np.testing.assert_array_equal(getattr(each, of)(turned), getattr(each, of)(by_hand(frame)))
        np.testing.assert_array_equal(
            each.interval(turned, of="std"), each.interval(by_hand(frame), of="std")
        )
        assert each.summary(turned).mean_value == each.summary(by_hand(frame)).mean_value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="member"), "one column each for x, city, member, day, got .*; add member"),
        (lambda f: f.rename(columns={"x": "X"}), "add x"),
        (lambda f: pd.concat([f, f[["x"]]], axis=1), "x|one type"),
        (lambda f: f.assign(city=1), "city in x must hold names, as the data had, got int64"),
        (lambda f: f.assign(x="far"), "x in x must hold numbers, as the data had"),
        (
            lambda f: f.assign(city="Paris"),
            "city must be one of the names in the data, Bern, Oslo, Rome,",
        ),
        (
            lambda f: f.assign(x=[0.5, None, 0.1] + [0.0] * (len(f) - 3)),
            "x must be a finite .* row 1 of x",
        ),
        (lambda f: f.assign(x=np.inf), "x must be a finite number, got inf"),
    ],
)
def test_other_columns_are_refused(risk, change, message):
    with pytest.raises(InvalidInputError, match=message):
        risk.mean(change(log(10)))


def test_without_names_a_frame_is_refused():
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=50, seed=1)
    risk = pr.LSTD(pr.Tabular(5)).fit(data)
    with pytest.raises(InvalidInputError, match=r"the names of the state.s columns are not known"):
        risk.mean(pd.DataFrame({"state": [0.0]}))
    with pytest.raises(InvalidInputError, match="got the data frame DataFrame; pass Trajectories"):
        pr.LSTD(pr.Tabular(5)).fit(pd.DataFrame({"state": [0.0]}))
    with pytest.raises(InvalidInputError, match="frame must be a data frame, got list"):
        pr.Trajectories.from_frame([1, 2])
    with pytest.raises(InvalidInputError, match="columns have a name and a type each"):
        pr.read(pd.DataFrame({"x": [1, "a"]}))
    with pytest.raises(InvalidInputError, match="stat must be an option of read_frame"):
        pr.read(pd.DataFrame({"x": [1]}), stat="x")


def test_estimators_keep_the_names_of_their_data(tmp_path):
    plain = pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=1)
    parts = plain.states, plain.rewards, plain.lengths, plain.terminated
    data = pr.Trajectories(*parts, coordinates=["place"])
    frame = pd.DataFrame({"other": [7, 8], "place": [3, 1]})
    table = pr.Tabular(5)
    pr.write_parquet(data, tmp_path / "log.parquet")
    fits = [
        pr.LSTD(table).fit(pr.read(tmp_path / "log.parquet")),
        pr.LSTD(table).fit(data),
        pr.LSTD(table).fit([data[:50], data[50:]]),
        pr.TD(table).fit(data),
        pr.ReturnForest().fit(data, seed=0),
        pr.ReturnDistribution(table).fit(data),
        pr.RiskFunction.mixture([pr.LSTD(table).fit(data, bootstrap=50, seed=0)] * 2, [0.5, 0.5]),
    ]
    for risk in fits:
        np.testing.assert_array_equal(risk.mean(frame), risk.mean([3, 1]))
    for axes in (pr.plotting.plot_line(fits[1], frame), pr.plotting.plot_fan(fits[5], frame)):
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), [3, 1])
    orders = (("a", "b"), ("b", "a"))
    pair = [replace(fits[0], coordinates=Coordinates(("place",), {"place": names})) for names in orders]
    found = pr.compare(dict(zip("ab", pair, strict=True)), at=pd.DataFrame({"place": ["a", "b"]}))
    lead = fits[0].sharpe([0, 1]) - fits[0].sharpe([1, 0])  # each by its own names
    np.testing.assert_allclose(found.at.difference, lead)
    for states in ({"starts": [0, 1]}, {"at": [0, 1]}):
        with pytest.raises(MismatchError, match=r"got place \(a, b\) in a and place \(b, a\) in b; pass the"):
            pr.compare(dict(zip("ab", pair, strict=True)), **states)
    tails = {str(names): replace(fits[5], coordinates=Coordinates(names)) for names in (("x",), ("place",))}
    with pytest.raises(MismatchError, match=r"got x in .* and place in"):
        pr.compare(tails, [0], pr.criteria.CVaR(0.1))
    other = pr.Trajectories(*parts, coordinates=["spot"])
    assert pr.Trajectories.concatenate([data, plain, data[3]]).coordinates.names == ("place",)
    with pytest.raises(MismatchError, match=r"agree on the names of the state's coordinates.*place and spot"):
        pr.Trajectories.concatenate([data, other])
    for bad in (["a", "b"], "a", [1], 3):
        with pytest.raises(InvalidInputError, match="coordinates must be 1 different names"):
            pr.Trajectories(*parts, coordinates=bad)


def test_estimates_as_a_frame(risk):
    frame = log(5, seed=2)
    frame.index = np.arange(len(frame)) + 100
    frame["mean"] = -1.0  # a column of the caller's
    states = by_hand(frame)
    for kind, given in kinds(frame.drop(columns="cost")):
        found = risk.to_frame(given, level=0.9)
        assert isinstance(found, pa.Table if kind in ("arrow", "batch") else pd.DataFrame)
        columns = {name: np.asarray(found[name]) for name in ("mean", "std", "variance", "sharpe")}
        for of, values in columns.items():
            np.testing.assert_array_equal(values, getattr(risk, of)(states))
            ends = np.column_stack([np.asarray(found[f"{of}_{end}"]) for end in ("low", "high")])
            np.testing.assert_array_equal(ends, risk.interval(states, of, 0.9))
        np.testing.assert_array_equal(np.asarray(found["episodes"]), risk.episodes(states))
    found = risk.to_frame(frame)
    pd.testing.assert_frame_equal(found[STATE], frame[STATE])
    found = risk.to_frame(states)
    assert list(found.columns[:5]) == [*STATE, "mean"]
    assert found.city.tolist() == frame.city.tolist()
    np.testing.assert_array_equal(found.day, states[:, 3])
    bare = pr.LSTD(pr.Tabular(3)).fit_exact(pr.domains.walk(n=3, p=0.7)).to_frame([0, 1])
    assert list(bare.columns) == ["state", "mean", "variance", "std", "sharpe", "episodes"]


def test_dates_in_days():
    dates = ["1970-01-02T12:00", "1969-12-31T00:00", "2024-02-29T00:00:00.000000001"]
    stamps = pd.Series(pd.to_datetime(dates, format="ISO8601"))
    days = [1.5, -1.0, 19782.0 + 1e-9 / 86400]
    columns = {
        "ns": pa.array(stamps.astype("datetime64[ns]")),
        "zoned": pa.array(stamps.astype("datetime64[ns]")).cast(pa.timestamp("ns", "Europe/Oslo")),
        "duration": pa.array((stamps - pd.Timestamp("1970-01-01")).astype("timedelta64[ns]")),
    }
    whole = {
        "date32": pa.array([1, -1, 19782], pa.int32()).cast(pa.date32()),
        "date64": pa.array([86_400_000, -86_400_000, 19782 * 86_400_000]).cast(pa.date64()),
        "time32": pa.array([43_200, 0, 21_600], pa.int32()).cast(pa.time32("s")),
        "time64": pa.array([43_200 * 10**6, 0, 21_600 * 10**6]).cast(pa.time64("us")),
    }
    usual = {"episode": [1, 2, 3], "reward": [1.0] * 3, "terminated": [True] * 3}
    for name, column in {**columns, **whole}.items():
        expected = days if name in columns else [1.0, -1.0, 19782.0] if "date" in name else [0.5, 0.0, 0.25]
        states = pr.read(pa.table({**usual, "when": column}), state="when").load().states
        np.testing.assert_array_equal(states[::2, 0], expected)
    back = pa.table({**usual, "episode": [1, 1, 1], "when": columns["ns"], "x": [1, 2, 3]})
    flags = back.set_column(2, "terminated", [[False, False, True]])
    assert pr.read(flags, state="x", step="when").load().states.ravel().tolist() == [2, 1, 3, 3]
    with pytest.raises(InvalidInputError, match="step must rise from row to row"):
        pr.read(flags.take([1, 0, 0, 2]), state="x", step="when").load()


def test_a_text_in_a_file_is_named(tmp_path):
    header = "episode,x,reward,terminated,step\n"
    cases = {
        "a,0.5,much,true,1": "reward must hold numbers in every row, got the text 'much' in row 0",
        "a,0.5,1,yes,1": "terminated must hold true or false in every row, got the text 'yes' in row 0",
        "a,0.5,1,true,soon": "step must hold numbers in every row, got the text 'soon' in row 0",
        "a,0.5,1,false,1\na,NA,1,true,2": "x must hold numbers .*'NA' in row 1 .*with missing=",
    }
    for rows, message in cases.items():
        (tmp_path / "log.csv").write_text(f"{header}{rows}\n")
        with pytest.raises(InvalidInputError, match=message):
            pr.read(tmp_path / "log.csv", state="x").load()


def test_a_file_that_tells_nonsense_about_its_names(tmp_path):
    data = pr.Trajectories([[0.0], [1.0]], [1.0], [1], [True], coordinates=["x"])
    write_npz(data, tmp_path / "log.npz")
    arrays = dict(np.load(tmp_path / "log.npz"))
    for text in ("{", "[]", '{"names": ["a", "b"], "labels": {}}', '{"names": 3, "labels": {}}'):
        np.savez(tmp_path / "bad.npz", **{**arrays, "coordinates": np.array(text)})
        with pytest.raises(InvalidInputError, match=r"bad\.npz: coordinates must be"):
            pr.read(tmp_path / "bad.npz").load()
    pr.write_parquet(data, tmp_path / "log.parquet")
    table = pa.parquet.read_table(tmp_path / "log.parquet")
    for note in (b"{", b'{"state": ["gone"]}', b'{"state": 3}', b"[]"):
        pa.parquet.write_table(table.replace_schema_metadata({b"policyrisk": note}), tmp_path / "bad.parquet")
        with pytest.raises(InvalidInputError, match="state must name the columns of the state"):
            pr.read(tmp_path / "bad.parquet")


@pytest.mark.parametrize("given", ["read", "read_frame", "from_frame", "evaluate"])
def test_a_misspelled_option_is_answered_with_the_nearest(given):
    frame = pd.DataFrame({"x": [0.5, 0.7], "reward": [1.0, None], "terminated": True, "episode": 1})
    readers = {
        "read": pr.read,
        "read_frame": pr.readers.read_frame,
        "from_frame": pr.Trajectories.from_frame,
        "evaluate": pr.evaluate,
    }
    with pytest.raises(InvalidInputError, match=r"rewrad must be an option .* did you mean reward\?"):
        readers[given](frame, rewrad="reward")
    with pytest.raises(InvalidInputError, match=r"text must be an option .*state, .*episode"):
        readers[given](frame, text=frozenset())


def shuffled(frame, seed=0):
    return frame.iloc[np.random.default_rng(seed).permutation(len(frame))]


def by_episode(data):
    """Episodes in an order that does not depend on that of the log."""
    return data[np.lexsort(data.starts().T)]


def test_rows_in_any_order(tmp_path, monkeypatch):
    frame = log()
    data = by_episode(pr.read(frame, **COLUMNS).load())
    mixed = shuffled(frame)
    mixed.to_csv(tmp_path / "log.csv", index=False)
    mixed.to_parquet(tmp_path / "log.parquet", row_group_size=50)
    several = [tmp_path / "log.csv", tmp_path / "log.parquet"]
    for source in (*(other for _, other in kinds(mixed)), *several):
        for rows in (7, 1000):
            stream = pr.read(source, **COLUMNS, batch_rows=rows)
            same(by_episode(stream.load()), data)
            assert stream.load().returns().tolist() == stream.load().returns().tolist()
    # Episodes that go on side by side, as in a log by date, stay in the order in which they begin.
    side = frame.sort_values(["at", "run"], kind="stable")
    assert pr.read(side, **COLUMNS).load().states[0].tolist() == by_hand(side)[0].tolist()
    given = pr.evaluate(mixed, features=FEATURES, **COLUMNS).summary.mean
    whole = pr.evaluate(frame, features=FEATURES, **COLUMNS).summary.mean
    assert given.value == pytest.approx(whole.value, rel=1e-12)
    assert given.standard_error == pytest.approx(whole.standard_error, rel=1e-9)
    monkeypatch.setattr("policyrisk.data.files.SORTED", 1 << 12)
    for source in several:
        with pytest.raises(InvalidInputError, match=r"sorted by run and at .* ORDER BY run, at"):
            pr.read(source, **COLUMNS, batch_rows=7).load()


def test_rows_that_cannot_be_sorted(tmp_path, monkeypatch):
    frame = log(20)
    mixed = shuffled(frame)
    unnamed = {**COLUMNS, "step": None}
    with pytest.raises(BadRowError, match=r"together.*step="):
        pr.read(mixed, **unnamed).load()
    twice = pd.concat([mixed, frame.iloc[5:6]])
    with pytest.raises(BadRowError, match=r"at must be different .* twice in run 'r.* of the data frame"):
        pr.read(twice, **COLUMNS).load()
    # Where the disorder comes late in a file, the rows before have been given out.
    late = pd.concat([frame, shuffled(log(5).assign(run=lambda each: "late " + each.run))])
    late.to_parquet(tmp_path / "late.parquet")
    monkeypatch.setattr("policyrisk.data.files.LOOKED", 20)
    with pytest.raises(BadRowError, match="sort the rows"):
        pr.read(tmp_path / "late.parquet", **COLUMNS, batch_rows=20).load()
    assert len(pr.read(late, **COLUMNS, batch_rows=20).load()) == 25
