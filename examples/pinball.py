"""A risk map of the pinball maze: from where is the way to the target uncertain?

A ball is pushed through a maze of obstacles, each push costs 1, pushes are noisy, and the episode ends at the
target. The policy is the learned one that ships with the package.
"""

import numpy as np

import policyrisk as pr
from policyrisk.control import pinball_policy

if __name__ == "__main__":
    pinball, policy = pr.domains.Pinball("simple", noise=0.03), pinball_policy()
    data = pinball.rollout(policy, pinball.sample_starts(3000, seed=0), seed=1)
    print(data)

    # 50 x 50 tiles on the position. They do not see the velocity, and average over it as the ball passes.
    tiles = pr.TileCoding(low=[0, 0], high=[1, 1], bins=[50, 50], dims=[0, 1])
    risk = pr.LSTD(tiles, lam=0.9, variance="direct").fit(data)
    print(risk.summary(data.starts()))

    axes = pr.plotting.plot_map(
        risk,
        "std",
        low=[0, 0, -1, -1],
        high=[1, 1, 1, 1],
        shape=(50, 50),
        names=["x", "y", "speed in x", "speed in y"],
    )
    for obstacle in pinball.maze.obstacles:
        axes.fill(*obstacle.T, color="0.35", zorder=2)
    axes.images[0].set_clim(0, 6)  # or a few rarely visited tiles outshine the rest
    axes.plot(*pinball.maze.target, marker="*", color="white", markersize=14, zorder=3)
    axes.set(ylim=(1, 0), aspect="equal")  # mazes are drawn from the top, like pictures
    axes.figure.savefig("pinball.png", dpi=120)
    print("written: pinball.png")

    # The check that a simulator allows: 400 fresh episodes from rest at each of three places.
    places = np.array([[0.2, 0.9], [0.1, 0.1], [0.9, 0.9]])
    at_rest = np.hstack([places, np.zeros((3, 2))])
    truth = pr.monte_carlo(pinball, policy, at_rest, episodes=400, seed=2)
    for i, place in enumerate(places):
        print(
            f"from {place}: mean {risk.mean(at_rest)[i]:.1f}, std {risk.std(at_rest)[i]:.1f}; "
            f"simulated from rest {truth.mean[i]:.1f} and {truth.std[i]:.1f}"
        )
