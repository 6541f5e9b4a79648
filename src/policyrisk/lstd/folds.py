"""LSTD fitted to all parts of the data but one, for each of them: cross-validation from additive sums.

The equations of each part are summed once, and those of the others are added up m times. The direct variance
then takes one more pass over the other parts for each, since δ² depends on their weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policyrisk.errors import PolicyRiskError
from policyrisk.lstd.estimator import LSTD
from policyrisk.lstd.scores import direct_right_hand_side
from policyrisk.risk import RiskFunction
from policyrisk.trajectories import Trajectories


def fits_without_each(lstd: LSTD, parts: Sequence[Trajectories]) -> list[RiskFunction]:
    """The risk function of all parts but the first, of all but the second, …, and of all of them.

    There are no error bars. Where a cut-off episode ends in a state that its part alone had visited, the
    equations without that part have no answer, and the others are fitted from the beginning, which gives
    such last transitions up.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=90, seed=1)
    >>> parts = [data[:30], data[30:60], data[60:]]
    >>> lstd = pr.LSTD(pr.Tabular(5), variance="direct")
    >>> without = fits_without_each(lstd, parts)
    >>> bool(abs(without[0].variance([0]) / lstd.fit(data[30:]).variance([0]) - 1) < 1e-9)
    True
    """
    sampled = {name: getattr(lstd, name) for name in ("features", "second_features", "lam", "discount")}
    sums = [lstd.equations(part) for part in parts]
    fits = []
    for left_out in (*range(len(parts)), None):
        others = [k for k in range(len(parts)) if k != left_out]
        try:
            equations = sum(sums[k] for k in others)
            assert not isinstance(equations, int)
            weights = equations.solve(lstd.ridge)
            d = equations.second_rhs(weights.mean)
            if lstd.variance == "direct":
                own = {**sampled, "variance_lam": lstd.variance_lam}
                each = (direct_right_hand_side(parts[k], weights.mean, **own) for k in others)
                d = np.sum(list(each), axis=0)
            fits.append(lstd._answer(equations, weights, d, "LSTD")[0])
        except PolicyRiskError:
            if all(part.terminated.all() for part in parts):
                raise
            fits.append(lstd.fit(Trajectories.concatenate([parts[k] for k in others]), error_bars=False))
    return fits
