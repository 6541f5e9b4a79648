"""The random streams against a twin in plain Python integers, and against their distributions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import njit
from scipy import stats

from policyrisk._core.random import below, bits, keys, normal_pair, stream, uniform
from policyrisk.errors import InvalidInputError

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


# --- the twin: Python integers, written from the published recurrences -----------------------------


def rotl(x: int, k: int) -> int:
    return ((x << k) | (x >> (64 - k))) & MASK


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def twin_stream(key0: int, key1: int, index: int) -> tuple[int, int]:
    t = mix((key0 + GOLDEN * (index + 1)) & MASK)
    s1 = mix((key1 + t) & MASK)
    return t ^ mix((s1 + GOLDEN) & MASK), s1


def twin_bits(s0: int, s1: int) -> tuple[int, int, int]:
    draw = (rotl((s0 + s1) & MASK, 17) + s0) & MASK
    s1 ^= s0
    return draw, rotl(s0, 49) ^ s1 ^ ((s1 << 21) & MASK), rotl(s1, 28)


def twin_uniform(s0: int, s1: int) -> tuple[float, int, int]:
    draw, s0, s1 = twin_bits(s0, s1)
    return float(Fraction(draw >> 11, 2**53)), s0, s1


def twin_normal_pair(s0: int, s1: int) -> tuple[float, float, int, int]:
    while True:
        u, s0, s1 = twin_uniform(s0, s1)
        v, s0, s1 = twin_uniform(s0, s1)
        u, v = 2 * u - 1, 2 * v - 1
        r = u * u + v * v
        if 0 < r < 1:
            scale = math.sqrt(-2 * math.log(r) / r)
            return u * scale, v * scale, s0, s1


def twin_below(n: int, s0: int, s1: int) -> tuple[int, int, int]:
    while True:
        draw, s0, s1 = twin_bits(s0, s1)
        whole, rest = divmod((draw >> 32) * n, 2**32)
        if rest >= 2**32 % n:
            return whole, s0, s1


KEYS = [(0, 0), (1, 0), (MASK, MASK), (0x0123456789ABCDEF, 0xFEDCBA9876543210)]


def as_words(*values: int) -> list[np.uint64]:
    return [np.uint64(v) for v in values]


def as_python(result: tuple[Any, ...]) -> tuple[float | int, ...]:
    return tuple(np.asarray(v).item() for v in result)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("index", [0, 1, 2**40, 2**63 - 1])
def test_stream_is_the_twins(key: tuple[int, int], index: int) -> None:
    assert as_python(stream(*as_words(*key), index)) == twin_stream(*key, index)


@pytest.mark.parametrize("key", KEYS)
def test_every_draw_is_the_twins(key: tuple[int, int]) -> None:
    words = tuple(twin_stream(*key, 5))
    for _ in range(200):
        assert as_python(uniform(*as_words(*words))) == twin_uniform(*words)
        assert as_python(below(5, *as_words(*words))) == twin_below(5, *words)
        g0, g1, *after = as_python(normal_pair(*as_words(*words)))
        t0, t1, *twin_after = twin_normal_pair(*words)
        assert (g0, g1) == pytest.approx((t0, t1), rel=1e-14)
        assert after == twin_after
        ours = as_python(bits(*as_words(*words)))
        assert ours == twin_bits(*words)
        words = (int(ours[1]), int(ours[2]))


def test_below_redraws_where_a_plain_product_would_be_biased() -> None:
    n = 3 * 2**30  # a quarter of all products must be redrawn
    words = tuple(twin_stream(1, 2, 3))
    redrawn = 0
    for _ in range(200):
        ours = as_python(below(n, *as_words(*words)))
        assert ours == twin_below(n, *words)
        redrawn += ours[1:] != twin_bits(*words)[1:]
        words = twin_bits(*words)[1:]
    assert 20 < redrawn < 90


def test_the_state_that_cannot_be_left_is_never_a_start() -> None:
    # mix is one-to-one with mix(0) = 0, so this key makes s1 = 0 and t = mix(G), hence s0 = 0.
    t = mix(GOLDEN)
    key = (0, -t & MASK)
    assert twin_stream(*key, 0) == (0, 0)
    assert as_python(stream(*as_words(*key), 0)) == (GOLDEN, 0)


# --- distributions -------------------------------------------------------------------------------


@njit(cache=True)
def fill(key0: np.uint64, key1: np.uint64, out: np.ndarray, n: int) -> None:
    """Columns: uniform, two normals, an integer below n; all from one stream."""
    s0, s1 = stream(key0, key1, 0)
    for i in range(out.shape[0]):
        out[i, 0], s0, s1 = uniform(s0, s1)
        out[i, 1], out[i, 2], s0, s1 = normal_pair(s0, s1)
        out[i, 3], s0, s1 = below(n, s0, s1)


@njit(cache=True)
def first_draws(key0: np.uint64, key1: np.uint64, out: np.ndarray) -> None:
    """The first few uniforms of neighbouring streams: one stream a row."""
    for i in range(out.shape[0]):
        s0, s1 = stream(key0, key1, i)
        for j in range(out.shape[1]):
            out[i, j], s0, s1 = uniform(s0, s1)


def sample(seed: int, rows: int, n: int = 5) -> np.ndarray:
    out = np.empty((rows, 4))
    fill(*keys(seed), out, n)
    return out


def test_uniforms_and_normals_have_their_distributions() -> None:
    draws = sample(0, 200_000)
    assert stats.kstest(draws[:, 0], "uniform").pvalue > 1e-3
    assert stats.kstest(draws[:, 1], "norm").pvalue > 1e-3
    assert stats.kstest(draws[:, 2], "norm").pvalue > 1e-3
    assert draws[:, 0].min() >= 0.0
    assert draws[:, 0].max() < 1.0
    # Tails: E g⁴ = 3, Var g⁴ = 96.
    fourth = (draws[:, 1:3] ** 4).mean()
    assert abs(fourth - 3.0) / math.sqrt(96 / 400_000) < 4


def test_what_one_stream_draws_in_turn_is_uncorrelated() -> None:
    draws = sample(1, 200_000)
    columns = [*draws.T, *(draws[:, 1:3] ** 2).T]
    correlations = np.corrcoef(columns)[np.triu_indices(len(columns), 1)]
    # g² is a function of g, and uncorrelated with it all the same; its skew widens nothing here.
    assert np.abs(correlations).max() * math.sqrt(len(draws)) < 5.5
    lagged = np.corrcoef(draws[1:, 0], draws[:-1, 0])[0, 1]
    assert abs(lagged) * math.sqrt(len(draws)) < 4


@pytest.mark.parametrize("n", [1, 2, 4, 5, 7])
def test_integers_below_n_are_equally_likely(n: int) -> None:
    counts = np.bincount(sample(2, 100_000, n)[:, 3].astype(int))
    assert len(counts) == n
    if n > 1:
        assert stats.chisquare(counts).pvalue > 1e-3


def test_neighbouring_streams_are_independent() -> None:
    out = np.empty((100_000, 8))
    first_draws(*keys(3), out)
    for column in out.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    for lag in (1, 2, 3):
        cross = np.corrcoef(out[lag:].T, out[:-lag].T)[:8, 8:]
        assert np.abs(cross).max() * math.sqrt(len(out)) < 4.5
    pairs = np.floor(out[1:, 0] * 8) * 8 + np.floor(out[:-1, 0] * 8)
    assert stats.chisquare(np.bincount(pairs.astype(int), minlength=64)).pvalue > 1e-3


def test_one_bit_of_key_or_index_changes_half_the_bits() -> None:
    base = twin_stream(12345, 67890, 1000)

    def flipped(key0: int, key1: int, index: int) -> int:
        s0, s1 = as_python(stream(*as_words(key0, key1), index))
        return (int(s0) ^ base[0]).bit_count() + (int(s1) ^ base[1]).bit_count()

    changes = [flipped(12345 ^ 1 << b, 67890, 1000) for b in range(64)]
    changes += [flipped(12345, 67890 ^ 1 << b, 1000) for b in range(64)]
    changes += [flipped(12345, 67890, 1000 ^ 1 << b) for b in range(63)]
    assert min(changes) > 30  # 64 ± 5.7 of 128 bits, at most 191 trials
    assert abs(np.mean(changes) - 64) < 4 * math.sqrt(32 / len(changes))


# --- seeds ---------------------------------------------------------------------------------------


def test_keys_of_each_kind_of_seed() -> None:
    assert keys(5) == keys(np.int64(5)) == keys(np.random.SeedSequence(5))
    assert keys(5) != keys(6)
    assert keys(None) != keys(None)
    generator = np.random.default_rng(5)
    first = keys(generator)
    assert first == keys(np.random.default_rng(5))
    assert first != keys(generator)


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, [1, 2]])
def test_a_bad_seed_is_named(seed: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"seed must be None, an int .* pass for example"):
        keys(seed)
