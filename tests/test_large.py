"""Sums that stay sparse: against the definition, against dense ones, and solved by iteration.

The sparse path is forced at small sizes by lowering ``DENSE_MOST``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from conftest import accumulate, dense
from test_accumulate import MAPS, episodes, reference

import policyrisk as pr
from policyrisk._core import devices as threads_module
from policyrisk.data import Trajectories
from policyrisk.equations import MomentEquations, Weights, systems
from policyrisk.equations import moment_equations as equations_module
from policyrisk.errors import (
    ImproperPolicyError,
    InvalidInputError,
    MismatchError,
    NoErrorBarsWarning,
    SolverError,
    UnvisitedError,
)
from policyrisk.lstd import trace_products
from policyrisk.lstd.trace_products import steps_of

MATRICES = ("A", "C", "D")
COUNTS = ("visits", "second_visits", "feature_episodes", "second_feature_episodes")
SPARSE_MAPS = ("tabular", "tiles", "tilings", "hats")
LOW, HIGH = [0.0, 0.0], [1.0, 1.0]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(equations_module, "DENSE_MOST", 1)
    monkeypatch.setattr(trace_products, "TRACE_CUT", 0.0)
    return monkeypatch


def within(data: Trajectories, features: Any, second: Any, lam: float, discount: float, cut: float) -> Any:
    """The sums of the definition, with z_t = Σ_{k<K} (λγ)^k φ_{t−k} written out."""
    l_J, l_M = features.size, second.size
    out = {
        "A": np.zeros((l_J, l_J)), "b": np.zeros(l_J), "C": np.zeros((l_M, l_M)), "D": np.zeros((l_M, l_J)),
        "e": np.zeros(l_M),
    }  # fmt: skip
    for episode in data:
        T, done = int(episode.lengths[0]), bool(episode.terminated[0])
        states = episode.states[:T] if done else episode.states
        J, M = (phi(states).toarray() for phi in (features, second))
        if done:
            J, M = np.vstack([J, np.zeros(l_J)]), np.vstack([M, np.zeros(l_M)])
        for t, r in enumerate(episode.rewards):
            z, y = (
                sum(
                    (kappa**k * phi[t - k] for k in range(min(t + 1, steps_of(kappa, cut)))),
                    np.zeros(phi.shape[1]),
                )
                for kappa, phi in ((lam * discount, J), (lam * discount**2, M))
            )
            out["A"] += np.outer(z, J[t] - discount * J[t + 1])
            out["b"] += z * r
            out["C"] += np.outer(y, M[t] - discount**2 * M[t + 1])
            out["D"] += np.outer(y, 2 * discount * r * J[t + 1])
            out["e"] += y * r**2
    return out


def check(found: MomentEquations, truth: dict[str, Any]) -> None:
    assert found.sparse
    for name in MATRICES:
        matrix = getattr(found, name)
        assert sp.issparse(matrix)
        assert matrix.indices.dtype == np.int32
        afresh = sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
        assert afresh.has_canonical_format
        tolerance = 1e-13 * (1 + np.abs(truth[name]).max())
        np.testing.assert_allclose(matrix.toarray(), truth[name], atol=tolerance, err_msg=name)
    for name in ("b", "e"):
        np.testing.assert_allclose(getattr(found, name), truth[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "pair", [*zip(SPARSE_MAPS, SPARSE_MAPS, strict=True), ("tilings", "hats")], ids="-".join
)
@pytest.mark.parametrize("ends", ["terminated", "cut", "mixed"])
def test_sparse_sums_are_those_of_the_definition(
    pair: tuple[str, str], ends: str, large: pytest.MonkeyPatch
) -> None:
    data, features, second = episodes(ends), MAPS[pair[0]], MAPS[pair[1]]
    for lam, discount in itertools.product([0.0, 0.9, 1.0], [1.0, 0.9]):
        found = accumulate(data, features, second, lam=lam, discount=discount)
        truth = reference(data, features, second, lam, discount)
        check(found, truth)
        assert (found.C is found.A) == (discount == 1.0 and features is second)
        for name in ("gram", "mean_gram"):
            diagonal = np.diag(np.diag(truth[name]))
            np.testing.assert_allclose(getattr(found, name).toarray(), diagonal, atol=1e-12)
        for name in COUNTS:
            np.testing.assert_array_equal(getattr(found, name), truth[name], err_msg=name)


@pytest.mark.parametrize("cut", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("pair", [("tilings", "tilings"), ("hats", "tiles")], ids="-".join)
def test_cut_traces_are_cut_in_every_sum_alike(
    cut: float, pair: tuple[str, str], large: pytest.MonkeyPatch
) -> None:
    large.setattr(trace_products, "TRACE_CUT", cut)
    data, features, second = episodes("mixed", seed=3), MAPS[pair[0]], MAPS[pair[1]]
    for lam, discount in [(0.8, 1.0), (0.9, 0.9), (0.0, 1.0)]:
        found = accumulate(data, features, second, lam=lam, discount=discount)
        check(found, within(data, features, second, lam, discount, cut))
        assert found.trace_cut == cut


def test_a_feature_that_is_active_twice_counts_twice(large: pytest.MonkeyPatch) -> None:
    class Doubled:
        size = 5

        def active(self, states: npt.ArrayLike) -> npt.NDArray[np.int64]:
            index = (np.asarray(states)[:, 0] * 4).astype(np.int64).clip(0, 4)
            return np.column_stack([index, index])

        def __call__(self, states: npt.ArrayLike) -> Any:
            index = self.active(states)
            return sp.csr_array(
                (np.full(len(index), 2.0), (np.arange(len(index)), index[:, 0])), shape=(len(index), 5)
            )

    data = episodes("mixed", seed=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equations_module, "DENSE_MOST", 8000)
        whole = accumulate(data, Doubled(), lam=0.8, discount=1.0)
        np.testing.assert_allclose(whole.D, within(data, *[Doubled()] * 2, 0.8, 1.0, 0.0)["D"], atol=1e-10)
    large.setattr(trace_products, "TRACE_CUT", 0.1)
    check(accumulate(data, Doubled(), lam=0.8, discount=1.0), within(data, *[Doubled()] * 2, 0.8, 1.0, 0.1))


@pytest.mark.parametrize("cut", [0.0, 0.1])
def test_cutting_the_work_up_changes_nothing(cut: float, large: pytest.MonkeyPatch) -> None:
    """Rows of P that are loaded and stored again many times, chunks of few transitions, one row a block."""
    large.setattr(trace_products, "TRACE_CUT", cut)
    data, features = episodes("mixed", count=40), MAPS["tilings"]
    whole = accumulate(data, features, lam=0.9, discount=0.95)
    for enough, most, blocks in ((1, 4, 3), (200, 200, 1000)):
        for name in ("SPARSE_FEWEST", "SPARSE_MOST"):
            large.setattr(trace_products, name, enough)
        large.setattr(trace_products, "BLOCKS", blocks)
        large.setattr("policyrisk.lstd.steps.SPARSE_CHUNK", most)
        cut_up = accumulate(data, features, lam=0.9, discount=0.95)
        check(cut_up, {name: dense(getattr(whole, name)) for name in (*MATRICES, "b", "e")})


def test_the_same_bits_on_one_thread_and_on_many(large: pytest.MonkeyPatch) -> None:
    large.setattr(trace_products, "SPARSE_FEWEST", 500)
    large.setattr("policyrisk.lstd.steps.SPARSE_CHUNK", 256)
    data, results = episodes("mixed", count=100), []
    for threads in (1, 4):
        large.setattr(threads_module, "get_num_threads", lambda threads=threads: threads)
        results.append(accumulate(data, MAPS["tilings"], lam=0.9, discount=0.9))
    for name in MATRICES:
        left, right = (getattr(each, name) for each in results)
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(left, part), getattr(right, part))


def test_sparse_equations_add(large: pytest.MonkeyPatch) -> None:
    data, phi = episodes("mixed", count=30), MAPS["tilings"]
    for discount in (1.0, 0.9):
        lstd = pr.LSTD(phi, lam=0.9, discount=discount)
        whole = lstd.equations(data)
        empty = MomentEquations.empty(phi, lam=0.9, discount=discount)
        assert empty.sparse
        assert empty.shared == (discount == 1.0)
        parts = [empty, lstd.equations(data[:4]), lstd.equations(data[4:4]), lstd.equations(data[4:]), empty]
        for order in (parts, parts[::-1]):
            total = sum(order)
            check(total, {name: dense(getattr(whole, name)) for name in (*MATRICES, "b", "e")})
            assert total.shared == whole.shared
            assert (total.episodes, total.transitions) == (whole.episodes, whole.transitions)
            np.testing.assert_allclose(total.gram.toarray(), whole.gram.toarray())
    assert "sparse, traces cut off at 0" in repr(whole)


def test_sparse_and_dense_equations_do_not_add(large: pytest.MonkeyPatch) -> None:
    data, lstd = episodes("mixed"), pr.LSTD(MAPS["tilings"])
    exact = lstd.equations(data)
    large.setattr(trace_products, "TRACE_CUT", 0.1)
    with pytest.raises(MismatchError, match=r"trace_cut .* got 0\.0 and 0\.1"):
        exact + lstd.equations(data)
    large.setattr(equations_module, "DENSE_MOST", 8000)
    dense = lstd.equations(data)
    assert not dense.sparse
    with pytest.raises(MismatchError, match="agree on sparse"):
        exact + dense


def test_features_decide_what_stays_sparse() -> None:
    data = episodes("terminated")
    many = pr.TileCoding(LOW, HIGH, bins=[4, 4], tilings=2, dims=[0, 1], hashed=8002)
    few = pr.TileCoding(LOW, HIGH, bins=[4, 4], tilings=2, dims=[0, 1], hashed=8000)
    found = accumulate(data, many, lam=0.5, discount=1.0)
    assert found.sparse
    assert found.trace_cut == trace_products.TRACE_CUT
    assert not MomentEquations.empty(few).sparse
    assert accumulate(data, MAPS["tiles"], many, lam=0.5, discount=1.0).sparse
    assert not accumulate(data, MAPS["tiles"], lam=0.5, discount=1.0).sparse


def walks(count: int = 3000, seed: int = 0, cut_off: float = 0.0) -> Trajectories:
    """Walks in the unit square that end at random, rewards that depend on the place."""
    rng = np.random.default_rng(seed)
    lengths = rng.geometric(1 / 20, count)
    rows = int(lengths.sum()) + count
    states = np.abs((np.cumsum(rng.normal(0, 0.08, (rows, 2)), axis=0) + 1) % 2 - 1)
    visited = np.ones(rows, bool)
    visited[np.cumsum(lengths + 1) - 1] = False
    rewards = -1 - states[visited, 0] + rng.normal(0, 0.3, lengths.sum())
    return Trajectories(states, rewards, lengths, rng.random(count) >= cut_off)


PHI = pr.TileCoding(LOW, HIGH, bins=[6, 6], tilings=8, hashed=256)
PSI = pr.TileCoding(LOW, HIGH, bins=[5, 5], tilings=4)
BUMPS = pr.RadialBasis.grid(LOW, HIGH, shape=(12, 12), truncate=2.0)


@pytest.mark.parametrize("second", [None, PSI])
@pytest.mark.parametrize("discount", [1.0, 0.95])
@pytest.mark.parametrize("variance", ["second-moment", "direct"])
def test_estimates_are_those_of_the_dense_solution(
    second: Any, discount: float, variance: Any, large: pytest.MonkeyPatch
) -> None:
    """Redundant tilings, cut-off episodes and hash collisions: the weights differ, the estimates do not."""
    data = walks(cut_off=0.3)
    lstd = pr.LSTD(PHI, second, lam=0.8, discount=discount, variance=variance)
    found = lstd.fit(data, error_bars=False)
    large.setattr(equations_module, "DENSE_MOST", 8000)
    dense = lstd.fit(data, error_bars=False)
    assert dense.provenance.redundant > 0
    assert 0 < found.provenance.residual <= systems.GOAL
    x = data.states[data.visited_rows]
    for of in ("mean", "variance"):
        truth = getattr(dense, of)(x)
        np.testing.assert_allclose(getattr(found, of)(x), truth, atol=1e-5 * truth.std())
    np.testing.assert_array_equal(found.episodes(x), dense.episodes(x))
    assert not np.allclose(found.w_mean, dense.w_mean)


def test_the_direct_variance_has_the_same_cut_on_both_sides(large: pytest.MonkeyPatch) -> None:
    """C w_V = Σ y_t δ_t² with the traces of C: written out, and solved densely."""
    large.setattr(trace_products, "TRACE_CUT", 0.3)
    data = walks(100, seed=7)
    risk = pr.LSTD(PSI, lam=0.8, discount=0.95, variance="direct").fit(data, error_bars=False)
    C = within(data, PSI, PSI, 0.8, 0.95, 0.3)["C"]
    kappa = 0.8 * 0.95**2
    d = np.zeros(PSI.size)
    for episode in data:
        phi = PSI(episode.states[:-1]).toarray()
        J = np.append(phi @ risk.w_mean, 0.0)
        delta = episode.rewards + 0.95 * J[1:] - J[:-1]
        for t in range(len(delta)):
            for k in range(min(t + 1, steps_of(kappa, 0.3))):
                d += kappa**k * phi[t - k] * delta[t] ** 2
    x = data.states[data.visited_rows]
    truth = PSI(x) @ np.linalg.lstsq(C, d, rcond=1e-10)[0]
    np.testing.assert_allclose(risk.variance(x), truth, atol=1e-5 * truth.std())


def test_few_terminations_are_ill_conditioned_and_still_solved(large: pytest.MonkeyPatch) -> None:
    data = walks(3000, seed=2, cut_off=0.999)
    assert 0 < data.terminated.sum() < 8
    lstd = pr.LSTD(PHI, lam=0.0)
    found = lstd.fit(data, error_bars=False)
    large.setattr(equations_module, "DENSE_MOST", 8000)
    dense = lstd.fit(data, error_bars=False)
    assert dense.provenance.condition > 1e4
    x = data.states[data.visited_rows]
    np.testing.assert_allclose(found.mean(x), dense.mean(x), rtol=1e-3)


def test_ridge(large: pytest.MonkeyPatch) -> None:
    equations = accumulate(walks(300), PHI, lam=0.8, discount=1.0)
    A, K = equations.A.toarray(), equations.episodes
    kept = np.flatnonzero(equations.visits)
    weights = equations.solve(ridge=0.01)
    truth = np.zeros(PHI.size)
    square = (A + 0.01 * K * np.eye(PHI.size))[np.ix_(kept, kept)]
    truth[kept] = np.linalg.solve(square, equations.b[kept])
    np.testing.assert_allclose(weights.mean, truth, atol=1e-6 * np.abs(truth).max())
    assert not weights.mean_system.solve(np.zeros(PHI.size)).any()


def test_cut_traces_cost_no_bias_where_the_features_can_represent_the_answer() -> None:
    """A table: with the trace cut off after one step the fixed point is the same, but for the sample."""
    chain = pr.domains.walk(n=30, p=0.7)
    data = chain.sample(start=0, episodes=4000, seed=5)
    results = []
    for size, cut in ((8000, 0.0), (1, 0.3)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(equations_module, "DENSE_MOST", size)
            patch.setattr(trace_products, "TRACE_CUT", cut)
            results.append(pr.LSTD(pr.Tabular(30), lam=0.9).fit(data, error_bars=size > 1))
    exact, cut_off = results
    x = np.arange(30)
    for of in ("mean", "variance"):
        z = (getattr(cut_off, of)(x) - getattr(chain, of)()) / exact.standard_error(x, of=of)
        assert np.abs(z).max() < 4


def test_fit_says_that_there_are_no_error_bars(large: pytest.MonkeyPatch) -> None:
    data = walks(200)
    lstd = pr.LSTD(PHI, lam=0.8)
    with pytest.warns(NoErrorBarsWarning, match="error_bars=False"):
        risk = lstd.fit(data)
    assert risk.error_bars is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = lstd.fit(data, error_bars=False)
        solved = lstd.solve(lstd.equations(data))
    np.testing.assert_array_equal(quiet.w_second, risk.w_second)
    np.testing.assert_array_equal(solved.w_second, risk.w_second)
    large.setattr(trace_products, "TRACE_CUT", 0.01)
    said = str(lstd.fit(data, error_bars=False))
    assert "many features: traces cut off at 0.01, no error bars" in said
    assert "relative residual of" in said
    with pytest.raises(InvalidInputError, match="error bars"):
        risk.standard_error(data.states[:1], of="mean")


def test_what_sparse_sums_cannot_give_is_named(large: pytest.MonkeyPatch) -> None:
    data = walks(50)
    with pytest.raises(InvalidInputError, match="bootstrap=10 needs dense sums"):
        pr.LSTD(PHI).fit(data, bootstrap=10)
    for demand in ("visited", data.states[:3]):
        with pytest.raises(InvalidInputError, match="nonnegative_at needs dense sums"):
            pr.LSTD(PHI, nonnegative_at=demand).fit(data)
    constrained = pr.LSTD(PHI, nonnegative_at=data.states[:3])
    with pytest.raises(InvalidInputError, match="nonnegative_at needs dense sums"):
        constrained.solve(constrained.equations(data))
    weights = pr.LSTD(PHI).equations(data).solve()
    assert isinstance(weights, Weights)
    with pytest.raises(InvalidInputError, match="need dense sums"):
        _ = weights.factored_systems
    with pytest.raises(ImproperPolicyError, match="Assumption 1"):
        pr.LSTD(PHI).equations(walks(50, cut_off=1.0)).solve()
    with pytest.raises(InvalidInputError, match="at least one episode"):
        MomentEquations.empty(PHI).solve()
    large.setattr(trace_products, "MOST_ENTRIES", 10)
    with pytest.raises(InvalidInputError, match=r"at most 10 entries, got .* smaller lam"):
        pr.LSTD(PHI).equations(data)


def test_bootstrapping_from_unvisited_features_is_refused_by_name(large: pytest.MonkeyPatch) -> None:
    data = Trajectories([0, 1] * 50 + [0, 2], [1.0] * 51, [1] * 51, [True] * 50 + [False])
    lstd = pr.LSTD(pr.Tabular(4), lam=0.0)
    with pytest.raises(UnvisitedError, match=r"bootstraps from .*2"):
        lstd.solve(lstd.equations(data))
    risk = lstd.fit(data, error_bars=False)
    assert risk.provenance.given_up == 1
    np.testing.assert_allclose(risk.mean([0]), 1.0)
    assert np.isnan(risk.mean([2])).all()


def test_a_solution_that_is_not_reached_is_an_error(large: pytest.MonkeyPatch) -> None:
    equations = accumulate(walks(300), PHI, lam=0.0, discount=1.0)
    large.setattr(systems, "RESTART", 3)
    large.setattr(systems, "CYCLES", 2)
    with pytest.raises(SolverError, match=r"relative residual of 1e-05, got .* ridge.* TD"):
        equations.solve()


def test_hashed_tiles_end_to_end() -> None:
    """10⁵ features of four coordinates, at full size: no l × l matrix could be had."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(5, 40, 400)
    states = rng.random((lengths.sum() + 400, 4))
    data = Trajectories(states, np.ones(lengths.sum()), lengths, np.ones(400, bool))
    phi = pr.TileCoding(low=[0] * 4, high=[1] * 4, bins=[3] * 4, tilings=8, hashed=100_000)
    lstd = pr.LSTD(phi, lam=0.5, discount=0.9)
    risk = lstd.fit(data, error_bars=False)
    assert risk.w_mean.shape == (100_000,)
    assert risk.provenance.residual < 1e-5
    assert risk.provenance.trace_cut == trace_products.TRACE_CUT
    # A reward of 1 a step, γ = 0.9: near 10 (1 − 0.9^(steps left)), less than 10 and more than 5.
    J = risk.mean(data.states[data.offsets[:-1] + np.arange(400)])
    assert 5 < np.nanmean(J) < 10
    total = lstd.equations(data[:200]) + lstd.equations(data[200:])
    np.testing.assert_allclose(lstd.solve(total).mean(states[:50]), risk.mean(states[:50]), rtol=1e-4)


@pytest.mark.parametrize("features", [PHI, BUMPS], ids=["tiles", "radial"])
def test_saved_and_loaded(features: Any, tmp_path: Any, large: pytest.MonkeyPatch) -> None:
    large.setattr(trace_products, "TRACE_CUT", 0.01)
    data = walks(100)
    risk = pr.LSTD(features, lam=0.8).fit(data, error_bars=False)
    assert risk.support.gram is None
    risk.save(tmp_path / "r.npz")
    again = pr.RiskFunction.load(tmp_path / "r.npz")
    assert (again.provenance.trace_cut, again.provenance.residual) == (0.01, risk.provenance.residual)
    np.testing.assert_array_equal(again.variance(data.states), risk.variance(data.states))


def test_a_stream_is_read_as_it_comes_and_nothing_of_it_stays(large: pytest.MonkeyPatch) -> None:
    large.setattr(trace_products, "SPARSE_FEWEST", 4096)
    large.setattr("policyrisk.lstd.steps.SPARSE_CHUNK", 512)
    noted: list[int] = []
    add = trace_products.SparseTotal.add

    def watched(self: Any, part: Any) -> None:
        add(self, part)
        noted.append(self._visits)

    large.setattr(trace_products.SparseTotal, "add", watched)

    def stream() -> Iterator[Trajectories]:
        for seed in range(30):
            yield walks(40, seed)

    found = accumulate(stream(), PHI, lam=0.8, discount=1.0)
    whole = accumulate(Trajectories.concatenate(list(stream())), PHI, lam=0.8, discount=1.0)
    check(found, {name: dense(getattr(whole, name)) for name in (*MATRICES, "b", "e")})
    assert max(noted) < 3 * 4096
    assert found.transitions * PHI.tilings > 20 * 4096


@pytest.mark.parametrize(
    ("decay", "cut", "steps"), [(0.9, 0.01, 44), (0.5, 0.5, 1), (0.5, 0.25, 2), (0.1, 0.01, 2), (0.0, 0.1, 1)]
)
def test_traces_last_the_fewest_steps_that_leave_so_little(decay: float, cut: float, steps: int) -> None:
    assert steps_of(decay, cut) == steps
    assert decay**steps <= cut * (1 + 1e-9)
    assert steps == 1 or decay ** (steps - 1) > cut
