"""What Monte Carlo answers: sample moments of the return from each state, with their standard errors."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from policyrisk._core import records
from policyrisk._core.arrays import Floats, Ints, check_choice, freeze
from policyrisk._core.records import Arrays, Header, record
from policyrisk._core.text import Readable, TextTable, number, percent, plural
from policyrisk.risk.estimate import student_interval

SampledQuantity: TypeAlias = Literal["mean", "variance", "std"]

_SHOWN = 8  # states in the table that is printed


@record
@dataclass(frozen=True, eq=False)
class MonteCarlo(Readable):
    """Moments of the return by simulation; row i belongs to ``states[i]``.

    >>> from policyrisk import MarkovChain
    >>> from policyrisk.montecarlo import monte_carlo
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
        return {
            field.name: value.tolist() if isinstance(value, np.ndarray) else value
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to an npz file with a version and a checksum; see :func:`MonteCarlo.load`."""
        records.save(path, "MonteCarlo", self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MonteCarlo:
        """Read what :func:`MonteCarlo.save` wrote; a damaged or altered file is an error."""
        return records.load(path, "MonteCarlo", cls, _from_format_1)


def _from_format_1(header: Header, arrays: Arrays) -> MonteCarlo:
    """Format 1: numbers in the header, arrays by their names."""
    return MonteCarlo(**arrays, discount=header["discount"], max_steps=header["max_steps"])
