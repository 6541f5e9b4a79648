"""The command line: its output, its files and its exit code, in a process where that is the matter."""

import errno
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import policyrisk as pr
from policyrisk import cli, errors
from policyrisk.data import write_npz
from policyrisk.passes import checkpoint


def run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "policyrisk.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env={**os.environ, "COLUMNS": "120", "TERM": "dumb"},
    )


def test_help_names_the_commands_and_loads_nothing_heavy():
    done = run("--help")
    assert done.returncode == 0
    for command in ("rollout", "evaluate", "compare", "query", "watch", "gate", "improve"):
        assert command in done.stdout
    code = "import sys, policyrisk.cli; print({'numpy', 'numba', 'scipy'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["evaluate", "missing.npz", "--out", "o"], 1, "missing.npz"),
        (["evaluate", "missing.npz", "--out", "o", "--lam", "x"], 2, "lam"),
        (["evaluate", "file", "--out", "file/inside"], 1, "out must be a folder"),
        (["moon"], 2, "moon"),
    ],
)
def test_mistakes_are_one_message_and_an_exit_code(arguments, code, text, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == code
    said = capsys.readouterr().err
    assert text in said
    assert "Traceback" not in said
    assert not (tmp_path / "o").exists()


def test_debug_shows_the_traceback(tmp_path):
    done = run("evaluate", "missing.npz", "--out", "o", "--debug", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_every_command_has_json_and_random_ones_a_seed(capsys):
    commands = {
        ("rollout",): True,
        ("evaluate",): True,
        ("compare",): False,
        ("query",): False,
        ("watch",): False,
        ("gate",): False,
        ("improve",): True,
    }
    for command, is_random in commands.items():
        assert cli.run([*command, "--help"]) == 0
        text = capsys.readouterr().out
        assert "--json" in text, command
        assert ("--seed" in text) == is_random, command


def test_a_warning_is_one_readable_line_and_the_same_one_is_said_once(tmp_path, capsys, monkeypatch):
    def warns(folder, **given):
        for _ in range(2):
            warnings.warn("the variance\nis negative", errors.NegativeVarianceWarning, stacklevel=1)

    monkeypatch.setattr("policyrisk.evaluation.Evaluation.load", warns)
    assert cli.run(["compare", str(tmp_path)]) == 1  # nothing was loaded
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "policyrisk: warning: the variance is negative"
    assert len(lines) == 2


def test_an_unexpected_error_is_one_line_too(tmp_path, capsys, monkeypatch):
    def breaks(folder, **given):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("policyrisk.evaluation.Evaluation.load", breaks)
    assert cli.run(["compare", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err == "policyrisk: ZeroDivisionError: division by zero (--debug shows where)\n"
    )
    with pytest.raises(ZeroDivisionError):
        cli.run(["compare", str(tmp_path), "--debug"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_commands_options_and_values(tmp_path):
    command = tmp_path / "policyrisk"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m policyrisk.cli "$@"\n')
    command.chmod(0o755)
    asked = ["policyrisk ev", "policyrisk compare a --crit", "policyrisk evaluate d --features tab"]
    lines = ['eval "$(_POLICYRISK_COMPLETE=source_bash policyrisk)"', "complete -p policyrisk"]
    for words in asked:
        lines += [
            f"COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))",
            '_policyrisk_completion policyrisk; echo "${COMPREPLY[@]}"',
        ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        timeout=120,
    )
    registered, *replies = done.stdout.splitlines()
    assert registered.endswith("-F _policyrisk_completion policyrisk"), done.stderr
    assert replies == ["evaluate", "--criterion", "tabular:30"]


def test_a_reader_that_goes_away_is_no_error_of_ours():
    code = "import sys; from policyrisk.cli import main; sys.argv[1:] = ['evaluate', '--help']; main()"
    done = subprocess.run(
        f'{sys.executable} -c "{code}" | true',
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """A log and its evaluation without pictures."""
    folder = tmp_path_factory.mktemp("walked")
    data = pr.domains.walk(n=6, p=0.7).sample(0, 300, seed=1)
    write_npz(data, folder / "walk.npz")
    pr.evaluate(data, features="tabular").save(folder / "a")
    return folder


COMMANDS = {
    "evaluate": ["evaluate", "walk.npz", "--features", "tabular", "--out", "new"],
    "query": ["query", "a", "--at", "2"],
    "compare": ["compare", "a", "a/../a"],
    "rollout": ["rollout", "CartPole-v1", "--policy", "random", "--episodes", "2", "--out", "r.npz"],
    "improve": ["improve", "portfolio", "--criterion", "sharpe", "--out", "better"],
}
WRITING = ("evaluate", "compare", "rollout", "improve")  # to --out
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")


@pytest.fixture
def here(walked, tmp_path, monkeypatch):
    shutil.copytree(walked, tmp_path, dirs_exist_ok=True)
    for package in ("matplotlib", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_line(capsys):
    """The last line of the error stream, alone but for warnings and what was left out."""
    lines = capsys.readouterr().err.splitlines()
    assert all(
        line.startswith(("policyrisk: warning: ", "policyrisk: pictures", "policyrisk: the report"))
        for line in lines[:-1]
    ), lines
    assert lines[-1].startswith("policyrisk")
    assert "Error" not in lines[-1]
    return lines[-1]


@FULL
@pytest.mark.parametrize("command", COMMANDS)
def test_a_log_on_a_full_disk_is_refused_at_once(command, here, capsys):
    before = sorted(here.rglob("*"))
    assert cli.run([*COMMANDS[command], "--log", "/dev/full"]) == 2
    assert "Invalid value for --log: '/dev/full' cannot be written: No space left" in one_line(capsys)
    assert sorted(here.rglob("*")) == before


def test_a_log_that_fills_its_disk_later_is_one_error(here, capsys, monkeypatch):
    class Filling(io.StringIO):
        name = "all.log"

        def flush(self):
            if self.getvalue().count("\n") > 1:
                raise OSError(errno.ENOSPC, "No space left on device")

    opened = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda path, *given, **how: Filling() if path.name == "all.log" else opened(path, *given, **how),
    )
    assert cli.run(["query", "a", "--at", "2", "--log", "all.log"]) == 1
    assert "all.log cannot be used: No space left on device; choose another" in one_line(capsys)


@FULL
@pytest.mark.parametrize(
    ("arguments", "redirected"),
    [
        (COMMANDS["query"], ">/dev/full"),
        ([*COMMANDS["query"], "--json"], ">/dev/full"),
        (["--help"], ">/dev/full"),
        (COMMANDS["query"], ">&-"),
        (COMMANDS["query"], "2>/dev/full"),
    ],
)
def test_an_answer_for_a_full_disk_is_one_error(arguments, redirected, here):
    line = f"{shlex.join([sys.executable, '-m', 'policyrisk.cli', *arguments])} {redirected}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    if redirected == ">/dev/full":
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "policyrisk: the output cannot be written: No space left on device; free some space, or send it "
            "elsewhere"
        )
    else:
        assert done.returncode == 0
        assert ("policy at state = 2" in done.stdout) == (redirected == "2>/dev/full")


@pytest.mark.parametrize("command", WRITING)
def test_a_name_that_is_empty_or_too_long_is_refused(command, here, capsys):
    *rest, _ = COMMANDS[command] if command != "compare" else [*COMMANDS["compare"], "--out", ""]
    before = sorted(here.rglob("*"))
    assert cli.run([*rest, ""]) == 2
    assert "Invalid value for '--out': it must be the name of a file or a folder, got an empty" in one_line(
        capsys
    )
    ending = {"compare": ".png", "rollout": ".npz"}.get(command, "")
    long = "x" * 300
    # Of the second the temporary name is too long.
    for name in (long, "x" * 240, f"new_one/{long}/b", f"new_one/{long}"):
        assert cli.run([*rest, name + ending]) == 1
        said = one_line(capsys)
        assert said.startswith("policyrisk: --out must be a ")
        assert said.endswith("File name too long; choose another --out")
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("name", ["x" * 300, "x" * 240, "nowhere/" + "x" * 300, "/dev/full"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["watch", "walk.npz", "--low", "-999", "--high", "0", "--monitor"], 1),
        (["gate", "walk.npz", "walk.npz", "--markdown"], 2),  # whose 1 is a verdict
    ],
)
def test_files_beside_the_answer_are_refused_by_name(command, code, name, here, capsys):
    assert cli.run([*command, name]) == code
    said = one_line(capsys)
    assert "a device" in said or re.search(
        rf"{command[-1][2:]} must be a (file|folder) that can be written", said
    )
    assert not (here / "nowhere").exists()


def test_a_file_that_is_there_is_replaced(here):
    for _ in range(2):
        assert cli.run(COMMANDS["rollout"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [["query", "x" * 300, "--at", "1"], ["compare", "x" * 300], ["evaluate", "x" * 300, "--out", "o"]],
)
def test_data_of_a_name_that_is_too_long_are_refused(arguments, here, capsys):
    assert cli.run(arguments) == 1
    assert "File name too long" in one_line(capsys)


@pytest.mark.parametrize("command", WRITING)
def test_a_folder_that_cannot_be_looked_into_or_written_is_refused(command, here, capsys, monkeypatch):
    def closed(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", closed)
    out = [] if command != "compare" else ["--out", "picture.png"]
    assert cli.run([*COMMANDS[command], *out]) == 1
    assert "Permission denied; choose another --out" in one_line(capsys)
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK | os.X_OK)
    assert cli.run([*COMMANDS[command], *out]) == 1
    assert "cannot be; choose another --out" in one_line(capsys)


@pytest.mark.parametrize("command", ["evaluate", "improve"])
def test_a_checkpoint_that_finds_no_room_ends_nothing(command, here, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    monkeypatch.setattr(checkpoint, "records", SimpleNamespace(save=full))
    few = ["--iterations", "2", "--episodes", "20", "--fresh", "20"] if command == "improve" else []
    assert cli.run([*COMMANDS[command], *few]) == 0
    said = capsys.readouterr().err
    assert said.count("it goes on without a checkpoint, since none can be written: [Errno 28] No space") == 1
    data = pr.domains.walk(n=6, p=0.7).sample(0, 300, seed=1)
    with pytest.raises(errors.InvalidInputError, match="checkpoint must be a file that can be written"):
        pr.evaluate(data, features="tabular", checkpoint=here / "asked.npz")


def test_nothing_that_is_said_commands_the_terminal(here, capsys):
    hostile = "\x1b[31mred\x07\x9b2J\ud800"
    log = here / "all.log"
    told = ["--name", hostile, "--state", json.dumps(hostile), "--verbose", "--log", str(log)]
    assert cli.run([*COMMANDS["evaluate"], *told]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(r"\x1b[31mred\x07\x9b2J\ud800: return of 300 episodes")
    assert r"box: \x1b[31mred\x07\x9b2J\ud800 0 to 5" in out
    assert cli.run(["query", "new", "--at", f"1,{hostile}"]) == 2
    assert cli.run(["query", "new", "--at", "1"]) == 0
    assert cli.run(["query", hostile.replace("\ud800", ""), "--at", "1"]) == 1
    assert cli.run([*COMMANDS["evaluate"], "--features", f"poly:1,dims={hostile}"]) in (1, 2)
    for text in (out, err, *capsys.readouterr(), log.read_text("utf-8")):
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\ud800"}
    done = run("query", "new", "--at", "\x1b[31m", "--debug", cwd=here)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr


def test_a_traceback_commands_no_terminal_either(here):
    (here / "module_of_mine.py").write_text("def policy(states):\n    raise OSError('\\x1b[31m')\n")
    given = ["--policy", "module_of_mine:policy", "--episodes", "1", "--out", "r.npz", "--debug"]
    done = run("rollout", "CartPole-v1", *given, cwd=here)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert r"\x1b[31m" in done.stderr
    assert "\x1b" not in done.stderr
