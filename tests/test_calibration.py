"""Do intervals cover what they say? Replications of whole experiments, the share of intervals that hold.

Coverage is averaged over the states. Its own standard error is taken from the spread over replications, whose
averages over states are independent of each other.
"""

import numpy as np
import pytest

import policyrisk as pr

QUANTITIES = ("mean", "second_moment", "variance", "std", "sharpe")


def limits(risk, x):
    return {of: getattr(risk, of)(x) for of in QUANTITIES}


def projected(variance):
    """A chain with too few features: the intervals are about LSTD's limit, not about the truth."""
    chain = pr.domains.walk(10, 0.7)
    features = [pr.Polynomial(degree, low=[0], high=[9]) for degree in (1, 2)]
    lstd = pr.LSTD(*features, lam=0.9, variance=variance)
    x = np.arange(8)  # the variance's limit by M − J² is negative further on
    return lstd, lambda seed: chain.sample(0, 1000, seed=seed), x, limits(lstd.fit_exact(chain, 0), x)


def discounted_and_cut_off(variance):
    """A table bootstraps rightly, so that its limit is the truth although most episodes are cut off."""
    chain = pr.domains.walk(6, 0.7, discount=0.95)
    start = np.full(6, 1 / 6)
    lstd = pr.LSTD(pr.Tabular(6), lam=0.5, discount=0.95, variance=variance)
    x = np.arange(6)
    J, V = chain.mean(), chain.variance()
    truth = dict(zip(QUANTITIES, (J, V + J**2, V, np.sqrt(V), J / np.sqrt(V)), strict=True))
    return lstd, lambda seed: chain.sample(start, 1000, seed=seed, max_steps=7), x, truth


def tiles(variance):
    chain = pr.domains.walk(30, 0.7)
    start = np.full(30, 1 / 30)
    lstd = pr.LSTD(pr.TileCoding(low=[-0.5], high=[29.5], bins=[10]), lam=0.9, variance=variance)
    x = np.arange(1, 30, 3)
    return lstd, lambda seed: chain.sample(start, 2000, seed=seed), x, limits(lstd.fit_exact(chain, start), x)


def coverage(case, replications, level):
    """Average coverage over states and its standard error, for each quantity."""
    lstd, sample, x, truth = case
    held = {of: np.empty(replications) for of in QUANTITIES}
    for seed in range(replications):
        risk = lstd.fit(sample(seed))
        for of in QUANTITIES:
            low, high = risk.interval(x, of=of, level=level).T
            held[of][seed] = np.mean((low <= truth[of]) & (truth[of] <= high))
    return {of: (h.mean(), h.std() / np.sqrt(replications)) for of, h in held.items()}


CASES = {"projected": projected, "discounted and cut off": discounted_and_cut_off, "tiles": tiles}


@pytest.mark.parametrize(
    ("case", "variance"),
    [("projected", "direct"), ("discounted and cut off", "second-moment"), ("tiles", "second-moment")],
)
def test_coverage_in_short(case, variance):
    for of, (share, error) in coverage(CASES[case](variance), replications=60, level=0.9).items():
        assert abs(share - 0.9) < 0.02 + 3.5 * error, (of, share, error)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("variance", ["second-moment", "direct"])
@pytest.mark.parametrize("case", CASES)
def test_coverage_is_within_two_points(case, variance, level):
    for of, (share, _) in coverage(CASES[case](variance), replications=1000, level=level).items():
        assert abs(share - level) < 0.02, (of, share)
