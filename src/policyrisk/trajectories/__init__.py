"""Recorded episodes, and the sources that they come from."""

from policyrisk.trajectories.columns import ACTION_COLUMNS, COLUMNS
from policyrisk.trajectories.record import Trajectories
from policyrisk.trajectories.source import (
    Shortened,
    Source,
    batches,
    check_reiterable,
    coordinates_of,
    episode_numbers,
    gathered,
    pieces,
)
from policyrisk.trajectories.time_limit import TIME_LEFT, TimeLimit, as_time_limit, time_limit_of

__all__ = [
    "ACTION_COLUMNS",
    "COLUMNS",
    "TIME_LEFT",
    "Shortened",
    "Source",
    "TimeLimit",
    "Trajectories",
    "as_time_limit",
    "batches",
    "check_reiterable",
    "coordinates_of",
    "episode_numbers",
    "gathered",
    "pieces",
    "time_limit_of",
]
