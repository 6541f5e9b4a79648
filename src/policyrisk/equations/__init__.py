"""The projected equations of mean and second moment: added, solved, constrained; not where they come from."""

from policyrisk.equations.moment_equations import DENSE_MOST, MomentEquations, Weights, too_many_for_dense

__all__ = ["DENSE_MOST", "MomentEquations", "Weights", "too_many_for_dense"]
