"""Ray itself: started when it is needed, quiet, and ended by whoever started it."""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numba

from policyrisk._core.arrays import as_count
from policyrisk._core.devices import single_threaded
from policyrisk._core.imports import check_installed
from policyrisk.errors import InvalidInputError, PolicyRiskError, WorkerError

_PATIENCE = 10.0  # seconds for a cluster to answer
# Of a cluster that does not answer any more before it is given up. Ray would end this process after 60, with
# nothing saved and no error raised.
LOST_AFTER = 30.0
_LOOK = 2.0  # seconds between two looks at whether it answers
RETRIES = 5  # times that a task is begun again after its worker or machine died


@contextmanager
def cluster(address: str | None = None, *, workers: int | None = None) -> Iterator[None]:
    """Have Ray at hand in a ``with`` block: the one that runs already, else one that ends with the block.

    All machines need policyrisk.

    Parameters
    ----------
    address
        Of an existing cluster, as ``ray.init`` takes it ("auto", "HOST:6379", "ray://HOST:10001"). None, and
        no RAY_ADDRESS in the environment, starts one on this machine and on its loopback interface alone.
    workers
        Of one that is started; one for each core where None.

    Returns
    -------
    context manager
        Ray runs inside of the block.

    Examples
    --------
    >>> from policyrisk import distributed
    >>> with distributed.cluster(workers=2):  # doctest: +SKIP
    ...     risk = distributed.fit(lstd, "episodes/")
    """
    if running():
        if address is not None or workers is not None:
            raise InvalidInputError(
                f"address and workers must be left out while Ray runs, got {address!r} and {workers!r}; "
                "call ray.shutdown() first, or use what runs"
            )
        yield
        return
    start(address, workers)
    try:
        yield
    finally:
        load().shutdown()


def load() -> Any:
    """The package ray."""
    check_installed("ray", "policyrisk.distributed")
    import ray

    return ray


def running() -> bool:
    """Whether this process is connected to a cluster."""
    return "ray" in sys.modules and bool(load().is_initialized())


def start(address: str | None = None, workers: int | None = None) -> None:
    """Connect to a cluster, or start one here."""
    check_installed("ray", "policyrisk.distributed")
    target = address or os.environ.get("RAY_ADDRESS") or "local"
    count = None if workers is None else as_count(workers, "workers", 1)
    options: dict[str, Any] = {}
    if target == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Without "clusters" Ray stays on 127.0.0.1; it looks at this when it is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        options = {"include_dashboard": False, "num_cpus": count}
    elif count is not None:
        raise InvalidInputError(
            f"workers must be left out for an existing cluster, got {workers} for {target}; it has its own"
        )
    else:
        _check_reachable(target)
    try:
        load().init(address=target, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(target, error) from error


def _check_reachable(address: str) -> None:
    """Raise where nobody answers at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(
        f"address must be that of a Ray cluster that runs, got {address!r} ({error}); start one with "
        "`ray start --head`, or leave the address out"
    )


def workers() -> int:
    """How many tasks run at a time."""
    return max(int(load().cluster_resources().get("CPU", 1)), 1)


def task(function: Callable[..., Any], returns: int = 1) -> Any:
    """A Ray task that has a core for itself: one thread, of Numba's as of BLAS's."""

    @functools.wraps(function)
    def alone(*arguments: Any) -> Any:
        numba.set_num_threads(1)
        with single_threaded():
            return function(*arguments)

    return load().remote(num_cpus=1, max_retries=RETRIES, num_returns=returns)(alone)


def put(thing: object, what: str) -> Any:
    """A reference to a thing that was sent to the cluster."""
    try:
        return load().put(thing)
    except (TypeError, AttributeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInputError(
            f"{what} must be something that can be pickled and sent to other processes, got {reason}; "
            "pass what makes it instead, such as a function or an environment's id"
        ) from error


def first_done(references: Iterable[Any], *, fetch_local: bool = True) -> Any:
    """The reference of a task that is over."""
    waited_for, silence = list(references), Silence()
    while True:
        over, _ = load().wait(waited_for, num_returns=1, timeout=_LOOK, fetch_local=fetch_local)
        if over:
            return over[0]
        silence.check()


class Silence:
    """For how long a cluster has not answered."""

    def __init__(self) -> None:
        self.address = load().get_runtime_context().gcs_address
        self.heard = time.monotonic()

    def check(self) -> None:
        """Raise where it has been silent for LOST_AFTER seconds."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_LOOK).close()
        except OSError as error:
            if time.monotonic() - self.heard < LOST_AFTER:
                return
            raise WorkerError(
                f"the cluster must answer, and {self.address} did not for {LOST_AFTER:g} seconds ({error}): "
                "its head, or the way there, is gone; start it again, and begin anew, or with resume=True "
                "where there is a checkpoint"
            ) from None
        self.heard = time.monotonic()


def get(reference: Any, doing: str) -> Any:
    """What a task returned; what it raised is raised as it was."""
    errors, silence = load().exceptions, Silence()
    try:
        while True:
            try:
                return load().get(reference, timeout=_LOOK)
            except errors.GetTimeoutError:
                silence.check()
    except errors.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, errors.RayError):  # of a task that this one waited for
            raise _lost(doing, cause) from None
        raise (cause if isinstance(cause, Exception) else PolicyRiskError(str(error))) from None
    except errors.RayError as error:
        raise _lost(doing, error) from error


def _lost(doing: str, error: Exception) -> WorkerError:
    reason = " ".join(str(error).split())[:300]
    return WorkerError(
        f"{doing} must be finished by a worker, and none did so in {RETRIES + 1} attempts ({reason}); look "
        "for a lack of memory there (smaller shards, fewer features or fewer workers a machine), or for "
        "machines that went away"
    )
