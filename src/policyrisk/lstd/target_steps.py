"""The transitions of a log as another policy sees them: features of what was done, and of what it would do.

With φ_t = φ(x_t, a_t) and φ̄_{t+1} = φ̄(x_{t+1}), 0 where the episode terminated there (written out in
:mod:`policyrisk.lstd.definition`), a chunk has a row for every transition in the matrices Φ, Φ̄ and the traces

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints, Matrix, is_sparse
from policyrisk._core.threads import in_order
from policyrisk.equations import too_many_for_dense
from policyrisk.errors import InvalidInputError
from policyrisk.features.actions import ActionRows
from policyrisk.features.target import PolicyFeatures, spread_about
from policyrisk.lstd.chunks import SPARSE_CHUNK, chunks
from policyrisk.lstd.trace_products import TRACE_CUT
from policyrisk.trajectories import Source, Trajectories, batches

FADED = 1e-12  # a trace's part that is no longer worth a look
_NUMBERS = 1 << 22  # of a chunk's features, about
_PROBE = 64  # states that tell how many features a row has

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class ActionPlan:
    """The settings of the sums: φ̄_J and φ̄_M of one target policy, λ and γ."""

    mean: PolicyFeatures
    second: PolicyFeatures
    lam: float
    discount: float

    @cached_property
    def shared(self) -> bool:
        """Whether φ_M is φ_J."""
        return self.second == self.mean

    @property
    def many(self) -> bool:
        """Whether there are too many features for dense sums, of sparse ones."""
        return too_many_for_dense(self.mean, self.second)

    def over(self, source: Source, work: Callable[[TargetSteps], Found]) -> Iterator[Found]:
        """What some work finds in the chunks of a source, in order."""
        found = (batch for batch in batches(source) if len(batch))
        first = next(found, None)
        if first is None:
            return
        data = chain([first], found)
        few = TargetSteps(self, first_steps(first))
        numbers = max(_entries(each) for each in (few.phi_J, few.bar_J, few.phi_M, few.bar_M)) + 1
        longer = 1 if self.lam == 0.0 else 8
        most = min(max(_NUMBERS // (numbers * longer), 256), SPARSE_CHUNK)
        dense = not sp.issparse(few.phi_J)
        yield from in_order(lambda part: work(TargetSteps(self, part)), chunks(data, most), uses_blas=dense)


class TargetSteps:
    """The transitions of some episodes: features of what was done, and of what the target would do next."""

    def __init__(self, plan: ActionPlan, data: Trajectories) -> None:
        self.plan, self.data = plan, data
        target = plan.mean.target
        self.x, self.a = data.states[data.visited_rows], action_numbers(data, target.actions)
        after = data.visited_rows + 1
        last = data.offsets[1:][data.terminated] - 1  # what follows is never shown to the features
        after[last] -= 1
        self.goes_on = np.ones(data.transitions, dtype=np.bool_)
        self.goes_on[last] = False
        self.after = data.states[after]
        self._candidates = target.candidates(self.after)
        pi, share = target.weights(self.after, self._candidates)
        self.pi: Floats = (
            pi * self.goes_on[:, None]
        )  # (n, m): π over what is covered, 0 where nothing follows
        self.kept: Bools = ~self.goes_on | (self.pi.sum(axis=1) > 0)
        self.left_out: Floats = np.where(self.goes_on, np.where(self.kept, 1.0 - share, 1.0), 0.0)
        self.phi_J, self.rows_J = self._features(plan.mean)
        self.bar_J = self.rows_J.combined(self.pi)
        self.phi_M, self.bar_M = self.phi_J, self.bar_J
        if not plan.shared:
            self.phi_M, rows = self._features(plan.second)
            self.bar_M = rows.combined(self.pi)

    def _features(self, phi: PolicyFeatures) -> tuple[Matrix, ActionRows]:
        return phi.map.at(self.x, self.a), phi.map.rows(self.after, self._candidates)

    @cached_property
    def episode(self) -> Any:
        """CSR (episodes, n): ones where a transition belongs to an episode and was not dropped."""
        shape = len(self.data), self.kept.size
        ones = sp.csr_array(
            (self.kept.astype(np.float64), np.arange(self.kept.size), self.data.offsets.copy()), shape
        )
        ones.eliminate_zeros()
        return ones

    @cached_property
    def factors(self) -> Floats:
        """c_t (n,), 0 at the first step of an episode."""
        c = self.plan.mean.target.chance(self.x, self.a)
        if self.data.propensities is not None:
            c = np.minimum(1.0, c / self.data.propensities)
        c = c.copy()
        c[1:][~self.kept[:-1]] = 0.0
        c[self.data.offsets[:-1]] = 0.0
        return c

    @cached_property
    def Z(self) -> Matrix:
        """z_t, of shape (n, l_J)."""
        return _traces(self.phi_J, self.plan.lam * self.plan.discount, self)

    @cached_property
    def Y(self) -> Matrix:
        """y_t, of shape (n, l_M)."""
        if self.plan.shared and (self.plan.discount == 1.0 or self.plan.lam == 0.0):
            return self.Z
        return _traces(self.phi_M, self.plan.lam * self.plan.discount**2, self)

    def errors(self, w_mean: Floats) -> tuple[Floats, Floats, Floats]:
        """δ_t (n,), Q̃ at the target's choices (n, m), and their variance under it (n,)."""
        Q = self.rows_J.values(w_mean)
        delta = self.data.rewards + self.plan.discount * (self.pi * Q).sum(axis=1) - self.phi_J @ w_mean
        return delta, Q, (spread_about(self.pi, Q) * Q).sum(axis=1)

    def squares(self, w_mean: Floats) -> Floats:
        """Σ_a' π(a') δ_t(a')², of shape (n,)."""
        delta, _, variance = self.errors(w_mean)
        squares: Floats = delta**2 + self.plan.discount**2 * variance
        return squares

    def slope(self, w_mean: Floats) -> Matrix:
        """The derivative of these squares by w_J, of shape (n, l_J)."""
        gamma = self.plan.discount
        delta, Q, _ = self.errors(w_mean)
        chosen = 2.0 * gamma * (delta[:, None] * self.pi + gamma * spread_about(self.pi, Q))
        return self.rows_J.combined(chosen) - scaled(self.phi_J, 2.0 * delta)

    def of_kept(self, matrix: Matrix) -> Matrix:
        """The matrix with rows of 0 for dropped transitions."""
        return matrix if self.kept.all() else scaled(matrix, self.kept.astype(np.float64))


def transposed(matrix: Matrix) -> Any:
    """The transpose, (l, n), of the same format: products of CSR are made with CSR."""
    return sp.csr_array(matrix.T) if is_sparse(matrix) else matrix.T


def scaled(matrix: Matrix, by: Floats) -> Matrix:
    """The matrix (n, l) with its rows multiplied by some numbers (n,)."""
    if not is_sparse(matrix):
        return np.asarray(matrix) * by[:, None]
    data = matrix.data * np.repeat(by, np.diff(matrix.indptr))
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _traces(phi: Matrix, decay: float, steps: TargetSteps) -> Matrix:
    """(I − S)⁻¹ Φ, of the shape of Φ."""
    if decay == 0.0:
        return phi
    by = decay * steps.factors
    if not sp.issparse(phi):
        out = np.empty(phi.shape)
        _dense_traces(by, np.asarray(phi), out)
        return out
    n = by.size
    at, back, traces = np.arange(n), 1, phi
    cut = TRACE_CUT if steps.plan.many else FADED
    while (at := at[by[at] > cut]).size:  # S^back has by_t in column t − back
        power = sp.csr_array((by[at], (at, at - back)), shape=(n, n))
        traces = traces + power @ traces
        later = np.zeros(n)
        later[at] = by[at] * by[at - back]
        by, back = later, 2 * back
    return sp.csr_array(traces)


@njit(cache=True)
def _dense_traces(by: Floats, phi: Floats, out: Floats) -> None:
    """out_t = by_t out_{t−1} + φ_t; by_0 is 0."""
    for t in range(phi.shape[0]):
        for i in range(phi.shape[1]):
            out[t, i] = phi[t, i]
            if by[t] != 0.0:
                out[t, i] += by[t] * out[t - 1, i]


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


def first_steps(data: Trajectories) -> Trajectories:
    """The first transitions of the first few episodes, as episodes that were cut off or ended."""
    few = data[: min(len(data), _PROBE)]
    lengths: Ints = np.minimum(few.lengths, max(_PROBE // len(few), 1))
    return few._shortened(lengths)


def _entries(matrix: Matrix) -> int:
    """How many numbers a row has."""
    if sp.issparse(matrix):
        return int(4 * matrix.nnz // max(matrix.shape[0], 1))
    return int(matrix.shape[1])
