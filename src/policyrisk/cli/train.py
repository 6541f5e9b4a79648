"""``policyrisk train``: policies to evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policyrisk.cli.screen import screen
from policyrisk.cli.shared import can_draw

app = typer.Typer(help="Learn a policy to evaluate.", no_args_is_help=True)


@app.command("pinball")
def train_pinball(
    out: Annotated[
        Path, typer.Option(help="File for the policy; its learning curve goes beside it, as .png.")
    ] = Path("pinball_policy.npz"),
    maze: Annotated[str, typer.Option(help="A maze's name, or a JSON file with one.")] = "simple",
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise.")] = 0.03,
    episodes: Annotated[int, typer.Option(help="Episodes to learn from.")] = 300_000,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 1,
) -> None:
    """Learn pinball by SARSA(λ) with radial bases; the defaults give the policy that ships."""
    from policyrisk import control
    from policyrisk._core.output import write_figure
    from policyrisk.domains import Pinball

    drawn = can_draw("matplotlib")
    result = control.train_pinball(Pinball(maze, noise=noise), episodes, seed)
    result.policy.save(out)
    written = [out]
    if drawn:
        from policyrisk.paper.pinball_figures import draw_learning

        written.append(write_figure(draw_learning(result), out.with_suffix(".png")))
    ends, means = result.curve(20)
    said = f"{result}\nwritten: {', '.join(map(str, written))}"
    screen.answer({"episodes": ends, "mean_return": means}, said)
