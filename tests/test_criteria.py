"""The four criteria and the comparison of policies, by hand and by numerical derivative."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import policyrisk as pr
from policyrisk import criteria
from policyrisk.errors import InvalidInputError, MismatchError, NegativeVarianceWarning
from policyrisk.returns import RecordedReturns
from policyrisk.risk import ErrorBars, Provenance, RiskFunction
from policyrisk.risk.summary import Moments
from policyrisk.risk.support import Support
from policyrisk.selection.comparison import compare
from policyrisk.selection.significance import Exchanges, exchanged_moments, exchanged_tails

S = np.array([[0.04, 0.05], [0.05, 0.25]])
ALL = [
    criteria.Sharpe(),
    criteria.MeanMinusStd(1.5),
    criteria.MeanVarianceAtMost(8.0),
    criteria.VarianceMeanAtLeast(2.0),
]
FORMULAS = [
    lambda m, v: m / np.sqrt(v),
    lambda m, v: m - 1.5 * np.sqrt(v),
    lambda m, v: m,
    lambda m, v: v,
]


def moments(m, v, covariance=S, episodes=50):
    return Moments(m, v, covariance, episodes, 0.9)


def policy(m, v, error_m=0.1, error_v=0.2, *, episodes=100, discount=1.0, bars=True):
    """A policy with one state, where J = m and V = v."""
    table = pr.Tabular(1)
    one = np.ones(1)
    behind = Support(one, episodes * one, episodes, None, 1.0)
    error_bars = ErrorBars(
        np.array([0]), np.array([0]), error_m**2 * np.eye(1), np.zeros((1, 1)), error_v**2 * np.eye(1)
    )
    return RiskFunction(
        table, table, m * one, v * one, "direct", behind, behind,
        Provenance("LSTD", 0.9, discount, episodes=episodes, terminated=episodes),
        error_bars if bars else None,
    )  # fmt: skip


@pytest.mark.parametrize(("criterion", "formula"), list(zip(ALL, FORMULAS, strict=True)))
def test_value_and_error_follow_the_formula(criterion, formula):
    m, v, h = 3.0, 6.0, 1e-6
    value = criterion.assess(moments(m, v)).value
    gradient = np.array(
        [(formula(m + h, v) - formula(m - h, v)) / (2 * h), (formula(m, v + h) - formula(m, v - h)) / (2 * h)]
    )
    error = np.sqrt(gradient @ S @ gradient)
    assert value == pytest.approx(formula(m, v))
    assert value.standard_error == pytest.approx(error, rel=1e-6)
    assert value.high - value == pytest.approx(stats.t.ppf(0.95, 49) * error, rel=1e-6)


def test_directions_and_constraints():
    sharpe, penalised, mean, variance = (criterion.assess(moments(3.0, 6.0)) for criterion in ALL)
    assert [a.larger_is_better for a in (sharpe, penalised, mean, variance)] == [True, True, True, False]
    assert [a.constrained for a in (sharpe, penalised, mean, variance)] == [False, False, True, True]
    assert sharpe.probability == penalised.probability == 1.0
    assert mean.feasible
    assert mean.probability == pytest.approx(stats.t.cdf((8.0 - 6.0) / 0.5, 49))
    assert variance.feasible
    assert variance.probability == pytest.approx(stats.t.cdf((3.0 - 2.0) / 0.2, 49))


@pytest.mark.parametrize(
    ("criterion", "m", "v", "violation"),
    [
        (criteria.MeanVarianceAtMost(5.0), 3.0, 6.0, 1.0),
        (criteria.VarianceMeanAtLeast(4.0), 3.0, 6.0, 1.0),
    ],
)
def test_missed_bounds(criterion, m, v, violation):
    judged = criterion.assess(moments(m, v))
    assert not judged.feasible
    assert judged.violation == pytest.approx(violation)
    assert judged.probability < 0.5
    assert "misses the bound by 1" in judged.reason


@pytest.mark.parametrize("criterion", ALL, ids=str)
def test_bounds_that_are_just_met_and_errors_of_nothing(criterion):
    known = criterion.assess(moments(2.0, 8.0, np.zeros((2, 2))))
    assert known.feasible
    assert known.probability == 1.0
    unknown = criterion.assess(moments(3.0, 6.0, np.full((2, 2), np.nan)))
    assert np.isnan(unknown.value.standard_error)
    assert unknown.feasible
    assert np.isnan(unknown.probability) == unknown.constrained


@pytest.mark.parametrize("criterion", ALL, ids=str)
def test_a_negative_variance_meets_no_criterion(criterion):
    judged = criterion.assess(moments(100.0, -1.0))
    assert not judged.feasible
    assert judged.reason == "its estimated variance is negative"
    risks = {"broken": policy(100.0, -1.0), "poor": policy(-50.0, 30.0), "good": policy(5.0, 2.0)}
    with pytest.warns(NegativeVarianceWarning):
        comparison = compare(risks, [0], criterion)
    assert [r.name for r in comparison.ranking] == ["good", "poor", "broken"]
    assert "broken is not feasible: its estimated variance is negative" in str(comparison)


def test_zero_variance():
    sure = moments(3.0, 0.0)
    assert criteria.MeanMinusStd(1.5).assess(sure).value == 3.0
    assert not criteria.Sharpe().assess(sure).feasible
    assert criteria.MeanVarianceAtMost(0.0).assess(sure).feasible


RANKED = {
    "Sharpe": (criteria.Sharpe(), ["b", "a", "c"]),  # 2, 1, 0.5
    "MeanMinusStd": (criteria.MeanMinusStd(1.0), ["b", "a", "c"]),  # 1, 0, −4
    "no penalty": (criteria.MeanMinusStd(0.0), ["c", "b", "a"]),  # 4, 2, 1
    "mean": (criteria.MeanVarianceAtMost(1.5), ["b", "a", "c"]),  # 2, 1, then 4 with 64 > 1.5
    "variance": (criteria.VarianceMeanAtLeast(1.5), ["b", "c", "a"]),  # 1, 64, then 1 < 1.5
    "none": (criteria.MeanVarianceAtMost(0.5), ["b", "a", "c"]),  # by how far: 0.5, 0.5, 63.5; then by value
}


@pytest.mark.parametrize("case", RANKED)
def test_ranking(case):
    criterion, expected = RANKED[case]
    risks = {"a": policy(1.0, 1.0), "b": policy(2.0, 1.0), "c": policy(4.0, 64.0)}
    comparison = compare(risks, [0], criterion)
    assert [r.name for r in comparison.ranking] == expected
    assert comparison.best == expected[0]


def test_the_best_two_are_compared_as_independent():
    risks = {"a": policy(1.0, 1.0, 0.3), "b": policy(2.0, 1.0, 0.4), "c": policy(0.0, 1.0)}
    pair = compare(risks, [0], criteria.MeanMinusStd(0.0), level=0.9).significance
    assert (pair.best, pair.second) == ("b", "a")
    assert pair.difference == pytest.approx(1.0)
    assert pair.difference.standard_error == pytest.approx(0.5)
    dof = 0.5**4 / (0.3**4 / 99 + 0.4**4 / 99)  # Welch's
    assert pair.difference.high == pytest.approx(1.0 + 0.5 * stats.t.ppf(0.95, dof))
    assert pair.probability == pytest.approx(stats.t.cdf(2.0, dof))
    assert pair.p_value == pytest.approx(2 * stats.t.sf(2.0, dof))


def test_where_smaller_is_better_the_lead_is_positive():
    risks = {"a": policy(3.0, 5.0, error_v=0.3), "b": policy(3.0, 4.0, error_v=0.4)}
    pair = compare(risks, [0], criteria.VarianceMeanAtLeast(0.0)).significance
    assert pair.best == "b"
    assert pair.difference == pytest.approx(1.0)
    assert pair.probability == pytest.approx(stats.t.cdf(2.0, 0.5**4 / (0.3**4 / 99 + 0.4**4 / 99)))


def test_probability_of_being_better_is_that_of_repetition():
    # For two policies of the same true value the leader's probability of being better is uniform on (½, 1).
    rng = np.random.default_rng(0)
    called = []
    for a, b in rng.normal(2.0, 0.1, (300, 2)):
        pair = compare(
            {"a": policy(a, 1.0), "b": policy(b, 1.0)}, [0], criteria.MeanMinusStd(0.0)
        ).significance
        called.append(2 * pair.probability - 1)
    assert stats.kstest(called, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("criterion", ALL, ids=str)
def test_derivatives_are_those_of_differences(criterion):
    J, V, h = -3.0, 6.0, 1e-6

    def value(J, V):
        return criterion.assess(moments(J, V)).value.value

    found, by_J, by_V = criterion.slopes(J, V)
    expected = [
        (value(J + h, V) - value(J - h, V)) / (2 * h),
        (value(J, V + h) - value(J, V - h)) / (2 * h),
    ]
    assert found == value(J, V)
    assert [by_J, by_V] == pytest.approx(expected, abs=1e-8)


def walk_fits(seed, episodes=600, ps=(0.7, 0.7), bootstrap=300, states=6):
    for k, p in enumerate(ps):
        data = pr.domains.walk(n=6, p=p).sample(0, episodes=episodes, seed=2 * seed + k)
        yield pr.LSTD(pr.Tabular(states), variance="direct").fit(data, bootstrap=bootstrap, seed=seed)


@pytest.mark.slow
def test_at_many_states_one_policy_differs_nowhere_from_itself():
    """In 5 % of the cases somewhere; with intervals for each state alone it would be in 14 %."""
    R, false, alone = 400, 0, 0
    for seed in range(R):
        a, b = walk_fits(seed)
        at = compare({"a": a, "b": b}, [0], criteria.MeanMinusStd(0.0), at=range(6)).at
        false += bool((at.better | at.worse).any())
        single = [a.standard_error([x], "mean") ** 2 + b.standard_error([x], "mean") ** 2 for x in range(6)]
        alone += bool((np.abs(at.difference) > 1.96 * np.sqrt(np.ravel(single))).any())
    assert abs(false / R - 0.05) < 3 * np.sqrt(0.05 * 0.95 / R)
    assert alone / R > 0.09


@pytest.mark.parametrize("bootstrap", [0, 500])
def test_at_many_states_differences_are_found(bootstrap):
    a, b = walk_fits(1, 2000, ps=(0.6, 0.8), bootstrap=bootstrap)
    comparison = compare(
        {"slow": a, "quick": b}, [0], criteria.VarianceMeanAtLeast(-1e3), at=range(6), seed=3
    )
    at = comparison.at
    np.testing.assert_allclose(at.difference, a.variance(range(6)) - b.variance(range(6)))
    assert at.better.all()
    assert not at.worse.any()
    assert (at.p_value < 0.01).all()
    expected = "of 6 states, with confidence 0.95 for all together: quick is better at 6, slow at 0"
    assert expected in str(comparison)
    assert comparison.to_dict()["at"]["p_value"] == at.p_value.tolist()
    alone = compare({"slow": a, "quick": b}, [0], criteria.VarianceMeanAtLeast(-1e3), at=[3], seed=3).at
    error = np.sqrt(sum(risk.standard_error([3], of="variance") ** 2 for risk in (a, b)))
    half = (alone.band[0, 1] - alone.band[0, 0]) / 2
    assert half == pytest.approx(1.96 * error[0], rel=0.1)  # one state: an interval as ever
    wide = at.band[3, 1] - at.band[3, 0]
    assert 2 * half < wide < 2 * half * 2.64 / 1.96 * 1.1  # Bonferroni's at six


def test_at_many_states_without_values_or_error_bars():
    a, b = walk_fits(1, 100, states=10)
    at = compare({"a": a, "b": b}, [0], criteria.MeanMinusStd(1.0), at=[0, 9]).at
    assert np.isfinite(at.band[0]).all()
    assert np.isnan([at.difference[1], *at.band[1], at.p_value[1]]).all()
    exact = [pr.LSTD(pr.Tabular(6)).fit_exact(pr.domains.walk(n=6, p=p), start=0) for p in (0.6, 0.8)]
    at = compare(dict(zip("ab", exact, strict=True)), [0], criteria.MeanMinusStd(1.0), at=range(6)).at
    assert (at.difference > 0).all()
    assert np.isnan(at.band).all()
    assert np.isnan(at.p_value).all()
    assert not (at.better | at.worse).any()


def test_without_starts_policies_are_compared_as_samples_are():
    """Where nothing is cut off, the means' comparison is Welch's statistic of the returns, by exchange."""
    data = [pr.domains.walk(n=6, p=p).sample(0, K, seed=1) for p, K in ((0.7, 80), (0.72, 300))]
    risks = {str(k): pr.LSTD(pr.Polynomial(0, [0], [5])).fit(each) for k, each in enumerate(data)}
    pair = compare(risks, criterion=criteria.MeanMinusStd(0.0)).significance
    welch = stats.ttest_ind(*(each.returns() for each in data), equal_var=False)
    assert abs(pair.difference) / pair.difference.standard_error == pytest.approx(abs(welch.statistic))
    # Degrees of freedom know of the returns' kurtosis, and are never more than Welch's.
    assert 30 < pair.difference.dof < welch.df + 1e-9

    def size(a, b, axis):
        return np.abs(stats.ttest_ind(a, b, axis=axis, equal_var=False).statistic)

    returns, how = [each.returns() for each in data], {"vectorized": True, "alternative": "greater"}
    truth = stats.permutation_test(
        returns, size, n_resamples=4999, rng=np.random.default_rng(1), **how
    ).pvalue
    assert abs(pair.p_value - truth) < 4 * np.sqrt(2 * truth * (1 - truth) / 4999)
    assert (pair.difference.low > 0) == (pair.p_value < 0.05)
    assert "by its returns from its own starts" in str(compare(risks))


@pytest.mark.slow
@pytest.mark.parametrize("criterion", [criteria.MeanMinusStd(1.0), criteria.Sharpe()], ids=["std", "sharpe"])
@pytest.mark.parametrize("most", [None, 40], ids=["terminated", "cut off"])
def test_two_evaluations_of_one_policy_differ_by_randomness_alone(criterion, most):
    chain, lstd, called = pr.domains.walk(n=10, p=0.6), pr.LSTD(pr.Tabular(10)), 0
    for seed in range(400):
        risks = {
            name: lstd.fit(chain.sample(0, 200, seed=2 * seed + k, max_steps=most))
            for k, name in enumerate("ab")
        }
        called += compare(risks, criterion=criterion).significance.p_value < 0.05
    assert abs(called - 20) / np.sqrt(400 * 0.05 * 0.95) < 3


def returned(returns):
    """An estimate of one-step episodes with these returns."""
    ones = np.ones(len(returns), dtype=int)
    data = pr.Trajectories(np.tile([0, 1], len(returns)), returns, ones, ones.astype(bool))
    return replace(
        ONE_STEP, completed=ONE_STEP.completed_sums(data), starts=ONE_STEP.start_sums(data.starts())
    )


ONE_STEP = pr.LSTD(pr.Tabular(1)).fit_exact(pr.MarkovChain([[0.0]], [0.0]), start=0)
RETURNS = {
    "lognormal": lambda rng, n: rng.lognormal(0.0, 1.0, n),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "normal": lambda rng, n: rng.normal(1.0, 1.0, n),
}


def called_different(criterion, kinds, episodes, repetitions, seed=0):
    """The share of comparisons with p below 5 %."""
    rng, called = np.random.default_rng(seed), 0
    for k in range(repetitions):
        sides = zip("ab", kinds, episodes, strict=True)
        risks = {name: returned(RETURNS[kind](rng, n)) for name, kind, n in sides}
        pair = compare(risks, criterion=criterion, seed=k).significance
        assert (pair.p_value <= 0.05 + 1e-12) == (pair.difference.low > 0)
        called += pair.p_value <= 0.05 + 1e-12
    return called / repetitions


@pytest.mark.parametrize("criterion", ["sharpe", "cvar:0.2"])
def test_equal_policies_are_rarely_called_different(criterion):
    share = called_different(criterion, ("lognormal", "lognormal"), (50, 50), 80)
    assert abs(share - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 80)


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["sharpe", "mean-std:1", "quantile:0.2", "cvar:0.2"])
@pytest.mark.parametrize("episodes", [(50, 50), (50, 500), (300, 300)], ids=str)
@pytest.mark.parametrize("kinds", [("lognormal", "lognormal"), ("exponential", "normal")], ids=str)
def test_size_of_comparisons(criterion, episodes, kinds):
    """At most 7 % where returns are alike, or their Sharpe ratios are (one is the ratio of both)."""
    if kinds[0] != kinds[1] and criterion not in ("sharpe", "mean-std:1"):
        return
    limit = 0.07 if kinds[0] == kinds[1] or episodes[0] == episodes[1] else 0.1
    assert called_different(criterion, kinds, episodes, 600) <= limit + 2 * np.sqrt(0.07 * 0.93 / 600)


@pytest.mark.slow
def test_power_of_comparisons():
    lstd, called = pr.LSTD(pr.Tabular(30)), 0
    chains = {name: pr.domains.walk(n=30, p=p) for name, p in (("a", 0.70), ("b", 0.72))}
    for seed in range(100):
        risks = {
            name: lstd.fit(chain.sample(0, 300, seed=2 * seed + k))
            for k, (name, chain) in enumerate(chains.items())
        }
        called += compare(risks, criterion="mean").significance.p_value < 0.05
    assert called / 100 >= 0.5


def test_exchanged_statistics_are_those_of_the_exchanged_samples(monkeypatch):
    """Every draw against loops: the criterion and its standard error, computed anew."""
    monkeypatch.setattr("policyrisk.selection.significance.MOST", 300)
    monkeypatch.setattr("policyrisk.selection.significance.FEWEST", 100)
    rng = np.random.default_rng(3)
    first, second = (np.column_stack([rng.exponential(2.0, n) - 5, rng.random(n) ** 4]) for n in (14, 9))
    both, drawn = np.concatenate([first, second]), []

    class Recorded:
        """Random numbers that keep what they permute."""

        def permuted(self, array, axis):
            drawn.append(rng.permuted(array, axis=axis))
            return drawn[-1]

    def t_of(which, criterion):
        """T by the definition."""
        values, squares = [], 0.0
        for some in (both[which], both[~which]):
            n, d = len(some), some[:, 0] - some[:, 0].mean()
            spread = d**2 + some[:, 1]
            m, v = some[:, 0].mean(), (d**2).sum() / (n - 1) + some[:, 1].mean()
            value, by_mean, by_variance = criterion.slopes(m, v)
            moved = by_mean * d + by_variance * (spread - spread.mean())
            own = 2 * (d**2).mean() ** 2 * by_variance**2
            values.append(value)
            squares += (np.sum(moved**2) + own) / (n * (n - 1))
        return (values[0] - values[1]) / np.sqrt(squares)

    for criterion in (criteria.Sharpe(), criteria.MeanMinusStd(2.0), criteria.MeanMinusVariance(0.3)):
        drawn.clear()
        found = exchanged_moments(first, second, criterion, Recorded()).sizes
        expected = np.sort([abs(t_of(which, criterion)) for which in np.concatenate(drawn)])
        np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("criterion", [criteria.CVaR(0.25), criteria.Quantile(0.25)], ids=str)
def test_exchanged_tails_are_those_of_the_exchanged_samples(criterion, monkeypatch):
    monkeypatch.setattr("policyrisk.selection.significance.MOST", 300)
    monkeypatch.setattr("policyrisk.selection.significance.FEWEST", 100)
    rng = np.random.default_rng(4)
    first, second = (RecordedReturns(rng.normal(size=n)) for n in (30, 21))
    both, drawn = np.concatenate([first.ordered, second.ordered]), []

    class Recorded:
        """Random numbers that keep what they permute."""

        def permuted(self, array, axis):
            drawn.append(rng.permuted(array, axis=axis))
            return drawn[-1]

    found = exchanged_tails(first, second, criterion, 0.9, Recorded()).sizes
    expected = []
    for which in np.concatenate(drawn):
        a, b = (
            criterion.assess(RecordedReturns(both[some]).summary([criterion.q], 0.9)).value
            for some in (which, ~which)
        )
        expected.append(abs(a - b) / np.hypot(a.standard_error, b.standard_error))
    np.testing.assert_allclose(found, np.sort(expected), rtol=1e-8)


def test_small_p_values_go_on_beyond_the_draws():
    rng = np.random.default_rng(5)
    exchanges = Exchanges(np.sort(np.abs(rng.standard_normal(4999))))
    for size in (0.5, 1.0, 1.96, 3.0, 4.5):
        assert exchanges.p_value(size) == pytest.approx(2 * stats.norm.sf(size), rel=0.8)
    for level in (0.5, 0.9, 0.99, 0.9999):
        c = exchanges.reach(level)
        assert exchanges.p_value(c * 1.0001) <= (1 - level) * (1 + 1e-6)
        assert exchanges.p_value(c * 0.99) > 1 - level


def test_evaluations_and_spellings_are_compared():
    data = {name: pr.domains.walk(n=6, p=p).sample(0, 200, seed=1) for name, p in (("a", 0.6), ("b", 0.8))}
    made = {name: pr.evaluate(each, features="tabular", seed=0) for name, each in data.items()}
    risks = {name: each.risk for name, each in made.items()}
    for spelling, criterion in {
        "mean": criteria.MeanMinusStd(0.0),
        "sharpe": criteria.Sharpe(),
        "mean-std:1": criteria.MeanMinusStd(1.0),
        "variance:mean>=-1e3": criteria.VarianceMeanAtLeast(-1e3),
    }.items():
        assert criteria.spelled(spelling) == criterion
        found = compare(made, criterion=spelling)
        assert found.trust == dict.fromkeys("ab", "good: no problems found")
        assert "trust in a: good: no problems found" in str(found)
        assert str(replace(found, trust={})) == str(compare(risks, criterion=criterion))
    for spelling in ("quantile:0.1", "cvar:0.1"):
        returns = {name: RecordedReturns(each.returns()) for name, each in data.items()}
        found = replace(compare(made, criterion=spelling), trust={})
        assert str(found) == str(compare(returns, criterion=spelling))
        assert str(compare(risks, criterion=spelling)) == str(compare(returns, criterion=spelling))


def test_what_has_withdrawn_its_intervals_is_not_ranked():
    chain = pr.domains.walk(n=5, p=0.7)
    sound = pr.LSTD(pr.Tabular(5)).fit(chain.sample(0, episodes=300, seed=1))
    silent = replace(sound.times(4.0), error_bars=sound.bars.widened(np.nan))
    assert "error bars: withdrawn" in str(silent)
    some = compare({"a": silent, "b": sound, "c": sound.times(0.5)}, [0], "mean")
    assert [(each.name, each.withdrawn) for each in some.ranking] == [("c", False), ("b", False), ("a", True)]
    assert some.best == "c"
    assert not np.isnan(some.significance.p_value)
    assert "a (not ranked)" in str(some)
    assert [each["ranked"] for each in some.to_dict()["ranking"]] == [True, True, False]
    both = compare({"a": silent, "b": silent.times(0.5)}, [0], "mean", at=[0, 1])
    assert both.best is None
    assert both.significance is None
    assert "better with probability" not in str(both)
    assert np.isnan(both.at.band).all()
    assert np.isnan(both.at.p_value).all()


def test_two_estimates_from_one_log_are_compared_within_episodes():
    """What both miss alike is no difference between them."""
    data = pr.domains.walk(n=6, p=0.7).sample(0, 300, seed=1)
    maps = {"a": pr.Tabular(6), "b": pr.Polynomial(3, [0], [5])}
    risks = {
        name: pr.LSTD(phi, variance="direct").fit(data, bootstrap=400, seed=1) for name, phi in maps.items()
    }
    together = compare(risks, [0], "mean").significance.difference
    for seed, name in enumerate(maps):
        risks[name] = pr.LSTD(maps[name], variance="direct").fit(data, bootstrap=400, seed=seed)
    apart = compare(risks, [0], "mean").significance.difference
    assert together.standard_error < 0.3 * apart.standard_error


def test_one_policy_and_infeasible_seconds_have_no_significance():
    assert compare({"a": policy(1.0, 1.0)}, [0]).significance is None
    risks = {"a": policy(1.0, 1.0), "b": policy(2.0, 9.0)}
    comparison = compare(risks, [0], criteria.MeanVarianceAtMost(2.0))
    assert comparison.significance is None
    assert "b is not feasible: it misses the bound by 7" in comparison.notes


def test_one_policy_twice_is_better_than_itself_with_probability_one_half():
    data = pr.domains.walk(4, 0.7).sample(0, episodes=200, seed=0)
    risk = pr.LSTD(pr.Tabular(4)).fit(data, bootstrap=50, seed=0)
    for criterion in ("mean", "sharpe"):
        pair = compare({"a": risk, "b": risk}, criterion=criterion).significance
        assert (pair.difference.standard_error, pair.probability, pair.p_value) == (0.0, 0.5, 1.0)


def test_without_error_bars_there_is_a_ranking_all_the_same():
    risks = {"a": policy(1.0, 1.0, bars=False), "b": policy(2.0, 1.0)}
    comparison = compare(risks, [0])
    assert comparison.best == "b"
    assert np.isnan(comparison.significance.probability)
    assert np.isnan(comparison.significance.p_value)
    assert "without error bars" in str(comparison)


def test_texts_and_plain_values():
    risks = {"a": policy(1.0, 1.0), "b": policy(2.0, 1.0), "c": policy(4.0, 64.0)}
    free = compare(risks, [0], criteria.Sharpe())
    bound = compare(risks, [0], criteria.MeanVarianceAtMost(2.0))
    assert "P(feasible)" not in str(free)
    assert "P(feasible)" in str(bound)
    assert "b leads a by 1" in str(bound)
    assert "as if they had been chosen beforehand" in str(bound)
    plain = json.loads(json.dumps(bound.to_dict()))
    assert plain["ranking"][0]["name"] == "b"
    assert plain["ranking"][0]["value"]["value"] == 2.0
    assert plain["ranking"][2]["feasible"] is False
    assert plain["significance"]["best"] == "b"
    assert compare({"a": policy(-1.0, 1.0)}, [0]).notes[0].startswith("where the mean is negative")


def test_the_default_is_the_sharpe_ratio_over_several_starts():
    chain = pr.MarkovChain([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0])
    risk = pr.LSTD(pr.Tabular(2)).fit_exact(chain, start=0)
    value = compare({"a": risk}, [0, 1]).ranking[0].assessment.value
    M = np.mean([29.0625 + 6.25**2, 26.8125 + 6.75**2])
    assert value == pytest.approx(6.5 / np.sqrt(M - 6.5**2))


BAD = {
    "empty": (lambda: compare({}, [0]), InvalidInputError, "at least one name"),
    "list": (lambda: compare([policy(1.0, 1.0)], [0]), InvalidInputError, "policies must be a dictionary"),
    "estimator": (
        lambda: compare({"a": pr.LSTD(pr.Tabular(1))}, [0]),
        InvalidInputError,
        "must be a RiskFunction or an Evaluation",
    ),
    "class": (
        lambda: compare({"a": policy(1.0, 1.0)}, [0], criteria.Sharpe),
        InvalidInputError,
        "criterion must be one such as",
    ),
    "name": (lambda: compare({"a": policy(1.0, 1.0)}, [0], "sharp"), InvalidInputError, "criterion must be"),
    "number": (lambda: criteria.spelled("mean-std:x"), InvalidInputError, "is not a finite number"),
    "discount": (
        lambda: compare({"a": policy(1.0, 1.0), "b": policy(1.0, 1.0, discount=0.9)}, [0]),
        MismatchError,
        "agree on the discount",
    ),
    "starts": (lambda: compare({"a": policy(1.0, 1.0)}, []), InvalidInputError, "starts must hold"),
    "at": (lambda: compare({"a": policy(1.0, 1.0)}, [0], at=[0]), InvalidInputError, "at needs two policies"),
    "level": (lambda: compare({"a": policy(1.0, 1.0)}, [0], level=2), InvalidInputError, "level must be in"),
    "c < 0": (lambda: criteria.MeanMinusStd(-1.0), InvalidInputError, "c must be in"),
    "c nan": (lambda: criteria.VarianceMeanAtLeast(np.nan), InvalidInputError, "c must be in"),
    "variance < 0": (lambda: criteria.MeanVarianceAtMost(-1.0), InvalidInputError, "largest variance"),
    "text": (lambda: criteria.MeanVarianceAtMost("much"), InvalidInputError, "c must be in"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_to_do(case):
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call()
