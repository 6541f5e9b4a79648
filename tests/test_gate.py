"""The gate: error rates on chains whose CVaR is known, exit codes, groups, clusters, what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import policyrisk as pr
from policyrisk import criteria
from policyrisk.cli import run
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.returns import RecordedReturns
from policyrisk.returns.start_distribution import Clusters
from policyrisk.selection.margin import Sample, own_estimate
from policyrisk.selection.significance import exchanged_moments, exchanged_tails
from policyrisk.testing import assert_not_riskier

DATA = Path(__file__).parent / "data"
OLD, NEW = str(DATA / "gate_old.csv"), str(DATA / "gate_new.csv")


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr("policyrisk.selection.significance.MOST", 299)
    monkeypatch.setattr("policyrisk.selection.significance.FEWEST", 299)


def decisions(new, baseline, episodes, margin, repeats, criterion="cvar:0.1"):
    """How often each decision is made on fresh episodes of two chains."""
    returns = [
        chain.sample(0, repeats * episodes, seed=k).returns().reshape(repeats, episodes)
        for k, chain in enumerate((new, baseline))
    ]
    made = [pr.gate(*pair, criterion, margin).decision for pair in zip(*returns, strict=True)]
    return {each: np.mean([one == each for one in made]) for each in ("passed", "worse", "undecided")}


def apart(new, baseline, q=0.1):
    """By how much the new chain's CVaR is below the baseline's, exactly."""
    return baseline.cvar(q)[0] - new.cvar(q)[0]


def test_a_policy_that_is_worse_by_exactly_the_margin_gets_either_verdict_in_at_most_5_percent(few_draws):
    new, baseline = (pr.domains.walk(n=6, p=p) for p in (0.6, 0.75))
    found = decisions(new, baseline, 120, apart(new, baseline), repeats=150)
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)
    assert max(found["passed"], found["worse"]) <= limit


def test_a_clear_difference_is_seen(few_draws):
    new, baseline = (pr.domains.walk(n=6, p=p) for p in (0.55, 0.75))
    assert decisions(new, baseline, 120, 0.0, repeats=20)["worse"] >= 0.9
    assert decisions(baseline, new, 120, 0.0, repeats=20)["passed"] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("q", [0.05, 0.1])
@pytest.mark.parametrize("p", [(0.7, 0.7), (0.6, 0.7), (0.7, 0.6)])
def test_size_on_pairs_of_chains(p, q, few_draws):
    new, baseline = (pr.domains.walk(n=10, p=each) for each in p)
    margin = max(apart(new, baseline, q), 0.0)
    exact = apart(new, baseline, q) >= 0
    found = decisions(new, baseline, 200, margin, repeats=1000, criterion=f"cvar:{q}")
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)
    assert found["worse"] <= limit
    if exact:
        assert found["passed"] <= limit


def test_the_number_of_episodes_that_would_decide(few_draws):
    """With so many the power is 80 %; with 1.5 times as many more, with 1/1.5 less."""
    rng = np.random.default_rng(0)
    new, baseline = rng.normal(0, 1, 100), rng.normal(0, 1, 100)
    found = pr.gate(new, baseline + 0.1, "mean", margin=0.02)
    assert found.decision == "undecided"
    distance = found.whole.difference + 0.02
    needed, _ = found.whole.needed
    powers = []
    for episodes in (round(needed / 1.5), round(needed * 1.5)):
        z = abs(distance) / math.sqrt(2 / episodes)
        powers.append(0.5 * math.erfc((1.645 - z) / math.sqrt(2)))
    assert powers[0] < 0.8 < powers[1]
    equal, _ = found.whole.needed_if_equal
    assert 1 / 1.5 < equal / (2 * (1.645 + 0.842) ** 2 / 0.02**2) < 1.5


@pytest.mark.slow
def test_the_number_of_episodes_of_tails_is_right_within_a_factor_of_one_and_a_half(few_draws):
    """Two equal chains and a margin: what a pilot of 200 episodes says is needed for 80 %."""
    chain = pr.domains.walk(n=6, p=0.7)
    margin = 3.0
    said = []
    for k in range(20):
        pair = [chain.sample(0, 200, seed=100 * k + i).returns() for i in range(2)]
        needed = pr.gate(*pair, "cvar:0.1", margin).whole.needed_if_equal
        said += [] if needed is None else [needed[0]]
    episodes = round(float(np.median(said)))
    powers = [
        decisions(chain, chain, round(episodes * f), margin, repeats=100)["passed"] for f in (1 / 1.5, 1.5)
    ]
    assert powers[0] < 0.8 < powers[1]


@pytest.mark.parametrize("criterion", [criteria.Sharpe(), criteria.MeanMinusStd(2.0)], ids=str)
def test_clusters_of_moments_are_their_influences_summed(criterion):
    rng = np.random.default_rng(1)
    first, second = (np.column_stack([rng.exponential(2, n), rng.random(n)]) for n in (24, 18))
    clusters = Clusters.of(24, np.arange(24) // 3), Clusters.of(18, np.arange(18) // 2)
    found = exchanged_moments(first, second, criterion, None, clusters)
    squares, values = 0.0, []
    for x, of in ((first, clusters[0]), (second, clusters[1])):
        d = x[:, 0] - x[:, 0].mean()
        m, v = x[:, 0].mean(), (d**2).sum() / (len(x) - 1) + x[:, 1].mean()
        value, by_mean, by_variance = criterion.slopes(m, v)
        i = by_mean * d + by_variance * (d**2 + x[:, 1] - (d**2 + x[:, 1]).mean())
        sums = [i[of.codes == g].sum() for g in range(of.count)]
        squares += of.count / (of.count - 1) * np.square(sums).sum() / len(x) ** 2
        squares += 2 * by_variance**2 * (d**2).mean() ** 2 / (len(x) * (len(x) - 1))
        values.append(value)
    assert found.lead == pytest.approx(values[0] - values[1])
    assert found.error == pytest.approx(math.sqrt(squares))


def test_clusters_of_tails_are_their_influences_summed():
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=40), rng.normal(size=30)
    clusters = Clusters.of(40, np.arange(40) // 4), Clusters.of(30, np.arange(30) // 3)
    samples = zip((first, second), clusters, strict=True)
    pair = [RecordedReturns(x, clusters=of.codes) for x, of in samples]
    found = exchanged_tails(*pair, criteria.CVaR(0.25), 0.95, None)
    squares = 0.0
    for x, of in ((first, clusters[0]), (second, clusters[1])):
        short = np.maximum(np.sort(x)[math.ceil(len(x) * 0.25) - 1] - x, 0) / 0.25
        sums = np.bincount(of.codes, short - short.mean())
        squares += of.count / (of.count - 1) * np.square(sums).sum() / len(x) ** 2
    assert found.lead == pytest.approx(pair[0].cvar(0.25) - pair[1].cvar(0.25))
    assert found.error == pytest.approx(math.sqrt(squares))
    # Of the quantile: the returns at the ranks Kq ± t s, with s by how many of a cluster are not above it.
    found, q, squares = exchanged_tails(*pair, criteria.Quantile(0.25), 0.95, None), 0.25, 0.0
    for x, of in ((first, clusters[0]), (second, clusters[1])):
        rising, t = np.sort(x), stats.t.ppf(0.975, of.count - 1)
        sums = np.bincount(of.codes, q - (x <= rising[math.ceil(len(x) * q) - 1]))
        half = t * math.sqrt(of.count / (of.count - 1) * np.square(sums).sum())
        low, high = math.floor(len(x) * q - half), math.ceil(len(x) * q + half) + 1
        assert 1 < low < high < len(x)
        squares += ((rising[high - 1] - rising[low - 1]) / (2 * t)) ** 2
    assert found.lead == pytest.approx(pair[0].quantile(q) - pair[1].quantile(q))
    assert found.error == pytest.approx(math.sqrt(squares))


def test_dependent_episodes_need_their_clusters(few_draws):
    """Ten days of 20 episodes that differ by the day: alone they are called different far too often."""
    rng, alone, whole = np.random.default_rng(3), [], []
    days = np.repeat(np.arange(10), 20)
    for _ in range(60):
        new, old = (rng.normal(size=10)[days] + rng.normal(size=200) for _ in range(2))
        alone.append(pr.gate(new, old, "mean").decision == "worse")
        whole.append(pr.gate(new, old, "mean", cluster=(days, days)).decision == "worse")
    assert np.mean(alone) > 0.15
    assert np.mean(whole) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)


def test_intervals_of_one_policy_are_those_of_its_returns():
    x = np.random.default_rng(4).exponential(size=200)
    sample = Sample(np.column_stack([x, np.zeros(200)]))
    recorded = RecordedReturns(x)
    for criterion, expected in (
        (criteria.CVaR(0.2), recorded.cvar(0.2, 0.9)),
        (criteria.spelled("mean"), recorded.estimate("mean", 0.9)),
        (criteria.Quantile(0.2), recorded.quantile(0.2, 0.9)),
    ):
        found = own_estimate(sample, criterion, 0.95)
        assert (found.value, found.low, found.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )


def test_exit_codes_of_the_shipped_logs(tmp_path, capsys):
    kept = tmp_path / "gate.md"
    for arguments, code in (
        ([NEW, OLD, "--criterion", "mean"], 1),
        ([OLD, NEW, "--criterion", "mean"], 0),
        ([NEW, OLD, "--criterion", "mean", "--margin", "2"], 3),
        ([NEW, OLD, "--criterion", "mean", "--margin", "30"], 0),
        ([NEW, OLD, "--criterion", "nothing"], 2),
        ([NEW, str(tmp_path / "missing.csv")], 2),
        ([NEW, OLD, "--by", "nothing"], 2),
        ([NEW], 2),
        ([NEW, OLD, "--margin", "-1"], 2),
        ([NEW, OLD, "--level", "0.4"], 2),
        ([NEW, OLD, "--criterion", "mean:variance<=3"], 2),
    ):
        assert run(["gate", *arguments, "--markdown", str(kept)]) == code, arguments
    capsys.readouterr()
    assert run(["gate", NEW, OLD, "--by", "region", "--criterion", "mean", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["decision"] == "worse"
    assert [(each["name"], each["decision"]) for each in told["groups"]] == [
        ("north", "worse"),
        ("south", "undecided"),
    ]
    assert run(["gate", NEW, OLD, "--by", "region", "--cluster", "day", "--criterion", "mean"]) in (1, 3)
    assert "north" in capsys.readouterr().out


def test_markdown_is_a_table_and_names_cannot_break_it(tmp_path):
    rng = np.random.default_rng(5)
    x, groups = rng.normal(size=60), np.array(["a|b", "<b>c"] * 30)
    text = pr.gate(x, x, "mean", margin=1.0, by=(groups, groups)).markdown()
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert lines[0] == "### ✅ passed: new against baseline"
    assert len(rows) == 5
    assert all(line.replace("\\|", "").count("|") == 9 for line in rows)
    assert "<b>" not in text.replace("\\<", "")


def test_evaluations_folders_summaries_and_logs_agree(tmp_path):
    made = {}
    for k, p in enumerate((0.6, 0.75)):
        data = pr.domains.walk(n=6, p=p).sample(0, 300, seed=k)
        made[p] = pr.evaluate(data, features="tabular", quantiles=[0.1], seed=0, name=f"p{p}")
        made[p].save(tmp_path / str(p))
        text = json.dumps(made[p].to_dict() | {"level": 0.95}, default=float)
        (tmp_path / f"{p}.json").write_text(text.replace("NaN", "null"))
        made[p] = (data, made[p])
    log = pr.gate(made[0.6][0], made[0.75][0], "cvar:0.1")
    own = pr.gate(made[0.6][1], tmp_path / "0.75", "cvar:0.1")
    assert own.whole.difference.low == pytest.approx(log.whole.difference.low, rel=1e-9)
    assert own.names == ("p0.6", "0.75")
    for criterion in ("cvar:0.1", "sharpe"):
        summary = pr.gate(tmp_path / "0.6.json", tmp_path / "0.75.json", criterion)
        folder = pr.gate(tmp_path / "0.6", tmp_path / "0.75.json", criterion)
        assert summary.decision == folder.decision == pr.gate(made[0.6][1], made[0.75][1], criterion).decision
        assert summary.whole.difference.value == pytest.approx(folder.whole.difference.value)
    cut = pr.domains.walk(n=6, p=0.75).sample(0, 300, seed=1, max_steps=10)
    judged = pr.evaluate(cut, features="tabular", quantiles=[0.1], seed=0)
    assert pr.gate(made[0.6][1], judged, "cvar:0.1").decision == "worse"  # by the models
    assert pr.gate(made[0.6][1], judged, "mean").decision == "worse"  # by completed returns
    with pytest.raises(InvalidInputError, match="cut off"):
        pr.gate(cut, cut, "mean")


def test_regions_of_the_baseline():
    rng = np.random.default_rng(9)
    x = [rng.random((400, 1)), rng.random((400, 1))]
    logs = []
    for k, starts in enumerate(x):
        rewards = rng.normal(size=400) - 2.0 * (k == 0) * (starts[:, 0] > 0.5)
        states = np.repeat(starts, 2, axis=0)
        logs.append(pr.Trajectories(states, rewards, np.ones(400, int), np.ones(400, bool)))
    new, old = (pr.evaluate(each, features="poly:1", names=["x"], seed=0) for each in logs)
    found = pr.gate(new, old, "mean", by="regions")
    assert found.decision == "worse"
    by_region = {each.name: each.decision for each in found.groups}
    worse = [name for name, each in by_region.items() if each == "worse"]
    assert len(by_region) == 4
    assert len(worse) == 2
    with pytest.raises(InvalidInputError, match="evaluations"):
        pr.gate(*logs, "mean", by="regions")


def test_assertions_for_pytest():
    rng = np.random.default_rng(7)
    good, bad = rng.normal(1, 1, 300), rng.normal(0, 1, 300)
    assert assert_not_riskier(good, bad, "mean").exit_code == 0
    with pytest.raises(AssertionError, match="worse: mean"):
        assert_not_riskier(bad, good, "mean")
    assert assert_not_riskier(good, good.copy(), "mean").decision == "undecided"
    with pytest.raises(AssertionError, match="undecided"):
        assert_not_riskier(good, good.copy(), "mean", decided=True)


def test_what_cannot_be_decided_or_is_refused():
    x = np.arange(10.0)
    assert "fewer than 4" in pr.gate(x[:3], x, "mean").whole.reason
    assert pr.gate(np.ones(20), np.ones(20), "mean").decision == "undecided"
    many = np.random.default_rng(8).normal(size=(2, 6000))
    assert pr.gate(many[0] + 1, many[1], "cvar:0.05").decision == "passed"
    for wrong in ({"by": (x, x[:5])}, {"cluster": "day"}, {"by": "regions"}, {"discount": 0.0}):
        with pytest.raises(InvalidInputError):
            pr.gate(x, x, "mean", **wrong)
    masked = np.ma.array(np.arange(10) % 2, mask=x == 3)  # whose number was used
    for wrong in (masked, [np.nan, *x[1:]], [[1], [1, 2]], 3):
        for name in ("by", "cluster"):
            with pytest.raises(InvalidInputError, match="by and cluster must be"):
                pr.gate(x, x, "mean", **{name: (np.arange(10) % 2, wrong)})
    with pytest.raises(InvalidInputError, match="returns must have shape"):
        pr.gate(np.array(3.0), x, "mean")
    with pytest.raises(InvalidInputError, match="at most 20"):
        pr.gate(np.arange(60.0), np.arange(60.0), "mean", by=(np.arange(60), np.arange(60)))
    data = pr.domains.walk(n=3, p=0.7).sample(0, 50, seed=0)
    made = [pr.evaluate(data, gamma, features="tabular", seed=0) for gamma in (1.0, 0.9)]
    with pytest.raises(MismatchError, match="discount"):
        pr.gate(*made, "mean")
