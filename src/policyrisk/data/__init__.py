"""Recorded episodes: the record of them, and readers of Parquet, CSV and npz files, data frames and Minari.

Minari and PyArrow are imported by what uses them, not before.
"""

from policyrisk.data.csv import read_csv
from policyrisk.data.minari_datasets import read_minari
from policyrisk.data.npz import read_npz, write_npz
from policyrisk.data.parquet import read_parquet, write_parquet
from policyrisk.data.read import read, read_frame
from policyrisk.data.source import (
    Shortened,
    Source,
    batches,
    check_reiterable,
    coordinates_of,
    episode_numbers,
    gathered,
    pieces,
)
from policyrisk.data.stream import Counts, Stream
from policyrisk.data.trajectories import (
    ACTION_COLUMNS,
    ALL_COLUMNS,
    COLUMNS,
    TIME_LEFT,
    TimeLimit,
    Trajectories,
    as_time_limit,
    time_limit_of,
)

__all__ = [
    "ACTION_COLUMNS",
    "ALL_COLUMNS",
    "COLUMNS",
    "TIME_LEFT",
    "Counts",
    "Shortened",
    "Source",
    "Stream",
    "TimeLimit",
    "Trajectories",
    "as_time_limit",
    "batches",
    "check_reiterable",
    "coordinates_of",
    "episode_numbers",
    "gathered",
    "pieces",
    "read",
    "read_csv",
    "read_frame",
    "read_minari",
    "read_npz",
    "read_parquet",
    "time_limit_of",
    "write_npz",
    "write_parquet",
]
