"""Policies compared by quantiles and the mean of the worst returns: intervals of differences, and errors."""

import json

import numpy as np
import pytest
from scipy import stats

import policyrisk as pr
from policyrisk import criteria
from policyrisk.errors import InvalidInputError, MismatchError, NoDistributionError


def normal(mean, std, episodes, seed):
    """One step with the reward N(mean, std²)."""
    rewards = np.random.default_rng(seed).normal(mean, std, episodes)
    states = np.tile([[0], [1]], (episodes, 1))
    return pr.Trajectories(states, rewards, np.ones(episodes, dtype=int), np.ones(episodes, dtype=bool))


def coin(p, episodes, seed):
    """One step with the reward 1 with probability p, else 0."""
    data = normal(0.0, 1.0, episodes, seed)
    rewards = (np.random.default_rng(seed).random(episodes) < p).astype(float)
    return pr.Trajectories(data.states, rewards, data.lengths, data.terminated)


def fitted(data, **how):
    return pr.ReturnDistribution(pr.Tabular(1), **how).fit(data)


def truth(criterion, mean, std):
    z = stats.norm.ppf(criterion.q)
    tail = z if isinstance(criterion, criteria.Quantile) else -stats.norm.pdf(z) / criterion.q
    return mean + std * tail


@pytest.mark.parametrize(
    "criterion", [criteria.Quantile(0.05), criteria.CVaR(0.05), criteria.CVaR(0.7)], ids=str
)
def test_the_difference_is_near_the_truth_and_within_its_interval(criterion):
    # The bold one has the better mean and the worse tail.
    policies = {"bold": fitted(normal(1.0, 2.0, 4000, 1)), "calm": fitted(normal(0.5, 0.5, 2000, 2))}
    comparison = pr.compare(policies, [0], criterion, level=0.999)
    pair = comparison.significance
    exact = truth(criterion, 0.5, 0.5) - truth(criterion, 1.0, 2.0)
    assert (pair.best, pair.second) == (("calm", "bold") if exact > 0 else ("bold", "calm"))
    assert pair.difference.low < abs(exact) < pair.difference.high
    assert pair.difference.value == pytest.approx(abs(exact), abs=4 * pair.difference.standard_error)
    assert pair.difference.standard_error < 0.25 * abs(exact)
    assert pair.p_value < 1e-3
    for ranked in comparison.ranking:
        value = getattr(policies[ranked.name], criterion_name(criterion))([0], criterion.q)[0]
        assert ranked.assessment.value == pytest.approx(value)


def criterion_name(criterion):
    return "quantile" if isinstance(criterion, criteria.Quantile) else "cvar"


def test_the_mean_and_the_tail_rank_differently():
    data = {"bold": normal(1.0, 2.0, 1000, 1), "calm": normal(0.5, 0.5, 1000, 2)}
    by_mean = pr.compare(
        {name: pr.LSTD(pr.Tabular(1)).fit(each) for name, each in data.items()},
        [0],
        criteria.MeanMinusStd(0.0),
    )
    by_tail = pr.compare({name: fitted(each) for name, each in data.items()}, [0], criteria.CVaR(0.05))
    assert (by_mean.best, by_tail.best) == ("bold", "calm")


@pytest.mark.slow
@pytest.mark.parametrize("criterion", [criteria.Quantile(0.1), criteria.CVaR(0.1)], ids=str)
def test_coverage_of_the_difference_and_the_size_of_its_test(criterion):
    """Two policies of the same tail, from 500 and 1,500 episodes: p is uniform, and intervals hold 0."""
    R, p = 200, []
    for seed in range(R):
        policies = {
            "a": fitted(normal(1.0, 2.0, 500, 2 * seed)),
            "b": fitted(normal(1.0, 2.0, 1500, 2 * seed + 1)),
        }
        pair = pr.compare(policies, [0], criterion).significance
        p.append(pair.p_value)
        assert (pair.p_value < 0.05) == (pair.difference.low > 0)
    assert abs(np.mean(np.array(p) < 0.05) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / R) + 0.01
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_p_is_where_the_interval_of_the_difference_ends_at_0():
    policies = {"a": fitted(normal(1.0, 1.0, 300, 3)), "b": fitted(normal(0.8, 1.0, 300, 4))}
    pair = pr.compare(policies, [0], criteria.CVaR(0.2)).significance
    assert 1e-6 < pair.p_value < 1.0
    at = pr.compare(policies, [0], criteria.CVaR(0.2), level=1 - pair.p_value).significance.difference
    assert abs(at.low) < 0.01 * at.standard_error
    assert pair.probability == pytest.approx(1 - pair.p_value / 2)


def test_quantiles_of_few_values_are_not_surer_than_their_probabilities():
    """Medians of coins are 0 or 1, with errors of 0; how sure they differ is in the probabilities."""
    policies = {"a": fitted(coin(0.57, 400, 1)), "b": fitted(coin(0.40, 400, 2))}
    pair = pr.compare(policies, [0], criteria.Quantile(0.5)).significance
    shares = [policies[name].cdf([0], 0.0)[0] for name in "ab"]
    z = [abs(share - 0.5) / np.sqrt(share * (1 - share) / 400) for share in shares]
    # Either could be on the other side of one half: the nearer one decides.
    assert pair.difference.value == 1.0
    assert pair.p_value == pytest.approx(2 * stats.norm.sf(min(z)), rel=0.15)


def test_without_error_bars_and_alone():
    dist = pr.ReturnDistribution(pr.Tabular(1))
    policies = {
        name: dist.fit(normal(m, 1.0, 200, 5), error_bars=False) for name, m in (("a", 0.0), ("b", 3.0))
    }
    comparison = pr.compare(policies, [0], criteria.Quantile(0.3))
    assert comparison.best == "b"
    assert np.isnan(comparison.significance.probability)
    assert "without error bars" in str(comparison)
    assert pr.compare({"b": policies["b"]}, [0], criteria.Quantile(0.3)).significance is None


def test_texts_and_plain_values():
    policies = {name: fitted(normal(m, 1.0, 200, 6)) for name, m in (("a", 0.0), ("b", 2.0), ("c", 9.0))}
    comparison = pr.compare(policies, [0, 0], criteria.CVaR(0.05))
    text = str(comparison)
    assert text.startswith("mean of the worst 5.0%, the larger the better")
    assert "c leads b by" in text
    assert "as if they had been chosen beforehand" in text
    plain = json.loads(json.dumps(comparison.to_dict()))
    assert plain["ranking"][0]["summary"]["cvar"]["0.05"]["value"] == plain["ranking"][0]["value"]["value"]


def test_what_cannot_be_compared_is_refused_by_name():
    data = normal(0.0, 1.0, 100, 7)
    dist, lstd = fitted(data), pr.LSTD(pr.Tabular(1)).fit(data)
    with pytest.raises(NoDistributionError, match="needs the distribution of the return, got RiskFunction"):
        pr.compare({"a": lstd, "b": dist}, [0], criteria.CVaR(0.05))
    with pytest.raises(NoDistributionError, match="PolicySummary"):
        criteria.Quantile(0.05).assess(lstd.summary([0]))
    with pytest.raises(InvalidInputError, match="must be a RiskFunction"):
        pr.compare({"a": dist}, [0], criteria.Sharpe())
    with pytest.raises(InvalidInputError, match="no starts"):
        pr.compare({"a": dist}, criterion=criteria.Quantile(0.05))
    with pytest.raises(InvalidInputError, match="leave it out"):
        pr.compare({"a": dist}, [0], criteria.Quantile(0.05), at=[0])
    with pytest.raises(MismatchError, match="discount"):
        pr.compare({"a": dist, "b": fitted(data, discount=0.5)}, [0], criteria.CVaR(0.05))
    for make in (criteria.Quantile, criteria.CVaR):
        for q in (0.0, -0.1, 1.5, "x", np.nan):
            with pytest.raises(InvalidInputError, match="q must be in"):
                make(q)
