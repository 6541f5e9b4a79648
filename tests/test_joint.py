"""Several maps side by side, against np.hstack and against the maps' own fits."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import dense

import policyrisk as pr
from policyrisk.errors import InvalidInputError
from policyrisk.features import BinaryFeatures, Features, as_features, from_spec
from policyrisk.features.protocol import is_binary

LOW, HIGH = [-1.0, 0.0], [1.0, 2.0]
TILES = pr.TileCoding(LOW, HIGH, bins=[4, 3], tilings=2, dims=[0, 1])
TABLE = pr.Tabular(5, dims=[2])
POLY = pr.Polynomial(2, LOW, HIGH, dims=[0, 1])
NEAR = pr.RadialBasis.grid(LOW, HIGH, shape=(9, 9), truncate=1.0, dims=[0, 1])
MANY = pr.Tabular(500, dims=[2])
OWN = pr.FunctionFeatures(np.sin, size=3)

JOINTS = {
    "binary": (TILES, TABLE),
    "one": (TABLE,),
    "sparse": (NEAR, TABLE),
    "mixed": (TILES, POLY, TABLE),
    "mostly-sparse": (POLY, MANY),
    "dense": (POLY, pr.Fourier(2, LOW, HIGH, dims=[0, 1])),
    "nested": (pr.Joint([TILES, TABLE]), POLY),
}


def some_states(n: int = 50, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.uniform(-1.2, 2.2, (n, 2)), rng.integers(0, 5, n)])


@pytest.mark.parametrize("maps", JOINTS.values(), ids=JOINTS)
class TestEveryJoint:
    def test_is_the_maps_side_by_side(self, maps):
        phi, x = pr.Joint(maps), some_states()
        value = phi(x)
        np.testing.assert_array_equal(dense(value), np.hstack([dense(each(x)) for each in maps]))
        assert phi.size == value.shape[1] == sum(each.size for each in maps)
        for each, block in zip(maps, phi.blocks, strict=True):
            np.testing.assert_array_equal(dense(value)[:, block], dense(each(x)))
        assert phi(x[:0]).shape == (0, phi.size)

    def test_outside_one_of_them(self, maps):
        x = some_states()
        want = np.any([each.outside(x) for each in maps], axis=0)
        np.testing.assert_array_equal(pr.Joint(maps).outside(x), want)

    def test_binary_where_all_are(self, maps):
        phi, x = pr.Joint(maps), some_states()
        binary = all(is_binary(each) for each in maps)
        assert isinstance(phi, Features)
        assert is_binary(phi) == isinstance(phi, BinaryFeatures) == binary
        if binary:
            ones = np.zeros((len(x), phi.size))
            np.put_along_axis(ones, phi.active(x), 1.0, axis=1)
            np.testing.assert_array_equal(ones, dense(phi(x)))

    def test_described_compared_and_pickled(self, maps):
        phi, x = pr.Joint(maps), some_states()
        phi(x)
        for again in (from_spec(json.loads(json.dumps(phi.spec()))), pickle.loads(pickle.dumps(phi))):
            assert type(again) is type(phi)
            assert again == phi
            assert hash(again) == hash(phi)
            assert again.blocks == phi.blocks
            np.testing.assert_array_equal(dense(again(x)), dense(phi(x)))
        assert sum(phi == pr.Joint(other) for other in JOINTS.values()) == 1
        with pytest.raises(AttributeError, match="cannot be changed"):
            phi.size = 3


def test_sparse_or_dense():
    x = some_states()
    kinds = {name: sp.issparse(pr.Joint(maps)(x)) for name, maps in JOINTS.items()}
    assert [name for name, sparse in kinds.items() if sparse] == ["binary", "one", "sparse", "mostly-sparse"]


def test_the_coordinates_looked_at():
    assert pr.Joint([TILES, TABLE]).dims == (0, 1, 2)
    assert pr.Joint([TABLE, TABLE]).dims == (2,)
    assert pr.Joint([TABLE, OWN]).dims is None


def test_functions_of_your_own():
    phi, x = pr.Joint([OWN, TABLE]), some_states()
    np.testing.assert_array_equal(phi(x), np.hstack([np.sin(x), dense(TABLE(x))]))
    assert phi == pr.Joint([pr.FunctionFeatures(np.sin, size=3), TABLE])
    assert phi != pr.Joint([pr.FunctionFeatures(np.cos, size=3), TABLE])
    assert as_features(phi) is phi
    assert repr(phi) == "Joint([FunctionFeatures(sin, size=3), Tabular(size=5, dims=(2,))])"
    assert from_spec(json.loads(json.dumps(phi.spec()))) == phi
    with pytest.raises(InvalidInputError, match="known after its first call only; call it or pass size="):
        pr.Joint([np.sin, TABLE])


def test_refusals():
    with pytest.raises(InvalidInputError, match="maps must be at least one feature map"):
        pr.Joint([])
    with pytest.raises(InvalidInputError, match="features must be a feature map or a function"):
        pr.Joint([pr.Tabular])

    class Mine:
        size = 1

        def __call__(self, states):
            return np.ones((len(states), 1))

    with pytest.raises(InvalidInputError, match=r"must have a spec\(\) to be described, got Mine"):
        pr.Joint([Mine(), TABLE]).spec()


def test_a_fit_with_blocks_is_the_sum_over_blocks():
    """Two tables on two independent coordinates: J is a sum, and LSTD finds the two terms."""
    rng = np.random.default_rng(3)
    n, T = 4000, 4
    labels, place = rng.integers(0, 3, n), rng.integers(0, 4, n)
    states = np.repeat(np.column_stack([labels, place]), T + 1, axis=0).astype(float)
    rewards = np.repeat(np.array([1.0, -2.0, 5.0])[labels] + place, T) + rng.normal(size=n * T)
    data = pr.Trajectories(states, rewards, np.full(n, T), np.full(n, True))
    phi = pr.Joint([pr.Tabular(3, dims=[0]), pr.Tabular(4, dims=[1])])
    risk = pr.LSTD(phi, lam=1.0).fit(data)
    grid = np.array([[a, b] for a in range(3) for b in range(4)], dtype=float)
    # Every visited row at λ = 1 has its return to go, with 4, 3, 2 or 1 steps left: 2.5 on average.
    want = 2.5 * (np.array([1.0, -2.0, 5.0])[grid[:, 0].astype(int)] + grid[:, 1])
    z = (risk.mean(grid) - want) / risk.standard_error(grid, of="mean")
    assert np.abs(z).max() < 4
    parts = [dense(each(grid)) @ risk.w_mean[block] for each, block in zip(phi.maps, phi.blocks, strict=True)]
    np.testing.assert_allclose(sum(parts), risk.mean(grid))


def test_saved_and_loaded(tmp_path):
    data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=300, seed=1)
    risk = pr.LSTD(pr.Joint([pr.Tabular(5), pr.Polynomial(1, [0], [4])])).fit(data)
    risk.save(tmp_path / "risk.npz")
    again = pr.RiskFunction.load(tmp_path / "risk.npz")
    assert again.features == risk.features
    np.testing.assert_array_equal(again.mean(np.arange(5)), risk.mean(np.arange(5)))
