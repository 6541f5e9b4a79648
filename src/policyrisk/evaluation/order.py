"""The episodes in their order: do neighbours go alike, and do mean and spread stay what they were?

Intervals take episodes for independent and alike. Of episode k there is e_k, its completed return g_k less J̃
of its start (:mod:`policyrisk.risk.completed`), centred, and what completes it has variance c_k. Three tests:

    mean         max_k |Σ_{i≤k} e_i| / (s √n)               against Kolmogorov's distribution (CUSUM)
    spread       the same of e_k² + c_k, less its average
    neighbours   Σ_k e_k h_k / √(Σ_k e_k² h_k²),  h_k = Σ_{j=1}^{L} (1 − j/(L+1)) e_{k−j},  for L in SPANS

The three share ALPHA equally, and the spans their part of it: at most ALPHA of the logs of independent
episodes are called dependent. Where the mean was found to change, a step there and a trend are taken out of e
before the two other tests. Where neighbours are then found to go alike, the CUSUMs are divided by how much
larger blocks make the standard error. A finding therefore says which it is, a change or neighbours that go
alike.

Where episodes come in clusters, the sums over each take the place of episodes, in the order in which the
clusters begin.

By blocks of m consecutive episodes, with D_b the sum of g_k − ḡ over block b of G, the mean's standard error
is √(G/(G − 1) Σ_b D_b²) / n. m is the length that makes it largest, with about BLOCKS of them at least.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import kolmogorov, ndtr, stdtrit

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.text import Readable, TextTable, number, plural
from policyrisk._core.units import magnitude
from policyrisk.errors import PolicyRiskWarning
from policyrisk.risk.draws import CLUSTERS_FEW
from policyrisk.risk.summary import ROUNDING

if TYPE_CHECKING:
    from policyrisk.evaluation.record import Evaluation

ALPHA = 0.01  # of all tests of order together
SPANS = (1, 8, 64)  # over how many episodes before it an episode's likeness is summed
LEAST = 20  # episodes, or clusters, that the tests need
BLOCKS = CLUSTERS_FEW  # at least, of which a standard error is made


@dataclass(frozen=True)
class Change:
    """Where a mean, or a spread, is most likely to have changed, and whether it did."""

    after: int  # how many episodes come before
    before_and_after: tuple[float, float]  # the mean, or the std, of each part
    errors: tuple[float, float]  # the standard errors of the two
    p_value: float

    @property
    def found(self) -> bool:
        """Whether it is beyond chance."""
        return self.p_value < ALPHA / 3


@dataclass(frozen=True, eq=False)
class EpisodeOrder(Readable):
    """Completed returns in the order of the episodes, and what the order says.

    >>> rng = np.random.default_rng(0)
    >>> returns = rng.normal(size=300) + np.repeat([0.0, 1.0], 150)
    >>> order = EpisodeOrder(returns, returns - returns.mean())
    >>> order.mean.found, order.mean.after, order.spread.found, order.alike
    (True, 160, False, False)
    """

    returns: Floats  # (n,): g
    residuals: Floats  # (n,): g less J̃ of the start, centred
    completed: Floats | float = 0.0  # (n,): c
    times: Floats | None = None  # (n,): when they took place, rising
    clusters: Ints | None = None  # (n,)

    @classmethod
    def of(cls, evaluation: Evaluation) -> EpisodeOrder | None:
        """The order of the episodes that a survey kept; None where their returns are not known."""
        survey, discount = evaluation.survey, evaluation.risk.provenance.discount
        starts, (returns, ended) = survey.starts, survey.returns
        cut = np.flatnonzero(ended == 0)
        incomplete = cut.size > 0 and (evaluation.target is not None or not survey.ends.size)
        if returns.size != len(starts) or incomplete:
            return None
        g, J, c = returns.copy(), np.zeros(returns.size), np.zeros(returns.size)
        if evaluation.target is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PolicyRiskWarning)
                places, of = np.unique(starts, axis=0, return_inverse=True)
                J = evaluation.risk.mean(places)[of.reshape(-1)]
                if cut.size:
                    end_mean, end_variance = evaluation.risk.mean_and_variance(survey.ends[cut])
                    left = discount ** survey.order[2, cut]
                    g[cut] += left * end_mean
                    c[cut] = left**2 * np.maximum(end_variance, 0.0)
        known = np.isfinite(g + J + c)
        order = np.flatnonzero(known)
        if (times := survey.times) is not None:
            order = order[np.argsort(times[order], kind="stable")]
        g, e, c = g[order], (g - J)[order], c[order]
        if not e.size:
            return None
        clusters = survey.clusters
        return cls(
            g,
            e - e.mean(),
            c,
            None if times is None else times[order],
            None if clusters is None else clusters[order],
        )

    def _blocks(self) -> list[str | TextTable]:
        said = f"{plural(self.returns.size, 'episode')} in their order: "
        if not self.testable:
            return [f"{said}too few, or too much alike, to be tested"]
        tests = {"neighbours go alike": self.p_value, "the mean changes": self.mean.p_value}
        tests["the spread changes"] = self.spread.p_value
        return [said + ", ".join(f"{name}: p = {number(p, 2)}" for name, p in tests.items())]

    @property
    def testable(self) -> bool:
        """Whether there are enough episodes, or clusters, that are not all the same."""
        scale = float(np.abs(self.returns).max(initial=0.0))
        return self.units.max() + 1 >= LEAST and float(self.residuals.std()) > ROUNDING * scale

    @cached_property
    def units(self) -> Ints:
        """(n,): the number of each episode's cluster, in the order in which they begin; else its own."""
        if self.clusters is None:
            return np.arange(self.returns.size)
        _, first, inverse = np.unique(self.clusters, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse.reshape(-1)]

    @cached_property
    def mean(self) -> Change:
        """Whether the mean changes."""
        size = self.ratio(self.residuals, self.block) if self.alike else 1.0
        return self._change(self.residuals, size, self.returns)

    @cached_property
    def spread(self) -> Change:
        """Whether the spread changes, with the standard deviations before and after."""
        squares = self._flattened**2 + self.completed / self._unit**2
        q = squares - squares.mean()
        found = self._change(q, max(self.ratio(q, self.block), 1.0) if self.alike else 1.0, squares)
        s = np.sqrt(found.before_and_after)
        errors = np.divide(found.errors, 2 * s, out=np.zeros(2), where=s > 0)
        (first, second), (one, other) = (s * self._unit).tolist(), (errors * self._unit).tolist()
        return Change(found.after, (first, second), (one, other), found.p_value)

    @cached_property
    def correlation(self) -> float:
        """That of neighbours, less what a change of the mean makes of it."""
        e = self._sums(self._flattened)
        return float(e[1:] @ e[:-1] / (e @ e))

    @cached_property
    def p_value(self) -> float:
        """That of the neighbours, by the span that sees most."""
        e = self._sums(self._flattened)
        n = e.size
        found = []
        for span in (each for each in SPANS if 4 * each <= n):
            weights = 1.0 - np.arange(1, span + 1) / (span + 1)
            before = np.convolve(e, [0.0, *weights])[:n]
            # That e is centred makes neighbours differ: by σ² Σ w on average.
            lost = weights.sum() * float(e @ e) / n
            found.append(ndtr(-(e @ before + lost) / np.sqrt(e**2 @ before**2)))
        return min(1.0, len(found) * float(min(found)))

    @cached_property
    def alike(self) -> bool:
        """Whether neighbours are found to go alike."""
        return self.p_value < ALPHA / 3

    @cached_property
    def block(self) -> int:
        """m: of how many consecutive episodes, or clusters, blocks make the largest standard error."""
        count = int(self.units.max()) + 1
        lengths = np.unique(np.geomspace(1, max(count // BLOCKS, 1), 25).astype(int))
        deviations = self.returns - self.returns.mean()
        return int(lengths[np.argmax([self.error(deviations, m) for m in lengths.tolist()])])

    @property
    def blocks(self) -> int:
        """G."""
        return -(-(int(self.units.max()) + 1) // self.block)

    def error(self, values: Floats, length: int) -> float:
        """The standard error of the average of centred values (n,), by blocks of this length."""
        sums = np.bincount(self.units // length, values)
        return float(np.sqrt(sums.size / (sums.size - 1) * (sums @ sums))) / values.size

    def ratio(self, values: Floats, length: int) -> float:
        """How many times as large blocks make the standard error."""
        return self.error(values, length) / self.error(values, 1)

    def interval(self, level: float) -> tuple[float, float, float]:
        """The mean's standard error by blocks, and its interval, Student's with G − 1 degrees of freedom."""
        mean = float(self.returns.mean())
        error = self.error(self.returns - mean, self.block)
        reach = float(stdtrit(self.blocks - 1, 0.5 + level / 2)) * error
        return error, mean - reach, mean + reach

    @cached_property
    def _unit(self) -> float:
        """A power of two near the largest e: the tests need fourth powers."""
        return magnitude(self.residuals)

    @cached_property
    def _flattened(self) -> Floats:
        """e in its unit, without a step and a trend where a plain CUSUM finds that the mean changes."""
        e = self.residuals / self._unit
        found = self._change(e, 1.0, e)
        if not found.found:
            return e
        after = self.units > int(self.units[np.argsort(self.units, kind="stable")[found.after - 1]])
        X = np.column_stack([np.ones(e.size), after, self.units])
        flat: Floats = e - X @ np.linalg.lstsq(X, e, rcond=None)[0]
        return flat

    def _sums(self, values: Floats) -> Floats:
        return values if self.clusters is None else np.bincount(self.units, values).astype(np.float64)

    def _change(self, centred: Floats, size: float, values: Floats) -> Change:
        """The largest partial sum of centred values, in ``size`` times its scale; of ``values`` the parts."""
        sums = self._sums(centred)
        path = np.abs(np.cumsum(sums))[:-1]
        scale = size * float(np.sqrt(sums @ sums))
        last = int(np.argmax(path))
        in_first = self.units <= last
        parts = values[in_first], values[~in_first]
        return Change(
            int(in_first.sum()),
            (float(parts[0].mean()), float(parts[1].mean())),
            (_plain_error(parts[0]), _plain_error(parts[1])),
            float(kolmogorov(path[last] / scale)) if scale > 0 else 1.0,
        )


def _plain_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / values.size**0.5 if values.size > 1 else float("nan")
