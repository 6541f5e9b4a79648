"""What recorded episodes look like, before anything is estimated: counts, the box, and small samples.

One pass over a source of any length. Episodes' first states, visited states and, where asked for, whole
episodes are sampled uniformly (each gets a random key, and those with the smallest keys stay), so that a
start distribution, a picture of where the data lie and something to choose features on fit into memory.

All of it adds, since the smallest keys of two parts together are among the smallest of each.
:class:`SurveySums` are what is added: of batches, and of parts of the data that different processes read
(:class:`SurveyPass`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, TypeAlias

import numpy as np

from policyrisk._core.arrays import Bools, Floats, Ints, Seed, freeze
from policyrisk._core.records import Additive, record
from policyrisk._core.text import plural
from policyrisk.data import Source, Trajectories, batches
from policyrisk.data.source import largest_of
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features.tables import VALUES

STARTS = 10_000  # first states that are kept
VISITED = 20_000  # visited states that are kept
RUNS = 100  # at least, of neighbouring episodes in a sample of first states, so that their order can be seen
FEWEST = 10  # episodes that a sample of them holds, whatever their length
Values: TypeAlias = "Floats | None"  # a coordinate's distinct values in increasing order, None if too many


def _both(one: tuple[Values, ...], two: tuple[Values, ...]) -> tuple[Values, ...]:
    """The distinct values of two parts together."""
    if not one or not two:
        return one or two
    pairs = zip(one, two, strict=True)
    return tuple(None if a is None or b is None else _few(np.union1d(a, b)) for a, b in pairs)


def _few(values: Floats) -> Values:
    return values if values.size <= VALUES else None


@record(
    low="dim: finite",
    high="dim: finite",
    starts="s dim: finite",
    visited="n dim: finite",
    reached="dim: finite",
    whole="dim",
    values="*",
    returns="2 *",
    order="3 *",
    ends="* *",
)
@dataclass(frozen=True, eq=False, repr=False)
class Survey:
    """Counts, extent and samples of a source's states.

    >>> import policyrisk as pr
    >>> survey = Survey.of(pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=1), seed=0)
    >>> survey.episodes, survey.low.tolist(), survey.high.tolist(), survey.starts.shape
    (100, [0.0], [4.0], (100, 1))
    >>> survey
    Survey(100 episodes, 100 terminated, 998 transitions, dim 1)
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
    # The distinct values of each coordinate, those included; None where one is not whole, or there are more
    # than VALUES. Empty in files of older versions.
    values: tuple[Values, ...] = ()
    # (2, at most STARTS): the recorded returns of the episodes in ``starts``, discounted, and 1 where the
    # episode terminated, 0 where it was cut off. Empty in files of older versions.
    returns: Floats = field(default_factory=lambda: np.empty((2, 0)))
    # (3, at most STARTS): the numbers of their clusters and their times, nan where there are none, and their
    # steps. Empty in files of older versions.
    order: Floats = field(default_factory=lambda: np.empty((3, 0)))
    # (at most STARTS, dim): the states that they ended in; none where all terminated.
    ends: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def __post_init__(self) -> None:
        freeze(self)

    def __repr__(self) -> str:
        data = f"{plural(self.episodes, 'episode')}, {self.terminated} terminated, "
        return f"Survey({data}{plural(self.transitions, 'transition')}, dim {self.dim})"

    @property
    def dim(self) -> int:
        """The states' dimension."""
        return self.low.size

    @property
    def cut_off(self) -> int:
        """Episodes that did not terminate."""
        return self.episodes - self.terminated

    @property
    def clusters(self) -> Ints | None:
        """The numbers of the clusters of the episodes in ``starts``, (s,); None where there are none."""
        known = self.order.size and not np.isnan(self.order[0]).any()
        return self.order[0].astype(np.int64) if known else None

    @property
    def times(self) -> Floats | None:
        """When the episodes in ``starts`` took place, (s,); None where that is not known."""
        return self.order[1] if self.order.size and not np.isnan(self.order[1]).any() else None

    @classmethod
    def of(cls, source: Source, seed: Seed = None, discount: float = 1.0) -> Survey:
        """The survey of a source, in one pass; ``seed`` is the samples', ``discount`` the returns'."""
        return SurveySums.of(source, seed, discount=discount).survey()


@dataclass(frozen=True, eq=False)
class SampledRows:
    """A uniform sample of rows, without replacement: those with the smallest random keys."""

    size: int
    keys: Floats = field(default_factory=lambda: np.empty(0))  # (n,): n ≤ size, but for a batch's own
    rows: Floats = field(default_factory=lambda: np.empty((0, 0)))  # (n, dim)

    def __add__(self, other: SampledRows) -> SampledRows:
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
        return SampledRows(self.size, keys, rows)


@dataclass(frozen=True, eq=False)
class SampledEpisodes:
    """A uniform sample of episodes: those with the smallest random keys, as far as they fit together.

    These are at most ``bounds`` episodes and transitions, and at least FEWEST episodes (or as many as
    ``bounds`` has behind these), whatever their length. What is small enough is kept whole and in its order.
    """

    bounds: tuple[int, ...] = (0, 0)  # most episodes and transitions
    keys: Floats = field(default_factory=lambda: np.empty(0))  # (n,)
    numbers: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # (n,): in all of the data, rising
    kept: Trajectories | None = None  # these n episodes, None where there are none
    limit: float = np.inf  # episodes with a key from here on do not fit
    seen: int = 0  # episodes that were looked at

    def taking(self, batch: Trajectories, keys: Floats) -> SampledEpisodes:
        """With the episodes of a batch, of which copies are kept, so that the batch can go."""
        chosen, limit = _fitting(keys, batch.lengths, self.limit, self.bounds)
        kept = batch[chosen] if chosen.size else None
        return self + SampledEpisodes(self.bounds, keys[chosen], chosen, kept, limit, len(batch))

    def __add__(self, other: SampledEpisodes) -> SampledEpisodes:
        bounds = max(self.bounds, other.bounds)  # those of no sample are zero
        seen, limit = self.seen + other.seen, min(self.limit, other.limit)
        kept = [each.kept for each in (self, other) if each.kept is not None]
        keys = np.concatenate([self.keys, other.keys])
        numbers = np.concatenate([self.numbers, self.seen + other.numbers])
        joint = Trajectories.concatenate(kept) if len(kept) > 1 else kept[0] if kept else None
        return SampledEpisodes(bounds, keys, numbers, joint, limit, seen).within(bounds)

    def within(self, bounds: tuple[int, ...]) -> SampledEpisodes:
        """Those that are a sample in these bounds, which are no wider."""
        if self.kept is None:
            return self
        chosen, limit = _fitting(self.keys, self.kept.lengths, self.limit, bounds)
        some = self.keys[chosen], self.numbers[chosen], self.kept[chosen]
        return SampledEpisodes(bounds, *some, limit, self.seen)


def _fitting(keys: Floats, lengths: Ints, limit: float, bounds: tuple[int, ...]) -> tuple[Ints, float]:
    """Which episodes are sampled, in their order, and the least key that does not fit.

    These are the first in the order of the keys. What fits among all episodes fits among those of a part.
    """
    episodes, transitions, fewest = (*bounds, FEWEST)[:3]
    order = np.argsort(keys, kind="stable")
    fits = (np.cumsum(lengths[order]) <= transitions) & (np.arange(order.size) < episodes)
    fits[:fewest] = True
    fits &= keys[order] < limit
    count = order.size if fits.all() else int(np.argmin(fits))
    if count < order.size:
        limit = min(limit, float(keys[order[count]]))
    return np.sort(order[:count]), limit


@dataclass(frozen=True, eq=False)
class SurveySums(Additive):
    """What surveys of parts of the data add up to; those of no data are the neutral ones.

    >>> import policyrisk as pr
    >>> parts = [pr.domains.walk(n=5, p=0.7).sample(0, episodes=100, seed=k) for k in range(2)]
    >>> sums = [SurveyPass(seed=0)(data, part) for part, data in enumerate(parts)]
    >>> (sums[0] + sums[1]).survey().episodes
    200
    """

    # As in Survey.
    episodes: int = 0
    terminated: int = 0
    transitions: int = 0
    longest: int = 0
    low: Floats | float = np.inf
    high: Floats | float = -np.inf
    reached: Floats | float = -np.inf
    whole: Bools | bool = True
    values: tuple[Values, ...] = ()
    starts: SampledRows = field(default_factory=lambda: SampledRows(STARTS))  # with their returns and ends
    visited: SampledRows = field(default_factory=lambda: SampledRows(VISITED))
    sampled: SampledEpisodes = field(default_factory=SampledEpisodes)
    largest: float = 0.0  # reward or return, in size
    _rules: ClassVar = {
        "longest": max,
        "largest": max,
        "low": np.minimum,
        "high": np.maximum,
        "reached": np.maximum,
        "whole": np.logical_and,
        "values": _both,
    }

    @classmethod
    def of(
        cls,
        source: Source,
        seed: Seed = None,
        bounds: tuple[int, ...] | None = None,
        discount: float = 1.0,
    ) -> SurveySums:
        """The sums of a source, in one pass; ``seed`` is the samples', ``bounds`` those of whole episodes."""
        rng, episode_rng = np.random.default_rng(seed), np.random.default_rng(seed)
        sums, sampled = cls(), SampledEpisodes(bounds or (0, 0))
        for batch in batches(source):
            if len(batch):
                sums += cls._of_batch(batch, rng, discount)
                if bounds is not None:
                    sampled = sampled.taking(batch, episode_rng.random(len(batch)))
        return replace(sums, sampled=sampled)

    @classmethod
    def _of_batch(cls, batch: Trajectories, rng: np.random.Generator, discount: float) -> SurveySums:
        states = np.asarray(batch.states[batch.visited_rows], dtype=np.float64)
        starts = np.asarray(batch.starts(), dtype=np.float64)
        returns = batch.returns(discount)
        unknown = np.full(len(batch), np.nan)
        own = [unknown if each is None else each for each in (batch.clusters, batch.times)]
        last = np.asarray(batch.states[batch.final_rows], dtype=np.float64)
        outcomes = np.column_stack([returns, batch.terminated, *own, batch.lengths, last])
        # Runs of neighbours have nearly one key, as far as a batch holds them, and come at random in it.
        run, keys = max(STARTS // RUNS, 1), rng.random(len(batch))
        together = keys[np.arange(len(batch)) // run * run] + 1e-9 * keys
        ends = np.asarray(batch.states[batch.final_rows[~batch.terminated]], dtype=np.float64)
        low, high = states.min(axis=0), states.max(axis=0)
        whole = (states == np.floor(states)).all(axis=0) & (ends == np.floor(ends)).all(axis=0)
        return cls(
            episodes=len(batch),
            terminated=int(batch.terminated.sum()),
            transitions=batch.transitions,
            longest=int(batch.lengths.max()),
            largest=largest_of(batch, returns),
            low=low,
            high=high,
            reached=np.maximum(high, ends.max(axis=0)) if len(ends) else high,
            whole=whole,
            values=tuple(
                _few(_distinct(np.concatenate([states[:, d], ends[:, d]]))) if whole[d] else None
                for d in range(batch.dim)
            ),
            starts=SampledRows(STARTS, together, np.column_stack([starts, outcomes])),
            visited=SampledRows(VISITED, rng.random(len(states)), states),
        )

    def __add__(self, other: SurveySums) -> SurveySums:
        dims = np.size(self.low), np.size(other.low)
        if self.episodes and other.episodes and dims[0] != dims[1]:
            raise MismatchError(
                f"data must agree on the states' dimension, got {dims[0]} and {dims[1]}; "
                "keep different tasks apart"
            )
        return super().__add__(other)

    def survey(self) -> Survey:
        """The survey of all that was added."""
        if not self.episodes:
            raise InvalidInputError("data must hold at least one episode, got none; record some")
        names = "starts", "returns", "order", "ends"
        found = {each.name: getattr(self, each.name) for each in fields(Survey) if each.name not in names}
        rows, dim = self.starts.rows, np.size(self.low)
        starts, returns, order, ends = np.split(rows, [dim, dim + 2, dim + 5], axis=1)
        ends = ends if self.terminated < self.episodes else ends[:0]
        parts = starts, returns.T, order.T, ends
        sampled = {name: np.ascontiguousarray(part) for name, part in zip(names, parts, strict=True)}
        return Survey(**{**found, **sampled, "visited": self.visited.rows})

    def sample(self, bounds: tuple[int, ...] | None = None) -> Trajectories:
        """The episodes that were kept, in their order, or those of them that are a sample in ``bounds``."""
        kept = (self.sampled if bounds is None else self.sampled.within(bounds)).kept
        assert kept is not None
        return kept


def _distinct(numbers: Floats) -> Floats:
    """The distinct ones of some whole numbers, in increasing order: as np.unique, which has to sort them."""
    low, high = numbers.min(), numbers.max()
    if high - low > 4 * numbers.size:
        return np.unique(numbers)
    found: Floats = np.flatnonzero(np.bincount((numbers - low).astype(np.int64))) + low
    return found


@dataclass(frozen=True)
class SurveyPass:
    """A pass for the survey, and for a sample of whole episodes where bounds for one are given.

    ``reduce(SurveyPass(seed)).survey()`` is the survey of the data that a ``Reduce`` runs passes over,
    and ``Survey.of(data, seed)``, bit for bit, where they are one part.
    """

    seed: int
    bounds: tuple[int, ...] | None = None  # most episodes and transitions of the sample
    discount: float = 1.0  # of the returns

    def __call__(self, source: Source, part: int) -> SurveySums:
        """The sums of a part, whose keys are its own whoever reads it."""
        seed = self.seed if part == 0 else np.random.SeedSequence(self.seed, spawn_key=(part,))
        return SurveySums.of(source, seed, self.bounds, self.discount)
