"""The one kind of answer: estimates at states, with intervals, summaries and what stands behind them."""

from policyrisk.risk.error_bars import ErrorBars
from policyrisk.risk.function import FEW, RiskFunction
from policyrisk.risk.provenance import Facts
from policyrisk.risk.quantities import Quantity, VarianceMethod
from policyrisk.risk.summary import SampleReturns

__all__ = ["FEW", "ErrorBars", "Facts", "Quantity", "RiskFunction", "SampleReturns", "VarianceMethod"]
