"""The paper's experiments: each a function from parameters to a result record, and its pictures."""
