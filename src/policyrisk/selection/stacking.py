"""Estimates stacked: shares in a mixture, by what each said about episodes that it did not see.

Episodes are put into folds, each candidate is fitted without each fold, and says J_i and V_i at the steps of
the episodes that it did not see (a forest says it out of bag). With B_t the return to go, Breiman's stacked
regressions are

    a* = argmin Σ_t (B_t − Σ_i a_i J_i(x_t))² / v_t                a ≥ 0, Σ a = 1
    b* = argmin Σ_t (q_t − Σ_i b_i V_i(x_t))² / v_t²               q_t = (B_t − Σ_i a_i J_i(x_t))²

v_t being a first guess of V(x_t), for b the mixture's own in a few rounds: about where V is right that is the
Dawid–Sebastiani score, but one step with V near 0 does not outweigh the rest. Returns are so noisy that most
of a* is randomness where the candidates are alike. So the stacked one is a candidate beside the others: with
z_i the sum over episodes of what candidate i loses more than it does, in standard errors,

    a ∝ e^(−z_i²/2) + a*_i

and likewise b: where the stacked one is clearly the best it is alone, and where nothing can be told all
candidates are averaged. The largest few shares are kept.

*Cut-off episodes* are completed by one of the candidates (:mod:`policyrisk.selection.out_of_fold`).

*Widening* (:mod:`policyrisk.risk.mixture`). Returns are skewed: where a few episodes make most of Σ_t q_t,
they make most of the standard error as well, which then tells little. With e_k the sum over episode k of
(B_t − J)/√v_t for the mean, of (q_t − V)/v_t for the variance, less its average, the standard error has
Satterthwaite's ν = 2 / (Σ e_k⁴/(Σ e_k²)² − 1/K) degrees of freedom, and the draws' randomness is multiplied
by Student's quantile at ν over the normal one. Finding the shares anew in every draw was tried on the tuning
tasks of ``benchmarks/truth.py``, and changed no coverage by more than 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import nnls

from policyrisk._core.arrays import Floats, Ints
from policyrisk._core.text import number, percent, pieces, plural, table
from policyrisk.data import Trajectories
from policyrisk.errors import check_proper
from policyrisk.lstd import LSTD
from policyrisk.passes.episode_folds import FOLDS, folds_of
from policyrisk.risk import RiskFunction
from policyrisk.risk.estimate import student_quantile
from policyrisk.risk.mixture import Widening
from policyrisk.risk.scoring import EpisodeSteps, completed_returns
from policyrisk.selection.out_of_fold import out_of_fold, reference_of

MEMBERS = 6  # with a share in the means, and as many in the variances
LEAST = 0.05  # share
_ROUNDS = 4
_WORSE = 3.0  # times the least loss: candidates above it are left out, however little that tells
_FLOOR = 0.1  # of the mean: v is not below it
_NOTHING = 1e-140  # where nothing is random: the sum of many 1/v² is still a number
_LEVEL = 0.95  # of the intervals that are widened to cover as often
FOREST = "forest"

# From episodes, an estimate of what follows cut-off ones, and the J that residuals are taken from (steps,),
# to J and V at all steps, out of bag.
Forest: TypeAlias = Callable[[Trajectories, RiskFunction | None, Floats | None], tuple[Floats, Floats]]


@dataclass(frozen=True)
class StackedCandidate:
    """A candidate's line of the table; scores are on episodes that it did not see."""

    name: str
    mean_share: float = 0.0
    variance_share: float = 0.0
    mse: float = math.nan  # of J
    score: float = math.nan  # of V: the mean of (q − V)² / v²
    reason: str = ""  # why it was left out
    variance_lam: float = 0.0  # of its direct variance


@dataclass(frozen=True, eq=False)
class Stack:
    """The shares of the candidates, and what held-out episodes say of their mixture."""

    candidates: tuple[StackedCandidate, ...]  # those with shares first, the best of the others then
    widening: Widening
    mse: float  # of the mixture's J on episodes that its members did not see
    constant_mse: float  # of the mean return to go
    calibration: float  # the mean of q / V
    episodes: int
    steps: int
    reference: tuple[str, str] | None  # the candidates that completed cut-off episodes: J's and V's
    mean: Floats = field(repr=False)  # (steps,): the mixture's J without each step's episode
    variance: Floats = field(repr=False)  # (steps,): its V, likewise
    ends: Floats = field(repr=False)  # (2, cut-off episodes): J and V that complete these
    least: float = math.nan  # of the completed returns to go
    most: float = math.nan

    def times(self, factor: float) -> Stack:
        """The same for rewards that are ``factor`` times as large."""
        squares = factor * factor
        return replace(
            self,
            candidates=tuple(replace(each, mse=each.mse * squares) for each in self.candidates),
            mse=self.mse * squares,
            constant_mse=self.constant_mse * squares,
            mean=self.mean * factor,
            variance=self.variance * squares,
            ends=self.ends * np.array([[factor], [squares]]),
            least=self.least * factor,
            most=self.most * factor,
        )

    @property
    def members(self) -> tuple[StackedCandidate, ...]:
        """Those with a share."""
        return tuple(each for each in self.candidates if each.mean_share or each.variance_share)

    @property
    def explained(self) -> float:
        """R² of J: the part of the squared error of a constant that J takes away, negative where it adds."""
        return 1.0 - self.mse / self.constant_mse if self.constant_mse > 0 else math.nan

    def __str__(self) -> str:
        rows = [
            [
                brief(each.name),
                percent(each.mean_share) if each.mean_share else "",
                percent(each.variance_share) if each.variance_share else "",
                number(each.mse),
                number(each.score, 4),
            ]
            for each in self.candidates
            if not each.reason
        ]
        lines = [
            f"candidates on {plural(self.episodes, 'episode')}, {plural(self.steps, 'step')}, each scored on "
            "episodes that it did not see; the smaller the better",
            table(["features", "share of J", "share of V", "MSE of J", "score of V"], rows),
            f"the mixture's MSE of J is {number(self.mse)}, that of a constant {number(self.constant_mse)}",
        ]
        if self.reference is not None:
            lines.append(f"cut-off episodes are completed by {' and '.join(dict.fromkeys(self.reference))}")
        failed = [f"left out: {each.name}: {each.reason}" for each in self.candidates if each.reason]
        return "\n".join(lines + failed)

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        arrays = "mean", "variance", "ends"
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in arrays}
        plain = {"candidates": [asdict(each) for each in self.candidates], "widening": asdict(self.widening)}
        return {**values, **plain, "explained": self.explained}


def stack(
    candidates: Mapping[str, LSTD],
    data: Trajectories,
    *,
    key: int,
    forest: Forest | None = None,
) -> Stack:
    """The shares of the candidates' mixture, from episodes in memory; ``key`` draws the folds.

    ``forest`` is a further candidate, which gives J and V at all steps out of bag. It is handed an estimate
    to complete cut-off episodes by, and the J that its residuals are taken from: first None, for its own,
    then the mixture's.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=30, p=0.7).sample(start=0, episodes=300, seed=1)
    >>> maps = {"line": pr.Polynomial(1, low=[0], high=[29]), "two": pr.TileCoding([0], [29], bins=2)}
    >>> found = stack({name: pr.LSTD(phi, variance="direct") for name, phi in maps.items()}, data, key=0)
    >>> [(each.name, each.mean_share) for each in found.members]
    [('line', 1.0)]
    """
    discount = next(iter(candidates.values())).discount
    check_proper(discount, int(data.terminated.sum()), len(data))
    folds = folds_of(data, FOLDS, key)
    steps = EpisodeSteps.of(data, discount)
    said, failed = out_of_fold(candidates, data, steps, folds)
    reference = reference_of(said, steps)
    ends = np.zeros((2, steps.cut_off))
    if reference is not None:
        ends = np.nan_to_num([said[reference[0]].end_mean, said[reference[1]].end_variance])
    completed, rest = completed_returns(steps, *ends)
    means = {name: each.mean for name, each in said.items()}
    variances = {name: each.variance for name, each in said.items()}
    tail = None if reference is None else said[reference[1]].fit
    if forest is not None:
        means[FOREST], variances[FOREST] = forest(data, tail, None)
    J_i = _filled(means, float(completed.mean()))
    first = np.median(np.column_stack([np.nan_to_num(V) for V in variances.values()]), axis=1)
    a = shares_of(J_i, completed, 1.0 / _floored(first), steps.episode)
    J = J_i @ a
    if forest is not None:
        variances[FOREST] = forest(data, tail, J)[1]
    q = (completed - J) ** 2 + rest
    V_i = np.maximum(_filled(variances, float(q.mean())), 0.0)  # as a mixture of them says it
    b, v = _variance_shares(V_i, q, steps.episode)
    mse = np.square(completed[:, None] - J_i).mean(axis=0)
    score = np.square((q[:, None] - V_i) / v[:, None]).mean(axis=0)
    lams = {name: each.fit.provenance.variance_lam for name, each in said.items()}
    figures = zip(means, a.tolist(), b.tolist(), mse.tolist(), score.tolist(), strict=True)
    lines = [StackedCandidate(*each, variance_lam=lams.get(each[0], 0.0)) for each in figures]
    lines.sort(key=lambda each: (-(each.mean_share + each.variance_share), each.score))
    lines += [StackedCandidate(name, reason=reason) for name, reason in failed.items()]
    return Stack(
        candidates=tuple(lines),
        widening=Widening(
            _widening((completed - J) / np.sqrt(v), steps.block),
            _widening((q - V_i @ b) / v, steps.block),
        ),
        mse=float(np.mean((completed - J) ** 2)),
        constant_mse=float(completed.var()),
        calibration=float(np.mean(q / _floored(V_i @ b))),
        episodes=len(data),
        steps=len(J),
        reference=reference,
        mean=J,
        variance=V_i @ b,
        ends=ends,
        least=float(completed.min()),
        most=float(completed.max()),
    )


def brief(name: str) -> str:
    """A candidate's name where many maps side by side would make a long line.

    >>> brief("poly:1,dims=a/poly:1,dims=b/poly:1,dims=c"), brief("poly:1,dims=a/labels,dims=b")
    ('poly:1,dims=a/… (3 maps)', 'poly:1,dims=a/labels,dims=b')
    """
    first, *others = pieces(name, "/")
    return name if len(others) < 2 else f"{first}/… ({1 + len(others)} maps)"


def _filled(said: Mapping[str, Floats], otherwise: float) -> Floats:
    """What all say (n, m), where one knows nothing the median of the others, as in a mixture of them."""
    values = np.column_stack(list(said.values()))
    some = np.isnan(values).any(axis=1) & ~np.isnan(values).all(axis=1)
    middle = np.full(len(values), otherwise)
    middle[some] = np.nanmedian(values[some], axis=1)
    return np.where(np.isnan(values), middle[:, None], values)


def _floored(V: Floats) -> Floats:
    """V with a floor, so that nothing is divided by 0."""
    least = _FLOOR * max(float(np.maximum(V, 0.0).mean()), _NOTHING)
    return np.maximum(V, least)


def _variance_shares(V_i: Floats, q: Floats, episode: Ints) -> tuple[Floats, Floats]:
    """The shares (m,) of V, whose weights 1/v² are those of the mixture itself, and v (n,)."""
    v = _floored(np.median(V_i, axis=1))
    for _ in range(_ROUNDS):
        b = shares_of(V_i, q, 1.0 / v**2, episode)
        v = _floored(V_i @ b)
    return b, v


def shares_of(X: Floats, y: Floats, weight: Floats, episode: Ints) -> Floats:
    """The shares of candidates that say X (n, m) where y (n,) is asked for, of shape (m,).

    ``episode`` (n,) increases. The module's docstring has the equations.
    """
    weight = weight / weight.sum()
    errors = weight @ np.square(y[:, None] - X)
    some = np.flatnonzero(errors <= _WORSE * errors.min())
    if some.size < len(errors):
        shares = np.zeros(len(errors))
        shares[some] = shares_of(X[:, some], y, weight, episode)
        return shares
    stacked = _stacked(X, y, weight)
    first = np.flatnonzero(np.diff(episode, prepend=-1))
    losses = [np.add.reduceat(weight * np.square(y - said), first) for said in (*X.T, X @ stacked)]
    more = np.column_stack(losses[:-1]) - losses[-1][:, None]  # than the stacked one, (episodes, m)
    error = np.sqrt(len(first)) * more.std(axis=0)
    z = more.sum(axis=0) / np.where(error > 0, error, np.inf)
    shares = np.exp(-np.square(z) / 2.0) + stacked
    shares[np.argsort(-shares, kind="stable")[MEMBERS:]] = 0.0
    shares[shares < LEAST * shares.sum()] = 0.0
    kept: Floats = shares / shares.sum()
    return kept


def _widening(errors: Floats, block: Ints) -> float:
    """Student's quantile over the normal one, for errors of steps (n,) in independent blocks of them (n,)."""
    change = np.bincount(block, errors)
    change -= change.mean()
    squares, K = np.square(change / (float(np.abs(change).max()) or 1.0)), len(change)
    excess = float(squares @ squares) / max(float(squares.sum()) ** 2, _NOTHING) - 1.0 / K
    dof = min(max(2.0 / max(excess, _NOTHING), 1.0), K - 1.0)
    return float(student_quantile(_LEVEL, dof + 1.0) / student_quantile(_LEVEL, np.inf))


def _stacked(X: Floats, y: Floats, weight: Floats) -> Floats:
    """argmin Σ weight (y − X a)² over a ≥ 0 of sum 1, of shape (m,)."""
    # About the best of them, where the shares do not change a sum of 1.
    centre = X[:, np.argmin(weight @ np.square(y[:, None] - X))]
    D = X - centre[:, None]
    return _simplex((D * weight[:, None]).T @ D, (D * weight[:, None]).T @ (y - centre))


def _simplex(gram: Floats, moment: Floats) -> Floats:
    """argmin aᵀ gram a − 2 momentᵀ a over a ≥ 0 of sum 1, of shape (m,)."""
    m = len(moment)
    scale = max(float(np.trace(gram)) / m, np.finfo(np.float64).tiny)
    values, vectors = np.linalg.eigh(gram / scale + 1e-10 * np.eye(m))
    root = (vectors * np.sqrt(np.maximum(values, 1e-14))).T  # rootᵀ root is gram
    target = (vectors / np.sqrt(np.maximum(values, 1e-14))).T @ (moment / scale)
    heavy = 1e4
    shares, _ = nnls(np.vstack([root, np.full(m, heavy)]), np.append(target, heavy))
    shares[shares < 1e-9] = 0.0
    total = shares.sum()
    return shares / total if total > 0 else np.full(m, 1.0 / m)
