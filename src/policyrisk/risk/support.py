"""What stands behind an estimate: where it comes from, and what the data say about a set of features.

Sparse features (tiles, tables): a state is visited if each of its active features was. Dense features are
active everywhere, so it is a matter of leverage, h(x) = φ(x)ᵀ gram⁺ φ(x): a state that was seen itself has
h ≤ 1, so one with h > ``limit``, or with φ(x) outside the range of gram, is out of range. A state whose
features are all 0 (beyond the reach of every truncated radial basis function) is not visited either: no
equation speaks of it.

A mixture's features are its members' side by side. Where some members did not visit a state, the others'
shares are scaled up so that they sum to 1 again; it is unvisited where none did. Of a variance that is mixed,
a member says at least 0: Ṽ = Σ_i b_i max(Ṽ_i, 0), unless all are below.

A state is not visited either where more than LOST_MOST of what its estimate rests on was given up by cut-off
episodes, φ(x)ᵀ lost > LOST_MOST: see :mod:`policyrisk.lstd.cutoffs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Matrix
from policyrisk._core.records import record
from policyrisk._core.text import percent, plural
from policyrisk.equations import MomentEquations
from policyrisk.features import BinaryFeatures, Features

UNCOVERED_MOST = 1.0  # actions that nobody logged on the way from a state, on average, up to which it counts
COVERED_LEAST = 0.5  # how surely a target must stay with what was logged, on average over starts
LOST_MOST = 0.05  # transitions given up on the way from a state, on average, up to which its estimate counts


@record(visits="l: finite", feature_episodes="l: finite", gram="l l: finite", lost="l: finite")
@dataclass(frozen=True, eq=False)
class Support:
    """Counts per feature, and the Gram matrix where the features are dense."""

    visits: Floats  # (l,): transitions that started with the feature active
    feature_episodes: Floats  # (l,): episodes that visited the feature
    episodes: int
    gram: Floats | None  # (l, l), None for sparse features
    limit: float  # of the leverage: 1 for sampled equations, inf for exact ones
    lost: Floats | None = None  # (l,): A⁻¹ Σ z_T over what was given up, None where nothing was
    lost_most: float = LOST_MOST
    shares: ClassVar = np.ones(1)

    @property
    def size(self) -> int:
        """The number of features."""
        return self.visits.size

    def visited(self, phi: Matrix) -> Bools:
        """Whether the data say anything about states with features ``phi`` (n, l), of shape (n,)."""
        return self.episodes_behind(phi) > 0

    def say(self, phi: Matrix, weights: Floats, behind: Floats | None = None) -> tuple[Floats, Floats]:
        """What weights (l,) say at states with features ``phi`` (n, l), and the episodes behind it.

        As of a mixture of one, (n, 1) each; ``behind`` where it is known already.
        """
        said = np.asarray(phi @ weights)[:, None]
        return said, self.episodes_behind(phi)[:, None] if behind is None else behind

    def scales(self, behind: Floats, variances: Floats | None = None) -> tuple[Floats, Floats]:
        """What that is multiplied with, (n, 1), and the episodes behind the estimates, (n,)."""
        return np.ones(behind.shape), behind[:, 0]

    def scaled(self, phi: Matrix, scale: Floats) -> Matrix:
        """The features as the weights take them."""
        return phi

    def episodes_behind(self, phi: Matrix) -> Floats:
        """How many episodes stand behind the estimates at states with features ``phi``, of shape (n,).

        Sparse: the fewest of any active feature. Dense: min(episodes, 1/h), since 1/h is the number of
        visits that would give a table the same leverage. 0 where the state is not visited.
        """
        behind = self.episodes_seen(phi)
        return behind if self.lost is None else np.where(self.rests_on_lost(phi), 0.0, behind)

    def rests_on_lost(self, phi: Matrix) -> Bools:
        """Whether too much of what the estimates at such states rest on was given up, of shape (n,)."""
        if self.lost is None:
            return np.zeros(phi.shape[0], dtype=np.bool_)
        return np.asarray(phi @ self.lost > self.lost_most)

    def episodes_seen(self, phi: Matrix) -> Floats:
        """As ``episodes_behind``, whatever was given up."""
        if self.gram is None or sp.issparse(phi):
            if sp.issparse(phi):
                rows = sp.csr_array(phi)
                behind = np.where(rows.data != 0, self.feature_episodes[rows.indices], np.inf)
                counts, filled = np.full(rows.shape[0], np.inf), np.diff(rows.indptr) > 0
                if filled.any():
                    counts[filled] = np.minimum.reduceat(behind, rows.indptr[:-1][filled])
            else:
                counts = np.where(np.asarray(phi) != 0, self.feature_episodes, np.inf).min(
                    axis=1, initial=np.inf
                )
            return np.where(np.isinf(counts), 0.0, np.minimum(counts, float(self.episodes)))
        scale, whitener, null = self._factors
        scaled = np.asarray(phi) * scale
        outside = np.linalg.norm(scaled @ null, axis=1) > 1e-6 * np.linalg.norm(scaled, axis=1)
        leverage: Floats = np.square(scaled @ whitener).sum(axis=1)
        in_range = ~outside & (leverage <= self.limit * (1 + 1e-9)) & np.any(phi != 0, axis=1)
        smallest = max(1.0 / max(self.episodes, 1), np.finfo(np.float64).tiny)
        return np.where(in_range, 1.0 / np.maximum(leverage, smallest), 0.0)

    @cached_property
    def _factors(self) -> tuple[Floats, Floats, Floats]:
        """Scale s (l,), W with (s·gram·s)⁺ = W Wᵀ, and an orthonormal basis of its null space."""
        assert self.gram is not None
        diagonal = np.diag(self.gram)
        scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = np.linalg.eigh(self.gram * np.outer(scale, scale))
        positive = values > values[-1] * len(values) * np.finfo(np.float64).eps
        return scale, vectors[:, positive] / np.sqrt(values[positive]), vectors[:, ~positive]


def supports_of(
    equations: MomentEquations,
    lost: Sequence[Floats] = (),  # A⁻¹ Σ z_T and C⁻¹ Σ y_T, if there are
    *,
    dense: Sequence[bool] | None = None,  # whether φ_J and φ_M are, where the features do not say
    lost_most: float = LOST_MOST,
) -> tuple[Support, Support]:
    """What the equations say about φ_J and about φ_M."""
    e = equations

    def support(k: int, features: Features, visits: Floats, episodes: Floats, gram: Any) -> Support:
        sparse = isinstance(features, BinaryFeatures) or sp.issparse(gram)
        kept = gram if not sparse and (dense is None or dense[k]) else None
        limit, own = np.inf if e.exact else 1.0, lost[k] if k < len(lost) else None
        return Support(visits, episodes, e.episodes, kept, limit, own, lost_most)

    first = support(0, e.features, e.visits, e.feature_episodes, e.mean_gram)
    if e.second_features == e.features:
        return first, first
    return first, support(1, e.second_features, e.second_visits, e.second_feature_episodes, e.gram)


@record(members="m", shares="m: positive")
@dataclass(frozen=True, eq=False)
class MixedSupport:
    """The supports of a mixture's members, whose features are side by side, and their shares."""

    members: tuple[Support, ...]
    shares: Floats  # (m,), positive, of sum 1

    gram = None  # no leverage of its own

    @property
    def size(self) -> int:
        """The number of features, of all members together."""
        return sum(self.sizes)

    @property
    def episodes(self) -> int:
        """All episodes."""
        return self.members[0].episodes

    @property
    def visits(self) -> Floats:
        """(l,): transitions that started with the feature active."""
        return np.concatenate([member.visits for member in self.members])

    @property
    def feature_episodes(self) -> Floats:
        """(l,): episodes that visited the feature."""
        return np.concatenate([member.feature_episodes for member in self.members])

    @cached_property
    def sizes(self) -> list[int]:
        """The number of features of each member."""
        return [member.visits.size for member in self.members]

    def blocks(self, phi: Matrix) -> list[Matrix]:
        """Each member's part of the features (n, l), dense where it is dense."""
        ends = np.cumsum(self.sizes)
        parts: list[Matrix] = []
        for member, size, end in zip(self.members, self.sizes, ends.tolist(), strict=True):
            part: Any = phi[:, end - size : end]
            dense = member.gram is not None and sp.issparse(part)
            parts.append(sp.csr_array(part).toarray() if dense else part)
        return parts

    def say(self, phi: Matrix, weights: Floats, behind: Floats | None = None) -> tuple[Floats, Floats]:
        """What each member adds at states with features ``phi`` (n, l), and its episodes, (n, m) each."""
        own = np.split(weights, np.cumsum(self.sizes)[:-1])
        each = [
            member.say(part, w) for member, part, w in zip(self.members, self.blocks(phi), own, strict=True)
        ]
        said, found = (np.hstack(parts) for parts in zip(*each, strict=True))
        return said, found if behind is None else behind

    def scaled(self, phi: Matrix, scale: Floats) -> Matrix:
        """The features with each member's part multiplied by its scale, of (n, m)."""
        member_of = np.repeat(np.arange(len(self.members)), self.sizes)
        if not sp.issparse(phi):
            return np.asarray(phi) * scale[:, member_of]
        rows = sp.csr_array(phi)
        row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        data = rows.data * scale[row, member_of[rows.indices]]
        return sp.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)

    def scales(self, behind: Floats, variances: Floats | None = None) -> tuple[Floats, Floats]:
        """What each member's part is multiplied with (n, m), and the episodes behind the average member (n,).

        ``behind`` (n, m) are the episodes behind each, ``variances`` (n, m) what each says of the variance: a
        share of it below 0 counts as 0.
        """
        known = behind > 0
        present = self.shares * known
        total = present.sum(axis=1)
        scale = np.divide(known, total[:, None], out=np.zeros(behind.shape), where=total[:, None] > 0)
        if variances is not None:
            above = variances > 0
            scale *= above | ~(above & known).any(axis=1, keepdims=True)
        return scale, (present * behind).sum(axis=1) / np.where(total > 0, total, 1.0)


@record
@dataclass(frozen=True, eq=False)
class Provenance:
    """Where an estimate comes from, in numbers; two are equal where all numbers are, nan and nan included.

    >>> Provenance("LSTD", lam=0.9, discount=1.0, episodes=10, terminated=8, transitions=93).remarks
    ('2 episodes cut off',)
    """

    estimator: str
    lam: float
    discount: float
    ridge: float = 0.0
    episodes: int = 0
    terminated: int = 0
    transitions: float = 0.0
    outside: int = 0  # transitions that started outside the features' boxes
    given_up: int = 0  # last transitions of cut-off episodes that ended where nothing is known
    biased: int = 0  # transitions that started where too much was given up: estimates there are nan
    redundant: int = 0  # directions of the features that change no estimate
    condition: float = float("nan")  # 1-norm condition number of the scaled equations, the larger of the two
    constrained: int = 0  # states where the positive-variance constraint is active
    constraint_residual: float = 0.0
    trace_cut: float = 0.0  # share to which traces decayed before they were cut off, where sums are sparse
    residual: float = 0.0  # of equations that were solved by iteration: ‖S(b − A w)‖ / ‖S b‖, the larger one
    skipped: tuple[str, ...] = ()  # shards that could not be read and were left out
    variance_lam: float = 0.0  # κ of the direct variance
    left_out: float = (
        0.0  # the target's probability on actions that nobody logged, on average over next states
    )
    dropped: int = 0  # transitions into states where the target takes none that was logged

    # A dataclass compares its fields, and nan is not equal to itself. (Up to Python 3.12 it compared tuples,
    # to which the same nan object is equal.)
    def _key(self) -> tuple[object, ...]:
        return tuple(None if value != value else value for value in astuple(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provenance) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def settings(self) -> str:
        """The estimator and its settings."""
        others = (("ridge", self.ridge), ("variance_lam", self.variance_lam))
        more = "".join(f", {name}={value:g}" for name, value in others if value)
        return f"{self.estimator}, lam={self.lam:g}, discount={self.discount:g}{more}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is out of the ordinary, a sentence each."""
        cut_off = self.episodes - self.terminated
        said = [
            (cut_off, f"{plural(cut_off, 'episode')} cut off"),
            (self.outside, f"{plural(self.outside, 'transition')} started outside the features' box"),
            (self.given_up, f"{plural(self.given_up, 'last transition')} given up: cut off where unvisited"),
            (
                self.biased,
                f"{plural(self.biased, 'transition')} started where too much was given up: nan there",
            ),
            (
                self.left_out,
                f"{percent(self.left_out)} of the target's probability on actions that were never logged, "
                f"{plural(self.dropped, 'transition')} dropped",
            ),
            (self.redundant, f"{plural(self.redundant, 'redundant direction')}, which change no estimate"),
            (self.constrained, f"{plural(self.constrained, 'state')} where the constraint V >= 0 is active"),
            (self.trace_cut, f"many features: traces cut off at {self.trace_cut:g}, no error bars"),
            (self.residual, f"equations solved to a relative residual of {self.residual:.0e}"),
            (len(self.skipped), f"{plural(len(self.skipped), 'shard')} left out: {', '.join(self.skipped)}"),
        ]
        return tuple(text for count, text in said if count)
