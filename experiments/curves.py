"""Learning curves on the paper's chain: errors of J and V against the number of episodes, LSTD(λ) and TD(0).

With a table of features nothing stands between an estimate and the truth but the number of episodes. The
error is the root mean square over the n states,

    √(Σ_x (J̃(x) − J(x))² / n)        √(Σ_x (Ṽ(x) − V(x))² / n),    Ṽ = M̃ − J̃²

against the exact J and V, for every one of ``repeats`` independent data sets; a curve is their median and a
band goes from the 10th to the 90th percentile. LSTD's equations add, so that each number of episodes takes
only the new ones; TD(0) goes over the same episodes once, in their order (sec. 4.2).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import common
from experiments.common import Floats, number, plain, table
from policyrisk import LSTD, TD, RiskFunction, StepSize, Tabular, Trajectories
from policyrisk.domains import walk
from policyrisk.errors import InvalidInputError

BAND = (0.1, 0.5, 0.9)  # quantiles over data sets
KINDS = ("mean", "variance")


@dataclass(frozen=True)
class CurvesParameters:
    """What may be varied."""

    n: int = 30
    p: float = 0.7
    episodes: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # rising
    lams: tuple[float, ...] = (0.0, 0.9, 1.0)
    step: float = 0.3  # of TD, in episode k step / (1 + k/decay), as the theorem allows
    decay: float = 300.0
    repeats: int = 50
    seed: int = 0


@dataclass(frozen=True, eq=False)
class CurvesResult:
    """The errors of every data set, by estimator."""

    parameters: CurvesParameters
    errors: dict[str, Floats]  # (repeats, sizes, 2): of J and of V

    def bands(self, name: str) -> Floats:
        """Low end, median and high end over the data sets, of shape (3, sizes, 2)."""
        return np.quantile(self.errors[name], BAND, axis=0)

    def to_dict(self) -> dict[str, Any]:
        """The record in plain values, as ``result.json`` holds it."""
        curves = {
            name: {
                of: dict(zip(("low", "median", "high"), plain(self.bands(name)[:, :, k]), strict=True))
                for k, of in enumerate(KINDS)
            }
            for name in self.errors
        }
        return {"parameters": plain(asdict(self.parameters)), "quantiles": list(BAND), "curves": curves}


def run(parameters: CurvesParameters | None = None) -> CurvesResult:
    """Estimate from more and more episodes of every data set.

    >>> result = run(CurvesParameters(n=5, episodes=(20, 2000), repeats=3))
    >>> low, median, high = result.bands("LSTD(0)")
    >>> (median[1] < median[0]).tolist()
    [True, True]
    """
    given = CurvesParameters() if parameters is None else parameters
    sizes = list(given.episodes)
    if not sizes or sizes[0] < 1 or sorted({*sizes}) != sizes:
        raise InvalidInputError(
            f"episodes must be rising numbers, got {', '.join(map(str, sizes)) or 'none'}; name each once"
        )
    chain, x = walk(given.n, given.p), np.arange(given.n)
    J, V = chain.mean(), chain.variance()
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for seed in np.random.SeedSequence(given.seed).spawn(given.repeats):
        data = chain.sample(0, episodes=sizes[-1], seed=seed)
        parts = [data[first:last] for first, last in zip([0, *sizes], sizes, strict=False)]
        for name, risks in _estimates(given, parts):
            errors = []
            for risk in risks:
                mean, variance = risk.mean_and_variance(x)
                errors.append((_rms(mean - J), _rms(variance - V)))
            found.setdefault(name, []).append(errors)
    return CurvesResult(given, {name: np.array(errors) for name, errors in found.items()})


def _estimates(
    given: CurvesParameters, parts: list[Trajectories]
) -> Iterator[tuple[str, Iterator[RiskFunction]]]:
    """The estimators by name, each with its estimates after the first part, the first two, and so on."""

    def sums(lstd: LSTD) -> Iterator[RiskFunction]:
        equations = lstd.equations(parts[0])
        yield lstd.solve(equations)
        for part in parts[1:]:
            equations += lstd.equations(part)
            yield lstd.solve(equations)

    for lam in given.lams:
        yield f"LSTD({lam:g})", sums(LSTD(Tabular(given.n), lam=lam))
    td = TD(Tabular(given.n), step=StepSize(given.step, decay=given.decay, power=1.0))
    yield "TD(0)", map(td.partial_fit, parts)


def draw(result: CurvesResult) -> Figure:
    """The curves and their bands, of J and of V."""
    given = result.parameters
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    colors = ("tab:blue", "tab:green", "tab:purple", "tab:brown", "tab:cyan", "tab:olive")
    names = [name for name in result.errors if name != "TD(0)"]
    styles = {name: (colors[k % len(colors)], "-") for k, name in enumerate(names)}
    styles["TD(0)"] = ("tab:red", "--")
    for k, (axes, of) in enumerate(zip(panels, ("mean J", "variance V"), strict=True)):
        for name in result.errors:
            low, median, high = result.bands(name)[:, :, k]
            color, line = styles[name]
            axes.plot(given.episodes, median, color=color, linestyle=line, linewidth=1.6, label=name)
            axes.fill_between(given.episodes, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="episodes", ylabel=f"error of the {of}, over the states")
        axes.grid(color="0.92", linewidth=0.8, which="both")
        axes.set_axisbelow(True)
        axes.margins(x=0.02)
    panels[0].legend(frameon=False)
    figure.suptitle(
        f"Walk of {given.n} states, p = {given.p:g}, a table: median of {given.repeats} data sets "
        f"and {100 * BAND[0]:g} to {100 * BAND[2]:g}%",
        fontsize="medium",
    )
    return figure


def write(result: CurvesResult, folder: Path) -> list[Path]:
    """Write ``result.json``, ``curves.csv`` and the figure into the folder; their paths are returned."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["estimator", "error_of", "episodes", "low", "median", "high"])
    for name in result.errors:
        for k, of in enumerate(KINDS):
            bands = result.bands(name)[:, :, k].T.tolist()
            rows.writerows(
                [name, of, size, *band] for size, band in zip(result.parameters.episodes, bands, strict=True)
            )
    numbers = common.write_json(result.to_dict(), folder / "result.json")
    points = common.write(folder / "curves.csv", lambda file: file.write(text.getvalue().encode()))
    return [numbers, points, *common.write_figures(draw(result), folder, "curves")]


def text(result: CurvesResult) -> str:
    """The errors at the smallest, a middle and the largest number of episodes."""
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


def main(arguments: list[str] | None = None) -> None:
    """Run the script."""
    options = common.parser(CurvesParameters, __doc__, "results/curves").parse_args(arguments)
    result = run(common.chosen(CurvesParameters, options))
    common.tell(text(result), write(result, options.out))


def _rms(error: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(error))))


if __name__ == "__main__":
    main()
