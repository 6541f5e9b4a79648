"""RiskFunction against closed forms, numerical derivatives, brute force and damaged files."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import policyrisk as pr
from policyrisk._core import records as storage
from policyrisk.errors import FewEpisodesWarning, InvalidInputError, NegativeVarianceWarning
from policyrisk.risk import ErrorBars, Provenance, RiskFunction, SampleReturns
from policyrisk.risk.estimate import Estimate, student_quantile
from policyrisk.risk.scoring import ClusterSums, Score, ScoreSums, step_scores
from policyrisk.risk.support import Support

# Hand-made records have few episodes; the warning has a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore::policyrisk.errors.FewEpisodesWarning")

QUANTITIES = ("mean", "second_moment", "variance", "std", "sharpe")
METHODS = ("second-moment", "direct")
TILES = pr.TileCoding(low=[0], high=[1], bins=[5], tilings=2)
LINE = pr.Polynomial(degree=1, low=[0], high=[1])
PARABOLA = pr.Polynomial(degree=2, low=[0], high=[1])
MAPS = {"dense": (LINE, PARABOLA), "sparse": (TILES, TILES), "mixed": (LINE, TILES)}


def support(features, episodes=40.0, unvisited=()):
    counts = np.full(features.size, episodes)
    counts[list(unvisited)] = 0
    sparse = isinstance(features, pr.TileCoding | pr.Tabular)
    gram = None if sparse else 1000 * np.eye(features.size)
    return Support(counts, counts, int(episodes), gram, 1.0)


def make_risk(
    maps, method, *, seed=0, dtype=np.float64, replicates=0, episodes=40.0, w_mean=None, w_second=None
):
    features, second = MAPS[maps] if isinstance(maps, str) else maps
    rng = np.random.default_rng(seed)
    l_J, l_M = features.size, second.size
    unvisited = (features.size - 1,) if features is TILES else ()
    kept_J = np.setdiff1d(np.arange(l_J), unvisited)
    kept_M = np.setdiff1d(np.arange(l_M), (l_M - 1,) if second is TILES else ())
    k = kept_J.size + kept_M.size
    factor = rng.standard_normal((k, k)) * 0.05
    sigma = factor @ factor.T
    kJ = kept_J.size
    bars = ErrorBars(
        kept_J,
        kept_M,
        sigma[:kJ, :kJ].astype(dtype),
        sigma[:kJ, kJ:].astype(dtype),
        sigma[kJ:, kJ:].astype(dtype),
        (rng.standard_normal((replicates, k)) @ factor.T).astype(dtype) if replicates else None,
    )
    first = support(features, episodes, unvisited)
    return RiskFunction(
        features,
        second,
        rng.uniform(0.5, 1.0, l_J) if w_mean is None else np.asarray(w_mean),
        rng.uniform(5.0, 9.0, l_M) if w_second is None else np.asarray(w_second),
        method,
        first,
        first if second is features else support(second, episodes, (l_M - 1,) if second is TILES else ()),
        Provenance("LSTD", 0.9, 1.0, episodes=int(episodes), terminated=int(episodes), transitions=400),
        bars,
        SampleReturns.of(rng.standard_normal(40)),
    )


def with_weights(risk, w):
    """The same with stacked kept weights w."""
    w_mean, w_second = risk.w_mean.copy(), risk.w_second.copy()
    k = len(risk.error_bars.mean_kept)
    w_mean[risk.error_bars.mean_kept] = w[:k]
    w_second[risk.error_bars.second_kept] = w[k:]
    return RiskFunction(
        risk.features,
        risk.second_features,
        w_mean,
        w_second,
        risk.variance_method,
        risk.support,
        risk.second_support,
        risk.provenance,
    )


def stacked(risk):
    bars = risk.error_bars
    w = np.concatenate([risk.w_mean[bars.mean_kept], risk.w_second[bars.second_kept]])
    sigma = np.block([[bars.mean, bars.cross], [bars.cross.T, bars.second]]).astype(np.float64)
    return w, sigma


def numerical_gradient(function, w, step=1e-5):
    rows = []
    for i in range(len(w)):
        e = np.zeros(len(w))
        e[i] = step
        rows.append((np.asarray(function(w + e)) - np.asarray(function(w - e))) / (2 * step))
    return np.array(rows)  # (k, ...)


# --- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_quantities_of_a_known_chain(method):
    chain = pr.MarkovChain([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0])
    risk = pr.LSTD(pr.Tabular(2), variance=method).fit_exact(chain, start=[0.5, 0.5])
    J, V = np.array([6.25, 6.75]), np.array([29.0625, 26.8125])
    truth = {"mean": J, "second_moment": V + J**2, "variance": V, "std": np.sqrt(V), "sharpe": J / np.sqrt(V)}
    for name, expected in truth.items():
        np.testing.assert_allclose(getattr(risk, name)([0, 1]), expected, rtol=1e-12)
    both = risk.mean_and_variance([0, 1])
    np.testing.assert_array_equal(both, [risk.mean([0, 1]), risk.variance([0, 1])])


@pytest.mark.parametrize("method", METHODS)
def test_unvisited_states_are_nan_everywhere(method):
    risk = make_risk("sparse", method)
    x = np.array([0.05, 0.99])
    assert risk.visited(x).tolist() == [True, False]
    assert risk.episodes(x).tolist() == [40.0, 0.0]
    for name in QUANTITIES:
        for values in (getattr(risk, name)(x), risk.standard_error(x, name), risk.interval(x, name)[:, 0]):
            assert np.isnan(values).tolist() == [False, True], name


def test_states_without_features_are_unvisited():
    assert support(TILES).episodes_behind(0 * TILES([0.5])).tolist() == [0.0]
    assert support(LINE).episodes_behind(np.zeros((1, 2))).tolist() == [0.0]


def test_dense_support_is_leverage():
    phi = PARABOLA(np.linspace(0.0, 0.5, 20))
    behind = Support(np.ones(3), np.ones(3), 15, phi.T @ phi, 1.0)
    h = np.einsum("ij,jk,ik->i", phi, np.linalg.inv(phi.T @ phi), phi)
    np.testing.assert_allclose(behind.episodes_behind(phi), np.minimum(15, 1 / h), rtol=1e-6)
    assert not behind.visited(PARABOLA([1.0]))[0]


def test_negative_variance_is_returned_and_its_root_is_nan_with_one_warning():
    risk = make_risk((LINE, LINE), "second-moment", w_mean=[2.0, 0.0], w_second=[3.0, 2.0])  # V = 3 + 2x − 4
    x = [0.0, 0.25, 0.5, 1.0]
    np.testing.assert_allclose(risk.variance(x), [-1.0, -0.5, 0.0, 1.0])
    calls = {
        "std": lambda: risk.std(x),
        "sharpe": lambda: risk.sharpe(x),
        "error": lambda: risk.standard_error(x, "std"),
        "interval": lambda: risk.interval(x, "sharpe")[:, 0],
    }
    for name, call in calls.items():
        with pytest.warns(NegativeVarianceWarning, match="2 of 4 states") as caught:
            values = call()
        (warning,) = [entry for entry in caught if entry.category is NegativeVarianceWarning]
        assert warning.filename == __file__, name
        assert "nonnegative_at" in str(warning.message)
        assert "direct" in str(warning.message)
        assert np.isnan(values[:2]).all()
        assert np.isfinite(values[3])
    for name in ("mean", "second_moment", "variance"):
        assert np.isfinite(risk.interval(x, name)).all()


@pytest.mark.parametrize("maps", MAPS)
def test_no_states_give_no_values(maps):
    risk = make_risk(maps, "direct", replicates=100)
    nothing = np.empty((0, 1))
    for name in QUANTITIES:
        assert getattr(risk, name)(nothing).shape == (0,)
        assert risk.standard_error(nothing, name).shape == (0,)
        assert risk.interval(nothing, name).shape == (0, 2)
        assert risk.interval(nothing, name, method="bootstrap").shape == (0, 2)
    assert risk.visited(nothing).shape == (0,)


@pytest.mark.parametrize("maps", MAPS)
def test_chunks_change_nothing(maps, monkeypatch):
    risk = make_risk(maps, "second-moment", replicates=100)
    x = np.random.default_rng(1).uniform(0.0, 0.85, 500)

    def everything():
        values = [risk.interval(x, name) for name in QUANTITIES]
        values += [risk.interval(x, "std", method="bootstrap"), risk.summary(x).covariance]
        return [risk.mean(x), risk.std(x), risk.episodes(x), *values]

    whole = everything()
    monkeypatch.setattr("policyrisk.risk.readout._CELLS", 1)  # 128 states at a time
    for a, b in zip(whole, everything(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


class Counted:
    """A feature map that remembers how many states it was given at a time."""

    def __init__(self, features):
        self.features, self.size, self.rows = features, features.size, []

    def __call__(self, states):
        self.rows.append(len(states))
        return self.features(states)


def test_sparse_rows_are_counted_by_their_entries():
    phi = Counted(pr.TileCoding(low=[0], high=[1], bins=50_000, tilings=2))
    rng = np.random.default_rng(0)
    n, size = 10_000, phi.size
    counts = rng.integers(0, 3, size).astype(float)
    kept = rng.choice(size, 300, replace=False)
    factor = rng.standard_normal((300, 300))
    sigma = factor @ factor.T
    risk = RiskFunction(
        phi,
        phi,
        rng.standard_normal(size),
        rng.standard_normal(size),
        "second-moment",
        *[Support(counts, counts, 10, None, 1.0)] * 2,
        Provenance("LSTD", 0.9, 1.0, episodes=10, terminated=10, transitions=400),
        ErrorBars(kept, kept, sigma, sigma, sigma),
    )
    x = rng.uniform(size=n)
    ways = (
        risk.mean,
        risk.variance,
        risk.episodes,
        risk.standard_error,
        partial(risk.interval, of="variance"),
    )
    for way in ways:
        phi.rows.clear()
        whole = way(x)
        assert sum(phi.rows) == n
        assert phi.rows[:3] == [128, 256, 512]  # not 128 at a time, as full rows of 10^5 would be
        assert len(phi.rows) == 7
        np.testing.assert_array_equal(whole, np.concatenate([way(part) for part in np.split(x, 100)]))
    active = phi.features.active(x)
    expected = np.where(counts[active].all(axis=1), risk.w_mean[active].sum(axis=1), np.nan)
    np.testing.assert_allclose(risk.mean(x), expected, rtol=1e-12)


@pytest.mark.parametrize("full", [1, 40])
def test_full_rows_are_few_at_a_time(full, monkeypatch):
    """Dense rows and sparse rows with many entries: never many more numbers at once than allowed."""
    monkeypatch.setattr("policyrisk.risk.readout._CELLS", 2**14)
    monkeypatch.setattr("policyrisk.risk.readout._FEWEST", 16)
    size = 1000
    dense_map = Counted(pr.Polynomial(degree=20, low=[0], high=[1]))
    sparse_map = Counted(
        pr.FunctionFeatures(lambda x: sp.csr_array(np.ones((len(x), full)) @ np.eye(full, size)), size=size)
    )
    for phi, numbers in ((dense_map, 21), (sparse_map, 4 * full)):
        seen = support(pr.Tabular(phi.size)) if phi is sparse_map else support(phi.features)
        provenance = Provenance("LSTD", 0.9, 1.0, episodes=10, terminated=10, transitions=400)
        risk = RiskFunction(phi, phi, *[np.ones(phi.size)] * 2, "direct", seen, seen, provenance)
        risk.mean(np.linspace(0, 1, 20_000))
        assert sum(phi.rows) == 20_000
        assert max(phi.rows) * numbers <= 2**14
        assert max(phi.rows[:-1]) * numbers > 2**12


def test_fewer_at_a_time_once_rows_are_fuller(monkeypatch):
    monkeypatch.setattr("policyrisk.risk.readout._CELLS", 2**14)
    monkeypatch.setattr("policyrisk.risk.readout._FEWEST", 16)
    phi = Counted(pr.FunctionFeatures(lambda x: sp.csr_array((x > 0.5) | (np.arange(1000) == 0)), size=1000))
    seen = support(pr.Tabular(1000))
    provenance = Provenance("LSTD", 0.9, 1.0, episodes=10, terminated=10, transitions=400)
    risk = RiskFunction(phi, phi, np.ones(1000), np.ones(1000), "direct", seen, seen, provenance)
    n = (500, 1500)
    np.testing.assert_array_equal(risk.mean(np.repeat([0.2, 0.8], n)), np.repeat([1.0, 1000.0], n))
    fuller = int(np.searchsorted(np.cumsum(phi.rows), 500, side="right"))
    assert max(phi.rows) > 200
    assert set(phi.rows[fuller + 1 : -1]) == {16}


# --- error bars ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", QUANTITIES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("maps", MAPS)
def test_standard_error_is_the_delta_method(maps, method, of):
    risk = make_risk(maps, method)
    x = np.array([0.05, 0.3, 0.62, 0.7])
    w, sigma = stacked(risk)
    g = numerical_gradient(lambda v: getattr(with_weights(risk, v), of)(x), w)
    expected = np.sqrt(np.einsum("ki,kl,li->i", g, sigma, g))
    np.testing.assert_allclose(risk.standard_error(x, of), expected, rtol=1e-6, equal_nan=False)


def test_interval_is_students_with_the_episodes_behind():
    x = np.array([0.05, 0.5])
    for episodes in (1.0, 2.0, 10.0, 1000.0):
        risk = make_risk("sparse", "direct", episodes=episodes)
        half = stats.t.ppf(0.95, max(episodes - 1, 1)) * risk.standard_error(x, "mean")
        expected = np.column_stack([risk.mean(x) - half, risk.mean(x) + half])
        np.testing.assert_allclose(risk.interval(x, "mean", level=0.9), expected, rtol=1e-10)


@pytest.mark.parametrize("of", QUANTITIES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("maps", MAPS)
def test_bootstrap_interval_is_of_the_replicates(maps, method, of):
    risk = make_risk(maps, method, replicates=200)
    x = np.array([0.1, 0.7])
    w, _ = stacked(risk)
    values = np.array([getattr(with_weights(risk, w + d), of)(x) for d in risk.error_bars.replicates])
    ordered = np.sort(values, axis=0)
    expected = np.column_stack([ordered[10], ordered[189]])  # five per cent of 200 on each side
    np.testing.assert_allclose(risk.interval(x, of, level=0.9, method="bootstrap"), expected, rtol=1e-9)


def test_bootstrap_ends_where_the_variance_vanishes():
    features = pr.Tabular(1)
    bars = ErrorBars(
        np.array([0]),
        np.array([0]),
        np.eye(1),
        np.zeros((1, 1)),
        np.eye(1),
        np.column_stack([np.zeros(101), np.linspace(-2.0, 2.0, 101)]),
    )
    risk = RiskFunction(
        features, features, np.array([3.0]), np.array([1.0]), "direct", support(features), support(features),
        Provenance("LSTD", 0.9, 1.0), bars,
    )  # fmt: skip
    low, high = risk.interval([0], "std", method="bootstrap", level=0.9)[0]
    assert low == 0.0
    assert high == pytest.approx(np.sqrt(1.0 + bars.replicates[95, 1]))
    low, high = risk.interval([0], "sharpe", method="bootstrap", level=0.9)[0]
    assert low == pytest.approx(3.0 / np.sqrt(1.0 + bars.replicates[95, 1]))
    assert high == np.inf


BAD_CALLS = {
    "no bars": (lambda r: pr_no_bars(r).interval([0.5], of="std"), "no error bars, since it came from LSTD"),
    "no replicates": (lambda r: r.interval([0.5], of="std", method="bootstrap"), "bootstrap= option"),
    "few replicates": (
        lambda r: make_risk("dense", "direct", replicates=20).interval([0.5], of="std", method="bootstrap"),
        "bootstrap=40 or more",
    ),
    "quantity": (
        lambda r: r.interval([0.5], of="skewness"),
        "of must be one of mean, second_moment",
    ),
    "of a tail": (lambda r: r.interval([0.5], of="quantile"), r"distribution\.interval\(x, of='quantile'"),
    "error of": (lambda r: r.standard_error([0.5], of="V"), "of must be one of"),
    "method": (
        lambda r: r.interval([0.5], of="std", method="jackknife"),
        "method must be one of full, student, bootstrap",
    ),
    "level 1": (lambda r: r.interval([0.5], of="std", level=1.0), "level must be below 1"),
    "level 95": (lambda r: r.interval([0.5], of="std", level=95), "level must be in"),
    "nan state": (lambda r: r.mean([np.nan]), "x must be finite"),
    "no starts": (lambda r: r.summary(np.empty((0, 1))), "starts must hold at least one state"),
    "weights": (lambda r: r.summary([0.5, 0.6], weights=[1.0]), "weights must have shape"),
    "negative weights": (lambda r: r.summary([0.5, 0.6], weights=[1.0, -1.0]), "must not be negative"),
    "zero weights": (lambda r: r.summary([0.5], weights=[0.0]), "must not be negative and not all be 0"),
    "w_mean": (lambda r: make_risk("dense", "direct", w_mean=[1.0]), "w_mean must have shape"),
    "variance": (lambda r: make_risk("dense", "semi"), "variance_method must be one of"),
    "held out": (lambda r: r.score(3), "data must be Trajectories"),
    "cut off": (
        lambda r: r.score(pr.Trajectories([[0], [1]], [1.0], [1], [False])),
        "at least one terminated",
    ),
    "returns": (lambda r: SampleReturns.of([[1.0]]), "returns must have shape"),
    "bars": (
        lambda r: ErrorBars(np.arange(2), np.arange(2), np.eye(3), np.eye(2), np.eye(2)),
        "ErrorBars.mean must have shape",
    ),
}


def pr_no_bars(risk):
    return with_weights(risk, stacked(risk)[0])


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_say_what_to_do(case):
    call, message = BAD_CALLS[case]
    with pytest.raises(InvalidInputError, match=message):
        call(make_risk("dense", "direct"))


# --- sample returns -----------------------------------------------------------------------------------------

numbers = st.lists(st.floats(-100, 100, allow_subnormal=False), max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, max_size=5))
def test_sample_returns_add(parts):
    merged = sum((SampleReturns.of(part) for part in parts), SampleReturns.of([]))
    g = np.concatenate([[], *parts])
    assert merged.count == g.size
    if g.size:
        central = [np.sum((g - g.mean()) ** p) for p in (2, 3, 4)]
        np.testing.assert_allclose(merged.mean, g.mean(), atol=1e-9)
        np.testing.assert_allclose(
            [merged.squares, merged.cubes, merged.fourths], central, rtol=1e-8, atol=1e-4
        )
    else:
        assert np.isnan(merged.mean)
    if g.size > 1:
        np.testing.assert_allclose(merged.variance, g.var(ddof=1), rtol=1e-8, atol=1e-9)
        assert merged.covariance()[1, 1] >= -1e-6
    else:
        assert np.isnan(merged.variance)


def test_sum_of_sample_returns_works():
    assert sum([SampleReturns.of([1.0, 2.0]), SampleReturns.of([6.0])]).mean == 3.0


def test_sample_errors_are_those_of_repetition():
    rng = np.random.default_rng(5)
    samples = rng.exponential(2.0, (20_000, 60))
    pairs = np.column_stack([samples.mean(axis=1), samples.var(axis=1, ddof=1)])
    # exact moments of the exponential: μ₂ = 4, μ₃ = 16, μ₄ = 144
    K = 60
    exact = np.array([[4 / K, 16 / K], [16 / K, (144 - 16 * (K - 3) / (K - 1)) / K]])
    deviation = pairs - [2.0, 4.0]
    for i in range(2):
        for j in range(2):
            products = deviation[:, i] * deviation[:, j]
            z = (products.mean() - exact[i, j]) / (products.std() / np.sqrt(len(products)))
            assert abs(z) < 4
    assert SampleReturns.of([1.0, 1.0, -1.0, -1.0]).covariance()[1, 1] == pytest.approx((1 - 1 / 3) / 4)
    # and with a large sample the plug-in is that
    estimate = SampleReturns.of(rng.exponential(2.0, 2_000_000)).covariance() * 2_000_000
    np.testing.assert_allclose(estimate, [[4.0, 16.0], [16.0, 128.0]], rtol=0.05)


# --- summaries ----------------------------------------------------------------------------------------------

STARTS = np.array([0.05, 0.3, 0.62, 0.7])


@pytest.mark.parametrize("method", METHODS)
def test_summary_of_a_known_chain(method):
    chain = pr.MarkovChain([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0])
    risk = pr.LSTD(pr.Tabular(2), variance=method).fit_exact(chain, start=[0.5, 0.5])
    summary = risk.summary([0, 1, 1, 1])
    m = 0.25 * 6.25 + 0.75 * 6.75
    M = 0.25 * (29.0625 + 6.25**2) + 0.75 * (26.8125 + 6.75**2)
    assert summary.mean == pytest.approx(m)
    assert summary.variance == pytest.approx(M - m**2)
    assert summary.variance > 0.25 * 29.0625 + 0.75 * 26.8125  # not the mean of V
    assert summary.std == pytest.approx(np.sqrt(M - m**2))
    assert summary.sharpe == pytest.approx(m / np.sqrt(M - m**2))
    assert np.isnan(summary.mean.standard_error)
    assert np.isnan(summary.sharpe.low)
    assert summary.sample is None
    weighted = risk.summary([0, 1], weights=[1.0, 3.0])
    assert weighted.variance == pytest.approx(summary.variance, rel=1e-12)


def moments_by_hand(risk, weights):
    J, V = risk.mean_and_variance(STARTS)
    omega = weights / weights.sum()
    m = omega @ J
    v = omega @ (V + J**2) - m**2
    return np.array([m, v, np.sqrt(v), m / np.sqrt(v)])


@pytest.mark.parametrize("weights", [np.ones(4), np.array([0.0, 1.0, 2.0, 5.0])])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("maps", MAPS)
def test_summary_is_the_delta_method(maps, method, weights):
    risk = make_risk(maps, method)
    summary = risk.summary(STARTS, weights=weights, level=0.9)
    w, sigma = stacked(risk)
    g = numerical_gradient(lambda v: moments_by_hand(with_weights(risk, v), weights), w)
    covariance = g.T @ sigma @ g
    values = moments_by_hand(risk, weights)
    t = stats.t.ppf(0.95, 39)
    for i, name in enumerate(("mean", "variance", "std", "sharpe")):
        estimate = getattr(summary, name)
        assert estimate.value == pytest.approx(values[i], rel=1e-12)
        assert estimate.standard_error == pytest.approx(np.sqrt(covariance[i, i]), rel=1e-6)
        assert estimate.high - estimate.value == pytest.approx(t * estimate.standard_error)
        assert estimate.value - estimate.low == pytest.approx(t * estimate.standard_error)
    np.testing.assert_allclose(summary.covariance, covariance[:2, :2], rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_summary_errors_are_those_of_drawn_weights(method):
    risk = make_risk("dense", method)
    w, sigma = stacked(risk)
    scale = 0.1  # small, so that the quantities are near linear in the weights
    draws = np.random.default_rng(2).multivariate_normal(w, scale**2 * sigma, size=4000)
    values = np.array([moments_by_hand(with_weights(risk, d), np.ones(4)) for d in draws])
    summary = risk.summary(STARTS)
    for i, name in enumerate(("mean", "variance", "std", "sharpe")):
        spread = values[:, i].std() / scale
        relative = spread / getattr(summary, name).standard_error - 1
        assert abs(relative) < 4 / np.sqrt(2 * 4000)  # the relative error of a sample's spread


def test_summary_of_one_start_agrees_with_the_interval_there():
    risk = make_risk("mixed", "second-moment", episodes=7.0)
    summary = risk.summary([0.3])
    for name in ("mean", "variance", "std", "sharpe"):
        estimate = getattr(summary, name)
        np.testing.assert_allclose([estimate.low, estimate.high], risk.interval([0.3], name)[0], rtol=1e-9)


def test_unvisited_starts_are_left_out_counted_and_said():
    risk = make_risk("sparse", "second-moment")
    summary, rest = risk.summary([0.05, 0.3, 0.99]), risk.summary([0.05, 0.3])
    assert (summary.starts, summary.unvisited) == (3, 1)
    assert summary.variance.to_dict() == rest.variance.to_dict()
    assert "1 of 3 starts were not visited" in str(summary)
    assert "not visited" not in str(rest)
    nowhere = risk.summary([0.99])
    assert np.isnan(nowhere.mean)
    assert np.isnan(nowhere.variance.standard_error)
    assert "1 of 1 start" in str(nowhere)


def test_negative_summary_variance_warns_and_has_no_root():
    risk = make_risk((LINE, LINE), "second-moment", w_mean=[2.0, 0.0], w_second=[3.0, 2.0])
    with pytest.warns(NegativeVarianceWarning, match="start distribution is negative, -1"):
        summary = risk.summary([0.0])
    assert summary.variance == pytest.approx(-1.0)
    assert np.isnan(summary.std)
    assert np.isnan(summary.sharpe)
    assert any("nonnegative_at" in note for note in summary.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = risk.summary([0.25, 1.0])  # −0.5 and 1: positive together
    assert "negative at 1 start taken alone" in str(mixed)


def test_summary_reads_well_and_becomes_plain_values():
    risk = make_risk("dense", "direct")
    text, plain = str(risk.summary(STARTS)), risk.summary(STARTS).to_dict()
    for words in ("return from 4 starts", "sample of 40 returns", "0.95 interval", "bias of its features"):
        assert words in text
    assert [line.split()[0] for line in text.splitlines()[2:6]] == ["mean", "variance", "std", "sharpe"]
    assert plain["mean"]["value"] == risk.summary(STARTS).mean.value
    assert plain["sample"]["count"] == 40
    assert plain["sample"]["variance"]["value"] == pytest.approx(risk.returns.variance)
    assert type(plain["std"]["low"]) is float


def test_summary_beside_the_sample_of_real_data():
    chain = pr.domains.walk(n=8, p=0.7)
    data = chain.sample(0, episodes=300, seed=3)
    summary = pr.LSTD(pr.Tabular(8)).fit(data).summary([0])
    g = data.returns()
    assert summary.sample.mean == pytest.approx(g.mean())
    assert summary.sample.variance == pytest.approx(g.var(ddof=1))
    assert abs(summary.mean - chain.mean()[0]) < 4 * summary.mean.standard_error
    assert abs(summary.variance - chain.variance()[0]) < 4 * summary.variance.standard_error


# --- scores -------------------------------------------------------------------------------------------------


def test_step_scores_follow_the_formulas():
    J = np.array([1.0, 2.0, 2.0, np.nan, 5.0, 5.0])
    V = np.array([4.0, 0.0, -1.0, 1.0, 1e-15, 1e-15])
    B = np.array([3.0, 3.0, 2.0, 0.0, 5.0, 5.1])
    scores = step_scores(J, V, B)
    np.testing.assert_allclose(scores.squared_error[[0, 1, 2, 4]], [4.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(scores.dawid_sebastiani[0], np.log(4.0) + 1.0)
    assert scores.unvisited.tolist() == [False, False, False, True, False, False]
    assert scores.not_positive.tolist() == [False, True, True, False, False, False]
    assert scores.certain.tolist() == [False, False, False, False, True, False]
    assert np.isfinite(scores.dawid_sebastiani).tolist() == [True, False, False, False, False, True]


def test_cluster_errors_follow_the_formula_and_add():
    rng = np.random.default_rng(0)
    episode = np.sort(rng.integers(0, 30, 200))
    values = rng.standard_normal(200) + 0.3 * episode
    values[::7] = np.nan
    sums = ClusterSums.of(values, episode)
    kept = ~np.isnan(values)
    mean = values[kept].mean()
    groups = [values[kept & (episode == k)] for k in np.unique(episode[kept])]
    K = len(groups)
    squares = sum((g.sum() - mean * g.size) ** 2 for g in groups)
    assert sums.mean() == pytest.approx(mean)
    assert sums.standard_error() == pytest.approx(np.sqrt(K / (K - 1) * squares) / kept.sum())
    early = episode < 11
    both = ClusterSums.of(values[early], episode[early]) + ClusterSums.of(values[~early], episode[~early])
    assert both.standard_error() == pytest.approx(sums.standard_error())
    assert (-sums).standard_error() == pytest.approx(sums.standard_error())
    assert (-sums).mean() == -sums.mean()
    assert np.isnan(ClusterSums().mean())
    assert np.isnan(ClusterSums.of(np.ones(3), np.zeros(3, dtype=int)).standard_error())


@pytest.fixture(scope="module")
def walk():
    return pr.domains.walk(n=8, p=0.7, discount=0.95)


def exact(chain, **settings):
    return pr.LSTD(pr.Tabular(8), discount=0.95, **settings).fit_exact(chain, start=0)


def test_score_is_the_mean_over_steps(walk):
    """A step at a time: B and E are of the rewards, and of the estimate where the episode was cut off."""
    data = walk.sample(0, episodes=60, seed=1, max_steps=25)
    cut_off = int((~data.terminated).sum())
    assert 0 < cut_off < 60
    risk = exact(walk)
    E, V = [], []
    for episode in data:
        n = int(episode.lengths[0])
        J, v = risk.mean(episode.states[:-1]), risk.variance(episode.states[:-1])
        for t in range(n):
            B = sum(0.95**i * r for i, r in enumerate(episode.rewards[t:]))
            E.append((B - J[t]) ** 2)
            V.append(v[t])
            if not episode.terminated[0]:
                end, weight = episode.states[-1:], 0.95 ** (n - t)
                E[-1] = (B + weight * risk.mean(end)[0] - J[t]) ** 2 + weight**2 * risk.variance(end)[0]
    E, V = np.array(E), np.array(V)
    score = risk.score(data)
    assert score.mse == pytest.approx(E.mean())
    assert score.calibration == pytest.approx(np.mean(E / V))
    assert score.dawid_sebastiani == pytest.approx(np.mean(np.log(V) + E / V))
    assert (score.episodes, score.steps, score.cut_off) == (60, len(E), cut_off)
    stream = risk.score([data[:7], data[7:31], data[31:]])
    for name in ("mse", "calibration", "dawid_sebastiani"):
        whole, parts = getattr(score, name), getattr(stream, name)
        assert parts == pytest.approx(whole)
        assert parts.standard_error == pytest.approx(whole.standard_error)
    assert f"{cut_off} episodes cut off: completed" in str(score)
    assert score.to_dict()["mse"]["value"] == score.mse.value


@pytest.mark.parametrize(("discount", "most"), [(1.0, 10), (1.0, 20), (0.95, 5), (0.8, 12)])
def test_calibration_is_one_for_the_truth_however_many_are_cut_off(discount, most):
    """Terminated episodes alone would be the short ones; with 5 steps none of them ends at all."""
    chain = pr.domains.walk(n=8, p=0.7, discount=discount)
    data = chain.sample(0 if most == 5 else 3, episodes=3000, seed=5, max_steps=most)
    risk = pr.LSTD(pr.Tabular(8), discount=discount).fit_exact(chain, start=0)
    score = risk.score(data)
    assert score.cut_off == (~data.terminated).sum() > 100
    z = (score.calibration - 1) / score.calibration.standard_error
    assert abs(z) < 3.5
    if data.terminated.any():
        selected = risk.score(data[data.terminated]).calibration
        assert abs(selected - 1) / selected.standard_error > 5


def test_steps_before_a_cut_where_nothing_is_known_have_no_score(walk):
    blind = pr.LSTD(pr.Tabular(9), discount=0.95).fit_exact(walk, start=0)
    data = pr.Trajectories([[6], [7], [8], [0], [8]], [-1.0, -1.0, -1.0], [2, 1], [True, False])
    score = blind.score(data)
    assert (score.episodes, score.cut_off) == (2, 1)
    assert score.unvisited == pytest.approx(1 / 3)
    assert score.mse == blind.score(data[:1]).mse


def test_pieces_of_a_long_record_change_nothing(walk, monkeypatch):
    data = walk.sample(0, episodes=50, seed=2)
    risk = exact(walk)
    whole = risk.score(data)
    monkeypatch.setattr("policyrisk.risk.scoring._PIECE", 40)
    pieces = risk.score(data)
    assert pieces.dawid_sebastiani == pytest.approx(whole.dawid_sebastiani)
    assert pieces.episodes == whole.episodes


def test_negative_variance_cannot_win():
    chain = pr.domains.walk(n=30, p=0.7)
    line, parabola = (pr.Polynomial(degree=d, low=[0], high=[29]) for d in (1, 2))
    data = chain.sample(0, episodes=200, seed=0)
    paper = pr.LSTD(line, parabola, lam=0.95).fit_exact(chain, start=0).score(data)
    direct = pr.LSTD(line, parabola, lam=0.95, variance="direct").fit_exact(chain, start=0).score(data)
    negative = np.isin(data.states[data.visited_rows][:, 0], [28, 29]).mean()
    assert paper.dawid_sebastiani == np.inf
    assert paper.not_positive == pytest.approx(negative)
    assert np.isfinite(paper.dawid_sebastiani_positive)
    assert np.isfinite(direct.dawid_sebastiani)
    assert direct.dawid_sebastiani == direct.dawid_sebastiani_positive
    assert "where V > 0" in str(paper)
    assert "where V > 0" not in str(direct)


def test_astronomic_scores_are_printed_in_few_digits():
    J, V, B = np.zeros(4), np.array([1e-24, 1e-25, 1.0, 4.0]), np.array([3e3, 1e3, 2.0, 1.0])
    score = Score.of(ScoreSums.of(step_scores(J, V, B), np.array([0, 0, 1, 2])), 0)
    assert score.calibration == pytest.approx(19e30 / 4)
    text = str(score)
    assert text.count("4.75e+30") == 2  # the calibration and the score that holds it
    assert max(len(cell) for line in text.splitlines()[2:] for cell in line.split("  ")[1:]) < 12


def test_certain_and_unvisited_steps_are_counted():
    chain = pr.domains.boyan()
    risk = pr.LSTD(pr.Tabular(12)).fit_exact(chain, start=0)
    data = chain.sample(0, episodes=200, seed=4)
    score = risk.score(data)
    last = (data.states[data.visited_rows][:, 0] == 11).mean()
    assert score.certain == pytest.approx(last)  # the reward of the last state is sure
    assert score.not_positive == 0
    assert np.isfinite(score.dawid_sebastiani)
    seen = pr.LSTD(pr.Tabular(12)).fit(data[:1])
    x = data.states[data.visited_rows]
    partial = seen.score(data)
    assert partial.unvisited == pytest.approx(np.mean(~seen.visited(x)))
    assert 0 < partial.unvisited < 1
    assert "unvisited states" in str(partial)


def test_dawid_sebastiani_is_proper_exactly(walk):
    J, V, q = walk.mean(), walk.variance(), walk.occupancy(0)
    positive = V > 1e-12

    def expected(a, b):  # E[log b + (B − a)²/b] with E B = J, Var B = V
        return q[positive] @ (np.log(b) + (V + (J - a) ** 2) / b)[positive] / q[positive].sum()

    rng = np.random.default_rng(0)
    best = expected(J, V)
    for _ in range(200):
        worse = expected(J + 0.3 * rng.standard_normal(8), V * np.exp(0.3 * rng.standard_normal(8)))
        assert worse > best


def test_the_truth_wins_on_samples(walk):
    data = walk.sample(0, episodes=3000, seed=7)
    x, B = data.states[data.visited_rows][:, 0], data.returns_to_go(0.95)
    episode = np.repeat(np.arange(len(data)), data.lengths)
    J, V = walk.mean()[x], walk.variance()[x]
    truth = step_scores(J, V, B).dawid_sebastiani
    for a, b in ((J + 0.5, V), (J - 0.5, V), (J, 1.4 * V), (J, V / 1.4)):
        difference = ClusterSums.of(step_scores(a, b, B).dawid_sebastiani - truth, episode)
        assert difference.mean() / difference.standard_error() > 4
    calibration = exact(walk).score(data).calibration
    assert abs(calibration - 1) < 4 * calibration.standard_error


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("maps", MAPS)
def test_a_loaded_risk_function_answers_bit_for_bit(maps, method, dtype, tmp_path):
    risk = make_risk(maps, method, dtype=dtype, replicates=100)
    risk.save(tmp_path / "r.npz")
    loaded = RiskFunction.load(tmp_path / "r.npz")
    x = np.random.default_rng(3).uniform(0, 1, 50)
    for of in QUANTITIES:
        np.testing.assert_array_equal(getattr(loaded, of)(x), getattr(risk, of)(x))
        np.testing.assert_array_equal(loaded.standard_error(x, of), risk.standard_error(x, of))
        np.testing.assert_array_equal(loaded.interval(x, of), risk.interval(x, of))
        boot = [r.interval(x, of, method="bootstrap") for r in (loaded, risk)]
        np.testing.assert_array_equal(*boot)
    np.testing.assert_array_equal(loaded.episodes(x), risk.episodes(x))
    assert loaded.provenance == risk.provenance  # its condition may be nan
    assert loaded.returns == risk.returns
    assert loaded.error_bars.mean.dtype == dtype
    assert str(loaded.summary(x)) == str(risk.summary(x))
    assert (loaded.second_support is loaded.support) == (risk.second_support is risk.support)


def test_an_exact_risk_function_round_trips(tmp_path):
    chain = pr.domains.walk(n=8, p=0.7)
    risk = pr.LSTD(pr.Tabular(8)).fit_exact(chain, start=0)
    risk.save(tmp_path / "r.npz")
    loaded = RiskFunction.load(tmp_path / "r.npz")
    assert loaded.support.limit == np.inf
    assert loaded.error_bars is None
    assert loaded.returns is None
    np.testing.assert_array_equal(loaded.variance(np.arange(8)), risk.variance(np.arange(8)))
    assert [file.name for file in tmp_path.iterdir()] == ["r.npz"]


def test_a_record_that_is_not_quite_symmetric_rounds_alike():
    risk = make_risk("dense", "direct")
    bars = risk.error_bars
    skew = bars.second + np.triu(np.full(bars.second.shape, 1e-9), 1)
    settled = ErrorBars(bars.mean_kept, bars.second_kept, np.asfortranarray(bars.mean), bars.cross, skew)
    np.testing.assert_array_equal(settled.second, bars.second)
    assert settled.mean.flags.c_contiguous
    assert not settled.mean.flags.writeable


def test_damaged_files_are_clear_errors(tmp_path):
    path = tmp_path / "r.npz"
    risk = make_risk("dense", "direct")
    risk.save(path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidInputError, match="damaged"):
            RiskFunction.load(path)
    with pytest.raises(InvalidInputError, match="does not exist"):
        RiskFunction.load(tmp_path / "none.npz")
    np.savez(path, w_mean=np.array([object()], dtype=object))  # a pickle is not read
    with pytest.raises(InvalidInputError, match="damaged"):
        RiskFunction.load(path)


def test_flipped_bits_are_clear_errors_or_harmless(tmp_path):
    path = tmp_path / "r.npz"
    risk = make_risk("dense", "direct", replicates=100)
    risk.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    errors = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(
                RiskFunction.load(path).w_mean, risk.w_mean
            )  # a date in the archive
        except InvalidInputError:
            errors += 1
    assert errors > 200


def test_altered_and_foreign_files_are_clear_errors(tmp_path, monkeypatch):
    path = tmp_path / "r.npz"
    make_risk("dense", "direct").save(path)
    with np.load(path) as file:
        columns = dict(file)
    np.savez(path, **{**columns, "w_mean": columns["w_mean"] + 1})
    with pytest.raises(InvalidInputError, match="checksum"):
        RiskFunction.load(path)
    storage.save(path, "Trajectories", {})
    with pytest.raises(InvalidInputError, match="got Trajectories"):
        RiskFunction.load(path)
    storage.save(path, "RiskFunction", {"variance_method": "direct"})
    with pytest.raises(InvalidInputError, match="use the version that wrote it"):
        RiskFunction.load(path)
    monkeypatch.setattr(storage, "FORMAT", 99)
    make_risk("dense", "direct").save(path)
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match="format 99"):
        RiskFunction.load(path)


def test_what_cannot_be_saved_says_so(tmp_path):
    class Bare:
        size = 2

        def __call__(self, states):
            return LINE(states)

    with pytest.raises(InvalidInputError, match=r"must have a spec\(\)"):
        make_risk((Bare(), LINE), "direct").save(tmp_path / "r.npz")
    assert list(tmp_path.iterdir()) == []


def test_text_says_what_it_is():
    risk = make_risk("mixed", "second-moment", replicates=100)
    assert repr(risk).startswith("RiskFunction(LSTD, lam=0.9, discount=1, Polynomial(degree=1")
    assert "TileCoding" in repr(risk)
    assert "error bars: yes, with 100 bootstrap replicates" in str(risk)
    assert "40 episodes, 400 transitions" in str(risk)
    provenance = Provenance(
        "LSTD", 0.9, 1.0, 0.1, episodes=3, terminated=1, outside=1, given_up=2, redundant=1, constrained=1
    )
    assert len(provenance.remarks) == 5
    assert "ridge=0.1" in provenance.settings


def test_provenances_are_equal_where_all_numbers_are() -> None:
    """nan is another object after loading, and from Python 3.13 on dataclasses compare field by field."""
    one, other = (Provenance("TD", 0.5, 1.0, condition=float("nan"), skipped=("a",)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Provenance("TD", 0.5, 1.0, condition=2.0, skipped=("a",))
    assert one != Provenance("TD", 0.5, 1.0)
    assert one != "TD"


# --- estimates ----------------------------------------------------------------------------------------------


def test_an_estimate_is_a_number_with_an_error():
    estimate = Estimate.of(3.0, 0.5, episodes=5, level=0.9)
    t = stats.t.ppf(0.95, 4)
    assert estimate.low == pytest.approx(3 - 0.5 * t)
    assert estimate.high == pytest.approx(3 + 0.5 * t)
    assert estimate == 3.0
    assert estimate * 2 == 6.0
    assert f"{estimate:.2f}" == "3.00"
    assert repr(Estimate(2.0)) == "2"
    assert student_quantile(0.9, 0.0) == student_quantile(0.9, 2.0)  # one degree of freedom at least


def test_intervals_with_few_episodes_behind_them_are_said_to_be_too_narrow():
    chain = pr.domains.walk(6, 0.7)
    lstd = pr.LSTD(pr.Tabular(6))
    with pytest.warns(FewEpisodesWarning, match=r"behind the interval at 6 of 6 states, 99 at the fewest"):
        lstd.fit(chain.sample(0, episodes=99, seed=0)).interval(np.arange(6), of="std")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lstd.fit(chain.sample(0, episodes=100, seed=0)).interval(np.arange(6), of="std")


def test_an_interval_that_is_not_said_to_be_of_something_is_the_variances_with_a_warning():
    data = pr.domains.walk(6, 0.7).sample(0, episodes=200, seed=0)
    risk, sampled = pr.LSTD(pr.Tabular(6)).fit(data), pr.monte_carlo(pr.domains.walk(6, 0.7), None, [0], 50)
    calls = [partial(each, range(6)) for each in (risk.interval, risk.band)]
    for call in (*calls, sampled.interval):
        seed = {"seed": 0} if call is calls[1] else {}
        with pytest.warns(DeprecationWarning, match='Write of="variance"') as seen:
            found = call(**seed)
        assert [each.filename for each in seen] == [__file__]
        np.testing.assert_array_equal(found, call(of="variance", **seed))


def test_error_bars_of_replicates_alone_are_their_covariance():
    chain = pr.domains.walk(n=6, p=0.7)
    data = chain.sample(0, episodes=300, seed=1)
    full = pr.LSTD(pr.Tabular(6), variance="direct").fit(data, bootstrap=4000, seed=2)
    bars = full.error_bars
    drawn = replace(full, error_bars=replace(bars, mean=None, cross=None, second=None))
    x = np.arange(6)
    for of in ("mean", "variance", "std", "sharpe"):
        # 4,000 draws know a standard error to 1.1 %
        np.testing.assert_allclose(drawn.standard_error(x, of), full.standard_error(x, of), rtol=0.06)
    R = bars.replicates
    k = len(bars.mean_kept)
    np.testing.assert_allclose(
        drawn.standard_error(x, "mean"), np.sqrt((R[:, :k] ** 2).mean(axis=0)), rtol=1e-12
    )
    summary, other = drawn.summary([[0]]), full.summary([[0]])
    np.testing.assert_allclose(summary.covariance, other.covariance, rtol=0.12)


def test_error_bars_need_a_covariance_or_replicates():
    kept = np.arange(2)
    with pytest.raises(InvalidInputError, match="neither"):
        ErrorBars(kept, kept, None, None, None)


def test_as_many_numbers_as_coordinates_are_one_state():
    rng = np.random.default_rng(0)
    data = pr.Trajectories(rng.random((110, 3)), rng.random(100), [10] * 10, [True] * 10)
    phi = pr.Polynomial(1, [0] * 3, [1] * 3)
    risk = pr.LSTD(phi).fit(data)
    dist = pr.ReturnDistribution(phi, thresholds=10).fit(data)
    x = [0.25, 0.5, 0.75]
    for read in (risk.mean, risk.std, risk.episodes, dist.mean, lambda at: dist.quantile(at, 0.5)):
        np.testing.assert_array_equal(read(x), read([x]))
    with pytest.raises(InvalidInputError, match="3 coordinates"):
        risk.mean([0.25, 0.5])
    named = pr.LSTD(pr.Polynomial(1, [0], [1], dims=[1])).fit(replace(data, coordinates=["a", "b", "c"]))
    assert named.mean(x) == named.mean([x])  # whatever the features look at
    few = pr.LSTD(pr.Polynomial(1, [0], [1])).fit(pr.Trajectories([[0.1], [0.2], [0.3]], [1, 2], [2], [True]))
    assert few.mean([0.25]).shape == (1,)
    assert few.mean(x).shape == (3,)  # three states of one coordinate
