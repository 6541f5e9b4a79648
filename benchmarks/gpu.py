"""A GPU beside the CPU: the paper's Monte-Carlo map, 1.25 million trajectories, and sums of dense features.

    python benchmarks/gpu.py [--episodes 936] [--sums]

Needs an NVIDIA GPU and ``pip install 'policyrisk[cuda]'``.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

import policyrisk as pr
from policyrisk.control import pinball_policy
from policyrisk.domains import Pinball
from policyrisk.simulation import cuda


def best(work, repeats=5):
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begun)
    return min(times), result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=936, help="from each of the 1,336 free tiles")
    parser.add_argument("--sums", action="store_true", help="the sums alone")
    given = parser.parse_args()
    if given.sums:
        print(json.dumps(all_sums(), indent=1))
        return
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from experiments.tiles import TileGrid

    K = given.episodes
    pinball, policy = Pinball("simple"), pinball_policy("simple")
    states = TileGrid(pinball.maze, 50).states
    found = {"states": len(states), "trajectories": len(states) * K}
    begun = time.perf_counter()
    pr.monte_carlo(pinball, policy, states[:10], episodes=2, seed=0, device="cuda")
    found["first_call_s"] = time.perf_counter() - begun

    which = np.repeat(np.arange(len(states)), K)
    streams = cuda._one_block((np.uint64(1), np.uint64(2)), len(which))
    gpu = cuda.GpuEpisodes(pinball.compiled(), policy.compiled(), states, 10_000, 1.0)
    numba_cuda = cuda.numba_cuda()
    moved = [numba_cuda.to_device(each) for each in (which, *streams)]
    nothing = [
        numba_cuda.to_device(a)
        for a in (np.empty(0, np.int64), np.empty((0, 4)), np.empty(0), np.empty(0, np.int64))
    ]
    out = [numba_cuda.device_array(len(which), t) for t in (np.float64, np.int64, np.bool_)]

    def kernel():
        cuda._kernel()[-(-len(which) // 128), 128](
            *gpu._tables, gpu._starts, *moved, 10_000, 1.0, *nothing, *out
        )
        numba_cuda.synchronize()

    kernel()
    found["kernel_s"], _ = best(kernel)
    found["actions"] = int(out[1].copy_to_host().sum())
    maps = {}
    for device in ("cuda", "cpu"):
        found[f"monte_carlo_{device}_s"], maps[device] = best(
            lambda device=device: pr.monte_carlo(pinball, policy, states, episodes=K, seed=0, device=device),
            3 if device == "cuda" else 1,
        )
    found["states_equal"] = float(np.mean(maps["cpu"].mean == maps["cuda"].mean))
    here = pinball.returns(policy, states, K, seed=0)
    there = pinball.returns(policy, states, K, seed=0, device="cuda")
    found["returns_equal"] = float(np.mean(here.returns == there.returns))
    starts = pinball.sample_starts(200_000, seed=1)
    for device in ("cuda", "cpu"):
        found[f"rollout_{device}_s"], data = best(
            lambda device=device: pinball.rollout(policy, starts, seed=0, device=device), 2
        )
    found["rollout_transitions"] = data.transitions
    found["sums"] = all_sums()
    print(json.dumps(found, indent=1))


def all_sums():
    """Of features from the CPU, and of radial ones and a network's last hidden layer, found on the GPU."""
    rate = dgemm_rate()
    rows = [sums("from the CPU", Rows(size), rate) for size in (256, 1024, 4096)]
    rows += [sums("radial", radial(side), rate) for side in (16, 32, 64)]
    try:
        rows += [sums(f"network, {how}", network(size, how), rate)
                 for size in (256, 1024) for how in ("plain", "whitened")]  # fmt: skip
    except pr.errors.MissingPackageError as error:
        print(error)
    return rows


class Rows:
    """Dense features that cost next to nothing: a row is looked up."""

    def __init__(self, size):
        self.size = size
        self.table = np.random.default_rng(0).standard_normal((2000, size))

    def __call__(self, states):
        return self.table[np.asarray(states)[:, 0].astype(int)]


def radial(side):
    return pr.RadialBasis.grid([0, 0], [2000, 1], (side, side), width=1.5 / side, dims=[0, 1])


def network(size, how):
    """The last hidden layer of a random network, 8 → size → size − 1 → 1, and the constant."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, size), torch.nn.Tanh(), torch.nn.Linear(size, size - 1), torch.nn.Tanh(),
        torch.nn.Linear(size - 1, 1),
    )  # fmt: skip
    stats = {"mean": [1000.0] + [0.0] * 7, "var": [600.0**2] + [0.1] * 7}
    phi = pr.TorchFeatures(net, device="cuda", normalisation=stats)
    return phi if how == "plain" else phi.whitened(some_states(20_000), cut=0.0)


def some_states(n):
    rng = np.random.default_rng(1)
    return np.column_stack([rng.integers(0, 2000, n).astype(float), rng.standard_normal((n, 7))])


def dgemm_rate():
    """FLOP/s of one large product."""
    import cupy

    a = cupy.random.standard_normal((8192, 8192))
    cupy.cuda.Device().synchronize()

    def product():
        for _ in range(5):
            a @ a
        cupy.cuda.Device().synchronize()

    product()
    return 5 * 2 * 8192.0**3 / best(product, 3)[0]


def sums(name, phi, rate):
    """Seconds of the equations, and the rate of their products beside that of one large product."""
    size = phi.size
    n, length = (1 << 34) // size // 8, 50
    rng = np.random.default_rng(1)
    lengths = np.full(n // length, length)
    data = pr.Trajectories(
        some_states(int(lengths.sum()) + len(lengths)), rng.standard_normal(int(lengths.sum())), lengths,
        np.ones(len(lengths), bool),
    )  # fmt: skip
    lstd = pr.LSTD(phi, lam=0.9)
    lstd.equations(data[:10_000], device="cuda")
    took, _ = best(lambda: lstd.equations(data, device="cuda"), 3)
    few = data[: len(data) // 64]
    beside, here = best(lambda: lstd.equations(few), 1)
    few_there = lstd.equations(few, device="cuda")
    flops = 6.0 * data.transitions * size**2  # the Gram matrix, A and D
    return {
        "features": f"{size} {name}",
        "transitions": data.transitions,
        "cuda_s": took,
        "cuda_tflops": flops / took / 1e12,
        "cpu_tflops": 6.0 * few.transitions * size**2 / beside / 1e12,
        "dgemm_tflops": rate / 1e12,
        "share": flops / took / rate,
        "difference": float(np.abs(here.A - few_there.A).max() / np.abs(here.A).max()),
    }


if __name__ == "__main__":
    main()
