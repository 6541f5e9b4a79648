"""What two fitted functions of the state say at some states, and with which error.

    J̃(x) = φ_J(x)ᵀ w_J                                    mean
    M̃(x) = φ_M(x)ᵀ w_M,        Ṽ(x) = M̃(x) − J̃(x)²        variance="second-moment"
    Ṽ(x) = φ_M(x)ᵀ w_V                                    variance="direct"

A :class:`Look` holds the features, J̃, Ṽ and the episodes behind them at some states; a quantity whose
gradient in the weights is (a_J φ_J, a_M φ_M) has variance a_J² s_JJ + 2 a_J a_M s_JM + a_M² s_MM there (see
:mod:`policyrisk.risk.error_bars`). Many states are looked at some at a time, so that no array becomes large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix
from policyrisk.features import Features
from policyrisk.risk.error_bars import ErrorBars
from policyrisk.risk.quantities import (
    Quantity,
    VarianceMethod,
    bootstrap_interval,
    gradient,
    student_interval,
    value,
)
from policyrisk.risk.support import Support

IntervalMethod: TypeAlias = Literal["student", "bootstrap"]

_CELLS = 2**21  # numbers that are formed at a time
_FEWEST, _MOST = 128, 2**16  # states at a time
_SPARSE = 4  # numbers that an entry of a sparse row takes: its value, its column and its row, and a count


@dataclass(frozen=True, eq=False)
class Moment:
    """A function of the state that was fitted, φ(x)ᵀ w, and what the data say about its features."""

    features: Features
    w: Floats  # (l,)
    support: Support


@dataclass(frozen=True, eq=False)
class Look:
    """What is seen at n states."""

    phi_mean: Matrix  # (n, l_J)
    phi_second: Matrix  # (n, l_M)
    J: Floats  # (n,), nan where unvisited
    V: Floats  # (n,)
    episodes: Floats  # (n,), 0 where unvisited
    variance_method: VarianceMethod

    def standard_error(self, of: Quantity, bars: ErrorBars) -> Floats:
        """The standard error of a quantity, of shape (n,), nan where unvisited."""
        a_J, a_M = gradient(of, self.J, self.V, self.variance_method)
        s_JJ, s_JM, s_MM = bars.quadratic(self.phi_mean, self.phi_second)
        squared = a_J**2 * s_JJ + 2 * a_J * a_M * s_JM + a_M**2 * s_MM
        # Σ is positive semi-definite up to rounding, which may leave a square of −1e-20.
        return np.where(self.episodes > 0, np.sqrt(np.maximum(squared, 0.0)), np.nan)

    def interval(self, of: Quantity, level: float, method: IntervalMethod, bars: ErrorBars) -> Floats:
        """The confidence interval of a quantity, of shape (n, 2)."""
        if method == "student":
            error = self.standard_error(of, bars)
            return student_interval(value(of, self.J, self.V), error, self.episodes, level)
        dJ, dM = bars.deviations(self.phi_mean, self.phi_second)
        return bootstrap_interval(of, self.J, self.V, dJ, dM, self.variance_method, level)


def looks(
    states: Floats, mean: Moment, second: Moment, variance_method: VarianceMethod, width: int = 0
) -> Iterator[Look]:
    """Looks at the states (n, dim) in their order, at least one; a state takes ``width`` more numbers."""
    rows = least = _states_at_a_time(max(mean.features.size, second.features.size, width))
    first = 0
    while first == 0 or first < len(states):
        part = states[first : first + rows]
        phi_J = mean.features(part)
        phi_M = phi_J if second.features is mean.features else second.features(part)
        episodes = mean.support.episodes_behind(phi_J)
        if second.support is not mean.support:
            episodes = np.minimum(episodes, second.support.episodes_behind(phi_M))
        J, of_second = np.asarray(phi_J @ mean.w), np.asarray(phi_M @ second.w)
        V = of_second if variance_method == "direct" else of_second - J**2
        unvisited = episodes == 0
        J, V = np.where(unvisited, np.nan, J), np.where(unvisited, np.nan, V)
        yield Look(phi_J, phi_M, J, V, episodes, variance_method)
        first += rows
        if sp.issparse(phi_J) and sp.issparse(phi_M):
            taken = _SPARSE * max(phi_J.nnz, phi_M.nnz) // rows
            # No more than twice as many at once: the next rows may be fuller.
            rows = max(least, min(2 * rows, _states_at_a_time(max(taken, width))))


def _states_at_a_time(numbers: int) -> int:
    """How many, where each takes so many numbers."""
    return min(max(_CELLS // max(numbers, 1), _FEWEST), _MOST)
