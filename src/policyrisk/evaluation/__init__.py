"""From recorded episodes to an answer: request, survey, plan, fit, findings."""

from typing import TYPE_CHECKING

from policyrisk._core.imports import lazy

if TYPE_CHECKING:
    from policyrisk.evaluation.pipeline import evaluate as evaluate
    from policyrisk.evaluation.record import Evaluation as Evaluation

_HOMES = {"Evaluation": "policyrisk.evaluation.record", "evaluate": "policyrisk.evaluation.pipeline"}
__getattr__, __dir__ = lazy(__name__, _HOMES)  # the command line reads its options from here alone
__all__ = ["Evaluation", "evaluate"]
