"""What must work wherever the package is installed, with nothing but what it needs itself: `make dist`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.cli import run

pytestmark = pytest.mark.smoke


def test_the_chain_of_the_paper():
    chain = pr.domains.walk(n=30, p=0.7)
    np.testing.assert_allclose(chain.mean()[[0, 29]], [-73.125, -2.5], rtol=1e-9)
    np.testing.assert_allclose(chain.variance()[[0, 29]], [359.296875, 13.125], rtol=1e-8)


def test_lstd_finds_the_truth_within_its_intervals():
    chain = pr.domains.walk(n=10, p=0.7)
    risk = pr.LSTD(pr.Tabular(10), variance="direct").fit(chain.sample(0, episodes=2000, seed=0))
    z = (risk.mean(range(10)) - chain.mean()) / risk.standard_error(range(10), of="mean")
    assert np.abs(z).max() < 4


def test_an_estimate_is_saved_and_loaded(tmp_path):
    risk = pr.LSTD(pr.Tabular(10)).fit(pr.domains.walk(n=10, p=0.7).sample(0, episodes=50, seed=0))
    risk.save(tmp_path / "r.npz")
    np.testing.assert_array_equal(
        pr.RiskFunction.load(tmp_path / "r.npz").std(range(10)), risk.std(range(10))
    )


def test_the_command_says_what_it_is():
    shown = subprocess.run(
        [sys.executable, "-m", "policyrisk.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert pr.__version__ in shown.stdout


def test_a_log_is_evaluated_from_the_command_line(tmp_path, capsys):
    data = pr.domains.walk(n=10, p=0.7).sample(0, episodes=300, seed=0)
    pr.readers.write_npz(data, tmp_path / "log.npz")
    assert (
        run(
            [
                "evaluate",
                str(tmp_path / "log.npz"),
                "--features",
                "tabular",
                "--out",
                str(tmp_path / "out"),
                "--json",
            ]
        )
        == 0
    )
    assert run(["query", str(tmp_path / "out"), "--at", "3"]) == 0
    assert "std" in capsys.readouterr().out
