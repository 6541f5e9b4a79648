"""The arguments of an evaluation, checked: each error says which of them is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from policyrisk._core.arrays import (
    Seed,
    as_count,
    as_flag,
    as_floats,
    as_list,
    as_number,
    as_path,
    check_choice,
)
from policyrisk._core.frames import numbered_names
from policyrisk._core.random import generator
from policyrisk._core.text import plural
from policyrisk.data import as_time_limit
from policyrisk.errors import InvalidInputError
from policyrisk.evaluation.request import AUTO, EvaluationRequest
from policyrisk.features.spelling import Spelling
from policyrisk.passes.checkpoint import stored_problem
from policyrisk.risk import VarianceMethod
from policyrisk.risk.estimate import as_level

_TAIL, _LOSS = 0.05, 0.0  # the quantile and the line of a loss where nothing was asked for
_TAILS = (_TAIL, 0.5, 0.95)  # quantiles where a loss alone was asked for


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


def checked(request: EvaluationRequest) -> EvaluationRequest:
    """The request with each argument checked, and settled as far as that needs no data."""
    with naming_arguments():
        asked = () if request.quantiles is None else as_list(request.quantiles, "quantiles", "shares")
        quantiles = sorted({as_number(q, "quantiles", 0.0, 1.0, open_low=True) for q in asked})
        loss = None if request.loss_below is None else as_number(request.loss_below, "loss_below")
        if request.quantiles is None and loss is None and request.plain:
            quantiles, loss = [_TAIL], _LOSS
        trace = (0.9 if request.target is None else 0.0) if request.lam is None else request.lam
        settled = replace(
            request,
            lam=as_number(trace, "lam", 0.0, 1.0),
            discount=as_number(request.discount, "discount", 0.0, 1.0, open_low=True),
            ridge=as_number(request.ridge, "ridge", 0.0),
            level=as_level(request.level),
            quantiles=tuple(quantiles) or (() if loss is None else _TAILS),
            loss_below=loss,
            time_limit=None if request.time_limit is None else as_time_limit(request.time_limit),
            box=box_bounds(request.box),
            labels=as_list(request.labels, "labels", "names of coordinates"),
            nonnegative=as_flag(request.nonnegative, "nonnegative"),
        )
        _ = settled.spelling  # raises where it is none
        check_checkpoint(request.checkpoint, request.resume, request.on_cluster)
    if request.variance is not None:
        check_choice(request.variance, "variance", get_args(VarianceMethod))
    return replace(settled, seed=seed_number(request.seed, request.checkpoint, request.resume))


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


def box_bounds(box: object) -> str | list[tuple[float, float]]:
    """Low and high of each coordinate, or "auto"."""
    if isinstance(box, str) and box == AUTO:
        return AUTO
    bounds = [(low, high) for low, high in as_floats(box, "box", (None, 2)).tolist()]
    for low, high in bounds:
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
        settings = stored_problem(checkpoint).get("settings")
        found = settings.get("seed") if isinstance(settings, dict) else None
        return as_count(found, f"the seed in {checkpoint}", 0, 2**128)
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
