"""A policy with a gradient that imitates another one: where the search from a policy of one's own begins.

The other policy runs a few episodes. The weights w of π_w are those that make its actions most likely,

    max over w of  (1/n) Σ_t log π_w(a_t|x_t) − (RIDGE/2) |w|²

where the last term keeps some chance for other actions: without it a search could not try them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from policyrisk._core.arrays import Floats
from policyrisk.control.policies import GaussianPolicy, SoftmaxPolicy
from policyrisk.data import Trajectories
from policyrisk.simulation.spaces import as_policy

_RIDGE = 1e-4
_STEPS = 200
_LEAST_STD = 0.1  # of continuous actions, in the units that the search has


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
