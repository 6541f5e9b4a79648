"""Beyond the paper: other estimates of the same risk map from the same trajectories, and a choice.

What can be varied, beside the paper's Ṽ = M̃ − J̃² on tiles of (x, y):

    direct variance     C w_V = Σ y_t δ_t²; with bases Σ y_t δ_t (2ε_t − δ_t), ε_t = Σ_{s≥t} λ^{s−t} δ_s, in
                        which J̃'s error counts about once and not at every step of the way
    the constraint      Ṽ ≥ 0 wherever the ball was seen (sec. 5)
    bases               φ that see the velocity: normalised Gaussians on a grid over (x, y, ẋ, ẏ), truncated
    bases and tiles     φ_J of bases and φ_V of tiles: J̃ decides how good δ_t² is, and a sum of squares over
                        tiles hardly ever comes out negative, as it does between smooth bases

Cross-validation chooses one by held-out trajectories, without the truth. A ridge of 1e-7 makes the bases that
the ball hardly ever came near harmless. Every-visit Monte Carlo on the same trajectories is the fair rival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments import pinball, pinball_figures
from experiments.common import Floats, tell, write_figures, write_json
from experiments.map_errors import MapError
from experiments.pinball import PinballParameters, PinballResult
from experiments.tiles import every_visit, visit_sums
from experiments.train_pinball import pinball_features
from policyrisk import LSTD, TD, StepSize, Trajectories, cross_validate

_RIDGE = 1e-7
_WIDTH, _CUT = 0.5, 1.0  # of the spacing: two or three bases are near along each coordinate
_NORMAL = 1.96
_PASSES = 100  # of TD over its trajectories: one is far too few for a table of 2,500 tiles


@dataclass(frozen=True)
class ExtendedParameters:
    """What may be varied."""

    fine: int = 20  # bases along x and along y, for J
    coarse: int = 15  # for J and V alike
    velocities: int = 3  # along ẋ and along ẏ
    folds: int = 3
    sizes: tuple[int, ...] = (300, 1000, 3000, 10_000)  # numbers of trajectories that errors are shown for


@dataclass(frozen=True, eq=False)
class ExtendedResult:
    """What the extension found; ``result`` is the paper's part."""

    result: PinballResult
    variances: dict[str, Floats]  # by estimate, (n,) at the free tiles' centres
    errors: dict[str, Floats]  # standard errors of the variances, (n,)
    validation: Any  # of cross_validate
    curves: dict[str, list[tuple[int, float]]]  # by estimate: trajectories and error of the std at rest
    numbers: dict[str, Any] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The numbers of both parts, as ``result.json`` holds them."""
        return {**self.result.to_dict(), "extended": self.numbers}


def candidates(paper: PinballParameters, given: ExtendedParameters) -> dict[str, LSTD]:
    """The estimators to choose from, by name."""
    tiles, lam, v = paper.features, paper.lam, given.velocities
    fine, coarse = (pinball_features((k, k, v, v), _WIDTH, _CUT) for k in (given.fine, given.coarse))
    direct: dict[str, Any] = {"lam": lam, "ridge": _RIDGE, "variance": "direct", "variance_lam": lam}
    return {
        "tiles": LSTD(tiles, lam=lam),
        "tiles, V ≥ 0": LSTD(tiles, lam=lam, nonnegative_at="visited"),
        "tiles, direct": LSTD(tiles, lam=lam, variance="direct"),
        "bases": LSTD(coarse, lam=lam, ridge=_RIDGE),
        "bases, direct": LSTD(coarse, **direct),
        "fine bases for J, coarse for V, direct": LSTD(fine, coarse, **direct),
        "bases for J, tiles for V, direct": LSTD(fine, tiles, **direct),
    }


def run(result: PinballResult, parameters: ExtendedParameters | None = None) -> ExtendedResult:
    """Fit every candidate, choose by cross-validation, and compare all with the truth at rest."""
    given = ExtendedParameters() if parameters is None else parameters
    clock = result.clock
    seeds = np.random.SeedSequence(result.parameters.seed).spawn(9)[7:]
    estimators = candidates(result.parameters, given)
    with clock("cross_validation"):
        validation = cross_validate(estimators, result.data, folds=given.folds, seed=seeds[0])
    risks = {}
    with clock("fits"):
        for name, estimator in estimators.items():
            risks[name] = estimator.fit(result.data)
    states = result.grid.states
    maps = {name: risk.mean_and_variance(states) for name, risk in risks.items()}
    errors = {name: risk.standard_error(states, of="variance") for name, risk in risks.items()}
    rival = every_visit(visit_sums(result.data, result.grid))
    free = result.grid.free
    maps["every-visit Monte Carlo"] = (rival.mean[free], rival.variance[free])
    found = {name: result.truth.error(*pair) for name, pair in maps.items()}
    with clock("curves"):
        curves = _curves(result, estimators[validation.best], validation.best, given.sizes, seeds[1])
    numbers: dict[str, Any] = {
        "chosen": validation.best,
        "verdict": validation.verdict,
        "cross_validation": validation.to_dict(),
        "maps": {
            name: _summary(result, error, errors.get(name), maps[name][1]) for name, error in found.items()
        },
        "curves": {name: [list(point) for point in curve] for name, curve in curves.items()},
    }
    numbers["sample_efficiency"] = numbers["maps"][validation.best]["sample_efficiency"]
    variances = {name: V for name, (_, V) in maps.items()}
    return ExtendedResult(result, variances, errors, validation, curves, numbers)


def write(extension: ExtendedResult, folder: Path) -> list[Path]:
    """Write the figures, and ``result.json`` anew with a key ``extended``; the figures' paths."""
    figures = []
    with extension.result.clock("extended_figures"):
        for name in ("estimates", "error_bars", "curves"):
            figure = getattr(pinball_figures, f"draw_{name}")(extension)
            figures += write_figures(figure, folder, f"pinball_{name}")
    write_json(extension.to_dict(), folder / "result.json")
    return figures


def _summary(result: PinballResult, error: MapError, se: Floats | None, V: Floats) -> dict[str, Any]:
    """An estimate's errors, its worth in Monte-Carlo trajectories, and how often its error bars cover."""
    needed = result.budget.needed(error.std_error)
    summary = {
        **asdict(error),
        "mc_trajectories_needed": needed,
        "sample_efficiency": needed / len(result.data),
    }
    if se is not None:
        seen = np.isfinite(V) & np.isfinite(se)
        spread = np.hypot(se, result.rest.variance_se)[seen]
        inside = np.abs(V - result.rest.variance)[seen] <= _NORMAL * spread
        summary["interval_coverage_at_rest"] = float(inside.mean())
    return summary


def _curves(
    result: PinballResult, chosen: LSTD, name: str, sizes: tuple[int, ...], seed: np.random.SeedSequence
) -> dict[str, list[tuple[int, float]]]:
    """The error of the std at rest for growing numbers of trajectories, each set within the next."""
    starts, noise = seed.spawn(2)
    pinball, grid, tiles = result.pinball, result.grid, result.parameters.features
    pool = pinball.rollout(result.policy, pinball.sample_starts(max(sizes), starts), noise)
    curves: dict[str, list[tuple[int, float]]] = {}

    def maps(data: Trajectories) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
        for lam in (0.0, 0.5, 0.9):
            lstd = LSTD(tiles, lam=lam)
            risk = lstd.solve(lstd.equations(data))
            yield f"LSTD({lam:g}), tiles", risk.mean_and_variance(grid.states)
        # The step falls by half in the first tenth of the updates, so that the last ones average well.
        td = TD(tiles, step=StepSize(0.5, decay=0.1 * _PASSES * data.transitions), update="step")
        risk = td.fit(data, epochs=_PASSES)
        yield f"TD(0), tiles, {_PASSES} passes", risk.mean_and_variance(grid.states)
        risk = LSTD(tiles, lam=0.9, variance="direct").fit(data)
        yield "LSTD(0.9), tiles, direct", risk.mean_and_variance(grid.states)
        yield f"chosen: {name}", chosen.fit(data).mean_and_variance(grid.states)
        rival = every_visit(visit_sums(data, grid))
        yield "every-visit Monte Carlo", (rival.mean[grid.free], rival.variance[grid.free])

    for size in sizes:
        for label, found in maps(pool[:size]):
            curves.setdefault(label, []).append((size, result.truth.error(*found).std_error))
    trajectories, errors = result.budget.curve()
    curves["Monte Carlo at rest"] = [(int(k), float(e)) for k, e in zip(trajectories, errors, strict=True)]
    return curves


def main(arguments: list[str] | None = None) -> None:
    """Run the paper's part and the extension; some minutes."""
    given = pinball.options().parse_args(arguments)
    result = pinball.run_with(given)
    paths = pinball.write(result, given.out)
    extension = run(result)
    paths += write(extension, given.out)
    tell(pinball.text(extension.to_dict()), paths)


if __name__ == "__main__":
    main()
