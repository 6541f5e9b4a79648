"""The command ``policyrisk``. Heavy imports happen in the commands, so that ``--help`` is quick."""

from policyrisk.cli.entry import app, main, run

__all__ = ["app", "main", "run"]
