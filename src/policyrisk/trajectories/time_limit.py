"""The step at which a task ends: a time limit as it may be given, and as the episodes tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np

from policyrisk._core.arrays import Bools, Ints, as_count
from policyrisk.errors import InvalidInputError

TIME_LEFT = "time_left"  # what the coordinate is called that a time limit adds
TimeLimit: TypeAlias = 'int | Literal["end"]'


def as_time_limit(value: object) -> TimeLimit:
    """A time limit as it may be given, or an error."""
    if isinstance(value, str) and value == "end":
        return "end"
    if isinstance(value, str):
        raise InvalidInputError(
            f'time_limit must be "end" or a number of steps, got {value!r}; pass for example 200'
        )
    return as_count(value, "time_limit", 1)


def time_limit_of(value: TimeLimit, episodes: Iterable[tuple[Ints, Bools]]) -> int:
    """A time limit in steps; "end" is that of ``episodes``, lengths and where they terminated, in parts."""
    limit = as_time_limit(value)
    if limit != "end":
        return limit
    longest, cuts = 0, set[int]()
    for lengths, terminated in episodes:
        longest = max(longest, int(lengths.max(initial=0)))
        cuts.update(np.unique(lengths[~terminated]).tolist())
    if cuts == {longest}:
        return longest
    if not cuts:
        raise InvalidInputError(
            'time_limit="end" must find episodes that were cut off at their time limit, got none, all '
            "terminated; leave it out, or pass the limit as a number of steps"
        )
    raise InvalidInputError(
        'time_limit="end" must find all cut-off episodes cut off after the same number of steps, and none '
        f"longer, got {min(cuts)} to {max(cuts)} steps and {longest} in the longest episode; pass the "
        f"limit as a number, as in time_limit={max(max(cuts), longest)}"
    )
