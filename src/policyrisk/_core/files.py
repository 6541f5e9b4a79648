"""Files of others: arrays whose size is known before they are read, JSON of a bounded depth, whole writes.

A file may hold anything. An array is read after its size in the zip's directory and in its own header were
compared, and a small file that would unpack to far more than data do is refused. Nothing is unpickled.
"""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import secrets
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import as_path
from policyrisk.errors import InvalidInputError

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

# What NumPy, zipfile, zlib and the readers of JSON and of an array's header raise on bytes that are not what
# they were; RuntimeError is RecursionError, too.
_OF_PYTHON = OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, SyntaxError, RuntimeError
DAMAGE = (*_OF_PYTHON, MemoryError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)

UNPACKED = 1 << 29  # bytes that any file may unpack to
EXPANSION = (
    100  # times its size that a file may unpack to beyond that; zeros come to 200 to 1,000, data to 50
)
DEPTH = 100  # of lists and dictionaries in JSON
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, for anybody or for this user or file


def check_expansion(path: Path, unpacked: int) -> None:
    """Raise where a file would unpack to so many bytes that they cannot be data."""
    size = path.stat().st_size
    if unpacked > max(UNPACKED, EXPANSION * size):
        raise InvalidInputError(
            f"path must be a file of data, got {path}, whose {size:,} bytes would unpack to {unpacked:,}, "
            f"more than {EXPANSION} times as many; check where it comes from"
        )


def opened_zip(path: Path) -> zipfile.ZipFile:
    """A zip file to read from; an OSError where the name is that of a device, which may have no end."""
    if path.exists() and not path.is_file():
        raise OSError("it is no file, but a folder or a device")
    return zipfile.ZipFile(path)


def read_arrays(path: Path, names: Iterable[str] | None = None) -> Arrays:
    """The arrays of an npz file, or those of these names that it has; whatever is wrong is one of DAMAGE.

    NumPy's own reader is not used: it also accepts a plain array or a pickle, takes the last of two members
    with one name, and reserves whatever memory a header asks for.
    """
    with opened_zip(path) as archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
        wanted = sorted(set(there)) if names is None else [name for name in names if name in there]
        twice = [name for name in wanted if there.count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is there twice, and which of the two is meant is not said")
        check_expansion(path, sum(archive.getinfo(f"{name}.npy").file_size for name in wanted))
        return {name: _array(archive, name) for name in wanted}


def array_names(path: Path) -> list[str]:
    """The names of an npz file's arrays."""
    with opened_zip(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def array_type(path: Path, name: str) -> np.dtype[Any]:
    """The type of an npz file's array, by its header."""
    with opened_zip(path) as archive, archive.open(f"{name}.npy") as member:
        return _header(member)[1]


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """An array, once its header has been compared with the bytes that follow it."""
    with archive.open(f"{name}.npy") as member:
        shape, kind = _header(member)
        if kind.hasobject:
            raise ValueError(f"{name} holds objects, which would have to be unpickled")
        size = math.prod(shape) * kind.itemsize
        left = archive.getinfo(f"{name}.npy").file_size - member.tell()
        if size != left:
            raise ValueError(f"the header of {name} tells of {size} bytes, and {left} follow")
    with archive.open(f"{name}.npy") as member:
        array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    first = np.lib.format.read_magic(member) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, kind = read(member)
    return shape, kind


def from_json(text: str | bytes) -> Any:
    """What a text in JSON says; a ValueError where it says nothing, or lists stand in lists without end.

    >>> from_json('{"a": [1, null]}')
    {'a': [1, None]}
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("lists in lists without end") from error
    level = [found]
    for _ in range(DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, list | dict)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return found
    raise ValueError(f"more than {DEPTH} lists in one another")


def part_ending() -> str:
    """The ending of a temporary name that is this process's alone."""
    return f"{os.getpid()}.{secrets.token_hex(6)}.part"


def remove_remains(target: Path) -> None:
    """Remove what killed processes left of a file or a folder, beside it or in it."""
    pattern = f".{glob.escape(target.name)}.*.part"
    for remains in [*target.parent.glob(pattern), *target.glob(pattern)]:
        pid = remains.name.removeprefix(f".{target.name}.").split(".")[0]
        if pid.isdecimal():
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                if remains.is_dir():
                    shutil.rmtree(remains, ignore_errors=True)
                else:
                    remains.unlink(missing_ok=True)
            except OSError:  # somebody else's, and alive
                continue


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Call ``write`` on a temporary file beside ``path`` and rename it to ``path`` once it is complete."""
    target = as_path(path)
    if target.exists() and not target.is_file():
        kind = "folder" if target.is_dir() else "device"
        raise InvalidInputError(f"path must be a file, got the {kind} {target}; name a file in a folder")
    part = target.parent / f".{target.name}.{part_ending()}"
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
