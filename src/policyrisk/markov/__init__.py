"""Known models: Markov chains with rewards and decision processes, solved exactly."""

from policyrisk.markov.chain import MarkovChain
from policyrisk.markov.mdp import MDP

__all__ = ["MDP", "MarkovChain"]
