"""A number with its error: the value, its standard error, and the interval value ± t · standard error.

t is Student's quantile with as many degrees of freedom as independent episodes stand behind the standard
error, less one. Few episodes make a standard error that is itself uncertain, and the normal quantile would
then give intervals that are too narrow; with many episodes the two agree.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit

from policyrisk._core.arrays import Floats, as_number
from policyrisk._core.text import NONE, number
from policyrisk.errors import InvalidInputError


def as_level(level: float) -> float:
    """A checked confidence level, in (0, 1)."""
    level = as_number(level, "level", 0.0, 1.0, open_low=True, remedy="pass a share such as 0.95")
    if level == 1.0:
        raise InvalidInputError(
            "level must be below 1, got 1.0, whose interval has no end; pass a share such as 0.95"
        )
    return level


def student_quantile(level: float, episodes: npt.ArrayLike) -> Floats:
    """t of a two-sided interval at this level with ``episodes`` behind it, of the shape of ``episodes``.

    Degrees of freedom are max(episodes − 1, 1): with one or two episodes the interval is very wide.

    >>> student_quantile(0.95, [2, 10, 1e9]).round(2)
    array([12.71,  2.26,  1.96])
    """
    dof = np.maximum(np.asarray(episodes, dtype=np.float64) - 1.0, 1.0)
    quantile: Floats = np.asarray(stdtrit(dof, 0.5 + as_level(level) / 2))
    return quantile


def student_interval(value: Floats, standard_error: Floats, episodes: Floats, level: float) -> Floats:
    """value ± t · standard_error with ``episodes`` behind each, all of shape (n,): of shape (n, 2)."""
    half = student_quantile(level, episodes) * standard_error
    return np.column_stack([value - half, value + half])


class Estimate(float):
    """A float that knows its ``standard_error`` and its interval ``low`` to ``high`` (nan where unknown).

    >>> mean = Estimate.of(2.0, standard_error=0.5, episodes=1000)
    >>> mean
    2 ± 0.5 (1.0188 to 2.9812)
    >>> mean + 1, mean.low < 1.02, mean.value
    (3.0, True, 2.0)
    """

    __slots__ = ("high", "low", "standard_error")
    standard_error: float
    low: float
    high: float

    def __new__(
        cls, value: float, standard_error: float = math.nan, low: float = math.nan, high: float = math.nan
    ) -> Estimate:
        """A float with three more."""
        estimate = super().__new__(cls, value)
        estimate.standard_error, estimate.low, estimate.high = float(standard_error), float(low), float(high)
        return estimate

    @classmethod
    def of(cls, value: float, standard_error: float, episodes: float, level: float = 0.95) -> Estimate:
        """value ± t · standard_error with ``episodes`` independent ones behind it."""
        half = float(student_quantile(level, episodes)) * standard_error
        return cls(value, standard_error, value - half, value + half)

    @property
    def value(self) -> float:
        """The number alone."""
        return float(self)

    @property
    def probability_positive(self) -> float:
        """Φ(value / standard_error), that the truth is above 0; 0 or 1 for an error of 0, nan without one.

        >>> round(Estimate(1.96, 1.0).probability_positive, 3), Estimate(-1.0, 0.0).probability_positive
        (0.975, 0.0)
        """
        error = self.standard_error
        return float(self.value >= 0) if error == 0.0 else float(ndtr(self.value / error))

    @property
    def cells(self) -> tuple[str, str, str]:
        """Value, standard error and interval as the cells of a table."""
        unknown = math.isnan(self.standard_error)
        interval = NONE if unknown else f"{number(self.low)} to {number(self.high)}"
        return number(self), number(self.standard_error, 3), interval

    def __repr__(self) -> str:
        value, error, interval = self.cells
        return value if math.isnan(self.standard_error) else f"{value} ± {error} ({interval})"

    def __reduce__(self) -> tuple[type[Estimate], tuple[float, ...]]:
        return Estimate, tuple(self.to_dict().values())

    def to_dict(self) -> dict[str, float]:
        """The four numbers by name."""
        names = ("value", "standard_error", "low", "high")
        return {name: getattr(self, name) for name in names}
