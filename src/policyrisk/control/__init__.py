"""Learning a policy: SARSA(λ) on radial bases, and the learned pinball policy that ships with the package."""

from policyrisk.control.pinball import pinball_policy, train_pinball
from policyrisk.control.policy import GreedyPolicy
from policyrisk.control.sarsa import Falling, Sarsa, SarsaResult

__all__ = ["Falling", "GreedyPolicy", "Sarsa", "SarsaResult", "pinball_policy", "train_pinball"]
