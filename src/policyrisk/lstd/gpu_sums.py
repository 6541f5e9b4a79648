"""The sums of dense features on a GPU: traces by a kernel, products in double precision by cuBLAS.

Features that can be computed on a GPU (``on_gpu``: those of a network that is there, radial bases) are, from
states; others are computed on the CPU's threads. Either is copied, chunk by chunk, while the GPU works on
earlier chunks, with the rewards; all else that the sums weigh rows with is found on the way.

For each of the view's products (see :mod:`policyrisk.lstd.trace_products`) one kernel goes backwards through
every episode, a thread for each episode and feature, and writes the right-hand factor of

    [Gram | A | D] = Φᵀ [Φ | traces of A | traces of D],

whose rows are 0 where episodes end. Few features make a product with few entries and very many rows, too few
for all of a GPU: its rows are then cut into *slabs*, whose products are added up apart until the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from policyrisk._core.arrays import Bools, Floats, Ints
from policyrisk._core.devices import cupy, in_order, kernel
from policyrisk.data import Trajectories
from policyrisk.errors import DeviceError
from policyrisk.lstd.accumulate import StepCounts
from policyrisk.lstd.rows import DenseRows
from policyrisk.lstd.steps import chunks
from policyrisk.lstd.trace_products import Total

if TYPE_CHECKING:
    from policyrisk.lstd.accumulate import Sums

_NUMBERS = 1 << 24, 1 << 25  # of a chunk's features, about: from the CPU, and found on the GPU
_FEWEST, _MOST = 1 << 12, 1 << 17  # transitions of a chunk
_THREADS = 128
_SWEEPERS, _BLOCKS = 1 << 18, 1 << 14  # threads that go through episodes, and blocks of them, at most
_PARTIAL = 1 << 24  # numbers of a product's slabs, about
_SLABS = 32  # at most
_AHEAD = 3  # chunks that are copied before the GPU is waited for

# What a thread has met in all its episodes (visits, episodes with any, b and e) is in ``met``, a row for each
# block of them, so that the sums do not depend on which block is done first.
SOURCE = r"""
extern "C" __global__ void sweep(
    const double* __restrict__ phi, const double* __restrict__ rewards, const long long* __restrict__ first,
    const unsigned char* __restrict__ terminated, const long long episodes, const int size,
    const double decay, const double gamma, const double lam, const double twice, const double mean_decay,
    const double second_decay, const int gram, const int own, const int arrival,
    double* __restrict__ out, double* __restrict__ met
) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= size) return;
    const long long width = (long long)(gram + own + arrival) * size;
    double visits = 0.0, seen = 0.0, b = 0.0, e = 0.0;
    for (long long k = blockIdx.y; k < episodes; k += gridDim.y) {
        const long long begin = first[k], last = first[k + 1] - 1;
        double s = phi[last * size + c], visited = 0.0, to_go = 0.0, squares_to_go = 0.0;
        double trace = terminated[k] ? 0.0 : -gamma * s;
        double arrivals = terminated[k] ? 0.0 : twice * rewards[last - 1 - k] * s;
        for (int j = 0; j < gram + own + arrival; ++j) out[last * width + (long long)j * size + c] = 0.0;
        for (long long i = last - 1; i >= begin; --i) {
            double* row = out + i * width + c;
            const double r = rewards[i - k];
            s = phi[i * size + c];
            if (gram) {
                *row = s;
                row += size;
                visited += s != 0.0;
                to_go = mean_decay * to_go + r;
                squares_to_go = second_decay * squares_to_go + r * r;
                b += to_go * s;
                e += squares_to_go * s;
            }
            if (own) {
                *row = s + trace;
                row += size;
                trace = decay * trace - gamma * (1.0 - lam) * s;
            }
            if (arrival) {
                *row = arrivals;
                arrivals = decay * arrivals + (i > begin ? twice * rewards[i - 1 - k] * s : 0.0);
            }
        }
        visits += visited;
        seen += visited > 0.0;
    }
    if (gram) {
        double* mine = met + (long long)blockIdx.y * size + c;
        const long long next = (long long)gridDim.y * size;
        mine[0] += visits;
        mine[next] += seen;
        mine[2 * next] += b;
        mine[3 * next] += e;
    }
}
"""


def add_on_gpu(sums: Sums, batches: Iterator[Trajectories]) -> None:
    """Add all batches to the equations under way."""
    view = sums.view
    if not all(each.dense for each in view.maps):
        raise DeviceError(
            'device="cuda" is for dense features, got sparse ones, which are summed on the CPU as fast; '
            'pass device="cpu"'
        )
    widest = max(each.features.size for each in view.maps)
    found_there = all(getattr(each.features, "on_gpu", False) for each in view.maps)
    most = min(max(_NUMBERS[found_there] // widest, _FEWEST), _MOST)
    gpu = _Gpu(sums)
    for part in in_order(partial(_host, sums, gpu.slabs), chunks(batches, most), uses_blas=True):
        gpu.add(*part)
    gpu.fetch()


def _host(
    sums: Sums, slabs: int, data: Trajectories
) -> tuple[Trajectories, StepCounts, list[Any], list[Any]]:
    """What the CPU does for a chunk: features, or what a GPU needs for them, where they can be copied from.

    The last row is repeated until slabs have the same length. Then rewards, and each episode's first row and
    whether it terminated.
    """
    view, steps = sums.view, sums.view.steps(data)
    rows = []
    for each in view.maps:
        features: Any = each.features
        if getattr(features, "on_gpu", False):
            found = features.gpu_input(steps.states)
        else:
            phi = each(steps.states, steps.ends)
            assert isinstance(phi, DenseRows)
            found = phi.matrix
        rows.append(_pinned(found, -(-len(found) // slabs) * slabs))
    first: Ints = np.append(data.offsets[:-1] + np.arange(len(data)), len(steps.ends))
    ended: Bools = data.terminated
    episodes = [_pinned(each, len(each)) for each in (data.rewards, first, ended.astype(np.uint8))]
    return data, StepCounts.of(steps), rows, episodes


def _pinned(array: Any, length: int) -> Any:
    """A copy that a GPU can read while the CPU goes on, the last row repeated up to this length."""
    import cupyx

    pinned = cupyx.empty_pinned((length, *array.shape[1:]), array.dtype)
    pinned[: len(array)] = array
    pinned[len(array) :] = array[-1:]
    return pinned


class _Gpu:
    """The sums in the GPU's memory."""

    def __init__(self, sums: Sums) -> None:
        xp, view = cupy(), sums.view
        self._sums, self._xp = sums, xp
        self._maps: list[Any] = [each.features for each in view.maps]
        sizes = [each.size for each in self._maps]
        self.slabs = min(max(_PARTIAL // (3 * max(sizes) ** 2), 1), _SLABS)
        self._copies, self._work = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
        with self._work:  # zeros must be there before the work that adds to them
            self._met = [xp.zeros((4, min(max(_SWEEPERS // size, 1), _BLOCKS), size)) for size in sizes]
        self._products = []
        known: set[int] = set()
        for left, right, names in view.products:
            rho, sigma = (min(each, len(sizes) - 1) for each in (left, right))
            own, gram = left == right, left == right and sigma not in known
            known |= {sigma} if gram else set()
            blocks = int(gram), int(own), int("D" in names)
            with self._work:
                total = xp.zeros((self.slabs, sizes[rho], sum(blocks) * sizes[sigma]))
            self._products.append((left, rho, sigma, blocks, total))
        self._under_way: deque[tuple[Any, Any]] = deque()

    def add(self, data: Trajectories, counts: StepCounts, rows: list[Any], ends: list[Any]) -> None:
        """Add a chunk; what was copied from stays until the GPU has done with it."""
        xp, view = self._xp, self._sums.view
        self._sums.counts += counts
        with self._copies:
            copied = [_copied(xp, each, self._copies) for each in rows]
            episodes = [_copied(xp, each, self._copies) for each in ends]
        self._work.wait_event(self._copies.record())
        with self._work:
            phi = [
                each.gpu_rows(given) if getattr(each, "on_gpu", False) else given
                for each, given in zip(self._maps, copied, strict=True)
            ]
            for left, rho, sigma, blocks, total in self._products:
                size = self._maps[sigma].size
                factor = xp.empty((len(phi[sigma]), sum(blocks) * size))
                factor[len(data.states) :] = 0.0
                met = self._met[sigma]
                kernel(SOURCE, "sweep")(
                    (-(-size // _THREADS), met.shape[1]),
                    (_THREADS,),
                    (
                        phi[sigma], *episodes, np.int64(len(data)), np.int32(size),
                        np.float64(view.decays[left]), np.float64(view.discount ** (1 + left)),
                        np.float64(view.lam), np.float64(2.0 * view.discount),
                        *map(np.float64, view.decays), *map(np.int32, blocks), factor, met,
                    ),
                )  # fmt: skip
                _add_product(xp, phi[rho], factor, total)
            done = self._work.record()
        self._under_way.append((done, (rows, ends, copied, episodes, phi)))
        while len(self._under_way) > _AHEAD:
            self._under_way.popleft()[0].synchronize()

    def fetch(self) -> None:
        """Put what was summed into the equations under way."""
        xp, sums = self._xp, self._sums
        self._work.synchronize()
        for k, each in enumerate(sums.maps):
            each.visits, each.episodes, *right = xp.asnumpy(self._met[k].sum(axis=1))
            each.sums = np.stack(right if len(sums.maps) == 1 else [right[k]])
        for whole, (_, _, sigma, blocks, total) in zip(sums.totals, self._products, strict=True):
            assert isinstance(whole, Total)
            product: Floats = xp.asnumpy(total.sum(axis=0))
            if blocks[0]:
                size = self._maps[sigma].size
                sums.maps[sigma].gram = np.ascontiguousarray(product[:, :size])
                product = product[:, size:]
            whole.put(product)


def _copied(xp: Any, pinned: Any, stream: Any) -> Any:
    out = xp.empty(pinned.shape, pinned.dtype)
    out.set(pinned, stream=stream)
    return out


def _add_product(xp: Any, rows: Any, columns: Any, total: Any) -> None:
    """total[k] += rowsᵀ columns for each slab k of rows: of shapes (n, l), (n, m) and (slabs, l, m)."""
    slabs, size, width = total.shape
    each = len(rows) // slabs
    one = np.ones(1)
    alpha = beta = one.ctypes.data
    # As row-major matrices are the transposes of what cuBLAS means: totalᵀ += columnsᵀ rows.
    a, b, c = columns.data.ptr, rows.data.ptr, total.data.ptr
    handle, blas = xp.cuda.get_cublas_handle(), xp.cuda.cublas
    if slabs == 1:
        blas.dgemm(handle, 0, 1, width, size, each, alpha, a, width, b, size, beta, c, width)
    else:
        blas.dgemmStridedBatched(
            handle, 0, 1, width, size, each, alpha, a, width, each * width, b, size, each * size,
            beta, c, width, size * width, slabs,
        )  # fmt: skip
