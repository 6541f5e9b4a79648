"""The projected equations of mean and second moment, as one additive record.

    A w_J = b            C w_M = d,    d = e + D w_J

(sec. 4.1 and 4.3 of the paper; from trajectories, sums over episodes; from a chain, expectations of one
episode). D and e are kept apart, so that equations add: over episodes, files, processes and machines,
in any order, and are solved afterwards. With γ = 1 and φ_J = φ_M, C is A: the same array.

Of more than DENSE_MOST sparse features (tables, tiles, truncated bases) A, C and D are CSR arrays, of the
Gram matrices there is only the diagonal (all that the solution needs), and traces are cut off to bound the
fill, see ``trace_cut``. A record is dense or sparse as a whole; the features decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix, as_floats, as_number, is_sparse
from policyrisk._core.records import record
from policyrisk.equations.systems import DenseSystem, SparseSystem, TableSystem
from policyrisk.errors import InvalidInputError, MismatchError, check_proper
from policyrisk.features import Features, Tabular, as_features

DENSE_MOST = 8000  # features up to which the sums are dense: 0.5 GB a matrix
_SUMS = {
    "A": "l_J l_J",
    "b": "l_J",
    "C": "l_M l_M",
    "D": "l_M l_J",
    "e": "l_M",
    "gram": "l_M l_M",
    "mean_gram": "l_J l_J",
    "visits": "l_J",
    "second_visits": "l_M",
    "feature_episodes": "l_J",
    "second_feature_episodes": "l_M",
}  # and their shapes
_SETTINGS = ("lam", "discount", "features", "second_features")
_NOT_SUMMED = (*_SETTINGS, "trace_cut", "exact", "single", "C", "gram")  # the last two may be A and mean_gram


def too_many_for_dense(features: Features, second_features: Features) -> bool:
    """Whether the sums of sparse features stay sparse, since dense ones would take too much memory."""
    return max(features.size, second_features.size) > DENSE_MOST


@record(**_SUMS, features="l_J", second_features="l_M")
@dataclass(frozen=True, eq=False)
class MomentEquations:
    """Sums that determine w_J and w_M: A w_J = b and C w_M = e + D w_J.

    They add, with ``MomentEquations.empty(...)`` as identity, and ``sum()`` works. Adding equations of
    other features, λ or γ is an error, and so is adding exact ones to sampled ones.

    Attributes
    ----------
    A, b
        (l_J, l_J) and (l_J,).
    C, D, e
        (l_M, l_M), (l_M, l_J) and (l_M,).
    gram, mean_gram
        (l_M, l_M) and (l_J, l_J): Σ φ_M φ_Mᵀ and Σ φ_J φ_Jᵀ over visited states; their diagonals alone where
        sums are sparse.
    visits, second_visits
        (l_J,) and (l_M,): transitions that started with the feature active.
    feature_episodes, second_feature_episodes
        (l_J,) and (l_M,): episodes that visited the feature.
    episodes, terminated, transitions
        Counts; where the equations are exact, ``transitions`` is the expected number of steps.
    outside
        Transitions that started outside the features' boxes.
    lam, discount, features, second_features
        What the equations belong to.
    trace_cut
        Traces were cut off when they had decayed to this share; 0: never.
    exact
        Whether they are a chain's expectations of one episode rather than sums over data.
    single
        Whether all states are known in single precision alone.

    Examples
    --------
    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=1)
    >>> lstd = pr.LSTD(pr.Tabular(5))
    >>> parts = lstd.equations(data[:60]) + lstd.equations(data[60:])
    >>> parts.episodes, bool(np.allclose(parts.A, lstd.equations(data).A))
    (100, True)
    """

    A: Matrix  # (l_J, l_J)
    b: Floats  # (l_J,)
    C: Matrix  # (l_M, l_M)
    D: Matrix  # (l_M, l_J)
    e: Floats  # (l_M,)
    gram: Matrix  # (l_M, l_M): Σ φ_M φ_Mᵀ over visited states; its diagonal alone where sums are sparse
    mean_gram: Matrix  # (l_J, l_J): Σ φ_J φ_Jᵀ, likewise
    visits: Floats  # (l_J,): transitions that started with the feature active
    second_visits: Floats  # (l_M,)
    feature_episodes: Floats  # (l_J,): episodes that visited the feature
    second_feature_episodes: Floats  # (l_M,)
    episodes: int
    terminated: int  # how many of the episodes terminated, the rest being cut off
    transitions: float  # expected number of steps where the equations are exact
    outside: int  # transitions that started outside the features' boxes
    lam: float
    discount: float
    features: Features
    second_features: Features
    trace_cut: float = 0.0  # traces were cut off when they had decayed to this share; 0: never
    exact: bool = False  # whether they are a chain's expectations of one episode rather than sums over data
    single: bool = False  # whether all states are known in single precision alone

    @classmethod
    def empty(
        cls,
        features: Features,
        second_features: Features | None = None,
        *,
        lam: float = 0.9,
        discount: float = 1.0,
    ) -> MomentEquations:
        """The equations of no episode at all: adding them changes nothing.

        >>> from policyrisk.features import Tabular
        >>> MomentEquations.empty(Tabular(3)).A.shape
        (3, 3)
        """
        features = as_features(features)
        second = features if second_features is None else as_features(second_features)
        lam = as_number(lam, "lam", 0.0, 1.0)
        discount = as_number(discount, "discount", 0.0, 1.0, open_low=True)
        sizes = {"l_J": features.size, "l_M": second.size}
        matrix: Any = sp.csr_array if too_many_for_dense(features, second) else np.zeros
        sums: dict[str, Any] = {}
        for name, dims in _SUMS.items():
            shape = tuple(sizes[dim] for dim in dims.split())
            sums[name] = matrix(shape) if len(shape) == 2 else np.zeros(shape)
        if second == features:
            sums["gram"] = sums["mean_gram"]
            sums["C"] = sums["A"] if discount == 1.0 else sums["C"]
        counts: dict[str, Any] = dict.fromkeys(("episodes", "terminated", "transitions", "outside"), 0)
        return cls(**sums, **counts, lam=lam, discount=discount, features=features, second_features=second)

    @property
    def shared(self) -> bool:
        """Whether C is A, so that one factorisation serves both."""
        return self.C is self.A

    @property
    def sparse(self) -> bool:
        """Whether A, C and D are CSR arrays."""
        return sp.issparse(self.A)

    def __add__(self, other: object) -> MomentEquations:
        if not isinstance(other, MomentEquations):
            return NotImplemented
        empty = self.episodes == 0 or other.episodes == 0
        for name in _SETTINGS if empty else (*_SETTINGS, "exact", "sparse", "trace_cut"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise MismatchError(
                    f"equations must agree on {name} to be added, got {mine!r} and {theirs!r}; "
                    "make both with the same estimator, and both from data or both from a chain"
                )
        if empty:
            return other if self.episodes == 0 else self
        names = [field.name for field in fields(self) if field.name not in _NOT_SUMMED]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        both_shared = self.shared and other.shared
        sums["C"] = sums["A"] if both_shared else self.C + other.C
        one_gram = self.gram is self.mean_gram and other.gram is other.mean_gram
        sums["gram"] = sums["mean_gram"] if one_gram else self.gram + other.gram
        return replace(self, **sums, single=self.single and other.single)

    def __radd__(self, other: object) -> MomentEquations:
        return self if other == 0 else NotImplemented

    def without_maps(self) -> MomentEquations:
        """The same sums with tables of the same sizes for features, which any file can hold."""
        return replace(self, features=Tabular(len(self.b)), second_features=Tabular(len(self.e)))

    def of_maps(self, features: Features, second_features: Features) -> MomentEquations:
        """The same sums, of maps of the same sizes."""
        own = len(self.b), len(self.e)
        # That of a function may be unknown as yet.
        sizes = getattr(features, "size", own[0]), getattr(second_features, "size", own[1])
        if sizes != own:
            raise MismatchError(
                f"features must have the equations' sizes {own}, got {sizes}; pass those they were made with"
            )
        return replace(self, features=features, second_features=second_features)

    def solve(self, ridge: float = 0.0, system: Callable[..., Any] | None = None) -> Weights:
        """w_J and w_M of the equations, with ridge on per-episode means: (A/K + ridge·I) w_J = b/K.

        Features that were never active get weight 0; redundant ones get the weights of minimum norm.
        ``system`` makes systems where these are known to have a form of their own, as :class:`TableSystem`.
        """
        ridge = as_number(ridge, "ridge", 0.0)
        if self.episodes == 0:
            raise InvalidInputError("equations must hold at least one episode, got none; add data first")
        check_proper(self.discount, self.terminated, self.episodes)
        sums: tuple[Any, ...] = (self.A, self.b, self.C, self.D, self.e, self.gram, self.mean_gram)
        if not all(np.isfinite(part.data if is_sparse(part) else part).all() for part in sums):
            raise InvalidInputError(
                "equations must be finite, got sums beyond the range of float64; rescale the features or "
                "the rewards"
            )
        mean = second = self.mean_system(ridge, make=system)
        if not self.shared:
            make: Any = system or (SparseSystem if self.sparse else DenseSystem)
            name, total = "C (the second moment's equations)", ridge * self.episodes
            second = make(self.C, self.gram, self.second_visits, total, name, self.single)
        w_mean = mean.solve(self.b)
        w_second = second.solve(self.second_rhs(w_mean))
        return Weights(w_mean, w_second, mean, second)

    def mean_system(
        self, ridge: float, name: str = "A (the mean's equations)", make: Callable[..., Any] | None = None
    ) -> Any:
        """A alone, to be solved with any right-hand side."""
        system: Any = make or (SparseSystem if self.sparse else DenseSystem)
        return system(self.A, self.mean_gram, self.visits, ridge * self.episodes, name, self.single)

    def second_rhs(self, w_mean: Floats) -> Floats:
        """d = e + D w_J, of shape (l_M,)."""
        return self.e + self.D @ as_floats(w_mean, "w_mean", (len(self.b),))

    def __repr__(self) -> str:
        return (
            f"MomentEquations({len(self.b)} and {len(self.e)} features, {self.episodes} episodes, "
            f"{self.terminated} terminated, {self.transitions:g} transitions, lam={self.lam}, "
            f"discount={self.discount}"
            + (f", sparse, traces cut off at {self.trace_cut:g})" if self.sparse else ")")
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """The solution of the equations, and the factored systems it came from."""

    mean: Floats  # (l_J,): w_J
    second: Floats  # (l_M,): w_M
    mean_system: DenseSystem | SparseSystem | TableSystem
    second_system: DenseSystem | SparseSystem | TableSystem

    @property
    def factored_systems(self) -> tuple[Any, Any]:
        """Both systems, where they were factored: what error bars and the constraint rest on."""
        first, second = self.mean_system, self.second_system
        if isinstance(first, SparseSystem) or isinstance(second, SparseSystem):
            raise InvalidInputError(
                f"error bars and the constraint V >= 0 need dense sums, got {len(self.mean)} sparse "
                f"features, whose sums stay sparse; use at most {DENSE_MOST} features"
            )
        return first, second
