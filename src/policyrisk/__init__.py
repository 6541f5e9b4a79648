"""How risky is a policy, from every state?

policyrisk estimates the mean J(x), the second moment M(x) and the variance V(x) of the reward to go of a
fixed policy, with error bars, from a known model, from recorded trajectories or from a simulator. The method
is Tamar, Di Castro and Mannor's, "Policy Evaluation with Variance Related Risk Criteria in Markov Decision
Processes" (ICML 2013).
"""

from typing import TYPE_CHECKING

from policyrisk._core.imports import lazy
from policyrisk.simulation import register_if_loaded

if TYPE_CHECKING:
    from policyrisk import criteria as criteria
    from policyrisk import distributed as distributed
    from policyrisk import domains as domains
    from policyrisk import errors as errors
    from policyrisk import features as features
    from policyrisk import plotting as plotting
    from policyrisk import readers as readers
    from policyrisk import testing as testing
    from policyrisk.control.actor_critic import ActorCritic as ActorCritic
    from policyrisk.control.frontier import frontier as frontier
    from policyrisk.control.policies import GaussianPolicy as GaussianPolicy
    from policyrisk.control.policies import SoftmaxPolicy as SoftmaxPolicy
    from policyrisk.data import Trajectories as Trajectories
    from policyrisk.data import read as read
    from policyrisk.data import read_minari as read_minari
    from policyrisk.data import read_parquet as read_parquet
    from policyrisk.data import write_parquet as write_parquet
    from policyrisk.equations import MomentEquations as MomentEquations
    from policyrisk.evaluation import Evaluation as Evaluation
    from policyrisk.evaluation import evaluate as evaluate
    from policyrisk.evaluation.gate import gate as gate
    from policyrisk.features import ActionFeatures as ActionFeatures
    from policyrisk.features import Fourier as Fourier
    from policyrisk.features import FunctionFeatures as FunctionFeatures
    from policyrisk.features import Joint as Joint
    from policyrisk.features import Labels as Labels
    from policyrisk.features import Leaves as Leaves
    from policyrisk.features import Polynomial as Polynomial
    from policyrisk.features import RadialBasis as RadialBasis
    from policyrisk.features import Tabular as Tabular
    from policyrisk.features import TileCoding as TileCoding
    from policyrisk.features import TorchFeatures as TorchFeatures
    from policyrisk.lstd import LSTD as LSTD
    from policyrisk.lstd import LSTDQ as LSTDQ
    from policyrisk.markov import MDP as MDP
    from policyrisk.markov import MarkovChain as MarkovChain
    from policyrisk.report import write_report as write_report
    from policyrisk.returns import DistributionFunction as DistributionFunction
    from policyrisk.returns import MonteCarlo as MonteCarlo
    from policyrisk.returns import ReturnDistribution as ReturnDistribution
    from policyrisk.returns import ReturnForest as ReturnForest
    from policyrisk.returns import ReturnMonitor as ReturnMonitor
    from policyrisk.returns import monte_carlo as monte_carlo
    from policyrisk.risk import RiskFunction as RiskFunction
    from policyrisk.selection.comparison import compare as compare
    from policyrisk.selection.cross_validation import cross_validate as cross_validate
    from policyrisk.selection.specification import specification_test as specification_test
    from policyrisk.simulation.rollouts import rollout as rollout
    from policyrisk.simulation.sb3_policy import sb3_policy as sb3_policy
    from policyrisk.td import TD as TD
    from policyrisk.td import StepSize as StepSize

register_if_loaded()

__version__ = "0.2.0"

_HOMES = {
    "ActionFeatures": "policyrisk.features",
    "ActorCritic": "policyrisk.control.actor_critic",
    "DistributionFunction": "policyrisk.returns",
    "Evaluation": "policyrisk.evaluation",
    "Fourier": "policyrisk.features",
    "FunctionFeatures": "policyrisk.features",
    "GaussianPolicy": "policyrisk.control.policies",
    "Joint": "policyrisk.features",
    "LSTD": "policyrisk.lstd",
    "LSTDQ": "policyrisk.lstd",
    "Labels": "policyrisk.features",
    "Leaves": "policyrisk.features",
    "MDP": "policyrisk.markov",
    "MarkovChain": "policyrisk.markov",
    "MomentEquations": "policyrisk.equations",
    "MonteCarlo": "policyrisk.returns",
    "Polynomial": "policyrisk.features",
    "RadialBasis": "policyrisk.features",
    "ReturnDistribution": "policyrisk.returns",
    "ReturnForest": "policyrisk.returns",
    "ReturnMonitor": "policyrisk.returns",
    "RiskFunction": "policyrisk.risk",
    "SoftmaxPolicy": "policyrisk.control.policies",
    "StepSize": "policyrisk.td",
    "TD": "policyrisk.td",
    "Tabular": "policyrisk.features",
    "TileCoding": "policyrisk.features",
    "TorchFeatures": "policyrisk.features",
    "Trajectories": "policyrisk.data",
    "compare": "policyrisk.selection.comparison",
    "criteria": "",
    "cross_validate": "policyrisk.selection.cross_validation",
    "distributed": "",
    "domains": "",
    "errors": "",
    "evaluate": "policyrisk.evaluation",
    "features": "",
    "frontier": "policyrisk.control.frontier",
    "gate": "policyrisk.evaluation.gate",
    "monte_carlo": "policyrisk.returns",
    "plotting": "",
    "read": "policyrisk.data",
    "read_minari": "policyrisk.data",
    "read_parquet": "policyrisk.data",
    "readers": "",
    "rollout": "policyrisk.simulation.rollouts",
    "sb3_policy": "policyrisk.simulation.sb3_policy",
    "specification_test": "policyrisk.selection.specification",
    "testing": "",
    "write_parquet": "policyrisk.data",
    "write_report": "policyrisk.report",
}
__getattr__, __dir__ = lazy(__name__, _HOMES, before=register_if_loaded)
__all__ = sorted(_HOMES)
