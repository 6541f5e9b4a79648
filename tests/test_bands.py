"""Bands over many states: their coverage of all states together, and states riskier than the median one."""

from __future__ import annotations

import numpy as np
import pytest

import policyrisk as pr
from policyrisk.risk.bands import pointwise_level
from policyrisk.risk.draws import DRAWS

N = 6
STATES = np.arange(float(N))[:, None]


def fit(seed: int, episodes: int = 1000, bootstrap: int = 0) -> pr.RiskFunction:
    data = pr.domains.walk(n=N, p=0.7).sample(0, episodes=episodes, seed=seed)
    return pr.LSTD(pr.Tabular(N), variance="direct").fit(data, bootstrap=bootstrap, seed=seed)


def test_normal_replicates_have_the_covariance() -> None:
    bars = fit(1).error_bars
    drawn = bars.replicated(seed=3)
    assert drawn.replicates.shape == (DRAWS, 2 * N)
    sigma = np.block([[bars.mean, bars.cross], [bars.cross.T, bars.second]])
    error = np.sqrt(np.diag(sigma))
    u = drawn.replicates / error
    z = (u[:, :, None] * u[:, None] - sigma / np.outer(error, error)).mean(axis=0) * np.sqrt(DRAWS)
    z /= (u[:, :, None] * u[:, None]).std(axis=0)
    assert np.abs(z).max() < 4.5  # 144 of them
    same = drawn.replicated(seed=4)
    assert same is drawn


def test_a_band_reaches_as_far_as_the_largest_deviation() -> None:
    """Against the quantile of the maximum, state by state, with dense arrays."""
    risk = fit(1, bootstrap=999)
    (part,) = risk.parts(STATES)
    R = np.asarray(risk.error_bars.replicates, dtype=float)
    D = R[:, N:].T / np.sqrt((R[:, N:].T ** 2).mean(axis=1, keepdims=True))
    c = np.sort(np.abs(D).max(axis=0))[int(np.ceil(0.9 * 998))]
    from scipy.stats import norm

    found = pointwise_level([part], "variance", 0.9, risk.error_bars)
    assert found == pytest.approx(2 * norm.cdf(c) - 1)
    assert 0.9 < found < 1 - 0.1 / N + 0.02  # Bonferroni's, and some skewness
    band = risk.band(STATES, of="variance", level=0.9)
    np.testing.assert_allclose(band, risk.interval(STATES, of="variance", level=found))
    one = risk.band(STATES[:1], of="mean", level=0.9, seed=0)
    np.testing.assert_allclose(one, risk.interval(STATES[:1], of="mean", level=0.9), rtol=0.02)


def test_unvisited_states_have_no_band_and_change_no_other() -> None:
    data = pr.domains.walk(n=N, p=0.7).sample(0, episodes=500, seed=1)
    risk = pr.LSTD(pr.Tabular(N + 2)).fit(data)
    band = risk.band(np.arange(N + 1), of="mean", seed=0)
    assert np.isnan(band[-1]).all()
    np.testing.assert_allclose(band[:-1], risk.band(STATES, of="mean", seed=0))
    assert not risk.riskier(np.arange(N + 1), seed=0)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("bootstrap", [0, 500])
def test_coverage_of_all_states_together(bootstrap: int) -> None:
    chain, R = pr.domains.walk(n=N, p=0.7), 500
    inside = {"mean": 0, "std": 0}
    for seed in range(R):
        risk = fit(seed, episodes=1500, bootstrap=bootstrap)
        for of in inside:
            low, high = risk.band(STATES, of=of, seed=seed).T
            truth = getattr(chain, of)()
            inside[of] += bool(((low < truth) & (truth < high)).all())
    error = np.sqrt(0.95 * 0.05 / R)
    for of, count in inside.items():
        assert abs(count / R - 0.95) < 0.02 + 2 * error, of


def test_riskier_states_are_found_and_no_others() -> None:
    """With equal variances everywhere nothing is riskier: at most a share of 5 % of the data say so."""
    rng, R, n, K = np.random.default_rng(0), 200, 8, 800
    false = 0
    for _ in range(R):
        place = rng.integers(0, n, K)
        states = np.repeat(place, 2)[:, None].astype(float)
        data = pr.Trajectories(states, rng.normal(size=K), np.ones(K, dtype=int), np.ones(K, dtype=bool))
        false += bool(pr.LSTD(pr.Tabular(n), variance="direct").fit(data).riskier(np.arange(n), seed=0).any())
    assert false / R < 0.05 + 3 * np.sqrt(0.05 * 0.95 / R)
    assert fit(3, episodes=3000).riskier(STATES, seed=0).tolist() == [True] * 3 + [False] * 3
