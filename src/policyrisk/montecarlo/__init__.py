"""Monte Carlo: moments of the return by simulation, from every state asked for."""

from policyrisk.montecarlo.estimator import CutOffWarning, monte_carlo
from policyrisk.montecarlo.record import MonteCarlo

__all__ = ["CutOffWarning", "MonteCarlo", "monte_carlo"]
