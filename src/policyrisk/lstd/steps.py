"""The steps of some episodes: what φ is now, what comes next, and how traces decay.

Steps are what the sums of :mod:`policyrisk.lstd.definition` run over. All passes ask them for the same few
things, with φ_t and φ'_t for the features of now and of what comes next, κ_J = λγ and κ_M = λγ²:

    product     Σ_t z_t (a_t φ_t + b_t φ'_t)ᵀ       z_t = κ_t z_{t−1} + φ_t, for any weights a and b
    to_go       X_t = Σ_{s≥t} κ_{t+1} ⋯ κ_s x_s      so that Σ_t z_t x_t = Σ_t φ_t X_t needs no trace
    values      φ_tᵀ w and φ'_tᵀ w
    errors      δ_t, and its squares as the direct variance has them

Of :class:`Steps`, LSTD's, φ' is φ(x_{t+1}), 0 where the episode terminated, and traces decay by κ. LSTDQ's
are :class:`policyrisk.lstd.target_steps.TargetSteps`; nothing else differs between the two.

Chunks are worked on by all threads, and what they give is added in the order of the data, so that the result
does not depend on the number of threads. A chunk is whole episodes: about 4,000 transitions where features
are dense, up to 65,000 where they are sparse. Within a chunk an episode of length T takes T + 1 *rows*: its
visited states, and its last one, for which ``ends`` is true. The last state of a terminated episode is never
shown to the features: its row repeats the state before, and weighs nothing. Features are called from several
threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
from numba import njit

from policyrisk._core.arrays import Bools, Floats, Ints, Matrix, as_dense, readonly
from policyrisk._core.devices import in_order
from policyrisk._core.records import Additive, record
from policyrisk.data import Source, Trajectories, batches, pieces
from policyrisk.equations import too_many_for_dense
from policyrisk.features.protocol import outside
from policyrisk.lstd import trace_products
from policyrisk.lstd.rows import Evaluator, Rows
from policyrisk.lstd.trace_products import Product, SparseTotal, Total, TraceProduct, steps_of

SPARSE_CHUNK = 1 << 16  # transitions whose sparse traces and indices are in hand at once
DENSE_CHUNK = 1 << 12  # the same for dense features
DENSE_BLOCK = 1 << 11  # rows whose dense features and traces stay in a cache while they are used
_KEPT = 1 << 22  # numbers of a chunk's features up to which they are kept until all that needs them is done
_PROBE = 64  # states that decide whether features are sparse

RowBlock: TypeAlias = tuple[slice, Rows, Rows]  # where in the rows, φ_J and φ_M
Weight: TypeAlias = Floats | float  # of each transition, or of all of them


T = TypeVar("T")


class Errors(NamedTuple):
    """J̃ at each transition and its errors."""

    J: Floats  # J̃(x_t), or Q̃(x_t, a_t) of a target
    J_next: Floats  # J̃(x_{t+1}), 0 where the episode terminated
    delta: Floats  # δ_t
    squares: Floats  # δ_t (2ε_t − δ_t), or Σ_a' π(a') δ_t(a')² of a target
    epsilon: Floats  # ε_t = Σ_{s≥t} (κγ)^{s−t} δ_s


@record(missing="l_J", dense="2")
@dataclass(frozen=True, eq=False)
class Coverage(Additive):
    """What bootstrapping leaves out of a target policy since nobody logged it; it adds.

    All of it is 0 of the policy that logged.
    """

    missing: Floats  # (l_J,): Σ z_t times the share of the target that was left out, 1 of what was dropped
    left_out: float  # the sum of those shares
    dropped: int  # transitions
    dense: Floats  # (2,): chunks in which a target's φ_J and φ_M were dense

    @classmethod
    def empty(cls, size: int) -> Coverage:
        """Of no episode at all."""
        return cls(np.zeros(size), 0.0, 0, np.zeros(2))


@dataclass(frozen=True, eq=False)
class View:
    """How a pass looks at episodes: a pair of feature maps, λ and γ, and how the features are computed."""

    features: Any  # φ_J
    second_features: Any  # φ_M
    lam: float
    discount: float
    maps: tuple[Evaluator, ...] = ()  # φ_J, and φ_M where it is another one; none without data

    def at(self, batch: Trajectories) -> Self:
        """The view that suits a batch's first few states."""
        states = batch.states[batch.visited_rows[:_PROBE]]
        pair = (self.features,) if self.shared else (self.features, self.second_features)
        return replace(self, maps=tuple(Evaluator.of(each, states) for each in pair))

    def steps(self, data: Trajectories) -> Steps:
        """The steps of a chunk."""
        return Steps(self, data)

    def over(self, source: Source) -> tuple[Self, Iterator[Trajectories]]:
        """The view that suits the first states of a source, and all its batches."""
        found = (batch for batch in batches(source) if len(batch))
        first = next(found, None)
        return (self, found) if first is None else (self.at(first), chain([first], found))

    def each(self, work: Callable[[Any], T], source: Source) -> Iterator[T]:
        """``work`` of the steps of each chunk of a source, on all threads, in the order of the data."""
        view, found = self.over(source)
        yield from view.each_of(work, found)

    def each_of(self, work: Callable[[Any], T], found: Iterable[Trajectories]) -> Iterator[T]:
        """The same of batches whose first states this view suits."""
        parts = chunks(found, self.chunk_size)
        yield from in_order(lambda data: work(self.steps(data)), parts, uses_blas=self.dense)

    @cached_property
    def shared(self) -> bool:
        """Whether φ_M is φ_J."""
        return bool(self.second_features == self.features)

    @property
    def one_matrix(self) -> bool:
        """Whether C is A."""
        return self.shared and self.discount == 1.0

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of features of either map."""
        return self.features.size, self.second_features.size

    @property
    def decays(self) -> tuple[float, float]:
        """κ of the traces z and y, where nothing cuts them."""
        return self.lam * self.discount, self.lam * self.discount**2

    @property
    def dense(self) -> bool:
        """Whether either map is dense."""
        return any(each.dense for each in self.maps)

    @property
    def block_size(self) -> int:
        """How many rows to work on at a time, about: fewer where each has many entries, to bound memory."""
        if self.sparse_sums:
            return SPARSE_CHUNK // 4
        nonzeros = max((each.nonzeros for each in self.maps), default=1)
        return DENSE_BLOCK if self.dense else max(SPARSE_CHUNK // nonzeros**2, 256)

    @property
    def chunk_size(self) -> int:
        """How many transitions a chunk has, about."""
        return DENSE_CHUNK if self.dense else self.block_size

    @property
    def sparse_sums(self) -> bool:
        """Whether the sums stay sparse."""
        return not self.dense and too_many_for_dense(self.features, self.second_features)

    @property
    def trace_cut(self) -> float:
        """What is left of a trace where it is cut off, 0 where it lasts."""
        return trace_products.TRACE_CUT if self.sparse_sums else 0.0

    @property
    def products(self) -> list[tuple[int, int, str]]:
        """A, C unless it is A, and D: the rows' map, the columns' map (0 is φ_J, 1 is φ_M), and which.

        D is made along with A where C is A, and along with C where φ_M is φ_J.
        """
        if self.one_matrix:
            return [(0, 0, "AD")]
        return [(0, 0, "A"), (1, 1, "CD")] if self.shared else [(0, 0, "A"), (1, 1, "C"), (1, 0, "D")]

    def total(self, left: int, right: int, channels: int = 1) -> Any:
        """An empty sum of products."""
        shape = channels, self.sizes[left], self.sizes[right]
        if not self.sparse_sums:
            return Total(*shape)
        decay = self.decays[left]
        return SparseTotal(*shape, decay, steps_of(decay, self.trace_cut))


class Steps:
    """The steps of a chunk. Its features are computed once where they are few, else again each time."""

    def __init__(self, view: View, data: Trajectories) -> None:
        self.view, self.data = view, data
        ends = np.zeros(len(data.states), dtype=np.bool_)
        ends[data.final_rows] = True
        self.ends = readonly(ends)
        self._cached: list[RowBlock] | None = None
        self._prepare()

    def _prepare(self) -> None:
        """The states to be shown to the features, (rows, dim)."""
        data, self.states = self.data, self.data.states
        terminal = data.final_rows[data.terminated]
        if terminal.size:
            self.states = self.states.copy()
            self.states[terminal] = self.states[terminal - 1]

    @property
    def blocks(self) -> list[slice]:
        """The rows in blocks of about the same size, the last one first."""
        rows = len(self.ends)
        cuts = np.linspace(0, rows, max(round(rows / self.view.block_size), 1) + 1).astype(int).tolist()
        return [slice(begin, end) for begin, end in pairwise(cuts)][::-1]

    def __iter__(self) -> Iterator[RowBlock]:
        """The blocks with their features."""
        if self._cached is not None:
            yield from self._cached
            return
        blocks, made = self.blocks, []
        for at in blocks:
            phi = [each(self.states[at], self.ends[at]) for each in self.view.maps]
            block = at, phi[0], phi[-1]
            if len(blocks) == 1 or len(self.ends) * sum(self.view.sizes) <= _KEPT:
                made.append(block)
            yield block
        if len(made) == len(blocks):
            self._cached = made

    @property
    def transitions(self) -> int:
        """How many transitions count."""
        return self.data.transitions

    @property
    def coverage(self) -> Coverage:
        """What a target is not given."""
        return Coverage.empty(self.view.sizes[0])

    @property
    def outside(self) -> int:
        """How many transitions start outside a map's box."""
        beyond = outside([each.features for each in self.view.maps], self.states)
        return int(np.count_nonzero(beyond)) - int(np.count_nonzero(beyond[self.ends]))

    # --- what comes next, and how traces decay ----------------------------------------------------------

    def product(self, left: int, right: int, *channels: tuple[Weight, Weight]) -> Product:
        """Σ_t z_t (a_t φ_t + b_t φ'_t)ᵀ for each channel (a, b): z or y (left), φ_J or φ_M (right).

        φ'_t is the φ of the row after, so that row s counts in the columns with a_s z_s + b_{s−1} z_{s−1}
        = (b_{s−1} + κ a_s) z_{s−1} + a_s φ_s. The rows are to be put in block by block.
        """
        data, kappa, now = self.data, self.view.decays[left], ~self.ends
        g, h = np.zeros((2, len(self.ends), len(channels)))
        for c, (a, b) in enumerate(channels):
            g[data.visited_rows + 1 if np.ndim(b) else slice(None), c] = b
            g[data.final_rows[data.terminated], c] = 0.0
            if np.ndim(a):
                h[data.visited_rows, c] = a
            else:
                h[:, c] = a * now
            g[:, c] += kappa * h[:, c]
        return TraceProduct(g, h, kappa, self.view.sizes[right], steps_of(kappa, self.view.trace_cut))

    def to_go(self, x: Floats, which: int) -> Floats:
        """X_t at the rows (rows,) for z (0) or y (1), as far as the traces last, 0 where episodes end."""
        return self.discounted(x, self.view.decays[which])

    def discounted(self, x: Floats, decay: float) -> Floats:
        """Σ_{s≥t} κ^{s−t} x_s at the rows (rows,), as far as traces last, 0 where episodes end."""
        out = np.empty(len(self.ends))
        _to_go(x, self.data.lengths, decay, steps_of(decay, self.view.trace_cut), out)
        return out

    def values(self, w: Floats, which: int) -> tuple[Floats, Floats]:
        """φ_tᵀ w and φ'_tᵀ w of φ_J (which = 0) or φ_M (1), each of shape (transitions,)."""
        out, data = np.empty(len(self.ends)), self.data
        for at, *phi in self:
            out[at] = phi[which].matrix @ w
        after = out[data.visited_rows + 1]
        after[data.offsets[1:][data.terminated] - 1] = 0.0
        return out[data.visited_rows], after

    def errors(self, w_mean: Floats, variance_lam: float = 0.0) -> Errors:
        """δ_t = r_t + γJ̃(x_{t+1}) − J̃(x_t), and its squares for the direct variance."""
        J, J_next = self.values(w_mean, 0)
        delta = self.data.rewards + self.view.discount * J_next - J
        epsilon = delta
        if variance_lam:
            decay = variance_lam * self.view.discount
            epsilon = self.discounted(delta, decay)[self.data.visited_rows]
        return Errors(J, J_next, delta, delta * (2.0 * epsilon - delta), epsilon)

    def slope(self, w_mean: Floats, errors: Errors, variance_lam: float) -> Product:
        """The derivative of Σ_t y_t ``errors.squares`` by w_J, (l_M, l_J), whole."""
        delta, gamma, kappa = errors.delta, self.view.discount, variance_lam * self.view.discount
        if kappa:
            return Product(self._slope_to_go(errors, gamma, kappa))
        product = self.product(1, 0, (-2.0 * delta, 2.0 * gamma * delta))
        for at, phi_J, phi_M in self:
            product.block(at, phi_M, phi_J)
        product.finish()
        return product

    def _slope_to_go(self, errors: Errors, gamma: float, kappa: float) -> Floats:
        """Σ y_t (2(ε_t − δ_t) η_t + 2δ_t Σ_{s≥t} (κγ)^{s−t} η_s)ᵀ with η_t = γφ_{t+1} − φ_t, (l_M, l_J).

        The traces of η fill up with all that is visited later: they are dense whatever the features are.
        """
        data, by = self.data, np.zeros((2, len(self.ends)))
        by[:, data.visited_rows] = 2.0 * (errors.epsilon - errors.delta), 2.0 * errors.delta
        by[0, data.final_rows[~data.terminated]] = 1.0  # where φ_{t+1} counts
        total: Any = 0
        carry = np.zeros((3, self.view.sizes[0]))
        for at, phi_J, phi_M in self:
            phi = as_dense(phi_J.matrix)
            out = np.empty((int(np.count_nonzero(~phi_J.ends)), phi.shape[1]))
            _error_traces(phi_J.ends, phi, by[:, at], gamma, kappa, self.view.decays[1], carry, out)
            total = total + np.asarray(phi_M.visited.T @ out)
        return np.asarray(total)

    # --- sums over the features of now --------------------------------------------------------------------

    def by_feature(self, weight: Floats, which: int) -> Floats:
        """Σ_t weight_t φ_t, of shape (l,); weights (rows,) are 0 where episodes end."""
        total: Floats = np.sum([phi[which].matrix.T @ weight[at] for at, *phi in self], axis=0)
        return total

    def by_episode(self, weight: Floats, which: int) -> Matrix:
        """Σ_t weight_t φ_t of every episode, of shape (episodes, l)."""
        data = self.data
        total: Any = 0
        episode = np.repeat(np.arange(len(data)), data.lengths + 1)
        for at, *phi in self:
            some = np.flatnonzero(~self.ends[at])
            shape = len(data), at.stop - at.start
            weights = sp.csr_array((weight[at][some], (episode[at][some], some)), shape=shape)
            total = total + weights @ phi[which].matrix
        sums: Matrix = total
        return sums


def chunks(source: Iterable[Trajectories], most: int) -> Iterator[Trajectories]:
    """The batches' episodes in order, about ``most`` transitions at a time.

    Small batches of a stream are put together, large ones are cut between episodes.
    """
    waiting: list[Trajectories] = []
    count = 0
    for batch in chain(source, [None]):
        if batch is not None:
            waiting.append(batch)
            count += batch.transitions
        if waiting and (batch is None or count >= most):
            yield from pieces(waiting[0] if len(waiting) == 1 else Trajectories.concatenate(waiting), most)
            waiting, count = [], 0


# --- backwards in time, compiled: pure functions of arrays --------------------------------------------


@njit(cache=True, nogil=True)
def _to_go(x: Floats, lengths: Ints, decay: float, steps: int, out: Floats) -> None:
    """out_i = Σ_{t ≤ s < t + K} κ^{s−t} x_s at the visited rows, 0 at the last rows; x (transitions,)."""
    leave = decay**steps
    end = 0
    for k in range(lengths.size):
        start, end = end, end + lengths[k]
        total = 0.0
        out[end + k] = 0.0
        for t in range(end - 1, start - 1, -1):
            total = x[t] + decay * total
            if t + steps < end:
                total -= leave * x[t + steps]
            out[t + k] = total


@njit(cache=True, nogil=True)
def _error_traces(
    ends: Bools, phi: Floats, by: Floats, gamma: float, kappa: float, decay: float, carry: Floats, out: Floats
) -> None:
    """out_t = by_0t η_t + by_1t u_t + decay out_{t+1} with η_t = γφ_{t+1} − φ_t and u_t = η_t + κ u_{t+1}.

    ``by`` (2, rows) tells at a last row whether its φ counts; ``out`` has the visited rows alone. ``carry``
    (3, l) holds φ, u and out of the row after these, and then of the first of these.
    """
    last = len(out)
    for i in range(ends.size - 1, -1, -1):
        if ends[i]:
            for j in range(phi.shape[1]):
                carry[0, j], carry[1, j], carry[2, j] = by[0, i] * phi[i, j], 0.0, 0.0
            continue
        last -= 1
        for j in range(phi.shape[1]):
            eta = gamma * carry[0, j] - phi[i, j]
            u = eta + kappa * carry[1, j]
            w = by[0, i] * eta + by[1, i] * u + decay * carry[2, j]
            carry[0, j], carry[1, j], carry[2, j] = phi[i, j], u, w
            out[last, j] = w
