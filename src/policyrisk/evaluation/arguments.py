"""The arguments of an evaluation, checked: each error says which of them is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from policyrisk._core.arrays import Floats, Seed, as_flag, as_floats, as_list, as_path
from policyrisk._core.frames import numbered_names
from policyrisk._core.random import generator
from policyrisk._core.text import plural
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.spelling import Spelling
from policyrisk.passes.checkpoint import stored_problem

AUTO = "auto"


@contextmanager
def naming_arguments(name: str | None = None) -> Iterator[None]:
    """Let an error say which argument is wrong, this one or that which its text begins with.

    The command line has other names for them.
    """
    try:
        yield
    except InvalidInputError as error:
        error.argument = error.argument or name or str(error).split()[0]
        raise


def spelled_features(features: object) -> Spelling | None:
    """What a text spells; None for "auto"."""
    if not isinstance(features, str):
        raise InvalidInputError(
            f'features must be "auto" or a text such as "tiles:20x20", got {type(features).__name__}; name a '
            "function of your own as module:name, or use Evaluation.of(LSTD(features).fit(data), data)"
        )
    if features == AUTO:
        return None
    spelling = Spelling.parse(features)
    spelling.check_functions()
    return spelling


def box_bounds(box: object) -> Floats | None:
    """Low and high of the coordinates, of shape (dim, 2); None for "auto"."""
    if isinstance(box, str) and box == AUTO:
        return None
    bounds = as_floats(box, "box", (None, 2))
    for low, high in bounds.tolist():
        if low >= high:
            raise InvalidInputError(
                f'box must go from low to high, got {low:g} to {high:g}; widen it, or pass "auto"'
            )
    return bounds


def check_checkpoint(checkpoint: object, resume: bool, on_cluster: bool) -> None:
    """Raise where a run has a checkpoint to go on with and must not, or has none and must."""
    if checkpoint is not None:
        as_path(checkpoint, "checkpoint")
    if as_flag(on_cluster, "on_cluster") and (as_flag(resume, "resume") or checkpoint is not None):
        raise InvalidInputError(
            "resume and checkpoint must be left out on a cluster, got one of them; there is no checkpoint of "
            "a run on Ray to go on with"
        )
    if as_flag(resume, "resume") and checkpoint is None:
        raise InvalidInputError("resume must have a checkpoint to go on with, got none; pass checkpoint=")


def seed_number(given: Seed, checkpoint: str | os.PathLike[str] | None, resume: bool) -> int:
    """A number, that of the run that goes on, or a fresh one: a run that was killed must find it again."""
    if given is None and resume and checkpoint is not None and Path(checkpoint).exists():
        return int(stored_problem(checkpoint)["settings"]["seed"])
    if given is None or isinstance(given, np.random.Generator | np.random.SeedSequence):
        return int(generator(given).integers(2**32))
    generator(given)  # raises where it is no seed
    return int(given)


def state_names(
    given: Sequence[str] | None, columns: str | Sequence[str] | None, dim: int
) -> tuple[str, ...]:
    """The coordinates' names: those given, else the columns', numbered where a column is a list.

    >>> state_names(None, ["x", "y"], 2), state_names(None, "obs", 2)
    (('x', 'y'), ('obs_0', 'obs_1'))
    >>> state_names(None, None, 1)
    ('state',)
    """
    if given is not None:
        given = as_list(given, "names", "the coordinates' names")
        if not all(isinstance(name, str) for name in given) or len(given) != dim or len(set(given)) < dim:
            raise InvalidInputError(
                f"names must be different ones, one for each of the state's {plural(dim, 'coordinate')}, got "
                f"{given!r}; name each once"
            )
        return tuple(map(str, given))
    named = [columns] if isinstance(columns, str) else columns or []
    if len(named) == dim:
        return tuple(named)
    return numbered_names(named[0] if len(named) == 1 else "state", dim)
