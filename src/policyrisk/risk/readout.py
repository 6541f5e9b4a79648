"""From weights to the estimates at states, some states at a time, so that no array becomes large.

How many states that are depends on what each of them takes: its features, of which sparse rows hold but a
few, and what is asked of it besides, such as bootstrap replicates.

Of a policy that chooses among actions, LSTDQ's features say at states

    J = Σ_a π Q_J        V = Σ_a π V_Q + Var_π(Q_J)   (direct)   or   M = Σ_a π Q_M

π being restricted to covered actions (:mod:`policyrisk.lstd.action_estimator`): those whose features were
visited and, where the features are dense, whose leverage is in range (:mod:`policyrisk.risk.support`). By the
weights the direct V has the derivatives Σ_a π φ_M and 2 Cov_π(Q_J, φ_J); of draws of continuous actions the
variance and its derivative are taken with m − 1.

With e_a episodes behind the pair (x, a), 1 / Σ_a π(a)²/e_a stand behind the state, as if each had measured
its Q alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk._core.arrays import Bools, Floats, Matrix, as_array
from policyrisk.errors import InvalidInputError
from policyrisk.features import Features, Joint
from policyrisk.features.actions import ActionRows, candidates_of
from policyrisk.features.protocol import active_of, is_binary, matrix_of
from policyrisk.features.target import PolicyFeatures, PolicyFunction, renormalised, spread_about
from policyrisk.risk.state_estimates import Said, StateEstimates
from policyrisk.risk.support import MixedSupport, Support

if TYPE_CHECKING:
    from policyrisk.risk.risk_function import RiskFunction

_CELLS = 2**21  # numbers that are formed at a time
_FEWEST, _MOST = 128, 2**16  # states at a time
_AT_ONCE = 2**12  # states whose values alone are asked for
_SPARSE = 4  # numbers that an entry of a sparse row takes: its value, its column and its row, and a count


def estimates_in_parts(risk: RiskFunction, states: Floats, width: int = 0) -> Iterator[StateEstimates]:
    """The estimates at states (n, dim) in order, at least one part; a state takes ``width`` more numbers.

    They are in units of the data, ``risk.unit``.
    """
    rows = least = _states_at_a_time(max(risk.features.size, risk.second_features.size, width))
    first = 0
    while first == 0 or first < len(states):
        part = states[first : first + rows]
        if isinstance(risk.features, PolicyFeatures):
            yield policy_estimates(risk, part)
            first += rows
            continue
        phi_J = matrix_of(risk.features, part)
        phi_M = phi_J if risk.second_features is risk.features else matrix_of(risk.second_features, part)
        yield estimates(risk, phi_J, phi_M)
        first += rows
        if sp.issparse(phi_J) and sp.issparse(phi_M):
            taken = _SPARSE * max(phi_J.nnz, phi_M.nnz) // rows
            # No more than twice as many at once: the next rows may be fuller.
            rows = max(least, min(2 * rows, _states_at_a_time(max(taken, width))))


def estimates(risk: RiskFunction, phi_J: Matrix, phi_M: Matrix) -> StateEstimates:
    """J̃ and Ṽ at the states with features (n, l_J) and (n, l_M), and what is known of their errors."""
    w_mean, w_second = risk.unit_weights
    of_mean = risk.support.say(phi_J, w_mean)
    behind = of_mean[1] if risk.second_support is risk.support else None
    return _combined(risk, of_mean, risk.second_support.say(phi_M, w_second, behind), phi_J, phi_M)


def _combined(
    risk: RiskFunction,
    of_mean: tuple[Floats, Floats],  # what each member adds to J̃, and the episodes behind it, (n, m) each
    of_second: tuple[Floats, Floats],  # the same of Ṽ, or of M̃
    phi_J: Matrix,
    phi_M: Matrix,
) -> StateEstimates:
    """The estimates at n states from what the members say, of which one that is no mixture has one."""
    (J_i, behind), (M_i, second_behind), direct = of_mean, of_second, risk.variance_method == "direct"
    first, second = risk.support, risk.second_support
    scale, episodes = first.scales(behind)
    second_scale, fewer = second.scales(second_behind, M_i if direct else None)
    episodes = np.minimum(episodes, fewer)
    J, V = (scale * J_i).sum(axis=1), (second_scale * M_i).sum(axis=1)
    V = V if direct else V - J**2
    J, V = (np.where(episodes == 0, np.nan, values) for values in (J, V))

    def members() -> tuple[Said, Said]:
        own, own_V = J_i / first.shares, M_i / second.shares
        own_V = own_V if direct else own_V - own**2
        return (own, behind > 0, first.shares), (own_V, second_behind > 0, second.shares)

    taken = first.scaled(phi_J, scale)
    taken_M = taken if phi_M is phi_J and second is first else second.scaled(phi_M, second_scale)
    widening = None if risk.widening is None else (risk.widening.mean, risk.widening.variance)
    return StateEstimates(
        taken, taken_M, J, V, episodes, risk.variance_method, widening=widening, members_of=members
    )


def values_in_parts(risk: RiskFunction, states: Floats) -> Iterator[StateEstimates]:
    """As :func:`estimates_in_parts` of a mixture, member by member, and without features: these are all 0.

    Of many members, or of a forest, the rows of all features side by side take most of the time.
    """
    of_mean, of_second = risk.support, risk.second_support
    if not isinstance(of_mean, MixedSupport) or not isinstance(of_second, MixedSupport):
        yield from estimates_in_parts(risk, states)
        return
    w_mean, w_second = risk.unit_weights
    for first in range(0, max(len(states), 1), _AT_ONCE):
        part, met = states[first : first + _AT_ONCE], dict[Features, _Met]()
        said = _said(risk.features, of_mean, w_mean, part, met)
        second = _said(risk.second_features, of_second, w_second, part, met)
        phi_J, phi_M = (sp.csr_array((len(part), w.size)) for w in (w_mean, w_second))
        yield _combined(risk, said, second, phi_J, phi_M)


_Met: TypeAlias = "tuple[Any, bool]"  # a map's features, or where they are 1, which the second says


def _said(
    features: Features, support: MixedSupport, weights: Floats, states: Floats, met: dict[Features, _Met]
) -> tuple[Floats, Floats]:
    """What each member says at states, and the episodes behind it, (n, m) each; ``met`` keeps features."""
    assert isinstance(features, Joint)
    said, behind, end = [], [], 0
    for phi, member in zip(features.maps, support.members, strict=True):
        w = weights[end : end + phi.size]
        end += phi.size
        if phi not in met:
            met[phi] = (active_of(phi, states), True) if is_binary(phi) else (matrix_of(phi, states), False)
        rows, binary = met[phi]
        if binary:
            said.append(w[rows].sum(axis=1))
            counts = np.minimum(member.feature_episodes[rows].min(axis=1), float(member.episodes))
            lost = member.lost is not None and member.lost[rows].sum(axis=1) > member.lost_most
            behind.append(np.where(lost, 0.0, counts))
        else:
            said.append(np.asarray(rows @ w))
            behind.append(member.episodes_behind(rows))
    return np.stack(said, axis=1), np.stack(behind, axis=1)


def _states_at_a_time(numbers: int) -> int:
    """How many states, where each takes ``numbers`` numbers."""
    return min(max(_CELLS // max(numbers, 1), _FEWEST), _MOST)


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
