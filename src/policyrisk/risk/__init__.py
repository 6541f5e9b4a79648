"""The one kind of answer: estimates at states, with intervals, summaries and what stands behind them."""

from policyrisk.risk.draws import ErrorBars
from policyrisk.risk.risk_function import FEW_EPISODES, RiskFunction
from policyrisk.risk.start_sums import SampleReturns
from policyrisk.risk.state_estimates import Quantity, VarianceMethod
from policyrisk.risk.support import Provenance

__all__ = [
    "FEW_EPISODES",
    "ErrorBars",
    "Provenance",
    "Quantity",
    "RiskFunction",
    "SampleReturns",
    "VarianceMethod",
]
