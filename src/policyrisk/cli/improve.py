"""``policyrisk improve``: from a simulator and a criterion to a better policy, and how much better it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from policyrisk.cli.rollout import env_arguments
from policyrisk.cli.screen import screen
from policyrisk.cli.shared import can_draw, criterion_of, look_here

if TYPE_CHECKING:
    from policyrisk._core.devices import Device
    from policyrisk.criteria import Criterion

_RESULT, _CHECKPOINT = "result.json", "checkpoint.npz"


def improve(
    env: Annotated[str, typer.Argument(help="pinball, portfolio, or a Gymnasium id, as in CartPole-v1.")],
    criterion: Annotated[
        str, typer.Option(help="What is to be large: mean-std:c, mean-variance:c or sharpe, c a number.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for policy.npz, history.csv, learning.png, before.html, after.html and result.json."
        ),
    ],
    episodes: Annotated[
        int | None, typer.Option(min=2, help="Episodes of an iteration, else what suits the task.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Iterations, else what suits the task.")
    ] = None,
    step: Annotated[
        float | None, typer.Option(help="About how far a weight moves in the first iterations.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="The policy's features, spelled as for evaluate, but not auto.")
    ] = None,
    critic: Annotated[str | None, typer.Option(help="The critic's features, spelled likewise.")] = None,
    discount: Annotated[float, typer.Option(min=0, max=1, help="Discount, above 0.")] = 1.0,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="An environment's episodes end after so many steps, else by its own limit."),
    ] = None,
    action_noise: Annotated[
        float,
        typer.Option(
            min=0,
            help="Noise in an environment's actions: the probability of a random one instead, or, of "
            "continuous ones, the standard deviation in units of half their range.",
        ),
    ] = 0.0,
    reward_so_far: Annotated[
        bool, typer.Option("--reward-so-far", help="Let the policy see what it has earned, as `earned`.")
    ] = False,
    lam: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The gradient by the critic (0) or by whole returns (1)."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="Average the criterion over tiles of the starts, as pinball's tiles:10x10,dims=x+y."
        ),
    ] = None,
    env_args: Annotated[
        str | None, typer.Option(help="The environment's arguments, as in '{\"gravity\": 9.8}' (JSON).")
    ] = None,
    fresh: Annotated[int, typer.Option(min=2, help="Fresh episodes that both policies are run on.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="Simulate our domains on cpu, cuda (a GPU), or auto.")] = "cpu",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the same search where it was killed or stopped.")
    ] = False,
) -> None:
    """Improve a policy by an actor-critic of risk, and compare it with where it began on fresh episodes.

    Example: policyrisk improve CartPole-v1 --criterion mean-std:1 --action-noise 0.4 --out results/cartpole
    """
    goal = _criterion(criterion)
    arguments = env_arguments(env_args)
    look_here()  # for module:id
    from policyrisk._core.output import Clock, check_folder, complete_folder, write_figure, write_json
    from policyrisk.control.actor_critic import ActorCritic
    from policyrisk.control.before_after import improve as improved
    from policyrisk.control.tasks import task
    from policyrisk.errors import InvalidInputError
    from policyrisk.evaluation import evaluate
    from policyrisk.evaluation.spelling import Spelling
    from policyrisk.lstd import LSTD
    from policyrisk.passes.survey import Survey
    from policyrisk.plotting import plot_learning

    check_folder(out)
    drawn, reported = can_draw("matplotlib"), can_draw("plotly")
    checkpoint = out / _CHECKPOINT
    if checkpoint.exists() and not resume:
        raise typer.BadParameter(
            f"{checkpoint} is that of a search that was not finished; add --resume, or delete it",
            param_hint="--out",
        )
    clock = Clock()
    with clock("prepare"):
        given = task(env, arguments, max_steps, action_noise, reward_so_far)
        if features is not None and given.features is None:
            raise typer.BadParameter(
                f"the policy of {env} brings its own; leave the option out", param_hint="--features"
            )
        survey = Survey.of(given.pilot, seed=0)

        def spelled(text: str, option: str) -> Any:
            try:
                if text == "auto":
                    raise InvalidInputError(
                        "auto chooses for recorded data alone; write for example fourier:1"
                    )
                return Spelling.parse(text).build(given.names, survey, given.low, given.high)
            except InvalidInputError as error:
                raise typer.BadParameter(str(error), param_hint=option) from error

        phi = given.features if features is None else features
        judged = given.critic if critic is None else critic
        within = given.groups if groups is None else groups
        search = ActorCritic(
            given.start(None if phi is None else spelled(phi, "--features")),
            goal,
            LSTD(spelled(judged, "--critic"), discount=discount, variance="direct"),
            given.episodes if episodes is None else episodes,
            given.iterations if iterations is None else iterations,
            given.step if step is None else step,
            given.lam if lam is None else lam,
            None if within is None else spelled(within, "--groups"),
        )
    with clock("improve"):
        found = improved(
            search,
            given.simulator,
            seed,
            fresh=fresh,
            max_steps=given.max_steps,
            checkpoint=checkpoint,
            resume=resume,
            device=cast("Device", device),
        )
    with complete_folder(out, last=_RESULT) as folder:
        found.result.policy.save(folder / "policy.npz")
        found.write_history(folder / "history.csv")
        if drawn:
            write_figure(plot_learning(found.result), folder / "learning.png")
        with clock("reports"):
            for name, data in (("before", found.before), ("after", found.after)) if reported else ():
                evaluate(
                    data,
                    discount,
                    judged,
                    variance="direct",
                    box=list(zip(given.low.tolist(), given.high.tolist(), strict=True)),
                    seed=seed,
                    name=f"{env}, {name}",
                    names=given.names,
                ).report(folder / f"{name}.html")
        seconds = clock.seconds
        seconds["total"] = seconds.pop("total")  # the last
        numbers = {
            "task": env,
            **found.to_dict(),
            "iterations": search.iterations,
            "episodes_of_an_iteration": search.episodes,
            "step": search.step,
            "lam": search.lam,
            "groups": within,
            "reward_so_far": reward_so_far,
            "features": phi,
            "critic": judged,
            "discount": discount,
            "steps": given.max_steps,
            "action_noise": action_noise,
            "seed": seed,
            "seconds": seconds,
        }
        write_json(numbers, folder / _RESULT)
        written = [out / path.name for path in sorted(folder.iterdir())]
    checkpoint.unlink(missing_ok=True)
    answer = [
        f"Both policies on the same {fresh} fresh episodes; value: {found.result.criterion}"
        + ("" if within is None else f", averaged over {within}"),
        str(found),
        "written: " + ", ".join(map(str, written)),
    ]
    details = [
        "\nEpisodes of the search",
        str(found.result),
        "seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in seconds.items()),
    ]
    screen.answer(numbers, "\n".join(answer), details)


def _criterion(text: str) -> Any:
    """A criterion without a constraint, as in ``sharpe`` or ``mean-std:1``."""
    from policyrisk.criteria import MeanMinusStd, MeanMinusVariance

    makers: dict[str, Callable[[float], Criterion]] = {
        "mean-std:": MeanMinusStd,
        "mean-variance:": MeanMinusVariance,
    }
    return criterion_of(text, makers, "mean-std:c, mean-variance:c and sharpe, c a number")
