"""LSTD(λ) for the mean and the second moment (sec. 4.1, 4.3 and 5 of the paper); of other policies, LSTDQ."""

from policyrisk.lstd.action_estimator import LSTDQ
from policyrisk.lstd.estimator import LSTD

__all__ = ["LSTD", "LSTDQ"]
