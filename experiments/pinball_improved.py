"""Pinball with less risk: the shipped policy improved where it risks the most.

From rest, at random in each free tile, returns of the shipped policy have a mean and a std *within the tile*.
The tenth of the tiles with the largest std is what is improved. The policy begins as the shipped one made
soft, π(a|x) ∝ exp(β Q(x, a)), and :class:`policyrisk.ActorCritic` climbs mean − c·std for one c after the
other, the std being the mean of those within tiles. The gradient takes whole returns (λ = 1), and the critic,
tiles on (x, y), only takes noise off it. All policies are compared on fresh episodes from the same starts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import common
from experiments.common import Bools, Clock, Floats, Ints, number, plain, table
from experiments.pinball_figures import draw_map
from experiments.tiles import TileGrid
from policyrisk import LSTD, TileCoding
from policyrisk.control import ActorCritic, Frontier, SoftmaxPolicy, frontier, pinball_policy
from policyrisk.control.trials import GroupedReturns, Judged, judged_estimate
from policyrisk.criteria import MeanMinusStd
from policyrisk.domains import Pinball
from policyrisk.plotting import plot_frontier
from policyrisk.risk.estimate import Estimate

_CRITIC = 24  # tiles along each side of what the critic sees


@dataclass(frozen=True)
class ImprovedParameters:
    """What may be varied."""

    c: tuple[float, ...] = (0.0, 1.0, 4.0)
    best: float = 1.0  # the c whose policy is mapped and compared
    share: float = 0.1  # of the free tiles, the riskiest
    episodes: int = 40  # from each of those tiles, in an iteration
    iterations: int = 16  # of each search: up the prices and down again
    step: float = 0.2
    sharpness: float = 16.0  # β
    map_episodes: int = 500  # from each free tile, before and after
    fresh: int = 1000  # from each of the riskiest tiles, for the comparison
    tiles: int = 50
    seed: int = 0


@dataclass(frozen=True, eq=False)
class ImprovedResult:
    """The maps before and after, the frontier, and the comparison on fresh episodes."""

    parameters: ImprovedParameters
    grid: TileGrid
    risky: Bools  # (free tiles,)
    before: Floats  # (2, free tiles): mean and std within each, of the shipped policy
    after: Floats  # (2, free tiles)
    frontier: Frontier
    policy: SoftmaxPolicy
    returns: dict[str, GroupedReturns]  # fresh ones, of the shipped policy, made soft, and improved
    seconds: dict[str, float]

    def changes(self) -> dict[str, Estimate]:
        """How mean and std of the improved policy differ from the shipped one's, in parts of its own."""
        old, new = self.returns["shipped"], self.returns["improved"]
        return {"mean": _change(old.mean, new.mean), "std": _change(old.std, new.std)}

    def to_dict(self) -> dict[str, Any]:
        """The record in plain values, as ``result.json`` holds it."""
        policies = {
            name: {"mean": each.mean.estimate().to_dict(), "std": each.std.estimate().to_dict()}
            for name, each in self.returns.items()
        }
        points = [
            {"c": p.c, "mean": p.mean, "std": p.std, "mean_error": p.mean_error, "std_error": p.std_error}
            for p in self.frontier.points
        ]
        numbers = {
            "risky_tiles": int(self.risky.sum()),
            "free_tiles": len(self.risky),
            "risky_std": [self.before[1, self.risky].min(), self.before[1, self.risky].max()],
            "policies": policies,
            "changes": {name: each.to_dict() for name, each in self.changes().items()},
            "frontier": points,
            "all_tiles": {
                name: {"mean": values[0].mean(), "std": values[1].mean()}
                for name, values in (("before", self.before), ("after", self.after))
            },
            "seconds": self.seconds,
        }
        return {"parameters": asdict(self.parameters), **plain(numbers)}


def run(parameters: ImprovedParameters | None = None, *, device: Any = "cpu") -> ImprovedResult:
    """Find the riskiest tiles, improve the policy from there, and compare."""
    given = ImprovedParameters() if parameters is None else parameters
    pinball, shipped = Pinball(), pinball_policy()
    grid = TileGrid(pinball.maze, given.tiles)
    groups = TileCoding([0, 0], [1, 1], bins=[given.tiles] * 2, dims=[0, 1])
    seeds = np.random.SeedSequence(given.seed).spawn(4)
    everywhere = np.arange(len(grid.states))
    clock = Clock()

    def returns_of(policy: Any, tiles: Ints, repeats: int, seed: np.random.SeedSequence) -> GroupedReturns:
        """The same starts and streams for every policy."""
        starts = starts_in(grid, np.repeat(tiles, repeats), np.random.default_rng(seed))
        found = pinball.returns(policy, starts, seed=np.random.default_rng(seed), device=device)
        return GroupedReturns.of(found.returns, starts, groups)

    def map_of(policy: Any) -> Floats:
        found = returns_of(policy, everywhere, given.map_episodes, seeds[0])
        return np.array([found.means, np.sqrt(found.variances)])

    with clock("map_before"):
        before = map_of(shipped)
    riskiest = np.argsort(-before[1], kind="stable")[: max(round(given.share * len(everywhere)), 1)]
    risky = np.isin(everywhere, riskiest)
    tiles = everywhere[risky]
    soft = SoftmaxPolicy(shipped.features, shipped.actions, given.sharpness * shipped.weights)
    search = ActorCritic(
        soft,
        MeanMinusStd(given.best),
        LSTD(TileCoding([0, 0], [1, 1], bins=[_CRITIC] * 2, dims=[0, 1]), variance="direct"),
        given.episodes * len(tiles),
        given.iterations,
        given.step,
        lam=1.0,
        groups=groups,
    )
    with clock("frontier"):
        best = frontier(
            pinball,
            c=sorted({*given.c, given.best}),
            search=search,
            starts=lambda n, rng: starts_in(grid, np.resize(tiles, n), rng),
            seed=seeds[1],
            device=device,
        )
    policy = next(point.policy for point in best.points if point.c == given.best)
    with clock("comparison"):
        policies = {"shipped": shipped, "made soft": soft, "improved": policy}
        returns = {name: returns_of(each, tiles, given.fresh, seeds[2]) for name, each in policies.items()}
    with clock("map_after"):
        after = map_of(policy)
    return ImprovedResult(given, grid, risky, before, after, best, policy, returns, clock.seconds)


def starts_in(grid: TileGrid, tiles: Ints, rng: np.random.Generator) -> Floats:
    """A start at rest (n, 4) in each of the free tiles (n,), uniform where the ball can be."""
    centre = grid.states[tiles, :2]
    starts = np.zeros((len(tiles), 4))
    missing = np.arange(len(tiles))
    while missing.size:
        starts[missing, :2] = centre[missing] + (rng.random((missing.size, 2)) - 0.5) / grid.tiles
        missing = missing[~grid.maze.playable(starts[missing, :2])]
    return starts


def _change(old: Judged, new: Judged) -> Estimate:
    """(new − old) / |old|, with the error that both give it."""
    moved = (new.influence - new.value / old.value * old.influence) / abs(old.value)
    return judged_estimate((new.value - old.value) / abs(old.value), moved)


def draw(result: ImprovedResult) -> Figure:
    """The risk maps before and after, on one colour scale, and the frontier beside them."""
    figure = Figure(figsize=(12.6, 4.2), layout="constrained")
    old, new, plane = figure.subplots(1, 3)
    top = float(np.quantile(result.before[1], 0.995))
    grid = result.grid
    for axes, name, values in ((old, "shipped", result.before), (new, "improved", result.after)):
        picture = grid.picture(values[1])
        image = draw_map(axes, grid.maze, picture, vmin=0.0, vmax=top, cmap="inferno")
        risky = np.nan_to_num(grid.picture(result.risky.astype(np.float64)))
        middles = (np.arange(grid.tiles) + 0.5) / grid.tiles
        axes.contour(middles, middles, risky, levels=[0.5], colors="tab:cyan", linewidths=0.8)
        within = result.returns[name].std.value
        axes.set_title(f"{name}: std {within:.2f} in the outlined tiles", fontsize="medium")
    new.label_outer()
    figure.colorbar(image, ax=[old, new], label="std of the return within a tile (actions)", extend="max")
    plot_frontier(result.frontier, axes=plane)
    shipped = result.returns["shipped"]
    plane.plot(
        shipped.std.value, shipped.mean.value, "D", color="tab:green", markersize=7, label="shipped policy"
    )
    plane.legend(frameon=False)
    plane.set(xlabel="mean std within the riskiest tiles", ylabel="mean return from there")
    return figure


def write(result: ImprovedResult, folder: Path) -> list[Path]:
    """Write ``result.json``, ``maps.npz``, ``policy.npz`` and the figure; their paths are returned."""
    maps = {
        f"{name}_{what}": result.grid.picture(row)
        for name, values in (("before", result.before), ("after", result.after))
        for what, row in zip(("mean", "std"), values, strict=True)
    }
    numbers = common.write_json(result.to_dict(), folder / "result.json")
    paths = [numbers, common.write_arrays(maps, folder / "maps.npz"), folder / "policy.npz"]
    result.policy.save(paths[2])
    return [*paths, *common.write_figures(draw(result), folder, "improved")]


def text(result: ImprovedResult) -> str:
    """Both policies, the frontier, and how long it took."""

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


def main(arguments: list[str] | None = None) -> None:
    """Run the script."""
    options = common.parser(ImprovedParameters, __doc__, "results/pinball-improved")
    options.add_argument("--device", default="cpu", help="simulate on cpu, cuda (a GPU), or auto (cpu)")
    given = options.parse_args(arguments)
    result = run(common.chosen(ImprovedParameters, given), device=given.device)
    common.tell(text(result), write(result, given.out))


if __name__ == "__main__":
    main()
