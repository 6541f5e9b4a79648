"""Policies for Gymnasium's CartPole, and how risky they are.

A state is (position, velocity, angle, spin) of the cart and its pole; action 1 pushes to the right, 0 to the
left. Each step earns 1 until the pole falls or the cart leaves the track; after 500 steps the time limit cuts
in. A policy is a function of a batch of observations, or an object with ``predict``, as Stable-Baselines3's
models are: ``pr.rollout("CartPole-v1", PPO.load("model"), episodes=300)`` works the same.
"""

import numpy as np

import policyrisk as pr


def upright(states):
    """Push to the side that the pole is falling to, counting its speed."""
    _, _, angle, spin = np.asarray(states).T
    return (angle + 0.5 * spin > 0).astype(int)


def careless(states):
    """The same, looking at the angle alone."""
    return (np.asarray(states)[:, 2] > 0).astype(int)


class Clumsy:
    """Upright, but three pushes in ten go to a random side."""

    def __init__(self, slips=0.3, seed=0):
        self.slips, self.rng = slips, np.random.default_rng(seed)

    def predict(self, observations, deterministic=True):
        """Actions, and no hidden state."""
        slipped = self.rng.random(len(observations)) < self.slips
        anything = self.rng.integers(2, size=len(observations))
        return np.where(slipped, anything, upright(observations)), None


if __name__ == "__main__":
    risks, starts = {}, []
    for name, policy in {"clumsy": Clumsy(), "careless": careless}.items():
        data = pr.rollout("CartPole-v1", policy, episodes=300, seed=0)
        # Cosines of the four coordinates, up to order 4 together: 70 of them, over the extent of the data.
        box = {"low": data.states.min(axis=0), "high": data.states.max(axis=0)}
        risk = pr.LSTD(pr.Fourier(order=4, total=4, **box), lam=0.9, variance="direct").fit(data)
        print(f"{name}: {data}\n{risk.summary(data.starts())}\n")
        risks[name] = risk
        starts.append(data.starts())

    # Two criteria, two answers: the careless one is reliable, and reliably bad.
    for criterion in (pr.criteria.Sharpe(), pr.criteria.MeanMinusStd(1.0)):
        comparison = pr.compare(risks, np.concatenate(starts), criterion)
        print(f"{comparison}\n")
