from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

_F = TypeVar("_F", bound=Callable[..., Any])

@overload
def njit(function: _F, /) -> _F: ...
@overload
def njit(
    *,
    cache: bool = ...,
    parallel: bool = ...,
    nogil: bool = ...,
    fastmath: bool | set[str] = ...,
    inline: str = ...,
    error_model: str = ...,
    boundscheck: bool = ...,
) -> Callable[[_F], _F]: ...
def parallel_chunksize(size: int) -> AbstractContextManager[int]: ...
def prange(start: int, stop: int = ..., step: int = ...) -> Iterator[int]: ...
def get_num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
