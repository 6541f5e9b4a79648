"""The command ``policyrisk``. Heavy imports happen in the commands, so that ``--help`` is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from policyrisk.errors import PolicyRiskError

app = typer.Typer(
    name="policyrisk",
    help="How risky is a policy, from every state? Mean, second moment and variance of the reward to go.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(help="Redraw the paper's experiments.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Remember what every command shares."""
    context.obj = {"debug": debug}


@reproduce.command("chain")
def reproduce_chain(
    out: Annotated[Path, typer.Option(help="Folder for result.json, chain.png and chain.svg.")] = Path(
        "results/chain"
    ),
    n: Annotated[int, typer.Option(help="Number of states.")] = 30,
    p: Annotated[float, typer.Option(help="Probability of a step towards the end.")] = 0.7,
    lam: Annotated[float, typer.Option(help="Trace parameter λ.")] = 0.95,
    degree: Annotated[int, typer.Option(help="Degree of the mean's polynomial.")] = 1,
    second_degree: Annotated[int, typer.Option(help="Degree of the second moment's polynomial.")] = 2,
    start: Annotated[str, typer.Option(help="Start state from 1 to n, or 'uniform'.")] = "1",
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json instead of a table.")] = False,
) -> None:
    """The paper's Figure 3: a walk whose projected variance turns negative, and its mend."""
    from policyrisk.experiments import chain

    if start != "uniform" and not start.isdecimal():
        raise typer.BadParameter(f"{start!r} is neither a state's number nor 'uniform'", param_hint="--start")
    parameters = chain.ChainParameters(
        n=n,
        p=p,
        lam=lam,
        degree=degree,
        second_degree=second_degree,
        start=None if start == "uniform" else int(start),
    )
    result = chain.run(parameters)
    paths = chain.write(result, out)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    _print_chain(result, paths)


def _print_chain(result: object, paths: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    from policyrisk.experiments.chain import ChainResult

    assert isinstance(result, ChainResult)
    n = result.parameters.n
    shown = sorted({1, *range(max(1, n // 6), n, max(1, n // 6)), *range(max(1, n - 3), n + 1)})
    table = Table(title="Variance of the reward to go")
    for name in ("state", "true", "projected", "constrained", "direct"):
        table.add_column(name, justify="right")
    for x in shown:
        values = [result.variance[name][x - 1] for name in ("true", "projected", "constrained", "direct")]
        table.add_row(
            str(x),
            *(
                f"[red]{value:.3f}[/red]" if value < -1e-9 * abs(values[0]) else f"{value:.3f}"
                for value in values
            ),
        )
    console = Console()
    console.print(table)
    for name, weights in (
        ("w_J", result.w_mean),
        ("w_M", result.w_second),
        ("w_M constrained", result.w_second_constrained),
    ):
        console.print(f"{name} on 1, x, x², …: " + ", ".join(f"{w:.6f}" for w in weights), highlight=False)
    negative = ", ".join(map(str, result.negative_states)) or "none"
    active = ", ".join(map(str, result.active_states)) or "none"
    console.print(f"States with negative projected variance: {negative}; constraint active at: {active}")
    console.print("Written: " + ", ".join(str(path) for path in paths), highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; an error of ours is one message and exit code 1."""
    try:
        app()
    except PolicyRiskError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"policyrisk: {error}", err=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
