"""What recorded episodes look like, before anything is estimated: counts, the box, and small samples.

One pass over a source of any length. Episodes' first states and visited states are sampled uniformly (each
row gets a random key, and the rows with the smallest keys stay), so that a start distribution and a
picture of where the data lie fit into memory. :class:`EpisodeSample` does the same for whole episodes, on
the same pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policyrisk._arrays import Bools, Floats, Seed, readonly
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.trajectories import Source, Trajectories, batches

STARTS = 10_000  # first states that are kept
VISITED = 20_000  # visited states that are kept


@dataclass(frozen=True, eq=False)
class Survey:
    """Counts, extent and samples of a source's states.

    >>> import policyrisk as pr
    >>> survey = Survey.of(pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=1), seed=0)
    >>> survey.episodes, survey.low.tolist(), survey.high.tolist(), survey.starts.shape
    (100, [0.0], [4.0], (100, 1))
    """

    episodes: int
    terminated: int
    transitions: int
    low: Floats  # (dim,): the least of each coordinate over states that have an equation, x_t with t < T
    high: Floats  # (dim,)
    starts: Floats  # (at most STARTS, dim): first states, all of them or a uniform sample
    visited: Floats  # (at most VISITED, dim): states x_t with t < T, all of them or a uniform sample
    longest: int  # steps of the longest episode
    reached: Floats  # (dim,): as high, with the states that cut-off episodes ended in
    whole: Bools  # (dim,): whether every state's coordinate, those included, is a whole number

    @property
    def dim(self) -> int:
        """The states' dimension."""
        return self.low.size

    @property
    def cut_off(self) -> int:
        """Episodes that did not terminate."""
        return self.episodes - self.terminated

    @classmethod
    def of(cls, source: Source, seed: Seed = None) -> Survey:
        """The survey of a source, in one pass; ``seed`` is the samples'."""
        rng = np.random.default_rng(seed)
        starts, visited = _Sample(STARTS, rng), _Sample(VISITED, rng)
        episodes = terminated = transitions = longest = 0
        low = high = reached = np.empty(0)
        whole = np.empty(0, dtype=np.bool_)
        for batch in batches(source):
            if not len(batch):
                continue
            states = np.asarray(batch.states[batch.visited_rows], dtype=np.float64)
            if low.size and batch.dim != low.size:
                raise MismatchError(
                    f"data must agree on the states' dimension, got {low.size} and {batch.dim}; "
                    "keep different tasks apart"
                )
            least, most = states.min(axis=0), states.max(axis=0)
            ends = np.asarray(batch.states[batch.final_rows[~batch.terminated]], dtype=np.float64)
            furthest = np.maximum(most, ends.max(axis=0)) if len(ends) else most
            integral = (states == np.floor(states)).all(axis=0) & (ends == np.floor(ends)).all(axis=0)
            if low.size:
                low, high, reached = (
                    np.minimum(low, least),
                    np.maximum(high, most),
                    np.maximum(reached, furthest),
                )
                whole = whole & integral
            else:
                low, high, reached, whole = least, most, furthest, integral
            episodes += len(batch)
            terminated += int(batch.terminated.sum())
            transitions += batch.transitions
            longest = max(longest, int(batch.lengths.max()))
            starts.add(np.asarray(batch.starts(), dtype=np.float64))
            visited.add(states)
        if not episodes:
            raise InvalidInputError("data must hold at least one episode, got none; record some")
        return cls(
            episodes=episodes,
            terminated=terminated,
            transitions=transitions,
            low=readonly(low),
            high=readonly(high),
            starts=readonly(starts.rows),
            visited=readonly(visited.rows),
            longest=longest,
            reached=readonly(reached),
            whole=readonly(whole),
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as named arrays."""
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Survey:
        """The way back from :func:`Survey.to_arrays`."""
        return cls(
            episodes=int(arrays["episodes"]),
            terminated=int(arrays["terminated"]),
            transitions=int(arrays["transitions"]),
            low=readonly(arrays["low"]),
            high=readonly(arrays["high"]),
            starts=readonly(arrays["starts"]),
            visited=readonly(arrays["visited"]),
            longest=int(arrays["longest"]),
            reached=readonly(arrays["reached"]),
            whole=readonly(arrays["whole"]),
        )


class _Sample:
    """A uniform sample of rows, without replacement: those with the smallest random keys."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.keys = np.empty(0)
        self.rows = np.empty((0, 0))

    def add(self, rows: Floats) -> None:
        """Let more rows take part."""
        keys = self.rng.random(len(rows))
        if self.keys.size == self.size:
            chosen = keys < self.keys.max()
            keys, rows = keys[chosen], rows[chosen]
        self.rows = np.concatenate([self.rows.reshape(-1, rows.shape[1]), rows])
        self.keys = np.concatenate([self.keys, keys])
        if self.keys.size > self.size:
            kept = np.argpartition(self.keys, self.size - 1)[: self.size]
            kept.sort()  # in the order they came, so that a source as small as the sample is kept as it is
            self.keys, self.rows = self.keys[kept], self.rows[kept]


class EpisodeSample:
    """A source that keeps a uniform sample of its episodes, of bounded size, while it is passed through.

    Episodes are taken in a random order as long as there are at most ``episodes`` of them with at most
    ``transitions`` together (and at least ``FEWEST``, whatever their length). What is small enough is kept
    whole and in its order.

    >>> import policyrisk as pr
    >>> source = EpisodeSample(pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=1), 30, 10**6, seed=0)
    >>> Survey.of(source).episodes, len(source.sample())
    (100, 30)
    """

    FEWEST = 10

    def __init__(self, source: Source, episodes: int, transitions: int, seed: Seed = None) -> None:
        self.source, self.episodes, self.transitions, self.seed = source, episodes, transitions, seed
        self._kept: dict[int, Trajectories] = {}

    def __iter__(self) -> Iterator[Trajectories]:
        rng = np.random.default_rng(self.seed)
        self._kept = {}
        index, keys, lengths = np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64)
        limit, first = np.inf, 0  # episodes with a key from the limit on do not fit
        for batch in batches(self.source):
            index = np.concatenate([index, np.arange(first, first + len(batch))])
            keys = np.concatenate([keys, rng.random(len(batch))])
            lengths = np.concatenate([lengths, batch.lengths])
            order = np.argsort(keys, kind="stable")
            fits = (np.cumsum(lengths[order]) <= self.transitions) & (np.arange(order.size) < self.episodes)
            fits[: self.FEWEST] = True
            fits &= keys[order] < limit
            count = order.size if fits.all() else int(np.argmin(fits))
            if count < order.size:
                limit = min(limit, keys[order[count]])
            chosen = np.sort(order[:count])
            index, keys, lengths = index[chosen], keys[chosen], lengths[chosen]
            self._kept = {k: self._kept[k] for k in index[index < first].tolist()}
            for k in index[index >= first].tolist():
                part = batch[k - first]
                # A copy, so that the batch can go.
                self._kept[k] = Trajectories(part.states, part.rewards, part.lengths, part.terminated)
            first += len(batch)
            yield batch

    def sample(self) -> Trajectories:
        """The episodes that were kept on the last pass, in their order."""
        return Trajectories.concatenate(self._kept.values())
