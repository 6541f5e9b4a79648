"""One BLAS thread for each of ours, while ours do the work.

Two threads that call a BLAS which itself uses two make four, and BLAS threads that wait do so at full speed.
OpenBLAS, which NumPy's own packages bring along, can be told to use one; other libraries are left alone.
(SciPy's BLAS would not do: its wrappers keep Python's lock.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import product
from threading import Lock
from typing import Any

_lock = Lock()
_holders = 0
_before = 1


@cache
def _control() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """Functions that read and set the number of threads of NumPy's BLAS, if it has them."""
    # A symbol that the module does not define is looked up in the libraries that it is linked to.
    library = ctypes.CDLL(str(import_module("numpy.linalg._umath_linalg").__file__))
    for prefix, suffix in product(("scipy_openblas", "openblas"), ("64_", "")):
        get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
        set_to = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
        if get is not None and set_to is not None:
            return get, set_to
    return None


def controllable() -> bool:
    """Whether :func:`single_threaded` does anything."""
    return _control() is not None


@contextmanager
def single_threaded() -> Iterator[None]:
    """Hold NumPy's BLAS to one thread; the first to come in sets it, the last to leave sets it back."""
    global _holders, _before
    control = _control()
    if control is None:
        yield
        return
    get, set_to = control
    with _lock:
        if _holders == 0:
            _before = get()
            set_to(1)
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0:
                set_to(_before)
