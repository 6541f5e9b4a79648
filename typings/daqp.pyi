from typing import TypedDict

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

class _Info(TypedDict):
    solve_time: float
    setup_time: float
    iterations: int
    nodes: int
    lam: _Floats

class Model:
    @property
    def settings(self) -> dict[str, float]: ...
    @settings.setter
    def settings(self, values: dict[str, float]) -> None: ...
    def setup(
        self,
        H: _Floats,
        f: _Floats,
        A: _Floats,
        bupper: _Floats,
        blower: _Floats | None = ...,
        sense: npt.NDArray[np.int32] | None = ...,
    ) -> tuple[int, float]: ...
    def update(self, *, f: _Floats | None = ..., bupper: _Floats | None = ...) -> int: ...
    def solve(self) -> tuple[_Floats, float, int, _Info]: ...
