"""Episodes from elsewhere: Gymnasium environments, Parquet, CSV and npz files, Minari's datasets.

Gymnasium, Minari and PyArrow are imported by what uses them, not before.
"""

from policyrisk.readers.door import read
from policyrisk.readers.minari_datasets import read_minari
from policyrisk.readers.npz import read_npz, write_npz
from policyrisk.readers.parquet import read_parquet, write_parquet
from policyrisk.readers.rollouts import rollout
from policyrisk.readers.stream import Counts, Stream
from policyrisk.readers.text import read_csv

__all__ = [
    "Counts",
    "Stream",
    "read",
    "read_csv",
    "read_minari",
    "read_npz",
    "read_parquet",
    "rollout",
    "write_npz",
    "write_parquet",
]
