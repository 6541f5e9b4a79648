"""The distribution of the return from trajectories: quantiles, CVaR and probabilities at any state."""

from policyrisk.distribution.estimator import ReturnDistribution
from policyrisk.distribution.function import DistributionFunction, DistributionSummary
from policyrisk.distribution.recorded import RecordedReturns

__all__ = ["DistributionFunction", "DistributionSummary", "RecordedReturns", "ReturnDistribution"]
