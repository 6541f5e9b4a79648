"""From recorded episodes to an answer: survey, choice of features, fit, advice, one record."""

from policyrisk.evaluation.record import Evaluation
from policyrisk.evaluation.workflow import evaluate

__all__ = ["Evaluation", "evaluate"]
