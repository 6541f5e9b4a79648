"""The linear solvers, against dense solves, closed forms and plain twins of their kernels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import splu
from scipy.spatial import cKDTree

from policyrisk.errors import SolverError
from policyrisk.markov import linear, multigrid
from policyrisk.markov.linear import Resolvent


def grid(m: int, absorb: str = "boundary", up: float = 0.25, left: float = 0.25) -> sp.csr_array:
    """A walk on m × m; it ends off the board, or only on leaving the last corner."""
    rows, columns, data = [], [], []
    for (di, dj), p in {(-1, 0): up, (1, 0): 0.5 - up, (0, -1): left, (0, 1): 0.5 - left}.items():
        i, j = (t.ravel() for t in np.meshgrid(np.arange(m), np.arange(m), indexing="ij"))
        to_i, to_j = i + di, j + dj
        stays = (to_i >= 0) & (to_i < m) & (to_j >= 0) & (to_j < m)
        if absorb == "corner":
            to_i, to_j = np.clip(to_i, 0, m - 1), np.clip(to_j, 0, m - 1)
            stays = (i < m - 1) | (j < m - 1)
        rows.append((i * m + j)[stays])
        columns.append((to_i * m + to_j)[stays])
        data.append(np.full(stays.sum(), p))
    entries = (np.concatenate(data), (np.concatenate(rows), np.concatenate(columns)))
    return sp.csr_array(entries, shape=(m * m, m * m))


def successors(n: int, k: int, end: float, seed: int) -> sp.csr_array:
    """Each state goes to k random ones; it ends with probability ``end``."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(k), n) * (1.0 - end)
    P = sp.csr_array((p.ravel(), rng.integers(n, size=n * k), np.arange(0, n * k + 1, k)), shape=(n, n))
    P.sum_duplicates()
    return P


def neighbours(n: int) -> sp.csr_array:
    """From each of n random points to one of the five nearest, by random weights; 1e-6 ends."""
    rng = np.random.default_rng(0)
    points = rng.random((n, 2))
    _, nearest = cKDTree(points).query(points, 6)
    p = rng.dirichlet(np.ones(5), n) * (1.0 - 1e-6)
    P = sp.csr_array((p.ravel(), nearest[:, 1:].ravel(), np.arange(0, 5 * n + 1, 5)), shape=(n, n))
    P.sort_indices()
    return P


def blocks(n: int, size: int, leak: float) -> sp.csr_array:
    """Blocks of states that are left with probability ``leak``, for any state; one in 10⁴ steps ends."""
    rng = np.random.default_rng(4)
    inside = (np.arange(n) // size * size)[:, None] + rng.integers(size, size=(n, 4))
    P = np.zeros((n, n))
    np.add.at(P, (np.arange(n)[:, None], inside), rng.dirichlet(np.ones(4), n) * (1 - leak))
    P[np.arange(n), rng.integers(n, size=n)] += leak
    return sp.csr_array(P * (1 - 1e-4))


def lazy(P: sp.csr_array) -> sp.csr_array:
    """A third of the states stay with probability 0.999999."""
    stay = np.where(np.random.default_rng(5).random(P.shape[0]) < 0.3, 0.999999, 0.0)
    return sp.csr_array(sp.diags_array(1.0 - stay) @ P + sp.diags_array(stay))


def walk(n: int, p: float) -> sp.csr_array:
    """Up with probability p, else down; it ends off either end."""
    return sp.diags_array([np.full(n - 1, 1 - p), np.full(n - 1, p)], offsets=[-1, 1]).tocsr()


def shuffled(P: sp.csr_array) -> sp.csr_array:
    order = np.random.default_rng(6).permutation(P.shape[0])
    return sp.csr_array(P[order][:, order])


def star(leaves: int) -> sp.csr_array:
    """State 0 goes to any of the others, which come back with probability 0.9."""
    P = np.zeros((leaves + 1, leaves + 1))
    P[0, 1:] = 1.0 / leaves
    P[1:, 0] = 0.9
    return sp.csr_array(P)


def with_edges(P: sp.csr_array) -> sp.csr_array:
    """Row 3 ends at once, and an entry is stored that is 0."""
    P = P.copy()
    P.data[P.indptr[3] : P.indptr[4]] = 0.0
    return P


CHAINS: dict[str, Callable[[], sp.csr_array]] = {
    "dense": lambda: successors(40, 300, 1e-3, 1),
    "walk": lambda: walk(400, 0.5),
    "shuffled walk": lambda: shuffled(walk(400, 0.6)),
    "grid": lambda: grid(20),
    "grid, one corner": lambda: grid(20, "corner"),
    "grid, drift to the corner": lambda: grid(20, "corner", up=0.2, left=0.2),
    "grid, drift away": lambda: grid(20, "corner", up=0.26, left=0.26),
    "shuffled grid": lambda: shuffled(grid(20)),
    "sparse": lambda: successors(400, 5, 1e-6, 2),
    "nearly absorbing blocks": lambda: blocks(400, 10, 1e-5),
    "self-loops": lambda: lazy(grid(20)),
    "reducible": lambda: sp.csr_array(sp.block_diag([grid(12), walk(150, 0.5), successors(100, 3, 0.1, 3)])),
    "restart": lambda: sp.csr_array(0.99 * walk(400, 0.5) + 0.01 * np.eye(1, 400)[[0] * 400]),
    "star": lambda: star(300),
    "acyclic": lambda: shuffled(sp.csr_array(sp.triu(successors(400, 5, 0.0, 7), k=1))),
    "ends at once, zero stored": lambda: with_edges(grid(20)),
    "all end at once": lambda: sp.csr_array((300, 300)),
    "one state": lambda: sp.csr_array([[0.75]]),
}


def force(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``choose`` take that method, or multigrid, whatever the size."""
    if method != "dense LU":
        monkeypatch.setattr(linear, "DENSE_SIZE", 0)
    else:
        monkeypatch.setattr(linear, "DENSE_SIZE", 10**6)
    if method == "minimum degree":
        monkeypatch.setattr(linear, "WIDE", 0)
    if method == "multigrid GCR":
        monkeypatch.setattr(linear, "FILL_RATIO", 0)
        monkeypatch.setattr(linear, "FILL_SMALL", 0)
        monkeypatch.setattr(multigrid, "COARSEST", 30)


@pytest.mark.parametrize("factor", [1.0, 0.9])
@pytest.mark.parametrize("method", ["dense LU", "sparse LU", "minimum degree", "multigrid GCR"])
@pytest.mark.parametrize("name", CHAINS)
def test_agrees_with_a_dense_solve(
    name: str, method: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(method, monkeypatch)
    method = "sparse LU" if method == "minimum degree" else method
    P = CHAINS[name]()
    n = P.shape[0]
    resolvent = Resolvent(P, factor)
    b = np.random.default_rng(0).random((n, 2))
    A = np.eye(n) - factor * P.toarray()
    for transpose in (False, True):
        x, report = resolvent.solve(b, transpose=transpose)
        M = A.T if transpose else A
        truth = np.linalg.solve(M, b)
        # Self-loops of 0.999999 leave 10 digits of 1 − p in the dense matrix itself.
        bound = 1e-16 * np.linalg.cond(M, np.inf) * 20 if name == "self-loops" else 1e-9
        np.testing.assert_allclose(x, truth, rtol=0, atol=max(bound, 1e-11) * np.abs(truth).max())
        alone, _ = resolvent.solve(b[:, 1], transpose=transpose)
        np.testing.assert_allclose(alone, x[:, 1], rtol=0, atol=1e-14 * np.abs(x[:, 1]).max())
        expected = "sparse LU" if name.startswith(("acyclic", "all", "one")) else method
        assert report.method == (method if method == "dense LU" else expected)
        assert (report.iterations > 0) == (report.method == "multigrid GCR")


def exact_solution(P: sp.csr_array, factor: float, b: np.ndarray) -> np.ndarray:
    """Gaussian elimination in rational arithmetic on the very numbers stored."""
    n = P.shape[0]
    c, D = Fraction(factor), P.toarray()
    A = [[int(i == j) - c * Fraction(D[i, j]) for j in range(n)] for i in range(n)]
    y = [Fraction(float(v)) for v in b]
    for k in range(n):
        for i in range(k + 1, n):
            t = A[i][k] / A[k][k]
            if t:
                A[i] = [u - t * v for u, v in zip(A[i], A[k], strict=True)]
                y[i] -= t * y[k]
    for k in reversed(range(n)):
        y[k] = (y[k] - sum(A[k][j] * y[j] for j in range(k + 1, n))) / A[k][k]
    return np.array([float(v) for v in y])


def exact_residual(P: sp.csr_array, factor: float, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """b − x + factor · P x in rational arithmetic, rounded once."""
    y = [Fraction(v) for v in x]
    rows = (range(*P.indptr[i : i + 2]) for i in range(len(b)))
    Px = [sum(Fraction(P.data[k]) * y[P.indices[k]] for k in row) for row in rows]
    c = Fraction(factor)
    return np.array([float(Fraction(u) - v + c * w) for u, v, w in zip(b, y, Px, strict=True)])


@pytest.mark.parametrize("method", ["dense LU", "sparse LU", "multigrid GCR"])
def test_refinement_reaches_the_rounding_of_x(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Condition 10⁷, so that a plain solve is wrong in the ninth digit; ours in the last two."""
    force(method, monkeypatch)
    monkeypatch.setattr(multigrid, "COARSEST", 3)
    P = lazy(successors(14, 4, 1e-3, 8))
    b = np.random.default_rng(1).random(14)
    for transpose in (False, True):
        x, _ = Resolvent(P, 1.0).solve(b, transpose=transpose)
        truth = exact_solution(P.T.tocsr() if transpose else P, 1.0, b)
        assert np.abs(x - truth).max() <= 4e-16 * np.abs(truth).max()


def test_fair_ruin_has_mean_k_times_n_minus_k() -> None:
    N = 100_000
    x, report = Resolvent(walk(N - 1, 0.5), 1.0).solve(np.ones(N - 1))
    k = np.arange(1, N)
    np.testing.assert_allclose(x, k * (N - k), rtol=1e-15)
    assert report.method == "sparse LU"
    assert report.entries <= 5 * N
    # Halves and whole numbers: nothing is rounded, so that the residual vanishes.
    assert report.residual == 0.0


def test_ruin_in_a_shuffled_order_is_still_direct() -> None:
    N = 20_001
    order = np.random.default_rng(0).permutation(N - 1)
    P = sp.csr_array(walk(N - 1, 0.5)[order][:, order])
    x, report = Resolvent(P, 1.0).solve(np.ones(N - 1))
    np.testing.assert_allclose(x, (order + 1) * (N - 1.0 - order), rtol=1e-14)
    assert report.method == "sparse LU"


@pytest.mark.parametrize("n", [1, 2000])
def test_geometric_waiting(n: int) -> None:
    p = np.random.default_rng(0).uniform(1e-3, 1.0, n)
    x, report = Resolvent(sp.diags_array(1.0 - p).tocsr(), 1.0).solve(np.ones(n))
    np.testing.assert_allclose(x, 1.0 / p, rtol=1e-12)
    assert report.method == ("dense LU" if n == 1 else "sparse LU")


def test_random_graph_with_equal_ends_lasts_one_over_the_end() -> None:
    """Every state ends with 1e-6, so that the mean duration is 1e6 from everywhere."""
    n = 20_000
    P = successors(n, 5, 1e-6, 0)
    x, report = Resolvent(P, 1.0).solve(np.ones(n))
    assert report.method == "multigrid GCR"
    # The rows' own rounding, some 1e-16 of 1, is 1e-10 of 1e-6.
    np.testing.assert_allclose(x, 1e6, rtol=1e-9)
    occupancy, _ = Resolvent(P, 1.0).solve(np.full(n, 1.0 / n), transpose=True)
    assert occupancy.sum() == pytest.approx(1e6, rel=1e-9)


def test_transpose_is_adjoint_on_a_large_grid() -> None:
    P = grid(200, "corner", up=0.24)
    rng = np.random.default_rng(0)
    f, g = rng.random((2, 40_000))
    resolvent = Resolvent(P, 1.0)
    x, report = resolvent.solve(f)
    y, _ = resolvent.solve(g, transpose=True)
    assert report.method == "multigrid GCR"
    assert g @ x == pytest.approx(y @ f, rel=1e-12)


def test_multigrid_on_a_large_grid_against_the_sine_transform() -> None:
    """Sines diagonalise the walk that ends off the board."""
    m = 200
    # 1 − (cos 2a + cos 2b)/2, without the cancellation.
    sine = np.sin(0.5 * np.pi * np.arange(1, m + 1) / (m + 1)) ** 2
    eigenvalues = sine[:, None] + sine[None, :]
    b = np.random.default_rng(0).random((m, m))
    truth = scipy.fft.idstn(scipy.fft.dstn(b, type=1) / eigenvalues, type=1).ravel()
    P = grid(m)
    x, report = Resolvent(P, 1.0).solve(b.ravel())
    np.testing.assert_allclose(x, truth, rtol=0, atol=1e-13 * truth.max())
    assert report.method == "multigrid GCR"
    assert report.entries <= 3 * P.nnz
    # 24 when this was written; 38 without the second step of the K-cycle.
    assert report.iterations <= 28


@pytest.mark.parametrize("name", ["sparse", "nearly absorbing blocks", "grid, drift away"])
def test_weights_leave_few_negative_column_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multigrid, "COARSEST", 30)
    P = CHAINS[name]()
    A = sp.csr_array(sp.eye_array(P.shape[0]) - P)
    w = multigrid.visit_weights(A)
    columns = A.T @ w
    assert w.min() > 0.0
    assert -columns[columns < 0.0].sum() <= 1e-4 * columns.sum()
    # Not so from the start, w = 1:
    columns = A.T @ np.ones_like(w)
    assert -columns[columns < 0.0].sum() > 0.5 * columns.sum()


@pytest.mark.parametrize(("name", "rounds"), [("successors", 3), ("neighbours", 12)])
def test_weights_take_few_rounds(name: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 and 7 when this was written; 9 without sweeps, 21 without scaling to the right total."""
    monkeypatch.setattr(multigrid, "COARSEST", 50)
    monkeypatch.setattr(multigrid, "WEIGHT_ROUNDS", rounds)
    P = successors(3000, 5, 1e-9, 0) if name == "successors" else neighbours(8000)
    A = sp.csr_array(sp.eye_array(P.shape[0]) - P)
    columns = A.T @ multigrid.visit_weights(A)
    assert -columns[columns < 0.0].sum() <= 1e-4 * columns.sum()


def test_weights_are_found_where_termination_is_rare() -> None:
    """Drift away from the only exit: 10⁷ steps on 14 400 states, in some hundred iterations at most."""
    P = grid(120, "corner", up=0.255, left=0.255)
    b = np.ones(14_400)
    corrector = linear.by_multigrid(sp.csr_array(sp.eye_array(14_400) - P), np.arange(14_400))
    x, _ = Resolvent(P, 1.0).solve(b)
    correction = corrector.correct(b[:, None], 0.0, transpose=False)
    assert correction.iterations == multigrid.FIRST_DIRECTIONS
    # The mean from the far corner, right to 1% after twelve iterations only if the weights are good.
    np.testing.assert_allclose(correction.d[:, 0], x, rtol=1e-2)


@pytest.mark.parametrize("name", ["sparse", "nearly absorbing blocks", "grid", "star"])
def test_hierarchy_holds_at_most_three_times_the_entries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multigrid, "COARSEST", 10)
    P = successors(3000, 5, 1e-6, 2) if name == "sparse" else CHAINS[name]()
    A = sp.csr_array(sp.eye_array(P.shape[0]) - P)
    hierarchy = multigrid.build(A)
    assert hierarchy.entries - hierarchy.inverse.size <= 3 * A.nnz
    sizes = [level.matrix.shape[0] for level in hierarchy.levels]
    assert sizes == sorted(set(sizes), reverse=True)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 40),
    density=st.floats(0.02, 1.0),
    end=st.sampled_from([0.5, 1e-2, 1e-5]),
    factor=st.sampled_from([0.0, 0.7, 1.0]),
    transpose=st.booleans(),
    method=st.sampled_from(["dense LU", "sparse LU", "multigrid GCR"]),
)
def test_any_substochastic_matrix(
    seed: int, n: int, density: float, end: float, factor: float, transpose: bool, method: str
) -> None:
    rng = np.random.default_rng(seed)
    W = rng.exponential(size=(n, n)) ** 3 * (rng.random((n, n)) < density)
    P = sp.csr_array(W / np.maximum(W.sum(axis=1, keepdims=True), 1e-300) * (1.0 - end))
    b = rng.normal(size=n)
    with pytest.MonkeyPatch.context() as patch:
        force(method, patch)
        patch.setattr(multigrid, "COARSEST", 4)
        x, report = Resolvent(P, factor).solve(b, transpose=transpose)
    A = np.eye(n) - factor * P.toarray()
    truth = np.linalg.solve(A.T if transpose else A, b)
    np.testing.assert_allclose(x, truth, rtol=0, atol=1e-9 * np.abs(truth).max())
    assert report.unknowns == n


@pytest.mark.parametrize("method", ["dense LU", "sparse LU", "multigrid GCR"])
def test_zero_and_scaled_right_hand_sides(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(method, monkeypatch)
    resolvent = Resolvent(grid(35), 1.0)
    b = np.random.default_rng(0).random(1225)
    x, report = resolvent.solve(b)
    zero, nothing = resolvent.solve(np.zeros(1225))
    assert not zero.any()
    assert nothing.residual == 0.0
    for scale in (2.0**-900, 2.0**900):
        scaled, _ = resolvent.solve(scale * b)
        np.testing.assert_array_equal(scaled, scale * x)
    both, together = resolvent.solve(np.column_stack([np.zeros(1225), 2.0**-900 * b]))
    assert not both[:, 0].any()
    np.testing.assert_allclose(both[:, 1] * 2.0**900, x, rtol=1e-14)
    assert together.residual == pytest.approx(report.residual, rel=1.0, abs=1e-14)
    assert resolvent.solve(np.empty((1225, 0)))[0].shape == (1225, 0)


def test_residual_is_that_of_the_answer() -> None:
    P = grid(40, "corner")
    b = np.random.default_rng(0).random(1600)
    x, report = Resolvent(P, 1.0).solve(b)
    r = exact_residual(P, 1.0, b, x)
    assert report.residual == pytest.approx(np.abs(r).max() / b.max(), rel=1e-6)
    assert str(report).startswith("sparse LU: residual ")


def test_iteration_cap_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    force("multigrid GCR", monkeypatch)
    monkeypatch.setattr(linear, "MAX_PASSES", 1)
    with pytest.raises(SolverError, match=r"residual of \d.*tolerance of 1e-12.*every state reaches"):
        Resolvent(grid(60, "corner"), 1.0).solve(np.ones(3600))


@pytest.mark.parametrize("method", ["dense LU", "sparse LU", "multigrid GCR"])
def test_singular_is_a_named_error(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(method, monkeypatch)
    n = 300
    ring = sp.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    for P in (ring, sp.eye_array(n, format="csr")):
        with pytest.raises(SolverError, match="singular"):
            Resolvent(P, 1.0).solve(np.ones(n))


def test_duplicate_entries_are_summed_in_a_copy() -> None:
    P = sp.csr_array((np.array([0.25, 0.25]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    x, _ = Resolvent(P, 1.0).solve(np.ones(1))
    assert x == 2.0
    assert P.nnz == 2


def test_component_order_makes_transitions_go_up() -> None:
    P = shuffled(sp.csr_array(sp.block_diag([grid(5), walk(9, 0.5)]) + sp.eye_array(34, k=25) * 0.0))
    A = sp.csr_array(sp.eye_array(34) - sp.csr_array(P))
    order, count = linear.component_order(A)
    assert count == 2
    assert sorted(order) == list(range(34))
    acyclic = CHAINS["acyclic"]()
    A = sp.csr_array(sp.eye_array(400) - acyclic)
    order, count = linear.component_order(A)
    assert count == 400
    assert sp.tril(A[order][:, order], k=-1).nnz == 0


def test_a_grid_is_ordered_by_minimum_degree_and_a_band_or_a_hub_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stored entries tell: on a grid it is a fraction of the envelope; elsewhere it would take longer."""
    asked: list[str] = []

    def noted(A: sp.csc_array, permc_spec: str, **how: Any) -> Any:
        asked.append(permc_spec)
        return splu(A, permc_spec, **how)

    monkeypatch.setattr(linear, "splu", noted)
    A = sp.csr_array(sp.eye_array(3600) - grid(60))
    assert linear.envelope(A, np.arange(3600)) > 20 * A.nnz
    monkeypatch.setattr(linear, "WIDE", 20)
    ordered = linear.choose(grid(60), 1.0)
    monkeypatch.setattr(linear, "WIDE", 30)
    given = linear.choose(grid(60), 1.0)
    assert ordered.entries() < 0.3 * given.entries()
    linear.choose(walk(3600, 0.5), 1.0)
    hub = sp.csr_array(0.9 * grid(60) + 0.1 * np.eye(1, 3600, 3599)[[0] * 3600])
    monkeypatch.setattr(linear, "WIDE", 1)
    linear.choose(hub, 1.0)
    assert asked == ["MMD_AT_PLUS_A", "NATURAL", "NATURAL", "NATURAL"]


def test_envelope_bounds_the_fill() -> None:
    A = sp.csr_array(sp.eye_array(100) - grid(10))
    given = np.arange(100)
    dense = np.abs(A.toarray()) > 0
    expected = 100
    for pattern in (dense, dense.T):
        for i in range(100):
            expected += i - min(i, int(np.flatnonzero(pattern[i])[0]))
    assert linear.envelope(A, given) == expected
    order = np.random.default_rng(0).permutation(100)
    assert linear.envelope(A, order) == linear.envelope(linear.permuted(A, order), given)


def csr(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return A.indptr, A.indices, A.data


@pytest.mark.parametrize("backward", [False, True])
def test_gauss_seidel_twin(backward: bool) -> None:
    A = sp.csr_array(sp.eye_array(50) - successors(50, 4, 0.1, 9))
    rng = np.random.default_rng(0)
    b, x = rng.random((2, 50))
    D = A.toarray()
    expected = x.copy()
    for i in reversed(range(50)) if backward else range(50):
        expected[i] += (b[i] - D[i] @ expected) / D[i, i]
    multigrid.gauss_seidel(*csr(A), 1.0 / A.diagonal(), b, x, backward)
    np.testing.assert_allclose(x, expected, rtol=1e-13)


def matched(A: np.ndarray, dominance: float, weakest: float) -> tuple[list[int], int]:
    """``match_pairs`` from its docstring."""
    n, d = len(A), np.diag(A)
    coupling = -(A + A.T) + np.diag(2 * d)
    left_out = d > dominance * coupling.sum(axis=1) / 2
    label, count = [-1] * n, 0
    for i in range(n):
        if label[i] >= 0 or left_out[i]:
            continue
        strength = {
            j: coupling[i, j] * (1 / d[i] + 1 / d[j]) for j in np.flatnonzero(coupling[i] * ~left_out)
        }
        free = max((s, -j) for j, s in {n: 0.0, **strength}.items() if j == n or label[j] < 0)
        taken = max((s, -j) for j, s in {n: 0.0, **strength}.items() if j == n or label[j] >= 0)
        if taken[0] > max(4 * free[0], weakest):
            label[i] = label[-taken[1]]
            continue
        label[i] = count
        if free[0] > weakest:
            label[-free[1]] = count
        count += 1
    return [count if left_out[i] else label[i] for i in range(n)], count


@pytest.mark.parametrize("weakest", [0.0, 0.3])
@pytest.mark.parametrize("dominance", [1.5, 1.1])
def test_match_pairs_twin(dominance: float, weakest: float) -> None:
    P = successors(80, 4, 0.1, 10)
    P.data *= np.where(np.arange(P.nnz) % 17 == 0, 0.01, 1.0)
    A = sp.csr_array(sp.eye_array(80) - P)
    pairs = np.empty(80, dtype=np.int64)
    count = multigrid.match_pairs(*csr(sp.csr_array(-(A + A.T))), A.diagonal(), dominance, weakest, pairs)
    expected, expected_count = matched(A.toarray(), dominance, weakest)
    assert count == expected_count
    np.testing.assert_array_equal(pairs, expected)
    assert np.bincount(pairs).max() > 2


def test_sum_over_aggregates() -> None:
    A = sp.csr_array(sp.eye_array(60) - successors(60, 5, 0.1, 11))
    aggregate = np.random.default_rng(0).integers(8, size=60)
    R = (aggregate == np.arange(7)[:, None]).astype(float)  # the last number means: dropped
    C = multigrid.sum_over(A, aggregate, 7)
    np.testing.assert_allclose(C.toarray(), R @ A.toarray() @ R.T, atol=1e-14)
    assert C.has_canonical_format


def test_resolvent_residual_twin() -> None:
    """In rational arithmetic: all but the last rounding is right where the terms cancel."""
    P = successors(30, 4, 1e-3, 12)
    rng = np.random.default_rng(0)
    x = 1e9 * rng.random((30, 2))
    b = x - 0.99 * (P @ x) + rng.normal(size=(30, 2)) * 1e-7
    out = np.empty_like(b)
    linear.resolvent_residual(*csr(P), 0.99, b, x, out)
    expected = np.column_stack([exact_residual(P, 0.99, b[:, c], x[:, c]) for c in range(2)])
    np.testing.assert_allclose(out, expected, rtol=1e-12)


@pytest.mark.parametrize("method", ["dense LU", "sparse LU"])
def test_a_solved_system_can_be_pickled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(method, monkeypatch)
    resolvent = Resolvent(CHAINS["walk"](), 0.9)
    b = np.arange(resolvent._P.shape[0], dtype=np.float64)
    x, _ = resolvent.solve(b)
    again, report = pickle.loads(pickle.dumps(resolvent)).solve(b)
    np.testing.assert_array_equal(again, x)
    assert report.method == method
