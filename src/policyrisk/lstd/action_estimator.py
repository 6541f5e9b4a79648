"""The estimator LSTD-Q: the risk of a policy other than the one that was recorded.

    A w_J = b        C w_V = Σ y_t Σ_a' π(a'|x_{t+1}) δ_t(a')²         variance="direct"
    A w_J = b        C w_M = e + D w_J                                 variance="second-moment"

with features of states and actions and φ̄(x) = Σ_a π(a|x) φ(x, a) in place of φ(x_{t+1}): see
:mod:`policyrisk.lstd.definition`. At a state the target policy π has

    J = Σ_a π Q_J        V = Σ_a π V_Q + Var_π(Q_J)   or   M = Σ_a π Q_M.

**Actions that nobody logged.** A pair (x, a) is *covered* where its features have data behind them. At every
state π is restricted to covered actions and scaled up to a sum of 1; transitions into states where π takes no
covered action are dropped, and what rested on them alone is then no longer covered, and so on. What is
estimated is the restricted policy. With u(x) = 1 − covered(x) + γ E[u(x')], the expected number of times that
the target would leave what was logged on its way from x, it does so never with a probability of at least
1 − u(x). Where u(x) is above UNCOVERED_MOST = 1 the estimates are nan, and a summary over starts where
1 − u(x) is below COVERED_LEAST = 0.5 on average is an :class:`policyrisk.errors.UncoveredError`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Seed, as_count, as_flag, check_callable
from policyrisk._core.text import percent, plural
from policyrisk.equations import DENSE_MOST, MomentEquations, Weights
from policyrisk.equations.table_system import TableSystem
from policyrisk.errors import (
    InvalidInputError,
    NoErrorBarsWarning,
    SingularSystemError,
    SolverError,
    UncoveredWarning,
)
from policyrisk.features import Tabular
from policyrisk.features.actions import ActionBlocks, ActionMap, as_action_map
from policyrisk.features.target import PolicyFeatures, Target
from policyrisk.lstd.action_sums import (
    ActionScorePass,
    ActionSums,
    DrawnScores,
    Ways,
    direct_sums,
)
from policyrisk.lstd.cutoffs import Trim
from policyrisk.lstd.doubly_robust import DoublyRobust, doubly_robust
from policyrisk.lstd.estimator import LSTD, ConstraintSolver
from policyrisk.lstd.passes import SecondPass, StartsAndReturns
from policyrisk.lstd.sandwich import sandwich, with_weights
from policyrisk.lstd.target_steps import ActionPlan
from policyrisk.passes.fold import Fold, here
from policyrisk.risk import RiskFunction, VarianceMethod
from policyrisk.risk.support import UNCOVERED_MOST, Support
from policyrisk.trajectories import Source, check_reiterable, coordinates_of

DRAWS = 64  # of continuous actions at a state
TABLE_FROM = 1000  # pairs of a table from which on it is solved as one of states, with draws for error bars
FEWEST_DRAWS = 1000  # of the weights then, for a standard error that is known to 2 %
WORTH_A_WARNING = 0.01  # of the target's probability, on average, without data


@dataclass(frozen=True, eq=False)
class LSTDQ:
    """Settings of LSTD-Q, the estimate of a target ``policy`` from episodes of any other.

    ``features`` of the state get a block for each of ``actions``; features of states and actions are
    :class:`policyrisk.ActionFeatures`. ``policy`` is a table of probabilities (states, actions) for
    whole-numbered states, or an action for each of them (states,); a function from states (n, dim) to
    (n, actions); or, for continuous actions (``actions=None``), an object with ``sample(states, seed)`` that
    gives (n, k): it is called for each state by itself, and the average is over ``draws`` actions that depend
    on the state and ``seed`` alone.

    λ = 0 needs no propensities. For λ > 0 traces are cut by c_t = π(a_t|x_t), or by min(1, ρ_t) where the
    data have propensities. The constraint ``nonnegative_at`` demands Σ_a π V_Q ≥ 0 of the direct variance.

    >>> import policyrisk as pr
    >>> data = pr.Trajectories([[0], [1]] * 4, [0.0, 0.0, 10.0, 14.0], [1] * 4, [True] * 4,
    ...                        actions=[0, 0, 1, 1])
    >>> risk = pr.LSTDQ(pr.Tabular(1), policy=[[0.5, 0.5]]).fit(data)
    >>> risk.mean([0]), risk.variance([0])  # half of (4 + 0), and 6² between the actions
    (array([6.]), array([38.]))
    >>> risk.action_mean([0], 1), risk.action_variance([0], 1), risk.covered([0])
    (array([12.]), array([4.]), array([1.]))
    """

    features: ActionMap
    policy: Target
    second_features: ActionMap
    lam: float
    discount: float
    ridge: float
    variance: VarianceMethod
    nonnegative_at: Floats | Literal["visited"] | None
    constraint_solver: ConstraintSolver

    def __init__(
        self,
        features: Any,
        policy: Any,
        actions: int | None = None,
        second_features: Any = None,
        lam: float = 0.0,
        discount: float = 1.0,
        ridge: float = 0.0,
        variance: VarianceMethod = "direct",
        nonnegative_at: npt.ArrayLike | Literal["visited"] | None = None,
        constraint_solver: ConstraintSolver = "active-set",
        draws: int = DRAWS,
        seed: int = 0,
    ) -> None:
        target = Target.of(policy, actions, draws, seed)
        first = as_action_map(features, target.actions or None)
        settings = {
            "features": first,
            "policy": target,
            "second_features": first
            if second_features is None
            else as_action_map(second_features, target.actions or None),
            "lam": lam,
            "discount": discount,
            "ridge": ridge,
            "variance": variance,
            "nonnegative_at": nonnegative_at,
            "constraint_solver": constraint_solver,
        }
        for name, value in settings.items():
            object.__setattr__(self, name, value)
        lstd = self._as_lstd(target)  # which checks what the two have in common
        for name in _OF_LSTD:
            object.__setattr__(self, name, getattr(lstd, name))
        if self.lam > 0 and not target.actions:
            raise InvalidInputError(
                f"lam must be 0 for a policy that is sampled, whose probabilities are not known, got "
                f"{self.lam:g}; leave it out"
            )

    def equations(self, data: Source) -> MomentEquations:
        """The sums A, b, C, D and e over recorded episodes, in one pass; they add."""
        plan = self._plan(self.policy)
        return _with_features(ActionSums.over(data, plan).equations, plan)

    def solve(self, equations: MomentEquations) -> RiskFunction:
        """The risk function of summed equations, without error bars.

        What needs the data again is an error that points to ``fit``: the direct variance, "visited" states
        of the constraint, and a target that takes actions which nobody logged.
        """
        return self._as_lstd(self.policy).solve(equations)

    def fit(
        self, data: Source, *, error_bars: bool = True, bootstrap: int = 0, seed: Seed = None
    ) -> RiskFunction:
        """The target's risk function, with error bars unless ``error_bars`` is False.

        As :meth:`policyrisk.LSTD.fit`, of data with actions. Targets that are fitted to the same data with
        the same ``bootstrap`` and ``seed`` are compared episode by episode (:func:`policyrisk.compare`).
        """
        check_reiterable(data)
        risk = self.fit_by(here(data), error_bars=error_bars, bootstrap=bootstrap, seed=seed)
        return replace(risk, coordinates=coordinates_of(data))

    def fit_by(
        self, fold: Fold, *, error_bars: bool = True, bootstrap: int = 0, seed: Seed = None
    ) -> RiskFunction:
        """As ``fit``, for data that a fold goes over (see :mod:`policyrisk.passes.fold`)."""
        check_callable(fold, "fold", "a pass over data, such as here(data)")
        error_bars = as_flag(error_bars, "error_bars")
        if as_count(bootstrap, "bootstrap") and not error_bars:
            raise InvalidInputError(
                f"bootstrap={bootstrap} draws need the error bars' pass, got error_bars=False; leave one out"
            )
        plan = self._plan(self.policy)
        sums = fold(lambda source, _: ActionSums.over(source, plan))
        episodes = sums.episodes
        plan, sums = self._covered(fold, plan, sums)
        plan, sums, weights = self._solved(fold, plan, sums)
        equations, lstd = _with_features(sums.equations, plan), self._as_lstd(plan.mean.target)
        table = isinstance(weights.mean_system, TableSystem)
        if equations.sparse and not table:
            lstd._refuse_where_sparse(bootstrap)
        d = equations.second_rhs(weights.mean)
        if self.variance == "direct":
            w_mean = weights.mean
            d = fold(lambda source, _: direct_sums(source, plan, w_mean))
        risk, face = lstd._answer(
            equations,
            weights,
            d,
            "LSTDQ",
            visited=fold,
            returns=sums.returns,
            supports=_supports(sums, weights, plan.shared),
        )
        next_states = max(equations.transitions + sums.dropped - equations.terminated, 1)
        facts = replace(risk.provenance, left_out=sums.left_out / next_states, dropped=sums.dropped)
        risk = replace(risk, provenance=facts)
        if facts.left_out > WORTH_A_WARNING:
            warnings.warn(
                f"{percent(facts.left_out)} of the target's probability, on average over the recorded steps, "
                "is on actions that were never logged where they would be taken: the estimates are of the "
                f"target restricted to what was logged ({plural(sums.dropped, 'transition')} into states "
                "without such actions are left out). See risk.covered(x) and the summary",
                UncoveredWarning,
                stacklevel=3,
            )
        if not error_bars:
            return risk
        if equations.sparse and not table:
            warnings.warn(
                f"no error bars: with {len(equations.b)} sparse features their covariance would not fit; "
                f"pass error_bars=False to say that this is meant, or use at most {DENSE_MOST} features",
                NoErrorBarsWarning,
                stacklevel=3,
            )
            return replace(risk, **vars(fold(lambda s, _: StartsAndReturns.over(s, risk))))
        weights = replace(weights, second=risk.w_second)
        reference = sums.returns.mean if sums.returns.count else 0.0
        scores: Any = ActionScorePass.of(
            equations,
            weights,
            direct=self.variance == "direct",
            replicates=bootstrap or (FEWEST_DRAWS if table else 0),
            seed=seed,
            episodes=episodes,
            reference=reference,
        )
        scores = replace(scores, at=risk._parts)
        key = int(scores.key[0]), int(scores.key[1])
        if table:
            seen = fold(lambda source, _: StartsAndReturns.over(source, risk))
            drawn = fold(partial(DrawnScores.over, scores))
            bars, completed = (
                drawn.error_bars(equations, weights, key),
                drawn.beside(seen.completed, reference),
            )
            return replace(risk, error_bars=bars, starts=seen.starts, completed=completed)
        second = fold(lambda source, part: SecondPass.over(source, part, scores, risk, Trim(())))
        bars = sandwich(second.scores, equations, weights, face, key)
        completed = with_weights(second.completed, second.scores, reference, equations, weights, face)
        return replace(risk, error_bars=bars, starts=second.starts, completed=completed)

    def doubly_robust(
        self, data: Source, folds: int = 4, *, level: float = 0.95, seed: Seed = None
    ) -> DoublyRobust:
        """Mean, variance, std and Sharpe ratio over the data's starts, by data with propensities.

        Each episode's fit without its fold is corrected by how the episode went on, weighed by the ratios of
        the two policies: right where the propensities are, whatever the features, and right where the fit is,
        whatever the propensities (:mod:`policyrisk.lstd.doubly_robust`). The fit to all of the data and
        importance sampling stand beside it. ``seed`` draws the folds.

        >>> import numpy as np
        >>> import policyrisk as pr
        >>> rng = np.random.default_rng(0)
        >>> a = rng.integers(2, size=2000)  # a coin, where the target takes action 1 in three of four cases
        >>> data = pr.Trajectories([[0], [1]] * 2000, rng.normal(a, 1 + a), [1] * 2000, [True] * 2000,
        ...                        actions=a, propensities=np.full(2000, 0.5))
        >>> found = pr.LSTDQ(pr.Tabular(1), [[0.25, 0.75]]).doubly_robust(data, seed=1)
        >>> found.mean.low < 0.75 < found.mean.high, found.variance.low < 3.4375 < found.variance.high
        (True, True)
        >>> print(f"{found.effective_episodes:.0f} of {found.episodes} episodes")
        1614 of 2000 episodes
        """
        return doubly_robust(self, data, folds, level, seed)

    @property
    def _maps(self) -> tuple[ActionMap, ...]:
        """φ_J, and φ_M where it is another one."""
        first, second = self.features, self.second_features
        return (first,) if second == first else (first, second)

    def _plan(self, target: Target) -> ActionPlan:
        phi = [PolicyFeatures(each, target) for each in self._maps]
        return ActionPlan(phi[0], phi[-1], self.lam, self.discount)

    def _as_lstd(self, target: Target) -> LSTD:
        """LSTD with the same settings and φ̄ for features: what is done with equations does not differ."""
        phi = [PolicyFeatures(each, target) for each in self._maps]
        return LSTD(phi[0], phi[-1], **{name: getattr(self, name) for name in _OF_LSTD})

    def _covered(self, fold: Fold, plan: ActionPlan, sums: ActionSums) -> tuple[ActionPlan, ActionSums]:
        """The plan on covered actions alone, and its sums: the same where the target takes no others."""
        known = plan.mean.target.known
        if not known and not _bootstraps_beyond(sums.equations):
            return plan, sums
        while True:
            left = _visited(sums.equations, len(self._maps))
            left = tuple(map(np.logical_and, left, known)) if known else left
            if known and all(map(np.array_equal, left, known)):
                return plan, sums
            known = left
            plan, sums = self._again(fold, known)

    def _again(self, fold: Fold, known: tuple[Bools, ...]) -> tuple[ActionPlan, ActionSums]:
        """The plan on actions whose features are known, and its sums."""
        plan = self._plan(self.policy.covering(self._maps, known))
        return plan, fold(lambda source, _: ActionSums.over(source, plan))

    def _system(self, plan: ActionPlan) -> Callable[..., Any] | None:
        """What makes the systems of a table of many pairs; None for those that all features have."""
        phi, policy = self.features, self.policy.policy
        table = isinstance(phi, ActionBlocks) and isinstance(phi.features, Tabular)
        if not (table and plan.shared and isinstance(policy, np.ndarray) and phi.size > TABLE_FROM):
            return None
        n = phi.size // self.policy.actions
        if self.lam > 0 or self.nonnegative_at is not None or n > DENSE_MOST:
            return None
        states = np.arange(min(n, len(policy)))[:, None]
        Pi: Any = sp.csr_array(plan.mean(states))
        Pi.resize((n, phi.size))
        return partial(TableSystem, Pi)

    def _solved(
        self, fold: Fold, plan: ActionPlan, sums: ActionSums
    ) -> tuple[ActionPlan, ActionSums, Weights]:
        """The equations' weights.

        With γ = 1, pairs that the target never comes to an end from, in the data, have no value: where that
        makes the equations singular, they count as not covered.
        """
        while True:
            try:
                equations = _with_features(sums.equations, plan)
                return plan, sums, equations.solve(self.ridge, self._system(plan))
            except (SingularSystemError, SolverError):
                if self.discount < 1.0:
                    raise
                known = plan.mean.target.known or _visited(sums.equations, len(self._maps))
                ways = fold(partial(Ways.over, plan)).to_an_end()
                left = tuple(map(np.logical_and, known, ways))
                if all(map(np.array_equal, left, known)):
                    raise
                plan, sums = self._covered(fold, *self._again(fold, left))


# What is LSTD's and LSTDQ's alike, and checked by the first.
_OF_LSTD = ("lam", "discount", "ridge", "variance", "nonnegative_at", "constraint_solver")


def _with_features(equations: MomentEquations, plan: ActionPlan) -> MomentEquations:
    return replace(equations, features=plan.mean, second_features=plan.second)


def _visited(equations: MomentEquations, maps: int) -> tuple[Bools, ...]:
    """Which features of each map some transition started with."""
    return (equations.visits > 0, equations.second_visits > 0)[:maps]


def _bootstraps_beyond(equations: MomentEquations) -> bool:
    """Whether the equations refer to features that no transition started with."""
    e = equations
    for matrix, visits in ((e.A, e.visits), (e.C, e.second_visits), (e.D, e.visits)):
        columns: Any = matrix[:, np.flatnonzero(visits <= 0)]
        if abs(columns).sum() > 0:
            return True
    return False


def _supports(sums: ActionSums, weights: Weights, shared: bool) -> tuple[Support, Support]:
    """What stands behind φ_J and φ_M; Gram matrices of dense ones alone."""
    e, lost = sums.equations, None
    if sums.uncovered.any():
        system = weights.mean_system
        lost = system.solve(system.project(sums.uncovered))
    grams: list[Any] = [
        gram if dense else None for gram, dense in zip((e.mean_gram, e.gram), sums.dense, strict=True)
    ]
    first = Support(e.visits, e.feature_episodes, e.episodes, grams[0], 1.0, lost, UNCOVERED_MOST)
    if shared:
        return first, first
    return first, Support(e.second_visits, e.second_feature_episodes, e.episodes, grams[1], 1.0)
