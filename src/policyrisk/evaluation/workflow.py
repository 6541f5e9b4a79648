"""The work of ``policyrisk evaluate``: survey the data, settle the features, fit.

The data are read as a stream: one pass for the survey (and a sample of episodes to choose features on), then
those that the estimator takes. All of them are taken here, where the estimator's sums are kept in a
checkpoint every few seconds, or all by the workers of a cluster.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from policyrisk import distributed
from policyrisk._core.output import Clock
from policyrisk._core.text import plural
from policyrisk.cli.shared import Watched, box, usage
from policyrisk.distributed.fold import ShardFold
from policyrisk.errors import PolicyRiskError
from policyrisk.evaluation import Evaluation
from policyrisk.evaluation.automatic import EPISODES, TRANSITIONS, Choice, choose
from policyrisk.evaluation.spelling import Spelling, data_box
from policyrisk.lstd import LSTD
from policyrisk.passes.checkpoint import DurableFold, stored_problem
from policyrisk.passes.fold import here
from policyrisk.passes.survey import SurveyPass
from policyrisk.readers import read
from policyrisk.risk import VarianceMethod

AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """What a user can set about an estimate."""

    features: str = AUTO  # or a spelling
    box: str = AUTO  # or low:high of each coordinate
    lam: float = 0.9
    discount: float = 1.0
    ridge: float = 0.0
    direct: bool = False
    nonnegative: bool = False
    level: float = 0.95
    seed: int | None = None


def estimate(
    data: str,
    columns: Mapping[str, Any],
    settings: Settings,
    *,
    name: str,
    clock: Clock,
    say: Callable[[str], object],
    checkpoint: Path,
    resume: bool = False,
    on_cluster: bool = False,
) -> Evaluation:
    """Evaluate the data at a path; ``columns`` are options of the reader, ``say`` prints on the way.

    The fit's sums so far are in ``checkpoint`` once it has taken some seconds, and ``resume`` goes on from
    there. On a cluster the workers read the data, each of several files being a shard; there is no
    checkpoint, since other workers take over what one has lost.
    """
    seed = _seed(settings.seed, checkpoint, resume)
    settings = replace(settings, seed=seed)
    spelling = None
    if settings.features != AUTO:
        with usage("--features"):
            spelling = Spelling.parse(settings.features)
    # These have no columns: --state names the coordinates.
    nameless = data.startswith("minari:") or data.lower().endswith(".npz")
    options = {key: value for key, value in columns.items() if not (nameless and key == "state")}
    source = read(data, **options)
    shards = ShardFold(distributed.shards(data, **options), "stop") if on_cluster else None
    with clock("survey"):
        look = SurveyPass(seed, None if spelling else (EPISODES, TRANSITIONS))
        found = here(Watched("survey", source))(look) if shards is None else shards(look)
        survey = found.survey()
    losses = source.counts if shards is None else shards
    given_up, vanished = losses.given_up, losses.vanished
    names = coordinate_names(columns.get("state"), survey.dim)
    if nameless and columns.get("state") and names != tuple(columns["state"]):
        raise typer.BadParameter(
            f"{data} has states of {plural(survey.dim, 'coordinate')}, got names for {len(columns['state'])}",
            param_hint="--state",
        )
    low, high, constant = data_box(survey)
    if settings.box != AUTO:
        low, high = box(settings.box, names)

    variance: VarianceMethod = "direct" if settings.direct else "second-moment"
    choice: Choice | None = None
    if spelling is None:
        with clock("choice"):
            choice = choose(
                found.sample(),
                survey,
                names,
                low,
                high,
                lam=settings.lam,
                discount=settings.discount,
                ridge=settings.ridge,
                variance=variance if settings.direct else None,
                seed=seed,
            )
        spelling, variance = choice.spelling, choice.variance
        say(f"{choice}\n")
    with usage("--features"):
        features = spelling.build(names, survey, low, high)
        second = None if spelling.second is None else spelling.second.build(names, survey, low, high)
    with clock("fit"):
        lstd = LSTD(
            features,
            second,
            lam=settings.lam,
            discount=settings.discount,
            ridge=settings.ridge,
            variance=variance,
            nonnegative_at="visited" if settings.nonnegative else None,
        )
        if shards is not None:
            risk = lstd.fit_by(shards)
        else:
            problem = {
                "data": [data, *_fingerprint(data)],
                "columns": dict(columns),
                "settings": asdict(settings),
                "features": str(spelling),
                "variance": variance,
            }
            watched = Watched("fit", source, survey.transitions)
            fold = DurableFold(watched, checkpoint, json.loads(json.dumps(problem)), resume=resume)
            try:
                risk = lstd.fit_by(fold)
            except PolicyRiskError:
                checkpoint.unlink(missing_ok=True)  # it would come to the same end
                raise
    notes = {
        "data": data,
        "columns": dict(columns),
        "settings": asdict(settings),
        "features": str(spelling),
        "variance": variance,
        "box": [list(map(float, ends)) for ends in zip(low, high, strict=True)],
        "constant": [names[d] for d in constant],
        "unrecorded_ends": given_up,
        "vanished_episodes": vanished,
        "choice": None if choice is None else choice.to_dict(),
    }
    return Evaluation(name, names, risk, survey, settings.level, notes)


def _seed(given: int | None, checkpoint: Path, resume: bool) -> int:
    """The seed, or that of the run that goes on, or a fresh one: a run that was killed must find it again."""
    if given is not None:
        return given
    if resume and checkpoint.exists():
        return int(stored_problem(checkpoint)["settings"]["seed"])
    return secrets.randbelow(2**32)


def _fingerprint(data: str) -> list[list[Any]]:
    """Name, size and time of each file that the data are in."""
    place = Path(data)
    files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.exists()]


def coordinate_names(columns: Sequence[str] | None, dim: int) -> tuple[str, ...]:
    """The coordinates' names: the columns', numbered where a column is a list.

    >>> coordinate_names(["x", "y"], 2), coordinate_names(["obs"], 2), coordinate_names(None, 1)
    (('x', 'y'), ('obs_0', 'obs_1'), ('state',))
    """
    if columns is not None and len(columns) == dim:
        return tuple(columns)
    stem = columns[0] if columns is not None and len(columns) == 1 else "state"
    return (stem,) if dim == 1 else tuple(f"{stem}_{d}" for d in range(dim))
