"""``policyrisk watch``: returns as they come in, in intervals that hold however often one looks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from policyrisk.cli.evaluate import columns_of
from policyrisk.cli.screen import screen
from policyrisk.cli.shared import LevelOption, naming, place_option


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
        with naming("--below"):
            chance = kept.probability(below=below)
        numbers["below"] = {f"{below:g}": chance._asdict()}
        lines.append(f"chance of a return below {below:g}: {chance}")
    if monitor is not None:
        kept.save(monitor)
    numbers["new"] = len(kept) - before
    screen.answer(numbers, "\n".join(lines))
