"""Quantiles and the chance of a loss in ``evaluate``, from Python and from the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.text import percent
from policyrisk.cli import run
from policyrisk.data import write_npz
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.evaluation import pipeline
from policyrisk.returns import RecordedReturns


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
    for of, returns in ((told["model"], own), (told, data.returns())):
        assert of["quantiles"]["0.05"]["value"] == np.quantile(returns, 0.05, method="inverted_cdf")
        assert of["below"]["-20"]["value"] == pytest.approx((returns < -20).mean())
    truths = {
        ("quantiles", "0.05"): exact.quantile(0.05),
        ("cvar", "0.05"): exact.cvar(0.05),
        ("below", "-20"): exact.cdf(-21),
    }
    for (of, at), truth in truths.items():
        assert told[of][at]["low"] <= truth <= told[of][at]["high"]
        assert told["model"][of][at]["low"] <= truth <= told["model"][of][at]["high"]
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


def test_the_command_line_shows_and_writes_them(data, tmp_path, capsys):
    write_npz(data, tmp_path / "walk.npz")
    call = ["evaluate", str(tmp_path / "walk.npz"), "--features", "tabular", "--out", str(tmp_path / "out")]
    assert run([*call, "--quantiles", "0.05,0.5", "--loss-below", "-20", "--seed", "0"]) == 0
    output = capsys.readouterr().out
    for line in ("5.0% quantile", "mean of the worst 5.0%", "chance of a return below -20"):
        assert line in output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The distribution of the return" in page
    assert "<img" not in page
    assert (tmp_path / "out" / "map_cvar.png").stat().st_size > 5000
    assert (tmp_path / "out" / "distribution.png").stat().st_size > 5000
    numbers = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(numbers["distribution"]["quantiles"]) == {"0.05", "0.5"}
    # The folder keeps the distribution, and its report has the pictures again.
    again = pr.Evaluation.load(tmp_path / "out")
    assert again.distribution.thresholds.size > 10
    again.report(tmp_path / "again.html")
    page = (tmp_path / "again.html").read_text()
    assert "mean of the worst 5.0%" in page
    assert "<img" not in page
    assert run([*call, "--quantiles", "0.05,x"]) == 2
    assert "--quantiles" in capsys.readouterr().err


def walks(folder, p, name="walk", **asked):
    """An evaluation of a walk in a folder of its own."""
    data = pr.domains.walk(6, p=p).sample(0, 400, seed=1)
    pr.evaluate(data, features="tabular", seed=0, name=name, **asked).save(folder / name)
    return folder / name


def test_folders_are_compared_by_their_distributions(tmp_path, capsys):
    slow, fast = (walks(tmp_path, p, f"p{p}", quantiles=[0.05]) for p in (0.6, 0.8))
    data = {f"p{p}": pr.domains.walk(6, p=p).sample(0, 400, seed=1) for p in (0.6, 0.8)}
    returns = {name: RecordedReturns(each.returns()) for name, each in data.items()}
    words = ["compare", str(slow), str(fast), "--out", str(tmp_path / "comparison.png")]
    for by, criterion in {
        "quantile:0.05": pr.criteria.Quantile(0.05),
        "cvar:0.1": pr.criteria.CVaR(0.1),
    }.items():
        assert run([*words, "--criterion", by, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        own = pr.compare(returns, criterion=criterion)
        assert told["ranking"][0]["name"] == own.best == fast.name
        difference = told["significance"]["difference"]
        assert difference["value"] == pytest.approx(own.significance.difference.value)
        assert difference["low"] == pytest.approx(own.significance.difference.low, rel=1e-4)
        assert difference["low"] > 0
        assert told["starts"] == 800
        for ranked in told["ranking"]:
            whole = data[ranked["name"]].returns()
            assert ranked["summary"]["mean"]["value"] == pytest.approx(whole.mean())
            assert ranked["summary"]["variance"]["value"] == pytest.approx(whole.var(ddof=1), rel=5e-3)
    plain = walks(tmp_path, 0.7, "plain")
    assert run([*words[:2], str(plain), *words[3:], "--criterion", "cvar:0.05"]) == 0  # by its own returns
    assert "p0.6" in capsys.readouterr().out
    cut = pr.domains.walk(6, p=0.7).sample(0, 400, seed=1, max_steps=10)
    pr.evaluate(cut, features="tabular", seed=0).save(tmp_path / "cut")
    assert run(["compare", str(tmp_path / "cut"), *words[3:], "--criterion", "cvar:0.05"]) == 1
    assert (
        "got Evaluation policy, which has mean and variance alone; evaluate with quantiles"
        in capsys.readouterr().err
    )
    assert run([*words, "--criterion", "cvar:2"]) == 2
    assert "--criterion" in capsys.readouterr().err


def test_files_of_two_evaluations_are_not_mixed_up(tmp_path):
    folder, other = (walks(tmp_path, p, f"p{p}", quantiles=[0.05]) for p in (0.6, 0.8))
    kept = folder / "distribution.npz"
    kept.write_bytes((other / "distribution.npz").read_bytes())
    with pytest.raises(MismatchError, match=r"distribution\.npz and survey\.npz"):
        pr.Evaluation.load(folder)
    kept.unlink()
    with pytest.raises(MismatchError, match=r"distribution\.npz and survey\.npz"):
        pr.Evaluation.load(folder)
    # Saved without quantiles, the folder has none.
    walks(tmp_path, 0.8, other.name)
    assert not (other / "distribution.npz").exists()
    assert pr.Evaluation.load(other).distribution is None


def told_of(data, words, features="tabular", **asked):
    """The finding whose title holds the words, or None."""
    result = pr.evaluate(data, features=features, seed=0, **asked)
    return next((one for one in result.advice if words in one.title), None)


@pytest.mark.parametrize(("episodes", "severity"), [(1000, None), (300, "note"), (120, "warning")])
def test_few_episodes_behind_the_tail_are_said(episodes, severity):
    data = pr.domains.walk(6).sample(0, episodes, seed=1)
    for q, side in ((0.05, "worst"), (0.95, "best")):
        advice = told_of(data, "Few episodes stand behind the", quantiles=[0.5, q])
        assert (advice and advice.severity) == severity
        if advice:
            assert f"{side} 5.0% are {episodes * 0.05:g}" in advice.seen
            assert "Record 400 episodes" in advice.remedy


def losses(episodes):
    """One step with the reward −Exp(1)."""
    rewards = -np.random.default_rng(0).exponential(size=episodes)
    states = np.tile([[0], [1]], (episodes, 1))
    return pr.Trajectories(states, rewards, np.ones(episodes, dtype=int), np.ones(episodes, dtype=bool))


def test_coarse_thresholds_and_their_ends_are_said(monkeypatch):
    data, fits = losses(20_000), pipeline.ReturnDistribution
    assert told_of(data, "thresholds", quantiles=[0.005, 0.05, 0.5, 0.95]) is None
    theta = [-4.0, -3.5, -2.0, -1.0, -0.5, -0.1]  # as one who saw other returns might choose them
    monkeypatch.setattr(pipeline, "ReturnDistribution", lambda phi, **how: fits(phi, thresholds=theta, **how))
    advice = told_of(data, "thresholds are coarse", quantiles=[0.05, 0.5])
    assert "50.0% quantile changes so much that it may be off by 0.037" in advice.seen
    assert "thresholds=30" in advice.remedy
    advice = told_of(data, "at the end of the thresholds", quantiles=[0.01, 0.5, 0.99])
    assert "1.0%, 99.0% quantile" in advice.seen
    coarse = fits(pr.Tabular(1), thresholds=theta).fit(data)
    fine = fits(pr.Tabular(1)).fit(data)
    notes = pr.compare({"coarse": coarse, "fine": fine}, [0], pr.criteria.Quantile(0.05)).notes
    assert [note.split(":")[0] for note in notes if "thresholds" in note] == ["coarse"]


def test_features_that_miss_the_starts_are_said():
    data = pr.domains.walk(12).sample(0, 2000, seed=1)
    assert told_of(data, "disagrees with the returns", quantiles=[0.05]) is None
    advice = told_of(data, "The distribution disagrees", features="tiles:2", quantiles=[0.05])
    assert advice.severity == "serious"
    assert "tiles:2" in advice.seen


def test_how_much_was_made_monotone_is_said():
    data = pr.domains.walk(12).sample(0, 500, seed=1)
    assert told_of(data, "made monotone", quantiles=[0.1]) is None
    advice = told_of(data, "made monotone", features="poly:3", quantiles=[0.1])
    assert advice.severity == "note"
    assert "poly:3" in advice.seen


def cut(data, steps):
    """The same episodes, of which those that are longer are cut off after so many steps."""
    parts = []
    for k in range(len(data)):
        one = data[k]
        T = min(one.transitions, steps)
        ended = np.array([T == one.transitions])
        parts.append(pr.Trajectories(one.states[: T + 1], one.rewards[:T], np.array([T]), ended))
    return pr.Trajectories.concatenate(parts)


def test_what_coarse_features_miss_is_beside_the_answer_and_not_in_it():
    data = pr.domains.walk(12).sample(0, 2000, seed=1)
    result = pr.evaluate(data, features="tiles:2", quantiles=[0.05], seed=0)
    told, worst = result.notes["distribution"], np.sort(data.returns())[:100]
    assert told["quantiles"]["0.05"]["value"] == worst[-1]
    assert told["cvar"]["0.05"]["value"] == pytest.approx(worst.mean())
    assert abs(told["model"]["cvar"]["0.05"]["value"] - worst.mean()) > 1.0
    assert "trust: good: no problems found over the starts; at other states poor: " in str(result)
    assert "quantiles:" not in str(result)
    # A folder of an older version has the model's alone.
    older = {**result.notes, "distribution": {"features": "tiles:2", **told["model"]}}
    said = str(replace(result, notes=older))
    assert "quantiles: by the model (tiles:2)\n" in said
    assert "trust: poor: " in said


def test_where_episodes_were_cut_off_the_answer_is_the_models(tmp_path, capsys):
    data = cut(pr.domains.walk(12).sample(0, 500, seed=1), 40)
    share = 1 - data.terminated.mean()
    assert 0.01 < share < 0.9
    result = pr.evaluate(data, features="tiles:2", quantiles=[0.05], seed=0, name="cut")
    told = result.notes["distribution"]
    assert "model" not in told
    assert f"quantiles: by the model (tiles:2), as {percent(share)} of the episodes were cut off" in str(
        result
    )
    trust = str(result).split("trust: ")[1]
    assert trust.startswith("poor: ")
    assert "the distribution disagrees with the returns" in trust
    # Compared by their models, with mean and variance of the completed returns.
    result.save(tmp_path / "cut")
    words = ["compare", str(tmp_path / "cut"), "--criterion", "cvar:0.05", "--json"]
    assert run([*words, "--out", str(tmp_path / "comparison.png")]) == 0
    ranked = json.loads(capsys.readouterr().out)["ranking"][0]
    assert ranked["value"]["value"] == pytest.approx(told["cvar"]["0.05"]["value"])
    for of in ("mean", "variance"):
        assert ranked["summary"][of]["value"] == pytest.approx(float(getattr(result.summary, of)))
        assert ranked["summary"][of]["value"] != pytest.approx(told[of]["value"], rel=1e-3)


def test_of_many_returns_a_sample_is_told():
    result = pr.evaluate(losses(12_000), features="tabular", quantiles=[0.05], seed=0)
    assert "quantiles: of a uniform sample of 10,000 of the 12,000 recorded returns" in str(result)
    value = result.notes["distribution"]["quantiles"]["0.05"]
    assert value["low"] <= np.log(0.05) <= value["high"]
