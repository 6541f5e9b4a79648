"""Feature maps against their formulas, written out here in plain Python loops."""

from __future__ import annotations

import itertools
import json
import math
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import dense, scaled

from policyrisk.errors import InvalidInputError
from policyrisk.features import (
    BinaryFeatures,
    Features,
    Fourier,
    Labels,
    Polynomial,
    RadialBasis,
    Ranked,
    Tabular,
    TileCoding,
    from_spec,
)

LOW, HIGH = [-2.0, 10.0], [2.0, 11.0]

MAPS = {
    "tabular": Tabular(5),
    "tabular-dims": Tabular(5, dims=[1]),
    "labels": Labels([-1.0, 0.0, 3.0, 1e7], dims=[1]),
    "labels-scaled": Labels([-1.0, 0.0, 3.0, 1e7], dims=[1], scale=0.1),
    "polynomial": Polynomial(degree=3, low=LOW, high=HIGH),
    "polynomial-0": Polynomial(degree=0, low=LOW, high=HIGH),
    "fourier": Fourier(order=3, low=LOW, high=HIGH),
    "fourier-total": Fourier(order=3, low=LOW, high=HIGH, total=4, dims=[2, 0]),
    "tiles": TileCoding(low=LOW, high=HIGH, bins=[5, 7]),
    "tiles-several": TileCoding(low=LOW, high=HIGH, bins=[5, 7], tilings=4, dims=[1, 0]),
    "tiles-hashed": TileCoding(low=LOW, high=HIGH, bins=40, tilings=3, hashed=300),
    "grid": RadialBasis.grid(low=LOW, high=HIGH, shape=(4, 3)),
    "grid-normalised": RadialBasis.grid(low=LOW, high=HIGH, shape=(4, 1), width=0.3, normalised=True),
    "grid-truncated": RadialBasis.grid(low=LOW, high=HIGH, shape=(9, 6), truncate=1.3, dims=[0, 3]),
    "grid-both": RadialBasis.grid(low=LOW, high=HIGH, shape=(9, 6), truncate=1.3, normalised=True),
    "centres": RadialBasis([[0.0, 10.1], [1.0, 10.7], [-3.0, 12.0]], [0.1, 0.3], LOW, HIGH),
    "centres-unbounded": RadialBasis([[0.0, 10.1], [1.0, 10.7]], 0.5, normalised=True),
    "centres-truncated": RadialBasis([[0.0, 10.1], [1.0, 10.7]], 0.2, LOW, HIGH, truncate=2.0),
    "centres-both": RadialBasis([[0.0, 10.1], [1.0, 10.7]], 1.0, LOW, HIGH, truncate=2.0, normalised=True),
}
BOXED = {
    name: phi
    for name, phi in MAPS.items()
    if not isinstance(phi, Tabular | Labels) and "unbounded" not in name
}


def dim_of(phi: Features) -> int:
    """The states' dimension that a map of MAPS needs."""
    dims = phi.dims if isinstance(phi, Tabular | Labels) else phi.box.dims
    if dims is not None:
        return max(dims) + 1
    return 1 if isinstance(phi, Tabular | Labels) else phi.box.dim


def some_states(phi: Features, n: int = 60, seed: int = 0) -> np.ndarray:
    """States about and beyond the box, with its corners among them."""
    rng = np.random.default_rng(seed)
    if isinstance(phi, Tabular | Labels):
        return rng.integers(0, phi.size, size=(n, dim_of(phi))).astype(float)
    states = rng.normal(size=(n, dim_of(phi)))
    low, high = (np.array(LOW), np.array(HIGH))
    columns = range(len(low)) if phi.box.dims is None else phi.box.dims
    for i, column in enumerate(columns):
        states[:, column] = low[i] + (high[i] - low[i]) * rng.uniform(-0.3, 1.3, size=n)
        states[:2, column] = low[i], high[i]
    return states


@pytest.mark.parametrize("phi", MAPS.values(), ids=MAPS)
class TestEveryMap:
    def test_shape_and_type(self, phi):
        states = some_states(phi)
        value = phi(states)
        assert isinstance(phi, Features)
        assert value.shape == (len(states), phi.size)
        assert value.dtype == np.float64
        assert np.isfinite(dense(value)).all()
        if sp.issparse(value):
            assert isinstance(value, sp.csr_array)
            columns = [
                value.indices[a:b].tolist() for a, b in zip(value.indptr[:-1], value.indptr[1:], strict=True)
            ]
            assert all(row == sorted(set(row)) for row in columns)

    def test_a_state_does_not_depend_on_the_others(self, phi):
        states = some_states(phi, n=17)
        whole = dense(phi(states))
        for i in range(len(states)):
            np.testing.assert_array_equal(dense(phi(states[i : i + 1]))[0], whole[i])

    def test_no_states(self, phi):
        nothing = np.empty((0, dim_of(phi)))
        assert phi(nothing).shape == (0, phi.size)
        assert phi.outside(nothing).shape == (0,)

    def test_any_memory_layout(self, phi):
        states = some_states(phi)
        want = dense(phi(states))
        read_only = states.copy()
        read_only.flags.writeable = False
        wide = np.repeat(states, 2, axis=1)[:, ::2]
        for same in (np.asfortranarray(states), wide, states.tolist(), states.astype(">f8"), read_only):
            np.testing.assert_array_equal(dense(phi(same)), want)

    def test_spec_goes_through_json(self, phi):
        again = from_spec(json.loads(json.dumps(phi.spec())))
        assert type(again) is type(phi)
        assert again == phi
        assert hash(again) == hash(phi)
        assert again.spec() == phi.spec()
        states = some_states(phi)
        np.testing.assert_array_equal(dense(again(states)), dense(phi(states)))

    def test_pickle(self, phi):
        states = some_states(phi)
        phi(states)
        again = pickle.loads(pickle.dumps(phi))
        assert again == phi
        arrays = [value for value in vars(again).values() if isinstance(value, np.ndarray)]
        assert not any(array.flags.writeable for array in arrays)
        np.testing.assert_array_equal(dense(again(states)), dense(phi(states)))

    def test_differs_from_all_others(self, phi):
        assert sum(phi == other for other in MAPS.values()) == 1
        assert phi != "something else"

    def test_cannot_be_changed(self, phi):
        phi(some_states(phi))
        arrays = [value for value in vars(phi).values() if isinstance(value, np.ndarray)]
        assert not any(array.flags.writeable for array in arrays)
        name = "size" if isinstance(phi, Tabular) else "scale" if isinstance(phi, Labels) else "box"
        with pytest.raises(AttributeError):
            setattr(phi, name, None)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_states_must_be_finite(self, phi, bad):
        states = some_states(phi)
        for column in range(dim_of(phi)):
            wrong = states.copy()
            wrong[7, column] = bad
            for call in (phi, phi.outside):
                with pytest.raises(InvalidInputError, match=r"states must be finite, got .* at index \(7, "):
                    call(wrong)

    def test_states_must_have_the_dimension(self, phi):
        for dim in {1, 2, 3, 4} - {dim_of(phi)}:
            dims = phi.dims if isinstance(phi, Tabular | Labels) else phi.box.dims
            if dims is not None and dim > max(dims):
                continue  # whole states, of which dims chooses
            with pytest.raises(InvalidInputError, match="states must have"):
                phi(np.zeros((3, dim)))


@pytest.mark.parametrize("phi", BOXED.values(), ids=BOXED)
def test_outside_states_count_as_the_nearest_point(phi):
    states = some_states(phi, n=200)
    columns = list(range(2)) if phi.box.dims is None else list(phi.box.dims)
    moved = states.copy()
    moved[:, columns] = np.clip(states[:, columns], LOW, HIGH)
    outside = phi.outside(states)
    np.testing.assert_array_equal(outside, (moved != states).any(axis=1))
    assert outside.any()
    assert not outside.all()
    assert not outside[:2].any()  # the corners belong to the box
    np.testing.assert_array_equal(dense(phi(states)), dense(phi(moved)))
    far = states.copy()
    far[:, columns] = np.where(states[:, columns] < np.mean([LOW, HIGH], axis=0), -1.7e308, 1.7e308)
    corner = states.copy()
    corner[:, columns] = np.where(far[:, columns] < 0, LOW, HIGH)
    np.testing.assert_array_equal(dense(phi(far)), dense(phi(corner)))


@pytest.mark.parametrize("name", ["polynomial", "fourier", "tiles", "grid", "centres", "grid-truncated"])
def test_dims_choose_coordinates(name):
    phi = MAPS[name]
    spec = {**phi.spec(), "dims": [3, 1]}
    states = np.random.default_rng(1).normal(loc=[0, 10, 0, 0], size=(40, 4))
    plain = from_spec({**spec, "dims": None})
    np.testing.assert_array_equal(dense(from_spec(spec)(states)), dense(plain(states[:, [3, 1]])))


def test_which_maps_are_binary():
    assert {name for name, phi in MAPS.items() if isinstance(phi, BinaryFeatures)} == {
        "tabular",
        "tabular-dims",
        "tiles",
        "tiles-several",
        "tiles-hashed",
    }


# Labels


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_labels_are_columns_of_their_own(scale):
    values = [-7.0, 0.0, 2.5, 1000037.0]
    x = np.array([[2.5], [-7.0], [1000037.0], [3.0], [-8.0], [1e9], [0.0]])
    want = [[scale * (value == x_) for value in values] + [scale * (x_ not in values)] for x_ in x[:, 0]]
    np.testing.assert_array_equal(Labels(values, scale=scale)(x).toarray(), want)


def test_labels_refuse_what_is_no_list_of_values():
    for values in ([], [1, 1], [2, 1]):
        with pytest.raises(InvalidInputError, match="values must be at least one number, in increasing"):
            Labels(values)
    with pytest.raises(InvalidInputError, match="scale must be"):
        Labels([1, 2], scale=0)
    with pytest.raises(InvalidInputError, match="states must have 1 coordinate"):
        Labels([1, 2])([[1.0, 2.0]])


# Tabular


def test_tabular_is_the_identity():
    np.testing.assert_array_equal(Tabular(4)(range(4)).toarray(), np.eye(4))
    np.testing.assert_array_equal(Tabular(4).active([3, 0, 2]), [[3], [0], [2]])


@pytest.mark.parametrize("bad", [-1, 4, 0.5, 1e300, -1e300, 4 - 1e-9])
def test_tabular_refuses_what_is_no_index(bad):
    with pytest.raises(InvalidInputError, match=r"whole numbers from 0 to 3 for Tabular\(4\)"):
        Tabular(4)([0.0, bad])


@pytest.mark.parametrize(
    ("order", "dim", "total"), [(3, 1, None), (4, 2, None), (2, 3, None), (3, 4, 4), (5, 2, 0), (0, 3, None)]
)
def test_fourier_against_the_formula(order, dim, total):
    phi = Fourier(order=order, low=[-1.0] * dim, high=[3.0] * dim, total=total)
    k = [k for k in itertools.product(range(order + 1), repeat=dim) if total is None or sum(k) <= total]
    k.sort(key=lambda row: (sum(row), [-value for value in row]))
    np.testing.assert_array_equal(phi.frequencies, k)
    states = np.random.default_rng(dim).uniform(-2, 4, size=(50, dim))
    want = [
        [math.cos(math.pi * sum(a * b for a, b in zip(row, u, strict=True))) for row in k]
        for u in (scaled(x, [-1] * dim, [3] * dim) for x in states.tolist())
    ]
    np.testing.assert_allclose(phi(states), want, atol=1e-13)


@pytest.mark.parametrize(("degree", "dim"), [(0, 2), (1, 1), (5, 1), (3, 3), (2, 5)])
def test_polynomial_against_the_formula(degree, dim):
    phi = Polynomial(degree=degree, low=[-1.0] * dim, high=[3.0] * dim)
    assert phi.size == math.comb(degree + dim, dim)
    k = [k for k in itertools.product(range(degree + 1), repeat=dim) if sum(k) <= degree]
    k.sort(key=lambda row: (sum(row), [-value for value in row]))
    np.testing.assert_array_equal(phi.exponents, k)
    states = np.random.default_rng(dim).uniform(-2, 4, size=(50, dim))
    want = [
        [math.prod(a**b for a, b in zip(u, row, strict=True)) for row in k]
        for u in (scaled(x, [-1] * dim, [3] * dim) for x in states.tolist())
    ]
    np.testing.assert_allclose(phi(states), want, rtol=1e-13)


def test_a_bounded_total_is_made_without_the_full_order():
    assert Fourier(order=3, low=[0] * 30, high=[1] * 30, total=2).size == 1 + 30 + 30 + math.comb(30, 2)


def test_ranks_are_shares_of_the_visited_states():
    states = np.random.default_rng(1).lognormal(sigma=2.0, size=(4096, 2))
    phi = Ranked.of(TileCoding(low=[0, 0], high=[1, 1], bins=[8, 8]), states)
    below = (states[:, None, :] <= states[None, :200, :]).mean(axis=0)
    np.testing.assert_allclose(phi.ranks(states[:200]), below, atol=1.5 / 64)
    counts = np.bincount(phi.active(states)[:, 0] // 8, minlength=8)
    assert abs(counts - 512).max() < 40  # equal parts, where tiles of equal width would hold them all in one
    assert phi.outside([[0.0, 1.0], [1.0, 1.0]]).tolist() == [True, False]
    assert phi.ranks([[0.0, 1e9]]).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("binary", [True, False])
def test_ranked_maps_are_binary_as_the_inner_one_is_and_come_back_from_their_spec(binary):
    inner = TileCoding(low=[0], high=[1], bins=4) if binary else Polynomial(degree=2, low=[0], high=[1])
    phi = Ranked(inner, [[1.0, 2.0, 10.0]])
    assert hasattr(phi, "active") is binary
    x = np.array([1.5, 6.0])
    expected = inner(np.array([0.25, 0.75]))
    np.testing.assert_allclose(*(m.toarray() if binary else m for m in (phi(x), expected)))
    again = from_spec(phi.spec())
    assert again == phi
    assert type(again) is type(phi)
    assert pickle.loads(pickle.dumps(phi)) == phi


@pytest.mark.parametrize("knots", [[], [[]], [[1.0, 1.0]], [[2.0, 1.0]]])
def test_knots_must_increase(knots):
    with pytest.raises(InvalidInputError, match="knots must be increasing"):
        Ranked(Polynomial(degree=1, low=[0], high=[1]), knots)
