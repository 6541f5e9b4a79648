"""Actions a second in pinball's simple maze, uniformly random actions, on one core.

    python benchmarks/pinball.py

Against a compiled loop over all sub-steps and edges (the twin of the tests), and pynball-rl from PyPI, which
this script installs into an environment of its own, .bench-venv-pinball. The three take turns, and each is
represented by its fastest turn, since other work on the machine only ever slows one down.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

from policyrisk._core.random import keys
from policyrisk.domains.pinball import Pinball, UniformPolicy

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peers"
TURNS = 7
EPISODES = 400
STEPS = 5_000  # at most, an episode


def peer_python() -> Path:
    """The interpreter of the peer's environment, which is made where it is missing or out of date."""
    home = ROOT / ".bench-venv-pinball"
    wanted = PEERS / "requirements-pinball.txt"
    stamp = home / "installed.txt"
    python = home / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--requirement", str(wanted)], check=True)
        stamp.write_text(wanted.read_text())
    return python


class Peer:
    """pynball-rl in a process of its own, which answers how long its actions took."""

    def __init__(self) -> None:
        command = [str(peer_python()), str(PEERS / "pynball_rate.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def rate(self, actions: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{actions}\n")
        self.process.stdin.flush()
        return actions / float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def plain_rate(pinball: Pinball, actions: int) -> float:
    from pinball_twin import edges_of, plain_random_walk

    maze = pinball.maze
    edges = edges_of([polygon.tolist() for polygon in maze.obstacles])
    where = (edges, maze.ball_radius, *maze.target, maze.target_radius, maze.starts[0], 5, *keys(0))
    start = time.perf_counter()
    plain_random_walk(*where, actions)
    return actions / (time.perf_counter() - start)


def sums_rate(pinball: Pinball) -> float:
    """Episodes whose sums of rewards are kept."""
    starts = np.repeat(pinball.maze.starts[:1], EPISODES, axis=0)
    start = time.perf_counter()
    out = pinball.returns(UniformPolicy(5), starts, seed=0, max_steps=STEPS)
    return float(out.lengths.sum()) / (time.perf_counter() - start)


def record_rate(pinball: Pinball) -> float:
    """Episodes recorded as Trajectories."""
    starts = np.repeat(pinball.maze.starts[:1], EPISODES, axis=0)
    start = time.perf_counter()
    out = pinball.rollout(UniformPolicy(5), starts, seed=0, max_steps=STEPS)
    return out.transitions / (time.perf_counter() - start)


def measure() -> dict[str, float]:
    """The best rate of each, in actions a second, on one core."""
    sys.path.insert(0, str(ROOT / "tests"))
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    still = Pinball("simple", noise=0.0, actions=5)
    noisy = Pinball("simple", noise=0.03, actions=5)
    hard = Pinball("hard", noise=0.0, actions=5)
    peer = Peer()
    turns: dict[str, Callable[[], float]] = {
        "ours": lambda: sums_rate(still),
        "noise": lambda: sums_rate(noisy),
        "recorded": lambda: record_rate(still),
        "hard": lambda: sums_rate(hard),
        "plain": lambda: plain_rate(still, 50_000),
        "pynball-rl": lambda: peer.rate(500),
    }
    best = dict.fromkeys(turns, 0.0)
    for turn in turns.values():
        turn()  # compiles
    for _ in range(TURNS):
        for name, turn in turns.items():
            best[name] = max(best[name], turn())
    peer.close()
    numba.set_num_threads(threads)
    return best


def rows() -> list[dict[str, Any]]:
    """For benchmarks/run.py."""
    best = measure()

    def million(name: str) -> str:
        return f"{best[name] / 1e6:.2f} M actions/s"

    def row(work: str, ours: str, other: str, bar: str, digits: int = 0) -> dict[str, Any]:
        return {
            "work": work,
            "ours": million(ours),
            "peer": f"{other}: {best[other] / 1e6:.4g} M actions/s",
            "ratio": f"{best[ours] / best[other]:,.{digits}f}×",
            "note": bar,
        }

    one = "random actions, no noise, one core"
    return [
        row(f"pinball simple, {one}", "ours", "pynball-rl", "bar 1,200×"),
        row("the same", "ours", "plain", "a compiled loop over all sub-steps and edges; bar 25×", 1),
        row("the same with noise 0.03", "noise", "ours", "bar 0.6×", 2),
        row("the same, recorded as Trajectories", "recorded", "ours", "copies and checks included", 2),
        row(f"pinball hard, {one}", "hard", "ours", "85 edges, the ball smaller", 2),
    ]


if __name__ == "__main__":
    for line in rows():
        print(" | ".join(str(line[key]) for key in ("work", "ours", "peer", "ratio", "note")))
