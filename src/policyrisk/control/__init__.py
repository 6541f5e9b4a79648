"""Improving policies: the actor-critic of risk, frontiers, and the shipped pinball policy."""

from policyrisk.control.actor_critic import ActorCritic, ActorCriticResult
from policyrisk.control.before_after import BeforeAfter, improve
from policyrisk.control.frontier import Frontier, FrontierPoint, frontier
from policyrisk.control.greedy import GreedyPolicy, pinball_policy
from policyrisk.control.policies import GaussianPolicy, SoftmaxPolicy

__all__ = [
    "ActorCritic",
    "ActorCriticResult",
    "BeforeAfter",
    "Frontier",
    "FrontierPoint",
    "GaussianPolicy",
    "GreedyPolicy",
    "SoftmaxPolicy",
    "frontier",
    "improve",
    "pinball_policy",
]
