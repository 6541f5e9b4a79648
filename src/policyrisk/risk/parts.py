"""The estimates at many states, some at a time, so that no array becomes large.

How many states that are depends on what each of them takes: its features, of which sparse rows hold but a
few, and what is asked of it besides, such as bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from policyrisk._core.arrays import Floats, Matrix
from policyrisk.features.protocol import matrix_of
from policyrisk.features.target import PolicyFeatures
from policyrisk.risk import mixture
from policyrisk.risk.action_estimates import policy_estimates
from policyrisk.risk.state_estimates import Said, StateEstimates
from policyrisk.risk.support import MixedSupport

if TYPE_CHECKING:
    from policyrisk.risk.risk_function import RiskFunction

_CELLS = 2**21  # numbers that are formed at a time
_FEWEST, _MOST = 128, 2**16  # states at a time
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


def _states_at_a_time(numbers: int) -> int:
    """How many states, where each takes ``numbers`` numbers."""
    return min(max(_CELLS // max(numbers, 1), _FEWEST), _MOST)
