"""Policies that compiled code can follow, see :mod:`policyrisk.simulation.compiled`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from policyrisk._core.arrays import Floats, as_count, as_states
from policyrisk._core.random import below
from policyrisk.simulation.compiled import register_policy


class UniformTable(NamedTuple):
    """What the kernel knows of a uniform policy."""

    actions: int


@njit(cache=True)
def _choose(
    table: UniformTable, state: Any, s0: np.uint64, s1: np.uint64
) -> tuple[np.int64, np.uint64, np.uint64]:
    return below(table.actions, s0, s1)


register_policy(UniformTable, _choose)


@dataclass(frozen=True)
class UniformPolicy:
    """Every action with the same probability, whatever the state.

    Parameters
    ----------
    actions
        How many.

    Examples
    --------
    >>> UniformPolicy(actions=5)
    UniformPolicy(actions=5)
    """

    actions: int = 4

    def __post_init__(self) -> None:
        as_count(self.actions, "actions", 1)

    def probabilities(self, states: npt.ArrayLike) -> Floats:
        """π(a|x) = 1/actions, of shape (n, actions)."""
        return np.full((len(as_states(states)), self.actions), 1.0 / self.actions)

    def compiled(self) -> UniformTable:
        """The table that compiled code follows."""
        return UniformTable(self.actions)
