"""The experiments' scripts: their options, and the files that they write."""

import json

import numpy as np
import pytest

from experiments import chain, pinball, train_pinball
from experiments.common import plain, write
from policyrisk.errors import InvalidInputError


def test_the_chain_is_the_papers_figure(tmp_path, capsys):
    out = tmp_path / "deep" / "chain"
    chain.main(["--out", str(out)])
    assert "negative projected variance: 29, 30" in capsys.readouterr().out
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


def test_options_are_the_parameters(tmp_path):
    options = "--n 12 --p 0.6 --lam 0.5 --degree 2 --second-degree 3 --start 0"
    chain.main(["--out", str(tmp_path), *options.split()])
    result = json.loads((tmp_path / "result.json").read_text())
    expected = {"n": 12, "p": 0.6, "lam": 0.5, "degree": 2, "second_degree": 3, "start": 0}
    assert result["parameters"] == expected
    assert (len(result["w_mean"]), len(result["w_second"])) == (3, 4)


def test_the_chain_begins_in_one_of_its_states():
    with pytest.raises(InvalidInputError, match="start must be a state from 1 to n"):
        chain.run(chain.ChainParameters(n=5, start=6))


def test_training_writes_the_policy_and_its_learning_curve(tmp_path):
    policy = tmp_path / "empty.npz"
    train_pinball.main(["--maze", "empty", "--episodes", "300", "--out", str(policy)])
    assert policy.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInputError, match=r"experiments\.train_pinball --maze empty"):
        pinball.main(["--maze", "empty", "--out", str(tmp_path / "out")])


@pytest.mark.slow
def test_a_policy_is_trained_for_another_maze_and_its_map_drawn(tmp_path):
    policy, out = str(tmp_path / "empty.npz"), tmp_path / "out"
    train_pinball.main(["--maze", "empty", "--episodes", "30000", "--out", policy])
    small = ["--trajectories", "60", "--mc-episodes", "2", "--tiles", "6", "--fresh", "300"]
    pinball.main(["--maze", "empty", "--out", str(out), *small, "--policy", policy])
    assert json.loads((out / "result.json").read_text())["reached_share"] == 1.0


def test_files_are_whole_or_not_there(tmp_path):
    def fails(file):
        file.write(b"half of it")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write(tmp_path / "out" / "a.json", fails)
    assert not (tmp_path / "out" / "a.json").exists()
    assert plain({"a": [np.inf, 1.0, (float("nan"),)]}) == {"a": [None, 1.0, [None]]}
