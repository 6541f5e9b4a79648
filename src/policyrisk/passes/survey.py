"""What recorded episodes look like, before anything is estimated: counts, the box, and small samples.

One pass over a source of any length. Episodes' first states and visited states are sampled uniformly (each
row gets a random key, and the rows with the smallest keys stay), so that a start distribution and a
picture of where the data lie fit into memory. :class:`EpisodeSample` does the same for whole episodes, on
the same pass.

All of it adds, since the smallest keys of two parts together are among the smallest of each.
:class:`SurveySums` are what is added: of batches, and of parts of the data that different processes read
(:class:`SurveyPass`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from policyrisk._core.arrays import Bools, Floats, Ints, Seed, freeze
from policyrisk._core.records import record
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.trajectories import Source, Trajectories, batches

STARTS = 10_000  # first states that are kept
VISITED = 20_000  # visited states that are kept


@record
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

    def __post_init__(self) -> None:
        freeze(self)

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
        return SurveySums.of(source, seed).survey()


@dataclass(frozen=True, eq=False)
class SurveySums:
    """What surveys of parts of the data add up to; those of no data are the neutral ones.

    >>> import policyrisk as pr
    >>> parts = [pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=k) for k in range(2)]
    >>> sums = [SurveyPass(seed=0)(data, part) for part, data in enumerate(parts)]
    >>> (sums[0] + sums[1]).survey().episodes
    200
    """

    episodes: int
    terminated: int
    transitions: int
    longest: int
    low: Floats  # this and the next three as in Survey; of no data, neutral ones of shape ()
    high: Floats
    reached: Floats
    whole: Bools
    starts: _Rows
    visited: _Rows
    sampled: _Episodes  # none, unless the pass was asked for them

    @classmethod
    def of(cls, source: Source, seed: Seed = None) -> SurveySums:
        """The sums of a source, in one pass; ``seed`` is the samples'."""
        rng = np.random.default_rng(seed)
        return sum((cls._of_batch(batch, rng) for batch in batches(source) if len(batch)), cls.none())

    @classmethod
    def none(cls) -> SurveySums:
        """The sums of no data."""
        least, most = np.array(np.inf), np.array(-np.inf)
        return cls(
            episodes=0,
            terminated=0,
            transitions=0,
            longest=0,
            low=least,
            high=most,
            reached=most,
            whole=np.array(True),
            starts=_Rows(np.empty(0), np.empty((0, 0)), STARTS),
            visited=_Rows(np.empty(0), np.empty((0, 0)), VISITED),
            sampled=_Episodes.none(),
        )

    @classmethod
    def _of_batch(cls, batch: Trajectories, rng: np.random.Generator) -> SurveySums:
        states = np.asarray(batch.states[batch.visited_rows], dtype=np.float64)
        ends = np.asarray(batch.states[batch.final_rows[~batch.terminated]], dtype=np.float64)
        high = states.max(axis=0)
        return cls(
            episodes=len(batch),
            terminated=int(batch.terminated.sum()),
            transitions=batch.transitions,
            longest=int(batch.lengths.max()),
            low=states.min(axis=0),
            high=high,
            reached=np.maximum(high, ends.max(axis=0)) if len(ends) else high,
            whole=(states == np.floor(states)).all(axis=0) & (ends == np.floor(ends)).all(axis=0),
            starts=_Rows(rng.random(len(batch)), np.asarray(batch.starts(), dtype=np.float64), STARTS),
            visited=_Rows(rng.random(len(states)), states, VISITED),
            sampled=_Episodes.none(),
        )

    def __add__(self, other: SurveySums) -> SurveySums:
        if self.episodes and other.episodes and self.low.size != other.low.size:
            raise MismatchError(
                f"data must agree on the states' dimension, got {self.low.size} and {other.low.size}; "
                "keep different tasks apart"
            )
        return SurveySums(
            episodes=self.episodes + other.episodes,
            terminated=self.terminated + other.terminated,
            transitions=self.transitions + other.transitions,
            longest=max(self.longest, other.longest),
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
            reached=np.maximum(self.reached, other.reached),
            whole=self.whole & other.whole,
            starts=self.starts + other.starts,
            visited=self.visited + other.visited,
            sampled=self.sampled + other.sampled,
        )

    def survey(self) -> Survey:
        """The survey of all that was added."""
        if not self.episodes:
            raise InvalidInputError("data must hold at least one episode, got none; record some")
        found = {field.name: getattr(self, field.name) for field in fields(Survey)}
        return Survey(**{**found, "starts": self.starts.rows, "visited": self.visited.rows})

    def sample(self) -> Trajectories:
        """The episodes that were kept, in their order."""
        return Trajectories.concatenate(self.sampled.kept)


@dataclass(frozen=True)
class SurveyPass:
    """A pass for the survey, and for a sample of whole episodes where bounds for one are given.

    ``fold(SurveyPass(seed)).survey()`` is the survey of the data that a fold (:mod:`policyrisk.passes.fold`)
    goes over, and ``Survey.of(data, seed)``, bit for bit, where they are one part.
    """

    seed: int
    bounds: tuple[int, int] | None = None  # most episodes and transitions of the sample

    def __call__(self, source: Source, part: int) -> SurveySums:
        """The sums of a part, whose keys are its own whoever reads it."""
        seed = self.seed if part == 0 else np.random.SeedSequence(self.seed, spawn_key=(part,))
        if self.bounds is None:
            return SurveySums.of(source, seed)
        passing = EpisodeSample(source, *self.bounds, seed)
        return replace(SurveySums.of(passing, seed), sampled=passing.sampled)


@dataclass(frozen=True, eq=False)
class _Rows:
    """A uniform sample of rows, without replacement: those with the smallest random keys."""

    keys: Floats  # (n,): n ≤ size, but for a batch that was not added to anything yet
    rows: Floats  # (n, dim)
    size: int

    def __add__(self, other: _Rows) -> _Rows:
        keys, rows = other.keys, other.rows
        if not keys.size:
            return self
        if self.keys.size == self.size:
            chosen = keys < self.keys.max()
            keys, rows = keys[chosen], rows[chosen]
        keys = np.concatenate([self.keys, keys])
        rows = np.concatenate([self.rows.reshape(-1, rows.shape[1]), rows])
        if keys.size > self.size:
            kept = np.argpartition(keys, self.size - 1)[: self.size]
            kept.sort()  # in the order they came, so that a source as small as the sample is kept as it is
            keys, rows = keys[kept], rows[kept]
        return _Rows(keys, rows, self.size)


@dataclass(frozen=True, eq=False)
class _Episodes:
    """A uniform sample of episodes: those with the smallest random keys, as far as they fit together."""

    keys: Floats  # (n,)
    kept: tuple[Trajectories, ...]  # n of one episode each, in the order they came
    limit: float  # episodes with a key from here on do not fit
    bounds: tuple[int, int]  # most episodes and transitions

    @classmethod
    def none(cls, bounds: tuple[int, int] = (0, 0)) -> _Episodes:
        return cls(np.empty(0), (), np.inf, bounds)

    def taking(self, batch: Trajectories, keys: Floats) -> _Episodes:
        """With the episodes of a batch, of which copies are kept, so that the batch can go."""
        chosen, limit = _fitting(keys, batch.lengths, self.limit, self.bounds)
        parts = (batch[k] for k in chosen.tolist())
        kept = tuple(Trajectories(part.states, part.rewards, part.lengths, part.terminated) for part in parts)
        return self + _Episodes(keys[chosen], kept, limit, self.bounds)

    def __add__(self, other: _Episodes) -> _Episodes:
        keys, kept = np.concatenate([self.keys, other.keys]), self.kept + other.kept
        lengths = np.array([part.transitions for part in kept], dtype=np.int64)
        bounds = max(self.bounds, other.bounds)  # those of no sample are zero
        chosen, limit = _fitting(keys, lengths, min(self.limit, other.limit), bounds)
        return _Episodes(keys[chosen], tuple(kept[k] for k in chosen.tolist()), limit, bounds)


def _fitting(keys: Floats, lengths: Ints, limit: float, bounds: tuple[int, int]) -> tuple[Ints, float]:
    """Which episodes are sampled, in their order, and the least key that does not fit.

    These are the first in the order of the keys. What fits among all episodes fits among those of a part.
    """
    episodes, transitions = bounds
    order = np.argsort(keys, kind="stable")
    fits = (np.cumsum(lengths[order]) <= transitions) & (np.arange(order.size) < episodes)
    fits[: EpisodeSample.FEWEST] = True
    fits &= keys[order] < limit
    count = order.size if fits.all() else int(np.argmin(fits))
    if count < order.size:
        limit = min(limit, float(keys[order[count]]))
    return np.sort(order[:count]), limit


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
        self.source, self.seed = source, seed
        self.sampled = _Episodes.none((episodes, transitions))

    def __iter__(self) -> Iterator[Trajectories]:
        rng = np.random.default_rng(self.seed)
        self.sampled = _Episodes.none(self.sampled.bounds)
        for batch in batches(self.source):
            self.sampled = self.sampled.taking(batch, rng.random(len(batch)))
            yield batch

    def sample(self) -> Trajectories:
        """The episodes that were kept on the last pass, in their order."""
        return Trajectories.concatenate(self.sampled.kept)
