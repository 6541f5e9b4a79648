"""Helpers that several files of tests share, and the mark of those that need a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from policyrisk.features import protocol
from policyrisk.lstd import accumulate as sums
from policyrisk.lstd.steps import View

collect_ignore = ["data"]  # programs there wrote the files beside them, with the package of their time
SERVICES = {"machines", "browser"}  # fixtures: a Ray cluster, a Chromium


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        example_on_ray = item.path.parent.name == "distributed"
        if example_on_ray or SERVICES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.service)


@pytest.fixture(autouse=True)
def only_maps_of_before() -> Iterator[None]:
    """A feature map that a test or a page of the documentation makes known is forgotten after it."""
    before = dict(protocol._KINDS)
    yield
    protocol._KINDS.clear()
    protocol._KINDS.update(before)


def dense(phi: Any) -> npt.NDArray[np.float64]:
    """Features, or another matrix that may be sparse, as an array."""
    return phi.toarray() if sp.issparse(phi) else np.asarray(phi)


def accumulate(data: Any, features: Any, second: Any = None, *, lam: float, discount: float) -> Any:
    """The moment equations of some episodes; φ_M is φ_J where ``second`` is None."""
    return sums.accumulate(data, View(features, features if second is None else second, lam, discount))


def scaled(x: list[float], low: list[float], high: list[float]) -> list[float]:
    """The nearest point of the box, which is brought to [0, 1]."""
    return [(min(max(value, a), b) - a) / (b - a) for value, a, b in zip(x, low, high, strict=True)]


def assert_same(a: Any, b: Any) -> None:
    """Two Trajectories agree to the bit, shapes and types included."""
    assert a.action_kind == b.action_kind
    for name in ("states", "rewards", "lengths", "terminated", "actions", "propensities"):
        x, y = getattr(a, name), getattr(b, name)
        if x is None:
            continue
        np.testing.assert_array_equal(x, y, err_msg=name, strict=True)
        assert x.tobytes() == y.tobytes(), name


def listing(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder: what each file holds, None for a folder; compiled modules are left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


class Stops:
    """Data whose pass number ``last`` is never finished."""

    def __init__(self, parts, last):
        self.parts, self.last, self.passes = parts, last, 0

    def __iter__(self):
        self.passes += 1
        yield self.parts[0]
        if self.passes == self.last:
            raise KeyboardInterrupt
        yield from self.parts[1:]
