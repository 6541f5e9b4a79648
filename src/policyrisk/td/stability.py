"""Which steps are stable.

Without rewards every update is linear, w ← (I − ξ A_k) w, and TD with the step ξ is stable where the product
of these shrinks: the distance between any two runs on the same episodes follows the same product, rewards or
not. So stability is measured, by running TD without rewards from random weights. Where all episodes terminate
small enough steps are stable: an update with ξ ≤ 1 / ‖Σ_t φ_t φ_tᵀ‖ lengthens no vector, for any λ and γ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk.errors import InvalidInputError
from policyrisk.td._kernels import ActiveRows, FeatureRows, FullRows

_FEWEST = 1000  # updates that a run has at least, so that a passing growth is not taken for instability
# Each step tried is 0.618 of the one before, no simple fraction: at ξ = 1/n a state visited n times is set to
# its target, not moved towards it.
_CUT, _CUTS = 0.618, 60
_RATIO = 1.1  # how closely the limit is found


def largest_stable_step(
    run: Callable[[float, Floats], None], size: int, updates: int, unstable: float
) -> float:
    """The largest stable step up to one that may not be, within 10%; 0 where no step is stable.

    ``run(step, w)`` makes ``updates`` updates without rewards, always the same, on w (size,) in place.
    """

    def stable(step: float) -> bool:
        w = np.random.default_rng(0).normal(size=size)
        before = np.linalg.norm(w)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(math.ceil(_FEWEST / updates)):
                run(step, w)
            return bool(np.linalg.norm(w) <= before)

    low = high = unstable
    for _ in range(_CUTS):
        if stable(low):
            break
        low, high = low * _CUT, low
    else:
        return 0.0
    while high / low > _RATIO:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def check_finite(rows: FeatureRows) -> None:
    """Raise where a feature is not finite: a likelier cause of nan than the step."""
    values = None if isinstance(rows, ActiveRows) else rows.phi if isinstance(rows, FullRows) else rows.values
    if values is not None and not np.isfinite(values).all():
        raise InvalidInputError("features must be finite, got nan or inf; repair them")
