"""Exact mean and variance of a walk on a square, up to 10⁶ states, beside stormpy and quantecon.

The chain: m × m states, a step to each of the four neighbours with probability ¼, ended by leaving the
square; +1 a step. J is the mean number of steps and V its variance, by two solves with I − P. Since the
eigenvectors are sines, a sine transform gives both exactly: that is the truth for every error below.

Everybody runs in a process of its own, which reports its processor seconds (all of them use one thread, and
so a busy machine does not blur the ratio) and its peak memory. The peers come
from the package index into an environment of their own (.bench-venv), which this script makes; a
peer that takes longer than LIMIT by the clock is stopped, and the row says so.

- stormpy: two passes with the expected total reward, the second with the reward E[δ²]; the model is built
  from arrays, and only solving is timed. Of its solvers GMMXX was the quickest at 10⁴ states and EIGEN
  from 9·10⁴ on; their precision (1e-6) cannot be set from Python, so that they stop far earlier than we
  do. The native OPTIMISTIC_VALUE_ITERATION can be asked for 1e-12.
- quantecon: DiscreteDP.evaluate_policy. It demands a discount below 1, here 1 − 1e-12.

Solitaire Yahtzee (``examples/yahtzee.py``): the best policy, and the distribution of its score, beside the
figures that Verhoeff published.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
import scipy.sparse as sp

from policyrisk.markov import MarkovChain

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peers"
LIMIT = 300.0


def square_walk(m: int) -> sp.csr_array:
    """P of the walk on m × m states."""
    step = sp.diags_array([np.full(m - 1, 0.25)] * 2, offsets=[-1, 1])
    return sp.csr_array(sp.kronsum(step, step, format="csr"))


def second_reward(P: sp.csr_array, J: np.ndarray) -> np.ndarray:
    """E[δ²], δ = 1 + J(y) − J(x), with J = 0 at the end."""
    rows = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    inside = np.bincount(rows, P.data * (1.0 + J[P.indices] - J[rows]) ** 2, P.shape[0])
    return inside + (1.0 - P.sum(axis=1)) * (1.0 - J) ** 2


def truth(m: int) -> tuple[np.ndarray, np.ndarray]:
    """J and V by the sine transform, which diagonalises I − P."""
    # 1 − (cos 2a + cos 2b)/2, without the cancellation.
    sine = np.sin(0.5 * np.pi * np.arange(1, m + 1) / (m + 1)) ** 2
    eigenvalues = sine[:, None] + sine[None, :]

    def solve(b: np.ndarray) -> np.ndarray:
        transformed = scipy.fft.dstn(b.reshape(m, m), type=1, norm="ortho") / eigenvalues
        return scipy.fft.idstn(transformed, type=1, norm="ortho").ravel()

    J = solve(np.ones(m * m))
    return J, solve(second_reward(square_walk(m), J))


def run_ours(path: str) -> dict[str, float]:
    """In the child process: both solves, set-up included."""
    MarkovChain(square_walk(160), np.ones(160 * 160)).mean()  # compiles, or loads what was compiled
    P = load(path)
    start = time.process_time()
    chain = MarkovChain(P, np.ones(P.shape[0]))
    built = time.process_time() - start
    J, V = chain.mean(), chain.variance()
    seconds = time.process_time() - start - built
    peak = peak_megabytes()
    m = int(np.sqrt(P.shape[0]))
    middle = m // 2 * m + m // 2
    return {"build": built, "solve": seconds, "J": J[middle], "V": V[middle], "megabytes": peak}


def run_yahtzee() -> dict[str, float]:
    """In the child process: the best policy, its chain, and the distribution of its score."""
    sys.path.insert(0, str(ROOT / "examples"))
    import yahtzee

    yahtzee.solve(yahtzee.LAST, np.zeros(yahtzee.CARDS))  # compiles, or loads what was compiled
    start = time.process_time()
    value = yahtzee.values()
    solved = time.process_time() - start
    chain = yahtzee.score_chain(value)
    built = time.process_time() - start - solved
    score = chain.distribution(0)
    told = {"solve": solved, "build": built, "score": time.process_time() - start - solved - built}
    told |= {"mean": score.mean, "std": score.std, "median": float(score.quantile(0.5)), "cards": chain.n}
    return {**told, "branches": chain.branches.reward.size, "megabytes": peak_megabytes()}


def peak_megabytes() -> float:
    """Peak resident memory of this process alone; getrusage would start from its parent's (Linux)."""
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024.0


def load(path: str) -> sp.csr_array:
    with np.load(path) as file:
        n = len(file["indptr"]) - 1
        return sp.csr_array((file["data"], file["indices"], file["indptr"]), shape=(n, n))


def peers_python() -> Path:
    """The peers' interpreter, made when it is missing or its list has changed."""
    home = ROOT / ".bench-venv"
    wanted = PEERS / "requirements-exact.txt"
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)]
        subprocess.run(install, check=True)
        stamp.write_text(wanted.read_text())
    return python


def child(command: list[str]) -> dict[str, float] | None:
    """The JSON of the last line that the command prints, or None if it took longer than LIMIT."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=LIMIT, env=environment
        )
    except subprocess.TimeoutExpired:
        return None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{command[1:3]} failed:\n{error.stderr[-2000:]}") from error
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def rows() -> list[dict[str, Any]]:
    """For benchmarks/run.py."""
    python = str(peers_python())
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for m, peers in (
            (1000, ["stormpy EIGEN", "quantecon"]),
            (300, ["stormpy EIGEN", "quantecon"]),
            (100, ["stormpy GMMXX", "stormpy NATIVE:OPTIMISTIC_VALUE_ITERATION", "quantecon"]),
        ):
            P = square_walk(m)
            path = str(Path(folder) / f"{m}.npz")
            np.savez(path, data=P.data, indices=P.indices, indptr=P.indptr)
            J, V = truth(m)
            middle = m // 2 * m + m // 2
            exact = (J[middle], V[middle])
            del P, J, V
            ours = child([sys.executable, str(Path(__file__).resolve()), path])
            for peer in peers:
                name, _, solver = peer.partition(" ")
                command = [python, str(PEERS / "exact_peer.py"), name, "--chain", path]
                theirs = child([*command, "--solver", solver, "--precision", "1e-12"] if solver else command)
                table.append(row(m, ours, peer, theirs, exact))
    found = child([sys.executable, str(Path(__file__).resolve()), "yahtzee"])
    if found is None:
        raise RuntimeError(f"Yahtzee took longer than {LIMIT:.0f} s")
    table.append(
        {
            "work": f"Yahtzee, {found['cards']:,.0f} cards: the best policy, the distribution of its score",
            "ours": f"mean {found['mean']:.4f}, std {found['std']:.4f}, median {found['median']:.0f}",
            "peer": "published (Verhoeff): 254.5896, 59.6117, 248",
            "ratio": "",
            "note": f"{found['solve']:.0f} s for the policy, {found['build']:.0f} s for "
            f"{found['branches']:,.0f} branches, {found['score']:.0f} s for the distribution; "
            f"{found['megabytes']:,.0f} MB",
        }
    )
    return table


def row(
    m: int,
    ours: dict[str, float] | None,
    peer: str,
    theirs: dict[str, float] | None,
    exact: tuple[float, float],
) -> dict[str, Any]:
    if ours is None:
        raise RuntimeError(f"our own solve of {m} × {m} states took longer than {LIMIT:.0f} s")

    def figures(run: dict[str, float]) -> str:
        return f"{run['solve']:.2f} s, {run['megabytes']:.0f} MB"

    def errors(run: dict[str, float]) -> str:
        J, V = (abs(run[key] / value - 1.0) for key, value in zip("JV", exact, strict=True))
        return f"{J:.0e} in J, {V:.0e} in V"

    note = f"relative error at the middle state: ours {errors(ours)}"
    if theirs is None:
        return {
            "work": f"J and V of {m * m:,} states",
            "ours": figures(ours),
            "peer": f"{peer}: stopped after {LIMIT:.0f} s by the clock",
            "ratio": "",
            "note": note,
        }
    return {
        "work": f"J and V of {m * m:,} states",
        "ours": figures(ours),
        "peer": f"{peer}: {figures(theirs)}, building {theirs['build']:.2f} s apart",
        "ratio": f"{theirs['solve'] / ours['solve']:,.1f}×",
        "note": f"{note}; the peer's {errors(theirs)}",
    }


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(run_yahtzee() if sys.argv[1] == "yahtzee" else run_ours(sys.argv[1])))
        return
    for entry in rows():
        print(" | ".join(f"{key}: {value}" for key, value in entry.items()))


if __name__ == "__main__":
    main()
