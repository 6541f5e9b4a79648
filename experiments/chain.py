"""The paper's chain (Figure 2): mean, second moment and variance; true, projected and constrained.

A walk of n states with rewards −1, φ_J and φ_M polynomials of degree 1 and 2, LSTD(0.95)'s exact projected
equations. The paper does not say where its trajectories start; a start in the first state gives what it
reports, negative variance in the last two states, and is the default. States are numbered 1, …, n here, as in
the paper, and weights are given on the raw monomials of the number: J̃(x) = Σ_k w_k x^k.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.common import Floats, chosen, parser, plain, table, tell, write_figures, write_json
from policyrisk import LSTD, Polynomial
from policyrisk.domains import walk
from policyrisk.errors import InvalidInputError


@dataclass(frozen=True)
class ChainParameters:
    """What may be varied; the defaults are the paper's."""

    n: int = 30
    p: float = 0.7
    lam: float = 0.95
    degree: int = 1
    second_degree: int = 2
    start: int = 1  # a state from 1 to n, 0 for the uniform distribution


@dataclass(frozen=True, eq=False)
class ChainResult:
    """Everything that Figure 2 shows, per state 1, …, n."""

    parameters: ChainParameters
    w_mean: Floats  # (degree + 1,), on raw monomials
    w_second: Floats  # (second_degree + 1,)
    w_second_constrained: Floats  # (second_degree + 1,)
    negative_states: list[int]  # where the projected variance is negative
    active_states: list[int]  # where the constraint holds with equality
    mean: dict[str, Floats]  # "true" and "projected", each (n,)
    second_moment: dict[str, Floats]  # "true", "projected", "constrained"
    variance: dict[str, Floats]  # "true", "projected", "constrained", "direct"

    def to_dict(self) -> dict[str, Any]:
        """The record in plain values, as ``result.json`` holds it."""
        values = {name: value for name, value in vars(self).items() if name != "parameters"}
        return {"parameters": asdict(self.parameters), **plain(values)}


def run(parameters: ChainParameters | None = None) -> ChainResult:
    """Solve the chain four ways.

    >>> result = run()
    >>> result.negative_states, result.active_states
    ([29, 30], [30])
    """
    given = ChainParameters() if parameters is None else parameters
    n = given.n
    if n < 2 or not 0 <= given.start <= n:
        raise InvalidInputError(
            f"start must be a state from 1 to n, or 0 for the uniform distribution, and n at least 2, got "
            f"{given.start} and n={n}; choose others"
        )
    chain = walk(n, given.p)
    start: int | Floats = given.start - 1 if given.start else np.full(n, 1.0 / n)
    box: dict[str, Any] = {"low": [0], "high": [n - 1]}
    features = (Polynomial(given.degree, **box), Polynomial(given.second_degree, **box))
    x = np.arange(n)
    projected = LSTD(*features, lam=given.lam).fit_exact(chain, start)
    constrained = LSTD(*features, lam=given.lam, nonnegative_at=x).fit_exact(chain, start)
    direct = LSTD(*features, lam=given.lam, variance="direct").fit_exact(chain, start)
    V = constrained.variance(x)
    return ChainResult(
        parameters=given,
        w_mean=_on_raw_monomials(projected.w_mean, n),
        w_second=_on_raw_monomials(projected.w_second, n),
        w_second_constrained=_on_raw_monomials(constrained.w_second, n),
        negative_states=(np.flatnonzero(projected.variance(x) < 0) + 1).tolist(),
        active_states=(np.flatnonzero(np.abs(V) <= 1e-9 * constrained.second_moment(x).max()) + 1).tolist(),
        mean={"true": chain.mean(), "projected": projected.mean(x)},
        second_moment={
            "true": chain.second_moment(),
            "projected": projected.second_moment(x),
            "constrained": constrained.second_moment(x),
        },
        variance={
            "true": chain.variance(),
            "projected": projected.variance(x),
            "constrained": V,
            "direct": direct.variance(x),
        },
    )


def draw(result: ChainResult) -> Figure:
    """Figure 2: three panels over the states."""
    styles = {
        "true": {"color": "black", "linewidth": 1.6},
        "projected": {"color": "tab:red", "linestyle": ":", "linewidth": 2.0},
        "constrained": {"color": "tab:blue", "linestyle": "--", "linewidth": 1.6},
        "direct": {"color": "tab:green", "linestyle": "-.", "linewidth": 1.2},
    }
    given = result.parameters
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    x = np.arange(1, given.n + 1)
    for axes, title, curves in zip(
        panels,
        ("Mean J(x)", "Second moment M(x)", "Variance V(x)"),
        (result.mean, result.second_moment, result.variance),
        strict=True,
    ):
        for name, values in curves.items():
            axes.plot(x, values, label=name, **styles[name])
        axes.set_title(title)
        axes.set_xlabel("state x (the end is behind the last)")
        axes.margins(x=0.02)
        axes.legend(frameon=False, fontsize="small")
    panels[0].set_ylabel("reward to go")
    panels[1].set_ylabel("reward²")
    panels[2].set_ylabel("reward²")
    panels[2].axhline(0.0, color="0.6", linewidth=0.8)
    if result.negative_states:
        negative = np.array(result.negative_states)
        panels[2].plot(
            negative, result.variance["projected"][negative - 1], "o", color="tab:red", markersize=4
        )
    start = f"start in state {given.start}" if given.start else "a uniform start"
    figure.suptitle(
        f"Walk of {given.n} states, p = {given.p:g}, λ = {given.lam:g}, polynomials of degree "
        f"{given.degree} and {given.second_degree}, {start}",
        fontsize="medium",
    )
    return figure


def write(result: ChainResult, folder: Path) -> list[Path]:
    """Write ``result.json`` and the figure into the folder; their paths are returned."""
    numbers = write_json(result.to_dict(), folder / "result.json")
    return [numbers, *write_figures(draw(result), folder, "chain")]


def text(result: ChainResult) -> str:
    """The variances at some states, the weights, and where the variance is negative."""
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


def _on_raw_monomials(w: Floats, n: int) -> Floats:
    """Weights on x^k for x = 1, …, n from those on u^k, u = (x − 1)/(n − 1)."""
    u = np.polynomial.Polynomial([-1.0 / (n - 1), 1.0 / (n - 1)])
    coefficients = np.polynomial.Polynomial(w)(u).coef
    return np.concatenate([coefficients, np.zeros(w.size - coefficients.size)])


def main(arguments: list[str] | None = None) -> None:
    """Run the script."""
    options = parser(ChainParameters, __doc__, "results/chain").parse_args(arguments)
    result = run(chosen(ChainParameters, options))
    tell(text(result), write(result, options.out))


if __name__ == "__main__":
    main()
