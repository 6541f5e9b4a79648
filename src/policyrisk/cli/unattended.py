"""``policyrisk gate`` and ``watch``, which run unattended: for continuous integration, or every night."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from policyrisk.cli.evaluate import columns_of
from policyrisk.cli.screen import screen
from policyrisk.cli.shared import LevelOption, criterion_of, place_option
from policyrisk.evaluation.request import naming_arguments

_SOURCE = "a log (Parquet, a folder of it, CSV, npz, minari:ID), a folder of evaluate, or its summary.json."


def gate(
    new: Annotated[str, typer.Argument(help=f"The new policy: {_SOURCE}")],
    baseline: Annotated[str, typer.Argument(help="What it is compared with, likewise.")],
    by: Annotated[
        str,
        typer.Option(
            "--criterion", help="mean, sharpe, mean-std:c, mean-variance:c, quantile:q or cvar:q, q a share."
        ),
    ] = "cvar:0.05",
    margin: Annotated[float, typer.Option(help="By how much the new policy may be worse.", min=0)] = 0.0,
    level: LevelOption = 0.95,
    groups: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="Judge each group of episodes: a column, by its value at the start, or the regions that "
            "the starts of the baseline's evaluation are cut into, with Holm's correction.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="A column (seed, day): episodes with the same value depend on each other."),
    ] = None,
    discount: Annotated[
        float | None, typer.Option(help="Discount of logs, above 0; 1 or the evaluation's.", min=0, max=1)
    ] = None,
    markdown: Annotated[
        Path | None, place_option(help="Write the verdict as Markdown, for a pull request.")
    ] = None,
    **chosen: Any,
) -> None:
    """Is a new policy worse than a baseline by more than a margin? For continuous integration.

    The exit code is 0 if it passed, 1 if it is worse, 3 if the episodes do not decide, 2 if nothing could be
    compared. A verdict is wrong with a probability of at most 1 less the level.

    Example: policyrisk gate new.parquet old.parquet --criterion cvar:0.05 --margin 2 --markdown gate.md
    """
    for each in (new, baseline):
        if not (each.startswith("minari:") or Path(each).exists()):  # before what takes longer is imported
            text = f"path must name a file or a folder, got {each}, which does not exist"
            raise typer.BadParameter(text, param_hint="NEW BASELINE")
    from policyrisk._core.output import check_file, written_to
    from policyrisk.errors import PolicyRiskError

    criterion = criterion_of(by)
    with naming_arguments("--markdown"):
        if markdown is not None:
            check_file(markdown, "markdown")
    try:
        from policyrisk.evaluation.gate import gate as decide

        how: dict[str, Any] = {"by": groups, "cluster": cluster, "discount": discount}
        how |= {k: v for each in (new, baseline) for k, v in columns_of(each, chosen).items()}
        found = decide(new, baseline, criterion, margin, level, **how)
    except Exception as error:
        if screen.debug:
            screen.traceback()
        text = str(error) if isinstance(error, PolicyRiskError) else f"{type(error).__name__}: {error}"
        raise typer.BadParameter(text, param_hint="NEW BASELINE") from error
    if markdown is not None:
        with naming_arguments("--markdown"), written_to(markdown, "file", "markdown"):
            markdown.write_text(found.markdown(), encoding="utf-8")
    screen.answer(found.to_dict(), str(found))
    raise typer.Exit(found.exit_code)


def watch(
    data: Annotated[
        str, typer.Argument(help="New episodes: a Parquet file or a folder, a CSV or npz file, or minari:ID.")
    ],
    low: Annotated[float, typer.Option(help="No return can be below; one that is ends the watch.")],
    high: Annotated[float, typer.Option(help="No return can be above.")],
    monitor: Annotated[
        Path | None,
        place_option(help="The file of the monitor: read if it is there, and written with the new episodes."),
    ] = None,
    level: LevelOption = 0.95,
    discount: Annotated[float, typer.Option(help="Discount, above 0.", min=0, max=1)] = 1.0,
    below: Annotated[
        float | None, typer.Option(help="The chance of a return below this line is wanted as well.")
    ] = None,
    **chosen: Any,
) -> None:
    """Mean, 5% quantile and the mean of the worst 5%, in intervals that hold at every look.

    Example, each night: policyrisk watch today.parquet --low -200 --high 0 --monitor robot.npz
    """
    from policyrisk._core.output import check_file
    from policyrisk.data import batches, read
    from policyrisk.errors import InvalidInputError, MismatchError
    from policyrisk.returns import ReturnMonitor

    kept = ReturnMonitor(low, high, level)
    if monitor is not None:
        check_file(monitor, "monitor")
    if monitor is not None and monitor.exists():
        kept = ReturnMonitor.load(monitor)
        if (kept.low, kept.high, kept.level) != (low, high, level):
            raise MismatchError(
                f"{monitor} watches returns in [{kept.low:g}, {kept.high:g}] at level {kept.level:g}, got "
                f"[{low:g}, {high:g}] at level {level:g}; pass the same, or another file"
            )
    before, cut_off = len(kept), 0
    for batch in batches(read(data, **columns_of(data, chosen))):
        cut_off += int((~batch.terminated).sum())
        kept.update(batch.returns(discount))
    if cut_off:
        raise InvalidInputError(
            f"episodes must have ended, as the rest of a return is unknown, got {cut_off} that were cut off; "
            "pass a log of whole episodes, or evaluate it"
        )
    numbers = kept.to_dict()
    lines = [str(kept)]
    if below is not None:
        with naming_arguments("--below"):
            chance = kept.probability(below=below)
        numbers["below"] = {f"{below:g}": chance._asdict()}
        lines.append(f"chance of a return below {below:g}: {chance}")
    if monitor is not None:
        kept.save(monitor)
    numbers["new"] = len(kept) - before
    screen.answer(numbers, "\n".join(lines))
