"""Step sizes that fall from update to update, and which steps are stable.

Without rewards every update is linear, w ← (I − ξ A_k) w, and TD with the step ξ is stable where the product
of these shrinks: the distance between any two runs on the same episodes follows the same product, rewards or
not. So stability is measured, by running TD without rewards from random weights. Where all episodes terminate
small enough steps are stable: an update with ξ ≤ 1 / ‖Σ_t φ_t φ_tᵀ‖ lengthens no vector, for any λ and γ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_array, as_number
from policyrisk.errors import InvalidInputError

_FEWEST = 1000  # updates that a run has at least, so that a passing growth is not taken for instability
# Each step tried is 0.618 of the one before, no simple fraction: at ξ = 1/n a state visited n times is set to
# its target, not moved towards it.
_CUT, _CUTS = 0.618, 60
_RATIO = 1.1  # how closely the limit is found


@dataclass(frozen=True)
class StepSize:
    """ξ_k = scale / (1 + k/decay)^power for update k = 0, 1, …

    Parameters
    ----------
    scale
        The first step.
    decay
        The number of updates after which the step starts to fall.
    power
        How fast it falls; 0 is a constant step.

    Examples
    --------
    >>> step = StepSize(0.1, decay=1000, power=1.0)
    >>> step([0, 1000, 9000])
    array([0.1 , 0.05, 0.01])
    >>> step.satisfies_theorem, StepSize(0.1, power=0.5).satisfies_theorem
    (True, False)
    """

    scale: float
    decay: float = 1000.0
    power: float = 1.0

    def __post_init__(self) -> None:
        checked = {
            "scale": as_number(self.scale, "scale", 0.0, open_low=True, remedy="pass a positive step"),
            "decay": as_number(self.decay, "decay", 0.0, open_low=True, remedy="pass a number of updates"),
            "power": as_number(
                self.power, "power", 0.0, 1.0, remedy="above 1/2 converges by Theorem 10; 0 is constant"
            ),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __call__(self, k: npt.ArrayLike) -> Floats:
        """ξ_k, of the shape of k."""
        updates = as_array(k, "k", "numbers of updates").astype(np.float64)
        if not (updates >= 0).all():
            raise InvalidInputError("k must be numbers of updates from 0 on, got others; count them")
        falling: Floats = (1.0 + updates / self.decay) ** self.power
        return self.scale / falling

    @property
    def satisfies_theorem(self) -> bool:
        """Whether Σ ξ_k = ∞ and Σ ξ_k² < ∞, the conditions of Theorem 10: power in (½, 1]."""
        return self.power > 0.5


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
