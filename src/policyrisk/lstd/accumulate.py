"""From trajectories to the sampled moment equations, in one pass.

    A = Σ z_t (φ_J(x_t) − γ φ_J(x_{t+1}))ᵀ         b = Σ z_t r_t          z_t = λγ z_{t−1} + φ_J(x_t)
    C = Σ y_t (φ_M(x_t) − γ² φ_M(x_{t+1}))ᵀ        e = Σ y_t r_t²         y_t = λγ² y_{t−1} + φ_M(x_t)
    D = Σ y_t 2γ r_t φ_J(x_{t+1})ᵀ

with φ(x_{t+1}) = 0 only where the episode terminated (sec. 4.1 and 4.3 of the paper). They are computed
backwards in time. Summation by parts turns A into one product instead of two,

    A = Σ_t φ_t (φ_t − γ(1−λ) Σ_{s>t} (λγ)^{s−1−t} φ_s)ᵀ,

where γ(1−λ) becomes γ for the last state of an episode that was cut off, and C likewise with γ²; D has the
same form with weights 2γ r_{s−1}; and b = Σ_t φ_t Σ_{s≥t} (λγ)^{s−t} r_s needs no trace at all. See
:mod:`policyrisk.lstd.lagged_products` for the product that A, C and D share.

Of more than DENSE_MOST sparse features the sums stay sparse, and traces are cut off: see
:mod:`policyrisk.lstd.sparse_total`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, as_number
from policyrisk.equations import MomentEquations, too_many_for_dense
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.lstd import _kernels, _sparse_kernels, sparse_total
from policyrisk.lstd.chunks import DENSE_BLOCK, DENSE_CHUNK, SPARSE_CHUNK, Chunk, chunks, in_order
from policyrisk.lstd.lagged_products import Lagged, Total
from policyrisk.lstd.rows import DenseRows, Evaluator, Memory, Rows, SparseRows
from policyrisk.lstd.sparse_total import SparseTotal, steps_of
from policyrisk.trajectories import Source, Trajectories, batches

_PROBE = 64  # states that decide whether features are sparse
_PAGES = 1 << 16  # entries of a matrix from which on its fresh memory is worth several threads


def accumulate(
    source: Source,
    features: Features,
    second_features: Features | None = None,
    *,
    lam: float,
    discount: float,
) -> MomentEquations:
    """The moment equations of a source's episodes: the sums of the module's docstring.

    One pass, in memory that does not depend on the source's length. φ_M is φ_J where
    ``second_features`` is None. The same data give the same bits, on one thread and on many.

    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [1], [2]], [1.0, 3.0], [2], [True])
    >>> equations = accumulate(data, Tabular(2), lam=0.0, discount=1.0)
    >>> equations.A
    array([[ 1., -1.],
           [ 0.,  1.]])
    >>> equations.b, equations.e
    (array([1., 3.]), array([1., 9.]))
    >>> equations.solve().mean
    array([4., 3.])
    """
    second = features if second_features is None else second_features
    lam = as_number(lam, "lam", 0.0, 1.0)
    discount = as_number(discount, "discount", 0.0, 1.0, open_low=True)
    plan, parts = Plan.of(source, features, second, lam, discount)
    if plan is None:
        return MomentEquations.empty(features, second, lam=lam, discount=discount)
    sums = _Sums(plan)
    for part in in_order(plan.sums, parts, uses_blas=plan.dense):
        sums.add(part)
    return sums.equations()


@dataclass(frozen=True, eq=False)
class Plan:
    """How the products are computed for a pair of feature maps."""

    mean: Evaluator
    second: Evaluator
    shared: bool  # φ_M is φ_J
    lam: float
    discount: float
    memory: Memory

    @classmethod
    def of(
        cls, source: Source, features: Features, second: Features, lam: float, discount: float
    ) -> tuple[Plan | None, Iterator[Trajectories]]:
        """The plan that suits the source's first few states (None without data), and the source in chunks."""
        batches_left = (batch for batch in batches(source) if len(batch))
        first = next(batches_left, None)
        if first is None:
            return None, batches_left
        states = first.states[first.visited_rows[:_PROBE]]
        shared = second == features
        memory = Memory()
        mean = Evaluator.of(features, states, memory)
        other = mean if shared else Evaluator.of(second, states, memory)
        plan = cls(mean, other, shared, lam, discount, memory)
        return plan, chunks(chain([first], batches_left), DENSE_CHUNK if plan.dense else plan.block_size)

    def blocks(self, chunk: Chunk) -> Iterator[tuple[slice, Rows, Rows]]:
        """A chunk's blocks, the last one first: where they are, φ_J and φ_M."""
        for at in chunk.blocks(self.block_size):
            phi_J = self.mean(chunk.states[at], chunk.ends[at])
            yield at, phi_J, phi_J if self.shared else self.second(chunk.states[at], chunk.ends[at])

    @property
    def dense(self) -> bool:
        """Whether either map is dense."""
        return self.mean.dense or self.second.dense

    @property
    def block_size(self) -> int:
        """How many rows to work on at a time, about: fewer where each has many entries, to bound memory."""
        nonzeros = max(self.mean.nonzeros, self.second.nonzeros)
        if self.sparse_sums:
            return SPARSE_CHUNK // 4
        return DENSE_BLOCK if self.dense else max(SPARSE_CHUNK // nonzeros**2, 256)

    @property
    def sparse_sums(self) -> bool:
        """Whether the sums stay sparse."""
        return not self.dense and too_many_for_dense(self.mean.features, self.second.features)

    @property
    def trace_cut(self) -> float:
        """What is left of a trace where it is cut off, 0 where it lasts."""
        return sparse_total.TRACE_CUT if self.sparse_sums else 0.0

    def to_go(self, x: Floats, chunk: Chunk, decay: float) -> Floats:
        """Σ_{s≥t} κ^{s−t} x_s at the rows (rows,), as far as the traces last, 0 where episodes end."""
        out, lengths = np.empty(len(chunk.ends)), chunk.data.lengths
        if self.sparse_sums:
            _sparse_kernels.to_go_within(x, lengths, decay, steps_of(decay, self.trace_cut), out)
        else:
            _kernels.to_go(x, lengths, decay, out)
        return out

    def total(self, channels: int, rows: int, columns: int, decay: float) -> Total | SparseTotal:
        """An empty sum of products of the given decay."""
        if self.sparse_sums:
            return SparseTotal(channels, rows, columns, steps_of(decay, self.trace_cut))
        return Total(channels, rows, columns)

    @property
    def one_matrix(self) -> bool:
        """Whether C is A."""
        return self.shared and self.discount == 1.0

    def sums(self, data: Trajectories) -> _Part:
        """Everything that a chunk adds to the equations."""
        chunk = Chunk.of(data)
        l_J, l_M = self.mean.features.size, self.second.features.size
        kappa_J, kappa_M = self.lam * self.discount, self.lam * self.discount**2
        outside = chunk.outside(self.mean.features, self.second.features)
        products = self._products(chunk, kappa_J, kappa_M)
        # weights of the rows in b and in e
        b_and_e = np.stack(
            [self.to_go(data.rewards, chunk, kappa_J), self.to_go(data.rewards**2, chunk, kappa_M)]
        )
        own = b_and_e if self.shared else b_and_e[:1]
        counts = _Counts(l_J, len(own), self.sparse_sums)
        second = counts if self.shared else _Counts(l_M, 1, self.sparse_sums)
        part = _Part(data, counts, second, outside, *products)
        for at, phi_J, phi_M in self.blocks(chunk):
            part.counts.block(phi_J, own[:, at])
            part.A.block(at, phi_J, phi_J)
            if not self.shared:
                part.second_counts.block(phi_M, b_and_e[1:, at])
            if part.C is not None:
                part.C.block(at, phi_M, phi_M)
            if part.D is not None:
                part.D.block(at, phi_M, phi_J)
            for phi in (phi_J, phi_M):
                if isinstance(phi, DenseRows):
                    phi.release()
        part.counts.finish()
        if not self.shared:
            part.second_counts.finish()
        if not self.sparse_sums:
            for product in (part.A, part.C, part.D):
                if product is not None:
                    product.finish()
        return part

    def _products(
        self, chunk: Chunk, kappa_J: float, kappa_M: float
    ) -> tuple[Lagged, Lagged | None, Lagged | None]:
        """A, C and D. D is the second channel of A where C is A, and of C where φ_M is φ_J."""
        data, rows = chunk.data, len(chunk.ends)
        l_J, l_M = self.mean.features.size, self.second.features.size
        lengths, terminated, gamma = data.lengths, data.terminated, self.discount

        def bootstrap(discount: float, kappa: float, size: int, channels: int) -> Lagged:
            g, h = np.zeros((rows, channels)), np.zeros((rows, channels))
            _kernels.bootstrap_weights(lengths, terminated, self.lam, discount, g[:, 0], h[:, 0])
            return Lagged(g, h, kappa, size, self.memory)

        def rewards(g: Floats) -> None:
            _kernels.arrival_weights(data.rewards, lengths, terminated, 2.0 * gamma, g)

        A = bootstrap(gamma, kappa_J, l_J, 2 if self.one_matrix else 1)
        if self.one_matrix:
            rewards(A.g[:, 1])
            return A, None, None
        C = bootstrap(gamma**2, kappa_M, l_M, 2 if self.shared else 1)
        if self.shared:
            rewards(C.g[:, 1])
            return A, C, None
        D = Lagged(np.zeros((rows, 1)), np.zeros((rows, 1)), kappa_M, l_J, self.memory)
        rewards(D.g[:, 0])
        return A, C, D


class _Counts:
    """What one map's features met in a chunk, and what its Gram matrix is made of."""

    def __init__(self, size: int, sums: int, diagonal: bool) -> None:
        self._diagonal_alone = diagonal  # all that is wanted of the Gram matrix
        self.visits, self.episodes = np.zeros(size), np.zeros(size)
        self.sums = np.zeros((sums, size))  # Σ_i weight_i φ_i
        self._sparse: list[SparseRows] = []  # their Gram matrix is summed where it ends up
        self.diagonal = np.zeros(size)  # of the Gram matrix of rows with one entry each, or of all
        self._dense: Floats | None = None  # the Gram matrix of dense rows, (l, l)
        self._last, self._mark = np.full(size, -1), 0
        self._seen = np.zeros(size)

    def block(self, phi: Rows, weights: Floats) -> None:
        """Put in a block and its weights (sums, rows), 0 where episodes end; the last one comes first."""
        if isinstance(phi, SparseRows):
            diagonal = self._diagonal_alone or phi.one_hot
            squares = self.diagonal if diagonal else np.zeros(phi.size)
            self._mark = _kernels.tally_sparse(
                phi.ends,
                phi.ptr,
                phi.idx,
                phi.val,
                self._mark,
                self._last,
                self.visits,
                self.episodes,
                squares,
                weights,
                self.sums,
            )
            if not diagonal:
                self._sparse.append(phi)
        else:
            gram = phi.visited.T @ phi.visited
            self._dense = gram if self._dense is None else np.add(self._dense, gram, out=self._dense)
            self.sums += weights @ phi.phi
            _kernels.tally_dense(phi.ends, phi.phi, self._seen, self.visits, self.episodes)

    def finish(self) -> None:
        """Count the episode that was under way: after the first block in time."""
        self.episodes += self._seen
        self._seen[:] = 0.0

    def add_gram(self, out: Floats) -> None:
        """Add Σ φ φᵀ to out (l, l), but for ``diagonal``, whose place in memory is far and wide."""
        for phi in self._sparse:
            _kernels.gram_sparse(phi.ends, phi.ptr, phi.idx, phi.val, out)
        if self._dense is not None:
            out += self._dense


@dataclass(eq=False)
class _Part:
    """What a chunk adds."""

    data: Trajectories
    counts: _Counts
    second_counts: _Counts
    outside: int
    A: Lagged
    C: Lagged | None
    D: Lagged | None


class _Sums:
    """The equations under way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        l_J, l_M = plan.mean.features.size, plan.second.features.size
        kappa_J, kappa_M = plan.lam * plan.discount, plan.lam * plan.discount**2
        # D is the second channel of A or of C where it can be, see Plan._products.
        self.A = plan.total(2 if plan.one_matrix else 1, l_J, l_J, kappa_J)
        self.C = None if plan.one_matrix else plan.total(2 if plan.shared else 1, l_M, l_M, kappa_M)
        self.D = None if plan.shared else plan.total(1, l_M, l_J, kappa_M)
        self.b, self.e = np.zeros(l_J), np.zeros(l_M)
        self.visits, self.episodes = np.zeros(l_J), np.zeros(l_J)
        self.second_visits, self.second_episodes = self.visits, self.episodes
        # of the Gram matrices: what is not in a diagonal that they get at the end
        self.mean_gram = np.zeros((0, 0) if plan.sparse_sums else (l_J, l_J))
        self.gram, self.diagonal = self.mean_gram, np.zeros(l_J)
        self.second_diagonal = self.diagonal
        if not plan.shared:
            self.second_visits, self.second_episodes = np.zeros(l_M), np.zeros(l_M)
            self.gram = np.zeros((0, 0) if plan.sparse_sums else (l_M, l_M))
            self.second_diagonal = np.zeros(l_M)
        self.count = self.terminated = self.transitions = self.outside = 0

    def add(self, part: _Part) -> None:
        """Add a chunk; chunks come in the order of the data."""
        self.count += len(part.data)
        self.terminated += int(part.data.terminated.sum())
        self.transitions += part.data.transitions
        self.outside += part.outside
        self.b += part.counts.sums[0]
        self.e += part.counts.sums[1] if self.plan.shared else part.second_counts.sums[0]
        self.visits += part.counts.visits
        self.episodes += part.counts.episodes
        self.diagonal += part.counts.diagonal
        part.counts.add_gram(self.mean_gram)
        if not self.plan.shared:
            self.second_visits += part.second_counts.visits
            self.second_episodes += part.second_counts.episodes
            self.second_diagonal += part.second_counts.diagonal
            part.second_counts.add_gram(self.gram)
        for product, total in ((part.A, self.A), (part.C, self.C), (part.D, self.D)):
            if product is not None and total is not None:
                total.add(product)

    def equations(self) -> MomentEquations:
        """The finished record."""
        if not (np.isfinite(self.b).all() and np.isfinite(self.e).all()):
            raise InvalidInputError(
                "rewards must stay finite when squared, weighted with features and summed, got a sum that "
                "does not; look for huge rewards or features"
            )
        plan, first = self.plan, self.A.finish()
        second = first if self.C is None else self.C.finish()
        A = first[0]
        mean_gram = self._gram(self.diagonal, self.mean_gram)
        return MomentEquations(
            A=A,
            b=self.b,
            C=A if plan.one_matrix else second[0],
            D=second[1] if self.D is None else self.D.finish()[0],
            e=self.e,
            gram=mean_gram if plan.shared else self._gram(self.second_diagonal, self.gram),
            mean_gram=mean_gram,
            visits=self.visits,
            second_visits=self.second_visits,
            feature_episodes=self.episodes,
            second_feature_episodes=self.second_episodes,
            episodes=self.count,
            terminated=self.terminated,
            transitions=self.transitions,
            outside=self.outside,
            lam=plan.lam,
            discount=plan.discount,
            features=plan.mean.features,
            second_features=plan.second.features,
            trace_cut=plan.trace_cut,
        )

    def _gram(self, diagonal: Floats, rest: Floats) -> Matrix:
        """A Gram matrix, or its diagonal alone where the sums stay sparse."""
        if self.plan.sparse_sums:
            at = np.arange(diagonal.size)
            return sp.csr_array((diagonal, (at, at)))
        _add_diagonal(diagonal, rest)
        return rest


def _add_diagonal(diagonal: Floats, out: Floats) -> None:
    """Add to the diagonal of out (l, l), on all threads: most of the time goes to fresh pages of memory."""
    shares = 8 if out.size > _PAGES else 1
    bounds = np.linspace(0, len(out), shares + 1).astype(int).tolist()
    if diagonal.any():
        for _ in in_order(
            lambda rows: _kernels.add_diagonal(*rows, diagonal, out), pairwise(bounds), uses_blas=False
        ):
            pass
