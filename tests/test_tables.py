"""CSV and npz, and the one door to all kinds of files."""

import json
import pickle
import zipfile
from contextlib import contextmanager

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from conftest import assert_same

import policyrisk as pr
from policyrisk.data import read_csv, read_npz, write_npz
from policyrisk.data.columns import Columns
from policyrisk.data.files import Table, table_stream
from policyrisk.data.read import READERS
from policyrisk.errors import BadRowError, InvalidInputError, UnrecordedEndWarning

HEADER = "episode,step,x,y,reward,terminated,truncated\n"
ROWS = [
    "a,0,0.5,1,1.5,false,false\n",
    "a,1,0.25,2,-2,true,false\n",
    "a,2,0.125,3,,,\n",
    "b,0,1e-3,4,0,false,false\n",
    "b,1,7,5,1,0,1\n",
    "b,2,8,6,,false,false\n",
]


def written(folder, rows=ROWS, header=HEADER, name="log.csv"):
    path = folder / name
    path.write_text(header + "".join(rows))
    return path


def changed(row, text):
    return [text if k == row else line for k, line in enumerate(ROWS)]


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 6, 30)
    states = rng.normal(size=(lengths.sum() + 30, 2))
    return pr.Trajectories(states, rng.normal(size=lengths.sum()), lengths, rng.random(30) < 0.5)


def test_a_small_csv(tmp_path):
    got = read_csv(written(tmp_path), state=["x", "y"]).load()
    states = [[0.5, 1], [0.25, 2], [0.125, 3], [1e-3, 4], [7, 5], [8, 6]]
    assert_same(got, pr.Trajectories(np.array(states, float), [1.5, -2, 0, 1], [2, 2], [True, False]))
    assert read_csv(written(tmp_path), state="y").load().states.dtype == np.float64


def test_csv_gives_what_parquet_gives(tmp_path, data):
    pr.write_parquet(data, tmp_path / "a.parquet")
    pyarrow.csv.write_csv(pq.read_table(tmp_path / "a.parquet"), tmp_path / "a.csv")
    for batch_rows in (1, 1000):
        assert_same(read_csv(tmp_path / "a.csv", batch_rows=batch_rows).load(), data)


def test_csv_in_many_blocks(tmp_path, data, monkeypatch):
    monkeypatch.setattr("policyrisk.data.csv._BLOCK", 200)
    pr.write_parquet(data, tmp_path / "a.parquet")
    pyarrow.csv.write_csv(pq.read_table(tmp_path / "a.parquet"), tmp_path / "a.csv")
    stream = read_csv(tmp_path / "a.csv", batch_rows=20)
    assert len(list(stream)) > 2
    assert_same(stream.load(), data)


def test_whole_numbers_first_and_fractions_later(tmp_path, monkeypatch):
    """Types are not guessed from the first block."""
    monkeypatch.setattr("policyrisk.data.csv._BLOCK", 100)
    rows = [f"{k},0,{k if k < 50 else k + 0.5},{k},true\n" for k in range(100)]
    path = written(tmp_path, rows, "episode,step,x,reward,terminated\n")
    assert read_csv(path, state="x").load().states[-1].tolist() == [99.5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(1, ",1,0.25,2,-2,true,false\n"), "episode must not be null, got null in row 1"),
        (changed(3, "a,3,1e-3,4,0,false,false\n"), "reward must not be null before .* in row 2"),
        ([*ROWS, "a,9,1,1,1,true,false\n"], "reward must not be null before .* sorted by episode and step"),
        (changed(1, "a,1,,2,-2,true,false\n"), "x must not be null, got null in row 1"),
        (changed(1, "a,1,nan,2,-2,true,false\n"), "x must be finite, got nan in row 1"),
        (changed(2, "a,2,0.125,3,nan,,\n"), "reward must be finite, got nan in row 2"),
        (changed(1, "a,0,0.25,2,-2,true,false\n"), "step must rise .* got 0 after 0 in row 1"),
        (changed(0, "a,0,0.5,1,1.5,true,false\n"), "terminated must be true only .* in row 0"),
        (
            changed(1, "a,1,0.25,2,-2,,false\n"),
            "terminated must not be null beside a reward, got null in row 1",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, message):
    path = written(tmp_path, rows)
    with pytest.raises(BadRowError, match=message) as caught:
        read_csv(path, state=["x", "y"]).load()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(4, "b,1,7\n"), "Expected 7 columns, got 3"),
        ([*ROWS[:5], "b,2,8,6,"], "Expected 7 columns, got 5"),
    ],
)
def test_text_that_does_not_parse(tmp_path, rows, message):
    path = written(tmp_path, rows)
    with pytest.raises(InvalidInputError, match=rf"got .*log\.csv, which is none, or is damaged.*{message}"):
        read_csv(path, state=["x", "y"]).load()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            changed(1, "a,1,oops,2,-2,true,false\n"),
            "x must hold numbers or names, got both, such as 0.125 and oops",
        ),
        (
            changed(1, "a,1,0.25,2,-2,maybe,false\n"),
            r"terminated must hold true or false .*'maybe' in row 1 of .*log\.csv",
        ),
        (
            changed(1, "a,1,0.25,2,much,true,false\n"),
            r"reward must hold numbers .*'much' in row 1 of .*log\.csv",
        ),
    ],
)
def test_text_among_numbers(tmp_path, rows, message):
    with pytest.raises(InvalidInputError, match=message):
        read_csv(written(tmp_path, rows), state=["x", "y"]).load()


def test_headers(tmp_path):
    path = written(tmp_path, header="")
    with pytest.raises(
        InvalidInputError, match=r"state must name a column, got 'x', but got the columns a, 0"
    ):
        read_csv(path, state="x")
    path = written(tmp_path, header=HEADER.replace("y", "x"))
    with pytest.raises(InvalidInputError, match="x more than once"):
        read_csv(path, state="x")
    path.write_text("")
    with pytest.raises(InvalidInputError, match="Empty CSV file"):
        read_csv(path, state="x")
    path.write_bytes(HEADER.encode() + b"\xff\xfe\x00,1,2\n")
    with pytest.raises(InvalidInputError, match=r"got .*log\.csv"):
        read_csv(path, state="x").load()
    path.write_text(HEADER)
    with pytest.raises(InvalidInputError, match="at least one episode"):
        read_csv(path, state="x").load()


def test_csv_without_end_rows(tmp_path):
    path = written(tmp_path, ["a,1,5,0\n", "a,2,6,0\n", "b,3,7,1\n"], "episode,x,reward,terminated\n")
    stream = read_csv(path, state="x")
    with pytest.warns(UnrecordedEndWarning, match="1 last transition given up"):
        got = stream.load()
    assert_same(got, pr.Trajectories(np.array([[1.0], [2], [3], [3]]), [5, 7], [1, 1], [False, True]))
    assert stream.given_up == 1


def test_npz_round_trip(tmp_path, data):
    whole = pr.Trajectories([[3], [4], [5]], [1.0, 2.0], [2], [False])
    for each in (data, whole):
        write_npz([each[:1], each[1:]], tmp_path / "a.npz")
        stream = read_npz(tmp_path / "a.npz")
        assert_same(stream.load(), each)
        assert_same(stream.load(), each)
    with pytest.raises(InvalidInputError, match="got the folder"):
        write_npz(data, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def arrays(data):
    return {name: getattr(data, name) for name in ("states", "rewards", "lengths", "terminated")}


def test_npz_that_is_none(tmp_path, data):
    path = tmp_path / "a.npz"
    with pytest.raises(InvalidInputError, match=r"must name an npz file, got .*a\.npz, which is none"):
        read_npz(path)
    np.savez(path, states=data.states, rewards=data.rewards)
    with pytest.raises(InvalidInputError, match=r"got states, rewards in .*a\.npz; add lengths, terminated"):
        read_npz(path).load()
    np.savez(path, **{**arrays(data), "lengths": data.lengths + 1})
    with pytest.raises(InvalidInputError, match=r"a\.npz: lengths must sum to len\(rewards\)"):
        read_npz(path).load()
    np.savez(path, **arrays(data))
    whole = path.read_bytes()
    for broken in (b"", whole[:100], whole[:-30], b"not an archive"):
        path.write_bytes(broken)
        with pytest.raises(InvalidInputError, match="which is none or is damaged"):
            read_npz(path).load()
    altered = bytearray(whole)
    altered[200:260] = bytes(60)
    path.write_bytes(altered)
    with pytest.raises(InvalidInputError, match="which is none or is damaged"):
        read_npz(path).load()


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a file was unpickled",))


def test_nothing_is_unpickled(tmp_path, data):
    path = tmp_path / "a.npz"
    np.savez(path, **{**arrays(data), "states": np.array([Trap()], dtype=object)}, allow_pickle=True)
    with pytest.raises(InvalidInputError, match="holds objects, which would have to be unpickled"):
        read_npz(path).load()
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InvalidInputError, match="which is none or is damaged"):
        read_npz(path).load()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("states", b"not an array")
    with pytest.raises(InvalidInputError):
        read_npz(path).load()


def test_the_door(tmp_path, data):
    pr.write_parquet(data, tmp_path / "a.parquet")
    write_npz(data, tmp_path / "a.npz")
    (tmp_path / "text").mkdir()
    pyarrow.csv.write_csv(pq.read_table(tmp_path / "a.parquet"), tmp_path / "text" / "a.csv")
    (tmp_path / "columns").mkdir()
    pr.write_parquet(data, tmp_path / "columns" / "A.parquet")
    for name in ("a.parquet", "a.npz", "text", "text/a.csv", "columns"):
        assert_same(pr.read(tmp_path / name).load(), data)
    assert_same(pr.read([tmp_path / "a.parquet", tmp_path / "columns"]).load()[: len(data)], data)
    assert pr.read(tmp_path / "columns", state=["state_1"], batch_rows=9).load().dim == 1


def test_what_the_door_refuses(tmp_path, data):
    (tmp_path / "a.txt").write_text("?")
    write_npz(data, tmp_path / "a.npz")
    with pytest.raises(InvalidInputError, match="got nothing, which does not exist"):
        pr.read("nothing")
    for path in (tmp_path / "a.txt", tmp_path, [tmp_path / "a.txt", tmp_path / "a.npz"]):
        with pytest.raises(InvalidInputError, match=r"path must be a \.parquet, \.csv or \.npz file"):
            pr.read(path)
    pr.write_parquet(data, tmp_path / "a.parquet")
    written(tmp_path)
    with pytest.raises(InvalidInputError, match=r"\(\.csv and \.parquet\)"):
        pr.read(tmp_path)
    with pytest.raises(InvalidInputError, match="state must be an option of read_npz, which has codes"):
        pr.read(tmp_path / "a.npz", state="x")
    with pytest.raises(
        InvalidInputError, match=r"stat must be an option of read_parquet, which has state, .*episode"
    ):
        pr.read(tmp_path / "a.parquet", stat="x")
    with pytest.raises(InvalidInputError, match="does not exist"):
        pr.read(tmp_path / "b.parquet")


def test_streams_of_text_can_be_sent_to_other_processes(tmp_path, data):
    """The names in their columns are found out once, by whoever asks first."""
    cloudpickle = pytest.importorskip("cloudpickle")
    names = np.array(["b", "a"])[data.states[:, 0].astype(int) % 2]
    np.savez(tmp_path / "a.npz", **{**arrays(data), "states": names[:, None]})
    (tmp_path / "a.csv").write_text("episode,place,reward,terminated\n1,b,1,false\n1,a,2,true\n")
    for stream in (pr.read(tmp_path / "a.npz"), pr.read(tmp_path / "a.csv", state="place")):
        sent = cloudpickle.loads(cloudpickle.dumps(stream))
        assert [*sent.labels.values()] == [("a", "b")]
        assert sent.load().dim == 1


def test_a_new_reader_is_a_function_and_a_line(tmp_path, data, monkeypatch):
    """Files of another kind, by name, in a folder and in shards: nothing else knows which kinds there are."""
    pyarrow_json = pytest.importorskip("pyarrow.json")

    @contextmanager
    def opened(file):
        table = pyarrow_json.read_json(file)

        def batches(columns, rows):
            return iter(table.select(columns.used()).to_batches(rows))

        yield Table(table.schema.names, table.schema.types, batches)

    def read_jsonl(path, state=None, *, batch_rows=1000, **columns):
        return table_stream(path, "a file of JSON", ".jsonl", opened, Columns(state, **columns), batch_rows)

    monkeypatch.setitem(READERS, ".jsonl", read_jsonl)
    pr.write_parquet(data, tmp_path / "a.parquet")
    (tmp_path / "lines").mkdir()
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    (tmp_path / "lines" / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert_same(pr.read(tmp_path / "lines").load(), data)
    assert_same(pr.read(tmp_path / "lines" / "a.jsonl", action=None).load(), data)
    (shard,) = pr.distributed.shards(tmp_path / "lines")
    assert shard.name.endswith("a.jsonl")
    with pytest.raises(
        InvalidInputError, match=r"stat must be an option of read_jsonl.* did you mean state\?"
    ):
        pr.read(tmp_path / "lines", stat="x")
