"""Cut-off episodes that end where nothing is known, and what rests on the transitions that they give up.

A cut-off episode bootstraps from the state x_T that it was cut off in. If a feature of x_T was never active
at any t < T, that state has no equation of its own, and bootstrapping from it is undefined. Such an episode
gives up its last transition, so that it ends in x_{T−1} instead; since x_{T−1} then no longer counts as
visited by it, this may go on. Nothing is bootstrapped with 0, and what was given up is counted.

What is given up depends on the visits alone: with v (l,) the visits that are left in the end, an episode ends
in the last of its states whose features all have v > 0. The more is given up, the fewer visits are left, and
the more is to be given up, so that v is found from above: start with all visits, see what would be given up,
take these transitions' visits away, and so on until nothing changes.

*Closed* features are treated as unvisited where γ = 1: those from which, in the data, nothing leads to an
end. A feature leads there if it was active before the end of a terminated episode, or before a state with a
feature that leads there. From the others episodes are cut off, all of them, and a value that every transition
hands on and none changes is not determined: A would be singular. Episodes give up what they did there, back
to the transition that led in.

Giving up is a selection, since transitions that end an episode never go. The equations' solution J̃ misses

    J − J̃ = φᵀ A⁻¹ Σ z_T δ_T,        δ_T = r_T + γJ(x_{T+1}) − J(x_T)

(sums over the episodes that gave up, T being the transition that they gave up first), since A w = b holds of
all data on average. δ_T is not known, but its weight is, h(x) = φ(x)ᵀ A⁻¹ Σ z_T: for tables, how often on
average a trajectory of the fitted chain from x meets a transition that was given up. Where that is more than
LOST_MOST the data do not say what the estimate is, and it is nan
(:class:`policyrisk.risk.support.Support`).

Dense features are active everywhere, so that this concerns tables, tiles and truncated bases.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Ints, is_sparse
from policyrisk._core.records import Additive, add_each, record
from policyrisk._core.text import plural
from policyrisk.data import Shortened, Source, Trajectories, batches, pieces
from policyrisk.errors import GivenUpWarning
from policyrisk.features import Features
from policyrisk.features.protocol import matrix_of
from policyrisk.markov.branches import closure
from policyrisk.passes import Reduce
from policyrisk.risk import RiskFunction
from policyrisk.risk.support import LOST_MOST, Support

_PIECE = 1 << 17  # transitions whose features are looked at together
_FADED = 1e-12  # a trace's part that is no longer worth a look

MapVisits: TypeAlias = "Sequence[tuple[Features, Floats]]"  # feature maps, each with its visits (l,)


@record
@dataclass(frozen=True, eq=False)
class MapTally(Additive):
    """A count, and a number for every feature of each map, or for every pair of them; it adds."""

    transitions: int
    features: tuple[Any, ...]  # of each map, (l,), or CSR (l, l)
    _rules: ClassVar = {"features": add_each}


@dataclass(frozen=True, eq=False)
class Trim:
    """Which ends are known, and how many transitions are given up so that all episodes have one."""

    left: MapVisits
    transitions: int = 0

    def __call__(self, source: Source) -> Source:
        """The source's episodes without what they give up."""
        return Shortened(source, partial(_still, self.left)) if self.transitions else source

    def trimmed(self, reduce: Reduce) -> Reduce:
        """A :class:`Reduce` of the same data without what their episodes give up."""
        return lambda work: reduce(lambda source, part: work(self(source), part))


def trim(reduce: Reduce, seen: MapVisits, discount: float = 1.0) -> Trim:
    """Give up what bootstraps from features that were never active at t < T, or are closed.

    ``seen`` are the visits of all the data.
    """
    left, transitions = seen, 0
    while True:
        given = reduce(partial(_given_up, left))
        if given.transitions > transitions:
            left = [(phi, v - gone) for (phi, v), gone in zip(seen, given.features, strict=True)]
            transitions = given.transitions
            continue
        closed = _closed(reduce, seen, left) if discount == 1.0 else []
        if not any(which.any() for which in closed):
            return Trim(left, transitions)
        left = [(phi, np.where(which, 0.0, v)) for (phi, v), which in zip(left, closed, strict=True)]


def lost_traces(reduce: Reduce, cut: Trim, decays: Sequence[float]) -> tuple[Floats, ...]:
    """Σ z_T over the episodes that gave up, for each map, whose trace decays by ``decays`` a step."""
    return reduce(partial(_lost_traces, cut.left, decays)).features


def count_biased(risk: RiskFunction, reduce: Reduce) -> RiskFunction:
    """The estimate with a count of the transitions that start where too much was given up, and a warning."""
    maps = [(risk.features, risk.support)]
    if risk.second_support is not risk.support:
        maps.append((risk.second_features, risk.second_support))

    def count(source: Source, _: int) -> int:
        found = 0
        for batch in batches(source):
            for piece in pieces(batch, _PIECE):
                states = piece.states[piece.visited_rows]
                biased = np.zeros(len(states), dtype=np.bool_)
                for phi, support in maps:
                    biased |= isinstance(support, Support) and support.rests_on_lost(phi(states))
                found += int(np.count_nonzero(biased))
        return found

    biased, facts = reduce(count), risk.provenance
    if biased:
        warnings.warn(
            f"cut-off episodes gave up {plural(facts.given_up, 'last transition')}, since they ended where "
            f"nothing is known, and where {biased} of {facts.transitions:g} transitions start the estimates "
            f"rest on that by more than {LOST_MOST:.0%}: they are nan there. Gather episodes that go on for "
            "longer or from where these end, or use coarser features",
            GivenUpWarning,
            stacklevel=4,
        )
    return replace(risk, provenance=replace(facts, biased=biased))


def _given_up(left: MapVisits, source: Source, part: int) -> MapTally:
    """The transitions that are given up where these visits are left, and how often features started them."""
    total = MapTally(0, tuple(np.zeros_like(v) for _, v in left))
    for batch in batches(source):
        lost, visits = _lost(batch, left)
        total += MapTally(int(lost.sum()), visits)
    return total


def _closed(reduce: Reduce, seen: MapVisits, left: MapVisits) -> list[Bools]:
    """Which features that are left are closed, (l,) for each map."""
    cut_off = reduce(partial(_cut_off_visits, [phi for phi, _ in seen])).features
    leads = [v > gone for (_, v), gone in zip(seen, cut_off, strict=True)]  # visited by one that terminated
    if any(((v > 0) & ~to).any() for (_, v), to in zip(left, leads, strict=True)):
        back = reduce(partial(_ways_back, left)).features
        leads = [closure(ways, to) for ways, to in zip(back, leads, strict=True)]
    return [(v > 0) & ~to for (_, v), to in zip(left, leads, strict=True)]


def _cut_off_visits(maps: Sequence[Features], source: Source, part: int) -> MapTally:
    """How often cut-off episodes visited the features of sparse maps."""
    total = tuple(np.zeros(phi.size) for phi in maps)
    for piece in _cut_off_pieces(source):
        for phi, visits in zip(maps, total, strict=True):
            if is_sparse(phi(piece.states[:1])):
                visits += _active(phi, piece.states[piece.visited_rows]).sum(axis=0)
    return MapTally(0, total)


def _ways_back(left: MapVisits, source: Source, part: int) -> MapTally:
    """How often feature j came just before i in what is left of cut-off episodes, CSR (i, j) for each map."""
    total: list[Any] = [sp.csr_array((phi.size, phi.size)) for phi, _ in left]
    for piece in _cut_off_pieces(Shortened(source, partial(_still, left))):
        for k, (phi, _) in enumerate(left):
            active = _active(phi, piece.states)
            total[k] = total[k] + active[piece.visited_rows + 1].T @ active[piece.visited_rows]
    return MapTally(0, tuple(total))


def _cut_off_pieces(source: Source) -> Iterator[Trajectories]:
    """The cut-off episodes of a source, some at a time."""
    for batch in batches(source):
        if not batch.terminated.all():
            yield from pieces(batch[~batch.terminated], _PIECE)


def _lost_traces(left: MapVisits, decays: Sequence[float], source: Source, part: int) -> MapTally:
    """Σ (λγ)^{T−t} φ(x_t) over the episodes that gave up transition T and t ≤ T."""
    total = tuple(np.zeros_like(v) for _, v in left)
    for batch in batches(source):
        lost, _ = _lost(batch, left)
        some = np.flatnonzero(lost)
        steps = batch.lengths[some] - lost[some] + 1
        ago = np.repeat(np.cumsum(steps), steps) - 1 - np.arange(steps.sum())  # T − t
        rows = np.repeat(batch.final_rows[some] - lost[some], steps) - ago
        for (phi, _), decay, trace in zip(left, decays, total, strict=True):
            weights = decay**ago
            seen = weights > _FADED
            if seen.any():
                trace += weights[seen] @ matrix_of(phi, batch.states[rows[seen]])
    return MapTally(0, total)


def _lost(batch: Trajectories, left: MapVisits) -> tuple[Ints, tuple[Floats, ...]]:
    """How many transitions each episode gives up, (episodes,), and their visits."""
    lost = np.zeros(len(batch), dtype=np.int64)
    gone = tuple(np.zeros_like(v) for _, v in left)
    ends = np.flatnonzero(~batch.terminated)
    while ends.size:
        states = batch.states[batch.final_rows[ends] - lost[ends]]
        unknown = np.zeros(ends.size, dtype=np.bool_)
        for phi, v in left:
            unknown |= _active(phi, states) @ (v <= 0).astype(np.float64) > 0
        ends = ends[unknown]
        if not ends.size:
            break
        lost[ends] += 1
        before = batch.states[batch.final_rows[ends] - lost[ends]]
        for (phi, _), total in zip(left, gone, strict=True):
            total += np.asarray(_active(phi, before).sum(axis=0)).ravel()
        ends = ends[lost[ends] < batch.lengths[ends]]
    return lost, gone


def _active(features: Features, states: npt.NDArray[Any]) -> Any:
    """Which features are active, (n, l), as a sparse array of ones."""
    return sp.csr_array(matrix_of(features, states)).astype(np.bool_).astype(np.float64)


def _still(left: MapVisits, batch: Trajectories) -> Ints:
    """How many transitions each episode keeps, (episodes,)."""
    return batch.lengths - _lost(batch, left)[0]
