"""Where an estimate comes from: settings and counts, in numbers and in words."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from policyrisk._core.records import record
from policyrisk._core.text import percent, plural


@record
@dataclass(frozen=True, eq=False)
class Provenance:
    """Where an estimate comes from, in numbers; two are equal where all numbers are, nan and nan included.

    >>> Provenance("LSTD", lam=0.9, discount=1.0, episodes=10, terminated=8, transitions=93).remarks
    ('2 episodes cut off',)
    """

    estimator: str
    lam: float
    discount: float
    ridge: float = 0.0
    episodes: int = 0
    terminated: int = 0
    transitions: float = 0.0
    outside: int = 0  # transitions that started outside the features' boxes
    given_up: int = 0  # last transitions of cut-off episodes that ended where nothing is known
    biased: int = 0  # transitions that started where too much was given up: estimates there are nan
    redundant: int = 0  # directions of the features that change no estimate
    condition: float = float("nan")  # 1-norm condition number of the scaled equations, the larger of the two
    constrained: int = 0  # states where the positive-variance constraint is active
    constraint_residual: float = 0.0
    trace_cut: float = 0.0  # share to which traces decayed before they were cut off, where sums are sparse
    residual: float = 0.0  # of equations that were solved by iteration: ‖S(b − A w)‖ / ‖S b‖, the larger one
    skipped: tuple[str, ...] = ()  # shards that could not be read and were left out
    variance_lam: float = 0.0  # κ of the direct variance
    left_out: float = (
        0.0  # the target's probability on actions that nobody logged, on average over next states
    )
    dropped: int = 0  # transitions into states where the target takes none that was logged

    # A dataclass compares its fields, and nan is not equal to itself. (Up to Python 3.12 it compared tuples,
    # to which the same nan object is equal.)
    def _key(self) -> tuple[object, ...]:
        return tuple(None if value != value else value for value in astuple(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provenance) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def settings(self) -> str:
        """The estimator and its settings."""
        others = (("ridge", self.ridge), ("variance_lam", self.variance_lam))
        more = "".join(f", {name}={value:g}" for name, value in others if value)
        return f"{self.estimator}, lam={self.lam:g}, discount={self.discount:g}{more}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is out of the ordinary, a sentence each."""
        cut_off = self.episodes - self.terminated
        said = [
            (cut_off, f"{plural(cut_off, 'episode')} cut off"),
            (self.outside, f"{plural(self.outside, 'transition')} started outside the features' box"),
            (self.given_up, f"{plural(self.given_up, 'last transition')} given up: cut off where unvisited"),
            (
                self.biased,
                f"{plural(self.biased, 'transition')} started where too much was given up: nan there",
            ),
            (
                self.left_out,
                f"{percent(self.left_out)} of the target's probability on actions that were never logged, "
                f"{plural(self.dropped, 'transition')} dropped",
            ),
            (self.redundant, f"{plural(self.redundant, 'redundant direction')}, which change no estimate"),
            (self.constrained, f"{plural(self.constrained, 'state')} where the constraint V >= 0 is active"),
            (self.trace_cut, f"many features: traces cut off at {self.trace_cut:g}, no error bars"),
            (self.residual, f"equations solved to a relative residual of {self.residual:.0e}"),
            (len(self.skipped), f"{plural(len(self.skipped), 'shard')} left out: {', '.join(self.skipped)}"),
        ]
        return tuple(text for count, text in said if count)
