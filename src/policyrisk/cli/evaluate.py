"""``policyrisk evaluate``: from recorded episodes to a folder with estimate, numbers, maps and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.shared import (
    AsJson,
    LevelOption,
    Ray,
    RayAddress,
    SeedOption,
    box,
    cluster,
    names,
    naming_options,
    print_json,
    saying_why,
)

if TYPE_CHECKING:
    from policyrisk._core.output import Clock
    from policyrisk.evaluation import Evaluation

_SUMMARY = "summary.json"
_COLUMNS = "Columns of the data"
_ESTIMATOR = "Estimator"


def _features(incomplete: str) -> list[str]:
    from policyrisk.evaluation.spelling import EXAMPLES

    return [example for example in EXAMPLES if example.startswith(incomplete)]


def evaluate(
    data: Annotated[
        str, typer.Argument(help="A Parquet file or a folder of them, a CSV or npz file, or minari:ID.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for risk.npz, survey.npz, summary.json, map_*.png and report.html. Files of these "
            "names in it are replaced, once all is done."
        ),
    ],
    state: Annotated[
        str | None, typer.Option(help="Columns of the state, as in x,y.", rich_help_panel=_COLUMNS)
    ] = None,
    features: Annotated[
        str,
        typer.Option(
            help="auto, or one of tiles:20x20 (,tilings=4), rbf:7x7 (,width=0.2), fourier:3 (,total=4), "
            "poly:2, tabular (tabular:30). One number is for all coordinates: tiles:10. Each may be followed "
            "by ,dims=x+y for the coordinates it looks at, and last by ,second= with the features of the "
            "second moment: poly:1,second=poly:2. auto tries a few by cross-validation.",
            rich_help_panel=_ESTIMATOR,
            autocompletion=_features,
        ),
    ] = "auto",
    lam: Annotated[
        float, typer.Option(min=0, max=1, help="Trace parameter λ.", rich_help_panel=_ESTIMATOR)
    ] = 0.9,
    discount: Annotated[
        float, typer.Option(min=0, max=1, help="Discount, above 0.", rich_help_panel=_ESTIMATOR)
    ] = 1.0,
    ridge: Annotated[
        float, typer.Option(min=0, help="Added to the equations' diagonal.", rich_help_panel=_ESTIMATOR)
    ] = 0.0,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct",
            help="Estimate the variance itself, not the second moment less the squared mean.",
            rich_help_panel=_ESTIMATOR,
        ),
    ] = False,
    nonnegative: Annotated[
        bool,
        typer.Option(
            "--nonnegative", help="Demand V >= 0 at all visited states.", rich_help_panel=_ESTIMATOR
        ),
    ] = False,
    the_box: Annotated[
        str,
        typer.Option(
            "--box",
            help="auto for the data's own extent, or low:high of each coordinate, as in 0:1,-2:2.",
            rich_help_panel=_ESTIMATOR,
        ),
    ] = "auto",
    episode: Annotated[
        str | None, typer.Option(help="The episode's column.", rich_help_panel=_COLUMNS)
    ] = None,
    reward: Annotated[str | None, typer.Option(help="The reward's column.", rich_help_panel=_COLUMNS)] = None,
    terminated: Annotated[
        str | None, typer.Option(help="Column that says where an episode ended.", rich_help_panel=_COLUMNS)
    ] = None,
    truncated: Annotated[
        str | None, typer.Option(help="Column that says where one was cut off.", rich_help_panel=_COLUMNS)
    ] = None,
    step: Annotated[str | None, typer.Option(help="The step's column.", rich_help_panel=_COLUMNS)] = None,
    name: Annotated[str | None, typer.Option(help="The policy's name, else that of --out.")] = None,
    level: LevelOption = 0.95,
    seed: SeedOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the same evaluation where it was killed or stopped.")
    ] = False,
    ray: Ray = False,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Mean, variance, std and Sharpe ratio of a recorded policy, with error bars, maps and a report.

    Example: policyrisk evaluate log.parquet --state x,y --features tiles:20x20 --out results/careful
    """
    from policyrisk._core.folder import check_folder, complete_folder
    from policyrisk._core.output import Clock
    from policyrisk.evaluation import evaluate as evaluation_of

    if resume and (ray or ray_address):
        raise typer.BadParameter(
            "there is no checkpoint of a run on Ray to go on with; leave out --resume, or Ray",
            param_hint="--resume",
        )
    columns: dict[str, Any] = {
        "episode": episode,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "step": step,
    }
    # These have no columns: --state names the coordinates.
    nameless = data.startswith("minari:") or data.lower().endswith(".npz")
    columns["names" if nameless else "state"] = names(state, "--state")
    check_folder(out)
    clock = Clock()
    checkpoint = out.absolute().parent / f".{out.absolute().name}.checkpoint.npz"
    with saying_why(), cluster(ray, ray_address) as on_cluster, naming_options({"names": "--state"}):
        evaluation = evaluation_of(
            data,
            discount,
            features,
            lam=lam,
            ridge=ridge,
            variance="direct" if direct else None,
            nonnegative=nonnegative,
            box=the_box if the_box == "auto" else box(the_box),
            level=level,
            seed=seed,
            name=out.absolute().name if name is None else name,
            checkpoint=None if on_cluster else checkpoint,
            resume=resume,
            on_cluster=on_cluster,
            say=None if as_json else lambda text: typer.echo(f"{text}\n"),
            **{key: value for key, value in columns.items() if value is not None},
        )
    with complete_folder(out, last=_SUMMARY) as folder:
        numbers = _write(evaluation, folder, clock)
        written = [out / path.name for path in sorted(folder.iterdir())]
    checkpoint.unlink(missing_ok=True)
    if as_json:
        print_json(numbers)
        return
    typer.echo(_text(evaluation, numbers["seconds"], written))


def _write(evaluation: Evaluation, folder: Path, clock: Clock) -> dict[str, Any]:
    """Write everything into an empty folder; what ``summary.json`` holds."""
    from policyrisk._core.output import write_json
    from policyrisk.evaluation.maps import write_maps

    with clock("write"):
        evaluation.save(folder)
    with clock("maps"):
        write_maps(evaluation, folder)
    with clock("report"):
        evaluation.report(folder / "report.html")
    seconds = {**evaluation.seconds, **clock.seconds}
    total = seconds.pop("total")
    numbers = {**evaluation.to_dict(), "seconds": {**seconds, "total": total}}
    write_json(numbers, folder / _SUMMARY)
    return numbers


def _text(evaluation: Evaluation, seconds: Mapping[str, float], written: Sequence[Path]) -> str:
    """An evaluation for a person."""
    from policyrisk._core.text import number, percent, plural

    survey, notes, risk = evaluation.survey, evaluation.notes, evaluation.risk
    direct = risk.variance_method == "direct"
    lines = [
        f"{evaluation.name}: {plural(survey.episodes, 'episode')}, "
        f"{plural(survey.transitions, 'transition')}, {percent(evaluation.cut_off_share)} cut off",
        "box: "
        + ", ".join(
            f"{name} {low:g} to {high:g}"
            for name, (low, high) in zip(evaluation.names, notes["box"], strict=True)
        ),
        *(f"note: {name} never changes: it tells nothing about the risk" for name in notes["constant"]),
        f"features {notes['features']} ({risk.features.size}), variance "
        + ("estimated directly" if direct else "from the second moment")
        + f"; condition number {number(risk.provenance.condition, 2)}; "
        f"{percent(evaluation.unvisited_share)} of the box unvisited, "
        f"{percent(evaluation.negative_share)} of the visited states with V < 0",
        "",
        str(evaluation.summary),
        "",
        *map(str, evaluation.advice),
        "",
        "seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in seconds.items()),
        "written: " + ", ".join(map(str, written)),
    ]
    return "\n".join(lines)
