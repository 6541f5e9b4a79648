"""A progress bar for work that takes more than a moment."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import Progress

_PATIENCE = 3.0  # seconds before the bar is shown


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """A bar on the terminal's error stream once the work has taken some seconds; silent elsewhere.

    A ``total`` of None is not known: the bar then only moves.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(console=self._console, transient=True)
        self._task = self._progress.add_task(name, total=total)
        self._began = time.monotonic()
        self._shown = False

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._progress.stop()

    def advance(self, by: int = 1, told: str | None = None) -> None:
        """``by`` more of the total are done; ``told`` takes the place of the name."""
        self._progress.update(self._task, advance=by, description=told)
        if not self._shown and self._console.is_terminal and time.monotonic() - self._began > _PATIENCE:
            self._shown = True
            self._progress.start()
