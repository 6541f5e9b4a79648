"""Episodes in NumPy's npz: the four arrays of :class:`~policyrisk.trajectories.Trajectories` by name."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from policyrisk._core.records import DAMAGE, write_atomically
from policyrisk.errors import InvalidInputError
from policyrisk.readers.files import check_target
from policyrisk.readers.stream import Piece, Stream
from policyrisk.trajectories import COLUMNS, Source, Trajectories, batches


def read_npz(path: str | os.PathLike[str]) -> Stream:
    """A stream of one batch: an npz file with the arrays states, rewards, lengths and terminated.

    Their shapes are those of :class:`~policyrisk.trajectories.Trajectories`; other arrays are left alone, and
    nothing is unpickled.

    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> write_npz(Trajectories([[0], [1]], [1.0], [1], [True]), f"{folder.name}/log.npz")
    >>> read_npz(f"{folder.name}/log.npz").load()
    Trajectories(1 episodes, 1 terminated, 1 transitions, dim 1)
    >>> folder.cleanup()
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInputError(f"path must name an npz file, got {file}, which is none")

    def parts() -> Iterator[Piece]:
        yield Piece(_load(file), str(file))

    return Stream(str(file), parts)


def _load(file: Path) -> Trajectories:
    try:
        # Opened as a zip first: NumPy would take a plain array, or a pickle, for what they are.
        with zipfile.ZipFile(file):
            pass
        with np.load(file, allow_pickle=False) as archive:
            there = archive.files
            arrays = {name: archive[name] for name in COLUMNS if name in there}
    except DAMAGE as error:
        raise InvalidInputError(
            f"path must be an npz file of plain arrays, got {file}, which is none or is damaged ({error}); "
            "write it again with numpy.savez"
        ) from error
    lacking = [name for name in COLUMNS if name not in arrays]
    if lacking:
        raise InvalidInputError(
            f"path must have the arrays {', '.join(COLUMNS)}, got {', '.join(there) or 'none'} in {file}; "
            f"add {', '.join(lacking)}"
        )
    try:
        return Trajectories(**arrays)
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}") from error


def write_npz(data: Source, path: str | os.PathLike[str]) -> None:
    """Write Trajectories, or a stream of them, as an npz file that :func:`read_npz` reads back exactly."""
    check_target(path, "data.npz")
    all_of_it = Trajectories.concatenate(batches(data))
    columns = {name: getattr(all_of_it, name) for name in COLUMNS}
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **columns))
