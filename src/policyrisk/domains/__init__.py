"""Problems to try the estimators on: small chains with known answers."""

from policyrisk.domains.chains import boyan, gambler, grid_walk, walk

__all__ = ["boyan", "gambler", "grid_walk", "walk"]
