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

from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Seed
from policyrisk._core.devices import Device
from policyrisk._core.keywords import hinting
from policyrisk._core.records import Additive, add_each, record
from policyrisk.data import Source, check_reiterable, coordinates_of
from policyrisk.equations import DENSE_MOST, MomentEquations, Weights
from policyrisk.equations.systems import TableSystem
from policyrisk.errors import InvalidInputError, SingularSystemError, SolverError
from policyrisk.features import Tabular
from policyrisk.features.actions import ActionBlocks, ActionMap, as_action_map
from policyrisk.features.target import PolicyFeatures, Target
from policyrisk.lstd.accumulate import FirstPass, accumulate
from policyrisk.lstd.doubly_robust import DoublyRobust, doubly_robust
from policyrisk.lstd.pipeline import ConstraintSolver, Known, check_settings, fit_by, solve
from policyrisk.lstd.target_steps import TargetSteps, TargetView
from policyrisk.markov.branches import closure
from policyrisk.passes import Reduce, here
from policyrisk.risk import RiskFunction, VarianceMethod
from policyrisk.risk.support import UNCOVERED_MOST

DRAWS = 64  # of continuous actions at a state
TABLE_FROM = 1000  # pairs of a table from which on it is solved as one of states, with draws for error bars

_PolicyMaps: TypeAlias = tuple[PolicyFeatures, PolicyFeatures]


@hinting
@dataclass(frozen=True, eq=False)
class LSTDQ:
    """Settings of LSTD-Q, the estimate of a target policy from episodes of any other.

    λ = 0 needs no propensities. For λ > 0 traces are cut by c_t = π(a_t|x_t), or by min(1, ρ_t) where the
    data have propensities.

    Parameters
    ----------
    features
        Features of the state, of which each action gets a block, or of states and actions
        (:class:`policyrisk.ActionFeatures`).
    policy
        The target: a table of probabilities (states, actions) for whole-numbered states, or an action for
        each of them (states,); a function from states (n, dim) to (n, actions); or, for continuous actions,
        an object with ``sample(states, seed)`` that gives (n, k).
    actions
        The number of actions; None where the policy is a table of probabilities, or actions are continuous.
    second_features
        Those of the second moment or of the variance; the same as ``features`` where None.
    lam
        The trace parameter λ.
    discount
        γ.
    ridge
        Acts on per-episode means: (A/K + ridge·I) w = b/K.
    variance
        "direct" or "second-moment".
    nonnegative_at
        States where Σ_a π V_Q ≥ 0 of the direct variance is demanded, or "visited".
    constraint_solver
        "active-set" or "projection".
    draws
        For continuous actions: φ̄ averages over so many actions, which depend on the state and ``seed``
        alone.
    seed
        That of these actions.

    Examples
    --------
    >>> import policyrisk as pr
    >>> data = pr.Trajectories([[0], [1]] * 4, [0.0, 0.0, 10.0, 14.0], [1] * 4, [True] * 4,
    ...                        actions=[0, 0, 1, 1])
    >>> risk = pr.LSTDQ(pr.Tabular(1), policy=[[0.5, 0.5]]).fit(data)
    >>> risk.mean([0]), risk.variance([0])  # half of (4 + 0), and 6² between the actions
    (array([6.]), array([38.]))
    >>> risk.action_mean([0], 1), risk.action_variance([0], 1), risk.covered([0])
    (array([12.]), array([4.]), array([1.]))
    """

    features: Any  # an ActionMap, once it is made
    policy: Any  # a Target
    actions: InitVar[int | None] = None
    second_features: Any = None
    lam: float = 0.0
    discount: float = 1.0
    ridge: float = 0.0
    variance: VarianceMethod = "direct"
    nonnegative_at: npt.ArrayLike | Literal["visited"] | None = None
    constraint_solver: ConstraintSolver = "active-set"
    draws: InitVar[int] = DRAWS
    seed: InitVar[int] = 0
    name: ClassVar[str] = "LSTDQ"
    variance_lam: ClassVar[float] = 0.0  # κ of LSTD's direct variance, which has none here
    moments: ClassVar[int] = 2

    def __post_init__(self, actions: int | None, draws: int, seed: int) -> None:
        target = Target.of(self.policy, actions, draws, seed)
        first = second = as_action_map(self.features, target.actions or None)
        if self.second_features is not None:
            second = as_action_map(self.second_features, target.actions or None)
        for name, value in {"features": first, "policy": target, "second_features": second}.items():
            object.__setattr__(self, name, value)
        check_settings(self)
        self._maps_under(target)  # which checks that they go together
        if self.lam > 0 and not target.actions:
            raise InvalidInputError(
                f"lam must be 0 for a policy that is sampled, whose probabilities are not known, got "
                f"{self.lam:g}; leave it out"
            )

    def equations(self, data: Source) -> MomentEquations:
        """The sums A, b, C, D and e over recorded episodes, in one pass; they add."""
        return accumulate(data, self.view)

    def solve(self, equations: MomentEquations) -> RiskFunction:
        """The risk function of summed equations, without error bars.

        What needs the data again is an error that points to ``fit``: the direct variance, "visited" states
        of the constraint, and a target that takes actions which nobody logged.
        """
        return solve(self, equations)

    def fit(
        self, data: Source, *, error_bars: bool = True, bootstrap: int = 0, seed: Seed = None
    ) -> RiskFunction:
        """The target's risk function, with error bars.

        Targets that are fitted to the same data with the same ``bootstrap`` and ``seed`` are compared episode
        by episode (:func:`policyrisk.compare`).

        Parameters
        ----------
        data
            Trajectories with actions, or a re-iterable stream of them.
        error_bars
            False leaves out the pass for the error bars.
        bootstrap
            How many draws of the weights are kept.
        seed
            That of the draws.

        Returns
        -------
        RiskFunction
            The target's J̃ and Ṽ at any state.
        """
        check_reiterable(data)
        risk = self.fit_by(here(data), error_bars=error_bars, bootstrap=bootstrap, seed=seed)
        return replace(risk, coordinates=coordinates_of(data))

    def fit_by(
        self, reduce: Reduce, *, error_bars: bool = True, bootstrap: int = 0, seed: Seed = None
    ) -> RiskFunction:
        """As ``fit``, for data that ``reduce`` runs passes over (see :mod:`policyrisk.passes`)."""
        return fit_by(self, reduce, error_bars, bootstrap, seed)

    def known(self, reduce: Reduce, first: FirstPass, device: Device = "cpu") -> Known:
        """The sums and weights of the target restricted to what was logged."""
        maps, sums, weights = self._solved(
            reduce, *self._covered(reduce, self._maps_under(self.policy), first)
        )
        equations, coverage = sums.equations.of_maps(*maps), sums.coverage
        next_states = max(equations.transitions + coverage.dropped - equations.terminated, 1)
        facts: dict[str, Any] = {
            "lost": (coverage.missing,) if coverage.missing.any() else (),
            "support": {"dense": coverage.dense > 0, "lost_most": UNCOVERED_MOST},
            "left_out": coverage.left_out / next_states,
            "dropped": coverage.dropped,
        }
        return Known(self._view_of(maps), reduce, equations, weights, facts)

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

    def _maps_under(self, target: Target) -> _PolicyMaps:
        """φ̄_J and φ̄_M."""
        phi = [PolicyFeatures(each, target) for each in self._maps]
        return phi[0], phi[-1]

    @property
    def view(self) -> TargetView:
        """What the sums over data depend on."""
        return self._view_of(self._maps_under(self.policy))

    def _view_of(self, maps: _PolicyMaps) -> TargetView:
        return TargetView(*maps, self.lam, self.discount)

    def _summed(self, reduce: Reduce, target: Target) -> tuple[_PolicyMaps, FirstPass]:
        """φ̄ under a target, and its sums."""
        maps = self._maps_under(target)
        return maps, reduce(partial(FirstPass.over, self._view_of(maps), "cpu"))

    def _covered(self, reduce: Reduce, maps: _PolicyMaps, sums: FirstPass) -> tuple[_PolicyMaps, FirstPass]:
        """φ̄ of covered actions alone, and its sums: the same where the target takes no others."""
        known = maps[0].target.known
        if not known and not _bootstraps_beyond(sums.equations):
            return maps, sums
        while True:
            left = _visited(sums.equations, len(self._maps))
            left = tuple(map(np.logical_and, left, known)) if known else left
            if known and all(map(np.array_equal, left, known)):
                return maps, sums
            known = left
            maps, sums = self._summed(reduce, self.policy.covering(self._maps, known))

    @property
    def of_table(self) -> bool:
        """Whether its equations are those of a table of many pairs."""
        phi = self.features
        if not (isinstance(phi, ActionBlocks) and isinstance(phi.features, Tabular) and len(self._maps) == 1):
            return False
        many = phi.size > TABLE_FROM and phi.size // self.policy.actions <= DENSE_MOST
        plain = self.lam == 0.0 and self.nonnegative_at is None
        return many and plain and isinstance(self.policy.policy, np.ndarray)

    def _system(self, phi_bar: PolicyFeatures) -> Callable[..., Any] | None:
        """What makes the systems of a table of many pairs; None for those that all features have."""
        if not self.of_table:
            return None
        n = self.features.size // self.policy.actions
        states = np.arange(min(n, len(self.policy.policy)))[:, None]
        Pi: Any = sp.csr_array(phi_bar(states))
        Pi.resize((n, self.features.size))
        return partial(TableSystem, Pi)

    def _solved(
        self, reduce: Reduce, maps: _PolicyMaps, sums: FirstPass
    ) -> tuple[_PolicyMaps, FirstPass, Weights]:
        """The equations' weights.

        With γ = 1, pairs that the target never comes to an end from, in the data, have no value: where that
        makes the equations singular, they count as not covered.
        """
        while True:
            try:
                return maps, sums, sums.equations.of_maps(*maps).solve(self.ridge, self._system(maps[0]))
            except (SingularSystemError, SolverError):
                if self.discount < 1.0:
                    raise
                known = maps[0].target.known or _visited(sums.equations, len(self._maps))
                ways = reduce(partial(Ways.over, maps[: len(self._maps)])).to_an_end()
                left = tuple(map(np.logical_and, known, ways))
                if all(map(np.array_equal, left, known)):
                    raise
                again = self._summed(reduce, self.policy.covering(self._maps, left))
                maps, sums = self._covered(reduce, *again)


@record
@dataclass(frozen=True, eq=False)
class Ways(Additive):
    """Which features lead to which, under the target, and which to an end; they add."""

    to_features: tuple[Any, ...]  # CSR (l, l) for each map: how often j had a share in φ̄ after i was active
    to_end: tuple[Floats, ...]  # (l,): how often the episode then terminated
    _rules: ClassVar = {"to_features": add_each, "to_end": add_each}

    @classmethod
    def over(cls, maps: tuple[PolicyFeatures, ...], source: Source, part: int) -> Ways:
        """Of one part of the data."""

        def found(steps: TargetSteps) -> Ways:
            active, ends = [_active(each) for each in steps.taken], (~steps.goes_on).astype(np.float64)
            ways = zip(active, steps.following, strict=True)
            return cls(
                tuple(sp.csr_array(phi.T @ _active(bar)) for phi, bar in ways),
                tuple(phi.T @ ends for phi in active),
            )

        sizes = [each.size for each in maps]
        nothing = cls(tuple(sp.csr_array((n, n)) for n in sizes), tuple(np.zeros(n) for n in sizes))
        return sum(TargetView(maps[0], maps[-1], 0.0, 1.0).each(found, source), start=nothing)

    def to_an_end(self) -> tuple[Bools, ...]:
        """The features that an end can be reached from, (l,) for each map."""
        pairs = zip(self.to_features, self.to_end, strict=True)
        return tuple(closure(sp.csr_array(ways.T), ends > 0) for ways, ends in pairs)


def _active(phi: Any) -> Any:
    """1 where a feature is active, in the format of φ."""
    return (phi != 0).astype(np.float64)


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
