"""Tile coding against exact arithmetic, written out here in plain Python loops."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policyrisk.errors import InvalidInputError
from policyrisk.features import TileCoding


def slow_offset(k: int, i: int, K: int) -> Fraction:
    units = [m for m in range(1, K + 1) if math.gcd(m, K) == 1]
    return (Fraction(k * units[i % len(units)] % K) - Fraction(K - 1, 2)) / K


def slow_tiles(
    x: list[float], low: list[float], high: list[float], bins: list[int], K: int
) -> list[list[int]]:
    """The tile's coordinates in each tiling, in exact arithmetic."""
    tiles = []
    for k in range(K):
        tile = []
        for i, (value, a, b) in enumerate(zip(x, low, high, strict=True)):
            value, a, b = Fraction(value), Fraction(a), Fraction(b)
            t = (min(max(value, a), b) - a) * bins[i] / (b - a)
            tile.append(min(max(math.floor(t + slow_offset(k, i, K)), 0), bins[i] - 1))
        tiles.append(tile)
    return tiles


def slow_index(tiles: list[list[int]], bins: list[int]) -> list[int]:
    indices = []
    for k, tile in enumerate(tiles):
        index = k
        for c, b in zip(tile, bins, strict=True):
            index = index * b + c
        indices.append(index)
    return indices


def slow_hash(tiles: list[list[int]], block: int) -> list[int]:
    word = 2**64
    indices = []
    for k, tile in enumerate(tiles):
        h = k
        for c in tile:
            h = (h + 0x9E3779B97F4A7C15 * (c + 1)) % word
            h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9 % word
            h = (h ^ (h >> 27)) * 0x94D049BB133111EB % word
            h ^= h >> 31
        indices.append(k * block + h % block)
    return indices


def test_one_tiling_is_the_uniform_grid():
    phi = TileCoding(low=[0, 0], high=[1, 1], bins=[50, 50], tilings=1, dims=[0, 1])
    assert phi.size == 2500
    states = np.random.default_rng(0).random((20_000, 2))
    edges = np.arange(51) / 50
    rows, columns = (np.searchsorted(edges, states[:, i], side="right") - 1 for i in (0, 1))
    np.testing.assert_array_equal(phi.active(states)[:, 0], rows * 50 + columns)


def test_boundaries_belong_to_the_upper_tile_and_high_to_the_last():
    phi = TileCoding(low=[0], high=[30], bins=30)
    below = np.nextafter(np.arange(1.0, 31.0), 0)
    np.testing.assert_array_equal(phi.active(np.arange(31.0))[:, 0], [*range(30), 29])
    np.testing.assert_array_equal(phi.active(below)[:, 0], range(30))
    np.testing.assert_array_equal(
        TileCoding(low=[3], high=[10], bins=7).active(np.arange(3, 11))[:, 0], [*range(7), 6]
    )


@pytest.mark.parametrize("tilings", [1, 2, 3, 4, 6, 8])
def test_tiles_against_exact_arithmetic(tilings):
    # Eighths in a box of length 4 and 8: tiles and their edges are hit exactly, and nothing is
    # rounded but offsets such as 1/3 and 5/12, on whose edges no eighth lies.
    low, high, bins = [-1.0, 0.0, 2.0], [3.0, 8.0, 6.0], [4, 8, 1]
    K = tilings
    phi = TileCoding(low=low, high=high, bins=bins, tilings=K)
    grid = np.arange(-2.0, 10.0, 1 / 8)
    states = np.random.default_rng(K).choice(grid, size=(800, 3))
    tiles = [slow_tiles(x, low, high, bins, K) for x in states.tolist()]
    np.testing.assert_array_equal(phi.active(states), [slow_index(tile, bins) for tile in tiles])
    hashed = TileCoding(low=low, high=high, bins=bins, tilings=K, hashed=7 * K)
    np.testing.assert_array_equal(hashed.active(states), [slow_hash(tile, 7) for tile in tiles])


@pytest.mark.parametrize("tilings", [1, 2, 3, 5, 6, 8, 12])
def test_offsets_are_spread_evenly_along_every_coordinate(tilings):
    offsets = TileCoding(low=[0] * 5, high=[1] * 5, bins=2, tilings=tilings).offsets
    assert offsets.shape == (tilings, 5)
    even = (np.arange(tilings) - (tilings - 1) / 2) / tilings
    np.testing.assert_allclose(np.sort(offsets, axis=0), np.tile(even[:, None], 5), atol=1e-15)
    np.testing.assert_allclose(
        offsets, [[float(slow_offset(k, i, tilings)) for i in range(5)] for k in range(tilings)], atol=1e-15
    )


def test_tilings_refine_the_grid():
    # The K (bins − 1) edges inside the box are a K-th of a tile apart, and each is one tiling's.
    x = np.linspace(0, 4, 4001)
    active = TileCoding(low=[0], high=[4], bins=4, tilings=4).active(x)
    steps = np.diff(active, axis=0)
    assert set(steps.sum(axis=1).tolist()) == {0, 1}
    np.testing.assert_allclose(x[1:][steps.any(axis=1)], 0.625 + 0.25 * np.arange(12), atol=1.1e-3)


boxes = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 20)), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(boxes, st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans())
def test_tiles_of_random_boxes(box, tilings, seed, hash_them):
    low, bins = [a for a, _, _ in box], [b for _, _, b in box]
    high = [a + length for a, length, _ in box]
    assume(all(a < b for a, b in zip(low, high, strict=True)))
    size = tilings * math.prod(bins)
    hashed = 11 * tilings if hash_them else None
    phi = TileCoding(low=low, high=high, bins=bins, tilings=tilings, hashed=hashed)
    assert phi.size == (hashed or size)
    span = np.array(high) - low
    states = low + span * np.random.default_rng(seed).uniform(-0.5, 1.5, size=(50, len(box)))
    active = phi.active(states)
    assert active.dtype == np.int64
    assert active.shape == (50, tilings)
    # Each tiling has its own block of indices: so they are distinct, and every row sums to tilings.
    np.testing.assert_array_equal(active // (phi.size // tilings), np.tile(np.arange(tilings), (50, 1)))
    np.testing.assert_array_equal(phi(states).sum(axis=1), tilings)
    # A NumPy twin of the kernel: the same operations, a whole column at a time.
    t = np.clip((states - low) * bins / span, 0, bins)
    tiles = np.clip(np.floor(t[:, None, :] + phi.offsets), 0, np.array(bins) - 1).astype(np.int64)
    if not hash_them:
        twin = np.ravel_multi_index(tuple(np.moveaxis(tiles, -1, 0)), bins) + math.prod(bins) * np.arange(
            tilings
        )
        np.testing.assert_array_equal(active, twin)
    else:
        np.testing.assert_array_equal(active, [slow_hash(rows, 11) for rows in tiles.tolist()])
        different = len({(k, *tile) for rows in tiles.tolist() for k, tile in enumerate(rows)})
        assert phi.collisions(states) == different - len(set(active.ravel().tolist()))


def test_hash_is_fixed_and_spreads():
    phi = TileCoding(low=[0] * 20, high=[1] * 20, bins=10, tilings=2, hashed=2048)  # 2·10²⁰ tiles
    states = np.random.default_rng(3).random((50_000, 20))
    active = phi.active(states)
    assert active[:, 0].max() < 1024 <= active[:, 1].min()
    assert active.max() < 2048
    # The tiles are all different, so the counts are those of balls thrown into bins: χ² with 1023 degrees.
    for k in range(2):
        counts = np.bincount(active[:, k] - 1024 * k, minlength=1024)
        chi2 = ((counts - 50_000 / 1024) ** 2).sum() / (50_000 / 1024)
        assert abs(chi2 - 1023) / math.sqrt(2 * 1023) < 5
    assert phi.collisions(states) == 100_000 - 2048
    # A change here would move the tiles of everything that was saved.
    small = TileCoding(low=[0], high=[1], bins=8, hashed=1000)
    assert small.active([0.0, 0.3, 0.99]).ravel().tolist() == [535, 679, 940]


def test_no_collisions_without_hashing():
    phi = TileCoding(low=[0, 0], high=[1, 1], bins=[3, 4], tilings=3)
    assert phi.collisions(np.random.default_rng(0).random((500, 2))) == 0


def test_tile_centres_lie_in_their_tiles():
    low, high = [-2.0, 10.0], [2.0, 11.0]
    phi = TileCoding(low=low, high=high, bins=[5, 7])
    centres = phi.centres()
    np.testing.assert_array_equal(phi.active(centres)[:, 0], np.arange(35))
    np.testing.assert_allclose(centres[8], [-2 + 1.5 * 4 / 5, 10 + 1.5 / 7])
    for other in ({"tilings": 2}, {"hashed": 10}):
        with pytest.raises(InvalidInputError, match="centres needs tilings=1"):
            TileCoding(low=low, high=high, bins=[5, 7], **other).centres()
