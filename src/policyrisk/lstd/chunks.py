"""A source's episodes in chunks, in the order of the data, and the work on each of them by all threads.

Chunks are worked on by all threads and what they give is added in the order of the data, so that the result
does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TypeVar

from policyrisk._core.threads import in_order
from policyrisk.data import Source, Trajectories, batches, pieces
from policyrisk.features import Features
from policyrisk.features.target import PolicyFeatures
from policyrisk.lstd.steps import Steps, View
from policyrisk.lstd.target_steps import TargetView

T = TypeVar("T")


def chunks(source: Iterable[Trajectories], most: int) -> Iterator[Trajectories]:
    """The batches' episodes in order, about ``most`` transitions at a time.

    Small batches of a stream are put together, large ones are cut between episodes.
    """
    waiting: list[Trajectories] = []
    count = 0
    for batch in chain(source, [None]):
        if batch is not None:
            waiting.append(batch)
            count += batch.transitions
        if waiting and (batch is None or count >= most):
            yield from pieces(waiting[0] if len(waiting) == 1 else Trajectories.concatenate(waiting), most)
            waiting, count = [], 0


def planned(
    source: Source, features: Features, second: Features, lam: float, discount: float
) -> tuple[View, Iterator[Trajectories]]:
    """The plan that suits the maps and the first states of a source, and all its batches."""
    kind = TargetView if isinstance(features, PolicyFeatures) else View
    found = (batch for batch in batches(source) if len(batch))
    first = next(found, None)
    plan = kind(features, second, lam, discount)
    return (plan, found) if first is None else (plan.at(first), chain([first], found))


def by_chunks(
    work: Callable[[Steps], T],
    source: Source,
    features: Features,
    second: Features,
    lam: float,
    discount: float,
) -> Iterator[T]:
    """``work`` of the steps of each chunk of a source, on all threads, in the order of the data."""
    yield from worked(work, *planned(source, features, second, lam, discount))


def worked(work: Callable[[Steps], T], plan: View, source: Iterable[Trajectories]) -> Iterator[T]:
    """The same with a plan and batches at hand."""
    parts = chunks(source, plan.chunk_size)
    yield from in_order(lambda data: work(plan.steps(data)), parts, uses_blas=plan.dense)
