"""A stand-in for CuPy where there is no GPU: arrays of NumPy, and kernels compiled by the C++ compiler.

A kernel's threads run one after the other. Of cuBLAS there are two products, written with its own pointers,
leading dimensions and strides.
"""

import ctypes
import re
import subprocess
from types import SimpleNamespace

import numpy as np

PRELUDE = """
#include <cmath>
struct Place { unsigned x, y; };
static Place blockIdx, blockDim, threadIdx, gridDim;
#define __global__
"""
TYPES = {"int": ctypes.c_int, "long long": ctypes.c_longlong, "double": ctypes.c_double}


class Array(np.ndarray):
    """An array whose memory has a ``ptr``."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, values, stream=None):
        self[...] = values


class Stream:
    def __init__(self, non_blocking=False):
        self.ptr = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def record(self):
        return self

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass


def at(pointer, numbers):
    return np.ctypeslib.as_array((ctypes.c_double * numbers).from_address(pointer))


def strided(handle, ta, tb, m, n, k, alpha, a, lda, step_a, b, ldb, step_b, beta, c, ldc, step_c, count):
    """C_i ← α A_i B_iᵀ + β C_i, column by column in memory."""
    assert (ta, tb) == (0, 1)
    for i in range(count):
        A = at(a + 8 * i * step_a, lda * k).reshape(k, lda)[:, :m].T
        B = at(b + 8 * i * step_b, ldb * k).reshape(k, ldb)[:, :n].T
        C = at(c + 8 * i * step_c, ldc * n).reshape(n, ldc)[:, :m]
        C[...] = (at(alpha, 1)[0] * A @ B.T).T + at(beta, 1)[0] * C


def plain(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    strided(handle, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1)


def made(array):
    return np.ascontiguousarray(array).view(Array)


def cupy():
    blas = SimpleNamespace(dgemm=plain, dgemmStridedBatched=strided)
    return SimpleNamespace(
        zeros=lambda shape: made(np.zeros(shape)),
        empty=lambda shape, dtype=float: made(np.full(shape, 99, dtype)),
        asarray=made,
        asnumpy=np.asarray,
        exp=np.exp,
        cuda=SimpleNamespace(Stream=Stream, cublas=blas, get_cublas_handle=lambda: 0),
    )


class Kernels:
    """Compiles a kernel once, with a loop over its threads around it."""

    def __init__(self, folder, compiler):
        self.folder, self.compiler, self.known = folder, compiler, {}

    def __call__(self, source, name):
        if name not in self.known:
            declared = re.search(rf"void {name}\((.*?)\)", source, re.S)[1].replace("__restrict__", "")
            parameters = [" ".join(each.split()) for each in declared.split(",")]
            names = ", ".join(re.findall(r"\w+", each)[-1] for each in parameters)
            loop = f"""
            extern "C" void launch(unsigned gx, unsigned gy, unsigned n, {declared}) {{
                gridDim = {{gx, gy}}; blockDim = {{n, 1}};
                for (unsigned y = 0; y < gy; ++y) for (unsigned x = 0; x < gx; ++x)
                for (unsigned t = 0; t < n; ++t) {{
                    blockIdx = {{x, y}}; threadIdx = {{t, 0}}; {name}({names});
                }}
            }}"""
            code, library = self.folder / f"{name}.cpp", self.folder / f"{name}.so"
            code.write_text(PRELUDE + source + loop)
            subprocess.run([self.compiler, "-O1", "-shared", "-fPIC", "-o", library, code], check=True)
            types = [
                ctypes.c_void_p if "*" in each else TYPES[each.removeprefix("const ").rsplit(" ", 1)[0]]
                for each in parameters
            ]
            launch = ctypes.CDLL(str(library)).launch
            launch.argtypes = [ctypes.c_uint] * 3 + types
            self.known[name] = launch
        return lambda grid, block, arguments: self.known[name](
            *grid,
            *block,
            *(each.ctypes.data if isinstance(each, np.ndarray) else each.item() for each in arguments),
        )
