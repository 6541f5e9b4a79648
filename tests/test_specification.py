"""The test of the features: its sums against loops, its size where features suffice, its power where not."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest

import policyrisk as pr
from policyrisk._core.random import keys, mammen
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.selection.regions import Regions
from policyrisk.selection.specification import SpecificationTest, _test
from policyrisk.selection.specification_sums import SpecificationPass

PHI, PHI_M = pr.Polynomial(1, [0], [5]), pr.Polynomial(2, [0], [5])
PSI = pr.Fourier(2, [0], [5])


def walks(episodes: int, seed: int, cut: int | None = None) -> Trajectories:
    return pr.domains.walk(n=5, p=0.7, discount=0.9).sample(0, episodes=episodes, seed=seed, max_steps=cut)


def loops(data, gamma, w_J, w_M, direct):
    """The four sums of every episode at given weights, from the equations, of shape (K, 4p)."""

    def J(x):
        return float((PHI(x[None]) @ w_J)[0])

    def V(x):
        second = float((PHI_M(x[None]) @ w_M)[0])
        return second if direct else second - J(x) ** 2

    sums = []
    for episode in data:
        T, ended = int(episode.lengths[0]), bool(episode.terminated[0])
        x, r = episode.states.astype(float), episode.rewards
        values_J = [J(x[t]) for t in range(T)] + [0.0 if ended else J(x[T])]
        values_V = [V(x[t]) for t in range(T)] + [0.0 if ended else V(x[T])]
        total = np.zeros((4, PSI.size))
        for t in range(T):
            psi = PSI(x[t : t + 1])[0]
            delta = r[t] + gamma * values_J[t + 1] - values_J[t]
            B = sum(gamma ** (s - t) * r[s] for s in range(t, T)) + gamma ** (T - t) * values_J[T]
            d = B - values_J[t]
            total[0] += psi * delta
            total[1] += psi * (delta**2 + gamma**2 * values_V[t + 1] - values_V[t])
            total[2] += psi * d
            total[3] += psi * (d**2 + gamma ** (2 * (T - t)) * values_V[T] - values_V[t])
        sums.append(total.ravel())
    return np.array(sums)


@pytest.mark.parametrize("variance", ["second-moment", "direct"])
@pytest.mark.parametrize("cut", [None, 6])
def test_sums_are_those_of_the_equations(variance: str, cut: int | None) -> None:
    data = walks(30, seed=3, cut=cut)
    risk = pr.LSTD(PHI, PHI_M, discount=0.9, variance=variance).fit(data, bootstrap=7, seed=5)
    sums = SpecificationPass(risk.parts, risk.error_bars, 0.9, PSI, 3)([data[:4], data[4:]])
    w, direct = np.concatenate([risk.w_mean, risk.w_second]), variance == "direct"

    def scores(w):
        return loops(data, 0.9, w[:2], w[2:], direct)

    s, xi = scores(w), np.empty((30, 7))
    mammen(*keys(5), np.arange(30), xi)
    np.testing.assert_allclose(sums.sum, s.sum(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sums.drawn, s.T @ xi, rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(sums.drawn_sum, xi.sum(axis=0))
    h = 1e-5  # the sums are at most quadratic in the weights: central differences are exact
    G = [(scores(w + h * e).sum(axis=0) - scores(w - h * e).sum(axis=0)) / (2 * h) for e in np.eye(w.size)]
    np.testing.assert_allclose(np.hstack([sums.G_J, sums.G_M]), np.transpose(G), rtol=1e-5, atol=1e-4)
    assert sums.episodes == 30
    steps = data.states[data.visited_rows]
    np.testing.assert_allclose(sums.steps, PSI(steps).sum(axis=0))
    np.testing.assert_allclose(sums.variance, risk.variance(steps) @ PSI(steps))


def test_statistic_is_that_of_the_influences() -> None:
    """T² with many draws is K ūᵀ Σ⁺ ū of u_k = s_k + G ψ_k, Σ their covariance over episodes."""
    data = walks(60, seed=3)
    lstd = pr.LSTD(PHI, PHI_M, discount=0.9, variance="direct")
    risk = lstd.fit(data, bootstrap=50_000, seed=5)
    check = pr.specification_test(risk, data, features=PSI)
    from policyrisk.lstd.definition import Definition

    psi = np.hstack(
        Definition(PHI, PHI_M, 0.9, 0.9, direct=True).influences(data, risk.w_mean, risk.w_second)
    )
    sums = SpecificationPass(risk.parts, risk.error_bars, 0.9, PSI, 3)(data)
    s = loops(data, 0.9, risk.w_mean, risk.w_second, True)
    u = s + psi @ np.hstack([sums.G_J, sums.G_M]).T / len(data)
    for test, at in ((check.mean, slice(0, 3)), (check.variance, slice(3, 6))):
        expected = len(data) * u[:, at].mean(0) @ np.linalg.pinv(np.cov(u[:, at].T)) @ u[:, at].mean(0)
        assert test.degrees == 3
        # A χ² of 50,000 draws has a relative error of about √(2/50,000).
        assert abs(test.statistic / expected - 1) < 4 * np.sqrt(2 / 50_000)


def test_p_values_know_how_few_episodes_and_draws_there_are() -> None:
    """Normal terms: the share of p-values below 5 %; with as many draws as one likes χ² would give 10 %."""
    rng, R, K, B, p = np.random.default_rng(1), 4000, 25, 60, 3
    mixed, small = np.tri(p), 0
    for _ in range(R):
        u = rng.normal(size=(K, p)) @ mixed
        U = rng.normal(size=(B, K)) @ (u - u.mean(axis=0)) * np.sqrt(K / (K - 1))
        small += _test(u.sum(axis=0), np.sqrt(np.square(u).sum(axis=0)), U, K).p_value < 0.05
    assert _within(small / R, R)


def test_features_as_fine_as_the_test_cannot_be_tested() -> None:
    data = walks(200, seed=1)
    risk = pr.LSTD(pr.Tabular(5), lam=0.0, discount=0.9, variance="direct").fit(data)
    check = pr.specification_test(risk, data, features=pr.Tabular(5), seed=0)
    for test in (check.mean, check.variance):
        assert test.degrees == 0
        assert np.isnan(test.p_value)
        assert np.isnan(test.z).all()
    assert np.isnan(check.p_value)
    assert not check.misfit
    assert "cannot be tested" in str(check)


def test_a_misfit_without_randomness_is_certain() -> None:
    data = Trajectories([[0.0], [1.0], [2.0], [3.0]] * 40, [1.0, 0.0, 5.0] * 40, [3] * 40, [True] * 40)
    check = pr.specification_test(pr.LSTD(pr.Polynomial(1, [0], [2]), lam=0.0).fit(data), data, seed=0)
    assert check.mean.statistic == np.inf
    assert check.mean.p_value == 0.0
    assert check.misfit


def test_where_and_how_much() -> None:
    """Two kinds of episodes that the features cannot tell apart, and a coordinate that can."""
    rng = np.random.default_rng(0)
    K = 2000
    kind = rng.integers(0, 2, K).astype(float)
    states = np.column_stack([np.zeros(2 * K), np.repeat(kind, 2)])
    rewards = np.where(kind > 0, 3.0, 1.0) + rng.normal(size=K) * np.where(kind > 0, 2.0, 1.0)
    data = Trajectories(states, rewards, np.ones(K, dtype=int), np.ones(K, dtype=bool))
    risk = pr.LSTD(pr.Tabular(1, dims=[0])).fit(data)
    check = pr.specification_test(risk, data, seed=0)
    assert check.regions is not None
    assert check.regions.names(["place", "kind"]) == ["kind <= 0.5", "kind > 0.5"]
    for j in (0, 1):
        own = rewards[kind == j]
        assert check.bias[j] == pytest.approx(own.mean() - rewards.mean())
        assert check.share[j] == pytest.approx(own.size / K)
        assert check.std[j] == pytest.approx(rewards.std())
        assert check.variance_ratio[j] == pytest.approx(np.mean((own - rewards.mean()) ** 2) / rewards.var())
    # The mean of one of two groups less that of all: the other group's share of their difference.
    share, variances = check.share, [rewards[kind == j].var() for j in (0, 1)]
    error = share[1] * np.sqrt(variances[0] / (share[0] * K) + variances[1] / (share[1] * K))
    assert check.bias_error[0] == pytest.approx(error, rel=0.15)  # 1000 draws, and the shares are random
    text = check.describe(["place", "kind"])
    assert (
        "mean: these features cannot express it (p < 0.001, 1 degree of freedom), most of all where" in text
    )
    plain = check.to_dict()
    assert plain["mean"]["degrees"] == 1
    assert len(plain["regions"]["low"]) == 2


def test_streams_and_batches_give_the_same() -> None:
    data = walks(300, seed=2)
    risk = pr.LSTD(PHI, discount=0.9).fit(data, bootstrap=100, seed=3)
    whole, stream = (
        pr.specification_test(risk, data),
        pr.specification_test(risk, [data[:7], data[7:150], data[150:]]),
    )
    assert whole.mean.statistic == pytest.approx(stream.mean.statistic)
    assert whole.variance.p_value == pytest.approx(stream.variance.p_value)


def test_given_up_transitions_are_left_out() -> None:
    """A cut-off episode that ends where no transition started gives its last transition up, as in the fit."""
    cut = Trajectories([[0], [1], [0], [1], [2], [3]], [1.0, 1.0, 1.0, 2.0], [1, 3], [False, False])
    data = Trajectories.concatenate([cut, pr.domains.walk(n=3, p=0.7).sample(0, episodes=100, seed=1)])
    risk = pr.LSTD(pr.Tabular(4)).fit(data, bootstrap=200, seed=0)
    assert risk.provenance.given_up == 1
    shorter = Trajectories([[0], [1], [0], [1], [2]], [1.0, 1.0, 1.0], [1, 2], [False, False])
    same = Trajectories.concatenate([shorter, data[2:]])
    again = pr.LSTD(pr.Tabular(4)).fit(same, bootstrap=200, seed=0)
    assert pr.specification_test(risk, data).mean.statistic == pytest.approx(
        pr.specification_test(again, same).mean.statistic
    )


def test_episodes_that_gave_up_everything_keep_their_numbers() -> None:
    """A table at λ = 0 sets its own sums to 0, and with each episode its own multipliers their draws too."""
    alone = Trajectories([[0], [7], [1], [7]], [3.0, -3.0], [1, 1], [False, False])
    whole = pr.domains.walk(n=6, p=0.7).sample(0, episodes=200, seed=1)
    risk = pr.LSTD(pr.Tabular(8), lam=0.0, variance="direct").fit(
        [alone, whole, alone], bootstrap=100, seed=0
    )
    assert risk.provenance.given_up == 4
    check = pr.specification_test(risk, [alone, whole, alone], features=pr.Tabular(8))
    assert np.isnan([check.mean.p_value, check.variance.p_value]).all()


def test_regions_of_labels_are_named() -> None:
    points = np.array([[code, 0.0] for code in range(6)] * 80)
    regions = Regions.of(points, np.arange(480), order=[0], depth=3)
    labels = {"city": ["Bern", "Kiel", "Lyon", "Nice", "Oslo", "Pisa"]}
    assert [place for place in regions.names(["city"], labels) if "=" not in place] == []
    halves = Regions.of(points, np.arange(480), order=[0], depth=1)
    assert halves.names(["city"], labels) == ["city from Bern to Lyon", "city from Nice to Pisa"]


def test_what_cannot_be_checked_is_refused() -> None:
    data, others = walks(50, seed=1), walks(50, seed=2)
    risk = pr.LSTD(PHI, discount=0.9).fit(data)
    with pytest.raises(MismatchError, match="data must be those that were fitted"):
        pr.specification_test(risk, others)
    with pytest.raises(MismatchError, match="50 episodes, got 40"):
        pr.specification_test(pr.LSTD(PHI, discount=0.9).fit(data, bootstrap=100), data[:40])
    with pytest.raises(InvalidInputError, match="at least 6 bootstrap replicates"):
        pr.specification_test(pr.LSTD(PHI, discount=0.9).fit(data, bootstrap=5), data, features=PSI)
    with pytest.raises(InvalidInputError, match="no error bars"):
        pr.specification_test(pr.TD(PHI, discount=0.9).fit(data), data)


def test_regions_cover_all_and_do_not_overlap() -> None:
    rng = np.random.default_rng(1)
    points = np.column_stack([rng.normal(size=5000), rng.integers(0, 3, 5000), np.zeros(5000)])
    regions = Regions.of(points, np.arange(5000), order=[1, 2, 0], depth=4)
    inside = ((points[:, None] > regions.low) & (points[:, None] <= regions.high)).all(axis=2)
    np.testing.assert_array_equal(inside.sum(axis=1), 1)
    np.testing.assert_array_equal(inside.argmax(axis=1), regions.index(points))
    assert len(regions) >= 12
    assert np.bincount(regions.index(points)).min() > 100
    assert np.isinf(regions.low[:, 2]).all()  # constant, never cut


def _mixture(data: Trajectories, seed: int) -> pr.RiskFunction:
    """Half a table at λ = 0 and half one at λ = 1, both of which suffice."""
    fits = [
        pr.LSTD(pr.Tabular(5), lam=lam, variance="direct").fit(data, bootstrap=300, seed=seed)
        for lam in (0.0, 1.0)
    ]
    return pr.RiskFunction.mixture(fits, [0.5, 0.5])


def _sizes(checks: list[SpecificationTest]) -> list[float]:
    return [
        float(np.mean([getattr(each, of).p_value < 0.05 for each in checks])) for of in ("mean", "variance")
    ]


def _within(share: float, R: int, low: float = 0.04, high: float = 0.06) -> bool:
    """Whether a share of R may come from a probability between low and high."""
    return low - 3 * np.sqrt(low / R) < share < high + 3 * np.sqrt(high / R)


def test_a_mixture_has_its_size() -> None:
    R = 60
    checks = []
    for seed in range(R):
        data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=300, seed=seed)
        checks.append(pr.specification_test(_mixture(data, seed), data))
    assert all(_within(share, R, low=0.02) for share in _sizes(checks))
    z = np.concatenate([check.mean.z for check in checks])
    assert abs(z.std() - 1) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [100, 300, 1000])
def test_size_with_tables(episodes: int) -> None:
    chain, R = pr.domains.walk(n=5, p=0.7), 1500
    checks = []
    for seed in range(R):
        data = chain.sample(0, episodes=episodes, seed=seed)
        checks.append(pr.specification_test(pr.LSTD(pr.Tabular(5)).fit(data, bootstrap=500, seed=seed), data))
    mean, variance = _sizes(checks)
    assert _within(mean, R)
    assert _within(variance, R, low=0.03)  # careful, as the module says


def test_power_on_pinball_tiles_that_do_not_see_the_velocity() -> None:
    from policyrisk.control import pinball_policy

    tiles = pr.TileCoding([0, 0], [1, 1], bins=[50, 50], dims=[0, 1])
    pinball, policy = pr.domains.Pinball(), pinball_policy()
    found = []
    for seed in range(4):
        data = pinball.rollout(policy, pinball.sample_starts(300, seed), seed + 100)
        found.append(pr.specification_test(pr.LSTD(tiles, lam=0.9).fit(data), data, seed=seed))
    assert max(reduce(add, [[each.mean.p_value, each.variance.p_value] for each in found])) < 1e-4
    assert "coordinate 2" in str(found[0]) or "coordinate 3" in str(found[0])


def test_the_map_shows_where() -> None:
    """Returns that depend on y alone, which the features do not see; x is seen."""
    rng, K = np.random.default_rng(2), 3000
    xy = rng.random((K, 2))
    rewards = np.where(xy[:, 1] > 0.5, 2.0, 0.0) + rng.normal(size=K)
    data = Trajectories(np.repeat(xy, 2, axis=0), rewards, np.ones(K, dtype=int), np.ones(K, dtype=bool))
    check = pr.specification_test(pr.LSTD(pr.Polynomial(1, [0], [1], dims=[0])).fit(data), data, seed=0)
    axes = pr.plotting.plot_check(check, names=["x", "y"])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
    (mesh,) = axes.collections
    shown = np.asarray(mesh.get_array())  # rows of y
    assert np.all(shown[0] < -0.5)
    assert np.all(shown[-1] > 0.5)
    with pytest.raises(InvalidInputError, match="names must hold 2"):
        pr.plotting.plot_check(check, names=["x"])
