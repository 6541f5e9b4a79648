"""Malformed files and command lines: each its exit code and message, none a traceback or partial output."""

import os
import re
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from conftest import listing
from pyarrow import parquet as pq

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.data import write_npz, write_parquet

GOOD = {
    "episode": [0, 0, 0, 1, 1],
    "step": [0, 1, 2, 0, 1],
    "x": [0.0, 0.5, 1.0, 0.2, 0.9],
    "y": [1.0, 0.5, 0.0, 0.3, 0.1],
    "reward": [-1.0, -2.0, None, -1.5, None],
    "terminated": [False, True, False, True, False],
}


def table(path, **columns):
    kept = {name: values for name, values in {**GOOD, **columns}.items() if values is not None}
    pq.write_table(pa.table(kept), path)


def text(path, *lines):
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Good and bad files, by name."""
    f = tmp_path_factory.mktemp("shelf")
    table(f / "good.parquet")
    nan, inf = float("nan"), float("inf")
    table(f / "no_reward.parquet", reward=None)
    table(f / "no_flags.parquet", terminated=None)
    table(f / "no_episode.parquet", episode=None)
    table(f / "nested_state.parquet", x=[{"day": day} for day in range(1, 6)])
    table(f / "null_name.parquet", x=["a", None, "c", "d", "e"])
    table(f / "null_state.parquet", x=[0.0, None, 1.0, 0.2, 0.9])
    table(f / "nan_state.parquet", x=[0.0, nan, 1.0, 0.2, 0.9])
    table(f / "inf_reward.parquet", reward=[-1.0, inf, None, -1.5, None])
    table(f / "null_reward.parquet", reward=[None, -2.0, None, -1.5, None])
    table(f / "interleaved.parquet", episode=[0, 1, 0, 1, 0], step=None)
    table(f / "twice_the_step.parquet", step=[0, 0, 1, 0, 1])
    table(f / "early_flag.parquet", terminated=[True, False, False, True, False])
    table(f / "text_flags.parquet", terminated=list("nynyn"))
    table(f / "null_episode.parquet", episode=[0, 0, None, 1, 1])
    table(f / "ragged.parquet", x=[[0.0, 1.0], [0.5], [1.0, 2.0], [0.2, 0.1], [0.9, 0.1]])
    pq.write_table(pa.table(GOOD).slice(0, 0), f / "no_rows.parquet")
    (f / "empty.parquet").write_bytes(b"")
    (f / "cut.parquet").write_bytes((f / "good.parquet").read_bytes()[:-40])
    (f / "text.parquet").write_text("episode,x\n0,1\n")
    (f / "folder").mkdir()
    (f / "folder.npz").mkdir()
    (f / "mixed").mkdir()
    table(f / "mixed" / "a.parquet")
    table(f / "mixed" / "b.parquet", x=[0, 1, 2, 3, 4])
    text(f / "good.csv", "episode,x,reward,terminated", "0,0.5,1,false", "0,0.7,2,true", "1,0.1,1,true")
    text(f / "ragged.csv", "episode,x,reward,terminated", "0,0.5,1", "0,0.7,2,true")
    text(f / "words.csv", "episode,x,reward,terminated", "0,0.5,1,false", "0,half,1,true")
    text(f / "numbers.csv", "episode,x,reward,terminated", "0,half,1,false", "0,0.5,1,true")
    text(f / "header.csv", "episode,x,reward,terminated")
    (f / "empty.csv").write_bytes(b"")
    (f / "binary.csv").write_bytes(bytes(range(256)) * 4)
    (f / "data.xlsx").write_bytes(b"PK")
    (f / "plain").write_text("no suffix")

    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=200, seed=1)
    write_npz(data, f / "walk.npz")
    arrays = {name: getattr(data, name) for name in ("states", "rewards", "lengths", "terminated")}
    np.savez(f / "lacking.npz", states=arrays["states"])
    np.savez(f / "short.npz", **{**arrays, "rewards": arrays["rewards"][:-1]})
    np.savez(f / "zero_length.npz", **{**arrays, "lengths": np.r_[0, arrays["lengths"][1:]]})
    np.savez(f / "flags.npz", **{**arrays, "terminated": arrays["terminated"].astype(float)})
    np.savez(f / "pickle.npz", **{**arrays, "states": np.array([object()], dtype=object)})
    (f / "cut.npz").write_bytes((f / "walk.npz").read_bytes()[:200])
    np.save(f / "array.npy", arrays["states"])
    (f / "array.npy").rename(f / "array.npz")
    with zipfile.ZipFile(f / "zip.npz", "w") as archive:
        archive.writestr("states.npy", b"not an array")
    write_npz(
        pr.Trajectories(data.states, data.rewards, data.lengths, np.zeros(200, bool)), f / "endless.npz"
    )
    write_npz(pr.Trajectories([[0], [1]], [1.0], [1], [True]), f / "one.npz")
    write_parquet(pr.domains.walk(n=5, p=0.7).sample(0, episodes=50, seed=1), f / "walk.parquet")

    assert (
        run(["evaluate", str(f / "walk.npz"), "--features", "tabular", "--out", str(f / "done"), "--json"])
        == 0
    )
    plane = ["evaluate", str(f / "good.parquet"), "--state", "x,y", "--features", "poly:1", "--ridge", "1"]
    assert run([*plane, "--out", str(f / "plane"), "--json"]) == 0
    for name in ("altered", "alone"):
        (f / name).mkdir()
        for file in ("risk.npz", "survey.npz"):
            (f / name / file).write_bytes((f / "done" / file).read_bytes())
    (f / "alone" / "survey.npz").unlink()
    content = bytearray((f / "altered" / "risk.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (f / "altered" / "risk.npz").write_bytes(content)
    (f / "broken_policy.py").write_text(
        "number = 3\n"
        "class Needs:\n    def __init__(self, x):\n        pass\n"
        "def wrong(x):\n    return [7] * len(x)\n"
        "def raises(x):\n    raise RuntimeError('my own mistake')\n"
        "def shape(x):\n    return 0\n"
    )
    (f / "bad_import_policy.py").write_text("import nothing_of_this_name\n")
    return f


EVALUATE = ["evaluate", "--out", "out", "--state", "x,y", "--features", "poly:1"]
WALK = ["evaluate", "walk.npz", "--out", "out"]
ROLLOUT = ["rollout", "CartPole-v1", "--episodes", "3", "--out", "out.parquet"]

# The arguments, the exit code, and a part of the message.
CASES = [
    # Parquet files
    ([*EVALUATE, "no_reward.parquet"], 1, "reward must name a column"),
    ([*EVALUATE, "no_flags.parquet"], 1, "--terminated or --truncated must name a column"),
    ([*EVALUATE, "no_episode.parquet"], 1, "episode must name a column"),
    ([*EVALUATE, "nested_state.parquet"], 1, "nested_state.parquet"),
    ([*EVALUATE, "null_name.parquet"], 1, "row 1 of"),
    ([*EVALUATE, "null_state.parquet"], 1, "row 1 of"),
    ([*EVALUATE, "nan_state.parquet"], 1, "x must be finite, got nan in row 1"),
    ([*EVALUATE, "inf_reward.parquet"], 1, "reward must be finite, got inf in row 1"),
    ([*EVALUATE, "null_reward.parquet"], 1, "reward must not be null before"),
    ([*EVALUATE, "interleaved.parquet"], 1, "keep each episode's rows together"),
    ([*EVALUATE, "twice_the_step.parquet"], 1, "step must rise"),
    ([*EVALUATE, "early_flag.parquet"], 1, "only where an episode ends"),
    ([*EVALUATE, "text_flags.parquet"], 1, "booleans"),
    ([*EVALUATE, "null_episode.parquet"], 1, "row 2"),
    ([*EVALUATE, "ragged.parquet"], 1, "as many numbers in every row"),
    ([*EVALUATE, "no_rows.parquet"], 1, "at least one episode"),
    ([*EVALUATE, "empty.parquet"], 1, "empty.parquet"),
    ([*EVALUATE, "cut.parquet"], 1, "cut.parquet"),
    ([*EVALUATE, "text.parquet"], 1, "text.parquet"),
    ([*EVALUATE, "folder"], 1, "folder"),
    (["evaluate", "mixed", "--out", "out", "--state", "x"], 1, "one dimension and type throughout"),
    ([*EVALUATE, "nowhere.parquet"], 1, "does not exist"),
    ([*EVALUATE, "nowhere"], 1, "does not exist"),
    (["evaluate", "good.parquet", "--out", "out"], 1, "state must name the columns"),
    (["evaluate", "good.parquet", "--out", "out", "--state", "x,z"], 1, "'z'"),
    ([*EVALUATE, "good.parquet", "--reward", "gain"], 1, "gain"),
    # CSV, npz and others
    (["evaluate", "ragged.csv", "--out", "out", "--state", "x"], 1, "ragged.csv"),
    (["evaluate", "words.csv", "--out", "out", "--state", "x"], 1, "got both, such as 0.5 and half"),
    (["evaluate", "numbers.csv", "--out", "out", "--state", "x"], 1, "got both, such as 0.5 and half"),
    (["evaluate", "header.csv", "--out", "out", "--state", "x"], 1, "header.csv"),
    (["evaluate", "empty.csv", "--out", "out", "--state", "x"], 1, "empty.csv"),
    (["evaluate", "binary.csv", "--out", "out", "--state", "x"], 1, "binary.csv"),
    (["evaluate", "data.xlsx", "--out", "out"], 1, ".parquet, .csv or .npz"),
    (["evaluate", "plain", "--out", "out"], 1, ".parquet, .csv or .npz"),
    (["evaluate", "minari:no/such-dataset-v0", "--out", "out"], 1, "no/such-dataset-v0"),
    (["evaluate", "lacking.npz", "--out", "out"], 1, "add rewards, lengths, terminated"),
    (["evaluate", "short.npz", "--out", "out"], 1, "lengths must sum to len(rewards)"),
    (["evaluate", "zero_length.npz", "--out", "out"], 1, "lengths must be at least 1"),
    (["evaluate", "flags.npz", "--out", "out"], 1, "booleans"),
    (["evaluate", "pickle.npz", "--out", "out"], 1, "pickle.npz"),
    (["evaluate", "cut.npz", "--out", "out"], 1, "cut.npz"),
    (["evaluate", "array.npz", "--out", "out"], 1, "array.npz"),
    (["evaluate", "zip.npz", "--out", "out"], 1, "zip.npz"),
    # Data that do not allow it
    (["evaluate", "endless.npz", "--out", "out", "--features", "tabular"], 1, "some episode must terminate"),
    (["evaluate", "endless.npz", "--out", "out"], 1, "cut off"),
    (["evaluate", "one.npz", "--out", "out"], 1, "gather more, or name the features"),
    ([*WALK, "--features", "tabular:3"], 1, "whole numbers from 0 to 2"),
    # Command lines
    (["evaluate"], 2, "Missing argument"),
    (["evaluate", "walk.npz"], 2, "--out"),
    (["assess", "walk.npz"], 2, "assess"),
    ([*WALK, "--fast"], 2, "--fast"),
    ([*WALK, "--features", "squares:3"], 2, "write for example tiles:20x20"),
    ([*WALK, "--features", "tiles:3x3"], 2, "coordinates state"),
    ([*WALK, "--features", "tiles:3,dims=z"], 2, "'z'"),
    ([*WALK, "--features", "tiles:999999999"], 2, "at most 1000000"),
    ([*WALK, "--features", "rbf:3,width=0"], 2, "positive"),
    ([*WALK, "--features", ""], 2, "must be auto or one of"),
    ([*WALK, "--state", "x,y"], 2, "1 coordinate"),
    ([*WALK, "--state", "x,,y"], 2, "commas"),
    ([*WALK, "--lam", "1.5"], 2, "--lam"),
    ([*WALK, "--lam", "nan", "--features", "tabular"], 2, "--lam"),
    ([*WALK, "--discount", "0"], 2, "--discount"),
    ([*WALK, "--discount", "much"], 2, "--discount"),
    ([*WALK, "--ridge", "-1"], 2, "--ridge"),
    ([*WALK, "--ridge", "inf", "--features", "tabular"], 2, "--ridge"),
    ([*WALK, "--level", "1"], 2, "--level"),
    ([*WALK, "--seed", "-1"], 2, "--seed"),
    ([*WALK, "--box", "0:1,0:1"], 2, "--box"),
    ([*WALK, "--box", "3:1"], 2, "low to high"),
    ([*WALK, "--box", "0:inf"], 2, "finite"),
    ([*WALK, "--box", "wide"], 2, "low:high"),
    (["evaluate", "walk.npz", "--features", "tabular", "--out", "plain"], 1, "which is a file"),
    (["evaluate", "walk.npz", "--features", "tabular", "--out", "plain/inside"], 1, "out must be a folder"),
    # query
    (["query", "nowhere", "--at", "1"], 1, "does not exist"),
    (["query", "plain", "--at", "1"], 1, "which is a file"),
    (["query", "folder", "--at", "1"], 1, "without risk.npz"),
    (["query", "alone", "--at", "1"], 1, "without survey.npz"),
    (["query", "altered", "--at", "1"], 1, "risk.npz"),
    (["query", "done"], 2, "--at"),
    (["query", "done", "--at", "1,2"], 2, "one each for state"),
    (["query", "plane", "--at", "1"], 2, "one each for x, y"),
    (["query", "done", "--at", "one"], 2, "'one' is not a finite number"),
    (["query", "done", "--at", "nan"], 2, "finite"),
    (["query", "done", "--at", ""], 2, "finite"),
    (["query", "done", "--at", "99"], 1, "whole numbers from 0 to 4"),
    (["query", "done", "--at", "1", "--level", "95"], 2, "--level"),
    # compare
    (["compare"], 2, "Missing argument"),
    (["compare", "done", "plane"], 1, "same coordinates"),
    (["compare", "done", "done"], 1, "would count twice"),
    (["compare", "done", "nowhere"], 1, "does not exist"),
    (["compare", "done", "--criterion", "fun"], 2, "must be one of mean, sharpe"),
    (["compare", "done", "--criterion", "mean-std"], 2, "must be one of mean, sharpe"),
    (["compare", "done", "--criterion", "mean-std:x"], 2, "finite number"),
    (["compare", "done", "--criterion", "mean-std:-1"], 2, "c must be"),
    (["compare", "done", "--criterion", "mean:variance<=-3"], 2, "c must be"),
    (["compare", "done", "--out", "picture.txt"], 2, ".png"),
    (["compare", "done", "--out", "nowhere/picture.png"], 1, "folder that can be written"),
    # rollout
    ([*ROLLOUT], 2, "--policy"),
    ([*ROLLOUT, "--policy", "careful"], 2, "module:name"),
    ([*ROLLOUT, "--policy", "no_such_module:f"], 2, "no_such_module"),
    ([*ROLLOUT, "--policy", "broken_policy:absent"], 2, "has no 'absent'"),
    ([*ROLLOUT, "--policy", "broken_policy:number"], 2, "type int"),
    ([*ROLLOUT, "--policy", "broken_policy:Needs"], 2, "without arguments"),
    ([*ROLLOUT, "--policy", "broken_policy:wrong"], 1, "7"),
    ([*ROLLOUT, "--policy", "broken_policy:shape"], 1, "shape"),
    ([*ROLLOUT, "--policy", "broken_policy:raises"], 1, "my own mistake"),
    ([*ROLLOUT, "--policy", "bad_import_policy:f"], 1, "nothing_of_this_name"),
    ([*ROLLOUT, "--policy", "random", "--env-args", "{"], 2, "not JSON"),
    ([*ROLLOUT, "--policy", "random", "--env-args", "[1]"], 2, "JSON object"),
    ([*ROLLOUT, "--policy", "random", "--env-args", '{"wings": 2}'], 1, "wings"),
    ([*ROLLOUT, "--policy", "random", "--num-envs", "0"], 2, "--num-envs"),
    ([*ROLLOUT, "--policy", "random", "--state", "x,y"], 2, "4 different names, one for each coordinate"),
    ([*ROLLOUT, "--policy", "random", "--state", "a,b,b,c"], 2, "4 different names"),
    ([*ROLLOUT, "--policy", "broken_policy:shape", "--stochastic"], 2, "is a function, which draws"),
    ([*ROLLOUT, "--policy", "random", "--episodes", "0"], 2, "--episodes"),
    ([*ROLLOUT, "--policy", "random", "--out", "out.txt"], 2, ".parquet or .npz"),
    ([*ROLLOUT, "--policy", "random", "--out", "plain/out.npz"], 1, "which is a file"),
    ([*ROLLOUT, "--policy", "random", "--out", "folder.npz"], 1, "is a folder"),
    (["rollout", "NoSuchEnv-v0", "--policy", "random", "--episodes", "1", "--out", "o.npz"], 1, "NoSuchEnv"),
]


def check(code, expected, out, err, message):
    assert (code, out) == (expected, ""), err
    assert message in " ".join(err.split()), err
    assert "Traceback" not in err
    # One line, after a line for each warning.
    *warned, last = err.strip().splitlines()
    assert all(line.startswith("policyrisk: warning: ") for line in warned)
    assert last.startswith("policyrisk")
    # Options, no arguments of Python's but what others say in brackets; these are spelled so in --features.
    own = re.sub(r"\(.*\)", "()", err)
    assert not re.search(r"\b(?!dims|second|by|width|shrink|total|tilings)[a-z_]+=(?!=)", own), err


def test_there_are_many():
    assert len({tuple(arguments) for arguments, _, _ in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    CASES,
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_mistakes_are_one_message_and_leave_nothing(arguments, code, message, shelf, monkeypatch, capsys):
    monkeypatch.chdir(shelf)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = listing(shelf)
    got = run(arguments)
    captured = capsys.readouterr()
    check(got, code, captured.out, captured.err, message)
    assert listing(shelf) == before


@pytest.mark.parametrize("index", range(5, len(CASES), 34))
def test_the_same_in_a_process_of_its_own(index, shelf):
    arguments, code, message = CASES[index]
    before = listing(shelf)
    done = subprocess.run(
        [sys.executable, "-m", "policyrisk.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=shelf,
        timeout=120,
        env={**os.environ, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    check(done.returncode, code, done.stdout, done.stderr, message)
    assert listing(shelf) == before


@pytest.mark.parametrize("where", [0, 2])
def test_debug_before_or_after_the_command_shows_where(where, shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    arguments = ["query", "nowhere", "--at", "1"]
    with pytest.raises(pr.errors.InvalidInputError, match="does not exist"):
        run([*arguments[:where], "--debug", *arguments[where:]])


def test_no_arguments_are_the_help(capsys):
    assert run([]) == 2
    assert "Usage: policyrisk" in capsys.readouterr().out
