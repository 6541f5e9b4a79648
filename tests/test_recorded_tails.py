"""Quantiles, CVaR and probabilities of recorded returns against closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

import policyrisk as pr
from policyrisk.criteria import CVaR, Quantile
from policyrisk.returns import RecordedReturns


def test_ranks_by_hand():
    """Bin(10, 1/2) is at most 0, 1, 2 with 1, 11, 56 of 1024, Bin(4, 1/2) at most 0, 1 with 1, 5 of 16."""
    ten = RecordedReturns(np.arange(10.0, 0.0, -1.0))
    assert ten.ranks(0.5, 0.95) == (2, 9)  # 11/1024 < 0.025 ≤ 56/1024
    assert ten.ranks(0.5, 0.99) == (1, 10)  # 1/1024 < 0.005 ≤ 11/1024
    assert ten.ranks(0.5, 0.999) == (0, 11)  # 0.0005 ≤ 1/1024: beyond all
    estimate = ten.quantile(0.5, 0.95)
    assert (estimate.value, estimate.low, estimate.high) == (5.0, 2.0, 9.0)
    assert RecordedReturns(np.arange(4.0)).ranks(0.5, 0.5) == (1, 4)  # 1/16 < 4/16 ≤ 5/16
    assert ten.least_p(0.5) == 2 / 1024


def test_values_by_hand():
    four = RecordedReturns(np.array([7.0, 1.0, 3.0, 5.0]))
    assert [four.quantile(q).value for q in (0.1, 0.25, 0.26, 0.75, 1.0)] == [1.0, 1.0, 3.0, 5.0, 7.0]
    assert four.cvar(0.5).value == 2.0
    assert four.cvar(0.375).value == pytest.approx((1.0 + 3.0 / 2) / 1.5)
    assert four.cvar(1.0).value == 4.0
    assert four.below(3.0).value == 0.25  # that on the line is not below it
    assert four.below(1.0).low == 0.0
    assert four.below(1.0).high == pytest.approx(1 - 0.025 ** (1 / 4))
    assert four.below(8.0).low == pytest.approx(0.025 ** (1 / 4))
    assert four.summary([0.5]).std.value == pytest.approx(math.sqrt(5.0))
    assert four.cvar(0.25).value == 1.0  # of one return: nobody knows how far off
    assert math.isnan(four.cvar(0.25).standard_error)
    assert math.isnan(four.cvar(0.25).low)
    same = RecordedReturns(np.full(5, 2.0)).summary([0.5], below=[2.0])
    assert (same.cvar[0.5].low, same.cvar[0.5].high, same.std.high) == (2.0, 2.0, 0.0)


def test_few_returns_know_of_their_skewness():
    """The worst tenth of 100 normal returns: 97% of 95% intervals hold the truth; without skewness 92%."""
    rng, tail = np.random.default_rng(1), -stats.norm.pdf(stats.norm.ppf(0.1)) / 0.1
    found = [RecordedReturns(rng.standard_normal(100)).cvar(0.1) for _ in range(500)]
    assert sum(each.low <= tail <= each.high for each in found) >= 0.95 * 500


@pytest.mark.parametrize("law", [stats.norm(3.0, 2.0), stats.expon()], ids=["normal", "exponential"])
def test_coverage(law):
    """Of 95% intervals over 1,000 samples of 400 returns: quantile and chance exact, CVaR by influences."""
    R, n, q = 1000, 400, 0.1
    line = law.ppf(q)
    tail = law.expect(lambda x: x, ub=line) / q
    rng = np.random.default_rng(1)
    held = np.zeros(3)
    for _ in range(R):
        found = RecordedReturns(law.rvs(n, random_state=rng))
        each = found.quantile(q), found.cvar(q), found.below(line)
        held += [e.low <= truth <= e.high for e, truth in zip(each, (line, tail, q), strict=True)]
    # That B ≤ ξ for at least l and fewer than u of n, and that the share's interval holds q, exactly.
    low, high = found.ranks(q)
    exact = stats.binom.cdf(high - 1, n, q) - stats.binom.cdf(low - 1, n, q)
    assert exact >= 0.95
    z = (held / R - [exact, 0.95, exact]) / math.sqrt(0.05 * 0.95 / R)
    assert abs(z[0]) < 3.5
    assert -3.5 < z[1] < 3.5
    assert z[2] > -3.5
    assert held[2] / R < 0.98


def test_few_returns_are_not_sure_of_a_difference_of_tails():
    a, b = RecordedReturns(np.arange(20.0)), RecordedReturns(100 + np.arange(20.0))
    pair = pr.compare({"a": a, "b": b}, criterion=Quantile(0.05)).significance
    assert pair.best == "b"
    assert pair.p_value == pytest.approx(2 * 0.95**20, rel=2e-3)
    assert pr.compare({"a": a, "b": b}, criterion=Quantile(0.5)).significance.p_value < 1e-4
    assert pr.compare({"a": a, "b": b}, criterion=CVaR(0.5)).significance.p_value < 1e-4
