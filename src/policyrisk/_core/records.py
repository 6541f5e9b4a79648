"""Files that hold one value: records, arrays and plain values, with a version and a checksum.

The container is NumPy's npz, so that anyone can read the numbers; nothing is pickled. A *record* is a frozen
dataclass whose class says so (:func:`record`), and is made again by calling the class. A value goes into a
file as a description in plain values (JSON, in the array ``header``) and named arrays:

    array, sparse matrix          arrays named by where they stand, such as ``error_bars.mean``; of a
                                  symmetric matrix the lower triangle
    record                        {"record": its class, "fields": {name: …}}
    feature map                   {"spec": what its spec() gives}
    tuple, dict                   {"tuple": […]}, {"dict": [[key, …], …]}
    list, number, text, None      as they are
    the same object once more     {"same": where it stood first}

A file is written under a temporary name and renamed, so that a reader sees the old one or the new one, never
a part. FORMAT 1 had a layout of its own for each kind of file; whoever loads such a kind brings the function
that reads it.
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
from dataclasses import fields, is_dataclass
from operator import add
from typing import IO, Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import as_path, from_triangle, is_sparse, is_symmetric, lower_triangle
from policyrisk.errors import InvalidInputError, MismatchError, PolicyRiskError

FORMAT = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, for anybody or for this user or file
_HEADER, _CHECKSUM = "header", "checksum"
_PARTS = ("data", "indices", "indptr")  # of a sparse matrix
# What NumPy, zipfile, zlib and the reader of an array's header raise on bytes that are not what they were.
_OF_PYTHON = OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, SyntaxError, RuntimeError
DAMAGE = (*_OF_PYTHON, MemoryError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Header: TypeAlias = dict[str, Any]
T = TypeVar("T")

_records: dict[str, Callable[..., Any]] = {}  # the classes that may appear in a file, by their names
_from_spec: Callable[[Mapping[str, Any]], Any] | None = None  # makes feature maps


def record(cls: type[T]) -> type[T]:
    """Let a dataclass appear in files, under its name: a decorator."""
    if _records.setdefault(cls.__name__, cls) is not cls:
        raise TypeError(f"two record classes are called {cls.__name__}")
    return cls


class Additive:
    """A dataclass whose values add field by field: by +, or by the rule that ``_rules`` has for a field."""

    _rules: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {}

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        both = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return type(self)(**{name: self._rules.get(name, add)(*pair) for name, pair in both.items()})


def add_each(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sums of two tuples' items: a rule of :class:`Additive`."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def makes_features(function: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """Let a function make the feature maps of files again, from their ``spec()``: a decorator."""
    global _from_spec
    _from_spec = function
    return function


def save(path: str | os.PathLike[str], kind: str, value: Any) -> None:
    """Write a value to a file of the given kind; see :func:`load`."""
    arrays: Arrays = {}
    text = json.dumps({"kind": kind, "format": FORMAT, "value": pack(value, arrays)})
    columns = {_HEADER: np.frombuffer(text.encode(), dtype=np.uint8), **arrays}
    columns[_CHECKSUM] = np.frombuffer(_digest(columns), dtype=np.uint8)
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **columns))


def load(
    path: str | os.PathLike[str],
    kind: str,
    cls: type[T],
    format_1: Callable[[Header, Arrays], T] | None = None,
) -> T:
    """The value, of class ``cls``, that :func:`save` wrote; anything else is an error.

    ``format_1`` makes the value from the header and the arrays of a file of format 1.
    """
    header, arrays = _read(path, kind)
    found = header["format"]
    if header["kind"] != kind or not (found == FORMAT or (found == 1 and format_1 is not None)):
        newer = isinstance(found, int) and found > FORMAT
        raise InvalidInputError(
            f"path must be a {kind} file of format {FORMAT}, got {header['kind']} of format {found} in "
            f"{path}; {'update policyrisk' if newer else 'use the version of policyrisk that wrote it'}"
        )
    try:
        older = format_1 if found == 1 else None
        value = older(header, arrays) if older else unpack(header["value"], arrays)
        if not isinstance(value, cls):
            raise TypeError(f"{type(value).__name__} for {cls.__name__}")
    except MismatchError:
        raise  # what was given does not go with the file, which is in order
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidInputError(
            f"path must be a {kind} file of this version of policyrisk, got {path}, whose contents do not "
            f"fit ({error}); use the version that wrote it"
        ) from error
    return value


def pack(value: Any, arrays: Arrays, at: str = "", seen: dict[int, str] | None = None) -> Any:
    """A value in plain values; its arrays go into ``arrays``, named from ``at`` on.

    >>> arrays = {}
    >>> pack([1.5, (None, np.ones(2))], arrays), list(arrays)
    ([1.5, {'tuple': [None, {'array': '1.1'}]}], ['1.1'])
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        items = [pack(item, arrays, _below(at, i), seen) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return {"dict": [[key, pack(item, arrays, _below(at, key), seen)] for key, item in value.items()]}
    if id(value) in seen:
        return {"same": seen[id(value)]}
    seen[id(value)] = at
    name = at or "value"
    if isinstance(value, np.ndarray):
        if value.ndim == 2 and len(value) > 1 and value.flags.c_contiguous and is_symmetric(value):
            arrays[name] = lower_triangle(value)
            return {"symmetric": name, "size": len(value)}
        arrays[name] = value
        return {"array": name}
    if is_sparse(value):
        rows = sp.csr_array(value)
        arrays |= {_below(name, part): getattr(rows, part) for part in _PARTS}
        return {"sparse": name, "shape": list(rows.shape)}
    if type(value) in _records.values() and is_dataclass(value):
        kept = {
            field.name: pack(getattr(value, field.name), arrays, _below(at, field.name), seen)
            for field in fields(value)
        }
        return {"record": type(value).__name__, "fields": kept}
    if hasattr(value, "spec"):
        return {"spec": value.spec()}
    raise InvalidInputError(
        f"features must have a spec() to be saved, got {type(value).__name__}; use one of the library's "
        "classes, or save the arrays yourself"
    )


def unpack(packed: Any, arrays: Arrays, at: str = "", made: dict[str, Any] | None = None) -> Any:
    """The way back from :func:`pack`.

    >>> arrays = {}
    >>> unpack(pack((1, [np.arange(2)]), arrays), arrays)
    (1, [array([0, 1])])
    """
    made = {} if made is None else made
    if isinstance(packed, list):
        return [unpack(item, arrays, _below(at, i), made) for i, item in enumerate(packed)]
    if not isinstance(packed, dict):
        return packed
    if "tuple" in packed:
        return tuple(unpack(packed["tuple"], arrays, at, made))
    if "dict" in packed:
        return {key: unpack(item, arrays, _below(at, key), made) for key, item in packed["dict"]}
    if "same" in packed:
        return made[packed["same"]]
    made[at] = value = _unpack_object(packed, arrays, at, made)
    return value


def _unpack_object(packed: dict[str, Any], arrays: Arrays, at: str, made: dict[str, Any]) -> Any:
    if "array" in packed:
        return arrays[packed["array"]]
    if "symmetric" in packed:
        return from_triangle(arrays[packed["symmetric"]], int(packed["size"]))
    if "sparse" in packed:
        parts = tuple(arrays[_below(packed["sparse"], part)] for part in _PARTS)
        return sp.csr_array(parts, shape=tuple(packed["shape"]))
    if "spec" in packed and _from_spec is not None:
        return _from_spec(packed["spec"])
    if packed["record"] not in _records:
        raise ValueError(f"a record {packed['record']!r}, which is unknown here")
    values = {name: unpack(item, arrays, _below(at, name), made) for name, item in packed["fields"].items()}
    return _records[packed["record"]](**values)


def unboxed(array: npt.NDArray[Any]) -> Any:
    """The number in an array of shape (), as format 1 kept it; other arrays as they are."""
    return array.item() if array.ndim == 0 else array


def _below(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Call ``write`` on a temporary file beside ``path`` and rename it to ``path`` once it is complete."""
    target = as_path(path)
    if target.is_dir():
        raise InvalidInputError(f"path must be a file, got the folder {target}; name a file in it")
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


def _read(path: str | os.PathLike[str], kind: str) -> tuple[Header, Arrays]:
    """The header, with its kind and its format, and the arrays of an intact file."""
    try:
        with as_path(path).open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        checksum = columns.pop(_CHECKSUM).tobytes()
        intact = checksum == _digest(columns)
        header: Header = json.loads(columns.pop(_HEADER).tobytes().decode())
        header = {"kind": None, "format": None, **header}
    except FileNotFoundError as error:
        raise InvalidInputError(
            f"path must name a file, got {path}, which does not exist; check it"
        ) from error
    except PolicyRiskError:
        raise
    except DAMAGE as error:
        raise InvalidInputError(
            f"path must be a {kind} file of policyrisk, got {path}, which is none or is damaged "
            f"({error}); write it again with `save`"
        ) from error
    if not intact:
        raise InvalidInputError(
            f"path must be an unaltered {kind} file, got {path}, whose checksum does not fit; write it again"
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
