"""Error bars against their definition, episode by episode, and against the spread of estimates."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import accumulate, dense
from scipy.linalg import block_diag

from policyrisk._core import devices as threads_module
from policyrisk._core.devices import single_threaded
from policyrisk._core.random import _MULTIPLIERS, keys, mammen, stream, uniform
from policyrisk.data import Trajectories
from policyrisk.domains import walk
from policyrisk.equations import Weights
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features import Polynomial, Tabular, TileCoding
from policyrisk.lstd import LSTD
from policyrisk.lstd.definition import Definition, rows
from policyrisk.lstd.influences import sandwich
from policyrisk.lstd.nonnegative import Face
from policyrisk.lstd.residuals import ResidualPass, direct_right_hand_side, lag_products
from policyrisk.lstd.steps import View
from policyrisk.risk import ErrorBars
from policyrisk.risk.completed import episode_terms
from policyrisk.selection.out_of_fold import fits_without_each

N = 5
METHODS = [
    pytest.param(False, 0.0, id="second-moment"),
    *(pytest.param(True, kappa, id=f"direct-{kappa}") for kappa in (0.0, 0.6, 1.0)),
]
MAPS: dict[str, tuple[Any, Any]] = {
    "table": (Tabular(N), Tabular(N)),
    "tiles": (TileCoding([0], [N], bins=[3], tilings=2), TileCoding([0], [N], bins=[3], tilings=2)),
    "polynomial": (Polynomial(1, [0], [N]), Polynomial(2, [0], [N])),
    "dense and sparse": (Polynomial(2, [0], [N]), Tabular(N)),
    "sparse and dense": (Tabular(N), Polynomial(2, [0], [N])),
}


def walks(episodes: int, seed: int, most: int = 12) -> Trajectories:
    """A walk on 0, …, 4 that leaves to 5, with noisy rewards; cut off after ``most`` steps."""
    rng = np.random.default_rng(seed)
    paths = np.full((episodes, most + 1), N)
    paths[:, 0] = rng.integers(N, size=episodes)
    for t in range(most):
        x = paths[:, t]
        step = np.where(rng.random(episodes) < 0.6, x + 1, np.maximum(x - 1, 0))
        paths[:, t + 1] = np.where(x == N, N, step)
    lengths = (paths[:, :-1] < N).sum(axis=1)
    steps = np.arange(most + 1)
    x = paths[steps < lengths[:, None]]
    rewards = rng.normal(1 + x, 1 + 0.3 * x)
    return Trajectories(paths[steps <= lengths[:, None]], rewards, lengths, paths[:, -1] == N)


def definition(
    pair: Any, lam: float, discount: float, direct: bool, ridge: float = 0.0, kappa: float = 0.0
) -> Definition:
    return Definition(*pair, lam=lam, discount=discount, ridge=ridge, direct=direct, variance_lam=kappa)


def bars_of(
    parts: Any, equations: Any, weights: Weights, direct: bool = False, face: Face | None = None, **draws: Any
) -> ErrorBars:
    """The error bars of data in parts."""
    work = ResidualPass.of(
        view_of(equations), weights, direct=direct, episodes=[len(part) for part in parts], **draws
    )
    return sandwich(reduce(add, [work(part, i) for i, part in enumerate(parts)]), equations, weights, face)


def right_hand_side(data: Any, equations: Any, w_J: Any, kappa: float = 0.0) -> npt.NDArray[np.float64]:
    return direct_right_hand_side(data, w_J, view_of(equations), kappa)


def view_of(equations: Any) -> View:
    return View(equations.features, equations.second_features, equations.lam, equations.discount)


def stacked(bars: Any, l_J: int, l_M: int) -> npt.NDArray[np.float64]:
    out = np.zeros((l_J + l_M, l_J + l_M))
    J, M = bars.mean_kept, l_J + bars.second_kept
    out[np.ix_(J, J)], out[np.ix_(J, M)] = bars.mean, bars.cross
    out[np.ix_(M, J)], out[np.ix_(M, M)] = bars.cross.T, bars.second
    return out


def fitted(
    data: Trajectories,
    pair: Any,
    lam: float,
    discount: float,
    ridge: float,
    direct: bool,
    kappa: float = 0.0,
) -> Any:
    equations = accumulate(data, *pair, lam=lam, discount=discount)
    weights = equations.solve(ridge)
    if direct:
        rhs = right_hand_side(data, equations, weights.mean, kappa)
        weights = replace(weights, second=weights.second_system.solve(rhs))
    return equations, weights


def estimable(pair: Any, which: int) -> npt.NDArray[np.float64]:
    """Features of the states: what redundant features leave undetermined drops out of φᵀψ."""
    return dense(pair[which](np.arange(N)))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("direct", "kappa"), METHODS)
def test_weights_are_those_of_the_definition(name: str, direct: bool, kappa: float) -> None:
    data, pair = walks(40, seed=3), MAPS[name]
    for lam, discount, ridge in [(0.0, 1.0, 0.0), (0.9, 0.95, 0.0), (0.9, 1.0, 0.2)]:
        _, weights = fitted(data, pair, lam, discount, ridge, direct, kappa)
        truth = definition(pair, lam, discount, direct, ridge, kappa).weights(data)
        for which, (got, w) in enumerate(zip((weights.mean, weights.second), truth, strict=True)):
            np.testing.assert_allclose(estimable(pair, which) @ got, estimable(pair, which) @ w, rtol=1e-8)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("direct", "kappa"), METHODS)
@pytest.mark.parametrize("episodes", [6, 60], ids=["few", "many"])
def test_covariance_is_that_of_the_written_out_influences(
    name: str, direct: bool, kappa: float, episodes: int
) -> None:
    """Fewer episodes than weights are solved one by one, more of them through their sum."""
    data, pair = walks(episodes, seed=episodes), MAPS[name]
    settings = [(0.0, 1.0, 0.0), (0.9, 1.0, 0.0), (0.5, 0.9, 0.0), (1.0, 0.9, 0.0), (0.9, 1.0, 0.2)]
    for lam, discount, ridge in settings:
        if name == "tiles" and ridge:
            continue  # a ridge settles what pinv leaves open; the others show it
        equations, weights = fitted(data, pair, lam, discount, ridge, direct, kappa)
        bars = bars_of([data], equations, weights, direct, variance_lam=kappa)
        slow = definition(pair, lam, discount, direct, ridge, kappa)
        truth = slow.covariance(data, weights.mean, weights.second)
        phi = block_diag(estimable(pair, 0), estimable(pair, 1))
        got = phi @ stacked(bars, pair[0].size, pair[1].size) @ phi.T
        truth = phi @ truth @ phi.T
        np.testing.assert_allclose(got, truth, atol=1e-8 * np.abs(truth).max())


@pytest.mark.parametrize("direct", [False, True], ids=["second-moment", "direct"])
@pytest.mark.parametrize("episodes", [6, 60])
def test_on_the_active_face(direct: bool, episodes: int) -> None:
    data, pair = walks(episodes, seed=2), MAPS["polynomial"]
    equations, weights = fitted(data, pair, 0.9, 1.0, 0.0, direct)
    states = np.array([0.0, 4.0])
    phi_J, phi_M = dense(pair[0](states)), dense(pair[1](states))
    J = phi_J @ weights.mean
    # Scores at the constrained weights: the multipliers keep them from summing to zero.
    w_M = weights.second + np.linalg.pinv(phi_M) @ ((0 if direct else J**2) - phi_M @ weights.second)
    weights = replace(weights, second=w_M)
    face = Face(H=-phi_M, G=np.zeros_like(phi_J) if direct else -2 * J[:, None] * phi_J)
    bars = bars_of([data], equations, weights, direct, face)
    truth = definition(pair, 0.9, 1.0, direct).covariance(data, weights.mean, w_M, (face.H, face.G))
    got = stacked(bars, pair[0].size, pair[1].size)
    np.testing.assert_allclose(got, truth, atol=1e-9 * np.abs(truth).max())
    # The variance that the constraint holds at zero has no error: to rounding, and as it is known by itself.
    held = np.hstack([face.G, -face.H])
    assert np.abs(held @ got @ held.T).max() < 1e-9 * np.abs(got).max()
    assert not bars.covariance(face.G, -face.H).any()
    factor = np.zeros(N) if direct else -2 * estimable(pair, 0) @ weights.mean
    holds = bars.holds(factor, estimable(pair, 0), estimable(pair, 1))
    assert holds.tolist() == [True, False, False, False, True]


def test_redundant_active_rows_change_nothing() -> None:
    data, pair = walks(30, seed=2), MAPS["table"]
    equations, weights = fitted(data, pair, 0.9, 1.0, 0.0, True)
    row = dense(pair[1](np.array([3])))
    once = bars_of([data], equations, weights, True, Face(row, np.zeros((1, N))))
    twice = bars_of([data], equations, weights, True, Face(np.vstack([row, row]), np.zeros((2, N))))
    np.testing.assert_allclose(once.second, twice.second, atol=1e-10)
    assert np.abs(once.second[3]).max() < 1e-10


@pytest.mark.parametrize("direct", [False, True], ids=["second-moment", "direct"])
def test_residuals_meet_returns_that_are_completed_by_the_estimate(direct: bool) -> None:
    """Σ s_k z_kᵀ of one episode, z_k from g = Σ γᵗ r_t + γᵀ J̃(x_T) and γ²ᵀ Ṽ(x_T) where it was cut off."""
    data, gamma, about = walks(30, seed=6, most=6), 0.9, 2.0
    assert 0.2 < data.terminated.mean() < 0.9
    pair = MAPS["polynomial"]
    equations, weights = fitted(data, pair, 0.7, gamma, 0.0, direct)
    work = ResidualPass.of(view_of(equations), weights, direct=direct, reference=about)

    def J(x: Any) -> Any:
        return dense(pair[0](x)) @ weights.mean

    def V(x: Any) -> Any:
        return dense(pair[1](x)) @ weights.second - (0.0 if direct else J(x) ** 2)

    for episode in data:
        T, x_0, x_T = episode.transitions, episode.states[:1], episode.states[-1:]
        goes_on = not episode.terminated[0]
        g = gamma ** np.arange(T) @ episode.rewards + goes_on * gamma**T * J(x_T)
        z = episode_terms(g - about, goes_on * gamma ** (2 * T) * V(x_T), J(x_0) - about, V(x_0))
        found = work(episode, 0)
        np.testing.assert_allclose(found.beside, np.outer(found.sum, z), rtol=1e-9)


@pytest.mark.parametrize("kappa", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("name", MAPS)
def test_direct_right_hand_side(name: str, kappa: float) -> None:
    data, pair = walks(20, seed=4), MAPS[name]
    equations = accumulate(data, *pair, lam=0.7, discount=0.9)
    w_J = np.random.default_rng(0).normal(size=pair[0].size)
    slow = definition(pair, 0.7, 0.9, direct=True, kappa=kappa)
    got = right_hand_side(data, equations, w_J, kappa)
    np.testing.assert_allclose(
        got, sum(slow.right_hand_side(episode, w_J)[0] for episode in data), rtol=1e-11
    )


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("kappa", [0.0, 0.6])
def test_streams_chunks_blocks_and_threads_change_nothing(
    name: str, kappa: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, pair = walks(40, seed=5), MAPS[name]
    equations, weights = fitted(data, pair, 0.9, 0.9, 0.0, True, kappa)
    work = ResidualPass.of(view_of(equations), weights, direct=True, variance_lam=kappa, replicates=3, seed=1)
    whole = sandwich(work(data, 0), equations, weights)
    rhs = right_hand_side(data, equations, weights.mean, kappa)
    for size in ("DENSE_CHUNK", "DENSE_BLOCK", "SPARSE_CHUNK"):
        monkeypatch.setattr(f"policyrisk.lstd.steps.{size}", 3)
    for threads in (1, 3):
        monkeypatch.setattr(threads_module, "get_num_threads", lambda threads=threads: threads)
        stream = sandwich(work([data[:3], data[3:]], 0), equations, weights)
        for block in ("mean", "cross", "second"):
            np.testing.assert_allclose(getattr(stream, block), getattr(whole, block), rtol=1e-6)
        np.testing.assert_allclose(stream.replicates, whole.replicates, atol=1e-7)
        again = right_hand_side(list(data), equations, weights.mean, kappa)
        np.testing.assert_allclose(again, rhs, rtol=1e-11)


def test_unvisited_features_are_left_out() -> None:
    data = walks(30, seed=6)
    equations = accumulate(data, Tabular(N + 4), Polynomial(1, [0], [N]), lam=0.5, discount=1.0)
    bars = bars_of([data], equations, equations.solve(), replicates=2, seed=0)
    assert bars.replicates is not None
    assert bars.replicates.shape == (2, N + 2)
    np.testing.assert_array_equal(bars.mean_kept, np.arange(N))
    assert bars.mean.shape == (N, N)
    assert bars.cross.shape == (N, 2)
    assert np.isfinite(bars.second).all()


def test_large_covariances_are_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    data = walks(30, seed=6)
    equations = accumulate(data, Tabular(N), lam=0.5, discount=1.0)
    double = bars_of([data], equations, equations.solve())
    monkeypatch.setattr("policyrisk.lstd.influences.SINGLE_FROM", 2 * N - 1)
    single = bars_of([data], equations, equations.solve())
    assert double.second.dtype == np.float64
    assert single.second.dtype == np.float32
    np.testing.assert_allclose(single.second, double.second, atol=1e-5 * np.abs(double.second).max())


def test_one_episode_has_no_error_bars() -> None:
    data = Trajectories([0, 1, 2], [1.0, 2.0], [2], [True])
    equations = accumulate(data, Tabular(2), lam=0.5, discount=1.0)
    assert np.isnan(bars_of([data], equations, equations.solve()).mean).all()


def test_bootstrap_deviations_have_the_covariance_and_the_skewness() -> None:
    data, pair = walks(40, seed=7), MAPS["polynomial"]
    equations, weights = fitted(data, pair, 0.9, 1.0, 0.0, False)
    B = 40_000
    draws = bars_of([data], equations, weights, replicates=B, seed=3).replicates
    assert draws is not None
    assert draws.shape == (B, 5)
    psi = np.hstack(definition(pair, 0.9, 1.0, False).influences(data, weights.mean, weights.second))
    psi = (psi - psi.mean(axis=0)) * np.sqrt(len(data) / (len(data) - 1)) / len(data)
    scale = np.sqrt((psi**2).sum(axis=0))
    u = draws / scale
    for power, truth in [(1, np.zeros(5)), (2, np.ones(5)), (3, (psi**3).sum(axis=0) / scale**3)]:
        z = ((u**power).mean(axis=0) - truth) / ((u**power).std(axis=0) / np.sqrt(B))
        assert np.abs(z).max() < 4, power
    again = bars_of([data], equations, weights, replicates=B, seed=3)
    np.testing.assert_array_equal(again.replicates, draws)


def test_multipliers_come_from_the_seed_and_the_number_of_the_episode() -> None:
    key, root = keys(7), np.sqrt(5.0)
    whole, rest = np.empty((6, 4)), np.empty((4, 4))
    mammen(*key, np.arange(6), whole)
    mammen(*key, np.array([2, 3, 5, 4]), rest)
    np.testing.assert_array_equal(rest, whole[[2, 3, 5, 4]])
    for k in range(6):
        state = stream(key[0] ^ _MULTIPLIERS, key[1], k)
        for b in range(4):
            u, *state = uniform(*map(np.uint64, state))
            assert whole[k, b] == ((1 - root) / 2 if u < (root + 1) / (2 * root) else (1 + root) / 2)


def test_multipliers_are_independent_of_episodes_that_were_simulated_with_the_same_seed() -> None:
    """Else the first of them go along with the first steps, and standard errors are too large."""
    data = walk(n=5, p=0.7).sample(0, episodes=5000, seed=3)
    risk = LSTD(Tabular(5)).fit(data, bootstrap=40, seed=3)
    error = np.sqrt(np.diag(risk.error_bars.mean))
    assert np.abs(risk.error_bars.replicates[:, :5] / error).max() < 4.5  # 200 of them, in a few dimensions


@pytest.mark.parametrize("name", ["table", "polynomial"])
def test_sums_of_parts_add_up(name: str) -> None:
    """Few episodes are kept, many summed: any split gives the sums of the whole, multipliers included."""
    data, pair = walks(40, seed=5), MAPS[name]
    equations, weights = fitted(data, pair, 0.9, 0.9, 0.0, True)
    options: Any = {"direct": True, "replicates": 3, "seed": 1}
    whole = bars_of([data], equations, weights, **options)
    for cuts in ([3], [1, 2], [20], [5, 15, 38]):
        got = bars_of([data[a:b] for a, b in pairwise([0, *cuts, 40])], equations, weights, **options)
        for block in ("mean", "cross", "second", "replicates"):
            np.testing.assert_allclose(getattr(got, block), getattr(whole, block), rtol=1e-9)


@pytest.mark.parametrize("method", ["second-moment", "direct"])
def test_standard_errors_match_the_spread_of_estimates(method: Any) -> None:
    """400 replications on the chain: the ratio of variances has a known error, so a z-score."""
    features, episodes, runs = Tabular(N), 150, 400
    estimates, predicted = [], []
    everything = walks(episodes * runs, seed=9, most=30)
    for run in range(runs):
        data = everything[run * episodes : (run + 1) * episodes]
        with single_threaded():  # on systems of five equations a second BLAS thread only waits
            equations, weights = fitted(data, (features, features), 0.8, 0.95, 0.0, method == "direct")
            bars = bars_of([data], equations, weights, method == "direct")
        J = weights.mean
        V = weights.second - (J**2 if method == "second-moment" else 0)
        a_J = -2 * J if method == "second-moment" else np.zeros(N)
        S = stacked(bars, N, N)
        jacobian = np.vstack([np.hstack([np.eye(N), np.zeros((N, N))]), np.hstack([np.diag(a_J), np.eye(N)])])
        estimates.append(np.concatenate([J, V]))
        predicted.append(np.diag(jacobian @ S @ jacobian.T))
    x = np.array(estimates) - np.mean(estimates, axis=0)
    spread, mean_predicted = x.var(axis=0, ddof=1), np.mean(predicted, axis=0)
    error = np.sqrt(((x**2).var(axis=0) + np.var(predicted, axis=0)) / runs)
    # The first-order formula leaves out terms of relative size 1/episodes; 3% of the variance is for them.
    assert (np.abs(spread - mean_predicted) < 3 * error + 0.03 * spread).all()
    assert (error < 0.12 * spread).all()


def test_wrong_sources_are_named() -> None:
    data = walks(10, seed=8)
    equations = accumulate(data, Tabular(N), lam=0.5, discount=1.0)
    weights: Weights = equations.solve()
    with pytest.raises(MismatchError, match="10 episodes, got 9"):
        bars_of([data[:9]], equations, weights)
    with pytest.raises(InvalidInputError, match="at least one episode"):
        bars_of([data[:0]], equations, weights)


def test_lag_products_are_those_of_every_pair_of_steps() -> None:
    data, w, gamma, lam = walks(20, seed=7), np.random.default_rng(1).normal(size=N), 0.9, 0.7
    found = []
    for episode in data:
        phi = rows(Tabular(N), episode)
        delta = episode.rewards + gamma * phi[1:] @ w - phi[:-1] @ w
        pairs = [(t, s) for s in range(len(delta)) for t in range(s)]
        found.append(
            sum(2 * gamma ** (2 * t) * (lam * gamma) ** (s - t) * delta[t] * delta[s] for t, s in pairs)
        )
    got = lag_products(list(data), w, View(Tabular(N), Tabular(N), lam, gamma))
    np.testing.assert_allclose(got, [np.sum(found), np.square(found).sum()], rtol=1e-10)


def test_long_returns_are_chosen_where_the_features_miss_the_mean() -> None:
    """Hardly ever with a table, which is right, and always with two tiles for a walk of 30 states."""
    chosen = []
    for seed in range(20):
        data = walk(30, 0.7).sample(0, episodes=200, seed=seed)
        parts = [data[:100], data[100:]]
        for phi in (Tabular(30), TileCoding([0], [29], bins=2)):
            fit = fits_without_each(LSTD(phi, variance="direct"), parts, choose=True)[-1]
            chosen.append(fit.provenance.variance_lam)
    assert np.mean(np.array(chosen[::2]) > 0) <= 0.05
    assert chosen[1::2] == [0.9] * 20
