"""Step sizes that fall from update to update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Floats, as_array, as_number
from policyrisk.errors import InvalidInputError


@dataclass(frozen=True)
class StepSize:
    """ξ_k = scale / (1 + k/decay)^power for update k = 0, 1, …

    ``decay`` is the number of updates after which the step starts to fall; power=0 is a constant step.

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
