from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

class EpisodeData:
    id: int
    observations: Any
    actions: Any
    rewards: npt.NDArray[Any]
    terminations: npt.NDArray[Any]
    truncations: npt.NDArray[Any]

class MinariDataset:
    id: str
    observation_space: object
    episode_indices: npt.NDArray[np.int_]
    def __init__(self, data: str | PathLike[str]) -> None: ...
    def iterate_episodes(self, episode_indices: Iterable[int] | None = ...) -> Iterator[EpisodeData]: ...

def load_dataset(dataset_id: str, download: bool = ...) -> MinariDataset: ...
