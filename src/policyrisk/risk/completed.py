"""Completed returns: every episode's return, with the estimate only where the episode was cut off.

    g_k = R_k + γ^T J̃(x_T)        c_k = γ^{2T} Ṽ(x_T)        both tails 0 where the episode terminated

R_k being the rewards up to the cut at T. Over K episodes, ḡ the average of g,

    mean      m = ḡ
    variance  v = Σ (g_k − ḡ)² / (K − 1) + Σ c_k / K

which is Σ s_k / K − m² with s_k = R_k² + 2 R_k γ^T J̃(x_T) + γ^{2T} M̃(x_T), without its cancellation, and the
plain sample where nothing was cut off. Episode k moves m by d_k / K, d_k = g_k − ḡ, and v by d_k² + c_k, less
their average, over K. The tails move with the weights: m and v have the gradients

    m   (Σ γ^T φ_J(x_T) / K,  0)
    v   (2 Σ d_k γ^T φ_J(x_T) / (K − 1) [− 2 Σ γ^{2T} J̃(x_T) φ_J(x_T) / K for M̃],  Σ γ^{2T} φ_M(x_T) / K)

Both parts come from the same episodes, so that their covariance counts as well: Cov(own part, weights) =
Σ_k i_k ψ_k / (K − 1), ψ_k being by how much episode k moves the weights (:mod:`policyrisk.lstd.influences`).

The estimator's own average over the starts is judged beside it. All of this is in sums over episodes of

    z_k = (1,  d_k,  d_k² + c_k,  h_k,  h_k² + Ṽ(x_0)),        h_k = J̃(x_0) − its average,

four at a time: Σ z ⊗ z ⊗ z ⊗ z holds the first four moments of anything that is linear in z. Another centre
is a linear map of z, so that the sums add without a loss of digits.

Where episodes come in clusters, their z are summed over each cluster g, Z_g, and the covariance of anything
that is linear in z is Σ_g Z_g ⊗ Z_g G/(G − 1), G being their number, with t of G − 1 degrees of freedom at
most.

Where an episode was cut off in a state that the data say nothing about, there is no J̃(x_T). It is completed
from the last of its states that the data do say something about, giving up the rewards after it, and counted
in ``shortened``: leaving it out would select the episodes that end. One with no such state at all can only be
left out, and is counted in ``unknown``; where these are more than LOST_MOST of all, the rest is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.records import Centred, below, nothing_of_both, record, where_both, where_given
from policyrisk.data import Source, Trajectories, gathered
from policyrisk.risk.draws import ErrorBars
from policyrisk.risk.estimate import shape
from policyrisk.risk.state_estimates import EstimatesAt, StateEstimates
from policyrisk.risk.support import LOST_MOST

if TYPE_CHECKING:
    from policyrisk.risk.risk_function import RiskFunction

EPISODES, TRANSITIONS = 1 << 12, 1 << 16  # that are looked at together, where they come in small batches
KEPT = 5_000  # completed returns, for tests by exchange: with more of them the delta method serves as well
SIZE = 5  # of z
FEWEST_SKEWED = 50  # clusters from which on they tell the skewness of what is made of them
# The completed mean and variance, and the model's: what each is of z, but for the average taken off.
_PARTS = np.eye(SIZE)[1:]


@record(
    powers="25 25",
    tail="l_J",
    tail_spread="l_J",
    tail_mean="l_J",
    tail_second="l_M",
    with_weights="5 l_J+l_M",
    draws="5 B",
    kept="pairs 2",
    clusters="g: rising",
    cluster_sums="g 5",
)
@dataclass(frozen=True, eq=False)
class CompletedReturns(Centred):
    """Sums over episodes' completed returns at an estimate; they add."""

    count: int  # K: episodes that have a completed return
    cut_off: int  # those of them that the estimate completes
    shortened: int  # those of these that are completed from an earlier state than they were cut off in
    unknown: int  # episodes that have none, since the data say nothing about any of their states
    mean: float  # ḡ; 0 where K is
    start_mean: float  # the average of J̃(x_0); 0 where K is
    powers: Floats  # (25, 25): Σ (z ⊗ z) (z ⊗ z)ᵀ
    tail: Floats  # (l_J,): Σ γ^T φ_J(x_T)
    tail_spread: Floats  # (l_J,): Σ d γ^T φ_J(x_T)
    tail_mean: Floats  # (l_J,): Σ ∂c/∂w_J, 0 for the direct variance
    tail_second: Floats  # (l_M,): Σ γ^{2T} φ_M(x_T)
    with_weights: Floats | None = None  # (5, l_J + l_M): Σ z_k ψ_kᵀ / (K − 1), where the ψ_k are known
    # (k, 2): g_k and c_k, rising in g, of KEPT episodes at most; None of more, or where they are not observed
    kept: Floats | None = None
    draws: Floats | None = None  # (5, B): Σ_k ξ_kb z_k / √(K (K − 1)), beside the replicates of the weights
    clusters: Ints | None = None  # (g,): the numbers of the episodes' clusters, where they come in clusters
    cluster_sums: Floats | None = None  # (g, 5): Σ z over each
    _means: ClassVar = ("mean", "start_mean")
    _weight: ClassVar = "count"
    _rules: ClassVar = {
        "kept": where_both(lambda a, b: kept_returns(below(a, b))),
        "clusters": where_given(below),
        "cluster_sums": where_given(below),
        "with_weights": nothing_of_both,
        "draws": nothing_of_both,
    }

    @classmethod
    def empty(cls, l_J: int, l_M: int) -> CompletedReturns:
        """The sums of no episode at all: adding them changes nothing."""
        powers = np.zeros((SIZE**2, SIZE**2))
        tails = np.zeros(l_J), np.zeros(l_J), np.zeros(l_J), np.zeros(l_M)
        return cls(0, 0, 0, 0, 0.0, 0.0, powers, *tails, kept=np.zeros((0, 2)))

    @classmethod
    def over(cls, source: Source, risk: RiskFunction) -> CompletedReturns:
        """The sums of a source's episodes at an estimate, in one pass.

        >>> import policyrisk as pr
        >>> chain = pr.domains.walk(n=5, p=0.7)
        >>> risk = pr.LSTD(pr.Tabular(5)).fit_exact(chain, start=0)
        >>> completed = CompletedReturns.over(chain.sample(0, episodes=2000, seed=1, max_steps=8), risk)
        >>> completed.cut_off, round(completed.mean, 2), round(completed.variance, 1)
        (1147, -10.63, 32.8)
        """
        none = cls.empty(risk.w_mean.size, risk.w_second.size)
        return sum(map(risk.completed_sums, gathered(source, EPISODES, TRANSITIONS)), none)

    @classmethod
    def of(cls, data: Trajectories, at: EstimatesAt, discount: float, l_J: int, l_M: int) -> CompletedReturns:
        """The sums of some episodes."""
        none, (last, rewards) = cls.empty(l_J, l_M), known_ends(data, at, discount)
        unknown = int(np.count_nonzero(last < 0))
        if unknown:
            data, last, rewards = data[last >= 0], last[last >= 0], rewards[last >= 0]
        if not len(data):
            return replace(none, unknown=unknown)
        cut = np.flatnonzero(~data.terminated)
        ends = at(data.states[data.offsets[:-1][cut] + cut + last[cut]]) if cut.size else ()
        J, V = np.concatenate([(part.J, part.V) for part in at(data.starts())], axis=1)
        weight = np.float64(discount) ** last[cut]
        found = none._of_ends(rewards, cut, weight, ends, J, V, data.clusters)
        shortened = int(np.count_nonzero(last[cut] < data.lengths[cut]))
        return replace(found, shortened=shortened, unknown=unknown)

    @classmethod
    def of_starts(cls, data: Trajectories, at: EstimatesAt, l_J: int, l_M: int) -> CompletedReturns:
        """The sums of episodes that are estimated from their starts on: g = J̃(x_0) and c = Ṽ(x_0)."""
        none = total = cls.empty(l_J, l_M)
        first = 0
        for part in at(data.starts()):
            own = None if data.clusters is None else data.clusters[first : first + len(part.J)]
            first += len(part.J)
            known = ~np.isnan(part.J)
            total += replace(none, unknown=int(np.count_nonzero(~known)))
            if known.any():
                of = part if known.all() else part.some(known)
                K, own = len(of.J), None if own is None else own[known]
                total += none._of_ends(np.zeros(K), np.arange(K), np.ones(K), [of], of.J, of.V, own)
        return replace(total, kept=None)

    def _of_ends(
        self,
        rewards: Floats,  # (K,): R up to the cut, or to the end
        cut: Ints,  # (m,): which episodes the estimate completes
        weight: Floats,  # (m,): γ^T of these
        ends: Iterable[StateEstimates],  # at their m ends
        J: Floats,  # (K,): J̃(x_0)
        V: Floats,  # (K,): Ṽ(x_0)
        clusters: Ints | None,  # (K,)
    ) -> CompletedReturns:
        """The sums of K episodes in place of none."""
        g, c = rewards.copy(), np.zeros(len(rewards))
        near = float(g.mean())  # not yet the mean of g, but no digits are lost about it

        def completed(part: StateEstimates, at: slice) -> Floats:
            g[cut[at]] += weight[at] * part.J
            c[cut[at]] = weight[at] ** 2 * part.V
            return g[cut[at]] - near

        moved = self.with_tails(ends, weight, weight**2, completed)
        mean = float(g.mean())
        visited = ~np.isnan(J)
        start_mean = float(J[visited].mean()) if visited.any() else 0.0
        z = episode_terms(g - mean, c, np.where(visited, J - start_mean, 0.0), np.where(visited, V, 0.0))
        numbers, sums = None, None
        if clusters is not None:
            numbers, sums = cluster_sums_of(clusters, z)
        return replace(
            moved,
            count=len(g),
            cut_off=cut.size,
            mean=mean,
            start_mean=start_mean,
            powers=fourth_powers(z),
            kept=kept_returns(np.column_stack([g, c])),
            clusters=numbers,
            cluster_sums=sums,
            tail_spread=moved.tail_spread + (near - mean) * moved.tail,
        )

    def with_tails(
        self,
        ends: Iterable[StateEstimates],
        once: Floats,
        twice: Floats,
        deviations: Callable[[StateEstimates, slice], Floats],
    ) -> CompletedReturns:
        """With Σ over m cut-off episodes of how their tails move, by γ^T (m,) and γ^{2T} (m,).

        ``deviations`` are the d of some of the episodes, whose estimates at the ends it is handed.
        """
        tail, spread, by_mean = (np.zeros_like(self.tail) for _ in range(3))
        second, first = np.zeros_like(self.tail_second), 0
        for part in ends:
            at = slice(first, first + len(part.J))
            tail += part.phi_mean.T @ once[at]
            spread += part.phi_mean.T @ (once[at] * deviations(part, at))
            second += part.phi_second.T @ twice[at]
            if part.spread is not None:
                by_mean += part.spread.T @ twice[at]
            elif part.variance_method == "second-moment":
                by_mean -= part.phi_mean.T @ (2 * twice[at] * np.nan_to_num(part.J))
            first = at.stop
        return replace(self, tail=tail, tail_spread=spread, tail_mean=by_mean, tail_second=second)

    def __add__(self, other: CompletedReturns) -> CompletedReturns:
        both = super().__add__(other)
        if both.clusters is None or both.cluster_sums is None:
            return both
        numbers, sums = cluster_sums_of(both.clusters, both.cluster_sums)
        return replace(both, clusters=numbers, cluster_sums=sums)

    def about(self, *means: float) -> CompletedReturns:
        """The same sums about another ḡ and average of J̃(x_0)."""
        mean, start_mean = means
        L = centre_shift(self.mean - mean, self.start_mean - start_mean)
        both = np.kron(L, L)
        return replace(
            self,
            powers=both @ self.powers @ both.T,
            tail_spread=self.tail_spread + (self.mean - mean) * self.tail,
            cluster_sums=None if self.cluster_sums is None else self.cluster_sums @ L.T,
        )

    @property
    def independent(self) -> int:
        """How many clusters there are; of independent episodes all of these."""
        return self.count if self.clusters is None else self.clusters.size

    @property
    def usable(self) -> bool:
        """Whether there are two episodes, and few enough were left out."""
        return self.count > 1 and self.unknown <= LOST_MOST * (self.count + self.unknown)

    @property
    def variance(self) -> float:
        """v, nan for fewer than two episodes."""
        if self.count < 2:
            return math.nan
        # Σ z ⊗ z ⊗ z ⊗ z at (0, 0, 1, 1) and (0, 0, 0, 2): z_0 is 1.
        squares, both = self.powers[0, SIZE + 1], self.powers[0, 2]
        return float(squares / (self.count - 1) + (both - squares) / self.count)

    def central_sum(self, power: Literal[2, 4]) -> float:
        """Σ d² or Σ d⁴, d being how far a completed return is from their mean."""
        return float(self.powers[0 if power == 2 else SIZE + 1, SIZE + 1])

    @property
    def observed(self) -> Floats | None:
        """g and c of all K episodes, (K, 2); None where they were not kept."""
        return self.kept if self.kept is not None and len(self.kept) == self.count else None

    @property
    def effective_episodes(self) -> float:
        """(Σ s)² / Σ s² with s = d² + c: of how many equal episodes the variance is worth."""
        squares = float(self.powers[2, 2])
        return float(self.powers[0, 2]) ** 2 / squares if squares > 0 else float(self.count)

    @property
    def gradients(self) -> tuple[Floats, Floats]:
        """The gradients of (m, v) by w_J, (2, l_J), and by w_second, (2, l_M)."""
        K = self.count
        g_J = np.stack([self.tail / K, 2 * self.tail_spread / (K - 1) + self.tail_mean / K])
        return g_J, np.stack([np.zeros_like(self.tail_second), self.tail_second / K])

    @property
    def influences(self) -> Floats:
        """What z is multiplied with, (4, 5), for K times the influence on m, v and those of the model."""
        rows = _PARTS.copy()
        rows[:, 0] = -self.powers[0, 1:SIZE] / self.count  # so that each is 0 on average
        return rows

    def covariance(self, bars: ErrorBars | None, model: tuple[Floats, Floats] | None = None) -> Floats:
        """The covariance (2, 2) of (m, v), or (4, 4) of these and the model's.

        ``model`` are the gradients of the model's mean and variance over the same starts,
        (2, l_J) and (2, l_M). Without error bars nothing is known of what the weights move: nan, but
        for m and v where nothing was cut off.
        """
        K = self.count
        n = 2 if model is None else 4
        B = self.influences[:n]
        own = B @ self.powers[:SIZE, :SIZE] @ B.T / (K * (K - 1))
        # That ḡ is estimated as well: all that there is where (g − m)² is always the same.
        of_mean = 2 * (self.powers[0, SIZE + 1] / K) ** 2 / (K * (K - 1))
        if self.cluster_sums is not None:
            G, moved_by = self.independent, self.cluster_sums @ B.T / K
            own = moved_by.T @ moved_by * (G / max(G - 1, 1))
            of_mean = 2 * own[0, 0] ** 2
        own[1, 1] += of_mean
        if bars is None:
            unknown = 0 if self.cut_off else 2
            own[unknown:, :] = own[:, unknown:] = np.nan
            return own
        g_J, g_M = self.gradients
        if model is not None:
            g_J, g_M = np.vstack([g_J, model[0]]), np.vstack([g_M, model[1]])
        total: Floats = own + bars.covariance(g_J, g_M)
        moved: Floats | None = None  # Σ z_k (what episode k moves by the weights) / (K − 1), (5, n)
        if self.with_weights is not None:
            moved = self.with_weights @ np.hstack([g_J, g_M]).T
        elif self.draws is not None and bars.draws:
            moved = self.draws @ bars.drawn(g_J, g_M).T / bars.draws
        if moved is not None:
            total += B @ moved + (B @ moved).T
        return total

    def deviations(self, bars: ErrorBars) -> Floats:
        """By how much (m, v) is off in each replicate of the weights, (2, B)."""
        moved = bars.drawn(*self.gradients)
        return moved if self.draws is None else moved + self.influences[:2] @ self.draws

    def shape(self, by: Floats, standard_error: float) -> tuple[float, float]:
        """The skewness and the degrees of freedom of an estimate that moves by ``by`` with (m, v).

        ``by`` is of shape (2,), or (4,) for what moves with the model's as well. α and ν of
        :mod:`policyrisk.risk.estimate`, with the moments of the episodes' own part.
        """
        K = self.count
        if not standard_error > 0:
            return 0.0, K - 1.0
        i = by @ self.influences[: len(by)]
        if self.cluster_sums is not None:
            return self._shape_by_clusters(self.cluster_sums @ i / K, standard_error)
        pair, first = np.kron(i, i), np.eye(SIZE)[0]
        second, third, fourth = (
            float(left @ self.powers @ pair) / K for left in (np.kron(first, first), np.kron(first, i), pair)
        )
        # Where the weights' part cancels some of the own part it does so in every moment.
        error = np.float64(max(standard_error, math.sqrt(max(second, 0.0) / K)))
        if not error**4 > 0:  # too small to be raised to a power
            return 0.0, K - 1.0
        skewness = third / (K**2 * error**3)
        spread = fourth - second**2
        dof = 2 * K**3 * error**4 / spread if spread > 0 else math.inf
        return skewness, min(max(dof, 1.0), K - 1.0)

    def _shape_by_clusters(self, change: Floats, standard_error: float) -> tuple[float, float]:
        """As :meth:`shape`, of what each cluster moves the estimate by, (g,)."""
        G = self.independent
        size = math.sqrt(float(change @ change))
        error = np.full(1, max(standard_error, size))
        skewness, dof = shape(change[None], error, np.full(1, float(G)), FEWEST_SKEWED)
        return float(skewness[0]), float(dof[0]) if G >= FEWEST_SKEWED else G - 1.0


def cluster_sums_of(clusters: Ints, z: Floats) -> tuple[Ints, Floats]:
    """The clusters' numbers, rising, and the sums of rows z (n, 5) over each, (g, 5).

    >>> cluster_sums_of(np.array([3, 1, 3]), np.ones((3, 5)))[1][:, 0]
    array([1., 2.])
    """
    numbers, inverse = np.unique(clusters, return_inverse=True)
    sums = np.zeros((numbers.size, z.shape[1]))
    np.add.at(sums, inverse.reshape(-1), z)
    return numbers, sums


def kept_returns(returns: Floats) -> Floats | None:
    """g and c (k, 2) in the order of g, None for more than KEPT."""
    return None if len(returns) > KEPT else returns[np.lexsort(returns.T[::-1])]


def episode_terms(d: Floats, c: Floats, h: Floats, V: Floats) -> Floats:
    """z, of shape (n, 5), from d, c, h and Ṽ(x_0), each of shape (n,)."""
    return np.column_stack([np.ones_like(d), d, d**2 + c, h, h**2 + V])


def fourth_powers(z: Floats) -> Floats:
    """Σ (z ⊗ z) (z ⊗ z)ᵀ over the rows of z (n, 5), (25, 25)."""
    pairs = (z[:, :, None] * z[:, None, :]).reshape(len(z), SIZE**2)
    return pairs.T @ pairs


def centre_shift(d: float, h: float) -> Floats:
    """The map (5, 5) that takes z to what it is where d and h are larger by so much."""
    L = np.eye(SIZE)
    L[1, 0], L[2, 0], L[2, 1] = d, d * d, 2 * d
    L[3, 0], L[4, 0], L[4, 3] = h, h * h, 2 * h
    return L


def known_ends(data: Trajectories, at: EstimatesAt, discount: float) -> tuple[Ints, Floats]:
    """For each episode, (episodes,): the step it is completed from, −1 for none, and the return up to it.

    That of a terminated episode is its length.
    """
    last, returns = data.lengths.copy(), data.returns(discount)
    cut = np.flatnonzero(~data.terminated)
    if not cut.size:
        return last, returns
    cut = cut[~_known(data.states[data.final_rows[cut]], at)]
    if cut.size:
        some = data[cut]
        last[cut], returns[cut] = cut_back(some, _known(some.states, at), discount)
    return last, returns


def cut_back(data: Trajectories, known: Bools, discount: float) -> tuple[Ints, Floats]:
    """As :func:`known_ends` of cut-off episodes, by whether each row of their states is known, (rows,)."""
    first, returns = data.offsets[:-1] + np.arange(len(data)), data.returns(discount)
    step = np.arange(len(data.states)) - np.repeat(first, data.lengths + 1)
    last = np.maximum.reduceat(np.where(known, step, -1), first)
    # What was earned from there on is taken off again; at the end that is nothing.
    found = np.flatnonzero((last >= 0) & (last < data.lengths))
    to_go = data.returns_to_go(discount)[data.offsets[:-1][found] + last[found]]
    returns[found] -= discount ** last[found].astype(np.float64) * to_go
    return last, returns


def _known(states: npt.NDArray[Any], at: EstimatesAt) -> npt.NDArray[np.bool_]:
    """Whether there is an estimate at each state, (n,)."""
    return np.concatenate([part.episodes > 0 for part in at(states)])
