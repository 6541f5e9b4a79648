"""Episodes in Minari's datasets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from policyrisk._core.arrays import as_count
from policyrisk._core.files import from_json
from policyrisk._core.frames import Coordinates
from policyrisk._core.imports import check_installed
from policyrisk.data.columns import BATCH_ROWS
from policyrisk.data.spaces import Project, action_rows, as_project, as_rows, part_names
from policyrisk.data.stream import Piece, Stream
from policyrisk.data.trajectories import Trajectories
from policyrisk.errors import InvalidInputError

if TYPE_CHECKING:
    import minari

_METADATA = "metadata.json"


def read_minari(
    dataset: minari.MinariDataset | str | os.PathLike[str],
    project: Project = None,
    *,
    batch_rows: int = BATCH_ROWS,
) -> Stream:
    """A stream of the episodes of a Minari dataset.

    Minari records every observation of an episode, the last one included, so that nothing is given up. An
    episode terminated if the last of its ``terminations`` is true, else it was cut off; a flag before the
    last step is an error. The parts of Dict observations stand side by side, and give the coordinates
    their names. Discrete actions are recorded as whole numbers (T,), those of other arrays as coordinates
    (T, k); those of Dict and Tuple spaces are left out.

    Parameters
    ----------
    dataset
        The dataset, the path of its folder, or its id, which is looked up among the datasets on this computer
        (`minari download ID` brings one there).
    project
        A function from a batch of observations, (T + 1, …) for each episode, to the states' coordinates
        (T + 1, dim): needed for Tuple observations and images.
    batch_rows
        About how many steps are read at a time.

    Returns
    -------
    Stream
        A re-iterable of Trajectories.

    Examples
    --------
    >>> import tempfile, os, minari
    >>> folder = tempfile.TemporaryDirectory(); os.environ["MINARI_DATASETS_PATH"] = folder.name
    >>> episode = minari.data_collector.EpisodeBuffer(
    ...     observations=[0, 4, 8], actions=[1, 1], rewards=[0.0, 1.0], terminations=[False, True],
    ...     truncations=[False, False])
    >>> dataset = minari.create_dataset_from_buffers(
    ...     "doctest/lake-v0", [episode], env="FrozenLake-v1", eval_env="FrozenLake-v1", algorithm_name="",
    ...     description="two steps", author="me", author_email="me@example.org", code_permalink="none")
    >>> read_minari("doctest/lake-v0").load().states.ravel().tolist()
    [0, 4, 8]
    >>> folder.cleanup(); del os.environ["MINARI_DATASETS_PATH"]
    """
    check_installed("minari", "reading a Minari dataset")
    picked, rows = as_project(project), as_count(batch_rows, "batch_rows", 1)
    found = _as_dataset(dataset)
    names = part_names(found.observation_space) if picked is None else None
    called = None if names is None else Coordinates(names)

    def parts() -> Iterator[Piece]:
        for episode in found.iterate_episodes():
            yield _as_part(episode, found.id, picked, called)

    return Stream(f"Minari dataset {found.id}", parts, rows)


def _as_dataset(dataset: object) -> minari.MinariDataset:
    import minari
    from minari.storage.datasets_root_dir import get_dataset_path

    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str | os.PathLike):
        raise InvalidInputError(
            f"dataset must be a Minari dataset, its id or its folder, got {type(dataset).__name__}; pass one"
        )
    try:
        folder = minari_folder(Path(dataset)) or minari_folder(get_dataset_path(str(dataset)))
        if folder is None:
            raise FileNotFoundError(f"no {_METADATA} in it, or in {get_dataset_path(str(dataset))}")
        # Where a space is missing Minari makes the environment that the file names, which may be any code.
        if not {"observation_space", "action_space"} <= from_json((folder / _METADATA).read_text()).keys():
            raise ValueError(
                "it lacks the spaces of observations and actions, and the environment that it names is not "
                "made to find them, since that could run anything"
            )
        return minari.MinariDataset(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise InvalidInputError(
            f"dataset must be a Minari dataset on this computer, got {dataset!s} ({error}); "
            "check `minari list local`, or bring it with `minari download`"
        ) from error


def minari_folder(path: Path) -> Path | None:
    """Where a dataset's data are, if ``path`` is the folder of one."""
    for folder in (path, path / "data"):
        if (folder / _METADATA).is_file():
            return folder
    return None


def _as_part(
    episode: minari.EpisodeData, dataset: str, project: Project, called: Coordinates | None
) -> Piece:
    where = f"episode {episode.id} of Minari dataset {dataset}"
    rewards = np.asarray(episode.rewards, dtype=np.float64)
    ends = np.asarray(episode.terminations, dtype=np.bool_)
    cuts = np.asarray(episode.truncations, dtype=np.bool_)
    T = rewards.size
    early = np.flatnonzero((ends | cuts)[:-1])
    if early.size:
        raise InvalidInputError(
            f"terminations and truncations must be true only in an episode's last step, got true in step "
            f"{early[0]} of {T} in {where}; split the episode there"
        )
    try:
        states = as_rows(episode.observations, project, T + 1)
        if T == 0:
            return Piece(Trajectories(states[:0], rewards, np.empty(0, np.int64), ends), where, vanished=1)
        actions = action_rows(episode.actions)
        columns = (states, rewards, np.array([T]), ends[-1:], actions)
        return Piece(Trajectories(*columns, coordinates=called), where)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from error
