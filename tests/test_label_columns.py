"""Columns of text in the state: the same numbers for a name, whoever reads it and in which parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import policyrisk as pr
from policyrisk.data import read_csv
from policyrisk.distributed.reduce import as_shards, shards
from policyrisk.errors import BadRowError, InvalidInputError

CITIES = ["Rome", "Oslo", "Bern", "Paris", "Åre"]


def table(cities, kind=None, seed=0):
    """Episodes of two steps, each in a city of its own; the end state is recorded."""
    n = len(cities)
    city = np.repeat(cities, 3).tolist()
    rewards = np.tile([1.0, 2.0, np.nan], n)
    return pa.table(
        {
            "episode": np.repeat(np.arange(n), 3),
            "city": pa.array(city, type=pa.string()).cast(kind or pa.string()),
            "x": np.random.default_rng(seed).random(3 * n),
            "reward": pa.array(rewards, mask=np.isnan(rewards)),
            "terminated": np.tile([False, True, False], n),
        }
    )


def named(stream):
    """The cities that were read, by their names."""
    return [stream.labels["city"][int(code)] for code in stream.load().states[:, 0]]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
@pytest.mark.parametrize("batch_rows", [1, 4, 1000])
def test_names_are_numbered_in_their_order(tmp_path, kind, batch_rows):
    cities = [*CITIES, "Oslo", "Rome"]
    pq.write_table(table(cities, kind), tmp_path / "log.parquet", row_group_size=5)
    stream = pr.read_parquet(tmp_path / "log.parquet", state=["city", "x"], batch_rows=batch_rows)
    assert stream.labels == {"city": ("Bern", "Oslo", "Paris", "Rome", "Åre")}
    assert named(stream) == np.repeat(cities, 3).tolist()
    alone = pr.read_parquet(tmp_path / "log.parquet", state="city").load().states
    assert alone.dtype == np.int64
    assert alone.ravel().tolist() == stream.load().states[:, 0].tolist()


def test_the_same_in_every_file_row_group_and_shard(tmp_path):
    pq.write_table(table(["Rome", "Oslo", "Rome"]), tmp_path / "a.parquet", row_group_size=3)
    pq.write_table(table(["Bern", "Rome", "Åre"]), tmp_path / "b.parquet", row_group_size=3)
    whole = pr.read_parquet(tmp_path, state=["city", "x"])
    assert whole.labels == {"city": ("Bern", "Oslo", "Rome", "Åre")}
    pieces = shards(tmp_path, state=["city", "x"])
    assert len(pieces) == 6
    states = np.concatenate([piece.source().load().states for piece in pieces])
    np.testing.assert_array_equal(states, whole.load().states)
    part = pr.read_parquet(tmp_path / "b.parquet", state=["city", "x"], row_groups=(1, 2))
    assert part.labels == {"city": ("Bern", "Rome", "Åre")}
    assert named(part) == ["Rome"] * 3


def test_names_that_are_given(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(table(["Rome", "Oslo"]), path)
    stream = pr.read_parquet(path, state=["city", "x"], codes={"city": ["Rome", "Bern", "Oslo"]})
    assert stream.load().states[:, 0].tolist() == [0, 0, 0, 2, 2, 2]
    with pytest.raises(BadRowError, match=r"city must be one of the 1 names .*got 'Oslo' in row 3"):
        pr.read_parquet(path, state=["city", "x"], codes={"city": ["Rome"]}).load()
    for wrong in ({"x": ["a"]}, {"city": ["Rome", "Rome"]}, {"city": [1]}):
        with pytest.raises(InvalidInputError, match="codes must give different names for columns of text"):
            pr.read_parquet(path, state=["city", "x"], codes=wrong)


def test_numbers_in_dictionaries_and_booleans_are_numbers(tmp_path):
    path = tmp_path / "log.parquet"
    log = table(["Rome", "Oslo"])
    shop = pa.array([7, 7, 7, 3, 3, 3]).dictionary_encode()
    rain = pa.array([True, False] * 3)
    pq.write_table(log.append_column("shop", shop).append_column("rain", rain), path)
    stream = pr.read_parquet(path, state=["shop", "rain"])
    assert stream.load().states.tolist() == [[7, 1], [7, 0], [7, 1], [3, 0], [3, 1], [3, 0]]
    assert stream.labels == {}


def test_text_in_some_files_alone(tmp_path):
    pq.write_table(table(["Rome", "Oslo"]), tmp_path / "a.parquet")
    other = table(["Rome", "Oslo"])
    numbers = other.set_column(1, "city", pa.array([1.0] * 6))
    pq.write_table(numbers, tmp_path / "b.parquet")
    with pytest.raises(
        InvalidInputError, match=r"city must be a column of text, .*got double in .*b\.parquet"
    ):
        pr.read_parquet(tmp_path, state=["city"]).load()
    (tmp_path / "a.parquet").rename(tmp_path / "c.parquet")
    with pytest.raises(
        InvalidInputError, match=r"numbers, or of text in all files, got string in .*c\.parquet"
    ):
        pr.read_parquet(tmp_path, state=["city"]).load()


def test_a_missing_name(tmp_path):
    log = table(["Rome", "Oslo"])
    cities = log.column("city").to_pylist()
    cities[4] = None
    pq.write_table(log.set_column(1, "city", pa.array(cities)), tmp_path / "log.parquet")
    with pytest.raises(BadRowError, match="city must not be null, got null in row 4"):
        pr.read_parquet(tmp_path / "log.parquet", state=["city"]).load()


def test_csv(tmp_path):
    path = tmp_path / "log.csv"
    header = "episode,city,rain,x,reward,terminated\n"
    path.write_text(
        header
        + "a,Rome,true,0.5,1,false\na,Oslo,false,1.5,2,true\na,Oslo,false,1.5,,\n"
        + "b,Bern,false,2,1,true\nb,Rome,true,3,,\n"
    )
    stream = read_csv(path, state=["city", "rain", "x"])
    assert stream.labels == {"city": ("Bern", "Oslo", "Rome")}
    assert stream.load().states.tolist() == [[2, 1, 0.5], [1, 0, 1.5], [1, 0, 1.5], [0, 0, 2], [2, 1, 3]]
    (tmp_path / "more.csv").write_text(header + "a,Zug,true,0.5,1,true\na,7,true,0.5,,\n")
    with pytest.raises(
        InvalidInputError, match="city must hold numbers or names, got both, such as 7 and Bern"
    ):
        read_csv(tmp_path, state=["city", "x"]).load()
    given = {"city": ["Bern", "Oslo", "Rome", "Zug", "7"]}
    assert read_csv(tmp_path, state=["city", "x"], codes=given).load().states[-2:].tolist() == [
        [3, 0.5],
        [4, 0.5],
    ]


def text_npz(path, states, kind="U"):
    n = len(states)
    array = np.repeat(np.array(states), 2, axis=0)
    if kind == "S":
        array = np.char.encode(array, "utf-8")
    flags = np.ones(n, dtype=bool)
    np.savez(path, states=array, rewards=np.arange(n, dtype=float), lengths=np.ones(n, int), terminated=flags)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_npz(tmp_path, kind):
    """Names are numbered in their order; a column whose texts are numbers is one of numbers."""
    text_npz(tmp_path / "log.npz", [[city, f"{k / 2}"] for k, city in enumerate(CITIES)], kind)
    stream = pr.read(tmp_path / "log.npz")
    assert stream.labels == {"state_0": ("Bern", "Oslo", "Paris", "Rome", "Åre")}
    assert stream.load().states[::2].tolist() == [[3, 0], [1, 0.5], [0, 1], [2, 1.5], [4, 2]]
    evaluation = pr.evaluate(tmp_path / "log.npz", features="labels,dims=city", names=["city", "x"])
    assert evaluation.notes["labels"] == {"city": ["Bern", "Oslo", "Paris", "Rome", "Åre"]}
    given = pr.read(tmp_path / "log.npz", codes={"state_0": CITIES})
    assert given.load().states[::2, 0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidInputError, match=r"state_0 must be one of the 4 names .*, got 'Åre'"):
        pr.read(tmp_path / "log.npz", codes={"state_0": CITIES[:4]}).load()


def test_npz_of_one_column_and_of_numbers(tmp_path):
    text_npz(tmp_path / "names.npz", CITIES)
    assert pr.read(tmp_path / "names.npz").load().states[::2].tolist() == [[3], [1], [0], [2], [4]]
    assert pr.evaluate(tmp_path / "names.npz", features="labels").notes["labels"]["state"][0] == "Bern"
    with pytest.raises(InvalidInputError, match="codes must give names for columns of text in the states or"):
        pr.read(tmp_path / "names.npz", codes={"city": CITIES}).load()
    text_npz(tmp_path / "numbers.npz", ["3", "9007199254740993"])
    stream = pr.read(tmp_path / "numbers.npz")
    assert stream.labels == {}
    assert stream.load().states[::2].tolist() == [[3], [9007199254740993]]
    text_npz(tmp_path / "both.npz", ["Oslo", "3"])
    with pytest.raises(InvalidInputError, match="state must hold numbers or names, got both, such as 3 and"):
        pr.read(tmp_path / "both.npz").load()
    np.savez(tmp_path / "both.npz", states=np.array(["a", None]), rewards=[1.0])
    with pytest.raises(InvalidInputError, match="path must be an npz file of plain arrays"):
        pr.read(tmp_path / "both.npz").load()


def test_npz_files_as_shards_share_their_numbers(tmp_path):
    text_npz(tmp_path / "a.npz", ["Rome", "Oslo"])
    text_npz(tmp_path / "b.npz", ["Bern", "Rome"])
    for found in (shards(tmp_path), as_shards([tmp_path / "a.npz", tmp_path / "b.npz"])):
        codes = [shard.source().load().states[::2, 0].tolist() for shard in found]
        assert codes == [[2, 1], [0, 2]]


def test_a_list_of_files_shares_its_numbers(tmp_path):
    for name, cities in (("a", ["Rome", "Oslo"]), ("b", ["Bern"])):
        pq.write_table(table(cities).rename_columns({"city": "state"}), tmp_path / f"{name}.parquet")
    found = as_shards([tmp_path / "a.parquet", str(tmp_path / "b.parquet")])
    assert [shard.source().load().starts().ravel().tolist() for shard in found] == [[2, 1], [0]]
