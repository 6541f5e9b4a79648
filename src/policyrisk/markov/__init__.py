"""Known models: Markov chains with rewards, solved exactly."""

from policyrisk.markov.chain import MarkovChain

__all__ = ["MarkovChain"]
