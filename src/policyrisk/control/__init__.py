"""Learning and improving policies: SARSA(λ), the actor-critic of risk, and the shipped pinball policy."""

from policyrisk.control.actor_critic import ActorCritic, ActorCriticResult
from policyrisk.control.before_after import BeforeAfter, improve
from policyrisk.control.frontier import Frontier, FrontierPoint, frontier
from policyrisk.control.gaussian import GaussianPolicy
from policyrisk.control.pinball import pinball_policy, train_pinball
from policyrisk.control.policy import GreedyPolicy
from policyrisk.control.sarsa import Falling, Sarsa, SarsaResult
from policyrisk.control.softmax import SoftmaxPolicy

__all__ = [
    "ActorCritic",
    "ActorCriticResult",
    "BeforeAfter",
    "Falling",
    "Frontier",
    "FrontierPoint",
    "GaussianPolicy",
    "GreedyPolicy",
    "Sarsa",
    "SarsaResult",
    "SoftmaxPolicy",
    "frontier",
    "improve",
    "pinball_policy",
    "train_pinball",
]
