"""The paper's experiments, and what goes on from them: scripts on policyrisk's public interface.

    python -m experiments.chain --out results/chain

from the top of a clone; each has ``--help``.
"""
