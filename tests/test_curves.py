"""Learning curves: every point is the error of an estimate from the first episodes of a data set."""

import csv
import json

import numpy as np
import pytest

import policyrisk as pr
from experiments import curves
from policyrisk.errors import InvalidInputError

GIVEN = curves.CurvesParameters(n=6, p=0.8, episodes=(5, 40, 300), lams=(0.0, 0.9), repeats=4, seed=3)


@pytest.fixture(scope="module")
def result():
    return curves.run(GIVEN)


def test_every_error_is_that_of_one_fit_to_all_episodes_so_far(result):
    chain, x = pr.domains.walk(n=6, p=0.8), np.arange(6)
    for repeat, seed in enumerate(np.random.SeedSequence(3).spawn(4)):
        data = chain.sample(0, episodes=300, seed=seed)
        estimators = {
            "LSTD(0)": pr.LSTD(pr.Tabular(6), lam=0.0),
            "LSTD(0.9)": pr.LSTD(pr.Tabular(6), lam=0.9),
            "TD(0)": pr.TD(pr.Tabular(6), step=pr.StepSize(0.3, decay=300)),
        }
        assert list(result.errors) == list(estimators)
        for name, estimator in estimators.items():
            for k, size in enumerate(GIVEN.episodes):
                risk = estimator.fit(data[:size])
                gaps = (
                    risk.mean(x) - chain.mean(),
                    risk.second_moment(x) - risk.mean(x) ** 2 - chain.variance(),
                )
                expected = [np.linalg.norm(gap) / np.sqrt(6) for gap in gaps]
                np.testing.assert_allclose(result.errors[name][repeat, k], expected, rtol=1e-8)


def test_bands_are_quantiles_over_data_sets(result):
    told = result.to_dict()["curves"]["TD(0)"]["variance"]
    of_variance = np.sort(result.errors["TD(0)"][:, :, 1], axis=0)
    np.testing.assert_allclose(told["median"], of_variance[1:3].mean(axis=0))
    np.testing.assert_allclose(told["low"], 0.7 * of_variance[0] + 0.3 * of_variance[1])
    np.testing.assert_allclose(told["high"], 0.3 * of_variance[2] + 0.7 * of_variance[3])


def test_errors_fall_as_one_over_the_root_of_the_episodes():
    given = curves.CurvesParameters(n=6, episodes=(100, 2500), lams=(0.5,), repeats=40)
    squares = np.mean(curves.run(given).errors["LSTD(0.5)"] ** 2, axis=0)
    # 25 times as many episodes; a mean of 40 squares has a relative error of about a fifth.
    assert squares[0] / squares[1] == pytest.approx([25, 25], rel=0.6)


def test_the_script_writes_numbers_table_and_figure(tmp_path, capsys):
    options = [
        "--episodes",
        "10",
        "20",
        "30",
        "--repeats",
        "3",
        "--lams",
        "0.5",
        "--step",
        "0.2",
        "--decay",
        "50",
    ]
    curves.main(["--out", str(tmp_path), *options])
    assert "Error of the variance V" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {
        "result.json",
        "curves.csv",
        "curves.png",
        "curves.svg",
        "curves.pdf",
    }
    told = json.loads((tmp_path / "result.json").read_text())
    assert told["parameters"]["episodes"] == [10, 20, 30]
    assert (told["parameters"]["step"], told["parameters"]["decay"]) == (0.2, 50.0)
    rows = list(csv.DictReader((tmp_path / "curves.csv").read_text().splitlines()))
    assert len(rows) == 2 * 2 * 3
    (row,) = (r for r in rows if (r["estimator"], r["error_of"], r["episodes"]) == ("TD(0)", "mean", "30"))
    assert float(row["median"]) == told["curves"]["TD(0)"]["mean"]["median"][2]
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("episodes", [(), (10, 10), (20, 10), (0, 5)])
def test_sizes_rise(episodes):
    with pytest.raises(InvalidInputError, match="episodes must be"):
        curves.run(curves.CurvesParameters(episodes=episodes))
