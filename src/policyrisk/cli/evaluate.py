"""``policyrisk evaluate``: from recorded episodes to a folder with estimate, numbers, maps and a report.

The options are those of :class:`policyrisk.evaluation.request.EvaluationRequest`; here is how text becomes a
value, and which columns the readers know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.screen import as_options, keyword, screen
from policyrisk.cli.shared import (
    CLUSTER,
    can_make,
    check_there,
    cluster,
    finite_number,
    options_of,
    place_option,
    policy_of,
    values_of,
    without_quotes,
)
from policyrisk.evaluation.request import COLUMNS, EvaluationRequest

if TYPE_CHECKING:
    from policyrisk.evaluation import Evaluation

_SUMMARY = "summary.json"
_PARTLY = ("map_*.png", "distribution.png", "report.html")  # which not every evaluation writes
_COLUMNS = {
    "state": 'Columns of the state, as in x,y; a name with a comma in it is in quotes: "a,b",y.',
    "episode": "The episode's column.",
    "reward": "The reward's column.",
    "terminated": "Column that says where an episode ended.",
    "truncated": "Column that says where one was cut off.",
    "step": "The step's column.",
    "action": "The action's column, or those of a continuous one, as in fx,fy (of one: force,).",
    "propensity": "Column of the probability with which the action was taken.",
    "time": "Column of when an episode took place: their order, where it is not that of the rows.",
    "missing": "What to do about missing values: refuse (an error, unless given), drop (leave out episodes "
    "that have one) or last (the last value in the episode stands for a state's).",
}


def column_options() -> list[inspect.Parameter]:
    """The options of the columns."""
    return [
        keyword(name, Annotated[str | None, typer.Option(help=text, rich_help_panel=COLUMNS)], None)
        for name, text in _COLUMNS.items()
    ]


def options() -> list[inspect.Parameter]:
    """The options of the columns, of the request and of Ray."""
    return [*column_options(), *options_of(EvaluationRequest, features=_features), *CLUSTER]


def _features(incomplete: str) -> list[tuple[str, str]]:
    from policyrisk.features.spelling import examples

    found = {**examples(), "auto": "a mixture that held-out episodes choose"}
    return [(text, words) for text, words in found.items() if text.startswith(incomplete)]


def evaluate(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="A Parquet file or a folder of them, a CSV or npz file, or minari:ID.")
    ],
    out: Annotated[
        Path,
        place_option(
            help="Folder for risk.npz, survey.npz, summary.json, map_*.png and report.html. Files of these "
            "names in it are replaced, once all is done."
        ),
    ],
    **chosen: Any,
) -> None:
    """Mean, variance, std and Sharpe ratio of a recorded policy, with error bars, maps and a report.

    Example: policyrisk evaluate log.parquet --state x,y --features tiles:20x20 --out results/careful

    With --target, those of another policy than the recorded one:
    policyrisk evaluate log.parquet --target my_policies:bold --out results/bold
    """
    if not data.startswith("minari:"):
        check_there(data, "path must name a file or a folder")
    from policyrisk._core.output import check_folder, hidden

    ray, address, target = chosen.pop("ray"), chosen.pop("ray_address"), chosen["target"]
    if chosen["resume"] and (ray or address):
        raise typer.BadParameter(
            "there is no checkpoint of a run on Ray to go on with; leave out --resume, or Ray",
            param_hint="--resume",
        )
    asked = values_of(EvaluationRequest, chosen, _PARSERS)
    given = {"name": out.absolute().name, **asked, **columns_of(data, chosen)}
    check_folder(out)
    EvaluationRequest(data, **{**asked, "resume": False}).checked()  # before what takes longer is imported
    from policyrisk.evaluation import evaluate as evaluation_of
    from policyrisk.passes.checkpoint import Unasked

    drawn, reported = can_make("pictures are"), can_make("the report is")
    checkpoint = hidden(out, "checkpoint.npz")
    with cluster(ray, address) as on_cluster:
        kept = None if on_cluster else Unasked(checkpoint, screen.note)
        evaluation = evaluation_of(data, **given, checkpoint=kept, on_cluster=on_cluster, say=screen.detail)
    if target is not None:  # an array does not know its name
        known = {**evaluation.notes["target"], "name": target}
        evaluation = replace(evaluation, notes={**evaluation.notes, "target": known})
    numbers, written = _write(evaluation, out, drawn, reported, context.obj or "")
    checkpoint.unlink(missing_ok=True)
    more = out / "report.html" if reported else out
    answer = f"{evaluation}\nmore in {more}" + ("" if screen.verbose else ", or here with --verbose")
    screen.answer(numbers, answer, [_details(evaluation, numbers["seconds"], written)])


def _write(
    evaluation: Evaluation, out: Path, drawn: bool, reported: bool, command: str
) -> tuple[dict[str, Any], list[Path]]:
    """Write the folder; its numbers, and its files."""
    from policyrisk._core.devices import single_threaded
    from policyrisk._core.output import Clock, complete_folder, write_json
    from policyrisk.plotting.evaluation_maps import write_maps

    clock = Clock()
    with complete_folder(out, last=_SUMMARY, partly=_PARTLY) as folder, single_threaded():
        with clock("write"):
            evaluation.save(folder)
        if drawn:
            with clock("maps"):
                write_maps(evaluation, folder)
        if reported:
            with clock("report"):
                evaluation.report(folder / "report.html", command=command)
        parts = {**evaluation.seconds, **clock.seconds}
        total = evaluation.seconds["total"] + clock.seconds["total"]
        parts.pop("total")
        numbers = {**evaluation.to_dict(), "seconds": {**parts, "total": round(total, 3)}}  # the last
        write_json(numbers, folder / _SUMMARY)
        return numbers, [out / path.name for path in sorted(folder.iterdir())]


def columns_of(data: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The reader's options; none stands for no column."""
    parsers: dict[str, Callable[[str], Any]] = {"state": _names, "action": _action}
    found = {
        name: None if chosen[name] == "none" else parsers.get(name, str)(chosen[name])
        for name in _COLUMNS
        if chosen[name] is not None
    }
    if "state" in found and (data.startswith("minari:") or data.lower().endswith(".npz")):
        found["names"] = found.pop("state")  # these have no columns: --state names the coordinates
    return found


def _names(text: str, option: str = "--state") -> list[str]:
    """Names with commas between, some in quotes."""
    from policyrisk._core.text import pieces

    written = [name.strip() for name in pieces(text, ",")]
    if option == "--action" and written[-1] == "":
        written.pop()
    found = [without_quotes(name, option) for name in written]
    if not all(written) or len(set(found)) < len(found):
        raise typer.BadParameter(
            f"{text!r} must be names with commas between, each once, as in x,y", param_hint=option
        )
    return found


def _action(text: str) -> str | list[str]:
    """The column of the action, or those of a continuous one, where a comma is between or after."""
    from policyrisk._core.text import pieces

    if len(pieces(text, ",")) > 1:
        return _names(text, "--action")
    return without_quotes(text, "--action")


def _box(text: str) -> str | list[tuple[float, float]]:
    """Low and high of the coordinates, from low:high with commas between, or auto."""
    if text == "auto":
        return text
    sides = [side.split(":") for side in text.split(",")]
    if any(len(side) != 2 for side in sides):
        raise typer.BadParameter(
            f"{text!r} must be auto, or low:high for each coordinate, as in 0:1,-2:2", param_hint="--box"
        )
    return [(finite_number(low, "--box"), finite_number(high, "--box")) for low, high in sides]


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "target": lambda text: policy_of(text, "--target"),
    "variance": lambda direct: "direct" if direct else None,
    "box": _box,
    "quantiles": lambda text: [
        finite_number(each, "--quantiles") for each in text.split(",") if text != "none"
    ],
    "time_limit": lambda text: int(text) if text.isdecimal() else text,
}


def _details(evaluation: Evaluation, seconds: Mapping[str, float], written: Sequence[Path]) -> str:
    """The details of the answer, for a person."""
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
    ]
    if risk.widening is not None and risk.error_bars is not None:
        lines.append("intervals at states cover randomness and the choice of features")
    if len(evaluation.changing) > FEW_COORDINATES:
        lines.append(f"most influential: {', '.join(evaluation.names[d] for d in evaluation.changing[:2])}")
    lines += ["", as_options(str(evaluation.summary))]
    if robust := evaluation.noted("target").get("doubly_robust"):
        said = ", ".join(
            f"{of} {number(robust[of]['value'])} ± {number(robust[of]['standard_error'], 3)}"
            for of in ("mean", "variance", "std", "sharpe")
        )
        worth = f"worth {robust['effective_episodes']:.0f} episodes"
        lines.append(f"doubly robust: {said}; by propensities, {worth}")
    lines += ["", *(as_options(str(advice)) for advice in evaluation.advice), ""]
    lines.append("seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in seconds.items()))
    lines.append("written: " + ", ".join(map(str, written)))
    return "\n".join(lines)


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
