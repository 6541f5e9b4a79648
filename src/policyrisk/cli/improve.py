"""``policyrisk improve``: from a simulator and a criterion to a better policy, and how much better it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policyrisk.cli.rollout import EnvArgs, env_arguments
from policyrisk.cli.screen import screen
from policyrisk.cli.shared import (
    can_make,
    criterion_of,
    made,
    place_option,
    values_of,
)
from policyrisk.evaluation.request import ImprovementRequest, naming_arguments

if TYPE_CHECKING:
    from policyrisk._core.output import Clock
    from policyrisk.control.before_after import BeforeAfter
    from policyrisk.evaluation.improvement import ImprovementPlan

_RESULT, _CHECKPOINT = "result.json", "checkpoint.npz"


def improve(
    env: Annotated[str, typer.Argument(help="pinball, portfolio, or a Gymnasium id, as in CartPole-v1.")],
    criterion: Annotated[
        str, typer.Option(help="What is to be large: mean-std:c, mean-variance:c or sharpe, c a number.")
    ],
    out: Annotated[
        Path,
        place_option(
            help="Folder for policy.npz, history.csv, learning.png, before.html, after.html and result.json."
        ),
    ],
    env_args: EnvArgs = None,
    **chosen: Any,
) -> None:
    """Improve a policy by an actor-critic of risk, and compare it with where it began on fresh episodes.

    Example: policyrisk improve CartPole-v1 --criterion mean-std:1 --action-noise 0.4 --out results/cartpole
    """
    from policyrisk._core.imports import look_here
    from policyrisk._core.output import Clock, check_folder
    from policyrisk._core.text import percent
    from policyrisk.evaluation.improvement import ImprovementPlan
    from policyrisk.passes.checkpoint import Unasked

    goal, arguments = criterion_of(criterion), env_arguments(env_args)
    request = ImprovementRequest(
        env, goal, arguments, **values_of(ImprovementRequest, chosen, {"policy": _beginning})
    )
    if ":" in env:  # module:id
        look_here(env.partition(":")[0])
    check_folder(out)
    drawn, reported = can_make("pictures are"), can_make("the report is")
    checkpoint = out / _CHECKPOINT
    if checkpoint.exists() and not request.resume:
        raise typer.BadParameter(
            f"{checkpoint} is that of a search that was not finished; add --resume, or delete it",
            param_hint="--out",
        )
    clock = Clock()
    with clock("prepare"):
        improvement = ImprovementPlan.of(request)
    with clock("improve"):
        found = improvement.run(Unasked(checkpoint, screen.note))
    numbers, written = _write(improvement, found, out, drawn, reported, clock)
    checkpoint.unlink(missing_ok=True)
    over = "" if improvement.groups is None else f", averaged over {improvement.groups}"
    begin = ""
    if improvement.imitation is not None:
        begin = (
            f"; before imitates {chosen['policy']}, whose actions it has in {percent(improvement.imitation)}"
        )
    answer = [
        f"Both policies on the same {request.fresh} fresh episodes; value: {found.result.criterion}{over}",
        *begin,
        str(found),
        f"policy.npz is that of iteration {found.iteration}, the best on other fresh episodes",
        "written: " + ", ".join(map(str, written)),
    ]
    seconds = ", ".join(f"{name} {taken:.1f}" for name, taken in numbers["seconds"].items())
    details = ["\nEpisodes of the search", str(found.result), f"seconds: {seconds}"]
    screen.answer(numbers, "\n".join(answer), details)


def _beginning(text: str) -> Any:
    """The policy of an earlier search, or what module:name stands for."""
    if not text.endswith(".npz"):
        return made(text, "--policy")
    from policyrisk.control.policies import stored_policy

    with naming_arguments("--policy"):
        return stored_policy(text)[0]


def _write(
    improvement: ImprovementPlan, found: BeforeAfter, out: Path, drawn: bool, reported: bool, clock: Clock
) -> tuple[dict[str, Any], list[Path]]:
    """Write the folder; its numbers, and its files."""
    from policyrisk._core.output import complete_folder, write_figure, write_json
    from policyrisk.plotting import plot_learning

    with complete_folder(out, last=_RESULT, partly=("learning.png", "before.html", "after.html")) as folder:
        found.result.policy.save(folder / "policy.npz", improvement.world)
        found.write_history(folder / "history.csv")
        if drawn:
            write_figure(plot_learning(found.result), folder / "learning.png")
        with clock("reports"):
            for name, evaluation in improvement.evaluations(found) if reported else ():
                evaluation.report(folder / f"{name}.html")
        seconds = clock.seconds
        seconds["total"] = seconds.pop("total")  # the last
        numbers = {**improvement.to_dict(found), "seconds": seconds}
        write_json(numbers, folder / _RESULT)
        return numbers, [out / path.name for path in sorted(folder.iterdir())]
