"""The portfolio: the domain, its exact decision process, and its Gymnasium environment (loaded on use)."""

from policyrisk.domains.portfolio.portfolio import Portfolio

__all__ = ["Portfolio"]
