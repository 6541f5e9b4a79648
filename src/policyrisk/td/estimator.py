"""The estimator TD(λ): weights that follow the episodes as they come.

With δ_J(t) = r_t + γ J̃(x_{t+1}) − J̃(x_t) and δ_M(t) = r_t² + 2γ r_t J̃(x_{t+1}) + γ² M̃(x_{t+1}) − M̃(x_t),

    w_J += ξ_k Σ_t z_t δ_J(t)        w_M += ξ_k Σ_t y_t δ_M(t)        after episode k (sec. 4.2)
    w_J += ξ_k z_t δ_J(t)            w_M += ξ_k y_t δ_M(t)            after transition k, update="step"

where z_t = λγ z_{t−1} + φ_J(x_t) and y_t = λγ² y_{t−1} + φ_M(x_t) start anew in every episode; λ = 0 is the
paper's. The weights in δ_J and δ_M are those before the update, and 0 at the start. J̃ and M̃ of x_{t+1} are 0
only where the episode terminated: one that was cut off bootstraps from the state it was cut off in. Where
that state has a feature that no transition has started with as yet, its value would be the 0 that weights
start from, so the last transition is given up and counted (``provenance.given_up``). That is a selection, as
in :mod:`policyrisk.lstd.cutoffs`; without equations TD cannot tell which estimates rest on it, and none is
nan, but ``fit`` warns where more than LOST_MOST of the episodes gave up: that is LSTD's weight of what was
given up, h, on average over the starts.

``average=True`` gives Polyak and Ruppert's average of the iterates instead of the last one, with iterate
w_k weighted by k: Σ k w_k / Σ k. The early iterates, which remember the start at 0, then fade by themselves
and no burn-in has to be chosen; the price is a variance of 4/3 of the plain average's. It goes with steps
that fall slowly, power in (½, 1). δ_J and δ_M always use the iterate itself.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import (
    Floats,
    as_array,
    as_count,
    as_flag,
    as_number,
    check_choice,
    check_kind,
    readonly,
)
from policyrisk._core.keywords import hinting
from policyrisk._core.text import plural
from policyrisk.data import Source, Trajectories, batches, check_reiterable, coordinates_of
from policyrisk.errors import GivenUpWarning, InvalidInputError, SolverError, check_proper
from policyrisk.features import Features, as_features
from policyrisk.features.protocol import outside
from policyrisk.risk import Provenance, RiskFunction
from policyrisk.risk.start_sums import SampleReturns
from policyrisk.risk.support import LOST_MOST
from policyrisk.td import _update_kernels as kernels
from policyrisk.td._update_kernels import FeatureRows
from policyrisk.td.learned import (
    EpisodeRows,
    Iterate,
    Learned,
    VisitCounts,
    check_finite,
    episode_rows,
    feature_rows,
)

Update: TypeAlias = Literal["episode", "step"]

_EXPLODED = 1e12  # times the largest target: no TD error is that large unless the weights run away


@dataclass(frozen=True)
class StepSize:
    """ξ_k = scale / (1 + k/decay)^power for update k = 0, 1, …

    Parameters
    ----------
    scale
        The first step.
    decay
        The number of updates after which the step starts to fall.
    power
        How fast it falls; 0 is a constant step.

    Examples
    --------
    >>> step = StepSize(0.1, decay=1000, power=1.0)
    >>> step([0, 1000, 9000])
    array([0.1 , 0.05, 0.01])
    >>> step.satisfies_theorem, StepSize(0.1, power=0.5).satisfies_theorem
    (True, False)
    """

    scale: float
    decay: float = 1000.0
    power: float = 1.0

    def __post_init__(self) -> None:
        checked = {
            "scale": as_number(self.scale, "scale", 0.0, open_low=True, remedy="pass a positive step"),
            "decay": as_number(self.decay, "decay", 0.0, open_low=True, remedy="pass a number of updates"),
            "power": as_number(
                self.power, "power", 0.0, 1.0, remedy="above 1/2 converges by Theorem 10; 0 is constant"
            ),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __call__(self, k: npt.ArrayLike) -> Floats:
        """ξ_k, of the shape of k."""
        updates = as_array(k, "k", "numbers of updates").astype(np.float64)
        if not (updates >= 0).all():
            raise InvalidInputError("k must be numbers of updates from 0 on, got others; count them")
        falling: Floats = (1.0 + updates / self.decay) ** self.power
        return self.scale / falling

    @property
    def satisfies_theorem(self) -> bool:
        """Whether Σ ξ_k = ∞ and Σ ξ_k² < ∞, the conditions of Theorem 10: power in (½, 1]."""
        return self.power > 0.5


_STEP = StepSize(0.1, decay=1000, power=1.0)


@hinting
class TD:
    """TD(λ) and what it has learned.

    ``fit`` starts anew, ``partial_fit`` goes on. With a step that satisfies Theorem 10's conditions
    (``step.satisfies_theorem``) the weights converge to those of the projected equations, which LSTD with
    the same λ solves.

    Parameters
    ----------
    features
        φ_J: a feature map, or a function from states (n, dim) to (n, l).
    second_features
        φ_M; the same as ``features`` where None.
    lam
        The trace parameter λ.
    discount
        γ.
    step
        The step sizes ξ_k.
    update
        "episode" as in the paper, or "step" after every transition.
    average
        Whether the estimate is the average of the weights over the updates.

    Examples
    --------
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
        check_kind(step, "step", StepSize, "pass StepSize(0.1) or another")
        check_choice(update, "update", get_args(Update))
        self.step, self.update, self.average = step, update, as_flag(average, "average")
        self._learned: Learned | None = None

    def fit(self, data: Source, epochs: int = 1) -> RiskFunction:
        """Learn from weights 0; no error bars.

        What was learned before is forgotten, unless this fails. k counts on from one pass to the next;
        ``provenance`` and ``episodes(x)`` count the last pass only.

        Parameters
        ----------
        data
            Trajectories, or a re-iterable stream of them.
        epochs
            How many times to go through the data.

        Returns
        -------
        RiskFunction
            J̃, M̃ and Ṽ at any state.
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
        check_proper(self.discount, learned.terminated, learned.episodes)
        if learned.shortened > LOST_MOST * learned.episodes:
            warnings.warn(
                f"{learned.shortened} of {learned.episodes} episodes were cut off where no "
                f"transition had started, and gave up {plural(learned.given_up, 'last transition')}: "
                f"estimates rest on the others, which ended. Gather episodes that go on for longer, use "
                "coarser features or more epochs; LSTD tells where it matters",
                GivenUpWarning,
                stacklevel=2,
            )
        self._learned = learned
        return replace(self.risk, coordinates=coordinates_of(data))

    def partial_fit(self, more: Source) -> RiskFunction:
        """Learn on from more episodes, each read once.

        Where a batch diverges, what was learned before that batch is kept.

        Parameters
        ----------
        more
            Trajectories, or a stream of them.

        Returns
        -------
        RiskFunction
            The estimate of everything so far.
        """
        for batch in batches(more):
            if len(batch):
                # In arrays of its own: what was learned before stays as it is.
                learned = self._start(batch) if self._learned is None else deepcopy(self._learned)
                self._learn(learned, batch)
                self._learned = learned
        return replace(self.risk, coordinates=coordinates_of(more))

    @property
    def risk(self) -> RiskFunction:
        """The estimate of everything learned so far; learning on does not change it."""
        learned = self._learned
        if learned is None:
            raise InvalidInputError("TD must have seen at least one episode, got none; call fit(data) first")
        supports = [counts.support(learned.episodes) for counts in learned.counts]
        return RiskFunction(
            features=self.features,
            second_features=self.second_features,
            w_mean=learned.mean.weights(learned.updates),
            w_second=learned.second.weights(learned.updates),
            variance_method="second-moment",
            support=supports[0],
            second_support=supports[-1],
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
        another = self.second_features != self.features
        maps = (self.features, self.second_features) if another else (self.features,)
        rows = [feature_rows(features, batch.states[:1]) for features in maps]
        sizes = [features.size for features in maps]
        return Learned(
            mean=Iterate.zero(sizes[0], averaged=self.average),
            second=Iterate.zero(sizes[-1], averaged=self.average),
            counts=tuple(map(VisitCounts.nothing, rows, sizes)),
        )

    def _learn(self, learned: Learned, batch: Trajectories) -> None:
        """Learn from a batch, in place."""
        gamma = self.discount
        maps = (self.features, self.second_features)[: len(learned.counts)]
        dense = (len(counts.visits) for counts in learned.counts if counts.gram is not None)
        for episodes in episode_rows(batch, max(dense, default=None)):
            rows = [feature_rows(features, episodes.states) for features in maps]
            learned.count(episodes, rows, outside(maps, episodes.states))
            first, r = learned.updates, episodes.rewards
            xi = self.step(np.arange(first, first + self._updates(episodes)))
            successor = np.zeros(len(r))  # J̃(x_{t+1}) with the weights of its update
            failed = self._follow(learned.mean, rows[0], episodes, r, gamma, xi, first, successor)
            if failed < 0:
                with np.errstate(over="ignore", invalid="ignore"):
                    target = r**2 + 2.0 * gamma * r * successor
                failed = self._follow(
                    learned.second, rows[-1], episodes, target, gamma**2, xi, first, successor
                )
            if failed >= 0:
                raise self._divergence(first + failed, episodes, rows)
            learned.updates += len(xi)
        learned.episodes += len(batch)
        learned.terminated += int(batch.terminated.sum())
        learned.returns += SampleReturns.of(batch.returns(gamma)[batch.terminated])

    def _updates(self, episodes: EpisodeRows) -> int:
        used = episodes.spans.used
        return len(used) if self.update == "episode" else int(used.sum())

    def _follow(
        self,
        iterate: Iterate,
        rows: FeatureRows,
        episodes: EpisodeRows,
        c: Floats,  # (transitions,): the targets' known part
        g: float,
        xi: Floats,  # (updates,)
        first: int,  # the number of the first update
        successor: Floats,  # (transitions,): out
    ) -> int:
        """The updates of one moment, in place; the one that diverged, counted from first, or −1."""
        iterate.largest = max(iterate.largest, float(np.abs(c).max()))
        run = kernels.by_episode if self.update == "episode" else kernels.by_step
        failed: int = run(
            rows,
            episodes.spans,
            readonly(c),
            g,
            self.lam,
            xi,
            first,
            _EXPLODED * iterate.largest,
            iterate.w,
            iterate.u,
            successor,
        )
        if failed < 0 and not np.isfinite(iterate.w).all():
            return max(len(xi) - 1, 0)
        return failed

    def _divergence(self, k: int, episodes: EpisodeRows, rows: list[FeatureRows]) -> SolverError:
        """The error that says so, with a step that is stable where these episodes terminate.

        An update with ξ ≤ 1 / ‖Σ_t φ_t φ_tᵀ‖ then lengthens no vector, for any λ and γ.
        """
        size = 0.0
        with np.errstate(over="ignore"):
            for features, phi in zip((self.features, self.second_features), rows, strict=False):
                check_finite(phi)
                squares = sp.csr_array(features(episodes.states)).power(2).sum(axis=1)
                size = max(size, float(np.add.reduceat(squares, episodes.spans.base).max()))
        remedy = "scale the features to about 1"
        if np.isfinite(size):
            remedy = f"pass step=StepSize({1.0 / size:.2g}, ...) or less"
        if episodes.spans.bootstraps.any():
            remedy += "; where cut-off episodes make the equations unstable at any step, use episodes that "
            remedy += "terminate, a discount further below 1, or a larger lam"
        return SolverError(
            f"TD diverged at update {k} (one per {self.update}): the weights must stay bounded, but a TD "
            f"error passed {_EXPLODED:g} times the largest target; got step.scale={self.step.scale:g}; "
            f"{remedy}"
        )
