"""Files that hold one record: arrays and a header in plain values, with a version and a checksum.

The container is NumPy's npz, so that anyone can read the numbers; nothing is pickled. A file is written
under a temporary name and renamed, so that a reader sees the old one or the new one, never a part.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from policyrisk.errors import InvalidInputError

FORMAT = 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, for anybody or for this user or file
_HEADER, _CHECKSUM = "header", "checksum"
# What NumPy, zipfile, zlib and the reader of an array's header raise on bytes that are not what they were.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    AttributeError,
    TypeError,
    SyntaxError,
    RuntimeError,
    MemoryError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Call ``write`` on a temporary file beside ``path`` and rename it to ``path`` once it is complete."""
    target = Path(path)
    part = target.parent / f".{target.name}.{secrets.token_hex(6)}.part"
    try:
        file = part.open("xb")
    except OSError as error:
        raise InvalidInputError(
            f"path must be in a folder that can be written, got {target}: {error.strerror}; choose another"
        ) from error
    try:
        with file:
            write(file)
        part.replace(target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise InvalidInputError(
                f"path must be on a disk with room for it, got {target}: {error.strerror}; free some "
                "space or choose another place"
            ) from error
        raise


def write_record(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Write a record of the given kind; ``header`` holds plain values, ``arrays`` numbers and booleans."""
    text = json.dumps({"kind": kind, "format": FORMAT, **header}, allow_nan=True)
    columns = {_HEADER: np.frombuffer(text.encode(), dtype=np.uint8), **arrays}
    columns[_CHECKSUM] = np.frombuffer(_digest(columns), dtype=np.uint8)
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **columns))


def read_record(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The header and arrays of a record that :func:`write_record` wrote; anything else is an error."""
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        checksum = columns.pop(_CHECKSUM).tobytes()
        intact = checksum == _digest(columns)
        header = json.loads(columns.pop(_HEADER).tobytes().decode())
    except FileNotFoundError as error:
        raise InvalidInputError(
            f"path must name a file, got {path}, which does not exist; check it"
        ) from error
    except _DAMAGE as error:
        raise InvalidInputError(
            f"path must be a {kind} file of policyrisk, got {path}, which is none or is damaged "
            f"({error}); write it again with `save`"
        ) from error
    if not intact:
        raise InvalidInputError(
            f"path must be an unaltered {kind} file, got {path}, whose checksum does not fit; write it again"
        )
    if header.get("kind") != kind or header.get("format") != FORMAT:
        raise InvalidInputError(
            f"path must be a {kind} file of format {FORMAT}, got {header.get('kind')} of format "
            f"{header.get('format')} in {path}; use the version of policyrisk that wrote it"
        )
    return header, columns


def _digest(columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """SHA-256 of names, types, shapes and contents, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(columns):
        array = np.ascontiguousarray(columns[name])
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()
