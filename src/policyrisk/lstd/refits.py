"""LSTD fitted to all parts of the data but one, for each of them: cross-validation from additive sums.

The equations of each part are summed once, and those of the others are added up m times. The direct variance
then takes one more pass over the other parts for each, since δ² depends on their weights.

Whether the direct variance is better off with ``variance_lam`` can be told from the data: where J̃ is right,
products of the δ's of different steps have mean 0, and taking them in adds noise alone; where it is wrong, δ²
counts J̃'s error at every step, and they take it out. So they are taken in where their mean over all parts,
with κ = λ, is more than three standard errors over episodes from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policyrisk.data import Trajectories
from policyrisk.equations import MomentEquations
from policyrisk.errors import PolicyRiskError
from policyrisk.lstd.answer import answer, second_right_hand_side
from policyrisk.lstd.estimator import LSTD
from policyrisk.lstd.residuals import lag_products
from policyrisk.passes.reduce import here
from policyrisk.risk import RiskFunction

_ZERO = 3.0  # standard errors


def fits_without_each(
    lstd: LSTD, parts: Sequence[Trajectories], *, choose: bool = False
) -> list[RiskFunction]:
    """The risk function of all parts but the first, of all but the second, …, and of all of them.

    There are no error bars. ``choose`` makes ``variance_lam`` λ where the data ask for it. Where a cut-off
    episode ends in a state that its part alone had visited, the equations without that part have no answer,
    and the others are fitted from the beginning, which gives such last transitions up.

    >>> import policyrisk as pr
    >>> data = pr.domains.walk(n=5, p=0.7).sample(0, episodes=90, seed=1)
    >>> parts = [data[:30], data[30:60], data[60:]]
    >>> lstd = pr.LSTD(pr.Tabular(5), variance="direct")
    >>> without = fits_without_each(lstd, parts)
    >>> bool(abs(without[0].variance([0]) / lstd.fit(data[30:]).variance([0]) - 1) < 1e-9)
    True
    """
    sums = [lstd.equations(part) for part in parts]
    if choose and lstd.variance == "direct" and _misses(lstd, parts, sums):
        lstd = replace(lstd, variance_lam=lstd.lam)
    fits = []
    for left_out in (*range(len(parts)), None):
        others = [k for k in range(len(parts)) if k != left_out]
        try:
            equations = sum(sums[k] for k in others)
            assert not isinstance(equations, int)
            weights = equations.solve(lstd.ridge)
            reduce = here([parts[k] for k in others])
            d = second_right_hand_side(lstd, lstd.view, equations, weights.mean, reduce)
            fits.append(answer(lstd, equations, weights, d, "LSTD")[0])
        except PolicyRiskError:
            if all(part.terminated.all() for part in parts):
                raise
            fits.append(lstd.fit(Trajectories.concatenate([parts[k] for k in others]), error_bars=False))
    return fits


def _misses(lstd: LSTD, parts: Sequence[Trajectories], sums: Sequence[MomentEquations]) -> bool:
    """Whether the products of different steps' δ are not 0 in the mean, by the fit to all parts."""
    try:
        equations = sum(sums[1:], start=sums[0])
        w_mean = equations.solve(lstd.ridge).mean
    except PolicyRiskError:
        return False
    view = replace(lstd.view, second_features=lstd.features)
    found = np.sum([lag_products(part, w_mean, view) for part in parts], axis=0)
    K = equations.episodes
    mean, square = found / K
    return K > 1 and abs(mean) > _ZERO * math.sqrt(max(square - mean**2, 0.0) / (K - 1))
