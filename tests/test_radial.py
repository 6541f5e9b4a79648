"""Radial bases against their formula, written out here in plain Python loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import dense, scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from policyrisk.errors import InvalidInputError
from policyrisk.features import RadialBasis


def slow_radial(
    u: list[float], centres: list[list[float]], width: list[float], normalised: bool, truncate: float | None
) -> list[float]:
    reach = math.inf if truncate is None else truncate
    g = []
    for c in centres:
        z = [(a - b) / w for a, b, w in zip(u, c, width, strict=True)]
        near = all(abs(a - b) <= reach * w for a, b, w in zip(u, c, width, strict=True))
        g.append(math.exp(-0.5 * sum(value**2 for value in z)) if near else 0.0)
    return [value / sum(g) for value in g] if normalised else g


def grid_centres(shape: tuple[int, ...]) -> list[list[float]]:
    axes = [[0.5] if s == 1 else [j / (s - 1) for j in range(s)] for s in shape]
    return [list(c) for c in itertools.product(*axes)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.booleans(),
    st.one_of(st.none(), st.floats(1.01, 3.0)),
    st.one_of(st.none(), st.floats(0.5, 2.0)),
    st.integers(0, 2**32 - 1),
)
def test_grid_against_the_formula(shape, normalised, truncate, width, seed):
    shape = tuple(shape)
    dim = len(shape)
    rng = np.random.default_rng(seed)
    low, high = -rng.random(dim), 1 + rng.random(dim)
    spacing = [1.0 if s == 1 else 1 / (s - 1) for s in shape]
    wide = [h if width is None else width for h in spacing]
    phi = RadialBasis.grid(
        low=low,
        high=high,
        shape=shape,
        width=None if width is None else wide,
        normalised=normalised,
        truncate=truncate,
    )
    states = low + (high - low) * rng.uniform(-0.2, 1.2, size=(20, dim))
    states[0], states[1] = low, high
    value = phi(states)
    assert sp.issparse(value) == (truncate is not None)
    want = [
        slow_radial(scaled(x, low, high), grid_centres(shape), wide, normalised, truncate)
        for x in states.tolist()
    ]
    np.testing.assert_allclose(dense(value), want, rtol=1e-12, atol=1e-300)
    if truncate is not None:
        assert value.nnz == np.count_nonzero(want)
    if normalised:
        np.testing.assert_allclose(value.sum(axis=1), 1.0, rtol=1e-13)
    np.testing.assert_allclose(phi.centres, low + np.array(grid_centres(shape)) * (high - low), rtol=1e-15)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 8),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.floats(0.3, 3.0)),
    st.integers(0, 2**32 - 1),
)
def test_given_centres_against_the_formula(dim, size, boxed, normalised, truncate, seed):
    rng = np.random.default_rng(seed)
    low, high = (-rng.random(dim), 1 + rng.random(dim)) if boxed else (np.zeros(dim), np.ones(dim))
    centres = low + (high - low) * rng.uniform(-0.1, 1.1, size=(size, dim))
    width = rng.uniform(0.3, 1.0, size=dim)
    box = {"low": low, "high": high} if boxed else {}
    phi = RadialBasis(centres, width, **box, normalised=normalised, truncate=truncate)
    states = low + (high - low) * rng.uniform(-0.2, 1.2, size=(20, dim))
    u = [scaled(x, low, high) if boxed else x for x in states.tolist()]
    c = ((centres - low) / (high - low)).tolist()
    g = np.array([slow_radial(row, c, width, False, truncate) for row in u])
    if normalised and not g.any(axis=1).all():
        with pytest.raises(InvalidInputError, match="states must have a centre within"):
            phi(states)
        return
    want = g / g.sum(axis=1, keepdims=True) if normalised else g
    np.testing.assert_allclose(dense(phi(states)), want, rtol=1e-12)
    np.testing.assert_array_equal(
        phi.outside(states),
        [boxed and list(a) != b for a, b in zip(states, np.clip(states, low, high).tolist(), strict=True)],
    )


@pytest.mark.parametrize("normalised", [False, True])
def test_grid_is_the_basis_at_its_centres(normalised):
    low, high = [-2.0, 10.0], [2.0, 11.0]
    phi = RadialBasis.grid(low=low, high=high, shape=(7, 5), normalised=normalised)
    given_centres = RadialBasis(phi.centres, phi.width, low, high, normalised=normalised)
    states = np.random.default_rng(2).uniform(
        [-3, 9.8], [3, 11.2], size=(3000, 2)
    )  # more than one block of rows
    np.testing.assert_allclose(phi(states), given_centres(states), rtol=1e-12)


def test_truncation_drops_only_what_is_far():
    whole = RadialBasis.grid(low=[0] * 4, high=[1] * 4, shape=(24, 24, 5, 5))
    near = RadialBasis.grid(low=[0] * 4, high=[1] * 4, shape=(24, 24, 5, 5), truncate=1.5)
    states = np.random.default_rng(5).random((40, 4))
    dense, sparse = whole(states), near(states)
    assert whole.size == 14_400
    assert sparse.nnz <= 40 * 3**4
    kept = sparse.toarray() != 0
    np.testing.assert_allclose(sparse.toarray()[kept], dense[kept], rtol=1e-13)
    # What is left out is beyond 1.5 widths in some coordinate, so it is below exp(−1.5²/2).
    assert dense[~kept].max() < math.exp(-0.5 * 1.5**2)


def test_truncation_at_exactly_the_reach():
    # Centres 0, ¼, …, 1 and reach ¼: between two centres both, on a centre three.
    phi = RadialBasis.grid(low=[0], high=[1], shape=5, width=0.25, truncate=1.0)
    counts = np.diff(phi([0.0, 0.25, 0.5, 0.625, np.nextafter(0.5, 1), 1.0]).indptr)
    np.testing.assert_array_equal(counts, [2, 3, 3, 2, 2, 2])


def test_narrow_normalised_bases_do_not_vanish():
    # Every g underflows to 0 between the centres; the nearest one has all the weight nevertheless.
    for truncate in (None, 400.0):
        phi = RadialBasis.grid(low=[0], high=[1], shape=2, width=2e-3, normalised=True, truncate=truncate)
        np.testing.assert_allclose(dense(phi([0.45, 0.55])), [[1, 0], [0, 1]], atol=1e-300)
        given_centres = RadialBasis([0, 1], 2e-3, normalised=True, truncate=truncate)
        np.testing.assert_allclose(dense(given_centres([0.45, 0.55])), [[1, 0], [0, 1]], atol=1e-300)


def test_default_width_is_the_spacing():
    phi = RadialBasis.grid(low=[0, 0, 0], high=[1, 9, 1], shape=(9, 3, 1))
    np.testing.assert_allclose(phi.width, [1 / 8, 1 / 2, 1])
    assert phi == RadialBasis.grid(low=[0, 0, 0], high=[1, 9, 1], shape=(9, 3, 1), width=[1 / 8, 1 / 2, 1])


def test_radial_arrays_are_read_only_and_its_own():
    centres = np.zeros((2, 1))
    phi = RadialBasis(centres, 1.0)
    centres[0] = 5.0
    assert phi.centres[0, 0] == 0.0
    for array in (phi.centres, phi.width):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_states_without_a_number_for_their_distance():
    with pytest.raises(InvalidInputError, match="near enough for"):
        RadialBasis([0.0], 1.0, normalised=True)([0.0, 1e200])
