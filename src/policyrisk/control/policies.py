"""Policies with parameters and a gradient: softmax for a number of actions, Gaussian for continuous ones.

    softmax     π(a|x) ∝ exp(φ(x)ᵀ w_a)           ∇_{w_b} log π(a|x) = φ(x) (1{a = b} − π(b|x))
    Gaussian    a ~ N(μ, diag(σ²)),               ∇_{w_j} log π(a|x) = φ(x) (a_j − μ_j) / σ_j²
                μ_j = φ(x)ᵀ w_j                   ∂ log π(a|x) / ∂ log σ_j = (a_j − μ_j)² / σ_j² − 1

:class:`policyrisk.control.actor_critic.ActorCritic` moves their parameters along that gradient.

One of them can imitate a policy of another kind, from which a search then begins. That one runs a few
episodes; the weights are those that make its actions most likely,

    max over w of  (1/n) Σ_t log π_w(a_t|x_t) − (RIDGE/2) |w|²

where the last term keeps some chance for other actions: without it a search could not try them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from policyrisk._core.arrays import Floats, Ints, Seed, as_actions, as_count, as_floats, as_states, readonly
from policyrisk._core.random import generator
from policyrisk.control._policy_kernels import COORDINATES, SoftmaxGrid, SoftmaxTiles
from policyrisk.control.greedy import MOST, StoredPolicy, grid_table
from policyrisk.data import Trajectories
from policyrisk.errors import InvalidInputError
from policyrisk.features import TileCoding
from policyrisk.features.protocol import Features
from policyrisk.features.radial import RadialGrid
from policyrisk.simulation.spaces import as_policy

_ROWS = 1 << 15  # states at a time, so that their features fit into memory
_RIDGE = 1e-4
_STEPS = 200
_LEAST_STD = 0.1  # of continuous actions, in the units that the search has


class SoftmaxPolicy(StoredPolicy):
    """π(a|x) ∝ exp(φ(x)ᵀ w_a).

    Called with states (n, dim) it returns probabilities (n, actions), which every ``rollout`` draws its
    actions from. On ``TileCoding`` without hashing and on a normalised ``RadialBasis.grid`` our domains
    follow it in compiled code, on a GPU too; on other features give them ``policy.__call__``.

    Parameters
    ----------
    features
        φ: a feature map with l features.
    actions
        How many.
    weights
        (l, actions); without them every action has the same probability.

    Examples
    --------
    >>> from policyrisk.features import TileCoding
    >>> policy = SoftmaxPolicy(TileCoding([0], [1], bins=2), actions=2, weights=[[0, np.log(3)], [0, 0]])
    >>> policy([0.1, 0.9])
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """

    _columns = "features", "actions", "weights"
    features: Features
    actions: int
    weights: Floats  # (features.size, actions)

    def __init__(self, features: Features, actions: int, weights: npt.ArrayLike | None = None) -> None:
        self.features, self.actions = _as_map(features), as_count(actions, "actions", 1)
        self.weights = _as_weights(weights, features.size, self.actions)

    def __repr__(self) -> str:
        return f"SoftmaxPolicy({self.features!r}, actions={self.actions})"

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """π(a|x), of shape (n, actions)."""
        return np.asarray(softmax(self.features(as_states(states)) @ self.weights, axis=1))

    def probabilities(self, states: npt.ArrayLike) -> Floats:
        """As a call: what rollouts record with the actions of a policy that they follow in compiled code."""
        return self(states)

    @property
    def parameters(self) -> Floats:
        """The weights in one row, of shape (features.size · actions,)."""
        return self.weights.ravel()

    def with_parameters(self, parameters: Floats) -> SoftmaxPolicy:
        """The policy with other weights, given in one row."""
        given = as_floats(parameters, "parameters", (self.weights.size,))
        return SoftmaxPolicy(self.features, self.actions, given.reshape(self.weights.shape))

    def log_probability(self, states: npt.ArrayLike, actions: Ints) -> Floats:
        """log π(a_i|x_i), of shape (n,)."""
        rows = as_states(states)
        chosen = as_actions(actions, "actions", len(rows), self.actions)
        found: Floats = log_softmax(self.features(rows) @ self.weights, axis=1)[np.arange(len(rows)), chosen]
        return found

    def log_gradient(self, states: npt.ArrayLike, actions: Ints, factors: Floats) -> Floats:
        """Σ_t factors_t ∇log π(a_t|x_t) over n states and actions, as the parameters are laid out."""
        rows = as_states(states)
        actions = as_actions(actions, "actions", len(rows), self.actions)
        factors = as_floats(factors, "factors", (len(rows),))
        total = np.zeros(self.weights.shape)
        for first in range(0, len(rows), _ROWS):
            part = slice(first, first + _ROWS)
            phi = self.features(rows[part])
            push = -np.asarray(softmax(phi @ self.weights, axis=1))
            push[np.arange(len(push)), actions[part]] += 1.0
            total += phi.T @ (factors[part, None] * push)
        return np.ravel(total)

    @property
    def compilable(self) -> bool:
        """Whether compiled code can follow it."""
        return self._table is not None

    def compiled(self) -> SoftmaxTiles | SoftmaxGrid:
        """The table that compiled code follows, see :mod:`policyrisk.simulation.compiled`."""
        if self._table is None:
            raise InvalidInputError(
                f"a compiled policy must have at most {MOST} actions, and tiles without hashing or "
                f"normalised radial bases on a grid of at most {COORDINATES} coordinates, got {self!r}; "
                "pass policy.__call__, which is not compiled"
            )
        return self._table

    @cached_property
    def _table(self) -> SoftmaxTiles | SoftmaxGrid | None:
        features = self.features
        if isinstance(features, RadialGrid) and features.normalised:
            table = grid_table(features, self.weights)
            return None if table is None else SoftmaxGrid(*table)
        if not isinstance(features, TileCoding) or features.hashed is not None or self.actions > MOST:
            return None
        low, high = features.box.bounds
        dims = np.array(range(low.size) if features.box.dims is None else features.box.dims, np.int64)
        bins, block = np.array(features.bins, np.int64), features.size // features.tilings
        none = np.zeros((1,) * self.actions)
        return SoftmaxTiles(dims, low, high, bins, features.offsets, block, none, self.weights)


class GaussianPolicy(StoredPolicy):
    """a_j ~ N(φ(x)ᵀ w_j, σ_j²) for each coordinate of the action.

    Called with n states it returns the means (n, dim); :meth:`sample` draws actions, which an environment
    with bounds has to clip itself (Gymnasium's ``ClipAction``).

    Parameters
    ----------
    features
        φ: a feature map with l features.
    dim
        The number of coordinates of the action.
    weights
        (l, dim); without them the mean is 0.
    log_std
        (dim,), log σ; without it every σ is 1.

    Examples
    --------
    >>> from policyrisk.features import Polynomial
    >>> policy = GaussianPolicy(Polynomial(1, [0], [1]), dim=1, weights=[[1.0], [2.0]], log_std=[-9.0])
    >>> policy([0.0, 0.5]).tolist(), policy.sample([0.5], seed=0).round(2).tolist()
    ([[1.0], [2.0]], [[2.0]])
    """

    _columns = "features", "dim", "weights", "log_std"
    features: Features
    dim: int
    weights: Floats  # (features.size, dim)
    log_std: Floats  # (dim,)

    def __init__(
        self,
        features: Features,
        dim: int,
        weights: npt.ArrayLike | None = None,
        log_std: npt.ArrayLike | None = None,
    ) -> None:
        self.features, self.dim = _as_map(features), as_count(dim, "dim", 1)
        self.weights = _as_weights(weights, features.size, self.dim)
        spread = np.zeros(self.dim) if log_std is None else as_floats(log_std, "log_std", (self.dim,))
        self.log_std = readonly(np.array(spread))

    def __repr__(self) -> str:
        return f"GaussianPolicy({self.features!r}, dim={self.dim})"

    def __call__(self, states: npt.ArrayLike) -> Floats:
        """The mean actions, of shape (n, dim)."""
        return np.asarray(self.features(as_states(states)) @ self.weights)

    def sample(self, states: npt.ArrayLike, seed: Seed = None) -> Floats:
        """Actions drawn, of shape (n, dim)."""
        mean = self(states)
        drawn: Floats = mean + np.exp(self.log_std) * generator(seed).standard_normal(mean.shape)
        return drawn

    @property
    def parameters(self) -> Floats:
        """The weights and then log σ in one row, of shape (features.size · dim + dim,)."""
        return np.concatenate([self.weights.ravel(), self.log_std])

    def with_parameters(self, parameters: Floats) -> GaussianPolicy:
        """The policy with other weights and log σ, given in one row."""
        size = self.weights.size
        weights, log_std = np.split(as_floats(parameters, "parameters", (size + self.dim,)), [size])
        return GaussianPolicy(self.features, self.dim, weights.reshape(self.weights.shape), log_std)

    def log_probability(self, states: npt.ArrayLike, actions: Floats) -> Floats:
        """The log of the density at the actions (n, dim), up to a constant, of shape (n,)."""
        rows = as_states(states)
        z = (as_floats(actions, "actions", (len(rows), self.dim)) - self(rows)) / np.exp(self.log_std)
        found: Floats = -(z**2 / 2 + self.log_std).sum(axis=1)
        return found

    def log_gradient(self, states: npt.ArrayLike, actions: Floats, factors: Floats) -> Floats:
        """Σ_t factors_t ∇log π(a_t|x_t) over n states and actions, as the parameters are laid out."""
        x = as_states(states)
        phi = self.features(x)
        actions = as_floats(actions, "actions", (len(x), self.dim))
        factors = as_floats(factors, "factors", (len(x),))
        z = (actions - phi @ self.weights) / np.exp(self.log_std)
        by_weights = phi.T @ (factors[:, None] * z / np.exp(self.log_std))
        with np.errstate(over="ignore"):
            return np.concatenate([np.ravel(by_weights), factors @ (z**2 - 1.0)])


def stored_policy(path: str | PathLike[str]) -> tuple[SoftmaxPolicy | GaussianPolicy, dict[str, Any] | None]:
    """The policy that ``policyrisk improve`` wrote, of either kind, and the environment that it acts in."""
    try:
        return SoftmaxPolicy.load_with_world(path)
    except InvalidInputError as error:
        try:
            return GaussianPolicy.load_with_world(path)
        except InvalidInputError:
            raise error from None


def _as_map(features: Features) -> Features:
    """Checked features of states."""
    if not isinstance(features, Features):
        raise InvalidInputError(
            f"features must be a map from states to features, got {type(features).__name__}; pass for "
            "example TileCoding(low, high, bins)"
        )
    return features


def _as_weights(weights: npt.ArrayLike | None, size: int, columns: int) -> Floats:
    """A copy of the weights (size, columns); 0 where none are given."""
    given = np.zeros((size, columns)) if weights is None else as_floats(weights, "weights", (size, columns))
    return readonly(np.array(given, order="C"))


def imitated(actor: Any, data: Trajectories) -> Any:
    """The actor with the parameters that make the actions in the data most likely.

    >>> from policyrisk.features import Tabular
    >>> data = Trajectories([[0], [1], [0], [1], [0]], [0.0] * 4, [4], [True], actions=[1, 0, 1, 0])
    >>> imitated(SoftmaxPolicy(Tabular(2), 2), data)([0, 1]).round(2)
    array([[0., 1.],
           [1., 0.]])
    """
    states, actions, n = data.states[data.visited_rows], data.actions, data.transitions

    def loss(parameters: Floats) -> tuple[float, Floats]:
        policy = actor.with_parameters(parameters)
        gradient = policy.log_gradient(states, actions, np.full(n, 1.0 / n))
        likely = float(policy.log_probability(states, actions).mean())
        return _RIDGE / 2 * float(parameters @ parameters) - likely, _RIDGE * parameters - gradient

    begin = np.array(actor.parameters)
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    policy = actor.with_parameters(found.x)
    if isinstance(policy, GaussianPolicy):
        spread = np.maximum(policy.log_std, np.log(_LEAST_STD))
        return GaussianPolicy(policy.features, policy.dim, policy.weights, spread)
    return policy


def agreement(actor: Any, data: Trajectories) -> float:
    """The share of the steps in which the actor's likeliest action was taken; of continuous ones R²."""
    states, actions = data.states[data.visited_rows], data.actions
    assert actions is not None
    chosen = actor(states)
    if isinstance(actor, SoftmaxPolicy):
        return float((chosen.argmax(axis=1) == actions).mean())
    spread = float(((actions - actions.mean(axis=0)) ** 2).sum())
    return 1.0 - float(((actions - chosen) ** 2).sum()) / spread if spread else 1.0


def on_rows(policy: Any, simulator: Any) -> Callable[[Floats], npt.NDArray[Any]]:
    """A policy of the environment's own observations and actions, for the rows and units of a search."""
    choose = as_policy(policy)
    if hasattr(simulator, "compiled"):
        return choose
    env = simulator()
    space, acts = env.env.observation_space, env.env.action_space
    env.close()
    size = 1 if hasattr(space, "n") else int(np.prod(space.shape))

    def chosen(rows: Floats) -> npt.NDArray[Any]:
        numbers = rows[:, :size]
        seen = numbers[:, 0].astype(np.int64) if hasattr(space, "n") else numbers.reshape(-1, *space.shape)
        answer = np.asarray(choose(seen))
        if not hasattr(acts, "n"):
            answer = env.units(answer.reshape(len(rows), -1))
        elif answer.ndim == 1:
            answer = answer - int(acts.start)
        return answer

    return chosen
