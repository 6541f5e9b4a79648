"""Recorded episodes from elsewhere: Parquet, CSV and npz files, data frames, Minari's datasets.

Minari and PyArrow are imported by what uses them, not before.
"""

from policyrisk.readers.any_source import read
from policyrisk.readers.csv import read_csv
from policyrisk.readers.frames import read_frame
from policyrisk.readers.minari_datasets import read_minari
from policyrisk.readers.npz import read_npz, write_npz
from policyrisk.readers.parquet import read_parquet, write_parquet
from policyrisk.readers.stream import Counts, Stream

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
