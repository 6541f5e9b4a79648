"""Another policy's risk from logs: sepsis in intensive care, 713 states of a patient and 25 treatments.

The decision process is ICU-Sepsis (Choudhary, Gupta and Thomas, 2024; the package ``icu-sepsis``), estimated
from the records of real patients. Episodes of the clinicians' policy are the log, and nothing but the log
goes into the estimates for other policies: how many survive, how long they stay, how much that varies. Since
the process is known, the truth stands beside them.
"""

import importlib.util
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import policyrisk as pr

DIED, SURVIVED = 713, 714  # the two ends; the states below are those of a patient under treatment
STATES, TREATMENTS = 715, 25


def load():
    """P (treatments, states, states), the distribution of the first state, and the clinicians' policy."""
    # The file is read as it lies there: importing the package would load the retired gym.
    folder = Path(importlib.util.find_spec("icu_sepsis").origin).parent
    with np.load(folder / "envs" / "assets" / "dynamics.npz") as file:
        P, start, clinicians = file["tx_mat"], file["d_0"], file["expert_policy"]
    P = np.ascontiguousarray(P.transpose(1, 0, 2)[:, :STATES, :STATES])
    P[:, DIED:] = 0.0  # at an end the episode is over
    clinicians = clinicians[:STATES]
    clinicians[DIED:, 0] = 1.0  # what they would do there matters to nobody
    return P, start[:STATES], clinicians


def optimal(P, clinicians):
    """The treatment that makes survival most likely, in every state.

    Where some are equally good (what follows is then the same), it is the one that clinicians choose most.
    """
    follows, survives, change = sp.csr_array(P.reshape(-1, STATES)), np.zeros(STATES), 1.0
    while change > 1e-13:
        Q = P[:, :, SURVIVED] + (follows @ survives).reshape(TREATMENTS, STATES)
        change, survives = np.abs(Q.max(axis=0) - survives).max(), Q.max(axis=0)
    best = np.where(Q > survives - 1e-9, clinicians.T, -1.0).argmax(axis=0)
    return np.eye(TREATMENTS)[best]


def record(P, start, policy, episodes, seed):
    """Episodes with their treatments and the probabilities of these, as a hospital might log them.

    They are drawn from a chain that goes from a state x to the pair (x, treatment) and on to the next state.
    The reward is 1 a step: the return is the length of the stay.
    """
    choices = sp.kron(sp.eye_array(STATES), np.ones((1, TREATMENTS))).tocsr() * policy.ravel()
    choices = sp.diags_array(np.arange(STATES) < DIED, dtype=float) @ choices
    follows = P.transpose(1, 0, 2).reshape(-1, STATES)
    both = sp.block_array([[None, choices], [sp.csr_array(follows), None]])
    chain = pr.MarkovChain(both, np.zeros(both.shape[0]))
    walks = chain.sample(np.pad(start, (0, follows.shape[0])), episodes, seed)
    node = walks.states[walks.visited_rows, 0]  # state, pair, state, pair, …, one of the two ends
    x, treatments = np.divmod(node[node >= STATES] - STATES, TREATMENTS)
    return pr.Trajectories(
        states=node[node < STATES],
        rewards=np.ones(len(x)),
        lengths=walks.lengths // 2,
        terminated=walks.terminated,
        actions=treatments,
        propensities=policy[x, treatments],
    )


def survival(data):
    """The same episodes with the reward 1 on survival, 0 otherwise: the return is whether one survives."""
    rewards = np.zeros(data.transitions)
    rewards[data.offsets[1:] - 1] = data.states[data.final_rows, 0] == SURVIVED
    return replace(data, rewards=rewards)


def exact(P, start, policy):
    """The truth: the share that survives, mean and variance of the length of stay."""
    stay = pr.MarkovChain.from_mdp(P, np.arange(STATES) < DIED, policy)
    enters = np.broadcast_to(np.arange(STATES) == SURVIVED, (STATES, STATES)).astype(float)
    survives = pr.MarkovChain.from_mdp(P, enters, policy)
    mean = start @ stay.mean()
    return start @ survives.mean(), mean, start @ stay.second_moment() - mean**2


if __name__ == "__main__":
    P, start, clinicians = load()
    best = optimal(P, clinicians)
    log = record(P, start, clinicians, episodes=10_000, seed=0)
    policies = {
        "clinicians": clinicians,
        "half and half": (clinicians + best) / 2,
        "optimal": best,
        "random": np.full((STATES, TREATMENTS), 1 / TREATMENTS),
    }
    warnings.simplefilter("ignore", pr.errors.UncoveredWarning)  # the last column says it
    truths, found = {name: exact(P, start, policy) for name, policy in policies.items()}, {}
    print("policy          survive (exact)   stay: mean (exact)     variance (exact)   covered")
    for name, policy in policies.items():
        lstdq = pr.LSTDQ(pr.Tabular(STATES), policy)
        risks = [lstdq.fit(rewarded, error_bars=False) for rewarded in (survival(log), log)]
        try:
            survives, stay = (risk.summary(log.starts()) for risk in risks)
        except pr.errors.UncoveredError as error:
            print(f"{name:15s} refused: {error}")
            continue
        found[name] = survives.mean_value, stay.mean_value, stay.variance.value
        pairs = zip((".3f", ".2f", ".1f"), found[name], truths[name], strict=True)
        cells = [f"{estimate:{form}} ({truth:{form}})" for form, estimate, truth in pairs]
        print(f"{name:15s} {cells[0]:>15s} {cells[1]:>20s} {cells[2]:>20s} {stay.covered:9.3f}")
