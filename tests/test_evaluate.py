"""evaluate, query and compare, end to end: against exact moments, and against the library's own calls."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import listing

import policyrisk as pr
from policyrisk._core import records
from policyrisk._core.output import complete_folder
from policyrisk.cli import run
from policyrisk.data import write_npz, write_parquet
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.evaluation import Evaluation
from policyrisk.passes.survey import Survey

FILES = {
    "map_mean.png",
    "map_sharpe.png",
    "map_std.png",
    "report.html",
    "risk.npz",
    "summary.json",
    "survey.npz",
}


def call(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def walk(p, episodes=2000, seed=1):
    return pr.domains.walk(n=10, p=p).sample(start=0, episodes=episodes, seed=seed)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two policies on the chain, evaluated by the command."""
    folder = tmp_path_factory.mktemp("walks")
    for name, p in (("slow", 0.7), ("quick", 0.8)):
        write_parquet(walk(p), folder / f"{name}.parquet")
        arguments = ["evaluate", folder / f"{name}.parquet", "--state", "state_0", "--features", "tabular"]
        assert run([*map(str, arguments), "--out", str(folder / name), "--json"]) == 0
    return folder


def test_the_summary_covers_the_exact_moments(place):
    assert {path.name for path in (place / "slow").iterdir()} == FILES
    summary = json.loads((place / "slow" / "summary.json").read_text())
    chain = pr.domains.walk(n=10, p=0.7)
    exact = {
        "mean": chain.mean()[0],
        "variance": chain.variance()[0],
        "std": chain.std()[0],
        "sharpe": chain.mean()[0] / chain.std()[0],
    }
    for name, truth in exact.items():
        estimate = summary[name]
        assert estimate["low"] < truth < estimate["high"], name
        # Beside the interval, a z-score that a wrong number would not pass.
        assert abs(estimate["value"] - truth) / estimate["standard_error"] < 3.5
    data = walk(0.7)
    assert summary["sample"]["mean"]["value"] == pytest.approx(data.returns().mean())
    assert summary["episodes"] == summary["episodes_behind"] == summary["starts"] == 2000
    assert summary["cut_off"] == summary["unvisited_starts"] == summary["given_up"] == 0
    assert summary["transitions"] == data.transitions
    assert summary["longest_episode"] == data.lengths.max()
    assert summary["cut_off_share"] == summary["unvisited_share"] == summary["negative_variance_share"] == 0
    assert summary["condition_number"] > 1
    assert summary["coordinates"] == ["state_0"]
    assert summary["features"] == "tabular"
    assert summary["settings"]["lam"] == 0.9
    assert summary["policyrisk"] == pr.__version__
    assert summary["choice"] is None
    assert list(summary["seconds"])[-1] == "total"


def test_the_saved_estimate_is_the_librarys(place):
    evaluation = Evaluation.load(place / "slow")
    risk = pr.LSTD(pr.Tabular(10)).fit(walk(0.7))
    states = np.arange(10)
    np.testing.assert_array_equal(evaluation.risk.mean(states), risk.mean(states))
    np.testing.assert_array_equal(evaluation.risk.interval(states, of="std"), risk.interval(states, of="std"))
    assert evaluation.name == "slow"


def test_query_is_the_librarys_answer(place, capsys):
    code, out, _ = call(capsys, "query", place / "slow", "--at", "0", "--at", "7", "--level", "0.9", "--json")
    assert code == 0
    risk = pr.LSTD(pr.Tabular(10)).fit(walk(0.7))
    answers = json.loads(out)["states"]
    for answer, state in zip(answers, (0, 7), strict=True):
        assert answer["at"] == {"state_0": state}
        assert answer["visited"]
        assert answer["episodes"] == risk.episodes([state])[0]
        for of in ("mean", "variance", "std", "sharpe"):
            assert answer[of]["value"] == getattr(risk, of)([state])[0]
            assert [answer[of]["low"], answer[of]["high"]] == risk.interval([state], of=of, level=0.9)[
                0
            ].tolist()
    code, out, _ = call(capsys, "query", place / "slow", "--at", "7")
    assert code == 0
    assert "about 2000 of 2000 episodes behind it" in out
    assert f"{risk.mean([7])[0]:.5g}" in out


def test_query_shows_the_tails_that_were_asked_for(tmp_path, capsys):
    found = pr.evaluate(walk(0.7), features="tabular", quantiles=[0.05], loss_below=-20, seed=0)
    found.save(tmp_path)
    code, out, _ = call(capsys, "query", tmp_path, "--at", "0", "--at", "7", "--level", "0.9", "--json")
    assert code == 0
    dist = found.distribution
    for answer, state in zip(json.loads(out)["states"], ([0], [7]), strict=True):
        for told, value, ends in (
            (
                answer["quantiles"]["0.05"],
                dist.quantile(state, 0.05),
                dist.interval(state, q=0.05, level=0.9),
            ),
            (
                answer["cvar"]["0.05"],
                dist.cvar(state, 0.05),
                dist.interval(state, of="cvar", q=0.05, level=0.9),
            ),
            (
                answer["below"]["-20"],
                dist.probability(state, below=-20),
                dist.interval(state, below=-20, level=0.9),
            ),
        ):
            assert [told["value"], told["low"], told["high"]] == pytest.approx([*value, *ends[0]])
    _, out, _ = call(capsys, "query", tmp_path, "--at", "7")
    for name in ("5.0% quantile", "mean of the worst 5.0%", "chance of a return below -20"):
        assert re.search(rf"^{name} .* to ", out, re.MULTILINE)


def test_compare_is_the_librarys_ranking(place, capsys, tmp_path):
    picture = tmp_path / "plane.png"
    arguments = [
        "compare",
        place / "slow",
        place / "quick",
        "--criterion",
        "mean:variance<=50",
        "--out",
        picture,
    ]
    code, out, _ = call(capsys, *arguments, "--json")
    assert code == 0
    result = json.loads(out)
    risks = {name: pr.LSTD(pr.Tabular(10)).fit(walk(p)) for name, p in (("slow", 0.7), ("quick", 0.8))}
    expected = pr.compare(risks, criterion=pr.criteria.MeanVarianceAtMost(50))
    assert [entry["name"] for entry in result["ranking"]] == [r.name for r in expected.ranking]
    for entry, ranked in zip(result["ranking"], expected.ranking, strict=True):
        assert entry["feasible"] == ranked.assessment.feasible
        assert entry["value"]["value"] == pytest.approx(ranked.assessment.value.value, rel=1e-12)
        assert entry["value"]["low"] == pytest.approx(ranked.assessment.value.low, rel=1e-12)
    assert (result["starts"], result["starts_apart"]) == (4000, None)
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    assert str(expected).splitlines()[2] in out


@pytest.mark.parametrize(
    ("text", "criterion"),
    [
        ("sharpe", pr.criteria.Sharpe()),
        ("mean-std:1.5", pr.criteria.MeanMinusStd(1.5)),
        ("mean:variance<=90", pr.criteria.MeanVarianceAtMost(90)),
        ("variance:mean>=-20", pr.criteria.VarianceMeanAtLeast(-20)),
    ],
)
def test_every_criterion(text, criterion, place, capsys, tmp_path):
    picture = tmp_path / "p.svg"
    code, out, _ = call(
        capsys, "compare", place / "slow", place / "quick", "--criterion", text, "--out", picture, "--json"
    )
    assert code == 0
    assert json.loads(out)["criterion"] == str(criterion)
    assert "<svg" in picture.read_text()


def test_negative_coordinates_and_states_outside_of_the_box(capsys, tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 20, 400)
    data = pr.Trajectories(
        rng.uniform(-2, 2, (lengths.sum() + 400, 2)),
        rng.normal(size=lengths.sum()),
        lengths,
        np.ones(400, bool),
    )
    write_npz(data, tmp_path / "d.npz")
    code, _, err = call(
        capsys,
        *("evaluate", tmp_path / "d.npz", "--state", "x,y", "--features", "tiles:4x4", "--box", "-2:2,-2:2"),
        *("--out", tmp_path / "out", "--direct", "--nonnegative"),
    )
    assert code == 0, err
    risk = Evaluation.load(tmp_path / "out").risk
    assert risk.features == pr.TileCoding([-2, -2], [2, 2], [4, 4])
    assert risk.variance_method == "direct"
    for spelled in (["--at", "-1,0.5"], ["--at=-1,0.5"]):
        code, out, _ = call(capsys, "query", tmp_path / "out", *spelled, "--json")
        assert code == 0
        assert json.loads(out)["states"][0]["mean"]["value"] == risk.mean([[-1, 0.5]])[0]
        assert not json.loads(out)["states"][0]["outside_box"]
    code, out, _ = call(capsys, "query", tmp_path / "out", "--at", "-9,0.5")
    assert code == 0
    assert "outside of the features' box" in out
    assert "outside the data: no episode was there" in out
    assert Evaluation.load(tmp_path / "out").outside([[-9, 0.5], [2.001, 0], [0, 2.2]]).tolist() == [
        True,
        False,
        True,
    ]


def test_an_unvisited_state_says_so_in_words_and_in_null(capsys, tmp_path):
    data = pr.Trajectories([[0.0], [0.0], [10.0], [0.0]], [1.0, 2.0], [1, 1], [True, True])
    write_npz(data, tmp_path / "d.npz")
    code, _, err = call(
        capsys, "evaluate", tmp_path / "d.npz", "--features", "tiles:5", "--out", tmp_path / "out"
    )
    assert code == 0, err
    code, out, _ = call(capsys, "query", tmp_path / "out", "--at", "5")
    assert (code, "not visited" in out) == (0, True)
    code, out, _ = call(capsys, "query", tmp_path / "out", "--at", "5", "--json")
    answer = json.loads(out)["states"][0]
    assert (answer["visited"], answer["mean"]["value"]) == (False, None)


def test_auto_prints_and_stores_its_choice_and_is_the_same_with_the_same_seed(capsys, tmp_path):
    write_parquet(walk(0.7, episodes=400), tmp_path / "d.parquet")
    arguments = ["evaluate", tmp_path / "d.parquet", "--seed", "3", "--out"]
    code, out, _ = call(capsys, *arguments, tmp_path / "a", "--verbose")
    assert code == 0
    assert "candidates on 400 episodes" in out
    assert "intervals at states cover randomness and the choice of features" in out
    assert "chosen on all 400 episodes" in out
    call(capsys, *arguments, tmp_path / "b")
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in "ab")
    assert first["choice"] == second["choice"] is not None
    assert first["mean"] == second["mean"]
    assert first["features"] == first["choice"]["features"]
    assert first["variance_method"] == "direct"
    members, stack = first["choice"]["members"], first["choice"]["stack"]
    tried = {entry["name"]: entry for entry in stack["candidates"]}
    assert {"labels", "poly:2", "poly:2,by=rank", "forest"} <= tried.keys()
    for share in ("mean_share", "variance_share"):
        assert sum(each[share] for each in members) == pytest.approx(1)
        assert all(each[share] == tried[each["features"]][share] for each in members)
    assert stack["explained"] == pytest.approx(1 - stack["mse"] / stack["constant_mse"])
    assert stack["reference"] is None
    assert first["check"]["episodes"] == 400
    assert first["influence"] == {"state": 1.0}
    assert (tmp_path / "a" / "risk.npz").read_bytes() == (tmp_path / "b" / "risk.npz").read_bytes()


def test_second_features_cut_off_episodes_and_list_columns(capsys, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet as pq

    data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=500, seed=2, max_steps=20)
    rows = {"run": [], "obs": [], "gain": [], "end": []}
    for k, episode in enumerate(data):
        T = int(episode.lengths[0])
        rows["run"] += [k] * (T + 1)
        rows["obs"] += [[float(x), 1.0] for x in episode.states[:, 0]]
        rows["gain"] += [*episode.rewards.tolist(), None]
        rows["end"] += [False] * T + [bool(episode.terminated[0])]
    pq.write_table(pa.table(rows), tmp_path / "d.parquet")
    code, out, err = call(
        capsys,
        *("evaluate", tmp_path / "d.parquet", "--state", "obs", "--episode", "run", "--reward", "gain"),
        *("--terminated", "end", "--features", "poly:1,dims=obs_0,second=poly:2,dims=obs_0"),
        *("--out", tmp_path / "out", "--lam", "0.5", "--ridge", "0.001", "--discount", "0.99"),
        "--verbose",
    )
    assert code == 0, err
    assert "obs_1 never changes" in out
    evaluation = Evaluation.load(tmp_path / "out")
    assert evaluation.names == ("obs_0", "obs_1")
    survey = Survey.of(data)
    low, high = survey.low, survey.high
    lstd = pr.LSTD(
        pr.Polynomial(1, low, high), pr.Polynomial(2, low, high), lam=0.5, discount=0.99, ridge=0.001
    )
    expected = lstd.fit(data)
    states = np.array([[0.0, 1.0], [5.0, 1.0]])
    np.testing.assert_allclose(evaluation.risk.variance(states), expected.variance(states[:, :1]), rtol=1e-12)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["cut_off_share"] == pytest.approx(1 - data.terminated.mean())


@pytest.mark.parametrize(
    "features",
    [
        "tabular,dims=b,second=tiles:3x3,dims=a+b",
        "rbf:3,dims=a+c",
        "poly:2",
        "fourier:2,total=3",
        "tiles:3,dims=d",
        "tiles:4x4,tilings=2,dims=c+a",
    ],
)
def test_maps_are_drawn_for_features_of_any_coordinates(features, capsys, tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 30, 200)
    states = rng.normal(size=(lengths.sum() + 200, 4))
    states[:, 1] = rng.integers(0, 6, len(states))
    states[:, 3] = 2.0  # never changes
    write_npz(
        pr.Trajectories(states, rng.normal(size=lengths.sum()), lengths, np.ones(200, bool)),
        tmp_path / "d.npz",
    )
    code, out, err = call(
        capsys,
        *(
            "evaluate",
            tmp_path / "d.npz",
            "--state",
            "a,b,c,d",
            "--features",
            features,
            "--verbose",
            "--out",
            tmp_path / "o",
        ),
    )
    assert code == 0, err
    assert "note: d never changes" in out
    assert all((tmp_path / "o" / f"map_{of}.png").stat().st_size > 5000 for of in ("mean", "std", "sharpe"))


def test_a_table_of_more_states_than_a_picture_shows(capsys, tmp_path):
    data = pr.domains.walk(n=900, p=0.99).sample(start=0, episodes=100, seed=1)
    write_npz(data, tmp_path / "d.npz")
    code, _, err = call(
        capsys, "evaluate", tmp_path / "d.npz", "--features", "tabular", "--lam", 0, "--out", tmp_path / "o"
    )
    assert code == 0, err
    assert {path.name for path in (tmp_path / "o").iterdir()} == FILES


# What is left behind.


def test_an_existing_folder_keeps_other_files_and_is_replaced_only_by_a_run_that_works(
    place, capsys, tmp_path
):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep me")
    assert call(capsys, "evaluate", place / "slow.parquet", "--features", "tabular", "--out", out)[0] == 0
    assert {path.name for path in out.iterdir()} == {*FILES, "mine.txt"}
    before = listing(tmp_path)
    # Fails in the fit, long after the start: the table is too small.
    code, _, err = call(capsys, "evaluate", place / "slow.parquet", "--features", "tabular:5", "--out", out)
    assert (code, "Tabular(5)" in err) == (1, True)
    assert listing(tmp_path) == before
    assert call(capsys, "evaluate", place / "quick.parquet", "--features", "tabular", "--out", out)[0] == 0
    assert Evaluation.load(out).summary.mean == Evaluation.load(place / "quick").summary.mean
    assert (out / "mine.txt").read_text() == "keep me"


@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_while_writing_leaves_everything_as_it_was(exists, place, capsys, tmp_path, monkeypatch):
    import policyrisk.report

    def broken(evaluation, path, command):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    out = tmp_path / "deep" / "out"
    if exists:
        out.mkdir(parents=True)
        (out / "summary.json").write_text("{}")
    before = listing(tmp_path)
    monkeypatch.setattr(policyrisk.report, "write_report", broken)
    code, _, err = call(capsys, "evaluate", place / "slow.parquet", "--features", "tabular", "--out", out)
    assert (code, "No space left" in err) == (1, True)
    assert listing(tmp_path) == before


def test_the_last_file_is_moved_last(tmp_path, monkeypatch):
    moved, replace = [], Path.replace
    monkeypatch.setattr(Path, "replace", lambda a, b: (moved.append(b.name), replace(a, b))[1])
    target = tmp_path / "out"
    target.mkdir()
    with complete_folder(target, last="b") as part:
        for name in "abc":
            (part / name).write_text(name)
        assert [path for path in target.iterdir() if path != part] == []
        assert part.parent == target, "which may be a disk of its own"
    assert moved[-1] == "b"
    assert {path.name for path in target.iterdir()} == {"a", "b", "c"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def write_two(target):
    with complete_folder(target, last="b") as part:
        for name in "ab":
            (part / name).write_text("new")


def test_pictures_of_an_earlier_result_go(tmp_path):
    """Those that the new one has no namesake of, where there was a result at all; other files stay."""
    target = tmp_path / "out"
    for n, names in enumerate((["map_a.png", "map_b.png", "done"], ["map_b.png", "done"])):
        with complete_folder(target, last="done", partly=("map_*.png",)) as part:
            for name in names:
                (part / name).write_text(str(n))
        (target / "notes.txt").touch()
    assert {each.name for each in target.iterdir()} == {"map_b.png", "done", "notes.txt"}
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "map_of_oslo.png").touch()
    with complete_folder(mine, last="done", partly=("map_*.png",)) as part:
        (part / "done").touch()
    assert (mine / "map_of_oslo.png").exists()


@pytest.mark.parametrize(
    "command", [["evaluate", "--out", "o"], ["query", "--at", "1"], ["compare"], ["gate", __file__]]
)
def test_a_path_that_is_not_there_is_refused_before_anything_heavy_is_imported(command, tmp_path):
    program = (
        "import sys\nfrom policyrisk import cli\ncode = cli.run(sys.argv[1:])\n"
        "assert code == 1 + (sys.argv[1] == 'gate') and not {'scipy', 'numba'} & set(sys.modules)"
    )
    line = [sys.executable, "-c", program, *command, "nothing_here"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "got nothing_here, which does not exist" in done.stderr


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_worked_out(
    place, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    monkeypatch.setattr("policyrisk.evaluation.evaluate", None)
    code, _, err = call(capsys, "evaluate", place / "slow.parquet", "--out", tmp_path / "new" / "out")
    assert (code, f"{tmp_path} cannot be; choose another --out" in err) == (1, True)


def test_a_folder_in_the_way_of_a_file_is_found_before_anything_is_moved(tmp_path):
    target = tmp_path / "out"
    (target / "b").mkdir(parents=True)
    (target / "a").write_text("old")
    with pytest.raises(InvalidInputError, match="no folder named b"):
        write_two(target)
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# Evaluations on disk.


def test_files_of_two_evaluations_are_not_mixed(place, tmp_path):
    for name, source in (("risk.npz", "slow"), ("survey.npz", "quick")):
        (tmp_path / name).write_bytes((place / source / name).read_bytes())
    with pytest.raises(MismatchError, match="same evaluation"):
        Evaluation.load(tmp_path)


@pytest.mark.parametrize("name", ["risk.npz", "survey.npz"])
@pytest.mark.parametrize("version", [0, 3])
def test_another_formats_file_is_refused_by_name(name, version, place, tmp_path, monkeypatch):
    for each in ("risk.npz", "survey.npz"):
        (tmp_path / each).write_bytes((place / "slow" / each).read_bytes())
    kind = "RiskFunction" if name == "risk.npz" else "Survey"
    value = records.load(tmp_path / name, kind, object)
    monkeypatch.setattr(records, "FORMAT", version)
    records.save(tmp_path / name, kind, value)
    monkeypatch.undo()
    remedy = "update" if version == 3 else "use the version"
    with pytest.raises(
        InvalidInputError, match=rf"of format 2, got {kind} of format {version} in .*{name}; {remedy}"
    ):
        Evaluation.load(tmp_path)


@pytest.mark.parametrize("name", ["risk.npz", "survey.npz"])
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "missing", "folder"])
def test_damaged_files_are_clear_errors(name, damage, place, tmp_path):
    for each in ("risk.npz", "survey.npz"):
        (tmp_path / each).write_bytes((place / "slow" / each).read_bytes())
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 3] ^= 0xFF
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("x,y\n1,2\n")
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(InvalidInputError, match=name):
        Evaluation.load(tmp_path)


def test_names_must_fit_the_state(place):
    evaluation = Evaluation.load(place / "slow")
    with pytest.raises(MismatchError, match="names must be 1"):
        Evaluation("x", ("a", "b"), evaluation.risk, evaluation.survey)


def test_shares_of_the_box_and_of_the_visited_states():
    # Tiles 0 and 3 of 4 are visited, half of the box; the variance of the last state comes out negative.
    data = pr.Trajectories([[0.0], [4.0], [4.0]], [1.0, 1.0], [2], [True])
    both = pr.Trajectories.concatenate([data] * 4)
    risk = pr.LSTD(pr.TileCoding([0], [4], [4])).fit(both)
    evaluation = Evaluation("x", ("x",), risk, Survey.of(both))
    whole = np.floor(np.random.default_rng(0).random(10_000) * 5)  # 0, …, 4: tiles 0, 1, 2, 3 and 3
    assert evaluation.unvisited_share == np.isin(whole, [1, 2]).mean()
    assert evaluation.cut_off_share == 0.0
    line = pr.LSTD(pr.Polynomial(1, [0], [29]), pr.Polynomial(2, [0], [29]), lam=0.95)
    data = pr.domains.walk(n=30, p=0.7).sample(0, episodes=2000, seed=1)
    evaluation = Evaluation("x", ("x",), line.fit(data), Survey.of(data, seed=0))
    visited = evaluation.survey.visited
    assert evaluation.negative_share == (evaluation.risk.variance(visited) < 0).mean() > 0


def test_2500_tiles_are_saved_in_tens_of_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    data = pr.Trajectories(
        rng.random((60_000, 2)), rng.normal(size=59_000), np.full(1000, 59), np.ones(1000, bool)
    )
    risk = pr.LSTD(pr.TileCoding([0, 0], [1, 1], [50, 50])).fit(data)
    assert risk.error_bars.mean_kept.size == 2500
    risk.save(tmp_path / "risk.npz")
    assert (tmp_path / "risk.npz").stat().st_size < 60e6


# Processes.


def test_an_interrupt_is_one_line_and_130(tmp_path):
    policy = "import time\ndef slow(x):\n    time.sleep(0.05)\n    return [0] * len(x)\n"
    (tmp_path / "slow_policy.py").write_text(policy + "open('ready', 'w').close()\n")
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "policyrisk.cli", "rollout", "CartPole-v1"),
            *("--policy", "slow_policy:slow", "--episodes", "100000", "--out", "d.parquet"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.strip() == "policyrisk: interrupted"
    assert out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"slow_policy.py", "ready"}


def zeros(observations):
    return np.zeros(len(observations), int)


def test_rollout_evaluate_and_query_in_one_go(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "balance_policy.py").write_text(
        "import numpy as np\n"
        "def lean(x):\n    return (x[:, 2] + 0.3 * x[:, 3] > 0).astype(int)\n"
        "class Lean:\n    def predict(self, x, deterministic=True):\n        return lean(x), None\n"
        "def angle(x):\n    return x[:, 2:]\n"
    )
    common = ["rollout", "CartPole-v1", "--episodes", "30", "--seed", "4", "--json"]
    code, out, err = call(capsys, *common, "--policy", "balance_policy:lean", "--out", "a.parquet")
    assert code == 0, err
    numbers = json.loads(out)
    assert numbers["episodes"] == 30
    call(capsys, *common, "--policy", "balance_policy:Lean", "--out", "b.npz", "--num-envs", "3")
    a, b = pr.readers.read("a.parquet").load(), pr.readers.read("b.npz").load()
    np.testing.assert_array_equal(a.states, b.states)
    assert a.coordinates.names == b.coordinates.names == pr.rollout("CartPole-v1", zeros, 1).coordinates.names
    assert numbers["transitions"] == a.transitions
    random = ["--policy", "random", "--max-steps", "9", "--project", "balance_policy:angle"]
    random += ["--state", "angle,spin"]
    for name in ("c.npz", "d.npz"):
        assert (
            call(capsys, *common, *random, "--env-args", '{"sutton_barto_reward": true}', "--out", name)[0]
            == 0
        )
    c, d = pr.readers.read("c.npz").load(), pr.readers.read("d.npz").load()
    np.testing.assert_array_equal(c.states, d.states)
    assert c.dim == 2
    assert c.lengths.max() <= 9
    assert set(np.unique(c.rewards)) <= {0.0, -1.0}
    code, out, err = call(
        capsys,
        "evaluate",
        "c.npz",
        "--features",
        "poly:2",
        "--discount",
        "0.9",
        "--out",
        "r",
    )
    assert code == 0, err
    code, out, _ = call(capsys, "query", "r", "--at", "0.01,-0.02")
    assert (code, "angle = 0.01, spin = -0.02" in out) == (0, True)


def test_resume_is_refused_on_a_cluster(tmp_path, capsys):
    (log := tmp_path / "log.parquet").touch()
    assert run(["evaluate", str(log), "--out", str(tmp_path / "out"), "--ray", "--resume"]) == 2
    assert "no checkpoint of a run on Ray" in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_passes_over_the_data_have_a_bar(tmp_path, capfd, monkeypatch):
    write_parquet(pr.domains.walk(n=8, p=0.7).sample(0, 50, seed=0), tmp_path / "log.parquet", state=["x"])
    monkeypatch.setattr("policyrisk._core.progress._PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    options = ["--state", "x", "--features", "tabular", "--seed", "0", "--json"]
    assert run(["evaluate", str(tmp_path / "log.parquet"), "--out", str(tmp_path / "out"), *options]) == 0
    said = capfd.readouterr().err
    assert "survey" in said
    assert "fit" in said
    assert "100%" in said


def test_compare_says_what_stands_against_it(capsys, tmp_path):
    """One policy, evaluated with a table and with features that cannot tell its states apart."""
    data = pr.domains.walk(n=12, p=0.7).sample(0, 1000, seed=0)
    write_parquet(data, tmp_path / "log.parquet", state=["x"])
    for name, features in (("table", "tabular"), ("same", "tabular"), ("coarse", "tiles:2")):
        code, _, err = call(
            capsys,
            *("evaluate", tmp_path / "log.parquet", "--state", "x", "--features", features, "--seed", 0),
            *("--out", tmp_path / name),
        )
        assert code == 0, err
    picture = ("--out", tmp_path / "p.png")
    code, out, _ = call(capsys, "compare", tmp_path / "table", tmp_path / "same", *picture)
    assert code == 0
    assert "doubt" not in out
    code, out, _ = call(capsys, "compare", tmp_path / "table", tmp_path / "coarse", *picture)
    assert code == 0
    assert (
        "trust in coarse: good: no problems found over the starts; at other states poor: the estimate dis"
        in out
    )
    assert "trust in table: good: no problems found" in out
    assert "doubt about the difference" not in out, "no features are in what is compared"
    code, out, _ = call(capsys, "compare", tmp_path / "table", tmp_path / "coarse", *picture, "--json")
    found = json.loads(out)
    assert found["features"] == {"table": "tabular", "coarse": "tiles:2"}
    assert found["doubts"]["table"] == []
    assert "The estimate disagrees with the returns" in found["doubts"]["coarse"]


def test_compare_of_cut_off_data_doubts_other_features_and_other_starts(capsys, tmp_path):
    chain = pr.domains.walk(n=12, p=0.7)
    for name, features, start in (("near", "tabular", 0), ("far", "poly:2", 3)):
        data = chain.sample(start, 600, seed=start, max_steps=25)
        write_parquet(data, tmp_path / f"{name}.parquet", state=["x"])
        code, _, err = call(
            capsys,
            *("evaluate", tmp_path / f"{name}.parquet", "--state", "x", "--features", features),
            *("--out", tmp_path / name),
        )
        assert code == 0, err
    code, out, _ = call(capsys, "compare", tmp_path / "near", tmp_path / "far", "--out", tmp_path / "p.png")
    assert code == 0
    assert "doubt about the difference: near with tabular, far with poly:2;" in out
    assert "the data do not start alike, x being 0 in near and 3 in far on average" in out


def test_compare_asks_for_the_same_coordinates_where_they_have_names(place, capsys, tmp_path):
    for name, called in (("named", "place"), ("other", "spot")):
        replace(Evaluation.load(place / "quick"), name=name, names=(called,)).save(tmp_path / name)
    picture = ("--out", tmp_path / "p.png")
    for pair in ((place / "slow", tmp_path / "named"), (tmp_path / "named", place / "slow")):
        code, _, err = call(capsys, "compare", *pair, *picture)  # slow's is state_0, a column without a name
        assert code == 0, err
    code, _, err = call(capsys, "compare", tmp_path / "named", tmp_path / "other", *picture)
    assert code == 1
    assert "same coordinates to be compared, got place in" in err


def diagonal(episodes, seed):
    """States near the diagonal of a square: most of it is far from the data."""
    rng = np.random.default_rng(seed)
    along = rng.random(2 * episodes)
    states = np.column_stack([along, along]) + 0.03 * rng.normal(size=(2 * episodes, 2))
    rewards = states[::2, 0] + rng.normal(size=episodes)
    return pr.Trajectories(states, rewards, np.ones(episodes, int), np.ones(episodes, bool))


@pytest.mark.parametrize("features", ["poly:1", "fourier:2", "tiles:3x3"])
def test_states_in_the_box_and_far_from_the_data_are_outside(features, tmp_path, capsys):
    """Dense features claim all episodes there."""
    evaluation = pr.evaluate(diagonal(1000, 0), features=features, names=["x", "y"], seed=0)
    corners = [[0.1, 0.9], [0.9, 0.1], [0.2, 0.6]]
    assert evaluation.outside([*corners, [0.5, 0.5], [0.9, 0.9]]).tolist() == [True] * 3 + [False] * 2
    fresh = evaluation.outside(diagonal(1000, 1).starts())
    assert fresh.mean() < 0.01
    if features == "poly:1":
        assert evaluation.risk.visited(corners).all()
        evaluation.save(tmp_path / "out")
        code, out, _ = call(capsys, "query", tmp_path / "out", "--at", "0.1,0.9")
        assert code == 0
        assert "outside the data: no episode was there, and the numbers are extrapolated" in out


def test_repeated_states_leave_a_margin():
    """Where all states are seen many times, a rounded one of them is not outside."""
    states = [[0.0, 1.0], [1.0, 3.0], [1.0, 3.0]] * 50
    data = pr.Trajectories(states, np.ones(100), np.full(50, 2), np.ones(50, bool))
    evaluation = pr.Evaluation.of(pr.LSTD(pr.Polynomial(0, [0, 0], [1, 3])).fit(data), data)
    assert evaluation.outside([[0, 1], [0, 1.01], [0.5, 2], [0, 3]]).tolist() == [False, False, True, True]
    alone = pr.Evaluation.of(pr.LSTD(pr.Polynomial(0, [0, 0], [1, 3])).fit(data[:1]), data[:1])
    assert not alone.outside([[0, 1], [1, 3]]).any()
