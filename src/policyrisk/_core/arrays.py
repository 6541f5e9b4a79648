"""Array aliases, and the checks that turn a caller's value into an array or into one of our errors."""

from __future__ import annotations

import operator
from collections.abc import Mapping
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
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidInputError(f"{rule} with masked entries; fill them or leave them out")
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"{rule}; pass an array or a list of equal-length lists of numbers"
        ) from error
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{rule} of {array.dtype}; pass an array of real numbers")
    return array


def as_floats(value: object, name: str, shape: tuple[int | None, ...]) -> Floats:
    """A finite float64 array of the given shape (None: any length), or an error that names it."""
    array = as_array(value, name, f"numbers of shape {describe(shape)}").astype(np.float64, copy=False)
    check_shape(array, name, shape)
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidInputError(
            f"{name} must be finite, got {array[where]} at index {where}; remove or repair that entry"
        )
    return array


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


def as_states(value: object, name: str = "states") -> Floats:
    """States as a finite array of shape (n, dim); a 1-D array means n states of dimension 1."""
    array = as_array(value, name, "numbers of shape (n, dim)")
    return as_floats(array[:, None] if array.ndim == 1 else array, name, (None, None))


def as_count(value: Any, name: str, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
    """A whole number from ``minimum`` to ``maximum``."""
    rule = f"{name} must be a whole number of at least {minimum}, got {value!r}"
    try:
        number = operator.index(value)
    except TypeError as error:
        raise InvalidInputError(f"{rule}; pass an int") from error
    if isinstance(value, bool) or number < minimum:
        raise InvalidInputError(f"{rule}; pass a larger int")
    if number > maximum:
        raise InvalidInputError(f"{name} must be at most {maximum}, got {value!r}; pass a smaller int")
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
        number = np.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = np.nan
    inside = (low < number if open_low else low <= number) and number <= high
    if not (inside and np.isfinite(number)):
        rule = f"{'(' if open_low else '['}{low:g}, {high:g}{']' if np.isfinite(high) else ')'}"
        raise InvalidInputError(f"{name} must be in {rule}, got {value!r}; {remedy}")
    return number


def check_named(value: object, name: str, what: str, example: str) -> None:
    """Raise unless ``value`` is a mapping from at least one name to ``what``."""
    if not isinstance(value, Mapping) or not value:
        raise InvalidInputError(
            f"{name} must be a dictionary of at least one name and its {what}, got {type(value).__name__}; "
            f'pass {{"a": {example}}}'
        )


def check_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the choices."""
    if value not in choices:
        raise InvalidInputError(f"{name} must be one of {', '.join(choices)}, got {value!r}; choose one")


def is_sparse(value: object) -> TypeGuard[sp.csr_array[Any, tuple[int, int]]]:
    """``scipy.sparse.issparse``; of the formats' attributes those that CSR shares are known to exist."""
    return sp.issparse(value)


def as_csr(value: Any, name: str) -> sp.csr_array[Any, tuple[int, int]]:
    """A sparse matrix as finite float64 entries in CSR, sorted and none repeated, or an error that names it.

    The arrays are always our own: SciPy sorts and sums in place, and the caller's index arrays would be
    changed under the caller's data.
    """
    if value.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"{name}'s entries must be real numbers, got {value.dtype}; pass a matrix of real numbers"
        )
    # To float64 first, so that the sum of repeated entries cannot overflow a small type.
    matrix = sp.csr_array(value.astype(np.float64, copy=False), copy=True)
    matrix.sum_duplicates()
    as_floats(matrix.data, f"{name}'s entries", (None,))
    return matrix


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
