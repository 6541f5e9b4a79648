"""Fits to all of the data that are mostly made from a sample of the episodes.

With A, C, D and w of n of the K episodes, and s_k the residuals of episode k at w
(:mod:`policyrisk.lstd.residuals`), a Newton step

    w + n/K (A⁻¹ Σ_k s_J,k,   C⁻¹ (Σ_k s_M,k + D A⁻¹ Σ_k s_J,k)),            Σ over all K,

is what all episodes say, but for the product of two small things: how far the sample's weights are off, and
how far its matrices are. In standard errors of K episodes the former is √(K/n), and the latter about c/√T
with T transitions in the sample; each further step multiplies what is left by c/√T again. Of 10 to
81 features c was 10 for the mean and up to 37 for the variance. Steps are taken until a quarter of a standard
error would be left with c = 18. Residuals take products of a matrix with vectors, A one with a matrix.

That is for dense features. Of a tile that few episodes of the sample visited nothing could be scaled, and
sparse sums are fast: there A, C and w are those of all episodes, and only D, whose mean is 0 where J̃ is
right, is the sample's. A last pass draws the weights of all fits with the multipliers of all episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from policyrisk._core.arrays import Floats, Seed
from policyrisk._core.random import keys
from policyrisk._core.records import Additive, add_each, record
from policyrisk.data import Source, Trajectories
from policyrisk.errors import SingularSystemError
from policyrisk.lstd.accumulate import FirstPass
from policyrisk.lstd.estimator import LSTD
from policyrisk.lstd.influences import Solved
from policyrisk.lstd.pipeline import solved
from policyrisk.lstd.residuals import ResidualPass, ResidualSums
from policyrisk.passes import Reduce, here
from policyrisk.risk import ErrorBars, RiskFunction, SampleReturns
from policyrisk.risk.completed import CompletedReturns, centre_shift

_MATRIX = 18.0  # c
_LEFT = 0.25  # of a standard error


@dataclass(frozen=True, eq=False)
class SampledFit:
    """A fit under way."""

    solved: Solved
    found: ResidualSums  # of the sample, with D
    work: ResidualPass  # at the weights so far
    share: float  # n/K where it was solved for the sample, 1 where for all episodes

    @classmethod
    def of(cls, lstd: LSTD, sample: Trajectories, reduce: Reduce, episodes: int) -> SampledFit:
        """The fit to the sample or, of sparse features, to all ``episodes``, which ``reduce`` runs over."""
        n, share = len(sample), 1.0
        plain = lstd.ridge == 0.0 and lstd.nonnegative_at is None
        if plain and all(each.dense for each in lstd.view.at(sample).maps):
            reduce, share = here(sample), n / episodes
        fit = solved(lstd, reduce, reduce(partial(FirstPass.over, lstd.view, "cpu")))
        work = fit.residual_pass(episodes=(n,), clustered=True)  # draws alone
        found = work(fit.cut(sample), 0)
        if found.D is not None:
            found = replace(found, D=found.D * (share * episodes / n))
        return cls(fit, found, replace(work, slopes=False), share)

    def changes(self, residuals: Floats) -> tuple[Floats, Floats]:
        """What residuals (m, kept) of all episodes move the kept weights by, (kept, m) of either map."""
        k_J = self.work.kept[0].size
        return self.solved.solver(self.found)(residuals[:, :k_J].T.copy(), residuals[:, k_J:].T.copy())

    def moved(self, total: Floats) -> SampledFit:
        """After a step by Σ s_k (kept,); those of all episodes stay where they are."""
        if self.share == 1.0:
            return self
        weights = self.work.w_mean.copy(), self.work.w_second.copy()
        for w, at, psi in zip(weights, self.work.kept, self.changes(total[None]), strict=True):
            w[at] += self.share * psi[:, 0]
        return replace(self, work=replace(self.work, w_mean=weights[0], w_second=weights[1]))

    def answer(self, drawn: ResidualSums, whole: Whole, sample: Trajectories) -> RiskFunction:
        """The estimate with the counts, supports and draws of all episodes."""
        risk, work = self.solved.risk, self.work
        K = drawn.count
        own = drawn.drawn.T - np.outer(drawn.drawn_sum, drawn.sum / K)
        psi = [(change * (self.share * np.sqrt(K / (K - 1)))).T for change in self.changes(own)]
        key = int(work.key[0]), int(work.key[1])
        bars = ErrorBars(*work.kept, None, None, None, np.hstack(psi).astype(np.float32), key=key)
        completed = CompletedReturns.over(sample, risk)
        shift = centre_shift(work.reference - completed.mean, work.reference - completed.start_mean)
        if self.share < 1.0:
            risk = _of_all(risk, K, sample, whole)
        return replace(
            risk,
            w_mean=work.w_mean,
            w_second=work.w_second,
            error_bars=bars,
            completed=replace(completed, draws=shift @ drawn.drawn_beside / np.sqrt(K * (K - 1))),
        )


class Whole(Protocol):
    """What there is of all the data."""

    @property
    def parts(self) -> tuple[int, ...]:
        """The episodes of each part, in order."""

    @property
    def terminated(self) -> int:
        """Episodes."""

    @property
    def transitions(self) -> int:
        """Of all episodes."""

    @property
    def returns(self) -> SampleReturns:
        """Those of the terminated episodes."""


@record
@dataclass(frozen=True, eq=False)
class NewtonSums(Additive):
    """What a step's pass adds up: the residuals of each fit."""

    residuals: tuple[ResidualSums, ...]
    _rules: ClassVar = {"residuals": add_each}

    @classmethod
    def over(cls, fits: Sequence[SampledFit], source: Source, part: int) -> NewtonSums:
        """Of one part of the data."""
        return cls(tuple(fit.work(fit.solved.cut(source), part) for fit in fits))


def fits_from_sample(
    estimators: Sequence[LSTD],
    sample: Trajectories,
    reduce: Reduce,
    whole: Whole,
    *,
    bootstrap: int,
    seed: Seed,
) -> list[RiskFunction | Exception]:
    """The fit of each to all episodes, of which ``sample`` is a uniform one; or why there is none."""
    K, found = sum(whole.parts), list[Any]()
    for lstd in estimators:
        try:
            found.append(SampledFit.of(lstd, sample, reduce, K))
        except (SingularSystemError, np.linalg.LinAlgError) as error:
            found.append(error)
    known = [k for k, each in enumerate(found) if isinstance(each, SampledFit)]
    left, last = math.sqrt(K / len(sample)), not known
    while not last:
        left *= _MATRIX / math.sqrt(sample.transitions)
        last = left <= _LEFT or all(found[k].share == 1.0 for k in known)
        how: dict[str, Any] = {"first": [0, *np.cumsum(whole.parts).tolist()], "key": keys(seed)}
        fits = [found[k] for k in known]
        fits = [
            replace(fit, work=replace(fit.work, replicates=bootstrap if last else 0, **how)) for fit in fits
        ]
        sums = reduce(partial(NewtonSums.over, fits)).residuals
        for k, fit, drawn in zip(known, fits, sums, strict=True):
            found[k] = fit.moved(drawn.sum)
            if last:
                found[k] = found[k].answer(drawn, whole, sample)
    return found


def _of_all(risk: RiskFunction, episodes: int, sample: Trajectories, whole: Whole) -> RiskFunction:
    """A sample's answer with the counts of all episodes, and with supports and the rest scaled."""
    K, T = episodes / len(sample), whole.transitions / sample.transitions
    facts = {of: round(T * getattr(risk.provenance, of)) for of in ("outside", "given_up", "biased")}
    facts |= {"episodes": episodes, "terminated": whole.terminated, "transitions": whole.transitions}

    def scaled(support: Any) -> Any:
        gram = None if support.gram is None else support.gram * T
        counts = {"visits": support.visits * T, "feature_episodes": support.feature_episodes * K}
        return replace(support, **counts, episodes=episodes, gram=gram)

    first = second = scaled(risk.support)
    if risk.second_support is not risk.support:
        second = scaled(risk.second_support)
    return replace(
        risk,
        support=first,
        second_support=second,
        provenance=replace(risk.provenance, **facts),
        returns=whole.returns,
    )
