"""Pinball: mazes, compiled physics, the domain, and its Gymnasium environments (loaded on use)."""

from policyrisk.domains.pinball.maze import MAZES, Maze
from policyrisk.domains.pinball.pinball import Pinball, UniformPolicy

__all__ = ["MAZES", "Maze", "Pinball", "UniformPolicy"]
