"""What Monte Carlo answers: sample moments of the return from each state, with their standard errors.

They are made of sums over returns, one column per state, that are added up block by block and never lose
digits. Column i of a table (7, n) is, for the returns g_1, …, g_K seen so far from state i,

    K,   ḡ,   Σ (g_k − ḡ)²,   Σ (g_k − ḡ)³,   Σ (g_k − ḡ)⁴,   cut-off episodes,   steps

the first five as :mod:`policyrisk._core.central_sums` has them, with the errors of ḡ and of s²; that of s is
the latter divided by 2s (delta method).

It is all one array of floats (whole numbers are exact in them up to 2⁵³) so that a block is taken in by a
single assignment: an interrupt finds a block in the table or not there, never half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from policyrisk._core.arrays import Floats, Ints, check_choice, freeze
from policyrisk._core.central_sums import COUNT, MEAN, add_samples, central_sums, sample_moments
from policyrisk._core.records import Saved, record
from policyrisk._core.text import Readable, TextTable, number, percent, plural
from policyrisk.risk.estimate import student_interval
from policyrisk.simulation.compiled import Returns

SampledQuantity: TypeAlias = Literal["mean", "variance", "std"]

CUT_OFF, STEPS = 5, 6  # the rows after the central sums
ROWS = 7
_SHOWN = 8  # states in the table that is printed


@record(
    states="n dim",
    mean="n",
    variance="n",
    std="n",
    mean_se="n",
    variance_se="n",
    std_se="n",
    episodes="n",
    cut_off="n",
    steps="n",
)
@dataclass(frozen=True, eq=False)
class MonteCarlo(Readable, Saved):
    """Moments of the return by simulation; row i belongs to ``states[i]``.

    Attributes
    ----------
    states
        (n, dim).
    mean, variance, std
        (n,), of the return from each state.
    mean_se, variance_se, std_se
        (n,), their standard errors.
    episodes, cut_off, steps
        (n,), how many episodes were run, how many of them were cut off, and all their steps.
    discount, max_steps
        As they were given.

    Examples
    --------
    >>> from policyrisk import MarkovChain
    >>> from policyrisk.returns import monte_carlo
    >>> print(monte_carlo(MarkovChain([[0.5]], [1.0]), None, [0], episodes=1000, seed=0))
    Monte Carlo: 1 state, 1000 episodes, 2013 steps; none cut off
    state   mean      ±  variance     ±     std      ±
    0      2.013  0.045    2.0349  0.21  1.4265  0.073
    """

    states: Floats  # (n, dim)
    mean: Floats  # (n,)
    variance: Floats  # (n,), unbiased; nan for fewer than two episodes
    std: Floats  # (n,), its root
    mean_se: Floats  # (n,), standard error of the mean
    variance_se: Floats  # (n,), of the variance, from the fourth central moment
    std_se: Floats  # (n,), of the std, by the delta method
    episodes: Ints  # (n,)
    cut_off: Ints  # (n,), episodes of these that were stopped before they ended
    steps: Ints  # (n,), simulated
    discount: float
    max_steps: int

    def __post_init__(self) -> None:
        freeze(self)

    def __len__(self) -> int:
        return len(self.states)

    @property
    def cut_off_share(self) -> Floats:
        """The share of each state's episodes that was cut off, of shape (n,)."""
        return np.asarray(self.cut_off / np.maximum(self.episodes, 1))

    def standard_error(self, of: SampledQuantity = "variance") -> Floats:
        """The standard error of a quantity, of shape (n,)."""
        check_choice(of, "of", get_args(SampledQuantity))
        return np.asarray(getattr(self, f"{of}_se"))

    def interval(self, of: SampledQuantity = "variance", level: float = 0.95) -> Floats:
        """quantity ± t · standard error with Student's t for the episodes, of shape (n, 2)."""
        error = self.standard_error(of)
        return student_interval(getattr(self, of), error, self.episodes.astype(np.float64), level)

    def _blocks(self) -> list[str | TextTable]:
        total, cut = int(self.episodes.sum()), int(self.cut_off.sum())
        lost = f"{plural(cut, 'episode')} cut off ({percent(cut / total)})" if cut else "none cut off"
        head = f"Monte Carlo: {plural(len(self), 'state')}, {plural(total, 'episode')}, "
        head += f"{plural(int(self.steps.sum()), 'step')}; {lost}"
        if self.discount != 1.0:
            head += f"; discount {self.discount:g}"
        if len(self) == 0:
            return [head]
        shown, spread = np.arange(len(self)), []
        if len(self) > _SHOWN:
            riskiest = np.argsort(np.where(np.isnan(self.std), -np.inf, self.std), kind="stable")
            shown = riskiest[::-1][:_SHOWN]
            spread = [
                f"mean from {number(self.mean.min())} to {number(self.mean.max())}, std from "
                f"{number(self.std.min())} to {number(self.std.max())}; the {_SHOWN} riskiest:"
            ]
        columns = ["state", "mean", "±", "variance", "±", "std", "±"]
        lines = [self._line(i) for i in shown.tolist()]
        return [head, *spread, TextTable([*columns, *(["cut off"] if cut else [])], lines)]

    def _line(self, i: int) -> list[str]:
        line = [", ".join(number(x) for x in self.states[i])]
        for of in get_args(SampledQuantity):
            line += [number(getattr(self, of)[i]), number(getattr(self, f"{of}_se")[i], 2)]
        return [*line, str(self.cut_off[i])] if self.cut_off.any() else line

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}


def estimated(states: Floats, table: Floats, discount: float, max_steps: int) -> MonteCarlo:
    """What a table (7, n) says of states (n, dim); nan where there are too few episodes."""
    variance, ((of_mean, _), (_, of_variance)) = sample_moments(table)
    std, variance_se = np.sqrt(variance), np.sqrt(of_variance)
    episodes, cut_off, steps = table[[COUNT, CUT_OFF, STEPS]].astype(np.int64)
    return MonteCarlo(
        states=states,
        mean=np.where(table[COUNT] >= 1, table[MEAN], np.nan),
        variance=variance,
        std=std,
        mean_se=np.sqrt(of_mean),
        variance_se=variance_se,
        # Returns that are all alike have s = 0 without error.
        std_se=np.divide(variance_se, 2 * std, out=variance_se.copy(), where=std != 0),
        episodes=episodes,
        cut_off=cut_off,
        steps=steps,
        discount=discount,
        max_steps=max_steps,
    )


def tabulate(batch: Returns, discount: float) -> Floats:
    """The table (7, m) of k episodes from each of m states, in arrays (m, k).

    An episode that was stopped after ℓ steps counts as cut off unless the weight γ^ℓ of the reward that would
    have come next is below the 2⁻⁵³ of rounding, as in a discounted task that goes on for ever.
    """
    matters = discount ** batch.lengths.astype(np.float64) >= 2.0**-53
    cut_off, steps = np.sum(~batch.terminated & matters, axis=1), np.sum(batch.lengths, axis=1)
    return np.stack([*central_sums(batch.returns), cut_off, steps])


def merge(one: Floats, other: Floats) -> Floats:
    """The table (7, m) of two tables' episodes together; a column without episodes changes nothing."""
    table = one + other
    table[:CUT_OFF] = add_samples(one[:CUT_OFF], other[:CUT_OFF])
    return table
