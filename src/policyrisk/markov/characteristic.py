"""The distribution of the return by its characteristic function, for any rewards and discounts.

ψ_θ(x) = E[e^{iθB} | x] solves, with ρ the reward and y the successor of a step,

    ψ_θ(x) = E[e^{iθρ} ψ_{γθ}(y) | x],      ψ_θ(end) = 1

For γ = 1 that is one linear system for each θ. For γ < 1 it leads from ψ_{γ^T θ}, which a few moments tell to
all digits for large T, in T products to ψ_θ. The same with s > 0 for iθ, E[e^{sB}], bounds the tails: by
Chernoff P(B ≥ b) ≤ e^{−sb} E[e^{sB}]. So an interval [a, a + R) is found that B leaves with a probability
below ``TAIL``.

On a lattice with N points in that interval, N frequencies 2πk/R and one FFT give each point's probability.
Elsewhere frequencies up to 2πK/R give a bracket. With u = (B − a)/R and ψ(u) = u − ⌊u⌋ − ½,

    F(a + Rβ) = P(u ≤ β) = β + ½ − E[u] + E[ψ(u − β)]

and Vaaler's trigonometric polynomial of degree K lies next to ψ, no further off than Fejér's kernel:

    |ψ(u) − Σ_{k=1}^{K} f(k/(K+1))/(K+1) sin 2πku| ≤ 1/(2(K+1)) Σ_{|k|≤K} (1 − |k|/(K+1)) e^{2πiku}

with f(v) = −(1 − v) cot πv − 1/π. Both sides' expectations are sums of ψ_θ; the area between the two bounds
of F is R/(K+1), whatever the distribution. (Rewards rounded down and up to a lattice would enclose F as
well, but lie as many roundings apart as an episode has steps.)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from policyrisk._core.arrays import Floats
from policyrisk.errors import SolverError
from policyrisk.markov import _branch_kernels as kernels
from policyrisk.markov.reward_lattice import TAIL, RewardLattice, StepFunction

if TYPE_CHECKING:
    from policyrisk.markov.chain import MarkovChain

_FREQUENCIES, _OF_FEW_STATES = 2**17, 2**20  # at most; the latter divided by the states of a small chain
_ROOM = 2**26  # entries of what is held at once
_DENSE = 60  # states up to which the systems of many frequencies are solved together, dense
_WIDENED = 1e-11  # by this the bounds of F are moved apart, for tails and roundings
_EXPANSION = 1e-13  # how far the moments may miss E[e^{sB}]
_STEPS = 100_000  # of an episode, at most, that are followed one by one
_SEARCHED = 8  # exponents s, 2s, … tried at once for the tails

Complexes: TypeAlias = npt.NDArray[np.complex128]


class Transform:
    """E[e^{sB}] of a chain's return for complex s, from the starts ζ0 in the rows of Z (starts, n)."""

    def __init__(self, chain: MarkovChain, Z: sp.csr_array) -> None:
        self._chain, branches = chain, chain.branches
        self._gamma = chain.one_discount("the distribution of the return")
        n, row = chain.n, branches.row
        self._Z = Z
        self.most = min(
            _ROOM // Z.shape[0], max(_FREQUENCIES, _OF_FEW_STATES // n)
        )  # how many s can be asked for together
        self.means = np.asarray(Z @ chain._mean)  # (starts,)
        self._probability = branches.probability / branches.expect(np.ones(row.size))[row]
        # The branches of each pair (x, y) are one entry of the systems; the end is column n.
        cells, self._cell = np.unique(row * (n + 1) + branches.successor, return_inverse=True)
        self._rows, self._columns = cells // (n + 1), cells % (n + 1)

    def multiples(self, s: complex, count: int) -> Complexes:
        """E[e^{ksB}] for k = 0, …, count − 1, of shape (count, starts)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.concatenate([(self._Z @ part.T).T for part in self._everywhere(s, count)])

    def _everywhere(self, s: complex, count: int) -> Iterator[Complexes]:
        """The same from every state: blocks (m, n)."""
        by_steps = self._gamma < 1.0 or (s.real == 0.0 and self._horizon > 0)
        return self._products(s, count) if by_steps else self._systems(s, count)

    @cached_property
    def _dense(self) -> bool:
        """Whether the systems are solved as dense ones."""
        n = self._chain.n
        return n <= _DENSE or self._rows.size > 0.2 * n * n

    @cached_property
    def _horizon(self) -> int:
        """Steps after which all episodes with γ = 1 have ended, but for a probability of ``TAIL``.

        0 where a factorisation is less work than so many products with P.
        """
        P, n = self._chain.P, self._chain.n
        if self._dense:
            return 0
        lu = splu(sp.csc_array(sp.eye_array(n) - P))
        work = np.diff(lu.L.indptr) @ np.bincount(lu.U.indices, minlength=n)
        alive: Floats = np.ones(n)
        for step in range(1, min(int(work) // self._rows.size, _STEPS)):
            alive = np.asarray(P @ alive).ravel()
            if alive.max() <= TAIL:
                return step
        return 0

    def _systems(self, s: complex, count: int) -> Iterator[Complexes]:
        """(I − P∘e^{sρ}) ψ = P_end∘e^{sρ}, a system for each s: blocks (m, n)."""
        n, reward = self._chain.n, self._chain.branches.reward
        going = self._columns < n
        rows, columns, ends = self._rows[going], self._columns[going], self._rows[~going]
        places = np.append(np.arange(n), rows), np.append(np.arange(n), columns)
        step = min(max(_ROOM // 64 // (n * n), 1), 1024) if self._dense else 1
        for first in range(0, count, step):
            k = np.arange(first, min(first + step, count))
            K = np.zeros((k.size, self._rows.size), dtype=np.complex128)
            with np.errstate(over="ignore", invalid="ignore"):
                np.add.at(K.T, self._cell, self._probability[:, None] * np.exp(np.outer(reward, k * s)))
            b = np.zeros((k.size, n), dtype=np.complex128)
            b[:, ends] = K[:, ~going]
            try:
                if not np.isfinite(K).all():
                    yield np.full((k.size, n), np.nan + 0j)
                elif self._dense:
                    A = np.tile(np.eye(n, dtype=np.complex128), (k.size, 1, 1))
                    A[:, rows, columns] -= K[:, going]
                    yield np.linalg.solve(A, b[:, :, None])[:, :, 0].astype(np.complex128, copy=False)
                else:
                    entries = np.append(np.ones(n), -K[0, going]), places
                    yield splu(sp.csc_array(entries, shape=(n, n))).solve(b[0])[None]
            except (np.linalg.LinAlgError, RuntimeError):  # singular, as a real s may make it
                yield np.full((k.size, n), np.nan + 0j)

    def _products(self, s: complex, count: int) -> Iterator[Complexes]:
        """From γ^T s, where E[e^{sB}] is e^{sJ} Σ_j s^j μ_j/j!, in T steps to s: blocks (m, n).

        With γ = 1 from 1, whatever s is, which T steps later matters to those alone that have not ended.
        """
        chain, branches = self._chain, self._chain.branches
        mu, J, gamma = chain._moments(4), chain._mean, self._gamma
        small = (24.0 * _EXPANSION / max(float(mu[4].max()), np.finfo(float).tiny)) ** 0.25
        rewards, which = np.unique(branches.reward, return_inverse=True)
        step = max(_ROOM // 8 // max(chain.n, rewards.size), 1)
        for first in range(0, count, step):
            k = np.arange(first, min(first + step, count))
            if gamma < 1.0:
                T = int(np.ceil(np.log(max(abs(s) * float(k[-1]) / small, 1.0)) / -np.log(gamma)))
                t = gamma**T * s * k
            else:
                T, t = self._horizon, np.zeros(k.size, dtype=np.complex128)
            series = sum(mu[j][:, None] * t**j / factor for j, factor in enumerate((1, 1, 2, 6)))
            psi = np.ascontiguousarray(series * np.exp(np.outer(J, t)))
            given = branches.indptr, branches.successor, self._probability, rewards, which
            kernels.transform_products(*given, gamma, s, first, T, psi)
            yield psi.T

    @property
    def support(self) -> tuple[float, float]:
        """What the return cannot fall below or exceed, as its smallest and its largest reward tell."""
        reward, gamma = self._chain.branches.reward, self._gamma
        at_most = 1.0 / (1.0 - gamma) if gamma < 1.0 else np.inf
        low, high = float(reward.min()), float(reward.max())
        return low if low >= 0.0 else low * at_most, high if high <= 0.0 else high * at_most

    def window(self, std: float) -> tuple[float, float]:
        """a and a + R: the return from every start lies between, but for a probability of ``TAIL``."""
        return -self._tail(-1.0, std), self._tail(1.0, std)

    def _tail(self, sign: float, std: float) -> float:
        """The smallest b found with P(±B ≥ b) ≤ e^{−sb} E[e^{±sB}] ≤ TAIL / 2 from every start.

        Where E[e^{sB}] is infinite, the system's solution is not positive at every state, though it may be
        at the starts.
        """
        s = 2.0 / std
        for _ in range(40):
            psi = np.concatenate(list(self._everywhere(complex(sign * s), _SEARCHED)))[1:].real
            finite = (np.isfinite(psi) & (psi > 0)).all(axis=1)
            known = int(np.argmin(finite)) if not finite.all() else finite.size
            if known >= _SEARCHED // 2:  # else the largest that is finite is not known well
                exponents = s * np.arange(1, known + 1)[:, None]
                reach = (np.log((self._Z @ psi[:known].T).T) + np.log(2.0 / TAIL)) / exponents
                return float(reach.max(axis=1).min())
            s /= 4.0
        raise SolverError(
            "the tails of the return's distribution are too long to bound; check that every state reaches "
            "the end within a number of steps that can be counted, or use a discount below 1"
        )


def on_lattice(transform: Transform, lattice: RewardLattice, low: float, high: float) -> list[StepFunction]:
    """The distribution from each start, exact on the lattice's points from low to high."""
    first, last = int(np.floor(low / lattice.h)), int(np.ceil(high / lattice.h))
    N = last - first + 1
    k = np.arange(N // 2 + 1)
    psi = transform.multiples(2j * np.pi / (N * lattice.h), k.size)
    turned = psi * np.exp(-2j * np.pi * k * (first / N))[:, None]
    mass = np.maximum(np.fft.irfft(turned.conj(), N, axis=0), 0.0)
    cumulative = np.minimum(np.cumsum(mass, axis=0), 1.0)
    cumulative[-1] = 1.0
    return [StepFunction(lattice.values(np.arange(first, last + 1)), column) for column in cumulative.T]


def brackets(
    transform: Transform, low: float, high: float, tolerance: float
) -> list[tuple[StepFunction, StepFunction]]:
    """From each start two distributions around the return's, of means within the tolerance if possible."""
    R = high - low
    K = min(int(np.ceil(2.0 * R / tolerance)), transform.most - 1)
    psi = transform.multiples(2j * np.pi / R, K + 1)[1:]
    return [
        _bracket(psi[:, i], float(mean), low, R, transform.support) for i, mean in enumerate(transform.means)
    ]


def _bracket(
    psi: Complexes, mean: float, a: float, R: float, support: tuple[float, float]
) -> tuple[StepFunction, StepFunction]:
    """The two distributions from E[e^{2πikB/R}] for k = 1, …, K; the module's docstring has the formulas."""
    K = psi.size
    k = np.arange(1, K + 1)
    v = k / (K + 1)
    e = psi * np.exp(-2j * np.pi * k * (a / R))
    M = 1 << int(np.ceil(np.log2(8 * (K + 1))))
    f = -(1.0 - v) / np.tan(np.pi * v) - 1.0 / np.pi
    sines = np.fft.fft(np.append(0.0, f / (K + 1) * e), M).imag
    fejer = (1.0 + 2.0 * np.fft.fft(np.append(0.0, (1.0 - v) * e), M).real) / (2.0 * (K + 1))
    beta = np.arange(M) / M
    F = beta + 0.5 - (mean - a) / R + sines
    above = np.clip(np.minimum.accumulate((F + fejer + _WIDENED)[::-1])[::-1], 0.0, 1.0)
    below = np.clip(np.maximum.accumulate(F - fejer - _WIDENED), 0.0, 1.0)
    values = np.clip(a + R * np.append(beta, 1.0), *support)
    # Between two points of the grid F is at most what it is at the right one, at least what at the left one.
    return _steps(values, np.append(above[1:], [1.0, 1.0])), _steps(values, np.append(below, 1.0))


def _steps(values: Floats, cumulative: Floats) -> StepFunction:
    rises = np.diff(cumulative, prepend=0.0) > 0.0
    return StepFunction(values[rises], cumulative[rises])
