"""Features from a network beside all others, by their score on held-out episodes.

    python benchmarks/networks.py            all of it: about five minutes
    python benchmarks/networks.py system     one of system, cart_pole, hopper

Half of the episodes are fitted, the other half is held out. The features are the last hidden layer (64) of

    critic    the value network of the model that made the policy: Stable-Baselines3's PPO, 20,000 steps on
              CartPole-v1, 20,000 on Hopper-v5 (11 coordinates) with normalised observations
    returns   a network that was fitted to the returns to go of the fitted half alone

whitened, with and without a line in the coordinates beside them, against the candidates that
``policyrisk evaluate`` tries for such states (:func:`policyrisk.evaluation.mixture.candidates`); of
these the row has the one that the held-out half itself likes best, which favours them. All are fitted by
LSTD with the direct variance and λ = 0.9. The ten-dimensional system is the truth suite's, x' = Ax + w with a
quadratic cost, where poly:2 is exact.

Scores are those of ``RiskFunction.score``: the mean squared error, and Dawid and Sebastiani's, which judges J
and V together; smaller is better for both, and the ratio is of squared errors, the others' to the network's.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import policyrisk as pr
from policyrisk.errors import PolicyRiskError, PolicyRiskWarning
from policyrisk.evaluation.mixture import candidates
from policyrisk.features.spelling import data_box
from policyrisk.passes.survey import Survey


def system() -> dict[str, Any]:
    """Ten coordinates."""
    from truth_simulators import linear_quadratic

    task = linear_quadratic()
    return {"data": task.sample(2000, seed=1), "discount": task.discount}


def cart_pole() -> dict[str, Any]:
    """PPO's own policy on CartPole-v1, by its probabilities."""
    from stable_baselines3 import PPO

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.zip"
        model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, batch_size=128, n_epochs=5, seed=0, device="cpu")
        model.learn(20_000).save(path)
        policy = pr.sb3_policy(path, deterministic=False)
        data = pr.rollout("CartPole-v1", policy, episodes=600, seed=1)
        return {"data": data, "discount": 0.99, "critic": pr.features.from_sb3(path)}


def hopper() -> dict[str, Any]:
    """PPO's own policy on Hopper-v5, whose observations were normalised in training."""
    import gymnasium as gym
    import mujoco  # noqa: F401  (asked for here, before anything is trained)
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gym.make("Hopper-v5")]))
    model = PPO("MlpPolicy", env, n_steps=1024, batch_size=128, n_epochs=5, seed=0, device="cpu")
    model.learn(20_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.zip"
        model.save(path)
        policy = pr.sb3_policy(path, deterministic=False, seed=2, normalisation=env)
        data = pr.rollout("Hopper-v5", policy, episodes=400, seed=1)
        return {"data": data, "discount": 0.99, "critic": pr.features.from_sb3(path, normalisation=env)}


def returns_network(data: pr.Trajectories, discount: float) -> pr.TorchFeatures:
    """A network fitted to the returns to go of complete episodes."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, B = [], []
    for k in np.flatnonzero(data.terminated):
        episode = data[int(k) : int(k) + 1]
        to_go = np.zeros(len(episode.rewards) + 1)
        for t in range(len(episode.rewards) - 1, -1, -1):
            to_go[t] = episode.rewards[t] + discount * to_go[t + 1]
        x.append(episode.states[:-1])
        B.append(to_go[:-1])
    states, values = np.concatenate(x), np.concatenate(B)
    stats = {"mean": states.mean(0), "var": states.var(0), "epsilon": 1e-8, "clip": 10.0}
    scaled = ((states - stats["mean"]) / np.sqrt(stats["var"] + 1e-8)).clip(-10, 10)
    u = torch.tensor(scaled, dtype=torch.float32)
    y = torch.tensor((values - values.mean()) / values.std(), dtype=torch.float32)[:, None]
    net = nn.Sequential(nn.Linear(u.shape[1], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    steps = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(2500):
        some = torch.randint(len(u), (512,))
        steps.zero_grad()
        ((net(u[some]) - y[some]) ** 2).mean().backward()
        steps.step()
    return pr.TorchFeatures(net.double(), normalisation=stats)


def score(phi: Any, fitted: pr.Trajectories, held_out: pr.Trajectories, discount: float) -> Any:
    """The score of an estimate, None where there is none."""
    try:
        risk = pr.LSTD(phi, lam=0.9, discount=discount, variance="direct").fit(fitted, error_bars=False)
        return risk.score(held_out)
    except (PolicyRiskError, np.linalg.LinAlgError):
        return None


def judged(found: Any) -> str:
    """Dawid and Sebastiani's score, over the steps that have one."""
    text = f"DS {found.dawid_sebastiani_positive.value:.4g}"
    return text + (f" (V ≤ 0 at {found.not_positive:.2%} of steps)" if found.not_positive else "")


def measure(name: str) -> list[dict[str, Any]]:
    given = globals()[name]()
    data, discount = given["data"], given["discount"]
    fitted, held_out = data[: len(data) // 2], data[len(data) // 2 :]
    survey = Survey.of(fitted, seed=0)
    names = [f"x{d}" for d in range(survey.dim)]
    low, high, _ = data_box(survey)
    others = {}
    for spelling in candidates(survey, fitted.transitions):
        others[str(spelling)] = score(spelling.build(names, survey, low, high), fitted, held_out, discount)
    others = {text: found for text, found in others.items() if found is not None}
    best = min(others, key=lambda text: others[text].mse.value)
    surest = min(others, key=lambda text: others[text].dawid_sebastiani.value)
    surest = surest if np.isfinite(others[surest].dawid_sebastiani.value) else best
    networks = {"returns": returns_network(fitted, discount)}
    if "critic" in given:
        networks["critic"] = given["critic"]
    visited = fitted.states[fitted.visited_rows]
    line = pr.Polynomial(1, low, high)
    found_rows = []
    for how, network in networks.items():
        white = network.whitened(visited)
        for phi, what in ((white, how), (pr.features.Joint([white, line]), f"{how} and a line")):
            found = score(phi, fitted, held_out, discount)
            about = f"{survey.dim} coordinates, {len(fitted)} episodes"
            found_rows.append(
                {
                    "work": f"{name}, {about}: network, {what} ({phi.size})",
                    "ours": f"mse {found.mse.value:.4g}, {judged(found)}",
                    "peer": f"{best}: mse {others[best].mse.value:.4g}; {surest}: {judged(others[surest])}",
                    "ratio": others[best].mse.value / found.mse.value,
                    "note": f"best of {len(others)} others by the held-out half itself; mse ± "
                    f"{found.mse.standard_error:.2g} and {others[best].mse.standard_error:.2g}",
                }
            )
    return found_rows


def rows(names: tuple[str, ...] = ("system", "cart_pole", "hopper")) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    found = []
    for name in names:
        try:
            found += measure(name)
        except ImportError as error:  # Stable-Baselines3 or MuJoCo
            print(f"{name} left out: {error}")
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore", PolicyRiskWarning)
    print(json.dumps(rows(tuple(sys.argv[1:]) or ("system", "cart_pole", "hopper")), indent=1))
