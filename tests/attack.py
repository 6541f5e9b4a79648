"""Valid calls of everything public, and hostile values to put in the place of one argument.

The valid calls are those that test_inputs_untouched makes: they are noted while its uses run, with the
arguments that each public function, method or constructor got.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import decimal
import fractions
import functools
import importlib
import inspect
import io
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.exceptions import ComplexWarning

import policyrisk as pr
from policyrisk._core import keywords, records
from policyrisk.errors import PolicyRiskError, PolicyRiskWarning

_HOME = str(Path(pr.__file__).parent)
PATIENCE = 20  # seconds after which a call is said to hang


class Call(NamedTuple):
    """A public function or constructor, and arguments that it takes."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]

    def attacked(self, changes: dict[str, Any], user: tuple[str, ...] = ()) -> str | None:
        """What came out that is not ours, and where; None where the call returned or was refused.

        What functions in the files ``user`` raised is theirs.
        """
        with warnings.catch_warnings(), patience():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", PolicyRiskWarning)
            try:
                found = self.function(**{**self.arguments, **changes})
                if isinstance(found, pr.readers.Stream):  # which reads when it is asked
                    found.load()
            except PolicyRiskError:
                return None
            except Exception as error:
                if isinstance(error, IndexError) and self.name.endswith("__getitem__"):
                    return None  # what ends a loop over a sequence
                frames = traceback.extract_tb(error.__traceback__)
                ours = [k for k, frame in enumerate(frames) if _HOME in frame.filename]
                if ours and any(frame.filename in user for frame in frames[ours[0] :]):
                    return None
                at = frames[ours[-1] if ours else -1]
                return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error}"
        return None


class TooLongError(Exception):
    """A call took longer than PATIENCE."""


@contextlib.contextmanager
def patience(seconds: int = PATIENCE) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"no answer after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def public(modules: tuple[str, ...]) -> dict[CodeType, tuple[str, Callable[..., Any]]]:
    """Every public function, constructor and method by its code: its name, and what to call."""
    found: dict[CodeType, tuple[str, Callable[..., Any]]] = {}
    for module in modules:
        home = importlib.import_module(f"policyrisk.{module}" if module else "policyrisk")
        for name in home.__all__:
            value, full = getattr(home, name), f"{module}.{name}" if module else name
            if inspect.isfunction(value):
                found.setdefault(inspect.unwrap(value).__code__, (full, value))
            if not inspect.isclass(value) or issubclass(value, Exception | Warning):
                continue
            if inspect.isfunction(value.__init__) and not getattr(value, "_is_protocol", False):
                found.setdefault(inspect.unwrap(value.__init__).__code__, (full, value))
            for method in dir(value):
                kept = inspect.getattr_static(value, method)
                code = getattr(inspect.unwrap(getattr(kept, "__func__", kept)), "__code__", None)
                if code is None or (method.startswith("_") and method not in ("__call__", "__getitem__")):
                    continue
                if inspect.isfunction(getattr(kept, "__func__", kept)):
                    found.setdefault(code, (f"{full}.{method}", getattr(value, method)))
    return found


def noted(
    uses: list[Callable[[], Any]], codes: dict[CodeType, tuple[str, Callable[..., Any]]], files: set[str]
) -> list[Call]:
    """The first call of each kind that functions in these files make, kinds by the types of the arguments."""
    calls: dict[tuple[Any, ...], Call] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code not in codes:
            return
        caller = frame.f_back
        while caller.f_code.co_filename == keywords.__file__:  # what only looks at the names of the arguments
            caller = caller.f_back
        if caller.f_code.co_filename not in files:
            return
        name, function = codes[frame.f_code]
        at = inspect.getargvalues(frame)
        count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
        arguments = {each: frame.f_locals[each] for each in frame.f_code.co_varnames[:count]}
        if not inspect.isfunction(function):  # a constructor, or a method of the class
            arguments.pop(next(iter(arguments)))
        if at.keywords:
            arguments |= frame.f_locals[at.keywords]
        key = (name, *(type(value).__name__ for value in arguments.values()))
        calls.setdefault(key, Call(name, function, arguments))

    for use in uses:
        sys.setprofile(note)
        try:
            use()
        finally:
            sys.setprofile(None)
    return list(calls.values())


class Raises:
    """What PyTorch's tensors do that need gradients, and worse."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("can't call numpy() on Tensor that requires grad; use tensor.detach().numpy()")

    __float__ = __index__ = __len__ = __iter__ = __array__
    __fspath__ = __bool__ = __eq__ = __array__
    __hash__ = object.__hash__


class NotPath:
    """A path that is none."""

    def __fspath__(self) -> str:
        return b"\xff\0"  # type: ignore[return-value]


class Forgery:
    """A record file whose contents are other ones, with the checksum that is right for them."""

    def __init__(self, content: bytes) -> None:
        with np.load(io.BytesIO(content)) as file:
            self.arrays = {name: file[name] for name in file.files if name not in ("header", "checksum")}
            self.header = json.loads(file["header"].tobytes())

    def bytes(self) -> bytes:
        """The file."""
        text = (self.header if isinstance(self.header, str) else json.dumps(self.header)).encode()
        columns = {"header": np.frombuffer(text, np.uint8), **self.arrays}
        columns["checksum"] = np.frombuffer(records.digest(columns), np.uint8)
        out = io.BytesIO()
        np.savez(out, **columns)
        return out.getvalue()

    def forged(self, rng: np.random.Generator) -> tuple[str, bytes]:
        """With one or two changes, and what they are."""
        other = copy.deepcopy(self)
        told = [other._change(rng) for _ in range(rng.integers(1, 3))]
        return "; ".join(told), other.bytes()

    def _change(self, rng: np.random.Generator) -> str:
        if self.arrays and rng.random() < 0.5:
            name = sorted(self.arrays)[rng.integers(len(self.arrays))]
            kind = sorted(FORGED_ARRAYS)[rng.integers(len(FORGED_ARRAYS))]
            # A second change may find that the first left nothing to be changed so.
            with np.errstate(all="ignore"), contextlib.suppress(ValueError, TypeError, ComplexWarning):
                self.arrays[name] = np.asarray(FORGED_ARRAYS[kind](self.arrays[name]))
            return f"{name}: {kind}"
        places = list(_places(self.header["value"]))
        parent, key = places[rng.integers(len(places))]
        kind = sorted(FORGED_VALUES)[rng.integers(len(FORGED_VALUES))]
        told = f"{str(key)[:40]} = {str(parent[key])[:40]}: {kind}"
        if kind == "gone" and isinstance(parent, dict):
            del parent[key]
        elif kind == "another":
            above, at = places[rng.integers(len(places))]
            parent[key] = copy.deepcopy(above[at])
        else:
            parent[key] = copy.deepcopy(FORGED_VALUES[kind])
        return told


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every item of lists and dictionaries in one another: what holds it, and its key."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


# What a value in a file's header may become.
FORGED_VALUES: dict[str, Any] = {
    "another": None,
    "gone": None,
    "null": None,
    "true": True,
    "zero": 0,
    "one": 1,
    "minus one": -1,
    "a half": 0.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "1e300": 1e300,
    "2**31": 2**31,
    "2**62": 2**62,
    "huge": 10**400,
    "text": "text",
    "empty text": "",
    "nul": "a\0b",
    "code": "numpy._core.numeric:builtins.exec",
    "markup": "<script>alert(1)</script>",
    "surrogate": "\udcff",
    "list": [],
    "numbers": [0.5, 1, 2],
    "rows": [[1.0, 2.0], [3.0]],
    "texts": ["a", "b"],
    "dictionary": {},
    "named": {"a": 1},
    "same": {"same": ""},
    "array": {"array": "none"},
    "tuple": {"tuple": []},
    "pair": {"tuple": [1, "a"]},
    "empty dict": {"dict": []},
    "dict of lists": {"dict": [[[1], 2]]},
    "map": {"spec": {"kind": "Tabular", "size": 2**31 - 1, "dims": None}},
    "function": {"spec": {"kind": "FunctionFeatures", "name": "os:system", "size": 3, "probe": None}},
    "record": {"record": "SampleReturns", "fields": {"count": 3, "mean": 1.0}},
    "deep": functools.reduce(lambda inner, _: [inner], range(90), 1.0),
}
# What an array in a file may become.
FORGED_ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "nan": lambda a: np.full(a.shape, np.nan),
    "inf": lambda a: np.full(a.shape, -np.inf),
    "one nan": lambda a: np.where(np.arange(a.size).reshape(a.shape) == 0, np.nan, a),
    "1e300": lambda a: np.full(a.shape, 1e300),
    "minus": lambda a: -a.astype(np.float64) - 1,
    "zeros": np.zeros_like,
    "large ints": lambda a: np.full(a.shape, 2**62),
    "minus one": lambda a: np.full(a.shape, -1, np.int64),
    "float32": lambda a: a.astype(np.float32),
    "int8": lambda a: a.astype(np.int8),
    "complex": lambda a: a.astype(complex),
    "text": lambda a: a.astype(str),
    "bytes": lambda a: a.astype(str).astype("S"),
    "dates": lambda a: np.zeros(a.shape, "datetime64[s]"),
    "fields": lambda a: np.zeros(a.shape, [("a", "f8"), ("b", "i4")]),
    "void": lambda a: np.zeros(a.shape, "V8"),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "flags": lambda a: a != 0,
    "nothing": lambda a: np.empty(0),
    "no rows": lambda a: a[:0] if a.ndim else a,
    "one less": lambda a: a[:-1] if a.ndim else a,
    "one more": lambda a: np.concatenate([a, a[:1]]) if a.ndim else a,
    "wide": lambda a: np.repeat(a, 3, axis=-1) if a.ndim else a,
    "dim more": lambda a: a[..., None],
    "flat": np.ravel,
    "backwards": lambda a: a[::-1] if a.ndim else a,
    "transposed": lambda a: a.T,
    "0-d": lambda a: np.array(1.0),
    "seven dims": lambda a: np.zeros((1,) * 7),
}

# What anything may be replaced by.
ANYTHING: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "empty text": lambda: "",
    "text": lambda: "strings",
    "a number in text": lambda: "1.5",
    "nul": lambda: "a\0b",
    "surrogate": lambda: "\udcff",
    "long text": lambda: "x" * 5000,
    "empty bytes": lambda: b"",
    "bytes": lambda: b"\xff\xfe\0",
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "a half": lambda: 0.5,
    "minus zero": lambda: -0.0,
    "huge int": lambda: 2**70,
    "huger int": lambda: -(10**400),
    "true": lambda: True,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "minus inf": lambda: -np.inf,
    "1e300": lambda: 1e300,
    "tiny": lambda: 5e-324,
    "complex": lambda: 1j,
    "decimal": lambda: decimal.Decimal("sNaN"),
    "fraction": lambda: fractions.Fraction(1, 3),
    "date": lambda: datetime.datetime(2024, 1, 1),
    "object": object,
    "a class": lambda: dict,
    "a function": lambda: len,
    "a module": lambda: os,
    "raises": Raises,
    "not a path": NotPath,
    "empty list": list,
    "empty tuple": tuple,
    "empty dict": dict,
    "dict": lambda: {"a": 1, 2: None},
    "set": lambda: {1, 2},
    "slice": lambda: slice(None),
    "ellipsis": lambda: Ellipsis,
    "range": lambda: range(3),
    "iterator": lambda: iter([1, 2]),
    "ragged": lambda: [[1.0], [2.0, 3.0]],
    "nested": lambda: [[[[[[1.0]]]]]],
    "deep": lambda: _deep(80),
    "list of texts": lambda: ["a", "b"],
    "list of none": lambda: [None, None],
    "list of lists of text": lambda: [["1", "2"]],
    "list of huge": lambda: [10**400, 1],
    "list of raises": lambda: [Raises()],
    "0-d": lambda: np.array(1.0),
    "0-d text": lambda: np.array("a"),
    "0-d none": lambda: np.array(None),
    "nan array": lambda: np.full((2, 2), np.nan),
    "no rows": lambda: np.empty((0, 2)),
    "no columns": lambda: np.empty((2, 0)),
    "nothing": lambda: np.empty(0),
    "no ints": lambda: np.empty(0, np.int64),
    "seven dims": lambda: np.zeros((1,) * 7),
    "dates": lambda: np.array(["2024-01-01", "NaT"], "datetime64[D]"),
    "spans": lambda: np.array([1, 2], "timedelta64[s]"),
    "void": lambda: np.zeros(3, "V8"),
    "fields": lambda: np.zeros(3, [("a", "f8"), ("b", "i4")]),
    "bytes array": lambda: np.array([b"a", b"\xff"]),
    "scalar": lambda: np.float32("nan"),
    "uint64": lambda: np.array([2**64 - 1], np.uint64),
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
    "sparse": lambda: sp.csr_array(np.eye(3)),
    "sparse of objects": lambda: sp.coo_array(([1j, 2], ([0, 1], [1, 0])), shape=(2, 2)),
    "record": lambda: pr.Trajectories([[0], [1]], [1.0], [1], [True]),
    "empty record": lambda: pr.Trajectories(np.empty((0, 1)), [], [], np.empty(0, bool)),
    "features": lambda: pr.Polynomial(1, [0, 0], [1, 1]),
    "chain": lambda: pr.MarkovChain([[0.5]], [1.0]),
}


CALLABLE = {"a class", "a function", "features"}
# Arguments that may be a function, where a valid call has none.
CALLED = {"progress", "policy", "project", "system", "target", "env", "starts", "run", "fold", "say"}


def _deep(depth: int) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    return value


def _broken_sparse() -> Any:
    matrix = sp.csr_array(np.eye(3))
    matrix.indices = matrix.indices + 7
    return matrix


def _with(value: Any) -> Callable[[np.ndarray], Any]:
    def changed(array: np.ndarray) -> Any:
        other = array.astype(np.result_type(array.dtype, np.asarray(value)) if value != "" else object)
        other.flat[: max(other.size // 3, 1)] = value
        return other

    return changed


# What an array may become.
OF_ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "with nan": _with(np.nan),
    "with inf": _with(np.inf),
    "with minus one": _with(-1),
    "with a half": _with(0.5),
    "with 1e300": _with(1e300),
    "with tiny": _with(-5e-324),
    "with 2**62": _with(2**62),
    "with text": _with(""),
    "of objects": lambda array: array.astype(object),
    "with none": lambda array: _with_object(array, None),
    "with huge": lambda array: _with_object(array, 10**400),
    "with a list": lambda array: _with_object(array, [1, 2]),
    "as text": lambda array: array.astype(str),
    "as bytes": lambda array: array.astype(str).astype("S"),
    "as lists": lambda array: array.tolist(),
    "complex": lambda array: array.astype(complex) + 1j,
    "float16": lambda array: array.astype(np.float16),
    "long double": lambda array: array.astype(np.longdouble),
    "int8": lambda array: array.astype(np.int8),
    "uint64": lambda array: np.abs(array).astype(np.uint64),
    "booleans": lambda array: array != 0,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "unaligned": lambda array: _unaligned(array),
    "minus": lambda array: -array.astype(np.float64),
    "Fortran": np.asfortranarray,
    "backwards": lambda array: array[::-1],
    "every other": lambda array: np.repeat(array, 2, axis=0)[::2] if array.ndim else array,
    "transposed": lambda array: array.T,
    "broadcast": lambda array: np.broadcast_to(array.ravel()[:1], array.shape),
    "one more": lambda array: np.concatenate([array, array[:1]]) if array.ndim else array,
    "one less": lambda array: array[:-1] if array.ndim else array,
    "empty": lambda array: array[:0] if array.ndim else array,
    "dim more": lambda array: array[..., None],
    "dim before": lambda array: array[None],
    "flat": lambda array: array.ravel(),
    "wide": lambda array: np.repeat(array, 3, axis=-1) if array.ndim else array,
    "masked": lambda array: np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) == 0),
    "not masked": lambda array: np.ma.array(array),
    "matrix": lambda array: np.asmatrix(array) if array.ndim <= 2 else array,
    "dates": lambda array: np.abs(array).astype(np.int64).astype("datetime64[s]"),
    "sparse": lambda array: sp.coo_array(np.atleast_2d(array)) if array.ndim <= 2 else array,
}


def _with_object(array: np.ndarray, value: Any) -> Any:
    other = array.astype(object)
    if other.size:
        other.ravel()[0:0] = None
        other.flat[0] = value if not isinstance(value, list) else None
        if isinstance(value, list):
            other[(0,) * other.ndim] = value if other.ndim else None
    return other


def _unaligned(array: np.ndarray) -> np.ndarray:
    room = np.zeros(array.nbytes + 1, np.uint8)[1:]
    other = room.view(array.dtype).reshape(array.shape)
    other[...] = array
    return other


def hostile_values(valid: Any, name: str = "") -> dict[str, Callable[[], Any]]:
    """What may be put in the place of a valid argument of this name, by name."""
    found = dict(ANYTHING)
    if callable(valid) or name in CALLED:  # others that can be called are wrong in a way of their own
        found = {kind: make for kind, make in found.items() if kind not in CALLABLE}
    if sp.issparse(valid):
        found |= {
            "dense": valid.toarray,
            "broken": _broken_sparse,  # SciPy itself writes beyond its arrays with such a one
            "with nan": lambda: valid * np.nan,
            "complex": lambda: valid * 1j,
            "wide": lambda: sp.hstack([valid, valid]),
            "of float16": lambda: valid.astype(np.float32).astype(np.int8),
            "matrix": lambda: sp.csr_matrix(valid),
            "dok": lambda: sp.dok_array(sp.csr_array(valid)),
        }
    elif isinstance(valid, np.ndarray) or (
        isinstance(valid, list | tuple) and valid and all(isinstance(x, int | float) for x in valid)
    ):
        array = np.asarray(valid)
        found |= {f"array {name}": (lambda make=make: make(array)) for name, make in OF_ARRAYS.items()}
    elif isinstance(valid, list | tuple | dict) and valid:
        keys = list(valid) if isinstance(valid, dict) else list(range(len(valid)))
        for name, make in ANYTHING.items():
            found[f"item {name}"] = lambda make=make: _item(valid, keys[0], make())
        if isinstance(valid, list | tuple):
            first = hostile_values(valid[0])
            for name in first.keys() - ANYTHING.keys():
                found[f"item {name}"] = lambda make=first[name]: _item(valid, 0, make())
    return found


def _item(valid: Any, key: Any, value: Any) -> Any:
    if isinstance(valid, dict):
        return {**valid, key: value}
    other = list(valid)
    other[key] = value
    return type(valid)(other) if type(valid) in (list, tuple) else other
