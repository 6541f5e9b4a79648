"""What a feature map gave for some states, checked and of one type: kernels that read it check no bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Ints, Matrix
from policyrisk.errors import InvalidInputError
from policyrisk.features.protocol import BinaryFeatures, Features


def is_binary(features: Features) -> TypeGuard[BinaryFeatures]:
    """As isinstance(features, BinaryFeatures), which takes longer than a small batch."""
    return hasattr(features, "active")


def active_of(features: BinaryFeatures, states: npt.NDArray[Any]) -> Ints:
    """The indices of the features that are 1, of shape (n, ones), in C order."""
    active = np.ascontiguousarray(features.active(states), dtype=np.int64)
    if active.ndim != 2 or len(active) != len(states):
        raise InvalidInputError(
            f"features.active must return indices of shape ({len(states)}, ones) for {len(states)} states, "
            f"got shape {active.shape}; return one row of indices per state"
        )
    _check_columns(active, features.size)
    return active


def matrix_of(features: Features, states: npt.NDArray[Any]) -> Matrix:
    """φ(states), of shape (n, size): dense, in C order, or CSR in canonical format; of float64."""
    given = features(states)
    phi: Any = given if sp.issparse(given) else np.asarray(given)
    if phi.shape != (len(states), features.size):
        raise InvalidInputError(
            f"features must return an array of shape {(len(states), features.size)} for "
            f"{len(states)} states, got {phi.shape}; return one row of {features.size} per state"
        )
    if not sp.issparse(phi):
        return np.ascontiguousarray(phi, dtype=np.float64)
    csr = sp.csr_array(phi, dtype=np.float64)
    _check_columns(csr.indices, features.size)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def outside(maps: Iterable[Features], states: npt.NDArray[Any]) -> Bools:
    """Which states lie outside the box of one of the maps, of shape (n,); a map may have no box."""
    found = np.zeros(len(states), dtype=np.bool_)
    for features in maps:
        tell = getattr(features, "outside", None)
        if tell is not None:
            found |= tell(states)
    return found


def _check_columns(columns: npt.NDArray[Any], size: int) -> None:
    if columns.size and not (columns.min() >= 0 and columns.max() < size):
        raise InvalidInputError(
            f"features must have indices from 0 to {size - 1}, got {columns.min()} to {columns.max()}; "
            "make size and the indices agree"
        )
