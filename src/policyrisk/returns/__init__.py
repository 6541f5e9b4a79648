"""The return from data: Monte Carlo from asked states, the forest on recorded ones, the distribution."""

from policyrisk.returns.distribution import ReturnDistribution
from policyrisk.returns.distribution_function import DistributionFunction
from policyrisk.returns.distribution_mixture import DistributionMixture
from policyrisk.returns.forest import ReturnForest
from policyrisk.returns.monitor import ReturnMonitor
from policyrisk.returns.monte_carlo import MonteCarlo, monte_carlo
from policyrisk.returns.start_distribution import DistributionSummary, RecordedReturns

__all__ = [
    "DistributionFunction",
    "DistributionMixture",
    "DistributionSummary",
    "MonteCarlo",
    "RecordedReturns",
    "ReturnDistribution",
    "ReturnForest",
    "ReturnMonitor",
    "monte_carlo",
]
