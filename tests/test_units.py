"""Rewards in other units: a power of two changes the exponent of every answer, and no other bit."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.output import plain
from policyrisk.errors import InvalidInputError
from policyrisk.returns import RecordedReturns

pytestmark = pytest.mark.filterwarnings("ignore::policyrisk.errors.PolicyRiskWarning")

X = np.random.default_rng(0).uniform(0, 1, (5, 2))
POWER = {"mean": 1, "second_moment": 2, "variance": 2, "std": 1, "sharpe": 0}
EXPONENTS = [-332, -60, 60, 332]  # 1e-100, 1e-18, 1e18 and 1e100
LINE, CURVE = pr.Fourier(1, [0, 0], [1, 1]), pr.Fourier(2, [0, 0], [1, 1])
Answer = dict[str, tuple[Any, int]]  # numbers, and the power of the unit that they are in


@cache
def columns() -> tuple[Any, ...]:
    """250 episodes of a noisy walk in a square, some of them cut off."""
    rng = np.random.default_rng(3)
    states, rewards, lengths, terminated = [], [], [], []
    for _ in range(250):
        x, length = rng.uniform(0, 1, 2), min(int(rng.geometric(0.25)), 12)
        for _ in range(length):
            states.append(x)
            rewards.append(rng.normal() * (1 + x[0]))
            x = np.clip(x + 0.2 * rng.normal(size=2), 0, 1)
        states.append(x)
        lengths.append(length)
        terminated.append(length < 12)
    actions = rng.integers(0, 2, len(rewards))
    return np.array(states), np.array(rewards), lengths, np.array(terminated), actions


def log(k: int, actions: bool = False) -> pr.Trajectories:
    states, rewards, lengths, terminated, taken = columns()
    beside = {"actions": taken, "propensities": np.full(len(taken), 0.5)} if actions else {}
    return pr.Trajectories(states, np.ldexp(rewards, k), lengths, terminated, **beside)


def target(x):
    return np.tile([0.7, 0.3], (len(x), 1))


def estimates(found: Any) -> Answer:
    numbers = {name: [e.value, e.standard_error, e.low, e.high] for name, e in found.quantities().items()}
    return {name: (each, POWER[name]) for name, each in numbers.items()}


def named(name: str, answer: Answer) -> Answer:
    return {f"{name} {key}": each for key, each in answer.items()}


def tails_of(summary: Any) -> Answer:
    moments = {of: getattr(summary, of) for of in ("mean", "variance", "std")}
    both = {**moments, "quantile": summary.quantiles[0.05], "cvar": summary.cvar[0.05]}
    return {
        f"tails {of}": ([each.value, each.standard_error, each.low, each.high], POWER.get(of, 1))
        for of, each in both.items()
    }


def recorded(k: int) -> Answer:
    return tails_of(RecordedReturns(np.ldexp(np.random.default_rng(1).normal(size=50), k)).summary([0.05]))


def risk_at(risk: pr.RiskFunction, x: Any = X) -> Answer:
    found: Answer = {}
    for of, power in POWER.items():
        found[of] = getattr(risk, of)(x), power
        found[f"{of} interval"] = risk.interval(x, of), power
        found[f"{of} error"] = risk.standard_error(x, of), power
    return found


def summary_of(summary: Any) -> Answer:
    found = estimates(summary) | named("sample", estimates(summary.sample))
    if summary.model is not None:
        found |= named("model", estimates(summary.model))
        for of in ("mean", "variance"):
            gap = summary.gap(of)
            found[f"gap of {of}"] = [gap.value, gap.low, gap.high], POWER[of]
    return found


def fitted(**settings: Any):
    def answer(k: int) -> Answer:
        risk = pr.LSTD(CURVE, lam=0.7, **settings).fit(log(k), bootstrap=200, seed=0)
        found = risk_at(risk) | summary_of(risk.summary()) | named("starts", summary_of(risk.summary(X)))
        found["band"] = risk.band(X, of="variance"), 2
        found["bootstrap"] = risk.interval(X, of="std", level=0.9, method="bootstrap"), 1
        found["bounds"] = [risk.cvar_bound(X, 0.1)], 1
        found["bounded"] = risk.probability_bound(X, below=-(2.0 ** (k + 1))), 0
        score, check = risk.score(log(k)), pr.specification_test(risk, log(k), seed=0)
        found |= {"mse": ([score.mse.value, score.mse.high], 2), "calibration": (score.calibration.high, 0)}
        found |= {"p": (check.p_value, 0), "bias": ([check.bias, check.bias_error, check.std], 1)}
        return found

    return answer


def forest(k: int) -> Answer:
    risk = pr.ReturnForest(trees=4).fit(log(k), bootstrap=50, seed=0)
    return risk_at(risk) | summary_of(risk.summary())


def doubly_robust(k: int) -> Answer:
    found = pr.LSTDQ(LINE, target, 2).doubly_robust(log(k, actions=True), seed=0)
    return estimates(found) | named("weighted", estimates(found.weighted))


def mixed(k: int) -> Answer:
    fits = [pr.LSTD(phi, variance="direct").fit(log(k), bootstrap=50, seed=0) for phi in (LINE, CURVE)]
    return risk_at(pr.RiskFunction.mixture(fits, [0.5, 0.5], [0.3, 0.7]))


def evaluated(**settings: Any):
    def answer(k: int) -> Answer:
        result = pr.evaluate(log(k, "target" in settings), seed=1, **settings)
        found = risk_at(result.risk) | summary_of(result.summary)
        found["advice"] = [(each.severity, each.title) for each in result.advice], 0
        found["visited"] = result.at_visited[0], 2
        if result.distribution is not None:
            found["quantile"] = result.distribution.quantile(X, 0.05), 1
            found["cvar"] = result.distribution.interval(X, of="cvar", q=0.05), 1
            found |= tails_of(result.distribution.summary(X, [0.05]))
        return found

    return answer


def chain(k: int) -> Answer:
    rng = np.random.default_rng(1)
    P, r = rng.dirichlet(np.ones(6), 5)[:, :5], rng.normal(size=5)
    found: Answer = {}
    for name, rewards in {"real": r, "whole": np.array([-1.0, -2.0, -1.0, -3.0, -1.0])}.items():
        known = pr.MarkovChain(P, np.ldexp(rewards, k))
        exact = pr.LSTD(pr.Tabular(5), lam=0.3, nonnegative_at=[0, 1]).fit_exact(known, 0)
        d = known.distribution(0)
        found |= {
            f"{name} {of}": ([getattr(known, of)(), getattr(exact, of)(range(5))], POWER[of])
            for of in ("mean", "second_moment", "variance", "std")
        }
        found |= {
            f"{name} q": ([*d.quantile([0.1, 0.5]), d.cvar(0.1), d.mean, d.error], 1),
            f"{name} v": (d.variance, 2),
            f"{name} shape": ([d.skewness, d.kurtosis, d.cdf(-(2.0**k))], 0),
            f"{name} tails": ([known.quantile(0.1), known.cvar(0.1)], 1),
        }
    return found


def compared(k: int) -> Answer:
    data = log(k)
    risks = {"a": pr.LSTD(LINE).fit(data[:120]), "b": pr.LSTD(LINE).fit(data[120:])}
    found: Answer = {}
    judged = {
        pr.criteria.Sharpe(): 0,
        pr.criteria.MeanMinusStd(1.0): 1,
        pr.criteria.VarianceMeanAtLeast(-(2.0 ** (k + 4))): 2,
        pr.criteria.MeanVarianceAtMost(2.0 ** (2 * k + 8)): 1,
    }
    for criterion, power in judged.items():
        comparison = pr.compare(risks, criterion=criterion, at=X, seed=0)
        between, at = comparison.significance, comparison.at
        found[f"{criterion!r} order"] = [ranked.name for ranked in comparison.ranking], 0
        found |= {
            f"{type(criterion)} p": ([between.p_value, between.probability, *at.p_value], 0),
            f"{type(criterion)} difference": ([between.difference.low, between.difference.high], power),
            f"{type(criterion)} at": ([at.difference, *at.band.T], power),
        }
        found.pop(f"{criterion!r} order")
    return found


def gated(k: int) -> Answer:
    returns = [np.ldexp(np.random.default_rng(seed).exponential(1, 60), k) for seed in (0, 1)]
    found: Answer = {}
    for criterion, power in {
        "cvar:0.1": 1,
        "quantile:0.1": 1,
        "mean": 1,
        "sharpe": 0,
        "mean-std:1": 1,
    }.items():
        whole = pr.gate(*returns, criterion, np.ldexp(0.1, power * k), seed=0).whole
        d = whole.difference
        found[criterion] = [whole.new, whole.baseline, d.value, d.standard_error, d.low, d.high], power
        found[f"{criterion} p"] = [whole.p_passed, whole.p_worse], 0
    return found


def monitored(k: int) -> Answer:
    monitor = pr.ReturnMonitor(*np.ldexp([-64.0, 64.0], k), returns=log(k).returns())
    values = [*monitor.mean, *monitor.quantile(0.1), *monitor.cvar(0.1)]
    return {"values": (values, 1), "chance": ([*monitor.probability(below=np.ldexp(-1.0, k))], 0)}


def validated(k: int) -> Answer:
    """The Dawid–Sebastiani score has a logarithm, whose bits are others."""
    found = pr.cross_validate({"line": pr.LSTD(LINE), "curve": pr.LSTD(CURVE)}, log(k), folds=3, seed=0)
    answer: Answer = {}
    for each in found.ranking:
        for name, power in (("mse", 2), ("calibration", 0)):
            score = getattr(each.score, name)
            answer[f"{each.name} {name}"] = [score.value, score.standard_error], power
    return answer


ANSWERS = {
    "second moments": fitted(),
    "direct": fitted(variance="direct"),
    "constraint": fitted(nonnegative_at="visited"),
    "forest": forest,
    "mixed": mixed,
    "doubly robust": doubly_robust,
    "chain": chain,
    "compared": compared,
    "gated": gated,
    "monitored": monitored,
    "validated": validated,
    "recorded": recorded,
    "spelled": evaluated(features="poly:1"),
    "mixture": evaluated(quantiles=[0.05]),
    "tails": evaluated(features="poly:1", quantiles=[0.05]),
    "clusters": evaluated(features="poly:1", quantiles=[0.05], cluster=np.arange(250) // 5),
    "target": evaluated(target=target),
    "target tails": evaluated(target=target, features="poly:1", quantiles=[0.1]),
    "target spelled": evaluated(target=target, features="poly:1"),
}
ONCE = cache(lambda name: ANSWERS[name](0))
SLOW = {"mixture", "target"}


@pytest.mark.parametrize(
    ("name", "k"), [(name, k) for name in ANSWERS for k in EXPONENTS if name not in SLOW or abs(k) > 100]
)
def test_a_power_of_two_changes_the_exponent_alone(name, k):
    found, before = ANSWERS[name](k), ONCE(name)
    assert found.keys() == before.keys()
    for key, (value, power) in found.items():
        expected = before[key][0]
        if power:
            expected = np.ldexp(np.asarray(expected, dtype=np.float64), power * k)
        np.testing.assert_array_equal(value, expected, err_msg=key)


def test_an_evaluation_of_huge_rewards_is_written_and_read(tmp_path):
    result, small = (pr.evaluate(log(k), features="poly:1", quantiles=[0.05]) for k in (332, 0))
    result.save(tmp_path / "huge")
    again = pr.Evaluation.load(tmp_path / "huge")
    assert np.array_equal(again.risk.interval(X, of="std"), result.risk.interval(X, of="std"))
    assert again.summary.std.high == result.summary.std.high == np.ldexp(small.summary.std.high, 332)
    result.report(tmp_path / "report.html")
    told = json.loads(json.dumps(plain(result.to_dict()), allow_nan=False))
    assert told["std"]["high"] == result.summary.std.high


@pytest.mark.parametrize("size", [1e125, 1e200, 1e-125, 1e-200])
def test_beyond_that_rewards_are_refused(size):
    states, rewards, lengths, terminated, taken = columns()
    data = pr.Trajectories(states, rewards * size, lengths, terminated, actions=taken)
    calls = {
        "LSTD": lambda: pr.LSTD(LINE).fit(data),
        "LSTDQ": lambda: pr.LSTDQ(LINE, target, 2).fit(data),
        "forest": lambda: pr.ReturnForest(trees=4).fit(data),
        "evaluate": lambda: pr.evaluate(data),
        "chain": lambda: pr.MarkovChain([[0.5]], [size]).distribution(),
        "gate": lambda: pr.gate(data.returns(), data.returns(), "mean"),
    }
    for call in calls.values():
        with pytest.raises(InvalidInputError, match=r"rewards must.*(scale|huge rewards)"):
            call()


def test_members_of_a_mixture_have_one_unit():
    fits = [pr.LSTD(LINE, variance="direct").fit(log(k), bootstrap=50, seed=0) for k in (0, 60)]
    with pytest.raises(InvalidInputError, match="fit all to the same data"):
        pr.RiskFunction.mixture(fits, [0.5, 0.5])
