"""The command line, run as a user would: a process, its output, its files and its exit code."""

import json
import os
import subprocess
import sys

import pytest


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
    assert "reproduce" in done.stdout
    code = "import sys, policyrisk.cli; print({'numpy', 'numba', 'scipy'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


def test_reproduce_chain_writes_the_papers_figure(tmp_path):
    out = tmp_path / "deep" / "chain"
    done = run("reproduce", "chain", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "negative projected variance: 29, 30" in done.stdout
    assert {path.name for path in out.iterdir()} == {"result.json", "chain.png", "chain.svg"}
    assert (out / "chain.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "chain.svg").read_text()
    result = json.loads((out / "result.json").read_text())
    assert result["negative_states"] == [29, 30]
    assert result["active_states"] == [30]
    assert result["w_second"] == pytest.approx([6227.886390, -375.871068, 5.570495], abs=5e-7)
    for name in ("true", "projected", "constrained", "direct"):
        assert len(result["variance"][name]) == 30
    assert min(result["variance"]["constrained"]) > -1e-9


def test_options_and_json(tmp_path):
    done = run(
        *("reproduce", "chain", "--out", str(tmp_path), "--json"),
        *("--n", "12", "--p", "0.6", "--lam", "0.5", "--degree", "2", "--second-degree", "3"),
        *("--start", "uniform"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
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
def test_mistakes_are_one_message_and_an_exit_code(arguments, code, text, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_debug_shows_the_traceback(tmp_path):
    done = run("--debug", "reproduce", "chain", "--p", "0", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
