"""The portfolio of Tamar, Di Castro and Mannor (2012), improved by mean − c·variance in three ways.

By the exact gradient, over policies that see slots and rate and over those that see the period too, and from
simulated episodes alone, over the first kind. All policies are rescored by the exact process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.common import Floats, chosen, number, parser, plain, table, tell, write_figures, write_json
from policyrisk import LSTD, ActorCritic, Joint, Polynomial, SoftmaxPolicy
from policyrisk.criteria import MeanMinusVariance
from policyrisk.domains import Portfolio

KINDS = ("slots and rate", "and the period", "from episodes")


@dataclass(frozen=True)
class PortfolioParameters:
    """What may be varied."""

    c: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0)
    restarts: int = 1
    episodes: int = 1000
    iterations: int = 200
    step: float = 0.15
    seed: int = 0


@dataclass(frozen=True, eq=False)
class PortfolioResult:
    """Mean and variance of every policy by the exact process, and how the one from episodes was learned."""

    parameters: PortfolioParameters
    simple: dict[str, tuple[float, float]]  # mean and variance of policies that need no search
    improved: dict[str, list[tuple[float, float, float]]]  # by kind: mean, variance and value for each c
    curves: list[Floats]  # for each c, the history of ActorCritic, (iterations, 6)

    def to_dict(self) -> dict[str, Any]:
        """The record in plain values, as ``result.json`` holds it."""
        values = {"simple": self.simple, "improved": self.improved}
        curves = [curve[:, [0, 2, 4]].tolist() for curve in self.curves]
        return {"parameters": asdict(self.parameters), **plain(values), "mean_std_value": curves}


def run(parameters: PortfolioParameters | None = None) -> PortfolioResult:
    """Improve the portfolio's policy for every c."""
    given = PortfolioParameters() if parameters is None else parameters
    portfolio = Portfolio()
    mdp, phi = portfolio.mdp, portfolio.features()

    def moments(policy: Any) -> tuple[float, float]:
        chain = mdp.chain(policy)
        return float(chain.mean()[0]), float(chain.variance()[0])

    def row(policy: Any, c: float) -> tuple[float, float, float]:
        mean, variance = moments(policy)
        return mean, variance, mean - c * variance

    chances = {"never invest": 0.0, "with probability ½": 0.5, "always invest": 1.0}
    simple = {name: moments(np.tile([1.0 - p, p], (mdp.n, 1))) for name, p in chances.items()}
    # V is nearly the sum of a function of the period and one of slots and rate; M is not.
    critic = LSTD(Joint([Polynomial(2, [0], [50], dims=[0]), phi]), variance="direct")
    improved: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
    curves = []
    for c in given.c:
        criterion = MeanMinusVariance(c)
        for kind, features in zip(KINDS[:2], (phi(portfolio.states), None), strict=True):
            exact = mdp.improve(criterion, seed=given.seed, features=features, restarts=given.restarts)
            improved[kind].append(row(exact.policy, c))
        search = ActorCritic(
            SoftmaxPolicy(phi, 2), criterion, critic, given.episodes, given.iterations, given.step
        )
        sampled = search.fit(portfolio, seed=given.seed)
        improved[KINDS[2]].append(row(sampled.policy(portfolio.states), c))
        curves.append(sampled.history)
    return PortfolioResult(given, simple, improved, curves)


def draw(result: PortfolioResult) -> Figure:
    """Mean against std for all policies, and the learning curves."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    plane, learning = figure.subplots(1, 2)
    for (kind, rows), marker in zip(result.improved.items(), "os^", strict=True):
        mean, variance, _ = np.array(rows).T
        plane.plot(np.sqrt(np.maximum(variance, 0.0)), mean, marker + "-", linewidth=1.0, label=kind)
    for name, (mean, variance) in result.simple.items():
        plane.plot(np.sqrt(max(variance, 0.0)), mean, "*", color="0.4", markersize=9)
        plane.annotate(name, (np.sqrt(max(variance, 0.0)), mean), xytext=(6, -10), textcoords="offset points")
    plane.set(xlabel="standard deviation of the return", ylabel="mean return")
    plane.legend(frameon=False, title="policies see")
    for c, curve in zip(result.parameters.c, result.curves, strict=True):
        learning.plot(np.arange(1, len(curve) + 1), curve[:, 4], linewidth=1.0, label=f"c = {c:g}")
    learning.set(xlabel="iteration", ylabel="mean − c·variance of its episodes")
    learning.legend(frameon=False)
    return figure


def write(result: PortfolioResult, folder: Path) -> list[Path]:
    """Write ``result.json`` and the figure into the folder; their paths are returned."""
    numbers = write_json(result.to_dict(), folder / "result.json")
    return [numbers, *write_figures(draw(result), folder, "portfolio")]


def text(result: PortfolioResult) -> str:
    """All policies, by the exact process."""
    rows = [
        [name, "", number(mean), number(variance), ""] for name, (mean, variance) in result.simple.items()
    ]
    for kind, found in result.improved.items():
        rows += [
            [kind, f"{c:g}", *map(number, row)] for c, row in zip(result.parameters.c, found, strict=True)
        ]
    return table(["policy", "c", "mean", "variance", "mean − c·variance"], rows)


def main(arguments: list[str] | None = None) -> None:
    """Run the script."""
    options = parser(PortfolioParameters, __doc__, "results/portfolio").parse_args(arguments)
    result = run(chosen(PortfolioParameters, options))
    tell(text(result), write(result, options.out))


if __name__ == "__main__":
    main()
