"""Array aliases, and the gates for what a caller hands over: arrays, numbers, names, paths, records.

Each gate gives back what it was asked for or raises one of our errors. A caller's object may raise anything
while it is looked at (PyTorch's tensors do when they need gradients), so gates catch every exception there.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk.errors import InvalidInputError

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Matrix: TypeAlias = "Floats | sp.csr_array[Any, tuple[int, int]]"

Seed: TypeAlias = "int | np.random.SeedSequence | np.random.Generator | None"

_ROUNDING = 1e-6  # of a sum of probabilities in single precision
_STRIP = 64  # rows whose transposes are read together: a page of memory holds few entries of a column


def as_array(value: object, name: str, what: str) -> npt.NDArray[Any]:
    """Any array of real numbers, or an error that names it; ``what`` says what it should be."""
    rule = f"{name} must be {what}, got {type(value).__name__}"
    if is_masked(value):
        raise InvalidInputError(f"{rule} with masked entries; fill them or leave them out")
    try:
        array = np.asarray(value)
        if array.dtype == object:
            if any(isinstance(entry, str | bytes) for entry in array.flat):
                raise TypeError("text among the numbers")  # which NumPy would read as numbers where it can
            array = array.astype(np.float64)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"{rule} ({str(error)[:200]}); pass an array or a list of equal-length lists of numbers"
        ) from error
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{rule} of {array.dtype}; pass an array of real numbers")
    return array


def is_masked(value: object) -> bool:
    """Whether some entry of a masked array, or of one in a list or a deque, is masked: NumPy would use it.

    >>> is_masked(np.ma.array([1.0, 2.0], mask=[False, True])), is_masked(np.ma.array([1.0, 2.0]))
    (True, False)
    """
    if isinstance(value, np.ma.MaskedArray):
        return bool(np.ma.is_masked(value))
    return isinstance(value, list | tuple | deque) and any(
        is_masked(each) for each in value if isinstance(each, np.ma.MaskedArray | list | tuple | deque)
    )


def as_floats(value: object, name: str, shape: tuple[int | None, ...]) -> Floats:
    """A finite float64 array of the given shape (None: any length), or an error that names it."""
    given = as_array(value, name, f"numbers of shape {describe(shape)}")
    with np.errstate(over="ignore"):  # of a type with more digits
        array = given.astype(np.float64, copy=False)
    check_shape(array, name, shape)
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidInputError(
            f"{name} must be finite, got {array[where]} at index {where}; remove or repair that entry"
        )
    return array


def as_whole(value: object, name: str, shape: tuple[int | None, ...]) -> Ints:
    """An int64 array of the given shape, or an error that names it; booleans and floats are none."""
    array = as_array(value, name, f"whole numbers of shape {describe(shape)}")
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidInputError(f"{name} must be whole numbers, got {array.dtype}; pass an array of ints")
    check_shape(array, name, shape)
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise InvalidInputError(f"{name} must be below 2**63, got {array.max()}; pass smaller numbers")
    return array.astype(np.int64)


def as_actions(value: object, name: str, n: int, actions: int) -> Ints:
    """n actions from 0 to actions − 1, one per state."""
    chosen = as_array(value, name, f"{n} actions")
    if chosen.dtype.kind not in "iu" and chosen.size:
        rule, got = "be whole numbers", str(chosen.dtype)
    elif chosen.shape != (n,):
        rule, got = f"have shape ({n},)", str(chosen.shape)
    else:
        wrong = np.flatnonzero((chosen < 0) | (chosen >= actions))
        if not wrong.size:
            return chosen.astype(np.int64)
        rule, got = f"be in 0, …, {actions - 1}", f"{chosen[wrong[0]]} at index {wrong[0]}"
    raise InvalidInputError(f"{name} must {rule}, got {got}; pass one action per state, as ints")


def as_distributions(value: object, name: str, shape: tuple[int | None, int | None]) -> Floats:
    """Rows of probabilities that sum to 1, up to the rounding of single precision, or an error."""
    table = as_floats(value, name, shape)
    off = np.abs(table @ np.ones(table.shape[1]) - 1.0) > _ROUNDING
    if off.any() or table.min(initial=0.0) < 0:
        wrong = np.flatnonzero(off | (table < 0).any(axis=1))
        raise InvalidInputError(
            f"{name} must have rows of probabilities, got {table[wrong[0]].tolist()} in row "
            f"{name_some(wrong)}; make every entry at least 0 and every row sum to 1"
        )
    return table


def check_shape(array: npt.NDArray[Any], name: str, shape: tuple[int | None, ...]) -> None:
    """Raise unless ``array.shape`` fits ``shape``, where None stands for any length."""
    if array.ndim != len(shape) or any(
        want is not None and got != want for got, want in zip(array.shape, shape, strict=True)
    ):
        raise InvalidInputError(
            f"{name} must have shape {describe(shape)}, got {array.shape}; reshape or slice it"
        )


def is_frame(value: object) -> bool:
    """Whether a value is a data frame: a table that knows the names of its columns.

    >>> is_frame([[0.5]]), is_frame(np.ones((2, 2)))
    (False, False)
    """
    kind = type(value)
    tells = any(hasattr(kind, name) for name in ("__arrow_c_stream__", "__dataframe__", "collect_schema"))
    return tells and any(hasattr(kind, name) for name in ("columns", "schema"))


def as_states(value: object, name: str = "states", dim: int | None = None) -> Floats:
    """States as a finite array of shape (n, dim); a 1-D array means n states of dimension 1.

    Where states are known to have ``dim`` > 1 coordinates, as many numbers are one state. A data frame is
    refused: its columns have names, which may be in another order than the coordinates.
    """
    if is_frame(value):
        raise InvalidInputError(
            f"{name} must be an array where the names of the state's columns are not known, got a "
            f"{type(value).__name__}; pass its columns in the order of the data's, as in "
            "frame[['a', 'b']].to_numpy(), or fit to data that have names (Trajectories.from_frame)"
        )
    array = as_array(value, name, "numbers of shape (n, dim)")
    if array.ndim == 1:
        array = array[None] if dim not in (None, 1) and len(array) == dim else array[:, None]
    return as_floats(array, name, (None, None))


def as_count(value: Any, name: str, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
    """A whole number from ``minimum`` to ``maximum``."""
    rule = f"{name} must be a whole number of at least {minimum}, got {shown(value)}"
    try:
        number = operator.index(value)
    except Exception as error:
        raise InvalidInputError(f"{rule}; pass an int") from error
    if isinstance(value, bool) or number < minimum:
        raise InvalidInputError(f"{rule}; pass a larger int")
    if number > maximum:
        raise InvalidInputError(f"{name} must be at most {maximum}, got {shown(value)}; pass a smaller int")
    return number


def as_number(
    value: Any,
    name: str,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    open_low: bool = False,
    remedy: str = "pass a number in that range",
) -> float:
    """A finite number in [low, high], or in (low, high] with ``open_low``."""
    try:
        none = isinstance(value, str | bytes | np.ma.MaskedArray) or np.iscomplexobj(value) or np.ndim(value)
        number = np.nan if none else float(value)
    except Exception:
        number = np.nan
    inside = (low < number if open_low else low <= number) and number <= high
    if not (inside and np.isfinite(number)):
        rule = f"{'(' if open_low else '['}{low:g}, {high:g}{']' if np.isfinite(high) else ')'}"
        raise InvalidInputError(f"{name} must be in {rule}, got {shown(value)}; {remedy}")
    return number


def as_flag(value: object, name: str) -> bool:
    """True or False, or 1 or 0."""
    if not isinstance(value, bool | int | np.bool_) or value not in (0, 1):
        raise InvalidInputError(f"{name} must be True or False, got {shown(value)}; pass one of them")
    return bool(value)


def as_list(value: Any, name: str, what: str) -> list[Any]:
    """The items of an iterable that is no text; ``what`` says what they should be."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        items = iter(value)
    except Exception as error:
        raise InvalidInputError(f"{name} must be {what}, got {shown(value)}; pass a list of them") from error
    return list(items)


def as_path(value: object, name: str = "path") -> Path:
    """A path that the system can look up, whether or not anything is there."""
    try:
        path = Path(value)  # type: ignore[arg-type]
        str(path).encode()  # Arrow takes UTF-8 alone
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error)[:200]
        raise InvalidInputError(
            f"{name} must be that of a file or a folder, got {shown(value)} ({reason}); pass a text or a Path"
        ) from error
    return path


def check_kind(value: object, name: str, kind: Any, remedy: str) -> None:
    """Raise unless ``value`` is of a class, or of one of several; ``remedy`` says how to come by one."""
    if not isinstance(value, kind):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise InvalidInputError(f"{name} must be a {names}, got {type(value).__name__}; {remedy}")


def check_callable(value: object, name: str, what: str) -> None:
    """Raise unless ``value`` can be called; ``what`` says what the call should do."""
    if not callable(value):
        raise InvalidInputError(f"{name} must be {what}, got {shown(value)}; pass a function")


def check_named(value: object, name: str, what: str, example: str) -> None:
    """Raise unless ``value`` is a mapping from at least one name to ``what``."""
    if not isinstance(value, Mapping) or not value:
        raise InvalidInputError(
            f"{name} must be a dictionary of at least one name and its {what}, got {type(value).__name__}; "
            f'pass {{"a": {example}}}'
        )


def check_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}; choose one")


def is_utf8(text: str) -> bool:
    """Whether a text can be written: halves of characters, which broken file names have, cannot."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def shown(value: object) -> str:
    """A caller's value in a message: its repr, shortened; its class where it has none."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:119]}…"


def is_sparse(value: object) -> TypeGuard[sp.csr_array[Any, tuple[int, int]]]:
    """``scipy.sparse.issparse``; of the formats' attributes those that CSR shares are known to exist."""
    return sp.issparse(value)


def as_dense(matrix: Any) -> Floats:
    """A matrix, sparse or not, as an array."""
    array: Floats = matrix.toarray() if is_sparse(matrix) else np.asarray(matrix)
    return array


def as_csr(value: Any, name: str) -> sp.csr_array[Any, tuple[int, int]]:
    """A sparse matrix as finite float64 entries in CSR, sorted and none repeated, or an error that names it.

    The arrays are always our own: SciPy sorts and sums in place, and the caller's index arrays would be
    changed under the caller's data.
    """
    if value.dtype.kind not in "biuf" or value.ndim != 2:
        raise InvalidInputError(
            f"{name}'s entries must be real numbers in two dimensions, got {value.dtype} of shape "
            f"{value.shape}; pass a matrix of real numbers"
        )
    try:
        # To float64 first, so that the sum of repeated entries cannot overflow a small type.
        matrix = sp.csr_array(value.astype(np.float64, copy=False), copy=True)
        matrix.check_format(full_check=True)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"{name} must be a whole sparse matrix, got one whose parts do not fit ({error}); make it again"
        ) from error
    matrix.sum_duplicates()
    as_floats(matrix.data, f"{name}'s entries", (None,))
    return matrix


def ranges(first: Ints, lengths: Ints) -> Ints:
    """first_k, …, first_k + lengths_k − 1 for k = 0, 1, … in turn.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    before = np.cumsum(lengths) - lengths
    found: Ints = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
    return found


def row_pairs(one: Any, other: Any) -> tuple[Ints, Ints]:
    """The places in ``data`` of each entry of a row of one CSR matrix beside each of the other's row."""
    taken = np.diff(one.indptr)
    repeats = np.repeat(np.diff(other.indptr), taken)  # how often each entry of one is taken
    return np.repeat(np.arange(one.nnz), repeats), ranges(np.repeat(other.indptr[:-1], taken), repeats)


def row_products(one: Any, other: Any) -> Any:
    """Each entry of a row of one matrix times each of the other's row: of (n, a) and (n, b), CSR (n, a·b)."""
    left, right = row_pairs(one, other)
    columns = one.indices[left] * np.int64(other.shape[1]) + other.indices[right]
    starts = np.append(0, np.cumsum(np.diff(one.indptr) * np.diff(other.indptr)))
    shape = one.shape[0], one.shape[1] * other.shape[1]
    return sp.csr_array((one.data[left] * other.data[right], columns, starts), shape=shape)


def readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view that cannot be written to; the array itself, which may be the caller's, stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view


def freeze(record: Any) -> None:
    """Make the arrays of a frozen dataclass read-only, as views: their owners' own stay as they are."""
    for name, value in vars(record).items():
        if isinstance(value, np.ndarray):
            object.__setattr__(record, name, readonly(value))


def is_symmetric(matrix: npt.NDArray[Any]) -> bool:
    """Whether a matrix (n, m) equals its transpose."""
    strips = [slice(first, first + _STRIP) for first in range(0, len(matrix), _STRIP)]
    return matrix.shape == matrix.T.shape and all(
        np.array_equal(matrix[at, at.start :], matrix[at.start :, at].T) for at in strips
    )


def lower_triangle(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The entries of a matrix (n, n) on and below the diagonal, row by row, of shape (n (n + 1) / 2,)."""
    return matrix[np.tri(len(matrix), dtype=np.bool_)]


def from_triangle(triangle: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """The symmetric matrix (n, n) with this lower triangle."""
    matrix = np.empty((n, n), dtype=triangle.dtype)
    below = np.tri(n, dtype=np.bool_)
    matrix[below] = triangle
    matrix.T[below] = triangle
    return matrix


def describe(shape: tuple[int | None, ...]) -> str:
    """A shape as text, with ``*`` for any length."""
    inner = ", ".join("*" if length is None else str(length) for length in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def name_some(indices: npt.ArrayLike, most: int = 8) -> str:
    """The first few indices as text, for messages: ``0, 4, 7, … (12 in all)``."""
    all_indices = np.asarray(indices).ravel().tolist()
    text = ", ".join(str(i) for i in all_indices[:most])
    return f"{text}, … ({len(all_indices)} in all)" if len(all_indices) > most else text
