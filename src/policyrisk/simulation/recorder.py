"""Records of episodes while environments run side by side: everything, or the sums of their rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.frames import Coordinates
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError

# The episodes' numbers (n,), and what goes with them: arrays of n rows, or None.
RecordedColumns: TypeAlias = "tuple[Any, ...]"
Taken: TypeAlias = "tuple[npt.NDArray[Any] | None, Floats | None]"  # actions and propensities
_PIECES = 1 << 12  # arrays that are kept before they are put together


class EpisodeRecorder:
    """Which episode visited what and earned what, in the order of time; sorted by episode at the end."""

    def __init__(self, episodes: int) -> None:
        self.terminated: Bools = np.zeros(episodes, dtype=np.bool_)
        self._visits: list[RecordedColumns] = []
        self._gains: list[RecordedColumns] = []  # rewards, actions and propensities

    def visit(self, episodes: Ints, states: Callable[[], npt.NDArray[Any]]) -> None:
        """Episodes (n,) are in states() (n, dim): the first ones, or those after a step."""
        rows = states()
        before = rows if not self._visits else self._visits[0][1]
        if before is not None and before.shape[1] != rows.shape[1]:
            raise InvalidInputError(
                f"states must keep their dimension, got {before.shape[1]} and then "
                f"{rows.shape[1]}; let project return as many coordinates every time"
            )
        self._visits.append((episodes, rows))
        if len(self._visits) == _PIECES:
            self._visits = [_join(self._visits)]

    def earn(self, episodes: Ints, rewards: Floats, taken: Callable[[], Taken]) -> None:
        """Episodes (n,) earned rewards (n,) by their next step, in which the actions taken() were taken."""
        self._gains.append((episodes, rewards, *taken()))
        if len(self._gains) == _PIECES:
            self._gains = [_join(self._gains)]

    def trajectories(self, names: Sequence[str] | None = None) -> Trajectories:
        """The episodes in the order of their numbers; ``names`` are the coordinates', where they have any."""
        whose, states = _sorted(self._visits)
        _check_finite(whose, states, "observations must be finite", 0)
        nothing = np.empty(0, dtype=np.int64), np.empty(0), None, None
        earner, rewards, actions, propensities = _sorted(self._gains or [nothing])
        _check_finite(earner, rewards, "rewards must be finite", 1)
        lengths = np.bincount(earner, minlength=self.terminated.size)
        called = None if names is None else Coordinates.of(names, states.shape[1])
        return Trajectories._view(
            states, rewards, lengths, self.terminated, actions, propensities, coordinates=called
        )


class ReturnRecorder:
    """The discounted sums of the rewards, Σ_t γ^t r_t, and no states."""

    def __init__(self, episodes: int, discount: float) -> None:
        self.returns: Floats = np.zeros(episodes)
        self.lengths: Ints = np.zeros(episodes, dtype=np.int64)
        self.terminated: Bools = np.zeros(episodes, dtype=np.bool_)
        self._discount = discount
        self._weights = np.ones(episodes)  # γ^t

    def visit(self, episodes: Ints, states: Callable[[], npt.NDArray[Any]]) -> None:
        """States are not kept, and are not asked for."""

    def earn(self, episodes: Ints, rewards: Floats, taken: Callable[[], Taken]) -> None:
        """Episodes (n,) earned rewards (n,) by their next step; actions are not kept."""
        self.returns[episodes] += self._weights[episodes] * rewards
        self._weights[episodes] *= self._discount
        self.lengths[episodes] += 1


def _join(pieces: list[RecordedColumns]) -> RecordedColumns:
    """The rows of all pieces; of a column that one of them lacks, none."""
    columns: Any = zip(*pieces, strict=True)
    return tuple(all_or_none(parts) for parts in columns)


def all_or_none(parts: Sequence[Any]) -> npt.NDArray[Any] | None:
    """All rows of some arrays; None where one of them is."""
    return None if any(part is None for part in parts) else np.concatenate(parts)


def _sorted(pieces: list[RecordedColumns]) -> Any:
    columns = _join(pieces)
    order = np.argsort(columns[0], kind="stable")
    return tuple(None if column is None else column[order] for column in columns)


def _check_finite(whose: Ints, values: npt.NDArray[Any], rule: str, first: int) -> None:
    finite = np.isfinite(values) if values.ndim == 1 else np.isfinite(values).all(axis=1)
    if not finite.all():
        at = int(finite.argmin())
        step = at - int(np.searchsorted(whose, whose[at])) + first
        raise InvalidInputError(
            f"{rule}, got {values[at].tolist()} after {step} steps of episode {whose[at]}; "
            "correct the environment, or leave that coordinate out with project"
        )
