"""What a caller hands over stays as it was: arrays, sparse matrices and their flags.

Every public function that takes numbers is used on three kinds of input: plain, *awkward* (sparse matrices
with unsorted columns, repeated entries and explicit zeros, as SciPy's own products have) and awkward and
read-only. The input must not have changed by a bit, a second use must give what the first gave, and all
kinds must give the same answer. A new public function fails the last test until it has an entry here.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_origin

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import policyrisk as pr
from policyrisk.control import GreedyPolicy
from policyrisk.equations.constraint import solve_constrained
from policyrisk.passes import here

# Hand-made records have few episodes behind them.
pytestmark = pytest.mark.filterwarnings("ignore::policyrisk.errors.FewEpisodesWarning")

STATES = 12
LINE = pr.Polynomial(1, [0], [STATES])


class Given:
    """The input of one use, the same objects every time it is asked for, and what they were at first."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._made: list[Any] = []
        self._next = 0
        self._watched: list[tuple[np.ndarray, tuple[Any, ...]]] = []
        self._sparse: list[tuple[Any, dict[str, np.ndarray]]] = []

    def again(self) -> Given:
        self._next = 0
        return self

    def _remember(self, make: Callable[[], Any]) -> Any:
        if self._next == len(self._made):
            self._made.append(make())
        self._next += 1
        return self._made[self._next - 1]

    def array(self, values: Any, dtype: Any = np.float64) -> np.ndarray:
        """An array of the caller's."""
        return self._remember(lambda: self.watched(np.array(values, dtype=dtype)))

    def watched(self, array: np.ndarray) -> np.ndarray:
        array.flags.writeable = self.kind != "read-only"
        self._watched.append((array, _properties(array)))
        return array

    def matrix(self, values: Any, form: str = "csr") -> Any:
        """A sparse matrix of the caller's."""
        return self._remember(lambda: self.sparse(values, form))

    def sparse(self, values: Any, form: str = "csr") -> Any:
        dense = np.asarray(values, dtype=np.float64)
        if self.kind == "plain":
            matrix = {"csr": sp.csr_array, "csc": sp.csc_array, "coo": sp.coo_array}[form](dense)
        else:
            matrix = awkward(dense, form)
        names = ("data", "row", "col") if form == "coo" else ("data", "indices", "indptr")
        self._sparse.append((matrix, {name: self.watched(getattr(matrix, name)) for name in names}))
        return matrix

    def check(self) -> None:
        for array, before in self._watched:
            assert _properties(array) == before
        for matrix, parts in self._sparse:
            for name, part in parts.items():
                assert np.shares_memory(getattr(matrix, name), part) or part.size == 0
                assert getattr(matrix, name).size == part.size
            if self.kind != "plain" and matrix.format != "coo" and matrix.nnz:
                assert not matrix.has_sorted_indices
                assert not matrix.has_canonical_format


def _properties(array: np.ndarray) -> tuple[Any, ...]:
    return array.tobytes(), array.dtype, array.shape, array.strides, array.flags.writeable


def awkward(dense: np.ndarray, form: str = "csr") -> Any:
    """The same matrix with columns in falling order, each entry in two halves, and explicit zeros."""
    if form == "csc":
        return awkward(dense.T).T
    rows, columns, values = [], [], []
    for i, row in enumerate(dense):
        at = np.flatnonzero(row)[::-1]
        zeros = np.flatnonzero(row == 0.0)[-1:]
        columns += [*at, *zeros, *at]
        values += [*(row[at] / 2), *(0.0 * zeros), *(row[at] / 2)]
        rows += [i] * (2 * at.size + zeros.size)
    if form == "coo":
        return sp.coo_array((values, (rows, columns)), shape=dense.shape)
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(dense))))
    return sp.csr_array((np.array(values), np.array(columns), starts), shape=dense.shape)


class Kept:
    """A feature map that keeps what it gave, as a cache does, and gives it again."""

    size = 40

    def __init__(self, given: Given, *, sparse: bool) -> None:
        self.given, self.is_sparse, self.kept = given, sparse, {}

    def __call__(self, states: Any) -> Any:
        x = np.asarray(states, dtype=np.float64).reshape(-1)
        key = x.tobytes()
        if key not in self.kept:
            phi = np.zeros((x.size, self.size))
            phi[np.arange(x.size), x.astype(int)] = 1.0
            phi[np.arange(x.size), 20 + x.astype(int) // 3] = 0.5
            self.kept[key] = self.given.sparse(phi) if self.is_sparse else self.given.watched(phi)
        return self.kept[key]

    def outside(self, states: Any) -> Any:
        return np.zeros(len(np.asarray(states)), dtype=np.bool_)

    # The same map whatever was kept so far: records of two uses can be compared.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept)

    def __hash__(self) -> int:
        return 0


class InPlace(gym.Env):
    """An environment that takes over the state it is started in and changes it as it goes."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = np.zeros(1) if options is None else options["state"]
        return self.state, {}

    def step(self, action: Any) -> Any:
        self.state += 1.0
        return self.state, float(self.state[0]), bool(self.state[0] >= 5.0), False, {}


def P_and_r() -> tuple[np.ndarray, np.ndarray]:
    """A chain with distinct entries everywhere, so that a misplaced one shows."""
    P = np.random.default_rng(0).random((STATES, STATES))
    P[P < 0.5] = 0.0
    return P / (P.sum(axis=1, keepdims=True) + 0.3), np.arange(1.0, STATES + 1.0)


def chain() -> pr.MarkovChain:
    return pr.MarkovChain(*P_and_r())


def data(given: Given) -> pr.Trajectories:
    made = chain().sample(0, episodes=200, seed=1, max_steps=12)
    return pr.Trajectories(
        given.array(made.states),
        given.array(made.rewards),
        given.array(made.lengths, np.int32),
        given.array(made.terminated, np.bool_),
    )


def maps(given: Given) -> list[Any]:
    kept = given._remember(lambda: (Kept(given, sparse=True), Kept(given, sparse=False)))
    return [*kept, pr.FunctionFeatures(kept[0]), pr.FunctionFeatures(kept[1])]


def numbers(risk: pr.RiskFunction) -> list[Any]:
    return [risk.w_mean, risk.w_second]


USES: dict[str, list[Callable[[Given], Any]]] = {}


def use(*names: str) -> Callable[[Callable[[Given], Any]], Callable[[Given], Any]]:
    def note(function: Callable[[Given], Any]) -> Callable[[Given], Any]:
        for name in names:
            USES.setdefault(name, []).append(function)
        return function

    return note


@use("MarkovChain")
def chain_of_matrices(given: Given) -> Any:
    P, r = P_and_r()
    found = []
    for form in ("csr", "csc", "coo"):
        made = pr.MarkovChain(given.matrix(P, form), given.array(r))
        found += [made.mean(), made.variance()]
    by_transition = pr.MarkovChain(
        given.matrix(P), given.matrix(P * 3.0 + (P > 0)), terminal_rewards=given.array(r)
    )
    dense = pr.MarkovChain(given.array(P), given.array(P * 3.0), terminal_rewards=given.array(r))
    return [*found, by_transition.mean(), by_transition.variance(), dense.mean(), dense.variance()]


@use("MDP", "MDP.chain", "MDP.gradient", "MDP.improve", "MDP.with_reward_so_far", "frontier")
def decision_process(given: Given) -> Any:
    P, r = P_and_r()
    policy, start = given.array(np.full((STATES, 2), 0.5)), given.array(np.full(STATES, 1 / STATES))
    mdp = pr.MDP([given.matrix(P), given.matrix(0.5 * P)], given.array(r), terminal_rewards=given.array(r))
    better = mdp.improve(
        pr.criteria.MeanMinusStd(1.0), start, policy, features=given.matrix(np.eye(STATES)), restarts=0
    )
    some = pr.frontier(mdp, start, given.array([0.0, 1.0]), policy, restarts=0)
    chain, gradient = mdp.chain(policy), mdp.gradient(policy, start)
    ends = pr.MDP([given.matrix(np.eye(STATES, k=1))], given.array(r)).with_reward_so_far(start)
    return [chain.mean(), gradient.by_variance, better.policy, some.points[0].policy, *ends[1:]]


@use("MarkovChain.from_mdp")
def chain_of_a_policy(given: Given) -> Any:
    P, r = P_and_r()
    one, rewards = given.matrix(P), given.matrix(P * 3.0)
    policy = given.array(np.full((STATES, 2), 0.5))
    return [
        pr.MarkovChain.from_mdp([one, one], given.array(r), given.array(np.ones(STATES), np.int64)).mean(),
        pr.MarkovChain.from_mdp([one, one], [rewards, rewards], policy).variance(),
        pr.MarkovChain.from_mdp(given.array([P, P]), given.array([P, P]), policy).mean(),
    ]


@use(
    "MarkovChain.distribution",
    "MarkovChain.occupancy",
    "MarkovChain.start_distribution",
    "MarkovChain.expected_moment",
    "MarkovChain.expected_squared_error",
    "MarkovChain.sample",
)
def questions_to_a_chain(given: Given) -> Any:
    start = given.array(np.full(STATES, 1 / STATES))
    sampled = chain().sample(start, episodes=20, seed=1)
    return [
        chain().occupancy(start),
        chain().distribution(start, tolerance=0.5).mean,
        chain().start_distribution(start),
        chain().expected_squared_error(given.array(np.arange(STATES))),
        chain().expected_moment(given.array(np.arange(STATES)), given.array(np.ones((3, STATES)))),
        sampled.rewards,
    ]


@use(
    "MarkovChain.correlation",
    "MarkovChain.covariance",
    "MarkovChain.drawdown",
    "MarkovChain.from_log",
    "MarkovChain.given",
    "MarkovChain.lowest",
    "MarkovChain.reach",
    "MarkovChain.weighing",
)
def more_questions_to_a_chain(given: Given) -> Any:
    discount = given.array(np.full(STATES, 0.9))
    by_state = pr.MarkovChain(*P_and_r(), discount)
    logged = pr.Trajectories([[0], [1]] * 4, np.arange(4.0), [1] * 4, [True] * 4, actions=[0, 1, 1, 0])
    two_kinds = pr.Trajectories([[0], [1]] * 2, [5, 7], [1, 1], [True, True], other_rewards=[[1], [4]])
    policy = given.array([[0.25, 0.75]])
    game = pr.MarkovChain(np.eye(STATES, k=1) * 0.5, np.ones(STATES))
    goal = given.array([STATES - 1], np.int64)
    return [
        by_state.mean(),
        chain().covariance(given.array(np.arange(STATES))),
        chain().correlation(given.array(np.arange(STATES))),
        pr.MarkovChain.from_log(two_kinds).weighing(given.array([1.0, -2.0])).mean(),
        pr.MarkovChain.from_log(logged, policy=policy, discount=given.array([0.5])).variance(),
        game.reach(goal, given.array([], np.int64)),
        game.given(goal).mean(),
        chain().lowest(given.array(np.full(STATES, 1 / STATES))).mean,
        chain().drawdown(given.array(np.full(STATES, 1 / STATES))).mean,
    ]


@use("MarkovChain.diagnose", "LSTD.exact_equations", "LSTD.fit_exact")
def exact_equations(given: Given) -> Any:
    found: list[Any] = []
    start = given.array(np.full(STATES, 1 / STATES))
    for phi in maps(given):
        lstd = pr.LSTD(phi)
        equations = lstd.exact_equations(chain(), start)
        found += [equations.A, equations.D, chain().diagnose(phi, None, start).bound]
        found += numbers(lstd.fit_exact(chain(), start))
    return found


@use("gate")
def gated(given: Given) -> Any:
    new = np.arange(60.0) + 1.0
    found = pr.gate(given.array(new), given.array(np.arange(60.0)), "mean", seed=0).whole.difference
    return [found.value, found.low, found.high]


@use("Trajectories", "Trajectories.concatenate", "Trajectories.__getitem__", "Trajectories.with_clusters")
def records(given: Given) -> Any:
    record = data(given)
    both = pr.Trajectories.concatenate([record, record[given.array([3, 1], np.int64)], record[2:5]])
    shared = record.with_clusters(given.array(np.arange(len(record)) // 2, np.int64))
    arrays = [both.states, both.rewards, both.returns(0.9), both.starts(), record.returns_to_go()]
    return [*arrays, shared.clusters]


@use("Trajectories.from_frame", "Trajectories.with_time_limit", "readers.read_frame")
def tables(given: Given) -> Any:
    columns = {
        "episode": given.array(np.repeat([1, 2], 6), np.int64),
        "x": given.array(np.arange(12.0)),
        "reward": given.array(np.arange(12.0)),
        "terminated": given.array(np.arange(12) % 6 == 5, np.bool_),
    }
    frame = pd.DataFrame(columns, copy=False)
    made = pr.Trajectories.from_frame(frame, state="x", time_limit=6)
    again = pr.readers.read_frame(frame, state="x").load()
    return [made.states, made.rewards, again.states, again.with_time_limit(4).states]


BOX = {"low": [0.0, 0.0], "high": [1.0, 2.0]}


@use(
    "Fourier",
    "Fourier.outside",
    "Polynomial",
    "Polynomial.outside",
    "RadialBasis",
    "RadialBasis.outside",
    "Tabular",
    "Tabular.active",
    "Tabular.outside",
    "TileCoding",
    "TileCoding.active",
    "TileCoding.collisions",
    "TileCoding.outside",
    "FunctionFeatures",
    "Joint",
    "Joint.of_spec",
    *(f"features.Ranked{name}" for name in ("", ".__call__", ".of", ".of_spec", ".outside", ".ranks")),
    "Labels",
    "Labels.outside",
    "Labels.__call__",
    "Joint.outside",
    "Joint.__call__",
    "FunctionFeatures.outside",
    *(f"{name}.__call__" for name in ("Fourier", "Polynomial", "RadialBasis", "Tabular", "TileCoding")),
    "FunctionFeatures.__call__",
    "features.as_features",
    "features.from_spec",
)
def feature_maps(given: Given) -> Any:
    low, high = given.array(BOX["low"]), given.array(BOX["high"])
    x = given.array(np.random.default_rng(0).uniform(-0.1, 2.1, (30, 3)))
    dims, two, width = given.array([2, 0], np.int64), given.array([3, 4], np.int64), given.array([0.2, 0.3])
    phis = [
        pr.Fourier(2, low, high, dims),
        pr.Polynomial(2, low, high, dims),
        pr.TileCoding(low, high, two, tilings=2, dims=dims),
        pr.TileCoding(low, high, two, tilings=2, dims=dims, hashed=16),
        pr.RadialBasis(given.array([[0.1, 0.2], [0.5, 0.9]]), width, low, high, dims=dims),
        pr.RadialBasis(given.array([[0.1, 0.2], [0.5, 0.9]]), width, dims=dims, normalised=True),
        pr.RadialBasis.grid(low, high, two, width, dims=dims),
        pr.RadialBasis.grid(low, high, two, width, truncate=2.0, dims=dims),
    ]
    phis.append(pr.Joint(phis[:3]))
    phis.append(pr.Labels(given.array([0.0, 1.0]), dims=dims[:1], scale=0.1))
    unit = pr.Fourier(2, [0, 0], [1, 1], dims)
    phis += [
        pr.features.Ranked(unit, given.array([[0.0, 1.0, 2.0]] * 3)),
        pr.features.Ranked.of(unit, x, dims),
    ]
    phis += [pr.features.from_spec(phi.spec()) for phi in phis]
    phis.append(pr.FunctionFeatures(lambda states: states))
    found: list[Any] = [phi.outside(x) for phi in phis]
    found += [phi(x) for phi in phis]
    found += [phis[2].active(x), phis[3].collisions(x), pr.features.Ranked.of(unit, x).ranks(x)]
    table, indices = pr.Tabular(STATES), given.array(np.arange(STATES)[::-1])
    second = pr.Tabular(STATES, given.array([0], np.int64))
    found += [second(indices), table(indices), table.active(indices), table.outside(indices)]
    plane = pr.RadialBasis(given.array([[0.1, 0.2], [0.5, 0.9]]), width)
    return [*found, plane(given.array([[0.0, 0.0], [1.0, 1.0]])), pr.features.as_features(np.sin)(x)]


@use("LSTD", "LSTD.equations", "LSTD.fit", "LSTD.fit_by", "LSTD.solve")
def lstd(given: Given) -> Any:
    found: list[Any] = []
    for phi in maps(given):
        plain, direct = pr.LSTD(phi), pr.LSTD(phi, variance="direct")
        equations = plain.equations(data(given))
        found += [equations.A, equations.e, *numbers(plain.solve(equations + equations))]
        at = given.array(np.arange(6)[:, None])
        constrained = pr.LSTD(phi, nonnegative_at=at)
        for estimator in (plain, direct, constrained, pr.LSTD(phi, nonnegative_at="visited")):
            risk = estimator.fit(data(given), bootstrap=5, seed=0)
            found += [*numbers(risk), risk.standard_error(np.arange(6), of="std")]
    return found


@use(
    "LSTDQ",
    "LSTDQ.equations",
    "LSTDQ.fit",
    "LSTDQ.fit_by",
    "LSTDQ.solve",
    "LSTDQ.doubly_robust",
    "ActionFeatures",
    "ActionFeatures.at",
    "ActionFeatures.rows",
    "ActionFeatures.outside",
    "RiskFunction.covered",
    "RiskFunction.action_mean",
    "RiskFunction.action_variance",
)
def lstdq(given: Given) -> Any:
    logged, found = data(given), []
    columns = logged.states, logged.rewards, logged.lengths, logged.terminated
    chances = given.array(np.full(logged.transitions, 0.5))
    logged = pr.Trajectories(*columns, given.array(np.arange(logged.transitions) % 2, np.int64), chances)
    policy, x = given.array([[0.5, 0.5]] * (STATES + 1)), given.array(np.arange(6)[:, None])
    pairs = pr.ActionFeatures(pr.Polynomial(2, [0, 0], [STATES, 1]))
    for phi in (*maps(given), pairs):
        q = pr.LSTDQ(phi, policy, variance="second-moment", ridge=0.01)
        risk = q.solve(q.equations(logged))
        found += [*numbers(risk), risk.covered(x), risk.action_mean(x, given.array([1] * 6, np.int64))]
        risk = pr.LSTDQ(phi, policy, ridge=0.01).fit(logged, bootstrap=5, seed=0)
        found += [*numbers(risk), risk.action_variance(x, 0), q.fit_by(here(logged)).mean(x)]
    actions = given.array([0, 1] * 3, np.int64)
    found += [pairs.at(x, actions), pairs.outside(x, actions), pairs.rows(x, np.arange(2)).phi]
    found += numbers(pr.evaluate(logged, target=policy, features="poly:1", discount=0.9, seed=0).risk)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pr.errors.FewEpisodesWarning)
        found.append(pr.LSTDQ(pr.Tabular(STATES), policy).doubly_robust(logged, folds=2, seed=0).mean_value)
    return found


@use(
    "ReturnDistribution",
    "ReturnDistribution.fit",
    "ReturnDistribution.fit_by",
    "DistributionFunction",
    "DistributionFunction.cdf",
    "DistributionFunction.corrected",
    "DistributionFunction.curves",
    "DistributionFunction.cvar",
    "DistributionFunction.interval",
    "DistributionFunction.mean",
    "DistributionFunction.over",
    "DistributionFunction.probability",
    "DistributionFunction.quantile",
    "DistributionFunction.readings",
    "DistributionFunction.score",
    "DistributionFunction.std",
    "DistributionFunction.summary",
    "DistributionFunction.variance",
    "DistributionFunction.visited",
    "criteria.CVaR.assess",
    "criteria.Quantile.assess",
    "plotting.plot_fan",
    "plotting.plot_pit",
)
def distributions(given: Given) -> Any:
    x, thresholds = given.array(np.arange(6)[:, None]), given.array(np.linspace(-9.0, 9.0, 10))
    found: list[Any] = []
    for phi in maps(given):
        settings = pr.ReturnDistribution(phi, thresholds=thresholds)
        fitted = settings.fit(data(given))
        found += [fitted.cdf(x, 0.5), fitted.quantile(x, 0.5), fitted.cvar(x, 0.5), fitted.corrected(x)]
        found += [fitted.mean(x), fitted.variance(x), fitted.std(x), fitted.visited(x)]
        found += [fitted.probability(x, below=0.0), fitted.interval(x, of="quantile", q=0.5)]
        found += [*fitted.curves(x), fitted.score(data(given)).crps]
        found.append(fitted.over(x).estimate("quantile").value)
        found += [fitted.summary(x).mean.value, settings.fit_by(here(data(given))).mean(x)]
    pr.plotting.plot_fan(fitted, x[:2])
    pr.plotting.plot_pit(fitted.score(data(given)))
    for criterion in (pr.criteria.Quantile(0.5), pr.criteria.CVaR(0.5)):
        found.append(str(pr.compare({"a": fitted, "b": fitted}, x, criterion)))
    return found


@use("MomentEquations", "MomentEquations.empty", "MomentEquations.second_rhs")
def equations_by_hand(given: Given) -> Any:
    phi, made = pr.Tabular(STATES), pr.LSTD(pr.Tabular(STATES)).exact_equations(chain(), 0)
    vectors = {
        name: given.array(getattr(made, name))
        for name in ("b", "e", "visits", "second_visits", "feature_episodes", "second_feature_episodes")
    }
    rest = {
        name: getattr(made, name)
        for name in ("episodes", "terminated", "transitions", "outside", "lam", "discount")
    }
    found: list[Any] = []
    for matrix in (given.matrix, given.array):
        A = matrix(made.A)
        gram = matrix(made.gram)
        equations = pr.MomentEquations(
            A=A, C=A, D=matrix(made.D), gram=gram, mean_gram=gram, features=phi, second_features=phi,
            **vectors, **rest,
        )  # fmt: skip
        both = equations + equations + pr.MomentEquations.empty(phi)
        found += [both.A, both.second_rhs(given.array(np.arange(STATES)))]
        found += [equations.solve().mean, both.solve(0.1).second]
    return found


@use("equations.constraint.solve_constrained")
def constrained_solution(given: Given) -> Any:
    C, d = given.array([[2.0, 0.5], [0.0, 1.0]]), given.array([-1.0, 1.0])
    H, g = [[-1.0, -0.25], [0.0, -1.0]], given.array([-0.5, 0.0])
    found = []
    for rows in (given.matrix(H), given.matrix(H, "csc"), given.array(H)):
        for solver in ("active-set", "projection"):
            answer = solve_constrained(C, d, rows, g, gram=given.array(np.eye(2)), solver=solver)
            found += [answer.w, answer.multipliers]
    return found


@use("TD", "TD.fit", "TD.partial_fit")
def td(given: Given) -> Any:
    found: list[Any] = []
    for phi in maps(given):
        for update in ("episode", "step"):
            learner = pr.TD(phi, lam=0.5, step=pr.StepSize(0.05), update=update)
            found += numbers(learner.fit(data(given), epochs=2)) + numbers(learner.partial_fit(data(given)))
    return found


@use("ReturnForest.fit", "ReturnForest.fit_by", "ReturnForest.fit_out_of_bag")
def forest(given: Given) -> Any:
    settings, record = pr.ReturnForest(trees=4), data(given)
    fitted = settings.fit_out_of_bag(record, bootstrap=5, seed=1)
    by_passes = settings.fit_by(here(record), record[:100], seed=1)
    whole = settings.fit(record, seed=1)
    return [fitted.mean, fitted.variance, *numbers(whole), *numbers(by_passes)]


@use("Leaves", "Leaves.__call__", "Leaves.active", "Leaves.outside")
def leaves(given: Given) -> Any:
    feature, threshold = given.array([1, -1, 0, -1, -1], np.int64), given.array([0.3, 0.8])
    phi = pr.Leaves([feature], [threshold], dim=2, dims=given.array([2, 0], np.int64))
    x = given.array(np.random.default_rng(0).uniform(-0.1, 2.1, (30, 3)))
    return [phi.active(x), phi(x), phi.outside(x)]


@use("ReturnMonitor", "ReturnMonitor.update", "ReturnMonitor.difference")
def monitored(given: Given) -> Any:
    one, other = (pr.ReturnMonitor(0, 1, returns=given.array([0.2, k / 4])) for k in (1, 3))
    one.update(given.array([0.5, 0.25]))
    return [*one.mean, *one.cvar(0.5), *one.difference(other)]


@use("StepSize.__call__")
def falling_numbers(given: Given) -> Any:
    k = given.array([0, 10, 100], np.int64)
    return pr.StepSize(0.1, power=0.7)(k)


@use("MonteCarlo", "monte_carlo")
def simulated(given: Given) -> Any:
    starts = given.array([[0.0], [3.0]])
    by_chain = pr.monte_carlo(chain(), None, starts, episodes=20, seed=1)
    by_env = pr.monte_carlo(InPlace(), lambda x: 0, starts, episodes=3, seed=1)
    columns = {name: given.array(getattr(by_env, name)) for name in ("mean", "variance", "std", "mean_se")}
    counts = {name: given.array(getattr(by_env, name)) for name in ("episodes", "cut_off", "steps")}
    record = pr.MonteCarlo(
        states=starts,
        **columns,
        variance_se=given.array([1.0, 1.0]),
        std_se=given.array([1.0, 1.0]),
        **counts,
        discount=1.0,
        max_steps=10,
    )
    assert by_env.mean.tolist() == [15.0, 9.0]  # 1 + … + 5 and 4 + 5, every time
    return [by_chain.mean, by_env.mean, record.interval(of="std")]


@use(
    "RiskFunction",
    "RiskFunction.band",
    "RiskFunction.episodes",
    "RiskFunction.interval",
    "RiskFunction.judged",
    "RiskFunction.kurtosis",
    "RiskFunction.mean",
    "RiskFunction.mean_and_variance",
    "RiskFunction.mixture",
    "RiskFunction.moments",
    "RiskFunction.parts",
    "RiskFunction.score",
    "RiskFunction.riskier",
    "RiskFunction.second_moment",
    "RiskFunction.sharpe",
    "RiskFunction.skewness",
    "RiskFunction.standard_error",
    "RiskFunction.completed_sums",
    "RiskFunction.cvar_bound",
    "RiskFunction.probability_bound",
    "RiskFunction.start_sums",
    "RiskFunction.std",
    "RiskFunction.summary",
    "RiskFunction.to_frame",
    "RiskFunction.variance",
    "RiskFunction.visited",
    "specification_test",
    "compare",
    "criteria.Criterion.assess",
    "criteria.MeanMinusStd.assess",
    "criteria.MeanMinusVariance.assess",
    "criteria.MeanVarianceAtMost.assess",
    "criteria.Sharpe.assess",
    "criteria.VarianceMeanAtLeast.assess",
    "criteria.MomentCriterion.assess",
    "criteria.MomentCriterion.value",
    "criteria.MeanMinusStd.value",
    "criteria.MeanMinusVariance.value",
    "criteria.MeanVarianceAtMost.value",
    "criteria.Sharpe.value",
    "criteria.VarianceMeanAtLeast.value",
)
def answers(given: Given) -> Any:
    x, weights = given.array(np.arange(6)[:, None]), given.array(np.arange(1.0, 7.0))
    found: list[Any] = []
    for phi in maps(given)[:2]:
        fitted = pr.LSTD(phi, moments=4).fit(data(given), bootstrap=40, seed=0)
        risk = dataclasses.replace(
            fitted, w_mean=given.array(fitted.w_mean), w_second=given.array(fitted.w_second)
        )
        asked = ("mean", "second_moment", "variance", "std", "sharpe", "visited", "episodes")
        found += [getattr(risk, name)(x) for name in asked]
        found.append(risk.to_frame(x).to_numpy())
        found += [*risk.mean_and_variance(x), risk.standard_error(x, of="mean"), risk.interval(x, of="std")]
        found.append(risk.interval(x, of="std", method="bootstrap"))
        found += [risk.moments(x), risk.skewness(x), risk.kurtosis(x)]
        found += [risk.cvar_bound(x, 0.1), risk.probability_bound(x, below=-1.0)]
        tested = pr.specification_test(fitted, data(given), features=LINE)
        found += [
            risk.band(x, of="mean"),
            risk.riskier(x),
            tested.mean.statistic,
            *(at.J for at in risk.parts(x)),
        ]
        risk.start_sums(x, weights=weights)
        summary = risk.summary(x, weights=weights)
        found += [float(summary.mean), float(summary.variance), float(risk.score(data(given)).mse)]
        bounded = (pr.criteria.MeanVarianceAtMost(1.0), pr.criteria.VarianceMeanAtLeast(1.0))
        free = (pr.criteria.MeanMinusStd(1.0), pr.criteria.MeanMinusVariance(1.0), pr.criteria.Sharpe())
        for criterion in (*free, *bounded):
            found += [float(criterion.assess(summary).value), float(criterion.value(summary))]
        found.append(str(pr.compare({"a": risk, "b": risk}, x, at=x)))
        found.append(risk.completed_sums(data(given)).powers)
        mixed = pr.RiskFunction.mixture([risk, fitted], given.array([0.25, 0.75]))
        found += [mixed.mean(x), mixed.variance(x), mixed.interval(x, of="std")]
    return found


@use("cross_validate")
def validated(given: Given) -> Any:
    estimators = {"kept": pr.LSTD(maps(given)[0]), "line": pr.LSTD(pr.Polynomial(1, [0], [STATES]))}
    return str(pr.cross_validate(estimators, data(given), folds=3, seed=0))


@use(
    *("evaluate", "Evaluation", "Evaluation.of", "Evaluation.outside", "write_report"),
    *("Evaluation.prediction_interval", "Evaluation.calibrated"),
)
def evaluated(given: Given) -> Any:
    fitted = pr.LSTD(pr.Tabular(STATES)).fit(data(given))
    result = pr.evaluate(data(given), features="tiles:6", seed=0)
    with tempfile.TemporaryDirectory() as folder:
        pr.write_report(result, Path(folder) / "report.html")
    outside = result.outside(given.array([[0.0], [99.0]]))
    ends = result.calibrated(data(given)).prediction_interval(given.array([[0.0]]), 0.5)
    return [pr.Evaluation.of(fitted, data(given)).survey.low, outside, ends, *numbers(result.risk)]


@use("write_parquet", "readers.write_npz", "readers.Stream", "read_minari")
def written(given: Given) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        pr.write_parquet(data(given), Path(folder) / "a.parquet")
        pr.readers.write_npz(data(given), Path(folder) / "a.npz")
        read = [pr.read(Path(folder) / name).load() for name in ("a.parquet", "a.npz")]
    return [column for record in read for column in (record.states, record.rewards)]


@use("rollout")
def rolled_out(given: Given) -> Any:
    weights = given.array([0.3, 1.0, -0.2, 0.5])
    record = pr.rollout("CartPole-v1", lambda x: (x @ weights > 0).astype(int), episodes=3, seed=0)
    return [record.states, record.rewards]


@use(
    "domains.Maze",
    "domains.Maze.free",
    "domains.Maze.from_dict",
    "domains.Maze.playable",
    "domains.Maze.reachable",
    "domains.Pinball",
    "domains.Pinball.as_actions",
    "domains.Pinball.as_starts",
    "domains.Pinball.images",
    "domains.Pinball.returns",
    "domains.Pinball.rollout",
    "domains.Pinball.step",
    "domains.UniformPolicy.probabilities",
    "control.GreedyPolicy",
    "control.GreedyPolicy.__call__",
    "control.GreedyPolicy.action_values",
    "control.GreedyPolicy.value",
)
def pinball(given: Given) -> Any:
    box = pr.domains.Maze.named("box")
    figures = {
        "ball_radius": box.ball_radius,
        "target": {"center": given.array(box.target), "radius": box.target_radius},
        "starts": given.array(box.starts),
        "obstacles": [given.array(obstacle) for obstacle in box.obstacles],
    }
    maze = pr.domains.Maze.from_dict(figures)
    by_hand = pr.domains.Maze(
        "mine",
        box.ball_radius,
        figures["target"]["center"],
        box.target_radius,
        figures["starts"],
        tuple(figures["obstacles"]),
    )
    game, places = pr.domains.Pinball(by_hand), given.array([[0.1, 0.9], [0.7, 0.4]])
    states = given.array([[0.1, 0.9, 0.1, 0.0], [0.7, 0.4, 0.0, 0.2]])
    actions = given.array([1, 3], np.int64)
    policy = pr.domains.UniformPolicy(4)
    found: list[Any] = [
        maze.free(places),
        maze.reachable(places),
        maze.playable(places),
        *game.step(states, actions, seed=1),
    ]
    found += [
        game.images(states)[0],
        game.as_starts(places, "starts"),
        game.as_actions(actions, 2, "actions"),
    ]
    found.append(game.rollout(policy, states, seed=1, max_steps=20).states)
    found.append(game.rollout(lambda x: given.array(np.zeros(2), np.int64)[: len(x)], states, 1, 5).states)
    found.append(game.returns(policy, places, seed=1, max_steps=20).returns)
    phi = pr.RadialBasis.grid([0] * 4, [1] * 4, 2, normalised=True, truncate=0.9)
    greedy = GreedyPolicy(phi, given.array(np.arange(64.0).reshape(16, 4)))
    found.append(policy.probabilities(states))
    found += [greedy.value(states), greedy.action_values(states), greedy(states)]
    return found


@use(
    "domains.Portfolio.as_actions",
    "domains.Portfolio.as_starts",
    "domains.Portfolio.returns",
    "domains.Portfolio.rollout",
    "domains.Portfolio.step",
)
def portfolio(given: Given) -> Any:
    game, policy = pr.domains.Portfolio(), pr.domains.UniformPolicy(2)
    states = given.array([[0.0, 2.0, 0.0, 1.0, 0.0, 1.0], [30.0, 1.1, 1.0, 1.0, 0.0, 0.0]])
    actions = given.array([1, 0], np.int64)
    found: list[Any] = [*game.step(states, actions, seed=1)]
    found += [game.as_starts(states, "starts"), game.as_actions(actions, 2, "actions")]
    found.append(game.rollout(policy, states, seed=1).states)
    found.append(game.rollout(lambda x: given.array(np.zeros(2), np.int64)[: len(x)], states, 1, 5).states)
    return [*found, game.returns(policy, states, seed=1).returns]


@use(
    "domains.RewardSoFar",
    "domains.RewardSoFar.as_actions",
    "domains.RewardSoFar.as_starts",
    "domains.RewardSoFar.rollout",
    "domains.RewardSoFar.step",
)
def reward_so_far(given: Given) -> Any:
    game = pr.domains.RewardSoFar(pr.domains.Portfolio())
    states = given.array([[0.0, 2.0, 0.0, 1.0, 0.0, 1.0, 0.0], [48.0, 1.1, 1.0, 1.0, 0.0, 0.0, 9.0]])
    actions = given.array([1, 0], np.int64)
    found: list[Any] = [*game.step(states, actions, seed=1)]
    found += [game.as_starts(states, "starts"), game.as_actions(actions, 2, "actions")]
    return [*found, game.rollout(lambda x: given.array(np.zeros(2), np.int64)[: len(x)], states, 1, 5).states]


@use(
    "ActorCritic",
    "ActorCritic.fit",
    "GaussianPolicy",
    "GaussianPolicy.__call__",
    "GaussianPolicy.sample",
    "GaussianPolicy.log_gradient",
    "GaussianPolicy.with_parameters",
    "SoftmaxPolicy",
    "SoftmaxPolicy.__call__",
    "SoftmaxPolicy.probabilities",
    "SoftmaxPolicy.log_gradient",
    "SoftmaxPolicy.log_probability",
    "SoftmaxPolicy.with_parameters",
    "GaussianPolicy.log_probability",
)
def softmax_policy(given: Given) -> Any:
    game = pr.domains.Portfolio()
    phi = game.features()
    policy = pr.SoftmaxPolicy(phi, 2, given.array(np.arange(64.0).reshape(32, 2) / 64))
    states = given.array(game.states[[5, 900]])
    other = policy.with_parameters(given.array(np.arange(64.0)))
    score = policy.log_gradient(states, given.array([0, 1], np.int64), given.array([1.0, 2.0]))
    search = pr.ActorCritic(policy, pr.criteria.Sharpe(), pr.LSTD(phi), episodes=20, iterations=2)
    better = search.fit(game, seed=0, starts=lambda n, generator: np.tile(states[:1], (n, 1)))
    drawn = pr.GaussianPolicy(phi, 1, given.array(np.ones((32, 1))), given.array([0.5]))
    moved = drawn.with_parameters(given.array(np.arange(33.0)))
    push = drawn.log_gradient(states, given.array([[0.0], [1.0]]), given.array([1.0, 2.0]))
    chance = policy.log_probability(states, given.array([0, 1], np.int64))
    density = drawn.log_probability(states, given.array([[0.0], [1.0]]))
    found = [drawn(states), drawn.sample(states, seed=0), moved.weights, push, chance, density]
    return [policy(states), policy.probabilities(states), other.weights, score, better.policy.weights, *found]


@use(
    "plotting.plot_check",
    "plotting.plot_line",
    "plotting.plot_map",
    "plotting.plot_mean_std",
    "plotting.plot_returns",
)
def plotted(given: Given) -> Any:
    box = {"low": [0.0, 0.0], "high": [1.0, 1.0]}
    rng = np.random.default_rng(0)
    record = pr.Trajectories(rng.random((60, 2)), rng.random(40), np.full(20, 2), np.ones(20, bool))
    risk = pr.LSTD(pr.Polynomial(1, **box)).fit(record)
    x = given.array(np.linspace([0.0, 0.0], [1.0, 1.0], 5))
    line = pr.plotting.plot_line(risk, x, truth=given.array(np.arange(5.0)))
    pr.plotting.plot_map(
        risk,
        low=given.array(box["low"]),
        high=given.array(box["high"]),
        at=given.array([0.5, 0.5]),
        shape=(4, 4),
    )
    pr.plotting.plot_mean_std({"a": risk.summary(x)})
    pr.plotting.plot_returns(given.array(np.arange(12.0)), given.array(np.arange(12.0)[::-1]))
    pr.plotting.plot_check(pr.specification_test(risk, record, seed=0))
    return line.lines[0].get_xdata()


# Why some functions that take numbers have no use above.
NOT_USED = {
    "MomentEquations.solve": "takes a number and what makes systems",
    "MomentEquations.mean_system": "takes a number and what makes systems",
    "readers.Stream.with_clusters": "Trajectories.with_clusters of each of its parts",
    "readers.Stream.with_time_limit": "Trajectories.with_time_limit of each of its parts",
    "RiskFunction.load": "takes a path and a function",
    "Evaluation.load": "takes a path and a function",
    "Evaluation.to_frame": "risk.to_frame and prediction_interval do it",
    "DistributionFunction.load": "takes a path and a function",
    "RadialBasis.gpu_input": "part of RadialBasis.__call__",
    "RadialBasis.gpu_rows": "takes a GPU's arrays",
    "TorchFeatures.gpu_input": "part of TorchFeatures.__call__",
    "TorchFeatures.gpu_rows": "takes a GPU's arrays",
    "TorchFeatures": "needs PyTorch: test_network.py",
    "TorchFeatures.__call__": "needs PyTorch: test_network.py",
    **{
        f"{policy}.{name}": why
        for policy in ("SoftmaxPolicy", "GaussianPolicy", "control.GreedyPolicy")
        for name, why in {
            "load": "takes a path and a function",
            "load_with_world": "takes a path and a function",
            "save": "takes a path and plain values",
        }.items()
    },
    "MomentEquations.of_maps": "takes maps",
    "FunctionFeatures.of_spec": "takes plain values",
    "features.FeatureMap.outside": "each map's own",
    **{
        f"{name}.over": "reads a survey, which cannot be changed"
        for name in ("Labels", "Tabular", "TorchFeatures")
    },
    "TorchFeatures.of_spec": "takes plain values",
    "TorchFeatures.on_module": "needs PyTorch: test_network.py",
    "TorchFeatures.outside": "needs PyTorch: test_network.py",
    "TorchFeatures.whitened": "needs PyTorch: test_network.py",
    "features.from_sb3": "needs PyTorch: test_network.py",
    "sb3_policy": "needs PyTorch: test_stable_baselines.py",
    "control.ActorCriticResult": "a record that is only made",
    "control.BeforeAfter": "a record that is only made",
    "control.BeforeAfter.write_history": "writes a record of plain numbers",
    "control.improve": "ActorCritic.fit and rollouts",
    "plotting.plot_learning": "reads a record of plain numbers",
    "control.Frontier": "a record that is only made",
    "control.FrontierPoint": "a record that is only made",
    "plotting.plot_frontier": "reads a record of plain numbers",
    "MDP.from_branches": "keeps the tables that it is given",
    "MarkovChain.from_branches": "keeps the table that it is given",
    "domains.Portfolio.act": "works in place, and says so: the step of callers that keep their own states",
    "domains.RewardSoFar.act": "works in place, and says so: the step of callers that keep their own states",
    "domains.RewardSoFar.returns": "checks its starts as rollout does, by the same code",
    "domains.Pinball.act": "works in place, and says so: the step of callers that keep their own states",
    "features.BinaryFeatures.__call__": "a protocol",
    "features.BinaryFeatures.active": "a protocol",
    "features.Features.__call__": "a protocol",
    "features.register": "keeps the class that it is given",
    "LSTD.known": "a step of LSTD.fit, which takes passes over data",
    "LSTDQ.known": "a step of LSTDQ.fit, which takes passes over data",
    "distributed.RemoteEpisodes": "holds references to what lies elsewhere",
    "distributed.Shard": "holds what it is given",
    "distributed.equations": "LSTD.equations in other processes",
    "distributed.fit": "LSTD.fit in other processes",
    "distributed.monte_carlo": "monte_carlo in other processes",
    "distributed.rollout": "rollout in other processes",
    "distributed.shards": "takes a path and options in plain values",
    "equations.constraint.ConstrainedSolution": "a record that is only made",
    "read": "takes a path and options in plain values",
    "read_parquet": "takes a path and options in plain values",
    "readers.read_npz": "takes a path and options in plain values",
    "readers.read_csv": "takes a path and options in plain values",
    "criteria.Assessment": "a record of plain numbers",
    "criteria.Slopes": "a record of plain numbers",
}

MODULES = ("", "control", "criteria", "distributed", "domains", "equations.constraint", "features")
MODULES += ("plotting", "readers")
# Words in the annotation of an argument that cannot be changed.
PLAIN = {"int", "float", "str", "bool", "None", "os.PathLike", "PathLike", "PathOrPaths", "Literal", "tuple"}
PLAIN |= {"Sequence", "Seed"}


def takes_numbers(function: Any) -> bool:
    """Whether an argument may hold an array, by its annotation."""
    made_by = function.__init__ if inspect.isclass(function) else function
    home = getattr(inspect.unwrap(made_by), "__globals__", {})
    for name, argument in inspect.signature(function).parameters.items():
        words = re.findall(r"[A-Za-z_][\w.]*", re.sub(r"Literal\[[^\]]*\]", "", str(argument.annotation)))
        unknown = {word for word in words if word not in PLAIN and get_origin(home.get(word)) is not Literal}
        if name not in ("self", "cls") and unknown:
            return True
    return False


def public() -> set[str]:
    """Every public function, class and method that takes numbers, as in ``pr.<name>``."""
    found: dict[int, str] = {}
    for module in MODULES:
        home = importlib.import_module(f"policyrisk.{module}" if module else "policyrisk")
        for name in home.__all__:
            value, full = getattr(home, name), f"{module}.{name}" if module else name
            if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
                continue
            if id(value) in found or not hasattr(value, "__module__"):
                continue
            found[id(value)] = full
    names = set()
    for key, full in found.items():
        value = _by_name(full)
        assert id(value) == key
        if not inspect.isclass(value):
            names |= {full} if takes_numbers(value) else set()
            continue
        if not getattr(value, "_is_protocol", False) and takes_numbers(value):
            names.add(full)
        for method in dir(value):
            member = inspect.getattr_static(value, method)
            member = getattr(member, "__func__", member)
            called = not method.startswith("_") or method in ("__call__", "__getitem__")
            if called and inspect.isfunction(member) and takes_numbers(member):
                names.add(f"{full}.{method}")
    return names


def _by_name(full: str) -> Any:
    *module, name = full.split(".")
    return getattr(importlib.import_module(".".join(["policyrisk", *module])), name)


def equal(a: Any, b: Any) -> None:
    if isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            equal(x, y)
        return
    if isinstance(a, str):
        assert a == b
        return
    a, b = (x.toarray() if sp.issparse(x) else np.asarray(x) for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


DISTINCT = sorted({function for uses in USES.values() for function in uses}, key=lambda f: f.__name__)


@pytest.mark.parametrize("function", DISTINCT, ids=lambda f: f.__name__)
def test_input_stays_as_it_was(function: Callable[[Given], Any]) -> None:
    answers = []
    for kind in ("plain", "awkward", "read-only"):
        given = Given(kind)
        first = function(given)
        given.check()
        second = function(given.again())
        given.check()
        equal(first, second)
        answers.append(first)
    equal(answers[0], answers[1])
    equal(answers[1], answers[2])


def test_every_public_function_that_takes_numbers_is_used() -> None:
    assert public() == USES.keys() | NOT_USED.keys()
    assert not USES.keys() & NOT_USED.keys()


def test_one_matrix_for_two_actions() -> None:
    """By hand: J_1 = 1/0.9, J_0 = (1 + 0.2 J_1)/0.5; columns 1, 0 of the first row are not sorted."""
    P = sp.csr_array((np.array([0.2, 0.5, 0.1]), np.array([1, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    expected = [(1 + 0.2 / 0.9) / 0.5, 1 / 0.9]
    for _ in range(2):
        chain = pr.MarkovChain.from_mdp([P, P], [1.0, 1.0], [1, 1])
        np.testing.assert_allclose(chain.mean(), expected, rtol=1e-15)
    assert P.indices.tolist() == [1, 0, 1]


def test_repeated_entries_of_a_small_type_do_not_overflow() -> None:
    r = sp.coo_array((np.array([100, 100], dtype=np.int8), ([0, 0], [0, 0])), shape=(1, 1))
    chain = pr.MarkovChain([[0.5]], r, terminal_rewards=[0.0])
    np.testing.assert_allclose(chain.mean(), [200.0], rtol=1e-15)  # (0.5 · 200) / (1 − 0.5)
