"""A folder of results that is complete or not there.

Files are written to a hidden folder beside it. Once all of them are there, that folder becomes the new one;
where one exists already, each file replaces its namesake in it by a rename, the last one the file that says
that the result is complete, and other files there stay. A run that fails leaves everything as it was;
what one that was killed left is removed by the next.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from policyrisk.errors import InvalidInputError

_REMEDY = "choose another --out"


def check_folder(folder: Path) -> None:
    """Raise early where the folder could not be written later."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"out must be a folder, got {folder}, which is a file; {_REMEDY}")
    parent = folder.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InvalidInputError(f"out must be a folder, got {folder} inside of {parent}, a file; {_REMEDY}")


def _check_no_folders(part: Path, target: Path) -> None:
    """Raise before the first file is moved, where one of them could not be."""
    for file in part.iterdir():
        if (target / file.name).is_dir():
            raise InvalidInputError(f"out must have no folder named {file.name}, got {target}; {_REMEDY}")


def _remove_remains(target: Path) -> None:
    """Remove what runs that were killed left beside the folder."""
    for remains in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        pid = remains.name.removeprefix(f".{target.name}.").split(".")[0]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(remains, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


@contextmanager
def complete_folder(folder: Path, last: str) -> Iterator[Path]:
    """A place to write to, whose files are in ``folder`` after all went well, ``last`` being the last."""
    check_folder(folder)
    target = folder.absolute()
    made = [parent for parent in target.parents if not parent.exists()]
    part = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(6)}.part"
    _remove_remains(target)
    try:
        part.mkdir(parents=True)
        yield part
        if target.exists():
            _check_no_folders(part, target)
            for file in sorted(part.iterdir(), key=lambda file: file.name == last):
                file.replace(target / file.name)
        else:
            part.rename(target)
            made = []
    except OSError as error:
        raise InvalidInputError(
            f"out must be a folder that can be written, got {folder}: {error.strerror or error}; {_REMEDY}"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for parent in made:  # those that were made for it, if nothing is in them
            try:
                parent.rmdir()
            except OSError:
                break
