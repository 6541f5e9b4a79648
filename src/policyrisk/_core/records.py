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
a part. Its checksum shows damage and no more: anybody can compute one. So what a file says is checked once,
after loading, against what the records declare: the types of their fields, and shapes where
:func:`record` is told (see :func:`check_value`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from operator import add
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import (
    Floats,
    as_path,
    from_triangle,
    is_sparse,
    is_symmetric,
    lower_triangle,
    shown,
)
from policyrisk._core.files import DAMAGE, Arrays, from_json, read_arrays, write_atomically
from policyrisk.errors import InvalidInputError, MismatchError, PolicyRiskError

FORMAT = 2
_HEADER, _CHECKSUM = "header", "checksum"
_PARTS = ("data", "indices", "indptr")  # of a sparse matrix
# What making a value of forged contents raises; RuntimeError is RecursionError, too.
_MISMADE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError)
_UNITS = 500  # binary orders of magnitude of a unit of the rewards, whose square is a number then
_LARGEST = 2**128  # a whole number in a file: the keys of random numbers are the largest

Header: TypeAlias = dict[str, Any]
T = TypeVar("T")
Made = TypeVar("Made")

_records: dict[str, Callable[..., Any]] = {}  # the classes that may appear in a file, by their names
_shapes: dict[type, Mapping[str, str]] = {}  # of the fields of each
_from_spec: Callable[[Mapping[str, Any]], Any] | None = None  # makes feature maps


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(**shapes: str) -> Callable[[type[T]], type[T]]: ...
def record(cls: Any = None, /, **shapes: str) -> Any:
    """Let a dataclass appear in files, under its name: a decorator.

    ``shapes`` declares what the fields' types do not say, such as ``w_mean="l_J: finite", gram="l l"``:
    the length of each dimension, a number or a name that stands for the same length wherever the record and
    the records in it use it (``*``: any); of tuples and feature maps their length and size. Behind a colon
    may stand ``finite``, ``rising``, ``positive``, ``unit`` (a power of two) or ``below l``, which all
    entries are.
    """

    def declare(cls: type[T]) -> type[T]:
        if _records.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"two record classes are called {cls.__name__}")
        unknown = shapes.keys() - {each.name for each in fields(cls)}  # type: ignore[arg-type]
        if unknown:
            raise TypeError(f"{cls.__name__} has no field {', '.join(unknown)}")
        _shapes[cls] = shapes
        return cls

    return declare if cls is None else declare(cls)


class Additive:
    """A dataclass whose values add field by field: by +, or by the rule that ``_rules`` has for a field."""

    _rules: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {}

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        both = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return type(self)(**{name: self._rules.get(name, add)(*pair) for name, pair in both.items()})


class Centred(Additive):
    """Sums about means: they add once both are about the means of all, to which ``about`` takes them."""

    _means: ClassVar[tuple[str, ...]]  # the fields that are these means
    _weight: ClassVar[str]  # the field that says how much is behind them

    def about(self, *means: float) -> Self:
        """The same sums about other means."""
        raise NotImplementedError

    def __add__(self, other: Self) -> Self:
        a, b = (getattr(each, self._weight) for each in (self, other))
        share = b / (a + b) if a + b else 0.0
        own, others = ([getattr(each, name) for name in self._means] for each in (self, other))
        means = [m + share * (more - m) for m, more in zip(own, others, strict=True)]
        both = Additive.__add__(self.about(*means), other.about(*means))
        return replace(both, **dict(zip(self._means, means, strict=True)))  # type: ignore[type-var]


def where_both(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A rule of :class:`Additive` for what is None of both where it is of one."""
    return lambda one, other: None if one is None or other is None else rule(one, other)


def where_given(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A rule of :class:`Additive` for what is that of the other where it is None of one."""
    return lambda one, other: other if one is None else one if other is None else rule(one, other)


def nothing_of_both(one: Any, other: Any) -> None:
    """A rule of :class:`Additive` for what parts have and sums of them do not."""


def below(one: Any, other: Any) -> Any:
    """One array below another: a rule of :class:`Additive`."""
    return np.concatenate([one, other])


def add_each(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sums of two tuples' items: a rule of :class:`Additive`."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def joined(parts: Sequence[T]) -> T:
    """Arrays (n, …), or dataclasses of arrays alone, one below another."""
    first: Any = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)  # type: ignore[arg-type, return-value]
    columns = ([getattr(part, field.name) for part in parts] for field in fields(first))
    made: T = type(first)(*map(joined, columns))
    return made


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
    columns[_CHECKSUM] = np.frombuffer(digest(columns), dtype=np.uint8)
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **columns))


@overload
def load(path: str | os.PathLike[str], kind: str, declared: type[T]) -> T: ...
@overload
def load(
    path: str | os.PathLike[str], kind: str, declared: type[Any], make: Callable[[Any], Made]
) -> Made: ...
def load(
    path: str | os.PathLike[str], kind: str, declared: type[Any], make: Callable[[Any], Any] | None = None
) -> Any:
    """The value that :func:`save` wrote, of a record class or what else is declared; others are an error.

    ``make`` makes of it what is returned.
    """
    header, arrays = _read(path, kind)
    found = header["format"]
    if header["kind"] != kind or found != FORMAT:
        newer = isinstance(found, int) and found > FORMAT
        raise InvalidInputError(
            f"path must be a {kind} file of format {FORMAT}, got {str(header['kind'])[:80]} of format "
            f"{str(found)[:80]} in {path}; "
            f"{'update policyrisk' if newer else 'use the version of policyrisk that wrote it'}"
        )
    try:
        value = unpack(header["value"], arrays)
        check_value(value, declared)
        return value if make is None else make(value)
    except MismatchError:
        raise  # what was given does not go with the file, which is in order
    except _MISMADE as error:
        raise InvalidInputError(
            f"path must be a {kind} file of this version of policyrisk, got {path}, whose contents do not "
            f"fit ({error}); use the version that wrote it"
        ) from error


class Saved:
    """A record that has files of its own."""

    _kind: ClassVar[str] = ""  # what a file calls itself, where that is not the name of the class

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to an npz file with a version and a checksum.

        Parameters
        ----------
        path
            The file, conventionally ``.npz``; it is replaced when the new one is complete.
        """
        save(path, self._kind or type(self).__name__, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what ``save`` wrote; a damaged or altered file is an error.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        record
            The same, bit for bit.
        """
        return load(path, cls._kind or cls.__name__, cls)


def check_value(value: Any, declared: Any, name: str = "", lengths: Mapping[str, int] | None = None) -> None:
    """Raise a ValueError unless a value is of a declared type and shape, and so are the records in it.

    >>> check_value((1, 2.5), tuple[int, float])
    >>> check_value({"a": "x"}, dict[str, int])
    Traceback (most recent call last):
    ValueError: a must be of type int, got 'x'
    """
    known = dict(lengths or {})
    if get_origin(declared) is NotRequired:
        (declared,) = get_args(declared)
    kinds = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    told = [kind for kind in kinds if _is_of(value, kind)]
    if not told:
        text = getattr(declared, "__name__", str(declared))
        raise ValueError(f"{name or 'the value'} must be of type {text}, got {shown(value)}")
    kind: Any = type(value)
    if kind in _shapes:
        hints, held = _hints(kind), {each.name: getattr(value, each.name) for each in fields(value)}
        for field, said in _shapes[kind].items():  # their lengths hold for the records within
            if held[field] is not None:
                _check_shape(held[field], _below(name, field), said, known)
        for field, inner in held.items():
            check_value(inner, hints[field], _below(name, field), known)
    elif isinstance(value, list | tuple):
        for i, (item, kind) in enumerate(zip(value, _of_items(value, told[0]), strict=True)):
            check_value(item, kind, _below(name, i), known)
    elif isinstance(value, Mapping):
        hints = _keys(told[0])
        (key_kind, kind) = get_args(told[0]) or (Any, Any)
        for key, item in value.items():
            if not hints:
                check_value(key, key_kind, f"a key of {name}", known)
            check_value(item, hints.get(key, Any if hints else kind), _below(name, key), known)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, apart from what it contains."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated and is_dataclass(inner[1]):  # whose fields the dict has
        return isinstance(value, dict) and _keys(kind).keys() <= value.keys()
    if origin is Annotated:  # with what must take it, or raise a ValueError
        return _is_of(value, inner[0]) and all(take(value) is not None for take in inner[1:])
    if kind is None or kind is NoneType:
        return value is None
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is np.ndarray:
        wanted = get_args(inner[1])[0]
        return isinstance(value, np.ndarray) and (
            value.dtype.kind in "biuf" if wanted is Any else value.dtype == wanted
        )
    if is_typeddict(kind):
        return isinstance(value, dict) and _needed(kind) <= value.keys()
    if getattr(kind, "_is_protocol", False):
        return callable(value)
    if origin is tuple:
        fixed = inner and inner[-1] is not Ellipsis
        return isinstance(value, tuple) and (not fixed or len(value) == len(inner))
    if kind is float:
        return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
    return isinstance(value, origin)


def _of_items(value: list[Any] | tuple[Any, ...], kind: Any) -> tuple[Any, ...]:
    """The declared type of each item."""
    inner = get_args(kind) or (Any, ...)
    fixed = isinstance(value, tuple) and inner[-1] is not Ellipsis
    return inner if fixed else inner[:1] * len(value)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """The types of a record's fields, or of a TypedDict's keys."""
    names = {"Matrix": Floats | sp.csr_array, "sp": sp}
    return get_type_hints(cls, localns=names, include_extras=True)


def _keys(kind: Any) -> dict[str, Any]:
    """The types of the keys that a dict must or may have: of a TypedDict, or the fields of a dataclass."""
    if is_typeddict(kind):
        return _hints(kind)
    of: Any = get_args(kind)[1] if get_origin(kind) is Annotated else None
    return _hints(of) if isinstance(of, type) and is_dataclass(of) else {}


@cache
def _needed(cls: Any) -> frozenset[str]:
    """The keys that a TypedDict must have; its own ``__required_keys__`` is wrong where types are texts."""
    hints = _hints(cls).items() if cls.__total__ else ()
    return frozenset(name for name, kind in hints if get_origin(kind) is not NotRequired)


def _check_shape(value: Any, name: str, said: str, known: dict[str, int]) -> None:
    """Raise unless a value has a declared shape, whose new names are then known, and such entries."""
    dims, _, rule = said.partition(":")
    shape = _lengths(value)
    if shape is None:
        return
    wanted: list[int | None] = []
    for dim, length in zip(dims.split(), shape, strict=False):
        if dim.isidentifier():
            known.setdefault(dim, length)
        parts = [known[part] if part.isidentifier() else int(part) for part in dim.split("+") if part != "*"]
        wanted.append(sum(parts) if parts else None)
    fits = (length in (None, got) for length, got in zip(wanted, shape, strict=False))
    if len(dims.split()) != len(shape) or not all(fits):
        raise ValueError(
            f"{name} must have the shape ({dims.replace(' ', ', ')}) of what it belongs to, got {shape}"
        )
    if not rule:
        return
    entries = np.asarray(value.data if is_sparse(value) else value)
    how, _, bound = rule.strip().partition(" ")
    if bound and bound in known and entries.size and not 0 <= entries.min() <= entries.max() < known[bound]:
        raise ValueError(f"{name} must have entries from 0 to {known[bound] - 1}, got others")
    if how in _ENTRIES and not _ENTRIES[how](entries):
        raise ValueError(f"{name} must have {how} entries, got others")


def _lengths(value: Any) -> tuple[int, ...] | None:
    """The shape of an array, and of others their size or length: () of a number, None of what has neither."""
    if isinstance(value, int | float):
        return ()
    if isinstance(value, np.ndarray) or is_sparse(value):
        return tuple(value.shape)
    if hasattr(value, "size"):
        return (int(value.size),)
    return (len(value),) if hasattr(value, "__len__") else None


_ENTRIES: dict[str, Callable[[Any], bool]] = {
    "finite": lambda array: bool(np.isfinite(array).all()),
    "rising": lambda array: bool(np.isfinite(array).all() and (np.diff(array) > 0).all()),
    "positive": lambda array: bool(np.isfinite(array).all() and (array > 0).all()),
    "unit": lambda array: bool(np.isin(array, np.ldexp(1.0, np.arange(-_UNITS, _UNITS + 1))).all()),
}


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
        triangle, n = arrays[packed["symmetric"]], packed["size"]
        if triangle.shape != (n * (n + 1) // 2,):
            raise ValueError(f"{packed['symmetric']} must be half of {n} rows, got {triangle.shape}")
        return from_triangle(triangle, n)
    if "sparse" in packed:
        parts = tuple(arrays[_below(packed["sparse"], part)] for part in _PARTS)
        matrix = sp.csr_array(parts, shape=tuple(packed["shape"]))
        matrix.check_format(full_check=True)  # SciPy itself reads beyond its arrays where they do not fit
        if matrix.dtype != np.float64:
            raise ValueError(f"{packed['sparse']} must be of float64, got {matrix.dtype}")
        return matrix
    if "spec" in packed and _from_spec is not None:
        return _from_spec(packed["spec"])
    if packed["record"] not in _records:
        raise ValueError(f"a record {packed['record']!r}, which is unknown here")
    values = {name: unpack(item, arrays, _below(at, name), made) for name, item in packed["fields"].items()}
    return _records[packed["record"]](**values)


def _below(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def _read(path: str | os.PathLike[str], kind: str) -> tuple[Header, Arrays]:
    """The header, with its kind and its format, and the arrays of an intact file."""
    try:
        columns = read_arrays(as_path(path))
        checksum = columns.pop(_CHECKSUM).tobytes()
        intact = checksum == digest(columns)
        header: Header = from_json(columns.pop(_HEADER).tobytes().decode())
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


def digest(columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """SHA-256 of names, types, shapes and contents, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(columns):
        array = np.ascontiguousarray(columns[name])
        total.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        total.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return total.digest()
