"""``policyrisk reproduce``: the paper's experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from policyrisk.cli.screen import screen
from policyrisk.cli.shared import Ray, RayAddress, can_draw, cluster

if TYPE_CHECKING:
    from policyrisk._core.devices import Device
    from policyrisk.paper.chain import ChainResult
    from policyrisk.paper.curves import CurvesResult
    from policyrisk.paper.pinball_improved import ImprovedResult
    from policyrisk.paper.portfolio import PortfolioResult
    from policyrisk.risk.estimate import Estimate

app = typer.Typer(help="Redraw the paper's experiments.", no_args_is_help=True)


def _redraw(experiment: Any, parameters: Any, out: Path, told: Callable[[Any], str], **options: Any) -> None:
    """Run an experiment, write what it found into the folder, and tell it."""
    can_draw("matplotlib")
    result = experiment.run(parameters, **options)
    paths = experiment.write(result, out)
    _answer(result.to_dict(), told(result), paths)


def _answer(numbers: dict[str, Any], text: str, paths: Sequence[Path]) -> None:
    screen.answer(numbers, f"{text}\nwritten: {', '.join(map(str, paths))}")


@app.command("chain")
def reproduce_chain(
    out: Annotated[
        Path, typer.Option(help="Folder for result.json and the figure as PNG, SVG and PDF.")
    ] = Path("results/chain"),
    n: Annotated[int, typer.Option(help="Number of states.")] = 30,
    p: Annotated[float, typer.Option(help="Probability of a step towards the end.")] = 0.7,
    lam: Annotated[float, typer.Option(help="Trace parameter λ.")] = 0.95,
    degree: Annotated[int, typer.Option(help="Degree of the mean's polynomial.")] = 1,
    second_degree: Annotated[int, typer.Option(help="Degree of the second moment's polynomial.")] = 2,
    start: Annotated[str, typer.Option(help="Start state from 1 to n, or 'uniform'.")] = "1",
) -> None:
    """The paper's Figure 2: a walk whose projected variance turns negative, and what puts it right."""
    from policyrisk.paper import chain

    if start != "uniform" and not start.isdecimal():
        raise typer.BadParameter(f"{start!r} is neither a state's number nor 'uniform'", param_hint="--start")
    parameters = chain.ChainParameters(
        n, p, lam, degree, second_degree, start=None if start == "uniform" else int(start)
    )
    _redraw(chain, parameters, out, _chain_text)


def _chain_text(result: ChainResult) -> str:
    from policyrisk._core.text import table

    n, variance = result.parameters.n, result.variance
    shown = sorted({1, *range(max(1, n // 6), n, max(1, n // 6)), *range(max(1, n - 3), n + 1)})
    rows = [[str(x), *(f"{values[x - 1]:.3f}" for values in variance.values())] for x in shown]
    weights = {"w_J": result.w_mean, "w_M": result.w_second, "w_M constrained": result.w_second_constrained}
    negative = ", ".join(map(str, result.negative_states)) or "none"
    active = ", ".join(map(str, result.active_states)) or "none"
    lines = [
        "Variance of the reward to go",
        table(["state", *variance], rows),
        *(f"{name} on 1, x, x², …: " + ", ".join(f"{w:.6f}" for w in of) for name, of in weights.items()),
        f"States with negative projected variance: {negative}; constraint active at: {active}",
    ]
    return "\n".join(lines)


@app.command("curves")
def reproduce_curves(
    out: Annotated[
        Path, typer.Option(help="Folder for result.json, curves.csv and the figure as PNG, SVG and PDF.")
    ] = Path("results/curves"),
    episodes: Annotated[int, typer.Option(min=10, help="The largest number of episodes.")] = 5000,
    lam: Annotated[list[float] | None, typer.Option(help="LSTD's λ; again for more.")] = None,
    step: Annotated[float, typer.Option(help="TD's first step; later ones are step / (1 + k/decay).")] = 0.3,
    decay: Annotated[float, typer.Option(help="Episodes after which TD's step has halved.")] = 300,
    repeats: Annotated[int, typer.Option(help="Independent data sets behind the bands.")] = 50,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
) -> None:
    """Learning curves on the paper's chain: errors of J and V by LSTD(λ) and TD(0), with bands."""
    from policyrisk.paper import curves
    from policyrisk.td import StepSize

    given = curves.CurvesParameters()
    sizes = [size for size in given.episodes if size < episodes]
    parameters = curves.CurvesParameters(
        episodes=(*sizes, episodes),
        lams=tuple(lam) if lam else given.lams,
        step=StepSize(step, decay=decay, power=given.step.power),
        repeats=repeats,
        seed=seed,
    )
    _redraw(curves, parameters, out, _curves_text)


def _curves_text(result: CurvesResult) -> str:
    from policyrisk._core.text import number, table

    sizes = result.parameters.episodes
    columns = sorted({0, len(sizes) // 2, len(sizes) - 1})
    lines = []
    for k, of in enumerate(("mean J", "variance V")):
        rows = [
            [name, *(f"{number(m, 3)} ({number(low, 3)} to {number(high, 3)})" for low, m, high in shown)]
            for name in result.errors
            for shown in [result.bands(name)[:, columns, k].T.tolist()]
        ]
        heads = [f"{sizes[i]:,} episodes" for i in columns]
        lines += [f"Error of the {of}: median and 10 to 90% of the data sets", table(["", *heads], rows), ""]
    return "\n".join(lines)


@app.command("portfolio")
def reproduce_portfolio(
    out: Annotated[
        Path, typer.Option(help="Folder for result.json and the figure as PNG, SVG and PDF.")
    ] = Path("results/portfolio"),
    c: Annotated[
        list[float] | None, typer.Option(help="What a unit of variance costs; again for more.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes of an iteration.")] = 1000,
    iterations: Annotated[int, typer.Option(help="Iterations of the actor-critic.")] = 200,
    restarts: Annotated[int, typer.Option(help="Random starts of the exact gradient.")] = 1,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
) -> None:
    """A liquid and a non-liquid asset: policies improved by mean − c·variance, exactly and from episodes."""
    from policyrisk.paper import portfolio

    given = portfolio.PortfolioParameters()
    parameters = portfolio.PortfolioParameters(
        tuple(c) if c else given.c, restarts, episodes, iterations, given.step, seed
    )
    _redraw(portfolio, parameters, out, _portfolio_text)


def _portfolio_text(result: PortfolioResult) -> str:
    from policyrisk._core.text import number, table

    rows = [
        [name, "", number(mean), number(variance), ""] for name, (mean, variance) in result.simple.items()
    ]
    for kind, found in result.improved.items():
        rows += [
            [kind, f"{c:g}", *(number(value) for value in row)]
            for c, row in zip(result.parameters.c, found, strict=True)
        ]
    return table(["policy", "c", "mean", "variance", "mean − c·variance"], rows)


@app.command("pinball")
def reproduce_pinball(
    out: Annotated[Path, typer.Option(help="Folder for result.json, maps.npz and the figures.")] = Path(
        "results/pinball"
    ),
    maze: Annotated[str, typer.Option(help="A maze's name, or a JSON file with one.")] = "simple",
    policy: Annotated[
        Path | None, typer.Option(help="A policy by `train pinball`; for simple, one ships.", dir_okay=False)
    ] = None,
    trajectories: Annotated[int, typer.Option(help="Trajectories that LSTD learns from.")] = 3000,
    mc_episodes: Annotated[int, typer.Option(help="Monte-Carlo episodes at every free tile centre.")] = 500,
    noise: Annotated[
        float, typer.Option(help="Deviation of the noise that every action adds to both velocities.")
    ] = 0.03,
    lam: Annotated[float, typer.Option(help="Trace parameter λ.")] = 0.9,
    tiles: Annotated[int, typer.Option(help="Tiles along each side of the maze.")] = 50,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    extended: Annotated[bool, typer.Option("--extended", help="Go beyond the paper (some minutes).")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a Monte-Carlo map in --out.")] = False,
    device: Annotated[str, typer.Option(help="Simulate on cpu, cuda (a GPU), or auto.")] = "cpu",
    ray: Ray = False,
    ray_address: RayAddress = None,
) -> None:
    """The paper's Figures 3 and 4: the risk map of a pinball maze, and the naive map beside it."""
    from policyrisk._core import output
    from policyrisk.control import GreedyPolicy
    from policyrisk.paper import pinball

    chosen = None if policy is None else GreedyPolicy.load(policy)
    parameters = pinball.PinballParameters(
        maze=maze,
        noise=noise,
        trajectories=trajectories,
        mc_episodes=mc_episodes,
        lam=lam,
        tiles=tiles,
        seed=seed,
    )
    output.make_folder(out)
    can_draw("matplotlib")
    with cluster(ray, ray_address) as on_cluster:
        result = pinball.run(
            parameters,
            policy=chosen,
            checkpoint=out / "monte_carlo.npz",
            resume=resume,
            on_cluster=on_cluster,
            device=cast("Device", device),
        )
    paths = pinball.write(result, out)
    numbers = result.to_dict()
    if extended:
        from policyrisk.paper import pinball_extended

        extension = pinball_extended.run(result)
        paths += pinball_extended.write(extension, out)
        numbers["extended"] = extension.numbers
    _answer(numbers, _pinball_text(numbers), paths)


@app.command("pinball-improved")
def reproduce_pinball_improved(
    out: Annotated[
        Path, typer.Option(help="Folder for result.json, maps.npz, policy.npz and the figure.")
    ] = Path("results/pinball-improved"),
    c: Annotated[
        list[float] | None, typer.Option(help="What a unit of std costs, for the frontier; again for more.")
    ] = None,
    best: Annotated[float, typer.Option(help="The c whose policy is mapped and compared.")] = 1.0,
    iterations: Annotated[int, typer.Option(help="Iterations of each search.")] = 16,
    episodes: Annotated[int, typer.Option(help="Episodes of an iteration from each of the tiles.")] = 40,
    map_episodes: Annotated[int, typer.Option(help="Episodes of the maps from each free tile.")] = 500,
    fresh: Annotated[int, typer.Option(help="Fresh episodes from each of the tiles, to compare on.")] = 1000,
    tiles: Annotated[int, typer.Option(help="Tiles along each side of the maze.")] = 50,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="Simulate on cpu, cuda (a GPU), or auto.")] = "cpu",
) -> None:
    """Pinball with less risk: the shipped policy improved where it risks the most, by mean − c·std."""
    from policyrisk.paper import pinball_improved

    given = pinball_improved.ImprovedParameters()
    parameters = replace(
        given,
        c=tuple(c) if c else given.c,
        best=best,
        iterations=iterations,
        episodes=episodes,
        map_episodes=map_episodes,
        fresh=fresh,
        tiles=tiles,
        seed=seed,
    )
    _redraw(pinball_improved, parameters, out, _improved_text, device=cast("Device", device))


def _improved_text(result: ImprovedResult) -> str:
    from policyrisk._core.text import number, table

    def told(estimate: Estimate) -> str:
        return f"{number(estimate)} ± {number(estimate.standard_error, 2)}"

    rows = [[name, told(of.mean.estimate()), told(of.std.estimate())] for name, of in result.returns.items()]
    changes = [
        f"{name} {100 * change:+.1f}% ({100 * change.low:+.1f}% to {100 * change.high:+.1f}%)"
        for name, change in result.changes().items()
    ]
    numbers = result.to_dict()
    low, high = numbers["risky_std"]
    all_tiles = numbers["all_tiles"]
    lines = [
        f"From rest in the {numbers['risky_tiles']} riskiest of {numbers['free_tiles']} tiles (std {low:.1f} "
        f"to {high:.1f}), {result.parameters.fresh} fresh episodes each",
        table(["policy", "mean", "std within a tile"], rows),
        "Improved against shipped: " + ", ".join(changes),
        f"All free tiles: mean {number(all_tiles['before']['mean'])} before and "
        f"{number(all_tiles['after']['mean'])} after, std {number(all_tiles['before']['std'])} and "
        f"{number(all_tiles['after']['std'])}",
        "Frontier, the given policy being the shipped one made soft",
        str(result.frontier),
        "Seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in numbers["seconds"].items()),
    ]
    return "\n".join(lines)


def _pinball_text(numbers: dict[str, Any]) -> str:
    from policyrisk._core.text import NONE, table

    own = f"{numbers['trajectories']:,}"

    def row(name: str, error: dict[str, Any], visited: dict[str, Any] | None) -> list[str]:
        beside = NONE if visited is None else f"{visited['std_rmse']:.3f}"
        std, correlation = f"{error['std_rmse']:.3f}", f"{error['std_correlation']:.3f}"
        return [name, own, std, correlation, beside, str(error["negative"])]

    header = ["estimate", "trajectories", "at rest", "correlation", "as visited", "V < 0"]
    names = {"lstd": "LSTD, tiles", "every_visit": "every-visit Monte Carlo, tiles"}
    rows = [
        *(row(name, numbers["at_rest"][key], numbers["as_visited"].get(key)) for key, name in names.items()),
        ["Monte Carlo, same budget", own, f"{numbers['mc_same_budget_rmse']:.3f}", NONE, NONE, NONE],
        *(
            row(name, error, None)
            for name, error in numbers.get("extended", {}).get("maps", {}).items()
            if name not in ("tiles", "every-visit Monte Carlo")  # they are shown above
        ),
    ]
    claims, gap = numbers["claims"], numbers["claims"]["riskiest_less_farthest"]
    std, drop = claims["std_and_distance"], claims["nearer_less_farther"]
    fewest = "no more than " if numbers["mc_needed_is_the_fewest"] else ""
    monotone = "" if claims["std_is_monotone_in_distance"] else "not "
    lines = [
        "Error of the std of the reward to go (root mean square over tiles)",
        table(header, rows),
        f"{own} trajectories of {numbers['mean_steps']:.1f} actions, {100 * numbers['reached_share']:.2f}% "
        f"reached the target; truth at rest: {numbers['mc_trajectories']:,} trajectories, mean std "
        f"{numbers['mc_mean_std']:.2f}",
        f"Monte Carlo needs {fewest}{numbers['mc_trajectories_needed']:,.0f} trajectories for LSTD's error: "
        f"{numbers['sample_efficiency']:.1f} times as many",
        f"Correlation with the distance: mean {numbers['correlation_of_mean_and_distance']:.3f}, std "
        f"{std['correlation']:.3f}; the std is {monotone}monotone in it (it falls by "
        f"{drop['std']:.2f} ± {drop['standard_error']:.2f} between two tiles)",
        f"Riskiest tile {_place(numbers['riskiest'])}, farthest {_place(numbers['farthest'])}; simulated "
        f"anew they differ by {gap['std']:.2f} ± {gap['standard_error']:.2f}",
        "Seconds: " + ", ".join(f"{name} {taken:.1f}" for name, taken in numbers["seconds"].items()),
    ]
    return "\n".join(lines)


def _place(tile: dict[str, Any]) -> str:
    x, y = tile["position"]
    return f"({x:.2f}, {y:.2f}) with std {tile['std']:.2f}"
