"""Random streams as pure scalar functions: the state goes in, the draw and the new state come out.

A stream's state is two 64-bit words (s0, s1), advanced by xoroshiro128++ (Blackman and Vigna 2021):

    draw = rotl(s0 + s1, 17) + s0
    s1  ^= s0;   s0 = rotl(s0, 49) ^ s1 ^ (s1 << 21);   s1 = rotl(s1, 28)

A seed becomes a 128-bit key, and trajectory ``i`` of a call has the stream that starts in a hash of
(key, i). What a trajectory draws then depends on the seed and on i alone, so that any number of
threads, in any order, gives the same bits. With mix the finaliser of splitmix64 and
G = 2⁶⁴ / golden ratio,

    t = mix(key0 + G·(i + 1)),   s1 = mix(key1 + t),   s0 = t ^ mix(s1 + G)

is one-to-one in the key for a given i, and in i for a given key: two streams never start alike.

Nothing here keeps hidden state or allocates; all but :func:`keys` can be called from Numba kernels,
and the same source could be compiled for a GPU.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numba import njit

from policyrisk._core.arrays import Floats, Ints, Seed, shown
from policyrisk.errors import InvalidInputError

# Numba turns a uint64 that meets a signed integer into a float, so every constant is a uint64.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_U0, _U1 = np.uint64(0), np.uint64(1)
_U11, _U21, _U32 = np.uint64(11), np.uint64(21), np.uint64(32)
_U17, _U28, _U49, _U64 = np.uint64(17), np.uint64(28), np.uint64(49), np.uint64(64)
_U27, _U30, _U31 = np.uint64(27), np.uint64(30), np.uint64(31)
_LOW32 = np.uint64(0xFFFFFFFF)
_TWO32 = np.uint64(1 << 32)
_ULP = 2.0**-53
_MULTIPLIERS = np.uint64(0xD1342543DE82EF95)


def keys(seed: Seed) -> tuple[np.uint64, np.uint64]:
    """The 128-bit key of a seed: the same int or SeedSequence gives the same key, None a fresh one.

    A Generator is advanced by two draws, so that calls which share one do not repeat each other.

    >>> keys(7) == keys(7), keys(7) == keys(8)
    (True, False)
    """
    if isinstance(seed, np.random.Generator):
        words: Any = seed.integers(0, 2**64, size=2, dtype=np.uint64)
    else:
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(_whole(seed))
        words = sequence.generate_state(2, np.uint64)
    return np.uint64(words[0]), np.uint64(words[1])


def generator(seed: Seed) -> np.random.Generator:
    """A NumPy generator of a seed; a Generator is returned as it is.

    >>> float(generator(3).random()) == float(np.random.default_rng(3).random())
    True
    """
    known = isinstance(seed, np.random.Generator | np.random.SeedSequence)
    return np.random.default_rng(seed if known else _whole(seed))


def _whole(seed: Any) -> int | None:
    if seed is None:
        return None
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except Exception:
        number = -1
    if number < 0:
        raise InvalidInputError(
            "seed must be None, an int of at least 0, a numpy SeedSequence or a numpy Generator, "
            f"got {shown(seed)}; pass for example seed=0, or seed=None for fresh randomness"
        )
    return number


@njit(cache=True)
def _rotl(x: np.uint64, k: np.uint64) -> np.uint64:
    return (x << k) | (x >> (_U64 - k))


def mix(x: Any) -> Any:
    """The finaliser of splitmix64 of a uint64, or of each one of an array.

    Hashed tiles are saved by it (:mod:`policyrisk.features.tilecoding`): it must stay as it is.
    """
    x = (x ^ (x >> _U30)) * _MIX_A
    x = (x ^ (x >> _U27)) * _MIX_B
    return x ^ (x >> _U31)


mix_compiled = njit(cache=True)(mix)


@njit(cache=True)
def stream(key0: np.uint64, key1: np.uint64, index: int) -> tuple[np.uint64, np.uint64]:
    """The start state (s0, s1) of stream number ``index`` of a key."""
    t = mix_compiled(key0 + GOLDEN * (np.uint64(index) + _U1))
    s1 = mix_compiled(key1 + t)
    s0 = t ^ mix_compiled(s1 + GOLDEN)
    if s0 == _U0 and s1 == _U0:  # the one state that xoroshiro cannot leave
        s0 = GOLDEN
    return s0, s1


@njit(cache=True)
def bits(s0: np.uint64, s1: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64]:
    """64 random bits, and the state after them."""
    draw = _rotl(s0 + s1, _U17) + s0
    s1 ^= s0
    return draw, _rotl(s0, _U49) ^ s1 ^ (s1 << _U21), _rotl(s1, _U28)


@njit(cache=True)
def uniform(s0: np.uint64, s1: np.uint64) -> tuple[float, np.uint64, np.uint64]:
    """A uniform number in [0, 1), a multiple of 2⁻⁵³, and the state after it."""
    draw, s0, s1 = bits(s0, s1)
    return np.float64(draw >> _U11) * _ULP, s0, s1


@njit(cache=True, error_model="numpy")
def normal_pair(s0: np.uint64, s1: np.uint64) -> tuple[float, float, np.uint64, np.uint64]:
    """Two independent standard normal numbers by Marsaglia's polar method, and the state after them.

    For (u, v) uniform in the unit disc and r = u² + v²: g0, g1 = (u, v)·√(−2 ln r / r).
    """
    while True:
        u, s0, s1 = uniform(s0, s1)
        v, s0, s1 = uniform(s0, s1)
        u = 2.0 * u - 1.0
        v = 2.0 * v - 1.0
        r = u * u + v * v
        if 0.0 < r < 1.0:
            scale = math.sqrt(-2.0 * math.log(r) / r)
            return u * scale, v * scale, s0, s1


@njit(cache=True, error_model="numpy")
def below(n: int, s0: np.uint64, s1: np.uint64) -> tuple[np.int64, np.uint64, np.uint64]:
    """A whole number uniform on 0, …, n − 1 for 1 ≤ n ≤ 2³², without bias, and the state after it.

    Lemire's multiplication: the high half of (32 random bits) · n, redrawn where the low half falls
    in the first 2³² mod n values, which would be one too many.
    """
    m = np.uint64(n)
    draw, s0, s1 = bits(s0, s1)
    product = (draw >> _U32) * m
    if (product & _LOW32) < m:
        surplus = (_TWO32 - m) % m
        while (product & _LOW32) < surplus:
            draw, s0, s1 = bits(s0, s1)
            product = (draw >> _U32) * m
    return np.int64(product >> _U32), s0, s1


@njit(cache=True, nogil=True)
def mammen(key0: np.uint64, key1: np.uint64, numbers: Ints, out: Floats) -> None:
    """Draws of mean 0, variance 1 and third moment 1: row i of out (n, B) is that of number numbers[i].

    The streams are others than those that episodes are simulated from, which may have the same seed.
    """
    root = math.sqrt(5.0)
    for i in range(out.shape[0]):
        s0, s1 = stream(key0 ^ _MULTIPLIERS, key1, numbers[i])
        for b in range(out.shape[1]):
            u, s0, s1 = uniform(s0, s1)
            out[i, b] = (1.0 - root) / 2.0 if u < (root + 1.0) / (2.0 * root) else (1.0 + root) / 2.0
