"""The paper's pinball experiment (sec. 6, Figures 3 and 4): a risk map, and the naive one beside it.

A near-optimal policy in a maze, rewards −1 until the target. Trajectories from uniformly random states at
rest; LSTD(λ) with tiles on (x, y), for J and for M; Ṽ = M̃ − J̃². Against it stand two truths:

    at rest      mean and std of the return from each free tile's centre with no velocity, by Monte Carlo
    as visited   mean and std of all returns to go from a tile, over a large fresh set of trajectories

The paper compares with the first. Tiles on (x, y) do not see the velocity and estimate the second: a
ball that passes a tile at speed has another return to go than one that starts there.

The paper's two claims, that the std is not monotone in the distance to the target and that somewhere is
riskier than the farthest point, are tested on the Monte-Carlo map (see :mod:`experiments.claims`).
The riskiest of many noisy tiles looks riskier than it is, and a tile where the ball rarely goes astray may
look safe, so the tiles that decide are simulated anew.
"""

from __future__ import annotations

import argparse
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments import pinball_figures
from experiments.claims import monotonicity
from experiments.common import (
    Clock,
    Floats,
    chosen,
    parser,
    table,
    tell,
    write_arrays,
    write_figures,
    write_json,
)
from experiments.map_errors import LADDER, Budget, Truth
from experiments.tiles import TileGrid, TileReturns, every_visit, grid_points, visit_sums
from policyrisk import LSTD, MonteCarlo, RiskFunction, TileCoding, Trajectories, distributed, monte_carlo
from policyrisk.control import GreedyPolicy, pinball_policy
from policyrisk.domains import Pinball
from policyrisk.errors import CutOffWarning

_BATCH = 10_000  # fresh trajectories in memory at a time
_CONFIRM = 20_000  # fresh episodes for each of the tiles that decide a claim
_CLEAR = float(stats.norm.isf(0.001))  # standard errors
_SEEN = 100  # visits behind the as-visited truth of a tile, at least


@dataclass(frozen=True)
class PinballParameters:
    """What may be varied; the defaults are the paper's."""

    maze: str = "simple"
    noise: float = 0.03
    trajectories: int = 3000
    mc_episodes: int = 500  # at every free tile centre
    lam: float = 0.9
    tiles: int = 50
    seed: int = 0
    fresh: int = 200_000  # trajectories behind the as-visited truth

    @property
    def features(self) -> TileCoding:
        """The tiles on (x, y)."""
        return TileCoding([0, 0], [1, 1], bins=[self.tiles] * 2, dims=[0, 1])


@dataclass(frozen=True, eq=False)
class PinballResult:
    """Everything that the figures show, and what an extension goes on from."""

    parameters: PinballParameters
    pinball: Pinball
    policy: Any
    grid: TileGrid
    data: Trajectories
    risk: RiskFunction  # LSTD's
    rest: MonteCarlo  # at the free tiles' centres
    fresh: TileReturns
    budget: Budget
    numbers: dict[str, Any] = field(default_factory=dict, repr=False)  # what result.json holds
    clock: Clock = field(default_factory=Clock, repr=False)  # whose times they hold; it goes on

    @property
    def truth(self) -> Truth:
        """At rest."""
        return self.budget.truth

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as ``result.json`` holds them."""
        return {"parameters": asdict(self.parameters), **self.numbers}

    def maps(self) -> dict[str, Floats]:
        """The maps in rows of y and columns of x, (tiles, tiles) each, as ``maps.npz`` holds them."""
        J, V = self.risk.mean_and_variance(self.grid.states)
        values = {
            "distance": self.grid.distances,
            "lstd_mean": J,
            "lstd_variance": V,
            "lstd_variance_se": self.risk.standard_error(self.grid.states, of="variance"),
            "mc_mean": self.rest.mean,
            "mc_std": self.rest.std,
            "mc_mean_se": self.rest.mean_se,
            "mc_std_se": self.rest.std_se,
            "visits": self.fresh.visits,
            "visited_mean": self.fresh.mean,
            "visited_variance": self.fresh.variance,
        }
        return {name: self.grid.picture(value) for name, value in values.items()}


def run(
    parameters: PinballParameters | None = None,
    *,
    policy: Any = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    on_cluster: bool = False,
    device: Any = "cpu",
) -> PinballResult:
    """Simulate, estimate and compare.

    ``policy`` is the one that ships for the maze unless another is given. The Monte-Carlo map is saved in
    ``checkpoint`` every few seconds, and ``resume`` goes on from there; ``on_cluster`` simulates it by Ray.
    ``device="cuda"`` simulates on a GPU.
    """
    given = PinballParameters() if parameters is None else parameters
    pinball = Pinball(given.maze, noise=given.noise)
    if policy is None:
        policy = pinball_policy(given.maze)
    seeds = np.random.SeedSequence(given.seed).spawn(7)
    grid = TileGrid(pinball.maze, given.tiles)
    lstd = LSTD(given.features, lam=given.lam)
    clock = Clock()
    with clock("compilation"):  # so that the other times are those of the work
        few = pinball.rollout(policy, pinball.sample_starts(2, 0), 0, device=device)
        pinball.returns(policy, few.starts(), 2, 0, device=device)
        lstd.fit(few)
    with clock("simulation"):
        starts = pinball.sample_starts(given.trajectories, seeds[0])
        data = pinball.rollout(policy, starts, seeds[1], device=device)
    with clock("estimation"):
        equations = lstd.equations(data)
    with clock("solve"):
        lstd.solve(equations)
    with clock("error_bars"):  # and all of the above once more
        risk = lstd.fit(data)
    with clock("monte_carlo"), warnings.catch_warnings():
        # They are counted in the result, mc_cut_off.
        warnings.simplefilter("ignore", CutOffWarning)
        simulate = distributed.monte_carlo if on_cluster else partial(monte_carlo, device=device)
        rest = simulate(
            pinball, policy, grid.states, given.mc_episodes, seeds[2], checkpoint=checkpoint, resume=resume
        )
    with clock("as_visited"):
        fresh, reached, steps = _fresh(pinball, policy, grid, given.fresh, seeds[3], device)
    with clock("comparison"):
        repeats = max(LADDER[-1], given.trajectories // len(grid.states) + 1)
        returns = pinball.returns(policy, grid.states, repeats, seeds[4], device=device).returns
        truth = Truth(rest.mean, rest.std, rest.mean_se, rest.std_se)
        budget = Budget(truth, returns.reshape(-1, repeats))
        result = PinballResult(given, pinball, policy, grid, data, risk, rest, fresh, budget, clock=clock)
        numbers = _numbers(result) | _claims(result, seeds[5])
    numbers["fresh"] = {"trajectories": given.fresh, "reached_share": reached, "mean_steps": steps}
    numbers["value"] = _value_error(policy, grid, truth)
    numbers["seconds"] = clock.seconds
    return replace(result, numbers=numbers)


def write(result: PinballResult, folder: Path) -> list[Path]:
    """Write ``result.json``, ``maps.npz`` and the figures into the folder; their paths are returned."""
    paths = [folder / "result.json", write_arrays(result.maps(), folder / "maps.npz")]
    with result.clock("figures"):
        for name in ("value", "std", "distance"):
            figure = getattr(pinball_figures, f"draw_{name}")(result)
            paths += write_figures(figure, folder, f"pinball_{name}")
    write_json(result.to_dict(), paths[0])
    return paths


def _fresh(
    pinball: Pinball,
    policy: Any,
    grid: TileGrid,
    episodes: int,
    seed: np.random.SeedSequence,
    device: Any,
) -> tuple[TileReturns, float, float]:
    """The as-visited truth, the share of episodes that reached the target, and their mean steps."""
    sums, reached, steps = np.zeros((3, grid.free.size)), 0, 0
    sizes = [min(_BATCH, episodes - first) for first in range(0, episodes, _BATCH)]
    for size, own in zip(sizes, seed.spawn(len(sizes)), strict=True):
        starts, noise = own.spawn(2)
        data = pinball.rollout(policy, pinball.sample_starts(size, starts), noise, device=device)
        sums += visit_sums(data, grid)
        reached += int(data.terminated.sum())
        steps += data.transitions
    return every_visit(sums), reached / episodes, steps / episodes


def _numbers(result: PinballResult) -> dict[str, Any]:
    """The sizes, and the errors against both truths."""
    grid, data, rest, budget = result.grid, result.data, result.rest, result.budget
    at_rest = budget.truth.error(*result.risk.mean_and_variance(grid.states))
    rival = every_visit(visit_sums(data, grid))
    same, share = budget.same_budget(len(data))
    needed = budget.needed(at_rest.std_error)
    return {
        "trajectories": len(data),
        "transitions": data.transitions,
        "mean_steps": float(data.lengths.mean()),
        "reached_share": float(data.terminated.mean()),
        "free_tiles": len(grid.states),
        "mc_trajectories": int(rest.episodes.sum()),
        "mc_cut_off": int(rest.cut_off.sum()),
        "mc_mean_std": float(rest.std.mean()),
        "mc_std_standard_error": float(np.sqrt(np.mean(rest.std_se**2))),
        "std_rmse": at_rest.std_rmse,
        "std_rmse_relative": at_rest.std_rmse_relative,
        "mc_same_budget_rmse": same,
        "mc_same_budget_share": share,
        "mc_trajectories_needed": needed,
        "mc_needed_is_the_fewest": at_rest.std_error >= budget.error(2),  # two at each: it is an upper bound
        "sample_efficiency": needed / len(data),
        "at_rest": {
            "lstd": asdict(at_rest),
            "every_visit": asdict(budget.truth.error(rival.mean[grid.free], rival.variance[grid.free])),
        },
        "as_visited": _against_visits(result, rival),
    }


def _against_visits(result: PinballResult, rival: TileReturns) -> dict[str, Any]:
    """Errors over all tiles that were visited often enough, free centres or not."""
    grid, fresh = result.grid, result.fresh
    often = np.flatnonzero(fresh.visits >= _SEEN)
    if not often.size:
        return {"tiles": 0}
    positions, zero = grid_points(grid.tiles)[often], np.zeros(len(often))
    truth = Truth(fresh.mean[often], np.sqrt(fresh.variance[often]), zero, zero)
    J, V = result.risk.mean_and_variance(np.column_stack([positions, zero, zero]))
    return {
        "tiles": len(often),
        "mean_std": float(truth.std.mean()),
        "lstd": asdict(truth.error(J, V)),
        "every_visit": asdict(truth.error(rival.mean[often], rival.variance[often])),
    }


def _claims(result: PinballResult, seed: np.random.SeedSequence) -> dict[str, Any]:
    """Both claims of the paper, tested on the Monte-Carlo map."""
    grid, rest = result.grid, result.rest
    d, side = grid.distances, 1 / grid.tiles
    of_mean = monotonicity(-rest.mean, rest.mean_se, d, grid.neighbours, side)
    of_std = monotonicity(rest.std, rest.std_se, d, grid.neighbours, side)
    riskiest, farthest = int(np.nanargmax(rest.std)), int(np.argmax(np.where(np.isinf(d), -1.0, d)))
    deciding = [riskiest, farthest, *of_std.drop_pair]
    anew = monte_carlo(result.pinball, result.policy, grid.states[deciding], _CONFIRM, seed)
    lstd_std = np.sqrt(np.maximum(result.risk.variance(grid.states), 0.0))

    def tile(i: int, again: int) -> dict[str, Any]:
        return {
            "position": grid.states[i, :2].tolist(),
            "distance": float(d[i]),
            "mean": float(rest.mean[i]),
            "std": float(rest.std[i]),
            "std_standard_error": float(rest.std_se[i]),
            "std_anew": float(anew.std[again]),
            "std_anew_standard_error": float(anew.std_se[again]),
            "lstd_std": float(lstd_std[i]),
        }

    def less(a: int, b: int) -> dict[str, float]:
        difference, error = float(anew.std[a] - anew.std[b]), float(np.hypot(anew.std_se[a], anew.std_se[b]))
        return {"std": difference, "standard_error": error, "z": difference / error}

    gap, drop = less(0, 1), less(2, 3)
    chosen = int(np.nanargmax(lstd_std))
    return {
        "correlation_of_mean_and_distance": -of_mean.correlation,
        "riskiest": tile(riskiest, 0),
        "farthest": tile(farthest, 1),
        "lstd_riskiest": {"position": grid.states[chosen, :2].tolist(), "std": float(lstd_std[chosen])},
        "claims": {
            "steps_and_distance": asdict(of_mean),
            "std_and_distance": asdict(of_std),
            "drop_pair": [tile(i, again) for again, i in enumerate(of_std.drop_pair, start=2)],
            "nearer_less_farther": drop,
            "std_is_monotone_in_distance": of_std.monotone or drop["z"] <= _CLEAR,
            "riskiest_less_farthest": gap,
            "somewhere_is_riskier_than_the_farthest": gap["z"] > _CLEAR,
        },
    }


def _value_error(policy: Any, grid: TileGrid, truth: Truth) -> dict[str, float] | None:
    """How far the value that the policy was learned with is from the Monte-Carlo mean, if it has one."""
    value = getattr(policy, "value", None)
    if value is None:
        return None
    J = np.asarray(value(grid.states))
    return {
        "rmse": float(np.sqrt(np.mean((J - truth.mean) ** 2))),
        "correlation": float(np.corrcoef(J, truth.mean)[0, 1]),
    }


def text(numbers: dict[str, Any]) -> str:
    """The errors of the estimates, and the two claims."""
    own = f"{numbers['trajectories']:,}"

    def row(name: str, error: dict[str, Any], visited: dict[str, Any] | None) -> list[str]:
        beside = "–" if visited is None else f"{visited['std_rmse']:.3f}"
        std, correlation = f"{error['std_rmse']:.3f}", f"{error['std_correlation']:.3f}"
        return [name, own, std, correlation, beside, str(error["negative"])]

    header = ["estimate", "trajectories", "at rest", "correlation", "as visited", "V < 0"]
    names = {"lstd": "LSTD, tiles", "every_visit": "every-visit Monte Carlo, tiles"}
    rows = [
        *(row(name, numbers["at_rest"][key], numbers["as_visited"].get(key)) for key, name in names.items()),
        ["Monte Carlo, same budget", own, f"{numbers['mc_same_budget_rmse']:.3f}", "–", "–", "–"],
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


def options() -> argparse.ArgumentParser:
    """The options of this script and of :mod:`experiments.pinball_extended`."""
    found = parser(PinballParameters, __doc__, "results/pinball")
    found.add_argument("--policy", type=Path, help="one by experiments.train_pinball; for simple, one ships")
    found.add_argument("--resume", action="store_true", help="go on with a Monte-Carlo map in --out")
    found.add_argument("--device", default="cpu", help="simulate on cpu, cuda (a GPU), or auto (cpu)")
    found.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help="simulate on a Ray cluster")
    return found


def run_with(given: argparse.Namespace) -> PinballResult:
    """:func:`run` with the options of the command line."""
    policy = None if given.policy is None else GreedyPolicy.load(given.policy)
    given.out.mkdir(parents=True, exist_ok=True)
    on_cluster = given.ray is not None
    with distributed.cluster(given.ray or None) if on_cluster else nullcontext():
        return run(
            chosen(PinballParameters, given),
            policy=policy,
            checkpoint=given.out / "monte_carlo.npz",
            resume=given.resume,
            on_cluster=on_cluster,
            device=given.device,
        )


def main(arguments: list[str] | None = None) -> None:
    """Run the script."""
    given = options().parse_args(arguments)
    result = run_with(given)
    paths = write(result, given.out)
    tell(text(result.to_dict()), paths)


if __name__ == "__main__":
    main()
