"""The specification test of features: can they express the mean and the variance of these data at all?

Where J̃ and Ṽ are right, their one-step errors

    δ_t = r_t + γJ̃(x_{t+1}) − J̃(x_t)        ε_t = δ_t² + γ²Ṽ(x_{t+1}) − Ṽ(x_t)

(J̃ = Ṽ = 0 where the episode terminated) have mean 0 given all that was known at step t, and so have their
products with any test features ψ_t of it. The estimator made the sums Σ φδ zero with features of its own; the
test looks at others,

    S = Σ_k s_k,    s_k = Σ_t ψ_t δ_t        (and Σ_t ψ_t ε_t for the variance)

S is not 0 by randomness alone: that of the s_k, and that of the weights w, which were estimated from the same
episodes. To first order an episode that moves the weights by ψ_k(w) adds

    u_k = s_k + G ψ_k(w),    G = dS/dw = Σ ψ_t (γφ(x_{t+1}) − φ(x_t))ᵀ        (δ)
                               Σ ψ_t (2δ_t (γφ_J(x_{t+1}) − φ_J(x_t)) dw_J + γ²dṼ(x_{t+1}) − dṼ(x_t))    (ε)

with dṼ = φ_Mᵀ dw_V for the direct variance and φ_Mᵀ dw_M − 2J̃ φ_Jᵀ dw_J for the second moment's (for LSTD,
ψ_k(w) = A⁻¹(b_k − A_k w)). The covariance of S is drawn with the multipliers ξ_kb that made the replicates
dw_b = Σ_k ξ_kb ψ_k(w) of the weights, so that the test serves every estimate that has replicates:

    U_b = Σ_k ξ_kb (s_k − s̄) + G dw_b,        Σ = Σ_b U_b U_bᵀ / B

If the features suffice, T² = Sᵀ Σ⁺ S is Hotelling's: νm/(m − ν + 1) times F(ν, m − ν + 1) with ν = rank Σ,
since Σ is of B draws and of K episodes, as good as m = 1/(1/B + 1/(K − 1)) normal draws. Directions of ψ that
the estimator has set to 0 itself have no randomness left and do not count; where none is left, the features
are as fine as the test, which then says nothing. At 5 % it calls features that suffice (a table, 1,000 or
more data sets of a walk) a misfit of the mean in 5.3, 5.7, 4.4 and 4.8 % of the cases with 100, 300, 1,000
and 3,000 episodes; of the variance, where it errs on the careful side, in 3.3, 4.1, 3.3 and 4.1 %.

ψ are, unless others are given, the indicators of :class:`Regions`: boxes of states and steps, cut first along
coordinates that the estimates do not depend on, then along the step number t (where the state is all that
matters, t does not: this is what can be tested of a table), then along the most influential coordinates. They
are chosen by the states and the estimate alone, never by δ. For each region there is also what it means:

    bias              the mean of B_t − J̃(x_t) over its steps, B_t being the return to go
    variance ratio    the mean of (B_t − J̃(x_t))² over that of Ṽ(x_t)

(γ^{T−t} J̃(x_T) is added to B_t, and γ^{2(T−t)} Ṽ(x_T) to the square, where the episode was cut off) with
standard errors by the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from scipy.special import fdtrc

from policyrisk._core.arrays import Bools, Floats, Ints, Seed, check_kind, freeze
from policyrisk._core.output import plain
from policyrisk._core.records import record
from policyrisk._core.text import Readable, TextTable, number, p_value, percent, plural
from policyrisk.data import Shortened, Source, Trajectories, batches
from policyrisk.data.source import InUnits
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.features import as_features
from policyrisk.lstd import LSTD
from policyrisk.risk import ErrorBars, RiskFunction
from policyrisk.risk.state_estimates import EstimatesAt, changes_by_coordinate
from policyrisk.risk.support import Provenance
from policyrisk.selection.regions import Regions
from policyrisk.selection.specification_sums import SUMS, SpecificationPass, points_of, shown_states

DRAWS = 1000  # replicates, where they are drawn for the purpose
LEVEL = 0.05  # p-values below are called a misfit
REFUTED, MATERIAL = 0.01, (0.25, 1.5)  # p-value, and how far mean and variance are off, where it matters
DEPTH = 5  # cuts at most: 32 regions
_PER_REGION = 75, 8  # episodes and replicates for each region, at least
_SAMPLE, _ROLLED = 20_000, 2_000  # points that regions are cut by, and those that influence is measured at
_ZERO = 1e-8  # of a sum's own variance: what is left is rounding
_NOT_ZERO = 1e-5  # of a sum's size
_SAME = 1e-6  # of the largest weight: up to this, weights that were fitted anew are the same


@record(z="p")
@dataclass(frozen=True, eq=False)
class MomentTest:
    """The test of one moment."""

    statistic: float  # T², infinite for a misfit without any randomness
    degrees: int  # ν
    p_value: float  # nan where ν = 0
    z: Floats  # (p,): S over its standard error for each test feature, nan where it cannot be tested

    @property
    def misfit(self) -> bool:
        """Whether the features are refuted."""
        return self.p_value < LEVEL

    def __str__(self) -> str:
        if math.isnan(self.p_value):
            return "cannot be tested, the features are as fine as the test"
        found = "these features cannot express it" if self.misfit else "no misfit was found"
        return f"{found} ({p_value(self.p_value)}, {plural(self.degrees, 'degree')} of freedom)"


@record(
    share="p", bias="p", bias_error="p", std="p", variance_ratio="p", variance_ratio_error="p", regions="p"
)
@dataclass(frozen=True, eq=False)
class SpecificationTest(Readable):
    """What the test found; print it, or draw it with :func:`policyrisk.plotting.plot_check`.

    Arrays have an entry for each of the p test features; without regions what they mean in each is nan.
    """

    mean: MomentTest
    variance: MomentTest
    episodes: int
    regions: Regions | None  # None where other test features were given
    share: Floats  # (p,): of all steps
    bias: Floats  # (p,): how much higher returns to go are than J̃, on average
    bias_error: Floats  # (p,)
    std: Floats  # (p,): the root of the average Ṽ
    variance_ratio: Floats  # (p,): of the spread about J̃ that was seen to Ṽ
    variance_ratio_error: Floats  # (p,)

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def p_value(self) -> float:
        """Of both tests together: twice the smaller one, at most 1 (Bonferroni); nan where none was made."""
        known = [test.p_value for test in (self.mean, self.variance) if not math.isnan(test.p_value)]
        return min(1.0, len(known) * min(known)) if known else math.nan

    @property
    def misfit(self) -> bool:
        """Whether the features are refuted."""
        return self.p_value < LEVEL

    def material(self, bias: float = MATERIAL[0], ratio: float = MATERIAL[1]) -> Bools:
        """The regions in which the misfit matters, of shape (p,); none where the test finds little.

        That is a mean that is off by more than ``bias`` of the std, or a variance by more than the factor
        ``ratio``, each by more than three standard errors, and a p-value below ``REFUTED``.
        """
        if not self.p_value < REFUTED:
            return np.zeros(len(self.share), dtype=np.bool_)
        off, spread = np.abs(self.bias), self.variance_ratio
        wrong = (spread > ratio) | (spread < 1.0 / ratio)
        found = (off > bias * self.std) & (off > 3 * self.bias_error)
        found |= wrong & (np.abs(spread - 1.0) > 3 * self.variance_ratio_error)
        return np.asarray(found & (self.std > 0))

    def worst(self, of: str = "mean") -> Ints:
        """The regions in which the mean, or the variance, is off by the most standard errors, those first."""
        off = self.bias / self.bias_error
        if of == "variance":
            off = (self.variance_ratio - 1.0) / self.variance_ratio_error
        order = np.argsort(-np.abs(np.where(np.isnan(off), 0.0, off)), kind="stable")
        return order[: np.count_nonzero(~np.isnan(off))]

    def describe(
        self, names: Sequence[str] | None = None, labels: Mapping[str, Sequence[str]] | None = None
    ) -> str:
        """In plain words, with the names of the state's coordinates and of some coordinates' numbers."""
        lines = [f"mean: {self.mean}", f"variance: {self.variance}"]
        if self.regions is None:
            return "\n".join(lines)
        places = self.regions.names(names, labels)
        for k, test in enumerate((self.mean, self.variance)):
            order = self.worst("variance" if k else "mean")
            if test.misfit and order.size:
                j = int(order[0])
                lines[k] += (
                    f", most of all where {places[j]} ({percent(float(self.share[j]))} of the steps): "
                )
                lines[k] += self._variance_at(j) if k else self._mean_at(j)
        return "\n".join(lines)

    def _mean_at(self, j: int) -> str:
        off, error, std = (float(each[j]) for each in (self.bias, self.bias_error, self.std))
        side = "higher" if off > 0 else "lower"
        size = f"{number(abs(off), 3)} ± {number(error, 2)}"
        beside = f", {number(abs(off) / std, 2)} of their std" if std > 0 else ""
        return f"returns there are {size} {side} than estimated{beside}"

    def _variance_at(self, j: int) -> str:
        ratio, error = float(self.variance_ratio[j]), float(self.variance_ratio_error[j])
        return f"the variance there is {number(ratio, 3)} ± {number(error, 2)} of the estimated"

    def _blocks(self) -> list[str | TextTable]:
        return [self.describe()]

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("mean", "variance"):
            values[name] = {each.name: getattr(values[name], each.name) for each in fields(MomentTest)}
        if self.regions is not None:
            values["regions"] = {end: getattr(self.regions, end) for end in ("low", "high")}
        found: dict[str, Any] = plain({**values, "p_value": self.p_value})
        return found


def specification_test(
    risk: RiskFunction, data: Source, features: Any = None, *, seed: Seed = None
) -> SpecificationTest:
    """Whether an estimate's features can express the mean and the variance of ``data``, and if not, where.

    The one-step errors must have mean 0 in every region of the states, or on average with any test features.

    Parameters
    ----------
    risk
        The estimate. The test needs the replicates of ``bootstrap=``; an estimate of LSTD without them is
        fitted anew for the purpose.
    data
        Those that were fitted.
    features
        Test features; regions of the states where None.
    seed
        That of the draws of a new fit.

    Returns
    -------
    SpecificationTest
        ``misfit``, and the regions where the errors are.

    Examples
    --------
    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=8, p=0.7).sample(0, episodes=500, seed=2)
    >>> table = pr.LSTD(pr.Tabular(8)).fit(data)
    >>> halves = pr.LSTD(pr.TileCoding([0], [8], bins=2)).fit(data)
    >>> [pr.specification_test(each, data, seed=0).misfit for each in (table, halves)]
    [False, True]
    """
    check_kind(risk, "risk", RiskFunction, "pass what an estimator's fit gave")
    risk.refuse_of_target("the specification test")
    source, bars = risk.provenance, risk.bars
    if not bars.draws or bars.key is None:
        bars = _replicated(risk, data, seed)
    estimates = risk.parts
    data = InUnits(data, risk.unit)
    if source.given_up:
        data = Shortened(data, partial(_known, estimates))
    chosen = _regions(estimates, data, source, bars.draws) if features is None else as_features(features)
    size = max(risk.features.size, risk.second_features.size)
    sums = SpecificationPass(estimates, bars, source.discount, chosen, size)(data)
    if sums.episodes != source.episodes:
        raise MismatchError(
            f"data must be those that were fitted, {plural(source.episodes, 'episode')}, got "
            f"{sums.episodes}; pass the same data"
        )
    p, B, K = sums.steps.size, bars.draws, sums.episodes
    if B < 2 * p:
        raise InvalidInputError(
            f"a test with {plural(p, 'test feature')} needs at least {2 * p} bootstrap replicates, got {B}; "
            "fit with a larger bootstrap=, or pass fewer test features"
        )
    G = sums.independent
    U = (sums.drawn.T - np.outer(sums.drawn_sum, sums.sum / K)) * math.sqrt(G / max(G - 1, 1))
    dw_J, dw_M = (each.astype(np.float64) for each in bars.weights_drawn)
    U += dw_J.T @ sums.G_J.T + dw_M.T @ sums.G_M.T
    blocks = [slice(i * p, (i + 1) * p) for i in range(SUMS)]
    mean, variance = (_test(sums.sum[at], np.sqrt(sums.squares[at]), U[:, at], G) for at in blocks[:2])
    share = sums.steps / source.transitions
    if not isinstance(chosen, Regions):
        return SpecificationTest(mean, variance, K, None, share, *(np.full(p, np.nan) for _ in range(5)))
    error = np.sqrt(np.square(U).mean(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return SpecificationTest(
            mean,
            variance,
            K,
            chosen,
            share,
            bias=sums.sum[blocks[2]] / sums.steps * risk.unit,
            bias_error=error[blocks[2]] / sums.steps * risk.unit,
            std=np.sqrt(sums.variance / sums.steps) * risk.unit,
            variance_ratio=1.0 + sums.sum[blocks[3]] / sums.variance,
            variance_ratio_error=error[blocks[3]] / np.abs(sums.variance),
        )


def _replicated(risk: RiskFunction, data: Source, seed: Seed) -> ErrorBars:
    """The error bars of an estimate of LSTD.fit, fitted anew to the same data for its replicates."""
    source = risk.provenance
    if source.estimator != "LSTD" or source.constrained:
        why = f", from {source.estimator}," if not source.constrained else " at an active constraint V >= 0"
        raise InvalidInputError(
            f"the test needs bootstrap replicates, and this RiskFunction{why} has none; "
            "fit with the bootstrap= option, for example LSTD(...).fit(data, bootstrap=1000)"
        )
    lstd = LSTD(
        risk.features,
        risk.second_features,
        lam=source.lam,
        discount=source.discount,
        ridge=source.ridge,
        variance=risk.variance_method,
        variance_lam=source.variance_lam,
    )
    again = lstd.fit(data, bootstrap=DRAWS, seed=seed)
    for name in ("w_mean", "w_second"):
        old, new = getattr(risk, name), getattr(again, name)
        if np.abs(old - new).max() > _SAME * max(np.abs(old).max(), np.finfo(np.float64).tiny):
            raise MismatchError(
                f"data must be those that were fitted, got others, whose {name} differs; pass the same data"
            )
    return again.bars


def _test(S: Floats, size: Floats, U: Floats, K: int) -> MomentTest:
    """T² of sums S (p,) of K independent terms, with ``size`` (p,) in units of which they are taken.

    ``U`` (B, p) are their draws.
    """
    B = len(U)
    scale = np.where(size > 0, size, 1.0)
    covariance = U.T @ U / B / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(covariance)
    random = values > _ZERO
    along = vectors.T @ (S / scale)
    nu = int(np.count_nonzero(random))
    T2 = float(np.sum(along[random] ** 2 / values[random]))
    if np.abs(along[~random]).max(initial=0.0) > _NOT_ZERO:
        T2 = math.inf  # without randomness it would be 0
    p_value = math.nan
    if nu or T2 > 0:
        nu = max(nu, 1)
        m = 1.0 / (1.0 / B + 1.0 / max(K - 1, 1))
        left = max(m - nu + 1.0, 1.0)
        p_value = float(fdtrc(nu, left, T2 * left / (m * nu))) if math.isfinite(T2) else 0.0
    variance = np.diag(covariance)
    z = np.where(variance > _ZERO, S / scale / np.sqrt(np.where(variance > 0, variance, 1.0)), np.nan)
    return MomentTest(T2, nu, p_value, z)


def _regions(estimates: EstimatesAt, data: Source, provenance: Provenance, replicates: int) -> Regions:
    """Regions of the data, by the rule of the module's docstring."""
    every = max(int(provenance.transitions) // _SAMPLE, 1)
    points, episode, steps, count = [], [], 0, 0
    for batch in batches(data):
        chosen = np.arange(-steps % every, batch.transitions, every)
        points.append(points_of(batch)[chosen])
        episode.append(count + np.repeat(np.arange(len(batch)), batch.lengths)[chosen])
        steps, count = steps + batch.transitions, count + len(batch)
    if not steps:
        raise InvalidInputError("data must hold at least one episode, got none; pass what was fitted")
    sampled = np.concatenate(points)
    few = sampled[:: -(-len(sampled) // _ROLLED), :-1]
    influence = _influence(estimates, few)
    seen = sorted(np.flatnonzero(influence > 0).tolist(), key=lambda i: -influence[i])
    order = [*np.flatnonzero(influence == 0).tolist(), few.shape[1], *seen]
    enough = min(count / _PER_REGION[0], replicates / _PER_REGION[1])
    depth = int(np.clip(math.log2(max(enough, 1.0)), 1, DEPTH))
    return Regions.of(sampled, np.concatenate(episode), order, depth)


def _influence(estimates: EstimatesAt, states: Floats) -> Floats:
    """How much J̃ and √|Ṽ| change, on average, where a coordinate is another state's, of shape (dim,).

    nan's, where no data are, count as a change.
    """

    def values(x: Floats) -> Floats:
        return np.concatenate([np.column_stack([at.J, np.sqrt(np.abs(at.V))]) for at in estimates(x)])

    n, dim = states.shape
    change = np.zeros(dim)
    for i, differences in changes_by_coordinate(values, states, np.roll(np.arange(n), n // 2), range(dim)):
        known = np.abs(differences[np.isfinite(differences)])
        change[i] = known.mean() if known.size else 0.0
        if known.size < differences.size:
            change[i] = max(change[i], np.finfo(np.float64).tiny)
    return change


def _known(estimates: EstimatesAt, batch: Trajectories) -> Ints:
    """The steps (episodes,) of each episode, to the last state that estimates speak of if it was cut off."""
    known: Bools = np.concatenate([part.episodes for part in estimates(shown_states(batch))]) > 0
    known[batch.final_rows[batch.terminated]] = True
    first = batch.offsets[:-1] + np.arange(len(batch))
    last: Ints = np.maximum.reduceat(np.where(known, np.arange(len(known)), -1), first)
    return np.maximum(last - first, 0)
