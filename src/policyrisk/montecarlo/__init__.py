"""Monte Carlo: moments of the return by simulation, from every state asked for."""

from policyrisk.montecarlo.estimator import monte_carlo
from policyrisk.montecarlo.record import MonteCarlo

__all__ = ["MonteCarlo", "monte_carlo"]
