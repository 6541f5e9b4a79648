"""The transitions of a log as another policy sees them: features of what was done, and of what it would do.

With φ_t = φ(x_t, a_t) and φ'_t = φ̄(x_{t+1}), 0 where the episode terminated there (written out in
:mod:`policyrisk.lstd.definition`), the sums are products of matrices with a row for every transition, A =
Zᵀ (Φ − γ Φ̄) and so on, of the traces

    Z = (I − S)⁻¹ Φ = … (I + S⁴)(I + S²)(I + S) Φ,        S_{t,t−1} = λγ c_t within episodes, 0 elsewhere.

Every power of S has at most one entry in a row, and is dropped where it has FADED; where the sums stay
sparse, from ``TRACE_CUT`` on (:mod:`policyrisk.lstd.trace_products`), to bound the fill. With δ_t the mean of
δ_t(a') = r_t + γQ̃(x_{t+1}, a') − Q̃_t over a' ~ π(·|x_{t+1}), the direct variance needs

    Σ_a' π(a') δ_t(a')² = δ_t² + γ² Var_π Q̃(x_{t+1}, ·)

and its derivative by w_J, 2δ_t (γφ̄_{t+1} − φ_t) + 2γ² Cov_π(Q̃, φ_J)(x_{t+1}).

A transition into a state where no action of the target is covered (see :mod:`policyrisk.features.target`) has
nothing to bootstrap from: it is *dropped*, and traces end there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints, Matrix, as_dense, is_sparse, readonly
from policyrisk.data import Trajectories
from policyrisk.equations import too_many_for_dense
from policyrisk.errors import InvalidInputError
from policyrisk.features.target import spread_about
from policyrisk.lstd import steps as state_steps
from policyrisk.lstd import trace_products
from policyrisk.lstd.rows import DenseRows, Rows, SparseRows
from policyrisk.lstd.steps import Coverage, Errors, RowBlock, Steps, View, Weight
from policyrisk.lstd.trace_products import Product

FADED = 1e-12  # a trace's part that is no longer worth a look
_NUMBERS = 1 << 22  # of a chunk's features, about
_PROBE = 64  # states that tell how many features a row has


@dataclass(frozen=True, eq=False)
class TargetView(View):
    """How a pass looks at episodes for a target policy, with φ̄ for features of states."""

    numbers: int = 1  # that a row of features has, about
    dense: bool = False  # whether φ_J is

    def at(self, batch: Trajectories) -> Self:
        """The view that suits a batch's first few transitions."""
        few = batch[: min(len(batch), _PROBE)]
        lengths: Ints = np.minimum(few.lengths, max(_PROBE // len(few), 1))
        steps = self.steps(few._shortened(lengths))
        numbers = max(_entries(each) for each in (*steps.taken, *steps.following)) + 1
        return replace(self, numbers=numbers, dense=not is_sparse(steps.taken[0]))

    def steps(self, data: Trajectories) -> TargetSteps:
        """The steps of a chunk."""
        return TargetSteps(self, data)

    @property
    def chunk_size(self) -> int:
        """How many transitions a chunk has, about."""
        longer = 1 if self.lam == 0.0 else 8
        return min(max(_NUMBERS // (self.numbers * longer), 256), state_steps.SPARSE_CHUNK)

    @property
    def many(self) -> bool:
        """Whether there are too many features for dense sums, of sparse ones."""
        return too_many_for_dense(self.features, self.second_features)

    @property
    def products(self) -> list[tuple[int, int, str]]:
        """A, C unless it is A, and D, each by itself."""
        return [(0, 0, "A"), (1, 0, "D")] if self.one_matrix else [(0, 0, "A"), (1, 1, "C"), (1, 0, "D")]

    @property
    def trace_cut(self) -> float:
        """What is left of a trace where it is cut off, 0 where it lasts."""
        return super().trace_cut if self.lam > 0 else 0.0

    def total(self, left: int, right: int, channels: int = 1) -> MatrixTotal:
        """An empty sum of products."""
        return MatrixTotal(self.sizes[left], self.sizes[right], dense=not self.sparse_sums)


class MatrixTotal:
    """The sum of products that are matrices, each sparse or dense."""

    def __init__(self, rows: int, columns: int, *, dense: bool) -> None:
        self._sum: Any = sp.csr_array((rows, columns))
        self._dense = dense

    def add(self, part: Product) -> None:
        """Add a chunk's product."""
        self._sum = self._sum + part.matrix

    def finish(self) -> list[Matrix]:
        """The sum."""
        return [as_dense(self._sum) if self._dense else self._sum]


class TargetSteps(Steps):
    """The steps of a chunk: features of what was done, and of what the target would do next."""

    view: TargetView

    def _prepare(self) -> None:
        data, target = self.data, self.view.features.target
        self._known_powers: dict[float, list[Any]] = {}
        self._known_traces: dict[tuple[int, float], Any] = {}
        self.x, self.a = data.states[data.visited_rows], action_numbers(data, target.actions)
        after = data.visited_rows + 1
        last = data.offsets[1:][data.terminated] - 1  # what follows is never shown to the features
        after[last] -= 1
        self.goes_on = np.ones(data.transitions, dtype=np.bool_)
        self.goes_on[last] = False
        self.after = data.states[after]
        candidates = target.candidates(self.after)
        pi, share = target.weights(self.after, candidates)
        # (transitions, m): π over what is covered, 0 where nothing follows
        self.pi: Floats = pi * self.goes_on[:, None]
        self.kept: Bools = ~self.goes_on | (self.pi.sum(axis=1) > 0)
        self.left_out: Floats = np.where(self.goes_on, np.where(self.kept, 1.0 - share, 1.0), 0.0)
        maps = (self.view.features,) if self.view.shared else (self.view.features, self.view.second_features)
        self.taken = [phi.map.at(self.x, self.a) for phi in maps]  # φ_t of each map, (transitions, l)
        self.choices = [phi.map.rows(self.after, candidates) for phi in maps]  # φ(x_{t+1}, a') of each a'
        self.following = [rows.combined(self.pi) for rows in self.choices]  # φ'_t

    def __iter__(self) -> Iterator[RowBlock]:
        """All rows, with 0 in those of dropped transitions."""
        yield slice(0, len(self.ends)), self._rows[0], self._rows[-1]

    @cached_property
    def _rows(self) -> list[Rows]:
        at, found = self.data.visited_rows, list[Rows]()
        for phi in map(self._of_kept, self.taken):
            if is_sparse(phi):
                count = np.zeros(len(self.ends) + 1, dtype=np.int64)
                count[at + 1] = np.diff(phi.indptr)
                size = phi.shape[1]
                found.append(SparseRows.of(self.ends, np.cumsum(count), phi.indices, phi.data, size))
            else:
                rows = np.zeros((len(self.ends), phi.shape[1]))
                rows[at] = phi
                found.append(DenseRows(self.ends, readonly(rows)))
        return found

    @property
    def transitions(self) -> int:
        """How many transitions were not dropped."""
        return int(np.count_nonzero(self.kept))

    @property
    def coverage(self) -> Coverage:
        """What bootstrapping left out: γ (1 − covered) of z_t; all of what was dropped."""
        missing = np.zeros(self.view.sizes[0])
        if self.left_out.any():
            shares = self.left_out * np.where(self.kept, self.view.discount, 1.0)
            to_go = super().to_go(shares, 0)[self.data.visited_rows]
            missing = np.asarray(self.taken[0].T @ to_go)
        dense = np.array([not is_sparse(self.taken[0]), not is_sparse(self.taken[-1])], dtype=np.float64)
        dropped = self.data.transitions - self.transitions
        return Coverage(missing, float(self.left_out.sum()), dropped, dense)

    @property
    def outside(self) -> int:
        """How many transitions start outside a map's box."""
        maps = [self.view.features.map, self.view.second_features.map]
        beyond = maps[0].outside(self.x, self.a) | maps[1].outside(self.x, self.a)
        return int(np.count_nonzero(beyond))

    def product(self, left: int, right: int, *channels: tuple[Weight, Weight]) -> Product:
        """Σ_t z_t (a_t φ_t + b_t φ'_t)ᵀ, whole; of one channel."""
        ((a, b),) = channels
        columns = scaled(self.following[self._which(right)], b)
        if np.ndim(a) or a:
            columns = scaled(self.taken[self._which(right)], a) + columns
        return Product(_transposed(self._traces(left)) @ self._of_kept(columns))

    def discounted(self, x: Floats, decay: float) -> Floats:
        """As those of a trace that decays by ``decay`` c_t."""
        for power in reversed(self._powers(decay)):
            x = x + power.T @ x
        out = np.zeros(len(self.ends))
        out[self.data.visited_rows] = x
        return out

    def to_go(self, x: Floats, which: int) -> Floats:
        """X_t at the rows (rows,) for z (0) or y (1), of transitions that were not dropped."""
        return super().to_go(x * self.kept, which)

    def values(self, w: Floats, which: int) -> tuple[Floats, Floats]:
        """φ_tᵀ w and φ'_tᵀ w of φ_J (which = 0) or φ_M (1), each of shape (transitions,)."""
        at = self._which(which)
        return np.asarray(self.taken[at] @ w), np.asarray(self.following[at] @ w)

    def errors(self, w_mean: Floats, variance_lam: float = 0.0) -> Errors:
        """δ_t and Σ_a' π(a') δ_t(a')²."""
        gamma, Q = self.view.discount, self.choices[0].values(w_mean)
        J, J_next = np.asarray(self.taken[0] @ w_mean), (self.pi * Q).sum(axis=1)
        delta = self.data.rewards + gamma * J_next - J
        squares: Floats = delta**2 + gamma**2 * (spread_about(self.pi, Q) * Q).sum(axis=1)
        return Errors(J, J_next, delta, squares, delta)

    def slope(self, w_mean: Floats, errors: Errors, variance_lam: float) -> Product:
        """The derivative of Σ_t y_t ``errors.squares`` by w_J, (l_M, l_J)."""
        gamma, delta, Q = self.view.discount, errors.delta, self.choices[0].values(w_mean)
        chosen = 2.0 * gamma * (delta[:, None] * self.pi + gamma * spread_about(self.pi, Q))
        columns = self.choices[0].combined(chosen) - scaled(self.taken[0], 2.0 * delta)
        return Product(_transposed(self._traces(1)) @ self._of_kept(columns))

    def _which(self, map_number: int) -> int:
        return 0 if self.view.shared else map_number

    def _of_kept(self, matrix: Any) -> Any:
        """The matrix with rows of 0 for dropped transitions."""
        return matrix if self.kept.all() else scaled(matrix, self.kept.astype(np.float64))

    @cached_property
    def factors(self) -> Floats:
        """c_t (transitions,), 0 at the first step of an episode and after a transition that was dropped."""
        c = self.view.features.target.chance(self.x, self.a)
        if self.data.propensities is not None:
            c = np.minimum(1.0, c / self.data.propensities)
        c = np.array(c, dtype=np.float64)
        c[1:][~self.kept[:-1]] = 0.0
        c[self.data.offsets[:-1]] = 0.0
        return c

    def _powers(self, decay: float) -> list[Any]:
        """S, S², S⁴, … with what has not faded, for traces that decay by ``decay`` c_t."""
        if decay == 0.0:
            return []
        if decay in self._known_powers:
            return self._known_powers[decay]
        by, n = decay * self.factors, self.data.transitions
        cut = trace_products.TRACE_CUT if self.view.many and is_sparse(self.taken[0]) else FADED
        at, back, powers = np.arange(n), 1, []
        while (at := at[by[at] > cut]).size:  # S^back has by_t in column t − back
            powers.append(sp.csr_array((by[at], (at, at - back)), shape=(n, n)))
            later = np.zeros(n)
            later[at] = by[at] * by[at - back]
            by, back = later, 2 * back
        self._known_powers[decay] = powers
        return powers

    def _traces(self, which: int) -> Any:
        """z_t (0) or y_t (1), (transitions, l), of the same format as φ."""
        key = self._which(which), self.view.decays[which]
        if key not in self._known_traces:
            traces: Any = self.taken[key[0]]
            if key[1] and not is_sparse(traces):
                traces = _dense_traces(key[1] * self.factors, np.asarray(traces), np.empty(traces.shape))
            else:
                for power in self._powers(key[1]):
                    traces = traces + power @ traces
            self._known_traces[key] = traces
        return self._known_traces[key]


@njit(cache=True, nogil=True)
def _dense_traces(by: Floats, phi: Floats, out: Floats) -> Floats:
    """z_t = by_t z_{t−1} + φ_t into out; by_0 is 0."""
    for t in range(phi.shape[0]):
        for i in range(phi.shape[1]):
            out[t, i] = phi[t, i]
            if by[t] != 0.0:
                out[t, i] += by[t] * out[t - 1, i]
    return out


def _transposed(matrix: Any) -> Any:
    """The transpose, (l, n), of the same format: products of CSR are made with CSR."""
    return sp.csr_array(matrix.T) if is_sparse(matrix) else matrix.T


def scaled(matrix: Any, by: Weight) -> Any:
    """The matrix (n, l) with its rows multiplied by some numbers (n,), or all of it by one."""
    if np.ndim(by) == 0:
        return matrix if by == 1.0 else by * matrix
    if not is_sparse(matrix):
        return np.asarray(matrix) * np.asarray(by)[:, None]
    data = matrix.data * np.repeat(by, np.diff(matrix.indptr))
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def action_numbers(data: Trajectories, actions: int) -> npt.NDArray[Any]:
    """The actions of some episodes: (n,) below ``actions``, or (n, k) where that is 0."""
    if data.actions is None:
        raise InvalidInputError(
            "data must hold the actions that were taken, got none; pass Trajectories(..., actions=...), or "
            "name their column to the reader"
        )
    if (data.actions.ndim == 2) == bool(actions):
        raise InvalidInputError(
            f"data must hold {'whole-numbered' if actions else 'continuous'} actions for this policy, got "
            f"{data.action_kind}; pass actions of shape {'(n,)' if actions else '(n, k)'}"
        )
    if actions and data.transitions and not (0 <= data.actions.min() and data.actions.max() < actions):
        raise InvalidInputError(
            f"data must hold actions from 0 to {actions - 1}, got {data.actions.min()} to "
            f"{data.actions.max()}; number them so, or pass actions={data.actions.max() + 1} with a policy "
            "that has a column for each"
        )
    return data.actions


def _entries(matrix: Matrix) -> int:
    """How many numbers a row has."""
    if is_sparse(matrix):
        return int(4 * matrix.nnz // max(matrix.shape[0], 1))
    return int(matrix.shape[1])
