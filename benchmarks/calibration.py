"""How often intervals hold with few episodes: `python benchmarks/calibration.py`.

Nominal 95% intervals of V and J, averaged over the states of a walk of 8 states and of one on a 16 × 16 grid,
both with a table, for growing numbers of episodes. Not a matter of speed, and not part of `make bench`.
"""

from __future__ import annotations

import warnings

import numpy as np
from rich.console import Console
from rich.table import Table

import policyrisk as pr
from policyrisk.errors import PolicyRiskWarning


def share(lstd, sample, x, truth, replications):
    held = np.zeros(2)
    counted = np.zeros(2)
    behind = []
    for seed in range(replications):
        risk = lstd.fit(sample(seed))
        behind.append(np.nanmedian(np.where(risk.visited(x), risk.episodes(x), np.nan)))
        for i, of in enumerate(("mean", "variance")):
            low, high = risk.interval(x, of=of).T
            known = np.isfinite(low)
            held[i] += np.sum((low <= truth[i])[known] & (truth[i] <= high)[known])
            counted[i] += known.sum()
    return held / counted, np.median(behind)


def main() -> None:
    warnings.simplefilter("ignore", PolicyRiskWarning)
    table = Table(title="coverage of nominal 95% intervals")
    for column in ("problem", "episodes", "behind a state (median)", "mean J", "variance V"):
        table.add_column(column, justify="right")
    walk = pr.domains.walk(8, 0.7)
    lstd = pr.LSTD(pr.Tabular(8), lam=0.9)
    truth = walk.mean(), walk.variance()
    for episodes in (15, 40, 100, 300, 1000):
        got, behind = share(
            lstd, lambda s, k=episodes: walk.sample(0, k, seed=s), np.arange(8), truth, replications=400
        )
        table.add_row("walk, table", str(episodes), f"{behind:.0f}", f"{got[0]:.1%}", f"{got[1]:.1%}")
    grid = pr.domains.grid_walk(16, 16)
    start = np.full(256, 1 / 256)
    lstd = pr.LSTD(pr.Tabular(256), lam=0.9)
    truth = grid.mean(), grid.variance()
    for episodes in (300, 1000, 3000):
        got, behind = share(
            lstd, lambda s, k=episodes: grid.sample(start, k, seed=s), np.arange(256), truth, replications=40
        )
        table.add_row("16 × 16 grid", str(episodes), f"{behind:.0f}", f"{got[0]:.1%}", f"{got[1]:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
