"""Data frames by way of Arrow: pandas, Polars, PyArrow's tables, and whatever else speaks Arrow's protocol.

What a column becomes is the same in frames and in files:

    whole numbers, booleans           int64 (true is 1)
    floating point                    float64
    dates, times of day, durations    float64, in days; dates since the beginning of 1970 (in UTC with a zone)
    text, categories                  labels, the number of the name among given ones
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints, as_states, is_frame, name_some
from policyrisk._core.imports import check_installed
from policyrisk._core.records import record
from policyrisk.errors import InvalidInputError, MismatchError, MissingPackageError

if TYPE_CHECKING:
    import pyarrow as pa

_SECONDS = 86_400  # of a day


def as_table(frame: Any, name: str) -> pa.Table:
    """A data frame as Arrow's table, whose columns share its memory where they can."""
    check_installed("pyarrow", "reading a data frame")
    import pyarrow as pa

    if hasattr(frame, "collect"):
        raise InvalidInputError(
            f"{name} must be a data frame in memory, got a {type(frame).__name__}, which is a plan of one; "
            "pass what its collect() gives"
        )
    try:
        old = not hasattr(frame, "__arrow_c_stream__")  # pandas before 2.2
        table = pa.Table.from_pandas(frame) if old else pa.table(frame)
        kinds = [_usual_type(kind) for kind in table.schema.types]
        for at, kind in enumerate(kinds):
            if kind != table.schema.types[at]:
                chunks = [_usual(chunk, kind) for chunk in table.column(at).chunks]
                table = table.set_column(at, table.schema.names[at], pa.chunked_array(chunks, type=kind))
    except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError) as error:
        reason = "; ".join(map(str, error.args))
        raise InvalidInputError(
            f"{name} must be a data frame whose columns have a name and a type each, got a "
            f"{type(frame).__name__} that Arrow cannot take ({reason}); convert or rename that column, or "
            "leave it out"
        ) from error
    return table


def _usual_type(kind: Any) -> Any:
    """The type that a column is read by: views of text, as Polars has them, become text."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        value = _usual_type(kind.value_type)
        return kind if value == kind.value_type else pa.dictionary(kind.index_type, value)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _usual(column: Any, kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        names = column.dictionary.cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(column.indices, names)
    return column.cast(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds names: text, or a dictionary of texts (categories)."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether :func:`numbers` takes a column of this type."""
    from pyarrow import types

    dates = types.is_temporal(kind) and not types.is_interval(kind)  # how long a month is, it does not say
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or dates


def decoded(column: Any) -> Any:
    """A column as it is where its values stand in a dictionary."""
    import pyarrow as pa

    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def nulls(column: pa.Array[Any]) -> Bools:
    """Where a column is null, of shape (n,)."""
    found: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return found


def numbers(column: Any) -> npt.NDArray[Any]:
    """A column of numbers, booleans or dates without nulls, of shape (n,): float64, or of whole numbers.

    >>> import datetime, pyarrow as pa
    >>> numbers(pa.array([datetime.datetime(1970, 1, 2, 12)]))
    array([1.5])
    """
    import pyarrow as pa
    from pyarrow import types

    kind: Any = column.type
    if not types.is_temporal(kind):
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values.astype(np.float64, copy=False) if types.is_floating(kind) else values
    if types.is_date32(kind):
        days: Floats = column.cast(pa.int32()).to_numpy(zero_copy_only=False).astype(np.float64)
        return days
    unit = getattr(kind, "unit", "ms")  # date64 has none
    whole = pa.int32() if types.is_time32(kind) else pa.int64()
    ticks = column.cast(whole).to_numpy(zero_copy_only=False)
    in_day = _SECONDS * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    full, rest = np.divmod(ticks.astype(np.int64), in_day)  # so that no digit of a nanosecond is lost early
    return np.asarray(full + rest / in_day, dtype=np.float64)


def codes(column: Any, names: Sequence[str]) -> tuple[Ints, Bools]:
    """The numbers of a column's names among those given, and where a name is none of them, both (n,)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.DictionaryArray):  # each name is looked up once
        found, unknown = codes(column.dictionary, names)
        at = column.indices.to_numpy()
        return found[at], unknown[at]
    found = pc.index_in(column, value_set=pa.array(names, type=column.type))
    unknown = nulls(found)
    return found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64), unknown


def numbered_names(stem: str, count: int) -> tuple[str, ...]:
    """The names of ``count`` coordinates that have one name together.

    >>> numbered_names("obs", 2), numbered_names("state", 1)
    (('obs_0', 'obs_1'), ('state',))
    """
    return (stem,) if count == 1 else tuple(f"{stem}_{d}" for d in range(count))


@record
@dataclass(frozen=True)
class Coordinates:
    """What the state's coordinates are called, and what the numbers of those that are labels stand for.

    >>> import pyarrow as pa
    >>> Coordinates(("city", "x"), {"city": ("Oslo", "Rome")}).states(
    ...     pa.table({"x": [0.5, 0.25], "other": [1, 2], "city": ["Rome", "Oslo"]}))
    array([[1.  , 0.5 ],
           [0.  , 0.25]])
    """

    names: tuple[str, ...]  # (dim,)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of text, in their numbers' order

    @classmethod
    def of(cls, given: object, dim: int) -> Coordinates:
        """Those of ``dim`` coordinates, from their names or as they are; others are an error."""
        found = given if isinstance(given, Coordinates) else None
        if found is None and isinstance(given, Sequence) and not isinstance(given, str):
            found = cls(tuple(given))
        if (
            found is None
            or len(found.names) != dim
            or not all(isinstance(name, str) for name in found.names)
            or len(set(found.names)) < dim
            or not found.labels.keys() <= set(found.names)
        ):
            raise InvalidInputError(
                f"coordinates must be {dim} different names, one for each coordinate of the state, got "
                f"{given!r}; name each once"
            )
        return found

    def and_one(self, name: str) -> Coordinates:
        """These and one more, the last."""
        if name in self.names:
            raise InvalidInputError(
                f"the state must not have a coordinate {name} already, got {', '.join(self.names)}; rename it"
            )
        return Coordinates((*self.names, name), self.labels)

    def states(self, frame: Any, name: str = "x") -> Floats:
        """The states in the rows of a data frame, by the names of its columns, of shape (n, dim)."""
        table = as_table(frame, name)
        there = table.schema.names
        for each in self.names:
            if there.count(each) != 1:
                raise MismatchError(
                    f"{name} must have one column each for {', '.join(self.names)}, got "
                    f"{', '.join(there) or 'none'}; "
                    + (f"add {each}" if each not in there else f"rename one of those called {each}")
                )
        columns = [self._numbers(table.column(each), each, name) for each in self.names]
        return np.column_stack(columns).astype(np.float64, copy=False)

    def _numbers(self, chunked: Any, column: str, name: str) -> npt.NDArray[Any]:
        values = decoded(chunked.combine_chunks())
        missing = nulls(values)
        if not is_text(values.type) and column not in self.labels and is_numeric(values.type):
            found = numbers(values if not missing.any() else values.drop_null())
            broken = missing.copy()
            broken[~missing] = ~np.isfinite(found)
            self._refuse(broken, column, name, "be a finite number", values)
            return found
        if column not in self.labels or not is_text(values.type):
            expected = "names, as the data had" if column in self.labels else "numbers, as the data had"
            raise MismatchError(
                f"{column} in {name} must hold {expected}, got {values.type}; convert it, or pass the states "
                "as an array of numbers"
            )
        found, unknown = codes(values, self.labels[column])
        known = name_some(self.labels[column], 5)
        self._refuse(unknown, column, name, f"be one of the names in the data, {known}", values)
        return found

    @staticmethod
    def _refuse(wrong: Bools, column: str, name: str, rule: str, values: Any) -> None:
        if wrong.any():
            at = int(wrong.argmax())
            raise InvalidInputError(
                f"{column} must {rule}, got {values[at].as_py()!r} in row {at} of {name} (counted from 0); "
                "repair that row, or leave it out"
            )

    def columns(self, states: npt.NDArray[Any]) -> dict[str, Any]:
        """The columns (n,) of states (n, dim), labels as the names that they stand for."""
        found: dict[str, Any] = dict(zip(self.names, np.asarray(states).T, strict=True))
        for name, texts in self.labels.items():
            known = np.array([*texts, None], dtype=object)
            at = found[name]
            whole = np.isin(at, np.arange(len(texts)))
            found[name] = known[np.where(whole, at, -1).astype(np.int64)]
        return found


def states_of(x: Any, coordinates: Coordinates | None, name: str = "x", dim: int | None = None) -> Floats:
    """States (n, dim): an array as it is, and of a data frame the columns that the coordinates name.

    As many numbers as there are coordinates (``dim`` where they have no names), more than one, are one state.
    """
    if coordinates is None or not is_frame(x):
        return as_states(x, name, dim if coordinates is None else len(coordinates.names))
    return coordinates.states(x, name)


def frame_like(given: Any, states: Mapping[str, Any], estimates: Mapping[str, Any]) -> Any:
    """A data frame of states and estimates at them: of the kind of ``given`` where that is one, else pandas'.

    The states' columns are then those of ``given`` as they are.
    """
    home = type(given).__module__.partition(".")[0] if is_frame(given) else ""
    if home == "pyarrow":
        import pyarrow as pa

        return pa.table({**{name: given[name] for name in states}, **estimates})
    if home == "polars":
        return given.select(list(states)).hstack(type(given)(dict(estimates)))
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(
            "a data frame of estimates needs the package pandas, which is not installed; install it with "
            "`pip install pandas`, or pass a frame of Polars or Arrow"
        ) from error
    if home != "pandas":
        return pd.DataFrame({**states, **estimates})
    own = {name: given[name].array if name in given.columns else each for name, each in states.items()}
    return pd.DataFrame({**own, **estimates}, index=given.index)
