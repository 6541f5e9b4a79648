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

from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from policyrisk._core.arrays import Floats, Ints, as_count, as_number, check_choice, readonly
from policyrisk.errors import ImproperPolicyError, InvalidInputError, SolverError
from policyrisk.features import Features, as_features
from policyrisk.risk import Provenance, RiskFunction
from policyrisk.risk.summary import SampleReturns
from policyrisk.td import _kernels
from policyrisk.td._kernels import Rows
from policyrisk.td._learned import Learned, Moment, Seen
from policyrisk.td._rows import Chunk, Lesson, chunks, rows_of
from policyrisk.td._stability import largest_stable_step
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
        support = learned.seen.support(learned.episodes)
        return RiskFunction(
            features=self.features,
            second_features=self.second_features,
            w_mean=learned.mean.weights(learned.updates),
            w_second=learned.second.weights(learned.updates),
            variance_method="second-moment",
            support=support,
            second_support=support if learned.shared else learned.second_seen.support(learned.episodes),
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
        rows, size = rows_of(self.features, batch.states[:1])
        seen = Seen.nothing(rows, size)
        second_seen, second_size = seen, size
        if self.second_features != self.features:
            rows, second_size = rows_of(self.second_features, batch.states[:1])
            second_seen = Seen.nothing(rows, second_size)
        return Learned(
            mean=Moment.zero(size, averaged=self.average),
            second=Moment.zero(second_size, averaged=self.average),
            seen=seen,
            second_seen=second_seen,
        )

    def _learn(self, learned: Learned, batch: Trajectories) -> None:
        """Learn from a batch, in place."""
        gamma = self.discount
        for chunk in chunks(batch, _dense_width(learned)):
            rows, _ = rows_of(self.features, chunk.states)
            second_rows = rows if learned.shared else rows_of(self.second_features, chunk.states)[0]
            lesson = Lesson(chunk, rows, self._count(learned, chunk, rows, second_rows))
            second_lesson = replace(lesson, rows=second_rows)
            first, r = learned.updates, chunk.rewards
            xi = self.step(np.arange(first, first + self._updates(lesson)))
            successor = np.zeros(len(r))  # J̃(x_{t+1}) with the weights of its update
            failed = self._follow(learned.mean, lesson, r, gamma, xi, first, successor)
            if failed < 0:
                with np.errstate(over="ignore", invalid="ignore"):
                    target = r**2 + 2.0 * gamma * r * successor
                failed = self._follow(learned.second, second_lesson, target, gamma**2, xi, first, successor)
            if failed >= 0:
                raise self._divergence(first + failed, learned, lesson, second_lesson)
            learned.updates += len(xi)
        learned.episodes += len(batch)
        learned.terminated += int(batch.terminated.sum())
        learned.returns += SampleReturns.of(batch.returns(gamma)[batch.terminated])

    def _count(self, learned: Learned, chunk: Chunk, rows: Rows, second_rows: Rows) -> Ints:
        """How many transitions of each episode are used, of shape (episodes,); what they saw is counted."""
        seen, second_seen = learned.seen, learned.second_seen
        used = np.empty_like(chunk.lengths)
        _kernels.count(
            rows,
            second_rows,
            learned.shared,
            chunk.base,
            chunk.lengths,
            chunk.bootstraps,
            seen.before,
            second_seen.before,
            seen.visits,
            second_seen.visits,
            seen.feature_episodes,
            second_seen.feature_episodes,
            used,
        )
        started = chunk.started(used)
        seen.add_gram(rows, started)
        if not learned.shared:
            second_seen.add_gram(second_rows, started)
        learned.transitions += len(started)
        learned.given_up += len(chunk.rewards) - len(started)
        maps = (self.features,) if learned.shared else (self.features, self.second_features)
        learned.outside += chunk.outside(maps, started)
        return used

    def _updates(self, lesson: Lesson) -> int:
        return len(lesson.used) if self.update == "episode" else int(lesson.used.sum())

    def _follow(
        self,
        moment: Moment,
        lesson: Lesson,
        c: Floats,  # (transitions,): the targets' known part
        g: float,
        xi: Floats,  # (updates,)
        first: int,  # the number of the first update
        successor: Floats,  # (transitions,): out
    ) -> int:
        """The updates of one moment, in place; the one that diverged, counted from first, or −1."""
        moment.largest = max(moment.largest, float(np.abs(c).max()))
        run = _kernels.by_episode if self.update == "episode" else _kernels.by_step
        failed: int = run(
            lesson.rows,
            lesson.chunk.base,
            lesson.chunk.offsets,
            lesson.used,
            lesson.chunk.bootstraps,
            readonly(c.view()),
            g,
            self.lam,
            xi,
            first,
            _EXPLODED * moment.largest,
            moment.u.size > 0,
            moment.w,
            moment.u,
            successor,
        )
        if failed < 0 and not np.isfinite(moment.w).all():
            return max(len(xi) - 1, 0)
        return failed

    def _divergence(
        self, k: int, learned: Learned, lesson: Lesson, second_lesson: Lesson
    ) -> SolverError | InvalidInputError:
        """The error that says so, with the largest step that is stable on these episodes."""
        limit, scale, updates = np.inf, self.step.scale, self._updates(lesson)
        zero, ignored = np.zeros((2, len(lesson.chunk.rewards)))
        for moment, part, g in (
            (learned.mean, lesson, self.discount),
            (learned.second, second_lesson, self.discount**2),
        ):
            part.check_finite()

            def run(step: float, w: Floats, part: Lesson = part, g: float = g) -> None:
                unbounded = Moment(w, np.empty(0), largest=np.inf)
                self._follow(unbounded, part, zero, g, np.full(updates, step), 0, ignored)

            limit = min(limit, largest_stable_step(run, len(moment.w), updates, scale))
        remedy = f"pass step=StepSize({limit / 2:.2g}, ...) or less"
        if limit == 0.0 and lesson.chunk.bootstraps.any():
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
    widths = [len(seen.visits) for seen in (learned.seen, learned.second_seen) if seen.gram is not None]
    return max(widths, default=None)
