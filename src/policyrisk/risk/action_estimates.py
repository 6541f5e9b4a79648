"""Estimates of a policy that chooses among actions: what LSTDQ's features say at states, and at pairs.

    J = Σ_a π Q_J        V = Σ_a π V_Q + Var_π(Q_J)   (direct)   or   M = Σ_a π Q_M

π being restricted to covered actions (:mod:`policyrisk.lstd.action_estimator`): those whose features were
visited and, where the features are dense, whose leverage is in range (:mod:`policyrisk.risk.support`). By the
weights the direct V has the derivatives Σ_a π φ_M and 2 Cov_π(Q_J, φ_J); of draws of continuous actions the
variance and its derivative are taken with m − 1.

With e_a episodes behind the pair (x, a), 1 / Σ_a π(a)²/e_a stand behind the state, as if each had measured
its Q alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policyrisk._core.arrays import Bools, Floats, Matrix, as_array
from policyrisk.errors import InvalidInputError
from policyrisk.features.actions import ActionRows, candidates_of
from policyrisk.features.target import PolicyFeatures, PolicyFunction, renormalised, spread_about
from policyrisk.risk.state_estimates import StateEstimates
from policyrisk.risk.support import Support

if TYPE_CHECKING:
    from policyrisk.risk.risk_function import RiskFunction


@dataclass(frozen=True, eq=False)
class Choice:
    """What the target chooses among at some states."""

    mean: ActionRows
    second: ActionRows
    pi: Floats  # (n, m): over covered actions, of sum 1 or 0
    covered: Floats  # (n,): the target's probability on them
    episodes: Floats  # (n, m): behind each pair

    @classmethod
    def at(cls, risk: RiskFunction, states: npt.NDArray[Any]) -> Choice:
        """The choice at states (n, dim)."""
        maps, supports = _maps(risk)
        target = maps[0].target
        candidates = target.candidates(states)
        rows = [phi.map.rows(states, candidates) for phi in maps]
        episodes = np.stack([supports[0].episodes_seen(phi) for phi in candidates_of(rows[0])], axis=1)
        if len(maps) == 2:
            behind = np.stack([supports[1].episodes_seen(phi) for phi in candidates_of(rows[1])], axis=1)
            episodes = np.minimum(episodes, behind)
        for each, known in zip(rows, target.known, strict=False):
            if not known.all():
                episodes = np.where(each.known(known), episodes, 0.0)
        pi, covered = renormalised(target.probabilities(states), episodes > 0)
        return cls(rows[0], rows[-1], pi, covered, episodes)


def policy_estimates(risk: RiskFunction, states: npt.NDArray[Any]) -> StateEstimates:
    """The target's estimates at states (n, dim)."""
    maps, supports = _maps(risk)
    phi_J, support = maps[0], supports[0]
    at = Choice.at(risk, states)
    mean, second = at.mean.combined(at.pi), at.second.combined(at.pi)
    w_mean, w_second = risk.unit_weights
    J, M = np.asarray(mean @ w_mean), np.asarray(second @ w_second)
    draws = phi_J.target.draws
    spread: Matrix | None = None
    sampling: Floats | None = None
    V = M - J**2
    if risk.variance_method == "direct":
        Q = at.mean.values(w_mean)
        about = spread_about(at.pi, Q) * (draws / (draws - 1) if draws else 1.0)
        V, spread = M + (about * Q).sum(axis=1), at.mean.combined(2.0 * about)
    if draws:
        Q, own = at.mean.values(w_mean) - J[:, None], at.second.values(w_second)
        moved = own + Q**2 - V[:, None]
        if risk.variance_method == "second-moment":
            moved = own - M[:, None] - 2 * J[:, None] * Q
        weights = at.pi**2 * (draws / (draws - 1))
        sampling = np.stack([(weights * each).sum(axis=1) for each in (Q**2, moved**2, Q * moved)])
    stays = at.covered - (0.0 if support.lost is None else np.asarray(mean @ support.lost))
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = 1.0 / np.where(at.pi > 0, at.pi**2 / at.episodes, 0.0).sum(axis=1)
    told = (at.covered > 0) & (stays >= 1.0 - support.lost_most)
    episodes = np.where(told, np.minimum(behind, float(support.episodes)), 0.0)
    J, V = (np.where(told, values, np.nan) for values in (J, V))
    return StateEstimates(
        mean,
        second,
        J,
        V,
        episodes,
        risk.variance_method,
        spread=spread,
        sampling=sampling,
        covered=np.clip(stays, 0.0, 1.0),
    )


def covered(risk: RiskFunction, states: npt.NDArray[Any]) -> Floats:
    """The target's probability on covered actions, of shape (n,)."""
    return Choice.at(risk, states).covered


def pair_estimates(
    risk: RiskFunction, states: npt.NDArray[Any], action: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Q_J and V_Q of taking ``action`` (one for all, or one for each) first, each of shape (n,)."""
    maps, supports = _maps(risk)
    actions = _as_actions(action, len(states), maps[0].target.actions)
    phi = [each.map.at(states, actions) for each in maps]
    known: Bools = np.logical_and.reduce(
        [support.visited(rows) for support, rows in zip(supports, phi, strict=True)]
    )
    Q, second = np.asarray(phi[0] @ risk.w_mean), np.asarray(phi[-1] @ risk.w_second)
    V = second if risk.variance_method == "direct" else second - Q**2
    return np.where(known, Q, np.nan), np.where(known, V, np.nan)


def check_policy_is_a_function(risk: RiskFunction) -> None:
    """Raise where the target policy of an estimate is in its file."""
    if not isinstance(_maps(risk)[0][0].target.policy, PolicyFunction):
        raise InvalidInputError("policy must be left out for an estimate whose policy is a table, got one")


def _maps(risk: RiskFunction) -> tuple[tuple[PolicyFeatures, ...], tuple[Support, ...]]:
    """φ̄_J with its support, and φ̄_M with its own where it is another map."""
    first, second, supports = risk.features, risk.second_features, (risk.support, risk.second_support)
    if not isinstance(first, PolicyFeatures) or not isinstance(second, PolicyFeatures):
        raise InvalidInputError(
            f"actions are known to estimates of LSTDQ alone, got one that came from "
            f"{risk.provenance.estimator}; fit LSTDQ(features, policy, ...) to data with actions"
        )
    assert all(isinstance(support, Support) for support in supports)
    one = supports[0] is supports[1]
    return ((first,), supports[:1]) if one else ((first, second), supports)  # type: ignore[return-value]


def _as_actions(action: npt.ArrayLike, n: int, count: int) -> npt.NDArray[Any]:
    """One action for each state, (n,) or (n, k)."""
    array = as_array(action, "a", f"an action, or one for each of {n} states")
    if count:
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size not in (1, n):
            raise InvalidInputError(
                f"a must be an action, or one for each of {n} states, as ints, got {array.dtype} of shape "
                f"{array.shape}; pass for example 0"
            )
        actions = np.broadcast_to(array.ravel(), (n,))
        if n and not (0 <= actions.min() and actions.max() < count):
            raise InvalidInputError(
                f"a must be from 0 to {count - 1}, got {actions.min()} to {actions.max()}; choose one"
            )
        return actions
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2) or (array.ndim == 2 and len(array) != n):
        raise InvalidInputError(
            f"a must be an action (k,), or one for each of {n} states (n, k), got {array.dtype} of shape "
            f"{array.shape}; pass its coordinates"
        )
    return np.broadcast_to(array.astype(np.float64), (n, array.shape[-1]))
