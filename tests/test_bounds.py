"""Cantelli's bound and the bound on CVaR: never passed by an exact distribution, and met by the worst one."""

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.errors import InvalidInputError, NegativeVarianceWarning
from policyrisk.risk import Provenance, RiskFunction
from policyrisk.risk.support import Support


def one_state(J, V):
    """An estimate at a single state."""
    table, one = pr.Tabular(1), np.ones(1)
    behind = Support(one, one, 1, None, 1.0)
    return RiskFunction(
        table, table, J * one, V * one, "direct", behind, behind, Provenance("LSTD", 1.0, 1.0)
    )


CHAINS = {
    "walk": pr.domains.walk(12, p=0.7),
    "slow walk": pr.domains.walk(5, p=0.3),
    "discounted": pr.MarkovChain([[0.5, 0.3], [0.2, 0.6]], [1.0, -2.0], discount=0.9),
}


@pytest.mark.parametrize("name", CHAINS)
def test_exact_distributions_keep_to_the_bounds(name):
    chain = CHAINS[name]
    risk = pr.LSTD(pr.Tabular(chain.n), discount=chain.discount).fit_exact(chain, start=0)
    exact = chain.distribution(0)
    slack = 1e-9 + exact.error
    for q in (0.01, 0.05, 0.3, 0.8, 1.0):
        bound = risk.cvar_bound([0], q)[0]
        assert bound <= exact.cvar(q) + slack
        assert bound <= exact.quantile(q) + slack or q == 1.0
    for k in (-1.0, 0.0, 0.5, 1.0, 2.0, 4.0):
        z = exact.mean - k * exact.std
        bound = risk.probability_bound([0], below=z)[0]
        assert bound == pytest.approx(1.0 / (1.0 + max(k, 0.0) ** 2))
        assert exact.lower.cdf(z - slack) <= bound + 1e-9


@pytest.mark.parametrize("q", [0.05, 0.4])
def test_no_bound_is_nearer(q):
    """A return of two values meets both: −√((1 − q)/q) with probability q, else √(q/(1 − q))."""
    worst, best = -np.sqrt((1 - q) / q), np.sqrt(q / (1 - q))
    chain = pr.MarkovChain([[0.0, q, 1 - q], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0.0, worst, best])
    risk = pr.LSTD(pr.Tabular(3), variance="direct").fit_exact(chain, start=0)
    assert risk.mean_and_variance([0]) == (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))
    assert risk.cvar_bound([0], q)[0] == pytest.approx(worst)
    assert risk.probability_bound([0], below=worst)[0] == pytest.approx(q)


def test_where_nothing_is_random_or_the_variance_is_negative():
    sure = one_state(3.0, 0.0)
    assert sure.cvar_bound([0], 0.05)[0] == 3.0
    assert [sure.probability_bound([0], below=z)[0] for z in (2.0, 3.0, 4.0)] == [0.0, 1.0, 1.0]
    broken = one_state(3.0, -1.0)
    for bound in (lambda: broken.cvar_bound([0], 0.05), lambda: broken.probability_bound([0], below=5.0)):
        with pytest.warns(NegativeVarianceWarning):
            assert np.isnan(bound()).all()


def test_bad_arguments():
    risk = one_state(3.0, 1.0)
    with pytest.raises(InvalidInputError, match="q must be in"):
        risk.cvar_bound([0], 0.0)
    with pytest.raises(InvalidInputError, match="below must be"):
        risk.probability_bound([0], below=np.nan)
