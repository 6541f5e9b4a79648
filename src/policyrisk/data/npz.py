"""Episodes in NumPy's npz: the arrays of :class:`~policyrisk.data.Trajectories` by name.

States, and actions (n,), may be text (an array of type U or S). A column of it is a label, numbered as in
:mod:`policyrisk.data.arrow_rows`, unless all of its texts are numbers. The columns are called ``state``, or
``state_0``, ``state_1``, … where there are several, and ``action``. A file of :func:`write_npz` has one array
more where the coordinates have names: ``coordinates``, a text in JSON with these and those of labels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import as_path
from policyrisk._core.files import DAMAGE, array_names, array_type, from_json, read_arrays, write_atomically
from policyrisk._core.frames import Coordinates, numbered_names
from policyrisk.data.columns import LabelNames, as_codes
from policyrisk.data.files import check_no_numbers, is_number
from policyrisk.data.source import Source, batches
from policyrisk.data.stream import Once, Piece, Stream
from policyrisk.data.trajectories import ALL_COLUMNS, COLUMNS, Trajectories
from policyrisk.errors import InvalidInputError

_NAMES = "coordinates"
_COLUMN = {"states": "state", "actions": "action"}  # what a column of an array that may be text is called


def read_npz(path: str | os.PathLike[str], *, codes: Mapping[str, Sequence[str]] | None = None) -> Stream:
    """A stream of one batch: an npz file with the arrays states, rewards, lengths and terminated.

    Their shapes are those of :class:`~policyrisk.data.Trajectories`, as are those of actions, propensities,
    clusters and times, which it may have; other arrays are left alone, and nothing is unpickled.

    Parameters
    ----------
    path
        The file.
    codes
        By column, the names of states and actions that are text, in the order of their numbers; by default
        the file's own in the order of the alphabet.

    Returns
    -------
    Stream
        A re-iterable of Trajectories; ``.load()`` gives all episodes in memory.

    Examples
    --------
    >>> import tempfile; folder = tempfile.TemporaryDirectory()
    >>> write_npz(Trajectories([[0], [1]], [1.0], [1], [True]), f"{folder.name}/log.npz")
    >>> read_npz(f"{folder.name}/log.npz").load()
    Trajectories(1 episodes, 1 terminated, 1 transitions, dim 1)
    >>> folder.cleanup()
    """
    file = as_path(path)
    if not file.is_file():
        raise InvalidInputError(f"path must name an npz file, got {file}, which is none")

    given = as_codes(codes)

    @Once
    def labels() -> LabelNames:
        return {**npz_labels([file]), **given}

    def parts() -> Iterator[Piece]:
        yield Piece(_load(file, labels()), str(file))

    return Stream(str(file), parts, labels=labels)


def npz_labels(files: Iterable[Path]) -> LabelNames:
    """The names in each column of text of some files, in the order of the numbers that stand for them."""
    found: dict[str, set[str]] = {}
    for file in files:
        if any(_has_text(file, name) for name in _COLUMN):
            for column, texts in _columns(_arrays(file), file).items():
                found.setdefault(column, set()).update(np.unique(texts).tolist())
    labels = {column: names for column, names in found.items() if not all(map(is_number, names))}
    for column, names in labels.items():
        check_no_numbers(column, names)
    return {column: tuple(sorted(names)) for column, names in labels.items()}


def _has_text(file: Path, name: str) -> bool:
    """Whether an array of a file is text, by its header; not where there is none."""
    try:
        return array_type(file, name).kind in "US"
    except DAMAGE:
        return False  # whoever reads it says what is wrong


def _columns(arrays: dict[str, npt.NDArray[Any]], file: Path) -> dict[str, npt.NDArray[Any]]:
    """The columns of states and actions that are text, by their names."""
    found: dict[str, npt.NDArray[Any]] = {}
    for name, column in _COLUMN.items():
        texts = arrays.get(name, np.empty(0))
        if texts.dtype.kind not in "US":
            continue
        try:
            texts = np.char.decode(texts, "utf-8") if texts.dtype.kind == "S" else texts
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{name} must be text in UTF-8, got other bytes in {file} ({error}); write text of type U"
            ) from error
        if texts.ndim < 2:
            texts = texts.reshape(-1, 1)
        names = numbered_names(column, texts.shape[-1])
        found |= {name: texts[..., d] for d, name in enumerate(names)}
    return found


def _numbered(texts: npt.NDArray[Any], column: str, names: Sequence[str] | None) -> npt.NDArray[Any]:
    """A column of text as numbers, of shape (n,)."""
    if names is None:  # its texts are numbers
        try:
            return texts.astype(np.int64)
        except ValueError:
            return texts.astype(np.float64)
    known, codes = np.unique(texts, return_inverse=True)
    unknown = sorted(set(known.tolist()) - set(names))
    if unknown:
        raise InvalidInputError(
            f"{column} must be one of the {len(names)} names that were found or given in codes, got "
            f"{unknown[0]!r}; read the data again if they have changed, or add the name"
        )
    place = {name: k for k, name in enumerate(names)}
    return np.array([place[name] for name in known.tolist()], dtype=np.int64)[codes]


def _arrays(file: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        arrays = read_arrays(file, (*ALL_COLUMNS, _NAMES))
        there = array_names(file)
    except InvalidInputError:
        raise
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
    return arrays


def _load(file: Path, labels: LabelNames) -> Trajectories:
    arrays = _arrays(file)
    try:
        columns = _columns(arrays, file)
        if not labels.keys() <= columns.keys():
            raise InvalidInputError(
                f"codes must give names for columns of text in the states or actions, which are "
                f"{', '.join(columns) or 'none'}, got {', '.join(labels)}; leave it out"
            )
        numbers = {name: _numbered(texts, name, labels.get(name)) for name, texts in columns.items()}
        for name, column in _COLUMN.items():
            parts = [values for each, values in numbers.items() if each.startswith(column)]
            if parts:
                arrays[name] = parts[0] if arrays[name].ndim == 1 else np.stack(parts, axis=-1)
        noted = arrays.pop(_NAMES, None)
        columns_of: dict[str, Any] = arrays
        data = Trajectories(**columns_of)
        texts = {name: names for name, names in labels.items() if name != _COLUMN["actions"]}
        if noted is None and not texts:
            return data
        if noted is None:
            return replace(data, coordinates=Coordinates(numbered_names("state", data.dim), texts))
        return replace(data, coordinates=_noted(noted, data.dim))
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}") from error


def _noted(text: npt.NDArray[Any], dim: int) -> Coordinates:
    """The coordinates that :func:`write_npz` noted in a file."""
    try:
        noted = from_json(str(text[()]))
        labels = {str(name): tuple(map(str, names)) for name, names in noted["labels"].items()}
        found = Coordinates(tuple(noted["names"]), labels)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InvalidInputError(
            f"coordinates must be as write_npz writes them, got another text ({error}); leave the array out"
        ) from error
    return Coordinates.of(found, dim)


def write_npz(data: Source, path: str | os.PathLike[str]) -> None:
    """Write episodes as an npz file that :func:`read_npz` reads back exactly.

    Parameters
    ----------
    data
        Trajectories, or a stream of them.
    path
        The file.
    """
    all_of_it = Trajectories.concatenate(batches(data))
    names = [name for name in ALL_COLUMNS if getattr(all_of_it, name) is not None]
    columns = {name: getattr(all_of_it, name) for name in names}
    if (known := all_of_it.coordinates) is not None:
        columns[_NAMES] = np.array(json.dumps({"names": known.names, "labels": dict(known.labels)}))
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **columns))
