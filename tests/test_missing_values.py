"""Missing values: refused, or what the last one stands for, or episodes that are left out; all counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import policyrisk as pr
from policyrisk.errors import BadRowError, EmptyDataError, InvalidInputError, MissingValuesWarning

NO = None


def frame(**columns):
    """Episodes a (3 rows), b (3), c (2), d (3), the last row of each without a reward."""
    rows = {
        "episode": list("aaabbbccddd"),
        "x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0],
        "y": [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110],
        "reward": [1.0, 2.0, NO, 3.0, 4.0, NO, 5.0, NO, 6.0, 7.0, NO],
        "terminated": [False, True, False, False, True, False, True, False, False, True, False],
    }
    return pa.table({**rows, **columns})


HOLES = {
    "x": [1.0, NO, float("nan"), NO, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0],
    "y": pa.array([10, 20, NO, 40, 50, 60, 70, NO, 90, 100, 110]),
}


def read(table, rows, **options):
    stream = pr.read(table, state=["x", "y"], batch_rows=rows, **options)
    with pytest.warns(
        MissingValuesWarning, match=r"missing.*; what is missing may depend on how episodes go"
    ):
        data = stream.load()
    return data, stream.counts


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_what_is_done_about_them(rows):
    data, counts = read(frame(**HOLES), rows, missing="last")
    # a: x 1, 1, 1 and y 10, 20, 20; b has nothing before its first x; c's last y is 70.
    assert data.states[:3].tolist() == [[1, 10], [1, 20], [1, 20]]
    assert data.states[3:5].tolist() == [[7, 70], [8, 70]]
    assert data.states[5:].tolist() == [[9, 90], [10, 100], [11, 110]]
    assert data.returns().tolist() == [3.0, 5.0, 13.0]
    assert (counts.episodes, counts.filled, counts.dropped) == (3, 4, 1)
    data, counts = read(frame(**HOLES), rows, missing="drop")
    assert data.states.tolist() == [[9, 90], [10, 100], [11, 110]]
    assert (counts.episodes, counts.filled, counts.dropped) == (1, 0, 3)


@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize("missing", ["drop", "last"])
@pytest.mark.parametrize(
    ("columns", "left"),
    [
        ({"reward": [1.0, 2.0, NO, NO, 4.0, NO, 5.0, NO, 6.0, float("nan"), NO]}, [3.0, 5.0]),
        ({"action": [1, NO, 0, 1, 1, NO, 1, NO, 1, 1, NO]}, [7.0, 5.0, 13.0]),
        ({"action": ["l", NO, NO, "r", "r", NO, "l", NO, "l", "l", NO]}, [7.0, 5.0, 13.0]),
        (
            {"action": [1] * 11, "propensity": [0.5, 0.5, NO, NO, 0.5, NO, 1.0, NO, float("nan"), 1.0, NO]},
            [3.0, 5.0],
        ),
    ],
)
def test_rewards_and_actions_are_not_filled_in(rows, missing, columns, left):
    data, counts = read(frame(**columns), rows, missing=missing)
    assert data.returns().tolist() == left
    assert (counts.filled, counts.dropped) == (0, 4 - len(left))


def test_labels_dates_and_lists():
    table = frame(
        x=["Oslo", NO, "Rome", NO, "Oslo", "Rome", "Bern", NO, "Oslo", "Oslo", "Oslo"],
        y=pa.array([0, 1, NO, 3, 4, 5, 6, 7, 8, 9, 10], pa.int32()).cast(pa.date32()),
    )
    data, counts = read(table, 2, missing="last")
    assert data.coordinates.labels == {"x": ("Bern", "Oslo", "Rome")}
    assert data.states[:5].tolist() == [[1, 0], [1, 1], [2, 1], [0, 6], [0, 7]]
    assert (counts.filled, counts.dropped) == (3, 1)
    pairs = [[1.0, 2.0]] * 4 + [[5.0, float("nan")], NO] + [[3.0, 4.0]] * 5
    for kind in (pa.list_(pa.float64()), pa.list_(pa.float64(), 2)):
        for rows in (1, 100):
            stream = pr.read(frame(x=pa.array(pairs, kind)), state="x", missing="last", batch_rows=rows)
            with pytest.warns(MissingValuesWarning):
                data = stream.load()
            assert data.states[3:6].tolist() == [[1.0, 2.0]] * 3
            assert stream.counts.filled == 4


def test_refused_unless_asked_for(tmp_path):
    for columns in HOLES.items():
        with pytest.raises(BadRowError, match=r"must not be null.*row [12].*missing values with missing="):
            pr.read(frame(**dict([columns])), state=["x", "y"]).load()
    with pytest.raises(InvalidInputError, match="missing must be one of refuse, drop, last, got 'fill'"):
        pr.read(frame(), state="x", missing="fill")
    with pytest.raises(EmptyDataError, match="4 episodes left out, with values missing"):
        pr.read(frame(x=[NO] * 11, y=[1] * 11), state=["x", "y"], missing="drop").load()
    # A null flag is no missing value: nobody knows whether the episode ended.
    with pytest.raises(BadRowError, match="terminated must not be null beside a reward"):
        pr.read(frame(terminated=[NO, *[True] * 10]), state="x", missing="drop").load()


def test_a_csv_says_it_in_many_ways(tmp_path):
    rows = ["a,1,1,false", "a,NA,2,true", "a,,,", "b,nan,1,true", "b,3,,", "c,4,1,true", "c,5,,"]
    (tmp_path / "log.csv").write_text("\n".join(["episode,x,reward,terminated", *rows, ""]))
    stream = pr.read(tmp_path / "log.csv", state="x", missing="last")
    with pytest.warns(MissingValuesWarning, match="2 missing values filled in .* 1 episode of 3 left out"):
        data = stream.load()
    assert data.states.ravel().tolist() == [1, 1, 1, 4, 5]


def test_an_evaluation_tells(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"episode": np.arange(400) // 2, "x": rng.random(400), "reward": rng.random(400)})
    table["terminated"] = table.index % 2 == 1
    table.loc[3, "x"] = None  # filled in
    table.loc[10, "x"] = None  # the first of its episode
    with pytest.warns(MissingValuesWarning):
        result = pr.evaluate(table, features="poly:1", state="x", missing="last")
    assert (result.notes["filled_values"], result.notes["dropped_episodes"]) == (1, 1)
    assert result.to_dict()["dropped_episodes"] == 1
    assert "of 199 episodes, 1 left out, with values missing, 1 missing value filled in" in str(result)
    advice = next(each for each in result.advice if each.title == "Values were missing in the data")
    assert "1 value of states" in str(advice)
    assert "1 of 200 episodes" in str(advice)


def test_a_wrong_value_after_a_missing_one_is_named_in_its_own_row():
    inf = float("inf")
    table = frame(x=[NO, NO, inf, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0])
    with pytest.raises(BadRowError, match="x must be finite, got inf in row 2 of the data frame"):
        pr.read(table, state=["x", "y"], missing="last").load()


@pytest.mark.parametrize("column", ["episode", "x"])
def test_a_null_in_a_dictionary_is_a_null(column):
    texts = pa.array([*"aaabbbccdd", NO]).dictionary_encode(null_encoding="encode")
    with pytest.raises(BadRowError, match=f"{column} must not be null, got null in row 10 of the data frame"):
        pr.read(frame(**{column: texts}), state=["x", "y"]).load()


@pytest.mark.filterwarnings("ignore::policyrisk.errors.UnrecordedEndWarning")
@pytest.mark.parametrize("missing", ["refuse", "drop", "last"])
@pytest.mark.parametrize("rows", [1, 100])
def test_a_last_reward_that_is_missing_is_no_end(rows, missing):
    """Its row would be the only one of an end; that of a flag in the row before is one."""
    plain = {
        "episode": list("aabbccdd"),
        "x": np.arange(8.0),
        "reward": [1.0, 2.0, 3.0, NO, 5.0, 6.0, 7.0, 8.0],
        "terminated": [False, True] * 4,
    }
    how = {"state": "x", "missing": missing, "batch_rows": rows}
    with pytest.raises(BadRowError, match=r"got null in row 3 of the data frame .* 3 of 4 such"):
        pr.read(pa.table(plain), **how).load()
    cut = {**plain, "truncated": plain["terminated"], "terminated": [False] * 8}
    assert pr.read(pa.table(cut), **how).load().returns().tolist() == [1.0, 3.0, 5.0, 7.0]
    ended = {**plain, "terminated": [False, True, True, False, False, True, False, True]}
    assert pr.read(pa.table(ended), **how).load().returns().tolist() == [3.0, 3.0, 11.0, 15.0]
    most = {**plain, "reward": [1.0, NO, 3.0, NO, 5.0, 6.0, 7.0, NO]}
    assert pr.read(pa.table(most), **how).load().returns().tolist() == [1.0, 3.0, 11.0, 7.0]


def test_so_does_that_of_another_policy(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"episode": np.arange(400) // 2, "x": rng.integers(3, size=400) * 1.0})
    table = table.assign(a=rng.integers(2, size=400), reward=rng.random(400))
    table["terminated"] = table.index % 2 == 1
    table.loc[3, "x"] = None  # filled in
    table.loc[10, "x"] = None  # the first of its episode
    target = np.full((3, 2), 0.5)
    with pytest.warns(MissingValuesWarning):
        result = pr.evaluate(table, target=target, state="x", action="a", missing="last")
    said = "what it does, 1 left out, with values missing, 1 missing value filled in"
    assert said in str(result)
    result.save(tmp_path / "kept")
    assert said in str(pr.Evaluation.load(tmp_path / "kept"))
