"""Problems to try the estimators on: small chains with known answers, pinball and a portfolio."""

from typing import TYPE_CHECKING

from policyrisk._core.imports import lazy
from policyrisk.simulation import register_if_loaded

if TYPE_CHECKING:
    from policyrisk.domains.chains import boyan as boyan
    from policyrisk.domains.chains import gambler as gambler
    from policyrisk.domains.chains import grid_walk as grid_walk
    from policyrisk.domains.chains import walk as walk
    from policyrisk.domains.maze import Maze as Maze
    from policyrisk.domains.pinball import Pinball as Pinball
    from policyrisk.domains.pinball import UniformPolicy as UniformPolicy
    from policyrisk.domains.portfolio import Portfolio as Portfolio
    from policyrisk.simulation.domain import RewardSoFar as RewardSoFar

_HOMES = {
    "Maze": "policyrisk.domains.maze",
    "Pinball": "policyrisk.domains.pinball",
    "Portfolio": "policyrisk.domains.portfolio",
    "RewardSoFar": "policyrisk.simulation.domain",
    "UniformPolicy": "policyrisk.domains.pinball",
    "boyan": "policyrisk.domains.chains",
    "gambler": "policyrisk.domains.chains",
    "grid_walk": "policyrisk.domains.chains",
    "walk": "policyrisk.domains.chains",
}
__getattr__, __dir__ = lazy(__name__, _HOMES, before=register_if_loaded)
__all__ = sorted(_HOMES)
