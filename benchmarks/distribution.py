"""Quantiles and CVaR of the return beside the naive ways to them, and how fast they are.

    python benchmarks/distribution.py

At the start of the paper's chain the naive way is the quantile of the returns of whole episodes. At states in
the middle of episodes nobody has returns of their own, and the naive way is k nearest neighbours: the
empirical quantile of the returns to go of the k visited states that are nearest, with the k that turns out
best, which nobody knows beforehand; ours is shown with three maps, at λ = 1 and at λ = 0.5. Errors are root
mean square over samples and states, against the truth: that of the exact chain, and of a walk whose returns
are normal,

    x_0 uniform in [0, 1], x_{t+1} = x_t − 0.1 until that is negative, y uniform in [0, 1] all the way,
    rewards N(y, (0.5 + x)²):      the return from (x, y) is N(n y, Σ (0.5 + x_t)²) over the n steps left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats
from scipy.spatial import cKDTree

import policyrisk as pr

Q = 0.05
NEIGHBOURS = (10, 30, 100, 300, 1000)
Tail = Callable[[pr.Trajectories], np.ndarray]  # from data to quantile and CVaR, (2,) or (2, n)


def rows() -> list[dict[str, Any]]:
    return [*_speed(), *_at_the_start(), *_at_states()]


def tail(values: np.ndarray, q: float = Q) -> np.ndarray:
    """The empirical quantile and CVaR along the last axis, (2, …)."""
    ordered = np.sort(values, axis=-1)
    n = ordered.shape[-1]
    weights = np.diff(np.minimum(np.arange(1, n + 1) / n, q), prepend=0.0)
    return np.stack([ordered[..., max(int(np.ceil(n * q - 1e-9)) - 1, 0)], ordered @ weights / q])


def _speed() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    steps, episodes = 200, 5000
    states = rng.random((episodes, 1, 2)) + np.cumsum(rng.normal(0, 0.02, (episodes, steps + 1, 2)), axis=1)
    states = np.abs(np.mod(states, 2.0) - 1.0).reshape(-1, 2)
    rewards = rng.normal(size=steps * episodes)
    data = pr.Trajectories(states, rewards, np.full(episodes, steps), np.ones(episodes, dtype=bool))
    tiles = pr.TileCoding(low=[0, 0], high=[1, 1], bins=[50, 50])
    estimator = pr.ReturnDistribution(tiles, thresholds=200)
    estimator.fit(data[:100])
    found = []
    for error_bars, limit in ((True, 5.0), (False, None)):
        began, busy = time.perf_counter(), time.process_time()
        dist = estimator.fit(data, error_bars=error_bars)
        took, busy = time.perf_counter() - began, time.process_time() - busy
        found.append(
            {
                "work": f"distribution, {len(rewards):.0e} transitions, 50×50 tiles, {dist.thresholds.size} "
                f"thresholds, {'with' if error_bars else 'no'} error bars",
                "ours": f"{took:.2f} s",
                "peer": "" if limit is None else f"bar {limit:g} s on 2 cores",
                "ratio": "" if limit is None else limit / took,
                "note": f"by the clock; {busy:.2f} s of processor time, load {os.getloadavg()[0]:.1f}",
            }
        )
    return found


def _row(work: str, ours: np.ndarray, peer: np.ndarray, name: str, note: str) -> dict[str, Any]:
    """Root mean square errors (2,) of quantile and CVaR."""
    told = [f"{100 * Q:g} % quantile ± {a:.3g}, CVaR ± {b:.3g}" for a, b in (ours, peer)]
    ratios = f"{peer[0] / ours[0]:.2f}, {peer[1] / ours[1]:.2f}"
    return {"work": work, "ours": told[0], "peer": f"{name}: {told[1]}", "ratio": ratios, "note": note}


def _at_the_start() -> list[dict[str, Any]]:
    walk = pr.domains.walk(30, 0.7)
    truth = np.array([walk.quantile(Q)[0], walk.cvar(Q)[0]])
    found = []
    for lam, episodes, samples in ((1.0, 500, 200), (0.9, 200, 20)):
        estimator = pr.ReturnDistribution(pr.Tabular(30), lam=lam)
        errors = []
        for seed in range(samples):
            data = walk.sample(0, episodes, seed=seed)
            dist = estimator.fit(data, error_bars=False)
            ours = [dist.quantile([0], Q)[0], dist.cvar([0], Q)[0]]
            errors.append([ours - truth, tail(data.returns()) - truth])
        ours, peer = np.sqrt(np.square(errors).mean(axis=0))
        found.append(
            _row(
                f"start of the paper's chain, {episodes} episodes, table, λ = {lam:g}",
                ours,
                peer,
                "quantile of the returns",
                f"{samples} samples"
                + (
                    "; each visit to the start counts, and those of one episode are alike"
                    if lam == 1.0
                    else "; bootstrapping learns of the start from all that came later"
                ),
            )
        )
    return found


def normal_walk(episodes: int, seed: int) -> pr.Trajectories:
    rng = np.random.default_rng(seed)
    x, y = rng.random(episodes), rng.random(episodes)
    lengths = np.floor(x / 0.1).astype(int) + 1
    step = np.arange((lengths + 1).sum()) - np.repeat(np.cumsum(lengths + 1) - lengths - 1, lengths + 1)
    states = np.column_stack([np.repeat(x, lengths + 1) - 0.1 * step, np.repeat(y, lengths + 1)])
    going = states[states[:, 0] >= 0]
    rewards = rng.normal(going[:, 1], 0.5 + going[:, 0])
    return pr.Trajectories(states, rewards, lengths, np.ones(episodes, dtype=bool))


def true_tail(states: np.ndarray) -> np.ndarray:
    """(2, n)."""
    x = states[:, :1] - 0.1 * np.arange(10)
    J = (x >= 0).sum(axis=1) * states[:, 1]
    std = np.sqrt(np.where(x >= 0, (0.5 + x) ** 2, 0.0).sum(axis=1))
    z = stats.norm.ppf(Q)
    return np.stack([J + std * z, J - std * stats.norm.pdf(z) / Q])


def _at_states() -> list[dict[str, Any]]:
    at = np.random.default_rng(0).uniform(0.02, 0.98, (300, 2))
    truth = true_tail(at)
    box = {"low": [0, 0], "high": [1, 1]}
    maps = {
        f"{name}, λ = {lam:g}": pr.ReturnDistribution(phi, thresholds=100, lam=lam)
        for name, phi in {
            "tiles 10×5": pr.TileCoding(**box, bins=[10, 5]),
            "degree 3": pr.Polynomial(3, **box),
            "radial bases 6×4": pr.RadialBasis.grid(**box, shape=(6, 4)),
        }.items()
        for lam in (1.0, 0.5)
    }
    found, samples = [], 10
    for episodes in (300, 3000):
        errors: dict[str, list[np.ndarray]] = {}
        for seed in range(samples):
            data = normal_walk(episodes, 1000 + seed)  # λ = 0.5 was settled on others
            said = {}
            for name, estimator in maps.items():
                dist = estimator.fit(data, error_bars=False)
                said[name] = np.stack([dist.quantile(at, Q), dist.cvar(at, Q)])
            tree, B = cKDTree(data.states[data.visited_rows]), data.returns_to_go()
            near = tree.query(at, k=min(max(NEIGHBOURS), len(B)))[1]
            said |= {f"{k} neighbours": tail(B[near[:, :k]]) for k in NEIGHBOURS if k <= near.shape[1]}
            for name, values in said.items():
                errors.setdefault(name, []).append(values - truth)
        rms = {name: np.sqrt(np.nanmean(np.square(each), axis=(0, 2))) for name, each in errors.items()}
        best = min((name for name in rms if name not in maps), key=lambda name: rms[name].sum())
        for name in maps:
            missing = float(np.isnan(errors[name]).mean())
            note = f"{samples} samples, {len(at)} states" + (f", {missing:.1%} nan" if missing else "")
            found.append(
                _row(
                    f"states of a normal walk, {episodes} episodes, {name}", rms[name], rms[best], best, note
                )
            )
    return found


if __name__ == "__main__":
    for row in rows():
        print(row)
