"""Parquet in and out: exact round trips, the layout against a reader written row by row, and every error."""

import random
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st

import policyrisk as pr
from policyrisk.data import Counts
from policyrisk.data.arrow_rows import EpisodeIds
from policyrisk.errors import (
    BadRowError,
    InvalidInputError,
    MismatchError,
    MissingPackageError,
    UnrecordedEndWarning,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**63), 2**63 - 1)


@st.composite
def trajectories(draw):
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    dim, rows = draw(st.integers(1, 3)), sum(lengths) + len(lengths)
    kind, dtype = draw(st.sampled_from([(FINITE, np.float64), (WHOLE, np.int64)]))
    cells = draw(st.lists(kind, min_size=rows * dim, max_size=rows * dim))
    rewards = draw(st.lists(FINITE, min_size=sum(lengths), max_size=sum(lengths)))
    ends = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    columns = (np.array(cells, dtype).reshape(rows, dim), rewards, lengths, np.array(ends))
    width = draw(st.sampled_from([None, 0, 1, 2]))  # of continuous actions; 0: whole ones; None: none
    if width is None:
        return pr.Trajectories(*columns)
    kind, count = (FINITE, sum(lengths) * width) if width else (WHOLE, sum(lengths))
    taken = np.array(draw(st.lists(kind, min_size=count, max_size=count)))
    chances = st.lists(st.floats(0, 1, exclude_min=True), min_size=sum(lengths), max_size=sum(lengths))
    propensities = draw(st.none() | chances)
    return pr.Trajectories(*columns, taken.reshape(-1, width) if width else taken, propensities)


@settings(deadline=None, max_examples=60)
@given(data=trajectories(), cuts=st.integers(1, 4), batch_rows=st.integers(1, 9), group=st.integers(1, 7))
def test_round_trip(tmp_path_factory, data, cuts, batch_rows, group):
    folder = tmp_path_factory.mktemp("round")
    pieces = [data[k : k + cuts] for k in range(0, len(data), cuts)]
    pr.write_parquet(pieces, folder / "a.parquet")
    stream = pr.read_parquet(folder / "a.parquet", batch_rows=batch_rows)
    assert_same(stream.load(), data)
    assert stream.counts == Counts(len(data), data.transitions, int((~data.terminated).sum()), 0, 0)
    # The same rows in row groups that cut episodes in pieces.
    pq.write_table(pq.read_table(folder / "a.parquet"), folder / "b.parquet", row_group_size=group)
    parts = list(pr.read_parquet(folder / "b.parquet", batch_rows=batch_rows))
    assert_same(pr.Trajectories.concatenate(parts), data)
    assert all(len(part.states) >= batch_rows for part in parts[:-1])


def slowly(records, flags):
    """The layout, a row at a time: episodes (states, rows of the rewards, terminated), what was given up."""
    episodes, given_up, vanished = [], 0, 0
    by_id = {}
    for record in records:
        by_id.setdefault(record["episode"], []).append(record)
    for rows in by_id.values():
        end = rows.pop() if rows[-1]["reward"] is None else None
        seen = [row for row in (*rows[-1:], end) if row is not None]
        if "terminated" in flags:
            terminated = any(row["terminated"] for row in seen)
        else:
            terminated = not any(row["truncated"] for row in seen)
        states = [row["x"] for row in rows]
        if end is not None:
            states.append(end["x"])
        elif terminated:
            states.append(states[-1])
        else:
            rows.pop()
            given_up += 1
        if rows:
            episodes.append((states, rows, terminated))
        else:
            vanished += 1
    return episodes, given_up, vanished


@pytest.mark.filterwarnings("ignore::policyrisk.errors.UnrecordedEndWarning")
@pytest.mark.parametrize("flags", [("terminated",), ("truncated",), ("terminated", "truncated")])
@pytest.mark.parametrize("seed", range(8))
def test_layout_against_a_reader_of_rows(tmp_path, flags, seed):
    rng = random.Random(seed)
    records = []
    for episode in rng.sample(range(1000), 40):
        length, has_end = rng.randint(1, 4), rng.random() < 0.5
        rows = [
            {
                "episode": episode,
                "x": rng.random(),
                "reward": rng.random(),
                "terminated": False,
                "truncated": False,
                "action": rng.randint(0, 9),
                "force": [rng.random(), rng.random()],
                "propensity": 1.0 - rng.random(),
            }
            for _ in range(length)
        ]
        if has_end:
            rows.append(
                {"episode": episode, "x": rng.random(), "reward": None, "terminated": None, "truncated": None}
            )
        flagged = rows[-1] if not has_end or rng.random() < 0.5 else rows[-2]
        for flag in flags:
            flagged[flag] = rng.random() < 0.5
        records += rows
    episodes, given_up, vanished = slowly(records, flags)
    action = rng.choice(["action", "force"])
    columns = ["episode", "x", "reward", *flags, action, "propensity"]
    table = pa.Table.from_pylist(records).select(columns)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rng.randint(1, 9))
    stream = pr.read_parquet(tmp_path, state="x", action=action, batch_rows=rng.randint(1, 30))
    data = stream.load()
    assert len(data) == len(episodes)
    for got, (states, rows, terminated) in zip(data, episodes, strict=True):
        assert got.states[:, 0].tolist() == states
        assert got.rewards.tolist() == [row["reward"] for row in rows]
        assert got.actions.tolist() == [row[action] for row in rows]
        assert got.propensities.tolist() == [row["propensity"] for row in rows]
        assert got.terminated.tolist() == [terminated]
    assert (stream.given_up, stream.vanished) == (given_up, vanished)


def table(**columns):
    """Two episodes of two rows, the first with an end row; columns replace those there or are added."""
    base = {
        "episode": [1, 1, 1, 2, 2],
        "step": [0, 1, 2, 0, 1],
        "x": [0.1, 0.2, 0.3, 0.4, 0.5],
        "reward": [1.0, 2.0, None, 3.0, 4.0],
        "terminated": [False, True, False, False, True],
    }
    base.update(columns)
    return pa.table({name: column for name, column in base.items() if column is not None})


def written(folder, **columns):
    path = folder / "log.parquet"
    pq.write_table(table(**columns), path, row_group_size=2)
    return path


def test_a_small_table(tmp_path):
    data = pr.read_parquet(written(tmp_path), state=["x"]).load()
    expected = pr.Trajectories([[0.1], [0.2], [0.3], [0.4], [0.5], [0.5]], [1, 2, 3, 4], [2, 2], [True, True])
    assert_same(data, expected)


BAD_ROWS = {
    "an episode that comes back": (
        {"episode": [1, 1, 2, 1, 1], "step": None},
        r"episode must keep .* got 1 again .* in row 3",
    ),
    "interleaved strings": (
        {"episode": ["a", "b", "a", "b", "b"], "step": None},
        r"got 'a' again .* in row 2",
    ),
    "a null id": ({"episode": [1, 1, 1, 2, None]}, r"episode must not be null, got null in row 4"),
    "a null state": ({"x": [0.1, None, 0.3, 0.4, 0.5]}, r"x must not be null, got null in row 1"),
    "a nan state": ({"x": [0.1, 0.2, 0.3, float("nan"), 0.5]}, r"x must be finite, got nan in row 3"),
    "an infinite state": ({"x": [0.1, 0.2, 0.3, 0.4, float("-inf")]}, r"x must be finite, got -inf in row 4"),
    "a nan reward": (
        {"reward": [1.0, 2.0, None, 3.0, float("nan")]},
        r"reward must be finite, got nan in row 4.*null",
    ),
    "a null reward inside": (
        {"reward": [1.0, None, None, 3.0, 4.0]},
        r"reward must not be null before .* in row 1",
    ),
    "a repeated step": ({"step": [0, 1, 1, 0, 1]}, r"step must rise .* got 1 after 1 in row 2"),
    "a falling step": ({"step": [0, 1, 2, 5, 5]}, r"step must rise .* got 5 after 5 in row 4"),
    "a step that comes twice": (
        {"episode": [1, 1, 2, 1, 1], "step": [0, 1, 0, 1, 2]},
        r"different in all rows of an episode, got 1 twice in episode 1 of",
    ),
    "a null step": ({"step": [0, 1, None, 5, 6]}, r"step must not be null, got null in row 2"),
    "a flag inside": (
        {"terminated": [True, False, False, False, True]},
        r"terminated must be true only .* in row 0",
    ),
    "truncated inside": (
        {"truncated": [False, False, False, True, False]},
        r"truncated must be true only .* in row 3",
    ),
    "a null flag": (
        {"terminated": [False, None, False, False, True]},
        r"terminated must not be null .* in row 1",
    ),
    "a flag of 2": ({"terminated": [0, 1, 0, 0, 2]}, r"terminated must be true or false.* got 2 in row 4"),
    "lists of two lengths": (
        {"x": [[1.0], [2.0], [3.0], [1.0, 2.0], [1.0]]},
        r"x must have as many .* got 2 after 1 in row 3",
    ),
    "a null list": ({"x": [[1.0], [2.0], [3.0], None, [1.0]]}, r"x must not be null, got null in row 3"),
    "a null in a list": (
        {"x": [[1.0, 2.0], [2.0, None], [3.0, 1.0], [1.0, 1.0], [1.0, 1.0]]},
        r"x must not be null, got null in row 1",
    ),
    "a nan in a list": (
        {"x": [[1.0, 2.0], [2.0, 1.0], [3.0, float("nan")], [1.0, 1.0], [1.0, 1.0]]},
        r"x must be finite, got nan in row 2",
    ),
    "empty lists": (
        {"x": pa.array([[]] * 5, pa.list_(pa.float64()))},
        r"x must hold at least one number.* in row 0",
    ),
    "a number too large": ({"x": pa.array([1, 2, 3, 4, 2**64 - 1], pa.uint64())}, r"x must fit .* in row 4"),
}


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
@pytest.mark.parametrize("case", BAD_ROWS, ids=str)
def test_bad_rows_are_named(tmp_path, case, batch_rows):
    columns, message = BAD_ROWS[case]
    path = written(tmp_path, **columns)
    stream = pr.read_parquet(path, state="x", batch_rows=batch_rows)
    with pytest.raises(BadRowError, match=message) as caught:
        stream.load()
    assert str(path) in str(caught.value)


BAD_COLUMNS = {
    "no state": (
        {"x": None},
        {"state": "x"},
        r"state must name a column, got 'x', but got the columns episode, step",
    ),
    "no state named": ({}, {}, r"state must name the columns of the state, got the columns .* x, .*"),
    "no episode": ({"episode": None}, {"state": "x"}, r"episode must name a column"),
    "no reward": ({}, {"state": "x", "reward": "r"}, r"reward must name a column, got 'r'"),
    "no flags": (
        {"terminated": None},
        {"state": "x"},
        r"terminated or truncated must name a column of booleans",
    ),
    "no such flag": ({}, {"state": "x", "terminated": "done"}, r"terminated must name a column, got 'done'"),
    "no such step": ({}, {"state": "x", "step": "t"}, r"step must name a column, got 't'"),
    "a state twice": ({}, {"state": ["x", "x"]}, r"state must name each column once"),
    "no states at all": ({}, {"state": []}, r"state must be a column's name or a list of names"),
    "a number for a name": ({}, {"state": "x", "reward": 3}, r"reward must be a column's name, got 3"),
    "no rewards": ({}, {"state": "x", "reward": []}, r"reward must be a column's name, got \[\]"),
    "a reward twice": (
        {},
        {"state": "x", "reward": ["reward", "reward"]},
        r"reward must be a column's name, got \['reward', 'reward'\]; pass a string, or a list of different",
    ),
    "one of the rewards": (
        {},
        {"state": "x", "reward": ["reward", "r"]},
        r"reward must name a column, got 'r'",
    ),
    "no rows at a time": ({}, {"state": "x", "batch_rows": 0}, r"batch_rows must be a whole number"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS, ids=str)
def test_columns_are_checked_at_once(tmp_path, case):
    columns, options, message = BAD_COLUMNS[case]
    path = written(tmp_path, **columns)
    with pytest.raises(InvalidInputError, match=message):
        pr.read_parquet(path, **options)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [["a"]] * 5}, "x must be a column of numbers, or of text in all files, got string"),
        ({"x": [{"y": 1.0}] * 5}, "x must be a column of numbers, or of text in all files, got struct"),
        ({"reward": ["1", "2", None, "3", "4"]}, "reward must be a column of numbers, got string"),
        (
            {"episode": [1.0, 1.0, 1.0, 2.0, 2.0]},
            "episode must be a column of whole numbers or strings, got double",
        ),
        (
            {"terminated": ["no", "yes", "no", "no", "yes"]},
            "terminated must be a column of booleans, or 0 and 1",
        ),
    ],
)
def test_types_are_checked(tmp_path, columns, message):
    path = written(tmp_path, **columns)
    with pytest.raises(InvalidInputError, match=message) as caught:
        pr.read_parquet(path, state="x").load()
    assert str(path) in str(caught.value)


def test_a_column_twice(tmp_path):
    one = table()
    pq.write_table(one.append_column("x", one.column("x")), tmp_path / "a.parquet")
    with pytest.raises(InvalidInputError, match=r"state must name one column.* x more than once"):
        pr.read_parquet(tmp_path, state="x")


def test_files_that_are_none(tmp_path):
    with pytest.raises(InvalidInputError, match="which does not exist"):
        pr.read_parquet(tmp_path / "nothing.parquet")
    with pytest.raises(InvalidInputError, match=r"folder with \.parquet files in it"):
        pr.read_parquet(tmp_path)
    with pytest.raises(InvalidInputError, match="path must be a file, a folder or a list"):
        pr.read_parquet([])
    with pytest.raises(InvalidInputError, match="path must be a file, a folder or a list"):
        pr.read_parquet(3)
    (tmp_path / "text.parquet").write_text("this is no parquet file at all")
    with pytest.raises(InvalidInputError, match=r"path must be a Parquet file, got .*text\.parquet"):
        pr.read_parquet(tmp_path)


def test_a_half_written_file(tmp_path):
    whole = written(tmp_path).read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        (tmp_path / "log.parquet").write_bytes(whole[:size])
        with pytest.raises(InvalidInputError, match="damaged or half-written"):
            pr.read_parquet(tmp_path, state="x").load()


def test_damage_inside_a_later_file(tmp_path):
    """Bytes of a data page are overwritten: found when they are read, with the file's name."""
    rng = np.random.default_rng(0)
    data = pr.Trajectories(rng.normal(size=(5001, 1)), rng.normal(size=5000), [5000], [True])
    pr.write_parquet(data, tmp_path / "a.parquet")
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[4:200] = bytes(196)
    (tmp_path / "b.parquet").write_bytes(damaged)
    stream = pr.read_parquet(tmp_path)
    with pytest.raises(InvalidInputError, match=r"got .*b\.parquet, which is none, or is damaged"):
        stream.load()


def test_empty_tables(tmp_path):
    pq.write_table(table().slice(0, 0), tmp_path / "empty.parquet")
    stream = pr.read_parquet(tmp_path, state="x")
    with pytest.raises(InvalidInputError, match="at least one episode with a transition, got none"):
        stream.load()
    written(tmp_path)
    assert len(pr.read_parquet(tmp_path, state="x").load()) == 2


def test_given_up_transitions_are_counted_and_reported_once(tmp_path):
    pq.write_table(
        pa.table(
            {
                "episode": [1, 1, 2, 3, 3, 4],
                "x": [0, 1, 2, 3, 4, 5],
                "reward": [1.0, 2, 3, 4, 5, None],
                "terminated": [False, False, False, False, True, False],
            }
        ),
        tmp_path / "a.parquet",
    )
    stream = pr.read_parquet(tmp_path, state="x")
    with pytest.raises(InvalidInputError, match="must have been read to its end"):
        _ = stream.given_up
    message = "2 last transitions given up, of cut-off .*, and 2 episodes with nothing left"
    with pytest.warns(UnrecordedEndWarning, match=message):
        data = stream.load()
    assert_same(data, pr.Trajectories([[0], [1], [3], [4], [4]], [1, 4, 5], [1, 2], [False, True]))
    assert stream.counts == Counts(episodes=2, transitions=3, cut_off=1, given_up=2, vanished=2)
    assert_same(stream.load(), data)  # no second warning
    pq.write_table(
        pa.table({"episode": [1], "x": [0.0], "reward": [1.0], "terminated": [False]}), tmp_path / "a.parquet"
    )
    with pytest.raises(InvalidInputError, match=r"got none \(1 episode without one\)"):
        pr.read_parquet(tmp_path, state="x").load()


def test_streams_start_anew_each_time(tmp_path):
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 9, 50)
    data = pr.Trajectories(
        rng.normal(size=(lengths.sum() + 50, 2)),
        rng.normal(size=lengths.sum()),
        lengths,
        rng.random(50) < 0.5,
    )
    for k in range(5):
        pr.write_parquet(data[10 * k : 10 * k + 10], tmp_path / f"{k}.parquet")
    stream = pr.read_parquet(tmp_path, batch_rows=30)
    first = iter(stream)
    next(first)
    passes = [pr.Trajectories.concatenate(stream) for _ in range(2)]
    assert_same(passes[0], data)
    assert_same(passes[1], data)
    assert len(list(first)) == len(list(stream)) - 1
    assert repr(stream) == f"Stream({tmp_path})"
    lstd = pr.LSTD(pr.Polynomial(1, low=[-3, -3], high=[3, 3]), lam=0.5)
    np.testing.assert_allclose(lstd.fit(stream).w_second, lstd.fit(data).w_second, rtol=1e-9)


def test_folders_lists_and_hidden_files(tmp_path):
    data = pr.Trajectories([[0], [1], [2], [3], [4], [5]], [1.0, 2.0, 3.0], [1, 1, 1], [True, True, False])
    (tmp_path / "deep").mkdir()
    places = [tmp_path / "b.parquet", tmp_path / "deep" / "a.parquet", tmp_path / "a.parquet"]
    for k, place in enumerate(places):
        pr.write_parquet(data[k], place)  # each calls its episode 0: ids belong to their file
    for name in (".hidden.parquet", "_temporary.parquet", "notes.txt"):
        (tmp_path / name).write_text("not for reading")
    order = [2, 0, 1]  # by name, folders among files
    assert_same(pr.read_parquet(tmp_path).load(), data[order])
    assert_same(pr.read_parquet([str(places[1]), places[0]]).load(), data[[1, 0]])
    assert_same(pr.read_parquet(str(places[0])).load(), data[0])


def test_files_that_do_not_fit_together(tmp_path):
    pr.write_parquet(pr.Trajectories([[0], [1]], [1.0], [1], [True]), tmp_path / "a.parquet")
    pr.write_parquet(pr.Trajectories([[0.0], [1.0]], [1.0], [1], [True]), tmp_path / "b.parquet")
    stream = pr.read_parquet(tmp_path)
    with pytest.raises(MismatchError, match=r"1 of int64 in .*a\.parquet and 1 of float64 in .*b\.parquet"):
        stream.load()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 2)], ids=str
)
def test_list_columns(tmp_path, kind):
    states = pa.array([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], kind)
    path = written(tmp_path, state=states, x=[10.0, 11, 12, 13, 14])
    for batch_rows in (1, 2, 100):
        data = pr.read_parquet(path, batch_rows=batch_rows).load()
        assert data.states.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [8, 9]]
    mixed = pr.read_parquet(path, state=["x", "state"]).load()
    assert mixed.states[:2].tolist() == [[10, 0, 1], [11, 2, 3]]
    assert mixed.states.dtype == np.float64


def test_whole_numbers_stay_whole(tmp_path):
    path = written(
        tmp_path, x=pa.array([1, 2, 3, 4, 2**40], pa.uint64()), y=pa.array([0, 1, 0, 1, 1], pa.int8())
    )
    assert pr.read_parquet(path, state=["x", "y"]).load().states.dtype == np.int64
    path = written(tmp_path, x=pa.array([True, False, True, True, False]))
    assert pr.read_parquet(path, state="x").load().states.ravel().tolist() == [1, 0, 1, 1, 0, 0]
    path = written(tmp_path, x=[1, 2, 3, 4, 5], y=[0.5, 1, 0, 1, 1])
    data = pr.read_parquet(path, state=["x", "y"]).load()
    assert data.states[0].tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(["a", "a", "a", "b", "b"]),
        pa.array(["a", "a", "a", "b", "b"]).dictionary_encode(),
        pa.array([b"aa", b"aa", b"aa", b"bb", b"bb"], pa.binary(2)),
        pa.array([2**64 - 1] * 3 + [0, 0], pa.uint64()),
        pa.array([-1, -1, -1, -7, -7], pa.int32()),
    ],
    ids=lambda ids: str(ids.type),
)
def test_kinds_of_ids(tmp_path, ids):
    for batch_rows in (1, 2, 5):
        data = pr.read_parquet(written(tmp_path, episode=ids), state="x", batch_rows=batch_rows).load()
        assert data.lengths.tolist() == [2, 2]


def test_names_are_options(tmp_path):
    names = {"episode": "run", "reward": "r", "terminated": "done", "step": "t"}
    pq.write_table(
        table().rename_columns([names.get(name, name) for name in table().column_names]),
        tmp_path / "a.parquet",
    )
    data = pr.read_parquet(tmp_path, "x", episode="run", reward="r", terminated="done", step="t").load()
    assert_same(data, pr.read_parquet(written(tmp_path), state="x").load())
    falling = written(tmp_path, step=[3, 2, 1, 1, 1])
    assert len(pr.read_parquet(falling, state="x", step=None).load()) == 2


def test_columns_that_are_not_asked_for_are_not_read(tmp_path):
    path = written(tmp_path, noise=["what", "ever", None, "is", "here"])
    assert len(pr.read_parquet(path, state="x").load()) == 2


def test_what_write_parquet_writes(tmp_path):
    data = pr.Trajectories([[5], [6], [7], [8], [9]], [1.0, 2.0, 3.0], [2, 1], [True, False])
    pr.write_parquet(data, tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {
        "episode": [0, 0, 0, 1, 1],
        "step": [0, 1, 2, 0, 1],
        "state_0": [5, 6, 7, 8, 9],
        "reward": [1.0, 2.0, None, 3.0, None],
        "terminated": [False, True, False, False, False],
        "truncated": [False, False, False, True, False],
    }


def test_small_batches_share_row_groups(tmp_path):
    one = pr.Trajectories([[0], [1]], [1.0], [1], [True])
    pr.write_parquet([one] * 300, tmp_path / "a.parquet")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1


def test_writing_fails_cleanly(tmp_path):
    one = pr.Trajectories([[0], [1]], [1.0], [1], [True])
    path = tmp_path / "a.parquet"
    pr.write_parquet(one, path)
    before = path.read_bytes()

    def breaks():
        yield one
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pr.write_parquet(breaks(), path)
    with pytest.raises(MismatchError, match="one dimension and type throughout"):
        pr.write_parquet([one, pr.Trajectories([[0.5], [1]], [1.0], [1], [True])], path)
    for nothing in ([], one[:0]):
        with pytest.raises(InvalidInputError, match="at least one episode"):
            pr.write_parquet(nothing, path)
    with pytest.raises(InvalidInputError, match="got the folder"):
        pr.write_parquet(one, tmp_path)
    with pytest.raises(InvalidInputError, match="folder that can be written"):
        pr.write_parquet(one, tmp_path / "no" / "such.parquet")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingPackageError, match=r"reading a Parquet file needs the package pyarrow.*\[parquet\]"
    ):
        pr.read_parquet(tmp_path)


def test_seen_ids_against_a_set():
    rng = np.random.default_rng(5)
    for _ in range(200):
        seen, truth = EpisodeIds(), set()
        while True:
            keys = rng.integers(-500, 500, rng.integers(0, 12))
            again = next((i for i, key in enumerate(keys) if key in truth or key in keys[:i]), None)
            found = seen.add(keys)
            # A key that comes twice in one batch is found before one that came in an earlier batch.
            assert (found is None) == (again is None)
            if found is not None:
                assert keys[found] in truth or keys[found] in keys[:found]
                break
            truth |= set(keys.tolist())
            assert sum(level.size for level in seen._levels) == len(truth)


def test_the_states_columns_can_be_named(tmp_path):
    data = pr.Trajectories([[0.0, 1.0], [2.0, 3.0]], [1.0], [1], [True])
    pr.write_parquet(data, tmp_path / "log.parquet", state=["x", "y"])
    assert pr.read_parquet(tmp_path / "log.parquet", state=["y"]).load().states.tolist() == [[1.0], [3.0]]
    for names, message in (
        (["x"], "must name 2 columns, one for each coordinate, got 1: x"),
        (["x", "x"], "each column once"),
        (["x", "reward"], "must not name a column 'reward', which another has"),
        (["x", ""], "must not name a column ''"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            pr.write_parquet(data, tmp_path / "other.parquet", state=names)
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]
