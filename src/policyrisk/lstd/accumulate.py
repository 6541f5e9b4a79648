"""From trajectories to the sampled moment equations, in one pass.

    A = Σ z_t (φ_J(x_t) − γ φ_J(x_{t+1}))ᵀ         b = Σ z_t r_t          z_t = λγ z_{t−1} + φ_J(x_t)
    C = Σ y_t (φ_M(x_t) − γ² φ_M(x_{t+1}))ᵀ        e = Σ y_t r_t²         y_t = λγ² y_{t−1} + φ_M(x_t)
    D = Σ y_t 2γ r_t φ_J(x_{t+1})ᵀ

with φ(x_{t+1}) = 0 only where the episode terminated (sec. 4.1 and 4.3 of the paper; written out in
:mod:`policyrisk.lstd.definition`). Summation by parts turns A into one product instead of two,

    A = Σ_t φ_t (φ_t − γ(1−λ) Σ_{s>t} (λγ)^{s−1−t} φ_s)ᵀ,

where γ(1−λ) becomes γ for the last state of an episode that was cut off, and C likewise with γ²; D has the
same form with weights 2γ r_{s−1}; and b = Σ_t φ_t Σ_{s≥t} (λγ)^{s−t} r_s, summed backwards in time, needs no
trace at all. See :mod:`policyrisk.lstd.trace_products` for the product that A, C and D share.

Of more than DENSE_MOST sparse features the sums stay sparse, and traces are cut off: see
:mod:`policyrisk.lstd.sparse_total`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, as_number
from policyrisk._core.threads import in_order
from policyrisk.equations import MomentEquations
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features
from policyrisk.lstd import _kernels
from policyrisk.lstd.chunks import Chunk, Plan
from policyrisk.lstd.rows import DenseRows, Rows, SparseRows
from policyrisk.lstd.trace_products import TraceProduct
from policyrisk.trajectories import Source, Trajectories

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
    for part in in_order(partial(_chunk_sums, plan), parts, uses_blas=plan.dense):
        sums.add(part)
    return sums.equations()


def _chunk_sums(plan: Plan, data: Trajectories) -> _Part:
    """Everything that a chunk adds to the equations."""
    chunk = Chunk.of(data)
    l_J, l_M = plan.mean.features.size, plan.second.features.size
    kappa_J, kappa_M = plan.lam * plan.discount, plan.lam * plan.discount**2
    outside = chunk.outside(plan.mean.features, plan.second.features)
    products = _products(plan, chunk, kappa_J, kappa_M)
    # weights of the rows in b and in e
    b_and_e = np.stack(
        [plan.to_go(data.rewards, chunk, kappa_J), plan.to_go(data.rewards**2, chunk, kappa_M)]
    )
    own = b_and_e if plan.shared else b_and_e[:1]
    counts = _Counts(l_J, len(own), plan.sparse_sums)
    second = counts if plan.shared else _Counts(l_M, 1, plan.sparse_sums)
    part = _Part(data, counts, second, outside, *products)
    for at, phi_J, phi_M in plan.blocks(chunk):
        part.counts.block(phi_J, own[:, at])
        part.A.block(at, phi_J, phi_J)
        if not plan.shared:
            part.second_counts.block(phi_M, b_and_e[1:, at])
        if part.C is not None:
            part.C.block(at, phi_M, phi_M)
        if part.D is not None:
            part.D.block(at, phi_M, phi_J)
        for phi in (phi_J, phi_M):
            if isinstance(phi, DenseRows):
                phi.release()
    part.counts.finish()
    if not plan.shared:
        part.second_counts.finish()
    if not plan.sparse_sums:
        for product in (part.A, part.C, part.D):
            if product is not None:
                product.finish()
    return part


def _products(
    plan: Plan, chunk: Chunk, kappa_J: float, kappa_M: float
) -> tuple[TraceProduct, TraceProduct | None, TraceProduct | None]:
    """A, C and D. D is the second channel of A where C is A, and of C where φ_M is φ_J."""
    data, rows = chunk.data, len(chunk.ends)
    l_J, l_M = plan.mean.features.size, plan.second.features.size
    lengths, terminated, gamma = data.lengths, data.terminated, plan.discount

    def bootstrap(discount: float, kappa: float, size: int, channels: int) -> TraceProduct:
        g, h = np.zeros((rows, channels)), np.zeros((rows, channels))
        _kernels.bootstrap_weights(lengths, terminated, plan.lam, discount, g[:, 0], h[:, 0])
        return TraceProduct(g, h, kappa, size, plan.memory)

    def rewards(g: Floats) -> None:
        _kernels.arrival_weights(data.rewards, lengths, terminated, 2.0 * gamma, g)

    A = bootstrap(gamma, kappa_J, l_J, 2 if plan.one_matrix else 1)
    if plan.one_matrix:
        rewards(A.g[:, 1])
        return A, None, None
    C = bootstrap(gamma**2, kappa_M, l_M, 2 if plan.shared else 1)
    if plan.shared:
        rewards(C.g[:, 1])
        return A, C, None
    D = TraceProduct(np.zeros((rows, 1)), np.zeros((rows, 1)), kappa_M, l_J, plan.memory)
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
    A: TraceProduct
    C: TraceProduct | None
    D: TraceProduct | None


class _Sums:
    """The equations under way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        l_J, l_M = plan.mean.features.size, plan.second.features.size
        kappa_J, kappa_M = plan.lam * plan.discount, plan.lam * plan.discount**2
        # D is the second channel of A or of C where it can be, see _products.
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
