"""Where to work: on all threads of the CPU, or on a GPU, and the packages that a GPU is reached by.

Each of our threads has one BLAS thread. Two threads that call a BLAS which itself uses two make four, and
BLAS threads that wait do so at full speed. threadpoolctl tells NumPy's BLAS to use one; a BLAS that it does
not know is left alone. (SciPy's BLAS would not do for the work: its wrappers keep Python's lock.) PyTorch's
own threads are held to one alike.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from threading import Lock
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numba import get_num_threads
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from policyrisk._core.arrays import check_choice
from policyrisk._core.imports import check_installed
from policyrisk.errors import DeviceError

Device: TypeAlias = Literal["cpu", "cuda", "auto"]

_GONE = "row_stack"
_In = TypeVar("_In")
_Out = TypeVar("_Out")

_lock = Lock()
_holders = 0
_limit: Any = None  # what was set, to be set back
_in_torch = _torch_threads = 0  # calls under way, and PyTorch's own number of threads


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


@cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process; to find them takes milliseconds, so that it is done once."""
    return ThreadpoolController().select(user_api="blas")


@cache
def controllable() -> bool:
    """Whether :func:`single_threaded` does anything to NumPy's own BLAS: Apple's cannot be told."""
    config: Any = np.show_config(mode="dicts")
    return len(_blas()) > 0 and "accelerate" not in config["Build Dependencies"]["blas"]["name"].lower()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Hold BLAS to one thread; the first to come in sets it, the last to leave sets it back."""
    global _holders, _limit
    with _lock:
        if _holders == 0:
            _limit = _blas().limit(limits=1)
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0:
                _limit.restore_original_limits()


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Hold PyTorch to one thread, each of ours on its own: the passes use them all."""
    import torch

    global _in_torch, _torch_threads
    with _lock:
        if _in_torch == 0:
            _torch_threads = torch.get_num_threads()
        _in_torch += 1
        before = _torch_threads
    torch.set_num_threads(1)  # of this thread alone, as is the way back
    try:
        yield
    finally:
        torch.set_num_threads(before)
        with _lock:
            _in_torch -= 1


def in_order(function: Callable[[_In], _Out], items: Iterable[_In], *, uses_blas: bool) -> Iterator[_Out]:
    """``function`` of every item, on all threads, in the items' order; few results wait at a time.

    A function that ``uses_blas`` runs on one thread where BLAS cannot be told to leave the others to us. Its
    results are dense matrices, of which fewer may wait.
    """
    threads = get_num_threads() if not uses_blas or controllable() else 1
    most = threads if uses_blas else 2 * threads
    rest = iter(items)
    begin = list(islice(rest, 2))
    if threads == 1 or len(begin) < 2:
        yield from map(function, chain(begin, rest))
        return
    with single_threaded(), ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Out]] = deque()
        try:
            for item in chain(begin, rest):
                waiting.append(pool.submit(function, item))
                if len(waiting) > most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
