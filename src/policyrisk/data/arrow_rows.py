"""From Arrow record batches to :class:`~policyrisk.data.rows.CheckedRows`.

A :class:`~policyrisk.data.columns.Columns` names the columns and is matched with each file once. Each batch
is then converted, and every row is checked: types, nulls, finite numbers, ids that come back.

A column of text in the state, or of the action, is a label, and its names are numbered 0, 1, … in the order
of the alphabet, so that the numbers depend on the set of names alone: not on the order of rows, on batches,
or on who reads what. Booleans and dates become numbers as :mod:`policyrisk._core.frames` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.frames import (
    Coordinates,
    codes,
    decoded,
    is_numeric,
    is_text,
    nulls,
    numbered_names,
    numbers,
)
from policyrisk.data.columns import Columns, LabelNames
from policyrisk.data.rows import CheckedRows, Got, refuse_first
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa


def distinct_names(column: pa.Array[Any]) -> set[str]:
    """The names in a column of text, null rows left out; of another none: whoever converts it refuses it."""
    import pyarrow.compute as pc

    values = pc.unique(column).to_pylist() if is_text(column.type) else []
    return {value for value in values if value is not None}


class EpisodeIds:
    """The episodes that a file had so far, to find one that comes back: a set of 64-bit keys.

    They are kept as sorted arrays, each at least twice as long as the next, so that n ids take 8n bytes and
    adding them all takes O(n log n). A whole number is its own key; any other id is hashed, and two of n ids
    have the same hash with a probability of about n²/2⁶⁵ (3e-6 for ten million).

    >>> ids = EpisodeIds()
    >>> ids.add(np.array([3, 1, 2])), ids.add(np.array([7, 1])), ids.add(np.array([9, 8, 9]))
    (None, 1, 2)
    """

    def __init__(self) -> None:
        self._levels: list[Ints] = []

    def add(self, keys: Ints) -> int | None:
        """Add keys (n,); the index of the first that was there already, or comes twice in ``keys``."""
        fresh = np.sort(keys)
        if (fresh[1:] == fresh[:-1]).any():
            _, first = np.unique(keys, return_index=True)
            again = np.setdiff1d(np.arange(keys.size), first)
            return int(again[0])
        for level in self._levels:
            place = np.minimum(np.searchsorted(level, keys), level.size - 1)
            again = np.flatnonzero(level[place] == keys)
            if again.size:
                return int(again[0])
        if fresh.size:
            self._levels.append(fresh)
        while len(self._levels) > 1 and self._levels[-2].size < 2 * self._levels[-1].size:
            merged = np.concatenate([self._levels[-2], self._levels[-1]])
            merged.sort(kind="stable")  # two sorted runs: linear
            self._levels[-2:] = [merged]
        return None


class Converter:
    """Turns one file's record batches, in order, into checked rows."""

    def __init__(self, columns: Columns, file: str, labels: LabelNames) -> None:
        self.columns, self.file, self.labels, self.missing = columns, file, labels, columns.missing
        self._row = 0  # of the file, where the batch begins
        self._ids = EpisodeIds()
        self._last: int | None = None  # the key of the row before
        self._widths: dict[str, int] = {}  # of list columns
        self._lost: Bools = np.zeros(0, dtype=np.bool_)  # rows of the batch without reward or action
        self._rows: Ints | None = None  # of the batch, whose values are converted, where not each its own
        self._unless = ""  # how to do without a column that need not be read

    def rows(self, batch: pa.RecordBatch) -> CheckedRows:
        """The rows of the next batch."""
        columns = self.columns
        new = self._new_episodes(batch.column(columns.episode))
        self._lost = np.zeros(batch.num_rows, dtype=np.bool_)
        reward, *others = columns.rewards
        rewards, ended = self._rewards(batch.column(reward), reward)
        parts, holes = zip(*(self._column(batch, name) for name in columns.states), strict=True)
        self._widths.update((name, part.shape[1]) for name, part in zip(columns.states, parts, strict=True))
        rows = CheckedRows(
            states=parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1),
            rewards=rewards,
            ended=ended,
            new=new,
            terminated=self._flags(batch, columns.terminated, ended),
            truncated=self._flags(batch, columns.truncated, ended),
            steps=None if columns.step is None else self._numbers(batch.column(columns.step), columns.step),
        )
        if others:
            kinds = [self._known(batch, name, ended) for name in others]
            rows = rows._replace(other_rewards=np.concatenate(kinds, axis=1).astype(np.float64, copy=False))
        if columns.action is not None:
            rows = rows._replace(**self._taken(batch, ended))
        if columns.cluster is not None:
            rows = rows._replace(clusters=self._where(new, batch, columns.cluster, self._keys))
        if columns.time is not None:
            rows = rows._replace(times=self._where(new, batch, columns.time, self._numbers))
        if self.missing != "refuse":
            wide = [np.tile(hole[:, None], part.shape[1]) for hole, part in zip(holes, parts, strict=True)]
            rows = rows._replace(holes=np.concatenate(wide, axis=1), lost=self._lost)
        self._row += batch.num_rows
        return rows

    def coordinates(self) -> Coordinates:
        """What the states' coordinates are called, once there were rows: a list's are numbered."""
        names: list[str] = []
        for name in self.columns.states:
            names += numbered_names(name, self._widths[name])
        labels = {name: self.labels[name] for name in names if name in self.columns.text}
        return Coordinates(tuple(names), labels)

    def _new_episodes(self, ids: pa.Array[Any]) -> Bools:
        """Where another episode begins, of shape (n,); one that was there before is an error."""
        name = self.columns.episode
        keys = self._keys(ids, name)
        new = np.ones(len(ids), dtype=np.bool_)
        new[1:] = keys[1:] != keys[:-1]
        new[0] = self._last is None or keys[0] != self._last
        self._last = int(keys[-1])

        starts = np.flatnonzero(new)
        again = self._ids.add(keys[starts])
        if again is not None:
            self._refuse(
                np.arange(len(ids)) == starts[again],
                f"{name} must keep each episode's rows together",
                lambda at: f"{ids[at].as_py()!r} again after another episode",
                f"sort the rows by {name} and {self.columns.step}, or pass a data frame, which is sorted"
                if self.columns.step
                else "sort the rows, or name the column of their order in an episode with step=",
            )
        return new

    def _keys(self, column: Any, name: str) -> Ints:
        """Whole numbers as they are, and texts by their hashes, of shape (n,)."""
        from pyarrow import types

        ids = _plain(column)
        texts = types.is_string, types.is_large_string
        bytes_ = types.is_binary, types.is_large_binary, types.is_fixed_size_binary
        kind: Any = ids.type.value_type if types.is_dictionary(ids.type) else ids.type
        whole, cluster = types.is_integer(kind), name == self.columns.cluster
        days = cluster and (types.is_temporal(kind) or types.is_boolean(kind))
        if not (whole or days or any(is_kind(kind) for is_kind in (*texts, *bytes_))):
            self._refuse_type(
                name, "whole numbers, strings or dates" if cluster else "whole numbers or strings", kind
            )
        what = "cluster" if cluster else "episode"
        self._check_no_nulls(ids, name, f"give every {what if cluster else 'row'} the id of its {what}")
        if whole:
            keys: Ints = ids.to_numpy(zero_copy_only=False).astype(np.int64)
            return keys
        encoded: Any = ids.dictionary_encode()  # each id is looked at once, however long it is
        hashes = np.array([hash(value) for value in encoded.dictionary.to_pylist()], dtype=np.int64)
        return np.asarray(hashes[encoded.indices.to_numpy()])

    def _where(
        self, chosen: Bools, batch: pa.RecordBatch, name: str, values: Callable[[Any, str], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """A column's values in some rows, the only ones that are looked at, and 0 in others: (n, …)."""
        column = _plain(batch.column(name))
        if chosen.all():
            return values(column, name)
        self._rows = np.flatnonzero(chosen)
        found = values(column.take(self._rows), name)
        self._rows = None
        out = np.zeros((chosen.size, *found.shape[1:]), dtype=found.dtype)
        out[chosen] = found
        return out

    def _rewards(self, column: pa.Array[Any], name: str) -> tuple[Floats, Bools]:
        import pyarrow as pa

        if pa.types.is_null(column.type):
            return np.zeros(len(column)), np.ones(len(column), dtype=np.bool_)
        ended = nulls(column)
        if column.null_count:
            self._check_number(column.type, name)
            column = column.fill_null(0)
        if self.missing != "refuse" and pa.types.is_floating(column.type):
            self._lost |= _missing(column)
            column = pa.array(np.where(self._lost, 0.0, numbers(column)))
        found = self._numbers(
            column, name, "repair it; an episode's end state has a null reward, which is not the same as nan"
        )
        return found.astype(np.float64, copy=False), ended

    def _flags(self, batch: pa.RecordBatch, name: str | None, ended: Bools) -> Bools | None:
        """A column of booleans, or of 0 and 1; only an end row may have none."""
        from pyarrow import types

        if name is None:
            return None
        column = batch.column(name)
        whole = types.is_integer(column.type)
        if not (whole or types.is_boolean(column.type)):
            self._refuse_type(name, "booleans, or 0 and 1", column.type)
        if column.null_count:
            lost = nulls(column) & ~ended
            self._refuse(
                lost, f"{name} must not be null beside a reward", "null", "fill it with true or false"
            )
            column = column.fill_null(0 if whole else False)
        flags = column.to_numpy(zero_copy_only=False)
        if whole:
            self._refuse(
                (flags != 0) & (flags != 1),
                f"{name} must be true or false, or 1 or 0",
                lambda at: flags[at],
                "pass the column that says whether the episode ended",
            )
        return flags.astype(np.bool_, copy=False)

    def _taken(self, batch: pa.RecordBatch, ended: Bools) -> dict[str, npt.NDArray[Any]]:
        """The actions and the propensities, 0 in end rows."""
        self._unless = ", or pass action=None to leave actions out"
        found = {"actions": self._actions(batch, ended)}
        if self.columns.propensity is not None:
            self._unless = ", or pass propensity=None to leave it out"
            found["propensities"] = self._propensities(batch, self.columns.propensity, ended)
        self._unless = ""
        return found

    def _actions(self, batch: pa.RecordBatch, ended: Bools) -> npt.NDArray[Any]:
        """Whole numbers (n,) of one column of numbers or text; (n, k) of several, or of lists, continuous."""
        name = self.columns.action
        parts = [self._known(batch, each, ended) for each in self.columns.actions]
        if not isinstance(name, str) or _is_list(batch.column(name).type):
            return np.concatenate(parts, axis=1).astype(np.float64, copy=False)
        values = parts[0][:, 0]
        if values.dtype == np.float64:
            self._refuse(
                (values != np.rint(values)) | (np.abs(values) >= 2.0**53),
                f"{name} must hold whole numbers or names",
                lambda at: values[at],
                f"pass action=[{name!r}] where the actions are continuous",
            )
        return values.astype(np.int64, copy=False)

    def _propensities(self, batch: pa.RecordBatch, name: str, ended: Bools) -> Floats:
        values: Floats = self._known(batch, name, ended)[:, 0].astype(np.float64, copy=False)
        self._refuse(
            ~((values > 0.0) & (values <= 1.0) | ended | self._lost),
            f"{name} must be in (0, 1]",
            lambda at: values[at],
            "give the probability with which the recorded policy took the action that it took",
        )
        return values

    def _known(self, batch: pa.RecordBatch, name: str, ended: Bools) -> npt.NDArray[Any]:
        """A column that belongs to the reward (n, width): 0 in end rows, and where a value is missing."""
        values, hole = self._column(batch, name, ended)
        self._lost |= hole & ~ended
        return values

    def _column(
        self, batch: pa.RecordBatch, name: str, absent: Bools | None = None
    ) -> tuple[npt.NDArray[Any], Bools]:
        """One column as an array (n, width), and where values are missing (n,): 0 is in their place.

        So it is in rows where it is ``absent``: what the file has there is not looked at.
        """
        hole = np.zeros(batch.num_rows, dtype=np.bool_)
        if self.missing != "refuse":
            hole = _missing(_plain(batch.column(name)))
        return self._where(~hole if absent is None else ~(hole | absent), batch, name, self._values), hole

    def _values(self, column: Any, name: str) -> npt.NDArray[Any]:
        """One column without missing values as an array (n, width): a value, or a list, in each row."""
        import pyarrow.compute as pc
        from pyarrow import types

        if types.is_null(column.type) and not len(column):  # nothing is known of it
            return np.zeros((0, self._widths.get(name, 1)), dtype=np.int64)
        if name in self.columns.text:
            return self._codes(column, name)[:, None]
        if not _is_list(column.type):
            return self._numbers(column, name)[:, None]
        self._check_no_nulls(column, name, "fill it in or leave its episode out")
        if types.is_fixed_size_list(column.type):
            width = column.type.list_size
        elif not len(column):
            width = self._widths.get(name, 1)
        else:
            widths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
            width = self._widths.setdefault(name, int(widths[0]))
            self._refuse(
                widths != width,
                f"{name} must have as many numbers in every row",
                lambda at: f"{widths[at]} after {width}",
                "give it the same coordinates in all of them",
            )
        self._refuse(
            np.array([width == 0]),
            f"{name} must hold at least one number",
            "an empty list",
            "name another column",
        )
        return self._numbers(column.flatten(), name, width=width).reshape(-1, width)

    def _codes(self, column: pa.Array[Any], name: str) -> Ints:
        """The numbers of the names in a column of text, of shape (n,)."""
        if not is_text(column.type):
            self._refuse_type(name, "text, as it is in the first file", column.type)
        self._check_no_nulls(column, name, "fill it in or leave its episode out")
        found, unknown = codes(column, self.labels[name])
        self._refuse(
            unknown,
            f"{name} must be one of the {len(self.labels[name])} names that were found or given in codes",
            lambda at: repr(column[at].as_py()),
            "read the data again if they have changed, or add the name",
        )
        return found

    def _numbers(
        self,
        column: pa.Array[Any],
        name: str,
        remedy: str = "repair it or leave its episode out",
        width: int = 1,
    ) -> npt.NDArray[Any]:
        """A column of numbers without nulls: float64 and finite, or int64; ``width`` of them make a row."""
        self._check_number(column.type, name)
        self._check_no_nulls(column, name, "fill it in or leave its episode out", width)
        values = numbers(column)
        if values.dtype == np.float64:
            wrong, rule = ~np.isfinite(values), f"{name} must be finite"
            self._refuse(wrong, rule, lambda at: values[at], remedy, width)
            return values
        if values.dtype == np.uint64:
            wrong, rule = values > np.iinfo(np.int64).max, f"{name} must fit into 64 bits with a sign"
            self._refuse(wrong, rule, lambda at: values[at], "number the states from 0", width)
        return values.astype(np.int64, copy=False)

    def _check_number(self, kind: pa.DataType, name: str) -> None:
        if not is_numeric(kind):
            named = (*(self.columns.states), self.columns.action)
            self._refuse_type(name, "numbers, or of text in all files" if name in named else "numbers", kind)

    def _check_no_nulls(self, column: pa.Array[Any], name: str, remedy: str, width: int = 1) -> None:
        if column.null_count:
            if name in (*(self.columns.states), *self.columns.actions, self.columns.propensity):
                remedy += ", or say what to do about missing values with missing="
            self._refuse(nulls(column), f"{name} must not be null", "null", remedy, width)

    def _refuse(self, wrong: Bools, rule: str, got: Got, remedy: str, width: int = 1) -> None:
        """Raise for the first wrong entry of the batch; ``width`` of them make a row."""
        row = self._row
        if self._rows is not None and wrong.any():
            at = int(wrong.argmax()) // width
            row += int(self._rows[at]) - at
        refuse_first(self.file, row, wrong, rule, got, f"{remedy}{self._unless}", width)

    def _refuse_type(self, name: str, rule: str, kind: Any) -> None:
        from pyarrow import types

        kind = kind.value_type if types.is_dictionary(kind) else kind
        raise InvalidInputError(
            f"{name} must be a column of {rule}, got {kind} in {self.file}; convert it or name another column"
            f"{self._unless}"
        )


def _plain(column: Any) -> Any:
    """A column decoded, but for a dictionary of texts without null: these can be long, and in every row."""
    from pyarrow import types

    texts = types.is_dictionary(column.type) and not types.is_primitive(column.type.value_type)
    return column if texts and not column.dictionary.null_count else decoded(column)


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)


def _missing(column: Any) -> Bools:
    """Where a value is null or nan, or a list is null or holds one, of shape (n,)."""
    import pyarrow.compute as pc
    from pyarrow import types

    missing = nulls(column)
    if types.is_floating(column.type):
        missing |= pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)
    elif _is_list(column.type) and types.is_floating(column.type.value_type):
        inner = pc.is_null(column.flatten(), nan_is_null=True).to_numpy(zero_copy_only=False)
        row = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        missing[row[inner]] = True
    return missing
