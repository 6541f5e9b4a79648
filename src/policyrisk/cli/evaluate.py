"""``policyrisk evaluate``: from recorded episodes to a folder with estimate, numbers, maps and a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.screen import as_options, screen
from policyrisk.cli.shared import (
    LevelOption,
    Ray,
    RayAddress,
    SeedOption,
    can_draw,
    cluster,
    finite_number,
    look_here,
    policy_of,
)

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

_SUMMARY = "summary.json"
_column = partial(typer.Option, rich_help_panel="Columns of the data")
_estimator = partial(typer.Option, rich_help_panel="Estimator")


def _features(incomplete: str) -> list[str]:
    from policyrisk.evaluation.spelling import EXAMPLES

    return [example for example in EXAMPLES if example.startswith(incomplete)]


def evaluate(
    context: typer.Context,
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
    state: Annotated[str | None, _column(help="Columns of the state, as in x,y.")] = None,
    label: Annotated[
        list[str] | None,
        _column(
            help="A column of the state whose numbers are names, as all text is; may be given several times."
        ),
    ] = None,
    features: Annotated[
        str,
        _estimator(
            help="auto, or one of tiles:20x20 (,tilings=4), rbf:7x7 (,width=0.2), fourier:3 (,total=4), "
            "poly:2, tabular (tabular:30), labels (,shrink=3), sb3:model.zip (the last hidden layer of a "
            "Stable-Baselines3 model's value network; ,normalisation=stats.npz), module:name of a function "
            "of states (n, dim), here or installed. One number is for all coordinates: tiles:10. "
            "Each may be followed by ,dims=x+y for the coordinates it looks at; some have a slash between: "
            "tiles:10,dims=x/labels,dims=city. Last may stand ,second= with the features of the second "
            "moment: poly:1,second=poly:2. auto mixes those that held-out episodes ask for.",
            autocompletion=_features,
        ),
    ] = "auto",
    target: Annotated[
        str | None,
        _estimator(
            help="Another policy than the recorded one, from a log with actions: module:name of a function "
            "from states (n, dim) to probabilities (n, actions), or of an array (states, actions) of them; "
            "the current folder is looked in too. Or sb3:model.zip, a file of Stable-Baselines3: the action "
            "that it holds best, or with ,stochastic after it its probabilities."
        ),
    ] = None,
    lam: Annotated[
        float | None,
        _estimator(min=0, max=1, help="Trace parameter λ, 0.9 unless given, and 0 with --target."),
    ] = None,
    discount: Annotated[float, _estimator(min=0, max=1, help="Discount, above 0.")] = 1.0,
    ridge: Annotated[float, _estimator(min=0, help="Added to the equations' diagonal.")] = 0.0,
    direct: Annotated[
        bool,
        _estimator(
            "--direct", help="Estimate the variance itself, not the second moment less the squared mean."
        ),
    ] = False,
    nonnegative: Annotated[
        bool, _estimator("--nonnegative", help="Demand V >= 0 at all visited states.")
    ] = False,
    box: Annotated[
        str,
        _estimator(help="auto for the data's own extent, or low:high of each coordinate, as in 0:1,-2:2."),
    ] = "auto",
    episode: Annotated[str | None, _column(help="The episode's column.")] = None,
    reward: Annotated[str | None, _column(help="The reward's column.")] = None,
    terminated: Annotated[str | None, _column(help="Column that says where an episode ended.")] = None,
    truncated: Annotated[str | None, _column(help="Column that says where one was cut off.")] = None,
    step: Annotated[str | None, _column(help="The step's column.")] = None,
    action: Annotated[
        str | None,
        _column(help="The action's column, or those of a continuous one, as in fx,fy (of one: force,)."),
    ] = None,
    propensity: Annotated[
        str | None, _column(help="Column of the probability with which the action was taken.")
    ] = None,
    missing: Annotated[
        str | None,
        _column(
            help="What to do about missing values: refuse (an error, unless given), drop (leave out episodes "
            "that have one) or last (the last value in the episode stands for a state's)."
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            help="Take the limit at which episodes were cut off for their end, and add the time left to the "
            "state: end, or the limit in steps."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The policy's name, else that of --out.")] = None,
    level: LevelOption = 0.95,
    quantiles: Annotated[
        str | None,
        typer.Option(
            help="Quantiles of the return that are wanted as well, as in 0.05,0.5,0.95, each with the mean "
            "of the worst."
        ),
    ] = None,
    loss_below: Annotated[
        float | None, typer.Option(help="The chance of a return below this line is wanted as well.")
    ] = None,
    seed: SeedOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the same evaluation where it was killed or stopped.")
    ] = False,
    ray: Ray = False,
    ray_address: RayAddress = None,
) -> None:
    """Mean, variance, std and Sharpe ratio of a recorded policy, with error bars, maps and a report.

    Example: policyrisk evaluate log.parquet --state x,y --features tiles:20x20 --out results/careful

    With --target, those of another policy than the recorded one:
    policyrisk evaluate log.parquet --target my_policies:bold --out results/bold
    """
    from policyrisk._core.output import Clock, check_folder, complete_folder, hidden, write_json
    from policyrisk.evaluation import evaluate as evaluation_of
    from policyrisk.evaluation.maps import write_maps

    if resume and (ray or ray_address):
        raise typer.BadParameter(
            "there is no checkpoint of a run on Ray to go on with; leave out --resume, or Ray",
            param_hint="--resume",
        )
    # Minari and npz have no columns: --state names the coordinates.
    nameless = data.startswith("minari:") or data.lower().endswith(".npz")
    columns: dict[str, Any] = {
        "names" if nameless else "state": _names(state),
        "episode": episode,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "step": step,
        "action": _names(action, "--action") if action is not None and "," in action else action,
        "propensity": propensity,
        "missing": missing,
    }
    check_folder(out)
    look_here()  # for --features module:name
    drawn, reported = can_draw("matplotlib"), can_draw("plotly")
    clock = Clock()
    checkpoint = hidden(out, "checkpoint.npz")
    with cluster(ray, ray_address) as on_cluster, _naming_options():
        evaluation = evaluation_of(
            data,
            discount,
            features,
            target=None if target is None else policy_of(target, "--target"),
            lam=lam,
            ridge=ridge,
            variance="direct" if direct else None,
            nonnegative=nonnegative,
            box=box if box == "auto" else _box(box),
            level=level,
            quantiles=_numbers(quantiles, "--quantiles"),
            loss_below=loss_below,
            seed=seed,
            name=out.absolute().name if name is None else name,
            labels=label or (),
            time_limit=_limit(time_limit),
            checkpoint=None if on_cluster else checkpoint,
            resume=resume,
            on_cluster=on_cluster,
            say=screen.detail,
            **{key: _unless_none(value) for key, value in columns.items() if value is not None},
        )
    if target is not None:  # an array does not know its name
        known = {**evaluation.notes["target"], "name": target}
        evaluation = replace(evaluation, notes={**evaluation.notes, "target": known})
    with complete_folder(out, last=_SUMMARY) as folder:
        with clock("write"):
            evaluation.save(folder)
        if drawn:
            with clock("maps"):
                write_maps(evaluation, folder)
        if reported:
            with clock("report"):
                evaluation.report(folder / "report.html", command=context.obj or "")
        seconds = {**evaluation.seconds, **clock.seconds}
        seconds["total"] = seconds.pop("total")  # the last
        numbers = {**evaluation.to_dict(), "seconds": seconds}
        write_json(numbers, folder / _SUMMARY)
        written = [out / path.name for path in sorted(folder.iterdir())]
    checkpoint.unlink(missing_ok=True)
    more = out / "report.html" if reported else out
    answer = f"{evaluation}\nmore in {more}" + ("" if screen.verbose else ", or here with --verbose")
    screen.answer(numbers, answer, [_details(evaluation, seconds, written)])


def _unless_none(column: Any) -> Any:
    """A column's name; none stands for no column."""
    return None if column == "none" else column


def _names(text: str | None, option: str = "--state") -> list[str] | None:
    """Names with commas between."""
    found = None if text is None else [name.strip() for name in text.split(",")]
    if option == "--action" and found is not None and found[-1] == "":
        found.pop()
    if found is not None and (not all(found) or len(set(found)) < len(found)):
        raise typer.BadParameter(
            f"{text!r} must be names with commas between, each once, as in x,y", param_hint=option
        )
    return found


def _numbers(text: str | None, option: str) -> list[float]:
    """Numbers with commas between, none for None."""
    return [] if text is None else [finite_number(each, option) for each in text.split(",")]


def _limit(text: str | None) -> Any:
    """A time limit: end, or a number of steps."""
    if text is None or text == "end":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} must be end, or the limit in steps, as in 200", param_hint="--time-limit"
        )
    return int(text)


def _box(text: str) -> list[tuple[float, float]]:
    """Low and high of the coordinates, from low:high with commas between."""
    sides = [side.split(":") for side in text.split(",")]
    if any(len(side) != 2 for side in sides):
        raise typer.BadParameter(
            f"{text!r} must be auto, or low:high for each coordinate, as in 0:1,-2:2", param_hint="--box"
        )
    return [(finite_number(low, "--box"), finite_number(high, "--box")) for low, high in sides]


@contextmanager
def _naming_options() -> Iterator[None]:
    """An argument of ours that is wrong is its option, that of the same name but for the coordinates'."""
    from policyrisk.errors import InvalidInputError

    try:
        yield
    except InvalidInputError as error:
        if error.argument is None:
            raise
        option = {
            "names": "--state",
            "labels": "--label",
            "loss_below": "--loss-below",
            "time_limit": "--time-limit",
        }.get(error.argument, f"--{error.argument}")
        raise typer.BadParameter(str(error), param_hint=option) from error


def _details(evaluation: Evaluation, seconds: Mapping[str, float], written: Sequence[Path]) -> str:
    """What stands behind the answer, for a person."""
    from math import isfinite

    from policyrisk._core.text import number, percent, plural
    from policyrisk.evaluation.record import FEW_COORDINATES

    survey, notes, risk = evaluation.survey, evaluation.notes, evaluation.risk
    extent = zip(evaluation.names, notes["box"], strict=True)
    method = "estimated directly" if risk.variance_method == "direct" else "from the second moment"
    condition = ""
    if isfinite(risk.provenance.condition):  # a forest alone has none
        condition = f"condition number {number(risk.provenance.condition, 2)}; "
    lines = [
        "",
        f"{plural(survey.episodes, 'episode')}, {plural(survey.transitions, 'transition')}, "
        f"{percent(evaluation.cut_off_share)} cut off",
        *_about_target(evaluation),
        "box: " + ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in extent),
        *(f"note: {name} never changes: it tells nothing about the risk" for name in notes["constant"]),
        f"features {notes['features']} ({risk.features.size}), variance {method}; "
        f"{condition}"
        f"{percent(evaluation.unvisited_share)} of the box unvisited, "
        f"{percent(evaluation.negative_share)} of the visited states with V < 0",
        *(
            ["intervals at states cover randomness and the choice of features"]
            if risk.misfit is not None and risk.error_bars is not None
            else []
        ),
        *(
            [f"most influential: {', '.join(evaluation.names[d] for d in evaluation.changing[:2])}"]
            if len(evaluation.changing) > FEW_COORDINATES
            else []
        ),
        "",
        as_options(str(evaluation.summary)),
        *_beside(evaluation),
        "",
        *(as_options(str(advice)) for advice in evaluation.advice),
        "",
        "seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in seconds.items()),
        "written: " + ", ".join(map(str, written)),
    ]
    return "\n".join(lines)


def _beside(evaluation: Evaluation) -> Iterator[str]:
    """The doubly robust figures, where there are any."""
    from policyrisk._core.text import number
    from policyrisk.evaluation.target_findings import doubly_robust

    if (found := doubly_robust(evaluation)) is not None:
        said = ", ".join(
            f"{of} {number(found[of]['value'])} ± {number(found[of]['standard_error'], 3)}"
            for of in ("mean", "variance", "std", "sharpe")
        )
        yield f"doubly robust: {said}; by propensities, worth {found['effective_episodes']:.0f} episodes"


def _about_target(evaluation: Evaluation) -> Iterator[str]:
    """What a log of another policy is to the target; nothing for the recorded policy."""
    if evaluation.target is None:
        return
    from policyrisk._core.text import percent

    notes = evaluation.notes["target"]
    yield f"the log is of another policy than the target, {notes['name']}, of {notes['actions']} actions"
    if notes["action_names"]:
        yield "actions: " + ", ".join(f"{k} {name}" for k, name in enumerate(notes["action_names"]))
    here = evaluation.risk.covered(evaluation.survey.visited).mean()
    yield (
        f"covered by logged actions: {percent(float(here))} of the target's probability at the visited "
        f"states, at least {percent(evaluation.summary.covered or 0.0)} on its way from the starts"
    )
    if evaluation.risk.support.gram is not None:
        yield (
            f"by smooth features: {percent(1.0 - notes['near']['share'])} of it is on actions that logged "
            "steps nearby took"
        )
