"""A fold that may be killed at any moment: passes whose sums so far are kept in a file.

The data are cut into parts of BATCHES batches each, in order; a pass adds its parts one by one, and every few
seconds the sum so far is written to the checkpoint, which is replaced as a whole, with those of
finished passes.
The same call with ``resume`` goes on behind the last part that was saved: the same parts are added in the
same order, so that the result is, bit for bit, that of a run that was not disturbed.

The file holds plain arrays and a description of the records that they belong to (see :func:`pack`); nothing
is pickled. ``problem`` says in plain values what is estimated from what; going on with another is an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.records import read_record, write_record
from policyrisk.equations import MomentEquations
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features import from_spec
from policyrisk.lstd.constrained import Offenders
from policyrisk.lstd.cutoffs import GivenUp
from policyrisk.lstd.estimator import SecondPass
from policyrisk.lstd.score_sums import ScoreSums
from policyrisk.passes.fold import FirstPass, Sum
from policyrisk.risk import SampleReturns
from policyrisk.risk.starts import StartSums
from policyrisk.trajectories import Source, Trajectories, batches

BATCHES = 1  # of the source in a part: some 1.3·10⁵ transitions of a file
_KIND = "Checkpoint of LSTD"
_EVERY = 5.0  # seconds between two checkpoints
_PATIENCE = 10.0  # of a checkpoint's own time: large ones are written less often
_RECORDS = {
    record.__name__: record
    for record in (
        FirstPass,
        GivenUp,
        MomentEquations,
        Offenders,
        SampleReturns,
        ScoreSums,
        SecondPass,
        StartSums,
    )
}

Arrays = dict[str, npt.NDArray[Any]]


class DurableFold:
    """Takes passes over data in this process; a :class:`policyrisk.passes.fold.Fold`.

    >>> import policyrisk as pr, tempfile
    >>> data = pr.domains.walk(n=10, p=0.7).sample(start=0, episodes=50, seed=1)
    >>> lstd = pr.LSTD(pr.Tabular(10))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fold = DurableFold(data, f"{folder}/checkpoint.npz", {"data": "walk"}, resume=False)
    ...     risk = lstd.fit_by(fold)
    >>> bool(risk.mean([0]) == lstd.fit(data).mean([0]))
    True
    """

    def __init__(
        self,
        data: Source,
        path: str | os.PathLike[str],
        problem: Mapping[str, Any],
        *,
        resume: bool,
    ) -> None:
        self.data, self.path, self.problem = data, Path(path), dict(problem)
        self._finished: list[Any] = []  # the sums of passes
        self._pass = 0
        self._sum: Any = None  # of the pass under way
        self._done = 0  # parts that are in it
        self._saved, self._pause = time.monotonic(), _EVERY
        if resume and self.path.exists():
            self._load()

    def __call__(self, work: Callable[[Source, int], Sum]) -> Sum:
        """The sum of ``work(source, part)`` over all parts."""
        self._pass += 1
        if self._pass <= len(self._finished):
            stored: Sum = self._finished[self._pass - 1]
            return stored
        try:
            for part, source in enumerate(_parts(self.data)):
                if part >= self._done:
                    found = work(source, part)
                    # One assignment: an interrupt comes before it or after it.
                    self._sum, self._done = found if part == 0 else self._sum + found, part + 1
                    self._save_if_due()
        except KeyboardInterrupt:
            self.save()
            raise KeyboardInterrupt(
                f"stopped after {self._done} parts of pass {self._pass}, saved in {self.path}; "
                "go on with --resume"
            ) from None
        if self._done == 0:
            raise InvalidInputError("data must hold at least one episode, got none; record some")
        found_all: Sum = self._sum
        self._finished.append(found_all)
        self._sum, self._done = None, 0
        return found_all

    def save(self) -> None:
        """Write the checkpoint now."""
        began = time.monotonic()
        arrays: Arrays = {}
        described = pack({"finished": self._finished, "sum": self._sum}, arrays)
        header = {"problem": self.problem, "done": self._done, "sums": described}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_record(self.path, _KIND, header, arrays)
        self._saved = time.monotonic()
        self._pause = max(_EVERY, _PATIENCE * (self._saved - began))

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved > self._pause:
            self.save()

    def _load(self) -> None:
        header, arrays = read_record(self.path, _KIND)
        if header["problem"] != self.problem:
            changed = [
                name
                for name in {**header["problem"], **self.problem}
                if header["problem"].get(name) != self.problem.get(name)
            ]
            raise MismatchError(
                f"resume must go on with the same evaluation, but {', '.join(changed)} changed since "
                f"{self.path} was written; repeat the command as it was, or leave --resume out"
            )
        stored = unpack(header["sums"], arrays)
        self._finished, self._sum, self._done = stored["finished"], stored["sum"], int(header["done"])


def stored_problem(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a checkpoint is about."""
    header, _ = read_record(path, _KIND)
    problem: dict[str, Any] = header["problem"]
    return problem


def _parts(data: Source) -> Iterator[list[Trajectories]]:
    """Some batches at a time; a Trajectories is a stream of one."""
    pending: list[Trajectories] = []
    for batch in batches(data):
        pending.append(batch)
        if len(pending) == BATCHES:
            yield pending
            pending = []
    if pending:
        yield pending


def pack(value: Any, arrays: Arrays, seen: dict[int, Any] | None = None) -> Any:
    """A value of records, features, arrays, lists and numbers in plain values; its arrays go into ``arrays``.

    What is the same object stays the same: C of the equations may be A.

    >>> arrays = {}
    >>> pack([1.5, (None, np.ones(2))], arrays), list(arrays)
    ([1.5, {'tuple': [None, {'array': 'a0'}]}], ['a0'])
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, np.generic):
        return value.item()
    packed: Any
    if isinstance(value, np.ndarray):
        packed = {"array": f"a{len(arrays)}"}
        arrays[packed["array"]] = value
    elif sp.issparse(value):
        rows = sp.csr_array(value)
        parts = [pack(part, arrays, {}) for part in (rows.data, rows.indices, rows.indptr)]
        packed = {"sparse": parts, "shape": list(rows.shape)}
    elif isinstance(value, tuple):
        packed = {"tuple": [pack(item, arrays, seen) for item in value]}
    elif isinstance(value, list):
        packed = [pack(item, arrays, seen) for item in value]
    elif isinstance(value, dict):
        packed = {
            "dict": [[pack(key, arrays, seen), pack(item, arrays, seen)] for key, item in value.items()]
        }
    elif is_dataclass(value) and type(value).__name__ in _RECORDS:
        kept = {field.name: pack(getattr(value, field.name), arrays, seen) for field in fields(value)}
        packed = {"record": type(value).__name__, "fields": kept}
    elif hasattr(value, "spec"):
        packed = {"features": value.spec()}
    else:
        raise InvalidInputError(
            f"features must have a spec() to be kept in a checkpoint, got {type(value).__name__}; "
            "use one of the library's classes"
        )
    seen[id(value)] = packed
    return packed


def unpack(packed: Any, arrays: Mapping[str, npt.NDArray[Any]], seen: dict[str, Any] | None = None) -> Any:
    """The way back from :func:`pack`.

    >>> arrays = {}
    >>> unpack(pack((1, [np.arange(2)]), arrays), arrays)
    (1, [array([0, 1])])
    """
    seen = {} if seen is None else seen
    if isinstance(packed, list):
        return [unpack(item, arrays, seen) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if "array" in packed:
        return seen.setdefault(packed["array"], arrays[packed["array"]])
    if "sparse" in packed:
        name = packed["sparse"][0]["array"]
        if name not in seen:
            parts = tuple(unpack(part, arrays, {}) for part in packed["sparse"])
            seen[name] = sp.csr_array(parts, shape=tuple(packed["shape"]))
        return seen[name]
    if "tuple" in packed:
        return tuple(unpack(item, arrays, seen) for item in packed["tuple"])
    if "dict" in packed:
        return {unpack(key, arrays, seen): unpack(item, arrays, seen) for key, item in packed["dict"]}
    if "features" in packed:
        return from_spec(packed["features"])
    values = {name: unpack(item, arrays, seen) for name, item in packed["fields"].items()}
    return _RECORDS[packed["record"]](**values)
