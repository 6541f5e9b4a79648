"""A distribution with finitely many values, as the steps of its CDF."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_array, as_floats, freeze
from policyrisk.errors import InvalidInputError

# Probabilities are sums of many roundings: F counts as having reached q when it is this close below it.
SLACK = 1e-12


@dataclass(frozen=True, eq=False)
class StepFunction:
    """F(z) = cumulative[i] for values[i] ≤ z < values[i + 1].

    >>> die = StepFunction(np.arange(1.0, 7.0), np.arange(1, 7) / 6)
    >>> float(die.cdf(2.0)), float(die.quantile(0.5)), float(die.cvar(0.5))
    (0.3333333333333333, 3.0, 2.0)
    """

    values: Floats  # (m,), rising; a bracket's may be at an end of its support several times
    cumulative: Floats  # (m,), not falling, 1 at last

    def __post_init__(self) -> None:
        freeze(self)

    def cdf(self, z: npt.ArrayLike) -> Floats:
        """F(z) = P(B ≤ z), of z's shape; a z within a rounding of a value counts as that value."""
        z = as_array(z, "z", "numbers")
        near = z + 1e-9 * np.min(np.diff(self.values), initial=1.0)
        F = np.append(0.0, self.cumulative)[np.searchsorted(self.values, near, side="right")]
        return np.where(np.isnan(near), np.nan, F)[()]

    def quantile(self, q: npt.ArrayLike) -> Floats:
        """The smallest value with F ≥ q, of q's shape."""
        return self.values[self._reached(as_levels(q))]

    def cvar(self, q: npt.ArrayLike) -> Floats:
        """The mean of the worst (smallest) q of the values, of q's shape.

        With θ the quantile it is θ − E[(θ − B)⁺]/q, and E[(θ − B)⁺] is the area under F left of θ.
        """
        levels = as_levels(q)
        reached = self._reached(levels)
        area = np.append(0.0, np.cumsum(self.cumulative[:-1] * np.diff(self.values)))
        return self.values[reached] - area[reached] / levels

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return float(self.values[-1] - self.cumulative[:-1] @ np.diff(self.values))

    def _reached(self, levels: Floats) -> npt.NDArray[np.intp]:
        return np.minimum(np.searchsorted(self.cumulative, levels - SLACK), self.values.size - 1)


def as_levels(q: npt.ArrayLike) -> Floats:
    """Probabilities in (0, 1] for a quantile, of any shape."""
    levels = as_floats(q, "q", np.shape(as_array(q, "q", "probabilities")))
    if not ((levels > 1e-9) & (levels <= 1.0)).all():
        raise InvalidInputError(
            f"q must be a probability above 1e-9 and at most 1, got {levels.min():g} to {levels.max():g}; "
            "pass 0.05 for the worst 5 %"
        )
    return levels
