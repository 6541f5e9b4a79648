"""Readers of recorded episodes: Parquet, CSV and npz files, data frames, Minari's datasets.

Each returns a :class:`Stream`, which reads its files anew in every pass; ``.load()`` puts it into memory.
"""

from policyrisk.data import (
    Counts,
    Stream,
    read,
    read_csv,
    read_frame,
    read_minari,
    read_npz,
    read_parquet,
    write_npz,
    write_parquet,
)

__all__ = [
    "Counts",
    "Stream",
    "read",
    "read_csv",
    "read_frame",
    "read_minari",
    "read_npz",
    "read_parquet",
    "write_npz",
    "write_parquet",
]
