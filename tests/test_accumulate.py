"""LSTD's sums against their definition, summed transition by transition."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from conftest import accumulate
from threadpoolctl import threadpool_info, threadpool_limits

from policyrisk._core import devices as threads_module
from policyrisk._core.arrays import readonly
from policyrisk.data import Trajectories
from policyrisk.equations import MomentEquations
from policyrisk.errors import InvalidInputError
from policyrisk.features import Fourier, Polynomial, RadialBasis, Tabular, TileCoding
from policyrisk.lstd import _sweep_kernels
from policyrisk.lstd.definition import Definition, rows
from policyrisk.lstd.rows import DenseRows, SparseRows
from policyrisk.lstd.trace_products import FOREVER, Total, TraceProduct, joined

SUMS = ("A", "b", "C", "D", "e", "gram", "mean_gram")
COUNTS = ("visits", "second_visits", "feature_episodes", "second_feature_episodes")
LOW, HIGH = [0.0, 0.0], [1.0, 1.0]


class Waves:
    """A user's own dense map, with zeros in it."""

    size = 4

    def __call__(self, states: npt.ArrayLike) -> npt.NDArray[np.float64]:
        x = np.asarray(states, dtype=np.float64)
        return np.column_stack([np.ones(len(x)), x[:, 0], np.sin(7 * x[:, 1]), np.maximum(x[:, 0] - 0.5, 0)])


class Hats:
    """A user's own CSR map: hat functions along the first coordinate, entries out of order and doubled."""

    size = 40

    def __call__(self, states: npt.ArrayLike) -> Any:
        u = np.asarray(states, dtype=np.float64)[:, 0].clip(0, 1) * (self.size - 1)
        left = np.minimum(u.astype(int), self.size - 2)
        share = u - left
        columns = np.column_stack([left + 1, left, left]).ravel()
        values = np.column_stack([share, (1 - share) / 4, 3 * (1 - share) / 4]).ravel()
        return sp.csr_array((values, columns, np.arange(0, 3 * len(u) + 1, 3)), shape=(len(u), self.size))


class Counted:
    """A map that remembers every state it was shown."""

    size = 3

    def __init__(self) -> None:
        self.shown: list[npt.NDArray[np.float64]] = []

    def __call__(self, states: npt.ArrayLike) -> npt.NDArray[np.float64]:
        x = np.asarray(states, dtype=np.float64)
        self.shown.append(x.copy())
        return np.column_stack([np.ones(len(x)), x[:, 0], x[:, 1]])


MAPS = {
    "tabular": Tabular(12, dims=[2]),
    "tiles": TileCoding(LOW, HIGH, bins=[5, 4], dims=[0, 1]),
    "tilings": TileCoding(LOW, HIGH, bins=[4, 4], tilings=3, dims=[0, 1]),
    "polynomial": Polynomial(2, LOW, HIGH, dims=[0, 1]),
    "fourier": Fourier(2, LOW, HIGH, dims=[0, 1]),
    "radial": RadialBasis.grid(LOW, HIGH, shape=(3, 3), dims=[0, 1]),
    "hats": Hats(),
    "function": Waves(),
}


def episodes(ends: str, seed: int = 0, count: int = 9) -> Trajectories:
    """Walks in the unit square, a number from 0 to 11 as third coordinate, 99 at a true end."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, count)
    lengths[:2] = 1
    parts = []
    terminated = {"terminated": np.ones(count, bool), "cut": np.zeros(count, bool)}.get(ends)
    if terminated is None:
        terminated = rng.random(count) < 0.5
        terminated[:2] = True, False
    for length, done in zip(lengths, terminated, strict=True):
        walk = rng.random(2) + np.cumsum(rng.normal(0, 0.1, (length + 1, 2)), axis=0)
        states = np.column_stack([np.abs((walk + 1) % 2 - 1), rng.integers(0, 12, length + 1)])
        if done:
            states[-1] = 7.0, 7.0, 99.0
        parts.append(states)
    return Trajectories(np.concatenate(parts), rng.normal(1, 2, lengths.sum()), lengths, terminated)


def reference(data: Trajectories, features: Any, second: Any, lam: float, discount: float) -> dict[str, Any]:
    """The sums of the definition, and what else the record counts."""
    terms = reduce(add, map(Definition(features, second, lam, discount).terms, data))
    out = {name: getattr(terms, name) for name in "AbCDe"}
    for phi, gram, before in ((features, "mean_gram", ""), (second, "gram", "second_")):
        visited = [rows(phi, episode)[:-1] for episode in data]
        together = np.vstack(visited)
        out[gram] = together.T @ together
        out[f"{before}visits"] = (together != 0).sum(axis=0)
        out[f"{before}feature_episodes"] = sum((each != 0).any(axis=0).astype(int) for each in visited)
    return out


def check(equations: MomentEquations, truth: dict[str, Any]) -> None:
    for name in SUMS:
        tolerance = 1e-13 * (1 + np.abs(truth[name]).max())
        np.testing.assert_allclose(getattr(equations, name), truth[name], atol=tolerance, err_msg=name)
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(equations, name), truth[name], err_msg=name)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("ends", ["terminated", "cut", "mixed"])
def test_shared_features_give_the_sums_of_the_definition(name: str, ends: str) -> None:
    data, features = episodes(ends), MAPS[name]
    for lam, discount in itertools.product([0.0, 0.5, 0.9, 1.0], [1.0, 0.9]):
        equations = accumulate(data, features, lam=lam, discount=discount)
        check(equations, reference(data, features, features, lam, discount))
        assert (equations.C is equations.A) == (discount == 1.0)
        assert equations.gram is equations.mean_gram


@pytest.mark.parametrize("pair", list(itertools.permutations(MAPS, 2)), ids="-".join)
def test_pairs_of_features_give_the_sums_of_the_definition(pair: tuple[str, str]) -> None:
    data, features, second = episodes("mixed", seed=1), MAPS[pair[0]], MAPS[pair[1]]
    for lam, discount in [(0.9, 1.0), (0.5, 0.9)]:
        equations = accumulate(data, features, second, lam=lam, discount=discount)
        check(equations, reference(data, features, second, lam, discount))
        assert equations.C is not equations.A


def test_counts_of_episodes_and_transitions() -> None:
    data = episodes("mixed")
    equations = accumulate(data, MAPS["tiles"], lam=0.9, discount=1.0)
    assert equations.episodes == len(data)
    assert equations.terminated == data.terminated.sum()
    assert equations.transitions == data.transitions
    assert (equations.lam, equations.discount) == (0.9, 1.0)
    assert equations.features is equations.second_features is MAPS["tiles"]


@pytest.mark.parametrize("name", ["tiles", "polynomial", "hats"])
def test_a_stream_gives_the_same_as_one_batch(name: str) -> None:
    data, features = episodes("mixed", count=40), MAPS[name]
    whole = accumulate(data, features, lam=0.9, discount=0.95)
    for parts in ([data[:7], data[7:7], data[7:8], data[8:]], list(data)):
        streamed = accumulate(parts, features, lam=0.9, discount=0.95)
        check(streamed, {name: getattr(whole, name) for name in SUMS + COUNTS})


def test_a_one_shot_iterator_is_enough() -> None:
    data = episodes("mixed")
    streamed = accumulate(iter(data), MAPS["tiles"], lam=0.9, discount=1.0)
    check(streamed, reference(data, MAPS["tiles"], MAPS["tiles"], 0.9, 1.0))


@pytest.mark.parametrize("pair", [("tiles", "tiles"), ("polynomial", "polynomial"), ("tilings", "fourier")])
def test_cutting_the_work_up_changes_nothing(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of few transitions, and blocks that cut through episodes."""
    data = episodes("mixed", count=40)
    features, second = MAPS[pair[0]], MAPS[pair[1]]
    truth = reference(data, features, second, 0.9, 0.95)
    for most in (1, 5, 50):
        for name in ("DENSE_CHUNK", "DENSE_BLOCK", "SPARSE_CHUNK"):
            monkeypatch.setattr(f"policyrisk.lstd.steps.{name}", most)
        check(accumulate(data, features, second, lam=0.9, discount=0.95), truth)


@pytest.mark.parametrize("name", ["tiles", "polynomial", "hats"])
def test_the_same_bits_on_one_thread_and_on_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("DENSE_CHUNK", "DENSE_BLOCK", "SPARSE_CHUNK"):
        monkeypatch.setattr(f"policyrisk.lstd.steps.{size}", 64)
    data = episodes("mixed", count=100)
    results = []
    for threads in (1, 4):
        monkeypatch.setattr(threads_module, "get_num_threads", lambda threads=threads: threads)
        results.append(accumulate(data, MAPS[name], lam=0.9, discount=0.9))
    for field in SUMS:
        np.testing.assert_array_equal(getattr(results[0], field), getattr(results[1], field))


@pytest.mark.parametrize("lam", [0.3, 0.9, 1.0])
def test_long_episodes_over_many_tiles(lam: float) -> None:
    """More features than a segment holds; traces that decay far below the smallest double, or not at all."""
    rng = np.random.default_rng(3)
    features = TileCoding(LOW, HIGH, bins=[16, 16], dims=[0, 1])
    lengths = np.array([1500, 3, 400])
    states = rng.random((lengths.sum() + 3, 3))
    states[:1000, :2] = 0.4 + 0.2 * states[:1000, :2]
    data = Trajectories(states, rng.normal(size=lengths.sum()), lengths, np.array([False, True, True]))
    check(accumulate(data, features, lam=lam, discount=1.0), reference(data, features, features, lam, 1.0))


def test_rewards_of_very_different_sizes_keep_their_traces() -> None:
    """A reward of 1e8 at an episode's end reaches back past hundreds of steps without rewards."""
    features = Tabular(400)
    rewards = np.zeros(400)
    rewards[-1] = 1e8
    rewards[0] = 1e-8
    data = Trajectories(np.arange(401), rewards, [400], [False])
    with pytest.raises(InvalidInputError, match="0 to 399"):
        accumulate(data, features, lam=0.95, discount=1.0)
    features = Tabular(401)
    truth = reference(data, features, features, 0.95, 1.0)
    equations = accumulate(data, features, lam=0.95, discount=1.0)
    np.testing.assert_allclose(equations.b, truth["b"], rtol=1e-12)
    np.testing.assert_allclose(equations.e, truth["e"], rtol=1e-12)
    rows = np.abs(truth["D"]).max(axis=1, keepdims=True)
    np.testing.assert_allclose(equations.D / (rows + 1e-300), truth["D"] / (rows + 1e-300), atol=1e-14)


def test_terminal_states_are_never_shown_to_features() -> None:
    data, features = episodes("mixed", count=30), Counted()
    accumulate(data, features, lam=0.9, discount=1.0)
    shown = np.concatenate(features.shown)
    assert (shown[:, 2] < 99).all()
    cut = data.states[data.final_rows[~data.terminated]]
    assert all((shown == state).all(axis=1).any() for state in cut)


def test_transitions_outside_either_box_are_counted_once() -> None:
    states = np.array([[0.5, 0.5], [1.5, 0.5], [-0.5, 2.0], [9.0, 9.0], [0.2, 3.0], [8.0, 8.0]])
    data = Trajectories(states, np.ones(4), [3, 1], [True, False])
    wide = Polynomial(1, [-1, -1], [2, 2])
    tiles = TileCoding(LOW, HIGH, bins=[2, 2])
    assert accumulate(data, tiles, lam=0.0, discount=1.0).outside == 3
    assert accumulate(data, wide, lam=0.0, discount=1.0).outside == 1
    assert accumulate(data, wide, tiles, lam=0.0, discount=1.0).outside == 3
    assert accumulate(data, Counted(), lam=0.0, discount=1.0).outside == 0


def test_no_episode_gives_the_empty_equations() -> None:
    data = episodes("mixed")
    for source in ([], data[:0], [data[:0], data[3:3]]):
        equations = accumulate(source, MAPS["tiles"], lam=0.9, discount=1.0)
        assert equations.episodes == 0
        assert not equations.A.any()
        assert equations.shared


@pytest.mark.parametrize("uses_blas", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_do_not_pile_up(
    threads: int, uses_blas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "get_num_threads", lambda: threads)
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        while read < 100:
            read += 1
            yield read

    most = (threads if uses_blas else 2 * threads) + 1
    found = threads_module.in_order(lambda item: -item, items(), uses_blas=uses_blas)
    for done, result in enumerate(found, start=1):
        assert result == -done
        assert read <= done + most


def test_blas_threads_are_held_and_given_back() -> None:
    def used() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    if not threads_module.controllable():
        pytest.skip("this BLAS cannot be told how many threads to use")
    with threadpool_limits(2, user_api="blas"):
        with threads_module.single_threaded():
            assert used() == {1}
            with threads_module.single_threaded():
                assert used() == {1}
            assert used() == {1}
        assert used() == {2}
        with pytest.raises(ZeroDivisionError), threads_module.single_threaded():
            raise ZeroDivisionError
        assert used() == {2}


def test_dense_products_leave_the_cores_to_a_blas_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "controllable", lambda: False)
    monkeypatch.setattr(threads_module, "get_num_threads", lambda: 2)
    threads: set[int] = set()

    def work(item: int) -> int:
        threads.add(threading.get_ident())
        return item

    assert list(threads_module.in_order(work, range(20), uses_blas=True)) == list(range(20))
    assert threads == {threading.get_ident()}
    assert list(threads_module.in_order(work, range(20), uses_blas=False)) == list(range(20))
    assert len(threads) > 1


def test_wrong_features_are_named() -> None:
    class Narrow(Waves):
        size = 5

    class Beyond:
        size = 3

        def __call__(self, states: npt.ArrayLike) -> Any:
            raise AssertionError

        def active(self, states: npt.ArrayLike) -> npt.NDArray[np.int64]:
            return np.full((len(np.asarray(states)), 1), 3)

    class Flat(Beyond):
        def active(self, states: npt.ArrayLike) -> npt.NDArray[np.int64]:
            return np.zeros(len(np.asarray(states)), dtype=np.int64)

    class Holes(Waves):
        def __call__(self, states: npt.ArrayLike) -> npt.NDArray[np.float64]:
            return np.where(np.arange(4) == 2, np.nan, super().__call__(states))

    class SparseHoles(Hats):
        def __call__(self, states: npt.ArrayLike) -> Any:
            return super().__call__(states) * np.nan

    class SparseBeyond(Hats):
        def __call__(self, states: npt.ArrayLike) -> Any:
            phi = super().__call__(states)
            phi.indices[-1] = phi.shape[1]
            return phi

    data = episodes("mixed")
    for features, message in [
        (Narrow(), "one row of 5 per state"),
        (Beyond(), "indices from 0 to 2, got 3 to 3"),
        (Flat(), "features.active must have shape"),
        (Holes(), "features and rewards must stay finite"),
        (SparseHoles(), "features and rewards must stay finite"),
        (SparseBeyond(), "indices from 0 to"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            accumulate(data, features, lam=0.9, discount=1.0)
    huge = Trajectories([0, 1], [1e200], [1], [True])
    with pytest.raises(InvalidInputError, match="nan, infinite or huge"), np.errstate(over="ignore"):
        accumulate(huge, Tabular(1), lam=0.9, discount=1.0)


def test_product_kernels_agree_with_plain_numpy() -> None:
    """P_c = Σ_i ρ_i (h_ic σ_i + Σ_{s > i} κ^{s−1−i} g_sc σ_s)ᵀ, with weights that are anything."""
    rng = np.random.default_rng(5)
    ends = readonly(np.array([0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1], dtype=bool))
    rho = rng.random((12, 3)) * (rng.random((12, 3)) < 0.6)
    sigma = rng.random((12, 5)) * (rng.random((12, 5)) < 0.5)
    g, h, kappa = rng.normal(size=(12, 2)), rng.normal(size=(12, 2)), 0.7
    truth = np.zeros((2, 3, 5))
    for c, i in itertools.product(range(2), np.flatnonzero(~ends)):
        inner = h[i, c] * sigma[i]
        for s in range(i + 1, 12):
            inner = inner + kappa ** (s - 1 - i) * g[s, c] * sigma[s]
            if ends[s]:
                break
        truth[c] += np.outer(rho[i], inner)

    def sparse(phi: npt.NDArray[np.float64], at: slice) -> SparseRows:
        csr = sp.csr_array(phi[at])
        return SparseRows.of(ends[at], csr.indptr, csr.indices, csr.data, phi.shape[1])

    def whole(phi: npt.NDArray[np.float64], at: slice) -> DenseRows:
        return DenseRows(ends[at], readonly(phi[at].view()))

    for left, right in itertools.product((sparse, whole), repeat=2):
        for cuts in ([0, 12], [0, 2, 3, 8, 12]):
            part = TraceProduct(g, h, kappa, 5)
            for first, last in reversed(list(itertools.pairwise(cuts))):
                at = slice(first, last)
                part.block(at, left(rho, at), right(sigma, at))
            total = Total(2, 3, 5)
            for times in (1, 2, 3):
                part.finish()
                total.add(part)
                np.testing.assert_allclose(total.finish(), times * truth, atol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 1e-200, 1e-9, 0.5])
def test_a_visit_reaches_as_far_as_it_adds_anything(decay: float) -> None:
    """Until all that follows is negligible beside the largest, with weights of very different sizes."""
    rng = np.random.default_rng(7)
    n = 120
    step, ahead = np.zeros((2 * n, 4)), np.zeros(2 * n, np.int64)
    step[:, 0] = rng.choice([decay, decay**2, 1.0], 2 * n, p=[0.5, 0.3, 0.2])
    step[:, 1:3] = rng.choice([0.0, 1.0, 1e-30, 1e40], (2 * n, 2))
    ahead[[n - 1, 2 * n - 1]] = _sweep_kernels.END
    step[n - 1, 1:3] = 0.0  # a true end, and then one that was cut off
    step[2 * n - 1, 1:3] = 1.0
    _sweep_kernels.reach(2 * n, step, ahead, True, joined([]), FOREVER)
    for i in range(2 * n - 1):
        if i == n - 1:
            continue
        end = n if i < n else 2 * n
        left = np.concatenate([[1.0], np.cumprod(step[i + 1 : end - 1, 0])])
        adds = left[:, None] * np.abs(step[i + 1 : end, 1:3])
        counts = (adds > _sweep_kernels.NEGLIGIBLE * adds.max(axis=0)).any(axis=1)
        assert ahead[i] == (1 + np.flatnonzero(counts)[-1] if counts.any() else 0)
