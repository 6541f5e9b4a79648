"""Episodes that are recorded while many environments run side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk.errors import InvalidInputError
from policyrisk.trajectories import Trajectories

_PIECES = 1 << 12  # arrays that are kept before they are put together


class Log:
    """Which episode visited what and earned what, in the order of time; sorted by episode at the end."""

    def __init__(self, episodes: int) -> None:
        self.terminated: Bools = np.zeros(episodes, dtype=np.bool_)
        self._visits: list[tuple[Ints, npt.NDArray[Any]]] = []
        self._gains: list[tuple[Ints, Floats]] = []

    def visit(self, episodes: Ints, states: npt.NDArray[Any]) -> None:
        """Episodes (n,) are in states (n, dim): the first ones, or those after a step."""
        if self._visits and self._visits[0][1].shape[1] != states.shape[1]:
            raise InvalidInputError(
                f"states must keep their dimension, got {self._visits[0][1].shape[1]} and then "
                f"{states.shape[1]}; let project return as many coordinates every time"
            )
        self._visits.append((episodes, states))
        if len(self._visits) == _PIECES:
            self._visits = [_join(self._visits)]

    def earn(self, episodes: Ints, rewards: Floats) -> None:
        """Episodes (n,) earned rewards (n,)."""
        self._gains.append((episodes, rewards))
        if len(self._gains) == _PIECES:
            self._gains = [_join(self._gains)]

    def trajectories(self) -> Trajectories:
        """The episodes in the order of their numbers."""
        whose, states = _sorted(self._visits)
        _check_finite(whose, states, "observations must be finite", 0)
        earner, rewards = _sorted(self._gains)
        _check_finite(earner, rewards, "rewards must be finite", 1)
        lengths = np.bincount(earner, minlength=self.terminated.size)
        return Trajectories._view(states, rewards, lengths, self.terminated)


def _join(pieces: list[Any]) -> tuple[Ints, npt.NDArray[Any]]:
    return np.concatenate([numbers for numbers, _ in pieces]), np.concatenate([rows for _, rows in pieces])


def _sorted(pieces: list[Any]) -> tuple[Ints, npt.NDArray[Any]]:
    numbers, rows = _join(pieces)
    order = np.argsort(numbers, kind="stable")
    return numbers[order], rows[order]


def _check_finite(whose: Ints, values: npt.NDArray[Any], rule: str, first: int) -> None:
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        step = at - int(np.searchsorted(whose, whose[at])) + first
        raise InvalidInputError(
            f"{rule}, got {values[at].tolist()} after {step} steps of episode {whose[at]}; "
            "correct the environment, or leave that coordinate out with project"
        )
