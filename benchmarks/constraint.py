"""The constrained solve: direct against the paper's iteration, to the same residual.

100 features (radial basis functions, 10 × 10) and 1024 constraints (the cells of a 32 × 32 grid that is
crossed to the far corner): a quarter to two fifths of the variances are negative without the constraint,
and 20 to 30 constraints end up active. The iteration's work depends on how far C is from symmetric, so
a chain with random features, where it is nearly symmetric, stands beside it. Times are the best of
several runs in a process of its own with one BLAS thread: on matrices this small a second one only waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from policyrisk.equations.constraint import ConstrainedSolution, solve_constrained

SIDE, CENTRES, TOL = 32, 10, 1e-12


def grid_problem(lam: float, noise: float) -> tuple[np.ndarray, ...]:
    """C, d, H, g and gram of the grid, with 25 features for the mean."""
    rng = np.random.default_rng(0)
    n = SIDE * SIDE
    x, y = np.divmod(np.arange(n), SIDE)
    P = sp.csr_array((n, n))
    for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        probability = (1 - noise) / 2 if dx + dy > 0 else noise / 2
        to = np.clip(x + dx, 0, SIDE - 1) * SIDE + np.clip(y + dy, 0, SIDE - 1)
        stays_at_goal = (np.arange(n) == n - 1) & (to == n - 1)
        P = P + sp.csr_array((np.where(stays_at_goal, 0, probability), (np.arange(n), to)), shape=(n, n))
    r = -1 - 5 * (rng.random(n) < 0.1) * rng.exponential(size=n)
    return equations(P, r, bumps(x, y, 5), bumps(x, y, CENTRES), lam)


def random_problem(lam: float) -> tuple[np.ndarray, ...]:
    """1000 states with 5 successors each, 300 and 100 random features."""
    rng = np.random.default_rng(0)
    n = 1000
    P, r = random_chain(rng, n, stop=(0.05, 1.0))
    features = (np.hstack([np.ones((n, 1)), rng.normal(size=(n, k - 1))]) for k in (300, 100))
    return equations(P, r, *features, lam)


def random_chain(
    rng: np.random.Generator, n: int, stop: tuple[float, float]
) -> tuple[sp.csr_array, np.ndarray]:
    to = rng.integers(n, size=(n, 5))
    probability = rng.dirichlet(np.ones(5), size=n) * (1 - rng.uniform(*stop, size=(n, 1)))
    P = sp.csr_array((probability.ravel(), (np.repeat(np.arange(n), 5), to.ravel())), shape=(n, n))
    P.sum_duplicates()
    return P, np.abs(rng.standard_t(3, size=n))


def equations(
    P: sp.csr_array, r: np.ndarray, Phi_J: np.ndarray, Phi_M: np.ndarray, lam: float
) -> tuple[np.ndarray, ...]:
    """The exact projected equations of sec. 4.3 and the constraint at every state."""
    n = r.size
    q = splu(sp.csc_array(sp.eye_array(n) - P.T)).solve(np.full(n, 1 / n))
    traces = splu(sp.csc_array(sp.eye_array(n) - lam * P)).solve
    A = Phi_J.T @ (q[:, None] * traces(Phi_J - P @ Phi_J))
    J = Phi_J @ np.linalg.solve(A, Phi_J.T @ (q * traces(r)))
    C = Phi_M.T @ (q[:, None] * traces(Phi_M - P @ Phi_M))
    d = Phi_M.T @ (q * traces(r * (r + 2 * P @ J)))
    return C, d, -Phi_M, -(J**2), Phi_M.T @ (q[:, None] * Phi_M)


def bumps(x: np.ndarray, y: np.ndarray, centres: int) -> np.ndarray:
    a, b = np.divmod(np.arange(1, centres**2), centres)
    scale = centres / SIDE
    distance = ((x[:, None] + 0.5) * scale - a - 0.5) ** 2
    distance += ((y[:, None] + 0.5) * scale - b - 0.5) ** 2
    return np.hstack([np.ones((x.size, 1)), np.exp(-0.5 * distance)])


def one_hot_problem(n: int, lam: float) -> tuple[object, ...]:
    """C, d, H, g and gram of n states with a feature each, J known only roughly."""
    rng = np.random.default_rng(0)
    P, r = random_chain(rng, n, stop=(0.02, 0.5))
    dense = P.toarray()
    q = np.linalg.solve(np.eye(n) - dense.T, np.full(n, 1 / n))
    J = np.linalg.solve(np.eye(n) - dense, r)
    both = np.column_stack([np.eye(n) - dense, r * (r + 2 * dense @ J)])
    both = q[:, None] * np.linalg.solve(np.eye(n) - lam * dense, both)
    rough = J * (1 + 0.6 * rng.normal(size=n))
    return both[:, :n], both[:, n], -sp.eye_array(n, format="csr"), -(rough**2), np.diag(q)


def best(work: Callable[[], ConstrainedSolution], runs: int) -> tuple[ConstrainedSolution, float]:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def measure() -> list[dict[str, object]]:
    problems = {
        f"grid, λ = {lam:g}, noise {noise:g}": grid_problem(lam, noise)
        for lam in (0.0, 0.5, 0.9)
        for noise in (0.05, 0.2)
    }
    problems |= {f"random features, λ = {lam:g}": random_problem(lam) for lam in (0.0, 0.9)}
    return [*(direct_and_projection(name, *problem) for name, problem in problems.items()), bounds()]


def direct_and_projection(name: str, C, d, H, g, gram) -> dict[str, object]:
    def solve(solver: str) -> ConstrainedSolution:
        return solve_constrained(C, d, H, g, gram=gram, solver=solver, tol=TOL)

    solve("active-set")  # warms up
    ours, ours_seconds = best(lambda: solve("active-set"), 20)
    peer, peer_seconds = best(lambda: solve("projection"), 10)
    negative = np.mean(H @ np.linalg.solve(C, d) > g)
    return {
        "work": f"constrained solve, {d.size} x {g.size}, {name}",
        "ours": f"active-set {ours_seconds * 1e3:.1f} ms",
        "peer": f"projection {peer_seconds * 1e3:.1f} ms",
        "ratio": peer_seconds / ours_seconds,
        "note": f"{negative:.0%} negative, {ours.active.size} active, {ours.iterations} pivots, "
        f"{peer.iterations} projections; residuals {ours.residual:.0e}, {peer.residual:.0e}",
    }


def bounds() -> dict[str, object]:
    C, d, H, g, gram = one_hot_problem(2500, 0.9)
    ours, ours_seconds = best(lambda: solve_constrained(C, d, H, g, gram=gram, tol=TOL), 3)
    _, solve_seconds = best(lambda: np.linalg.solve(C, d), 3)
    return {
        "work": "constrained solve, 2500 one-hot features and bounds",
        "ours": f"{ours.solver} {ours_seconds:.2f} s",
        "peer": f"one numpy solve without the constraint {solve_seconds:.2f} s",
        "ratio": solve_seconds / ours_seconds,
        "note": f"{ours.active.size} active, {ours.iterations} policy improvements",
    }


def rows() -> list[dict[str, object]]:
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    text = subprocess.run(
        [sys.executable, __file__, "--json"],
        env=os.environ | one_thread,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return list(json.loads(text))


if __name__ == "__main__":
    if "--json" in sys.argv:
        print(json.dumps(measure()))
    else:
        for row in rows():
            print(f"{row['work']}: {row['ours']}, {row['peer']}, ratio {row['ratio']:.1f} ({row['note']})")
