"""The sums of dense features on a GPU: traces by a kernel, products in double precision by cuBLAS.

Features are computed on the CPU's threads, chunk by chunk, and copied while the GPU works on earlier chunks.
A chunk's traces (see :mod:`policyrisk.lstd.trace_products`) run backwards in time, a thread for each episode
and feature; the products of visited rows with them are added up in the GPU's memory, and fetched once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Floats
from policyrisk._core.devices import cupy
from policyrisk._core.threads import in_order
from policyrisk.errors import DeviceError
from policyrisk.lstd.chunks import Chunk, chunks
from policyrisk.lstd.rows import DenseRows
from policyrisk.lstd.trace_products import Total
from policyrisk.trajectories import Trajectories

if TYPE_CHECKING:
    from policyrisk.lstd.accumulate import Sums

_NUMBERS = 1 << 24  # of a chunk's features, about
_FEWEST, _MOST = 1 << 12, 1 << 16  # transitions of a chunk
_THREADS = 128
_AHEAD = 3  # chunks that are copied before the GPU is waited for

_SOURCE = r"""
extern "C" __global__ void traces(
    const double* sigma, const double* g, const double* h, const long long* first, const double kappa,
    const int channels, const int size, const long long episodes, double* out
) {
    const long long c = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= size) return;
    for (long long e = blockIdx.y; e < episodes; e += gridDim.y) {
        double carry[2] = {0.0, 0.0};
        const long long last = first[e + 1] - 1;
        for (long long i = last; i >= first[e]; --i) {
            const double s = sigma[i * size + c];
            for (int k = 0; k < channels; ++k) {
                if (i < last) out[((i - e) * channels + k) * size + c] = h[i * channels + k] * s + carry[k];
                carry[k] = kappa * carry[k] + g[i * channels + k] * s;
            }
        }
    }
}
extern "C" __global__ void tally(
    const double* phi, const long long* first, const int size, const long long episodes,
    double* visits, double* behind
) {
    const long long c = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= size) return;
    double rows = 0.0, seen = 0.0;
    for (long long e = blockIdx.y; e < episodes; e += gridDim.y) {
        double own = 0.0;
        for (long long i = first[e]; i < first[e + 1] - 1; ++i) own += phi[i * size + c] != 0.0;
        rows += own;
        seen += own > 0.0;
    }
    atomicAdd(visits + c, rows);
    atomicAdd(behind + c, seen);
}
"""


@cache
def _kernel(name: str) -> Any:
    return cupy().RawKernel(_SOURCE, name, options=("--fmad=false",))


def add_on_gpu(sums: Sums, parts: Iterator[Trajectories]) -> None:
    """Add all parts to the equations under way."""
    plan = sums.plan
    if not all(each.dense for each in plan.maps):
        raise DeviceError(
            'device="cuda" is for dense features, got sparse ones, which are summed on the CPU as fast; '
            'pass device="cpu"'
        )
    widest = max(each.features.size for each in plan.maps)
    most = min(max(_NUMBERS // widest, _FEWEST), _MOST)
    gpu = _Gpu(sums)
    for part in in_order(partial(_host, sums), chunks(parts, most), uses_blas=True):
        gpu.add(*part)
    gpu.fetch()


def _host(sums: Sums, data: Trajectories) -> tuple[Chunk, int, list[Any], Floats, list[Any]]:
    """What the CPU does for a chunk: features, in memory that can be copied from, and weights of the rows."""
    from policyrisk.lstd.accumulate import chunk_products, right_hand_sides

    plan, chunk = sums.plan, Chunk.of(data)
    rows = []
    for each in plan.maps:
        phi = each(chunk.states, chunk.ends)
        assert isinstance(phi, DenseRows)
        pinned = _pinned(phi.phi.shape)
        np.copyto(pinned, phi.phi)
        rows.append(pinned)
    products = [(each.g, each.h, each.decay) for each in chunk_products(plan, chunk)]
    return chunk, chunk.outside(plan.maps), rows, right_hand_sides(plan, chunk), products


def _pinned(shape: tuple[int, ...]) -> Any:
    import cupyx

    return cupyx.empty_pinned(shape, np.float64)


class _Gpu:
    """The sums in the GPU's memory."""

    def __init__(self, sums: Sums) -> None:
        xp, plan = cupy(), sums.plan
        self._sums, self._xp = sums, xp
        sizes = [each.features.size for each in plan.maps]
        self._visits = [xp.zeros((2, size)) for size in sizes]
        self._right = [xp.zeros((3 - len(sizes), size)) for size in sizes]
        self._grams = [xp.zeros((size, size)) for size in sizes]
        both = [sizes[0], sizes[-1]]
        self._products = [
            xp.zeros((both[left], channels * both[right])) for left, right, channels in plan.products
        ]
        self._copies, self._work = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
        self._under_way: deque[tuple[Any, Any]] = deque()

    def add(self, chunk: Chunk, outside: int, rows: list[Any], right: Floats, products: list[Any]) -> None:
        """Add a chunk; what was copied from stays until the GPU has done with it."""
        xp, plan, data = self._xp, self._sums.plan, chunk.data
        self._sums.count(data, outside)
        with self._copies:
            phi = [_copied(xp, each, self._copies) for each in rows]
            first = xp.asarray(np.append(data.offsets[:-1] + np.arange(len(data)), len(chunk.ends)))
            visited = xp.asarray(data.visited_rows)
            weights = [xp.asarray(each) for each in np.split(right, len(phi))]
            moved = [(xp.asarray(g), xp.asarray(h), kappa) for g, h, kappa in products]
        self._work.wait_event(self._copies.record())
        with self._work:
            V = [each[visited] for each in phi]
            for k, each in enumerate(phi):
                self._launch(
                    "tally", each.shape[1], len(data), each, first, each.shape[1], len(data), *self._visits[k]
                )
                self._right[k] += weights[k] @ each
                _add_product(V[k], V[k], self._grams[k])
            for (left, other, channels), (g, h, kappa), total in zip(
                plan.products, moved, self._products, strict=True
            ):
                sigma = phi[min(other, len(phi) - 1)]
                traces = xp.empty((len(visited), channels * sigma.shape[1]))
                self._launch(
                    "traces", sigma.shape[1], len(data),
                    sigma, g, h, first, np.float64(kappa), channels, sigma.shape[1], len(data), traces,
                )  # fmt: skip
                _add_product(V[min(left, len(V) - 1)], traces, total)
            done = self._work.record()
        self._under_way.append((done, (rows, phi, V, moved, weights, first, visited)))
        while len(self._under_way) > _AHEAD:
            self._under_way.popleft()[0].synchronize()

    def _launch(self, name: str, size: int, episodes: int, *arguments: Any) -> None:
        grid = -(-size // _THREADS), min(episodes, 1024)
        given = [np.int32(a) if i in _WHOLE[name] else np.int64(a) if isinstance(a, int) else a
                 for i, a in enumerate(arguments)]  # fmt: skip
        _kernel(name)(grid, (_THREADS,), tuple(given))

    def fetch(self) -> None:
        """Put what was summed into the equations under way."""
        xp, sums = self._xp, self._sums
        self._work.synchronize()
        for k, each in enumerate(sums.maps):
            each.visits, each.episodes = xp.asnumpy(self._visits[k])
            each.sums, each.gram = xp.asnumpy(self._right[k]), xp.asnumpy(self._grams[k])
        for total, product in zip(sums.totals, self._products, strict=True):
            assert isinstance(total, Total)
            total.put(xp.asnumpy(product))


# Arguments of the kernels that are ints of C, by place.
_WHOLE = {"traces": {5, 6}, "tally": {2}}


def _copied(xp: Any, pinned: Any, stream: Any) -> Any:
    out = xp.empty(pinned.shape)
    out.set(pinned, stream=stream)
    return out


def _add_product(rows: Any, columns: Any, total: Any) -> None:
    """total += rowsᵀ columns."""
    # As row-major matrices are the transposes of what cuBLAS means: totalᵀ += columnsᵀ rows.
    import_module("cupy.cublas").gemm("N", "T", columns.T, rows.T, out=total.T, alpha=1.0, beta=1.0)
