"""Monte Carlo: moments of the return, by simulation from states asked for or by a forest on recorded ones."""

from policyrisk.montecarlo.estimator import monte_carlo
from policyrisk.montecarlo.forest import ReturnForest
from policyrisk.montecarlo.record import MonteCarlo

__all__ = ["MonteCarlo", "ReturnForest", "monte_carlo"]
