"""Customers that come at different times and are seen until the log ends: tails with episodes cut off."""

import functools
import json
from fractions import Fraction

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.returns.cut_off import CutOffReturns

PRICES = np.array([3.0, 6.0, 12.0])  # of three plans, a month


def customers(n: int, age: float, seed: int) -> pr.Trajectories:
    """n customers of a firm that grows, of about this age when the log ends, at most 60 months; all of
    their life where the age is infinite. A month's value depends on plan and mood, and so does leaving."""
    rng = np.random.default_rng(seed)
    plan, mood = rng.choice(3, n, p=[0.5, 0.3, 0.2]), rng.normal(size=n)
    seen = np.full(n, 10**6) if np.isinf(age) else np.minimum(rng.geometric(1.0 / age, n), 60)
    here, left = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    moods, values, present = [], [], []
    for month in range(1, 10**6):
        moods.append(mood)
        values.append(np.round(PRICES[plan] * np.exp(0.25 * mood + 0.2 * rng.normal(size=n)), 2))
        present.append(here)
        leaves = rng.random(n) < 1.0 / (1.0 + np.exp(3.0 + 0.9 * mood - 0.25 * plan))
        mood = 0.8 * mood + 0.6 * rng.normal(size=n)
        left, here = left | (here & leaves), here & ~leaves & (seen > month)
        if not here.any():
            break
    moods.append(mood)
    months, moods, values = np.sum(present, axis=0), np.array(moods), np.array(values)
    states = [np.column_stack([np.full(m + 1, plan[i]), moods[: m + 1, i]]) for i, m in enumerate(months)]
    rewards = [values[:m, i] for i, m in enumerate(months)]
    return pr.Trajectories(np.concatenate(states), np.concatenate(rewards), months, left)


@functools.cache
def truth() -> np.ndarray:
    return np.concatenate([customers(20_000, np.inf, seed).returns() for seed in range(1000, 1005)])


def redistributed(data: pr.Trajectories, line: float) -> Fraction:
    """P(B < line) by Efron's rule: an episode that is cut off gives its weight to those that go on."""
    told = []
    for k in range(len(data)):
        own = data.rewards[data.offsets[k] : data.offsets[k + 1]].cumsum()
        reached = np.flatnonzero(own >= line)
        ends = bool(reached.size) or bool(data.terminated[k])
        told.append((reached[0] + 1 if reached.size else own.size, ends, not reached.size))
    weight = [Fraction(1, len(told))] * len(told)
    for k in sorted(range(len(told)), key=lambda k: told[k][0]):
        step, ends, _ = told[k]
        if ends:
            continue
        # Those that end with the step have told; those that are cut off with it share what they leave.
        later = [j for j in range(len(told)) if told[j][0] > step]
        for j in later:
            weight[j] += weight[k] / len(later)
        weight[k] = Fraction(0)
    return sum((w for w, (_, ends, below) in zip(weight, told, strict=True) if ends and below), Fraction(0))


@pytest.mark.parametrize("line", [5.0, 20.0, 30.0])
def test_weights_are_those_of_cut_off_episodes_handed_on(line: float):
    data = customers(60, 9, seed=3)
    weighted = CutOffReturns(data).below(line, "weighted")
    assert 0.4 < 1.0 - data.terminated.mean() < 0.8
    assert weighted.value == pytest.approx(float(redistributed(data, line)), rel=1e-9)


def test_the_error_is_that_of_leaving_episodes_out():
    data = customers(80, 9, seed=4)
    returns = CutOffReturns(data)
    without = [CutOffReturns(pr.Trajectories.concatenate([data[:k], data[k + 1 :]])) for k in range(80)]
    values = np.array([each.below(20.0, "weighted").value for each in without])
    jackknife = np.sqrt(79 / 80 * np.square(values - values.mean()).sum())
    assert returns.below(20.0, "weighted").standard_error == pytest.approx(jackknife, rel=0.05)


def test_possible_values_come_from_what_is_known_at_the_cut():
    states = np.zeros((9, 1))
    data = pr.Trajectories(states, [1.0, 5.0, 1.0, 1.0, 9.0], [1, 1, 1, 2], [True, True, False, False])
    ends = [CutOffReturns(data)._share(z, "possible", 0.95)[:2] for z in (0.5, 2.0, 6.0, 20.0)]
    assert ends == [(0.0, 0.0), (0.25, 0.25), (0.5, 0.25), (0.5, 0.5)]
    costs = pr.Trajectories(states, -data.rewards, data.lengths, data.terminated)
    ends = [CutOffReturns(costs)._share(z, "possible", 0.95)[:2] for z in (-20.0, -6.0, 0.5)]
    assert ends == [(0.0, 0.5), (0.25, 0.25), (1.0, 0.0)]
    both = pr.Trajectories(states, [1.0, 5.0, 1.0, -1.0, 9.0], data.lengths, data.terminated)
    assert CutOffReturns(both)._share(2.0, "possible", 0.95)[:2] == (0.25, 0.5)
    # With γ = ½ what follows the last reward of 9 is at most ¼ · 9 · 2 and at least −¼ · 1 · 2.
    halved = CutOffReturns(both, discount=0.5)
    assert [halved._share(z, "possible", 0.95)[1] for z in (2.9, 3.1, 8.1)] == [0.25, 0.5, 0.25]


def test_cut_off_at_one_time_only_what_is_possible_is_told():
    data = customers(300, np.inf, seed=1)
    some = np.repeat(np.arange(300), data.lengths + 1)
    step = np.arange(len(some)) - np.repeat(data.offsets[:-1] + np.arange(300), data.lengths + 1)
    m = np.minimum(data.lengths, 6)
    at = step <= m[some]
    rewards = data.rewards[(np.arange(data.transitions) - np.repeat(data.offsets[:-1], data.lengths)) < 6]
    cut = pr.Trajectories(data.states[at], rewards, m, data.terminated & (data.lengths <= 6))
    returns = CutOffReturns(cut)
    assert not returns.varies
    assert set(returns.summary([0.5], below=[60.0])) == {"possible"}
    median = returns.quantiles([0.5], "possible")[0.5]
    assert median.low <= np.median(data.returns()) < median.high == np.inf


def test_an_evaluation_says_what_cut_off_episodes_leave_without_the_model(tmp_path):
    data = customers(300, 9, seed=5)
    result = pr.evaluate(data, quantiles=[0.5], loss_below=60.0, seed=0, names=["plan", "mood"])
    weighted, possible = result.without_model()["chance of a return below 60"]
    assert possible.low < weighted.low < weighted.value < weighted.high < possible.high
    answer = result.tails()[1]["chance of a return below 60"]
    right = float(np.mean(truth() < 60.0))
    for each in (weighted, possible, answer):
        assert each.low < right < each.high
    assert "60" in str(result)
    assert "possible" in str(result)
    assert "cut off and completed by the model" in result.tails()[0]
    result.save(tmp_path / "result")
    again = pr.Evaluation.load(tmp_path / "result")
    assert str(again.without_model()) == str(result.without_model())
    told = json.loads(json.dumps(result.to_dict()["distribution"]["without_model"]))
    assert told["weighted"]["below"]["60"]["value"] == weighted.value
    result.report(tmp_path / "report.html")
    assert "Without the model" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_model_that_disagrees_with_the_weighted_returns_is_a_finding():
    """The state that decides is not recorded: who is left after long is another kind of customer."""
    rng = np.random.default_rng(7)
    n = 3000
    loyal = rng.random(n) < 0.5
    life = np.where(loyal, rng.geometric(0.02, n), rng.geometric(0.5, n))
    seen = np.minimum(rng.geometric(0.1, n), 120)
    months = np.minimum(life, seen)
    data = pr.Trajectories(np.zeros((months.sum() + n, 1)), np.ones(months.sum()), months, life <= seen)
    result = pr.evaluate(data, features="tabular", quantiles=[0.5], loss_below=20.0, seed=0)
    (found,) = (each for each in result.advice if each.title.startswith("The model and the cut-off"))
    assert found.severity in ("warning", "serious")
    assert "weighted" in found.seen
    weighted, _ = result.without_model()["chance of a return below 20"]
    right = 1.0 - 0.5 * 0.98**19 - 0.5 * 0.5**19
    assert weighted.low < right < weighted.high
    assert abs(result.tails()[1]["chance of a return below 20"].value - right) > 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::policyrisk.errors.GivenUpWarning")  # of single steps in some logs
@pytest.mark.parametrize(("age", "cut"), [(57, 0.2), (21, 0.4), (9, 0.6)])
def test_coverage_of_tails_in_retention_logs(age: float, cut: float):
    returns, share = truth(), []
    median, below = float(np.median(returns)), float(np.mean(returns < 60.0))
    held = {answer: np.zeros(2) for answer in ("weighted", "possible", "model")}
    logs, modelled = 200, 40
    for seed in range(logs):
        data = customers(400, age, seed=10_000 + seed)
        share.append(1.0 - data.terminated.mean())
        alone = CutOffReturns(data)
        for answer in ("weighted", "possible"):
            found = alone.quantiles([0.5], answer)[0.5], alone.below(60.0, answer)
            held[answer] += [e.low <= t <= e.high for e, t in zip(found, (median, below), strict=True)]
        if seed < modelled:
            tails = pr.evaluate(data, quantiles=[0.5], loss_below=60.0, seed=0).tails()[1]
            found = tails["50.0% quantile"], tails["chance of a return below 60"]
            held["model"] += [e.low <= t <= e.high for e, t in zip(found, (median, below), strict=True)]
    assert np.mean(share) == pytest.approx(cut, abs=0.03)
    # 95 % less three standard errors of 200 and of 40 logs.
    assert (held["weighted"] / logs > 0.95 - 3 * np.sqrt(0.95 * 0.05 / logs)).all()
    assert (held["possible"] / logs > 0.95).all()
    assert (held["model"] / modelled > 0.95 - 3 * np.sqrt(0.95 * 0.05 / modelled)).all()
