"""The command line: its output, its files and its exit code, in a process where that is the matter."""

import json
import os
import shutil
import subprocess
import sys
import warnings

import pytest

from policyrisk import cli, errors


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
    for command in ("rollout", "evaluate", "compare", "query", "improve", "reproduce", "train"):
        assert command in done.stdout
    code = "import sys, policyrisk.cli; print({'numpy', 'numba', 'scipy'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


def test_reproduce_chain_writes_the_papers_figure(tmp_path):
    out = tmp_path / "deep" / "chain"
    done = run("reproduce", "chain", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "negative projected variance: 29, 30" in done.stdout
    assert {path.name for path in out.iterdir()} == {"result.json", "chain.png", "chain.svg", "chain.pdf"}
    assert (out / "chain.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "chain.svg").read_text()
    assert (out / "chain.pdf").read_bytes().startswith(b"%PDF")
    result = json.loads((out / "result.json").read_text())
    assert result["negative_states"] == [29, 30]
    assert result["active_states"] == [30]
    assert result["w_second"] == pytest.approx([6227.886390, -375.871068, 5.570495], abs=5e-7)
    for name in ("true", "projected", "constrained", "direct"):
        assert len(result["variance"][name]) == 30
    assert min(result["variance"]["constrained"]) > -1e-9


def test_options_and_json(tmp_path, capsys):
    options = "--n 12 --p 0.6 --lam 0.5 --degree 2 --second-degree 3 --start uniform"
    assert cli.run(["reproduce", "chain", "--out", str(tmp_path), "--json", *options.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["parameters"] == {
        "n": 12,
        "p": 0.6,
        "lam": 0.5,
        "degree": 2,
        "second_degree": 3,
        "start": None,
    }
    assert len(result["w_mean"]) == 3
    assert len(result["w_second"]) == 4


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["reproduce", "chain", "--p", "0"], 1, "p must be in (0, 1]"),
        (["reproduce", "chain", "--n", "1"], 1, "n must be"),
        (["reproduce", "chain", "--start", "31"], 1, "start must be a state from 1 to 30"),
        (["reproduce", "chain", "--start", "x"], 2, "uniform"),
        (["reproduce", "chain", "--lam", "x"], 2, "lam"),
        (["reproduce", "moon"], 2, "moon"),
        (["reproduce", "chain", "--out", "file/inside"], 1, "out must be a folder"),
    ],
)
def test_mistakes_are_one_message_and_an_exit_code(arguments, code, text, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == code
    said = capsys.readouterr().err
    assert text in said
    assert "Traceback" not in said
    assert not (tmp_path / "results").exists()


def test_debug_shows_the_traceback(tmp_path):
    done = run("reproduce", "chain", "--p", "0", "--debug", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_every_command_has_json_and_random_ones_a_seed(capsys):
    commands = {
        ("rollout",): True,
        ("evaluate",): True,
        ("compare",): False,
        ("query",): False,
        ("reproduce", "chain"): False,
        ("reproduce", "curves"): True,
        ("reproduce", "pinball"): True,
        ("reproduce", "portfolio"): True,
        ("train", "pinball"): True,
    }
    for command, is_random in commands.items():
        assert cli.run([*command, "--help"]) == 0
        text = capsys.readouterr().out
        assert "--json" in text, command
        assert ("--seed" in text) == is_random, command


def test_training_writes_the_policy_and_its_learning_curve(tmp_path, capsys):
    policy = tmp_path / "empty.npz"
    assert cli.run(["train", "pinball", "--maze", "empty", "--episodes", "300", "--out", str(policy)]) == 0
    assert policy.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert cli.run(["reproduce", "pinball", "--maze", "empty", "--out", str(tmp_path / "out")]) == 1
    assert "policyrisk train pinball --maze empty" in capsys.readouterr().err


@pytest.mark.slow
def test_a_policy_is_trained_for_another_maze_and_its_map_drawn(tmp_path, capsys):
    policy = str(tmp_path / "empty.npz")
    assert cli.run(["train", "pinball", "--maze", "empty", "--episodes", "30000", "--out", policy]) == 0
    capsys.readouterr()
    small = ["--trajectories", "60", "--mc-episodes", "2", "--tiles", "6", "--json"]
    command = ["reproduce", "pinball", "--maze", "empty", "--out", str(tmp_path / "out"), *small]
    assert cli.run([*command, "--policy", policy]) == 0
    assert json.loads(capsys.readouterr().out)["reached_share"] == 1.0


def test_a_warning_is_one_readable_line_and_the_same_one_is_said_once(capsys, monkeypatch):
    def warns(folders):
        for _ in range(2):
            warnings.warn("the variance\nis negative", errors.NegativeVarianceWarning, stacklevel=1)

    monkeypatch.setattr("policyrisk.evaluation.Evaluation.load", warns)
    assert cli.run(["compare", "a"]) == 1  # nothing was loaded
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "policyrisk: warning: the variance is negative"
    assert len(lines) == 2


def test_an_unexpected_error_is_one_line_too(capsys, monkeypatch):
    def breaks(folder):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("policyrisk.evaluation.Evaluation.load", breaks)
    assert cli.run(["compare", "a"]) == 1
    assert (
        capsys.readouterr().err == "policyrisk: ZeroDivisionError: division by zero (--debug shows where)\n"
    )
    with pytest.raises(ZeroDivisionError):
        cli.run(["compare", "a", "--debug"])


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
    assert replies == ["evaluate", "--criterion", "tabular"]


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
