"""The projected equations of mean and second moment, as one additive record.

    A w_J = b            C w_M = d,    d = e + D w_J

(sec. 4.1 and 4.3 of the paper; from trajectories, sums over episodes; from a chain, expectations of one
episode). D and e are kept apart, so that equations add: over episodes, files, processes and machines,
in any order, and are solved afterwards. With γ = 1 and φ_J = φ_M, C is A: the same array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from policyrisk._arrays import Floats, as_number
from policyrisk.errors import ImproperPolicyError, InvalidInputError, MismatchError
from policyrisk.features import Features
from policyrisk.linear_system import LinearSystem

_SUMS = ("A", "b", "D", "e", "mean_gram")
_COUNTS = (
    "visits",
    "second_visits",
    "feature_episodes",
    "second_feature_episodes",
    "episodes",
    "terminated",
    "transitions",
    "outside",
)
_SETTINGS = ("lam", "discount", "features", "second_features")


@dataclass(frozen=True, eq=False)
class MomentEquations:
    """Sums that determine w_J and w_M.

    They add, with ``MomentEquations.empty(...)`` as identity, and ``sum()`` works. Adding equations of
    other features, λ or γ is an error.
    """

    A: Floats  # (l_J, l_J)
    b: Floats  # (l_J,)
    C: Floats  # (l_M, l_M)
    D: Floats  # (l_M, l_J)
    e: Floats  # (l_M,)
    gram: Floats  # (l_M, l_M): Σ φ_M φ_Mᵀ over visited states
    mean_gram: Floats  # (l_J, l_J): Σ φ_J φ_Jᵀ
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
        second = features if second_features is None else second_features
        l_J, l_M = features.size, second.size
        shared = second == features
        mean_gram = np.zeros((l_J, l_J))
        A = np.zeros((l_J, l_J))
        return cls(
            A=A,
            b=np.zeros(l_J),
            C=A if shared and discount == 1.0 else np.zeros((l_M, l_M)),
            D=np.zeros((l_M, l_J)),
            e=np.zeros(l_M),
            gram=mean_gram if shared else np.zeros((l_M, l_M)),
            mean_gram=mean_gram,
            visits=np.zeros(l_J),
            second_visits=np.zeros(l_M),
            feature_episodes=np.zeros(l_J),
            second_feature_episodes=np.zeros(l_M),
            episodes=0,
            terminated=0,
            transitions=0,
            outside=0,
            lam=lam,
            discount=discount,
            features=features,
            second_features=second,
        )

    @property
    def shared(self) -> bool:
        """Whether C is A, so that one factorisation serves both."""
        return self.C is self.A

    def __add__(self, other: object) -> MomentEquations:
        if not isinstance(other, MomentEquations):
            return NotImplemented
        for name in _SETTINGS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise MismatchError(
                    f"equations must agree on {name} to be added, got {mine!r} and {theirs!r}; "
                    "make both with the same estimator"
                )
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS + _COUNTS}
        if not (self.shared and other.shared):
            sums["C"] = self.C + other.C
        if not (self.gram is self.mean_gram and other.gram is other.mean_gram):
            sums["gram"] = self.gram + other.gram
        return replace(self, **{"C": sums["A"], "gram": sums["mean_gram"], **sums})

    def __radd__(self, other: object) -> MomentEquations:
        return self if other == 0 else NotImplemented

    def solve(self, ridge: float = 0.0) -> Weights:
        """w_J and w_M of the equations, with ridge on per-episode means: (A/K + ridge·I) w_J = b/K.

        Features that were never active get weight 0; redundant ones get the weights of minimum norm.
        """
        ridge = as_number(ridge, "ridge", 0.0)
        if self.episodes == 0:
            raise InvalidInputError("equations must hold at least one episode, got none; add data first")
        if self.discount == 1.0 and self.terminated == 0:
            raise ImproperPolicyError(
                f"with discount=1 some episode must terminate (Assumption 1: proper policy), got "
                f"{self.episodes} episodes, all cut off; gather episodes that end, or use discount < 1"
            )
        if not all(np.isfinite(getattr(self, name)).all() for name in (*_SUMS, "C", "gram")):
            raise InvalidInputError(
                "equations must be finite, got sums beyond the range of float64; rescale the features or "
                "the rewards"
            )
        total = ridge * self.episodes
        mean = LinearSystem(self.A, self.mean_gram, self.visits, ridge=total, name="A (the mean's equations)")
        second = mean
        if not self.shared:
            second = LinearSystem(
                self.C, self.gram, self.second_visits, ridge=total, name="C (the second moment's equations)"
            )
        w_mean = mean.solve(self.b)
        w_second = second.solve(self.second_rhs(w_mean))
        return Weights(w_mean, w_second, mean, second)

    def second_rhs(self, w_mean: Floats) -> Floats:
        """d = e + D w_J, of shape (l_M,)."""
        d: Floats = self.e + self.D @ w_mean
        return d

    def __repr__(self) -> str:
        return (
            f"MomentEquations({len(self.b)} and {len(self.e)} features, {self.episodes} episodes, "
            f"{self.terminated} terminated, {self.transitions:g} transitions, lam={self.lam}, "
            f"discount={self.discount})"
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """The solution of the equations, and the factored systems it came from."""

    mean: Floats  # (l_J,): w_J
    second: Floats  # (l_M,): w_M
    mean_system: LinearSystem
    second_system: LinearSystem
