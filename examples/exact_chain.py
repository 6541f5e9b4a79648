"""A known model: exact mean and variance of a policy, the same from samples, and a picture of both.

A walker wants to get home from up to 30 steps away. A careful step succeeds nine times in ten. A bold
one takes two steps at once, but three times in ten the walker goes astray and is three steps farther off. The
policy is bold far from home and careful near it. Each move costs 1.
"""

import numpy as np

import policyrisk as pr

FARTHEST, CAREFUL, BOLD = 30, 0, 1

# P[action][state, next state], state i being i + 1 steps from home. What a row lacks to 1 ends the
# episode: the walker is home.
P = np.zeros((2, FARTHEST, FARTHEST))
for i in range(FARTHEST):
    P[CAREFUL, i, i] = 0.1
    if i >= 1:
        P[CAREFUL, i, i - 1] = 0.9
    if i >= 2:
        P[BOLD, i, i - 2] = 0.7
    P[BOLD, i, min(i + 3, FARTHEST - 1)] += 0.3
r = np.full(FARTHEST, -1.0)
states = np.arange(FARTHEST)
policy = np.where(states >= 10, BOLD, CAREFUL)

if __name__ == "__main__":
    # The decision process and the policy together are a Markov chain, which is solved exactly.
    chain = pr.MarkovChain.from_mdp(P, r, policy)
    mean, std = chain.mean(), chain.std()

    # The same from 1,000 recorded walks, which is what one has without a model.
    data = chain.sample(start=FARTHEST - 1, episodes=1000, seed=0)
    risk = pr.LSTD(pr.Tabular(FARTHEST), lam=0.9).fit(data)
    low, high = risk.interval(states, of="std").T

    print("steps   mean   LSTD    std   LSTD   95% interval")
    for i in (4, 9, 11, 14, 19, 29):
        print(
            f"{i + 1:5d} {mean[i]:6.2f} {risk.mean([i])[0]:6.2f} {std[i]:6.2f} {risk.std([i])[0]:6.2f}"
            f"   {low[i]:.2f} to {high[i]:.2f}"
        )

    axes = pr.plotting.plot_line(risk, states, of="std", truth=std)
    axes.set_xlabel("steps from home, less one")
    axes.figure.savefig("walker.png", dpi=120)
    print("written: walker.png")
