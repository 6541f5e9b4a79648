"""TD(0) and TD(λ) for the mean and the second moment (sec. 4.2 of the paper)."""

from policyrisk.td.estimator import TD, StepSize

__all__ = ["TD", "StepSize"]
