"""What a check of LSTD's features needs and an estimate may lack: replicates of its weights."""

from __future__ import annotations

import numpy as np

from policyrisk._core.arrays import Seed
from policyrisk.errors import InvalidInputError, MismatchError
from policyrisk.lstd.estimator import LSTD
from policyrisk.risk import ErrorBars, RiskFunction
from policyrisk.trajectories import Source

_SAME = 1e-6  # of the largest weight: up to this, weights that were fitted anew are the same


def replicated(risk: RiskFunction, data: Source, replicates: int, seed: Seed) -> ErrorBars:
    """The error bars of an estimate of LSTD.fit, fitted anew to the same data for its replicates."""
    source = risk.provenance
    if source.constrained:
        raise InvalidInputError(
            f"check needs bootstrap replicates where the constraint V >= 0 is active, in "
            f"{source.constrained} states here; fit with the bootstrap= option, for example bootstrap=1000"
        )
    lstd = LSTD(
        risk.features,
        risk.second_features,
        lam=source.lam,
        discount=source.discount,
        ridge=source.ridge,
        variance=risk.variance_method,
        variance_lam=source.variance_lam,
    )
    again = lstd.fit(data, bootstrap=replicates, seed=seed)
    for name in ("w_mean", "w_second"):
        old, new = getattr(risk, name), getattr(again, name)
        if np.abs(old - new).max() > _SAME * max(np.abs(old).max(), np.finfo(np.float64).tiny):
            raise MismatchError(
                f"data must be those that were fitted, got others, whose {name} differs; pass the same data"
            )
    assert again.error_bars is not None
    return again.error_bars
