"""``policyrisk evaluate`` killed, interrupted, and short of disk."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import policyrisk as pr
from policyrisk import cli
from policyrisk.data import read_parquet
from policyrisk.passes import checkpoint as checkpoints

# The command in a process whose parts are small and slow, and saved one by one.
SLOW = """
import sys, time
from policyrisk import cli
from policyrisk.passes import checkpoint
from policyrisk.data import read_parquet
checkpoint._EVERY = checkpoint._PATIENCE = 0.0
taken = checkpoint.batches
def slowly(data):
    for part in taken(data):
        time.sleep({pause})
        yield part
checkpoint.batches = slowly
read_parquet.__kwdefaults__["batch_rows"] = 400
sys.exit(cli.run(sys.argv[1:]))
"""

COMMAND = [sys.executable, "-m", "policyrisk.cli"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    for k in range(6):
        data = pr.domains.walk(n=12, p=0.7).sample(0, episodes=80, seed=k)
        pr.write_parquet(data, folder / f"{k}.parquet", state=["place"])
    return folder


def words(log, out, *more):
    features = ["--state", "place", "--features", "tiles:12", "--direct"]
    return ["evaluate", str(log), *features, "--out", str(out), *more]


def command(log, out, *more, pause):
    return [sys.executable, "-c", SLOW.format(pause=pause), *words(log, out, *more)]


@pytest.fixture
def run_here(monkeypatch):
    """The same command in this process: parts as small, no pause."""
    monkeypatch.setattr(checkpoints, "_EVERY", 0.0)
    monkeypatch.setattr(checkpoints, "_PATIENCE", 0.0)
    monkeypatch.setitem(read_parquet.__kwdefaults__, "batch_rows", 400)
    return lambda *arguments: cli.run(words(*arguments))


def numbers(out):
    found = json.loads((out / "summary.json").read_text())
    arrays = dict(np.load(out / "risk.npz"))
    return {key: found[key] for key in ("mean", "variance", "std", "sharpe", "episodes")}, arrays


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path, log, kills, run_here):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run_here(log, whole, "--seed", "1") == 0
    assert hidden(tmp_path) == []
    rng = np.random.default_rng(kills)
    checkpoint = tmp_path / ".killed.checkpoint.npz"
    for _ in range(kills):
        child = subprocess.Popen(
            command(log, killed, "--seed", "1", "--resume", pause=0.15),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Only once it is at work, so that a slow start does not make it look as if nothing were lost.
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while child.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert child.returncode == -signal.SIGKILL  # it was not done yet
    assert run_here(log, killed, "--seed", "1", "--resume") == 0
    (one, arrays), (other, again) = numbers(whole), numbers(killed)
    assert one == other
    assert arrays.keys() == again.keys()
    for name in arrays.keys() - {"header", "checksum"}:
        np.testing.assert_array_equal(arrays[name], again[name])
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("sent", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_an_interrupt_is_one_message_and_the_run_goes_on_with_its_own_seed(
    tmp_path, log, run_here, capsys, sent, word
):
    out, checkpoint = tmp_path / "out", tmp_path / ".out.checkpoint.npz"
    child = subprocess.Popen(
        command(log, out, pause=0.3),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    while not checkpoint.exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(sent)
    said = child.communicate()[1].decode()
    assert child.returncode == 128 + sent
    assert f"saved in {checkpoint}; go on with --resume\n" in said
    assert f"policyrisk: {word}\n" in said
    assert "Traceback" not in said
    assert not out.exists()
    seed = checkpoints.stored_problem(checkpoint)["settings"]["seed"]
    assert run_here(log, out, "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["seed"] == seed
    assert hidden(tmp_path) == []


def test_another_evaluation_does_not_go_on_with_it(tmp_path, log, capsys):
    out, checkpoint = tmp_path / "out", tmp_path / ".out.checkpoint.npz"
    child = subprocess.Popen(command(log, out, "--seed", "1", pause=0.3), stdout=subprocess.DEVNULL)
    while not checkpoint.exists():
        time.sleep(0.01)
    child.kill()
    child.wait()
    anew = ["evaluate", str(log), "--state", "place", "--out", str(out), "--seed", "1", "--resume"]
    assert cli.run([*anew, "--features", "tiles:6"]) == 1
    assert "settings, features, variance changed since" in capsys.readouterr().err
    assert checkpoint.exists()
    os.utime(log / "3.parquet")
    assert cli.run([*anew, "--features", "tiles:12", "--direct"]) == 1
    assert "data changed since" in capsys.readouterr().err


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path, log):
    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    # Once without the limit: whatever is compiled then is on disk already.
    assert cli.run(words(log, tmp_path / "whole")) == 0
    done = subprocess.run(
        [*COMMAND, *words(log, tmp_path / "deep" / "out")],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "disk with room for it" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "deep").exists()


def test_a_folder_that_cannot_be_written_is_said(log):
    done = subprocess.run([*COMMAND, *words(log, "/proc/out")], capture_output=True, text=True)
    assert done.returncode == 1
    # On a slow machine a checkpoint is due before the folder is.
    assert "that can be written, got /proc/" in done.stderr
    assert "Traceback" not in done.stderr
