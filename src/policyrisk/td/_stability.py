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

_FEWEST = 1000  # updates that a run has at least, so that a passing growth is not taken for instability
_CUT, _CUTS = (
    0.618,
    60,
)  # steps that are no simple fractions: at ξ = 1/n a state seen n times is set, not moved
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
