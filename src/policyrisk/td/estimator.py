"""The estimator TD(λ): weights that follow the episodes as they come.

With δ_J(t) = r_t + γ J̃(x_{t+1}) − J̃(x_t) and δ_M(t) = r_t² + 2γ r_t J̃(x_{t+1}) + γ² M̃(x_{t+1}) − M̃(x_t),

    w_J += ξ_k Σ_t z_t δ_J(t)        w_M += ξ_k Σ_t y_t δ_M(t)        after episode k (sec. 4.2)
    w_J += ξ_k z_t δ_J(t)            w_M += ξ_k y_t δ_M(t)            after transition k, update="step"

where z_t = λγ z_{t−1} + φ_J(x_t) and y_t = λγ² y_{t−1} + φ_M(x_t) start anew in every episode; λ = 0 is the
paper's. The weights in δ_J and δ_M are those before the update, and 0 at the start. J̃ and M̃ of x_{t+1} are 0
only where the episode terminated: one that was cut off bootstraps from the state it was cut off in. Where
that state has a feature that no transition has started with as yet, its value would be the 0 that weights
start from, so the last transition is given up and counted (``provenance.given_up``).

``average=True`` gives Polyak and Ruppert's average of the iterates instead of the last one, with iterate
w_k weighted by k: Σ k w_k / Σ k. The early iterates, which remember the start at 0, then fade by themselves
and no burn-in has to be chosen; the price is a variance of 4/3 of the plain average's. It goes with steps
that fall slowly, power in (½, 1). δ_J and δ_M always use the iterate itself.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from policyrisk._core.arrays import Floats, Ints, as_count, as_number, check_choice, readonly
from policyrisk.errors import ImproperPolicyError, InvalidInputError, SolverError
from policyrisk.features import Features, as_features
from policyrisk.features.protocol import outside
from policyrisk.risk import Provenance, RiskFunction
from policyrisk.risk.summary import SampleReturns
from policyrisk.td import _kernels
from policyrisk.td._kernels import FeatureRows
from policyrisk.td.episode_rows import EpisodeRows, episode_rows, feature_rows
from policyrisk.td.learned import Iterate, Learned, VisitCounts
from policyrisk.td.stability import check_finite, largest_stable_step
from policyrisk.td.step_size import StepSize
from policyrisk.trajectories import Source, Trajectories, batches, check_reiterable

Update: TypeAlias = Literal["episode", "step"]

_EXPLODED = 1e12  # times the largest target: no TD error is that large unless the weights run away
_STEP = StepSize(0.1, decay=1000, power=1.0)


class TD:
    """TD(λ) and what it has learned.

    ``second_features`` are φ_M, the same as ``features`` where None. ``fit`` starts anew, ``partial_fit``
    goes on. With a step that satisfies Theorem 10's conditions (``step.satisfies_theorem``) the weights
    converge to those of the projected equations, which LSTD with the same λ solves.

    >>> import policyrisk as pr
    >>> chain = pr.MarkovChain([[0.3, 0.5], [0.6, 0.0]], [1.0, 3.0])
    >>> td = TD(pr.Tabular(2), step=StepSize(0.1, decay=100))
    >>> risk = td.fit(chain.sample(0, episodes=100_000, seed=1))
    >>> risk.mean([0, 1]).round(1), chain.mean()
    (array([6.2, 6.7]), array([6.25, 6.75]))
    >>> td.partial_fit(chain.sample(0, episodes=500, seed=2)).provenance.episodes
    100500
    """

    def __init__(
        self,
        features: Any,
        second_features: Any = None,
        lam: float = 0.0,
        discount: float = 1.0,
        step: StepSize = _STEP,
        update: Update = "episode",
        average: bool = False,
    ) -> None:
        self.features: Features = as_features(features)
        self.second_features: Features = (
            self.features if second_features is None else as_features(second_features)
        )
        self.lam = as_number(lam, "lam", 0.0, 1.0)
        self.discount = as_number(discount, "discount", 0.0, 1.0, open_low=True)
        if not isinstance(step, StepSize):
            raise InvalidInputError(f"step must be a StepSize, got {step!r}; pass StepSize(0.1) or another")
        self.step = step
        check_choice(update, "update", get_args(Update))
        self.update = update
        if not isinstance(average, bool):
            raise InvalidInputError(f"average must be True or False, got {average!r}; choose one")
        self.average = average
        self._learned: Learned | None = None

    def fit(self, data: Source, epochs: int = 1) -> RiskFunction:
        """Learn from weights 0, ``epochs`` times through the data; no error bars.

        What was learned before is forgotten, unless this fails. k counts on from one pass to the next;
        ``provenance`` and ``episodes(x)`` count the last pass only.
        """
        if as_count(epochs, "epochs", 1) > 1:
            check_reiterable(data)
        learned: Learned | None = None
        for _ in range(epochs):
            learned = None if learned is None else learned.next_pass()
            for batch in batches(data):
                if len(batch):
                    learned = self._start(batch) if learned is None else learned
                    self._learn(learned, batch)
        if learned is None:
            raise InvalidInputError("data must hold at least one episode, got none; add data first")
        if self.discount == 1.0 and learned.terminated == 0:
            raise ImproperPolicyError(
                f"with discount=1 some episode must terminate (Assumption 1: proper policy), got "
                f"{learned.episodes} episodes, all cut off; gather episodes that end, or use discount < 1"
            )
        self._learned = learned
        return self.risk

    def partial_fit(self, more: Source) -> RiskFunction:
        """Learn on from more episodes, each read once; the estimate of everything so far.

        Where a batch diverges, what was learned before that batch is kept.
        """
        for batch in batches(more):
            if len(batch):
                learned = self._start(batch) if self._learned is None else self._learned.copy()
                self._learn(learned, batch)
                self._learned = learned
        return self.risk

    @property
    def risk(self) -> RiskFunction:
        """The estimate of everything learned so far; learning on does not change it."""
        learned = self._learned
        if learned is None:
            raise InvalidInputError("TD must have seen at least one episode, got none; call fit(data) first")
        support = learned.counts.support(learned.episodes)
        return RiskFunction(
            features=self.features,
            second_features=self.second_features,
            w_mean=learned.mean.weights(learned.updates),
            w_second=learned.second.weights(learned.updates),
            variance_method="second-moment",
            support=support,
            second_support=support if learned.shared else learned.second_counts.support(learned.episodes),
            provenance=Provenance(
                estimator="TD",
                lam=self.lam,
                discount=self.discount,
                episodes=learned.episodes,
                terminated=learned.terminated,
                transitions=float(learned.transitions),
                outside=learned.outside,
                given_up=learned.given_up,
            ),
            returns=learned.returns if learned.returns.count else None,
        )

    def _start(self, batch: Trajectories) -> Learned:
        """Weights 0; the first state shows how many features there are, and of which kind."""
        rows, size = feature_rows(self.features, batch.states[:1])
        counts = VisitCounts.nothing(rows, size)
        second_counts, second_size = counts, size
        if self.second_features != self.features:
            rows, second_size = feature_rows(self.second_features, batch.states[:1])
            second_counts = VisitCounts.nothing(rows, second_size)
        return Learned(
            mean=Iterate.zero(size, averaged=self.average),
            second=Iterate.zero(second_size, averaged=self.average),
            counts=counts,
            second_counts=second_counts,
        )

    def _learn(self, learned: Learned, batch: Trajectories) -> None:
        """Learn from a batch, in place."""
        gamma = self.discount
        for episodes in episode_rows(batch, _dense_width(learned)):
            rows, _ = feature_rows(self.features, episodes.states)
            second_rows = rows if learned.shared else feature_rows(self.second_features, episodes.states)[0]
            used = self._count(learned, episodes, rows, second_rows)
            first, r = learned.updates, episodes.rewards
            xi = self.step(np.arange(first, first + self._updates(used)))
            successor = np.zeros(len(r))  # J̃(x_{t+1}) with the weights of its update
            failed = self._follow(learned.mean, rows, episodes, used, r, gamma, xi, first, successor)
            if failed < 0:
                with np.errstate(over="ignore", invalid="ignore"):
                    target = r**2 + 2.0 * gamma * r * successor
                failed = self._follow(
                    learned.second, second_rows, episodes, used, target, gamma**2, xi, first, successor
                )
            if failed >= 0:
                raise self._divergence(first + failed, episodes, used, (rows, second_rows), learned)
            learned.updates += len(xi)
        learned.episodes += len(batch)
        learned.terminated += int(batch.terminated.sum())
        learned.returns += SampleReturns.of(batch.returns(gamma)[batch.terminated])

    def _count(
        self, learned: Learned, episodes: EpisodeRows, rows: FeatureRows, second_rows: FeatureRows
    ) -> Ints:
        """How many transitions of each episode are used, of shape (episodes,); what they visit is counted."""
        counts, second_counts = learned.counts, learned.second_counts
        used = np.empty_like(episodes.lengths)
        _kernels.count(
            rows,
            second_rows,
            learned.shared,
            episodes.base,
            episodes.lengths,
            episodes.bootstraps,
            counts.before,
            second_counts.before,
            counts.visits,
            second_counts.visits,
            counts.feature_episodes,
            second_counts.feature_episodes,
            used,
        )
        started = episodes.started(used)
        counts.add_gram(rows, started)
        if not learned.shared:
            second_counts.add_gram(second_rows, started)
        learned.transitions += len(started)
        learned.given_up += len(episodes.rewards) - len(started)
        maps = (self.features,) if learned.shared else (self.features, self.second_features)
        beyond = outside(maps, episodes.states)
        learned.outside += int(np.count_nonzero(beyond[started])) if beyond.any() else 0
        return used

    def _updates(self, used: Ints) -> int:
        return len(used) if self.update == "episode" else int(used.sum())

    def _follow(
        self,
        iterate: Iterate,
        rows: FeatureRows,
        episodes: EpisodeRows,
        used: Ints,  # (episodes,): how many transitions of each count
        c: Floats,  # (transitions,): the targets' known part
        g: float,
        xi: Floats,  # (updates,)
        first: int,  # the number of the first update
        successor: Floats,  # (transitions,): out
    ) -> int:
        """The updates of one moment, in place; the one that diverged, counted from first, or −1."""
        iterate.largest = max(iterate.largest, float(np.abs(c).max()))
        run = _kernels.by_episode if self.update == "episode" else _kernels.by_step
        failed: int = run(
            rows,
            episodes.base,
            episodes.offsets,
            used,
            episodes.bootstraps,
            readonly(c),
            g,
            self.lam,
            xi,
            first,
            _EXPLODED * iterate.largest,
            iterate.u.size > 0,
            iterate.w,
            iterate.u,
            successor,
        )
        if failed < 0 and not np.isfinite(iterate.w).all():
            return max(len(xi) - 1, 0)
        return failed

    def _divergence(
        self,
        k: int,
        episodes: EpisodeRows,
        used: Ints,
        both_rows: tuple[FeatureRows, FeatureRows],  # φ_J and φ_M of the episodes' states
        learned: Learned,
    ) -> SolverError | InvalidInputError:
        """The error that says so, with the largest step that is stable on these episodes."""
        limit, scale, updates = np.inf, self.step.scale, self._updates(used)
        zero, ignored = np.zeros((2, len(episodes.rewards)))
        sizes = len(learned.mean.w), len(learned.second.w)
        for rows, size, g in zip(both_rows, sizes, (self.discount, self.discount**2), strict=True):
            check_finite(rows)

            def run(step: float, w: Floats, rows: FeatureRows = rows, g: float = g) -> None:
                unbounded = Iterate(w, np.empty(0), largest=np.inf)
                self._follow(unbounded, rows, episodes, used, zero, g, np.full(updates, step), 0, ignored)

            limit = min(limit, largest_stable_step(run, size, updates, scale))
        remedy = f"pass step=StepSize({limit / 2:.2g}, ...) or less"
        if limit == 0.0 and episodes.bootstraps.any():
            remedy = (
                "cut-off episodes make the equations unstable at any step, so use episodes that terminate, "
                "a discount further below 1, or a larger lam"
            )
        elif limit == 0.0:
            remedy = "the features are too large for any step, so scale them to about 1"
        return SolverError(
            f"TD diverged at update {k} (one per {self.update}): the weights must stay bounded, but a TD "
            f"error passed {_EXPLODED:g} times the largest target; got step.scale={scale:g}, where the "
            f"largest stable step on these episodes is {limit:.3g}; {remedy}"
        )


def _dense_width(learned: Learned) -> int | None:
    """The entries in a row of the dense features, None where there are none."""
    widths = [
        len(counts.visits) for counts in (learned.counts, learned.second_counts) if counts.gram is not None
    ]
    return max(widths, default=None)
