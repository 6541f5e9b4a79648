"""Passes over the data, and who runs them.

What is learned from data of any size is learned in passes: the survey, equations and returns, what cut-off
episodes give up, the scores for the error bars. Each pass is a function from a source of episodes to
something that adds,

    pass(a and b together) = pass(a) + pass(b)            (up to rounding),

so that it can be taken by many, each over its own *part* of the data. A :class:`Reduce` runs a pass over
all the data: :func:`here` in this process, as a single part; :mod:`policyrisk.passes.checkpoint` in this
process, batch by batch and with a file to go on from; :mod:`policyrisk.distributed` on the machines of a
cluster.
Passes are small records or functions, and are sent where the data are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from policyrisk.data import Source
from policyrisk.data.source import InUnits

Sum = TypeVar("Sum")


class Reduce(Protocol):
    """The data as far as an estimator sees them: it runs passes over them."""

    def __call__(self, work: Callable[[Source, int], Sum], /) -> Sum:
        """The sum of ``work(source, part)`` over all parts of the data; parts are numbered from 0."""


def reduce_in_units(reduce: Reduce, unit: float) -> Reduce:
    """Passes over the same data with rewards in other units: see :mod:`policyrisk._core.units`."""
    if unit == 1.0:
        return reduce

    def in_units(work: Callable[[Source, int], Sum]) -> Sum:
        return reduce(lambda source, part: work(InUnits(source, unit), part))

    return in_units


def here(data: Source) -> Reduce:
    """Runs passes over data in this process, which are one part.

    >>> from policyrisk.data import Trajectories
    >>> here(Trajectories([[0], [1]], [1.0], [1], [True]))(lambda source, part: len(source))
    1
    """

    def reduce(work: Callable[[Source, int], Sum]) -> Sum:
        return work(data, 0)

    return reduce
