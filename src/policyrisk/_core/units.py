"""The unit of rewards that are very large or very small: a power of two, so that no digit is lost.

Error bars are made of the fourth powers of returns, and their skewness of the eighth ones: of rewards of
1e100 these are no numbers any more. Such rewards are divided by their unit on the way in, all sums are of
what is then about 1, and the answers are multiplied again on the way out. The same rewards in other units
(dollars, cents) therefore give the same bits but for the exponent. Where returns are of an ordinary size, the
unit is 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from policyrisk.errors import InvalidInputError

_ORDINARY = 20  # binary orders of magnitude from 1 up to which the unit is 1
_MOST = 400  # from where on squares of the answers would leave the range of float64, or soon would


def unit_of(largest: float) -> float:
    """The unit of rewards and returns that are at most so large.

    >>> unit_of(0.0), unit_of(1e6), unit_of(2.0**40), unit_of(3e-40) == 2.0**-131
    (1.0, 1.0, 2199023255552.0, True)
    """
    exponent = math.frexp(largest)[1]
    if not math.isfinite(largest) or abs(exponent) > _MOST:
        raise InvalidInputError(
            f"rewards must make returns from {2.0**-_MOST:.0e} to {2.0**_MOST:.0e} in size at the most, so "
            f"that their squares are numbers too, got {largest:g}; rescale the rewards"
        )
    return 1.0 if abs(exponent) <= _ORDINARY else math.ldexp(1.0, exponent)


def magnitude(*values: npt.ArrayLike) -> float:
    """A power of two near the largest of some numbers in size; 1 where none is finite and not 0.

    >>> magnitude(-5.0, 0.1), magnitude(0.0, math.nan)
    (8.0, 1.0)
    """
    sizes = np.abs(np.concatenate([np.ravel(value) for value in values]))
    largest = float(sizes[np.isfinite(sizes)].max(initial=0.0))
    return math.ldexp(1.0, max(min(math.frexp(largest)[1], 1000), -1000)) if largest else 1.0
