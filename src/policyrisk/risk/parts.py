"""The estimates at many states, some at a time, so that no array becomes large.

How many states that are depends on what each of them takes: its features, of which sparse rows hold but a
few, and what is asked of it besides, such as bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix
from policyrisk.features import Features, Joint
from policyrisk.features.protocol import active_of, is_binary, matrix_of
from policyrisk.features.target import PolicyFeatures
from policyrisk.risk import mixture
from policyrisk.risk.action_estimates import policy_estimates
from policyrisk.risk.state_estimates import Said, StateEstimates
from policyrisk.risk.support import MixedSupport

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
    known_J, episodes = risk.support.known(phi_J)
    known_M = known_J
    if risk.variance_method == "direct" and isinstance(risk.second_support, MixedSupport):
        known_M, behind = risk.second_support.known(phi_M, w_second)
        episodes = np.minimum(episodes, behind)
    elif risk.second_support is not risk.support:
        known_M, behind = risk.second_support.known(phi_M)
        episodes = np.minimum(episodes, behind)
    elif phi_M is not phi_J:
        known_M = phi_M
    J, second = np.asarray(known_J @ w_mean), np.asarray(known_M @ w_second)
    V = second if risk.variance_method == "direct" else second - J**2
    J, V = (np.where(episodes == 0, np.nan, values) for values in (J, V))

    def members() -> tuple[Said, Said]:
        of_mean = mixture.members_say(risk.support, phi_J, w_mean)
        said, known, shares = mixture.members_say(risk.second_support, phi_M, w_second)
        V_i = said if risk.variance_method == "direct" else said - of_mean[0] ** 2
        return of_mean, (V_i, known, shares)

    widening = None if risk.widening is None else (risk.widening.mean, risk.widening.variance)
    return StateEstimates(
        known_J, known_M, J, V, episodes, risk.variance_method, widening=widening, members_of=members
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
        part = states[first : first + _AT_ONCE]
        met: dict[Features, _Met] = {}
        J_i, known = _said(risk.features, of_mean, w_mean, part, met)
        V_i, known_second = _said(risk.second_features, of_second, w_second, part, met)
        direct = risk.variance_method == "direct"
        scale, episodes = of_mean.scales(known)
        second_scale, behind = of_second.scales(known_second, V_i if direct else None)
        episodes = np.minimum(episodes, behind)
        J, V = (scale * J_i).sum(axis=1), (second_scale * V_i).sum(axis=1)
        V = V if direct else V - J**2
        J, V = (np.where(episodes == 0, np.nan, values) for values in (J, V))
        phi_J, phi_M = (sp.csr_array((len(part), w.size)) for w in (w_mean, w_second))
        yield StateEstimates(phi_J, phi_M, J, V, episodes, risk.variance_method)


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
