"""Quantiles and the chance of a loss in ``evaluate``, from Python and from the command line."""

import json

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.cli import run
from policyrisk.errors import InvalidInputError
from policyrisk.readers import write_npz


@pytest.fixture(scope="module")
def chain():
    return pr.domains.walk(6)


@pytest.fixture(scope="module")
def data(chain):
    return chain.sample(0, 2000, seed=1)


def test_tails_of_a_table_are_those_of_the_chain(chain, data):
    result = pr.evaluate(
        data, features="tabular", quantiles=[0.95, 0.05], loss_below=-20, level=0.999, seed=0
    )
    told, exact = result.notes["distribution"], chain.distribution(0)
    assert list(told["quantiles"]) == ["0.05", "0.95"]
    own = data.returns_to_go()[data.states[data.visited_rows, 0] == 0]  # of every visit to the start
    assert told["quantiles"]["0.05"]["value"] == np.quantile(own, 0.05, method="inverted_cdf")
    assert told["below"]["-20"]["value"] == pytest.approx((own < -20).mean())
    truths = {
        ("quantiles", "0.05"): exact.quantile(0.05),
        ("cvar", "0.05"): exact.cvar(0.05),
        ("below", "-20"): exact.cdf(-21),
    }
    for (of, at), truth in truths.items():
        assert told[of][at]["low"] <= truth <= told[of][at]["high"]
    np.testing.assert_array_equal(
        result.distribution.cvar(range(6), 0.05),
        pr.ReturnDistribution(pr.Tabular(6)).fit(data).cvar(range(6), 0.05),
    )
    assert result.to_dict()["distribution"] == told
    # Nothing else has changed.
    plain = pr.evaluate(data, features="tabular", level=0.999, seed=0)
    assert plain.summary.to_dict() == result.summary.to_dict()
    assert plain.distribution is None
    assert "distribution" not in plain.to_dict()


@pytest.mark.slow
def test_a_mixture_has_tails_too(chain):
    result = pr.evaluate(chain.sample(0, 300, seed=2), quantiles=[0.05], seed=0)
    value = result.notes["distribution"]["quantiles"]["0.05"]
    assert value["low"] <= chain.distribution(0).quantile(0.05) <= value["high"]


def test_bad_arguments_are_named(data):
    for q in ([0.0], [1.5], ["x"]):
        with pytest.raises(InvalidInputError, match="quantiles must be in") as caught:
            pr.evaluate(data, features="tabular", quantiles=q)
        assert caught.value.argument == "quantiles"
    with pytest.raises(InvalidInputError, match="loss_below must be"):
        pr.evaluate(data, features="tabular", loss_below=np.inf)
    with pytest.raises(InvalidInputError, match="got a target"):
        pr.evaluate(data, target=np.ones((6, 1)), loss_below=0)


def test_the_command_line_shows_and_writes_them(data, tmp_path, capsys):
    write_npz(data, tmp_path / "walk.npz")
    call = ["evaluate", str(tmp_path / "walk.npz"), "--features", "tabular", "--out", str(tmp_path / "out")]
    assert run([*call, "--quantiles", "0.05,0.5", "--loss-below", "-20", "--seed", "0"]) == 0
    output = capsys.readouterr().out
    for line in ("5.0% quantile", "mean of the worst 5.0%", "chance of a return below -20"):
        assert line in output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The distribution of the return" in page
    assert page.count("<img alt=") == 2
    assert (tmp_path / "out" / "map_cvar.png").stat().st_size > 5000
    assert (tmp_path / "out" / "distribution.png").stat().st_size > 5000
    numbers = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(numbers["distribution"]["quantiles"]) == {"0.05", "0.5"}
    # The folder has no distribution, and its report says what was found all the same.
    again = pr.Evaluation.load(tmp_path / "out")
    again.report(tmp_path / "again.html")
    page = (tmp_path / "again.html").read_text()
    assert "mean of the worst 5.0%" in page
    assert run([*call, "--quantiles", "0.05,x"]) == 2
    assert "--quantiles" in capsys.readouterr().err
