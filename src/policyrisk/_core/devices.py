"""Where to work: on the CPU or on a GPU, and the packages that a GPU is reached by."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from policyrisk._core.arrays import check_choice
from policyrisk._core.imports import check_installed
from policyrisk.errors import DeviceError

Device: TypeAlias = Literal["cpu", "cuda", "auto"]

_GONE = "row_stack"


def on_gpu(device: Device, package: Literal["numba_cuda", "cupy", "torch"]) -> bool:
    """Whether to work on a GPU, by the package: "auto" where there is one; an error for "cuda" in vain.

    >>> on_gpu("cpu", "cupy")
    False
    """
    check_choice(device, "device", get_args(Device))
    if device == "cpu":
        return False
    if device == "cuda":
        check_installed(package, 'device="cuda"')
    found = _found(package)
    if device == "cuda" and not found:
        raise DeviceError(
            'device="cuda" needs an NVIDIA GPU and its driver, and found none; pass device="cpu", or "auto" '
            "for a GPU where there is one"
        )
    return found


@cache
def _found(package: str) -> bool:
    """Whether the package is there and sees a GPU."""
    try:
        if package == "numba_cuda":
            return bool(numba_cuda().is_available())
        if package == "torch":
            import torch

            return bool(torch.cuda.is_available())
        return bool(cupy().cuda.is_available())
    except ImportError:
        return False


@contextmanager
def older_numpy() -> Iterator[None]:
    """NumPy with a name that numba-cuda 0.30 asks for when it loads, and that NumPy 2.5 no longer has."""
    gone = not hasattr(np, _GONE)
    if gone:
        setattr(np, _GONE, np.vstack)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if gone:
            delattr(np, _GONE)


@cache
def numba_cuda() -> Any:
    """numba.cuda."""
    with older_numpy():
        from numba import cuda
    return cuda


@cache
def cupy() -> Any:
    """CuPy."""
    import cupy

    return cupy


@cache
def kernel(source: str, name: str) -> Any:
    """A kernel of CUDA's C, compiled by CuPy when it is first called; products are rounded as on the CPU."""
    return cupy().RawKernel(source, name, options=("--fmad=false",))
