"""Run by the peers' own Python: mean and variance of the steps of the square walk, as one JSON line.

    python exact_peer.py stormpy --chain FILE.npz --solver NATIVE:OPTIMISTIC_VALUE_ITERATION --precision 1e-12
    python exact_peer.py quantecon --chain FILE.npz

FILE.npz holds the CSR arrays data, indices, indptr of P. Printed: processor seconds to
build the model, seconds to solve, J and V at the middle state, peak memory in MB.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp


def second_reward(P: sp.csr_array, J: np.ndarray) -> np.ndarray:
    """E[δ²], δ = 1 + J(y) − J(x), with J = 0 at the end: the reward whose total is V."""
    rows = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    ends = 1.0 - P.sum(axis=1)
    inside = np.bincount(rows, P.data * (1.0 + J[P.indices] - J[rows]) ** 2, P.shape[0])
    return inside + ends * (1.0 - J) ** 2


def with_stormpy(P: sp.csr_array, solver: str, precision: float) -> dict[str, float]:
    import stormpy
    from stormpy import datastructures, environments, models

    start = time.process_time()
    n = P.shape[0]
    ends = 1.0 - P.sum(axis=1)
    # State n is the end; rows must come with their columns in order.
    whole = sp.block_array([[P, sp.csr_array(ends[:, None])], [None, sp.csr_array([[1.0]])]], format="coo")
    keep = whole.data > 0.0
    builder = datastructures.SparseMatrixBuilder[float](rows=n + 1, columns=n + 1, entries=int(keep.sum()))
    order = np.lexsort((whole.col[keep], whole.row[keep]))
    builder.add_next_values(*(a[keep][order].tolist() for a in (whole.row, whole.col, whole.data)), [])
    matrix = builder.build()
    labels = models.StateLabeling(n + 1)
    for label, state in (("init", n // 2), ("end", n)):
        labels.add_label(label)
        labels.add_label_to_state(label, state)
    seconds = {"build": time.process_time() - start, "solve": 0.0}

    environment = environments.Environment()
    kind, _, method = solver.partition(":")
    environment.solver().set_linear_equation_solver_type(environments.EquationSolverType[kind])
    native = environment.solver().native()
    native.precision = stormpy.Rational(precision)
    native.maximal_number_of_iterations = 10**9
    if method:
        native.method = environments.NativeLinearEquationSolverMethod[method]

    def total(reward: np.ndarray) -> np.ndarray:
        begin = time.process_time()
        model = models.SparseDtmc[float](
            models.SparseModelComponents[float](
                transition_matrix=matrix,
                state_labeling=labels,
                reward_models={
                    "r": models.SparseRewardModel[float](optional_state_reward_vector=[*reward.tolist(), 0.0])
                },
            )
        )
        (formula,) = stormpy.parse_properties('R{"r"}=? [F "end"]')
        solving = time.process_time()
        seconds["build"] += solving - begin
        result = stormpy.model_checking(model, formula, only_initial_states=False, environment=environment)
        seconds["solve"] += time.process_time() - solving
        return np.array(result.get_finite_value_vector()[:n])

    J = total(np.ones(n))
    V = total(second_reward(P, J))
    return answer(J, V, seconds)


def with_quantecon(P: sp.csr_array) -> dict[str, float]:
    from quantecon.markov import DiscreteDP

    n = P.shape[0]
    seconds = {"build": 0.0, "solve": 0.0}
    # QuantEcon wants stochastic rows and a discount below 1: the end is a state that earns nothing.
    ends = 1.0 - P.sum(axis=1)
    whole = sp.csr_matrix(sp.block_array([[P, sp.csr_array(ends[:, None])], [None, sp.csr_array([[1.0]])]]))
    states, actions = np.arange(n + 1), np.zeros(n + 1, dtype=int)

    def total(reward: np.ndarray) -> np.ndarray:
        begin = time.process_time()
        problem = DiscreteDP(np.append(reward, 0.0), whole, 1.0 - 1e-12, states, actions)
        solving = time.process_time()
        seconds["build"] += solving - begin
        value = problem.evaluate_policy(np.zeros(n + 1, dtype=int))
        seconds["solve"] += time.process_time() - solving
        return np.asarray(value)[:n]

    J = total(np.ones(n))
    V = total(second_reward(P, J))
    return answer(J, V, seconds)


def peak_megabytes() -> float:
    """Peak resident memory of this process alone; getrusage would start from its parent's (Linux)."""
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024.0


def answer(J: np.ndarray, V: np.ndarray, seconds: dict[str, float]) -> dict[str, float]:
    side = math.isqrt(len(J))
    middle = side // 2 * side + side // 2
    peak = peak_megabytes()
    return {**seconds, "J": float(J[middle]), "V": float(V[middle]), "megabytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["stormpy", "quantecon"])
    parser.add_argument("--chain", required=True)
    parser.add_argument("--solver", default="GMMXX")
    parser.add_argument("--precision", type=float, default=1e-8)
    given = parser.parse_args()
    with np.load(given.chain) as file:
        n = len(file["indptr"]) - 1
        P = sp.csr_array((file["data"], file["indices"], file["indptr"]), shape=(n, n))
    stormpy = given.peer == "stormpy"
    print(json.dumps(with_stormpy(P, given.solver, given.precision) if stormpy else with_quantecon(P)))


if __name__ == "__main__":
    main()
