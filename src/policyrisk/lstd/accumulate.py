"""From trajectories to the sampled moment equations, in one pass.

    A = Σ z_t (φ_J(x_t) − γ φ_J(x_{t+1}))ᵀ         b = Σ z_t r_t          z_t = λγ z_{t−1} + φ_J(x_t)
    C = Σ y_t (φ_M(x_t) − γ² φ_M(x_{t+1}))ᵀ        e = Σ y_t r_t²         y_t = λγ² y_{t−1} + φ_M(x_t)
    D = Σ y_t 2γ r_t φ_J(x_{t+1})ᵀ

with φ(x_{t+1}) = 0 only where the episode terminated (sec. 4.1 and 4.3 of the paper; written out in
:mod:`policyrisk.lstd.definition`). LSTDQ has the same sums with φ̄(x_{t+1}) for φ(x_{t+1}) and traces of its
own: what comes next and how traces decay is the affair of :mod:`policyrisk.lstd.steps`, as are the products.
There, summation by parts turns A into one product instead of two,

    A = Σ_t φ_t (φ_t − γ(1−λ) Σ_{s>t} (λγ)^{s−1−t} φ_s)ᵀ,

where γ(1−λ) becomes γ for the last state of an episode that was cut off, and C likewise with γ²; D has the
same form with weights 2γ r_{s−1}; and b = Σ_t φ_t Σ_{s≥t} (λγ)^{s−t} r_s, summed backwards in time, needs no
trace at all. See :mod:`policyrisk.lstd.trace_products` for the product that A, C and D share.

Of more than DENSE_MOST sparse features the sums stay sparse, and traces are cut off: see
:class:`policyrisk.lstd.trace_products.SparseTotal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import and_
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Ints, Matrix, is_sparse
from policyrisk._core.devices import Device, on_gpu
from policyrisk._core.records import Additive, record
from policyrisk._core.units import unit_of
from policyrisk.data import Source, Trajectories, batches
from policyrisk.data.source import largest_of
from policyrisk.equations import MomentEquations
from policyrisk.errors import InvalidInputError
from policyrisk.lstd.rows import Rows, SparseRows, gram_sparse, tally_sparse
from policyrisk.lstd.steps import Coverage, Steps, View
from policyrisk.lstd.trace_products import Product
from policyrisk.risk import SampleReturns
from policyrisk.risk.draws import clusters_of_both


def accumulate(source: Source, view: View, device: Device = "cpu") -> MomentEquations:
    """The moment equations of a source's episodes: the sums of the module's docstring.

    One pass, in memory that does not depend on the source's length. The same data give the same bits, on one
    thread and on many; on a GPU (``device="cuda"``, for dense features) the same but for rounding.

    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [1], [2]], [1.0, 3.0], [2], [True])
    >>> equations = accumulate(data, View(Tabular(2), Tabular(2), lam=0.0, discount=1.0))
    >>> equations.A
    array([[ 1., -1.],
           [ 0.,  1.]])
    >>> equations.b, equations.e
    (array([1., 3.]), array([1., 9.]))
    >>> equations.solve().mean
    array([4., 3.])
    """
    return Sums.of(*view.over(source), device).equations()


@record(clusters="g: rising")
@dataclass(frozen=True, eq=False)
class FirstPass(Additive):
    """What the pass for the equations finds."""

    equations: MomentEquations  # without their features, so that they can be kept in files whatever these are
    returns: SampleReturns  # of the terminated episodes, under the policy that logged
    episodes: tuple[int, ...]  # of each part, in order
    coverage: Coverage  # of a target
    largest: float = 0.0  # reward or return, in size
    clusters: Ints | None = None  # (G,): the numbers of the episodes' clusters, where they come in clusters
    _rules: ClassVar = {"largest": max, "clusters": clusters_of_both}

    @classmethod
    def over(cls, view: View, device: Device, source: Source, part: int) -> FirstPass:
        """Of one part of the data."""
        returns, largest = SampleReturns.of([]), 0.0
        clusters: Ints | None = None

        def observed() -> Iterator[Trajectories]:
            nonlocal returns, largest, clusters
            for batch in batches(source):
                whole = batch.returns(view.discount)
                returns += SampleReturns.of(whole[batch.terminated])
                largest = max(largest, largest_of(batch, whole))
                clusters = clusters_of_both(clusters, batch.clusters)
                yield batch

        sums = Sums.of(*view.over(observed()), device)
        unit_of(largest)  # refuses rewards that are too large or too small by their name
        facts = returns, (sums.counts.episodes,), sums.coverage, largest, clusters
        return cls(sums.equations().without_maps(), *facts)


@dataclass(frozen=True, eq=False)
class StepCounts(Additive):
    """How many episodes and transitions there were; they add."""

    episodes: int = 0
    terminated: int = 0
    transitions: int = 0
    outside: int = 0  # transitions that started outside a map's box
    single: bool = True  # whether all states are known in single precision alone
    _rules: ClassVar = {"single": and_}

    @classmethod
    def of(cls, steps: Steps) -> StepCounts:
        """Those of some steps."""
        data = steps.data
        single = in_single_precision(data.states)
        return cls(len(data), int(data.terminated.sum()), steps.transitions, steps.outside, single)


class ChunkSums(NamedTuple):
    """What a chunk adds to the equations."""

    counts: StepCounts
    coverage: Coverage
    maps: list[_MapSums]
    products: list[Product]

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # of rewards whose unit is not known yet
    def of(cls, steps: Steps) -> ChunkSums:
        """Those of some steps."""
        view, r = steps.view, steps.data.rewards
        gamma, maps = view.discount, view_sums(view)
        # a_t and b_t of Σ z_t (a_t φ_t + b_t φ'_t)ᵀ
        weights: Any = {"A": (1.0, -gamma), "C": (1.0, -(gamma**2)), "D": (0.0, 2.0 * gamma * r)}
        products = [
            steps.product(left, right, *(weights[name] for name in names))
            for left, right, names in view.products
        ]
        X = np.split(np.stack([steps.to_go(r, 0), steps.to_go(r**2, 1)]), len(maps))  # for b and e
        for at, *phi in steps:
            for sums, rows, x in zip(maps, phi, X, strict=False):
                sums.block(rows, x[:, at])
            for product, (left, right, _) in zip(products, view.products, strict=True):
                product.block(at, phi[left], phi[right])
        for sums in maps:
            sums.episodes += sums.under_way
        for product in products:
            product.finish()
        return cls(StepCounts.of(steps), steps.coverage, maps, products)


def in_single_precision(states: npt.NDArray[Any]) -> bool:
    """Whether states are no whole numbers, but all numbers of single precision, however they are stored.

    >>> in_single_precision(np.float32([[0.1], [2.0]]).astype(np.float64)), in_single_precision(np.eye(2))
    (True, False)
    """
    if not np.issubdtype(states.dtype, np.floating):
        return False
    with np.errstate(over="ignore"):
        return bool((states.astype(np.float32) == states).all() and (np.rint(states) != states).any())


class _MapSums:
    """What one map's features met, weighted sums of them, and their Gram matrix: of a chunk or of all."""

    def __init__(self, size: int, sums: int, diagonal: bool) -> None:
        self._diagonal_alone = diagonal  # all that is wanted of the Gram matrix
        self.visits, self.episodes = np.zeros(size), np.zeros(size)
        self.under_way = np.zeros(size, dtype=np.bool_)  # what the episode that goes on before a block had
        self.sums = np.zeros((sums, size))  # Σ_i weight_i φ_i
        self.diagonal = np.zeros(size)  # of the Gram matrix of rows with one entry each, or of all
        self.gram: Any = None  # of other rows, (l, l)
        self._sparse: list[SparseRows] = []  # what is to be put in a Gram matrix elsewhere
        self._last, self._mark = np.full(size, -1), 0

    def block(self, phi: Rows, weights: Floats) -> None:
        """Put in a block and its weights (sums, rows), 0 where episodes end; the last one comes first."""
        if isinstance(phi, SparseRows):
            diagonal = self._diagonal_alone or phi.one_hot
            squares = self.diagonal if diagonal else np.zeros(phi.size)
            self._mark = tally_sparse(
                phi.ends, phi.ptr, phi.idx, phi.val, self._mark, self._last,
                self.visits, self.episodes, squares, weights, self.sums,
            )  # fmt: skip
            if not diagonal:
                self._sparse.append(phi)
        else:
            gram, nonzero = phi.visited.T @ phi.visited, phi.visited != 0
            self.gram = gram if self.gram is None else np.add(self.gram, gram, out=self.gram)
            self.sums += weights @ phi.matrix
            without_zeros = nonzero.all()  # as of most dense features
            self.visits += len(nonzero) if without_zeros else np.count_nonzero(nonzero, axis=0)
            # A block's last episode may go on in the block after it, which was put in before.
            met = np.zeros((np.count_nonzero(phi.ends) + 1, phi.size), dtype=np.bool_)
            episode, first = np.unique(np.cumsum(phi.ends)[~phi.ends], return_index=True)
            if episode.size:
                met[episode] = without_zeros or np.logical_or.reduceat(nonzero, first, axis=0)
            met[-1] |= self.under_way
            self.episodes += np.count_nonzero(met[1:], axis=0)
            self.under_way = met[0]

    def add(self, chunk: _MapSums) -> None:
        """Add a chunk's; chunks come in the order of the data."""
        self.visits += chunk.visits
        self.episodes += chunk.episodes
        self.sums += chunk.sums
        self.diagonal += chunk.diagonal
        for phi in chunk._sparse:
            gram_sparse(phi.ends, phi.ptr, phi.idx, phi.val, self.gram)
        if chunk.gram is not None:
            self.gram += chunk.gram

    def whole_gram(self) -> Matrix:
        """The Gram matrix, or its diagonal alone where the sums stay sparse."""
        size = self.diagonal.size
        if self.gram is None:
            return sp.csr_array((self.diagonal, (np.arange(size), np.arange(size))))
        self.gram.reshape(-1)[:: size + 1] += self.diagonal
        return self.gram  # type: ignore[no-any-return]


def view_sums(view: View) -> list[_MapSums]:
    """Empty sums for each map; for a map that is both, with both right-hand sides in one."""
    sizes = view.sizes[:1] if view.shared else view.sizes
    return [_MapSums(size, 3 - len(sizes), view.sparse_sums) for size in sizes]


class Sums:
    """The equations under way."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.maps = view_sums(view)
        self.totals = [view.total(left, right, len(names)) for left, right, names in view.products]
        if not view.sparse_sums:
            for each in self.maps:
                each.gram = np.zeros((each.visits.size, each.visits.size))
        self.coverage, self.counts = Coverage.empty(view.sizes[0]), StepCounts()

    @classmethod
    def of(cls, view: View, found: Iterator[Trajectories], device: Device = "cpu") -> Sums:
        """Those of all batches, in one pass."""
        sums = cls(view)
        if on_gpu(device, "cupy") and view.maps:
            from policyrisk.lstd.gpu_sums import add_on_gpu

            add_on_gpu(sums, found)
            return sums
        for part in view.each_of(ChunkSums.of, found):
            sums.counts += part.counts
            sums.coverage += part.coverage
            for own, more in zip(sums.maps, part.maps, strict=True):
                own.add(more)
            for total, product in zip(sums.totals, part.products, strict=True):
                total.add(product)
        return sums

    def equations(self) -> MomentEquations:
        """The finished record."""
        view, first, last = self.view, self.maps[0], self.maps[-1]
        found: dict[str, Any] = {"b": first.sums[0], "e": last.sums[-1]}
        for (_, _, names), total in zip(view.products, self.totals, strict=True):
            found |= zip(names, total.finish(), strict=True)
        if not all(np.isfinite(each.data if is_sparse(each) else each).all() for each in found.values()):
            raise InvalidInputError(
                "features and rewards must stay finite when squared, multiplied and summed, got a sum that "
                "does not; look for nan, infinite or huge ones"
            )
        grams = [each.whole_gram() for each in self.maps]
        return MomentEquations(
            **{"C": found["A"], **found},
            gram=grams[-1],
            mean_gram=grams[0],
            visits=first.visits,
            second_visits=last.visits,
            feature_episodes=first.episodes,
            second_feature_episodes=last.episodes,
            **vars(self.counts),
            lam=view.lam,
            discount=view.discount,
            features=view.features,
            second_features=view.second_features,
            trace_cut=view.trace_cut,
        )
