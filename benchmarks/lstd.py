"""LSTD(λ): sums from trajectories, and their error bars, beside DGEMM and beside plain NumPy.

One-core figures come from a child process that holds BLAS and Numba to one thread. Each figure is the best
of several, since other work on the machine can only slow a run down.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from policyrisk.control import pinball_policy
from policyrisk.data import Trajectories
from policyrisk.domains import Pinball
from policyrisk.features import Features, Fourier, TileCoding
from policyrisk.lstd import LSTD
from policyrisk.lstd.influences import sandwich
from policyrisk.lstd.residuals import ResidualPass
from policyrisk.risk import Provenance, RiskFunction
from policyrisk.risk.support import Support

TILES = TileCoding(low=[0, 0], high=[1, 1], bins=[50, 50], dims=[0, 1])
DENSE = Fourier(order=15, low=[0, 0], high=[1, 1])  # 256 features
LAM = 0.9
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def walk(episodes: int, steps: int, size: float, seed: int = 0) -> Trajectories:
    """Walks in the unit square, reflected at its sides, with steps of the given standard deviation."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(0.0, size, (episodes, steps + 1, 2))
    moves[:, 0] = rng.random((episodes, 2))
    states = np.abs((np.cumsum(moves, axis=1) + 1.0) % 2.0 - 1.0).reshape(-1, 2)
    rewards = rng.normal(-1.0, 0.5, episodes * steps)
    return Trajectories(states, rewards, np.full(episodes, steps), rng.random(episodes) < 0.9)


def pinball() -> Trajectories:
    """The pinball experiment's trajectories, with the policy that ships."""
    game = Pinball("simple", noise=0.03)
    starts, noise = np.random.SeedSequence(0).spawn(2)
    return game.rollout(pinball_policy("simple"), game.sample_starts(3000, starts), noise)


def best(work: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def dgemm_rate() -> float:
    """Flop/s of a product of two matrices of 2,000²."""
    left, right = np.random.default_rng(0).random((2, 2000, 2000))
    return 2 * 2000**3 / best(lambda: left @ right, 3)


def sums(data: Trajectories, features: Any) -> Callable[[], object]:
    """One pass over the data."""
    return lambda: LSTD(features, lam=LAM).equations(data)


def outer_product_loop(data: Trajectories, features: Any, transitions: int) -> float:
    """Seconds a transition takes where A, b, D and e are summed by np.outer over all features."""
    phi = features(data.states[: transitions + 1])
    phi = phi.toarray() if sp.issparse(phi) else phi
    A, D = np.zeros((2, features.size, features.size))
    b, e = np.zeros((2, features.size))
    z = np.zeros(features.size)
    start = time.perf_counter()
    for t in range(transitions):
        r = data.rewards[t]
        z = LAM * z + phi[t]
        A += np.outer(z, phi[t] - phi[t + 1])
        b += z * r
        D += np.outer(z, 2 * r * phi[t + 1])
        e += z * r**2
    return (time.perf_counter() - start) / transitions


def bandwidth() -> float:
    """Bytes a second that one thread reads from memory, of an array of 400 MB."""
    array = np.ones(50_000_000)
    return array.nbytes / best(array.sum, 5)


def measure() -> dict[str, float]:
    """The speeds of this process, with however many threads it has: transitions per second, flop/s."""
    cases: dict[str, tuple[Trajectories, Features, int]] = {  # and how often in a turn
        "tiles": (walk(10_000, 200, 0.005), TILES, 2),
        "fast tiles": (walk(10_000, 200, 0.02), TILES, 1),
        "pinball": (pinball(), TILES, 6),
        "dense": (walk(200, 200, 0.02), DENSE, 4),
    }
    for data, features, _ in cases.values():
        LSTD(features, lam=LAM).equations(data[:2])  # compiled before it is timed
    found = {"bandwidth": bandwidth(), **dict.fromkeys(["dgemm", *cases], 0.0)}
    for _ in range(4):  # in turns, so that all of them meet the same disturbances
        found["dgemm"] = max(found["dgemm"], dgemm_rate())
        for name, (data, features, times) in cases.items():
            found[name] = max(found[name], data.transitions / best(sums(data, features), times))
    return found


def centres() -> npt.NDArray[np.float64]:
    """The tiles' centres, (2500, 2)."""
    axis = (np.arange(50) + 0.5) / 50
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def error_bars() -> float:
    """Seconds from the equations to the standard error of the variance at all 2,500 tiles' centres."""
    data = walk(3_000, 200, 0.02)
    equations = LSTD(TILES, lam=LAM).equations(data)
    weights = equations.solve()
    support = Support(equations.visits, equations.feature_episodes, equations.episodes, None, 1.0)
    risk = RiskFunction(
        TILES,
        TILES,
        weights.mean,
        weights.second,
        "second-moment",
        support,
        support,
        Provenance("LSTD", LAM, 1.0),
    )

    def work() -> npt.NDArray[np.float64]:
        bars = sandwich(
            ResidualPass.of(LSTD(TILES, lam=LAM).view, weights, direct=False)(data, 0), equations, weights
        )
        return replace(risk, error_bars=bars).standard_error(centres(), of="variance")

    return best(work, 5)


def pinball_map() -> dict[str, float]:
    """Seconds that the pinball experiment takes without and with the error bars at all centres."""
    data, lstd = pinball(), LSTD(TILES, lam=LAM)
    lstd.fit(data[:20])
    states = np.column_stack([centres(), np.zeros((2500, 2))])
    return {
        "solved": best(lambda: lstd.solve(lstd.equations(data)), 5),
        "fitted": best(lambda: lstd.fit(data).standard_error(states, of="variance"), 5),
    }


class Stream:
    """A re-iterable stream of batches that are made when they are asked for."""

    def __init__(self, transitions: int) -> None:
        self.batches = transitions // 1_000_000

    def __iter__(self) -> Iterator[Trajectories]:
        return (walk(5_000, 200, 0.005, seed) for seed in range(self.batches))


def peak_megabytes(transitions: int) -> float:
    """Peak resident size after a pass over a stream."""
    equations = LSTD(TILES, lam=LAM).equations(Stream(transitions))
    assert equations.transitions == transitions
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_child(what: str, environment: dict[str, str], script: str = __file__) -> Any:
    """The result of ``python lstd.py what``, or of another script, in a process of its own."""
    done = subprocess.run(
        [sys.executable, script, *what.split()],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def rows(streamed: int = 100_000_000) -> list[dict[str, str]]:
    """The table: what was done, our figure, what it is compared with, and the ratio."""
    one, all_threads = in_child("measure", ONE_THREAD), in_child("measure", {})
    loop = outer_product_loop(walk(1, 60, 0.005), TILES, 60)
    dense_loop = outer_product_loop(walk(1, 2000, 0.005), DENSE, 2000)
    bytes_read = 8 * (2 + 1)  # a transition: its state and its reward
    products = 3 * 2 * DENSE.size**2  # flop a transition that DGEMM would need: A, D and gram
    bar = 5e6 * one["dgemm"] / 50e9
    seconds, game = in_child("bars", {}), in_child("pinball", {})
    short, long = in_child("memory 10000000", {}), in_child(f"memory {streamed}", {})
    million = "{:.2f} M transitions/s".format

    def row(work: str, ours: str, peer: str, ratio: float, note: str = "") -> dict[str, str]:
        return {"work": work, "ours": ours, "peer": peer, "ratio": f"{ratio:,.2f}", "note": note}

    return [
        row(
            "LSTD(0.9), 50×50 tiles, 2·10⁶ transitions, one core",
            million(one["tiles"] / 1e6),
            f"bar {bar / 1e6:.1f} M/s at DGEMM {one['dgemm'] / 1e9:.0f} GFLOP/s",
            one["tiles"] / bar,
            "a walk with steps of 0.25 tiles",
        ),
        row(
            "the same, four times the pace",
            million(one["fast tiles"] / 1e6),
            f"bar {bar / 1e6:.1f} M/s",
            one["fast tiles"] / bar,
            "steps of one tile: 86% of the steps enter another tile, above 36%; no bar was set for it",
        ),
        row(
            "the same, the pinball experiment's 106,000 transitions",
            million(one["pinball"] / 1e6),
            f"bar {bar / 1e6:.1f} M/s",
            one["pinball"] / bar,
            "94% of the steps enter another tile; most of it is the zeroing of 150 MB of sums",
        ),
        row(
            "the same, beside NumPy's np.outer per transition",
            million(one["tiles"] / 1e6),
            f"{1 / loop:.1f} transitions/s",
            one["tiles"] * loop,
        ),
        row(
            "the same, beside the memory's bandwidth",
            f"{one['tiles'] * bytes_read / 1e6:.0f} MB/s of states and rewards",
            f"{one['bandwidth'] / 1e9:.1f} GB/s read by one thread",
            one["tiles"] * bytes_read / one["bandwidth"],
            "the limit if nothing were computed; a visit is added to every later tile that its trace reaches",
        ),
        row(
            "LSTD(0.9), 256 dense features, one core",
            f"{one['dense'] / 1e6:.3f} M transitions/s",
            f"{one['dgemm'] / products / 1e6:.3f} M/s: the products A, D and gram alone, by DGEMM",
            one["dense"] * products / one["dgemm"],
            "features and traces included; of the symmetric gram we compute half: counted so, the ratio is "
            f"{one['dense'] * products / one['dgemm'] * 2.5 / 3:.2f}",
        ),
        row(
            "the same, beside NumPy's np.outer per transition",
            f"{one['dense'] / 1e6:.3f} M transitions/s",
            f"{1 / dense_loop:,.0f} transitions/s",
            one["dense"] * dense_loop,
        ),
        row(
            "all threads, 50×50 tiles",
            million(all_threads["tiles"] / 1e6),
            million(one["tiles"] / 1e6),
            all_threads["tiles"] / one["tiles"],
            f"{os.cpu_count()} cores",
        ),
        row(
            "all threads, 256 dense features",
            million(all_threads["dense"] / 1e6),
            million(one["dense"] / 1e6),
            all_threads["dense"] / one["dense"],
            f"{os.cpu_count()} cores",
        ),
        row("error bars at 2,500 tiles, 3,000 episodes", f"{seconds:.2f} s", "bar 3 s", 3.0 / seconds),
        row(
            "pinball, 3,000 trajectories: equations and their solution",
            f"{game['solved']:.2f} s",
            "bar 0.5 s",
            0.5 / game["solved"],
        ),
        row(
            "the same with error bars at 2,500 tiles",
            f"{game['fitted']:.2f} s",
            "bar 3 s more",
            3.0 / (game["fitted"] - game["solved"]),
        ),
        row(
            f"{streamed:.0e} transitions streamed: peak resident size",
            f"{long:.0f} MB",
            f"{short:.0f} MB for 1e+07",
            long / short,
            "flat: the ratio is 1",
        ),
    ]


def main() -> None:
    match sys.argv[1:]:
        case ["measure"]:
            print(json.dumps(measure()))
        case ["bars"]:
            print(json.dumps(error_bars()))
        case ["pinball"]:
            print(json.dumps(pinball_map()))
        case ["memory", transitions]:
            print(json.dumps(peak_megabytes(int(transitions))))
        case _:
            for row in rows():
                print(f"{row['work']}: {row['ours']} | {row['peer']} | ratio {row['ratio']} | {row['note']}")


if __name__ == "__main__":
    main()
